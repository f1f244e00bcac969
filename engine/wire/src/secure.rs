//! Datagrams between hosts that share a key: the handshake, and packets that are sealed with an AEAD.
//!
//! ```text
//! Ask, Offer, Accept (92 bytes)                      Sealed
//!  0: version, kind                                   0: version, kind
//!  2: ciphers of the asking host, cipher chosen       2: session
//!  4: sender's incarnation  8: receiver's, or 0       6: counter (64 bits)
//! 12: number of the asking host (64 bits)            14: sealed: IP protocol and bytes of the header, header, payload
//! 20: time of the offer (64 bits)                        then the AEAD's tag of 16 bytes
//! 28: Noise message of 48 bytes; zeros in Ask
//! 76: tag of bytes 0 to 75                           Lost (30 bytes): as Sealed up to 14, then a tag
//!                                                    Notice (4 bytes): version, kind, reason, 0
//! Resume (92 bytes): an Ask with these bytes in place of the zeros from 28 on
//! 28: ticket: time of issue (64 bits), random number (96 bits)
//! 48: milliseconds since its receipt (32 bits)  52: random number (64 bits)
//! 60: proof of the ticket's secret, a tag of bytes 0 to 59
//!
//! Sealed in place of a packet: 0, 1, a ticket of 20 bytes, its secret of 32 bytes; or 0, 2, and a message about the path
//! ```
//!
//! A sealed packet is exactly as long as the same packet with the plain envelope of [`crate::overlay`]: 14 clear bytes, 2 sealed
//! ones and the tag take the place of its 32. There are no host numbers, since these datagrams do not cross a switch of this
//! project, and no checksums, since the tag finds damage too. An *incarnation* is the overlay's. The format is
//! Rackweave's.

use core::ops::Range;

use rackweave_core::frame::IPV4;
use rackweave_core::{Header as _, HostId, Packet};

use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::path::PathMessage;
use crate::{Header, Ports, frame};

/// The first byte of these datagrams; the overlay's plain ones begin with another.
pub const VERSION: u8 = 0xa2;

/// Bytes of a Noise message of the handshake: a public key of X25519 and a tag.
pub const NOISE_BYTES: usize = 48;

/// Bytes of a tag by which a datagram of the handshake proves that its sender has the key.
pub const MAC_BYTES: usize = 16;

/// Bytes of the tag of a sealed packet.
pub const TAG_BYTES: usize = 16;

/// Bytes of [`Kind::Ask`], [`Kind::Offer`] and [`Kind::Accept`], of one length so that an answer is never longer than what it
/// answers.
pub const HANDSHAKE_BYTES: usize = 28 + NOISE_BYTES + MAC_BYTES;

/// Clear bytes before the sealed ones, which the tag covers too.
pub const CLEAR_BYTES: usize = 14;

/// Sealed bytes before the packet's header.
const INNER_BYTES: usize = 2;

/// Bytes of [`Kind::Lost`].
pub const LOST_BYTES: usize = CLEAR_BYTES + MAC_BYTES;

/// Bytes of a notice.
pub const NOTICE_BYTES: usize = 4;

// A sealed packet is as long as a plain one.
const _: () = assert!(CLEAR_BYTES + INNER_BYTES + TAG_BYTES == crate::overlay::BYTES as usize);

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A host asks for an offer.
    Ask,
    /// The first message of Noise, from the host that was asked.
    Offer,
    /// The second message of Noise, from the host that has asked.
    Accept,
    /// A sealed packet.
    Sealed,
    /// The sender does not have the session of a sealed packet.
    Lost,
    /// The sender cannot talk to the receiver; see [`Notice`].
    Notice,
    /// An ask with a ticket, behind which packets follow at once; see [`Resumption`].
    Resume,
}

