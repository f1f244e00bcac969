//! Applications: who submits which message when, and what became of it.

use std::cmp::Ordering;

use rackweave_core::{FailReason, HostId, Kind, MessageId, Slice, Span, Submit, Time, Transport};
use rackweave_workload::{Arrival, Exchange, Generator};

use super::World;
use crate::config::StreamConfig;
use crate::result::{MessageRecord, Outcome};

/// One stream of messages.
#[derive(Debug)]
pub(super) struct StreamState<'a> {
    pub(super) config: &'a StreamConfig,
    /// Number of its transport at each host.
    instance: u8,
    generator: Generator,
    /// The arrival that each host's event stands for.
    pending: Vec<Option<Arrival>>,
    /// Arrivals to come that are known, and messages under way: zero means that it has ended.
    alive: u64,
    /// Payload bytes delivered in the measured time.
    delivered_bytes: u64,
}

impl<'a> StreamState<'a> {
    pub(super) fn new((config, instance, generator): (&'a StreamConfig, u8, Generator)) -> Self {
        Self { config, instance, generator, pending: Vec::new(), alive: 0, delivered_bytes: 0 }
    }
}

/// A message of the run. Its number is its index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    src: HostId,
    dst: HostId,
    bytes: u64,
    start: Time,
    end: Time,
    stream: u16,
    state: State,
    measured: bool,
    /// The request has arrived (a second arrival would be the transport's fault).
    requested: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    Completed,
    Failed(FailReason),
}

/// Something to submit once the host at hand has settled.
#[derive(Clone, Copy, Debug)]
pub(super) enum Todo {
    /// A response.
    Respond { host: HostId, message: Submit, instance: u8 },
    /// The next message of a closed loop.
    Start { stream: u16, host: HostId, arrival: Arrival },
}

/// A message of a closed loop that starts after its think time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Later {
    at: Time,
    order: u64,
    stream: u16,
    host: HostId,
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

/// How far the run is.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Messages of the first stream to measure.
    pub(super) wanted: u64,
    /// Of those: started, ended.
    pub(super) measured_started: u64,
    pub(super) measured_ended: u64,
    /// Something happened that may end the run.
    pub(super) maybe_done: bool,
    /// Since when messages are measured.
    pub(super) since: Time,
    /// When the last measured message ended.
    pub(super) last_end: Time,
    /// Where the bytes of messages have been stored, if receivers check them.
    coverage: std::collections::BTreeMap<u64, Coverage>,
    pub(super) verified: u64,
    order: u64,
}

/// The bytes of a message that have arrived: disjoint ranges in order.
#[derive(Debug, Default)]
struct Coverage(std::collections::BTreeMap<u64, u64>);

impl Coverage {
    fn insert(&mut self, mut start: u64, mut end: u64) {
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            start = start.min(s);
            end = end.max(e);
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }
    fn is_exactly(&self, bytes: u64) -> bool {
        self.0.iter().eq([(&0, &bytes)])
    }
}

impl Tally {
    /// Numbers things that happen at the same time.
    pub(super) const fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}

