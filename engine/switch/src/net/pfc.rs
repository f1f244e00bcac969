//! Pauses (IEEE 802.1Qbb): who is paused, what switches have counted, and ports that wait for each other.
//!
//! A switch charges each packet that waits to the link and the list of priorities by which it came. The list of a link that
//! exceeds its threshold is paused: a pause frame goes back, before all packets but the one that is being sent. What still arrives is
//! charged to the headroom. Packets that do not wait are not charged, so that an idle path is as fast as without PFC.
//!
//! # Decisions of paced ports
//! A paused port has packets queued and none on its link, so that decisions cannot wait for arrivals. Each port that may send has
//! an event one tick after it becomes free, as those of [`super::shard`], and decides with what had arrived by then.
//!
//! # Hosts
//! A NIC does not ask its host for a packet that it could not send: the first one of a paused list waits in the NIC,
//! and what the host has besides waits behind it. Hosts themselves never pause their switches.

use std::collections::{BTreeSet, VecDeque};

use rackweave_core::{DropReason, HostId, PacketRef, PayloadStore, Span, SwitchProgram, Time};

use super::{CHARGED, Edge, Net, NetEvent, PACED};
use crate::fabric::{Fabric, Node, serialisation};
use crate::pfc::{PAUSE_BYTES, PerClass, Pool};

/// The link of packets that came by none.
const NO_LINK: u32 = u32::MAX;

/// How often pauses that last are searched for a deadlock (our choice: long for pauses, short for users).
const SEARCH_EVERY: Span = Span::from_ms(1);

/// What a switch has charged to a link that leads to it.
#[derive(Clone, Debug, Default)]
struct Charges {
    /// Bytes below the threshold, by list.
    shared: PerClass,
    /// Bytes beyond it, by list.
    beyond: PerClass,
    /// The headroom of each list.
    headroom: u64,
    /// The lists for which the other end has been sent a pause, a bit each.
    paused: u8,
    /// The pool that it takes from.
    pool: u32,
}

/// The pauses of the port before a link.
#[derive(Clone, Debug, Default)]
struct Pauses {
    /// The paused lists, a bit each.
    lists: u8,
    /// When they last changed.
    changed: Time,
    /// Changes whose pause frames are on their way: the list, and whether it is paused.
    coming: VecDeque<(Time, u8, bool)>,
    /// Whether the next decision has an event.
    is_scheduled: bool,
    /// A host's packet that waits in the NIC.
    held: Option<PacketRef>,
    /// How often it was paused since statistics began, and for how long before the last change.
    count: u64,
    span: Span,
}

/// Ports that wait for each other: none of them will ever send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// When it was found.
    pub at: Time,
    /// The links of a cycle: each is paused by the switch at its end, where its packets wait for the next link. The last waits for
    /// the first.
    pub links: Vec<u32>,
}

/// The state of PFC.
#[derive(Debug)]
pub(super) struct Lossless {
    lossless: u8,
    hysteresis: u64,
    /// Whether a full buffer is one of the whole switch.
    is_shared: bool,
    charges: Vec<Charges>,
    pauses: Vec<Pauses>,
    pools: Vec<Pool>,
    reverse: Vec<u32>,
    /// From a pause frame's last bit on a link to its effect.
    delays: Vec<Span>,
    /// For each packet that waits in a switch, the link by which it came.
    came_by: Vec<u32>,
    /// The link of the packet that is being handled.
    comes_by: u32,
    will_search: bool,
    deadlock: Option<Deadlock>,
}

