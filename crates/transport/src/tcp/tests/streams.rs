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

/// The last acknowledgement of the first stream is lost. Before its FIN is retransmitted, more streams close than are
/// remembered by number, and two thousand at once, whose last acknowledgements wait for the link.
#[test]
fn a_stream_whose_last_acknowledgement_is_lost_closes_all_the_same() {
    let rto = Span::from_ms(50);
    let config = Config { min_rto: rto, initial_rto: rto, tail_loss_probe: false, ..Config::tcp() };
    let mut network = network(&config);
    network.keep_packets = false;
    let close = |network: &mut Network<Host>, n: u64| {
        network.write(0, 1, id(n), 1_000, true).unwrap();
    };
    network.open(0, 1, id(1), Time::MAX).unwrap();
    close(&mut network, 1);
    network.run_until(at(Span::from_us(100)));
    network.write(1, 0, id(1).response(), 1_000, true).unwrap();
    // The client has sent its last acknowledgement when the server has not received it yet.
    network.run_until_event(0, |event| matches!(event, Event::Stream(StreamEvent::Closed { .. })));
    network.set_down(1, true);
    network.run_until(network.now() + Span::from_us(20));
    network.set_down(1, false);
    for n in 2..=5_000 {
        network.open(0, 1, id(n), Time::MAX).unwrap();
        close(&mut network, n);
        if n <= 3_000 {
            network.run_until(network.now() + Span::from_us(5));
            let _ = network.write(1, 0, id(n).response(), 1_000, true);
        }
    }
    network.run_until(network.now() + Span::from_ms(10));
    for n in 2..=5_000 {
        let _ = network.write(1, 0, id(n).response(), 1_000, true);
    }
    network.run_until(at(Span::from_secs(4)));
    for host in 0..2 {
        let fates = fates(&network, host);
        let failed = fates.iter().filter(|fate| fate.is_err()).count();
        assert_eq!((fates.len(), failed), (5_000, 0), "h{host}");
    }
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
            host.streams.len() <= 16 && host.time_wait.len() <= super::super::stream::MAX_TIME_WAIT
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
