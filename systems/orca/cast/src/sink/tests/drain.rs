//! The thread of a sink, and the window before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use proptest::prelude::*;
use rackweave_wire::orca::Reason;

use super::big;
use crate::sink::{Drain, MakeSink, Sink, SinkError, SinkTask, SinkWork};
use crate::wake::Waker;

fn started(make: MakeSink, room: u64, waker: Waker) -> Drain {
    let mut drain = Drain::new(make, room, waker);
    drain.begin(SinkWork::start).unwrap();
    drain
}

struct Collect(std::sync::mpsc::Sender<Vec<u8>>, u64);

impl Sink for Collect {
    fn begins_at(&self) -> u64 {
        self.1
    }
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let _ = self.0.send(bytes.to_vec());
        Ok(())
    }
    fn is_complete(&self) -> bool {
        false
    }
}

proptest! {
    #![proptest_config(rackweave_testing::cases(16))]

    #[test]
    fn bytes_find_their_order(
        start in 0_u64..3_000_000,
        pieces in proptest::collection::vec(1_usize..300_000, 1..40),
        swaps in proptest::collection::vec(any::<prop::sample::Index>(), 40),
        flush in any::<bool>(),
    ) {
        let total: usize = pieces.iter().sum();
        let content = big(total);
        let (send, receive) = std::sync::mpsc::channel();
        let make: MakeSink = Box::new(move |_| Ok(Box::new(Collect(send, start))));
        let mut drain = started(make, 16 << 20, Waker::new().unwrap());
        while !drain.is_ready() {
            std::thread::yield_now();
        }
        prop_assert_eq!(drain.begins_at(), start);
        let mut ends = vec![0];
        for piece in &pieces {
            ends.push(ends.last().unwrap() + piece);
        }
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        for (index, swap) in swaps.iter().enumerate().take(pieces.len()) {
            order.swap(index, swap.index(pieces.len()));
        }
        let mut there = vec![false; pieces.len()];
        for index in order {
            let bytes = &content[ends[index]..ends[index + 1]];
            prop_assert!(drain.put(start + ends[index] as u64, bytes));
            there[index] = true;
            let upto = ends[there.iter().take_while(|it| **it).count()];
            drain.advance(start + upto as u64, flush);
            // Bytes that parity may need are still available.
            let back = upto.saturating_sub(64 * 8900);
            let read = drain.read(start + back as u64, upto - back);
            prop_assert!(upto == 0 || read.is_some_and(|read| *read == content[back..upto]));
        }
        while drain.lags(start + total as u64) {
            drain.advance(start + total as u64, true);
            std::thread::yield_now();
        }
        drain.end(start + total as u64, Reason::Left);
        while !drain.has_ended() {
            std::thread::yield_now();
        }
        prop_assert_eq!(drain.consumed(), start + total as u64);
        let got: Vec<u8> = receive.try_iter().flatten().collect();
        prop_assert!(got == content);
    }
}

struct Bad;

impl Sink for Bad {
    fn begins_at(&self) -> u64 {
        0
    }
    fn put(&mut self, _: &[u8]) -> Result<(), SinkError> {
        panic!("a defect, as this test wants it")
    }
    fn is_complete(&self) -> bool {
        false
    }
}

#[test]
fn a_sink_that_panics_has_failed() {
    let waker = Waker::new().unwrap();
    let make: MakeSink = Box::new(|_| Ok(Box::new(Bad)));
    let mut drain = started(make, 1 << 20, waker.clone());
    while !drain.is_ready() {
        waker.wait_in_tests();
    }
    drain.put(0, b"x");
    drain.advance(1, true);
    while !drain.is_failed() {
        waker.wait_in_tests();
    }
    while !drain.has_ended() {
        waker.wait_in_tests();
    }
}

