//! The headers of EQDS and of UET's congestion control. The publications name the fields, and the layout is ours: UET's own
//! headers (PDS, SES) carry much that a simulated transport does not need.

use core::fmt;

use rackweave_core::Slice;

use crate::codec::{Codec, Prologue, flag, fmt_range, payload_len, slice};
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// A number of our own choice: UET has no IP protocol number, because it runs over UDP.
pub const IP_PROTOCOL: u8 = 245;

/// Bytes of one quantum, in which pull numbers and targets count: those of UET (`docs/protocols/uet.md#uet-credit`). EQDS's simulator
/// counts in quanta of 512 bytes.
pub const QUANTUM: u32 = 256;

/// Values of the header's `type`.
pub mod packet_type {
    /// A packet of a message.
    pub const DATA: u8 = 1;
    /// Packets have arrived.
    pub const ACK: u8 = 2;
    /// A packet has arrived trimmed.
    pub const NACK: u8 = 3;
    /// Credit.
    pub const PULL: u8 = 4;
    /// A request for credit, and for an acknowledgement.
    pub const RTS: u8 = 5;
    /// Asks for a message's state. This packet is our choice: the sources do not specify how a client finds out that a server
    /// has lost its request.
    pub const ASK: u8 = 6;
    /// The message is not known. This packet is our choice: in the sources no host loses its state.
    pub const UNKNOWN: u8 = 7;
}

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

/// A header of EQDS or UET. The ports are the packet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message, in both directions.
    pub id: Id64,
    /// The message expects no response.
    pub one_way: bool,
    /// The entropy value by which switches choose the path, or [`ANY_ENTROPY`]. An answer has that of the packet that it answers.
    pub entropy: u16,
    /// The packet type, and its fields.
    pub body: Body,
}

/// The packet types and their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A packet of a message: full, except for the last one.
    Data {
        /// Length of the whole message.
        message_length: u32,
        /// Offset of the payload in the message.
        offset: u32,
        /// The pull number up to which the sender asks for credit, in quanta.
        pull_target: u32,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16,
        /// The sender asks for an immediate acknowledgement.
        ack_request: bool,
        /// The packet has been sent before.
        retransmitted: bool,
        /// The packet was sent before the receiver gave any credit.
        speculative: bool,
    },
    /// Packets have arrived.
    Ack {
        /// The first packet that has not arrived.
        cumulative: u32,
        /// The packet that caused the acknowledgement; of the answer to an RTS, the highest that has arrived.
        packet: u32,
        /// Whether each of the 64 packets up to `packet` has arrived; bit 0 is `packet` itself.
        bitmap: Id64,
        /// Number of packets of the message that have arrived.
        received: u32,
        /// The incarnation of the receiver's state for the message, which changes when the state is lost.
        incarnation: u16,
        /// The packet was marked by a switch.
        ecn: bool,
        /// The packet had [`Body::Data::retransmitted`].
        retransmitted: bool,
        /// This answers an RTS.
        of_rts: bool,
        /// The whole message has arrived.
        complete: bool,
    },
    /// The packet was trimmed: its sender retransmits it.
    Nack {
        /// The trimmed packet.
        packet: u32,
        /// Number of packets of the message that have arrived.
        received: u32,
        /// The incarnation of the receiver's state, as in [`Body::Ack`].
        incarnation: u16,
        /// The packet was marked by a switch before it was trimmed.
        ecn: bool,
    },
    /// Credit.
    Pull {
        /// All credit since the message began, in quanta: cumulative, so that a lost PULL does no harm.
        pull: u32,
        /// The incarnation of the receiver's state, as in [`Body::Ack`].
        incarnation: u16,
    },
    /// A request for credit by a sender that has none and expects none, and for an acknowledgement.
    Rts {
        /// Length of the whole message.
        message_length: u32,
        /// The pull number up to which the sender asks for credit, in quanta.
        pull_target: u32,
        /// What waits to be retransmitted, in quanta.
        backlog: u32,
    },
    /// A probe of a client that waits for the response, and has received nothing.
    Ask,
    /// The packet's sender does not have the message.
    Unknown,
}

impl Body {
    /// Returns the packet type's code, and its name.
    const fn packet_type(&self) -> (u8, &'static str) {
        match self {
            Self::Data { .. } => (packet_type::DATA, "uet DATA"),
            Self::Ack { .. } => (packet_type::ACK, "uet ACK"),
            Self::Nack { .. } => (packet_type::NACK, "uet NACK"),
            Self::Pull { .. } => (packet_type::PULL, "uet PULL"),
            Self::Rts { .. } => (packet_type::RTS, "uet RTS"),
            Self::Ask => (packet_type::ASK, "uet ASK"),
            Self::Unknown => (packet_type::UNKNOWN, "uet UNKNOWN"),
        }
    }

