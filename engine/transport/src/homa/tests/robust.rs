//! Forged packets, floods, and duplicates.

use std::sync::Arc;

use proptest::prelude::*;
use rackweave_core::{
    Event, FailReason, Kind, MessageId, Node as _, Packet, Placement, Rng, Span, Submit, Time,
    Transport as _,
};
use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, DataStamps, GrantStamps, Header};

use super::{
    Config, Host, HostId, LINK, PROFILES, at, data, events, id, network, packet, profile, submit,
    trace,
};
use crate::testkit::Faults;
use crate::tests::Network;
use crate::tests::chaos::{self, Plan, schedules};

fn paper() -> Config {
    Config::fabric(LINK, 10_000)
}

#[test]
fn a_late_duplicate_is_acknowledged() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 100, Kind::OneWay);
    network.run_until(at(Span::from_ms(10)));
    let first = network.packets[0].1;
    network.packets.clear();
    assert_eq!(events(&mut network).len(), 2);
    network.run_until(at(Span::from_ms(90)));
    network.inject(first);
    network.run_until(at(Span::from_ms(100)));
    assert_eq!(trace(&mut network), ["h1>h0 p7 ACK 1r"]);
    assert_eq!(events(&mut network), [""; 0]);
}

#[test]
fn without_room_to_remember_old_ids_are_refused() {
    let mut config = paper();
    config.max_finished = 4;
    config.max_restarts = 0;
    let mut network = network(&config, 2, Span::from_us(1));
    for n in 1..=10 {
        submit(&mut network, 0, 1, n, 100, Kind::OneWay);
    }
    network.run_until(at(Span::from_ms(10)));
    assert_eq!(events(&mut network).len(), 20);
    let of = |n: u64| network.packets.iter().find(|(_, p)| p.header.id.get() == id(n).0).unwrap().1;
    let (old, recent) = (of(2), of(9));
    network.packets.clear();
    network.inject(old);
    network.inject(recent);
    network.run_until(at(Span::from_ms(20)));
    assert_eq!(trace(&mut network), ["h1>h0 p7 UNKNOWN 2r refused", "h1>h0 p7 ACK 9r"]);
    assert_eq!(events(&mut network), [""; 0]);
    // A message that had not started then fails with a reason, as soon as an acknowledgement would have arrived.
    submit(&mut network, 0, 1, 0, 100, Kind::OneWay);
    network.run_until(at(Span::from_ms(21 + u64::from(config.resend_ticks))));
    assert_eq!(events(&mut network), ["h0: 0 with h1 failed: peer forgot"]);
}

/// What a sender asks about a one-way message whose packets were lost, or whose acknowledgement, is answered by a refusal.
#[test]
fn a_one_way_message_that_is_refused_is_not_sent_again_and_again() {
    let of_first = |packet: &Packet<Header>| packet.header.id.get() & !1 == id(1).0;
    for (number, delivered) in (0..PROFILES).flat_map(|n| [(n, false), (n, true)]) {
        let mut config = Config { max_finished: 4, ..profile(number) };
        // So that no acknowledgement waits for company.
        config.max_acks_queued = 1;
        let mut network = network(&config, 2, Span::from_us(1));
        network.lose = Some(if delivered { |packet| packet.src == HostId(1) } else { of_first });
        for n in 1..=10 {
            submit(&mut network, 0, 1, n, 100, Kind::OneWay);
        }
        network.run_until(at(Span::from_ms(1)));
        let arrived =
            |event: &Event| matches!(event, Event::Delivered { id: of, .. } if *of == id(1));
        assert_eq!(network.count(1, arrived), usize::from(delivered));
        network.lose = None;
        let ticks = u64::from(config.resend_ticks);
        // Those of the profiles that take turns to ask do so at the next interval.
        network.run_until(at(Span::from_ms(2 * ticks + 3)));
        let reason = FailReason::PeerForgot;
        let failed = Event::Failed { peer: HostId(1), id: id(1), reason };
        assert_eq!(network.count(0, |event| *event == failed), 1, "{number} {delivered}");
        let is_data = |packet: &Packet<Header>| matches!(packet.header.body, Body::Data { .. });
        let sent = network.packets.iter().filter(|(_, packet)| of_first(packet) && is_data(packet));
        assert_eq!(sent.count(), 1, "{number} {delivered}");
    }
}

