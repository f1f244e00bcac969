//! How the vector of a step is divided into blocks, and how blocks travel in chunks.
//!
//! Chunk `c` of a step carries the exponent of block `c` and, if it is not one of the first, the elements of block `c - pool`, for which
//! the sum of chunk `c - pool` has brought the exponent. So a step of floats has as many chunks more than blocks as the pool has slots.
//! With integers, which have no exponents, chunk `c` is block `c`. Steps follow one another without a gap in the numbers.
//!
//! A job is *open* if each vector has a length and a format of its own, and there are as many as the workers like: [`Layout::of_vector`] is
//! then the layout of one of them, and [`Part`] says where it is. One of floats with fewer blocks than slots has a chunk with an exponent
//! for each block, and the chunk of a block waits for it.

use core::ops::Range;

use rackweave_wire::reduce::{Format, Plan};

/// The division of a job's vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of elements of a vector; 0 in an open job.
    pub length: u64,
    /// The number of elements of a block.
    pub elements: u16,
    /// The number of slots.
    pub pool: u16,
    /// What the elements are.
    pub format: Format,
    /// The number of steps; 0 in an open job.
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

    /// Whether each vector has a length and a format of its own, and their number is not fixed.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.steps == 0
    }

    /// Returns the layout of one vector of an open job.
    #[must_use]
    pub const fn of_vector(&self, length: u64, format: Format) -> Self {
        let elements = self.elements * self.format.bytes() / format.bytes();
        Self { length, format, elements, ..*self }
    }

    /// Returns the number of blocks of a step.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.length.div_ceil(self.elements as u64) as u32
    }

    /// The chunks at the start of a step that carry exponents only.
    const fn leading(&self) -> u64 {
        let (blocks, pool) = (self.blocks() as u64, self.pool as u64);
        match self.format {
            Format::I64 => 0,
            Format::BlockFloat if blocks < pool => blocks,
            Format::BlockFloat => pool,
        }
    }

    /// Returns the number of chunks of a step.
    #[must_use]
    pub const fn chunks(&self) -> u64 {
        self.blocks() as u64 + self.leading()
    }

    /// Returns the number of chunks of all steps; the largest number in an open job.
    #[must_use]
    pub const fn end(&self) -> u64 {
        if self.is_open() { u64::MAX } else { self.start(self.steps) }
    }

    /// Returns the first chunk of a step.
    #[must_use]
    pub const fn start(&self, step: u32) -> u64 {
        // At most 2^32 steps of 2^31 + 2^10 chunks.
        (step as u64).saturating_mul(self.chunks())
    }

    /// Returns the step of a chunk; 0 in an open job, whose steps only workers know.
    #[must_use]
    pub const fn step(&self, chunk: u64) -> u32 {
        match chunk.checked_div(self.chunks()) {
            Some(step) => step as u32,
            None => 0,
        }
    }

    /// Returns what a chunk carries of a job that is not open.
    #[must_use]
    pub fn content(&self, chunk: u64) -> Content {
        let step = self.step(chunk);
        self.content_at(step, chunk - self.start(step))
    }

    fn content_at(&self, step: u32, index: u64) -> Content {
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

/// The chunks of one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The step.
    pub step: u32,
    /// The first chunk.
    pub start: u64,
    /// The division of this vector.
    pub layout: Layout,
    /// The tag of its chunks; 0 if the job is not open.
    pub tag: u32,
}

impl Part {
    /// Returns the chunk after the last one.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.layout.chunks())
    }

    /// Returns what a chunk carries that belongs to the vector.
    #[must_use]
    pub fn content(&self, chunk: u64) -> Option<Content> {
        let index = chunk.checked_sub(self.start).filter(|_| chunk < self.end())?;
        Some(self.layout.content_at(self.step, index))
    }

    /// Returns the chunks with elements, and by how much the exponent of a block is ahead of it, if these chunks must wait for it because
    /// it is in another slot.
    pub(super) fn lead(&self) -> Option<Lead> {
        let by = self.layout.leading();
        let must_wait = by > 0 && by < u64::from(self.layout.pool);
        must_wait.then(|| Lead { chunks: self.start + by..self.end(), by })
    }
}

/// Chunks that wait for another one with a lower number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    pub(super) chunks: Range<u64>,
    /// The difference of the numbers.
    pub(super) by: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_vector_of_an_open_job_has_no_empty_chunks() {
        let open = Layout { length: 0, steps: 0, elements: 2, format: Format::I64, ..FLOATS };
        assert_eq!((open.is_open(), open.end(), open.step(7)), (true, u64::MAX, 0));
        let layout = Layout { pool: 8, ..open }.of_vector(6, Format::BlockFloat);
        let part = Part { step: 5, start: 100, layout, tag: 0 };
        assert_eq!((layout.elements, part.end()), (4, 104));
        assert_eq!(part.lead(), Some(Lead { chunks: 102..104, by: 2 }));
        let content = |block, exponent_of| Some(Content { step: 5, block, exponent_of });
        let expected = [content(None, Some(0)), content(None, Some(1))];
        assert_eq!([part.content(100), part.content(101)], expected);
        assert_eq!(
            [part.content(102), part.content(103)],
            [content(Some(0), None), content(Some(1), None)]
        );
        assert_eq!((part.content(99), part.content(104)), (None, None));
        let integers = Part { layout: open.of_vector(6, Format::I64), ..part };
        assert_eq!((integers.end(), integers.lead()), (103, None));
    }

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
