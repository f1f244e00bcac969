//! Homa's headers.

use rackweave_core::{MessageId, Slice};

use crate::Id64;

/// A Homa header: the common part and the packet's own. The ports are the packet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The RPC's id as its *sender* knows it: even from the client, odd from the server.
    pub id: Id64,
    /// Ours (a bit of the common header's flags): the message expects no response.
    pub one_way: bool,
    /// What kind of packet it is, and its fields.
    pub body: Body,
}

/// The packet types and their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A piece of a message.
    Data {
        /// Bytes of the whole message.
        message_length: u32,
        /// Bytes that the sender sends without grants.
        incoming: u32,
        /// An RPC that the sender, its client, has finished; 0 for none.
        ack_id: Id64,
        /// That RPC's port at the server.
        ack_port: u16,
        /// The version of the receiver's priority cutoffs that the sender used.
        cutoff_version: u16,
        /// Whether it answers a RESEND.
        retransmit: bool,
        /// First byte of the piece within the message.
        offset: u32,
        /// Bytes of the piece (on the wire: what is left of the packet).
        segment_length: u16,
    },
    /// Permission to send up to `offset`.
    Grant {
        /// The sender may send all bytes before this one.
        offset: u32,
        /// At which priority.
        priority: u8,
        /// The receiver has lost its state: send all again from 0.
        resend_all: bool,
    },
    /// A request to send bytes again.
    Resend {
        /// The first one missing.
        offset: u32,
        /// How many; `u32::MAX` (-1): nothing of the message has arrived, send what was sent.
        length: u32,
        /// At which priority.
        priority: u8,
    },
    /// The sender does not know this RPC.
    Unknown,
    /// The sender knows the RPC but has nothing to send now: it is alive.
    Busy,
    /// The receiver's priorities for unscheduled bytes.
    Cutoffs {
        /// For priorities 7 down to 1, the longest message that uses it; priority 0 takes the rest.
        cutoffs: [u32; 7],
        /// Their version.
        version: u16,
    },
    /// The server asks whether it may forget the RPC.
    NeedAck,
    /// The client has finished the RPC of the common header's id, and these others.
    Ack {
        /// How many of `others` count.
        count: u8,
        /// Ids of other finished RPCs with the same server.
        others: [Id64; 3],
    },
}

impl Header {
    /// The id under which this packet's *receiver* knows the RPC.
    #[must_use]
    #[inline]
    pub const fn local_id(&self) -> u64 {
        self.id.get() ^ 1
    }

    /// The message bytes carried.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> Option<Slice> {
        match self.body {
            Body::Data { offset, segment_length, .. } => Some(Slice {
                message: MessageId(self.id.get()),
                offset,
                len: u32::from(segment_length),
            }),
            _ => None,
        }
    }
}

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        Self::payload(self)
    }
}
