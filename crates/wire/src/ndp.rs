//! NDP's headers. The protocol's paper gives the fields' meaning, not their layout: that is ours.

use rackweave_core::{MessageId, Slice};

use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// Of those that RFC 3692 sets aside for experiments: NDP has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 254;

/// The header's `type`.
pub mod packet_type {
    /// A piece of a message.
    pub const DATA: u8 = 1;
    /// A piece has arrived.
    pub const ACK: u8 = 2;
    /// A piece has arrived without its bytes.
    pub const NACK: u8 = 3;
    /// Permission to send.
    pub const PULL: u8 = 4;
    /// Ours: how does the message stand?
    pub const ASK: u8 = 5;
    /// Ours: no such message.
    pub const UNKNOWN: u8 = 6;
}

/// Bytes of each packet's header, without IP's.
pub mod size {
    /// The part that all have, and all of ASK and UNKNOWN.
    pub const COMMON: u32 = 18;
    /// PULL.
    pub const PULL: u32 = 22;
    /// DATA, without its bytes; ACK and NACK.
    pub const DATA: u32 = 26;
}

const FLAG_ONE_WAY: u8 = 0x80;
const FLAG_COMPLETE: u8 = 0x40;

/// In [`Header::path`]: whichever the switches pick.
pub const ANY_PATH: u16 = u16::MAX;

/// An NDP header. The ports are the packet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message, in both directions.
    pub id: Id64,
    /// The message expects no response.
    pub one_way: bool,
    /// The path on which its sender wants it to go, by number; or [`ANY_PATH`].
    pub path: u16,
    /// What kind of packet it is, and its fields.
    pub body: Body,
}

/// The packet types and their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A piece of a message: always a whole packet's worth, but for the last.
    Data {
        /// Bytes of the whole message.
        message_length: u32,
        /// First byte of the piece within the message.
        offset: u32,
        /// Bytes of the piece (on the wire: what is left of the packet).
        len: u16,
        /// Packets of the message that its sender sends without being asked.
        window: u16,
    },
    /// The piece at `offset` has arrived.
    Ack {
        /// First byte of the piece.
        offset: u32,
        /// Packets that were asked for so far, as in [`Body::Pull`].
        pull: u32,
        /// Tells the receiver's knowledge of the message from that of an earlier incarnation.
        incarnation: u16,
        /// The whole message has arrived.
        complete: bool,
    },
    /// The piece at `offset` was trimmed: its sender is to send it again when it is asked.
    Nack {
        /// First byte of the piece.
        offset: u32,
        /// Packets that were asked for so far, as in [`Body::Pull`].
        pull: u32,
        /// As in [`Body::Ack`].
        incarnation: u16,
    },
    /// Asks for packets.
    Pull {
        /// How many were asked for since the message began: cumulative, so that a lost one does
        /// no harm.
        pull: u32,
        /// As in [`Body::Ack`].
        incarnation: u16,
    },
    /// The message's sender (or the client that waits for the response) has heard nothing.
    Ask,
    /// The packet's sender does not know the message.
    Unknown,
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
            Body::Data { .. } | Body::Ack { .. } | Body::Nack { .. } => size::DATA,
            Body::Pull { .. } => size::PULL,
            Body::Ask | Body::Unknown => size::COMMON,
        }
    }

    /// Appends the header's bytes: exactly [`Header::header_bytes`].
    pub fn encode(&self, ports: Ports, out: &mut Vec<u8>) {
        let mut flags = if self.one_way { FLAG_ONE_WAY } else { 0 };
        // `extra` is the window of DATA and the incarnation of what answers it.
        let (code, extra) = match self.body {
            Body::Data { window, .. } => (packet_type::DATA, window),
            Body::Ack { incarnation, complete, .. } => {
                flags |= if complete { FLAG_COMPLETE } else { 0 };
                (packet_type::ACK, incarnation)
            }
            Body::Nack { incarnation, .. } => (packet_type::NACK, incarnation),
            Body::Pull { incarnation, .. } => (packet_type::PULL, incarnation),
            Body::Ask => (packet_type::ASK, 0),
            Body::Unknown => (packet_type::UNKNOWN, 0),
        };
        out.put_u16(ports.source);
        out.put_u16(ports.destination);
        out.put_u8(code);
        out.put_u8(flags);
        out.put_u16(extra);
        out.put_u64(self.id.get());
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

    /// Reads the header of a packet that IP says has `l4_bytes` after the IP header; `bytes` may
    /// have been cut by a capture (or by a switch that trims), but not within the header.
    ///
    /// Whether offsets and lengths make sense is for the machine to judge.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("an NDP header", bytes);
        reader.need("an NDP header", size::COMMON as usize)?;
        let ports = Ports { source: reader.u16()?, destination: reader.u16()? };
        let (code, flags) = (reader.u8()?, reader.u8()?);
        let extra = reader.u16()?;
        let id = Id64::new(reader.u64()?);
        let path = reader.u16()?;
        let body = match code {
            packet_type::DATA => {
                reader.need("an NDP DATA header", size::DATA as usize)?;
                let said = l4_bytes - size::DATA as usize;
                let len = u16::try_from(said)
                    .map_err(|_| Malformed::SegmentLength { said, left: usize::from(u16::MAX) })?;
                let (message_length, offset) = (reader.u32()?, reader.u32()?);
                Body::Data { message_length, offset, len, window: extra }
            }
            packet_type::ACK | packet_type::NACK => {
                reader.need("an NDP ACK or NACK", size::DATA as usize)?;
                let (offset, pull, incarnation) = (reader.u32()?, reader.u32()?, extra);
                if code == packet_type::NACK {
                    Body::Nack { offset, pull, incarnation }
                } else {
                    let complete = flags & FLAG_COMPLETE != 0;
                    Body::Ack { offset, pull, incarnation, complete }
                }
            }
            packet_type::PULL => {
                reader.need("an NDP PULL", size::PULL as usize)?;
                Body::Pull { pull: reader.u32()?, incarnation: extra }
            }
            packet_type::ASK => Body::Ask,
            packet_type::UNKNOWN => Body::Unknown,
            code => return Err(Malformed::NdpType(code)),
        };
        Ok((Self { id, one_way: flags & FLAG_ONE_WAY != 0, path, body }, ports))
    }
}

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        Self::payload(self)
    }

    #[inline]
    fn path(&self) -> Option<u16> {
        (self.path != ANY_PATH).then_some(self.path)
    }
}
