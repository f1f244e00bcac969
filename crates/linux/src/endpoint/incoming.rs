//! The bytes behind what arrives.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use rackweave_core::{HostId, MessageId, Slice};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Streams arrive into pieces of this size.
const PIECE: usize = 1 << 16;

/// One direction of a stream: from the first byte that the application has not been told of.
#[derive(Debug, Default)]
struct Arriving {
    /// The offset of the first byte of the first piece.
    base: u64,
    pieces: VecDeque<BytesMut>,
}

/// Messages and streams that arrive.
#[derive(Debug)]
pub(super) struct Incoming {
    messages: FxHashMap<(HostId, MessageId), Vec<u8>>,
    streams: FxHashMap<(HostId, MessageId), Arriving>,
    bytes: u64,
    limit: u64,
}

impl Incoming {
    pub(super) fn new(limit: u64) -> Self {
        Self { messages: FxHashMap::default(), streams: FxHashMap::default(), bytes: 0, limit }
    }

    /// All bytes that are kept for what arrives.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there is room for a packet with this slice of a message of this length (`None`: of a
    /// stream). To be asked before the transport learns of the packet.
    pub(super) fn has_room(&self, peer: HostId, slice: Slice, message: Option<u32>) -> bool {
        let key = (peer, slice.message);
        let more = match message {
            Some(_) if self.messages.contains_key(&key) => 0,
            Some(length) => u64::from(length),
            None => match self.streams.get(&key) {
                Some(stream) => {
                    let end = stream.distance(slice.offset) + u64::from(slice.len);
                    end.saturating_sub((stream.pieces.len() * PIECE) as u64)
                }
                None => PIECE as u64,
            },
        };
        self.bytes.saturating_add(more) <= self.limit
    }

    /// Stores what a packet has brought, at its place.
    pub(super) fn store(&mut self, peer: HostId, slice: Slice, message: Option<u32>, bytes: &[u8]) {
        let key = (peer, slice.message);
        let Some(length) = message else {
            let stream = self.streams.entry(key).or_default();
            self.bytes += stream.store(slice.offset, bytes);
            return;
        };
        let total = &mut self.bytes;
        let buffer = self.messages.entry(key).or_insert_with(|| {
            *total += u64::from(length);
            // The system gives zeroed pages only where something is written.
            vec![0; length as usize]
        });
        // A transport checks offsets against the length that came first.
        let start = slice.offset as usize;
        if let Some(place) = buffer.get_mut(start..start.saturating_add(bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }

    /// A message that has arrived whole.
    pub(super) fn take(&mut self, peer: HostId, id: MessageId) -> Option<Bytes> {
        let bytes = self.messages.remove(&(peer, id))?;
        self.bytes -= bytes.len() as u64;
        Some(Bytes::from(bytes))
    }

    /// The next bytes of a stream, which have arrived.
    pub(super) fn read(&mut self, peer: HostId, id: MessageId, bytes: u64) -> SmallVec<[Bytes; 1]> {
        let mut pieces = SmallVec::new();
        let Some(stream) = self.streams.get_mut(&(peer, id)) else { return pieces };
        let mut left = bytes as usize;
        while left > 0
            && let Some(first) = stream.pieces.front_mut()
        {
            let step = left.min(first.len());
            left -= step;
            stream.base += step as u64;
            self.bytes -= step as u64;
            pieces.push(first.split_to(step).freeze());
            if first.is_empty() {
                stream.pieces.pop_front();
            }
        }
        pieces
    }

    /// Forgets a message, or a direction of a stream.
    pub(super) fn remove(&mut self, peer: HostId, id: MessageId) {
        if let Some(bytes) = self.messages.remove(&(peer, id)) {
            self.bytes -= bytes.len() as u64;
        }
        if let Some(stream) = self.streams.remove(&(peer, id)) {
            self.bytes -= stream.pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        }
    }
}

impl Arriving {
    /// How far an offset, modulo 2^32, is behind the base.
    const fn distance(&self, offset: u32) -> u64 {
        offset.wrapping_sub(self.base as u32) as u64
    }

    /// Stores bytes; how much memory that took.
    fn store(&mut self, offset: u32, mut bytes: &[u8]) -> u64 {
        let mut skip = self.distance(offset);
        if skip > 1 << 31 {
            // It begins before what was told of already.
            let known = self.base as u32;
            let known = known.wrapping_sub(offset) as usize;
            bytes = bytes.get(known..).unwrap_or_default();
            skip = 0;
        }
        let mut grown = 0;
        let mut index = 0;
        while !bytes.is_empty() {
            if index == self.pieces.len() {
                self.pieces.push_back(BytesMut::zeroed(PIECE));
                grown += PIECE as u64;
            }
            let piece = &mut self.pieces[index];
            index += 1;
            if skip >= piece.len() as u64 {
                skip -= piece.len() as u64;
                continue;
            }
            let place = &mut piece[skip as usize..];
            let step = place.len().min(bytes.len());
            let (now, later) = bytes.split_at(step);
            place[..step].copy_from_slice(now);
            bytes = later;
            skip = 0;
        }
        grown
    }
}
