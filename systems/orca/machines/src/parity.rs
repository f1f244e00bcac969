//! The erasure code for parity: a systematic code over GF(2^8), with which any missing cells of a block are computed
//! from the same number of parities.
//!
//! Parity on request follows NORM (RFC 5740), with the field of its Reed-Solomon codes (RFC 5510, section 8.1). The
//! matrix is our choice: a Cauchy matrix whose columns are scaled so that the first parity is the plain sum, which
//! suffices for most losses. Codes that use fast Fourier transforms take milliseconds for a block of this size.
//!
//! Cells that are shorter than the payload count as padded with zeros.

/// The largest number of cells in a block.
pub const MAX_CELLS: u8 = 64;
/// The largest number of parities of a block.
pub const MAX_PARITIES: u8 = 32;

/// The polynomial of the field, x^8 + x^4 + x^3 + x^2 + 1, without its first term.
const POLYNOMIAL: u8 = 0x1d;

/// The powers of x, repeated once so that sums of two logarithms need no reduction, and the logarithms.
const TABLES: ([u8; 510], [u8; 256]) = {
    let (mut powers, mut logs) = ([0; 510], [0; 256]);
    let (mut power, mut at) = (1_u8, 0);
    while at < 255 {
        (powers[at], powers[at + 255], logs[power as usize]) = (power, power, at as u8);
        power = (power << 1) ^ if power >> 7 == 1 { POLYNOMIAL } else { 0 };
        at += 1;
    }
    (powers, logs)
};

/// Returns the product of two field elements.
fn times(a: u8, b: u8) -> u8 {
    let (powers, logs) = &TABLES;
    match (a, b) {
        (0, _) | (_, 0) => 0,
        _ => powers[usize::from(logs[usize::from(a)]) + usize::from(logs[usize::from(b)])],
    }
}

/// Returns the inverse of `a`, which must not be 0.
fn inverse(a: u8) -> u8 {
    let (powers, logs) = &TABLES;
    powers[255 - usize::from(logs[usize::from(a)])]
}

/// Returns the coefficient of a cell in a parity.
fn factor(index: u8, cell: u8) -> u8 {
    // Rows and columns have distinct numbers, so that no difference is 0.
    let column = MAX_PARITIES + cell;
    times(column, inverse(index ^ column))
}

/// Adds `factor` times `from` to `to`, byte by byte.
fn add_product(to: &mut [u8], from: &[u8], factor: u8) {
    if factor == 1 {
        for (to, from) in to.iter_mut().zip(from) {
            *to ^= from;
        }
        return;
    }
    // No tables are used, so that the compiler can vectorize the loop.
    let bits: [u8; 8] = core::array::from_fn(|bit| if factor >> bit & 1 == 1 { 0xff } else { 0 });
    for (to, from) in to.iter_mut().zip(from) {
        let (mut power, mut sum) = (*from, 0);
        for bit in bits {
            sum ^= power & bit;
            power = (power << 1) ^ (POLYNOMIAL & (power as i8 >> 7) as u8);
        }
        *to ^= sum;
    }
}

/// Adds a cell of the block to a parity, which starts as zeros. Adding the same cell twice removes it. No effect for an
/// index beyond [`MAX_PARITIES`] or a cell beyond [`MAX_CELLS`].
pub fn add(parity: &mut [u8], index: u8, cell: u8, bytes: &[u8]) {
    if index < MAX_PARITIES && cell < MAX_CELLS {
        add_product(parity, bytes, factor(index, cell));
    }
}

/// The computation of a block's missing cells.
#[derive(Clone, Debug)]
pub struct Repair {
    missing: Vec<u8>,
    parities: Vec<(u8, Vec<u8>)>,
}

impl Repair {
    /// Starts a computation with the missing cells, as a bit set, and with parities of equal length and their indices.
    /// It uses as many parities as cells are missing; returns `None` if there are fewer.
    pub fn new<'a>(
        missing: u64,
        parities: impl IntoIterator<Item = (u8, &'a [u8])>,
    ) -> Option<Self> {
        let missing: Vec<u8> = (0..MAX_CELLS).filter(|cell| missing >> cell & 1 == 1).collect();
        let mut taken: Vec<(u8, Vec<u8>)> = Vec::with_capacity(missing.len());
        for (index, bytes) in parities {
            let fits = taken.first().is_none_or(|first| first.1.len() == bytes.len());
            let known = taken.iter().any(|held| held.0 == index);
            if taken.len() < missing.len() && index < MAX_PARITIES && fits && !known {
                taken.push((index, bytes.to_vec()));
            }
        }
        (taken.len() == missing.len()).then_some(Self { missing, parities: taken })
    }

