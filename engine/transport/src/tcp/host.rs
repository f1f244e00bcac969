//! The connections of one host: the order in which they send, their timers, and how they open and close.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rackweave_core::{
    Ecn, Event, FailReason, Framing, HostId, Kind, MessageId, Node, Open, Packet, Placement,
    RecoveryCounters, Refused, Submit, Time, Transport, prefetch,
};
use rackweave_wire::tcp::{Body, Header, flags};
use rustc_hash::{FxHashMap, FxHashSet};

use super::config::Config;
use super::connection::{
    Connection, FIRST_CLIENT_PORT, Key, Role, SERVER_PORT, Timeout, Verdict, l3_bytes,
};
use super::sender::Cancelled;
use super::time_wait::TimeWait;
use crate::common::Outlet;

/// Maximum number of queued packets without a connection (resets, final acknowledgements). Further ones are
/// dropped, as the network may drop any packet.
const MAX_STRAYS: usize = 256;

/// Number of ports of ended connections that are passed over for a new one (RFC 9293, 3.6.1). If many connections end in
/// a short time, their ports are used again at once, as with Linux's `tcp_tw_reuse`.
const PASSED_OVER: u32 = 16;

/// The place of a connection. The flags outlive the connection, since the lists refer to the slot.
#[derive(Debug, Default)]
struct Slot {
    connection: Option<Connection>,
    in_control: bool,
    in_data: bool,
}

/// TCP or DCTCP at one host. See the [module](super).
///
/// Bytes that were sent once are part of the stream: if a message is cancelled after its first segment was
/// sent, the rest of it is sent and retransmitted, too, as long as other messages are on the connection. When cancelled
/// ones are all that is left, their client resets the connection. A request that its server cancels fails at the client
/// with [`FailReason::PeerForgot`], once the server has all of it; the connection and the other messages on it go on.
#[derive(Debug)]
pub struct Host {
    id: HostId,
    config: Arc<Config>,
    slots: Vec<Slot>,
    /// The slots of the connections with each peer: it may be one of tens of thousands.
    by_peer: BTreeSet<(HostId, u32)>,
    /// The number of connections that were searched for a message that is cancelled.
    #[cfg(test)]
    pub(super) searched: u64,
    free: Vec<u32>,
    live: u32,
    index: FxHashMap<Key, u32>,
    /// The connections that this host has opened, by peer.
    pools: FxHashMap<HostId, Vec<u32>>,
    /// Submitted messages that are not acknowledged (requests: not answered), with the slots of their
    /// connections.
    submitted: FxHashMap<(HostId, MessageId), u32>,
    /// Cancelled messages with bytes left in a stream.
    leaving: FxHashSet<(HostId, MessageId)>,
    /// Cancelled messages without anything left to send, until they are polled.
    left: VecDeque<(HostId, MessageId)>,
    /// Delivered requests that are not answered, with the slots of their connections.
    requests: FxHashMap<(HostId, MessageId), u32>,
    /// Connections with a segment without data to send, in round-robin order. Those with data have a list of
    /// their own.
    control: VecDeque<u32>,
    data: VecDeque<u32>,
    strays: VecDeque<Packet<Header>>,
    /// Connections to this host that have ended, each by its key and the peer's initial sequence number. A late duplicate of an opening segment must not open the connection again (the purpose
    /// of TIME-WAIT, RFC 9293, 3.6.1). A restarted client reuses its ports, so that several connections with
    /// one key can end while duplicates of their segments are in flight.
    ended: TimeWait<(Key, u32), ()>,
    /// See [`Transport::arrived_until`].
    handled: Time,
    /// The slots of streams, by their (even) ids.
    pub(super) streams: FxHashMap<(HostId, MessageId), u32>,
    /// The last segments of closed connections of streams.
    pub(super) time_wait: TimeWait<Key, Header>,
    timers: super::timers::Timers,
    events: VecDeque<Event>,
    pub(super) outlet: Outlet,
    recovery: RecoveryCounters,
    /// See [`Transport::not_admitted`].
    not_admitted: u64,
    next_port: u16,
}

