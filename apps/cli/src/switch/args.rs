//! Arguments of `rackweave switch`. Some are shared with `rackweave image switch`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rackweave_core::{Bytes, HostId, Rate, Span};
use rackweave_testbed::systems::ProgramName;
use rackweave_wire::frame::host_at;

use super::FULL_PACKET;

/// Run a user-space switch: the simulator's queues at real rates, for real hosts.
///
/// Hosts are attached by UDP ports, which need no privilege, or by network interfaces. The switch runs until Ctrl-C,
/// and then prints its counters.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave switch --listen 127.0.0.1:4100 --hosts 4 --link \"1 Gbps\" --stats\n  \
    rackweave switch --listen 0.0.0.0:4100 --hosts 2 --host 0=192.0.2.1:5000 --host 1=192.0.2.2:5000\n  \
    rackweave switch --listen 127.0.0.1:4100 --fabric my.toml --metrics 9100\n  \
    rackweave switch --interface veth0 --interface veth1 --trim --loss 0.001\n  \
    rackweave switch --listen 127.0.0.1:4100 --hosts 8 --program orca --controller 7\n  \
    rackweave switch --interface veth0 --interface veth1 --interface veth2 --program swp2p --server 0\n  \
    rackweave switch --listen 127.0.0.1:4100 --hosts 4 --program reduce --slots 16384\n  \
    rackweave switch --listen 127.0.0.1:4100 --fabric rackless.toml --control ocs.sock --program reduce --aggregate-at 0\n  \
    rackweave switch --program orca --bpf --ports p0,p1 --hosts \"02:00:00:00:00:01,192.0.2.1,0;02:00:00:00:00:02,192.0.2.2,1\"\n  \
    rackweave switch --program reduce --bpf --ports p0,p1,p2 --address 192.0.2.1\n\n\
    Exit codes: 0 ended by Ctrl-C, 1 a socket failed, 2 wrong usage or file.")]
pub(crate) struct SwitchArgs {
    /// UDP port for host 0; the following hosts use the following ports.
    #[arg(
        long,
        value_name = "ADDR",
        conflicts_with = "interface",
        required_unless_present_any = ["interface", "bpf"]
    )]
    pub(super) listen: Option<SocketAddr>,
    /// Number of hosts, with --listen. With --bpf: hosts as MAC,IP,PORT, separated by semicolons.
    #[arg(long, value_name = "N", conflicts_with = "interface")]
    pub(super) hosts: Option<String>,
    /// Run the program (orca or reduce) in the kernel, on the interfaces in --ports. Needs root and
    /// clang.
    #[arg(long, conflicts_with_all = ["listen", "interface", "metrics"], requires = "ports")]
    pub(super) bpf: bool,
    /// With --bpf: the interfaces, separated by commas. A host's number is its port's index.
    #[arg(long, value_name = "IF", value_delimiter = ',', requires = "bpf")]
    pub(super) ports: Vec<String>,
    /// With --bpf and --program reduce: an address of the bridge or router that has the ports.
    #[arg(long, value_name = "IP", requires = "bpf")]
    pub(super) address: Option<Ipv4Addr>,
    /// With --bpf: the ports that lead to other switches, as indices from 0.
    #[arg(long, value_name = "PORT", value_delimiter = ',', requires = "bpf")]
    pub(super) uplinks: Vec<u32>,
    /// With --bpf: number of the rack.
    #[arg(long, value_name = "N", requires = "bpf", default_value_t = 0)]
    pub(super) rack: u16,
    /// Address of a host (default: learnt from the packets that the host sends, on loopback only).
    #[arg(long = "host", value_name = "N=ADDR", conflicts_with = "interface")]
    pub(super) addresses: Vec<String>,
    /// Interface of the next host, such as one end of a veth pair. Needs CAP_NET_RAW.
    #[arg(long, value_name = "NAME")]
    pub(super) interface: Vec<String>,
    /// Take fabric, moves of circuits and faults from a scenario, or a file of `cast --fabric`.
    #[arg(long, value_name = "SCENARIO.toml", conflicts_with_all = ["link", "buffer", "shared_buffer", "ecn", "trim", "latency", "delay"])]
    pub(super) fabric: Option<String>,
    /// Unix socket at which processes of this user change circuits, which remain when they end (see
    /// docs/ops/switch.md).
    #[arg(long, value_name = "PATH", requires = "fabric", conflicts_with = "bpf")]
    pub(super) control: Option<PathBuf>,
    /// Controller of a pod (`rackweave pod control --agents`) that commands circuits; may be
    /// repeated.
    #[arg(long, value_name = "ADDR", requires = "fabric", conflicts_with_all = ["bpf", "control"])]
    pub(super) pod: Vec<SocketAddr>,
    /// Name of this switch in the pod; without it, that of this machine.
    #[arg(long, value_name = "NAME", requires = "pod")]
    pub(super) pod_name: Option<String>,
    /// Key of the pod's controllers and switches.
    #[arg(long, value_name = "FILE", requires = "pod")]
    pub(super) pod_key: Option<PathBuf>,
    /// Set a key of the scenario.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "fabric")]
    pub(super) sets: Vec<String>,
    /// Program of the switches.
    #[arg(long, default_value = ProgramName::default().describe().0, value_parser = program_names())]
    pub(super) program: ProgramName,
    /// Host of Orca's controller (with --bpf: its port), the only one whose orders count.
    #[arg(long, value_name = "N")]
    pub(super) controller: Option<u32>,
    /// Host of SWP2P's server, by its number or address.
    #[arg(long, value_name = "N|ADDR", value_parser = host)]
    pub(super) server: Option<HostId>,
    /// With --program reduce: slots for keys and their sums in each switch (default: 65536).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1 << 26))]
    pub(super) slots: Option<u32>,
    /// With --program reduce: slots of a bucket (default: 8).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) ways: Option<u8>,
    /// With --program reduce: percentage of slots, jobs and recorded packets for masters at one
    /// address (default: 50).
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(super) share: Option<u8>,
    /// With --program reduce: the switches of the fabric that add up (default: all).
    #[arg(long, value_name = "SWITCH", value_delimiter = ',')]
    pub(super) aggregate_at: Vec<u32>,
    /// Key of the program's members, if they use one. With --bpf it verifies no orders, which must
    /// come from --controller.
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) link: LinkArgs,
    /// Trim packets to their headers instead of dropping them (NDP).
    #[arg(long)]
    pub(super) trim: bool,
    /// Probability of losing a frame, on each link.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(super) loss: f64,
    /// Probability of damaging a frame, on each link.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(super) corrupt: f64,
    /// Probability of duplicating a frame, on each link.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(super) duplicate: f64,
    /// Probability of delaying a frame, on each link.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(super) reorder: f64,
    /// Maximum delay with --reorder.
    #[arg(long, value_name = "TIME", default_value = "1 ms")]
    pub(super) reorder_delay: Span,
    /// Seed of all random decisions.
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    #[command(flatten)]
    pub(super) poll: PollArgs,
    #[command(flatten)]
    pub(super) show: ShowArgs,
}

