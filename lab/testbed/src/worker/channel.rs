//! Messages on channels between real hosts. The simulator knows which message the bytes of a stream belong to, and the
//! position of a unary RPC in its channel. Here a header in front of each message carries this information; it does not
//! count as part of the message. The format is our choice: all numbers are big-endian.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rackweave_core::{HostId, MessageId};
use rackweave_linux::{AnyEndpoint, SendError};
use rackweave_workload::app::{ChannelId, Direction, MessageKey, Place};

/// The length of a [`StreamHeader`] in bytes.
const STREAM_HEADER: usize = 14;

/// The header of a message in a stream: the stream of messages that it belongs to, its key, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamHeader {
    pub(super) stream: u16,
    pub(super) key: MessageKey,
    pub(super) bytes: u32,
}

impl StreamHeader {
    fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(STREAM_HEADER);
        out.extend_from_slice(&self.stream.to_be_bytes());
        out.extend_from_slice(&self.key.0.to_be_bytes());
        out.extend_from_slice(&self.bytes.to_be_bytes());
        out.into()
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let stream = u16::from_be_bytes(take(&mut bytes)?);
        let key = MessageKey(u64::from_be_bytes(take(&mut bytes)?));
        Some(Self { stream, key, bytes: u32::from_be_bytes(take(&mut bytes)?) })
    }
}

/// The header of the request of a unary RPC on a channel: the stream of messages that it belongs to, its key, and its
/// position in the channel. Responses have none, because the client knows the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RpcHeader {
    pub(super) stream: u16,
    pub(super) key: MessageKey,
    pub(super) place: Place,
}

impl RpcHeader {
    /// The length of the header in bytes.
    pub(crate) const BYTES: usize = 28;

    /// Returns the header followed by the message.
    pub(super) fn before(self, message: &[u8]) -> Bytes {
        let Place { channel, index, sequence } = self.place;
        let mut out = Vec::with_capacity(Self::BYTES + message.len());
        out.extend_from_slice(&self.stream.to_be_bytes());
        out.extend_from_slice(&self.key.0.to_be_bytes());
        out.extend_from_slice(&channel.0.to_be_bytes());
        out.extend_from_slice(&index.to_be_bytes());
        out.extend_from_slice(&sequence.to_be_bytes());
        out.extend_from_slice(message);
        out.into()
    }

    /// Splits the header from a message. Returns `None` if the message has none.
    pub(super) fn split(mut bytes: &[u8]) -> Option<(Self, &[u8])> {
        let stream = u16::from_be_bytes(take(&mut bytes)?);
        let key = MessageKey(u64::from_be_bytes(take(&mut bytes)?));
        let channel = ChannelId(u64::from_be_bytes(take(&mut bytes)?));
        let index = u16::from_be_bytes(take(&mut bytes)?);
        let sequence = u64::from_be_bytes(take(&mut bytes)?);
        let place = Place { channel, index, sequence };
        Some((Self { stream, key, place }, bytes))
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// The data that this host writes in one direction of a stream.
#[derive(Debug, Default)]
struct Outgoing {
    /// The headers and messages, alternately, that are not yet written; `true` marks a header.
    waiting: VecDeque<(Bytes, bool)>,
    /// The lengths of what is written and not acknowledged; `true` marks a header.
    unacknowledged: VecDeque<(u64, bool)>,
}

/// The data that this host reads in one direction of a stream.
#[derive(Debug, Default)]
struct Incoming {
    header: Vec<u8>,
    /// The message that is being read, and the number of its bytes read so far.
    message: Option<(StreamHeader, u64)>,
}

/// A piece of the bytes that arrive in a direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Bytes of a header that is still incomplete.
    Front(usize),
    /// The last bytes of a header: a message begins.
    Begin(usize, StreamHeader),
    /// Bytes of a message, from this offset on.
    Body { of: StreamHeader, offset: u64, bytes: Bytes },
}

impl Incoming {
    fn next(&mut self, bytes: &mut Bytes) -> Option<Piece> {
        if bytes.is_empty() {
            return None;
        }
        if let Some((of, offset)) = self.message {
            let left = u64::from(of.bytes) - offset;
            let bytes = bytes.split_to(left.min(bytes.len() as u64) as usize);
            let end = offset + bytes.len() as u64;
            self.message = (end < u64::from(of.bytes)).then_some((of, end));
            return Some(Piece::Body { of, offset, bytes });
        }
        let part = bytes.split_to(bytes.len().min(STREAM_HEADER - self.header.len()));
        self.header.extend_from_slice(&part);
        if self.header.len() < STREAM_HEADER {
            return Some(Piece::Front(part.len()));
        }
        let header = StreamHeader::decode(&self.header)?;
        self.header.clear();
        self.message = (header.bytes > 0).then_some((header, 0));
        Some(Piece::Begin(part.len(), header))
    }
}

/// The open streams of a host.
#[derive(Debug, Default)]
pub(super) struct OpenStreams {
    outgoing: BTreeMap<Direction, Outgoing>,
    incoming: BTreeMap<Direction, Incoming>,
}

impl OpenStreams {
    /// Opens a stream. This host, its client or server, writes in the first direction and reads in the second.
    pub(super) fn open(&mut self, writes: Direction, reads: Direction) {
        self.outgoing.insert(writes, Outgoing::default());
        self.incoming.insert(reads, Incoming::default());
    }

    /// Removes a stream in both directions.
    pub(super) fn close(&mut self, instance: u8, peer: HostId, id: MessageId) {
        let request = MessageId(id.0 & !1);
        for id in [request, request.response()] {
            let direction = Direction { instance, peer, id };
            self.outgoing.remove(&direction);
            self.incoming.remove(&direction);
        }
    }

