//! Times on an idle path.

use rackweave_core::{Kind, Span, Time};

use super::{Config, LINK, at, network, submit};

#[test]
fn a_window_below_the_round_trip_leaves_gaps() {
    let delay = Span::from_us(20);
    let config = Config::fabric(LINK, 10_000);
    let mut network = network(&config, 2, delay);
    submit(&mut network, 0, 1, 1, 100_000, Kind::OneWay);
    network.run_until(at(Span::from_secs(1)));
    let ideal = network.ideal(100_000, config.framing());
    assert!(network.events[0].0 > Time::ZERO + ideal * 2, "the time above is not always ideal");
}