/// The acknowledgement of a message may still wait for company when the message is forgotten.
#[test]
fn what_is_acknowledged_later_is_not_refused() {
    let config = Config { max_finished: 4, ..paper() };
    let mut network = network(&config, 2, Span::from_us(1));
    for n in 1..=10 {
        submit(&mut network, 0, 1, n, 100, Kind::OneWay);
    }
    network.run_until(at(Span::from_us(20)));
    let first = network.packets.iter().find(|(_, packet)| packet.header.id.get() == id(1).0);
    network.inject(first.unwrap().1);
    network.run_until(at(Span::from_ms(10)));
    assert!(trace(&mut network).iter().any(|line| line.contains("ACK 1r")));
    let failed = events(&mut network).into_iter().filter(|event| event.contains("failed"));
    assert_eq!(failed.collect::<Vec<_>>(), [""; 0]);
}

/// SRPT may let any number of later calls pass a large request at its client, until the server has no room to remember them.
#[test]
fn a_request_that_waited_behind_acknowledged_calls_is_served() {
    let mut config = paper();
    config.max_finished = 10;
    let mut network = network(&config, 2, Span::from_us(1));
    for n in 1..=10 {
        submit(&mut network, 0, 1, n, 100, Kind::Request);
    }
    // Longer than the network delays a packet, and less than the server remembers a finished call.
    network.run_until(at(Span::from_ms(200)));
    for n in 11..=20 {
        submit(&mut network, 0, 1, n, 100, Kind::Request);
    }
    network.run_until(at(Span::from_ms(300)));
    let before = events(&mut network);
    assert_eq!(before.iter().filter(|event| event.contains("Response")).count(), 20, "{before:?}");
    submit(&mut network, 0, 1, 0, 100, Kind::Request);
    network.run_until(at(Span::from_ms(301)));
    let after = events(&mut network);
    assert!(after.iter().any(|event| event.contains("Response 0r")), "{after:?}");
}

/// A first packet that the network has delayed beyond a thousand later calls may be a repetition: the call ends at once.
#[test]
fn an_id_that_is_refused_fails_after_one_round_trip() {
    let mut config = paper();
    config.max_finished = 4;
    let mut network = network(&config, 2, Span::from_us(1));
    for n in 1..=10 {
        submit(&mut network, 0, 1, n, 100, Kind::Request);
    }
    network.run_until(at(Span::from_ms(50)));
    events(&mut network);
    submit(&mut network, 0, 1, 0, 100, Kind::Request);
    network.run_until(at(Span::from_ms(51)));
    assert_eq!(events(&mut network), ["h0: 0 with h1 failed: peer forgot"]);
}

/// A client whose packets were lost has asked the server, so that it takes UNKNOWN for the answer.
#[test]
fn an_id_that_is_refused_after_a_question_fails_at_the_first_repetition() {
    for mut config in [paper(), Config::linux(LINK)] {
        config.max_finished = 4;
        let resend = u64::from(config.resend_ticks);
        let mut network = network(&config, 2, Span::from_us(1));
        for n in 1..=10 {
            submit(&mut network, 0, 1, n, 100, Kind::Request);
        }
        network.run_until(at(Span::from_ms(50)));
        events(&mut network);
        network.set_down(1, true);
        submit(&mut network, 0, 1, 0, 100, Kind::Request);
        network.run_until(at(Span::from_ms(50 + resend + 2)));
        assert_eq!(events(&mut network), [""; 0]);
        network.set_down(1, false);
        // Its next question is answered by UNKNOWN, upon which it sends the request again.
        let ask = u64::from(config.resend_interval) + resend;
        network.run_until(network.now() + Span::from_ms(2 * ask + 2));
        assert_eq!(events(&mut network), ["h0: 0 with h1 failed: peer forgot"]);
    }
}