impl Lossless {
    /// The state of an idle fabric; `None` without PFC.
    pub(super) fn of(fabric: &Fabric) -> Option<Self> {
        let pfc = fabric.config().switch.pfc?;
        let pools = fabric.pools();
        let links = 0..fabric.links().len() as u32;
        let is_shared = pools.len() != links.len();
        let charges = links.clone().map(|link| {
            let pool = match fabric.links()[link as usize].to {
                Node::Switch(switch) if is_shared => switch,
                Node::Host(_) if is_shared => 0,
                _ => link,
            };
            Charges { headroom: fabric.headroom(link), pool, ..Charges::default() }
        });
        Some(Self {
            lossless: fabric.lossless_classes(),
            hysteresis: pfc.hysteresis_bytes,
            is_shared,
            charges: charges.collect(),
            pauses: vec![Pauses::default(); links.len()],
            pools,
            reverse: links.clone().map(|link| fabric.reverse(link)).collect(),
            delays: links.map(|link| fabric.pause_delay(link)).collect(),
            came_by: Vec::new(),
            comes_by: NO_LINK,
            will_search: false,
            deadlock: None,
        })
    }

    /// Whether nothing is charged or paused.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let free = |it: &Charges| it.paused == 0 && it.shared == [0; 8] && it.beyond == [0; 8];
        self.charges.iter().all(free)
            && self.pools.iter().all(|pool| pool.used == 0)
            && self.pauses.iter().all(|it| it.lists == 0 && it.held.is_none())
    }

    /// Charges a packet of this list to the link that it came by: false if there is no room. Returns whether the link must be
    /// paused too.
    fn charge(&mut self, packet: PacketRef, class: u8, bytes: u64) -> (bool, bool) {
        let number = packet.index();
        if self.came_by.len() <= number {
            self.came_by.resize(number + 1, NO_LINK);
        }
        self.came_by[number] = self.comes_by;
        let Some(charges) = self.charges.get_mut(self.comes_by as usize) else {
            return (true, false);
        };
        let (class, bit) = (usize::from(class), 1 << class);
        let pool = &mut self.pools[charges.pool as usize];
        if charges.beyond[class] == 0 && pool.admits(charges.shared[class], bytes) {
            charges.shared[class] += bytes;
            pool.used += bytes;
            return (true, false);
        }
        let fits = charges.beyond[class] + bytes <= charges.headroom;
        if self.lossless & bit == 0 || !fits {
            // Only what leaves ends a pause: a link that has nothing here is not paused.
            let holds = charges.shared[class] + charges.beyond[class] > 0;
            return (false, holds && self.lossless & bit & !charges.paused != 0);
        }
        charges.beyond[class] += bytes;
        (true, charges.paused & bit == 0)
    }

    /// Takes a packet's bytes back; returns the link if it may resume.
    fn uncharge(&mut self, packet: PacketRef, class: u8, bytes: u64) -> Option<u32> {
        let link = *self.came_by.get(packet.index())?;
        let charges = self.charges.get_mut(link as usize)?;
        let (class, bit) = (usize::from(class), 1 << class);
        let pool = &mut self.pools[charges.pool as usize];
        let beyond = bytes.min(charges.beyond[class]);
        charges.beyond[class] -= beyond;
        charges.shared[class] -= bytes - beyond;
        pool.used -= bytes - beyond;
        let shared = charges.shared[class];
        let is_low = shared == 0 || shared + self.hysteresis <= pool.threshold();
        (charges.paused & bit != 0 && charges.beyond[class] == 0 && is_low).then_some(link)
    }
}

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// Marks the ports whose links can be paused: all of them.
    pub(super) fn mark_paced_ports(&mut self) {
        if self.lossless.is_none() {
            return;
        }
        for link in &mut self.links {
            link.gate |= PACED;
            link.special |= if link.to.switch().is_some() { CHARGED } else { 0 };
        }
    }

    /// The ports that wait for each other, if the network has found any.
    #[must_use]
    pub fn deadlock(&self) -> Option<&Deadlock> {
        self.lossless.as_ref()?.deadlock.as_ref()
    }

    /// Notes the link of the packet that is handled next.
    pub(super) fn comes_by(&mut self, link: u32) {
        if let Some(lossless) = &mut self.lossless {
            lossless.comes_by = link;
        }
    }

    /// Notes that what is handled next came by no link.
    pub(super) fn comes_by_none(&mut self) {
        self.comes_by(NO_LINK);
    }

    /// Sends a packet by a port that can be paused, or queues it.
    #[inline(never)]
    pub(super) fn join_paced(&mut self, switch: u32, link: u32, packet: PacketRef) {
        let (now, number) = (self.now, link as usize);
        if self.links[number].is_down() {
            self.stats[number].count_drop();
            return self.discard(packet, self.why_down(link));
        }
        self.catch_up_paced(link, now);
        let Some(lossless) = &mut self.lossless else { return };
        let state = &self.links[number];
        let class = state.queue.class_of(self.pool.priority(packet));
        let may_send = !lossless.pauses[number].lists;
        if state.busy_until <= now && may_send & 1 << class != 0 && !state.queue.holds_any(may_send)
        {
            return self.transmit(link, packet, now);
        }
        let bytes = u64::from(self.pool.wire_bytes(packet));
        let from = lossless.comes_by;
        let (fits, must_pause) = lossless.charge(packet, class, bytes);
        let is_shared = lossless.is_shared;
        if must_pause {
            self.send_pause(from, class, true);
        }
        if !fits {
            self.stats[number].count_drop();
            let full = if is_shared { DropReason::SharedBufferFull } else { DropReason::QueueFull };
            return self.discard(packet, full);
        }
        self.wait(switch, link, packet);
        self.schedule_decision(link);
    }

    /// Makes the decisions of a port that can be paused, up to the last one that was due before `before`.
    #[inline(never)]
    pub(super) fn catch_up_paced(&mut self, link: u32, before: Time) {
        // Packets that arrive now count for decisions that are due now.
        let before = before.min(self.now);
        let number = link as usize;
        loop {
            let Some(lossless) = &self.lossless else { return };
            let pauses = &lossless.pauses[number];
            let state = &mut self.links[number];
            let start = state.busy_until.max(pauses.changed);
            if start >= before {
                return;
            }
            let waiting = state.queue.bytes();
            let Some(packet) = state.queue.dequeue_of(&self.pool, !pauses.lists) else { return };
            let left = state.queue.bytes();
            self.stats[number].queue_changes(start, waiting, left);
            self.transmit(link, packet, start);
            self.leaves(packet);
        }
    }

    /// Takes back what is charged for a packet that leaves a queue.
    pub(super) fn leaves(&mut self, packet: PacketRef) {
        let Some(lossless) = &mut self.lossless else { return };
        let class = self.links[0].queue.class_of(self.pool.priority(packet));
        let bytes = u64::from(self.pool.wire_bytes(packet));
        if let Some(resumed) = lossless.uncharge(packet, class, bytes) {
            self.send_pause(resumed, class, false);
        }
    }

    /// Sends a pause frame to the other end of a link that leads to a switch. It precedes all packets but the one that is
    /// being sent.
    fn send_pause(&mut self, paused: u32, class: u8, is_paused: bool) {
        let Some(lossless) = &mut self.lossless else { return };
        let charges = &mut lossless.charges[paused as usize];
        charges.paused = charges.paused & !(1 << class) | u8::from(is_paused) << class;
        let back = lossless.reverse[paused as usize];
        let state = &mut self.links[back as usize];
        if state.is_down() {
            return;
        }
        let span =
            serialisation(self.kinds[usize::from(state.kind)].ticks_per_byte_q16, PAUSE_BYTES);
        state.busy_until = state.busy_until.max(self.now) + span;
        state.busy += span;
        let at = state.busy_until + lossless.delays[back as usize];
        lossless.pauses[paused as usize].coming.push_back((at, class, is_paused));
        let component = self.components.pfc + self.links.len() as u32 + paused;
        self.events.push_timer(at, component);
    }

    /// Schedules the next decision of a port, if packets wait that it may send.
    fn schedule_decision(&mut self, link: u32) {
        let Some(lossless) = &mut self.lossless else { return };
        let pauses = &mut lossless.pauses[link as usize];
        let state = &self.links[link as usize];
        if pauses.is_scheduled || !state.queue.holds_any(!pauses.lists) {
            return;
        }
        pauses.is_scheduled = true;
        let due = state.busy_until.max(pauses.changed) + Span::TICK;
        self.events.push(due.max(self.now), self.components.pfc + link);
    }

    /// Handles an event of PFC.
    #[inline(never)]
    pub(super) fn on_pfc<E: Edge<P::Header>>(
        &mut self,
        edge: &mut E,
        event: u32,
    ) -> Option<NetEvent> {
        let links = self.links.len() as u32;
        if event >= 2 * links {
            return self.search_deadlock();
        }
        if event >= links {
            self.on_pause(edge, event - links);
            return None;
        }
        let lossless = self.lossless.as_mut()?;
        lossless.pauses[event as usize].is_scheduled = false;
        self.catch_up_paced(event, self.now);
        self.schedule_decision(event);
        None
    }

    /// Pauses and resumes the lists of a port for which pause frames have come.
    fn on_pause<E: Edge<P::Header>>(&mut self, edge: &mut E, link: u32) {
        let (now, number) = (self.now, link as usize);
        let host = (link < self.components.hosts).then_some(HostId(link));
        match host {
            Some(host) => self.flush(edge, host),
            None => self.catch_up_paced(link, now),
        }
        let Some(lossless) = &mut self.lossless else { return };
        let pauses = &mut lossless.pauses[number];
        let before = pauses.lists;
        while pauses.coming.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, class, is_paused)) = pauses.coming.pop_front() else { break };
            pauses.lists = pauses.lists & !(1 << class) | u8::from(is_paused) << class;
            if is_paused {
                pauses.count += 1;
                self.counters.pauses += 1;
            }
        }
        if before != 0 {
            pauses.span += now.since(pauses.changed);
        }
        pauses.changed = now;
        if pauses.lists != 0 && !lossless.will_search && lossless.deadlock.is_none() {
            lossless.will_search = true;
            let search = self.components.pfc + 2 * self.links.len() as u32;
            self.events.push_timer(now + SEARCH_EVERY, search);
        }
        match host {
            None => self.schedule_decision(link),
            Some(host) => self.release_held(edge, host),
        }
    }

    /// Sends the packet that waits in a NIC, if its list is no longer paused, and polls the host again.
    fn release_held<E: Edge<P::Header>>(&mut self, edge: &mut E, host: HostId) {
        let Some(lossless) = &mut self.lossless else { return };
        if let Some(packet) = lossless.pauses[host.0 as usize].held.take() {
            let start = self.links[host.0 as usize].busy_until.max(self.now);
            self.send_unless_paused(host, packet, start);
        }
        self.wake(edge, host);
    }

    /// Whether a host may be polled for a packet.
    pub(super) fn may_poll(&self, host: HostId) -> bool {
        let is_held = |lossless: &Lossless| lossless.pauses[host.0 as usize].held.is_some();
        !self.links[host.0 as usize].is_down() && !self.lossless.as_deref().is_some_and(is_held)
    }

    /// Puts a host's packet on its link, or keeps it in the NIC if its list is paused.
    pub(super) fn send_unless_paused(&mut self, host: HostId, packet: PacketRef, start: Time) {
        let number = host.0 as usize;
        if let Some(lossless) = &mut self.lossless {
            let pauses = &mut lossless.pauses[number];
            let class = self.links[number].queue.class_of(self.pool.priority(packet));
            if pauses.lists & 1 << class != 0 {
                pauses.held = Some(packet);
                return;
            }
        }
        self.transmit(host.0, packet, start);
    }

    /// Ends all pauses of a link that has gone down, at both of its ends.
    pub(super) fn forget_pauses(&mut self, link: u32) {
        let now = self.now;
        let Some(lossless) = &mut self.lossless else { return };
        lossless.charges[link as usize].paused = 0;
        let pauses = &mut lossless.pauses[link as usize];
        if pauses.lists != 0 {
            pauses.span += now.since(pauses.changed);
        }
        (pauses.lists, pauses.changed) = (0, now);
        pauses.coming.clear();
        if let Some(held) = pauses.held.take() {
            self.stats[link as usize].count_drop();
            self.discard(held, self.why_down(link));
        }
    }

    /// How often the port before a link was paused since statistics began, and for how long.
    pub(super) fn pauses_of(&self, link: u32) -> (u64, Span) {
        let Some(lossless) = &self.lossless else { return (0, Span::ZERO) };
        let pauses = &lossless.pauses[link as usize];
        let still = if pauses.lists == 0 { Span::ZERO } else { self.now.since(pauses.changed) };
        (pauses.count, pauses.span + still)
    }

    /// Begins the statistics of pauses.
    pub(super) fn measure_pauses(&mut self) {
        let now = self.now;
        let Some(lossless) = &mut self.lossless else { return };
        for pauses in &mut lossless.pauses {
            // What has passed of a pause is counted at its end, so that it is taken off before.
            (pauses.count, pauses.span) = (0, Span::ZERO);
            if pauses.lists != 0 {
                pauses.changed = now;
            }
        }
    }

    /// Searches for ports that wait for each other: lists of links that are paused, and all of whose charged packets wait for
    /// such lists. What leaves any other port may resume them.
    fn search_deadlock(&mut self) -> Option<NetEvent> {
        let lossless = self.lossless.as_ref()?;
        let mut waits = BTreeSet::new();
        for (link, state) in self.links.iter().enumerate().skip(self.components.hosts as usize) {
            for (class, packet) in state.queue.packets(&self.pool) {
                if let Some(from) = lossless.came_by.get(packet.index()) {
                    waits.insert(((*from, class), (link as u32, class)));
                }
            }
        }
        let is_paused = |(link, class): (u32, u8)| {
            let Some(pauses) = lossless.pauses.get(link as usize) else { return false };
            pauses.coming.is_empty() && pauses.lists & 1 << class != 0
        };
        let mut stuck: BTreeSet<(u32, u8)> =
            waits.iter().map(|(waiting, _)| *waiting).filter(|it| is_paused(*it)).collect();
        let is_any_paused = lossless.pauses.iter().any(|pauses| pauses.lists != 0);
        loop {
            let moves = |(waiting, of): &((u32, u8), (u32, u8))| {
                (stuck.contains(waiting) && !stuck.contains(of)).then_some(*waiting)
            };
            let free: Vec<_> = waits.iter().filter_map(moves).collect();
            if free.is_empty() {
                break;
            }
            free.iter().for_each(|it| {
                stuck.remove(it);
            });
        }
        let mut path = Vec::new();
        let mut at = stuck.first().copied();
        while let Some(it) = at.filter(|it| !path.contains(it)) {
            path.push(it);
            let next = |(from, to): &&((u32, u8), (u32, u8))| *from == it && stuck.contains(to);
            at = waits.iter().find(next).map(|(_, to)| *to);
        }
        let (now, component) = (self.now, self.components.pfc + 2 * self.links.len() as u32);
        let lossless = self.lossless.as_mut()?;
        if let Some(again) = at {
            let first = path.iter().position(|it| *it == again).unwrap_or(0);
            let links = path[first..].iter().map(|(link, _)| *link).collect();
            lossless.deadlock = Some(Deadlock { at: now, links });
            lossless.will_search = false;
            return Some(NetEvent::Deadlock);
        }
        lossless.will_search = is_any_paused;
        if is_any_paused {
            self.events.push_timer(now + SEARCH_EVERY, component);
        }
        None
    }
}
