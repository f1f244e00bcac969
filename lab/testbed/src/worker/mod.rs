//! A process of a run: a host, or the switch. It receives its role on its standard input, reads the scenario, and
//! derives what it will send: generators have the same seeds in all processes.

mod cast;
mod channel;
mod host;
mod image;
mod log;
mod meter;
mod payload;
mod reduce;
mod switch;
mod timeline;

use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use rackweave_core::{HostId, Span, Time};
use rackweave_lab::scenario::{PointSpec, ScenarioText, World};
use rackweave_linux::{
    AnyEndpoint, Clock, Endpoint, EndpointConfig, Peers, TcpConfig, TcpEndpoint, wait_any,
};
use rackweave_sim::Fabric;
use rackweave_transport::TransportConfig;
use rackweave_workload::Generator;
use rackweave_workload::app::AppStream;

pub(crate) use self::cast::run as run_cast;
pub(super) use self::channel::RpcHeader;
use self::host::{Host, Incarnation};
pub(super) use self::host::{longest, longest_request};
pub(crate) use self::image::run as run_image;
pub(crate) use self::reduce::run as run_reduce;
use super::endpoints::EndpointSpecs;
use super::kinds::{self, HostProcess};
use super::protocol::{Bind, Command, Role, Setup, WorkerMessage};

/// The interval at which a host reports the outcomes of its messages.
const REPORT_EVERY: Span = Span::from_ms(100);
/// The interval at which the bytes of partially received messages are counted. What arrives of such messages in the
/// last interval before the end of the measured time does not count in goodput.
const COUNT_EVERY: Span = Span::from_ms(10);
/// The number of records that are reported without waiting for that interval.
const MAX_RECORDS: usize = 4096;
/// The longest time that a worker waits before it checks for commands.
const POLL_EVERY: Span = Span::from_ms(20);
/// The UDP port of a host's first transport in a namespace. Each further transport has the next port.
pub(super) const FIRST_PORT: u16 = 4700;

/// Runs a worker until its coordinator stops it. Returns the exit code of the process.
///
/// It is only meant for the hidden subcommand of the program: it reads standard input, and ends with it.
#[must_use]
pub fn main() -> u8 {
    // Ctrl-C in a terminal goes to the whole process group. It is for the coordinator, which ends its workers in order.
    // It also makes an autogroup: where the kernel divides processors by session, niceness counts inside one only.
    let _ = rustix::process::setsid();
    let mut stdin = std::io::stdin().lock();
    let mut line = String::new();
    let setup = match stdin.read_line(&mut line) {
        Ok(0) => return 0,
        Ok(_) => serde_json::from_str::<Setup>(&line).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    drop(stdin);
    let ended = setup.and_then(|setup| run(&setup));
    match ended {
        Ok(()) => 0,
        Err(problem) => {
            send(&WorkerMessage::Failed(problem));
            1
        }
    }
}

/// Writes a line. If nothing reads it, the process ends.
fn send(message: &WorkerMessage) {
    let mut stdout = std::io::stdout().lock();
    let written = serde_json::to_writer(&mut stdout, message)
        .map_err(std::io::Error::from)
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush());
    if written.is_err() {
        std::process::exit(0);
    }
}

/// A real-time priority (1 to 99; most are unused).
pub(crate) const SWITCH_PRIORITY: i32 = 20;

