//! What a worker sends: its pairs, combined before they are sent, and divided into epochs.

use rackweave_core::rng::mix;
use rackweave_wire::reduce::{KEY_BYTES, Operator, PAIR_BYTES};

use super::key::{Key, Seeded, SeededMap, epoch_of, hash_of};
use super::sketch::Sketch;
use super::table::combine;
use super::worker::{Content, Sizes};

/// In which order a worker sends the pairs of an epoch. The slots of a table without epochs belong to the keys that come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By the hash of the key: as good as random, and different for each job.
    #[default]
    Hash,
    /// In the order in which the keys were first seen.
    FirstSeen,
    /// The largest values first: frequent words get the slots.
    HotFirst,
}

/// The seed of the hashes of sketches, the same for all workers.
const SKETCH_SEED: u64 = 0x52ac_4b77;

/// Bytes of a record in front of its key: the key's length and the value.
pub(super) const RECORD_BYTES: usize = 12;

/// The pairs of a worker.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    operator: Operator,
    /// Where the pair of a key is; unused without a combiner.
    index: SeededMap<Box<[u8]>, usize>,
    short: SeededMap<Key, usize>,
    pairs: Vec<Pair>,
    sketch: Sketch,
}

/// A pair that is sent one or several times.
#[derive(Clone, Debug)]
struct Pair {
    word: Word,
    value: u64,
    times: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Short(Key),
    Long(Box<[u8]>),
}

impl Word {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(key) => key.bytes(),
            Self::Long(bytes) => bytes,
        }
    }
}

impl Pairs {
    /// No pairs.
    #[must_use]
    pub fn new(operator: Operator) -> Self {
        Self::seeded(operator, 0)
    }

    /// No pairs. The seed, a random number, hides how keys are hashed here; nothing else depends on it.
    #[must_use]
    pub fn seeded(operator: Operator, seed: u64) -> Self {
        let (index, short) =
            (SeededMap::with_hasher(Seeded(seed)), SeededMap::with_hasher(Seeded(seed)));
        Self { operator, index, short, ..Self::default() }
    }

    /// Adds a value, combined with the earlier ones of its key: what MapReduce calls a combiner. For [`Operator::Count`] each call counts
    /// as one, whatever the value.
    pub fn add(&mut self, key: &[u8], value: u64) {
        let value = if self.operator == Operator::Count { 1 } else { value };
        let next = self.pairs.len();
        let at = if let Some(short) = Key::new(key) {
            let at = *self.short.entry(short).or_insert(next);
            if at == next {
                self.push_new(Word::Short(short), value, 1);
            }
            at
        } else if let Some(at) = self.index.get(key) {
            *at
        } else {
            self.index.insert(key.into(), next);
            self.push_new(Word::Long(key.into()), value, 1);
            next
        };
        if at != next {
            let sum = &mut self.pairs[at].value;
            *sum = combine(self.operator, *sum, value);
        }
    }

    /// Adds a pair that is sent this many times, each by itself, as a job without a combiner does. The key is not compared with earlier
    /// ones.
    pub fn add_uncombined(&mut self, key: &[u8], value: u64, times: u32) {
        let value = if self.operator == Operator::Count { 1 } else { value };
        let word = Key::new(key).map_or_else(|| Word::Long(key.into()), Word::Short);
        self.push_new(word, value, times);
    }

    fn push_new(&mut self, word: Word, value: u64, times: u32) {
        self.sketch.add(hash_of(word.bytes(), SKETCH_SEED));
        self.pairs.push(Pair { word, value, times });
    }

    /// Returns how values of equal keys are combined.
    #[must_use]
    pub const fn operator(&self) -> Operator {
        self.operator
    }

    /// Returns the number of pairs. Equal ones that were added together count once.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns whether there are no pairs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the sketch of the keys.
    #[must_use]
    pub const fn sketch(&self) -> &Sketch {
        &self.sketch
    }

    /// Returns a digest of all pairs, which does not depend on their order.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let one = |pair: &Pair| {
            let of_value = mix(mix(pair.value) ^ u64::from(pair.times));
            mix(hash_of(pair.word.bytes(), SKETCH_SEED) ^ of_value)
        };
        self.pairs.iter().map(one).fold(self.pairs.len() as u64, u64::wrapping_add)
    }

    /// Returns all pairs, in the order in which their keys were first seen. Equal ones that were added together come once.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.pairs.iter().map(|pair| (pair.word.bytes(), pair.value))
    }

    /// Divides the pairs into epochs.
    ///
    /// # Errors
    /// If the records of one epoch are longer than 4 GiB.
    pub fn encode(&self, epochs: u16, seed: u64, order: Order) -> Result<Encoded, TooLong> {
        let mut sorted: Vec<_> =
            self.pairs.iter().map(|pair| (hash_of(pair.word.bytes(), seed), pair)).collect();
        match order {
            Order::Hash => sorted.sort_by_key(|(hash, ..)| *hash & 0xffff_ffff),
            Order::FirstSeen => {}
            Order::HotFirst => sorted.sort_by_key(|(_, pair)| core::cmp::Reverse(pair.value)),
        }
        let mut encoded = Encoded { epochs: vec![Epoch::default(); usize::from(epochs.max(1))] };
        for (hash, Pair { word, value, times }) in sorted {
            let epoch = &mut encoded.epochs[usize::from(epoch_of(hash, epochs.max(1)))];
            for _ in 0..*times {
                match (word, u32::try_from(*value)) {
                    (Word::Short(key), Ok(value)) => {
                        epoch.pairs.extend_from_slice(&key.0);
                        epoch.pairs.extend_from_slice(&value.to_be_bytes());
                    }
                    (word, _) => {
                        let bytes = word.bytes();
                        let len = u32::try_from(bytes.len()).map_err(|_| TooLong)?;
                        epoch.records.extend_from_slice(&len.to_be_bytes());
                        epoch.records.extend_from_slice(&value.to_be_bytes());
                        epoch.records.extend_from_slice(bytes);
                    }
                }
            }
        }
        let fits = |epoch: &Epoch| u32::try_from(epoch.records.len()).is_ok();
        if encoded.epochs.iter().all(fits) { Ok(encoded) } else { Err(TooLong) }
    }
}

