//! Orca's packets: data with labels, and the control packets of hosts, agents, switches and the controller.
//!
//! Labels are those of the evaluation (sections III.C and IV.B; widths follow from the topology), and so are the packets of
//! agents and switches, whose types the authors' code defines (`docs/protocols/orca.md#orca-packets`). Offsets, status
//! reports and joining are Rackweave's: the paper has no recovery.
//!
//! ```text
//!  0: 0xC0 | kind
//!  1: flags, and in the low three bits the label's length n in words of 32 bits (1 to 4)
//!  2: offset in the stream (48 bits)          8: session
//! 12: label, n words, most significant first  12+4n: CRC-32C, or with a key 8 bytes of keyed BLAKE3, or of sealed data
//!                                                    its counter (48 bits) and the AEAD's tag (16 bytes)
//! then the payload of data (before parity: 5 bytes, see below), or the body of a control packet
//! ```
//!
//! - Kinds: 1 data with the pilot label, 2 with the rack label, 3 with none; 4 control for the rack's active agent,
//!   6 [`Body::SetActive`], 7 [`Body::Ping`], 8 [`Body::Pong`], 9 [`Body::Sync`], 10 [`Body::SyncDone`], 5 other control.
//! - Flags: 0x80 the check was made with a key, 0x40 repair, 0x20 end, 0x10 parity, 0x08 the payload is sealed under
//!   the session's key, see [`associated`]. A parity's payload begins with its index, data and parity packets of the
//!   block, each one byte, and two bytes of the last packet's length; they are clear in a sealed packet too.
//! - Control has a label of one word, zero. Its body: sender (4 bytes), destination (4), tag (1), fields. So without a
//!   key the tag is at byte 28, and `SetActive`'s rack, agent and epoch are at 29, 31 and 32.
//!
//! Kind and label change at agents, so the check of data does not cover them, nor the label's length. They determine
//! a packet's route, not its content. An agent that forwards data copies the check and need not read the payload, which is
//! how it can forward sealed data of sessions whose key it does not have. Keyed BLAKE3 is for the control packets that
//! switches read (`docs/ops/security.md#casts-with-a-key`); it excludes hosts without the key, but not replays.

mod body;
mod codec;
#[cfg(test)]
mod tests;

pub use codec::{
    Associated, Check, Decoded, Glance, Key, SEALED_EXTRA_BYTES, associated, check, decode,
    encode_header, encode_relayed, glance, header_bytes, relabel, sealed_header_bytes,
};

use rackweave_core::{HostId, MessageId, Slice};

/// The UDP port of Orca's packets.
pub const PORT: u16 = 6722;

/// Orca's kind in the overlay; see [`crate::overlay::Kind::Group`].
pub const KIND: u8 = 2;

/// The IP multicast group of labelled packets. All agents are members of it; switches forward by the label.
pub const GROUP: [u8; 4] = [239, 255, 67, 22];

/// The number of a multicast session, which its sender chooses at random. The authors' code has the 48-bit destination MAC
/// address in its place (`docs/protocols/orca.md#orca-packets`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u32);

/// A label as in a packet: the fields of a pilot label, or the bits of a rack label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub u128);

/// The place of a host: its rack, and its port at the rack's switch. In an unknown fabric each 64 hosts count as a rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The rack (leaf switch), numbered from 0.
    pub rack: u16,
    /// The port, below 64.
    pub port: u8,
}

/// The kind of label that a data packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labelled {
    /// The pilot label, which leads to racks, where active agents replace it.
    Pilot,
    /// The rack label, with a bit for each port of the ToR.
    Rack,
    /// No label: the packet goes to the host to which it is addressed.
    Host,
}

/// A data packet: bytes of a session's stream, or a parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The kind of the label.
    pub labelled: Labelled,
    /// The label's fields or bits.
    pub label: Label,
    /// The session that the data belongs to.
    pub session: Session,
    /// The offset of the first byte in the stream, below 2^48.
    pub offset: u64,
    /// The length of the payload.
    pub len: u16,
    /// Whether it repairs a loss.
    pub repair: bool,
    /// Whether the stream ends with this packet's last byte.
    pub end: bool,
    /// If set, the payload is this parity of the block that begins at `offset`.
    pub parity: Option<Parity>,
}

/// A parity packet's place in its block, and the shape of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parity {
    /// The index of the parity in the block, from 0.
    pub index: u8,
    /// The number of data packets in the block.
    pub data: u8,
    /// The number of parity packets in the block.
    pub parity: u8,
    /// The length of the last data packet of the block; the others are full.
    pub last: u16,
}

/// A control packet from one host to another, or to the active agent of its rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The host that sends it.
    pub from: HostId,
    /// The destination, which may be [`TO_AGENT`].
    pub to: HostId,
    /// The session that it concerns, 0 for none.
    pub session: Session,
    /// The message and its fields.
    pub body: Body,
}

/// The address of the active agent of the sending host's rack.
pub const TO_AGENT: HostId = HostId(u32::MAX);

/// The address of all members of a session: the destination of data that is not for a single host.
pub const TO_GROUP: HostId = HostId(u32::MAX - 1);

/// The number of gaps that one [`Status`] can hold.
pub const GAPS: usize = 3;

/// A status report of receivers in one rack: of a single one, or an agent's summary of several. It is idempotent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The receivers' rack.
    pub rack: u16,
    /// The ports of the receivers that it covers, a bit for each.
    pub who: u64,
    /// All of them have every byte below this offset.
    pub have: u64,
    /// The port of one of them that has no more than `have`.
    pub slowest: u8,
    /// The highest end of a packet that any of them has received.
    pub seen: u64,
    /// The time since that packet arrived, in microseconds, by which the sender computes the round trip.
    pub held_us: u32,
    /// The receive windows of all of them reach at least to this offset.
    pub limit: u64,
    /// Missing ranges, lowest first. Further ones follow in other packets.
    pub gaps: [Gap; GAPS],
}

