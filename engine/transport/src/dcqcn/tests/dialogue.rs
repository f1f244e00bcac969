//! Packet traces of whole conversations.

use rackweave_core::{Ecn, HostId, Kind, Node as _, Packet, Span, Submit, Transport as _};
use rackweave_wire::dcqcn::{Body, Header};

use super::{Config, Dcqcn, LINK, asking_every};
use crate::dcqcn::Host;
use crate::tests::driven::{forged, trace};
use crate::tests::suite::{Subject as _, at, events, id, network, submit};

const US: fn(u64) -> Span = Span::from_us;

const fn is_data(packet: &Packet<Header>) -> bool {
    matches!(packet.header.body, Body::Data { .. })
}

#[test]
fn a_short_request() {
    let config = asking_every(2, false);
    let mut network = network::<Dcqcn>(&config, 2, US(1));
    submit(&mut network, 0, 1, 1, 4_000, Kind::Request);
    network.run_until(at(US(100)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p3 DATA 1 0 +1460",
            "h0>h1 p3 DATA 1 1 +1460 asks",
            "h0>h1 p3 DATA 1 2 +1080 asks",
            "h1>h0 p7 ACK 1 next 2 sack 0",
            "h1>h0 p7 COMPLETE 1",
            "h1>h0 p3 DATA 1r 0 +1460",
            "h1>h0 p3 DATA 1r 1 +1460 asks",
            "h1>h0 p3 DATA 1r 2 +1080 asks",
            "h0>h1 p7 ACK 1r next 2 sack 0",
            "h0>h1 p7 COMPLETE 1r",
        ]
    );
    assert_eq!(
        events(&mut network),
        [
            "h1: Request 1 of 4000 bytes from h0",
            "h0: 1 sent to h1",
            "h0: Response 1r of 4000 bytes from h1",
            "h1: 1r sent to h0",
        ]
    );
}

