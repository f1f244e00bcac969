//! `[transport]`: which one, and its parameters.
//!
//! Keys of the table belong to the chosen transport; tables in it named after a transport hold
//! what applies only when that one is chosen, so that a sweep can go over `transport.name`.

use std::sync::Arc;

use rackweave_core::{Bytes, Span};
use rackweave_sim::config::FabricConfig;
use rackweave_transport::{TransportConfig, tcp};
use rackweave_workload::{Pattern, SizeDist, WorkloadConfig};
use serde::Deserialize;

use super::application::is_on_streams;
use super::datagram::{DATAGRAM_KEYS, DatagramKeys};
use super::de::{self, DeError, one_of};
use super::homa::{HOMA_KEYS, HomaKeys};
use super::polo::{POLO_KEYS, PoloKeys};
use super::receiver_driven::{NDP_KEYS, NdpKeys, PHOST_KEYS, PHostKeys};
use super::tree::{Node, Table, Value};
use super::values::Unit;
use super::{Problem, SweptKeys, World};
use crate::error::nearest;

/// The transports by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Homa,
    Dctcp,
    Tcp,
    Ndp,
    PHost,
    Polo,
    Datagram,
}

impl Name {
    pub(crate) const ALL: [Self; 7] =
        [Self::Homa, Self::Dctcp, Self::Tcp, Self::Ndp, Self::PHost, Self::Polo, Self::Datagram];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Homa => "homa",
            Self::Dctcp => "dctcp",
            Self::Tcp => "tcp",
            Self::Ndp => "ndp",
            Self::PHost => "phost",
            Self::Polo => "polo",
            Self::Datagram => "datagram",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.as_str() == name)
    }

    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Homa => HOMA_KEYS,
            Self::Dctcp | Self::Tcp => TCP_KEYS,
            Self::Ndp => NDP_KEYS,
            Self::PHost => PHOST_KEYS,
            Self::Polo => POLO_KEYS,
            Self::Datagram => DATAGRAM_KEYS,
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
        TransportConfig::Polo(_) => Name::Polo.as_str(),
        TransportConfig::Datagram(_) => Name::Datagram.as_str(),
    }
}

pub(super) const TCP_KEYS: &[&str] = &[
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
    /// The kernel's only.
    Bbr,
}

/// No timer counts further.
const MAX_PATIENCE: Span = Span::from_secs(3600);

/// What a transport's packets are inside of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Over {
    /// IP, with headers as long as the transport's profile says.
    #[default]
    Ip,
    /// UDP datagrams, as they travel on Linux.
    Udp,
}

/// The keys that every transport has.
const KEYS_OF_ALL: [&str; 4] = ["name", "label", "over", "patience"];

/// For how long a peer may be silent in the testbed, at least: processes wait for a processor.
const PATIENCE_OF_PROCESSES: Span = Span::from_secs(2);

/// A transport as a scenario says it.
pub(crate) struct Chosen {
    pub(crate) name: Name,
    /// What results call it, if not by its name.
    label: Option<String>,
    over: Over,
    /// How long a peer may be silent, at least.
    patience: Option<Span>,
    pub(super) path: String,
    keys: Keys,
}

enum Keys {
    Homa(Box<HomaKeys>),
    Tcp(Box<TcpKeys>),
    Ndp(NdpKeys),
    PHost(PHostKeys),
    Polo(PoloKeys),
    Datagram(DatagramKeys),
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
        if KEYS_OF_ALL.contains(&key) {
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
                let known: Vec<&str> = KEYS_OF_ALL
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
    let (label, over) = (read_label(table)?, read_over(table)?);
    let patience = read_patience(table)?;
    Ok(Chosen { name, label, over, patience, path: path.to_owned(), keys })
}

/// A name for results is read by people, in a legend or a column.
const MAX_LABEL_CHARS: usize = 64;

pub(super) fn read_label(table: &Table) -> Result<Option<String>, DeError> {
    let Some(entry) = table.get("label") else { return Ok(None) };
    let wrong = |message: String| DeError::new(message, "no label").at(entry.node.origin);
    let Some(text) = entry.node.as_str() else {
        return Err(wrong(format!("a label is a string, not {}", entry.node.describe())));
    };
    let is_wrong = |c: char| c.is_control();
    if text.trim().is_empty() || text.chars().count() > MAX_LABEL_CHARS || text.contains(is_wrong) {
        return Err(wrong(format!("a label is a line of 1 to {MAX_LABEL_CHARS} characters")));
    }
    Ok(Some(text.trim().to_owned()))
}

fn read_over(table: &Table) -> Result<Over, DeError> {
    let Some(entry) = table.get("over") else { return Ok(Over::default()) };
    match entry.node.as_str() {
        Some("ip") => Ok(Over::Ip),
        Some("udp") => Ok(Over::Udp),
        _ => Err(DeError::new("`over` is \"ip\" or \"udp\"", "neither of them")
            .with_help(
                "\"udp\" is what the transport is on real hosts: longer headers, less payload",
            )
            .at(entry.node.origin)),
    }
}

fn read_patience(table: &Table) -> Result<Option<Span>, DeError> {
    let Some(entry) = table.get("patience") else { return Ok(None) };
    let span = entry.node.as_str().and_then(|text| text.parse::<Span>().ok());
    match span {
        Some(span) if span <= MAX_PATIENCE => Ok(Some(span)),
        _ => Err(DeError::new("`patience` is a time of at most an hour", "no such time")
            .with_help("such as \"2 s\": for so long, at least, a peer may be silent")
            .at(entry.node.origin)),
    }
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
        if super::cast::Name::named(text).is_some() {
            return DeError::new(
                format!("`{text}` carries files to many: it needs [workload.cast]"),
                "with other workloads no transport",
            )
            .at(entry.node.origin);
        }
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
        Name::Polo => Keys::Polo(de::from_table(table, origin)?),
        Name::Datagram => Keys::Datagram(de::from_table(table, origin)?),
    })
}

