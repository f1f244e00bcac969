//! One host under load: an application (`rackweave_workload::app`), driven by a clock, over real transports.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use rackweave_core::{
    Event as TransportEvent, HostId, Kind, MessageId, Refused, Span, StreamEvent, Time,
};
use rackweave_lab::scenario::PointSpec;
use rackweave_linux::{AnyEndpoint, Clock, Event, SendError};
use rackweave_workload::app::{
    Action, App, AppConfig, AppStream, Direction, MessageEnd, MessageKey, MessageStart, OneWayEnd,
    Origin, Record,
};
use rackweave_workload::{Exchange, Pattern as Messages, StreamMode, WorkloadConfig};

use super::channel::{OpenStreams, Piece, RpcHeader, StreamHeader};
use super::log::{LagHistogram, MessageLog};
use super::payload::Pattern;
use crate::protocol::{HostEnd, HostWork, MeasuredRoundTrips};

/// The number of messages started in a row before the sockets are processed.
const MAX_STARTS: usize = 64;

/// The key of a message that arrived without one, outside a channel.
const NO_KEY: MessageKey = MessageKey(u64::MAX);

/// The process of a host that replaces one that crashed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incarnation {
    /// The time at which the previous incarnation ended, and the time at which this one began.
    pub(super) crashed: Time,
    pub(super) began: Time,
}

/// A message that this host has submitted.
#[derive(Clone, Copy, Debug)]
struct OwnMessage {
    key: MessageKey,
    peer: HostId,
}

/// A host under load.
pub(super) struct Host {
    pub(super) this: HostId,
    pub(super) endpoints: Vec<AnyEndpoint>,
    app: App,
    /// For each endpoint, the stream of messages whose requests arrive there outside a channel.
    requests_of: Vec<u16>,
    /// For each stream of messages, whether requests are answered.
    exchanges: Vec<Exchange>,
    /// For each endpoint, whether its messages are unary RPCs on channels, which begin with a header.
    unary_channels: Vec<bool>,
    /// The transports' streams that carry channels.
    open: OpenStreams,
    longest: u64,
    /// The submitted messages, by endpoint and id.
    submitted: BTreeMap<(u8, MessageId), OwnMessage>,
    /// The messages that have started and are not submitted yet.
    starting: BTreeMap<MessageKey, MessageStart>,
    pub(super) log: MessageLog,
    lag: LagHistogram,
    clock: Clock,
    /// The start of the load, by the clock.
    start: Span,
    /// The end of the warm-up, by the clock.
    warmup: Span,
    pattern: Pattern,
    /// When the host was ready, by the clock, and its processor time and sleeps until then.
    ready: (Time, f64, u64),
    /// Messages passed to transports, and given by them.
    work: (u64, u64),
    verify: bool,
    verified: u64,
}

impl Host {
    pub(super) fn new(
        this: HostId,
        endpoints: Vec<AnyEndpoint>,
        streams: Vec<AppStream>,
        (clock, start, incarnation): (Clock, Span, Option<Incarnation>),
        point: &PointSpec,
    ) -> Self {
        let requests_of = (0..endpoints.len()).map(|endpoint| {
            let here = |stream: &AppStream| {
                usize::from(stream.instance) == endpoint && stream.streaming.is_none()
            };
            let answered = |stream: &AppStream| here(stream) && stream.exchange != Exchange::OneWay;
            let stream = streams.iter().position(answered);
            stream.or_else(|| streams.iter().position(here)).unwrap_or(0) as u16
        });
        let longest = longest(point);
        let unary_channels = (0..endpoints.len()).map(|endpoint| {
            streams.iter().filter(|stream| usize::from(stream.instance) == endpoint).any(|stream| {
                stream.streaming.is_some_and(|streaming| streaming.mode == StreamMode::Unary)
            })
        });
        Self {
            this,
            requests_of: requests_of.collect(),
            exchanges: streams.iter().map(|stream| stream.exchange).collect(),
            unary_channels: unary_channels.collect(),
            open: OpenStreams::default(),
            longest,
            endpoints,
            app: App::new(AppConfig {
                host: this,
                streams,
                one_way_end: OneWayEnd::WhenSent,
                // The application does not verify, because the bytes themselves are compared.
                verify: false,
                restarted: incarnation.map(|life| (life.crashed, life.began)),
            }),
            submitted: BTreeMap::new(),
            starting: BTreeMap::new(),
            log: MessageLog::default(),
            lag: LagHistogram::new(),
            clock,
            start,
            warmup: start + point.config.measure.warmup,
            pattern: Pattern::new(point.config.seed, longest),
            ready: (clock.now(), super::process_cpu_s(), super::sleeps()),
            work: (0, 0),
            verify: point.config.measure.verify,
            verified: 0,
        }
    }

