//! What goes wrong: links that lose, damage, repeat and delay packets, links and hosts that fail.

use std::cmp::Ordering;

use rackweave_core::{DropReason, HostId, Packet, PacketRef, Span, Time, Transport};

use super::World;
use super::host::{HostState, Waiting};
use crate::config::{FaultKind, FaultPlace};

/// The faults that are on one link now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkFaults {
    loss: f64,
    corruption: f64,
    duplication: f64,
    reordering: f64,
    reorder_delay: Span,
    /// Packets that arrive until then were on the link when it went down.
    lost_until: Option<Time>,
}

/// A packet that arrives late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stray {
    at: Time,
    order: u64,
    packet: PacketRef,
    link: u32,
}

impl Ord for Stray {
    /// Earliest first in a max-heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
impl PartialOrd for Stray {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Transport> World<'_, T> {
    pub(super) fn start_faults(&mut self) {
        for fault in self.faults {
            self.events.push_timer(fault.from, self.components.fault);
            if fault.until < Time::MAX {
                self.events.push_timer(fault.until, self.components.fault);
            }
        }
    }

    /// Some fault begins or ends: works out anew what is wrong.
    pub(super) fn on_fault(&mut self) {
        let now = self.now;
        let n_links = self.links.len();
        let mut faults = vec![LinkFaults::default(); n_links];
        let mut down = vec![false; n_links];
        let mut host_down = vec![None; self.hosts.len()];
        for fault in self.faults.iter().filter(|fault| fault.from <= now && now < fault.until) {
            if let FaultPlace::Host(host) = fault.place {
                // Of a crash and a pause at once, the crash counts.
                let known = &mut host_down[host.0 as usize];
                if *known != Some(FaultKind::Crash) {
                    *known = Some(fault.kind);
                }
                continue;
            }
            for link in self.links_at(fault.place) {
                let link = link as usize;
                match fault.kind {
                    FaultKind::Loss(p) => either(&mut faults[link].loss, p),
                    FaultKind::Corruption(p) => either(&mut faults[link].corruption, p),
                    FaultKind::Duplication(p) => either(&mut faults[link].duplication, p),
                    FaultKind::Reordering { probability, delay } => {
                        either(&mut faults[link].reordering, probability);
                        let longest = faults[link].reorder_delay.max(delay);
                        faults[link].reorder_delay = longest;
                    }
                    FaultKind::Down => down[link] = true,
                    FaultKind::Pause | FaultKind::Crash => {}
                }
            }
        }
        for (link, fault) in faults.iter_mut().enumerate() {
            fault.lost_until = self.link_faults[link].lost_until.filter(|until| *until >= now);
        }
        self.link_faults = faults;
        let rerouted = self.take_links_down_and_up(&down);
        for link in 0..n_links {
            self.links[link].special =
                !self.link_faults[link].is_none() || self.captures(link as u32);
        }
        if rerouted {
            self.reroute();
        }
        for (host, fault) in host_down.into_iter().enumerate() {
            self.change_host(HostId(host as u32), fault);
        }
    }

    fn links_at(&self, place: FaultPlace) -> Vec<u32> {
        match place {
            FaultPlace::AllLinks => (0..self.links.len() as u32).collect(),
            FaultPlace::CoreLinks => {
                self.fabric.core_links().into_iter().flat_map(|(up, down)| [up, down]).collect()
            }
            FaultPlace::HostLink(host) => vec![host.0, self.fabric.downlink(host)],
            FaultPlace::CoreLink(cable) => {
                let (up, down) = self.fabric.core_links()[cable as usize];
                vec![up, down]
            }
            FaultPlace::Host(_) => Vec::new(),
        }
    }

    /// Applies which links are down; says whether any link between switches changed.
    fn take_links_down_and_up(&mut self, down: &[bool]) -> bool {
        let mut rerouted = false;
        for (number, &down) in down.iter().enumerate() {
            let link = number as u32;
            if self.links[number].down == down {
                continue;
            }
            let is_uplink = number < self.hosts.len();
            rerouted |= !is_uplink;
            if down {
                if is_uplink {
                    self.settle(link);
                } else {
                    self.catch_up(link, self.now);
                    self.drop_queue(link);
                }
                // What is on the way is lost; it is thrown away as it arrives.
                let last = self.links[number].in_flight.back();
                self.link_faults[number].lost_until = last.map(|packet| self.pool.at(packet));
                self.links[number].down = true;
            } else {
                self.links[number].down = false;
                if is_uplink && self.hosts[number].is_up() {
                    self.resume(link);
                }
            }
        }
        rerouted
    }

    /// Throws away all packets that wait for a link.
    fn drop_queue(&mut self, link: u32) {
        loop {
            let queue = &mut self.links[link as usize].queue;
            let before = queue.bytes();
            let Some(packet) = queue.dequeue(&mut self.pool) else { return };
            let after = queue.bytes();
            self.stats[link as usize].queue_changes(self.now, before, after);
            self.stats[link as usize].drops += 1;
            if self.shares_buffers {
                self.give_back(link, before - after);
            }
            self.discard(packet, DropReason::LinkDown);
        }
    }

