//! The header of transports that are not in this repository: one layout for all of them, with words whose meaning is the transport's.
//!
//! What transports on exchanges have in common has packet types of its own. Everything else is a [`Body::ToReceiver`] or a
//! [`Body::ToSender`], with a `tag` that tells the transport's packet types apart.

use core::fmt;

use crate::codec::fmt_range;
use crate::exchange::{Prologue, exchange_header};

/// Unassigned by IANA: transports outside of the repository share one number. Of several at a host, the port of a packet (on real
/// hosts) or its instance (in the simulator) tells which one it belongs to.
pub const IP_PROTOCOL: u8 = 244;

/// Length of each packet's header, without IP's.
pub mod size {
    /// The common part, which is all of COMPLETE, KNOWN, UNKNOWN and ASK.
    pub const COMMON: u32 = super::Prologue::BYTES;
    /// Packets with four words, and DATA without payload.
    pub const WORDS: u32 = 32;
}

exchange_header! {
    /// The header of an external transport. The ports are the packet's.
    Header of "external", "external", "an external transport's header", IP_PROTOCOL {}

    /// A packet of a message: full, except for the last one.
    Data = 1 "DATA" from sender as "an external transport's DATA header" of size::WORDS {
        /// Length of the whole message.
        message_length: u32 = word,
        /// Offset of the payload in the message.
        offset: u32 = word,
        /// Length of the payload (on the wire: the remainder of the packet).
        len: u16 = payload,
        /// For the transport.
        tag: u16 = extra,
        /// For the transport.
        words: [u32; 2] = word,
    },
    /// What a message's sender tells its receiver, such as a request to send.
    ToReceiver = 2 "TO RECEIVER" from sender as "an external transport's packet" of size::WORDS {
        /// For the transport: which packet this is.
        tag: u16 = extra,
        /// For the transport.
        words: [u32; 4] = word,
    },
    /// What a message's receiver tells its sender, such as an acknowledgement or a grant.
    ToSender = 3 "TO SENDER" from receiver as "an external transport's packet" of size::WORDS {
        /// For the transport: which packet this is.
        tag: u16 = extra,
        /// For the transport.
        words: [u32; 4] = word,
    },
    /// The whole message has arrived.
    Complete = 4 "COMPLETE" from receiver,
    /// The message is known, and there is no response yet.
    Known = 5 "KNOWN" from receiver,
    /// The packet's sender does not have the message.
    Unknown = 6 "UNKNOWN" from receiver,
    /// The client waits for the response to this request.
    Ask = 7 "ASK" from sender,
}

impl Header {
    /// Writes the fields of the packet type.
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.body {
            Body::Data { message_length, offset, len, tag, words } => {
                fmt_range(f, offset, len, message_length)?;
                write!(f, " tag {tag} words {words:?}")
            }
            Body::ToReceiver { tag, words } | Body::ToSender { tag, words } => {
                write!(f, " tag {tag} words {words:?}")
            }
            Body::Complete | Body::Known | Body::Unknown | Body::Ask => Ok(()),
        }
    }
}
