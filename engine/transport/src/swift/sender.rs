//! The sender: messages, the flows that carry them, and what acknowledgements and timeouts change.

use rackweave_core::{Assembler, FailReason, HostId, Packet, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::swift::{Body, Header, Sack};

use super::config::Config;
use super::flow::{Fate, Piece, Sample};
use super::{Exchanges, Host};
use crate::common::{State, note_acknowledged};

/// The sender's state of a message, in packets.
#[derive(Debug)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    /// The packets that are known to have arrived.
    acked: Assembler<u32>,
    /// When `acked` last began with more packets than before.
    advanced_at: Time,
    /// The next packet to send for the first time, or again after the receiver restarted.
    next: u32,
    /// One past the last packet that was ever sent.
    sent_to: u32,
    /// When the first packet was sent to which no packet of the receiver is an answer; `None` if all are answered.
    silent_since: Option<Time>,
    /// When the last packet was sent.
    last_sent: Time,
    /// Whether the last packet was a probe, so that nothing has been sent for a quarter of the patience, longer than `max_rto`.
    probed: bool,
}

impl Outgoing {
    pub(super) fn new(now: Time, length: u32, config: &Config) -> Self {
        Self {
            length,
            packets: config.common.packets(length),
            acked: Assembler::default(),
            advanced_at: now,
            next: 0,
            sent_to: 0,
            silent_since: None,
            last_sent: now,
            probed: false,
        }
    }

    /// The first packet from `next` on that is not known to have arrived.
    fn unsent(&self) -> Option<u32> {
        let packet = self.acked.first_missing(self.next);
        (packet < self.packets).then_some(packet)
    }

    /// Notes what an acknowledgement names.
    fn note(&mut self, next: u32, sack: Sack, answered: Option<u32>, max_gaps: usize) {
        note_acknowledged(&mut self.acked, self.sent_to, (next, sack), answered, max_gaps);
    }

    /// Handles an acknowledgement that says that the message is not complete. `answered` is the packet that it answers,
    /// with the time at which that was sent. Returns whether the message has to be sent again from its first missing packet.
    fn on_ack(
        &mut self,
        now: Time,
        next: u32,
        sack: Sack,
        answered: Option<(u32, Time)>,
        max_gaps: usize,
    ) -> bool {
        self.silent_since = None;
        let before = self.acked.prefix();
        // A packet that left after its sender knew of a longer beginning met a receiver without it, which has restarted.
        let has_restarted =
            next < before && answered.is_some_and(|(_, sent_at)| sent_at > self.advanced_at);
        let packet = answered.map(|(packet, _)| packet);
        if !has_restarted {
            self.note(next, sack, packet, max_gaps);
        }
        // After a probe nothing should be in flight. If the receiver misses packets then, its state is what counts (our
        // choice). Acknowledgements of it and of the one before its restart may together be of more than either has. A
        // late one of before this host's restart may have named a number that is now another packet's.
        let is_probed = core::mem::take(&mut self.probed) && answered.is_none();
        // A receiver that has all packets says so by another packet: these acknowledgements are of two receivers.
        let is_reset = has_restarted || is_probed || self.acked.prefix() >= self.packets;
        if is_reset {
            self.acked = Assembler::starting_at(next);
            self.note(next, sack, packet, max_gaps);
            if self.acked.prefix() >= self.packets {
                // Only a forged acknowledgement says that all has arrived and that it has not.
                self.acked = Assembler::starting_at(next);
            }
            self.next = self.acked.prefix();
        }
        if is_reset || self.acked.prefix() > before {
            self.advanced_at = now;
        }
        is_reset
    }

    /// When the message's timer expires: its receiver counts as dead, or a message that waits is probed, so that its
    /// receiver keeps what it has (our choice: the turn of a message may come later than that).
    pub(super) fn deadline(&self, config: &Config) -> Time {
        if self.sent_to == 0 {
            return Time::MAX;
        }
        let dead_at =
            self.silent_since.map_or(Time::MAX, |at| at.saturating_add(config.common.patience));
        dead_at.min(self.last_sent.saturating_add(config.common.patience / 4))
    }

    #[cfg(test)]
    pub(super) fn check_bounds(&self, config: &Config) {
        assert!(self.acked.prefix() < self.packets && self.next <= self.packets);
        assert!(self.sent_to <= self.packets);
        assert!(self.acked.above().len() <= usize::from(config.common.max_gaps));
    }
}