    /// Returns the time since the load started; `None` before.
    pub(super) fn now(&self) -> Option<Time> {
        let now = self.clock.now();
        (now.ticks() >= self.start.ticks())
            .then(|| Time::from_ticks(now.ticks() - self.start.ticks()))
    }

    /// Returns the latest time up to which every start of a message of the first stream is in the log, now or before. A message starts when
    /// its application wants to send it, and is logged when its transport takes it: what waits between is not in a report.
    pub(super) fn logged_until(&self, now: Time) -> Time {
        let starting = self.starting.values().filter(|start| start.stream == 0);
        let waiting = starting.map(|start| start.at).chain(self.app.next_arrival(0)).min();
        logged_until(now, waiting)
    }

    /// Returns the end of the warm-up, by the clock.
    pub(super) const fn warmup(&self) -> Span {
        self.warmup
    }

    /// Sends a byte to every peer, so that addresses and incarnations are known and connections are open when the load
    /// starts. In the simulator they are from the start.
    pub(super) fn greet(&mut self, hosts: u32) {
        for peer in (0..hosts).map(HostId).filter(|peer| *peer != self.this) {
            for endpoint in &mut self.endpoints {
                // A peer that cannot be greeted learns of this host from the first message.
                let _ = endpoint.send(peer, Kind::OneWay, self.pattern.message(self.this, peer, 1));
            }
        }
    }

    /// Starts the messages that are due.
    pub(super) fn start_due(&mut self) {
        let Some(now) = self.now() else { return };
        if self.app.unblock() {
            self.take_actions(now);
        }
        for _ in 0..MAX_STARTS {
            if self.app.poll_timeout().is_none_or(|at| at > now) {
                return;
            }
            self.app.handle_timeout(now);
            self.take_actions(now);
        }
    }

    /// Takes the application's records and performs its actions.
    fn take_actions(&mut self, now: Time) {
        loop {
            if let Some(record) = self.app.poll_record() {
                self.on_record(record);
            } else if let Some(action) = self.app.poll_action() {
                self.act(now, action);
            } else {
                return;
            }
        }
    }

    fn on_record(&mut self, record: Record) {
        match record {
            Record::Started { key, start, .. } => {
                self.starting.insert(key, start);
            }
            Record::Ended { key, start: MessageStart { stream, .. }, id, at, end } => {
                if let Some(start) = self.starting.remove(&key) {
                    self.log.started(key, None, &start);
                }
                if let Some(id) = id {
                    self.submitted.remove(&(self.app.instance(stream), id));
                }
                let failed = match end {
                    MessageEnd::Completed => None,
                    MessageEnd::Failed(reason) => Some(reason),
                };
                self.log.ended(key, at, failed);
            }
            // A message outside a channel was logged when it arrived.
            Record::Received { peer, key, at, .. } => {
                if key != NO_KEY {
                    self.log.arrived_on_channel(peer, key, at);
                }
            }
        }
    }

