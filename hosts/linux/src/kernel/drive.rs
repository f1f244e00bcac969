//! The turn of an endpoint over TCP: accepting, reading, writing and closing connections, and timers.

use std::cmp::Reverse;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::{FailReason, HostId, Kind, MessageId, Span, Time};
use rustc_hash::FxHashMap;
use rustix::event::{Timespec, epoll};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::connection::{Connection, Owner, Phase};
use super::framing::{Frame, Malformed};
use super::{LISTENER, Stream, TcpConfig, TcpEndpoint, TcpError};
use crate::addresses::{party, plain};
use crate::endpoint::Event;
use crate::sys;

/// The most connections that are served in a turn.
const READY: usize = 256;

/// Bytes that one call reads beyond the message that is being received.
pub(super) const SCRATCH_BYTES: usize = 64 << 10;

/// The most calls to read one connection in a turn.
const READS: usize = 8;

/// The most connections that are accepted in a turn.
const ACCEPTS: usize = 64;

/// Nothing is read while this many events wait for the application.
const MAX_EVENTS: usize = 4096;

/// How long a confirmation waits for data that it can be sent with.
const CONFIRM_AFTER: Span = Span::from_us(200);

/// The most confirmations that one connection collects.
const MAX_CONFIRM: usize = 64;

/// How long a closing connection may take to write what is queued.
const CLOSE_TIMEOUT: Span = Span::from_secs(1);

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum Lost {
    /// The other end has closed or reset it.
    Ended,
    /// The other end does not answer.
    Silent,
    /// The other end is not a peer.
    Foreign,
    /// The other end has violated the protocol.
    Malformed,
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Is;
        match error.kind() {
            Is::TimedOut | Is::HostUnreachable | Is::NetworkUnreachable => Self::Silent,
            _ => Self::Ended,
        }
    }
}

