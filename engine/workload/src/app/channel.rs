//! Channels: long-lived streams between a client and a server, on which messages travel in order.
//!
//! A channel is either one stream of the transport, whose bytes are the messages in sequence, or a number of
//! unary RPCs that the receiver reorders ([`StreamMode`]). When a channel fails, all its messages fail; the
//! next message starts a new channel.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{FailReason, HostId, Kind, MessageId, RangeSet, Slice, StreamEvent, Time};

use super::message::MessageKey;
use super::receive::{ReceivedMessage, Work};
use super::{Action, App, MessageEnd, OneWayEnd};
use crate::application::StreamMode;
use crate::pattern::Exchange;

/// Maximum number of bytes that an application writes ahead of the acknowledged ones: Linux's default maximum
/// of a socket's send buffer (`tcp_wmem`).
const WRITE_AHEAD: u64 = 4 << 20;

/// The number of a channel at the client that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u64);

/// One direction of a transport's stream: the low bit of its id selects the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Direction {
    /// Index of the transport.
    pub instance: u8,
    /// The peer of the stream.
    pub peer: HostId,
    /// Even: what the client writes. Odd: what the server writes.
    pub id: MessageId,
}

/// The route of a channel: its stream of messages, the server, and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    stream: u16,
    server: HostId,
    index: u16,
}

/// A channel at its client.
#[derive(Debug)]
struct Channel {
    route: Route,
    /// The channel's messages that have not ended, in the order in which they started.
    members: BTreeMap<u64, MessageKey>,
    next_sequence: u64,
    carrier: Carrier,
}

/// How the messages of a channel are carried.
#[derive(Debug)]
enum Carrier {
    Stream(Box<ClientStream>),
    /// Unary RPCs, with the order of their responses.
    Unary(Order),
}

#[derive(Debug, Default)]
struct ClientStream {
    state: OpenState,
    /// Whether the server has crashed and lost the stream.
    server_forgot: bool,
    requests: Sending,
    responses: Receiving,
}

#[derive(Debug, Default)]
enum OpenState {
    #[default]
    Closed,
    /// The driver is opening the stream; these messages wait for it.
    Opening(Vec<(MessageKey, u64)>),
    Open(MessageId),
}

/// A stream at its server.
#[derive(Debug, Default)]
struct ServedStream {
    /// The stream of messages that it carries.
    stream: u16,
    /// Whether the transport has announced the stream.
    is_open: bool,
    requests: Receiving,
    responses: Sending,
}

/// The sender's state of one direction. Byte counts are from the start of the direction.
#[derive(Debug, Default)]
struct Sending {
    /// Number of bytes that the application has queued.
    queued: u64,
    /// Number of these bytes that were written to the transport.
    written: u64,
    acked: u64,
    /// One-way messages that the receiver may not have completely, each with the offset of its end. Used if the
    /// acknowledgement ends them.
    unacknowledged: VecDeque<(MessageKey, u64)>,
}

impl Sending {
    /// Number of bytes to write to the transport now.
    fn to_write(&self) -> u64 {
        let under_way = self.written - self.acked;
        (self.queued - self.written).min(WRITE_AHEAD.saturating_sub(under_way))
    }
}

/// The receiver's state of one direction. Byte counts are from the start of the direction.
#[derive(Debug, Default)]
struct Receiving {
    /// Announced messages that are not processed completely, each with the offset of its end.
    messages: VecDeque<(MessageKey, u64)>,
    announced: u64,
    /// Offset of the end of the last processed message.
    completed: u64,
    readable: u64,
    /// Number of readable bytes that the application has processed.
    processed: u64,
    /// Ranges of stored bytes, if receivers check them.
    stored: RangeSet,
}

/// The order of messages in one direction of a channel of unary RPCs, at its receiver.
#[derive(Debug, Default)]
struct Order {
    /// The current channel, which a later one on the same route replaces; `None` before the first.
    channel: Option<ChannelId>,
    /// The sequence number of the next message to deliver.
    next: u64,
    /// Messages that arrived before their predecessors, by sequence number.
    early: BTreeMap<u64, Work>,
}

