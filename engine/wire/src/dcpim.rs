//! dcPIM's headers. The authors' code names the packets and their fields, but no layout that others must follow. The
//! layout is Rackweave's.

use core::fmt;

use crate::codec::fmt_range;
use crate::exchange::{Extra, Prologue, exchange_header};

/// Unassigned by IANA: dcPIM has no IP protocol number of its own.
pub const IP_PROTOCOL: u8 = 246;

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

/// A number of channels of a host's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Channels in the coming data phase.
    pub total: u8,
    /// How many of them can be used at once, because they are idle in the current data phase too.
    pub prompt: u8,
}

exchange_header! {
    /// A dcPIM header. The ports are the packet's.
    /// The id in packets of the matching is one of the messages for which they ask.
    Header of "dcPIM", "dcpim", "a dcPIM header", IP_PROTOCOL {}

    /// Announces a message (the authors' `FLOW_SYNC`). A repeated one asks for the message's state.
    Notify = 1 "NOTIFY" from sender as "a dcPIM NOTIFY" of size::CONTROL {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Number of packets that are sent without tokens.
        free: u16 = extra,
    },
    /// The message is known, and there is nothing for it now, or no response yet (the authors' `FLOW_SYNC_ACK`).
    NotifyAck = 2 "NOTIFY_ACK" from receiver,
    /// The receiver requests channels of the sender.
    Rts = 3 "RTS" from receiver as "a dcPIM RTS" of size::MATCHING {
        /// The receiver's epoch.
        epoch: u32 = word,
        /// Packets that are missing of the shortest message that it expects from this sender.
        missing: u32 = word,
        /// What it requests.
        channels: Channels = extra,
    },
    /// The sender offers channels.
    Grant = 4 "GRANT" from sender as "a dcPIM GRANT" of size::MATCHING {
        /// The receiver's epoch, from its request.
        epoch: u32 = word,
        /// The sender's epoch.
        sender_epoch: u32 = word,
        /// What it offers.
        channels: Channels = extra,
    },
    /// The receiver accepts channels.
    Accept = 5 "ACCEPT" from receiver as "a dcPIM ACCEPT" of size::MATCHING {
        /// The receiver's epoch.
        epoch: u32 = word,
        /// The sender's epoch, from its offer.
        sender_epoch: u32 = word,
        /// What it accepts.
        channels: Channels = extra,
    },
    /// The sender does not have some of the channels that were accepted (the authors' `GRANTR`).
    Release = 6 "RELEASE" from sender as "a dcPIM RELEASE" of size::CONTROL {
        /// The receiver's epoch.
        epoch: u32 = word,
        /// The channels that it does not have.
        channels: Channels = extra,
    },
    /// Permission to send one packet.
    Token = 7 "TOKEN" from receiver as "a dcPIM TOKEN" of size::TOKEN {
        /// Index of the packet in the message.
        packet: u32 = word,
        /// The token's number; the free packets count, from 0.
        number: u32 = word,
        /// Number of packets of the message that have not arrived.
        missing: u32 = word,
        /// How long after its arrival the token can be used, in units of [`LIFETIME_UNIT_NS`].
        lifetime: u16 = word,
        /// Order of the sender's tokens; lower values first.
        priority: u8 = extra,
    },
    /// A packet of a message: full, except for the last one.
    Data = 8 "DATA" from sender as "a dcPIM DATA header" of size::DATA {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Offset of the payload in the message.
        offset: u32 = word,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16 = payload,
        /// Number of packets that are sent without tokens.
        free: u16 = extra,
        /// The number of the token that it uses.
        token: u32 = word,
    },
    /// The whole message has arrived (the authors' `FIN`).
    Fin = 9 "FIN" from receiver,
    /// The packet's sender does not have the message. This packet is our choice: the authors' hosts lose no state.
    Unknown = 10 "UNKNOWN" from receiver,
    /// The client waits for the response to this request. This packet is our choice: the authors have no RPCs.
    Ask = 11 "ASK" from sender,
}

impl Header {
    /// Writes the fields of the packet type.
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

impl Extra for Channels {
    fn to_extra(self) -> u16 {
        u16::from_be_bytes([self.total, self.prompt])
    }
    fn of_extra(extra: u16) -> Self {
        let [total, prompt] = extra.to_be_bytes();
        Self { total, prompt }
    }
}
