//! The membership of a job: who takes part, and which state of the job each of them knows.
//!
//! A job of pairs and one of vectors form in the same way. A worker joins under a number and repeats a cookie before the master keeps
//! anything for it (`Place`). What workers learn of the job is one state with a version, which the master repeats until each of them has
//! confirmed it, and from time to time after that (`Membership`). A process that leaves says so; one that does not answer can be replaced
//! by another that has the same input, and is given up after a longer silence (`Silence`).

mod member;
mod place;
mod silence;

use std::cmp::Reverse;
use std::collections::VecDeque;

use rackweave_core::rng::mix;
use rackweave_core::{HostId, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{ADDRESS_BYTES, Body, Header, MAX_WORKERS, Rejection};

use self::member::Member;
pub(super) use self::member::{Arrival, Leaving};
pub(super) use self::place::Place;
pub(super) use self::silence::Silence;
use super::Failure;

/// How a master forms a job and keeps its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of the job.
    pub job: u16,
    /// The number of workers, 1 to 64.
    pub workers: u8,
    /// A random number that becomes the job's token.
    pub token: u64,
    /// A random number from which cookies are made.
    pub secret: u64,
    /// How long a message waits for its answer before it is repeated; it doubles with each repetition.
    pub retry: Span,
    /// How often workers hear of the master, and must answer.
    pub keepalive: Span,
    /// After which silence another process may take a worker's place.
    pub takeover: Span,
    /// How long the master waits for a worker that is silent.
    pub give_up: Span,
    /// How long the master waits for all workers to join, from its start on.
    pub join_within: Span,
}

impl Config {
    /// The default timers: 20 ms until the first repetition, a sign of life each 250 ms, 1 s until a worker can be
    /// replaced, 30 s of patience with silent workers, and with workers that have not joined.
    #[must_use]
    pub const fn new(job: u16, workers: u8, token: u64, secret: u64) -> Self {
        Self {
            job,
            workers,
            token,
            secret,
            retry: Span::from_ms(20),
            keepalive: Span::from_ms(250),
            takeover: Span::from_secs(1),
            give_up: Span::from_secs(30),
            join_within: Span::from_secs(30),
        }
    }
}

/// A process that wants to be a worker, and is not taken. Where another process is the worker it is answered only when that is
/// alive long after the first request: otherwise this may be its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotTaken {
    /// The number that it asks for.
    pub worker: u8,
    /// Its address.
    pub host: HostId,
    /// Why not.
    pub why: Rejection,
}

/// What is kept of a process that is not taken.
#[derive(Clone, Debug)]
struct Refused {
    refusal: NotTaken,
    process: (HostId, u32),
    since: Time,
    is_due: bool,
    is_reported: bool,
}

/// The most that are kept, and that are reported. Rackweave's choice: as many as a job has workers.
const MOST_REFUSED: usize = MAX_WORKERS as usize;

/// The workers of a job, as its master knows them.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    config: Config,
    members: Vec<Member>,
    /// The version of the state that workers are to confirm.
    version: u32,
    /// Answers to hosts that are not members.
    answers: VecDeque<(HostId, Header)>,
    /// Processes that the job does not take, the oldest first; and what of them was not reported. The host that has most is the first to
    /// have one forgotten.
    refused: Vec<Refused>,
    /// How many were reported.
    reported: usize,
    /// Whether a process that has said that it ends still hears of the state.
    informs_left: bool,
    started: Time,
    /// Since the job has ended, and how long workers that have not left are waited for then.
    ended: Option<(Silence, Span)>,
}

impl Membership {
    /// A job that waits for its workers from now on.
    pub(super) fn new(config: Config, now: Time) -> Self {
        Self {
            members: (0..config.workers).map(|_| Member::default()).collect(),
            version: 1,
            answers: VecDeque::new(),
            refused: Vec::new(),
            reported: 0,
            informs_left: false,
            started: now,
            ended: None,
            config,
        }
    }

    /// Processes that have said that they end still hear of the state until they are replaced.
    pub(super) const fn informing_left(mut self) -> Self {
        self.informs_left = true;
        self
    }

    /// All workers, as a bitmap.
    pub(super) fn all(&self) -> u64 {
        u64::MAX >> (64 - self.members.len())
    }

