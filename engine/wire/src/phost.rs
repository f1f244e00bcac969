//! pHost's headers. The paper gives the fields' meaning but no layout; the layout is Rackweave's.

use core::fmt;

use crate::codec::fmt_range;
use crate::exchange::{Prologue, exchange_header};

/// Unassigned by IANA: pHost has no IP protocol number of its own, and both experimental ones are already used here.
pub const IP_PROTOCOL: u8 = 252;

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of ACK, BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// RTS: with IP's header, the 40 bytes of the paper.
    pub const RTS: u32 = 20;
    /// TOKEN, and DATA without payload.
    pub const DATA: u32 = 28;
}

exchange_header! {
    /// A pHost header. The ports are the packet's.
    Header of "pHost", "phost", "a pHost header", IP_PROTOCOL {}

    /// Request to send a message. A repeated one asks for the message's state.
    Rts = 1 "RTS" from sender as "a pHost RTS" of size::RTS {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Number of packets that are sent without tokens.
        free: u16 = extra,
    },
    /// Permission to send one packet, for a short time.
    Token = 2 "TOKEN" from receiver as "a pHost TOKEN" of size::DATA {
        /// Index of the packet in the message.
        packet: u32 = word,
        /// The token's number; the free tokens count, from 0.
        number: u32 = word,
        /// Number of packets of the message that have not arrived.
        missing: u32 = word,
    },
    /// A packet of a message: full, except for the last one.
    Data = 3 "DATA" from sender as "a pHost DATA header" of size::DATA {
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
    /// The whole message has arrived.
    Ack = 4 "ACK" from receiver,
    /// The message is known, and there is no token for it now, or no response yet. This packet is our choice: the paper has no
    /// reply to a repeated RTS.
    Busy = 5 "BUSY" from receiver,
    /// The packet's sender does not have the message. This packet is our choice: in the paper no host loses its state.
    Unknown = 6 "UNKNOWN" from receiver,
    /// The client waits for the response to this request. This packet is our choice: the paper has no RPCs.
    Ask = 7 "ASK" from sender,
}

impl Header {
    /// Writes the fields of the packet type.
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
