//! The common interface of all protocols' headers, and the common prologue of the receiver-driven ones.

use core::fmt;

use rackweave_core::{MessageId, Slice};

use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// A protocol's header: the fields that the state machines use, and their encoding.
pub trait Codec: rackweave_core::Header + fmt::Debug + Eq {
    /// Returns the IP protocol number, by which packets are decoded: no other transport has it (a test compares them).
    /// Only Homa's depends on the layout.
    #[must_use]
    fn ip_protocol(layout: Layout) -> u8;

    /// Returns the length of the header, without payload.
    #[must_use]
    fn header_bytes(&self, layout: Layout) -> u32;

    /// Appends the header's bytes: exactly [`Codec::header_bytes`].
    fn encode(&self, layout: Layout, ports: Ports, out: &mut Vec<u8>);

    /// Decodes the header of a packet with `l4_bytes` after the IP header, by IP's total length; `bytes` may have
    /// been truncated by a capture (or trimmed by a switch), but not within the header.
    ///
    /// The state machine judges whether offsets and lengths are consistent.
    ///
    /// # Errors
    /// See [`Malformed`].
    fn decode(layout: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed>;

    /// The length of the message whose bytes the packet carries; `None` for packets without message bytes, and for
    /// streams, whose length is not known.
    #[must_use]
    fn message_bytes(&self) -> Option<u32>;

    /// Writes the protocol's name and the header's fields, as [`crate::dump::Line`] prints them.
    ///
    /// # Errors
    /// Those of the formatter.
    fn fmt_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// Bit of [`Prologue::flags`]: the message expects no response.
const FLAG_ONE_WAY: u8 = 0x80;

/// The first 16 bytes of the headers of NDP, pHost, Polo, pFabric, SIRD, Swift, dcPIM and UET.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prologue {
    pub(crate) ports: Ports,
    /// The packet type.
    pub(crate) code: u8,
    /// The bits below [`FLAG_ONE_WAY`], whose meaning depends on the protocol.
    pub(crate) flags: u8,
    /// A field whose meaning depends on the packet type.
    pub(crate) extra: u16,
    pub(crate) id: Id64,
    pub(crate) one_way: bool,
}

impl Prologue {
    pub(crate) const BYTES: u32 = 16;

    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.put_u16(self.ports.source);
        out.put_u16(self.ports.destination);
        out.put_u8(self.code);
        out.put_u8(self.flags | flag(self.one_way, FLAG_ONE_WAY));
        out.put_u16(self.extra);
        out.put_u64(self.id.get());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let ports = Ports { source: reader.u16()?, destination: reader.u16()? };
        let (code, flags, extra) = (reader.u8()?, reader.u8()?, reader.u16()?);
        let (id, one_way) = (Id64::new(reader.u64()?), flags & FLAG_ONE_WAY != 0);
        Ok(Self { ports, code, flags: flags & !FLAG_ONE_WAY, extra, id, one_way })
    }

    /// Returns whether a bit of `flags` is set.
    pub(crate) const fn has(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }

    /// Writes the beginning of a packet's line.
    pub(crate) fn fmt_line(
        f: &mut fmt::Formatter<'_>,
        packet: &str,
        id: Id64,
        one_way: bool,
    ) -> fmt::Result {
        write!(f, "{packet} id {}", id.get())?;
        f.write_str(if one_way { " one-way" } else { "" })
    }
}

/// Returns the bit if `set` is true, else 0.
pub(crate) const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

/// Returns the payload length of a data packet with `l4_bytes` after the IP header.
pub(crate) fn payload_len(l4_bytes: usize, header_bytes: u32) -> Result<u16, Malformed> {
    let claimed = l4_bytes.saturating_sub(header_bytes as usize);
    u16::try_from(claimed)
        .map_err(|_| Malformed::SegmentLength { claimed, left: usize::from(u16::MAX) })
}

/// Returns the payload slice of a data packet.
#[inline]
pub(crate) fn slice(id: Id64, offset: u32, len: u16) -> Slice {
    Slice { message: MessageId(id.get()), offset, len: u32::from(len) }
}

/// Writes the range of message bytes that a data packet carries.
pub(crate) fn fmt_range(
    f: &mut fmt::Formatter<'_>,
    offset: u32,
    len: u16,
    message_length: u32,
) -> fmt::Result {
    write!(f, " [{offset}..{}) of {message_length}", u64::from(offset) + u64::from(len))
}
