//! The sender: the first window, pulled packets and retransmissions; and the handling of answers.

use std::collections::VecDeque;

use rackweave_core::{FailReason, HostId, Packet, RttEstimator, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::ndp::{Body, Header};

use super::Host;
use super::config::Config;
use super::paths::Paths;
use crate::common::{Jitter, State};

/// A value in [`Outgoing::states`] in place of a send time: the packet has arrived.
const ARRIVED: Time = Time::from_ticks(u64::MAX);
/// Likewise: the packet waits to be retransmitted.
const WAITS: Time = Time::from_ticks(u64::MAX - 1);

/// The content of an answer about one packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Offset of the packet's first byte in the message.
    pub(super) offset: u32,
    /// Whether the packet arrived without its payload.
    pub(super) trimmed: bool,
    /// The path that the packet took.
    pub(super) path: u16,
}

/// The sender's state of a message, in packets.
#[derive(Debug, Default)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    jitter: Jitter,
    paths: Paths,
    /// The first packet that was never sent.
    next: u32,
    /// The first packet that is not acknowledged.
    base: u32,
    /// For each packet of `base..next`, when it was last sent, or [`ARRIVED`] or [`WAITS`].
    states: VecDeque<Time>,
    /// Send times of the packets that may be in flight, in order. An entry that differs from `states` is
    /// outdated.
    sent: VecDeque<(Time, u32)>,
    /// Packets to retransmit, before new ones (`docs/sources.md#ndp-sender`).
    resends: VecDeque<u32>,
    /// Number of entries of that queue that are still to be sent: others were acknowledged meanwhile.
    waiting: u32,
    /// Number of packets that may be sent.
    credit: u32,
    /// Number of lost packets for which there is no credit yet.
    withheld: u32,
    /// The highest pull number that was followed.
    pulled: u32,
    /// Number of packets sent, retransmissions included.
    transmissions: u32,
    /// The receiver's incarnation; `None` before its first answer.
    incarnation: Option<u16>,
    rtt: RttEstimator,
    /// Number of answers. The receiver pulls once for each, unless all packets are in flight.
    answers: u32,
    /// When a packet of the peer last arrived; at first, when the message's first packet was sent.
    last_received: Time,
    /// Number of timeouts since the last ACK. NACKs do not reset it: they indicate too many senders, not too
    /// few.
    doublings: u32,
    /// When the last timeout was. Packets that are sent later start with a timeout of their own.
    round_at: Time,
    /// Number of probes since the last pull.
    stalls: u32,
    /// When the message last made progress.
    quiet_since: Time,
    /// When the last pull arrived.
    pulled_at: Time,
    /// The interval between the last two pulls.
    pull_gap: Span,
}

impl Outgoing {
    /// Resets this to the state of a new message, keeping its allocations.
    pub(super) fn reset(&mut self, length: u32, jitter: Jitter, config: &Config) {
        let Self { mut states, mut sent, mut resends, mut paths, .. } = core::mem::take(self);
        states.clear();
        sent.clear();
        resends.clear();
        paths.restart(jitter.seed());
        let packets = config.packets(length);
        let credit = packets.min(u32::from(config.initial_window));
        *self = Self {
            length,
            packets,
            jitter,
            paths,
            credit,
            states,
            sent,
            resends,
            ..Self::default()
        };
    }

    /// Whether a packet may be sent.
    #[inline]
    pub(super) const fn is_ready(&self) -> bool {
        self.credit > 0 && (self.waiting > 0 || self.next < self.packets)
    }

    /// Takes the next packet to send.
    #[inline]
    fn take_packet(&mut self, now: Time) -> Option<u32> {
        if !self.is_ready() {
            return None;
        }
        self.credit -= 1;
        if self.transmissions == 0 {
            self.last_received = now;
        }
        self.transmissions = self.transmissions.saturating_add(1);
        let packet = if self.waiting > 0 { self.take_resend(now)? } else { self.take_new(now) };
        self.sent.push_back((now, packet));
        Some(packet)
    }

    #[inline]
    fn take_new(&mut self, now: Time) -> u32 {
        self.states.push_back(now);
        self.next += 1;
        self.next - 1
    }

