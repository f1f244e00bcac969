//! The sending half of a connection: the stream, and which of its bytes are sent next.
//!
//! Positions are `u64` offsets into the stream, from 0. What acknowledgements and timeouts tell of the segments in
//! flight is in `recovery`.

use std::collections::VecDeque;

use rackweave_core::{Kind, MessageId, RangeSet, Rate, Time};

use super::config::Config;
use super::congestion::{Congestion, Controller as _};
use super::prr::Prr;
use super::rack::Rack;
use super::recovery::{Frto, Phase, Undo};
use super::rtt::Rtt;
use super::scoreboard::Scoreboard;

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

/// What [`Sender::cancel`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancelled {
    /// The message is not in the stream, or was cancelled before.
    Unknown,
    /// It has left the stream.
    Removed,
    /// Some of its bytes were sent, so that the rest of them follow.
    Leaving,
}

impl Outgoing {
    const fn end(&self) -> u64 {
        self.start + self.len as u64
    }
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
    /// The segment that it reports to have arrived twice (RFC 2883).
    pub(super) duplicate: Option<(u64, u64)>,
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
    pub(super) una: u64,
    pub(super) nxt: u64,
    end: u64,
    /// Messages that are not completely acknowledged and have a place in the stream, in its order: all with sent bytes,
    /// and the next one.
    messages: VecDeque<Outgoing>,
    /// Index of the message that contains `nxt`; all messages before it were sent completely.
    cursor: usize,
    /// The messages behind those, without positions: one that is cancelled here moves no other.
    waiting: VecDeque<Outgoing>,
    /// Entries of `waiting` that were cancelled.
    holes: usize,
    /// Whether the ids of all messages were in order so far, as those of a client are (see [`rackweave_core::Submit`]).
    is_ordered: bool,
    /// The id of the last message.
    last: MessageId,
    /// The number of cancelled messages that are left in the stream.
    cancelled: usize,
    pub(super) peer_window: u64,
    pub(super) congestion: Congestion,
    /// What was selectively acknowledged.
    pub(super) sacked: RangeSet,
    pub(super) scoreboard: Scoreboard,
    pub(super) rack: Rack,
    /// When segments may be late that RACK does not count as lost yet.
    pub(super) late_at: Time,
    /// The reduction of the window that is in progress.
    pub(super) prr: Option<Prr>,
    pub(super) undo: Option<Undo>,
    pub(super) frto: Frto,
    pub(super) phase: Phase,
    /// The phase ends when this position is acknowledged.
    pub(super) recover: u64,
    pub(super) duplicate_acks: u32,
    /// Whether the first segment of a recovery is still to be sent, regardless of the window.
    pub(super) resend_first: bool,
    /// Bytes below this position were sent at the limit of the window: their acknowledgements let the window
    /// grow.
    pub(super) limited_below: u64,
    /// The last reaction to marks ends when this position is acknowledged.
    pub(super) reduced_below: u64,
    /// Whether CWR must be sent.
    pub(super) cwr_due: bool,
    pub(super) rtt: Rtt,
    /// The segment whose RTT is measured: its end, and when it was sent.
    pub(super) timed: Option<(u64, Time)>,
    pub(super) rto_at: Time,
    pub(super) retries: u32,
    pub(super) probe_at: Time,
    pub(super) probe_due: bool,
    /// End of the segment that a tail loss probe has retransmitted, while it is not known whether that repaired
    /// a loss.
    pub(super) probe_end: Option<u64>,
    /// Number of retransmissions, and of duplicates that the peer has reported.
    pub(super) resent: u64,
    pub(super) duplicates: u64,
    last_sent: Time,
    /// Pacing: the earliest time of the next segment; `Time::MAX` if there is no limit.
    pace_at: Time,
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
            waiting: VecDeque::new(),
            holes: 0,
            is_ordered: true,
            last: MessageId(0),
            cancelled: 0,
            peer_window: config.window_bytes(),
            congestion: Congestion::new(config),
            sacked: RangeSet::default(),
            scoreboard: Scoreboard::default(),
            rack: Rack::new(),
            late_at: Time::MAX,
            prr: None,
            undo: None,
            frto: Frto::Off,
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
            resent: 0,
            duplicates: 0,
            last_sent: Time::ZERO,
            pace_at: Time::MAX,
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
        self.probe_at.min(self.rto_at).min(self.late_at).min(self.pace_at)
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
            let last = match self.waiting.back_mut() {
                Some(last) => Some(last).filter(|last| last.len < LONGEST),
                None => self.messages.back_mut().filter(room),
            };
            let most = if let Some(last) = last {
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
        self.end += u64::from(len);
        self.is_ordered &= self.last <= id;
        self.last = id;
        self.waiting.push_back(Outgoing { id, start: 0, len, kind, cancelled, abandoned });
        self.place();
    }

