//! The application against a random network: every message ends exactly once, and closed loops continue.

mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use proptest::prelude::*;
use rackweave_core::{
    Event, FailReason, HostId, Kind, MessageId, Rate, Rng, Slice, Span, StreamEvent, Time,
};

use super::*;
use crate::application::StreamMode;
use crate::generator::Generator;
use crate::pattern::{Pattern, WorkloadConfig};
use crate::sizes::SizeDist;

const HOSTS: u32 = 3;

fn closed_loop(outstanding: u32, think: Span) -> Pattern {
    Pattern::ClosedLoop {
        sizes: SizeDist::fixed(1000).unwrap(),
        outstanding,
        think,
        ramp: Span::ZERO,
    }
}

fn generator(config: &WorkloadConfig) -> Generator {
    Generator::new(config, HOSTS, Some(Span::from_us(5)), 1, 0, 0).unwrap()
}

fn app(host: HostId, stream: AppStream, one_way_end: OneWayEnd, verify: bool) -> App {
    let streams = vec![stream];
    App::new(AppConfig { host, streams, one_way_end, verify, restarted: None })
}

fn apps(config: &WorkloadConfig, one_way_end: OneWayEnd, verify: bool) -> Vec<App> {
    let generator = generator(config);
    let app = |host| {
        let stream = AppStream::new(config, 0, generator.of_host(host));
        app(host, stream, one_way_end, verify)
    };
    (0..HOSTS).map(HostId).map(app).collect()
}

/// A message, or bytes of a stream's direction, in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    from: HostId,
    to: HostId,
    id: MessageId,
    bytes: u64,
    kind: Kind,
    origin: Origin,
}

/// Applications and a network that delivers, fails and reorders at random, and that acts as a driver must.
struct World {
    apps: Vec<App>,
    now: Time,
    rng: Rng,
    fail_share: f64,
    /// The share of messages and of streams that are lost, which no one detects.
    loss_share: f64,
    lost_streams: BTreeSet<MessageId>,
    flights: Vec<Flight>,
    /// Bytes written to streams and not delivered: (from, direction at the sender).
    written: Vec<(HostId, Direction, u64)>,
    opened: BTreeSet<(HostId, HostId, MessageId)>,
    next_id: u64,
    started: BTreeMap<(HostId, MessageKey), MessageStart>,
    ended: BTreeMap<(HostId, MessageKey), MessageEnd>,
    /// The times from start to end, in the order of the ends.
    latencies: Vec<(Span, MessageEnd)>,
}

impl World {
    fn new(config: &WorkloadConfig, seed: u64, fail_share: f64) -> Self {
        Self::of(apps(config, OneWayEnd::WhenReceived, false), seed, fail_share, 0.0)
    }

    fn of(apps: Vec<App>, seed: u64, fail_share: f64, loss_share: f64) -> Self {
        let mut world = Self {
            apps,
            now: Time::ZERO,
            rng: Rng::stream(seed, 0, 0, "application tests"),
            fail_share,
            loss_share,
            lost_streams: BTreeSet::new(),
            flights: Vec::new(),
            written: Vec::new(),
            opened: BTreeSet::new(),
            next_id: 0,
            started: BTreeMap::new(),
            ended: BTreeMap::new(),
            latencies: Vec::new(),
        };
        (0..HOSTS).for_each(|host| world.drain(HostId(host)));
        world
    }

    fn app(&mut self, host: HostId) -> &mut App {
        &mut self.apps[host.0 as usize]
    }

    fn drain(&mut self, host: HostId) {
        loop {
            if let Some(record) = self.app(host).poll_record() {
                self.record(host, record);
            } else if let Some(action) = self.app(host).poll_action() {
                self.act(host, action);
            } else {
                return;
            }
        }
    }

    fn record(&mut self, host: HostId, record: Record) {
        match record {
            Record::Started { key, start, .. } => {
                assert!(self.started.insert((host, key), start).is_none(), "started twice");
            }
            Record::Ended { key, start, id, at, end } => {
                assert_eq!(self.started.get(&(host, key)), Some(&start), "ended as it started");
                self.latencies.push((at.since(start.at), end));
                assert!(self.ended.insert((host, key), end).is_none(), "{key:?} ended twice");
                if let (Some(id), MessageEnd::Failed(_)) = (id, end) {
                    self.app(start.dst).forget(host, id);
                }
            }
            Record::Received { peer, key, .. } => {
                let now = self.now;
                self.app(peer).received_by_peer(now, key);
                self.drain(peer);
            }
        }
    }

