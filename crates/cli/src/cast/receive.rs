//! `rackweave cast receive`.

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use miette::miette;
use rackweave_cast::baseline;
use rackweave_cast::door::{ReceiveWish, fingerprint};
use rackweave_cast::engine::{Accept, Decision, Engine, EngineError, EngineEvent};
use rackweave_cast::sink::{FileDone, Folder, FolderConfig, PipeSink, Sink, SinkError};
use rackweave_core::{Span, Time};
use rackweave_wire::orca::{PORT, Reason};
use serde_json::json;

use super::fabric::RackArgs;
use super::{CommonArgs, Interrupted, door, group, hex, host, interrupted, rate, say, size};
use crate::{exit, print};

/// Take files that are sent.
///
/// Takes streams from this host, from the hosts named with --from, and, with --key, from all who have the
/// key. A file has `.part` behind its name until its hash is right; an interrupted transfer goes on where it stopped.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave cast receive --from 192.0.2.1 --dir /srv/images\n  \
    rackweave cast receive --key cast.key --once --out image.iso\n  \
    rackweave cast receive --from 192.0.2.1 --once --out - | tar x\n\n\
    Exit codes: 0 ended by Ctrl-C or, with --once, received; 1 failed, 2 wrong usage, 130 interrupted with --once.")]
pub(crate) struct ReceiveArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,
    #[command(flatten)]
    rack: RackArgs,
    /// Where files go.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Take one file, and write it here; `-`: to standard output (default: files go to --dir).
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    out: Option<PathBuf>,
    /// End after one stream.
    #[arg(long)]
    pub(super) once: bool,
    /// Take streams from this host; may be repeated (default: from this machine only, or from all who have the key).
    #[arg(long = "from", value_name = "HOST", value_parser = host)]
    from: Vec<Vec<IpAddr>>,
    /// Be a member of this group: `send --group` finds it, if it is let in; may be repeated (default: of none).
    #[arg(long, value_name = "NAME", value_parser = group, conflicts_with = "tcp")]
    pub(super) group: Vec<String>,
    /// Where to listen: address and UDP port, 0 for any.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:6722")]
    listen: SocketAddr,
    /// Replace files that exist.
    #[arg(long)]
    overwrite: bool,
    /// Have files on the disk before they get their names.
    #[arg(long)]
    sync: bool,
    /// Take streams over the kernel's TCP at the same port instead, to compare (see `send --method`).
    #[arg(long, conflicts_with = "key")]
    tcp: bool,
    /// Take what the agent of this host is offered, at its socket (default, if the port is taken: the agent's default).
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tcp", "group"])]
    socket: Option<PathBuf>,
}

/// Where streams go.
#[derive(Clone)]
pub(super) enum Target {
    Folder(FolderConfig),
    Stdout,
}

impl Target {
    pub(super) fn sink(&self, stream: u128) -> Result<Box<dyn Sink>, SinkError> {
        Ok(match self {
            Self::Folder(config) => Box::new(Folder::new(config.clone(), stream)?),
            Self::Stdout => Box::new(PipeSink::new(std::io::stdout())),
        })
    }
}

impl ReceiveArgs {
    fn target(&self) -> miette::Result<Target> {
        let mut config = FolderConfig {
            folder: self.dir.clone(),
            only: None,
            overwrite: self.overwrite,
            sync: self.sync,
            limit: None,
        };
        if let Some(out) = &self.out {
            if out.as_os_str() == "-" {
                return Ok(Target::Stdout);
            }
            if out.is_dir() || out.file_name().is_none() {
                return Err(miette!("{} is no file: --dir takes folders", out.display()));
            }
            let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
            config.folder = folder.map_or_else(|| PathBuf::from("."), PathBuf::from);
            config.only = Some(out.clone());
        }
        Ok(Target::Folder(config))
    }
}

