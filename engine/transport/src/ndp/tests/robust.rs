//! Forged packets of NDP's own types.

use rackweave_core::{Kind, Span};
use rackweave_wire::ndp::Body;

use super::{Config, LINK, Ndp};
use crate::tests::driven::forged;
use crate::tests::suite::{at, id, network, submit};

#[test]
fn forged_pulls_send_each_packet_once() {
    let mut network = network::<Ndp>(&Config::paper(LINK), 2, Span::from_us(1));
    network.set_down(1, true);
    submit(&mut network, 0, 1, 1, 1_000 * 1_436, Kind::OneWay);
    network.run_until(at(Span::from_us(100)));
    assert_eq!(network.packets.len(), 15);
    let forged = |n| {
        let body = Body::Pull { pull: u32::MAX - n, incarnation: 7 };
        forged::<Ndp>(id(1), body)
    };
    network.inject(forged(0));
    network.run_until(at(Span::from_us(200)));
    assert_eq!(network.packets.len(), 15 + 30, "no more than a network that doubles all could ask");
    for n in 0..200 {
        network.inject(forged(n));
        network.run_until(network.now() + Span::from_us(20));
    }
    assert!(network.packets.len() <= 1_000, "{}", network.packets.len());
    network.hosts[0].check_bounds();
}
