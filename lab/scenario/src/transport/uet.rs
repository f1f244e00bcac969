//! The keys of EQDS and UET.

use rackweave_core::{Bytes, Span};
use rackweave_sim::Fabric;
use rackweave_sim::config::{Marking, Product};
use rackweave_transport::{InvalidConfig, Profile as _, uet};
use serde::Deserialize;

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{AboveZero, AtLeast, FULL_PACKET, Unit};
use crate::path::Path;

keys! {
    /// The keys of EQDS and UET. A missing key has the value of the profile.
    struct UetKeys for uet::Config {
        /// `"uet"`: Ultra Ethernet with NSCC (sender's window) and RCCC (receiver's credit).
        /// `"uet-nscc"`, `"uet-rccc"`: one of them. `"eqds"`: EQDS. Default: `"uet"`.
        profile: Profile,
        /// A full packet, from the IP header on. Default: `"1500 B"`.
        packet: AboveZero<Bytes>,
        /// Longest idle round trip. Sets NSCC's parameters, and except for eqds `window` and
        /// timeouts. Default: of the longest path.
        base_rtt: Unit<Span>,
        /// What is sent before an answer, most unused credit, and NSCC's largest window. Default:
        /// 1.5 bandwidth-delay products, eqds: 1.4; at least 8 packets.
        window: AboveZero<Bytes>,
        /// NSCC's target of queueing. Default: 0.75 round trips; without trimming 1.
        target_delay: Unit<Span> => target_delay,
        /// A trimmed packet shrinks NSCC's window. Default: false; uet-nscc: true.
        shrink_on_trim: bool => shrink_on_trim,
        /// Packets per credit, and percentage of the receiver's link that it fills. Default: eqds:
        /// 1, uet: 4; 99.
        credit_packets: AtLeast<1, u16> => credit_packets,
        /// Packets per credit, and percentage of the receiver's link that it fills. Default: eqds:
        /// 1, uet: 4; 99.
        pull_percent: u32 => pull_percent,
        /// Bytes per acknowledgement. Default: 16,384; uet: or an eighth of a bandwidth-delay
        /// product.
        ack_bytes: AboveZero<Bytes>,
        /// Shortest and longest timeout. Default: eqds: `"100 us"`, more below 100 Gbps; uet: 15 us
        /// and six round trips; longest `"8 ms"`.
        min_rto: Unit<Span> => min_rto,
        /// Shortest and longest timeout. Default: eqds: `"100 us"`, more below 100 Gbps; uet: 15 us
        /// and six round trips; longest `"8 ms"`.
        max_rto: Unit<Span> => max_rto,
        /// Packets take any path. Default: true.
        spray: bool => common.spray,
        /// Values that choose a packet's path: a power of two up to 4096. 1: one path. 0: switches
        /// choose. Default: 64, or enough for all paths.
        entropies: u16,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    /// UET with NSCC and RCCC.
    #[default]
    Uet,
    UetNscc,
    UetRccc,
    Eqds,
}

/// The simulators' number of entropy values.
const ENTROPIES: u32 = 64;

/// The number of entropy values of a fabric with this number of paths between two hosts. Each path has one at least, and paths have about
/// equally many if their number is no power of two. It is 0, for switches that choose, if a sender cannot keep track of the values.
fn entropies(paths: u32) -> u16 {
    let least = if paths.is_power_of_two() { paths } else { paths.saturating_mul(16) };
    let values = least.max(ENTROPIES).checked_next_power_of_two();
    let values = values.and_then(|values| u16::try_from(values).ok());
    values.filter(|values| *values <= uet::MAX_ENTROPIES).unwrap_or(0)
}

impl UetKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<uet::Config>] = &[
        Rule {
            key: "window",
            of: |config| Some(Amount::Bytes(config.max_window)),
            why: "1.5 bandwidth-delay products (uet-htsim), eqds: 1.4 (its simulator), at least 8 packets",
            far: Far::WINDOW,
            grid: Grid::Factors(&[0.5, 0.75, 1.5, 2.0]),
        },
        Rule {
            key: "target_delay",
            of: |config| Some(Amount::Time(config.target_delay)),
            why: "0.75 idle round trips, without trimming one (uet-htsim)",
            far: Far::TARGET,
            grid: Grid::Factors(&[0.5, 1.5, 2.0]),
        },
        Rule {
            key: "min_rto",
            of: |config| Some(Amount::Time(config.min_rto)),
            why: "15 us and six idle round trips (uet-htsim); eqds: 100 us, more below 100 Gbps",
            far: Far::TIMER,
            grid: Grid::None,
        },
    ];

    /// EQDS is a transport of its own, with other timeouts than UET, and so are the halves of UET ([`super::super::derived::Baseline`]).
    pub(super) fn baseline(&self) -> Self {
        Self { profile: self.profile, ..Self::default() }
    }

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<uet::Config, Problem> {
        let profile = self.profile.unwrap_or_default();
        let trims = fabric.config().switch.trim.is_some();
        if !trims && profile != Profile::UetNscc {
            let message =
                "EQDS and UET with credit need switches that trim: set fabric.switch.trim = true";
            return Err(place.bad("name", message).with_help(
                "it makes the queues of data short for every transport of this fabric; a sweep \
                 that compares sets it where the name is \"uet\", with `cases`; the profile \
                 \"uet-nscc\" runs without",
            ));
        }
        let link = fabric.host_rate();
        let rtt = self.base_rtt.map_or_else(|| Path::longest(fabric).base_rtt(), |rtt| rtt.0);
        let mut config = match profile {
            Profile::Uet => uet::Config::uet(link, rtt),
            Profile::UetNscc => uet::Config::nscc(link, rtt),
            Profile::UetRccc => uet::Config::rccc(link, rtt),
            Profile::Eqds => uet::Config::eqds_for(link, rtt),
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
            if profile != Profile::Eqds {
                config = config.for_round_trip(rtt);
            }
        }
        if !trims {
            // `docs/protocols/uet.md#uet-parameters`: the target is a round trip without trimming.
            config.target_delay = rtt;
        }
        if let Some(window) = self.window {
            config.max_window = window.0.0;
        }
        if let Some(bytes) = self.ack_bytes {
            config.ack_bytes = u32::try_from(bytes.0.0).unwrap_or(u32::MAX);
        }
        self.apply(&mut config);
        if self.max_rto.is_none() {
            config.max_rto = config.max_rto.max(config.min_rto);
        }
        let paths = fabric.config().topology.paths();
        config.entropies = self.entropies.unwrap_or_else(|| entropies(paths));
        config.check().map_err(|error| self.invalid(place, error, &config))?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }

    /// Half a bandwidth-delay product (`docs/protocols/uet.md#what-it-needs-of-the-switch`), and half of the eight packets after which
    /// switches trim by default. EQDS's simulator does not mark.
    pub(super) fn marking(&self) -> Option<Marking> {
        let least = 4 * FULL_PACKET;
        let marking = Marking::Products { of: Product::Link, thousandths: 500, least };
        (self.profile != Some(Profile::Eqds)).then_some(marking)
    }

    /// Returns an error for what the transport reports about its configuration, at the key that causes it.
    fn invalid(&self, place: Place<'_>, error: InvalidConfig, config: &uet::Config) -> Problem {
        use InvalidConfig as E;
        match error {
            E::Rule { field: "pull_percent", .. } => {
                place.bad("pull_percent", "`pull_percent` must be from 1 to 100")
            }
            E::Rule { field: "entropies", .. } => place.bad("entropies", error.to_string()),
            E::Rule { field: "max_window", .. } => {
                place.bad("window", "`window` must have room for a full packet")
            }
            E::Above(..) => place.bad("max_rto", "`max_rto` must not be below `min_rto`"),
            E::Patience(_) => {
                let key = if self.max_rto.is_some() { "max_rto" } else { "min_rto" };
                let silent = config.common.patience;
                let message = format!("`{key}` must be below {silent}: then a peer counts as dead");
                place.bad(key, message)
            }
            E::TooLong(_) => place.bad("packet", error.to_string()),
            _ => place.invalid(&error),
        }
    }
}