    fn fly(&mut self, flight: Flight) {
        if !self.rng.chance(self.loss_share) {
            self.flights.push(flight);
        }
    }

    fn new_id(&mut self) -> MessageId {
        self.next_id += 1;
        MessageId::request(self.next_id)
    }

    fn act(&mut self, host: HostId, action: Action) {
        let now = self.now;
        match action {
            Action::Submit { key, peer, .. } if self.rng.chance(self.fail_share / 4.0) => {
                let _ = peer;
                self.app(host).submit_refused(now, key);
            }
            Action::Submit { key, peer, bytes, kind, .. } => {
                let id = self.new_id();
                self.app(host).submitted(key, id);
                let origin = self.app(host).origin(key).unwrap();
                self.fly(Flight { from: host, to: peer, id, bytes, kind, origin });
            }
            Action::Respond { peer, id, bytes, stream, .. } => {
                let request = MessageId(id.0 & !1);
                let key = self.apps[peer.0 as usize].messages.key_of(request);
                // Its client may have given it up.
                let Some(key) = key else { return };
                let place = self.app(peer).origin(key).and_then(|origin| origin.place);
                let origin = Origin { stream, key, place, number: 0 };
                let kind = Kind::Response;
                self.fly(Flight { from: host, to: peer, id, bytes, kind, origin });
            }
            Action::Open { channel, peer, .. } => {
                if self.rng.chance(self.fail_share / 4.0) {
                    return self.app(host).open_refused(now, channel);
                }
                let id = self.new_id();
                self.opened.insert((host, peer, id));
                if self.rng.chance(self.loss_share) {
                    self.lost_streams.insert(id);
                }
                self.app(host).opened(channel, id);
            }
            Action::Append { stream, direction, key, bytes } => {
                let at_peer = Direction { peer: host, ..direction };
                self.app(direction.peer).announce(stream, at_peer, key, bytes);
            }
            Action::Write { direction, .. }
                if self.lost_streams.contains(&MessageId(direction.id.0 & !1)) => {}
            Action::Write { direction, bytes } => self.written.push((host, direction, bytes)),
            Action::Consume { .. } | Action::Cancel { .. } => {}
            Action::CancelAtBothEnds { peer, id, instance } => {
                self.flights.retain(|flight| flight.id != id);
                self.written.retain(|(_, direction, _)| direction.id.0 & !1 != id.0 & !1);
                self.app(peer).forget_stream(Direction { instance, peer: host, id });
            }
            Action::Abandon { peer, key, .. } => {
                self.app(peer).fail(now, key, FailReason::HostCrashed);
                self.drain(peer);
            }
            Action::AbandonStream { direction, reason } => {
                let at_peer = Direction { peer: host, ..direction };
                self.app(direction.peer).fail_stream(now, at_peer, reason);
                self.drain(direction.peer);
            }
        }
    }

    /// One thing happens.
    fn step(&mut self) {
        let count = (self.flights.len() + self.written.len()) as u64;
        let picked = self.rng.below(count + 2);
        let now = self.now;
        if picked < self.flights.len() as u64 {
            let flight = self.flights.swap_remove(picked as usize);
            self.arrive(flight);
        } else if picked < count {
            let index = picked as usize - self.flights.len();
            self.deliver_written(index);
        } else {
            let host = HostId(self.rng.below(u64::from(HOSTS)) as u32);
            let app = self.app(host);
            match app.poll_timeout() {
                Some(at) => {
                    self.now = now.max(at);
                    let now = self.now;
                    self.app(host).handle_timeout(now);
                }
                None => self.now = now + Span::from_us(1),
            }
            self.drain(host);
        }
    }

    fn arrive(&mut self, flight: Flight) {
        let Flight { from, to, id, bytes, kind, origin } = flight;
        let now = self.now;
        let client = if kind == Kind::Response { to } else { from };
        if self.rng.chance(self.fail_share) {
            self.app(client).fail(now, origin.key, FailReason::PeerSilent);
            return self.drain(client);
        }
        let is_known = self.app(client).origin(origin.key).is_some();
        let event = Event::Delivered { peer: from, id, bytes, kind };
        self.app(to).handle_event(now, 0, event, is_known.then_some(origin));
        self.drain(to);
    }

