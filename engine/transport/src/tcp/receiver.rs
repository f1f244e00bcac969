//! The receiving half of a connection: reassembly, completed messages, and acknowledgements.

use std::collections::VecDeque;

use rackweave_core::{Kind, MessageId, Placement, RangeSet, Slice, Time};
use rackweave_wire::tcp::SackBlocks;

use super::config::Config;

/// Maximum number of undelivered messages with arrived segments. Together with the limit on ranges, it
/// bounds what a peer can make a receiver hold.
const MAX_MESSAGES: usize = 4096;

/// A message with an arrived segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Incoming {
    /// Position in the stream at which it starts.
    start: u64,
    end: u64,
    pub(super) id: MessageId,
    pub(super) kind: Kind,
    /// Whether the application has cancelled it.
    pub(super) cancelled: bool,
    /// The server has abandoned the exchange: this is the end of it, in place of a response.
    pub(super) abandoned: bool,
}

impl Incoming {
    pub(super) const fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// An arriving data segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    /// Position of its first byte in the stream.
    pub(super) position: u64,
    /// The bytes of the message.
    pub(super) slice: Slice,
    pub(super) message_length: u32,
    pub(super) kind: Kind,
    /// Whether this is not a response but the notice that there is none, which takes one sequence number and has no
    /// bytes.
    pub(super) abandoned: bool,
    /// Whether the network has marked it.
    pub(super) marked: bool,
    /// Whether the sender has reduced its window.
    pub(super) cwr: bool,
}

/// An acknowledgement to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    /// The position below which everything has arrived.
    pub(super) ack: u64,
    /// Whether congestion marks are reported.
    pub(super) ece: bool,
    /// Whether out-of-order ranges are reported.
    pub(super) with_sack: bool,
}

