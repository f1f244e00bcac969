//! Handling of the frames that arrive over a connection.

use std::net::SocketAddr;

use bytes::Bytes;
use rackweave_core::time::TICKS_PER_NS;
use rackweave_core::{FailReason, HostId, Kind, MessageId, Span, Time};
use smallvec::SmallVec;

use super::TcpEndpoint;
use super::connection::{Connection, Owner};
use super::decoder::Input;
use super::drive::Lost;
use super::framing::{Frame, Malformed};
use crate::endpoint::Event;

/// The frame is not allowed in this state.
const OUT_OF_PLACE: Lost = Lost::Malformed;

impl TcpEndpoint {
    pub(super) fn handle(&mut self, connection: &mut Connection, input: Input) -> Result<(), Lost> {
        self.stats.received += 1;
        if let Input::Hello { incarnation, port, .. } = input {
            return self.on_hello(connection, incarnation, port);
        }
        let Some(peer) = connection.peer.filter(|_| connection.greeted) else {
            return Err(OUT_OF_PLACE);
        };
        match input {
            Input::Hello { .. } => {}
            Input::Begins { .. } => self.make_room(connection),
            Input::Message { kind, id, bytes } => {
                self.release(bytes.len() as u64);
                return self.on_message(connection, peer, kind, id, bytes);
            }
            Input::Received { id } => self.on_received(connection, peer, id),
            Input::Cancel { id, reason } => self.on_cancel(connection, peer, id, reason),
            Input::Open { id, left_ns } => return self.on_open(connection, peer, id, left_ns),
            Input::Data { id, bytes, end } => {
                return self.on_data(connection, peer, id, bytes, end);
            }
        }
        Ok(())
    }

    fn on_hello(
        &mut self,
        connection: &mut Connection,
        incarnation: u64,
        port: u16,
    ) -> Result<(), Lost> {
        if connection.greeted {
            return Err(OUT_OF_PLACE);
        }
        connection.greeted = true;
        let host = match connection.peer {
            Some(host) => host,
            None => {
                let mut from: SocketAddr =
                    connection.socket.peer_addr()?.as_socket().ok_or(Lost::Foreign)?;
                from.set_port(port);
                let host = self.peers.identify(from).ok_or(Lost::Foreign)?;
                connection.peer = Some(host);
                let (this, incarnation) = (self.config.host.0, self.incarnation);
                connection.control(Frame::Hello {
                    host: this,
                    incarnation,
                    port: self.address.port(),
                });
                self.dirty.insert(connection.token);
                if let Some(peer) = self.peers.get_mut(host) {
                    peer.accepted += 1;
                }
                host
            }
        };
        let Some(peer) = self.peers.get_mut(host) else { return Err(Lost::Foreign) };
        let before = peer.incarnation.replace(incarnation);
        if before.is_some_and(|before| before != incarnation) {
            self.stats.restarts += 1;
            self.events.push_back(Event::PeerRestarted { peer: host });
        }
        Ok(())
    }

    fn on_message(
        &mut self,
        connection: &mut Connection,
        peer: HostId,
        kind: Kind,
        id: MessageId,
        bytes: Bytes,
    ) -> Result<(), Lost> {
        match kind {
            // Requests are sent by the end that has made the connection.
            Kind::Request | Kind::OneWay if connection.ours => return Err(OUT_OF_PLACE),
            Kind::Response if !connection.ours => return Err(OUT_OF_PLACE),
            Kind::OneWay => self.confirm_soon(connection, id),
            Kind::Request => {
                if self.serving.insert((peer, id), connection.token).is_some() {
                    return Err(OUT_OF_PLACE);
                }
                connection.exchanges.insert(id);
            }
            Kind::Response => {
                let request = MessageId(id.0 & !1);
                match self.outgoing.get(&(peer, request)) {
                    Some(&(token, Kind::Request)) if token == connection.token => {}
                    // The request was cancelled, and the peer was informed.
                    _ => return Ok(()),
                }
                self.outgoing.remove(&(peer, request));
                connection.exchanges.remove(&request);
                self.confirm_soon(connection, id);
            }
        }
        self.events.push_back(Event::Message { peer, id, kind, bytes });
        Ok(())
    }

    fn on_received(&mut self, connection: &mut Connection, peer: HostId, id: MessageId) {
        let request = MessageId(id.0 & !1);
        if let Some(stream) = self.streams.get_mut(&(peer, request)) {
            let ours = stream.client != id.is_response() && stream.token == connection.token;
            if ours && stream.ended && stream.unwritten == 0 {
                stream.confirmed = true;
                self.close_if_done(connection, peer, request);
            }
            return;
        }
        if let Some(&(token, kind)) = self.outgoing.get(&(peer, id))
            && token == connection.token
            && kind != Kind::Request
        {
            self.outgoing.remove(&(peer, id));
            connection.exchanges.remove(&id);
            self.events.push_back(Event::Sent { peer, id });
        }
    }

