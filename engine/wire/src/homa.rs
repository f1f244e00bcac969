//! Homa's headers: packet types, sizes and fields.

mod codec;
pub mod stream;

use rackweave_core::{MessageId, Slice};

use crate::Id64;

pub use codec::Layout;

/// Values of the common header's `type`.
pub mod packet_type {
    /// A segment of a message.
    pub const DATA: u8 = 0x10;
    /// Permission to send further bytes.
    pub const GRANT: u8 = 0x11;
    /// A request for retransmission.
    pub const RESEND: u8 = 0x12;
    /// The RPC is not known to the packet's sender.
    pub const RPC_UNKNOWN: u8 = 0x13;
    /// The sender is alive, but has nothing to send.
    pub const BUSY: u8 = 0x14;
    /// The receiver's priority cutoffs for unscheduled bytes.
    pub const CUTOFFS: u8 = 0x15;
    /// A debugging aid of the kernel module, which is not supported.
    pub const FREEZE: u8 = 0x16;
    /// The server asks for an acknowledgement, to free the RPC's state.
    pub const NEED_ACK: u8 = 0x17;
    /// The client has finished these RPCs.
    pub const ACK: u8 = 0x18;
}

/// Length of each packet's header, without IP's; `_HEAD`, `_TALK` and `_LEVERAGE` where [`Layout`]s differ.
pub mod size {
    /// The common header, which is all of UNKNOWN, BUSY and NEED_ACK.
    pub const COMMON: u32 = 28;
    /// DATA in [`Layout::Head`](super::Layout::Head), without payload.
    pub const DATA_HEAD: u32 = 56;
    /// DATA in [`Layout::Talk`](super::Layout::Talk), without payload.
    pub const DATA_TALK: u32 = 60;
    /// DATA in [`Layout::Leverage`](super::Layout::Leverage), without payload: it has two more time stamps.
    pub const DATA_LEVERAGE: u32 = DATA_TALK + 8;
    /// GRANT in [`Layout::Head`](super::Layout::Head).
    pub const GRANT_HEAD: u32 = 33;
    /// GRANT in [`Layout::Talk`](super::Layout::Talk).
    pub const GRANT_TALK: u32 = 34;
    /// GRANT in [`Layout::Leverage`](super::Layout::Leverage): it has two more time stamps and two durations.
    pub const GRANT_LEVERAGE: u32 = GRANT_TALK + 16;
    /// RESEND, in all layouts.
    pub const RESEND: u32 = 37;
    /// CUTOFFS, in all layouts.
    pub const CUTOFFS: u32 = 62;
    /// ACK in [`Layout::Head`](super::Layout::Head), always with five entries.
    pub const ACK_HEAD: u32 = 80;
    /// ACK in [`Layout::Talk`](super::Layout::Talk), always with five entries.
    pub const ACK_TALK: u32 = 90;
    /// STREAM, without payload.
    pub const STREAM: u32 = 56;
    /// CREDIT, in all layouts.
    pub const CREDIT: u32 = 42;
    /// MISSING, in all layouts.
    pub const MISSING: u32 = 40;
    /// RESET, in all layouts.
    pub const RESET: u32 = 33;
    /// The longest header.
    pub const MAX_HEADER: u32 = ACK_TALK;
}

/// The longest message that the kernel module accepts (HOMA_MAX_MESSAGE_LENGTH).
pub const MAX_MESSAGE_LENGTH: u32 = 1_000_000;

/// Bytes that the kernel module counts for Ethernet around each packet (HOMA_ETH_OVERHEAD): 18 of
/// header and checksum, 24 of preamble and gap. Ethernet's own count of the latter is 20
/// ([`rackweave_core::frame::ETHERNET_GAP`]), which the simulator uses.
pub const ETH_OVERHEAD: u32 = 42;

/// A Homa header: the common header and the fields of its packet type. The ports are in
/// [`Packet`](rackweave_core::Packet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The RPC's id at the packet's *sender*: even at the client, odd at the server.
    pub id: Id64,
    /// The message expects no response: a bit of the common header's flags that we add, since Homa has only RPCs.
    pub one_way: bool,
    /// The packet type, and its fields.
    pub body: Body,
}

/// Time stamps of DATA, from which Leverage Homa measures round trips, in nanoseconds modulo 2^32 of the clock of the
/// host that made the stamp; 0: none. The fields are Rackweave's; the slides show none. Only
/// [`Layout::Leverage`] has room for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataStamps {
    /// When the packet was handed to the link.
    pub sent_at: u32,
    /// The newest [`GrantStamps::sent_at`] that the packet's sender has received, plus the time since then: as if
    /// that GRANT had been answered at once.
    pub echo: u32,
}

/// Time stamps of GRANT, as [`DataStamps`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantStamps {
    /// When the packet was handed to the link.
    pub sent_at: u32,
    /// The newest [`DataStamps::sent_at`] that the packet's sender has received from this peer.
    pub echo: u32,
    /// The nanoseconds of the time since then for which the receiver's policy withheld the grant.
    pub held_ns: u32,
    /// The nanoseconds of that time for which the grant waited in the host for the link.
    pub host_ns: u32,
}

/// The packet types and their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A segment of a message.
    Data {
        /// Length of the whole message.
        message_length: u32,
        /// Number of bytes that the sender sends without grants.
        incoming: u32,
        /// An RPC that the sender, as its client, has finished; 0 for none.
        ack_id: Id64,
        /// The server port of that RPC.
        ack_port: u16,
        /// The version of the receiver's priority cutoffs that the sender used.
        cutoff_version: u16,
        /// Whether it is a retransmission for a RESEND.
        retransmit: bool,
        /// Offset of the segment in the message.
        offset: u32,
        /// Length of the segment (on the wire: the remainder of the packet).
        segment_length: u16,
        /// Leverage Homa's time stamps.
        stamps: DataStamps,
    },
    /// A grant: permission to send up to `offset`.
    Grant {
        /// The sender may send all bytes before this one.
        offset: u32,
        /// The priority of the granted bytes.
        priority: u8,
        /// The receiver has lost its state: the message is sent again from offset 0.
        resend_all: bool,
        /// Leverage Homa's time stamps.
        stamps: GrantStamps,
    },
    /// A request to retransmit bytes.
    Resend {
        /// Offset of the first missing byte.
        offset: u32,
        /// Number of missing bytes; `u32::MAX` (-1): nothing of the message has arrived, and all that was sent is
        /// requested.
        length: u32,
        /// The priority of the retransmission.
        priority: u8,
    },
    /// The packet's sender does not have this RPC.
    Unknown {
        /// It refuses the RPC's message: it may have received it, and has no room to remember which it has. A bit of the
        /// common header's flags that we add, since Homa has no refusals.
        refused: bool,
    },
    /// The sender has the RPC but nothing to send now: it is alive.
    Busy,
    /// The receiver's priorities for unscheduled bytes.
    Cutoffs {
        /// For priorities 7 down to 1, the longest message that uses it; priority 0 is for all longer ones.
        cutoffs: [u32; 7],
        /// The version of these cutoffs, which DATA repeats.
        version: u16,
    },
    /// The server asks whether it may free the RPC's state.
    NeedAck,
    /// The client has finished the RPC with the common header's id, and the others listed.
    Ack {
        /// Number of valid entries in `others`.
        count: u8,
        /// Ids of other finished RPCs with the same server.
        others: [Id64; 3],
    },
    /// A packet of a stream, which is our extension: Homa has messages only.
    Stream(stream::Stream),
}

impl Header {
    /// The RPC's id at this packet's *receiver*.
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