/// A message's position in a channel of unary RPCs, which the driver passes to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The channel, as its client names it.
    pub channel: ChannelId,
    /// Index of the channel among those of this stream of messages from the client to the server.
    pub index: u16,
    /// The message's sequence number in the channel.
    pub sequence: u64,
}

/// The channels of a host: its own, and those of its clients.
#[derive(Debug, Default)]
pub(super) struct Channels {
    next: u64,
    own: BTreeMap<ChannelId, Channel>,
    /// The channel that the next message of each route joins.
    current: BTreeMap<Route, ChannelId>,
    /// The channels whose streams are open, by transport and id.
    open: BTreeMap<(u8, MessageId), ChannelId>,
    /// Number of messages that this host has started to each server, which determines the channel in the round
    /// robin.
    started: BTreeMap<(u16, HostId), u64>,
    served: BTreeMap<Direction, ServedStream>,
    /// The order of requests, by stream of messages, client and index.
    orders: BTreeMap<(u16, HostId, u16), Order>,
}

impl Channels {
    fn own_stream(&mut self, instance: u8, id: MessageId) -> Option<&mut ClientStream> {
        let channel = self.open.get(&(instance, request(id)))?;
        match &mut self.own.get_mut(channel)?.carrier {
            Carrier::Stream(stream) => Some(stream),
            Carrier::Unary(_) => None,
        }
    }

    /// The sender's state of a direction at this host.
    fn sending(&mut self, direction: Direction) -> Option<&mut Sending> {
        if direction.id.is_response() {
            Some(&mut self.served.get_mut(&of_client(direction))?.responses)
        } else {
            Some(&mut self.own_stream(direction.instance, direction.id)?.requests)
        }
    }

    /// The receiver's state of a direction at this host.
    fn receiving(&mut self, direction: Direction) -> Option<&mut Receiving> {
        if direction.id.is_response() {
            Some(&mut self.own_stream(direction.instance, direction.id)?.responses)
        } else {
            Some(&mut self.served.get_mut(&direction)?.requests)
        }
    }

    /// The next read from a direction: whether it is the start of a message, and the number of bytes to the end
    /// of the message.
    pub(super) fn next_read(&self, direction: Direction) -> Option<(bool, u64)> {
        let receiving = if direction.id.is_response() {
            let channel = self.open.get(&(direction.instance, request(direction.id)))?;
            let Carrier::Stream(stream) = &self.own.get(channel)?.carrier else { return None };
            &stream.responses
        } else {
            &self.served.get(&direction)?.requests
        };
        let (_, end) = receiving.messages.front()?;
        Some((receiving.processed == 0, end - receiving.processed))
    }

    /// Removes a message that has ended from its channel.
    pub(super) fn forget_message(&mut self, (channel, sequence): (ChannelId, u64)) {
        if let Some(channel) = self.own.get_mut(&channel) {
            channel.members.remove(&sequence);
        }
    }

    /// The position of a message; `None` unless its channel is one of unary RPCs.
    pub(super) fn place(&self, (id, sequence): (ChannelId, u64)) -> Option<Place> {
        let channel = self.own.get(&id)?;
        let is_unary = matches!(channel.carrier, Carrier::Unary(_));
        is_unary.then_some(Place { channel: id, index: channel.route.index, sequence })
    }

    fn is_stream(&self, id: ChannelId) -> bool {
        self.own.get(&id).is_some_and(|channel| matches!(channel.carrier, Carrier::Stream(_)))
    }
}

const fn request(id: MessageId) -> MessageId {
    MessageId(id.0 & !1)
}

const fn of_client(direction: Direction) -> Direction {
    Direction { id: request(direction.id), ..direction }
}

