//! For each transport: a peer that is silent for less than the patience is not given up, and one that is silent
//! for longer is.

use rackweave_core::{Event, FailReason, HostId, Kind, MessageId, Rate, Span, Time};

use rackweave_switch::config::{Fault, FaultKind, FaultPlace, Topology};

use super::{Network, fabric};
use crate::{Machine, TransportConfig};

const LINK: Rate = Rate::from_gbps(10);

const PATIENCE: Span = Span::from_secs(2);
/// NDP and Polo probe at intervals of at most a quarter of their patience, so that the last probe comes in
/// time.
const ALMOST: Span = Span::from_ms(1450);

/// Each transport that answers requests, by name. Profiles of one name are numbered.
fn transports() -> Vec<(String, TransportConfig)> {
    let examples = TransportConfig::examples(LINK).into_iter();
    let answering = examples.filter(|config| config.name() != "datagram");
    answering.zip(0..).map(|(config, n)| (format!("{} ({n})", config.name()), config)).collect()
}

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_ms(ms)
}

/// A client with a request of `bytes`, and its server, which is cut off `after_us` into it.
fn cut_off(config: &TransportConfig, bytes: u64, after_us: u64) -> Network<Machine> {
    let hosts = (0..2).map(|host| config.machine(HostId(host))).collect();
    let mut net = Network::new(hosts, LINK, Span::from_us(2));
    // An earlier request has opened connections where needed.
    net.submit(0, 1, MessageId::request(1), 100, Kind::Request).unwrap();
    net.run_until(at(20));
    net.submit(0, 1, MessageId::request(2), bytes, Kind::Request).unwrap();
    net.run_until(at(20) + Span::from_us(after_us));
    net.set_down(1, true);
    net.set_down(0, true);
    net
}

fn outcome(net: &Network<Machine>) -> Option<Result<(), FailReason>> {
    let response = MessageId::request(2).response();
    net.events_at(0).find_map(|event| match event {
        Event::Delivered { id, .. } if id == response => Some(Ok(())),
        Event::Failed { reason, .. } => Some(Err(reason)),
        _ => None,
    })
}

#[test]
fn who_is_silent_for_less_is_not_given_up() {
    for (name, config) in transports() {
        let config = config.patient(PATIENCE);
        config.check().unwrap();
        for (bytes, after_us) in [(100, 0), (1_000_000, 0), (1_000_000, 200), (1_000_000, 1000)] {
            let mut net = cut_off(&config, bytes, after_us);
            net.run_until(at(20) + Span::from_us(after_us) + ALMOST);
            assert_eq!(outcome(&net), None, "{name}, {bytes} bytes, {after_us} us");
            net.set_down(0, false);
            net.set_down(1, false);
            net.run_until(at(10_000));
            assert_eq!(outcome(&net), Some(Ok(())), "{name}, {bytes} bytes, {after_us} us");
        }
    }
}

#[test]
fn who_is_silent_for_longer_is() {
    for (name, config) in transports() {
        let config = config.patient(PATIENCE);
        for (bytes, after_us) in [(100, 0), (1_000_000, 0), (1_000_000, 200)] {
            let mut net = cut_off(&config, bytes, after_us);
            // Up to four times as long: Homa waits longer for a response that has started to arrive.
            net.run_until(at(20) + PATIENCE * 5);
            let failed = Some(Err(FailReason::PeerSilent));
            assert_eq!(outcome(&net), failed, "{name}, {bytes} bytes, {after_us} us");
        }
    }
}

#[test]
fn nothing_else_changes_and_it_is_never_less() {
    for (name, config) in transports() {
        assert_eq!(config.patient(Span::from_ms(10)), config, "{name}");
        let patient = config.patient(PATIENCE);
        assert_ne!(patient, config, "{name}");
        assert_eq!(patient.patient(PATIENCE), patient, "{name}");
        assert_eq!(patient.framing(), config.framing(), "{name}");
        assert_eq!(patient.over_udp(), config.over_udp().patient(PATIENCE), "{name}");
        config.patient(Span::from_secs(3600)).check().unwrap();
    }
}

/// A client whose link takes nothing, from `down` on.
fn closed(config: &TransportConfig, down: Time) -> Network<Machine> {
    let hosts = (0..2).map(|host| config.machine(HostId(host))).collect();
    let (place, kind) = (FaultPlace::HostLink(HostId(0)), FaultKind::Down);
    let fault = Fault { from: down, until: Time::MAX, place, kind };
    let two = Topology::SingleSwitch { hosts: 2, host_link: LINK };
    Network::faulty(&fabric(two, Span::from_us(2)), hosts, 1, vec![fault])
}

/// The outcomes of a host's messages, with their times in milliseconds.
fn failures(net: &Network<Machine>) -> Vec<(MessageId, FailReason, f64)> {
    let of = |(at, host, event): &(Time, HostId, Event)| match event {
        Event::Failed { id, reason, .. } if *host == HostId(0) => {
            Some((*id, *reason, at.as_us_f64() / 1e3))
        }
        _ => None,
    };
    net.events.iter().filter_map(of).collect()
}

#[test]
fn patience_counts_from_the_submission_if_the_hosts_own_link_takes_nothing() {
    for config in TransportConfig::examples(LINK) {
        let name = config.name();
        let config = config.patient(PATIENCE);
        let kind = if name == "datagram" { Kind::OneWay } else { Kind::Request };
        for bytes in [100, 1_000_000] {
            let mut net = closed(&config, at(10));
            for (n, ms) in [(1, 1), (2, 500), (3, 1500)] {
                net.run_until(at(ms));
                net.submit(0, 1, MessageId::request(n), bytes, kind).unwrap();
            }
            net.run_until(at(30_000));
            let patience = config.patience().as_us_f64() / 1e3;
            let failed = failures(&net);
            for (n, ms) in [(2, 500.0), (3, 1500.0)] {
                let of = |(id, ..): &&(MessageId, _, _)| *id == MessageId::request(n);
                let Some((_, reason, failed_at)) = failed.iter().find(of) else {
                    panic!("{name}, {bytes} bytes: message {n} never ends: {failed:?}");
                };
                assert_eq!(*reason, FailReason::PeerSilent, "{name}");
                let waited = (failed_at - ms) / patience;
                assert!(
                    (0.2..1.3).contains(&waited),
                    "{name}, {bytes} bytes: {n} after {waited} times its patience"
                );
            }
        }
    }
}

#[test]
fn who_waits_for_others_of_its_host_waits_as_long_as_it_takes() {
    for config in TransportConfig::examples(LINK) {
        let kind = if config.name() == "datagram" { Kind::OneWay } else { Kind::Request };
        let hosts = (0..2).map(|host| config.machine(HostId(host))).collect();
        let mut net = Network::new(hosts, Rate(500_000_000), Span::from_us(2));
        net.respond = Some(|_| 1);
        // 2.4 seconds of the link: longer than any of these waits for a silent peer.
        for n in 1..=150 {
            net.submit(0, 1, MessageId::request(n), 1_000_000, kind).unwrap();
        }
        net.run_until(at(4_000));
        assert_eq!(failures(&net), [], "{}", config.name());
    }
}
