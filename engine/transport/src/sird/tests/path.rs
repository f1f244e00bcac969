//! Times of long messages.

use rackweave_core::{Kind, Span};

use super::{Config, LINK, Sird};
use crate::tests::suite::{at, control_span, deliveries, network, submit};

/// A long message waits for a round trip of control packets, and then keeps the link busy.
#[test]
fn a_long_message_takes_a_round_trip_and_its_ideal_time() {
    for us in [0, 2, 20] {
        let delay = Span::from_us(us);
        let rtt = (LINK.span_of(1_538) + control_span()) * 2 + delay * 2;
        let config = Config::paper(LINK, LINK.bytes_in(rtt) + 1_538);
        let mut network = network::<Sird>(&config, 2, delay);
        submit(&mut network, 0, 1, 1, 1_000 * 1_460, Kind::OneWay);
        network.run_until(at(Span::from_ms(10)));
        let (delivered, _) = deliveries(&network).next().expect("delivered");
        let request = (control_span() * 2 + delay) * 2;
        let ideal = LINK.span_of(1_538) * 1_001 + delay;
        assert_eq!(delivered, at(request + ideal), "{us} us");
    }
}

/// With a credit rate of 98 %, all packets but the first take that much longer.
#[test]
fn credit_below_the_link_rate_delays() {
    let config = Config::paper(LINK, 20 * 1_538);
    let interval = Span::from_ps(LINK.span_of(1_538).as_ps() * 100 / 98);
    let config = Config { credit_interval: interval, ..config };
    let mut network = network::<Sird>(&config, 2, Span::ZERO);
    submit(&mut network, 0, 1, 1, 1_000 * 1_460, Kind::OneWay);
    network.run_until(at(Span::from_ms(10)));
    let (delivered, _) = deliveries(&network).next().expect("delivered");
    let paced = control_span() * 4 + interval * 999 + LINK.span_of(1_538) * 2;
    assert_eq!(delivered, at(paced));
}
