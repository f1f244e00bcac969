//! The schemes of a cast: `[transport]` of a scenario with `[workload.cast]`.

use rackweave_core::{Bytes, HostId, Rate, Span};
use rackweave_orca::baseline::unicast::MAX_DATAGRAM;
use rackweave_orca::flow::FlowConfig;
use rackweave_orca::host::Spread;
use rackweave_orca::label::Layout;
use rackweave_orca::parity::MAX_CELLS;
use rackweave_scenario::de::{self, DeError};
use rackweave_scenario::item::About;
use rackweave_scenario::keys::{Chosen, divide, keys, schemes};
use rackweave_scenario::problem::Problem;
use rackweave_scenario::transport::{self, TcpKeys};
use rackweave_scenario::tree::{Origin, Table};
use rackweave_scenario::values::{AboveZero, AtMost, Unit};
use rackweave_sim::config::FabricConfig;
use rackweave_switch::fabric::Fabric;
use serde::Deserialize;

use super::{CastConfig, OrcaScheme, Scheme};
use crate::study::unknown_scheme;

schemes! {
    /// The names of the schemes.
    enum Name {
        Orca: [OrcaKeys] = About {
            name: "orca",
            description: "one to many: switches copy by labels that servers keep, receivers' statuses are merged",
            profiles: &[],
            sources: &["NSDI 2022"],
        };
        Unicast: [UnicastKeys] = About {
            name: "cast-unicast",
            description: "one to many: a copy to each over UDP, lost is lost",
            profiles: &[],
            sources: &["RFC 768"],
        };
        Tcp: [UnicastKeys, TcpKeys] = About {
            name: "cast-tcp",
            description: "one to many: a TCP connection to each",
            profiles: &[],
            sources: &["RFC 9293"],
        };
        Chain: [StreamKeys, TcpKeys] = About {
            name: "cast-chain",
            description: "one to many: over TCP from each to the next",
            profiles: &[],
            sources: &["RFC 9293"],
        };
    }
    unknown: |text| unknown_scheme::<CastConfig>(text, "no scheme for one to many")
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

keys! {
    /// Orca's keys. A missing key has the default of the flow or of the host.
    struct OrcaKeys for OrcaScheme {
        /// Who copies: `"labels"`: switches. `"relay"`: agents, with one sender port.
        /// `"multicast"`: switches, to all hosts. `"unicast"`: the sender. Default: `"labels"`.
        spread: SpreadName,
        /// Bytes of a full packet, 64 B to 1440 B; most bytes sent that a receiver lacks. Default:
        /// `"1440 B"`; 8 MiB.
        payload: Unit<Bytes>,
        /// Bytes of a full packet, 64 B to 1440 B; most bytes sent that a receiver lacks. Default:
        /// `"1440 B"`; 8 MiB.
        window: Unit<Bytes> => window,
        /// Interval of agents' pings, at most half of the timeout; T: silence after which an active
        /// agent is replaced. Default: a fifth; `"5 ms"`.
        heartbeat: Unit<Span>,
        /// Interval of agents' pings, at most half of the timeout; T: silence after which an active
        /// agent is replaced. Default: a fifth; `"5 ms"`.
        timeout: Unit<Span>,
        /// With labels: the controller's host; bits of the labels' filter, up to 64. Default: the
        /// last one; 0.
        controller: u32,
        /// With labels: the controller's host; bits of the labels' filter, up to 64. Default: the
        /// last one; 0.
        filter_bits: AtMost<64, u32>,
        /// Silence after which a receiver is given up. Default: `"3 s"`.
        patience: Unit<Span> => patience,
        /// Maximum sending rate. Default: no limit.
        max_rate: AboveZero<Rate> => max_rate,
        /// Interval of agents' reports. Default: `"100 us"`.
        status_interval: AboveZero<Span> => status_interval,
        /// Packets per parity block, up to 64. 0: no parity. Default: 64.
        // The value 0 disables parity.
        fec_block: AtMost<{ MAX_CELLS as u32 }, u8> => fec_block,
    }
}

keys! {
    /// The keys of the scheme with a UDP socket for each receiver.
    struct UnicastKeys {
        /// cast-*: bytes of a socket's buffer. Default: cast-unicast: 212,992; otherwise 4 MiB.
        socket: AboveZero<Bytes>,
    }
}

keys! {
    /// The keys of the schemes over connections, in addition to TCP's.
    struct StreamKeys {
        /// cast-*: bytes of a socket's buffer. Default: cast-unicast: 212,992; otherwise 4 MiB.
        socket: AboveZero<Bytes>,
        /// cast-chain: bytes forwarded at a time. Default: `"64 KiB"`.
        chunk: AboveZero<Bytes>,
    }
}

pub(crate) enum Keys {
    Orca(OrcaKeys),
    Unicast(UnicastKeys),
    Streams(StreamKeys, transport::Chosen),
}

impl Keys {
    fn read(name: Name, table: &Table, origin: Origin) -> Result<Self, DeError> {
        let own = match name {
            Name::Orca => return Ok(Self::Orca(de::from_table(table, origin)?)),
            Name::Unicast => return Ok(Self::Unicast(de::from_table(table, origin)?)),
            Name::Tcp => UnicastKeys::NAMES,
            Name::Chain => StreamKeys::NAMES,
        };
        let [own, tcp] = divide(table, [own, TcpKeys::NAMES])?;
        Ok(Self::Streams(de::from_table(&own, origin)?, transport::read_tcp(tcp, origin)?))
    }
}

/// The default buffer size of a UDP socket on Linux (`net.core.wmem_default`).
const UDP_SOCKET: u64 = 212_992;
/// The largest buffer size of a TCP socket on Linux (`net.ipv4.tcp_wmem`).
const TCP_SOCKET: u64 = 4 << 20;
/// The number of bytes that a receiver in a chain collects before it forwards them.
const DEFAULT_CHUNK: u64 = 1 << 16;
/// The largest payload in bytes that fits a frame with the longest label.
const MAX_PAYLOAD: u64 = 1440;

/// Returns the kernel's name of the congestion control, if the scheme uses TCP.
pub(crate) fn kernel_tcp(chosen: &Chosen<Name>) -> Option<&'static str> {
    match &chosen.keys {
        Keys::Streams(_, tcp) => tcp.kernel_tcp(),
        _ => None,
    }
}

