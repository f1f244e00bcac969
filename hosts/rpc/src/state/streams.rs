//! Streams, from either end.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::{HostId, MessageId, Refused, Time};
use rackweave_linux::{AnyEndpoint, SendError};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Due, ROOM_INTERVAL, State, Wake};
use crate::error::CallError;
use crate::node::Peer;

/// A stream's id, and which end of it this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamKey {
    pub(crate) peer: HostId,
    /// The id as the opener counts it, always even.
    id: MessageId,
    /// Whether this end opened it.
    client: bool,
}

impl StreamKey {
    const fn new(peer: HostId, id: MessageId, client: bool) -> Self {
        Self { peer, id: MessageId(id.0 & !1), client }
    }

    pub(super) const fn server(peer: HostId, id: MessageId) -> Self {
        Self::new(peer, id, false)
    }

    /// The receiving end of the direction.
    pub(super) const fn receiving(peer: HostId, direction: MessageId) -> Self {
        Self::new(peer, direction, direction.is_response())
    }

    /// The sending end of the direction.
    pub(super) const fn sending(peer: HostId, direction: MessageId) -> Self {
        Self::new(peer, direction, !direction.is_response())
    }

    /// The direction that this end sends.
    const fn sends(self) -> MessageId {
        if self.client { self.id } else { self.id.response() }
    }

    /// The direction that this end receives.
    const fn receives(self) -> MessageId {
        if self.client { self.id.response() } else { self.id }
    }
}

/// One end of a stream.
#[derive(Debug, Default)]
struct Entry {
    /// Data that has arrived and has not been read.
    unread: VecDeque<Bytes>,
    /// Whether the peer has ended its direction.
    ended: bool,
    /// Whether the application has ended its direction.
    finished: bool,
    /// Whether both ends know that both directions have ended.
    closed: bool,
    error: Option<CallError>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Whether the reading half was dropped.
    no_reader: bool,
    no_writer: bool,
    /// When it is reset, once it has no handles.
    linger: Option<Time>,
}

impl Entry {
    const fn is_over(&self) -> bool {
        self.closed || self.error.is_some()
    }
}

/// All streams of a node.
#[derive(Debug)]
pub(crate) struct Streams {
    entries: FxHashMap<StreamKey, Entry>,
    /// Writers that wait for the node's memory.
    blocked: Vec<StreamKey>,
    /// When they were last woken, and the bytes that waited to be sent when the last of them was blocked.
    woken: Time,
    blocked_at: u64,
    unread: u64,
    /// Bytes read by applications that the endpoint has not been informed of.
    pub(super) unreported: u64,
    /// The number of bytes that are read before the peer's window is updated.
    step: u64,
}

impl Streams {
    pub(super) fn new(step: u64) -> Self {
        Self {
            entries: FxHashMap::default(),
            blocked: Vec::new(),
            woken: Time::ZERO,
            blocked_at: 0,
            unread: 0,
            unreported: 0,
            step,
        }
    }
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
    pub(super) fn is_empty(&self) -> bool {
        self.entries.values().all(Entry::is_over)
    }
    pub(super) const fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }
    pub(super) const fn unread(&self) -> u64 {
        self.unread
    }
}

impl State {
    /// Opens a stream.
    pub(crate) fn open_stream(
        &mut self,
        peer: Peer,
        deadline: Option<Duration>,
    ) -> Result<StreamKey, CallError> {
        if let Some(error) = self.stopped() {
            return Err(error);
        }
        let deadline = deadline.map_or(Time::MAX, |deadline| self.after(deadline));
        match self.endpoint()?.open(peer.host, deadline) {
            Ok(id) => {
                let key = StreamKey::new(peer.host, id, true);
                self.add_stream(key);
                Ok(key)
            }
            Err(error) => Err(self.refused(peer, 0, 0, error)),
        }
    }

    pub(super) fn add_stream(&mut self, key: StreamKey) {
        self.streams.entries.insert(key, Entry::default());
    }

