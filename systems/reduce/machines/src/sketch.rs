//! Estimates of the number of distinct keys, by which the number of epochs is chosen.

use rackweave_wire::reduce::SKETCH_BYTES;

/// The number of bits of a hash that choose the register.
const INDEX_BITS: u32 = SKETCH_BYTES.trailing_zeros();

/// A HyperLogLog sketch (Flajolet et al., AofA 2007) of 1024 registers: the standard error of its estimate is 1.04 / sqrt(1024), 3.3 %.
/// Workers send theirs when they join; the master merges them, which counts keys of several workers once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sketch([u8; SKETCH_BYTES as usize]);

impl Default for Sketch {
    fn default() -> Self {
        Self([0; SKETCH_BYTES as usize])
    }
}

impl Sketch {
    /// Reads a sketch from a message. `None` if it has another length.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut registers: [u8; SKETCH_BYTES as usize] = bytes.try_into().ok()?;
        for register in &mut registers {
            *register = (*register).min(MAX_RANK);
        }
        Some(Self(registers))
    }

    /// Returns the registers, as a message carries them.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a key, by its hash under a seed that all workers share.
    pub const fn add(&mut self, hash: u64) {
        let index = (hash >> (64 - INDEX_BITS)) as usize;
        let rest = hash << INDEX_BITS | 1 << (INDEX_BITS - 1);
        let rank = rest.leading_zeros() as u8 + 1;
        if rank > self.0[index] {
            self.0[index] = rank;
        }
    }

    /// Adds the keys of another sketch.
    pub fn merge(&mut self, other: &Self) {
        for (register, other) in self.0.iter_mut().zip(other.0) {
            *register = (*register).max(other);
        }
    }

    /// Returns the estimated number of distinct keys.
    #[must_use]
    pub fn estimate(&self) -> u64 {
        let m = f64::from(SKETCH_BYTES);
        let sum: f64 = self.0.iter().map(|rank| 1.0 / (1_u64 << rank) as f64).sum();
        let zeros = self.0.iter().filter(|rank| **rank == 0).count();
        let raw = 0.7213 / (1.0 + 1.079 / m) * m * m / sum;
        // Few keys leave registers empty: their number is the better estimate (linear counting, section 4 of the paper).
        let estimate =
            if raw <= 2.5 * m && zeros > 0 { m * libm::log(m / zeros as f64) } else { raw };
        estimate as u64
    }
}

/// The largest rank that [`Sketch::add`] can give.
const MAX_RANK: u8 = (64 - INDEX_BITS + 1) as u8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::hash_of;

    #[test]
    fn the_estimate_is_within_four_standard_errors() {
        for keys in [0_u64, 1, 100, 1_000, 5_000, 220_000] {
            let (mut left, mut right) = (Sketch::default(), Sketch::default());
            for key in 0..keys {
                // A third of the keys is at both.
                let hash = hash_of(&key.to_be_bytes(), 0);
                if key % 3 != 0 {
                    left.add(hash);
                }
                if key % 3 != 1 {
                    right.add(hash);
                }
            }
            left.merge(&Sketch::from_bytes(right.bytes()).unwrap());
            let error = left.estimate().abs_diff(keys) as f64 / keys.max(1) as f64;
            assert!(error < 0.13, "{keys}: {}", left.estimate());
        }
    }

    #[test]
    fn a_forged_sketch_is_read_as_the_largest_possible() {
        let forged = Sketch::from_bytes(&[255; SKETCH_BYTES as usize]).unwrap();
        assert!(forged.estimate() > 1 << 60);
        assert_eq!(Sketch::from_bytes(&[0; 1023]), None);
        let mut most = Sketch::default();
        most.add(0);
        assert_eq!(most.0[0], MAX_RANK);
    }
}
