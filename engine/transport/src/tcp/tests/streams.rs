//! Streams, each on a connection of its own.

use proptest::prelude::*;
use rackweave_core::{
    Event, FailReason, HostId, MessageId, Node as _, Packet, Rate, Refused, Span, StreamEvent,
    Time, Transport,
};
use rackweave_wire::tcp::{Header, flags};

use super::super::{Config, Host};
use crate::testkit::Faults;
use crate::tests::Network;
use crate::tests::stream_chaos::{Schedule, run, schedules};

fn at(span: Span) -> Time {
    Time::ZERO + span
}

fn id(n: u64) -> MessageId {
    MessageId::request(n)
}

fn network(config: &Config) -> Network<Host> {
    network_with(config, Faults::default())
}

fn network_with(config: &Config, faults: Faults) -> Network<Host> {
    let hosts = (0..2).map(|id| Host::new(HostId(id), config.clone())).collect();
    let (link, delay) = (Rate::from_gbps(10), Span::from_us(1));
    let mut network = Network::with_faults(hosts, link, delay, 1, faults);
    network.keep_packets = true;
    network
}

fn fates(network: &Network<Host>, host: u32) -> Vec<Result<(), FailReason>> {
    let of = |event| match event {
        Event::Stream(StreamEvent::Closed { .. }) => Some(Ok(())),
        Event::Failed { reason, .. } => Some(Err(reason)),
        _ => None,
    };
    network.events_at(host).filter_map(of).collect()
}

#[test]
fn both_directions_flow_and_close() {
    for config in [Config::tcp(), Config::dctcp(), Config::new_reno()] {
        for handshake in [false, true] {
            let config = Config { handshake, ..config.clone() };
            let faults = Faults {
                loss: 0.01,
                duplication: 0.01,
                reordering: 0.1,
                lateness: Span::from_us(20),
            };
            let mut network = network_with(&config, faults);
            network.open(0, 1, id(1), Time::MAX).unwrap();
            for n in 0..200 {
                network.write(0, 1, id(1), 5_000, n == 199).unwrap();
                network.run_until(at(Span::from_us(5 * (n + 1))));
            }
            network.run_until(at(Span::from_ms(2)));
            network.write(1, 0, id(1).response(), 777_777, false).unwrap();
            network.write(1, 0, id(1).response(), 1, true).unwrap();
            network.run_until(at(Span::from_secs(3)));
            assert_eq!(network.readable(1, 0, id(1)), (1_000_000, true));
            assert_eq!(network.readable(0, 1, id(1).response()), (777_778, true));
            assert_eq!((fates(&network, 0), fates(&network, 1)), (vec![Ok(())], vec![Ok(())]));
            assert_eq!(network.hosts.iter().map(Host::connections).sum::<u32>(), 0);
            let now = network.now();
            let refused = network.hosts[0].write(now, HostId(1), id(1), 1, false);
            assert_eq!(refused, Err(Refused::Ended));
        }
    }
}

/// The server has no connection until the first data arrive, and would answer anything else with a reset.
#[test]
fn a_stream_may_be_written_long_after_it_was_opened() {
    for config in [Config::tcp(), Config::dctcp(), Config::new_reno()] {
        for handshake in [false, true] {
            let mut network = network(&Config { handshake, ..config.clone() });
            network.open(0, 1, id(1), Time::MAX).unwrap();
            network.run_until(at(Span::from_secs(20)));
            assert_eq!(fates(&network, 0), []);
            network.write(0, 1, id(1), 5_000, true).unwrap();
            network.run_until(at(Span::from_secs(40)));
            assert_eq!(network.readable(1, 0, id(1)), (5_000, true));
            network.write(1, 0, id(1).response(), 1, true).unwrap();
            network.run_until(at(Span::from_secs(41)));
            assert_eq!((fates(&network, 0), fates(&network, 1)), (vec![Ok(())], vec![Ok(())]));
        }
    }
}

#[test]
fn the_window_follows_what_is_consumed() {
    let config = Config { receive_window: 20_480, ..Config::tcp() };
    let mut network = network(&config);
    network.consume = false;
    network.stream_window = Some(20_480);
    network.open(0, 1, id(1), Time::MAX).unwrap();
    network.write(0, 1, id(1), 100_000, true).unwrap();
    // A closed window does not count as silence.
    network.run_until(at(Span::from_secs(5)));
    let (readable, _) = network.readable(1, 0, id(1));
    assert!((20_480 - 1_460..=20_480).contains(&readable), "{readable}");
    // Both ends send ten keep-alives per second.
    assert!(network.packets.len() < 250, "{} packets", network.packets.len());
    for n in 1..=100 {
        network.consume(1, 0, id(1), 1_000);
        network.run_until(at(Span::from_secs(5) + Span::from_ms(n)));
    }
    network.run_until(at(Span::from_secs(6)));
    assert_eq!(network.readable(1, 0, id(1)), (100_000, true));
    let payloads = network.packets.iter().filter_map(|(_, packet)| packet.payload());
    let data = payloads.filter(|slice| slice.len > 0).count();
    assert!(data < 100, "no silly window: {data} segments");
}

