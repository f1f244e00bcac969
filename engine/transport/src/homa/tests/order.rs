//! The order of transmission: SRPT, priorities, overcommitment, FIFO shares, limits on grants.

use std::collections::BTreeMap;

use rackweave_core::{
    Event, HostId, Kind, MessageId, Node as _, Packet, Placement, Rate, Span, Time, Transport,
};
use rackweave_wire::homa::{Body, Header};

use super::super::{Cutoffs, PriorityBy};
use super::{Config, LINK, at, data, events, id, line, network, packet, submit, trace};
use crate::homa::Host;
use crate::tests::Network;

fn delivered(network: &Network<Host>, host: u32) -> Vec<u64> {
    let number = |event| match event {
        Event::Delivered { id, .. } => Some(id.number()),
        _ => None,
    };
    network.events_at(host).filter_map(number).collect()
}

fn grants(network: &Network<Host>) -> Vec<(MessageId, HostId, u32, u8)> {
    let grant = |(_, packet): &(Time, Packet<Header>)| match packet.header.body {
        Body::Grant { offset, priority, .. } => {
            Some((MessageId(packet.header.id.get() ^ 1), packet.dst, offset, priority))
        }
        _ => None,
    };
    network.packets.iter().filter_map(grant).collect()
}

fn paper() -> Config {
    Config::fabric(LINK, 10_000)
}

