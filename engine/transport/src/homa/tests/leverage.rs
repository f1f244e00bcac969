//! Leverage Homa: round trips, windows, and the effect of forged packets on them.

use rackweave_core::{HostId, Kind, Node as _, Rate, Rng, Span, Time, Transport};
use rackweave_wire::Id64;
use rackweave_wire::homa::stream::{Stream, UNSCHEDULED};
use rackweave_wire::homa::{Body, GrantStamps, Header};

use super::super::windows::UnscheduledRatio;
use super::{Config, Detection, Host, LINK, Leverage, at, id, network, packet, submit, trace};
use crate::tests::Network;

/// The time of a full DATA packet in one direction and a GRANT in the other.
fn base_rtt(config: &Config, delay: Span) -> Span {
    let grant = rackweave_core::frame::wire_bytes(config.header_bytes.grant);
    let full = config.framing().packet_wire_bytes(config.max_payload);
    // Each packet crosses two links.
    LINK.span_of(2 * u64::from(full)) + LINK.span_of(2 * u64::from(grant)) + delay * 2
}

fn off_by(measured: Span, right: Span) -> f64 {
    (measured.ticks() as f64 / right.ticks() as f64 - 1.0).abs()
}

#[test]
fn all_switches_off_leave_every_packet_as_it_was() {
    let run = |config: &Config| {
        let mut network = network(config, 3, Span::from_us(4));
        for n in 0..20 {
            submit(&mut network, n % 2, 2, u64::from(n), 1 + 7_000 * u64::from(n), Kind::Request);
        }
        network.run_until(at(Span::from_ms(100)));
        std::mem::take(&mut network.packets)
    };
    let vanilla = run(&Config::linux(LINK));
    let off = Leverage { congestion_factor: 2, scheduled_factor: 9, ..Leverage::OFF };
    assert_eq!(run(&Config::linux(LINK).with_leverage(off)), vanilla);
    let there_and_back = Config::leverage(LINK).with_leverage(Leverage::OFF);
    assert_eq!(there_and_back, Config::linux(LINK));
    assert_ne!(run(&Config::leverage(LINK)), vanilla);
    let stamped = vanilla.iter().any(|(_, packet)| match packet.header.body {
        Body::Data { stamps, .. } => stamps != Default::default(),
        Body::Grant { stamps, .. } => stamps != Default::default(),
        _ => false,
    });
    assert!(!stamped);
}

#[test]
fn both_ends_find_the_round_trip_of_an_idle_path() {
    let config = Config::leverage(LINK);
    for us in [1, 5, 20, 100] {
        let delay = Span::from_us(us);
        let mut network = network(&config, 2, delay);
        submit(&mut network, 0, 1, 1, 500_000, Kind::OneWay);
        network.run_until(at(Span::from_ms(20)));
        let right = base_rtt(&config, delay);
        for (host, peer) in [(0, 1), (1, 0)] {
            let measured = network.hosts[host].round_trips();
            assert_eq!(measured.len(), 1);
            assert_eq!(measured[0].peer, HostId(peer));
            assert!(measured[0].samples > 3, "{measured:?}");
            let error = off_by(measured[0].min, right);
            assert!(error < 0.01, "host {host}: {} of {right}", measured[0].min);
        }
    }
}

#[test]
fn a_grant_withheld_by_policy_is_no_delay() {
    // The receiver grants one message at a time: the longer one waits for milliseconds.
    let mut config = Config::leverage(LINK);
    config.overcommit = 1;
    config.grant_fifo_fraction = 0;
    config.leverage.unscheduled_ratio = false;
    let delay = Span::from_us(10);
    let mut network = network(&config, 3, delay);
    submit(&mut network, 0, 2, 1, 900_000, Kind::OneWay);
    submit(&mut network, 1, 2, 1, 1_000_000, Kind::OneWay);
    network.run_until(at(Span::from_ms(5)));
    let held = network.packets.iter().filter_map(|(_, packet)| match packet.header.body {
        Body::Grant { stamps, .. } if packet.dst == HostId(1) => Some(stamps.held_ns),
        _ => None,
    });
    assert!(held.max().unwrap() > 500_000, "it was withheld");
    let right = base_rtt(&config, delay);
    let measured = network.hosts[1].round_trips()[0];
    assert!(off_by(measured.min, right) < 0.02, "{measured:?}");
    // The other message's window queues before the receiver: tens of microseconds, not the hundreds that the
    // grant waits.
    assert!(measured.recent < right * 3, "{measured:?}");
    assert!(!network.hosts[1].is_congested(HostId(2)));
}