impl App {
    /// Adds a message that starts to a channel, chosen by round robin.
    pub(super) fn join_channel(&mut self, stream: u16, key: MessageKey) {
        let Some(streaming) = self.streams[usize::from(stream)].streaming else { return };
        let Some(dst) = self.messages.get(key).map(|message| message.dst) else { return };
        let channels = &mut self.channels;
        let started = channels.started.entry((stream, dst)).or_default();
        let index = (*started % u64::from(streaming.per_pair.get())) as u16;
        *started += 1;
        let route = Route { stream, server: dst, index };
        let current = channels.current.get(&route).copied();
        let id = current.unwrap_or_else(|| {
            let id = ChannelId(channels.next);
            channels.next += 1;
            let carrier = match streaming.mode {
                StreamMode::OneId => Carrier::Stream(Box::default()),
                StreamMode::Unary => Carrier::Unary(Order::default()),
            };
            let (members, next_sequence) = (BTreeMap::new(), 0);
            channels.own.insert(id, Channel { route, members, next_sequence, carrier });
            channels.current.insert(route, id);
            id
        });
        if let Some(channel) = channels.own.get_mut(&id) {
            let sequence = channel.next_sequence;
            channel.next_sequence += 1;
            channel.members.insert(sequence, key);
            if let Some(message) = self.messages.get_mut(key) {
                message.channel = Some((id, sequence));
            }
        }
    }

    /// Writes a message to the stream of its channel; returns false if the channel has no stream.
    pub(super) fn write_message(&mut self, key: MessageKey, bytes: u64) -> bool {
        let Some((id, _)) = self.messages.get(key).and_then(|message| message.channel) else {
            return false;
        };
        if !self.channels.is_stream(id) {
            return false;
        }
        let Some(Channel { route, carrier: Carrier::Stream(state), .. }) =
            self.channels.own.get_mut(&id)
        else {
            return false;
        };
        let (instance, peer) = (self.streams[usize::from(route.stream)].instance, route.server);
        let stream = route.stream;
        match &mut state.state {
            OpenState::Closed => {
                state.state = OpenState::Opening(vec![(key, bytes)]);
                let key = self.messages.unused_key();
                self.push(Action::Open { stream, channel: id, key, instance, peer });
            }
            OpenState::Opening(waiting) => waiting.push((key, bytes)),
            OpenState::Open(id) => {
                let direction = Direction { instance, peer, id: *id };
                self.append(stream, direction, key, bytes);
            }
        }
        true
    }

    /// Called after the driver has opened a stream for [`Action::Open`].
    pub fn opened(&mut self, channel: ChannelId, id: MessageId) {
        let Some(Channel { route, carrier: Carrier::Stream(state), .. }) =
            self.channels.own.get_mut(&channel)
        else {
            return;
        };
        let OpenState::Opening(waiting) = std::mem::replace(&mut state.state, OpenState::Open(id))
        else {
            return;
        };
        let (instance, peer) = (self.streams[usize::from(route.stream)].instance, route.server);
        let stream = route.stream;
        self.channels.open.insert((instance, id), channel);
        for (key, bytes) in waiting {
            self.append(stream, Direction { instance, peer, id }, key, bytes);
        }
    }

    /// Called if the transport has refused to open a stream.
    pub fn open_refused(&mut self, now: Time, channel: ChannelId) {
        self.refused += 1;
        self.fail_channel(now, channel, FailReason::Cancelled);
    }

    /// Queues the bytes of a message on a stream.
    pub(super) fn append(
        &mut self,
        stream: u16,
        direction: Direction,
        key: MessageKey,
        bytes: u64,
    ) {
        let ends_when_acked = self.one_way_end == OneWayEnd::WhenSent
            && self.streams[usize::from(stream)].exchange == Exchange::OneWay;
        let Some(sending) = self.channels.sending(direction) else { return };
        sending.queued += bytes;
        if ends_when_acked {
            sending.unacknowledged.push_back((key, sending.queued));
        }
        self.push(Action::Append { stream, direction, key, bytes });
        self.write_ahead(direction);
    }

    /// Writes as many bytes to the transport as the limit allows.
    fn write_ahead(&mut self, direction: Direction) {
        let Some(sending) = self.channels.sending(direction) else { return };
        let bytes = sending.to_write();
        if bytes > 0 {
            sending.written += bytes;
            self.push(Action::Write { direction, bytes });
        }
    }