#[test]
fn a_cancelled_stream_is_reset() {
    let mut network = network(&Config::tcp());
    network.open(0, 1, id(1), Time::MAX).unwrap();
    network.open(0, 1, id(2), at(Span::from_ms(3))).unwrap();
    for n in 1..=2 {
        network.write(0, 1, id(n), 5_000, false).unwrap();
    }
    network.run_until(at(Span::from_ms(2)));
    network.cancel_stream(1, 0, id(1));
    network.run_until(at(Span::from_ms(10)));
    assert_eq!(fates(&network, 0), [Err(FailReason::PeerForgot), Err(FailReason::Deadline)]);
    assert_eq!(fates(&network, 1), [Err(FailReason::PeerForgot)]);
    assert_eq!(network.hosts.iter().map(Host::connections).sum::<u32>(), 0);
}

/// The list of connections with data still holds the slot of a cancelled connection. Data sent before the SYN
/// is answered would lose its timer to the SYN.
#[test]
fn a_connection_in_a_used_slot_sends_no_data_before_its_handshake() {
    let config = Config { handshake: true, ..Config::tcp() };
    let [mut client, mut server] = [0, 1].map(|id| Host::new(HostId(id), config.clone()));
    let open = |host: &mut Host, n| {
        let open = rackweave_core::Open { id: id(n), peer: HostId(1), deadline: Time::MAX };
        host.open(Time::ZERO, open).unwrap();
        host.write(Time::ZERO, HostId(1), id(n), 100, false).unwrap();
    };
    open(&mut client, 1);
    loop {
        let out = client.poll_transmit(Time::ZERO, 0);
        let back = server.poll_transmit(Time::ZERO, 0);
        if let Some(packet) = &out {
            server.handle_packet(Time::ZERO, 0, packet);
        }
        if let Some(packet) = &back {
            client.handle_packet(Time::ZERO, 0, packet);
        }
        if out.is_none() && back.is_none() {
            break;
        }
    }
    client.write(Time::ZERO, HostId(1), id(1), 100, false).unwrap();
    client.cancel(Time::ZERO, HostId(1), id(1));
    open(&mut client, 2);
    let flags: Vec<(u8, bool)> = core::iter::from_fn(|| client.poll_transmit(Time::ZERO, 0))
        .map(|packet| (packet.header.flags, packet.payload().is_some()))
        .collect();
    assert_eq!(flags, [(flags::RST, false), (flags::SYN, false)]);
}

/// What the network does to the first stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// No acknowledgement of the server's bytes and FIN arrives at first.
    AllAcknowledgements,
    /// The acknowledgement of the server's FIN does not arrive at first.
    LastAcknowledgement,
    /// The client's first segment arrives a second time, when the stream has ended.
    LateDuplicate,
}

/// Opens and closes this number of streams, half of them one after the other and half at once. The first one suffers from
/// a fault, and the others close before its server repeats its FIN.
fn close_many(config: &Config, streams: u64, fault: Fault) -> Network<Host> {
    let rto = Span::from_ms(50);
    let (min_rto, initial_rto, tail_loss_probe) = (rto, rto, false);
    let config = Config { min_rto, initial_rto, tail_loss_probe, ..config.clone() };
    let mut network = network(&config);
    network.keep_packets = false;
    let (mut port, mut fin) = (None, None);
    network.fate = Some(Box::new(move |now, packet| {
        let (header, from_client) = (&packet.header, packet.src == HostId(0));
        if from_client && port.is_none() {
            port = Some(packet.ports);
            if fault == Fault::LateDuplicate {
                return vec![Span::ZERO, Span::from_ms(200)];
            }
        }
        let first = port.unwrap_or_default();
        if packet.ports == first.rotate_left(16) && header.flags & flags::FIN != 0 && fin.is_none()
        {
            fin = Some((now, header.seq.wrapping_add(1)));
        }
        let Some((at, ack)) = fin.filter(|_| from_client && packet.ports == first) else {
            return vec![Span::ZERO];
        };
        let suffers = match fault {
            Fault::AllAcknowledgements => true,
            Fault::LastAcknowledgement => header.ack == ack,
            Fault::LateDuplicate => false,
        };
        if suffers && now.since(at) < Span::from_us(30) { vec![] } else { vec![Span::ZERO] }
    }));
    let write = |network: &mut Network<Host>, n: u64, from: u32| {
        let id = if from == 0 { id(n) } else { id(n).response() };
        network.write(from, 1 - from, id, 1_000, true).unwrap();
    };
    for n in 1..=streams {
        network.open(0, 1, id(n), Time::MAX).unwrap();
        write(&mut network, n, 0);
        if n <= streams / 2 {
            network.run_until(network.now() + Span::from_us(12));
            write(&mut network, n, 1);
        }
    }
    network.run_until(network.now() + Span::from_ms(10));
    for n in streams / 2 + 1..=streams {
        write(&mut network, n, 1);
    }
    assert!(network.now() < at(rto), "the FIN is not repeated yet");
    network.run_until(at(Span::from_secs(5)));
    network
}

