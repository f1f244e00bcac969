//! The slots of a job that adds up vectors.
//!
//! SwitchML (`docs/protocols/ordc.md#switchml`) has two versions of each slot and a bitmap of workers for each. A
//! worker uses a slot again when it has the result of its last use. So whoever sends the next chunk but one shows that
//! all have the result that it overwrites. There a packet names slot and version only; here a version also knows the
//! number of its chunk, so that a packet that is late by any time is recognised.

use core::ops::Range;

use rackweave_wire::reduce::{Chunk, Format};

use super::super::table::Slot;

/// What is known of one version of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Version {
    /// The number of the chunk plus 1; 0 for none.
    next: u64,
    /// The workers whose elements have been added.
    seen: u64,
    count: u16,
    format: Format,
    exponent: u8,
    tag: u32,
}

/// What has become of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It is of a time that is over, or not what the other workers have sent.
    Stale,
    /// It was added, and others are missing.
    Counted,
    /// It was there before, and these workers are missing.
    Waiting(u64),
    /// It was the last: the sum goes to all workers.
    Complete(Chunk),
    /// It was there before, and the sum is complete: it goes to its worker once more.
    Again(Chunk),
}

/// The slots of a job.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// The number of slots.
    size: u16,
    elements: u16,
    format: Format,
    /// The bitmap of all workers.
    all: u64,
    versions: Vec<Version>,
}

/// Returns the number of registers for a chunk: a register holds one integer of 64 bits, or two of 32, as SwitchML's do.
pub(super) const fn registers(format: Format, elements: u16) -> u32 {
    match format {
        Format::I64 => elements as u32,
        Format::BlockFloat => (elements as u32).div_ceil(2),
    }
}

impl Pool {
    /// An empty pool of a job with this number of workers, 1 to 64.
    pub(super) fn new(size: u16, elements: u16, format: Format, workers: u8) -> Self {
        let versions = vec![Version::default(); usize::from(size) * 2];
        Self { size, elements, format, all: u64::MAX >> (64 - workers), versions }
    }

    pub(super) const fn size(&self) -> u16 {
        self.size
    }

    pub(super) fn clear(&mut self) {
        self.versions.fill(Version::default());
    }

    /// Whether it has this shape.
    pub(super) const fn is(&self, elements: u16, format: Format, workers: u8) -> bool {
        self.elements == elements
            && self.format as u8 == format as u8
            && self.all == u64::MAX >> (64 - workers)
    }

    fn index(&self, number: u64) -> usize {
        let (size, number) = (u64::from(self.size), number % (2 * u64::from(self.size)));
        (number % size * 2 + number / size) as usize
    }

    /// The registers of a chunk, counted from those of the job.
    pub(super) fn range(&self, number: u64) -> Range<u32> {
        let len = registers(self.format, self.elements);
        let start = self.index(number) as u32 * len;
        start..start + len
    }

    /// Adds a worker's chunk, whose payload has its length, to the registers of its slot.
    pub(super) fn add(
        &mut self,
        worker: u8,
        chunk: &Chunk,
        payload: &[u8],
        registers: &mut [Slot],
    ) -> Added {
        let (number, index) = (chunk.number.get(), self.index(chunk.number.get()));
        let Some(version) = self.versions.get_mut(index) else { return Added::Stale };
        let Some(next) = number.checked_add(1) else { return Added::Stale };
        // Vectors of one job may have different formats: what counts is that they fit.
        let Chunk { count, format, tag, .. } = *chunk;
        if self::registers(format, count) > self::registers(self.format, self.elements) {
            return Added::Stale;
        }
        let (bit, is_complete) = (1 << worker, version.seen == self.all);
        if version.next < next {
            // Who sends this has the sum of the slot's previous chunk, so all have the one that is overwritten.
            if version.next > 0 && !is_complete {
                return Added::Stale;
            }
            let exponent = chunk.exponent;
            *version = Version { next, seen: bit, count, format, exponent, tag };
            write(payload, registers);
        } else if version.next > next
            || (version.count, version.format, version.tag) != (count, format, tag)
        {
            return Added::Stale;
        } else if version.seen & bit == 0 {
            version.seen |= bit;
            version.exponent = version.exponent.max(chunk.exponent);
            add(format, payload, registers);
        } else {
            let missing = self.all & !version.seen;
            let sum = Chunk { exponent: version.exponent, ..*chunk };
            return if is_complete { Added::Again(sum) } else { Added::Waiting(missing) };
        }
        if version.seen != self.all {
            return Added::Counted;
        }
        Added::Complete(Chunk { exponent: version.exponent, ..*chunk })
    }

    /// Appends the sums of a chunk as a message carries them.
    pub(super) fn read(&self, chunk: &Chunk, registers: &[Slot], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + 8 * registers.len(), 0);
        let (values, _) = out[start..].as_chunks_mut::<8>();
        for (bytes, slot) in values.iter_mut().zip(registers) {
            *bytes = slot.value.to_be_bytes();
        }
        out.truncate(start + chunk.payload_len() as usize);
    }
}

/// Returns the contents of registers as payload has them; the last one may be half full.
fn values(payload: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, rest) = payload.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(last);
    whole.iter().copied().chain(last).map(u64::from_be_bytes)
}

fn write(payload: &[u8], registers: &mut [Slot]) {
    for (slot, value) in registers.iter_mut().zip(values(payload)) {
        slot.value = value;
    }
}

