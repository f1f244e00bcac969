//! dcPIM's headers. The authors' code names the packets and their fields, but no layout that others must follow, so the
//! layout is ours.

use core::fmt;

use rackweave_core::Slice;

use crate::codec::{Codec, Prologue, fmt_range, payload_len, slice};
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// Unassigned by IANA: dcPIM has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 246;

/// Values of the header's `type`.
pub mod packet_type {
    /// Announces a message to its receiver (the authors' `FLOW_SYNC`).
    pub const NOTIFY: u8 = 1;
    /// The announcement has arrived, or the message is known (the authors' `FLOW_SYNC_ACK`).
    pub const NOTIFY_ACK: u8 = 2;
    /// A receiver requests channels of a sender.
    pub const RTS: u8 = 3;
    /// A sender offers channels to a receiver.
    pub const GRANT: u8 = 4;
    /// A receiver accepts channels.
    pub const ACCEPT: u8 = 5;
    /// A sender takes back channels that it does not have (the authors' `GRANTR`).
    pub const RELEASE: u8 = 6;
    /// Permission to send one packet.
    pub const TOKEN: u8 = 7;
    /// A packet of a message.
    pub const DATA: u8 = 8;
    /// The whole message has arrived (the authors' `FIN`).
    pub const FIN: u8 = 9;
    /// The message is not known. This packet is our choice: the authors' hosts lose no state.
    pub const UNKNOWN: u8 = 10;
    /// Asks whether a response is still to come. This packet is our choice: the authors have no RPCs.
    pub const ASK: u8 = 11;
}

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of `NOTIFY_ACK`, FIN, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// NOTIFY and RELEASE.
    pub const CONTROL: u32 = 20;
    /// RTS, GRANT and ACCEPT.
    pub const MATCHING: u32 = 24;
    /// DATA without payload.
    pub const DATA: u32 = 28;
    /// TOKEN.
    pub const TOKEN: u32 = 30;
}

/// The unit of [`Body::Token::lifetime`], in nanoseconds.
pub const LIFETIME_UNIT_NS: u64 = 100;

/// A dcPIM header. The ports are the packet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message, in both directions. Packets of the matching name one of the messages for which they ask.
    pub id: Id64,
    /// The message expects no response.
    pub one_way: bool,
    /// The packet type, and its fields.
    pub body: Body,
}

/// A number of channels of a host's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Channels in the coming data phase.
    pub total: u8,
    /// How many of them can be used at once, because they are idle in the current data phase too.
    pub prompt: u8,
}

/// The packet types and their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Announces a message. A repeated one asks for the message's state.
    Notify {
        /// Length of the whole message.
        message_length: u32,
        /// Number of packets that are sent without tokens.
        free: u16,
    },
    /// The message is known, and there is nothing for it now, or no response yet.
    NotifyAck,
    /// The receiver requests channels of the sender.
    Rts {
        /// The receiver's epoch.
        epoch: u32,
        /// Packets that are missing of the shortest message that it expects from this sender.
        missing: u32,
        /// What it requests.
        channels: Channels,
    },
    /// The sender offers channels.
    Grant {
        /// The receiver's epoch, from its request.
        epoch: u32,
        /// The sender's epoch.
        sender_epoch: u32,
        /// What it offers.
        channels: Channels,
    },
    /// The receiver accepts channels.
    Accept {
        /// The receiver's epoch.
        epoch: u32,
        /// The sender's epoch, from its offer.
        sender_epoch: u32,
        /// What it accepts.
        channels: Channels,
    },
    /// The sender does not have some of the channels that were accepted.
    Release {
        /// The receiver's epoch.
        epoch: u32,
        /// Those that it does not have.
        channels: Channels,
    },
    /// Permission to send one packet.
    Token {
        /// Index of the packet in the message.
        packet: u32,
        /// The token's number; the free packets count, from 0.
        number: u32,
        /// Number of packets of the message that have not arrived.
        missing: u32,
        /// How long after its arrival the token can be used, in units of [`LIFETIME_UNIT_NS`].
        lifetime: u16,
        /// Order of the sender's tokens; lower values first.
        priority: u8,
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
    Fin,
    /// The packet's sender does not have the message.
    Unknown,
    /// The client waits for the response to this request.
    Ask,
}

impl Body {
    /// Returns the packet type's code, and its name.
    const fn packet_type(&self) -> (u8, &'static str) {
        match self {
            Self::Notify { .. } => (packet_type::NOTIFY, "dcpim NOTIFY"),
            Self::NotifyAck => (packet_type::NOTIFY_ACK, "dcpim NOTIFY_ACK"),
            Self::Rts { .. } => (packet_type::RTS, "dcpim RTS"),
            Self::Grant { .. } => (packet_type::GRANT, "dcpim GRANT"),
            Self::Accept { .. } => (packet_type::ACCEPT, "dcpim ACCEPT"),
            Self::Release { .. } => (packet_type::RELEASE, "dcpim RELEASE"),
            Self::Token { .. } => (packet_type::TOKEN, "dcpim TOKEN"),
            Self::Data { .. } => (packet_type::DATA, "dcpim DATA"),
            Self::Fin => (packet_type::FIN, "dcpim FIN"),
            Self::Unknown => (packet_type::UNKNOWN, "dcpim UNKNOWN"),
            Self::Ask => (packet_type::ASK, "dcpim ASK"),
        }
    }

