//! How long a peer has been silent, as a host can judge that may itself not have run meanwhile.

use rackweave_core::{Span, Time};

/// How often a host must have looked for a sign of a peer before it gives the peer up. A process that did not run (starved, stopped, on a
/// machine that was suspended) finds the limit exceeded at its first turn, though the peer's messages wait in its socket, or though it has not
/// asked. The number is Rackweave's: turns handle 256 datagrams each, so that what had arrived in a full socket has
/// been read before the last look.
const LOOKS: u32 = 20;

/// Looks are made in the last sixth of the limit, so that without pauses a peer is given up exactly then.
const LAST: u64 = 6;

/// The silence of a peer: when it was heard last, and how often it has been looked for since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    heard: Time,
    /// The number of looks, and the time of the latest.
    looks: (u32, Time),
}

impl Silence {
    /// A silence that begins now.
    pub(crate) const fn since(now: Time) -> Self {
        Self { heard: now, looks: (0, now) }
    }

    /// The peer has been heard.
    pub(crate) fn hear(&mut self, now: Time) {
        *self = Self::since(self.heard.max(now));
    }

    /// When the peer was heard last.
    pub(crate) const fn heard(&self) -> Time {
        self.heard
    }

    fn interval(limit: Span) -> Span {
        Span::from_ticks(limit.ticks() / (LAST * u64::from(LOOKS)))
    }

    /// When [`Silence::look`] is due.
    pub(crate) fn due(&self, limit: Span) -> Time {
        let (looks, at) = self.looks;
        if looks > 0 {
            return at.saturating_add(Self::interval(limit));
        }
        let early = Self::interval(limit).saturating_mul(u64::from(LOOKS) - 1);
        self.heard.saturating_add(Span::from_ticks(limit.ticks() - early.ticks()))
    }

    /// Looks for the peer, if that is due, after what has arrived was handled. Returns whether the peer is given up: it has been silent for the limit, and was looked for often enough.
    pub(crate) fn look(&mut self, now: Time, limit: Span) -> bool {
        if now >= self.due(limit) {
            self.looks = (self.looks.0.saturating_add(1), now);
        }
        self.looks.0 >= LOOKS && now >= self.heard.saturating_add(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Span = Span::from_secs(30);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    /// Looks whenever that is due, but no more often than a process that has a turn at these intervals. Returns when the peer is given up.
    fn given_up(silence: &mut Silence, mut now: Time, turns: Span) -> Time {
        loop {
            now = silence.due(LIMIT).max(now + turns);
            if silence.look(now, LIMIT) {
                return now;
            }
        }
    }

    #[test]
    fn without_pauses_the_limit_is_exact() {
        let mut silence = Silence::since(at(1000));
        assert_eq!(given_up(&mut silence, at(1000), Span::from_ms(1)), at(31_000));
        silence.hear(at(40_000));
        assert_eq!(silence.heard(), at(40_000));
        // One that looks late by less than the interval needs no longer either.
        assert_eq!(given_up(&mut silence, at(40_000), Span::from_ms(250)), at(70_000));
    }

    #[test]
    fn a_host_that_did_not_run_looks_before_it_gives_a_peer_up() {
        // It was stopped for an hour.
        let mut silence = Silence::since(at(0));
        assert!(!silence.look(at(3_600_000), LIMIT));
        assert_eq!(given_up(&mut silence, at(3_600_000), Span::from_ms(1)), at(3_604_750));
        // It has a turn every three seconds.
        let mut silence = Silence::since(at(0));
        let end = given_up(&mut silence, at(0), Span::from_secs(3));
        assert!(end >= at(60_000) && end <= at(90_000), "{end}");
        // It looks once more often than needed, and hears the peer.
        silence.hear(at(100_000));
        assert!(!silence.look(at(100_000), LIMIT));
    }
}
