//! What leaves next: control, repairs, what those alone may get, new bytes for everyone.

use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_wire::orca::{Body, Reason};

use super::super::{FlowConfig, Outgoing, Piece, SlowPolicy};
use super::cells::Again;
use super::peers::{State, tell};
use super::{Sender, Stage};

/// Packets in a row to one receiver that is alone.
const RUN: u16 = 16;
/// Packets' worth of credit at which those alone are served.
const SPEND_AT: u64 = 8;
/// Most credit, in packets.
const CREDIT_MOST: u64 = 64;

/// When bytes may leave, at a rate and in quanta.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// All data, by `max_rate`.
    all: Meter,
    /// New data for everyone, by the congestion window.
    group: Meter,
}

#[derive(Clone, Copy, Debug)]
struct Meter {
    /// What was sent is paid for at this time.
    paid: Time,
    /// Nothing is sent before.
    until: Time,
}

impl Meter {
    /// Bytes leave that take `span`; a quantum takes `quantum`.
    fn spend(&mut self, now: Time, span: Span, quantum: Span) {
        let earliest = Time(now.0.saturating_sub(quantum.0));
        self.paid = self.paid.max(earliest).saturating_add(span);
        if self.paid > now {
            self.until = self.paid.saturating_add(Span(quantum.0 / 2));
        }
    }
}

impl Pace {
    pub(super) const fn new(now: Time) -> Self {
        let meter = Meter { paid: now, until: Time::ZERO };
        Self { all: meter, group: meter }
    }
}

/// Why there is no new piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    /// All is sent.
    Nothing,
    /// A short packet waits for more.
    Flush(Time),
    /// Somebody has no room, or lacks something far behind.
    Window,
    /// Enough is under way.
    Congested,
}

impl Sender {
    /// The next thing to send; `None`: nothing, until something happens or [`Self::poll_timeout`].
    ///
    /// New pieces come in runs of consecutive ones.
    pub fn poll(&mut self, now: Time) -> Option<Outgoing> {
        let outgoing = self.poll_control(now).or_else(|| self.poll_data(now));
        if outgoing.is_some() {
            self.wait = Time::MAX;
        }
        outgoing
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let probe_at = if self.stage == Stage::Open { self.probe_at } else { Time::MAX };
        let next = self.next_tick.min(self.wait).min(probe_at);
        (next < Time::MAX).then_some(next)
    }

    fn poll_control(&mut self, now: Time) -> Option<Outgoing> {
        loop {
            let number = *self.telling.front()?;
            let peer = &mut self.peers.list[number as usize];
            let what = peer.tell & peer.tell.wrapping_neg();
            peer.tell &= !what;
            if peer.tell == 0 {
                self.telling.pop_front();
            }
            let body = match (what, peer.state) {
                (tell::INVITE, State::Invited) => Body::Invite {
                    stream: self.stream,
                    place: peer.place,
                    payload: self.config.payload,
                    via_agent: self.via_agent,
                },
                (tell::MODE, State::Attached) => Body::Mode { detached: false },
                (tell::MODE, State::Alone) => Body::Mode { detached: true },
                (tell::END, State::Attached | State::Alone) => match self.length {
                    Some(length) => Body::End { length },
                    None => continue,
                },
                (tell::BYE, State::Done) => Body::Bye { reason: Reason::Left },
                (tell::BYE, State::Gone(reason)) => Body::Bye { reason },
                _ => continue,
            };
            (peer.told_at, peer.sent) = (now, now);
            peer.tellings = peer.tellings.saturating_add(1);
            return Some(Outgoing::Control(peer.host, body));
        }
    }

    fn poll_data(&mut self, now: Time) -> Option<Outgoing> {
        if self.stage != Stage::Open {
            return None;
        }
        if self.config.max_rate.is_some() && now < self.pace.all.until {
            self.wait = self.wait.min(self.pace.all.until);
            return None;
        }
        if let Some(again) = self.poll_repair(now) {
            return Some(again);
        }
        let next = self.next_for_all(now);
        let busy = matches!(next, Ok(_) | Err(Blocked::Congested));
        let payload = u64::from(self.config.payload);
        if !self.turn.is_empty() {
            self.spending =
                !busy || self.credit >= if self.spending { payload } else { SPEND_AT * payload };
            if self.spending
                && let Some(piece) = self.poll_alone(now)
            {
                return Some(piece);
            }
        }
        match next {
            Ok(piece) if now >= self.pace.group.until => Some(self.send_to_all(now, piece)),
            Ok(_) => {
                self.wait = self.wait.min(self.pace.group.until);
                None
            }
            Err(Blocked::Flush(at)) => {
                self.wait = self.wait.min(at);
                None
            }
            Err(_) => None,
        }
    }

