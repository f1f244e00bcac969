//! What adds up vectors: `[transport]` of a scenario with `[workload.allreduce]`.

use rackweave_core::{Bytes, HostId, Span};
use rackweave_group::reduce::vector::worker::FixedTimer;
use rackweave_sim::Fabric;
use rackweave_wire::reduce::MAX_CHUNK_BYTES;
use rackweave_workload::{Pattern, SizeDist, WorkloadConfig};

use super::super::de::{self, DeError};
use super::super::keys::{self, Choice, Place, keys, read_label};
use super::super::problem::{Problem, SweptKeys};
use super::super::testbed::World;
use super::super::transport;
use super::super::tree::{Entry, Node, Origin, Table, Value};
use super::super::values::{AboveZero, Whole};
use crate::allreduce::{AllreduceConfig, Scheme};
use crate::error::nearest;
use crate::item::About;

/// The names of the schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Switch,
    Host,
    Ring,
}

impl Choice for Name {
    type Keys = Keys;
    const ALL: &'static [Self] = &[Self::Switch, Self::Host, Self::Ring];
    const COMMON: &'static [&'static str] = &["name", "label"];

    fn about(self) -> &'static About {
        match self {
            Self::Switch => &About {
                name: "allreduce-switch",
                description: "vectors of many workers to all: a switch adds them up",
                profiles: &[],
                sources: &["NSDI 2021 (SwitchML)"],
            },
            Self::Host => &About {
                name: "allreduce-host",
                description: "vectors of many workers to all: a host adds them up (a parameter server)",
                profiles: &[],
                sources: &["OSDI 2014", "NSDI 2021 (ATP)"],
            },
            Self::Ring => &About {
                name: "allreduce-ring",
                description: "vectors of many workers to all: workers add them up in a ring, over any transport",
                profiles: &[],
                sources: &["JPDC 2009"],
            },
        }
    }

    fn keys(self) -> Vec<&'static str> {
        match self {
            Self::Switch => [SwitchKeys::NAMES, PoolKeys::NAMES].concat(),
            Self::Host => [HostKeys::NAMES, PoolKeys::NAMES].concat(),
            Self::Ring => [&[CARRIER], RingKeys::NAMES].concat(),
        }
    }

    fn read_keys(self, table: &Table, origin: Origin) -> Result<Keys, DeError> {
        let known = self.keys();
        let is_known = |entry: &&Entry| known.contains(&entry.key.as_str());
        if let Some(entry) = table.0.iter().find(|entry| !is_known(entry)) {
            return Err(DeError::unknown_key(&entry.key, &known).at(entry.key_origin));
        }
        let divide = |names: &[&str]| -> (Table, Table) {
            let is_in = |entry: &Entry| names.contains(&entry.key.as_str());
            let (inside, others) = table.0.iter().cloned().partition(is_in);
            (Table(inside), Table(others))
        };
        Ok(match self {
            Self::Switch => {
                let (own, pool) = divide(SwitchKeys::NAMES);
                Keys::Switch(de::from_table(&own, origin)?, de::from_table(&pool, origin)?)
            }
            Self::Host => {
                let (own, pool) = divide(HostKeys::NAMES);
                Keys::Host(de::from_table(&own, origin)?, de::from_table(&pool, origin)?)
            }
            Self::Ring => {
                let (carrier, own) = divide(&[CARRIER]);
                let carrier = read_carrier(carrier.0.first(), origin)?;
                Keys::Ring(Box::new(carrier), de::from_table(&own, origin)?)
            }
        })
    }

    fn unknown(text: &str) -> DeError {
        let message = if transport::Name::named(text).is_some() {
            format!("`{text}` carries messages between two hosts, and no [workload.allreduce]")
        } else {
            format!("unknown scheme `{text}`")
        };
        let help = match nearest(text, Self::names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("for [workload.allreduce] there are {}", Self::names().join(", ")),
        };
        DeError::new(message, "adds up no vectors").with_help(help)
    }
}

