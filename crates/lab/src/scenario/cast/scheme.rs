//! The schemes: `[transport]` of a scenario with `[workload.cast]`.

use rackweave_core::{Bytes, HostId, Rate, Span};
use rackweave_group::baseline::unicast::MAX_DATAGRAM;
use rackweave_group::orca::parity::MAX_CELLS;
use rackweave_sim::config::FabricConfig;
use serde::Deserialize;

use super::super::de::{self, DeError, one_of};
use super::super::transport::{self, read_label};
use super::super::tree::{Entry, Node, Origin, Table, Value};
use super::super::values::Unit;
use super::super::{Problem, SweptKeys};
use crate::cast::{OrcaScheme, Scheme, SpreadBy};
use crate::error::nearest;

/// The schemes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Orca,
    Unicast,
    Tcp,
    Chain,
}

const UNICAST_KEYS: &[&str] = &["socket"];
/// Ours, beside those of TCP.
const STREAM_KEYS: &[&str] = &["socket", "chunk"];
const ORCA_KEYS: &[&str] = &[
    "spread",
    "payload",
    "window",
    "heartbeat",
    "timeout",
    "controller",
    "patience",
    "max_rate",
    "status_interval",
    "fec_block",
];
const KEYS_OF_ALL: [&str; 2] = ["name", "label"];

impl Name {
    pub(crate) const ALL: [Self; 4] = [Self::Orca, Self::Unicast, Self::Tcp, Self::Chain];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Orca => "orca",
            Self::Unicast => "cast-unicast",
            Self::Tcp => "cast-tcp",
            Self::Chain => "cast-chain",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.as_str() == name)
    }

    fn keys(self) -> Vec<&'static str> {
        match self {
            Self::Orca => ORCA_KEYS.to_vec(),
            Self::Unicast => UNICAST_KEYS.to_vec(),
            Self::Tcp => [&STREAM_KEYS[..1], transport::TCP_KEYS].concat(),
            Self::Chain => [STREAM_KEYS, transport::TCP_KEYS].concat(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SpreadName {
    #[default]
    Labels,
    Relay,
    Multicast,
    Unicast,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OrcaKeys {
    spread: SpreadName,
    payload: Option<Unit<Bytes>>,
    window: Option<Unit<Bytes>>,
    heartbeat: Option<Unit<Span>>,
    timeout: Option<Unit<Span>>,
    controller: Option<u32>,
    patience: Option<Unit<Span>>,
    max_rate: Option<Unit<Rate>>,
    status_interval: Option<Unit<Span>>,
    fec_block: Option<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UnicastKeys {
    socket: Option<Unit<Bytes>>,
}

/// Beside TCP's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StreamKeys {
    socket: Option<Unit<Bytes>>,
    chunk: Option<Unit<Bytes>>,
}

enum Keys {
    Orca(OrcaKeys),
    Unicast(UnicastKeys),
    Streams(StreamKeys, transport::Chosen),
}

/// A scheme as a scenario says it.
pub(crate) struct Chosen {
    pub(crate) name: Name,
    label: Option<String>,
    keys: Keys,
}

const PATH: &str = "transport";

/// Reads the transport table of a scenario with `[workload.cast]`.
pub(crate) fn read(node: &Node, swept: &SweptKeys) -> Result<Chosen, DeError> {
    let Value::Table(table) = &node.value else {
        let message = format!("`transport` must be a table, not {}", node.describe());
        return Err(DeError::new(message, "such as { name = \"orca\" }").at(node.origin));
    };
    let name = read_name(node, table)?;
    let any_name = swept.contains("transport.name");
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
            read_keys(other, inner, entry.node.origin, swept)?;
            if other == name {
                own = Some(inner);
            }
            continue;
        }
        let others: Vec<&str> = Name::ALL
            .into_iter()
            .filter(|other| other.keys().contains(&key))
            .map(Name::as_str)
            .collect();
        if name.keys().contains(&key) {
            merged.0.push(entry.clone());
        } else if let Some(first) = others.first() {
            if !any_name {
                let message = format!(
                    "`{key}` is not a key of {}, but of {}",
                    name.as_str(),
                    others.join(", ")
                );
                return Err(DeError::new(message, format!("{} has no such key", name.as_str()))
                    .with_help(format!("what is for {first} alone goes into [{PATH}.{first}]"))
                    .at(entry.key_origin));
            }
        } else {
            let own = name.keys();
            let known: Vec<&str> = KEYS_OF_ALL
                .into_iter()
                .chain(Name::ALL.map(Name::as_str))
                .chain(own.iter().copied())
                .collect();
            return Err(DeError::new(format!("unknown key `{key}`"), "unknown key")
                .with_help(de::suggest(key, &known))
                .at(entry.key_origin));
        }
    }
    for entry in own.iter().flat_map(|table| &table.0) {
        merged.insert(entry.clone());
    }
    let keys = read_keys(name, &merged, node.origin, swept)?;
    Ok(Chosen { name, label: read_label(table)?, keys })
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
        let wrong = |message: String| DeError::new(message, "no scheme for one to many");
        let error = if transport::Name::named(text).is_some() {
            wrong(format!("`{text}` carries messages between two hosts, and no [workload.cast]"))
        } else {
            wrong(format!("unknown scheme `{text}`"))
        };
        let help = match nearest(text, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("for [workload.cast] there are {}", names.join(", ")),
        };
        error.with_help(help).at(entry.node.origin)
    })
}

