//! A small network for tests: hosts joined by a perfect core, with faults at will.
//!
//! Each host has one link of its own rate; what it sends arrives, after a delay, at its destination
//! and waits for nothing there. [`Network`] plays the driver by the contract of [`Transport`] and
//! checks its rules: time-outs lie in the future, bytes arrive whole before a message is delivered,
//! and no message is delivered twice to the same incarnation of a host. Of streams it checks that each
//! direction is readable in order, once, up to what was written, within the window, and whole when it
//! ends.

mod schedule;
mod streams;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use rackweave_core::{
    Event, HostId, Kind, MessageId, Open, Packet, Placement, Rate, Refused, Rng, Slice, Span,
    StreamEvent, Submit, Time, Transport,
};

pub use schedule::{Fates, Schedule};

/// What happens to packets on their way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Share of packets that vanish.
    pub loss: f64,
    /// Share of packets that arrive twice.
    pub duplication: f64,
    /// Share of packets (and of second copies) that are late.
    pub reordering: f64,
    /// How late they are at most.
    pub lateness: Span,
}

/// Whether something happens to a packet.
pub type PacketFilter<H> = fn(&Packet<H>) -> bool;

#[derive(Debug)]
enum What<H> {
    Arrive(Packet<H>),
    LinkFree(usize),
    Timer(usize),
}

/// Orders by time, then by the order of scheduling.
#[derive(Debug)]
struct Scheduled<H> {
    at: Time,
    order: u64,
    what: What<H>,
}

impl<H> PartialEq for Scheduled<H> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl<H> Eq for Scheduled<H> {}
impl<H> PartialOrd for Scheduled<H> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<H> Ord for Scheduled<H> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The bytes of one arriving message: disjoint ranges, by their start.
type Coverage = BTreeMap<u32, u32>;

/// Hosts, and what joins them.
pub struct Network<T: Transport> {
    /// The machines.
    pub hosts: Vec<T>,
    /// What happens to packets from now on.
    pub faults: Faults,
    /// Packets that are lost besides.
    pub lose: Option<PacketFilter<T::Header>>,
    /// Packets that meet a queue above the ECN threshold.
    pub mark: Option<PacketFilter<T::Header>>,
    /// The events of all hosts: when, where, what.
    pub events: Vec<(Time, HostId, Event)>,
    /// Every packet sent, and when its first bit was, if [`Network::keep_packets`].
    pub packets: Vec<(Time, Packet<T::Header>)>,
    /// Whether to note packets.
    pub keep_packets: bool,
    /// Bytes of the response to a request, given its length; `None`: the test answers.
    pub respond: Option<fn(u64) -> u64>,
    /// Whether applications consume what is readable of streams at once; else the test does.
    pub consume: bool,
    /// The window of streams, if it is to be checked.
    pub stream_window: Option<u64>,
    streams: streams::Book,
    link: Rate,
    delay: Span,
    rng: Rng,
    now: Time,
    scheduled: BinaryHeap<Reverse<Scheduled<T::Header>>>,
    order: u64,
    link_busy: Vec<bool>,
    armed: Vec<Option<Time>>,
    down: Vec<bool>,
    coverage: BTreeMap<(HostId, HostId, MessageId), Coverage>,
    delivered: BTreeSet<(HostId, HostId, MessageId)>,
}

