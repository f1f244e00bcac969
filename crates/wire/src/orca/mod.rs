//! Orca's packets: data with labels, and what hosts, agents, switches and the controller tell each other.
//!
//! The labels are those of the paper (Sections III.C and IV.B of the end-to-end evaluation; widths from the topology).
//! Sequence numbers, status reports and joining are ours: the paper has no recovery.
//!
//! ```text
//!  0: 0xC0 | kind
//!  1: flags, and in the low three bits the label's length n in words of 32 bits (1 to 4)
//!  2: offset in the stream (48 bits)          8: session
//! 12: label, n words, most significant first  12+4n: CRC-32C, or with a key 8 bytes of keyed BLAKE3
//! then the payload of data (before parity: 5 bytes, see below), or the body of a control packet
//! ```
//!
//! - Kinds: 1 data with the pilot label, 2 with the rack label, 3 with none; 4 control for the rack's active agent,
//!   6 [`Body::SetActive`], 7 [`Body::Ping`], 8 [`Body::Pong`], 9 [`Body::Sync`], 10 [`Body::SyncDone`], 5 other control.
//! - Flags: 0x80 the check was made with a key, 0x40 repair, 0x20 end, 0x10 parity (then the payload begins with its
//!   index, data and parity packets of the block, each one byte, and two bytes of the last packet's length).
//! - Control has a label of one word, zero. Its body: who says it (4 bytes), to whom (4), tag (1), fields. So without a
//!   key the tag is at byte 28, and `SetActive`'s rack, agent and epoch are at 29, 31 and 32.
//!
//! Kind and label change on the way, so in data the check leaves them out (with the label's length): they decide where a
//! packet goes, not what it is. An agent that relays data copies the check and need not look at the payload.
//! The key keeps out who doesn't have it; it does not keep out old packets of the same session, whose number is new each time.

mod body;
mod codec;
#[cfg(test)]
mod tests;

pub use codec::{
    Check, Decoded, Glance, Key, check, decode, encode_header, encode_relayed, glance,
    header_bytes, relabel,
};

use rackweave_core::{HostId, MessageId, Slice};

/// The UDP port of Orca's packets.
pub const PORT: u16 = 6722;

/// Orca's number in the overlay: [`crate::overlay::Kind::Group`].
pub const KIND: u8 = 2;

/// The IP multicast group of labelled packets: all agents are in it, switches go by the label.
pub const GROUP: [u8; 4] = [239, 255, 67, 22];

/// A multicast session, chosen by its sender at random: the paper's 48-bit destination address, in 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u32);

/// A label as it stands in a packet: pilot fields or rack bits, least significant bit last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub u128);

/// Where a receiver is: its rack, and its port of the rack's switch. Where no fabric is known, receivers are numbered,
/// 64 to a "rack".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The rack (leaf switch), from 0.
    pub rack: u16,
    /// The port, below 64.
    pub port: u8,
}

/// How far a data packet's forwarding is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labelled {
    /// The label is the pilot label: up, across and down to racks, where the active agent adds the rest.
    Pilot,
    /// The label is the rack label: a bit for each port of the ToR.
    Rack,
    /// No label: the packet goes to the one host that it is addressed to.
    Host,
}

/// A piece of a session's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// What the label is.
    pub labelled: Labelled,
    /// The label.
    pub label: Label,
    /// The session.
    pub session: Session,
    /// First byte in the stream (below 2^48).
    pub offset: u64,
    /// Bytes of payload.
    pub len: u16,
    /// Sent before.
    pub repair: bool,
    /// The stream ends with this packet's last byte.
    pub end: bool,
    /// Not bytes of the stream but parity over a block that begins at `offset`.
    pub parity: Option<Parity>,
}

/// Which parity of which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parity {
    /// Its number in the block, from 0.
    pub index: u8,
    /// Data packets in the block.
    pub data: u8,
    /// Parity packets in the block.
    pub parity: u8,
    /// Bytes of the last data packet of the block (the others are full).
    pub last: u16,
}

/// What is not data: from one host to another, or to the active agent of the sender's rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Who says it.
    pub from: HostId,
    /// To whom; [`TO_AGENT`]: to the active agent of the rack of who says it.
    pub to: HostId,
    /// The session that it is about, if any.
    pub session: Session,
    /// What it says.
    pub body: Body,
}

/// "The active agent of my rack".
pub const TO_AGENT: HostId = HostId(u32::MAX);

/// "All members of the session": the destination of data that is not for one host.
pub const TO_GROUP: HostId = HostId(u32::MAX - 1);

/// Most gaps in one [`Status`].
pub const GAPS: usize = 3;

/// What receivers of one rack have: one receiver's words, or an agent's summary of many. Repeating it is harmless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The rack.
    pub rack: u16,
    /// Which of its ports are spoken for.
    pub who: u64,
    /// All of `who` have every byte below.
    pub have: u64,
    /// The port of one that has no more than `have`.
    pub slowest: u8,
    /// The highest end of a packet that any of them has seen.
    pub seen: u64,
    /// Since that packet came, in microseconds, so that the sender can tell the round trip.
    pub held_us: u32,
    /// All of `who` have room for bytes below this offset.
    pub limit: u64,
    /// Missing pieces, lowest first; those beyond the array are told later.
    pub gaps: [Gap; GAPS],
}