const PATH: &str = "transport";
const CARRIER: &str = "carrier";
const CARRIER_PATH: &str = "transport.carrier";

/// Reads the transport of a ring: a table, or its name only.
fn read_carrier(entry: Option<&Entry>, origin: Origin) -> Result<transport::Chosen, DeError> {
    let named = |node: Node| {
        let origin = node.origin;
        let entry = Entry { key: "name".to_owned(), key_origin: origin, node };
        Node { value: Value::Table(Table(vec![entry])), origin }
    };
    let node = match entry {
        None => named(Node { value: Value::String("dctcp".to_owned()), origin }),
        Some(entry) if entry.node.as_str().is_some() => named(entry.node.clone()),
        Some(entry) => entry.node.clone(),
    };
    transport::read(&node, CARRIER_PATH, &SweptKeys::new())
}

keys! {
    /// The keys of the switch that adds up.
    struct SwitchKeys {
        /// allreduce-switch: number of the switch that adds up. Default: 0.
        at: Whole<0, 65_535, u32>,
        /// allreduce-switch: its slots. A chunk in flight takes one for each element of 32 bits,
        /// two for one of 64. Default: 65,536.
        slots: Whole<16, 16_777_216, u32>,
    }
}

keys! {
    /// The keys of the host that adds up.
    struct HostKeys {
        /// allreduce-host: the host that adds up. Default: the first that is no worker.
        server: Whole<0, 65_535, u32>,
    }
}

keys! {
    /// The keys of the chunks that an aggregator adds up.
    struct PoolKeys {
        /// allreduce-switch, allreduce-host: chunks that a worker has in flight. Default: 64, or
        /// more if a chunk and its sum take long; with a host 64 / n.
        pool: Whole<1, 1_024, u16>,
        /// The same: bytes of a chunk, 8 to 1,400. Default: 1,024.
        chunk: Whole<8, { MAX_CHUNK_BYTES as u32 }, u16>,
        /// The same: shortest retransmission timeout. Default: `"200 us"`.
        min_rto: AboveZero<Span>,
        /// The same: a timeout that does not follow the round-trip time, as SwitchML's. It is
        /// doubled after 100 timeouts until the next step. `min_rto` is then without effect.
        /// Default: none.
        fixed_rto: AboveZero<Span>,
    }
}

keys! {
    /// The keys of a ring.
    struct RingKeys {
        /// allreduce-ring: bytes of a message. A piece of a segment goes on to the next worker as
        /// soon as it has arrived. Default: `"64 KiB"`.
        piece: AboveZero<Bytes>,
    }
}

pub(crate) enum Keys {
    Switch(SwitchKeys, PoolKeys),
    Host(HostKeys, PoolKeys),
    Ring(Box<transport::Chosen>, RingKeys),
}

/// The scheme that a scenario chooses, with its keys.
pub(crate) struct Chosen {
    pub(crate) name: Name,
    label: Option<String>,
    keys: Keys,
}

/// Reads the transport table of a scenario with `[workload.allreduce]`.
pub(crate) fn read(node: &Node, swept: &SweptKeys) -> Result<Chosen, DeError> {
    let (name, keys, table) = keys::read::<Name>(node, PATH, swept)?;
    Ok(Chosen { name, label: read_label(table)?, keys })
}

const DEFAULT_SLOTS: u32 = 65_536;
const DEFAULT_PIECE: u64 = 65_536;

