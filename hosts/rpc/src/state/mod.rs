//! A node's state under one lock: the endpoint, the waiting tasks, and the timers.
//!
//! A change drives the endpoint immediately, under the lock, so that a call is sent without waiting for another task,
//! unless other tasks are about to submit more ([`sending`]). The driver's task does so when packets arrive or a timer
//! expires. No task waits while it holds the lock, and wakers run after it is released.

mod calls;
mod requests;
mod sending;
mod streams;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::time::TICKS_PER_NS;
use rackweave_core::{FailReason, HostId, Kind, MessageId, Refused, Span, Time};
use rackweave_linux::endpoint::TicketFile;
use rackweave_linux::{AnyEndpoint, Event, SendError};
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use crate::config::NodeConfig;
use crate::driver::Timer;
use crate::error::CallError;
use crate::node::{Peer, Stats};

pub(crate) use calls::CallOptions;
use calls::Calls;
pub(crate) use requests::Arrived;
use requests::Requests;
use sending::{Sending, Submitted};
pub(crate) use streams::StreamKey;
use streams::Streams;
use watch::Watch;

/// Shared by the node's handles and its driver.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) address: SocketAddr,
    /// Unique among the nodes of the process.
    pub(crate) number: u32,
    /// Signals that work waits for a server, or that the node has stopped.
    pub(crate) arrivals: Notify,
    /// Signals that the driver has ended.
    pub(crate) ended: Notify,
}

/// Held by all handles of a node: dropping the last one stops the node.
#[derive(Debug)]
pub(crate) struct Owner(pub(crate) Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().stop(None);
    }
}

impl Shared {
    pub(crate) fn new(
        endpoint: (AnyEndpoint, Option<TicketFile>),
        timer: Timer,
        number: u32,
        config: NodeConfig,
    ) -> Self {
        let address = endpoint.0.local_addr();
        Self {
            state: Mutex::new(State::new(endpoint, timer, number, config)),
            address,
            number,
            arrivals: Notify::new(),
            ended: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        // A panic of the state machine poisons the lock and reaches all waiting tasks: the state is not used after it.
        let guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { shared: self, guard: Some(guard) }
    }
}

/// The result of a call.
pub(crate) type Outcome = Result<Bytes, CallError>;

/// Tasks to wake.
#[derive(Debug)]
pub(crate) enum Wake {
    Task(Waker),
    Call(oneshot::Sender<Outcome>, Outcome),
    /// One server, because work has arrived.
    Arrival,
    /// All servers, because the node has stopped.
    Stopped,
}

/// The locked state. Releasing it wakes the tasks whose calls or streams have changed.
pub(crate) struct Locked<'a> {
    shared: &'a Shared,
    guard: Option<MutexGuard<'a, State>>,
}

impl Deref for Locked<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        self.guard.as_ref().unwrap_or_else(|| unreachable!("it is locked until it is dropped"))
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().unwrap_or_else(|| unreachable!("it is locked until it is dropped"))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let wakes = std::mem::take(&mut self.wakes);
        self.guard = None;
        for wake in wakes {
            match wake {
                Wake::Task(waker) => waker.wake(),
                // A caller that no longer waits has cancelled the call.
                Wake::Call(done, outcome) => drop(done.send(outcome)),
                Wake::Arrival => self.shared.arrivals.notify_one(),
                Wake::Stopped => self.shared.arrivals.notify_waiters(),
            }
        }
    }
}

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The deadline of a call.
    Call(u64),
    /// The retry of an idempotent call that failed.
    Retry(u64),
    /// The limit for a stream without handles to end.
    Linger(StreamKey),
    /// The end of a shutdown's grace.
    Grace,
    /// The next writing of tickets.
    Tickets,
    /// It has been quiet for [`QUIET`] since the last outstanding work ended.
    Quiet,
}

/// The stages of a node's life.
#[derive(Clone, Debug)]
enum Lifecycle {
    Running,
    /// New work is refused; outstanding work may finish.
    Closing,
    /// Stopped; with the cause, if it was not requested.
    Stopped(Option<Arc<io::Error>>),
    /// The driver has ended as well.
    Ended(Option<Arc<io::Error>>),
}

