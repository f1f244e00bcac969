//! Times of long messages, and of an incast.

use rackweave_core::{Kind, Span, Time};

use super::{Config, LINK, Ndp};
use crate::tests::suite::{at, deliveries, network, submit};

#[test]
fn a_long_message_is_pulled_at_99_percent() {
    let config = Config::paper(LINK);
    let mut network = network::<Ndp>(&config, 2, Span::from_us(2));
    let bytes = 50_000_000;
    submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
    assert!(network.run_until(at(Span::from_secs(1))));
    let ideal = LINK.span_of(config.common.framing().message_wire_bytes(bytes));
    let share = ideal.as_ps() as f64 / network.events[0].0.as_ps() as f64;
    assert!((0.989..0.992).contains(&share), "{share}");
}

/// First windows wait in the queue before the receiver, which never runs empty: pulls trigger the remaining
/// packets in time.
#[test]
fn an_incast_is_pulled_at_the_receivers_pace_and_fairly() {
    let (senders, packets) = (40_u64, 100);
    let config = Config::paper(LINK);
    let mut network = network::<Ndp>(&config, senders as u32 + 1, Span::from_us(2));
    for n in 1..=senders {
        submit(&mut network, n as u32, 0, n, packets * 1_436, Kind::OneWay);
    }
    assert!(network.run_until(at(Span::from_secs(1))));
    let delivered: Vec<Time> = deliveries(&network).map(|(at, _)| at).collect();
    assert_eq!(delivered.len(), senders as usize);
    let all = LINK.span_of(config.common.framing().message_wire_bytes(packets * 1_436)) * senders;
    let last = delivered[senders as usize - 1];
    assert!(last >= at(all) && last < at(all + Span::from_us(10)), "{last} for {all}");
    // Equal messages in round-robin order end together.
    assert!(last.since(delivered[0]) < config.pull_spacing() * (senders + 30));
}
