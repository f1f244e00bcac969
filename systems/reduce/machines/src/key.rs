//! Keys of fixed length, and the hash by which they are distributed.

use rackweave_core::rng::mix;
use rackweave_wire::reduce::KEY_BYTES;

/// A key that fits a slot: its bytes, and zeros behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; KEY_BYTES]);

impl Key {
    /// The content of an empty slot, which is no key.
    pub const EMPTY: Self = Self([0; KEY_BYTES]);

    /// Pads a key. `None` if it must be sent as a record: it is longer than [`KEY_BYTES`], or its padding could not be told from its
    /// bytes, because it is empty or ends with a zero.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > KEY_BYTES || bytes.last().is_none_or(|last| *last == 0) {
            return None;
        }
        let mut key = [0; KEY_BYTES];
        key[..bytes.len()].copy_from_slice(bytes);
        Some(Self(key))
    }

    /// Returns the bytes without the padding.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let len = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        &self.0[..len]
    }

    /// Returns the key's hash under a seed, which the participants of a job share: others cannot choose keys that collide.
    #[must_use]
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        let (low, high) = self.0.split_at(KEY_BYTES / 2);
        let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of a key"));
        mix(mix(word(low) ^ seed) ^ word(high))
    }
}

/// Hashes the keys of a map with a seed. Words come from anywhere: with a known hash, a text could be written whose words all collide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seeded(pub u64);

/// A map whose hashes have a seed.
#[expect(
    clippy::disallowed_types,
    reason = "what is read from it as a whole is sorted, or in a list beside it"
)]
pub type SeededMap<K, V> = std::collections::HashMap<K, V, Seeded>;

/// A hash under way; see [`Seeded`].
#[derive(Clone, Copy, Debug)]
pub struct SeededHasher(u64);

impl core::hash::BuildHasher for Seeded {
    type Hasher = SeededHasher;

    #[inline]
    fn build_hasher(&self) -> SeededHasher {
        SeededHasher(mix(self.0))
    }
}

impl core::hash::Hasher for SeededHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.0 = mix(self.0 ^ u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.0 = mix(self.0 ^ number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns the hash of a key of any length. That of a key that fits a slot is [`Key::hash`].
#[must_use]
pub fn hash_of(bytes: &[u8], seed: u64) -> u64 {
    if let Some(key) = Key::new(bytes) {
        return key.hash(seed);
    }
    let mut state = mix(seed ^ bytes.len() as u64);
    for piece in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}

/// Returns the epoch of a key: one of `epochs` ranges of equal length of the upper half of its hash.
#[must_use]
#[inline]
pub const fn epoch_of(hash: u64, epochs: u16) -> u16 {
    (((hash >> 32) * epochs as u64) >> 32) as u16
}

/// Returns the bucket of a key: one of `buckets` ranges of the lower half of its hash, which does not depend on its epoch.
#[must_use]
#[inline]
pub const fn bucket_of(hash: u64, buckets: u32) -> u32 {
    (((hash & 0xffff_ffff) * buckets as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_what_was_padded_or_does_not_fit() {
        for bytes in [&b"a"[..], b"sixteen bytes it", b"\0inside", b"\xff"] {
            assert_eq!(Key::new(bytes).unwrap().bytes(), bytes);
        }
        for bytes in [&b""[..], b"\0", b"zero\0", b"seventeen bytes !"] {
            assert_eq!(Key::new(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn epochs_and_buckets_are_filled_evenly_and_independently() {
        let (epochs, buckets) = (7, 5);
        let mut counts = [[0_u32; 5]; 7];
        let n = 70_000;
        for number in 0..n {
            let hash = hash_of(format!("word{number}").as_bytes(), 42);
            counts[epoch_of(hash, epochs) as usize][bucket_of(hash, buckets) as usize] += 1;
        }
        // 2000 in each, with a standard deviation of 44.
        assert!(counts.as_flattened().iter().all(|count| (1_800..2_200).contains(count)));
        assert_eq!((epoch_of(u64::MAX, 7), bucket_of(u64::MAX, 5)), (6, 4));
    }

    #[test]
    fn the_hash_is_fixed_because_switches_and_hosts_must_agree() {
        assert_eq!(hash_of(b"word", 1), Key::new(b"word").unwrap().hash(1));
        assert_eq!(hash_of(b"word", 1), 4_441_887_630_839_794_742);
        assert_ne!(hash_of(b"word", 1), hash_of(b"word", 2));
        assert_ne!(
            hash_of(b"a word longer than a slot", 1),
            hash_of(b"a word longer than a slos", 1)
        );
    }
}
