//! The order of sending: control packets, then retransmissions and parity, then new data for the group. Detached
//! receivers catch up in parallel with the group.

use std::collections::VecDeque;

use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_wire::orca::{Body, Reason};

use super::super::{FlowConfig, Outgoing, Piece, SlowPolicy};
use super::peers::{State, pending};
use super::retransmit::Retransmit;
use super::{Sender, Stage};

/// The number of packets in a row to one detached receiver, so that its link sees full segments of a super-packet (UDP
/// GSO).
const BURST: u16 = 16;
/// The credit in packets at which detached receivers are served. A lower one would interrupt the group's packets too
/// often.
const CREDIT_THRESHOLD: u64 = 8;
/// The largest credit, in packets.
const CREDIT_MAX: u64 = 64;

/// How detached receivers catch up in parallel with the group.
#[derive(Clone, Debug, Default)]
pub(super) struct CatchUp {
    /// The numbers of all detached receivers; the first one is served next.
    pub(super) round_robin: VecDeque<u32>,
    /// The number of bytes that they may be sent while the group has data to send.
    pub(super) credit: u64,
    /// Whether they are being served, until the credit is used up.
    pub(super) serving: bool,
    /// The number of packets sent in a row to the first receiver of `round_robin`.
    pub(super) burst: u16,
}

/// Limits the rate of sending, with bursts of one quantum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacer {
    /// Meters all copies of the session's data at [`FlowConfig::max_rate`].
    all: Meter,
    /// Meters new data for the group at the rate that follows from window and round trip.
    group: Meter,
}

#[derive(Clone, Copy, Debug)]
struct Meter {
    /// The time by which everything sent so far would have left at the rate.
    paid_until: Time,
    /// The time before which nothing may be sent.
    blocked_until: Time,
}

impl Meter {
    /// Accounts for bytes that take `span` at the rate, where a quantum takes `quantum`.
    fn spend(&mut self, now: Time, span: Span, quantum: Span) {
        let earliest = now.saturating_sub(quantum);
        self.paid_until = self.paid_until.max(earliest).saturating_add(span);
        if self.paid_until > now {
            self.blocked_until = self.paid_until.saturating_add(quantum / 2);
        }
    }
}

impl Pacer {
    pub(super) const fn new(now: Time) -> Self {
        let meter = Meter { paid_until: now, blocked_until: Time::ZERO };
        Self { all: meter, group: meter }
    }
}

/// Why no new data can be sent on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    /// All offered bytes are sent.
    Nothing,
    /// A short packet waits for more bytes until this time.
    Flush(Time),
    /// The receive window of a receiver is full, or it lacks bytes a whole window behind.
    Window,
    /// The congestion window is full.
    Congested,
}

impl Sender {
    /// Returns the next packet to send, or `None` if there is nothing to send before the next call of another method or
    /// the time of [`Self::poll_timeout`].
    ///
    /// New data comes in runs of consecutive pieces.
    pub fn poll(&mut self, now: Time) -> Option<Outgoing> {
        let outgoing = self.poll_control(now).or_else(|| self.poll_data(now));
        match &outgoing {
            Some(Outgoing::Everyone(piece)) => self.charge(now, piece.len, self.copies),
            Some(Outgoing::One(_, piece)) => self.charge(now, piece.len, 1),
            Some(Outgoing::Control(..)) | None => {}
        }
        if outgoing.is_some() {
            self.timers.next_poll = Time::MAX;
        }
        outgoing
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let probe_at = if self.stage == Stage::Open { self.timers.probe_at } else { Time::MAX };
        let next = self.timers.next_tick.min(self.timers.next_poll).min(probe_at);
        (next < Time::MAX).then_some(next)
    }

