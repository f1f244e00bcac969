//! SIRD's headers. The paper names two packet types, DATA and CREDIT, and the bit `csn`; the layout is Rackweave's.

use core::fmt;

use crate::codec::fmt_range;
use crate::exchange::{Prologue, exchange_header};

/// Unassigned by IANA: SIRD has no IP protocol number of its own. pFabric's here is 249.
pub const IP_PROTOCOL: u8 = 248;

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of ACK, BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// REQUEST and CREDIT.
    pub const CONTROL: u32 = 20;
    /// DATA without payload.
    pub const DATA: u32 = 24;
}

/// Bit of the flags of DATA: the sender has more credit than it can use.
const FLAG_CSN: u8 = 0x01;

exchange_header! {
    /// A SIRD header. The ports are the packet's.
    Header of "SIRD", "sird", "a SIRD header", IP_PROTOCOL {}

    /// Asks for credit for a message. A repeated request asks for the message's state.
    Request = 1 "REQUEST" from sender as "a SIRD REQUEST" of size::CONTROL {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Number of packets at the start of the message that are sent without credit.
        unscheduled: u16 = extra,
    },
    /// Permission to send one packet.
    Credit = 2 "CREDIT" from receiver as "a SIRD CREDIT" of size::CONTROL {
        /// Index of the packet in the message.
        packet: u32 = word,
    },
    /// A packet of a message: full, except for the last one.
    Data = 3 "DATA" from sender as "a SIRD DATA header" of size::DATA {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Offset of the payload in the message.
        offset: u32 = word,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16 = payload,
        /// Number of packets at the start of the message that are sent without credit.
        unscheduled: u16 = extra,
        /// Congested sender notification: the sender holds more unused credit than its threshold.
        csn: bool = flag(FLAG_CSN),
    },
    /// The whole message has arrived. This packet is our choice: in the authors' simulator nothing is lost.
    Ack = 4 "ACK" from receiver,
    /// The message is known, and there is no credit for it now, or no response yet. This packet is our choice, as ACK.
    Busy = 5 "BUSY" from receiver,
    /// The packet's sender does not have the message. This packet is our choice, as ACK.
    Unknown = 6 "UNKNOWN" from receiver,
    /// The client waits for the response to this request. This packet is our choice, as ACK.
    Ask = 7 "ASK" from sender,
}

impl Header {
    /// Writes the fields of the packet type.
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.body {
            Body::Request { message_length, unscheduled } => {
                write!(f, " of {message_length} unscheduled {unscheduled}")
            }
            Body::Credit { packet } => write!(f, " for packet {packet}"),
            Body::Data { message_length, offset, len, unscheduled, csn } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " unscheduled {unscheduled}")?;
                f.write_str(if csn { " csn" } else { "" })
            }
            Body::Ack | Body::Busy | Body::Unknown | Body::Ask => Ok(()),
        }
    }
}
