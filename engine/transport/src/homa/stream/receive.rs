//! The receiving half of a stream.

use rackweave_core::{Assembler, Event, HostId, MessageId, Placement, Slice, StreamEvent, Time};
use rackweave_wire::homa::Body;
use rackweave_wire::homa::stream::{self as wire, Credit, UNSCHEDULED, flags};

use super::super::Config;
use super::super::grants::Key;
use super::super::rpc::{Incoming, State};
use super::{Host, expand};

/// Offsets relative to [`Receiving::base`] are rebased when the received prefix exceeds this.
const REBASE_AT: u32 = 1 << 30;

/// The receiving half of a stream.
#[derive(Clone, Debug)]
pub(in crate::homa) struct Receiving {
    /// The received and granted bytes, as of a message that starts at `base`. Its length is what has been written.
    pub(in crate::homa) incoming: Incoming,
    /// The offset to which `incoming` is relative: a multiple of a full packet that follows the received
    /// prefix, so that 32-bit offsets suffice.
    base: u64,
    /// Number of bytes that the application has consumed.
    consumed: u64,
    /// Offset up to which standing credit permits the peer to send.
    standing: u64,
    /// Offset at which the direction ends; `None` until the peer has announced it.
    end: Option<u64>,
    /// Whether the application knows that the direction has ended.
    ended: bool,
    /// The offset that the last CREDIT to the peer allowed.
    advertised_credit: u64,
    advertised_received: u64,
    advertised_end: bool,
    /// When the last new byte arrived, or was allowed while none was in flight.
    pub(super) moved_at: Time,
}

/// The fields of a STREAM packet that concern the direction of its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) offset: u32,
    pub(super) len: u16,
    pub(super) written: u32,
    pub(super) flags: u8,
}

impl Receiving {
    pub(super) fn new(free: u64, now: Time) -> Self {
        let incoming = Incoming {
            length: 0,
            limit: 0,
            granted: 0,
            left: 0,
            priority: 0,
            grant_waits: false,
            counts: true,
            asked: 0,
            asked_to: 0,
            ask_until: 0,
            asked_at: 0,
            received: Assembler::default(),
        };
        Self {
            incoming,
            base: 0,
            consumed: 0,
            standing: free,
            end: None,
            ended: false,
            advertised_credit: free,
            advertised_received: 0,
            advertised_end: false,
            moved_at: now,
        }
    }

    /// The offset below which all bytes have arrived.
    fn received(&self) -> u64 {
        self.base + u64::from(self.incoming.received.prefix())
    }

    fn written(&self) -> u64 {
        self.base + u64::from(self.incoming.length)
    }

    /// The offset below which the peer may send.
    fn allowed(&self) -> u64 {
        self.standing.max(self.base + u64::from(self.incoming.granted))
    }

