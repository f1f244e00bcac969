//! Parity over the cells of a block, as bytes: a systematic code over GF(2^8) from which any of a block's cells can be
//! computed with as many parities. (Ours: a Cauchy matrix whose columns are scaled so that the first parity is the plain sum,
//! which is what most losses need. Codes by fast Fourier transforms take some milliseconds for a block of this size.)
//!
//! Cells that are shorter than the payload count as if zeros followed.

/// Most cells of a block.
pub const MAX_CELLS: u8 = 64;
/// Most parities of a block.
pub const MAX_PARITIES: u8 = 32;

/// x^8 + x^4 + x^3 + x^2 + 1, without its first term.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of x, twice over, and their logarithms.
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

fn times(a: u8, b: u8) -> u8 {
    let (powers, logs) = &TABLES;
    match (a, b) {
        (0, _) | (_, 0) => 0,
        _ => powers[usize::from(logs[usize::from(a)]) + usize::from(logs[usize::from(b)])],
    }
}

/// 1 / `a`, for `a` that is not 0.
fn inverse(a: u8) -> u8 {
    let (powers, logs) = &TABLES;
    powers[255 - usize::from(logs[usize::from(a)])]
}

/// How often a cell counts in a parity.
fn factor(index: u8, cell: u8) -> u8 {
    // Rows and columns are numbered without overlap, so that no difference is 0.
    let column = MAX_PARITIES + cell;
    times(column, inverse(index ^ column))
}

/// `to` += `factor` * `from`, byte by byte.
fn add_product(to: &mut [u8], from: &[u8], factor: u8) {
    if factor == 1 {
        for (to, from) in to.iter_mut().zip(from) {
            *to ^= from;
        }
        return;
    }
    // Without tables, so that compilers can make vector instructions of it.
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

/// Adds a cell of the block to a parity, which begins as zeros; or takes it away again.
/// What is beyond [`MAX_PARITIES`] or [`MAX_CELLS`] is no part of it.
pub fn add(parity: &mut [u8], index: u8, cell: u8, bytes: &[u8]) {
    if index < MAX_PARITIES && cell < MAX_CELLS {
        add_product(parity, bytes, factor(index, cell));
    }
}

/// A block whose missing cells are computed.
#[derive(Clone, Debug)]
pub struct Repair {
    missing: Vec<u8>,
    parities: Vec<(u8, Vec<u8>)>,
}

impl Repair {
    /// Of a block that lacks these cells (a bit for each), with as many of these parities as are needed: number and bytes, all
    /// of a length. `None` if they don't suffice.
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

    /// A cell of the block that is here. Each of them is to be added once.
    pub fn add(&mut self, cell: u8, bytes: &[u8]) {
        if cell < MAX_CELLS {
            for (index, parity) in &mut self.parities {
                add_product(parity, bytes, factor(*index, cell));
            }
        }
    }

    /// The missing cells and their bytes, in the payload's length.
    #[must_use]
    pub fn finish(mut self) -> Vec<(u8, Vec<u8>)> {
        // Gauss and Jordan. No pivot is 0: all square parts of the matrix are regular, and so is what elimination leaves of them.
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

        /// Any cells come back from any parities of the same number.
        #[test]
        fn what_is_missing_is_computed(
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
