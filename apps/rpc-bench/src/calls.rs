//! The calls of a client thread: drives the application of a scenario's host ([`App`]), and measures its messages.

use std::vec;

use bytes::Bytes;
use rackweave_core::{Event as TransportEvent, HostId, Kind, MessageId, Refused, Span, Time};
use rackweave_linux::{Event, SendError};
use rackweave_workload::app::{
    Action, App, AppConfig, AppStream, MessageEnd, MessageKey, OneWayEnd, Record,
};
use rackweave_workload::{
    Exchange, Generator, LoadCounts, Pattern, SizeDist, WorkloadConfig, WorkloadError,
};
use rustc_hash::FxHashMap;

use crate::client::{Client, NOISE_BYTES, PAUSE, socket};
use crate::config::{BenchConfig, Load, Mode};
use crate::measure::{Ended, Seconds, Trouble};
use crate::server::{NAP, SHORT_BYTES};

/// The number of the client as a host of the workload.
const CLIENT: HostId = HostId(0);
/// The number of the first server as a host of the workload; the others follow.
const FIRST_SERVER: u32 = 1;

/// Creates the applications of one thread: one, or without load one for each length, which follow each other.
pub(crate) fn apps(config: &BenchConfig, thread: usize) -> Result<Vec<App>, WorkloadError> {
    let mut left = config.share(thread);
    let mut apps = Vec::new();
    let mut add = |sizes: &SizeDist, bytes: u64| -> Result<(), WorkloadError> {
        let bytes = bytes.min(left);
        left -= bytes;
        if bytes > 0 {
            apps.push(app(config, thread, sizes, bytes)?);
        }
        Ok(())
    };
    match (config.mode, config.load) {
        (Mode::Stream, _) => {}
        (_, Load::Unloaded { each }) => {
            for (size, _) in config.sizes.points() {
                add(&SizeDist::fixed(size)?, size.saturating_mul(each))?;
            }
        }
        (_, Load::Open { .. } | Load::Closed) => add(&config.sizes, u64::MAX)?,
    }
    Ok(apps)
}

/// Creates an application that starts requests of up to this number of bytes in total.
fn app(
    config: &BenchConfig,
    thread: usize,
    sizes: &SizeDist,
    bytes: u64,
) -> Result<App, WorkloadError> {
    let sizes = sizes.clone();
    let threads = u32::from(config.ports).max(1);
    let outstanding = match config.load {
        Load::Unloaded { .. } => 1,
        Load::Open { .. } | Load::Closed => config.outstanding.div_ceil(threads).max(1),
    };
    let mut gap = None;
    let pattern = match config.load {
        Load::Open { gbps } => {
            let gap_s = sizes.mean() * 8e-9 * f64::from(threads) / gbps;
            gap = Some(Span::from_secs_f64(gap_s).max(Span::TICK));
            // The gap between requests determines the load.
            Pattern::OpenLoop { sizes, load: 1.0, counts: LoadCounts::Payload }
        }
        Load::Closed | Load::Unloaded { .. } => {
            Pattern::ClosedLoop { sizes, outstanding, think: Span::ZERO, ramp: Span::ZERO }
        }
    };
    let hosts = FIRST_SERVER + config.servers.len() as u32;
    let workload = WorkloadConfig {
        exchange: match config.mode {
            Mode::OneWay => Exchange::Respond(SHORT_BYTES as u64),
            Mode::Echo | Mode::Stream => Exchange::Echo,
        },
        senders: Some(CLIENT.0..FIRST_SERVER),
        receivers: Some(FIRST_SERVER..hosts),
        ..WorkloadConfig::new(pattern)
    };
    let generator = Generator::new(&workload, hosts, gap, config.seed, 0, thread as u64)?;
    let stream = AppStream {
        max_outstanding: u64::from(outstanding),
        deadline: Some(config.deadline),
        delay_after_failure: PAUSE,
        ..AppStream::new(&workload, 0, generator.of_host(CLIENT).limited_to(bytes))
    };
    Ok(App::new(AppConfig {
        host: CLIENT,
        streams: vec![stream],
        one_way_end: OneWayEnd::WhenSent,
        verify: false,
        restarted: None,
    }))
}

/// A request that the transport has taken.
#[derive(Clone, Copy, Debug)]
struct Call {
    key: MessageKey,
    /// When the transport took it.
    sent: Time,
    /// Where its bytes begin in the noise.
    offset: usize,
    len: usize,
    /// Length of the response, if it has arrived.
    response: u64,
}

