//! The sender: the first window, what is pulled, what is sent again; and the packets that it
//! receives.

use std::collections::VecDeque;

use rackweave_core::{FailReason, HostId, Packet, RttEstimator, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::ndp::{Body, Header};

use super::Host;
use super::config::Config;
use super::paths::Paths;
use crate::common::{Scatter, State};

/// In [`Outgoing::states`], instead of the time at which a packet was sent: it has arrived.
const ARRIVED: Time = Time(u64::MAX);
/// It waits to be sent again.
const WAITS: Time = Time(u64::MAX - 1);

/// What an answer says of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Its first byte.
    pub(super) offset: u32,
    /// It has arrived without its bytes.
    pub(super) trimmed: bool,
    /// The path that it took.
    pub(super) path: u16,
}

/// A message on its way out, in packets.
#[derive(Debug, Default)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    scatter: Scatter,
    paths: Paths,
    /// The first packet that was never sent.
    next: u32,
    /// The first that has not arrived.
    base: u32,
    /// `base..next`: when each was sent last, or what became of it.
    states: VecDeque<Time>,
    /// When which packet was sent, of those that may be on the way. An entry that does not agree
    /// with `states` is old.
    sent: VecDeque<(Time, u32)>,
    /// Packets to be sent again, before new ones (`docs/sources.md#ndp-sender`).
    again: VecDeque<u32>,
    /// How many of them still wait: others have arrived after all.
    waiting: u32,
    /// Packets that may be sent.
    credit: u32,
    /// Packets that were lost and for which there is no credit yet.
    withheld: u32,
    /// The highest pull number that was followed.
    pulled: u32,
    /// Packets sent so far, again or not.
    transmissions: u32,
    /// The receiver's incarnation, once it was heard of.
    incarnation: Option<u16>,
    rtt: RttEstimator,
    /// Packets that the receiver has answered for. It pulls once for each, unless all are on the way.
    answers: u32,
    /// When the peer was last heard of (at first: when it could first have been).
    last_received: Time,
    /// Timeouts since a packet arrived: NACKs are a sign of too many senders, not of too few.
    doublings: u32,
    /// When the last of them was: packets sent later have a time of their own.
    round_at: Time,
    /// Questions that were asked since the last pull, and when there was last something new.
    stalls: u32,
    quiet_since: Time,
    /// When the last pull came, and how long after the one before.
    pulled_at: Time,
    pull_gap: Span,
}

impl Outgoing {
    /// Makes this the state of a new message, keeping its memory.
    pub(super) fn reset(&mut self, length: u32, scatter: Scatter, config: &Config) {
        let Self { mut states, mut sent, mut again, mut paths, .. } = core::mem::take(self);
        states.clear();
        sent.clear();
        again.clear();
        paths.restart(scatter.seed());
        let packets = config.packets(length);
        let credit = packets.min(u32::from(config.initial_window));
        *self = Self {
            length,
            packets,
            scatter,
            paths,
            credit,
            states,
            sent,
            again,
            ..Self::default()
        };
    }

    /// Whether a packet may be sent.
    #[inline]
    pub(super) const fn is_ready(&self) -> bool {
        self.credit > 0 && (self.waiting > 0 || self.next < self.packets)
    }

    /// The packet to be sent now.
    #[inline]
    fn take(&mut self, now: Time) -> Option<u32> {
        if !self.is_ready() {
            return None;
        }
        self.credit -= 1;
        if self.transmissions == 0 {
            self.last_received = now;
        }
        self.transmissions = self.transmissions.saturating_add(1);
        let packet = if self.waiting > 0 { self.take_again(now)? } else { self.take_new(now) };
        self.sent.push_back((now, packet));
        Some(packet)
    }

    #[inline]
    fn take_new(&mut self, now: Time) -> u32 {
        self.states.push_back(now);
        self.next += 1;
        self.next - 1
    }

    fn take_again(&mut self, now: Time) -> Option<u32> {
        while let Some(packet) = self.again.pop_front() {
            if let Some(state) = self.state(packet)
                && *state == WAITS
            {
                *state = now;
                self.waiting -= 1;
                return Some(packet);
            }
        }
        None
    }

    /// What became of a packet that was sent and, for all that is known, has not arrived before
    /// others.
    #[inline]
    fn state(&mut self, packet: u32) -> Option<&mut Time> {
        let at = packet.checked_sub(self.base)?;
        self.states.get_mut(at as usize)
    }

    /// The packet has arrived.
    #[inline]
    fn arrived(&mut self, now: Time, packet: u32) {
        let Some(state) = self.state(packet) else { return };
        match core::mem::replace(state, ARRIVED) {
            ARRIVED => return,
            WAITS => self.waiting -= 1,
            sent => self.rtt.sample(now.since(sent)),
        }
        self.answers = self.answers.saturating_add(1);
        self.doublings = 0;
        if self.withheld > 0 {
            self.withheld -= 1;
            self.credit = self.credit.saturating_add(1);
        }
        while self.states.front() == Some(&ARRIVED) {
            self.states.pop_front();
            self.base += 1;
        }
        self.drop_old();
    }

