//! The server's work queue: what clients have asked for and is not sent yet.

use std::collections::VecDeque;

use super::{Blocks, Run};

/// The work queue. Each chunk has at most one element, and a second one while the first is being sent; so its length is bounded
/// by the number of chunks plus one.
#[derive(Clone, Debug, Default)]
pub struct WorkQueue {
    elements: VecDeque<Element>,
    /// What is being sent; `None` before the first and while the queue is empty.
    current: Option<(u32, Run)>,
}

#[derive(Clone, Debug)]
struct Element {
    chunk: u32,
    blocks: Blocks,
    count: u32,
    /// The number of blocks of the chunk.
    full: u32,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is a new element of the queue.
    New,
    /// It was merged with an element, or is being sent.
    Merged,
    /// It asks for nothing.
    Empty,
}

impl WorkQueue {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Adds a request (`docs/protocols/swp2p.md#frisbee-server`):
    ///
    /// 1. A request for a full chunk that is now being sent as a full chunk is dropped.
    /// 2. Elements of the same chunk are considered from the tail. The one at the head, if its chunk is being sent, takes the
    ///    request only if its first block is beyond the range being sent.
    /// 3. A full element covers the request; a full request replaces the element's blocks; else both are united.
    /// 4. Without such an element, the request is appended.
    ///
    /// `full` is the number of blocks of the chunk.
    pub fn enqueue(&mut self, chunk: u32, blocks: &Blocks, full: u32) -> Enqueued {
        let count = blocks.count();
        let Some(first) = blocks.first() else { return Enqueued::Empty };
        if count == full && self.current == Some((chunk, Run { block: 0, count: full })) {
            return Enqueued::Merged;
        }
        for (index, element) in self.elements.iter_mut().enumerate().rev() {
            if element.chunk != chunk {
                continue;
            }
            if index == 0
                && let Some((current, run)) = self.current
                && current == chunk
                && first < run.end()
            {
                continue;
            }
            if element.count < full {
                element.count += element.blocks.merge(blocks);
            }
            return Enqueued::Merged;
        }
        self.elements.push_back(Element { chunk, blocks: *blocks, count, full });
        Enqueued::New
    }

    /// Returns the chunks that will be sent next, in this order.
    pub fn upcoming(&self) -> impl Iterator<Item = u32> {
        self.elements.iter().map(|element| element.chunk)
    }

    /// Takes the next blocks to send: a full chunk whole, else the first consecutive ones of the element at the head, whose rest
    /// stays there.
    pub fn dequeue(&mut self) -> Option<(u32, Run)> {
        let Some(head) = self.elements.front_mut() else {
            self.current = None;
            return None;
        };
        let chunk = head.chunk;
        let run = if head.count == head.full {
            head.blocks = Blocks::EMPTY;
            Some(Run { block: 0, count: head.full })
        } else {
            head.blocks.take_run()
        };
        // Every element has blocks.
        let run = run?;
        head.count -= run.count;
        if head.count == 0 {
            self.elements.pop_front();
        }
        self.current = Some((chunk, run));
        self.current
    }
}

#[cfg(test)]
mod tests {
    use rackweave_wire::frisbee::CHUNK_BLOCKS;

    use super::*;

    fn run(block: u32, count: u32) -> Blocks {
        Blocks::of(Run { block, count })
    }

    const FULL: (u32, u32) = (0, CHUNK_BLOCKS);

