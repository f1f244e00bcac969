//! Nodes of group systems in a run.

use rackweave_core::{DropReason, Header, HostId, Packet, PacketRef, PayloadStore, Time};

use super::World;
use crate::build::BuildError;
use crate::model::{GroupNode, Model};

/// Most ports of a node: they are numbered by a byte.
const MAX_PORTS: usize = 256;

/// A node and the hosts of the fabric at which it is attached.
#[derive(Clone, Debug)]
pub struct Attached<N> {
    /// The state machine of the node.
    pub node: N,
    /// The host of the fabric for each of its ports. Most nodes have one port; a sender with two uplinks has
    /// two.
    pub hosts: Vec<HostId>,
}

impl<N> Attached<N> {
    /// A node with one port.
    #[must_use]
    pub fn at(host: HostId, node: N) -> Self {
        Self { node, hosts: vec![host] }
    }
}

/// Checks the hosts at which nodes are attached.
pub(super) fn check<N>(nodes: &[Attached<N>], hosts: u32) -> Result<(), BuildError> {
    let mut taken = vec![false; hosts as usize];
    for (node, attached) in nodes.iter().enumerate() {
        let ports = attached.hosts.len();
        if !(1..=MAX_PORTS).contains(&ports) {
            return Err(BuildError::Ports { node, ports });
        }
        for &host in &attached.hosts {
            let Some(taken) = taken.get_mut(host.0 as usize) else {
                return Err(BuildError::NoSuchHost { node, host, hosts });
            };
            if std::mem::replace(taken, true) {
                return Err(BuildError::HostTaken { host });
            }
        }
    }
    Ok(())
}

/// The nodes of a run.
pub(super) struct Nodes<G> {
    all: Vec<Entry<G>>,
    /// Number of nodes that are not done.
    pub(super) unfinished: usize,
    /// Nodes that the caller has changed.
    touched: Vec<u32>,
    /// Whether the last node may have become done since that was last checked.
    pub(super) may_be_done: bool,
}

struct Entry<G> {
    node: G,
    hosts: Vec<HostId>,
    /// When its timer last expired; `None` if a packet or event has followed.
    timed: Option<Time>,
    done: bool,
    down: bool,
    touched: bool,
    delivered: u64,
}

impl<G: GroupNode> Nodes<G> {
    pub(super) fn new(nodes: Vec<Attached<G>>) -> Self {
        let entry = |Attached { node, hosts }| Entry {
            node,
            hosts,
            timed: None,
            done: false,
            down: false,
            touched: true,
            delivered: 0,
        };
        let all: Vec<_> = nodes.into_iter().map(entry).collect();
        let touched = (0..all.len() as u32).collect();
        Self { unfinished: all.len(), all, touched, may_be_done: false }
    }

    #[inline]
    pub(super) fn poll_transmit<B: PayloadStore<G::Header>>(
        &mut self,
        node: u32,
        at: Time,
        port: u8,
        payloads: &mut B,
    ) -> Option<Packet<G::Header>> {
        let entry = &mut self.all[node as usize];
        if entry.timed.is_some_and(|timed| timed < at) {
            entry.timed = None;
        }
        let mut packet = entry.node.poll_transmit(at, port)?;
        if B::CARRIES_BYTES
            && let bytes = entry.node.payload()
            && !bytes.is_empty()
            && let Some(header) = payloads.make(packet.header, bytes.len())
        {
            packet.header = header;
            payloads.write(&packet).copy_from_slice(bytes);
        }
        self.note(node);
        Some(packet)
    }

    /// When a node's timer expires. A node that requests the time at which it was last called waits for the
    /// next packet or event, so that time advances.
    #[inline]
    pub(super) fn poll_timeout(&self, node: u32) -> Time {
        let entry = &self.all[node as usize];
        match (entry.node.poll_timeout(), entry.timed) {
            (Some(at), Some(timed)) if at <= timed => Time::MAX,
            (at, _) => at.unwrap_or(Time::MAX),
        }
    }

    pub(super) fn handle_timeout(&mut self, node: u32, now: Time) {
        let entry = &mut self.all[node as usize];
        if entry.node.poll_timeout().is_some_and(|at| at <= now) {
            entry.timed = Some(now);
            entry.node.handle_timeout(now);
            self.note(node);
        }
    }

    #[inline]
    fn handle_packet(
        &mut self,
        node: u32,
        now: Time,
        port: u8,
        packet: &Packet<G::Header>,
        payload: &[u8],
    ) {
        let entry = &mut self.all[node as usize];
        if entry.timed.is_some_and(|timed| timed < now) {
            entry.timed = None;
        }
        entry.delivered += 1;
        entry.node.handle_payload(now, port, packet, payload);
        self.note(node);
    }

    /// The state machine of a node, which is about to handle something other than a packet.
    pub(super) fn node_at(&mut self, node: u32, now: Time) -> &mut G {
        let entry = &mut self.all[node as usize];
        if entry.timed.is_some_and(|timed| timed < now) {
            entry.timed = None;
        }
        &mut entry.node
    }

