//! `rackweave rpc serve` and `rackweave rpc bench`.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::shell::signal::Interrupt;
use crate::shell::{events, exit, print, status, values};
use clap::{Subcommand, ValueEnum};
use rackweave_core::{Bytes, Rate, Span};
use rackweave_linux::{EndpointError, Key};
use rackweave_rpc_bench::{
    Bench, BenchConfig, BenchError, Custom, Load, Mode, Network, Profile, ServeConfig, Server,
    Setup, Sizes, Transport, Wire, report,
};
use rackweave_testbed::deploy::Deployment;

/// Default port of servers, the same as `cp_node`'s.
const PORT: u16 = 4000;

/// The interval at which the command checks whether the run has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Subcommand)]
pub(crate) enum RpcCommand {
    /// Serve requests: echo each one, or send a short reply.
    Serve(ServeArgs),
    /// Send requests and report throughput and RTT every second.
    Bench(Box<BenchArgs>),
}

/// Options of the transport, the same for servers and clients.
#[derive(Debug, clap::Args)]
pub(crate) struct SetupArgs {
    /// Transport: Homa or Polo over UDP, or the kernel's TCP.
    #[arg(long, default_value = "homa")]
    transport: TransportArg,
    /// Send packets without UDP, as HomaModule in the Linux kernel does (needs CAP_NET_RAW).
    #[arg(long, value_name = "WIRE", conflicts_with_all = ["profile", "scenario", "congestion"])]
    wire: Option<WireArg>,
    /// Profile of Homa.
    #[arg(long, default_value = "leverage-homa")]
    profile: ProfileArg,
    /// Use the transport and link rate of this scenario (a file, or a built-in one).
    #[arg(long, value_name = "SCENARIO.toml", conflicts_with_all = ["transport", "profile", "congestion", "link"])]
    scenario: Option<String>,
    /// Set a key of the scenario.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "scenario")]
    sets: Vec<String>,
    /// Rate of this host's link, which Homa and Polo do not exceed.
    #[arg(long, value_name = "RATE", default_value = "10 Gbps", value_parser = values::positive_rate)]
    link: Rate,
    /// Poll for this many microseconds before sleeping.
    #[arg(long, value_name = "US", default_value_t = 0)]
    busy_poll: u64,
    /// Longest message (default: homa 1 MB, as in the kernel module; polo and tcp 128 MiB).
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    max_message: Option<u64>,
    /// Congestion control of the kernel's TCP (default: the system's).
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Encrypt with the secret in this file, the same at servers and clients (not with tcp).
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// Serve requests: echo each one, or send a short reply.
///
/// Serves clients on this host only, whatever address it listens on, unless --allow names others. Without --key nothing is
/// encrypted: anyone on the path can read and forge messages.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave rpc serve\n  \
    rackweave rpc serve --transport tcp --ports 4\n  \
    rackweave rpc serve --listen 10.0.0.1:4000 --allow 10.0.0.0/24 --key secret\n\n\
    `head -c 32 /dev/urandom > secret` makes a key file. \
    It serves until Ctrl-C.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Address of the first thread; others have the next ports.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4000", value_parser = address)]
    listen: SocketAddr,
    /// Threads, each with its own port.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    ports: u16,
    /// Accept idempotent requests before the handshake from clients with a ticket (with --key).
    ///
    /// Each is accepted once, but someone on the path can have it executed again, within fifteen seconds.
    #[arg(long)]
    accept_early: bool,
    /// Also serve clients at these addresses; may be repeated.
    #[arg(long, value_name = "NET")]
    allow: Vec<Network>,
}