    fn deliver_written(&mut self, index: usize) {
        // Bytes of one direction arrive in order: take the first of them.
        let (host, direction, _) = self.written[index];
        let is_same = |(from, of, _): &(HostId, Direction, u64)| (*from, *of) == (host, direction);
        let first = self.written.iter().position(is_same).unwrap_or(index);
        let (from, direction, bytes) = self.written.remove(first);
        let now = self.now;
        let at_peer = Direction { peer: from, ..direction };
        let stream = MessageId(direction.id.0 & !1);
        let client = if direction.id.is_response() { direction.peer } else { from };
        let server = if direction.id.is_response() { from } else { direction.peer };
        if self.rng.chance(self.fail_share / 8.0) {
            let at_client = Direction { instance: 0, peer: server, id: stream };
            self.app(client).fail_stream(now, at_client, FailReason::PeerSilent);
            return self.drain(client);
        }
        let id = direction.id;
        if !id.is_response() && self.opened.remove(&(client, server, id)) {
            let event = Event::Stream(StreamEvent::Opened { peer: client, id });
            self.app(server).handle_event(now, 0, event, None);
        }
        let some = 1 + self.rng.below(bytes);
        if some < bytes {
            self.written.insert(first, (from, direction, bytes - some));
        }
        let event = StreamEvent::Readable { peer: from, id, bytes: some, end: false };
        self.app(direction.peer).handle_event(now, 0, Event::Stream(event), None);
        self.drain(at_peer.peer);
        self.drain(direction.peer);
        let event = StreamEvent::Acked { peer: direction.peer, id, bytes: some };
        self.app(from).handle_event(now, 0, Event::Stream(event), None);
        self.drain(from);
    }

    /// Everything that a host knows is lost, and it is back later.
    fn crash(&mut self, host: HostId) {
        let now = self.now;
        self.app(host).crash(now);
        self.drain(host);
        self.flights.retain(|flight| flight.from != host && flight.to != host);
        self.written.retain(|(from, of, _)| *from != host && of.peer != host);
        for peer in (0..HOSTS).map(HostId).filter(|peer| *peer != host) {
            // Messages in flight from or to it fail at its peers, as their transports would detect.
            self.app(peer).server_crashed(now, host);
            for key in self.app(peer).messages.keys() {
                if self.app(peer).messages.get(key).is_some_and(|message| message.dst == host) {
                    self.app(peer).fail(now, key, FailReason::PeerForgot);
                }
            }
            self.drain(peer);
        }
        self.app(host).restart(now, false);
        self.drain(host);
    }

    fn under_way(&self) -> usize {
        self.started.len() - self.ended.len()
    }
}

impl Messages {
    /// The message that was submitted under an id.
    fn key_of(&self, id: MessageId) -> Option<MessageKey> {
        let keys = self.keys();
        keys.into_iter().find(|key| self.get(*key).is_some_and(|message| message.id == Some(id)))
    }
}

fn workload(pattern: Pattern, exchange: Exchange, streaming: Option<StreamMode>) -> WorkloadConfig {
    let per_pair = NonZeroU16::new(2).unwrap();
    let streaming = streaming.map(|mode| Streaming { mode, per_pair });
    WorkloadConfig { exchange, streaming, ..WorkloadConfig::new(pattern) }
}

fn exchanges() -> impl Strategy<Value = Exchange> {
    prop_oneof![Just(Exchange::OneWay), Just(Exchange::Echo), Just(Exchange::Respond(70_000))]
}

fn streamings() -> impl Strategy<Value = Option<StreamMode>> {
    prop_oneof![Just(None), Just(Some(StreamMode::OneId)), Just(Some(StreamMode::Unary))]
}

fn applications() -> impl Strategy<Value = Application> {
    let slow = Application {
        copy_rate: Some(Rate::from_gbps(1)),
        per_message: Span::from_us(1),
        per_rpc: Span::from_us(2),
    };
    prop_oneof![Just(Application::INSTANT), Just(slow)]
}

