//! One connection: its two halves, opening and closing, and its segments.

use indexmap::IndexSet;
use rackweave_core::rng::mix;
use rackweave_core::{
    Ecn, FailReason, HostId, Kind, MessageId, Packet, Placement, Slice, Span, Time,
};
use rackweave_wire::Id64;
use rackweave_wire::tcp::{Body, Header, WINDOW_SHIFT, flags};
use rustc_hash::FxBuildHasher;

use super::config::Config;
use super::receiver::{Ack, Arrived, Receiver, position, wire_blocks, wire_sequence};
use super::sender::{Acked, Segment, Sender};
use super::stream::{Stream, is_stream};

/// The port on which servers listen. Clients use higher ports.
pub(super) const SERVER_PORT: u16 = 5001;
/// The lowest port of clients.
pub(super) const FIRST_CLIENT_PORT: u16 = 32_768;

/// Bytes of the SACK option besides its blocks, with the padding that hosts use.
const SACK_OPTION: u32 = 4;
const SACK_BLOCK: u32 = 8;

/// The end of a connection that this host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The end that opened the connection. It sends requests and one-way messages.
    Client,
    /// The other end, which sends responses.
    Server,
}

/// The state of a connection's opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// The SYN is to be sent. `retransmit` is set if it was sent before.
    Due { retransmit: bool },
    /// The SYN was sent at this time; `None` if it was retransmitted (Karn's algorithm).
    Sent(Option<Time>),
    /// There is no handshake and nothing was received yet: every segment can open the connection.
    Data,
    /// The peer has answered.
    Done,
}

/// The key of a connection at a host: the peer and both ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) peer: HostId,
    /// This host's port (high half) and the peer's, as in packets that this host sends.
    pub(super) ports: u32,
}

/// The result of an arriving segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The connection continues.
    Continue(Placement),
    /// The peer has ended the connection.
    Ended(FailReason),
    /// The segment is from an older connection: the peer must get a reset.
    Stale,
}

/// The result of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// The connection continues.
    Continue,
    /// The peer does not answer.
    Failed,
    /// The connection was unused for too long.
    Idle,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) key: Key,
    pub(super) role: Role,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Requests whose responses have not arrived completely (client) or have not been submitted (server).
    pub(super) exchanges: IndexSet<MessageId, FxBuildHasher>,
    /// The stream that the connection carries; `None` if it carries messages.
    pub(super) stream: Option<Box<Stream>>,
    /// Sequence number of the first byte that this host sends.
    send_start: u32,
    /// Sequence number of the first byte that the peer sends.
    pub(super) receive_start: u32,
    opening: Opening,
    /// Whether the answer to a SYN must be sent.
    syn_ack_due: bool,
    keepalive_due: bool,
    keepalives: u32,
    last_keepalive: Time,
    pub(super) last_received: Time,
    last_used: Time,
}

/// The initial sequence number of the stream that answers one with this initial sequence number. Both ends can
/// compute it, so that any segment of the first window can open the connection.
fn answering_start(start: u32) -> u32 {
    mix(u64::from(start)) as u32
}

impl Connection {
    /// Creates a connection that this host opens.
    pub(super) fn client(now: Time, own: HostId, key: Key, config: &Config) -> Self {
        // RFC 6528: the clock and a hash of both ends, so that a restarted host does not continue an old
        // connection by accident.
        let ends = u64::from(own.0) << 32 ^ u64::from(key.peer.0) << 16 ^ u64::from(key.ports);
        let start = config.initial_sequence.unwrap_or(mix(now.ticks() ^ mix(ends)) as u32);
        let opening =
            if config.handshake { Opening::Due { retransmit: false } } else { Opening::Data };
        Self::new(now, key, Role::Client, start, answering_start(start), opening, config)
    }

