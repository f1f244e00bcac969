//! A packet as an Ethernet frame with IPv4, headers only.
//!
//! - Host `n` has the IP address 10.x.y.z with `n` in its last 24 bits, and the locally
//!   administered MAC address 02:00 with `n` in its last 32.
//! - Switch `n` has an IP address too, for packets to and from its program: 172.16.0.0 plus `n`, which is below 2^20. Its
//!   MAC address has its [`HostId`], 2^31 plus `n`, in the last 32 bits.
//! - The DSCP's high three bits are the packet's priority (the class selectors of RFC 2474). Its low three bits are
//!   for switches: sprayed (1), trimmable (2), trimmed (4), returned to its sender (2 and 4).
//! - A trimmed packet keeps IP's total length, from which the number of removed bytes follows.
//! - A TCP segment's message mapping makes the frame 24 bytes longer than the simulated packet,
//!   see [`tcp::MAPPING_BYTES`].
//!
//! A frame is as long as its headers are, also where a transport's profile counts other header sizes on the simulated
//! link ([`Packet::wire_bytes`]); [`decode`] computes the size from the frame.

use rackweave_core::frame::{ETHERNET_FRAME, ETHERNET_GAP, IPV4, MIN_PAYLOAD};
use rackweave_core::{Destination, Ecn, Header as _, HostId, Packet};

use crate::homa::Layout;
use crate::malformed::{Malformed, Put, Reader};
use crate::{Header, Ports, frisbee, orca, tcp};

/// An Ethernet header: addresses and type.
pub const ETHERNET_HEADER: u32 = 14;

/// The longest frame header: Ethernet, IPv4 and Homa's ACK.
pub const MAX_HEADER_BYTES: u32 = ETHERNET_HEADER + IPV4 + crate::homa::size::MAX_HEADER;

/// The longest IP packet whose size on a link fits a [`Packet`].
pub const MAX_IP_BYTES: u32 = u16::MAX as u32 - ETHERNET_FRAME - ETHERNET_GAP;

const ETHERTYPE_IPV4: u16 = 0x0800;
const TTL: u8 = 64;
const IP_PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS_OR_OFFSET: u16 = 0x3fff;

const DSCP_SPRAYED: u8 = 1;
const DSCP_TRIMMABLE: u8 = 2;
const DSCP_TRIMMED: u8 = 4;
const MAX_PRIORITY: u8 = 7;

/// Reasons why a packet has no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unframeable {
    /// 10.0.0.0/8 has 2^24 addresses.
    #[error("host {} has no address: its number is not below 2^24", .0.0)]
    NoAddress(HostId),
    /// The packet is longer than [`MAX_IP_BYTES`].
    #[error("an IP packet of {0} bytes is too long")]
    TooLong(u32),
}

/// The IP address of a host or a switch.
#[must_use]
pub const fn ip_address(host: HostId) -> Option<[u8; 4]> {
    match Destination::from_address(host) {
        Destination::Host(HostId(number)) => match number.to_be_bytes() {
            [0, x, y, z] => Some([10, x, y, z]),
            _ => None,
        },
        Destination::Switch(number) => match number.to_be_bytes() {
            [0, x @ 0..16, y, z] => Some([172, 16 + x, y, z]),
            _ => None,
        },
        Destination::Group(_) => None,
    }
}

/// The host or switch that has an IP address: the inverse of [`ip_address`].
#[must_use]
pub const fn host_at(address: [u8; 4]) -> Option<HostId> {
    match address {
        [10, x, y, z] => Some(HostId(u32::from_be_bytes([0, x, y, z]))),
        [172, x @ 16..32, y, z] => {
            Some(Destination::Switch(u32::from_be_bytes([0, x - 16, y, z])).address())
        }
        _ => None,
    }
}

/// The MAC address of a host or a switch.
#[must_use]
pub const fn mac_address(host: HostId) -> [u8; 6] {
    let [a, b, c, d] = host.0.to_be_bytes();
    [0x02, 0, a, b, c, d]
}

