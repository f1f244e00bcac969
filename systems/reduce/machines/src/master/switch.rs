//! A master's dealings with the switch: the reservation, its renewal, and fetching sums.

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{Body, FETCH_SLOTS, Open, Refusal};

use super::super::membership::Silence;
use super::{Aggregation, Config};

/// Why a job has no switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The switch did not answer.
    Silent,
    /// The switch refused.
    Refused(Refusal),
}

/// What follows from a message of the switch, or from its silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    None,
    /// The message belongs to nothing that was asked.
    Stale,
    /// The slots are reserved.
    Ready,
    /// These are sums of an epoch.
    Sums {
        epoch: u16,
        sums: u8,
    },
    /// All sums of the epoch are there, and its slots are free.
    Drained,
    /// The switch has lost what it held.
    Lost,
    /// The job goes on without.
    Without(Absence),
    /// The job will have no switch, as is known before its workers have joined.
    Absent(Absence),
}

/// The most requests for sums at a time. Each brings a packet, so this bounds what meets at the master's link.
const FETCHES: usize = 32;

/// Longer than switches keep the slots of a master that has died ([`crate::switch::Config::lease`]).
pub(crate) const LEASE_AND_MORE: Span = Span::from_secs(12);

#[derive(Clone, Debug)]
enum Phase {
    /// There is no switch, or none any longer.
    Unused,
    /// Not asked yet.
    Idle,
    /// Asked whether it is there. Its answer is a cookie, and reserves nothing.
    Probing,
    /// Slots are being reserved.
    Opening,
    /// Slots are reserved.
    Open,
}

/// A message that is repeated until it is answered.
#[derive(Clone, Copy, Debug, Default)]
struct Repeated {
    at: Option<Time>,
    tries: u32,
}

impl Repeated {
    fn is_due(&self, now: Time) -> bool {
        self.at.is_none_or(|at| at <= now)
    }

    fn sent(&mut self, now: Time, retry: Span) {
        let wait = retry.saturating_mul(1 << self.tries.min(5));
        (self.at, self.tries) = (Some(now.saturating_add(wait)), self.tries + 1);
    }
}

/// The collection of an epoch's sums.
#[derive(Clone, Debug)]
struct Drain {
    epoch: u16,
    /// Which groups of [`FETCH_SLOTS`] slots have been received.
    received: Vec<bool>,
    left: usize,
    /// The next group that has not been asked for.
    next: usize,
    waiting: Vec<(usize, Repeated)>,
    clear: Repeated,
}

#[derive(Clone, Debug)]
pub(super) struct SwitchSide {
    wanted: Option<Aggregation>,
    phase: Phase,
    retry: Span,
    cookie: u64,
    instance: Option<u32>,
    slots: u32,
    open: Repeated,
    /// Since the switch was heard last, or since it was first asked.
    silence: Silence,
    /// Whether the number of the job is in use at the switch: another master has it, or the lease of one that died has not ended.
    is_in_use: bool,
    drain: Option<Drain>,
}

impl SwitchSide {
    pub(super) const fn new(wanted: Option<Aggregation>, retry: Span) -> Self {
        let phase = if wanted.is_some() { Phase::Idle } else { Phase::Unused };
        Self {
            wanted,
            phase,
            retry,
            cookie: 0,
            instance: None,
            slots: 0,
            open: Repeated { at: None, tries: 0 },
            silence: Silence::since(Time::ZERO),
            is_in_use: false,
            drain: None,
        }
    }

    /// Asks whether the switch is there.
    pub(super) fn probe(&mut self, now: Time) {
        if matches!(self.phase, Phase::Idle) {
            (self.phase, self.silence) = (Phase::Probing, Silence::since(now));
        }
    }

    pub(super) fn address(&self) -> Option<HostId> {
        self.wanted.map(|wanted| wanted.switch)
    }

    pub(super) const fn slots(&self) -> u32 {
        self.slots
    }

