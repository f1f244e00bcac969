//! Frisbee's packets, and SWP2P's additions to them.
//!
//! Frisbee puts an image on many disks at once. An image is divided into chunks of 1024 blocks of 1024 bytes; clients request
//! chunks and blocks, and the server multicasts blocks (`docs/protocols/swp2p.md#frisbee-packets`). With SWP2P a switch knows which
//! clients have which chunks, and redirects requests to them (`docs/protocols/swp2p.md#swp2p`).
//!
//! ```text
//!  0: type (1 request, 2 reply)   4: subtype   8: length of what follows the header
//! 12: the sender's IPv4 address, in network byte order
//! 16: fields of the subtype, then its payload: a block, a bitmap, statistics
//! ```
//!
//! All fields are 32-bit integers unless stated. Frisbee writes them in the byte order of the host, so that all hosts of a
//! session must have the same; here they are little-endian. Signed fields that are negative are refused. Blocks and what
//! clients send have type 1; only the replies to joins, and redirections by the server, have type 2.
//!
//! | subtype | message | fields, then payload |
//! |---|---|---|
//! | 1 | [`Body::Join`], [`Body::JoinReply`] | client; in the reply, blocks of the image in its place |
//! | 2 | [`Body::Leave`] | client, seconds |
//! | 3 | [`Body::Block`] | chunk, block; data |
//! | 4 | [`Body::Request`] | chunk, first block, number of blocks |
//! | 5 | [`Body::Leave2`] | client, seconds; [`STATS_BYTES`] of statistics |
//! | 6 | [`Body::PartialRequest`] | chunk, retries; a bitmap of [`CHUNK_MAP_BYTES`] |
//! | 7 | [`Body::Join2`] | client, blocks, blocks of a chunk, bytes of a block, bytes of the image (64 bits) |
//! | 9 | [`Body::Report`] | image, window; a bitmap of [`REPORT_MAP_BYTES`] |
//! | 10 | [`Body::Batch`] | image, first chunk, number of chunks (16 bits), tries (16) |
//! | 11 | [`Body::Return`], [`Body::Redirect`] | as a batch, then the requester's IPv4 address |
//! | 12 | [`Body::Enter`], [`Body::Entered`] | client; name of the image. The reply: client, image, index (16), clients (16), chunk bytes, image bytes (64) |
//! | 13 | [`Body::Exit`] | client, image |
//! | 14 | [`Body::Damaged`] | image, chunk, the holder's IPv4 address |
//!
//! In bitmaps, bit `i` is bit `i % 8` (the lowest is 0) of byte `i / 8`. Subtype 8 is PROGRESS of later versions of Frisbee, which is not
//! decoded (`docs/protocols/swp2p.md#frisbee-packets`). Subtypes 9 to 14 are SWP2P's. Its slides fix only that a report has Frisbee's header and a
//! bitmap of 1024 bytes. The report's subtype and its fields `image` and `window` are our choice, as are the other
//! messages. The slides give no number, and 9 is the first that no version of Frisbee known to us uses. A bitmap by
//! itself covers one image of at most 8192 chunks. Frisbee's requests cannot span chunks, and its joins say neither how
//! many clients there are nor which image is meant, so SWP2P has its own.

mod auth;
mod codec;
mod stats;
#[cfg(test)]
mod tests;

use core::fmt;

use rackweave_core::{HostId, MessageId, Slice};

use crate::Id64;
use crate::frame::ip_address;

pub use auth::{Auth, Direction, Key, SESSION_BYTES, TAG_BYTES};
pub use codec::{Decoded, decode, encode};
pub use stats::ClientStats;

/// The port of SWP2P, at all hosts: UDP for control messages, TCP for sessions and chunks. This one is our choice.
pub const PORT: u16 = 6723;

/// SWP2P's kind in the overlay; see [`crate::overlay::Kind::Group`].
pub const KIND: u8 = 3;

/// The UDP port of a Frisbee session, at all its hosts. Frisbee's master server chooses one for each session; this one is our choice.
/// It differs from [`PORT`], so that a server offers an image in both ways, and switches can run the programs of both.
pub const SESSION_PORT: u16 = 6724;

