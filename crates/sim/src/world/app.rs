//! Applications: who submits which message when, and what became of it.

use rackweave_core::{
    FailReason, HostId, Kind, MessageId, Slice, Span, Submit, Time, Transport as _, frame,
};
use rackweave_workload::{Arrival, Exchange, Generator, StreamMode};

use super::host::HostState;
use super::thread::Work;
use super::{World, wake};
use crate::config::StreamConfig;
use crate::model::Model;
use crate::result::{MeasuredRoundTrip, MessageRecord, Outcome};

/// One stream of messages.
#[derive(Debug)]
pub(super) struct StreamState<'a> {
    pub(super) config: &'a StreamConfig,
    /// Number of its transport at each host.
    pub(super) instance: u8,
    generator: Generator,
    /// The arrival that each host's event stands for.
    pending: Vec<Option<Arrival>>,
    /// Arrivals to come that are known, and messages under way: zero means that it has ended.
    alive: u64,
    /// Payload bytes delivered in the measured time, by the host that started the message.
    pub(super) delivered_bytes: Vec<u64>,
}

impl<'a> StreamState<'a> {
    pub(super) fn new((config, instance, generator): (&'a StreamConfig, u8, Generator)) -> Self {
        let (pending, delivered_bytes) = (Vec::new(), Vec::new());
        Self { config, instance, generator, pending, alive: 0, delivered_bytes }
    }
}

/// A message under way.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// The how-manieth of the run: see [`Messages`].
    serial: u64,
    src: HostId,
    dst: HostId,
    bytes: u64,
    start: Time,
    stream: u16,
    measured: bool,
}

/// Messages under way, and the measured ones that have ended.
///
/// A message's number is its serial number and, in the low bits, its slot: it only increases, and
/// leads to the message without a search. Memory grows with what is under way and measured, not with the length of the run.
#[derive(Debug, Default)]
pub(super) struct Messages {
    slots: Vec<Option<Message>>,
    free: Vec<u32>,
    next_serial: u64,
    ended: Vec<(Message, Time, State)>,
}

/// The smallest packet on a link: what answers data in a base round trip.
const SMALLEST: u32 = frame::wire_bytes(0);

/// From the failure of a message of a closed loop to the start of the next, at least.
const AFTER_FAILURE: Span = Span::from_us(10);

/// Bits of a message's number that are its slot.
const SLOT_BITS: u32 = 28;

impl Messages {
    fn insert(&mut self, message: Message) -> MessageId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        assert!(slot < 1 << SLOT_BITS, "fewer than 2^{SLOT_BITS} messages under way");
        let serial = self.next_serial;
        self.next_serial += 1;
        self.slots[slot as usize] = Some(Message { serial, ..message });
        MessageId::request(serial << SLOT_BITS | u64::from(slot))
    }

    /// A name like a message's, which no message has.
    pub(super) const fn unused_id(&mut self) -> MessageId {
        self.next_serial += 1;
        MessageId::request((self.next_serial - 1) << SLOT_BITS)
    }

    const fn place(id: MessageId) -> (u64, usize) {
        let number = id.number();
        (number >> SLOT_BITS, (number & ((1 << SLOT_BITS) - 1)) as usize)
    }

    fn get(&self, id: MessageId) -> Option<&Message> {
        let (serial, slot) = Self::place(id);
        self.slots.get(slot)?.as_ref().filter(|message| message.serial == serial)
    }

    fn remove(&mut self, id: MessageId) -> Option<Message> {
        let message = *self.get(id)?;
        let (_, slot) = Self::place(id);
        self.slots[slot] = None;
        self.free.push(slot as u32);
        Some(message)
    }

    fn ids_from(&self, src: HostId) -> Vec<MessageId> {
        let slots = self.slots.iter().enumerate();
        let of_host = slots.filter_map(|(slot, message)| {
            let message = message.filter(|message| message.src == src)?;
            Some(MessageId::request(message.serial << SLOT_BITS | slot as u64))
        });
        of_host.collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    UnderWay,
    Completed,
    Failed(FailReason),
}

