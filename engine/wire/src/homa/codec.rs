//! The encoding of Homa's headers: the kernel module's layouts, field for field.
//!
//! Fields that the state machines do not use (`ack`, `window`, `checksum`, `urgent`, which exist for hardware that expects TCP) are
//! sent as zero and not read, as is `sequence` but for DATA in [`Layout::Head`].

use crate::dump::write_homa;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Codec, Id64, Ports};

use super::stream::Stream;
use super::{Body, DataStamps, GrantStamps, Header, packet_type, size};

/// The header layouts: those of two versions of the kernel module, and an extension of the older one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// The layout of the current version (2026).
    #[default]
    Head,
    /// The 2023 version's, on which Leverage Homa was built: DATA has its segment's length, entries of
    /// acknowledgements have both ports, GRANT has `resend_all`.
    Talk,
    /// [`Layout::Talk`] with time stamps after DATA's and GRANT's fields. They are Rackweave's: Leverage Homa's own are
    /// not public.
    Leverage,
}

/// Bit of `flags`: no response will follow. The bit is our extension, since Homa has only RPCs.
const FLAG_ONE_WAY: u8 = 0x80;
/// Bit of `flags` in a GRANT: `resend_all`. The bit is our extension, because [`Layout::Head`] has no field for it.
const FLAG_RESEND_ALL: u8 = 0x40;

/// Bit of `flags` in an UNKNOWN: `refused`. The bit is our extension.
const FLAG_REFUSED: u8 = 0x20;

/// The `seg.offset` of a DATA packet in [`Layout::Head`] whose offset is in `sequence`: of all that hardware has not cut from a longer
/// one. Both forms are read, and this one is written (HomaModule, `homa_wire.h` and `homa_outgoing.c`).
const OFFSET_IN_SEQUENCE: u32 = u32::MAX;

/// The number of entries in an ACK.
const ACK_ENTRIES: usize = 5;

/// Priority 0's cutoff: the greatest value of the kernel's signed field.
const NO_CUTOFF: u32 = i32::MAX as u32;

impl Layout {
    /// All layouts, in the order of their age from the newest.
    pub const ALL: [Self; 3] = [Self::Head, Self::Talk, Self::Leverage];

    /// The IP protocol number: IANA's 146 (since October 2024), an experimental one for the older version; an
    /// unassigned one with time stamps.
    #[must_use]
    pub const fn ip_protocol(self) -> u8 {
        match self {
            Self::Head => 146,
            Self::Talk => 0xfd,
            Self::Leverage => 250,
        }
    }

    /// Returns the length of a DATA header.
    #[must_use]
    pub const fn data_bytes(self) -> u32 {
        match self {
            Self::Head => size::DATA_HEAD,
            Self::Talk => size::DATA_TALK,
            Self::Leverage => size::DATA_LEVERAGE,
        }
    }

    /// Returns the number of message bytes in a full packet of this MTU, over IPv4.
    #[must_use]
    pub const fn max_payload(self, mtu: u32) -> u32 {
        mtu.saturating_sub(rackweave_core::frame::IPV4 + self.data_bytes())
    }
}

impl Header {
    /// Returns the length of the header, without payload.
    #[must_use]
    pub const fn header_bytes(&self, layout: Layout) -> u32 {
        match (&self.body, layout) {
            (Body::Data { .. }, _) => layout.data_bytes(),
            (Body::Grant { .. }, Layout::Head) => size::GRANT_HEAD,
            (Body::Grant { .. }, Layout::Talk) => size::GRANT_TALK,
            (Body::Grant { .. }, Layout::Leverage) => size::GRANT_LEVERAGE,
            (Body::Resend { .. }, _) => size::RESEND,
            (Body::Unknown { .. } | Body::Busy | Body::NeedAck, _) => size::COMMON,
            (Body::Cutoffs { .. }, _) => size::CUTOFFS,
            (Body::Ack { .. }, Layout::Head) => size::ACK_HEAD,
            (Body::Ack { .. }, Layout::Talk | Layout::Leverage) => size::ACK_TALK,
            (Body::Stream(stream), _) => stream.header_bytes(),
        }
    }