impl Kind {
    const fn number(self) -> u8 {
        match self {
            Self::Ask => 0,
            Self::Offer => 1,
            Self::Accept => 2,
            Self::Sealed => 3,
            Self::Lost => 4,
            Self::Notice => 5,
            Self::Resume => 6,
        }
    }
}

/// Why a host does not talk to another one. Notices have no tag: whoever sends one has another key or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// The sender has no key, and the receiver has one.
    NoKey,
    /// The sender has a key, and the receiver has none.
    NeedsKey,
    /// The two have different keys.
    OtherKey,
}

/// A datagram of the handshake without its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// [`Kind::Ask`], [`Kind::Resume`], [`Kind::Offer`] or [`Kind::Accept`].
    pub kind: Kind,
    /// The ciphers that the asking host prefers, as bits, and [`KNOWN`] and [`RESUMED`].
    pub ciphers: u8,
    /// The cipher that the other host has chosen; 0 in an ask, and the ticket's in [`Kind::Resume`].
    pub cipher: u8,
    /// The sender's incarnation.
    pub from: u32,
    /// The receiver's incarnation; 0 in an ask.
    pub to: u32,
    /// A random number of the asking host, which the offer repeats.
    pub nonce: u64,
    /// The time of the offer by its sender's clock, which the acceptance repeats; 0 in an ask.
    pub stamp: u64,
    /// The Noise message; zeros in an ask, and a [`Resumption`] in [`Kind::Resume`].
    pub noise: [u8; NOISE_BYTES],
}

/// A bit of [`Handshake::ciphers`] in an offer, which the acceptance repeats: the host that makes the offer has state of the
/// incarnation that asks.
pub const KNOWN: u8 = 0x80;

/// Another such bit: the host that makes the offer has accepted the resumption with this [`Handshake::nonce`].
pub const RESUMED: u8 = 0x40;

/// Bytes of a [`Ticket`].
pub const TICKET_BYTES: usize = 20;

/// Bytes of a [`Kind::Resume`] that its proof covers.
pub const PROVEN_BYTES: usize = 28 + TICKET_BYTES + 12;

/// What a host has handed out, under an established session, for the other one to resume with. It is no secret: its secret is
/// a keyed hash of it that only the host which has issued it can compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The time of issue by the issuer's clock, in ticks of [`rackweave_core::Time`].
    pub stamp: u64,
    /// A random number.
    pub random: [u8; 12],
}

impl Ticket {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.stamp);
        out.extend_from_slice(&self.random);
    }

    /// The ticket with these bytes; any are one.
    #[must_use]
    pub fn decode(bytes: &[u8; TICKET_BYTES]) -> Self {
        let mut random = [0; 12];
        random.copy_from_slice(&bytes[8..]);
        Self { stamp: u64_at(bytes, 0), random }
    }
}

/// The number in eight bytes from an offset, or zero beyond the end.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u64::from_be_bytes(*it))
}

/// What a [`Kind::Resume`] has in place of a Noise message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// The ticket.
    pub ticket: Ticket,
    /// Milliseconds since its receipt by the sender's clock.
    pub age_ms: u32,
    /// A random number, besides [`Handshake::nonce`].
    pub random: u64,
    /// The tag of the datagram's first [`PROVEN_BYTES`] with the ticket's secret.
    pub proof: [u8; MAC_BYTES],
}

impl Resumption {
    /// Its bytes, in [`Handshake::noise`].
    #[must_use]
    pub fn to_bytes(&self) -> [u8; NOISE_BYTES] {
        let mut bytes = Vec::with_capacity(NOISE_BYTES);
        self.ticket.encode(&mut bytes);
        bytes.put_u32(self.age_ms);
        bytes.put_u64(self.random);
        bytes.extend_from_slice(&self.proof);
        let mut noise = [0; NOISE_BYTES];
        noise.copy_from_slice(&bytes);
        noise
    }