    /// Creates a connection that a peer has opened; `start` is its initial sequence number.
    pub(super) fn server(now: Time, key: Key, start: u32, config: &Config) -> Self {
        let own = answering_start(start);
        let mut connection = Self::new(now, key, Role::Server, own, start, Opening::Done, config);
        if is_stream(key) {
            connection.make_stream(Stream::new(None, Time::MAX));
        }
        connection
    }

    /// Makes the connection carry a stream instead of messages.
    pub(super) fn make_stream(&mut self, stream: Stream) {
        self.stream = Some(Box::new(stream));
        self.sender.keep_to_window();
    }

    fn new(
        now: Time,
        key: Key,
        role: Role,
        send_start: u32,
        receive_start: u32,
        opening: Opening,
        config: &Config,
    ) -> Self {
        Self {
            key,
            role,
            sender: Sender::new(config),
            receiver: Receiver::new(),
            exchanges: IndexSet::default(),
            stream: None,
            send_start,
            receive_start,
            opening,
            syn_ack_due: false,
            keepalive_due: false,
            keepalives: 0,
            last_keepalive: now,
            last_received: now,
            last_used: now,
        }
    }

    /// The initial sequence number of the peer's stream.
    pub(super) const fn peer_start(&self) -> u32 {
        self.receive_start
    }

    /// Whether there is nothing to send, and nothing is expected.
    pub(super) fn is_idle(&self) -> bool {
        self.sender.backlog() == 0 && self.exchanges.is_empty()
    }

    /// Whether an application waits for it.
    pub(super) fn is_in_use(&self) -> bool {
        self.stream.is_some() || !self.is_idle()
    }

    /// Whether the rest of cancelled messages is all that keeps the connection busy. Only the client can know that:
    /// requests may be on their way to the server, so that it never ends the connection for a response that it has
    /// cancelled.
    pub(super) fn is_abandoned(&self) -> bool {
        self.role == Role::Client
            && self.stream.is_none()
            && self.exchanges.is_empty()
            && self.sender.has_only_cancelled()
    }

    /// Appends a message to the stream.
    pub(super) fn submit(&mut self, now: Time, id: MessageId, len: u32, kind: Kind) {
        if self.is_idle() {
            // The peer's silence counts from here.
            self.last_received = now;
        }
        self.last_used = now;
        self.sender.push(id, len, kind);
    }

    /// Ends a request's exchange without a response: the request fails at the client.
    ///
    /// TCP signals only the end of a connection, which would fail the other messages on it too. Rackweave's choice: the
    /// notice takes the response's place in the stream, as `RST_STREAM` does in HTTP/2 (RFC 9113, 6.4).
    pub(super) fn abandon(&mut self, now: Time, request: MessageId) {
        if self.is_idle() {
            self.last_received = now;
        }
        self.last_used = now;
        self.sender.push_abandonment(request.response());
    }

    /// When [`Connection::handle_timeout`] must be called, unless a segment arrives before.
    pub(super) fn deadline(&self, config: &Config) -> Time {
        let halves = self.sender.deadline().min(self.receiver.deadline());
        let halves = self.stream.as_ref().map_or(halves, |stream| halves.min(stream.deadline));
        halves.min(self.keepalive_deadline(config))
    }

    /// When an idle connection must be probed or closed. The client closes first: it must not send on a
    /// connection that its peer has discarded.
    fn keepalive_deadline(&self, config: &Config) -> Time {
        let opening = matches!(self.opening, Opening::Due { .. } | Opening::Sent(_));
        if self.stream.is_some() {
            // A stream may be idle, or wait for the window to open, as long as its peer answers. Bytes in
            // flight have a timer of their own. A peer that has not answered yet may have no connection: without a
            // handshake the first data opens it, and a keep-alive before that would be answered by a reset.
            let asks = self.opening == Opening::Done && self.sender.flight() == 0;
            let since = self.last_received.max(self.last_keepalive);
            let at =
                since.saturating_add(Span::from_ticks(config.keepalive_interval.ticks().max(1)));
            return if asks { at } else { Time::MAX };
        }
        if opening || self.sender.backlog() > 0 {
            return Time::MAX;
        }
        let idle = config.idle_timeout;
        match self.role {
            Role::Server => self.last_received.saturating_add(idle).saturating_add(idle),
            Role::Client if self.exchanges.is_empty() => self.last_used.saturating_add(idle),
            Role::Client => {
                let since = self.last_received.max(self.last_keepalive);
                since.saturating_add(Span::from_ticks(config.keepalive_interval.ticks().max(1)))
            }
        }
    }

