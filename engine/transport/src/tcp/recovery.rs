//! What a sender learns from acknowledgements and timeouts: which segments are lost, and whether the window was
//! reduced in vain.
//!
//! The order of the steps, and where the RFCs differ, the choice, is Linux's (`net/ipv4/tcp_input.c`,
//! `tcp_recovery.c`).

use core::ops::Range;

use rackweave_core::{RangeSet, Span, Time};

use super::config::Config;
use super::congestion::{AckInfo, CongestionEvent, CongestionKind, Controller as _};
use super::prr::Prr;
use super::rack::Rack;
use super::scoreboard::{Losses, Scoreboard, Sent};
use super::sender::{Acked, Sender};

/// The state of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No loss is known.
    Open,
    /// Fast recovery: acknowledgements still arrive.
    Recovery,
    /// Slow start after a timeout.
    Loss,
}

/// The state of F-RTO (RFC 5682, 3.1), which finds spurious timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frto {
    Off,
    /// A timeout has retransmitted the first segment, and nothing was acknowledged since.
    Resent,
    /// That has moved the left edge: new data is sent.
    New,
}

/// What is needed to take back a reduction of the window: a recovery was in vain if everything that it has
/// retransmitted arrives twice (RFC 3708, 2; Linux, `tcp_may_undo`). Eifel's detection (RFC 3522) would need timestamps,
/// which segments here do not carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    /// Reports of duplicates below this position are about earlier recoveries.
    marker: u64,
    /// Number of retransmitted bytes without a reported duplicate; `None` before the first retransmission.
    resent: Option<u64>,
}

impl Undo {
    pub(super) fn note_resent(&mut self, bytes: u64) {
        self.resent = Some(self.resent.unwrap_or(0) + bytes);
    }

    fn note_duplicate(&mut self, start: u64, end: u64) {
        if end > self.marker
            && let Some(resent) = &mut self.resent
        {
            *resent = resent.saturating_sub(end - start);
        }
    }

    const fn was_in_vain(&self) -> bool {
        matches!(self.resent, Some(0))
    }
}

/// The segments that one acknowledgement reports for the first time.
struct Arrivals<'a> {
    now: Time,
    rack: &'a mut Rack,
    /// The highest position that had arrived before.
    highest: u64,
    recover: u64,
    /// When the newest segment that was sent once was sent.
    newest: Option<Time>,
    /// Whether one that was sent once was in flight at the last timeout.
    original: bool,
    /// Whether one that was sent more than once is among them.
    ambiguous: bool,
}

impl Arrivals<'_> {
    #[inline]
    fn note(&mut self, segment: &Sent) {
        if segment.is_ambiguous() {
            self.ambiguous = true;
        } else {
            self.newest = self.newest.max(Some(segment.at));
            self.original |= segment.end <= self.recover;
        }
        self.rack.note_arrived(self.now, segment, self.highest);
    }
}

/// Records a SACKed range, and returns the number of bytes of it that were not known.
fn record_sack(
    sacked: &mut RangeSet,
    scoreboard: &mut Scoreboard,
    range: Range<u64>,
    limit: usize,
    arrivals: &mut Arrivals<'_>,
) -> u64 {
    let new = {
        let mut gaps = sacked.gaps(range.clone());
        let Some(first) = gaps.next() else { return 0 };
        first.start..gaps.last().map_or(first.end, |last| last.end)
    };
    let Ok(bytes) = sacked.insert_bounded(range.clone(), limit) else { return 0 };
    if let Some(known) = sacked.range_at(range.start) {
        scoreboard.sack(new, &known, |segment| arrivals.note(segment));
    }
    bytes
}

