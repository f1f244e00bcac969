//! The keys of Homa.

use rackweave_core::{Rate, Span};
use rackweave_sim::Fabric;
use rackweave_transport::homa;
use rackweave_workload::{Pattern, WorkloadConfig};
use serde::Deserialize;
use serde::de::{Error, SeqAccess, Visitor, value::SeqAccessDeserializer};

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{AboveZero, AtLeast, Limit, Size32, Thousandths, Unit};
use crate::path::Path;

/// The longest memory of finished messages that is derived from the timers, in ticks.
const MAX_FINISHED_TICKS: u32 = 1000;

keys! {
    /// Homa's keys. A missing key has the value of the profile.
    struct HomaKeys for homa::Config {
        /// See above. Default: `"fabric"`.
        profile: Profile,
        /// fabric, sigcomm18: bytes of a round trip. Sets `unscheduled` and `window`. Default: from
        /// the fabric.
        rtt_bytes: Size32,
        /// Bytes sent without a grant; granted beyond those received, to a message and (a limit) to
        /// all. Default: profile.
        unscheduled: Size32 => unscheduled_bytes,
        /// Bytes sent without a grant; granted beyond those received, to a message and (a limit) to
        /// all. Default: profile.
        window: Size32 => window,
        /// Bytes sent without a grant; granted beyond those received, to a message and (a limit) to
        /// all. Default: profile.
        max_incoming: Limit => max_incoming,
        /// Messages granted at a time, in all and of a peer. Default: number of scheduled levels,
        /// linux: 8; 1, linux-2026: 8.
        // Applied after `priorities`, which sets the same field to the number of scheduled levels.
        overcommit: AtLeast<1>,
        /// Messages granted at a time, in all and of a peer. Default: number of scheduled levels,
        /// linux: 8; 1, linux-2026: 8.
        max_rpcs_per_peer: AtLeast<1> => max_rpcs_per_peer,
        /// Bytes of a grant to the oldest message. Default: profile.
        fifo_grant_increment: Size32 => fifo_grant_increment,
        /// Share of grants, and of sent packets, for the oldest message. Default: 0; linux: 0.05.
        grant_fifo_fraction: Thousandths<1> => grant_fifo_fraction,
        /// Share of grants, and of sent packets, for the oldest message. Default: 0; linux: 0.05.
        pacer_fifo_fraction: Thousandths<1> => pacer_fifo_fraction,
        /// Levels in use, 2 to 8; of them for unscheduled packets, with `cutoffs = "workload"`.
        /// Default: 8; from the workload.
        priorities: u8,
        /// Levels in use, 2 to 8; of them for unscheduled packets, with `cutoffs = "workload"`.
        /// Default: 8; from the workload.
        unscheduled_levels: u8,
        /// `"workload"`: levels carry equally many bytes of it. `"linux"`: the module's. A list:
        /// the longest message of each unscheduled level but the last, highest first. Default:
        /// `"workload"`; linux: `"linux"`.
        cutoffs: Cutoffs,
        /// Packets take any path. Default: true; linux: false.
        spray: bool => spray,
        /// Timer: its period; ticks of silence before the first RESEND, and between later ones;
        /// unanswered RESENDs that end a peer; ticks from the last byte to the first NEED_ACK,
        /// repeated each tick. Default: profile.
        tick: AboveZero<Span> => tick,
        /// Timer: its period; ticks of silence before the first RESEND, and between later ones;
        /// unanswered RESENDs that end a peer; ticks from the last byte to the first NEED_ACK,
        /// repeated each tick. Default: profile.
        resend_ticks: u16 => resend_ticks,
        /// Timer: its period; ticks of silence before the first RESEND, and between later ones;
        /// unanswered RESENDs that end a peer; ticks from the last byte to the first NEED_ACK,
        /// repeated each tick. Default: profile.
        resend_interval: u16 => resend_interval,
        /// Timer: its period; ticks of silence before the first RESEND, and between later ones;
        /// unanswered RESENDs that end a peer; ticks from the last byte to the first NEED_ACK,
        /// repeated each tick. Default: profile.
        timeout_resends: u16 => timeout_resends,
        /// Timer: its period; ticks of silence before the first RESEND, and between later ones;
        /// unanswered RESENDs that end a peer; ticks from the last byte to the first NEED_ACK,
        /// repeated each tick. Default: profile.
        request_ack_ticks: u16 => request_ack_ticks,
        /// Restarts of a message that its receiver does not know, with one packet. 0:
        /// `timeout_resends`, with the unscheduled window. Default: 100.
        max_restarts: u16 => max_restarts,
        /// Lost bytes are requested, silent peers given up. false: a message that loses a packet
        /// never ends. Default: true; sigcomm18: false.
        resends: bool => resends,
        /// Lost packets are requested as fast as they can arrive, or all at a message's timeout.
        /// Default: true; linux: false.
        paced_resends: bool => paced_resends,
        /// Without `paced_resends`: a RESEND asks for all gaps, or the first. Default: true; linux,
        /// leverage-homa: false.
        resend_all_gaps: bool => resend_all_gaps,
        /// One RESEND per peer and `resend_interval`, and all its messages fail together. Default:
        /// false; linux, leverage-homa: true.
        one_resend_per_peer: bool => one_resend_per_peer,
        /// A RESEND is answered with BUSY while granted bytes are unsent. Default: false; linux,
        /// leverage-homa: true.
        busy_if_unsent: bool => busy_if_unsent,
        /// RESENDs, not BUSY, answer a NEED_ACK for an incomplete message. Default: false;
        /// linux-2026: true.
        need_ack_resends: bool => need_ack_resends,
        /// Unread bytes that a stream may receive. Default: `"1048576 B"`.
        stream_window: Size32 => streams.window_bytes,
        /// Round trips are measured by time stamps, for all keys below but `unscheduled_ratio`.
        /// Default: false; leverage-homa: true.
        measure_rtt: bool => leverage.measure_rtt,
        /// A smallest round trip counts for half to all of it. Default: `"10 s"`.
        min_rtt_window: Unit<Span> => leverage.min_rtt_window,
        /// Grants are `scheduled_factor` smallest round trips at link rate, in all `overcommit`
        /// times that. Default: false, leverage-homa: true; 3.
        scheduled_window: bool => leverage.scheduled_window,
        /// Grants are `scheduled_factor` smallest round trips at link rate, in all `overcommit`
        /// times that. Default: false, leverage-homa: true; 3.
        scheduled_factor: u32 => leverage.scheduled_factor,
        /// Bytes without grants follow the smallest round trip and congestion. Default: false;
        /// leverage-homa: true.
        unscheduled_window: bool => leverage.unscheduled_window,
        /// Rate of peers' links, if lower. Default: this host's.
        peer_link: Unit<Rate> => leverage.peer_link,
        /// `"recent"`: the last round trip exceeds `congestion_factor` smallest ones. `"average"`:
        /// the average exceeds `scheduled_factor` by `average_deviation`. `"none"`. Default:
        /// `"none"`; leverage-homa: `"recent"`.
        congestion_by: CongestionBy => leverage.congestion,
        /// Of `congestion_by`. A round trip weighs 2 to the power of minus `average_shift` in the
        /// average. Default: 8; 3; 0.5.
        congestion_factor: u32 => leverage.congestion_factor,
        /// Of `congestion_by`. A round trip weighs 2 to the power of minus `average_shift` in the
        /// average. Default: 8; 3; 0.5.
        average_shift: u32 => leverage.average_shift,
        /// Of `congestion_by`. A round trip weighs 2 to the power of minus `average_shift` in the
        /// average. Default: 8; 3; 0.5.
        average_deviation: Thousandths<1000> => leverage.average_deviation,
        /// A host with waiting messages and fewer unscheduled bytes than `ratio_threshold` halves
        /// what it sends without grants, once per `ratio_period`. Default: false; leverage-homa:
        /// true.
        unscheduled_ratio: bool => leverage.unscheduled_ratio,
        /// Of `unscheduled_ratio`. Default: 0.4; `"1 ms"`.
        ratio_threshold: Thousandths<1> => leverage.ratio_threshold,
        /// Of `unscheduled_ratio`. Default: 0.4; `"1 ms"`.
        ratio_period: Unit<Span> => leverage.ratio_period,
        /// Round trips exclude grants' wait in the peer's host, and late hosts. Default: false.
        host_delay: bool => leverage.host_delay,
        /// With short round trips, messages without a grant send `trickle_share` of the link. With
        /// congestion, each leaves room for `back_off_packets`. Default: false.
        rtt_pacer: bool => leverage.rtt_pacer,
        /// Of `rtt_pacer`. Default: 0.05; 1.
        trickle_share: Thousandths<1> => leverage.trickle_share,
        /// Of `rtt_pacer`. Default: 0.05; 1.
        back_off_packets: u32 => leverage.back_off_packets,
    }
}