    /// Returns the next bytes of a stream, at most `max`; `None` if it has ended.
    pub(crate) fn poll_read(
        &mut self,
        cx: &Context<'_>,
        key: StreamKey,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, CallError>> {
        let Some(entry) = self.streams.entries.get_mut(&key) else {
            return Poll::Ready(Err(CallError::Cancelled));
        };
        let Some(first) = entry.unread.front_mut() else {
            return match &entry.error {
                _ if entry.ended => Poll::Ready(Ok(None)),
                Some(error) => Poll::Ready(Err(error.clone())),
                None => {
                    entry.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            };
        };
        let bytes = first.split_to(max.min(first.len()));
        if first.is_empty() {
            entry.unread.pop_front();
        }
        self.consumed(key, bytes.len() as u64);
        Poll::Ready(Ok(Some(bytes)))
    }

    /// The application has read bytes.
    fn consumed(&mut self, key: StreamKey, bytes: u64) {
        self.streams.unread -= bytes;
        self.consume(key, bytes);
    }

    fn consume(&mut self, key: StreamKey, bytes: u64) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.consume(key.peer, key.receives(), bytes);
        }
        self.streams.unreported += bytes;
        if self.streams.unreported >= self.streams.step {
            self.submitted();
        }
    }

    /// Returns how many bytes may be written now: at least one.
    pub(crate) fn poll_room(
        &mut self,
        cx: &Context<'_>,
        key: StreamKey,
    ) -> Poll<Result<usize, CallError>> {
        let Some(entry) = self.streams.entries.get_mut(&key) else {
            return Poll::Ready(Err(CallError::Cancelled));
        };
        if let Some(error) = &entry.error {
            return Poll::Ready(Err(error.clone()));
        }
        let Some(endpoint) = &self.endpoint else {
            return Poll::Ready(Err(CallError::NodeStopped(None)));
        };
        let ahead = endpoint.unacknowledged(key.peer, key.sends());
        let room = self.config.write_ahead.saturating_sub(ahead);
        if room > 0 {
            return Poll::Ready(Ok(usize::try_from(room).unwrap_or(usize::MAX)));
        }
        entry.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Writes bytes after [`State::poll_room`] had room. With `end`, nothing follows. It is pending while streams and
    /// calls together fill the node's memory.
    pub(crate) fn poll_write(
        &mut self,
        cx: &Context<'_>,
        key: StreamKey,
        bytes: &Bytes,
        end: bool,
    ) -> Poll<Result<(), CallError>> {
        let len = bytes.len() as u64;
        let sends = key.sends();
        let sent = match self.endpoint() {
            Ok(endpoint) => endpoint.write(key.peer, sends, bytes.clone(), end),
            Err(error) => return Poll::Ready(Err(error)),
        };
        let Some(entry) = self.streams.entries.get_mut(&key) else {
            return Poll::Ready(Err(CallError::Cancelled));
        };
        match sent {
            Ok(()) => {
                entry.finished |= end;
                self.submitted();
                Poll::Ready(Ok(()))
            }
            Err(SendError::Full { .. } | SendError::Refused(Refused::Busy)) => {
                entry.writer = Some(cx.waker().clone());
                if !self.streams.blocked.contains(&key) {
                    self.streams.blocked.push(key);
                }
                self.streams.blocked_at = self.memory();
                self.try_again();
                Poll::Pending
            }
            Err(error) => {
                let peer =
                    Peer { node: self.number, host: key.peer, address: self.peer_addr(key.peer) };
                Poll::Ready(Err(self.refused(peer, len, 0, error)))
            }
        }
    }

    /// Ends this end's direction.
    pub(crate) fn poll_finish(
        &mut self,
        cx: &Context<'_>,
        key: StreamKey,
    ) -> Poll<Result<(), CallError>> {
        match self.streams.entries.get(&key) {
            None => Poll::Ready(Err(CallError::Cancelled)),
            Some(entry) if entry.finished => Poll::Ready(Ok(())),
            Some(entry) => match &entry.error {
                Some(error) => Poll::Ready(Err(error.clone())),
                None => self.poll_write(cx, key, &Bytes::new(), true),
            },
        }
    }

    /// Whether this end has ended its direction.
    pub(crate) fn is_finished(&self, key: StreamKey) -> bool {
        self.streams.entries.get(&key).is_none_or(|entry| entry.finished)
    }

    /// Whether the peer has everything that was written.
    pub(crate) fn poll_acknowledged(
        &mut self,
        cx: &Context<'_>,
        key: StreamKey,
    ) -> Poll<Result<(), CallError>> {
        let Some(entry) = self.streams.entries.get_mut(&key) else {
            return Poll::Ready(Err(CallError::Cancelled));
        };
        if let Some(error) = &entry.error {
            return Poll::Ready(Err(error.clone()));
        }
        let left = self
            .endpoint
            .as_ref()
            .map_or(0, |endpoint| endpoint.unacknowledged(key.peer, key.sends()));
        if left == 0 || entry.closed {
            return Poll::Ready(Ok(()));
        }
        entry.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Resets a stream, which notifies the peer.
    pub(crate) fn reset_stream(&mut self, key: StreamKey) {
        let Some(entry) = self.streams.entries.get_mut(&key) else { return };
        if entry.is_over() {
            return;
        }
        entry.error = Some(CallError::Cancelled);
        let wakers = [entry.reader.take(), entry.writer.take()];
        self.wakes.extend(wakers.into_iter().flatten().map(Wake::Task));
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.cancel(key.peer, key.sends());
        }
        self.wake_blocked();
        self.submitted();
    }

    /// Removes a stream, and resets it if it has not ended.
    pub(crate) fn drop_stream(&mut self, key: StreamKey) {
        self.reset_stream(key);
        self.remove_stream(key);
    }

    fn remove_stream(&mut self, key: StreamKey) {
        let Some(entry) = self.streams.entries.remove(&key) else { return };
        self.streams.unread -= entry.unread.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        if let Some(at) = entry.linger {
            self.due.remove(&(at, Due::Linger(key)));
        }
    }

    /// The application has dropped the reading half.
    pub(crate) fn drop_reader(&mut self, key: StreamKey) {
        let Some(entry) = self.streams.entries.get_mut(&key) else { return };
        entry.no_reader = true;
        let left: u64 = entry.unread.drain(..).map(|bytes| bytes.len() as u64).sum();
        if left > 0 {
            self.consumed(key, left);
        }
        self.leave_stream(key);
    }

    /// The application has dropped the writing half. A direction that it has not ended is reset.
    pub(crate) fn drop_writer(&mut self, key: StreamKey) {
        let Some(entry) = self.streams.entries.get_mut(&key) else { return };
        entry.no_writer = true;
        if !entry.finished {
            self.reset_stream(key);
        }
        self.leave_stream(key);
    }

    /// Removes a stream that has ended and has no handles.
    fn leave_stream(&mut self, key: StreamKey) {
        let at = self.after(self.config.grace);
        let Some(entry) = self.streams.entries.get_mut(&key) else { return };
        if !(entry.no_reader && entry.no_writer) {
            return;
        }
        if entry.is_over() {
            self.remove_stream(key);
        } else if entry.linger.is_none() {
            entry.linger = Some(at);
            self.due.insert((at, Due::Linger(key)));
            self.submitted();
        }
    }

    pub(super) fn on_readable(&mut self, key: StreamKey, pieces: SmallVec<[Bytes; 1]>, end: bool) {
        let Some(entry) = self.streams.entries.get_mut(&key) else { return };
        let bytes: u64 = pieces.iter().map(|bytes| bytes.len() as u64).sum();
        entry.ended |= end;
        if !entry.no_reader {
            entry.unread.extend(pieces);
            self.streams.unread += bytes;
            self.wakes.extend(entry.reader.take().map(Wake::Task));
            return;
        }
        // It has no handles. Once the peer has all data of this end, the stream is reset.
        let done = entry.no_writer
            && self
                .endpoint
                .as_ref()
                .is_some_and(|endpoint| endpoint.unacknowledged(key.peer, key.sends()) == 0);
        if done && bytes > 0 && !end {
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.cancel(key.peer, key.sends());
            }
            self.remove_stream(key);
        } else if let Some(endpoint) = &mut self.endpoint {
            endpoint.consume(key.peer, key.receives(), bytes);
        }
        self.dirty = true;
    }

