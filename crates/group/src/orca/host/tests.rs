use rackweave_core::Span;

use super::*;
use crate::orca::kit::{Faults, Net};
use crate::orca::label::tests::{leaf_spine, single};

const LENGTH: u64 = 3_000_000;

/// One sender, all others receive; how long it took, and what the sender's link carried.
fn transfer(spread: Spread, faults: Faults) -> (Span, u64) {
    let mut net = Net::new(single(6), 1, |_| {});
    net.faults = faults;
    net.open(0, 9, &[1, 2, 3, 4, 5], spread, FlowConfig::default(), LENGTH);
    let took = net.run_for(Span::from_secs(20), |net| net.is_finished(0, 9));
    for host in 1..6 {
        assert!(net.has_whole(host, 9, LENGTH), "{}", net.state());
    }
    net.run_until(net.now + Span::from_secs(10));
    for station in &net.stations {
        assert!(station.host.is_done());
        assert_eq!(station.host.poll_timeout(), None, "nothing is left to do");
    }
    (took, net.sent_by(0))
}

#[test]
fn every_way_brings_every_byte() {
    for spread in [Spread::Relay, Spread::Multicast, Spread::Unicast] {
        let (took, bytes) = transfer(spread, Faults::default());
        println!("{spread:?}: {took}, {bytes} bytes");
        let copies = if spread == Spread::Unicast { 5 } else { 1 };
        assert!(bytes >= LENGTH * copies);
        assert!(bytes < LENGTH * copies * 3 / 2, "{spread:?}: {bytes}");
    }
}

#[test]
fn losses_are_repaired() {
    let faults = Faults {
        data_loss: 0.01,
        control_loss: 0.05,
        control_twice: 0.05,
        control_late: Span::from_us(300),
    };
    for spread in [Spread::Relay, Spread::Multicast, Spread::Unicast] {
        let (took, bytes) = transfer(spread, faults);
        println!("{spread:?}: {took}, {bytes} bytes");
    }
}

#[test]
fn relays_of_two_racks() {
    let mut net = Net::new(leaf_spine(3, 4, 2), 1, |_| {});
    net.open(0, 9, &[4, 5, 6, 8, 9, 11], Spread::Relay, FlowConfig::default(), LENGTH);
    net.run_for(Span::from_secs(20), |net| net.is_finished(0, 9));
    let sent = net.sent_by(0);
    assert!((2 * LENGTH..3 * LENGTH).contains(&sent), "a copy for each rack: {sent}");
}

#[test]
fn a_relay_dies_and_the_others_go_on() {
    let mut net = Net::new(single(6), 1, |_| {});
    net.open(0, 9, &[1, 2, 3, 4, 5], Spread::Relay, FlowConfig::default(), 6 * LENGTH);
    net.run_until(Time::ZERO + Span::from_ms(4));
    net.crash(1, true);
    net.run_for(Span::from_secs(30), |net| net.is_finished(0, 9));
    for host in 2..6 {
        assert!(net.has_whole(host, 9, 6 * LENGTH), "{}", net.state());
    }
}
