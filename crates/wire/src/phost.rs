//! pHost's headers. The paper gives the fields' meaning but no layout, so the layout is ours.

use core::fmt;

use rackweave_core::Slice;

use crate::codec::{Codec, Prologue, fmt_range, payload_len, slice};
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// Unassigned by IANA: pHost has no IP protocol number of its own, and both experimental ones are already used here.
pub const IP_PROTOCOL: u8 = 252;

/// Values of the header's `type`.
pub mod packet_type {
    /// Request to send.
    pub const RTS: u8 = 1;
    /// Permission to send one packet.
    pub const TOKEN: u8 = 2;
    /// A packet of a message.
    pub const DATA: u8 = 3;
    /// The whole message has arrived.
    pub const ACK: u8 = 4;
    /// The message is known, and its sender must wait. This packet is our choice: the paper has no reply to a repeated
    /// RTS.
    pub const BUSY: u8 = 5;
    /// The message is not known. This packet is our choice: in the paper no host loses its state.
    pub const UNKNOWN: u8 = 6;
    /// Asks whether a response is still to come. This packet is our choice: the paper has no RPCs.
    pub const ASK: u8 = 7;
}

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of ACK, BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// RTS: with IP's header, the 40 bytes of the paper.
    pub const RTS: u32 = 20;
    /// TOKEN, and DATA without payload.
    pub const DATA: u32 = 28;
}

/// A pHost header. The ports are the packet's.
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
    /// Request to send a message. A repeated one asks for the message's state.
    Rts {
        /// Length of the whole message.
        message_length: u32,
        /// Number of packets that are sent without tokens.
        free: u16,
    },
    /// Permission to send one packet, for a short time.
    Token {
        /// Index of the packet in the message.
        packet: u32,
        /// The token's number; the free tokens count, from 0.
        number: u32,
        /// Number of packets of the message that have not arrived.
        missing: u32,
    },
    /// A packet of a message: full, except for the last one.
    Data {
        /// Length of the whole message.
        message_length: u32,
        /// Offset of the payload in the message.
        offset: u32,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16,
        /// Number of packets that are sent without tokens.
        free: u16,
        /// The number of the token that it uses.
        token: u32,
    },
    /// The whole message has arrived.
    Ack,
    /// The message is known, and there is no token for it now, or no response yet.
    Busy,
    /// The packet's sender does not have the message.
    Unknown,
    /// The client waits for the response to this request.
    Ask,
}

impl Body {
    /// Returns the packet type's code, and its name.
    const fn packet_type(&self) -> (u8, &'static str) {
        match self {
            Self::Rts { .. } => (packet_type::RTS, "phost RTS"),
            Self::Token { .. } => (packet_type::TOKEN, "phost TOKEN"),
            Self::Data { .. } => (packet_type::DATA, "phost DATA"),
            Self::Ack => (packet_type::ACK, "phost ACK"),
            Self::Busy => (packet_type::BUSY, "phost BUSY"),
            Self::Unknown => (packet_type::UNKNOWN, "phost UNKNOWN"),
            Self::Ask => (packet_type::ASK, "phost ASK"),
        }
    }
}

impl Codec for Header {
    fn ip_protocol(_: Layout) -> u8 {
        IP_PROTOCOL
    }

    fn header_bytes(&self, _: Layout) -> u32 {
        match self.body {
            Body::Rts { .. } => size::RTS,
            Body::Token { .. } | Body::Data { .. } => size::DATA,
            Body::Ack | Body::Busy | Body::Unknown | Body::Ask => size::COMMON,
        }
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        let (code, _) = self.body.packet_type();
        let extra = match self.body {
            Body::Rts { free, .. } | Body::Data { free, .. } => free,
            _ => 0,
        };
        let (id, one_way) = (self.id, self.one_way);
        Prologue { ports, code, flags: 0, extra, id, one_way }.put(out);
        match self.body {
            Body::Rts { message_length, .. } => out.put_u32(message_length),
            Body::Token { packet: a, number: b, missing: c }
            | Body::Data { message_length: a, offset: b, token: c, .. } => {
                out.put_u32(a);
                out.put_u32(b);
                out.put_u32(c);
            }
            Body::Ack | Body::Busy | Body::Unknown | Body::Ask => {}
        }
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a pHost header", bytes);
        reader.need("a pHost header", size::COMMON as usize)?;
        let Prologue { ports, code, extra: free, id, one_way, .. } = Prologue::read(&mut reader)?;
        let body = match code {
            packet_type::RTS => {
                reader.need("a pHost RTS", size::RTS as usize)?;
                Body::Rts { message_length: reader.u32()?, free }
            }
            packet_type::TOKEN => {
                reader.need("a pHost TOKEN", size::DATA as usize)?;
                let (packet, number) = (reader.u32()?, reader.u32()?);
                Body::Token { packet, number, missing: reader.u32()? }
            }
            packet_type::DATA => {
                reader.need("a pHost DATA header", size::DATA as usize)?;
                let len = payload_len(l4_bytes, size::DATA)?;
                let (message_length, offset) = (reader.u32()?, reader.u32()?);
                Body::Data { message_length, offset, len, free, token: reader.u32()? }
            }
            packet_type::ACK => Body::Ack,
            packet_type::BUSY => Body::Busy,
            packet_type::UNKNOWN => Body::Unknown,
            packet_type::ASK => Body::Ask,
            code => return Err(Malformed::PacketType { protocol: "pHost", code }),
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
            Body::Rts { message_length, free } => write!(f, " of {message_length} free {free}"),
            Body::Token { packet, number, missing } => {
                write!(f, " {number} for packet {packet} missing {missing}")
            }
            Body::Data { message_length, offset, len, free, token } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " free {free} token {token}")
            }
            Body::Ack | Body::Busy | Body::Unknown | Body::Ask => Ok(()),
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
