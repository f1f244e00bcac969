//! Decodes the bytes of a connection, without I/O.

use bytes::{Bytes, BytesMut};
use rackweave_core::{FailReason, Kind, MessageId};

use super::framing::{Frame, HEADER_BYTES, Malformed};

/// A decoded frame, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    Hello {
        host: u32,
        incarnation: u64,
        port: u16,
    },
    /// A message of this length begins; [`Decoder::begin`] is to be called when there is room for it.
    Begins {
        bytes: u64,
    },
    Message {
        kind: Kind,
        id: MessageId,
        bytes: Bytes,
    },
    Received {
        id: MessageId,
    },
    Cancel {
        id: MessageId,
        reason: FailReason,
    },
    Open {
        id: MessageId,
        left_ns: Option<u64>,
    },
    Data {
        id: MessageId,
        bytes: Bytes,
        end: bool,
    },
}

#[derive(Debug)]
enum State {
    /// A header, and how many of its bytes have arrived.
    Header([u8; HEADER_BYTES], usize),
    /// The header of a message that waits for memory.
    Held { kind: Kind, id: MessageId, bytes: u64 },
    /// A message; `filled` bytes of it have arrived.
    Message { kind: Kind, id: MessageId, buffer: Vec<u8>, filled: usize },
    /// Data of a stream; `left` bytes of it have not arrived.
    Data { id: MessageId, left: usize, end: bool, buffer: BytesMut },
}

/// An incremental decoder. Lengths are limited, and memory is only allocated by [`Decoder::begin`].
#[derive(Debug)]
pub(super) struct Decoder {
    state: State,
    max_message: u64,
}

const EMPTY: State = State::Header([0; HEADER_BYTES], 0);

impl Decoder {
    pub(super) const fn new(max_message: u64) -> Self {
        Self { state: EMPTY, max_message }
    }

    /// The memory of the message that is being received.
    pub(super) const fn held(&self) -> u64 {
        match &self.state {
            State::Message { buffer, .. } => buffer.len() as u64,
            _ => 0,
        }
    }

    /// The message that is being received, and how many of its bytes have arrived.
    pub(super) const fn arriving(&self) -> Option<(MessageId, u64)> {
        match &self.state {
            State::Message { kind, id, filled, .. } => {
                let id = if matches!(kind, Kind::Response) { id.response() } else { *id };
                Some((id, *filled as u64))
            }
            _ => None,
        }
    }

