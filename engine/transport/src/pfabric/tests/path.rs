//! Times of long messages.

use rackweave_core::{Kind, Span};

use super::{Config, DrivenSubject as _, LINK, PFabric};
use crate::tests::suite::{at, deliveries, network, submit};

/// A window that covers the round trip keeps the link busy.
#[test]
fn a_long_message_takes_its_ideal_time() {
    for us in [0, 2, 20] {
        let delay = Span::from_us(us);
        let config = PFabric::covering(Config::paper(), delay);
        let mut network = network::<PFabric>(&config, 2, delay);
        let bytes = 1_000 * 1_460;
        submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
        network.run_until(at(Span::from_ms(10)));
        let (delivered, _) = deliveries(&network).next().expect("delivered");
        // All packets on the first link, the last one on the second, and the path's delay.
        let ideal = LINK.span_of(1_538) * 1_001 + delay;
        assert_eq!(delivered, at(ideal), "{us} us");
    }
}
