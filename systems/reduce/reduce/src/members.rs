//! What a master reports of its workers.

use rackweave_core::{Span, Time};
use rackweave_wire::reduce::Rejection;

/// The time before the first report, and between two whose workers differ.
const SOON: Span = Span::from_secs(5);
/// The time between two reports of the same workers.
const AGAIN: Span = Span::from_secs(30);

/// What a master reports of its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// A worker has joined.
    Joined {
        /// Its number.
        worker: u8,
        /// Its address.
        address: String,
    },
    /// A worker ends before the job. Another process can take its place.
    Left {
        /// Its number.
        worker: u8,
    },
    /// A process wants to be a worker, and is not taken. It hears why, and ends.
    NotTaken {
        /// The number that it asks for.
        worker: u8,
        /// Its address.
        address: String,
        /// Why not.
        why: Rejection,
    },
    /// These workers have not joined, or have left: reported after 5 s, when others are missing, and every 30 s.
    Waiting {
        /// Their numbers.
        workers: Vec<u8>,
    },
}

/// What a worker waits for: reported after 5 s, and every 30 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// The master has not taken it.
    Master,
    /// Other workers have not joined.
    Workers,
    /// The master has all sums, and writes the result.
    Result,
}

/// What a worker has reported of what it waits for.
#[derive(Debug)]
pub(crate) struct Awaiting(Waiting);

impl Awaiting {
    pub(crate) const fn new(now: Time) -> Self {
        Self(Waiting::new(now))
    }

    /// Returns what the worker waits for, if it is time to report it.
    pub(crate) fn due(&mut self, now: Time, waits: Option<Waits>) -> Option<Waits> {
        self.0.due(now, waits.map(|waits| waits as u8).into_iter()).and(waits)
    }
}

/// What a master has reported of the workers that have not joined.
#[derive(Debug)]
pub(crate) struct Waiting {
    reported: Vec<u8>,
    /// When it was reported; before that, since when the master waits.
    at: Time,
}

impl Waiting {
    pub(crate) const fn new(now: Time) -> Self {
        Self { reported: Vec::new(), at: now }
    }

    /// Returns the workers that are missing, if it is time to report them.
    pub(crate) fn due(&mut self, now: Time, missing: impl Iterator<Item = u8>) -> Option<Vec<u8>> {
        let waited = now.since(self.at);
        if waited < SOON {
            return None;
        }
        let missing: Vec<u8> = missing.collect();
        if missing.is_empty() {
            *self = Self::new(now);
            return None;
        }
        if missing == self.reported && waited < AGAIN {
            return None;
        }
        *self = Self { reported: missing.clone(), at: now };
        Some(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_missing_is_reported_after_five_seconds_when_it_changes_and_twice_a_minute() {
        let mut waiting = Waiting::new(Time::ZERO);
        let mut reports = Vec::new();
        for second in 0..120 {
            let missing: &[u8] = match second {
                0..12 => &[0, 1, 3],
                12..14 => &[1, 3],
                14..80 => &[3],
                80..100 => &[],
                _ => &[2],
            };
            let now = Time::ZERO + Span::from_secs(second);
            if let Some(workers) = waiting.due(now, missing.iter().copied()) {
                reports.push((second, workers));
            }
        }
        let expected = [
            (5, vec![0, 1, 3]),
            (12, vec![1, 3]),
            (17, vec![3]),
            (47, vec![3]),
            (77, vec![3]),
            (102, vec![2]),
        ];
        assert_eq!(reports, expected);
    }
}