    fn send_to_all(&mut self, now: Time, piece: Piece) -> Outgoing {
        let end = piece.offset + u64::from(piece.len);
        self.group.departs(now, end);
        if self.probe_at == Time::MAX {
            self.probe_at = now.saturating_add(self.probe_wait());
        }
        self.group.control.sent(end - self.lows.progress.min(end));
        self.counters.sent += u64::from(piece.len);
        if self.lows.alone > 0 {
            let share = match self.config.slow {
                SlowPolicy::Detach { share, .. } => u64::from(share.max(1)),
                _ => 32,
            };
            let most = CREDIT_MOST * u64::from(self.config.payload);
            self.credit = (self.credit + u64::from(piece.len).div_ceil(share)).min(most);
        }
        // Twice what arrives in a round trip: bursts shrink, and the window can still be filled.
        let control = &self.group.control;
        let quantum = u64::from(self.config.quantum) * u64::from(self.config.payload);
        let span = |bytes: u64| {
            let product = u128::from(bytes) * u128::from(control.srtt().0);
            Span((product / u128::from(2 * control.window())) as u64)
        };
        self.pace.group.spend(now, span(u64::from(piece.len)), span(quantum));
        self.pay(now, piece.len);
        Outgoing::Everyone(piece)
    }

    /// Accounts for bytes of any kind.
    pub(super) fn pay(&mut self, now: Time, len: u16) {
        let Some(rate) = self.config.max_rate else { return };
        let packet = u64::from(len) + u64::from(self.config.overhead);
        let full = u64::from(self.config.payload) + u64::from(self.config.overhead);
        let quantum = Span(u64::from(self.config.quantum) * rate.span_of(full).0)
            .min(Span::from_ms(1))
            .max(rate.span_of(full));
        self.pace.all.spend(now, Rate(rate.0).span_of(packet), quantum);
    }

    fn poll_repair(&mut self, now: Time) -> Option<Outgoing> {
        if let Some(parity) = self.poll_parity(now) {
            return Some(parity);
        }
        let due = self.group.cells.due()?;
        if due > now {
            self.wait = self.wait.min(due);
            return None;
        }
        let hold = self.group.hold_off(Self::reports(&self.config, self.via_agent));
        if self.group.repeated_bytes(now, hold) >= self.group.control.window() {
            let until = self.group.repeats_until(hold);
            self.wait = self.wait.min(until.unwrap_or(Time::MAX).max(Time(now.0 + 1)));
            return None;
        }
        let payload = u64::from(self.config.payload);
        let (head, low, length) = (self.group.head, self.lows.have, self.length);
        let peers = &self.peers;
        let lacks = |number: u32, cell: u64| {
            peers.get(number).is_some_and(|peer| {
                peer.state == State::Attached && peer.have < ((cell + 1) * payload).min(head)
            })
        };
        let (cell, again) = self.group.cells.next(now, hold, self.copies, lacks)?;
        let offset = (cell * payload).max(if low < u64::MAX { low } else { 0 });
        let end = ((cell + 1) * payload).min(head);
        if offset >= end {
            return self.poll_repair(now);
        }
        let piece = Piece {
            offset,
            len: (end - offset) as u16,
            repair: true,
            end: length == Some(end),
            parity: None,
        };
        self.group.repeats(now, hold, end, piece.len);
        self.pay(now, piece.len);
        Some(match again {
            Again::Everyone => {
                self.group.sent = now;
                self.counters.repaired_all += u64::from(piece.len);
                Outgoing::Everyone(piece)
            }
            Again::One(number) => {
                self.counters.repaired_one += u64::from(piece.len);
                let peer = &mut self.peers.list[number as usize];
                peer.repairs += u64::from(piece.len);
                peer.sent = now;
                Outgoing::One(peer.host, piece)
            }
        })
    }