    /// The code in the common header's `type`.
    #[must_use]
    pub const fn packet_type(&self) -> u8 {
        match self.body {
            Body::Data { .. } => packet_type::DATA,
            Body::Grant { .. } => packet_type::GRANT,
            Body::Resend { .. } => packet_type::RESEND,
            Body::Unknown { .. } => packet_type::RPC_UNKNOWN,
            Body::Busy => packet_type::BUSY,
            Body::Cutoffs { .. } => packet_type::CUTOFFS,
            Body::NeedAck => packet_type::NEED_ACK,
            Body::Ack { .. } => packet_type::ACK,
            Body::Stream(stream) => stream.packet_type(),
        }
    }

    /// Appends the header's bytes: exactly [`Header::header_bytes`].
    pub fn encode(&self, layout: Layout, ports: Ports, out: &mut Vec<u8>) {
        self.encode_common(layout, ports, out);
        match self.body {
            Body::Data { .. } => self.encode_data(layout, ports, out),
            Body::Grant { offset, priority, resend_all, stamps } => {
                out.put_u32(offset);
                out.put_u8(priority);
                if layout != Layout::Head {
                    out.put_u8(u8::from(resend_all));
                }
                if layout == Layout::Leverage {
                    let GrantStamps { sent_at, echo, held_ns, host_ns } = stamps;
                    for field in [sent_at, echo, held_ns, host_ns] {
                        out.put_u32(field);
                    }
                }
            }
            Body::Resend { offset, length, priority } => {
                out.put_u32(offset);
                out.put_u32(length);
                out.put_u8(priority);
            }
            Body::Unknown { .. } | Body::Busy | Body::NeedAck => {}
            Body::Cutoffs { cutoffs, version } => {
                out.put_u32(NO_CUTOFF);
                // On the wire the index is the priority; `cutoffs` begins with the highest.
                for cutoff in cutoffs.iter().rev() {
                    out.put_u32(*cutoff);
                }
                out.put_u16(version);
            }
            Body::Ack { count, others } => {
                let count = usize::from(count).min(others.len());
                out.put_u16(count as u16);
                for id in &others[..count] {
                    put_ack(layout, *id, ports, ports.destination, out);
                }
                out.put_zeros((ACK_ENTRIES - count) * ack_bytes(layout));
            }
            Body::Stream(stream) => stream.encode(out),
        }
    }

    fn encode_common(&self, layout: Layout, ports: Ports, out: &mut Vec<u8>) {
        out.put_u16(ports.source);
        out.put_u16(ports.destination);
        let sequence = match self.body {
            Body::Data { offset, .. } if layout == Layout::Head => offset,
            _ => 0,
        };
        out.put_u32(sequence);
        out.put_zeros(3); // ack
        out.put_u8(self.packet_type());
        // doff, as in TCP: 4-byte words of the header, in the high half. It matters only for DATA (to segmentation
        // hardware), whose length alone is a multiple of 4. The field ends at 60: to such hardware, time stamps
        // belong to the segment.
        let doff_words = match self.body {
            Body::Data { .. } => layout.data_bytes().min(60) as u8 / 4,
            Body::Stream(Stream::Data { .. }) => size::STREAM as u8 / 4,
            _ => 0,
        };
        out.put_u8(doff_words << 4);
        let mut flags = if self.one_way { FLAG_ONE_WAY } else { 0 };
        if matches!(self.body, Body::Grant { resend_all: true, .. }) {
            flags |= FLAG_RESEND_ALL;
        }
        if matches!(self.body, Body::Unknown { refused: true }) {
            flags |= FLAG_REFUSED;
        }
        out.put_u8(flags);
        out.put_zeros(2 + 2 + 2); // window, checksum, urgent
        out.put_u64(self.id.get());
    }