    fn poll_control(&mut self, now: Time) -> Option<Outgoing> {
        loop {
            let number = *self.peers.control_queue.front()?;
            let peer = &mut self.peers.list[number as usize];
            let what = peer.pending_control & peer.pending_control.wrapping_neg();
            peer.pending_control &= !what;
            if peer.pending_control == 0 {
                self.peers.control_queue.pop_front();
            }
            let has_restarted = peer.regressed_since.is_some() || peer.restart.is_some();
            let body = match (what, peer.state) {
                (pending::INVITE, State::Attached | State::Detached) if !has_restarted => continue,
                (pending::INVITE, State::Invited | State::Attached | State::Detached) => {
                    Body::Invite {
                        stream: self.stream,
                        place: peer.place,
                        payload: self.config.payload,
                        via_agent: self.via_agent,
                    }
                }
                (pending::MODE, State::Attached) => Body::Mode { detached: false },
                (pending::MODE, State::Detached) => Body::Mode { detached: true },
                (pending::END, State::Attached | State::Detached) => match self.source.length {
                    Some(length) => Body::End { length },
                    None => continue,
                },
                (pending::BYE, State::Completed) => Body::Bye { reason: Reason::Left },
                (pending::BYE, State::Lost(reason)) => Body::Bye { reason },
                _ => continue,
            };
            (peer.control_sent_at, peer.last_sent) = (now, now);
            peer.attempts = peer.attempts.saturating_add(1);
            return Some(Outgoing::Control(peer.host, body));
        }
    }

    fn poll_data(&mut self, now: Time) -> Option<Outgoing> {
        if self.stage != Stage::Open {
            return None;
        }
        if self.config.max_rate.is_some() && now < self.pacer.all.blocked_until {
            self.timers.next_poll = self.timers.next_poll.min(self.pacer.all.blocked_until);
            return None;
        }
        if let Some(repair) = self.poll_path().or_else(|| self.poll_repair(now)) {
            return Some(repair);
        }
        let next = self.next_group_piece(now);
        let busy = matches!(next, Ok(_) | Err(Blocked::Congested));
        let payload = u64::from(self.config.payload);
        if !self.catch_up.round_robin.is_empty() {
            self.catch_up.serving = !busy
                || self.catch_up.credit
                    >= if self.catch_up.serving { payload } else { CREDIT_THRESHOLD * payload };
            if self.catch_up.serving
                && let Some(piece) = self.poll_detached(now)
            {
                return Some(piece);
            }
        }
        match next {
            Ok(piece) if now >= self.pacer.group.blocked_until => {
                Some(self.send_to_group(now, piece))
            }
            Ok(_) => {
                self.timers.next_poll = self.timers.next_poll.min(self.pacer.group.blocked_until);
                None
            }
            Err(Blocked::Flush(at)) => {
                self.timers.next_poll = self.timers.next_poll.min(at);
                None
            }
            Err(_) => None,
        }
    }

    fn send_to_group(&mut self, now: Time, piece: Piece) -> Outgoing {
        let end = piece.offset + u64::from(piece.len);
        self.group.on_sent(now, end);
        if self.timers.probe_at == Time::MAX {
            self.timers.probe_at = now.saturating_add(self.probe_wait());
        }
        self.group.congestion.on_sent(end - self.peers.watermarks.min_progress.min(end));
        self.counters.sent += u64::from(piece.len);
        if self.peers.watermarks.detached > 0 {
            let share = match self.config.slow {
                SlowPolicy::Detach { share, .. } => u64::from(share.max(1)),
                _ => 32,
            };
            let max_credit = CREDIT_MAX * u64::from(self.config.payload);
            self.catch_up.credit =
                (self.catch_up.credit + u64::from(piece.len).div_ceil(share)).min(max_credit);
        }
        // The rate is twice one window per round trip: bursts are spread, and the window can still be filled.
        let congestion = &self.group.congestion;
        let quantum = u64::from(self.config.quantum) * u64::from(self.config.payload);
        let span = |bytes: u64| {
            let product = u128::from(bytes) * u128::from(congestion.srtt().ticks());
            Span::from_ticks((product / u128::from(2 * congestion.window())) as u64)
        };
        self.pacer.group.spend(now, span(u64::from(piece.len)), span(quantum));
        Outgoing::Everyone(piece)
    }

