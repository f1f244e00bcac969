//! `[transport]`: which one, and its parameters.
//!
//! Keys of the table belong to the chosen transport; tables in it named after a transport hold
//! what applies only when that one is chosen, so that a sweep can go over `transport.name`.

use std::sync::Arc;

use rackweave_core::{Bytes, Rate, Span};
use rackweave_sim::config::FabricConfig;
use rackweave_transport::{TransportConfig, homa, tcp};
use rackweave_workload::{Pattern, SizeDist, WorkloadConfig};
use serde::Deserialize;
use serde::de::{Error, SeqAccess, Visitor, value::SeqAccessDeserializer};

use super::de::{self, DeError, one_of};
use super::receiver_driven::{NDP_KEYS, NdpKeys, PHOST_KEYS, PHostKeys};
use super::tree::{Node, Table, Value};
use super::values::{Limit, Unit};
use super::{Problem, SweptKeys};
use crate::error::nearest;
use crate::path::Path;

/// The transports by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Homa,
    Dctcp,
    Tcp,
    Ndp,
    PHost,
}

impl Name {
    pub(crate) const ALL: [Self; 5] = [Self::Homa, Self::Dctcp, Self::Tcp, Self::Ndp, Self::PHost];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Homa => "homa",
            Self::Dctcp => "dctcp",
            Self::Tcp => "tcp",
            Self::Ndp => "ndp",
            Self::PHost => "phost",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.as_str() == name)
    }

    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Homa => HOMA_KEYS,
            Self::Dctcp | Self::Tcp => TCP_KEYS,
            Self::Ndp => NDP_KEYS,
            Self::PHost => PHOST_KEYS,
        }
    }
}

/// The name by which scenarios and results call a transport.
pub(crate) fn name_of(config: &TransportConfig) -> &'static str {
    match config {
        TransportConfig::Homa(_) => Name::Homa.as_str(),
        TransportConfig::Tcp(config)
            if config.congestion_control == tcp::CongestionControl::Dctcp =>
        {
            Name::Dctcp.as_str()
        }
        TransportConfig::Tcp(_) => Name::Tcp.as_str(),
        TransportConfig::Ndp(_) => Name::Ndp.as_str(),
        TransportConfig::PHost(_) => Name::PHost.as_str(),
    }
}

const HOMA_KEYS: &[&str] = &[
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
    "stream_window",
];

/// Homa's keys; what is not given is the profile's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HomaKeys {
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
    stream_window: Option<Unit<Bytes>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    #[default]
    Sigcomm18,
    Linux,
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

const TCP_KEYS: &[&str] = &[
    "congestion",
    "initial_window",
    "initial_rto",
    "min_rto",
    "max_rto",
    "ack_every",
    "delayed_ack",
    "receive_window",
    "connections_per_peer",
    "handshake",
    "sack",
    "limited_transmit",
    "tail_loss_probe",
    "slow_start_after_idle",
    "ecn",
    "dctcp_gain_shift",
    "priority",
    "spray",
];

/// TCP's and DCTCP's keys.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TcpKeys {
    congestion: Option<Congestion>,
    initial_window: Option<u32>,
    initial_rto: Option<Unit<Span>>,
    min_rto: Option<Unit<Span>>,
    max_rto: Option<Unit<Span>>,
    ack_every: Option<u32>,
    delayed_ack: Option<Unit<Span>>,
    receive_window: Option<Unit<Bytes>>,
    connections_per_peer: Option<u32>,
    handshake: Option<bool>,
    sack: Option<bool>,
    limited_transmit: Option<bool>,
    tail_loss_probe: Option<bool>,
    slow_start_after_idle: Option<bool>,
    ecn: Option<bool>,
    dctcp_gain_shift: Option<u32>,
    priority: Option<u8>,
    spray: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Congestion {
    Newreno,
    Cubic,
    Dctcp,
}

/// A transport as a scenario says it.
pub(crate) struct Chosen {
    pub(crate) name: Name,
    path: String,
    keys: Keys,
}

enum Keys {
    Homa(Box<HomaKeys>),
    Tcp(Box<TcpKeys>),
    Ndp(NdpKeys),
    PHost(PHostKeys),
}

