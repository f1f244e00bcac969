//! Tests that every receiver-driven transport passes: what it refuses, forged packets, floods, faults of the network, and
//! times on an idle path. `exchange_suite!` runs all of them for one [`Subject`].

use std::sync::Arc;

use proptest::prelude::*;
use rackweave_core::{
    Event, HostId, Kind, MessageId, Node as _, Packet, Placement, Rate, Refused, Rng, Span, Submit,
    Time, Transport as _,
};
use rackweave_wire::Id64;

use super::{Network, chaos};
use crate::common::{Driven, Parameters as _, Scheme};
use crate::testkit::Schedule;

pub(crate) const LINK: Rate = Rate::from_gbps(10);

/// A control packet's time on the link: all are as short as a frame can be.
pub(crate) fn control_span() -> Span {
    LINK.span_of(84)
}

/// What the tests have to know of a transport besides its [`Scheme`].
pub(crate) trait Subject: Scheme {
    /// The configurations that all tests of faults run with. The first is the usual one.
    fn variants() -> Vec<Self::Config>;

    /// Configurations, delays of the path, and sizes of messages with which the path is never idle within a message.
    fn back_to_back() -> (Vec<Self::Config>, [Span; 3], Vec<u64>);

    /// `config` with a first window (or the like) that covers the round trip, where the usual one does not.
    fn covering(config: Self::Config, _delay: Span) -> Self::Config {
        config
    }

    /// A configuration whose first window is shorter than a round trip of 40 us.
    fn narrow() -> Self::Config;

    /// Time that passes before the first data packet of a message.
    fn head_start() -> Span {
        Span::ZERO
    }

    /// By how much control packets that overtake the last data packet in a queue delay it.
    const OVERTAKING: Span = Span::ZERO;

    /// The line of the packet that says that message 1 has arrived.
    const COMPLETE: &str;

    /// A data packet, as its sender sends it unasked.
    fn data(length: u32, offset: u32, len: u16) -> Self::Body;

    /// A packet of any type; `number` gives numbers of all sizes.
    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Self::Body;

    /// What else may be wrong with a forged packet.
    fn spoil(packet: Packet<Self::Header>, rng: &mut Rng) -> Packet<Self::Header>;

    /// A packet as a line: from, to, priority, and what its type says. Offsets are in packets.
    fn line(packet: &Packet<Self::Header>) -> String;
}

// --- what the tests of one transport use too

pub(crate) fn at(span: Span) -> Time {
    Time::ZERO + span
}

/// The id of the `n`th message.
pub(crate) fn id(n: u64) -> MessageId {
    MessageId::request(n)
}

pub(crate) fn network<S: Scheme>(
    config: &S::Config,
    hosts: u32,
    delay: Span,
) -> Network<Driven<S>> {
    let config = Arc::new(config.clone());
    let hosts = (0..hosts).map(|id| Driven::new(HostId(id), Arc::clone(&config))).collect();
    let mut network = Network::new(hosts, LINK, delay);
    network.keep_packets = true;
    network
}

pub(crate) fn submit<S: Scheme>(
    network: &mut Network<Driven<S>>,
    from: u32,
    to: u32,
    n: u64,
    bytes: u64,
    kind: Kind,
) {
    network.submit(from, to, id(n), bytes, kind).expect("taken");
}

/// A packet of a one-way message from host 1 to host 0.
pub(crate) fn forged<S: Subject>(message: MessageId, body: S::Body) -> Packet<S::Header> {
    forged_by::<S>(1, message.0, true, body)
}

fn forged_by<S: Subject>(from: u32, id: u64, one_way: bool, body: S::Body) -> Packet<S::Header> {
    let config = usual::<S>();
    let header = S::new(HostId(from), &config).header(&config, Id64::new(id), one_way, body);
    Packet::new(HostId(from), HostId(0), 100, header)
}

/// All packets so far, and forgets them.
pub(crate) fn trace<S: Subject>(network: &mut Network<Driven<S>>) -> Vec<String> {
    network.packets.drain(..).map(|(_, packet)| S::line(&packet)).collect()
}

/// All events so far, and forgets them.
pub(crate) fn events<S: Scheme>(network: &mut Network<Driven<S>>) -> Vec<String> {
    let text = |(_, host, event): (Time, HostId, Event)| match event {
        Event::Delivered { peer, id, bytes, kind } => {
            format!("{host}: {kind:?} {id} of {bytes} bytes from {peer}")
        }
        Event::Sent { peer, id } => format!("{host}: {id} sent to {peer}"),
        Event::Failed { peer, id, reason } => format!("{host}: {id} with {peer} failed: {reason}"),
        Event::Stream(event) => format!("{host}: {event:?}"),
    };
    network.events.drain(..).map(text).collect()
}