    /// The one with these bytes; any are one.
    #[must_use]
    pub fn from_bytes(noise: &[u8; NOISE_BYTES]) -> Self {
        let (mut ticket, mut proof) = ([0; TICKET_BYTES], [0; MAC_BYTES]);
        ticket.copy_from_slice(&noise[..TICKET_BYTES]);
        proof.copy_from_slice(&noise[NOISE_BYTES - MAC_BYTES..]);
        Self {
            ticket: Ticket::decode(&ticket),
            age_ms: (u64_at(noise, TICKET_BYTES) >> 32) as u32,
            random: u64_at(noise, TICKET_BYTES + 4),
            proof,
        }
    }
}

impl Handshake {
    /// Appends the datagram without its tag, which is that of the bytes appended here.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(VERSION);
        out.put_u8(self.kind.number());
        out.put_u8(self.ciphers);
        out.put_u8(self.cipher);
        out.put_u32(self.from);
        out.put_u32(self.to);
        out.put_u64(self.nonce);
        out.put_u64(self.stamp);
        out.extend_from_slice(&self.noise);
    }
}

/// The clear fields of [`Kind::Sealed`] and [`Kind::Lost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clear {
    /// The session that the packet belongs to.
    pub session: u32,
    /// The number of the packet in its direction of the session.
    pub counter: u64,
}

/// A datagram whose tag was not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// A datagram of the handshake.
    Handshake(Handshake),
    /// A sealed packet; what is sealed, with its tag, begins at [`CLEAR_BYTES`].
    Sealed(Clear),
    /// The answer to a sealed packet of an unknown session.
    Lost(Clear),
    /// A notice.
    Notice(Notice),
}

/// Whether a datagram is one of these, by its first byte.
#[must_use]
pub fn is_secure(bytes: &[u8]) -> bool {
    bytes.first() == Some(&VERSION)
}

/// Appends the clear fields of a sealed packet.
pub fn encode_sealed(clear: Clear, out: &mut Vec<u8>) {
    encode_clear(Kind::Sealed, clear, out);
}

/// Appends a [`Kind::Lost`] without its tag.
pub fn encode_lost(clear: Clear, out: &mut Vec<u8>) {
    encode_clear(Kind::Lost, clear, out);
}

fn encode_clear(kind: Kind, clear: Clear, out: &mut Vec<u8>) {
    out.put_u8(VERSION);
    out.put_u8(kind.number());
    out.put_u32(clear.session);
    out.put_u64(clear.counter);
}

/// Appends a notice.
pub fn encode_notice(notice: Notice, out: &mut Vec<u8>) {
    out.put_u8(VERSION);
    out.put_u8(Kind::Notice.number());
    out.put_u8(match notice {
        Notice::NoKey => 0,
        Notice::NeedsKey => 1,
        Notice::OtherKey => 2,
    });
    out.put_u8(0);
}

