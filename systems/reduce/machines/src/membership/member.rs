//! What a master knows of one worker.

use rackweave_core::{HostId, Span, Time};

use super::Silence;

/// Who has joined under a worker's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The first to have this number.
    First,
    /// The process that has it already.
    Known,
    /// Another process, in place of one that is silent.
    Replaced,
    /// Another process, while the one that has the number is alive.
    Taken,
    /// Another process with other input; nothing of it can be used.
    OtherInput,
}

/// What a process that says that it ends was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// A worker, which has left.
    Left,
    /// A worker that has said so before.
    Again,
    /// No worker.
    Stranger,
}

/// A worker.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    process: Option<(HostId, u32)>,
    /// The digest of its pairs.
    digest: u64,
    /// Whether a process with other pairs wanted its place.
    has_met_other: bool,
    silence: Silence,
    /// When a message of it arrived last.
    alive: Time,
    /// Since when it owes an answer to a state.
    owes_since: Option<Time>,
    /// The version of the state that it has confirmed.
    confirmed: u32,
    /// The version that was announced last, when, and how often.
    announced: (u32, Time, u32),
    is_idle: bool,
    /// Whether the process has said that it ends.
    has_left: bool,
}

impl Default for Member {
    /// A worker that nobody has joined as.
    fn default() -> Self {
        Self {
            process: None,
            digest: 0,
            has_met_other: false,
            silence: Silence::since(Time::ZERO),
            alive: Time::ZERO,
            owes_since: None,
            confirmed: 0,
            announced: (0, Time::ZERO, 0),
            is_idle: false,
            has_left: false,
        }
    }
}

impl Member {
    pub(super) fn join(
        &mut self,
        now: Time,
        (host, instance): (HostId, u32),
        (digest, must_equal): (u64, bool),
        takeover: Span,
    ) -> Arrival {
        let arrival = match self.process {
            None => Arrival::First,
            Some(process) if process == (host, instance) => {
                // It repeats its message, so it has no state yet.
                self.confirmed = 0;
                self.hear(now);
                return Arrival::Known;
            }
            Some(_) if !self.has_left && !self.is_missing(now, takeover) => {
                return Arrival::Taken;
            }
            Some(_) if must_equal && digest != self.digest => {
                self.has_met_other = true;
                return Arrival::OtherInput;
            }
            Some(_) => Arrival::Replaced,
        };
        self.digest = digest;
        self.process = Some((host, instance));
        self.hear(now);
        (self.confirmed, self.announced) = (0, (0, Time::ZERO, 0));
        (self.is_idle, self.has_left) = (false, false);
        arrival
    }

    pub(super) const fn has_joined(&self) -> bool {
        self.process.is_some()
    }

    pub(super) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether a process with other pairs wanted its place.
    pub(super) const fn has_met_other(&self) -> bool {
        self.has_met_other
    }

    /// The process ends. If the job has not begun, its place is as if nobody had joined.
    pub(super) const fn leave(&mut self, has_begun: bool) {
        if has_begun {
            self.has_left = true;
        } else {
            self.process = None;
        }
    }

    /// Its address; that of no host if it has not joined.
    pub(super) fn host(&self) -> HostId {
        self.process.map_or(HostId(u32::MAX), |(host, _)| host)
    }

    pub(super) fn instance(&self) -> u32 {
        self.process.map_or(0, |(_, instance)| instance)
    }

    /// A message of it has arrived.
    pub(crate) fn hear(&mut self, now: Time) {
        self.alive = now;
        self.excuse(now);
    }

    /// Its silence begins now.
    pub(super) fn excuse(&mut self, now: Time) {
        self.silence.hear(now);
        self.owes_since = None;
    }

    /// When a message of it arrived last.
    pub(super) const fn alive(&self) -> Time {
        self.alive
    }

    /// Whether it has not answered a state for this long. A master that did not run has not asked.
    fn is_missing(&self, now: Time, takeover: Span) -> bool {
        self.owes_since.is_some_and(|since| now >= since.saturating_add(takeover))
    }

    /// When [`Member::is_silent`] is to be called.
    pub(super) fn silent_due(&self, give_up: Span) -> Time {
        self.silence.due(give_up)
    }

    /// Looks for a sign of the process that has joined; whether it is given up.
    pub(super) fn is_silent(&mut self, now: Time, give_up: Span) -> bool {
        self.has_joined() && self.silence.look(now, give_up)
    }

    pub(crate) const fn confirm(&mut self, version: u32, idle: bool) {
        (self.confirmed, self.is_idle) = (version, idle);
    }

    /// Whether it has this version of the state.
    pub(super) const fn has(&self, version: u32) -> bool {
        self.confirmed == version
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// When the state is to be sent to it: at once if the version is new, then after the retry time, which doubles up to the keepalive.
    pub(super) fn due(&self, version: u32, retry: Span, keepalive: Span) -> Time {
        let (announced, at, tries) = self.announced;
        if announced != version {
            return Time::ZERO;
        }
        let wait = if self.has(version) {
            keepalive
        } else {
            retry.saturating_mul(1 << tries.min(16)).min(keepalive)
        };
        at.saturating_add(wait)
    }

    pub(super) fn announce(&mut self, now: Time, version: u32) {
        let tries = if self.announced.0 == version { self.announced.2 + 1 } else { 0 };
        self.announced = (version, now, tries);
        self.owes_since.get_or_insert(now);
    }

    /// It has something under way until it says that it does not.
    pub(super) const fn make_busy(&mut self) {
        self.is_idle = false;
    }
}
