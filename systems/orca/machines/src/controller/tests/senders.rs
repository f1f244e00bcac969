//! Notifications between controllers and senders, and the expiry of sessions.

use super::*;
use crate::flow::SlowPolicy;

/// The only agent of rack 1, which is not a receiver.
const AGENT: u32 = 7;

fn copies(net: &mut Network) -> usize {
    net.with_host(1, |now, host| host.copies(now, Session(9)))
}

/// Runs until the sender sends this many copies. A notification of the controller may be lost several times, and its
/// retransmissions become rarer.
fn await_copies(net: &mut Network, wanted: usize) {
    for _ in 0..40 {
        net.run_until(net.now() + Span::from_ms(5));
        if copies(net) == wanted {
            return;
        }
    }
    panic!("{} copies instead of {wanted}: {}", copies(net), net.state());
}

fn lost(net: &Network, host: u32) -> bool {
    net.stations()[host as usize]
        .events
        .iter()
        .any(|(_, e)| matches!(e, Event::Sender(_, SenderEvent::Lost { .. })))
}

fn policies() -> [FlowConfig; 3] {
    let slow = [
        FlowConfig::default().slow,
        SlowPolicy::Wait,
        SlowPolicy::Drop { after: Span::from_ms(50), below_percent: 50 },
    ];
    slow.map(|slow| FlowConfig { slow, ..FlowConfig::default() })
}

/// The receivers of a rack without agents get unicast copies at once, even while the sender waits for other racks, and
/// are reached by labels again when an agent has returned.
#[test]
fn a_rack_whose_last_agent_dies_gets_copies() {
    let lossy = controller_faults();
    let [usual, wait, drop] = policies();
    for (flow, faults) in [(usual, &lossy), (wait, &lossy), (wait, &vec![]), (drop, &lossy)] {
        let is_agent = |host: u32| host / 4 != 1 || host == AGENT;
        let mut net = started_with_agents(leaf_spine(3, 4, 2), 1, faults, is_agent);
        net.open(1, 9, &[4, 5, 6, 8, 9], Spread::Labels, flow, 36 * LENGTH);
        await_copies(&mut net, 1);
        net.crash(AGENT, true);
        await_copies(&mut net, 4);
        net.crash(AGENT, false);
        await_copies(&mut net, 1);
        net.crash(AGENT, true);
        net.run_for(Span::from_secs(5), |net| net.is_finished(1, 9));
        assert!(!lost(&net, 1), "{flow:?}");
        for host in [4, 5, 6, 8, 9] {
            assert!(net.has_whole(host, 9, 36 * LENGTH), "h{host} {}", net.state());
        }
    }
}

/// Reports of many receivers pass the agent, and go to the sender directly when there is no agent.
#[test]
fn many_receivers_report_without_an_agent() {
    for flow in policies() {
        let is_agent = |host: u32| host / 24 != 1 || host == 47;
        let mut net = started_with_agents(leaf_spine(2, 24, 2), 1, &[], is_agent);
        let receivers: Vec<u32> = (24..47).collect();
        net.open(1, 9, &receivers, Spread::Labels, flow, 4 * LENGTH);
        net.run_until(net.now() + Span::from_ms(12));
        net.crash(47, true);
        net.run_for(Span::from_secs(10), |net| net.is_finished(1, 9));
        assert!(!lost(&net, 1), "{flow:?} {}", net.state());
        for host in receivers {
            assert!(net.has_whole(host, 9, 4 * LENGTH), "h{host} {}", net.state());
        }
    }
}

/// The sender labels data for its own rack itself where the pilot label does not lead back to it, and then needs no
/// agent.
#[test]
fn the_senders_rack_needs_no_agent() {
    let mut net = started_with_agents(single(6), 1, &[], |host| host == 5);
    net.open(1, 9, &[2, 3, 4], Spread::Labels, FlowConfig::default(), 20 * LENGTH);
    net.run_until(net.now() + Span::from_ms(15));
    net.crash(5, true);
    net.run_until(net.now() + T * 3);
    assert_eq!(net.controller().active(0), None);
    assert_eq!(copies(&mut net), 1);
    net.run_for(Span::from_secs(5), |net| net.is_finished(1, 9));
}