/// The receiving half of a connection.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    /// The position below which everything has arrived.
    nxt: u64,
    /// Messages from the one that contains `nxt` on, disjoint, in the order of the stream.
    messages: VecDeque<Incoming>,
    out_of_order: RangeSet,
    /// Positions in the most recently changed ranges, newest first, for SACK.
    recent: [u64; 3],
    /// The last duplicate range, to be reported (RFC 2883).
    duplicate_range: Option<(u64, u64)>,
    /// Number of acknowledgements to send at once.
    due: u32,
    /// Number of segments that are not acknowledged.
    unacked_segments: u32,
    delayed_until: Time,
    /// Number of acknowledgements that are still sent at once.
    quick: u32,
    /// When data arrived last; `None` before the first.
    last_data: Option<Time>,
    /// Whether the application answers what arrives, so that acknowledgements can travel with its data (Linux,
    /// `inet_csk_in_pingpong_mode`).
    interactive: bool,
    /// DCTCP: whether the last packet was marked. Classic ECN: whether marks are echoed, until the sender
    /// confirms by CWR that it has reduced its window.
    marked: bool,
    /// DCTCP: the acknowledgement of the packets before the last change of `marked`.
    before_change: Option<Ack>,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            nxt: 0,
            messages: VecDeque::new(),
            out_of_order: RangeSet::new(),
            recent: [0; 3],
            duplicate_range: None,
            due: 0,
            unacked_segments: 0,
            delayed_until: Time::MAX,
            quick: 0,
            last_data: None,
            interactive: false,
            marked: false,
            before_change: None,
        }
    }

    pub(super) const fn nxt(&self) -> u64 {
        self.nxt
    }
    pub(super) const fn deadline(&self) -> Time {
        self.delayed_until
    }
    /// Whether an acknowledgement must be sent at once.
    pub(super) const fn ack_due(&self) -> bool {
        self.due > 0 || self.before_change.is_some()
    }
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        (self.messages.len(), self.out_of_order.len())
    }

    /// Requests an acknowledgement at once.
    pub(super) fn acknowledge_now(&mut self) {
        self.due = self.due.max(1);
    }

    /// Handles the end of an acknowledgement's delay.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if now >= self.delayed_until {
            self.delayed_until = Time::MAX;
            self.acknowledge_now();
        }
    }

    /// Marks a message as cancelled if it is arriving; returns whether it is.
    pub(super) fn cancel(&mut self, id: MessageId) -> bool {
        let found = self.messages.iter_mut().find(|message| message.id == id);
        found.map(|message| message.cancelled = true).is_some()
    }

    /// Whether this message is arriving and was not cancelled.
    pub(super) fn is_arriving(&self, id: MessageId) -> bool {
        self.messages.iter().any(|message| message.id == id && !message.cancelled)
    }

    /// Takes the next complete message.
    pub(super) fn pop_complete(&mut self) -> Option<Incoming> {
        self.messages.front().filter(|message| message.end <= self.nxt)?;
        self.messages.pop_front()
    }

    /// Handles a data segment. `wanted` decides whether a message that starts is to be delivered.
    pub(super) fn handle_data(
        &mut self,
        now: Time,
        data: &Arrived,
        wanted: impl Fn(MessageId) -> bool,
        config: &Config,
    ) -> Placement {
        let window_end = self.nxt.saturating_add(config.window_bytes());
        let locate = |receiver: &mut Self| receiver.locate(data, wanted);
        let Some(index) = self.accept(now, data, window_end, locate, config) else {
            return Placement::Discard;
        };
        if self.messages.get(index).is_some_and(|it| it.cancelled || it.abandoned) {
            return Placement::Discard;
        }
        Placement::Store(data.slice)
    }

    /// Handles a segment of a stream without messages, if it is new and ends before `limit`.
    pub(super) fn handle_bytes(
        &mut self,
        now: Time,
        data: &Arrived,
        limit: u64,
        config: &Config,
    ) -> bool {
        self.accept(now, data, limit, |_| Some(0), config).is_some()
    }

    /// Handles a segment if it ends before `limit` and `locate` finds its place; returns that place.
    #[inline]
    fn accept(
        &mut self,
        now: Time,
        data: &Arrived,
        limit: u64,
        locate: impl FnOnce(&mut Self) -> Option<usize>,
        config: &Config,
    ) -> Option<usize> {
        let (position, len) = (data.position, u64::from(data.slice.len));
        let end = position.checked_add(len)?;
        if end <= self.nxt {
            self.note_duplicate(position, end);
            self.duplicate(config);
            return None;
        }
        if len == 0 || end > limit {
            self.duplicate(config);
            return None;
        }
        let index = locate(self)?;
        self.note_data(now, config);
        if position > self.nxt {
            match self.out_of_order.insert_bounded(position..end, config.max_ranges as usize) {
                Err(_) => return None,
                Ok(0) => {
                    self.note_duplicate(position, end);
                    self.duplicate(config);
                    return None;
                }
                Ok(_) => self.note_recent(position),
            }
        }
        self.note_mark(data, config);
        if position > self.nxt {
            self.duplicate(config);
        } else {
            self.advance(now, end, config);
        }
        Some(index)
    }

    /// The index of the segment's message, which is new or has the same description as in earlier segments. A
    /// segment whose mapping contradicts them is discarded.
    fn locate(&mut self, data: &Arrived, wanted: impl Fn(MessageId) -> bool) -> Option<usize> {
        let start = data.position.checked_sub(u64::from(data.slice.offset))?;
        let end = start.checked_add(u64::from(data.message_length))?;
        if data.position + u64::from(data.slice.len) > end {
            return None;
        }
        let same = |message: &Incoming| {
            message.start == start
                && message.end == end
                && message.id == data.slice.message
                && message.kind == data.kind
                && message.abandoned == data.abandoned
        };
        // Usually it is the first message, or a new one behind all others.
        if self.messages.front().is_some_and(same) {
            return Some(0);
        }
        let index = match self.messages.back() {
            None => 0,
            Some(last) if last.end <= start => self.messages.len(),
            Some(_) => self.messages.partition_point(|message| message.end <= start),
        };
        if let Some(message) = self.messages.get(index)
            && message.start < end
        {
            return same(message).then_some(index);
        }
        let in_order = data.position == self.nxt;
        if start < self.nxt || !in_order && self.messages.len() >= MAX_MESSAGES {
            return None;
        }
        let (id, kind, abandoned) = (data.slice.message, data.kind, data.abandoned);
        let cancelled = !wanted(id);
        self.messages.insert(index, Incoming { start, end, id, kind, cancelled, abandoned });
        Some(index)
    }

    /// Moves the left edge to `end`, or further if the following bytes have arrived.
    fn advance(&mut self, now: Time, end: u64, config: &Config) {
        self.nxt = end;
        self.unacked_segments += 1;
        let mut at_once = self.unacked_segments >= config.ack_every_segments
            || self.quick > 0 && !self.interactive;
        if !self.out_of_order.is_empty() {
            // RFC 5681, 4.2: at once while there is a gap, and when one is filled.
            at_once = true;
            self.nxt = self.out_of_order.first_missing(end);
            self.out_of_order.remove_below(self.nxt);
        }
        if at_once {
            self.acknowledge_now();
        } else if self.delayed_until == Time::MAX && self.due == 0 {
            self.delayed_until = now.saturating_add(config.delayed_ack);
        }
    }

    /// Acknowledges at once for a while if this is the first data, or the first for long: the sender's window is small
    /// then (Linux, `tcp_event_data_recv` and `tcp_incr_quickack`).
    #[inline]
    fn note_data(&mut self, now: Time, config: &Config) {
        let silent = |last| now.since(last) > config.idle_restart;
        if self.last_data.is_none_or(silent) {
            let half = config.window_bytes() / (2 * config.segment_bytes());
            self.quick = config.quick_acks.min(half.clamp(2, u64::from(u32::MAX)) as u32);
        }
        self.last_data = Some(now);
    }

    /// Handles a segment that is not the next one, which is acknowledged at once. Without SACK, senders count
    /// these acknowledgements; with it, one reports all ranges.
    fn duplicate(&mut self, config: &Config) {
        self.interactive = false;
        self.due = if config.sack { self.due.max(1) } else { self.due.saturating_add(1) };
    }

    /// Records a duplicate, to be reported (RFC 2883). Several that follow each other before the next acknowledgement
    /// are one (Linux, `tcp_sack_extend`).
    fn note_duplicate(&mut self, start: u64, end: u64) {
        self.duplicate_range = Some(match self.duplicate_range {
            Some((from, to)) if start <= to && from <= end => (from.min(start), to.max(end)),
            _ => (start, end),
        });
    }

    fn note_recent(&mut self, position: u64) {
        let range = self.out_of_order.range_at(position);
        let known = self.recent.iter().position(|p| self.out_of_order.range_at(*p) == range);
        self.recent[..=known.unwrap_or(2)].rotate_right(1);
        self.recent[0] = position;
    }

    /// Updates the state of ECN, before the segment counts as arrived.
    fn note_mark(&mut self, data: &Arrived, config: &Config) {
        if !config.counts_marks() {
            // RFC 3168, 6.1.3.
            self.marked = data.marked || self.marked && !data.cwr;
        } else if data.marked != self.marked {
            // RFC 8257, 3.2: an acknowledgement covers either marked or unmarked packets. At a change, the
            // earlier packets are acknowledged first, and this one separately, at once (as in Linux).
            if self.unacked_segments > 0 && self.before_change.is_none() {
                let with_sack = false;
                self.before_change = Some(Ack { ack: self.nxt, ece: self.marked, with_sack });
                self.unacked_segments = 0;
            }
            self.marked = data.marked;
            self.acknowledge_now();
        }
    }

    /// Takes the next acknowledgement to send at once, if any.
    pub(super) fn take_ack(&mut self) -> Option<Ack> {
        if let Some(ack) = self.before_change.take() {
            return Some(ack);
        }
        self.due = self.due.checked_sub(1)?;
        self.acknowledged();
        Some(Ack { ack: self.nxt, ece: self.marked, with_sack: true })
    }

    /// Takes the acknowledgement for a data segment that is sent now.
    pub(super) fn take_piggyback(&mut self, now: Time, config: &Config) -> Ack {
        self.due = 0;
        let answers = |last| now.since(last) <= config.delayed_ack;
        self.interactive |= self.last_data.is_some_and(answers);
        self.acknowledged();
        Ack { ack: self.nxt, ece: self.marked, with_sack: false }
    }

    fn acknowledged(&mut self) {
        self.quick = self.quick.saturating_sub(1);
        self.unacked_segments = 0;
        self.delayed_until = Time::MAX;
    }

    /// Takes the ranges to report: the duplicate one first, then the most recently changed ones (RFC 2018,
    /// section 4).
    pub(super) fn take_sack(&mut self) -> ([(u64, u64); 3], usize) {
        let mut blocks = [(0, 0); 3];
        let mut count = 0;
        if let Some(block) = self.duplicate_range.take() {
            blocks[0] = block;
            count = 1;
        }
        let first = count;
        if !self.out_of_order.is_empty() {
            for position in self.recent {
                let Some(range) = self.out_of_order.range_at(position) else { continue };
                let range = (range.start, range.end);
                if count < blocks.len() && !blocks[first..count].contains(&range) {
                    blocks[count] = range;
                    count += 1;
                }
            }
        }
        (blocks, count)
    }
}

/// Converts ranges of positions to sequence numbers.
pub(super) fn wire_blocks(blocks: [(u64, u64); 3], start: u32) -> SackBlocks {
    blocks.map(|(from, to)| (wire_sequence(start, from), wire_sequence(start, to)))
}

/// Converts a position to a sequence number, which wraps.
#[inline]
pub(super) const fn wire_sequence(start: u32, position: u64) -> u32 {
    start.wrapping_add(position as u32)
}

/// The position nearest to `near` with this sequence number; `None` if it would be before the start of the
/// stream.
#[inline]
pub(super) fn position(start: u32, near: u64, sequence: u32) -> Option<u64> {
    let distance = sequence.wrapping_sub(wire_sequence(start, near)).cast_signed();
    near.checked_add_signed(i64::from(distance))
}
