//! The receiving end: what has come, what is missing, and when to say so.

mod parity;
mod report;

use std::collections::VecDeque;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Data, Place, Reason, Session, TO_AGENT};

use super::ranges::Ranges;
use super::{FlowConfig, Placement, ReceiverEvent};
use parity::Parities;
use report::Report;

/// First repetition of what is told until it is answered; each later one waits twice as long.
const REPEAT: Span = Span::from_ms(5);
/// Longest wait between repetitions.
const REPEAT_MOST: Span = Span::from_ms(500);
/// A leaving receiver says so at most so often.
const FAREWELLS: u8 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Tells `Join` until the sender shows that it knows.
    Joining,
    /// Takes bytes.
    Taking,
    /// Tells `Complete` until it is acknowledged.
    Completing,
    /// Tells `Bye` until it is acknowledged.
    Leaving(Reason),
    /// Nothing more is told.
    Over,
}

/// One receiver of one session. See the [module](super) for the contract.
#[derive(Clone, Debug)]
pub struct Receiver {
    session: Session,
    stream: u128,
    sender: HostId,
    place: Place,
    via_agent: bool,
    config: FlowConfig,

    stage: Stage,
    detached: bool,
    ranges: Ranges,
    consumed: u64,
    room: u64,
    length: Option<u64>,
    ended_told: bool,
    report: Report,
    parities: Parities,

    heard: Time,
    /// When `Join`, `Complete` or `Bye` is told next, and how often it has been.
    repeat_at: Time,
    repeats: u8,
    events: VecDeque<ReceiverEvent>,
}

