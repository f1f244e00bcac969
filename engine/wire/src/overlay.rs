//! A packet inside a UDP datagram: the protocol of hosts and the user-space switch on Linux.
//!
//! ```text
//!  0: version, kind, IP protocol of the header, bytes of the header
//!  4: source host            8: destination host
//! 12: sender's incarnation  16: receiver's incarnation, if the sender has it, else 0
//! 20: bytes of payload      22: zero
//! 24: CRC-32C of bytes 0 to 23, 28 to 31 and of the header      28: CRC-32C of the payload
//! 32: the header, then the payload
//! ```
//!
//! Priority, ECN codepoint and the flags of switches are in the datagram's own IP header, as in
//! [`frame::traffic_class`]. Because header and payload have separate checksums, a switch can trim the payload
//! without reading it; because they are end to end, corruption inside a switch is detected.
//!
//! [`Kind::Group`] carries a packet of a group system, which has checks of its own: it follows the envelope unchanged,
//! counts as payload, and the payload's check is zero. Its destination is a host or one of the system's own addresses
//! ([`crate::orca::TO_GROUP`]); incarnations are zero. Each system has a number: [`crate::orca::KIND`].
//!
//! An *incarnation* is a random number for each time that a host starts; it may differ between its peers. Datagrams
//! without the receiver's incarnation are ignored: a sender obtains it only by a reply to its own address
//! ([`Kind::Hello`]), which excludes forged sources.

use core::ops::{Range, RangeInclusive};

use crc_fast::{CrcAlgorithm, Digest};
use rackweave_core::frame::IPV4;
use rackweave_core::{Header as _, HostId, Packet, Rank};

use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::path::{HEAD_BYTES, PathMessage};
use crate::{Header, Ports, frame};

/// Length of the envelope, which precedes the header.
pub const BYTES: u32 = 32;

/// Bytes that a datagram adds to a packet: UDP's header and the envelope.
pub const OVERHEAD: u32 = crate::datagram::UDP_BYTES + BYTES;

const VERSION: u8 = 0xa1;
const CHECK_AT: usize = 24;

/// The number of [`Kind::Path`].
const PATH: u8 = 16;

/// Numbers of group systems in [`Kind::Group`]; the others are the other kinds'.
pub const GROUP_KINDS: RangeInclusive<u8> = 2..=15;

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A packet of a transport.
    Packet,
    /// An announcement of the sender's incarnation, with the receiver's if the sender has it. A host replies to one
    /// without its own by one that has it.
    Hello,
    /// A packet of the group system with this number, one of [`GROUP_KINDS`].
    Group(u8),
    /// A [`PathMessage`]. Its head is the header, and what follows the head is the payload.
    Path,
}

/// The envelope: the fields before the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The kind of the datagram.
    pub kind: Kind,
    /// The sending host.
    pub src: HostId,
    /// The destination host.
    pub dst: HostId,
    /// The sender's incarnation.
    pub from: u32,
    /// The receiver's incarnation, if the sender has it, else 0.
    pub to: u32,
}

/// A decoded datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The fields before the header.
    pub envelope: Envelope,
    /// The packet; `None` in a [`Kind::Hello`].
    pub packet: Option<Packet<Header>>,
    /// The position of the payload in the datagram; empty if a switch has trimmed it.
    pub payload: Range<usize>,
}

/// The fields of a datagram that a switch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// The fields before the header.
    pub envelope: Envelope,
    /// The packet's ports.
    pub ports: Ports,
    /// The path that its sender has chosen.
    pub path: Option<u16>,
    /// Its rank in queues that are in the order of remaining size.
    pub rank: Option<Rank>,
    /// Length of the datagram after trimming.
    pub header_end: usize,
}

/// CRC-32C (Castagnoli), continued from an earlier value; the first is 0.
#[must_use]
pub fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    // The digest's state is the value without the final inversion.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    digest.finalize() as u32
}