/// A host that has sent packets 0..5 of a message to host 1, and their time stamps.
fn sender(config: &Config) -> (Host, Vec<u32>) {
    let mut host = Host::new(HostId(0), config.clone().into());
    let message =
        rackweave_core::Submit { id: id(1), peer: HostId(1), bytes: 900_000, kind: Kind::OneWay };
    host.submit(Time::ZERO, message).unwrap();
    let mut times = Vec::new();
    for n in 1..=5 {
        let packet = host.poll_transmit(at(Span::from_us(2 * n)), 0).expect("unscheduled bytes");
        if let Body::Data { stamps, .. } = packet.header.body {
            times.push(stamps.sent_at);
        }
    }
    (host, times)
}

fn grant(stamps: GrantStamps) -> rackweave_core::Packet<Header> {
    let body = Body::Grant { offset: 20_000, priority: 0, resend_all: false, stamps };
    packet(1, 0, Header { id: Id64::new(id(1).response().0), one_way: true, body })
}

#[test]
fn forged_echoes_are_ignored() {
    let config = Config::leverage(LINK);
    let (mut host, times) = sender(&config);
    assert_eq!(times, [2_000, 4_000, 6_000, 8_000, 10_000]);
    let now = at(Span::from_us(30));
    let echo = |echo, held_ns| GrantStamps { sent_at: 5, echo, held_ns, host_ns: 0 };
    for forged in [
        echo(1, 0),
        echo(3_999, 0),
        echo(12_000, 0),
        echo(u32::MAX, 0),
        echo(0, 0),
        // The right time, but with a holding time that leaves nothing for the network.
        echo(2_000, 27_900),
        echo(4_000, u32::MAX),
    ] {
        host.handle_packet(now, 0, &grant(forged));
        assert_eq!(host.round_trips(), [], "{forged:?}");
    }
    host.handle_packet(now, 0, &grant(echo(8_000, 2_000)));
    let measured = host.round_trips();
    assert_eq!((measured[0].min, measured[0].samples), (Span::from_us(20), 1));
    // An echo counts once, and an older one not at all.
    host.handle_packet(now, 0, &grant(echo(8_000, 12_000)));
    host.handle_packet(now, 0, &grant(echo(6_000, 12_000)));
    assert_eq!(host.round_trips(), measured);
}

#[test]
fn retransmissions_and_short_packets_carry_no_time() {
    let config = Config::leverage(LINK);
    let mut network = network(&config, 2, Span::from_us(5));
    let mut rng = Rng::stream(1, 0, 0, "loss");
    network.fate =
        Some(Box::new(move |_, _| if rng.chance(0.1) { vec![] } else { vec![Span::ZERO] }));
    for n in 1..20 {
        submit(&mut network, 0, 1, n, 40_000 + 100 * n, Kind::OneWay);
    }
    assert!(network.run_until(at(Span::from_secs(10))));
    let (mut stamped, mut resent) = (0, 0);
    for (_, packet) in &network.packets {
        if let Body::Data { stamps, retransmit, segment_length, .. } = packet.header.body {
            let is_full = u32::from(segment_length) == config.max_payload;
            resent += u32::from(retransmit);
            stamped += u32::from(stamps.sent_at != 0);
            assert!(stamps == Default::default() || is_full && !retransmit);
        }
    }
    assert!(stamped > 10 && resent > 10, "{stamped} {resent}");
}

