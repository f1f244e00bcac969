//! NDP's headers. The paper gives the fields' meaning but no layout; the layout is Rackweave's.

use core::fmt;

use crate::codec::fmt_range;
use crate::exchange::{Prologue, exchange_header};

/// One of the numbers that RFC 3692 reserves for experiments: NDP has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 254;

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of ASK and UNKNOWN.
    pub const COMMON: u32 = super::Prologue::BYTES + 2;
    /// PULL, with the counter.
    pub const PULL: u32 = 22;
    /// DATA, without payload; ACK and NACK.
    pub const DATA: u32 = 26;
}

const FLAG_COMPLETE: u8 = 0x40;

/// A value of [`Header::path`] that leaves the choice to the switches.
pub const ANY_PATH: u16 = u16::MAX;

exchange_header! {
    /// An NDP header. The ports are the packet's.
    Header of "NDP", "ndp", "an NDP header", IP_PROTOCOL {
        /// The number of the path that the sender has chosen, or [`ANY_PATH`].
        path: u16 = ANY_PATH,
    }, impl {
        #[inline]
        fn path(&self) -> Option<u16> {
            (self.path != ANY_PATH).then_some(self.path)
        }
    }

    /// A packet of a message: full, except for the last one.
    Data = 1 "DATA" from sender as "an NDP DATA header" of size::DATA {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Offset of the payload in the message.
        offset: u32 = word,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16 = payload,
        /// Number of packets that the sender sends without pulls.
        window: u16 = extra,
    },
    /// The packet at `offset` has arrived.
    Ack = 2 "ACK" from receiver as "an NDP ACK or NACK" of size::DATA {
        /// Offset of the acknowledged packet.
        offset: u32 = word,
        /// The pull counter, as in [`Body::Pull`].
        pull: u32 = word,
        /// The incarnation of the receiver's state for the message, which changes when the state is lost.
        incarnation: u16 = extra,
        /// The whole message has arrived.
        complete: bool = flag(FLAG_COMPLETE),
    },
    /// The packet at `offset` was trimmed: its sender retransmits it when it is pulled.
    Nack = 3 "NACK" from receiver as "an NDP ACK or NACK" of size::DATA {
        /// Offset of the trimmed packet.
        offset: u32 = word,
        /// The pull counter, as in [`Body::Pull`].
        pull: u32 = word,
        /// The incarnation of the receiver's state, as in [`Body::Ack`].
        incarnation: u16 = extra,
    },
    /// Permission to send further packets.
    Pull = 4 "PULL" from receiver as "an NDP PULL" of size::PULL {
        /// Number of packets pulled since the message began: cumulative, so that a lost PULL does no harm.
        pull: u32 = word,
        /// The incarnation of the receiver's state, as in [`Body::Ack`].
        incarnation: u16 = extra,
    },
    /// A probe of the message's sender (or the client that waits for the response), which has received nothing. This packet is
    /// our choice: the paper does not specify how to probe a silent peer.
    Ask = 5 "ASK" from sender,
    /// The packet's sender does not have the message. This packet is our choice: in the paper no host loses its state.
    Unknown = 6 "UNKNOWN" from receiver,
}

impl Header {
    /// Writes the fields of the packet type.
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = rackweave_core::Header::path(self) {
            write!(f, " path {path}")?;
        }
        match self.body {
            Body::Data { message_length, offset, len, window } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " window {window}")
            }
            Body::Ack { offset, pull, incarnation, complete } => {
                write!(f, " {offset} pull {pull} incarnation {incarnation:#06x}")?;
                f.write_str(if complete { " complete" } else { "" })
            }
            Body::Nack { offset, pull, incarnation } => {
                write!(f, " {offset} pull {pull} incarnation {incarnation:#06x}")
            }
            Body::Pull { pull, incarnation } => write!(f, " {pull} incarnation {incarnation:#06x}"),
            Body::Ask | Body::Unknown => Ok(()),
        }
    }
}