impl Sender {
    /// Handles an acknowledgement, whose `ack` is between `una` and `nxt`.
    pub(super) fn handle_ack(&mut self, now: Time, acked: &Acked<'_>, config: &Config) {
        let (una, flight) = (self.una, self.flight());
        let in_flight = flight - self.scoreboard.sacked();
        let recovering = self.phase == Phase::Recovery;
        let newly_acked = acked.ack - una;
        let window_changed = acked.window != self.peer_window;
        self.peer_window = acked.window;

        let mut arrivals = Arrivals {
            now,
            highest: self.rack.highest(),
            rack: &mut self.rack,
            recover: self.recover,
            newest: None,
            original: false,
            ambiguous: false,
        };
        let sacked_before = self.sacked.covered();
        let mut newly_sacked = 0;
        if config.sack {
            let limit = config.max_ranges as usize;
            for &(start, end) in acked.sacked {
                let (sacked, scoreboard) = (&mut self.sacked, &mut self.scoreboard);
                newly_sacked += record_sack(sacked, scoreboard, start..end, limit, &mut arrivals);
            }
        }
        let known = if newly_acked > 0 { self.sacked.remove_below(acked.ack) } else { 0 };
        // Bytes below `ack` that were SACKed earlier have been counted then.
        let delivered = newly_acked + newly_sacked - known;
        debug_assert_eq!(self.sacked.covered() + known, sacked_before + newly_sacked);
        self.una = acked.ack;
        self.scoreboard.acknowledge(self.una, |segment| arrivals.note(segment));
        let sent = arrivals.newest;
        // Without SACK, an acknowledgement of a retransmission also covers what had arrived before, so that it does not
        // show that a timeout was spurious (Linux, `tcp_clean_rtx_queue`).
        let original = arrivals.original && (config.sack || !arrivals.ambiguous);
        if let Some(sent) = sent {
            self.rack.note_rtt(now, now.since(sent));
        }
        self.rack.acknowledged(self.una);
        if let Some((start, end)) = acked.duplicate {
            self.note_duplicate(start, end);
        }

        let mut repeated = false;
        let mss = config.segment_bytes();
        // For PRR without SACK, as in Linux (`tcp_remove_reno_sacks`): a duplicate acknowledgement is for one segment.
        let counted = u64::from(self.duplicate_acks) * mss;
        if newly_acked > 0 {
            self.advance(now, config);
        } else if flight > 0 && acked.pure && !window_changed {
            // RFC 5681's definition of a duplicate acknowledgement.
            repeated = true;
            if !config.sack && self.phase != Phase::Loss {
                let most = (flight / mss) as u32;
                self.duplicate_acks = (self.duplicate_acks + 1).min(most.max(1));
            }
        }
        let ack = AckInfo {
            now,
            sent,
            delivered,
            acked: newly_acked,
            marked: acked.ece,
            in_flight: flight,
            app_limited: una >= self.limited_below,
            rtt: self.rtt.smoothed().unwrap_or(config.min_rto),
            una: self.una,
            nxt: self.nxt,
        };
        self.congestion.on_ack(&ack);
        self.end_probe(now, acked);
        self.update_phase(newly_acked, original, newly_sacked > 0 || repeated, config);
        let losses = self.detect_loss(now, newly_acked, config);
        if losses.bytes > 0 || self.scoreboard.lost() > 0 {
            self.react_to_loss(now, losses, in_flight, acked.ece, config);
        }
        if acked.ece {
            self.react_to_mark(now, flight, in_flight, config);
        }
        if self.phase == Phase::Open && self.una >= self.reduced_below {
            self.prr = None;
        }
        if self.prr.is_some() {
            let delivered = match (config.sack, newly_acked) {
                (true, _) => delivered,
                (false, 0) => {
                    if repeated {
                        mss
                    } else {
                        0
                    }
                }
                (false, acked) => acked.saturating_sub(counted).max(mss),
            };
            self.reduce(delivered, newly_acked > 0 && losses.bytes == 0, config);
        } else if newly_acked > 0 && !recovering && self.may_grow() {
            self.congestion.on_end_acks(&ack);
        }
        self.arm_probe(now, config, false);
        #[cfg(test)]
        self.scoreboard.check(self.una, self.nxt);
    }

    /// Handles that the left edge has moved.
    fn advance(&mut self, now: Time, config: &Config) {
        if let Some((end, sent_at)) = self.timed
            && self.una >= end
        {
            self.rtt.sample(now.since(sent_at));
            self.timed = None;
        }
        self.retries = 0;
        self.rtt.reset_backoff();
        self.rto_at =
            if self.flight() > 0 { now.saturating_add(self.rtt.rto(config)) } else { Time::MAX };
        if self.phase == Phase::Open {
            self.duplicate_acks = 0;
        }
    }