/// Send requests and report throughput and RTT every second.
///
/// Modelled on HomaModule's cp_node: the same line every second, the same workloads, the same dump. An RTT is measured
/// from the moment at which a request is passed to the transport.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave rpc bench --workload 100 --unloaded 10000\n  \
    rackweave rpc bench --workload W4 --truncate --outstanding 200 --ports 2\n  \
    rackweave rpc bench --transport tcp --workload W3 --gbps 1 --seconds 5 --dump rtts.txt\n  \
    rackweave rpc bench --workload 1000000 --total \"10 GB\" --check\n  \
    rackweave rpc bench --stream --total \"10 GB\" --json\n\n\
    Exit codes: 0 done, 1 something failed or arrived damaged, 2 wrong usage, 130 interrupted.")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    setup: SetupArgs,
    /// Servers: ADDR, NAME or ADDR:PORT, separated by commas (default port: 4000).
    #[arg(long = "server", value_name = "ADDR", default_value = "127.0.0.1:4000", value_delimiter = ',', value_parser = address)]
    servers: Vec<SocketAddr>,
    /// Ports of each server, counted from the given one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    server_ports: u16,
    /// Lengths of requests: W1 to W5, another name of `rackweave list workloads`, or bytes.
    #[arg(long, value_name = "NAME|BYTES", default_value = "100")]
    workload: Sizes,
    /// Outstanding requests, across all threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    outstanding: u32,
    /// Threads, each with its own endpoint.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    ports: u16,
    /// Open loop: gigabits of requests per second, at Poisson times; 0: closed loop.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    gbps: f64,
    /// Request short responses of 100 bytes.
    #[arg(long)]
    one_way: bool,
    /// Measure one request at a time, N of each length.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["gbps", "outstanding", "ports", "stream"])]
    unloaded: Option<u64>,
    /// Send one stream per thread, answered with its digest.
    #[arg(long, conflicts_with_all = ["one_way", "gbps", "workload", "outstanding"])]
    stream: bool,
    /// Stop after this many seconds (default: 10, unless another option ends the run).
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Stop after this many bytes of requests or streams.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    total: Option<u64>,
    /// Seconds after which an unanswered request has failed.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    deadline: f64,
    /// Truncate messages to the transport's longest.
    #[arg(long)]
    truncate: bool,
    /// Compare each response with its request, and print the digests of both.
    #[arg(long)]
    check: bool,
    /// Requests may be executed more than once, and with --tickets before the handshake.
    #[arg(long)]
    idempotent: bool,
    /// Keep tickets of servers in this file, for early calls in the next run (needs --key and
    /// --idempotent).
    #[arg(long, value_name = "FILE")]
    tickets: Option<PathBuf>,
    /// Write lengths and RTTs of all requests to a file, in cp_node's format.
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Seed of lengths, contents and times.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print only one line of JSON, at the end.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportArg {
    Homa,
    Polo,
    Tcp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WireArg {
    /// IP protocol 146, with messages of at most 1,000,000 bytes and neither encryption nor streams.
    HomaModule,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProfileArg {
    /// The kernel module of 2023, with what Leverage Homa adds to it.
    LeverageHoma,
    /// The kernel module of 2023.
    Linux,
    /// The SIGCOMM 2018 paper's simulations with a recovery from losses. Its former name, `sigcomm18`, still works.
    #[value(alias = "sigcomm18")]
    Fabric,
}

impl SetupArgs {
    fn setup(self) -> miette::Result<Setup> {
        let key = self.key.as_deref().map(crate::secret::read).transpose()?;
        let key = key.map(|secret| Key::derive(&secret)).transpose();
        let key = key.map_err(|error| miette::miette!("{error}"))?;
        let transport = match self.transport {
            TransportArg::Homa => Transport::Homa,
            TransportArg::Polo => Transport::Polo,
            TransportArg::Tcp => Transport::Tcp,
        };
        let profile = match self.profile {
            ProfileArg::LeverageHoma => Profile::LeverageHoma,
            ProfileArg::Linux => Profile::Linux,
            ProfileArg::Fabric => Profile::Fabric,
        };
        let setup = Setup {
            transport,
            wire: self.wire.map_or(Wire::Udp, |WireArg::HomaModule| Wire::HomaModule),
            custom: None,
            profile,
            link: self.link,
            busy_poll: Span::from_us(self.busy_poll.min(1_000_000)),
            max_message: self.max_message,
            congestion: self.congestion,
            key,
            accept_early: false,
            tickets: None,
        };
        let Some(scenario) = &self.scenario else { return Ok(setup) };
        let Deployment { name, config, link, kernel_tcp, notes } =
            Deployment::load(scenario, &self.sets)?;
        for note in notes {
            status(&format!("note: {note}\n"));
        }
        Ok(match kernel_tcp {
            Some(congestion) => {
                let congestion = Some(congestion.to_owned());
                Setup { transport: Transport::Tcp, congestion, link, ..setup }
            }
            None => Setup { custom: Some(Custom { name, config }), link, ..setup },
        })
    }
}

/// Parses a number of bytes, with or without a unit.
fn bytes(text: &str) -> Result<u64, String> {
    let bytes = text.parse::<u64>().or_else(|_| text.parse::<Bytes>().map(|bytes| bytes.0));
    match bytes.map_err(|error| error.to_string())? {
        0 => Err("must be above zero".into()),
        bytes => Ok(bytes),
    }
}

/// Parses an address or name, with or without a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    values::address(text, PORT)
}

pub(crate) fn rpc(command: RpcCommand) -> miette::Result<u8> {
    match command {
        RpcCommand::Serve(args) => serve(args),
        RpcCommand::Bench(args) => bench(*args),
    }
}

/// The exit code for a run that could not start: 2 for wrong usage, 1 if the system refused.
fn refused(error: &BenchError) -> miette::Result<u8> {
    match error {
        BenchError::Endpoint(
            EndpointError::Bind { .. } | EndpointError::Raw { .. } | EndpointError::NoRawRights,
        )
        | BenchError::Tickets(_)
        | BenchError::NoRoute { .. }
        | BenchError::Dump { .. }
        | BenchError::Thread(_)
        | BenchError::Tcp(_) => {
            status(&format!("error: {error}\n"));
            Ok(exit::FAILED)
        }
        _ => Err(miette::miette!("{error}")),
    }
}

/// Waits for [`POLL_INTERVAL`].
fn pause() {
    #[expect(clippy::disallowed_methods, reason = "this thread only prints")]
    std::thread::sleep(POLL_INTERVAL);
}

fn clock() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "lines are printed each second")]
    Instant::now()
}

