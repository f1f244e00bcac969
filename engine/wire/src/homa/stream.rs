//! The packets of streams. They are our extension: neither the kernel module nor the talk on Leverage Homa publishes
//! any. Their type codes are outside the module's range.
//!
//! Offsets and lengths are modulo 2^32 in each direction.

use core::fmt;

use crate::malformed::{Malformed, Put, Reader};

use super::size;

/// Values of the common header's `type`.
pub mod packet_type {
    /// A segment of a stream; without payload, a probe or a notification.
    pub const STREAM: u8 = 0x20;
    /// Permission to send, and acknowledgement.
    pub const CREDIT: u8 = 0x21;
    /// A request for retransmission.
    pub const MISSING: u8 = 0x22;
    /// The stream has been closed or aborted.
    pub const RESET: u8 = 0x23;
}

/// Bits of a packet's `flags`.
pub mod flags {
    /// `written` is the end of this direction.
    pub const END: u8 = 1;
    /// All of the other direction, up to its end, has been received.
    pub const END_RECEIVED: u8 = 2;
    /// The receiver must reply with a CREDIT.
    pub const ASK: u8 = 4;
    /// The client has received nothing from the server yet: `tag` is the time left until the deadline.
    pub const OPENING: u8 = 8;
    /// The payload is a retransmission.
    pub const RETRANSMIT: u8 = 16;
    /// Bits with a meaning; the others are sent as zero and not read.
    pub const ALL: u8 = END | END_RECEIVED | ASK | OPENING | RETRANSMIT;
}

/// A value of [`Credit::priority`]: the sender chooses among the unscheduled levels.
pub const UNSCHEDULED: u8 = u8::MAX;

/// Credit and acknowledgement for the direction that the packet's sender receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The peer may send bytes before this offset.
    pub allowed: u32,
    /// All bytes before this offset have been received.
    pub received: u32,
    /// The priority of the newest allowed bytes.
    pub priority: u8,
}

/// The reason why a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Both directions have ended and were acknowledged: a regular close.
    Closed,
    /// An application cancelled it.
    Cancelled,
    /// Its deadline has passed.
    Deadline,
    /// The packet's sender does not have the stream, or has it no longer.
    Unknown,
}

/// The packets of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// A segment of a direction.
    Data {
        /// Offset of its first byte.
        offset: u32,
        /// Length of the payload.
        len: u16,
        /// End of the bytes that the application has written, which can be granted.
        written: u32,
        /// The credit of the other direction.
        credit: Credit,
        /// The version of the receiver's priority cutoffs that the sender used.
        cutoff_version: u16,
        /// Bits from [`flags`].
        flags: u8,
        /// The server's tag for its instance of the stream, which differs after a restart. With [`flags::OPENING`]:
        /// the microseconds until the stream's deadline, or 0 for none.
        tag: u32,
    },
    /// Permission to send, and acknowledgement.
    Credit {
        /// The credit of the direction that the packet's sender receives.
        credit: Credit,
        /// Bits from [`flags`].
        flags: u8,
        /// The server's tag for its instance of the stream.
        tag: u32,
    },
    /// A request to retransmit bytes.
    Missing {
        /// Offset of the first missing byte.
        offset: u32,
        /// Number of missing bytes.
        length: u32,
        /// The server's tag for its instance of the stream.
        tag: u32,
    },
    /// The stream has ended.
    Reset {
        /// The reason why it ended.
        reason: Reason,
        /// The server's tag for its instance of the stream; 0: the client does not have it.
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

    /// The packet's name in a dump.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Data { .. } => "STREAM",
            Self::Credit { .. } => "CREDIT",
            Self::Missing { .. } => "MISSING",
            Self::Reset { .. } => "RESET",
        }
    }

    /// Appends the fields after the common header.
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

    /// Decodes the fields after the common header; `None` if the type is not a stream packet's.
    pub(super) fn decode(
        code: u8,
        reader: &mut Reader<'_>,
        l4_bytes: usize,
    ) -> Result<Option<Self>, Malformed> {
        Ok(Some(match code {
            packet_type::STREAM => {
                reader.need("a Homa STREAM header", size::STREAM as usize)?;
                // `need` has checked the truncated length, which is at most `l4_bytes`.
                let left = l4_bytes - size::STREAM as usize;
                let (offset, written) = (reader.u32()?, reader.u32()?);
                let (credit, flags, tag) = read_credit(reader)?;
                let len = reader.u16()?;
                let cutoff_version = reader.u16()?;
                if usize::from(len) > left {
                    return Err(Malformed::SegmentLength { claimed: usize::from(len), left });
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
                    // The peer runs a later version with another reason.
                    _ => Reason::Unknown,
                };
                Self::Reset { reason, tag }
            }
            _ => return Ok(None),
        }))
    }

    /// Prints the fields after the name and the id.
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
        (flags::RETRANSMIT, " retransmit"),
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