    fn act(&mut self, now: Time, action: Action) {
        match action {
            Action::Submit { key, instance, peer, bytes, kind, start, .. } => {
                let mut payload = self.pattern.message(self.this, peer, bytes);
                if let Some(Origin { stream, place: Some(place), .. }) = self.app.origin(key) {
                    payload = RpcHeader { stream, key, place }.before(&payload);
                }
                match self.endpoints[usize::from(instance)].send(peer, kind, payload) {
                    Ok(id) => {
                        self.work.0 += 1;
                        self.lag.record(now.since(start));
                        self.app.submitted(key, id);
                        self.submitted.insert((instance, id), OwnMessage { key, peer });
                        if let Some(start) = self.starting.remove(&key) {
                            self.log.started(key, Some((instance, id)), &start);
                        }
                    }
                    Err(SendError::Full { .. }) => self.app.put_back(action),
                    Err(_) => self.app.submit_refused(now, key),
                }
            }
            Action::Respond { instance, peer, id, bytes, .. } => {
                let payload = self.pattern.message(self.this, peer, bytes);
                let request = MessageId(id.0 & !1);
                let endpoint = &mut self.endpoints[usize::from(instance)];
                match endpoint.respond(peer, request, payload) {
                    Ok(()) => self.work.0 += 1,
                    Err(SendError::Full { .. }) => self.app.put_back(action),
                    // The client has cancelled the request meanwhile.
                    Err(_) => {}
                }
            }
            Action::Open { channel, instance, peer, .. } => {
                match self.endpoints[usize::from(instance)].open(peer, Time::MAX) {
                    Ok(id) => {
                        let writes = Direction { instance, peer, id };
                        self.open.open(writes, Direction { id: id.response(), ..writes });
                        self.app.opened(channel, id);
                    }
                    Err(SendError::Full { .. }) => self.app.put_back(action),
                    Err(_) => self.app.open_refused(now, channel),
                }
            }
            Action::Append { stream, direction, key, bytes } => {
                // The server of a stream writes responses, whose start its client has recorded.
                if !direction.id.is_response()
                    && let Some(start) = self.starting.remove(&key)
                {
                    self.lag.record(now.since(start.at));
                    self.log.started(key, None, &start);
                }
                let message = self.pattern.message(self.this, direction.peer, bytes);
                let header = StreamHeader { stream, key, bytes: message.len() as u32 };
                self.open.append(direction, header, message);
            }
            Action::Write { direction, bytes } => {
                let endpoint = &mut self.endpoints[usize::from(direction.instance)];
                match self.open.write(endpoint, direction, bytes) {
                    Ok(()) => {}
                    Err((SendError::Full { .. }, bytes)) => {
                        self.app.put_back(Action::Write { direction, bytes });
                    }
                    Err((error, bytes)) => {
                        let busy = error == SendError::Refused(Refused::Busy);
                        if !busy {
                            let Direction { instance, peer, id } = direction;
                            self.open.close(instance, peer, id);
                        }
                        self.app.write_refused(now, direction, bytes, busy);
                    }
                }
            }
            Action::Consume { direction: Direction { instance, peer, id }, bytes } => {
                self.endpoints[usize::from(instance)].consume(peer, id, bytes);
            }
            Action::Cancel { instance, peer, id }
            | Action::CancelAtBothEnds { instance, peer, id } => {
                self.open.close(instance, peer, id);
                self.endpoints[usize::from(instance)].cancel(peer, id);
            }
            // The peer's transport detects what is lost here.
            Action::Abandon { .. } | Action::AbandonStream { .. } => {}
        }
    }

    /// Processes every socket. Returns the time by the clock at which the next one is due.
    pub(super) fn turn(&mut self) -> io::Result<Result<Option<Time>, String>> {
        let mut next = None;
        for number in 0..self.endpoints.len() as u8 {
            let due = self.endpoints[usize::from(number)].turn()?;
            next = [next, due].into_iter().flatten().min();
            let mut any = false;
            while let Some(event) = self.endpoints[usize::from(number)].poll_event() {
                any = true;
                if let Err(problem) = self.on_event(number, event) {
                    return Ok(Err(problem));
                }
            }
            if any {
                // Packets that this caused are not sent yet.
                next = Some(Time::ZERO);
            }
        }
        Ok(Ok(next))
    }

    /// Returns the time by the clock at which the next message starts, if nothing arrives before.
    pub(super) fn next_start(&self) -> Option<Time> {
        self.app.poll_timeout().map(|at| at.saturating_add(self.start))
    }

