//! Tests of the transports on [`Driven`] besides the suite of all transports: what they keep and discard, and dialogues of a few
//! packets. `driven_suite!` instantiates these tests for one [`DrivenSubject`].

use std::ops::Range;
use std::sync::Arc;

use rackweave_core::{
    Event, HostId, Kind, MessageId, Node as _, Packet, Placement, Rate, Rng, Span, Time,
    Transport as _,
};
use rackweave_switch::config::{SwitchConfig, Topology};
use rackweave_wire::{Exchange as _, Id64};

use super::suite::{
    Expect, HeaderOf, LINK, Limits, Subject, at, deliveries, events, id, network, submit, usual,
};
use super::{Network, fabric};
use crate::common::{Body, Driven, Parameters, Scheme};
use crate::testkit::Faults;

/// What the tests need to know about a transport besides its [`Scheme`].
pub(crate) trait DrivenSubject: Scheme {
    const EXPECT: Expect;

    /// The trace line of the packet that acknowledges the complete message 1.
    const COMPLETE: &str;

    /// The trace from the first acknowledgement of the complete message 1 on, of 100 bytes, if that is lost.
    const REPEATED: &[&str];

    /// The packet that tells the client of request 1 that it is still in service, as the end of a line.
    const KNOWN: &str;

    /// Number of packets that a sender sends of 10 kB to a host that never answers.
    const TO_NOBODY: Range<usize>;

    /// Delay of links in the dialogues.
    const DELAY: Span = Span::from_us(1);

    /// Lengths of messages, and a time after which each of them has arrived in part.
    const MIDWAY: (&[u64], Span) = (&[50_000], Span::from_us(20));

    /// Whether a restarted receiver gets a message again that it had in part; otherwise its sender fails.
    const SENT_AGAIN: bool = true;

    /// The configuration of the dialogues, with a window of a few packets.
    fn small() -> Self::Config;

    /// The configurations of [`Subject::variants`].
    fn variants() -> Vec<Self::Config>;

    /// The configurations, delays and lengths of [`Subject::back_to_back`].
    fn back_to_back() -> (Vec<Self::Config>, [Span; 3], Vec<u64>);

    /// The configuration of [`Subject::covering`].
    fn covering(config: Self::Config, _delay: Span) -> Self::Config {
        config
    }

    /// The switch of [`Subject::prepare`].
    fn prepare(_switch: &mut SwitchConfig) {}

    /// A configuration whose first window is shorter than a round trip of 40 us.
    fn narrow() -> Self::Config;

    /// A data packet of a first window.
    fn data(length: u32, offset: u32, len: u16) -> Body<Self>;

    /// A packet of any type; `number` draws numbers of all magnitudes.
    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body<Self>;

    /// Changes other fields of a forged packet at random.
    fn corrupt(packet: Packet<Self::Header>, rng: &mut Rng) -> Packet<Self::Header>;

    /// A packet as a line: source, destination, priority and the fields of its type. Offsets are in packets.
    fn line(packet: &Packet<Self::Header>) -> String;
}

/// Sends requests and responses of 200 kB between all hosts of two leaves, `each` for each pair and all at once, through a
/// core with a quarter of the hosts' rate and no limit of its queues. `threshold` is that of marks, in bytes. Returns
/// the number of data packets that were sent, and the number that the messages consist of.
pub(crate) fn through_a_narrow_core<S: DrivenSubject>(
    config: &S::Config,
    hosts_per_leaf: u32,
    link: Rate,
    threshold: Option<u64>,
    each: u64,
) -> (u64, u64) {
    let uplink = Rate(link.0 * u64::from(hosts_per_leaf) / 4);
    let (host_link, core_link) = (link, uplink);
    let topology =
        Topology::LeafSpine { leaves: 2, hosts_per_leaf, spines: 1, host_link, core_link };
    let mut fabric = fabric(topology, Span::from_us(2));
    fabric.switch.marking = threshold.into();
    let shared = Arc::new(config.clone());
    let count = 2 * hosts_per_leaf;
    let hosts = (0..count).map(|host| Driven::new(HostId(host), Arc::clone(&shared))).collect();
    let mut network = Network::<Driven<S>>::on(&fabric, hosts, 1, Faults::default());
    network.keep_packets = true;
    let (bytes, mut n) = (200_000, 0);
    for from in 0..count {
        for to in (0..count).filter(|to| *to != from) {
            for _ in 0..each {
                n += 1;
                submit(&mut network, from, to, n, bytes, Kind::Request);
            }
        }
    }
    network.run_until(at(Span::from_secs(60)));
    let failed = network.events.iter().filter(|it| matches!(it.2, Event::Failed { .. })).count();
    assert_eq!((failed, deliveries(&network).count() as u64), (0, 2 * n), "everything ends");
    let sent = network.packets.iter().filter(|(_, it)| it.payload().is_some()).count();
    (sent as u64, 2 * n * bytes.div_ceil(1_460))
}