    /// Handles the deadline, if it has passed.
    pub(super) fn handle_timeout(&mut self, now: Time, config: &Config) -> Timeout {
        self.receiver.handle_timeout(now);
        if let Opening::Sent(_) = self.opening {
            if now >= self.sender.deadline() {
                if !self.sender.open_timed_out(config) {
                    return Timeout::Failed;
                }
                self.opening = Opening::Due { retransmit: true };
            }
            return Timeout::Continue;
        }
        if !self.sender.handle_timeout(now, config) {
            return Timeout::Failed;
        }
        if now < self.keepalive_deadline(config) {
            return Timeout::Continue;
        }
        let is_stream = self.stream.is_some();
        if self.exchanges.is_empty() && !is_stream {
            return Timeout::Idle;
        }
        if self.role == Role::Server && !is_stream || self.keepalives >= config.keepalive_probes {
            return Timeout::Failed;
        }
        self.keepalives += 1;
        self.last_keepalive = now;
        self.keepalive_due = true;
        Timeout::Continue
    }

    /// Handles a segment from the peer.
    pub(super) fn handle_segment(
        &mut self,
        now: Time,
        packet: &Packet<Header>,
        config: &Config,
    ) -> Verdict {
        let header = &packet.header;
        let has = |flag: u8| header.flags & flag != 0;
        if has(flags::RST) {
            return self.handle_reset(header, config);
        }
        if !has(flags::ACK) {
            return self.handle_opening(now, packet, config);
        }
        let una = self.sender.una();
        let distance = header.ack.wrapping_sub(wire_sequence(self.send_start, una));
        let ack = if u64::from(distance) <= self.sender.flight() {
            Some(una + u64::from(distance))
        } else if self.opening != Opening::Done {
            return Verdict::Stale;
        } else if distance.cast_signed() < 0 {
            None
        } else {
            // An acknowledgement of bytes that were never sent.
            return Verdict::Continue(Placement::Discard);
        };
        self.note_alive(now);
        let has_data = matches!(header.body, Body::Data { .. });
        if has(flags::FIN) && self.stream.is_none() && !has_data {
            let last = header.seq == wire_sequence(self.receive_start, self.receiver.nxt());
            let ended = last && self.role == Role::Server;
            return if ended {
                Verdict::Ended(FailReason::PeerForgot)
            } else {
                Verdict::Continue(Placement::Discard)
            };
        }
        if let Some(ack) = ack {
            self.handle_ack(now, ack, header, config);
        }
        self.handle_body(now, packet, config)
    }

    /// Handles a reset by RFC 5961, 3.2: only an exact sequence number counts, so that a guess does no harm. A reset
    /// whose sequence number is in the window is challenged by an acknowledgement: a peer that has no connection any more
    /// answers with a reset that is exact. So it gets through although segments before it were lost.
    fn handle_reset(&mut self, header: &Header, config: &Config) -> Verdict {
        let next = self.receiver.nxt();
        match position(self.receive_start, next, header.seq) {
            Some(at) if at == next => return Verdict::Ended(FailReason::PeerForgot),
            // Before the peer has answered it has no connection that it could end.
            Some(at)
                if (next..next + config.window_bytes()).contains(&at)
                    && self.opening == Opening::Done =>
            {
                self.receiver.acknowledge_now();
            }
            _ => {}
        }
        Verdict::Continue(Placement::Discard)
    }