// --- the tests

fn usual<S: Subject>() -> S::Config {
    S::variants().swap_remove(0)
}

fn host<S: Scheme>(config: S::Config) -> Driven<S> {
    Driven::new(HostId(0), Arc::new(config))
}

fn is_idle<S: Scheme>(host: &Driven<S>) -> bool {
    host.check_bounds();
    host.is_idle()
}

fn held<S: Scheme>(host: &Driven<S>) -> usize {
    host.exchanges_under_way() as usize
}

fn makes<S: Scheme>(config: S::Config) -> impl Fn(HostId) -> Driven<S> {
    let config = Arc::new(config);
    move |id| Driven::new(id, Arc::clone(&config))
}

pub(crate) fn what_cannot_be_sent_is_refused<S: Subject>() {
    let mut config = usual::<S>();
    let bounds = config.bounds();
    (*bounds.max_exchanges, *bounds.max_message_bytes) = (2, 1_000_000);
    let mut host = host::<S>(config);
    let mut submit = |n: MessageId, bytes, kind| {
        host.submit(Time::ZERO, Submit { id: n, peer: HostId(1), bytes, kind })
    };
    assert_eq!(submit(id(1), 0, Kind::OneWay), Err(Refused::Empty));
    let too_long = Err(Refused::TooLong { max: 1_000_000 });
    assert_eq!(submit(id(1), 1_000_001, Kind::OneWay), too_long);
    assert_eq!(submit(id(1), 1, Kind::Response), Err(Refused::WrongId));
    assert_eq!(submit(id(1).response(), 1, Kind::Request), Err(Refused::WrongId));
    assert_eq!(submit(id(1).response(), 1, Kind::Response), Err(Refused::UnknownRequest));
    assert_eq!(submit(id(1), 1, Kind::OneWay), Ok(()));
    assert_eq!(submit(id(1), 1, Kind::Request), Err(Refused::DuplicateId));
    assert_eq!(submit(id(2), 1, Kind::Request), Ok(()));
    assert_eq!(submit(id(3), 1, Kind::Request), Err(Refused::Busy));
}

pub(crate) fn a_packet_that_comes_again_after_the_end_is_acknowledged<S: Subject>() {
    for kind in [Kind::OneWay, Kind::Request] {
        let mut network = network::<S>(&usual::<S>(), 2, Span::from_us(1));
        submit(&mut network, 0, 1, 1, 100, kind);
        network.run_until(at(Span::from_ms(10)));
        let first = network.packets[0].1;
        network.packets.clear();
        network.events.clear();
        network.run_until(at(Span::from_ms(150)));
        network.inject(first);
        assert!(network.run_until(at(Span::from_ms(155))));
        assert_eq!(trace(&mut network), [S::COMPLETE]);
        assert_eq!(events(&mut network), [""; 0]);
        assert!(network.hosts.iter().all(Driven::is_idle));
    }
}

pub(crate) fn without_room_to_remember_nothing_new_begins<S: Subject>() {
    let mut config = usual::<S>();
    *config.bounds().max_finished = 4;
    let remembered = config.shared().finished_for;
    let mut network = network::<S>(&config, 2, Span::from_us(1));
    for n in 1..=4 {
        submit(&mut network, 0, 1, n, 100, Kind::OneWay);
    }
    network.run_until(at(Span::from_ms(1)));
    assert_eq!(events(&mut network).len(), 8);
    submit(&mut network, 0, 1, 5, 100, Kind::OneWay);
    network.run_until(at(Span::from_ms(50)));
    assert_eq!(events(&mut network), [""; 0]);
    // The first four are forgotten after that time and half of it at most; a sender tries for less long.
    network.run_until(at(remembered));
    assert_eq!(events(&mut network), ["h0: 5 with h1 failed: peer silent"]);
    network.run_until(at(Span(remembered.0 * 8 / 5)));
    submit(&mut network, 0, 1, 6, 100, Kind::OneWay);
    network.run_until(network.now() + Span::from_ms(10));
    assert_eq!(events(&mut network).len(), 2);
}

