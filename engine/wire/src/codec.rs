//! The common interface of all protocols' headers.

use core::fmt;

use rackweave_core::{MessageId, Slice};

use crate::homa::Layout;
use crate::malformed::Malformed;
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

    /// The id in all packets of the request or one-way message that the packet belongs to, in either direction; `None` for TCP, whose
    /// packets may carry bytes of several.
    #[must_use]
    fn exchange(&self) -> Option<Id64>;

    /// Writes the protocol's name and the header's fields, as [`crate::dump::Line`] prints them.
    ///
    /// # Errors
    /// Those of the formatter.
    fn fmt_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
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
