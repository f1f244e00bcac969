//! Changes of circuits in the middle of a job: the network below workers, switch and master is another one afterwards.
//!
//! P4-ORDC (section 2) applies a sequence of configurations to its optical circuit switch while jobs run. The paper is silent about
//! packets that are under way at that time. Here the master stops its job first (`Phase::Quiesce`), waits until all that the workers have sent is
//! acknowledged, has the circuits changed, and resumes when the ports are lit again; nothing of the job is lost then. Without that, what is
//! lost is sent again: the result is the same.

use rackweave_aggregation::node::MasterSide;
use rackweave_core::{Span, Time};

use crate::MasterEvent;

/// An optical circuit switch whose circuits a master has changed. Nothing here may block, since the master has other work.
pub trait OpticalSwitch {
    /// Begins to change the circuits: these are the `ToR`s of the servers, in the order of their numbers.
    fn change(&mut self, tors: &[u16]);

    /// Returns for how long the ports are dark from now on, once the change has begun, or a sentence that says why it has not. Called
    /// after [`OpticalSwitch::change`], until it returns something.
    fn poll(&mut self) -> Option<Result<Span, String>>;
}

/// A change of circuits in the middle of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobMove {
    /// The time from the start of the upload to the change. It begins later if the change before it has not ended.
    pub after: Span,
    /// The `ToR` of each server, in the order of their numbers.
    pub tors: Vec<u16>,
}

/// The changes of circuits of a job.
pub struct Moves<'a> {
    /// The changes, which are made one after the other.
    pub list: Vec<JobMove>,
    /// Whether the job is stopped while circuits change.
    pub quiesce: bool,
    /// The switch that changes them.
    pub switch: &'a mut dyn OpticalSwitch,
}

impl std::fmt::Debug for Moves<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Moves").field("list", &self.list).finish_non_exhaustive()
    }
}

/// How long a job may take to stop; then circuits change anyway. A worker that is silent is given up after a longer time, and
/// circuits are of use to others too.
const STOP_WITHIN: Span = Span::from_secs(10);
/// How often the answer of the switch is polled.
const POLL_EVERY: Span = Span::from_ms(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Until the next change is due.
    Waiting,
    /// The job is being stopped.
    Stopping,
    /// The switch has not answered yet.
    Requested,
    /// The ports are dark until this time.
    Dark(Time),
}

/// Makes the changes of a job.
pub(crate) struct Mover<'a> {
    moves: Moves<'a>,
    state: State,
    /// The number of the change that is next, or under way.
    next: usize,
    /// When the change that is under way began, with the stop of the job.
    since: Time,
    /// The number of changes that were made, and the time that the job was stopped for them.
    pub(crate) made: u64,
    pub(crate) stopped: Span,
}

impl<'a> Mover<'a> {
    pub(crate) const fn new(moves: Moves<'a>) -> Self {
        let (state, since) = (State::Waiting, Time::ZERO);
        Self { moves, state, next: 0, since, made: 0, stopped: Span::ZERO }
    }

    /// When [`Mover::step`] has something to do.
    pub(crate) fn due(&self, side: &MasterSide, now: Time) -> Option<Time> {
        let next = self.moves.list.get(self.next)?;
        match self.state {
            State::Waiting => Some(side.progress().started?.saturating_add(next.after)),
            // The messages of workers wake the master.
            State::Stopping => Some(self.since.saturating_add(STOP_WITHIN)),
            State::Requested => Some(now.saturating_add(POLL_EVERY)),
            State::Dark(until) => Some(until),
        }
    }

    /// Goes on with the changes.
    pub(crate) fn step(
        &mut self,
        now: Time,
        side: &mut MasterSide,
        report: &mut dyn FnMut(MasterEvent),
    ) {
        let Some(next) = self.moves.list.get(self.next) else { return };
        if side.progress().outcome.is_some() {
            return;
        }
        match self.state {
            State::Waiting => {
                if self.due(side, now).is_none_or(|due| due > now) {
                    return;
                }
                self.since = now;
                if self.moves.quiesce {
                    side.machine_mut().quiesce();
                    self.state = State::Stopping;
                } else {
                    self.moves.switch.change(&next.tors);
                    self.state = State::Requested;
                }
            }
            State::Stopping => {
                let is_late = now >= self.since.saturating_add(STOP_WITHIN);
                if side.machine().is_quiesced() || is_late {
                    self.moves.switch.change(&next.tors);
                    self.state = State::Requested;
                }
            }
            State::Requested => match self.moves.switch.poll() {
                None => {}
                Some(Ok(dark)) => self.state = State::Dark(now.saturating_add(dark)),
                Some(Err(why)) => {
                    report(MasterEvent::NotMoved(why));
                    self.resume(now, side);
                }
            },
            State::Dark(until) => {
                if until > now {
                    return;
                }
                self.made += 1;
                self.resume(now, side);
                report(MasterEvent::Moved { changes: self.made });
            }
        }
    }

    fn resume(&mut self, now: Time, side: &mut MasterSide) {
        if self.moves.quiesce {
            self.stopped += now.since(self.since);
            side.machine_mut().resume();
        }
        self.next += 1;
        self.state = State::Waiting;
    }
}
