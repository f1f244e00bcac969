//! The limits of a stream of messages: how many are in progress, for how long, and the end of all starts.

use super::*;

const DEADLINE: Span = Span::from_us(50);

/// Applications whose messages have a deadline.
fn impatient(config: &WorkloadConfig) -> Vec<App> {
    let generator = generator(config);
    let of_host = |host| {
        let stream = AppStream::new(config, 0, generator.of_host(host));
        let stream = AppStream { deadline: Some(DEADLINE), ..stream };
        app(host, stream, OneWayEnd::WhenReceived, false)
    };
    (0..HOSTS).map(HostId).map(of_host).collect()
}

fn open_loop() -> Pattern {
    let sizes = SizeDist::fixed(1000).unwrap();
    Pattern::OpenLoop { sizes, load: 0.5, counts: crate::LoadCounts::Wire }
}

impl World {
    /// Performs everything that is due at a time at all hosts.
    fn run_timeouts(&mut self, now: Time) {
        self.now = now;
        // What one host does may cause something at another.
        for host in (0..HOSTS).chain(0..HOSTS).map(HostId) {
            while self.app(host).poll_timeout().is_some_and(|at| at <= now) {
                self.app(host).handle_timeout(now);
                self.drain(host);
            }
        }
    }
}

proptest! {
    #![proptest_config(rackweave_testing::cases(96))]

    #[test]
    fn what_is_lost_fails_at_its_deadline(
        (exchange, streaming) in (exchanges(), streamings()),
        (seed, outstanding, fails) in (any::<u64>(), 1_u32..4, 0_u32..3),
        is_open in any::<bool>(),
    ) {
        let pattern = if is_open { open_loop() } else { closed_loop(outstanding, Span::from_us(1)) };
        let config = workload(pattern, exchange, streaming);
        let fails = f64::from(fails) * 0.05;
        let [world, again] = [(), ()].map(|()| {
            let mut world = World::of(impatient(&config), seed, fails, 0.1);
            for _ in 0..2000 {
                world.step();
            }
            for app in &mut world.apps {
                app.stop();
            }
            for host in (0..HOSTS).map(HostId) {
                world.drain(host);
            }
            let started = world.started.len();
            // Whatever is in progress has at most this time.
            world.run_timeouts(world.now + DEADLINE);
            assert_eq!(world.started.len(), started, "a message has started after the stop");
            world
        });
        prop_assert!(world.apps.iter().all(|app| app.has_ended(0)));
        prop_assert_eq!(world.under_way(), 0);
        let expired = MessageEnd::Failed(FailReason::Deadline);
        let expired: Vec<Span> = world.latencies.iter()
            .filter_map(|(latency, end)| (*end == expired).then_some(*latency))
            .collect();
        prop_assert!(expired.len() > 3, "{} of {}", expired.len(), world.ended.len());
        if streaming.is_none() {
            prop_assert!(expired.iter().all(|latency| *latency >= DEADLINE));
        }
        prop_assert_eq!(world.latencies, again.latencies, "a run is repeatable");
    }

    #[test]
    fn an_open_loop_has_no_more_in_progress_than_it_may(
        (exchange, streaming) in (exchanges(), streamings()),
        (seed, fails, limit) in (any::<u64>(), 0_u32..3, 1_usize..5),
    ) {
        let config = workload(open_loop(), exchange, streaming);
        let generator = generator(&config);
        let limited = |host| {
            let stream = AppStream::new(&config, 0, generator.of_host(host));
            let stream = AppStream { max_outstanding: limit as u64, ..stream };
            app(host, stream, OneWayEnd::WhenReceived, false)
        };
        let apps = (0..HOSTS).map(HostId).map(limited).collect();
        let mut world = World::of(apps, seed, f64::from(fails) * 0.1, 0.0);
        for _ in 0..3000 {
            world.step();
            for app in &world.apps {
                prop_assert!(app.messages.keys().len() <= limit);
            }
        }
        world.run_timeouts(world.now);
        for app in &world.apps {
            let is_due = app.next_arrival(0).unwrap() <= world.now;
            prop_assert!(!is_due || app.messages.keys().len() == limit, "it waits for nothing");
        }
        // No message is skipped, and each starts when it was due.
        for host in (0..HOSTS).map(HostId) {
            let mut due = generator.of_host(host);
            let of_host = world.started.range((host, MessageKey(0))..=(host, MessageKey(u64::MAX)));
            let starts: Vec<MessageStart> = of_host.map(|(_, start)| *start).collect();
            prop_assert!(starts.len() > 20, "{} have started", starts.len());
            for start in starts {
                let Arrival { at, dst, bytes } = due.next_arrival().unwrap();
                prop_assert_eq!((start.at, start.dst, start.bytes), (at, dst, bytes));
            }
        }
    }
}