impl From<Malformed> for Lost {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Creates the listening socket.
pub(super) fn listen(config: &TcpConfig) -> Result<(Socket, SocketAddr), TcpError> {
    let address = config.bind;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    // Accepted connections inherit the listener's congestion control.
    if let Some(name) = &config.congestion {
        socket.set_tcp_congestion(name.as_bytes()).map_err(|source| {
            let known =
                std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            let available =
                known.map_or_else(|_| "unknown".into(), |known| known.trim().to_owned());
            TcpError::Congestion { name: name.clone(), source, available }
        })?;
    }
    let bound = socket.bind(&address.into()).and_then(|()| socket.listen(1024));
    bound.map_err(|source| TcpError::Bind { address, source })?;
    let address = socket.local_addr()?.as_socket();
    let address = address.ok_or_else(|| io::Error::other("a socket without an address"))?;
    Ok((socket, address))
}

impl TcpEndpoint {
    /// Accepts connections, reads, writes and serves timers. Returns when the next turn is due if nothing happens before; a
    /// time that has passed means at once.
    ///
    /// # Errors
    /// If epoll has failed.
    pub fn turn(&mut self) -> io::Result<Option<Time>> {
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; READY];
        let ready = match epoll::wait(&self.epoll, &mut buffer[..], Some(&Timespec::default())) {
            Ok((ready, _)) => &*ready,
            Err(rustix::io::Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        let more = ready.len() == READY;
        self.left = more;
        for event in ready {
            let flags = event.flags;
            match event.data.u64() {
                LISTENER => self.accept(),
                token => {
                    self.with(token, |this, connection| this.on_ready(connection, flags));
                }
            }
        }
        Ok(self.serve(more))
    }

    /// [`TcpEndpoint::turn`] without accepting connections, and without looking for connections that have become
    /// readable or writable.
    ///
    /// # Errors
    /// Never; an endpoint over UDP may fail.
    pub fn send_turn(&mut self) -> io::Result<Option<Time>> {
        Ok(self.serve(false))
    }

    /// Whether the last [`TcpEndpoint::turn`] may have left connections ready, because it makes a bounded number of calls. An
    /// edge-triggered event loop, which epoll does not notify of them again, then turns once more.
    #[must_use]
    pub const fn left_events(&self) -> bool {
        self.left
    }

    /// Serves timers, and the connections that have something new to write or room to read.
    fn serve(&mut self, mut more: bool) -> Option<Time> {
        let now = self.config.clock.now();
        self.run_timers(now);
        // Reading may free memory that other connections wait for, which can free more in turn; one turn makes one such
        // round.
        for token in std::mem::take(&mut self.dirty) {
            self.with(token, |this, connection| {
                if !connection.rest.is_empty() || connection.decoder.wanted().is_some() {
                    this.read(connection)?;
                }
                this.write_now(connection)
            });
        }
        more |= !self.dirty.is_empty() || self.events.len() >= MAX_EVENTS;
        if more {
            return Some(now);
        }
        let deadline = self.deadlines.first().map(|first| first.0);
        [deadline, self.confirm_at, self.next_check].into_iter().flatten().min()
    }

    /// Calls a function with a connection, which is closed if the function fails.
    pub(super) fn with(
        &mut self,
        token: u64,
        work: impl FnOnce(&mut Self, &mut Connection) -> Result<(), Lost>,
    ) {
        // It is removed during the call, which may use other connections too.
        let Some(mut connection) = self.connections.remove(&token) else { return };
        match work(self, &mut connection).and_then(|()| self.update_interest(&mut connection)) {
            Ok(()) => {
                self.connections.insert(token, connection);
            }
            Err(lost) => self.on_lost(*connection, &lost),
        }
    }

    /// Whether the connection is not to be read at present.
    pub(super) fn is_held(&self, connection: &Connection) -> bool {
        let stream = connection
            .stream
            .zip(connection.peer)
            .and_then(|(id, peer)| self.streams.get(&(peer, id)));
        connection.decoder.wanted().is_some()
            || stream.is_some_and(|stream| stream.unconsumed >= self.config.stream_window)
    }

    /// Updates the events that epoll reports for the connection.
    fn update_interest(&mut self, connection: &mut Connection) -> Result<(), Lost> {
        connection.shut_if_written();
        let mut interest = epoll::EventFlags::empty();
        if connection.phase == Phase::Connecting || connection.has_waiting() {
            interest |= epoll::EventFlags::OUT;
        }
        if !self.is_held(connection) {
            interest |= epoll::EventFlags::IN;
        }
        if interest != connection.interest {
            let data = epoll::EventData::new_u64(connection.token);
            epoll::modify(&self.epoll, &connection.socket, data, interest)
                .map_err(io::Error::from)?;
            connection.interest = interest;
            // epoll does not report the change if the connection is in its list of ready ones still, where each one stays until
            // the next call to wait.
            self.left = true;
        }
        Ok(())
    }

    fn on_ready(
        &mut self,
        connection: &mut Connection,
        flags: epoll::EventFlags,
    ) -> Result<(), Lost> {
        use epoll::EventFlags as Flags;
        if connection.phase == Phase::Connecting {
            if let Some(error) = connection.error() {
                return Err(error.into());
            }
            if flags.intersects(Flags::HUP | Flags::ERR) {
                return Err(Lost::Ended);
            }
            connection.phase = Phase::Open;
        }
        if connection.greeted {
            connection.active = self.config.clock.now();
        }
        if flags.contains(Flags::IN) {
            self.read(connection)?;
        } else if flags.intersects(Flags::HUP | Flags::ERR) {
            return Err(connection.error().map_or(Lost::Ended, Lost::from));
        }
        if flags.contains(Flags::OUT) {
            self.write_now(connection)?;
            // There may be room for more.
            self.left = true;
        }
        Ok(())
    }

    /// Reads what has arrived, by a bounded number of calls.
    fn read(&mut self, connection: &mut Connection) -> Result<(), Lost> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.read_into(connection, &mut scratch);
        self.scratch = scratch;
        result
    }

    fn read_into(&mut self, connection: &mut Connection, scratch: &mut [u8]) -> Result<(), Lost> {
        self.make_room(connection);
        if !connection.rest.is_empty() {
            let rest = std::mem::take(&mut connection.rest);
            self.decode(connection, &rest)?;
        }
        for _ in 0..READS {
            if self.is_held(connection) || self.events.len() >= MAX_EVENTS {
                break;
            }
            let Some(read) = connection.read(scratch)? else { return Err(Lost::Ended) };
            if matches!(connection.phase, Phase::Closing(_)) {
                // What arrives now is discarded.
                continue;
            }
            if let Some(input) = connection.decoder.filled(read.placed) {
                self.handle(connection, input)?;
            }
            self.decode(connection, &scratch[..read.staged])?;
            if !read.more {
                return Ok(());
            }
        }
        self.left = true;
        Ok(())
    }

