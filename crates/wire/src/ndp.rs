//! NDP's headers. The paper gives the fields' meaning but no layout, so the layout is ours.

use core::fmt;

use rackweave_core::Slice;

use crate::codec::{Codec, Prologue, flag, fmt_range, payload_len, slice};
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// One of the numbers that RFC 3692 reserves for experiments: NDP has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 254;

/// Values of the header's `type`.
pub mod packet_type {
    /// A packet of a message.
    pub const DATA: u8 = 1;
    /// A packet has arrived.
    pub const ACK: u8 = 2;
    /// A packet has arrived trimmed.
    pub const NACK: u8 = 3;
    /// Permission to send.
    pub const PULL: u8 = 4;
    /// Asks for a message's state. This packet is our choice: the paper does not specify how to probe a silent peer.
    pub const ASK: u8 = 5;
    /// The message is not known. This packet is our choice: in the paper no host loses its state.
    pub const UNKNOWN: u8 = 6;
}

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

/// An NDP header. The ports are the packet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message, in both directions.
    pub id: Id64,
    /// The message expects no response.
    pub one_way: bool,
    /// The number of the path that the sender has chosen, or [`ANY_PATH`].
    pub path: u16,
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
        /// Number of packets that the sender sends without pulls.
        window: u16,
    },
    /// The packet at `offset` has arrived.
    Ack {
        /// Offset of the acknowledged packet.
        offset: u32,
        /// The pull counter, as in [`Body::Pull`].
        pull: u32,
        /// The incarnation of the receiver's state for the message, which changes when the state is lost.
        incarnation: u16,
        /// The whole message has arrived.
        complete: bool,
    },
    /// The packet at `offset` was trimmed: its sender retransmits it when it is pulled.
    Nack {
        /// Offset of the trimmed packet.
        offset: u32,
        /// The pull counter, as in [`Body::Pull`].
        pull: u32,
        /// The incarnation of the receiver's state, as in [`Body::Ack`].
        incarnation: u16,
    },
    /// Permission to send further packets.
    Pull {
        /// Number of packets pulled since the message began: cumulative, so that a lost PULL does no harm.
        pull: u32,
        /// The incarnation of the receiver's state, as in [`Body::Ack`].
        incarnation: u16,
    },
    /// A probe of the message's sender (or the client that waits for the response), which has received nothing.
    Ask,
    /// The packet's sender does not have the message.
    Unknown,
}

impl Body {
    /// Returns the packet type's code, and its name.
    const fn packet_type(&self) -> (u8, &'static str) {
        match self {
            Self::Data { .. } => (packet_type::DATA, "ndp DATA"),
            Self::Ack { .. } => (packet_type::ACK, "ndp ACK"),
            Self::Nack { .. } => (packet_type::NACK, "ndp NACK"),
            Self::Pull { .. } => (packet_type::PULL, "ndp PULL"),
            Self::Ask => (packet_type::ASK, "ndp ASK"),
            Self::Unknown => (packet_type::UNKNOWN, "ndp UNKNOWN"),
        }
    }
}

impl Codec for Header {
    fn ip_protocol(_: Layout) -> u8 {
        IP_PROTOCOL
    }

    fn header_bytes(&self, _: Layout) -> u32 {
        match self.body {
            Body::Data { .. } | Body::Ack { .. } | Body::Nack { .. } => size::DATA,
            Body::Pull { .. } => size::PULL,
            Body::Ask | Body::Unknown => size::COMMON,
        }
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        // `extra` is the window of DATA, and the incarnation in replies to it.
        let (flags, extra) = match self.body {
            Body::Data { window, .. } => (0, window),
            Body::Ack { incarnation, complete, .. } => (flag(complete, FLAG_COMPLETE), incarnation),
            Body::Nack { incarnation, .. } | Body::Pull { incarnation, .. } => (0, incarnation),
            Body::Ask | Body::Unknown => (0, 0),
        };
        let (code, _) = self.body.packet_type();
        let (id, one_way) = (self.id, self.one_way);
        Prologue { ports, code, flags, extra, id, one_way }.put(out);
        out.put_u16(self.path);
        match self.body {
            Body::Data { message_length, offset, .. } => {
                out.put_u32(message_length);
                out.put_u32(offset);
            }
            Body::Ack { offset, pull, .. } | Body::Nack { offset, pull, .. } => {
                out.put_u32(offset);
                out.put_u32(pull);
            }
            Body::Pull { pull, .. } => out.put_u32(pull),
            Body::Ask | Body::Unknown => {}
        }
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("an NDP header", bytes);
        reader.need("an NDP header", size::COMMON as usize)?;
        let prologue = Prologue::read(&mut reader)?;
        let Prologue { ports, code, extra, id, one_way, .. } = prologue;
        let path = reader.u16()?;
        let body = match code {
            packet_type::DATA => {
                reader.need("an NDP DATA header", size::DATA as usize)?;
                let len = payload_len(l4_bytes, size::DATA)?;
                let (message_length, offset) = (reader.u32()?, reader.u32()?);
                Body::Data { message_length, offset, len, window: extra }
            }
            packet_type::ACK | packet_type::NACK => {
                reader.need("an NDP ACK or NACK", size::DATA as usize)?;
                let (offset, pull, incarnation) = (reader.u32()?, reader.u32()?, extra);
                if code == packet_type::NACK {
                    Body::Nack { offset, pull, incarnation }
                } else {
                    let complete = prologue.has(FLAG_COMPLETE);
                    Body::Ack { offset, pull, incarnation, complete }
                }
            }
            packet_type::PULL => {
                reader.need("an NDP PULL", size::PULL as usize)?;
                Body::Pull { pull: reader.u32()?, incarnation: extra }
            }
            packet_type::ASK => Body::Ask,
            packet_type::UNKNOWN => Body::Unknown,
            code => return Err(Malformed::PacketType { protocol: "NDP", code }),
        };
        Ok((Self { id, one_way, path, body }, ports))
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
        (self.path != ANY_PATH).then_some(self.path)
    }
}
