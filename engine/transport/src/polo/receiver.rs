//! The receiver's half of a message: arriving packets, loss detection, and answers.

use rackweave_core::{
    Assembler, Ecn, FailReason, HostId, Kind, Packet, Placement, Slice, Span, Time,
};
use rackweave_wire::polo::{Body, Header};

use super::timing::{Delays, Timed};
use super::{Config, Host, after};
use crate::common::State;

/// The receiver's state of a message (a flow, in the slides' terms), in packets.
#[derive(Debug)]
pub struct Incoming {
    pub(super) length: u32,
    pub(super) packets: u32,
    /// Number of packets that have not arrived.
    pub(super) missing: u32,
    pub(super) received: Assembler<u32>,
    /// Number of packets that the sender sends without driving packets.
    pub(super) window: u32,
    /// The first packet that was neither sent in the first window nor requested.
    pub(super) limit: u32,
    /// One past the highest packet that arrived for the first time.
    max_seen: u32,
    /// Missing packets before this one are lost.
    pub(super) horizon: u32,
    /// Lost packets before this one have been requested again.
    pub(super) cursor: u32,
    /// Estimated number of packets that were requested and have not arrived; valid only in the host's current
    /// `generation`.
    pub(super) outstanding: u32,
    pub(super) generation: u32,
    /// Whether packets of the flow were ever requested.
    pub(super) asked: bool,
    /// Index among the active flows; `None` if the flow is inactive.
    pub(super) place: Option<u32>,
    /// When a packet of the sender last arrived.
    pub(super) last_received: Time,
    /// When data last arrived or was last requested.
    pub(super) quiet_since: Time,
    /// Number of timeouts since data last arrived.
    pub(super) tries: u32,
    /// The packet whose first transmission is timed, and the one whose retransmission is.
    pub(super) timed: [Option<Timed>; 2],
}

/// The next request to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A specific packet, by number.
    Named(u32),
    /// The next new packet.
    New,
}

impl Incoming {
    fn new(now: Time, length: u32, window: u16, generation: u32, config: &Config) -> Self {
        let packets = config.common.packets(length);
        let window = packets.min(u32::from(window));
        Self {
            length,
            packets,
            missing: packets,
            received: Assembler::default(),
            window,
            limit: window,
            max_seen: 0,
            horizon: 0,
            cursor: 0,
            outstanding: 0,
            generation,
            asked: false,
            place: None,
            last_received: now,
            quiet_since: now,
            tries: 0,
            timed: [None; 2],
        }
    }

    /// The next request, lost packets first. Packets of the first window that a paused sender has not sent are
    /// requested by number (our choice).
    #[inline]
    pub(super) fn want(&self) -> Option<Want> {
        let lost = self.received.first_missing(self.cursor);
        if lost < self.horizon {
            Some(Want::Named(lost))
        } else if self.limit >= self.packets {
            None
        } else if self.limit < self.window {
            Some(Want::Named(self.limit))
        } else {
            Some(Want::New)
        }
    }

    /// Estimated number of packets that were requested and have not arrived, in the host's current generation.
    pub(super) const fn outstanding_in(&self, generation: u32) -> u32 {
        if self.generation == generation { self.outstanding } else { 0 }
    }

    /// Whether packets that were sent or requested have not arrived.
    const fn expects_some(&self) -> bool {
        self.packets - self.missing < self.limit
    }

    /// Whether a packet that arrives for the first time counts as outstanding. One that counted as lost does so only
    /// since it was requested again.
    #[inline]
    const fn is_outstanding(&self, number: u32, driven: bool) -> bool {
        if number < self.horizon { number < self.cursor } else { driven }
    }

    /// When the flow's timer expires.
    pub(super) fn deadline(&self, lateness: Delays, config: &Config) -> Time {
        let forget_at = self.last_received.saturating_add(config.common.patience);
        if self.place.is_some() && self.expects_some() {
            let timeout = lateness.prolong(config.rto(self.tries));
            forget_at.min(self.quiet_since.saturating_add(timeout))
        } else {
            forget_at
        }
    }

    /// Handles a packet in sequence: missing packets before it are lost (recovery 1, slide 11). Returns how
    /// many of the lost ones were driven.
    #[inline]
    fn in_order(&mut self, number: u32, config: &Config) -> u32 {
        self.max_seen = self.max_seen.max(number + 1);
        let horizon = self.max_seen.saturating_sub(config.reorder_margin);
        if !config.recovery_1 || horizon <= self.horizon {
            return 0;
        }
        let mut gap = self.received.first_missing(self.horizon.max(self.window));
        let mut lost = 0;
        while gap < horizon && lost < self.outstanding {
            lost += 1;
            gap = self.received.first_missing(gap + 1);
        }
        self.horizon = horizon;
        lost
    }

