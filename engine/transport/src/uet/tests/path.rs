//! Times of long messages, and of an incast.

use rackweave_core::{Event, Kind, Rate, Span, Time};

use super::{Config, LINK, RTT, Uet};
use crate::tests::driven::{DrivenSubject as _, through_a_narrow_core};
use crate::tests::suite::{at, deliveries, network, submit};

/// With credit at 99 percent of the link, without at the link's rate.
#[test]
fn a_long_message_fills_the_link() {
    for config in Uet::variants() {
        let mut network = network::<Uet>(&config, 2, Span::from_us(2));
        network.keep_packets = false;
        let bytes = 20_000_000;
        submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
        assert!(network.run_until(at(Span::from_secs(1))));
        let ideal = LINK.span_of(config.common.framing().message_wire_bytes(bytes));
        let share = ideal.as_ps() as f64 / network.events[0].0.as_ps() as f64;
        assert!((0.985..1.0).contains(&share), "{share} with {config:?}");
    }
}

/// A message that is shorter than the window, and longer than what is sent until the first answer, does not stop.
#[test]
fn the_end_of_speculation_costs_a_round_trip_at_most() {
    for config in Uet::variants() {
        for delay in [0, 2, 5].map(Span::from_us) {
            for bytes in [9_329, 17_521, 50_000, 200_000] {
                let mut network = network::<Uet>(&config, 2, delay);
                submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
                assert!(network.run_until(at(Span::from_secs(1))));
                let ideal = network.ideal(bytes, config.common.framing());
                let (end, _) = deliveries(&network).next().expect("a delivery");
                let round_trip = Span::from_us(5) + delay * 4;
                let latest = ideal + round_trip + ideal / 50;
                assert!(end <= at(latest), "{bytes}: {end} for {ideal} with {config:?}");
            }
        }
    }
}

/// Windows are trimmed, and everything that is trimmed is retransmitted in time for the receiver's link.
#[test]
fn an_incast_fills_the_receivers_link() {
    let (senders, packets) = (40_u64, 100);
    for config in Uet::variants() {
        let mut network = network::<Uet>(&config, senders as u32 + 1, Span::from_us(2));
        network.keep_packets = false;
        for n in 1..=senders {
            submit(&mut network, n as u32, 0, n, packets * 1_436, Kind::OneWay);
        }
        assert!(network.run_until(at(Span::from_secs(1))));
        let delivered: Vec<Time> = deliveries(&network).map(|(at, _)| at).collect();
        assert_eq!(delivered.len(), senders as usize);
        let all =
            LINK.span_of(config.common.framing().message_wire_bytes(packets * 1_436)) * senders;
        let last = delivered[senders as usize - 1];
        let share = all.as_ps() as f64 / last.as_ps() as f64;
        assert!((0.90..1.0).contains(&share), "{share} with {config:?}");
    }
}

/// Where the core and not the receivers' links are the bottleneck, everything ends, and what is sent again is a minor part. (RCCC has no
/// rule for this, and here no switch trims, so that what waits for longer than the timeout is sent again and again.)
#[test]
fn a_narrow_core_is_shared() {
    for config in [Config::nscc(LINK, RTT), Config::uet(LINK, RTT)] {
        let (sent, needed) =
            through_a_narrow_core::<Uet>(&config, 4, Rate::from_gbps(10), Some(20_000), 1);
        assert!(sent < 2 * needed, "{sent} for {needed} with {config:?}");
    }
}

/// A sender of several messages asks for less credit for each (RCCC).
#[test]
fn messages_to_several_receivers_share_their_senders_link() {
    for config in [Config::rccc(LINK, RTT), Config::uet(LINK, RTT), Config::eqds(LINK)] {
        let mut network = network::<Uet>(&config, 9, Span::from_us(2));
        network.keep_packets = false;
        let bytes = 1_000_000;
        for to in 1..9 {
            submit(&mut network, 0, to, u64::from(to), bytes, Kind::OneWay);
        }
        assert!(network.run_until(at(Span::from_secs(1))));
        let ends: Vec<Time> = network
            .events
            .iter()
            .filter(|it| matches!(it.2, Event::Delivered { .. }))
            .map(|it| it.0)
            .collect();
        assert_eq!(ends.len(), 8);
        let all = LINK.span_of(config.common.framing().message_wire_bytes(bytes)) * 8;
        assert!(ends[7] < at(all + all / 20), "{} for {all} with {config:?}", ends[7]);
    }
}
