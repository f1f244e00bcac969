//! Buffers of incoming messages and streams.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use rackweave_core::{HostId, MessageId, Slice};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Sizes of a stream's buffers: the first one, and the limit up to which each one is twice as long as the previous one.
const PIECES: (usize, usize) = (4 << 10, 64 << 10);

type Key = (HostId, MessageId);

/// A message that is being received.
#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    /// Bytes stored in it; duplicates count twice.
    stored: u64,
    /// The round of [`Incoming::sweep`] in which it last grew.
    round: u32,
}

/// One direction of a stream, from the first byte that was not delivered to the application.
#[derive(Debug, Default)]
struct Arriving {
    /// The offset of the first byte of the first piece.
    base: u64,
    pieces: VecDeque<BytesMut>,
    /// The length of all pieces.
    room: u64,
    /// Pieces allocated so far, counted until they have the greatest length.
    begun: u32,
    round: u32,
}

/// Messages and streams that are being received.
#[derive(Debug)]
pub(super) struct Incoming {
    messages: FxHashMap<Key, Message>,
    streams: FxHashMap<Key, Arriving>,
    /// A message that came in one packet: usually it is taken before the next packet is handled.
    whole: Option<(Key, Bytes)>,
    bytes: u64,
    limit: u64,
    round: u32,
}

impl Incoming {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            messages: FxHashMap::default(),
            streams: FxHashMap::default(),
            whole: None,
            bytes: 0,
            limit,
            round: 0,
        }
    }

    /// The bytes of all buffers.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there is no message and no stream.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.streams.is_empty()
    }

    /// Whether there is room for a packet with this slice of a message of this length (`None`: of a stream). To be checked
    /// before the packet is passed to the transport.
    pub(super) fn has_room(&self, peer: HostId, slice: Slice, message: Option<u32>) -> bool {
        let key = (peer, slice.message);
        // An upper bound of what the packet needs, which saves the exact computation in the usual case.
        let most = message.unwrap_or(0).max(slice.len) as u64 + PIECES.1 as u64;
        if message.is_some() && self.bytes + most <= self.limit {
            return true;
        }
        let more = match message {
            Some(length) => match self.messages.get(&key) {
                Some(known) if known.bytes.len() == length as usize => 0,
                _ => u64::from(length),
            },
            None => match self.streams.get(&key) {
                Some(stream) => stream.lacks(slice),
                None => Arriving::default().lacks(slice),
            },
        };
        self.bytes.saturating_add(more) <= self.limit
    }

    /// Stores the payload of a packet at its offset.
    pub(super) fn store(&mut self, peer: HostId, slice: Slice, message: Option<u32>, bytes: &[u8]) {
        let key = (peer, slice.message);
        let round = self.round;
        let Some(length) = message else {
            let stream = self.streams.entry(key).or_default();
            stream.round = round;
            self.bytes += stream.store(slice.offset, bytes);
            return;
        };
        let length = length as usize;
        if let Some((key, bytes)) = self.whole.take() {
            // The transport delivers it later: with TCP, after the messages that precede it in the stream.
            let stored = bytes.len() as u64;
            self.messages.insert(key, Message { bytes: bytes.into(), stored, round });
        }
        if slice.offset == 0 && bytes.len() == length && !self.messages.contains_key(&key) {
            self.bytes += length as u64;
            self.whole = Some((key, Bytes::copy_from_slice(bytes)));
            return;
        }
        let message =
            self.messages.entry(key).or_insert(Message { bytes: Vec::new(), stored: 0, round });
        if message.bytes.len() != length {
            // New, or the transport has dropped another message of this id without an event.
            self.bytes = self.bytes - message.bytes.len() as u64 + length as u64;
            // The system allocates zeroed pages only when they are written.
            (message.bytes, message.stored) = (vec![0; length], 0);
        }
        message.round = round;
        message.stored += bytes.len() as u64;
        // A transport checks offsets against the length that came first.
        let start = slice.offset as usize;
        if let Some(place) = message.bytes.get_mut(start..start.saturating_add(bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }

    /// The messages that have arrived partly, each with the number of bytes stored, in the order of their ids.
    pub(super) fn arriving(&self) -> Vec<(HostId, MessageId, u64)> {
        let all = self.messages.iter().map(|((peer, id), message)| (*peer, *id, message.stored));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all
    }

    /// Takes a message that has arrived completely.
    pub(super) fn take(&mut self, peer: HostId, id: MessageId) -> Option<Bytes> {
        let key = (peer, id);
        let bytes = match self.whole.take_if(|(whole, _)| *whole == key) {
            Some((_, bytes)) => bytes,
            None => Bytes::from(self.messages.remove(&key)?.bytes),
        };
        self.bytes -= bytes.len() as u64;
        Some(bytes)
    }

    /// Takes the next bytes of a stream, which have arrived.
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
            stream.room -= step as u64;
            self.bytes -= step as u64;
            pieces.push(first.split_to(step).freeze());
            if first.is_empty() {
                stream.pieces.pop_front();
            }
        }
        pieces
    }

    /// Frees a message, or a direction of a stream.
    pub(super) fn remove(&mut self, peer: HostId, id: MessageId) {
        let _ = self.take(peer, id);
        if let Some(stream) = self.streams.remove(&(peer, id)) {
            self.bytes -= stream.room;
        }
    }

    /// Frees what the transport has dropped, among the messages and streams that have not grown since the call before the
    /// last one, or among all of them.
    pub(super) fn sweep(&mut self, all: bool, is_arriving: impl Fn(HostId, MessageId) -> bool) {
        let round = self.round;
        let idle = |grown: u32| all || round.wrapping_sub(grown) > 0;
        let mut freed = 0;
        self.whole.take_if(|((peer, id), bytes)| {
            let gone = !is_arriving(*peer, *id);
            freed += if gone { bytes.len() as u64 } else { 0 };
            gone
        });
        self.messages.retain(|(peer, id), message| {
            let gone = idle(message.round) && !is_arriving(*peer, *id);
            freed += if gone { message.bytes.len() as u64 } else { 0 };
            !gone
        });
        self.streams.retain(|(peer, id), stream| {
            let gone = idle(stream.round) && !is_arriving(*peer, *id);
            freed += if gone { stream.room } else { 0 };
            !gone
        });
        self.bytes -= freed;
        self.round = round.wrapping_add(1);
    }
}

