//! The checks of streams in [`Network`](super::Network).

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::{Event, HostId, MessageId, Slice, StreamEvent};

/// One direction at its receiver.
#[derive(Debug, Default)]
struct Inbound {
    /// Ranges that are stored and not yet readable: disjoint, by their start.
    stored: BTreeMap<u64, u64>,
    readable: u64,
    consumed: u64,
    ended: bool,
}

/// One direction at its sender.
#[derive(Clone, Debug, Default)]
struct Outbound {
    written: u64,
    ended: bool,
    acked: u64,
    /// For earlier incarnations of the host: how much was written, and whether that was all.
    past: Vec<(u64, bool)>,
}

impl Outbound {
    fn lengths(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.past.iter().copied().chain([(self.written, self.ended)])
    }

    /// Maximum number of bytes that can arrive of it.
    fn most(&self) -> u64 {
        self.lengths().map(|(written, _)| written).max().unwrap_or(0)
    }
}

/// Records the actions and events of applications, and checks that they are consistent.
#[derive(Debug, Default)]
pub(super) struct StreamChecker {
    /// Opened streams, by client, server and id.
    opened: BTreeSet<(HostId, HostId, MessageId)>,
    /// Directions at their receivers, by host, peer and id.
    inbound: BTreeMap<(HostId, HostId, MessageId), Inbound>,
    outbound: BTreeMap<(HostId, HostId, MessageId), Outbound>,
    /// Streams that the server's application knows, by host, peer and id.
    known: BTreeSet<(HostId, HostId, MessageId)>,
    over: BTreeSet<(HostId, HostId, MessageId)>,
    /// Hosts that have forgotten what their applications read.
    restarted: BTreeSet<HostId>,
}

fn stream_of(id: MessageId) -> MessageId {
    MessageId(id.0 & !1)
}

impl StreamChecker {
    pub(super) fn opened(&mut self, client: HostId, server: HostId, id: MessageId) {
        self.opened.insert((client, server, id));
        self.known.insert((client, server, id));
    }

    /// Whether this direction from `sender` belongs to a stream.
    pub(super) fn is_stream(&self, receiver: HostId, sender: HostId, id: MessageId) -> bool {
        let stream = stream_of(id);
        let (client, server) =
            if id.is_response() { (receiver, sender) } else { (sender, receiver) };
        self.opened.contains(&(client, server, stream))
    }

    pub(super) fn wrote(&mut self, at: HostId, peer: HostId, id: MessageId, bytes: u64, end: bool) {
        let direction = self.outbound.entry((at, peer, id)).or_default();
        assert!(!direction.ended, "{id} is written after its end");
        direction.written += bytes;
        direction.ended = end;
    }

    pub(super) fn consumed(&mut self, at: HostId, peer: HostId, id: MessageId, bytes: u64) {
        // A restarted host does not know what it had read, not even that it was nothing.
        let Some(direction) = self.inbound.get_mut(&(at, peer, id)) else {
            return assert_eq!(bytes, 0, "{id}: nothing was readable");
        };
        direction.consumed += bytes;
        assert!(direction.consumed <= direction.readable, "more is consumed than is there");
    }

    /// Number of bytes of a direction that the receiver may consume.
    pub(super) fn unconsumed(&self, at: HostId, peer: HostId, id: MessageId) -> u64 {
        self.inbound
            .get(&(at, peer, id))
            .map_or(0, |direction| direction.readable - direction.consumed)
    }

    pub(super) fn stored(
        &mut self,
        receiver: HostId,
        sender: HostId,
        slice: Slice,
        window: Option<u64>,
    ) {
        let key = (receiver, sender, slice.message);
        let direction = self.inbound.entry(key).or_default();
        let near = direction.readable;
        let ahead = slice.offset.wrapping_sub(near as u32).cast_signed();
        let start = near.checked_add_signed(i64::from(ahead)).expect("an offset is not negative");
        let end = start + u64::from(slice.len);
        assert!(end > near, "{key:?}: bytes are stored that were read");
        let room = window.map_or(u64::MAX, |window| direction.consumed + window);
        assert!(end <= room, "{key:?}: flow control is exceeded: {end} > {room}");
        let written =
            self.outbound.get(&(sender, receiver, slice.message)).map_or(0, Outbound::most);
        assert!(end <= written, "{key:?}: {end} of {written}");
        let (mut from, mut to) = (start.max(near), end);
        let touching: Vec<u64> = direction
            .stored
            .range(..=to)
            .filter(|&(_, &end)| end >= from)
            .map(|(&start, _)| start)
            .collect();
        for start in touching {
            let end = direction.stored.remove(&start).unwrap_or(start);
            (from, to) = (from.min(start), to.max(end));
        }
        direction.stored.insert(from, to);
    }

