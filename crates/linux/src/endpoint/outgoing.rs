//! The bytes behind what is sent.

use std::collections::VecDeque;

use bytes::Bytes;
use rackweave_core::{HostId, MessageId, Slice};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// One direction of a stream: what is written and not acknowledged.
#[derive(Debug, Default)]
struct Written {
    /// How many bytes have been acknowledged.
    base: u64,
    bytes: u64,
    pieces: VecDeque<Bytes>,
}

/// Messages and streams that are being sent.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    messages: FxHashMap<(HostId, MessageId), Bytes>,
    streams: FxHashMap<(HostId, MessageId), Written>,
    bytes: u64,
}

impl Outgoing {
    /// All bytes that are kept.
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
            self.bytes += bytes.len() as u64;
            stream.bytes += bytes.len() as u64;
            stream.pieces.push_back(bytes);
        }
    }

    /// Bytes of this direction that are written and not acknowledged.
    pub(super) fn unacknowledged(&self, peer: HostId, id: MessageId) -> u64 {
        self.streams.get(&(peer, id)).map_or(0, |stream| stream.bytes)
    }

    pub(super) fn acknowledge(&mut self, peer: HostId, id: MessageId, mut bytes: u64) {
        let Some(stream) = self.streams.get_mut(&(peer, id)) else { return };
        bytes = bytes.min(stream.bytes);
        stream.bytes -= bytes;
        stream.base += bytes;
        self.bytes -= bytes;
        while bytes > 0
            && let Some(first) = stream.pieces.front_mut()
        {
            let step = bytes.min(first.len() as u64);
            bytes -= step;
            let _ = first.split_to(step as usize);
            if first.is_empty() {
                stream.pieces.pop_front();
            }
        }
    }

    /// Forgets a message.
    pub(super) fn remove(&mut self, peer: HostId, id: MessageId) {
        if let Some(bytes) = self.messages.remove(&(peer, id)) {
            self.bytes -= bytes.len() as u64;
        }
    }

    /// Forgets a stream's direction.
    pub(super) fn close(&mut self, peer: HostId, id: MessageId) {
        if let Some(stream) = self.streams.remove(&(peer, id)) {
            self.bytes -= stream.bytes;
        }
    }

    /// The bytes of a slice, not copied; `None` if they are not kept any more.
    pub(super) fn slice(&self, peer: HostId, slice: Slice) -> Option<SmallVec<[Bytes; 2]>> {
        let (offset, len) = (slice.offset, slice.len as usize);
        if let Some(message) = self.messages.get(&(peer, slice.message)) {
            let start = offset as usize;
            let end = start.checked_add(len).filter(|end| *end <= message.len())?;
            return Some(SmallVec::from_iter([message.slice(start..end)]));
        }
        let stream = self.streams.get(&(peer, slice.message))?;
        // Offsets of streams count modulo 2^32.
        let mut skip = offset.wrapping_sub(stream.base as u32) as usize;
        let mut left = len;
        let mut found = SmallVec::new();
        for piece in &stream.pieces {
            if left == 0 {
                break;
            }
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let take = left.min(piece.len() - skip);
            found.push(piece.slice(skip..skip + take));
            left -= take;
            skip = 0;
        }
        (left == 0).then_some(found)
    }
}
