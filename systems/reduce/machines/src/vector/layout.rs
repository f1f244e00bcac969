//! How the vector of a step is divided into blocks, and how blocks travel in chunks.
//!
//! Chunk `c` of a step carries the exponent of block `c` and, if it is not one of the first, the elements of block `c - pool`, for which
//! the sum of chunk `c - pool` has brought the exponent. So a step of floats has as many chunks more than blocks as the pool has slots.
//! With integers, which have no exponents, chunk `c` is block `c`. Steps follow one another without a gap in the numbers.

use core::ops::Range;

use rackweave_wire::reduce::{Format, Plan};

/// The division of a job's vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of elements of a vector.
    pub length: u64,
    /// The number of elements of a block.
    pub elements: u16,
    /// The number of slots.
    pub pool: u16,
    /// What the elements are.
    pub format: Format,
    /// The number of steps.
    pub steps: u32,
    /// The number of workers.
    pub workers: u8,
}

/// What a chunk carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The step.
    pub step: u32,
    /// The block whose elements it has.
    pub block: Option<u32>,
    /// The block whose exponent it has.
    pub exponent_of: Option<u32>,
}

impl Layout {
    /// The layout of a plan.
    #[must_use]
    pub const fn of(plan: &Plan) -> Self {
        let Plan { length, elements, pool, format, steps, workers, .. } = *plan;
        Self { length, elements, pool, format, steps, workers }
    }

    /// Returns the number of blocks of a step.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.length.div_ceil(self.elements as u64) as u32
    }

    /// The chunks at the start of a step that carry exponents only.
    const fn leading(&self) -> u64 {
        match self.format {
            Format::I64 => 0,
            Format::BlockFloat => self.pool as u64,
        }
    }

    /// Returns the number of chunks of a step.
    #[must_use]
    pub const fn chunks(&self) -> u64 {
        self.blocks() as u64 + self.leading()
    }

    /// Returns the number of chunks of all steps.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start(self.steps)
    }

    /// Returns the first chunk of a step.
    #[must_use]
    pub const fn start(&self, step: u32) -> u64 {
        // At most 2^32 steps of 2^31 + 2^10 chunks.
        (step as u64).saturating_mul(self.chunks())
    }

    /// Returns the step of a chunk.
    #[must_use]
    pub const fn step(&self, chunk: u64) -> u32 {
        (chunk / self.chunks()) as u32
    }

    /// Returns what a chunk carries.
    #[must_use]
    pub fn content(&self, chunk: u64) -> Content {
        let (step, index) = (self.step(chunk), chunk % self.chunks());
        let block = index.checked_sub(self.leading()).map(|block| block as u32);
        let has_exponent = self.format == Format::BlockFloat && index < u64::from(self.blocks());
        Content { step, block, exponent_of: has_exponent.then_some(index as u32) }
    }

    /// Returns the elements of a block in the vector.
    #[must_use]
    pub const fn range(&self, block: u32) -> Range<usize> {
        let start = block as u64 * self.elements as u64;
        let end = start.saturating_add(self.elements as u64);
        let end = if end < self.length { end } else { self.length };
        start as usize..end as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: Layout = Layout {
        length: 11,
        elements: 4,
        pool: 2,
        format: Format::BlockFloat,
        steps: 3,
        workers: 2,
    };

    #[test]
    fn exponents_are_a_pool_ahead_of_their_blocks() {
        assert_eq!((FLOATS.blocks(), FLOATS.chunks(), FLOATS.end()), (3, 5, 15));
        let carried: Vec<_> = (5..10).map(|chunk| FLOATS.content(chunk)).collect();
        let content = |block, exponent_of| Content { step: 1, block, exponent_of };
        let expected = [
            content(None, Some(0)),
            content(None, Some(1)),
            content(Some(0), Some(2)),
            content(Some(1), None),
            content(Some(2), None),
        ];
        assert_eq!(carried, expected);
        assert_eq!((FLOATS.range(1), FLOATS.range(2)), (4..8, 8..11));
    }

    #[test]
    fn integers_have_no_exponents() {
        let layout = Layout { format: Format::I64, ..FLOATS };
        assert_eq!((layout.chunks(), layout.end()), (3, 9));
        let content = Content { step: 2, block: Some(1), exponent_of: None };
        assert_eq!(layout.content(7), content);
    }
}
