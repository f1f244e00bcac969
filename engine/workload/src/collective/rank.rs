//! The machine of one rank: which messages start when what is done.

use std::collections::{BTreeSet, VecDeque};

use rackweave_core::{FailReason, HostId, Schedule as Queue, Span, Time};

use super::Collective;
use super::schedule::Op;

/// A message that a rank starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// What the receiver needs to know it by.
    pub number: u64,
    /// The receiving host.
    pub dst: HostId,
    /// Its length.
    pub bytes: u64,
}

/// The times of a rank, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: HostId,
    /// When it began each iteration, and ended it.
    pub iterations: Vec<(Time, Time)>,
    /// Why it has not ended the next one; `None` if there is none.
    pub waits: Option<Wait>,
}

/// What a rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The number of the iteration.
    pub iteration: u32,
    /// When it began.
    pub since: Time,
    /// Why it has not ended.
    pub reason: WaitReason,
}

/// Why a rank has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// A message has not come.
    Receive {
        /// The sending rank.
        from: u32,
        /// Its length.
        bytes: u64,
        /// Its tag.
        tag: u32,
    },
    /// A message has not arrived.
    Send {
        /// The receiving rank.
        to: u32,
        /// Its length.
        bytes: u64,
        /// Its tag.
        tag: u32,
    },
    /// A message has failed, after which the rank starts nothing.
    Failed {
        /// The receiving rank.
        to: u32,
        /// Its length.
        bytes: u64,
        /// Its tag.
        tag: u32,
        /// The reason that the transport gives.
        reason: FailReason,
    },
    /// Its host has crashed.
    Crashed,
    /// It calculates.
    Calculates,
    /// Its next iteration begins later, or the run ended before its first one.
    NotBegun,
}

/// What has happened to an operation.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begun,
    Ended,
}

/// One rank of a collective.
#[derive(Debug)]
pub struct Rank {
    collective: Collective,
    rank: u32,
    iteration: u32,
    /// When the next iteration begins; `None` while one goes on.
    begins: Option<Time>,
    since: Time,
    /// For each operation how many it still waits for.
    missing: Vec<u32>,
    states: Vec<State>,
    /// The number of operations that must end before the iteration does.
    left: u32,
    outbox: VecDeque<u32>,
    /// The ends of calculations.
    calculating: Queue<u32>,
    /// When each processor is free.
    free: Vec<Time>,
    /// Messages of later iterations that have come, by the receive.
    early: BTreeSet<(u32, u32)>,
    iterations: Vec<(Time, Time)>,
    halted: Option<WaitReason>,
    /// What must still be told to followers.
    news: VecDeque<(u32, Step)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    has_begun: bool,
    has_arrived: bool,
    has_ended: bool,
}

impl Rank {
    /// The rank of a host, which begins at a time; `None` if the host has none, or it has nothing to do.
    #[must_use]
    pub fn new(collective: &Collective, host: HostId, begins: Time) -> Option<Self> {
        let rank = collective.rank_of(host)?;
        (collective.schedule().len(rank) > 0).then(|| Self {
            collective: collective.clone(),
            rank,
            iteration: 0,
            begins: Some(begins),
            since: begins,
            missing: Vec::new(),
            states: Vec::new(),
            left: 0,
            outbox: VecDeque::new(),
            calculating: Queue::default(),
            free: Vec::new(),
            early: BTreeSet::new(),
            iterations: Vec::new(),
            halted: None,
            news: VecDeque::new(),
        })
    }

