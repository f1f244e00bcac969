//! Nodes of group systems against theory: line rate, one copy on the sender's link, simultaneous delivery; faults;
//! determinism.

use std::collections::VecDeque;
use std::convert::Infallible;

use rackweave_core::{
    DropReason, Header, Node, Packet, PayloadStore, Port, PortSet, Rate, Slice, Span,
    SwitchProgram, Verdict,
};
use rackweave_switch::ForwardOnly;

use super::*;
use crate::config::{FabricConfig, FaultKind, FaultPlace, HostModel, SwitchConfig, Topology};
use crate::model::{GroupNode, GroupsOnly};

/// A header as large as that of a group system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbered {
    number: u64,
    fill: [u64; 17],
}

impl Header for Numbered {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

const ALL: HostId = HostId(u32::MAX - 1);

/// Copies packets for the group to each port except the one that they arrived at.
#[derive(Clone, Copy, Debug)]
struct Copies;

impl SwitchProgram for Copies {
    type Header = Numbered;

    fn handle_packet<S: PayloadStore<Numbered>>(
        &mut self,
        _: Time,
        port: Port,
        packet: &mut Packet<Numbered>,
        _: &mut S,
    ) -> Verdict {
        match packet.dst {
            ALL => Verdict::Replicate(PortSet::first(64).without(port)),
            _ => Verdict::Route,
        }
    }
}

/// Sends packets, at most one every `gap`, and records the packets that arrive.
#[derive(Clone, Debug)]
struct Peer {
    me: HostId,
    to: HostId,
    left: u64,
    sent: u64,
    ports: u8,
    gap: Span,
    not_before: Time,
    /// The time, port and number of each packet that arrived.
    received: Vec<(Time, u8, u64)>,
    /// Number of packets after which it is done.
    expected: usize,
    /// When and at which port it was polled for a packet, and when it crashed and restarted.
    polled: Vec<(Time, u8)>,
    crashes: Vec<(Time, bool)>,
    answers: bool,
    todo: VecDeque<(HostId, u64)>,
}

impl Peer {
    const fn new(me: u32) -> Self {
        Self {
            me: HostId(me),
            to: ALL,
            left: 0,
            sent: 0,
            ports: 1,
            gap: Span::ZERO,
            not_before: Time::ZERO,
            received: Vec::new(),
            expected: 0,
            polled: Vec::new(),
            crashes: Vec::new(),
            answers: false,
            todo: VecDeque::new(),
        }
    }

    fn sends(me: u32, to: HostId, packets: u64) -> Self {
        Self { to, left: packets, ..Self::new(me) }
    }

    fn takes(me: u32, packets: usize) -> Self {
        Self { expected: packets, ..Self::new(me) }
    }

    fn packet(&self, to: HostId, number: u64) -> Packet<Numbered> {
        Packet::new(self.me, to, 1500, Numbered { number, fill: [number; 17] })
    }
}

impl Node for Peer {
    type Header = Numbered;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Numbered>) {
        assert_eq!(packet.header.fill, [packet.header.number; 17]);
        self.received.push((now, port, packet.header.number));
        if self.answers {
            self.todo.push_back((packet.src, packet.header.number));
        }
    }