    /// Called if the transport has refused an [`Action::Write`]. `busy` is set if it may accept the bytes
    /// later.
    pub fn write_refused(&mut self, now: Time, direction: Direction, bytes: u64, busy: bool) {
        let Some(sending) = self.channels.sending(direction) else { return };
        sending.written -= bytes;
        // The bytes can be written when some of the bytes in flight are acknowledged.
        if !busy || sending.written == sending.acked {
            self.refused += 1;
            self.stream_failed(now, direction, FailReason::Cancelled);
        }
    }

    /// Called when a peer sends a message on a stream: `bytes` more of a direction, after those of the messages
    /// before. The driver must call this no later than with the first of these bytes.
    pub fn announce(&mut self, stream: u16, direction: Direction, key: MessageKey, bytes: u64) {
        if !direction.id.is_response() {
            self.channels.served.entry(direction).or_default().stream = stream;
        }
        let Some(receiving) = self.channels.receiving(direction) else { return };
        receiving.announced += bytes;
        receiving.messages.push_back((key, receiving.announced));
    }

    pub(super) fn on_stream_event(&mut self, now: Time, instance: u8, event: StreamEvent) {
        match event {
            StreamEvent::Opened { peer, id } => {
                let direction = Direction { instance, peer, id };
                let served = self.channels.served.entry(direction).or_default();
                assert!(!served.is_open, "stream {id} was opened twice");
                served.is_open = true;
            }
            StreamEvent::Readable { peer, id, bytes, end } => {
                assert!(!end, "the other end never ends stream {id}");
                self.on_readable(now, Direction { instance, peer, id }, bytes);
            }
            StreamEvent::Acked { peer, id, bytes } => {
                self.on_acked(now, Direction { instance, peer, id }, bytes);
            }
            // These streams end only when they fail.
            StreamEvent::Closed { .. } => {}
        }
    }

    fn on_acked(&mut self, now: Time, direction: Direction, bytes: u64) {
        let Some(sending) = self.channels.sending(direction) else { return };
        sending.acked += bytes;
        let (acked, written) = (sending.acked, sending.written);
        assert!(acked <= written, "stream {}: more than was written", direction.id);
        self.write_ahead(direction);
        while let Some(sending) = self.channels.sending(direction)
            && let Some((key, _)) = sending.unacknowledged.pop_front_if(|(_, end)| *end <= acked)
        {
            self.end(now, key, MessageEnd::Completed);
        }
        if !direction.id.is_response()
            && let Some(channel) = self.channels.open.get(&(direction.instance, direction.id))
        {
            self.fail_if_server_is_silent(now, *channel);
        }
    }

    fn on_readable(&mut self, now: Time, direction: Direction, bytes: u64) {
        let (id, verify) = (direction.id, self.verify);
        let stream = if id.is_response() {
            let channel = self.channels.open.get(&(direction.instance, request(id)));
            channel.and_then(|channel| self.channels.own.get(channel)).map(|own| own.route.stream)
        } else {
            self.channels.served.get(&direction).map(|served| {
                assert!(served.is_open, "bytes of stream {id} before it was opened");
                served.stream
            })
        };
        let (Some(stream), Some(receiving)) = (stream, self.channels.receiving(direction)) else {
            return;
        };
        let end = receiving.readable + bytes;
        assert!(end <= receiving.announced, "stream {id}: {end} bytes, which no one wrote");
        if verify {
            assert!(
                receiving.stored.contains_range(receiving.readable..end),
                "stream {id}: {:?} is stored, not all to {end}",
                receiving.stored
            );
            receiving.stored.remove_below(end);
        }
        receiving.readable = end;
        if bytes > 0 {
            self.enqueue_work(now, stream, Work::Bytes { direction, bytes });
        }
    }

