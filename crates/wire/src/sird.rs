//! SIRD's headers. The paper names two packet types, DATA and CREDIT, and the bit `csn`; the layout is ours.

use core::fmt;

use rackweave_core::Slice;

use crate::codec::{Codec, Prologue, flag, fmt_range, payload_len, slice};
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// Unassigned by IANA: SIRD has no IP protocol number of its own. pFabric's here is 249.
pub const IP_PROTOCOL: u8 = 248;

/// Values of the header's `type`.
pub mod packet_type {
    /// A request for credit: the paper's DATA packet without payload.
    pub const REQUEST: u8 = 1;
    /// Permission to send one packet.
    pub const CREDIT: u8 = 2;
    /// A packet of a message.
    pub const DATA: u8 = 3;
    /// The whole message has arrived. This packet is our choice: in the authors' simulator nothing is lost.
    pub const ACK: u8 = 4;
    /// The message is known, and its sender must wait. This packet is our choice, as ACK.
    pub const BUSY: u8 = 5;
    /// The message is not known. This packet is our choice, as ACK.
    pub const UNKNOWN: u8 = 6;
    /// Asks whether a response is still to come. This packet is our choice, as ACK.
    pub const ASK: u8 = 7;
}

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of ACK, BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// REQUEST and CREDIT.
    pub const CONTROL: u32 = 20;
    /// DATA without payload.
    pub const DATA: u32 = 24;
}

/// Bit of the flags of DATA: the sender has more credit than it can use.
const FLAG_CSN: u8 = 0x01;

/// A SIRD header. The ports are the packet's.
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
    /// Asks for credit for a message. A repeated request asks for the message's state.
    Request {
        /// Length of the whole message.
        message_length: u32,
        /// Number of packets at the start of the message that are sent without credit.
        unscheduled: u16,
    },
    /// Permission to send one packet.
    Credit {
        /// Index of the packet in the message.
        packet: u32,
    },
    /// A packet of a message: full, except for the last one.
    Data {
        /// Length of the whole message.
        message_length: u32,
        /// Offset of the payload in the message.
        offset: u32,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16,
        /// Number of packets at the start of the message that are sent without credit.
        unscheduled: u16,
        /// Congested sender notification: the sender holds more unused credit than its threshold.
        csn: bool,
    },
    /// The whole message has arrived.
    Ack,
    /// The message is known, and there is no credit for it now, or no response yet.
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
            Self::Request { .. } => (packet_type::REQUEST, "sird REQUEST"),
            Self::Credit { .. } => (packet_type::CREDIT, "sird CREDIT"),
            Self::Data { .. } => (packet_type::DATA, "sird DATA"),
            Self::Ack => (packet_type::ACK, "sird ACK"),
            Self::Busy => (packet_type::BUSY, "sird BUSY"),
            Self::Unknown => (packet_type::UNKNOWN, "sird UNKNOWN"),
            Self::Ask => (packet_type::ASK, "sird ASK"),
        }
    }
}

impl Codec for Header {
    fn ip_protocol(_: Layout) -> u8 {
        IP_PROTOCOL
    }

    fn header_bytes(&self, _: Layout) -> u32 {
        match self.body {
            Body::Request { .. } | Body::Credit { .. } => size::CONTROL,
            Body::Data { .. } => size::DATA,
            Body::Ack | Body::Busy | Body::Unknown | Body::Ask => size::COMMON,
        }
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        let (code, _) = self.body.packet_type();
        let (extra, flags) = match self.body {
            Body::Request { unscheduled, .. } => (unscheduled, 0),
            Body::Data { unscheduled, csn, .. } => (unscheduled, flag(csn, FLAG_CSN)),
            _ => (0, 0),
        };
        let (id, one_way) = (self.id, self.one_way);
        Prologue { ports, code, flags, extra, id, one_way }.put(out);
        match self.body {
            Body::Request { message_length: number, .. } | Body::Credit { packet: number } => {
                out.put_u32(number);
            }
            Body::Data { message_length, offset, .. } => {
                out.put_u32(message_length);
                out.put_u32(offset);
            }
            Body::Ack | Body::Busy | Body::Unknown | Body::Ask => {}
        }
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a SIRD header", bytes);
        reader.need("a SIRD header", size::COMMON as usize)?;
        let prologue = Prologue::read(&mut reader)?;
        let csn = prologue.has(FLAG_CSN);
        let Prologue { ports, code, extra: unscheduled, id, one_way, .. } = prologue;
        let body = match code {
            packet_type::REQUEST => {
                reader.need("a SIRD REQUEST", size::CONTROL as usize)?;
                Body::Request { message_length: reader.u32()?, unscheduled }
            }
            packet_type::CREDIT => {
                reader.need("a SIRD CREDIT", size::CONTROL as usize)?;
                Body::Credit { packet: reader.u32()? }
            }
            packet_type::DATA => {
                reader.need("a SIRD DATA header", size::DATA as usize)?;
                let len = payload_len(l4_bytes, size::DATA)?;
                let (message_length, offset) = (reader.u32()?, reader.u32()?);
                Body::Data { message_length, offset, len, unscheduled, csn }
            }
            packet_type::ACK => Body::Ack,
            packet_type::BUSY => Body::Busy,
            packet_type::UNKNOWN => Body::Unknown,
            packet_type::ASK => Body::Ask,
            code => return Err(Malformed::PacketType { protocol: "SIRD", code }),
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
            Body::Request { message_length, unscheduled } => {
                write!(f, " of {message_length} unscheduled {unscheduled}")
            }
            Body::Credit { packet } => write!(f, " for packet {packet}"),
            Body::Data { message_length, offset, len, unscheduled, csn } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " unscheduled {unscheduled}")?;
                f.write_str(if csn { " csn" } else { "" })
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