/// Reads a transport table that stands at `path`.
pub(crate) fn read(node: &Node, path: &str, swept: &SweptKeys) -> Result<Chosen, DeError> {
    let Value::Table(table) = &node.value else {
        let message = format!("`transport` must be a table, not {}", node.describe());
        return Err(DeError::new(message, "such as { name = \"homa\" }").at(node.origin));
    };
    let name = read_name(node, table)?;
    let any_name = swept.contains(&format!("{path}.name"));
    let mut merged = Table::default();
    let mut own = None;
    for entry in &table.0 {
        let key = entry.key.as_str();
        if key == "name" {
            continue;
        }
        if let Some(other) = Name::named(key) {
            let Value::Table(inner) = &entry.node.value else {
                let message = format!("`{key}` must be a table, not {}", entry.node.describe());
                return Err(DeError::new(message, "not a table").at(entry.node.origin));
            };
            // A mistake is one even where the table is not used.
            read_keys(other, inner, entry.node.origin)?;
            if other == name {
                own = Some(inner);
            }
            continue;
        }
        let others = Name::ALL.into_iter().filter(|other| other.keys().contains(&key));
        let others: Vec<&str> = others.map(Name::as_str).collect();
        match others.split_last() {
            _ if name.keys().contains(&key) => merged.0.push(entry.clone()),
            Some(_) if any_name => {}
            Some((last, before)) => {
                let name = name.as_str();
                let (other, all) = match before.first() {
                    None => (last, (*last).to_owned()),
                    Some(first) => (first, format!("{} and {last}", before.join(", "))),
                };
                let message = format!("`{key}` is not a key of {name}, but of {all}");
                return Err(DeError::new(message, format!("{name} has no such key"))
                    .with_help(format!("what is for {other} alone goes into [{path}.{other}]"))
                    .at(entry.key_origin));
            }
            None => {
                let known: Vec<&str> = ["name"]
                    .into_iter()
                    .chain(Name::ALL.map(Name::as_str))
                    .chain(name.keys().iter().copied())
                    .collect();
                return Err(DeError::new(format!("unknown key `{key}`"), "unknown key")
                    .with_help(de::suggest(key, &known))
                    .at(entry.key_origin));
            }
        }
    }
    for entry in own.iter().flat_map(|table| &table.0) {
        merged.insert(entry.clone());
    }
    let keys = read_keys(name, &merged, node.origin)?;
    Ok(Chosen { name, path: path.to_owned(), keys })
}

fn read_name(node: &Node, table: &Table) -> Result<Name, DeError> {
    let names = Name::ALL.map(Name::as_str);
    let Some(entry) = table.get("name") else {
        return Err(DeError::new("the transport has no `name`", "`name` is missing here")
            .with_help(format!("it is {}", one_of(&names)))
            .at(node.origin));
    };
    let Some(text) = entry.node.as_str() else {
        let message = format!("a transport's name is a string, not {}", entry.node.describe());
        return Err(DeError::new(message, "not a name").at(entry.node.origin));
    };
    Name::named(text).ok_or_else(|| {
        let help = match nearest(text, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", names.join(", ")),
        };
        DeError::new(format!("unknown transport `{text}`"), "no such transport")
            .with_help(help)
            .at(entry.node.origin)
    })
}

fn read_keys(name: Name, table: &Table, origin: super::tree::Origin) -> Result<Keys, DeError> {
    Ok(match name {
        Name::Homa => Keys::Homa(de::from_table(table, origin)?),
        Name::Dctcp | Name::Tcp => Keys::Tcp(de::from_table(table, origin)?),
        Name::Ndp => Keys::Ndp(de::from_table(table, origin)?),
        Name::PHost => Keys::PHost(de::from_table(table, origin)?),
    })
}

