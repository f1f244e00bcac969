//! A TCP segment, with the mapping from its bytes to messages.

mod codec;

use rackweave_core::{Kind, MessageId, Slice};

use crate::Id64;

pub use codec::{
    HEADER_BYTES, MAPPING_BYTES, MAPPING_EXPERIMENT, MAX_HEADER_BYTES, SYN_OPTION_BYTES,
};

/// TCP's IP protocol number.
pub const IP_PROTOCOL: u8 = 6;

/// The segment's flags.
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// The connection is not known: forget it.
    pub const RST: u8 = 0x04;
    /// Ends a message.
    pub const PSH: u8 = 0x08;
    /// `ack` counts.
    pub const ACK: u8 = 0x10;
    /// The receiver saw a congestion mark (ECN echo).
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
    /// See [`flags`].
    pub flags: u8,
    /// Data, or a pure acknowledgement.
    pub body: Body,
}

/// The window field counts units of 2^8 bytes (window scale 8).
pub const WINDOW_SHIFT: u32 = 8;

/// What a segment carries besides the fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Bytes of one message. The mapping stands for the framing that an application writes into
    /// the stream; segments do not cross messages.
    Data {
        /// The message.
        message: Id64,
        /// Its length.
        message_length: u32,
        /// First byte within the message.
        offset: u32,
        /// Bytes carried.
        len: u16,
        /// What the message is.
        kind: Kind,
    },
    /// Nothing but the acknowledgement.
    Ack {
        /// How many of `sack` count.
        count: u8,
        /// Selective acknowledgement, newest first (RFC 2018).
        sack: SackBlocks,
    },
}

impl Header {
    /// The message bytes carried.
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
