//! One connection: its two halves, how it opens and ends, and its segments.

use rackweave_core::rng::mix;
use rackweave_core::{
    Ecn, FailReason, HostId, Kind, MessageId, Packet, Placement, Slice, Span, Time,
};
use rackweave_wire::Id64;
use rackweave_wire::tcp::{Body, Header, WINDOW_SHIFT, flags};

use super::config::Config;
use super::receiver::{Ack, Arrived, Receiver, position, wire_blocks, wire_sequence};
use super::sender::{Acked, Segment, Sender};
use super::stream::{Stream, is_stream};

/// The port that servers listen on. Clients' ports are above it.
pub(super) const SERVER_PORT: u16 = 5001;
/// Where clients' ports begin.
pub(super) const FIRST_CLIENT_PORT: u16 = 32_768;

/// Bytes of the SACK option besides its blocks, padded as hosts do.
const SACK_OPTION: u32 = 4;
const SACK_BLOCK: u32 = 8;

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It opened the connection: it sends requests and one-way messages.
    Client,
    /// It sends responses.
    Server,
}

/// The state of a connection's opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// The SYN is to be sent, for the first time or again.
    Due { again: bool },
    /// The SYN is under way since then (`None` if it was sent again: Karn).
    Sent(Option<Time>),
    /// No handshake, and nothing received yet: every segment can open the connection.
    Data,
    /// The peer has answered.
    Done,
}

/// The key of a connection at a host: the peer and both ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) peer: HostId,
    /// Own port (high half) and the peer's: as the host's own packets have them.
    pub(super) ports: u32,
}

/// The result of an arriving segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The connection goes on.
    Continue(Placement),
    /// The peer has ended the connection.
    Ended(FailReason),
    /// The segment is of an older connection: the peer is to get a reset.
    Stale,
}

/// The result of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// The connection goes on.
    Continue,
    /// The peer does not answer.
    Failed,
    /// It had nothing to do for long.
    Idle,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) key: Key,
    pub(super) role: Role,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Requests whose responses are still to come whole (client) or to be submitted (server).
    pub(super) exchanges: Vec<MessageId>,
    /// What it carries instead of messages.
    pub(super) stream: Option<Box<Stream>>,
    /// Sequence numbers of the two streams' first bytes.
    send_start: u32,
    pub(super) receive_start: u32,
    opening: Opening,
    /// The answer to a SYN is due.
    syn_ack_due: bool,
    keepalive_due: bool,
    keepalives: u32,
    last_keepalive: Time,
    pub(super) last_received: Time,
    last_used: Time,
}

/// The first sequence number of the stream that answers one that starts here. Both ends know it,
/// so that any segment of the first window can open the connection.
fn answering_start(start: u32) -> u32 {
    mix(u64::from(start)) as u32
}

impl Connection {
    /// A connection that this host opens.
    pub(super) fn client(now: Time, own: HostId, key: Key, config: &Config) -> Self {
        // RFC 6528: the clock and a hash of the ends, so that a restarted host does not continue
        // an old connection by accident.
        let ends = u64::from(own.0) << 32 ^ u64::from(key.peer.0) << 16 ^ u64::from(key.ports);
        let start = config.initial_sequence.unwrap_or(mix(now.0 ^ mix(ends)) as u32);
        let opening = if config.handshake { Opening::Due { again: false } } else { Opening::Data };
        Self::new(now, key, Role::Client, start, answering_start(start), opening, config)
    }

    /// A connection that a peer opened with a stream that starts here.
    pub(super) fn server(now: Time, key: Key, start: u32, config: &Config) -> Self {
        let own = answering_start(start);
        let mut connection = Self::new(now, key, Role::Server, own, start, Opening::Done, config);
        if is_stream(key) {
            connection.make_stream(Stream::new(None, Time::MAX));
        }
        connection
    }

    /// The connection is a stream's.
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
            exchanges: Vec::new(),
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

    /// The sequence number at which the peer's stream starts.
    pub(super) const fn peer_start(&self) -> u32 {
        self.receive_start
    }

    /// Nothing waits, and nothing is awaited.
    pub(super) fn is_idle(&self) -> bool {
        self.sender.backlog() == 0 && self.exchanges.is_empty()
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
    /// TCP knows only the end of a connection, which would fail the other messages on it too. The choice is ours:
    /// the notice takes the response's place in the stream, as `RST_STREAM` does in HTTP/2 (RFC 9113, 6.4).
    pub(super) fn abandon(&mut self, now: Time, request: MessageId) {
        if self.is_idle() {
            self.last_received = now;
        }
        self.last_used = now;
        self.sender.push_abandonment(request.response());
    }

    /// When [`Connection::handle_timeout`] is to be called, if nothing happens before.
    pub(super) fn deadline(&self, config: &Config) -> Time {
        let halves = self.sender.deadline().min(self.receiver.deadline());
        let halves = self.stream.as_ref().map_or(halves, |stream| halves.min(stream.deadline));
        halves.min(self.keepalive_deadline(config))
    }

    /// When a connection on which nothing moves is to be asked or closed. The client closes first:
    /// it must not send into a connection that its peer has forgotten.
    fn keepalive_deadline(&self, config: &Config) -> Time {
        let opening = matches!(self.opening, Opening::Due { .. } | Opening::Sent(_));
        if self.stream.is_some() {
            // Streams may be idle, or wait for the window to open, as long as their peers answer.
            // What is under way has a timer of its own.
            let asks = !opening && self.sender.flight() == 0;
            let since = self.last_received.max(self.last_keepalive);
            let at = since.saturating_add(Span(config.keepalive_interval.0.max(1)));
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
                since.saturating_add(Span(config.keepalive_interval.0.max(1)))
            }
        }
    }