/// The sender is its rack's active agent: data that returns for the rack arrives at the sender itself.
#[test]
fn a_sender_that_is_the_active_agent_of_its_rack() {
    let mut net =
        Network::with_agents(leaf_spine(3, 4, 2), 1, &[], T, |host| host == 1 || host > 2);
    for host in [3, 2] {
        net.crash(host, true);
    }
    // Host 3 has pinged at time 0 and counts as live for T.
    net.run_for(Span::from_secs(1), |net| {
        let controller = net.controller();
        let others = (1..3).all(|rack| controller.active(rack).is_some());
        others && controller.active(0) == Some(HostId(1))
    });
    net.crash(2, false);
    net.open(1, 9, &[2, 5, 8], Spread::Labels, FlowConfig::default(), 36 * LENGTH);
    net.run_until(net.now() + Span::from_ms(15));
    assert_eq!(copies(&mut net), 2, "one by its own label {}", net.state());
    // Another agent returns and becomes active, since its host sends nothing.
    net.crash(3, false);
    net.run_for(T * 5, |net| net.controller().active(0) == Some(HostId(3)));
    net.run_until(net.now() + Span::from_ms(40));
    assert_eq!(copies(&mut net), 1, "{}", net.state());
    net.run_for(Span::from_secs(5), |net| net.is_finished(1, 9));
    for host in [2, 5, 8] {
        assert!(net.has_whole(host, 9, 36 * LENGTH), "h{host} {}", net.state());
    }
    let repaired = net.with_host(1, |_, host| host.summary(Session(9)));
    println!("{repaired:?}");
}

/// A sender that is not an agent crashes: the controller and all agents forget its session. They keep the session of a
/// live sender.
#[test]
fn the_sessions_of_a_crashed_sender_are_forgotten() {
    let timeout = Span::from_ms(40);
    let mut net = Network::with_agents(leaf_spine(3, 4, 2), 1, &faults(), timeout, |host| host > 2);
    net.run_for(Span::from_secs(1), |net| {
        (0..3).all(|rack| net.controller().active(rack).is_some())
    });
    for (host, session) in [(1, 9), (2, 10)] {
        net.open_unfinished(host, session, &[4, 8], Spread::Labels, FlowConfig::default(), LENGTH);
    }
    net.run_until(net.now() + Span::from_secs(1));
    assert_eq!(net.controller().sessions().count(), 2);
    net.crash(1, true);
    let forget = ControllerConfig::new(HostId(0), Arc::clone(&net.layout), T).forget;
    net.run_until(net.now() + forget / 2);
    assert_eq!(net.controller().sessions().count(), 2, "not yet");
    net.run_until(net.now() + forget);
    let left: Vec<_> = net.controller().sessions().map(|(session, ..)| session).collect();
    assert_eq!(left, [Session(10)]);
    let expired = ControllerEvent::Expired { session: Session(9), sender: HostId(1) };
    assert_eq!(
        net.stations()[0].controller_events.iter().filter(|(_, event)| *event == expired).count(),
        1
    );
    assert_eq!(net.controller().counters().expired, 1);
    for station in net.stations().iter().skip(4) {
        let table = station.host.agent().table();
        assert_eq!(table.ports(Session(9)), 0, "agents have removed it");
    }
    assert_ne!(net.stations()[4].host.agent().table().ports(Session(10)), 0);
}

/// The sender notices that the controller has lost its state although the session does not change.
#[test]
fn a_controller_that_forgot_is_noticed_without_a_change() {
    let mut net = started(leaf_spine(2, 4, 2), 3, &[]);
    net.open_unfinished(1, 9, &[4, 5], Spread::Labels, FlowConfig::default(), LENGTH);
    net.run_until(net.now() + Span::from_ms(50));
    net.crash(0, true);
    net.run_until(net.now() + Span::from_ms(3));
    net.crash(0, false);
    net.run_for(Span::from_secs(5), |net| net.controller().store().ports(Session(9), 1) == 0b11);
}

/// When the table is full, further sessions are denied until others expire.
#[test]
fn the_table_is_bounded_and_room_comes_back() {
    let layout = Arc::new(Layout::flat(8));
    let mut config = ControllerConfig::new(HostId(0), layout, T);
    config.max_sessions = 3;
    let forget = config.forget;
    let mut controller = Controller::new(config);
    let mut create = |now: Time, session: u32| {
        let (from, to, session) = (HostId(1), HostId(0), Session(session));
        let control = Control { from, to, session, body: Body::Create };
        controller.handle_timeout(now);
        controller.handle_packet(now, 0, &packet(from, to, 1, Header::Control(control)));
        let answer = controller.poll_transmit(now, 0).map(|packet| packet.header);
        let Some(Header::Control(Control { body, .. })) = answer else { panic!("{answer:?}") };
        (matches!(body, Body::Labels { .. }), controller.poll_timeout())
    };
    for session in 0..5 {
        let (taken, next) = create(Time::ZERO, session);
        assert_eq!(taken, session < 3);
        assert!(next.is_some(), "it looks after them");
    }
    // Only session 0 is renewed.
    let half = Time::ZERO + forget / 2;
    assert!(create(half, 0).0);
    let late = Time::ZERO + forget + forget / 3;
    assert_eq!([7, 8, 9].map(|session| create(late, session).0), [true, true, false]);
    assert!(create(late, 0).0);
}