    /// Handles bytes of a stream that the application has processed.
    pub(super) fn consumed(&mut self, now: Time, stream: u16, direction: Direction, bytes: u64) {
        let Some(receiving) = self.channels.receiving(direction) else { return };
        receiving.processed += bytes;
        self.push(Action::Consume { direction, bytes });
        let is_answered = self.streams[usize::from(stream)].exchange != Exchange::OneWay;
        let kind = match (direction.id.is_response(), is_answered) {
            (true, _) => Kind::Response,
            (false, true) => Kind::Request,
            (false, false) => Kind::OneWay,
        };
        while let Some(receiving) = self.channels.receiving(direction)
            && let processed = receiving.processed
            && let Some((key, end)) = receiving.messages.pop_front_if(|(_, end)| *end <= processed)
        {
            let bytes = end - receiving.completed;
            receiving.completed = end;
            self.verified += u64::from(self.verify);
            let (peer, id) = (direction.peer, direction.id);
            let direction = Some(direction);
            let message = ReceivedMessage { peer, id, bytes, kind, key, direction, number: 0 };
            self.processed(now, stream, message);
        }
    }

    /// Handles a message of a channel of unary RPCs, which is delivered after its predecessors.
    pub(super) fn arrive_in_order(
        &mut self,
        now: Time,
        stream: u16,
        place: Place,
        message: ReceivedMessage,
    ) {
        let Place { channel, index, sequence } = place;
        let work = Work::Message(message);
        let is_response = message.kind == Kind::Response;
        let Some(order) = self.channels.order(stream, message.peer, place, is_response) else {
            return;
        };
        if sequence < order.next {
            // The message is a retransmission to a server that has crashed since.
            return self.enqueue_work(now, stream, work);
        }
        order.early.insert(sequence, work);
        let place = Place { channel, index, sequence: 0 };
        while let Some(order) = self.channels.order(stream, message.peer, place, is_response)
            && let Some(work) = order.early.remove(&order.next)
        {
            order.next += 1;
            self.enqueue_work(now, stream, work);
        }
    }

    /// Records bytes of a stream that a receiver has stored.
    pub(super) fn store_of_stream(&mut self, instance: u8, peer: HostId, slice: Slice) {
        let direction = Direction { instance, peer, id: slice.message };
        let Some(receiving) = self.channels.receiving(direction) else { return };
        // Offsets count modulo 2^32, and arriving bytes are close to the readable ones.
        let ahead = slice.offset.wrapping_sub(receiving.readable as u32) as i32;
        let start = receiving.readable.checked_add_signed(i64::from(ahead));
        let start = start.expect("bytes from before the stream began");
        receiving.stored.insert(start..start + u64::from(slice.len));
    }

    /// Handles the failure of a stream. Its client fails the messages on it; its server discards its state.
    pub(super) fn stream_failed(&mut self, now: Time, direction: Direction, reason: FailReason) {
        let of_client = of_client(direction);
        let own = self.channels.open.get(&(direction.instance, of_client.id)).copied();
        if let Some(channel) = own.filter(|_| !self.is_served(direction)) {
            self.fail_channel(now, channel, reason);
        } else if self.channels.served.remove(&of_client).is_some() {
            let Direction { instance, peer, id } = of_client;
            self.push(Action::Cancel { instance, peer, id });
            self.push(Action::AbandonStream { direction: of_client, reason });
        }
    }

    /// Whether a stream is one that a peer has opened to this host.
    fn is_served(&self, direction: Direction) -> bool {
        self.channels.served.contains_key(&of_client(direction))
    }

    /// Discards a stream that its peer has abandoned. For drivers that know this without a packet; the
    /// transport reports it as a failure of the stream.
    pub fn forget_stream(&mut self, direction: Direction) {
        self.channels.served.remove(&of_client(direction));
    }

    /// Fails a channel with all its messages.
    pub(super) fn fail_channel(&mut self, now: Time, id: ChannelId, reason: FailReason) {
        let Some(channel) = self.channels.own.remove(&id) else { return };
        let Route { stream, server: peer, .. } = channel.route;
        let instance = self.streams[usize::from(stream)].instance;
        if self.channels.current.get(&channel.route) == Some(&id) {
            self.channels.current.remove(&channel.route);
        }
        match &channel.carrier {
            Carrier::Stream(state) => {
                if let OpenState::Open(id) = state.state {
                    self.channels.open.remove(&(instance, id));
                    self.push(Action::CancelAtBothEnds { instance, peer, id });
                }
            }
            Carrier::Unary(_) => {
                for &key in channel.members.values() {
                    if let Some(id) = self.messages.get(key).and_then(|message| message.id) {
                        self.push(Action::CancelAtBothEnds { instance, peer, id });
                        let id = id.response();
                        self.push(Action::CancelAtBothEnds { instance, peer, id });
                    }
                }
            }
        }
        for key in channel.members.into_values() {
            self.end(now, key, MessageEnd::Failed(reason));
        }
    }

