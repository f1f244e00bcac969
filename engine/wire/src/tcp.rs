//! A TCP segment, with the mapping from its bytes to messages.

mod codec;

use rackweave_core::{Kind, MessageId, Slice};

use crate::Id64;

pub use codec::{
    HEADER_BYTES, MAPPING_BYTES, MAPPING_EXPERIMENT, MAX_HEADER_BYTES, SYN_OPTION_BYTES,
};

/// TCP's IP protocol number.
pub const IP_PROTOCOL: u8 = 6;

/// Flags of a segment.
pub mod flags {
    /// The sender has no more data.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Resets the connection, which the packet's sender does not have.
    pub const RST: u8 = 0x04;
    /// The last segment of a message.
    pub const PSH: u8 = 0x08;
    /// The `ack` field is valid.
    pub const ACK: u8 = 0x10;
    /// The receiver saw a congestion mark (ECN-Echo).
    pub const ECE: u8 = 0x40;
    /// The sender has reduced its window.
    pub const CWR: u8 = 0x80;
}

/// Half-open ranges of sequence numbers that arrived out of order.
pub type SackBlocks = [(u32, u32); 3];

/// A TCP header. The ports are the packet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Sequence number of the first byte.
    pub seq: u32,
    /// The next byte expected.
    pub ack: u32,
    /// Receive window, in units of 2^`WINDOW_SHIFT` bytes.
    pub window: u16,
    /// Bits from [`flags`].
    pub flags: u8,
    /// The payload, or selective acknowledgements.
    pub body: Body,
}

/// The window field counts units of 2^8 bytes (window scale 8).
pub const WINDOW_SHIFT: u32 = 8;

/// The part of a segment that differs between data and acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Bytes of one message. The mapping represents the framing that an application writes into the stream; segments
    /// do not cross messages.
    Data {
        /// The message that the bytes belong to.
        message: Id64,
        /// Length of the whole message.
        message_length: u32,
        /// Offset of the payload in the message.
        offset: u32,
        /// Length of the payload.
        len: u16,
        /// The kind of the message.
        kind: Kind,
    },
    /// A pure acknowledgement.
    Ack {
        /// Number of valid blocks in `sack`.
        count: u8,
        /// Selective acknowledgement, newest first (RFC 2018).
        sack: SackBlocks,
    },
}

impl Header {
    /// Returns the message bytes that the segment carries.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> Option<Slice> {
        match self.body {
            Body::Data { message, offset, len, .. } => {
                Some(Slice { message: MessageId(message.get()), offset, len: u32::from(len) })
            }
            Body::Ack { .. } => None,
        }
    }
}

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        Self::payload(self)
    }
}
