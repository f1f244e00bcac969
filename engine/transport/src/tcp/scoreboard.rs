//! The segments in flight: when each was sent last, and what is known of it.
//!
//! This is RFC 6675's scoreboard in the form of Linux's retransmission queue: RACK needs the time of each
//! transmission (RFC 8985, section 5.2). Segments keep the boundaries of their first transmission.

use std::collections::VecDeque;
use std::ops::Range;

use rackweave_core::{RangeSet, Span, Time};

use super::rack::Rack;
use super::sender::Segment;

/// The segment was selectively acknowledged.
const SACKED: u8 = 1;
/// A transmission of the segment was lost.
const LOST: u8 = 2;
/// A retransmission of the segment is in flight.
const RESENT: u8 = 4;
/// The segment was retransmitted at some time, so that its acknowledgement is ambiguous (Karn's algorithm).
const AMBIGUOUS: u8 = 8;

/// A segment in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// Position after its last byte.
    pub(super) end: u64,
    /// Time of its last transmission.
    pub(super) at: Time,
    len: u32,
    state: u8,
}

impl Sent {
    const fn start(&self) -> u64 {
        self.end - self.len as u64
    }

    const fn is(&self, state: u8) -> bool {
        self.state & state != 0
    }

    /// Whether it was sent more than once.
    pub(super) const fn is_ambiguous(&self) -> bool {
        self.is(AMBIGUOUS)
    }

    /// Whether it waits for its retransmission.
    const fn waits(&self) -> bool {
        self.is(LOST) && !self.is(RESENT)
    }

    const fn segment(&self) -> Segment {
        Segment { position: self.start(), len: self.len as u64 }
    }
}

/// Sums of bytes over the segments in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    sacked: u64,
    lost: u64,
    resent: u64,
    waiting: u64,
}

impl Sums {
    /// Counts `len` bytes of a segment in this state, by `with`.
    fn count(&mut self, segment: &Sent, len: u64, with: impl Fn(u64, u64) -> u64) {
        if segment.is(SACKED) {
            self.sacked = with(self.sacked, len);
        }
        if segment.is(LOST) {
            self.lost = with(self.lost, len);
        }
        if segment.is(RESENT) {
            self.resent = with(self.resent, len);
        }
        if segment.waits() {
            self.waiting = with(self.waiting, len);
        }
    }
}

/// What a search for losses has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// Number of bytes that were found lost.
    pub(super) bytes: u64,
    /// Whether a retransmission was among them.
    pub(super) resent: bool,
    /// Time until all segments that may be lost are lost, if they are not acknowledged; zero if there are none.
    pub(super) wait: Span,
}

/// All segments in flight, in the order of the stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    segments: VecDeque<Sent>,
    sums: Sums,
    sacked_segments: u32,
    /// No segment that starts below waits for its retransmission.
    waiting_from: u64,
    /// Every segment that ends at or below is SACKed or lost.
    searched_below: u64,
}

impl Scoreboard {
    /// Records the first transmission of a segment, which is the next one of the stream.
    pub(super) fn sent(&mut self, segment: Segment, now: Time) {
        let (end, len) = (segment.position + segment.len, segment.len as u32);
        self.segments.push_back(Sent { end, at: now, len, state: 0 });
    }

    /// Records a retransmission of the segment that starts at this position.
    pub(super) fn resent(&mut self, position: u64, now: Time) {
        let index = self.segments.partition_point(|segment| segment.end <= position);
        let Some(segment) = self.segments.get_mut(index) else { return };
        segment.at = now;
        let state = segment.state | RESENT | AMBIGUOUS;
        if segment.waits() {
            self.waiting_from = segment.end;
        }
        self.set(index, state);
    }