/// Returns the bytes from the IP header on that a packet with this header counts on a simulated link: everything except
/// TCP's message mapping. This is the size that [`Packet::new`] takes.
#[must_use]
pub fn counted_ip_bytes(header: &Header, layout: Layout) -> u32 {
    let header_bytes = match header {
        Header::Tcp(header) => header.counted_bytes(),
        other => other.header_bytes(layout),
    };
    IPV4 + header_bytes + header.payload_bytes()
}

/// Appends the frame without payload bytes and checksum, and returns the length of the whole frame, padding to
/// Ethernet's minimum included (and no checksum, as captures count it).
///
/// # Errors
/// See [`Unframeable`]; `out` is unchanged then.
pub fn encode(
    packet: &Packet<Header>,
    layout: Layout,
    out: &mut Vec<u8>,
) -> Result<u32, Unframeable> {
    let address = |host| ip_address(host).ok_or(Unframeable::NoAddress(host));
    let (source, destination) = (address(packet.src)?, address(packet.dst)?);
    let header = &packet.header;
    let header_bytes = header.header_bytes(layout);
    let payload = header.payload_bytes();
    let total = IPV4 + header_bytes + payload;
    let Some(total_length) = u16::try_from(total).ok().filter(|_| total <= MAX_IP_BYTES) else {
        return Err(Unframeable::TooLong(total));
    };

    let start = out.len();
    out.extend_from_slice(&mac_address(packet.dst));
    out.extend_from_slice(&mac_address(packet.src));
    out.put_u16(ETHERTYPE_IPV4);

    let ip_start = out.len();
    out.put_u8(0x45); // version 4, five words
    out.put_u8(traffic_class(packet));
    out.put_u16(total_length);
    out.put_u16(0); // identification: not needed without fragments (RFC 6864)
    out.put_u16(DONT_FRAGMENT);
    out.put_u8(TTL);
    out.put_u8(header.ip_protocol(layout));
    out.put_u16(0);
    out.extend_from_slice(&source);
    out.extend_from_slice(&destination);
    let checksum = !ones_complement_sum(0, &out[ip_start..]);
    out[ip_start + 10..ip_start + 12].copy_from_slice(&checksum.to_be_bytes());

    let l4_start = out.len();
    header.encode(layout, Ports::of_packet(packet), out);
    if matches!(header, Header::Tcp(_)) && payload == 0 {
        // The checksum of a segment with payload would require the payload, so it is left zero.
        let pseudo = ones_complement_sum(header_bytes + u32::from(header.ip_protocol(layout)), &[]);
        let pseudo = ones_complement_sum(u32::from(pseudo), &out[ip_start + 12..ip_start + 20]);
        let checksum = !ones_complement_sum(u32::from(pseudo), &out[l4_start..]);
        out[l4_start + 16..l4_start + 18].copy_from_slice(&checksum.to_be_bytes());
    }

    let minimum = ETHERNET_HEADER + MIN_PAYLOAD;
    let travels = if packet.is_trimmed() { 0 } else { payload };
    if travels == 0 {
        let padded = out.len().max(start + minimum as usize);
        out.resize(padded, 0);
    }
    Ok((ETHERNET_HEADER + IPV4 + header_bytes + travels).max(minimum))
}

