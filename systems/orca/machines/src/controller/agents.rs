//! Agents: which are alive, which is active, and the transfer of labels to agents that come back.

use super::*;
use crate::agent::ANY_RACK;

/// How often `SetActive` is sent in a row, since `ToR`s do not acknowledge it.
const SET_ACTIVE_BURST: u8 = 4;
/// The number of unconfirmed labels in flight to a returning agent.
const WINDOW: usize = 64;
/// The number of store slots visited in one step, so that a large store does not delay other work.
const SCAN_SLOTS: usize = 8192;

impl Controller {
    pub(super) fn handle_ping(&mut self, now: Time, from: HostId, place: Place, number: u32) {
        if place != self.config.layout.place(from) {
            return;
        }
        self.counters.pings += 1;
        self.send_control(from, Session(0), Body::Pong { number });
        let agent = &mut self.agents[from.0 as usize];
        let forgot = agent.liveness != Liveness::Dead && is_newer(agent.number, number);
        (agent.last_heard, agent.number) = (now, number);
        if forgot {
            self.mark_dead(now, from, place);
        }
        if self.agents[from.0 as usize].liveness == Liveness::Dead {
            self.start_resync(now, from, place);
        }
    }

    fn start_resync(&mut self, now: Time, host: HostId, place: Place) {
        self.start_watching(now, host, place);
        self.resyncs.insert(host, Resync { at: now, ..Resync::default() });
        self.continue_resync(now, now, host);
    }

    /// Starts to require a ping from the agent within the timeout.
    pub(super) fn start_watching(&mut self, now: Time, host: HostId, place: Place) {
        self.agents[host.0 as usize].liveness = Liveness::Syncing;
        let timeout = self.config.timeout;
        let rack = &mut self.racks[usize::from(place.rack)];
        rack.syncing |= 1 << place.port;
        let at = now.saturating_add(timeout);
        if at < rack.check_at {
            rack.check_at = at;
            self.timers.insert((at, Timer::Check(place.rack)));
        }
    }

    /// Sends a returning agent more of its rack's labels. Once it has confirmed all of them, it is live.
    pub(super) fn continue_resync(&mut self, now: Time, at: Time, host: HostId) {
        let Some(mut resync) = self.resyncs.remove(&host) else { return };
        if at != resync.at && now < resync.at {
            self.resyncs.insert(host, resync);
            return; // The timer was rescheduled.
        }
        let place = self.config.layout.place(host);
        let expired: Vec<_> = resync
            .unconfirmed
            .iter()
            .filter(|(_, (_, at))| *at <= now)
            .map(|(session, _)| *session)
            .collect();
        for session in expired {
            self.sync_label(now, host, place, session, &mut resync);
        }
        let mut scanned = 0;
        let none_here = self.racks[usize::from(place.rack)].sessions == 0;
        if none_here {
            resync.cursor = self.store.slots();
        }
        while resync.unconfirmed.len() < WINDOW
            && scanned < SCAN_SLOTS
            && resync.cursor < self.store.slots()
        {
            if let Some((session, _)) = self.store.slot(resync.cursor)
                && self.store.ports(session, place.rack) != 0
            {
                self.sync_label(now, host, place, session, &mut resync);
            }
            resync.cursor += 1;
            scanned += 1;
        }
        if resync.cursor >= self.store.slots() && resync.unconfirmed.is_empty() {
            if self.mark_live(now, host, place) {
                self.notify_senders(now, place.rack, true);
            }
            return;
        }
        let repeat = resync.unconfirmed.values().map(|(_, at)| *at).min();
        resync.at = if resync.unconfirmed.len() < WINDOW && resync.cursor < self.store.slots() {
            now
        } else {
            repeat.unwrap_or(now)
        };
        self.timers.insert((resync.at, Timer::Resync(host)));
        self.resyncs.insert(host, resync);
    }

    fn sync_label(
        &mut self,
        now: Time,
        host: HostId,
        place: Place,
        session: Session,
        resync: &mut Resync,
    ) {
        let version = self.next_version(now);
        let ports = self.store.ports(session, place.rack);
        resync.unconfirmed.insert(session, (version, now.saturating_add(self.config.retry * 4)));
        self.counters.resyncs += 1;
        self.send_control(host, session, Body::Sync { rack: ANY_RACK, ports, version });
    }