    /// Charges the copies of a data packet of any kind to [`FlowConfig::max_rate`].
    fn charge(&mut self, now: Time, len: u16, copies: u32) {
        let Some(rate) = self.config.max_rate else { return };
        let bytes =
            |len: u16| (u64::from(len) + u64::from(self.config.overhead)) * u64::from(copies);
        let (packet, full) = (bytes(len), bytes(self.config.payload));
        let quantum = Span::from_ticks(u64::from(self.config.quantum) * rate.span_of(full).ticks())
            .min(Span::from_ms(1))
            .max(rate.span_of(full));
        self.pacer.all.spend(now, Rate(rate.0).span_of(packet), quantum);
    }

    fn poll_repair(&mut self, now: Time) -> Option<Outgoing> {
        if let Some(parity) = self.poll_parity(now) {
            return Some(parity);
        }
        let due = self.group.retransmit.due()?;
        if due > now {
            self.timers.next_poll = self.timers.next_poll.min(due);
            return None;
        }
        let rto = self.group_rto();
        if self.group.retransmits_in_flight(now, rto) >= self.group.congestion.window() {
            let until = self.group.retransmit_expiry(rto);
            self.timers.next_poll =
                self.timers.next_poll.min(until.unwrap_or(Time::MAX).max(now + Span::TICK));
            return None;
        }
        let payload = u64::from(self.config.payload);
        let (head, low, length) =
            (self.group.head, self.peers.watermarks.min_have, self.source.length);
        let peers = &self.peers;
        let lacks = |number: u32, cell: u64| {
            peers.get(number).is_some_and(|peer| {
                peer.state == State::Attached && peer.have < ((cell + 1) * payload).min(head)
            })
        };
        let (cell, to) = self.group.retransmit.pop(now, rto, self.copies, lacks)?;
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
        self.group.on_retransmit(now, rto, end, piece.len);
        Some(match to {
            Retransmit::Everyone => {
                self.group.last_sent = now;
                self.counters.repaired_all += u64::from(piece.len);
                Outgoing::Everyone(piece)
            }
            Retransmit::One(number) => {
                self.counters.repaired_one += u64::from(piece.len);
                let peer = &mut self.peers.list[number as usize];
                peer.repairs += u64::from(piece.len);
                peer.last_sent = now;
                Outgoing::One(peer.host, piece)
            }
        })
    }

    fn next_group_piece(&mut self, now: Time) -> Result<Piece, Blocked> {
        if self.paused || self.peers.watermarks.attached == 0 {
            return Err(Blocked::Nothing);
        }
        let rto = self.group_rto();
        let repeated = self.group.retransmits_in_flight(now, rto);
        let limits = SendLimits {
            have: self.peers.watermarks.min_have,
            progress: self.peers.watermarks.min_progress,
            limit: self.peers.watermarks.min_limit,
            offered: self.source.offered,
            longest: u64::from(self.config.payload),
            length: self.source.length,
            retransmitting: repeated,
            window: self.group.congestion.window(),
            flush_at: self.source.offered_at.saturating_add(self.config.flush_delay),
        };
        limits.next(now, self.group.head, &self.config)
    }

    /// Returns a piece for one of the detached receivers, which are served round robin.
    fn poll_detached(&mut self, now: Time) -> Option<Outgoing> {
        if self.catch_up.burst >= BURST {
            self.catch_up.burst = 0;
            self.catch_up.round_robin.rotate_left(1);
        }
        for _ in 0..self.catch_up.round_robin.len() {
            let number = *self.catch_up.round_robin.front()?;
            if let Some((host, piece)) = self.next_unicast_piece(now, number) {
                self.catch_up.burst += 1;
                self.catch_up.credit = self.catch_up.credit.saturating_sub(u64::from(piece.len));
                self.counters.catch_up += u64::from(piece.len);
                return Some(Outgoing::One(host, piece));
            }
            self.catch_up.burst = 0;
            self.catch_up.round_robin.rotate_left(1);
        }
        None
    }