    /// Discards the state of all channels after a crash of this host. The clients of its channels detect that
    /// at their next request, or by [`App::server_crashed`].
    pub(super) fn crash_channels(&mut self, now: Time) {
        let own: Vec<ChannelId> = self.channels.own.keys().copied().collect();
        for id in own {
            self.fail_channel(now, id, FailReason::HostCrashed);
        }
        self.channels.served.clear();
        let early = self.channels.orders.iter_mut().flat_map(|((stream, ..), order)| {
            // One lost message suffices: its client fails the whole channel.
            let lost = order.early.pop_first().map(|(_, work)| (*stream, work));
            order.early.clear();
            lost
        });
        let early: Vec<(u16, Work)> = early.collect();
        for (stream, work) in early {
            self.abandon(stream, work);
        }
    }

    /// Called when a server has crashed, by drivers that know this without a packet. Streams to it continue
    /// while this host has data to send on them, which makes them fail. The client of a stream whose bytes are
    /// all acknowledged would wait indefinitely, so that the stream fails at once. (On a real host the server's
    /// application, or keep-alives, would notify the client.)
    pub fn server_crashed(&mut self, now: Time, server: HostId) {
        let mut to_it = Vec::new();
        for (id, channel) in &mut self.channels.own {
            if channel.route.server == server
                && let Carrier::Stream(state) = &mut channel.carrier
            {
                state.server_forgot = true;
                to_it.push(*id);
            }
        }
        for id in to_it {
            self.fail_if_server_is_silent(now, id);
        }
    }

    /// Whether the server of this host's stream has crashed since the stream was opened. A transport without
    /// any acknowledgement may open it there a second time; the application has lost its state of it.
    #[must_use]
    pub fn is_forgotten_by_server(&self, instance: u8, id: MessageId) -> bool {
        let channel = self.channels.open.get(&(instance, request(id)));
        channel.and_then(|channel| self.channels.own.get(channel)).is_some_and(
            |channel| matches!(&channel.carrier, Carrier::Stream(state) if state.server_forgot),
        )
    }

    /// The stream of messages that a stream of bytes of this host carries, and its server.
    #[must_use]
    pub fn stream_route(&self, instance: u8, id: MessageId) -> Option<(u16, HostId)> {
        let channel = self.channels.open.get(&(instance, request(id)))?;
        let route = self.channels.own.get(channel)?.route;
        Some((route.stream, route.server))
    }

    fn fail_if_server_is_silent(&mut self, now: Time, id: ChannelId) {
        if let Some(Channel { carrier: Carrier::Stream(state), .. }) = self.channels.own.get(&id)
            && state.server_forgot
            && state.requests.acked == state.requests.queued
        {
            self.fail_channel(now, id, FailReason::HostCrashed);
        }
    }
}

impl Channels {
    /// The order of the messages that arrive here on a channel of unary RPCs.
    fn order(
        &mut self,
        stream: u16,
        peer: HostId,
        place: Place,
        is_response: bool,
    ) -> Option<&mut Order> {
        if is_response {
            return match &mut self.own.get_mut(&place.channel)?.carrier {
                Carrier::Unary(order) => Some(order),
                Carrier::Stream(_) => None,
            };
        }
        let order = self.orders.entry((stream, peer, place.index)).or_default();
        if order.channel.is_none_or(|known| known < place.channel) {
            *order = Order { channel: Some(place.channel), ..Order::default() };
        }
        // Late messages of a channel that its client has abandoned are ignored.
        (order.channel == Some(place.channel)).then_some(order)
    }
}
