//! Homa's headers.

mod codec;
pub mod stream;

use rackweave_core::{MessageId, Slice};

use crate::Id64;

pub use codec::Layout;

/// The common header's `type`.
pub mod packet_type {
    /// A piece of a message.
    pub const DATA: u8 = 0x10;
    /// Permission to send.
    pub const GRANT: u8 = 0x11;
    /// Send again.
    pub const RESEND: u8 = 0x12;
    /// No such RPC.
    pub const RPC_UNKNOWN: u8 = 0x13;
    /// Alive, but nothing to send.
    pub const BUSY: u8 = 0x14;
    /// Priorities of unscheduled bytes.
    pub const CUTOFFS: u8 = 0x15;
    /// A debugging aid of the kernel module: not supported.
    pub const FREEZE: u8 = 0x16;
    /// May the server forget the RPC?
    pub const NEED_ACK: u8 = 0x17;
    /// The client has finished.
    pub const ACK: u8 = 0x18;
}

/// Bytes of each packet's header, without IP's; `_HEAD` and `_TALK` where [`Layout`]s differ.
pub mod size {
    /// The common header, and all of UNKNOWN, BUSY and NEED_ACK.
    pub const COMMON: u32 = 28;
    /// DATA, without its bytes.
    pub const DATA_HEAD: u32 = 56;
    /// DATA, without its bytes.
    pub const DATA_TALK: u32 = 60;
    /// DATA, without its bytes: two time stamps more.
    pub const DATA_LEVERAGE: u32 = DATA_TALK + 8;
    /// GRANT.
    pub const GRANT_HEAD: u32 = 33;
    /// GRANT.
    pub const GRANT_TALK: u32 = 34;
    /// GRANT: two time stamps and two times more.
    pub const GRANT_LEVERAGE: u32 = GRANT_TALK + 16;
    /// RESEND.
    pub const RESEND: u32 = 37;
    /// CUTOFFS.
    pub const CUTOFFS: u32 = 62;
    /// ACK, whose five entries are always there.
    pub const ACK_HEAD: u32 = 80;
    /// ACK, whose five entries are always there.
    pub const ACK_TALK: u32 = 90;
    /// STREAM, without its bytes.
    pub const STREAM: u32 = 56;
    /// CREDIT.
    pub const CREDIT: u32 = 42;
    /// MISSING.
    pub const MISSING: u32 = 40;
    /// RESET.
    pub const RESET: u32 = 33;
    /// The longest header.
    pub const MAX_HEADER: u32 = ACK_TALK;
}

/// The longest message that the kernel module takes (HOMA_MAX_MESSAGE_LENGTH).
pub const MAX_MESSAGE_LENGTH: u32 = 1_000_000;

/// Bytes that the kernel module counts for Ethernet around each packet (HOMA_ETH_OVERHEAD): 18 of
/// header and checksum, 24 of preamble and gap. Ethernet's own count of the latter is 20
/// ([`rackweave_core::frame::ETHERNET_GAP`]), which the simulator uses.
pub const ETH_OVERHEAD: u32 = 42;

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

/// Time stamps of DATA, for Leverage Homa's measured round trips (ours: the slides say that they are
/// measured, not how). Nanoseconds modulo 2^32 of the clock of the host that made the stamp;
/// 0: none. Only [`Layout::Leverage`] has room for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataStamps {
    /// When the packet was handed to the link.
    pub sent_at: u32,
    /// The newest [`GrantStamps::sent_at`] that its sender has had, plus the time that has passed there
    /// since: as if that GRANT had been answered at once.
    pub echo: u32,
}

/// Time stamps of GRANT: as [`DataStamps`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantStamps {
    /// When the packet was handed to the link.
    pub sent_at: u32,
    /// The newest [`DataStamps::sent_at`] that its sender has had from this peer.
    pub echo: u32,
    /// Since then the grant was withheld by policy for so many nanoseconds.
    pub held_ns: u32,
    /// And it waited for the link in the host for so many.
    pub host_ns: u32,
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
        /// Leverage Homa's time stamps.
        stamps: DataStamps,
    },
    /// Permission to send up to `offset`.
    Grant {
        /// The sender may send all bytes before this one.
        offset: u32,
        /// At which priority.
        priority: u8,
        /// The receiver has lost its state: send all again from 0.
        resend_all: bool,
        /// Leverage Homa's time stamps.
        stamps: GrantStamps,
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
    /// Ours: of a stream, not of messages.
    Stream(stream::Stream),
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
            Body::Stream(stream::Stream::Data { offset, len, .. }) if len > 0 => {
                Some(Slice { message: MessageId(self.id.get()), offset, len: u32::from(len) })
            }
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
