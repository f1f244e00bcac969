//! One host: it starts the messages that its generators say, answers requests, and tells what became of all.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::io;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, MessageId, Span, Time};
use rackweave_linux::{AnyEndpoint, Clock, Event, SendError};
use rackweave_workload::{Arrival, Exchange, Generator, Pattern as Messages};

use super::payload::Pattern;
use super::records::{Ledger, Mine};
use crate::scenario::PointSpec;
use crate::testbed::doors::Doors;
use crate::testbed::protocol::{HostEnd, Reason, Trip};

/// From the failure of a message of a closed loop to the start of the next, at least: as in the simulator.
const AFTER_FAILURE: Span = Span::from_us(10);
/// Messages started in one go, before the sockets get their turn.
const STARTS: usize = 64;
/// Answers that wait for room; a peer that has more requests unanswered has to wait for this one's.
const MAX_WAITING: usize = 1 << 16;

/// A stream of messages at this host.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) door: u8,
    pub(super) exchange: Exchange,
    generator: Generator,
    next: Option<Arrival>,
}

impl Stream {
    /// With its first message. Of a host that lost its state at `crashed`, messages up to then have been told of.
    pub(super) fn new(
        door: u8,
        (exchange, pattern): (Exchange, &Messages),
        mut generator: Generator,
        host: HostId,
        life: Option<Life>,
    ) -> Self {
        let is_loop = matches!(pattern, Messages::ClosedLoop { .. });
        let mut next = generator.next(host);
        if let Some(life) = life
            && !is_loop
        {
            while next.is_some_and(|arrival| arrival.at <= life.crashed) {
                next = generator.next(host);
            }
        }
        Self { door, exchange, generator, next }
    }
}

/// A host's life after a crash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// When the one before ended, and when this one began.
    pub(super) crashed: Time,
    pub(super) began: Time,
}

/// A message of a closed loop that starts after its think time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Later {
    at: Time,
    order: u64,
    stream: u16,
    arrival: Arrival,
}

impl Ord for Later {
    /// Earliest first in a max-heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
impl PartialOrd for Later {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An answer that found no room.
#[derive(Debug)]
struct Answer {
    door: u8,
    peer: HostId,
    request: MessageId,
    bytes: Bytes,
}

/// A host under load.
pub(super) struct Host {
    pub(super) this: HostId,
    pub(super) doors: Vec<AnyEndpoint>,
    exchanges: Vec<Exchange>,
    streams: Vec<Stream>,
    later: BinaryHeap<Later>,
    answers: VecDeque<Answer>,
    pub(super) ledger: Ledger,
    clock: Clock,
    /// When load begins, by the clock.
    start: Span,
    life: Option<Life>,
    pattern: Pattern,
    verify: bool,
    verified: u64,
    refused: u64,
    order: u64,
}

impl Host {
    pub(super) fn new(
        this: HostId,
        (endpoints, doors): (Vec<AnyEndpoint>, &Doors),
        streams: Vec<Stream>,
        (clock, start, life): (Clock, Span, Option<Life>),
        point: &PointSpec,
    ) -> Self {
        Self {
            this,
            doors: endpoints,
            exchanges: doors.doors.iter().map(|door| door.exchange).collect(),
            streams,
            later: BinaryHeap::new(),
            answers: VecDeque::new(),
            ledger: Ledger::default(),
            clock,
            start,
            life,
            pattern: Pattern::new(point.config.seed, longest(point)),
            verify: point.config.measure.verify,
            verified: 0,
            refused: 0,
            order: 0,
        }
    }

    /// The time since load began; `None` before.
    pub(super) fn now(&self) -> Option<Time> {
        let now = self.clock.now();
        (now.0 >= self.start.0).then(|| Time(now.0 - self.start.0))
    }

    /// By the clock.
    const fn on_clock(&self, at: Time) -> Time {
        at.saturating_add(self.start)
    }

    /// A byte for every peer, so that addresses and incarnations are known, and connections open, when load
    /// begins: in the simulator they are from the start.
    pub(super) fn greet(&mut self, hosts: u32) {
        for peer in (0..hosts).map(HostId).filter(|peer| *peer != self.this) {
            for door in &mut self.doors {
                // Who can't be greeted gets to know us with the first message.
                let _ = door.send(peer, Kind::OneWay, self.pattern.message(self.this, peer, 1));
            }
        }
    }