    /// The peer cancels a request or response (both named by the request's id), or a stream.
    fn on_cancel(
        &mut self,
        connection: &mut Connection,
        peer: HostId,
        id: MessageId,
        reason: FailReason,
    ) {
        let request = MessageId(id.0 & !1);
        let token = connection.token;
        if self.streams.get(&(peer, request)).is_some_and(|stream| stream.token == token) {
            self.stream_cancelled(connection, peer, request, reason);
            return;
        }
        if connection.ours {
            let key = (peer, request);
            if self.outgoing.get(&key).is_some_and(|outgoing| outgoing.0 == token) {
                self.outgoing.remove(&key);
                connection.exchanges.remove(&request);
                let reason = FailReason::PeerForgot;
                self.events.push_back(Event::Failed { peer, id: request, reason });
            }
            return;
        }
        if self.serving.get(&(peer, request)) == Some(&token) {
            self.serving.remove(&(peer, request));
            connection.exchanges.remove(&request);
            self.events.push_back(Event::Failed { peer, id: request, reason });
        }
        let id = request.response();
        if self.outgoing.get(&(peer, id)).is_some_and(|outgoing| outgoing.0 == token) {
            self.outgoing.remove(&(peer, id));
            connection.exchanges.remove(&id);
            let of = Owner::Message(id, Kind::Response);
            let withdrawn = connection.withdraw(|other| other == of);
            self.queued -= withdrawn.iter().map(|waiting| waiting.body.len() as u64).sum::<u64>();
            self.events.push_back(Event::Failed { peer, id, reason });
        }
    }

    fn on_open(
        &mut self,
        connection: &mut Connection,
        peer: HostId,
        id: MessageId,
        left_ns: Option<u64>,
    ) -> Result<(), Lost> {
        let known = self.streams.contains_key(&(peer, id));
        if connection.ours || known || connection.stream.is_some() {
            return Err(OUT_OF_PLACE);
        }
        let streams = self.peers.get(peer).map_or(0, |peer| peer.streams.1);
        if streams >= self.config.streams_per_peer {
            connection.control(Frame::Cancel { id, reason: FailReason::PeerForgot });
            self.dirty.insert(connection.token);
            return Ok(());
        }
        let now = self.config.clock.now();
        let deadline = left_ns.map_or(Time::MAX, |left_ns| {
            now.saturating_add(Span::from_ns(left_ns.min(u64::MAX / TICKS_PER_NS)))
        });
        connection.stream = Some(id);
        connection.exchanges.insert(id);
        self.insert_stream(connection.token, peer, id, false, deadline);
        self.events.push_back(Event::Opened { peer, id });
        Ok(())
    }

    fn on_data(
        &mut self,
        connection: &mut Connection,
        peer: HostId,
        id: MessageId,
        bytes: Bytes,
        end: bool,
    ) -> Result<(), Lost> {
        let request = MessageId(id.0 & !1);
        // Data of a cancelled stream are discarded.
        let Some(stream) = self.streams.get_mut(&(peer, request)) else { return Ok(()) };
        if stream.token != connection.token
            || stream.client != id.is_response()
            || stream.end_received
        {
            return Err(Malformed::OutOfPlace.into());
        }
        stream.end_received = end;
        stream.unconsumed += bytes.len() as u64;
        self.unconsumed += bytes.len() as u64;
        if end || !bytes.is_empty() {
            let pieces =
                if bytes.is_empty() { SmallVec::new() } else { SmallVec::from_iter([bytes]) };
            self.events.push_back(Event::Readable { peer, id, pieces, end });
        }
        if end {
            connection.control(Frame::Received { id });
            self.dirty.insert(connection.token);
            self.close_if_done(connection, peer, request);
        }
        Ok(())
    }

    /// Removes a stream whose directions have both ended and are confirmed: its connection is idle then.
    fn close_if_done(&mut self, connection: &mut Connection, peer: HostId, id: MessageId) {
        let done = self
            .streams
            .get(&(peer, id))
            .is_some_and(|stream| stream.end_received && stream.confirmed);
        if !done {
            return;
        }
        self.remove_stream(peer, id);
        connection.exchanges.remove(&id);
        connection.stream = None;
        self.events.push_back(Event::Closed { peer, id });
        self.close_if_surplus(connection, peer);
    }
}