/// Passes on what it gets once it is released.
struct Held {
    to: std::sync::mpsc::Sender<Vec<u8>>,
    released: Arc<AtomicBool>,
    ended: std::sync::mpsc::Sender<Reason>,
}

impl Sink for Held {
    fn begins_at(&self) -> u64 {
        0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        while !self.released.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let _ = self.to.send(bytes.to_vec());
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn interrupted(&mut self, reason: Reason) {
        let _ = self.ended.send(reason);
    }
}

/// More has arrived than can wait for the sink, which is slow.
#[test]
fn all_that_has_arrived_in_order_is_written_when_the_input_ends() {
    const PIECE: usize = 1000;
    let (to, taken) = std::sync::mpsc::channel();
    let (ended, reasons) = std::sync::mpsc::channel();
    let released = Arc::new(AtomicBool::new(false));
    let held = Held { to, released: Arc::clone(&released), ended };
    let make: MakeSink = Box::new(move |_| Ok(Box::new(held)));
    let mut drain = started(make, 16 << 20, Waker::new().unwrap());
    while !drain.is_ready() {
        std::thread::yield_now();
    }
    let content = big(200 * PIECE + (3 << 20));
    let mut at = 0;
    for _ in 0..200 {
        assert!(drain.put(at as u64, &content[at..at + PIECE]));
        at += PIECE;
        drain.advance(at as u64, true);
    }
    assert!(drain.put(at as u64, &content[at..]));
    // A byte beyond a gap is not among them.
    assert!(drain.put(content.len() as u64 + 1, b"x"));
    drain.end(content.len() as u64, Reason::Silent);
    assert!(!drain.has_ended());
    released.store(true, Ordering::Relaxed);
    while !drain.has_ended() {
        std::thread::yield_now();
    }
    let got: Vec<u8> = taken.try_iter().flatten().collect();
    assert!(got == content, "{} of {}", got.len(), content.len());
    assert_eq!(reasons.try_iter().collect::<Vec<_>>(), [Reason::Silent]);
}

/// As a simulator does the work: nothing happens between its steps, and what is left undone is not written.
#[test]
fn work_is_done_step_by_step_without_a_thread() {
    let (send, written) = std::sync::mpsc::channel();
    let make: MakeSink = Box::new(move |_| Ok(Box::new(Collect(send, 5))));
    let mut drain = Drain::new(make, 1 << 20, Waker::new().unwrap());
    let mut taken = Vec::new();
    drain
        .begin(|work| {
            taken.push(work);
            Ok(())
        })
        .unwrap();
    let mut work = taken.pop().unwrap();
    assert!(!drain.is_ready() && !drain.has_ended() && !work.is_closed());
    let task = |work: &mut SinkWork| match work.poll() {
        Poll::Ready(task) => task,
        Poll::Pending => panic!("there is a task"),
    };
    let make = task(&mut work).unwrap();
    assert_eq!(make.bytes(), None);
    work.run(make);
    assert!(drain.is_ready() && drain.begins_at() == 5 && work.poll().is_pending());
    assert!(drain.put(5, b"abc"));
    drain.advance(8, true);
    let put = task(&mut work).unwrap();
    assert_eq!((put.bytes(), drain.consumed()), (Some(3), 5));
    work.run(put);
    assert_eq!(drain.consumed(), 8);
    assert!(drain.put(8, b"de"));
    drain.end(10, Reason::Left);
    assert!(work.is_closed() && !drain.has_ended());
    let rest: Vec<SinkTask> = [task(&mut work), task(&mut work)].into_iter().flatten().collect();
    assert_eq!(rest.iter().map(SinkTask::bytes).collect::<Vec<_>>(), [Some(2), Some(0)]);
    rest.into_iter().for_each(|task| work.run(task));
    assert!(task(&mut work).is_none());
    drop(work);
    assert!(drain.has_ended() && drain.consumed() == 10);
    assert_eq!(written.iter().flatten().collect::<Vec<u8>>(), b"abcde");
}
