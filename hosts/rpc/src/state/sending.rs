//! When the messages of tasks are sent: at once, or together with messages that other tasks are about to submit.
//!
//! A turn of the endpoint costs several system calls, whether it sends one packet or a train of 64. Tasks submit messages
//! one at a time, but often several of them run in a row: the driver receives a batch of responses and wakes
//! the tasks that wait for them, and each makes its next call. So a message waits until the woken tasks
//! have submitted theirs, and the last of them sends all. If one of them submits nothing, the driver sends, which was woken by
//! the first message that waits and runs after the tasks that were ready before it. Nor does a message wait for tasks that
//! take long: if the last one took longer than [`DELAY`], so may the next.

use rackweave_core::{Span, Time};

/// The most messages that are sent together: a train of the kernel has at most 64 segments (`UDP_MAX_SEGMENTS`), and smaller
/// batches keep both ends busy at the same time. The value is our choice.
pub(super) const MOST: usize = 32;

/// How long a message may wait for others, if a task then submits one. About the cost of the system calls that waiting saves, so
/// that it never costs much more than it can save. The value is our choice.
const DELAY: Span = Span::from_us(20);

/// The messages that wait to be sent; see the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// Tasks that the last packets have woken and that have not submitted a message since.
    expected: usize,
    /// Messages that wait.
    waiting: usize,
    /// The time at which the first of them was submitted.
    since: Time,
    /// The time of the last submission or turn.
    last: Time,
    /// [`DELAY`].
    delay: Span,
}

/// What to do after a message was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitted {
    /// The endpoint sends it, and all that wait, now.
    SendNow,
    /// It waits. The driver is to be woken, which sends it if nothing else does before.
    Wait,
}

impl Default for Sending {
    fn default() -> Self {
        Self { expected: 0, waiting: 0, since: Time::ZERO, last: Time::ZERO, delay: DELAY }
    }
}

impl Sending {
    /// A task has submitted a message. `only` means that the node has no other call, request or stream: then there is nothing
    /// to wait for.
    pub(super) fn submitted(&mut self, now: Time, only: bool) -> Submitted {
        if self.waiting == 0 {
            self.since = now;
        }
        self.waiting += 1;
        let last = self.expected == 1;
        self.expected = self.expected.saturating_sub(1);
        let slow = now.since(self.last) >= self.delay;
        self.last = now;
        let late = now.since(self.since) >= self.delay;
        if only || last || slow || late || self.waiting >= MOST {
            Submitted::SendNow
        } else {
            Submitted::Wait
        }
    }

    /// The endpoint is turned: nothing waits any more.
    pub(super) const fn sent(&mut self) {
        self.waiting = 0;
    }

    /// The turn has ended, and tasks run again.
    pub(super) const fn turned(&mut self, now: Time) {
        self.last = now;
    }

    /// This number of tasks was woken.
    pub(super) const fn woken(&mut self, tasks: usize) {
        self.expected += tasks;
    }

    /// The driver runs, so the tasks that were woken earlier have had their chance to submit messages.
    pub(super) const fn driver_runs(&mut self) {
        self.expected = 0;
    }
}

#[cfg(test)]
impl Sending {
    /// Messages wait for each other without a limit in time, so that their number is known to a test.
    pub(super) const fn wait_forever(&mut self) {
        self.delay = Span::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::Submitted::{SendNow, Wait};
    use super::*;

    const NOW: Time = Time::from_ns(5_000_000);

    /// A turn has just ended.
    fn turned() -> Sending {
        let mut sending = Sending::default();
        sending.turned(NOW);
        sending
    }

    #[test]
    fn the_only_message_does_not_wait() {
        let mut sending = Sending::default();
        for _ in 0..3 {
            assert_eq!(sending.submitted(NOW, true), SendNow);
            sending.sent();
        }
        sending.woken(2);
        assert_eq!(sending.submitted(NOW, true), SendNow);
    }

    #[test]
    fn the_last_woken_task_sends_for_all() {
        for tasks in 1..MOST {
            let mut sending = turned();
            sending.woken(tasks);
            for _ in 1..tasks {
                assert_eq!(sending.submitted(NOW, false), Wait);
            }
            assert_eq!(sending.submitted(NOW, false), SendNow, "{tasks}");
        }
    }

    #[test]
    fn a_full_batch_does_not_wait() {
        let mut sending = turned();
        sending.woken(2 * MOST + 1);
        let mut batches = Vec::new();
        let mut batch = 0;
        for _ in 0..=2 * MOST {
            batch += 1;
            if sending.submitted(NOW, false) == SendNow {
                sending.sent();
                batches.push(batch);
                batch = 0;
            }
        }
        assert_eq!(batches, [MOST, MOST, 1]);
    }

    #[test]
    fn no_message_waits_longer_than_the_delay_for_another() {
        let mut sending = turned();
        let step = DELAY / 3;
        assert_eq!(sending.submitted(NOW, false), Wait);
        assert_eq!(sending.submitted(NOW + step, false), Wait);
        assert_eq!(sending.submitted(NOW + step * 2, false), Wait);
        assert_eq!(sending.submitted(NOW + step * 3 + Span::from_ns(9), false), SendNow);
        sending.sent();
        sending.turned(NOW + DELAY * 2);
        assert_eq!(sending.submitted(NOW + DELAY * 2, false), Wait, "its time begins with itself");
    }

    #[test]
    fn messages_of_slow_tasks_do_not_wait() {
        let mut sending = turned();
        sending.woken(10);
        let mut now = NOW;
        for _ in 0..5 {
            now += DELAY;
            assert_eq!(sending.submitted(now, false), SendNow);
            sending.sent();
            sending.turned(now);
        }
        assert_eq!(sending.submitted(now, false), Wait, "a quick one");
    }

    #[test]
    fn tasks_that_have_run_without_a_message_are_not_expected() {
        let mut sending = turned();
        sending.woken(1);
        sending.driver_runs();
        assert_eq!(sending.submitted(NOW, false), Wait, "the driver sends it");
        sending.sent();
        sending.driver_runs();
        sending.woken(2);
        assert_eq!(sending.submitted(NOW, false), Wait);
        assert_eq!(sending.submitted(NOW, false), SendNow);
    }

    /// Whatever happens: fewer than [`MOST`] messages wait, none of them beyond the delay once another was submitted, and the
    /// last of the tasks that were woken leaves none.
    #[test]
    fn bounds_of_waiting_in_any_order() {
        let mut rng = rackweave_core::Rng::stream(1, 0, 0, "sending");
        for _ in 0..200 {
            let (mut sending, mut now) = (turned(), NOW);
            let (mut expected, mut waiting) = (0u64, Vec::new());
            for _ in 0..500 {
                match rng.below(20) {
                    0 => {
                        sending.driver_runs();
                        sending.sent();
                        sending.turned(now);
                        expected = rng.below(50);
                        sending.woken(expected as usize);
                        waiting.clear();
                    }
                    1 => now += Span::from_us(rng.below(50)),
                    _ => {
                        now += Span::from_ns(rng.below(2000));
                        let last = expected == 1;
                        expected = expected.saturating_sub(1);
                        waiting.push(now);
                        if sending.submitted(now, false) == SendNow {
                            sending.sent();
                            sending.turned(now);
                            waiting.clear();
                        } else {
                            assert!(!last && waiting.len() < MOST);
                            assert!(now.since(waiting[0]) < DELAY);
                        }
                    }
                }
            }
        }
    }
}