impl<S: DrivenSubject> Subject for S {
    type Config = S::Config;
    type Host = Driven<S>;

    const EXPECT: Expect = <S as DrivenSubject>::EXPECT;

    fn variants() -> Vec<S::Config> {
        <S as DrivenSubject>::variants()
    }

    fn prepare(switch: &mut SwitchConfig) {
        <S as DrivenSubject>::prepare(switch);
    }

    fn limited(mut config: S::Config, limits: &Limits) -> S::Config {
        limits.apply(config.common_mut());
        config
    }

    fn host(id: HostId, config: &Arc<S::Config>) -> Driven<S> {
        Driven::new(id, Arc::clone(config))
    }

    fn check(host: &Driven<S>, _limits: Option<&Limits>) {
        host.check_bounds();
    }

    fn is_idle(host: &Driven<S>) -> bool {
        host.is_idle()
    }

    fn held(host: &Driven<S>) -> usize {
        host.exchanges_under_way() as usize
    }

    fn quiet_after(config: &S::Config) -> Span {
        config.common().patience * 12
    }

    fn forge(rng: &mut Rng, from: HostId) -> Packet<HeaderOf<S>> {
        let number = |rng: &mut Rng| match rng.below(4) {
            0 => rng.below(40) as u32,
            1 => usual::<S>().common().max_payload * rng.below(20) as u32,
            2 => rng.below(3_000_000) as u32,
            _ => u32::MAX - rng.below(3) as u32,
        };
        let id = if rng.chance(0.125) { rng.next_u64() } else { rng.below(40) };
        let body = S::any_body(rng, number);
        S::corrupt(forged_by::<S>(from, id, rng.chance(0.5), body), rng)
    }

    fn back_to_back() -> (Vec<S::Config>, [Span; 3], Vec<u64>) {
        <S as DrivenSubject>::back_to_back()
    }

    fn covering(config: S::Config, delay: Span) -> S::Config {
        <S as DrivenSubject>::covering(config, delay)
    }
}

/// A packet of a one-way message from host 1 to host 0.
pub(crate) fn forged<S: DrivenSubject>(message: MessageId, body: Body<S>) -> Packet<S::Header> {
    forged_by::<S>(HostId(1), message.0, true, body)
}

fn forged_by<S: DrivenSubject>(
    from: HostId,
    id: u64,
    one_way: bool,
    body: Body<S>,
) -> Packet<S::Header> {
    let config = usual::<S>();
    let header = S::new(from, &config).header(&config, Id64::new(id), one_way, body);
    Packet::new(from, HostId(0), 100, header)
}

/// The same parameters with less patience.
pub(crate) fn impatient<P: Parameters>(mut config: P, patience: Span) -> P {
    let common = config.common_mut();
    common.patience = patience;
    common.finished_for = patience + Span::from_ms(10);
    config
}

/// Takes the trace of all packets so far.
pub(crate) fn trace<S: DrivenSubject>(network: &mut Network<Driven<S>>) -> Vec<String> {
    network.packets.drain(..).map(|(_, packet)| S::line(&packet)).collect()
}

pub(crate) fn a_late_duplicate_is_acknowledged<S: DrivenSubject>() {
    for kind in [Kind::OneWay, Kind::Request] {
        let mut network = network::<S>(&usual::<S>(), 2, Span::from_us(1));
        submit(&mut network, 0, 1, 1, 100, kind);
        network.run_until(at(Span::from_ms(10)));
        let first = network.packets[0].1;
        network.packets.clear();
        network.run_until(at(Span::from_ms(150)));
        network.inject(first);
        assert!(network.run_until(at(Span::from_ms(155))));
        assert_eq!(trace(&mut network), [S::COMPLETE]);
    }
}

