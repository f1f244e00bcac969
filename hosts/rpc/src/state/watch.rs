//! Whether this node ran when it should have: what looks like a silent peer may be a process that was stopped.

use rackweave_core::{Span, Time};

/// A node that runs later than it should by this was stopped, starved of processor time or busy with something else. It is much more than processes
/// wait for a processor.
const PAUSE: Span = Span::from_ms(500);

/// How long after a pause it is still the likely cause of a peer's silence: longer than transports wait for one.
const PATIENCE: Span = Span::from_secs(3);

/// The pauses of a node, from what its driver reads of the clock.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// When the node last was seen to run, while it is at work; `None` while it waits for its timer.
    runs: Option<Time>,
    /// When the last pause ended, and how long it was.
    pause: Option<(Time, Span)>,
}

impl Watch {
    /// The node runs. Its timer was to fire at `armed`.
    pub(super) fn runs(&mut self, now: Time, armed: Time) {
        if let Some(late) = self.late(now, armed) {
            self.pause = Some((now, late));
        }
        self.runs = Some(now);
    }

    /// The node has nothing to do before its timer fires.
    pub(super) const fn waits(&mut self) {
        self.runs = None;
    }

    /// For how long this node did not run, if that was so until shortly before.
    pub(super) fn paused(&self, now: Time, armed: Time) -> Option<Span> {
        let before = self.pause.filter(|(at, _)| now.since(*at) < PATIENCE).map(|(_, late)| late);
        // A task may ask before the driver has run.
        self.late(now, armed).or(before)
    }

    fn late(&self, now: Time, armed: Time) -> Option<Span> {
        let late = now.since(self.runs.unwrap_or(armed));
        (late >= PAUSE).then_some(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    #[test]
    fn a_timer_that_is_served_late_is_a_pause() {
        let mut watch = Watch::default();
        watch.runs(at(1_000), at(999));
        watch.waits();
        assert_eq!(watch.paused(at(1_200), at(1_100)), None);
        assert_eq!(
            watch.paused(at(5_000), at(1_100)),
            Some(Span::from_ms(3_900)),
            "a task asks first"
        );
        watch.runs(at(5_000), at(1_100));
        watch.waits();
        assert_eq!(watch.paused(at(7_900), at(8_000)), Some(Span::from_ms(3_900)));
        assert_eq!(watch.paused(at(8_000), at(8_000)), None, "too long ago");
    }

    #[test]
    fn a_process_that_is_stopped_in_the_middle_of_its_work_has_paused() {
        let mut watch = Watch::default();
        watch.runs(at(1_000), at(1_000));
        // The timer has fired, and no other is armed.
        assert_eq!(watch.paused(at(5_000), Time::MAX), Some(Span::from_ms(4_000)));
        watch.runs(at(5_000), Time::MAX);
        watch.waits();
        assert_eq!(watch.paused(at(5_001), at(5_100)), Some(Span::from_ms(4_000)));
    }

    #[test]
    fn a_node_that_waits_has_not_paused() {
        let mut watch = Watch::default();
        watch.runs(at(1_000), Time::MAX);
        watch.waits();
        watch.runs(at(9_000), at(60_000));
        assert_eq!(watch.paused(at(9_000), at(60_000)), None);
    }
}
