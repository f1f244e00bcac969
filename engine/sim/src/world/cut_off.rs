//! Hosts that faults cut off for good. A run does not wait for what waits for them alone.
//!
//! The rules are Rackweave's, and are on simulated time only.
//!
//! - A host is *cut off* while its own link is down, or while it is *halted*: paused or down. A halted host reports nothing, and starts
//!   nothing.
//! - A run ends as [`End::CutOff`](crate::result::End::CutOff) if no fault will give a host back, each node that is not done is at a cut-off
//!   host, and all measured messages have started but those of halted hosts. Each unfinished message is of a halted host, or is of a
//!   cut-off host and older than any transport's patience: nobody will report it.
//! - Before, transports have time to find out: twice their patience, from the last such change on. Nodes of group systems have four
//!   seconds.
//! - So long, messages of cut-off hosts are no overload ([`super::steady`]).

use rackweave_core::{HostId, Span, Time};

use super::World;
use crate::config::{Fault, FaultKind, FaultPlace};
use crate::model::Model;
use crate::result::Waiting;

/// What nodes of group systems have: those of casts wait 3.2 seconds for a silent receiver. Messages have it too, from their start on:
/// a stream of Homa's waits longer for its peer than other messages.
const AT_LEAST: Span = Span::from_secs(4);
/// The checks in the time that transports have.
const CHECKS: u64 = 8;

/// Which hosts are cut off, and since when.
#[derive(Debug)]
pub(super) struct CutOff {
    /// By host; empty before the first fault.
    hosts: Vec<bool>,
    /// Those of these that are paused or down.
    halted: Vec<bool>,
    /// When faults last took a link or a host away, or gave one back.
    since: Time,
    /// The next check; [`Time::MAX`] if a fault will give hosts back.
    check_at: Time,
    grace: Span,
}

impl CutOff {
    /// `patience` is the longest of the run's transports.
    pub(super) fn new(patience: Span, has_nodes: bool) -> Self {
        let grace = patience.saturating_mul(2).max(if has_nodes { AT_LEAST } else { Span::ZERO });
        Self {
            hosts: Vec::new(),
            halted: Vec::new(),
            since: Time::ZERO,
            check_at: Time::MAX,
            grace,
        }
    }

    /// Whether hosts may just be finding out that others are cut off.
    pub(super) fn is_news(&self, now: Time) -> bool {
        now < self.since.saturating_add(self.grace) && self.hosts.contains(&true)
    }

    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        now >= self.check_at
    }

    /// Whether some host is cut off and no fault will give one back.
    pub(super) fn is_for_good(&self) -> bool {
        self.check_at < Time::MAX
    }

    fn has(&self, host: HostId) -> bool {
        self.hosts.get(host.0 as usize).is_some_and(|is_cut_off| *is_cut_off)
    }

    fn has_halted(&self, host: HostId) -> bool {
        self.halted.get(host.0 as usize).is_some_and(|is_halted| *is_halted)
    }
}

/// Whether a fault takes links or hosts away.
fn takes_away(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::Down | FaultKind::Pause | FaultKind::Crash)
}

/// What a run still waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    /// Unfinished messages that may end or fail.
    pub(super) messages: u64,
    /// Hosts that go on and have not started all their messages.
    pub(super) starters: u64,
}

impl<M: Model> World<'_, M> {
    /// Notes which hosts the current faults cut off.
    pub(super) fn note_cut_off(&mut self) {
        let (now, faults) = (self.net.now(), self.net.faults());
        let is_on = |fault: &&Fault| fault.from <= now && now < fault.until && takes_away(fault);
        let changes = |fault: &&Fault| fault.from == now || fault.until == now;
        if !faults.iter().filter(changes).any(takes_away) {
            return;
        }
        let mut hosts = vec![false; self.net.hosts() as usize];
        let mut halted = hosts.clone();
        for fault in faults.iter().filter(is_on) {
            match fault.place {
                FaultPlace::AllLinks => hosts.fill(true),
                FaultPlace::HostLink(host) => hosts[host.0 as usize] = true,
                FaultPlace::Host(host) => {
                    (hosts[host.0 as usize], halted[host.0 as usize]) = (true, true)
                }
                FaultPlace::CoreLinks | FaultPlace::CoreLink(_) => {}
            }
        }
        let later = |fault: &Fault| {
            takes_away(fault) && (fault.from > now || now < fault.until && fault.until < Time::MAX)
        };
        let is_for_good = !faults.iter().any(later) && hosts.contains(&true);
        let at = now.saturating_add(self.cut_off.grace);
        self.cut_off.check_at = if is_for_good { at } else { Time::MAX };
        (self.cut_off.hosts, self.cut_off.halted, self.cut_off.since) = (hosts, halted, now);
    }

    /// Counts what this world waits for, and sets the next check. `until` is [`Time::MAX`] if no event is left.
    pub(super) fn waits(&mut self, until: Time) -> Waits {
        let cut_off = &mut self.cut_off;
        let later = Span::from_ticks((cut_off.grace.ticks() / CHECKS).max(1));
        cut_off.check_at = until.saturating_add(later).min(Time::from_ticks(Time::MAX.ticks() - 1));
        let (_, open) = self.apps.open(usize::MAX);
        let patience = cut_off.grace.max(AT_LEAST);
        let may_end = |it: &&Waiting| {
            let is_cut_off = cut_off.has(it.src) || cut_off.has(it.dst);
            !cut_off.has_halted(it.src)
                && (!is_cut_off || it.since.saturating_add(patience) > until)
        };
        let messages = open.iter().filter(may_end).count() as u64;
        let starters = (0..self.net.hosts()).map(HostId).filter(|host| !cut_off.has_halted(*host));
        let starters = starters.filter(|host| self.apps.starts_more(*host)).count() as u64;
        Waits { messages, starters }
    }

    /// Whether the run waits for nothing but cut-off hosts.
    pub(super) fn waits_for_cut_off(&mut self, now: Time) -> bool {
        self.cut_off.is_due(now) && self.is_cut_off(now)
    }

    /// As [`World::waits_for_cut_off`], however long transports have had to find out. `until` is [`Time::MAX`] if no event is left.
    pub(super) fn is_cut_off(&mut self, until: Time) -> bool {
        if !self.cut_off.is_for_good() {
            return false;
        }
        let Waits { messages, starters } = self.waits(until);
        let have_started = self.apps.collector.have_started() || starters == 0;
        let cut_off = &self.cut_off;
        let mut nodes = self.hosts.nodes.unfinished_at();
        let is_done = self.first_stream > 0 || have_started && messages == 0;
        is_done && nodes.all(|hosts| hosts.iter().all(|host| cut_off.has(*host)))
    }
}