impl Host {
    /// Creates a host without connections.
    #[must_use]
    pub fn new(id: HostId, config: impl Into<Arc<Config>>) -> Self {
        let config = config.into();
        let patience = config.patience();
        // Hosts start with different ports, like ephemeral ports, because ECMP hashes them.
        let next_port = FIRST_CLIENT_PORT | rackweave_core::rng::mix(u64::from(id.0)) as u16;
        Self {
            id,
            config,
            slots: Vec::new(),
            by_peer: BTreeSet::new(),
            #[cfg(test)]
            searched: 0,
            free: Vec::new(),
            live: 0,
            index: FxHashMap::default(),
            pools: FxHashMap::default(),
            submitted: FxHashMap::default(),
            leaving: FxHashSet::default(),
            left: VecDeque::new(),
            requests: FxHashMap::default(),
            control: VecDeque::new(),
            data: VecDeque::new(),
            strays: VecDeque::new(),
            ended: TimeWait::new(),
            handled: Time::MAX,
            streams: FxHashMap::default(),
            time_wait: TimeWait::new(),
            timers: super::timers::Timers::default(),
            events: VecDeque::new(),
            outlet: Outlet::new(patience),
            recovery: RecoveryCounters::default(),
            not_admitted: 0,
            next_port,
        }
    }