impl<T: Transport> Network<T> {
    /// These machines as hosts 0, 1, ..., with links of rate `link` and `delay` between any two.
    pub fn new(hosts: Vec<T>, link: Rate, delay: Span, seed: u64) -> Self {
        let n = hosts.len();
        Self {
            hosts,
            faults: Faults::default(),
            lose: None,
            mark: None,
            events: Vec::new(),
            packets: Vec::new(),
            keep_packets: false,
            respond: Some(|bytes| bytes),
            consume: true,
            stream_window: None,
            streams: streams::Book::default(),
            link,
            delay,
            rng: Rng::stream(seed, 0, 0, "testkit"),
            now: Time::ZERO,
            scheduled: BinaryHeap::new(),
            order: 0,
            link_busy: vec![false; n],
            armed: vec![None; n],
            down: vec![false; n],
            coverage: BTreeMap::new(),
            delivered: BTreeSet::new(),
        }
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Submits a message at a host.
    ///
    /// # Errors
    /// As [`Transport::submit`].
    pub fn submit(
        &mut self,
        at: u32,
        peer: u32,
        id: MessageId,
        bytes: u64,
        kind: Kind,
    ) -> Result<(), Refused> {
        let message = Submit { id, peer: HostId(peer), bytes, kind };
        let result = self.hosts[at as usize].submit(self.now, message);
        self.drive(at as usize);
        result
    }

    /// Cancels a message at a host.
    pub fn cancel(&mut self, at: u32, peer: u32, id: MessageId) {
        self.hosts[at as usize].cancel(self.now, HostId(peer), id);
        self.drive(at as usize);
    }

    /// Opens a stream at a host.
    ///
    /// # Errors
    /// As [`Transport::open`].
    pub fn open(
        &mut self,
        at: u32,
        peer: u32,
        id: MessageId,
        deadline: Time,
    ) -> Result<(), Refused> {
        let open = Open { id, peer: HostId(peer), deadline };
        let result = self.hosts[at as usize].open(self.now, open);
        if result.is_ok() {
            self.streams.opened(HostId(at), HostId(peer), id);
        }
        self.drive(at as usize);
        result
    }

    /// Writes to a stream's direction at a host.
    ///
    /// # Errors
    /// As [`Transport::write`].
    pub fn write(
        &mut self,
        at: u32,
        peer: u32,
        id: MessageId,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        let result = self.hosts[at as usize].write(self.now, HostId(peer), id, bytes, end);
        if result.is_ok() {
            self.streams.wrote(HostId(at), HostId(peer), id, bytes, end);
        }
        self.drive(at as usize);
        result
    }

    /// Consumes up to `most` bytes of what is readable of a stream's direction.
    pub fn consume(&mut self, at: u32, peer: u32, id: MessageId, most: u64) {
        let (host, peer) = (HostId(at), HostId(peer));
        let bytes = self.streams.unconsumed(host, peer, id).min(most);
        self.streams.consumed(host, peer, id, bytes);
        self.hosts[at as usize].consume(self.now, peer, id, bytes);
        self.drive(at as usize);
    }

    /// Cancels a stream at a host, which gets no further events of it.
    pub fn cancel_stream(&mut self, at: u32, peer: u32, id: MessageId) {
        self.streams.ended(HostId(at), HostId(peer), id);
        self.cancel(at, peer, id);
    }

    /// Whether a host's application knows the stream, and of no end of it.
    pub fn is_open(&self, at: u32, peer: u32, id: MessageId) -> bool {
        self.streams.is_open(HostId(at), HostId(peer), id)
    }

    /// What a host's application was told of the direction `id` that it reads: bytes, and whether it
    /// has ended.
    pub fn readable(&self, at: u32, peer: u32, id: MessageId) -> (u64, bool) {
        self.streams.read(HostId(at), HostId(peer), id)
    }

    /// Replaces a host by one that knows nothing.
    pub fn restart(&mut self, at: u32, fresh: T) {
        self.hosts[at as usize] = fresh;
        let host = HostId(at);
        self.coverage.retain(|(receiver, ..), _| *receiver != host);
        self.delivered.retain(|(receiver, ..)| *receiver != host);
        self.streams.restarted(host);
        self.drive(at as usize);
    }

    /// Cuts a host off from the network, or joins it again.
    pub fn set_down(&mut self, at: u32, down: bool) {
        self.down[at as usize] = down;
    }

    /// Hands a packet to its destination now, as if the network had delivered it.
    pub fn inject(&mut self, packet: Packet<T::Header>) {
        self.arrive(&packet);
    }

    /// Runs until `until`, or until nothing is left to happen; says whether nothing is.
    pub fn run_until(&mut self, until: Time) -> bool {
        while let Some(Reverse(next)) = self.scheduled.peek() {
            if next.at > until {
                self.now = until;
                return false;
            }
            let Some(Reverse(next)) = self.scheduled.pop() else { return true };
            assert!(next.at >= self.now, "time never goes back");
            self.now = next.at;
            match next.what {
                What::Arrive(packet) => self.arrive(&packet),
                What::LinkFree(host) => {
                    self.link_busy[host] = false;
                    self.drive(host);
                }
                What::Timer(host) => {
                    if self.armed[host] == Some(self.now) {
                        self.armed[host] = None;
                        self.hosts[host].handle_timeout(self.now);
                        let next = self.hosts[host].poll_timeout();
                        assert!(next.is_none_or(|at| at > self.now), "a timer fires once");
                    }
                    self.drive(host);
                }
            }
        }
        self.now = until;
        true
    }

    /// Whether a host knows of no message that arrives, of all that it was told to store bytes of and that
    /// were not delivered.
    pub fn nothing_arrives(&self) -> bool {
        self.coverage.keys().all(|(host, peer, id)| {
            let machine = self.hosts.get(host.0 as usize);
            machine.is_none_or(|machine| !machine.is_arriving(*peer, *id))
        })
    }

    /// Events of one kind at one host.
    pub fn events_at(&self, at: u32) -> impl Iterator<Item = Event> + '_ {
        self.events.iter().filter(move |(_, host, _)| *host == HostId(at)).map(|(.., event)| *event)
    }

