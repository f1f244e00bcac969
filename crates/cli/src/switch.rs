//! `rackweave switch`.

mod bpf;
mod metrics;
mod show;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use miette::{Context, IntoDiagnostic, miette};
use rackweave_core::{Bytes, HostId, Rate, Span, Time, frame};
use rackweave_lab::Scenario;
use rackweave_lab::scenario::Hosts;
use rackweave_lab::systems::{ProgramName, Systems};
use rackweave_linux::switch::{Control, Edge, Switch, SwitchConfig};
use rackweave_switch::config::{
    BufferConfig, FabricConfig, Fault, FaultKind, FaultPlace, Routing, SwitchConfig as OneSwitch,
    Topology, TrimConfig,
};
use rackweave_wire::orca::Key;

use crate::{exit, print};

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
    rackweave switch --program orca --bpf --ports p0,p1 --hosts \"02:00:00:00:00:01,192.0.2.1,0;02:00:00:00:00:02,192.0.2.2,1\"\n\n\
    Exit codes: 0 ended by Ctrl-C, 1 a socket failed, 2 wrong usage or file.")]
pub(crate) struct SwitchArgs {
    /// UDP port for host 0; the following hosts use the following ports.
    #[arg(
        long,
        value_name = "ADDR",
        conflicts_with = "interface",
        required_unless_present_any = ["interface", "bpf"]
    )]
    listen: Option<SocketAddr>,
    /// Number of hosts, with --listen; with --bpf, the hosts as MAC,IP,PORT;...
    #[arg(long, value_name = "N", conflicts_with = "interface")]
    hosts: Option<String>,
    /// Run Orca's ToR switch in the kernel instead, as a program on the interfaces in --ports. Needs root and clang.
    #[arg(long, conflicts_with_all = ["listen", "interface", "metrics"], requires_all = ["ports", "hosts"])]
    bpf: bool,
    /// With --bpf: the interfaces, separated by commas. A host's index within the rack is the index of its port.
    #[arg(long, value_name = "IF", value_delimiter = ',', requires = "bpf")]
    ports: Vec<String>,
    /// With --bpf: the ports that lead to other switches, as indices from 0.
    #[arg(long, value_name = "PORT", value_delimiter = ',', requires = "bpf")]
    uplinks: Vec<u32>,
    /// With --bpf: number of the rack.
    #[arg(long, value_name = "N", requires = "bpf", default_value_t = 0)]
    rack: u16,
    /// Address of a host (default: learnt from the packets that the host sends, on loopback only).
    #[arg(long = "host", value_name = "N=ADDR", conflicts_with = "interface")]
    addresses: Vec<String>,
    /// Interface of the next host: one end of a veth pair, or a NIC port. Needs CAP_NET_RAW.
    #[arg(long, value_name = "NAME")]
    interface: Vec<String>,
    /// Take the fabric, with all its switches, and the faults from a scenario (or a file of `cast --fabric`).
    #[arg(long, value_name = "SCENARIO.toml", conflicts_with_all = ["link", "buffer", "shared_buffer", "ecn", "trim", "latency", "delay"])]
    fabric: Option<String>,
    /// Set a key of the scenario, replacing its value in the file.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "fabric")]
    sets: Vec<String>,
    /// Program of the switches, in addition to forwarding: follow Orca's labels and copy its packets.
    #[arg(long, default_value = ProgramName::default().describe().0, value_parser = program_names())]
    program: ProgramName,
    /// Host of Orca's controller (with --bpf: its port); switches ignore orders from other hosts.
    #[arg(long, value_name = "N")]
    controller: Option<u32>,
    /// File with the key of Orca's members, if they use one; without it the switches reject signed orders. With --bpf,
    /// orders are not verified with the key, but must come from --controller.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Rate of each link in bits per second.
    #[arg(long, value_name = "RATE", default_value = "1 Gbps")]
    link: Rate,
    /// Buffer of each port, in bytes or packets.
    #[arg(long, value_name = "SIZE", default_value = "500 KB")]
    buffer: Size,
    /// Share one buffer between all ports of a switch, with dynamic thresholds (alpha 1).
    #[arg(long)]
    shared_buffer: bool,
    /// Mark packets (ECN) that find a longer queue than this.
    #[arg(long, value_name = "SIZE")]
    ecn: Option<Size>,
    /// Trim packets to their headers instead of dropping them (NDP).
    #[arg(long)]
    trim: bool,
    /// Delay from the last bit of a packet in to its output queue.
    #[arg(long, value_name = "TIME", default_value = "250 ns")]
    latency: Span,
    /// Propagation delay of each link, in each direction.
    #[arg(long, value_name = "TIME", default_value = "0 ns")]
    delay: Span,
    /// Probability of losing a frame, on each link.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    loss: f64,
    /// Probability of damaging a frame, on each link.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    corrupt: f64,
    /// Probability of duplicating a frame, on each link.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    duplicate: f64,
    /// Probability of delaying a frame, on each link, so that later ones overtake it.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    reorder: f64,
    /// Maximum delay with --reorder.
    #[arg(long, value_name = "TIME", default_value = "1 ms")]
    reorder_delay: Span,
    /// Seed of all random decisions.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Interval at which sockets are read: a longer one needs less processor time.
    #[arg(long, value_name = "TIME", default_value = "20 us")]
    window: Span,
    /// Poll continuously and never sleep: occupies a whole core.
    #[arg(long)]
    busy_poll: bool,
    /// Show the switch's activity once per second.
    #[arg(long)]
    stats: bool,
    /// At the end, print one JSON document with all counters and links.
    #[arg(long)]
    json: bool,
    /// Serve counters for Prometheus at http://ADDR/metrics; a port without an address is on loopback.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
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
struct Size(u64);

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

