//! Injected faults: links that lose, damage, duplicate and delay packets, and links that fail. Faults of hosts are
//! reported to the owner of the hosts.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use rackweave_core::{DropReason, HostId, PacketRef, PayloadStore, Rng, Span, SwitchProgram, Time};

use super::nic::Edge;
use super::{DOWN, FAULTY, Net};
use crate::config::{Fault, FaultKind, FaultPlace};

/// The current faults of one link.
#[derive(Clone, Copy, Debug, Default)]
struct LinkFaults {
    loss: f64,
    corruption: f64,
    duplication: f64,
    reordering: f64,
    reorder_delay: Span,
    /// Packets that arrive by this time were on the link when it went down, for this reason.
    lost_until: Option<(Time, DropReason)>,
}

/// The random draws of a link for its faults. They depend only on the link's own packets.
#[derive(Clone, Debug)]
struct Draws {
    rng: Rng,
    /// Number of packets that the link has delayed.
    delayed: u64,
}

/// The faults of a network.
#[derive(Debug)]
pub(super) struct Faults {
    list: Vec<Fault>,
    /// Empty in networks whose links cannot fail.
    on_links: Vec<LinkFaults>,
    /// The links that are down because of a fault.
    pub(super) down: Vec<bool>,
    draws: Vec<Draws>,
    /// Hosts that are down or paused.
    hosts: BTreeMap<u32, FaultKind>,
}

/// A packet that arrives late. Packets of the same time are ordered by link, then by the link's own sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delayed {
    at: Time,
    link: u32,
    order: u64,
    packet: PacketRef,
}

