//! A worker's place in a job.

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{Body, Header};

use super::Silence;

/// A worker's place in a job, as the worker knows it: how it joins, what the master's messages must carry, and the master's silence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    job: u16,
    worker: u8,
    master: HostId,
    instance: u32,
    join_interval: Span,
    cookie: u64,
    join_at: Option<Time>,
    /// The job's token and attempt, as far as the master has named them.
    token: u64,
    attempt: u16,
    /// Since the master was heard last.
    silence: Silence,
}

impl Place {
    /// A worker that joins now, and again at intervals until the master answers. `instance` is a random number of this life of it.
    pub(crate) const fn new(
        (job, worker): (u16, u8),
        master: HostId,
        instance: u32,
        join_interval: Span,
        now: Time,
    ) -> Self {
        Self {
            job,
            worker,
            master,
            instance,
            join_interval,
            cookie: 0,
            join_at: Some(now),
            token: 0,
            attempt: 0,
            silence: Silence::since(now),
        }
    }

    /// Whether a message names the worker.
    pub(crate) const fn is_named_by(&self, header: &Header) -> bool {
        header.job == self.job && header.worker == self.worker
    }

    /// Whether a message that names this instance is the master's.
    pub(crate) fn is_for(&self, from: HostId, instance: u32) -> bool {
        from == self.master && instance == self.instance
    }

    /// The master wants its cookie to be repeated, before it has announced any state.
    pub(crate) fn challenge(&mut self, now: Time, from: HostId, instance: u32, cookie: u64) {
        if self.is_for(from, instance) && cookie != self.cookie {
            self.cookie = cookie;
            self.join_at = Some(now);
            self.silence.hear(now);
        }
    }

    /// The master has announced a state of the job with this token.
    pub(crate) const fn enter(&mut self, token: u64) {
        (self.join_at, self.token) = (None, token);
    }

    /// The worker takes part in this attempt from now on.
    pub(crate) const fn begin(&mut self, attempt: u16) {
        self.attempt = attempt;
    }

    pub(crate) const fn token(&self) -> u64 {
        self.token
    }

    pub(crate) const fn attempt(&self) -> u16 {
        self.attempt
    }

    /// Whether a message is of this job and attempt.
    pub(crate) const fn is_current(&self, header: &Header) -> bool {
        header.token.get() == self.token && header.attempt == self.attempt
    }

    /// The master has been heard.
    pub(crate) fn hear(&mut self, now: Time) {
        self.silence.hear(now);
    }

    /// Looks for a sign of the master; whether it is given up.
    pub(crate) fn is_silent(&mut self, now: Time, give_up: Span) -> bool {
        self.silence.look(now, give_up)
    }

    /// Returns when the worker joins again, or looks for the master.
    pub(crate) fn due(&self, give_up: Span) -> Time {
        let silent = self.silence.due(give_up);
        self.join_at.map_or(silent, |at| at.min(silent))
    }

    /// Returns the instance and the cookie with which the worker joins, if that is due.
    pub(crate) fn poll_join(&mut self, now: Time) -> Option<(u32, Id64)> {
        self.join_at.filter(|at| *at <= now)?;
        self.join_at = Some(now.saturating_add(self.join_interval));
        Some((self.instance, Id64::new(self.cookie)))
    }

    /// A message of the worker.
    pub(crate) const fn header(&self, body: Body) -> Header {
        let Self { job, worker, attempt, .. } = *self;
        Header { job, attempt, worker, token: Id64::new(self.token), body }
    }
}
