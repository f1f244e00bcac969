//! The application of one host: it starts the messages of its workloads, answers requests, processes what arrives,
//! and records the outcome of every message.
//!
//! [`App`] is a state machine without a clock, I/O or unseeded randomness. A driver, which owns the transports,
//! uses it as follows.
//!
//! - It calls [`App::handle_timeout`] when [`App::poll_timeout`] is due, and [`App::handle_event`] with
//!   every event of a transport.
//! - After either, it drains [`App::poll_record`], then [`App::poll_action`], and performs the actions. It reports
//!   refused ones.
//! - It passes the records to whatever measures: [`Collector`], which keeps each measured message, or, in a run without an
//!   end, histograms: [`Record::Ended`] describes the whole message.
//!
//! One call of `handle_timeout` starts at most one message, so that a driver can let its transports send in
//! between.
//!
//! A simulator knows more than any one host. It may use this to notify the sender of a one-way message at the
//! instant at which the receiver has it, without a packet ([`OneWayEnd::WhenReceived`] and
//! [`App::received_by_peer`]). The methods for such knowledge are documented as such; a real host does not call
//! them.
//!
//! [`Collector`] combines the records of all hosts: goodput, ideal time, slowdown and failure have one
//! definition for the simulator and for real hosts.

mod action;
mod channel;
mod collector;
mod deadline;
mod message;
mod receive;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackweave_core::{
    Event, FailReason, HostId, Kind, MessageId, RangeSet, Schedule, Slice, Span, Time,
};

pub use self::action::{Action, AppConfig, AppStream, MessageEnd, OneWayEnd, Origin, Record};
pub use self::channel::{ChannelId, Direction, Place};
pub use self::collector::{
    Collector, CollectorConfig, MessageRecord, MessageStart, Outcome, Position, RecordId, limit_of,
};
pub use self::message::{MessageKey, SerialIds, WireIds};

use self::channel::Channels;
use self::deadline::Deadlines;
use self::message::{Message, Messages};
use self::receive::{ReceivedMessage, Thread, Work};
use crate::application::{Application, Streaming};
use crate::collective::{Outgoing, Rank, RankReport};
use crate::generator::HostGenerator;
use crate::pattern::{Arrival, Exchange};

/// Default of [`AppStream::delay_after_failure`]. Without a delay, a loop whose messages fail at once would never
/// let time pass. (Our choice: it is far below any retransmission timeout.)
pub const DELAY_AFTER_FAILURE: Span = Span::from_us(10);

/// Maximum number of responses that wait to be submitted. Beyond that the oldest is dropped and counted as
/// refused.
const MAX_WAITING_RESPONSES: usize = 1 << 16;

/// Whether a host is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// Paused: messages are not submitted.
    Paused,
    /// Crashed. Messages of open loops fail at once; those of closed loops wait for the restart.
    Down,
}

/// An action that can start now.
#[derive(Clone, Copy, Debug)]
enum Ready {
    /// Start a message of a closed loop.
    Start {
        stream: u16,
        arrival: Arrival,
    },
    /// Submit a message that started while the host was paused.
    Submit {
        key: MessageKey,
    },
    Respond {
        stream: u16,
        request: ReceivedMessage,
    },
}

/// A stream of messages during the run.
#[derive(Debug)]
struct Stream {
    instance: u8,
    exchange: Exchange,
    streaming: Option<Streaming>,
    application: Application,
    generator: HostGenerator,
    next: Option<Arrival>,
    /// Number of messages that will start or are in progress; zero when the stream has ended here.
    alive: u64,
    max_outstanding: u64,
    deadlines: Option<Deadlines>,
    delay_after_failure: Span,
    /// This host's part of a collective. It is one of the live messages until it has ended.
    rank: Option<Box<Rank>>,
}

impl Stream {
    /// Takes part in a collective, whose end may follow.
    fn with_rank<T>(&mut self, act: impl FnOnce(&mut Rank) -> T) -> Option<T> {
        let rank = self.rank.as_mut()?;
        let had_ended = rank.has_ended();
        let result = act(rank);
        self.alive -= u64::from(!had_ended && rank.has_ended());
        Some(result)
    }