    /// The length of a message that waits for [`Decoder::begin`].
    pub(super) const fn wanted(&self) -> Option<u64> {
        match self.state {
            State::Held { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Allocates the message that waits for memory.
    pub(super) fn begin(&mut self) {
        if let State::Held { kind, id, bytes } = self.state {
            // The system allocates zeroed pages only when they are written.
            let buffer = vec![0; bytes as usize];
            self.state = State::Message { kind, id, buffer, filled: 0 };
        }
    }

    /// The buffer into which the next bytes may be read directly, followed by [`Decoder::filled`]; it may be empty.
    pub(super) fn place(&mut self) -> &mut [u8] {
        match &mut self.state {
            State::Message { buffer, filled, .. } => &mut buffer[*filled..],
            State::Data { left, buffer, .. } => {
                if buffer.is_empty() {
                    *buffer = BytesMut::zeroed(*left);
                }
                buffer
            }
            State::Header(..) | State::Held { .. } => &mut [],
        }
    }

    /// Reports that this many bytes were read into [`Decoder::place`].
    pub(super) fn filled(&mut self, count: usize) -> Option<Input> {
        match &mut self.state {
            State::Message { kind, id, buffer, filled } => {
                *filled += count;
                if *filled < buffer.len() {
                    return None;
                }
                let (kind, id, bytes) = (*kind, *id, Bytes::from(std::mem::take(buffer)));
                self.state = EMPTY;
                Some(Input::Message { kind, id, bytes })
            }
            State::Data { id, left, end, buffer } if count > 0 => {
                *left -= count;
                let last = *left == 0;
                let input = Input::Data {
                    id: *id,
                    bytes: buffer.split_to(count).freeze(),
                    end: *end && last,
                };
                if last {
                    self.state = EMPTY;
                }
                Some(input)
            }
            _ => None,
        }
    }

    /// Decodes bytes up to the end of the next input and removes them from the front. `None` if all were consumed, or if
    /// the next message waits for memory.
    pub(super) fn take(&mut self, from: &mut &[u8]) -> Result<Option<Input>, Malformed> {
        while !from.is_empty() {
            match &mut self.state {
                State::Header(header, filled) => {
                    let step = from.len().min(HEADER_BYTES - *filled);
                    let (now, later) = from.split_at(step);
                    header[*filled..*filled + step].copy_from_slice(now);
                    *filled += step;
                    *from = later;
                    if *filled == HEADER_BYTES {
                        let frame = Frame::decode(header, self.max_message)?;
                        if let Some(input) = self.enter(frame) {
                            return Ok(Some(input));
                        }
                    }
                }
                State::Held { .. } => return Ok(None),
                State::Message { buffer, filled, .. } => {
                    let step = from.len().min(buffer.len() - *filled);
                    let (now, later) = from.split_at(step);
                    buffer[*filled..*filled + step].copy_from_slice(now);
                    *from = later;
                    if let Some(input) = self.filled(step) {
                        return Ok(Some(input));
                    }
                }
                State::Data { id, left, end, buffer } => {
                    let step = from.len().min(*left);
                    let (now, later) = from.split_at(step);
                    *from = later;
                    *left -= step;
                    // A place that was handed out and not filled is discarded.
                    buffer.clear();
                    let last = *left == 0;
                    let bytes = Bytes::copy_from_slice(now);
                    let input = Input::Data { id: *id, bytes, end: *end && last };
                    if last {
                        self.state = EMPTY;
                    }
                    return Ok(Some(input));
                }
            }
        }
        Ok(None)
    }

    fn enter(&mut self, frame: Frame) -> Option<Input> {
        self.state = EMPTY;
        Some(match frame {
            Frame::Hello { host, incarnation, port } => Input::Hello { host, incarnation, port },
            Frame::Message { kind, id, bytes } => {
                self.state = State::Held { kind, id, bytes };
                Input::Begins { bytes }
            }
            Frame::Received { id } => Input::Received { id },
            Frame::Cancel { id, reason } => Input::Cancel { id, reason },
            Frame::Open { id, left_ns } => Input::Open { id, left_ns },
            Frame::Data { id, bytes: 0, end } => Input::Data { id, bytes: Bytes::new(), end },
            Frame::Data { id, bytes, end } => {
                let left = bytes as usize;
                self.state = State::Data { id, left, end, buffer: BytesMut::new() };
                return None;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds bytes in pieces; with `direct`, into the decoder's place.
    fn feed(bytes: &[u8], cuts: &[usize], direct: bool) -> Result<Vec<Input>, Malformed> {
        let mut decoder = Decoder::new(10_000);
        let mut inputs = Vec::new();
        let mut rest = bytes;
        let mut cuts = cuts.iter().copied().cycle();
        while !rest.is_empty() {
            let (mut part, later) = rest.split_at(cuts.next().unwrap_or(1).clamp(1, rest.len()));
            rest = later;
            while !part.is_empty() {
                let place = decoder.place();
                if direct && !place.is_empty() {
                    let step = place.len().min(part.len());
                    place[..step].copy_from_slice(&part[..step]);
                    part = &part[step..];
                    inputs.extend(decoder.filled(step));
                    continue;
                }
                let Some(input) = decoder.take(&mut part)? else { continue };
                if let Input::Begins { bytes } = input {
                    assert!(bytes <= 10_000 && decoder.wanted() == Some(bytes));
                    decoder.begin();
                } else {
                    inputs.push(input);
                }
            }
        }
        Ok(inputs)
    }

    /// Joins adjacent data of a stream, which depend on how the bytes were cut.
    fn merged(inputs: Vec<Input>) -> Vec<Input> {
        let mut out: Vec<Input> = Vec::new();
        for input in inputs {
            if let (
                Some(Input::Data { id, bytes, end: end @ false }),
                Input::Data { id: next, bytes: more, end: last },
            ) = (out.last_mut(), &input)
                && id == next
            {
                *bytes = [&bytes[..], more].concat().into();
                *end = *last;
                continue;
            }
            out.push(input);
        }
        out
    }

    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let body = proptest::collection::vec(any::<u8>(), 1..3000);
        let frame =
            (0..6_u8, any::<u64>(), body, any::<bool>()).prop_map(|(kind, id, body, end)| {
                let (even, id) = (MessageId(id & !1), MessageId(id));
                let message = |kind, id| Frame::Message { kind, id, bytes: body.len() as u64 };
                let (frame, follows) = match kind {
                    0 => (Frame::Hello { host: 7, incarnation: id.0, port: 9 }, false),
                    1 => (message(Kind::Request, even), true),
                    2 => (message(Kind::Response, even.response()), true),
                    3 => (Frame::Received { id }, false),
                    4 => (Frame::Open { id: even, left_ns: None }, false),
                    _ => (Frame::Data { id, bytes: body.len() as u32, end }, true),
                };
                [&frame.encode()[..], if follows { &body } else { &[] }].concat()
            });
        proptest::collection::vec(frame, 0..8).prop_map(|frames| frames.concat())
    }

    proptest! {
        #[test]
        fn however_they_are_cut(
            bytes in frames(),
            cuts in proptest::collection::vec(1..5000_usize, 1..8),
            direct: bool,
        ) {
            let whole = merged(feed(&bytes, &[bytes.len()], false).unwrap());
            prop_assert_eq!(merged(feed(&bytes, &cuts, direct).unwrap()), whole);
        }

        #[test]
        fn damaged_bytes_do_not_harm(
            mut bytes in frames(),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cuts in proptest::collection::vec(1..5000_usize, 1..8),
            direct: bool,
        ) {
            if !bytes.is_empty() {
                for (at, value) in damage {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
            }
            // Other cuts see the same damage.
            let whole = feed(&bytes, &[bytes.len()], false).map(merged);
            prop_assert_eq!(feed(&bytes, &cuts, direct).map(merged), whole);
        }

        #[test]
        fn noise(bytes in proptest::collection::vec(any::<u8>(), 0..200), direct: bool) {
            let _ = feed(&bytes, &[7], direct);
        }
    }
}