#[test]
fn the_sender_sends_the_shortest_message_first() {
    let mut network = network(&paper(), 4, Span::from_us(1));
    // The first packet of the first message is on the link before the others are submitted.
    for (n, bytes) in [(1, 9_000), (2, 6_000), (3, 3_000), (4, 3_000), (5, 100)] {
        submit(&mut network, 0, 1 + n as u32 % 3, n, bytes, Kind::OneWay);
    }
    network.run_until(at(Span::from_ms(1)));
    let order: Vec<_> = network
        .packets
        .iter()
        .filter(|(_, packet)| packet.src == HostId(0))
        .map(|(_, packet)| packet.header.id.get() >> 1)
        .collect();
    assert_eq!(order, [1, 5, 3, 3, 3, 4, 4, 4, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn unscheduled_packets_go_by_length_and_scheduled_ones_low() {
    let mut network = network(&Config::linux(LINK), 2, Span::from_us(1));
    for (n, bytes) in [(1, 200), (2, 201), (3, 2_801), (4, 30_000)] {
        submit(&mut network, 0, 1, n, bytes, Kind::OneWay);
    }
    network.run_until(at(Span::from_ms(1)));
    let priorities = |n: u64| -> Vec<u8> {
        let of = |(_, packet): &&(Time, Packet<Header>)| {
            packet.header.id.get() == id(n).0 && packet.src == HostId(0)
        };
        network.packets.iter().filter(of).map(|(_, packet)| packet.priority).collect()
    };
    assert_eq!(priorities(1), [7]);
    assert_eq!(priorities(2), [6]);
    assert_eq!(priorities(3), [5, 5]);
    // 8 unscheduled packets; a single scheduled message uses the lowest level.
    assert_eq!(priorities(4), [vec![4; 8], vec![0; 14]].concat());
}

#[test]
fn by_bytes_left_the_end_of_a_message_rises() {
    let cutoffs = Cutoffs::new(&[2_000, 5_000, 8_000, u32::MAX], 8).unwrap();
    let config = paper().with_priorities(cutoffs);
    assert_eq!(config.priority_by, PriorityBy::BytesLeft);
    let mut network = network(&config, 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 1442 * 20, Kind::OneWay);
    network.run_until(at(Span::from_ms(1)));
    let priorities: Vec<_> = network
        .packets
        .iter()
        .filter(|(_, packet)| matches!(packet.header.body, Body::Data { .. }))
        .map(|(_, packet)| packet.priority)
        .collect();
    // Unscheduled packets use the lowest such level, scheduled ones level 0. Packets have the priority of the
    // newest grant, which is one window ahead here, so that the last ones are raised early.
    let (first, last) = priorities.split_at(10);
    assert_eq!(first, [vec![4; 7], vec![0; 3]].concat());
    assert_eq!(last, [0, 4, 5, 5, 6, 6, 7, 7, 7, 7]);
}

#[test]
fn a_peers_cutoffs_are_learnt_and_used() {
    let config = Config::linux(LINK);
    let mut network = network(&config, 2, Span::from_us(1));
    let mut other = config;
    other.cutoffs = Cutoffs::new(&[10, 20, u32::MAX], 8).unwrap();
    other.cutoff_version = 5;
    network.restart(1, Host::new(HostId(1), other.into()));
    for n in 1..=4 {
        submit(&mut network, 0, 1, n, 150, Kind::OneWay);
        network.run_until(at(Span::from_us(100 * (n / 2))));
    }
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 DATA 1 0..150 of 150",
            "h0>h1 p7 DATA 2 0..150 of 150",
            // It is sent once, although both packets were sent without knowing the cutoffs.
            "h1>h0 p7 CUTOFFS version 5",
            "h0>h1 p5 DATA 3 0..150 of 150",
            "h0>h1 p5 DATA 4 0..150 of 150",
        ]
    );
}

#[test]
fn the_receiver_grants_the_shortest_messages_at_different_levels() {
    let config = paper().with_priorities(Cutoffs::new(&[u32::MAX; 5], 8).unwrap());
    assert_eq!(config.overcommit, 3);
    let mut network = network(&config, 6, Span::from_us(1));
    // Five senders; none has sent its unscheduled bytes before all have started.
    for sender in 1..=5 {
        let bytes = 100_000 * u64::from(sender);
        submit(&mut network, sender, 0, u64::from(sender), bytes, Kind::OneWay);
        network.run_until(network.now() + Span::from_ns(10));
    }
    network.run_until(at(Span::from_us(60)));
    let granted = grants(&network);
    let of = |n: u64| -> Vec<u8> {
        granted.iter().filter(|(message, ..)| *message == id(n)).map(|grant| grant.3).collect()
    };
    // As the messages arrive one after another, the first has level 0, then 1, then 2.
    assert!(of(1).ends_with(&[2, 2, 2]), "{:?}", of(1));
    assert!(of(2).ends_with(&[1, 1, 1]), "{:?}", of(2));
    assert!(of(3).ends_with(&[0, 0, 0]), "{:?}", of(3));
    assert_eq!((of(4), of(5)), (vec![], vec![]), "not among the first three");
    network.run_until(at(Span::from_ms(20)));
    assert_eq!(delivered(&network, 0), [1, 2, 3, 4, 5]);
}

#[test]
fn only_one_message_of_a_peer_is_granted_at_a_time() {
    let config = paper();
    let mut network = network(&config, 3, Span::from_us(1));
    for n in 1..=3 {
        submit(&mut network, 1, 0, n, 50_000, Kind::OneWay);
    }
    submit(&mut network, 2, 0, 1, 60_000, Kind::OneWay);
    network.run_until(at(Span::from_ms(1)));
    let mut open = BTreeMap::new();
    for (message, sender, offset, _) in grants(&network) {
        if sender == HostId(1) {
            open.insert(message, offset);
            assert!(open.values().filter(|offset| **offset < 50_000).count() <= 1, "{open:?}");
        }
    }
    assert_eq!(open.len(), 3);
    assert_eq!(delivered(&network, 0).len(), 4);
}

/// Takes the packets that `poll_transmit` sends now, and records the grants among them by peer.
fn note_grants(host: &mut Host, granted: &mut BTreeMap<HostId, u32>) {
    while let Some(packet) = host.poll_transmit(Time::ZERO, 0) {
        if let Body::Grant { offset, .. } = packet.header.body {
            granted.insert(packet.dst, offset);
        }
    }
}

#[test]
fn max_incoming_limits_granted_bytes() {
    let mut config = Config::linux(LINK);
    config.max_incoming = 30_000;
    config.grant_fifo_fraction = 0;
    let (length, len) = (100_000, 1_420);
    let unscheduled = config.whole_packets(config.unscheduled_bytes, length);
    let mut host = Host::new(HostId(0), config.into());
    let mut granted = BTreeMap::new();
    let mut received = BTreeMap::new();
    let mut most = 0;
    // Each of eight peers sends everything it may, in turns with the others.
    loop {
        let mut any = false;
        for peer in 1..=8 {
            let offset = *received.get(&peer).unwrap_or(&0);
            if offset >= *granted.entry(HostId(peer)).or_insert(unscheduled) {
                continue;
            }
            any = true;
            let piece = len.min(length - offset);
            let header = data(id(1), length, offset, piece as u16);
            let _ = host.handle_packet(Time::ZERO, 0, &packet(peer, 0, header));
            received.insert(peer, offset + piece);
            note_grants(&mut host, &mut granted);
            let on_the_way = |(peer, to): (&HostId, &u32)| to - received.get(&peer.0).unwrap_or(&0);
            let scheduled = granted.iter().filter(|(_, to)| **to > unscheduled);
            most = most.max(scheduled.map(on_the_way).sum::<u32>());
        }
        if !any {
            break;
        }
    }
    assert!(received.values().all(|bytes| *bytes == length), "{received:?}");
    assert!((28_000..=30_000 + len).contains(&most), "{most}");
}

#[test]
fn a_dynamic_window_shrinks_with_the_number_of_messages() {
    let mut config = Config::linux(LINK);
    config.window = 0;
    config.max_incoming = 60_000;
    let mut network = network(&config, 2, Span::from_us(1));
    submit(&mut network, 1, 0, 1, 500_000, Kind::OneWay);
    network.run_until(at(Span::from_us(4)));
    let first = grants(&network)[0];
    // One message: half of max_incoming beyond the 1420 bytes received, in whole packets.
    assert_eq!(first.2, config.whole_packets(1_420 + 30_000, 500_000));
}

#[test]
fn a_twentieth_of_the_granted_bytes_goes_to_the_oldest_message() {
    let share = |fraction| {
        let mut config = Config::linux(LINK);
        config.grant_fifo_fraction = fraction;
        config.overcommit = 1;
        config.max_message_bytes = 10_000_000;
        let unscheduled = config.whole_packets(config.unscheduled_bytes, u32::MAX);
        let mut host = Host::new(HostId(0), config.into());
        let mut granted = BTreeMap::new();
        let mut received = BTreeMap::new();
        let mut scheduled = BTreeMap::<bool, u64>::new();
        let mut arrive = |peer: u32, message: u64, length: u32| {
            let offset = *received.get(&message).unwrap_or(&0);
            assert!(offset < length);
            let to = *granted.entry(HostId(peer)).or_insert(unscheduled);
            if offset >= to.min(length) {
                return offset;
            }
            let piece = (length - offset).min(1_420);
            let header = data(id(message), length, offset, piece as u16);
            let placement = host.handle_packet(Time::ZERO, 0, &packet(peer, 0, header));
            assert!(matches!(placement, Placement::Store(_)));
            received.insert(message, offset + piece);
            if offset + piece == length {
                granted.remove(&HostId(peer));
            }
            note_grants(&mut host, &mut granted);
            if offset >= unscheduled {
                *scheduled.entry(message == 0).or_default() += u64::from(piece);
            }
            offset + piece
        };
        // The oldest message is long; two shorter ones follow each other at all times.
        arrive(1, 0, 10_000_000);
        let mut short = [1, 2];
        while short[1] < 200 {
            for (peer, message) in [2, 3].into_iter().zip(&mut short) {
                if arrive(peer, *message, 100_000) == 100_000 {
                    *message += 2;
                }
            }
            arrive(1, 0, 10_000_000);
        }
        let bytes = |oldest| *scheduled.get(&oldest).unwrap_or(&0) as f64;
        bytes(true) / (bytes(true) + bytes(false))
    };
    assert!(share(0) < 0.001, "it was granted a packet while it was alone");
    let (five, ten) = (share(50), share(100));
    assert!((0.045..0.055).contains(&five), "{five}");
    assert!((0.09..0.11).contains(&ten), "{ten}");
}

/// `HomaModule` 2026, `homa_grant_check_fifo`: 50,000 bytes each 320 us at 25 Gbps and 5 %, to the same message at the next to highest
/// priority, however much is in flight; to another one when a window and 100,000 bytes are
/// unanswered.
#[test]
fn grants_by_time_stay_with_the_oldest_message_that_responds() {
    let mut config = Config::linux_2026(Rate::from_gbps(25));
    (config.overcommit, config.window, config.max_incoming) = (1, 10_000, 10_000_000);
    config.unscheduled_bytes = 1_424;
    assert_eq!(config.fifo_interval(), Span::from_us(320));
    let mut host = Host::new(HostId(0), config.into());
    let mut grants = Vec::new();
    let mut arrive = |us: u64, peer: u32, length: u32, offset: u32| {
        let now = Time::ZERO + Span::from_us(us);
        let header = data(id(1), length, offset, 1_424);
        let _ = host.handle_packet(now, 0, &packet(peer, 0, header));
        while let Some(packet) = host.poll_transmit(now, 0) {
            if let Body::Grant { priority: 6, .. } = packet.header.body {
                grants.push((us, packet.dst.0));
            }
        }
    };
    // The two oldest never answer; the third is the shortest, so that it is granted in SRPT order.
    arrive(0, 1, 900_000, 0);
    arrive(1, 2, 900_000, 0);
    for packet in 0..60_u32 {
        arrive(u64::from(packet) * 40 + 2, 3, 300_000, packet * 1_424);
    }
    // In SRPT order the third needs no grant after its first one here, and without such a grant there is none here.
    assert_eq!(grants, [(0, 1), (322, 1), (642, 2), (962, 2), (1282, 3)]);
}

/// The first packets of messages arrive, as (peer, number, length), and are answered by grants to (peer, message), with their ends.
fn granted_after(config: Config, first: &[(u32, u64, u32)]) -> Vec<(u32, u64, u32)> {
    let mut host = Host::new(HostId(0), config.into());
    for (peer, message, length) in first {
        let header = data(id(*message), *length, 0, 1_424);
        let _ = host.handle_packet(Time::ZERO, 0, &packet(*peer, 0, header));
    }
    let mut granted = BTreeMap::new();
    while let Some(packet) = host.poll_transmit(Time::ZERO, 0) {
        if let Body::Grant { offset, .. } = packet.header.body {
            granted.insert((packet.dst.0, packet.header.id.get() >> 1), offset);
        }
    }
    granted.into_iter().map(|((peer, message), offset)| (peer, message, offset)).collect()
}

/// `homa_grant_find_victim` and `homa_grant_promote_queued` of the module, July 2026: with places for three, the shortest message of each
/// peer has one before the second of any; places that no other peer claims go to further messages.
#[test]
fn places_go_to_other_peers_first_and_then_to_further_messages_of_one() {
    let mut config = Config::linux_2026(LINK);
    (config.overcommit, config.max_rpcs_per_peer) = (3, 3);
    (config.unscheduled_bytes, config.max_incoming, config.window) = (1_424, 10_000_000, 20_000);
    config.grant_fifo_fraction = 0;
    let messages =
        |granted: Vec<(u32, u64, u32)>| granted.into_iter().map(|(_, n, _)| n).collect::<Vec<_>>();
    let alone = [(1, 1, 100_000), (1, 2, 200_000), (1, 3, 300_000), (1, 4, 400_000)];
    assert_eq!(messages(granted_after(config.clone(), &alone)), [1, 2, 3]);
    // In the order of arrival: what the first peer's messages were granted before the others came stays granted.
    let others_first = [(2, 5, 800_000), (3, 6, 900_000)];
    let all = [&others_first[..], &alone[..]].concat();
    assert_eq!(messages(granted_after(config.clone(), &all)), [1, 5, 6]);
    let one_other = [&others_first[..1], &alone[..]].concat();
    assert_eq!(messages(granted_after(config.clone(), &one_other)), [1, 2, 5]);
    // By SRPT alone all places are the first peer's.
    config.spread_over_peers = false;
    let srpt = messages(granted_after(config, &all));
    assert_eq!(srpt, [1, 2, 3, 5, 6], "5 and 6 were granted while they were alone");
}

/// `homa_grant_update_incoming` of the module, July 2026: only messages that need grants (`RPC_GRANTABLE`) are in `total_incoming`.
#[test]
fn messages_without_grants_leave_the_whole_limit_to_others() {
    let mut config = Config::linux_2026(LINK);
    (config.max_incoming, config.grant_fifo_fraction) = (80_000, 0);
    // A packet has arrived of nine messages of 10 KB, all of it unscheduled, and of a long one, whose window is half of the limit.
    let short = (1..=9).map(|n| (n, u64::from(n), 10_000));
    let first: Vec<_> = short.chain([(10, 10, 1_000_000)]).collect();
    let window = config.whole_packets(1_424 + 40_000, u32::MAX);
    assert_eq!(granted_after(config.clone(), &first), [(10, 10, window)]);
    config.unscheduled_counts = true;
    // 9 (10,000 - 1424) bytes are under way, and 8.6 KB or more of the long message: nothing is left.
    assert_eq!(granted_after(config, &first), []);
}

#[test]
fn a_cancelled_message_leaves_its_place_to_the_next() {
    let mut config = paper();
    config.overcommit = 1;
    let mut host = Host::new(HostId(0), config.into());
    let mut granted = BTreeMap::new();
    for (peer, length) in [(1, 50_000), (2, 60_000)] {
        let header = data(id(1), length, 0, 1_442);
        let _ = host.handle_packet(Time::ZERO, 0, &packet(peer, 0, header));
    }
    note_grants(&mut host, &mut granted);
    assert_eq!(granted, [(HostId(1), 11_536)].into());
    host.cancel(Time::ZERO, HostId(1), id(1));
    note_grants(&mut host, &mut granted);
    assert_eq!(granted[&HostId(2)], 11_536);
}

#[test]
fn a_grant_that_waits_is_replaced_by_a_newer_one() {
    let config = paper();
    let mut host = Host::new(HostId(0), config.into());
    let mut arrive = |offset: u32| {
        let header = data(id(1), 100_000, offset, 1442);
        let _ = host.handle_packet(Time::ZERO, 0, &packet(1, 0, header));
    };
    for i in 0..7 {
        arrive(1442 * i);
    }
    let mut transmit = || host.poll_transmit(Time::ZERO, 0).map(|packet| line(&packet));
    assert_eq!(transmit().unwrap(), "h0>h1 p7 GRANT 1r ..20188 at p0");
    assert_eq!(transmit(), None);
}

#[test]
fn events_name_both_ends() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    submit(&mut network, 0, 1, 1, 500, Kind::Request);
    submit(&mut network, 1, 0, 1, 600, Kind::OneWay);
    network.run_until(at(Span::from_ms(20)));
    assert_eq!(
        events(&mut network),
        [
            "h1: Request 1 of 500 bytes from h0",
            "h0: OneWay 1 of 600 bytes from h1",
            "h0: Response 1r of 500 bytes from h1",
            // h0 acknowledges one message with a packet of the other.
            "h1: 1 sent to h0",
            "h1: 1r sent to h0",
        ]
    );
}
