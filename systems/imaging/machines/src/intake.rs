//! A client's chunks from the network to the disk: buffers that fill, wait to be expanded, and are freed; and a model of how long
//! expanding and writing take.
//!
//! On a real host the driver expands and writes, and reports each chunk; in the simulator [`Stage`] says when.

use std::collections::VecDeque;

use rackweave_core::{Rate, Span, Time};

/// How fast a client expands chunks and writes them to its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expand {
    /// The expanded length of the image, in bytes. Every chunk has the same share of it.
    pub expanded_bytes: u64,
    /// Expanded bytes that one client produces at most, while it does not wait for the disk.
    pub expand_rate: Rate,
    /// Bytes that its disk writes.
    pub disk_rate: Rate,
    /// Expanded bytes that can wait for the disk: 64 MiB in Frisbee.
    pub write_buffer: u64,
}

/// The most that is written at once: Frisbee expands a chunk in pieces of 256 KiB, so that the disk begins before a chunk is expanded.
const PIECE: u64 = 256 << 10;

/// The times at which a client has expanded its chunks and written them, one after the other.
#[derive(Clone, Debug)]
pub struct Stage {
    expand: Span,
    write: Span,
    pieces: u64,
    /// Chunks that can be expanded and not written.
    ahead: usize,
    expanded_at: Time,
    /// When the last chunks are written, `ahead` at most.
    written: VecDeque<Time>,
    written_at: Time,
}

impl Stage {
    /// A client that has nothing to do yet, for an image with this number of chunks.
    #[must_use]
    pub fn new(config: &Expand, chunks: u32) -> Self {
        let bytes = config.expanded_bytes.div_ceil(u64::from(chunks.max(1)));
        let ahead = (config.write_buffer / bytes.max(1)).max(1) as usize;
        Self {
            expand: config.expand_rate.span_of(bytes),
            write: config.disk_rate.span_of(bytes),
            pieces: bytes.div_ceil(PIECE).max(1),
            ahead,
            expanded_at: Time::ZERO,
            written: VecDeque::with_capacity(ahead.min(4096)),
            written_at: Time::ZERO,
        }
    }

    /// A chunk begins to be expanded; the previous one must have been expanded. Returns when its buffer is free again, and when it
    /// is written.
    ///
    /// The disk starts when the first piece is expanded and it has written what came before; it ends no earlier than one
    /// piece after the expansion. Where the disk is so late that the write buffer is full, the expansion waits for it.
    pub fn start(&mut self, now: Time) -> (Time, Time) {
        let start = now.max(self.expanded_at);
        let piece = |span: Span| span / self.pieces;
        let mut expanded = start + self.expand;
        if self.written.len() == self.ahead
            && let Some(room) = self.written.pop_front()
        {
            expanded = expanded.max(room);
        }
        let begins = self.written_at.max(start + piece(self.expand));
        let written = (begins + self.write).max(expanded + piece(self.write));
        self.written.push_back(written);
        (self.expanded_at, self.written_at) = (expanded, written);
        (expanded, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// `n` chunks that are all there at the start, of 4 MiB each when expanded; in seconds.
    fn total(expand: u64, disk: u64, write_buffer: u64, n: u32) -> (f64, f64) {
        let config = Expand {
            expanded_bytes: 4 * MIB * u64::from(n),
            expand_rate: Rate(expand * MIB * 8),
            disk_rate: Rate(disk * MIB * 8),
            write_buffer,
        };
        let mut stage = Stage::new(&config, n);
        let mut end = (Time::ZERO, Time::ZERO);
        for _ in 0..n {
            end = stage.start(end.0);
        }
        (end.0.since(Time::ZERO).as_secs_f64(), end.1.since(Time::ZERO).as_secs_f64())
    }

    #[test]
    fn the_slower_stage_decides() {
        // 100 chunks of 4 MiB: 10 s to expand at 40 MiB/s, 20 s to write at 20 MiB/s.
        let (expanded, written) = total(40, 20, 64 * MIB, 100);
        assert!((20.0..20.1).contains(&written), "{written}");
        // 64 MiB wait for the disk at most: 3.2 s of it.
        assert!((16.6..17.1).contains(&expanded), "{expanded}");
        let (expanded, written) = total(20, 40, 64 * MIB, 100);
        assert!((19.99..20.01).contains(&expanded), "{expanded}");
        assert!((20.0..20.02).contains(&written), "{written}");
        // A buffer smaller than a chunk still holds one.
        let (_, alternating) = total(40, 20, 1, 100);
        assert!(alternating < 30.1, "{alternating}");
    }
}
