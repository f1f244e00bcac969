//! Datagrams: UDP (RFC 768), followed by the message and the offset that the payload belongs to. The layout of message
//! and offset is Rackweave's: UDP has no messages longer than a packet.

use core::fmt;

use rackweave_core::Slice;

use crate::codec::{Codec, fmt_range, slice};
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Id64, Ports};

/// UDP's IP protocol number.
pub const IP_PROTOCOL: u8 = 17;

/// Length of UDP's header: ports, length, checksum.
pub const UDP_BYTES: u32 = 8;

/// Length of the whole header, without IP's: UDP's, message id, message length, offset.
pub const HEADER_BYTES: u32 = UDP_BYTES + 16;

/// A datagram's header. The ports are the packet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message that the payload belongs to.
    pub id: Id64,
    /// Length of the whole message.
    pub message_length: u32,
    /// Offset of the payload in the message.
    pub offset: u32,
    /// Length of the payload: UDP's length without the header.
    pub len: u16,
}

impl Header {
    /// The message bytes carried.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> Slice {
        slice(self.id, self.offset, self.len)
    }
}

impl Codec for Header {
    fn ip_protocol(_: Layout) -> u8 {
        IP_PROTOCOL
    }

    fn header_bytes(&self, _: Layout) -> u32 {
        HEADER_BYTES
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        out.put_u16(ports.source);
        out.put_u16(ports.destination);
        out.put_u16((HEADER_BYTES as u16).saturating_add(self.len));
        out.put_u16(0); // no checksum: it would need the payload
        out.put_u64(self.id.get());
        out.put_u32(self.message_length);
        out.put_u32(self.offset);
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a datagram header", bytes);
        reader.need("a datagram header", HEADER_BYTES as usize)?;
        let ports = Ports { source: reader.u16()?, destination: reader.u16()? };
        let claimed = reader.u16()?;
        let len = claimed
            .checked_sub(HEADER_BYTES as u16)
            .filter(|_| usize::from(claimed) <= l4_bytes)
            .ok_or(Malformed::SegmentLength { claimed: usize::from(claimed), left: l4_bytes })?;
        reader.skip::<2>()?;
        let id = Id64::new(reader.u64()?);
        let (message_length, offset) = (reader.u32()?, reader.u32()?);
        Ok((Self { id, message_length, offset, len }, ports))
    }

    fn message_bytes(&self) -> Option<u32> {
        Some(self.message_length)
    }

    fn exchange(&self) -> Option<Id64> {
        Some(self.id)
    }

    fn fmt_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "datagram id {}", self.id.get())?;
        fmt_range(f, self.offset, self.len, self.message_length)
    }
}

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        Some(Self::payload(self))
    }
}
