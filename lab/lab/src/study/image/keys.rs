//! The keys of `[workload.image]`: an image from one server to many hosts, and the schemes that carry it.

use std::ops::RangeInclusive;

use rackweave_core::{Bytes, HostId, Rate, Rng, Span, Time};
use rackweave_scenario::keys::Chosen;
use rackweave_scenario::problem::Problem;
use rackweave_scenario::values::Unit;
use rackweave_sim::config::{FaultKind, FaultPlace};
use rackweave_swp2p::Shape;
use rackweave_swp2p::intake::Expand;
use serde::{Deserialize, Serialize};

use super::{ImageConfig, scheme};
use crate::study::{Ground, Receivers, spread};

/// The keys of `[workload.image]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ImageKeys {
    /// The server's host. Default: 0.
    server: u32,
    /// A number, from each rack in turn, or a list of hosts. Default: 4.
    clients: Receivers,
    /// Length of the compressed image. Default: `"100 MiB"`.
    size: Unit<Bytes>,
    /// A power of two from 64 KiB to 16 MiB. Frisbee's is 1 MiB. Default: `"1 MiB"`.
    chunk_size: Unit<Bytes>,
    /// Length of the expanded image. Default: `size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    expanded: Option<Unit<Bytes>>,
    /// Bits per second at which a client expands, and at which its disk writes. Default: `"8
    /// Gbps"`; `"4 Gbps"`.
    expand_rate: Unit<Rate>,
    /// Bits per second at which a client expands, and at which its disk writes. Default: `"8
    /// Gbps"`; `"4 Gbps"`.
    disk_rate: Unit<Rate>,
    /// Expanded bytes that can wait for the disk. Default: `"64 MiB"`.
    write_buffer: Unit<Bytes>,
    /// Groups in which clients start, and time between them (`"0 s"`: all at once). Default: 1;
    /// none.
    groups: u32,
    /// Groups in which clients start, and time between them (`"0 s"`: all at once). Default: 1;
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<Unit<Span>>,
    /// Instead of groups: clients start at random within this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<Unit<Span>>,
}

impl Default for ImageKeys {
    fn default() -> Self {
        Self {
            server: 0,
            clients: Receivers::Number(4),
            size: Unit(Bytes(100 << 20)),
            chunk_size: Unit(Bytes(u64::from(Shape::FRISBEE_CHUNK))),
            expanded: None,
            expand_rate: Unit(Rate::from_gbps(8)),
            disk_rate: Unit(Rate::from_gbps(4)),
            write_buffer: Unit(Bytes(64 << 20)),
            groups: 1,
            interval: None,
            spread: None,
        }
    }
}

pub(super) fn key(name: &str) -> String {
    format!("workload.image.{name}")
}

/// The largest image: 8 TiB. A session has as many chunks of 1 MiB as fit a packet's field, but clients remember each.
const MAX_BYTES: u64 = 1 << 43;
/// The sizes of chunks that image files can have, in bytes.
pub const CHUNK_SIZES: RangeInclusive<u32> = 64 << 10..=16 << 20;