/// Feeds host 0 with round trips of these lengths to host 1, in microseconds and in sequence, and returns the
/// number of unscheduled packets of a message after each.
fn unscheduled_after(config: &Config, round_trips: &[u64]) -> Vec<u32> {
    let mut network: Network<Host> = network(config, 2, Span::from_us(1));
    network.set_down(1, true);
    let mut rows = Vec::new();
    for (n, us) in (1..).zip(round_trips) {
        // The first packet of a message, whose time the GRANT echoes.
        submit(&mut network, 0, 1, n, 900_000, Kind::OneWay);
        let mut stamps = network.packets.iter().rev().filter_map(|(_, p)| match p.header.body {
            Body::Data { stamps, .. } if stamps.sent_at != 0 => Some(stamps.sent_at),
            _ => None,
        });
        let echo = stamps.next().expect("a time");
        let now = Span::from_ns(u64::from(echo)) + Span::from_us(*us);
        network.run_until(at(now));
        let body = Body::Grant {
            offset: 1,
            priority: 0,
            resend_all: false,
            stamps: GrantStamps { sent_at: 0, echo, held_ns: 0, host_ns: 0 },
        };
        let header = Header { id: Id64::new(id(n).response().0), one_way: true, body };
        network.inject(packet(1, 0, header));
        network.cancel(0, 1, id(n));
        network.run_until(at(now + Span::from_ms(1)));
        rows.push(network.hosts[0].unscheduled_to(HostId(1)).div_ceil(config.max_payload));
    }
    let _ = trace(&mut network);
    rows
}

#[test]
fn the_unscheduled_window_follows_round_trips() {
    let mut config = Config::leverage(LINK);
    config.leverage.unscheduled_ratio = false;
    // 40 us at 10 Gbps are 50,000 bytes: 36 packets. Above 8 * 40 us is congestion; between 3 * 40 us and that
    // the window stays.
    let trips = [40, 60, 321, 400, 319, 121, 400, 400, 400, 400, 119, 40, 40];
    let windows = unscheduled_after(&config, &trips);
    assert_eq!(windows, [36, 36, 18, 9, 9, 9, 5, 3, 2, 1, 2, 3, 4]);
    // The window grows to the cap again.
    let mut long = vec![40, 400];
    long.resize(30, 41);
    assert_eq!(unscheduled_after(&config, &long)[29], 36);
    // A shorter path reduces the cap at once.
    assert_eq!(unscheduled_after(&config, &[40, 40, 20])[2], 18);
    // Without detection the window does not shrink.
    config.leverage.congestion = None;
    assert_eq!(unscheduled_after(&config, &[40, 900, 900]), [36, 36, 36]);
    // Peers with slower links get a smaller window.
    config.leverage.peer_link = Some(Rate::from_gbps(1));
    assert_eq!(unscheduled_after(&config, &[40]), [4]);
    // If disabled, the window is the kernel module's.
    config.leverage.unscheduled_window = false;
    assert_eq!(unscheduled_after(&config, &[40, 900]), [8, 8]);
}

#[test]
fn the_average_is_slower_to_see_congestion_than_the_last_round_trip() {
    let mut config = Config::leverage(LINK);
    config.leverage.unscheduled_ratio = false;
    let trips = [20, 20, 300, 20, 300, 300, 300, 300];
    assert_eq!(unscheduled_after(&config, &trips), [18, 18, 9, 10, 5, 3, 2, 1]);
    // The average: 20, 20, 55, 51, 82, 109 ...: from the sixth on it exceeds 3 * 20 us by more than half.
    config.leverage.congestion = Some(Detection::Average);
    let windows = unscheduled_after(&config, &trips);
    assert_eq!(windows, [18, 18, 18, 18, 18, 9, 5, 3]);
    config.leverage.average_deviation = 1000;
    assert_eq!(unscheduled_after(&config, &trips)[5..], [18, 9, 5]);
}

