//! A ring all-reduce: the same sum without an aggregator, by messages of any transport (`docs/protocols/ordc.md#ring-all-reduce`).
//!
//! The vector has a segment for each of n workers. In n - 1 hops each segment goes round the ring, and each worker adds its own elements; in
//! n - 1 more hops its sum goes round. A worker sends `2 (n - 1) / n` times the vector. Segments travel in pieces. Each
//! goes on as soon as it has arrived, as libraries of collectives do, so that no worker waits for a whole segment.
//!
//! Floats are added as floats, in the order of the ring: all workers get the same bits, but these depend on the order of the workers.

use core::ops::Range;
use std::collections::VecDeque;

use super::values::Values;

/// A piece on its way to the next worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The step.
    pub step: u32,
    /// The number of the hop, from 0.
    pub hop: u16,
    /// The number of the piece in its segment.
    pub index: u32,
    /// The sums so far.
    pub values: Values,
}

/// One worker of a ring.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Its position.
    me: u16,
    workers: u16,
    length: usize,
    /// The number of elements of a piece.
    piece: usize,
    step: u32,
    vector: Option<Values>,
    sums: Option<Values>,
    /// The number of elements whose sums are not there.
    left: usize,
    /// Pieces of the next step: a neighbour may be a step ahead, and no further.
    early: Vec<Piece>,
    out: VecDeque<Piece>,
}

impl Ring {
    /// The worker at a position of a ring, for vectors of `length` elements in pieces of at most `piece`.
    #[must_use]
    pub fn new(me: u16, workers: u16, length: usize, piece: usize) -> Self {
        let (step, left) = (0, 0);
        let (vector, sums, early, out) = (None, None, Vec::new(), VecDeque::new());
        let (workers, piece) = (workers.max(1), piece.max(1));
        Self { me, workers, length, piece, step, vector, sums, left, early, out }
    }

    /// The elements of a segment.
    fn segment(&self, number: u16) -> Range<usize> {
        let bound = |number: u16| self.length * usize::from(number) / usize::from(self.workers);
        bound(number)..bound(number + 1)
    }

    /// The elements of a piece; `None` if there is no such piece.
    fn range(&self, segment: u16, index: u32) -> Option<Range<usize>> {
        let Range { start, end } = self.segment(segment);
        let start = start + index as usize * self.piece;
        (start < end).then(|| start..end.min(start + self.piece))
    }

    /// The segment that a worker receives with a hop.
    const fn received(&self, hop: u16) -> u16 {
        (self.me + 2 * self.workers - 1 - hop % self.workers) % self.workers
    }

    /// Begins the next step with this worker's vector.
    ///
    /// # Panics
    /// If the vector has another length than the ring.
    pub fn begin(&mut self, vector: Values) {
        assert_eq!(vector.len(), self.length, "the vectors of a ring have one length");
        self.left = self.length;
        if self.workers == 1 {
            self.left = 0;
        } else {
            let (step, hop) = (self.step, 0);
            let ranges = (0..).map_while(|index| Some((index, self.range(self.me, index)?)));
            let piece = |(index, range)| Piece { step, hop, index, values: vector.part(range) };
            let first: Vec<_> = ranges.map(piece).collect();
            self.out.extend(first);
        }
        self.sums = Some(vector.clone());
        self.vector = Some(vector);
        for piece in core::mem::take(&mut self.early) {
            self.receive(piece);
        }
    }

    /// Handles a piece from the previous worker, which comes once, as transports deliver. What does not belong to this step or the next is ignored.
    pub fn receive(&mut self, piece: Piece) {
        let last = 2 * (self.workers - 1);
        if piece.hop >= last || piece.step < self.step {
            return;
        }
        let Some(vector) = self.vector.as_ref().filter(|_| piece.step == self.step) else {
            if piece.step <= self.step + 1 {
                self.early.push(piece);
            }
            return;
        };
        let Piece { step, hop, index, mut values } = piece;
        let range = self.range(self.received(hop), index);
        let Some(range) = range.filter(|range| range.len() == values.len()) else { return };
        if hop < self.workers - 1 {
            values.add(vector, range.clone());
        }
        if hop + 1 >= self.workers - 1 {
            self.left = self.left.saturating_sub(range.len());
            if let Some(sums) = &mut self.sums {
                sums.put(range.start, &values);
            }
        }
        if hop + 1 < last {
            self.out.push_back(Piece { step, hop: hop + 1, index, values });
        }
    }

    /// Returns the next piece for the next worker.
    pub fn poll(&mut self) -> Option<Piece> {
        self.out.pop_front()
    }

    /// Returns the number of the step and its sums, once they are all there and all pieces have been polled.
    pub fn finish(&mut self) -> Option<(u32, Values)> {
        if self.left > 0 || !self.out.is_empty() {
            return None;
        }
        let sums = self.sums.take()?;
        self.vector = None;
        self.step += 1;
        Some((self.step - 1, sums))
    }

    /// Returns the sum of the vectors of all workers as the ring computes it.
    #[must_use]
    pub fn sum(all: &[&Values]) -> Option<Values> {
        let mut sums = (*all.first()?).clone();
        let ring = Self::new(0, all.len() as u16, sums.len(), 1);
        for segment in 0..ring.workers {
            let range = ring.segment(segment);
            let mut values = all[usize::from(segment)].part(range.clone());
            for hop in 1..ring.workers {
                let worker = usize::from((segment + hop) % ring.workers);
                values.add(all[worker], range.clone());
            }
            sums.put(range.start, &values);
        }
        Some(sums)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the order in which pieces arrive, also of two steps.
        #[test]
        fn all_workers_get_the_sum(
            workers in 1_u16..9,
            length in 1_usize..60,
            piece in 1_usize..9,
            is_float in any::<bool>(),
            order in prop::collection::vec(any::<u32>(), 1..50),
        ) {
            let vector = |worker: u16, step: u32| {
                let element = |index: usize| (index as u32 * 7 + u32::from(worker) * 13 + step) as i64;
                let elements = (0..length).map(element);
                if is_float {
                    Values::Floats(elements.map(|value| value as f32 / 3.0).collect())
                } else {
                    Values::Integers(elements.map(|value| value.wrapping_mul(i64::MAX / 5)).collect())
                }
            };
            let mut rings: Vec<_> = (0..workers).map(|me| Ring::new(me, workers, length, piece)).collect();
            for (me, ring) in (0..).zip(&mut rings) {
                ring.begin(vector(me, 0));
            }
            let (mut flights, mut done, mut turn) = (Vec::new(), vec![0; rings.len()], 0);
            while done.iter().any(|steps| *steps < 3) {
                for (me, ring) in (0_u16..).zip(&mut rings) {
                    while let Some(piece) = ring.poll() {
                        flights.push((usize::from((me + 1) % workers), piece));
                    }
                    if let Some((step, sums)) = ring.finish() {
                        let all: Vec<_> = (0..workers).map(|worker| vector(worker, step)).collect();
                        let expected = Ring::sum(&all.iter().collect::<Vec<_>>()).unwrap();
                        prop_assert!(sums.is_same(&expected));
                        done[usize::from(me)] = step + 1;
                        if step < 2 {
                            ring.begin(vector(me, step + 1));
                        }
                    }
                }
                if !flights.is_empty() {
                    turn += 1;
                    let at = order[turn % order.len()] as usize % flights.len();
                    let (to, piece) = flights.swap_remove(at);
                    rings[to].receive(piece);
                }
            }
            prop_assert!(flights.is_empty());
        }
    }
}