    /// All switches learn at once which links between them work. (Ours: real fabrics take a while;
    /// what is lost in the meantime can be added as a loss.)
    fn reroute(&mut self) {
        let n_hosts = self.hosts.len();
        if self.links[n_hosts..].iter().all(|link| !link.down) {
            for switch in &mut self.switches {
                switch.forwarder.clear_detours();
            }
            return;
        }
        let (hosts_per_group, tables) = self.fabric.detours(|link| !self.links[link as usize].down);
        for (switch, table) in self.switches.iter_mut().zip(tables) {
            switch.forwarder.detour(hosts_per_group, table);
        }
    }

    /// Pauses, crashes or brings back a host.
    fn change_host(&mut self, host: HostId, fault: Option<FaultKind>) {
        let number = host.0;
        let state = &mut self.hosts[number as usize].state;
        match (fault, &mut *state) {
            (Some(FaultKind::Pause), HostState::Up) => {
                self.settle(number);
                self.hosts[number as usize].state = HostState::Paused(Waiting::new());
            }
            (Some(FaultKind::Crash), HostState::Up | HostState::Paused(_)) => {
                self.settle(number);
                let host_state = &mut self.hosts[number as usize];
                host_state.crashes += 1;
                let before = std::mem::replace(&mut host_state.state, HostState::Down(Vec::new()));
                if let HostState::Paused(waiting) = before {
                    let lost = waiting.packets.len() as u64;
                    self.counters.drops[DropReason::HostDown as usize] += lost;
                }
                self.fail_messages_of(host);
                self.forget_arriving(host);
                self.crash_threads(host);
                self.crash_channels(host);
                self.do_todo();
            }
            (None, HostState::Paused(waiting)) => {
                let waiting = std::mem::replace(waiting, Waiting::new());
                *state = HostState::Up;
                self.resume(number);
                for packet in waiting.packets {
                    self.handle_packet(number, &packet);
                }
                for (instance, message) in waiting.messages {
                    self.submit(host, instance, message);
                }
                self.resume_threads(host);
            }
            (None | Some(FaultKind::Pause), HostState::Down(starts)) => {
                let starts = std::mem::take(starts);
                let transports = (self.factory.0)(host);
                self.hosts[number as usize].restart(transports);
                if fault.is_some() {
                    self.hosts[number as usize].state = HostState::Paused(Waiting::new());
                } else {
                    self.resume(number);
                }
                for (stream, arrival) in starts {
                    self.start_next(stream, host, arrival);
                }
            }
            _ => {}
        }
    }

    /// Whether a packet that arrives over a link with faults goes on. If not, it is dealt with.
    #[cold]
    pub(super) fn survives(&mut self, link: u32, packet: PacketRef) -> bool {
        let Some(faults) = self.link_faults.get(link as usize).copied() else { return true };
        if faults.is_none() {
            return true;
        }
        let lost_with_link = faults.lost_until.is_some_and(|until| self.pool.at(packet) <= until);
        let rng = &mut self.fault_rng;
        let reason = if lost_with_link {
            Some(DropReason::LinkDown)
        } else if rng.chance(faults.loss) {
            Some(DropReason::FaultLoss)
        } else if rng.chance(faults.corruption) {
            Some(DropReason::Corrupted)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.stats[link as usize].drops += 1;
            self.discard(packet, reason);
            return false;
        }
        if self.fault_rng.chance(faults.duplication) {
            let copy: Packet<T::Header> = *self.pool.get(packet);
            let copy = self.pool.insert(copy);
            self.delay(link, copy, Span::ZERO);
        }
        if self.fault_rng.chance(faults.reordering) {
            let late = Span(1 + self.fault_rng.below(faults.reorder_delay.0.max(1)));
            self.delay(link, packet, late);
            return false;
        }
        true
    }

    fn delay(&mut self, link: u32, packet: PacketRef, late: Span) {
        let at = self.now + late;
        let order = self.tally.next_order();
        self.strays.push(Stray { at, order, packet, link });
        self.events.push_timer(at, self.components.stray);
    }

    /// Late packets, and copies, arrive.
    pub(super) fn on_stray(&mut self) {
        while self.strays.peek().is_some_and(|stray| stray.at <= self.now) {
            let Some(stray) = self.strays.pop() else { return };
            let to = self.links[stray.link as usize].to;
            self.hand_over(to, stray.packet);
        }
    }
}

/// Adds an independent cause with this probability.
fn either(known: &mut f64, p: f64) {
    *known = 1.0 - (1.0 - *known) * (1.0 - p);
}

impl LinkFaults {
    fn is_none(&self) -> bool {
        self.loss == 0.0
            && self.corruption == 0.0
            && self.duplication == 0.0
            && self.reordering == 0.0
            && self.lost_until.is_none()
    }
}
