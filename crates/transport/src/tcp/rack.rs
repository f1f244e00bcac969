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
    /// The segment that was sent last among those that have arrived: when it was sent, and its end.
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

    /// Handles a segment that has arrived (6.2, steps 2 and 3).
    #[inline]
    pub(super) fn note_arrived(&mut self, now: Time, segment: &Sent) {
        if segment.end >= self.highest {
            self.highest = segment.end;
        } else if !segment.is_ambiguous() {
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
        let window = u128::from(self.min_rtt.as_ps() / 4) * u128::from(self.steps);
        let limit = smoothed.unwrap_or(self.min_rtt);
        Span::from_ps(u64::try_from(window).unwrap_or(u64::MAX)).min(limit)
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
