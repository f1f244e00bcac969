//! Send times of the segments in flight, for congestion controllers that use delays.

use std::collections::VecDeque;

use rackweave_core::Time;

/// In place of a time: the segment was retransmitted (Karn's algorithm), or its delay was measured.
const NONE: Time = Time::MAX;

/// For each segment in flight, its end and when it was sent.
#[derive(Clone, Debug, Default)]
pub(super) struct SendTimes(VecDeque<(u64, Time)>);

impl SendTimes {
    /// Records the first transmission of a segment that ends here.
    pub(super) fn sent(&mut self, end: u64, now: Time) {
        self.0.push_back((end, now));
    }

    /// Records that the bytes from `start` to `end` were retransmitted, so that their acknowledgement is
    /// ambiguous.
    pub(super) fn retransmitted(&mut self, start: u64, end: u64) {
        self.take_range(start, end);
    }

    /// Handles a cumulative acknowledgement up to `una`: the latest time among its segments that has not been
    /// taken.
    pub(super) fn acked(&mut self, una: u64) -> Option<Time> {
        let mut latest = None;
        while let Some(&(end, at)) = self.0.front()
            && end <= una
        {
            latest = latest.max(Some(at).filter(|at| *at != NONE));
            self.0.pop_front();
        }
        latest
    }

    /// Handles a selectively acknowledged range: as [`SendTimes::acked`], for the segments within it.
    pub(super) fn sacked(&mut self, start: u64, end: u64) -> Option<Time> {
        self.take_range(start, end)
    }

    /// Takes the times of the segments that end in the range, and returns the latest.
    fn take_range(&mut self, start: u64, end: u64) -> Option<Time> {
        let first = self.0.partition_point(|segment| segment.0 <= start);
        let mut latest = None;
        for (_, at) in self.0.range_mut(first..).take_while(|segment| segment.0 <= end) {
            latest = latest.max(Some(core::mem::replace(at, NONE)).filter(|at| *at != NONE));
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> SendTimes {
        let mut times = SendTimes::default();
        for (end, at) in [(10, 1), (20, 2), (30, 3)] {
            times.sent(end, Time::from_ticks(at));
        }
        times
    }

    #[test]
    fn each_time_is_taken_once_and_the_latest_counts() {
        let mut times = three();
        assert_eq!(times.acked(9), None);
        assert_eq!(times.sacked(10, 30), Some(Time::from_ticks(3)));
        assert_eq!(times.sacked(10, 30), None);
        assert_eq!(times.acked(30), Some(Time::from_ticks(1)));
        assert!(times.0.is_empty());
    }

    #[test]
    fn segments_sent_twice_have_no_time() {
        let mut times = three();
        times.retransmitted(10, 20);
        assert_eq!(times.acked(20), Some(Time::from_ticks(1)));
        let mut times = three();
        times.retransmitted(0, 30);
        assert_eq!(times.acked(30), None);
    }
}
