//! The sending half of a stream.

use rackweave_core::rng::mix;
use rackweave_core::{Event, HostId, MessageId, Packet, Refused, StreamEvent, Time};
use rackweave_wire::Id64;
use rackweave_wire::homa::stream::{self as wire, Credit, flags};
use rackweave_wire::homa::{Body, Header};
use smallvec::SmallVec;

use super::super::rpc::State;
use super::super::srpt::Ready;
use super::Host;
use super::config::MAX_WINDOW;
use super::expand;

/// Maximum length of a stream, which keeps offsets well below 2^64.
const MAX_STREAM: u64 = 1 << 62;

/// Maximum number of unacknowledged bytes that are announced to the receiver as written.
const MAX_AHEAD: u64 = MAX_WINDOW as u64 * 2 - 1;

/// Maximum number of ranges to retransmit. Further ones are merged with others, at the cost of duplicates.
const MAX_RESEND_RANGES: usize = 4;

/// The sending half of a stream.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    written: u64,
    /// Whether the application has ended the direction.
    ended: bool,
    /// The first byte that was never sent.
    next: u64,
    /// The offset below which the receiver has all bytes.
    acked: u64,
    end_acked: bool,
    /// The offset below which bytes may be sent.
    allowed: u64,
    /// Start of the bytes with an unscheduled priority.
    free_from: u64,
    /// End of the bytes with an unscheduled priority.
    free_to: u64,
    /// Priority of all other bytes, from the newest grant.
    priority: u8,
    /// Ranges to retransmit, in order.
    resends: SmallVec<[(u64, u64); MAX_RESEND_RANGES]>,
    /// Whether the stream is in the SRPT queue.
    queued: bool,
    /// When bytes were last sent or acknowledged.
    pub(super) moved_at: Time,
}

impl Sending {
    pub(super) fn new(free: u64, now: Time) -> Self {
        Self {
            written: 0,
            ended: false,
            next: 0,
            acked: 0,
            end_acked: false,
            allowed: free,
            free_from: 0,
            free_to: free,
            priority: 0,
            resends: SmallVec::new(),
            queued: false,
            moved_at: now,
        }
    }

    /// Whether there are new bytes that may be sent.
    fn is_ready(&self) -> bool {
        self.next < self.allowed.min(self.written)
    }

    pub(super) const fn is_all_sent(&self) -> bool {
        self.ended && self.next == self.written
    }

    pub(super) const fn is_all_acked(&self) -> bool {
        self.end_acked
    }

    /// Whether this half can only continue after a packet from the receiver.
    pub(super) fn waits(&self) -> bool {
        let open = self.acked < self.written || self.ended && !self.end_acked;
        open && !self.queued && self.resends.is_empty()
    }

    fn left(&self, from: u64) -> u32 {
        u32::try_from(self.written - from).unwrap_or(u32::MAX)
    }

    /// Adds a range to retransmit.
    fn add_resend(&mut self, mut from: u64, mut to: u64) {
        self.resends.retain(|&mut (start, end)| {
            let apart = end < from || to < start;
            if !apart {
                (from, to) = (from.min(start), to.max(end));
            }
            apart
        });
        let at = self.resends.partition_point(|&(start, _)| start < from);
        if self.resends.len() < MAX_RESEND_RANGES {
            self.resends.insert(at, (from, to));
        } else if at > 0 {
            self.resends[at - 1].1 = to;
        } else {
            self.resends[0].0 = from;
        }
    }

    /// Removes acknowledged bytes from the ranges to retransmit.
    fn drop_acked_resends(&mut self) {
        let acked = self.acked;
        self.resends.retain(|(from, to)| {
            *from = (*from).max(acked);
            from < to
        });
    }
}

impl Host {
    pub(in crate::homa) fn write_stream(
        &mut self,
        now: Time,
        peer: HostId,
        id: u64,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        let slot = self.find_stream(peer, id).ok_or(Refused::Ended)?;
        let Some(stream) = self.stream_mut(slot) else { return Err(Refused::Ended) };
        let send = &mut stream.send;
        if send.ended {
            return Err(Refused::Ended);
        }
        if bytes == 0 && !end {
            return Err(Refused::Empty);
        }
        let written = send.written.checked_add(bytes).filter(|written| *written <= MAX_STREAM);
        let written = written.ok_or(Refused::TooLong { max: MAX_STREAM })?;
        // Time without a packet from the peer counts from the first byte to which the peer can react.
        if send.acked == send.written {
            send.moved_at = now;
        }
        send.written = written;
        send.ended = end;
        if !stream.started {
            stream.started = true;
            stream.last_received = now;
        }
        let all_sent = send.next == send.written;
        self.queue_if_ready(slot);
        if all_sent {
            self.send_empty(now, slot, 0);
        }
        self.rearm_stream_timer(now, slot);
        Ok(())
    }