proptest! {
    #![proptest_config(rackweave_testing::cases(96))]

    #[test]
    fn closed_loops_never_stall_and_each_message_ends_once(
        (exchange, streaming, application) in (exchanges(), streamings(), applications()),
        (seed, outstanding, fails) in (any::<u64>(), 1_u32..4, 0_u32..3),
        crashes in proptest::collection::vec(0_u32..HOSTS, 0..3),
    ) {
        let pattern = closed_loop(outstanding, Span::from_ns(u64::from(fails) * 700));
        let config = WorkloadConfig { application, ..workload(pattern, exchange, streaming) };
        let mut world = World::new(&config, seed, f64::from(fails) * 0.1);
        for crash in crashes.iter().map(|host| Some(HostId(*host))).chain([None]) {
            let before = world.ended.len();
            for _ in 0..3000 {
                world.step();
                prop_assert!(world.under_way() <= (HOSTS * outstanding) as usize);
                prop_assert!(world.apps.iter().all(|app| !app.has_ended(0)));
            }
            prop_assert!(world.ended.len() > before + 50, "it stalls at {}", world.ended.len());
            if let Some(host) = crash {
                world.crash(host);
            }
        }
    }

    #[test]
    fn a_batch_ends_and_no_message_is_lost(
        (exchange, streaming) in (exchanges(), streamings()),
        (seed, per_pair, fails) in (any::<u64>(), 1_u64..20, 0_u32..3),
        (pauses, one_crash) in (any::<bool>(), any::<bool>()),
    ) {
        let sizes = SizeDist::fixed(3000).unwrap();
        let pattern = Pattern::AllToAll { sizes, messages_per_pair: per_pair };
        let mut world = World::new(&workload(pattern, exchange, streaming), seed, f64::from(fails) * 0.1);
        let all = u64::from(HOSTS * (HOSTS - 1)) * per_pair;
        let mut is_paused = false;
        for step in 0..100_000 {
            if pauses && step == 20 {
                world.app(HostId(1)).pause();
                is_paused = true;
            }
            if is_paused && step == 200 {
                world.app(HostId(1)).resume();
            }
            if one_crash && step == 300 {
                world.crash(HostId(2));
            }
            world.step();
            if step > 300 && world.apps.iter().all(|app| app.has_ended(0)) {
                break;
            }
        }
        prop_assert!(world.apps.iter().all(|app| app.has_ended(0)));
        prop_assert_eq!(world.started.len() as u64, all);
        prop_assert_eq!(world.ended.len() as u64, all);
        if fails == 0 && !one_crash {
            prop_assert!(world.ended.values().all(|end| *end == MessageEnd::Completed));
        }
    }
}

#[test]
fn a_transport_without_room_holds_up_its_own_streams_only() {
    let config = workload(closed_loop(4, Span::ZERO), Exchange::OneWay, None);
    let generator = Generator::new(&config, HOSTS, None, 1, 0, 0).unwrap();
    let stream = |instance| AppStream::new(&config, instance, generator.of_host(HostId(0)));
    let mut app = App::new(AppConfig {
        host: HostId(0),
        streams: vec![stream(0), stream(1)],
        one_way_end: OneWayEnd::WhenSent,
        verify: false,
        restarted: None,
    });
    app.handle_timeout(Time::from_ticks(5));
    let first = app.poll_action().unwrap();
    assert_eq!(first.instance(), 0);
    app.put_back(first);
    let mut others = 0;
    while app.poll_timeout().is_some_and(|at| at <= Time::from_ticks(5)) {
        app.handle_timeout(Time::from_ticks(5));
        while let Some(action) = app.poll_action() {
            assert_eq!(action.instance(), 1);
            others += 1;
        }
    }
    assert_eq!(others, 4, "the other transport's stream has started, and this one waits");
    assert!(app.unblock());
    assert_eq!(app.poll_action(), Some(first));
    assert_eq!(app.poll_timeout(), Some(Time::ZERO), "three more");
}

#[test]
fn a_loop_waits_after_a_failure() {
    let config = workload(closed_loop(1, Span::ZERO), Exchange::OneWay, None);
    let mut app = apps(&config, OneWayEnd::WhenSent, false).remove(0);
    app.handle_timeout(Time::from_ticks(100));
    let Some(Action::Submit { key, .. }) = app.poll_action() else { panic!("nothing starts") };
    app.fail(Time::from_ticks(100), key, FailReason::PeerSilent);
    assert_eq!(app.poll_timeout(), Some(Time::from_ticks(100) + DELAY_AFTER_FAILURE));
    app.fail(Time::from_ticks(200), key, FailReason::PeerSilent);
    let ends = std::iter::from_fn(|| app.poll_record())
        .filter(|record| matches!(record, Record::Ended { .. }));
    assert_eq!(ends.count(), 1);
}

