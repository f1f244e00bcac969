//! The keys of Swift.

use rackweave_core::{HostId, Span};
use rackweave_sim::Fabric;
use rackweave_transport::swift::{self, Distance};
use rackweave_transport::{InvalidConfig, Profile as _};
use serde::Deserialize;

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{AtLeast, Priority, Thousandths, Unit};
use crate::path::Path;

keys! {
    /// Swift's keys. A missing key has the value of the profile.
    struct SwiftKeys for swift::Config {
        /// `"fabric"`: for the fabric's round trips. `"htsim"`: that simulator's values. `"hosts"`:
        /// for processes. Default: `"fabric"`.
        profile: Profile,
        /// Window of a new flow, in whole packets. Default: bandwidth-delay product of the longest
        /// path; htsim: 15.
        initial_window: AtLeast<1, u16> => initial_window,
        /// Least and largest window, in packets. With a least one of 1 nothing is paced. Default:
        /// 0.001; 1000.
        min_window: Thousandths<60_000> => min_window_millipackets,
        /// Least and largest window, in packets. With a least one of 1 nothing is paced. Default:
        /// 0.001; 1000.
        max_window: AtLeast<1, u16> => max_window,
        /// `ai`: growth of the window per round trip; share of the delay's relative excess by which
        /// it shrinks; largest share that a decrease takes. Default: 1; 0.8; 0.5.
        increase: Thousandths<1000> => increase_millipackets,
        /// `ai`: growth of the window per round trip; share of the delay's relative excess by which
        /// it shrinks; largest share that a decrease takes. Default: 1; 0.8; 0.5.
        beta: Thousandths<1> => beta_permille,
        /// `ai`: growth of the window per round trip; share of the delay's relative excess by which
        /// it shrinks; largest share that a decrease takes. Default: 1; 0.8; 0.5.
        max_mdf: Thousandths<1> => max_mdf_permille,
        /// Target delay of the fabric, and per switch of the path. Default: together twice the
        /// unloaded round trip; htsim: `"20 us"`, 1/6.55 of it; hosts: `"500 us"`, `"50 us"`.
        base_target: Unit<Span> => base_target,
        /// Target delay of the fabric, and per switch of the path. Default: together twice the
        /// unloaded round trip; htsim: `"20 us"`, 1/6.55 of it; hosts: `"500 us"`, `"50 us"`.
        per_hop: Unit<Span> => per_hop,
        /// Most that flow-based scaling adds. `"0 s"`: none. Default: ten round trips in a rack;
        /// htsim, hosts, or with `base_target`: 5 times that.
        scaling_range: Unit<Span> => scaling_range,
        /// Window at which scaling adds all of that, and nothing. Default: 0.1; 100.
        scaling_min: Thousandths<60_000> => scaling_min_millipackets,
        /// Window at which scaling adds all of that, and nothing. Default: 0.1; 100.
        scaling_max: Thousandths<60_000> => scaling_max_millipackets,
        /// Target of acknowledgements' delay at hosts. Default: two round trips in a rack; htsim:
        /// `"20 us"`; hosts: `"1 ms"`.
        endpoint_target: Unit<Span> => endpoint_target,
        /// Successive timeouts after which the window is `min_window`. Default: 5.
        reset_after: u8 => reset_after,
        /// Retransmission timeout before the first measurement, shortest and longest. Default: `"1
        /// ms"`, `"100 us"`, `"10 ms"`; hosts: `"10 ms"`, `"4 ms"`, `"32 ms"`.
        initial_rto: Unit<Span> => initial_rto,
        /// Retransmission timeout before the first measurement, shortest and longest. Default: `"1
        /// ms"`, `"100 us"`, `"10 ms"`; hosts: `"10 ms"`, `"4 ms"`, `"32 ms"`.
        min_rto: Unit<Span> => min_rto,
        /// Retransmission timeout before the first measurement, shortest and longest. Default: `"1
        /// ms"`, `"100 us"`, `"10 ms"`; hosts: `"10 ms"`, `"4 ms"`, `"32 ms"`.
        max_rto: Unit<Span> => max_rto,
        /// Priority of acknowledgements. Data has 0. Default: 0.
        control_priority: Priority => common.control_priority,
        /// Packets take any path. Default: false.
        spray: bool => common.spray,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    /// Targets and the first window follow from the fabric's round trips.
    #[default]
    Fabric,
    /// The values of htsim, whatever the fabric.
    Htsim,
    /// Targets and timeouts for processes on hosts.
    Hosts,
}

/// Returns the number of switches between hosts, by their distance. The number grows with the distance to host 0, because
/// hosts are numbered by rack and pod.
fn distances(fabric: &Fabric) -> Vec<Distance> {
    let hops = |host: u32| fabric.path(HostId(0), HostId(host)).len().saturating_sub(1) as u8;
    let (mut all, mut host, last) = (Vec::new(), 1, fabric.hosts() - 1);
    while host <= last {
        let here = hops(host);
        // The first host that is farther.
        let (mut near, mut far) = (host, last + 1);
        while far - near > 1 {
            let middle = near + (far - near) / 2;
            if hops(middle) > here {
                far = middle;
            } else {
                near = middle;
            }
        }
        let hosts = if far > last { u32::MAX } else { far };
        all.push(Distance { hosts, hops: here });
        host = far;
    }
    all
}

impl SwiftKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<swift::Config>] = &[
        Rule {
            key: "initial_window",
            of: |config| Some(Amount::Packets(u64::from(config.initial_window))),
            why: "a bandwidth-delay product of the longest path (Rackweave's choice)",
            far: Far::WINDOW,
            grid: Grid::Factors(&[0.5, 2.0]),
        },
        Rule {
            key: "base_target",
            of: |config| Some(Amount::Time(config.base_target)),
            why: "with `per_hop` twice the idle round trip (Rackweave's choice: the paper has no formula)",
            far: Far::TARGET,
            grid: Grid::Factors(&[0.5, 0.75, 1.5, 2.0]),
        },
        Rule {
            key: "per_hop",
            of: |config| Some(Amount::Time(config.per_hop)),
            why: "what a switch more adds to twice the idle round trip",
            far: Far::NEVER,
            grid: Grid::None,
        },
        Rule {
            key: "scaling_range",
            of: |config| Some(Amount::Time(config.scaling_range)),
            why: "ten idle round trips in a rack; five times a given `base_target`, as in htsim",
            far: Far::TIMER,
            grid: Grid::Factors(&[0.25, 0.5, 2.0]),
        },
        Rule {
            key: "endpoint_target",
            of: |config| Some(Amount::Time(config.endpoint_target)),
            why: "two idle round trips in a rack (Rackweave's choice)",
            far: Far::NEVER,
            grid: Grid::None,
        },
        Rule {
            key: "increase",
            of: |config| Some(Amount::Number(f64::from(config.increase_millipackets) / 1000.0)),
            why: "`ai` of htsim",
            far: Far::NEVER,
            grid: Grid::Values(&["0.5", "2"]),
        },
        Rule {
            key: "min_rto",
            of: |config| Some(Amount::Time(config.min_rto)),
            why: "htsim's",
            far: Far::TIMER,
            grid: Grid::None,
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<swift::Config, Problem> {
        let distances = distances(fabric);
        let htsim = swift::Config { distances: distances.clone(), ..swift::Config::htsim() };
        let hops = |distance: Option<&Distance>| distance.map_or(1, |distance| distance.hops);
        let near = (hops(distances.first()), Path::shortest(fabric).base_rtt());
        let far = (hops(distances.last()), Path::longest(fabric).base_rtt());
        let for_fabric = |config: swift::Config| config.for_paths(fabric.host_rate(), near, far);
        let mut config = match self.profile.unwrap_or_default() {
            Profile::Fabric => for_fabric(htsim),
            Profile::Htsim => htsim,
            Profile::Hosts => for_fabric(htsim).for_hosts(),
        };
        self.apply(&mut config);
        if self.scaling_range.is_none() && self.base_target.is_some() {
            // htsim: five times the base target.
            config.scaling_range = config.base_target.saturating_mul(5);
        }
        if self.initial_window.is_none() {
            config.initial_window = config.initial_window.min(config.max_window);
        }
        config.check().map_err(|error| self.invalid(place, error))?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }

    /// Returns an error for what the transport reports about its configuration, at the key that causes it.
    fn invalid(&self, place: Place<'_>, error: InvalidConfig) -> Problem {
        use InvalidConfig as E;
        match error {
            E::Rule { field: "initial_window", .. } => {
                let key =
                    if self.initial_window.is_some() { "initial_window" } else { "min_window" };
                place.bad(key, "`initial_window` must be between `min_window` and `max_window`")
            }
            E::Rule { field: "scaling_min", .. } => {
                let key = if self.scaling_max.is_some() { "scaling_max" } else { "scaling_min" };
                place.bad(key, "`scaling_min` must be below `scaling_max`")
            }
            E::Rule { field: key @ ("beta" | "max_mdf"), .. } => place.bad(key, error.to_string()),
            E::Rule { field: "min_rto", .. } => {
                let key = if self.max_rto.is_some() { "max_rto" } else { "min_rto" };
                place.bad(key, "`min_rto` must be at most `max_rto`")
            }
            E::Patience(_) => place.bad(
                "max_rto",
                "four times `max_rto` must be below the time after which a peer counts as dead",
            ),
            _ => place.invalid(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fabric::Queues;

    use super::*;
    use crate::START;
    use crate::de::from_table;
    use crate::problem::SweptKeys;
    use crate::tree::parse_document;

    fn fabric(keys: &str) -> Fabric {
        let table = parse_document(keys, 0).ok().unwrap();
        let keys: crate::fabric::Fabric = from_table(&table, START).unwrap();
        Fabric::new(&keys.resolve(&SweptKeys::new(), &Queues::USUAL).unwrap()).unwrap()
    }

    #[test]
    fn distances_are_those_of_the_fabric() {
        let far = |hops| Distance { hosts: u32::MAX, hops };
        let rack = |hosts, hops| Distance { hosts, hops };
        let leaves = "topology = 'leaf-spine'\nleaves = 26\nhosts_per_leaf = 40\nspines = 10\ncore_link = '40 Gbps'";
        // A fat-tree of k = 8: racks of 4 hosts, pods of 16.
        assert_eq!(
            distances(&fabric("topology = 'fat-tree'\nk = 8")),
            [rack(4, 1), rack(16, 3), far(5)]
        );
        assert_eq!(distances(&fabric(leaves)), [rack(40, 1), far(3)]);
    }
}