    /// The offset at which flow control stops the peer.
    fn limit(&self, config: &Config) -> u64 {
        let limit = self.consumed + u64::from(config.streams.window_bytes);
        // Whole packets, so that an application that reads single bytes does not make the peer send packets of
        // one byte (RFC 1122 section 4.2.3.3, TCP's silly window).
        let packet = u64::from(config.max_payload);
        if config.streams.window_bytes < config.max_payload {
            limit
        } else {
            limit - limit % packet
        }
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the end of the direction was acknowledged. That is repeated only if the peer asks.
    pub(super) const fn has_acknowledged_end(&self) -> bool {
        self.advertised_end
    }

    /// The credit and acknowledgement for the next packet to the peer, which are recorded as sent.
    pub(super) fn advertise(&mut self) -> (Credit, u8) {
        let (allowed, received) = (self.allowed(), self.received());
        self.advertised_credit = allowed;
        self.advertised_received = received;
        self.advertised_end = self.ended;
        let priority = if allowed > self.standing { self.incoming.priority } else { UNSCHEDULED };
        let credit = Credit { allowed: allowed as u32, received: received as u32, priority };
        (credit, if self.ended { flags::END_RECEIVED } else { 0 })
    }

    /// Records that the peer has written bytes up to offset `written`.
    fn grow(&mut self, written: u64) {
        let more = written.saturating_sub(self.written()) as u32;
        self.incoming.length += more;
        self.incoming.left += more;
    }

    /// Updates credit and limits to what has arrived, been written and been consumed. `free` is the number of
    /// bytes that the peer may send without grants.
    fn update_credit(&mut self, config: &Config, free: u32) {
        let arrived = self.incoming.received.prefix();
        if arrived > REBASE_AT {
            let by = arrived - arrived % config.max_payload;
            let incoming = &mut self.incoming;
            incoming.received.rebase(by);
            incoming.length -= by;
            incoming.granted = incoming.granted.saturating_sub(by);
            self.base += u64::from(by);
        }
        let limit = self.limit(config);
        // Standing credit is given once everything that was written is allowed, not when it has arrived, so
        // that a stream of short writes has a round trip's worth of credit at all times. One packet is added
        // because CREDIT is sent for every second packet.
        let may_come = self.incoming.left == 0 || self.allowed() >= self.written();
        if may_come && self.end.is_none() {
            let wanted = free.saturating_add(config.max_payload).min(config.streams.window_bytes);
            let from_base = self.incoming.received.prefix().saturating_add(wanted);
            let standing = self.base + u64::from(config.whole_packets(from_base, u32::MAX));
            self.standing = self.standing.max(standing.min(limit));
        }
        let incoming = &mut self.incoming;
        let base = self.base;
        let relative = |offset: u64| offset.saturating_sub(base).min(u64::from(incoming.length));
        let (free, most) = (relative(self.standing) as u32, relative(limit) as u32);
        incoming.granted = incoming.granted.max(free);
        incoming.limit = incoming.granted.max(most);
    }
}

impl Host {
    /// Applies a change to the receiving half of a stream, and updates the host's grants and granted bytes.
    fn change_receiving(&mut self, slot: u32, change: impl FnOnce(&mut Receiving)) {
        let rpc = self.rpcs.get(slot);
        let (birth, peer) = (rpc.birth, rpc.peer);
        let free = self.unscheduled_of(Some(peer));
        let config = &self.config;
        let rpc = self.rpcs.get_mut(slot);
        let State::Stream(stream) = &mut rpc.state else { return };
        let receive = &mut stream.receive;
        let old = Key { left: receive.incoming.left, birth, slot };
        let (before, was_grantable) =
            (receive.incoming.in_flight(), receive.incoming.is_grantable());
        change(receive);
        receive.update_credit(config, free);
        let (after, is_grantable) = (receive.incoming.in_flight(), receive.incoming.is_grantable());
        self.grants.incoming = self.grants.incoming + u64::from(after) - u64::from(before);
        if !was_grantable && !is_grantable {
            return;
        }
        let list = &mut self.peers.get_mut(peer).grantable;
        let Some(incoming) = self.rpcs.get(slot).incoming() else { return };
        match (was_grantable, is_grantable) {
            (true, true) => self.grants.changed(config, &self.rpcs, list, old, incoming),
            (true, false) => self.grants.remove(&self.rpcs, list, old),
            _ => self.grants.add(config, &self.rpcs, list, slot, incoming),
        }
    }

    /// Removes a stream from the grants.
    pub(super) fn leave_grants(&mut self, slot: u32) {
        let rpc = self.rpcs.get(slot);
        let Some(incoming) = rpc.incoming() else { return };
        self.grants.incoming -= u64::from(incoming.in_flight());
        if incoming.is_grantable() {
            let key = Key { left: incoming.left, birth: rpc.birth, slot };
            let list = &mut self.peers.get_mut(rpc.peer).grantable;
            self.grants.remove(&self.rpcs, list, key);
        }
    }