    /// Returns the flags of the prologue, and its extra field: the incarnation in answers.
    const fn prologue(&self) -> (u8, u16) {
        match *self {
            Self::Data { ack_request, retransmitted, speculative, .. } => (
                flag(ack_request, FLAG_ACK_REQUEST)
                    | flag(retransmitted, FLAG_RETRANSMITTED)
                    | flag(speculative, FLAG_SPECULATIVE),
                0,
            ),
            Self::Ack { incarnation, ecn, retransmitted, of_rts, complete, .. } => (
                flag(ecn, FLAG_ECN)
                    | flag(retransmitted, FLAG_RETRANSMITTED)
                    | flag(of_rts, FLAG_OF_RTS)
                    | flag(complete, FLAG_COMPLETE),
                incarnation,
            ),
            Self::Nack { incarnation, ecn, .. } => (flag(ecn, FLAG_ECN), incarnation),
            Self::Pull { incarnation, .. } => (0, incarnation),
            Self::Rts { .. } | Self::Ask | Self::Unknown => (0, 0),
        }
    }
}

impl Codec for Header {
    fn ip_protocol(_: Layout) -> u8 {
        IP_PROTOCOL
    }

    fn header_bytes(&self, _: Layout) -> u32 {
        match self.body {
            Body::Data { .. } | Body::Rts { .. } => size::DATA,
            Body::Ack { .. } => size::ACK,
            Body::Nack { .. } => size::NACK,
            Body::Pull { .. } => size::PULL,
            Body::Ask | Body::Unknown => size::COMMON,
        }
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        let (code, _) = self.body.packet_type();
        let (flags, extra) = self.body.prologue();
        let (id, one_way) = (self.id, self.one_way);
        Prologue { ports, code, flags, extra, id, one_way }.put(out);
        out.put_u16(self.entropy);
        match self.body {
            Body::Data { message_length, offset, pull_target, .. } => {
                out.put_u32(message_length);
                out.put_u32(offset);
                out.put_u32(pull_target);
            }
            Body::Ack { cumulative, packet, bitmap, received, .. } => {
                out.put_u32(cumulative);
                out.put_u32(packet);
                out.put_u64(bitmap.get());
                out.put_u32(received);
            }
            Body::Nack { packet, received, .. } => {
                out.put_u32(packet);
                out.put_u32(received);
            }
            Body::Pull { pull, .. } => out.put_u32(pull),
            Body::Rts { message_length, pull_target, backlog } => {
                out.put_u32(message_length);
                out.put_u32(pull_target);
                out.put_u32(backlog);
            }
            Body::Ask | Body::Unknown => {}
        }
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a UET header", bytes);
        reader.need("a UET header", size::COMMON as usize)?;
        let prologue = Prologue::read(&mut reader)?;
        let Prologue { ports, code, extra: incarnation, id, one_way, .. } = prologue;
        let entropy = reader.u16()?;
        let body = match code {
            packet_type::DATA => {
                reader.need("a UET DATA header", size::DATA as usize)?;
                let len = payload_len(l4_bytes, size::DATA)?;
                Body::Data {
                    message_length: reader.u32()?,
                    offset: reader.u32()?,
                    pull_target: reader.u32()?,
                    len,
                    ack_request: prologue.has(FLAG_ACK_REQUEST),
                    retransmitted: prologue.has(FLAG_RETRANSMITTED),
                    speculative: prologue.has(FLAG_SPECULATIVE),
                }
            }
            packet_type::ACK => {
                reader.need("a UET ACK", size::ACK as usize)?;
                Body::Ack {
                    cumulative: reader.u32()?,
                    packet: reader.u32()?,
                    bitmap: Id64::new(reader.u64()?),
                    received: reader.u32()?,
                    incarnation,
                    ecn: prologue.has(FLAG_ECN),
                    retransmitted: prologue.has(FLAG_RETRANSMITTED),
                    of_rts: prologue.has(FLAG_OF_RTS),
                    complete: prologue.has(FLAG_COMPLETE),
                }
            }
            packet_type::NACK => {
                reader.need("a UET NACK", size::NACK as usize)?;
                let (packet, received) = (reader.u32()?, reader.u32()?);
                Body::Nack { packet, received, incarnation, ecn: prologue.has(FLAG_ECN) }
            }
            packet_type::PULL => {
                reader.need("a UET PULL", size::PULL as usize)?;
                Body::Pull { pull: reader.u32()?, incarnation }
            }
            packet_type::RTS => {
                reader.need("a UET RTS", size::DATA as usize)?;
                Body::Rts {
                    message_length: reader.u32()?,
                    pull_target: reader.u32()?,
                    backlog: reader.u32()?,
                }
            }
            packet_type::ASK => Body::Ask,
            packet_type::UNKNOWN => Body::Unknown,
            code => return Err(Malformed::PacketType { protocol: "UET", code }),
        };
        Ok((Self { id, one_way, entropy, body }, ports))
    }

    fn message_bytes(&self) -> Option<u32> {
        match self.body {
            Body::Data { message_length, .. } => Some(message_length),
            _ => None,
        }
    }

    fn fmt_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = self.body.packet_type();
        Prologue::fmt_line(f, name, self.id, self.one_way)?;
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

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        match self.body {
            Body::Data { offset, len, .. } => Some(slice(self.id, offset, len)),
            _ => None,
        }
    }

    #[inline]
    fn path(&self) -> Option<u16> {
        (self.entropy != ANY_ENTROPY).then_some(self.entropy)
    }
}
