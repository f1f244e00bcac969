//! Channels: long-lived streams between a client and a server, on which messages travel in order.
//!
//! A channel is either one stream of the transport, whose bytes are the messages one after the
//! other, or a number of unary RPCs that the receiver puts in order ([`StreamMode`]). When a channel
//! fails, all its messages fail; the next message begins a new one.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{
    FailReason, HostId, Kind, MessageId, Open, Refused, Slice, StreamEvent, Submit, Time,
    Transport as _,
};
use rackweave_workload::{Exchange, StreamMode};

use super::World;
use super::app::{Action, Coverage, State};
use super::thread::Work;
use crate::model::Model;

/// Bytes that an application writes ahead of what is acknowledged: Linux's default maximum of a
/// socket's send buffer (`tcp_wmem`).
const WRITE_AHEAD: u64 = 4 << 20;

/// Whose channel it is, and the how-manieth of this pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    stream: u16,
    client: HostId,
    server: HostId,
    index: u16,
}

#[derive(Debug)]
struct Channel {
    key: Key,
    /// Its messages that have not ended, in the order in which they started.
    members: BTreeMap<u64, MessageId>,
    next_seq: u64,
    carrier: Carrier,
}

/// What its messages travel on. Of each pair, the first is for what the client sends.
#[derive(Debug)]
enum Carrier {
    Stream(Box<RpcStream>),
    Unary([Order; 2]),
}

/// A stream of the transport.
#[derive(Debug, Default)]
struct RpcStream {
    /// The client's transport knows it.
    is_open: bool,
    /// The server's does.
    is_known: bool,
    /// The server crashed and has forgotten it.
    is_forgotten: bool,
    directions: [Direction; 2],
}

/// One direction of a stream. Numbers of bytes are from its beginning.
#[derive(Debug, Default)]
struct Direction {
    /// The messages that are not taken in whole, each with its end.
    spans: VecDeque<(MessageId, u64)>,
    /// Bytes that the sender's application has for it.
    queued: u64,
    /// Of these, handed to the transport.
    written: u64,
    acked: u64,
    /// Bytes that the receiver's transport has told of.
    readable: u64,
    /// Of these, taken in by the application.
    taken: u64,
    /// The bytes that were stored, if receivers check them.
    stored: Coverage,
}

/// One direction of a channel of unary RPCs.
#[derive(Debug, Default)]
struct Order {
    /// The message whose turn it is at the receiver.
    next: u64,
    /// Those that arrived before their turn.
    early: BTreeMap<u64, Work>,
}

/// All channels.
#[derive(Debug, Default)]
pub(super) struct Channels {
    /// Some stream of messages uses channels.
    in_use: bool,
    /// By the id of the stream in the transport, or one like it.
    all: BTreeMap<MessageId, Channel>,
    /// Where the next messages go.
    current: BTreeMap<Key, MessageId>,
    /// The channel of each message, and its place in the order.
    of_message: BTreeMap<MessageId, (MessageId, u64)>,
    /// How many messages a client has started to a server: they take turns.
    started: BTreeMap<(u16, HostId, HostId), u64>,
}

impl Channels {
    pub(super) fn new(in_use: bool) -> Self {
        Self { in_use, ..Self::default() }
    }

    pub(super) const fn in_use(&self) -> bool {
        self.in_use
    }

    /// The stream that carries a message, or a response, if one does.
    fn stream_of(&self, id: MessageId) -> Option<MessageId> {
        let (channel, _) = *self.of_message.get(&request(id))?;
        matches!(self.all.get(&channel)?.carrier, Carrier::Stream(_)).then_some(channel)
    }

    fn direction(&mut self, id: MessageId) -> Option<(Key, &mut Direction)> {
        let Channel { key, carrier, .. } = self.all.get_mut(&request(id))?;
        match carrier {
            Carrier::Stream(stream) => Some((*key, &mut stream.directions[way(id)])),
            Carrier::Unary(_) => None,
        }
    }

    /// What the application reads next of a direction: whether it is the first of it, and the bytes to
    /// the end of the message.
    pub(super) fn next_read(&self, id: MessageId) -> Option<(bool, u64)> {
        let Carrier::Stream(stream) = &self.all.get(&request(id))?.carrier else { return None };
        let direction = &stream.directions[way(id)];
        let (_, end) = direction.spans.front()?;
        Some((direction.taken == 0, end - direction.taken))
    }