/// Appends the frame of a UDP datagram of a group system without its payload, and returns the length of the whole
/// frame, as captures count it. `header` is what follows the UDP header; the frame's length is that on the simulated link.
///
/// # Errors
/// See [`Unframeable`]; `out` is unchanged then.
pub fn encode_datagram<H: rackweave_core::Header>(
    packet: &Packet<H>,
    header: &[u8],
    out: &mut Vec<u8>,
) -> Result<u32, Unframeable> {
    let source = ip_address(packet.src).ok_or(Unframeable::NoAddress(packet.src))?;
    let (destination, mac) = match Destination::from_address(packet.dst) {
        Destination::Group(_) => {
            let group = if packet.dst == frisbee::TO_GROUP { frisbee::GROUP } else { orca::GROUP };
            (group, multicast_mac(group))
        }
        _ => {
            let address = ip_address(packet.dst).ok_or(Unframeable::NoAddress(packet.dst))?;
            (address, mac_address(packet.dst))
        }
    };
    let original = u32::from(packet.wire_bytes) + ETHERNET_HEADER - ETHERNET_FRAME - ETHERNET_GAP;
    let total_length = (original - ETHERNET_HEADER) as u16;
    out.extend_from_slice(&mac);
    out.extend_from_slice(&mac_address(packet.src));
    out.put_u16(ETHERTYPE_IPV4);
    let ip_start = out.len();
    out.put_u8(0x45);
    out.put_u8(traffic_class(packet));
    out.put_u16(total_length);
    out.put_u16(0);
    out.put_u16(DONT_FRAGMENT);
    out.put_u8(TTL);
    out.put_u8(IP_PROTOCOL_UDP);
    out.put_u16(0);
    out.extend_from_slice(&source);
    out.extend_from_slice(&destination);
    let checksum = !ones_complement_sum(0, &out[ip_start..]);
    out[ip_start + 10..ip_start + 12].copy_from_slice(&checksum.to_be_bytes());
    out.put_u16(packet.source_port());
    out.put_u16(packet.destination_port());
    out.put_u16(total_length - IPV4 as u16);
    // There is no checksum (RFC 768), because it would require the payload.
    out.put_u16(0);
    out.extend_from_slice(header);
    Ok(original)
}

/// The MAC address of an IPv4 multicast group (RFC 1112 section 6.4).
const fn multicast_mac(group: [u8; 4]) -> [u8; 6] {
    [0x01, 0x00, 0x5e, group[1] & 0x7f, group[2], group[3]]
}

/// Decodes a frame, which a capture may have truncated after its headers. Its size on the link is computed from the
/// headers. MAC addresses are ignored.
///
/// # Errors
/// See [`Malformed`].
pub fn decode(bytes: &[u8]) -> Result<Packet<Header>, Malformed> {
    let mut reader = Reader::new("an Ethernet frame", bytes);
    reader.need("an Ethernet header", ETHERNET_HEADER as usize)?;
    reader.skip::<12>()?;
    match reader.u16()? {
        ETHERTYPE_IPV4 => {}
        other => return Err(Malformed::EtherType(other)),
    }
    let bytes = &bytes[ETHERNET_HEADER as usize..];

    let mut reader = Reader::new("an IP header", bytes);
    reader.need("an IP header", IPV4 as usize)?;
    let first = reader.u8()?;
    if first >> 4 != 4 {
        return Err(Malformed::IpVersion(first >> 4));
    }
    let ip_header = usize::from(first & 0xf) * 4;
    let tos = reader.u8()?;
    let total = usize::from(reader.u16()?);
    if ip_header < IPV4 as usize || ip_header > total {
        return Err(Malformed::IpLength { header: ip_header, total });
    }
    if total > MAX_IP_BYTES as usize {
        return Err(Malformed::TooLong(total));
    }
    reader.skip::<2>()?; // identification
    if reader.u16()? & MORE_FRAGMENTS_OR_OFFSET != 0 {
        return Err(Malformed::Fragment);
    }
    reader.skip::<1>()?; // time to live
    let protocol = reader.u8()?;
    reader.skip::<2>()?; // checksum: over the whole header, below
    let (src, dst) = (host(reader.array()?)?, host(reader.array()?)?);
    reader.need("an IP header with its options", ip_header)?;
    if ones_complement_sum(0, &bytes[..ip_header]) != 0xffff {
        return Err(Malformed::Checksum);
    }

    let (header, ports) = Header::decode(protocol, &bytes[ip_header..], total - ip_header)?;
    let mapping = match header {
        Header::Tcp(tcp::Header { body: tcp::Body::Data { .. }, .. }) => {
            tcp::MAPPING_BYTES as usize
        }
        _ => 0,
    };
    let packet = Packet::new(src, dst, (total - mapping) as u32, header)
        .with_ports(ports.source, ports.destination);
    Ok(with_traffic_class(packet, tos))
}

