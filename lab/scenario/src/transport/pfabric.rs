//! The keys of pFabric.

use rackweave_core::Span;
use rackweave_sim::Fabric;
use rackweave_transport::{InvalidConfig, Profile as _, pfabric};

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{AtLeast, Unit};
use crate::path::Path;

keys! {
    /// pFabric's keys. A missing key has the paper's value, for this fabric's round trip.
    struct PFabricKeys for pfabric::Config {
        /// Packets in flight, at first and at most. Default: a round trip; 1.25 times that.
        initial_window: AtLeast<1, u16>,
        /// Packets in flight, at first and at most. Default: a round trip; 1.25 times that.
        max_window: AtLeast<1, u16>,
        /// Timeout; successive ones after which only probes are sent; their longest interval,
        /// doubling. Default: three round trips; 5; `"1 ms"`, or `rto`.
        rto: Unit<Span> => rto,
        /// Timeout; successive ones after which only probes are sent; their longest interval,
        /// doubling. Default: three round trips; 5; `"1 ms"`, or `rto`.
        probe_after: u8 => probe_after,
        /// Timeout; successive ones after which only probes are sent; their longest interval,
        /// doubling. Default: three round trips; 5; `"1 ms"`, or `rto`.
        max_probe_interval: Unit<Span> => max_probe_interval,
        /// Packets take any path. Default: true.
        spray: bool => common.spray,
    }
}

impl PFabricKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<pfabric::Config>] = &[
        Rule {
            key: "initial_window",
            of: |config| Some(Amount::Packets(u64::from(config.initial_window))),
            why: "a bandwidth-delay product (SIGCOMM 2013, section 4.3)",
            far: Far::WINDOW,
            grid: Grid::Factors(&[0.5, 1.5, 2.0]),
        },
        Rule {
            key: "max_window",
            of: |config| Some(Amount::Packets(u64::from(config.max_window))),
            why: "1.25 times the first, as in the authors' simulator",
            far: Far::WINDOW,
            grid: Grid::None,
        },
        Rule {
            key: "rto",
            of: |config| Some(Amount::Time(config.rto)),
            why: "three idle round trips (SIGCOMM 2013, section 4.3)",
            far: Far::TIMER,
            grid: Grid::Factors(&[0.75, 1.5, 2.0, 4.0]),
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<pfabric::Config, Problem> {
        if !fabric.config().switch.options.by_remaining {
            let message = "pFabric needs switches with its queue: set fabric.switch.pfabric = true";
            return Err(place.bad("name", message).with_help(
                "no switch that one can buy has it: a simulated fabric does, and the user-space \
                 switch of `rackweave switch`; a sweep that compares sets it with `cases`",
            ));
        }
        let rtt = Path::longest(fabric).base_rtt();
        let mut config = pfabric::Config::paper().for_round_trip(fabric.host_rate(), rtt);
        self.apply(&mut config);
        if let Some(window) = self.initial_window {
            config.initial_window = window.0;
        }
        config.max_window = match self.max_window {
            Some(window) => window.0,
            // The ratio of the authors' values.
            None => config.initial_window.saturating_add(config.initial_window.div_ceil(4)),
        };
        if self.max_probe_interval.is_none() {
            config.max_probe_interval = config.max_probe_interval.max(config.rto);
        }
        config.check().map_err(|error| self.invalid(place, error))?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }

    /// Returns an error for what the transport reports about its configuration, at the key that causes it.
    fn invalid(&self, place: Place<'_>, error: InvalidConfig) -> Problem {
        use InvalidConfig as E;
        match error {
            E::Above("initial_window", _) => {
                place.bad("max_window", "`max_window` must not be below `initial_window`")
            }
            E::Above("rto", _) => {
                place.bad("max_probe_interval", "`max_probe_interval` must not be below `rto`")
            }
            E::Patience(_) => {
                let key =
                    if self.max_probe_interval.is_some() { "max_probe_interval" } else { "rto" };
                place.bad(
                    key,
                    format!("`{key}` must be below the time after which a peer counts as dead"),
                )
            }
            _ => place.invalid(&error),
        }
    }
}