    /// Handles a segment without an acknowledgement: the peer has received nothing on this connection. Its
    /// `ack` field holds the initial sequence number of its stream.
    fn handle_opening(&mut self, now: Time, packet: &Packet<Header>, config: &Config) -> Verdict {
        let syn = packet.header.flags & flags::SYN != 0;
        if !syn || self.role == Role::Client {
            return Verdict::Continue(Placement::Discard);
        }
        if packet.header.ack != self.receive_start {
            // RFC 5961, 4.2: an acknowledgement challenges it. A peer that has restarted answers with a valid
            // reset.
            self.receiver.acknowledge_now();
            return Verdict::Continue(Placement::Discard);
        }
        self.note_alive(now);
        if matches!(packet.header.body, Body::Ack { .. }) {
            self.syn_ack_due = true;
            self.receiver.acknowledge_now();
        }
        self.handle_body(now, packet, config)
    }

    fn note_alive(&mut self, now: Time) {
        self.last_received = now;
        self.last_used = now;
        self.keepalives = 0;
        match self.opening {
            Opening::Done => {}
            Opening::Sent(at) => {
                self.sender.opened(at.map(|at| now.since(at)));
                self.opening = Opening::Done;
            }
            Opening::Data | Opening::Due { .. } => self.opening = Opening::Done,
        }
    }

    fn handle_ack(&mut self, now: Time, ack: u64, header: &Header, config: &Config) {
        let mut blocks = [(0, 0); 3];
        let mut count = 0;
        let mut duplicate = None;
        let pure = match header.body {
            Body::Data { .. } => false,
            Body::Ack { count: reported, sack } => {
                let reported = &sack[..usize::from(reported).min(sack.len())];
                let at = |sequence| position(self.send_start, ack, sequence);
                let ranges = reported.iter().filter_map(|&(from, to)| at(from).zip(at(to)));
                for (index, (from, to)) in ranges.enumerate() {
                    // RFC 2883: the first block is below `ack`, or within the second block.
                    if index == 0 && from < to && to <= ack {
                        duplicate = Some((from, to));
                    } else if ack <= from && from < to && to <= self.sender.nxt() {
                        if index == 1 && count == 1 && blocks[0].0 >= from && blocks[0].1 <= to {
                            duplicate = Some(blocks[0]);
                        }
                        blocks[count] = (from, to);
                        count += 1;
                    }
                }
                true
            }
        };
        let acked = Acked {
            ack,
            sacked: &blocks[..count],
            pure,
            duplicate,
            ece: header.flags & flags::ECE != 0 && config.data_is_ecn_capable(),
            window: u64::from(header.window) << WINDOW_SHIFT,
        };
        self.sender.handle_ack(now, &acked, config);
    }

    fn handle_body(&mut self, now: Time, packet: &Packet<Header>, config: &Config) -> Verdict {
        let header = &packet.header;
        let Body::Data { message_length, kind, .. } = header.body else {
            // A keep-alive: one byte before the next (RFC 9293, 3.8.4).
            let next = wire_sequence(self.receive_start, self.receiver.nxt());
            if header.seq == next.wrapping_sub(1) && header.flags & flags::SYN == 0 {
                self.receiver.acknowledge_now();
            }
            return Verdict::Continue(Placement::Discard);
        };
        if self.stream.is_some() {
            return self.handle_stream(now, packet, config);
        }
        let Some(slice) = packet.payload() else { return Verdict::Continue(Placement::Discard) };
        let fits = match self.role {
            Role::Server => kind != Kind::Response,
            Role::Client => kind == Kind::Response,
        } && slice.message.is_response() == (kind == Kind::Response);
        let at = position(self.receive_start, self.receiver.nxt(), header.seq);
        let (true, Some(position)) = (fits, at) else {
            return Verdict::Continue(Placement::Discard);
        };
        // FIN takes a position, as in a stream, and ends the response before its first byte.
        let abandoned = header.flags & flags::FIN != 0;
        if abandoned && (kind != Kind::Response || slice.len != 0 || message_length != 0) {
            return Verdict::Continue(Placement::Discard);
        }
        let nothing = u32::from(abandoned);
        let arrived = Arrived {
            position,
            slice: Slice { len: slice.len + nothing, ..slice },
            message_length: message_length + nothing,
            kind,
            abandoned,
            marked: packet.ecn() == Ecn::Marked,
            cwr: header.flags & flags::CWR != 0,
        };
        // A cancelled response still occupies its place in the stream.
        let exchanges = &self.exchanges;
        let wanted = |id: MessageId| !id.is_response() || exchanges.contains(&MessageId(id.0 & !1));
        Verdict::Continue(self.receiver.handle_data(now, &arrived, wanted, config))
    }