/// Appends a packet's datagram without its payload, whose [`crc32c()`] is `payload_check`. Source and destination are
/// the packet's.
pub fn encode(
    packet: &Packet<Header>,
    layout: Layout,
    from: u32,
    to: u32,
    payload_check: u32,
    out: &mut Vec<u8>,
) {
    let header = &packet.header;
    let envelope = Envelope { kind: Kind::Packet, src: packet.src, dst: packet.dst, from, to };
    let start = out.len();
    let header_bytes = header.header_bytes(layout) as u8;
    envelope.put(header.ip_protocol(layout), header_bytes, header.payload_bytes() as u16, out);
    out.put_u32(payload_check);
    header.encode(layout, Ports::of_packet(packet), out);
    seal(&mut out[start..]);
}

/// Appends a [`Kind::Hello`] datagram.
pub fn encode_hello(src: HostId, dst: HostId, from: u32, to: u32, out: &mut Vec<u8>) {
    let start = out.len();
    Envelope { kind: Kind::Hello, src, dst, from, to }.put(0, 0, 0, out);
    out.put_u32(0);
    seal(&mut out[start..]);
}

/// Appends the envelope of a group system's packet of `packet_bytes` bytes. `system` is one of [`GROUP_KINDS`].
pub fn encode_group(system: u8, src: HostId, dst: HostId, packet_bytes: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&group_envelope(system, src, dst, packet_bytes));
}

/// What [`encode_group`] appends.
#[must_use]
pub fn group_envelope(
    system: u8,
    src: HostId,
    dst: HostId,
    packet_bytes: u16,
) -> [u8; BYTES as usize] {
    debug_assert!(GROUP_KINDS.contains(&system), "{system} names no group system");
    let mut bytes = [0; BYTES as usize];
    (bytes[0], bytes[1]) = (VERSION, Kind::Group(system).number());
    bytes[4..8].copy_from_slice(&src.0.to_be_bytes());
    bytes[8..12].copy_from_slice(&dst.0.to_be_bytes());
    bytes[20..22].copy_from_slice(&packet_bytes.to_be_bytes());
    seal(&mut bytes);
    bytes
}

/// Decodes the envelope of a group system's packet, which begins at [`BYTES`] and is not decoded.
///
/// # Errors
/// [`Malformed`], also if it is another kind of datagram.
pub fn decode_group(bytes: &[u8]) -> Result<Envelope, Malformed> {
    let opened = Opened::read(bytes)?;
    if !matches!(opened.envelope.kind, Kind::Group(_)) {
        return Err(Malformed::OverlayKind(opened.envelope.kind.number()));
    }
    opened.check_group(bytes)?;
    Ok(opened.envelope)
}

/// Replaces the destination in a datagram with a group system's packet, as a switch does in copies. Other datagrams
/// are not changed.
pub fn readdress_group(bytes: &mut [u8], dst: HostId) {
    if decode_group(bytes).is_ok() {
        bytes[8..12].copy_from_slice(&dst.0.to_be_bytes());
        seal(&mut bytes[..BYTES as usize]);
    }
}

/// Decodes a datagram that was received with this traffic class.
///
/// # Errors
/// [`Malformed`], also if it is corrupt, a group system's ([`decode_group`]), or about the path ([`decode_path`]).
pub fn decode(bytes: &[u8], traffic_class: u8) -> Result<Datagram, Malformed> {
    let opened = Opened::read(bytes)?;
    let Opened { envelope, protocol, header_end, payload_bytes, payload_check } = opened;
    let payload = header_end..bytes.len();
    if envelope.kind == Kind::Hello {
        return match payload.len() {
            0 => Ok(Datagram { envelope, packet: None, payload }),
            left => Err(Malformed::SegmentLength { claimed: 0, left }),
        };
    }
    if matches!(envelope.kind, Kind::Group(_) | Kind::Path) {
        return Err(Malformed::OverlayKind(envelope.kind.number()));
    }
    let l4_bytes = header_end - BYTES as usize + payload_bytes;
    let (header, ports) = Header::decode(protocol, &bytes[BYTES as usize..header_end], l4_bytes)?;
    let l3_bytes = (IPV4 + crate::datagram::UDP_BYTES) as usize + bytes.len();
    if l3_bytes > frame::MAX_IP_BYTES as usize {
        return Err(Malformed::TooLong(l3_bytes));
    }
    let packet = Packet::new(envelope.src, envelope.dst, l3_bytes as u32, header)
        .with_ports(ports.source, ports.destination);
    let packet = frame::with_traffic_class(packet, traffic_class);
    if header.payload_bytes() as usize != payload_bytes {
        let claimed = header.payload_bytes() as usize;
        return Err(Malformed::SegmentLength { claimed, left: payload_bytes });
    }
    let travels = if packet.is_trimmed() { 0 } else { payload_bytes };
    if payload.len() != travels {
        return Err(Malformed::SegmentLength { claimed: travels, left: payload.len() });
    }
    if travels > 0 && crc32c(0, &bytes[payload.clone()]) != payload_check {
        return Err(Malformed::Damaged("the payload"));
    }
    Ok(Datagram { envelope, packet: Some(packet), payload })
}

