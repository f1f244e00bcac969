//! What adds up vectors: `[transport]` of a scenario with `[workload.allreduce]`.

use rackweave_aggregation::vector::worker::FixedTimer;
use rackweave_core::{Bytes, HostId, Span};
use rackweave_scenario::de::{self, DeError};
use rackweave_scenario::item::About;
use rackweave_scenario::keys::{Carried, Chosen, divide, keys, schemes};
use rackweave_scenario::problem::{Problem, SweptKeys};
use rackweave_scenario::transport;
use rackweave_scenario::tree::{Entry, Node, Origin, Table, Value};
use rackweave_scenario::values::{AboveZero, Whole};
use rackweave_sim::Fabric;
use rackweave_wire::reduce::MAX_CHUNK_BYTES;
use rackweave_workload::{Pattern, SizeDist, WorkloadConfig};

use super::{AllreduceConfig, Scheme};
use crate::scenario::World;
use crate::study::unknown_scheme;

schemes! {
    /// The names of the schemes.
    enum Name {
        Switch: [SwitchKeys, PoolKeys] = About {
            name: "allreduce-switch",
            description: "vectors of many workers to all: a switch adds them up",
            profiles: &[],
            sources: &["NSDI 2021 (SwitchML)"],
        };
        Host: [HostKeys, PoolKeys] = About {
            name: "allreduce-host",
            description: "vectors of many workers to all: a host adds them up (a parameter server)",
            profiles: &[],
            sources: &["OSDI 2014", "NSDI 2021 (ATP)"],
        };
        Ring: [CarrierKeys, RingKeys] = About {
            name: "allreduce-ring",
            description: "vectors of many workers to all: workers add them up in a ring, over any transport",
            profiles: &[],
            sources: &["JPDC 2009"],
        };
    }
    unknown: |text| unknown_scheme::<AllreduceConfig>(text, "adds up no vectors")
}

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
        /// allreduce-switch: the switch that adds up; its slots, one per 32 bits in flight.
        /// Default: 0; 65,536.
        at: Whole<0, 65_535, u32>,
        /// allreduce-switch: the switch that adds up; its slots, one per 32 bits in flight.
        /// Default: 0; 65,536.
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
        /// allreduce-switch, allreduce-host: a worker's chunks in flight. Default: 64, or more if a
        /// chunk and its sum take long; with a host 64 / n.
        pool: Whole<1, 1_024, u16>,
        /// The same: bytes of a chunk, 8 to 1,400. Default: 1,024.
        chunk: Whole<8, { MAX_CHUNK_BYTES as u32 }, u16>,
        /// The same: shortest retransmission timeout. Default: `"200 us"`.
        min_rto: AboveZero<Span>,
        /// The same: a timeout instead of `min_rto` that ignores round trips, as SwitchML's. 100
        /// timeouts double it for the step. Default: none.
        fixed_rto: AboveZero<Span>,
    }
}

keys! {
    /// The keys of a ring.
    struct RingKeys {
        /// allreduce-ring: bytes of a message, which goes on as it arrives. Default: `"64 KiB"`.
        piece: AboveZero<Bytes>,
    }
}

pub(crate) enum Keys {
    Switch(SwitchKeys, PoolKeys),
    Host(HostKeys, PoolKeys),
    Ring(Box<transport::Chosen>, RingKeys),
}

/// The key of a ring whose value is a table of its own, or the name of a transport.
struct CarrierKeys;

impl CarrierKeys {
    const NAMES: &'static [&'static str] = &[CARRIER];
}

impl Keys {
    fn read(name: Name, table: &Table, origin: Origin) -> Result<Self, DeError> {
        Ok(match name {
            Name::Switch => {
                let [own, pool] = divide(table, [SwitchKeys::NAMES, PoolKeys::NAMES])?;
                Self::Switch(de::from_table(&own, origin)?, de::from_table(&pool, origin)?)
            }
            Name::Host => {
                let [own, pool] = divide(table, [HostKeys::NAMES, PoolKeys::NAMES])?;
                Self::Host(de::from_table(&own, origin)?, de::from_table(&pool, origin)?)
            }
            Name::Ring => {
                let [carrier, own] = divide(table, [CarrierKeys::NAMES, RingKeys::NAMES])?;
                let carrier = read_carrier(carrier.0.first(), origin)?;
                Self::Ring(Box::new(carrier), de::from_table(&own, origin)?)
            }
        })
    }
}

const DEFAULT_SLOTS: u32 = 65_536;
const DEFAULT_PIECE: u64 = 65_536;

/// Resolves the configuration, with defaults for missing keys.
pub(super) fn resolve(
    chosen: &Chosen<Name>,
    mut config: AllreduceConfig,
    world: World,
    fabric: &Fabric,
) -> Result<AllreduceConfig, Problem> {
    match &chosen.keys {
        Keys::Switch(keys, pool) => {
            pool.apply(&mut config);
            let (number, switches) = (keys.at.map_or(0, |at| at.0), fabric.switches());
            if number >= switches {
                let message = format!("there is no switch {number}: the fabric has {switches}");
                return Err(chosen.bad("at", message));
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
                return Err(chosen.bad("server", message));
            }
            config.scheme = Scheme::Host { server: HostId(server) };
        }
        Keys::Ring(carrier, keys) => {
            let piece = keys.piece.map_or(DEFAULT_PIECE, |piece| piece.0.0);
            let sizes =
                SizeDist::fixed(piece).map_err(|error| chosen.bad("piece", error.to_string()))?;
            let pattern = Pattern::Permutation { sizes, messages_per_host: 1 };
            let workload = WorkloadConfig::new(pattern);
            if carrier.name == transport::Name::Datagram {
                let message =
                    "datagrams that are lost stay lost: a ring needs a reliable transport";
                return Err(chosen.bad(CARRIER, message));
            }
            let carried = Carried { path: "workload", workload: &workload, all: &[&workload] };
            let carrier = carrier.resolve(world, fabric, carried)?;
            if carrier.reads_stamps() {
                let message = "switches do not write into the packets of a ring, as hpcc needs it";
                return Err(chosen.bad(CARRIER, message));
            }
            config.scheme = Scheme::Ring { carrier: Box::new(carrier), piece_bytes: piece };
        }
    }
    Ok(config)
}

/// The pool with which chunks in flight fill a worker's link for twice the time in which a chunk returns as a sum, as a power of two: a pool
/// is a window. SwitchML chooses its pool by the product of bandwidth and delay too (`docs/protocols/ordc.md#switchml`).
fn full_pool(config: &AllreduceConfig, fabric: &Fabric) -> u16 {
    let bytes = u64::from(config.vectors.elements) * u64::from(config.vectors.format.bytes());
    let framing = rackweave_core::Framing::UDP;
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
