//! Under any network and any peer, each message arrives once, complete and in order, or fails with a reason.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rackweave_core::{
    Event, HostId, Kind, MessageId, Node as _, Packet, Rng, Span, Submit, Time, Transport,
};
use rackweave_wire::Id64;
use rackweave_wire::tcp::{Body, Header};

use super::{network, send};
use crate::tcp::{Config, CongestionControl, Host, HyStart};

/// The network has faults until this time.
const HEALED: Time = Time::from_ticks(Span::from_ms(20).ticks());
/// By this time everything has ended, including retries and keep-alives.
const END: Time = Time::from_ticks(Span::from_secs(5).ticks());

#[derive(Clone, Debug)]
pub(super) struct Weather {
    seed: u64,
    loss: f64,
    duplication: f64,
    reordering: f64,
    marking: f64,
}

impl Weather {
    pub(super) fn fate(&self) -> impl FnMut(Time, &mut Packet<Header>) -> Vec<Span> + use<> {
        let mut rng = Rng::stream(self.seed, 0, 0, "weather");
        let Self { loss, duplication, reordering, marking, .. } = *self;
        move |now, packet| {
            if now > HEALED {
                return vec![Span::ZERO];
            }
            if rng.chance(marking) {
                packet.mark();
            }
            let mut fate = Vec::new();
            if !rng.chance(loss) {
                let late = if rng.chance(reordering) { rng.below(100_000_000) } else { 0 };
                fate.push(Span::from_ps(late));
            }
            if rng.chance(duplication) {
                fate.push(Span::from_ps(rng.below(1_000_000_000)));
            }
            fate
        }
    }
}

pub(super) fn weather() -> impl Strategy<Value = Weather> {
    (any::<u64>(), 0.0..0.4, 0.0..0.2, 0.0..0.3, 0.0..0.5).prop_map(
        |(seed, loss, duplication, reordering, marking)| Weather {
            seed,
            loss,
            duplication,
            reordering,
            marking,
        },
    )
}

pub(super) fn config() -> impl Strategy<Value = Config> {
    let rule = prop_oneof![
        Just(CongestionControl::NewReno),
        Just(CongestionControl::Cubic),
        Just(CongestionControl::Dctcp)
    ];
    let hystart = prop_oneof![Just(HyStart::Off), Just(HyStart::Linux), Just(HyStart::PlusPlus)];
    let switches = any::<[bool; 9]>();
    let numbers = (1_u32..4, 100_u32..3000, 1_u32..4, 2_u32..40, any::<u32>(), 0_u32..20);
    let parts = (rule, hystart, switches, numbers);
    parts.prop_map(|(congestion_control, hystart, on, numbers)| Config {
        congestion_control,
        sack: on[0],
        handshake: on[1],
        tail_loss_probe: on[2],
        limited_transmit: on[3],
        ecn: on[4],
        slow_start_after_idle: on[5],
        rack: on[6],
        prr: on[7],
        undo: on[8],
        hystart,
        quick_acks: numbers.5,
        idle_restart: Span::from_us(100),
        ack_every_segments: numbers.0,
        mss: numbers.1,
        connections_per_peer: numbers.2,
        max_ranges: numbers.3,
        receive_window: 70_000,
        initial_sequence: Some(numbers.4),
        ..Config::tcp()
    })
}

pub(super) fn messages() -> impl Strategy<Value = Vec<(bool, u64, Kind)>> {
    let kind = prop_oneof![Just(Kind::OneWay), Just(Kind::Request)];
    prop::collection::vec((any::<bool>(), 1_u64..60_000, kind), 1..12)
}