    fn on_event(&mut self, endpoint: u8, event: Event) -> Result<(), String> {
        let now = self.now();
        let (event, origin) = match event {
            Event::Message { peer, id, kind, bytes } => {
                self.work.1 += 1;
                let (mut message, mut header) = (&bytes[..], None);
                if self.unary_channels[usize::from(endpoint)] && kind != Kind::Response {
                    // Greetings have no header.
                    let Some((found, rest)) = RpcHeader::split(&bytes) else { return Ok(()) };
                    self.check_stream(peer, found.stream)?;
                    (message, header) = (rest, Some(found));
                }
                if self.verify {
                    match self.pattern.difference(peer, self.this, message) {
                        Some(difference) => return Err(difference),
                        None => self.verified += u64::from(now.is_some()),
                    }
                }
                let length = message.len() as u64;
                let origin = match header {
                    _ if kind == Kind::Response => self.origin(endpoint, peer, id),
                    Some(RpcHeader { stream, key, place }) => {
                        // A one-way message arrives when its predecessors have arrived.
                        if let Some(now) = now
                            && kind == Kind::Request
                        {
                            self.log.arrived_on_channel(peer, key, now);
                        }
                        Some(Origin { stream, key, place: Some(place), number: 0 })
                    }
                    None => {
                        if let Some(now) = now {
                            self.log.arrived(endpoint, peer, id, length, now);
                        }
                        let stream = self.requests_of[usize::from(endpoint)];
                        Some(Origin { stream, key: NO_KEY, place: None, number: 0 })
                    }
                };
                (TransportEvent::Delivered { peer, id, bytes: length, kind }, origin)
            }
            Event::Sent { peer, id } => {
                (TransportEvent::Sent { peer, id }, self.origin(endpoint, peer, id))
            }
            Event::Failed { peer, id, reason } => {
                self.open.close(endpoint, peer, id);
                let origin = self.origin(endpoint, peer, id).filter(|_| !id.is_response());
                (TransportEvent::Failed { peer, id, reason }, origin)
            }
            Event::Opened { peer, id } => {
                let reads = Direction { instance: endpoint, peer, id };
                self.open.open(Direction { id: id.response(), ..reads }, reads);
                (TransportEvent::Stream(StreamEvent::Opened { peer, id }), None)
            }
            Event::Readable { peer, id, pieces, .. } => {
                let direction = Direction { instance: endpoint, peer, id };
                let mut bytes = 0;
                for piece in pieces {
                    bytes += self.on_readable(direction, piece)?;
                }
                let event = StreamEvent::Readable { peer, id, bytes, end: false };
                (TransportEvent::Stream(event), None)
            }
            Event::Written { peer, id, bytes } => {
                let direction = Direction { instance: endpoint, peer, id };
                let bytes = self.open.acknowledged(direction, bytes);
                (TransportEvent::Stream(StreamEvent::Acked { peer, id, bytes }), None)
            }
            Event::Closed { peer, id } => {
                self.open.close(endpoint, peer, id);
                return Ok(());
            }
            Event::PeerRestarted { peer } => {
                if let Some(now) = now {
                    self.app.server_crashed(now, peer);
                    self.take_actions(now);
                }
                return Ok(());
            }
            // Testbeds have no key, and links of one MTU.
            Event::KeyMismatch { .. } | Event::PathMtu { .. } => return Ok(()),
        };
        // Greetings arrive before the load starts.
        if let Some(now) = now {
            self.app.handle_event(now, endpoint, event, origin);
            self.take_actions(now);
        }
        Ok(())
    }

    /// Parses bytes of a stream. Returns how many of them belong to messages.
    fn on_readable(&mut self, direction: Direction, mut bytes: Bytes) -> Result<u64, String> {
        let Direction { instance, peer, id } = direction;
        let (mut headers, mut of_messages) = (0, 0);
        while let Some(piece) = self.open.read(direction, &mut bytes) {
            match piece {
                Piece::Front(bytes) => headers += bytes,
                Piece::Begin(bytes, StreamHeader { stream, key, bytes: length }) => {
                    headers += bytes;
                    self.check_stream(peer, stream)?;
                    if u64::from(length) > self.longest {
                        return Err(format!("host {} announces {length} bytes", peer.0));
                    }
                    self.app.announce(stream, direction, key, length.into());
                }
                Piece::Body { of, offset, bytes } => {
                    let end = offset + bytes.len() as u64;
                    let ends = end == u64::from(of.bytes);
                    of_messages += bytes.len() as u64;
                    if self.verify {
                        let sent = self.pattern.message(peer, self.this, of.bytes.into());
                        if bytes != sent.slice(offset as usize..end as usize) {
                            let (from, length) = (peer.0, of.bytes);
                            return Err(format!(
                                "bytes {offset} to {end} of a message of {length} bytes on a stream from host \
                                 {from} are not what was sent"
                            ));
                        }
                        self.verified += u64::from(ends);
                    }
                    // A one-way message is logged when the application receives it.
                    if ends
                        && !id.is_response()
                        && self.exchanges[usize::from(of.stream)] != Exchange::OneWay
                        && let Some(now) = self.now()
                    {
                        self.log.arrived_on_channel(peer, of.key, now);
                    }
                }
            }
        }
        self.endpoints[usize::from(instance)].consume(peer, id, headers as u64);
        Ok(of_messages)
    }