/// What the message of a packet knows of it.
fn fate(exchanges: &Exchanges, piece: Piece) -> Fate {
    let exchange = exchanges.get(piece.slot);
    match &exchange.state {
        State::Sending(outgoing) if exchange.birth == piece.birth => {
            if outgoing.acked.contains(piece.packet) { Fate::Arrived } else { Fate::Missing }
        }
        _ => Fate::Moot,
    }
}

impl Host {
    /// Begins to send a submitted message.
    pub(super) fn begin_sending(&mut self, now: Time, slot: u32) {
        self.enqueue(now, slot);
    }

    /// Puts a message that has packets to send into the queue of its flow.
    fn enqueue(&mut self, now: Time, slot: u32) {
        let peer = self.exchanges.get(slot).peer;
        let flow = self.scheme.flow_to(self.id, peer, &self.config);
        self.scheme.enqueue(flow, slot);
        self.refresh(now, flow);
    }

    /// Notes whether a flow may send, and sets its timer.
    fn refresh(&mut self, now: Time, index: u32) {
        let flow = self.scheme.flow(index);
        let (rto_at, mut at) = (flow.rto_at(), Time::MAX);
        if flow.has_work() {
            at = flow.release_at(&self.config);
            if at <= now {
                self.scheme.ready.push_back(index);
                at = Time::MAX;
            }
        } else if flow.is_idle() {
            return self.scheme.rest(index, &self.config);
        }
        let at = at.min(rto_at);
        if at < Time::MAX {
            self.scheme.timers.set_earlier(index, at);
        }
    }

    /// The packet that a flow sends next: a lost one, else one of the message whose turn it is. (Our choice: the paper does
    /// not say in which order messages to one host are sent. In turn, a short one does not wait for a long one.)
    fn next_piece(&mut self, index: u32) -> Option<Piece> {
        let scheme = &mut self.scheme;
        while let Some(piece) = scheme.flow_mut(index).lost.pop_front() {
            if fate(&self.exchanges, piece) == Fate::Missing {
                return Some(piece);
            }
        }
        while let Some(slot) = scheme.dequeue(index) {
            let exchange = self.exchanges.get_mut(slot);
            let State::Sending(outgoing) = &mut exchange.state else { continue };
            let Some(packet) = outgoing.unsent() else { continue };
            outgoing.next = packet + 1;
            if outgoing.unsent().is_some() {
                scheme.enqueue(index, slot);
            }
            return Some(Piece { slot, birth: exchange.birth, packet });
        }
        None
    }