    /// Starts what is due. Returns whether some of it waits for room.
    pub(super) fn start_due(&mut self) -> bool {
        let Some(now) = self.now() else { return false };
        let mut blocked = false;
        for number in 0..self.streams.len() as u16 {
            for _ in 0..STARTS {
                let stream = &self.streams[usize::from(number)];
                let Some(arrival) = stream.next.filter(|arrival| arrival.at <= now) else { break };
                if !self.start(number, arrival, now) {
                    blocked = true;
                    break;
                }
                let stream = &mut self.streams[usize::from(number)];
                stream.next = stream.generator.next(self.this);
            }
        }
        while let Some(later) = self.later.peek().copied().filter(|later| later.at <= now) {
            if !self.start(later.stream, later.arrival, now) {
                blocked = true;
                break;
            }
            self.later.pop();
        }
        self.answer_waiting();
        blocked
    }

    /// Starts a message. `false`: there is no room for it yet.
    fn start(&mut self, number: u16, arrival: Arrival, now: Time) -> bool {
        let Arrival { at, dst, bytes } = arrival;
        let stream = &self.streams[usize::from(number)];
        let door = stream.door;
        let mine = Mine { stream: number, dst };
        if let Some(life) = self.life
            && at < life.began
            && at > life.crashed
        {
            let times = (at, at);
            self.ledger.never_started(door, mine, bytes, times, Reason::HostCrashed);
            return true;
        }
        let kind = if stream.exchange == Exchange::OneWay { Kind::OneWay } else { Kind::Request };
        let payload = self.pattern.message(self.this, dst, bytes);
        // Of a loop's first messages after a crash, the time is that of the new life.
        let at = self.life.map_or(at, |life| at.max(life.began));
        match self.doors[usize::from(door)].send(dst, kind, payload) {
            Ok(id) => {
                self.ledger.lagged(now.since(at));
                self.ledger.started(door, id, mine, bytes, at);
            }
            Err(SendError::Full { .. }) => return false,
            Err(_) => {
                self.refused += 1;
                self.ledger.never_started(door, mine, bytes, (at, now), Reason::Cancelled);
                self.follow(number, now, true);
            }
        }
        true
    }

    /// A message of a stream has ended: in a closed loop the next one follows.
    fn follow(&mut self, number: u16, now: Time, failed: bool) {
        let stream = &mut self.streams[usize::from(number)];
        let Some(arrival) = stream.generator.completed(self.this, now) else { return };
        let earliest = if failed { AFTER_FAILURE } else { Span::ZERO };
        let at = arrival.at.max(now + earliest);
        self.order += 1;
        let arrival = Arrival { at, ..arrival };
        self.later.push(Later { at, order: self.order, stream: number, arrival });
    }

    /// Gives every socket its turn. Returns when the next one is due, by the clock.
    pub(super) fn turn(&mut self) -> io::Result<Result<Option<Time>, String>> {
        let mut next = None;
        for number in 0..self.doors.len() as u8 {
            let due = self.doors[usize::from(number)].turn()?;
            next = [next, due].into_iter().flatten().min();
            let mut any = false;
            while let Some(event) = self.doors[usize::from(number)].poll_event() {
                any = true;
                if let Err(problem) = self.on_event(number, event) {
                    return Ok(Err(problem));
                }
            }
            if any {
                // What it led to is not sent yet.
                next = Some(Time::ZERO);
            }
        }
        Ok(Ok(next))
    }

    /// When something is to be done next, whatever comes: by the clock.
    pub(super) fn next_start(&self) -> Option<Time> {
        let streams = self.streams.iter().filter_map(|stream| Some(stream.next?.at));
        let later = self.later.peek().map(|later| later.at);
        streams.chain(later).min().map(|at| self.on_clock(at))
    }