    /// Gives the next message its place in the stream, once all before it were sent.
    fn place(&mut self) {
        while self.cursor >= self.messages.len()
            && let Some(mut next) = self.waiting.pop_front()
        {
            if next.len == 0 {
                self.holes -= 1;
                continue;
            }
            next.start = self.nxt;
            self.messages.push_back(next);
        }
    }

    /// Appends, in place of a response, the notice that there is none. It occupies one position of the stream, so
    /// that it is delivered reliably and in order, and has no bytes. No event follows from it here.
    pub(super) fn push_abandonment(&mut self, response: MessageId) {
        self.push(response, 1, Kind::Response);
        let last = self.waiting.back_mut().or_else(|| self.messages.back_mut());
        if let Some(last) = last {
            (last.cancelled, last.abandoned) = (true, true);
            self.cancelled += 1;
        }
    }

    /// Removes a message from the stream if none of its bytes were sent; otherwise marks it as cancelled.
    pub(super) fn cancel(&mut self, id: MessageId) -> Cancelled {
        if let Some(index) = self.find(&self.messages, id) {
            let message = self.messages[index];
            if self.nxt > message.start {
                self.messages[index].cancelled = true;
                self.cancelled += 1;
                return Cancelled::Leaving;
            }
            // It is the last one that has a place.
            self.messages.remove(index);
            self.end -= u64::from(message.len);
            self.place();
            return Cancelled::Removed;
        }
        let Some(index) = self.find(&self.waiting, id) else { return Cancelled::Unknown };
        let message = &mut self.waiting[index];
        self.end -= u64::from(message.len);
        (message.len, message.cancelled) = (0, true);
        self.holes += 1;
        // Holes are at most half of the queue, so that each costs two moves of an entry.
        if self.holes * 2 > self.waiting.len() {
            self.waiting.retain(|message| message.len > 0);
            self.holes = 0;
        }
        Cancelled::Removed
    }

    /// The index of a message that was not cancelled. Responses are in any order: a server cancels few of them.
    fn find(&self, messages: &VecDeque<Outgoing>, id: MessageId) -> Option<usize> {
        let is_it = |message: &Outgoing| message.id == id && !message.cancelled;
        if self.is_ordered {
            let index = messages.partition_point(|message| message.id < id);
            return messages.get(index).is_some_and(is_it).then_some(index);
        }
        messages.iter().position(is_it)
    }

    /// Whether bytes are left of cancelled messages, and of no others.
    pub(super) fn has_only_cancelled(&self) -> bool {
        let left = self.messages.len() + self.waiting.len() - self.holes;
        left > 0 && left == self.cancelled
    }

    /// Takes the next message that is completely acknowledged.
    pub(super) fn pop_acked(&mut self) -> Option<Outgoing> {
        self.messages.front().filter(|message| message.end() <= self.una)?;
        self.cursor = self.cursor.saturating_sub(1);
        let message = self.messages.pop_front()?;
        self.cancelled -= usize::from(message.cancelled);
        Some(message)
    }

