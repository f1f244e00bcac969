//! `rackweave switch`.

mod agent;
pub(crate) mod args;
mod bpf;
mod circuits;
mod metrics;
mod reduce_bpf;
mod show;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use miette::miette;
use rackweave_core::{HostId, Time, frame};
use rackweave_lab::Scenario;
use rackweave_lab::scenario::{FabricFile, Hosts};
use rackweave_linux::switch::{Control, Edge, Switch, SwitchConfig};
use rackweave_switch::config::{
    FabricConfig, Fault, FaultKind, FaultPlace, Move, SwitchConfig as OneSwitch, TrimConfig,
};
use rackweave_testbed::systems::{ProgramName, ProgramOptions, Systems};

use self::args::{LinkArgs, PollArgs, ShowArgs, SwitchArgs};
use crate::shell::signal::Interrupt;
use crate::shell::{events, exit, print, status};

/// The bytes that a full packet occupies on the link.
const FULL_PACKET: u64 = frame::wire_bytes(frame::MTU) as u64;

pub(crate) fn switch(args: &SwitchArgs) -> miette::Result<u8> {
    if args.bpf {
        return match args.program {
            ProgramName::Orca => bpf::run(args),
            ProgramName::Reduce => reduce_bpf::run(args),
            ProgramName::Plain | ProgramName::Swp2p => Err(miette!(
                "--bpf requires --program orca or --program reduce (SWP2P's program for the kernel: rackweave image switch --bpf)"
            )),
        };
    }
    let agent = agent::Plan::of(args)?;
    run_with(config(args)?, &args.show, args.control.as_deref(), agent)
}

/// Runs a switch until Ctrl-C, and prints its counters. Controllers change its circuits through the socket `controllers`.
pub(crate) fn run(
    config: SwitchConfig<Systems>,
    show: &ShowArgs,
    controllers: Option<&Path>,
) -> miette::Result<u8> {
    run_with(config, show, controllers, None)
}

fn run_with(
    config: SwitchConfig<Systems>,
    show: &ShowArgs,
    controllers: Option<&Path>,
    agent: Option<agent::Plan>,
) -> miette::Result<u8> {
    let control = Arc::new(Control::default());
    let metrics = show.metrics.as_deref().map(|at| metrics::serve(at, &control)).transpose()?;
    let edges = config.edges.clone();
    let mut switch = Switch::new(config).map_err(|error| miette!("{error}"))?;
    let listener = controllers.map(circuits::Listener::open).transpose()?;
    if let Some(listener) = &listener {
        listener.serve(switch.fabric(), &control)?;
    }
    if let Some(agent) = agent {
        agent.start(switch.fabric(), &control)?;
    }
    let shared = Arc::clone(&control);
    Interrupt::ends_by(move || shared.stop.store(true, Ordering::Relaxed))?;
    print_addresses(&edges, &switch);
    let (ended, end) = channel();
    let shared = Arc::clone(&control);
    let running = std::thread::spawn(move || {
        let result = switch.run(&shared);
        // The receiver is gone if the main thread has failed.
        let _ = ended.send(());
        (result, switch.report())
    });
    let mut live = show::Live::new(!show.json);
    while end.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        if show.stats
            && let Some(report) = control.report()
        {
            live.show(&report);
        }
    }
    let (result, report) = running.join().map_err(|_| miette!("the switch has failed"))?;
    drop(metrics);
    if show.json {
        events::emit("result", show::json(&report))?;
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

/// Waits for Ctrl-C, and calls a function every second meanwhile.
pub(crate) fn until_interrupted(
    mut every_second: impl FnMut() -> miette::Result<()>,
) -> miette::Result<()> {
    let (ended, end) = channel();
    Interrupt::ends_by(move || {
        // If the receiver is gone, the command is ending anyway.
        let _ = ended.send(());
    })?;
    status("ready\n");
    while end.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        every_second()?;
    }
    Ok(())
}

/// Prints to stderr the address to which each host must send.
fn print_addresses(edges: &[Edge], switch: &Switch<Systems>) {
    let mut stderr = std::io::stderr().lock();
    for (host, (port, edge)) in switch.udp_ports().iter().zip(edges).enumerate() {
        let _ = match (port, edge) {
            (Some(port), _) => writeln!(stderr, "host {host}: {port}"),
            (None, Edge::Interface { name }) => writeln!(stderr, "host {host}: {name}"),
            (None, Edge::Udp { .. }) => Ok(()),
        };
    }
    if stderr.is_terminal() {
        let _ = writeln!(stderr, "Press Ctrl-C to stop.");
    }
}