    /// Handles an acknowledgement's consequences for the recovery that is in progress, before new losses. `original`
    /// is whether it acknowledges data that was sent once, before the timeout, and `repeated` whether it reports an
    /// arrival out of order.
    fn update_phase(&mut self, newly_acked: u64, original: bool, repeated: bool, config: &Config) {
        let advanced = newly_acked > 0;
        let in_vain = self.undo.is_some_and(|undo| undo.was_in_vain());
        let recovered = advanced && self.una >= self.recover;
        match self.phase {
            Phase::Loss => {
                if advanced && in_vain {
                    return self.undo_timeout();
                }
                match self.frto {
                    Frto::Off => {}
                    // Step 3b: not everything in flight was lost, although the timer had expired.
                    _ if original && self.undo.is_some() => return self.undo_timeout(),
                    // Step 3a: the segments in flight before the new data are lost, or nothing new could be sent.
                    Frto::New if advanced || repeated => self.frto = Frto::Off,
                    // Step 2b.
                    Frto::Resent if advanced && !recovered => {
                        self.frto = Frto::New;
                        self.recover = self.nxt;
                        return;
                    }
                    _ => {}
                }
                if recovered {
                    self.end_recovery(in_vain);
                }
            }
            Phase::Recovery if recovered => self.end_recovery(in_vain),
            Phase::Open if in_vain => self.undo_reduction(),
            Phase::Recovery if in_vain => {
                self.undo_reduction();
                self.reopen();
            }
            Phase::Recovery if advanced && !config.sack => {
                // NewReno (RFC 6582): a partial acknowledgement reveals the next hole. Except for the hole, the
                // segments that it covers had caused duplicate acknowledgements.
                let segments = newly_acked.div_ceil(config.segment_bytes()) as u32;
                self.duplicate_acks =
                    self.duplicate_acks.saturating_sub(segments.saturating_sub(1));
                self.lose_first();
            }
            _ => {}
        }
    }

    /// Ends a recovery when everything that was in flight at its start is acknowledged.
    fn end_recovery(&mut self, in_vain: bool) {
        if in_vain {
            self.undo_reduction();
        } else {
            self.rack.recovered();
        }
        self.reopen();
    }

    fn reopen(&mut self) {
        self.phase = Phase::Open;
        self.frto = Frto::Off;
        self.duplicate_acks = 0;
        self.resend_first = false;
        self.prr = None;
    }

    /// Takes back the last reduction of the window (RFC 4015, RFC 9438 section 4.9; Linux, `tcp_undo_cwnd_reduction`).
    fn undo_reduction(&mut self) {
        self.undo = None;
        self.prr = None;
        self.reduced_below = self.reduced_below.min(self.una);
        self.cwr_due = false;
        self.congestion.on_spurious_congestion();
        // Losses are searched for again.
        self.rack.advanced = true;
    }

    /// Takes back a timeout: nothing is lost, besides what RACK finds.
    fn undo_timeout(&mut self) {
        self.undo_reduction();
        self.scoreboard.find_lost();
        self.reopen();
    }

    /// Handles the report of a duplicate.
    fn note_duplicate(&mut self, start: u64, end: u64) {
        self.duplicates += 1;
        if self.duplicates > self.resent {
            // The network has duplicated a segment (Linux, `tcp_dsack_seen`).
            return;
        }
        if self.probe_end != Some(end) {
            self.rack.note_duplicate(self.nxt);
        }
        if let Some(undo) = &mut self.undo {
            undo.note_duplicate(start, end);
        }
    }

    /// Counts the first unacknowledged segment as lost, when nothing else is known.
    fn lose_first(&mut self) {
        self.scoreboard.lose_first();
        self.resend_first = true;
    }

    /// Searches for losses.
    fn detect_loss(&mut self, now: Time, newly_acked: u64, config: &Config) -> Losses {
        let mss = config.segment_bytes();
        let nothing = Losses::default();
        if self.flight() == 0 || self.phase == Phase::Open && self.has_order() {
            self.late_at = Time::MAX;
            return nothing;
        }
        if config.sack && config.rack {
            if !core::mem::take(&mut self.rack.advanced) {
                return nothing;
            }
            return self.lose_late(now, config);
        }
        if self.phase == Phase::Loss {
            return nothing;
        }
        if config.sack {
            let Some(edge) = lost_below(&self.sacked, config.dup_ack_threshold, mss) else {
                return nothing;
            };
            return self.scoreboard.lose_below(edge);
        }
        if self.phase == Phase::Open
            && newly_acked == 0
            && self.duplicate_acks >= config.dup_ack_threshold
            // RFC 6582, 3.2 step 2: not for segments that the last recovery has retransmitted.
            && (self.una > self.recover || self.recover == 0)
        {
            let before = self.scoreboard.lost();
            self.scoreboard.lose_first();
            return Losses { bytes: self.scoreboard.lost() - before, ..nothing };
        }
        nothing
    }

    /// Whether no segment has arrived out of order.
    fn has_order(&self) -> bool {
        self.sacked.is_empty() && self.duplicate_acks == 0 && self.scoreboard.lost() == 0
    }

