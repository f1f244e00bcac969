//! Sessions: their members, their labels, and the confirmations of agents.

use super::*;
use crate::agent::ANY_RACK;

/// An agent that has not confirmed a label after this many repetitions is assumed unable to hold it.
const MAX_TRIES: u8 = 12;
/// The longest interval between repetitions.
pub(super) const RETRY_MAX: Span = Span::from_ms(100);

impl Controller {
    pub(super) fn handle_create(&mut self, now: Time, from: HostId, session: Session) {
        let known = self.store.get(session);
        let taken = known.is_some_and(|known| known.sender != from);
        let full = known.is_none() && self.store.len() >= self.config.max_sessions as usize;
        if taken || full {
            return self.send_control(
                from,
                session,
                Body::Denied { reason: Reason::Busy, change: 0 },
            );
        }
        if known.is_none() {
            self.store.create(session, from);
            self.schedule_sweep(now);
            self.agents[from.0 as usize].sends += 1;
            // A sender does not stay its rack's active agent, because its link already carries the session.
            let place = self.config.layout.place(from);
            let rack = &self.racks[usize::from(place.rack)];
            if rack.active == place.port && rack.live.count_ones() > 1 {
                self.promote(now, place.rack);
            }
        }
        self.refresh_session(now, session);
        self.send_labels(session);
    }

    pub(super) fn handle_member(
        &mut self,
        now: Time,
        from: HostId,
        session: Session,
        host: HostId,
        joins: bool,
        change: u32,
    ) {
        let Some(known) = self.store.get(session) else {
            return self.send_control(
                from,
                session,
                Body::Denied { reason: Reason::Unknown, change },
            );
        };
        if known.sender != from {
            return;
        }
        self.refresh_session(now, session);
        match change.wrapping_sub(known.change) {
            1 => {}
            2..0x8000_0000 => return, // Earlier changes are missing; the sender repeats them.
            _ => return self.send_labels(session),
        }
        let place = self.config.layout.place(host);
        let is_host = self.config.layout.host(place) == Some(host);
        let denied = if !is_host {
            Some(Reason::NoLabel)
        } else if self.racks[usize::from(place.rack)].active == NO_AGENT {
            Some(Reason::Silent)
        } else {
            None
        };
        if let Some(reason) = denied.filter(|_| joins) {
            self.push_event(ControllerEvent::Denied { session, host, reason });
            return self.send_control(from, session, Body::Denied { reason, change });
        }
        self.counters.changes += 1;
        self.store.set_change(session, change);
        if is_host {
            let before = self.store.ports(session, place.rack);
            let bit = 1 << place.port;
            let ports = if joins { before | bit } else { before & !bit };
            if ports != before {
                self.store.set_ports(session, place.rack, ports);
                let rack = &mut self.racks[usize::from(place.rack)];
                rack.sessions += u32::from(before == 0);
                rack.sessions -= u32::from(ports == 0);
                self.sync_rack(now, place.rack, session, ports);
            }
        }
        self.send_labels(session);
    }

    pub(super) fn handle_destroy(&mut self, now: Time, from: HostId, session: Session) {
        if self.store.get(session).is_some_and(|known| known.sender == from) {
            self.end_session(now, session, from);
        }
        self.send_control(from, session, Body::Denied { reason: Reason::Left, change: 0 });
    }

    pub(super) fn end_session(&mut self, now: Time, session: Session, sender: HostId) {
        for rack in self.store.remove(session) {
            self.racks[usize::from(rack)].sessions -= 1;
            self.sync_rack(now, rack, session, 0);
        }
        let agent = &mut self.agents[sender.0 as usize];
        agent.sends = agent.sends.saturating_sub(1);
        if agent.sends == 0 {
            // A host without sessions needs no notifications about racks.
            self.notices.retain(|(host, _), _| *host != sender);
        }
    }

    /// Sends the sender its labels once all live agents have confirmed theirs.
    pub(super) fn send_labels(&mut self, session: Session) {
        if self.unconfirmed.contains_key(&session) {
            return;
        }
        let Some(known) = self.store.get(session) else { return };
        let layout = &self.config.layout;
        let own = layout.place(known.sender).rack;
        let ports = self.store.ports(session, own);
        // The pilot label is only needed for members outside the sender's rack.
        let abroad = self.store.members(session).any(|(rack, _)| rack != own);
        let racks = self.store.members(session).map(|(rack, _)| rack);
        let racks = racks.filter(|rack| abroad && (*rack != own || layout.reaches_own_rack()));
        let pilot = layout.pilot(known.sender, racks, session.0);
        let timeout_us = u32::try_from(self.config.timeout.as_us()).unwrap_or(u32::MAX);
        let labels = Body::Labels { pilot, ports, change: known.change, timeout_us };
        self.send_control(known.sender, session, labels);
    }