    /// The clock may have reached its deadline.
    pub(super) fn handle_timeout(&mut self, now: Time, config: &Config) -> Timeout {
        self.receiver.handle_timeout(now);
        if let Opening::Sent(_) = self.opening {
            if now >= self.sender.deadline() {
                if !self.sender.open_timed_out(config) {
                    return Timeout::Failed;
                }
                self.opening = Opening::Due { again: true };
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

    /// Takes a segment from the peer.
    pub(super) fn handle_segment(
        &mut self,
        now: Time,
        packet: &Packet<Header>,
        config: &Config,
    ) -> Verdict {
        let header = &packet.header;
        let has = |flag: u8| header.flags & flag != 0;
        if has(flags::RST) {
            // RFC 5961, 3.2: only an exact hit counts, so that a guess does no harm.
            let exact = header.seq == wire_sequence(self.receive_start, self.receiver.nxt());
            return if exact {
                Verdict::Ended(FailReason::PeerForgot)
            } else {
                Verdict::Continue(Placement::Discard)
            };
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
            // Of bytes that were never sent.
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

    /// A segment without an acknowledgement: the peer has received nothing on this connection. Its `ack` field
    /// holds the start of its stream.
    fn handle_opening(&mut self, now: Time, packet: &Packet<Header>, config: &Config) -> Verdict {
        let syn = packet.header.flags & flags::SYN != 0;
        if !syn || self.role == Role::Client {
            return Verdict::Continue(Placement::Discard);
        }
        if packet.header.ack != self.receive_start {
            // RFC 5961, 4.2: an acknowledgement challenges it; a peer that has really restarted
            // answers with a reset that fits.
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
        let mut duplicate = false;
        let pure = match header.body {
            Body::Data { .. } => false,
            Body::Ack { count: reported, sack } => {
                let reported = &sack[..usize::from(reported).min(sack.len())];
                let at = |sequence| position(self.send_start, ack, sequence);
                let ranges = reported.iter().filter_map(|&(from, to)| at(from).zip(at(to)));
                for (index, (from, to)) in ranges.enumerate() {
                    // RFC 2883: a first block below `ack`, or within the second one.
                    if index == 0 && to <= ack {
                        duplicate = true;
                    } else if ack <= from && from < to && to <= self.sender.nxt() {
                        duplicate |= index == 1 && blocks[0].0 >= from && blocks[0].1 <= to;
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
        // A response that was cancelled still takes its place in the stream.
        let exchanges = &self.exchanges;
        let wanted = |id: MessageId| !id.is_response() || exchanges.contains(&MessageId(id.0 & !1));
        Verdict::Continue(self.receiver.handle_data(now, &arrived, wanted, config))
    }

    /// Whether this message, or direction of a stream, arrives here.
    pub(super) fn is_arriving(&self, id: MessageId) -> bool {
        match &self.stream {
            Some(stream) => {
                let receives = id.is_response() == (self.role == Role::Client);
                receives && stream.id == Some(MessageId(id.0 & !1))
            }
            None => self.receiver.is_arriving(id),
        }
    }

    /// Whether a segment without data is to be sent.
    pub(super) fn control_due(&self) -> bool {
        self.receiver.ack_due() || self.keepalive_due || matches!(self.opening, Opening::Due { .. })
    }

    /// Whether the opening lets data go.
    const fn is_open(&self) -> bool {
        matches!(self.opening, Opening::Done | Opening::Data)
    }

    /// Whether a segment with data may be sent.
    pub(super) fn data_ready(&mut self, config: &Config) -> bool {
        self.is_open() && self.sender.is_ready(config)
    }

    /// The next segment without data, if one is due.
    pub(super) fn take_control(&mut self, now: Time, config: &Config) -> Option<Header> {
        if let Opening::Due { again } = self.opening {
            self.opening = Opening::Sent((!again).then_some(now));
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

    /// The next segment with data, if the window allows one.
    pub(super) fn take_data(&mut self, now: Time, config: &Config) -> Option<Header> {
        // The host's list may hold this slot for the connection that was here before.
        if !self.is_open() {
            return None;
        }
        let segment = self.sender.take(now, config)?;
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
            let mut header = self.data_header(segment, is_fin, body, config);
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
        let mut header = self.data_header(segment, whole, body, config);
        if message.abandoned {
            header.flags |= flags::FIN;
        }
        Some(header)
    }

    fn data_header(
        &mut self,
        segment: Segment,
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
        if self.sender.take_cwr(segment, config) {
            header.flags |= flags::CWR;
        }
        if self.opening == Opening::Data {
            // As in a SYN the acknowledgement number has no meaning; here it holds the start of the
            // stream, since any segment of the first window may be the first to arrive.
            header.flags |= flags::SYN;
            header.ack = self.send_start;
        } else {
            let ack = self.receiver.take_piggyback();
            header.flags |= flags::ACK;
            if ack.ece {
                header.flags |= flags::ECE;
            }
        }
        header
    }
}

/// Bytes from the IP header on.
pub(super) fn l3_bytes(header: &Header, config: &Config) -> u32 {
    config.header_bytes
        + match header.body {
            Body::Data { len, .. } => u32::from(len),
            Body::Ack { count: 0, .. } => 0,
            Body::Ack { count, .. } => SACK_OPTION + SACK_BLOCK * u32::from(count),
        }
}
