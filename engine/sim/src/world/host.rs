//! Hosts: their transports and nodes, which the network polls for packets.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};

use rackweave_core::{
    DropReason, HostId, Node as _, Packet, PacketRef, PayloadStore, Placement, Span, Time,
    Transport, prefetch,
};
use rackweave_switch::Edge;

use super::World;
use super::nodes::{Attached, Nodes};
use super::processors::Outbox;
use crate::host::{HostConfig, Sending};
use crate::model::{GroupNode, Model};

/// Number of packets that a host's receive ring holds, which is the usual default of a NIC.
pub(super) const RECEIVE_RING: usize = 1024;

/// The hosts of a run.
pub(super) struct Hosts<M: Model> {
    pub(super) all: Vec<Host<M>>,
    pub(super) nodes: Nodes<M::Group>,
    pub(super) sending: Sending,
    /// For each host, the packets between its machines and its NIC; `None` if the NIC polls the machines.
    pub(super) outbox: Option<Box<[Outbox<M::Header>]>>,
    /// How late timers expire.
    timer_grain: Span,
}

/// A host of the fabric: its transports and at most one node of a group system. It begins at a cache line, and its transport
/// after the 32 bytes of the other fields, so that a transport knows which of its own fields share lines.
#[repr(C, align(64))]
pub(super) struct Host<M: Model> {
    pub(super) state: HostState<M::Header>,
    node: Option<(u32, u8)>,
    /// The transport or node that is polled first for the next packet.
    next_polled: u8,
    pub(super) transports: Transports<M::Transport>,
}

/// The transports of a host. Nearly all hosts have one, which is stored in the host itself: in a large fabric a pointer to
/// it would be one more cache miss.
#[derive(Debug)]
pub(super) enum Transports<T> {
    One(T),
    Others(Vec<T>),
}

impl<T> From<Vec<T>> for Transports<T> {
    fn from(mut all: Vec<T>) -> Self {
        match (all.pop(), all.is_empty()) {
            (Some(only), true) => Self::One(only),
            (Some(last), false) => {
                all.push(last);
                Self::Others(all)
            }
            (None, _) => Self::Others(all),
        }
    }
}

impl<T> Deref for Transports<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::One(only) => std::slice::from_ref(only),
            Self::Others(all) => all,
        }
    }
}

impl<T> DerefMut for Transports<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(only) => std::slice::from_mut(only),
            Self::Others(all) => all,
        }
    }
}

/// Whether a host is running.
#[derive(Debug)]
pub(super) enum HostState<H> {
    Up,
    /// Paused: packets that arrive wait in its NIC's receive ring.
    #[expect(
        clippy::box_collection,
        reason = "few hosts are ever paused, and those that run keep to few cache lines"
    )]
    Paused(Box<VecDeque<Packet<H>>>),
    /// Crashed: its state is lost.
    Down,
}

impl<M: Model> Host<M> {
    #[inline]
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, HostState::Up)
    }

    /// The group system's node at this host, and the node's port.
    #[inline]
    pub(super) const fn node(&self) -> Option<(u32, u8)> {
        if M::Group::EXISTS { self.node } else { None }
    }
}

impl<M: Model> Hosts<M> {
    pub(super) fn new(
        hosts: u32,
        transports: &mut impl FnMut(HostId) -> Vec<M::Transport>,
        nodes: Vec<Attached<M::Group>>,
        config: Option<&HostConfig>,
    ) -> Self {
        const { assert!(size_of::<usize>() != 8 || offset_of!(Host<M>, transports) == 32) };
        let host = |number| Host {
            transports: transports(HostId(number)).into(),
            node: None,
            next_polled: 0,
            state: HostState::Up,
        };
        let mut all: Vec<Host<M>> = (0..hosts).map(host).collect();
        for (number, node) in nodes.iter().enumerate() {
            for (port, host) in node.hosts.iter().enumerate() {
                all[host.0 as usize].node = Some((number as u32, port as u8));
            }
        }
        let sending = config.map_or(Sending::Polled, HostConfig::sending);
        Self {
            all,
            nodes: Nodes::new(nodes),
            sending,
            outbox: (sending != Sending::Polled)
                .then(|| (0..hosts).map(|_| Outbox::default()).collect()),
            timer_grain: config.map_or(Span::ZERO, |config| config.timer_grain),
        }
    }

    /// The number of ports of a host's node, which may be at several hosts of the fabric.
    pub(super) fn ports(&self, host: HostId) -> usize {
        match self.all[host.0 as usize].node() {
            Some((node, _)) => self.nodes.hosts(node).len(),
            None => 1,
        }
    }

    /// The host at a port of this host's node.
    pub(super) fn at_port(&self, host: HostId, port: usize) -> HostId {
        match self.all[host.0 as usize].node() {
            Some((node, _)) => self.nodes.hosts(node)[port],
            None => host,
        }
    }