    fn handle_timeout(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Numbered>> {
        self.polled.push((now, port));
        if let Some((to, number)) = self.todo.pop_front() {
            return Some(self.packet(to, number));
        }
        if self.left == 0 || now < self.not_before {
            return None;
        }
        self.left -= 1;
        self.sent += 1;
        self.not_before = now + self.gap;
        Some(self.packet(self.to, self.sent))
    }

    fn poll_timeout(&self) -> Option<Time> {
        (self.left > 0).then_some(self.not_before)
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for Peer {
    fn is_done(&self) -> bool {
        self.left == 0 && self.todo.is_empty() && self.received.len() >= self.expected
    }

    fn crash(&mut self, now: Time, down: bool) {
        self.crashes.push((now, down));
        if down {
            self.todo.clear();
        }
    }
}

const LINK: Rate = Rate::from_gbps(10);
/// Serialisation delay of a full packet.
const FULL: u64 = 1538 * 800;
const HOP_DELAY: u64 = 1_000_000;

fn fabric(topology: Topology) -> Fabric {
    let config = FabricConfig::new(topology)
        .with_link_delay(Span::from_ps(HOP_DELAY))
        .without_host_delays()
        .with_switch(SwitchConfig::unlimited().with_buffer(100_000));
    Fabric::new(&config).unwrap()
}

fn single(hosts: u32) -> Fabric {
    fabric(Topology::SingleSwitch { hosts, host_link: LINK })
}

type Cluster<P = Copies> = World<'static, GroupsOnly<Peer, P>>;

fn setup<P: SwitchProgram<Header = Numbered> + Clone + 'static>(
    fabric: Fabric,
    nodes: Vec<Attached<Peer>>,
    faults: &[Fault],
    program: P,
) -> Setup<'static, GroupsOnly<Peer, P>> {
    let measure =
        MeasureConfig::default().with_time_limit(Span::from_secs(1)).with_samples(Span::ZERO);
    let measure = Box::leak(Box::new(measure));
    Setup {
        nodes,
        faults: Box::leak(faults.into()),
        ..Setup::new(3, Arc::new(fabric), measure, move |_| program.clone())
    }
}

/// A cluster of peers at given hosts.
fn try_cluster(
    fabric: Fabric,
    nodes: Vec<Attached<Peer>>,
    faults: &[Fault],
) -> Result<Cluster, BuildError> {
    World::new(setup(fabric, nodes, faults, Copies))
}

fn cluster(fabric: Fabric, peers: Vec<Peer>, faults: &[Fault]) -> Cluster {
    let nodes = peers.into_iter().map(|peer| Attached::at(peer.me, peer)).collect();
    try_cluster(fabric, nodes, faults).unwrap()
}

fn at(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

fn host_fault(host: u32, from: u64, until: Time, kind: FaultKind) -> Fault {
    Fault { from: at(from), until, place: FaultPlace::Host(HostId(host)), kind }
}

#[test]
fn multicast_at_line_rate_with_one_copy_on_the_senders_link() {
    const RECEIVERS: u32 = 63;
    const PACKETS: u64 = 1000;
    let mut peers = vec![Peer::sends(0, ALL, PACKETS)];
    peers.extend((1..=RECEIVERS).map(|host| Peer::takes(host, PACKETS as usize)));
    let mut cluster = cluster(single(RECEIVERS + 1), peers, &[]);
    assert_eq!(cluster.run_to_end(&Control::default()), End::AllDone);
    // Store and forward at one switch: the last packet arrives one transmission and two delays after it has been
    // sent.
    let end = (PACKETS + 1) * FULL + 2 * HOP_DELAY;
    assert_eq!(cluster.now(), Time::from_ps(end));
    for receiver in cluster.nodes().skip(1) {
        let expected: Vec<_> =
            (1..=PACKETS).map(|n| (Time::from_ps((n + 1) * FULL + 2 * HOP_DELAY), 0, n)).collect();
        assert_eq!(receiver.received, expected, "{}", receiver.me);
    }
    let links = cluster.link_stats();
    assert_eq!(links[0].frames, PACKETS, "one copy each");
    for host in 1..=RECEIVERS {
        let down = &links[cluster.fabric().downlink(HostId(host)) as usize];
        assert_eq!((down.frames, down.max_queue_bytes), (PACKETS, 0));
        assert_eq!(links[host as usize].frames, 0);
    }
    let counters = *cluster.counters();
    assert_eq!(counters.packet_hops, PACKETS * u64::from(RECEIVERS + 1));
    assert_eq!(cluster.delivered_to_nodes(), PACKETS * u64::from(RECEIVERS));
}

#[test]
fn nodes_are_asked_exactly_when_their_link_is_free() {
    let peers = vec![Peer::sends(0, HostId(1), 3), Peer::takes(1, 3)];
    let mut cluster = cluster(single(2), peers, &[]);
    cluster.run_to_end(&Control::default());
    // It is polled at the start, and whenever a packet has been sent.
    let polled: Vec<u64> = cluster.node(0).polled.iter().map(|(at, _)| at.as_ps()).collect();
    assert_eq!(polled[..4], [0, FULL, 2 * FULL, 3 * FULL]);
    // A receiver is polled at the start, and after each packet.
    assert_eq!(cluster.node(1).polled.len(), 4);
}

#[test]
fn timers_are_obeyed_and_a_link_is_never_shared() {
    let mut slow = Peer::sends(0, HostId(1), 10);
    slow.gap = Span::from_ps(3 * FULL);
    let mut cluster = cluster(single(2), vec![slow, Peer::takes(1, 10)], &[]);
    assert_eq!(cluster.run_to_end(&Control::default()), End::AllDone);
    let times: Vec<u64> = cluster.node(1).received.iter().map(|(at, ..)| at.as_ps()).collect();
    let expected: Vec<u64> = (0..10).map(|n| (3 * n + 2) * FULL + 2 * HOP_DELAY).collect();
    assert_eq!(times, expected);
}

#[test]
fn a_node_with_two_ports_sends_by_both_at_once() {
    sends_by_both_ports(None);
}

#[test]
fn a_node_in_the_kernel_fills_the_queues_of_both_its_ports() {
    sends_by_both_ports(Some(HostConfig { model: HostModel::Kernel, ..HostConfig::default() }));
}

fn sends_by_both_ports(host: Option<HostConfig>) {
    let mut sender = Peer::sends(0, HostId(2), 20);
    sender.ports = 2;
    let nodes = vec![
        Attached { node: sender, hosts: vec![HostId(0), HostId(1)] },
        Attached { node: Peer::takes(2, 20), hosts: vec![HostId(2), HostId(3)] },
    ];
    let mut setup = setup(single(4), nodes, &[], Copies);
    setup.host = host.map(Arc::new);
    let mut cluster = Cluster::new(setup).unwrap();
    assert_eq!(cluster.run_to_end(&Control::default()), End::AllDone);
    let links = cluster.link_stats();
    assert_eq!((links[0].frames, links[1].frames), (10, 10));
    assert!(cluster.node(1).received.iter().all(|(_, port, _)| *port == 0));
    // The receiver's link is the bottleneck: it carries twenty packets in sequence.
    assert_eq!(cluster.now(), Time::from_ps(21 * FULL + 2 * HOP_DELAY));
    cluster.node_mut(0).to = HostId(3);
    cluster.node_mut(0).left = 1;
    cluster.run_until(at(1000));
    assert_eq!(cluster.node(1).received[20].1, 1, "the other port");
    assert_eq!(cluster.now(), at(1000));
}

#[test]
fn work_can_be_given_between() {
    let mut cluster = cluster(single(3), vec![Peer::new(0), Peer::new(1)], &[]);
    assert!(cluster.run_until(at(100)), "nothing to do is done");
    assert_eq!((cluster.now(), cluster.next_due()), (at(100), None));
    cluster.node_mut(0).left = 2;
    cluster.node_mut(1).expected = 2;
    assert!(!cluster.run_until(at(101)));
    assert_eq!(cluster.run_to_end(&Control::default()), End::AllDone);
    assert_eq!(
        cluster.node(1).received[0].0,
        Time::from_ps(at(100).as_ps() + 2 * FULL + 2 * HOP_DELAY)
    );
    cluster.run_until(at(200));
    assert_eq!(
        cluster.counters().drops[DropReason::WrongProtocol as usize],
        2,
        "host 2 has no node"
    );
}

#[test]
fn how_a_run_ends() {
    let mut stalled = cluster(single(2), vec![Peer::takes(0, 1)], &[]);
    assert_eq!(stalled.run_to_end(&Control::default()), End::Stalled);
    let mut endless = Peer::sends(0, HostId(1), u64::MAX);
    endless.gap = Span::from_ms(1);
    let mut late = cluster(single(2), vec![endless.clone()], &[]);
    assert_eq!(late.run_to_end(&Control::default()), End::TimeLimit);
    assert_eq!((late.now(), late.node(0).sent), ((Time::ZERO + Span::from_secs(1)), 1001));
    let mut cancelled = cluster(single(2), vec![endless], &[]);
    let control = Control::default();
    control.cancel.store(true, Ordering::Relaxed);
    assert_eq!(cancelled.run_to_end(&control), End::Cancelled);
}

#[test]
fn a_crash_loses_what_comes_and_a_pause_keeps_it() {
    let forever = Time::MAX;
    let faults = [
        host_fault(1, 100, at(200), FaultKind::Crash),
        host_fault(2, 100, at(200), FaultKind::Pause),
        host_fault(3, 100, forever, FaultKind::Crash),
    ];
    let mut sender = Peer::sends(0, ALL, 40);
    sender.gap = Span::from_us(10);
    let mut peers = vec![sender, Peer::takes(1, 0), Peer::takes(2, 40), Peer::takes(3, 40)];
    peers[2].answers = true;
    let mut cluster = cluster(single(4), peers, &faults);
    cluster.run_until(at(150));
    assert!(!cluster.is_up(1) && !cluster.is_up(2) && cluster.is_up(0));
    let while_paused = cluster.node(2).polled.last().map(|(at, _)| *at).unwrap();
    assert!(while_paused <= at(100), "polled at {while_paused}");
    assert_eq!(
        cluster.run_to_end(&Control::default()),
        End::AllDone,
        "a node that never restarts is done"
    );
    assert_eq!(cluster.node(1).crashes, [(at(100), true), (at(200), false)]);
    assert_eq!(cluster.node(3).crashes, [(at(100), true)]);
    // Events of the same time may follow the end of the run.
    cluster.run_until(at(1000));
    let of = |node: usize| cluster.node(node).received.len();
    assert_eq!((of(1), of(2), of(3)), (30, 40, 10));
    let resumed = cluster.node(2).received.iter().filter(|(time, ..)| *time == at(200)).count();
    assert_eq!(resumed, 10, "they waited");
    assert_eq!(cluster.counters().drops[DropReason::HostDown as usize], 10 + 30);
}

#[test]
fn a_paused_hosts_ring_is_bounded() {
    let faults = [host_fault(1, 0, at(5000), FaultKind::Pause)];
    let peers = vec![Peer::sends(0, HostId(1), 2000), Peer::takes(1, 1024)];
    let mut cluster = cluster(single(2), peers, &faults);
    assert_eq!(cluster.run_to_end(&Control::default()), End::AllDone);
    assert_eq!((cluster.node(1).received.len(), cluster.now()), (1024, at(5000)));
    assert_eq!(cluster.counters().drops[DropReason::HostPaused as usize], 2000 - 1024);
}

#[test]
fn a_link_that_is_down_is_not_sent_to_until_it_is_back() {
    let down = Fault {
        from: at(100),
        until: at(300),
        place: FaultPlace::HostLink(HostId(0)),
        kind: FaultKind::Down,
    };
    let mut cluster =
        cluster(single(2), vec![Peer::sends(0, HostId(1), 1000), Peer::takes(1, 990)], &[down]);
    assert_eq!(cluster.run_to_end(&Control::default()), End::AllDone);
    cluster.run_until(at(5000));
    let lost = cluster.counters().drops[DropReason::LinkDown as usize];
    assert!((1..=3).contains(&lost), "what was on the link: {lost}");
    assert!(cluster.node(0).polled.iter().all(|(time, _)| *time <= at(100) || *time >= at(300)));
    assert_eq!(cluster.node(1).received.len() as u64, 1000 - lost);
}

#[test]
fn damaged_packets_are_dropped_and_others_lost_doubled_and_late() {
    let kinds = [
        FaultKind::Loss(0.05),
        FaultKind::Corruption(0.05),
        FaultKind::Duplication(0.05),
        FaultKind::Reordering { probability: 0.05, delay: Span::from_us(50) },
    ];
    let faults = kinds.map(|kind| Fault {
        from: Time::ZERO,
        until: Time::MAX,
        place: FaultPlace::AllLinks,
        kind,
    });
    let mut cluster =
        cluster(single(2), vec![Peer::sends(0, HostId(1), 5000), Peer::takes(1, 5)], &faults);
    cluster.run_until(Time::ZERO + Span::from_ms(100));
    let net = *cluster.counters();
    let received = cluster.node(1).received.len() as u64;
    assert_eq!(received + net.dropped(), 5000 + net.duplicated);
    for reason in [DropReason::Corrupted, DropReason::FaultLoss] {
        // Two links, so about 490 are expected.
        assert!((350..650).contains(&net.drops[reason as usize]), "{net:?}");
    }
    assert!(net.reordered > 300 && net.duplicated > 300, "{net:?}");
    let order = &cluster.node(1).received;
    assert!(order.windows(2).any(|pair| pair[1].2 < pair[0].2));
}

/// Everything that the nodes have recorded, as text.
fn trace(seed: u64) -> String {
    let topology = Topology::LeafSpine {
        leaves: 2,
        hosts_per_leaf: 4,
        spines: 2,
        host_link: LINK,
        core_link: LINK,
    };
    let loss = Fault {
        from: Time::ZERO,
        until: Time::MAX,
        place: FaultPlace::AllLinks,
        kind: FaultKind::Loss(0.02),
    };
    let faults = [loss, host_fault(5, 300, at(500), FaultKind::Crash)];
    let peers = (0..8).map(|me| {
        let mut peer = Peer::sends(me, HostId((me + 3) % 8), 500);
        peer.answers = me % 2 == 0;
        Attached::at(HostId(me), peer)
    });
    let setup = setup(fabric(topology), peers.collect(), &faults, ForwardOnly::new());
    let mut cluster = World::new(Setup { seed, ..setup }).unwrap();
    let end = cluster.run_to_end(&Control::default());
    let nodes: Vec<_> = cluster.nodes().map(|peer| (&peer.received, &peer.polled)).collect();
    format!("{end:?} {nodes:?} {:?}", cluster.counters())
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let first = trace(1);
    assert_eq!(first, trace(1));
    assert_ne!(first, trace(2));
}

#[test]
fn nodes_in_impossible_places_are_errors() {
    let nodes = |hosts: Vec<HostId>| vec![Attached { node: Peer::new(0), hosts }];
    let error = |hosts, faults: &[Fault]| {
        try_cluster(single(2), nodes(hosts), faults).err().map(|error| error.to_string())
    };
    let message = error(vec![HostId(2)], &[]).unwrap();
    assert_eq!(message, "node 0 is attached to h2, but the fabric has 2 hosts");
    let message = error(vec![HostId(1), HostId(1)], &[]).unwrap();
    assert_eq!(message, "h1 has two nodes, or the same one twice");
    assert!(error(Vec::new(), &[]).unwrap().contains("has 0 ports"));
    let fault = host_fault(7, 1, at(2), FaultKind::Crash);
    assert!(error(vec![HostId(0)], &[fault]).unwrap().contains("does not exist"));
}