    /// Counts late segments as lost, and sets the timer for segments that may be late (RFC 8985, 6.2 step 5).
    fn lose_late(&mut self, now: Time, config: &Config) -> Losses {
        let enough = self.scoreboard.sacked_segments() >= config.dup_ack_threshold.max(1);
        let window = self.rack.window(self.phase != Phase::Open, enough, self.rtt.smoothed());
        let losses = self.scoreboard.lose_late(now, &self.rack, window, &self.sacked);
        self.late_at =
            if losses.wait == Span::ZERO { Time::MAX } else { now.saturating_add(losses.wait) };
        losses
    }

    /// Begins or continues fast recovery. After a timeout, this is for a retransmission that was lost (Linux,
    /// `FLAG_LOST_RETRANS`).
    fn react_to_loss(
        &mut self,
        now: Time,
        losses: Losses,
        in_flight: u64,
        marked: bool,
        config: &Config,
    ) {
        let begins = match self.phase {
            Phase::Open => true,
            Phase::Loss => losses.resent,
            Phase::Recovery => false,
        };
        if begins {
            self.enter_recovery(now, in_flight, marked, config);
        }
    }

    /// Begins fast recovery, with this number of bytes in flight before the acknowledgement that has caused it.
    fn enter_recovery(&mut self, now: Time, in_flight: u64, marked: bool, config: &Config) {
        // A reaction to marks in the same window is also the reaction to its loss (Linux, `tcp_enter_recovery`). For
        // DCTCP it is not (RFC 8257, 3.5): a loss has to be answered as by conventional TCP.
        let marks_answered =
            config.rack && self.phase == Phase::Open && self.una < self.reduced_below;
        self.phase = Phase::Recovery;
        self.recover = self.nxt;
        self.resend_first = true;
        self.probe_due = false;
        self.probe_end = None;
        self.frto = Frto::Off;
        self.undo = None;
        if !marks_answered || config.counts_marks() {
            self.congestion_event(now, CongestionKind::Loss, self.flight());
            self.start_reduction(in_flight, config);
            // RFC 4015, section 3.2: congestion was reported all the same.
            if config.undo && !marked {
                let resent = self.scoreboard.in_retransmission();
                let resent = (resent > 0).then_some(resent);
                self.undo = Some(Undo { marker: self.una, resent });
            }
        }
        // The reaction to this window's loss is also the reaction to its marks.
        self.reduced_below = self.nxt;
        self.cwr_due = true;
    }

    /// Reacts to a mark, at most once per window (RFC 3168, 6.1.2; RFC 8257, 3.3).
    fn react_to_mark(&mut self, now: Time, flight: u64, in_flight: u64, config: &Config) {
        let answered = self.una <= self.reduced_below && self.reduced_below != 0;
        // During a recovery the window is being reduced (Linux, `tcp_enter_cwr`).
        if answered || self.phase != Phase::Open && config.rack {
            return;
        }
        self.congestion_event(now, CongestionKind::Mark, flight);
        self.start_reduction(in_flight, config);
        self.undo = None;
        self.reduced_below = self.nxt.max(1);
        self.cwr_due = true;
    }

    fn start_reduction(&mut self, in_flight: u64, config: &Config) {
        self.prr = config.prr.then(|| Prr::new(in_flight, config.segment_bytes()));
    }

    fn reduce(&mut self, delivered: u64, safe: bool, config: &Config) {
        let pipe = self.pipe(config);
        let target = self.congestion.window();
        if let Some(prr) = &mut self.prr {
            prr.acknowledged(delivered, pipe, target, config.segment_bytes(), safe);
        }
    }

    pub(super) fn congestion_event(&mut self, now: Time, kind: CongestionKind, in_flight: u64) {
        self.congestion.on_congestion_event(&CongestionEvent { now, kind, in_flight });
    }

    /// Whether the window may grow: not in fast recovery, nor in the window that a congestion event has
    /// reduced.
    fn may_grow(&self) -> bool {
        let reduced = self.una < self.reduced_below;
        self.phase == Phase::Loss || self.phase == Phase::Open && !reduced
    }

    /// RFC 8985, 7.4: a retransmitted segment that was not reported as a duplicate before any later byte was
    /// acknowledged has repaired a loss.
    fn end_probe(&mut self, now: Time, acked: &Acked<'_>) {
        let Some(end) = self.probe_end else { return };
        if acked.duplicate.is_some_and(|(_, reported)| reported == end) {
            self.probe_end = None;
        } else if self.una > end {
            self.probe_end = None;
            if self.phase == Phase::Open {
                self.congestion_event(now, CongestionKind::Loss, self.congestion.window());
                self.undo = None;
            }
        }
    }