    /// Polls a host's transports and its node for a packet.
    #[inline]
    pub(super) fn poll_machines<B: PayloadStore<M::Header>>(
        &mut self,
        host: HostId,
        at: Time,
        payloads: &mut B,
    ) -> Option<Packet<M::Header>> {
        let state = &mut self.all[host.0 as usize];
        if !state.is_up() {
            return None;
        }
        let node = state.node();
        match (&mut state.transports, node) {
            (Transports::One(only), None) => only.poll_transmit(at, 0),
            (Transports::Others(none), Some((node, port))) if none.is_empty() => {
                self.nodes.poll_transmit(node, at, port, payloads)
            }
            _ => self.next_round_robin(host, at, payloads),
        }
    }

    /// The next packet of a host with several transports or a node, which are polled in round-robin order.
    fn next_round_robin<B: PayloadStore<M::Header>>(
        &mut self,
        host: HostId,
        at: Time,
        payloads: &mut B,
    ) -> Option<Packet<M::Header>> {
        let state = &mut self.all[host.0 as usize];
        let transports = state.transports.len();
        let n = transports + usize::from(state.node().is_some());
        for _ in 0..n {
            let turn = usize::from(state.next_polled);
            state.next_polled = ((turn + 1) % n) as u8;
            let node = state.node();
            let packet = match (state.transports.get_mut(turn), node) {
                (Some(transport), _) => transport.poll_transmit(at, 0),
                (None, Some((node, port))) => self.nodes.poll_transmit(node, at, port, payloads),
                (None, None) => None,
            };
            if let Some(packet) = packet {
                return Some(packet.with_instance(turn as u8));
            }
        }
        None
    }
}

/// The earliest timeout of several transports.
#[inline(never)]
fn first_timeout(transports: &[impl Transport]) -> Time {
    transports.iter().filter_map(|it| it.poll_timeout()).min().unwrap_or(Time::MAX)
}

impl<M: Model> Edge<M::Header> for Hosts<M> {
    #[inline]
    fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<M::Header>> {
        self.poll_with_payload(host, at, &mut ())
    }

    #[inline]
    fn poll_with_payload<B: PayloadStore<M::Header>>(
        &mut self,
        host: HostId,
        at: Time,
        payloads: &mut B,
    ) -> Option<Packet<M::Header>> {
        match &mut self.outbox {
            Some(_) if !self.all[host.0 as usize].is_up() => None,
            Some(outbox) => outbox[host.0 as usize].ready.pop_front(),
            None => self.poll_machines(host, at, payloads),
        }
    }

    #[inline]
    fn prefetch(&self, host: HostId) {
        prefetch(&self.all[host.0 as usize]);
    }

    #[inline]
    fn prefetch_node(&self, host: HostId) {
        for transport in self.all[host.0 as usize].transports.iter() {
            transport.prefetch();
        }
    }

    #[inline]
    fn prefetch_transmit(&self, host: HostId) {
        for transport in self.all[host.0 as usize].transports.iter() {
            transport.prefetch_transmit();
        }
    }

    #[inline]
    fn prefetch_for(&self, host: HostId, packet: &Packet<M::Header>) {
        let state = &self.all[host.0 as usize];
        if let Some(transport) = state.transports.get(usize::from(packet.instance())) {
            transport.prefetch_for(packet);
        }
    }

    #[inline]
    fn poll_timeout(&self, host: HostId) -> Time {
        let state = &self.all[host.0 as usize];
        if !state.is_up() {
            return Time::MAX;
        }
        let first = match &state.transports {
            Transports::One(only) => only.poll_timeout().unwrap_or(Time::MAX),
            Transports::Others(several) => first_timeout(several),
        };
        match state.node() {
            // A node with several ports has one timer, which is that of its first port.
            Some((node, 0)) => first.min(self.nodes.poll_timeout(node)),
            _ => first,
        }
        .saturating_add(self.timer_grain)
    }
}

