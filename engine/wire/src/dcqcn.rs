//! The headers of RoCEv2 with DCQCN. InfiniBand's specification has their fields (BTH, AETH) and more; the layout, in which messages
//! have an id and offsets instead of queue pairs and packet numbers, is Rackweave's.

use core::fmt;

use crate::codec::fmt_range;
use crate::exchange::{Prologue, exchange_header};
pub use crate::sack::Sack;

/// Unassigned by IANA.
pub const IP_PROTOCOL: u8 = 243;

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of CNP, COMPLETE, BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// DATA without payload.
    pub const DATA: u32 = 24;
    /// ACK and NACK.
    pub const ACK: u32 = 28;
}

/// Bit of DATA's flags.
const FLAG_ASKS: u8 = 0x01;

exchange_header! {
    /// A header of RoCEv2 with DCQCN. The ports are the packet's.
    Header of "DCQCN", "dcqcn", "a DCQCN header", IP_PROTOCOL {}

    /// A packet of a message: full, except for the last one.
    Data = 1 "DATA" from sender as "a DCQCN DATA header" of size::DATA {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Offset of the payload in the message.
        offset: u32 = word,
        /// Length of the payload.
        len: u16 = payload,
        /// Whether the receiver shall acknowledge it (BTH's AckReq).
        asks: bool = flag(FLAG_ASKS),
    },
    /// Which packets have arrived. Packets are numbered from 0.
    Ack = 2 "ACK" from receiver as "a DCQCN ACK" of size::ACK {
        /// The first packet that has not arrived.
        next: u32 = word,
        /// Bit `i` is set if packet `next + 1 + i` has arrived; none without selective repeat.
        sack: Sack = word,
    },
    /// A packet has arrived out of order.
    Nack = 3 "NACK" from receiver as "a DCQCN NACK" of size::ACK {
        /// The packet that was expected.
        next: u32 = word,
        /// As in ACK.
        sack: Sack = word,
    },
    /// A marked packet has arrived (DCQCN, SIGCOMM'15, section 3.1).
    Cnp = 4 "CNP" from receiver,
    /// The whole message has arrived.
    Complete = 5 "COMPLETE" from receiver,
    /// The message is known, and there is no response yet. This packet is our choice: RoCE has no RPCs.
    Busy = 6 "BUSY" from receiver,
    /// The packet's sender does not have the message. This packet is our choice: in RoCE the connection would break.
    Unknown = 7 "UNKNOWN" from receiver,
    /// The client waits for the response to this request. This packet is our choice: RoCE has no RPCs.
    Ask = 8 "ASK" from sender,
}

impl Header {
    /// Writes the fields of the packet type.
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.body {
            Body::Data { message_length, offset, len, asks } => {
                fmt_range(f, offset, len, message_length)?;
                f.write_str(if asks { " asks" } else { "" })
            }
            Body::Ack { next, sack } | Body::Nack { next, sack } => {
                write!(f, " next {next}")?;
                if sack.bits() > 0 { write!(f, " sack {:#x}", sack.bits()) } else { Ok(()) }
            }
            Body::Cnp | Body::Complete | Body::Busy | Body::Unknown | Body::Ask => Ok(()),
        }
    }
}