impl<T: Transport> World<'_, T> {
    /// The first message of every host.
    pub(super) fn start_streams(&mut self) {
        let hosts = self.fabric.hosts();
        let main_total = self.streams[0].generator.total().unwrap_or(u64::MAX);
        self.tally.wanted = self.measure.messages.min(main_total);
        for stream in 0..self.streams.len() as u32 {
            self.streams[stream as usize].pending = vec![None; hosts as usize];
            for host in 0..hosts {
                self.next_arrival(stream, host);
            }
        }
        self.tally.maybe_done = true;
    }

    fn next_arrival(&mut self, stream: u32, host: u32) {
        let state = &mut self.streams[stream as usize];
        let arrival = state.generator.next(HostId(host));
        state.pending[host as usize] = arrival;
        if let Some(arrival) = arrival {
            state.alive += 1;
            let component = self.components.apps + stream * self.fabric.hosts() + host;
            self.events.push(arrival.at.max(self.now), component);
        }
    }

    /// The time of a host's next message has come.
    pub(super) fn on_arrival(&mut self, index: u32) {
        let (stream, host) = (index / self.fabric.hosts(), index % self.fabric.hosts());
        let Some(arrival) = self.streams[stream as usize].pending[host as usize].take() else {
            return;
        };
        self.start_message(stream as u16, HostId(host), arrival);
        self.next_arrival(stream, host);
        self.streams[stream as usize].alive -= 1;
    }

    /// A host starts a message.
    fn start_message(&mut self, stream: u16, src: HostId, arrival: Arrival) {
        let number = self.messages.len() as u64;
        let tally = &mut self.tally;
        let is_open = tally.measured_started < tally.wanted;
        let measured = self.now >= tally.since && is_open;
        if measured && stream == 0 {
            tally.measured_started += 1;
        }
        let state = &mut self.streams[usize::from(stream)];
        state.alive += 1;
        let exchange = state.config.workload.exchange;
        self.messages.push(Message {
            src,
            dst: arrival.dst,
            bytes: arrival.bytes,
            start: self.now,
            end: Time::ZERO,
            stream,
            state: State::UnderWay,
            measured,
            requested: false,
        });
        let id = MessageId::request(number);
        if !self.hosts[src.0 as usize].is_up() {
            // A host that is down starts nothing; a paused one cannot either.
            return self.failed(id, FailReason::HostCrashed);
        }
        let kind = if exchange == Exchange::OneWay { Kind::OneWay } else { Kind::Request };
        let message = Submit { id, peer: arrival.dst, bytes: arrival.bytes, kind };
        let instance = self.streams[usize::from(stream)].instance;
        self.submit(src, instance, message);
    }

    fn submit(&mut self, host: HostId, instance: u8, message: Submit) {
        self.settle(host.0);
        let now = self.now;
        let transport = &mut self.hosts[host.0 as usize].transports[usize::from(instance)];
        if transport.submit(now, message).is_err() {
            self.counters.refused += 1;
            self.failed(message.id, FailReason::Cancelled);
        }
        self.changed(host.0);
    }

    /// Does what events at other hosts led to.
    pub(super) fn do_todo(&mut self) {
        // `submit` ends in `changed`, which would come back here: the list is taken away first.
        while let Some(todo) = self.todo.pop() {
            match todo {
                Todo::Respond { host, message, instance } => {
                    if self.hosts[host.0 as usize].is_up() {
                        self.submit(host, instance, message);
                    }
                }
                Todo::Start { stream, host, arrival } => self.start_message(stream, host, arrival),
            }
        }
    }

    /// A message has arrived whole at `host`.
    pub(super) fn delivered(
        &mut self,
        host: HostId,
        peer: HostId,
        id: MessageId,
        bytes: u64,
        kind: Kind,
    ) {
        let number = id.number() as usize;
        let Some(&message) = self.messages.get(number) else {
            panic!("{host} delivered message {id} from {peer}, which nobody sent");
        };
        let expected = if id.is_response() { message.src } else { message.dst };
        assert_eq!(host, expected, "message {id} was delivered to the wrong host");
        if self.measure.verify {
            self.verify(id, bytes);
        }
        let exchange = self.streams[usize::from(message.stream)].config.workload.exchange;
        if self.now >= self.tally.since {
            self.streams[usize::from(message.stream)].delivered_bytes += bytes;
        }
        match kind {
            Kind::Request => {
                // A restarted server may rightly execute a request again.
                self.messages[number].requested = true;
                let bytes = match exchange {
                    Exchange::Respond(bytes) => bytes,
                    Exchange::OneWay | Exchange::Echo => message.bytes,
                };
                let kind = Kind::Response;
                let message = Submit { id: id.response(), peer, bytes, kind };
                let instance = self.streams[usize::from(self.messages[number].stream)].instance;
                self.todo.push(Todo::Respond { host, message, instance });
            }
            Kind::OneWay | Kind::Response => self.end_message(number, State::Completed),
        }
    }

    /// A message will not complete.
    pub(super) fn failed(&mut self, id: MessageId, reason: FailReason) {
        let number = id.number() as usize;
        if number < self.messages.len() {
            self.end_message(number, State::Failed(reason));
        }
    }

    fn end_message(&mut self, number: usize, end: State) {
        let message = &mut self.messages[number];
        if message.state != State::UnderWay {
            // Delivered, then given up by a sender that never learnt of it; or the other way round.
            return;
        }
        message.state = end;
        message.end = self.now;
        let (stream, src) = (message.stream, message.src);
        if message.measured {
            self.tally.last_end = self.now;
            if stream == 0 {
                self.tally.measured_ended += 1;
            }
        }
        let state = &mut self.streams[usize::from(stream)];
        if let Some(arrival) = state.generator.completed(src, self.now) {
            if arrival.at <= self.now {
                self.todo.push(Todo::Start { stream, host: src, arrival });
            } else {
                self.start_later(stream, src, arrival);
            }
            self.streams[usize::from(stream)].alive += 1;
        }
        let state = &mut self.streams[usize::from(stream)];
        state.alive -= 1;
        let tally = &mut self.tally;
        tally.maybe_done |= tally.measured_ended >= tally.measured_started || state.alive == 0;
    }

    fn start_later(&mut self, stream: u16, host: HostId, arrival: Arrival) {
        let order = self.tally.next_order();
        self.later.push(Later { at: arrival.at, order, stream, host, arrival });
        self.events.push_timer(arrival.at, self.components.later);
    }

    /// Messages that start after a think time.
    pub(super) fn on_later(&mut self) {
        while self.later.peek().is_some_and(|later| later.at <= self.now) {
            let Some(later) = self.later.pop() else { return };
            self.start_message(later.stream, later.host, later.arrival);
            self.streams[usize::from(later.stream)].alive -= 1;
        }
    }

    /// All that was to be measured has ended.
    pub(super) fn is_done(&self) -> bool {
        let tally = &self.tally;
        tally.measured_ended == tally.measured_started
            && (tally.measured_started >= tally.wanted || self.streams[0].alive == 0)
    }

    /// A host has lost all its messages.
    pub(super) fn fail_messages_of(&mut self, host: HostId) {
        for number in 0..self.messages.len() {
            let message = &self.messages[number];
            if message.src == host && message.state == State::UnderWay {
                self.end_message(number, State::Failed(FailReason::HostCrashed));
            }
        }
    }

    /// A receiver stores bytes of a message.
    pub(super) fn store(&mut self, src: HostId, host: HostId, slice: Slice) {
        let number = slice.message.number() as usize;
        let Some(message) = self.messages.get(number) else {
            panic!(
                "{host} stores bytes of message {} from {src}, which nobody sent",
                slice.message
            );
        };
        let sender = if slice.message.is_response() { message.dst } else { message.src };
        assert_eq!(sender, src, "bytes of message {} come from the wrong host", slice.message);
        let (start, len) = (u64::from(slice.offset), u64::from(slice.len));
        if len > 0 {
            self.tally.coverage.entry(slice.message.0).or_default().insert(start, start + len);
        }
    }

    /// Every byte of a delivered message must have been stored.
    fn verify(&mut self, id: MessageId, bytes: u64) {
        let coverage = self.tally.coverage.remove(&id.0).unwrap_or_default();
        assert!(coverage.is_exactly(bytes), "message {id} of {bytes} bytes: {coverage:?} stored");
        self.tally.verified += 1;
    }

    /// The measured messages, in the order of their start.
    pub(super) fn records(&self) -> Vec<MessageRecord> {
        let framing: Vec<_> = (self.streams.iter())
            .map(|stream| self.hosts[0].transports[usize::from(stream.instance)].framing())
            .collect();
        let record = |message: &Message| {
            let stream = usize::from(message.stream);
            let (src, dst) = (message.src, message.dst);
            let there = self.fabric.ideal(src, dst, message.bytes, framing[stream]);
            let back = match self.streams[stream].config.workload.exchange {
                Exchange::OneWay => Span::ZERO,
                Exchange::Echo => self.fabric.ideal(dst, src, message.bytes, framing[stream]),
                Exchange::Respond(bytes) => self.fabric.ideal(dst, src, bytes, framing[stream]),
            };
            MessageRecord {
                stream: message.stream,
                src,
                dst,
                bytes: message.bytes,
                start: message.start,
                ideal: there + back,
                outcome: match message.state {
                    State::UnderWay => Outcome::Unfinished,
                    State::Completed => Outcome::Completed(message.end),
                    State::Failed(reason) => Outcome::Failed(reason),
                },
            }
        };
        self.messages.iter().filter(|message| message.measured).map(record).collect()
    }

    /// Payload bytes delivered in the measured time, by stream.
    pub(super) fn delivered_bytes(&self) -> Vec<u64> {
        self.streams.iter().map(|stream| stream.delivered_bytes).collect()
    }

    /// From now on bytes are counted.
    pub(super) fn begin_measuring(&mut self) {
        self.tally.since = self.now;
        for stream in &mut self.streams {
            stream.delivered_bytes = 0;
        }
    }
}