    /// Records the delay of an arriving packet if it is timed.
    #[inline]
    fn time(
        &mut self,
        now: Time,
        (number, retransmit): (u32, bool),
        lateness: &mut Delays,
        config: &Config,
    ) {
        for timed in &mut self.timed {
            let Some(packet) = timed else { continue };
            let (delay, over) = packet.arrived(now, number, retransmit, config.max_drives);
            if let Some(delay) = delay {
                lateness.sample(delay, packet.is_retransmission(), config);
            }
            if over {
                *timed = None;
            }
        }
    }

    /// Times the packets that a loss packet requests, if none is timed. A timing that has lasted for twice the longest timeout
    /// is given up: no retransmission was sent, or it was lost.
    pub(super) fn time_lost(
        &mut self,
        now: Time,
        (first, count): (u32, u32),
        lateness: Delays,
        config: &Config,
    ) {
        for timed in self.timed.iter_mut().flatten() {
            timed.requested(first, count);
        }
        let longest = lateness.prolong(config.max_rto).saturating_mul(2);
        if self.timed[1].is_none_or(|timed| timed.age(now) > longest) {
            self.timed[1] = Some(Timed::lost(now, first));
        }
    }
}

impl Host {
    /// Handles a data packet.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data { message_length, offset, len, window, driven, retransmit } = header.body
        else {
            return Placement::Discard;
        };
        let is_packet = self.config.common.is_packet(message_length, offset, len);
        if !is_packet || packet.is_trimmed() {
            return Placement::Discard;
        }
        let marked = packet.ecn() == Ecn::Marked;
        // Slide 12: "before the receiver receives any packet with ECN mark".
        self.scheme.pausing |= marked;
        let slot = self.receiving(now, packet.src, header, message_length, window);
        let Some((slot, new)) = slot else {
            // A late duplicate of a flow that has ended: the next flow starts from the initial state.
            self.scheme.pausing &= !self.scheme.active.is_empty();
            return Placement::Discard;
        };
        let number = offset / self.config.common.max_payload;
        let exchange = self.exchanges.get_mut(slot);
        let id = exchange.arriving();
        let State::Receiving(incoming) = &mut exchange.state else { return Placement::Discard };
        if incoming.length != message_length {
            return Placement::Discard;
        }
        (incoming.last_received, incoming.quiet_since, incoming.tries) = (now, now, 0);
        incoming.time(now, (number, retransmit), &mut self.scheme.lateness, &self.config);
        let max_gaps = usize::from(self.config.common.max_gaps);
        let is_duplicate = incoming.received.contains(number);
        // A duplicate permits no other packet: its first arrival did, so that D would be exceeded (our choice).
        let mut back = u32::from(!is_duplicate && incoming.is_outstanding(number, driven));
        let fresh = incoming.received.insert(number..number + 1, max_gaps).unwrap_or(0);
        incoming.missing -= fresh;
        incoming.limit = incoming.limit.max(number + 1);
        if !retransmit {
            back += incoming.in_order(number, &self.config);
        }
        if !incoming.expects_some() {
            back = u32::MAX;
        }
        let (is_active, missing) = (incoming.place.is_some(), incoming.missing);
        if is_active {
            (self.scheme.active_data, self.scheme.active_data_at) = (true, now);
        }
        self.remove_outstanding(slot, back);
        self.scheme.drives.on_data(marked, &self.config);
        if missing == 0 {
            self.arrived(now, slot, message_length);
        } else {
            if new && !is_active {
                self.send_adjoint_ack(slot, false);
            }
            self.update_wanting(slot);
            self.arm(now, slot);
            self.drive_flows(now, Some(slot));
        }
        if fresh == 0 {
            return Placement::Discard;
        }
        Placement::Store(Slice { message: id, offset, len: u32::from(len) })
    }

    /// Handles an adjoint packet.
    pub(super) fn handle_adjoint(&mut self, now: Time, from: HostId, header: &Header) {
        let Body::Adjoint { message_length, sent, epoch, window, timeout } = header.body else {
            return;
        };
        if message_length == 0 || message_length > self.config.common.max_message_bytes {
            return;
        }
        let slot = self.receiving(now, from, header, message_length, window);
        let Some((slot, new)) = slot else { return };
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        if incoming.length != message_length {
            return;
        }
        incoming.last_received = now;
        let sent = sent.min(incoming.packets);
        // A sender that was paused in its first window has not sent all of it.
        incoming.limit =
            if incoming.asked { incoming.limit.max(sent) } else { incoming.max_seen.max(sent) };
        match &mut incoming.timed[0] {
            Some(timed) => timed.sent(sent),
            None if !timeout && sent > 0 && !incoming.received.contains(sent - 1) => {
                incoming.timed[0] = Some(Timed::announced(now, sent - 1));
            }
            None => {}
        }
        let (is_active, quiet_since) = (incoming.place.is_some(), incoming.quiet_since);
        self.update_wanting(slot);
        // Everything that was sent was sent at least a timeout ago, and may be later by the allowance.
        let is_lost = now.since(quiet_since) >= self.scheme.lateness.allowance();
        if timeout && is_lost {
            self.mark_lost(slot, sent);
        }
        self.arm(now, slot);
        let is_clock = self.scheme.clock == Some(slot);
        if is_clock && epoch == self.scheme.epoch && !timeout {
            self.on_clock_returned(now);
        } else if is_active && self.scheme.clock.is_none() {
            self.set_clock(now, slot);
        } else if timeout || new || epoch == 0 {
            self.send_adjoint_ack(slot, is_clock && timeout);
        }
        if timeout && is_lost && is_active {
            self.request_after_timeout(now, slot);
            self.drive_flows(now, None);
        }
    }

    /// Sends an adjoint acknowledgement: whether the flow is paused and, with `tick`, that the adjoint packet
    /// is to return.
    pub(super) fn send_adjoint_ack(&mut self, slot: u32, tick: bool) {
        let exchange = self.exchanges.get(slot);
        let State::Receiving(incoming) = &exchange.state else { return };
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        let body =
            Body::AdjointAck { epoch: self.scheme.epoch, paused: incoming.place.is_none(), tick };
        self.send_control(peer, id.0, one_way, body);
    }

    /// The slot of the exchange that receives this message, and whether the exchange was just created.
    #[inline]
    fn receiving(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        length: u32,
        window: u16,
    ) -> Option<(u32, bool)> {
        let (slot, new) = self.receiving_slot(now, from, header, |host| {
            Incoming::new(now, length, window, host.scheme.generation, &host.config)
        })?;
        if new {
            self.start_flow(now, slot);
        }
        Some((slot, new))
    }

    /// Handles the last missing packet of a message.
    fn arrived(&mut self, now: Time, slot: u32, bytes: u32) {
        let exchange = self.exchanges.get(slot);
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        let delay = self.config.complete_delay;
        let later = exchange.arriving_kind() == Kind::Request && delay > Span::ZERO;
        if !later {
            self.send_control(peer, id.0, one_way, Body::Complete);
        }
        self.deliver(now, slot, bytes);
        if later {
            self.timers.set(slot, now.saturating_add(delay));
        }
    }

    /// Acknowledges a complete request whose response has not started in time.
    pub(super) fn complete_due(&mut self, slot: u32) {
        self.timers.remove(slot);
        let exchange = self.exchanges.get(slot);
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        self.send_control(peer, id.0, one_way, Body::Complete);
    }

    /// Arms the flow's timer.
    pub(super) fn arm(&mut self, now: Time, slot: u32) {
        if let State::Receiving(incoming) = &self.exchanges.get(slot).state {
            let deadline = after(now, incoming.deadline(self.scheme.lateness, &self.config));
            self.timers.set_earlier(slot, deadline);
        }
    }

    /// Handles the timeout of an active flow that should send: everything requested is lost (our choice; it
    /// also repairs the loss of a driving packet that should have ended a pause).
    pub(super) fn receiver_due(&mut self, now: Time, slot: u32) {
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        if incoming.last_received.saturating_add(self.config.common.patience) <= now {
            // The sender has given up before this deadline.
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        incoming.tries = incoming.tries.saturating_add(1);
        incoming.quiet_since = now;
        self.recovery.timeouts += 1;
        let (limit, deadline) =
            (incoming.limit, after(now, incoming.deadline(self.scheme.lateness, &self.config)));
        self.timers.set(slot, deadline);
        self.mark_lost(slot, limit);
        self.request_after_timeout(now, slot);
        self.drive_flows(now, None);
    }
}
