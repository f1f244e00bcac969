//! Named random streams. Adding a host, or drawing once more from one stream, does not change the other streams.

use rand_core::Rng as _;
use rand_pcg::Pcg64Mcg;

/// A stream of random numbers (PCG64-MCG, which gives the same numbers on every machine).
#[derive(Clone, Debug)]
pub struct Rng(Pcg64Mcg);

impl Rng {
    /// Creates the stream of `purpose` at `component` (the number of a host, a link, ...) in repetition `run` under
    /// `seed`.
    #[must_use]
    pub fn stream(seed: u64, run: u64, component: u64, purpose: &str) -> Self {
        let mut state = mix(seed ^ 0x9e37_79b9_7f4a_7c15);
        state = mix(state ^ run);
        state = mix(state ^ component);
        for byte in purpose.bytes() {
            state = mix(state ^ u64::from(byte));
        }
        let high = mix(state ^ 0x243f_6a88_85a3_08d3);
        Self(Pcg64Mcg::new(u128::from(high) << 64 | u128::from(state)))
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns the bits that [`Self::next_u64`] will return next.
    #[must_use]
    #[inline]
    pub fn peek_u64(&self) -> u64 {
        self.0.clone().next_u64()
    }

    /// Returns a uniformly distributed integer in `0..n`, for `n` of at least 1 (multiply-shift: the bias is below n /
    /// 2^64).
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a uniformly distributed number in [0, 1), with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Returns an exponentially distributed number with this mean, such as the gaps of a Poisson process.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        // `libm` gives the same bits on every platform; the platform's own logarithm does not.
        -mean * libm::log(1.0 - self.unit())
    }

    /// Returns true with probability `p`.
    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Shuffles the items uniformly (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            items.swap(i, j);
        }
    }
}

/// `SplitMix64`'s finaliser: a bijection of 64 bits that scatters neighbours.
#[must_use]
#[inline]
pub const fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_named_and_portable() {
        let first = Rng::stream(1, 0, 0, "arrivals").next_u64();
        // The values are fixed: a change of the algorithm would change every result and must not go unnoticed.
        assert_eq!(first, 10_819_392_311_728_514_353);
        assert_eq!(Rng::stream(7, 2, 5, "sizes").next_u64(), 10_337_692_208_204_274_928);
        for (seed, run, component, purpose) in [
            (2, 0, 0, "arrivals"),
            (1, 1, 0, "arrivals"),
            (1, 0, 1, "arrivals"),
            (1, 0, 0, "sizes"),
        ] {
            assert_ne!(first, Rng::stream(seed, run, component, purpose).next_u64());
        }
    }

    #[test]
    fn moments_are_right() {
        let mut rng = Rng::stream(7, 0, 0, "test");
        let n = 200_000;
        let mean = (0..n).map(|_| rng.exponential(3.0)).sum::<f64>() / f64::from(n);
        assert!((mean - 3.0).abs() < 0.03, "{mean}");
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|c| (9_600..10_400).contains(c)), "{counts:?}");
    }
}