    /// Handles a returning agent's confirmation of a label.
    pub(super) fn confirmed_resync(
        &mut self,
        now: Time,
        host: HostId,
        session: Session,
        version: u32,
    ) {
        let Some(resync) = self.resyncs.get_mut(&host) else { return };
        if resync.unconfirmed.get(&session).is_some_and(|(sent, _)| *sent == version) {
            resync.unconfirmed.remove(&session);
            if resync.unconfirmed.len() <= WINDOW / 2 {
                resync.at = now;
                self.continue_resync(now, now, host);
            }
        }
    }

    /// Marks an agent live once it has all labels. Returns whether its rack had no active agent.
    pub(super) fn mark_live(&mut self, now: Time, host: HostId, place: Place) -> bool {
        self.agents[host.0 as usize].liveness = Liveness::Live;
        let rack = &mut self.racks[usize::from(place.rack)];
        rack.syncing &= !(1 << place.port);
        rack.live |= 1 << place.port;
        let none = rack.active == NO_AGENT;
        self.push_event(ControllerEvent::Live { host });
        let active = self.active(place.rack);
        let busy = active.is_some_and(|active| self.agents[active.0 as usize].sends > 0);
        // An active agent whose host sends sessions is replaced, because its link already carries those.
        if none || busy && self.agents[host.0 as usize].sends == 0 {
            self.promote(now, place.rack);
        }
        none
    }

    /// Marks an agent dead, or as having lost its labels.
    pub(super) fn mark_dead(&mut self, now: Time, host: HostId, place: Place) {
        self.agents[host.0 as usize].liveness = Liveness::Dead;
        self.resyncs.remove(&host);
        let rack = &mut self.racks[usize::from(place.rack)];
        rack.live &= !(1 << place.port);
        rack.syncing &= !(1 << place.port);
        let was_active = rack.active == place.port;
        self.push_event(ControllerEvent::Silent { host });
        if was_active {
            self.promote(now, place.rack);
            if self.racks[usize::from(place.rack)].active == NO_AGENT {
                self.notify_senders(now, place.rack, false);
            }
        }
        self.stop_waiting_for(place);
    }

    /// Makes a live agent active: the one whose host sends the fewest sessions, because its link already carries those.
    pub(super) fn promote(&mut self, now: Time, number: u16) {
        let epoch = self.next_version(now);
        let live = self.live(number);
        let best = live.min_by_key(|host| (self.agents[host.0 as usize].sends, host.0));
        let port = best.map_or(NO_AGENT, |host| self.config.layout.place(host).port);
        let rack = &mut self.racks[usize::from(number)];
        (rack.active, rack.epoch, rack.set_active_left) = (port, epoch, SET_ACTIVE_BURST);
        self.push_event(ControllerEvent::Promoted { rack: number, agent: best });
        self.set_active(now, number);
    }

    /// Notifies a `ToR` of its active agent.
    pub(super) fn set_active(&mut self, now: Time, number: u16) {
        let Some(host) = self.rack_address(number) else { return };
        let rack = &mut self.racks[usize::from(number)];
        let Rack { active: agent, epoch, .. } = *rack;
        rack.set_active_left = rack.set_active_left.saturating_sub(1);
        let wait = if rack.set_active_left > 0 { self.config.retry } else { self.config.refresh };
        self.timers.retain(|(_, timer)| *timer != Timer::SetActive(number));
        self.timers.insert((now.saturating_add(wait), Timer::SetActive(number)));
        self.send_control(host, Session(0), Body::SetActive { rack: number, agent, epoch });
    }

    /// Marks agents of a rack dead that have been silent for the timeout T.
    pub(super) fn check_agents(&mut self, now: Time, at: Time, number: u16) {
        if self.racks[usize::from(number)].check_at != at {
            return;
        }
        let rack = self.racks[usize::from(number)];
        let ports = rack.live | rack.syncing;
        let mut next = Time::MAX;
        for port in (0..64).filter(|port| ports >> port & 1 == 1) {
            let place = Place { rack: number, port };
            let Some(host) = self.config.layout.host(place) else { continue };
            let dead_at =
                self.agents[host.0 as usize].last_heard.saturating_add(self.config.timeout);
            if dead_at <= now {
                self.mark_dead(now, host, place);
            } else {
                next = next.min(dead_at);
            }
        }
        self.racks[usize::from(number)].check_at = next;
        if next < Time::MAX {
            self.timers.insert((next, Timer::Check(number)));
        }
    }
}