/// The image that requests of a Frisbee session are for, which name none, where its clients report chunks to switches.
pub const SESSION_IMAGE: u32 = 1;

/// The kind of the packets of Frisbee sessions in the overlay.
pub const SESSION_KIND: u8 = 4;

/// The IP multicast group of a session, which Frisbee's master server chooses; this one is our choice.
pub const GROUP: [u8; 4] = [239, 255, 67, 23];

/// The address of all hosts of a session: clients and server.
pub const TO_GROUP: HostId = HostId(u32::MAX - 2);

/// Bytes of the header that all messages have.
pub const HEADER_BYTES: u32 = 16;
/// Bytes of a block.
pub const BLOCK_BYTES: u32 = 1024;
/// Blocks of a chunk.
pub const CHUNK_BLOCKS: u32 = 1024;
/// Bytes of the bitmap of a [`Body::PartialRequest`]: a bit for each block of a chunk.
pub const CHUNK_MAP_BYTES: u32 = CHUNK_BLOCKS / 8;
/// Bytes of the bitmap of a [`Body::Report`]: a bit for each of [`REPORT_CHUNKS`].
pub const REPORT_MAP_BYTES: u32 = 1024;
/// Chunks that one [`Body::Report`] covers. A larger image has several windows of this size.
pub const REPORT_CHUNKS: u32 = REPORT_MAP_BYTES * 8;
/// Bytes of the statistics in a [`Body::Leave2`]: see [`ClientStats`].
pub const STATS_BYTES: u32 = 1028;

/// A message, without the bytes of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The IPv4 address of the host that sent it. Receivers drop a message in which it differs from the source of the packet, and
    /// answer to it; so a switch that redirects a request changes only the packet's destination.
    pub source: [u8; 4],
    /// The message and its fields.
    pub body: Body,
}

/// A message of Frisbee or SWP2P.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A client joins. It repeats this every 500 ms until it gets a reply.
    Join {
        /// The client's random number.
        client: u32,
    },
    /// The reply to [`Body::Join`], to all: any client that waits for one takes it.
    JoinReply {
        /// The number of blocks of the image.
        blocks: u32,
    },
    /// A client leaves.
    Leave {
        /// The client's random number.
        client: u32,
        /// How many seconds it has run.
        elapsed_s: u32,
    },
    /// A client leaves, with its statistics as payload.
    Leave2 {
        /// The client's random number.
        client: u32,
        /// How many seconds it has run.
        elapsed_s: u32,
    },
    /// A block of the image, which is the payload.
    Block {
        /// The number of the chunk.
        chunk: u32,
        /// The number of the block in the chunk.
        block: u32,
        /// The length of the block: [`BLOCK_BYTES`], or another one that a [`Body::Join2`] has agreed on.
        len: u16,
    },
    /// A client asks for consecutive blocks of one chunk.
    Request {
        /// The number of the chunk.
        chunk: u32,
        /// The first block.
        block: u32,
        /// The number of blocks.
        count: u32,
    },
    /// A client asks for those blocks of a chunk that are set in the payload.
    PartialRequest {
        /// The number of the chunk.
        chunk: u32,
        /// Not 0 if the client has requested this chunk before.
        retries: u32,
    },
    /// A client joins and proposes sizes, or the server replies with the sizes that it uses.
    Join2 {
        /// Whether it is the server's reply.
        reply: bool,
        /// The client's random number.
        client: u32,
        /// Not used: 0.
        blocks: u32,
        /// The number of blocks of a chunk.
        chunk_blocks: u32,
        /// The number of bytes of a block.
        block_bytes: u32,
        /// The length of the image in bytes, in the reply.
        bytes: Id64,
    },
    /// A client has the chunks whose bits are set in the payload. A report is the whole state of its window: it replaces earlier
    /// ones, and the next one repairs its loss.
    Report {
        /// The image.
        image: u32,
        /// The number of the window: its first chunk is this times [`REPORT_CHUNKS`].
        window: u32,
    },
    /// A client asks for consecutive chunks. A switch may divide it among several holders.
    Batch(Chunks),
    /// A holder to which a batch was redirected does not have these chunks. It goes to the server, through the switch that redirected,
    /// which may send it to another holder.
    Return {
        /// The chunks that it does not have.
        chunks: Chunks,
        /// The IPv4 address of the client that asked for them.
        requester: [u8; 4],
    },
    /// The server, which knows a holder of chunks that were requested from itself, asks it to send them to the requester. Where a
    /// switch redirects, it changes the destination of the batch instead.
    Redirect {
        /// The chunks to send.
        chunks: Chunks,
        /// The IPv4 address of the client that asked for them.
        requester: [u8; 4],
    },
    /// A client has received a chunk whose bytes are not those of the image. It goes to the server, through the switch that redirected.
    Damaged {
        /// The image.
        image: u32,
        /// The chunk.
        chunk: u32,
        /// The IPv4 address of the host that sent it.
        holder: [u8; 4],
    },
    /// A client joins for an image, whose name is the payload.
    Enter {
        /// The client's random number.
        client: u32,
        /// The length of the name.
        name_len: u8,
    },
    /// The server's reply to [`Body::Enter`].
    Entered {
        /// The client's random number.
        client: u32,
        /// The image, by the number that the server has given it.
        image: u32,
        /// How many clients have joined before this one.
        index: u16,
        /// How many clients the server expects; 0 if it does not know.
        clients: u16,
        /// The length of a chunk in bytes. The last one may be shorter.
        chunk_bytes: u32,
        /// The length of the image in bytes.
        bytes: Id64,
    },
    /// A client no longer needs an image, nor serves it. From the server: it does not know this client, which must join again.
    Exit {
        /// The client's random number.
        client: u32,
        /// The image.
        image: u32,
    },
}