    /// Decodes bytes as far as there is room for them, and keeps the rest.
    fn decode(&mut self, connection: &mut Connection, mut bytes: &[u8]) -> Result<(), Lost> {
        while !bytes.is_empty() && !self.is_held(connection) {
            if let Some(input) = connection.decoder.take(&mut bytes)? {
                self.handle(connection, input)?;
            }
        }
        connection.rest = bytes.to_vec();
        Ok(())
    }

    /// Starts to receive the message that waits for memory, if there is enough now.
    pub(super) fn make_room(&mut self, connection: &mut Connection) {
        let Some(bytes) = connection.decoder.wanted() else { return };
        // If no other message is being received, one of any length is accepted.
        if self.arriving == 0 || self.arriving.saturating_add(bytes) <= self.config.receive_bytes {
            self.arriving += bytes;
            self.starved.remove(&connection.token);
            connection.decoder.begin();
        } else if self.starved.insert(connection.token) {
            self.stats.no_room += 1;
        }
    }

    /// Frees memory of incoming messages; connections that wait for memory are served again.
    pub(super) fn release(&mut self, bytes: u64) {
        self.arriving -= bytes;
        if bytes > 0 {
            self.dirty.extend(&self.starved);
        }
    }

    /// Writes what waits, as far as the kernel's buffer has room.
    fn write_now(&mut self, connection: &mut Connection) -> Result<(), Lost> {
        if connection.phase == Phase::Connecting {
            return Ok(());
        }
        if connection.has_waiting() || connection.confirm.len() >= MAX_CONFIRM {
            self.confirm(connection);
        }
        let Some(peer) = connection.peer else { return Ok(()) };
        let (mut frames, mut bytes) = (0, 0);
        let (streams, events) = (&mut self.streams, &mut self.events);
        connection.write(|written| {
            frames += 1;
            let len = written.body.len() as u64;
            bytes += len;
            if let Owner::Stream(id) = written.of
                && let Some(stream) = streams.get_mut(&(peer, id))
                && len > 0
            {
                stream.unwritten -= len;
                let id = if stream.client { id } else { id.response() };
                events.push_back(Event::Written { peer, id, bytes: len });
            }
        })?;
        self.stats.sent += frames;
        self.queued -= bytes;
        Ok(())
    }

    /// Queues the confirmations that have been put off.
    fn confirm(&mut self, connection: &mut Connection) {
        for id in std::mem::take(&mut connection.confirm) {
            connection.control(Frame::Received { id });
        }
        self.confirming.remove(&connection.token);
    }

    /// Confirms a message that has arrived completely with the next write, or soon.
    pub(super) fn confirm_soon(&mut self, connection: &mut Connection, id: MessageId) {
        connection.confirm.push(id);
        if connection.confirm.len() >= MAX_CONFIRM {
            self.dirty.insert(connection.token);
        }
        self.confirming.insert(connection.token);
        let at = self.config.clock.now() + CONFIRM_AFTER;
        self.confirm_at.get_or_insert(at);
    }

    fn run_timers(&mut self, now: Time) {
        if self.confirm_at.is_some_and(|at| at <= now) {
            self.confirm_at = None;
            for token in std::mem::take(&mut self.confirming) {
                if let Some(connection) = self.connections.get_mut(&token) {
                    for id in std::mem::take(&mut connection.confirm) {
                        connection.control(Frame::Received { id });
                    }
                    self.dirty.insert(token);
                }
            }
        }
        while let Some(&(at, peer, id)) = self.deadlines.first()
            && at <= now
        {
            let reason = FailReason::Deadline;
            self.deadlines.pop_first();
            if self.end_stream(peer, id, reason) {
                self.events.push_back(Event::Failed { peer, id, reason });
            }
        }
        if self.next_check.is_some_and(|at| at <= now) {
            self.check_connections(now);
        }
        if self.next_check.is_none() && (self.accept_paused || !self.connections.is_empty()) {
            self.next_check = Some(now + self.check_every());
        }
    }

    fn check_every(&self) -> Span {
        (self.config.silence / 4).min(CLOSE_TIMEOUT)
    }

