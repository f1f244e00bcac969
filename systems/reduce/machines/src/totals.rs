//! What a master has collected: the sums of each epoch.

use std::collections::BTreeMap;

use rackweave_wire::reduce::{KEY_BYTES, LONG_BYTES, MAX_WINDOW, Operator, PAIR_BYTES, SUM_BYTES};

use super::key::{Key, Seeded, SeededMap};
use super::source::RECORD_BYTES;
use super::table::combine;

/// Why the records of a worker cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecords {
    /// A part is farther ahead than a window allows.
    #[error("a part is beyond the window")]
    BeyondWindow,
    /// A key is longer than the limit.
    #[error("a key of {0} bytes is longer than 16 MiB")]
    KeyTooLong(u32),
    /// The worker has finished with a record that is not complete, or with other bytes than it had announced.
    #[error("{got} of {expected} bytes make whole records")]
    Incomplete {
        /// Bytes in whole records.
        got: u32,
        /// Bytes that the worker has announced.
        expected: u32,
    },
}

/// The longest key.
const MAX_KEY_BYTES: u32 = 16 << 20;

/// Records that arrive in parts, in any order.
#[derive(Clone, Debug, Default)]
struct Records {
    /// The bytes in front of this offset have been read, or are in `buffer`.
    next: u32,
    /// The offset of the first record that is not whole.
    whole: u32,
    /// The bytes from `whole` to `next`.
    buffer: Vec<u8>,
    /// Parts behind a gap, at most a window of them.
    parts: BTreeMap<u32, Vec<u8>>,
}

impl Records {
    fn add(
        &mut self,
        offset: u32,
        bytes: &[u8],
        mut record: impl FnMut(&[u8], u64),
    ) -> Result<(), BadRecords> {
        let reach = u32::from(MAX_WINDOW) * u32::from(LONG_BYTES);
        if offset < self.next {
            return Ok(());
        }
        if offset - self.next > reach || self.parts.len() > usize::from(MAX_WINDOW) {
            return Err(BadRecords::BeyondWindow);
        }
        self.parts.insert(offset, bytes.to_vec());
        while let Some(part) = self.parts.remove(&self.next) {
            self.next = self.next.saturating_add(part.len() as u32);
            self.buffer.extend_from_slice(&part);
        }
        let mut at = 0;
        while let Some((front, rest)) = self.buffer[at..].split_first_chunk::<RECORD_BYTES>() {
            let (len, value) = front.split_at(4);
            let len = u32::from_be_bytes(len.try_into().expect("4 bytes"));
            let value = u64::from_be_bytes(value.try_into().expect("8 bytes"));
            if len > MAX_KEY_BYTES {
                return Err(BadRecords::KeyTooLong(len));
            }
            let Some(key) = rest.get(..len as usize) else { break };
            record(key, value);
            at += RECORD_BYTES + len as usize;
        }
        self.buffer.drain(..at);
        self.whole = self.whole.saturating_add(at as u32);
        Ok(())
    }
}

/// The sums of an epoch.
#[derive(Clone, Debug)]
struct Epoch {
    short: SeededMap<Key, u64>,
    long: BTreeMap<Box<[u8]>, u64>,
    records: BTreeMap<u8, Records>,
}

impl Epoch {
    fn new(seed: u64) -> Self {
        let short = SeededMap::with_hasher(Seeded(seed));
        Self { short, long: BTreeMap::new(), records: BTreeMap::new() }
    }
}

/// What a master has collected.
#[derive(Clone, Debug)]
pub struct Totals {
    operator: Operator,
    seed: u64,
    epochs: BTreeMap<u16, Epoch>,
    /// Records of long keys that were read.
    records: u64,
}

impl Totals {
    /// No sums. The seed, a random number, hides how keys are hashed here; nothing else depends on it.
    #[must_use]
    pub const fn new(operator: Operator, seed: u64) -> Self {
        Self { operator, seed, epochs: BTreeMap::new(), records: 0 }
    }

    fn epoch(&mut self, epoch: u16) -> &mut Epoch {
        self.epochs.entry(epoch).or_insert_with(|| Epoch::new(self.seed))
    }

    /// Combines pairs with the sums of an epoch.
    pub fn add_pairs(&mut self, epoch: u16, bytes: &[u8]) {
        let operator = self.operator;
        let sums = &mut self.epoch(epoch).short;
        for pair in bytes.as_chunks::<PAIR_BYTES>().0 {
            let (key, value) = pair.split_at(KEY_BYTES);
            let value = u32::from_be_bytes(value.try_into().expect("a pair ends with a value"));
            add(sums, operator, key, u64::from(value));
        }
    }

    /// Combines sums of the switch with those of an epoch.
    pub fn add_sums(&mut self, epoch: u16, bytes: &[u8]) {
        let operator = self.operator;
        let sums = &mut self.epoch(epoch).short;
        for sum in bytes.as_chunks::<SUM_BYTES>().0 {
            let (key, value) = sum.split_at(KEY_BYTES);
            let value = u64::from_be_bytes(value.try_into().expect("a sum ends with a value"));
            add(sums, operator, key, value);
        }
    }

