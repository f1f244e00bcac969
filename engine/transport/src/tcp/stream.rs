//! Streams over TCP. Each stream is a connection of its own, to a separate port; the two byte streams of the
//! connection are the stream's directions.
//!
//! Unlike in connections for messages, the receive window follows what the application consumes, a direction
//! ends with FIN, and a cancelled stream is reset. A closed end answers late segments for a while, as in
//! TIME-WAIT. TCP transmits neither a deadline nor the reason of a reset: the client enforces the deadline, and
//! the peer fails with [`FailReason::PeerForgot`].
//!
//! FIN is sent in a segment of its own, after the last byte (RFC 9293 permits both).

use rackweave_core::{Event, FailReason, HostId, MessageId, Open, Placement, Refused, StreamEvent};
use rackweave_core::{Kind, Packet, Slice, Time};
use rackweave_wire::tcp::{Body, Header, flags};

use super::config::Config;
use super::connection::{Connection, Key, Role, Verdict};
use super::host::Host;
use super::receiver::{Arrived, position};

/// The port on which servers of streams listen.
pub(super) const STREAM_PORT: u16 = 5002;

/// The state of a connection's stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// The stream's id, which is even; `None` at a server before the first segment with data.
    pub(super) id: Option<MessageId>,
    pub(super) deadline: Time,
    /// Whether the server's application knows of the stream.
    opened: bool,
    /// Position of this end's FIN; `None` until the application has ended its direction.
    pub(super) fin: Option<u64>,
    /// Position of the peer's FIN; `None` until it has arrived.
    peer_fin: Option<u64>,
    /// Number of bytes reported to the application as acknowledged.
    acked: u64,
    readable: u64,
    ended: bool,
    consumed: u64,
    /// Right edge of the last advertised window.
    advertised_edge: u64,
}

impl Stream {
    pub(super) const fn new(id: Option<MessageId>, deadline: Time) -> Self {
        Self {
            id,
            deadline,
            opened: false,
            fin: None,
            peer_fin: None,
            acked: 0,
            readable: 0,
            ended: false,
            consumed: 0,
            advertised_edge: 0,
        }
    }

    /// The position at which flow control stops the peer.
    fn edge(&self, config: &Config) -> u64 {
        self.consumed + config.window_bytes()
    }

    /// The window to advertise when everything below `next` has arrived.
    pub(super) fn window(&self, next: u64, config: &Config) -> u64 {
        self.edge(config).saturating_sub(next)
    }

    pub(super) fn advertised(&mut self, edge: u64) {
        self.advertised_edge = self.advertised_edge.max(edge);
    }

    /// Whether to send a window update (RFC 9293, 3.8.6.2.2, which avoids silly windows).
    fn has_opened(&self, next: u64, config: &Config) -> bool {
        let more = self.edge(config).saturating_sub(self.advertised_edge);
        let enough = (2 * config.segment_bytes()).min(config.window_bytes() / 2);
        more >= enough || more > 0 && self.advertised_edge <= next
    }
}

/// Whether a connection with this key belongs to a stream.
pub(super) fn is_stream(key: Key) -> bool {
    let port = u32::from(STREAM_PORT);
    key.ports >> 16 == port || key.ports & 0xffff == port
}

impl Connection {
    /// Whether only the acknowledgement of this end's FIN is missing (LAST-ACK). Then the peer has everything, and closes
    /// with a reset what it no longer remembers (RFC 9293, 3.10.7.4: no error in this state). With bytes in flight, a
    /// reset may also be from a peer that has restarted, without them.
    pub(super) fn awaits_last_ack(&self) -> bool {
        let una = self.sender.una();
        self.stream
            .as_ref()
            .is_some_and(|stream| stream.ended && stream.fin.is_some_and(|fin| una >= fin))
    }