    /// Adds a cell of the block that is present. Each present cell must be added exactly once.
    pub fn add(&mut self, cell: u8, bytes: &[u8]) {
        if cell < MAX_CELLS {
            for (index, parity) in &mut self.parities {
                add_product(parity, bytes, factor(*index, cell));
            }
        }
    }

    /// Returns the missing cells and their bytes, padded to the length of the parities.
    #[must_use]
    pub fn finish(mut self) -> Vec<(u8, Vec<u8>)> {
        // Gauss-Jordan elimination. No pivot is 0, since all square submatrices of a Cauchy matrix are regular.
        let count = self.missing.len();
        let mut rows: Vec<Vec<u8>> = self
            .parities
            .iter()
            .map(|(index, _)| self.missing.iter().map(|cell| factor(*index, *cell)).collect())
            .collect();
        for pivot in 0..count {
            let scale = inverse(rows[pivot][pivot]);
            let row: Vec<u8> = rows[pivot].iter().map(|value| times(*value, scale)).collect();
            let mut bytes = vec![0; self.parities[pivot].1.len()];
            add_product(&mut bytes, &self.parities[pivot].1, scale);
            for other in (0..count).filter(|other| *other != pivot) {
                let share = rows[other][pivot];
                add_product(&mut rows[other], &row, share);
                add_product(&mut self.parities[other].1, &bytes, share);
            }
            (rows[pivot], self.parities[pivot].1) = (row, bytes);
        }
        self.missing.into_iter().zip(self.parities.into_iter().map(|held| held.1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(cells: u8, payload: usize, last: usize, seed: u64) -> Vec<Vec<u8>> {
        let mut rng = rackweave_core::Rng::stream(seed, 0, 0, "cells");
        let len = |cell| if cell + 1 == cells { last } else { payload };
        (0..cells).map(|cell| (0..len(cell)).map(|_| rng.below(256) as u8).collect()).collect()
    }

    fn encode(cells: &[Vec<u8>], payload: usize, index: u8) -> Vec<u8> {
        let mut parity = vec![0; payload];
        for (cell, bytes) in (0..).zip(cells) {
            add(&mut parity, index, cell, bytes);
        }
        parity
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Any missing cells are recovered from any parities of the same number.
        #[test]
        fn missing_cells_are_recovered(
            seed: u64,
            cells in 1..=MAX_CELLS,
            payload in 1_usize..40,
            last in 1_usize..40,
            lost: u64,
            order in Just((0..MAX_PARITIES).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let last = last.min(payload);
            let whole = block(cells, payload, last, seed);
            let mut missing = lost & (u64::MAX >> (64 - cells));
            while missing.count_ones() > u32::from(MAX_PARITIES) {
                missing &= missing - 1;
            }
            let parities: Vec<(u8, Vec<u8>)> = order
                .into_iter()
                .take(missing.count_ones() as usize)
                .map(|index| (index, encode(&whole, payload, index)))
                .collect();
            let held = || parities.iter().map(|(index, bytes)| (*index, &bytes[..]));
            if missing != 0 {
                prop_assert!(Repair::new(missing, held().skip(1)).is_none(), "too few");
            }
            let mut repair = Repair::new(missing, held().chain(held())).expect("enough");
            for (cell, bytes) in (0..).zip(&whole).filter(|(cell, _)| missing >> cell & 1 == 0) {
                repair.add(cell, bytes);
            }
            let found = repair.finish();
            prop_assert_eq!(found.len() as u32, missing.count_ones());
            for (cell, bytes) in found {
                prop_assert!(missing >> cell & 1 == 1);
                let (here, padding) = bytes.split_at(whole[usize::from(cell)].len());
                prop_assert_eq!(here, &whole[usize::from(cell)][..]);
                prop_assert!(padding.iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn the_first_parity_is_the_sum() {
        assert!((0..MAX_CELLS).all(|cell| factor(0, cell) == 1));
        assert!((1..=255).all(|a| times(a, inverse(a)) == 1));
    }
}