/// The second byte of the IP header for a packet: its priority, its flags for switches (see the [module](self)), and
/// its ECN codepoint.
#[must_use]
pub const fn traffic_class<H: rackweave_core::Header>(packet: &Packet<H>) -> u8 {
    dscp(packet) << 2 | ecn_bits(packet.ecn())
}

/// The same packet with the fields of a [`traffic_class`].
#[must_use]
pub fn with_traffic_class<H: rackweave_core::Header>(packet: Packet<H>, byte: u8) -> Packet<H> {
    let dscp = byte >> 2;
    let mut packet = packet
        .with_priority(dscp >> 3)
        .with_ecn(match byte & 3 {
            0 => Ecn::NotCapable,
            3 => Ecn::Marked,
            _ => Ecn::Capable,
        })
        .sprayed(dscp & DSCP_SPRAYED != 0);
    match (dscp & DSCP_TRIMMABLE != 0, dscp & DSCP_TRIMMED != 0) {
        (false, false) => {}
        (true, false) => packet = packet.trimmable(),
        (false, true) => packet = packet.trimmed(false),
        (true, true) => packet = packet.trimmed(true),
    }
    packet
}

const fn dscp<H: rackweave_core::Header>(packet: &Packet<H>) -> u8 {
    let highest = packet.priority > MAX_PRIORITY;
    let mut dscp = (if highest { MAX_PRIORITY } else { packet.priority }) << 3;
    if packet.is_sprayed() {
        dscp |= DSCP_SPRAYED;
    }
    if packet.is_trimmable() || packet.is_returned() {
        dscp |= DSCP_TRIMMABLE;
    }
    if packet.is_trimmed() {
        dscp |= DSCP_TRIMMED;
    }
    dscp
}

/// The codepoints of RFC 3168, section 5; ECN-capable is ECT(0).
const fn ecn_bits(ecn: Ecn) -> u8 {
    match ecn {
        Ecn::NotCapable => 0,
        Ecn::Capable => 2,
        Ecn::Marked => 3,
    }
}

fn host(address: [u8; 4]) -> Result<HostId, Malformed> {
    host_at(address).ok_or(Malformed::ForeignAddress(address))
}

