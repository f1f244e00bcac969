//! Streams: RPCs whose two directions are written in pieces and delivered in order as the bytes arrive.
//!
//! The talk on Leverage Homa names the goal (one long-lived RPC instead of many, pipelined delivery) but gives
//! no protocol, so that the whole protocol is our choice. The talk's original method, a stream of many unary
//! RPCs, needs no support here: its driver submits a request for each piece.
//!
//! # One id, two directions
//! Client-streaming, server-streaming and bidirectional RPCs are the same, and a unary RPC is a stream whose directions
//! are each written and ended at once. A stream has one slot among the RPCs. Its sending half is in
//! the SRPT queue of all messages, ordered by bytes written and not sent. Its receiving half is among the
//! grantable messages, ordered by bytes written and not received.
//!
//! # Credit
//! STREAM announces how much has been written, CREDIT up to which offset the peer may send. Each STREAM packet
//! carries a CREDIT for the other direction. There are two kinds of credit:
//! - *standing*: when everything that was written may be sent, the sender may send about the unscheduled window
//!   beyond what has arrived, so that the next write starts at once;
//! - *granted*: while there is more to send than that, the stream takes part in Homa's grants, under
//!   `max_incoming` and overcommitment, at a scheduled priority, like a message.
//!
//! With Leverage Homa's windows, these determine the standing and the granted credit. They are measured by
//! messages only, since packets of streams have no time stamps.
//!
//! Neither kind of credit exceeds what the application has consumed by more than the stream's window.
//!
//! # Loss
//! The receiver requests late bytes that it has allowed (MISSING). The sender requests a CREDIT (by an empty
//! STREAM) when its last bytes are not acknowledged. Either end asks after a long silence. Unanswered requests
//! end the stream with [`FailReason::PeerSilent`]; an answer without progress increases the time until the next
//! request.
//!
//! # Opening and closing
//! The client's packets are marked as opening until the first packet from the server, whose packets carry a
//! tag: the time of the stream's creation. A server that has restarted has another tag or none, so that bytes
//! of two incarnations are never mixed: the stream fails with [`FailReason::PeerForgot`]. Closed and failed
//! streams are remembered like finished RPCs, with the reason; their late packets are answered with RESET. A
//! half-closed or idle stream stays open: flow control and think time have no limit, only silence has.

pub mod config;
mod receive;
mod send;
mod timers;

use rackweave_core::{Event, FailReason, HostId, MessageId, Open, Packet, Placement, Refused};
use rackweave_core::{StreamEvent, Time};
use rackweave_wire::Id64;
use rackweave_wire::homa::stream::{self as wire, Reason, flags};
use rackweave_wire::homa::{Body, Header};

use super::rpc::{Known, Memory, State};
use super::{Config, Control, Host};
use receive::Receiving;
use send::Sending;

/// One end of a stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    send: Sending,
    pub(super) receive: Receiving,
    /// The tag that the server has chosen; 0 at a client before the server's first packet.
    tag: u32,
    deadline: Time,
    /// Whether a packet was sent, so that the peer may know of the stream.
    started: bool,
    last_received: Time,
    /// Number of requests since the peer's last packet.
    asked: u16,
    asked_at: Time,
    /// Number of consecutive answers without progress, up to [`timers::MAX_FRUITLESS`].
    fruitless: u8,
    /// The latest time at which arrived bytes are acknowledged.
    credit_due: Time,
}

impl Stream {
    /// Creates a stream with `free` bytes of standing credit in each direction.
    fn new(config: &Config, free: u32, now: Time, deadline: Time, tag: u32) -> Self {
        // Both ends use the same value, or a receiver with a smaller one accepts what arrives up to the
        // stream's window.
        let free = config.whole_packets(free, u32::MAX);
        let free = u64::from(free.min(config.streams.window_bytes));
        Self {
            send: Sending::new(free, now),
            receive: Receiving::new(free, now),
            tag,
            deadline,
            started: tag != 0,
            last_received: now,
            asked: 0,
            asked_at: Time::ZERO,
            fruitless: 0,
            credit_due: Time::MAX,
        }
    }

