//! Packet hops per CPU second on one core, and memory, on the traffic of `docs/benchmarks.md`.
//!
//! `cargo bench -p rackweave-sim --bench hops [-- FILTER] [--threads=N] [--messages=N] [--over=TRANSPORT]` prints one line per case; `--messages` is how many of
//! the Poisson arrivals are measured. Each case runs in a process of
//! its own, for its own peak memory. CPU time is the kernel's figure for the whole process, set-up included; so is the elapsed time, to a
//! hundredth of a second.

use std::process::{Command, ExitCode};
use std::sync::Arc;

use rackweave_core::{Framing, HostId, Pool, Rate, Span};
use rackweave_sim::config::{
    FabricConfig, MeasureConfig, PfcConfig, SwitchConfig, Topology, TrimConfig,
};
use rackweave_sim::{Control, Fabric, RunConfig, Threads, run_on};
use rackweave_transport::{
    Profile as _, TransportConfig, dcpim, dcqcn, homa, hpcc, ndp, pfabric, phost, polo, sird,
    swift, tcp, uet,
};
use rackweave_wire::Header;
use rackweave_workload::{Pattern, SizeDist};

const LINK: Rate = Rate::from_gbps(10);

/// A workload that any transport can carry.
struct Traffic {
    name: &'static str,
    topology: Topology,
    pattern: fn() -> Pattern,
    messages: u64,
}

fn sizes(bytes: u64) -> SizeDist {
    SizeDist::fixed(bytes).expect("a positive size")
}

const fn fat_tree(k: u32) -> Topology {
    Topology::fat_tree(k, LINK)
}

fn incast() -> Pattern {
    Pattern::incast(HostId(0), sizes(5_000_000))
}

fn permutation(bytes: u64) -> Pattern {
    Pattern::permutation(sizes(bytes))
}

fn poisson(name: &str) -> Pattern {
    Pattern::open_loop(SizeDist::named(name).expect("a known distribution"), 0.6)
}

const ALL: u64 = u64::MAX;

static TRAFFIC: [Traffic; 10] = [
    Traffic { name: "incast-128", topology: fat_tree(8), pattern: incast, messages: ALL },
    Traffic {
        name: "permutation-16",
        topology: fat_tree(4),
        pattern: || permutation(40_000_000),
        messages: ALL,
    },
    Traffic {
        name: "permutation-128",
        topology: fat_tree(8),
        pattern: || permutation(10_000_000),
        messages: ALL,
    },
    Traffic {
        name: "permutation-432",
        topology: fat_tree(12),
        pattern: || permutation(3_000_000),
        messages: ALL,
    },
    Traffic {
        name: "permutation-1024",
        topology: fat_tree(16),
        pattern: || permutation(3_000_000),
        messages: ALL,
    },
    Traffic {
        name: "permutation-3456",
        topology: fat_tree(24),
        pattern: || permutation(1_000_000),
        messages: ALL,
    },
    Traffic {
        name: "permutation-16000",
        topology: fat_tree(40),
        pattern: || permutation(300_000),
        messages: ALL,
    },
    Traffic {
        name: "permutation-101306",
        topology: fat_tree(74),
        pattern: || permutation(50_000),
        messages: ALL,
    },
    Traffic {
        name: "w4-144",
        topology: Topology::LeafSpine {
            leaves: 9,
            hosts_per_leaf: 16,
            spines: 4,
            host_link: LINK,
            core_link: Rate::from_gbps(40),
        },
        pattern: || poisson("W4"),
        messages: 10_000,
    },
    Traffic {
        name: "w3-144",
        topology: Topology::LeafSpine {
            leaves: 9,
            hosts_per_leaf: 16,
            spines: 4,
            host_link: LINK,
            core_link: Rate::from_gbps(40),
        },
        pattern: || poisson("W3"),
        messages: 100_000,
    },
];

const TRANSPORTS: [&str; 13] = [
    "homa", "dctcp", "tcp", "ndp", "phost", "polo", "pfabric", "sird", "swift", "dcpim", "uet",
    "dcqcn", "hpcc",
];

