//! Drives the hosts' applications: passes their actions to the transports, the transports' events to them, and their
//! records to the collector.
//!
//! The simulator knows more than any host. It uses that in four places where a real network would need packets. The
//! sender of a one-way message is notified of its arrival at once. A failure at one end is a failure at the other. What
//! is cancelled because of that is cancelled at both ends. Receivers know the stream that a message belongs to.

use std::collections::{BTreeSet, VecDeque};

use rackweave_core::{
    Event, FailReason, HostId, Kind, MessageId, Open, Refused, Slice, Span, StreamEvent, Submit,
    Time, Transport as _, frame,
};
use rackweave_workload::app::{
    Action, App, AppConfig, AppStream, Collector, CollectorConfig, Direction, MessageEnd,
    MessageKey, MessageRecord, MessageStart, OneWayEnd, Record, RecordId, WireIds,
};
use rackweave_workload::collective::RankReport;
use rackweave_workload::{Generator, Pattern};

use super::observe::Tracing;
use super::timeline::Timeline;
use super::unrepaired::Unrepaired;
use super::windows::{Division, Windows};
use super::{World, wake};
use crate::config::{MeasureConfig, StreamConfig};
use crate::model::Model;
use crate::result::{MeasuredRoundTrip, TransportRecovery, Waiting};

/// The smallest packet on a link: the reply to a data packet in a base round trip.
const SMALLEST: u32 = frame::wire_bytes(0);

/// A message with its response, or a stream of bytes.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    stream: u16,
    client: HostId,
    server: HostId,
}

impl Exchange {
    /// The sender and the receiver of the message or response with this id.
    const fn ends(self, id: MessageId) -> (HostId, HostId) {
        if id.is_response() { (self.server, self.client) } else { (self.client, self.server) }
    }
}

/// An action at a host, deferred until the current host has been handled.
#[derive(Clone, Copy, Debug)]
enum Deferred {
    /// Its application has an action due.
    Start(HostId),
    Cancel {
        host: HostId,
        peer: HostId,
        id: MessageId,
        instance: u8,
    },
}

/// When an application is called.
#[derive(Clone, Debug)]
struct Wakeup {
    /// The earliest valid time. A call at any other time is ignored.
    armed: Time,
    /// The time of the pending source event of the host; `None` if there is none.
    scheduled: Option<Time>,
    /// Times of pending calls that are earlier than `scheduled`.
    early: Vec<Time>,
}

/// The applications of all hosts.
#[derive(Debug)]
pub(super) struct Apps<'a> {
    /// The streams of messages, each with the index of its transport at each host.
    pub(super) streams: Vec<(&'a StreamConfig, u8)>,
    apps: Vec<App>,
    wakeups: Vec<Wakeup>,
    /// Pending calls that are earlier than the host's source event.
    early: BTreeSet<(Time, HostId)>,
    /// The ids of messages and of streams of bytes in the transports.
    ids: WireIds,
    /// For each host, the collector's ids of its messages, by [`MessageKey::slot`].
    pub(super) records: Vec<Vec<RecordId>>,
    /// So the payload bytes that have arrived, of runs that are not divided into windows.
    arrived: Vec<Vec<u64>>,
    /// The bytes of unfinished messages and their responses, without the ones in [`Apps::unrepaired`].
    pub(super) backlog: u64,
    /// The messages of transports that repair nothing which have been sent, by the time at which they are lost.
    pub(super) unrepaired: Unrepaired,
    /// Whether load goes on until all measured messages have ended.
    pub(super) goes_on: bool,
    pub(super) collector: Collector,
    pub(super) timeline: Timeline,
    /// For a run in windows; messages then have other ids.
    pub(super) windows: Option<Box<Windows>>,
    /// Whether applications must still be stopped once all measured messages have started.
    stop_load: bool,
    deferred: VecDeque<Deferred>,
    /// Whether a caller further up the stack is handling the deferred actions.
    is_running_deferred: bool,
    has_channels: bool,
    /// Whether messages are measured, so that the run ends with them; otherwise nodes are.
    is_measured: bool,
    /// Messages that transports refused.
    pub(super) refused: u64,
    /// Set when the run may have ended.
    pub(super) may_be_done: bool,
    /// The message that an observer wants to have traced.
    pub(super) tracing: Option<Box<Tracing>>,
}