    /// Records progress of the stream.
    const fn progress(&mut self) {
        self.fruitless = 0;
    }
}

/// The offset that is `value` modulo 2^32 and nearest to `near`; `None` if it would be negative.
fn expand(near: u64, value: u32) -> Option<u64> {
    let ahead = value.wrapping_sub(near as u32).cast_signed();
    near.checked_add_signed(i64::from(ahead))
}

impl Host {
    /// The slot of the stream with this local id.
    pub(super) fn find_stream(&self, peer: HostId, id: u64) -> Option<u32> {
        match self.rpcs.find(peer, id) {
            Known::Slot(slot) if self.stream(slot).is_some() => Some(slot),
            _ => None,
        }
    }

    fn stream(&self, slot: u32) -> Option<&Stream> {
        match &self.rpcs.get(slot).state {
            State::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    fn stream_mut(&mut self, slot: u32) -> Option<&mut Stream> {
        match &mut self.rpcs.get_mut(slot).state {
            State::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    pub(super) fn open_stream(&mut self, now: Time, open: Open) -> Result<(), Refused> {
        if open.id.is_response() {
            return Err(Refused::WrongId);
        }
        if self.rpcs.find(open.peer, open.id.0) != Known::No {
            return Err(Refused::DuplicateId);
        }
        let free = self.unscheduled_to(open.peer);
        let stream = Stream::new(&self.config, free, now, open.deadline, 0);
        let state = State::Stream(Box::new(stream));
        let slot = self.add_rpc(now, open.peer, open.id.0, false, state).ok_or(Refused::Busy)?;
        self.arm_stream_timer(slot, open.deadline);
        Ok(())
    }

    /// Accepts the first packet of a client.
    fn accept_stream(&mut self, now: Time, from: HostId, id: u64, left_us: u32) -> Option<u32> {
        let tick = self.tick(now);
        if let Some(peer) = self.peers.find(from)
            && id <= peer.floor
            && tick < peer.floor_until
        {
            self.send_reset(from, id, Reason::Unknown, 0);
            return None;
        }
        let deadline = match left_us {
            0 => Time::MAX,
            us => now.saturating_add(rackweave_core::Span::from_us(u64::from(us))),
        };
        // Two incarnations of a host never accept at the same nanosecond, and rarely at two that are equal
        // modulo 2^32.
        let tag = (now.as_ns() as u32).max(1);
        let free = self.unscheduled_to(from);
        let stream = Stream::new(&self.config, free, now, deadline, tag);
        let state = State::Stream(Box::new(stream));
        let slot = self.add_rpc(now, from, id, false, state);
        self.not_admitted += u64::from(slot.is_none());
        let slot = slot?;
        self.arm_stream_timer(slot, deadline);
        let id = MessageId(id ^ 1);
        self.events.push_back(Event::Stream(StreamEvent::Opened { peer: from, id }));
        Some(slot)
    }

    /// Handles STREAM, CREDIT, MISSING and RESET.
    pub(super) fn handle_stream(
        &mut self,
        now: Time,
        packet: &Packet<Header>,
        body: wire::Stream,
    ) -> Placement {
        let (from, id) = (packet.src, packet.header.local_id());
        let Some(slot) = self.stream_of(now, from, id, &body) else { return Placement::Discard };
        let Some(stream) = self.stream_mut(slot) else { return Placement::Discard };
        stream.last_received = now;
        if stream.asked > 0 {
            stream.asked = 0;
            stream.fruitless = (stream.fruitless + 1).min(timers::MAX_FRUITLESS);
        }
        let mut placement = Placement::Discard;
        match body {
            wire::Stream::Data { offset, len, written, credit, cutoff_version, flags, .. } => {
                self.handle_credit(now, slot, credit, flags);
                let piece = receive::Piece { offset, len, written, flags };
                if !packet.is_trimmed() {
                    placement = self.handle_piece(now, slot, piece);
                }
                let ours = self.config.cutoff_version;
                if len > 0 && ours != 0 && ours != cutoff_version {
                    self.send_cutoffs(now, slot);
                }
            }
            wire::Stream::Credit { credit, flags, .. } => {
                self.handle_credit(now, slot, credit, flags);
            }
            wire::Stream::Missing { offset, length, .. } => {
                self.handle_missing(now, slot, offset, length);
            }
            wire::Stream::Reset { reason, .. } => {
                self.handle_reset(now, slot, reason);
                return Placement::Discard;
            }
        }
        self.close_if_done(now, slot);
        placement
    }

    /// The stream that a packet belongs to, if it is from the current incarnation of both ends; otherwise sends
    /// a RESET.
    fn stream_of(&mut self, now: Time, from: HostId, id: u64, body: &wire::Stream) -> Option<u32> {
        let is_client = id & 1 == 0;
        // The tag is `None` in packets of a client that has not received any from its server.
        let (tag, is_reset) = match *body {
            wire::Stream::Data { flags, tag, .. } => {
                ((flags & flags::OPENING == 0).then_some(tag), false)
            }
            wire::Stream::Credit { tag, .. } | wire::Stream::Missing { tag, .. } => {
                (Some(tag), false)
            }
            wire::Stream::Reset { tag, .. } => (Some(tag), true),
        };
        let reply_tag = tag.unwrap_or(0);
        let refuse = |host: &mut Self, reason| {
            if !is_reset {
                host.send_reset(from, id, reason, reply_tag);
            }
            None
        };
        let slot = match self.rpcs.find(from, id) {
            Known::Slot(slot) => slot,
            Known::Finished => {
                let reason = self.rpcs.ended(from, id);
                // A closed stream does not answer acknowledgements.
                if let (Reason::Closed, wire::Stream::Credit { .. }) = (reason, body) {
                    return None;
                }
                return refuse(self, reason);
            }
            Known::No => {
                return match *body {
                    wire::Stream::Data { tag, flags, .. }
                        if !is_client && flags & flags::OPENING != 0 =>
                    {
                        self.accept_stream(now, from, id, tag)
                    }
                    _ => refuse(self, Reason::Unknown),
                };
            }
        };
        // If the id belongs to a message, the packet is forged.
        let stream = self.stream_mut(slot)?;
        let known = if is_client {
            match tag {
                Some(tag) if stream.tag == 0 && tag != 0 && !is_reset => {
                    stream.tag = tag;
                    true
                }
                // The server's first packet reports that it has ended the stream.
                Some(_) if stream.tag == 0 && is_reset => true,
                tag => tag == Some(stream.tag) && (stream.tag != 0 || is_reset),
            }
        } else {
            tag.is_none_or(|tag| tag == stream.tag || tag == 0 && is_reset)
        };
        if known { Some(slot) } else { refuse(self, Reason::Unknown) }
    }

    fn handle_reset(&mut self, now: Time, slot: u32, reason: Reason) {
        let Some(stream) = self.stream(slot) else { return };
        match reason {
            // The peer closes when it has received everything and knows that this end has, too: only its last
            // CREDIT was lost.
            Reason::Closed if stream.receive.has_ended() && stream.send.is_all_sent() => {
                self.all_acknowledged(slot);
                self.close_if_done(now, slot);
            }
            Reason::Closed | Reason::Unknown => {
                self.end_stream(now, slot, FailReason::PeerForgot);
            }
            Reason::Cancelled => self.end_stream(now, slot, FailReason::Cancelled),
            Reason::Deadline => self.end_stream(now, slot, FailReason::Deadline),
        }
    }

    /// Closes the stream if both directions have ended and are acknowledged.
    fn close_if_done(&mut self, now: Time, slot: u32) {
        let Some(stream) = self.stream(slot) else { return };
        if !stream.receive.has_ended() || !stream.send.is_all_acked() {
            return;
        }
        let acknowledged = stream.receive.has_acknowledged_end();
        let rpc = self.rpcs.get(slot);
        let (peer, id) = (rpc.host, rpc.id);
        if !acknowledged {
            let body = Body::Stream(self.credit(slot));
            self.send_control(peer, id, false, body);
        }
        self.remove_stream(now, slot, Reason::Closed);
        let id = MessageId(id & !1);
        self.events.push_back(Event::Stream(StreamEvent::Closed { peer, id }));
    }

    /// Cancels the stream for the application.
    pub(super) fn cancel_stream(&mut self, now: Time, slot: u32) {
        self.reset_peer(slot, Reason::Cancelled);
        self.remove_stream(now, slot, Reason::Cancelled);
        self.issue_grants(now);
    }

    /// Fails the stream at this host; a RESET notifies the peer.
    pub(super) fn fail_stream(&mut self, now: Time, slot: u32, reason: FailReason) {
        self.reset_peer(
            slot,
            match reason {
                FailReason::Deadline => Reason::Deadline,
                _ => Reason::Unknown,
            },
        );
        self.end_stream(now, slot, reason);
    }

    fn reset_peer(&mut self, slot: u32, reason: Reason) {
        let rpc = self.rpcs.get(slot);
        let (peer, id) = (rpc.host, rpc.id);
        if let Some(stream) = self.stream(slot)
            && stream.started
        {
            self.send_reset(peer, id, reason, stream.tag);
        }
    }

    fn send_reset(&mut self, peer: HostId, id: u64, reason: Reason, tag: u32) {
        let body = Body::Stream(wire::Stream::Reset { reason, tag });
        self.send_control(peer, id, false, body);
    }

    /// Reports to the application that the stream has failed, and discards it.
    fn end_stream(&mut self, now: Time, slot: u32, reason: FailReason) {
        let rpc = self.rpcs.get(slot);
        let (peer, id) = (rpc.host, MessageId(rpc.id & !1));
        self.remove_stream(
            now,
            slot,
            match reason {
                FailReason::Cancelled => Reason::Cancelled,
                FailReason::Deadline => Reason::Deadline,
                _ => Reason::Unknown,
            },
        );
        self.events.push_back(Event::Failed { peer, id, reason });
        self.issue_grants(now);
    }

    fn remove_stream(&mut self, now: Time, slot: u32, reason: Reason) {
        let rpc = self.rpcs.get(slot);
        let (host, id) = (rpc.host, rpc.id);
        self.remove_rpc(now, slot, Memory::Finished);
        self.rpcs.set_ended(host, id, reason);
    }

    /// Removes a stream from all queues.
    pub(super) fn leave_stream(&mut self, slot: u32) {
        self.queue.remove(slot);
        self.stream_timers.remove(slot);
        self.leave_grants(slot);
    }

    /// Queues a CREDIT, whose fields are determined when it is sent.
    fn queue_credit(&mut self, now: Time, slot: u32) {
        let rpc = self.rpcs.get_mut(slot);
        let (host, id) = (rpc.host, rpc.id);
        if let State::Stream(stream) = &mut rpc.state
            && !core::mem::replace(&mut stream.receive.incoming.grant_waits, true)
        {
            self.control.push_back(Control::Grant { slot, host, id, decided: now });
        }
    }

    /// Makes a queued CREDIT; `None` if it is obsolete.
    pub(super) fn credit_packet(&mut self, slot: u32) -> Option<Packet<Header>> {
        let rpc = self.rpcs.get_mut(slot);
        let (host, id) = (rpc.host, rpc.id);
        let State::Stream(stream) = &mut rpc.state else { return None };
        // Its content has been sent with data.
        if !core::mem::replace(&mut stream.receive.incoming.grant_waits, false) {
            return None;
        }
        let header =
            Header { id: Id64::new(id), one_way: false, body: Body::Stream(self.credit(slot)) };
        let priority = self.config.num_priorities - 1;
        Some(self.packet(host, self.config.streams.credit, priority, header))
    }

    /// The body of a CREDIT that is sent now.
    fn credit(&mut self, slot: u32) -> wire::Stream {
        let Some(stream) = self.stream_mut(slot) else {
            unreachable!("callers have found the stream");
        };
        stream.credit_due = Time::MAX;
        let (credit, flags) = stream.receive.advertise();
        wire::Stream::Credit { credit, flags, tag: stream.tag }
    }
}
