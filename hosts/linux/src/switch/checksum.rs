//! The checksums of frames: IPv4's, and UDP's and TCP's, which cover the addresses too.

const CHECK_IP: usize = 10;
const CHECK_TCP: usize = 16;
const CHECK_UDP: usize = 6;
const SOURCE: usize = 12;
const DESTINATION: usize = 16;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// Replaces two bytes of an IPv4 header, and updates its checksum.
pub(super) fn replace_word(ip: &mut [u8], at: usize, new: [u8; 2]) {
    let sum = update(word(ip, CHECK_IP), word(ip, at), u16::from_be_bytes(new));
    ip[at..at + 2].copy_from_slice(&new);
    ip[CHECK_IP..CHECK_IP + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Replaces the destination address of an IPv4 packet with the UDP header at `udp`. A right UDP checksum stays right,
/// and a wrong one wrong, so that the receiver still detects damage; one of 0 means "none" (RFC 768) and stays.
pub(super) fn readdress(ip: &mut [u8], udp: usize, address: [u8; 4]) {
    let [a, b, c, d] = address;
    for (at, new) in [(DESTINATION, [a, b]), (DESTINATION + 2, [c, d])] {
        let check = word(ip, udp + CHECK_UDP);
        if check != 0 {
            let sum = update(check, word(ip, at), u16::from_be_bytes(new));
            let sum = if sum == 0 { 0xffff } else { sum };
            ip[udp + CHECK_UDP..udp + CHECK_UDP + 2].copy_from_slice(&sum.to_be_bytes());
        }
        replace_word(ip, at, new);
    }
}

/// Writes the sum over the pseudo-header into the UDP checksum of an IPv4 packet without options, as hosts do that leave the rest
/// to their NIC; see [`finish`].
pub(super) fn begin_udp(ip: &mut [u8]) {
    let (pairs, _) = ip[SOURCE..SOURCE + 8].as_chunks::<2>();
    let addresses: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    let sum = fold(addresses + u64::from(PROTOCOL_UDP) + u64::from(word(ip, 20 + 4)));
    ip[20 + CHECK_UDP..20 + CHECK_UDP + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Writes the checksum that a host has left to its NIC into an IPv4 packet of valid lengths. Before this call, the field holds the
/// sum over the pseudo-header.
pub(super) fn finish(ip: &mut [u8]) {
    let header = usize::from(ip[0] & 0xf) * 4;
    let (total, protocol) = (usize::from(word(ip, 2)), ip[9]);
    let at = match protocol {
        PROTOCOL_TCP => CHECK_TCP,
        PROTOCOL_UDP => CHECK_UDP,
        _ => return,
    };
    let l4 = &mut ip[header..total];
    if l4.len() < at + 2 {
        return;
    }
    let (pairs, rest) = l4.as_chunks::<2>();
    let mut sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum += rest.iter().map(|last| u64::from(*last) << 8).sum::<u64>();
    // In UDP a checksum of zero means "none".
    let check = match !fold(sum) {
        0 if protocol == PROTOCOL_UDP => 0xffff,
        check => check,
    };
    l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns a checksum after one word that it covers has changed (RFC 1624: HC' = ~(~HC + ~m + m')).
fn update(check: u16, old: u16, new: u16) -> u16 {
    !fold(u64::from(!check) + u64::from(!old) + u64::from(new))
}

/// Asserts that an Ethernet frame with a UDP datagram has the right checksums.
#[cfg(test)]
pub(super) fn assert_right(frame: &[u8]) {
    let ip = &frame[14..];
    let sum = |bytes: &[u8]| {
        fold(
            bytes
                .chunks(2)
                .map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)))
                .sum(),
        )
    };
    assert_eq!(sum(&ip[..20]), 0xffff, "IP's checksum");
    let total = usize::from(word(ip, 2));
    assert_eq!((ip[9], usize::from(word(ip, 24))), (PROTOCOL_UDP, total - 20));
    assert_ne!(word(ip, 26), 0, "there is a UDP checksum");
    let pseudo =
        [&ip[SOURCE..SOURCE + 8], &[0, PROTOCOL_UDP], &ip[24..26], &ip[20..total]].concat();
    assert_eq!(sum(&pseudo), 0xffff, "UDP's checksum");
}

/// Writes the checksums of a UDP datagram in a frame whose other fields are complete.
#[cfg(test)]
pub(super) fn fill(frame: &mut [u8]) {
    let ip = &mut frame[14..];
    ip[CHECK_IP..CHECK_IP + 2].fill(0);
    let (pairs, _) = ip[..20].as_chunks::<2>();
    let sum = !fold(pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum());
    ip[CHECK_IP..CHECK_IP + 2].copy_from_slice(&sum.to_be_bytes());
    begin_udp(ip);
    finish(ip);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 42];
        let total = (28 + payload.len()) as u16;
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[23] = PROTOCOL_UDP;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[34..38].copy_from_slice(&[0x1a, 0x43, 0x1a, 0x43]);
        frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
        frame.extend_from_slice(payload);
        fill(&mut frame);
        frame
    }

    #[test]
    fn checksums_follow_the_address_for_every_payload() {
        for word in 0..=u16::MAX {
            let mut frame = datagram(&[&word.to_be_bytes()[..], b"odd"].concat());
            assert_right(&frame);
            readdress(&mut frame[14..], 20, [10, 9, word as u8, 255]);
            assert_right(&frame);
            assert_eq!(frame[30..34], [10, 9, word as u8, 255]);
        }
    }

    #[test]
    fn no_checksum_stays_none_and_damage_stays_visible() {
        let mut frame = datagram(b"payload");
        frame[40..42].fill(0);
        readdress(&mut frame[14..], 20, [10, 1, 2, 3]);
        assert_eq!(frame[40..42], [0, 0]);
        let mut frame = datagram(b"payload");
        frame[45] ^= 4;
        readdress(&mut frame[14..], 20, [10, 1, 2, 3]);
        frame[45] ^= 4;
        assert_right(&frame);
    }
}