#[test]
fn contradictory_lengths_are_discarded() {
    let mut host = Host::new(HostId(0), Config::linux(LINK).into());
    let mut arrive = |header| host.handle_packet(Time::ZERO, 0, &packet(1, 0, header));
    assert_eq!(arrive(data(id(1), 100, 0, 0)), Placement::Discard);
    assert_eq!(arrive(data(id(1), 0, 0, 100)), Placement::Discard);
    assert_eq!(arrive(data(id(1), 100, 50, 51)), Placement::Discard);
    assert_eq!(arrive(data(id(1), 100, u32::MAX, 1)), Placement::Discard);
    assert_eq!(arrive(data(id(1), u32::MAX, 0, 1)), Placement::Discard);
    assert_eq!(arrive(data(MessageId(3), 100, 0, 100)), Placement::Discard, "no such request");
    assert_eq!(host.rpcs_under_way(), 0);
    let mut arrive = |header| host.handle_packet(Time::ZERO, 0, &packet(1, 0, header));
    assert!(matches!(arrive(data(id(1), 5_000, 0, 100)), Placement::Store(_)));
    assert_eq!(arrive(data(id(1), 6_000, 100, 100)), Placement::Discard, "another length");
    assert_eq!(arrive(data(id(1), 5_000, 0, 100)), Placement::Discard, "known");
    assert!(matches!(arrive(data(id(1), 5_000, 50, 100)), Placement::Store(_)));
    assert_eq!(host.rpcs_under_way(), 1);
}

#[test]
fn a_forged_resend_sends_no_more_than_the_message() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 100_000, Kind::OneWay);
    network.run_until(at(Span::from_us(100)));
    network.packets.clear();
    for _ in 0..1000 {
        let body = Body::Resend { offset: 5, length: u32::MAX - 1, priority: 200 };
        let header = Header { id: Id64::new(id(1).response().0), one_way: true, body };
        network.inject(packet(1, 0, header));
    }
    network.run_until(at(Span::from_ms(1)));
    // Everything that was sent, and one packet that was on the link, is sent a second time, then the rest.
    let sent = trace(&mut network).len();
    assert!((70..=90).contains(&sent), "{sent}");
}

#[test]
fn what_a_silent_peer_began_is_forgotten() {
    for config in [0, 1, 2, 3].map(profile) {
        let patience = Span::from_ms(u64::from(config.patience()));
        let mut network = network(&config, 2, Span::from_us(1));
        network.set_down(1, true);
        for n in 0..100 {
            network.inject(packet(1, 0, data(id(n), 100_000, 1_500 * (n as u32 % 5), 1_000)));
        }
        assert_eq!(network.hosts[0].rpcs_under_way(), 100);
        assert!(network.run_until(at(patience + Span::from_ms(30))));
        assert_eq!(network.hosts[0].rpcs_under_way(), 0);
        network.hosts[0].check_bounds();
        // The application has no event of these messages.
        assert_eq!(events(&mut network), [""; 0]);
    }
}

/// `rackweave chaos rpc --seed 278`: after 50 days, when the number of ticks of a millisecond exceeds 32 bits, requested bytes never
/// counted as lost again, and what a peer had begun was kept for ever.
#[test]
fn what_a_silent_peer_began_is_forgotten_on_an_old_host_too() {
    for config in [1, 2, 3].map(profile) {
        let start = at(Span::from_secs(200 * 86_400));
        let patience = Span::from_ms(u64::from(config.patience()));
        let mut host = Host::new(HostId(0), config.into());
        host.handle_packet(start, 0, &packet(1, 0, data(id(1), 100_000, 0, 1_000)));
        assert_eq!(host.rpcs_under_way(), 1);
        while let Some(next) = host.poll_timeout()
            && next < start + patience + Span::from_ms(30)
        {
            host.handle_timeout(next);
            while host.poll_transmit(next, 0).is_some() {}
        }
        assert_eq!(host.rpcs_under_way(), 0);
        host.check_bounds();
    }
}

