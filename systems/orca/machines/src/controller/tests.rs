mod chaos;
mod senders;

use rackweave_core::Rng;
use rackweave_switch::config::{Fault, FaultKind, FaultPlace, Topology};

use super::*;
use crate::flow::{FlowConfig, SenderEvent};
use crate::harness::{Network, always};
use crate::host::{Event, Spread};
use crate::label::tests::{dumbbell, fat_tree, leaf_spine, single};
use crate::switch::Register;

const T: Span = Span::from_ms(1);
const LENGTH: u64 = 3_000_000;

/// Faults of the controller's link, which carries only control packets.
fn controller_faults() -> Vec<Fault> {
    let late = FaultKind::Reordering { probability: 1.0, delay: Span::from_us(200) };
    let kinds = [FaultKind::Loss(0.03), FaultKind::Duplication(0.05), late];
    kinds.map(|kind| always(FaultPlace::HostLink(HostId(0)), kind)).to_vec()
}

/// Faults of all links, including those of the controller's link.
fn faults() -> Vec<Fault> {
    let late = FaultKind::Reordering { probability: 0.05, delay: Span::from_us(200) };
    let kinds = [FaultKind::Loss(0.005), FaultKind::Duplication(0.05), late];
    let everywhere = kinds.map(|kind| always(FaultPlace::AllLinks, kind));
    everywhere.into_iter().chain(controller_faults()).collect()
}

fn started(topology: Topology, seed: u64, faults: &[Fault]) -> Network {
    started_with_agents(topology, seed, faults, |_| true)
}

/// Returns a network in which each rack has an active agent, which is one of these hosts.
fn started_with_agents(
    topology: Topology,
    seed: u64,
    faults: &[Fault],
    is_agent: impl Fn(u32) -> bool,
) -> Network {
    let mut net = Network::with_agents(topology, seed, faults, T, is_agent);
    net.run_for(Span::from_secs(1), |net| {
        (0..net.layout.racks()).all(|rack| net.controller().active(rack).is_some())
    });
    net
}

/// Labels reach all receivers, and the sender's link carries the stream once.
#[test]
fn labels_carry_one_copy_to_all() {
    let cases = [
        (single(8), 1, vec![2, 3, 4, 7]),
        (leaf_spine(3, 4, 2), 1, vec![4, 5, 6, 8, 9, 11]),
        // The sender's own rack has receivers too.
        (leaf_spine(3, 4, 2), 1, vec![2, 3, 5, 8, 9, 10]),
        (fat_tree(4), 1, vec![2, 3, 5, 9, 15]),
        (dumbbell(4, 4), 1, vec![4, 5, 7]),
    ];
    for (topology, from, receivers) in cases {
        let mut net = started(topology.clone(), 1, &[]);
        let before = net.sent_by(from);
        net.open(from, 9, &receivers, Spread::Labels, FlowConfig::default(), LENGTH);
        let took = net.run_for(Span::from_secs(5), |net| net.is_finished(from, 9));
        for host in &receivers {
            assert!(net.has_whole(*host, 9, LENGTH), "{topology:?} {}", net.state());
        }
        let sent = net.sent_by(from) - before;
        println!("{topology:?}: {took}, {sent} bytes");
        assert!(sent < LENGTH * 13 / 10, "{topology:?}: {sent}");
        net.run_for(Span::from_secs(5), |net| net.controller().sessions().count() == 0);
        net.run_until(net.now() + Span::from_ms(50));
        for station in net.stations() {
            assert!(station.host.agent().table().is_empty(), "forgotten by agents too");
        }
    }
}

#[test]
fn with_losses_every_staying_receiver_gets_every_byte() {
    for seed in 0..4 {
        let mut net = started(leaf_spine(3, 5, 2), seed, &faults());
        let mut rng = Rng::stream(seed, 0, 0, "test");
        let receivers = [2, 3, 5, 6, 7, 8, 9, 10, 11, 12];
        net.open(1, 9, &receivers, Spread::Labels, FlowConfig::default(), 2 * LENGTH);
        // Hosts leave and join during the transfer, and agents crash and return.
        net.run_until(net.now() + Span::from_us(500 + rng.below(2000)));
        net.with_host(6, |now, host| host.leave(now, Session(9), Reason::Left));
        net.with_host(1, |now, host| host.add(now, Session(9), HostId(13)));
        net.run_until(net.now() + Span::from_us(rng.below(1000)));
        let active = net.controller().active(2).expect("an agent").0;
        let crashed: Vec<u32> = [active].into_iter().filter(|host| *host != 1).collect();
        for host in &crashed {
            net.crash(*host, true);
        }
        net.run_until(net.now() + Span::from_ms(5));
        for host in &crashed {
            net.crash(*host, false);
        }
        net.run_for(Span::from_secs(30), |net| net.is_finished(1, 9));
        for host in receivers.into_iter().chain([13]) {
            if host != 6 && !crashed.contains(&host) {
                assert!(net.has_whole(host, 9, 2 * LENGTH), "h{host} {}", net.state());
            }
        }
    }
}

