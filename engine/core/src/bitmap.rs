//! Sets of numbers below a bound that is known: chunks of an image, blocks of a file, slots of a table.
//!
//! A [`Bitmap`] takes a bit for each number, whatever its members are. Where members form few long runs and no bound is known, a
//! [`RangeSet`](crate::RangeSet) is smaller.
//!
//! ```
//! use rackweave_core::Bitmap;
//!
//! let mut have = Bitmap::new(200_u32);
//! assert!(have.insert(0) && have.insert(130) && !have.insert(0));
//! assert!(!have.insert(200), "there is no such number");
//! assert_eq!((have.len(), have.is_full()), (2, false));
//! assert_eq!(have.iter().collect::<Vec<_>>(), [0, 130]);
//! assert_eq!((have.next(1), have.next(131)), (Some(130), None));
//! assert_eq!((have.next_missing(0), have.missing().count()), (Some(1), 198));
//! ```

use core::fmt;
use core::iter::from_fn;

use crate::ranges::Position;

/// A set of numbers from 0 up to, not including, its [`size`](Self::size).
///
/// Numbers from there on are never members: adding one is refused, and removing one does nothing. The set occupies an eighth of a
/// byte for each number below the size, so a caller bounds sizes that others choose.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Bitmap<T: Position = u64> {
    /// Bits from `size` on are zero.
    words: Vec<u64>,
    size: T,
    len: T,
}

/// The word of a number, and its bit there.
#[inline]
fn place<T: Position>(number: T) -> (usize, u64) {
    let number: u64 = number.into();
    (usize::try_from(number / 64).unwrap_or(usize::MAX), 1 << (number % 64))
}

/// The numbers whose bits are set in these words, in ascending order.
fn numbers<T: Position>(words: impl Iterator<Item = u64>) -> impl Iterator<Item = T> {
    words.zip((0..).step_by(64)).flat_map(|(word, first): (_, u64)| {
        let mut rest = word;
        from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(T::from_u64(first + u64::from(bit)))
        })
    })
}

impl<T: Position> Bitmap<T> {
    /// Creates the empty set of numbers below `size`.
    #[must_use]
    pub fn new(size: T) -> Self {
        let mut set = Self::default();
        set.grow(size);
        set
    }

    /// Permits numbers below `size` as well, which are no members yet. A set does not become smaller.
    pub fn grow(&mut self, size: T) {
        if size > self.size {
            let words = size.into().div_ceil(64);
            self.words.resize(usize::try_from(words).unwrap_or(usize::MAX), 0);
            self.size = size;
        }
    }

    /// Returns the bound: members are below it.
    #[must_use]
    #[inline]
    pub const fn size(&self) -> T {
        self.size
    }

    /// Returns the number of members.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> T {
        self.len
    }

    /// Returns whether there is no member.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == T::default()
    }

    /// Returns whether every number below the size is a member.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len == self.size
    }

    /// Returns whether the number is a member.
    #[must_use]
    #[inline]
    pub fn contains(&self, number: T) -> bool {
        let (at, bit) = place(number);
        self.words.get(at).is_some_and(|word| word & bit != 0)
    }

    /// Adds a number; returns whether it is new and below the size.
    #[inline]
    pub fn insert(&mut self, number: T) -> bool {
        let (at, bit) = place(number);
        let is_new = number < self.size && self.words[at] & bit == 0;
        if is_new {
            self.words[at] |= bit;
            self.len += T::from_u64(1);
        }
        is_new
    }

    /// Removes a number; returns whether it was a member.
    #[inline]
    pub fn remove(&mut self, number: T) -> bool {
        let was_member = self.contains(number);
        if was_member {
            let (at, bit) = place(number);
            self.words[at] &= !bit;
            self.len -= T::from_u64(1);
        }
        was_member
    }

    /// Returns the members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        numbers(self.words.iter().copied())
    }

    /// Returns the numbers below the size that are no members, in ascending order.
    pub fn missing(&self) -> impl Iterator<Item = T> + '_ {
        numbers((0..self.words.len()).map(|at| !self.words[at] & self.permitted(at)))
    }

    /// Returns the first member from `number` on.
    #[must_use]
    #[inline]
    pub fn next(&self, number: T) -> Option<T> {
        Self::next_in(number, |at| self.words.get(at).copied())
    }

    /// Returns the first number from `number` on that is no member and below the size.
    #[must_use]
    #[inline]
    pub fn next_missing(&self, number: T) -> Option<T> {
        Self::next_in(number, |at| self.missing_word(at))
    }

    /// Returns the bits of the set: bit `n % 64` of word `n / 64` stands for `n`, and bits from the size on are zero. The words as
    /// little-endian bytes are the bitmap whose bit `n % 8` of byte `n / 8` stands for `n`.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Replaces words of the set from the one with index `first` on, and calls `changed` for each number that became a member (true)
    /// or is none any more (false), in ascending order. Bits from the size on are ignored.
    pub fn replace_words(
        &mut self,
        first: usize,
        words: impl IntoIterator<Item = u64>,
        mut changed: impl FnMut(T, bool),
    ) {
        for (at, word) in (first..self.words.len()).zip(words) {
            let new = word & self.permitted(at);
            let old = core::mem::replace(&mut self.words[at], new);
            self.len += T::from_u64(new.count_ones().into());
            self.len -= T::from_u64(old.count_ones().into());
            let mut different = old ^ new;
            while different != 0 {
                let bit = different.trailing_zeros();
                different &= different - 1;
                changed(T::from_u64(at as u64 * 64 + u64::from(bit)), new >> bit & 1 == 1);
            }
        }
    }

    /// The bits of a word that stand for numbers below the size.
    fn permitted(&self, at: usize) -> u64 {
        match self.size.into() % 64 {
            rest if rest != 0 && at + 1 == self.words.len() => (1 << rest) - 1,
            _ => u64::MAX,
        }
    }

    fn missing_word(&self, at: usize) -> Option<u64> {
        Some(!self.words.get(at)? & self.permitted(at))
    }

    #[inline]
    fn next_in(number: T, word: impl Fn(usize) -> Option<u64>) -> Option<T> {
        let (mut at, bit) = place(number);
        // All bits from this one on.
        let mut bits = word(at)? & bit.wrapping_neg();
        while bits == 0 {
            at += 1;
            bits = word(at)?;
        }
        Some(T::from_u64(at as u64 * 64 + u64::from(bits.trailing_zeros())))
    }
}

