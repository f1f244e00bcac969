//! The receiving end: which bytes have arrived, and the control packets to the sender.
//!
//! - `report`: when to send a status report, and what it contains; `parity`: the stored parities.

mod parity;
mod report;

use core::ops::Range;
use std::collections::VecDeque;

use rackweave_core::ranges::Assembler;
use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Data, Place, Reason, Session, TO_AGENT};

use super::{FlowConfig, Placement, ReceiverEvent};
use parity::Parities;
use report::Report;

/// The interval before the first repetition of an unanswered control packet; it doubles up to [`RETRY_MAX`].
const RETRY: Span = Span::from_ms(5);
const RETRY_MAX: Span = Span::from_ms(500);
/// The largest number of `Bye` packets that a leaving receiver sends without an answer.
const MAX_BYES: u8 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Repeats `Join` until a packet of the sender shows that it has arrived.
    Joining,
    /// Receives data and reports.
    Receiving,
    /// Repeats `Complete` until it is acknowledged.
    Completing,
    /// Repeats `Bye` until it is acknowledged.
    Leaving(Reason),
    /// Sends nothing more.
    Over,
}

/// One receiver of one session. See the [module](super) for the contract.
#[derive(Clone, Debug)]
pub struct Receiver {
    session: Session,
    incarnation: u32,
    stream: u128,
    sender: HostId,
    place: Place,
    via_agent: bool,
    config: FlowConfig,

    stage: Stage,
    detached: bool,
    ranges: Assembler,
    consumed: u64,
    room: u64,
    length: Option<u64>,
    end_reported: bool,
    /// Whether the application has verified the whole stream.
    is_verified: bool,
    report: Report,
    parities: Parities,

    last_heard: Time,
    /// The time of the next `Join`, `Complete` or `Bye`, and how many of them have been sent.
    retry_at: Time,
    attempts: u8,
    events: VecDeque<ReceiverEvent>,
}

impl Receiver {
    /// Returns a receiver that joins a session, after an invitation or without one. `at` is the first byte that it
    /// needs; `room` is the number of bytes that it can hold beyond those consumed, at least one packet. With
    /// `via_agent` its reports go to the rack's agent. `incarnation` differs from that of any other receiver of the session at
    /// this host.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "they identify the session and its settings")]
    pub fn new(
        now: Time,
        session: Session,
        incarnation: u32,
        stream: u128,
        sender: HostId,
        place: Place,
        at: u64,
        room: u64,
        via_agent: bool,
        config: FlowConfig,
    ) -> Self {
        let config = config.sane();
        let room = room.max(u64::from(config.payload));
        let place = Place { port: place.port & 63, ..place };
        Self {
            session,
            incarnation,
            stream,
            sender,
            place,
            via_agent,
            stage: Stage::Joining,
            detached: false,
            ranges: Assembler::starting_at(at),
            consumed: at,
            room,
            length: None,
            end_reported: false,
            is_verified: false,
            report: Report::new(at, at.saturating_add(room), &config),
            parities: Parities::new(at, config.payload),
            last_heard: now,
            retry_at: now,
            attempts: 0,
            events: VecDeque::new(),
            config,
        }
    }

    /// Returns the offset of the first missing byte.
    #[must_use]
    pub const fn have(&self) -> u64 {
        self.ranges.prefix()
    }

    /// Returns the host that sends the session.
    #[must_use]
    pub const fn sender(&self) -> HostId {
        self.sender
    }

    /// Returns when a packet of the sender last arrived; at first, when the session was joined.
    #[must_use]
    pub const fn last_heard(&self) -> Time {
        self.last_heard
    }