impl ImageKeys {
    /// Checks the keys against each other and the fabric. `scheme` carries the image.
    pub(crate) fn resolve(
        &self,
        scheme: &Chosen<scheme::Name>,
        ground: &Ground<'_>,
    ) -> Result<ImageConfig, Problem> {
        let (fabric, faults, seed) = (ground.fabric.config(), ground.faults, ground.seed);
        let wrong = |name: &str, message: String| Problem::new(key(name), message);
        let all = fabric.topology.hosts();
        if self.server >= all {
            let message = format!("there is no host {}: the fabric has {all} hosts", self.server);
            return Err(wrong("server", message));
        }
        let server = HostId(self.server);
        let clients = match &self.clients {
            Receivers::Number(number) => spread(*number, fabric, &[server]).map_err(|free| {
                wrong(
                    "clients",
                    format!(
                        "{number} clients: the fabric has 1 to {free} hosts other than the server's"
                    ),
                )
            })?,
            Receivers::Hosts(hosts) => {
                for (nth, host) in hosts.iter().enumerate() {
                    if *host >= all || *host == self.server || hosts[..nth].contains(host) {
                        let message = format!(
                            "host {host} does not exist, is the server's or is there twice"
                        );
                        return Err(wrong("clients", message));
                    }
                }
                if hosts.is_empty() {
                    return Err(wrong("clients", "`clients` names no host".to_owned()));
                }
                hosts.iter().copied().map(HostId).collect()
            }
        };
        let bytes = self.size.0.0;
        let chunk_bytes = u32::try_from(self.chunk_size.0.0)
            .ok()
            .filter(|bytes| bytes.is_power_of_two() && CHUNK_SIZES.contains(bytes));
        let Some(chunk_bytes) = chunk_bytes else {
            let message = "a chunk has 64 KiB to 16 MiB, a power of two of bytes";
            return Err(wrong("chunk_size", message.to_owned()));
        };
        let image = Shape::new(bytes, chunk_bytes).filter(|_| bytes <= MAX_BYTES);
        let Some(image) = image else {
            let message = format!("an image has 1 byte to {}", Bytes(MAX_BYTES));
            return Err(wrong("size", message));
        };
        let expanded = self.expanded.map_or(bytes, |expanded| expanded.0.0);
        if expanded == 0 || expanded > MAX_BYTES {
            return Err(wrong(
                "expanded",
                format!("at least 1 byte, at most {}", Bytes(MAX_BYTES)),
            ));
        }
        for (name, rate) in [("expand_rate", self.expand_rate), ("disk_rate", self.disk_rate)] {
            if rate.0 == Rate(0) {
                return Err(wrong(name, format!("`{name}` must be above 0")));
            }
        }
        let expand = Expand {
            expanded_bytes: expanded,
            expand_rate: self.expand_rate.0,
            disk_rate: self.disk_rate.0,
            write_buffer: self.write_buffer.0.0,
        };
        let crash = faults.iter().filter(|fault| fault.kind == FaultKind::Crash);
        let crashed = crash.filter_map(|fault| match fault.place {
            FaultPlace::Host(host) => Some(host),
            _ => None,
        });
        let config = ImageConfig {
            server,
            clients: self.starts(&clients, seed)?,
            image,
            scheme: scheme::resolve(scheme, expand, image, fabric, clients.len())?,
            crashed: crashed.collect(),
        };
        if config.has_flows() && faults.iter().any(|fault| fault.kind != FaultKind::Crash) {
            let message = "flows have no packets: of all faults, hosts can only crash";
            return Err(Problem::new("transport.carrier", message).or_at("faults".to_owned()));
        }
        if config.has_flows() && ground.has_background {
            let message = "flows and packets do not share links: an image with background streams needs \
                           carrier = \"tcp\"";
            return Err(Problem::new("transport.carrier", message));
        }
        Ok(config)
    }

    /// Returns when each client starts.
    fn starts(&self, clients: &[HostId], seed: u64) -> Result<Vec<(HostId, Time)>, Problem> {
        let groups = self.groups;
        let interval = self.interval.map_or(Span::ZERO, |interval| interval.0);
        if groups == 0 || groups as usize > clients.len() {
            let message = format!("`groups` is from 1 to the number of clients, {}", clients.len());
            return Err(Problem::new(key("groups"), message));
        }
        if self.spread.is_some() && groups > 1 {
            let message = "clients start in groups or spread over a time, not both";
            return Err(Problem::new(key("spread"), message).or_at(key("groups")));
        }
        if groups > 1 && self.interval.is_none() {
            let message = "`interval` is the time between the starts of two groups";
            return Err(Problem::new(key("interval"), message).or_at(key("groups")));
        }
        if groups == 1 && interval > Span::ZERO {
            let message = "`interval` has no meaning with one group";
            return Err(Problem::new(key("interval"), message).with_help(
                "with `groups` as large as the number of clients, they start one by one",
            ));
        }
        let last = interval.ticks().checked_mul(u64::from(groups));
        if last.is_none_or(|last| last > Span::from_secs(86_400).ticks())
            || self.spread.is_some_and(|spread| spread.0 > Span::from_secs(86_400))
        {
            return Err(Problem::new(key("interval"), "the last client starts within a day")
                .or_at(key("spread")));
        }
        let start = |(nth, host): (usize, &HostId)| {
            let start = match self.spread {
                Some(spread) => {
                    let mut rng = Rng::stream(seed, 0, u64::from(host.0), "image start");
                    Span::from_ticks(rng.below(spread.0.ticks() + 1))
                }
                // Groups have the same size, or differ by one.
                None => interval * (nth as u64 * u64::from(groups) / clients.len() as u64),
            };
            (*host, Time::ZERO + start)
        };
        Ok(clients.iter().enumerate().map(start).collect())
    }
}
