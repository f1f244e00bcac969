//! The keys of RoCEv2 with DCQCN.

use rackweave_core::{Rate, Span};
use rackweave_sim::Fabric;
use rackweave_transport::{InvalidConfig, Profile as _, dcqcn};
use serde::{Deserialize, Serialize};

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{AtLeast, Count, Unit};

/// The names of sets of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum DcqcnProfile {
    Hpcc,
    Paper,
}

keys! {
    /// DCQCN's keys. A missing key has the profile's value, for this fabric's links.
    struct DcqcnKeys for dcqcn::Config {
        /// `"hpcc"`: a vendor's values, as in HPCC's evaluation. `"paper"`: those of SIGCOMM 2015.
        /// Default: `"hpcc"`.
        profile: DcqcnProfile,
        /// The least rate of a message. Default: `"1 Gbps"`, at most a tenth of the link.
        min_rate: Unit<Rate> => min_rate,
        /// At most one CNP for a message in this time. Default: `"0 s"`, one for each marked packet;
        /// paper: `"50 us"`.
        cnp_interval: Unit<Span> => cnp_interval,
        /// Weight g of the estimate of congestion, and its interval. Default: 0.00390625; `"1 us"`,
        /// paper: `"55 us"`.
        gain: f64 => gain,
        /// Weight g of the estimate of congestion, and its interval. Default: 0.00390625; `"1 us"`,
        /// paper: `"55 us"`.
        alpha_interval: Unit<Span> => alpha_interval,
        /// The rate is cut at most once in this time. Default: `"4 us"`; paper: `"50 us"`.
        cut_interval: Unit<Span> => cut_interval,
        /// Between increases of the rate. Default: `"300 us"`; paper: `"55 us"`.
        raise_interval: Unit<Span> => raise_interval,
        /// Increases that only halve the distance to the rate before the cut; what the next one adds
        /// to the target; what later ones add. Default: 1, 0.02 % and 0.2 % of the link; paper: 5,
        /// 0.1 % and 0.5 %.
        fast_recovery: u32 => fast_recovery,
        /// Increases that only halve the distance to the rate before the cut; what the next one adds
        /// to the target; what later ones add. Default: 1, 0.02 % and 0.2 % of the link; paper: 5,
        /// 0.1 % and 0.5 %.
        additive: Unit<Rate> => additive,
        /// Increases that only halve the distance to the rate before the cut; what the next one adds
        /// to the target; what later ones add. Default: 1, 0.02 % and 0.2 % of the link; paper: 5,
        /// 0.1 % and 0.5 %.
        hyper: Unit<Rate> => hyper,
        /// Every n-th packet asks for an acknowledgement. Default: 1.
        ack_every: AtLeast<1, u32>,
        /// Packets of a message in flight at most. Default: `"unlimited"`.
        window: Count,
        /// Receivers keep what arrives out of order. Default: false, go-back-N.
        selective_repeat: bool => repair.selective,
        /// Timeout; it doubles up to eight times. Default: `"4 ms"`.
        rto: Unit<Span> => repair.rto,
        /// Packets take any path. Default: false, since go-back-N needs their order.
        spray: bool => common.spray,
    }
}

impl DcqcnKeys {
    /// The parameters that follow from the fabric or that its papers name.
    pub(super) const RULES: &'static [Rule<dcqcn::Config>] = &[
        Rule {
            key: "raise_interval",
            of: |config| Some(Amount::Time(config.raise_interval)),
            why: "a vendor's value (HPCC, SIGCOMM 2019, section 5.1); paper: 55 us",
            far: Far::NEVER,
            grid: Grid::Values(&["\"55 us\"", "\"100 us\"", "\"900 us\""]),
        },
        Rule {
            key: "cut_interval",
            of: |config| Some(Amount::Time(config.cut_interval)),
            why: "a vendor's value (HPCC, SIGCOMM 2019, section 5.1); paper: 50 us",
            far: Far::NEVER,
            grid: Grid::Values(&["\"50 us\""]),
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<dcqcn::Config, Problem> {
        let link = fabric.host_rate();
        let mut config = match self.profile {
            Some(DcqcnProfile::Paper) => dcqcn::Config::paper(link),
            Some(DcqcnProfile::Hpcc) | None => dcqcn::Config::hpcc(link),
        };
        self.apply(&mut config);
        if let Some(every) = self.ack_every {
            config.repair.ack_every = every.0;
        }
        if let Some(Count(packets)) = self.window {
            config.window =
                packets.map_or(u32::MAX, |packets| packets.min(u64::from(u32::MAX)) as u32);
        }
        config.check().map_err(|error| match error {
            InvalidConfig::Patience(_) => place.bad(
                "rto",
                "eight times `rto` must be below the time after which a peer counts as dead",
            ),
            InvalidConfig::Above("additive", _) => {
                place.bad("additive", "`additive` must not be above `hyper`")
            }
            _ => place.invalid(&error),
        })?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }
}
