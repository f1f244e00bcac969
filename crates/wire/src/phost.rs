//! pHost's headers. The protocol's paper gives the fields' meaning, not their layout: that is ours.

use rackweave_core::{MessageId, Slice};

use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// Unassigned by IANA, and taken by us: pHost has no IP protocol number of its own, and both of
/// those for experiments are in use here.
pub const IP_PROTOCOL: u8 = 252;

/// The header's `type`.
pub mod packet_type {
    /// Request to send.
    pub const RTS: u8 = 1;
    /// Permission to send one packet.
    pub const TOKEN: u8 = 2;
    /// A piece of a message.
    pub const DATA: u8 = 3;
    /// The whole message has arrived.
    pub const ACK: u8 = 4;
    /// Ours: the message is known; wait.
    pub const BUSY: u8 = 5;
    /// Ours: no such message.
    pub const UNKNOWN: u8 = 6;
    /// Ours: is there still a response to come?
    pub const ASK: u8 = 7;
}

/// Bytes of each packet's header, without IP's.
pub mod size {
    /// The part that all have, and all of ACK, BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = 16;
    /// RTS: with IP's header the 40 bytes of the paper.
    pub const RTS: u32 = 20;
    /// TOKEN; DATA, without its bytes.
    pub const DATA: u32 = 28;
}

const FLAG_ONE_WAY: u8 = 0x80;

/// A pHost header. The ports are the packet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message, in both directions.
    pub id: Id64,
    /// The message expects no response.
    pub one_way: bool,
    /// What kind of packet it is, and its fields.
    pub body: Body,
}

/// The packet types and their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Request to send: a message is there. Sent again, it asks how the message stands.
    Rts {
        /// Bytes of the whole message.
        message_length: u32,
        /// Packets of it that are sent without tokens.
        free: u16,
    },
    /// Permission to send one packet, for a short time.
    Token {
        /// Which packet of the message.
        packet: u32,
        /// The token's number: the free ones count, from 0.
        number: u32,
        /// Packets of the message that have not arrived.
        missing: u32,
    },
    /// A piece of a message: always a whole packet's worth, but for the last.
    Data {
        /// Bytes of the whole message.
        message_length: u32,
        /// First byte of the piece within the message.
        offset: u32,
        /// Bytes of the piece (on the wire: what is left of the packet).
        len: u16,
        /// Packets of the message that are sent without tokens.
        free: u16,
        /// The token that it uses.
        token: u32,
    },
    /// The whole message has arrived.
    Ack,
    /// The message is known; there is no token for it now, or no response yet.
    Busy,
    /// The packet's sender does not know the message.
    Unknown,
    /// The client waits for the response to this request.
    Ask,
}

impl Header {
    /// The message bytes carried.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> Option<Slice> {
        match self.body {
            Body::Data { offset, len, .. } => {
                Some(Slice { message: MessageId(self.id.get()), offset, len: u32::from(len) })
            }
            _ => None,
        }
    }

    /// Bytes of the header, without payload.
    #[must_use]
    pub const fn header_bytes(&self) -> u32 {
        match self.body {
            Body::Rts { .. } => size::RTS,
            Body::Token { .. } | Body::Data { .. } => size::DATA,
            Body::Ack | Body::Busy | Body::Unknown | Body::Ask => size::COMMON,
        }
    }

    /// Appends the header's bytes: exactly [`Header::header_bytes`].
    pub fn encode(&self, ports: Ports, out: &mut Vec<u8>) {
        let (code, free) = match self.body {
            Body::Rts { free, .. } => (packet_type::RTS, free),
            Body::Token { .. } => (packet_type::TOKEN, 0),
            Body::Data { free, .. } => (packet_type::DATA, free),
            Body::Ack => (packet_type::ACK, 0),
            Body::Busy => (packet_type::BUSY, 0),
            Body::Unknown => (packet_type::UNKNOWN, 0),
            Body::Ask => (packet_type::ASK, 0),
        };
        out.put_u16(ports.source);
        out.put_u16(ports.destination);
        out.put_u8(code);
        out.put_u8(if self.one_way { FLAG_ONE_WAY } else { 0 });
        out.put_u16(free);
        out.put_u64(self.id.get());
        match self.body {
            Body::Rts { message_length, .. } => out.put_u32(message_length),
            Body::Token { packet, number, missing } => {
                out.put_u32(packet);
                out.put_u32(number);
                out.put_u32(missing);
            }
            Body::Data { message_length, offset, token, .. } => {
                out.put_u32(message_length);
                out.put_u32(offset);
                out.put_u32(token);
            }
            Body::Ack | Body::Busy | Body::Unknown | Body::Ask => {}
        }
    }

    /// Reads the header of a packet that IP says has `l4_bytes` after the IP header; `bytes` may
    /// have been cut by a capture, but not within the header.
    ///
    /// Whether offsets and lengths make sense is for the machine to judge.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a pHost header", bytes);
        reader.need("a pHost header", size::COMMON as usize)?;
        let ports = Ports { source: reader.u16()?, destination: reader.u16()? };
        let (code, flags) = (reader.u8()?, reader.u8()?);
        let free = reader.u16()?;
        let id = Id64::new(reader.u64()?);
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
                let said = l4_bytes - size::DATA as usize;
                let len = u16::try_from(said)
                    .map_err(|_| Malformed::SegmentLength { said, left: usize::from(u16::MAX) })?;
                let (message_length, offset) = (reader.u32()?, reader.u32()?);
                Body::Data { message_length, offset, len, free, token: reader.u32()? }
            }
            packet_type::ACK => Body::Ack,
            packet_type::BUSY => Body::Busy,
            packet_type::UNKNOWN => Body::Unknown,
            packet_type::ASK => Body::Ask,
            code => return Err(Malformed::PHostType(code)),
        };
        Ok((Self { id, one_way: flags & FLAG_ONE_WAY != 0, body }, ports))
    }
}

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        Self::payload(self)
    }
}
