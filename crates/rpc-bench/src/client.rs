//! A client thread.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use rackweave_core::{FailReason, HostId, Kind, MessageId, Rng, Span, Time};
use rackweave_linux::{AnyEndpoint, Clock, Event, SendError};
use rackweave_workload::app::{MessageEnd, MessageStart};
use rackweave_workload::{
    Generator, HostGenerator, LoadCounts, Pattern, WorkloadConfig, WorkloadError,
};
use rustc_hash::FxHashMap;

use crate::config::{BenchConfig, Load, Mode};
use crate::measure::{Digests, Ended, Interval, Seconds, ThreadEnd, Trouble};
use crate::server::{GREETING, NAP, WANTS_ECHO, WANTS_SHORT};

/// How long to greet a server before giving up.
const GREET_FOR: Span = Span::from_secs(3);

/// The interval between failed greetings, and the delay of requests after a failure.
const PAUSE: Span = Span::from_ms(20);

/// Requests are slices of a block of noise that is this much longer than the longest of them.
const NOISE_BYTES: u64 = 1 << 20;

/// State that all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    /// The number of bytes of requests that remain to be sent.
    pub(crate) budget: Option<AtomicU64>,
    /// Measurements since they were last fetched, per thread.
    pub(crate) intervals: Vec<Mutex<Interval>>,
    pub(crate) noise: Bytes,
}

impl Shared {
    pub(crate) fn new(config: &BenchConfig) -> Self {
        let longest = match config.mode {
            Mode::Stream => crate::stream::BLOCK_BYTES as u64,
            Mode::Echo | Mode::OneWay => config.sizes.max(),
        };
        let mut rng = Rng::stream(config.seed, 0, 0, "contents");
        let mut noise = BytesMut::new();
        while (noise.len() as u64) < longest + NOISE_BYTES {
            noise.put_u64(rng.next_u64());
        }
        Self {
            stop: AtomicBool::new(false),
            budget: config.total.map(AtomicU64::new),
            intervals: (0..config.ports).map(|_| Mutex::default()).collect(),
            noise: noise.freeze(),
        }
    }

    pub(crate) fn interval(&self, thread: usize) -> std::sync::MutexGuard<'_, Interval> {
        // A thread that has panicked is noticed when it is joined.
        self.intervals[thread].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `bytes` from the bytes that remain to be sent, and returns how many.
    pub(crate) fn take(&self, bytes: u64) -> u64 {
        let Some(budget) = &self.budget else { return bytes };
        let order = Ordering::Relaxed;
        let before = budget.fetch_update(order, order, |left| Some(left.saturating_sub(bytes)));
        before.unwrap_or_default().min(bytes)
    }
}

/// A request that was sent and has not been answered.
#[derive(Clone, Copy, Debug)]
struct Call {
    start: MessageStart,
    /// When the transport took it.
    sent: Time,
    /// Where its bytes begin in the noise.
    offset: usize,
}

/// A request that has not been sent yet.
#[derive(Clone, Copy, Debug)]
struct Request {
    host: HostId,
    /// The offset of its bytes in the noise.
    offset: usize,
    len: usize,
    due: Time,
}

/// The number of the client as a host of the workload.
const CLIENT: HostId = HostId(0);
/// The number of the first server as a host of the workload; the others follow.
const FIRST_SERVER: u32 = 1;

/// Creates the generator of one thread's requests: their lengths, their servers and, in an open loop, their times.
fn generator(
    config: &BenchConfig,
    thread: usize,
    outstanding: u32,
) -> Result<HostGenerator, WorkloadError> {
    let sizes = config.sizes.clone();
    let mut gap = None;
    let pattern = match config.load {
        Load::Open { gbps } => {
            let threads = f64::from(config.ports).max(1.0);
            let picoseconds = sizes.mean() * 8e3 * threads / gbps;
            gap = Some(Span(picoseconds.max(1.0) as u64));
            // The gap between requests determines the load.
            Pattern::OpenLoop { sizes, load: 1.0, counts: LoadCounts::Payload }
        }
        Load::Closed | Load::Unloaded { .. } => {
            Pattern::ClosedLoop { sizes, outstanding, think: Span::ZERO }
        }
    };
    let servers = config.servers.len() as u32;
    let workload = WorkloadConfig {
        senders: Some(0..FIRST_SERVER),
        receivers: Some(FIRST_SERVER..FIRST_SERVER + servers),
        ..WorkloadConfig::new(pattern)
    };
    let hosts = FIRST_SERVER + servers;
    let generator = Generator::new(&workload, hosts, gap, config.seed, 0, thread as u64)?;
    Ok(generator.of_host(CLIENT))
}