    /// Sends a rack label to all agents of the rack.
    fn sync_rack(&mut self, now: Time, rack: u16, session: Session, ports: u64) {
        let version = self.next_version(now);
        let state = &self.racks[usize::from(rack)];
        let waiting = state.live | state.syncing;
        let at = now.saturating_add(self.config.retry);
        let pending = Pending { ports, version, waiting, tries: 0, at };
        if let Some(old) = self.pending.remove(&(rack, session)) {
            self.timers.remove(&(old.at, Timer::Pending(rack, session)));
            self.on_rack_confirmed(session);
        }
        if waiting == 0 {
            return;
        }
        self.pending.insert((rack, session), pending);
        *self.unconfirmed.entry(session).or_default() += 1;
        self.timers.insert((at, Timer::Pending(rack, session)));
        self.send_pending(rack, session, pending);
    }

    fn send_pending(&mut self, rack: u16, session: Session, pending: Pending) {
        let Pending { ports, version, waiting, tries, .. } = pending;
        // Repetitions for one or two agents are addressed to these only.
        if tries > 0 && waiting.count_ones() <= 2 {
            for port in (0..64).filter(|port| waiting >> port & 1 == 1) {
                if let Some(host) = self.config.layout.host(Place { rack, port }) {
                    self.send_control(host, session, Body::Sync { rack: ANY_RACK, ports, version });
                }
            }
        } else if let Some(host) = self.rack_address(rack) {
            self.send_control(host, session, Body::Sync { rack, ports, version });
        }
    }

    pub(super) fn retry_pending(&mut self, now: Time, at: Time, rack: u16, session: Session) {
        let Some(pending) = self.pending.get_mut(&(rack, session)).filter(|p| p.at == at) else {
            return;
        };
        pending.tries += 1;
        let wait = (self.config.retry * (1 << pending.tries.min(6))).min(RETRY_MAX);
        pending.at = now.saturating_add(wait);
        let pending = *pending;
        if pending.tries >= MAX_TRIES {
            // These agents ping but do not accept the label. They count as dead until a resync has transferred all
            // labels.
            for port in (0..64).filter(|port| pending.waiting >> port & 1 == 1) {
                let place = Place { rack, port };
                if let Some(host) = self.config.layout.host(place) {
                    self.mark_dead(now, host, place);
                }
            }
            return;
        }
        self.timers.insert((pending.at, Timer::Pending(rack, session)));
        self.send_pending(rack, session, pending);
    }

    /// Handles an agent's confirmation of a label.
    pub(super) fn handle_sync_done(
        &mut self,
        now: Time,
        host: HostId,
        place: Place,
        session: Session,
        version: u32,
    ) {
        self.counters.confirmed += 1;
        self.confirm_notice(host, version);
        self.confirmed_resync(now, host, session, version);
        let key = (place.rack, session);
        if let Some(pending) = self.pending.get_mut(&key).filter(|p| p.version == version) {
            pending.waiting &= !(1 << place.port);
            if pending.waiting == 0 {
                self.finish_pending(key);
            }
        }
    }

    fn finish_pending(&mut self, (rack, session): (u16, Session)) {
        if let Some(pending) = self.pending.remove(&(rack, session)) {
            self.timers.remove(&(pending.at, Timer::Pending(rack, session)));
            self.on_rack_confirmed(session);
            self.send_labels(session);
        }
    }

    fn on_rack_confirmed(&mut self, session: Session) {
        if let Some(count) = self.unconfirmed.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                self.unconfirmed.remove(&session);
            }
        }
    }

    /// Stops waiting for the confirmations of a dead agent.
    pub(super) fn stop_waiting_for(&mut self, place: Place) {
        let range = (place.rack, Session(0))..=(place.rack, Session(u32::MAX));
        let mut done = Vec::new();
        for (key, pending) in self.pending.range_mut(range) {
            pending.waiting &= !(1 << place.port);
            if pending.waiting == 0 {
                done.push(*key);
            }
        }
        for key in done {
            self.finish_pending(key);
        }
    }
}