    /// Queues a message behind its header.
    pub(super) fn append(&mut self, direction: Direction, header: StreamHeader, message: Bytes) {
        if let Some(outgoing) = self.outgoing.get_mut(&direction) {
            outgoing.waiting.extend([(header.encode(), true), (message, false)]);
        }
    }

    /// Writes the next `bytes` of queued messages, and the headers before them.
    ///
    /// # Errors
    /// The endpoint's error, and how many of these bytes are not written.
    pub(super) fn write(
        &mut self,
        endpoint: &mut AnyEndpoint,
        direction: Direction,
        bytes: u64,
    ) -> Result<(), (SendError, u64)> {
        let Some(outgoing) = self.outgoing.get_mut(&direction) else { return Ok(()) };
        let mut left = bytes;
        while left > 0
            && let Some((front, is_header)) = outgoing.waiting.front_mut()
        {
            let is_header = *is_header;
            let most = if is_header { front.len() } else { left as usize };
            let part = front.slice(..most.min(front.len()));
            let len = part.len();
            endpoint
                .write(direction.peer, direction.id, part, false)
                .map_err(|error| (error, left))?;
            outgoing.unacknowledged.push_back((len as u64, is_header));
            if len == front.len() {
                outgoing.waiting.pop_front();
            } else {
                *front = front.slice(len..);
            }
            left -= if is_header { 0 } else { len as u64 };
        }
        Ok(())
    }

    /// Handles the peer's acknowledgement of the next bytes of a direction. Returns how many of them belong to
    /// messages.
    pub(super) fn acknowledged(&mut self, direction: Direction, mut bytes: u64) -> u64 {
        let mut of_messages = 0;
        let Some(outgoing) = self.outgoing.get_mut(&direction) else { return 0 };
        while bytes > 0
            && let Some((len, is_header)) = outgoing.unacknowledged.front_mut()
        {
            let part = bytes.min(*len);
            of_messages += if *is_header { 0 } else { part };
            bytes -= part;
            *len -= part;
            if *len == 0 {
                outgoing.unacknowledged.pop_front();
            }
        }
        of_messages
    }

    /// Returns the next piece of the bytes that arrived in a direction. Returns `None` if there is no more, or no such
    /// stream.
    pub(super) fn read(&mut self, direction: Direction, bytes: &mut Bytes) -> Option<Piece> {
        self.incoming.get_mut(&direction)?.next(bytes)
    }

    /// Returns the messages of an endpoint that have been read in part, with the number of bytes read.
    pub(super) fn arriving(
        &self,
        endpoint: u8,
    ) -> impl Iterator<Item = (Direction, MessageKey, u64)> {
        let of_it = self.incoming.iter().filter(move |(from, _)| from.instance == endpoint);
        of_it.filter_map(|(direction, incoming)| {
            let (header, bytes) = incoming.message?;
            (bytes > 0).then_some((*direction, header.key, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_wherever_a_stream_is_cut() {
        let messages = [(3_u16, 7_u64, 5_u32), (0, 8 << 28, 1), (1, 9, 40)];
        let header = |(stream, key, bytes)| StreamHeader { stream, key: MessageKey(key), bytes };
        let mut sent = Vec::new();
        for message in messages {
            sent.extend_from_slice(&header(message).encode());
            sent.extend((0..message.2).map(|at| at as u8));
        }
        for cut in 1..sent.len() {
            let mut incoming = Incoming::default();
            let (mut found, mut fronts) = (Vec::new(), 0);
            for chunk in sent.chunks(cut) {
                let mut chunk = Bytes::copy_from_slice(chunk);
                while let Some(piece) = incoming.next(&mut chunk) {
                    match piece {
                        Piece::Front(bytes) => fronts += bytes,
                        Piece::Begin(bytes, header) => {
                            fronts += bytes;
                            found.push((header, 0));
                        }
                        Piece::Body { of, offset, bytes } => {
                            let last = found.last_mut().unwrap();
                            assert_eq!((of, offset), *last, "cut to {cut}");
                            assert!(
                                bytes
                                    .iter()
                                    .enumerate()
                                    .all(|(n, byte)| { u64::from(*byte) == offset + n as u64 })
                            );
                            last.1 += bytes.len() as u64;
                        }
                    }
                }
            }
            let expected = messages.map(|message| (header(message), u64::from(message.2)));
            assert_eq!((found, fronts), (expected.to_vec(), 3 * STREAM_HEADER), "cut to {cut}");
        }
    }

    #[test]
    fn the_header_of_an_rpc_is_taken_off_again() {
        let place = Place { channel: ChannelId(1 << 40), index: 2, sequence: 77 };
        let header = RpcHeader { stream: 4, key: MessageKey(5 << 28), place };
        let sent = header.before(b"message");
        assert_eq!(sent.len(), RpcHeader::BYTES + 7);
        assert_eq!(RpcHeader::split(&sent), Some((header, &b"message"[..])));
        assert_eq!(RpcHeader::split(&sent[..RpcHeader::BYTES - 1]), None, "a greeting");
    }

    #[test]
    fn acknowledged_headers_are_no_bytes_of_messages() {
        let direction = Direction { instance: 0, peer: HostId(1), id: MessageId(2) };
        let mut streams = OpenStreams::default();
        streams.open(direction, Direction { id: MessageId(3), ..direction });
        let outgoing = streams.outgoing.get_mut(&direction).unwrap();
        outgoing.unacknowledged.extend([(14, true), (100, false), (14, true), (6, false)]);
        assert_eq!(streams.acknowledged(direction, 10), 0);
        assert_eq!(streams.acknowledged(direction, 54), 50);
        assert_eq!(streams.acknowledged(direction, 70), 56);
        assert_eq!(streams.acknowledged(direction, 5), 0, "nothing is left");
    }
}