/// Another agent becomes active at most T and a heartbeat after an agent's death (T after its last ping), plus
/// propagation.
#[test]
fn another_agent_takes_over_within_t_and_a_heartbeat() {
    for ms in [1, 5, 10] {
        let timeout = Span::from_ms(ms);
        let mut net = Network::with_agents(leaf_spine(3, 4, 2), 1, &[], timeout, |_| true);
        net.run_until(Time::ZERO + timeout * 5);
        let dead = net.controller().active(1).expect("an agent");
        let died = net.now();
        net.crash(dead.0, true);
        net.run_for(timeout * 3, |net| {
            let place = net.layout.place(dead);
            net.register(1).is_some_and(|r| r.agent != place.port)
        });
        let took = net.now().since(died);
        assert!(took >= Span::from_ticks(timeout.ticks() * 3 / 4), "{took}: it was not dead yet");
        assert!(took <= timeout + timeout / 4 + Span::from_us(200), "{took}");
        assert_ne!(net.controller().active(1), Some(dead));
    }
}

#[test]
fn a_restarted_agent_gets_all_labels_before_it_is_active() {
    let mut net = started(leaf_spine(2, 3, 2), 3, &[]);
    let flow = FlowConfig::default();
    net.open(1, 9, &[3, 4, 5], Spread::Labels, flow, 50 * LENGTH);
    net.run_until(net.now() + Span::from_ms(3));
    let tables =
        |net: &Network| [3, 4, 5].map(|h| net.stations()[h].host.agent().table().ports(Session(9)));
    assert_eq!(tables(&net), [0b111; 3]);
    // The outage is shorter than T, so only the pings, which count from 1 again, reveal the restart.
    net.crash(4, true);
    net.run_until(net.now() + Span::from_us(200));
    net.crash(4, false);
    assert_eq!(tables(&net)[1], 0);
    net.run_for(Span::from_ms(5), |net| {
        tables(net)[1] == 0b111 && net.controller().live(1).count() == 3
    });
    let events = &net.stations()[0].controller_events;
    assert!(events.iter().any(|(_, e)| *e == ControllerEvent::Silent { host: HostId(4) }));
    // The other agents die: it takes over and knows all labels.
    net.crash(3, true);
    net.crash(5, true);
    net.run_for(T * 3, |net| net.controller().active(1) == Some(HostId(4)));
    net.crash(4, true);
    net.run_for(T * 3, |net| net.controller().active(1).is_none());
    net.run_for(T, |net| net.register(1).is_some_and(|r| r.agent == NO_AGENT));
}

#[test]
fn a_restarted_controller_gets_its_state_from_senders() {
    let mut net = started(leaf_spine(2, 4, 2), 3, &[]);
    net.open(1, 9, &[4, 5, 6], Spread::Labels, FlowConfig::default(), 20 * LENGTH);
    net.run_until(net.now() + Span::from_ms(2));
    net.crash(0, true);
    net.run_until(net.now() + Span::from_ms(3));
    net.crash(0, false);
    let epoch = net.register(1).map(|r| r.epoch);
    net.run_for(Span::from_ms(200), |net| net.controller().active(1).is_some());
    net.run_until(net.now() + Span::from_us(100));
    assert!(net.register(1).map(|r| r.epoch) > epoch, "newer than in its former life");
    // The sender learns of it with its next change.
    net.with_host(1, |now, host| host.remove(now, Session(9), HostId(6)));
    net.run_for(Span::from_secs(5), |net| net.controller().store().ports(Session(9), 1) == 0b11);
    net.run_for(Span::from_secs(5), |net| net.is_finished(1, 9));
    for host in 4..6 {
        assert!(net.has_whole(host, 9, 20 * LENGTH), "{}", net.state());
    }
}