fn transport(name: &str, fabric: &Fabric, pattern: &Pattern) -> TransportConfig {
    match name {
        "dctcp" => TransportConfig::Tcp(Arc::new(tcp::Config::dctcp())),
        "tcp" => TransportConfig::Tcp(Arc::new(tcp::Config::tcp())),
        "ndp" => {
            // The transport's window. htsim's 15 packets are a round trip on this fabric without queues; this
            // is three times as much.
            let paths = fabric.config().topology.paths() as u16;
            let config = ndp::Config { initial_window: 45, paths, ..ndp::Config::paper(LINK) };
            TransportConfig::Ndp(Arc::new(config))
        }
        "phost" => {
            let config = phost::Config::paper(LINK);
            let rtt = fabric.base_rtt(config.framing(), 84);
            TransportConfig::PHost(Arc::new(config.for_round_trip(rtt)))
        }
        "pfabric" => {
            let config = pfabric::Config::paper();
            let rtt = fabric.base_rtt(config.framing(), 84);
            TransportConfig::PFabric(Arc::new(config.for_round_trip(LINK, rtt)))
        }
        "sird" => {
            let full = sird::Config::paper(LINK, 0).framing();
            let bdp = LINK.bytes_in(fabric.base_rtt(full, 84));
            sird::Config::paper(LINK, bdp).into()
        }
        "swift" => {
            let htsim = swift::Config::htsim();
            let rtt = fabric.base_rtt(htsim.framing(), 84);
            htsim.for_paths(LINK, (1, rtt), (1, rtt)).into()
        }
        "dcpim" => {
            let framing = Framing { max_payload: 1_460, header_bytes: 40, spray_above_bytes: 0 };
            let rtt = fabric.base_rtt(framing, 1_538);
            let control_rtt = fabric.base_rtt(Framing { max_payload: 1, ..framing }, 84);
            dcpim::Config::paper(LINK, rtt, control_rtt).into()
        }
        "uet" => {
            let full = uet::Config::eqds(LINK).framing();
            let rtt = fabric.base_rtt(full, 84);
            uet::Config { entropies: 64, ..uet::Config::uet(LINK, rtt) }.into()
        }
        "dcqcn" => dcqcn::Config::hpcc(LINK).into(),
        "hpcc" => {
            let full = hpcc::Config::paper(LINK, Span::from_us(1)).framing();
            hpcc::Config::paper(LINK, fabric.base_rtt(full, 84)).into()
        }
        "polo" => {
            let config = polo::Config::slides();
            let rtt = fabric.base_rtt(config.framing(), 84);
            TransportConfig::Polo(Arc::new(config.for_path(LINK, rtt)))
        }
        _ => {
            let framing = homa::Config::fabric(LINK, 10_000).framing();
            let rtt_bytes = LINK.bytes_in(fabric.base_rtt(framing, 86)) as u32;
            let sizes = pattern.sizes().expect("no trace here").points();
            let points: Vec<_> = sizes.map(|(size, p)| (size as u32, p)).collect();
            let config = homa::Config::fabric(LINK, rtt_bytes).with_workload(&points, None);
            TransportConfig::Homa(Arc::new(config))
        }
    }
}

/// As in htsim: a data queue of 15 packets, and twice its bytes for headers.
const NDP_QUEUES: TrimConfig = TrimConfig::NDP
    .with_queues(15 * 1538, 2 * 15 * 1538)
    .with_return_to_sender(false)
    .with_headers_per_packet(None);

fn fabric(topology: Topology, name: &str) -> FabricConfig {
    let switch = match name {
        "pfabric" => SwitchConfig::default().with_pfabric(),
        "ndp" | "uet" => SwitchConfig::default().with_trim(NDP_QUEUES),
        "dcqcn" | "hpcc" => {
            SwitchConfig::default().with_buffer(2_000_000).with_pfc(PfcConfig::default())
        }
        _ => SwitchConfig::default(),
    };
    FabricConfig::new(topology)
        .with_link_delay(Span::ZERO)
        .with_host_delays(Span::from_ns(500), Span::from_us(1))
        .with_switch(switch)
}