    /// Whether the switch has slots for the job.
    pub(super) const fn is_used(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    pub(super) const fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening)
    }

    /// Whether sums are being fetched.
    pub(super) const fn is_busy(&self) -> bool {
        self.drain.is_some()
    }

    /// Reserves slots for an attempt. Returns false if there is no switch.
    pub(super) fn begin(&mut self, now: Time) -> bool {
        if matches!(self.phase, Phase::Unused) {
            return false;
        }
        (self.phase, self.silence) = (Phase::Opening, Silence::since(now));
        self.open = Repeated::default();
        self.drain = None;
        true
    }

    /// Collects the sums of an epoch.
    pub(super) fn drain(&mut self, _now: Time, epoch: u16) {
        if self.drain.is_some() {
            return;
        }
        let copies = self.wanted.map_or(1, |wanted| u32::from(wanted.copies.clamp(1, 2)));
        let groups = (self.slots / copies).div_ceil(FETCH_SLOTS) as usize;
        self.drain = Some(Drain {
            epoch,
            received: vec![false; groups],
            left: groups,
            next: 0,
            waiting: Vec::with_capacity(FETCHES),
            clear: Repeated::default(),
        });
    }

    fn without(&mut self, absence: Absence) -> Step {
        self.phase = Phase::Unused;
        self.drain = None;
        Step::Without(absence)
    }

    /// Handles a message from the switch's address with the job's token.
    pub(super) fn handle(&mut self, now: Time, body: &Body, is_current: bool) -> Step {
        match (*body, &self.phase) {
            (_, Phase::Unused | Phase::Idle) => Step::Stale,
            (Body::Challenge { cookie, .. }, phase) => {
                if cookie.get() == self.cookie {
                    return Step::None;
                }
                // Another cookie after the first means another life of the switch.
                let is_lost = matches!(phase, Phase::Open);
                if matches!(phase, Phase::Probing) {
                    self.phase = Phase::Idle;
                }
                self.cookie = cookie.get();
                self.open = Repeated::default();
                if is_lost { Step::Lost } else { Step::None }
            }
            (Body::Opened { slots, instance }, Phase::Opening) if is_current => {
                self.silence.hear(now);
                // Epochs have been chosen for the slots of the first attempt; fewer still give an exact result.
                self.slots = slots;
                (self.instance, self.is_in_use) = (Some(instance), false);
                self.phase = Phase::Open;
                self.open.tries = 0;
                Step::Ready
            }
            (Body::Opened { instance, .. }, Phase::Open) if is_current => {
                self.silence.hear(now);
                self.open.tries = 0;
                if self.instance == Some(instance) { Step::None } else { Step::Lost }
            }
            (Body::Refused { reason: Refusal::InUse }, Phase::Opening) if is_current => {
                self.is_in_use = true;
                Step::None
            }
            // What asks whether the switch is there asks for nothing that can be refused.
            (Body::Refused { .. }, Phase::Probing) => Step::Stale,
            (Body::Refused { reason }, _) if is_current => self.without(Absence::Refused(reason)),
            (Body::Values { epoch, first, sums }, Phase::Open) if is_current => {
                self.silence.hear(now);
                self.values(epoch, first, sums)
            }
            (Body::Cleared { epoch }, Phase::Open) if is_current => {
                self.silence.hear(now);
                match &self.drain {
                    Some(drain) if drain.epoch == epoch && drain.left == 0 => {
                        self.drain = None;
                        Step::Drained
                    }
                    _ => Step::Stale,
                }
            }
            (Body::Unknown, Phase::Open) if is_current => Step::Lost,
            _ => Step::Stale,
        }
    }

    fn values(&mut self, epoch: u16, first: u32, sums: u8) -> Step {
        let Some(drain) = self.drain.as_mut().filter(|drain| drain.epoch == epoch) else {
            return Step::Stale;
        };
        let group = (first / FETCH_SLOTS) as usize;
        let is_new = first.is_multiple_of(FETCH_SLOTS)
            && drain.received.get(group).is_some_and(|received| !received);
        if !is_new {
            return Step::Stale;
        }
        drain.received[group] = true;
        drain.left -= 1;
        drain.waiting.retain(|(waiting, _)| *waiting != group);
        Step::Sums { epoch, sums }
    }

    /// Gives the switch up, or the part of an hour that it has for an answer.
    pub(super) fn handle_timeout(&mut self, now: Time) -> Step {
        let Some(patience) = self.wanted.map(|wanted| wanted.patience) else { return Step::None };
        let patience = self.patience(patience);
        if matches!(self.phase, Phase::Unused | Phase::Idle) || !self.silence.look(now, patience) {
            return Step::None;
        }
        if matches!(self.phase, Phase::Probing) {
            self.phase = Phase::Unused;
            return Step::Absent(Absence::Silent);
        }
        self.without(match self.is_in_use {
            true => Absence::Refused(Refusal::InUse),
            false => Absence::Silent,
        })
    }

    /// How long the switch has for its answer: longer than the lease, if the number of the job is in use.
    fn patience(&self, patience: Span) -> Span {
        if self.is_in_use { patience.max(LEASE_AND_MORE) } else { patience }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let patience = self.patience(self.wanted?.patience);
        let retry = match self.phase {
            Phase::Probing | Phase::Opening => self.open.at.unwrap_or(Time::ZERO),
            Phase::Open => self.renewal(),
            Phase::Unused | Phase::Idle => return None,
        };
        let fetches = self.drain.as_ref().and_then(|drain| {
            let waiting = drain.waiting.iter().filter_map(|(_, repeated)| repeated.at).min();
            if drain.left == 0 { drain.clear.at } else { waiting }
        });
        [Some(self.silence.due(patience)), Some(retry), fetches].into_iter().flatten().min()
    }

    /// The reservation is renewed a few times within the master's patience.
    fn renewal(&self) -> Time {
        let interval = self.wanted.map_or(Span::ZERO, |wanted| wanted.patience / 6);
        let at = self.silence.heard().saturating_add(interval);
        if self.open.tries == 0 { at } else { self.open.at.unwrap_or(at).max(at) }
    }

    /// Returns the next message to the switch.
    pub(super) fn poll(&mut self, now: Time, config: &Config, drained: u16) -> Option<Body> {
        let wanted = self.wanted?;
        let is_due = match self.phase {
            Phase::Probing | Phase::Opening => self.open.is_due(now),
            Phase::Open => self.renewal() <= now,
            Phase::Unused | Phase::Idle => return None,
        };
        if is_due {
            self.open.sent(now, self.retry);
            return Some(Body::Open(Open {
                cookie: Id64::new(self.cookie),
                slots: wanted.slots,
                first_epoch: drained,
                window: config.window,
                copies: wanted.copies.clamp(1, 2),
                operator: config.operator,
                workers: config.members.workers,
                rule: wanted.rule,
            }));
        }
        let retry = self.retry;
        let drain = self.drain.as_mut()?;
        let epoch = drain.epoch;
        let reservation = self.instance.unwrap_or_default() as u16;
        if drain.left == 0 {
            if !drain.clear.is_due(now) {
                return None;
            }
            drain.clear.sent(now, retry);
            return Some(Body::Clear { epoch, reservation });
        }
        let late = drain.waiting.iter_mut().find(|(_, repeated)| repeated.is_due(now));
        if let Some((group, repeated)) = late {
            repeated.sent(now, retry);
            let first = *group as u32 * FETCH_SLOTS;
            return Some(Body::Fetch { epoch, reservation, first });
        }
        if drain.waiting.len() >= FETCHES || drain.next >= drain.received.len() {
            return None;
        }
        let group = drain.next;
        drain.next += 1;
        let mut repeated = Repeated::default();
        repeated.sent(now, retry);
        drain.waiting.push((group, repeated));
        Some(Body::Fetch { epoch, reservation, first: group as u32 * FETCH_SLOTS })
    }
}