/// Appends a [`Kind::Path`] datagram: a message about the path with what follows its head. `envelope` has the other fields.
pub fn encode_path(envelope: Envelope, message: &PathMessage, rest: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let envelope = Envelope { kind: Kind::Path, ..envelope };
    envelope.put(0, HEAD_BYTES as u8, rest.len() as u16, out);
    out.put_u32(crc32c(0, rest));
    message.encode(out);
    seal(&mut out[start..]);
    out.extend_from_slice(rest);
}

/// Whether a datagram may be of [`Kind::Path`], by its first bytes.
#[must_use]
pub fn is_path(bytes: &[u8]) -> bool {
    bytes.starts_with(&[VERSION, PATH])
}

/// Decodes a [`Kind::Path`] datagram. The range is that of what follows the message's head.
///
/// # Errors
/// [`Malformed`], also if it is of another kind.
pub fn decode_path(bytes: &[u8]) -> Result<(Envelope, PathMessage, Range<usize>), Malformed> {
    let opened = Opened::read(bytes)?;
    let Opened { envelope, header_end, payload_bytes, payload_check, .. } = opened;
    if envelope.kind != Kind::Path || header_end != BYTES as usize + HEAD_BYTES {
        return Err(Malformed::OverlayKind(envelope.kind.number()));
    }
    let payload = header_end..bytes.len();
    if payload.len() != payload_bytes {
        return Err(Malformed::SegmentLength { claimed: payload_bytes, left: payload.len() });
    }
    if crc32c(0, &bytes[payload.clone()]) != payload_check {
        return Err(Malformed::Damaged("the payload"));
    }
    let (message, _) = PathMessage::decode(&bytes[BYTES as usize..])?;
    Ok((envelope, message, payload))
}

/// Decodes the header of a packet's datagram; `bytes` need hold no more of it. `None`: it is of another kind.
///
/// # Errors
/// See [`Malformed`].
pub fn decode_header(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let opened = Opened::read(bytes)?;
    if opened.envelope.kind != Kind::Packet {
        return Ok(None);
    }
    let header = &bytes[BYTES as usize..opened.header_end];
    let l4_bytes = header.len() + opened.payload_bytes;
    Header::decode(opened.protocol, header, l4_bytes).map(|(header, _)| Some(header))
}

/// Decodes the fields that a switch needs. The payload is not read.
///
/// # Errors
/// See [`Malformed`].
pub fn glance(bytes: &[u8]) -> Result<Glance, Malformed> {
    let opened = Opened::read(bytes)?;
    let Opened { envelope, protocol, header_end, payload_bytes, .. } = opened;
    let header_bytes = &bytes[BYTES as usize..header_end];
    let (mut ports, mut path, mut rank) = (Ports::default(), None, None);
    if envelope.kind == Kind::Packet {
        let l4_bytes = header_bytes.len() + payload_bytes;
        let (header, its_ports) = Header::decode(protocol, header_bytes, l4_bytes)?;
        (ports, path, rank) = (its_ports, header.path(), header.rank());
    }
    if let Kind::Group(_) = envelope.kind {
        opened.check_group(bytes)?;
    }
    Ok(Glance { envelope, ports, path, rank, header_end })
}

