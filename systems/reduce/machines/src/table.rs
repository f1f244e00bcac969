//! The slots of a switch, in which it adds up values.

use core::ops::Range;

use rackweave_wire::reduce::{Operator, SUM_BYTES};

use super::key::{Key, bucket_of};

/// A sum and its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// The key; [`Key::EMPTY`] in an empty slot.
    pub key: Key,
    /// What the values of this key have been combined to.
    pub value: u64,
}

/// Returns the combination of a sum with one more value.
#[must_use]
#[inline]
pub const fn combine(operator: Operator, sum: u64, value: u64) -> u64 {
    match operator {
        // A worker has combined its own values before; the number of them is then added up.
        Operator::Sum | Operator::Count => sum.wrapping_add(value),
        Operator::Min => {
            if value < sum {
                value
            } else {
                sum
            }
        }
        Operator::Max => {
            if value > sum {
                value
            } else {
                sum
            }
        }
    }
}

/// Slots in buckets: a key is in one of the slots of its bucket. What finds its bucket full is not taken.
#[derive(Clone, Debug)]
pub struct Table {
    slots: Vec<Slot>,
    ways: u32,
}

impl Table {
    /// An empty table of at most `slots` slots in buckets of `ways`, which is at least 1.
    #[must_use]
    pub fn new(slots: u32, ways: u8) -> Self {
        let ways = u32::from(ways.max(1));
        let slots = slots - slots % ways;
        Self { slots: vec![Slot::default(); slots as usize], ways }
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of slots of a bucket. The bounds of ranges are multiples of it.
    #[must_use]
    pub const fn ways(&self) -> u32 {
        self.ways
    }

    /// Combines a value with the sum of its key in a range of slots. Returns false if the key has no slot and its bucket is full.
    #[inline]
    pub fn add(
        &mut self,
        range: Range<u32>,
        hash: u64,
        key: Key,
        operator: Operator,
        value: u64,
    ) -> bool {
        let bucket = bucket_of(hash, (range.end - range.start) / self.ways);
        let first = (range.start + bucket * self.ways) as usize;
        let Some(bucket) = self.slots.get_mut(first..first + self.ways as usize) else {
            return false;
        };
        for slot in bucket {
            if slot.key == key {
                slot.value = combine(operator, slot.value, value);
                return true;
            }
            if slot.key == Key::EMPTY {
                *slot = Slot { key, value };
                return true;
            }
        }
        false
    }

    /// Reads the first slot of a key's bucket, so that it is in the cache when the key is added. Reads of several keys overlap, whereas each
    /// [`Table::add`] waits for its own.
    #[inline]
    pub fn load(&self, range: Range<u32>, hash: u64) {
        let bucket = bucket_of(hash, (range.end - range.start) / self.ways);
        if let Some(slot) = self.slots.get((range.start + bucket * self.ways) as usize) {
            core::hint::black_box(slot.key.0[0]);
        }
    }

    /// Returns the register of a key under P4-ORDC's rule: any slot of the range, whichever key has used it before.
    #[must_use]
    pub fn register(&mut self, range: Range<u32>, hash: u64) -> Option<&mut Slot> {
        let index = range.start + bucket_of(hash, range.end - range.start);
        self.slots.get_mut(index as usize)
    }

    /// Returns the slots of a range, whose registers alone are used by vectors: their keys remain empty.
    #[must_use]
    pub fn registers(&mut self, range: Range<u32>) -> &mut [Slot] {
        self.slots.get_mut(range.start as usize..range.end as usize).unwrap_or_default()
    }

    /// Appends the sums in a range of slots as a message carries them, and returns their number.
    pub fn read(&self, range: Range<u32>, out: &mut Vec<u8>) -> u8 {
        let slots = self.slots.get(range.start as usize..range.end as usize).unwrap_or_default();
        let mut sums = 0;
        for slot in slots.iter().filter(|slot| slot.key != Key::EMPTY) {
            out.extend_from_slice(&slot.key.0);
            out.extend_from_slice(&slot.value.to_be_bytes());
            sums += 1;
        }
        debug_assert!(out.len() >= usize::from(sums) * SUM_BYTES);
        sums
    }

    /// Empties a range of slots.
    pub fn clear(&mut self, range: Range<u32>) {
        if let Some(slots) = self.slots.get_mut(range.start as usize..range.end as usize) {
            slots.fill(Slot::default());
        }
    }

    /// Returns the number of used slots in a range.
    #[must_use]
    pub fn used(&self, range: Range<u32>) -> u32 {
        let slots = self.slots.get(range.start as usize..range.end as usize).unwrap_or_default();
        slots.iter().filter(|slot| slot.key != Key::EMPTY).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> (u64, Key) {
        let key = Key::new(name.as_bytes()).unwrap();
        (key.hash(7), key)
    }

    #[test]
    fn values_of_a_key_are_combined_and_a_full_bucket_takes_no_other_key() {
        let mut table = Table::new(9, 4);
        assert_eq!(table.slots(), 8);
        let mut taken = 0;
        for number in 0..20 {
            let (hash, key) = key(&format!("k{number}"));
            if table.add(0..8, hash, key, Operator::Sum, 10) {
                taken += 1;
                assert!(table.add(0..8, hash, key, Operator::Sum, 1));
            }
        }
        assert_eq!((taken, table.used(0..8)), (8, 8));
        let mut out = Vec::new();
        assert_eq!(table.read(0..8, &mut out), 8);
        assert!(out.chunks(SUM_BYTES).all(|sum| sum[16..] == 11_u64.to_be_bytes()));
        table.clear(4..8);
        assert_eq!((table.used(0..4), table.used(4..8)), (4, 0));
    }

    #[test]
    fn operators_are_what_they_are_called() {
        assert_eq!(combine(Operator::Sum, u64::MAX, 2), 1);
        assert_eq!(combine(Operator::Count, 3, 2), 5);
        assert_eq!((combine(Operator::Min, 3, 2), combine(Operator::Min, 2, 3)), (2, 2));
        assert_eq!((combine(Operator::Max, 3, 2), combine(Operator::Max, 2, 3)), (3, 3));
    }

    /// M keys at random in M / w buckets of w ways: the share that finds no slot is that of a Poisson number of keys a bucket.
    #[test]
    fn the_share_without_a_slot_is_that_of_the_poisson_distribution() {
        for (ways, load, expected) in [(4_u8, 0.7_f64, 0.0905), (8, 0.7, 0.0397), (1, 1.0, 0.3679)]
        {
            let slots = 1 << 16;
            let mut table = Table::new(slots, ways);
            let keys = (f64::from(slots) * load) as u32;
            let lost = (0..keys)
                .filter(|number| {
                    let (hash, key) = key(&format!("key {number}"));
                    !table.add(0..slots, hash, key, Operator::Sum, 1)
                })
                .count();
            let share = lost as f64 / f64::from(keys);
            assert!((share - expected).abs() < 0.005, "{ways} ways at {load}: {share}");
        }
    }
}