    fn take_resend(&mut self, now: Time) -> Option<u32> {
        while let Some(packet) = self.resends.pop_front() {
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

    /// The state of a packet that was sent; `None` below `base` or if it was not sent.
    #[inline]
    fn state(&mut self, packet: u32) -> Option<&mut Time> {
        let at = packet.checked_sub(self.base)?;
        self.states.get_mut(at as usize)
    }

    /// Handles the acknowledgement of a packet.
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

    /// Handles the NACK of a trimmed packet, which then waits to be pulled.
    #[inline]
    fn trimmed(&mut self, packet: u32) {
        let Some(state) = self.state(packet) else { return };
        if *state != ARRIVED && *state != WAITS {
            *state = WAITS;
            self.resends.push_back(packet);
            self.waiting += 1;
            self.answers = self.answers.saturating_add(1);
            self.drop_old();
        }
    }

    /// Handles a packet returned by a switch, which had room for neither its payload nor its header. The
    /// receiver does not know of it, so that the packet counts as lost. It is retransmitted at once only if no
    /// other packet is in flight and no pull is expected; otherwise all senders of an incast would collide
    /// again. (htsim can return such headers once: `docs/sources.md#ndp-switch`. The sender's reaction is our
    /// choice.)
    fn returned(&mut self, packet: u32) {
        let Some(state) = self.state(packet) else { return };
        if *state != ARRIVED && *state != WAITS {
            *state = WAITS;
            self.resends.push_back(packet);
            self.waiting += 1;
            self.withheld = self.withheld.saturating_add(1);
            self.drop_old();
            if self.sent.is_empty() && self.answers <= self.pulled {
                self.release_one();
            }
        }
    }

    /// Removes send times of packets that are no longer in flight from the front of the queue.
    #[inline]
    fn drop_old(&mut self) {
        while let Some(&(at, packet)) = self.sent.front()
            && self.state(packet).is_none_or(|state| *state != at)
        {
            self.sent.pop_front();
        }
    }

    /// Handles a cumulative pull number. Numbers beyond what an honest receiver can reach are reduced to that
    /// maximum.
    #[inline]
    fn pull(&mut self, now: Time, pull: u32, window: u32) {
        // A receiver pulls once for each packet that arrives. The network may duplicate some.
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

    /// The retransmission timeout after `doublings` consecutive timeouts.
    #[inline]
    fn rto(&self, config: &Config, doublings: u32) -> Span {
        let rto = self.rtt.rto().map_or(config.min_rto, |rto| rto.max(config.min_rto)).ticks();
        let rto = Span::from_ticks(
            rto.saturating_mul(1 << doublings.min(20)).min(config.max_rto.ticks()),
        );
        self.jitter.apply(rto, doublings)
    }

    /// Time to wait for a pull before probing. At a receiver with a thousand senders, pulls to each are rare,
    /// so that it adapts to the interval between pulls (our choice).
    fn ask_after(&self, config: &Config) -> Span {
        let rto = self.rto(config, 0).ticks().saturating_mul(1 << self.stalls.min(20));
        let wait =
            rto.max(self.pull_gap.ticks().saturating_mul(2)).min(config.patience.ticks() / 4);
        self.jitter.apply(Span::from_ticks(wait), self.stalls)
    }

    /// When the packet sent at `at` counts as lost.
    #[inline]
    fn lost_at(&self, config: &Config, at: Time) -> Time {
        // The last timeout does not lengthen that of packets that were sent before it.
        let before = u32::from(at < self.round_at);
        let doublings = self.doublings.saturating_sub(before);
        at.saturating_add(self.rto(config, doublings))
    }

    /// When the message's timer expires.
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

    /// Marks all overdue packets for retransmission without a pull. Lost headers mean that there are too many
    /// senders for all of them to retransmit a window: so one packet is sent for each that arrives, and one at
    /// once if no pull is expected (our choice). Without this rule four thousand senders keep a receiver's link
    /// busy with nothing but headers.
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
                self.resends.push_back(packet);
                self.waiting += 1;
                self.withheld = self.withheld.saturating_add(1);
                // Packets that were sent before a timeout share it.
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

    /// Gives one lost packet a credit, if there is no other credit.
    fn release_one(&mut self) {
        if self.withheld > 0 && self.credit == 0 {
            self.withheld -= 1;
            self.credit = 1;
        }
    }

    /// Offset and length of a packet.
    #[inline]
    const fn piece(&self, packet: u32, config: &Config) -> (u32, u16) {
        let offset = packet * config.max_payload;
        let left = self.length - offset;
        (offset, if left < config.max_payload { left as u16 } else { config.max_payload as u16 })
    }

    /// Number of queued entries, for tests of memory bounds.
    #[cfg(test)]
    pub(super) fn backlog(&self) -> usize {
        self.states.len() + self.sent.len() + self.resends.len()
    }
}

/// A deadline in the past, which occurs when it moves to an earlier time, is replaced by the current time.
fn after(now: Time, deadline: Time) -> Time {
    deadline.max(now.saturating_add(Span::TICK))
}

impl Host {
    /// The next packet of the message whose turn it is in the round robin.
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        while let Some(slot) = self.scheme.ready.pop_front() {
            let exchange = self.exchanges.get_mut(slot);
            let State::Sending(outgoing) = &mut exchange.state else { continue };
            let Some(packet) = outgoing.take_packet(now) else { continue };
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

    /// Handles ACK, NACK and PULL. `piece` is the packet that was acknowledged or, if `trimmed`, reported as
    /// trimmed.
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
            // The final answer to a complete message has the flag `complete`. This receiver lacks packets that
            // it, or its previous incarnation, had acknowledged.
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

    /// Handles a data packet of this host that a switch has returned.
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

    /// Handles the timer of a message at its sender.
    pub(super) fn sender_due(&mut self, now: Time, slot: u32) {
        let config = &self.config;
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        if now.since(outgoing.last_received) >= config.patience {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        if outgoing.sent.is_empty() {
            // Nothing is in flight and nothing may be sent: the receiver counts lost packets as in flight, a
            // pull was lost, or the receiver is serving many others. A lost packet may be retransmitted;
            // otherwise ASK makes the receiver repeat its pull number (our choice: NDP specifies no probe).
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