    /// Number of connections, opened by this host or by peers.
    #[must_use]
    pub const fn connections(&self) -> u32 {
        self.live
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|slot| slot.connection.as_ref())
    }

    /// Number of peers to which this host has connections.
    #[cfg(test)]
    pub(super) fn pools(&self) -> usize {
        self.pools.len()
    }

    /// Sizes of all other state, for tests of memory bounds.
    #[cfg(test)]
    pub(super) fn backlog(&self) -> [usize; 6] {
        let (control, data) = (self.control.len(), self.data.len());
        let (submitted, requests) = (self.submitted.len(), self.requests.len());
        [control, data, submitted, requests, self.strays.len(), self.events.len()]
    }

    /// The connection for the next message to this peer; `None` if the host has too many connections.
    fn pick(&mut self, now: Time, peer: HostId) -> Option<u32> {
        let pool = self.pools.get(&peer).map_or(&[][..], Vec::as_slice);
        let mut least = None;
        for &slot in pool {
            let Some(connection) = &self.slots[slot as usize].connection else { continue };
            if connection.is_idle() {
                return Some(slot);
            }
            let load = (connection.sender.backlog(), connection.exchanges.len(), slot);
            least = Some(least.map_or(load, |other: (u64, usize, u32)| other.min(load)));
        }
        if pool.len() < self.config.connections_per_peer.max(1) as usize
            && let Some(slot) = self.open(now, peer)
        {
            return Some(slot);
        }
        least.map(|load| load.2)
    }

    fn open(&mut self, now: Time, peer: HostId) -> Option<u32> {
        let tries = self.pools.get(&peer).map_or(0, Vec::len) + 1;
        let key = self.free_key(now, peer, SERVER_PORT, tries)?;
        let connection = Connection::client(now, self.id, key, &self.config);
        let slot = self.insert(connection)?;
        self.pools.entry(peer).or_default().push(slot);
        Some(slot)
    }

    /// The key of a new connection to a port of a peer, after at most `tries` port numbers.
    pub(super) fn free_key(
        &mut self,
        now: Time,
        peer: HostId,
        server: u16,
        tries: usize,
    ) -> Option<Key> {
        let mut passed_over = 0;
        for _ in 0..tries {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_CLIENT_PORT);
            let key = Key { peer, ports: u32::from(port) << 16 | u32::from(server) };
            if self.index.contains_key(&key) {
                continue;
            }
            // The peer may still have the connection that has ended here.
            if passed_over < PASSED_OVER && self.time_wait.contains(now, &key, &self.config) {
                passed_over += 1;
                continue;
            }
            return Some(key);
        }
        None
    }

    pub(super) const fn id(&self) -> HostId {
        self.id
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn connection(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots[slot as usize].connection.as_mut()
    }

    pub(super) fn connection_config(&mut self, slot: u32) -> Option<(&mut Connection, &Config)> {
        self.slots[slot as usize].connection.as_mut().map(|connection| (connection, &*self.config))
    }

    pub(super) fn push_event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// The slots of the connections with a peer.
    fn slots_with(&self, peer: HostId) -> impl Iterator<Item = u32> {
        self.by_peer.range((peer, 0)..=(peer, u32::MAX)).map(|(_, slot)| *slot)
    }

    pub(super) fn insert(&mut self, connection: Connection) -> Option<u32> {
        if self.live >= self.config.max_connections {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot::default());
                slot
            }
        };
        self.live += 1;
        self.index.insert(connection.key, slot);
        self.by_peer.insert((connection.key.peer, slot));
        self.slots[slot as usize].connection = Some(connection);
        Some(slot)
    }

    /// Queues a connection for its segments to send, and arms its timer.
    #[inline]
    pub(super) fn reschedule(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        let Some(connection) = &mut place.connection else { return };
        if !place.in_control && connection.control_due() {
            place.in_control = true;
            self.control.push_back(slot);
        }
        if !place.in_data && connection.data_ready(&self.config) {
            place.in_data = true;
            self.data.push_back(slot);
        }
        self.timers.arm(slot, connection.deadline(&self.config));
    }

    /// Reports to the application what an arriving segment has completed.
    #[inline]
    fn report(&mut self, now: Time, slot: u32) {
        let Some(connection) = &mut self.slots[slot as usize].connection else { return };
        if connection.stream.is_some() {
            return self.report_stream(now, slot);
        }
        let peer = connection.key.peer;
        while let Some(message) = connection.sender.pop_acked() {
            if message.cancelled {
                if self.leaving.remove(&(peer, message.id)) {
                    self.left.push_back((peer, message.id));
                }
            } else {
                if message.kind != Kind::Request {
                    self.submitted.remove(&(peer, message.id));
                }
                self.events.push_back(Event::Sent { peer, id: message.id });
            }
        }
        while let Some(message) = connection.receiver.pop_complete() {
            let request = MessageId(message.id.0 & !1);
            if message.cancelled {
                if message.kind == Kind::Request {
                    connection.abandon(now, request);
                }
                continue;
            }
            match message.kind {
                Kind::OneWay => {}
                Kind::Request => {
                    self.requests.insert((peer, request), slot);
                    connection.exchanges.insert(request);
                }
                Kind::Response => {
                    if !connection.exchanges.swap_remove(&request) {
                        continue;
                    }
                    self.submitted.remove(&(peer, request));
                    if message.abandoned {
                        let reason = FailReason::PeerForgot;
                        self.events.push_back(Event::Failed { peer, id: request, reason });
                        continue;
                    }
                }
            }
            let (id, kind) = (message.id, message.kind);
            self.events.push_back(Event::Delivered { peer, id, bytes: message.bytes(), kind });
        }
        self.abort_if_abandoned(now, slot);
    }

    /// Resets a connection on which only cancelled messages are left, instead of sending the rest of them: the peer must
    /// not keep the incomplete ones. Clients of HTTP/1.1 end connections for this reason, too.
    fn abort_if_abandoned(&mut self, now: Time, slot: u32) {
        if self.connection(slot).is_some_and(|connection| connection.is_abandoned()) {
            self.abort(now, slot, FailReason::Cancelled);
        }
    }

    /// Ends a connection at once and resets it at the peer (ABORT, RFC 9293, 3.10.5). Its messages fail with this reason.
    ///
    /// If the reset is lost, the peer learns of the end by the reset that answers its next segment
    /// ([`Host::reset`]), or else discards the connection after twice [`Config::idle_timeout`] of silence.
    pub(super) fn abort(&mut self, now: Time, slot: u32, reason: FailReason) {
        let Some(connection) = self.connection(slot) else { return };
        let (key, header) = (connection.key, connection.reset_header());
        self.last_segment(key, header);
        self.close(now, slot, reason);
    }

    /// Aborts the connections that have waited for too long for a driver that takes no segments.
    fn check_outlet(&mut self, now: Time) {
        if let Some(since) = self.outlet.check(now) {
            for slot in 0..self.slots.len() as u32 {
                let place = &self.slots[slot as usize];
                let waits = place.in_control || place.in_data;
                let is_stuck = |connection: &Connection| {
                    connection.is_in_use() && connection.last_received <= since
                };
                if waits && place.connection.as_ref().is_some_and(is_stuck) {
                    self.abort(now, slot, FailReason::PeerSilent);
                }
            }
        }
        if self.control.is_empty() && self.data.is_empty() {
            self.outlet.rest();
        }
    }

    /// Removes a connection. Its messages fail with this reason.
    pub(super) fn close(&mut self, now: Time, slot: u32, reason: FailReason) {
        let Some(mut connection) = self.slots[slot as usize].connection.take() else { return };
        let peer = connection.key.peer;
        self.live -= 1;
        self.free.push(slot);
        self.timers.remove(slot);
        self.index.remove(&connection.key);
        self.by_peer.remove(&(peer, slot));
        if connection.role == Role::Client
            && let Some(pool) = self.pools.get_mut(&peer)
        {
            pool.retain(|other| *other != slot);
            if pool.is_empty() {
                self.pools.remove(&peer);
            }
        }
        if connection.role == Role::Server {
            let ended = (connection.key, connection.peer_start());
            self.ended.insert((now, self.handled(now)), ended, (), &self.config);
        }
        if connection.stream.is_some() {
            return self.fail_stream(&connection, reason);
        }
        let mut failed = Vec::new();
        for message in connection.sender.drain() {
            if message.cancelled {
                if self.leaving.remove(&(peer, message.id)) {
                    self.left.push_back((peer, message.id));
                }
            } else {
                failed.push(message.id);
            }
        }
        if connection.role == Role::Client {
            failed.extend(connection.exchanges.drain(..));
        }
        for id in failed {
            if self.submitted.remove(&(peer, id)).is_some() {
                self.events.push_back(Event::Failed { peer, id, reason });
            }
        }
        for id in connection.exchanges {
            if self.requests.get(&(peer, id)) == Some(&slot) {
                self.requests.remove(&(peer, id));
                self.events.push_back(Event::Failed { peer, id, reason });
            }
        }
    }

    fn packet(&self, key: Key, header: Header) -> Packet<Header> {
        let config = &self.config;
        let mut packet = Packet::new(self.id, key.peer, l3_bytes(&header, config), header)
            .with_priority(config.priority)
            .sprayed(config.spray);
        packet.ports = key.ports;
        packet
    }

    pub(super) fn stray(&mut self, key: Key, header: Header) {
        self.stray_within(key, header, MAX_STRAYS);
    }

    /// Queues the last segment of a connection. There are no more of these than there were connections, so that they are
    /// never dropped here: each would cost the peer a timeout.
    pub(super) fn last_segment(&mut self, key: Key, header: Header) {
        self.stray_within(key, header, MAX_STRAYS.max(self.config.max_connections as usize));
    }

    fn stray_within(&mut self, key: Key, header: Header, most: usize) {
        if self.strays.len() < most {
            let packet = self.packet(key, header);
            self.strays.push_back(packet);
        }
    }

    /// Answers a segment of an unknown connection with a reset (RFC 9293, 3.5.2). The last segment of an idle connection
    /// needs no answer.
    #[cold]
    fn reset(&mut self, key: Key, header: &Header) {
        let is_last = header.flags & flags::FIN != 0 && matches!(header.body, Body::Ack { .. });
        if header.flags & (flags::ACK | flags::RST) == flags::ACK && !is_last {
            let body = Body::Ack { count: 0, sack: [(0, 0); 3] };
            let reset = Header { seq: header.ack, ack: 0, window: 0, flags: flags::RST, body };
            self.stray(key, reset);
        }
    }

    pub(super) fn remember_closed(&mut self, now: Time, key: Key, last: Header) {
        self.time_wait.insert((now, self.handled(now)), key, last, &self.config);
    }

    /// The time by which all segments that had arrived were handled.
    pub(super) fn handled(&self, now: Time) -> Time {
        now.min(self.handled)
    }

    /// Handles a segment of an unknown connection, which may open it.
    #[cold]
    fn accept(&mut self, now: Time, key: Key, header: &Header) -> Option<u32> {
        let opens = header.flags & (flags::SYN | flags::ACK | flags::RST) == flags::SYN;
        let port = key.ports >> 16;
        let to_server =
            port == u32::from(SERVER_PORT) || port == u32::from(super::stream::STREAM_PORT);
        if !opens && self.answer_closed(now, key, header) {
            return None;
        }
        if !opens || !to_server {
            self.reset(key, header);
            return None;
        }
        if self.ended.contains(self.handled(now), &(key, header.ack), &self.config) {
            return None;
        }
        let slot = self.insert(Connection::server(now, key, header.ack, &self.config));
        self.not_admitted += u64::from(slot.is_none());
        slot
    }

    fn refuse(&self, message: &Submit) -> Result<u32, Refused> {
        if message.bytes == 0 {
            return Err(Refused::Empty);
        }
        if message.id.is_response() != (message.kind == Kind::Response) {
            return Err(Refused::WrongId);
        }
        let max = u64::from(u32::MAX);
        let len = u32::try_from(message.bytes).map_err(|_| Refused::TooLong { max })?;
        if self.submitted.contains_key(&(message.peer, message.id)) {
            return Err(Refused::DuplicateId);
        }
        if self.submitted.len() >= self.config.max_messages as usize {
            return Err(Refused::Busy);
        }
        Ok(len)
    }
}

