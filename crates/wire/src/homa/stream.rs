//! The packets of streams. They are ours: neither the kernel module nor the talk on Leverage Homa
//! publishes any; their numbers are outside the module's.
//!
//! Offsets and lengths of a direction count modulo 2^32.

use core::fmt;

use crate::malformed::{Malformed, Put, Reader};

use super::size;

/// The common header's `type`.
pub mod packet_type {
    /// A piece of a stream; without bytes, what its sender wants known.
    pub const STREAM: u8 = 0x20;
    /// Permission to send, and acknowledgement.
    pub const CREDIT: u8 = 0x21;
    /// Send again.
    pub const MISSING: u8 = 0x22;
    /// The stream is no more.
    pub const RESET: u8 = 0x23;
}

/// Bits of a packet's `flags`.
pub mod flags {
    /// `written` is the end of this direction.
    pub const END: u8 = 1;
    /// All of the other direction, up to its end, is here.
    pub const END_RECEIVED: u8 = 2;
    /// The receiver is to answer with a CREDIT.
    pub const ASK: u8 = 4;
    /// The client has not heard of the server: `tag` is the time left until the deadline.
    pub const OPENING: u8 = 8;
    /// The bytes are sent again.
    pub const AGAIN: u8 = 16;
    /// Bits that have a meaning; the others are sent as zero and not read.
    pub const ALL: u8 = END | END_RECEIVED | ASK | OPENING | AGAIN;
}

/// In [`Credit::priority`]: the sender chooses among the unscheduled levels.
pub const UNSCHEDULED: u8 = u8::MAX;

/// What a packet says of the direction that its sender receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The peer may send bytes before this one.
    pub allowed: u32,
    /// All bytes before this one are here.
    pub received: u32,
    /// At which priority the newest of the allowed bytes go.
    pub priority: u8,
}

/// Why a stream is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Both directions ended and were acknowledged: all is well.
    Closed,
    /// An application cancelled it.
    Cancelled,
    /// Its deadline passed.
    Deadline,
    /// The sender knows nothing of it (any more).
    Unknown,
}

/// The packets of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// A piece of a direction.
    Data {
        /// Its first byte.
        offset: u32,
        /// How many bytes follow the header.
        len: u16,
        /// The application has written the bytes before this one: what there is to grant.
        written: u32,
        /// Of the other direction.
        credit: Credit,
        /// The version of the receiver's priority cutoffs that the sender used.
        cutoff_version: u16,
        /// See [`flags`].
        flags: u8,
        /// The server's name for its instance of the stream, by which a server that has restarted
        /// is told from the one before. With [`flags::OPENING`], microseconds that are left until
        /// the stream's deadline, or 0 for none.
        tag: u32,
    },
    /// Permission to send, and acknowledgement.
    Credit {
        /// Of the direction that the packet's sender receives.
        credit: Credit,
        /// See [`flags`].
        flags: u8,
        /// The server's name for its instance of the stream.
        tag: u32,
    },
    /// These bytes are late: send them again.
    Missing {
        /// The first.
        offset: u32,
        /// How many.
        length: u32,
        /// The server's name for its instance of the stream.
        tag: u32,
    },
    /// The stream is no more.
    Reset {
        /// Why.
        reason: Reason,
        /// The server's name for its instance of the stream; 0: the client does not know it.
        tag: u32,
    },
}

impl Stream {
    pub(super) const fn header_bytes(&self) -> u32 {
        match self {
            Self::Data { .. } => size::STREAM,
            Self::Credit { .. } => size::CREDIT,
            Self::Missing { .. } => size::MISSING,
            Self::Reset { .. } => size::RESET,
        }
    }

    pub(super) const fn packet_type(&self) -> u8 {
        match self {
            Self::Data { .. } => packet_type::STREAM,
            Self::Credit { .. } => packet_type::CREDIT,
            Self::Missing { .. } => packet_type::MISSING,
            Self::Reset { .. } => packet_type::RESET,
        }
    }

