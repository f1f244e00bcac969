//! Senders: the expiry of their sessions, and notifications about racks without agents. The paper does not cover
//! failures of senders and of whole racks; both mechanisms are our choice.

use super::sessions::RETRY_MAX;
use super::*;

/// The number of sweeps of the store within [`ControllerConfig::forget`].
const SWEEPS: u64 = 4;
/// The number of store slots visited in one step, so that a large store does not delay other work.
const SCAN_SLOTS: usize = 8192;

const fn ms(now: Time) -> u32 {
    now.as_ms() as u32
}

impl Controller {
    pub(super) fn handle_renew(&mut self, now: Time, from: HostId, session: Session) {
        if self.store.get(session).is_some_and(|known| known.sender == from) {
            self.refresh_session(now, session);
            return self.send_labels(session);
        }
        self.send_control(from, session, Body::Denied { reason: Reason::Unknown, change: 0 });
    }

    /// Records that the sender has mentioned a session.
    pub(super) fn refresh_session(&mut self, now: Time, session: Session) {
        self.store.set_mentioned(session, ms(now));
    }

    /// Schedules the next sweep, unless one is scheduled already.
    pub(super) fn schedule_sweep(&mut self, now: Time) {
        if self.sweep.is_none() {
            self.sweep = Some(0);
            self.timers.insert((now.saturating_add(self.sweep_interval()), Timer::Sweep));
        }
    }

    fn sweep_interval(&self) -> Span {
        (self.config.forget / SWEEPS).max(Span::from_ms(1))
    }

    /// Deletes sessions that their senders have not mentioned for too long.
    pub(super) fn sweep(&mut self, now: Time) {
        let from = self.sweep.take().unwrap_or(0);
        let upto = self.store.slots().min(from + SCAN_SLOTS);
        let most = self.config.forget.as_ms();
        let silent = |heard: u32| u64::from(ms(now).wrapping_sub(heard)) >= most;
        let ended: Vec<_> = (from..upto)
            .filter_map(|slot| self.store.slot(slot))
            .filter(|(_, known)| silent(known.mentioned_ms))
            .map(|(session, known)| (session, known.sender))
            .collect();
        for (session, sender) in ended {
            self.end_session(now, session, sender);
            self.counters.expired += 1;
            self.push_event(ControllerEvent::Expired { session, sender });
        }
        if upto < self.store.slots() {
            self.sweep = Some(upto);
            self.timers.insert((now, Timer::Sweep));
        } else if !self.store.is_empty() {
            self.sweep = Some(0);
            self.timers.insert((now.saturating_add(self.sweep_interval()), Timer::Sweep));
        }
    }

    /// Notifies all senders that a rack has lost its last agent or has an agent once more.
    pub(super) fn notify_senders(&mut self, now: Time, rack: u16, agent: bool) {
        let epoch = self.racks[usize::from(rack)].epoch;
        let hosts: Vec<_> = (0..self.agents.len() as u32)
            .map(HostId)
            .filter(|host| self.agents[host.0 as usize].sends > 0)
            .collect();
        for host in hosts {
            self.send_notice(now, host, rack, Notice { agent, epoch, tries: 0, at: now });
        }
    }

    fn send_notice(&mut self, now: Time, host: HostId, rack: u16, mut notice: Notice) {
        let wait = (self.config.retry * (1 << notice.tries.min(6))).min(RETRY_MAX);
        notice.at = now.saturating_add(wait);
        notice.tries = notice.tries.saturating_add(1);
        self.notices.insert((host, rack), notice);
        self.timers.insert((notice.at, Timer::Notice(host, rack)));
        let Notice { agent, epoch, .. } = notice;
        self.send_control(host, Session(0), Body::Served { rack, agent, epoch });
    }

    /// Repeats a notification. It ends when it is confirmed, or when the host's last session ends.
    pub(super) fn retry_notice(&mut self, now: Time, at: Time, host: HostId, rack: u16) {
        if let Some(notice) =
            self.notices.get(&(host, rack)).copied().filter(|notice| notice.at == at)
        {
            self.send_notice(now, host, rack, notice);
        }
    }

    /// Handles a sender's confirmation of a notification.
    pub(super) fn confirm_notice(&mut self, host: HostId, epoch: u32) {
        let range = (host, 0)..=(host, u16::MAX);
        let known = self.notices.range(range).find(|(_, notice)| notice.epoch == epoch);
        if let Some(key) = known.map(|(key, _)| *key) {
            self.notices.remove(&key);
        }
    }
}
