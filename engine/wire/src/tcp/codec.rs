//! The encoding of TCP's header and options (RFC 9293), SACK (RFC 2018), window scale (RFC 7323).
//!
//! The message that a segment's bytes belong to is encoded as an experimental option (kind 253 with an experiment
//! identifier, RFC 6994), so that captures show it. It represents the framing that an application would put into the
//! stream; the simulator does not count its bytes.

use rackweave_core::Kind;

use crate::dump::write_tcp;
use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Codec, Id64, Ports};

use super::{Body, Header, IP_PROTOCOL, SackBlocks, WINDOW_SHIFT, flags};

/// Length of the header without options.
pub const HEADER_BYTES: u32 = 20;

/// Length of the message mapping, padding included: present in a capture, but not counted in the simulated size.
pub const MAPPING_BYTES: u32 = 24;

/// Length of window scale and SACK-permitted, padding included: on every SYN.
pub const SYN_OPTION_BYTES: u32 = 8;

/// The greatest header length that the data offset can encode.
pub const MAX_HEADER_BYTES: u32 = 60;

/// The experiment identifier of the message mapping: "RW".
pub const MAPPING_EXPERIMENT: u16 = 0x5257;

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_WINDOW_SCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_EXPERIMENT: u8 = 253;

/// The length of the mapping option: kind, length, experiment, message, its length, offset, message kind.
const MAPPING_LENGTH: u8 = 2 + 2 + 8 + 4 + 4 + 1;

// All options that one segment may carry fit the data offset.
const _: () = assert!(HEADER_BYTES + MAPPING_BYTES + SYN_OPTION_BYTES <= MAX_HEADER_BYTES);
const _: () = assert!(HEADER_BYTES + 4 + 3 * 8 + SYN_OPTION_BYTES <= MAX_HEADER_BYTES);
const _: () = assert!((MAPPING_LENGTH as u32).next_multiple_of(4) == MAPPING_BYTES);

impl Header {
    /// Returns the length of the header with all its options, as in a capture.
    #[must_use]
    pub const fn header_bytes(&self) -> u32 {
        let mapping = if matches!(self.body, Body::Data { .. }) { MAPPING_BYTES } else { 0 };
        self.counted_bytes() + mapping
    }

    /// Returns the length of the header that counts on a simulated link: without the message mapping.
    #[must_use]
    pub const fn counted_bytes(&self) -> u32 {
        let syn = if self.flags & flags::SYN != 0 { SYN_OPTION_BYTES } else { 0 };
        let sack = match self.body {
            // Two bytes of padding, kind, length, and the blocks.
            Body::Ack { count, .. } if count > 0 => 4 + 8 * sack_count(count) as u32,
            _ => 0,
        };
        HEADER_BYTES + syn + sack
    }

    /// Appends the header's bytes: exactly [`Header::header_bytes`]. The checksum, which covers
    /// the payload, is left zero.
    pub fn encode(&self, ports: Ports, out: &mut Vec<u8>) {
        out.put_u16(ports.source);
        out.put_u16(ports.destination);
        out.put_u32(self.seq);
        out.put_u32(self.ack);
        out.put_u8((self.header_bytes() as u8 / 4) << 4);
        out.put_u8(self.flags);
        out.put_u16(self.window);
        out.put_zeros(2 + 2); // checksum, urgent pointer
        if self.flags & flags::SYN != 0 {
            out.extend_from_slice(&[KIND_SACK_PERMITTED, 2, KIND_NOP, KIND_NOP]);
            out.extend_from_slice(&[KIND_NOP, KIND_WINDOW_SCALE, 3, WINDOW_SHIFT as u8]);
        }
        match self.body {
            Body::Data { message, message_length, offset, len: _, kind } => {
                out.extend_from_slice(&[KIND_NOP, KIND_NOP, KIND_NOP]);
                out.extend_from_slice(&[KIND_EXPERIMENT, MAPPING_LENGTH]);
                out.put_u16(MAPPING_EXPERIMENT);
                out.put_u64(message.get());
                out.put_u32(message_length);
                out.put_u32(offset);
                out.put_u8(match kind {
                    Kind::OneWay => 0,
                    Kind::Request => 1,
                    Kind::Response => 2,
                });
            }
            Body::Ack { count, sack } if count > 0 => {
                let blocks = &sack[..sack_count(count)];
                let length = 2 + 8 * blocks.len() as u8;
                out.extend_from_slice(&[KIND_NOP, KIND_NOP, KIND_SACK, length]);
                for (from, to) in blocks {
                    out.put_u32(*from);
                    out.put_u32(*to);
                }
            }
            Body::Ack { .. } => {}
        }
    }