fn read_keys(
    name: Name,
    table: &Table,
    origin: Origin,
    swept: &SweptKeys,
) -> Result<Keys, DeError> {
    Ok(match name {
        Name::Orca => Keys::Orca(de::from_table(table, origin)?),
        Name::Unicast => Keys::Unicast(de::from_table(table, origin)?),
        Name::Tcp | Name::Chain => {
            let known = name.keys();
            if let Some(entry) = table.0.iter().find(|entry| !known.contains(&entry.key.as_str())) {
                return Err(DeError::new(format!("unknown key `{}`", entry.key), "unknown key")
                    .with_help(de::suggest(&entry.key, &known))
                    .at(entry.key_origin));
            }
            let is_ours = |entry: &&Entry| STREAM_KEYS.contains(&entry.key.as_str());
            let ours = Table(table.0.iter().filter(is_ours).cloned().collect());
            let mut tcp = Table(table.0.iter().filter(|e| !is_ours(e)).cloned().collect());
            let value = Value::String("tcp".to_owned());
            let (key, node) = ("name".to_owned(), Node { value, origin });
            tcp.insert(Entry { key, key_origin: origin, node });
            let node = Node { value: Value::Table(tcp), origin };
            Keys::Streams(de::from_table(&ours, origin)?, transport::read(&node, PATH, swept)?)
        }
    })
}

/// What Linux gives a UDP socket (`net.core.wmem_default`).
const UDP_SOCKET: u64 = 212_992;
/// What Linux lets a TCP socket grow to (`net.ipv4.tcp_wmem`).
const TCP_SOCKET: u64 = 4 << 20;
/// Payload that fits a frame behind the longest label.
const MOST_PAYLOAD: u64 = 1440;