    fn encode_data(&self, layout: Layout, ports: Ports, out: &mut Vec<u8>) {
        let Body::Data {
            message_length,
            incoming,
            ack_id,
            ack_port,
            cutoff_version,
            retransmit,
            offset,
            segment_length,
            stamps,
        } = self.body
        else {
            return;
        };
        out.put_u32(message_length);
        out.put_u32(incoming);
        match layout {
            Layout::Head => {
                put_ack(layout, ack_id, ports, ack_port, out);
                out.put_u16(cutoff_version);
                out.put_u8(u8::from(retransmit));
                out.put_zeros(3);
                out.put_u32(OFFSET_IN_SEQUENCE);
            }
            Layout::Talk | Layout::Leverage => {
                out.put_u16(cutoff_version);
                out.put_u8(u8::from(retransmit));
                out.put_zeros(1);
                out.put_u32(offset);
                out.put_u32(u32::from(segment_length));
                put_ack(layout, ack_id, ports, ack_port, out);
            }
        }
        if layout == Layout::Leverage {
            out.put_u32(stamps.sent_at);
            out.put_u32(stamps.echo);
        }
    }

    /// Decodes the header of a packet with `l4_bytes` after the IP header, by IP's total length; `bytes` may have
    /// been truncated by a capture, but not within the header.
    ///
    /// All values that can be encoded are accepted; the state machine judges whether offsets, lengths and priorities
    /// are consistent. Bytes after a control packet's header are ignored. Of an ACK with four or five entries the
    /// first three are kept: the server asks again (NEED_ACK) for the rest.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(
        layout: Layout,
        bytes: &[u8],
        l4_bytes: usize,
    ) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a Homa header", bytes);
        reader.need("a Homa header", size::COMMON as usize)?;
        let ports = Ports { source: reader.u16()?, destination: reader.u16()? };
        let sequence = reader.u32()?;
        reader.skip::<3>()?; // ack
        let code = reader.u8()?;
        reader.skip::<1>()?; // doff
        let flags = reader.u8()?;
        reader.skip::<6>()?; // window, checksum, urgent
        let id = Id64::new(reader.u64()?);
        let body = match code {
            packet_type::DATA => Self::decode_data(layout, sequence, &mut reader, l4_bytes)?,
            packet_type::GRANT => {
                let bytes = match layout {
                    Layout::Head => size::GRANT_HEAD,
                    Layout::Talk => size::GRANT_TALK,
                    Layout::Leverage => size::GRANT_LEVERAGE,
                };
                reader.need("a Homa GRANT", bytes as usize)?;
                let (offset, priority) = (reader.u32()?, reader.u8()?);
                let resend_all = match layout {
                    Layout::Head => flags & FLAG_RESEND_ALL != 0,
                    Layout::Talk | Layout::Leverage => reader.u8()? != 0,
                };
                let mut stamps = GrantStamps::default();
                if layout == Layout::Leverage {
                    stamps = GrantStamps {
                        sent_at: reader.u32()?,
                        echo: reader.u32()?,
                        held_ns: reader.u32()?,
                        host_ns: reader.u32()?,
                    };
                }
                Body::Grant { offset, priority, resend_all, stamps }
            }
            packet_type::RESEND => {
                reader.need("a Homa RESEND", size::RESEND as usize)?;
                Body::Resend {
                    offset: reader.u32()?,
                    length: reader.u32()?,
                    priority: reader.u8()?,
                }
            }
            packet_type::RPC_UNKNOWN => Body::Unknown { refused: flags & FLAG_REFUSED != 0 },
            packet_type::BUSY => Body::Busy,
            packet_type::CUTOFFS => {
                reader.need("a Homa CUTOFFS", size::CUTOFFS as usize)?;
                reader.skip::<4>()?; // priority 0's: all longer messages
                let mut cutoffs = [0; 7];
                for cutoff in cutoffs.iter_mut().rev() {
                    *cutoff = reader.u32()?;
                }
                Body::Cutoffs { cutoffs, version: reader.u16()? }
            }
            packet_type::NEED_ACK => Body::NeedAck,
            packet_type::ACK => Self::decode_ack(layout, &mut reader)?,
            code => match Stream::decode(code, &mut reader, l4_bytes)? {
                Some(stream) => Body::Stream(stream),
                None => return Err(Malformed::HomaType(code)),
            },
        };
        Ok((Self { id, one_way: flags & FLAG_ONE_WAY != 0, body }, ports))
    }

    fn decode_data(
        layout: Layout,
        sequence: u32,
        reader: &mut Reader<'_>,
        l4_bytes: usize,
    ) -> Result<Body, Malformed> {
        let header_bytes = layout.data_bytes() as usize;
        reader.need("a Homa DATA header", header_bytes)?;
        // `need` has checked the truncated length, which is at most `l4_bytes`.
        let left = l4_bytes - header_bytes;
        let message_length = reader.u32()?;
        let incoming = reader.u32()?;
        let (ack_id, ack_port, cutoff_version, retransmit, offset, claimed);
        match layout {
            Layout::Head => {
                (ack_id, ack_port) = read_ack(layout, reader)?;
                cutoff_version = reader.u16()?;
                retransmit = reader.u8()? != 0;
                reader.skip::<3>()?;
                offset = match reader.u32()? {
                    OFFSET_IN_SEQUENCE => sequence,
                    offset => offset,
                };
                claimed = left;
            }
            Layout::Talk | Layout::Leverage => {
                cutoff_version = reader.u16()?;
                retransmit = reader.u8()? != 0;
                reader.skip::<1>()?;
                offset = reader.u32()?;
                claimed = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
                (ack_id, ack_port) = read_ack(layout, reader)?;
            }
        }
        let mut stamps = DataStamps::default();
        if layout == Layout::Leverage {
            stamps = DataStamps { sent_at: reader.u32()?, echo: reader.u32()? };
        }
        let segment_length = match u16::try_from(claimed) {
            Ok(length) if claimed <= left => length,
            _ => return Err(Malformed::SegmentLength { claimed, left }),
        };
        Ok(Body::Data {
            message_length,
            incoming,
            ack_id,
            ack_port,
            cutoff_version,
            retransmit,
            offset,
            segment_length,
            stamps,
        })
    }

    fn decode_ack(layout: Layout, reader: &mut Reader<'_>) -> Result<Body, Malformed> {
        let bytes = match layout {
            Layout::Head => size::ACK_HEAD,
            Layout::Talk | Layout::Leverage => size::ACK_TALK,
        };
        reader.need("a Homa ACK", bytes as usize)?;
        let claimed = reader.u16()?;
        if usize::from(claimed) > ACK_ENTRIES {
            return Err(Malformed::AckCount(claimed));
        }
        let mut others = [Id64::default(); 3];
        let count = usize::from(claimed).min(others.len());
        for id in &mut others[..count] {
            (*id, _) = read_ack(layout, reader)?;
        }
        Ok(Body::Ack { count: count as u8, others })
    }
}