    /// The next data packet: of the flows that may send, in turn.
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        while let Some(index) = self.scheme.ready.pop_front() {
            if self.scheme.flow(index).release_at(&self.config) > now {
                self.refresh(now, index);
                continue;
            }
            let Some(piece) = self.next_piece(index) else {
                self.refresh(now, index);
                continue;
            };
            return Some(self.send(now, index, piece));
        }
        None
    }

    fn send(&mut self, now: Time, index: u32, piece: Piece) -> Packet<Header> {
        let number = self.scheme.flow_mut(index).on_sent(now, piece, &self.config);
        let exchange = self.exchanges.get_mut(piece.slot);
        let (peer, id, one_way) = (exchange.peer, Id64::new(exchange.local), exchange.one_way);
        let offset = piece.packet * self.config.common.max_payload;
        let mut message_length = offset;
        if let State::Sending(outgoing) = &mut exchange.state {
            message_length = outgoing.length;
            self.recovery.retransmissions += u64::from(piece.packet < outgoing.sent_to);
            outgoing.sent_to = outgoing.sent_to.max(piece.packet + 1);
            outgoing.last_sent = now;
            outgoing.probed = false;
            outgoing.silent_since.get_or_insert(now);
            let deadline = outgoing.deadline(&self.config);
            self.timers.set_earlier(piece.slot, deadline);
        }
        self.refresh(now, index);
        let len = self.config.common.max_payload.min(message_length - offset) as u16;
        let body = Body::Data { message_length, offset, len, number };
        let bytes = self.config.common.header_bytes + u32::from(len);
        self.packet(peer, bytes, self.config.data_priority, Header { id, one_way, body })
    }

    /// Notes that the packet with this number has arrived.
    fn acked(&mut self, from: HostId, number: u32) -> Option<(u32, Option<Sample>)> {
        let index = self.scheme.find(from)?;
        // Zero is no number of an acknowledgement; the one packet of 2^32 that has it is known by later ones.
        let number = (number != 0).then_some(number);
        let flow = self.scheme.flow_mut(index);
        flow.on_answer();
        Some((index, number.and_then(|number| flow.on_acked(number))))
    }

    /// Handles an acknowledgement of a message that is not complete.
    pub(super) fn handle_ack(&mut self, now: Time, from: HostId, id: u64, body: &Body) {
        let Body::Ack { number, wait_ns, next, sack } = *body else { return };
        let acked = self.acked(from, number);
        if let Some(slot) = self.outgoing_slot(from, id) {
            let max_gaps = usize::from(self.config.common.max_gaps);
            let exchange = self.exchanges.get_mut(slot);
            let birth = exchange.birth;
            if let State::Sending(outgoing) = &mut exchange.state
                && next < outgoing.packets
                && next <= outgoing.sent_to
            {
                let answered = acked
                    .and_then(|(_, sample)| sample)
                    .filter(|sample| (sample.piece.slot, sample.piece.birth) == (slot, birth))
                    .map(|sample| (sample.piece.packet, sample.sent_at));
                if outgoing.on_ack(now, next, sack, answered, max_gaps) {
                    self.enqueue(now, slot);
                }
            }
        }
        self.flow_acked(now, acked, wait_ns);
    }

    /// Handles the acknowledgement of a message's last missing packet.
    pub(super) fn handle_last_ack(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        number: u32,
        wait_ns: u32,
    ) {
        let acked = self.acked(from, number);
        self.handle_complete(now, from, id);
        self.flow_acked(now, acked, wait_ns);
    }

    fn flow_acked(&mut self, now: Time, acked: Option<(u32, Option<Sample>)>, wait_ns: u32) {
        let Some((index, sample)) = acked else { return };
        let (exchanges, config) = (&self.exchanges, &*self.config);
        let (rules, scaling) = (self.scheme.rules, self.scheme.scaling);
        let flow = self.scheme.flow_mut(index);
        let (arrived, lost) = flow.resolve(|piece| fate(exchanges, piece));
        if let Some(sample) = sample {
            let wait = Span::from_ns(u64::from(wait_ns));
            flow.on_measured(now, &sample, wait, arrived + 1, (&rules, &scaling), config);
            flow.restart_timeout(now, config);
        }
        if lost > 0 {
            flow.on_loss(now, &rules, config);
        }
        self.refresh(now, index);
    }

    /// Handles the timers of flows: a packet is due, or the retransmission timeout has expired.
    pub(super) fn run_flow_timers(&mut self, now: Time) {
        while let Some((at, index)) = self.scheme.timers.first()
            && at <= now
        {
            self.scheme.timers.remove(index);
            let (exchanges, config) = (&self.exchanges, &*self.config);
            let rules = self.scheme.rules;
            let flow = self.scheme.flow_mut(index);
            if flow.rto_at() <= now {
                let is_loss = flow.on_timeout(now, |piece| fate(exchanges, piece), &rules, config);
                self.recovery.timeouts += u64::from(is_loss);
                if flow.dead_at(config) <= now {
                    self.fail_unsent(now, index);
                }
            }
            self.refresh(now, index);
        }
    }

    /// Fails the unsent messages to a dead peer. Begun ones have timers.
    fn fail_unsent(&mut self, now: Time, index: u32) {
        let is_unsent = |slot: &u32| matches!(&self.exchanges.get(*slot).state, State::Sending(it) if it.sent_to == 0);
        let queue = &self.scheme.flow(index).queue;
        let slots: Vec<u32> = queue.iter().copied().filter(is_unsent).collect();
        for slot in slots {
            self.fail(now, slot, FailReason::PeerSilent);
        }
    }

    /// Handles the deadline of a message: its receiver is silent, or it has been quiet for long.
    pub(super) fn sender_due(&mut self, now: Time, slot: u32) {
        let patience = self.config.common.patience;
        let exchange = self.exchanges.get_mut(slot);
        let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        if outgoing.silent_since.is_some_and(|at| now.since(at) >= patience) {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        (outgoing.last_sent, outgoing.probed) = (now, true);
        outgoing.silent_since.get_or_insert(now);
        let (message_length, deadline) = (outgoing.length, outgoing.deadline(&self.config));
        self.timers.set(slot, deadline);
        self.send_control(peer, id, one_way, Body::Probe { message_length });
    }
}