#[test]
fn the_receiver_grants_three_round_trips() {
    let mut config = Config::leverage(LINK);
    let granted = |config: &Config| {
        let mut network = network(config, 2, Span::from_us(10));
        submit(&mut network, 0, 1, 1, 1_000_000, Kind::OneWay);
        network.run_until(at(Span::from_us(500)));
        let grants = network.packets.iter().rev().find_map(|(at, p)| match p.header.body {
            Body::Grant { offset, .. } => Some((*at, offset)),
            _ => None,
        });
        let (when, offset) = grants.unwrap();
        let mut received = 0;
        for (sent, p) in &network.packets {
            if let Body::Data { offset, segment_length, .. } = p.header.body
                && *sent + LINK.span_of(u64::from(2 * p.wire_bytes)) + Span::from_us(10) <= when
            {
                received = received.max(offset + u32::from(segment_length));
            }
        }
        (offset - received) / config.max_payload
    };
    // 3 * 22.6 us at 10 Gbps are 84,750 bytes.
    assert_eq!(granted(&config), 84_750 / 1412 + 1);
    config.leverage.scheduled_factor = 1;
    assert_eq!(granted(&config), 28_250 / 1412 + 1);
    config.leverage.scheduled_window = false;
    assert_eq!(granted(&config), 10_000 / 1412 + 1);
}

#[test]
fn the_unscheduled_ratio_halves_and_recovers() {
    let leverage = Leverage::talk();
    let mut ratio = UnscheduledRatio::default();
    let mut rows = Vec::new();
    // For each period: unscheduled bytes out of 1000, and whether messages wait in the sender.
    for (period, (unscheduled, throttled)) in
        [(100, true), (399, true), (100, false), (400, true), (399, true), (0, true), (0, true)]
            .into_iter()
            .enumerate()
    {
        let now = at(Span::from_ms(1 + period as u64));
        ratio.submitted(now, &leverage, unscheduled, 1000, throttled);
        rows.push(ratio.halvings);
    }
    // The first period had no bytes, so that the rule does not apply. Each row is the result of the period
    // before.
    assert_eq!(rows, [0, 1, 0, 1, 0, 1, 2]);
    let mut config = Config::leverage(LINK);
    let mut after = |period| {
        config.leverage.unscheduled_ratio = period;
        let mut network = network(&config, 2, Span::from_us(20));
        for n in 1..=30 {
            submit(&mut network, 0, 1, n, 900_000, Kind::OneWay);
            network.run_until(at(Span::from_us(200 * n)));
        }
        network.hosts[0].unscheduled_to(HostId(1))
    };
    let (on, off) = (after(true), after(false));
    assert!(on < 2 * 1412 && off > 30_000, "{on} {off}");
}

#[test]
fn lost_fabric_or_late_software() {
    // The receiver's software does not run for 3 ms; its NIC queues arriving packets.
    let stalled = |host_delay| {
        let mut config = Config::leverage(LINK);
        config.leverage.host_delay = host_delay;
        let (mut host, times) = sender(&config);
        let body = GrantStamps { sent_at: 0, echo: times[0], held_ns: 0, host_ns: 0 };
        host.handle_packet(at(Span::from_us(22)), 0, &grant(body));
        assert_eq!(host.round_trips()[0].min, Span::from_us(20));
        let body = GrantStamps { sent_at: 0, echo: times[1], held_ns: 0, host_ns: 0 };
        let late = at(Span::from_ms(3));
        host.handle_timeout(late);
        host.handle_packet(late, 0, &grant(body));
        host.is_congested(HostId(1))
    };
    assert!(stalled(false));
    assert!(!stalled(true));
    // GRANTs waited for the peer's link.
    let waited = |host_delay| {
        let mut config = Config::leverage(LINK);
        config.leverage.host_delay = host_delay;
        let (mut host, times) = sender(&config);
        let body = GrantStamps { sent_at: 0, echo: times[0], held_ns: 4_000, host_ns: 5_000 };
        host.handle_packet(at(Span::from_us(22)), 0, &grant(body));
        host.round_trips()[0].recent
    };
    assert_eq!(waited(false), Span::from_us(16));
    assert_eq!(waited(true), Span::from_us(11));
}