fn run(setup: &Setup) -> Result<(), String> {
    end_with_parent(setup.parent)?;
    if setup.version != env!("CARGO_PKG_VERSION") {
        return Err("the program was replaced while it ran".into());
    }
    if let Some(name) = &setup.namespace {
        rackweave_linux::netns::enter(name).map_err(|error| error.to_string())?;
    }
    rackweave_linux::sys::tighten_timers();
    // Other activity of the machine should disturb the run as little as possible; without privileges the priorities
    // stay as they are. All hosts wait for the switch, so it has priority.
    let is_switch = setup.role == Role::Switch;
    // Hosts are scheduled fairly: at a real-time priority one host could make others wait for long. The coordinator has
    // one, which its processes inherit.
    if !is_switch {
        let _ = rackweave_linux::sys::set_ordinary_priority();
    }
    if !is_switch || rackweave_linux::sys::set_realtime_priority(SWITCH_PRIORITY).is_err() {
        let _ = rustix::process::setpriority_process(None, if is_switch { -15 } else { -10 });
        let _ = std::fs::write("/proc/self/autogroup", if is_switch { "-15" } else { "-10" });
    }
    let text = ScenarioText {
        file: setup.file.clone(),
        text: setup.text.clone(),
        folder: PathBuf::from(&setup.folder),
    };
    let mut scenario = text
        .read(World::Testbed, &setup.sets, Some(setup.seed))
        .map_err(|error| error.message().to_owned())?;
    let point = match scenario.points.len() {
        1 => scenario.points.remove(0),
        many => return Err(format!("there are {many} points in place of one")),
    };
    let commands = listen();
    send(&WorkerMessage::Up);
    let bind = match commands.recv() {
        Ok(Command::Bind(bind)) => bind,
        Ok(Command::Greet | Command::Grant { .. } | Command::Move(_) | Command::Stop) | Err(_) => {
            return Ok(());
        }
    };
    match setup.role {
        Role::Switch => switch::run(setup, &point, &bind, &commands),
        Role::Host(host) if let Some(kind) = kinds::of(&point.study) => {
            let kind = kind.map_err(|refusal| refusal.message)?;
            let (this, point, bind, commands) = (HostId(host), &point, &bind, &commands);
            kind.run_host(&HostProcess { this, setup, point, bind, commands })
        }
        Role::Host(host) => run_host(HostId(host), setup, &point, &bind, &commands),
    }
}

/// Makes this process end when its parent does.
fn end_with_parent(parent: u32) -> Result<(), String> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| error.to_string())?;
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    // The parent may have ended before the call.
    if now == i32::try_from(parent).ok() { Ok(()) } else { Err("the coordinator has gone".into()) }
}

/// Reads commands as they arrive. The process ends when the coordinator closes its standard input.
fn listen() -> Receiver<Command> {
    let (sender, commands): (Sender<Command>, _) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(command) =
                line.map_err(drop).and_then(|line| serde_json::from_str(&line).map_err(drop))
            else {
                break;
            };
            if sender.send(command).is_err() {
                return;
            }
        }
        std::process::exit(0);
    });
    commands
}

/// Returns the next command, if there is one.
fn next_command(commands: &Receiver<Command>) -> Option<Command> {
    match commands.try_recv() {
        Ok(command) => Some(command),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Command::Stop),
    }
}

/// Returns the CPU time of this process in seconds, including time in the kernel.
fn process_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns how often the threads of this process have gone to sleep.
fn sleeps() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_thread = |thread: std::fs::DirEntry| -> Option<u64> {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    };
    threads.filter_map(of_thread).sum()
}

fn run_host(
    this: HostId,
    setup: &Setup,
    point: &PointSpec,
    bind: &Bind,
    commands: &Receiver<Command>,
) -> Result<(), String> {
    let fabric = Fabric::new(&point.config.fabric).map_err(|error| error.to_string())?;
    let specs = EndpointSpecs::of(point, setup.overlay);
    let clock = Clock::with_origin(bind.origin_ns);
    let start = Span::from_ticks(bind.start_ticks);
    let incarnation = bind.crashed_ticks.map(|crashed| Incarnation {
        crashed: Time::from_ticks(crashed),
        began: clock.now().saturating_sub(start),
    });
    let endpoints = endpoints(this, point, &specs, &fabric, bind, clock)?;
    let streams = streams(this, point, &specs, &fabric)?;
    let bound = endpoints.iter().map(|endpoint| Some(endpoint.local_addr())).collect();
    let mut host = Host::new(this, endpoints, streams, (clock, start, incarnation), point);
    send(&WorkerMessage::Bound(bound));
    serve(&mut host, clock, fabric.hosts(), commands)?;
    send(&WorkerMessage::HostEnd(Box::new(host.end())));
    Ok(())
}