    /// The next message to start, unless the maximum number of messages is in progress.
    fn next(&self) -> Option<Arrival> {
        // The next message is one of the live ones.
        self.next.filter(|_| self.alive <= self.max_outstanding)
    }
}

/// The actions for one transport, in order.
#[derive(Debug, Default)]
struct ActionQueue {
    actions: VecDeque<Action>,
    /// Whether the transport had no room for the first of them.
    blocked: bool,
}

/// The application of one host. See the [module](self).
#[derive(Debug)]
pub struct App {
    host: HostId,
    streams: Vec<Stream>,
    one_way_end: OneWayEnd,
    verify: bool,
    state: State,
    /// When the host last restarted after a crash. Messages do not start before.
    up_since: Time,
    /// When the earlier process crashed, if this process replaces one.
    down_since: Option<Time>,
    messages: Messages,
    channels: Channels,
    /// The threads, by stream of messages; empty if no application takes time.
    threads: Vec<Thread>,
    ready: VecDeque<Ready>,
    waiting_responses: usize,
    /// Actions that wait for the host to resume or to restart.
    held: Vec<Ready>,
    /// Messages of closed loops that start after their think time.
    scheduled: Schedule<(u16, Arrival)>,
    /// Actions by transport.
    actions: Vec<ActionQueue>,
    records: VecDeque<Record>,
    /// The stored ranges of arriving messages, if they are checked.
    coverage: BTreeMap<(HostId, MessageId), RangeSet>,
    /// Messages that have arrived since the last crash, if they are checked.
    completed: BTreeSet<(HostId, MessageId)>,
    verified: u64,
    refused: u64,
}

impl App {
    /// Creates an application at time 0, with the first message of each of its streams drawn.
    #[must_use]
    pub fn new(config: AppConfig) -> Self {
        let AppConfig { host, streams, one_way_end, verify, restarted } = config;
        let instances = streams.iter().map(|stream| usize::from(stream.instance) + 1).max();
        let takes_time = streams.iter().any(|stream| !stream.application.is_instant());
        let threads = if takes_time { streams.len() } else { 0 };
        let mut app = Self {
            host,
            one_way_end,
            verify,
            state: State::Up,
            up_since: restarted.map_or(Time::ZERO, |(_, began)| began),
            down_since: restarted.map(|(crashed, _)| crashed),
            messages: Messages::default(),
            channels: Channels::default(),
            threads: std::iter::repeat_with(Thread::default).take(threads).collect(),
            ready: VecDeque::new(),
            waiting_responses: 0,
            held: Vec::new(),
            scheduled: Schedule::default(),
            actions: Vec::new(),
            records: VecDeque::new(),
            coverage: BTreeMap::new(),
            completed: BTreeSet::new(),
            verified: 0,
            refused: 0,
            streams: Vec::with_capacity(streams.len()),
        };
        app.actions.resize_with(instances.unwrap_or(0), ActionQueue::default);
        for stream in streams {
            let collective = stream.collective.as_ref();
            let rank = collective.and_then(|(it, begins)| Rank::new(it, host, *begins));
            app.streams.push(Stream {
                alive: u64::from(rank.is_some()),
                rank: rank.map(Box::new),
                instance: stream.instance,
                exchange: stream.exchange,
                streaming: stream.streaming,
                application: stream.application,
                generator: stream.generator,
                next: None,
                max_outstanding: stream.max_outstanding,
                deadlines: stream.deadline.map(Deadlines::new),
                delay_after_failure: stream.delay_after_failure,
            });
            app.draw(app.streams.len() - 1);
        }
        app
    }

    /// Draws the next message of an open-loop stream.
    fn draw(&mut self, stream: usize) {
        let state = &mut self.streams[stream];
        state.next = state.generator.next_arrival();
        if let Some(crashed) = self.down_since
            && !state.generator.is_loop()
        {
            // The earlier process has recorded these.
            while state.next.is_some_and(|arrival| arrival.at <= crashed) {
                state.next = state.generator.next_arrival();
            }
        }
        state.alive += u64::from(state.next.is_some());
    }