/// A run of chunks of an image that a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    /// The image.
    pub image: u32,
    /// The first chunk.
    pub first: u32,
    /// The number of chunks.
    pub count: u16,
    /// How many times the client has asked for them before.
    pub tries: u16,
}

impl Body {
    /// Returns the chunk that a request of Frisbee is for, if it concerns whole chunks: SWP2P's switches redirect one that is addressed to
    /// the server alone. A partial request is one if it is repeated, as its first one names the blocks that a holder's chunk would
    /// repeat.
    #[must_use]
    pub const fn session_chunks(&self) -> Option<Chunks> {
        let (first, tries) = match *self {
            Self::Request { chunk, block: 0, count: CHUNK_BLOCKS } => (chunk, 0),
            Self::PartialRequest { chunk, retries } if retries > 0 => {
                (chunk, if retries < 0xffff { retries as u16 } else { u16::MAX })
            }
            _ => return None,
        };
        Some(Chunks { image: SESSION_IMAGE, first, count: 1, tries })
    }
}

impl Header {
    /// A message from a host of a simulated or emulated fabric. A host without an IPv4 address has 0.0.0.0.
    #[must_use]
    pub fn new(from: HostId, body: Body) -> Self {
        Self { source: ip_address(from).unwrap_or_default(), body }
    }

    /// Returns whether the message names this host as its sender.
    #[must_use]
    pub fn is_from(&self, host: HostId) -> bool {
        ip_address(host) == Some(self.source)
    }

