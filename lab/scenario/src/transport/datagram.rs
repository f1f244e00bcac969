//! The keys of the transport `datagram`.

use rackweave_core::Span;
use rackweave_sim::Fabric;
use rackweave_transport::datagram;
use rackweave_workload::Exchange;

use super::super::derived::Rule;
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{Priority, Unit};

keys! {
    /// The keys of datagrams.
    struct DatagramKeys for datagram::Config {
        /// Silence after which a receiver forgets a message. Default: `"10 ms"`.
        forget_after: Unit<Span> => forget_after,
        /// Queue in switches, 0 to 7. Default: 0.
        priority: Priority => priority,
        /// Packets take any path. Default: false.
        spray: bool => spray,
    }
}

impl DatagramKeys {
    /// None follows from the fabric.
    pub(super) const RULES: &'static [Rule<datagram::Config>] = &[];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        _fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<datagram::Config, Problem> {
        if carried.workload.exchange != Exchange::OneWay {
            let message = "datagrams go one way: a request whose answer is lost would never end";
            return Err(place
                .bad("name", message)
                .with_help("exchange = \"one-way\" goes with it"));
        }
        let mut config = datagram::Config::default();
        self.apply(&mut config);
        config.check().map_err(|error| place.invalid(&error))?;
        place.refuse_longer_messages(carried, config.max_message_bytes)?;
        Ok(config)
    }
}
