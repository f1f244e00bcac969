//! Payload over time, by stream.

use rackweave_core::{Span, Time};

use crate::result::Goodput;

/// The most intervals. When they are used up, each two of them become one of twice the length, so that memory is bounded however long
/// the run is.
const MAX_INTERVALS: usize = 512;
/// The length of an interval at first.
const FIRST: Span = Span::from_us(10);

/// Counts the payload bytes that receivers store, in intervals of equal length.
#[derive(Debug)]
pub(crate) struct Timeline {
    interval: Span,
    bytes: Vec<Vec<u64>>,
}

impl Timeline {
    pub(crate) fn new(streams: usize) -> Self {
        Self { interval: FIRST, bytes: vec![Vec::new(); streams] }
    }

    #[inline]
    pub(crate) fn add(&mut self, at: Time, stream: u16, bytes: u64) {
        let mut index = (at.ticks() / self.interval.ticks()) as usize;
        while index >= MAX_INTERVALS {
            self.double();
            index = (at.ticks() / self.interval.ticks()) as usize;
        }
        let of_stream = &mut self.bytes[usize::from(stream)];
        if of_stream.len() <= index {
            of_stream.resize(index + 1, 0);
        }
        of_stream[index] += bytes;
    }

    /// Takes the counts, and leaves none.
    pub(super) fn take(&mut self) -> Self {
        let streams = self.bytes.len();
        std::mem::replace(self, Self::new(streams))
    }

    /// Adds what the hosts of another shard have stored.
    pub(super) fn absorb(&mut self, mut other: Self) {
        while self.interval < other.interval {
            self.double();
        }
        while other.interval < self.interval {
            other.double();
        }
        for (all, more) in self.bytes.iter_mut().zip(&other.bytes) {
            all.resize(all.len().max(more.len()), 0);
            all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
        }
    }

    /// Makes one interval of each two.
    fn double(&mut self) {
        self.interval = self.interval * 2;
        for bytes in &mut self.bytes {
            *bytes = bytes.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
    }

    pub(crate) fn result(&self) -> Goodput {
        Goodput { interval: self.interval, bytes: self.bytes.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_become_longer_and_no_byte_is_lost() {
        let mut timeline = Timeline::new(2);
        for us in 0..20_000 {
            timeline.add(Time::ZERO + Span::from_us(us), (us % 2) as u16, 3);
        }
        let Goodput { interval, bytes } = timeline.result();
        // 20 ms in at most 512 intervals of 10 us times a power of two.
        assert_eq!(interval, Span::from_us(40));
        assert_eq!(bytes.iter().map(Vec::len).collect::<Vec<_>>(), [500, 500]);
        assert!(bytes.iter().flatten().all(|bytes| *bytes == 60));
    }

    #[test]
    fn the_timelines_of_shards_are_added_up() {
        let mut all = Timeline::new(2);
        let mut shards = [Timeline::new(2), Timeline::new(2)];
        for us in 0..9000 {
            // The second shard has nothing after 3 ms, so that its intervals are shorter.
            let shard = usize::from(us < 3000 && us % 3 == 0);
            let (at, stream, bytes) = (Time::ZERO + Span::from_us(us), (us % 2) as u16, us);
            all.add(at, stream, bytes);
            shards[shard].add(at, stream, bytes);
        }
        let [mut long, short] = shards;
        assert!(short.interval < long.interval);
        long.absorb(short);
        assert_eq!(long.result(), all.result());
    }
}