/// The value of `congestion`: a [`homa::Detection`], or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CongestionBy {
    None,
    Recent,
    Average,
}

impl From<CongestionBy> for Option<homa::Detection> {
    fn from(by: CongestionBy) -> Self {
        match by {
            CongestionBy::None => None,
            CongestionBy::Recent => Some(homa::Detection::Recent),
            CongestionBy::Average => Some(homa::Detection::Average),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    #[default]
    Fabric,
    Sigcomm18,
    Linux,
    LeverageHoma,
    #[serde(rename = "linux-2026")]
    Linux2026,
}

/// The message lengths for each unscheduled level.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cutoffs {
    /// Each level carries the same number of bytes of the workload.
    Workload,
    /// The cutoffs of the Linux kernel module.
    Linux,
    /// The longest message of each unscheduled level except the last, highest level first.
    Given(Vec<Size32>),
}

impl<'de> Deserialize<'de> for Cutoffs {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Cutoffs;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"workload\", \"linux\" or a list of sizes")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Cutoffs, E> {
                match text {
                    "workload" => Ok(Cutoffs::Workload),
                    "linux" => Ok(Cutoffs::Linux),
                    _ => Err(E::unknown_variant(text, &["workload", "linux"])),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Cutoffs, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Cutoffs::Given)
            }
        }
        from.deserialize_any(Either)
    }
}