pub(crate) fn wrong_lengths_are_discarded<S: Subject>() {
    let mut config = usual::<S>();
    *config.bounds().max_message_bytes = 1_000_000;
    let full = config.shared().max_payload;
    let len = full as u16;
    let mut host = host::<S>(config);
    let mut arrive = |length, offset, len| {
        let packet = forged::<S>(id(1), S::data(length, offset, len));
        host.handle_packet(Time::ZERO, 0, &packet)
    };
    assert_eq!(arrive(100, 0, 0), Placement::Discard);
    assert_eq!(arrive(0, 0, 100), Placement::Discard);
    assert_eq!(arrive(0, 0, 0), Placement::Discard);
    assert_eq!(arrive(100, 0, 99), Placement::Discard);
    assert_eq!(arrive(5_000, 100, len), Placement::Discard, "not at a packet's start");
    assert_eq!(arrive(5_000, full, len - 1), Placement::Discard);
    assert_eq!(arrive(100, full, 1), Placement::Discard);
    assert_eq!(arrive(1_000_001, 0, len), Placement::Discard);
    assert!(matches!(arrive(5_000, 0, len), Placement::Store(_)));
    assert_eq!(arrive(6_000, full, len), Placement::Discard, "another length");
    assert_eq!(arrive(5_000, 0, len), Placement::Discard, "known");
    assert!(matches!(arrive(5_000, 3 * full, 5_000 - 3 * len), Placement::Store(_)));
    assert_eq!(host.exchanges_under_way(), 1);
    let response = forged::<S>(MessageId(3), S::data(100, 0, 100));
    assert_eq!(host.handle_packet(Time::ZERO, 0, &response), Placement::Discard, "no such request");
    assert_eq!(host.exchanges_under_way(), 1);
}

pub(crate) fn what_a_silent_peer_began_is_forgotten<S: Subject>() {
    let config = usual::<S>();
    let full = config.shared().max_payload;
    let mut network = network::<S>(&config, 2, Span::from_us(1));
    network.set_down(1, true);
    for n in 0..100 {
        let body = S::data(100_000, full * (n as u32 % 5), full as u16);
        network.inject(forged::<S>(id(n), body));
    }
    assert_eq!(network.hosts[0].exchanges_under_way(), 100);
    assert!(network.run_until(at(config.shared().patience + Span::from_ms(1))));
    assert_eq!(network.hosts[0].exchanges_under_way(), 0);
    network.hosts[0].check_bounds();
    // The application never learned of them.
    assert_eq!(events(&mut network), [""; 0]);
}

pub(crate) fn control_packets_that_wait_are_limited<S: Subject>() {
    let mut config = usual::<S>();
    *config.bounds().max_control = 10;
    let mut host = host::<S>(config);
    for n in 0..1_000 {
        let _ = host.handle_packet(Time::ZERO, 0, &forged::<S>(id(n), S::ASK));
    }
    host.check_bounds();
    assert_eq!(std::iter::from_fn(|| host.poll_transmit(Time::ZERO, 0)).count(), 10);
}

