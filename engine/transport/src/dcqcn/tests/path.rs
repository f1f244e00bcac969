//! Times of long messages.

use rackweave_core::{Kind, Span};

use super::{Config, Dcqcn, LINK};
use crate::tests::suite::{at, deliveries, network, submit};

/// Without marks nothing limits a message but the link.
#[test]
fn a_long_message_takes_its_ideal_time() {
    for us in [0, 2, 20] {
        let delay = Span::from_us(us);
        let mut network = network::<Dcqcn>(&Config::hpcc(LINK), 2, delay);
        submit(&mut network, 0, 1, 1, 1_000 * 1_460, Kind::OneWay);
        network.run_until(at(Span::from_ms(10)));
        let (delivered, _) = deliveries(&network).next().expect("delivered");
        // All packets on the first link, the last one on the second, and the path's delay.
        let ideal = LINK.span_of(1_538) * 1_001 + delay;
        assert_eq!(delivered, at(ideal), "{us} us");
    }
}