impl Chosen {
    /// What results call it.
    pub(crate) fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.name.as_str().to_owned())
    }

    /// The congestion control of the kernel that it stands for, if it is TCP.
    pub(crate) fn kernel_tcp(&self) -> Option<&'static str> {
        match &self.keys {
            Keys::Streams(_, tcp) => tcp.kernel_tcp(),
            _ => None,
        }
    }

    fn bad(&self, key: &str, message: impl Into<String>) -> Problem {
        Problem::new(format!("{PATH}.{}.{key}", self.name.as_str()), message)
            .or_at(format!("{PATH}.{key}"))
    }

    /// Fills in what is not given.
    pub(super) fn resolve(
        &self,
        fabric: &FabricConfig,
        senders: &[HostId],
    ) -> Result<Scheme, Problem> {
        let socket = |given: Option<Unit<Bytes>>, default: u64| match given {
            Some(Unit(Bytes(0))) => Err(self.bad("socket", "`socket` must be above 0")),
            given => Ok(given.map_or(default, |bytes| bytes.0.0)),
        };
        match &self.keys {
            Keys::Orca(keys) => self.orca(keys, fabric, senders).map(Scheme::Orca),
            Keys::Unicast(keys) => {
                Ok(Scheme::Unicast { socket_bytes: socket(keys.socket, UDP_SOCKET)? })
            }
            Keys::Streams(keys, tcp) => {
                let chunk = keys.chunk.map_or(1 << 16, |chunk| chunk.0.0);
                if chunk == 0 {
                    return Err(self.bad("chunk", "`chunk` must be above 0"));
                }
                Ok(Scheme::Streams {
                    transport: tcp.tcp()?,
                    chunk: (self.name == Name::Chain).then_some(chunk),
                    socket_bytes: socket(keys.socket, TCP_SOCKET)?,
                })
            }
        }
    }

    fn orca(
        &self,
        keys: &OrcaKeys,
        fabric: &FabricConfig,
        senders: &[HostId],
    ) -> Result<OrcaScheme, Problem> {
        let spread = match keys.spread {
            SpreadName::Labels => SpreadBy::Labels,
            SpreadName::Relay => SpreadBy::Relay,
            SpreadName::Multicast => SpreadBy::Multicast,
            SpreadName::Unicast => SpreadBy::Unicast,
        };
        if spread == SpreadBy::Relay && senders.len() > 1 {
            let message = "agents copy for a sender with one port only";
            return Err(self.bad("spread", message));
        }
        let all = fabric.topology.hosts();
        let controller = match (spread, keys.controller) {
            (SpreadBy::Labels, given) => {
                let host = given.unwrap_or(all.saturating_sub(1));
                if host >= all {
                    return Err(self.bad("controller", format!("there is no host {host}")));
                }
                if senders.contains(&HostId(host)) {
                    let message = format!("the controller's host {host} is the sender's");
                    return Err(self.bad("controller", message).with_help(
                        "it has a host of its own, so that a crash of the one is none of the other",
                    ));
                }
                Some(HostId(host))
            }
            (_, Some(_)) => {
                return Err(self.bad("controller", "without labels there is no controller"));
            }
            (_, None) => None,
        };
        let payload = keys.payload.map_or(MOST_PAYLOAD, |payload| payload.0.0);
        if !(64..=MOST_PAYLOAD).contains(&payload) {
            let message = format!("`payload` is from 64 B to {MOST_PAYLOAD} B: what fits a frame");
            return Err(self.bad("payload", message));
        }
        let timeout = keys.timeout.map_or(Span::from_ms(5), |timeout| timeout.0);
        // Several pings must be missing.
        let heartbeat = keys.heartbeat.map_or(Span(timeout.0 / 5), |beat| beat.0);
        if heartbeat == Span::ZERO || timeout.0 < heartbeat.0.saturating_mul(2) {
            let message = "`heartbeat` must be above 0, and at most half of `timeout`";
            return Err(self.bad("heartbeat", message));
        }
        if keys.max_rate == Some(Unit(Rate(0))) {
            return Err(self.bad("max_rate", "`max_rate` must be above 0"));
        }
        if keys.status_interval == Some(Unit(Span::ZERO)) {
            return Err(self.bad("status_interval", "`status_interval` must be above 0"));
        }
        if keys.fec_block.is_some_and(|block| block > MAX_CELLS) {
            let message = format!("`fec_block` is at most {MAX_CELLS}; 0: no parity");
            return Err(self.bad("fec_block", message));
        }
        Ok(OrcaScheme {
            spread,
            controller,
            payload: payload as u16,
            window: keys.window.map(|window| window.0.0),
            heartbeat,
            timeout,
            patience: keys.patience.map(|patience| patience.0),
            max_rate: keys.max_rate.map(|rate| rate.0),
            status_interval: keys.status_interval.map(|interval| interval.0),
            fec_block: keys.fec_block,
        })
    }
}

impl Scheme {
    /// The host of the controller, if there is one.
    pub(super) fn controller(&self) -> Option<HostId> {
        match self {
            Self::Orca(orca) => orca.controller,
            _ => None,
        }
    }

    /// Datagrams are as long as the buffers that they are sent from.
    pub(super) fn check_buffer(&self, buffer: u64) -> Result<(), Problem> {
        match self {
            Self::Unicast { .. } if buffer > u64::from(MAX_DATAGRAM) => {
                let message =
                    format!("a buffer of {buffer} bytes: UDP takes {MAX_DATAGRAM} at most");
                Err(Problem::new("workload.cast.buffer", message))
            }
            _ => Ok(()),
        }
    }
}