    /// Records a host's event of a stream.
    pub(super) fn record_event(&mut self, at: HostId, event: StreamEvent) {
        let (peer, id) = match event {
            StreamEvent::Opened { peer, id }
            | StreamEvent::Readable { peer, id, .. }
            | StreamEvent::Acked { peer, id, .. }
            | StreamEvent::Closed { peer, id } => (peer, id),
        };
        let stream = (at, peer, stream_of(id));
        assert!(!self.over.contains(&stream), "{event:?} at {at} after the end");
        if let StreamEvent::Opened { .. } = event {
            assert!(self.opened.contains(&(peer, at, id)), "{event:?}: nobody opened it");
            assert!(self.known.insert(stream), "{event:?} twice");
            return;
        }
        assert!(self.known.contains(&stream), "{event:?} at {at} before it is opened");
        match event {
            StreamEvent::Opened { .. } => {}
            StreamEvent::Readable { bytes, end, .. } => {
                let from = self.outbound.get(&(peer, at, id)).cloned().unwrap_or_default();
                let direction = self.inbound.entry((at, peer, id)).or_default();
                assert!(!direction.ended, "{event:?} after the end");
                assert!(bytes > 0 || end);
                let start = direction.readable;
                direction.readable += bytes;
                if bytes > 0 {
                    let stored = direction.stored.pop_first();
                    assert_eq!(stored, Some((start, direction.readable)), "all that is in order");
                }
                let complete = from.lengths().any(|length| length == (direction.readable, true));
                assert!(!end || complete, "{event:?} at {at}: {direction:?} of {from:?}");
                direction.ended = end;
            }
            StreamEvent::Acked { bytes, .. } => {
                let direction = self.outbound.entry((at, peer, id)).or_default();
                direction.acked += bytes;
                assert!(bytes > 0 && direction.acked <= direction.written);
            }
            StreamEvent::Closed { .. } => {
                let odd = id.response();
                let (out, inward) =
                    if self.opened.contains(&(at, peer, id)) { (id, odd) } else { (odd, id) };
                let sent = self.outbound.get(&(at, peer, out)).cloned().unwrap_or_default();
                assert!(sent.ended && sent.acked == sent.written, "{event:?} at {at}: {sent:?}");
                let read = self.inbound.get(&(at, peer, inward));
                assert!(read.is_some_and(|read| read.ended), "{event:?} at {at}: {read:?}");
                let there = self.inbound.get(&(peer, at, out));
                assert!(
                    there.is_none_or(|read| read.readable == sent.written)
                        || self.restarted.contains(&peer),
                    "{event:?}: {there:?}"
                );
                self.over.insert(stream);
            }
        }
    }

    /// Records that an RPC has failed at a host, or was cancelled there.
    pub(super) fn ended(&mut self, at: HostId, peer: HostId, id: MessageId) {
        let id = stream_of(id);
        if self.opened.contains(&(at, peer, id)) || self.opened.contains(&(peer, at, id)) {
            assert!(self.over.insert((at, peer, id)), "{id} ends twice at {at}");
        }
    }

    pub(super) fn is_open(&self, at: HostId, peer: HostId, id: MessageId) -> bool {
        self.known.contains(&(at, peer, id)) && !self.over.contains(&(at, peer, id))
    }

    /// Records that a host has lost its state.
    pub(super) fn restarted(&mut self, at: HostId) {
        self.restarted.insert(at);
        self.inbound.retain(|(receiver, ..), _| *receiver != at);
        self.known.retain(|(host, ..)| *host != at);
        self.over.retain(|(host, ..)| *host != at);
        // Bytes that it had written may still arrive.
        for (_, direction) in self.outbound.iter_mut().filter(|((host, ..), _)| *host == at) {
            direction.past.push((direction.written, direction.ended));
            (direction.written, direction.ended, direction.acked) = (0, false, 0);
        }
    }

    /// Number of bytes reported as readable of a direction to this incarnation of its receiver, and whether it
    /// ended.
    pub(super) fn read(&self, at: HostId, peer: HostId, id: MessageId) -> (u64, bool) {
        self.inbound
            .get(&(at, peer, id))
            .map_or((0, false), |inbound| (inbound.readable, inbound.ended))
    }
}

/// Records an event that concerns a stream or ends an RPC.
pub(super) fn note(streams: &mut StreamChecker, at: HostId, event: &Event) {
    match *event {
        Event::Stream(event) => streams.record_event(at, event),
        Event::Failed { peer, id, .. } => streams.ended(at, peer, id),
        Event::Delivered { .. } | Event::Sent { .. } => {}
    }
}
