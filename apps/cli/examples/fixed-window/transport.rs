//! `fixed-window`: each message has a fixed number of packets in flight, the message with the fewest packets left goes first, and
//! each packet is acknowledged. After a timeout the window is one packet, and grows by one with each acknowledgement.
//!
//! `Sender` (rackweave_transport) has what such transports share: exchanges, acknowledgements, repetition, timers, bounds of memory.

use rackweave::core::{Rate, Span};
use rackweave::scenario::derived::{Amount, Far, Grid, Rule};
use rackweave::scenario::item::About;
use rackweave::scenario::keys::{Carried, Place};
use rackweave::scenario::path::Path;
use rackweave::scenario::problem::Problem;
use rackweave::scenario::transport::External;
use rackweave::scenario::values::{AtLeast, Unit};
use rackweave::sim::Fabric;
use rackweave::transport::external::{Ack, Sender, Sequence, sender};

rackweave::scenario::keys! {
    /// The keys in `[transport]`.
    struct Keys for Config {
        /// Packets of a message in flight. Default: a round trip.
        window: AtLeast<1> => window,
        /// Time without progress after which packets are sent again. Default: 1 ms, or three round trips.
        timeout: Unit<Span> => timeout,
    }
}

impl External for Keys {
    type Config = sender::Config<FixedWindow>;

    const ABOUT: About = About {
        name: "fixed-window",
        description: "a fixed number of packets of each message in flight",
        profiles: &[],
        sources: &[concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"))],
    };

    const RULES: &'static [Rule<Self::Config>] = &[Rule {
        key: "window",
        of: |config| Some(Amount::Packets(u64::from(config.own.window))),
        why: "a bandwidth-delay product",
        far: Far::WINDOW,
        grid: Grid::Factors(&[0.5, 2.0]), // what `tune` tries
    }];

    fn resolve(
        &self,
        _: Place<'_>,
        fabric: &Fabric,
        _: Carried<'_>,
    ) -> Result<Self::Config, Problem> {
        let mut config =
            Config::for_round_trip(fabric.host_rate(), Path::longest(fabric).base_rtt());
        self.apply(&mut config);
        Ok(sender::Config::new(config))
    }
}

/// The parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    window: u32,
    timeout: Span,
}

impl Config {
    fn for_round_trip(link: Rate, rtt: Span) -> Self {
        let window = (link.bytes_in(rtt) as u32).div_ceil(1538).max(1);
        Self { window, timeout: Span::from_ms(1).max(rtt * 3) }
    }
}

/// The state of a message at its sender.
#[derive(Debug)]
pub struct FixedWindow {
    window: u32,
}

impl Sender for FixedWindow {
    type Config = Config;

    const NAME: &'static str = Keys::ABOUT.name;

    fn new(config: &Config) -> Self {
        Self { window: config.window }
    }

    fn window(&self, _: &Config) -> u32 {
        self.window
    }

    fn rank(&self, packets: &Sequence) -> u64 {
        u64::from(packets.left())
    }

    fn timeout(&self, config: &Config) -> Span {
        config.timeout
    }

    fn on_ack(&mut self, ack: &Ack, config: &Config) {
        if ack.packets > 0 {
            self.window = (self.window + 1).min(config.window);
        }
    }

    fn on_timeout(&mut self, _: &Config) {
        self.window = 1;
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
