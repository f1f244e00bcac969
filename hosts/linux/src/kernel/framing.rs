//! The framing of connections: frames with a header of 24 bytes. The format is our own.
//!
//! ```text
//!  0        2      3      4            8                        16                       24
//! +--------+------+------+------------+------------------------+------------------------+
//! | "RW"   | kind | flag | extra      | id                     | length                 |
//! +--------+------+------+------------+------------------------+------------------------+
//! ```
//!
//! All numbers are big-endian; fields that a kind of frame does not use are zero. The first frame of each side is a
//! HELLO. MESSAGE and DATA are followed by their bytes.

use rackweave_core::{FailReason, Kind, MessageId};

/// The length of a header.
pub(crate) const HEADER_BYTES: usize = 24;

/// The most bytes of a stream in one frame: when a stream is cancelled, at most one frame that has begun is completed.
pub(crate) const MAX_DATA_BYTES: usize = 1 << 16;

const MAGIC: [u8; 2] = *b"RW";

/// The version of the format, which a HELLO carries.
const VERSION: u8 = 1;

/// The length field of an OPEN without a deadline.
const NO_DEADLINE: u64 = u64::MAX;

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The sender's number, its incarnation, and the port at which it listens.
    Hello { host: u32, incarnation: u64, port: u16 },
    /// A message, which follows.
    Message { kind: Kind, id: MessageId, bytes: u64 },
    /// A one-way message, a response, or a whole direction of a stream has arrived.
    Received { id: MessageId },
    /// A message, request or stream is cancelled.
    Cancel { id: MessageId, reason: FailReason },
    /// A stream begins; its deadline is `left_ns` nanoseconds from now.
    Open { id: MessageId, left_ns: Option<u64> },
    /// The next bytes of a stream's direction follow.
    Data { id: MessageId, bytes: u32, end: bool },
}

/// Why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("not a frame of Rackweave")]
    Magic,
    #[error("unknown version {0} of the frame format")]
    Version(u8),
    #[error("unknown frame kind {0}")]
    Kind(u8),
    #[error("a field has an invalid value")]
    Field,
    #[error("a message of {bytes} bytes exceeds the limit of {max}")]
    TooLong { bytes: u64, max: u64 },
    #[error("the frame is not allowed in this state")]
    OutOfPlace,
}