impl SwitchArgs {
    /// The share of one address, with --program reduce.
    pub(super) fn share(&self) -> Option<u8> {
        let is_reduce = self.program == ProgramName::Reduce;
        self.share.or(is_reduce.then_some(rackweave_aggregation::switch::SHARE))
    }
}

/// The links and buffers of a switch whose hosts have equal links.
#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// Rate of each link in bits per second.
    #[arg(long, value_name = "RATE", default_value = "1 Gbps")]
    pub(super) link: Rate,
    /// Buffer of each port, in bytes or packets.
    #[arg(long, value_name = "SIZE", default_value = "500 KB")]
    pub(super) buffer: Size,
    /// All ports of a switch share a buffer, with dynamic thresholds (alpha 1).
    #[arg(long)]
    pub(super) shared_buffer: bool,
    /// Mark packets (ECN) that find a longer queue than this.
    #[arg(long, value_name = "SIZE")]
    pub(super) ecn: Option<Size>,
    /// Delay from a packet's last bit to its output queue.
    #[arg(long, value_name = "TIME", default_value = "250 ns")]
    pub(super) latency: Span,
    /// Propagation delay of each link, in each direction.
    #[arg(long, value_name = "TIME", default_value = "0 ns")]
    pub(super) delay: Span,
}

impl LinkArgs {
    /// Links of this rate with buffers of this size, which mark packets beyond 65 full ones.
    pub(crate) const fn of(link: Rate, buffer: Bytes) -> Self {
        Self {
            link,
            buffer: Size(buffer.0),
            shared_buffer: false,
            ecn: Some(Size(65 * FULL_PACKET)),
            latency: Span::ZERO,
            delay: Span::ZERO,
        }
    }
}

/// How a switch reads its sockets.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PollArgs {
    /// Interval at which sockets are read.
    #[arg(long, value_name = "TIME", default_value = "20 us")]
    pub(super) window: Span,
    /// Poll continuously and never sleep: occupies a whole core.
    #[arg(long)]
    pub(super) busy_poll: bool,
}

/// What a switch shows of itself.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// Show the switch's activity once per second.
    #[arg(long)]
    pub(crate) stats: bool,
    /// At the end, print one line of JSON with all counters and links.
    #[arg(long)]
    pub(crate) json: bool,
    /// Serve counters for Prometheus at http://ADDR/metrics (a port alone: on loopback).
    #[arg(long, value_name = "ADDR")]
    pub(super) metrics: Option<String>,
}

/// Parses a host's number or address.
pub(crate) fn host(text: &str) -> Result<HostId, String> {
    let number = text.parse::<u32>().map(HostId).ok();
    let by_address = || {
        let address: Ipv4Addr = text.parse().ok()?;
        host_at(address.octets()).filter(|host| host.0 < 1 << 24)
    };
    number.or_else(by_address).ok_or_else(|| {
        "expected a host's number, or its address: 10.x.y.z with the number in the last 24 bits"
            .to_owned()
    })
}

/// Parses the name of a program.
fn program_names() -> impl TypedValueParser<Value = ProgramName> {
    let values = ProgramName::ALL.map(|name| {
        let (name, help) = name.describe();
        PossibleValue::new(name).help(help)
    });
    PossibleValuesParser::new(values).map(|text| {
        let mut names = ProgramName::ALL.into_iter();
        names.find(|name| name.describe().0 == text).unwrap_or_default()
    })
}

/// A buffer size in bytes, written as "500 KB", or as "65 packets" of full size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size(pub(super) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let packets =
            text.trim().strip_suffix("packets").or_else(|| text.trim().strip_suffix("packet"));
        let Some(packets) = packets else {
            return text
                .parse::<Bytes>()
                .map(|bytes| Self(bytes.0))
                .map_err(|error| error.to_string());
        };
        let packets: u32 = packets
            .trim()
            .parse()
            .map_err(|_| format!("`{text}` is not a number of packets, as in \"65 packets\""))?;
        Ok(Self(u64::from(packets) * FULL_PACKET))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_numbers_and_addresses() {
        assert_eq!(host("7"), Ok(HostId(7)));
        assert_eq!(host("10.0.1.2"), Ok(HostId(258)));
        for wrong in ["", "-1", "192.0.2.1", "172.16.0.1", "10.0.0", "h1"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
    }
}