pub(super) fn assert_quiet(host: &Host) {
    assert_eq!(host.backlog(), [0; 6], "something is left");
    for connection in host.iter() {
        assert!(connection.is_idle());
        assert_eq!(connection.receiver.held(), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..rackweave_testing::cases(300)
    })]

    #[test]
    fn every_message_arrives_once_and_whole(
        config in config(),
        weather in weather(),
        messages in messages(),
    ) {
        let mut net = network(2, &config, weather.fate());
        net.respond = Some(|_| 9_000);
        for (number, &(reverse, bytes, kind)) in (1..).zip(&messages) {
            let from = u32::from(reverse);
            send(&mut net, from, 1 - from, number, bytes, kind);
            let next = net.now() + Span::from_us(number * 7 % 50);
            net.run_until(next);
        }
        net.run_until(END);
        for (number, &(reverse, _, kind)) in (1..).zip(&messages) {
            let (from, to) = (u32::from(reverse), u32::from(!reverse));
            let id = MessageId::request(number);
            let told = |host: u32, id: MessageId, want: fn(&Event) -> bool| {
                net.count(host, |event| want(event) && matches!(event,
                    Event::Delivered { id: i, .. } | Event::Sent { id: i, .. }
                    | Event::Failed { id: i, .. } if *i == id))
            };
            let delivered = |event: &Event| matches!(event, Event::Delivered { .. });
            let sent = |event: &Event| matches!(event, Event::Sent { .. });
            let failed = |event: &Event| matches!(event, Event::Failed { .. });
            // 15 consecutive timeouts end after the last fault, so that no message may fail.
            prop_assert_eq!(told(to, id, delivered), 1);
            prop_assert_eq!(told(from, id, sent), 1);
            prop_assert_eq!(told(from, id, failed), 0);
            if kind == Kind::Request {
                prop_assert_eq!(told(from, id.response(), delivered), 1);
                prop_assert_eq!(told(to, id.response(), sent), 1);
            }
        }
        if config.connections_per_peer == 1 {
            let order = |at: HostId| net.events.iter().filter_map(move |entry| match *entry {
                (_, host, Event::Delivered { id, kind, .. })
                    if host == at && kind != Kind::Response => Some(id),
                _ => None,
            });
            prop_assert!(order(HostId(0)).is_sorted() && order(HostId(1)).is_sorted());
        }
        net.hosts.iter().for_each(assert_quiet);
    }

    #[test]
    fn a_restart_fails_messages_and_nothing_else(
        config in config(),
        weather in weather(),
        messages in messages(),
        restart_us in 1_u64..3_000,
        who in 0_u32..2,
    ) {
        // Every incarnation has its own sequence numbers. A message that a dead client has sent in part remains
        // at the server until the connection counts as idle.
        let idle_timeout = Span::from_secs(1);
        let config = Config { initial_sequence: None, idle_timeout, ..config };
        let mut net = network(2, &config, weather.fate());
        net.respond = Some(|_| 9_000);
        for (number, &(_, bytes, kind)) in (1..).zip(&messages) {
            send(&mut net, 0, 1, number, bytes, kind);
        }
        net.run_until(Time::ZERO + Span::from_us(restart_us));
        net.restart(who, Host::new(HostId(who), config.clone()));
        let before = net.events.len();
        send(&mut net, 0, 1, 99, 20_000, Kind::Request);
        net.run_until(END);
        // Of a restarted client, only events of its last incarnation count.
        let mut fate: BTreeMap<(HostId, MessageId), [u32; 3]> = BTreeMap::new();
        for (index, &(_, host, event)) in net.events.iter().enumerate() {
            if who == 0 && host == HostId(0) && index < before {
                continue;
            }
            match event {
                Event::Delivered { id, .. } => fate.entry((host, id)).or_default()[0] += 1,
                Event::Sent { id, .. } => fate.entry((host, id)).or_default()[1] += 1,
                Event::Failed { id, .. } => fate.entry((host, id)).or_default()[2] += 1,
                Event::Stream(_) => panic!("nobody opened a stream"),
            }
        }
        for (&(host, id), &[delivered, sent, failed]) in &fate {
            let lives = 1 + u32::from(host == HostId(1) && who == 1);
            prop_assert!(delivered <= lives && sent <= lives && failed <= 1, "{host} {id}");
        }
        let outcome = |id: MessageId| fate.get(&(HostId(0), id)).copied().unwrap_or_default();
        let all = (1..=messages.len() as u64).zip(&messages).map(|(n, m)| (n, m.2));
        let mine = all.filter(|_| who == 1).chain([(99, Kind::Request)]);
        for (number, kind) in mine {
            let id = MessageId::request(number);
            let [_, sent, failed] = outcome(id);
            let ended = match kind {
                Kind::Request => outcome(id.response())[0],
                _ => sent,
            };
            prop_assert_eq!(ended + failed, 1, "message {} {:?}: {:?}", number, kind, &net.events);
        }
        for host in &net.hosts {
            assert_quiet(host);
            prop_assert_eq!(host.connections(), 0);
        }
    }

    #[test]
    fn forged_segments_neither_panic_nor_pile_up(
        config in config(),
        seed in any::<u64>(),
    ) {
        let config = Config { max_connections: 50, max_messages: 100, ..config };
        let start = config.initial_sequence.unwrap_or(0);
        let mut rng = Rng::stream(seed, 0, 0, "forger");
        let mut host = Host::new(HostId(0), config);
        for number in 1..=5 {
            let id = MessageId::request(number);
            let message = Submit { id, peer: HostId(1), bytes: 1 << 20, kind: Kind::Request };
            host.submit(Time::ZERO, message).unwrap();
        }
        let mut known_ports = vec![0];
        let mut now = Time::ZERO;
        for _ in 0..3000 {
            now += Span::from_ps(rng.below(50_000_000));
            let packet = forge(&mut rng, start, &known_ports);
            let _ = host.handle_packet(now, 0, &packet);
            if host.poll_timeout().is_some_and(|at| at <= now) {
                host.handle_timeout(now);
            }
            // A slow link: the lists must not grow because of it.
            if rng.chance(0.3) && let Some(packet) = host.poll_transmit(now, 0) {
                known_ports.push(packet.ports);
                assert!(packet.wire_bytes <= 38 + 40 + 3000);
            }
            while host.poll_event().is_some() {}
            let [control, data, submitted, _, strays, _] = host.backlog();
            prop_assert!(host.connections() <= 50);
            prop_assert!(control <= 50 && data <= 50 && submitted <= 5 && strays <= 256);
            for connection in host.iter() {
                let (messages, ranges) = connection.receiver.held();
                prop_assert!(messages <= 4097 && ranges <= 40);
            }
        }
    }
}