fn config(args: &SwitchArgs) -> miette::Result<SwitchConfig<Systems>> {
    let Described { fabric, mut faults, moves, seed } = match &args.fabric {
        Some(name) => fabric_of(name, &args.sets)?,
        None => Described::of(single_switch(args)?),
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
        None => interfaces(&args.interface),
    };
    let config = SwitchConfig {
        faults,
        moves,
        seed: args.seed.unwrap_or(seed),
        ..polled(SwitchConfig::new(fabric, edges), args.poll)
    };
    let options = ProgramOptions {
        controller: args.controller.map(HostId),
        server: args.server,
        secret: None,
        slots: args.slots,
        ways: args.ways,
        share: args.share(),
        aggregate_at: &args.aggregate_at,
    };
    with_program(config, args.program, options, args.key_file.as_deref())
}

/// The same switch with the programs of a system, whose key is in a file.
pub(crate) fn with_program(
    config: SwitchConfig,
    program: ProgramName,
    options: ProgramOptions<'_>,
    key_file: Option<&Path>,
) -> miette::Result<SwitchConfig<Systems>> {
    let secret = key_file.map(crate::secret::read).transpose()?;
    let options = ProgramOptions { secret: secret.as_deref(), ..options };
    let system = program.system(options, &config.fabric);
    Ok(config.with_system(system.map_err(|error| miette!("{error}"))?))
}

/// The same switch with these habits.
pub(crate) fn polled(config: SwitchConfig, poll: PollArgs) -> SwitchConfig {
    SwitchConfig { batch_window: poll.window, busy_poll: poll.busy_poll, ..config }
}

/// Attaches hosts by interfaces, in order.
pub(crate) fn interfaces(names: &[String]) -> Vec<Edge> {
    names.iter().map(|name| Edge::Interface { name: name.clone() }).collect()
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
    let mut fabric = one_switch(hosts, &args.link);
    fabric.switch.trim = args.trim.then_some(TrimConfig::NDP);
    Ok(fabric)
}

/// One switch with this many hosts.
pub(crate) fn one_switch(hosts: u32, args: &LinkArgs) -> FabricConfig {
    let bytes = args.buffer.0;
    let mut switch = OneSwitch::default().with_latency(args.latency);
    switch = match args.shared_buffer {
        true => switch.with_shared_buffer(bytes, 1.0),
        false => switch.with_buffer(bytes),
    };
    switch.marking = args.ecn.map(|size| size.0).into();
    FabricConfig::single_switch(hosts, args.link)
        .with_link_delay(args.delay)
        .without_host_delays()
        .with_switch(switch)
}

/// A fabric, and what happens to it.
struct Described {
    fabric: FabricConfig,
    faults: Vec<Fault>,
    moves: Vec<Move>,
    seed: u64,
}

impl Described {
    const fn of(fabric: FabricConfig) -> Self {
        Self { fabric, faults: Vec::new(), moves: Vec::new(), seed: 1 }
    }
}

/// Reads the fabric of a hosts file or of a file that has nothing else, or that of a scenario with its faults.
fn fabric_of(name: &str, sets: &[String]) -> miette::Result<Described> {
    if let Ok(text) = std::fs::read_to_string(name) {
        let is_hosts = text.lines().any(|line| line.trim_start().starts_with("hosts"));
        if is_hosts && let Ok(Hosts { fabric: Some(fabric), .. }) = Hosts::parse(name, &text) {
            return Ok(Described::of(fabric));
        }
        if let Some(file) = FabricFile::parse(name, &text)? {
            if !sets.is_empty() {
                return Err(miette!("--set changes a scenario, and `{name}` has only a fabric"));
            }
            return Ok(Described { moves: file.moves, ..Described::of(file.fabric) });
        }
    }
    of_scenario(name, sets)
}

/// Reads the fabric, its changes of circuits and the faults of a scenario. All its points must have the same.
fn of_scenario(name: &str, sets: &[String]) -> miette::Result<Described> {
    let scenario = Scenario::load(name, sets, None)?;
    let end = |point: &rackweave_lab::PointSpec| {
        let config = &point.config;
        format!("{:?} {:?} {:?}", config.fabric, config.faults, config.moves)
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
    let config = &first.config;
    Ok(Described {
        fabric: config.fabric.clone(),
        faults: config.faults.clone(),
        moves: config.moves.clone(),
        seed: scenario.seed,
    })
}