#[test]
fn the_pacer_trickles_without_grants_and_backs_off() {
    let mut config = Config::leverage(LINK);
    config.leverage.rtt_pacer = true;
    config.leverage.unscheduled_ratio = false;
    let sent_without_grants = |config: &Config| {
        let (mut host, times) = sender(config);
        let stamps = GrantStamps { sent_at: 0, echo: times[4], held_ns: 0, host_ns: 0 };
        host.handle_packet(at(Span::from_us(22)), 0, &grant(stamps));
        let mut now = at(Span::from_us(22));
        let mut sent = Vec::new();
        while now <= at(Span::from_us(600)) {
            match host.poll_transmit(now, 0) {
                Some(packet) => sent.push(packet),
                None => now = host.poll_timeout().expect("a timer"),
            }
            host.handle_timeout(now);
        }
        sent.len()
    };
    // Up to 20,000 bytes are granted: 15 packets; 5 were sent before. Then 5 % of the link is used:
    // one packet per 24.6 us.
    let trickled = sent_without_grants(&config) - 10;
    assert!((22..=24).contains(&trickled), "{trickled}");
    config.leverage.rtt_pacer = false;
    assert_eq!(sent_without_grants(&config), 10);

    // With congestion each packet is followed by the idle time of another.
    let gaps = |rtt_pacer| {
        let mut config = Config::leverage(LINK);
        config.leverage.rtt_pacer = rtt_pacer;
        let (mut host, times) = sender(&config);
        let echo = |echo| GrantStamps { sent_at: 0, echo, held_ns: 0, host_ns: 0 };
        host.handle_packet(at(Span::from_us(22)), 0, &grant(echo(times[0])));
        host.handle_packet(at(Span::from_us(400)), 0, &grant(echo(times[1])));
        assert!(host.is_congested(HostId(1)));
        let mut now = at(Span::from_us(400));
        let mut sent = Vec::new();
        for _ in 0..4 {
            let packet = loop {
                match host.poll_transmit(now, 0) {
                    Some(packet) => break packet,
                    None => {
                        now = host.poll_timeout().expect("a timer");
                        host.handle_timeout(now);
                    }
                }
            };
            sent.push(now);
            now += LINK.span_of(u64::from(packet.wire_bytes));
        }
        sent[3].since(sent[0])
    };
    let packet = LINK.span_of(1538);
    assert_eq!([gaps(false), gaps(true)], [packet * 3, packet * 6]);
}

#[test]
fn all_messages_together_get_the_overcommitted_window() {
    let mut config = Config::leverage(LINK);
    config.overcommit = 2;
    config.grant_fifo_fraction = 0;
    config.leverage.unscheduled_ratio = false;
    let most_on_the_way = |config: &Config| {
        let mut network = network(config, 7, Span::from_us(10));
        let mut most = 0;
        for n in 1..=3 {
            for from in 0..6 {
                submit(&mut network, from, 6, n, 1_000_000, Kind::OneWay);
            }
            for step in 0..400 {
                network.run_until(at(Span::from_us(12 * (400 * n + step))));
                // The first messages arrive before anything was measured.
                most = if n > 1 { network.hosts[6].grants.incoming.max(most) } else { 0 };
            }
        }
        most
    };
    // 22.6 us at 10 Gbps are 28,250 bytes: the window of two messages is three times that. The unscheduled
    // bytes of new messages are added, since they need no grants, and the queue before the receiver increases
    // the measured round trip.
    let (unscheduled, window) = (6 * 28_250, 3 * 28_250);
    let two = unscheduled + 5 * window / 2;
    let most = most_on_the_way(&config);
    assert!((window..=two).contains(&most), "{most}");
    config.overcommit = 6;
    let most = most_on_the_way(&config);
    assert!(most > two, "{most}");
    // The kernel module's limit does not apply any more.
    config.max_incoming = 30_000;
    let most = most_on_the_way(&config);
    assert!(most > two, "{most}");
}