#[test]
fn control_packets_that_wait_are_limited() {
    let mut config = paper();
    config.max_control = 10;
    let mut host = Host::new(HostId(0), config.into());
    for n in 0..1_000 {
        let header = Header { id: Id64::new(2 * n), one_way: true, body: Body::NeedAck };
        host.handle_packet(Time::ZERO, 0, &packet(1, 0, header));
    }
    host.check_bounds();
    let waiting = core::iter::from_fn(|| host.poll_transmit(Time::ZERO, 0)).count();
    assert_eq!(waiting, 10);
}

#[test]
fn cancelled_messages_are_not_retransmitted() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 30_000, Kind::OneWay);
    network.run_until(at(Span::from_us(5)));
    let body = Body::Resend { offset: 0, length: 10_000, priority: 7 };
    network.inject(packet(1, 0, Header { id: Id64::new(3), one_way: true, body }));
    network.cancel(0, 1, id(1));
    network.packets.clear();
    submit(&mut network, 0, 1, 2, 100, Kind::OneWay);
    network.run_until(at(Span::from_us(50)));
    let sent = trace(&mut network).into_iter().filter(|line| line.contains("DATA"));
    assert_eq!(sent.collect::<Vec<_>>(), ["h0>h1 p7 DATA 2 0..100 of 100"]);
    network.run_until(at(Span::from_ms(50)));
    network.hosts[0].check_bounds();
}

pub(super) fn any_header(rng: &mut Rng) -> Header {
    // Small numbers match state, large ones overflow.
    let number = |rng: &mut Rng| match rng.below(4) {
        0 => rng.below(4) as u32,
        1 => rng.below(30_000) as u32,
        2 => rng.below(3_000_000) as u32,
        _ => u32::MAX - rng.below(3) as u32,
    };
    let any_id = |rng: &mut Rng| match rng.below(8) {
        0 => rng.next_u64(),
        _ => rng.below(40),
    };
    let body = match rng.below(12) {
        0 => Body::Grant {
            offset: number(rng),
            priority: rng.next_u64() as u8,
            resend_all: rng.chance(0.5),
            stamps: GrantStamps {
                sent_at: number(rng),
                echo: number(rng),
                held_ns: number(rng),
                host_ns: number(rng),
            },
        },
        1 => Body::Resend {
            offset: number(rng),
            length: number(rng),
            priority: rng.next_u64() as u8,
        },
        2 => Body::Unknown { refused: rng.chance(0.5) },
        3 => Body::Busy,
        4 => Body::Cutoffs {
            cutoffs: core::array::from_fn(|_| number(rng)),
            version: rng.next_u64() as u16,
        },
        5 => Body::NeedAck,
        6 => Body::Ack {
            count: rng.next_u64() as u8,
            others: core::array::from_fn(|_| Id64::new(any_id(rng))),
        },
        _ => Body::Data {
            message_length: number(rng),
            incoming: number(rng),
            ack_id: Id64::new(if rng.chance(0.5) { 0 } else { any_id(rng) }),
            ack_port: 0,
            cutoff_version: rng.next_u64() as u16,
            retransmit: rng.chance(0.5),
            offset: number(rng),
            segment_length: rng.below(1443) as u16,
            stamps: DataStamps { sent_at: number(rng), echo: number(rng) },
        },
    };
    Header { id: Id64::new(any_id(rng)), one_way: rng.chance(0.5), body }
}

