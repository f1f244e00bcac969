//! Homa's keys.

use rackweave_core::{Bytes, Rate, Span};
use rackweave_sim::config::FabricConfig;
use rackweave_transport::homa;
use rackweave_workload::{Pattern, WorkloadConfig};
use serde::Deserialize;
use serde::de::{Error, SeqAccess, Visitor, value::SeqAccessDeserializer};

use super::Problem;
use super::transport::{Chosen, refuse_longer_messages};
use super::values::{Limit, Unit};
use crate::path::Path;

pub(super) const HOMA_KEYS: &[&str] = &[
    "profile",
    "rtt_bytes",
    "unscheduled",
    "window",
    "max_incoming",
    "overcommit",
    "max_rpcs_per_peer",
    "fifo_grant_increment",
    "grant_fifo_fraction",
    "pacer_fifo_fraction",
    "priorities",
    "unscheduled_levels",
    "cutoffs",
    "spray",
    "tick",
    "resend_ticks",
    "resend_interval",
    "timeout_resends",
    "request_ack_ticks",
    "max_restarts",
    "paced_resends",
    "need_ack_resends",
    "stream_window",
    "measure_rtt",
    "min_rtt_window",
    "scheduled_window",
    "scheduled_factor",
    "unscheduled_window",
    "peer_link",
    "congestion_by",
    "congestion_factor",
    "average_shift",
    "average_deviation",
    "unscheduled_ratio",
    "ratio_threshold",
    "ratio_period",
    "host_delay",
    "rtt_pacer",
    "trickle_share",
    "back_off_packets",
];

/// Longest memory of finished messages that follows by itself from the timers, in ticks.
const MAX_FINISHED_TICKS: u32 = 1000;

/// Homa's keys; what is not given is the profile's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HomaKeys {
    profile: Option<Profile>,
    rtt_bytes: Option<Unit<Bytes>>,
    unscheduled: Option<Unit<Bytes>>,
    window: Option<Unit<Bytes>>,
    max_incoming: Option<Limit>,
    overcommit: Option<u32>,
    max_rpcs_per_peer: Option<u32>,
    fifo_grant_increment: Option<Unit<Bytes>>,
    grant_fifo_fraction: Option<f64>,
    pacer_fifo_fraction: Option<f64>,
    priorities: Option<u8>,
    unscheduled_levels: Option<u8>,
    cutoffs: Option<Cutoffs>,
    spray: Option<bool>,
    tick: Option<Unit<Span>>,
    resend_ticks: Option<u16>,
    resend_interval: Option<u16>,
    timeout_resends: Option<u16>,
    request_ack_ticks: Option<u16>,
    max_restarts: Option<u16>,
    paced_resends: Option<bool>,
    need_ack_resends: Option<bool>,
    stream_window: Option<Unit<Bytes>>,
    measure_rtt: Option<bool>,
    min_rtt_window: Option<Unit<Span>>,
    scheduled_window: Option<bool>,
    scheduled_factor: Option<u32>,
    unscheduled_window: Option<bool>,
    peer_link: Option<Unit<Rate>>,
    congestion_by: Option<CongestionBy>,
    congestion_factor: Option<u32>,
    average_shift: Option<u32>,
    average_deviation: Option<f64>,
    unscheduled_ratio: Option<bool>,
    ratio_threshold: Option<f64>,
    ratio_period: Option<Unit<Span>>,
    host_delay: Option<bool>,
    rtt_pacer: Option<bool>,
    trickle_share: Option<f64>,
    back_off_packets: Option<u32>,
}

/// [`homa::Detection`], or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CongestionBy {
    None,
    Recent,
    Average,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    #[default]
    Sigcomm18,
    Linux,
    LeverageHoma,
}