/// Exchanges source and destination of a trimmed datagram, which is returned to its sender. Other bytes are not
/// changed.
pub fn return_to_sender(bytes: &mut [u8]) {
    if Opened::read(bytes).is_ok() {
        let (src, rest) = bytes[4..].split_at_mut(4);
        src.swap_with_slice(&mut rest[..4]);
        let (from, rest) = bytes[12..].split_at_mut(4);
        from.swap_with_slice(&mut rest[..4]);
        seal(bytes);
    }
}

/// Writes the checksum of a datagram's header.
fn seal(bytes: &mut [u8]) {
    let check = header_check(bytes).to_be_bytes();
    bytes[CHECK_AT..CHECK_AT + 4].copy_from_slice(&check);
}

/// The checksum of a header; `bytes` end with it.
fn header_check(bytes: &[u8]) -> u32 {
    crc32c(crc32c(0, &bytes[..CHECK_AT]), &bytes[CHECK_AT + 4..])
}

impl Envelope {
    /// Appends all fields but the payload's checksum, with a zero in place of the header's.
    fn put(&self, protocol: u8, header_bytes: u8, payload_bytes: u16, out: &mut Vec<u8>) {
        out.put_u8(VERSION);
        out.put_u8(self.kind.number());
        out.put_u8(protocol);
        out.put_u8(header_bytes);
        out.put_u32(self.src.0);
        out.put_u32(self.dst.0);
        out.put_u32(self.from);
        out.put_u32(self.to);
        out.put_u16(payload_bytes);
        out.put_u16(0);
        out.put_u32(0);
    }
}

impl Kind {
    const fn number(self) -> u8 {
        match self {
            Self::Packet => 0,
            Self::Hello => 1,
            Self::Group(system) => system,
            Self::Path => PATH,
        }
    }
}

struct Opened {
    envelope: Envelope,
    protocol: u8,
    header_end: usize,
    payload_bytes: usize,
    payload_check: u32,
}

