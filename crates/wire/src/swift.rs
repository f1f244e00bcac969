//! Swift's headers. The paper (Kumar et al., SIGCOMM'20) describes the congestion control of a transport, Pony Express, whose
//! packets it does not show, so the layout is ours.

use core::fmt;

use rackweave_core::Slice;

use crate::codec::{Codec, Prologue, fmt_range, payload_len, slice};
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
pub use crate::sack::Sack;
use crate::{Id64, Ports};

/// Unassigned by IANA: Swift has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 247;

/// Values of the header's `type`.
pub mod packet_type {
    /// A packet of a message.
    pub const DATA: u8 = 1;
    /// A packet of a sender that has waited for long. This packet is our choice: the paper has no messages that wait.
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
    /// The common part, which is all of BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// PROBE.
    pub const PROBE: u32 = 20;
    /// COMPLETE.
    pub const COMPLETE: u32 = 24;
    /// DATA without payload.
    pub const DATA: u32 = 28;
    /// ACK.
    pub const ACK: u32 = 36;
}

/// A Swift header. The ports are the packet's.
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
        /// The number of this transmission among all data packets from its sender to its receiver, from 1 and modulo 2^32.
        /// A packet that is sent again has a new one, so that its acknowledgement is unambiguous.
        number: u32,
    },
    /// Asks for an acknowledgement.
    Probe {
        /// Length of the whole message.
        message_length: u32,
    },
    /// Which packets of the message have arrived. Packets are numbered from 0.
    Ack {
        /// The `number` of the data packet that this acknowledges, by which the sender knows when it sent it; 0 if this
        /// answers a probe.
        number: u32,
        /// The time from that packet's arrival at its host to the departure of this one, in nanoseconds: the remote
        /// queuing delay of section 3.1.
        wait_ns: u32,
        /// The first packet that has not arrived.
        next: u32,
        /// Bit `i` is set if packet `next + 1 + i` has arrived (section 3.6: selective acknowledgements as a bitmap).
        sack: Sack,
    },
    /// The whole message has arrived.
    Complete {
        /// As in ACK; 0 if this answers another packet than a data packet.
        number: u32,
        /// As in ACK.
        wait_ns: u32,
    },
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
            Self::Data { .. } => (packet_type::DATA, "swift DATA"),
            Self::Probe { .. } => (packet_type::PROBE, "swift PROBE"),
            Self::Ack { .. } => (packet_type::ACK, "swift ACK"),
            Self::Complete { .. } => (packet_type::COMPLETE, "swift COMPLETE"),
            Self::Busy => (packet_type::BUSY, "swift BUSY"),
            Self::Unknown => (packet_type::UNKNOWN, "swift UNKNOWN"),
            Self::Ask => (packet_type::ASK, "swift ASK"),
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
            Body::Complete { .. } => size::COMPLETE,
            Body::Busy | Body::Unknown | Body::Ask => size::COMMON,
        }
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        let (code, _) = self.body.packet_type();
        let (id, one_way) = (self.id, self.one_way);
        Prologue { ports, code, flags: 0, extra: 0, id, one_way }.put(out);
        match self.body {
            Body::Data { message_length, offset, number, .. } => {
                out.put_u32(message_length);
                out.put_u32(offset);
                out.put_u32(number);
            }
            Body::Probe { message_length } => out.put_u32(message_length),
            Body::Ack { number, wait_ns, next, sack } => {
                out.put_u32(number);
                out.put_u32(wait_ns);
                out.put_u32(next);
                out.put_u64(sack.bits());
            }
            Body::Complete { number, wait_ns } => {
                out.put_u32(number);
                out.put_u32(wait_ns);
            }
            Body::Busy | Body::Unknown | Body::Ask => {}
        }
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a Swift header", bytes);
        reader.need("a Swift header", size::COMMON as usize)?;
        let Prologue { ports, code, id, one_way, .. } = Prologue::read(&mut reader)?;
        let body = match code {
            packet_type::DATA => {
                reader.need("a Swift DATA header", size::DATA as usize)?;
                let len = payload_len(l4_bytes, size::DATA)?;
                let (message_length, offset) = (reader.u32()?, reader.u32()?);
                Body::Data { message_length, offset, len, number: reader.u32()? }
            }
            packet_type::PROBE => {
                reader.need("a Swift PROBE", size::PROBE as usize)?;
                Body::Probe { message_length: reader.u32()? }
            }
            packet_type::ACK => {
                reader.need("a Swift ACK", size::ACK as usize)?;
                let (number, wait_ns, next) = (reader.u32()?, reader.u32()?, reader.u32()?);
                Body::Ack { number, wait_ns, next, sack: Sack::new(reader.u64()?) }
            }
            packet_type::COMPLETE => {
                reader.need("a Swift COMPLETE", size::COMPLETE as usize)?;
                Body::Complete { number: reader.u32()?, wait_ns: reader.u32()? }
            }
            packet_type::BUSY => Body::Busy,
            packet_type::UNKNOWN => Body::Unknown,
            packet_type::ASK => Body::Ask,
            code => return Err(Malformed::PacketType { protocol: "Swift", code }),
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
            Body::Data { message_length, offset, len, number } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " number {number}")
            }
            Body::Probe { message_length } => write!(f, " of {message_length}"),
            Body::Ack { number, wait_ns, next, sack } => {
                write!(f, " of number {number} next {next} wait {wait_ns} ns")?;
                if sack.bits() > 0 { write!(f, " sack {:#x}", sack.bits()) } else { Ok(()) }
            }
            Body::Complete { number, wait_ns } => {
                write!(f, " of number {number} wait {wait_ns} ns")
            }
            Body::Busy | Body::Unknown | Body::Ask => Ok(()),
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