    /// Handles [`Sender::deadline`]. Returns false if the peer does not answer and the connection fails.
    pub(super) fn handle_timeout(&mut self, now: Time, config: &Config) -> bool {
        self.is_paced(now);
        if now >= self.rto_at {
            return self.handle_rto(now, config);
        }
        if now >= self.late_at {
            self.handle_late(now, config);
        }
        if now >= self.probe_at {
            self.probe_at = Time::MAX;
            self.probe_due = true;
        }
        true
    }

    /// Handles RACK's timer: the segments that it was set for were not acknowledged.
    fn handle_late(&mut self, now: Time, config: &Config) {
        let in_flight = self.flight() - self.scoreboard.sacked();
        let losses = self.lose_late(now, config);
        if losses.bytes > 0 {
            self.react_to_loss(now, losses, in_flight, false, config);
            if self.prr.is_some() {
                self.reduce(0, false, config);
            }
        }
    }

    fn handle_rto(&mut self, now: Time, config: &Config) -> bool {
        self.retries += 1;
        if self.retries > config.max_retries {
            return false;
        }
        if self.sacked.contains(self.una) || !config.rack && self.retries > 1 {
            // RFC 2018, 8: the receiver has discarded what it had SACKed, since otherwise it would acknowledge that.
            // Before RACK, each second timeout was understood so.
            self.sacked.clear();
            self.scoreboard.forget_sacked();
        }
        // Linux, `tcp_enter_loss`: once for the data that was in flight at the last reduction, unless some of it was
        // acknowledged after a timeout.
        let pending = self.una < self.recover;
        let repeated = match self.phase {
            Phase::Open => false,
            Phase::Recovery => pending && config.rack,
            Phase::Loss => pending && (self.retries > 1 || !config.rack),
        };
        let kind = if repeated { CongestionKind::RepeatedTimeout } else { CongestionKind::Timeout };
        self.congestion_event(now, kind, self.flight());
        let rack = (config.sack && config.rack).then_some(&self.rack);
        self.scoreboard.lose_all(now, rack);
        if !repeated {
            let resent = self.scoreboard.in_retransmission();
            let resent = (resent > 0).then_some(resent);
            self.undo = config.undo.then_some(Undo { marker: self.una, resent });
        }
        // Linux: not for a timeout during fast recovery, whose data was retransmitted for other reasons.
        let eligible = self.phase == Phase::Open || self.retries > 1;
        self.frto = if config.undo && eligible { Frto::Resent } else { Frto::Off };
        self.phase = Phase::Loss;
        self.recover = self.nxt;
        self.resend_first = true;
        self.duplicate_acks = 0;
        self.prr = None;
        self.timed = None;
        self.late_at = Time::MAX;
        self.probe_at = Time::MAX;
        self.probe_due = false;
        self.probe_end = None;
        self.rtt.back_off();
        self.rto_at = now.saturating_add(self.rtt.rto(config));
        true
    }

    /// Starts the timer of a SYN, which is not part of the stream.
    pub(super) fn arm_open(&mut self, now: Time, config: &Config) {
        self.rto_at = now.saturating_add(self.rtt.rto(config));
    }

    /// Handles an unanswered SYN. Returns false if the connection fails.
    pub(super) fn open_timed_out(&mut self, config: &Config) -> bool {
        self.retries += 1;
        self.rto_at = Time::MAX;
        self.rtt.back_off();
        self.retries <= config.max_retries
    }

    /// Handles the answer to a SYN.
    pub(super) fn opened(&mut self, rtt: Option<Span>) {
        self.retries = 0;
        self.rto_at = Time::MAX;
        self.rtt.reset_backoff();
        if let Some(rtt) = rtt {
            self.rtt.sample(rtt);
        }
    }
}

/// RFC 6675's `IsLost` for all sequence numbers at once: every gap below the returned position has `threshold`
/// ranges, or more than `threshold - 1` segments' bytes, SACKed above it.
fn lost_below(sacked: &RangeSet, threshold: u32, mss: u64) -> Option<u64> {
    let threshold = u64::from(threshold.max(1));
    let mut bytes = 0;
    for (above, range) in (1_u64..).zip(sacked.iter().rev()) {
        bytes += range.end - range.start;
        if above >= threshold || bytes > (threshold - 1) * mss {
            return Some(range.start);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_lost_when_enough_is_sacked_above_it() {
        let mut sacked = RangeSet::new();
        sacked.insert(10..11);
        assert_eq!(lost_below(&sacked, 3, 10), None);
        sacked.insert(20..21);
        sacked.insert(30..31);
        assert_eq!(lost_below(&sacked, 3, 10), Some(10), "three ranges");
        sacked.insert(31..60);
        assert_eq!(lost_below(&sacked, 3, 10), Some(30), "more than two segments' bytes");
    }
}