/// The driver of a thread's applications. Times are those of the current application.
pub(crate) struct Calls<'a> {
    client: &'a mut Client,
    app: App,
    /// The applications that follow.
    later: vec::IntoIter<App>,
    /// The start of the current application, by the clock.
    began: Time,
    /// The requests that were sent and have not ended, by server and id.
    sent: FxHashMap<(HostId, MessageId), Call>,
    /// The number of requests sent since the counter of all was increased.
    newly_sent: u64,
    /// Whether the next request of an open loop was counted as one that could not be sent when it was due.
    was_backed_up: bool,
    /// The time of the last response, by the clock; the failures since then are counted.
    last_response: Time,
    failed_since: u64,
}

impl<'a> Calls<'a> {
    /// Creates the driver, or returns `None` if there is nothing to send.
    pub(crate) fn new(client: &'a mut Client) -> Option<Self> {
        let mut later = std::mem::take(&mut client.apps).into_iter();
        let app = later.next()?;
        let now = client.clock.now();
        Some(Self {
            client,
            app,
            later,
            began: now,
            sent: FxHashMap::default(),
            newly_sent: 0,
            was_backed_up: false,
            last_response: now,
            failed_since: 0,
        })
    }

    /// The time of the current application.
    fn now(&self) -> Time {
        Time::from_ticks(self.client.clock.now().since(self.began).ticks())
    }

    /// The number by which the endpoint knows a server.
    fn peer(&self, server: HostId) -> HostId {
        self.client.servers[(server.0 - FIRST_SERVER) as usize].0
    }

    fn is_open_loop(&self) -> bool {
        matches!(self.client.config.load, Load::Open { .. })
    }

    pub(crate) fn run(mut self) -> Result<(), Trouble> {
        let until = self.client.config.duration.map_or(Time::MAX, |span| self.began + span);
        loop {
            self.take_events()?;
            if self.client.clock.now() >= until || self.client.stopped() {
                self.app.stop();
                self.later = Vec::new().into_iter();
            }
            self.start_due()?;
            if self.app.has_ended(0) {
                let Some(next) = self.later.next() else { return Ok(()) };
                (self.app, self.began) = (next, self.client.clock.now());
                continue;
            }
            let next = self.client.turn()?.unwrap_or(Time::MAX);
            self.look_for_silence()?;
            let mut wake = next.min(self.client.clock.now() + NAP);
            if let Some(at) = self.app.poll_timeout() {
                wake = wake.min(at.saturating_add(Span::from_ticks(self.began.ticks())));
            }
            self.client.endpoint.wait(Some(wake)).map_err(|error| socket(&error))?;
        }
    }

    /// Sends the requests that are due, and ends those whose deadline has passed.
    fn start_due(&mut self) -> Result<(), Trouble> {
        let now = self.now();
        if self.app.unblock() {
            self.take_actions()?;
        }
        while self.app.poll_timeout().is_some_and(|at| at <= now) {
            self.app.handle_timeout(now);
            self.take_actions()?;
        }
        let due = self.app.next_arrival(0).filter(|at| self.is_open_loop() && *at <= now);
        if due.is_some() {
            self.back_up();
        }
        let mut interval = self.client.shared.interval(self.client.thread);
        interval.sent += std::mem::take(&mut self.newly_sent);
        interval.outstanding = self.sent.len() as u64;
        interval.lag_ns = due.map_or(0, |due| now.since(due).as_ns());
        Ok(())
    }

    /// Counts a due request of an open loop that could not be sent, once.
    fn back_up(&mut self) {
        if self.is_open_loop() && !std::mem::replace(&mut self.was_backed_up, true) {
            self.client.shared.interval(self.client.thread).backed_up += 1;
        }
    }

    /// Takes the application's records and performs its actions.
    fn take_actions(&mut self) -> Result<(), Trouble> {
        loop {
            if let Some(record) = self.app.poll_record() {
                self.on_record(&record);
            } else if let Some(action) = self.app.poll_action() {
                self.act(action)?;
            } else {
                return Ok(());
            }
        }
    }

