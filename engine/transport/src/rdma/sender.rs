//! The sender: packets at the message's rate, and the repair of losses.

use core::ops::Range;

use rackweave_core::{Assembler, FailReason, HostId, Packet, Time, frame};
use rackweave_wire::hpcc::Sack;
use rackweave_wire::{Exchange as _, Id64};

use super::{Limit, Rdma, Repair};
use crate::common::{Driven, Jitter, Parameters as _, State, note_acknowledged};

/// The sender's state of a message, in packets.
#[derive(Debug)]
pub struct Outgoing<L> {
    length: u32,
    packets: u32,
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
    pub(crate) limit: L,
    /// The bytes of the last packet on the link, and when it was sent.
    last: (u32, Time),
    /// When the rate permits the next packet.
    free_at: Time,
    /// When the first missing packet counts as lost; [`Time::MAX`] while no packet is in flight.
    rto_at: Time,
    /// Timeouts since the last progress.
    timeouts: u32,
    /// When the first packet was sent to which no packet of the receiver is an answer; `None` if all are answered.
    silent_since: Option<Time>,
}

impl<L> Outgoing<L> {
    /// The state of a message of this length.
    pub(crate) fn new(now: Time, length: u32, packets: u32, jitter: Jitter, limit: L) -> Self {
        Self {
            length,
            packets,
            jitter,
            acked: Assembler::default(),
            sent_to: 0,
            again: 0..0,
            repairs_to: 0,
            is_stalled: false,
            limit,
            last: (0, now),
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

    /// The packet that is sent next, if no window forbids it.
    pub(crate) const fn next(&self) -> u32 {
        if self.again.start < self.again.end { self.again.start } else { self.sent_to }
    }

    /// One past the last packet that was ever sent.
    pub(crate) const fn sent_to(&self) -> u32 {
        self.sent_to
    }

    /// The receiver has sent something, even if that says nothing of packets.
    pub(crate) const fn heard(&mut self) {
        self.silent_since = None;
    }

    /// The packet to send next, with at most `window` packets in flight.
    fn sendable(&self, window: u32) -> Option<u32> {
        let again = self.acked.first_missing(self.again.start);
        if again < self.again.end {
            return Some(again);
        }
        let end = self.packets.min(self.first().saturating_add(window));
        (self.sent_to < end && !self.is_stalled).then_some(self.sent_to)
    }

    /// Notes that a packet is sent, and when this one counts as lost.
    fn sends(&mut self, now: Time, packet: u32, wire_bytes: u32, repair: &Repair) {
        if packet < self.sent_to {
            self.again.start = packet + 1;
        } else {
            self.sent_to = packet + 1;
        }
        self.last = (wire_bytes, now);
        self.silent_since.get_or_insert(now);
        if self.rto_at == Time::MAX {
            self.rto_at = now.saturating_add(self.timeout(repair));
        }
    }

    /// Sets when the next packet may be sent, at the rate of now.
    pub(crate) fn pace<C>(&mut self, now: Time, config: &C)
    where
        L: Limit<C>,
    {
        let (bytes, at) = self.last;
        self.free_at = match self.limit.rate(now, config) {
            Some(rate) => at.saturating_add(rate.span_of(u64::from(bytes))),
            None => at,
        };
    }

    fn timeout(&self, repair: &Repair) -> rackweave_core::Span {
        self.jitter.apply(repair.timeout(self.timeouts), self.timeouts)
    }

    /// Notes progress after an acknowledgement.
    fn progress(&mut self, now: Time, repair: &Repair) {
        self.timeouts = 0;
        if self.is_stalled {
            // What is in flight was late and not lost, unless a later packet brings a NACK: a new one, or the last one.
            self.is_stalled = false;
            let is_all_sent = self.sent_to == self.packets;
            self.again = if is_all_sent { self.packets - 1..self.packets } else { 0..0 };
        }
        let is_in_flight = self.sent_to > self.first();
        self.rto_at = if is_in_flight { now.saturating_add(repair.timeout(0)) } else { Time::MAX };
    }

    /// Repairs what a NACK tells of: everything from the expected packet on, or what is missing before the last one that has arrived.
    fn repair(&mut self, next: u32, sack: Sack, repair: &Repair) {
        if self.is_stalled {
            return;
        }
        if !repair.selective {
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
    pub(crate) const fn deadline(&self) -> Time {
        self.rto_at
    }

    fn is_given_up(&self, now: Time, patience: rackweave_core::Span) -> bool {
        self.silent_since.is_some_and(|since| now.since(since) >= patience)
    }

    #[cfg(test)]
    pub(crate) fn check_bounds<C>(&self, config: &C, max_gaps: u16)
    where
        L: Limit<C>,
    {
        assert!(self.first() <= self.sent_to && self.sent_to <= self.packets);
        assert!(self.again.end <= self.sent_to);
        assert!(self.acked.above().len() <= usize::from(max_gaps));
        self.limit.check_bounds(config);
    }
}

impl<S: Rdma> Driven<S> {
    /// Puts a message among those with something to send, if it is one.
    pub(crate) fn make_ready(&mut self, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Sending(outgoing) = &exchange.state else { return };
        if outgoing.sendable(outgoing.limit.window(&self.config)).is_some() {
            self.scheme.nic_mut().set(slot, outgoing.free_at, exchange.birth);
        } else {
            self.scheme.nic_mut().ready.remove(slot);
        }
    }

    /// The next data packet: of the message whose rate has permitted one for longest, so that messages of one rate take turns.
    #[inline]
    pub(crate) fn next_packet(&mut self, now: Time) -> Option<Packet<S::Header>> {
        let nic = self.scheme.nic_mut();
        nic.polled_until = nic.polled_until.max(now);
        let ((free_at, _), slot) = nic.ready.first()?;
        if free_at > now {
            return None;
        }
        let (config, exchange) = (&*self.config, self.exchanges.get_mut(slot));
        let State::Sending(outgoing) = &mut exchange.state else {
            nic.ready.remove(slot);
            return None;
        };
        let Some(packet) = outgoing.sendable(outgoing.limit.window(config)) else {
            nic.ready.remove(slot);
            return None;
        };
        let (common, repair) = (config.common(), S::repair(config));
        let is_again = packet < outgoing.sent_to;
        let offset = packet * common.max_payload;
        let len = common.max_payload.min(outgoing.length - offset) as u16;
        let bytes = common.header_bytes + u32::from(len);
        let wire_bytes = frame::wire_bytes(bytes);
        nic.link_free_at = now.saturating_add(S::link(config).span_of(u64::from(wire_bytes)));
        outgoing.sends(now, packet, wire_bytes, repair);
        outgoing.pace(now, config);
        let is_last = packet + 1 == outgoing.packets;
        let asks = is_again || is_last || (packet + 1).is_multiple_of(repair.ack_every);
        let body = S::data(outgoing.length, offset, len, asks);
        let header = S::Header::new(Id64::new(exchange.local), exchange.one_way, body);
        let (peer, deadline, priority) = (exchange.peer, outgoing.deadline(), repair.data_priority);
        self.recovery.retransmissions += u64::from(is_again);
        self.timers.set_earlier(slot, deadline);
        self.make_ready(slot);
        Some(self.packet(peer, bytes, priority, header))
    }

    /// Handles an acknowledgement, or the report that a packet is missing.
    #[inline]
    pub(crate) fn handle_ack(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        next: u32,
        sack: Sack,
        is_missing: bool,
    ) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let (common, repair) = (self.config.common(), S::repair(&self.config));
        let max_gaps = usize::from(common.max_gaps);
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
                outgoing.progress(now, repair);
            }
            if is_missing {
                outgoing.repair(next, sack, repair);
            }
        }
        let deadline = outgoing.deadline();
        self.timers.set(slot, deadline);
        self.make_ready(slot);
    }

    /// Handles the deadline of a message: its first missing packet is lost.
    pub(crate) fn sender_due(&mut self, now: Time, slot: u32) {
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        let (patience, repair) = (self.config.common().patience, S::repair(&self.config));
        if outgoing.is_given_up(now, patience) {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        outgoing.timeouts = outgoing.timeouts.saturating_add(1);
        self.recovery.timeouts += 1;
        let first = outgoing.first();
        outgoing.again = first..(first + 1).min(outgoing.sent_to);
        (outgoing.is_stalled, outgoing.repairs_to) = (true, 0);
        outgoing.rto_at = now.saturating_add(outgoing.timeout(repair));
        let deadline = outgoing.deadline();
        self.timers.set(slot, deadline);
        self.make_ready(slot);
    }
}