#[test]
fn a_sender_ends_a_one_way_message_when_its_transport_says_so() {
    let config = workload(closed_loop(1, Span::ZERO), Exchange::OneWay, None);
    let mut app = apps(&config, OneWayEnd::WhenSent, false).remove(0);
    app.handle_timeout(Time::ZERO);
    let Some(Action::Submit { key, peer, .. }) = app.poll_action() else { panic!("no start") };
    let id = MessageId::request(7);
    app.submitted(key, id);
    let origin = app.origin(key);
    app.handle_event(Time::from_ticks(50), 0, Event::Sent { peer, id }, origin);
    app.handle_event(Time::from_ticks(60), 0, Event::Sent { peer, id }, None);
    let ends: Vec<_> = std::iter::from_fn(|| app.poll_record())
        .filter_map(|record| match record {
            Record::Ended { at, end, .. } => Some((at, end)),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [(Time::from_ticks(50), MessageEnd::Completed)]);
    assert!(app.is_ready(), "the loop continues");
}

#[test]
fn a_process_after_a_crash_fails_what_was_to_start_in_between() {
    let sizes = SizeDist::fixed(1000).unwrap();
    let pattern = Pattern::OpenLoop { sizes, load: 0.5, counts: crate::LoadCounts::Wire };
    let config = workload(pattern, Exchange::OneWay, None);
    let generator = Generator::new(&config, HOSTS, Some(Span::from_us(5)), 1, 0, 0).unwrap();
    let (crashed, began) = (Time::ZERO + Span::from_us(100), Time::ZERO + Span::from_us(200));
    let stream = AppStream::new(&config, 0, generator.of_host(HostId(0)));
    let mut app = App::new(AppConfig {
        host: HostId(0),
        streams: vec![stream],
        one_way_end: OneWayEnd::WhenSent,
        verify: false,
        restarted: Some((crashed, began)),
    });
    let end = began + Span::from_us(100);
    let (mut failed, mut submitted) = (0, 0);
    while app.poll_timeout().is_some_and(|at| at <= end) {
        app.handle_timeout(end);
        while let Some(record) = app.poll_record() {
            match record {
                Record::Started { start, .. } => assert!(start.at > crashed),
                Record::Ended { at, end, .. } => {
                    assert!(at < began && end == MessageEnd::Failed(FailReason::HostCrashed));
                    failed += 1;
                }
                Record::Received { .. } => panic!("nothing arrives"),
            }
        }
        while let Some(Action::Submit { start, .. }) = app.poll_action() {
            assert!(start >= began);
            submitted += 1;
        }
    }
    assert!(failed > 5 && submitted > 5, "{failed} failed, {submitted} submitted");
}

#[test]
#[should_panic(expected = "of 1000 bytes")]
fn a_message_with_a_hole_is_found() {
    let config = workload(closed_loop(1, Span::ZERO), Exchange::OneWay, None);
    let mut app = apps(&config, OneWayEnd::WhenReceived, true).remove(0);
    let (peer, id) = (HostId(1), MessageId::request(3));
    let slice = |offset, len| Slice { message: id, offset, len };
    app.handle_store(0, peer, slice(0, 400), false);
    app.handle_store(0, peer, slice(401, 599), false);
    let origin = Origin { stream: 0, key: MessageKey(3), place: None, number: 0 };
    let event = Event::Delivered { peer, id, bytes: 1000, kind: Kind::OneWay };
    app.handle_event(Time::ZERO, 0, event, Some(origin));
}

#[test]
fn responses_that_wait_are_bounded() {
    let config = workload(closed_loop(1, Span::ZERO), Exchange::Echo, None);
    let mut app = apps(&config, OneWayEnd::WhenSent, false).remove(0);
    let more = MAX_WAITING_RESPONSES as u64 + 10;
    for n in 0..more {
        let event = Event::Delivered {
            peer: HostId(1),
            id: MessageId::request(n),
            bytes: 1,
            kind: Kind::Request,
        };
        let origin = Origin { stream: 0, key: MessageKey(n), place: None, number: 0 };
        app.handle_event(Time::ZERO, 0, event, Some(origin));
    }
    assert_eq!((app.refused(), app.ready.len()), (10, MAX_WAITING_RESPONSES));
}
