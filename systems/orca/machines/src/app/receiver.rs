//! The receiver of casts.

use std::ops::Range;

use rackweave_core::{RangeSet, Span, Time};

use super::{Record, Report};

/// The application of a host that receives casts as one byte stream. See the [module](super).
#[derive(Clone, Debug)]
pub struct Receiver {
    /// The end offset of each cast in the stream.
    ends: Vec<u64>,
    stored: RangeSet,
    delivered: usize,
    records: Vec<Record>,
    last: Option<Time>,
    /// Gaps that end before this time count as normal: the run's first host crash.
    fault: Time,
    longest_before: Span,
    longest: Span,
    wrong: u64,
}

impl Receiver {
    /// Returns a receiver of casts of these lengths in bytes. Intervals without a new byte that end after `fault` are
    /// recorded separately.
    #[must_use]
    pub fn new(casts: &[u64], fault: Time) -> Self {
        let ends = casts.iter().scan(0_u64, |end, bytes| {
            *end = end.saturating_add(*bytes);
            Some(*end)
        });
        Self {
            ends: ends.collect(),
            stored: RangeSet::default(),
            delivered: 0,
            records: Vec::new(),
            last: None,
            fault,
            longest_before: Span::ZERO,
            longest: Span::ZERO,
            wrong: 0,
        }
    }

    /// Records that these bytes of the stream have been stored.
    pub fn stored(&mut self, now: Time, bytes: Range<u64>) {
        if self.stored.insert(bytes) == 0 {
            return;
        }
        let gap = now.since(self.last.replace(now).unwrap_or(now));
        let longest = if now > self.fault { &mut self.longest } else { &mut self.longest_before };
        *longest = gap.max(*longest);
    }

    /// Records that the carrier has all bytes of the stream below `upto`; those of them that were not stored count as
    /// wrong. Returns the total number of casts to acknowledge if it has changed.
    pub fn readable(&mut self, now: Time, upto: u64) -> Option<u32> {
        self.wrong += upto.saturating_sub(self.contiguous());
        let had = self.delivered;
        while self.ends.get(self.delivered).is_some_and(|end| *end <= upto) {
            self.records.push(Record::Delivered { cast: self.delivered as u32, at: now });
            self.delivered += 1;
        }
        (self.delivered > had).then_some(self.delivered as u32)
    }

    /// Handles a crash of the host, which loses the stored bytes. The records are kept.
    pub fn crashed(&mut self) {
        self.stored = RangeSet::default();
    }

    /// Records the end of the stream and its length in bytes.
    pub fn ended(&mut self, length: u64) {
        self.wrong += length.abs_diff(self.total());
    }

    /// Counts bytes that differ from the ones sent or are at a wrong offset.
    pub const fn damaged(&mut self, bytes: u64) {
        self.wrong += bytes;
    }

    /// Returns the length of all casts together in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the offset below which all bytes are stored.
    #[must_use]
    pub fn contiguous(&self) -> u64 {
        self.stored.first_missing(0)
    }

    /// Returns the start offset of the first incomplete cast.
    #[must_use]
    pub fn next_start(&self) -> u64 {
        self.delivered.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// Returns the number of complete casts.
    #[must_use]
    pub const fn delivered(&self) -> usize {
        self.delivered
    }

    /// Returns whether all casts are complete.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.delivered == self.ends.len()
    }

    /// Returns this host's report for the [`Collector`](super::Collector).
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            records: self.records.clone(),
            longest_gap_before: self.longest_before,
            longest_gap: self.longest,
            wrong_bytes: self.wrong,
            ..Report::default()
        }
    }
}
