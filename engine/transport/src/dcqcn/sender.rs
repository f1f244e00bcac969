//! The sender: packets at the message's rate, and the repair of losses.

use core::ops::Range;

use rackweave_core::{Assembler, Ecn, FailReason, HostId, Packet, Time, frame};
use rackweave_wire::Id64;
use rackweave_wire::dcqcn::{Body, Header, Sack};

use super::Host;
use super::config::Config;
use super::rate::Limit;
use crate::common::{Jitter, State, note_acknowledged};

/// The sender's state of a message, in packets.
#[derive(Debug)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    /// The most packets in flight.
    window: u32,
    jitter: Jitter,
    /// The packets that are known to have arrived.
    acked: Assembler<u32>,
    /// One past the last packet that was ever sent.
    sent_to: u32,
    /// The packets that are sent again, those of them that are missing.
    again: Range<u32>,
    /// What was sent when a repair by selective repeat began; a later loss begins another one. 0 without a repair.
    repairs_to: u32,
    /// Whether a timeout has passed since the last progress: only the first missing packet is sent then.
    is_stalled: bool,
    limit: Limit,
    /// When the rate permits the next packet.
    free_at: Time,
    /// When the first missing packet counts as lost; [`Time::MAX`] while no packet is in flight.
    rto_at: Time,
    /// Timeouts since the last progress.
    timeouts: u32,
    /// When the first packet was sent to which no packet of the receiver is an answer; `None` if all are answered.
    silent_since: Option<Time>,
}

impl Outgoing {
    pub(super) fn new(now: Time, length: u32, jitter: Jitter, config: &Config) -> Self {
        Self {
            length,
            packets: config.common.packets(length),
            window: config.window,
            jitter,
            acked: Assembler::default(),
            sent_to: 0,
            again: 0..0,
            repairs_to: 0,
            is_stalled: false,
            limit: Limit::new(config),
            free_at: now,
            rto_at: Time::MAX,
            timeouts: 0,
            silent_since: None,
        }
    }

    /// The first packet that is not acknowledged.
    const fn first(&self) -> u32 {
        self.acked.prefix()
    }

    /// The packet to send next.
    fn sendable(&self) -> Option<u32> {
        let again = self.acked.first_missing(self.again.start);
        if again < self.again.end {
            return Some(again);
        }
        let end = self.packets.min(self.first().saturating_add(self.window));
        (self.sent_to < end && !self.is_stalled).then_some(self.sent_to)
    }

    /// Notes that a packet is sent: when the next one may be, and when this one counts as lost.
    fn sends(&mut self, now: Time, packet: u32, wire_bytes: u32, config: &Config) {
        if packet < self.sent_to {
            self.again.start = packet + 1;
        } else {
            self.sent_to = packet + 1;
        }
        self.silent_since.get_or_insert(now);
        self.free_at = match self.limit.rate(now, config) {
            Some(rate) => now.saturating_add(rate.span_of(u64::from(wire_bytes))),
            None => now,
        };
        if self.rto_at == Time::MAX {
            self.rto_at = now.saturating_add(self.timeout(config));
        }
    }

    fn timeout(&self, config: &Config) -> rackweave_core::Span {
        self.jitter.apply(config.timeout(self.timeouts), self.timeouts)
    }

    /// Notes progress after an acknowledgement.
    fn progress(&mut self, now: Time, config: &Config) {
        self.timeouts = 0;
        if self.is_stalled {
            // What is in flight was late and not lost, unless a later packet brings a NACK: a new one, or the last one.
            self.is_stalled = false;
            let is_all_sent = self.sent_to == self.packets;
            self.again = if is_all_sent { self.packets - 1..self.packets } else { 0..0 };
        }
        let is_in_flight = self.sent_to > self.first();
        self.rto_at = if is_in_flight { now.saturating_add(config.timeout(0)) } else { Time::MAX };
    }

    /// Repairs what a NACK tells of: everything from the expected packet on, or what is missing before the last one that has arrived.
    fn repair(&mut self, next: u32, sack: Sack, config: &Config) {
        if self.is_stalled {
            return;
        }
        if !config.selective_repeat {
            self.again = next..self.sent_to;
            return;
        }
        let arrived_to = sack.ranges(next).map(|range| range.end).max().unwrap_or(next + 1);
        let arrived_to = arrived_to.min(self.sent_to);
        if self.repairs_to <= next {
            self.repairs_to = self.sent_to;
            self.again = next..arrived_to;
        } else {
            self.again.end = self.again.end.max(arrived_to);
        }
    }

    /// When the message's timer expires.
    pub(super) const fn deadline(&self) -> Time {
        self.rto_at
    }

    fn is_given_up(&self, now: Time, config: &Config) -> bool {
        self.silent_since.is_some_and(|since| now.since(since) >= config.common.patience)
    }