    /// Whether this message, or direction of a stream, is arriving here.
    pub(super) fn is_arriving(&self, id: MessageId) -> bool {
        match &self.stream {
            Some(stream) => {
                let receives = id.is_response() == (self.role == Role::Client);
                receives && stream.id == Some(MessageId(id.0 & !1))
            }
            None => self.receiver.is_arriving(id),
        }
    }

    /// Whether a segment without data must be sent.
    pub(super) fn control_due(&self) -> bool {
        self.receiver.ack_due() || self.keepalive_due || matches!(self.opening, Opening::Due { .. })
    }

    /// Whether the state of the opening permits data.
    const fn is_open(&self) -> bool {
        matches!(self.opening, Opening::Done | Opening::Data)
    }

    /// Whether a segment with data may be sent.
    pub(super) fn data_ready(&mut self, config: &Config) -> bool {
        self.is_open() && self.sender.is_ready(config)
    }

    /// Takes the next segment without data, if one is due.
    pub(super) fn take_control(&mut self, now: Time, config: &Config) -> Option<Header> {
        if let Opening::Due { retransmit } = self.opening {
            self.opening = Opening::Sent((!retransmit).then_some(now));
            self.sender.arm_open(now, config);
            let seq = self.send_start.wrapping_sub(1);
            return Some(Header { seq, ack: self.send_start, ..self.bare(flags::SYN, config) });
        }
        if let Some(ack) = self.receiver.take_ack() {
            return Some(self.acknowledgement(ack, config));
        }
        if core::mem::take(&mut self.keepalive_due) {
            let header = self.bare(flags::ACK, config);
            return Some(Header { seq: header.seq.wrapping_sub(1), ..header });
        }
        None
    }

    /// The last segment of a connection that this end closes.
    pub(super) fn fin_header(&mut self, config: &Config) -> Header {
        self.bare(flags::FIN | flags::ACK, config)
    }

    /// A reset, which ends the connection at the peer at once.
    pub(super) fn reset_header(&self) -> Header {
        let seq = wire_sequence(self.send_start, self.sender.nxt());
        let body = Body::Ack { count: 0, sack: [(0, 0); 3] };
        Header { seq, ack: 0, window: 0, flags: flags::RST, body }
    }

    /// The last acknowledgement of a stream that has closed.
    pub(super) fn last_header(&self) -> Header {
        let seq = wire_sequence(self.send_start, self.sender.nxt());
        let ack = wire_sequence(self.receive_start, self.receiver.nxt());
        let body = Body::Ack { count: 0, sack: [(0, 0); 3] };
        Header { seq, ack, window: 0, flags: flags::ACK, body }
    }

    fn bare(&mut self, flags: u8, config: &Config) -> Header {
        let next = self.receiver.nxt();
        let mut window = config.window_bytes() >> WINDOW_SHIFT;
        if let Some(stream) = &mut self.stream {
            window = stream.window(next, config) >> WINDOW_SHIFT;
            stream.advertised(next + (window << WINDOW_SHIFT));
        }
        Header {
            seq: wire_sequence(self.send_start, self.sender.nxt()),
            ack: wire_sequence(self.receive_start, next),
            window: window as u16,
            flags,
            body: Body::Ack { count: 0, sack: [(0, 0); 3] },
        }
    }