/// Which message lengths use which unscheduled level.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cutoffs {
    /// Such that each level carries as many bytes of the workload.
    Workload,
    /// Those of the Linux kernel module.
    Linux,
    /// The longest message of each unscheduled level but the last, highest level first.
    Given(Vec<Unit<Bytes>>),
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
    pub(super) fn resolve(
        &self,
        chosen: &Chosen,
        fabric: &FabricConfig,
        workload: &WorkloadConfig,
    ) -> Result<homa::Config, Problem> {
        let link: Rate = super::host_link(fabric.topology);
        let bytes = |key: &str, value: Option<Unit<Bytes>>| -> Result<Option<u32>, Problem> {
            let Some(Unit(Bytes(n))) = value else { return Ok(None) };
            match u32::try_from(n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(chosen.bad(key, format!("`{key}` is too large: {}", Bytes(n)))),
            }
        };
        let profile = self.profile.unwrap_or_default();
        if profile != Profile::Sigcomm18 && self.rtt_bytes.is_some() {
            return Err(chosen
                .bad("rtt_bytes", "only the profile `sigcomm18` has `rtt_bytes`")
                .with_help("those of `linux` are `unscheduled` and `window`"));
        }
        let mut config = match profile {
            Profile::Linux => homa::Config::linux(link),
            Profile::LeverageHoma => homa::Config::leverage(link),
            Profile::Sigcomm18 => {
                let own = Path::longest(fabric).base_rtt_bytes();
                let rtt_bytes = bytes("rtt_bytes", self.rtt_bytes)?;
                homa::Config::sigcomm18(link, rtt_bytes.unwrap_or(own))
            }
        };
        let positive = |key: &str, n: u32| {
            if n == 0 { Err(chosen.bad(key, format!("`{key}` must be at least 1"))) } else { Ok(n) }
        };
        if let Some(n) = bytes("unscheduled", self.unscheduled)? {
            config.unscheduled_bytes = n;
        }
        if let Some(n) = bytes("window", self.window)? {
            config.window = n;
        }
        if let Some(limit) = self.max_incoming {
            config.max_incoming = limit.0.unwrap_or(u64::MAX);
        }
        if let Some(n) = self.max_rpcs_per_peer {
            config.max_rpcs_per_peer = positive("max_rpcs_per_peer", n)?;
        }
        if let Some(n) = bytes("fifo_grant_increment", self.fifo_grant_increment)? {
            config.fifo_grant_increment = n;
        }
        if let Some(x) = self.grant_fifo_fraction {
            config.grant_fifo_fraction = per_mille(chosen, "grant_fifo_fraction", x)?;
        }
        if let Some(x) = self.pacer_fifo_fraction {
            config.pacer_fifo_fraction = per_mille(chosen, "pacer_fifo_fraction", x)?;
        }
        let leverage = self.leverage(chosen, config.leverage.clone())?;
        config = config.with_leverage(leverage);
        refuse_longer_messages(chosen, workload, config.max_message_bytes)?;
        self.priorities(chosen, workload, &mut config)?;
        if let Some(n) = self.overcommit {
            config.overcommit = positive("overcommit", n)?;
        }
        if let Some(spray) = self.spray {
            config.spray = spray;
        }
        if let Some(Unit(tick)) = self.tick {
            if tick == Span::ZERO {
                return Err(chosen.bad("tick", "`tick` must be above 0"));
            }
            config.tick = tick;
        }
        let ticks = |given: Option<u16>, default: u16| given.unwrap_or(default);
        config.resend_ticks = ticks(self.resend_ticks, config.resend_ticks);
        config.resend_interval = ticks(self.resend_interval, config.resend_interval);
        config.timeout_resends = ticks(self.timeout_resends, config.timeout_resends);
        config.request_ack_ticks = ticks(self.request_ack_ticks, config.request_ack_ticks);
        config.max_restarts = self.max_restarts.unwrap_or(config.max_restarts);
        config.paced_resends = self.paced_resends.unwrap_or(config.paced_resends);
        config.need_ack_resends = self.need_ack_resends.unwrap_or(config.need_ack_resends);
        if let Some(n) = bytes("stream_window", self.stream_window)? {
            config.streams.window_bytes = positive("stream_window", n)?;
        }
        // Receivers remember as long as senders try, within reason: ids take memory.
        let needed = config.remembered_for().saturating_add(1);
        if needed <= MAX_FINISHED_TICKS {
            config.finished_ticks = config.finished_ticks.max(needed);
        }
        match config.check() {
            Ok(()) => Ok(config),
            Err(error) => Err(self.invalid(chosen, error, &config)),
        }
    }

    /// Leverage Homa's switches and numbers.
    fn leverage(
        &self,
        chosen: &Chosen,
        profile: homa::Leverage,
    ) -> Result<homa::Leverage, Problem> {
        let share = |key: &str, given: Option<f64>, default: u32| match given {
            Some(x) => per_mille(chosen, key, x),
            None => Ok(default),
        };
        let congestion = match self.congestion_by {
            None => profile.congestion,
            Some(CongestionBy::None) => None,
            Some(CongestionBy::Recent) => Some(homa::Detection::Recent),
            Some(CongestionBy::Average) => Some(homa::Detection::Average),
        };
        let average_deviation = match self.average_deviation {
            None => profile.average_deviation,
            Some(x) if (0.0..=1000.0).contains(&x) => (x * 1000.0).round() as u32,
            Some(x) => {
                let message = format!("`average_deviation` must be from 0 to 1000, not {x}");
                return Err(chosen.bad("average_deviation", message));
            }
        };
        let span = |given: Option<Unit<Span>>, default: Span| given.map_or(default, |span| span.0);
        Ok(homa::Leverage {
            measure_rtt: self.measure_rtt.unwrap_or(profile.measure_rtt),
            min_rtt_window: span(self.min_rtt_window, profile.min_rtt_window),
            scheduled_window: self.scheduled_window.unwrap_or(profile.scheduled_window),
            scheduled_factor: self.scheduled_factor.unwrap_or(profile.scheduled_factor),
            unscheduled_window: self.unscheduled_window.unwrap_or(profile.unscheduled_window),
            peer_link: self.peer_link.map(|rate| rate.0).or(profile.peer_link),
            congestion,
            congestion_factor: self.congestion_factor.unwrap_or(profile.congestion_factor),
            average_shift: self.average_shift.unwrap_or(profile.average_shift),
            average_deviation,
            unscheduled_ratio: self.unscheduled_ratio.unwrap_or(profile.unscheduled_ratio),
            ratio_threshold: share(
                "ratio_threshold",
                self.ratio_threshold,
                profile.ratio_threshold,
            )?,
            ratio_period: span(self.ratio_period, profile.ratio_period),
            host_delay: self.host_delay.unwrap_or(profile.host_delay),
            rtt_pacer: self.rtt_pacer.unwrap_or(profile.rtt_pacer),
            trickle_share: share("trickle_share", self.trickle_share, profile.trickle_share)?,
            back_off_packets: self.back_off_packets.unwrap_or(profile.back_off_packets),
        })
    }

    /// What the transport itself says about the numbers, at the key that is to blame.
    fn invalid(
        &self,
        chosen: &Chosen,
        error: homa::InvalidConfig,
        config: &homa::Config,
    ) -> Problem {
        use homa::InvalidConfig as E;
        match error {
            E::Zero("unscheduled_bytes") => {
                chosen.bad("unscheduled", "`unscheduled` must be at least 1 B")
            }
            E::Zero(key) => chosen.bad(key, format!("`{key}` must be at least 1")),
            E::Share(key) => chosen.bad(key, format!("`{key}` must be from 0 to 1")),
            E::DynamicWindow => {
                let message = "a `window` of 0, a share of `max_incoming`, needs a limit on that";
                chosen.bad("window", message).with_help("such as max_incoming = \"400 KB\"")
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
                chosen.bad(key, message).with_help(
                    "the ticks are about resend_ticks + (timeout_resends + 1) * resend_interval + \
                     request_ack_ticks",
                )
            }
            E::StreamWindow => chosen.bad("stream_window", "`stream_window` can be at most 1 GiB"),
            E::NeedsRtt(switch) => {
                let key = if switch == "congestion" { "congestion_by" } else { switch };
                let message = format!("`{key}` needs measured round trips");
                chosen
                    .bad(key, message)
                    .with_help("measure_rtt = true, or the profile `leverage-homa`")
            }
            E::AverageShift(_) => {
                chosen.bad("average_shift", "`average_shift` must be from 0 to 16")
            }
            E::PacketTooLong(_) | E::Priorities { .. } => {
                Problem::new(chosen.path.clone(), error.to_string())
            }
        }
    }

    fn priorities(
        &self,
        chosen: &Chosen,
        workload: &WorkloadConfig,
        config: &mut homa::Config,
    ) -> Result<(), Problem> {
        let own = match self.profile.unwrap_or_default() {
            Profile::Sigcomm18 => Cutoffs::Workload,
            Profile::Linux | Profile::LeverageHoma => Cutoffs::Linux,
        };
        let cutoffs = self.cutoffs.as_ref().unwrap_or(&own);
        let levels = self.priorities.unwrap_or(config.num_priorities);
        if !(2..=homa::config::MAX_PRIORITIES).contains(&levels) {
            let message =
                format!("`priorities` must be from 2 to {}", homa::config::MAX_PRIORITIES);
            return Err(chosen
                .bad("priorities", message)
                .with_help("scheduled and unscheduled packets need one level each"));
        }
        if let Some(unscheduled) = self.unscheduled_levels {
            if *cutoffs != Cutoffs::Workload {
                let message = "`unscheduled_levels` follows from these cutoffs";
                return Err(chosen
                    .bad("unscheduled_levels", message)
                    .with_help("it goes with cutoffs = \"workload\""));
            }
            if !(1..levels).contains(&unscheduled) {
                let message = format!("`unscheduled_levels` must be from 1 to {}", levels - 1);
                return Err(chosen.bad("unscheduled_levels", message));
            }
        }
        config.num_priorities = levels;
        let cutoffs = match cutoffs {
            Cutoffs::Workload => {
                let sizes = sizes(workload);
                homa::cutoffs::allocate_for(config, &sizes, self.unscheduled_levels)
            }
            // The profile has them already.
            Cutoffs::Linux if self.priorities.is_none() && own == Cutoffs::Linux => return Ok(()),
            Cutoffs::Linux => {
                let linux = [200, 2_800, 15_000, u32::MAX];
                homa::Cutoffs::new(&linux, levels).ok_or_else(|| {
                    chosen.bad("priorities", "Linux's four unscheduled levels need 5 priorities")
                })?
            }
            Cutoffs::Given(edges) => given_cutoffs(chosen, edges, levels)?,
        };
        *config = config.clone().with_priorities(cutoffs);
        Ok(())
    }
}

