//! What the master of a job asks a controller. A request has the whole state of the job, so that repeating one changes nothing.

use rackweave_core::{Span, Time};
use rackweave_rackless::controller::record::Grant;
use rackweave_rackless::controller::{Declared, Phase};
use rackweave_rackless::demand::JobId;

use super::Status;
use crate::study::reduce::job::{Config, Job};

/// How long a master waits for an answer before it repeats its request, as a controller and an agent do.
const REPEAT: Span = Span::from_ms(100);
/// How often it is heard of without news: less than a controller's patience.
const KEEP_ALIVE: Span = Span::from_secs(10);

/// A request of a master.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) job: u16,
    pub(super) nonce: u64,
    pub(super) declared: Declared,
    /// `None` as long as the master does not know it.
    pub(super) id: Option<JobId>,
    pub(super) phase: Phase,
    pub(super) is_over: bool,
}

/// What the controller answers.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) job: u16,
    pub(super) id: Option<JobId>,
    /// The phase that the controller knows of, and whether it knows that the job is over.
    pub(super) known: (Phase, bool),
    pub(super) grant: Option<Grant>,
}

/// The master of a job.
#[derive(Clone, Debug)]
pub(super) struct Master {
    job: u16,
    declared: Declared,
    id: Option<JobId>,
    /// How far the job has come; `None` before its start.
    at: Option<(Phase, bool)>,
    /// How far the controller knows it to have come.
    known: Option<(Phase, bool)>,
    next: Time,
    is_granted: bool,
    /// Whether the controller has sent the grant. Later the master gets it by asking.
    pub(super) is_sent: bool,
}

impl Master {
    pub(super) fn new(job: &Job, config: &Config) -> Self {
        let (job, declared) = (job.number, job.declared(config));
        let (id, at, known) = (None, None, None);
        Self { job, declared, id, at, known, next: Time::ZERO, is_granted: false, is_sent: false }
    }

    pub(super) const fn job(&self) -> u16 {
        self.job
    }

    pub(super) const fn nonce(&self) -> u64 {
        self.job as u64
    }

    /// The job has come this far.
    pub(super) fn has_come(&mut self, now: Time, status: Status) {
        let at = Some((status.phase, status.is_over));
        if self.at != at {
            (self.at, self.next) = (at, now);
        }
    }

    /// A request, if one is due.
    pub(super) fn poll(&mut self, now: Time) -> Option<Request> {
        let (phase, is_over) = self.at.filter(|_| self.next <= now)?;
        let is_known = self.known == self.at;
        if is_known && is_over {
            return None;
        }
        let waits = !is_known || phase == Phase::Ready && !self.is_granted;
        self.next = now.saturating_add(if waits { REPEAT } else { KEEP_ALIVE });
        let (job, nonce, declared) = (self.job, self.nonce(), self.declared.clone());
        Some(Request { job, nonce, declared, id: self.id, phase, is_over })
    }

    /// Handles an answer. Returns the slots with which the upload begins, once.
    pub(super) fn handle(&mut self, answer: Answer) -> Option<u32> {
        self.id = self.id.or(answer.id);
        self.known = self.known.max(Some(answer.known));
        let is_ready = self.at == Some((Phase::Ready, false));
        let grant = answer.grant.filter(|_| is_ready && !self.is_granted)?;
        self.is_granted = true;
        Some(grant.slots)
    }
}