    fn on_event(&mut self, door: u8, event: Event) -> Result<(), String> {
        let now = self.now();
        match event {
            Event::Message { peer, id, kind, bytes } => {
                if self.verify {
                    match self.pattern.difference(peer, self.this, &bytes) {
                        Some(difference) => return Err(difference),
                        None => self.verified += u64::from(now.is_some()),
                    }
                }
                let now = now.unwrap_or(Time::ZERO);
                match kind {
                    Kind::OneWay => self.ledger.arrived(door, peer, id, now),
                    Kind::Request => self.answer(door, peer, id, bytes.len() as u64),
                    Kind::Response => self.ended(door, MessageId(id.0 & !1), now, None),
                }
            }
            Event::Sent { id, .. } => {
                let is_one_way = !id.is_response();
                if is_one_way && let Some(stream) = self.one_way_stream(door, id) {
                    let now = now.unwrap_or(Time::ZERO);
                    self.ledger.ended(door, id, now, None);
                    self.follow(stream, now, false);
                }
            }
            Event::Failed { id, reason, .. } => {
                self.ended(door, id, now.unwrap_or(Time::ZERO), Some(reason.into()));
            }
            Event::PeerRestarted { .. }
            | Event::Opened { .. }
            | Event::Readable { .. }
            | Event::Written { .. }
            | Event::Closed { .. } => {}
        }
        Ok(())
    }

    /// The stream of a message under way, if that is not answered.
    fn one_way_stream(&self, door: u8, id: MessageId) -> Option<u16> {
        let mine = self.ledger.get(door, id)?;
        let stream = &self.streams[usize::from(mine.stream)];
        (stream.exchange == Exchange::OneWay).then_some(mine.stream)
    }

    fn ended(&mut self, door: u8, id: MessageId, now: Time, failed: Option<Reason>) {
        if let Some(mine) = self.ledger.ended(door, id, now, failed) {
            self.follow(mine.stream, now, failed.is_some());
        }
    }

    fn answer(&mut self, door: u8, peer: HostId, request: MessageId, bytes: u64) {
        let exchange = self.exchanges[usize::from(door)];
        let Some(length) = exchange.response_bytes(bytes) else { return };
        let bytes = self.pattern.message(self.this, peer, length);
        self.answers.push_back(Answer { door, peer, request, bytes });
        self.answer_waiting();
        if self.answers.len() > MAX_WAITING {
            self.answers.pop_front();
            self.refused += 1;
        }
    }

    fn answer_waiting(&mut self) {
        while let Some(Answer { door, peer, request, bytes }) = self.answers.front() {
            let socket = &mut self.doors[usize::from(*door)];
            match socket.respond(*peer, *request, bytes.clone()) {
                Err(SendError::Full { .. }) => return,
                // A request that its client has given up meanwhile.
                Ok(()) | Err(_) => drop(self.answers.pop_front()),
            }
        }
    }

    /// The first stream starts nothing more, and nothing of it is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.now().is_some()
            && self.streams[0].next.is_none()
            && self.ledger.under_way(0) == 0
            && !self.later.iter().any(|later| later.stream == 0)
    }

    /// What it says at its end.
    pub(super) fn end(&self) -> HostEnd {
        let mut end = HostEnd {
            cpu_s: super::process_cpu_s(),
            refused: self.refused,
            verified: self.verified,
            starts: self.ledger.lag().count,
            lag_p99_ps: self.ledger.lag().p99().0,
            lag_max_ps: self.ledger.lag().max.0,
            ..HostEnd::default()
        };
        for (number, door) in self.doors.iter().enumerate() {
            let stats = door.stats();
            end.packets += stats.sent + stats.received;
            let AnyEndpoint::Udp(door) = door else { continue };
            end.round_trips.extend(door.round_trips().iter().map(|trip| Trip {
                door: number as u8,
                peer: trip.peer.0,
                min_ps: trip.min.0,
                recent_ps: trip.recent.0,
                samples: trip.samples,
            }));
        }
        end
    }
}

/// The longest message or answer of a point's workloads.
pub(in crate::testbed) fn longest(point: &PointSpec) -> u64 {
    let of_stream = point.config.streams.iter().map(|stream| {
        let request = match &stream.workload.pattern {
            Messages::Trace(trace) => trace.entries().iter().map(|entry| entry.bytes).max(),
            other => other.sizes().map(rackweave_workload::SizeDist::max),
        };
        let request = request.unwrap_or(0);
        request.max(stream.workload.exchange.response_bytes(request).unwrap_or(0))
    });
    of_stream.max().unwrap_or(0)
}