    /// Adds the stream to the SRPT queue if it has bytes to send. Bytes that are written later count from its
    /// next packet on.
    fn queue_if_ready(&mut self, slot: u32) {
        let rpc = self.rpcs.get_mut(slot);
        let birth = rpc.birth;
        if let State::Stream(stream) = &mut rpc.state
            && !stream.send.queued
            && stream.send.is_ready()
        {
            stream.send.queued = true;
            let left = stream.send.left(stream.send.next);
            self.queue.push(Ready { left, slot, birth });
        }
    }

    /// Makes the next packet of new bytes, of the stream that is first in the queue.
    pub(in crate::homa) fn stream_packet(
        &mut self,
        now: Time,
        slot: u32,
    ) -> Option<Packet<Header>> {
        let max_payload = u64::from(self.config.max_payload);
        let rpc = self.rpcs.get_mut(slot);
        let birth = rpc.birth;
        let State::Stream(stream) = &mut rpc.state else { return None };
        let send = &mut stream.send;
        let offset = send.next;
        let end = (offset + max_payload).min(send.written).min(send.allowed);
        send.next = end;
        send.queued = send.is_ready();
        let (left, more) = (send.left(end), send.queued);
        self.queue.sent(Ready { left, slot, birth }, more);
        Some(self.piece(now, slot, offset, end - offset, None))
    }

    /// Makes the next packet of a retransmission.
    pub(in crate::homa) fn next_stream_retransmission(
        &mut self,
        now: Time,
        slot: u32,
    ) -> Option<Packet<Header>> {
        let max_payload = u64::from(self.config.max_payload);
        let send = &mut self.stream_mut(slot)?.send;
        let Some((from, to)) = send.resends.first_mut() else {
            debug_assert!(false, "only streams with something to send again are in the list");
            self.queue.resend_sent(false);
            return None;
        };
        let offset = *from;
        let end = (offset + max_payload).min(*to);
        *from = end;
        if end == *to {
            send.resends.remove(0);
        }
        let more = !send.resends.is_empty();
        self.recovery.retransmissions += 1;
        self.queue.resend_sent(more);
        // The same priority as for retransmissions of messages (docs/protocols/homa.md#homa-sending).
        let priority = self.config.num_priorities - 1;
        Some(self.piece(now, slot, offset, end - offset, Some(priority)))
    }

    fn piece(
        &mut self,
        now: Time,
        slot: u32,
        offset: u64,
        len: u64,
        retransmit: Option<u8>,
    ) -> Packet<Header> {
        let flags = if retransmit.is_some() { flags::RETRANSMIT } else { 0 };
        let header = self.stream_header(now, slot, offset, len as u16, flags);
        let rpc = self.rpcs.get(slot);
        let (dst, id) = (rpc.host, rpc.id);
        let peer = self.peers.get_mut(rpc.peer);
        let cutoffs = peer.cutoffs.as_ref().map_or(&self.config.cutoffs, |announced| &announced.0);
        let State::Stream(stream) = &rpc.state else {
            unreachable!("callers have found the stream")
        };
        let free = (stream.send.free_from..stream.send.free_to).contains(&offset);
        let priority = retransmit.unwrap_or_else(|| {
            // A stream has no length, so that its remaining bytes determine the priority.
            if free { cutoffs.priority(stream.send.left(offset)) } else { stream.send.priority }
        });
        let l3_bytes = self.config.streams.stream_header + len as u32;
        let packet = self.packet(dst, l3_bytes, priority, header);
        if free && self.config.spray {
            // As for short messages, spraying must not reorder the packets (see `Host::data_packet`).
            let entropy = (mix(id) & 0x3fff) as u16;
            let (source, destination) = (packet.source_port() ^ entropy, packet.destination_port());
            packet.sprayed(false).with_ports(source, destination)
        } else {
            packet
        }
    }

    /// Makes the header of a STREAM packet. Its acknowledgement is recorded as sent.
    fn stream_header(&mut self, now: Time, slot: u32, offset: u64, len: u16, more: u8) -> Header {
        let rpc = self.rpcs.get_mut(slot);
        let (id, peer) = (rpc.id, rpc.peer);
        let is_client = id & 1 == 0;
        let cutoff_version =
            self.peers.get_mut(peer).cutoffs.as_ref().map_or(0, |announced| announced.1);
        let State::Stream(stream) = &mut rpc.state else {
            unreachable!("callers have found the stream");
        };
        stream.credit_due = Time::MAX;
        stream.receive.incoming.grant_waits = false;
        let (credit, mut flags) = stream.receive.advertise();
        flags |= more;
        let opening = is_client && stream.tag == 0;
        let tag = if opening {
            flags |= flags::OPENING;
            match stream.deadline {
                Time::MAX => 0,
                // A deadline that does not fit this field is enforced by the client only.
                deadline => {
                    u32::try_from(deadline.since(now).as_ns_ceil().div_ceil(1_000)).unwrap_or(0)
                }
            }
        } else {
            stream.tag
        };
        let send = &mut stream.send;
        send.moved_at = now;
        let announced = send.written.min(send.acked + MAX_AHEAD);
        if send.ended && announced == send.written {
            flags |= flags::END;
        }
        let body = Body::Stream(wire::Stream::Data {
            offset: offset as u32,
            len,
            written: announced as u32,
            credit,
            cutoff_version,
            flags,
            tag,
        });
        Header { id: Id64::new(id), one_way: false, body }
    }