    /// Takes all remaining messages, when the connection ends.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Outgoing> + '_ {
        (self.holes, self.cancelled) = (0, 0);
        let waiting = self.waiting.drain(..).filter(|message| message.len > 0);
        self.messages.drain(..).chain(waiting)
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
    pub(super) fn pipe(&self, config: &Config) -> u64 {
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
            self.scoreboard.sacked()
        } else {
            u64::from(self.duplicate_acks) * config.segment_bytes()
        };
        (self.flight() + self.scoreboard.in_retransmission())
            .saturating_sub(arrived.saturating_add(self.scoreboard.lost()))
    }

    /// What may be sent now, by RFC 6675's rules (1) and (2).
    #[inline]
    fn plan(&self, config: &Config) -> Option<Plan> {
        if self.probe_due
            && let Some(probe) = self.plan_probe(config.segment_bytes())
        {
            return Some(probe);
        }
        if self.frto == Frto::New {
            // RFC 5682, 3.1 step 2b: new data, whose acknowledgements show whether the rest was lost. Before that
            // nothing is retransmitted.
            let new = self.next_new(config.segment_bytes()).filter(|new| self.fits(*new, config));
            if new.is_some() || self.nxt > self.recover {
                return new.map(Plan::New);
            }
        }
        if let Some(segment) = self.scoreboard.next_lost() {
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
        let window = self.prr.as_ref().map_or_else(|| self.congestion.window(), Prr::limit);
        pipe == 0 || pipe + segment.len <= window
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
        self.scoreboard.last().map(Plan::Probe)
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
        self.nxt < self.end || self.scoreboard.waiting() > 0
    }

    /// Takes the next segment to send, if there is one, and sets the timers.
    pub(super) fn take_segment(&mut self, now: Time, config: &Config) -> Option<Segment> {
        if self.is_paced(now) {
            self.note_limit();
            return None;
        }
        let Some(plan) = self.plan(config) else {
            self.note_limit();
            return None;
        };
        let probing = core::mem::take(&mut self.probe_due);
        let (segment, is_first) = match plan {
            Plan::New(segment) => {
                if self.flight() == 0 {
                    self.note_idle(now, config);
                }
                self.nxt += segment.len;
                if self.messages[self.cursor].end() == self.nxt {
                    self.cursor += 1;
                    self.place();
                }
                if self.timed.is_none() && !probing {
                    self.timed = Some((self.nxt, now));
                }
                self.scoreboard.sent(segment, now);
                (segment, false)
            }
            Plan::Retransmit(segment) => {
                self.resend_first = false;
                self.note_retransmitted(segment, now);
                (segment, segment.position == self.una)
            }
            Plan::Probe(segment) => {
                self.probe_end = Some(self.nxt);
                self.note_retransmitted(segment, now);
                (segment, false)
            }
        };
        self.last_sent = now;
        self.congestion.on_sent(now, segment.len);
        if let Some(prr) = &mut self.prr {
            prr.sent(segment.len);
        }
        if let Some(rate) = self.congestion.pacing_rate() {
            self.pace_at = now.saturating_add(Rate(rate.0.max(1)).span_of(segment.len));
        }
        // RFC 6675, 6: the timer starts again with the retransmission of the first segment, which it is for.
        if self.rto_at == Time::MAX || probing || is_first && config.rack {
            self.rto_at = now.saturating_add(self.rtt.rto(config));
        }
        self.arm_probe(now, config, probing);
        Some(segment)
    }

    /// Handles the time without anything in flight before a transmission.
    fn note_idle(&mut self, now: Time, config: &Config) {
        let idle = now.since(self.last_sent);
        let restart =
            config.slow_start_after_idle.then(|| self.rtt.rto(config).max(config.idle_restart));
        self.congestion.on_idle(now, idle, restart);
    }

    /// Karn's algorithm: an acknowledgement of a retransmitted segment is ambiguous.
    fn note_retransmitted(&mut self, segment: Segment, now: Time) {
        self.timed = None;
        self.resent += 1;
        self.scoreboard.resent(segment.position, now);
        if let Some(undo) = &mut self.undo {
            undo.note_resent(segment.len);
        }
    }

    /// Whether the pacing rate forbids a segment now.
    #[inline]
    pub(super) fn is_paced(&mut self, now: Time) -> bool {
        if self.pace_at <= now {
            self.pace_at = Time::MAX;
        }
        self.pace_at != Time::MAX
    }

    /// Whether the next new segment carries CWR (RFC 3168): the first one after a reduction of the window does.
    pub(super) fn take_cwr(&mut self, config: &Config) -> bool {
        config.data_is_ecn_capable() && core::mem::take(&mut self.cwr_due)
    }

    /// Arms the timer of a tail loss probe by RFC 8985, 7.2: two RTTs after the last transmission or
    /// acknowledgement, plus the maximum delay of an acknowledgement if a single segment is in flight, but not
    /// later than the RTO. A probe that could not be sent yet is not due any more.
    pub(super) fn arm_probe(&mut self, now: Time, config: &Config, probing: bool) {
        self.probe_at = Time::MAX;
        self.probe_due = false;
        let calm = self.phase == Phase::Open && self.sacked.is_empty() && self.duplicate_acks == 0;
        if !config.tail_loss_probe || !config.sack || !calm || self.probe_end.is_some() || probing {
            return;
        }
        let (Some(srtt), true) = (self.rtt.smoothed(), self.flight() > 0) else { return };
        let mut at = now.saturating_add(srtt).saturating_add(srtt);
        if self.flight() <= config.segment_bytes() {
            at = at.saturating_add(config.delayed_ack);
        }
        if at < self.rto_at {
            self.probe_at = at;
        }
    }
}