impl HomaKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<homa::Config>] = &[
        Rule {
            key: "unscheduled",
            of: |config| Some(Amount::Bytes(u64::from(config.unscheduled_bytes))),
            why: "RTTbytes: payload of an idle round trip over the longest path (SIGCOMM 2018)",
            far: Far::WINDOW,
            grid: Grid::Factors(&[0.25, 0.5, 2.0, 3.0]),
        },
        Rule {
            key: "window",
            of: |config| (config.window > 0).then(|| Amount::Bytes(u64::from(config.window))),
            why: "RTTbytes: payload of an idle round trip over the longest path (SIGCOMM 2018)",
            far: Far::WINDOW,
            grid: Grid::Factors(&[2.0, 3.0]),
        },
        Rule {
            key: "overcommit",
            of: |config| Some(Amount::Number(f64::from(config.overcommit))),
            why: "as many messages as scheduled levels (SIGCOMM 2018, section 3.5)",
            far: Far::NEVER,
            grid: Grid::Values(&["1", "2", "4", "8"]),
        },
        Rule {
            key: "grant_fifo_fraction",
            of: |config| Some(Amount::Number(f64::from(config.grant_fifo_fraction) / 1000.0)),
            why: "none (the authors' simulation); linux: 0.05",
            far: Far::NEVER,
            grid: Grid::Values(&["0.05", "0.1", "0.2"]),
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<homa::Config, Problem> {
        let link = fabric.host_rate();
        let profile = self.profile.unwrap_or_default();
        let has_rtt_bytes = matches!(profile, Profile::Fabric | Profile::Sigcomm18);
        if !has_rtt_bytes && self.rtt_bytes.is_some() {
            return Err(place
                .bad("rtt_bytes", "only the profiles `fabric` and `sigcomm18` have `rtt_bytes`")
                .with_help("those of `linux` are `unscheduled` and `window`"));
        }
        let rtt_bytes = || {
            let own = || Path::longest(fabric).base_rtt_bytes();
            self.rtt_bytes.map_or_else(own, |bytes| bytes.0)
        };
        let base = match profile {
            Profile::Linux => homa::Config::linux(link),
            Profile::LeverageHoma => homa::Config::leverage(link),
            Profile::Linux2026 => homa::Config::linux_2026(link),
            Profile::Fabric => homa::Config::fabric(link, rtt_bytes()),
            Profile::Sigcomm18 => homa::Config::sigcomm18(link, rtt_bytes()),
        };
        let mut config = base.clone();
        self.apply(&mut config);
        // Time stamps need room in packets, so the config adapts its headers to the change.
        let leverage = std::mem::replace(&mut config.leverage, base.leverage);
        config = config.with_leverage(leverage);
        place.refuse_longer_messages(carried, config.max_message_bytes)?;
        self.priorities(place, carried, fabric, &mut config)?;
        config.overcommit = self.overcommit.map_or(config.overcommit, u32::from);
        if config.streams.window_bytes == 0 {
            return Err(place.bad("stream_window", "`stream_window` must be at least 1 B"));
        }
        // Receivers remember messages for as long as senders retry, within a bound, because ids take memory.
        let needed = config.remembered_for().saturating_add(1);
        if needed <= MAX_FINISHED_TICKS {
            config.finished_ticks = config.finished_ticks.max(needed);
        }
        match config.check() {
            Ok(()) => Ok(config),
            Err(error) => Err(self.invalid(place, error, &config)),
        }
    }

    /// Returns an error for what the transport reports about its configuration, at the key that causes it.
    fn invalid(
        &self,
        place: Place<'_>,
        error: homa::InvalidConfig,
        config: &homa::Config,
    ) -> Problem {
        use homa::InvalidConfig as E;
        match error {
            E::Zero("unscheduled_bytes") => {
                place.bad("unscheduled", "`unscheduled` must be at least 1 B")
            }
            E::Zero(key) => place.bad(key, format!("`{key}` must be at least 1")),
            E::Share(key) => place.bad(key, format!("`{key}` must be from 0 to 1")),
            E::DynamicWindow => {
                let message = "a `window` of 0, a share of `max_incoming`, needs a limit on that";
                place.bad("window", message).with_help("such as max_incoming = \"400 KB\"")
            }
            E::ForgetsTooSoon(ticks) => {
                let given = [
                    ("resend_ticks", self.resend_ticks.is_some()),
                    ("resend_interval", self.resend_interval.is_some()),
                    ("timeout_resends", self.timeout_resends.is_some()),
                    ("request_ack_ticks", self.request_ack_ticks.is_some()),
                ];
                let key =
                    given.iter().find(|(_, is_given)| *is_given).map_or("name", |(key, _)| key);
                let message = format!(
                    "senders would try for {ticks} ticks, and receivers remember a finished \
                     message for {}: it could be delivered twice",
                    config.finished_ticks
                );
                place.bad(key, message).with_help(
                    "the ticks are about resend_ticks + (timeout_resends + 1) * resend_interval + \
                     request_ack_ticks",
                )
            }
            E::StreamWindow => place.bad("stream_window", "`stream_window` can be at most 1 GiB"),
            E::NeedsRtt(switch) => {
                let key = if switch == "congestion" { "congestion_by" } else { switch };
                let message = format!("`{key}` needs measured round trips");
                place
                    .bad(key, message)
                    .with_help("measure_rtt = true, or the profile `leverage-homa`")
            }
            E::AverageShift(_) => {
                place.bad("average_shift", "`average_shift` must be from 0 to 16")
            }
            E::PacketTooLong(_) | E::Priorities { .. } => {
                Problem::new(place.path, error.to_string())
            }
        }
    }

    fn priorities(
        &self,
        place: Place<'_>,
        carried: Carried<'_>,
        fabric: &Fabric,
        config: &mut homa::Config,
    ) -> Result<(), Problem> {
        let own = match self.profile.unwrap_or_default() {
            Profile::Fabric | Profile::Sigcomm18 => Cutoffs::Workload,
            Profile::Linux | Profile::LeverageHoma | Profile::Linux2026 => Cutoffs::Linux,
        };
        let cutoffs = self.cutoffs.as_ref().unwrap_or(&own);
        let levels = self.priorities.unwrap_or(config.num_priorities);
        if !(2..=homa::config::MAX_PRIORITIES).contains(&levels) {
            let message =
                format!("`priorities` must be from 2 to {}", homa::config::MAX_PRIORITIES);
            return Err(place
                .bad("priorities", message)
                .with_help("scheduled and unscheduled packets need one level each"));
        }
        if let Some(unscheduled) = self.unscheduled_levels {
            if *cutoffs != Cutoffs::Workload {
                let message = "`unscheduled_levels` follows from these cutoffs";
                return Err(place
                    .bad("unscheduled_levels", message)
                    .with_help("it goes with cutoffs = \"workload\""));
            }
            if !(1..levels).contains(&unscheduled) {
                let message = format!("`unscheduled_levels` must be from 1 to {}", levels - 1);
                return Err(place.bad("unscheduled_levels", message));
            }
        }
        config.num_priorities = levels;
        let cutoffs = match cutoffs {
            Cutoffs::Workload => {
                let sizes = sizes(carried, fabric);
                homa::cutoffs::allocate_for(config, &sizes, self.unscheduled_levels)
            }
            // The profile already has these cutoffs.
            Cutoffs::Linux if self.priorities.is_none() && own == Cutoffs::Linux => return Ok(()),
            Cutoffs::Linux => {
                let linux = [200, 2_800, 15_000, u32::MAX];
                homa::Cutoffs::new(&linux, levels).ok_or_else(|| {
                    place.bad("priorities", "Linux's four unscheduled levels need 5 priorities")
                })?
            }
            Cutoffs::Given(edges) => given_cutoffs(place, edges, levels)?,
        };
        *config = config.clone().with_priorities(cutoffs);
        Ok(())
    }
}

fn given_cutoffs(place: Place<'_>, edges: &[Size32], levels: u8) -> Result<homa::Cutoffs, Problem> {
    let sizes: Vec<u32> = edges.iter().map(|edge| edge.0).chain([u32::MAX]).collect();
    homa::Cutoffs::new(&sizes, levels).ok_or_else(|| {
        place.bad("cutoffs", format!("these cutoffs don't fit {levels} priorities")).with_help(
            "they are growing sizes, one fewer than there are unscheduled levels, and leave at \
             least one level for scheduled packets",
        )
    })
}

/// Returns the sizes of all messages that the transport carries, with their weights: the mix that a host meets which receives all
/// streams. (Rackweave's choice: the module's receivers measure what each receives, and here all hosts have the same cutoffs.)
fn sizes(carried: Carried<'_>, fabric: &Fabric) -> Vec<(u32, f64)> {
    if let [workload] = carried.all {
        return sizes_of(workload);
    }
    let mut all = Vec::new();
    for workload in carried.all {
        let sizes = sizes_of(workload);
        let bytes: f64 = sizes.iter().map(|(size, weight)| f64::from(*size) * weight).sum();
        let scale = receiver_load(workload, fabric) / bytes;
        if scale.is_finite() {
            all.extend(sizes.into_iter().map(|(size, weight)| (size, weight * scale)));
        }
    }
    all
}

/// Returns the share of a receiver's link that a stream fills, at most 1: that of a stream without a rate, which sends as fast as it can.
fn receiver_load(workload: &WorkloadConfig, fabric: &Fabric) -> f64 {
    let hosts = fabric.hosts();
    let number = |range: &Option<std::ops::Range<u32>>| {
        range.as_ref().map_or(hosts, |range| range.end.saturating_sub(range.start)).max(1)
    };
    let (senders, receivers) = (f64::from(number(&workload.senders)), number(&workload.receivers));
    let load = match &workload.pattern {
        Pattern::OpenLoop { load, .. } => load * senders / f64::from(receivers),
        Pattern::Periodic { rate, .. } => {
            rate.0 as f64 / fabric.host_rate().0 as f64 * senders / f64::from(receivers)
        }
        Pattern::RecurringIncast {
            senders: given,
            receiver,
            sizes,
            messages_per_sender,
            every,
            ..
        } => {
            let senders = given.map_or(senders.min(f64::from(hosts) - 1.0), f64::from);
            let receivers = receiver.map_or(f64::from(hosts), |_| 1.0);
            let bits = senders * *messages_per_sender as f64 * sizes.mean() * 8.0 / receivers;
            bits / every.as_secs_f64() / fabric.host_rate().0 as f64
        }
        Pattern::ClosedLoop { .. }
        | Pattern::Incast { .. }
        | Pattern::Permutation { .. }
        | Pattern::AllToAll { .. }
        | Pattern::Trace(_)
        | Pattern::Collective(_) => 1.0,
    };
    load.min(1.0)
}

/// Returns the sizes of a stream's messages and responses, with their weights.
fn sizes_of(workload: &WorkloadConfig) -> Vec<(u32, f64)> {
    let as_u32 = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
    let mut sizes: Vec<(u32, f64)> = match &workload.pattern {
        Pattern::Trace(trace) => trace.entries().iter().map(|e| (as_u32(e.bytes), 1.0)).collect(),
        Pattern::Collective(it) => {
            let sizes = it.schedule().sizes().into_iter();
            sizes.map(|(size, number)| (as_u32(size), number as f64)).collect()
        }
        other => other.sizes().map_or(Vec::new(), |sizes| {
            sizes.points().map(|(size, weight)| (as_u32(size), weight)).collect()
        }),
    };
    let responses: Vec<(u32, f64)> = sizes
        .iter()
        .filter_map(|(size, weight)| {
            let response = workload.exchange.response_bytes(u64::from(*size))?;
            Some((as_u32(response), *weight))
        })
        .collect();
    sizes.extend(responses);
    sizes
}