impl Node for Host {
    type Header = Header;
    type Event = Event;
    type Placement = Placement;

    #[inline]
    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Header>) -> Placement {
        if packet.is_trimmed() {
            // A sequence number without its bytes is of no use to TCP.
            return Placement::Discard;
        }
        let key = Key { peer: packet.src, ports: packet.ports.rotate_left(16) };
        let known = self.index.get(&key).copied();
        let Some(slot) = known.or_else(|| self.accept(now, key, &packet.header)) else {
            return Placement::Discard;
        };
        let Some(connection) = &mut self.slots[slot as usize].connection else {
            return Placement::Discard;
        };
        match connection.handle_segment(now, packet, &self.config) {
            Verdict::Continue(placement) => {
                self.report(now, slot);
                self.reschedule(slot);
                placement
            }
            Verdict::Ended(_) if connection.awaits_last_ack() => {
                self.finish_stream(now, slot);
                Placement::Discard
            }
            Verdict::Ended(reason) => {
                self.close(now, slot, reason);
                Placement::Discard
            }
            Verdict::Stale => {
                self.reset(key, &packet.header);
                Placement::Discard
            }
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        if self.outlet.poll_timeout() <= now {
            self.check_outlet(now);
        }
        while let Some(slot) = self.timers.due(now) {
            let Some(connection) = &mut self.slots[slot as usize].connection else {
                self.timers.remove(slot);
                continue;
            };
            if connection.stream.as_ref().is_some_and(|stream| stream.deadline <= now) {
                self.stream_expired(now, slot);
                continue;
            }
            let before = connection.sender.retries;
            match connection.handle_timeout(now, &self.config) {
                Timeout::Continue => {
                    // Only an expired retransmission timer, or one of a SYN, makes another try.
                    self.recovery.timeouts += u64::from(connection.sender.retries > before);
                    let deadline = connection.deadline(&self.config);
                    self.timers.rearm(slot, deadline);
                    self.reschedule(slot);
                }
                // RFC 9293 (3.8.3) closes the connection. The reset is our choice (Linux: after keep-alives only): a
                // peer that only some packets reach, as behind a smaller MTU, can discard what it has of a message.
                Timeout::Failed => self.abort(now, slot, FailReason::PeerSilent),
                Timeout::Idle => {
                    if connection.role == Role::Client {
                        let (key, fin_header) =
                            (connection.key, connection.fin_header(&self.config));
                        self.stray(key, fin_header);
                    }
                    self.close(now, slot, FailReason::PeerSilent);
                }
            }
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Header>> {
        self.outlet.polled(now);
        if let Some(packet) = self.strays.pop_front() {
            return Some(packet);
        }
        while let Some(slot) = self.control.pop_front() {
            let place = &mut self.slots[slot as usize];
            place.in_control = false;
            let Some(connection) = &mut place.connection else { continue };
            let Some(header) = connection.take_control(now, &self.config) else { continue };
            let key = connection.key;
            self.reschedule(slot);
            return Some(self.packet(key, header));
        }
        while let Some(slot) = self.data.pop_front() {
            let place = &mut self.slots[slot as usize];
            place.in_data = false;
            let Some(connection) = &mut place.connection else { continue };
            let Some((header, is_new)) = connection.take_data(now, &self.config) else { continue };
            let key = connection.key;
            self.recovery.retransmissions += u64::from(!is_new);
            // Whether the window permits another segment is checked when its turn comes.
            if connection.sender.has_more() {
                place.in_data = true;
                self.data.push_back(slot);
            }
            self.timers.arm(slot, connection.deadline(&self.config));
            let packet = self.packet(key, header);
            let is_capable = self.config.is_ecn_capable(is_new);
            return Some(if is_capable { packet.with_ecn(Ecn::Capable) } else { packet });
        }
        None
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        let next = self.timers.next().unwrap_or(Time::MAX).min(self.outlet.poll_timeout());
        (next < Time::MAX).then_some(next)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(&self.slots);
        prefetch(&self.index);
        prefetch(&self.control);
        prefetch(&self.data);
        prefetch(&self.timers);
        prefetch(&self.events);
    }

    #[inline]
    fn prefetch_for(&self, packet: &Packet<Header>) {
        let key = Key { peer: packet.src, ports: packet.ports.rotate_left(16) };
        if let Some(slot) = self.index.get(&key)
            && let Some(connection) = &self.slots[*slot as usize].connection
        {
            prefetch(&connection.sender);
            prefetch(&connection.receiver);
        }
    }
}

impl Transport for Host {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        let len = self.refuse(&message)?;
        let Submit { id, peer, kind, .. } = message;
        let slot = if kind == Kind::Response {
            let request = MessageId(id.0 & !1);
            let slot = self.requests.remove(&(peer, request)).ok_or(Refused::UnknownRequest)?;
            if let Some(connection) = &mut self.slots[slot as usize].connection {
                connection.exchanges.swap_remove(&request);
            }
            slot
        } else {
            self.pick(now, peer).ok_or(Refused::Busy)?
        };
        let Some(connection) = &mut self.slots[slot as usize].connection else {
            return Err(Refused::UnknownRequest);
        };
        connection.submit(now, id, len, kind);
        if kind == Kind::Request {
            connection.exchanges.insert(id);
        }
        self.submitted.insert((peer, id), slot);
        self.outlet.submitted(now);
        self.reschedule(slot);
        Ok(())
    }

    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId) {
        if self.cancel_stream(now, peer, id) {
            return;
        }
        if let Some(slot) = self.submitted.remove(&(peer, id)) {
            if let Some(connection) = &mut self.slots[slot as usize].connection {
                match connection.sender.cancel(id) {
                    Cancelled::Removed if id.is_response() => connection.abandon(now, id),
                    Cancelled::Leaving => drop(self.leaving.insert((peer, id))),
                    Cancelled::Removed | Cancelled::Unknown => {}
                }
                connection.exchanges.swap_remove(&id);
                connection.receiver.cancel(id.response());
            }
            self.abort_if_abandoned(now, slot);
            self.reschedule(slot);
        } else if let Some(slot) = self.requests.remove(&(peer, id)) {
            if let Some(connection) = &mut self.slots[slot as usize].connection {
                connection.exchanges.swap_remove(&id);
                connection.abandon(now, id);
            }
            self.reschedule(slot);
        } else {
            // The message may be arriving, or has ended: after the restart of a peer, an application cancels thousands that have.
            for (_, slot) in self.by_peer.range((peer, 0)..=(peer, u32::MAX)) {
                #[cfg(test)]
                {
                    self.searched += 1;
                }
                let connection = self.slots[*slot as usize].connection.as_mut();
                if connection.is_some_and(|connection| connection.receiver.cancel(id)) {
                    break;
                }
            }
        }
    }

    fn is_leaving(&self, peer: HostId, id: MessageId) -> bool {
        self.leaving.contains(&(peer, id))
    }

    fn poll_left(&mut self) -> Option<(HostId, MessageId)> {
        self.left.pop_front()
    }

    fn arrived_until(&mut self, at: Time) {
        self.handled = at;
    }

    fn peer_restarted(&mut self, now: Time, peer: HostId) {
        for slot in self.slots_with(peer).collect::<Vec<_>>() {
            self.close(now, slot, FailReason::PeerForgot);
        }
    }

    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        let mut connections =
            self.slots_with(peer).filter_map(|slot| self.slots[slot as usize].connection.as_ref());
        connections.any(|connection| connection.is_arriving(id))
    }

    fn framing(&self) -> Framing {
        self.config.framing()
    }

    fn not_admitted(&self) -> u64 {
        self.not_admitted
    }

    fn recovery_counters(&self) -> RecoveryCounters {
        self.recovery
    }

    fn open(&mut self, now: Time, stream: Open) -> Result<(), Refused> {
        self.open_stream(now, stream)
    }

    fn write(
        &mut self,
        now: Time,
        peer: HostId,
        id: MessageId,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        self.write_stream(now, peer, id, bytes, end)
    }

    fn consume(&mut self, _now: Time, peer: HostId, id: MessageId, bytes: u64) {
        self.consume_stream(peer, id, bytes);
    }
}