    /// Takes a part of a worker's records.
    ///
    /// # Errors
    /// If they cannot be records.
    pub fn add_records(
        &mut self,
        epoch: u16,
        worker: u8,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), BadRecords> {
        let operator = self.operator;
        let Self { epochs, seed, .. } = self;
        let epoch = epochs.entry(epoch).or_insert_with(|| Epoch::new(*seed));
        let Epoch { short, long, records } = epoch;
        let read = &mut self.records;
        records.entry(worker).or_default().add(offset, bytes, |key, value| {
            *read += 1;
            if let Some(key) = Key::new(key) {
                return add(short, operator, &key.0, value);
            }
            match long.get_mut(key) {
                Some(sum) => *sum = combine(operator, *sum, value),
                None => drop(long.insert(key.into(), value)),
            }
        })
    }

    /// A worker has finished an epoch in which it had this length of records.
    ///
    /// # Errors
    /// If not all of them were read.
    pub fn finish(&mut self, epoch: u16, worker: u8, long_bytes: u32) -> Result<(), BadRecords> {
        let records = self.epoch(epoch).records.remove(&worker);
        let got = records.map_or(0, |records| records.whole);
        if got == long_bytes {
            Ok(())
        } else {
            Err(BadRecords::Incomplete { got, expected: long_bytes })
        }
    }

    /// Discards the sums of the epochs from this one on.
    pub fn discard(&mut self, first: u16) {
        self.epochs.retain(|epoch, _| *epoch < first);
    }

    /// Returns the number of records of long keys or large values that were read, those of discarded epochs included.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.epochs.values().map(|epoch| epoch.short.len() + epoch.long.len()).sum()
    }

    /// Returns whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all keys with their sums, in the order of their bytes.
    #[must_use]
    pub fn into_sorted(self) -> Vec<(Box<[u8]>, u64)> {
        let mut all = Vec::with_capacity(self.len());
        for epoch in self.epochs.into_values() {
            all.extend(epoch.short.into_iter().map(|(key, sum)| (Box::from(key.bytes()), sum)));
            all.extend(epoch.long);
        }
        all.sort_unstable();
        all
    }
}

#[inline]
fn add(sums: &mut SeededMap<Key, u64>, operator: Operator, key: &[u8], value: u64) {
    let key = Key(key.try_into().expect("a key of fixed length"));
    sums.entry(key).and_modify(|sum| *sum = combine(operator, *sum, value)).or_insert(value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::source::{Order, Pairs};
    use crate::worker::Content;

    fn pairs(words: &[&str]) -> Pairs {
        let mut pairs = Pairs::new(Operator::Sum);
        for word in words {
            pairs.add(word.as_bytes(), 1);
        }
        pairs
    }

    #[test]
    fn records_in_any_order_and_twice_are_read_once() {
        let words: Vec<String> =
            (0..300).map(|n| format!("a word of more than sixteen bytes, number {n}")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let encoded = pairs(&words).encode(1, 1, Order::Hash).unwrap();
        let long_bytes = encoded.sizes()[0].long_bytes;
        let mut offsets: Vec<u32> = (0..long_bytes).step_by(usize::from(LONG_BYTES)).collect();
        offsets.reverse();
        offsets.extend_from_within(..3);
        let mut totals = Totals::new(Operator::Sum, 1);
        for offset in offsets {
            let len = (long_bytes - offset).min(u32::from(LONG_BYTES)) as u16;
            let bytes = encoded.payload(Content::Long { epoch: 0, offset, len });
            totals.add_records(0, 3, offset, bytes).unwrap();
        }
        let incomplete = totals.clone().finish(0, 3, long_bytes + 1);
        assert_eq!(
            incomplete,
            Err(BadRecords::Incomplete { got: long_bytes, expected: long_bytes + 1 })
        );
        assert_eq!(totals.finish(0, 3, long_bytes), Ok(()));
        assert_eq!(totals.len(), 300);
        assert!(totals.into_sorted().iter().all(|(_, sum)| *sum == 1));
    }

    #[test]
    fn hostile_records_end_with_a_reason() {
        let mut totals = Totals::new(Operator::Sum, 1);
        let beyond = u32::from(MAX_WINDOW) * u32::from(LONG_BYTES) + 1;
        assert_eq!(totals.add_records(0, 1, beyond, b"x"), Err(BadRecords::BeyondWindow));
        let mut long = vec![0xff; 4];
        long.resize(40, 0);
        assert_eq!(totals.add_records(0, 2, 0, &long), Err(BadRecords::KeyTooLong(u32::MAX)));
    }

    proptest! {
        #[test]
        fn any_bytes_as_records_never_panic(
            parts in prop::collection::vec((0_u32..5_000, prop::collection::vec(any::<u8>(), 1..60)), 0..40)
        ) {
            let mut totals = Totals::new(Operator::Max, 1);
            for (offset, bytes) in parts {
                let _ = totals.add_records(0, 0, offset, &bytes);
            }
            let _ = totals.finish(0, 0, 5);
        }
    }
}