/// The one's complement sum of the Internet checksum (RFC 1071), continued from an earlier sum.
fn ones_complement_sum(start: u32, bytes: &[u8]) -> u16 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut sum = u64::from(start);
    sum += pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>();
    sum += rest.iter().map(|last| u64::from(*last) << 8).sum::<u64>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Id64, homa};

    /// The example of RFC 1071, section 3.
    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(ones_complement_sum(0, &bytes), 0xddf2);
        assert_eq!(ones_complement_sum(0, &[0xff]), 0xff00, "an odd byte is the high one");
    }

    fn busy() -> Packet<Header> {
        let header = homa::Header { id: Id64::new(7), one_way: false, body: homa::Body::Busy };
        Packet::new(HostId(0x01_0203), HostId(9), 48, header.into())
            .with_ports(1, 2)
            .with_priority(6)
            .with_ecn(Ecn::Marked)
            .sprayed(true)
    }

    #[test]
    fn a_frame_byte_for_byte() {
        let mut bytes = Vec::new();
        assert_eq!(encode(&busy(), Layout::Head, &mut bytes), Ok(62));
        #[rustfmt::skip]
        let expected = [
            0x02, 0, 0, 0, 0, 9,  0x02, 0, 0, 1, 2, 3,  0x08, 0x00,
            // DSCP 6 << 3 | sprayed, ECN 3; 48 bytes; do not fragment; TTL 64; protocol 146
            0x45, 0xc7, 0, 48,  0, 0, 0x40, 0,  64, 146, 0x23, 0x69,  10, 1, 2, 3,  10, 0, 0, 9,
            0, 1, 0, 2,  0, 0, 0, 0,  0, 0, 0, 0x14,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 7,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(decode(&bytes), Ok(busy()));
    }

    #[test]
    fn a_pure_tcp_acknowledgement_is_padded_and_has_a_right_checksum() {
        let header = tcp::Header {
            seq: 1,
            ack: 2,
            window: 3,
            flags: tcp::flags::ACK,
            body: tcp::Body::Ack { count: 0, sack: Default::default() },
        };
        let packet = Packet::new(HostId(0), HostId(1), 40, header.into());
        let mut bytes = Vec::new();
        assert_eq!(encode(&packet, Layout::Head, &mut bytes), Ok(60));
        assert_eq!(bytes.len(), 60);
        let mut covered = bytes[26..54].to_vec();
        covered.extend_from_slice(&[0, tcp::IP_PROTOCOL, 0, 20]);
        assert_eq!(ones_complement_sum(0, &covered), 0xffff);
        assert_eq!(decode(&bytes), Ok(packet));
    }

    #[test]
    fn a_trimmed_packet_keeps_its_original_length() {
        let body = homa::Body::Data {
            message_length: 9000,
            incoming: 9000,
            ack_id: Id64::new(0),
            ack_port: 0,
            cutoff_version: 0,
            retransmit: false,
            offset: 1424,
            segment_length: 1424,
            stamps: homa::DataStamps::default(),
        };
        let header = homa::Header { id: Id64::new(8), one_way: true, body };
        let mut packet = Packet::new(HostId(0), HostId(1), 1500, header.into()).trimmable();
        let mut bytes = Vec::new();
        assert_eq!(encode(&packet, Layout::Head, &mut bytes), Ok(1514));
        assert_eq!((bytes.len(), decode(&bytes)), (90, Ok(packet)));
        packet.trim();
        bytes.clear();
        assert_eq!(encode(&packet, Layout::Head, &mut bytes), Ok(90));
        assert_eq!(decode(&bytes), Ok(packet));
        assert_eq!(decode(&bytes).map(|p| p.payload()), Ok(None));
    }

    #[test]
    fn what_cannot_be_framed_is_refused() {
        let mut bytes = vec![1];
        let mut packet = busy();
        packet.dst = HostId(1 << 24);
        let refused = encode(&packet, Layout::Head, &mut bytes);
        assert_eq!(refused, Err(Unframeable::NoAddress(HostId(1 << 24))));
        assert_eq!(bytes, [1]);
    }

    #[test]
    fn each_thing_that_can_be_wrong_is_named() {
        let mut good = Vec::new();
        encode(&busy(), Layout::Head, &mut good).unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            decode(&bytes).unwrap_err()
        };
        assert_eq!(with(12, 0x86), Malformed::EtherType(0x8600));
        assert_eq!(with(14, 0x65), Malformed::IpVersion(6));
        assert_eq!(with(14, 0x44), Malformed::IpLength { header: 16, total: 48 });
        assert_eq!(with(17, 19), Malformed::IpLength { header: 20, total: 19 });
        assert_eq!(with(20, 0x20), Malformed::Fragment);
        assert_eq!(with(22, 63), Malformed::Checksum);
        assert_eq!(with(26, 11), Malformed::ForeignAddress([11, 1, 2, 3]));
        let mut long = good.clone();
        long[16..18].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(decode(&long), Err(Malformed::TooLong(0xffff)));
        let truncated = decode(&good[..40]).unwrap_err();
        assert_eq!(truncated.to_string(), "a Homa header needs 28 bytes, but there are 6");
    }
}
