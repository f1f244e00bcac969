//! The keys of SIRD.

use rackweave_core::{Bytes, Span, frame};
use rackweave_sim::Fabric;
use rackweave_transport::{InvalidConfig, Profile as _, sird};
use serde::Deserialize;

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{AboveZero, AtMost, Thousandths, Unit, Whole};
use crate::path::Path;

/// A multiple of the bandwidth-delay product.
type Products = Thousandths<1000>;

keys! {
    /// SIRD's keys. A missing key has the paper's value, for this fabric's bandwidth-delay product.
    struct SirdKeys for sird::Config {
        /// Bandwidth-delay product, in bytes on the link, at least a full packet. Default: of the
        /// longest path.
        bdp: AboveZero<Bytes>,
        /// B, in `bdp`: credit and unscheduled data on their way to a receiver. Default: 1.5.
        global_bucket: Products,
        /// In `bdp`: the same from one sender without marks, and the most without credit of a
        /// message and to a receiver. Default: 1.
        sender_bucket: Products,
        /// In `bdp`: least `sender_bucket` by marks of the sender, and of switches. Default: 0.1;
        /// 0.03.
        min_host_bucket: Products,
        /// In `bdp`: least `sender_bucket` by marks of the sender, and of switches. Default: 0.1;
        /// 0.03.
        min_network_bucket: Products,
        /// UnschT, in `bdp`: longer messages ask for credit first. Default: 1.
        unscheduled_threshold: Products,
        /// SThr, in `bdp`: a sender with more unused credit marks its packets. Default: 0.5.
        csn_threshold: Products,
        /// Weight of the last packets in the mean fraction of marked ones. Default: 0.08.
        gain: Thousandths<1> => gain,
        /// Percentages: of the receiver's link for credit; of a sender's packets for its shortest
        /// message's receiver (the rest goes to all in turn). Default: 100; 50.
        credit_percent: Whole<1, 100, u32>,
        /// Percentages: of the receiver's link for credit; of a sender's packets for its shortest
        /// message's receiver (the rest goes to all in turn). Default: 100; 50.
        srpt_percent: AtMost<100> => srpt_percent,
        /// Next message: `"srpt"` or `"round-robin"`. Default: `"srpt"`.
        order: Order => order,
        /// 2: unscheduled data has priority. 1: none has. Default: 2.
        data_levels: u8,
        /// Time until credit for a missing packet is given again, doubled each time, and longer
        /// under load. Default: ten `bdp` on the link, at least `"100 us"`.
        resend_after: Unit<Span> => resend_after,
        /// Packets take any path. Default: true.
        spray: bool => common.spray,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    Srpt,
    RoundRobin,
}

impl From<Order> for sird::CreditOrder {
    fn from(order: Order) -> Self {
        match order {
            Order::Srpt => Self::Srpt,
            Order::RoundRobin => Self::RoundRobin,
        }
    }
}

impl SirdKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<sird::Config>] = &[
        Rule {
            key: "global_bucket",
            of: |config| Some(Amount::Bytes(config.global_bucket)),
            why: "B: 1.5 bandwidth-delay products (NSDI 2025)",
            far: Far::WINDOW,
            grid: Grid::Values(&["1", "1.25", "2", "3", "4"]),
        },
        Rule {
            key: "sender_bucket",
            of: |config| Some(Amount::Bytes(config.sender_bucket)),
            why: "a bandwidth-delay product (NSDI 2025)",
            far: Far::WINDOW,
            grid: Grid::None,
        },
        Rule {
            key: "unscheduled_threshold",
            of: |config| Some(Amount::Bytes(config.unscheduled_threshold)),
            why: "UnschT: a bandwidth-delay product (NSDI 2025)",
            far: Far::WINDOW,
            grid: Grid::Values(&["0.5", "2", "4", "16"]),
        },
        Rule {
            key: "csn_threshold",
            of: |config| Some(Amount::Bytes(config.csn_threshold)),
            why: "SThr: half a bandwidth-delay product (NSDI 2025)",
            far: Far::WINDOW,
            grid: Grid::Values(&["0.25", "1", "1000"]),
        },
        Rule {
            key: "resend_after",
            of: |config| Some(Amount::Time(config.resend_after)),
            why: "ten round trips, at least 100 us (Rackweave's choice)",
            far: Far::TIMER,
            grid: Grid::None,
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<sird::Config, Problem> {
        let bdp = match self.bdp {
            Some(bdp) => bdp.0.0,
            None => u64::from(Path::longest(fabric).base_rtt_bytes()),
        };
        // A product below a packet gives one packet, as in `Config::paper`.
        let bdp = bdp.max(u64::from(frame::wire_bytes(frame::MTU)));
        let mut config = sird::Config::paper(fabric.host_rate(), bdp);
        self.apply(&mut config);
        let set = |field: &mut u64, key: Option<Products>| {
            if let Some(products) = key {
                *field = bdp.saturating_mul(u64::from(u32::from(products))) / 1000;
            }
        };
        set(&mut config.global_bucket, self.global_bucket);
        set(&mut config.sender_bucket, self.sender_bucket);
        set(&mut config.min_host_bucket, self.min_host_bucket);
        set(&mut config.min_network_bucket, self.min_network_bucket);
        set(&mut config.unscheduled_threshold, self.unscheduled_threshold);
        set(&mut config.csn_threshold, self.csn_threshold);
        if let Some(percent) = self.credit_percent {
            let interval = config.credit_interval.as_ps() * 100;
            config.credit_interval = Span::from_ps(interval.div_ceil(u64::from(percent.0)));
        }
        match self.data_levels {
            Some(1) => config.unscheduled_priority = config.scheduled_priority,
            None | Some(2) => {}
            Some(_) => return Err(place.bad("data_levels", "`data_levels` must be 1 or 2")),
        }
        config.check().map_err(|error| self.invalid(place, error))?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }

    /// Returns an error for what the transport reports about its configuration, at the key that causes it.
    fn invalid(&self, place: Place<'_>, error: InvalidConfig) -> Problem {
        use InvalidConfig as E;
        match error {
            E::Rule { field: key, .. } => {
                place.bad(key, format!("`{key}` has no room for a full packet"))
            }
            E::Above(key, "sender_bucket") => {
                let key = if self.sender_bucket.is_some() { "sender_bucket" } else { key };
                place.bad(key, error.to_string())
            }
            E::Above(key @ ("gain" | "srpt_percent"), most) => {
                place.bad(key, format!("`{key}` must be at most {most}"))
            }
            E::Patience(_) => place.bad(
                "resend_after",
                "four times `resend_after` must be below the time after which a peer counts as dead",
            ),
            _ => place.invalid(&error),
        }
    }
}