/// Resolves the configuration, with defaults for missing keys.
pub(super) fn resolve(
    chosen: &Chosen<Name>,
    fabric: &FabricConfig,
    senders: &[HostId],
) -> Result<Scheme, Problem> {
    let socket =
        |given: Option<AboveZero<Bytes>>, default| given.map_or(default, |bytes| bytes.0.0);
    match &chosen.keys {
        Keys::Orca(keys) => orca(chosen, keys, fabric, senders).map(Scheme::Orca),
        Keys::Unicast(keys) => {
            Ok(Scheme::Unicast { socket_bytes: socket(keys.socket, UDP_SOCKET) })
        }
        Keys::Streams(keys, tcp) => Ok(Scheme::Streams {
            transport: tcp.tcp()?,
            chunk: (chosen.name == Name::Chain).then(|| socket(keys.chunk, DEFAULT_CHUNK)),
            socket_bytes: socket(keys.socket, TCP_SOCKET),
        }),
    }
}

fn orca(
    chosen: &Chosen<Name>,
    keys: &OrcaKeys,
    fabric: &FabricConfig,
    senders: &[HostId],
) -> Result<OrcaScheme, Problem> {
    let spread = match keys.spread.unwrap_or_default() {
        SpreadName::Labels => Spread::Labels,
        SpreadName::Relay => Spread::Relay,
        SpreadName::Multicast => Spread::Multicast,
        SpreadName::Unicast => Spread::Unicast,
    };
    if spread == Spread::Relay && senders.len() > 1 {
        let message = "agents copy for a sender with one port only";
        return Err(chosen.bad("spread", message));
    }
    let all = fabric.topology.hosts();
    let controller = match (spread, keys.controller) {
        (Spread::Labels, given) => {
            let host = given.unwrap_or(all.saturating_sub(1));
            if host >= all {
                return Err(chosen.bad("controller", format!("there is no host {host}")));
            }
            if senders.contains(&HostId(host)) {
                let message = format!("the controller's host {host} is the sender's");
                return Err(chosen
                    .bad("controller", message)
                    .with_help("it has a host of its own, so that one crash does not stop both"));
            }
            Some(HostId(host))
        }
        (_, Some(_)) => {
            return Err(chosen.bad("controller", "without labels there is no controller"));
        }
        (_, None) => None,
    };
    let filter_bits = keys.filter_bits.map_or(0, |bits| bits.0);
    if filter_bits > 0 {
        if spread != Spread::Labels {
            return Err(chosen.bad("filter_bits", "without labels there is no filter"));
        }
        let layout = Fabric::new(fabric).map_err(|error| error.to_string()).and_then(|fabric| {
            let layout = Layout::new(&fabric).and_then(|layout| layout.with_filter(filter_bits));
            layout.map_err(|error| error.to_string())
        });
        layout.map_err(|message| chosen.bad("filter_bits", message))?;
    }
    let payload = keys.payload.map_or(MAX_PAYLOAD, |payload| payload.0.0);
    if !(64..=MAX_PAYLOAD).contains(&payload) {
        let message = format!("`payload` is from 64 B to {MAX_PAYLOAD} B: what fits a frame");
        return Err(chosen.bad("payload", message));
    }
    let timeout = keys.timeout.map_or(Span::from_ms(5), |timeout| timeout.0);
    // The timeout covers several pings, so that a single loss does not count as silence.
    let heartbeat = keys.heartbeat.map_or(timeout / 5, |beat| beat.0);
    if heartbeat == Span::ZERO || timeout.ticks() < heartbeat.ticks().saturating_mul(2) {
        let message = "`heartbeat` must be above 0, and at most half of `timeout`";
        return Err(chosen.bad("heartbeat", message));
    }
    let mut scheme = OrcaScheme {
        spread,
        controller,
        filter_bits,
        payload: payload as u16,
        window: None,
        heartbeat,
        timeout,
        patience: None,
        max_rate: None,
        status_interval: None,
        fec_block: None,
    };
    keys.apply(&mut scheme);
    let patience = scheme.patience.unwrap_or(FlowConfig::default().patience);
    let longest = FlowConfig { patience, ..FlowConfig::default() }.longest_agent_timeout();
    if scheme.controller.is_some() && scheme.timeout > longest {
        let message =
            format!("`timeout` is at most {longest}, a quarter of the patience {patience}");
        return Err(chosen.bad("timeout", message));
    }
    Ok(scheme)
}

impl Scheme {
    /// Returns the controller's host, if there is one.
    pub(super) fn controller(&self) -> Option<HostId> {
        match self {
            Self::Orca(orca) => orca.controller,
            _ => None,
        }
    }

    /// Checks the size of the sender's buffers, which is also that of the datagrams.
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