    pub(super) fn node(&mut self, node: u32) -> &mut G {
        &mut self.all[node as usize].node
    }

    pub(super) fn crash(&mut self, node: u32, now: Time, down: bool) {
        let entry = &mut self.all[node as usize];
        if entry.down != down {
            entry.down = down;
            entry.timed = None;
            entry.node.crash(now, down);
            self.note(node);
        }
    }

    /// Updates whether a node is done. Called after it has handled something.
    #[inline]
    pub(super) fn note(&mut self, node: u32) {
        let entry = &mut self.all[node as usize];
        let done = entry.down || entry.node.is_done();
        if done != entry.done {
            entry.done = done;
            if done {
                self.unfinished -= 1;
                self.may_be_done |= self.unfinished == 0;
            } else {
                self.unfinished += 1;
            }
        }
    }

    /// The hosts of each node that is not done.
    pub(super) fn unfinished_at(&self) -> impl Iterator<Item = &[HostId]> {
        self.all.iter().filter(|entry| !entry.done).map(|entry| &*entry.hosts)
    }

    pub(super) fn hosts(&self, node: u32) -> &[HostId] {
        &self.all[node as usize].hosts
    }
}

/// Whether a packet is for the node of a host with this number of transports: another node or a program of a switch has sent it.
#[inline]
fn is_for_node<H: Header>(packet: &Packet<H>, transports: usize) -> bool {
    let instance = packet.instance();
    usize::from(instance) == transports || instance == Packet::<H>::NODE_INSTANCE
}

impl<M: Model> World<'_, M> {
    /// Handles the arrival of a packet at a host without transports. The packet is read in the pool, because
    /// headers of group systems are large.
    #[inline]
    pub(super) fn node_receives(&mut self, host: HostId, packet: PacketRef) {
        self.flush(host);
        let now = self.net.now();
        let arrived = self.net.packet(packet);
        match self.hosts.all[host.0 as usize].node() {
            Some((node, port)) if is_for_node(arrived, 0) => {
                let payload = self.net.payload(packet);
                self.hosts.nodes.handle_packet(node, now, port, arrived, payload);
                self.net.free(packet);
                // A node has no events, so nothing else follows but its transfers.
                self.wake_nic(host);
                self.request_to_send(host);
                self.start_transfers(node);
            }
            _ => self.net.discard(packet, DropReason::WrongProtocol),
        }
    }

    /// Passes a packet to the node at a host; returns whether there is one to which the packet belongs.
    #[inline]
    pub(super) fn node_handles(&mut self, host: HostId, packet: &Packet<M::Header>) -> bool {
        let now = self.net.now();
        let state = &self.hosts.all[host.0 as usize];
        let Some((node, port)) = state.node() else { return false };
        if !is_for_node(packet, state.transports.len()) {
            return false;
        }
        let payload = PayloadStore::read(self.net.payloads(), packet);
        self.hosts.nodes.handle_packet(node, now, port, packet, payload);
        self.start_transfers(node);
        true
    }

    /// A node, by its number in [`super::Setup::nodes`].
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn node(&self, node: usize) -> &M::Group {
        &self.hosts.nodes.all[node].node
    }

    /// Mutable access to a node. It is polled for packets and its timer before the time advances.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn node_mut(&mut self, node: usize) -> &mut M::Group {
        let host = self.hosts.nodes.all[node].hosts[0];
        self.flush(host);
        let nodes = &mut self.hosts.nodes;
        let entry = &mut nodes.all[node];
        if !entry.touched {
            entry.touched = true;
            nodes.touched.push(node as u32);
        }
        &mut entry.node
    }

    /// All nodes, by their number.
    pub fn nodes(&self) -> impl Iterator<Item = &M::Group> {
        self.hosts.nodes.all.iter().map(|entry| &entry.node)
    }

    /// Whether a node's host is running, neither crashed nor paused.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn is_up(&self, node: usize) -> bool {
        let host = self.hosts.nodes.all[node].hosts[0];
        self.hosts.all[host.0 as usize].is_up()
    }

    /// Number of packets that nodes have received.
    #[must_use]
    pub fn delivered_to_nodes(&self) -> u64 {
        self.hosts.nodes.all.iter().map(|entry| entry.delivered).sum()
    }

    /// Wakes nodes that the caller has changed.
    pub(super) fn wake_touched(&mut self) {
        let mut touched = std::mem::take(&mut self.hosts.nodes.touched);
        touched.sort_unstable();
        for &node in &touched {
            let entry = &mut self.hosts.nodes.all[node as usize];
            entry.touched = false;
            let host = entry.hosts[0];
            self.changed(host);
            self.hosts.nodes.note(node);
            self.start_transfers(node);
        }
        touched.clear();
        self.hosts.nodes.touched = touched;
    }

    /// When the next event is due; `None` if no event is pending.
    pub fn next_due(&mut self) -> Option<Time> {
        self.wake_touched();
        self.net.next_due()
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// The program of a switch.
    ///
    /// # Panics
    /// If there is no such switch.
    #[must_use]
    pub fn program(&self, switch: u32) -> &M::Program {
        self.net.program(switch)
    }
}