impl Chosen {
    /// Fills in what is not given.
    pub(crate) fn resolve(
        &self,
        fabric: &FabricConfig,
        workload: &WorkloadConfig,
    ) -> Result<TransportConfig, Problem> {
        Ok(match &self.keys {
            Keys::Homa(keys) => {
                TransportConfig::Homa(Arc::new(keys.resolve(self, fabric, workload)?))
            }
            Keys::Tcp(keys) => TransportConfig::Tcp(Arc::new(keys.resolve(self)?)),
            Keys::Ndp(keys) => {
                let config = keys.resolve(self, fabric)?;
                refuse_longer_messages(self, workload, config.max_message_bytes)?;
                TransportConfig::Ndp(Arc::new(config))
            }
            Keys::PHost(keys) => {
                let config = keys.resolve(self, fabric)?;
                refuse_longer_messages(self, workload, config.max_message_bytes)?;
                TransportConfig::PHost(Arc::new(config))
            }
        })
    }

    /// A value that makes no sense, in whichever table it stands.
    pub(super) fn bad(&self, key: &str, message: impl Into<String>) -> Problem {
        // The place is looked for along the path: the transport's own table comes first.
        Problem::new(format!("{}.{}.{key}", self.path, self.name.as_str()), message)
            .or_at(format!("{}.{key}", self.path))
    }
}

