//! Times of long messages, and of an incast.

use rackweave_core::{Kind, Span, Time};

use super::{Config, DcPim, LINK, with_delay};
use crate::tests::suite::{at, deliveries, network, submit};

/// The first prompt token is sent when the first round is over.
#[test]
fn a_long_message_starts_with_the_first_match() {
    let delay = Span::from_us(5);
    for prompt in [true, false] {
        let config = Config { prompt, ..with_delay(delay) };
        let mut network = network::<DcPim>(&config, 2, delay);
        let bytes = 1_000_000;
        submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
        network.run_until(at(Span::from_secs(1)));
        let taken = network.events[0].0.since(Time::ZERO);
        let data = LINK.span_of(config.common.framing().message_wire_bytes(bytes));
        // The announcement takes 5 us. It is answered at the next stage, half a round later there is an offer, and at the stage after
        // that it is accepted: two rounds. Without prompt channels tokens start with the data phase, after four rounds. Then tokens take
        // a round trip.
        let started = config.round * if prompt { 2 } else { 4 };
        let ideal = started + data + delay * 2;
        assert!(taken >= ideal && taken < ideal + Span::from_us(15), "{prompt} {taken} {ideal}");
    }
}

#[test]
fn an_incast_is_served_at_the_rate_of_the_link() {
    let delay = Span::from_us(5);
    let (senders, packets) = (40_u64, 100);
    let config = with_delay(delay);
    let mut network = network::<DcPim>(&config, senders as u32 + 1, delay);
    for n in 1..=senders {
        submit(&mut network, n as u32, 0, n, packets * 1_460, Kind::OneWay);
    }
    assert!(network.run_until(at(Span::from_secs(1))));
    let delivered: Vec<Time> = deliveries(&network).map(|(at, _)| at).collect();
    assert_eq!(delivered.len(), senders as usize);
    let last = delivered[senders as usize - 1].since(Time::ZERO);
    let ideal = config.packet_span * (senders * packets);
    // One receiver is matched with as many senders as it has channels; what is lost is what a match has beyond its message's end.
    assert!(last < ideal * 118 / 100, "{last} {ideal}");
}