/// Decodes a datagram. Tags are not checked.
///
/// # Errors
/// See [`Malformed`].
pub fn decode(bytes: &[u8]) -> Result<Datagram, Malformed> {
    let mut reader = Reader::new("a datagram between hosts with a key", bytes);
    reader.need("a datagram between hosts with a key", NOTICE_BYTES)?;
    match reader.u8()? {
        VERSION => {}
        other => return Err(Malformed::OverlayVersion(other)),
    }
    let kind = match reader.u8()? {
        0 => Kind::Ask,
        1 => Kind::Offer,
        2 => Kind::Accept,
        3 => Kind::Sealed,
        4 => Kind::Lost,
        5 => Kind::Notice,
        6 => Kind::Resume,
        other => return Err(Malformed::OverlayKind(other)),
    };
    let exactly = |length: usize| match bytes.len() == length {
        true => Ok(()),
        false => Err(Malformed::SegmentLength { claimed: length, left: bytes.len() }),
    };
    match kind {
        Kind::Ask | Kind::Offer | Kind::Accept | Kind::Resume => {
            exactly(HANDSHAKE_BYTES)?;
            let (ciphers, cipher) = (reader.u8()?, reader.u8()?);
            let (from, to) = (reader.u32()?, reader.u32()?);
            let (nonce, stamp) = (reader.u64()?, reader.u64()?);
            let mut noise = [0; NOISE_BYTES];
            noise.copy_from_slice(&bytes[28..28 + NOISE_BYTES]);
            let read = Handshake { kind, ciphers, cipher, from, to, nonce, stamp, noise };
            Ok(Datagram::Handshake(read))
        }
        Kind::Sealed | Kind::Lost => {
            if kind == Kind::Lost {
                exactly(LOST_BYTES)?;
            }
            reader
                .need("a sealed packet", CLEAR_BYTES + INNER_BYTES + TAG_BYTES)
                .or_else(|error| if kind == Kind::Lost { Ok(()) } else { Err(error) })?;
            let clear = Clear { session: reader.u32()?, counter: reader.u64()? };
            Ok(match kind {
                Kind::Sealed => Datagram::Sealed(clear),
                _ => Datagram::Lost(clear),
            })
        }
        Kind::Notice => {
            exactly(NOTICE_BYTES)?;
            match reader.u8()? {
                0 => Ok(Datagram::Notice(Notice::NoKey)),
                1 => Ok(Datagram::Notice(Notice::NeedsKey)),
                2 => Ok(Datagram::Notice(Notice::OtherKey)),
                other => Err(Malformed::OverlayKind(other)),
            }
        }
    }
}

/// Appends a packet to be sealed, without its payload, which follows.
pub fn encode_inner(packet: &Packet<Header>, layout: Layout, out: &mut Vec<u8>) {
    out.put_u8(packet.header.ip_protocol(layout));
    out.put_u8(packet.header.header_bytes(layout) as u8);
    packet.header.encode(layout, Ports::of_packet(packet), out);
}

/// A packet that was sealed, and the position of its payload.
pub type Inner = (Packet<Header>, Range<usize>);

/// Appends what is sealed when there is no packet.
pub fn encode_empty(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; INNER_BYTES]);
}

/// Sealed bytes with a ticket.
const GRANT_BYTES: usize = INNER_BYTES + TICKET_BYTES + SECRET_BYTES;

/// Bytes of a ticket's secret.
pub const SECRET_BYTES: usize = 32;

/// The second byte of sealed bytes that hold a ticket; the first one is 0, which no transport has as its IP protocol.
const GRANT: u8 = 1;

/// Appends what is sealed when a host hands out a ticket.
pub fn encode_grant(ticket: &Ticket, secret: &[u8; SECRET_BYTES], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, GRANT]);
    ticket.encode(out);
    out.extend_from_slice(secret);
}

/// Decodes a ticket with its secret; `None` if something else was sealed.
#[must_use]
pub fn decode_grant(bytes: &[u8]) -> Option<(Ticket, [u8; SECRET_BYTES])> {
    let bytes: &[u8; GRANT_BYTES] = bytes.try_into().ok()?;
    let (mut ticket, mut secret) = ([0; TICKET_BYTES], [0; SECRET_BYTES]);
    ticket.copy_from_slice(&bytes[INNER_BYTES..INNER_BYTES + TICKET_BYTES]);
    secret.copy_from_slice(&bytes[INNER_BYTES + TICKET_BYTES..]);
    (bytes[..INNER_BYTES] == [0, GRANT]).then(|| (Ticket::decode(&ticket), secret))
}

/// The second byte of sealed bytes that hold a [`PathMessage`].
const PATH: u8 = 2;

/// Appends what is sealed of a message about the path, up to its head's end.
pub fn encode_path(message: &PathMessage, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, PATH]);
    message.encode(out);
}

/// Decodes a message about the path with the range of what follows its head; `None` if something else was sealed.
#[must_use]
pub fn decode_path(bytes: &[u8]) -> Option<Result<(PathMessage, Range<usize>), Malformed>> {
    let message = bytes.strip_prefix(&[0, PATH])?;
    Some(
        PathMessage::decode(message)
            .map(|(message, rest)| (message, rest.start + INNER_BYTES..rest.end + INNER_BYTES)),
    )
}