    fn next_for_all(&mut self, now: Time) -> Result<Piece, Blocked> {
        if self.held || self.lows.attached == 0 {
            return Err(Blocked::Nothing);
        }
        let hold = self.group.hold_off(Self::reports(&self.config, self.via_agent));
        let repeated = self.group.repeated_bytes(now, hold);
        let bounds = Bounds {
            have: self.lows.have,
            progress: self.lows.progress,
            limit: self.lows.limit,
            upto: self.offered,
            length: self.length,
            under_way: repeated,
            window: self.group.control.window(),
            flush_at: self.offered_at.saturating_add(self.config.flush_delay),
        };
        bounds.next(now, self.group.head, &self.config)
    }

    /// A piece for one of those that are alone, in turn.
    fn poll_alone(&mut self, now: Time) -> Option<Outgoing> {
        if self.run >= RUN {
            self.run = 0;
            self.turn.rotate_left(1);
        }
        for _ in 0..self.turn.len() {
            let number = *self.turn.front()?;
            if let Some((host, piece)) = self.piece_for(now, number) {
                self.run += 1;
                self.credit = self.credit.saturating_sub(u64::from(piece.len));
                self.counters.catch_up += u64::from(piece.len);
                self.pay(now, piece.len);
                return Some(Outgoing::One(host, piece));
            }
            self.run = 0;
            self.turn.rotate_left(1);
        }
        None
    }

    fn piece_for(&mut self, now: Time, number: u32) -> Option<(HostId, Piece)> {
        let payload = u64::from(self.config.payload);
        let peer = &mut self.peers.list[number as usize];
        let (have, progress, limit) = (peer.have, peer.progress, peer.limit);
        let course = peer.alone.as_deref_mut()?;
        let hold = course.hold_off(Self::reports(&self.config, false));
        let repeated = course.repeated_bytes(now, hold);
        if repeated < course.control.window()
            && let Some((cell, _)) =
                course.cells.next(now, hold, 1, |_, cell| have < (cell + 1) * payload)
        {
            let end = ((cell + 1) * payload).min(course.head);
            let offset = (cell * payload).max(have);
            if offset < end {
                let len = (end - offset) as u16;
                course.repeats(now, hold, end, len);
                course.sent = now;
                peer.repairs += u64::from(len);
                let end = self.length == Some(end);
                return Some((peer.host, Piece { offset, len, repair: true, end, parity: None }));
            }
        }
        let bounds = Bounds {
            have,
            progress,
            limit,
            upto: self.group.head,
            length: self.length,
            under_way: repeated,
            window: course.control.window(),
            flush_at: Time::ZERO,
        };
        let piece = bounds.next(now, course.head, &self.config).ok()?;
        let end = piece.offset + u64::from(piece.len);
        course.departs(now, end);
        course.control.sent(end - progress.min(end));
        Some((peer.host, piece))
    }
}

/// What bounds a course.
struct Bounds {
    have: u64,
    progress: u64,
    limit: u64,
    upto: u64,
    length: Option<u64>,
    under_way: u64,
    window: u64,
    flush_at: Time,
}

impl Bounds {
    /// The piece at `head`: up to the next multiple of the payload, or what there is.
    fn next(&self, now: Time, head: u64, config: &FlowConfig) -> Result<Piece, Blocked> {
        if head >= self.upto {
            return Err(Blocked::Nothing);
        }
        let payload = u64::from(config.payload);
        let full = (head / payload + 1) * payload;
        let end = full.min(self.upto);
        let last = self.length == Some(end);
        let flight = head.saturating_sub(self.progress);
        if end < full && !last && flight > 0 && now < self.flush_at {
            return Err(Blocked::Flush(self.flush_at));
        }
        if end > self.limit || end > self.have.saturating_add(config.window) {
            return Err(Blocked::Window);
        }
        let len = end - head;
        if flight > 0 && flight + self.under_way + len > self.window {
            return Err(Blocked::Congested);
        }
        Ok(Piece { offset: head, len: len as u16, repair: false, end: last, parity: None })
    }
}