pub(crate) fn without_room_to_remember_nothing_new_starts<S: DrivenSubject>() {
    let mut config = usual::<S>();
    config.common_mut().max_finished = 4;
    let remembered = config.common().finished_for;
    let mut network = network::<S>(&config, 2, Span::from_us(1));
    for n in 1..=4 {
        submit(&mut network, 0, 1, n, 100, Kind::OneWay);
    }
    network.run_until(at(Span::from_ms(1)));
    assert_eq!(events(&mut network).len(), 8);
    submit(&mut network, 0, 1, 5, 100, Kind::OneWay);
    network.run_until(at(Span::from_ms(50)));
    assert_eq!(events(&mut network), [""; 0]);
    let dropped = network.host_mut(1).not_admitted();
    assert!(dropped > 0, "nothing tells the operator why");
    // The first four are forgotten after that time or at most half of it later; a sender gives up earlier.
    network.run_until(at(remembered));
    assert_eq!(events(&mut network), ["h0: 5 with h1 failed: peer silent"]);
    network.run_until(at(Span::from_ticks(remembered.ticks() * 8 / 5)));
    submit(&mut network, 0, 1, 6, 100, Kind::OneWay);
    network.run_until(network.now() + Span::from_ms(10));
    assert_eq!(events(&mut network).len(), 2);
}

pub(crate) fn wrong_lengths_are_discarded<S: DrivenSubject>() {
    let mut config = usual::<S>();
    config.common_mut().max_message_bytes = 1_000_000;
    let full = config.common().max_payload;
    let len = full as u16;
    let mut host = Driven::<S>::new(HostId(0), config.into());
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

pub(crate) fn what_a_silent_peer_began_is_forgotten<S: DrivenSubject>() {
    let config = usual::<S>();
    let full = config.common().max_payload;
    let mut network = network::<S>(&config, 2, Span::from_us(1));
    network.set_down(1, true);
    for n in 0..100 {
        let body = S::data(100_000, full * (n as u32 % 5), full as u16);
        network.inject(forged::<S>(id(n), body));
    }
    assert_eq!(network.hosts[0].exchanges_under_way(), 100);
    assert!(network.run_until(at(config.common().patience + Span::from_ms(1))));
    assert_eq!(network.hosts[0].exchanges_under_way(), 0);
    network.hosts[0].check_bounds();
    // The application has no event of these messages.
    assert_eq!(events(&mut network), [""; 0]);
}

/// A process stands still for a minute, while a copy of a message that it has received, and first packets of others, wait in its socket.
pub(crate) fn what_waits_for_a_host_that_stood_still_is_not_delivered_again<S: DrivenSubject>() {
    let mut host = Driven::<S>::new(HostId(0), usual::<S>().into());
    let arrive = |host: &mut Driven<S>, now, n| {
        let _ = host.handle_packet(now, 0, &forged::<S>(id(n), S::data(100, 0, 100)));
        let events = std::iter::from_fn(|| host.poll_event());
        events.filter(|event| matches!(event, Event::Delivered { .. })).count()
    };
    let (start, late) = (at(Span::from_ms(1)), at(Span::from_secs(60)));
    host.arrived_until(start);
    assert_eq!(arrive(&mut host, start, 1), 1);
    host.cancel(start, HostId(1), id(1));
    for n in 2..5 {
        assert_eq!(arrive(&mut host, late, n), 1);
        host.cancel(late, HostId(1), id(n));
        assert_eq!(arrive(&mut host, late, 1), 0, "{n}");
    }
    // What arrives after that is as old as the protocol permits.
    host.arrived_until(late);
    let later = late + Span::from_secs(60);
    host.arrived_until(later);
    assert_eq!((arrive(&mut host, later, 5), arrive(&mut host, later, 1)), (1, 1));
}

pub(crate) fn control_packets_that_wait_are_limited<S: DrivenSubject>() {
    let mut config = usual::<S>();
    config.common_mut().max_control = 10;
    let mut host = Driven::<S>::new(HostId(0), config.into());
    for n in 0..1_000 {
        let _ = host.handle_packet(Time::ZERO, 0, &forged::<S>(id(n), S::Header::ASK));
    }
    host.check_bounds();
    assert_eq!(std::iter::from_fn(|| host.poll_transmit(Time::ZERO, 0)).count(), 10);
}

pub(crate) fn a_window_below_the_round_trip_leaves_gaps<S: DrivenSubject>() {
    let config = S::narrow();
    let mut network = network::<S>(&config, 2, Span::from_us(20));
    submit(&mut network, 0, 1, 1, 100_000, Kind::OneWay);
    network.run_until(at(Span::from_secs(1)));
    let ideal = LINK.span_of(config.common().framing().message_wire_bytes(100_000));
    assert!(network.events[0].0 > Time::ZERO + ideal * 2, "the time above is not always ideal");
}

/// Two hosts at the beginning of a dialogue.
fn dialogue<S: DrivenSubject>() -> Network<Driven<S>> {
    network::<S>(&S::small(), 2, S::DELAY)
}

fn restart<S: DrivenSubject>(network: &mut Network<Driven<S>>, host: u32) {
    network.restart(host, Driven::new(HostId(host), S::small().into()));
}

/// Runs the network until all hosts have forgotten silent peers.
fn all_are_idle_at_last<S: DrivenSubject>(network: &mut Network<Driven<S>>) {
    let patience = S::small().common().patience;
    assert!(network.run_until(network.now() + patience * 3));
    assert!(network.hosts.iter().all(Driven::is_idle));
}

/// Drops all packets that hosts send while `f` runs.
pub(crate) fn lost<S: Scheme>(
    network: &mut Network<Driven<S>>,
    f: impl FnOnce(&mut Network<Driven<S>>),
) {
    network.lose = Some(|_| true);
    f(network);
    network.lose = None;
}

pub(crate) fn a_lost_acknowledgement_is_repeated<S: DrivenSubject>() {
    let mut network = dialogue::<S>();
    submit(&mut network, 0, 1, 1, 100, Kind::OneWay);
    network.lose = Some(|packet| !packet.header.is_from_sender());
    network.run_until(at(Span::from_us(20)));
    network.lose = None;
    network.run_until(at(Span::from_ms(20)));
    let trace = trace(&mut network);
    let first = trace.iter().position(|line| line == S::REPEATED[0]);
    assert_eq!(trace[first.expect("an acknowledgement")..], *S::REPEATED);
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 100 bytes from h0", "h0: 1 sent to h1"]);
}

pub(crate) fn a_peer_that_never_answers_is_silent<S: DrivenSubject>() {
    let mut network = dialogue::<S>();
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 10_000, Kind::OneWay);
    assert!(network.run_until(at(S::small().common().patience * 5 / 4)));
    assert_eq!(events(&mut network), ["h0: 1 with h1 failed: peer silent"]);
    let packets = trace(&mut network).len();
    assert!(S::TO_NOBODY.contains(&packets), "{packets}");
    assert_eq!(network.hosts[0].exchanges_under_way(), 0);
}

