//! The sender: transmission, and the handling of receivers' control packets.

use rackweave_core::rng::mix;
use rackweave_core::{Event, FailReason, HostId, MessageId, Packet, Time};
use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, Header};

use super::config::PriorityBy;
use super::cutoffs::Cutoffs;
use super::rpc::{Known, Memory, State};
use super::srpt::Ready;
use super::{Control, Host, SERVER_PORT};

/// The length or end of a range that covers the rest of the message.
const ALL: u32 = u32::MAX;

/// The multiple of `resend_ticks` without data after which a response is not arriving any more, if its server does not know of it. Our
/// choice: the module's client asks for ever.
const LOST_RESPONSE: u16 = 4;

impl Host {
    /// Makes a queued control packet; `None` if it is obsolete.
    pub(super) fn control_packet(&mut self, now: Time, control: Control) -> Option<Packet<Header>> {
        let (dst, header) = match control {
            Control::Other { dst, header } => (dst, header),
            Control::Grant { slot, host, id, decided } => {
                let rpc = self.rpcs.get_mut(slot);
                if (rpc.host, rpc.id) != (host, id) {
                    return None;
                }
                if let State::Stream(_) = rpc.state {
                    return self.credit_packet(slot);
                }
                let State::Receiving(incoming) = &mut rpc.state else { return None };
                incoming.grant_waits = false;
                let (offset, priority) = (incoming.granted, incoming.priority);
                let one_way = rpc.one_way;
                let stamps = self.grant_stamps(now, host, decided);
                let body = Body::Grant { offset, priority, resend_all: false, stamps };
                (host, Header { id: Id64::new(id), one_way, body })
            }
        };
        let sizes = &self.config.header_bytes;
        let l3_bytes = match header.body {
            Body::Data { .. } => sizes.data,
            Body::Grant { .. } => sizes.grant,
            Body::Resend { .. } => sizes.resend,
            Body::Unknown { .. } | Body::Busy | Body::NeedAck => sizes.common,
            Body::Cutoffs { .. } => sizes.cutoffs,
            Body::Ack { .. } => sizes.ack,
            Body::Stream(stream) => self.config.streams.l3_bytes(&stream),
        };
        // Control packets have the highest priority (docs/protocols/homa.md#homa-sending).
        Some(self.packet(dst, l3_bytes, self.config.num_priorities - 1, header))
    }

    /// The next packet that answers a RESEND. It precedes new data, because a receiver waits for it.
    pub(super) fn next_retransmission(&mut self, now: Time) -> Option<Packet<Header>> {
        let slot = self.queue.first_resend()?;
        if let State::Stream(_) = self.rpcs.get(slot).state {
            return self.next_stream_retransmission(now, slot);
        }
        let max_payload = self.config.max_payload;
        let State::Sending(outgoing) = &mut self.rpcs.get_mut(slot).state else {
            self.queue.resend_sent(false);
            return None;
        };
        let offset = outgoing.resend_from;
        let end = offset.saturating_add(max_payload).min(outgoing.length);
        outgoing.resend_from = end;
        let more = outgoing.needs_resend();
        self.recovery.retransmissions += 1;
        self.queue.resend_sent(more);
        // Retransmissions have priority `num_priorities - 1` (docs/protocols/homa.md#homa-sending).
        let priority = self.config.num_priorities - 1;
        Some(self.data_packet(now, slot, offset, end - offset, Some(priority)))
    }