impl Receiver {
    /// Takes part in a session: in answer to an invitation, late, or resumed. `at`: the first byte that it needs; `room`:
    /// bytes that it can hold beyond those consumed, at least one packet; `via_agent`: reports go to the rack's agent.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "all of them name what is joined")]
    pub fn new(
        now: Time,
        session: Session,
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
            stream,
            sender,
            place,
            via_agent,
            stage: Stage::Joining,
            detached: false,
            ranges: Ranges::starting(at),
            consumed: at,
            room,
            length: None,
            ended_told: false,
            report: Report::new(at, at.saturating_add(room), &config),
            parities: Parities::new(at, config.payload),
            heard: now,
            repeat_at: now,
            repeats: 0,
            events: VecDeque::new(),
            config,
        }
    }

    /// The first byte that it does not have.
    #[must_use]
    pub const fn have(&self) -> u64 {
        self.ranges.prefix()
    }

    /// The sender.
    #[must_use]
    pub const fn sender(&self) -> HostId {
        self.sender
    }

    /// Nothing more will come of it: it may be forgotten once its events are taken.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Takes a data packet of the session; says what to do with its payload. Any field may be wrong.
    pub fn handle_data(&mut self, now: Time, data: &Data) -> Option<Placement> {
        if data.session != self.session {
            return None;
        }
        if let Some(parity) = data.parity {
            return self.handle_parity(now, data, parity);
        }
        if !matches!(self.stage, Stage::Joining | Stage::Taking) {
            self.hear(now);
            return None;
        }
        let end = data.offset.checked_add(u64::from(data.len)).filter(|end| *end < 1 << 48)?;
        if self.length.is_some_and(|length| end > length || data.end && end != length) {
            return None; // A sender never contradicts itself.
        }
        if data.end && end < self.report.seen() {
            return None;
        }
        self.hear(now);
        if self.stage == Stage::Joining {
            self.stage = Stage::Taking;
        }
        if data.end {
            self.length = Some(end);
        }
        let limit = self.limit();
        let before = self.ranges.prefix();
        let max_gaps = usize::from(self.config.max_gaps);
        let new = self.ranges.insert(data.offset, end.min(limit), max_gaps);
        let taken = end.min(limit);
        let known = new.is_some() || taken <= before || data.offset < taken;
        if known && data.offset < limit {
            let (bytes, new) = ((taken, u64::from(data.len)), new.is_some());
            self.report.arrived(now, bytes, new, data.repair, &self.ranges);
        }
        let prefix = self.ranges.prefix();
        if prefix > before {
            self.readable(prefix);
        }
        if data.end {
            self.ended(now);
        }
        let (from, to) = new?;
        self.look_for_recovery(from);
        let skip = (from - data.offset) as u16;
        let len = (to - from) as u16;
        Some(Placement::Store { session: self.session, offset: from, skip, len })
    }

    /// Takes a control packet of the session from its sender.
    pub fn handle_control(&mut self, now: Time, body: &Body) {
        if self.stage == Stage::Over {
            return;
        }
        match *body {
            Body::Invite { stream, .. } if stream == self.stream => {
                self.hear(now);
                // Our `Join` was lost, or the sender has begun anew.
                if matches!(self.stage, Stage::Joining | Stage::Taking) {
                    self.stage = Stage::Joining;
                    self.repeat_at = self.repeat_at.min(now);
                    if self.repeats == 0 {
                        self.repeat_at = now;
                    }
                }
            }
            Body::End { length } => {
                let known = self.length.unwrap_or(length);
                if known != length || length < self.ranges.prefix() || length < self.report.seen() {
                    return;
                }
                self.hear(now);
                if matches!(self.stage, Stage::Joining | Stage::Taking) {
                    self.stage = Stage::Taking;
                    self.length = Some(length);
                    self.report.ends(now, length);
                    self.ended(now);
                }
            }
            Body::Mode { detached } => {
                self.hear(now);
                if self.stage == Stage::Joining {
                    self.stage = Stage::Taking;
                }
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
                self.report.soon(now);
            }
            Body::Bye { reason } => match self.stage {
                Stage::Completing | Stage::Leaving(_) => self.close(),
                _ => self.fail(reason),
            },
            _ => {}
        }
    }

    /// The application has taken all bytes below `upto`: there is room again.
    pub fn consume(&mut self, now: Time, upto: u64) {
        self.consumed = self.consumed.max(upto.min(self.ranges.prefix()));
        let limit = self.limit();
        self.report.room(now, limit, self.room, &self.ranges);
    }

    /// The application has everything, and it is right. Before the end this does nothing.
    pub fn complete(&mut self, now: Time) {
        if self.stage == Stage::Taking && self.ended_told {
            self.stage = Stage::Completing;
            (self.repeat_at, self.repeats) = (now, 0);
        }
    }

    /// The application wants no more.
    pub fn leave(&mut self, now: Time, reason: Reason) {
        if matches!(self.stage, Stage::Joining | Stage::Taking) {
            self.stage = Stage::Leaving(reason);
            (self.repeat_at, self.repeats) = (now, 0);
        }
    }

    /// The time that [`Self::poll_timeout`] named has come.
    pub fn handle_timeout(&mut self, now: Time) {
        match self.stage {
            Stage::Over => {}
            Stage::Leaving(_) => {
                if now >= self.repeat_at && self.repeats >= FAREWELLS {
                    self.close();
                }
            }
            Stage::Completing => {
                if now >= self.silent_at() {
                    self.close(); // Everything is here: that the sender has gone does no harm.
                }
            }
            Stage::Joining | Stage::Taking => {
                if now >= self.silent_at() {
                    self.fail(Reason::Silent);
                } else {
                    self.report.tick(now, &self.ranges);
                }
            }
        }
    }

    /// When [`Self::handle_timeout`], or [`Self::poll`], has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.stage {
            Stage::Over => None,
            Stage::Leaving(_) => Some(self.repeat_at),
            Stage::Joining | Stage::Completing => Some(self.repeat_at.min(self.silent_at())),
            Stage::Taking => Some(self.report.next().min(self.silent_at())),
        }
    }

    /// The next packet to send: to the sender, or to [`TO_AGENT`].
    pub fn poll(&mut self, now: Time) -> Option<(HostId, Body)> {
        let body = match self.stage {
            Stage::Over => return None,
            Stage::Taking => {
                let limit = self.limit();
                let (ranges, parities) = (&self.ranges, &self.parities);
                let status = self.report.poll(now, ranges, parities, limit, self.place)?;
                let to = if self.via_agent && !self.detached { TO_AGENT } else { self.sender };
                return Some((to, Body::Status(status)));
            }
            Stage::Joining => {
                let (at, limit) = (self.ranges.prefix(), self.limit());
                Body::Join { stream: self.stream, place: self.place, at, limit }
            }
            Stage::Completing => Body::Complete { place: self.place },
            Stage::Leaving(_) if self.repeats >= FAREWELLS => return None,
            Stage::Leaving(reason) => Body::Bye { reason },
        };
        if now < self.repeat_at {
            return None;
        }
        let wait = Span(REPEAT.0 << self.repeats.min(10)).min(REPEAT_MOST);
        self.repeat_at = now.saturating_add(wait);
        self.repeats = self.repeats.saturating_add(1);
        Some((self.sender, body))
    }

    /// The next thing for the application to know.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    const fn limit(&self) -> u64 {
        self.consumed.saturating_add(self.room)
    }

    fn hear(&mut self, now: Time) {
        self.heard = now;
    }

    fn silent_at(&self) -> Time {
        self.heard.saturating_add(self.config.patience)
    }

    /// The last `Readable` grows instead of a new one being told: the queue is bounded by the kinds of events.
    fn readable(&mut self, upto: u64) {
        match self.events.back_mut() {
            Some(ReceiverEvent::Readable { upto: told }) => *told = upto,
            _ => self.events.push_back(ReceiverEvent::Readable { upto }),
        }
        self.finish_if_whole();
    }

    fn ended(&mut self, now: Time) {
        self.report.soon(now);
        self.finish_if_whole();
    }

    fn finish_if_whole(&mut self) {
        if let Some(length) = self.length
            && self.ranges.prefix() >= length
            && !self.ended_told
        {
            self.ended_told = true;
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

    /// Everything that could grow is within what the settings allow.
    #[cfg(test)]
    pub(super) fn check_bounds(&self) {
        assert!(self.ranges.len() <= usize::from(self.config.max_gaps));
        self.parities.check_bounds();
        assert!(self.events.is_empty(), "events are taken after each call");
    }
}

/// Whether an event tells of how the sender serves the receiver: a newer one replaces those that wait.
const fn is_mode(event: &ReceiverEvent) -> bool {
    matches!(event, ReceiverEvent::Detached | ReceiverEvent::Rejoined)
}