#[test]
fn impossible_requests_are_denied() {
    let layout = Arc::new(Layout::tree(1, 2, 4, 2, 0).expect("labels"));
    let mut config = ControllerConfig::new(HostId(0), Arc::clone(&layout), T);
    config.max_sessions = 1;
    let mut controller = Controller::new(config);
    let mut ask = |from: u32, session: u32, body: Body| {
        let control =
            Control { from: HostId(from), to: HostId(0), session: Session(session), body };
        let said = packet(HostId(from), HostId(0), 1, Header::Control(control));
        controller.handle_packet(Time::ZERO, 0, &said);
        let mut answers = Vec::new();
        while let Some(packet) = controller.poll_transmit(Time::ZERO, 0) {
            let Header::Control(control) = packet.header else { panic!("{packet:?}") };
            answers.push((control.to.0, control.body));
        }
        answers
    };
    let member = |host, joins, change| Body::Member { host: HostId(host), joins, change };
    let denied = |reason, change| Body::Denied { reason, change };
    assert_eq!(ask(1, 7, member(5, true, 1)), [(1, denied(Reason::Unknown, 1))]);
    let timeout_us = T.as_us() as u32;
    let labels = |change| Body::Labels {
        pilot: rackweave_wire::orca::Label(0),
        ports: 0,
        change,
        timeout_us,
    };
    assert_eq!(ask(1, 7, Body::Create), [(1, labels(0))]);
    assert_eq!(ask(1, 7, Body::Create), [(1, labels(0))]);
    assert_eq!(ask(2, 7, Body::Create), [(2, denied(Reason::Busy, 0))]);
    assert_eq!(ask(1, 8, Body::Create), [(1, denied(Reason::Busy, 0))]);
    assert_eq!(ask(1, 7, member(5, true, 1)), [(1, denied(Reason::Silent, 1))]);
    assert_eq!(ask(1, 7, member(99, true, 1)), [(1, denied(Reason::NoLabel, 1))]);
    assert_eq!(ask(2, 7, member(5, true, 1)), [], "not its session");
    assert_eq!(ask(1, 7, member(5, false, 2)), [], "not its turn");
    let place = layout.place(HostId(5));
    let ping = ask(5, 0, Body::Ping { place, number: 1 });
    let set = Body::SetActive { rack: 1, agent: 1, epoch: 1 };
    let served = Body::Served { rack: 1, agent: true, epoch: 1 };
    assert_eq!(ping, [(5, Body::Pong { number: 1 }), (5, set), (1, served)]);
    assert_eq!(ask(6, 0, Body::Ping { place, number: 1 }), [], "not its place");
    let sent = ask(1, 7, member(5, true, 1));
    let [(5, Body::Sync { rack: 1, ports: 0b10, version })] = sent[..] else { panic!("{sent:?}") };
    assert_eq!(ask(1, 7, member(5, true, 1)), [], "not confirmed");
    assert_eq!(ask(6, 7, Body::SyncDone { place, version }), [], "not its place");
    assert_eq!(ask(5, 7, Body::SyncDone { place, version: version - 1 }), [], "another one");
    let confirmed = ask(5, 7, Body::SyncDone { place, version });
    assert!(
        matches!(confirmed[..], [(1, Body::Labels { ports: 0, change: 1, .. })]),
        "{confirmed:?}"
    );
    assert_eq!(ask(1, 7, Body::Destroy).last(), Some(&(1, denied(Reason::Left, 0))));
}

/// Forged and stale control packets change nothing.
#[test]
fn forged_control_packets_are_ignored() {
    let mut net = started(leaf_spine(2, 4, 2), 5, &[]);
    net.open(1, 9, &[4, 5, 6], Spread::Labels, FlowConfig::default(), 20 * LENGTH);
    net.run_until(net.now() + Span::from_ms(3));
    let before: Vec<Option<Register>> = net.registers();
    let ports = |net: &Network| net.stations()[4].host.agent().table().get(Session(9));
    let known = ports(&net);
    let forged = [
        Body::Sync { rack: 1, ports: 0xff, version: u32::MAX / 3 },
        Body::Sync { rack: u16::MAX, ports: 0xff, version: u32::MAX / 3 },
        Body::SetActive { rack: 1, agent: 3, epoch: u32::MAX / 3 },
        Body::Labels { pilot: rackweave_wire::orca::Label(0), ports: 0, change: 99, timeout_us: 1 },
        Body::Denied { reason: Reason::Unknown, change: 1 },
    ];
    for body in forged {
        for (from, claims) in [(7, 7), (7, 0)] {
            let control =
                Control { from: HostId(claims), to: HostId(4), session: Session(9), body };
            let forged = packet(HostId(from), HostId(4), 1, Header::Control(control));
            net.inject(from, forged);
        }
    }
    net.run_until(net.now() + Span::from_ms(1));
    assert_eq!(net.registers(), before);
    assert_eq!(ports(&net), known);
    // The packet is stale but comes from the controller itself: hosts know a later version.
    let body = Body::Sync { rack: 1, ports: 0b1, version: known.expect("a label").version - 1 };
    let control = Control { from: HostId(0), to: HostId(4), session: Session(9), body };
    net.inject(0, packet(HostId(0), HostId(4), 1, Header::Control(control)));
    net.run_until(net.now() + Span::from_us(100));
    assert_eq!(ports(&net), known);
    net.run_for(Span::from_secs(5), |net| net.is_finished(1, 9));
    let lost =
        |(_, event): &(Time, Event)| matches!(event, Event::Sender(_, SenderEvent::Lost { .. }));
    assert!(!net.stations()[1].events.iter().any(lost));
}

/// With many receivers, agents aggregate the reports of their racks.
#[test]
fn agents_aggregate_reports() {
    let mut net = started(leaf_spine(3, 16, 2), 1, &[]);
    let receivers: Vec<u32> = (16..48).collect();
    net.open(1, 9, &receivers, Spread::Labels, FlowConfig::default(), 2 * LENGTH);
    net.run_for(Span::from_secs(5), |net| net.is_finished(1, 9));
    for host in receivers {
        assert!(net.has_whole(host, 9, 2 * LENGTH), "{}", net.state());
    }
    let counters = net.stations()[16..].iter().map(|station| station.host.agent().counters());
    let (reports, summaries) = counters.fold((0, 0), |(r, s), c| (r + c.reports, s + c.summaries));
    println!("{reports} reports in {summaries}");
    assert!(reports > 4 * summaries && summaries > 0, "{reports} reports in {summaries}");
}