impl HomaKeys {
    fn resolve(
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
        let mut config = match self.profile.unwrap_or_default() {
            Profile::Linux => {
                if self.rtt_bytes.is_some() {
                    return Err(chosen
                        .bad("rtt_bytes", "the profile `linux` has no `rtt_bytes`")
                        .with_help("its keys are `unscheduled` and `window`"));
                }
                homa::Config::linux(link)
            }
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
        let per_mille = |key: &str, x: f64| {
            if (0.0..=1.0).contains(&x) {
                Ok((x * 1000.0).round() as u32)
            } else {
                Err(chosen.bad(key, format!("`{key}` must be from 0 to 1, not {x}")))
            }
        };
        if let Some(x) = self.grant_fifo_fraction {
            config.grant_fifo_fraction = per_mille("grant_fifo_fraction", x)?;
        }
        if let Some(x) = self.pacer_fifo_fraction {
            config.pacer_fifo_fraction = per_mille("pacer_fifo_fraction", x)?;
        }
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
        if let Some(n) = bytes("stream_window", self.stream_window)? {
            config.streams.window_bytes = n;
        }
        match config.check() {
            Ok(()) => Ok(config),
            Err(error) => Err(self.invalid(chosen, error, &config)),
        }
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
            E::Zero("stream_window_bytes") => {
                chosen.bad("stream_window", "`stream_window` must be at least 1 B")
            }
            E::StreamWindow => {
                let most = homa::stream::config::MAX_WINDOW;
                chosen.bad("stream_window", format!("`stream_window` can be at most {most} B"))
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
            Profile::Linux => Cutoffs::Linux,
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

/// Every message of the workload must be one that the transport takes.
fn refuse_longer_messages(
    chosen: &Chosen,
    workload: &WorkloadConfig,
    max: u32,
) -> Result<(), Problem> {
    let max = u64::from(max);
    // The transport stands in its stream's table, and only the measured stream's workload in one
    // of its own.
    let table = chosen.path.strip_suffix(".transport").unwrap_or("workload");
    let (key, longest, help) = match &workload.pattern {
        Pattern::Trace(trace) => {
            ("file", trace.entries().iter().map(|entry| entry.bytes).max(), None)
        }
        other => {
            let help = format!("`truncate = \"{}\"` cuts the distribution there", Bytes(max));
            ("sizes", other.sizes().map(SizeDist::max), Some(help))
        }
    };
    let longest = longest.unwrap_or(0);
    let too_long = |key: &str, bytes: u64| {
        let (longest, max) = (Bytes(bytes), Bytes(max));
        let name = chosen.name.as_str();
        let message = format!("messages of up to {longest}: this {name} takes {max} at most");
        Problem::new(format!("{table}.{key}"), message)
    };
    if longest > max {
        let problem = too_long(key, longest);
        return Err(match help {
            Some(help) => problem.with_help(help),
            None => problem,
        });
    }
    match workload.exchange.response_bytes(longest) {
        Some(response) if response > max => Err(too_long("response", response)),
        _ => Ok(()),
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

impl TcpKeys {
    fn resolve(&self, chosen: &Chosen) -> Result<tcp::Config, Problem> {
        let mut config =
            if chosen.name == Name::Dctcp { tcp::Config::dctcp() } else { tcp::Config::tcp() };
        if let Some(congestion) = self.congestion {
            if (chosen.name == Name::Dctcp) != (congestion == Congestion::Dctcp) {
                let message = format!("this is no congestion control of {}", chosen.name.as_str());
                return Err(chosen
                    .bad("congestion", message)
                    .with_help("tcp has \"newreno\" and \"cubic\"; dctcp is a transport by name"));
            }
            config.congestion_control = match congestion {
                Congestion::Newreno => tcp::CongestionControl::NewReno,
                Congestion::Cubic => tcp::CongestionControl::Cubic,
                Congestion::Dctcp => tcp::CongestionControl::Dctcp,
            };
        }
        let positive = |key: &str, given: Option<u32>, default: u32| match given {
            Some(0) => Err(chosen.bad(key, format!("`{key}` must be at least 1"))),
            given => Ok(given.unwrap_or(default)),
        };
        config.initial_window_segments =
            positive("initial_window", self.initial_window, config.initial_window_segments)?;
        config.ack_every_segments =
            positive("ack_every", self.ack_every, config.ack_every_segments)?;
        config.connections_per_peer = positive(
            "connections_per_peer",
            self.connections_per_peer,
            config.connections_per_peer,
        )?;
        self.times(chosen, &mut config)?;
        if let Some(Unit(Bytes(bytes))) = self.receive_window {
            let most = 16_776_960;
            if bytes < u64::from(config.mss) || bytes > most {
                let message = format!("`receive_window` must be from {} B to {most} B", config.mss);
                return Err(chosen.bad("receive_window", message));
            }
            config.receive_window = bytes as u32;
        }
        if let Some(shift) = self.dctcp_gain_shift {
            if shift > 10 {
                return Err(chosen.bad("dctcp_gain_shift", "`dctcp_gain_shift` is at most 10"));
            }
            config.dctcp_gain_shift = shift;
        }
        if let Some(priority) = self.priority {
            if priority > 7 {
                return Err(chosen.bad("priority", "`priority` is from 0 (lowest) to 7"));
            }
            config.priority = priority;
        }
        config.handshake = self.handshake.unwrap_or(config.handshake);
        config.sack = self.sack.unwrap_or(config.sack);
        config.limited_transmit = self.limited_transmit.unwrap_or(config.limited_transmit);
        config.tail_loss_probe = self.tail_loss_probe.unwrap_or(config.tail_loss_probe);
        config.slow_start_after_idle =
            self.slow_start_after_idle.unwrap_or(config.slow_start_after_idle);
        config.ecn = self.ecn.unwrap_or(config.ecn);
        config.spray = self.spray.unwrap_or(config.spray);
        Ok(config)
    }

    fn times(&self, chosen: &Chosen, config: &mut tcp::Config) -> Result<(), Problem> {
        let given = |value: Option<Unit<Span>>, default: Span| value.map_or(default, |span| span.0);
        config.min_rto = given(self.min_rto, config.min_rto);
        if config.min_rto == Span::ZERO {
            return Err(chosen.bad("min_rto", "`min_rto` must be above 0"));
        }
        // Connections are long open: their timeout begins at the minimum.
        config.initial_rto = given(self.initial_rto, config.initial_rto.max(config.min_rto));
        config.max_rto = given(self.max_rto, config.max_rto.max(config.min_rto));
        if config.max_rto < config.min_rto {
            return Err(chosen.bad("max_rto", "`max_rto` must not be below `min_rto`"));
        }
        config.delayed_ack = given(self.delayed_ack, config.delayed_ack);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_keys_are_those_that_serde_knows() {
        let known = |error: Result<(), DeError>| error.unwrap_err().help.unwrap();
        let origin = super::super::tree::Origin::new(0, 0..0);
        for name in Name::ALL {
            let table = super::super::tree::parse_document("zzzzzzzzzzzzzzz = 1", 0).ok().unwrap();
            let help = known(read_keys(name, &table, origin).map(drop));
            assert_eq!(help, format!("known here: {}", name.keys().join(", ")));
        }
    }
}
