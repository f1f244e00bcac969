//! What other threads can request of a running switch.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rackweave_core::Time;
use rackweave_switch::config::{CircuitError, Circuits};

use super::Report;

/// How long a caller waits for the switch's thread, which looks for requests every 20 ms at least.
const PATIENCE: Duration = Duration::from_secs(2);

/// Controls a running switch from another thread.
#[derive(Debug, Default)]
pub struct Control {
    /// Setting this ends [`Switch::run`](super::Switch::run).
    pub stop: AtomicBool,
    /// Whether a report is requested.
    wanted: AtomicBool,
    /// The latest report, and the number of reports so far.
    report: Mutex<(u64, Option<Report>)>,
    reported: Condvar,
    /// Whether `changes` has any.
    changing: AtomicBool,
    changes: Mutex<Changes>,
}

/// The changes of circuits that wait for the switch's thread.
#[derive(Debug, Default)]
struct Changes {
    next: u64,
    waiting: VecDeque<Request>,
}

#[derive(Debug)]
struct Request {
    number: u64,
    circuits: Circuits,
    answer: SyncSender<Result<Change, CircuitError>>,
}

/// A change of circuits that has begun, by the switch's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When it began: from then on its ports are dark.
    pub at: Time,
    /// When its ports are up again. It is `at` if no circuit has changed.
    pub up: Time,
}

/// Why circuits were not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The fabric cannot have them.
    #[error(transparent)]
    Circuits(#[from] CircuitError),
    /// The switch does not run, or has not answered within two seconds.
    #[error("the switch does not answer")]
    NoAnswer,
}

impl Control {
    /// Requests a report and waits for it. Returns `None` if the switch is not running, or has not answered within two
    /// seconds.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        let last = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.0;
        self.wanted.store(true, Ordering::Release);
        let answered = self.reported.wait_timeout_while(last, PATIENCE, |last| last.0 == before);
        let (last, waited) = answered.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() { None } else { last.1.clone() }
    }

    /// Changes the circuits of the switch's pod, as [`Switch::reconfigure`](super::Switch::reconfigure) does. It begins within about 20 ms;
    /// several threads may call this, and their changes follow one another.
    ///
    /// # Errors
    /// If these circuits are impossible, or the switch does not answer; then nothing changes.
    pub fn reconfigure(&self, circuits: Circuits) -> Result<Change, ChangeError> {
        let (answer, answered) = sync_channel(1);
        let number = {
            let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            let number = changes.next;
            changes.next += 1;
            changes.waiting.push_back(Request { number, circuits, answer });
            self.changing.store(true, Ordering::Release);
            number
        };
        let waited = match answered.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => {
                // It must not happen after the caller has given up, and may have begun meanwhile.
                let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
                changes.waiting.retain(|request| request.number != number);
                answered.try_recv().ok()
            }
            waited => waited.ok(),
        };
        waited.ok_or(ChangeError::NoAnswer)?.map_err(ChangeError::Circuits)
    }

    /// Whether a report is requested.
    pub(super) fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    pub(super) fn publish(&self, report: Report) {
        let mut last = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (last.0 + 1, Some(report));
        self.reported.notify_all();
    }

    /// Carries out the changes that were requested.
    pub(super) fn serve_changes(
        &self,
        mut change: impl FnMut(&Circuits) -> Result<Change, CircuitError>,
    ) {
        if !self.changing.swap(false, Ordering::AcqRel) {
            return;
        }
        // Under the lock, so that a request is either withdrawn or answered.
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(Request { circuits, answer, .. }) = changes.waiting.pop_front() {
            // A caller that is gone does not read the answer.
            let _ = answer.try_send(change(&circuits));
        }
    }
}