impl Arriving {
    /// The distance from the base to an offset, modulo 2^32; negative if the offset is below the base.
    const fn ahead(&self, offset: u32) -> i64 {
        offset.wrapping_sub(self.base as u32).cast_signed() as i64
    }

    fn next_piece(&mut self) -> usize {
        let size = (PIECES.0 << self.begun).min(PIECES.1);
        self.begun += u32::from(size < PIECES.1);
        size
    }

    /// The most memory that storing a slice can take.
    fn lacks(&self, slice: Slice) -> u64 {
        let end = self.ahead(slice.offset) + i64::from(slice.len);
        match u64::try_from(end).unwrap_or(0).saturating_sub(self.room) {
            0 => 0,
            more => more + PIECES.1 as u64,
        }
    }

    /// Stores bytes; returns how much memory that took.
    fn store(&mut self, offset: u32, mut bytes: &[u8]) -> u64 {
        let ahead = self.ahead(offset);
        let mut skip = ahead.max(0) as u64;
        if ahead < 0 {
            // Its first bytes were delivered already.
            bytes = bytes.get(ahead.unsigned_abs() as usize..).unwrap_or_default();
        }
        let mut grown = 0;
        let mut index = 0;
        while !bytes.is_empty() {
            if index == self.pieces.len() {
                let size = self.next_piece();
                self.pieces.push_back(BytesMut::zeroed(size));
                self.room += size as u64;
                grown += size as u64;
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

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: HostId = HostId(3);
    const ID: MessageId = MessageId(8);

    fn slice(offset: u64, len: usize) -> Slice {
        Slice { message: ID, offset: offset as u32, len: len as u32 }
    }

    fn known(bytes: &[(u64, &[u8])], length: u32) -> Incoming {
        let mut incoming = Incoming::new(1 << 20);
        for (offset, bytes) in bytes {
            incoming.store(PEER, slice(*offset, bytes.len()), Some(length), bytes);
        }
        incoming
    }

    #[test]
    fn a_message_in_any_order() {
        let mut incoming = known(&[(4, b"ef"), (0, b"abc"), (2, b"cd"), (9, b"far beyond")], 6);
        assert_eq!(incoming.bytes(), 6);
        assert_eq!(incoming.take(PEER, ID).unwrap(), &b"abcdef"[..]);
        assert_eq!((incoming.bytes(), incoming.take(PEER, ID)), (0, None));
    }

    #[test]
    fn messages_of_one_packet_that_wait_for_others() {
        let mut incoming = Incoming::new(1 << 20);
        for id in 1..10 {
            let message = MessageId(id * 2);
            incoming.store(PEER, Slice { message, offset: 0, len: 3 }, Some(3), b"abc");
        }
        assert_eq!(incoming.bytes(), 27);
        for id in 1..10 {
            assert_eq!(incoming.take(PEER, MessageId(id * 2)).unwrap(), &b"abc"[..]);
        }
        assert_eq!(incoming.bytes(), 0);
    }

    #[test]
    fn two_peers_use_the_same_name() {
        let mut incoming = known(&[(0, b"ab")], 4);
        incoming.store(HostId(4), slice(0, 4), Some(4), b"wxyz");
        incoming.store(PEER, slice(2, 2), Some(4), b"cd");
        assert_eq!(incoming.take(HostId(4), ID).unwrap(), &b"wxyz"[..]);
        assert_eq!(incoming.take(PEER, ID).unwrap(), &b"abcd"[..]);
    }

    #[test]
    fn another_message_of_a_forgotten_name() {
        let mut incoming = known(&[(0, b"xx")], 600);
        incoming.store(PEER, slice(0, 2), Some(4), b"ab");
        incoming.store(PEER, slice(2, 2), Some(4), b"cd");
        assert_eq!(incoming.bytes(), 4);
        assert_eq!(incoming.take(PEER, ID).unwrap(), &b"abcd"[..]);
        assert_eq!(incoming.bytes(), 0);
    }

    #[test]
    fn what_is_forgotten_is_freed() {
        let mut incoming = known(&[(0, b"ab")], 1000);
        incoming.store(PEER, Slice { message: MessageId(10), offset: 7, len: 1 }, None, b"x");
        incoming.store(PEER, Slice { message: MessageId(12), offset: 0, len: 1 }, Some(1), b"x");
        incoming.sweep(false, |_, id| id == MessageId(12));
        assert!(incoming.bytes() > 1000, "it has only just come");
        incoming.sweep(false, |_, id| id != MessageId(10));
        assert_eq!(incoming.bytes(), 1001);
        incoming.sweep(false, |_, _| false);
        assert!(incoming.is_empty());
        let mut incoming = known(&[(0, b"ab")], 1000);
        incoming.sweep(true, |_, _| false);
        assert!(incoming.is_empty());
    }

    #[test]
    fn room() {
        let mut incoming = Incoming::new(200_000);
        assert!(!incoming.has_room(PEER, slice(0, 1000), Some(200_001)));
        assert!(incoming.has_room(PEER, slice(0, 1000), Some(200_000)));
        incoming.store(PEER, slice(0, 1), Some(200_000), b"x");
        assert!(incoming.has_room(PEER, slice(9000, 1000), Some(200_000)), "it has its room");
        assert!(!incoming.has_room(HostId(9), slice(0, 1), Some(1)));
        assert!(!incoming.has_room(PEER, Slice { message: MessageId(2), offset: 0, len: 1 }, None));
        incoming.remove(PEER, ID);
        assert_eq!(incoming.bytes(), 0);
        assert!(!incoming.has_room(PEER, slice(1 << 30, 1), None), "far ahead");
    }

    /// Reads a stream that passes 2^32 several times, from packets that arrive in any order within its window and are
    /// sometimes duplicated.
    #[test]
    fn a_stream_of_more_than_four_gigabytes() {
        let byte = |at: u64| (at ^ at >> 8 ^ at >> 32) as u8;
        for base in [0, (1 << 32) - 70_000, (3 << 32) - 1, 7 << 32] {
            let mut incoming = Incoming::new(1 << 20);
            incoming.streams.insert((PEER, ID), Arriving { base, ..Arriving::default() });
            let mut rng = rackweave_core::Rng::stream(base, 0, 0, "incoming");
            let mut read = base;
            for _ in 0..300 {
                // A window's worth of packets is delivered in reverse order, each beginning up to 500 bytes earlier.
                let ready = 1 + rng.below(100_000);
                let mut end = read + ready;
                while end > read {
                    let start = end.saturating_sub(1 + rng.below(1400)).max(read);
                    let from = start.saturating_sub(rng.below(500)).max(base);
                    let bytes: Vec<u8> = (from..end).map(byte).collect();
                    let slice = slice(from, bytes.len());
                    assert!(incoming.has_room(PEER, slice, None));
                    incoming.store(PEER, slice, None, &bytes);
                    end = start;
                }
                let pieces = incoming.read(PEER, ID, ready);
                let found = pieces.concat();
                assert!(found.len() as u64 == ready);
                assert!(found.iter().zip(read..).all(|(found, at)| *found == byte(at)));
                read += ready;
                // All packets arrive once more; none of them takes memory.
                let before = incoming.bytes();
                let again = slice(read - ready.min(1400), ready.min(1400) as usize);
                assert!(incoming.has_room(PEER, again, None), "an old packet needs no room");
                incoming.store(PEER, again, None, &vec![0xee; again.len as usize]);
                assert_eq!(incoming.bytes(), before);
            }
            incoming.remove(PEER, ID);
            assert!(incoming.is_empty());
        }
    }
}