    /// Its name in a dump.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Data { .. } => "STREAM",
            Self::Credit { .. } => "CREDIT",
            Self::Missing { .. } => "MISSING",
            Self::Reset { .. } => "RESET",
        }
    }

    /// Appends what follows the common header.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Data { offset, len, written, credit, cutoff_version, flags, tag } => {
                out.put_u32(offset);
                out.put_u32(written);
                put_credit(credit, flags, tag, out);
                out.put_u16(len);
                out.put_u16(cutoff_version);
                out.put_zeros(2);
            }
            Self::Credit { credit, flags, tag } => put_credit(credit, flags, tag, out),
            Self::Missing { offset, length, tag } => {
                out.put_u32(offset);
                out.put_u32(length);
                out.put_u32(tag);
            }
            Self::Reset { reason, tag } => {
                out.put_u32(tag);
                out.put_u8(match reason {
                    Reason::Closed => 0,
                    Reason::Cancelled => 1,
                    Reason::Deadline => 2,
                    Reason::Unknown => 3,
                });
            }
        }
    }

    /// Reads what follows the common header; `None` if the type is none of a stream's.
    pub(super) fn decode(
        code: u8,
        reader: &mut Reader<'_>,
        l4_bytes: usize,
    ) -> Result<Option<Self>, Malformed> {
        Ok(Some(match code {
            packet_type::STREAM => {
                reader.need("a Homa STREAM header", size::STREAM as usize)?;
                // `need` has compared with the cut bytes, which are no more than `l4_bytes`.
                let left = l4_bytes - size::STREAM as usize;
                let (offset, written) = (reader.u32()?, reader.u32()?);
                let (credit, flags, tag) = read_credit(reader)?;
                let len = reader.u16()?;
                let cutoff_version = reader.u16()?;
                if usize::from(len) > left {
                    return Err(Malformed::SegmentLength { said: usize::from(len), left });
                }
                Self::Data { offset, len, written, credit, cutoff_version, flags, tag }
            }
            packet_type::CREDIT => {
                reader.need("a Homa CREDIT", size::CREDIT as usize)?;
                let (credit, flags, tag) = read_credit(reader)?;
                Self::Credit { credit, flags, tag }
            }
            packet_type::MISSING => {
                reader.need("a Homa MISSING", size::MISSING as usize)?;
                Self::Missing { offset: reader.u32()?, length: reader.u32()?, tag: reader.u32()? }
            }
            packet_type::RESET => {
                reader.need("a Homa RESET", size::RESET as usize)?;
                let tag = reader.u32()?;
                let reason = match reader.u8()? {
                    0 => Reason::Closed,
                    1 => Reason::Cancelled,
                    2 => Reason::Deadline,
                    // What a later version may say, this one does not know either.
                    _ => Reason::Unknown,
                };
                Self::Reset { reason, tag }
            }
            _ => return Ok(None),
        }))
    }

    /// Prints what follows the name and id.
    pub(crate) fn dump(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Data { offset, len, written, credit, cutoff_version, flags, tag } => {
                let end = offset.wrapping_add(u32::from(len));
                write!(f, " [{offset}..{end}) of {written}")?;
                if cutoff_version != 0 {
                    write!(f, " cutoffs v{cutoff_version}")?;
                }
                dump_flags(f, flags)?;
                dump_credit(f, credit)?;
                if flags & flags::OPENING == 0 {
                    write!(f, " tag {tag:#x}")
                } else if tag != 0 {
                    write!(f, " deadline in {tag} us")
                } else {
                    Ok(())
                }
            }
            Self::Credit { credit, flags, tag } => {
                dump_flags(f, flags)?;
                dump_credit(f, credit)?;
                write!(f, " tag {tag:#x}")
            }
            Self::Missing { offset, length, tag } => {
                write!(f, " [{offset}..{}) tag {tag:#x}", offset.wrapping_add(length))
            }
            Self::Reset { reason, tag } => {
                let reason = match reason {
                    Reason::Closed => "closed",
                    Reason::Cancelled => "cancelled",
                    Reason::Deadline => "deadline",
                    Reason::Unknown => "unknown",
                };
                write!(f, " {reason} tag {tag:#x}")
            }
        }
    }
}

fn put_credit(credit: Credit, flags: u8, tag: u32, out: &mut Vec<u8>) {
    out.put_u32(credit.allowed);
    out.put_u32(credit.received);
    out.put_u32(tag);
    out.put_u8(flags & flags::ALL);
    out.put_u8(credit.priority);
}

fn read_credit(reader: &mut Reader<'_>) -> Result<(Credit, u8, u32), Malformed> {
    let (allowed, received, tag) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let (flags, priority) = (reader.u8()? & flags::ALL, reader.u8()?);
    Ok((Credit { allowed, received, priority }, flags, tag))
}

fn dump_flags(f: &mut fmt::Formatter<'_>, flags: u8) -> fmt::Result {
    let names = [
        (flags::END, " end"),
        (flags::END_RECEIVED, " end received"),
        (flags::ASK, " ask"),
        (flags::OPENING, " opening"),
        (flags::AGAIN, " again"),
    ];
    names
        .into_iter()
        .filter(|(bit, _)| flags & bit != 0)
        .try_for_each(|(_, name)| f.write_str(name))
}

fn dump_credit(f: &mut fmt::Formatter<'_>, credit: Credit) -> fmt::Result {
    write!(f, " received {} allowed {}", credit.received, credit.allowed)?;
    match credit.priority {
        UNSCHEDULED => Ok(()),
        priority => write!(f, " at {priority}"),
    }
}