impl Chosen {
    /// What results call it.
    pub(crate) fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.name.as_str().to_owned())
    }

    /// The congestion control by which the kernel knows this transport, if it is TCP.
    pub(crate) fn kernel_tcp(&self) -> Option<&'static str> {
        let Keys::Tcp(keys) = &self.keys else { return None };
        Some(match keys.congestion {
            _ if self.name == Name::Dctcp => "dctcp",
            Some(Congestion::Newreno) => "reno",
            Some(Congestion::Bbr) => "bbr",
            _ => "cubic",
        })
    }

    /// Fills in what is not given.
    pub(crate) fn resolve(
        &self,
        world: World,
        fabric: &FabricConfig,
        workload: &WorkloadConfig,
    ) -> Result<TransportConfig, Problem> {
        if let (World::Simulator, Some("bbr")) = (world, self.kernel_tcp()) {
            return Err(self
                .bad("congestion", "BBR is the kernel's alone: the simulator has no such TCP")
                .with_help("`rackweave testbed` runs it; here tcp has \"newreno\" and \"cubic\""));
        }
        let mut config = self.resolve_keys(fabric, workload)?;
        let of_processes = (world == World::Testbed).then_some(PATIENCE_OF_PROCESSES);
        if let Some(patience) = self.patience.or(of_processes) {
            config = config.patient(patience);
        }
        Ok(if world == World::Testbed || self.over == Over::Udp {
            config.over_udp()
        } else {
            config
        })
    }

    fn resolve_keys(
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
            Keys::Polo(keys) => {
                let config = keys.resolve(self, fabric)?;
                refuse_longer_messages(self, workload, config.max_message_bytes)?;
                TransportConfig::Polo(Arc::new(config))
            }
            Keys::Datagram(keys) => {
                let config = keys.resolve(self, workload)?;
                refuse_longer_messages(self, workload, config.max_message_bytes)?;
                TransportConfig::Datagram(Arc::new(config))
            }
        })
    }

    /// What a stream of a one-to-many scheme runs over.
    pub(super) fn tcp(&self) -> Result<TransportConfig, Problem> {
        match &self.keys {
            Keys::Tcp(keys) => {
                let mut config = keys.resolve(self)?;
                // Unless told otherwise: who only receives opens connections too, and has nothing to say on them for long.
                config.handshake = keys.handshake.unwrap_or(true);
                Ok(TransportConfig::Tcp(Arc::new(config)))
            }
            _ => Err(self.bad("name", "only TCP carries files to many")),
        }
    }

    /// This transport with nothing but defaults, if they will do here.
    pub(super) fn plain(
        name: Name,
        fabric: &FabricConfig,
        workload: &WorkloadConfig,
    ) -> Option<TransportConfig> {
        let start = super::tree::Origin::new(0, 0..0);
        let keys = read_keys(name, &Table::default(), start).ok()?;
        Self { name, label: None, over: Over::Ip, patience: None, path: String::new(), keys }
            .resolve_keys(fabric, workload)
            .ok()
    }

    /// A value that makes no sense, in whichever table it stands.
    pub(super) fn bad(&self, key: &str, message: impl Into<String>) -> Problem {
        // The place is looked for along the path: the transport's own table comes first.
        Problem::new(format!("{}.{}.{key}", self.path, self.name.as_str()), message)
            .or_at(format!("{}.{key}", self.path))
    }
}

/// Every message of the workload must be one that the transport takes.
pub(super) fn refuse_longer_messages(
    chosen: &Chosen,
    workload: &WorkloadConfig,
    max: u32,
) -> Result<(), Problem> {
    if is_on_streams(workload) {
        return Ok(());
    }
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

impl TcpKeys {
    fn resolve(&self, chosen: &Chosen) -> Result<tcp::Config, Problem> {
        let mut config =
            if chosen.name == Name::Dctcp { tcp::Config::dctcp() } else { tcp::Config::tcp() };
        if let Some(congestion) = self.congestion {
            if (chosen.name == Name::Dctcp) != (congestion == Congestion::Dctcp) {
                let message = format!("this is no congestion control of {}", chosen.name.as_str());
                return Err(chosen
                    .bad("congestion", message)
                    .with_help("tcp has \"newreno\" and \"cubic\" (and, in the testbed, \"bbr\"); dctcp is a transport by name"));
            }
            config.congestion_control = match congestion {
                Congestion::Newreno => tcp::CongestionControl::NewReno,
                // The machine of this stream is never made: the kernel's TCP stands in its place.
                Congestion::Cubic | Congestion::Bbr => tcp::CongestionControl::Cubic,
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
