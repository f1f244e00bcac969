//! A host of a run with files to many: `rackweave_cast`'s engine, or its streams over the kernel's TCP, between a
//! source that is made up and a sink that checks every byte.

mod content;
mod orca;
mod streams;

use std::net::SocketAddr;
use std::sync::mpsc::Receiver;

use rackweave_core::{HostId, Span, Time};
use rackweave_group::app::{Report, SenderConfig};
use rackweave_linux::Clock;
use rackweave_linux::netns::HOST_INTERFACE;

use self::content::Content;
use super::{POLL_EVERY, REPORT_EVERY, next_command, process_cpu_s, send, writer};
use crate::cast::{CastConfig, Scheme};
use crate::scenario::PointSpec;
use crate::testbed::protocol::{Bind, CastEnd, Command, HostEnd, Records, Setup, WorkerMessage};

/// What counts on Ethernet, but not in an interface's counters: checksum, preamble, and the gap.
const BEYOND_FRAME: u64 = 24;
/// Receivers whose sender has all acknowledgements may still be handing bytes on.
const LAST_BYTES: Span = Span::from_secs(2);

/// What a host does here.
trait Member {
    /// All hosts are there.
    fn greet(&mut self) -> Result<(), String>;
    /// Does what is to be done; `now`: since load began, `None` before.
    fn turn(&mut self, now: Option<Time>) -> Result<(), String>;
    /// Waits until something is to be done, or for so long.
    fn wait(&mut self, most: Span) -> Result<(), String>;
    /// Nothing more will happen, as far as this host knows.
    fn is_idle(&self) -> bool;
    /// Bytes are on their way to where they are checked.
    fn is_receiving(&self) -> bool {
        false
    }
    /// Datagrams that it has sent and received.
    fn packets(&self) -> u64;
    /// What its application reports.
    fn report(&self) -> Report;
}

/// A time line that begins with the load.
#[derive(Clone, Copy, Debug)]
struct Line {
    clock: Clock,
    start: Span,
}

impl Line {
    /// `None`: before load begins.
    fn now(self) -> Option<Time> {
        self.clock.now().0.checked_sub(self.start.0).map(Time)
    }

    /// The time since load began; zero before.
    fn since(self) -> Time {
        self.now().unwrap_or(Time::ZERO)
    }
}

/// What a host has to know.
struct Place<'a> {
    this: HostId,
    point: &'a PointSpec,
    cast: &'a CastConfig,
    line: Line,
    at: SocketAddr,
    content: Content,
}

impl Place<'_> {
    /// The application that sends. What carries a file takes all of it at once, and copies it at its own cost.
    fn sender_app(&self, sockets: usize) -> SenderConfig {
        SenderConfig { buffer: u64::MAX, ..self.cast.sender_app(sockets) }
    }
}

pub(super) fn run(
    this: HostId,
    setup: &Setup,
    point: &PointSpec,
    bind: &Bind,
    commands: &Receiver<Command>,
) -> Result<(), String> {
    let (Some(cast), false) = (point.cast.as_deref(), setup.overlay) else {
        return Err("it has no files for many, or no network of its own".into());
    };
    let line = Line { clock: Clock::with_origin(bind.origin_ns), start: Span(bind.start_ps) };
    let at = match &cast.scheme {
        Scheme::Orca(_) => orca::address(this),
        _ => super::address(this, 0),
    };
    let at = at.ok_or_else(|| "it has no address".to_owned())?;
    let content = Content::new(point.config.seed, cast);
    let place = Place { this, point, cast, line, at, content };
    let is_sender = cast.senders.contains(&this);
    let mut member: Box<dyn Member> = match &cast.scheme {
        _ if !is_sender && !cast.receivers.contains(&this) => Box::new(Nobody),
        Scheme::Orca(scheme) if is_sender => Box::new(orca::Sender::new(&place, scheme)?),
        Scheme::Orca(scheme) => Box::new(orca::Receiver::new(&place, scheme)?),
        Scheme::Streams { chunk, .. } if is_sender => {
            Box::new(streams::Sender::new(&place, chunk.is_some())?)
        }
        Scheme::Streams { .. } => Box::new(streams::Receiver::new(&place)?),
        Scheme::Unicast { .. } => return Err("the testbed has no UDP copies".into()),
    };
    send(&WorkerMessage::Bound(vec![Some(at)]));
    let before = link_counters();
    serve(&mut *member, line, commands)?;
    let after = link_counters();
    let link_bytes = after.0 - before.0 + BEYOND_FRAME * (after.1 - before.1);
    send(&WorkerMessage::HostEnd(Box::new(HostEnd {
        cpu_s: process_cpu_s(),
        packets: member.packets(),
        cast: Some(CastEnd { report: member.report(), link_bytes }),
        ..HostEnd::default()
    })));
    Ok(())
}

/// Serves a host until the command to stop, and until what is under way is done.
fn serve(member: &mut dyn Member, line: Line, commands: &Receiver<Command>) -> Result<(), String> {
    let (lines, written) = writer();
    let mut reported: Option<(Time, bool)> = None;
    let mut stop_at = None;
    loop {
        match next_command(commands) {
            Some(Command::Stop) => stop_at = Some(line.clock.now() + LAST_BYTES),
            Some(Command::Greet) => member.greet()?,
            Some(Command::Bind(_)) | None => {}
        }
        let now = line.now();
        member.turn(now)?;
        let over = |at| line.clock.now() >= at || !member.is_receiving();
        if stop_at.is_some_and(over) {
            break;
        }
        let idle = member.is_idle();
        if let Some(now) = now
            && reported.is_none_or(|(at, was)| was != idle || now >= at + REPORT_EVERY)
        {
            reported = Some((now, idle));
            let records = Records { until: now.0, idle, ..Records::default() };
            // The writer ends only with the process.
            let _ = lines.send(WorkerMessage::Records(records));
        }
        member.wait(POLL_EVERY)?;
    }
    drop(lines);
    written.join().map_err(|_| "it could not write".to_owned())
}

/// Bytes and packets that have left by this host's interface.
fn link_counters() -> (u64, u64) {
    // Of this thread's network: the process began in another one.
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let line = table.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == HOST_INTERFACE).then_some(numbers)
    });
    // Eight columns of what came in, then bytes and packets that went out.
    let column = |nth| {
        let word = line?.split_whitespace().nth(nth)?;
        word.parse().ok()
    };
    (column(8).unwrap_or(0), column(9).unwrap_or(0))
}

/// A host that takes no part in the cast.
struct Nobody;

impl Member for Nobody {
    fn greet(&mut self) -> Result<(), String> {
        Ok(())
    }
    fn turn(&mut self, _: Option<Time>) -> Result<(), String> {
        Ok(())
    }
    fn wait(&mut self, most: Span) -> Result<(), String> {
        pause(most);
        Ok(())
    }
    fn is_idle(&self) -> bool {
        true
    }
    fn packets(&self) -> u64 {
        0
    }
    fn report(&self) -> Report {
        Report::default()
    }
}

#[expect(clippy::disallowed_methods, reason = "a process without a socket of its own to wait for")]
fn pause(span: Span) {
    std::thread::sleep(std::time::Duration::from_nanos(span.0 / 1000));
}
