//! `rackweave cast receive`.

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use miette::miette;
use rackweave_cast::control::{KeyProof, ReceiveRequest};
use rackweave_cast::format::{Delete, Deletion};
use rackweave_cast::orca::{
    Accept, Decision, Engine, EngineError, EngineEvent, why_receiving_failed,
};
use rackweave_cast::sink::Caveats;
use rackweave_core::{Span, Time};
use rackweave_wire::orca::{PORT, Reason};

use super::args::ReceiveArgs;
use super::outcome::{report, report_comparison};
use super::{agent_client, compare, interrupted};
use crate::progress::PlainLines;
use crate::shell::signal::Interrupt;
use crate::shell::{exit, size, status};

pub(crate) fn receive(args: &ReceiveArgs) -> miette::Result<u8> {
    let target = args.target()?;
    let admitted: Vec<IpAddr> = args.from.iter().flatten().copied().collect();
    if args.tcp {
        return compare::receive_tcp(args, &target, &admitted);
    }
    let mut config = args.common.engine(args.listen, admitted.clone())?;
    let request = ReceiveRequest {
        records: true,
        from: admitted.clone(),
        blocks: true,
        key: config
            .secret
            .as_deref()
            .map(|secret| KeyProof::new(secret, rackweave_linux::random())),
    };
    if let Some(path) = &args.socket {
        return agent_client::receive(args, &target, path, &request);
    }
    args.rack.apply(&mut config)?;
    config.in_group = args.listen.is_ipv4() && !args.listen.ip().is_loopback();
    config.group_port = match args.listen.port() {
        0 => config.group_port,
        port => port,
    };
    if !args.group.is_empty() {
        // Membership queries are sent to the group's own port.
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
        status(
            "note: accepting streams from this machine only, of all its users; use --from HOST or --key FILE to accept others instead\n",
        );
    }
    let target_of = target.clone();
    let accept = move || -> Accept {
        let target = target_of.clone();
        Box::new(move |offer| {
            let (target, stream) = (target.clone(), offer.stream);
            Decision::Accept(Box::new(move |cancel| target.sink(stream, cancel)))
        })
    };
    let engine = match Engine::new(config.clone(), Some(accept())) {
        // Without multicast, unicast still works.
        Err(error @ EngineError::Group { .. }) => {
            status(&format!(
                "note: {error}; multicast and group queries will not reach this host\n"
            ));
            config.in_group = false;
            Engine::new(config, Some(accept()))
        }
        other => other,
    };
    let mut engine = match engine {
        Ok(engine) => engine,
        Err(error) => {
            if let Some(path) = agent_client::fallback(&error) {
                return agent_client::receive(args, &target, &path, &request);
            }
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let quiet = args.common.quiet || args.common.json;
    if !quiet {
        status(&format!("receiving at {}\n", engine.local_addr()));
    }
    let mut show = Show::new(!quiet);
    let interrupted = interrupted(engine.waker())?;
    run(args, &mut engine, &mut show, &interrupted, SUCCESSOR_TIMEOUT)
}

/// Says in what received files differ from the sender's.
fn note(from: SocketAddr, caveats: Caveats) {
    let Caveats { unkept, unowned, copied, foreign } = caveats;
    if unkept > 0 {
        status(&format!(
            "note: {from}: {unkept} files and folders have not all extended attributes that were sent: only root sets ACLs, nobody \
             sets others than user.*, and some file systems have none\n"
        ));
    }
    if unowned > 0 {
        status(&format!(
            "note: {from}: {unowned} files, folders and links have not the owner or the group that was sent: only root may give them \
             away\n"
        ));
    }
    if copied > 0 {
        status(&format!(
            "note: {from}: {copied} further names of files are copies: the system refuses hard links there\n"
        ));
    }
    if foreign > 0 {
        let keep = match foreign {
            1 => "1 file or link of another user keeps its mode and time".to_owned(),
            count => format!("{count} files and links of other users keep their modes and times"),
        };
        status(&format!("note: {from}: {keep}: without --overwrite it is not replaced\n"));
    }
}

/// Receives until a signal or, with `--once`, the end of a stream, after which it waits for `successor_timeout` if its sender vanished.
fn run(
    args: &ReceiveArgs,
    engine: &mut Engine,
    show: &mut Show,
    interrupted: &Interrupt,
    successor_timeout: Span,
) -> miette::Result<u8> {
    let mut began = Time::ZERO;
    let mut ended = None;
    let mut given_up: Option<(Time, SocketAddr)> = None;
    // Whether the sender asks to delete once this host has everything.
    let mut deletes = false;
    loop {
        let until = match engine.turn() {
            Ok(until) => until,
            Err(error) => {
                status(&format!("error: the socket failed: {error}\n"));
                return Ok(exit::FAILED);
            }
        };
        while let Some(event) = engine.poll_event() {
            match event {
                EngineEvent::Receiving { .. } => (began, given_up) = (engine.clock().now(), None),
                EngineEvent::Received { from, bytes, files, caveats, .. } => {
                    show.clear();
                    if !args.common.quiet {
                        note(from, caveats);
                    }
                    let now = engine.clock().now();
                    let seconds = now.since(began).as_secs_f64();
                    let code = report(args, from, bytes, &files, seconds, None)?;
                    match deletes {
                        true => given_up = args.once.then_some((now + successor_timeout, from)),
                        false => ended = Some(code),
                    }
                }
                EngineEvent::Compared { from, comparison, .. } => {
                    show.clear();
                    report_comparison(args, from, &comparison)?;
                    deletes = comparison.purpose.delete == Delete::Later;
                    let is_last = comparison.is_complete && !deletes;
                    match comparison.deletion {
                        _ if comparison.obstacle.is_some() => ended = Some(exit::FAILED),
                        Deletion::Refused | Deletion::NotDone(_) => ended = Some(exit::FAILED),
                        Deletion::Done(deleted) if deleted.failed > 0 => ended = Some(exit::FAILED),
                        _ if is_last || comparison.purpose.dry_run => ended = Some(exit::DONE),
                        _ => {
                            // What is lacking follows, or the manifest once more.
                            began = engine.clock().now();
                            given_up = args.once.then_some((began + successor_timeout, from));
                        }
                    }
                }
                // The invitation was an old one that was sent again, or its sender was killed at once.
                EngineEvent::ReceiveFailed { reason, error: None, bytes: 0, .. }
                    if args.once && is_silence(reason) => {}
                EngineEvent::ReceiveFailed { from, reason, error: None, .. }
                    if args.once && is_silence(reason) =>
                {
                    show.clear();
                    given_up = Some((engine.clock().now() + successor_timeout, from));
                    note_successor(args, from, successor_timeout);
                }
                EngineEvent::ReceiveFailed { from, reason, error, .. } => {
                    show.clear();
                    let why = error.map_or_else(
                        || why_receiving_failed(reason).to_owned(),
                        |it| it.to_string(),
                    );
                    let seconds = engine.clock().now().since(began).as_secs_f64();
                    report(args, from, 0, &[], seconds, Some(&why))?;
                    ended = Some(exit::FAILED);
                }
                _ => {}
            }
        }
        // A successor that is there already, for which this host hashes what it has, is waited for.
        let giving_up = given_up.filter(|_| engine.incoming().is_empty());
        if let Some((at, from)) = giving_up
            && at <= engine.clock().now()
        {
            let seconds = engine.clock().now().since(began).as_secs_f64();
            report(args, from, 0, &[], seconds, Some(why_receiving_failed(Reason::Silent)))?;
            ended = Some(exit::FAILED);
        }
        if args.once
            && let Some(code) = ended
        {
            linger(engine, interrupted);
            return Ok(code);
        }
        if interrupted.is_set() {
            if !engine.incoming().is_empty() {
                show.clear();
                status(
                    "interrupted: partial files are kept; the same `cast send` resumes from there\n",
                );
            }
            engine.leave_all();
            let _ = engine.turn();
            engine.wait_for_sinks(WRITE_TIMEOUT);
            return Ok(if args.once { exit::INTERRUPTED } else { exit::DONE });
        }
        let redraw = show.draw(engine);
        let until = [until, redraw, giving_up.map(|it| it.0)].into_iter().flatten().min();
        engine.wait(until).map_err(|error| miette!("cannot wait: {error}"))?;
    }
}

/// Says that a sender may be started again.
pub(super) fn note_successor(args: &ReceiveArgs, from: SocketAddr, wait: Span) {
    if !args.common.quiet && !args.common.json {
        status(&format!(
            "note: {from}: the sender stopped responding; waiting {} s for it to start again\n",
            wait.as_secs_f64()
        ));
    }
}

/// How long `--once` waits for the successor of a sender that stopped responding in the middle of a stream.
pub(super) const SUCCESSOR_TIMEOUT: Span = Span::from_secs(10);

/// Returns whether a session has failed because its sender was not there, or because of another session.
const fn is_silence(reason: Reason) -> bool {
    matches!(reason, Reason::Silent | Reason::Unknown | Reason::Busy)
}

/// How long to wait, after the last file, for the sender's acknowledgement: as long as a sender has patience with a receiver. Until
/// then the sender may ask again, and calls a receiver that is gone silent.
const LINGER: Span = Span::from_secs(3);

/// How long pending writes to a disk may take at the end.
const WRITE_TIMEOUT: Span = Span::from_secs(10);

/// Runs the engine until the sender has acknowledged that the files are complete.
fn linger(engine: &mut Engine, interrupted: &Interrupt) {
    let limit = engine.clock().now() + LINGER;
    engine.refuse_offers();
    // A socket error at this point is irrelevant: the files are complete.
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
    engine.wait_for_sinks(WRITE_TIMEOUT);
}

/// Progress: on a terminal a bar, elsewhere a line now and then.
struct Show {
    bar: Option<ProgressBar>,
    wanted: bool,
    /// Since a stream is received.
    lines: Option<PlainLines>,
    next: Time,
}

impl Show {
    fn new(wanted: bool) -> Self {
        let bar = (wanted && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:20} {percent:>3}%  {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, wanted, lines: None, next: Time::ZERO }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.set_draw_target(ProgressDrawTarget::hidden());
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Draws at most every 200 ms; returns when to call it again.
    fn draw(&mut self, engine: &Engine) -> Option<Time> {
        if !self.wanted {
            return None;
        }
        let now = engine.clock().now();
        let incoming = engine.incoming();
        let Some(first) = incoming.first() else {
            self.lines = None;
            return None;
        };
        let (bytes, of) = first.content;
        let Some(bar) = &self.bar else {
            let lines = self.lines.get_or_insert_with(|| PlainLines::new(now));
            let fraction = bytes as f64 / of.unwrap_or(bytes).max(1) as f64;
            return Some(lines.print(now, || (fraction, format!("{} received", size(bytes)))));
        };
        if now >= self.next {
            self.next = now + Span::from_ms(200);
            bar.set_length(of.unwrap_or(bytes).max(1));
            bar.set_position(bytes);
            bar.set_message(size(bytes));
        }
        Some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use clap::Parser as _;
    use rackweave_cast::orca::EngineConfig;
    use rackweave_cast::sink::{Folder, FolderConfig, Sink};
    use rackweave_cast::source::Files;
    use rackweave_core::Rate;
    use rackweave_orca::flow::{FlowConfig, ReceiverStatus};
    use rackweave_orca::host::Spread;
    use rackweave_wire::orca::Session;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ReceiveArgs,
    }

    const LEN: usize = 20_000_000;

    fn local() -> EngineConfig {
        EngineConfig::new("127.0.0.1:0".parse().unwrap())
    }

    #[expect(clippy::disallowed_methods, reason = "threads are waited for")]
    fn pause(ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    fn open(path: &PathBuf, to: SocketAddr) -> (Engine, Session) {
        let mut engine = Engine::new(local(), None).unwrap();
        let host = engine.add_peer(to);
        let source = Box::new(Files::new(std::slice::from_ref(path)).unwrap());
        let flow = FlowConfig { max_rate: Some(Rate(200_000_000)), ..FlowConfig::default() };
        let session = engine.open(source, &[host], Spread::Unicast, flow).unwrap();
        (engine, session)
    }

    /// Drives a sender while this holds.
    fn drive(engine: &mut Engine, mut goes_on: impl FnMut(&Engine) -> bool) {
        while goes_on(engine) {
            let until = engine.turn().unwrap();
            let poll = engine.clock().now() + Span::from_ms(20);
            engine.wait(Some(until.map_or(poll, |until| until.min(poll)))).unwrap();
        }
    }

    /// A sender is killed. Its successor needs the present file to be hashed. This takes longer than a receiver waits
    /// for a sender that does not come.
    #[test]
    fn once_waits_while_it_hashes_for_the_successor_of_a_sender() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = from.path().join("big");
        let content: Vec<u8> = (0..LEN).map(|i| (i / 3) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let args = ["receive", "--once", "--quiet", "--dir", to.path().to_str().unwrap()];
        let args = Line::parse_from(args).args;
        let hashed = Arc::new(AtomicBool::new(true));
        let (gate, into) = (Arc::clone(&hashed), to.path().to_owned());
        let accept: Accept = Box::new(move |offer| {
            let (gate, stream) = (Arc::clone(&gate), offer.stream);
            let config = FolderConfig { folder: into.clone(), ..FolderConfig::default() };
            Decision::Accept(Box::new(move |_| {
                while !gate.load(Ordering::Relaxed) {
                    pause(1);
                }
                Folder::new(config, stream).map(|folder| Box::new(folder) as Box<dyn Sink>)
            }))
        });
        let mut config = local();
        config.max_sessions = 1;
        config.flow.patience = Span::from_ms(500);
        let mut engine = Engine::new(config, Some(accept)).unwrap();
        let address = engine.local_addr();
        let receiver = std::thread::spawn(move || {
            let wait = Span::from_secs(1);
            run(&args, &mut engine, &mut Show::new(false), &Interrupt::default(), wait).unwrap()
        });
        let part = to.path().join("big.part");
        let (mut first, _) = open(&path, address);
        drive(&mut first, |_| part.metadata().map_or(0, |meta| meta.len()) < 3_000_000);
        drop(first);
        hashed.store(false, Ordering::Relaxed);
        // By now the receiver has found that the sender is silent.
        pause(900);
        let (mut second, session) = open(&path, address);
        let began = second.clock().now();
        drive(&mut second, |engine| engine.clock().now().since(began) < Span::from_secs(3));
        let status = second.view(session).unwrap().receivers[0].status;
        assert_eq!(status, ReceiverStatus::Preparing);
        hashed.store(true, Ordering::Relaxed);
        drive(&mut second, |_| !receiver.is_finished());
        assert_eq!(receiver.join().unwrap(), exit::DONE);
        assert!(std::fs::read(to.path().join("big")).unwrap() == content);
    }
}