impl Ord for Delayed {
    /// Reversed, so that the earliest is first in a max-heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.link, other.order).cmp(&(self.at, self.link, self.order))
    }
}
impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Faults {
    /// With an optical circuit switch (`has_ocs`) links can fail without faults.
    pub(super) fn new(
        list: Vec<Fault>,
        links: usize,
        has_ocs: bool,
        (seed, run): (u64, u64),
    ) -> Self {
        let links = if list.is_empty() && !has_ocs { 0 } else { links };
        let draws = |link| Draws { rng: Rng::stream(seed, run, link as u64, "faults"), delayed: 0 };
        Self {
            list,
            on_links: vec![LinkFaults::default(); links],
            down: vec![false; links],
            draws: (0..links).map(draws).collect(),
            hosts: BTreeMap::new(),
        }
    }
}

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    pub(super) fn start_faults(&mut self) {
        for fault in &self.faults.list {
            self.events.push_timer(fault.from, self.components.fault);
            if fault.until < Time::MAX {
                self.events.push_timer(fault.until, self.components.fault);
            }
        }
    }

    /// All faults of the run.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults.list
    }

    /// The current fault of a host: [`FaultKind::Pause`], [`FaultKind::Crash`] or none. The network itself does
    /// not act on it.
    #[must_use]
    pub fn host_fault(&self, host: HostId) -> Option<FaultKind> {
        self.faults.hosts.get(&host.0).copied()
    }

    /// Recomputes the state of each link and host after a fault has started or ended.
    pub(super) fn on_fault<E: Edge<P::Header>>(&mut self, edge: &mut E) {
        let now = self.now;
        let mut faults = vec![LinkFaults::default(); self.links.len()];
        let mut down = vec![false; self.links.len()];
        let mut hosts = BTreeMap::new();
        for fault in self.faults.list.iter().filter(|fault| fault.from <= now && now < fault.until)
        {
            if let FaultPlace::Host(host) = fault.place {
                // A crash takes precedence over a pause.
                let known = hosts.entry(host.0).or_insert(fault.kind);
                if fault.kind == FaultKind::Crash {
                    *known = fault.kind;
                }
            }
            for link in self.links_at(fault.place) {
                let on_link = &mut faults[link as usize];
                match fault.kind {
                    FaultKind::Loss(p) => either(&mut on_link.loss, p),
                    FaultKind::Corruption(p) => either(&mut on_link.corruption, p),
                    FaultKind::Duplication(p) => either(&mut on_link.duplication, p),
                    FaultKind::Reordering { probability, delay } => {
                        either(&mut on_link.reordering, probability);
                        on_link.reorder_delay = on_link.reorder_delay.max(delay);
                    }
                    FaultKind::Down => down[link as usize] = true,
                    FaultKind::Pause | FaultKind::Crash => {}
                }
            }
        }
        for (fault, before) in faults.iter_mut().zip(&self.faults.on_links) {
            fault.lost_until = before.lost_until;
        }
        self.faults.on_links = faults;
        self.faults.hosts = hosts;
        self.faults.down = down;
        let rerouted = self.take_links_down_and_up(edge, DropReason::LinkDown);
        self.mark_faulty_links();
        if rerouted {
            self.reroute();
        }
    }

    /// Updates which links have to consult their faults when a packet arrives.
    pub(super) fn mark_faulty_links(&mut self) {
        let now = self.now;
        for (link, fault) in self.links.iter_mut().zip(&mut self.faults.on_links) {
            fault.lost_until = fault.lost_until.filter(|(until, _)| *until >= now);
            link.special = link.special & !FAULTY | if fault.is_none() { 0 } else { FAULTY };
        }
    }

    /// Whether there may be faults.
    pub(super) const fn has_faults(&self) -> bool {
        !self.faults.list.is_empty()
    }

    fn links_at(&self, place: FaultPlace) -> Vec<u32> {
        match place {
            FaultPlace::AllLinks => (0..self.links.len() as u32).collect(),
            FaultPlace::CoreLinks => {
                self.fabric.core_links().into_iter().flat_map(|(up, down)| [up, down]).collect()
            }
            FaultPlace::HostLink(host) => vec![host.0, self.fabric.downlink(host)],
            FaultPlace::CoreLink(cable) => {
                // The circuits between ToRs, which are numbered after the uplinks, can become fewer.
                let cables = self.fabric.core_links();
                cables.get(cable as usize).map_or(Vec::new(), |(up, down)| vec![*up, *down])
            }
            FaultPlace::Host(_) => Vec::new(),
        }
    }

    /// Takes links down or up, as faults and circuits demand. Returns whether the port of any switch has changed.
    /// Packets on links that go down, and packets that wait for such a link, are lost for this reason.
    pub(super) fn take_links_down_and_up<E: Edge<P::Header>>(
        &mut self,
        edge: &mut E,
        reason: DropReason,
    ) -> bool {
        let mut rerouted = false;
        for number in 0..self.links.len() {
            let down = self.faults.down[number] || self.has_no_light(number as u32);
            if self.links[number].is_down() == down {
                continue;
            }
            let is_uplink = number < self.fabric.hosts() as usize;
            rerouted |= !is_uplink;
            if down {
                if is_uplink {
                    self.flush(edge, HostId(number as u32));
                } else {
                    self.catch_up(number as u32, self.now);
                    self.drop_queue(number as u32, reason);
                }
                // Packets on the link are lost; they are dropped when they arrive.
                let last = self.links[number].in_flight.back();
                self.faults.on_links[number].lost_until =
                    last.map(|packet| (self.pool.time(packet), reason));
                self.links[number].gate |= DOWN;
                self.forget_pauses(number as u32);
            } else {
                self.links[number].gate &= !DOWN;
                if is_uplink {
                    self.resume(edge, HostId(number as u32));
                }
            }
        }
        rerouted
    }

    /// Updates all switches at once with the working links. (Our choice, since no paper models it: real fabrics
    /// take some time to converge, and packets lost meanwhile can be modelled by a loss fault.)
    pub(super) fn reroute(&mut self) {
        let hosts = self.fabric.hosts() as usize;
        // A pod has tables at all times.
        if self.fabric.pod().is_none() && self.links[hosts..].iter().all(|link| !link.is_down()) {
            for switch in &mut self.switches {
                switch.forwarder.clear_detours();
            }
            return;
        }
        let (hosts_per_group, tables) =
            self.fabric.detours(|link| !self.links[link as usize].is_down());
        for (switch, table) in self.switches.iter_mut().zip(tables) {
            switch.forwarder.detour(hosts_per_group, table);
        }
    }

    /// Applies the faults of a link to an arriving packet: true if it continues now, false if it was dropped or
    /// delayed.
    #[cold]
    pub(super) fn survives(&mut self, link: u32, packet: PacketRef) -> bool {
        let Some(faults) = self.faults.on_links.get(link as usize).copied() else { return true };
        if faults.is_none() {
            return true;
        }
        let number = link as usize;
        let rng = &mut self.faults.draws[number].rng;
        let lost = faults.lost_until.filter(|(until, _)| self.pool.time(packet) <= *until);
        let reason = match lost {
            Some((_, reason)) => Some(reason),
            None if rng.chance(faults.loss) => Some(DropReason::FaultLoss),
            None => None,
        };
        if let Some(reason) = reason {
            self.stats[number].count_drop();
            self.discard(packet, reason);
            return false;
        }
        if rng.chance(faults.corruption) {
            let payloads = &mut self.payloads;
            if !self.pool.modify(packet, |packet| payloads.damage(packet, rng)) {
                self.stats[number].count_drop();
                self.discard(packet, DropReason::Corrupted);
                return false;
            }
            self.counters.corrupted += 1;
        }
        if self.faults.draws[number].rng.chance(faults.duplication)
            && let Some(copy) = self.copy(packet)
        {
            self.counters.duplicated += 1;
            self.delay(link, copy, Span::ZERO);
        }
        let rng = &mut self.faults.draws[number].rng;
        if rng.chance(faults.reordering) {
            let late = Span::from_ticks(1 + rng.below(faults.reorder_delay.ticks().max(1)));
            self.counters.reordered += 1;
            self.delay(link, packet, late);
            return false;
        }
        true
    }

    fn delay(&mut self, link: u32, packet: PacketRef, late: Span) {
        let at = self.now + late;
        let draws = &mut self.faults.draws[link as usize];
        draws.delayed += 1;
        self.delayed.push(Delayed { at, link, order: draws.delayed, packet });
        self.events.push_timer(at, self.components.delayed);
    }

    /// Handles the arrival of a delayed packet or copy; there is one event for each.
    pub(super) fn on_delayed(&mut self) -> Option<(HostId, PacketRef)> {
        let Delayed { link, packet, .. } = self.delayed.pop()?;
        self.comes_by(link);
        self.hand_over(link, self.links[link as usize].to, packet)
    }
}

/// Combines a probability with that of an independent cause.
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
