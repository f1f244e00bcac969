//! Forged packets of pHost's own types.

use rackweave_core::{Kind, Span};
use rackweave_wire::phost::Body;

use super::{Config, LINK, PHost};
use crate::tests::driven::forged;
use crate::tests::suite::{at, id, network, submit};

#[test]
fn forged_tokens_are_bounded_and_expire() {
    let mut network = network::<PHost>(&Config::paper(LINK), 2, Span::from_us(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 1_000 * 1_460, Kind::OneWay);
    network.run_until(at(Span::from_us(100)));
    assert_eq!(network.packets.len(), 1 + 8);
    for n in 0..10_000 {
        let body = Body::Token { packet: n, number: n, missing: n };
        network.inject(forged::<PHost>(id(1), body));
    }
    network.hosts[0].check_bounds();
    network.run_until(at(Span::from_us(200)));
    assert!(network.packets.len() <= 1 + 8 + 3, "{}", network.packets.len());
}
