//! The receiver: arriving data, grants, acknowledgements.

use rackweave_core::{Assembler, Event, HostId, Kind, MessageId, Packet, Placement, Slice, Time};
use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, Header};

use super::config::PriorityBy;
use super::grants::{Grant, Key};
use super::rpc::{Incoming, Known, Memory, State};
use super::{Control, Host};

/// Number of ids in one ACK packet besides the one in the common header. The kernel module's has room for five
/// (docs/protocols/homa.md#homa-wire-format). Three are our choice: a header in memory is then no longer than DATA's.
/// The other ids are acknowledged with later packets, or when the peer asks.
const ACK_OTHERS: usize = 3;

impl Host {
    /// Handles a DATA packet, and returns where its payload is to be stored.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data {
            message_length,
            incoming,
            ack_id,
            cutoff_version,
            offset,
            segment_length,
            ..
        } = header.body
        else {
            return Placement::Discard;
        };
        let from = packet.src;
        let len = u32::from(segment_length);
        self.repairs.data_arrived(packet.priority, packet.wire_bytes.into());
        let in_message = offset.checked_add(len).filter(|end| *end <= message_length);
        let Some(end) = in_message else { return Placement::Discard };
        if len == 0 || message_length > self.config.max_message_bytes || packet.is_trimmed() {
            return Placement::Discard;
        }
        if ack_id.get() != 0 {
            self.handle_ack(now, from, ack_id.get() ^ 1);
        }
        let Some(slot) = self.receiving_slot(now, from, header, message_length, incoming) else {
            return Placement::Discard;
        };
        self.data_arrived(now, slot, cutoff_version, message_length, offset, end)
    }

    /// The slot of the RPC that receives this message, which is created if it is new.
    fn receiving_slot(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        length: u32,
        incoming: u32,
    ) -> Option<u32> {
        let id = header.local_id();
        let is_client = id & 1 == 0;
        let known = self.rpcs.find_often(from, id);
        match known {
            Known::Slot(slot) => match self.rpcs.get(slot).state {
                State::Receiving(_) => return Some(slot),
                // The first bytes of the response to this client's request.
                State::Sending(_) if is_client && !self.rpcs.get(slot).one_way => {}
                _ => return None,
            },
            // The peer continues because the acknowledgement was lost or is in flight.
            Known::Finished => {
                self.send_ack(from, id, header.one_way);
                return None;
            }
            // A response to a request that is unknown, or no longer known.
            Known::No if is_client => return None,
            Known::No => {
                if self.refuses(now, from, id) {
                    // An acknowledgement refuses a request for good, as that of one which is remembered as finished;
                    // of a one-way message it would say that it has arrived (our choice: the module has no refusal).
                    if header.one_way {
                        self.refuse_one_way(from, id);
                    } else {
                        self.send_ack(from, id, false);
                    }
                    return None;
                }
            }
        }
        let most = u32::try_from(self.config.max_incoming).unwrap_or(u32::MAX);
        let granted = self.config.whole_packets(incoming.min(most), length);
        let state = Incoming {
            length,
            limit: length,
            granted,
            left: length,
            priority: self.config.cutoffs.priority(length),
            grant_waits: false,
            counts: self.config.unscheduled_counts || granted < length,
            asked: 0,
            asked_to: 0,
            ask_until: 0,
            asked_at: 0,
            received: Assembler::default(),
        };
        let counted = state.counted();
        let slot = if let Known::Slot(slot) = known {
            self.leave_state(slot);
            self.rpcs.get_mut(slot).state = State::Receiving(state);
            slot
        } else {
            let slot = self.add_rpc(now, from, id, header.one_way, State::Receiving(state));
            self.not_admitted += u64::from(slot.is_none());
            slot?
        };
        self.grants.incoming += u64::from(counted);
        let rpc = self.rpcs.get(slot);
        if let State::Receiving(incoming) = &rpc.state
            && incoming.granted < incoming.length
        {
            let list = &mut self.peers.get_mut(rpc.peer).grantable;
            self.grants.add(&self.config, &self.rpcs, list, slot, incoming);
        }
        Some(slot)
    }

    /// Whether an unknown message of this peer may be one that was received and forgotten for lack of room.
    fn refuses(&mut self, now: Time, from: HostId, id: u64) -> bool {
        let tick = self.tick(now);
        self.peers.find(from).is_some_and(|peer| id <= peer.floor && tick < peer.floor_until)
    }

    /// Refuses a one-way message, unless its acknowledgement still waits here.
    fn refuse_one_way(&mut self, from: HostId, id: u64) {
        if self.peers.find(from).is_some_and(|peer| peer.acks.contains(&id)) {
            return self.send_ack(from, id, true);
        }
        self.send_control(from, id, true, Body::Unknown { refused: true });
    }

    /// Handles arriving bytes of a message.
    #[inline]
    fn data_arrived(
        &mut self,
        now: Time,
        slot: u32,
        cutoff_version: u16,
        message_length: u32,
        offset: u32,
        end: u32,
    ) -> Placement {
        let max_gaps = usize::from(self.config.max_gaps);
        let rpc = self.rpcs.get_mut(slot);
        let (id, birth, peer) = (rpc.id, rpc.birth, rpc.peer);
        if !matches!(&rpc.state, State::Receiving(incoming) if incoming.length == message_length) {
            return Placement::Discard;
        }
        rpc.note_alive(self.config.resend_ticks);
        let State::Receiving(incoming) = &mut rpc.state else { return Placement::Discard };
        let (old_left, before) = (incoming.left, incoming.counted());
        let fresh = incoming.received.insert(offset..end, max_gaps).unwrap_or(0);
        incoming.left -= fresh;
        if incoming.asked > 0 {
            let asked = incoming.asked.min(fresh);
            incoming.asked -= asked;
            self.repairs.release(asked);
        }
        let left = incoming.left;
        self.grants.incoming -= u64::from(before - incoming.counted());
        let grantable = incoming.granted < incoming.length;
        if self.config.one_resend_per_peer {
            self.peers.get_mut(peer).asked = 0;
        }
        if self.config.cutoff_version != 0 && self.config.cutoff_version != cutoff_version {
            self.send_cutoffs(now, slot);
        }
        if fresh == 0 {
            return Placement::Discard;
        }
        if grantable {
            let list = &mut self.peers.get_mut(peer).grantable;
            let old = Key { left: old_left, birth, slot };
            self.grants.progress(&self.config, &self.rpcs, list, old, left);
        }
        if left == 0 {
            self.arrived(now, slot);
        }
        self.issue_grants(now);
        if self.repairs.is_due() {
            self.repair();
        }
        Placement::Store(Slice { message: MessageId(id ^ 1), offset, len: end - offset })
    }

    /// Handles the last missing byte of a message.
    fn arrived(&mut self, now: Time, slot: u32) {
        let rpc = self.rpcs.get(slot);
        let (peer, host, id, one_way) = (rpc.peer, rpc.host, rpc.id, rpc.one_way);
        let State::Receiving(incoming) = &rpc.state else { return };
        let length = incoming.length;
        let bytes = u64::from(length);
        self.echo_at_end(now, host, id, one_way, length);
        let is_client = id & 1 == 0;
        let kind = match (is_client, one_way) {
            (true, _) => Kind::Response,
            (false, true) => Kind::OneWay,
            (false, false) => Kind::Request,
        };
        self.events.push_back(Event::Delivered { peer: host, id: MessageId(id ^ 1), bytes, kind });
        if kind == Kind::Request {
            self.leave_state(slot);
            self.rpcs.get_mut(slot).state = State::InService;
        } else {
            let memory = if is_client { Memory::None } else { Memory::Finished };
            self.remove_rpc(now, slot, memory);
            self.queue_ack(peer, host, id, one_way);
        }
    }

    /// Queues the acknowledgement of an RPC that has finished here.
    fn queue_ack(&mut self, peer: u32, host: HostId, id: u64, one_way: bool) {
        // In a DATA packet 0 means that there is no id.
        if id == 0 {
            return self.send_ack(host, id, one_way);
        }
        let acks = &mut self.peers.get_mut(peer).acks;
        if acks.len() < usize::from(self.config.max_acks_queued.max(1)) {
            return acks.push(id);
        }
        self.send_ack(host, id, one_way);
    }

    /// Sends an ACK packet for this RPC, and for as many others with the same peer as fit.
    pub(super) fn send_ack(&mut self, host: HostId, id: u64, one_way: bool) {
        let mut others = [Id64::new(0); ACK_OTHERS];
        let mut count = 0;
        if let Some(peer) = self.peers.find(host) {
            peer.acks.retain(|waiting| *waiting != id);
            count = peer.acks.len().min(ACK_OTHERS);
            for (other, waiting) in others.iter_mut().zip(peer.acks.drain(..count)) {
                *other = Id64::new(waiting);
            }
        }
        self.send_control(host, id, one_way, Body::Ack { count: count as u8, others });
    }

    /// Handles NEED_ACK (docs/protocols/homa.md#homa-loss): the sender of a response or one-way message asks whether
    /// it has arrived.
    pub(super) fn handle_need_ack(&mut self, now: Time, from: HostId, header: &Header) {
        let (id, one_way) = (header.local_id(), header.one_way);
        let slot = match self.rpcs.find(from, id) {
            Known::Finished => return self.send_ack(from, id, one_way),
            // A client that does not know the id has finished it, or has restarted and does not need it.
            Known::No if id & 1 == 0 => return self.send_ack(from, id, one_way),
            Known::No if one_way && self.refuses(now, from, id) => {
                return self.refuse_one_way(from, id);
            }
            Known::No => {
                return self.send_control(from, id, one_way, Body::Unknown { refused: false });
            }
            Known::Slot(slot) => slot,
        };
        let rpc = self.rpcs.get(slot);
        let asks = self.config.need_ack_resends;
        match &rpc.state {
            // Nothing of the response has arrived: everything that was sent is lost.
            State::Sending(_) if id & 1 == 0 && asks => {
                let body = self.resend(0, u32::MAX);
                self.send_control(from, id, one_way, body);
            }
            State::Receiving(incoming)
                if asks && incoming.received.first_gap(incoming.granted).is_some() =>
            {
                self.ask_for_data(slot);
            }
            // Everything that was granted has arrived and the sender must wait for grants, or the timer requests what
            // is missing.
            State::Receiving(_) => self.send_control(from, id, one_way, Body::Busy),
            State::Sending(_) if id & 1 == 0 => self.send_control(from, id, one_way, Body::Busy),
            _ => {}
        }
    }

    /// The body of a RESEND packet.
    pub(super) fn resend(&self, offset: u32, length: u32) -> Body {
        Body::Resend { offset, length, priority: self.config.num_priorities - 1 }
    }

    /// Sends this host's unscheduled levels to a sender, at most once per tick.
    pub(super) fn send_cutoffs(&mut self, now: Time, slot: u32) {
        let tick = self.tick(now);
        let rpc = self.rpcs.get(slot);
        let (host, id, one_way) = (rpc.host, rpc.id, rpc.one_way);
        let peer = self.peers.get_mut(rpc.peer);
        if peer.cutoffs_sent <= tick {
            peer.cutoffs_sent = tick.saturating_add(1);
            let cutoffs = self.config.cutoffs.to_wire();
            let version = self.config.cutoff_version;
            self.send_control(host, id, one_way, Body::Cutoffs { cutoffs, version });
        }
    }

    /// Makes all grants that may be made now.
    pub(super) fn issue_grants(&mut self, now: Time) {
        if self.grants.is_empty() {
            return;
        }
        let (mut rank, mut has_granted) = (0, false);
        while let Some((at, grant)) = self.grants.next(&self.config, &self.peers, rank) {
            // A message that needs no further grants leaves the list, and others move up.
            rank = if self.grant(now, grant) { 0 } else { at + 1 };
            has_granted = true;
        }
        if self.fifo.is_due(&self.config, &self.grants, now, has_granted) {
            self.grant_oldest(now);
            self.fifo.done(&self.config, &mut self.grants, now);
        }
    }

    /// Makes one grant; returns whether the message is now completely granted.
    fn grant(&mut self, now: Time, grant: Grant) -> bool {
        let Grant { slot, offset, mut priority } = grant;
        let rpc = self.rpcs.get_mut(slot);
        let (host, id, birth, peer) = (rpc.host, rpc.id, rpc.birth, rpc.peer);
        if self.config.one_resend_per_peer {
            // `HomaModule` 2023, `homa_create_grants` and `homa_choose_fifo_grant`: while everything granted had arrived, silence
            // meant nothing.
            rpc.silent = 0;
        }
        let Some(incoming) = rpc.incoming_mut() else { return true };
        let ungranted = incoming.length - incoming.granted;
        if self.config.priority_by == PriorityBy::BytesLeft && ungranted < self.config.window {
            priority = priority.max(self.config.cutoffs.priority(ungranted));
        }
        let before = incoming.counted();
        let bytes = offset - incoming.granted;
        incoming.granted = offset;
        incoming.priority = priority;
        self.grants.incoming += u64::from(incoming.counted() - before);
        let key = Key { left: incoming.left, birth, slot };
        let last = !incoming.is_grantable();
        let waits = core::mem::replace(&mut incoming.grant_waits, true);
        self.grants.granted(key, offset, bytes);
        if last {
            let list = &mut self.peers.get_mut(peer).grantable;
            self.grants.remove(&self.rpcs, list, key);
        }
        if !waits {
            self.control.push_back(Control::Grant { slot, host, id, decided: now });
        }
        last
    }

    /// The FIFO share (docs/protocols/homa.md#homa-grants, rules 7 and 8): a grant to the oldest message, whatever is in flight of all.
    fn grant_oldest(&mut self, now: Time) {
        let config = &self.config;
        let Some(slot) = self.fifo.oldest(config, &self.grants, &self.rpcs) else { return };
        let Some(incoming) = self.rpcs.get(slot).incoming() else { return };
        let wanted = incoming.granted.saturating_add(config.fifo_grant_increment);
        let offset = config.whole_packets(wanted, incoming.limit);
        self.grant(now, Grant { slot, offset, priority: config.fifo_priority() });
    }
}