    /// Whether all iterations have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.iteration == self.collective.repeat()
    }

    /// When [`Rank::handle_timeout`] must be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.halted.is_some() {
            return None;
        }
        if !self.outbox.is_empty() {
            return Some(Time::ZERO);
        }
        [self.begins, self.calculating.next_time()].into_iter().flatten().min()
    }

    /// Does what is due, and returns a message to start. There may be more.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Outgoing> {
        if self.halted.is_some() {
            return None;
        }
        if self.begins.is_some_and(|at| at <= now) {
            self.begin(now);
        }
        while let Some((_, op)) = self.calculating.pop_due(now) {
            self.end(now, op);
        }
        let op = self.outbox.pop_front()?;
        let Op::Send { to, bytes, .. } = self.op(op) else { return None };
        let number = self.collective.number(self.rank, self.iteration, op);
        let outgoing = Outgoing { number, dst: self.collective.hosts()[to as usize], bytes };
        self.news.push_back((op, Step::Begun));
        self.tell(now);
        Some(outgoing)
    }

    /// A message of another rank has come.
    pub fn received(&mut self, now: Time, from: HostId, number: u64) {
        let Some(sender) = self.collective.rank_of(from) else { return };
        let (iteration, send) = self.collective.place(sender, number);
        let Some(receive) = self.collective.schedule().partner(sender, send) else { return };
        if iteration != self.iteration || self.begins.is_some() {
            if iteration >= self.iteration {
                self.early.insert((iteration, receive));
            }
            return;
        }
        self.arrive(receive);
        self.tell(now);
    }

    /// A message of this rank has arrived.
    pub fn sent(&mut self, now: Time, number: u64) {
        let (iteration, op) = self.collective.place(self.rank, number);
        if iteration == self.iteration && self.begins.is_none() {
            self.end(now, op);
        }
    }

    /// A message of this rank will not arrive. The rank starts nothing any more.
    pub fn failed(&mut self, number: u64, reason: FailReason) {
        let (_, op) = self.collective.place(self.rank, number);
        if let Op::Send { to, bytes, tag } = self.op(op)
            && self.halted.is_none()
            && !self.has_ended()
        {
            self.halted = Some(WaitReason::Failed { to, bytes, tag, reason });
        }
    }

    /// The host has crashed. The rank starts nothing any more.
    pub fn crash(&mut self) {
        self.halted = self.halted.or(Some(WaitReason::Crashed)).filter(|_| !self.has_ended());
    }

    /// What the rank has done, and what it waits for.
    #[must_use]
    pub fn report(&self) -> RankReport {
        let (rank, host) = (self.rank, self.collective.hosts()[self.rank as usize]);
        let (iteration, since) = (self.iteration, self.since);
        let waits = (!self.has_ended()).then(|| Wait { iteration, since, reason: self.reason() });
        RankReport { rank, host, iterations: self.iterations.clone(), waits }
    }

    fn reason(&self) -> WaitReason {
        if let Some(reason) = self.halted {
            return reason;
        }
        if self.begins.is_some() {
            return WaitReason::NotBegun;
        }
        let open = self.states.iter().enumerate();
        let mut open =
            open.filter(|(_, state)| state.has_begun && !state.has_ended).map(|(op, _)| op as u32);
        let reason = open.find_map(|op| match self.op(op) {
            Op::Receive { from, bytes, tag } => Some(WaitReason::Receive { from, bytes, tag }),
            Op::Send { to, bytes, tag } => Some(WaitReason::Send { to, bytes, tag }),
            Op::Calculate { .. } => None,
        });
        reason.unwrap_or(WaitReason::Calculates)
    }

    fn op(&self, op: u32) -> Op {
        self.collective.schedule().ops(self.rank)[op as usize]
    }

    fn begin(&mut self, now: Time) {
        let collective = self.collective.clone();
        let schedule = collective.schedule();
        (self.begins, self.since) = (None, now);
        self.missing.clear();
        self.missing.extend(schedule.requirements(self.rank));
        self.states.clear();
        self.states.resize(self.missing.len(), State::default());
        let waits_for_sends = schedule.next_waits_for_sends();
        let ops = schedule.ops(self.rank);
        let counts = |op: &&Op| waits_for_sends || !matches!(op, Op::Send { .. });
        self.left = ops.iter().filter(counts).count() as u32;
        for op in 0..self.missing.len() as u32 {
            if schedule.requirements(self.rank)[op as usize] == 0 {
                self.ready(now, op);
            }
        }
        let later = self.early.split_off(&(self.iteration + 1, 0));
        for (_, receive) in std::mem::replace(&mut self.early, later) {
            self.arrive(receive);
        }
        self.tell(now);
    }

    /// Nothing that an operation waits for is missing.
    fn ready(&mut self, now: Time, op: u32) {
        match self.op(op) {
            Op::Send { .. } => {
                self.states[op as usize].has_begun = true;
                self.outbox.push_back(op);
            }
            Op::Receive { .. } => {
                self.states[op as usize].has_begun = true;
                self.news.push_back((op, Step::Begun));
                if self.states[op as usize].has_arrived {
                    self.news.push_back((op, Step::Ended));
                }
            }
            Op::Calculate { span, cpu } => {
                self.states[op as usize].has_begun = true;
                self.news.push_back((op, Step::Begun));
                let until = self.busy(now, cpu, span);
                if until > now {
                    self.calculating.push(until, op);
                } else {
                    self.news.push_back((op, Step::Ended));
                }
            }
        }
    }

    /// Takes a processor for a time from when it is free; returns the end. What takes no time needs none.
    fn busy(&mut self, now: Time, cpu: u8, span: Span) -> Time {
        if span == Span::ZERO {
            return now;
        }
        let cpu = usize::from(cpu);
        if self.free.len() <= cpu {
            self.free.resize(cpu + 1, Time::ZERO);
        }
        let until = self.free[cpu].max(now).saturating_add(span);
        self.free[cpu] = until;
        until
    }

    fn arrive(&mut self, receive: u32) {
        let state = &mut self.states[receive as usize];
        state.has_arrived = true;
        if state.has_begun {
            self.news.push_back((receive, Step::Ended));
        }
    }

    fn end(&mut self, now: Time, op: u32) {
        self.news.push_back((op, Step::Ended));
        self.tell(now);
    }

    /// Tells followers what has happened, and what follows from it.
    fn tell(&mut self, now: Time) {
        let collective = self.collective.clone();
        let schedule = collective.schedule();
        let waits_for_sends = schedule.next_waits_for_sends();
        while let Some((op, step)) = self.news.pop_front() {
            let is_end = matches!(step, Step::Ended);
            if is_end {
                if std::mem::replace(&mut self.states[op as usize].has_ended, true) {
                    continue;
                }
                let is_send = matches!(self.op(op), Op::Send { .. });
                self.left -= u32::from(waits_for_sends || !is_send);
            }
            for (next, waits_for_start) in schedule.followers(self.rank, op) {
                if waits_for_start == is_end {
                    continue;
                }
                let missing = &mut self.missing[next as usize];
                *missing -= 1;
                if *missing == 0 {
                    self.ready(now, next);
                }
            }
        }
        if self.left == 0 && self.outbox.is_empty() && self.begins.is_none() && !self.has_ended() {
            self.iterations.push((self.since, now));
            self.iteration += 1;
            self.begins = (!self.has_ended()).then(|| now.saturating_add(self.collective.pause()));
        }
    }
}