    /// Returns the numbers of the workers that have not joined.
    pub(super) fn missing(&self) -> impl Iterator<Item = u8> {
        (0_u8..).zip(&self.members).filter(|(_, member)| !member.has_joined()).map(|(n, _)| n)
    }

    /// Whether all workers have joined.
    pub(super) fn is_complete(&self) -> bool {
        self.members.iter().all(Member::has_joined)
    }

    /// Whether no worker has joined.
    pub(super) fn is_empty(&self) -> bool {
        !self.members.iter().any(Member::has_joined)
    }

    /// Returns the address of the process that has joined under a worker's number.
    pub(super) fn host_of(&self, worker: u8) -> Option<HostId> {
        let member = self.members.get(usize::from(worker))?;
        member.has_joined().then(|| member.host())
    }

    /// The addresses of the workers, as messages that ask for slots carry them.
    pub(super) fn addresses(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.members.len() * ADDRESS_BYTES);
        for member in &self.members {
            bytes.extend_from_slice(&member.host().0.to_be_bytes());
        }
        bytes
    }

    /// Returns the worker with this number, if its process is at the host that a message has come from.
    pub(super) fn member(&mut self, worker: u8, from: HostId) -> Option<&mut Member> {
        self.members.get_mut(usize::from(worker)).filter(|member| member.host() == from)
    }

    /// The version of the state that workers are to confirm.
    pub(super) const fn version(&self) -> u32 {
        self.version
    }

    /// The state has changed: workers are to confirm another version.
    pub(super) const fn change(&mut self) {
        self.version += 1;
    }

    /// Whether all workers have confirmed the newest state.
    pub(super) fn have_confirmed(&self) -> bool {
        self.members.iter().all(|member| member.has(self.version))
    }

    /// Whether all workers have confirmed the newest state, and had nothing under way then.
    pub(super) fn are_idle(&self) -> bool {
        self.members.iter().all(|member| member.has(self.version) && member.is_idle())
    }

    /// Another attempt begins; workers have something of it under way until they say that they do not.
    pub(super) fn make_busy(&mut self) {
        self.members.iter_mut().for_each(Member::make_busy);
    }

    /// The silence of all workers begins now.
    pub(super) fn hear_all(&mut self, now: Time) {
        self.members.iter_mut().for_each(|member| member.excuse(now));
    }

    /// The job has failed: workers are to hear of it, and then it is over, whoever does not answer.
    pub(super) const fn fail(&mut self, now: Time) {
        self.ended = Some((Silence::since(now), self.config.takeover));
    }

    /// The job is complete: workers are to hear of it. One that does not answer may be started again, and is to find the master: it is
    /// waited for as long as for one that is silent during the job.
    pub(super) const fn complete(&mut self, now: Time) {
        self.ended = Some((Silence::since(now), self.config.give_up));
    }

    /// Whether the job has ended, one way or the other.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether the job has ended, and the workers know or do not answer.
    pub(super) fn is_over(&self) -> bool {
        let knows = |member: &Member| !self.informs(member) || member.has(self.version);
        self.ended.is_some() && self.members.iter().all(knows)
    }

    /// Answers a host that is not a member.
    pub(super) fn answer(&mut self, to: HostId, header: &Header, body: Body) {
        if self.answers.len() < usize::from(MAX_WORKERS) {
            self.answers.push_back((to, Header { body, token: Id64::new(0), ..*header }));
        }
    }

    /// Returns the next answer to a host that is not a member.
    pub(super) fn poll_answer(&mut self) -> Option<(HostId, Header)> {
        self.answers.pop_front()
    }

    const fn cookie(&self, host: HostId, instance: u32) -> u64 {
        mix(mix(self.config.secret ^ host.0 as u64) ^ instance as u64)
    }

    /// Returns whether a process has repeated the cookie for its address and instance. One that has not is challenged, and nothing is kept
    /// for it.
    pub(super) fn admits(
        &mut self,
        from: HostId,
        header: &Header,
        instance: u32,
        cookie: u64,
    ) -> bool {
        let expected = self.cookie(from, instance);
        if cookie != expected {
            self.answer(from, header, Body::Challenge { instance, cookie: Id64::new(expected) });
        }
        cookie == expected
    }

    /// An admitted process wants to be this worker. `digest` is that of its input, and whether it must be the same as that of the
    /// process that it replaces. `None`: the job has no such worker.
    pub(super) fn join(
        &mut self,
        now: Time,
        worker: u8,
        process: (HostId, u32),
        digest: (u64, bool),
    ) -> Option<Arrival> {
        let takeover = self.config.takeover;
        let Some(member) = self.members.get_mut(usize::from(worker)) else {
            self.reject(now, worker, process, Rejection::NoNumber, now);
            return None;
        };
        let alive = member.alive();
        let arrival = member.join(now, process, digest, takeover);
        match arrival {
            Arrival::Taken => self.reject(now, worker, process, Rejection::Taken, alive),
            Arrival::OtherInput => self.reject(now, worker, process, Rejection::OtherInput, alive),
            Arrival::First | Arrival::Known | Arrival::Replaced => {}
        }
        Some(arrival)
    }

    /// A process does not know what workers of the job know.
    pub(super) fn reject_stranger(&mut self, now: Time, worker: u8, process: (HostId, u32)) {
        self.reject(now, worker, process, Rejection::Stranger, now);
    }

    /// A process is not taken. It asks again until it is answered. The worker of this number was `alive` last at this time.
    fn reject(
        &mut self,
        now: Time,
        worker: u8,
        process: (HostId, u32),
        why: Rejection,
        alive: Time,
    ) {
        let takeover = self.config.takeover;
        let is_same = |it: &&mut Refused| it.process == process && it.refusal.why == why;
        if let Some(known) = self.refused.iter_mut().find(is_same) {
            // What a former process has sent has arrived by then, so that this is another one, which lives.
            let is_lasting =
                why != Rejection::Taken || alive >= known.since.saturating_add(takeover);
            known.is_due |= is_lasting && !known.is_reported;
            if is_lasting {
                let (host, instance) = process;
                let (token, body) = (Id64::new(0), Body::Rejected { instance, why });
                let header = Header { job: self.config.job, attempt: 0, worker, token, body };
                self.answer(host, &header, body);
            }
        } else {
            if self.refused.len() >= MOST_REFUSED {
                self.forget_refused();
            }
            let refusal = NotTaken { worker, host: process.0, why };
            let is_due = why != Rejection::Taken;
            self.refused.push(Refused { refusal, process, since: now, is_due, is_reported: false });
        }
    }

    /// Forgets the oldest of those of the host that has most, so that no host's processes keep others from being answered.
    fn forget_refused(&mut self) {
        let of = |host| self.refused.iter().filter(|it| it.process.0 == host).count();
        let counts = self.refused.iter().map(|it| of(it.process.0)).enumerate();
        if let Some((index, _)) = counts.min_by_key(|(_, count)| Reverse(*count)) {
            self.refused.remove(index);
        }
    }

    /// Returns a process that is not taken, which was not returned before unless it was forgotten.
    pub(super) fn poll_refused(&mut self) -> Option<NotTaken> {
        if self.reported >= MOST_REFUSED {
            return None;
        }
        let due = self.refused.iter_mut().find(|it| it.is_due && !it.is_reported)?;
        (due.is_reported, due.is_due) = (true, false);
        self.reported += 1;
        Some(due.refusal)
    }

    /// A process says that it ends as this worker. If the job `has_begun`, it remains the worker until another process takes its place, or
    /// until it is missed.
    pub(super) fn leave(&mut self, from: HostId, worker: u8, has_begun: bool) -> Leaving {
        match self.member(worker, from) {
            None => Leaving::Stranger,
            Some(member) if member.has_left() => Leaving::Again,
            Some(member) => {
                member.leave(has_begun);
                Leaving::Left
            }
        }
    }

    /// Whether the state is sent to a worker.
    const fn informs(&self, member: &Member) -> bool {
        member.has_joined() && (self.informs_left || !member.has_left())
    }

    /// Whether the state is sent to a worker now, or later: not to one that knows that the job has ended.
    fn is_announced(&self, member: &Member) -> bool {
        self.informs(member) && !(self.ended.is_some() && member.has(self.version))
    }

    /// Returns a worker to which the state is to be sent now, with its process.
    pub(super) fn poll_announcement(&mut self, now: Time) -> Option<(u8, HostId, u32)> {
        let Config { retry, keepalive, .. } = self.config;
        let version = self.version;
        let is_due = |member: &Member| {
            self.is_announced(member) && member.due(version, retry, keepalive) <= now
        };
        let worker = self.members.iter().position(is_due)?;
        let member = &mut self.members[worker];
        member.announce(now, version);
        Some((worker as u8, member.host(), member.instance()))
    }

    /// Returns when [`Membership::poll_announcement`] is due.
    pub(super) fn announcement_due(&self) -> Option<Time> {
        let Config { retry, keepalive, .. } = self.config;
        let announced = self.members.iter().filter(|member| self.is_announced(member));
        announced.map(|member| member.due(self.version, retry, keepalive)).min()
    }

    /// Returns when [`Membership::expire`], [`Membership::not_joined`] or [`Membership::silent`] is due, with the same exceptions.
    pub(super) fn patience_due(&self, except: u64) -> Option<Time> {
        let Config { give_up, join_within, .. } = self.config;
        if let Some((ended, _)) = self.ended {
            return Some(ended.due(self.patience_at_end()));
        }
        let joined = self.members.iter().enumerate().filter(|(_, member)| member.has_joined());
        let awaited = joined.filter(|(number, _)| except >> number & 1 == 0);
        let silent = awaited.map(|(_, member)| member.silent_due(give_up));
        let start = self.missing().next().map(|_| self.started.saturating_add(join_within));
        silent.chain(start).min()
    }

    /// How long workers that do not confirm the end of the job are waited for, if they have not said that they leave.
    fn patience_at_end(&self) -> Span {
        let takeover = self.config.takeover;
        let (_, patience) = self.ended.unwrap_or((Silence::since(Time::ZERO), takeover));
        let is_awaited = |member: &Member| {
            member.has_joined() && !member.has_left() && !member.has(self.version)
        };
        if self.members.iter().any(is_awaited) { patience } else { patience.min(takeover) }
    }

    /// Ends the wait for workers that do not confirm the end of the job. Returns whether it has ended.
    pub(super) fn expire(&mut self, now: Time) -> bool {
        let patience = self.patience_at_end();
        let Some((ended, _)) = &mut self.ended else { return false };
        // Workers that are gone do not answer.
        if ended.look(now, patience) {
            for member in &mut self.members {
                member.confirm(self.version, true);
            }
        }
        true
    }

    /// Why the job fails if not all workers have joined in time.
    pub(super) fn not_joined(&self, now: Time) -> Option<Failure> {
        let workers = self.missing().fold(0, |set, number| set | 1 << number);
        let is_late = now >= self.started.saturating_add(self.config.join_within);
        (workers != 0 && is_late).then_some(Failure::NotJoined { workers })
    }

    /// Why the job fails if a worker has been silent for too long that is not one of these, a bitmap.
    pub(super) fn silent(&mut self, now: Time, except: u64) -> Option<Failure> {
        let give_up = self.config.give_up;
        let is_silent = |(number, member): (usize, &mut Member)| {
            let is_silent = except >> number & 1 == 0 && member.is_silent(now, give_up);
            is_silent.then_some(number)
        };
        let worker = self.members.iter_mut().enumerate().find_map(is_silent)?;
        let (member, worker) = (&self.members[worker], worker as u8);
        Some(match (member.has_met_other(), member.has_left()) {
            (true, _) => Failure::OtherInput { worker },
            (false, true) => Failure::WorkerLeft { worker, waited: 0 },
            (false, false) => Failure::WorkerSilent { worker },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_host_keep_no_other_from_being_answered() {
        let mut members = Membership::new(Config::new(1, 2, 3, 4), Time::ZERO);
        let (few, many) = (HostId(7), HostId(8));
        let mut reported = 0;
        let mut ask = |from, instance| {
            // A job of two has no such worker.
            assert!(members.join(Time::ZERO, 9, (from, instance), (0, false)).is_none());
            while members.poll_refused().is_some() {
                reported += 1;
            }
            members.poll_answer().map(|(to, _)| to)
        };
        assert_eq!(ask(few, 1), None);
        for instance in 0..1000 {
            assert_eq!(ask(many, instance), None);
        }
        assert_eq!((ask(few, 1), ask(few, 2)), (Some(few), None));
        assert_eq!((ask(many, 1000), ask(few, 2)), (None, Some(few)));
        assert_eq!(reported, MOST_REFUSED, "no flood of reports");
    }
}