impl Frame {
    /// The encoded header.
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, flag, extra, id, length) = match self {
            Self::Hello { host, incarnation, port } => {
                (1, VERSION, host, incarnation, u64::from(port))
            }
            Self::Message { kind, id, bytes } => {
                let flag = match kind {
                    Kind::OneWay => 0,
                    Kind::Request => 1,
                    Kind::Response => 2,
                };
                (2, flag, 0, id.0, bytes)
            }
            Self::Received { id } => (3, 0, 0, id.0, 0),
            Self::Cancel { id, reason } => {
                let flag = match reason {
                    FailReason::Cancelled => 0,
                    FailReason::Deadline => 1,
                    FailReason::PeerForgot | FailReason::PeerSilent | FailReason::HostCrashed => 2,
                };
                (4, flag, 0, id.0, 0)
            }
            Self::Open { id, left_ns } => (5, 0, 0, id.0, left_ns.unwrap_or(NO_DEADLINE)),
            Self::Data { id, bytes, end } => (6, u8::from(end), bytes, id.0, 0),
        };
        let mut out = [0; HEADER_BYTES];
        out[..2].copy_from_slice(&MAGIC);
        (out[2], out[3]) = (kind, flag);
        out[4..8].copy_from_slice(&u32::to_be_bytes(extra));
        out[8..16].copy_from_slice(&u64::to_be_bytes(id));
        out[16..].copy_from_slice(&u64::to_be_bytes(length));
        out
    }

    /// Decodes a header; a message must not be longer than `max_message` bytes.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES], max_message: u64) -> Result<Self, Malformed> {
        let [m0, m1, kind, flag, e0, e1, e2, e3, rest @ ..] = *bytes;
        if [m0, m1] != MAGIC {
            return Err(Malformed::Magic);
        }
        let extra = u32::from_be_bytes([e0, e1, e2, e3]);
        let mut halves = rest.as_chunks::<8>().0.iter().map(|half| u64::from_be_bytes(*half));
        let (number, length) =
            (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
        let id = MessageId(number);
        let when = |good: bool, frame| if good { Ok(frame) } else { Err(Malformed::Field) };
        match kind {
            1 if flag != VERSION => Err(Malformed::Version(flag)),
            1 => {
                let port = u16::try_from(length).map_err(|_| Malformed::Field)?;
                Ok(Self::Hello { host: extra, incarnation: number, port })
            }
            2 => {
                let kind = match flag {
                    0 => Kind::OneWay,
                    1 => Kind::Request,
                    2 => Kind::Response,
                    _ => return Err(Malformed::Field),
                };
                if length > max_message {
                    return Err(Malformed::TooLong { bytes: length, max: max_message });
                }
                let good =
                    extra == 0 && length > 0 && id.is_response() == matches!(kind, Kind::Response);
                when(good, Self::Message { kind, id, bytes: length })
            }
            3 => when(flag == 0 && extra == 0 && length == 0, Self::Received { id }),
            4 => {
                let reason = match flag {
                    0 => FailReason::Cancelled,
                    1 => FailReason::Deadline,
                    2 => FailReason::PeerForgot,
                    _ => return Err(Malformed::Field),
                };
                when(extra == 0 && length == 0, Self::Cancel { id, reason })
            }
            5 => {
                let left_ns = (length != NO_DEADLINE).then_some(length);
                let good = flag == 0 && extra == 0 && !id.is_response();
                when(good, Self::Open { id, left_ns })
            }
            6 => {
                let good = flag <= 1 && length == 0 && extra as usize <= MAX_DATA_BYTES;
                when(good, Self::Data { id, bytes: extra, end: flag == 1 })
            }
            kind => Err(Malformed::Kind(kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let id = any::<u64>();
        let reason = prop_oneof![
            Just(FailReason::Cancelled),
            Just(FailReason::Deadline),
            Just(FailReason::PeerForgot)
        ];
        let kind = prop_oneof![Just(Kind::OneWay), Just(Kind::Request), Just(Kind::Response)];
        prop_oneof![
            (any::<u32>(), id, any::<u16>()).prop_map(|(host, incarnation, port)| Frame::Hello {
                host,
                incarnation,
                port
            }),
            (kind, id, 1..1_u64 << 40).prop_map(|(kind, id, bytes)| {
                let id = MessageId(id & !1 | u64::from(kind == Kind::Response));
                Frame::Message { kind, id, bytes }
            }),
            id.prop_map(|id| Frame::Received { id: MessageId(id) }),
            (id, reason).prop_map(|(id, reason)| Frame::Cancel { id: MessageId(id), reason }),
            (id, proptest::option::of(0..u64::MAX))
                .prop_map(|(id, left_ns)| Frame::Open { id: MessageId(id & !1), left_ns }),
            (id, 0..=MAX_DATA_BYTES as u32, any::<bool>())
                .prop_map(|(id, bytes, end)| Frame::Data { id: MessageId(id), bytes, end }),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_back(frame in frames()) {
            prop_assert_eq!(Frame::decode(&frame.encode(), 1 << 40), Ok(frame));
        }

        /// Every header that is accepted has exactly one encoding.
        #[test]
        fn any_bytes(mut bytes: [u8; HEADER_BYTES], known: bool, kind in 0..8_u8) {
            if known {
                bytes[..3].copy_from_slice(&[b'R', b'W', kind]);
            }
            if let Ok(frame) = Frame::decode(&bytes, 1000) {
                prop_assert_eq!(frame.encode(), bytes);
                if let Frame::Message { bytes, .. } = frame {
                    prop_assert!(bytes <= 1000);
                }
            }
        }
    }

    #[test]
    fn a_header_byte_by_byte() {
        let frame = Frame::Message { kind: Kind::Request, id: MessageId(0x0102), bytes: 0x0304 };
        let mut expected = [0; HEADER_BYTES];
        expected[..4].copy_from_slice(&[b'R', b'W', 2, 1]);
        expected[14..16].copy_from_slice(&[1, 2]);
        expected[22..].copy_from_slice(&[3, 4]);
        assert_eq!(frame.encode(), expected);
        let long = Frame::decode(&expected, 0x0303);
        assert_eq!(long, Err(Malformed::TooLong { bytes: 0x0304, max: 0x0303 }));
    }
}