    fn next_unicast_piece(&mut self, now: Time, number: u32) -> Option<(HostId, Piece)> {
        let payload = u64::from(self.config.payload);
        let peer = &mut self.peers.list[number as usize];
        let (have, progress, limit) = (peer.have, peer.progress, peer.limit);
        let longest = peer.path.payload.map_or(payload, u64::from);
        let narrow = peer.path.payload.is_some();
        let apart = peer.is_apart;
        let channel = peer.channel.as_deref_mut()?;
        let rto = channel.rto(self.config.report_delay(false));
        let repeated = channel.retransmits_in_flight(now, rto);
        if repeated < channel.congestion.window() {
            let lacking = |_, cell| have < (cell + 1) * payload;
            let (offset, end) = match channel.rest.take() {
                Some(rest) => rest,
                None => match channel.retransmit.pop(now, rto, 1, lacking) {
                    Some((cell, _)) => (cell * payload, ((cell + 1) * payload).min(channel.head)),
                    None => (0, 0),
                },
            };
            let (offset, whole) = (offset.max(have), end);
            let end = whole.min(offset + longest);
            if offset < end {
                channel.rest = (end < whole).then_some((end, whole));
                let len = (end - offset) as u16;
                channel.on_retransmit(now, rto, end, len);
                channel.last_sent = now;
                peer.repairs += u64::from(len);
                let end = self.source.length == Some(end);
                return Some((peer.host, Piece { offset, len, repair: true, end, parity: None }));
            }
        }
        let limits = SendLimits {
            have,
            progress,
            limit,
            // A receiver that only smaller packets reach does not follow the group, nor does one that is never attached to it: it would
            // wait for receivers whose packets it does not get.
            offered: if narrow || apart { self.source.offered } else { self.group.head },
            longest,
            length: self.source.length,
            retransmitting: repeated,
            window: channel.congestion.window(),
            flush_at: Time::ZERO,
        };
        let piece = limits.next(now, channel.head, &self.config).ok()?;
        let end = piece.offset + u64::from(piece.len);
        channel.on_sent(now, end);
        channel.congestion.on_sent(end - progress.min(end));
        Some((peer.host, piece))
    }
}

/// The limits for new data on a channel.
struct SendLimits {
    have: u64,
    progress: u64,
    limit: u64,
    offered: u64,
    /// The largest number of bytes of a packet.
    longest: u64,
    length: Option<u64>,
    retransmitting: u64,
    window: u64,
    flush_at: Time,
}

impl SendLimits {
    /// Returns the piece at `head`, which ends at the next multiple of the payload size or at the end of the offered
    /// data.
    fn next(&self, now: Time, head: u64, config: &FlowConfig) -> Result<Piece, Blocked> {
        if head >= self.offered {
            return Err(Blocked::Nothing);
        }
        let payload = u64::from(config.payload);
        let full = (head / payload + 1) * payload;
        let end = full.min(self.offered).min(head + self.longest);
        let last = self.length == Some(end);
        let flight = head.saturating_sub(self.progress);
        if end < full && !last && flight > 0 && now < self.flush_at {
            return Err(Blocked::Flush(self.flush_at));
        }
        if end > self.limit || end > self.have.saturating_add(config.window) {
            return Err(Blocked::Window);
        }
        let len = end - head;
        if flight > 0 && flight + self.retransmitting + len > self.window {
            return Err(Blocked::Congested);
        }
        Ok(Piece { offset: head, len: len as u16, repair: false, end: last, parity: None })
    }
}
