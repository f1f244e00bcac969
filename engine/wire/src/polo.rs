//! Polo's headers. The talk gives the packets' names and meaning but no layout; fields and layout are Rackweave's.

use core::fmt;

use crate::codec::fmt_range;
use crate::exchange::{Prologue, exchange_header};

/// Unassigned by IANA: Polo has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 251;

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of COMPLETE, ASK and UNKNOWN.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// ADJOINT_ACK, DRIVE and LOSS.
    pub const ANSWER: u32 = 20;
    /// DATA, without payload.
    pub const DATA: u32 = 24;
    /// ADJOINT, with its counters.
    pub const ADJOINT: u32 = 28;
}

// A flag of DATA.
const FLAG_DRIVEN: u8 = 0x40;
const FLAG_RETRANSMIT: u8 = 0x20;
// A flag of ADJOINT.
const FLAG_TIMEOUT: u8 = 0x40;
// A flag of ADJOINT_ACK.
const FLAG_PAUSED: u8 = 0x40;
const FLAG_TICK: u8 = 0x20;

exchange_header! {
    /// A Polo header. The ports are the packet's.
    Header of "Polo", "polo", "a Polo header", IP_PROTOCOL {}

    /// A packet of a message: full, except for the last one.
    Data = 1 "DATA" from sender as "a Polo DATA header" of size::DATA {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Offset of the payload in the message.
        offset: u32 = word,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16 = payload,
        /// Number of packets that the sender sends without driving packets.
        window: u16 = extra,
        /// Whether a driving or loss packet requested it.
        driven: bool = flag(FLAG_DRIVEN),
        /// Whether it is a retransmission: out of order, and at high priority.
        retransmit: bool = flag(FLAG_RETRANSMIT),
    },
    /// The adjoint packet: follows the first window, and replies to an ADJOINT-ACK with a tick.
    Adjoint = 2 "ADJOINT" from sender as "a Polo ADJOINT" of size::ADJOINT {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Number of packets sent so far, without retransmissions.
        sent: u32 = word,
        /// The epoch of the ADJOINT-ACK that it replies to; 0 if none.
        epoch: u32 = word,
        /// The window of the sender, as in [`Body::Data`].
        window: u16 = extra,
        /// The sender has received nothing for its timeout.
        timeout: bool = flag(FLAG_TIMEOUT),
    },
    /// The reply to an adjoint packet, with the flow's state.
    AdjointAck = 3 "ADJOINT-ACK" from receiver as "a Polo answer" of size::ANSWER {
        /// The receiver's epoch.
        epoch: u32 = word,
        /// The flow is inactive: its sender must not send until it is driven.
        paused: bool = flag(FLAG_PAUSED),
        /// The sender must reply with an adjoint packet, which ends the epoch.
        tick: bool = flag(FLAG_TICK),
    },
    /// A driving packet: permission to send new packets.
    Drive = 4 "DRIVE" from receiver as "a Polo answer" of size::ANSWER {
        /// End of the permitted packets (exclusive): cumulative, so that a lost DRIVE does no harm.
        upto: u32 = word,
    },
    /// Asks for the retransmission of packets that were lost (or never sent).
    Loss = 5 "LOSS" from receiver as "a Polo answer" of size::ANSWER {
        /// Index of the first of them.
        first: u32 = word,
        /// Number of packets that are missing.
        count: u16 = extra,
    },
    /// The whole message has arrived. This packet is our choice: the talk does not specify how a sender finishes.
    Complete = 6 "COMPLETE" from receiver,
    /// A probe of the client that waits for the response, which has received nothing. This packet is our choice: the talk has no
    /// RPCs.
    Ask = 7 "ASK" from sender,
    /// The packet's sender does not have the message. This packet is our choice: in the talk no host loses its state.
    Unknown = 8 "UNKNOWN" from receiver,
}

impl Header {
    /// Writes the fields of the packet type.
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.body {
            Body::Data { message_length, offset, len, window, driven, retransmit } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " window {window}")?;
                f.write_str(if driven { " driven" } else { "" })?;
                f.write_str(if retransmit { " retransmit" } else { "" })
            }
            Body::Adjoint { message_length, sent, epoch, window, timeout } => {
                write!(f, " sent {sent} of {message_length} window {window} epoch {epoch}")?;
                f.write_str(if timeout { " timeout" } else { "" })
            }
            Body::AdjointAck { epoch, paused, tick } => {
                write!(f, " epoch {epoch}")?;
                f.write_str(if paused { " paused" } else { "" })?;
                f.write_str(if tick { " tick" } else { "" })
            }
            Body::Drive { upto } => write!(f, " upto {upto}"),
            Body::Loss { first, count } => write!(f, " {first} +{count}"),
            Body::Complete | Body::Ask | Body::Unknown => Ok(()),
        }
    }
}