fn given_cutoffs(
    chosen: &Chosen,
    edges: &[Unit<Bytes>],
    levels: u8,
) -> Result<homa::Cutoffs, Problem> {
    let mut sizes = Vec::with_capacity(edges.len() + 1);
    for edge in edges {
        let size = u32::try_from(edge.0.0);
        sizes.push(size.map_err(|_| chosen.bad("cutoffs", format!("{} is too large", edge.0)))?);
    }
    sizes.push(u32::MAX);
    homa::Cutoffs::new(&sizes, levels).ok_or_else(|| {
        chosen.bad("cutoffs", format!("these cutoffs don't fit {levels} priorities")).with_help(
            "they are growing sizes, one fewer than there are unscheduled levels, and leave at \
             least one level for scheduled packets",
        )
    })
}

fn per_mille(chosen: &Chosen, key: &str, x: f64) -> Result<u32, Problem> {
    if (0.0..=1.0).contains(&x) {
        Ok((x * 1000.0).round() as u32)
    } else {
        Err(chosen.bad(key, format!("`{key}` must be from 0 to 1, not {x}")))
    }
}

/// The sizes of all messages that the transport sends, with their weights.
fn sizes(workload: &WorkloadConfig) -> Vec<(u32, f64)> {
    let as_u32 = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
    let mut sizes: Vec<(u32, f64)> = match &workload.pattern {
        Pattern::Trace(trace) => trace.entries().iter().map(|e| (as_u32(e.bytes), 1.0)).collect(),
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