fn assert_all_closed(network: &Network<Host>, streams: usize, case: &str) {
    for host in 0..2 {
        let fates = fates(network, host);
        let failed = fates.iter().filter(|fate| fate.is_err()).count();
        assert_eq!((fates.len(), failed), (streams, 0), "{case} at h{host}");
    }
    let opened = |event: &Event| matches!(event, Event::Stream(StreamEvent::Opened { .. }));
    assert_eq!(network.count(1, opened), streams, "{case}");
}

/// A closed connection is remembered for as long as its peer may retransmit, however many have closed since.
#[test]
fn one_of_thousands_of_streams_closes_in_spite_of_losses_and_late_duplicates() {
    for fault in [Fault::AllAcknowledgements, Fault::LastAcknowledgement, Fault::LateDuplicate] {
        let network = close_many(&Config::tcp(), 3_000, fault);
        assert_all_closed(&network, 3_000, &format!("{fault:?}"));
    }
}

/// The client has forgotten the first connection, and answers the repeated FIN with a reset.
#[test]
fn a_reset_that_answers_a_fin_is_no_failure() {
    let config = Config { max_connections: 200, ..Config::tcp() };
    let network = close_many(&config, 300, Fault::LastAcknowledgement);
    assert_all_closed(&network, 300, "a reset");
}

#[test]
fn offsets_wrap() {
    let config = Config { mss: 60_000, ..Config::tcp() };
    let mut network = network(&config);
    network.keep_packets = false;
    network.open(0, 1, id(1), Time::MAX).unwrap();
    let bytes = (9 << 30) + 12_345;
    network.write(0, 1, id(1), bytes, true).unwrap();
    network.write(1, 0, id(1).response(), 0, true).unwrap_err();
    network.run_until(at(Span::from_ms(7_800)));
    assert_eq!(network.readable(1, 0, id(1)), (bytes, true));
}

/// A new connection gets the slot, and the entries in the lists, of a cancelled one with data to send.
#[test]
fn no_data_goes_before_the_handshake() {
    let mut network = network(&Config { handshake: true, ..Config::tcp() });
    network.open(0, 1, id(1), Time::MAX).unwrap();
    network.run_until(at(Span::from_us(100)));
    network.write(0, 1, id(1), 100_000, false).unwrap();
    network.packets.clear();
    network.cancel_stream(0, 1, id(1));
    network.open(0, 1, id(2), Time::MAX).unwrap();
    network.write(0, 1, id(2), 100_000, true).unwrap();
    network.write(1, 0, id(2).response(), 1, true).unwrap_err();
    network.run_until(at(Span::from_ms(10)));
    let first = |wanted: fn(&Packet<Header>) -> bool| {
        network.packets.iter().find(|(_, packet)| wanted(packet)).map(|(at, _)| *at).unwrap()
    };
    let data = first(|packet| packet.payload().is_some_and(|slice| slice.message == id(2)));
    let syn_ack = first(|packet| packet.src == HostId(1) && packet.header.flags & flags::SYN != 0);
    assert!(syn_ack < data, "{syn_ack:?} {data:?}");
    assert_eq!(network.readable(1, 0, id(2)), (100_000, true));
}

fn survives(schedule: &Schedule, config: Config) -> Result<(), TestCaseError> {
    let config = Config { receive_window: 51_200, ..config };
    let new = |id| Host::new(id, config.clone());
    // Connections for messages stay open until they have been idle for a long time.
    let idle = |host: &Host| host.connections() == 0;
    run(schedule, new, idle, |host| {
        assert!(
            host.streams.len() <= 16 && host.time_wait.len() <= config.max_connections as usize
        );
    })
}

proptest! {
    #![proptest_config(rackweave_testing::cases(60))]

    #[test]
    fn any_schedule_over_tcp(schedule in schedules(51_200)) {
        survives(&schedule, Config::tcp())?;
    }

    #[test]
    fn any_schedule_over_dctcp_with_handshakes(schedule in schedules(51_200)) {
        survives(&schedule, Config { handshake: true, ..Config::dctcp() })?;
    }
}