pub(crate) fn a_receiver_that_restarts_has_lost_the_message<S: DrivenSubject>() {
    let (lengths, midway) = S::MIDWAY;
    for bytes in lengths {
        let mut network = dialogue::<S>();
        submit(&mut network, 0, 1, 1, *bytes, Kind::OneWay);
        network.run_until(at(midway));
        restart(&mut network, 1);
        network.run_until(at(Span::from_ms(20)));
        if S::SENT_AGAIN {
            let delivered = format!("h1: OneWay 1 of {bytes} bytes from h0");
            assert_eq!(events(&mut network), [&*delivered, "h0: 1 sent to h1"]);
            assert!(network.hosts.iter().all(Driven::is_idle));
        } else {
            assert_eq!(events(&mut network), ["h0: 1 with h1 failed: peer forgot"]);
        }
        all_are_idle_at_last(&mut network);
    }
}

pub(crate) fn a_sender_that_restarts_leaves_nothing_behind<S: DrivenSubject>() {
    let mut network = network::<S>(&S::small(), 3, S::DELAY);
    submit(&mut network, 1, 0, 1, 500_000, Kind::OneWay);
    submit(&mut network, 2, 0, 2, 500_000, Kind::OneWay);
    network.run_until(at(Span::from_us(100)));
    restart(&mut network, 1);
    network.run_until(at(Span::from_ms(20)));
    // The other message continues, although what was requested of the first does not arrive.
    assert_eq!(events(&mut network), ["h0: OneWay 2 of 500000 bytes from h2", "h2: 2 sent to h0"]);
    assert_eq!(network.hosts[0].exchanges_under_way(), 1);
    all_are_idle_at_last(&mut network);
}

