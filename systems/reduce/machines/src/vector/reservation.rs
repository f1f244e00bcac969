//! A pool of slots that a master reserves at an aggregator, and keeps.

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::reduce::{Body, Refusal};

use super::super::master::Absence;
use super::super::master::switch::LEASE_AND_MORE;
use super::super::membership::Silence;

/// What follows from a message of the aggregator, or from its silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    None,
    /// The message belongs to nothing that was asked.
    Stale,
    /// A pool of this size is reserved.
    Ready(u16),
    /// The aggregator has lost what it held.
    Lost,
    /// It does not serve the job.
    Absent(Absence),
}

/// The reservation of one attempt after the other.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub(super) aggregator: HostId,
    pub(super) cookie: u64,
    instance: Option<u32>,
    is_open: bool,
    /// Since the request was made, or the aggregator was heard last.
    silence: Silence,
    /// When the request is due again, and how often it has been made without an answer.
    due: Time,
    tries: u32,
    retry: Span,
    patience: Span,
    /// Whether another job has the number: its lease ends if its master is gone.
    is_in_use: bool,
}

impl Reservation {
    pub(super) const fn new(aggregator: HostId, now: Time, retry: Span, patience: Span) -> Self {
        let (cookie, instance, is_open, tries, is_in_use) = (0, None, false, 0, false);
        let (silence, due) = (Silence::since(now), now);
        Self {
            aggregator,
            cookie,
            instance,
            is_open,
            silence,
            due,
            tries,
            retry,
            patience,
            is_in_use,
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Asks for the next attempt.
    pub(super) fn begin(&mut self, now: Time) {
        (self.is_open, self.due, self.tries) = (false, now, 0);
        (self.silence, self.is_in_use) = (Silence::since(now), false);
    }

    /// Handles a message from the aggregator with the job's token.
    pub(super) fn handle(&mut self, now: Time, body: &Body, is_current: bool) -> Step {
        match *body {
            Body::Challenge { cookie, .. } => {
                if cookie.get() == self.cookie {
                    return Step::None;
                }
                // Another cookie after the first means another life of the aggregator.
                (self.cookie, self.due, self.tries) = (cookie.get(), now, 0);
                if self.is_open { Step::Lost } else { Step::None }
            }
            Body::Opened { slots, instance } if is_current => {
                self.silence.hear(now);
                self.tries = 0;
                self.due = now.saturating_add(self.patience / 6);
                let is_same = self.instance == Some(instance);
                if core::mem::replace(&mut self.is_open, true) {
                    return if is_same { Step::None } else { Step::Lost };
                }
                self.instance = Some(instance);
                Step::Ready(u16::try_from(slots).unwrap_or(u16::MAX))
            }
            Body::Refused { reason: Refusal::InUse } if is_current && !self.is_open => {
                self.is_in_use = true;
                Step::None
            }
            Body::Refused { reason } if is_current => Step::Absent(Absence::Refused(reason)),
            Body::Unknown if is_current && self.is_open => Step::Lost,
            _ => Step::Stale,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Time) -> Step {
        let limit = self.limit();
        if !self.silence.look(now, limit) {
            return Step::None;
        }
        Step::Absent(match self.is_in_use {
            true => Absence::Refused(Refusal::InUse),
            false => Absence::Silent,
        })
    }

    /// After which silence the aggregator is given up: after the lease of another job, if there is one.
    fn limit(&self) -> Span {
        let is_waiting = self.is_in_use && !self.is_open;
        if is_waiting { self.patience.max(LEASE_AND_MORE) } else { self.patience }
    }

    pub(super) fn poll_timeout(&self) -> Time {
        self.due.min(self.silence.due(self.limit()))
    }

    /// Whether a request is to be sent now.
    pub(super) fn poll(&mut self, now: Time) -> bool {
        if self.due > now {
            return false;
        }
        let wait = self.retry.saturating_mul(1 << self.tries.min(5));
        (self.due, self.tries) = (now.saturating_add(wait), self.tries + 1);
        true
    }
}