/// Something to submit once the host at hand has settled.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// A response.
    Respond { host: HostId, message: Submit, instance: u8 },
    /// To forget a message: the other end will not go on with it.
    Cancel { host: HostId, peer: HostId, id: MessageId, instance: u8 },
    /// The next message of a closed loop.
    Start { stream: u16, host: HostId, arrival: Arrival },
}

/// A message of a closed loop that starts after its think time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    stream: u16,
    host: HostId,
    arrival: Arrival,
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
    pub(super) may_be_done: bool,
    /// Since when messages are measured.
    pub(super) since: Time,
    /// When the last measured message ended.
    pub(super) last_end: Time,
    /// Where the bytes of messages have been stored, if receivers check them.
    coverage: std::collections::BTreeMap<u64, Coverage>,
    pub(super) verified: u64,
    /// Messages that have arrived, if receivers check them.
    /// Each with the number of its receiver's crashes before.
    completed: std::collections::BTreeMap<u64, u32>,
    order: u64,
}

/// The bytes of a message that have arrived: disjoint ranges in order.
#[derive(Debug, Default)]
pub(super) struct Coverage(std::collections::BTreeMap<u64, u64>);

impl Coverage {
    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
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
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        let range = self.0.range(..=start).next_back();
        start == end || range.is_some_and(|(_, &range_end)| range_end >= end)
    }
    pub(super) fn forget_below(&mut self, start: u64) {
        while let Some(range) = self.0.first_entry().filter(|range| *range.key() < start) {
            let end = range.remove();
            if end > start {
                self.0.insert(start, end);
            }
        }
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

impl<M: Model> World<'_, M> {
    /// The first message of every host.
    pub(super) fn start_streams(&mut self) {
        let hosts = self.net.fabric().hosts();
        self.tally.wanted = match self.streams.first() {
            Some(main) if self.first_stream == 0 => {
                self.measure.messages.min(main.generator.total().unwrap_or(u64::MAX))
            }
            _ => u64::MAX,
        };
        for stream in 0..self.streams.len() as u32 {
            self.streams[stream as usize].pending = vec![None; hosts as usize];
            self.streams[stream as usize].delivered_bytes = vec![0; hosts as usize];
            for host in 0..hosts {
                self.next_arrival(stream, host);
            }
        }
        self.tally.may_be_done = true;
    }

    fn next_arrival(&mut self, stream: u32, host: u32) {
        let state = &mut self.streams[stream as usize];
        let arrival = state.generator.next(HostId(host));
        state.pending[host as usize] = arrival;
        if let Some(arrival) = arrival {
            state.alive += 1;
            let source = stream * self.net.hosts() + host;
            self.net.schedule(arrival.at, source);
        }
    }

    /// The time of a host's next message has come.
    pub(super) fn on_arrival(&mut self, index: u32) {
        let (stream, host) = (index / self.net.fabric().hosts(), index % self.net.fabric().hosts());
        let Some(arrival) = self.streams[stream as usize].pending[host as usize].take() else {
            return;
        };
        self.start_message(stream as u16, HostId(host), arrival);
        self.next_arrival(stream, host);
        self.streams[stream as usize].alive -= 1;
    }

    /// A host starts a message.
    fn start_message(&mut self, stream: u16, src: HostId, arrival: Arrival) {
        let tally = &mut self.tally;
        let is_open = tally.measured_started < tally.wanted;
        let measured = self.net.now() >= tally.since && is_open;
        if measured && stream == 0 {
            tally.measured_started += 1;
        }
        let state = &mut self.streams[usize::from(stream)];
        state.alive += 1;
        let exchange = state.config.workload.exchange;
        let id = self.messages.insert(Message {
            serial: 0,
            src,
            dst: arrival.dst,
            bytes: arrival.bytes,
            start: self.net.now(),
            stream,
            measured,
        });
        if self.channels.in_use() {
            self.join_channel(stream, id, src, arrival.dst);
        }
        let kind = if exchange == Exchange::OneWay { Kind::OneWay } else { Kind::Request };
        let message = Submit { id, peer: arrival.dst, bytes: arrival.bytes, kind };
        let instance = self.streams[usize::from(stream)].instance;
        self.submit(src, instance, message);
    }

    /// A host's application submits a message.
    pub(super) fn submit(&mut self, host: HostId, instance: u8, message: Submit) {
        match &mut self.hosts.all[host.0 as usize].state {
            HostState::Up => {}
            HostState::Paused(waiting) => return waiting.messages.push((instance, message)),
            HostState::Down(_) => return self.failed(message.id, FailReason::HostCrashed),
        }
        if self.channels.in_use()
            && (!self.is_under_way(message.id) || self.write_message(host, message))
        {
            return;
        }
        self.flush(host);
        let now = self.net.now();
        let transport = &mut self.hosts.all[host.0 as usize].transports[usize::from(instance)];
        if transport.submit(now, message).is_err() {
            self.refused += 1;
            self.failed(message.id, FailReason::Cancelled);
            if message.kind == Kind::Response {
                let request = MessageId(message.id.0 & !1);
                for (host, peer) in [(host, message.peer), (message.peer, host)] {
                    for id in [request, message.id] {
                        self.todo.push_back(Action::Cancel { host, peer, id, instance });
                    }
                }
            }
        }
        self.changed(host);
    }

    /// Does what events at other hosts led to.
    pub(super) fn do_todo(&mut self) {
        // Whatever a step leads to joins the list: this loop is never entered twice.
        self.doing = true;
        while let Some(todo) = self.todo.pop_front() {
            match todo {
                Action::Respond { host, message, instance } => self.submit(host, instance, message),
                Action::Start { stream, host, arrival } => self.start_next(stream, host, arrival),
                Action::Cancel { host, peer, id, instance } => {
                    let now = self.net.now();
                    self.flush(host);
                    self.hosts.all[host.0 as usize].transports[usize::from(instance)]
                        .cancel(now, peer, id);
                    self.changed(host);
                }
            }
        }
        self.doing = false;
    }

    /// The next message of a closed loop starts; of a host that is down, when it is back.
    pub(super) fn start_next(&mut self, stream: u16, host: HostId, arrival: Arrival) {
        if let HostState::Down(waiting) = &mut self.hosts.all[host.0 as usize].state {
            return waiting.push((stream, arrival));
        }
        self.start_message(stream, host, arrival);
        self.streams[usize::from(stream)].alive -= 1;
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
        let Some(&message) = self.messages.get(id) else {
            // A message that its sender has given up may still arrive, but none arrives twice.
            let crashes = self.hosts.all[host.0 as usize].crashes;
            let before = self.tally.completed.get(&id.number());
            assert_ne!(before, Some(&crashes), "message {id} came twice");
            return;
        };
        let expected =
            if id.is_response() { (message.dst, message.src) } else { (message.src, message.dst) };
        assert_eq!((peer, host), expected, "message {id} was delivered to the wrong host");
        if self.measure.verify {
            self.verify(id, bytes);
        }
        let workload = &self.streams[usize::from(message.stream)].config.workload;
        let work = Work::Message { peer, id, bytes, kind };
        if workload.streaming.is_some_and(|streaming| streaming.mode == StreamMode::Unary) {
            self.arrive_in_order(host, id, work);
        } else {
            self.take_in(message.stream, host, work);
        }
    }

    /// Whether the exchange that a message belongs to has not ended.
    pub(super) fn is_under_way(&self, id: MessageId) -> bool {
        self.messages.get(id).is_some()
    }

    /// The application has taken in a message that arrived at `host`.
    pub(super) fn processed(&mut self, host: HostId, peer: HostId, id: MessageId, kind: Kind) {
        // It may have failed while it waited.
        let Some(&message) = self.messages.get(id) else { return };
        let exchange = self.streams[usize::from(message.stream)].config.workload.exchange;
        match kind {
            Kind::Request => {
                let bytes = exchange.response_bytes(message.bytes).unwrap_or(message.bytes);
                let instance = self.streams[usize::from(message.stream)].instance;
                let message = Submit { id: id.response(), peer, bytes, kind: Kind::Response };
                self.todo.push_back(Action::Respond { host, message, instance });
            }
            Kind::OneWay | Kind::Response => {
                if self.measure.verify {
                    let crashes = self.hosts.all[host.0 as usize].crashes;
                    self.tally.completed.insert(id.number(), crashes);
                }
                self.end_message(id, State::Completed);
            }
        }
    }

    /// A message will not complete.
    pub(super) fn failed(&mut self, id: MessageId, reason: FailReason) {
        if !self.channels.in_use() || !self.fail_channel_of(id, reason) {
            self.end_message(id, State::Failed(reason));
        }
    }

    pub(super) fn end_message(&mut self, id: MessageId, end: State) {
        // Delivered, then given up by a sender that never learnt of it; or the other way round.
        let Some(message) = self.messages.remove(id) else { return };
        if self.channels.in_use() {
            self.channels.forget_message(id);
        }
        if message.measured {
            self.messages.ended.push((message, self.net.now(), end));
        }
        let (stream, src) = (message.stream, message.src);
        if message.measured {
            self.tally.last_end = self.net.now();
            if stream == 0 {
                self.tally.measured_ended += 1;
            }
        }
        let state = &mut self.streams[usize::from(stream)];
        if let Some(arrival) = state.generator.completed(src, self.net.now()) {
            // After a failure a loop waits a little, or it would fail for ever at one instant.
            let earliest = if matches!(end, State::Failed(_)) { AFTER_FAILURE } else { Span::ZERO };
            let at = arrival.at.max(self.net.now() + earliest);
            if at <= self.net.now() {
                self.todo.push_back(Action::Start { stream, host: src, arrival });
            } else {
                self.start_later(stream, src, Arrival { at, ..arrival });
            }
            self.streams[usize::from(stream)].alive += 1;
        }
        let state = &mut self.streams[usize::from(stream)];
        state.alive -= 1;
        let tally = &mut self.tally;
        tally.may_be_done |= tally.measured_ended >= tally.measured_started || state.alive == 0;
    }

    fn start_later(&mut self, stream: u16, host: HostId, arrival: Arrival) {
        self.later.push(arrival.at, Start { stream, host, arrival });
        self.net.wake_at(arrival.at, wake::LATER);
    }

    /// Messages that start after a think time.
    pub(super) fn on_later(&mut self) {
        while let Some((_, Start { stream, host, arrival })) = self.later.pop_due(self.net.now()) {
            self.start_next(stream, host, arrival);
        }
    }

    /// All messages that were to be measured have ended; of runs that are measured by their nodes, none are wanted.
    pub(super) fn messages_are_done(&self) -> bool {
        let tally = &self.tally;
        self.first_stream > 0
            || tally.measured_ended == tally.measured_started
                && (tally.measured_started >= tally.wanted
                    || self.streams.first().is_none_or(|main| main.alive == 0))
    }

    /// A host has lost all its messages.
    pub(super) fn fail_messages_of(&mut self, host: HostId) {
        for id in self.messages.ids_from(host) {
            self.end_message(id, State::Failed(FailReason::HostCrashed));
        }
    }

    /// A receiver stores bytes of a message.
    pub(super) fn store(&mut self, src: HostId, host: HostId, slice: Slice) {
        // The bytes of a response count under the response's own id.
        let request = MessageId(slice.message.0 & !1);
        let Some(message) = self.messages.get(request) else {
            return self.store_of_stream(src, host, slice);
        };
        if self.net.now() >= self.tally.since {
            let stream = &mut self.streams[usize::from(message.stream)];
            stream.delivered_bytes[message.src.0 as usize] += u64::from(slice.len);
        }
        if !self.measure.verify {
            return;
        }
        let (sender, receiver) = if slice.message.is_response() {
            (message.dst, message.src)
        } else {
            (message.src, message.dst)
        };
        assert_eq!((src, host), (sender, receiver), "bytes of message {} astray", slice.message);
        let (start, len) = (u64::from(slice.offset), u64::from(slice.len));
        if len > 0 {
            self.tally.coverage.entry(slice.message.0).or_default().insert(start, start + len);
        }
    }

    /// A host has lost what it had received in part.
    pub(super) fn forget_arriving(&mut self, host: HostId) {
        let Self { messages, tally, .. } = self;
        tally.coverage.retain(|id, _| {
            let id = MessageId(*id);
            let message = messages.get(MessageId(id.0 & !1));
            let receiver =
                message.map(|message| if id.is_response() { message.src } else { message.dst });
            receiver.is_some_and(|receiver| receiver != host)
        });
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
            .map(|stream| self.hosts.all[0].transports[usize::from(stream.instance)].framing())
            .collect();
        let record = |(message, end, state): &(Message, Time, State)| {
            let stream = usize::from(message.stream);
            let (src, dst) = (message.src, message.dst);
            let there = self.net.fabric().ideal(src, dst, message.bytes, framing[stream]);
            let exchange = self.streams[stream].config.workload.exchange;
            let back = (exchange.response_bytes(message.bytes)).map_or(Span::ZERO, |bytes| {
                self.net.fabric().ideal(dst, src, bytes, framing[stream])
            });
            MessageRecord {
                stream: message.stream + self.first_stream,
                src,
                dst,
                bytes: message.bytes,
                start: message.start,
                ideal: there + back,
                outcome: match *state {
                    State::UnderWay => Outcome::Unfinished,
                    State::Completed => Outcome::Completed(*end),
                    State::Failed(reason) => Outcome::Failed(reason),
                },
            }
        };
        let under_way = self.messages.slots.iter().flatten().filter(|message| message.measured);
        let under_way = under_way.map(|message| (*message, Time::MAX, State::UnderWay));
        let mut all: Vec<_> = self.messages.ended.iter().copied().chain(under_way).collect();
        all.sort_unstable_by_key(|(message, _, _)| message.serial);
        all.iter().map(record).collect()
    }

    /// Payload bytes delivered in the measured time, by stream.
    pub(super) fn delivered_bytes(&self) -> Vec<u64> {
        self.streams.iter().map(|stream| stream.delivered_bytes.iter().sum()).collect()
    }

    /// Those of the first stream, by sender.
    pub(super) fn delivered_by_sender(&mut self) -> Vec<u64> {
        self.streams
            .first_mut()
            .map(|main| std::mem::take(&mut main.delivered_bytes))
            .unwrap_or_default()
    }

    /// What the transports have measured of the fabric, beside what it is.
    pub(super) fn round_trips(&self) -> Vec<MeasuredRoundTrip> {
        let mut measured = Vec::new();
        for (number, stream) in self.streams.iter().enumerate() {
            let instance = stream.instance;
            if self.streams[..number].iter().any(|before| before.instance == instance) {
                continue;
            }
            for (src, host) in self.hosts.all.iter().enumerate() {
                let transport = &host.transports[usize::from(instance)];
                let (src, framing) = (HostId(src as u32), transport.framing());
                let is_host = |peer: HostId| peer.0 < self.net.fabric().hosts() && peer != src;
                let trips = transport.round_trips();
                measured.extend(trips.iter().filter(|trip| is_host(trip.peer)).map(|trip| {
                    MeasuredRoundTrip {
                        stream: number as u16 + self.first_stream,
                        src,
                        dst: trip.peer,
                        min: trip.min,
                        recent: trip.recent,
                        base: self.net.fabric().base_rtt_between(src, trip.peer, framing, SMALLEST),
                        samples: trip.samples,
                    }
                }));
            }
        }
        measured
    }

    /// From now on bytes are counted.
    pub(super) fn begin_measuring(&mut self) {
        self.tally.since = self.net.now();
        for stream in &mut self.streams {
            stream.delivered_bytes.fill(0);
        }
    }
}