    /// Handles a STREAM packet: its data, and what the peer has written.
    pub(super) fn handle_piece(&mut self, now: Time, slot: u32, piece: Piece) -> Placement {
        let rpc = self.rpcs.get(slot);
        let (peer, id) = (rpc.host, MessageId(rpc.id ^ 1));
        let Some(stream) = self.stream(slot) else { return Placement::Discard };
        let receive = &stream.receive;
        let (received, idle) = (receive.received(), receive.incoming.in_flight() == 0);
        let asks = piece.flags & flags::ASK != 0;
        let len = u64::from(piece.len);
        let read = (|| {
            let start = expand(received, piece.offset)?;
            let written = expand(received, piece.written)?.max(start + len);
            let is_end = piece.flags & flags::END != 0;
            // Nothing is written after the end, and the end is not before what was written.
            let possible = match receive.end {
                Some(end) => written <= end,
                None => !is_end || written >= receive.written(),
            };
            possible.then_some((start, written, is_end))
        })();
        let Some((start, written, is_end)) = read else { return Placement::Discard };
        let fits = start + len <= receive.limit(&self.config);
        let max_gaps = usize::from(self.config.max_gaps);
        let mut fresh = 0;
        self.change_receiving(slot, |receive| {
            receive.grow(written);
            if is_end {
                receive.end = Some(written);
            }
            let base = receive.base;
            // The bytes of a packet that starts before the base have arrived earlier.
            if fits && start >= base {
                let (from, to) = ((start - base) as u32, (start + len - base) as u32);
                let incoming = &mut receive.incoming;
                fresh = incoming.received.insert(from..to, max_gaps).unwrap_or(0);
                incoming.left -= fresh;
            }
        });
        let Some(stream) = self.stream_mut(slot) else { return Placement::Discard };
        let receive = &mut stream.receive;
        let bytes = receive.received() - received;
        let end = !receive.ended && receive.end == Some(receive.received());
        receive.ended |= end;
        if fresh > 0 || idle {
            receive.moved_at = now;
        }
        if fresh > 0 || end {
            stream.progress();
        }
        if bytes > 0 || end {
            self.events.push_back(Event::Stream(StreamEvent::Readable { peer, id, bytes, end }));
        }
        self.issue_grants(now);
        if asks {
            self.queue_credit(now, slot);
            self.ask_if_late(now, slot, idle);
        }
        self.acknowledge(now, slot, len > 0 && fresh == 0);
        if fresh == 0 {
            return Placement::Discard;
        }
        Placement::Store(Slice { message: id, offset: piece.offset, len: u32::from(piece.len) })
    }

    /// Sends CREDIT with the current credit and acknowledgement: at once if the peer may be waiting for credit
    /// or has sent two packets, otherwise within a tick (as TCP: RFC 9293 section 3.8.6.3). `repeat` is set if
    /// the peer has missed the last CREDIT.
    fn acknowledge(&mut self, now: Time, slot: u32, repeat: bool) {
        let due = now.saturating_add(self.config.tick);
        let two_packets = 2 * u64::from(self.config.max_payload);
        let Some(stream) = self.stream_mut(slot) else { return };
        let receive = &stream.receive;
        let (allowed, received) = (receive.allowed(), receive.received());
        let more = allowed - receive.advertised_credit;
        if receive.incoming.grant_waits {
            return;
        }
        let at_once = more >= two_packets
            || more > 0 && receive.advertised_credit <= received
            || received - receive.advertised_received >= two_packets;
        if at_once {
            return self.queue_credit(now, slot);
        }
        let news = more > 0
            || received > receive.advertised_received
            || receive.ended && !receive.advertised_end;
        if news || repeat {
            stream.credit_due = stream.credit_due.min(due);
        }
        self.rearm_stream_timer(now, slot);
    }

    /// Requests missing bytes when the peer asks whether they have arrived; for messages see
    /// [`Config::need_ack_resends`]. `idle` is set if no bytes were known to be in flight before the packet,
    /// which the sender sends when its bytes are not acknowledged in time.
    fn ask_if_late(&mut self, now: Time, slot: u32, idle: bool) {
        let patience = self.ticks(u32::from(self.config.resend_ticks));
        let Some(stream) = self.stream(slot) else { return };
        if idle || self.config.need_ack_resends || now.since(stream.receive.moved_at) >= patience {
            self.send_missing(slot);
        }
    }

    /// Requests the bytes that are allowed and have not arrived.
    pub(super) fn send_missing(&mut self, slot: u32) {
        let most = if self.config.resend_all_gaps { usize::MAX } else { 1 };
        let rpc = self.rpcs.get(slot);
        let (host, id) = (rpc.host, rpc.id);
        let Some(stream) = self.stream(slot) else { return };
        let (tag, base, incoming) = (stream.tag, stream.receive.base, &stream.receive.incoming);
        let gaps: Vec<_> = incoming.received.gaps(incoming.granted).take(most).collect();
        for gap in gaps {
            let (offset, length) = ((base + u64::from(gap.start)) as u32, gap.end - gap.start);
            let body = Body::Stream(wire::Stream::Missing { offset, length, tag });
            self.send_control(host, id, false, body);
        }
    }

    /// Records that the application has consumed `bytes` of the stream with this local id.
    pub(in crate::homa) fn consume_stream(&mut self, now: Time, peer: HostId, id: u64, bytes: u64) {
        let Some(slot) = self.find_stream(peer, id) else { return };
        if bytes == 0 {
            // A client that has received no packet from its server has no tag for a CREDIT.
            return;
        }
        self.change_receiving(slot, |receive| {
            receive.consumed = receive.consumed.saturating_add(bytes).min(receive.received());
        });
        self.issue_grants(now);
        self.acknowledge(now, slot, false);
    }
}