/// The state of a node; see the [module](self).
#[derive(Debug)]
pub(crate) struct State {
    /// The endpoint; `None` once the node has stopped.
    endpoint: Option<AnyEndpoint>,
    tickets: Tickets,
    timer: Timer,
    /// When the timer fires.
    armed: Time,
    watch: Watch,
    config: NodeConfig,
    /// Unique among the nodes of the process.
    number: u32,
    life: Lifecycle,
    /// Whether the node is shutting down and no work is outstanding.
    quiet: bool,
    /// Whether the endpoint has more to send, so that another turn is due.
    dirty: bool,
    sending: Sending,
    /// Whether a turn is running, which sends what its events cause.
    turning: bool,
    driver: Option<Waker>,
    /// Whether the driver's task must run a turn, even without an event.
    driver_due: bool,
    wakes: SmallVec<[Wake; 4]>,
    due: BTreeSet<(Time, Due)>,
    calls: Calls,
    requests: Requests,
    streams: Streams,
    counted: Stats,
    full: Full,
}

/// How long a stopping node listens after its last call, so that its peers learn that it has their
/// responses: Homa's peers ask for that after some milliseconds.
const QUIET: Duration = Duration::from_millis(30);

/// The interval at which calls, responses and writes are tried again that wait for room. The value is our choice.
const ROOM_INTERVAL: Span = Span::from_ms(1);

/// The least interval between reports that the transport has no room.
const FULL_INTERVAL: Span = Span::from_secs(1);

/// What was reported of packets that were dropped for lack of room.
#[derive(Debug, Default)]
struct Full {
    /// When they are counted next.
    at: Time,
    /// Their number at the last count.
    dropped: u64,
}

/// The file of tickets, and whether it is behind.
#[derive(Debug)]
struct Tickets {
    file: Option<TicketFile>,
    unsaved: bool,
    /// The earliest time at which it is written again.
    next: Time,
}

/// The least interval between writings of the tickets, in the task that finds them changed.
const TICKETS_INTERVAL: Span = Span::from_secs(1);

/// The largest number of consecutive turns, since events may cause more to be sent.
const TURNS: u32 = 3;

impl State {
    fn new(
        (endpoint, file): (AnyEndpoint, Option<TicketFile>),
        timer: Timer,
        number: u32,
        config: NodeConfig,
    ) -> Self {
        Self {
            endpoint: Some(endpoint),
            tickets: Tickets { file, unsaved: false, next: Time::ZERO },
            timer,
            armed: Time::MAX,
            watch: Watch::default(),
            streams: Streams::new(config.transport.credit_step()),
            config,
            number,
            life: Lifecycle::Running,
            quiet: false,
            dirty: false,
            sending: Sending::default(),
            turning: false,
            driver: None,
            driver_due: false,
            wakes: SmallVec::new(),
            due: BTreeSet::new(),
            calls: Calls::default(),
            requests: Requests::default(),
            counted: Stats::default(),
            full: Full::default(),
        }
    }

    /// The error for new work, if none is accepted.
    fn stopped(&self) -> Option<CallError> {
        match &self.life {
            Lifecycle::Running => None,
            Lifecycle::Closing => Some(CallError::NodeStopped(None)),
            Lifecycle::Stopped(why) | Lifecycle::Ended(why) => {
                Some(CallError::NodeStopped(why.clone()))
            }
        }
    }

    fn endpoint(&mut self) -> Result<&mut AnyEndpoint, CallError> {
        match &mut self.endpoint {
            Some(endpoint) => Ok(endpoint),
            None => Err(match &self.life {
                Lifecycle::Stopped(why) | Lifecycle::Ended(why) => {
                    CallError::NodeStopped(why.clone())
                }
                _ => CallError::NodeStopped(None),
            }),
        }
    }

    fn now(&self) -> Time {
        self.endpoint.as_ref().map_or(Time::MAX, |endpoint| endpoint.clock().now())
    }

    pub(crate) fn add_peer(&mut self, address: SocketAddr) -> HostId {
        self.endpoint.as_mut().map_or(HostId(u32::MAX), |endpoint| endpoint.add_peer(address))
    }

