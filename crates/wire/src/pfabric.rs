//! pFabric's headers. The paper (Alizadeh et al., SIGCOMM'13) gives the fields' meaning but no layout, so the layout is
//! ours.

use core::fmt;

use rackweave_core::{MessageId, Rank, Slice};

use crate::codec::{Codec, Prologue, fmt_range, payload_len, slice};
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
pub use crate::sack::Sack;
use crate::{Id64, Ports};

/// Unassigned by IANA: pFabric has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 249;

/// Values of the header's `type`.
pub mod packet_type {
    /// A packet of a message.
    pub const DATA: u8 = 1;
    /// A packet of a sender that is in probe mode.
    pub const PROBE: u8 = 2;
    /// Which packets have arrived.
    pub const ACK: u8 = 3;
    /// The whole message has arrived.
    pub const COMPLETE: u8 = 4;
    /// The message is known, and there is no response yet. This packet is our choice: the paper has no RPCs.
    pub const BUSY: u8 = 5;
    /// The message is not known. This packet is our choice: in the paper no host loses its state.
    pub const UNKNOWN: u8 = 6;
    /// Asks whether a response is still to come. This packet is our choice: the paper has no RPCs.
    pub const ASK: u8 = 7;
}

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of COMPLETE, BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// PROBE.
    pub const PROBE: u32 = 24;
    /// DATA without payload.
    pub const DATA: u32 = 28;
    /// ACK.
    pub const ACK: u32 = 32;
}

/// A pFabric header. The ports are the packet's.
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
        /// The priority (section 4.1): the bytes of the message that are not known to have arrived.
        remaining: u32,
    },
    /// Asks for an acknowledgement (section 4.3). The paper's probe carries one byte of the message; ours carries none.
    Probe {
        /// Length of the whole message.
        message_length: u32,
        /// As in DATA; 0 in a probe that precedes all messages in a switch, as acknowledgements do.
        remaining: u32,
    },
    /// Which packets have arrived. Packets are numbered from 0.
    Ack {
        /// The first packet that has not arrived.
        next: u32,
        /// The packet that this acknowledges; any number below `next` if it answers a probe.
        packet: u32,
        /// Bit `i` is set if packet `next + 1 + i` has arrived.
        sack: Sack,
    },
    /// The whole message has arrived.
    Complete,
    /// The message is known, and there is no response yet.
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
            Self::Data { .. } => (packet_type::DATA, "pfabric DATA"),
            Self::Probe { .. } => (packet_type::PROBE, "pfabric PROBE"),
            Self::Ack { .. } => (packet_type::ACK, "pfabric ACK"),
            Self::Complete => (packet_type::COMPLETE, "pfabric COMPLETE"),
            Self::Busy => (packet_type::BUSY, "pfabric BUSY"),
            Self::Unknown => (packet_type::UNKNOWN, "pfabric UNKNOWN"),
            Self::Ask => (packet_type::ASK, "pfabric ASK"),
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
            Body::Probe { .. } => size::PROBE,
            Body::Ack { .. } => size::ACK,
            Body::Complete | Body::Busy | Body::Unknown | Body::Ask => size::COMMON,
        }
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        let (code, _) = self.body.packet_type();
        let (id, one_way) = (self.id, self.one_way);
        Prologue { ports, code, flags: 0, extra: 0, id, one_way }.put(out);
        match self.body {
            Body::Data { message_length, offset, remaining, .. } => {
                out.put_u32(message_length);
                out.put_u32(remaining);
                out.put_u32(offset);
            }
            Body::Probe { message_length, remaining } => {
                out.put_u32(message_length);
                out.put_u32(remaining);
            }
            Body::Ack { next, packet, sack } => {
                out.put_u32(next);
                out.put_u32(packet);
                out.put_u64(sack.bits());
            }
            Body::Complete | Body::Busy | Body::Unknown | Body::Ask => {}
        }
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a pFabric header", bytes);
        reader.need("a pFabric header", size::COMMON as usize)?;
        let Prologue { ports, code, id, one_way, .. } = Prologue::read(&mut reader)?;
        let body = match code {
            packet_type::DATA => {
                reader.need("a pFabric DATA header", size::DATA as usize)?;
                let len = payload_len(l4_bytes, size::DATA)?;
                let (message_length, remaining) = (reader.u32()?, reader.u32()?);
                Body::Data { message_length, offset: reader.u32()?, len, remaining }
            }
            packet_type::PROBE => {
                reader.need("a pFabric PROBE", size::PROBE as usize)?;
                Body::Probe { message_length: reader.u32()?, remaining: reader.u32()? }
            }
            packet_type::ACK => {
                reader.need("a pFabric ACK", size::ACK as usize)?;
                let (next, packet) = (reader.u32()?, reader.u32()?);
                Body::Ack { next, packet, sack: Sack::new(reader.u64()?) }
            }
            packet_type::COMPLETE => Body::Complete,
            packet_type::BUSY => Body::Busy,
            packet_type::UNKNOWN => Body::Unknown,
            packet_type::ASK => Body::Ask,
            code => return Err(Malformed::PacketType { protocol: "pFabric", code }),
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
            Body::Data { message_length, offset, len, remaining } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " remaining {remaining}")
            }
            Body::Probe { message_length, remaining } => {
                write!(f, " of {message_length} remaining {remaining}")
            }
            Body::Ack { next, packet, sack } => {
                write!(f, " of packet {packet} next {next}")?;
                if sack.bits() > 0 { write!(f, " sack {:#x}", sack.bits()) } else { Ok(()) }
            }
            Body::Complete | Body::Busy | Body::Unknown | Body::Ask => Ok(()),
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
    fn rank(&self) -> Option<Rank> {
        match self.body {
            Body::Probe { remaining: 0, .. } => None,
            Body::Data { remaining, .. } | Body::Probe { remaining, .. } => {
                Some(Rank { message: MessageId(self.id.get()), remaining })
            }
            _ => None,
        }
    }
}