/// The bytes that a full packet occupies on the link.
const FULL_PACKET: u64 = frame::wire_bytes(frame::MTU) as u64;

pub(crate) fn switch(args: &SwitchArgs) -> miette::Result<u8> {
    if args.bpf {
        if args.program != ProgramName::Orca {
            return Err(miette!("--bpf requires --program orca, the only program for the kernel"));
        }
        return bpf::run(args);
    }
    let config = config(args)?;
    let metrics = args.metrics.as_deref().map(metrics::listen).transpose()?;
    let mut switch = Switch::new(config).map_err(|error| miette!("{error}"))?;
    let control = Arc::new(Control::default());
    let shared = Arc::clone(&control);
    ctrlc::set_handler(move || shared.stop.store(true, Ordering::Relaxed))
        .into_diagnostic()
        .wrap_err("cannot listen for Ctrl-C")?;
    print_addresses(args, &switch);
    let (ended, end) = channel();
    let shared = Arc::clone(&control);
    let running = std::thread::spawn(move || {
        let result = switch.run(&shared);
        // The receiver is gone if the main thread has failed.
        let _ = ended.send(());
        (result, switch.report())
    });
    if let Some(listener) = metrics {
        let shared = Arc::clone(&control);
        std::thread::spawn(move || metrics::serve(&listener, &shared));
    }
    let mut live = show::Live::new(!args.json);
    while end.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        if args.stats
            && let Some(report) = control.report()
        {
            live.show(&report);
        }
    }
    let (result, report) = running.join().map_err(|_| miette!("the switch has failed"))?;
    if args.json {
        print(&format!("{:#}\n", show::json(&report)))?;
    } else {
        print(&show::summary(&report))?;
    }
    match result {
        Ok(()) => Ok(exit::DONE),
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {error}");
            Ok(exit::FAILED)
        }
    }
}