/// Loses the second of six packets once, and returns the trace.
fn one_lost(config: &Config) -> Vec<String> {
    let mut network = network::<Dcqcn>(config, 2, Span::ZERO);
    let mut lost = 0;
    network.fate = Some(Box::new(move |_, packet| {
        let is_second = matches!(packet.header.body, Body::Data { offset: 1_460, .. });
        lost += u32::from(is_second);
        if is_second && lost == 1 { vec![] } else { vec![Span::ZERO] }
    }));
    submit(&mut network, 0, 1, 1, 6 * 1_460, Kind::OneWay);
    network.run_until(at(US(100)));
    assert!(network.hosts.iter().all(Host::is_idle));
    let all = trace(&mut network);
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn a_gap_is_reported_once_and_the_sender_goes_back() {
    let rare = asking_every(100, false);
    assert_eq!(
        one_lost(&rare),
        [
            "h0>h1 p3 DATA 1 0 +1460",
            "h0>h1 p3 DATA 1 1 +1460",
            "h0>h1 p3 DATA 1 2 +1460",
            "h0>h1 p3 DATA 1 3 +1460",
            "h0>h1 p3 DATA 1 4 +1460",
            // Packet 2 told it; packets 3 and 4 are discarded without a word.
            "h1>h0 p7 NACK 1 next 1 sack 0",
            "h0>h1 p3 DATA 1 1 +1460 asks",
            "h0>h1 p3 DATA 1 2 +1460 asks",
            "h0>h1 p3 DATA 1 3 +1460 asks",
            "h1>h0 p7 ACK 1 next 2 sack 0",
            "h0>h1 p3 DATA 1 4 +1460 asks",
            "h1>h0 p7 ACK 1 next 3 sack 0",
            "h0>h1 p3 DATA 1 5 +1460 asks",
            "h1>h0 p7 ACK 1 next 4 sack 0",
            "h1>h0 p7 ACK 1 next 5 sack 0",
            "h1>h0 p7 COMPLETE 1",
        ]
    );
}

#[test]
fn selective_repeat_sends_only_what_is_missing() {
    let selective = asking_every(100, true);
    let all = one_lost(&selective);
    let data: Vec<&str> =
        all.iter().filter_map(|line| line.strip_prefix("h0>h1 p3 DATA 1 ")).collect();
    assert_eq!(
        data,
        ["0 +1460", "1 +1460", "2 +1460", "3 +1460", "4 +1460", "1 +1460 asks", "5 +1460 asks"]
    );
}

/// A lost last packet leaves no gap: only the timeout finds it.
#[test]
fn a_lost_tail_costs_a_timeout() {
    let config = Config::hpcc(LINK);
    let mut network = network::<Dcqcn>(&config, 2, Span::ZERO);
    let mut lost = 0;
    network.fate = Some(Box::new(move |_, packet| {
        let is_last = matches!(packet.header.body, Body::Data { offset: 2_920, .. });
        lost += u32::from(is_last);
        if is_last && lost == 1 { vec![] } else { vec![Span::ZERO] }
    }));
    submit(&mut network, 0, 1, 1, 3 * 1_460, Kind::OneWay);
    network.run_until(at(Span::from_ms(3)));
    assert!(events(&mut network).is_empty());
    network.run_until(at(Span::from_ms(5)));
    assert_eq!(events(&mut network), ["h1: OneWay 1 of 4380 bytes from h0", "h0: 1 sent to h1"]);
    assert_eq!(network.hosts[0].recovery.timeouts, 1);
}

/// Each marked packet tells the receiver, which tells the sender at most once in the interval.
#[test]
fn marks_become_cnps_and_cut_the_rate() {
    let config = asking_every(1_000, false);
    let mut network = network::<Dcqcn>(&config, 2, Span::ZERO);
    network.fate = Some(Box::new(|_, packet| {
        if is_data(packet) {
            packet.mark();
        }
        vec![Span::ZERO]
    }));
    submit(&mut network, 0, 1, 1, 200 * 1_460, Kind::OneWay);
    network.run_until(at(Span::from_ms(20)));
    let data: Vec<_> = network.packets.iter().filter(|(_, packet)| is_data(packet)).collect();
    assert!(data.iter().all(|(_, packet)| packet.ecn() != Ecn::NotCapable));
    let last = data.last().expect("data").0;
    // 200 packets at 10 Gbps take 246 us; at the least rate of 1 Gbps ten times as long.
    assert!(last > at(US(1_500)) && last < at(US(2_600)), "{last}");
    let cnps = trace(&mut network).iter().filter(|line| line.contains("CNP")).count();
    // At 1 Gbps a packet takes longer than the interval, so that each has its CNP.
    assert!((150..200).contains(&cnps), "{cnps}");
    assert_eq!(events(&mut network).len(), 2);
}

/// A network that asks for packets late, as of the time when the link was free, is late with timers too: a host asks to be called when
/// the link is free, even if by then a rate has long permitted the packet.
#[test]
fn a_host_with_two_rates_is_called_when_its_link_has_room() {
    let config = Config::hpcc(LINK);
    let mut host = Dcqcn::host(HostId(0), &config.into());
    for n in [1, 2] {
        let message = Submit { id: id(n), peer: HostId(1), bytes: 146_000, kind: Kind::OneWay };
        host.submit(at(US(0)), message).unwrap();
        assert!(host.poll_transmit(at(US(0)), 0).is_some());
        // Two cuts, each to about a half.
        for us in [0, 5] {
            host.handle_packet(at(US(us)), 0, &forged::<Dcqcn>(id(n), Body::Cnp));
        }
    }
    let (packet, now) = (LINK.span_of(1_538), at(US(10)));
    assert!(host.poll_transmit(now, 0).is_some());
    assert_eq!(host.poll_timeout(), Some(now + packet), "the other message waits for the link");
    assert!(host.poll_transmit(now + packet, 0).is_some());
    let next = host.poll_timeout().expect("a message waits for its rate");
    assert!(next > now + packet * 3 && next < now + packet * 5, "{next}");
}

#[test]
fn messages_of_one_host_take_turns() {
    let mut network = network::<Dcqcn>(&Config::hpcc(LINK), 3, Span::ZERO);
    submit(&mut network, 0, 1, 1, 5 * 1_460, Kind::OneWay);
    submit(&mut network, 0, 2, 2, 3 * 1_460, Kind::OneWay);
    network.run_until(at(US(100)));
    let data = network.packets.iter().filter(|(_, packet)| is_data(packet));
    let order: Vec<u32> = data.map(|(_, packet)| packet.dst.0).collect();
    // The first packet was on the link when the second message was submitted.
    assert_eq!(order, [1, 1, 2, 1, 2, 1, 2, 1]);
}