/// A host that stands still counts no ticks: a process that is paused, or a machine. Its peer forgets what has ended meanwhile,
/// and must not get it again.
#[test]
fn what_a_peer_has_forgotten_during_a_pause_of_the_sender_is_not_sent_again() {
    let config = paper();
    let (mut client, mut server) =
        (Host::new(HostId(0), config.clone().into()), Host::new(HostId(1), config.clone().into()));
    let message = Submit { id: id(1), peer: HostId(1), bytes: 100, kind: Kind::OneWay };
    client.submit(Time::ZERO, message).unwrap();
    let data = client.poll_transmit(Time::ZERO, 0).unwrap();
    server.handle_packet(Time::ZERO, 0, &data);
    let delivered = |server: &mut Host| {
        std::iter::from_fn(|| server.poll_event())
            .filter(|event| matches!(event, Event::Delivered { .. }))
            .count()
    };
    assert_eq!(delivered(&mut server), 1);
    // The acknowledgement is not on its way yet, when the client is paused. The server remembers the message for its time.
    let remembered = config.tick * u64::from(config.finished_ticks);
    let mut now = Time::ZERO + remembered * 2;
    while let Some(at_tick) = server.poll_timeout().filter(|at_tick| *at_tick < now) {
        server.handle_timeout(at_tick);
        while server.poll_transmit(at_tick, 0).is_some() {}
    }
    // Another message makes it forget.
    let other = Submit { id: id(2), peer: HostId(1), bytes: 100, kind: Kind::OneWay };
    let mut third = Host::new(HostId(2), config.clone().into());
    third.submit(now, other).unwrap();
    server.handle_packet(now, 0, &third.poll_transmit(now, 0).unwrap());
    assert_eq!(delivered(&mut server), 1);
    let mut failed = None;
    for _ in 0..400 {
        client.handle_timeout(now);
        while let Some(packet) = client.poll_transmit(now, 0) {
            server.handle_packet(now, 0, &packet);
            while let Some(packet) = server.poll_transmit(now, 0) {
                if packet.dst == HostId(0) {
                    client.handle_packet(now, 0, &packet);
                }
            }
        }
        failed = failed.or_else(|| client.poll_event());
        now += config.tick;
    }
    assert_eq!(delivered(&mut server), 0, "it was delivered before");
    let reason = FailReason::PeerForgot;
    assert_eq!(failed, Some(Event::Failed { peer: HostId(1), id: id(1), reason }));
}

proptest! {
    /// Hosts that have no room to remember what has ended refuse messages that they may have received: none is delivered twice,
    /// and each ends once.
    #[test]
    fn each_message_arrives_once_or_fails_without_room_to_remember(
        schedule in schedules(), variant: usize, finished in 1..20_u32
    ) {
        let config = Arc::new(Config { max_finished: finished, ..profile(variant % PROFILES) });
        let plan = Plan { requests: true, repairs: true };
        chaos::run(&schedule, plan, |id| Host::new(id, Arc::clone(&config)), Host::is_idle)?;
    }
}

proptest! {
    /// As long as packets are not lost, acknowledgements arrive: what has failed was not delivered, however small the memory is, and
    /// however packets are duplicated and reordered within the time after which senders ask.
    #[test]
    fn without_losses_no_refusal_is_of_a_delivered_message(
        seed: u64, variant: usize, finished in 1..20_u32, count in 1..60_u64, us in 0..1_900_u64
    ) {
        let config = Arc::new(Config { max_finished: finished, ..profile(variant % PROFILES) });
        let hosts = (0..3).map(|id| Host::new(HostId(id), Arc::clone(&config))).collect();
        // At each of two links, together less than the ticks for which a refused message waits.
        let lateness = Span::from_us(us);
        let faults = Faults { loss: 0.0, duplication: 0.3, reordering: 0.3, lateness };
        let mut network = Network::with_faults(hosts, LINK, Span::from_us(3), seed, faults);
        let mut rng = Rng::stream(seed, 0, 0, "messages");
        for n in 1..=count {
            let from = rng.below(2) as u32;
            network.submit(from, 2, id(n), 1 + rng.below(30_000), Kind::OneWay).unwrap();
            network.run_until(network.now() + Span::from_us(rng.below(500)));
        }
        prop_assert!(network.run_until(at(Span::from_secs(60))));
        for (_, host, event) in &network.events {
            if let Event::Failed { id: of, reason, .. } = event {
                let arrived = |event: &Event| matches!(event, Event::Delivered { peer, id, .. } if peer == host && id == of);
                prop_assert_eq!(*reason, FailReason::PeerForgot);
                prop_assert_eq!(network.count(2, arrived), 0, "{} of {}", of, host);
            }
        }
    }
}
