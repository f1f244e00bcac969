//! RACK: which segments are late (RFC 8985, section 6).

use rackweave_core::{Span, Time};

use super::scoreboard::Sent;

/// Number of recoveries without a duplicate after which the reordering window has its first size again (RFC 8985, 6.2
/// step 4).
const PERSISTENCE: u32 = 16;

/// Largest multiple of a quarter of the minimum RTT (Linux, `tcp_rack_update_reo_wnd`).
const MAX_STEPS: u32 = 0xff;

/// Time for which a minimum of the RTT counts (Linux, `tcp_min_rtt_wlen`). Linux keeps the three smallest samples, so
/// that the minimum rises to the next; here it rises to the current sample.
const MIN_RTT_WINDOW: Span = Span::from_secs(300);

/// The state of RACK.
#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// The arrived segment that was sent last: when it was sent, and its end.
    sent_at: Time,
    end: u64,
    /// Its RTT.
    rtt: Span,
    /// Whether this has changed since the last search for losses.
    pub(super) advanced: bool,
    /// The highest position that has arrived.
    highest: u64,
    /// Whether a segment that was sent once has arrived after one that was sent later.
    reordering_seen: bool,
    /// The reordering window, in quarters of the minimum RTT.
    steps: u32,
    /// Number of recoveries for which it is kept.
    persistence: u32,
    /// The window does not grow again before this position is acknowledged.
    round: Option<u64>,
    min_rtt: Span,
    min_rtt_at: Time,
}

impl Rack {
    pub(super) const fn new() -> Self {
        Self {
            sent_at: Time::ZERO,
            end: 0,
            rtt: Span::ZERO,
            advanced: false,
            highest: 0,
            reordering_seen: false,
            steps: 1,
            persistence: 0,
            round: None,
            min_rtt: Span::MAX,
            min_rtt_at: Time::ZERO,
        }
    }

    /// Adds an unambiguous sample of the RTT (6.2, step 1).
    #[inline]
    pub(super) fn note_rtt(&mut self, now: Time, rtt: Span) {
        if rtt <= self.min_rtt || now.since(self.min_rtt_at) > MIN_RTT_WINDOW {
            (self.min_rtt, self.min_rtt_at) = (rtt, now);
        }
    }

    /// The highest position that has arrived.
    pub(super) const fn highest(&self) -> u64 {
        self.highest
    }

