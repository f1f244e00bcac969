//! The files of a client.

use rackweave_core::{Span, Time};

/// A time in which no new byte arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The beginning.
    pub from: Time,
    /// The duration.
    pub span: Span,
}

/// What a client has received of the files, which follow each other in one stream of bytes, and when.
#[derive(Clone, Debug)]
pub struct Deliveries {
    /// The end of each file in the stream.
    ends: Vec<u64>,
    /// When each file was complete.
    completed: Vec<Time>,
    last: Option<Time>,
    /// Gaps that end before this time count as normal.
    fault: Time,
    before: Gap,
    after: Gap,
}

impl Deliveries {
    /// A client of these files, given by their lengths. Gaps from the time of the `fault` on are counted separately.
    #[must_use]
    pub fn new(files: &[u64], fault: Time) -> Self {
        let ends = files.iter().scan(0_u64, |end, bytes| {
            *end = end.saturating_add(*bytes);
            Some(*end)
        });
        let (completed, gap) = (Vec::new(), Gap::default());
        Self { ends: ends.collect(), completed, last: None, fault, before: gap, after: gap }
    }

    /// New bytes have arrived, in order or not.
    pub fn arrived(&mut self, now: Time) {
        let from = self.last.replace(now).unwrap_or(now);
        let gap = Gap { from, span: now.since(from) };
        let longest = if now > self.fault { &mut self.after } else { &mut self.before };
        if gap.span > longest.span {
            *longest = gap;
        }
    }

    /// All bytes of the stream below `upto` have arrived. Returns the number of complete files, if that has changed.
    pub fn readable(&mut self, now: Time, upto: u64) -> Option<u32> {
        let had = self.completed.len();
        while self.ends.get(self.completed.len()).is_some_and(|end| *end <= upto) {
            self.completed.push(now);
        }
        (self.completed.len() > had).then_some(self.completed.len() as u32)
    }

    /// The end of the first incomplete file; `None` if all are complete.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        self.ends.get(self.completed.len()).copied()
    }

    /// The beginning of the first incomplete file.
    #[must_use]
    pub fn next_start(&self) -> u64 {
        self.completed.len().checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// When each complete file was complete.
    #[must_use]
    pub fn completed(&self) -> &[Time] {
        &self.completed
    }

    /// Whether all files are complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.completed.len() == self.ends.len()
    }

    /// The longest gap between new bytes of those that ended before the fault, and of the others.
    #[must_use]
    pub const fn gaps(&self) -> (Gap, Gap) {
        (self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_complete_with_their_last_byte() {
        let mut deliveries = Deliveries::new(&[10, 5, 5], Time::MAX);
        assert_eq!(deliveries.readable(Time(1), 9), None);
        assert_eq!(deliveries.readable(Time(2), 10), Some(1));
        assert_eq!(deliveries.readable(Time(3), 12), None);
        assert_eq!((deliveries.next_end(), deliveries.is_complete()), (Some(15), false));
        assert_eq!(deliveries.readable(Time(4), 20), Some(3));
        assert_eq!(deliveries.completed(), [Time(2), Time(4), Time(4)]);
        assert!(deliveries.is_complete());
    }

    #[test]
    fn gaps_before_and_after_a_fault() {
        let mut deliveries = Deliveries::new(&[10], Time(50));
        for at in [10, 12, 20, 47, 90, 100] {
            deliveries.arrived(Time(at));
        }
        let (before, after) = deliveries.gaps();
        assert_eq!(
            (before, after),
            (Gap { from: Time(20), span: Span(27) }, Gap { from: Time(47), span: Span(43) })
        );
    }
}