    /// Decodes the header of a segment of `l4_bytes`, by IP's total length; `bytes` may have been truncated by a
    /// capture, but not within the header. The checksum is not verified.
    ///
    /// Unknown options are skipped. A segment with a message mapping is data: selective acknowledgements next to it are
    /// ignored, as is the fourth block of any.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        let bytes = &bytes[..bytes.len().min(l4_bytes)];
        let mut reader = Reader::new("a TCP header", bytes);
        reader.need("a TCP header", HEADER_BYTES as usize)?;
        let ports = Ports { source: reader.u16()?, destination: reader.u16()? };
        let seq = reader.u32()?;
        let ack = reader.u32()?;
        let header_bytes = usize::from(reader.u8()? >> 4) * 4;
        let flags = reader.u8()?;
        let window = reader.u16()?;
        if header_bytes < HEADER_BYTES as usize || header_bytes > l4_bytes {
            return Err(Malformed::TcpDataOffset { header: header_bytes, segment: l4_bytes });
        }
        reader.need("a TCP header with its options", header_bytes)?;
        let options = Options::read(&bytes[HEADER_BYTES as usize..header_bytes])?;
        let payload = l4_bytes - header_bytes;
        let body = match options.mapping {
            Some(Mapping { message, message_length, offset, kind }) => {
                let len = u16::try_from(payload)
                    .map_err(|_| Malformed::SegmentLength { claimed: payload, left: 65_535 })?;
                Body::Data { message, message_length, offset, len, kind }
            }
            None if payload > 0 => return Err(Malformed::NoMapping(payload)),
            None => Body::Ack { count: options.count, sack: options.sack },
        };
        Ok((Self { seq, ack, window, flags, body }, ports))
    }
}

/// Returns the number of valid blocks, given the number that a header claims.
const fn sack_count(count: u8) -> usize {
    if count > 3 { 3 } else { count as usize }
}

struct Mapping {
    message: Id64,
    message_length: u32,
    offset: u32,
    kind: Kind,
}

#[derive(Default)]
struct Options {
    mapping: Option<Mapping>,
    count: u8,
    sack: SackBlocks,
}

impl Options {
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut options = Self::default();
        let mut rest = bytes;
        loop {
            let (kind, length) = match *rest {
                [] | [KIND_END, ..] => return Ok(options),
                [KIND_NOP, ..] => {
                    rest = &rest[1..];
                    continue;
                }
                [kind] => return Err(Malformed::TcpOption { kind, length: 0 }),
                [kind, length, ..] => (kind, length),
            };
            let bad_length = Malformed::TcpOption { kind, length };
            let Some((option, after)) = rest.split_at_checked(usize::from(length)) else {
                return Err(bad_length);
            };
            let Some(value) = option.get(2..) else {
                return Err(bad_length);
            };
            rest = after;
            match kind {
                KIND_SACK => options.read_sack(value).ok_or(bad_length)?,
                KIND_EXPERIMENT if value.starts_with(&MAPPING_EXPERIMENT.to_be_bytes()) => {
                    if length != MAPPING_LENGTH {
                        return Err(bad_length);
                    }
                    options.mapping = Some(Mapping::read(&value[2..])?);
                }
                _ => {}
            }
        }
    }

    /// `None` if the length is not that of one to four blocks (RFC 2018, section 3).
    fn read_sack(&mut self, value: &[u8]) -> Option<()> {
        let (blocks, rest) = value.as_chunks::<8>();
        if blocks.is_empty() || blocks.len() > 4 || !rest.is_empty() {
            return None;
        }
        self.count = sack_count(blocks.len() as u8) as u8;
        self.sack = SackBlocks::default();
        for (block, [a, b, c, d, e, f, g, h]) in self.sack.iter_mut().zip(blocks) {
            *block = (u32::from_be_bytes([*a, *b, *c, *d]), u32::from_be_bytes([*e, *f, *g, *h]));
        }
        Some(())
    }
}

impl Mapping {
    fn read(value: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("a message mapping", value);
        Ok(Self {
            message: Id64::new(reader.u64()?),
            message_length: reader.u32()?,
            offset: reader.u32()?,
            kind: match reader.u8()? {
                0 => Kind::OneWay,
                1 => Kind::Request,
                2 => Kind::Response,
                other => return Err(Malformed::MessageKind(other)),
            },
        })
    }
}

impl Codec for Header {
    fn ip_protocol(_: Layout) -> u8 {
        IP_PROTOCOL
    }

    fn header_bytes(&self, _: Layout) -> u32 {
        self.header_bytes()
    }

    fn encode(&self, _: Layout, ports: Ports, out: &mut Vec<u8>) {
        self.encode(ports, out);
    }

    fn decode(_: Layout, bytes: &[u8], l4_bytes: usize) -> Result<(Self, Ports), Malformed> {
        Self::decode(bytes, l4_bytes)
    }

    fn message_bytes(&self) -> Option<u32> {
        match self.body {
            // A stream has no message length.
            Body::Data { message_length: length @ 1.., .. } => Some(length),
            _ => None,
        }
    }

    fn exchange(&self) -> Option<Id64> {
        None
    }

    fn fmt_line(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write_tcp(f, self)
    }
}
