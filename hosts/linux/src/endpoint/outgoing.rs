//! Buffers of outgoing messages and streams.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use rackweave_core::{HostId, MessageId, Slice};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The most pieces of a packet's payload that are passed to the kernel separately; more are copied into one.
const MAX_PIECES: usize = 2;

/// The payload of a packet.
pub(super) type Payload = SmallVec<[Bytes; MAX_PIECES]>;

/// One direction of a stream: the bytes that are written and not acknowledged.
#[derive(Debug, Default)]
struct Written {
    /// The offset below which all bytes are acknowledged.
    base: u64,
    /// The offset of the next byte to be written.
    end: u64,
    /// Pieces with the offsets of their first bytes; the first piece may be acknowledged partly.
    pieces: VecDeque<(u64, Bytes)>,
}

/// Messages and streams that are being sent.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    messages: FxHashMap<(HostId, MessageId), Bytes>,
    streams: FxHashMap<(HostId, MessageId), Written>,
    bytes: u64,
}

impl Outgoing {
    /// The bytes of all buffers.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn insert(&mut self, peer: HostId, id: MessageId, bytes: Bytes) {
        self.bytes += bytes.len() as u64;
        if let Some(before) = self.messages.insert((peer, id), bytes) {
            self.bytes -= before.len() as u64;
        }
    }

    pub(super) fn open(&mut self, peer: HostId, id: MessageId) {
        self.streams.entry((peer, id)).or_default();
    }

    pub(super) fn write(&mut self, peer: HostId, id: MessageId, bytes: Bytes) {
        let Some(stream) = self.streams.get_mut(&(peer, id)) else { return };
        if !bytes.is_empty() {
            let len = bytes.len() as u64;
            stream.pieces.push_back((stream.end, bytes));
            stream.end += len;
            self.bytes += len;
        }
    }

    /// The number of bytes of a direction that are written and not acknowledged.
    pub(super) fn unacknowledged(&self, peer: HostId, id: MessageId) -> u64 {
        self.streams.get(&(peer, id)).map_or(0, |stream| stream.end - stream.base)
    }

    pub(super) fn acknowledge(&mut self, peer: HostId, id: MessageId, bytes: u64) {
        let Some(stream) = self.streams.get_mut(&(peer, id)) else { return };
        let bytes = bytes.min(stream.end - stream.base);
        stream.base += bytes;
        self.bytes -= bytes;
        while let Some((start, piece)) = stream.pieces.front()
            && start + piece.len() as u64 <= stream.base
        {
            stream.pieces.pop_front();
        }
    }

    /// Frees a message.
    pub(super) fn remove(&mut self, peer: HostId, id: MessageId) {
        if let Some(bytes) = self.messages.remove(&(peer, id)) {
            self.bytes -= bytes.len() as u64;
        }
    }

    /// Frees a direction of a stream.
    pub(super) fn close(&mut self, peer: HostId, id: MessageId) {
        if let Some(stream) = self.streams.remove(&(peer, id)) {
            self.bytes -= stream.end - stream.base;
        }
    }

    /// The bytes of a slice; `None` if they were freed.
    pub(super) fn slice(&self, peer: HostId, slice: Slice) -> Option<Payload> {
        let len = slice.len as usize;
        if let Some(message) = self.messages.get(&(peer, slice.message)) {
            let start = slice.offset as usize;
            let end = start.checked_add(len).filter(|end| *end <= message.len())?;
            return Some(SmallVec::from_iter([message.slice(start..end)]));
        }
        self.streams.get(&(peer, slice.message))?.slice(slice.offset, len)
    }
}

