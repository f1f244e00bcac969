//! Polo's headers. The talk gives the packets' names and meaning but no layout, so fields and layout are ours.

use core::fmt;

use rackweave_core::Slice;

use crate::codec::{Codec, Prologue, flag, fmt_range, payload_len, slice};
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// Unassigned by IANA: Polo has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 251;

/// Values of the header's `type`.
pub mod packet_type {
    /// A packet of a message.
    pub const DATA: u8 = 1;
    /// Follows a first window, and each tick after it: one half of the exchange that delimits epochs.
    pub const ADJOINT: u8 = 2;
    /// The other half of the exchange.
    pub const ADJOINT_ACK: u8 = 3;
    /// Driving packet: asks for the next data packet.
    pub const DRIVE: u8 = 4;
    /// Loss packet: asks for the retransmission of given packets.
    pub const LOSS: u8 = 5;
    /// The whole message has arrived. This packet is our choice: the talk does not specify how a sender finishes.
    pub const COMPLETE: u8 = 6;
    /// Asks whether a response is still to come. This packet is our choice: the talk has no RPCs.
    pub const ASK: u8 = 7;
    /// The message is not known. This packet is our choice: in the talk no host loses its state.
    pub const UNKNOWN: u8 = 8;
}

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

/// A Polo header. The ports are the packet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message, in both directions.
    pub id: Id64,
    /// The message expects no response.
    pub one_way: bool,
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
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16,
        /// Number of packets that the sender sends without driving packets.
        window: u16,
        /// Whether a driving or loss packet requested it.
        driven: bool,
        /// Whether it is a retransmission: out of order, and at high priority.
        retransmit: bool,
    },
    /// The adjoint packet: follows the first window, and replies to an ADJOINT-ACK with a tick.
    Adjoint {
        /// Length of the whole message.
        message_length: u32,
        /// Number of packets sent so far, without retransmissions.
        sent: u32,
        /// The epoch of the ADJOINT-ACK that it replies to; 0 if none.
        epoch: u32,
        /// The window of the sender, as in [`Body::Data`].
        window: u16,
        /// The sender has received nothing for its timeout.
        timeout: bool,
    },
    /// The reply to an adjoint packet, with the flow's state.
    AdjointAck {
        /// The receiver's epoch.
        epoch: u32,
        /// The flow is inactive: its sender must not send until it is driven.
        paused: bool,
        /// The sender must reply with an adjoint packet, which ends the epoch.
        tick: bool,
    },
    /// A driving packet: permission to send new packets.
    Drive {
        /// End of the permitted packets (exclusive): cumulative, so that a lost DRIVE does no harm.
        upto: u32,
    },
    /// Asks for the retransmission of packets that were lost (or never sent).
    Loss {
        /// Index of the first of them.
        first: u32,
        /// Number of packets that are missing.
        count: u16,
    },
    /// The whole message has arrived.
    Complete,
    /// A probe of the client that waits for the response, which has received nothing.
    Ask,
    /// The packet's sender does not have the message.
    Unknown,
}

impl Body {
    /// Returns the packet type's code, and its name.
    const fn packet_type(&self) -> (u8, &'static str) {
        match self {
            Self::Data { .. } => (packet_type::DATA, "polo DATA"),
            Self::Adjoint { .. } => (packet_type::ADJOINT, "polo ADJOINT"),
            Self::AdjointAck { .. } => (packet_type::ADJOINT_ACK, "polo ADJOINT-ACK"),
            Self::Drive { .. } => (packet_type::DRIVE, "polo DRIVE"),
            Self::Loss { .. } => (packet_type::LOSS, "polo LOSS"),
            Self::Complete => (packet_type::COMPLETE, "polo COMPLETE"),
            Self::Ask => (packet_type::ASK, "polo ASK"),
            Self::Unknown => (packet_type::UNKNOWN, "polo UNKNOWN"),
        }
    }
}

impl Codec for Header {
    fn ip_protocol(_: Layout) -> u8 {
        IP_PROTOCOL
    }