/// A segment with numbers that may match a connection.
pub(super) fn forge(rng: &mut Rng, start: u32, known_ports: &[u32]) -> Packet<Header> {
    let near = |rng: &mut Rng| match rng.below(4) {
        0 => rng.next_u64() as u32,
        1 => rng.below(8) as u32,
        _ => start.wrapping_add(rng.below(200_000) as u32),
    };
    let body = if rng.chance(0.6) {
        let kinds = [Kind::OneWay, Kind::Request, Kind::Response];
        let kind = kinds[rng.below(3) as usize];
        let id = rng.below(12) & !1 | u64::from(kind == Kind::Response);
        let huge = rng.chance(0.1);
        Body::Data {
            message: Id64::new(if rng.chance(0.1) { rng.next_u64() } else { id }),
            message_length: if huge { u32::MAX } else { rng.below(5000) as u32 },
            offset: if huge { near(rng) } else { rng.below(5000) as u32 },
            len: rng.below(if huge { 65_536 } else { 1500 }) as u16,
            kind,
        }
    } else {
        let sack = [(); 3].map(|()| (near(rng), near(rng)));
        Body::Ack { count: rng.below(256) as u8, sack }
    };
    let flags =
        if rng.chance(0.5) { [0x02, 0x10][rng.below(2) as usize] } else { rng.next_u64() as u8 };
    let (seq, ack) = (near(rng), near(rng));
    let header = Header { seq, ack, window: rng.next_u64() as u16, flags, body };
    let mut packet = Packet::new(HostId(1), HostId(0), 1500, header);
    // Answers to what the host has sent, or opening segments.
    let known = known_ports[rng.below(known_ports.len() as u64) as usize];
    packet.ports = match rng.below(3) {
        0 => known.rotate_left(16),
        1 => (rng.below(200) as u32) << 16 | 5001,
        _ => 40_000 << 16 | 5001,
    };
    if rng.chance(0.3) {
        packet = packet.with_ecn(rackweave_core::Ecn::Marked);
    }
    if rng.chance(0.05) {
        packet.trim();
    }
    packet
}

#[test]
fn a_spurious_timeout_does_nothing() {
    let mut host = Host::new(HostId(0), Config::dctcp());
    host.handle_timeout(Time::ZERO);
    assert_eq!(host.poll_timeout(), None);
    let id = MessageId::request(1);
    let message = Submit { id, peer: HostId(1), bytes: 100_000, kind: Kind::Request };
    host.submit(Time::ZERO, message).unwrap();
    while host.poll_transmit(Time::ZERO, 0).is_some() {}
    let deadline = host.poll_timeout();
    assert_eq!(deadline, Some(Time::ZERO + Span::from_ms(1)));
    for us in 1..1000 {
        host.handle_timeout(Time::ZERO + Span::from_us(us));
        assert_eq!(host.poll_transmit(Time::ZERO + Span::from_us(us), 0), None);
        assert_eq!(host.poll_event(), None);
        assert_eq!(host.poll_timeout(), deadline);
    }
}
