//! Hosts behind an [`Edge`]: when they are polled for packets.

use std::collections::BTreeMap;

use super::*;

/// Hosts that send a number of packets, and record when they are polled.
#[derive(Debug, Default)]
struct Senders {
    left: BTreeMap<u32, u32>,
    asked: Vec<(u64, u32)>,
    timer: Option<Time>,
}

impl Edge<Tag> for Senders {
    fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<Tag>> {
        self.asked.push((at.as_ps(), host.0));
        let left = self.left.get_mut(&host.0)?;
        *left = left.checked_sub(1)?;
        Some(Packet::new(host, HostId(3), 1500, Tag { number: ROUTE, slot: 0 }))
    }

    fn poll_timeout(&self, host: HostId) -> Time {
        if host == HostId(0) { self.timer.unwrap_or(Time::MAX) } else { Time::MAX }
    }
}

const FRAME_PS: u64 = 1538 * 8000;

fn edge_net(multi_homed: Vec<Vec<HostId>>) -> Net<ForwardOnly<Tag>> {
    let fabric = Arc::new(Fabric::new(&single(4)).unwrap());
    let config = NetConfig { multi_homed, ..NetConfig::new(fabric, 1, 0) };
    Net::new(config, (), |_| ForwardOnly::new())
}

fn run_edge(net: &mut Net<ForwardOnly<Tag>>, edge: &mut Senders) -> Vec<(u64, NetEvent)> {
    let mut events = Vec::new();
    while let Some(event) = net.step(edge, LATER) {
        if let NetEvent::Arrived { packet, .. } = event {
            net.free(packet);
        }
        if event != NetEvent::Internal {
            events.push((net.now().as_ps(), event));
        }
    }
    events
}

#[test]
fn a_host_is_asked_as_of_the_time_when_its_link_is_free() {
    let mut net = edge_net(Vec::new());
    let mut edge = Senders { left: BTreeMap::from([(1, 3)]), ..Senders::default() };
    net.wake(&mut edge, HostId(1));
    assert_eq!(run_edge(&mut net, &mut edge).len(), 3);
    let asked: Vec<_> = (0..4).map(|n| (n * FRAME_PS, 1)).collect();
    assert_eq!(edge.asked, asked, "at each end of a packet, and until there is nothing more");
    assert_eq!(net.counters().events, 6, "one event for each packet and hop");
}

#[test]
fn what_a_host_would_have_sent_is_sent_before_it_learns_something() {
    let mut net = edge_net(Vec::new());
    let mut edge = Senders { left: BTreeMap::from([(1, 2)]), ..Senders::default() };
    net.wake(&mut edge, HostId(1));
    // The first packet is sent, but has not arrived.
    net.advance(Time::from_ps(FRAME_PS + 1000));
    net.flush(&mut edge, HostId(1));
    assert_eq!(edge.asked, [(0, 1), (FRAME_PS, 1)]);
    net.advance(Time::from_ps(2 * FRAME_PS));
    net.flush(&mut edge, HostId(1));
    assert_eq!(edge.asked.len(), 2, "not as of now: it may learn something now");
}

#[test]
fn a_node_with_two_ports_is_asked_in_the_order_of_time() {
    let mut net = edge_net(vec![vec![HostId(0), HostId(2)]]);
    let left = BTreeMap::from([(0, 4), (2, 3)]);
    let mut edge = Senders { left, ..Senders::default() };
    net.wake(&mut edge, HostId(2));
    run_edge(&mut net, &mut edge);
    assert!(edge.asked.is_sorted_by_key(|(at, _)| *at), "{:?}", edge.asked);
    assert_eq!(edge.left, BTreeMap::from([(0, 0), (2, 0)]));
    assert_eq!(net.counters().sent, 7);
}

#[test]
fn a_timer_that_has_become_earlier_counts_once() {
    let mut net = edge_net(Vec::new());
    let mut edge = Senders { timer: Some(Time::from_ps(500)), ..Senders::default() };
    net.wake(&mut edge, HostId(0));
    edge.timer = Some(Time::from_ps(200));
    net.wake(&mut edge, HostId(0));
    assert_eq!(run_edge(&mut net, &mut edge), [(200, NetEvent::Timer(HostId(0)))]);
    edge.timer = Some(Time::from_ps(100));
    net.wake(&mut edge, HostId(0));
    assert_eq!(
        run_edge(&mut net, &mut edge),
        [(500, NetEvent::Timer(HostId(0)))],
        "never in the past"
    );
}