impl Chosen {
    /// Returns the scheme's name in results.
    pub(crate) fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.name.as_str().to_owned())
    }

    fn bad(&self, key: &str, message: impl Into<String>) -> Problem {
        Place { path: PATH, name: self.name.as_str() }.bad(key, message)
    }

    /// Resolves the configuration, with defaults for missing keys.
    pub(super) fn resolve(
        &self,
        mut config: AllreduceConfig,
        world: World,
        fabric: &Fabric,
    ) -> Result<AllreduceConfig, Problem> {
        match &self.keys {
            Keys::Switch(keys, pool) => {
                pool.apply(&mut config);
                let (number, switches) = (keys.at.map_or(0, |at| at.0), fabric.switches());
                if number >= switches {
                    let message = format!("there is no switch {number}: the fabric has {switches}");
                    return Err(self.bad("at", message));
                }
                if pool.pool.is_none() {
                    config.vectors.pool = config.vectors.pool.max(full_pool(&config, fabric));
                }
                let slots = keys.slots.map_or(DEFAULT_SLOTS, |slots| slots.0);
                config.scheme = Scheme::Switch { number, slots };
            }
            Keys::Host(keys, pool) => {
                pool.apply(&mut config);
                let (workers, hosts) = (config.workers.len() as u32, fabric.hosts());
                if pool.pool.is_none() {
                    // All chunks meet at the server's link: as many as one worker has with a switch, or its queue overflows.
                    config.vectors.pool = config.vectors.pool.div_ceil(workers as u16);
                }
                let server = keys.server.map_or(workers, |server| server.0);
                if server >= hosts {
                    let message = format!(
                        "there is no host {server} that could add up: the fabric has {hosts} hosts, of which the first \
                         {workers} are workers"
                    );
                    return Err(self.bad("server", message));
                }
                config.scheme = Scheme::Host { server: HostId(server) };
            }
            Keys::Ring(carrier, keys) => {
                let piece = keys.piece.map_or(DEFAULT_PIECE, |piece| piece.0.0);
                let sizes =
                    SizeDist::fixed(piece).map_err(|error| self.bad("piece", error.to_string()))?;
                let pattern = Pattern::Permutation { sizes, messages_per_host: 1 };
                let workload = WorkloadConfig::new(pattern);
                if carrier.name == transport::Name::Datagram {
                    let message =
                        "datagrams that are lost stay lost: a ring needs a reliable transport";
                    return Err(self.bad(CARRIER, message));
                }
                let carrier = carrier.resolve(world, fabric, &workload)?;
                config.scheme = Scheme::Ring { carrier: Box::new(carrier), piece_bytes: piece };
            }
        }
        Ok(config)
    }
}

/// The pool with which chunks in flight fill a worker's link for twice the time in which a chunk returns as a sum, as a power of two: a pool
/// is a window. SwitchML chooses its pool by the product of bandwidth and delay too (`docs/protocols/ordc.md#switchml`).
fn full_pool(config: &AllreduceConfig, fabric: &Fabric) -> u16 {
    let bytes = u64::from(config.vectors.elements) * u64::from(config.vectors.format.bytes());
    let framing = rackweave_group::app::FRAMING;
    let (first, others) = match config.workers.split_first() {
        Some((first, others)) if !others.is_empty() => (*first, others),
        _ => return 1,
    };
    let there = others.iter().map(|worker| fabric.ideal(first, *worker, bytes, framing)).max();
    let on_link = fabric.host_rate().span_of(bytes.max(1));
    let chunks = 2 * there.unwrap_or(Span::ZERO).ticks() / on_link.ticks().max(1);
    (chunks as u32).next_power_of_two().min(MAX_POOL) as u16
}

/// The largest pool that is chosen for a scenario.
const MAX_POOL: u32 = 1024;

impl PoolKeys {
    const fn apply(&self, config: &mut AllreduceConfig) {
        let vectors = &mut config.vectors;
        if let Some(pool) = self.pool {
            vectors.pool = pool.0;
        }
        if let Some(bytes) = self.chunk {
            vectors.elements = bytes.0 / vectors.format.bytes();
        }
        if let Some(min_rto) = self.min_rto {
            config.min_rto = min_rto.0;
        }
        if let Some(timeout) = self.fixed_rto {
            config.fixed_timer = Some(FixedTimer { timeout: timeout.0, ..FixedTimer::SWITCHML });
        }
    }
}
