//! Swift's headers. The paper (Kumar et al., SIGCOMM'20) describes the congestion control of a transport, Pony Express,
//! whose packets it does not show; the layout is Rackweave's.

use core::fmt;

use crate::codec::fmt_range;
use crate::exchange::{Prologue, exchange_header};
pub use crate::sack::Sack;

/// Unassigned by IANA: Swift has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 247;

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// PROBE.
    pub const PROBE: u32 = 20;
    /// COMPLETE.
    pub const COMPLETE: u32 = 24;
    /// DATA without payload.
    pub const DATA: u32 = 28;
    /// ACK.
    pub const ACK: u32 = 36;
}

exchange_header! {
    /// A Swift header. The ports are the packet's.
    Header of "Swift", "swift", "a Swift header", IP_PROTOCOL {}

    /// A packet of a message: full, except for the last one.
    Data = 1 "DATA" from sender as "a Swift DATA header" of size::DATA {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Offset of the payload in the message.
        offset: u32 = word,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16 = payload,
        /// The number of this transmission among all data packets from its sender to its receiver, from 1 and modulo 2^32.
        /// A packet that is sent again has a new one, so that its acknowledgement is unambiguous.
        number: u32 = word,
    },
    /// Asks for an acknowledgement. This packet is our choice: the paper has no messages that wait.
    Probe = 2 "PROBE" from sender as "a Swift PROBE" of size::PROBE {
        /// Length of the whole message.
        message_length: u32 = word,
    },
    /// Which packets of the message have arrived. Packets are numbered from 0.
    Ack = 3 "ACK" from receiver as "a Swift ACK" of size::ACK {
        /// The `number` of the data packet that this acknowledges, by which the sender knows when it sent it; 0 if this
        /// answers a probe.
        number: u32 = word,
        /// The time from that packet's arrival at its host to the departure of this one, in nanoseconds: the remote
        /// queuing delay of section 3.1.
        wait_ns: u32 = word,
        /// The first packet that has not arrived.
        next: u32 = word,
        /// Bit `i` is set if packet `next + 1 + i` has arrived (section 3.6: selective acknowledgements as a bitmap).
        sack: Sack = word,
    },
    /// The whole message has arrived.
    Complete = 4 "COMPLETE" from receiver as "a Swift COMPLETE" of size::COMPLETE {
        /// As in ACK; 0 if this answers another packet than a data packet.
        number: u32 = word,
        /// As in ACK.
        wait_ns: u32 = word,
    },
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
            Body::Data { message_length, offset, len, number } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " number {number}")
            }
            Body::Probe { message_length } => write!(f, " of {message_length}"),
            Body::Ack { number, wait_ns, next, sack } => {
                write!(f, " of number {number} next {next} wait {wait_ns} ns")?;
                if sack.bits() > 0 { write!(f, " sack {:#x}", sack.bits()) } else { Ok(()) }
            }
            Body::Complete { number, wait_ns } => {
                write!(f, " of number {number} wait {wait_ns} ns")
            }
            Body::Busy | Body::Unknown | Body::Ask => Ok(()),
        }
    }
}