pub(crate) fn timers_stop_and_a_spurious_timeout_does_nothing<S: Subject>() {
    let mut network = network::<S>(&usual::<S>(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 50_000, Kind::Request);
    network.run_until(at(Span::from_us(20)));
    let before = format!("{:?}", network.hosts);
    for host in &mut network.hosts {
        assert!(host.poll_timeout().is_none_or(|timeout| timeout > at(Span::from_us(20))));
        host.handle_timeout(at(Span::from_us(20)));
    }
    assert_eq!(before, format!("{:?}", network.hosts));
    assert!(network.run_until(at(Span::from_ms(400))));
    assert!(network.hosts.iter().all(|host| host.poll_timeout().is_none()));
}

/// A packet with fields that may mean anything: small numbers meet state, large ones overflow.
fn any_packet<S: Subject>(rng: &mut Rng, from: u32) -> Packet<S::Header> {
    let number = |rng: &mut Rng| match rng.below(4) {
        0 => rng.below(40) as u32,
        1 => usual::<S>().shared().max_payload * rng.below(20) as u32,
        2 => rng.below(3_000_000) as u32,
        _ => u32::MAX - rng.below(3) as u32,
    };
    let id = if rng.chance(0.125) { rng.next_u64() } else { rng.below(40) };
    let body = S::any_body(rng, number);
    S::spoil(forged_by::<S>(from, id, rng.chance(0.5), body), rng)
}

/// Feeds a host with forged packets, and its applications with work.
fn flood<S: Subject>(config: S::Config, seed: u64, packets: u32, sources: u64) {
    let mut rng = Rng::stream(seed, 0, 0, "flood");
    let mut host = host::<S>(config);
    let mut now = Time::ZERO;
    let mut next_id = 0;
    for _ in 0..packets {
        now += Span::from_us(rng.below(300));
        if host.poll_timeout().is_some_and(|at| at <= now) {
            host.handle_timeout(now);
            assert!(host.poll_timeout().is_none_or(|at| at > now));
        }
        if rng.chance(0.05) {
            next_id += 1;
            let (peer, bytes) = (HostId(1 + rng.below(sources) as u32), 1 + rng.below(50_000));
            let kind = if rng.chance(0.5) { Kind::Request } else { Kind::OneWay };
            let _ = host.submit(now, Submit { id: id(next_id % 20), peer, bytes, kind });
        }
        let from = 1 + rng.below(sources) as u32;
        let _ = host.handle_packet(now, 0, &any_packet::<S>(&mut rng, from));
        while let Some(event) = host.poll_event() {
            if let Event::Delivered { peer, id, kind: Kind::Request, .. } = event
                && rng.chance(0.5)
            {
                let bytes = 1 + rng.below(50_000);
                let response = Submit { id: id.response(), peer, bytes, kind: Kind::Response };
                host.submit(now, response).expect("the request is in service");
            }
        }
        for _ in 0..rng.below(3) {
            let _ = host.poll_transmit(now, 0);
        }
    }
    host.check_bounds();
}

pub(crate) fn forged_packets_do_no_harm<S: Subject>(seed: u64) {
    let mut config = usual::<S>();
    let bounds = config.bounds();
    (*bounds.max_exchanges, *bounds.max_control) = (30, 50);
    (*bounds.max_finished, *bounds.max_gaps) = (20, 10);
    flood::<S>(config, seed, 3_000, 5);
}

pub(crate) fn a_flood_from_everywhere_is_bounded<S: Subject>() {
    let mut config = usual::<S>();
    let bounds = config.bounds();
    (*bounds.max_exchanges, *bounds.max_control, *bounds.max_finished) = (100, 50, 100);
    flood::<S>(config, 1, 60_000, 1 << 30);
}

// --- networks that lose, duplicate, reorder and delay, and hosts that restart

pub(crate) fn each_message_arrives_once_or_fails<S: Subject>(
    schedule: &Schedule,
    variant: usize,
) -> Result<(), TestCaseError> {
    let mut variants = S::variants();
    let config = variants.swap_remove(variant % variants.len());
    chaos::run(schedule, makes::<S>(config), is_idle)
}

pub(crate) fn moderate_faults_fail_nothing<S: Subject>() {
    for config in S::variants() {
        chaos::moderate_faults_fail_nothing(makes::<S>(config));
    }
}

pub(crate) fn packets_later_than_all_timers_do_no_harm<S: Subject>() {
    for config in S::variants() {
        chaos::late_packets_do_no_harm(makes::<S>(config), is_idle, Span::from_ms(60));
    }
}

pub(crate) fn a_silent_peer_leaves_nothing_behind<S: Subject>() {
    for config in S::variants() {
        chaos::silent_peer(makes::<S>(config), is_idle, held);
    }
}

pub(crate) fn spoofed_sources_leave_nothing_behind<S: Subject>() {
    let mut config = usual::<S>();
    *config.bounds().max_exchanges = 5_000;
    let patience = config.shared().patience;
    chaos::spoofed_sources(makes::<S>(config), held, 5_000, patience * 3);
}

pub(crate) fn forged_packets_of_all_types_leave_nothing_behind<S: Subject>() {
    let mut config = usual::<S>();
    let bounds = config.bounds();
    (*bounds.max_exchanges, *bounds.max_control, *bounds.max_finished) = (200, 100, 100);
    let patience = config.shared().patience;
    let forge = |rng: &mut Rng, from: HostId| any_packet::<S>(rng, from.0);
    let check = |host: &Driven<S>| host.check_bounds();
    chaos::flood(makes::<S>(config), forge, check, held, patience * 12);
}

// --- times on an idle path

pub(crate) fn a_message_on_an_idle_path_goes_back_to_back<S: Subject>() {
    let (configs, delays, sizes) = S::back_to_back();
    for delay in delays {
        for config in &configs {
            let config = S::covering(config.clone(), delay);
            for &bytes in &sizes {
                let mut network = network::<S>(&config, 2, delay);
                submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
                assert!(network.run_until(at(Span::from_secs(1))));
                let ideal = S::head_start() + network.ideal(bytes, config.shared().framing());
                let delivered =
                    Event::Delivered { peer: HostId(0), id: id(1), bytes, kind: Kind::OneWay };
                let sent = Event::Sent { peer: HostId(1), id: id(1) };
                let (time, host, event) = network.events[0];
                assert_eq!((host, event), (HostId(1), delivered));
                assert!((at(ideal)..=at(ideal + S::OVERTAKING)).contains(&time), "{time}");
                assert_eq!(network.events[1].2, sent);
                assert_eq!(network.events.len(), 2);
                assert!(network.hosts.iter().all(Driven::is_idle));
            }
        }
    }
}

pub(crate) fn a_request_and_its_response_take_both_ideal_times<S: Subject>() {
    let delay = Span::from_us(2);
    let config = S::covering(usual::<S>(), delay);
    let full = u64::from(config.shared().max_payload);
    for bytes in [1, full, 9_329, *S::back_to_back().2.last().expect("sizes")] {
        let mut network = network::<S>(&config, 2, delay);
        submit(&mut network, 0, 1, 1, bytes, Kind::Request);
        assert!(network.run_until(at(Span::from_secs(1))));
        let one_way = S::head_start() + network.ideal(bytes, config.shared().framing());
        let delivered: Vec<_> = deliveries(&network).collect();
        let [(there, HostId(1)), (back, HostId(0))] = delivered[..] else {
            panic!("{delivered:?}")
        };
        assert!((at(one_way)..=at(one_way + S::OVERTAKING)).contains(&there), "{there}");
        // The server's last acknowledgement goes before its response.
        let soonest = there + control_span() + one_way;
        assert!((soonest..=soonest + S::OVERTAKING).contains(&back), "{back}");
        assert!(network.hosts.iter().all(Driven::is_idle));
    }
}

pub(crate) fn deliveries<S: Scheme>(
    network: &Network<Driven<S>>,
) -> impl Iterator<Item = (Time, HostId)> + '_ {
    let delivered = |event: &Event| matches!(event, Event::Delivered { .. });
    network
        .events
        .iter()
        .filter(move |(.., event)| delivered(event))
        .map(|(at, host, _)| (*at, *host))
}

