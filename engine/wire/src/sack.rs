//! Selective acknowledgements of packets behind the first missing one, in the headers of pFabric and Swift.

use core::ops::Range;

use crate::Id64;

/// Packets behind the first missing one, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sack(Id64);

impl Sack {
    /// Wraps the bits.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self(Id64::new(bits))
    }

    /// Returns the bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0.get()
    }

    /// Sets the bits of the packets in `ranges`, which are above `next`.
    #[must_use]
    pub fn behind(next: u32, ranges: impl Iterator<Item = Range<u32>>) -> Self {
        let mut bits = 0_u64;
        for range in ranges {
            let start = range.start.saturating_sub(next).saturating_sub(1);
            let len = range.end.saturating_sub(range.start).min(u64::BITS.saturating_sub(start));
            if len == 0 {
                break;
            }
            bits |= (u64::MAX >> (u64::BITS - len)) << start;
        }
        Self::new(bits)
    }

    /// Returns the packets of the bits, as ranges above `next`.
    pub fn ranges(self, next: u32) -> impl Iterator<Item = Range<u32>> {
        let (mut bits, mut at) = (self.bits(), next.saturating_add(1));
        core::iter::from_fn(move || {
            if bits == 0 {
                return None;
            }
            let skipped = bits.trailing_zeros();
            let len = (bits >> skipped).trailing_ones();
            let start = at.saturating_add(skipped);
            bits = (bits >> skipped).checked_shr(len).unwrap_or(0);
            at = start.saturating_add(len);
            Some(start..at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packets of the bits behind `next`, as starts and ends.
    fn packets(sack: Sack, next: u32) -> Vec<(u32, u32)> {
        sack.ranges(next).map(|range| (range.start, range.end)).collect()
    }

    fn behind_3(packets: &[(u32, u32)]) -> Sack {
        Sack::behind(3, packets.iter().map(|(start, end)| *start..*end))
    }

    #[test]
    fn bits_are_packets_behind_the_first_missing_one() {
        let some = [(5, 6), (7, 9), (66, 68)];
        let sack = behind_3(&some);
        assert_eq!(sack.bits(), 0b1_1010 | 1 << 62 | 1 << 63);
        assert_eq!(packets(sack, 3), some);
        // What is too far behind has no bit.
        assert_eq!(packets(behind_3(&[(60, 100), (200, 201)]), 3), [(60, 68)]);
        assert_eq!(behind_3(&[(200, 201)]).bits(), 0);
        let all = Sack::new(u64::MAX);
        assert_eq!(packets(all, 0), [(1, 65)]);
        assert_eq!(all.ranges(u32::MAX).count(), 1, "no overflow");
        assert_eq!(Sack::default().ranges(0).count(), 0);
    }
}