    /// Closes connections that were not established, do not answer, or have not closed in time.
    fn check_connections(&mut self, now: Time) {
        self.next_check = None;
        if std::mem::take(&mut self.accept_paused) {
            self.set_listening(true);
        }
        let silence = self.config.silence;
        let patience = Duration::from_nanos(silence.as_ns());
        let mut over = Vec::new();
        for connection in self.connections.values() {
            let silent = match connection.phase {
                Phase::Closing(until) => until <= now,
                _ if !connection.greeted => now.since(connection.began) > silence,
                _ if connection.exchanges.is_empty() => false,
                _ => matches!(
                    sys::unanswered_for(&connection.socket), Ok(Some(span)) if span > patience
                ),
            };
            if silent {
                over.push(connection.token);
            }
        }
        for token in over {
            self.with(token, |_, _| Err(Lost::Silent));
        }
    }

    fn set_listening(&self, on: bool) {
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        // If this fails, connections are accepted nevertheless, or the next check tries again.
        let _ =
            epoll::modify(&self.epoll, &self.listener, epoll::EventData::new_u64(LISTENER), flags);
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok((socket, from)) => {
                    let from = from.as_socket().map(|from| plain(from).ip());
                    let Some(from) = from.filter(|from| self.peers.admits(*from)) else {
                        self.stats.foreign += 1;
                        self.counts.refused += 1;
                        continue;
                    };
                    let is_named = self.peers.names(from);
                    let from = party(from);
                    if !self.makes_room(from, is_named) {
                        self.counts.refused += 1;
                    } else if let Ok(mut connection) = self.register(socket) {
                        connection.from = Some((from, is_named));
                        self.counts.accepted += 1;
                        self.connections.insert(connection.token, Box::new(connection));
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        // Most likely there are no descriptors left: epoll would report the listener continuously.
                        self.accept_paused = true;
                        self.set_listening(false);
                        return;
                    }
                },
            }
        }
        self.left = true;
    }

    /// Whether there is a place for one more accepted connection of a party, also because a stranger loses one. First one goes that has
    /// not said who it is, then an unused one, both of parties that have at least as many as this one; then one in use, unless this
    /// party would then have as many as its holder; then what this party does not use itself. Among these the party that has most loses
    /// the one that is silent for longest. Configured peers come last, and have places of their own.
    fn makes_room(&mut self, newcomer: IpAddr, is_named: bool) -> bool {
        let most = self.config.max_accepted;
        let accepted = || self.connections.values().map(|of| &**of).filter(|of| !of.ours);
        let strangers = || {
            let of_strangers = accepted().filter_map(|of| Some((of, of.from?)));
            of_strangers.filter(|(_, (_, named))| !named).map(|(of, (from, _))| (of, from))
        };
        if accepted().count() < most && (is_named || strangers().count() < most - most / 8) {
            return true;
        }
        let mut held = FxHashMap::<IpAddr, usize>::default();
        strangers().for_each(|(_, from)| *held.entry(from).or_insert(0) += 1);
        let held = |party| held.get(&party).copied().unwrap_or(0);
        let own = held(newcomer);
        let places = strangers().filter_map(|(of, from)| {
            let is_used = of.greeted && !of.is_idle();
            let least = if is_used { own + 2 } else { own };
            let class = (from == newcomer, is_used, of.greeted);
            let rank = (class, Reverse(held(from)), of.active, of.token);
            (held(from) >= least).then_some(rank)
        });
        let named = || accepted().find(|of| !of.greeted && of.from.is_some_and(|(_, named)| named));
        let gone = places.min().map(|(.., token)| token);
        let gone = gone.or_else(|| named().filter(|_| is_named).map(|of| of.token));
        if let Some(token) = gone {
            self.counts.refused += 1;
            self.drop_connection(token);
        }
        gone.is_some()
    }

    /// Sets a socket's options, and adds it to epoll.
    fn register(&mut self, socket: Socket) -> io::Result<Connection> {
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(self.config.nodelay)?;
        socket.set_tcp_notsent_lowat(self.config.write_ahead)?;
        let patience = Duration::from_nanos(self.config.silence.as_ns());
        let second = Duration::from_secs(1);
        let keepalive = TcpKeepalive::new()
            .with_time((patience / 2).max(second))
            .with_interval((patience / 6).max(second))
            .with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        self.next_token += 1;
        let token = self.next_token;
        let interest = epoll::EventFlags::IN;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(token), interest)?;
        let now = self.config.clock.now();
        Ok(Connection::new(socket, token, now, self.config.max_message_bytes))
    }

    /// Makes a connection to a peer.
    fn connect(&mut self, peer: HostId) -> io::Result<u64> {
        let address = self.peers.get(peer).map(|peer| peer.address);
        let address = address.ok_or(io::ErrorKind::NotFound)?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(name) = &self.config.congestion {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        let from = self.address.ip();
        if !from.is_unspecified() && from.is_ipv4() == address.is_ipv4() {
            sys::bind_late(&socket)?;
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        let mut connection = self.register(socket)?;
        match connection.socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                connection.phase = Phase::Connecting;
            }
            Err(error) => return Err(error),
        }
        (connection.ours, connection.peer) = (true, Some(peer));
        let (host, incarnation) = (self.config.host.0, self.incarnation);
        connection.control(Frame::Hello { host, incarnation, port: self.address.port() });
        let token = connection.token;
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.connections.push(token);
        }
        self.counts.made += 1;
        self.connections.insert(token, Box::new(connection));
        self.with(token, |_, _| Ok(()));
        if self.connections.contains_key(&token) {
            Ok(token)
        } else {
            Err(io::ErrorKind::NotConnected.into())
        }
    }

    /// The connection for a message: an idle one, else a new one, else the one with the fewest bytes to be written.
    pub(super) fn connection_for_message(&mut self, peer: HostId) -> Option<u64> {
        let known = &self.peers.get(peer)?.connections;
        let of = |token: &u64| self.connections.get(token);
        if let Some(idle) = known.iter().rev().filter_map(of).find(|known| known.is_idle()) {
            return Some(idle.token);
        }
        let usable = known
            .iter()
            .filter_map(of)
            .filter(|known| known.stream.is_none() && !matches!(known.phase, Phase::Closing(_)));
        let count = usable.clone().count();
        let least = usable.min_by_key(|known| (known.waiting_bytes(), known.exchanges.len()));
        let least = least.map(|known| known.token);
        if count < self.config.connections_per_peer.max(1) as usize {
            return self.connect(peer).ok().or(least);
        }
        least
    }

    /// The connection for a stream: an idle one, else a new one.
    pub(super) fn connection_for_stream(&mut self, peer: HostId) -> Option<u64> {
        let known = &self.peers.get(peer)?.connections;
        let of = |token: &u64| self.connections.get(token);
        let idle = known.iter().rev().filter_map(of).find(|known| known.is_idle());
        idle.map(|known| known.token).or_else(|| self.connect(peer).ok())
    }

    pub(super) fn begin_stream(
        &mut self,
        token: u64,
        peer: HostId,
        id: MessageId,
        client: bool,
        deadline: Time,
    ) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.stream = Some(id);
            connection.exchanges.insert(id);
        }
        self.insert_stream(token, peer, id, client, deadline);
    }

    pub(super) fn insert_stream(
        &mut self,
        token: u64,
        peer: HostId,
        id: MessageId,
        client: bool,
        deadline: Time,
    ) {
        if deadline != Time::MAX {
            self.deadlines.insert((deadline, peer, id));
        }
        if let Some(peer) = self.peers.get_mut(peer) {
            let count = if client { &mut peer.streams.0 } else { &mut peer.streams.1 };
            *count += 1;
        }
        let stream = Stream {
            token,
            client,
            deadline,
            ended: false,
            confirmed: false,
            end_received: false,
            unwritten: 0,
            unconsumed: 0,
        };
        self.streams.insert((peer, id), stream);
    }

    /// Forgets a stream; its connection is updated by its caller.
    pub(super) fn remove_stream(&mut self, peer: HostId, id: MessageId) -> Option<Stream> {
        let stream = self.streams.remove(&(peer, id))?;
        self.deadlines.remove(&(stream.deadline, peer, id));
        self.unconsumed -= stream.unconsumed;
        if let Some(peer) = self.peers.get_mut(peer) {
            let count = if stream.client { &mut peer.streams.0 } else { &mut peer.streams.1 };
            *count -= 1;
        }
        Some(stream)
    }

    /// Cancels a stream at both ends; its connection is closed.
    pub(super) fn end_stream(&mut self, peer: HostId, id: MessageId, reason: FailReason) -> bool {
        let Some(stream) = self.remove_stream(peer, id) else { return false };
        let until = self.config.clock.now() + CLOSE_TIMEOUT;
        self.with(stream.token, |this, connection| {
            this.close_stream(connection, id, until);
            connection.control(Frame::Cancel { id, reason });
            Ok(())
        });
        self.dirty.insert(stream.token);
        true
    }

    /// Closes a connection whose stream was cancelled.
    fn close_stream(&mut self, connection: &mut Connection, id: MessageId, until: Time) {
        let withdrawn = connection.withdraw(|of| of == Owner::Stream(id));
        self.queued -= withdrawn.iter().map(|waiting| waiting.body.len() as u64).sum::<u64>();
        connection.exchanges.remove(&id);
        connection.stream = None;
        connection.phase = Phase::Closing(until);
        self.next_check.get_or_insert(until);
    }

    /// Handles the cancellation of a stream by the peer.
    pub(super) fn stream_cancelled(
        &mut self,
        connection: &mut Connection,
        peer: HostId,
        id: MessageId,
        reason: FailReason,
    ) {
        self.remove_stream(peer, id);
        let until = self.config.clock.now() + CLOSE_TIMEOUT;
        self.close_stream(connection, id, until);
        self.events.push_back(Event::Failed { peer, id, reason });
    }

    /// Closes a connection that is not needed any more.
    pub(super) fn drop_connection(&mut self, token: u64) {
        self.with(token, |_, _| Err(Lost::Ended));
    }

    /// Closes a connection that was opened for a stream, if there are enough for messages without it.
    pub(super) fn close_if_surplus(&mut self, connection: &mut Connection, peer: HostId) {
        let most = self.config.connections_per_peer.max(1) as usize;
        let Some(known) = self.peers.get(peer).filter(|_| connection.ours) else { return };
        let others = known.connections.iter().filter_map(|token| self.connections.get(token));
        if others.filter(|other| other.stream.is_none()).count() >= most {
            connection.phase = Phase::Closing(self.config.clock.now() + CLOSE_TIMEOUT);
        }
    }

    /// Handles the end of a connection: everything that was in progress on it fails.
    fn on_lost(&mut self, mut connection: Connection, why: &Lost) {
        let token = connection.token;
        self.starved.remove(&token);
        self.confirming.remove(&token);
        self.release(connection.decoder.held());
        match why {
            Lost::Malformed => self.stats.malformed += 1,
            Lost::Foreign => {
                self.stats.foreign += 1;
                self.counts.refused += 1;
            }
            Lost::Ended | Lost::Silent => {}
        }
        let Some(peer) = connection.peer else { return };
        if let Some(known) = self.peers.get_mut(peer) {
            if connection.ours {
                known.connections.retain(|known| *known != token);
            } else {
                known.accepted -= 1;
            }
        }
        let answered = connection.greeted && !matches!(why, Lost::Silent);
        let reason = if answered { FailReason::PeerForgot } else { FailReason::PeerSilent };
        // Messages without a written byte are sent over another connection, but only if the peer has answered on
        // this one: otherwise a peer that accepts connections and closes them would cause an endless loop.
        let unsent = connection.withdraw(|of| {
            answered && matches!(of, Owner::Message(_, Kind::OneWay | Kind::Request))
        });
        let left = connection.withdraw_all();
        self.queued -=
            unsent.iter().chain(&left).map(|waiting| waiting.body.len() as u64).sum::<u64>();
        for waiting in &unsent {
            if let Owner::Message(id, _) = waiting.of {
                connection.exchanges.remove(&id);
                self.outgoing.remove(&(peer, id));
            }
        }
        if !connection.exchanges.is_empty() {
            self.counts.lost += 1;
        }
        for id in std::mem::take(&mut connection.exchanges) {
            let known = self.remove_stream(peer, id).is_some()
                || self.outgoing.remove(&(peer, id)).is_some()
                || self.serving.remove(&(peer, id)).is_some();
            if known {
                self.events.push_back(Event::Failed { peer, id, reason });
            }
        }
        drop(connection);
        for waiting in unsent {
            if let Owner::Message(id, kind) = waiting.of {
                let bytes: Bytes = waiting.body;
                self.dispatch(peer, id, kind, bytes);
            }
        }
    }
}