    /// A message has ended.
    pub(super) fn forget_message(&mut self, id: MessageId) {
        if let Some((channel, seq)) = self.of_message.remove(&request(id))
            && let Some(channel) = self.all.get_mut(&channel)
        {
            channel.members.remove(&seq);
        }
    }
}

impl Key {
    /// Who sends and who receives what has this id.
    const fn ends(self, id: MessageId) -> (HostId, HostId) {
        if id.is_response() { (self.server, self.client) } else { (self.client, self.server) }
    }
}

const fn request(id: MessageId) -> MessageId {
    MessageId(id.0 & !1)
}

const fn way(id: MessageId) -> usize {
    (id.0 & 1) as usize
}

impl<M: Model> World<'_, M> {
    /// A message that starts joins the channel whose turn it is.
    pub(super) fn join_channel(&mut self, stream: u16, id: MessageId, src: HostId, dst: HostId) {
        let workload = &self.streams[usize::from(stream)].config.workload;
        let Some(streaming) = workload.streaming else { return };
        let started = self.channels.started.entry((stream, src, dst)).or_default();
        let index = (*started % u64::from(streaming.per_pair.get())) as u16;
        *started += 1;
        let key = Key { stream, client: src, server: dst, index };
        let name = match self.channels.current.get(&key) {
            Some(name) => *name,
            None => {
                let name = self.messages.unused_id();
                let carrier = match streaming.mode {
                    StreamMode::OneId => Carrier::Stream(Box::default()),
                    StreamMode::Unary => Carrier::Unary(Default::default()),
                };
                let channel = Channel { key, members: BTreeMap::new(), next_seq: 0, carrier };
                self.channels.all.insert(name, channel);
                self.channels.current.insert(key, name);
                name
            }
        };
        if let Some(channel) = self.channels.all.get_mut(&name) {
            let seq = channel.next_seq;
            channel.next_seq += 1;
            channel.members.insert(seq, id);
            self.channels.of_message.insert(id, (name, seq));
        }
    }

    /// Writes a message to its stream, if it goes by one.
    pub(super) fn write_message(&mut self, host: HostId, message: Submit) -> bool {
        let Some(name) = self.channels.stream_of(message.id) else { return false };
        self.flush(host);
        if self.open_stream(name).is_err() {
            self.refused += 1;
            self.failed(message.id, FailReason::Cancelled);
        } else {
            let id = if message.id.is_response() { name.response() } else { name };
            if let Some((_, direction)) = self.channels.direction(id) {
                direction.queued += message.bytes;
                direction.spans.push_back((message.id, direction.queued));
            }
            self.write_ahead(host, id);
        }
        self.changed(host);
        true
    }

    /// Opens a stream at its client, if it is not open.
    fn open_stream(&mut self, name: MessageId) -> Result<(), Refused> {
        let Some(Channel { key, carrier: Carrier::Stream(state), .. }) =
            self.channels.all.get_mut(&name)
        else {
            return Ok(());
        };
        if state.is_open {
            return Ok(());
        }
        let instance = usize::from(self.streams[usize::from(key.stream)].instance);
        let open = Open { id: name, peer: key.server, deadline: Time::MAX };
        let client = &mut self.hosts.all[key.client.0 as usize];
        client.transports[instance].open(self.net.now(), open)?;
        state.is_open = true;
        Ok(())
    }

    /// Hands the transport what there is room for.
    fn write_ahead(&mut self, host: HostId, id: MessageId) {
        let Some((key, direction)) = self.channels.direction(id) else { return };
        let under_way = direction.written - direction.acked;
        let bytes =
            (direction.queued - direction.written).min(WRITE_AHEAD.saturating_sub(under_way));
        if bytes == 0 {
            return;
        }
        let instance = usize::from(self.streams[usize::from(key.stream)].instance);
        let (_, peer) = key.ends(id);
        let transport = &mut self.hosts.all[host.0 as usize].transports[instance];
        match transport.write(self.net.now(), peer, id, bytes, false) {
            Ok(()) => direction.written += bytes,
            // There will be room when some of it is acknowledged.
            Err(Refused::Busy) if under_way > 0 => {}
            Err(_) => {
                self.refused += 1;
                self.failed(id, FailReason::Cancelled);
            }
        }
    }

    /// A transport says something about a stream.
    pub(super) fn on_stream_event(&mut self, host: HostId, event: StreamEvent) {
        match event {
            StreamEvent::Opened { peer, id } => self.on_opened(host, peer, id),
            StreamEvent::Readable { peer, id, bytes, end } => {
                assert!(!end, "nobody has ended stream {id}");
                self.on_readable(host, peer, id, bytes);
            }
            StreamEvent::Acked { peer, id, bytes } => {
                let Some((key, direction)) = self.channels.direction(id) else { return };
                assert_eq!((host, peer), key.ends(id), "stream {id} is acknowledged astray");
                direction.acked += bytes;
                assert!(direction.acked <= direction.written, "stream {id}: more than was written");
                self.write_ahead(host, id);
                self.fail_if_nobody_would_tell(request(id));
            }
            // These streams end only when they fail.
            StreamEvent::Closed { .. } => {}
        }
    }

    fn on_opened(&mut self, host: HostId, peer: HostId, id: MessageId) {
        let Some(Channel { key, carrier: Carrier::Stream(state), .. }) =
            self.channels.all.get_mut(&id)
        else {
            return;
        };
        assert_eq!((peer, host), key.ends(id), "stream {id} was opened to the wrong host");
        if state.is_forgotten {
            // None of it was acknowledged, so that the transport begins anew. The application does not:
            // it has lost what it knew of the stream.
            return self.fail_channel(id, FailReason::PeerForgot);
        }
        assert!(!state.is_known, "stream {id} was opened twice");
        state.is_known = true;
    }

    fn on_readable(&mut self, host: HostId, peer: HostId, id: MessageId, bytes: u64) {
        let Some(Channel { key, carrier: Carrier::Stream(state), .. }) =
            self.channels.all.get_mut(&request(id))
        else {
            return;
        };
        assert_eq!((peer, host), key.ends(id), "bytes of stream {id} came to the wrong host");
        assert!(state.is_known, "bytes of stream {id} before it was opened");
        let direction = &mut state.directions[way(id)];
        let end = direction.readable + bytes;
        assert!(end <= direction.written, "stream {id}: {end} bytes, which nobody wrote");
        if self.measure.verify {
            assert!(
                direction.stored.covers(direction.readable, end),
                "stream {id}: {:?} is stored, not all to {end}",
                direction.stored
            );
            direction.stored.forget_below(end);
        }
        direction.readable = end;
        let stream = key.stream;
        if bytes > 0 {
            self.take_in(stream, host, Work::Bytes { direction: id, bytes });
        }
    }

    /// The application has taken bytes of a stream in.
    pub(super) fn consumed(&mut self, host: HostId, id: MessageId, bytes: u64) {
        let Some((key, direction)) = self.channels.direction(id) else { return };
        direction.taken += bytes;
        let instance = usize::from(self.streams[usize::from(key.stream)].instance);
        let (peer, _) = key.ends(id);
        self.hosts.all[host.0 as usize].transports[instance].consume(
            self.net.now(),
            peer,
            id,
            bytes,
        );
        let workload = &self.streams[usize::from(key.stream)].config.workload;
        let is_answered = workload.exchange != Exchange::OneWay;
        while let Some((_, direction)) = self.channels.direction(id)
            && let Some(&(message, end)) = direction.spans.front()
            && end <= direction.taken
        {
            direction.spans.pop_front();
            let kind = match (message.is_response(), is_answered) {
                (true, _) => Kind::Response,
                (false, true) => Kind::Request,
                (false, false) => Kind::OneWay,
            };
            if self.measure.verify {
                self.tally.verified += 1;
            }
            self.processed(host, peer, message, kind);
        }
    }

    /// A message of a channel of unary RPCs has arrived: its application gets it when it is its turn.
    pub(super) fn arrive_in_order(&mut self, host: HostId, id: MessageId, work: Work) {
        let Some(&(name, seq)) = self.channels.of_message.get(&request(id)) else { return };
        let Some(Channel { key, carrier: Carrier::Unary(orders), .. }) =
            self.channels.all.get_mut(&name)
        else {
            return;
        };
        let (stream, order) = (key.stream, &mut orders[way(id)]);
        if seq < order.next {
            // Again, to a server that has crashed since.
            return self.take_in(stream, host, work);
        }
        order.early.insert(seq, work);
        while let Some(Channel { carrier: Carrier::Unary(orders), .. }) =
            self.channels.all.get_mut(&name)
        {
            let order = &mut orders[way(id)];
            let Some(work) = order.early.remove(&order.next) else { return };
            order.next += 1;
            self.take_in(stream, host, work);
        }
    }

    /// A receiver stores bytes of a stream.
    pub(super) fn store_of_stream(&mut self, src: HostId, host: HostId, slice: Slice) {
        let verify = self.measure.verify;
        let Some((key, direction)) = self.channels.direction(slice.message) else { return };
        assert_eq!((src, host), key.ends(slice.message), "bytes of {} astray", slice.message);
        if verify && slice.len > 0 {
            // Offsets count modulo 2^32, and what arrives is near what is read.
            let ahead = slice.offset.wrapping_sub(direction.readable as u32) as i32;
            let start = direction.readable.checked_add_signed(i64::from(ahead));
            let start = start.expect("bytes from before the stream began");
            direction.stored.insert(start, start + u64::from(slice.len));
        }
        if self.net.now() >= self.tally.since {
            let stream = usize::from(key.stream);
            let client = key.client.0 as usize;
            self.streams[stream].delivered_bytes[client] += u64::from(slice.len);
        }
    }

    /// The channel that an id names or is a message of fails; `false`: there is none.
    pub(super) fn fail_channel_of(&mut self, id: MessageId, reason: FailReason) -> bool {
        let id = request(id);
        let name = self.channels.of_message.get(&id).map_or(id, |(name, _)| *name);
        let exists = self.channels.all.contains_key(&name);
        if exists {
            self.fail_channel(name, reason);
        }
        exists
    }

    /// A channel is given up at both ends, with all its messages.
    fn fail_channel(&mut self, name: MessageId, reason: FailReason) {
        let Some(channel) = self.channels.all.remove(&name) else { return };
        let key = channel.key;
        if self.channels.current.get(&key) == Some(&name) {
            self.channels.current.remove(&key);
        }
        match &channel.carrier {
            Carrier::Stream(state) if state.is_open => self.cancel_at_both_ends(key, name),
            Carrier::Stream(_) => {}
            Carrier::Unary(_) => {
                for &id in channel.members.values() {
                    self.cancel_at_both_ends(key, id);
                    self.cancel_at_both_ends(key, id.response());
                }
            }
        }
        for id in channel.members.into_values() {
            self.end_message(id, State::Failed(reason));
        }
    }

    fn cancel_at_both_ends(&mut self, key: Key, id: MessageId) {
        let instance = self.streams[usize::from(key.stream)].instance;
        for (host, peer) in [(key.client, key.server), (key.server, key.client)] {
            self.todo.push_back(Action::Cancel { host, peer, id, instance });
        }
    }

    /// A host has crashed. Its own channels are gone. Those of others to it are so for its
    /// transport and application; the client's transport finds out if it has anything to ask for.
    pub(super) fn crash_channels(&mut self, host: HostId) {
        let of_host = |channel: &Channel| channel.key.client == host || channel.key.server == host;
        let names = self.channels.all.iter().filter(|(_, channel)| of_host(channel));
        let names: Vec<MessageId> = names.map(|(name, _)| *name).collect();
        for name in names {
            let Some(channel) = self.channels.all.get_mut(&name) else { continue };
            if channel.key.client == host {
                self.fail_channel(name, FailReason::HostCrashed);
                continue;
            }
            match &mut channel.carrier {
                Carrier::Stream(state) => {
                    state.is_forgotten = true;
                    state.directions[0].stored = Coverage::default();
                    self.fail_if_nobody_would_tell(name);
                }
                Carrier::Unary(orders) => {
                    if !orders[0].early.is_empty() {
                        self.fail_channel(name, FailReason::HostCrashed);
                    }
                }
            }
        }
    }

    /// The server of a stream has crashed, and the client has got everything acknowledged: its transport
    /// has nothing to send, so it would wait for ever. (In the world, the server's application, or
    /// keep-alives, would tell the client.)
    fn fail_if_nobody_would_tell(&mut self, name: MessageId) {
        if let Some(Channel { carrier: Carrier::Stream(state), .. }) = self.channels.all.get(&name)
            && state.is_forgotten
            && state.directions[0].acked == state.directions[0].queued
        {
            self.fail_channel(name, FailReason::HostCrashed);
        }
    }
}