    fn check_stream(&self, peer: HostId, stream: u16) -> Result<(), String> {
        if usize::from(stream) < self.exchanges.len() {
            return Ok(());
        }
        Err(format!("host {} sends a message of stream {stream}, which does not exist", peer.0))
    }

    /// Returns the origin of a message of this host, or of the response to it.
    fn origin(&self, endpoint: u8, peer: HostId, id: MessageId) -> Option<Origin> {
        let own = self.submitted.get(&(endpoint, MessageId(id.0 & !1)))?;
        if own.peer == peer { self.app.origin(own.key) } else { None }
    }

    /// Logs the bytes of partially received messages, which count in goodput.
    pub(super) fn log_arriving(&mut self) {
        let Some(now) = self.now() else { return };
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            let number = number as u8;
            let whole = endpoint.arriving().into_iter();
            let whole = whole.map(|(peer, id, bytes)| ((peer, id, None), bytes));
            let in_streams = self
                .open
                .arriving(number)
                .map(|(from, key, bytes)| ((from.peer, from.id, Some(key)), bytes));
            self.log.arriving(number, whole.chain(in_streams), now);
        }
    }

    /// Returns whether the first stream of messages starts nothing more and has nothing in flight.
    pub(super) fn has_ended(&self) -> bool {
        self.now().is_some() && self.app.has_ended(0)
    }

    /// Returns the host's report at its end.
    pub(super) fn end(&self) -> HostEnd {
        let mut end = HostEnd {
            cpu_s: super::process_cpu_s(),
            refused: self.app.refused(),
            verified: self.verified,
            lag: self.lag.summary(),
            ..HostEnd::default()
        };
        let now = self.clock.now();
        end.work = HostWork {
            seconds: now.since(self.ready.0).as_secs_f64(),
            cpu_s: end.cpu_s - self.ready.1,
            sleeps: super::sleeps().saturating_sub(self.ready.2),
            submitted: self.work.0,
            delivered: self.work.1,
            ..HostWork::default()
        };
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            let stats = endpoint.stats();
            end.packets += stats.sent + stats.received;
            end.work.sent += stats.sent;
            end.work.received += stats.received;
            end.work.send_calls += stats.send_calls;
            end.work.receive_batches += stats.receive_batches;
            if let AnyEndpoint::Udp(udp) = endpoint {
                let (endpoint, trips) = (number as u8, udp.round_trips());
                end.round_trips.push(MeasuredRoundTrips { endpoint, trips });
                end.recovery.push((endpoint, udp.recovery_counters()));
            }
        }
        end
    }
}

/// Returns the length of the longest message or response of a point's workloads.
pub(crate) fn longest(point: &PointSpec) -> u64 {
    let of_stream = point.config.streams.iter().map(|stream| {
        let request = longest_request(&stream.workload);
        request.max(stream.workload.exchange.response_bytes(request).unwrap_or(0))
    });
    of_stream.max().unwrap_or(0)
}

/// Returns the length of the longest message of a workload, not counting responses.
pub(crate) fn longest_request(workload: &WorkloadConfig) -> u64 {
    let longest = match &workload.pattern {
        Messages::Trace(trace) => trace.entries().iter().map(|entry| entry.bytes).max(),
        other => other.sizes().map(rackweave_workload::SizeDist::max),
    };
    longest.unwrap_or(0)
}

/// The latest time up to which all starts are logged; the first unlogged start is at `waiting`.
fn logged_until(now: Time, waiting: Option<Time>) -> Time {
    let before = waiting.map_or(Time::MAX, |at| Time::from_ticks(at.ticks().saturating_sub(1)));
    now.min(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that has stood still is late with its starts. If it reported that it had none, others would be measured in their place,
    /// and then these too.
    #[test]
    fn starts_that_wait_are_not_reported_as_absent() {
        let at = Time::from_ticks;
        assert_eq!(logged_until(at(100), None), at(100));
        assert_eq!(logged_until(at(100), Some(at(101))), at(100));
        assert_eq!(logged_until(at(100), Some(at(100))), at(99));
        assert_eq!(logged_until(at(100), Some(at(7))), at(6));
        assert_eq!(logged_until(at(0), Some(at(0))), at(0));
    }
}