    fn header_bytes(&self, _: Layout) -> u32 {
        match self.body {
            Body::Data { .. } => size::DATA,
            Body::Adjoint { .. } => size::ADJOINT,
            Body::AdjointAck { .. } | Body::Drive { .. } | Body::Loss { .. } => size::ANSWER,
            Body::Complete | Body::Ask | Body::Unknown => size::COMMON,
        }
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        // `extra` is the window of DATA and ADJOINT, and the count of LOSS.
        let (flags, extra) = match self.body {
            Body::Data { window, driven, retransmit, .. } => {
                (flag(driven, FLAG_DRIVEN) | flag(retransmit, FLAG_RETRANSMIT), window)
            }
            Body::Adjoint { window, timeout, .. } => (flag(timeout, FLAG_TIMEOUT), window),
            Body::AdjointAck { paused, tick, .. } => {
                (flag(paused, FLAG_PAUSED) | flag(tick, FLAG_TICK), 0)
            }
            Body::Loss { count, .. } => (0, count),
            Body::Drive { .. } | Body::Complete | Body::Ask | Body::Unknown => (0, 0),
        };
        let (code, _) = self.body.packet_type();
        let (id, one_way) = (self.id, self.one_way);
        Prologue { ports, code, flags, extra, id, one_way }.put(out);
        match self.body {
            Body::Data { message_length, offset, .. } => {
                out.put_u32(message_length);
                out.put_u32(offset);
            }
            Body::Adjoint { message_length, sent, epoch, .. } => {
                out.put_u32(message_length);
                out.put_u32(sent);
                out.put_u32(epoch);
            }
            Body::AdjointAck { epoch: word, .. }
            | Body::Drive { upto: word }
            | Body::Loss { first: word, .. } => out.put_u32(word),
            Body::Complete | Body::Ask | Body::Unknown => {}
        }
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a Polo header", bytes);
        reader.need("a Polo header", size::COMMON as usize)?;
        let prologue = Prologue::read(&mut reader)?;
        let Prologue { ports, code, extra, id, one_way, .. } = prologue;
        let has = |bit| prologue.has(bit);
        let body = match code {
            packet_type::DATA => {
                reader.need("a Polo DATA header", size::DATA as usize)?;
                let len = payload_len(l4_bytes, size::DATA)?;
                let (message_length, offset) = (reader.u32()?, reader.u32()?);
                let (driven, retransmit) = (has(FLAG_DRIVEN), has(FLAG_RETRANSMIT));
                Body::Data { message_length, offset, len, window: extra, driven, retransmit }
            }
            packet_type::ADJOINT => {
                reader.need("a Polo ADJOINT", size::ADJOINT as usize)?;
                let (message_length, sent) = (reader.u32()?, reader.u32()?);
                let (epoch, timeout) = (reader.u32()?, has(FLAG_TIMEOUT));
                Body::Adjoint { message_length, sent, epoch, window: extra, timeout }
            }
            packet_type::ADJOINT_ACK | packet_type::DRIVE | packet_type::LOSS => {
                reader.need("a Polo answer", size::ANSWER as usize)?;
                let word = reader.u32()?;
                match code {
                    packet_type::DRIVE => Body::Drive { upto: word },
                    packet_type::LOSS => Body::Loss { first: word, count: extra },
                    _ => Body::AdjointAck {
                        epoch: word,
                        paused: has(FLAG_PAUSED),
                        tick: has(FLAG_TICK),
                    },
                }
            }
            packet_type::COMPLETE => Body::Complete,
            packet_type::ASK => Body::Ask,
            packet_type::UNKNOWN => Body::Unknown,
            code => return Err(Malformed::PacketType { protocol: "Polo", code }),
        };
        Ok((Self { id, one_way, body }, ports))
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

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        match self.body {
            Body::Data { offset, len, .. } => Some(slice(self.id, offset, len)),
            _ => None,
        }
    }
}