impl Written {
    fn slice(&self, offset: u32, len: usize) -> Option<Payload> {
        // Offsets in streams are modulo 2^32.
        let mut from = self.base + u64::from(offset.wrapping_sub(self.base as u32));
        let end = from.checked_add(len as u64).filter(|end| *end <= self.end)?;
        let first =
            self.pieces.partition_point(|(start, piece)| start + piece.len() as u64 <= from);
        let last = self.pieces.partition_point(|(start, _)| *start < end);
        let parts = self.pieces.range(first..last.max(first)).map(|(start, piece)| {
            let skip = (from - start) as usize;
            let take = (end - from).min((piece.len() - skip) as u64) as usize;
            from += take as u64;
            (piece, skip..skip + take)
        });
        if last.saturating_sub(first) <= MAX_PIECES {
            return Some(parts.map(|(piece, range)| piece.slice(range)).collect());
        }
        let mut copy = BytesMut::with_capacity(len);
        parts.for_each(|(piece, range)| copy.extend_from_slice(&piece[range]));
        Some(SmallVec::from_iter([copy.freeze()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: HostId = HostId(3);
    const ID: MessageId = MessageId(8);

    fn slice(offset: u32, len: u32) -> Slice {
        Slice { message: ID, offset, len }
    }

    fn joined(payload: &Payload) -> Vec<u8> {
        payload.concat()
    }

    #[test]
    fn a_message_is_cut_where_it_is_asked_for() {
        let mut outgoing = Outgoing::default();
        outgoing.insert(PEER, ID, Bytes::from_static(b"abcdef"));
        assert_eq!(joined(&outgoing.slice(PEER, slice(2, 3)).unwrap()), b"cde");
        for (offset, len) in [(4, 3), (7, 1), (u32::MAX, 2), (2, u32::MAX)] {
            assert!(outgoing.slice(PEER, slice(offset, len)).is_none());
        }
        assert!(outgoing.slice(HostId(4), slice(0, 1)).is_none(), "another peer's");
        outgoing.remove(PEER, ID);
        assert_eq!(outgoing.bytes(), 0);
    }

    /// After any sequence of writes and acknowledgements, also around 2^32, the retained bytes are the written ones.
    #[test]
    fn a_stream_of_more_than_four_gigabytes() {
        let byte = |at: u64| (at ^ at >> 8 ^ at >> 32) as u8;
        for base in [0, (1 << 32) - 5000, (3 << 32) - 1, 7 << 32] {
            let mut outgoing = Outgoing::default();
            outgoing.open(PEER, ID);
            if let Some(stream) = outgoing.streams.get_mut(&(PEER, ID)) {
                (stream.base, stream.end) = (base, base);
            }
            let mut rng = rackweave_core::Rng::stream(base, 0, 0, "outgoing");
            let (mut acked, mut written) = (base, base);
            for _ in 0..2000 {
                let len = if rng.chance(0.5) { rng.below(30) } else { rng.below(2000) };
                let bytes: Bytes = (written..written + len).map(byte).collect();
                outgoing.write(PEER, ID, bytes);
                written += len;
                let step = rng.below(written - acked + 1).min(rng.below(3000));
                outgoing.acknowledge(PEER, ID, step);
                acked += step;
                let from = acked + rng.below(written - acked + 1);
                let len = rng.below(1500);
                let found = outgoing.slice(PEER, slice(from as u32, len as u32));
                if from + len > written {
                    assert!(found.is_none());
                } else {
                    let found = found.unwrap();
                    assert!(found.len() <= MAX_PIECES);
                    let expected: Vec<u8> = (from..from + len).map(byte).collect();
                    assert!(joined(&found) == expected, "{from} + {len} of {acked}..{written}");
                }
                // Bytes below the acknowledged offset are gone.
                if acked > base {
                    assert!(outgoing.slice(PEER, slice((acked - 1) as u32, 1)).is_none());
                }
                assert_eq!(outgoing.unacknowledged(PEER, ID), written - acked);
                assert_eq!(outgoing.bytes(), written - acked);
            }
            outgoing.acknowledge(PEER, ID, u64::MAX);
            assert_eq!(outgoing.bytes(), 0);
            outgoing.close(PEER, ID);
            assert_eq!(outgoing.bytes(), 0);
        }
    }
}