    /// A request `(chunk, first, count)` with its expected outcome, or a dequeue with the expected run.
    type Step<'a> = (Option<(u32, u32, u32)>, &'a str);

    fn play(script: &[Step<'_>]) {
        let mut queue = WorkQueue::default();
        for (step, (request, expected)) in script.iter().enumerate() {
            let got = match request {
                Some((chunk, first, count)) => {
                    format!(
                        "{:?} {}",
                        queue.enqueue(*chunk, &run(*first, *count), CHUNK_BLOCKS),
                        queue.len()
                    )
                }
                None => match queue.dequeue() {
                    Some((chunk, run)) => {
                        format!("{chunk}: {}..{}, {}", run.block, run.end(), queue.len())
                    }
                    None => "empty".to_owned(),
                },
            };
            assert_eq!(got, *expected, "step {step}");
        }
    }

    #[test]
    fn requests_for_different_chunks_are_sent_in_order() {
        play(&[
            (Some((5, 0, 1024)), "New 1"),
            (Some((3, 0, 1024)), "New 2"),
            (Some((5, 0, 1024)), "Merged 2"),
            (Some((5, 7, 9)), "Merged 2"),
            (None, "5: 0..1024, 1"),
            (None, "3: 0..1024, 0"),
            (None, "empty"),
        ]);
    }

    #[test]
    fn a_full_request_for_the_chunk_being_sent_is_dropped_and_a_partial_one_is_queued() {
        play(&[
            (Some((5, 0, 1024)), "New 1"),
            (None, "5: 0..1024, 0"),
            (Some((5, FULL.0, FULL.1)), "Merged 0"),
            // Blocks within what is being sent: the element at the head takes no more of them, a second one does.
            (Some((5, 100, 4)), "New 1"),
            (Some((5, 200, 4)), "New 2"),
            (Some((5, 300, 4)), "Merged 2"),
            (None, "5: 100..104, 1"),
            (None, "5: 200..204, 1"),
            (None, "5: 300..304, 0"),
        ]);
    }

    #[test]
    fn the_head_takes_only_blocks_beyond_what_is_being_sent() {
        play(&[
            (Some((5, 10, 10)), "New 1"),
            (Some((5, 50, 10)), "Merged 1"),
            (None, "5: 10..20, 1"),
            // Beyond 10..20: merged with the head, which still holds 50..60.
            (Some((5, 30, 2)), "Merged 1"),
            // It begins within 10..20: a second element.
            (Some((5, 15, 40)), "New 2"),
            // The second element is not at the head.
            (Some((5, 12, 1)), "Merged 2"),
            (None, "5: 30..32, 2"),
            (None, "5: 50..60, 1"),
            (None, "5: 12..13, 1"),
            (None, "5: 15..55, 0"),
        ]);
    }

    #[test]
    fn a_full_request_replaces_a_partial_one() {
        play(&[
            (Some((1, 0, 1)), "New 1"),
            (Some((5, 10, 10)), "New 2"),
            (Some((5, 0, 1024)), "Merged 2"),
            (Some((5, 0, 0)), "Empty 2"),
            (None, "1: 0..1, 1"),
            (None, "5: 0..1024, 0"),
        ]);
    }

    /// The rest of a chunk that a partial request has filled to the full is sent in one run.
    #[test]
    fn partial_requests_unite_to_a_full_one() {
        play(&[
            (Some((5, 0, 1000)), "New 1"),
            (Some((5, 900, 124)), "Merged 1"),
            (None, "5: 0..1024, 0"),
        ]);
    }

    /// Chunks of an image whose chunks have less than 1 MiB.
    #[test]
    fn a_short_chunk_is_full_with_all_of_its_blocks() {
        let mut queue = WorkQueue::default();
        assert_eq!(queue.enqueue(5, &run(0, 256), 256), Enqueued::New);
        assert_eq!(queue.enqueue(5, &run(7, 9), 256), Enqueued::Merged);
        assert_eq!(queue.enqueue(3, &run(0, 4), 256), Enqueued::New);
        assert_eq!(queue.upcoming().collect::<Vec<_>>(), [5, 3]);
        assert_eq!(queue.dequeue(), Some((5, Run { block: 0, count: 256 })));
        assert_eq!(queue.enqueue(5, &run(0, 256), 256), Enqueued::Merged, "it is being sent");
        assert_eq!(queue.dequeue(), Some((3, Run { block: 0, count: 4 })));
        assert_eq!((queue.dequeue(), queue.enqueue(5, &run(0, 256), 256)), (None, Enqueued::New));
    }

    #[test]
    fn the_queue_is_bounded_by_the_chunks() {
        let mut rng = rackweave_core::Rng::stream(1, 0, 0, "queue");
        let mut queue = WorkQueue::default();
        let (chunks, mut most) = (20, 0);
        for _ in 0..100_000 {
            let chunk = rng.below(chunks) as u32;
            let block = rng.below(1024) as u32;
            let count = 1 + rng.below(u64::from(1024 - block)) as u32;
            queue.enqueue(chunk, &run(block, count), CHUNK_BLOCKS);
            if rng.chance(0.05) {
                queue.dequeue();
            }
            most = most.max(queue.len());
        }
        assert!(most as u64 <= chunks + 1, "{most}");
    }
}
