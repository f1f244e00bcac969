//! Probes, which determine before a cast whether a host answers and whether multicast reaches it. They are used if the
//! user has not chosen how to reach the receivers. The protocol is our own.

use rackweave_wire::orca::Key;

/// The first byte of a probe, which differs from that of Orca packets.
pub(crate) const TAG: u8 = 0xb5;

/// The length of a probe in bytes.
pub(crate) const BYTES: usize = 18;

/// The kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// A query to one host.
    Unicast,
    /// A query to the multicast group.
    Group,
    /// The answer to a unicast query.
    UnicastReply,
    GroupReply,
}

const ALL: [Probe; 4] = [Probe::Unicast, Probe::Group, Probe::UnicastReply, Probe::GroupReply];

pub(super) fn check(front: &[u8], secret: Option<&[u8; 32]>) -> [u8; 8] {
    let hash = match secret {
        Some(secret) => blake3::keyed_hash(secret, front),
        None => blake3::hash(front),
    };
    let mut check = [0; 8];
    check.copy_from_slice(&hash.as_bytes()[..8]);
    check
}

/// Derives the key of probes and group messages from the key file's bytes.
pub(crate) fn secret(secret: &[u8]) -> [u8; 32] {
    blake3::derive_key("rackweave 2026 cast probes", secret)
}

pub(crate) fn encode(probe: Probe, nonce: u64, secret: Option<&[u8; 32]>) -> [u8; BYTES] {
    let mut bytes = [TAG; BYTES];
    bytes[1] = ALL.iter().position(|it| *it == probe).unwrap_or(0) as u8;
    bytes[2..10].copy_from_slice(&nonce.to_be_bytes());
    let check = check(&bytes[..10], secret);
    bytes[10..].copy_from_slice(&check);
    bytes
}

pub(crate) fn decode(bytes: &[u8], secret: Option<&[u8; 32]>) -> Option<(Probe, u64)> {
    if bytes.len() != BYTES || bytes[0] != TAG || check(&bytes[..10], secret) != bytes[10..] {
        return None;
    }
    let nonce = bytes[2..10].try_into().ok().map(u64::from_be_bytes)?;
    Some((*ALL.get(usize::from(bytes[1]))?, nonce))
}

/// Derives the keys of packets and of probes from the key file's bytes.
#[must_use]
pub fn keys(bytes: &[u8]) -> (Key, [u8; 32]) {
    (Key::derive(bytes), secret(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_read_back_by_those_with_the_key_only() {
        let (mine, other) = (secret(b"a"), secret(b"b"));
        for probe in ALL {
            for key in [None, Some(&mine)] {
                let bytes = encode(probe, 77, key);
                assert_eq!(decode(&bytes, key), Some((probe, 77)));
                assert_eq!(decode(&bytes, Some(&other)), None);
                for place in 0..BYTES {
                    let mut bytes = bytes;
                    bytes[place] ^= 1;
                    assert_eq!(decode(&bytes, key), None);
                }
            }
        }
    }
}