/// The long keys of an epoch take more than 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the long keys of one epoch take more than 4 GiB")]
pub struct TooLong;

#[derive(Clone, Debug, Default)]
struct Epoch {
    /// Pairs of [`PAIR_BYTES`].
    pairs: Vec<u8>,
    /// Records of keys and values that are too large for a pair: length of the key (32 bits), value (64 bits), key.
    records: Vec<u8>,
}

/// The pairs of a worker, as it sends them.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    epochs: Vec<Epoch>,
}

impl Encoded {
    /// Returns what there is of each epoch.
    #[must_use]
    pub fn sizes(&self) -> Vec<Sizes> {
        let size = |epoch: &Epoch| Sizes {
            pairs: (epoch.pairs.len() / PAIR_BYTES) as u32,
            long_bytes: epoch.records.len() as u32,
        };
        self.epochs.iter().map(size).collect()
    }

    /// Returns the payload that a message of the worker names; empty for other messages, and for what does not exist.
    #[must_use]
    pub fn payload(&self, content: Content) -> &[u8] {
        let (bytes, start, len) = match content {
            Content::None | Content::Sketch => return &[],
            Content::Pairs { epoch, first, count } => {
                let Some(epoch) = self.epochs.get(usize::from(epoch)) else { return &[] };
                (&epoch.pairs, first as usize * PAIR_BYTES, usize::from(count) * PAIR_BYTES)
            }
            Content::Long { epoch, offset, len } => {
                let Some(epoch) = self.epochs.get(usize::from(epoch)) else { return &[] };
                (&epoch.records, offset as usize, usize::from(len))
            }
        };
        bytes.get(start..start + len).unwrap_or_default()
    }
}

const _: () = assert!(PAIR_BYTES == KEY_BYTES + 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_combined_and_each_is_in_the_epoch_of_its_hash() {
        let mut pairs = Pairs::new(Operator::Sum);
        let long = b"a key that is longer than a slot";
        for key in [&b"b"[..], b"a", b"b", long, long, b""] {
            pairs.add(key, 1);
        }
        pairs.add(b"huge", u64::from(u32::MAX) + 1);
        let all: Vec<_> = pairs.iter().collect();
        let huge = 1_u64 << 32;
        assert_eq!(all, [(&b"b"[..], 2), (b"a", 1), (long, 2), (b"", 1), (b"huge", huge)]);
        let seed = 99;
        let encoded = pairs.encode(3, seed, Order::HotFirst).unwrap();
        let sizes = encoded.sizes();
        assert_eq!(sizes.iter().map(|size| size.pairs).sum::<u32>(), 2);
        let records: u32 = sizes.iter().map(|size| size.long_bytes).sum();
        assert_eq!(records as usize, 3 * RECORD_BYTES + long.len() + 4);
        for (epoch, size) in (0..).zip(sizes) {
            for first in 0..size.pairs {
                let pair = encoded.payload(Content::Pairs { epoch, first, count: 1 });
                let key = Key(pair[..KEY_BYTES].try_into().unwrap());
                assert_eq!(epoch_of(key.hash(seed), 3), epoch);
            }
        }
        assert_eq!(encoded.payload(Content::Pairs { epoch: 3, first: 0, count: 1 }), b"");
        assert_eq!(encoded.payload(Content::Pairs { epoch: 0, first: 9, count: 1 }), b"");
    }

    #[test]
    fn the_orders_differ_only_in_order() {
        let mut pairs = Pairs::new(Operator::Count);
        for word in "the cat and the dog and the end".split(' ') {
            pairs.add(word.as_bytes(), 7);
        }
        let words = |order| {
            let encoded = pairs.encode(1, 5, order).unwrap();
            let bytes = encoded.payload(Content::Pairs { epoch: 0, first: 0, count: 5 }).to_vec();
            let pairs = bytes.as_chunks::<PAIR_BYTES>().0;
            pairs.iter().map(|pair| (pair[0], pair[19])).collect::<Vec<_>>()
        };
        let first_seen = words(Order::FirstSeen);
        assert_eq!(first_seen, [(b't', 3), (b'c', 1), (b'a', 2), (b'd', 1), (b'e', 1)]);
        let hot = words(Order::HotFirst);
        assert_eq!(hot[..2], [(b't', 3), (b'a', 2)]);
        let mut hashed = words(Order::Hash);
        hashed.sort_unstable();
        let mut sorted = first_seen;
        sorted.sort_unstable();
        assert_eq!(hashed, sorted);
    }
}