    fn acknowledgement(&mut self, ack: Ack, config: &Config) -> Header {
        let mut header = self.bare(flags::ACK, config);
        header.ack = wire_sequence(self.receive_start, ack.ack);
        if ack.ece {
            header.flags |= flags::ECE;
        }
        if core::mem::take(&mut self.syn_ack_due) {
            header.flags |= flags::SYN;
            header.seq = self.send_start.wrapping_sub(1);
        } else if ack.with_sack && config.sack {
            let (blocks, count) = self.receiver.take_sack();
            let sack = wire_blocks(blocks, self.receive_start);
            header.body = Body::Ack { count: count as u8, sack };
        }
        header
    }

    /// Takes the next segment with data, if the window permits one, and whether its bytes are new.
    pub(super) fn take_data(&mut self, now: Time, config: &Config) -> Option<(Header, bool)> {
        // The host's list may still hold this slot for an earlier connection.
        if !self.is_open() {
            return None;
        }
        let before = self.sender.nxt();
        let segment = self.sender.take_segment(now, config)?;
        let is_new = self.sender.nxt() > before;
        let header = self.segment_header(now, segment, is_new, config)?;
        Some((header, is_new))
    }

    /// The header of a segment with data.
    fn segment_header(
        &mut self,
        now: Time,
        segment: Segment,
        is_new: bool,
        config: &Config,
    ) -> Option<Header> {
        let message = *self.sender.message_at(segment.position)?;
        if let Some(stream) = &self.stream {
            let is_fin = stream.fin == Some(segment.position);
            let body = Body::Data {
                message: Id64::new(message.id.0),
                message_length: 0,
                offset: segment.position as u32,
                len: if is_fin { 0 } else { segment.len as u16 },
                kind: message.kind,
            };
            let mut header = self.data_header(now, segment, is_new, is_fin, body, config);
            if is_fin {
                header.flags |= flags::FIN;
            }
            return Some(header);
        }
        let offset = segment.position - message.start;
        let has_bytes = !message.abandoned;
        let body = Body::Data {
            message: Id64::new(message.id.0),
            message_length: if has_bytes { message.len } else { 0 },
            offset: offset as u32,
            len: if has_bytes { segment.len as u16 } else { 0 },
            kind: message.kind,
        };
        self.last_used = now;
        let whole = offset + segment.len == u64::from(message.len);
        let mut header = self.data_header(now, segment, is_new, whole, body, config);
        if message.abandoned {
            header.flags |= flags::FIN;
        }
        Some(header)
    }

    fn data_header(
        &mut self,
        now: Time,
        segment: Segment,
        is_new: bool,
        whole: bool,
        body: Body,
        config: &Config,
    ) -> Header {
        let mut header = self.bare(0, config);
        header.seq = wire_sequence(self.send_start, segment.position);
        header.body = body;
        if whole {
            header.flags |= flags::PSH;
        }
        if is_new && self.sender.take_cwr(config) {
            header.flags |= flags::CWR;
        }
        if self.opening == Opening::Data {
            // As in a SYN, the acknowledgement number has no meaning. Here it holds the initial sequence
            // number, since any segment of the first window may be the first to arrive.
            header.flags |= flags::SYN;
            header.ack = self.send_start;
        } else {
            let ack = self.receiver.take_piggyback(now, config);
            header.flags |= flags::ACK;
            if ack.ece {
                header.flags |= flags::ECE;
            }
        }
        header
    }
}

/// Size of a packet from the IP header on.
pub(super) fn l3_bytes(header: &Header, config: &Config) -> u32 {
    config.header_bytes
        + match header.body {
            Body::Data { len, .. } => u32::from(len),
            Body::Ack { count: 0, .. } => 0,
            Body::Ack { count, .. } => SACK_OPTION + SACK_BLOCK * u32::from(count),
        }
}