    /// The host on which the application runs.
    #[must_use]
    pub const fn host(&self) -> HostId {
        self.host
    }

    /// Whether a stream of messages has ended at this host: no message will start, and none is in progress.
    #[must_use]
    pub fn has_ended(&self, stream: u16) -> bool {
        self.streams[usize::from(stream)].alive == 0
    }

    /// Number of messages that transports have refused.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of messages whose bytes were checked.
    #[must_use]
    pub const fn verified(&self) -> u64 {
        self.verified
    }

    /// The transport of a stream of messages.
    #[must_use]
    pub fn instance(&self, stream: u16) -> u8 {
        self.streams[usize::from(stream)].instance
    }

    /// Whether some stream of messages uses channels.
    #[must_use]
    pub fn has_channels(&self) -> bool {
        self.streams.iter().any(|stream| stream.streaming.is_some())
    }

    /// The stream of messages and the receiver of a message that is in progress.
    #[must_use]
    #[inline]
    pub fn route(&self, key: MessageKey) -> Option<(u16, HostId)> {
        self.messages.get(key).map(|message| (message.stream, message.dst))
    }

    /// What is known of a message of this host that is in progress.
    #[must_use]
    pub fn start_of(&self, key: MessageKey) -> Option<MessageStart> {
        let &Message { stream, dst, bytes, start, .. } = self.messages.get(key)?;
        Some(MessageStart { stream, src: self.host, dst, bytes, at: start })
    }

    /// The facts about a message of this host that its receiver needs.
    #[must_use]
    #[inline]
    pub fn origin(&self, key: MessageKey) -> Option<Origin> {
        let message = self.messages.get(key)?;
        let place = message.channel.and_then(|channel| self.channels.place(channel));
        Some(Origin { stream: message.stream, key, place, number: message.number })
    }

    fn push(&mut self, action: Action) {
        self.actions[usize::from(action.instance())].actions.push_back(action);
    }

    /// Takes the next action. Messages that have ended meanwhile are not submitted.
    #[inline]
    pub fn poll_action(&mut self) -> Option<Action> {
        let Self { actions, messages, .. } = self;
        let is_current = |action: &Action| match action {
            Action::Submit { key, .. } => messages.get(*key).is_some(),
            _ => true,
        };
        let mut open = actions.iter_mut().filter(|queue| !queue.blocked);
        open.find_map(|queue| {
            std::iter::from_fn(|| queue.actions.pop_front()).find(|action| is_current(action))
        })
    }

    /// Returns an action for which the transport has no room. It and later actions for the same transport are
    /// returned by [`App::poll_action`] after [`App::unblock`]; until then the streams of this transport start
    /// no messages.
    pub fn put_back(&mut self, action: Action) {
        let queue = &mut self.actions[usize::from(action.instance())];
        queue.actions.push_front(action);
        queue.blocked = true;
    }

    /// Makes returned actions available, because a transport may have room. Returns whether there are any.
    pub fn unblock(&mut self) -> bool {
        let mut any = false;
        for queue in &mut self.actions {
            any |= std::mem::take(&mut queue.blocked);
        }
        any
    }

    /// What this host has done of the collective of a stream of messages; `None` without one.
    #[must_use]
    pub fn rank(&self, stream: u16) -> Option<RankReport> {
        Some(self.streams.get(usize::from(stream))?.rank.as_ref()?.report())
    }

    /// Takes the next record of a message.
    #[inline]
    pub fn poll_record(&mut self) -> Option<Record> {
        self.records.pop_front()
    }

    /// When the next message of a stream is due that is not caused by the end of another. If this is in the past, the
    /// message waits for its transport or for the end of others.
    #[must_use]
    pub fn next_arrival(&self, stream: u16) -> Option<Time> {
        self.streams[usize::from(stream)].next.map(|arrival| arrival.at)
    }

