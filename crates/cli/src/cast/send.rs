//! `rackweave cast send`.

use std::io::{IsTerminal as _, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use miette::miette;
use rackweave_cast::baseline;
use rackweave_cast::door::{SendWish, fingerprint};
use rackweave_cast::engine::{Engine, EngineEvent, FabricPlace, ReceiverProgress, SendView};
use rackweave_cast::source::{Files, Pipe, Source, SourceError};
use rackweave_core::{Bytes, HostId, Rate, Span, Time};
use rackweave_group::orca::flow::{FlowConfig, ReceiverStatus, SlowReason};
use rackweave_group::orca::host::Spread;
use rackweave_group::orca::parity::MAX_CELLS;
use rackweave_linux::sys::route_to;
use rackweave_wire::orca::{self, Data, Header, Label, Labelled, Parity, Reason, Session};
use serde_json::json;

use super::{
    CommonArgs, Interrupted, address, diagnose, door, fabric, group, many, rate, say, size,
};
use crate::{exit, print};

/// IP and UDP.
const IP_UDP: u32 = 28;

/// More makes a lost packet dear, and is no faster.
const MAX_PAYLOAD: u32 = 8900;

/// Send files, or standard input, to many hosts at once.
///
/// Receivers run `rackweave cast receive`. Every chunk and file is hashed; the exit code is 0 only if all receivers have
/// all files. Sent again after an interruption, the same files go on where each receiver stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave cast send image.iso --to 192.0.2.7,192.0.2.8,192.0.2.9\n  \
    tar c dir | rackweave cast send - --to node1 --to node2 --key cast.key\n  \
    rackweave cast send image.iso --to node1,node2 --method chain --json\n\n\
    Exit codes: 0 all receivers have everything, 1 some have not, 2 wrong usage or file, 130 interrupted.")]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,
    /// Files and directories, or `-` for standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(super) files: Vec<PathBuf>,
    /// Receivers: HOST or HOST:PORT, separated by commas or repeated (default port: 6722).
    #[arg(long, value_name = "HOST", required_unless_present = "group", value_delimiter = ',', value_parser = address)]
    pub(super) to: Vec<SocketAddr>,
    /// To all members of this group (`receive --group`), which are asked for by multicast.
    #[arg(long, value_name = "NAME", conflicts_with = "to", value_parser = group)]
    group: Option<String>,
    /// Wait until so many members have answered, for at most 30 s (default: send to those that answer within 80 ms).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    expect: Option<u32>,
    /// How packets reach all (default: multicast if a probe shows that it reaches all receivers, else unicast).
    #[arg(long)]
    spread: Option<SpreadArg>,
    /// What carries the files: Orca, or, to compare, the kernel's TCP (receivers need --tcp).
    #[arg(long, default_value = "cast")]
    method: MethodArg,
    /// How many threads send copies, each to its share of the receivers (with --method unicast).
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(super) processes: u32,
    /// Never send faster, in bits per second, as "500 Mbps" (default: as fast as receivers and links allow).
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// The largest IP packet in bytes, headers included (default: what the ways to the receivers allow).
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(256..=65_000))]
    mtu: Option<u32>,
    /// Where to send from: address and UDP port, 0 for any.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:0")]
    bind: SocketAddr,
    /// Packets of a block of which parity is sent where that costs less than what is missed of it; or "off".
    #[arg(long, value_name = "BLOCK", default_value = "64", value_parser = fec_block)]
    fec: u8,
    /// What receivers call the file that comes from standard input.
    #[arg(long, value_name = "NAME", default_value = "stdin")]
    name: String,
    /// Where standard input is kept, in a file without a name.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    spool: PathBuf,
    /// Keep no more of it than this, as "1 GB", but at least 2 MiB; input waits when a receiver lacks more (default: no limit).
    #[arg(long, value_name = "SIZE")]
    spool_limit: Option<Bytes>,
    /// The controller of label switches, one of --fabric (default, with --spread labels: this process is it).
    #[arg(long, value_name = "ADDR", value_parser = address, requires = "fabric")]
    controller: Option<SocketAddr>,
    /// If this process is the controller: an agent that is silent for so long, as "200 ms", is dead.
    #[arg(long, value_name = "TIME", default_value = "200 ms", conflicts_with = "controller")]
    timeout: Span,
    /// Hand the files to the agent of this host, at its socket (default, if the port of --fabric is taken: the agent's default).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Invite a receiver that fell silent again for so many seconds; 0: never.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    retry: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SpreadArg {
    /// IP multicast: one packet for all.
    Multicast,
    /// A copy to each.
    Unicast,
    /// From receiver to receiver, by the numbers of --fabric.
    Relay,
    /// By label switches and agents.
    Labels,
}