    /// Sends a STREAM packet without payload.
    pub(super) fn send_empty(&mut self, now: Time, slot: u32, flags: u8) {
        let Some(stream) = self.stream(slot) else { return };
        let next = stream.send.next;
        let host = self.rpcs.get(slot).host;
        let Header { id, one_way, body } = self.stream_header(now, slot, next, 0, flags);
        self.send_control(host, id.get(), one_way, body);
    }

    /// Handles the credit and acknowledgement in a packet of the peer.
    pub(super) fn handle_credit(&mut self, now: Time, slot: u32, credit: Credit, flags: u8) {
        let rpc = self.rpcs.get_mut(slot);
        let (peer, id) = (rpc.host, MessageId(rpc.id));
        let State::Stream(stream) = &mut rpc.state else { return };
        let send = &mut stream.send;
        let mut news = false;
        if let Some(received) = expand(send.acked, credit.received)
            && received >= send.acked
            && received <= send.next
        {
            let bytes = received - send.acked;
            if bytes > 0 {
                send.acked = received;
                send.drop_acked_resends();
                news = true;
                self.events.push_back(Event::Stream(StreamEvent::Acked { peer, id, bytes }));
            }
            if flags & flags::END_RECEIVED != 0
                && send.is_all_sent()
                && send.acked == send.written
                && !send.end_acked
            {
                send.end_acked = true;
                news = true;
            }
        }
        if let Some(allowed) = expand(send.acked, credit.allowed) {
            // The newest grant is the one with the highest offset (docs/protocols/homa.md#homa-sending).
            let allowed = allowed.min(send.acked + u64::from(MAX_WINDOW));
            if allowed > send.allowed {
                match credit.priority {
                    wire::UNSCHEDULED => {
                        // Bytes that were granted before keep their priority.
                        if send.free_to < send.allowed {
                            send.free_from = send.allowed;
                        }
                        send.free_to = allowed;
                    }
                    level => send.priority = level.min(self.config.num_priorities - 1),
                }
                send.allowed = allowed;
                news = true;
            }
        }
        if !news {
            return;
        }
        send.moved_at = now;
        let none_left = send.resends.is_empty();
        stream.progress();
        if none_left {
            self.queue.remove_resend(slot);
        }
        self.queue_if_ready(slot);
    }

    /// Records that the peer has closed the stream, and so has received everything.
    pub(super) fn all_acknowledged(&mut self, slot: u32) {
        let rpc = self.rpcs.get_mut(slot);
        let (peer, id) = (rpc.host, MessageId(rpc.id));
        let State::Stream(stream) = &mut rpc.state else { return };
        let bytes = stream.send.written - stream.send.acked;
        stream.send.acked = stream.send.written;
        stream.send.end_acked = true;
        if bytes > 0 {
            self.events.push_back(Event::Stream(StreamEvent::Acked { peer, id, bytes }));
        }
    }

    /// Handles MISSING: bytes that the receiver has allowed are late.
    pub(super) fn handle_missing(&mut self, now: Time, slot: u32, offset: u32, length: u32) {
        let Some(stream) = self.stream_mut(slot) else { return };
        let send = &mut stream.send;
        let Some(from) = expand(send.acked, offset) else { return };
        let to = from.saturating_add(u64::from(length));
        // A range beyond the allowed bytes indicates that a CREDIT was lost.
        let allowed = to.min(send.acked + u64::from(MAX_WINDOW));
        send.allowed = send.allowed.max(allowed);
        let (from, to) = (from.max(send.acked), to.min(send.next));
        let lost = from < to;
        let newly = send.resends.is_empty();
        if lost {
            send.add_resend(from, to);
        }
        if lost && newly {
            self.queue.push_resend(slot);
        }
        self.queue_if_ready(slot);
        if !(lost && newly) {
            // The requested bytes are queued already, or have been acknowledged: reports that this end is
            // alive.
            self.send_empty(now, slot, 0);
        }
    }
}