    pub(super) fn on_written(&mut self, key: StreamKey) {
        if let Some(entry) = self.streams.entries.get_mut(&key) {
            self.wakes.extend(entry.writer.take().map(Wake::Task));
        }
        self.wake_blocked();
    }

    /// Wakes the writers that wait for the node's memory.
    /// Wakes writers that wait for room if there may be some: no event reports that the bytes of a request have been freed by its
    /// answer, or that a transport which refused them has room.
    pub(super) fn retry_blocked(&mut self) {
        if self.streams.blocked.is_empty() {
            return;
        }
        let now = self.endpoint.as_ref().map_or(Time::MAX, AnyEndpoint::last_now);
        if self.memory() < self.streams.blocked_at || now.since(self.streams.woken) >= ROOM_INTERVAL
        {
            self.streams.woken = now;
            self.wake_blocked();
        }
    }

    /// The bytes that wait to be sent.
    fn memory(&self) -> u64 {
        self.endpoint.as_ref().map_or(0, |endpoint| endpoint.memory().0)
    }

    pub(super) fn wake_blocked(&mut self) {
        for key in std::mem::take(&mut self.streams.blocked) {
            if let Some(entry) = self.streams.entries.get_mut(&key) {
                self.wakes.extend(entry.writer.take().map(Wake::Task));
            }
        }
    }

