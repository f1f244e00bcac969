//! Dialogues as traces: who says what to whom, in which order.

use rackweave_core::{Kind, Span};

use super::{Config, at, events, id, network, submit, trace};
use crate::testkit::Network;

/// A window of three packets, so that driving packets are soon seen.
fn small() -> Config {
    Config { first_window: 3, ..Config::slides() }
}

const US: fn(u64) -> Span = Span::from_us;
const MS: fn(u64) -> Span = Span::from_ms;

/// Loses what hosts send while `f` runs.
fn lost<T>(network: &mut Network<super::Host>, f: impl FnOnce(&mut Network<super::Host>) -> T) {
    network.faults.loss = 1.0;
    f(network);
    network.faults.loss = 0.0;
}

#[test]
fn p1() {
    let mut network = network(&small(), 2, US(1));
    submit(&mut network, 0, 1, 1, 100, Kind::Request);
    network.run_until(at(MS(10)));
    eprintln!("A {:#?} {:#?}", trace(&mut network), events(&mut network));
}
#[test]
fn p2() {
    let mut network = network(&small(), 2, US(1));
    submit(&mut network, 0, 1, 1, 8 * 1_460, Kind::OneWay);
    network.run_until(at(MS(10)));
    eprintln!("B {:#?} {:#?}", trace(&mut network), events(&mut network));
}
#[test]
fn p3() {
    // recovery 1
    let mut network = network(&small(), 2, US(1));
    network.lose = Some(|packet| {
        matches!(packet.header.body, super::Body::Data { offset: 5840, again: false, .. })
    });
    submit(&mut network, 0, 1, 1, 9 * 1_460, Kind::OneWay);
    network.run_until(at(MS(10)));
    eprintln!("C {:#?} {:#?}", trace(&mut network), events(&mut network));
}
#[test]
fn p4() {
    // recovery 2: all data of two packets lost, clock lives
    let mut network = network(&small(), 2, US(1));
    network.lose = Some(|packet| {
        matches!(packet.header.body, super::Body::Data { offset: 4380.., again: false, .. })
    });
    submit(&mut network, 0, 1, 1, 8 * 1_460, Kind::OneWay);
    network.run_until(at(MS(10)));
    eprintln!("D {:#?} {:#?}", trace(&mut network), events(&mut network));
}
#[test]
fn p5() {
    // recovery 3: everything of the first window lost
    let mut network = network(&small(), 2, US(1));
    lost(&mut network, |network| {
        submit(network, 0, 1, 1, 4 * 1_460, Kind::OneWay);
        network.run_until(at(US(20)));
    });
    network.run_until(at(MS(10)));
    eprintln!("E {:#?} {:#?}", trace(&mut network), events(&mut network));
}
#[test]
fn p6() {
    // pausing
    let mut network = network(&small(), 3, US(1));
    network.mark = Some(|packet| {
        matches!(packet.header.body, super::Body::Data { offset: 1460, .. })
            && packet.header.id.get() == 2
    });
    submit(&mut network, 1, 0, 1, 5 * 1_460, Kind::OneWay);
    network.run_until(at(US(4)));
    submit(&mut network, 2, 0, 2, 5 * 1_460, Kind::OneWay);
    network.run_until(at(MS(10)));
    eprintln!("F {:#?} {:#?}", trace(&mut network), events(&mut network));
}