impl<'a> Apps<'a> {
    pub(super) fn new(
        hosts: u32,
        streams: Vec<(&'a StreamConfig, u8, Generator)>,
        measure: &MeasureConfig,
        is_measured: bool,
        division: Option<Division>,
    ) -> Self {
        let has = |host: &HostId| division.as_ref().is_none_or(|division| division.has(*host));
        let total = streams.first().and_then(|(_, _, generator)| generator.total());
        let wanted = measure.messages.min(total.unwrap_or(u64::MAX));
        let first = streams.first().map(|(config, ..)| &config.workload.pattern);
        let is_collective = matches!(first, Some(Pattern::Collective(_)));
        let stops = streams.first().is_some_and(|(config, ..)| config.workload.stop < Span::MAX);
        let app = |host| {
            // The streams of other shards' hosts are there.
            let streams = streams.iter().filter(|_| has(&host));
            let streams = streams.map(|(config, instance, generator)| {
                AppStream::new(&config.workload, *instance, generator.of_host(host))
            });
            App::new(AppConfig {
                host,
                streams: streams.collect(),
                one_way_end: OneWayEnd::WhenReceived,
                verify: measure.verify,
                restarted: None,
            })
        };
        let apps: Vec<App> = (0..hosts).map(HostId).map(app).collect();
        let config = CollectorConfig {
            hosts,
            exchanges: streams.iter().map(|(config, ..)| config.workload.exchange).collect(),
            // A collective ends with its last rank, which may calculate after the last message.
            wanted: if is_measured && !is_collective { wanted } else { u64::MAX },
            warmup: Time::ZERO + measure.warmup,
            until: measure.until(),
            in_order: true,
        };
        let is_shard = division.as_ref().is_some_and(|division| division.shard.is_some());
        let mut collector =
            if is_shard { Collector::share(config) } else { Collector::new(config) };
        for other in (0..hosts).map(HostId).filter(|host| !has(host)) {
            collector.set_ended(other, true);
        }
        let numbers = streams.iter().map(|(config, ..)| match &config.workload.pattern {
            Pattern::Collective(collective) => collective.numbers(),
            _ => 0,
        });
        let numbers = numbers.max().unwrap_or(0);
        let windows = division
            .map(|division| Box::new(Windows::new(division, hosts, streams.len() as u16, numbers)));
        Self {
            wakeups: vec![
                Wakeup { armed: Time::MAX, scheduled: None, early: Vec::new() };
                apps.len()
            ],
            early: BTreeSet::new(),
            ids: WireIds::new(hosts),
            records: vec![Vec::new(); apps.len()],
            arrived: vec![Vec::new(); apps.len()],
            backlog: 0,
            unrepaired: Unrepaired::new(hosts),
            goes_on: is_measured && total.is_none() && !measure.stop_load && !stops,
            has_channels: apps.first().is_some_and(App::has_channels),
            streams: streams.iter().map(|(config, instance, _)| (*config, *instance)).collect(),
            apps,
            collector,
            windows,
            timeline: Timeline::new(streams.len()),
            stop_load: measure.stop_load && is_measured,
            deferred: VecDeque::new(),
            is_running_deferred: false,
            is_measured,
            refused: 0,
            may_be_done: true,
            tracing: None,
        }
    }

    /// The numbers of measured messages (`u64::MAX`: unknown) and of ended messages of the first stream.
    pub(super) fn progress(&self) -> (u64, u64) {
        self.collector.progress()
    }

    /// Whether all measured messages have started.
    fn have_started(&self) -> bool {
        self.collector.have_started() || self.started() == self.progress().0
    }

    /// The number of measured messages of the first stream that have started.
    pub(super) fn started(&self) -> u64 {
        self.collector.started_messages()
    }

    /// Whether all measured messages have ended; runs that are measured by their nodes have none.
    pub(super) fn is_done(&mut self) -> bool {
        !self.is_measured || self.collector.is_done()
    }

    /// Stops all applications: they start no more messages.
    fn stop(&mut self) {
        self.stop_load = false;
        for (host, app) in (0..).map(HostId).zip(&mut self.apps) {
            app.stop();
            self.collector.set_ended(host, app.has_ended(0));
        }
    }

    /// The bytes of a message and its response.
    #[inline]
    pub(super) fn exchanged(&self, start: MessageStart) -> u64 {
        let exchange = self.streams[usize::from(start.stream)].0.workload.exchange;
        start.bytes + exchange.response_bytes(start.bytes).unwrap_or(0)
    }

    /// The measured messages that wait longest; none before all of them have started.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        if self.collector.started_until().is_none() && self.started() < self.progress().0 {
            return Vec::new();
        }
        self.open(Waiting::MOST).1
    }

    /// The number of messages that are or may be measured and have not ended, and those of them that have waited longest.
    pub(super) fn open(&self, most: usize) -> (u64, Vec<Waiting>) {
        let mut all = Vec::new();
        for (records, arrived) in self.records.iter().zip(&self.arrived) {
            for (record, arrived) in records.iter().zip(arrived) {
                let Some(start) = self.collector.waiting(*record) else { continue };
                let MessageStart { stream, src, dst, bytes, at: since } = start;
                let left = self.exchanged(start).saturating_sub(*arrived);
                let left = self.windows.is_none().then_some(left);
                all.push(Waiting { stream, src, dst, bytes, left, since });
            }
        }
        let unfinished = all.len() as u64;
        Waiting::longest(&mut all, most);
        (unfinished, all)
    }

    /// Whether a host of this world has not started all messages of the first stream.
    pub(super) fn starts_more(&self, host: HostId) -> bool {
        self.has(host) && !self.streams.is_empty() && !self.apps[host.0 as usize].has_ended(0)
    }

    /// When the last measured message ended.
    pub(super) fn last_end(&self) -> Option<Time> {
        self.collector.last_end()
    }

    pub(super) fn verified(&self) -> u64 {
        self.apps.iter().map(App::verified).sum()
    }

    /// What each rank of the first stream's collective has done.
    pub(super) fn ranks(&self) -> Vec<RankReport> {
        let mut ranks: Vec<RankReport> = self.apps.iter().filter_map(|app| app.rank(0)).collect();
        ranks.sort_unstable_by_key(|rank| rank.rank);
        ranks
    }

    /// Payload bytes delivered in the measured time, by stream.
    pub(super) fn delivered_bytes(&self) -> Vec<u64> {
        self.collector.delivered().iter().map(|hosts| hosts.iter().sum()).collect()
    }

    /// Those of the first stream, by the host that started the message.
    pub(super) fn delivered_by_sender(&self) -> Vec<u64> {
        self.collector.delivered().first().cloned().unwrap_or_default()
    }

    #[inline]
    pub(super) fn app(&mut self, host: HostId) -> &mut App {
        &mut self.apps[host.0 as usize]
    }

    /// Whether a host is in this world, which may be one of several shards.
    fn has(&self, host: HostId) -> bool {
        self.windows.as_ref().is_none_or(|windows| windows.division.has(host))
    }

    /// The id of a message that a host starts.
    #[inline]
    pub(super) fn id(&self, host: HostId, stream: u16, key: MessageKey) -> MessageId {
        match &self.windows {
            Some(windows) => {
                let numbered = || self.apps[host.0 as usize].origin(key).map(|it| it.number);
                let number = if windows.have_numbers() { numbered() } else { None };
                windows.id(host, stream, key, number.unwrap_or(0))
            }
            None => self.ids.id(host, key),
        }
    }

    /// The stream of messages, the client and the server of the message or response with this id, and the
    /// message's key; `None` if it is not in progress.
    #[inline]
    fn message(&self, id: MessageId) -> Option<(Exchange, MessageKey)> {
        let (client, key) = self.ids.key(id);
        let (stream, server) = self.apps.get(client.0 as usize)?.route(key)?;
        Some((Exchange { stream, client, server }, key))
    }

    /// The key of a message that this host started, and that is in progress.
    pub(super) fn own_key(&self, host: HostId, id: MessageId) -> Option<MessageKey> {
        match &self.windows {
            Some(windows) => windows.own_key(host, id),
            None => self.message(id).filter(|(at, _)| at.client == host).map(|(_, key)| key),
        }
    }

    /// The stream of messages, the client and the server of a stream of bytes; `None` if it is not in progress.
    fn carrier(&self, instance: u8, id: MessageId) -> Option<Exchange> {
        let (client, _) = self.ids.key(id);
        let app = self.apps.get(client.0 as usize)?;
        let (stream, server) = app.stream_route(instance, id)?;
        Some(Exchange { stream, client, server })
    }
}

