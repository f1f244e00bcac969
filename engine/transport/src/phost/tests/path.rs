//! Times of long messages, and of an incast.

use rackweave_core::{Kind, Rate, Span, Time};

use super::{Config, DrivenSubject as _, LINK, PHost};
use crate::tests::driven::through_a_narrow_core;
use crate::tests::suite::{at, control_span, deliveries, network, submit};

#[test]
fn holding_back_costs_a_long_message_a_round_trip() {
    let delay = Span::from_us(2);
    let config = Config { token_lead: Span::ZERO, ..PHost::covering(Config::paper(LINK), delay) };
    let mut network = network::<PHost>(&config, 2, delay);
    let bytes = 200_000;
    submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
    network.run_until(at(Span::from_secs(1)));
    let ideal =
        control_span() + LINK.span_of(config.common.framing().message_wire_bytes(bytes)) + delay;
    let lost = network.events[0].0.since(Time::ZERO + ideal);
    assert!(lost >= delay * 2 && lost < delay * 2 + Span::from_us(2), "{lost}");
}

/// The free packets of all senders wait in the queue before the receiver, and the rest arrives at the pace of
/// tokens: message by message, or all of them together.
#[test]
fn an_incast_gets_tokens_at_the_receivers_pace() {
    let (senders, packets) = (40_u64, 100);
    for profile in [Config::paper(LINK), Config::polo_slides(LINK)] {
        let round_robin = profile.order == super::super::TokenOrder::RoundRobin;
        let config = PHost::covering(profile, Span::from_us(2));
        let mut network = network::<PHost>(&config, senders as u32 + 1, Span::from_us(2));
        for n in 1..=senders {
            submit(&mut network, n as u32, 0, n, packets * 1_460, Kind::OneWay);
        }
        assert!(network.run_until(at(Span::from_secs(1))));
        let delivered: Vec<Time> = deliveries(&network).map(|(at, _)| at).collect();
        assert_eq!(delivered.len(), senders as usize);
        let tokens = senders * (packets - u64::from(config.free_tokens));
        let pace = config.token_spacing * tokens;
        let last = delivered[senders as usize - 1];
        let free = config.token_spacing * (senders * u64::from(config.free_tokens));
        assert!(last >= at(pace + free), "{last} for {pace} and {free}");
        // Tokens expire while the free packets wait in the queue: they are sent again.
        assert!(last < at(pace + free * 2 + Span::from_us(100)), "{last} for {pace} and {free}");
        let together = last.since(delivered[0]) < config.token_spacing * (senders + 30);
        assert_eq!(together, round_robin, "shortest first, equal messages end one by one");
    }
}

/// Packets that wait in the core are not sent again as if they were lost, which would make its queues longer.
#[test]
fn queues_of_the_core_do_not_multiply_packets() {
    for (link, each) in [(LINK, 4), (Rate::from_gbps(1), 10)] {
        let config = Config::paper(link).for_round_trip(link.span_of(1_538) * 4);
        let (sent, needed) = through_a_narrow_core::<PHost>(&config, 2, link, None, each);
        assert!(sent < needed + needed / 2, "{sent} packets for {needed}");
    }
}