/// The endpoint and state of one thread.
pub(crate) struct Client {
    pub(crate) thread: usize,
    pub(crate) config: Arc<BenchConfig>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) endpoint: AnyEndpoint,
    pub(crate) servers: Vec<(HostId, SocketAddr)>,
    pub(crate) clock: Clock,
    pub(crate) end: ThreadEnd,
    pub(crate) rng: Rng,
    generator: HostGenerator,
    calls: FxHashMap<(HostId, MessageId), Call>,
    /// All calls by deadline, including those that have ended.
    deadlines: VecDeque<(Time, HostId, MessageId)>,
    most: usize,
    /// The time at which the load began.
    began: Time,
    /// The time at which the next request of the open loop is due.
    due: Time,
    /// The lengths to measure without load, with the number of requests of each.
    plan: Option<VecDeque<(u64, u64)>>,
    /// The next request, if it is not due yet or could not be sent.
    next: Option<Request>,
    was_backed_up: bool,
    not_before: Time,
    /// The time of the last response; failures since then are counted.
    heard: Time,
    failed_since: u64,
    /// The digests of what was sent and received, if requested.
    hashers: Option<(blake3::Hasher, blake3::Hasher, u64)>,
}

impl Client {
    pub(crate) fn new(
        thread: usize,
        config: Arc<BenchConfig>,
        shared: Arc<Shared>,
        mut endpoint: AnyEndpoint,
    ) -> Result<Self, WorkloadError> {
        let servers =
            config.servers.iter().map(|&server| (endpoint.add_peer(server), server)).collect();
        let clock = endpoint.clock();
        let threads = u32::from(config.ports).max(1);
        let sizes = &config.sizes;
        let plan = match config.load {
            Load::Unloaded { each } => Some(sizes.points().map(|(size, _)| (size, each)).collect()),
            Load::Closed | Load::Open { .. } => None,
        };
        let most = if plan.is_some() { 1 } else { config.outstanding.div_ceil(threads).max(1) };
        let generator = generator(&config, thread, most)?;
        Ok(Self {
            thread,
            servers,
            clock,
            end: ThreadEnd::new(),
            rng: Rng::stream(config.seed, 0, thread as u64, "calls"),
            generator,
            calls: FxHashMap::default(),
            deadlines: VecDeque::new(),
            most: most as usize,
            began: clock.now(),
            due: clock.now(),
            plan,
            next: None,
            was_backed_up: false,
            not_before: Time::ZERO,
            heard: clock.now(),
            failed_since: 0,
            hashers: config.check.then(|| (blake3::Hasher::new(), blake3::Hasher::new(), 0)),
            config,
            shared,
            endpoint,
        })
    }

    /// Runs until the end and returns the results.
    pub(crate) fn run(mut self) -> ThreadEnd {
        let result = match self.config.mode {
            Mode::Stream => self.greet(WANTS_ECHO).and_then(|()| self.run_stream()),
            Mode::Echo => self.greet(WANTS_ECHO).and_then(|()| self.run_calls()),
            Mode::OneWay => self.greet(WANTS_SHORT).and_then(|()| self.run_calls()),
        };
        self.end.trouble = result.err();
        if let Some((sent, back, bytes)) = self.hashers.take() {
            let hex = |hasher: blake3::Hasher| hasher.finalize().to_hex().to_string();
            self.end.digests = Some(Digests { bytes, sent: hex(sent), back: hex(back) });
        }
        self.shared.interval(self.thread).outstanding = 0;
        self.end
    }

    pub(crate) fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn turn(&mut self) -> Result<Option<Time>, Trouble> {
        self.endpoint.turn().map_err(|error| socket(&error))
    }

