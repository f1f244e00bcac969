//! The keys of Polo.

use rackweave_core::Span;
use rackweave_sim::Fabric;
use rackweave_transport::polo::{self, DriveOrder};
use rackweave_transport::{InvalidConfig, Profile as _};
use serde::Deserialize;

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::Unit;
use crate::path::Path;

keys! {
    /// Polo's keys. A missing key has the value of the profile.
    struct PoloKeys for polo::Config {
        /// `"fabric"`: the slides' numbers, fitted to the fabric's round trip. `"polo-slides"`:
        /// unchanged. `"hosts"`: for processes. Default: `"fabric"`.
        profile: Profile,
        /// Packets sent without being driven. Default: 12; fabric: or a round trip and one more.
        first_window: u16 => first_window,
        /// Recovery 3: shortest and longest silence after which a sender asks. Default: `"1 ms"`,
        /// `"8 ms"`; fabric: at least four round trips; hosts: at least 10, 40 ms.
        rto: Unit<Span> => rto,
        /// Recovery 3: shortest and longest silence after which a sender asks. Default: `"1 ms"`,
        /// `"8 ms"`; fabric: at least four round trips; hosts: at least 10, 40 ms.
        max_rto: Unit<Span> => max_rto,
        /// Packets by which one may be late and not lost. Default: 0; with `spray`: 3.
        reorder_margin: u32 => reorder_margin,
        /// Least and largest D. Default: 1; 48, fabric: or four first windows.
        min_drives: u32 => min_drives,
        /// Least and largest D. Default: 1; 48, fabric: or four first windows.
        max_drives: u32 => max_drives,
        /// Flow that is driven next: `"arrival"`, whose data arrived, or `"fewest-left"`. Default:
        /// `"arrival"`.
        drive_order: Order => order,
        /// Loss packets for gaps; loss packets after two epochs without data; a driving packet for
        /// a flow with nothing to send goes to another. false: the slides' Polo c, b, a. Default:
        /// true.
        recovery_1: bool => recovery_1,
        /// Loss packets for gaps; loss packets after two epochs without data; a driving packet for
        /// a flow with nothing to send goes to another. false: the slides' Polo c, b, a. Default:
        /// true.
        recovery_2: bool => recovery_2,
        /// Loss packets for gaps; loss packets after two epochs without data; a driving packet for
        /// a flow with nothing to send goes to another. false: the slides' Polo c, b, a. Default:
        /// true.
        wasted_driving_rule: bool => wasted_driving_rule,
        /// An epoch without marks wakes a paused flow below D active ones; a mark pauses a new flow
        /// only if D, or if any, are active. Default: true; true.
        wake_in_quiet_epochs: bool => wake_in_quiet_epochs,
        /// An epoch without marks wakes a paused flow below D active ones; a mark pauses a new flow
        /// only if D, or if any, are active. Default: true; true.
        pause_only_if_full: bool => pause_only_if_full,
        /// First time after which a paused sender asks. Default: `"32 ms"`.
        pause_probe: Unit<Span> => pause_probe,
        /// Packets take any path. Default: false.
        spray: bool => common.spray,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    /// The slides' values, or larger ones where the fabric's round trip is longer than theirs.
    #[default]
    Fabric,
    PoloSlides,
    /// Like `fabric`, with timeouts for processes on hosts.
    Hosts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    Arrival,
    FewestLeft,
}

impl From<Order> for DriveOrder {
    fn from(order: Order) -> Self {
        match order {
            Order::Arrival => Self::Arrival,
            Order::FewestLeft => Self::FewestLeft,
        }
    }
}

impl PoloKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<polo::Config>] = &[
        Rule {
            key: "first_window",
            of: |config| Some(Amount::Packets(u64::from(config.first_window))),
            why: "12 packets (the slides), or an idle round trip and one more",
            far: Far::WINDOW,
            grid: Grid::Factors(&[0.5, 2.0]),
        },
        Rule {
            key: "max_drives",
            of: |config| Some(Amount::Packets(u64::from(config.max_drives))),
            why: "48 (Rackweave's choice), or four first windows",
            far: Far::WINDOW,
            grid: Grid::None,
        },
        Rule {
            key: "rto",
            of: |config| Some(Amount::Time(config.rto)),
            why: "1 ms (the slides), or four idle round trips",
            far: Far::TIMER,
            grid: Grid::None,
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<polo::Config, Problem> {
        let slides = polo::Config::slides();
        let for_fabric =
            || slides.clone().for_path(fabric.host_rate(), Path::longest(fabric).base_rtt());
        let mut config = match self.profile.unwrap_or_default() {
            Profile::Fabric => for_fabric(),
            Profile::Hosts => for_fabric().for_hosts(),
            Profile::PoloSlides => slides,
        };
        self.apply(&mut config);
        if self.max_rto.is_none() {
            config.max_rto = config.max_rto.max(config.rto);
        }
        if self.reorder_margin.is_none() && config.common.spray {
            // Sprayed packets overtake each other slightly, which is not a loss. The slides do not give the distance;
            // three packets is TCP's threshold (RFC 5681, section 3.2).
            config.reorder_margin = 3;
        }
        if self.max_drives.is_none() {
            config.max_drives = config.max_drives.max(config.min_drives);
        }
        config.check().map_err(|error| self.invalid(place, error, &config))?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }

    /// Returns an error for what the transport reports about its configuration, at the key that causes it.
    fn invalid(&self, place: Place<'_>, error: InvalidConfig, config: &polo::Config) -> Problem {
        use InvalidConfig as E;
        match error {
            E::Above("min_drives", _) => {
                place.bad("max_drives", "`max_drives` must not be below `min_drives`")
            }
            E::Above("rto", _) => place.bad("max_rto", "`max_rto` must not be below `rto`"),
            E::Rule { field: "complete_delay", .. } => {
                let delay = config.complete_delay;
                place.bad("rto", format!("`rto` must be above {delay}, for which answers wait"))
            }
            E::Rule { field: "min_epoch", .. } => {
                let epoch = config.min_epoch;
                place.bad("rto", format!("`rto` must be above {epoch}, the shortest epoch"))
            }
            E::Patience(_) => {
                let key = match (self.pause_probe, self.max_rto) {
                    (Some(_), _) => "pause_probe",
                    (None, Some(_)) => "max_rto",
                    (None, None) => "rto",
                };
                let silent = config.common.patience;
                let message = format!(
                    "`{key}` must be below a quarter of {silent}: then a peer counts as dead"
                );
                place.bad(key, message)
            }
            _ => place.invalid(&error),
        }
    }
}
