//! A client's files.

use rackweave_core::{Span, Time};

/// The longest time in which no new byte came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Since when.
    pub from: Time,
    /// For how long.
    pub span: Span,
}

/// What a client has of the files, which follow each other in one stream of bytes, and when it came.
#[derive(Clone, Debug)]
pub struct Deliveries {
    /// Where each file ends in the stream.
    ends: Vec<u64>,
    /// When each was whole.
    completed: Vec<Time>,
    last: Option<Time>,
    /// Gaps that began before this time are the normal ones.
    fault: Time,
    before: Gap,
    after: Gap,
}

impl Deliveries {
    /// Of these files. `fault`: the time from which on gaps are told apart from those before.
    #[must_use]
    pub fn new(files: &[u64], fault: Time) -> Self {
        let ends = files.iter().scan(0_u64, |end, bytes| {
            *end = end.saturating_add(*bytes);
            Some(*end)
        });
        let (completed, gap) = (Vec::new(), Gap::default());
        Self { ends: ends.collect(), completed, last: None, fault, before: gap, after: gap }
    }

    /// New bytes have come, in order or not.
    pub fn arrived(&mut self, now: Time) {
        let from = self.last.replace(now).unwrap_or(now);
        // A gap that the fault falls into began before it.
        let gap = Gap { from, span: now.since(from) };
        let longest = if now > self.fault { &mut self.after } else { &mut self.before };
        if gap.span > longest.span {
            *longest = gap;
        }
    }

    /// The stream is here up to `upto`, without gaps. How many files are whole by now, if that has changed.
    pub fn readable(&mut self, now: Time, upto: u64) -> Option<u32> {
        let had = self.completed.len();
        while self.ends.get(self.completed.len()).is_some_and(|end| *end <= upto) {
            self.completed.push(now);
        }
        (self.completed.len() > had).then_some(self.completed.len() as u32)
    }

    /// The end of the file that comes next: `None` if all are here.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        self.ends.get(self.completed.len()).copied()
    }

    /// Where the file that comes next begins.
    #[must_use]
    pub fn next_begin(&self) -> u64 {
        self.completed.len().checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// When each file was whole, as far as they are.
    #[must_use]
    pub fn completed(&self) -> &[Time] {
        &self.completed
    }

    /// Whether all files are here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.completed.len() == self.ends.len()
    }

    /// The longest gaps between new bytes: of those that ended before the fault, and of the others.
    #[must_use]
    pub const fn gaps(&self) -> (Gap, Gap) {
        (self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_when_their_last_byte_is_here() {
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