    /// Handles a segment with bytes of a stream, or its FIN.
    pub(super) fn handle_stream(
        &mut self,
        now: Time,
        packet: &Packet<Header>,
        config: &Config,
    ) -> Verdict {
        let discard = Verdict::Continue(Placement::Discard);
        let header = &packet.header;
        let (Some(stream), Some(slice)) = (&mut self.stream, header.payload()) else {
            return discard;
        };
        let from_client = !slice.message.is_response();
        let id = MessageId(slice.message.0 & !1);
        if from_client != (self.role == Role::Server) || stream.id.is_some_and(|known| known != id)
        {
            return discard;
        }
        let Some(at) = position(self.receive_start, self.receiver.nxt(), header.seq) else {
            return discard;
        };
        let is_fin = header.flags & flags::FIN != 0;
        let len = if is_fin { 1 } else { slice.len };
        let end = at.saturating_add(u64::from(len));
        let possible = match stream.peer_fin {
            Some(fin) => {
                if is_fin {
                    at == fin
                } else {
                    end <= fin
                }
            }
            None => !is_fin || at >= self.receiver.nxt(),
        };
        // The sequence number determines the position of the bytes.
        if !possible || !is_fin && slice.offset != at as u32 || is_fin && slice.len > 0 {
            return discard;
        }
        stream.id = Some(id);
        let arrived = Arrived {
            position: at,
            slice: Slice { len, ..slice },
            message_length: 0,
            kind: Kind::OneWay,
            abandoned: false,
            marked: packet.ecn() == rackweave_core::Ecn::Marked,
            cwr: header.flags & flags::CWR != 0,
        };
        // FIN occupies a sequence number, but no byte in the application's buffer.
        let limit = stream.edge(config) + u64::from(is_fin);
        if !self.receiver.handle_bytes(now, &arrived, limit, config) {
            return discard;
        }
        if is_fin {
            stream.peer_fin = Some(at);
            return discard;
        }
        Verdict::Continue(Placement::Store(slice))
    }
}

impl Host {
    pub(super) fn open_stream(&mut self, now: Time, open: Open) -> Result<(), Refused> {
        let Open { id, peer, deadline } = open;
        if id.is_response() {
            return Err(Refused::WrongId);
        }
        if self.streams.contains_key(&(peer, id)) {
            return Err(Refused::DuplicateId);
        }
        let key = self.free_key(now, peer, STREAM_PORT, 1 << 15).ok_or(Refused::Busy)?;
        let mut connection = Connection::client(now, self.id(), key, self.config());
        connection.make_stream(Stream::new(Some(id), deadline));
        let slot = self.insert(connection).ok_or(Refused::Busy)?;
        self.streams.insert((peer, id), slot);
        self.reschedule(slot);
        Ok(())
    }

    pub(super) fn write_stream(
        &mut self,
        now: Time,
        peer: HostId,
        id: MessageId,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        let (slot, connection) = self.stream_connection(peer, id).ok_or(Refused::Ended)?;
        let writes = id.is_response() == (connection.role == Role::Server);
        let Some(stream) =
            connection.stream.as_mut().filter(|stream| writes && stream.fin.is_none())
        else {
            return Err(Refused::Ended);
        };
        if bytes == 0 && !end {
            return Err(Refused::Empty);
        }
        let max = 1 << 62;
        if bytes > max || connection.sender.end() > max - bytes {
            return Err(Refused::TooLong { max });
        }
        let kind = if id.is_response() { Kind::Response } else { Kind::OneWay };
        if connection.sender.backlog() == 0 {
            // The peer's silence counts from here.
            connection.last_received = now;
        }
        connection.sender.extend(id, bytes, kind);
        if end {
            stream.fin = Some(connection.sender.end());
            connection.sender.push(id, 1, kind);
        }
        self.outlet.submitted(now);
        self.reschedule(slot);
        Ok(())
    }

    pub(super) fn consume_stream(&mut self, peer: HostId, id: MessageId, bytes: u64) {
        if bytes == 0 {
            // Before the client's first byte, an acknowledgement would be mistaken for one of an old
            // connection.
            return;
        }
        let Some((slot, connection)) = self.stream_connection_config(peer, id) else { return };
        let (connection, config) = connection;
        let next = connection.receiver.nxt();
        let Some(stream) = &mut connection.stream else { return };
        stream.consumed = stream.consumed.saturating_add(bytes).min(stream.readable);
        if stream.has_opened(next, config) && !stream.ended {
            connection.receiver.acknowledge_now();
        }
        self.reschedule(slot);
    }

    /// Resets the stream without an event; returns whether it is known.
    pub(super) fn cancel_stream(&mut self, now: Time, peer: HostId, id: MessageId) -> bool {
        let Some((slot, connection)) = self.stream_connection(peer, id) else { return false };
        let (key, header) = (connection.key, connection.reset_header());
        self.last_segment(key, header);
        self.forget_stream(now, slot);
        true
    }

    /// Handles the deadline of a stream.
    pub(super) fn stream_expired(&mut self, now: Time, slot: u32) {
        self.abort(now, slot, FailReason::Deadline);
    }

