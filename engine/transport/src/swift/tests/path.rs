//! Times of long messages.

use rackweave_core::{Event, Kind, Span};

use super::{Config, DrivenSubject as _, LINK, Swift};
use crate::tests::suite::{at, deliveries, network, submit};

/// A window that covers the round trip keeps the link busy.
#[test]
fn a_long_message_takes_its_ideal_time() {
    for us in [0, 2, 20] {
        let delay = Span::from_us(us);
        let config = Swift::covering(Config::htsim(), delay);
        let mut network = network::<Swift>(&config, 2, delay);
        let bytes = 1_000 * 1_460;
        submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
        network.run_until(at(Span::from_ms(10)));
        let (delivered, _) = deliveries(&network).next().expect("delivered");
        // All packets on the first link, the last one on the second, and the path's delay.
        let ideal = LINK.span_of(1_538) * 1_001 + delay;
        assert_eq!(delivered, at(ideal), "{us} us");
    }
}

/// A message failed because its receiver was away. Much later the receiver is back, and a first window is lost: that is one timeout,
/// and not a silence since then.
#[test]
fn an_old_silence_does_not_count_against_later_messages() {
    let mut network = network::<Swift>(&Config::htsim(), 2, Span::from_us(1));
    let failed = |network: &crate::tests::Network<_>| {
        network.events.iter().filter(|(.., event)| matches!(event, Event::Failed { .. })).count()
    };
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 1_000, Kind::OneWay);
    network.run_until(at(Span::from_ms(400)));
    assert_eq!(failed(&network), 1);
    network.set_down(1, false);
    network.run_until(at(Span::from_ms(800)));
    network.lose = Some(|_| true);
    for number in 2..=30 {
        submit(&mut network, 0, 1, number, 10_000, Kind::OneWay);
    }
    network.run_until(at(Span::from_ms(800) + Span::from_us(50)));
    network.lose = None;
    network.run_until(at(Span::from_ms(1_500)));
    assert_eq!((failed(&network), deliveries(&network).count()), (1, 29));
}