/// What the command line sets for all cases.
#[derive(Clone, Copy)]
struct Options {
    threads: u32,
    messages: Option<u64>,
}

/// Runs one case and prints its result line.
fn measure(traffic: &Traffic, name: &str, options: Options) {
    let began = uptime_s();
    let fabric_config = fabric(traffic.topology.clone(), name);
    let fabric = Fabric::new(&fabric_config).expect("a possible fabric");
    let pattern = (traffic.pattern)();
    let transport = transport(name, &fabric, &pattern);
    let messages = options.messages.map_or(traffic.messages, |most| most.min(traffic.messages));
    let measured = MeasureConfig::default().with_messages(messages).with_samples(Span::ZERO);
    let config =
        RunConfig::new(fabric_config).with_stream(transport, pattern).with_measure(measured);
    let result = run_on(&config, Threads::new(options.threads), &Control::default())
        .expect("a possible run");
    let wall_s = uptime_s() - began;
    let (cpu_s, rss) = usage();
    let hops = result.counters.packet_hops;
    let drops: u64 = result.counters.drops.iter().sum();
    let kb_per_host = rss as f64 / f64::from(fabric.hosts());
    println!(
        "{:<18} {:<6} {:>12} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>8.1} {:>8.1} {:>8} {:>8} {:>11} {:?}",
        traffic.name,
        name,
        hops,
        result.counters.events as f64 / hops as f64,
        wall_s,
        cpu_s,
        hops as f64 / cpu_s / 1e6,
        rss as f64 / 1024.0,
        kb_per_host,
        result.peak_packets,
        drops,
        result.ended_at.to_string(),
        result.end,
    );
}

/// Seconds since the system started.
fn uptime_s() -> f64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    uptime.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

/// CPU time in seconds and peak memory in kilobytes of this process, from /proc.
fn usage() -> (f64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // utime and stime are fields 14 and 15, in hundredths of a second.
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(f64::NAN);
    let cpu_s = (ticks(11) + ticks(12)) / 100.0;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let rss = rss.and_then(|rss| rss.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0);
    (cpu_s, rss)
}

fn main() -> ExitCode {
    let filters: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let only = std::env::args().find_map(|arg| Some(arg.strip_prefix("--over=")?.to_owned()));
    let option = |name: &str| std::env::args().find_map(|arg| arg.strip_prefix(name)?.parse().ok());
    let options = Options {
        threads: option("--threads=").map_or(1, |threads| threads as u32),
        messages: option("--messages="),
    };
    if let [word, traffic, transport] = filters.as_slice()
        && word == "case"
    {
        let Some(traffic) = TRAFFIC.iter().find(|t| t.name == traffic) else {
            return ExitCode::from(2);
        };
        measure(traffic, transport, options);
        return ExitCode::SUCCESS;
    }
    println!("A packet under way takes {} bytes.", Pool::<Header>::BYTES_PER_PACKET);
    println!(
        "{:<18} {:<6} {:>12} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>11} end",
        "traffic",
        "over",
        "hops",
        "ev/hop",
        "wall s",
        "cpu s",
        "Mhop/s",
        "RSS MiB",
        "KiB/host",
        "packets",
        "drops",
        "simulated"
    );
    let program = std::env::current_exe().expect("this program has a path");
    for traffic in &TRAFFIC {
        for transport in TRANSPORTS {
            let case = format!("{}/{transport}", traffic.name);
            if only.as_ref().is_some_and(|only| only != transport) {
                continue;
            }
            if !filters.is_empty() && !filters.iter().any(|filter| case.contains(filter.as_str())) {
                continue;
            }
            let mut case_of = Command::new(&program);
            case_of.args(["case", traffic.name, transport]);
            case_of.args(std::env::args().filter(|arg| arg.contains('=')));
            let status = case_of.status();
            if !status.is_ok_and(|status| status.success()) {
                println!("{case} failed");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