fn print_status(text: &str) {
    // If stderr is closed, the text cannot be reported anywhere.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Prints to stderr the address to which each host must send.
fn print_addresses(args: &SwitchArgs, switch: &Switch<Systems>) {
    let mut stderr = std::io::stderr().lock();
    let ports = switch.udp_ports();
    for (host, port) in ports.iter().enumerate() {
        let _ = match port {
            Some(port) => writeln!(stderr, "host {host}: {port}"),
            None => writeln!(stderr, "host {host}: {}", args.interface[host]),
        };
    }
    if stderr.is_terminal() {
        let _ = writeln!(stderr, "Press Ctrl-C to stop.");
    }
}

fn config(args: &SwitchArgs) -> miette::Result<SwitchConfig<Systems>> {
    let (fabric, mut faults, seed) = match &args.fabric {
        Some(name) => fabric_of(name, &args.sets)?,
        None => (single_switch(args)?, Vec::new(), 1),
    };
    let hosts = fabric.topology.hosts();
    let kinds = [
        (args.loss, FaultKind::Loss(args.loss)),
        (args.corrupt, FaultKind::Corruption(args.corrupt)),
        (args.duplicate, FaultKind::Duplication(args.duplicate)),
        (
            args.reorder,
            FaultKind::Reordering { probability: args.reorder, delay: args.reorder_delay },
        ),
    ];
    for (_, kind) in kinds.into_iter().filter(|(probability, _)| *probability != 0.0) {
        let place = FaultPlace::AllLinks;
        faults.push(Fault { from: Time::ZERO, until: Time::MAX, place, kind });
    }
    let edges = match args.listen {
        Some(listen) => udp_edges(listen, hosts, &args.addresses)?,
        None => args.interface.iter().map(|name| Edge::Interface { name: name.clone() }).collect(),
    };
    Ok(SwitchConfig {
        faults,
        seed: args.seed.unwrap_or(seed),
        batch_window: args.window,
        busy_poll: args.busy_poll,
        ..SwitchConfig::new(fabric, edges).with_system(systems(args)?)
    })
}

fn systems(args: &SwitchArgs) -> miette::Result<Systems> {
    let key = args.key_file.as_ref().map(|path| {
        let secret = std::fs::read(path).into_diagnostic();
        let secret = secret.wrap_err_with(|| format!("cannot read {}", path.display()))?;
        if secret.is_empty() {
            return Err(miette!("{} is empty: it must contain a key", path.display()));
        }
        Ok(Key::derive(&secret))
    });
    let system = args.program.system(args.controller.map(HostId), key.transpose()?);
    system.map_err(|error| miette!("{error}"))
}

fn udp_edges(listen: SocketAddr, hosts: u32, addresses: &[String]) -> miette::Result<Vec<Edge>> {
    let mut edges = Vec::with_capacity(hosts as usize);
    for host in 0..hosts {
        let mut bind = listen;
        if listen.port() != 0 {
            let port = u16::try_from(u32::from(listen.port()) + host);
            let port = port.map_err(|_| {
                miette!(
                    "{hosts} hosts need ports up to {}, beyond 65535",
                    u32::from(listen.port()) + hosts - 1
                )
            })?;
            bind.set_port(port);
        }
        edges.push(Edge::Udp { bind, host: None });
    }
    for text in addresses {
        let wrong = || {
            miette!("`--host {text}` is not a host's number and address, as in 0=192.0.2.1:5000")
        };
        let (number, address) = text.split_once('=').ok_or_else(wrong)?;
        let number: u32 = number.trim().parse().map_err(|_| wrong())?;
        let address: SocketAddr = address.trim().parse().map_err(|_| wrong())?;
        let Some(Edge::Udp { host, .. }) = edges.get_mut(number as usize) else {
            return Err(miette!(
                "`--host {text}`: {} does not exist, there are {hosts} hosts",
                HostId(number)
            ));
        };
        *host = Some(address);
    }
    Ok(edges)
}

fn single_switch(args: &SwitchArgs) -> miette::Result<FabricConfig> {
    let hosts = match &args.hosts {
        Some(text) => match text.parse() {
            Ok(hosts @ 2..=10_000) => hosts,
            _ => return Err(miette!("--hosts {text}: not a number from 2 to 10000")),
        },
        None if args.listen.is_none() => args.interface.len() as u32,
        None => return Err(miette!("--listen requires --hosts N or --fabric SCENARIO.toml")),
    };
    let bytes = args.buffer.0;
    Ok(FabricConfig {
        topology: Topology::SingleSwitch { hosts, host_link: args.link },
        host_link_delay: args.delay,
        host_link_delays: Vec::new(),
        core_link_delay: Span::ZERO,
        host_send_delay: Span::ZERO,
        host_receive_delay: Span::ZERO,
        switch: OneSwitch {
            latency: args.latency,
            buffer: match args.shared_buffer {
                true => BufferConfig::Shared { bytes, alpha: 1.0 },
                false => BufferConfig::PerPort { bytes },
            },
            ecn_threshold_bytes: args.ecn.map(|size| size.0),
            priorities: true,
            trim: args.trim.then_some(TrimConfig {
                data_queue_bytes: 8 * FULL_PACKET,
                header_queue_bytes: 16 * FULL_PACKET,
                return_to_sender: true,
            }),
            routing: Routing::Transport,
        },
    })
}

/// Reads the fabric of a hosts file, or that of a scenario with its faults.
fn fabric_of(name: &str, sets: &[String]) -> miette::Result<(FabricConfig, Vec<Fault>, u64)> {
    let is_hosts = |text: &String| text.lines().any(|line| line.trim_start().starts_with("hosts"));
    if let Ok(text) = std::fs::read_to_string(name)
        && is_hosts(&text)
        && let Ok(Hosts { fabric: Some(fabric), .. }) = Hosts::parse(name, &text)
    {
        return Ok((fabric, Vec::new(), 1));
    }
    of_scenario(name, sets)
}

/// Reads the fabric and the faults of a scenario, all points of which must have the same.
fn of_scenario(name: &str, sets: &[String]) -> miette::Result<(FabricConfig, Vec<Fault>, u64)> {
    let scenario = Scenario::load(name, sets, None)?;
    let end = |point: &rackweave_lab::PointSpec| {
        format!("{:?} {:?}", point.config.fabric, point.config.faults)
    };
    let Some(first) = scenario.points.first() else {
        return Err(miette!("`{name}` has no point to run"));
    };
    if scenario.points.iter().any(|point| end(point) != end(first)) {
        return Err(miette!(
            help = "choose one, as in --set fabric.switch.trim=true",
            "the sweep of `{name}` has several fabrics"
        ));
    }
    Ok((first.config.fabric.clone(), first.config.faults.clone(), scenario.seed))
}