    fn act(&mut self, action: Action) -> Result<(), Trouble> {
        match action {
            Action::Submit { key, peer, bytes, .. } => {
                let (peer, sent, len) = (self.peer(peer), self.now(), bytes as usize);
                let client = &mut *self.client;
                let offset = client.rng.below(NOISE_BYTES) as usize;
                let payload = client.payload(offset, len);
                match client.request(peer, payload) {
                    Ok(id) => {
                        self.app.submitted(key, id);
                        let call = Call { key, sent, offset, len, response: 0 };
                        self.sent.insert((peer, id), call);
                        self.newly_sent += 1;
                        self.was_backed_up = false;
                    }
                    Err(SendError::Full { .. } | SendError::Refused(Refused::Busy)) => {
                        self.app.put_back(action);
                        self.back_up();
                    }
                    Err(error) => return Err(Trouble::Refused(error.to_string())),
                }
            }
            Action::Cancel { peer, id, .. } => {
                self.client.endpoint.cancel(self.peer(peer), id);
            }
            other => unreachable!("a client without channels does not request {other:?}"),
        }
        Ok(())
    }

    fn on_record(&mut self, record: &Record) {
        let &Record::Ended { start, id, at, end, .. } = record else { return };
        let call = id.and_then(|id| self.sent.remove(&(self.peer(start.dst), id)));
        // A request that was never sent has failed.
        let (sent, response) = call.map_or((at, 0), |call| (call.sent, call.response));
        let ended = Ended { start, sent, at, end, response };
        let client = &mut *self.client;
        if end == MessageEnd::Completed {
            client.end.record(start.bytes, ended.rtt_ns());
            (self.last_response, self.failed_since) =
                (at.saturating_add(Span::from_ticks(self.began.ticks())), 0);
        } else {
            self.failed_since += 1;
        }
        let dump = client.config.dump.is_some();
        client.shared.interval(client.thread).ended(&ended, dump);
    }

    fn take_events(&mut self) -> Result<(), Trouble> {
        while let Some(event) = self.client.endpoint.poll_event() {
            match event {
                Event::Message { peer, id, kind: Kind::Response, bytes } => {
                    if let Some(call) = self.sent.get_mut(&(peer, MessageId(id.0 & !1))) {
                        call.response = bytes.len() as u64;
                        let call = *call;
                        self.check(call, &bytes);
                        let (bytes, kind) = (call.response, Kind::Response);
                        let event = TransportEvent::Delivered { peer, id, bytes, kind };
                        self.on_event(call.key, event)?;
                    }
                }
                Event::Failed { peer, id, reason } => {
                    let address = self.client.endpoint.peer_addr(peer);
                    tracing::debug!(peer = ?address, ?id, ?reason, "call failed");
                    if let Some(call) = self.sent.get(&(peer, MessageId(id.0 & !1))) {
                        self.on_event(call.key, TransportEvent::Failed { peer, id, reason })?;
                    }
                }
                Event::PeerRestarted { peer } => {
                    tracing::info!(peer = ?self.client.endpoint.peer_addr(peer), "peer has restarted");
                    self.client.greet_again(peer);
                }
                Event::KeyMismatch { peer, why } => self.client.key_trouble(peer, why)?,
                Event::PathMtu { peer, change } => {
                    let peer = self.client.endpoint.peer_addr(peer);
                    tracing::warn!(?peer, "{change}");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Passes an event about a request to the application.
    fn on_event(&mut self, key: MessageKey, event: TransportEvent) -> Result<(), Trouble> {
        let (now, origin) = (self.now(), self.app.origin(key));
        self.app.handle_event(now, 0, event, origin);
        self.take_actions()
    }

    /// Compares a response with its request, and digests both, if requested; otherwise only their lengths.
    fn check(&mut self, call: Call, response: &Bytes) {
        if self.client.hashers.is_none() {
            let is_other = response.len() as u64 != call.len as u64;
            let is_echo = self.client.config.mode == Mode::Echo;
            self.client.end.corrupt += u64::from(is_echo && is_other);
            return;
        }
        let request = self.client.payload(call.offset, call.len);
        let client = &mut *self.client;
        if let Some((sent, back, bytes)) = &mut client.hashers {
            sent.update(&request);
            back.update(response);
            *bytes += call.len as u64;
            client.end.corrupt += u64::from(request != response);
        }
    }

    /// Ends the run if no server responds any more.
    fn look_for_silence(&self) -> Result<(), Trouble> {
        let waited = self.client.clock.now().since(self.last_response);
        if self.failed_since == 0 || waited <= self.client.config.deadline {
            return Ok(());
        }
        let interval = self.client.shared.interval(self.client.thread);
        let reason = interval.failures.keys().last();
        Err(Trouble::WentSilent {
            waited_s: Seconds(waited.as_secs_f64()),
            failed: self.failed_since,
            reason: reason.map_or_else(|| "see the failures above".into(), ToString::to_string),
        })
    }
}