    /// Returns whether the sender has not answered its `Join` yet.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        self.stage == Stage::Joining
    }

    /// Returns the reason for which it is leaving, while the sender has not acknowledged that.
    #[must_use]
    pub const fn leaves(&self) -> Option<Reason> {
        match self.stage {
            Stage::Leaving(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns whether the session is over, so that the receiver may be dropped once its events are polled.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Handles a data packet of the session and returns how to place its payload. No field is trusted.
    pub fn handle_data(&mut self, now: Time, data: &Data) -> Option<Placement> {
        if data.session != self.session {
            return None;
        }
        if let Some(parity) = data.parity {
            return self.handle_parity(now, data, parity);
        }
        if !matches!(self.stage, Stage::Joining | Stage::Receiving) {
            self.on_heard(now);
            return None;
        }
        let end = data.offset.checked_add(u64::from(data.len)).filter(|end| *end < 1 << 48)?;
        let is_last = data.end && !self.config.ignore_end_mark;
        if self.length.is_some_and(|length| end > length || is_last && end != length) {
            return None; // A correct sender never changes the length.
        }
        if is_last && end < self.report.seen() {
            return None;
        }
        self.on_heard(now);
        self.begin_receiving();
        if is_last {
            self.length = Some(end);
        }
        let limit = self.limit();
        let before = self.ranges.prefix();
        let max_gaps = usize::from(self.config.max_gaps);
        let taken = end.min(limit);
        let new = self.ranges.insert_evicting(data.offset..taken, max_gaps);
        let known = new.is_some() || taken <= before || data.offset < taken;
        if known && data.offset < limit {
            let (bytes, new) = ((taken, u64::from(data.len)), new.is_some());
            self.report.on_data(now, bytes, new, data.repair, &self.ranges);
        }
        let prefix = self.ranges.prefix();
        if prefix > before {
            self.on_readable(prefix);
        }
        if is_last {
            self.on_end(now);
        }
        let Range { start: from, end: to } = new?;
        self.check_recovery(from);
        let skip = (from - data.offset) as u16;
        let len = (to - from) as u16;
        Some(Placement::Store { session: self.session, offset: from, skip, len })
    }

    /// Handles a control packet of the session from its sender.
    pub fn handle_control(&mut self, now: Time, body: &Body) {
        if self.stage == Stage::Over {
            return;
        }
        match *body {
            Body::Invite { stream, .. } if stream == self.stream => {
                self.on_heard(now);
                // The `Join` was lost, or the sender has restarted.
                if matches!(self.stage, Stage::Joining | Stage::Receiving) {
                    self.stage = Stage::Joining;
                    self.retry_at = self.retry_at.min(now);
                    if self.attempts == 0 {
                        self.retry_at = now;
                    }
                }
            }
            Body::End { length } => {
                let _ = self.end(now, length);
            }
            Body::Mode { detached } => {
                self.on_heard(now);
                self.on_joined(now);
                if self.detached != detached {
                    self.detached = detached;
                    self.report.set_detached(now, detached, self.ranges.prefix());
                    self.events.retain(|event| !is_mode(event));
                    self.events.push_back(if detached {
                        ReceiverEvent::Detached
                    } else {
                        ReceiverEvent::Rejoined
                    });
                }
                self.report.request_now(now);
            }
            Body::Bye { reason } => match self.stage {
                Stage::Completing | Stage::Leaving(_) => self.close(),
                _ => self.fail(reason),
            },
            _ => {}
        }
    }

    /// Records the length of the stream; the sender has sent all of it. Returns `false` if data beyond it has arrived, or if another
    /// length is known.
    pub fn end(&mut self, now: Time, length: u64) -> bool {
        let known = self.length.unwrap_or(length);
        if known != length || length < self.ranges.prefix() || length < self.report.seen() {
            return false;
        }
        self.on_heard(now);
        self.on_joined(now);
        if self.stage == Stage::Receiving {
            self.length = Some(length);
            self.report.on_end(now, length);
            self.on_end(now);
        }
        true
    }

    /// Returns whether the stream is still being received: it is neither verified nor left.
    #[must_use]
    pub const fn can_restart(&self) -> bool {
        !self.is_verified && matches!(self.stage, Stage::Joining | Stage::Receiving)
    }

    /// Begins to receive once more, from byte `at` on, as a receiver that was started again: all bytes from there on are forgotten.
    /// `incarnation` is as for [`Self::new`]. No effect unless [`Self::can_restart`].
    pub fn restart(&mut self, now: Time, incarnation: u32, at: u64) {
        if !self.can_restart() {
            return;
        }
        let (session, stream, sender, place) = (self.session, self.stream, self.sender, self.place);
        let (room, via_agent, config) = (self.room, self.via_agent, self.config);
        let again = Self::new(
            now,
            session,
            incarnation,
            stream,
            sender,
            place,
            at,
            room,
            via_agent,
            config,
        );
        let events = core::mem::take(&mut self.events);
        // What is readable or recoverable of the earlier start no longer is.
        let kept = events.into_iter().filter(is_mode).collect();
        *self = Self { events: kept, detached: self.detached, ..again };
        if self.detached {
            self.report.set_detached(now, true, at);
        }
    }

    /// Records that the application has consumed all bytes below `upto`, which opens the receive window.
    pub fn consume(&mut self, now: Time, upto: u64) {
        self.consumed = self.consumed.max(upto.min(self.ranges.prefix()));
        let limit = self.limit();
        self.report.on_window(now, limit, self.room, &self.ranges);
    }

    /// Records that the application needs no bytes below `upto`, because it has them from elsewhere. The sender need not
    /// send them to it.
    pub fn skip(&mut self, now: Time, upto: u64) {
        let before = self.ranges.prefix();
        let upto = upto.min(self.length.unwrap_or((1 << 48) - 1));
        if upto <= before || !matches!(self.stage, Stage::Joining | Stage::Receiving) {
            return;
        }
        let _ = self.ranges.insert_evicting(before..upto, usize::from(self.config.max_gaps));
        self.report.on_skip(now, upto);
        self.parities.skip(upto);
        let prefix = self.ranges.prefix();
        if prefix > before {
            self.on_readable(prefix);
        }
    }

    /// Records that the application has verified the whole stream. No effect before [`ReceiverEvent::Ended`].
    pub fn complete(&mut self, now: Time) {
        self.is_verified |= self.end_reported;
        if self.stage == Stage::Receiving && self.is_verified {
            self.stage = Stage::Completing;
            (self.retry_at, self.attempts) = (now, 0);
        }
    }

    /// Handles that data shows that the sender knows this receiver. Once the stream is verified, late data shows nothing.
    fn begin_receiving(&mut self) {
        if self.stage == Stage::Joining && !self.is_verified {
            self.stage = Stage::Receiving;
        }
    }

    /// Handles an answer to `Join`. A receiver that was invited again after the end, while its application verified the stream,
    /// completes only now: the sender ignores `Complete` of a receiver that it has just invited.
    fn on_joined(&mut self, now: Time) {
        if self.stage == Stage::Joining {
            self.stage = Stage::Receiving;
            if self.is_verified {
                self.complete(now);
            }
        }
    }

    /// Leaves the session for this reason.
    pub fn leave(&mut self, now: Time, reason: Reason) {
        if matches!(self.stage, Stage::Joining | Stage::Receiving) {
            self.stage = Stage::Leaving(reason);
            (self.retry_at, self.attempts) = (now, 0);
        }
    }

    /// To be called at the time of [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {
        match self.stage {
            Stage::Over => {}
            Stage::Leaving(_) => {
                if now >= self.retry_at && self.attempts >= MAX_BYES {
                    self.close();
                }
            }
            Stage::Completing => {
                if now >= self.silent_at() {
                    self.close(); // The stream is complete, so a sender that is gone does no harm.
                }
            }
            Stage::Joining | Stage::Receiving => {
                if now >= self.silent_at() {
                    self.fail(Reason::Silent);
                } else {
                    self.report.handle_timeout(now, &self.ranges);
                }
            }
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] or [`Self::poll`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.stage {
            Stage::Over => None,
            Stage::Leaving(_) => Some(self.retry_at),
            Stage::Joining | Stage::Completing => Some(self.retry_at.min(self.silent_at())),
            Stage::Receiving => Some(self.report.poll_timeout().min(self.silent_at())),
        }
    }

    /// Returns the next packet to send and its destination: the sender or [`TO_AGENT`].
    pub fn poll(&mut self, now: Time) -> Option<(HostId, Body)> {
        let body = match self.stage {
            Stage::Over => return None,
            Stage::Receiving => {
                let limit = self.limit();
                let (ranges, parities) = (&self.ranges, &self.parities);
                let status = self.report.poll(now, ranges, parities, limit, self.place)?;
                let to = if self.via_agent && !self.detached { TO_AGENT } else { self.sender };
                return Some((to, Body::Status(status)));
            }
            Stage::Joining => {
                let (at, limit) = (self.ranges.prefix(), self.limit());
                let (incarnation, stream, place) = (self.incarnation, self.stream, self.place);
                Body::Join { incarnation, stream, place, at, limit }
            }
            Stage::Completing => Body::Complete { place: self.place },
            Stage::Leaving(_) if self.attempts >= MAX_BYES => return None,
            Stage::Leaving(reason) => Body::Bye { reason },
        };
        if now < self.retry_at {
            return None;
        }
        let wait = (RETRY * (1 << self.attempts.min(10))).min(RETRY_MAX);
        self.retry_at = now.saturating_add(wait);
        self.attempts = self.attempts.saturating_add(1);
        Some((self.sender, body))
    }

    /// Returns the next event for the application.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    const fn limit(&self) -> u64 {
        self.consumed.saturating_add(self.room)
    }

    fn on_heard(&mut self, now: Time) {
        self.last_heard = now;
    }

    fn silent_at(&self) -> Time {
        self.last_heard.saturating_add(self.config.patience)
    }

    /// Updates a waiting `Readable` event instead of adding another one, so that the queue is bounded by the number of
    /// kinds of events.
    fn on_readable(&mut self, upto: u64) {
        match self.events.back_mut() {
            Some(ReceiverEvent::Readable { upto: waiting }) => *waiting = upto,
            _ => self.events.push_back(ReceiverEvent::Readable { upto }),
        }
        self.check_end();
    }

    fn on_end(&mut self, now: Time) {
        self.report.request_now(now);
        self.check_end();
    }

    fn check_end(&mut self) {
        if let Some(length) = self.length
            && self.ranges.prefix() >= length
            && !self.end_reported
        {
            self.end_reported = true;
            self.events.push_back(ReceiverEvent::Ended { length });
        }
    }

    fn close(&mut self) {
        self.stage = Stage::Over;
        self.events.push_back(ReceiverEvent::Closed);
    }

    fn fail(&mut self, reason: Reason) {
        self.stage = Stage::Over;
        self.events.push_back(ReceiverEvent::Failed { reason });
    }

    /// Asserts that all state that can grow is within the bounds of the configuration.
    #[cfg(test)]
    pub(super) fn check_bounds(&self) {
        assert!(self.ranges.above().len() <= usize::from(self.config.max_gaps));
        self.parities.check_bounds();
        assert!(self.events.is_empty(), "events are taken after each call");
    }
}

/// Returns whether an event reports a [`Body::Mode`]. A newer one replaces waiting ones.
pub(crate) const fn is_mode(event: &ReceiverEvent) -> bool {
    matches!(event, ReceiverEvent::Detached | ReceiverEvent::Rejoined)
}