pub(crate) fn a_window_below_the_round_trip_leaves_gaps<S: Subject>() {
    let config = S::narrow();
    let mut network = network::<S>(&config, 2, Span::from_us(20));
    submit(&mut network, 0, 1, 1, 100_000, Kind::OneWay);
    network.run_until(at(Span::from_secs(1)));
    let ideal = LINK.span_of(config.shared().framing().message_wire_bytes(100_000));
    assert!(network.events[0].0 > Time::ZERO + ideal * 2, "the time above is not always ideal");
}

/// Makes a test of each of these for one [`Subject`].
macro_rules! exchange_suite {
    ($subject:ty) => {
        exchange_suite!(
            $subject,
            what_cannot_be_sent_is_refused,
            a_packet_that_comes_again_after_the_end_is_acknowledged,
            without_room_to_remember_nothing_new_begins,
            wrong_lengths_are_discarded,
            what_a_silent_peer_began_is_forgotten,
            control_packets_that_wait_are_limited,
            timers_stop_and_a_spurious_timeout_does_nothing,
            a_flood_from_everywhere_is_bounded,
            moderate_faults_fail_nothing,
            packets_later_than_all_timers_do_no_harm,
            a_silent_peer_leaves_nothing_behind,
            spoofed_sources_leave_nothing_behind,
            forged_packets_of_all_types_leave_nothing_behind,
            a_message_on_an_idle_path_goes_back_to_back,
            a_request_and_its_response_take_both_ideal_times,
            a_window_below_the_round_trip_leaves_gaps
        );

        proptest::proptest! {
            #[test]
            fn each_message_arrives_once_or_fails(
                schedule in crate::tests::chaos::schedules(), variant: usize
            ) {
                crate::tests::suite::each_message_arrives_once_or_fails::<$subject>(&schedule, variant)?;
            }
        }

        proptest::proptest! {
            #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

            #[test]
            fn forged_packets_do_no_harm(seed: u64) {
                crate::tests::suite::forged_packets_do_no_harm::<$subject>(seed);
            }
        }
    };
    ($subject:ty, $($test:ident),+) => {
        $(#[test]
        fn $test() {
            crate::tests::suite::$test::<$subject>();
        })+
    };
}
pub(crate) use exchange_suite;