#[test]
fn a_message_beyond_the_limit_starts_when_another_ends() {
    let config = workload(open_loop(), Exchange::Echo, None);
    let stream = AppStream::new(&config, 0, generator(&config).of_host(HostId(0)));
    let stream = AppStream { max_outstanding: 1, ..stream };
    let mut app = app(HostId(0), stream, OneWayEnd::WhenSent, false);
    let late = Time::ZERO + Span::from_ms(1);
    app.handle_timeout(late);
    let Some(Action::Submit { key, .. }) = app.poll_action() else { panic!("no start") };
    let due = app.next_arrival(0).unwrap();
    assert!(due < late && app.poll_timeout().is_none(), "the next one waits");
    app.handle_timeout(late);
    assert_eq!(app.poll_action(), None);
    app.fail(late, key, FailReason::PeerSilent);
    assert_eq!(app.poll_timeout(), Some(due));
    app.handle_timeout(late);
    let Some(Action::Submit { start, .. }) = app.poll_action() else { panic!("no start") };
    assert_eq!(start, due);
}

#[test]
fn a_deadline_cancels_the_message_and_the_loop_continues() {
    let config = workload(closed_loop(1, Span::ZERO), Exchange::Echo, None);
    let mut app = impatient(&config).remove(0);
    app.handle_timeout(Time::from_ticks(100));
    let Some(Action::Submit { key, peer, .. }) = app.poll_action() else { panic!("no start") };
    let id = MessageId::request(7);
    app.submitted(key, id);
    let origin = app.origin(key);
    let at = Time::from_ticks(100) + DEADLINE;
    assert_eq!(app.poll_timeout(), Some(at));
    app.pause();
    assert_eq!(app.poll_timeout(), None, "a paused host does not look at the time");
    app.resume();
    app.handle_timeout(at);
    assert_eq!(app.poll_action(), Some(Action::Cancel { instance: 0, peer, id }));
    let ends: Vec<Record> = std::iter::from_fn(|| app.poll_record()).skip(1).collect();
    let bytes = 1000;
    let start = MessageStart { stream: 0, src: HostId(0), dst: peer, bytes, at: Time::ZERO };
    let end = MessageEnd::Failed(FailReason::Deadline);
    assert_eq!(ends, [Record::Ended { key, start, id: Some(id), at, end }]);
    // A late response changes nothing: the next message is scheduled.
    let late = Event::Delivered { peer, id: id.response(), bytes, kind: Kind::Response };
    app.handle_event(at, 0, late, origin);
    assert_eq!((app.poll_record(), app.poll_timeout()), (None, Some(at + DELAY_AFTER_FAILURE)));
}

#[test]
fn a_message_that_waits_for_room_is_not_submitted_after_its_deadline() {
    let config = workload(closed_loop(2, Span::ZERO), Exchange::Echo, None);
    let mut app = impatient(&config).remove(0);
    for start in [Time::from_ticks(1), Time::from_ticks(2)] {
        app.handle_timeout(start);
    }
    let first = app.poll_action().unwrap();
    app.put_back(first);
    app.handle_timeout(Time::from_ticks(1) + DEADLINE);
    assert!(app.unblock());
    let Some(Action::Submit { key, .. }) = app.poll_action() else { panic!("the second remains") };
    assert!(app.origin(key).is_some());
    assert_eq!(app.poll_action(), None);
    app.stop();
    assert!(!app.has_ended(0), "one is in progress");
    app.handle_timeout(Time::from_ticks(2) + DEADLINE);
    assert!(app.has_ended(0) && app.poll_timeout().is_none());
}

/// One message that takes long does not keep the deadlines of all that have ended since.
#[test]
fn deadlines_of_ended_messages_are_forgotten() {
    let config = workload(closed_loop(2, Span::ZERO), Exchange::Echo, None);
    let mut app = impatient(&config).remove(0);
    let mut next_id = 0;
    let mut start = |app: &mut App| {
        app.handle_timeout(Time::from_ticks(1));
        let Some(Action::Submit { key, peer, .. }) = app.poll_action() else { panic!("no start") };
        next_id += 1;
        app.submitted(key, MessageId::request(next_id));
        (key, peer, MessageId::request(next_id))
    };
    start(&mut app);
    for _ in 0..10_000 {
        let (key, peer, id) = start(&mut app);
        let event = Event::Delivered { peer, id: id.response(), bytes: 1000, kind: Kind::Response };
        let origin = app.origin(key);
        app.handle_event(Time::from_ticks(1), 0, event, origin);
        while app.poll_record().is_some() {}
        let deadlines = app.streams[0].deadlines.as_ref().unwrap();
        assert!(deadlines.len() < 100, "{}", deadlines.len());
    }
}
