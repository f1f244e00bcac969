//! The content of messages, which allows every byte to be verified.

use bytes::Bytes;
use rackweave_core::{HostId, Rng};

/// The number of offsets in the pattern at which messages can begin.
const PLACES: u64 = 1 << 16;
/// The length of the blocks of the pattern in bytes. A block is random bytes mixed with the block's number.
const BLOCK: usize = 1 << 12;

/// Random bytes that all hosts of a run know. A message is a range of them that is determined by its sender, its
/// receiver and its length. So bytes that are damaged, at a wrong offset or of another pair of hosts are detected; two
/// messages of the same length between the same hosts are identical.
#[derive(Debug)]
pub(super) struct Pattern(Bytes);

impl Pattern {
    /// Returns the pattern for messages of up to `longest` bytes.
    pub(super) fn new(seed: u64, longest: u64) -> Self {
        let mut rng = Rng::stream(seed, 0, 0, "testbed payload");
        let block: Vec<u8> = (0..BLOCK).map(|_| rng.below(256) as u8).collect();
        let bytes = (longest + PLACES) as usize;
        let mut pattern = Vec::with_capacity(bytes + BLOCK);
        let mut number = 0_u32;
        while pattern.len() < bytes {
            let mixed = number.wrapping_mul(0x9e37_79b9).to_le_bytes();
            pattern.extend(block.chunks_exact(4).flat_map(|word| {
                [word[0] ^ mixed[0], word[1] ^ mixed[1], word[2] ^ mixed[2], word[3] ^ mixed[3]]
            }));
            number += 1;
        }
        Self(Bytes::from(pattern))
    }

    /// Returns a message's bytes without copying them. The message must not be longer than `longest` of
    /// [`Pattern::new`].
    pub(super) fn message(&self, src: HostId, dst: HostId, bytes: u64) -> Bytes {
        let mixed = (u64::from(src.0) << 32 | u64::from(dst.0)) ^ bytes.rotate_left(48);
        let place = (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) % PLACES;
        let start = place as usize;
        let end = (start + bytes as usize).min(self.0.len());
        self.0.slice(start.min(end)..end)
    }

    /// Describes how an arrived message differs from the expected one; `None` if it does not.
    pub(super) fn difference(&self, src: HostId, dst: HostId, bytes: &[u8]) -> Option<String> {
        let expected = self.message(src, dst, bytes.len() as u64);
        if bytes == expected {
            return None;
        }
        let at = bytes.iter().zip(&expected).position(|(here, there)| here != there);
        let at = at.unwrap_or(expected.len());
        let (src, len) = (src.0, bytes.len());
        Some(format!("byte {at} of a message of {len} bytes from host {src} is not what was sent"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_known_by_its_hosts_and_length() {
        let (a, b, c) = (HostId(0), HostId(1), HostId(2));
        let pattern = Pattern::new(7, 100_000);
        let message = pattern.message(a, b, 100_000);
        assert_eq!(message.len(), 100_000);
        assert_eq!(pattern.difference(a, b, &message), None);
        assert!(pattern.difference(a, c, &message).is_some());
        assert!(pattern.difference(b, a, &message).is_some());
        let mut damaged = message.to_vec();
        damaged[70_000] ^= 1;
        assert!(pattern.difference(a, b, &damaged).unwrap().starts_with("byte 70000 "));
        assert_ne!(pattern.message(a, b, 5000)[..4096], message[..4096]);
        let same = Pattern::new(7, 100_000).message(a, b, 100_000);
        assert_eq!(same, message, "all processes make the same");
    }
}