fn serve(args: ServeArgs) -> miette::Result<u8> {
    // A connection over the kernel's TCP is an open file. If the system refuses, there are fewer at a time.
    let _ = rackweave_linux::sys::raise_open_file_limit();
    let interrupt = Interrupt::watch()?;
    let last_port = u32::from(args.listen.port()) + u32::from(args.ports) - 1;
    if last_port > u32::from(u16::MAX) {
        return Err(miette::miette!("--ports {} exceeds port 65535", args.ports));
    }
    let config = ServeConfig {
        setup: Setup { accept_early: args.accept_early, ..args.setup.setup()? },
        listen: args.listen,
        ports: args.ports,
        allow: args.allow,
    };
    let name = config.setup.name().to_owned();
    let server = match Server::start(&config) {
        Ok(server) => server,
        Err(error) => return refused(&error),
    };
    for address in server.addresses() {
        print(&format!("{name} server at {address}\n"))?;
    }
    if config.allow.is_empty() {
        if !config.listen.ip().is_loopback() {
            status("note: serving clients on this host only; use --allow to serve others\n");
        }
    } else if config.setup.key.is_none() {
        status("note: nothing is encrypted; anyone on the path can read and forge messages\n");
        if config.setup.is_of_module() {
            status(
                "note: anyone who can send packets with a client's address can forge requests\n",
            );
        }
    }
    let (mut before, mut since) = (server.served(), clock());
    while !interrupt.is_set() {
        pause();
        if server.is_broken() {
            break;
        }
        let seconds = since.elapsed().as_secs_f64();
        if seconds >= 1.0 {
            let now = server.served();
            if now != before {
                print(&report::servers_line(&name, before, now, seconds))?;
            }
            (before, since) = (now, clock());
        }
    }
    match server.stop() {
        Ok(()) => Ok(exit::DONE),
        Err(error) => {
            status(&format!("error: the server failed: {error}\n"));
            Ok(exit::FAILED)
        }
    }
}

/// Converts a number of seconds, at most a day.
fn span(name: &str, seconds: f64) -> miette::Result<Span> {
    // Written so that NaN is refused too.
    if seconds > 0.0 && seconds <= 86_400.0 {
        Ok(Span::from_secs_f64(seconds))
    } else {
        Err(miette::miette!("{name} {seconds}: not between 0 and 86400 seconds"))
    }
}

