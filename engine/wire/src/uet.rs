//! The headers of EQDS and of UET's congestion control. The publications name the fields, and the layout is
//! Rackweave's: UET's own headers (PDS, SES) carry much that a simulated transport does not need.

use core::fmt;

use crate::Id64;
use crate::codec::fmt_range;
use crate::exchange::{Prologue, exchange_header};

/// A number of our own choice: UET has no IP protocol number, because it runs over UDP.
pub const IP_PROTOCOL: u8 = 245;

/// Bytes of one quantum, in which pull numbers and targets count: those of UET (`docs/protocols/uet.md#uet-credit`). EQDS's
/// simulator
/// counts in quanta of 512 bytes.
pub const QUANTUM: u32 = 256;

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of ASK and UNKNOWN.
    pub const COMMON: u32 = super::Prologue::BYTES + 2;
    /// PULL, with the counter.
    pub const PULL: u32 = 22;
    /// NACK.
    pub const NACK: u32 = 26;
    /// DATA, without payload, and RTS.
    pub const DATA: u32 = 30;
    /// ACK, the longest packet without payload.
    pub const ACK: u32 = 38;
}

const FLAG_COMPLETE: u8 = 0x40;
const FLAG_ACK_REQUEST: u8 = 0x20;
const FLAG_RETRANSMITTED: u8 = 0x10;
const FLAG_ECN: u8 = 0x08;
const FLAG_OF_RTS: u8 = 0x04;
const FLAG_SPECULATIVE: u8 = 0x02;

/// A value of [`Header::entropy`] that leaves the choice of the path to the switches.
pub const ANY_ENTROPY: u16 = u16::MAX;

exchange_header! {
    /// A header of EQDS or UET. The ports are the packet's.
    Header of "UET", "uet", "a UET header", IP_PROTOCOL {
        /// The entropy value by which switches choose the path, or [`ANY_ENTROPY`]. An answer has that of the packet that it
        /// answers.
        entropy: u16 = ANY_ENTROPY,
    }, impl {
        #[inline]
        fn path(&self) -> Option<u16> {
            (self.entropy != ANY_ENTROPY).then_some(self.entropy)
        }
    }

    /// A packet of a message: full, except for the last one.
    Data = 1 "DATA" from sender as "a UET DATA header" of size::DATA {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Offset of the payload in the message.
        offset: u32 = word,
        /// The pull number up to which the sender asks for credit, in quanta.
        pull_target: u32 = word,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16 = payload,
        /// The sender asks for an immediate acknowledgement.
        ack_request: bool = flag(FLAG_ACK_REQUEST),
        /// The packet has been sent before.
        retransmitted: bool = flag(FLAG_RETRANSMITTED),
        /// The packet was sent before the receiver gave any credit.
        speculative: bool = flag(FLAG_SPECULATIVE),
    },
    /// Packets have arrived.
    Ack = 2 "ACK" from receiver as "a UET ACK" of size::ACK {
        /// The first packet that has not arrived.
        cumulative: u32 = word,
        /// The packet that caused the acknowledgement; of the answer to an RTS, the highest that has arrived.
        packet: u32 = word,
        /// Whether each of the 64 packets up to `packet` has arrived; bit 0 is `packet` itself.
        bitmap: Id64 = word,
        /// Number of packets of the message that have arrived.
        received: u32 = word,
        /// The incarnation of the receiver's state for the message, which changes when the state is lost.
        incarnation: u16 = extra,
        /// The packet was marked by a switch.
        ecn: bool = flag(FLAG_ECN),
        /// The packet had [`Body::Data::retransmitted`].
        retransmitted: bool = flag(FLAG_RETRANSMITTED),
        /// This answers an RTS.
        of_rts: bool = flag(FLAG_OF_RTS),
        /// The whole message has arrived.
        complete: bool = flag(FLAG_COMPLETE),
    },
    /// The packet was trimmed: its sender retransmits it.
    Nack = 3 "NACK" from receiver as "a UET NACK" of size::NACK {
        /// The trimmed packet.
        packet: u32 = word,
        /// Number of packets of the message that have arrived.
        received: u32 = word,
        /// The incarnation of the receiver's state, as in [`Body::Ack`].
        incarnation: u16 = extra,
        /// The packet was marked by a switch before it was trimmed.
        ecn: bool = flag(FLAG_ECN),
    },
    /// Credit.
    Pull = 4 "PULL" from receiver as "a UET PULL" of size::PULL {
        /// All credit since the message began, in quanta: cumulative, so that a lost PULL does no harm.
        pull: u32 = word,
        /// The incarnation of the receiver's state, as in [`Body::Ack`].
        incarnation: u16 = extra,
    },
    /// A request for credit by a sender that has none and expects none, and for an acknowledgement.
    Rts = 5 "RTS" from sender as "a UET RTS" of size::DATA {
        /// Length of the whole message.
        message_length: u32 = word,
        /// The pull number up to which the sender asks for credit, in quanta.
        pull_target: u32 = word,
        /// What waits to be retransmitted, in quanta.
        backlog: u32 = word,
    },
    /// A probe of a client that waits for the response, and has received nothing. This packet is our choice: the sources do not
    /// specify how a client finds out that a server has lost its request.
    Ask = 6 "ASK" from sender,
    /// The packet's sender does not have the message. This packet is our choice: in the sources no host loses its state.
    Unknown = 7 "UNKNOWN" from receiver,
}

impl Header {
    /// Writes the fields of the packet type.
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(entropy) = rackweave_core::Header::path(self) {
            write!(f, " entropy {entropy}")?;
        }
        let mut words = |words: &[(bool, &str)]| {
            words.iter().filter(|(set, _)| *set).try_for_each(|(_, word)| write!(f, " {word}"))
        };
        match self.body {
            Body::Data {
                message_length,
                offset,
                pull_target,
                len,
                ack_request,
                retransmitted,
                speculative,
            } => {
                words(&[(speculative, "speculative"), (retransmitted, "retransmitted")])?;
                words(&[(ack_request, "ack-request")])?;
                fmt_range(f, offset, len, message_length)?;
                write!(f, " target {pull_target}")
            }
            Body::Ack {
                cumulative,
                packet,
                bitmap,
                received,
                incarnation,
                ecn,
                retransmitted,
                of_rts,
                complete,
            } => {
                words(&[(of_rts, "of-rts"), (retransmitted, "retransmitted"), (ecn, "ecn")])?;
                words(&[(complete, "complete")])?;
                let bitmap = bitmap.get();
                write!(f, " below {cumulative} at {packet} bitmap {bitmap:#x}")?;
                write!(f, " received {received} incarnation {incarnation:#06x}")
            }
            Body::Nack { packet, received, incarnation, ecn } => {
                words(&[(ecn, "ecn")])?;
                write!(f, " {packet} received {received} incarnation {incarnation:#06x}")
            }
            Body::Pull { pull, incarnation } => write!(f, " {pull} incarnation {incarnation:#06x}"),
            Body::Rts { message_length, pull_target, backlog } => {
                write!(f, " of {message_length} target {pull_target} backlog {backlog}")
            }
            Body::Ask | Body::Unknown => Ok(()),
        }
    }
}