/// A missing piece of the stream (`len` 0: none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Its first byte.
    pub offset: u64,
    /// Its length.
    pub len: u32,
    /// The ports that miss it.
    pub who: u64,
}

/// Why a host is not, or no longer, in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It asked to leave, or was asked to.
    Left,
    /// Its application can't take the bytes (disk full, refused by the user).
    Refused,
    /// It can't hold as many sessions.
    Busy,
    /// It knows no such session (any more).
    Unknown,
    /// Nothing was heard of it for too long.
    Silent,
    /// What arrived was not what was sent (a hash).
    Damaged,
    /// The bytes that it lacks are no longer to be had.
    TooLate,
    /// The fabric's labels can't name it.
    NoLabel,
}

/// What a control packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    // --- between sender and receivers
    /// "Take part": which stream, where you are in it, how large packets are.
    Invite {
        /// Names the stream's content, the same again after a restart.
        stream: u128,
        /// The receiver's place.
        place: Place,
        /// Bytes of a full data packet.
        payload: u16,
        /// Status reports go to the rack's agent.
        via_agent: bool,
    },
    /// "I take part, from this offset on": also a late or resumed one.
    Join {
        /// The stream that it has taken before, or has been invited to.
        stream: u128,
        /// Where.
        place: Place,
        /// The first byte that it needs.
        at: u64,
        /// It has room below this offset.
        limit: u64,
    },
    /// What receivers have.
    Status(Status),
    /// The stream is this long: told until all know.
    End {
        /// Its length.
        length: u64,
    },
    /// "All bytes are here and right", told until acknowledged by [`Body::Bye`].
    Complete {
        /// Where.
        place: Place,
    },
    /// "You are not in this session (any more)", or "I am not"; also acknowledges [`Body::Complete`] (with [`Reason::Left`]).
    Bye {
        /// Why.
        reason: Reason,
    },
    /// How the sender serves this receiver: by unicast of its own, or with the packets for the whole group.
    Mode {
        /// Whether the receiver is detached from the group, because it is too slow for it or lags behind.
        detached: bool,
    },
    // --- control plane
    /// From an agent to the controller: "alive".
    Ping {
        /// Its place: the agent's id is its port.
        place: Place,
        /// Counts.
        number: u32,
    },
    /// The answer.
    Pong {
        /// The ping's.
        number: u32,
    },
    /// From the controller to a ToR: the active agent; no agent: 255.
    SetActive {
        /// The rack.
        rack: u16,
        /// The agent's port.
        agent: u8,
        /// Later ones have larger numbers.
        epoch: u32,
    },
    /// From the controller to all agents of a rack: the session's rack label (0: forget it).
    Sync {
        /// The rack.
        rack: u16,
        /// Bits of ports.
        ports: u64,
        /// Later ones have larger numbers.
        version: u32,
    },
    /// The agent has it.
    SyncDone {
        /// Its place.
        place: Place,
        /// Which.
        version: u32,
    },
    /// From a sender to the controller: a session for me. Repeated until answered.
    Create,
    /// From a sender: this host is in the session (true) or out of it (false); numbered by the sender, taken in that order.
    Member {
        /// Which host.
        host: HostId,
        /// In or out.
        joins: bool,
        /// The sender's number of this change.
        change: u32,
    },
    /// From a sender: forget the session.
    Destroy,
    /// From a sender, now and then: the session lives. One of which nothing is heard is forgotten.
    Renew,
    /// From the controller to the sender: its labels, and the last change that they include.
    Labels {
        /// What the sender's packets carry to other racks; 0: none.
        pilot: Label,
        /// Bits of the ports of the sender's own rack.
        ports: u64,
        /// The sender's number.
        change: u32,
    },
    /// From the controller to all senders: whether a rack has an agent that puts labels on what comes for it. Repeated until
    /// answered by [`Body::SyncDone`] with its epoch.
    Served {
        /// The rack.
        rack: u16,
        /// Whether it has one.
        agent: bool,
        /// Later ones have larger numbers.
        epoch: u32,
    },
    /// From the controller: that can't be.
    Denied {
        /// Why.
        reason: Reason,
        /// The change that can't be.
        change: u32,
    },
}

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// A piece of a stream.
    Data(Data),
    /// Anything else.
    Control(Control),
}

impl rackweave_core::Header for Header {
    fn payload(&self) -> Option<Slice> {
        match self {
            Self::Data(data) => Some(Slice {
                message: MessageId(u64::from(data.session.0) << 1),
                offset: data.offset as u32,
                len: u32::from(data.len),
            }),
            Self::Control(_) => None,
        }
    }
}

const _: () = assert!(size_of::<Header>() <= 144);