    fn schedule(&mut self, at: Time, what: What<T::Header>) {
        self.order += 1;
        self.scheduled.push(Reverse(Scheduled { at, order: self.order, what }));
    }

    fn arrive(&mut self, packet: &Packet<T::Header>) {
        let host = packet.dst.0 as usize;
        if host >= self.hosts.len() || self.down[host] {
            return;
        }
        match self.hosts[host].handle_packet(self.now, 0, packet) {
            Placement::Discard => {}
            Placement::Store(slice) => {
                assert_eq!(Some(slice), packet.payload(), "only what came can be stored");
                self.store(packet, slice);
                self.drive(host);
                let (peer, id) = (packet.src, slice.message);
                if self.coverage.contains_key(&(packet.dst, peer, id)) {
                    assert!(self.hosts[host].is_arriving(peer, id), "{id} is forgotten at once");
                }
            }
        }
        self.drive(host);
    }

    fn store(&mut self, packet: &Packet<T::Header>, slice: Slice) {
        if self.streams.is_stream(packet.dst, packet.src, slice.message) {
            return self.streams.stored(packet.dst, packet.src, slice, self.stream_window);
        }
        let key = (packet.dst, packet.src, slice.message);
        assert!(!self.delivered.contains(&key), "bytes of a delivered message are stored: {key:?}");
        let coverage = self.coverage.entry(key).or_default();
        let (mut from, mut to) = (slice.offset, slice.offset + slice.len);
        let touching: Vec<u32> = coverage
            .range(..=to)
            .filter(|&(_, &end)| end >= from)
            .map(|(&start, _)| start)
            .collect();
        for start in touching {
            let end = coverage.remove(&start).unwrap_or(start);
            (from, to) = (from.min(start), to.max(end));
        }
        coverage.insert(from, to);
    }

    /// Does what the contract demands after any call.
    fn drive(&mut self, index: usize) {
        let at = HostId(index as u32);
        while let Some(event) = self.hosts[index].poll_event() {
            self.events.push((self.now, at, event));
            streams::note(&mut self.streams, at, &event);
            if self.consume
                && let Event::Stream(StreamEvent::Readable { peer, id, bytes, .. }) = event
            {
                self.streams.consumed(at, peer, id, bytes);
                self.hosts[index].consume(self.now, peer, id, bytes);
            }
            let Event::Delivered { peer, id, bytes, kind } = event else { continue };
            let key = (at, peer, id);
            // The bytes of the last packet are stored before its events are looked at.
            let coverage = self.coverage.remove(&key).unwrap_or_default();
            let whole: Vec<_> = coverage.into_iter().collect();
            assert_eq!(whole, [(0, bytes as u32)], "{key:?} is not whole");
            assert!(self.delivered.insert(key), "{key:?} is delivered twice");
            if let (Kind::Request, Some(respond)) = (kind, self.respond) {
                let bytes = respond(bytes);
                let response = Submit { id: id.response(), peer, bytes, kind: Kind::Response };
                self.hosts[index].submit(self.now, response).expect("the request is in service");
            }
        }
        if !self.link_busy[index]
            && let Some(packet) = self.hosts[index].poll_transmit(self.now, 0)
        {
            self.transmit(index, packet);
        }
        let wanted = self.hosts[index].poll_timeout();
        if let Some(time) = wanted {
            assert!(time >= self.now, "a time-out lies in the future, or is due now");
            if self.armed[index].is_none_or(|armed| armed != time) {
                self.schedule(time, What::Timer(index));
            }
        }
        self.armed[index] = wanted;
    }

    fn transmit(&mut self, index: usize, mut packet: Packet<T::Header>) {
        assert_eq!(packet.src, HostId(index as u32));
        if self.keep_packets {
            self.packets.push((self.now, packet));
        }
        let sent = self.now + self.link.span_of(u64::from(packet.wire_bytes));
        self.link_busy[index] = true;
        self.schedule(sent, What::LinkFree(index));
        let Faults { loss, duplication, reordering, lateness } = self.faults;
        let lost = self.lose.is_some_and(|lose| lose(&packet));
        if self.down[index] || lost || self.rng.chance(loss) {
            return;
        }
        if self.mark.is_some_and(|mark| mark(&packet)) {
            packet.mark();
        }
        let copies = if self.rng.chance(duplication) { 2 } else { 1 };
        for _ in 0..copies {
            let mut at = sent + self.delay;
            if self.rng.chance(reordering) {
                at += Span(self.rng.below(lateness.0 + 1));
            }
            self.schedule(at, What::Arrive(packet));
        }
    }
}