    #[cfg(test)]
    pub(super) fn check_bounds(&self, config: &Config) {
        assert!(self.first() <= self.sent_to && self.sent_to <= self.packets);
        assert!(self.again.end <= self.sent_to);
        assert!(self.acked.above().len() <= usize::from(config.common.max_gaps));
        self.limit.check_bounds(config);
    }
}

impl Host {
    /// Puts a message among those with something to send, if it is one.
    pub(super) fn make_ready(&mut self, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Sending(outgoing) = &exchange.state else { return };
        if outgoing.sendable().is_some() {
            self.scheme.ready.set(slot, (outgoing.free_at, exchange.birth));
        } else {
            self.scheme.ready.remove(slot);
        }
    }

    /// The next data packet: of the message whose rate has permitted one for longest, so that messages of one rate take turns.
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        self.scheme.polled_until = self.scheme.polled_until.max(now);
        let ((free_at, _), slot) = self.scheme.ready.first()?;
        if free_at > now {
            return None;
        }
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else {
            self.scheme.ready.remove(slot);
            return None;
        };
        let Some(packet) = outgoing.sendable() else {
            self.scheme.ready.remove(slot);
            return None;
        };
        let (config, is_again) = (&self.config, packet < outgoing.sent_to);
        let offset = packet * config.common.max_payload;
        let len = config.common.max_payload.min(outgoing.length - offset) as u16;
        let bytes = config.common.header_bytes + u32::from(len);
        outgoing.sends(now, packet, frame::wire_bytes(bytes), config);
        let is_last = packet + 1 == outgoing.packets;
        let asks = is_again || is_last || (packet + 1).is_multiple_of(config.ack_every);
        let body = Body::Data { message_length: outgoing.length, offset, len, asks };
        let header = Header { id: Id64::new(exchange.local), one_way: exchange.one_way, body };
        let (peer, deadline) = (exchange.peer, outgoing.deadline());
        self.recovery.retransmissions += u64::from(is_again);
        self.timers.set_earlier(slot, deadline);
        self.make_ready(slot);
        let packet = self.packet(peer, bytes, self.config.data_priority, header);
        Some(packet.with_ecn(Ecn::Capable))
    }

    /// Handles an acknowledgement, or the report that a packet is missing.
    #[inline]
    pub(super) fn handle_ack(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        next: u32,
        sack: Sack,
        is_missing: bool,
    ) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let max_gaps = usize::from(self.config.common.max_gaps);
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        // The last packet's acknowledgement is another packet; what was not sent cannot have arrived.
        if next >= outgoing.packets || next > outgoing.sent_to {
            return;
        }
        outgoing.silent_since = None;
        let before = outgoing.first();
        if next < before {
            // Late, or of a receiver that has restarted and lost what it had.
            if is_missing && outgoing.timeouts > 0 {
                outgoing.acked = Assembler::starting_at(next);
                outgoing.again = next..outgoing.sent_to;
                (outgoing.is_stalled, outgoing.repairs_to) = (false, 0);
            }
        } else {
            note_acknowledged(&mut outgoing.acked, outgoing.sent_to, (next, sack), None, max_gaps);
            if outgoing.first() >= outgoing.packets {
                // A receiver that has all packets says so by another packet: these acknowledgements are of two receivers.
                outgoing.acked = Assembler::starting_at(next);
                note_acknowledged(
                    &mut outgoing.acked,
                    outgoing.sent_to,
                    (next, sack),
                    None,
                    max_gaps,
                );
                outgoing.again = next..outgoing.sent_to;
                (outgoing.is_stalled, outgoing.repairs_to) = (false, 0);
            } else if outgoing.first() > before {
                outgoing.progress(now, &self.config);
            }
            if is_missing {
                outgoing.repair(next, sack, &self.config);
            }
        }
        let deadline = outgoing.deadline();
        self.timers.set(slot, deadline);
        self.make_ready(slot);
    }

    /// Handles a congestion notification.
    pub(super) fn handle_cnp(&mut self, now: Time, from: HostId, id: u64) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        if let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state {
            outgoing.limit.on_cnp(now, &self.config);
            // It may be all that comes through for a while.
            outgoing.silent_since = None;
        }
    }

    /// Handles the deadline of a message: its first missing packet is lost.
    pub(super) fn sender_due(&mut self, now: Time, slot: u32) {
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        if outgoing.is_given_up(now, &self.config) {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        outgoing.timeouts = outgoing.timeouts.saturating_add(1);
        self.recovery.timeouts += 1;
        let first = outgoing.first();
        outgoing.again = first..(first + 1).min(outgoing.sent_to);
        (outgoing.is_stalled, outgoing.repairs_to) = (true, 0);
        outgoing.rto_at = now.saturating_add(outgoing.timeout(&self.config));
        let deadline = outgoing.deadline();
        self.timers.set(slot, deadline);
        self.make_ready(slot);
    }
}