    /// The packet was trimmed: it waits to be pulled.
    #[inline]
    fn trimmed(&mut self, packet: u32) {
        let Some(state) = self.state(packet) else { return };
        if *state != ARRIVED && *state != WAITS {
            *state = WAITS;
            self.again.push_back(packet);
            self.waiting += 1;
            self.answers = self.answers.saturating_add(1);
            self.drop_old();
        }
    }

    /// The packet has come back: neither its bytes nor its header could wait for the receiver's link.
    /// Of that the receiver knows nothing, so that it counts as lost; but it may go at once if no
    /// other packet and no pull is expected, else all senders of an incast would meet again. (htsim
    /// can return such headers once: `docs/sources.md#ndp-switch`. What the sender does then is ours.)
    fn returned(&mut self, packet: u32) {
        let Some(state) = self.state(packet) else { return };
        if *state != ARRIVED && *state != WAITS {
            *state = WAITS;
            self.again.push_back(packet);
            self.waiting += 1;
            self.withheld = self.withheld.saturating_add(1);
            self.drop_old();
            if self.sent.is_empty() && self.answers <= self.pulled {
                self.release_one();
            }
        }
    }

    /// Forgets when packets were sent that are not on the way any more, as far as they come first.
    #[inline]
    fn drop_old(&mut self) {
        while let Some(&(at, packet)) = self.sent.front()
            && self.state(packet).is_none_or(|state| *state != at)
        {
            self.sent.pop_front();
        }
    }

    /// Takes the cumulative number of pulls; numbers that are too high for any honest receiver
    /// count as the highest that is not.
    #[inline]
    fn pull(&mut self, now: Time, pull: u32, window: u32) {
        // A receiver pulls once for each packet that it gets; the network may double some.
        let pull = pull.min(self.transmissions.saturating_add(window));
        if pull > self.pulled {
            self.credit = self.credit.saturating_add(pull - self.pulled);
            self.pulled = pull;
            self.stalls = 0;
            self.quiet_since = now;
            self.pull_gap = now.since(self.pulled_at);
            self.pulled_at = now;
        }
    }

    /// The time to wait for an answer after `doublings` timeouts.
    #[inline]
    fn rto(&self, config: &Config, doublings: u32) -> Span {
        let rto = self.rtt.rto().map_or(config.min_rto, |rto| rto.max(config.min_rto)).0;
        let rto = Span(rto.saturating_mul(1 << doublings.min(20)).min(config.max_rto.0));
        self.scatter.scatter(rto, doublings)
    }

    /// The time to wait for a pull before asking for it. Who shares the receiver with a thousand
    /// others gets one rarely (ours).
    fn ask_after(&self, config: &Config) -> Span {
        let rto = self.rto(config, 0).0.saturating_mul(1 << self.stalls.min(20));
        let wait = rto.max(self.pull_gap.0.saturating_mul(2)).min(config.patience.0 / 4);
        self.scatter.scatter(Span(wait), self.stalls)
    }

    /// When the packet sent at `at` counts as lost.
    #[inline]
    fn lost_at(&self, config: &Config, at: Time) -> Time {
        // The timeouts before the last one concern this packet if it was sent before that.
        let before = u32::from(at < self.round_at);
        let doublings = self.doublings.saturating_sub(before);
        at.saturating_add(self.rto(config, doublings))
    }

    /// When something has to be done about it.
    #[inline]
    pub(super) fn deadline(&self, config: &Config) -> Time {
        if let Some(&(at, _)) = self.sent.front() {
            self.lost_at(config, at)
        } else if self.is_ready() {
            Time::MAX
        } else {
            self.quiet_since.saturating_add(self.ask_after(config))
        }
    }

    /// Everything that is overdue is to be sent again, unasked: no pull will come for it. But if
    /// headers were lost, there are too many senders for all to send their windows again, so one
    /// packet may go with each that arrives; and one at once, if no pull is to be expected (ours).
    /// Without that, four thousand senders keep a receiver busy with nothing but headers.
    fn time_out(&mut self, now: Time, config: &Config) {
        let (doublings, round_at) = (self.doublings, self.round_at);
        while let Some(&(at, packet)) = self.sent.front()
            && self.lost_at(config, at) <= now
        {
            self.sent.pop_front();
            if let Some(state) = self.state(packet)
                && *state == at
            {
                *state = WAITS;
                self.again.push_back(packet);
                self.waiting += 1;
                self.withheld = self.withheld.saturating_add(1);
                // Packets sent before a timeout share it.
                if self.doublings == doublings && at >= round_at {
                    self.doublings += 1;
                    self.round_at = now;
                }
            }
        }
        self.drop_old();
        let new_round = self.doublings > doublings;
        if (new_round || self.sent.is_empty()) && self.answers <= self.pulled {
            self.release_one();
        }
    }

    /// Gives a packet that was lost a credit, if there is none at all.
    fn release_one(&mut self) {
        if self.withheld > 0 && self.credit == 0 {
            self.withheld -= 1;
            self.credit = 1;
        }
    }