    /// Removes a stream's connection without notifying the peer.
    fn forget_stream(&mut self, now: Time, slot: u32) {
        if let Some(stream) =
            self.connection(slot).and_then(|connection| connection.stream.as_mut())
        {
            stream.opened = false;
            let id = stream.id.take();
            if let Some((connection, id)) = self.connection(slot).zip(id) {
                let peer = connection.key.peer;
                self.streams.remove(&(peer, id));
            }
        }
        self.close(now, slot, FailReason::Cancelled);
    }

    /// Reports the failure of a stream to its application, if the application knows of the stream.
    pub(super) fn fail_stream(&mut self, connection: &Connection, reason: FailReason) {
        let Some(stream) = &connection.stream else { return };
        let peer = connection.key.peer;
        if let Some(id) = stream.id
            && (connection.role == Role::Client || stream.opened)
        {
            self.streams.remove(&(peer, id));
            self.push_event(Event::Failed { peer, id, reason });
        }
    }

    /// Reports to the application what an arriving segment has changed, and closes the stream if it is
    /// complete.
    pub(super) fn report_stream(&mut self, now: Time, slot: u32) {
        let Some(connection) = self.connection(slot) else { return };
        let (peer, role) = (connection.key.peer, connection.role);
        let (una, next) = (connection.sender.una(), connection.receiver.nxt());
        while connection.sender.pop_acked().is_some() {}
        let Some(stream) = &mut connection.stream else { return };
        let Some(id) = stream.id else { return };
        let opens = role == Role::Server && !core::mem::replace(&mut stream.opened, true);
        let (own, other) =
            if role == Role::Client { (id, id.response()) } else { (id.response(), id) };
        let acked = una.min(stream.fin.unwrap_or(u64::MAX)) - stream.acked;
        stream.acked += acked;
        let readable = next.min(stream.peer_fin.unwrap_or(u64::MAX)) - stream.readable;
        stream.readable += readable;
        let end = !stream.ended && stream.peer_fin.is_some_and(|fin| next > fin);
        stream.ended |= end;
        let done = stream.ended && stream.fin.is_some_and(|fin| una > fin);
        if opens {
            self.streams.insert((peer, id), slot);
            self.push_event(Event::Stream(StreamEvent::Opened { peer, id }));
        }
        if acked > 0 {
            self.push_event(Event::Stream(StreamEvent::Acked { peer, id: own, bytes: acked }));
        }
        if readable > 0 || end {
            let event = StreamEvent::Readable { peer, id: other, bytes: readable, end };
            self.push_event(Event::Stream(event));
        }
        if done {
            let Some(connection) = self.connection(slot) else { return };
            let (key, last) = (connection.key, connection.last_header());
            self.last_segment(key, last);
            self.finish_stream(now, slot);
        }
    }

    /// Closes a stream whose bytes have all arrived at both ends.
    pub(super) fn finish_stream(&mut self, now: Time, slot: u32) {
        let Some(connection) = self.connection(slot) else { return };
        let (key, last) = (connection.key, connection.last_header());
        let Some(id) = connection.stream.as_ref().and_then(|stream| stream.id) else { return };
        self.remember_closed(now, key, last);
        self.forget_stream(now, slot);
        self.push_event(Event::Stream(StreamEvent::Closed { peer: key.peer, id }));
    }

    /// Answers a segment without a connection, if the connection has closed regularly; returns whether it has.
    pub(super) fn answer_closed(&mut self, now: Time, key: Key, header: &Header) -> bool {
        if header.flags & (flags::RST | flags::SYN) != 0 {
            return false;
        }
        let Some(&last) = self.time_wait.get(self.handled(now), &key, self.config()) else {
            return false;
        };
        // An acknowledgement without data needs no answer.
        if !matches!(header.body, Body::Ack { .. }) {
            self.stray(key, last);
        }
        true
    }

    fn stream_connection(&mut self, peer: HostId, id: MessageId) -> Option<(u32, &mut Connection)> {
        self.stream_connection_config(peer, id).map(|(slot, (connection, _))| (slot, connection))
    }

    fn stream_connection_config(
        &mut self,
        peer: HostId,
        id: MessageId,
    ) -> Option<(u32, (&mut Connection, &Config))> {
        let slot = *self.streams.get(&(peer, MessageId(id.0 & !1)))?;
        self.connection_config(slot).map(|found| (slot, found))
    }
}