    /// The prologue's second field.
    fn extra(&self) -> u16 {
        match self {
            Self::Notify { free, .. } | Self::Data { free, .. } => *free,
            Self::Rts { channels, .. }
            | Self::Grant { channels, .. }
            | Self::Accept { channels, .. }
            | Self::Release { channels, .. } => {
                u16::from_be_bytes([channels.total, channels.prompt])
            }
            Self::Token { priority, .. } => u16::from(*priority),
            Self::NotifyAck | Self::Fin | Self::Unknown | Self::Ask => 0,
        }
    }
}

impl Codec for Header {
    fn ip_protocol(_: Layout) -> u8 {
        IP_PROTOCOL
    }

    fn header_bytes(&self, _: Layout) -> u32 {
        match self.body {
            Body::Notify { .. } | Body::Release { .. } => size::CONTROL,
            Body::Rts { .. } | Body::Grant { .. } | Body::Accept { .. } => size::MATCHING,
            Body::Token { .. } => size::TOKEN,
            Body::Data { .. } => size::DATA,
            Body::NotifyAck | Body::Fin | Body::Unknown | Body::Ask => size::COMMON,
        }
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        let (code, _) = self.body.packet_type();
        let (id, one_way) = (self.id, self.one_way);
        Prologue { ports, code, flags: 0, extra: self.body.extra(), id, one_way }.put(out);
        match self.body {
            Body::Notify { message_length: number, .. } | Body::Release { epoch: number, .. } => {
                out.put_u32(number);
            }
            Body::Rts { epoch, missing: number, .. }
            | Body::Grant { epoch, sender_epoch: number, .. }
            | Body::Accept { epoch, sender_epoch: number, .. } => {
                out.put_u32(epoch);
                out.put_u32(number);
            }
            Body::Token { packet, number, missing, lifetime, .. } => {
                out.put_u32(packet);
                out.put_u32(number);
                out.put_u32(missing);
                out.put_u16(lifetime);
            }
            Body::Data { message_length, offset, token, .. } => {
                out.put_u32(message_length);
                out.put_u32(offset);
                out.put_u32(token);
            }
            Body::NotifyAck | Body::Fin | Body::Unknown | Body::Ask => {}
        }
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a dcPIM header", bytes);
        reader.need("a dcPIM header", size::COMMON as usize)?;
        let Prologue { ports, code, extra, id, one_way, .. } = Prologue::read(&mut reader)?;
        let [total, prompt] = extra.to_be_bytes();
        let channels = Channels { total, prompt };
        let body = match code {
            packet_type::NOTIFY => {
                reader.need("a dcPIM NOTIFY", size::CONTROL as usize)?;
                Body::Notify { message_length: reader.u32()?, free: extra }
            }
            packet_type::NOTIFY_ACK => Body::NotifyAck,
            packet_type::RTS => {
                reader.need("a dcPIM RTS", size::MATCHING as usize)?;
                Body::Rts { epoch: reader.u32()?, missing: reader.u32()?, channels }
            }
            packet_type::GRANT => {
                reader.need("a dcPIM GRANT", size::MATCHING as usize)?;
                Body::Grant { epoch: reader.u32()?, sender_epoch: reader.u32()?, channels }
            }
            packet_type::ACCEPT => {
                reader.need("a dcPIM ACCEPT", size::MATCHING as usize)?;
                Body::Accept { epoch: reader.u32()?, sender_epoch: reader.u32()?, channels }
            }
            packet_type::RELEASE => {
                reader.need("a dcPIM RELEASE", size::CONTROL as usize)?;
                Body::Release { epoch: reader.u32()?, channels }
            }
            packet_type::TOKEN => {
                reader.need("a dcPIM TOKEN", size::TOKEN as usize)?;
                let (packet, number, missing) = (reader.u32()?, reader.u32()?, reader.u32()?);
                // The first byte is reserved, as are flags.
                Body::Token { packet, number, missing, lifetime: reader.u16()?, priority: prompt }
            }
            packet_type::DATA => {
                reader.need("a dcPIM DATA header", size::DATA as usize)?;
                let len = payload_len(l4_bytes, size::DATA)?;
                let (message_length, offset) = (reader.u32()?, reader.u32()?);
                Body::Data { message_length, offset, len, free: extra, token: reader.u32()? }
            }
            packet_type::FIN => Body::Fin,
            packet_type::UNKNOWN => Body::Unknown,
            packet_type::ASK => Body::Ask,
            code => return Err(Malformed::PacketType { protocol: "dcPIM", code }),
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
            Body::Notify { message_length, free } => write!(f, " of {message_length} free {free}"),
            Body::Rts { epoch, missing, channels } => {
                write!(f, " epoch {epoch} missing {missing} {channels}")
            }
            Body::Grant { epoch, sender_epoch, channels }
            | Body::Accept { epoch, sender_epoch, channels } => {
                write!(f, " epoch {epoch} sender's {sender_epoch} {channels}")
            }
            Body::Release { epoch, channels } => write!(f, " epoch {epoch} {channels}"),
            Body::Token { packet, number, missing, lifetime, priority } => {
                let lifetime_ns = u64::from(lifetime) * LIFETIME_UNIT_NS;
                write!(f, " {number} for packet {packet} missing {missing}")?;
                write!(f, " priority {priority} lifetime {lifetime_ns} ns")
            }
            Body::Data { message_length, offset, len, free, token } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " free {free} token {token}")
            }
            Body::NotifyAck | Body::Fin | Body::Unknown | Body::Ask => Ok(()),
        }
    }
}

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channels {} prompt {}", self.total, self.prompt)
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
