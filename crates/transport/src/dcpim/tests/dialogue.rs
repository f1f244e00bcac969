//! Packet traces of whole conversations.

use rackweave_core::{Kind, Span};

use super::{DcPim, with_delay};
use crate::tests::driven::trace;
use crate::tests::suite::{at, events, network, submit};

const US: fn(u64) -> Span = Span::from_us;

#[test]
fn a_short_request() {
    let mut network = network::<DcPim>(&with_delay(US(5)), 2, US(5));
    submit(&mut network, 0, 1, 1, 2_000, Kind::Request);
    network.run_until(at(US(500)));
    println!("{:#?}", trace(&mut network));
    println!("{:#?}", events(&mut network));
}

#[test]
fn a_long_message() {
    let mut network = network::<DcPim>(&with_delay(US(5)), 2, US(5));
    submit(&mut network, 0, 1, 1, 20 * 1_460, Kind::OneWay);
    network.run_until(at(US(500)));
    println!("{:#?}", trace(&mut network));
    println!("{:#?}", events(&mut network));
}