/// Bytes of one entry of an acknowledgement.
const fn ack_bytes(layout: Layout) -> usize {
    match layout {
        Layout::Head => 10,
        Layout::Talk | Layout::Leverage => 12,
    }
}

/// Writes one finished RPC. The state machines do not keep its client's port, because ids are unique per client, so
/// the packet's own port is written.
fn put_ack(layout: Layout, id: Id64, ports: Ports, server_port: u16, out: &mut Vec<u8>) {
    out.put_u64(id.get());
    if layout != Layout::Head {
        out.put_u16(ports.source);
    }
    out.put_u16(server_port);
}

/// Reads one finished RPC and its port at the server.
fn read_ack(layout: Layout, reader: &mut Reader<'_>) -> Result<(Id64, u16), Malformed> {
    let id = Id64::new(reader.u64()?);
    if layout != Layout::Head {
        reader.skip::<2>()?;
    }
    Ok((id, reader.u16()?))
}

impl Codec for Header {
    fn ip_protocol(layout: Layout) -> u8 {
        layout.ip_protocol()
    }

    fn header_bytes(&self, layout: Layout) -> u32 {
        self.header_bytes(layout)
    }

    fn encode(&self, layout: Layout, ports: Ports, out: &mut Vec<u8>) {
        self.encode(layout, ports, out);
    }

    fn decode(layout: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        Self::decode(layout, bytes, l4_bytes)
    }

    fn message_bytes(&self) -> Option<u32> {
        match self.body {
            Body::Data { message_length, .. } => Some(message_length),
            _ => None,
        }
    }

    fn exchange(&self) -> Option<Id64> {
        Some(self.id)
    }

    fn fmt_line(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write_homa(f, self)
    }
}