impl SpreadArg {
    const fn spread(self) -> Spread {
        match self {
            Self::Multicast => Spread::Multicast,
            Self::Unicast => Spread::Unicast,
            Self::Relay => Spread::Relay,
            Self::Labels => Spread::Labels,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MethodArg {
    /// Orca.
    Cast,
    /// A copy to each receiver over UDP, from --processes senders.
    Unicast,
    /// A TCP connection to each receiver, each from a thread of its own.
    Tcp,
    /// One TCP connection to the first receiver, which hands on to the second, and so on.
    Chain,
}

/// Members of a group that are there answer within this, ...
const ASK: Span = Span::from_ms(80);

/// ... and those that are expected, even if they are being started.
const EXPECT: Span = Span::from_secs(30);

/// Who is in the group; `None`: not enough, which has been said.
fn members(
    args: &SendArgs,
    name: &str,
    interrupted: &Interrupted,
) -> miette::Result<Option<Vec<SocketAddr>>> {
    let mut config = args.common.engine(SocketAddr::from(([0, 0, 0, 0], 0)), Vec::new())?;
    let keyed = config.secret.is_some();
    (config.fabric, config.group_loops) = (None, true);
    // Answers are listened to, whoever makes them, and nothing else.
    (config.admission.loopback, config.admission.anybody) = (false, false);
    let expect = args.expect.map(|expect| expect as usize);
    let wait = if expect.is_some() { EXPECT } else { ASK };
    let asked =
        Engine::new(config, None).map_err(|error| error.to_string()).and_then(|mut engine| {
            interrupted.wakes(engine.waker());
            let stop = || interrupted.is_set();
            engine.members(name, expect, wait, &stop).map_err(|error| error.to_string())
        });
    let found = match asked {
        Ok(found) => found,
        Err(error) => {
            say(&format!("error: cannot ask for members of `{name}`: {error}\n"));
            return Ok(None);
        }
    };
    if interrupted.is_set() {
        return Ok(None);
    }
    if found.is_empty() {
        say(&format!("error: {}\n", diagnose::nobody(name, keyed)));
        return Ok(None);
    }
    let list: Vec<String> = found.iter().map(ToString::to_string).collect();
    if expect.is_some_and(|expect| found.len() < expect) {
        say(&format!(
            "error: only {} of {} members of `{name}` have answered in {} s: {}\n",
            found.len(),
            expect.unwrap_or_default(),
            EXPECT.as_secs_f64(),
            list.join(", ")
        ));
        return Ok(None);
    }
    if !args.common.quiet && !args.common.json {
        say(&format!("members of `{name}`: {}\n", list.join(", ")));
    }
    Ok(Some(found))
}

pub(crate) fn send(mut args: SendArgs) -> miette::Result<u8> {
    if args.expect.is_some() && args.group.is_none() {
        return Err(miette!("--expect goes with --group"));
    }
    // In calls of the kernel's TCP nobody can be woken: there, signals end the process.
    let interrupted = match args.method {
        MethodArg::Tcp | MethodArg::Chain => Interrupted::default(),
        _ => Interrupted::watch()?,
    };
    if let Some(name) = &args.group {
        match members(&args, name, &interrupted)? {
            Some(found) => args.to = found,
            None if interrupted.is_set() => return Ok(exit::INTERRUPTED),
            None => return Ok(exit::FAILED),
        }
    }
    send_to(&args, &interrupted)
}

/// What does not go together.
fn check(args: &SendArgs) -> miette::Result<()> {
    for (index, to) in args.to.iter().enumerate() {
        if args.to[..index].contains(to) {
            return Err(miette!("{to} is named twice"));
        }
        if to.is_ipv4() != args.to[0].is_ipv4() {
            return Err(miette!("receivers must be all IPv4 or all IPv6"));
        }
    }
    if args.files.iter().any(|file| file.as_os_str() == "-") && args.files.len() > 1 {
        return Err(miette!("standard input is sent alone, without files"));
    }
    if args.common.fabric.is_none() && args.socket.is_none() {
        match args.spread {
            Some(SpreadArg::Relay) => {
                return Err(miette!(
                    "--spread relay needs --fabric FILE, here and at the receivers: they send to each other"
                ));
            }
            Some(SpreadArg::Labels) => {
                return Err(miette!(
                    "--spread labels needs --fabric FILE: labels name hosts by their numbers in it"
                ));
            }
            _ => {}
        }
    }
    let unicast = args.method == MethodArg::Unicast;
    if args.processes > 1 && !unicast {
        return Err(miette!("--processes goes with --method unicast"));
    }
    if unicast && (args.files[0].as_os_str() == "-" || args.common.fabric.is_some()) {
        return Err(miette!(
            "--method unicast, which is here to compare, takes files only, and no --fabric"
        ));
    }
    if unicast && args.bind.port() != 0 {
        return Err(miette!("--method unicast has several sockets: --bind ADDR:0"));
    }
    Ok(())
}

fn send_to(args: &SendArgs, interrupted: &Interrupted) -> miette::Result<u8> {
    check(args)?;
    let unicast = args.method == MethodArg::Unicast;
    if matches!(args.method, MethodArg::Tcp | MethodArg::Chain) {
        return send_tcp(args);
    }
    let mut bind = args.bind;
    if !args.to[0].is_ipv4() && bind == SocketAddr::from(([0, 0, 0, 0], 0)) {
        bind = SocketAddr::from(([0; 16], 0));
    }
    let mut config = args.common.engine(bind, Vec::new())?;
    let wish = SendWish {
        to: args.to.clone(),
        name: args.name.clone(),
        spread: args.spread.map(SpreadArg::spread),
        rate: args.rate,
        mtu: args.mtu,
        records: None,
        key: config.secret.as_deref().map(fingerprint),
    };
    if let Some(path) = &args.socket {
        return door::send(args, path, wish, files_of(args)?);
    }
    if let Some(place) = &mut config.fabric {
        // The others know this host by its address.
        config.bind = fabric::place(place, place.me).unwrap_or(config.bind);
        take_place(args, place)?;
    }
    // Only those who are named are listened to, whoever has the key.
    config.admission.loopback = false;
    config.admission.anybody = false;
    config.retry = Span::from_secs(args.retry.into());
    let flow = FlowArgs { mtu: args.mtu, rate: args.rate, fec: args.fec };
    let words = config.fabric.as_ref().map_or(0, |fabric| fabric.layout.words());
    let flow = match flow.flow(&args.to, config.secret.is_some(), words) {
        Ok(flow) => flow,
        Err(error) => {
            say(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    if args.common.interface.is_none()
        && let Ok(IpAddr::V4(from)) = route_to(args.to[0]).map(|way| way.0.ip())
    {
        config.interface = from;
    }
    if unicast {
        return many::send(args, config, flow, interrupted);
    }
    // What can't be read is said before anybody is asked for anything.
    let files = files_of(args)?;
    config.flow = flow;
    let mut engine = match Engine::new(config, None) {
        Ok(engine) => engine,
        Err(error) => {
            if let Some(path) = door::instead(&error, None) {
                return door::send(args, &path, wish, files);
            }
            say(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let source = match files {
        Some(files) => files,
        None => source(args)?,
    };
    interrupted.wakes(engine.waker());
    let hosts: Vec<HostId> = args.to.iter().map(|to| engine.add_peer(*to)).collect();
    let failed = |error| miette!("the socket does not work any more: {error}");
    let spread = match args.spread {
        Some(spread) => spread.spread(),
        None if hosts.len() == 1 => Spread::Unicast,
        None => engine.probe(&hosts).map_err(failed)?.0,
    };
    let session = match engine.open(source, &hosts, spread, flow) {
        Ok(session) => session,
        Err(error) => return Err(miette!("{error}")),
    };
    run(args, &mut engine, session, spread, interrupted)
}

/// What this host is in its fabric.
fn take_place(args: &SendArgs, place: &mut FabricPlace) -> miette::Result<()> {
    let mut abroad = false;
    for to in &args.to {
        let host = fabric::find(place, *to)?;
        abroad |= place.layout.place(host).rack != place.layout.place(place.me).rack;
    }
    if args.spread != Some(SpreadArg::Labels) {
        return Ok(());
    }
    fabric::check(&place.layout)?;
    place.tor = true;
    match args.controller {
        Some(address) => place.controller = Some(fabric::find(place, address)?),
        None if args.timeout == Span::ZERO => {
            return Err(miette!("--timeout 0: every agent would be dead"));
        }
        None => {
            place.control = Some(args.timeout);
            // In its own rack this host holds the labels, whoever else does.
            place.heartbeat = (!abroad).then_some(Span(args.timeout.0 / 5 + 1));
        }
    }
    Ok(())
}

/// What is to be sent, if it is files.
fn files_of(args: &SendArgs) -> miette::Result<Option<Box<dyn Source>>> {
    match args.files[0].as_os_str() == "-" {
        true => Ok(None),
        false => source(args).map(Some),
    }
}

fn source(args: &SendArgs) -> miette::Result<Box<dyn Source>> {
    let wrong = |error: SourceError| miette!("{error}");
    if args.files[0].as_os_str() == "-" {
        let input: Box<dyn Read + Send> = Box::new(std::io::stdin());
        let stream = rackweave_linux::random();
        let limit = args.spool_limit.map(|limit| limit.0);
        let name = args.name.as_str();
        if rackweave_cast::format::check_path(name.as_bytes()).is_err() {
            return Err(miette!("--name {name:?} is not a relative path without `..`"));
        }
        let pipe = Pipe::new(name, input, &args.spool, stream, 1 << 18, limit).map_err(wrong)?;
        return Ok(Box::new(pipe));
    }
    let files = Files::new(&args.files).map_err(wrong)?;
    for path in files.skipped() {
        say(&format!("note: {} is a link or a device and is not sent\n", path.display()));
    }
    Ok(Box::new(files))
}

/// What decides on packets.
pub(super) struct FlowArgs {
    pub(super) mtu: Option<u32>,
    pub(super) rate: Option<Rate>,
    pub(super) fec: u8,
}

/// "off", or packets of a block.
fn fec_block(text: &str) -> Result<u8, String> {
    match text.parse() {
        _ if text == "off" => Ok(0),
        Ok(block @ 2..=MAX_CELLS) => Ok(block),
        _ => Err(format!("\"off\", or from 2 to {MAX_CELLS} packets")),
    }
}

impl FlowArgs {
    /// Settings for the ways to these receivers.
    pub(super) fn flow(
        &self,
        to: &[SocketAddr],
        keyed: bool,
        words: u8,
    ) -> Result<FlowConfig, String> {
        let mut mtu = self.mtu.unwrap_or(u32::MAX);
        for to in to {
            let way = route_to(*to)
                .map_err(|error| format!("{to}: this host knows no way there: {error}"))?;
            if self.mtu.is_none() {
                mtu = mtu.min(way.1);
            }
        }
        // One receiver alone gets no parity.
        let fec_block = if to.len() > 1 { self.fec } else { 0 };
        let header = header_bytes(keyed, words, false);
        let longest = header_bytes(keyed, words, fec_block > 0);
        let payload = (mtu.max(256) - IP_UDP - longest).min(MAX_PAYLOAD);
        Ok(FlowConfig {
            payload: payload as u16,
            overhead: (IP_UDP + header + 38) as u16,
            max_rate: self.rate,
            fec_block,
            ..FlowConfig::default()
        })
    }
}

/// Bytes of a data packet's header with labels of so many words; of one with parity, if that is wanted.
fn header_bytes(keyed: bool, words: u8, parity: bool) -> u32 {
    let of = Parity { index: 0, data: 0, parity: 0, last: 0 };
    let data = Data {
        labelled: Labelled::Host,
        label: Label(0),
        session: Session(0),
        offset: 0,
        len: 0,
        repair: false,
        end: false,
        parity: parity.then_some(of),
    };
    // A rack label of 64 ports, at least.
    orca::header_bytes(&Header::Data(data), words.max(2), keyed)
}

fn run(
    args: &SendArgs,
    engine: &mut Engine,
    mut session: Session,
    spread: Spread,
    interrupted: &Interrupted,
) -> miette::Result<u8> {
    let keyed = args.common.key.is_some();
    let shown = !args.common.quiet && !args.common.json && std::io::stderr().is_terminal();
    let mut show = Show::new(shown, args);
    let began = engine.clock().now();
    let mut finished = Vec::new();
    let mut stopped = false;
    let (view, error) = loop {
        let until = match engine.turn() {
            Ok(until) => until,
            Err(error) => {
                say(&format!("error: the socket does not work any more: {error}\n"));
                return Ok(exit::FAILED);
            }
        };
        let mut end = None;
        while let Some(event) = engine.poll_event() {
            match event {
                EngineEvent::Sent { view, error, .. } => end = Some((view, error)),
                EngineEvent::Renewed { session: next, view, .. } => {
                    session = next;
                    finished.extend(view.receivers.into_iter().filter(is_complete));
                }
                _ => {}
            }
        }
        if let Some(end) = end {
            break end;
        }
        if interrupted.is_set() && !stopped {
            stopped = true;
            engine.abort(session);
            continue;
        }
        let look = show.draw(engine, session);
        let until = [until, look].into_iter().flatten().min();
        engine.wait(until).map_err(|error| miette!("cannot wait: {error}"))?;
    };
    let seconds = engine.clock().now().since(began).as_secs_f64();
    // Farewells leave.
    let _ = engine.turn();
    show.end();
    let mut view = view;
    for done in finished {
        view.receivers.retain(|it| it.host != done.host);
        view.receivers.push(done);
    }
    view.receivers.sort_by_key(|it| it.host);
    let outcome = Outcome { view, seconds, spread, link_bytes: engine.stats().sent_bytes };
    if args.common.json {
        print(&format!("{:#}\n", outcome.json()))?;
    } else if !args.common.quiet {
        print(&outcome.text())?;
    }
    if let Some(error) = error {
        say(&format!("error: {error}\n"));
        return Ok(exit::FAILED);
    }
    if stopped {
        say(interruption(args, &outcome.view));
        return Ok(exit::INTERRUPTED);
    }
    let mut code = exit::DONE;
    for receiver in &outcome.view.receivers {
        let ReceiverStatus::Lost(reason) = receiver.standing else {
            code = if is_complete(receiver) { code } else { exit::FAILED };
            continue;
        };
        code = exit::FAILED;
        let never = receiver.have == 0 && receiver.from == 0;
        let text = match reason {
            Reason::Silent if never => {
                diagnose::silent(receiver.address, keyed, engine.stats().key_mismatch)
            }
            _ => format!("{}: {}", receiver.address, why(reason)),
        };
        say(&format!("error: {text}\n"));
    }
    Ok(code)
}

/// What an interrupted transfer leaves.
fn interruption(args: &SendArgs, view: &SendView) -> &'static str {
    match args.files[0].as_os_str() == "-" {
        _ if view.receivers.iter().all(is_complete) => "interrupted: all have everything\n",
        true => "interrupted: standard input can't be sent again from the middle\n",
        false => {
            "interrupted: what receivers have stays there, and the same `cast send` goes on with it\n"
        }
    }
}

pub(super) fn is_complete(receiver: &ReceiverProgress) -> bool {
    receiver.standing == ReceiverStatus::Completed
}

/// What it means for a sender.
const fn why(reason: Reason) -> &'static str {
    match reason {
        Reason::Left => "the receiver was stopped; what it has stays there for the next time",
        Reason::Refused => {
            "the receiver can't take the files: its disk is full, or they exist there (see its messages)"
        }
        Reason::Busy => "the receiver takes another stream",
        Reason::Unknown => "the receiver was started anew and does not come back",
        Reason::Silent => "nothing was heard of the receiver for too long",
        Reason::Damaged => "what arrived there was not what was sent",
        Reason::TooLate => "the bytes that it lacks are no longer to be had",
        Reason::NoLabel => "the fabric's labels can't name it",
    }
}

pub(super) struct Outcome {
    pub(super) view: SendView,
    pub(super) seconds: f64,
    pub(super) spread: Spread,
    pub(super) link_bytes: u64,
}

const fn name_of(spread: Spread) -> &'static str {
    match spread {
        Spread::Labels => "labels",
        Spread::Relay => "relay",
        Spread::Multicast => "multicast",
        Spread::Unicast => "unicast",
    }
}

pub(super) fn state(receiver: &ReceiverProgress) -> String {
    match receiver.standing {
        ReceiverStatus::Invited => "invited".into(),
        ReceiverStatus::Attached => "receiving".into(),
        ReceiverStatus::Detached => match receiver.slow {
            Some(SlowReason::Silent) => "alone (it was silent)".into(),
            Some(SlowReason::Window) => "alone (its disk or reader is slow)".into(),
            Some(SlowReason::Rate) => "alone (its link or host is slow)".into(),
            None => "alone (it came late)".into(),
        },
        ReceiverStatus::Completed => "complete".into(),
        ReceiverStatus::Lost(reason) => match reason {
            Reason::Left => "left",
            Reason::Refused => "refused",
            Reason::Busy => "busy",
            Reason::Unknown => "forgotten",
            Reason::Silent => "silent",
            Reason::Damaged => "damaged",
            Reason::TooLate => "too late",
            Reason::NoLabel => "no label",
        }
        .into(),
    }
}

impl Outcome {
    pub(super) fn json(&self) -> serde_json::Value {
        let receivers = self.view.receivers.iter().map(|receiver| {
            let bytes = receiver.have.saturating_sub(receiver.from);
            let seconds = receiver.seconds.unwrap_or(self.seconds);
            json!({
                "host": receiver.address.to_string(), "state": state(receiver), "bytes": bytes,
                "resumed_at": receiver.from, "wall_s": seconds,
                "bits_per_second": (bytes as f64 * 8.0 / seconds.max(1e-9)) as u64,
                "repair_bytes": receiver.repairs,
            })
        });
        let summary = &self.view.summary;
        json!({
            "wall_s": self.seconds, "spread": name_of(self.spread), "bytes": self.view.content,
            "link_bytes": self.link_bytes, "copies": self.view.copies,
            "repaired_bytes": summary.repaired_all + summary.repaired_one,
            "parity_bytes": summary.parity, "alone_bytes": summary.catch_up, "receivers": receivers.collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let width = self.view.receivers.iter().map(|it| it.address.to_string().len()).max();
        for receiver in &self.view.receivers {
            let bytes = receiver.have.saturating_sub(receiver.from);
            let seconds = receiver.seconds.unwrap_or(self.seconds);
            let speed = rate(bytes as f64 * 8.0 / seconds.max(1e-6));
            let address = receiver.address.to_string();
            let width = width.unwrap_or(0);
            text += &format!(
                "{address:width$}  {:8}  {} in {seconds:.2} s, {speed}, {} again",
                state(receiver),
                size(bytes),
                size(receiver.repairs),
            );
            if receiver.from > 0 {
                text += &format!(", resumed at {}", size(receiver.from));
            }
            text += "\n";
        }
        let content = self.view.content.max(1);
        text += &format!(
            "{} by {} in {:.2} s; the sender's link carried {} ({:.2} x the files)\n",
            size(self.view.content),
            name_of(self.spread),
            self.seconds,
            size(self.link_bytes),
            self.link_bytes as f64 / content as f64,
        );
        text
    }
}

/// A bar for each receiver, on a terminal only.
struct Show {
    bars: Vec<ProgressBar>,
    all: Option<MultiProgress>,
    next: Time,
}

/// Most bars.
const BARS: usize = 32;

impl Show {
    fn new(wanted: bool, args: &SendArgs) -> Self {
        if !wanted {
            return Self { bars: Vec::new(), all: None, next: Time::ZERO };
        }
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let bars = args.to.iter().take(BARS).map(|to| {
            let bar = all.add(ProgressBar::new(1));
            let style = "{prefix:22} {bar:20} {percent:>3} %  {wide_msg}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            bar.set_prefix(to.to_string());
            bar
        });
        Self { bars: bars.collect(), all: Some(all), next: Time::ZERO }
    }

    /// Draws now and then; when it wants to again.
    fn draw(&mut self, engine: &Engine, session: Session) -> Option<Time> {
        self.all.as_ref()?;
        let now = engine.clock().now();
        if now >= self.next {
            self.next = now + Span::from_ms(200);
            let view = engine.view(session)?;
            for (bar, receiver) in self.bars.iter().zip(&view.receivers) {
                bar.set_length(view.length.0.max(1));
                bar.set_position(receiver.have);
                let speed = rate(receiver.bits_per_second as f64);
                let again = size(receiver.repairs);
                bar.set_message(format!("{speed}, {again} again, {}", state(receiver)));
            }
        }
        Some(self.next)
    }

    fn end(&self) {
        if let Some(all) = &self.all {
            // A terminal that is gone needs no cleaning.
            let _ = all.clear();
        }
    }
}

fn send_tcp(args: &SendArgs) -> miette::Result<u8> {
    if args.files[0].as_os_str() == "-" || args.common.key.is_some() {
        return Err(miette!(
            "--method tcp and chain, which are here to compare, take files only, and no key"
        ));
    }
    #[expect(clippy::disallowed_methods, reason = "a transfer over real sockets is timed")]
    let began = Instant::now();
    let files = Files::new(&args.files).map_err(|error| miette!("{error}"))?;
    let bytes = files.content();
    let ways: Vec<Vec<SocketAddr>> = match args.method {
        MethodArg::Chain => vec![args.to.clone()],
        _ => args.to.iter().map(|to| vec![*to]).collect(),
    };
    drop(files);
    let threads: Vec<_> = ways
        .into_iter()
        .map(|to| {
            let files = args.files.clone();
            std::thread::spawn(move || {
                let failed = |error: String| -> Vec<(SocketAddr, Result<_, String>)> {
                    to.iter().map(|to| (*to, Err(error.clone()))).collect()
                };
                match Files::new(&files) {
                    Err(error) => failed(error.to_string()),
                    Ok(mut files) => baseline::send(&mut files, &to)
                        .unwrap_or_else(|error| failed(error.to_string())),
                }
            })
        })
        .collect();
    let mut results = Vec::new();
    for thread in threads {
        results.extend(thread.join().map_err(|_| miette!("a thread has failed"))?);
    }
    let seconds = began.elapsed().as_secs_f64();
    let mut code = exit::DONE;
    let (mut text, mut receivers) = (String::new(), Vec::new());
    for (address, result) in &results {
        let (state, wall, error) = match result {
            Ok(wall) => ("complete", wall.as_secs_f64(), None),
            Err(error) => {
                code = exit::FAILED;
                say(&format!("error: {address}: {error}\n"));
                ("lost", seconds, Some(error))
            }
        };
        let speed = bytes as f64 * 8.0 / wall.max(1e-6);
        text += &format!("{address}  {state}  {} in {wall:.2} s, {}\n", size(bytes), rate(speed));
        receivers.push(json!({
            "host": address.to_string(), "state": state, "wall_s": wall, "bytes": bytes,
            "bits_per_second": speed as u64, "error": error,
        }));
    }
    if args.common.json {
        let spread = if args.method == MethodArg::Chain { "chain" } else { "tcp" };
        let document =
            json!({ "wall_s": seconds, "spread": spread, "bytes": bytes, "receivers": receivers });
        print(&format!("{document:#}\n"))?;
    } else if !args.common.quiet {
        print(&text)?;
    }
    Ok(code)
}