impl<M: Model> World<'_, M> {
    /// Schedules the first message of every host.
    pub(super) fn start_apps(&mut self) {
        for host in (0..self.net.hosts()).map(HostId) {
            if self.apps.has(host) {
                self.after_app(host);
            }
        }
    }

    /// Handles the source event of an application.
    pub(super) fn on_app(&mut self, host: HostId) {
        self.apps.wakeups[host.0 as usize].scheduled = None;
        self.wake_app(host);
    }

    /// Calls applications that are due before their source event.
    pub(super) fn on_early_apps(&mut self) {
        let now = self.net.now();
        while self.apps.early.first().is_some_and(|(at, _)| *at <= now)
            && let Some((at, host)) = self.apps.early.pop_first()
        {
            self.apps.wakeups[host.0 as usize].early.retain(|early| *early != at);
            self.wake_app(host);
        }
    }

    fn wake_app(&mut self, host: HostId) {
        let armed = &mut self.apps.wakeups[host.0 as usize].armed;
        if *armed == self.net.now() {
            *armed = Time::MAX;
            self.run_app(host);
        }
    }

    /// Schedules the call of an application.
    fn arm(&mut self, host: HostId, at: Time) {
        let wakeup = &mut self.apps.wakeups[host.0 as usize];
        if at >= wakeup.armed {
            return;
        }
        wakeup.armed = at;
        match wakeup.scheduled {
            Some(scheduled) if scheduled == at || wakeup.early.contains(&at) => {}
            Some(_) => {
                wakeup.early.push(at);
                self.apps.early.insert((at, host));
                self.net.wake_at(at, wake::APPS);
            }
            None => {
                wakeup.scheduled = Some(at);
                self.net.schedule(at, host.0);
            }
        }
    }

    /// Calls an application for one due action.
    fn run_app(&mut self, host: HostId) {
        self.flush(host);
        let now = self.net.now();
        self.apps.app(host).handle_timeout(now);
        self.after_app(host);
        self.changed(host);
    }

    /// Whether actions at other hosts are deferred, and no caller is handling them.
    #[inline]
    pub(super) fn has_deferred(&self) -> bool {
        !self.apps.deferred.is_empty() && !self.apps.is_running_deferred
    }

    /// Takes the deferred actions at other hosts.
    pub(super) fn run_deferred(&mut self) {
        // Actions that follow from a step join the list, so this loop is never nested.
        self.apps.is_running_deferred = true;
        // Other hosts sleep, also if this follows from a timer.
        self.on_time(false);
        while let Some(deferred) = self.apps.deferred.pop_front() {
            match deferred {
                Deferred::Start(host) => self.run_app(host),
                Deferred::Cancel { host, peer, id, instance } => {
                    let now = self.net.now();
                    self.flush(host);
                    self.transport(host, instance).cancel(now, peer, id);
                    self.changed(host);
                }
            }
        }
        self.apps.is_running_deferred = false;
    }

    fn transport(&mut self, host: HostId, instance: u8) -> &mut M::Transport {
        &mut self.hosts.all[host.0 as usize].transports[usize::from(instance)]
    }

    /// Takes the records and actions of an application, and schedules its next call.
    pub(super) fn after_app(&mut self, host: HostId) {
        loop {
            if let Some(record) = self.apps.app(host).poll_record() {
                self.on_record(host, record);
            } else if let Some(action) = self.apps.app(host).poll_action() {
                self.act(host, action);
            } else {
                break;
            }
        }
        let app = &self.apps.apps[host.0 as usize];
        if app.is_ready() {
            self.apps.deferred.push_back(Deferred::Start(host));
        } else if let Some(at) = app.poll_timeout() {
            let at = at.max(self.net.now());
            self.arm(host, at);
        }
        let app = &self.apps.apps[host.0 as usize];
        let has_ended = self.apps.streams.is_empty() || app.has_ended(0);
        self.apps.collector.set_ended(host, has_ended);
        if self.apps.stop_load && self.apps.have_started() {
            self.apps.stop();
        }
        let is_done = self.apps.is_done();
        self.apps.may_be_done |= is_done;
    }

    fn on_record(&mut self, host: HostId, record: Record) {
        let apps = &mut self.apps;
        match record {
            Record::Started { key, start } => {
                // Keys of one host increase.
                let record = apps.collector.started(start, key.0);
                apps.backlog += apps.exchanged(start);
                let records = &mut apps.records[host.0 as usize];
                let arrived = &mut apps.arrived[host.0 as usize];
                match (records.get_mut(key.slot()), arrived.get_mut(key.slot())) {
                    (Some(known), Some(arrived)) => (*known, *arrived) = (record, 0),
                    _ => {
                        records.push(record);
                        arrived.push(0);
                    }
                }
                if let Some(windows) = &mut apps.windows {
                    windows.started(host, key);
                }
                if apps.tracing.is_some() {
                    self.trace_start(host, key, start);
                }
            }
            Record::Ended { key, start, at, end, .. } => {
                if !apps.unrepaired.ended(host, key) {
                    apps.backlog = apps.backlog.saturating_sub(apps.exchanged(start));
                }
                apps.collector.ended(apps.records[host.0 as usize][key.slot()], at, end);
                if let Some(windows) = &mut apps.windows {
                    windows.forget(host, key);
                } else if matches!(end, MessageEnd::Failed(_)) {
                    let id = apps.ids.id(host, key);
                    apps.app(start.dst).forget(host, id);
                }
                if apps.tracing.is_some() {
                    self.trace_end(host, key, at);
                }
            }
            Record::Received { peer, key, .. } if apps.windows.is_some() => {
                self.received_in_window(peer, key);
            }
            Record::Received { peer, key, .. } => {
                let now = self.net.now();
                apps.app(peer).received_by_peer(now, key);
                self.after_app(peer);
            }
        }
    }

    /// Takes an application's action. The caller has flushed the host's NIC and wakes it afterwards.
    fn act(&mut self, host: HostId, action: Action) {
        let now = self.net.now();
        match action {
            Action::Submit { key, stream, instance, peer, bytes, kind, .. } => {
                let id = self.apps.id(host, stream, key);
                self.apps.app(host).submitted(key, id);
                self.charge_call(host, true);
                let message = Submit { id, peer, bytes, kind };
                if self.transport(host, instance).submit(now, message).is_err() {
                    self.apps.refused += 1;
                    self.apps.app(host).submit_refused(now, key);
                }
            }
            Action::Respond { instance, peer, id, bytes, .. } => {
                self.charge_call(host, true);
                let message = Submit { id, peer, bytes, kind: Kind::Response };
                if self.transport(host, instance).submit(now, message).is_err() {
                    self.apps.refused += 1;
                    self.fail(instance, id, FailReason::Cancelled);
                    for id in [request(id), id] {
                        if self.apps.windows.is_some() {
                            // The client may be in another shard. It learns of the failure, and not its transport.
                            let cancel = Deferred::Cancel { host, peer, id, instance };
                            self.apps.deferred.push_back(cancel);
                        } else {
                            self.cancel_at_both_ends(host, peer, id, instance);
                        }
                    }
                }
            }
            Action::Open { channel, key, instance, peer, .. } => {
                let id = self.apps.ids.id(host, key);
                let open = Open { id, peer, deadline: Time::MAX };
                if self.transport(host, instance).open(now, open).is_err() {
                    self.apps.refused += 1;
                    return self.apps.app(host).open_refused(now, channel);
                }
                self.apps.app(host).opened(channel, id);
            }
            Action::Append { stream, direction, key, bytes } => {
                let at_peer = Direction { peer: host, ..direction };
                self.apps.app(direction.peer).announce(stream, at_peer, key, bytes);
            }
            Action::Write { direction, bytes } => {
                let Direction { instance, peer, id } = direction;
                let written = self.transport(host, instance).write(now, peer, id, bytes, false);
                if let Err(refused) = written {
                    let busy = refused == Refused::Busy;
                    self.apps.app(host).write_refused(now, direction, bytes, busy);
                }
            }
            Action::Consume { direction, bytes } => {
                let Direction { instance, peer, id } = direction;
                self.transport(host, instance).consume(now, peer, id, bytes);
            }
            Action::Cancel { instance, peer, id } => {
                self.apps.deferred.push_back(Deferred::Cancel { host, peer, id, instance });
            }
            Action::CancelAtBothEnds { instance, peer, id } => {
                self.cancel_at_both_ends(host, peer, id, instance);
                self.apps.app(peer).forget_stream(Direction { instance, peer: host, id });
            }
            Action::Abandon { instance, peer, id, .. } => {
                let id = request(id);
                if self.apps.message(id).is_some() {
                    let cancel = Deferred::Cancel { host: peer, peer: host, id, instance };
                    self.apps.deferred.push_back(cancel);
                    self.fail(instance, id, FailReason::HostCrashed);
                }
            }
            Action::AbandonStream { direction: Direction { instance, id, .. }, reason } => {
                self.fail(instance, id, reason);
            }
        }
    }

    fn cancel_at_both_ends(&mut self, host: HostId, peer: HostId, id: MessageId, instance: u8) {
        for (host, peer) in [(host, peer), (peer, host)] {
            self.apps.deferred.push_back(Deferred::Cancel { host, peer, id, instance });
        }
    }

    /// Fails a message or stream at both of its ends.
    fn fail(&mut self, instance: u8, id: MessageId, reason: FailReason) {
        let (now, id) = (self.net.now(), request(id));
        if let Some(windows) = &mut self.apps.windows {
            return windows.failed(now, id, MessageEnd::Failed(reason));
        }
        let client = if let Some((Exchange { client, .. }, key)) = self.apps.message(id) {
            self.apps.app(client).fail(now, key, reason);
            client
        } else if let Some(Exchange { client, server, .. }) = self.apps.carrier(instance, id) {
            let direction = Direction { instance, peer: server, id };
            self.apps.app(client).fail_stream(now, direction, reason);
            client
        } else {
            return;
        };
        self.after_app(client);
    }

    /// Handles a transport's event for its host's application.
    pub(super) fn on_event(&mut self, host: HostId, instance: u8, event: Event) {
        let now = self.net.now();
        match event {
            Event::Sent { id, .. } => return self.sent_for_good(host, id),
            Event::Failed { id, reason, .. } => return self.fail(instance, id, reason),
            Event::Delivered { peer, id, .. } => {
                self.charge_call(host, false);
                if let Some(windows) = &self.apps.windows {
                    let (client, _) = windows.client(id);
                    let here = if id.is_response() { host } else { peer };
                    assert_eq!(here, client, "message {id} was delivered to the wrong host");
                    let origin = windows.origin_at(host, id);
                    self.apps.app(host).handle_event(now, instance, event, origin);
                    return self.after_app(host);
                }
                let origin = self.apps.message(id).and_then(|(exchange, key)| {
                    let ends = exchange.ends(id);
                    assert_eq!((peer, host), ends, "message {id} was delivered to the wrong host");
                    self.apps.app(exchange.client).origin(key)
                });
                self.apps.app(host).handle_event(now, instance, event, origin);
            }
            Event::Stream(stream_event) => {
                let (StreamEvent::Opened { peer, id }
                | StreamEvent::Readable { peer, id, .. }
                | StreamEvent::Acked { peer, id, .. }
                | StreamEvent::Closed { peer, id }) = stream_event;
                let Some(carrier) = self.apps.carrier(instance, id) else { return };
                // Acknowledged bytes were sent in the other direction.
                let is_sender = matches!(stream_event, StreamEvent::Acked { .. });
                let ends = carrier.ends(id);
                let here = if is_sender { (host, peer) } else { (peer, host) };
                assert_eq!(here, ends, "an event of stream {id} at the wrong host");
                let is_opened = matches!(stream_event, StreamEvent::Opened { .. });
                if is_opened && self.apps.app(peer).is_forgotten_by_server(instance, id) {
                    // Nothing was acknowledged, so that the transport restarts the stream. The application has
                    // lost its state of the stream, and does not.
                    return self.fail(instance, id, FailReason::PeerForgot);
                }
                self.apps.app(host).handle_event(now, instance, event, None);
            }
        }
        self.after_app(host);
    }

    /// Counts bytes that a receiver stores.
    #[inline]
    pub(super) fn store(&mut self, instance: u8, src: HostId, host: HostId, slice: Slice) {
        let apps = &mut self.apps;
        let id = slice.message;
        if let Some(windows) = &apps.windows {
            let (client, stream) = windows.client(id);
            apps.collector.stored(self.net.now(), stream, client, u64::from(slice.len));
            apps.timeline.add(self.net.now(), stream, u64::from(slice.len));
            if self.measure.verify {
                let here = if id.is_response() { host } else { src };
                assert_eq!(here, client, "bytes of message {id} astray");
                apps.app(host).handle_store(instance, src, slice, false);
            }
            return;
        }
        // The bytes of a response are counted under the response's own id.
        let (exchange, is_stream) = match apps.message(id) {
            Some((exchange, key)) => {
                apps.arrived[exchange.client.0 as usize][key.slot()] += u64::from(slice.len);
                (exchange, false)
            }
            None => match apps.carrier(instance, id) {
                Some(carrier) => (carrier, true),
                None => return,
            },
        };
        let Exchange { stream, client, .. } = exchange;
        apps.collector.stored(self.net.now(), stream, client, u64::from(slice.len));
        apps.timeline.add(self.net.now(), stream, u64::from(slice.len));
        if self.measure.verify || is_stream {
            assert_eq!((src, host), exchange.ends(id), "bytes of message {id} astray");
        }
        if self.measure.verify {
            apps.app(host).handle_store(instance, src, slice, is_stream);
        }
    }

    /// Pauses the application of a paused host.
    pub(super) fn pause_app(&mut self, host: HostId) {
        self.apps.app(host).pause();
    }

    /// Resumes the application of a host after a pause.
    pub(super) fn resume_app(&mut self, host: HostId) {
        self.apps.app(host).resume();
        self.after_app(host);
        self.run_deferred();
    }

    /// Discards the state of a crashed host's application.
    pub(super) fn crash_app(&mut self, host: HostId) {
        let now = self.net.now();
        self.apps.app(host).crash(now);
        self.after_app(host);
        if self.apps.has_channels {
            for client in (0..self.net.hosts()).map(HostId) {
                self.apps.app(client).server_crashed(now, host);
                self.after_app(client);
            }
        }
        self.run_deferred();
    }

    /// Restarts the application of a host after a crash. `paused` is set if the host is then paused.
    pub(super) fn restart_app(&mut self, host: HostId, paused: bool) {
        let now = self.net.now();
        self.apps.app(host).restart(now, paused);
        self.after_app(host);
        self.run_deferred();
    }

    /// The measured messages, in the order of their start.
    pub(super) fn records(&self) -> Vec<MessageRecord> {
        let framing: Vec<_> = (self.apps.streams.iter())
            .map(|(_, instance)| self.hosts.all[0].transports[usize::from(*instance)].framing())
            .collect();
        let ideal = self.ideal();
        let mut records = self.apps.collector.records(|stream, src, dst, bytes, at| {
            ideal(src, dst, bytes, framing[usize::from(stream)], at)
        });
        for record in &mut records {
            record.stream += self.first_stream;
        }
        records
    }

    /// How often each transport had to repair losses.
    pub(super) fn recovery(&self) -> Vec<TransportRecovery> {
        let mut all: Vec<(u8, TransportRecovery)> = Vec::new();
        for (number, &(_, instance)) in self.apps.streams.iter().enumerate() {
            let stream = number as u16 + self.first_stream;
            if let Some((_, known)) = all.iter_mut().find(|(of, _)| *of == instance) {
                known.streams.push(stream);
                continue;
            }
            let instance_at = usize::from(instance);
            let mut counters = self.crashed.get(instance_at).copied().unwrap_or_default();
            for host in &self.hosts.all {
                // Hosts of other shards have none.
                if let Some(transport) = host.transports.get(instance_at) {
                    counters += transport.recovery_counters();
                }
            }
            all.push((instance, TransportRecovery { streams: vec![stream], counters }));
        }
        all.into_iter().map(|(_, recovery)| recovery).collect()
    }

    /// The round trips that the transports have measured, with those of the idle fabric.
    pub(super) fn round_trips(&self) -> Vec<MeasuredRoundTrip> {
        let mut measured = Vec::new();
        for (number, &(_, instance)) in self.apps.streams.iter().enumerate() {
            if self.apps.streams[..number].iter().any(|(_, before)| *before == instance) {
                continue;
            }
            for (src, host) in self.hosts.all.iter().enumerate() {
                // The hosts of other shards have none.
                let Some(transport) = host.transports.get(usize::from(instance)) else { continue };
                let (src, framing) = (HostId(src as u32), transport.framing());
                let is_host = |peer: HostId| peer.0 < self.net.hosts() && peer != src;
                let trips = transport.round_trips();
                measured.extend(trips.iter().filter(|trip| is_host(trip.peer)).map(|trip| {
                    MeasuredRoundTrip {
                        stream: number as u16 + self.first_stream,
                        src,
                        dst: trip.peer,
                        min: trip.min,
                        recent: trip.recent,
                        base: self.ideal_fabric.base_rtt_between(src, trip.peer, framing, SMALLEST),
                        samples: trip.samples,
                    }
                }));
            }
        }
        measured
    }
}

const fn request(id: MessageId) -> MessageId {
    MessageId(id.0 & !1)
}