    /// Number of bytes of SACKed segments.
    pub(super) const fn sacked(&self) -> u64 {
        self.sums.sacked
    }
    pub(super) const fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }
    /// Number of bytes of lost segments, retransmitted ones included.
    pub(super) const fn lost(&self) -> u64 {
        self.sums.lost
    }
    /// Number of bytes whose retransmissions are in flight.
    pub(super) const fn in_retransmission(&self) -> u64 {
        self.sums.resent
    }
    /// Number of bytes that wait for their retransmission.
    pub(super) const fn waiting(&self) -> u64 {
        self.sums.waiting
    }

    /// The first segment that waits for its retransmission.
    pub(super) fn next_lost(&self) -> Option<Segment> {
        if self.sums.waiting == 0 {
            return None;
        }
        let from = self.segments.partition_point(|segment| segment.start() < self.waiting_from);
        self.segments.range(from..).find(|segment| segment.waits()).map(Sent::segment)
    }

    /// The last segment in flight, unless it was SACKed.
    pub(super) fn last(&self) -> Option<Segment> {
        self.segments.back().filter(|segment| !segment.is(SACKED)).map(Sent::segment)
    }

    /// Handles a cumulative acknowledgement. Calls `arrived` for each segment that was not SACKed before.
    #[inline]
    pub(super) fn acknowledge(&mut self, una: u64, mut arrived: impl FnMut(&Sent)) {
        while let Some(first) = self.segments.front_mut() {
            if first.end > una {
                // Peers acknowledge whole segments, so that a cut has no effect but on these sums.
                let cut = una.saturating_sub(first.start());
                if cut > 0 {
                    first.len -= cut as u32;
                    self.sums.count(first, cut, |sum, len| sum - len);
                }
                break;
            }
            let segment = *first;
            self.segments.pop_front();
            if segment.state != 0 {
                self.sums.count(&segment, u64::from(segment.len), |sum, len| sum - len);
                self.sacked_segments -= u32::from(segment.is(SACKED));
            }
            if !segment.is(SACKED) {
                arrived(&segment);
            }
        }
    }

    /// Records that everything within `known` was SACKed; `new` in it was not known before. Calls `arrived` for each
    /// segment whose bytes are all SACKed now.
    pub(super) fn sack(
        &mut self,
        new: Range<u64>,
        known: &Range<u64>,
        mut arrived: impl FnMut(&Sent),
    ) {
        let from = self.segments.partition_point(|segment| segment.end <= new.start);
        for index in from..self.segments.len() {
            let segment = self.segments[index];
            if segment.start() >= new.end {
                break;
            }
            if segment.start() < known.start || segment.end > known.end || segment.is(SACKED) {
                continue;
            }
            arrived(&segment);
            self.set(index, SACKED | segment.state & AMBIGUOUS);
        }
    }

    /// RFC 6675: every segment that starts below this position and was not SACKed is lost. A retransmission never is.
    pub(super) fn lose_below(&mut self, edge: u64) -> Losses {
        let mut losses = Losses::default();
        let from = self.segments.partition_point(|segment| segment.end <= self.searched_below);
        for index in from..self.segments.len() {
            let segment = self.segments[index];
            if segment.start() >= edge {
                break;
            }
            if !segment.is(SACKED | LOST) {
                losses.bytes += u64::from(segment.len);
                self.lose(index);
            }
        }
        self.searched_below = self.searched_below.max(edge);
        losses
    }

    /// RFC 8985, 6.2 step 5: a segment is lost if one that was sent later has arrived, and if it was not acknowledged
    /// within that one's RTT and the reordering window after it was sent.
    pub(super) fn lose_late(
        &mut self,
        now: Time,
        rack: &Rack,
        window: Span,
        sacked: &RangeSet,
    ) -> Losses {
        let mut losses = Losses::default();
        let mut index = 0;
        while let Some(&segment) = self.segments.get(index) {
            if segment.is(SACKED) {
                let end = sacked.first_missing(segment.start());
                let after = self.segments.partition_point(|other| other.end <= end);
                index = after.max(index + 1);
                continue;
            }
            if !segment.waits() {
                if rack.sent_before(&segment) {
                    let wait = rack.wait(&segment, window, now);
                    if wait == Span::ZERO {
                        losses.bytes += u64::from(segment.len);
                        losses.resent |= segment.is(RESENT);
                        self.lose(index);
                    } else {
                        losses.wait = losses.wait.max(wait);
                    }
                } else if !segment.is_ambiguous() {
                    // Everything above was sent later: first transmissions are in order, and each precedes its
                    // retransmissions.
                    break;
                }
            }
            index += 1;
        }
        losses
    }

    /// Counts the first segment as lost, even if it was retransmitted.
    pub(super) fn lose_first(&mut self) {
        if !self.segments.is_empty() {
            self.lose_again(0);
        }
    }

    /// Counts everything that was not SACKed as lost after a timeout. With RACK, this excludes segments, except for
    /// the first, that were sent less than an RTT ago (RFC 8985, 6.3).
    pub(super) fn lose_all(&mut self, now: Time, rack: Option<&Rack>) {
        for index in 0..self.segments.len() {
            let segment = self.segments[index];
            let recent = |rack: &Rack| rack.wait(&segment, Span::ZERO, now) > Span::ZERO;
            if segment.is(SACKED) || index > 0 && rack.is_some_and(recent) {
                continue;
            }
            self.lose_again(index);
        }
    }

    /// Forgets everything that was SACKed.
    pub(super) fn forget_sacked(&mut self) {
        for index in 0..self.segments.len() {
            let state = self.segments[index].state;
            self.set(index, state & !SACKED);
        }
        self.searched_below = 0;
    }

    /// Takes back that segments were lost, if they were not retransmitted.
    pub(super) fn find_lost(&mut self) {
        for index in 0..self.segments.len() {
            let state = self.segments[index].state;
            self.set(index, state & !LOST);
        }
        self.searched_below = 0;
    }

    /// Counts a segment as lost; one that was lost before, as lost again, so that it is retransmitted again.
    fn lose(&mut self, index: usize) {
        let segment = self.segments[index];
        let state = if segment.is(LOST) { segment.state & !RESENT } else { segment.state | LOST };
        self.set(index, state);
    }

    /// Counts a segment with all its transmissions as lost.
    fn lose_again(&mut self, index: usize) {
        let state = self.segments[index].state & !(SACKED | RESENT) | LOST;
        self.set(index, state);
    }

    fn set(&mut self, index: usize, state: u8) {
        let segment = &mut self.segments[index];
        let len = u64::from(segment.len);
        self.sums.count(segment, len, |sum, len| sum - len);
        self.sacked_segments -= u32::from(segment.is(SACKED));
        segment.state = state;
        self.sums.count(segment, len, |sum, len| sum + len);
        self.sacked_segments += u32::from(segment.is(SACKED));
        if segment.waits() {
            self.waiting_from = self.waiting_from.min(segment.start());
        }
    }

    /// Checks the sums against the segments, which cover the positions from `una` to `nxt`.
    #[cfg(test)]
    pub(super) fn check(&self, una: u64, nxt: u64) {
        if self.segments.len() > 64 {
            // It takes too long.
            return;
        }
        let mut sums = Sums::default();
        let (mut end, mut sacked) = (una, 0);
        for segment in &self.segments {
            assert_eq!(segment.start(), end);
            assert!(!segment.is(SACKED) || !segment.is(LOST | RESENT));
            assert!(!segment.waits() || segment.start() >= self.waiting_from);
            sums.count(segment, u64::from(segment.len), |sum, len| sum + len);
            sacked += u32::from(segment.is(SACKED));
            end = segment.end;
        }
        assert_eq!((end, sacked), (nxt, self.sacked_segments));
        assert_eq!(sums, self.sums);
    }
}