    /// Bytes of a packet, and where they begin.
    #[inline]
    const fn piece(&self, packet: u32, config: &Config) -> (u32, u16) {
        let offset = packet * config.max_payload;
        let left = self.length - offset;
        (offset, if left < config.max_payload { left as u16 } else { config.max_payload as u16 })
    }

    /// Bytes of memory beyond the struct, for tests of bounds.
    #[cfg(test)]
    pub(super) fn backlog(&self) -> usize {
        self.states.len() + self.sent.len() + self.again.len()
    }
}

/// A deadline that has become earlier (because a peer thought dead is not) may have passed.
fn after(now: Time, deadline: Time) -> Time {
    deadline.max(Time(now.0.saturating_add(1)))
}

impl Host {
    /// The next packet of the message whose turn it is.
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        while let Some(slot) = self.scheme.ready.pop_front() {
            let exchange = self.exchanges.get_mut(slot);
            let State::Sending(outgoing) = &mut exchange.state else { continue };
            let Some(packet) = outgoing.take(now) else { continue };
            if outgoing.is_ready() {
                self.scheme.ready.push_back(slot);
            }
            self.timers.set_earlier(slot, after(now, outgoing.deadline(&self.config)));
            let (offset, len) = outgoing.piece(packet, &self.config);
            let window = outgoing.packets.min(u32::from(self.config.initial_window)) as u16;
            let body = Body::Data { message_length: outgoing.length, offset, len, window };
            let id = Id64::new(exchange.local);
            let path = outgoing.paths.next(self.config.paths);
            let header = Header { id, one_way: exchange.one_way, path, body };
            let (peer, bytes) = (exchange.peer, self.config.header_bytes + u32::from(len));
            let priority = self.config.data_priority;
            return Some(self.packet(peer, bytes, priority, header).trimmable());
        }
        None
    }

    /// ACK, NACK and PULL: `piece` is the packet that has arrived (or, `trimmed`, has not).
    pub(super) fn handle_answer(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        piece: Option<Piece>,
        pull: u32,
        incarnation: u16,
    ) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        if *outgoing.incarnation.get_or_insert(incarnation) != incarnation {
            return self.fail(now, slot, FailReason::PeerForgot);
        }
        outgoing.last_received = now;
        if let Some(Piece { offset, trimmed, path }) = piece {
            let packet = offset / self.config.max_payload;
            outgoing.paths.answered(path, trimmed);
            if trimmed {
                outgoing.trimmed(packet);
            } else {
                outgoing.arrived(now, packet);
            }
            outgoing.quiet_since = now;
        }
        outgoing.pull(now, pull, u32::from(self.config.initial_window));
        if outgoing.base == outgoing.packets {
            // The last answer to a complete message has the flag `complete`. This receiver lacks pieces
            // that it, or its predecessor, once had.
            return self.fail(now, slot, FailReason::PeerForgot);
        }
        if outgoing.is_ready() {
            self.scheme.ready.push_back(slot);
        }
        let deadline = outgoing.deadline(&self.config);
        if deadline != Time::MAX {
            self.timers.set_earlier(slot, after(now, deadline));
        }
    }

    /// DATA that a switch has returned: a packet that this host sent.
    pub(super) fn handle_returned(&mut self, now: Time, from: HostId, id: u64, offset: u32) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        outgoing.returned(offset / self.config.max_payload);
        if outgoing.is_ready() {
            self.scheme.ready.push_back(slot);
        }
        let deadline = outgoing.deadline(&self.config);
        if deadline != Time::MAX {
            self.timers.set_earlier(slot, after(now, deadline));
        }
    }

    /// The timer of a message that is being sent.
    pub(super) fn sender_due(&mut self, now: Time, slot: u32) {
        let config = &self.config;
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        if now.since(outgoing.last_received) >= config.patience {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        if outgoing.sent.is_empty() {
            // Nothing is on the way, and nothing may be sent: the receiver takes lost packets for
            // packets on their way, or a pull was lost, or it has many before it. One of the former
            // may go; else the receiver says its number of pulls again (ours).
            outgoing.quiet_since = now;
            outgoing.stalls += 1;
            outgoing.release_one();
            if outgoing.is_ready() {
                self.timers.remove(slot);
                return self.scheme.ready.push_back(slot);
            }
            if outgoing.stalls > config.max_stalls {
                return self.fail(now, slot, FailReason::PeerForgot);
            }
            let deadline = after(now, outgoing.deadline(config));
            let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
            self.timers.set(slot, deadline);
            return self.send_control(peer, id, one_way, Body::Ask);
        }
        outgoing.time_out(now, config);
        let deadline = outgoing.deadline(config);
        let ready = outgoing.is_ready();
        if deadline == Time::MAX {
            self.timers.remove(slot);
        } else {
            self.timers.set(slot, after(now, deadline));
        }
        if ready {
            self.scheme.ready.push_back(slot);
        }
    }
}