impl BenchArgs {
    fn config(self) -> miette::Result<Result<BenchConfig, BenchError>> {
        let load = match (self.unloaded, self.gbps) {
            (Some(each), _) => Load::Unloaded { each },
            (None, gbps) if gbps > 0.0 && gbps <= 1e5 => Load::Open { gbps },
            (None, 0.0) => Load::Closed,
            (None, gbps) => return Err(miette::miette!("--gbps {gbps}: not between 0 and 100000")),
        };
        let mode = match (self.stream, self.one_way) {
            (true, _) => Mode::Stream,
            (false, true) => Mode::OneWay,
            (false, false) => Mode::Echo,
        };
        let other_end = self.total.is_some() || self.unloaded.is_some();
        let duration = match self.seconds {
            Some(seconds) => Some(span("--seconds", seconds)?),
            None => (!other_end).then_some(Span::from_secs(10)),
        };
        let mut servers = Vec::new();
        for server in &self.servers {
            for index in 0..self.server_ports {
                let port = server.port().checked_add(index);
                let port =
                    port.ok_or_else(|| miette::miette!("--server-ports exceeds port 65535"))?;
                servers.push(SocketAddr::new(server.ip(), port));
            }
        }
        if servers.iter().any(|server| server.is_ipv4() != servers[0].is_ipv4()) {
            return Err(miette::miette!("servers must be all IPv4 or all IPv6"));
        }
        let mut config = BenchConfig {
            setup: Setup { tickets: self.tickets, ..self.setup.setup()? },
            servers,
            sizes: self.workload.0,
            mode,
            load,
            ports: self.ports,
            outstanding: self.outstanding.max(u32::from(self.ports)),
            duration,
            total: self.total,
            deadline: span("--deadline", self.deadline)?,
            idempotent: self.idempotent,
            check: self.check,
            dump: self.dump,
            seed: self.seed,
        };
        Ok(config.check(self.truncate).map(|()| config))
    }
}

fn bench(args: BenchArgs) -> miette::Result<u8> {
    let interrupt = Interrupt::watch()?;
    let json = args.json;
    let config = match args.config()? {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    for server in config.servers.iter().filter(|server| config.setup.is_refused(**server)) {
        status(&format!(
            "note: no process listens at {server}, its host says; waiting for one for some seconds\n"
        ));
    }
    let name = config.setup.name().to_owned();
    let stream = config.mode == Mode::Stream;
    let mut bench = match Bench::start(config) {
        Ok(bench) => bench,
        Err(error) => return refused(&error),
    };
    let show = !json || std::io::stderr().is_terminal();
    let mut since = clock();
    while !bench.is_done() {
        pause();
        if interrupt.is_set() {
            bench.stop();
        }
        if since.elapsed() >= Duration::from_secs(1) {
            since = clock();
            let interval = bench.tick();
            let idle = interval.calls() == 0
                && interval.bytes_out == 0
                && interval.failures.is_empty()
                && interval.outstanding == 0;
            if idle || !show {
                continue;
            }
            let line = if stream {
                report::stream_line(&name, &interval)
            } else {
                report::clients_line(&name, &interval)
            };
            if json {
                status(&line);
            } else {
                print(&line)?;
            }
        }
    }
    let config = bench.config().clone();
    let summary = match bench.finish() {
        Ok(summary) => summary,
        Err(error) => return refused(&error),
    };
    let stopped = interrupt.is_set();
    if json {
        events::emit("result", report::to_json(&config, &summary))?;
    } else if summary.all.calls() > 0 || summary.all.bytes_out > 0 {
        print(&report::summary(&config, &summary))?;
    }
    for trouble in &summary.troubles {
        // After Ctrl-C, missing answers need no explanation.
        if !stopped {
            status(&format!("error: {trouble}\n"));
        }
    }
    if summary.corrupt > 0 {
        status(&format!("error: {} responses differ from what was sent\n", summary.corrupt));
    }
    let failed = summary.all.failures.values().sum::<u64>();
    if failed > 0 && summary.troubles.is_empty() {
        let reasons: Vec<String> = summary
            .all
            .failures
            .iter()
            .map(|(reason, count)| format!("{reason}: {count}"))
            .collect();
        status(&format!("error: {failed} requests failed ({})\n", reasons.join(", ")));
    }
    Ok(match (stopped, summary.is_good()) {
        (true, _) => exit::INTERRUPTED,
        (false, true) => exit::DONE,
        (false, false) => exit::FAILED,
    })
}
