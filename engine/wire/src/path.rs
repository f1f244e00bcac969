//! What endpoints exchange about the path between them: probes of its MTU, and fragments of datagrams that exceed it.
//!
//! ```text
//!  0: kind (0 probe, 1 reply, 2 fragment)  1: zero  2: bytes of the whole datagram, of a fragment
//!  4: number of the probe, or of the datagram       8: offset of the fragment
//! 10: padding of a probe, or bytes of the fragment
//! ```
//!
//! Between hosts without a key it is in a datagram of [`crate::overlay`] ([`crate::overlay::encode_path`]), and sealed in one of [`crate::secure`]
//! otherwise ([`crate::secure::encode_path`]). The overhead is the same. Probes are those of RFC 8899 (DPLPMTUD), section 4.1: padding that an endpoint
//! sends to learn whether datagrams of this length arrive, so that no data is lost with them. The format is
//! Rackweave's.

use core::ops::Range;

use crate::malformed::{Malformed, Put, Reader};

/// Bytes before the padding of a probe or the bytes of a fragment.
pub const HEAD_BYTES: usize = 10;

/// Bytes that a probe or fragment takes in a datagram besides its padding or its bytes, with a key and without one.
pub const OVERHEAD: usize = crate::overlay::BYTES as usize + HEAD_BYTES;

/// A message about the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMessage {
    /// Padding whose receiver returns a [`PathMessage::Reply`].
    Probe {
        /// The number that the reply repeats.
        number: u32,
    },
    /// A probe has arrived.
    Reply {
        /// The probe's number.
        number: u32,
    },
    /// A part of a datagram, whose bytes follow the head.
    Fragment(Fragment),
}

/// The position of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The number of the whole datagram among those of its sender.
    pub number: u32,
    /// The length of the whole datagram.
    pub total: u16,
    /// The offset of the fragment's first byte.
    pub offset: u16,
}

impl PathMessage {
    /// Appends the head; padding or the fragment's bytes follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, number, total, offset) = match *self {
            Self::Probe { number } => (0, number, 0, 0),
            Self::Reply { number } => (1, number, 0, 0),
            Self::Fragment(Fragment { number, total, offset }) => (2, number, total, offset),
        };
        out.put_u8(kind);
        out.put_u8(0);
        out.put_u16(total);
        out.put_u32(number);
        out.put_u16(offset);
    }

    /// Decodes a head and the range of what follows it.
    ///
    /// # Errors
    /// [`Malformed`], also if a fragment exceeds its whole or is empty, or bytes follow a reply.
    pub fn decode(bytes: &[u8]) -> Result<(Self, Range<usize>), Malformed> {
        let mut reader = Reader::new("a message about the path", bytes);
        reader.need("a message about the path", HEAD_BYTES)?;
        let kind = reader.u8()?;
        reader.skip::<1>()?;
        let total = reader.u16()?;
        let number = reader.u32()?;
        let offset = reader.u16()?;
        let rest = HEAD_BYTES..bytes.len();
        let wrong = |claimed: usize| Malformed::SegmentLength { claimed, left: rest.len() };
        let read = match kind {
            0 => Self::Probe { number },
            1 if rest.is_empty() => Self::Reply { number },
            1 => return Err(wrong(0)),
            2 => {
                let end = usize::from(offset) + rest.len();
                if rest.is_empty() || end > usize::from(total) {
                    return Err(wrong(usize::from(total)));
                }
                Self::Fragment(Fragment { number, total, offset })
            }
            code => return Err(Malformed::PacketType { protocol: "path", code }),
        };
        Ok((read, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_decoded_as_it_was_encoded() {
        let fragment = Fragment { number: 7, total: 1440, offset: 720 };
        let all = [
            (PathMessage::Probe { number: 3 }, 1000),
            (PathMessage::Reply { number: u32::MAX }, 0),
            (PathMessage::Fragment(fragment), 720),
        ];
        for (message, more) in all {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(bytes.len(), HEAD_BYTES);
            bytes.resize(HEAD_BYTES + more, 5);
            assert_eq!(PathMessage::decode(&bytes), Ok((message, HEAD_BYTES..bytes.len())));
            assert!(PathMessage::decode(&bytes[..HEAD_BYTES - 1]).is_err());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let decode = |message: PathMessage, more: usize| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            bytes.resize(HEAD_BYTES + more, 0);
            PathMessage::decode(&bytes).map(|_| ())
        };
        let fragment = |total, offset| PathMessage::Fragment(Fragment { number: 1, total, offset });
        assert_eq!(decode(fragment(10, 4), 6), Ok(()));
        assert!(decode(fragment(10, 4), 7).is_err(), "beyond the end");
        assert!(decode(fragment(10, u16::MAX), 1).is_err(), "behind the end");
        assert!(decode(fragment(10, 4), 0).is_err(), "empty");
        assert!(decode(PathMessage::Reply { number: 1 }, 1).is_err(), "an answer is never longer");
        assert!(PathMessage::decode(&[9; HEAD_BYTES]).is_err());
    }
}