    /// Handles a segment that has arrived (6.2, steps 2 and 3). `highest` is [`Rack::highest`] before the
    /// acknowledgement: among the segments that one acknowledgement reports, there is no order of arrival (Linux,
    /// `prior_fack`).
    #[inline]
    pub(super) fn note_arrived(&mut self, now: Time, segment: &Sent, highest: u64) {
        self.highest = self.highest.max(segment.end);
        if segment.end < highest && !segment.is_ambiguous() {
            self.reordering_seen = true;
        }
        let rtt = now.since(segment.at);
        if segment.is_ambiguous() && rtt < self.min_rtt {
            // This is the arrival of an earlier transmission.
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        if !self.sent_before(segment) {
            (self.sent_at, self.end) = (segment.at, segment.end);
        }
    }

    /// Whether a segment was sent before the last one that has arrived. Among those sent at the same time, the order of
    /// the stream counts.
    pub(super) fn sent_before(&self, segment: &Sent) -> bool {
        (segment.at, segment.end) < (self.sent_at, self.end)
    }

    /// Time until a segment is late; zero if it is.
    pub(super) fn wait(&self, segment: &Sent, window: Span, now: Time) -> Span {
        let late_at = segment.at.saturating_add(self.rtt).saturating_add(window);
        late_at.since(now)
    }

    /// The reordering window (6.2, step 4). `recovering` is whether losses are being repaired, and `enough` whether as
    /// many segments are SACKed as indicate a loss.
    pub(super) fn window(&self, recovering: bool, enough: bool, smoothed: Option<Span>) -> Span {
        if !self.reordering_seen && (recovering || enough) || self.min_rtt == Span::MAX {
            return Span::ZERO;
        }
        let window = u128::from(self.min_rtt.ticks() / 4) * u128::from(self.steps);
        let limit = smoothed.unwrap_or(self.min_rtt);
        Span::from_ticks(u64::try_from(window).unwrap_or(u64::MAX)).min(limit)
    }

    /// Ends the round of the last growth if it was acknowledged.
    #[inline]
    pub(super) fn acknowledged(&mut self, una: u64) {
        if self.round.is_some_and(|end| una >= end) {
            self.round = None;
        }
    }

    /// Handles the report of a duplicate: the window has been too small, unless no reordering was seen (Linux).
    pub(super) fn note_duplicate(&mut self, nxt: u64) {
        if self.reordering_seen && self.round.is_none() {
            self.round = Some(nxt);
            self.steps = (self.steps + 1).min(MAX_STEPS);
            self.persistence = PERSISTENCE;
        }
    }

    /// Handles the end of a recovery.
    pub(super) const fn recovered(&mut self) {
        self.persistence = self.persistence.saturating_sub(1);
        if self.persistence == 0 {
            self.steps = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::scoreboard::Scoreboard;
    use crate::tcp::sender::Segment;

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_us(us)
    }

    /// Ten segments of 1000 bytes that were sent one microsecond apart.
    fn ten() -> Scoreboard {
        let mut board = Scoreboard::default();
        for n in 0..10 {
            board.sent(Segment { position: n * 1000, len: 1000 }, at(n));
        }
        board
    }

    fn seen_at(rack: &mut Rack, board: &mut Scoreboard, now: Time, segment: u64) {
        let range = segment * 1000..(segment + 1) * 1000;
        let highest = rack.highest();
        board.sack(range.clone(), &range, |sent| rack.note_arrived(now, sent, highest));
    }

    #[test]
    fn the_window_is_zero_until_reordering_is_seen_and_grows_once_a_round() {
        let (mut rack, mut board) = (Rack::new(), ten());
        rack.note_rtt(at(40), Span::from_us(40));
        let smoothed = Some(Span::from_us(45));
        assert_eq!(rack.window(false, false, smoothed), Span::from_us(10));
        assert_eq!(rack.window(true, false, smoothed), Span::ZERO);
        assert_eq!(rack.window(false, true, smoothed), Span::ZERO, "three are SACKed");
        rack.note_duplicate(20_000);
        assert_eq!(rack.window(false, false, smoothed), Span::from_us(10), "no reordering");
        seen_at(&mut rack, &mut board, at(41), 5);
        seen_at(&mut rack, &mut board, at(42), 2);
        assert_eq!(rack.window(true, true, smoothed), Span::from_us(10));
        rack.note_duplicate(20_000);
        rack.note_duplicate(21_000);
        assert_eq!(rack.window(true, true, smoothed), Span::from_us(20));
        rack.acknowledged(20_000);
        rack.note_duplicate(30_000);
        assert_eq!(rack.window(true, true, smoothed), Span::from_us(30));
        for round in 4..10 {
            rack.acknowledged(round * 10_000);
            rack.note_duplicate((round + 1) * 10_000);
        }
        assert_eq!(rack.window(true, true, smoothed), Span::from_us(45), "at most the RTT");
        for recovery in 1..=16 {
            assert_eq!(rack.window(true, true, smoothed), Span::from_us(45), "{recovery}");
            rack.recovered();
        }
        assert_eq!(rack.window(true, true, smoothed), Span::from_us(10));
    }

    #[test]
    fn a_segment_is_late_after_the_last_rtt_and_the_window() {
        let (mut rack, mut board) = (Rack::new(), ten());
        rack.note_rtt(at(40), Span::from_us(40));
        seen_at(&mut rack, &mut board, at(44), 4);
        let known = core::iter::once((4000, 5000)).fold(
            rackweave_core::RangeSet::new(),
            |mut set, (from, to)| {
                set.insert(from..to);
                set
            },
        );
        // Its RTT is 40 us. With a window of 2 us, what was sent at 0, 1 and 2 us is late at 42, 43 and 44 us.
        let window = Span::from_us(2);
        let losses = board.lose_late(at(44), &rack, window, &known);
        assert_eq!((losses.bytes, losses.resent, losses.wait), (3000, false, Span::from_us(1)));
        // Sent again at 50 us; a segment that was sent at 9 us says nothing about that.
        board.resent(0, at(50));
        seen_at(&mut rack, &mut board, at(60), 9);
        assert_eq!(board.lose_late(at(60), &rack, Span::ZERO, &known).bytes, 5000);
        // One that was sent later does.
        board.resent(1000, at(51));
        board.acknowledge(0, |_| {});
        seen_at(&mut rack, &mut board, at(91), 1);
        let losses = board.lose_late(at(91), &rack, Span::ZERO, &known);
        assert_eq!((losses.bytes, losses.resent), (1000, true));
    }

    #[test]
    fn an_arrival_too_early_for_a_retransmission_is_of_the_original() {
        let (mut rack, mut board) = (Rack::new(), ten());
        rack.note_rtt(at(40), Span::from_us(40));
        board.resent(3000, at(60));
        seen_at(&mut rack, &mut board, at(70), 3);
        assert!(!rack.advanced);
        board.resent(4000, at(60));
        seen_at(&mut rack, &mut board, at(100), 4);
        assert!(rack.advanced);
    }
}