    pub(crate) fn peer_addr(&self, host: HostId) -> SocketAddr {
        let address = self.endpoint.as_ref().and_then(|endpoint| endpoint.peer_addr(host));
        address.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// Translates an endpoint's refusal.
    fn refused(&self, peer: Peer, bytes: u64, added: u64, error: SendError) -> CallError {
        match error {
            SendError::UnknownPeer(_) => CallError::UnknownPeer,
            SendError::Full { .. } | SendError::Refused(Refused::Busy) => self.full(),
            SendError::Refused(Refused::TooLong { max }) => {
                CallError::TooLong { bytes, max: max.saturating_sub(added) }
            }
            SendError::Refused(Refused::Unsupported) => CallError::NoStreams,
            SendError::Refused(Refused::UnknownRequest | Refused::Ended) => {
                CallError::PeerForgot { peer: peer.address }
            }
            SendError::Refused(refused) => CallError::Transport(refused),
        }
    }

    fn full(&self) -> CallError {
        let waiting = self.endpoint.as_ref().map_or(0, |endpoint| endpoint.memory().0);
        CallError::Full { waiting, calls: self.calls.waiting() }
    }

    /// Translates a transport's failure.
    fn failure(&self, peer: HostId, reason: FailReason) -> CallError {
        let peer = self.peer_addr(peer);
        match reason {
            FailReason::PeerSilent => CallError::PeerSilent { peer, paused: self.paused() },
            FailReason::PeerForgot => CallError::PeerForgot { peer },
            FailReason::Cancelled => CallError::Reset { peer },
            FailReason::HostCrashed => CallError::NodeStopped(None),
            FailReason::Deadline => CallError::StreamDeadline,
        }
    }

    /// A task has changed something that the endpoint must send: at once, or after the tasks that are about to submit more.
    pub(crate) fn submitted(&mut self) {
        self.dirty = true;
        if self.turning {
            return;
        }
        let others = self.calls.len() + self.requests.known() + self.streams.len();
        let now = self.endpoint.as_ref().map_or(Time::MAX, AnyEndpoint::last_now);
        match self.sending.submitted(now, others <= 1) {
            Submitted::SendNow => self.send(),
            Submitted::Wait => self.wake_driver(),
        }
    }

    /// Sends what waits, without receiving.
    pub(crate) fn send(&mut self) {
        if self.turning {
            return;
        }
        self.driver_due |= self.turn(false) || self.left_to_receive();
        if self.driver_due || self.is_blocked() {
            self.wake_driver();
        }
    }

    /// Runs a turn for the driver, which receives if the socket is readable. Returns whether something remains to be received.
    pub(crate) fn drive(&mut self, readable: bool) -> bool {
        let receive = readable || self.left_to_receive();
        self.driver_due = self.turn(receive);
        self.sending.woken(self.wakes.len());
        let left = self.left_to_receive();
        self.driver_due |= left;
        left
    }

    fn left_to_receive(&self) -> bool {
        self.endpoint.as_ref().is_some_and(AnyEndpoint::left_to_receive)
    }

    /// Runs a turn of the endpoint and distributes its events. Returns whether another one is due at once, even if the socket
    /// does not become readable.
    fn turn(&mut self, mut receive: bool) -> bool {
        self.turning = true;
        self.watch.runs(self.now(), self.armed);
        // The transport forgets finished exchanges as of the time at which the socket was empty, which only receiving finds out.
        receive |= self.calls.waits_for_room();
        let mut next = None;
        for _ in 0..TURNS {
            let Some(endpoint) = &mut self.endpoint else { break };
            self.dirty = false;
            self.sending.sent();
            let receives = std::mem::replace(&mut receive, false);
            let turned = if receives { endpoint.turn() } else { endpoint.send_turn() };
            next = match turned {
                Ok(next) => next,
                Err(error) => {
                    self.stop(Some(error));
                    break;
                }
            };
            self.streams.unreported = 0;
            while let Some(event) = self.endpoint.as_mut().and_then(AnyEndpoint::poll_event) {
                self.on_event(event);
            }
            self.note_tickets();
            self.note_full();
            self.expire();
            self.submit_waiting();
            self.retry_blocked();
            if !self.dirty {
                break;
            }
        }
        self.turning = false;
        if matches!(self.life, Lifecycle::Closing) && !self.quiet && self.is_idle() {
            self.quiet = true;
            self.due.insert((self.after(QUIET), Due::Quiet));
        }
        let Some(endpoint) = &self.endpoint else { return false };
        let now = endpoint.clock().now();
        self.sending.turned(now);
        self.watch.runs(now, self.armed);
        let first = self.due.first().map(|(at, _)| *at);
        // What waits for room is tried again: no event reports that a transport has forgotten finished exchanges.
        let waits = self.calls.waits_for_room() || self.streams.has_blocked();
        let again = waits.then(|| now + ROOM_INTERVAL);
        let next = [next, first, again].into_iter().flatten().min();
        if self.dirty || next.is_some_and(|next| next <= now) {
            return true;
        }
        if let Some(at) = next {
            self.arm(at);
        }
        self.watch.waits();
        false
    }

    /// Makes the timer fire at this time or earlier.
    fn arm(&mut self, at: Time) {
        if at < self.armed {
            self.armed = at;
            if let Err(error) = self.timer.set(at) {
                self.stop(Some(error));
            }
        }
    }

    /// Makes the driver try again what waits for room.
    fn try_again(&mut self) {
        self.arm(self.now().saturating_add(ROOM_INTERVAL));
    }

    pub(crate) fn retry_soon(&mut self) {
        self.arm(self.after(Duration::from_millis(1)));
    }

    pub(crate) fn timer_fired(&mut self) {
        self.watch.runs(self.now(), self.armed);
        self.armed = Time::MAX;
    }

    /// For how long this node was not served, if that was so until shortly before: its peers were then silent because it did not ask.
    fn paused(&self) -> Option<Duration> {
        self.watch.paused(self.now(), self.armed).map(duration)
    }

    /// Wakes the driver, which runs a turn if one is due or something waits to be sent.
    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            self.wakes.push(Wake::Task(driver));
        }
    }

    /// The driver runs, and is woken by this waker from now on.
    pub(crate) fn driver_runs(&mut self, waker: &Waker) {
        self.sending.driver_runs();
        if !self.driver.as_ref().is_some_and(|driver| driver.will_wake(waker)) {
            self.driver = Some(waker.clone());
        }
    }

    pub(crate) const fn take_due(&mut self) -> bool {
        std::mem::replace(&mut self.driver_due, false)
    }

    /// Whether something waits to be sent.
    pub(crate) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.endpoint.as_ref().is_some_and(AnyEndpoint::is_blocked)
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Message { peer, id, kind: Kind::Response, bytes } => {
                self.on_answer(peer, id, &bytes);
            }
            Event::Message { peer, id, kind: Kind::Request, bytes } => {
                self.on_request(peer, id, &bytes);
            }
            Event::Message { peer, kind: Kind::OneWay, bytes, .. } => self.on_one_way(peer, &bytes),
            Event::Sent { peer, id } => self.on_sent(peer, id),
            Event::Failed { peer, id, reason } => self.on_failed(peer, id, reason),
            Event::Opened { peer, id } => self.on_opened(peer, id),
            Event::Readable { peer, id, pieces, end } => {
                self.on_readable(StreamKey::receiving(peer, id), pieces, end);
            }
            Event::Written { peer, id, .. } => self.on_written(StreamKey::sending(peer, id)),
            Event::Closed { peer, id } => self.on_closed(peer, id),
            Event::PeerRestarted { peer } => self.on_restart(peer),
            Event::KeyMismatch { peer, why } => {
                let error = CallError::Key { peer: self.peer_addr(peer), why };
                self.end_calls(peer, &error, false);
                self.end_streams(peer, &error);
            }
            Event::PathMtu { peer, change } => {
                let peer = self.peer_addr(peer);
                tracing::warn!(node = self.number, %peer, "{change}");
            }
        }
    }

    fn on_failed(&mut self, peer: HostId, id: MessageId, reason: FailReason) {
        let error = self.failure(peer, reason);
        if id.is_response() {
            self.counted.lost_answers += 1;
        } else if !self.fail_call(peer, id, &error) && !self.fail_stream(peer, id, &error) {
            self.forget_request(peer, id);
        }
    }

    /// Fails the work that a restarted peer has lost. It would otherwise be left to the transport, which might restart
    /// it.
    fn on_restart(&mut self, peer: HostId) {
        let address = self.peer_addr(peer);
        tracing::info!(node = self.number, peer = %address, "peer has restarted");
        self.restart_calls(peer);
        self.restart_streams(peer);
        self.forget_requests(peer);
        self.dirty = true;
    }

    /// Handles all timers that are due.
    fn expire(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let now = self.now();
        while let Some(&(at, due)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            match due {
                Due::Call(token) => self.call_expired(token),
                Due::Retry(token) => self.retry_call(token),
                Due::Linger(key) => self.drop_stream(key),
                Due::Tickets => self.save_tickets(now),
                Due::Quiet if !self.is_idle() => self.quiet = false,
                Due::Quiet | Due::Grace => return self.stop(None),
            }
        }
    }

    /// Returns the time on the endpoint's clock after this duration.
    fn after(&self, duration: Duration) -> Time {
        self.now().saturating_add(span(duration))
    }

    /// Refuses new work, and stops when the outstanding work has ended. Returns `true` once it has stopped and the
    /// driver has ended.
    pub(crate) fn close(&mut self) -> bool {
        if matches!(self.life, Lifecycle::Running) {
            self.life = Lifecycle::Closing;
            let at = self.after(self.config.grace);
            self.due.insert((at, Due::Grace));
            self.refuse_waiting();
            self.wakes.push(Wake::Stopped);
            self.send();
        }
        matches!(self.life, Lifecycle::Ended(_))
    }

    /// Whether no work is outstanding.
    fn is_idle(&self) -> bool {
        self.calls.is_empty()
            && self.requests.is_empty()
            && self.streams.is_empty()
            && self.endpoint.as_ref().is_none_or(|endpoint| endpoint.memory().0 == 0)
    }

    /// Notes whether tickets have changed, and writes them if the last time was long enough ago.
    /// Reports that the transport drops calls of peers for lack of room, at most once in [`FULL_INTERVAL`]: the peers see late
    /// answers only.
    fn note_full(&mut self) {
        let Some(endpoint) = &self.endpoint else { return };
        let now = endpoint.last_now();
        if now < self.full.at {
            return;
        }
        let dropped = endpoint.stats().not_admitted;
        if dropped > self.full.dropped {
            let more = dropped - self.full.dropped;
            tracing::warn!(
                node = self.number,
                packets = more,
                "the transport has no room for new calls of peers, or none to remember them after their end: they are late"
            );
        }
        self.full = Full { at: now + FULL_INTERVAL, dropped };
    }

    fn note_tickets(&mut self) {
        let Some(endpoint) = &mut self.endpoint else { return };
        if self.tickets.file.is_none() || endpoint.changed_tickets().is_none() {
            return;
        }
        let now = endpoint.clock().now();
        self.tickets.unsaved = true;
        if self.tickets.next <= now {
            self.save_tickets(now);
        } else {
            self.due.insert((self.tickets.next, Due::Tickets));
        }
    }

    fn save_tickets(&mut self, now: Time) {
        let Some(store) = self.endpoint.as_ref().and_then(AnyEndpoint::tickets) else { return };
        let Some(file) = self.tickets.file.as_ref().filter(|_| self.tickets.unsaved) else {
            return;
        };
        self.counted.tickets_not_written += u64::from(file.save(store).is_err());
        self.tickets.unsaved = false;
        self.tickets.next = now + TICKETS_INTERVAL;
    }

    /// Stops immediately and wakes all waiting tasks.
    pub(crate) fn stop(&mut self, why: Option<io::Error>) {
        self.save_tickets(Time::ZERO);
        if why.is_none()
            && self.dirty
            && let Some(endpoint) = &mut self.endpoint
        {
            // What tasks have submitted leaves, as far as the link has room. The node stops in any case.
            let _ = endpoint.send_turn();
        }
        if self.endpoint.take().is_none() {
            return;
        }
        let why = why.map(Arc::new);
        self.life = Lifecycle::Stopped(why.clone());
        let error = CallError::NodeStopped(why);
        self.due.clear();
        self.fail_all_calls(&error);
        self.fail_all_streams(&error);
        self.requests.clear();
        self.wakes.push(Wake::Stopped);
        self.wake_driver();
    }

    pub(crate) const fn is_stopped(&self) -> bool {
        self.endpoint.is_none()
    }

    pub(crate) fn set_ended(&mut self) {
        if let Lifecycle::Stopped(why) = &self.life {
            self.life = Lifecycle::Ended(why.clone());
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let (sending_bytes, arriving_bytes) =
            self.endpoint.as_ref().map_or((0, 0), AnyEndpoint::memory);
        Stats {
            datagrams: self.endpoint.as_ref().map(AnyEndpoint::stats).unwrap_or_default(),
            sending_bytes,
            arriving_bytes,
            unread_bytes: self.streams.unread(),
            calls: self.calls.len(),
            calls_without_room: self.calls.waiting(),
            waiting_requests: self.requests.waiting(),
            serving: self.requests.serving(),
            streams: self.streams.len(),
            ..self.counted
        }
    }
}

/// A standard duration as a span, [`Span::MAX`] if it is longer.
fn span(duration: Duration) -> Span {
    let ticks = duration.as_nanos().saturating_mul(u128::from(TICKS_PER_NS));
    Span::from_ticks(u64::try_from(ticks).unwrap_or(u64::MAX))
}

/// A span as a standard duration.
fn duration(span: Span) -> Duration {
    Duration::from_nanos(span.as_ns())
}