impl<M: Model> World<'_, M> {
    /// Handles the arrival of a packet at a host.
    #[inline]
    pub(super) fn receive(&mut self, host: HostId, packet: PacketRef) {
        let state = &mut self.hosts.all[host.0 as usize];
        match &mut state.state {
            HostState::Up if M::Group::EXISTS && state.transports.is_empty() => {
                self.node_receives(host, packet)
            }
            HostState::Up => {
                let packet = self.net.take(packet);
                self.handle_packet(host, &packet);
            }
            HostState::Paused(ring) if ring.len() < RECEIVE_RING => {
                ring.push_back(self.net.take(packet));
            }
            HostState::Paused(_) => self.net.discard(packet, DropReason::HostPaused),
            HostState::Down => self.net.discard(packet, DropReason::HostDown),
        }
    }

    /// Handles the arrival of one of several packets. [`World::flush`] must come before the first and [`World::changed`] after the last.
    pub(super) fn hand_over(&mut self, host: HostId, packet: PacketRef) {
        if !self.hosts.all[host.0 as usize].is_up() {
            return self.receive(host, packet);
        }
        let packet = self.net.take(packet);
        self.pass_to_machine(host, &packet);
    }

    #[inline]
    pub(super) fn handle_packet(&mut self, host: HostId, packet: &Packet<M::Header>) {
        self.flush(host);
        if self.pass_to_machine(host, packet) {
            self.changed(host);
        }
    }

    /// Passes a packet to its transport or node; returns whether there is one.
    #[inline]
    fn pass_to_machine(&mut self, host: HostId, packet: &Packet<M::Header>) -> bool {
        let now = self.net.now();
        let instance = usize::from(packet.instance());
        let state = &mut self.hosts.all[host.0 as usize];
        let transport = match &mut state.transports {
            Transports::One(only) => (instance == 0).then_some(only),
            Transports::Others(several) => several.get_mut(instance),
        };
        if let Some(transport) = transport {
            let placement = transport.handle_packet(now, 0, packet);
            if let Placement::Store(slice) = placement {
                self.store(instance as u8, packet.src, host, slice);
            }
        } else if !self.node_handles(host, packet) {
            self.net.payloads().release(packet);
            self.net.count_drops(DropReason::WrongProtocol, 1);
            return false;
        }
        self.net.payloads().release(packet);
        true
    }

    /// Handles a host's timer.
    pub(super) fn on_timer(&mut self, host: HostId) {
        let state = &self.hosts.all[host.0 as usize];
        if !state.is_up() {
            return;
        }
        let node = state.node();
        self.flush(host);
        let now = self.net.now();
        for transport in self.hosts.all[host.0 as usize].transports.iter_mut() {
            if transport.poll_timeout().is_some_and(|at| at <= now) {
                transport.handle_timeout(now);
            }
        }
        if let Some((node, 0)) = node {
            self.hosts.nodes.handle_timeout(node, now);
            self.start_transfers(node);
        }
        self.on_time(true);
        self.changed(host);
        self.on_time(false);
    }

    /// Must be called before a host's state changes: its NIC sends the packets that were due until now.
    #[inline]
    pub(super) fn flush(&mut self, host: HostId) {
        self.net.flush(&mut self.hosts, host);
    }

    /// Must be called after a host's state has changed: handles its events, packets and timer, then deferred
    /// actions at other hosts.
    #[inline]
    pub(super) fn changed(&mut self, host: HostId) {
        self.drain_events(host);
        self.wake_nic(host);
        self.request_to_send(host);
        if self.has_deferred() {
            self.run_deferred();
        }
    }

    /// As [`World::changed`], for a host whose state has only changed by being polled for packets.
    pub(super) fn after_poll(&mut self, host: HostId) {
        self.drain_events(host);
        self.wake_nic(host);
        if self.has_deferred() {
            self.run_deferred();
        }
    }

    /// Wakes a host's NIC.
    #[inline]
    pub(super) fn wake_nic(&mut self, host: HostId) {
        self.fill_nic(host);
        self.net.wake(&mut self.hosts, host);
    }

    /// Passes to the NIC what the machines permit now, if they do not wait for a processor or the link.
    #[inline]
    fn fill_nic(&mut self, host: HostId) {
        if self.hosts.sending == Sending::AtOnce {
            self.queue_at_nic(host);
        }
    }

    /// Passes to the NIC what the machines permit now. A window bounds each connection's part of the queue. Ports of a node take turns.
    #[inline(never)]
    fn queue_at_nic(&mut self, host: HostId) {
        let now = self.net.now();
        let ports = self.hosts.ports(host);
        let mut is_empty = false;
        while !is_empty {
            is_empty = true;
            for port in 0..ports {
                let host = self.hosts.at_port(host, port);
                let packet = self.hosts.poll_machines(host, now, self.net.payloads());
                if let (Some(packet), Some(outbox)) = (packet, &mut self.hosts.outbox) {
                    outbox[host.0 as usize].ready.push_back(packet);
                    is_empty = false;
                }
            }
        }
        self.drain_events(host);
    }

    #[inline]
    fn drain_events(&mut self, host: HostId) {
        let mut index = 0;
        loop {
            let (event, is_only) = match &mut self.hosts.all[host.0 as usize].transports {
                Transports::One(only) => (only.poll_event(), true),
                Transports::Others(several) => match several.get_mut(index) {
                    Some(transport) => (transport.poll_event(), false),
                    None => return,
                },
            };
            match event {
                Some(event) => self.on_event(host, index as u8, event),
                None if is_only => return,
                None => index += 1,
            }
        }
    }

    /// Resumes a host after a pause or a crash.
    pub(super) fn resume(&mut self, host: HostId) {
        self.drain_events(host);
        self.fill_nic(host);
        self.net.resume(&mut self.hosts, host);
        self.request_to_send(host);
        if self.has_deferred() {
            self.run_deferred();
        }
    }
}