impl Opened {
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("an overlay header", bytes);
        reader.need("an overlay header", BYTES as usize)?;
        match reader.u8()? {
            VERSION => {}
            other => return Err(Malformed::OverlayVersion(other)),
        }
        let kind = match reader.u8()? {
            0 => Kind::Packet,
            1 => Kind::Hello,
            PATH => Kind::Path,
            system if GROUP_KINDS.contains(&system) => Kind::Group(system),
            other => return Err(Malformed::OverlayKind(other)),
        };
        let protocol = reader.u8()?;
        let header_end = BYTES as usize + usize::from(reader.u8()?);
        let (src, dst) = (HostId(reader.u32()?), HostId(reader.u32()?));
        let (from, to) = (reader.u32()?, reader.u32()?);
        let payload_bytes = usize::from(reader.u16()?);
        reader.skip::<2>()?;
        let check = reader.u32()?;
        let payload_check = reader.u32()?;
        reader.need("an overlay packet's header", header_end)?;
        if header_check(&bytes[..header_end]) != check {
            return Err(Malformed::Damaged("the header"));
        }
        let envelope = Envelope { kind, src, dst, from, to };
        Ok(Self { envelope, protocol, header_end, payload_bytes, payload_check })
    }

    /// Checks that the envelope is followed by exactly one packet of a group system.
    const fn check_group(&self, bytes: &[u8]) -> Result<(), Malformed> {
        let left = bytes.len() - BYTES as usize;
        if self.header_end != BYTES as usize || self.payload_bytes != left {
            return Err(Malformed::SegmentLength { claimed: self.payload_bytes, left });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Id64, homa};

    const PAYLOAD: &[u8] = b"a piece of a message";

    fn data() -> Packet<Header> {
        let body = homa::Body::Data {
            message_length: 9000,
            incoming: 9000,
            ack_id: Id64::new(0),
            ack_port: 0,
            cutoff_version: 0,
            retransmit: false,
            offset: 1424,
            segment_length: PAYLOAD.len() as u16,
            stamps: homa::DataStamps::default(),
        };
        let header = homa::Header { id: Id64::new(8), one_way: false, body };
        let l3_bytes = IPV4 + OVERHEAD + homa::size::DATA_TALK + PAYLOAD.len() as u32;
        Packet::new(HostId(3), HostId(4), l3_bytes, header.into())
            .with_ports(5, 6)
            .with_priority(6)
            .trimmable()
    }

    fn datagram() -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&data(), Layout::Talk, 7, 8, crc32c(0, PAYLOAD), &mut bytes);
        bytes.extend_from_slice(PAYLOAD);
        bytes
    }

    #[test]
    fn a_packet_arrives_as_it_was_sent() {
        let (bytes, class) = (datagram(), frame::traffic_class(&data()));
        let read = decode(&bytes, class).unwrap();
        assert_eq!(read.packet, Some(data()));
        assert_eq!(&bytes[read.payload], PAYLOAD);
        assert_eq!((read.envelope.from, read.envelope.to), (7, 8));
        let glance = glance(&bytes).unwrap();
        assert_eq!((glance.envelope, glance.ports), (read.envelope, Ports::of_packet(&data())));
        assert_eq!(glance.header_end, bytes.len() - PAYLOAD.len());
    }

    #[test]
    fn any_damage_is_found() {
        let (good, class) = (datagram(), frame::traffic_class(&data()));
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes, class).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(decode(&good[..len], class).is_err(), "cut to {len}");
        }
        let long = [good.as_slice(), &[0]].concat();
        assert!(decode(&long, class).is_err());
    }

    #[test]
    fn trimmed_and_returned_to_sender() {
        let mut bytes = datagram();
        bytes.truncate(glance(&bytes).unwrap().header_end);
        let cut = data().trimmed(false);
        let read = decode(&bytes, frame::traffic_class(&cut)).unwrap().packet.unwrap();
        assert!(read.is_trimmed() && read.header == cut.header && read.payload().is_none());
        return_to_sender(&mut bytes);
        let read = decode(&bytes, frame::traffic_class(&data().trimmed(true))).unwrap();
        let packet = read.packet.unwrap();
        assert!(packet.is_returned());
        assert_eq!((packet.src, packet.dst), (HostId(4), HostId(3)));
        assert_eq!((read.envelope.from, read.envelope.to), (8, 7));
    }

    #[test]
    fn a_hello() {
        let mut bytes = Vec::new();
        encode_hello(HostId(1), HostId(2), 9, 0, &mut bytes);
        let read = decode(&bytes, 0).unwrap();
        let envelope =
            Envelope { kind: Kind::Hello, src: HostId(1), dst: HostId(2), from: 9, to: 0 };
        assert_eq!((read.envelope, read.packet), (envelope, None));
        bytes.push(0);
        assert!(decode(&bytes, 0).is_err(), "a hello carries nothing");
    }

    #[test]
    fn a_packet_of_a_group_system() {
        let mut bytes = Vec::new();
        encode_group(crate::orca::KIND, HostId(1), crate::orca::TO_GROUP, 5, &mut bytes);
        bytes.extend_from_slice(b"bytes");
        let envelope = Envelope {
            kind: Kind::Group(crate::orca::KIND),
            src: HostId(1),
            dst: crate::orca::TO_GROUP,
            from: 0,
            to: 0,
        };
        assert_eq!(decode_group(&bytes), Ok(envelope));
        assert_eq!(glance(&bytes).unwrap().header_end, BYTES as usize);
        assert!(decode(&bytes, 0).is_err(), "no packet of a transport");
        assert!(decode_group(&datagram()).is_err());
        for bit in 0..BYTES as usize * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_group(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(decode_group(&bytes[..len]).is_err() && glance(&bytes[..len]).is_err());
        }
        readdress_group(&mut bytes, HostId(9));
        assert_eq!(decode_group(&bytes).map(|envelope| envelope.dst), Ok(HostId(9)));
        let before = datagram();
        let mut after = before.clone();
        readdress_group(&mut after, HostId(9));
        assert_eq!(before, after);
        for kind in [PATH + 1, 255] {
            bytes[1] = kind;
            seal(&mut bytes[..BYTES as usize]);
            assert_eq!(glance(&bytes), Err(Malformed::OverlayKind(kind)));
        }
    }
}
