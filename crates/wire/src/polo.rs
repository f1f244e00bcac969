//! Polo's headers. The talk gives the packets' names and meaning; their fields and layout are ours.

use rackweave_core::{MessageId, Slice};

use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// Unassigned by IANA, and taken by us: Polo has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 251;

/// The header's `type`.
pub mod packet_type {
    /// A piece of a message.
    pub const DATA: u8 = 1;
    /// Follows a first window, and then ticks: one half of the ping-pong that delimits epochs.
    pub const ADJOINT: u8 = 2;
    /// The other half.
    pub const ADJOINT_ACK: u8 = 3;
    /// Driving packet: brings the next data packet.
    pub const DRIVE: u8 = 4;
    /// Loss packet: names what to send again.
    pub const LOSS: u8 = 5;
    /// Ours: the whole message has arrived.
    pub const COMPLETE: u8 = 6;
    /// Ours: is there still a response to come?
    pub const ASK: u8 = 7;
    /// Ours: no such message.
    pub const UNKNOWN: u8 = 8;
}

/// Bytes of each packet's header, without IP's.
pub mod size {
    /// The part that all have, and all of COMPLETE, ASK and UNKNOWN.
    pub const COMMON: u32 = 16;
    /// ADJOINT_ACK, DRIVE and LOSS.
    pub const ANSWER: u32 = 20;
    /// DATA, without its bytes.
    pub const DATA: u32 = 24;
    /// ADJOINT.
    pub const ADJOINT: u32 = 28;
}

const FLAG_ONE_WAY: u8 = 0x80;
// Of DATA.
const FLAG_DRIVEN: u8 = 0x40;
const FLAG_AGAIN: u8 = 0x20;
// Of ADJOINT.
const FLAG_TIMEOUT: u8 = 0x40;
// Of ADJOINT_ACK.
const FLAG_PAUSED: u8 = 0x40;
const FLAG_TICK: u8 = 0x20;

/// A Polo header. The ports are the packet's.
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
        /// The receiver asked for this packet.
        driven: bool,
        /// It was sent before: out of order, and at high priority.
        again: bool,
    },
    /// The ping: follows the first window, and answers an ADJOINT-ACK that ticks.
    Adjoint {
        /// Bytes of the whole message.
        message_length: u32,
        /// Packets that were sent so far, not counting repetitions.
        sent: u32,
        /// The epoch of the acknowledgement that it answers; 0 if none.
        epoch: u32,
        /// As in [`Body::Data`].
        window: u16,
        /// The sender has heard nothing for its timeout.
        timeout: bool,
    },
    /// The pong: tells the sender how it stands.
    AdjointAck {
        /// The receiver's epoch.
        epoch: u32,
        /// The flow is inactive: its sender is to be quiet until it is driven.
        paused: bool,
        /// The adjoint packet is wanted back: it ends the epoch.
        tick: bool,
    },
    /// Lets the sender send new packets.
    Drive {
        /// Up to this packet of the message, not included: cumulative, so that a lost one does no
        /// harm.
        upto: u32,
    },
    /// Asks for packets by name, which were lost (or never sent).
    Loss {
        /// The first of them.
        first: u32,
        /// How many.
        count: u16,
    },
    /// The whole message has arrived.
    Complete,
    /// The client that waits for the response has heard nothing.
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
            Body::Data { .. } => size::DATA,
            Body::Adjoint { .. } => size::ADJOINT,
            Body::AdjointAck { .. } | Body::Drive { .. } | Body::Loss { .. } => size::ANSWER,
            Body::Complete | Body::Ask | Body::Unknown => size::COMMON,
        }
    }

    /// Appends the header's bytes: exactly [`Header::header_bytes`].
    pub fn encode(&self, ports: Ports, out: &mut Vec<u8>) {
        const fn flag(set: bool, bit: u8) -> u8 {
            if set { bit } else { 0 }
        }
        // `extra` is the window of DATA and ADJOINT, and the count of LOSS.
        let (code, flags, extra) = match self.body {
            Body::Data { window, driven, again, .. } => {
                let flags = flag(driven, FLAG_DRIVEN) | flag(again, FLAG_AGAIN);
                (packet_type::DATA, flags, window)
            }
            Body::Adjoint { window, timeout, .. } => {
                (packet_type::ADJOINT, flag(timeout, FLAG_TIMEOUT), window)
            }
            Body::AdjointAck { paused, tick, .. } => {
                let flags = flag(paused, FLAG_PAUSED) | flag(tick, FLAG_TICK);
                (packet_type::ADJOINT_ACK, flags, 0)
            }
            Body::Drive { .. } => (packet_type::DRIVE, 0, 0),
            Body::Loss { count, .. } => (packet_type::LOSS, 0, count),
            Body::Complete => (packet_type::COMPLETE, 0, 0),
            Body::Ask => (packet_type::ASK, 0, 0),
            Body::Unknown => (packet_type::UNKNOWN, 0, 0),
        };
        out.put_u16(ports.source);
        out.put_u16(ports.destination);
        out.put_u8(code);
        out.put_u8(flags | flag(self.one_way, FLAG_ONE_WAY));
        out.put_u16(extra);
        out.put_u64(self.id.get());
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

    /// Reads the header of a packet that IP says has `l4_bytes` after the IP header; `bytes` may
    /// have been cut by a capture, but not within the header.
    ///
    /// Whether offsets and lengths make sense is for the machine to judge.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a Polo header", bytes);
        reader.need("a Polo header", size::COMMON as usize)?;
        let ports = Ports { source: reader.u16()?, destination: reader.u16()? };
        let (code, flags) = (reader.u8()?, reader.u8()?);
        let extra = reader.u16()?;
        let id = Id64::new(reader.u64()?);
        let has = |bit| flags & bit != 0;
        let body = match code {
            packet_type::DATA => {
                reader.need("a Polo DATA header", size::DATA as usize)?;
                let said = l4_bytes - size::DATA as usize;
                let len = u16::try_from(said)
                    .map_err(|_| Malformed::SegmentLength { said, left: usize::from(u16::MAX) })?;
                let (message_length, offset) = (reader.u32()?, reader.u32()?);
                let (driven, again) = (has(FLAG_DRIVEN), has(FLAG_AGAIN));
                Body::Data { message_length, offset, len, window: extra, driven, again }
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
            code => return Err(Malformed::PoloType(code)),
        };
        Ok((Self { id, one_way: has(FLAG_ONE_WAY), body }, ports))
    }
}

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        Self::payload(self)
    }
}