pub(crate) fn a_client_notices_that_its_server_forgot_the_request<S: DrivenSubject>() {
    let config = S::small();
    let (interval, priority) = (config.ask_interval(), config.common().control_priority);
    let mut network = dialogue::<S>();
    network.respond = None;
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(interval * 5 / 2));
    // It is alive, and busy.
    let (trace, ask) = (trace(&mut network), format!("h0>h1 p{priority} ASK 1"));
    let known = format!("h1>h0 p{priority} {}", S::KNOWN);
    let first = trace.iter().position(|line| *line == ask).expect("it is asked");
    assert_eq!(trace[first..], [&*ask, &*known, &*ask, &*known]);
    restart(&mut network, 1);
    network.events.clear();
    network.run_until(at(interval * 5));
    assert_eq!(events(&mut network), ["h0: 1 with h1 failed: peer forgot"]);
    submit(&mut network, 0, 1, 2, 100, Kind::Request);
    network.run_until(network.now() + Span::from_ms(1));
    network.set_down(1, true);
    network.events.clear();
    assert!(network.run_until(network.now() + config.common().patience * 2));
    assert_eq!(events(&mut network), ["h0: 2 with h1 failed: peer silent"]);
}

pub(crate) fn what_is_cancelled_is_forgotten<S: DrivenSubject>() {
    let (lengths, midway) = S::MIDWAY;
    let mut network = dialogue::<S>();
    submit(&mut network, 0, 1, 1, lengths[0], Kind::OneWay);
    network.run_until(at(midway));
    network.cancel(0, 1, id(1));
    network.run_until(network.now() + Span::from_ms(1));
    assert!(network.hosts[0].is_idle());
    all_are_idle_at_last(&mut network);
    submit(&mut network, 0, 1, 2, lengths[0], Kind::OneWay);
    network.run_until(network.now() + midway);
    network.cancel(1, 0, id(2));
    all_are_idle_at_last(&mut network);
    // It counts as received, and the application does not get it.
    assert_eq!(events(&mut network), ["h0: 2 sent to h1"]);
}

/// A long message waits while a hundred shorter ones go to another host for 40 ms, four times as long as a peer may be silent.
pub(crate) fn kept_behind_shorter_ones<S: DrivenSubject>(config: S::Config) -> Network<Driven<S>> {
    let config = impatient(config, Span::from_ms(10));
    let mut network = network::<S>(&config, 3, Span::ZERO);
    submit(&mut network, 0, 1, 1, 1_000_000, Kind::OneWay);
    network.run_until(at(Span::from_us(100)));
    for n in 2..102 {
        submit(&mut network, 0, 2, n, 490_000, Kind::OneWay);
    }
    network.run_until(at(Span::from_ms(60)));
    let events = events(&mut network);
    assert!(events.iter().all(|event| !event.contains("failed")), "{events:?}");
    assert!(events.contains(&"h1: OneWay 1 of 1000000 bytes from h0".to_owned()));
    network
}

/// Instantiates these tests for one [`DrivenSubject`], and the suite of all transports.
macro_rules! driven_suite {
    ($subject:ident) => {
        $crate::tests::suite::transport_suite!($subject);
        $crate::tests::driven::driven_suite!(
            $subject,
            a_late_duplicate_is_acknowledged,
            without_room_to_remember_nothing_new_starts,
            wrong_lengths_are_discarded,
            what_a_silent_peer_began_is_forgotten,
            what_waits_for_a_host_that_stood_still_is_not_delivered_again,
            control_packets_that_wait_are_limited,
            a_window_below_the_round_trip_leaves_gaps,
            a_lost_acknowledgement_is_repeated,
            a_peer_that_never_answers_is_silent,
            a_receiver_that_restarts_has_lost_the_message,
            a_sender_that_restarts_leaves_nothing_behind,
            a_client_notices_that_its_server_forgot_the_request,
            what_is_cancelled_is_forgotten
        );
    };
    ($subject:ident, $($test:ident),+) => {
        $(#[test]
        fn $test() {
            $crate::tests::driven::$test::<$subject>();
        })+
    };
}
pub(crate) use driven_suite;