/// A missing range of the stream; an unused entry has `len` 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The ports of the receivers that lack it, a bit for each.
    pub who: u64,
}

/// The reason why a host is not in a session, or a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It left by its own decision or by request.
    Left,
    /// Its application does not take the data: it refused the invitation, or cannot store it.
    Refused,
    /// It has no capacity for another session.
    Busy,
    /// It does not have the session.
    Unknown,
    /// It was silent for too long.
    Silent,
    /// The received data does not have the hash of what was sent.
    Damaged,
    /// The sender has released bytes that it lacks.
    TooLate,
    /// No label of the fabric can name it.
    NoLabel,
    /// It answers, but the data that is sent to it does not arrive.
    Stalled,
    /// It answers, but what is behind it does not: the application of an agent, or its disk. Our addition, as [`Body::Preparing`].
    Unresponsive,
    /// A file with the name of one in the stream exists there, and is not replaced. Rackweave's addition, as [`Reason::Full`].
    Exists,
    /// Its disk is full.
    Full,
}

/// The message of a control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    // --- between sender and receivers
    /// The sender invites a host to a session.
    Invite {
        /// The identity of the stream's content, the same again after a restart.
        stream: u128,
        /// The receiver's place in the sender's layout.
        place: Place,
        /// The payload size of a full data packet.
        payload: u16,
        /// Whether status reports go to the rack's agent.
        via_agent: bool,
    },
    /// A host joins a session, for the first time, late or again.
    Join {
        /// A number that differs for each start of the receiver. One that it has repeated belongs to the same receiver; a new
        /// one shows that the host was restarted, even if it needs no byte below the ones that its rack's agent has
        /// reported. The evaluation has no such number; it is Rackweave's addition.
        incarnation: u32,
        /// The identity of the stream to which it was invited, or which it has received in part.
        stream: u128,
        /// The host's place.
        place: Place,
        /// The first byte that it needs.
        at: u64,
        /// The end of its receive window.
        limit: u64,
    },
    /// A receiver answers a repeated invitation before it can join, as while it hashes what an earlier attempt has stored. It is no longer
    /// than the invitation. The paper knows no resumption; this is our addition.
    Preparing,
    /// A status report to the sender or to the rack's agent.
    Status(Status),
    /// The sender states the length of the stream, until the receiver has all of it.
    End {
        /// The length in bytes.
        length: u64,
    },
    /// A receiver has the whole stream and has verified it. Repeated until acknowledged by [`Body::Bye`].
    Complete {
        /// The receiver's place.
        place: Place,
    },
    /// The sending host, or the addressed one, is not in the session. Also acknowledges [`Body::Complete`] (with
    /// [`Reason::Left`]).
    Bye {
        /// The reason why the host is not in the session.
        reason: Reason,
    },
    /// How the sender serves this receiver: by unicast of its own, or with the packets for the whole group.
    Mode {
        /// Whether the receiver is detached from the group, because it is too slow for it or lags behind.
        detached: bool,
    },
    // --- control plane
    /// The heartbeat of an agent to the controller.
    Ping {
        /// The agent's place. Its port identifies the agent in its rack.
        place: Place,
        /// Increases with each ping, from 1 after a restart.
        number: u32,
    },
    /// The controller's answer to a ping.
    Pong {
        /// The number of the ping.
        number: u32,
    },
    /// The controller sets the active agent of a rack at its ToR.
    SetActive {
        /// The rack whose agent is set.
        rack: u16,
        /// The agent's port, 255 for none.
        agent: u8,
        /// Increases with each change.
        epoch: u32,
    },
    /// The controller sets the rack label of a session at all agents of a rack.
    Sync {
        /// The rack whose agents are addressed.
        rack: u16,
        /// The ports of the session's receivers, a bit for each. 0 removes the session.
        ports: u64,
        /// Increases with each change.
        version: u32,
    },
    /// An agent confirms a [`Body::Sync`], or a sender a [`Body::Served`].
    SyncDone {
        /// The confirming host's place.
        place: Place,
        /// The version or epoch that is confirmed.
        version: u32,
    },
    /// A sender creates a session at the controller. Repeated until answered.
    Create,
    /// A sender adds a host to its session or removes it. Changes are numbered by the sender and handled in that order.
    Member {
        /// The host that joins or leaves.
        host: HostId,
        /// Whether it joins or leaves.
        joins: bool,
        /// The sender's number of this change.
        change: u32,
    },
    /// A sender deletes its session.
    Destroy,
    /// A sender's session still exists. Sessions that are not renewed are deleted.
    Renew,
    /// The controller sends a sender its labels.
    Labels {
        /// The pilot label to other racks, 0 without any.
        pilot: Label,
        /// The ports of receivers in the sender's own rack, a bit for each.
        ports: u64,
        /// The number of the last change that the labels include.
        change: u32,
        /// The controller's heartbeat timeout T in microseconds: how late it may notice that a rack's agent has failed.
        timeout_us: u32,
    },
    /// The controller notifies all senders whether a rack has a live agent. Repeated until answered by
    /// [`Body::SyncDone`] with its epoch.
    Served {
        /// The rack that is or is not served.
        rack: u16,
        /// Whether it has a live agent.
        agent: bool,
        /// Increases with each change.
        epoch: u32,
    },
    /// The controller denies a request.
    Denied {
        /// The reason for the denial.
        reason: Reason,
        /// The number of the denied change.
        change: u32,
    },
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// A data packet.
    Data(Data),
    /// A control packet.
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