#[test]
fn a_far_peer_raises_the_limit_by_its_own_window_only() {
    let mut config = Config::leverage(LINK);
    config.overcommit = 4;
    config.grant_fifo_fraction = 0;
    config.unscheduled_bytes = 1_412;
    config.max_incoming = 1_000_000;
    let len = config.max_payload;
    let windows = [10, 10, 10, 300].map(|packets| packets * len);
    let mut host = Host::new(HostId(9), config.into());
    // The first packet of each message, which announces `incoming` bytes without grants.
    let mut arrive = |peer: u32, message, length, incoming| {
        let mut header = super::data(id(message), length, 0, len as u16);
        if let Body::Data { incoming: announced, .. } = &mut header.body {
            *announced = incoming;
        }
        let _ = host.handle_packet(Time::ZERO, 0, &packet(peer, 9, header));
        let path = host.peers.find(HostId(peer)).unwrap().path.get_or_insert_default();
        path.scheduled = windows.get(peer as usize).copied().unwrap_or(0);
        std::iter::from_fn(|| host.poll_transmit(Time::ZERO, 0)).count();
        host.grants.incoming / u64::from(len)
    };
    // Messages of one packet, so that the peers are known; then one whose bytes need no grants.
    for peer in 0..4 {
        arrive(peer, 1, len, len);
    }
    assert_eq!(arrive(5, 3, 400 * len, 400 * len), 399);
    // The windows of these four are 330 packets in all. Four times the largest are 1200; the near peers' grants would
    // take 30 of them.
    for peer in 0..4 {
        assert_eq!(arrive(peer, 5, 500 * len, len), 399);
    }
}

#[test]
fn unscheduled_messages_measure_round_trips_too() {
    let mut config = Config::leverage(LINK);
    config.leverage.unscheduled_ratio = false;
    let delay = Span::from_us(20);
    let mut network = network(&config, 2, delay);
    // Below the unscheduled window; the other messages, of one packet, are not worth an echo.
    for (n, bytes) in [(1, 10_000), (2, 10_000), (3, 1_412), (4, 100)] {
        submit(&mut network, 0, 1, n, bytes, Kind::OneWay);
        network.run_until(at(Span::from_ms(n)));
    }
    let grants =
        network.packets.iter().filter(|(_, p)| matches!(p.header.body, Body::Grant { .. }));
    assert_eq!(grants.count(), 2);
    let measured = network.hosts[0].round_trips()[0];
    assert_eq!(measured.samples, 2);
    assert!(off_by(measured.min, base_rtt(&config, delay)) < 0.01, "{measured:?}");
}

#[test]
fn streams_use_the_measured_windows() {
    let mut config = Config::leverage(LINK);
    config.leverage.unscheduled_ratio = false;
    let mut network = network(&config, 2, Span::from_us(20));
    submit(&mut network, 0, 1, 1, 500_000, Kind::OneWay);
    submit(&mut network, 1, 0, 1, 500_000, Kind::OneWay);
    network.run_until(at(Span::from_ms(20)));
    let windows = [(0, 1), (1, 0)]
        .map(|(host, peer): (usize, u32)| network.hosts[host].unscheduled_to(HostId(peer)));
    let least = 3 * config.unscheduled_bytes;
    assert!(windows.iter().all(|window| *window > least), "{windows:?}");
    network.packets.clear();
    network.open(0, 1, id(9), Time::MAX).unwrap();
    network.write(0, 1, id(9), 1_000_000, false).unwrap();
    network.run_until(at(Span::from_ms(25)));
    assert_eq!(network.readable(1, 0, id(9)), (1_000_000, false));
    let (mut first_flight, mut granted, mut standing) = (0, 0, 0);
    // No CREDIT arrives earlier.
    let round_trip = at(Span::from_ms(20) + Span::from_us(40));
    for (time, packet) in &network.packets {
        match packet.header.body {
            Body::Stream(Stream::Data { len, .. }) if *time < round_trip => {
                first_flight += u32::from(len);
            }
            Body::Stream(Stream::Credit { credit, .. }) => {
                let ahead = credit.allowed - credit.received;
                match credit.priority {
                    UNSCHEDULED => standing = ahead,
                    _ => granted = granted.max(ahead),
                }
            }
            _ => {}
        }
    }
    // The unscheduled bytes, three round trips of grants, and the credit that the next write finds.
    assert!(first_flight > least, "{first_flight}");
    assert!(granted > 2 * windows[1], "{granted} of {windows:?}");
    assert!(standing >= windows[1], "{standing} of {windows:?}");
}
