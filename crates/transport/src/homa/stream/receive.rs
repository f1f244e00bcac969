//! The half of a stream that this host reads.

use rackweave_core::{Assembler, Event, HostId, MessageId, Placement, Slice, StreamEvent, Time};
use rackweave_wire::homa::Body;
use rackweave_wire::homa::stream::{self as wire, Credit, UNSCHEDULED, flags};

use super::super::Config;
use super::super::grants::Key;
use super::super::rpc::{Incoming, State};
use super::{Host, expand};

/// Offsets relative to [`Receiving::base`] stay below this and what may be ahead of it.
const REBASE_AT: u32 = 1 << 30;

/// The half of a stream that this host reads.
#[derive(Clone, Debug)]
pub(in crate::homa) struct Receiving {
    /// What has arrived and what is granted, as of a message that begins at `base`: its length is
    /// what has been written, and the grants are those of messages.
    pub(in crate::homa) incoming: Incoming,
    /// A multiple of a full packet; it follows what has arrived, so that 32 bits suffice from it.
    base: u64,
    /// The application has consumed the bytes before this one.
    consumed: u64,
    /// Standing credit reaches to here.
    standing: u64,
    /// Where the direction ends, once the peer has announced it.
    end: Option<u64>,
    /// The application knows that the direction has ended.
    ended: bool,
    /// What the last CREDIT to the peer contained.
    advertised_credit: u64,
    advertised_received: u64,
    advertised_end: bool,
    /// When something new last arrived or was allowed while nothing was on the way.
    pub(super) moved_at: Time,
}

/// The fields of a STREAM packet about the direction whose data it carries.
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

    /// All bytes before this one have arrived.
    fn received(&self) -> u64 {
        self.base + u64::from(self.incoming.received.prefix())
    }

    fn written(&self) -> u64 {
        self.base + u64::from(self.incoming.length)
    }

    /// The peer may send all bytes before this one.
    fn allowed(&self) -> u64 {
        self.standing.max(self.base + u64::from(self.incoming.granted))
    }

    /// Flow control: the peer may send no byte from this one on.
    fn limit(&self, config: &Config) -> u64 {
        let limit = self.consumed + u64::from(config.streams.window_bytes);
        // Whole packets, so that an application that reads byte by byte makes the peer send no
        // packets of one byte (RFC 1122 section 4.2.3.3, TCP's silly window).
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

    /// Whether the complete reception was acknowledged; it is repeated only if the peer asks.
    pub(super) const fn has_acknowledged_end(&self) -> bool {
        self.advertised_end
    }

    /// The credit and the acknowledgement for the next packet to the peer, which are recorded as sent.
    pub(super) fn advertise(&mut self) -> (Credit, u8) {
        let (allowed, received) = (self.allowed(), self.received());
        self.advertised_credit = allowed;
        self.advertised_received = received;
        self.advertised_end = self.ended;
        let priority = if allowed > self.standing { self.incoming.priority } else { UNSCHEDULED };
        let credit = Credit { allowed: allowed as u32, received: received as u32, priority };
        (credit, if self.ended { flags::END_RECEIVED } else { 0 })
    }

    /// The peer has written up to `written`.
    fn grow(&mut self, written: u64) {
        let more = written.saturating_sub(self.written()) as u32;
        self.incoming.length += more;
        self.incoming.left += more;
    }

    /// Makes credit and limits follow what has arrived, been written and been consumed. `free`: bytes
    /// that the peer may send without grants.
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
        // As soon as all that was written may come, not when it is here: a stream of short writes, of
        // which some are always on the way, has a round trip's worth of credit all the time. A packet
        // more, because CREDIT is sent for every second one.
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
    /// Changes what a stream receives, and what depends on it at the host: grants, and the bytes
    /// that are on the way.
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

    /// Takes a stream out of the grants.
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

    /// Handles a STREAM packet: data, and what the peer has written.
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
            // A packet that begins before the base has come late: its bytes are known.
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

    /// Sends CREDIT with what the peer may send and what has arrived: at once when it may be waiting for that,
    /// and for every second packet, else within a tick (as TCP: RFC 9293 section 3.8.6.3). `repeat`: the
    /// peer has missed the last one.
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
        self.wake_stream_for(now, slot);
    }

    /// Asks for what is missing on the peer's question whether it has arrived, as for messages: see
    /// [`Config::need_ack_resends`]. `idle`: nothing was known to be on the way before the question,
    /// which its sender asks when what it has sent is late.
    fn ask_if_late(&mut self, now: Time, slot: u32, idle: bool) {
        let patience = self.ticks(u32::from(self.config.resend_ticks));
        let Some(stream) = self.stream(slot) else { return };
        if idle || self.config.need_ack_resends || now.since(stream.receive.moved_at) >= patience {
            self.send_missing(slot);
        }
    }

    /// Asks for the bytes that are allowed and not here.
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

    /// The application has taken `bytes` of the stream with this local id.
    pub(in crate::homa) fn consume_stream(&mut self, now: Time, peer: HostId, id: u64, bytes: u64) {
        let Some(slot) = self.find_stream(peer, id) else { return };
        if bytes == 0 {
            // A client without a packet from its server has no tag for a CREDIT.
            return;
        }
        self.change_receiving(slot, |receive| {
            receive.consumed = receive.consumed.saturating_add(bytes).min(receive.received());
        });
        self.issue_grants(now);
        self.acknowledge(now, slot, false);
    }
}