    /// Starts no more messages. Those in progress end as they would have.
    pub fn stop(&mut self) {
        for stream in &mut self.streams {
            stream.generator.stop();
            stream.alive -= u64::from(stream.next.take().is_some());
            if stream.rank.take().is_some_and(|rank| !rank.has_ended()) {
                stream.alive -= 1;
            }
        }
        let streams = &mut self.streams;
        let mut keep = |ready: &Ready| {
            let Ready::Start { stream, .. } = ready else { return true };
            streams[usize::from(*stream)].alive -= 1;
            false
        };
        self.ready.retain(&mut keep);
        self.held.retain(&mut keep);
        while let Some((_, (stream, _))) = self.scheduled.pop() {
            self.streams[usize::from(stream)].alive -= 1;
        }
    }

    /// Whether an action can start now, because of an earlier event.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.next_ready().is_some()
    }

    /// Index of the first ready action whose transport has room.
    fn next_ready(&self) -> Option<usize> {
        let instance = |ready: &Ready| match ready {
            Ready::Start { stream, .. } | Ready::Respond { stream, .. } => Some(*stream),
            Ready::Submit { key, .. } => self.messages.get(*key).map(|message| message.stream),
        };
        self.ready.iter().position(|ready| {
            instance(ready).is_none_or(|stream| !self.is_blocked(self.instance(stream)))
        })
    }

    /// When [`App::handle_timeout`] must be called next; `None` if never.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_ready() {
            return Some(Time::ZERO);
        }
        let arrivals = self.streams.iter().filter(|stream| !self.is_blocked(stream.instance));
        let arrivals = arrivals.filter_map(|stream| stream.next().map(|arrival| arrival.at));
        let works = self.threads.iter().filter_map(Thread::due);
        let works = works.chain(self.next_deadline()).filter(|_| self.state == State::Up);
        let ranks = self.streams.iter().filter(|stream| !self.is_blocked(stream.instance));
        let ranks = ranks.filter_map(|stream| stream.rank.as_ref()?.poll_timeout());
        arrivals.chain(self.scheduled.next_time()).chain(works).chain(ranks).min()
    }

    fn is_blocked(&self, instance: u8) -> bool {
        self.actions[usize::from(instance)].blocked
    }

    /// Performs one action that is due: starts a message, submits a response, fails a message at its deadline, or ends
    /// a thread's work.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.state == State::Up && self.expire(now) {
            return;
        }
        let ready = self.next_ready().and_then(|index| self.ready.remove(index));
        if let Some(ready) = ready {
            return self.start_ready(now, ready);
        }
        if let Some((_, (stream, arrival))) = self.scheduled.pop_due(now) {
            return self.start_ready(now, Ready::Start { stream, arrival });
        }
        for stream in 0..self.streams.len() {
            let instance = self.streams[stream].instance;
            let next = self.streams[stream].next().filter(|arrival| arrival.at <= now);
            if let Some(arrival) = next.filter(|_| !self.is_blocked(instance)) {
                self.start(now, stream as u16, arrival, 0);
                self.draw(stream);
                self.streams[stream].alive -= 1;
                return;
            }
            let is_due = |rank: &Rank| rank.poll_timeout().is_some_and(|at| at <= now);
            if !self.is_blocked(instance)
                && self.streams[stream].rank.as_deref().is_some_and(is_due)
            {
                let message = self.streams[stream].with_rank(|rank| rank.handle_timeout(now));
                if let Some(Outgoing { number, dst, bytes }) = message.flatten() {
                    self.start(now, stream as u16, Arrival { at: now, dst, bytes }, number);
                }
                return;
            }
        }
        if self.state == State::Up {
            self.finish_due_work(now);
        }
    }

    fn start_ready(&mut self, now: Time, ready: Ready) {
        match (self.state, ready) {
            (State::Down, Ready::Start { .. }) => self.held.push(ready),
            (_, Ready::Start { stream, arrival }) => {
                self.start(now, stream, arrival, 0);
                self.streams[usize::from(stream)].alive -= 1;
            }
            (State::Paused, _) => self.held.push(ready),
            (State::Up, Ready::Submit { key }) => self.submit(now, key),
            (State::Up, Ready::Respond { stream, request }) => {
                self.waiting_responses -= 1;
                self.respond(stream, request);
            }
            (State::Down, Ready::Submit { .. } | Ready::Respond { .. }) => {}
        }
    }

    /// Starts a message.
    fn start(&mut self, now: Time, stream: u16, arrival: Arrival, number: u64) {
        let Arrival { at, dst, bytes } = arrival;
        let down = at < self.up_since && self.down_since.is_some_and(|crashed| at > crashed);
        let start = if down { at } else { at.max(self.up_since) };
        self.streams[usize::from(stream)].alive += 1;
        let start = MessageStart { stream, src: self.host, dst, bytes, at: start };
        let key = self.messages.insert(&start);
        if number > 0
            && let Some(message) = self.messages.get_mut(key)
        {
            message.number = number;
        }
        self.join_channel(stream, key);
        self.records.push_back(Record::Started { key, start });
        match self.state {
            _ if down => self.fail_at(at, now, key, FailReason::HostCrashed),
            State::Up => self.submit(now, key),
            State::Paused => self.held.push(Ready::Submit { key }),
            State::Down => self.fail(now, key, FailReason::HostCrashed),
        }
    }

    fn submit(&mut self, now: Time, key: MessageKey) {
        // The message may have failed while it waited.
        let Some(&message) = self.messages.get(key) else { return };
        self.start_deadline(now, message.stream, key);
        if self.write_message(key, message.bytes) {
            return;
        }
        let Stream { instance, exchange, .. } = self.streams[usize::from(message.stream)];
        let kind = if exchange == Exchange::OneWay { Kind::OneWay } else { Kind::Request };
        self.push(Action::Submit {
            key,
            stream: message.stream,
            instance,
            peer: message.dst,
            bytes: message.bytes,
            kind,
            start: message.start,
        });
    }

    fn respond(&mut self, stream: u16, request: ReceivedMessage) {
        let Stream { instance, exchange, .. } = self.streams[usize::from(stream)];
        let bytes = exchange.response_bytes(request.bytes).unwrap_or(request.bytes);
        let (peer, id) = (request.peer, request.id.response());
        match request.direction {
            Some(direction) => {
                let direction = Direction { id: direction.id.response(), ..direction };
                self.append(stream, direction, request.key, bytes);
            }
            None => self.push(Action::Respond { stream, instance, peer, id, bytes }),
        }
    }

    /// Called when a transport has accepted a message of this host, under this id.
    #[inline]
    pub fn submitted(&mut self, key: MessageKey, id: MessageId) {
        if let Some(message) = self.messages.get_mut(key) {
            message.id = Some(id);
        }
    }

    /// Called when a transport has refused a message of this host.
    pub fn submit_refused(&mut self, now: Time, key: MessageKey) {
        self.refused += 1;
        self.fail(now, key, FailReason::Cancelled);
    }

    /// Called when a transport has refused a response.
    pub const fn respond_refused(&mut self) {
        self.refused += 1;
    }

    /// Handles an event of a transport of this host. `origin` describes the message that the event is about;
    /// `None` if no such message is in progress, or the event is about a stream.
    pub fn handle_event(&mut self, now: Time, instance: u8, event: Event, origin: Option<Origin>) {
        match event {
            Event::Delivered { peer, id, bytes, kind } => {
                self.delivered(now, (peer, id), bytes, kind, origin);
            }
            Event::Sent { id, .. } => {
                if let Some(origin) = origin
                    && self.one_way_end == OneWayEnd::WhenSent
                    && !id.is_response()
                    && self.streams[usize::from(origin.stream)].exchange == Exchange::OneWay
                {
                    self.end(now, origin.key, MessageEnd::Completed);
                }
            }
            Event::Failed { peer, id, reason } => match origin {
                Some(origin) => self.fail(now, origin.key, reason),
                None => {
                    self.stream_failed(now, Direction { instance, peer, id }, reason);
                }
            },
            Event::Stream(event) => self.on_stream_event(now, instance, event),
        }
    }

    fn delivered(
        &mut self,
        now: Time,
        (peer, id): (HostId, MessageId),
        bytes: u64,
        kind: Kind,
        origin: Option<Origin>,
    ) {
        let Some(Origin { stream, key, place, number }) = origin else {
            // A message that its sender has given up may still arrive, but none arrives twice.
            assert!(!self.completed.contains(&(peer, id)), "message {id} came twice");
            return;
        };
        if self.verify {
            let stored = self.coverage.remove(&(peer, id)).unwrap_or_default();
            let is_whole = stored.iter().eq(std::iter::once(0..bytes));
            assert!(is_whole, "message {id} of {bytes} bytes: {stored:?} stored");
            self.verified += 1;
        }
        let direction = None;
        let message = ReceivedMessage { peer, id, bytes, kind, key, direction, number };
        match place {
            Some(place) => self.arrive_in_order(now, stream, place, message),
            None => self.enqueue_work(now, stream, Work::Message(message)),
        }
    }

    /// Called when a receiver has stored bytes of a message or stream, if they are checked.
    pub fn handle_store(&mut self, instance: u8, peer: HostId, slice: Slice, is_stream: bool) {
        if slice.len == 0 {
            return;
        }
        if is_stream {
            return self.store_of_stream(instance, peer, slice);
        }
        let (start, len) = (u64::from(slice.offset), u64::from(slice.len));
        self.coverage.entry((peer, slice.message)).or_default().insert(start..start + len);
    }

    /// Whether the exchange of a message has not ended, as far as this host knows.
    fn is_wanted(&self, message: &ReceivedMessage) -> bool {
        message.kind != Kind::Response || self.messages.get(message.key).is_some()
    }

    /// Handles a message that the application has processed.
    fn processed(&mut self, now: Time, stream: u16, message: ReceivedMessage) {
        let ReceivedMessage { peer, id, kind, key, number, .. } = message;
        if self.verify && message.direction.is_none() {
            self.completed.insert((peer, id));
        }
        match kind {
            Kind::Request => {
                self.ready.push_back(Ready::Respond { stream, request: message });
                self.waiting_responses += 1;
                self.bound_waiting_responses();
            }
            Kind::OneWay => {
                self.streams[usize::from(stream)].with_rank(|it| it.received(now, peer, number));
                self.records.push_back(Record::Received { peer, key, id, at: now });
            }
            Kind::Response => self.end(now, key, MessageEnd::Completed),
        }
    }

    fn bound_waiting_responses(&mut self) {
        if self.waiting_responses > MAX_WAITING_RESPONSES {
            let is_response = |ready: &Ready| matches!(ready, Ready::Respond { .. });
            if let Some(oldest) = self.ready.iter().position(is_response) {
                self.ready.remove(oldest);
                self.waiting_responses -= 1;
                self.refused += 1;
            }
        }
    }

    /// Discards a peer's message that its sender has given up. For drivers that know this without a packet.
    pub fn forget(&mut self, peer: HostId, id: MessageId) {
        self.completed.remove(&(peer, id));
        for thread in &mut self.threads {
            thread.forget(peer, id);
        }
    }

    /// Called when a peer has processed a one-way message of this host. For drivers that know this without a
    /// packet, with [`OneWayEnd::WhenReceived`].
    pub fn received_by_peer(&mut self, now: Time, key: MessageKey) {
        self.end(now, key, MessageEnd::Completed);
    }

    /// Fails a message of this host, and all other messages of its channel.
    pub fn fail(&mut self, now: Time, key: MessageKey, reason: FailReason) {
        self.fail_at(now, now, key, reason);
    }

    fn fail_at(&mut self, at: Time, now: Time, key: MessageKey, reason: FailReason) {
        match self.messages.get(key).and_then(|message| message.channel) {
            Some((channel, _)) => self.fail_channel(now, channel, reason),
            None => self.end_at(at, now, key, MessageEnd::Failed(reason)),
        }
    }

    /// Fails the stream of a channel. For drivers that know this without a packet.
    pub fn fail_stream(&mut self, now: Time, direction: Direction, reason: FailReason) {
        self.stream_failed(now, direction, reason);
    }

    fn end(&mut self, now: Time, key: MessageKey, end: MessageEnd) {
        self.end_at(now, now, key, end);
    }

    /// Records the end of a message of this host, if it has not ended before. In a closed loop the next message
    /// follows.
    fn end_at(&mut self, at: Time, now: Time, key: MessageKey, end: MessageEnd) {
        let Some(message) = self.messages.remove(key) else { return };
        if let Some(channel) = message.channel {
            self.channels.forget_message(channel);
        }
        let Message { stream, dst, bytes, start, id, number, .. } = message;
        let start = MessageStart { stream, src: self.host, dst, bytes, at: start };
        self.records.push_back(Record::Ended { key, start, id, at, end });
        let state = &mut self.streams[usize::from(stream)];
        state.alive -= 1;
        state.with_rank(|rank| match end {
            MessageEnd::Completed => rank.sent(now, number),
            MessageEnd::Failed(reason) => rank.failed(number, reason),
        });
        if let Some(deadlines) = &mut state.deadlines {
            deadlines.forget_ended(&self.messages);
        }
        if let Some(arrival) = state.generator.completed(now) {
            state.alive += 1;
            let is_failure = matches!(end, MessageEnd::Failed(_));
            let delay = if is_failure { state.delay_after_failure } else { Span::ZERO };
            let at = arrival.at.max(now.saturating_add(delay));
            if at <= now {
                self.ready.push_back(Ready::Start { stream, arrival });
            } else {
                self.scheduled.push(at, (stream, Arrival { at, ..arrival }));
            }
        }
    }

    /// Pauses the host until [`App::resume`]: nothing is submitted or processed. Messages still start on time.
    pub fn pause(&mut self) {
        self.state = State::Paused;
    }

    /// Resumes the host and its threads after a pause. (Our choice, because it is simplest: the time of the
    /// pause counts as time worked, so that at most one item per thread is finished too early.)
    pub fn resume(&mut self) {
        self.state = State::Up;
        self.ready.extend(self.held.drain(..));
    }

    /// Discards all state after a crash: the messages that the host started, and the arrived messages that were not
    /// processed.
    pub fn crash(&mut self, now: Time) {
        self.state = State::Down;
        self.held.clear();
        for stream in &mut self.streams {
            stream.with_rank(Rank::crash);
        }
        for queue in &mut self.actions {
            queue.actions.clear();
            queue.blocked = false;
        }
        let starts = |ready: &Ready| matches!(ready, Ready::Start { .. });
        self.ready.retain(starts);
        self.waiting_responses = 0;
        for key in self.messages.keys() {
            self.end(now, key, MessageEnd::Failed(FailReason::HostCrashed));
        }
        self.coverage.clear();
        self.completed.clear();
        for stream in 0..self.threads.len() {
            let thread = std::mem::take(&mut self.threads[stream]);
            for work in thread.into_works() {
                self.abandon(stream as u16, work);
            }
        }
        self.crash_channels(now);
    }

    /// Abandons an arrival that is lost. Its sender's transport may already have the acknowledgement, and would
    /// not detect the loss. Bytes of a stream are lost with the stream.
    fn abandon(&mut self, stream: u16, work: Work) {
        if let Work::Message(ReceivedMessage { peer, id, key, kind, .. }) = work
            && kind != Kind::Response
        {
            let instance = self.streams[usize::from(stream)].instance;
            self.push(Action::Abandon { instance, peer, id, key });
        }
    }

    /// Restarts the host after a crash. `paused` is set if it is then paused.
    pub fn restart(&mut self, now: Time, paused: bool) {
        self.state = if paused { State::Paused } else { State::Up };
        self.up_since = now;
        self.ready.extend(self.held.drain(..));
    }
}