pub(crate) fn receive(args: &ReceiveArgs) -> miette::Result<u8> {
    let target = args.target()?;
    let admitted: Vec<IpAddr> = args.from.iter().flatten().copied().collect();
    if args.tcp {
        return receive_tcp(args, &target, &admitted);
    }
    let mut config = args.common.engine(args.listen, admitted.clone())?;
    let wish = ReceiveWish {
        records: true,
        from: admitted.clone(),
        key: config.secret.as_deref().map(fingerprint),
    };
    if let Some(path) = &args.socket {
        return door::receive(args, &target, path, &wish);
    }
    args.rack.apply(&mut config)?;
    config.in_group = args.listen.is_ipv4() && !args.listen.ip().is_loopback();
    config.group_port = match args.listen.port() {
        0 => config.group_port,
        port => port,
    };
    if !args.group.is_empty() {
        // Questions come to the group's own port.
        (config.in_group, config.group_port) = (args.listen.is_ipv4(), PORT);
        config.groups.clone_from(&args.group);
    }
    if args.once {
        config.max_sessions = 1;
    }
    if config.secret.is_none()
        && config.fabric.is_none()
        && admitted.is_empty()
        && !args.listen.ip().is_loopback()
    {
        say("note: only this host is served; --from HOST or --key FILE lets others in\n");
    }
    let making = target.clone();
    let accept = move || -> Accept {
        let making = making.clone();
        Box::new(move |offer| {
            let (making, stream) = (making.clone(), offer.stream);
            Decision::Take(Box::new(move || making.sink(stream)))
        })
    };
    let engine = match Engine::new(config.clone(), Some(accept())) {
        // Without multicast there is unicast.
        Err(error @ EngineError::Group { .. }) => {
            say(&format!(
                "note: {error}; what is sent by multicast, and questions for groups, do not reach this host\n"
            ));
            config.in_group = false;
            Engine::new(config, Some(accept()))
        }
        other => other,
    };
    let mut engine = match engine {
        Ok(engine) => engine,
        Err(error) => {
            if let Some(path) = door::instead(&error, None) {
                return door::receive(args, &target, &path, &wish);
            }
            say(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let quiet = args.common.quiet || args.common.json;
    if !quiet {
        say(&format!("receiving at {}\n", engine.local_addr()));
    }
    let mut show = Show::new(!quiet && std::io::stderr().is_terminal());
    run(args, &mut engine, &mut show)
}

fn run(args: &ReceiveArgs, engine: &mut Engine, show: &mut Show) -> miette::Result<u8> {
    let interrupted = interrupted(engine.waker())?;
    let mut began = Time::ZERO;
    let mut ended = None;
    loop {
        let until = match engine.turn() {
            Ok(until) => until,
            Err(error) => {
                say(&format!("error: the socket does not work any more: {error}\n"));
                return Ok(exit::FAILED);
            }
        };
        while let Some(event) = engine.poll_event() {
            match event {
                EngineEvent::Receiving { .. } => began = engine.clock().now(),
                EngineEvent::Received { from, bytes, files, .. } => {
                    show.clear();
                    let seconds = engine.clock().now().since(began).as_secs_f64();
                    report(args, from, bytes, &files, seconds, None)?;
                    ended = Some(exit::DONE);
                }
                EngineEvent::ReceiveFailed { from, reason, error, .. } => {
                    show.clear();
                    let why = error.map_or_else(|| why(reason).to_owned(), |it| it.to_string());
                    let seconds = engine.clock().now().since(began).as_secs_f64();
                    report(args, from, 0, &[], seconds, Some(&why))?;
                    // Who was told to begin anew with the same stream is not done.
                    ended = Some(exit::FAILED);
                }
                _ => {}
            }
        }
        if args.once
            && let Some(code) = ended
        {
            linger(engine, &interrupted);
            return Ok(code);
        }
        if interrupted.is_set() {
            if !engine.incoming().is_empty() {
                show.clear();
                say("interrupted: what is there stays, and the same `cast send` goes on with it\n");
            }
            engine.leave_all();
            let _ = engine.turn();
            engine.settle(SETTLE);
            return Ok(if args.once { exit::INTERRUPTED } else { exit::DONE });
        }
        let look = show.draw(engine);
        let until = [until, look].into_iter().flatten().min();
        engine.wait(until).map_err(|error| miette!("cannot wait: {error}"))?;
    }
}

/// A sender's last word is waited for so long: without it, it asks again.
const LINGER: Span = Span::from_secs(1);

/// What is with a disk may take so long to be there.
const SETTLE: Span = Span::from_secs(10);

/// The files are there and the user knows: the sender should, too.
fn linger(engine: &mut Engine, interrupted: &Interrupted) {
    let limit = engine.clock().now() + LINGER;
    engine.accept_no_more();
    // A socket that fails now has nothing more to say.
    while let Ok(until) = engine.turn() {
        while engine.poll_event().is_some() {}
        let now = engine.clock().now();
        if !engine.is_lingering() || now >= limit || interrupted.is_set() {
            break;
        }
        if engine.wait(Some(until.unwrap_or(limit).min(limit))).is_err() {
            break;
        }
    }
    engine.settle(SETTLE);
}

/// What it means for a receiver.
fn why(reason: Reason) -> &'static str {
    match reason {
        Reason::Silent => {
            "nothing was heard of the sender for too long; what is there stays, and the same `cast send` goes on with it"
        }
        Reason::Left => "the sender has ended it; what is there stays for the next time",
        Reason::Damaged => "what arrived is not what was sent",
        Reason::TooLate => "the sender no longer has the bytes that are missing here",
        Reason::Refused => "the sender could not read its files",
        _ => "the sender does not know this receiver any more",
    }
}

/// A name as the sender has made it up, without what terminals obey.
fn shown(path: &Path) -> String {
    let mut shown = String::new();
    for letter in path.to_string_lossy().chars() {
        match letter.is_control() {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

pub(super) fn report(
    args: &ReceiveArgs,
    from: SocketAddr,
    bytes: u64,
    files: &[FileDone],
    seconds: f64,
    error: Option<&str>,
) -> miette::Result<u8> {
    let to_stdout = args.out.as_deref().is_some_and(|out| out.as_os_str() == "-");
    if args.common.json {
        let files: Vec<_> = files
            .iter()
            .map(
                |file| json!({ "path": file.path.to_string_lossy(), "bytes": file.bytes, "blake3": hex(&file.hash) }),
            )
            .collect();
        let document = json!({
            "from": from.to_string(), "bytes": bytes, "wall_s": seconds,
            "state": if error.is_some() { "failed" } else { "received" },
            "error": error, "files": files,
        });
        let line = format!("{document}\n");
        if to_stdout {
            say(&line);
            return Ok(exit::DONE);
        }
        return print(&line);
    }
    if let Some(error) = error {
        say(&format!("error: {from}: {error}\n"));
        return Ok(exit::DONE);
    }
    let speed = rate(bytes as f64 * 8.0 / seconds.max(1e-6));
    let mut text = String::new();
    for file in files {
        let hash = hex(&file.hash[..8]);
        text += &format!("{}  {}  blake3 {hash}...\n", shown(&file.path), size(file.bytes));
    }
    text += &format!("received {} from {from} in {seconds:.2} s, {speed}\n", size(bytes));
    if to_stdout {
        say(&text);
        return Ok(exit::DONE);
    }
    print(&text)
}

/// The bar, on a terminal only.
struct Show {
    bar: Option<ProgressBar>,
    next: Time,
}

impl Show {
    fn new(wanted: bool) -> Self {
        let bar = wanted.then(|| {
            let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:20} {percent:>3} %  {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, next: Time::ZERO }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.set_draw_target(ProgressDrawTarget::hidden());
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Draws now and then; when it wants to again.
    fn draw(&mut self, engine: &Engine) -> Option<Time> {
        let bar = self.bar.as_ref()?;
        let now = engine.clock().now();
        let incoming = engine.incoming();
        let first = incoming.first()?;
        if now >= self.next {
            self.next = now + Span::from_ms(200);
            let (bytes, of) = first.content;
            bar.set_length(of.unwrap_or(bytes).max(1));
            bar.set_position(bytes);
            bar.set_message(size(bytes));
        }
        Some(self.next)
    }
}

fn receive_tcp(args: &ReceiveArgs, target: &Target, admitted: &[IpAddr]) -> miette::Result<u8> {
    let listener = match TcpListener::bind(args.listen) {
        Ok(listener) => listener,
        Err(error) => {
            say(&format!("error: cannot listen at {}: {error}\n", args.listen));
            return Ok(exit::FAILED);
        }
    };
    let admits =
        |from: SocketAddr| from.ip().is_loopback() || admitted.contains(&from.ip().to_canonical());
    loop {
        #[expect(clippy::disallowed_methods, reason = "a transfer over real sockets is timed")]
        let began = Instant::now();
        let taken = baseline::take(&listener, admits, |stream| target.sink(stream))
            .map_err(|error| miette!("cannot accept connections: {error}"))?;
        let bytes = taken.files.iter().map(|file| file.bytes).sum();
        let seconds = began.elapsed().as_secs_f64();
        report(args, taken.from, bytes, &taken.files, seconds, taken.error.as_deref())?;
        if args.once {
            return Ok(if taken.error.is_some() { exit::FAILED } else { exit::DONE });
        }
    }
}