/// Decodes what was sealed in a datagram of `datagram_bytes` with this traffic class. Source and destination are zero.
/// `None`: there is no packet. The range is that of the payload.
///
/// Of the traffic class only priority and congestion count: no switch may have trimmed a sealed packet, and who marks it so
/// is on the path and has changed it.
///
/// # Errors
/// See [`Malformed`].
pub fn decode_inner(
    bytes: &[u8],
    datagram_bytes: usize,
    traffic_class: u8,
) -> Result<Option<Inner>, Malformed> {
    let mut reader = Reader::new("a sealed packet", bytes);
    let (protocol, header_bytes) = (reader.u8()?, usize::from(reader.u8()?));
    if protocol == 0 && header_bytes == 0 {
        return match bytes.len() - INNER_BYTES {
            0 => Ok(None),
            left => Err(Malformed::SegmentLength { claimed: 0, left }),
        };
    }
    let header_end = INNER_BYTES + header_bytes;
    reader.need("the header of a sealed packet", header_end)?;
    let l4_bytes = bytes.len() - INNER_BYTES;
    let (header, ports) = Header::decode(protocol, &bytes[INNER_BYTES..header_end], l4_bytes)?;
    let payload = header_end..bytes.len();
    if header.payload_bytes() as usize != payload.len() {
        let claimed = header.payload_bytes() as usize;
        return Err(Malformed::SegmentLength { claimed, left: payload.len() });
    }
    let l3_bytes = (IPV4 + crate::datagram::UDP_BYTES) as usize + datagram_bytes;
    if l3_bytes > frame::MAX_IP_BYTES as usize {
        return Err(Malformed::TooLong(l3_bytes));
    }
    let packet = Packet::new(HostId(0), HostId(0), l3_bytes as u32, header)
        .with_ports(ports.source, ports.destination);
    const PRIORITY_AND_ECN: u8 = 0b1110_0011;
    Ok(Some((frame::with_traffic_class(packet, traffic_class & PRIORITY_AND_ECN), payload)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Id64, homa};

    fn handshake(kind: Kind) -> Handshake {
        Handshake {
            kind,
            ciphers: 3,
            cipher: 1,
            from: 0x0102_0304,
            to: 5,
            nonce: 6,
            stamp: 7,
            noise: [9; NOISE_BYTES],
        }
    }

    #[test]
    fn each_kind_is_decoded_as_it_was_encoded() {
        for kind in [Kind::Ask, Kind::Offer, Kind::Accept, Kind::Resume] {
            let mut bytes = Vec::new();
            handshake(kind).encode(&mut bytes);
            bytes.extend([0; MAC_BYTES]);
            assert_eq!(bytes.len(), HANDSHAKE_BYTES);
            assert_eq!(bytes[..8], [0xa2, kind.number(), 3, 1, 1, 2, 3, 4]);
            assert_eq!(decode(&bytes), Ok(Datagram::Handshake(handshake(kind))));
        }
        let clear = Clear { session: 8, counter: 9 };
        let mut bytes = Vec::new();
        encode_lost(clear, &mut bytes);
        bytes.extend([0; MAC_BYTES]);
        assert_eq!(decode(&bytes), Ok(Datagram::Lost(clear)));
        let mut bytes = Vec::new();
        encode_sealed(clear, &mut bytes);
        bytes.extend([0; INNER_BYTES + TAG_BYTES]);
        assert_eq!(decode(&bytes), Ok(Datagram::Sealed(clear)));
        for notice in [Notice::NoKey, Notice::NeedsKey, Notice::OtherKey] {
            let mut bytes = Vec::new();
            encode_notice(notice, &mut bytes);
            assert_eq!(decode(&bytes), Ok(Datagram::Notice(notice)));
        }
    }

    #[test]
    fn other_lengths_and_numbers_are_refused() {
        let mut bytes = Vec::new();
        handshake(Kind::Ask).encode(&mut bytes);
        bytes.extend([0; MAC_BYTES]);
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{length}");
        }
        bytes.push(0);
        assert!(decode(&bytes).is_err());
        for kind in 7..=255 {
            assert_eq!(decode(&[VERSION, kind, 0, 0]), Err(Malformed::OverlayKind(kind)));
        }
        assert!(decode(&[VERSION, 5, 3, 0]).is_err());
        let mut sealed = Vec::new();
        encode_sealed(Clear { session: 1, counter: 2 }, &mut sealed);
        for length in 0..CLEAR_BYTES + INNER_BYTES + TAG_BYTES {
            sealed.resize(length, 3);
            assert!(decode(&sealed).is_err(), "{length}");
        }
    }

    #[test]
    fn a_ticket_and_its_use_are_decoded_as_they_were_encoded() {
        let ticket = Ticket { stamp: 0x0102_0304_0506_0708, random: [10; 12] };
        let resumption =
            Resumption { ticket, age_ms: 11, random: u64::MAX - 1, proof: [12; MAC_BYTES] };
        assert_eq!(Resumption::from_bytes(&resumption.to_bytes()), resumption);
        let mut bytes = Vec::new();
        encode_grant(&ticket, &[13; SECRET_BYTES], &mut bytes);
        assert_eq!(decode_grant(&bytes), Some((ticket, [13; SECRET_BYTES])));
        assert!(decode_inner(&bytes, 100, 0).is_err(), "a grant is no packet");
        bytes.push(0);
        assert_eq!(decode_grant(&bytes), None);
        bytes.truncate(GRANT_BYTES - 1);
        assert_eq!(decode_grant(&bytes), None);
        assert_eq!(decode_grant(&[0; GRANT_BYTES]), None);
    }

    #[test]
    fn a_packet_is_as_long_as_a_plain_one_and_arrives_as_it_was_sent() {
        let body = homa::Body::Data {
            message_length: 9000,
            incoming: 9000,
            ack_id: Id64::new(0),
            ack_port: 0,
            cutoff_version: 0,
            retransmit: false,
            offset: 1424,
            segment_length: 5,
            stamps: homa::DataStamps::default(),
        };
        let header = homa::Header { id: Id64::new(8), one_way: false, body };
        let l3_bytes = IPV4 + crate::overlay::OVERHEAD + homa::size::DATA_TALK + 5;
        let packet = Packet::new(HostId(0), HostId(0), l3_bytes, header.into())
            .with_ports(5, 6)
            .with_priority(6);
        let mut plain = Vec::new();
        crate::overlay::encode(&packet, Layout::Talk, 0, 0, 0, &mut plain);
        let mut inner = Vec::new();
        encode_inner(&packet, Layout::Talk, &mut inner);
        assert_eq!(CLEAR_BYTES + inner.len() + TAG_BYTES, plain.len());
        inner.extend_from_slice(b"bytes");
        let datagram_bytes = CLEAR_BYTES + inner.len() + TAG_BYTES;
        // Whatever a switch writes about trimming does not count.
        let class = frame::traffic_class(&packet) | 0b0001_1100;
        let (read, payload) = decode_inner(&inner, datagram_bytes, class).unwrap().unwrap();
        assert_eq!((read, &inner[payload]), (packet, &b"bytes"[..]));
        for length in 0..inner.len() {
            assert!(decode_inner(&inner[..length], datagram_bytes, class).is_err(), "{length}");
        }
        let mut empty = Vec::new();
        encode_empty(&mut empty);
        assert_eq!(decode_inner(&empty, 32, 0), Ok(None));
        empty.push(0);
        assert!(decode_inner(&empty, 33, 0).is_err());
    }
}
