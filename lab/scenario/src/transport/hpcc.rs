//! The keys of HPCC.

use rackweave_core::{Bytes, Rate, Span, telemetry};
use rackweave_sim::Fabric;
use rackweave_transport::{InvalidConfig, Profile as _, hpcc};

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{AboveZero, AtLeast, Unit};
use crate::path::Path;

keys! {
    /// HPCC's keys.
    struct HpccKeys for hpcc::Config {
        /// T: the idle round trip by which windows become rates. Default: of the longest path.
        base_rtt: Unit<Span>,
        /// Target of the busiest link's utilisation. Default: 0.95.
        eta: f64,
        /// Round trips of additive increase before a multiplicative one. Default: 0.
        max_stage: u32 => max_stage,
        /// W_AI: what a window gains in a round trip; without it, flows of a link for which the
        /// increases are made. Default: 1 - `eta` of a bandwidth-delay product over `flows`; 100.
        additive: AboveZero<Bytes>,
        /// W_AI: what a window gains in a round trip; without it, flows of a link for which the
        /// increases are made. Default: 1 - `eta` of a bandwidth-delay product over `flows`; 100.
        flows: AtLeast<1, u32>,
        /// The least rate of a message. Default: `"1 Gbps"`, at most a tenth of the link.
        min_rate: Unit<Rate> => min_rate,
        /// A full packet, from the IP header on. Default: `"1500 B"`.
        packet: AboveZero<Bytes>,
        /// Every n-th packet asks for an acknowledgement. Default: 1.
        ack_every: AtLeast<1, u32>,
        /// Receivers keep what arrives out of order. Default: false, go-back-N.
        selective_repeat: bool => repair.selective,
        /// Timeout; it doubles up to eight times. Default: `"4 ms"`.
        rto: Unit<Span> => repair.rto,
        /// Packets take any path: then what switches write cannot be compared. Default: false.
        spray: bool => common.spray,
    }
}

impl HpccKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<hpcc::Config>] = &[
        Rule {
            key: "base_rtt",
            of: |config| Some(Amount::Time(config.base_rtt)),
            why: "T: an idle round trip over the longest path (HPCC, SIGCOMM 2019, section 3.2)",
            far: Far::WINDOW,
            grid: Grid::Factors(&[0.75, 1.5]),
        },
        Rule {
            key: "additive",
            of: |config| Some(Amount::Bytes(u64::from(config.additive_bytes))),
            why: "W_AI: 1 - eta of a bandwidth-delay product over 100 flows (section 3.3)",
            far: Far::NEVER,
            grid: Grid::Factors(&[0.25, 4.0, 16.0]),
        },
        Rule {
            key: "eta",
            of: |config| Some(Amount::Number(config.eta)),
            why: "the paper's value (section 5.1)",
            far: Far::NEVER,
            grid: Grid::Values(&["0.9", "0.98"]),
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<hpcc::Config, Problem> {
        let nameless = fabric.links().iter().find(|link| telemetry::rate_code(link.rate).is_none());
        if let Some(link) = nameless {
            let message = format!("hpcc's packets cannot name links of {}", link.rate);
            let help = format!("in-band telemetry has codes for {}", telemetry::rates());
            return Err(place.bad("name", message).with_help(help));
        }
        let rtt = self.base_rtt.map_or_else(|| Path::longest(fabric).base_rtt(), |rtt| rtt.0);
        let mut config = hpcc::Config::paper(fabric.host_rate(), rtt);
        if let Some(eta) = self.eta {
            config.eta = eta;
        }
        config.additive_bytes = match (self.additive, self.flows) {
            (Some(bytes), _) => u32::try_from(bytes.0.0).unwrap_or(u32::MAX),
            (None, Some(flows)) => config.additive_for(flows.0),
            (None, None) => config.additive_for(hpcc::Config::FLOWS),
        };
        if let Some(packet) = self.packet {
            let header = u64::from(config.common.header_bytes);
            let payload = packet.0.0.checked_sub(header).filter(|payload| *payload > 0);
            let payload = payload.and_then(|payload| u32::try_from(payload).ok());
            let Some(payload) = payload else {
                let message = format!("`packet` must be longer than its header of {header} bytes");
                return Err(place.bad("packet", message));
            };
            config.common.max_payload = payload;
        }
        self.apply(&mut config);
        if let Some(every) = self.ack_every {
            config.repair.ack_every = every.0;
        }
        config.check().map_err(|error| match error {
            InvalidConfig::Patience(_) => place.bad(
                "rto",
                "eight times `rto` must be below the time after which a peer counts as dead",
            ),
            _ => place.invalid(&error),
        })?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }
}
