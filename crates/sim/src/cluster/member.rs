//! What happens to one node: packets, timers, pauses and crashes.

use std::collections::VecDeque;

use rackweave_core::{DropReason, HostId, PacketRef, SwitchProgram, Time};

use super::{Attached, Cluster, ClusterNode};
use crate::config::FaultKind;

/// Packets that a paused host's receive ring holds, for each port: the usual default of a NIC.
const RECEIVE_RING: usize = 1024;

/// A node with what its host knows about it.
#[derive(Debug)]
pub(super) struct Member<N> {
    pub(super) node: N,
    hosts: Vec<HostId>,
    state: State,
    /// The earliest wake-up that is pending and counts.
    armed: Time,
    /// When its timer was due last.
    timed: Option<Time>,
    /// It was done when it was asked last.
    done: bool,
    /// Somebody outside may have changed it.
    pub(super) touched: bool,
}

#[derive(Debug)]
enum State {
    Up,
    /// Does nothing; what arrives waits here.
    Paused(VecDeque<(u8, PacketRef)>),
    /// Has lost everything.
    Down,
}

impl<N> Member<N> {
    pub(super) fn new(attached: Attached<N>) -> Self {
        let Attached { node, hosts } = attached;
        Self {
            node,
            hosts,
            state: State::Up,
            armed: Time::MAX,
            timed: None,
            done: false,
            touched: true,
        }
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }
}

impl<N: ClusterNode, P: SwitchProgram<Header = N::Header>> Cluster<N, P> {
    /// A packet has reached a host.
    #[inline]
    pub(super) fn receive(&mut self, host: HostId, packet: PacketRef) {
        let Some((number, port)) = self.places[host.0 as usize] else {
            self.swallowed += 1;
            return self.net.free(packet);
        };
        match &mut self.nodes[number as usize].state {
            State::Up => {
                self.hand_over(number, port, packet);
                self.settle(number);
            }
            State::Paused(ring) => {
                let waiting = ring.iter().filter(|(other, _)| *other == port).count();
                if waiting < RECEIVE_RING {
                    ring.push_back((port, packet));
                } else {
                    self.net.discard(packet, DropReason::HostPaused);
                }
            }
            State::Down => self.net.discard(packet, DropReason::HostDown),
        }
    }

    #[inline]
    fn hand_over(&mut self, number: u32, port: u8, packet: PacketRef) {
        self.delivered += 1;
        let node = &mut self.nodes[number as usize].node;
        node.handle_packet(self.net.now(), port, self.net.packet(packet));
        self.net.free(packet);
    }

    /// A wake-up of a node is due, if it still counts.
    pub(super) fn on_timer(&mut self, number: u32) {
        let now = self.net.now();
        let member = &mut self.nodes[number as usize];
        if member.armed != now || !member.is_up() {
            return;
        }
        member.armed = Time::MAX;
        member.timed = Some(now);
        if member.node.poll_timeout().is_some_and(|at| at <= now) {
            member.node.handle_timeout(now);
        }
        self.settle(number);
    }

    /// After something has happened to a node: packets for the links that are free, its timer, and whether it is done.
    #[inline]
    pub(super) fn settle(&mut self, number: u32) {
        let now = self.net.now();
        let member = &mut self.nodes[number as usize];
        if !member.is_up() {
            return;
        }
        // What one port sends may give another one something to do.
        loop {
            let mut sent = false;
            for (port, &host) in member.hosts.iter().enumerate() {
                if self.net.can_send(host)
                    && let Some(packet) = member.node.poll_transmit(now, port as u8)
                {
                    self.net.send(host, packet);
                    sent = true;
                }
            }
            if !sent || member.hosts.len() == 1 {
                break;
            }
        }
        // An earlier wake-up that is pending is enough: it will look again. Who still wants to be called at once after it
        // was has to wait until something happens, as its link becoming free: time would never go on.
        if let Some(at) = member.node.poll_timeout()
            && at < member.armed
            && (at > now || member.timed != Some(now))
        {
            let at = at.max(now);
            member.armed = at;
            self.net.wake_at(at, number);
        }
        self.note(number);
    }

    /// Notes whether a node is done.
    #[inline]
    fn note(&mut self, number: u32) {
        let member = &mut self.nodes[number as usize];
        let done = matches!(member.state, State::Down) || member.node.is_done();
        if done != member.done {
            member.done = done;
            if done {
                self.unfinished -= 1;
            } else {
                self.unfinished += 1;
            }
        }
    }

    /// Nodes that were changed from outside.
    pub(super) fn settle_touched(&mut self) {
        if self.touched.is_empty() {
            return;
        }
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        for number in touched.drain(..) {
            self.nodes[number as usize].touched = false;
            self.settle(number);
            self.note(number);
        }
        self.touched = touched;
    }

    /// Some fault has begun or ended: pauses, crashes and brings back nodes, and lets them use links that are up again.
    pub(super) fn on_faults(&mut self) {
        for number in 0..self.nodes.len() as u32 {
            let member = &self.nodes[number as usize];
            // Of its ports' hosts, the one that is worst off counts.
            let faults = || member.hosts.iter().filter_map(|host| self.net.host_fault(*host));
            let crashed = faults().any(|fault| fault == FaultKind::Crash);
            let paused = !crashed && faults().next().is_some();
            self.change(number, crashed, paused);
            self.settle(number);
        }
    }

    fn change(&mut self, number: u32, crashed: bool, paused: bool) {
        let now = self.net.now();
        let member = &mut self.nodes[number as usize];
        let was_down = matches!(member.state, State::Down);
        if crashed {
            if !was_down {
                let before = std::mem::replace(&mut member.state, State::Down);
                member.node.crash(now, true);
                if let State::Paused(ring) = before {
                    for (_, packet) in ring {
                        self.net.discard(packet, DropReason::HostDown);
                    }
                }
                self.note(number);
            }
            return;
        }
        if was_down {
            member.state = State::Up;
            member.armed = Time::MAX;
            member.node.crash(now, false);
            self.note(number);
        }
        let member = &mut self.nodes[number as usize];
        if paused {
            if member.is_up() {
                member.state = State::Paused(VecDeque::new());
            }
        } else if let State::Paused(ring) = std::mem::replace(&mut member.state, State::Up) {
            member.armed = Time::MAX;
            for (port, packet) in ring {
                self.hand_over(number, port, packet);
                self.settle(number);
            }
        }
    }
}