    /// Greets each server, and requests the kind of responses that it must send.
    fn greet(&mut self, wants: u8) -> Result<(), Trouble> {
        let greeting = Bytes::from([&GREETING[..], &[wants]].concat());
        let began = self.clock.now();
        for (host, server) in self.servers.clone() {
            let no_answer = |now: Time| Trouble::NoAnswer {
                server,
                transport: self.config.setup.transport.name(),
                protocol: self.config.setup.transport.protocol(),
                waited_s: Seconds(now.since(began).as_secs_f64()),
            };
            let until = self.clock.now() + GREET_FOR;
            let mut asked: Option<MessageId> = None;
            let mut ask_at = self.clock.now();
            'asking: loop {
                let now = self.clock.now();
                if now >= until || self.shared.stop.load(Ordering::Relaxed) {
                    if let Some(id) = asked {
                        self.endpoint.cancel(host, id);
                    }
                    return Err(no_answer(now));
                }
                if asked.is_none() && now >= ask_at {
                    let sent = self.endpoint.send(host, Kind::Request, greeting.clone());
                    asked = Some(sent.map_err(|error| Trouble::Refused(error.to_string()))?);
                }
                let next = self.endpoint.turn().map_err(|error| socket(&error))?;
                while let Some(event) = self.endpoint.poll_event() {
                    match event {
                        Event::Message { id, .. } if Some(id) == asked.map(MessageId::response) => {
                            break 'asking;
                        }
                        Event::Failed { id, .. } if Some(id) == asked => {
                            asked = None;
                            ask_at = now + PAUSE;
                        }
                        _ => {}
                    }
                }
                let wake = next.unwrap_or(Time::MAX).min(now + PAUSE);
                self.endpoint.wait(Some(wake)).map_err(|error| socket(&error))?;
            }
        }
        Ok(())
    }

    fn run_calls(&mut self) -> Result<(), Trouble> {
        let began = self.clock.now();
        (self.heard, self.began, self.due) = (began, began, began);
        let until = self.config.duration.map_or(Time::MAX, |span| began + span);
        let mut over = false;
        loop {
            self.take_events();
            let now = self.clock.now();
            over |= now >= until || self.stopped();
            if !over {
                over = self.ask(now)?;
            }
            if over && self.calls.is_empty() {
                return Ok(());
            }
            let next = self.turn()?.unwrap_or(Time::MAX);
            self.expire();
            self.look_for_silence()?;
            let mut wake = next.min(self.clock.now() + NAP);
            if let Some(&(at, ..)) = self.deadlines.front() {
                wake = wake.min(at);
            }
            if !over && self.calls.len() < self.most {
                wake = wake.min(self.due.max(self.not_before));
            }
            self.endpoint.wait(Some(wake)).map_err(|error| socket(&error))?;
        }
    }

    /// Sends the requests that are due; returns `true` if everything has been sent.
    fn ask(&mut self, now: Time) -> Result<bool, Trouble> {
        let open = matches!(self.config.load, Load::Open { .. });
        while now >= self.not_before && (!open || now >= self.due) {
            if self.calls.len() >= self.most {
                self.back_up(open);
                break;
            }
            let Some(request) = self.next.take().or_else(|| self.draw()) else {
                return Ok(true);
            };
            let Request { host, offset, len, due } = request;
            if open {
                self.due = due;
                if due > now {
                    self.next = Some(request);
                    break;
                }
            }
            let bytes = self.shared.noise.slice(offset..offset + len);
            let at = self.clock.now();
            match self.endpoint.send(host, Kind::Request, bytes) {
                Ok(id) => {
                    let due = if open { due } else { at };
                    let (src, bytes) = (CLIENT, len as u64);
                    let start = MessageStart { stream: 0, src, dst: host, bytes, at: due };
                    self.calls.insert((host, id), Call { start, sent: at, offset });
                    self.deadlines.push_back((at + self.config.deadline, host, id));
                    self.shared.interval(self.thread).sent += 1;
                    self.was_backed_up = false;
                }
                Err(SendError::Full { .. } | SendError::Refused(rackweave_core::Refused::Busy)) => {
                    self.next = Some(request);
                    self.back_up(open);
                    break;
                }
                Err(error) => return Err(Trouble::Refused(error.to_string())),
            }
        }
        let mut interval = self.shared.interval(self.thread);
        interval.outstanding = self.calls.len() as u64;
        interval.lag_ns = if open { now.since(self.due).0 / 1000 } else { 0 };
        Ok(false)
    }

    /// Counts a due request of an open loop that could not be sent, once.
    fn back_up(&mut self, open: bool) {
        if open && !std::mem::replace(&mut self.was_backed_up, true) {
            self.shared.interval(self.thread).backed_up += 1;
        }
    }

    /// Returns the next request; `None` if there is no more.
    fn draw(&mut self) -> Option<Request> {
        // In a closed loop these are the initial requests, then one for each that has ended.
        let arrival = self.generator.next_arrival();
        let arrival = arrival.or_else(|| self.generator.completed(Time::ZERO))?;
        let len = match &mut self.plan {
            Some(plan) => {
                let (size, left) = plan.front_mut()?;
                let size = *size;
                *left = left.saturating_sub(1);
                if *left == 0 {
                    plan.pop_front();
                }
                size
            }
            None => arrival.bytes,
        };
        let len = self.shared.take(len) as usize;
        let offset = self.rng.below(NOISE_BYTES) as usize;
        let host = self.servers[(arrival.dst.0 - FIRST_SERVER) as usize].0;
        let due = self.began + Span(arrival.at.0);
        (len > 0).then_some(Request { host, offset, len, due })
    }

    fn take_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Message { peer, id, kind: Kind::Response, bytes } => {
                    let key = (peer, MessageId(id.0 & !1));
                    if let Some(call) = self.calls.remove(&key) {
                        self.answered(call, &bytes);
                    }
                }
                Event::Failed { peer, id, reason } => {
                    if let Some(call) = self.calls.remove(&(peer, MessageId(id.0 & !1))) {
                        self.failed(call, reason);
                    }
                }
                Event::PeerRestarted { peer } => {
                    // A restarted server must be greeted again; the reply to that is ignored.
                    let wants =
                        if self.config.mode == Mode::OneWay { WANTS_SHORT } else { WANTS_ECHO };
                    let greeting = Bytes::from([&GREETING[..], &[wants]].concat());
                    let _ = self.endpoint.send(peer, Kind::Request, greeting);
                }
                _ => {}
            }
        }
    }

    fn answered(&mut self, call: Call, response: &Bytes) {
        let now = self.clock.now();
        let Call { start, sent, offset } = call;
        let (end, response_bytes) = (MessageEnd::Completed, response.len() as u64);
        let ended = Ended { start, sent, at: now, end, response: response_bytes };
        self.end.record(start.bytes, ended.rtt_ns());
        if let Some((sent, back, bytes)) = &mut self.hashers {
            let request = &self.shared.noise[offset..offset + start.bytes as usize];
            sent.update(request);
            back.update(response);
            *bytes += start.bytes;
            self.end.corrupt += u64::from(request != &response[..]);
        }
        let dump = self.config.dump.is_some();
        self.shared.interval(self.thread).ended(&ended, dump);
        (self.heard, self.failed_since) = (now, 0);
    }

    fn failed(&mut self, call: Call, reason: FailReason) {
        let at = self.clock.now();
        self.failed_since += 1;
        self.not_before = at + PAUSE;
        let Call { start, sent, .. } = call;
        let ended = Ended { start, sent, at, end: MessageEnd::Failed(reason), response: 0 };
        self.shared.interval(self.thread).ended(&ended, false);
    }

    /// Cancels calls whose deadline has passed.
    fn expire(&mut self) {
        let now = self.clock.now();
        while let Some(&(at, host, id)) = self.deadlines.front() {
            let known = self.calls.contains_key(&(host, id));
            if known && at > now {
                break;
            }
            self.deadlines.pop_front();
            if let Some(call) = self.calls.remove(&(host, id)) {
                self.endpoint.cancel(host, id);
                self.failed(call, FailReason::Deadline);
            }
        }
    }

    /// Ends the run if no server responds any more.
    fn look_for_silence(&self) -> Result<(), Trouble> {
        let waited = self.clock.now().since(self.heard);
        if self.failed_since == 0 || waited <= self.config.deadline {
            return Ok(());
        }
        let failures = self.shared.interval(self.thread).failures.keys().last().copied();
        Err(Trouble::WentSilent {
            waited_s: Seconds(waited.as_secs_f64()),
            failed: self.failed_since,
            reason: failures
                .map_or_else(|| "see the failures above".into(), |reason| reason.to_string()),
        })
    }
}

pub(crate) fn socket(error: &io::Error) -> Trouble {
    Trouble::Socket(error.to_string())
}