    /// Returns the length of header and fields, without the payload, in bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> u32 {
        HEADER_BYTES
            + match self.body {
                Body::Join { .. } | Body::JoinReply { .. } | Body::Enter { .. } => 4,
                Body::Leave { .. }
                | Body::Leave2 { .. }
                | Body::Block { .. }
                | Body::PartialRequest { .. }
                | Body::Report { .. }
                | Body::Exit { .. } => 8,
                Body::Request { .. } | Body::Batch(_) | Body::Damaged { .. } => 12,
                Body::Return { .. } | Body::Redirect { .. } => 16,
                Body::Join2 { .. } | Body::Entered { .. } => 24,
            }
    }

    /// Returns the length of the payload in bytes.
    #[must_use]
    pub const fn payload_len(&self) -> u32 {
        match self.body {
            Body::Block { len, .. } => len as u32,
            Body::PartialRequest { .. } => CHUNK_MAP_BYTES,
            Body::Report { .. } => REPORT_MAP_BYTES,
            Body::Leave2 { .. } => STATS_BYTES,
            Body::Enter { name_len, .. } => name_len as u32,
            _ => 0,
        }
    }

    /// Returns the length of the packet from the IP header on, as [`rackweave_core::Packet::new`] takes it.
    #[must_use]
    pub const fn l3_bytes(&self) -> u32 {
        rackweave_core::frame::IPV4 + 8 + self.header_bytes() + self.payload_len()
    }

    /// Writes the message and its fields in one line, without addresses.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn fmt_line(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        match self.body {
            Body::Join { client } => write!(f, "frisbee JOIN client {client:08x}"),
            Body::JoinReply { blocks } => write!(f, "frisbee JOIN reply, {blocks} blocks"),
            Body::Leave { client, elapsed_s } | Body::Leave2 { client, elapsed_s } => {
                let name = if matches!(self.body, Body::Leave { .. }) { "LEAVE" } else { "LEAVE2" };
                write!(f, "frisbee {name} client {client:08x} after {elapsed_s} s")
            }
            Body::Block { chunk, block, .. } => write!(f, "frisbee BLOCK {chunk}/{block}"),
            Body::Request { chunk, block, count } => {
                let end = u64::from(block) + u64::from(count);
                write!(f, "frisbee REQUEST chunk {chunk} [{block}..{end})")
            }
            Body::PartialRequest { chunk, retries } => {
                write!(f, "frisbee PREQUEST chunk {chunk}")?;
                f.write_str(if retries > 0 { " again" } else { "" })
            }
            Body::Join2 { reply, client, chunk_blocks, block_bytes, bytes, .. } => {
                write!(f, "frisbee JOIN2 {}", if reply { "reply " } else { "" })?;
                write!(f, "client {client:08x} {chunk_blocks} x {block_bytes}")?;
                if reply { write!(f, " of {} bytes", bytes.get()) } else { Ok(()) }
            }
            Body::Report { image, window } => {
                write!(f, "swp2p REPORT image {image} window {window}")
            }
            Body::Batch(chunks) => {
                f.write_str("swp2p REQUEST ")?;
                chunks.fmt_line(f)
            }
            Body::Return { chunks, requester } | Body::Redirect { chunks, requester } => {
                let is_return = matches!(self.body, Body::Return { .. });
                f.write_str(if is_return { "swp2p RETURN " } else { "swp2p REDIRECT " })?;
                chunks.fmt_line(f)?;
                let [a, b, c, d] = requester;
                write!(f, " of {a}.{b}.{c}.{d}")
            }
            Body::Damaged { image, chunk, holder: [a, b, c, d] } => {
                write!(f, "swp2p DAMAGED image {image} chunk {chunk} from {a}.{b}.{c}.{d}")
            }
            Body::Enter { client, .. } => write!(f, "swp2p JOIN client {client:08x}"),
            Body::Entered { client, image, index, clients, chunk_bytes, bytes } => {
                let bytes = bytes.get();
                write!(f, "swp2p JOIN reply client {client:08x} no {index} of {clients}")?;
                write!(f, " image {image} {bytes} bytes in {chunk_bytes}")
            }
            Body::Exit { client, image } => {
                write!(f, "swp2p LEAVE client {client:08x} image {image}")
            }
        }
    }
}

impl Chunks {
    fn fmt_line(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        let Self { image, first, count, tries } = *self;
        let end = u64::from(first) + u64::from(count);
        write!(f, "image {image} chunks [{first}..{end})")?;
        if tries > 0 { write!(f, " try {}", u32::from(tries) + 1) } else { Ok(()) }
    }
}

impl rackweave_core::Header for Header {
    /// A block is a slice of its chunk; other messages carry no bytes of the image.
    fn payload(&self) -> Option<Slice> {
        match self.body {
            Body::Block { chunk, block, len } => Some(Slice {
                message: MessageId::request(u64::from(chunk)),
                offset: block.saturating_mul(u32::from(len)),
                len: u32::from(len),
            }),
            _ => None,
        }
    }

    fn payload_bytes(&self) -> u32 {
        self.payload_len()
    }
}

// Together with the name of a payload in the simulator, a packet still fills one cache line.
const _: () = assert!(size_of::<Header>() <= 36);
