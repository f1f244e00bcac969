//! The sending half of a connection: the stream, and which of its bytes are in flight, lost, or next to be
//! sent.
//!
//! Positions are `u64` offsets into the stream, from 0. Losses are represented by two edges instead of a flag
//! per segment: every gap below `lost_below` is lost, and every gap below `resent_below` was retransmitted.
//! Together with the SACKed ranges they determine RFC 6675's `pipe` and `NextSeg`.

use std::collections::VecDeque;

use rackweave_core::{Kind, MessageId, RangeSet, Rate, Span, Time};

use super::config::Config;
use super::congestion::{AckInfo, Congestion, CongestionEvent, CongestionKind, Controller as _};
use super::rtt::Rtt;
use super::send_times::SendTimes;

/// A message in the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) id: MessageId,
    /// Position of its first byte.
    pub(super) start: u64,
    pub(super) len: u32,
    pub(super) kind: Kind,
    /// Whether the application has cancelled it. Its bytes remain part of the stream.
    pub(super) cancelled: bool,
    /// It is the end of an exchange without a response ([`Sender::push_abandonment`]).
    pub(super) abandoned: bool,
}

impl Outgoing {
    const fn end(&self) -> u64 {
        self.start + self.len as u64
    }
}

/// The state of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No loss is known.
    Open,
    /// Fast recovery: acknowledgements still arrive.
    Recovery,
    /// Slow start after a timeout, which counted everything in flight as lost.
    Loss,
}

/// An acknowledgement, in stream positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked<'a> {
    /// The position below which everything has arrived, between `una` and `nxt`.
    pub(super) ack: u64,
    /// Ranges above `ack` that have arrived.
    pub(super) sacked: &'a [(u64, u64)],
    /// Whether it carries no data, so that a repetition indicates an arrival out of order.
    pub(super) pure: bool,
    /// Whether it reports a segment that arrived twice (RFC 2883).
    pub(super) duplicate: bool,
    /// Whether it reports congestion marks.
    pub(super) ece: bool,
    /// The receive window, in bytes.
    pub(super) window: u64,
}

/// Bytes of one message to send in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) position: u64,
    pub(super) len: u64,
}

/// What may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Retransmit(Segment),
    New(Segment),
    Probe(Segment),
}

/// The sending half of a connection.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// The position below which everything is acknowledged.
    una: u64,
    nxt: u64,
    end: u64,
    /// Messages that are not completely acknowledged, in the order of the stream.
    messages: VecDeque<Outgoing>,
    /// Index of the message that contains `nxt`; all messages before it were sent completely.
    cursor: usize,
    peer_window: u64,
    congestion: Congestion,
    sacked: RangeSet,
    lost_below: u64,
    resent_below: u64,
    phase: Phase,
    /// The phase ends when this position is acknowledged.
    recover: u64,
    duplicate_acks: u32,
    /// Whether the first segment of a recovery is still to be sent, regardless of the window.
    resend_first: bool,
    /// Bytes below this position were sent at the limit of the window: their acknowledgements let the window
    /// grow.
    limited_below: u64,
    /// The last reaction to marks ends when this position is acknowledged.
    reduced_below: u64,
    /// Whether CWR must be sent.
    cwr_due: bool,
    rtt: Rtt,
    /// The segment whose RTT is measured: its end, and when it was sent.
    timed: Option<(u64, Time)>,
    rto_at: Time,
    retries: u32,
    probe_at: Time,
    probe_due: bool,
    /// End of the segment that a tail loss probe has retransmitted, while it is not known whether that repaired
    /// a loss.
    probe_end: Option<u64>,
    last_sent: Time,
    /// Pacing: the earliest time of the next segment; `Time::MAX` if there is no limit.
    pace_at: Time,
    /// Recorded if the congestion controller uses delays.
    send_times: SendTimes,
    /// Whether the receive window is never exceeded, because the receiver may close it.
    strict: bool,
}