fn add(format: Format, payload: &[u8], registers: &mut [Slot]) {
    const LOW: u64 = u32::MAX as u64;
    for (slot, value) in registers.iter_mut().zip(values(payload)) {
        slot.value = match format {
            Format::I64 => slot.value.wrapping_add(value),
            Format::BlockFloat => {
                let low = (slot.value & LOW).wrapping_add(value & LOW) & LOW;
                (slot.value & !LOW).wrapping_add(value & !LOW) | low
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use rackweave_wire::Id64;

    use super::*;

    fn chunk(number: u64, values: &[i32], exponent: u8) -> (Chunk, Vec<u8>) {
        let (count, format) = (values.len() as u16, Format::BlockFloat);
        let chunk = Chunk { number: Id64::new(number), count, exponent, format, tag: 0 };
        (chunk, values.iter().flat_map(|value| value.to_be_bytes()).collect())
    }

    struct Bench {
        pool: Pool,
        slots: Vec<Slot>,
    }

    impl Bench {
        fn add(&mut self, worker: u8, number: u64, values: &[i32], exponent: u8) -> Added {
            let (chunk, payload) = chunk(number, values, exponent);
            let range = self.pool.range(number);
            let slots = &mut self.slots[range.start as usize..range.end as usize];
            self.pool.add(worker, &chunk, &payload, slots)
        }

        fn sum(&self, number: u64, count: usize) -> Vec<i32> {
            let range = self.pool.range(number);
            let slots = &self.slots[range.start as usize..range.end as usize];
            let mut out = Vec::new();
            self.pool.read(&chunk(number, &vec![0; count], 0).0, slots, &mut out);
            out.chunks(4).map(|bytes| i32::from_be_bytes(bytes.try_into().unwrap())).collect()
        }
    }

    #[test]
    fn halves_of_a_register_do_not_carry_into_each_other() {
        let pool = Pool::new(2, 5, Format::BlockFloat, 3);
        let mut bench = Bench { pool, slots: vec![Slot::default(); 12] };
        assert_eq!(bench.add(0, 0, &[-1, -2, i32::MAX, 7, -5], 3), Added::Counted);
        assert_eq!(bench.add(2, 0, &[1, -2, i32::MIN, -8, -6], 9), Added::Counted);
        assert_eq!(bench.add(2, 0, &[1, -2, i32::MIN, -8, -6], 9), Added::Waiting(0b010));
        let Added::Complete(sum) = bench.add(1, 0, &[0, 0, 1, 1, 1], 4) else { panic!() };
        assert_eq!((sum.exponent, sum.count), (9, 5));
        assert_eq!(bench.sum(0, 5), [0, -4, 0, 0, -10]);
        assert!(matches!(bench.add(0, 0, &[9; 5], 0), Added::Again(_)));
        assert_eq!(bench.sum(0, 5), [0, -4, 0, 0, -10]);
    }

    #[test]
    fn a_version_is_used_again_after_the_next_but_one_and_knows_what_is_late() {
        let pool = Pool::new(2, 2, Format::BlockFloat, 2);
        let mut bench = Bench { pool, slots: vec![Slot::default(); 4] };
        for number in [0, 2] {
            assert_eq!(bench.add(0, number, &[1, 1], 0), Added::Counted);
            assert!(matches!(bench.add(1, number, &[2, 2], 0), Added::Complete(_)));
        }
        // The sum of chunk 0 is kept until chunk 4 comes.
        assert_eq!(bench.sum(0, 2), [3, 3]);
        assert_eq!(bench.add(0, 4, &[5, 5], 0), Added::Counted);
        assert_eq!(bench.add(1, 0, &[2, 2], 0), Added::Stale, "two uses ago");
        assert_eq!(bench.add(1, 8, &[2, 2], 0), Added::Stale, "its predecessor is not complete");
        assert_eq!(bench.add(1, 4, &[2], 0), Added::Stale, "another length");
        assert!(matches!(bench.add(1, 4, &[2, 2], 0), Added::Complete(_)));
        assert_eq!(bench.sum(4, 2), [7, 7]);
    }

    #[test]
    fn each_chunk_has_a_format_of_its_own_that_all_workers_share() {
        let pool = Pool::new(1, 2, Format::I64, 2);
        let mut bench = Bench { pool, slots: vec![Slot::default(); 4] };
        assert_eq!(bench.add(0, 0, &[1, 2, 3, 4], 0), Added::Counted);
        assert!(matches!(bench.add(1, 0, &[1, 1, 1, 1], 0), Added::Complete(_)));
        assert_eq!(bench.sum(0, 4), [2, 3, 4, 5]);
        assert_eq!(bench.add(0, 1, &[0; 5], 0), Added::Stale, "it does not fit");
        let number = Id64::new(1);
        let integers = Chunk { number, count: 2, exponent: 0, format: Format::I64, tag: 3 };
        let mut add = |worker, chunk: &Chunk, bytes| {
            bench.pool.add(worker, chunk, &vec![1; bytes], &mut bench.slots[2..4])
        };
        assert_eq!(add(0, &integers, 16), Added::Counted);
        let floats = Chunk { format: Format::BlockFloat, ..integers };
        assert_eq!(add(1, &floats, 8), Added::Stale, "another format");
        let other = Chunk { tag: 4, ..integers };
        assert_eq!(add(1, &other, 16), Added::Stale, "another vector");
        assert!(matches!(add(1, &integers, 16), Added::Complete(_)));
    }
}