impl<T: Position> fmt::Debug for Bitmap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.len, self.size)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u32),
        Remove(u32),
        Grow(u32),
        Replace(u32, Vec<u64>),
    }

    fn op() -> impl Strategy<Value = Op> {
        let words = prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], 0..4);
        prop_oneof![
            6 => (0..400_u32).prop_map(Op::Insert),
            3 => (0..400_u32).prop_map(Op::Remove),
            1 => (0..400_u32).prop_map(Op::Grow),
            2 => (0..7_u32, words).prop_map(|(first, words)| Op::Replace(first, words)),
        ]
    }

    /// Compares all that a set says with a model.
    fn agrees(set: &Bitmap<u32>, size: u32, model: &BTreeSet<u32>) -> Result<(), TestCaseError> {
        prop_assert_eq!((set.size(), set.len() as usize), (size, model.len()));
        prop_assert_eq!(set.is_full(), model.len() == size as usize);
        prop_assert_eq!(set.is_empty(), model.is_empty());
        prop_assert!(set.iter().eq(model.iter().copied()));
        prop_assert!(set.missing().eq((0..size).filter(|n| !model.contains(n))));
        for n in (0..500).chain([u32::MAX - 1, u32::MAX]) {
            prop_assert_eq!(set.contains(n), model.contains(&n));
            prop_assert_eq!(set.next(n), model.range(n..).next().copied());
            let missing = (n..size).find(|n| !model.contains(n));
            prop_assert_eq!(set.next_missing(n), missing);
        }
        let bits = |n: u64| set.words().get((n / 64) as usize).map(|word| word >> (n % 64) & 1);
        let words = u64::from(size.div_ceil(64) * 64);
        prop_assert!((0..words).all(|n| bits(n) == Some(model.contains(&(n as u32)).into())));
        prop_assert_eq!(bits(words), None);
        Ok(())
    }

    proptest! {
        #[test]
        fn it_is_a_set_of_numbers_below_its_size(
            start in 0..300_u32,
            ops in prop::collection::vec(op(), 0..60),
        ) {
            let (mut set, mut size, mut model) = (Bitmap::new(start), start, BTreeSet::new());
            for op in ops {
                match op {
                    Op::Insert(n) => {
                        prop_assert_eq!(set.insert(n), n < size && model.insert(n));
                    }
                    Op::Remove(n) => prop_assert_eq!(set.remove(n), model.remove(&n)),
                    Op::Grow(to) => {
                        set.grow(to);
                        size = size.max(to);
                    }
                    Op::Replace(first, words) => {
                        let mut expected = Vec::new();
                        for n in (0..words.len() as u32 * 64).filter(|n| first * 64 + n < size) {
                            let (number, bit) = (first * 64 + n, words[n as usize / 64] >> (n % 64) & 1);
                            let is_change = match bit == 1 {
                                true => model.insert(number),
                                false => model.remove(&number),
                            };
                            expected.extend(is_change.then_some((number, bit == 1)));
                        }
                        let mut changes = Vec::new();
                        set.replace_words(first as usize, words, |n, held| changes.push((n, held)));
                        prop_assert_eq!(changes, expected);
                    }
                }
                prop_assert_eq!(set.len() as usize, model.len());
            }
            agrees(&set, size, &model)?;
            // A copy by words is equal, whatever the copy had.
            let mut copy = Bitmap::new(size);
            copy.replace_words(0, set.words().iter().map(|word| !word), |_, _| {});
            prop_assert_eq!(copy.len(), size - set.len());
            copy.replace_words(0, set.words().iter().copied(), |_, _| {});
            prop_assert_eq!(&copy, &set);
            prop_assert_eq!(format!("{set:?}"), format!("{} of {size}", model.len()));
        }
    }

    #[test]
    fn numbers_of_64_bits_beyond_the_size_are_no_members() {
        let mut set = Bitmap::new(65_u64);
        assert!(
            set.insert(64) && !set.insert(65) && !set.insert(u64::MAX) && !set.remove(u64::MAX)
        );
        assert_eq!((set.next(u64::MAX), set.next_missing(u64::MAX)), (None, None));
        assert_eq!((set.len(), set.words()), (1, &[0, 1][..]));
        set.replace_words(7, [u64::MAX], |_, _| panic!("there is no such word"));
        set.replace_words(usize::MAX, [u64::MAX], |_, _| panic!("there is no such word"));
        assert_eq!((set.len(), Bitmap::<u64>::default().is_full()), (1, true));
    }
}