impl Sender {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            una: 0,
            nxt: 0,
            end: 0,
            messages: VecDeque::new(),
            cursor: 0,
            peer_window: config.window_bytes(),
            congestion: Congestion::new(config),
            sacked: RangeSet::default(),
            lost_below: 0,
            resent_below: 0,
            phase: Phase::Open,
            recover: 0,
            duplicate_acks: 0,
            resend_first: false,
            limited_below: 0,
            reduced_below: 0,
            cwr_due: false,
            rtt: Rtt::default(),
            timed: None,
            rto_at: Time::MAX,
            retries: 0,
            probe_at: Time::MAX,
            probe_due: false,
            probe_end: None,
            last_sent: Time::ZERO,
            pace_at: Time::MAX,
            send_times: SendTimes::default(),
            strict: false,
        }
    }

    pub(super) const fn una(&self) -> u64 {
        self.una
    }
    pub(super) const fn nxt(&self) -> u64 {
        self.nxt
    }
    /// Number of bytes submitted and not acknowledged.
    pub(super) const fn backlog(&self) -> u64 {
        self.end - self.una
    }
    pub(super) const fn flight(&self) -> u64 {
        self.nxt - self.una
    }
    pub(super) fn deadline(&self) -> Time {
        self.probe_at.min(self.rto_at).min(self.pace_at)
    }
    #[cfg(test)]
    pub(super) const fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    /// Makes this half respect a closed receive window from now on.
    pub(super) const fn keep_to_window(&mut self) {
        self.strict = true;
    }

    /// The current end of the stream.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// Appends bytes to a stream that has no messages. Bytes that were written in pieces and not sent are
    /// combined into full segments.
    pub(super) fn extend(&mut self, id: MessageId, mut bytes: u64, kind: Kind) {
        const LONGEST: u32 = 1 << 30;
        while bytes > 0 {
            let nxt = self.nxt;
            let room = |last: &&mut Outgoing| last.end() > nxt && last.len < LONGEST;
            let most = if let Some(last) = self.messages.back_mut().filter(room) {
                let more = bytes.min(u64::from(LONGEST - last.len));
                last.len += more as u32;
                self.end += more;
                more
            } else {
                let more = bytes.min(u64::from(LONGEST));
                self.push(id, more as u32, kind);
                more
            };
            bytes -= most;
        }
    }

    /// Appends a message to the stream.
    pub(super) fn push(&mut self, id: MessageId, len: u32, kind: Kind) {
        let (cancelled, abandoned) = (false, false);
        let message = Outgoing { id, start: self.end, len, kind, cancelled, abandoned };
        self.end = message.end();
        self.messages.push_back(message);
    }

    /// Appends, in place of a response, the notice that there is none. It occupies one position of the stream, so
    /// that it is delivered reliably and in order, and has no bytes. No event follows from it here.
    pub(super) fn push_abandonment(&mut self, response: MessageId) {
        self.push(response, 1, Kind::Response);
        if let Some(last) = self.messages.back_mut() {
            (last.cancelled, last.abandoned) = (true, true);
        }
    }

    /// Removes a message from the stream if none of its bytes were sent, and returns true; otherwise marks it as
    /// cancelled.
    pub(super) fn cancel(&mut self, id: MessageId) -> bool {
        let Some(index) = self.messages.iter().position(|m| m.id == id && !m.cancelled) else {
            return false;
        };
        let message = self.messages[index];
        if self.nxt > message.start {
            self.messages[index].cancelled = true;
            return false;
        }
        self.messages.remove(index);
        for later in self.messages.iter_mut().skip(index) {
            later.start -= u64::from(message.len);
        }
        self.end -= u64::from(message.len);
        true
    }

    /// Whether a cancelled message is still in the stream.
    pub(super) fn is_leaving(&self, id: MessageId) -> bool {
        self.messages.iter().any(|message| message.id == id && message.cancelled)
    }

    /// Takes the next message that is completely acknowledged.
    pub(super) fn pop_acked(&mut self) -> Option<Outgoing> {
        self.messages.front().filter(|message| message.end() <= self.una)?;
        self.cursor = self.cursor.saturating_sub(1);
        self.messages.pop_front()
    }

    /// Takes all remaining messages, when the connection ends.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Outgoing> + '_ {
        self.messages.drain(..)
    }

    /// The message that contains a position in the stream.
    pub(super) fn message_at(&self, position: u64) -> Option<&Outgoing> {
        match self.messages.get(self.cursor) {
            Some(message) if message.start <= position && position < message.end() => Some(message),
            _ => {
                let index = self.messages.partition_point(|message| message.end() <= position);
                self.messages.get(index).filter(|message| message.start <= position)
            }
        }
    }

    /// Number of bytes in flight (RFC 6675, `SetPipe`). Without SACK, each duplicate acknowledgement counts as
    /// one segment that has arrived, as in Linux.
    #[inline]
    fn pipe(&self, config: &Config) -> u64 {
        let flight = self.flight();
        let open = self.phase == Phase::Open;
        if open && (!config.limited_transmit || self.sacked.is_empty() && self.duplicate_acks == 0)
        {
            return flight;
        }
        self.pipe_in_recovery(config)
    }

    #[inline(never)]
    fn pipe_in_recovery(&self, config: &Config) -> u64 {
        let arrived = if config.sack {
            self.sacked.covered()
        } else {
            u64::from(self.duplicate_acks) * config.segment_bytes()
        };
        let uncovered = |edge: u64| {
            if edge > self.una { edge - self.una - self.sacked.covered_below(edge) } else { 0 }
        };
        (self.flight() + uncovered(self.resent_below))
            .saturating_sub(arrived.saturating_add(uncovered(self.lost_below)))
    }

    /// What may be sent now, by RFC 6675's rules (1) and (2).
    #[inline]
    fn plan(&self, config: &Config) -> Option<Plan> {
        if self.probe_due {
            return self.plan_probe(config.segment_bytes());
        }
        if self.lost_below > self.una
            && let Some(segment) = self.next_lost(config)
        {
            let may = self.resend_first || self.fits(segment, config);
            return may.then_some(Plan::Retransmit(segment));
        }
        let segment = self.next_new(config.segment_bytes())?;
        self.fits(segment, config).then_some(Plan::New(segment))
    }

    /// Whether the congestion window has room for a segment.
    #[inline]
    fn fits(&self, segment: Segment, config: &Config) -> bool {
        let pipe = self.pipe(config);
        pipe == 0 || pipe + segment.len <= self.congestion.window()
    }

    /// The first bytes that are lost and were not retransmitted.
    #[inline(never)]
    fn next_lost(&self, config: &Config) -> Option<Segment> {
        let gap = self.sacked.gap_from(self.resent_below.max(self.una));
        let from = gap.start;
        let message = self.message_at(from).filter(|_| from < self.lost_below)?;
        let end = gap.end.min(self.lost_below).min(message.end()).min(self.nxt);
        Some(Segment { position: from, len: (end - from).min(config.segment_bytes()) })
    }

    /// The next new bytes, if the receive window has room for them. With nothing in flight one segment may
    /// always be sent: receivers of messages never close their window, so that a closed one is from a damaged
    /// header and would never open.
    #[inline]
    fn next_new(&self, mss: u64) -> Option<Segment> {
        let message = self.messages.get(self.cursor)?;
        let mut len = (message.end() - self.nxt).min(mss);
        if self.strict {
            // Less than a segment is sent only if nothing is in flight whose acknowledgement would open the
            // window.
            if self.flight() == 0 {
                len = len.min(self.peer_window);
            }
            let fits = len > 0 && self.flight() + len <= self.peer_window;
            return fits.then_some(Segment { position: self.nxt, len });
        }
        let room = self.flight() + len <= self.peer_window || self.flight() == 0;
        room.then_some(Segment { position: self.nxt, len })
    }

    /// The segment of a probe, by RFC 8985, 7.3: new data if there is any, otherwise the last segment.
    fn plan_probe(&self, mss: u64) -> Option<Plan> {
        if let Some(segment) = self.next_new(mss) {
            return Some(Plan::New(segment));
        }
        let last = self.message_at(self.nxt.checked_sub(1)?)?;
        let position = self.una.max(last.start).max(self.nxt.saturating_sub(mss));
        let len = self.nxt - position;
        (len > 0).then_some(Plan::Probe(Segment { position, len }))
    }

    /// Whether [`Sender::take_segment`] would return a segment. Records if the congestion controller forbids
    /// it.
    pub(super) fn is_ready(&mut self, config: &Config) -> bool {
        let ready = self.pace_at == Time::MAX && self.plan(config).is_some();
        if !ready {
            self.note_limit();
        }
        ready
    }

    /// Records that the window or the pacing rate is the limit, if there is something to send.
    fn note_limit(&mut self) {
        if self.nxt < self.end {
            self.limited_below = self.nxt;
        }
    }

    /// Whether anything is left to send, regardless of the window.
    pub(super) const fn has_more(&self) -> bool {
        self.nxt < self.end || self.resent_below < self.lost_below
    }

    /// Takes the next segment to send, if there is one, and sets the timers.
    pub(super) fn take_segment(&mut self, now: Time, config: &Config) -> Option<Segment> {
        if self.is_paced(now) {
            self.note_limit();
            return None;
        }
        if config.slow_start_after_idle && self.flight() == 0 {
            let idle = now.since(self.last_sent);
            self.congestion.on_idle(idle, self.rtt.rto(config));
        }
        let Some(plan) = self.plan(config) else {
            self.note_limit();
            return None;
        };
        let probing = core::mem::take(&mut self.probe_due);
        let segment = match plan {
            Plan::New(segment) => {
                self.nxt += segment.len;
                if self.messages[self.cursor].end() == self.nxt {
                    self.cursor += 1;
                }
                if self.timed.is_none() && !probing {
                    self.timed = Some((self.nxt, now));
                }
                if self.congestion.uses_delay() {
                    self.send_times.sent(self.nxt, now);
                }
                segment
            }
            Plan::Retransmit(segment) => {
                self.resend_first = false;
                self.resent_below = segment.position + segment.len;
                self.note_retransmitted(segment);
                segment
            }
            Plan::Probe(segment) => {
                self.probe_end = Some(self.nxt);
                self.note_retransmitted(segment);
                segment
            }
        };
        self.last_sent = now;
        self.congestion.on_sent(now, segment.len);
        if let Some(rate) = self.congestion.pacing_rate() {
            self.pace_at = now.saturating_add(Rate(rate.0.max(1)).span_of(segment.len));
        }
        if self.rto_at == Time::MAX || probing {
            self.rto_at = now.saturating_add(self.rtt.rto(config));
        }
        self.arm_probe(now, config, probing);
        Some(segment)
    }

    /// Karn's algorithm: an acknowledgement of a retransmitted segment is ambiguous.
    fn note_retransmitted(&mut self, segment: Segment) {
        self.timed = None;
        self.send_times.retransmitted(segment.position, segment.position + segment.len);
    }

    /// Whether the pacing rate forbids a segment now.
    #[inline]
    fn is_paced(&mut self, now: Time) -> bool {
        if self.pace_at <= now {
            self.pace_at = Time::MAX;
        }
        self.pace_at != Time::MAX
    }

    /// Whether this segment carries CWR (RFC 3168): the first new segment after a reduction of the window does.
    pub(super) fn take_cwr(&mut self, segment: Segment, config: &Config) -> bool {
        let new = segment.position + segment.len == self.nxt;
        new && config.data_is_ecn_capable() && core::mem::take(&mut self.cwr_due)
    }

    /// Arms the timer of a tail loss probe by RFC 8985, 7.2: two RTTs after the last transmission or
    /// acknowledgement, plus the maximum delay of an acknowledgement if a single segment is in flight, but not
    /// later than the RTO.
    fn arm_probe(&mut self, now: Time, config: &Config, probing: bool) {
        self.probe_at = Time::MAX;
        let calm = self.phase == Phase::Open && self.sacked.is_empty() && self.duplicate_acks == 0;
        if !config.tail_loss_probe || !calm || self.probe_end.is_some() || probing {
            return;
        }
        let (Some(srtt), true) = (self.rtt.smoothed(), self.flight() > 0) else { return };
        let mut wait = srtt.saturating_mul(2);
        if self.flight() <= config.segment_bytes() {
            wait = wait.saturating_add(config.delayed_ack);
        }
        let at = now.saturating_add(wait);
        if at < self.rto_at {
            self.probe_at = at;
        }
    }

    /// Handles [`Sender::deadline`]. Returns false if the peer does not answer and the connection fails.
    pub(super) fn handle_timeout(&mut self, now: Time, config: &Config) -> bool {
        self.is_paced(now);
        if now >= self.rto_at {
            return self.handle_rto(now, config);
        }
        if now >= self.probe_at {
            self.probe_at = Time::MAX;
            self.probe_due = true;
        }
        true
    }

    fn handle_rto(&mut self, now: Time, config: &Config) -> bool {
        self.retries += 1;
        if self.retries > config.max_retries {
            return false;
        }
        let repeated = self.phase == Phase::Loss && self.una < self.recover;
        let kind = if repeated { CongestionKind::RepeatedTimeout } else { CongestionKind::Timeout };
        self.congestion_event(now, kind, self.flight());
        if self.retries > 1 {
            // RFC 2018: the receiver may have discarded what it had SACKed.
            self.sacked.clear();
        }
        self.phase = Phase::Loss;
        self.recover = self.nxt;
        self.lost_below = self.nxt;
        self.resent_below = self.una;
        self.resend_first = true;
        self.duplicate_acks = 0;
        self.timed = None;
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

    /// Handles an acknowledgement, whose `ack` is between `una` and `nxt`.
    pub(super) fn handle_ack(&mut self, now: Time, acked: &Acked<'_>, config: &Config) {
        let (una, flight) = (self.una, self.flight());
        let recovering = self.phase == Phase::Recovery;
        let newly_acked = acked.ack - una;
        let window_changed = acked.window != self.peer_window;
        self.peer_window = acked.window;

        let sacked_before = self.sacked.covered();
        let (mut newly_sacked, mut sent) = (0, None);
        if config.sack {
            for &(start, end) in acked.sacked {
                let limit = config.max_ranges as usize;
                newly_sacked += self.sacked.insert_bounded(start..end, limit).unwrap_or(0);
                sent = sent.max(self.send_times.sacked(start, end));
            }
        }
        let known = if newly_acked > 0 { self.sacked.remove_below(acked.ack) } else { 0 };
        // Bytes below `ack` that were SACKed earlier have been counted then.
        let delivered = newly_acked + newly_sacked - known;
        debug_assert_eq!(self.sacked.covered() + known, sacked_before + newly_sacked);
        self.una = acked.ack;
        sent = sent.max(self.send_times.acked(self.una));

        if newly_acked > 0 {
            self.advance(now, newly_acked, config);
        } else if !config.sack
            && self.phase != Phase::Loss
            && flight > 0
            && acked.pure
            && !window_changed
        {
            // RFC 5681's definition of a duplicate acknowledgement.
            let most = (flight / config.segment_bytes()) as u32;
            self.duplicate_acks = (self.duplicate_acks + 1).min(most.max(1));
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
        self.detect_loss(now, newly_acked, config);
        if acked.ece {
            self.react_to_mark(now, flight);
        }
        if newly_acked > 0 && !recovering && self.may_grow() {
            self.congestion.on_end_acks(&ack);
        }
        self.arm_probe(now, config, false);
    }

    /// Moves the left edge.
    fn advance(&mut self, now: Time, newly_acked: u64, config: &Config) {
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
        } else if self.una >= self.recover {
            self.phase = Phase::Open;
            self.duplicate_acks = 0;
            self.resend_first = false;
            self.lost_below = 0;
            self.resent_below = 0;
        } else if !config.sack && self.phase == Phase::Recovery {
            // NewReno (RFC 6582): a partial acknowledgement reveals the next hole. Except for the hole, the
            // segments that it covers had caused duplicate acknowledgements.
            let segments = newly_acked.div_ceil(config.segment_bytes()) as u32;
            self.duplicate_acks = self.duplicate_acks.saturating_sub(segments.saturating_sub(1));
            self.lose_first(config.segment_bytes());
        }
    }

    /// Counts the first unacknowledged segment as lost, when nothing else is known.
    fn lose_first(&mut self, mss: u64) {
        let message_end = self.message_at(self.una).map_or(self.nxt, Outgoing::end);
        self.lost_below = (self.una + mss).min(message_end).min(self.nxt);
        self.resent_below = self.una;
        self.resend_first = true;
    }

    fn detect_loss(&mut self, now: Time, newly_acked: u64, config: &Config) {
        let mss = config.segment_bytes();
        if self.phase == Phase::Loss || self.flight() == 0 {
            return;
        }
        if config.sack {
            let Some(edge) = lost_below(&self.sacked, config.dup_ack_threshold, mss) else {
                return;
            };
            if edge <= self.una || self.sacked.first_missing(self.una) >= edge {
                return;
            }
            if self.phase == Phase::Open {
                self.enter_recovery(now);
            }
            self.lost_below = self.lost_below.max(edge);
        } else if self.phase == Phase::Open
            && newly_acked == 0
            && self.duplicate_acks >= config.dup_ack_threshold
            // RFC 6582, 3.2 step 2: not for segments that the last recovery has retransmitted.
            && (self.una > self.recover || self.recover == 0)
        {
            self.enter_recovery(now);
            self.lose_first(mss);
        }
    }

    fn enter_recovery(&mut self, now: Time) {
        self.phase = Phase::Recovery;
        self.recover = self.nxt;
        self.resent_below = self.una;
        self.resend_first = true;
        self.probe_due = false;
        self.probe_end = None;
        self.congestion_event(now, CongestionKind::Loss, self.flight());
        // The reaction to this window's loss is also the reaction to its marks.
        self.reduced_below = self.nxt;
        self.cwr_due = true;
    }

    /// Reacts to a mark, at most once per window (RFC 3168, 6.1.2; RFC 8257, 3.3).
    fn react_to_mark(&mut self, now: Time, flight: u64) {
        if self.una > self.reduced_below || self.reduced_below == 0 {
            self.congestion_event(now, CongestionKind::Mark, flight);
            self.reduced_below = self.nxt.max(1);
            self.cwr_due = true;
        }
    }

    fn congestion_event(&mut self, now: Time, kind: CongestionKind, in_flight: u64) {
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
        if acked.duplicate {
            self.probe_end = None;
        } else if self.una > end {
            self.probe_end = None;
            if self.phase == Phase::Open {
                self.congestion_event(now, CongestionKind::Loss, self.congestion.window());
            }
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