/// Serves a host until the command to stop.
fn serve(
    host: &mut Host,
    clock: Clock,
    hosts: u32,
    commands: &Receiver<Command>,
) -> Result<(), String> {
    let (lines, written) = writer();
    let mut report_at = clock.now();
    let mut count_at = next_count(host, report_at);
    loop {
        match next_command(commands) {
            Some(Command::Stop) => break,
            Some(Command::Greet) => host.greet(hosts),
            Some(Command::Bind(_) | Command::Grant { .. } | Command::Move(_)) | None => {}
        }
        host.start_due();
        let next = host.turn().map_err(|error| format!("its socket failed: {error}"))??;
        let now = clock.now();
        if now >= count_at {
            count_at = next_count(host, now);
            host.log_arriving();
        }
        if now >= report_at || host.log.len() >= MAX_RECORDS {
            report_at = now + REPORT_EVERY;
            if let Some(at) = host.now() {
                let idle = host.has_ended();
                // The writer ends only with the process.
                let _ =
                    lines.send(WorkerMessage::Records(host.log.take(host.logged_until(at), idle)));
            }
        }
        let until = [next, host.next_start(), Some(count_at), Some(now + POLL_EVERY)];
        wait_any(&mut host.endpoints, until.into_iter().flatten().min())
            .map_err(|error| format!("it cannot wait: {error}"))?;
    }
    host.log_arriving();
    if let Some(at) = host.now() {
        let _ = lines
            .send(WorkerMessage::Records(host.log.take(host.logged_until(at), host.has_ended())));
    }
    drop(lines);
    written.join().map_err(|_| "it could not write".to_owned())
}

/// Returns the time by the clock at which the bytes of partially received messages are counted next: at the end of the
/// warm-up, because goodput counts from then on, and every [`COUNT_EVERY`].
fn next_count(host: &Host, now: Time) -> Time {
    let warmup = Time::ZERO + host.warmup();
    let next = now + COUNT_EVERY;
    if now < warmup { next.min(warmup) } else { next }
}

/// Writes lines on a separate thread, so that a slow coordinator does not delay a host.
fn writer() -> (Sender<WorkerMessage>, std::thread::JoinHandle<()>) {
    let (lines, to_write) = channel();
    let written = std::thread::spawn(move || {
        for message in to_write {
            send(&message);
        }
    });
    (lines, written)
}

fn endpoints(
    this: HostId,
    point: &PointSpec,
    specs: &EndpointSpecs,
    fabric: &Fabric,
    bind: &Bind,
    clock: Clock,
) -> Result<Vec<AnyEndpoint>, String> {
    let mut endpoints = Vec::with_capacity(specs.endpoints.len());
    for (number, (endpoint, at)) in specs.endpoints.iter().zip(&bind.at).enumerate() {
        let peers = match bind.switch {
            Some(port) => Peers::Switch { port, hosts: fabric.hosts() },
            None => {
                let others = (0..fabric.hosts()).map(HostId).filter(|host| *host != this);
                let hosts = others.filter_map(|host| Some((host, address(host, number as u8)?)));
                Peers::Direct { hosts: hosts.collect(), allow: Vec::new() }
            }
        };
        if let Some(congestion) = endpoint.kernel {
            let mut config = TcpConfig::new(this, *at, peers);
            config.congestion = Some(congestion.to_owned());
            if let TransportConfig::Tcp(tcp) = &endpoint.transport {
                config.connections_per_peer = tcp.connections_per_peer;
            }
            config.busy_poll = point.testbed.busy_poll;
            config.clock = clock;
            let endpoint = TcpEndpoint::new(config).map_err(|error| error.to_string())?;
            endpoints.push(endpoint.into());
            continue;
        }
        let mut config = EndpointConfig::new(this, *at, peers, &endpoint.transport);
        config.link = fabric.host_rate();
        config.run_ahead = point.testbed.run_ahead;
        config.busy_poll = point.testbed.busy_poll;
        config.clock = clock;
        endpoints.push(Endpoint::new(config).map_err(|error| error.to_string())?.into());
    }
    Ok(endpoints)
}

/// Returns the address of a host's transport, in its namespace.
pub(super) fn address(host: HostId, endpoint: u8) -> Option<SocketAddr> {
    let ip = rackweave_wire::frame::ip_address(host)?;
    let port = FIRST_PORT + u16::from(endpoint);
    Some(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(ip), port)))
}

/// Returns this host's share of each stream of messages.
fn streams(
    this: HostId,
    point: &PointSpec,
    endpoints: &EndpointSpecs,
    fabric: &Fabric,
) -> Result<Vec<AppStream>, String> {
    let config = &point.config;
    let mut streams = Vec::with_capacity(config.streams.len());
    for (number, (stream, endpoint)) in config.streams.iter().zip(&endpoints.of_stream).enumerate()
    {
        let workload = &stream.workload;
        let generator = stream.mean_gap(fabric.host_rate()).and_then(|gap| {
            Generator::new(workload, fabric.hosts(), gap, config.seed, config.run, number as u64)
        });
        let generator = generator.map_err(|error| error.to_string())?;
        streams.push(AppStream::new(workload, *endpoint, generator.of_host(this)));
    }
    Ok(streams)
}
