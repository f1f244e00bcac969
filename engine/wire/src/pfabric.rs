//! pFabric's headers. The paper (Alizadeh et al., SIGCOMM'13) gives the fields' meaning but no layout; the layout is
//! Rackweave's.

use core::fmt;

use rackweave_core::{MessageId, Rank};

use crate::codec::fmt_range;
use crate::exchange::{Prologue, exchange_header};
pub use crate::sack::Sack;

/// Unassigned by IANA: pFabric has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 249;

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of COMPLETE, BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// PROBE.
    pub const PROBE: u32 = 24;
    /// DATA without payload.
    pub const DATA: u32 = 28;
    /// ACK.
    pub const ACK: u32 = 32;
}

exchange_header! {
    /// A pFabric header. The ports are the packet's.
    Header of "pFabric", "pfabric", "a pFabric header", IP_PROTOCOL {}, impl {
        #[inline]
        fn rank(&self) -> Option<Rank> {
            match self.body {
                Body::Probe { remaining: 0, .. } => None,
                Body::Data { remaining, .. } | Body::Probe { remaining, .. } => {
                    Some(Rank { message: MessageId(self.id.get()), remaining })
                }
                _ => None,
            }
        }
    }

    /// A packet of a message: full, except for the last one.
    Data = 1 "DATA" from sender as "a pFabric DATA header" of size::DATA {
        /// Length of the whole message.
        message_length: u32 = word,
        /// The priority (section 4.1): the bytes of the message that are not known to have arrived.
        remaining: u32 = word,
        /// Offset of the payload in the message.
        offset: u32 = word,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16 = payload,
    },
    /// Asks for an acknowledgement (section 4.3). The paper's probe carries one byte of the message; Rackweave's
    /// carries none.
    Probe = 2 "PROBE" from sender as "a pFabric PROBE" of size::PROBE {
        /// Length of the whole message.
        message_length: u32 = word,
        /// As in DATA; 0 in a probe that precedes all messages in a switch, as acknowledgements do.
        remaining: u32 = word,
    },
    /// Which packets have arrived. Packets are numbered from 0.
    Ack = 3 "ACK" from receiver as "a pFabric ACK" of size::ACK {
        /// The first packet that has not arrived.
        next: u32 = word,
        /// The packet that this acknowledges; any number below `next` if it answers a probe.
        packet: u32 = word,
        /// Bit `i` is set if packet `next + 1 + i` has arrived.
        sack: Sack = word,
    },
    /// The whole message has arrived.
    Complete = 4 "COMPLETE" from receiver,
    /// The message is known, and there is no response yet. This packet is our choice: the paper has no RPCs.
    Busy = 5 "BUSY" from receiver,
    /// The packet's sender does not have the message. This packet is our choice: in the paper no host loses its state.
    Unknown = 6 "UNKNOWN" from receiver,
    /// The client waits for the response to this request. This packet is our choice: the paper has no RPCs.
    Ask = 7 "ASK" from sender,
}

impl Header {
    /// Writes the fields of the packet type.
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.body {
            Body::Data { message_length, offset, len, remaining } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " remaining {remaining}")
            }
            Body::Probe { message_length, remaining } => {
                write!(f, " of {message_length} remaining {remaining}")
            }
            Body::Ack { next, packet, sack } => {
                write!(f, " of packet {packet} next {next}")?;
                if sack.bits() > 0 { write!(f, " sack {:#x}", sack.bits()) } else { Ok(()) }
            }
            Body::Complete | Body::Busy | Body::Unknown | Body::Ask => Ok(()),
        }
    }
}