    /// The next packet of new data, in SRPT order.
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        let slot = self.queue.pick()?;
        let max_payload = self.config.max_payload;
        let rpc = self.rpcs.get_mut(slot);
        let birth = rpc.birth;
        if let State::Stream(_) = rpc.state {
            return self.stream_packet(now, slot);
        }
        let State::Sending(outgoing) = &mut rpc.state else {
            debug_assert!(false, "only messages under way are in the queue");
            self.queue.remove(slot);
            return None;
        };
        let offset = outgoing.next;
        let end = offset.saturating_add(max_payload).min(outgoing.length);
        outgoing.next = end;
        // After a restart of the message, see `restart_message`.
        if offset < outgoing.sent_to {
            self.recovery.retransmissions += 1;
        }
        outgoing.sent_to = outgoing.sent_to.max(end);
        let (left, more) = (outgoing.length - end, outgoing.is_ready());
        self.queue.sent(Ready { left, slot, birth }, more);
        let packet = self.data_packet(now, slot, offset, end - offset, None);
        self.note_sent(now, self.rpcs.get(slot).peer, u32::from(packet.wire_bytes));
        Some(packet)
    }

    /// Makes a DATA packet. `retransmit` is the priority of a retransmission; `None` for new data.
    fn data_packet(
        &mut self,
        now: Time,
        slot: u32,
        offset: u32,
        len: u32,
        retransmit: Option<u8>,
    ) -> Packet<Header> {
        let stamps = self.data_stamps(now, self.rpcs.get(slot).peer, len, retransmit.is_some());
        let rpc = self.rpcs.get(slot);
        let (dst, id, one_way) = (rpc.host, rpc.id, rpc.one_way);
        let State::Sending(outgoing) = &rpc.state else {
            unreachable!("the callers have looked");
        };
        let peer = self.peers.get_mut(rpc.peer);
        let (cutoffs, cutoff_version) = match &peer.cutoffs {
            Some(announced) => (&announced.0, announced.1),
            None => (&self.config.cutoffs, 0),
        };
        let priority = retransmit.unwrap_or_else(|| {
            if offset >= outgoing.unscheduled {
                outgoing.priority
            } else {
                cutoffs.priority(match self.config.priority_by {
                    PriorityBy::Length => outgoing.length,
                    PriorityBy::BytesLeft => outgoing.length - offset,
                })
            }
        });
        // Each packet carries one acknowledgement, if any is queued for this peer (docs/protocols/homa.md#homa-loss).
        let ack_id = if peer.acks.is_empty() { 0 } else { peer.acks.remove(0) };
        let body = Body::Data {
            message_length: outgoing.length,
            incoming: outgoing.unscheduled,
            ack_id: Id64::new(ack_id),
            ack_port: if ack_id == 0 { 0 } else { SERVER_PORT },
            cutoff_version,
            retransmit: retransmit.is_some(),
            offset,
            segment_length: len as u16,
            stamps,
        };
        // If packets are sprayed, a short last packet overtakes the full ones before it, and the message takes
        // another time than on one path. So messages that are sent without grants keep to one path: each has a
        // source port of its own, as tunnels use to spread flows (RFC 7348 section 5). (Our choice: Homa sprays
        // all packets.)
        let is_short = outgoing.length <= outgoing.unscheduled;
        let header = Header { id: Id64::new(id), one_way, body };
        let packet = self.packet(dst, self.config.header_bytes.data + len, priority, header);
        if is_short && self.config.spray {
            let entropy = (mix(id) & 0x3fff) as u16;
            let (source, destination) = (packet.source_port() ^ entropy, packet.destination_port());
            packet.sprayed(false).with_ports(source, destination)
        } else {
            packet
        }
    }

    /// Records that the peer is alive and knows this RPC.
    pub(super) fn note_alive(&mut self, from: HostId, id: u64) {
        if let Known::Slot(slot) = self.rpcs.find(from, id) {
            self.rpcs.get_mut(slot).note_alive(self.config.resend_ticks);
        }
    }

    /// Handles BUSY (docs/protocols/homa.md#homa-loss). The interval until a busy peer is asked again grows with each
    /// BUSY (our choice: a thousand senders that ask are a load, too).
    pub(super) fn handle_busy(&mut self, from: HostId, id: u64) {
        self.note_alive(from, id);
        let Known::Slot(slot) = self.rpcs.find(from, id) else { return };
        let rpc = self.rpcs.get_mut(slot);
        match &mut rpc.state {
            State::Receiving(incoming) => self.repairs.forget_requested(incoming),
            State::Sending(_) if self.config.paced_resends => {
                rpc.busy = rpc.busy.saturating_add(1);
                rpc.next_ask = self.config.busy_ticks(rpc.id, rpc.busy);
            }
            _ => {}
        }
    }

    pub(super) fn handle_grant(
        &mut self,
        from: HostId,
        id: u64,
        offset: u32,
        priority: u8,
        resend_all: bool,
    ) {
        let Known::Slot(slot) = self.rpcs.find_often(from, id) else { return };
        let rpc = self.rpcs.get_mut(slot);
        rpc.note_alive(self.config.resend_ticks);
        rpc.busy = 0;
        self.allow(slot, offset, Some(priority));
        if resend_all {
            self.queue_resend(slot, 0, ALL);
        }
    }

    /// Permits a message to be sent up to `offset`. `priority` is that of a grant; `None` for other packets.
    pub(super) fn allow(&mut self, slot: u32, offset: u32, priority: Option<u8>) {
        let config = &self.config;
        let rpc = self.rpcs.get_mut(slot);
        let birth = rpc.birth;
        let State::Sending(outgoing) = &mut rpc.state else { return };
        // The newest grant is the one with the highest offset (docs/protocols/homa.md#homa-sending).
        if offset <= outgoing.granted {
            return;
        }
        let was_ready = outgoing.is_ready();
        outgoing.granted = config.whole_packets(offset, outgoing.length);
        if let Some(priority) = priority {
            outgoing.priority = priority.min(config.num_priorities - 1);
        }
        if !was_ready && outgoing.is_ready() {
            let left = outgoing.length - outgoing.next;
            self.queue.push(Ready { left, slot, birth });
        }
    }

    /// Queues those bytes of `from..to` that were sent before for retransmission; returns whether there are
    /// any.
    ///
    /// There is one range per message: a second RESEND that arrives before the first is served extends it. (Our
    /// choice: bytes between the two ranges are sent twice, but receivers ask at most once per interval.)
    pub(super) fn queue_resend(&mut self, slot: u32, from: u32, to: u32) -> bool {
        let config = &self.config;
        let State::Sending(outgoing) = &mut self.rpcs.get_mut(slot).state else { return false };
        let to = config.whole_packets(to, outgoing.length).min(outgoing.next);
        let from = from - from % config.max_payload;
        if from >= to {
            return false;
        }
        if outgoing.needs_resend() {
            outgoing.resend_from = outgoing.resend_from.min(from);
            outgoing.resend_to = outgoing.resend_to.max(to);
        } else {
            (outgoing.resend_from, outgoing.resend_to) = (from, to);
            self.queue.push_resend(slot);
        }
        true
    }

    /// Handles RESEND (docs/protocols/homa.md#homa-loss). The bytes are sent at the highest priority, for which
    /// receivers ask.
    pub(super) fn handle_resend(
        &mut self,
        from: HostId,
        header: &Header,
        offset: u32,
        length: u32,
    ) {
        let id = header.local_id();
        let slot = match self.rpcs.find(from, id) {
            Known::Slot(slot) => slot,
            Known::Finished => return self.send_ack(from, id, header.one_way),
            Known::No => {
                let body = Body::Unknown { refused: false };
                return self.send_control(from, id, header.one_way, body);
            }
        };
        let is_client = id & 1 == 0;
        if is_client && matches!(self.rpcs.get(slot).state, State::Receiving(_)) {
            // The server had the whole request when it started its response. A RESEND for the request shows
            // that it has lost its state, unless the packet is old: see `handle_unknown`. Without this answer
            // the two hosts would wait for each other forever (our choice, since no source covers the case).
            let body = Body::Unknown { refused: false };
            return self.send_control(from, id, header.one_way, body);
        }
        // A client that asks for its response is alive, and sends nothing of its request thereby. Where a peer's messages take turns,
        // two hosts whose requests to each other lack data would otherwise silence each other's RESENDs for ever: each one's
        // turn would come just before the other's RESEND, or within `resend_interval` after its own for a response. (Our choice: the
        // module resets the count at any packet.)
        let asks_back = matches!(self.rpcs.get(slot).state, State::Receiving(_));
        if !(asks_back && self.config.one_resend_per_peer) {
            self.rpcs.get_mut(slot).note_alive(self.config.resend_ticks);
        }
        let answer_busy = match &self.rpcs.get(slot).state {
            // "We have chosen not to transmit data from this message": what is missing may be on its way, or wait here.
            State::Sending(outgoing) if self.config.busy_if_unsent && outgoing.is_ready() => true,
            State::Sending(outgoing) => {
                let end = if length == ALL { outgoing.next } else { offset.saturating_add(length) };
                let end = end.min(outgoing.length);
                // A range beyond the grants indicates that a grant was lost. (`HomaModule` 2026, `homa_resend_pkt`. In 2023 the
                // module sends such bytes as retransmissions, which amounts to the same.)
                self.allow(slot, end, None);
                !self.queue_resend(slot, offset, end)
            }
            // A server that has not responded yet is alive.
            State::Receiving(_) | State::InService => true,
            State::Free(_) | State::Stream(_) => false,
        };
        if answer_busy {
            self.send_control(from, id, header.one_way, Body::Busy);
        }
    }

    /// Handles UNKNOWN (docs/protocols/homa.md#homa-loss): a client restarts the message, a server gives up.
    pub(super) fn handle_unknown(&mut self, now: Time, from: HostId, id: u64, refused: bool) {
        let Known::Slot(slot) = self.rpcs.find(from, id) else { return };
        let is_client = id & 1 == 0;
        if !is_client {
            // UNKNOWN answers a RESEND, which only a receiver sends. In any other state the packet is old, and
            // NEED_ACK will resolve what the client knows (our choice).
            if matches!(self.rpcs.get(slot).state, State::Receiving(_)) {
                self.fail(now, slot, FailReason::PeerForgot);
            }
            return;
        }
        // The RESEND that UNKNOWN answers may have overtaken the data, and there may be many of them: the
        // client restarts once, after some silence (our choice). While its response is arriving, UNKNOWN only
        // affects the reason of a failure, because the packet may be older than the response; not after a long silence, though:
        // then the server has restarted, and the rest of the response is gone.
        let rpc = self.rpcs.get_mut(slot);
        rpc.unknown = true;
        let is_lost = rpc.silent >= self.config.resend_ticks.saturating_mul(LOST_RESPONSE);
        if is_lost && matches!(rpc.state, State::Receiving(_)) {
            return self.fail(now, slot, FailReason::PeerForgot);
        }
        // Silence is counted in ticks of the timer. A host that has stood still, as a paused process does, was silent for longer.
        let missed = self.missed_ticks - rpc.missed_before;
        if u64::from(rpc.silent).saturating_add(missed) >= u64::from(self.config.finished_ticks) {
            // The peer may have executed the request, and forgotten it since. (Our choice: the module would send it again.)
            return self.fail(now, slot, FailReason::PeerForgot);
        }
        if refused && rpc.one_way && rpc.refused == 0 {
            rpc.refused = rpc.silent.saturating_add(1);
        }
        // What is refused is not sent again: see `tick_rpc`.
        if rpc.refused > 0 || rpc.silent < self.config.resend_ticks {
            return;
        }
        if rpc.restarts < self.config.max_restarts {
            self.restart_message(slot);
        } else if self.queue_resend(slot, 0, ALL) {
            self.rpcs.get_mut(slot).restart_silence(self.config.resend_ticks);
        }
    }

    /// Restarts a message that its live receiver does not know, with one packet without grants (see
    /// [`super::Config::max_restarts`]).
    fn restart_message(&mut self, slot: u32) {
        self.queue.remove(slot);
        let first = self.config.max_payload;
        let rpc = self.rpcs.get_mut(slot);
        let State::Sending(outgoing) = &mut rpc.state else { return };
        outgoing.next = 0;
        outgoing.unscheduled = first.min(outgoing.length);
        outgoing.granted = outgoing.unscheduled;
        (outgoing.resend_from, outgoing.resend_to) = (0, 0);
        let left = outgoing.length;
        rpc.restarts += 1;
        rpc.asked = 0;
        let jitter = self.config.restart_jitter(rpc.id, rpc.restarts);
        rpc.restart_silence(self.config.resend_ticks.saturating_add(jitter));
        self.queue.push(Ready { left, slot, birth: rpc.birth });
    }

    pub(super) fn handle_cutoffs(&mut self, from: HostId, cutoffs: [u32; 7], version: u16) {
        let num_priorities = self.config.num_priorities;
        if let Some(peer) = self.peers.find(from) {
            let announced = (Cutoffs::from_wire(cutoffs, num_priorities), version);
            match &mut peer.cutoffs {
                Some(known) => **known = announced,
                None => peer.cutoffs = Some(Box::new(announced)),
            }
        }
    }

    /// Handles ACK: the peer has finished the RPC.
    pub(super) fn handle_ack(&mut self, now: Time, from: HostId, id: u64) {
        let Known::Slot(slot) = self.rpcs.find(from, id) else { return };
        let rpc = self.rpcs.get(slot);
        let State::Sending(outgoing) = &rpc.state else { return };
        let is_client = id & 1 == 0;
        // An acknowledgement of a message that was not completely sent, or of a request without a response, is
        // from a peer that has given up and forgotten it (our choice; see `Host::fail`). Bytes that were sent
        // before a restart of the message may have arrived after all.
        if outgoing.sent_to < outgoing.length || is_client && !rpc.one_way {
            return self.fail(now, slot, FailReason::PeerForgot);
        }
        self.remove_rpc(now, slot, if is_client { Memory::None } else { Memory::Acknowledged });
        self.events.push_back(Event::Sent { peer: from, id: MessageId(id) });
    }
}