    pub(super) fn on_closed(&mut self, peer: HostId, id: MessageId) {
        // If both ends have opened streams with the same number, the one that is closed here has ended.
        for client in [true, false] {
            let key = StreamKey::new(peer, id, client);
            if let Some(entry) = self.streams.entries.get_mut(&key)
                && entry.ended
                && entry.finished
                && !entry.is_over()
            {
                entry.closed = true;
                self.wakes.extend(entry.writer.take().map(Wake::Task));
                if entry.no_reader && entry.no_writer {
                    self.remove_stream(key);
                }
                return;
            }
        }
    }

    /// Fails a stream; returns `false` if it does not exist.
    pub(super) fn fail_stream(&mut self, peer: HostId, id: MessageId, error: &CallError) -> bool {
        for client in [true, false] {
            let key = StreamKey::new(peer, id, client);
            if let Some(entry) = self.streams.entries.get_mut(&key)
                && !entry.is_over()
            {
                self.end_with(key, error);
                return true;
            }
        }
        false
    }

    fn end_with(&mut self, key: StreamKey, error: &CallError) {
        let Some(entry) = self.streams.entries.get_mut(&key) else { return };
        if entry.is_over() {
            return;
        }
        entry.error = Some(error.clone());
        let wakers = [entry.reader.take(), entry.writer.take()];
        self.wakes.extend(wakers.into_iter().flatten().map(Wake::Task));
        if entry.no_reader && entry.no_writer {
            self.remove_stream(key);
        }
    }

    /// The peer has restarted: its streams fail.
    pub(super) fn restart_streams(&mut self, peer: HostId) {
        let error = CallError::PeerRestarted { peer: self.peer_addr(peer) };
        self.end_streams(peer, &error);
    }

    /// All streams with a peer fail.
    pub(super) fn end_streams(&mut self, peer: HostId, error: &CallError) {
        let mut keys: Vec<_> =
            self.streams.entries.keys().filter(|key| key.peer == peer).copied().collect();
        keys.sort_unstable();
        for key in keys {
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.cancel(peer, key.sends());
            }
            self.end_with(key, error);
        }
    }

    pub(super) fn fail_all_streams(&mut self, error: &CallError) {
        let mut keys: Vec<_> = self.streams.entries.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            self.end_with(key, error);
        }
    }
}
