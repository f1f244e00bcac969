//! One run on several threads: each has the world of one shard.
//!
//! After each window the threads exchange packets, ends of messages, and the sums that decide how the run goes on, so that
//! all of them decide alike. The packets of a window arrive after it, so the threads need nothing else from each other.
//!
//! They meet once after a window. A thread that has passed the meeting may write what it has for the next one while others still read, so
//! there are two places for everything, used in turns. Only if the ends of messages that shards have told each other may end the run, or are failures, after which closed loops
//! go on, do they meet a second time, to count without these.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rackweave_core::{Span, Time};
use rackweave_switch::net::{Captured, Counters, Crossing, LinkStats, QueueSample};
use rackweave_workload::app::{Collector, Position, limit_of};

use super::cut_off::Waits;
use super::timeline::Timeline;
use super::windows::{Ended, Window};
use super::{Control, World};
use crate::model::Model;
use crate::result::{End, MeasuredRoundTrip, RankReport, RunResult, TransportRecovery, Waiting};

/// How often a thread looks whether the others have arrived before it sleeps: some tens of microseconds. Waking a sleeping
/// thread takes as long as a window of thousands of events, and a thread whose processor another program has taken is not to keep a second
/// one busy.
const SPINS: u32 = 4096;

/// A thread has ended early, by a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a thread of the simulation has ended early")]
pub struct Lost;

/// A barrier at which threads spin before they sleep.
#[derive(Debug)]
struct Barrier {
    threads: u32,
    spins: u32,
    arrived: AtomicU32,
    round: AtomicU32,
    /// Number of threads that sleep or are about to.
    sleeping: AtomicU32,
    lost: AtomicBool,
    lock: Mutex<()>,
    wakeup: Condvar,
}

impl Barrier {
    fn new(threads: u32) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads,
            // With fewer processors than threads, the one that spins may take the time of the one that it waits for.
            spins: if processors >= threads as usize { SPINS } else { 0 },
            arrived: AtomicU32::new(0),
            round: AtomicU32::new(0),
            sleeping: AtomicU32::new(0),
            lost: AtomicBool::new(false),
            lock: Mutex::new(()),
            wakeup: Condvar::new(),
        }
    }

    /// Waits for all threads.
    fn wait(&self) -> Result<(), Lost> {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            // In one total order with `sleeping`: either a thread that is about to sleep sees the new round, or it is seen here.
            self.round.store(round.wrapping_add(1), Ordering::SeqCst);
            if self.sleeping.load(Ordering::SeqCst) > 0 {
                self.wake_all();
            }
            return self.check();
        }
        let is_over = || self.round.load(Ordering::Acquire) != round;
        for _ in 0..self.spins {
            if is_over() {
                return self.check();
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.lock);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        while self.round.load(Ordering::SeqCst) == round && !self.lost.load(Ordering::SeqCst) {
            guard = self.wakeup.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        self.check()
    }

    fn check(&self) -> Result<(), Lost> {
        if self.lost.load(Ordering::Acquire) { Err(Lost) } else { Ok(()) }
    }

    fn wake_all(&self) {
        // A thread that has the lock has not fallen asleep yet.
        drop(lock(&self.lock));
        self.wakeup.notify_all();
    }

    /// Ends all waiting, for ever.
    fn abandon(&self) {
        self.lost.store(true, Ordering::SeqCst);
        // Threads that spin notice at the end of it, because they then look before they sleep.
        self.wake_all();
    }
}

/// Locks a mutex. A panic while it was locked ends the run anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a shard tells the others after a window.
#[derive(Clone, Copy, Debug)]
struct Summary {
    /// When its next event is due.
    next: Option<Time>,
    /// Whether no event is pending but that of the next sample.
    is_idle: bool,
    now: Time,
    started: u64,
    under_way: u64,
    under_way_beside: u64,
    last_start: Time,
    have_started: bool,
    active_hosts: u32,
    /// The ends of messages that are not recorded yet.
    ended: u64,
    /// The failures among them. In a closed loop they cause events.
    failed: u64,
    packets: u64,
    events: u64,
    hops: u64,
    backlog: u64,
    /// Set at a check of hosts that are cut off.
    waits: Waits,
    is_cancelled: bool,
    is_expired: bool,
}

impl Summary {
    const NONE: Self = Self {
        next: None,
        is_idle: true,
        now: Time::ZERO,
        started: 0,
        under_way: 0,
        under_way_beside: 0,
        last_start: Time::ZERO,
        have_started: true,
        active_hosts: 0,
        ended: 0,
        failed: 0,
        packets: 0,
        events: 0,
        hops: 0,
        backlog: 0,
        waits: Waits { messages: 0, starters: 0 },
        is_cancelled: false,
        is_expired: false,
    };

    fn add(self, other: Self) -> Self {
        Self {
            next: [self.next, other.next].into_iter().flatten().min(),
            is_idle: self.is_idle && other.is_idle,
            now: self.now.max(other.now),
            started: self.started + other.started,
            under_way: self.under_way + other.under_way,
            under_way_beside: self.under_way_beside + other.under_way_beside,
            last_start: self.last_start.max(other.last_start),
            have_started: self.have_started && other.have_started,
            active_hosts: self.active_hosts + other.active_hosts,
            ended: self.ended + other.ended,
            failed: self.failed + other.failed,
            packets: self.packets + other.packets,
            events: self.events + other.events,
            hops: self.hops + other.hops,
            backlog: self.backlog + other.backlog,
            waits: Waits {
                messages: self.waits.messages + other.waits.messages,
                starters: self.waits.starters + other.waits.starters,
            },
            is_cancelled: self.is_cancelled || other.is_cancelled,
            is_expired: self.is_expired || other.is_expired,
        }
    }
}

/// What a shard has sent to others and they have not received, and the failures that it has not recorded itself.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    packets: u64,
    ended: u64,
    failed: u64,
}

/// What one shard has for another one after a window.
#[derive(Debug)]
struct Mail<H> {
    packets: Vec<Crossing<H>>,
    ended: Vec<Ended>,
}

impl<H> Default for Mail<H> {
    fn default() -> Self {
        Self { packets: Vec::new(), ended: Vec::new() }
    }
}

/// The results of a shard.
#[derive(Debug)]
struct Share<H> {
    collector: Collector,
    timeline: Timeline,
    counters: Counters,
    dropped_before: u64,
    /// The links whose ports are in the shard.
    links: Vec<(u32, LinkStats)>,
    traffic: Vec<Vec<u64>>,
    queue_series: Vec<QueueSample>,
    captured: Vec<Captured<H>>,
    round_trips: Vec<MeasuredRoundTrip>,
    recovery: Vec<TransportRecovery>,
    ranks: Vec<RankReport>,
    waiting: Vec<Waiting>,
    refused: u64,
    verified: u64,
}

/// Where the threads of a run meet.
#[derive(Debug)]
pub struct Meeting<H> {
    shards: u32,
    barrier: Barrier,
    /// By turn, then by shard; and so the mail.
    summaries: [Vec<Mutex<Summary>>; 2],
    positions: Vec<Mutex<Vec<Position>>>,
    /// By sender, then by receiver.
    mail: [Vec<Mutex<Mail<H>>>; 2],
    shares: Mutex<Vec<Share<H>>>,
}

/// Ends the waiting of all threads, unless it is forgotten.
struct Guard<'a>(&'a Barrier);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl<H> Meeting<H> {
    /// For this number of shards.
    #[must_use]
    pub fn new(shards: u32) -> Self {
        let all = || 0..shards;
        Self {
            shards,
            barrier: Barrier::new(shards),
            summaries: [0, 1].map(|_| all().map(|_| Mutex::new(Summary::NONE)).collect()),
            positions: all().map(|_| Mutex::default()).collect(),
            mail: [0, 1].map(|_| all().flat_map(|_| all().map(|_| Mutex::default())).collect()),
            shares: Mutex::new(Vec::new()),
        }
    }

    /// Calls a thread's function; if it panics or fails, no other thread waits for this one any more.
    ///
    /// # Errors
    /// Those of the function.
    pub fn attend<T, E>(&self, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let guard = Guard(&self.barrier);
        let result = run();
        if result.is_ok() {
            std::mem::forget(guard);
        }
        result
    }

    fn mail(&self, turn: usize, from: u32, to: u32) -> MutexGuard<'_, Mail<H>> {
        lock(&self.mail[turn % 2][(from * self.shards + to) as usize])
    }

    /// Publishes a shard's summary, and returns the sum of all. Each call is another turn.
    fn sum(&self, turn: usize, number: u32, summary: Summary) -> Result<Summary, Lost> {
        let summaries = &self.summaries[turn % 2];
        *lock(&summaries[number as usize]) = summary;
        self.barrier.wait()?;
        Ok(summaries.iter().fold(Summary::NONE, |sum, next| sum.add(*lock(next))))
    }
}

impl<M: Model> World<'_, M> {
    /// Runs this world's shard to the end, together with the others. The first shard returns the result of the run, others
    /// return `None`.
    ///
    /// # Errors
    /// If another thread has ended early.
    pub fn run_shard(
        mut self,
        number: u32,
        meeting: &Meeting<M::Header>,
        control: &Control,
    ) -> Result<Option<RunResult<M::Header>>, Lost> {
        let Some(windows) = &self.apps.windows else { return Err(Lost) };
        let length = windows.division.window;
        let end = self.run_shard_to_end(number, length, meeting, control)?;
        if number > 0 {
            let share = self.share();
            lock(&meeting.shares).push(share);
            meeting.barrier.wait()?;
            return Ok(None);
        }
        let own = self.share_statistics();
        meeting.barrier.wait()?;
        let shares = std::mem::take(&mut *lock(&meeting.shares));
        Ok(Some(self.combine(end, own, shares)))
    }

    fn run_shard_to_end(
        &mut self,
        number: u32,
        length: Span,
        meeting: &Meeting<M::Header>,
        control: &Control,
    ) -> Result<End, Lost> {
        let limit = Time::ZERO + self.measure.time_limit;
        let wanted = self.apps.progress().0;
        let mut window = Window { last: Time::ZERO, end: Time::ZERO };
        let mut turn = 0;
        loop {
            let sent = self.send_mail((turn, number), meeting);
            let mut sum = meeting.sum(turn, number, self.summary(sent, control))?;
            let reports = self.take_mail((turn, number), meeting);
            self.close_window(window, reports);
            let reached = window.end;
            turn += 1;
            let finds_limit = !self.apps.collector.has_limit() && sum.started >= wanted;
            if finds_limit {
                self.find_limit(number, reached, wanted, meeting)?;
            }
            if finds_limit || sum.under_way <= sum.ended || sum.failed > 0 {
                sum = meeting.sum(turn, number, self.summary(Sent::default(), control))?;
                turn += 1;
            }
            if let Some(windows) = &mut self.apps.windows {
                windows.peak_packets = windows.peak_packets.max(sum.packets);
            }
            if sum.packets > u64::from(control.packet_limit) {
                self.net.advance(reached);
                return Ok(End::PacketLimit);
            }
            if sum.hops > self.measure.hop_limit {
                self.net.advance(reached);
                return Ok(End::HopLimit);
            }
            if number == 0 {
                sum.publish(control, wanted);
            }
            if sum.under_way == 0 && (sum.have_started || sum.active_hosts == 0) {
                if !self.apps.collector.has_limit() {
                    // As `Collector::is_done` does in a run without shards.
                    self.apps.collector.end_with_the_first_stream(sum.last_start);
                    sum = meeting.sum(turn, number, self.summary(Sent::default(), control))?;
                    turn += 1;
                }
                if sum.under_way_beside == 0 {
                    self.net.advance(reached);
                    return Ok(End::AllDone);
                }
            }
            let is_stalled = sum.next.is_none() || sum.is_idle;
            let is_due = self.cut_off.is_due(reached);
            if is_due || is_stalled && self.cut_off.is_for_good() {
                let waits = self.waits(if is_due { reached } else { Time::MAX });
                let own = Summary { waits, ..self.summary(Sent::default(), control) };
                let Summary { waits, have_started, .. } = meeting.sum(turn, number, own)?;
                turn += 1;
                if waits.messages == 0 && (have_started || waits.starters == 0) {
                    self.net.advance(if is_due { reached } else { sum.now });
                    return Ok(End::CutOff);
                }
            }
            if self.apps.goes_on && self.steady.is_due(reached) {
                // What other shards had not received yet has ended messages meanwhile.
                let now = meeting.sum(turn, number, self.summary(Sent::default(), control))?;
                turn += 1;
                if let Some(end) = self.without_steady_state_at(reached, now.backlog) {
                    return Ok(end);
                }
            }
            if sum.is_cancelled || sum.is_expired {
                return Ok(if sum.is_cancelled { End::Cancelled } else { End::PointLimit });
            }
            let Some(next) = sum.next.filter(|_| !sum.is_idle) else {
                self.net.advance(sum.now);
                return Ok(End::Stalled);
            };
            if next > limit {
                self.net.advance(limit);
                return Ok(End::TimeLimit);
            }
            window = Window::of(next, length, limit);
            self.run_window(window);
        }
    }

    /// The summary of this shard, which has sent this to others that they have not received yet.
    fn summary(&self, sent: Sent, control: &Control) -> Summary {
        let collector = &self.apps.collector;
        let crossing = self.net.first_crossing().filter(|_| sent.packets > 0);
        Summary {
            next: [self.net.next_due(), crossing].into_iter().flatten().min(),
            is_idle: self.net.is_idle() && sent.packets == 0,
            now: self.net.now(),
            started: collector.started_messages(),
            under_way: collector.under_way(),
            under_way_beside: collector.under_way_beside(),
            last_start: collector.last_start(),
            have_started: collector.have_started(),
            active_hosts: collector.active_hosts(),
            ended: sent.ended,
            failed: sent.failed,
            packets: u64::from(self.net.packets()) + sent.packets,
            events: self.net.counters().events,
            hops: self.net.counters().packet_hops,
            backlog: self.apps.backlog,
            waits: Waits::default(),
            is_cancelled: control.cancel.load(Ordering::Relaxed),
            is_expired: control.expire.load(Ordering::Relaxed),
        }
    }

    /// Determines which messages are measured, once enough have started. All messages that start before `reached` are known.
    fn find_limit(
        &mut self,
        number: u32,
        reached: Time,
        wanted: u64,
        meeting: &Meeting<M::Header>,
    ) -> Result<(), Lost> {
        let horizon = Time::from_ticks(reached.ticks().saturating_sub(1));
        *lock(&meeting.positions[number as usize]) = self.apps.collector.positions(horizon);
        meeting.barrier.wait()?;
        let mut all: Vec<Position> = Vec::new();
        meeting.positions.iter().for_each(|positions| all.extend_from_slice(&lock(positions)));
        if let Some(limit) = limit_of(&mut all, wanted) {
            self.apps.collector.set_limit(limit);
        }
        Ok(())
    }

    fn send_mail(&mut self, (turn, number): (usize, u32), meeting: &Meeting<M::Header>) -> Sent {
        let packets = self.net.crossing();
        for to in (0..meeting.shards).filter(|to| *to != number) {
            self.net.take_crossing(to, &mut meeting.mail(turn, number, to).packets);
        }
        let Some(windows) = &mut self.apps.windows else { return Sent::default() };
        let ended = windows.ended.len() as u64;
        let failed = windows.ended.iter().filter(|ended| ended.is_failure()).count() as u64;
        if let Some((partition, _)) = &windows.division.shard {
            windows.ended.retain(|ended| {
                let to = ended.shard(partition);
                if to != number {
                    meeting.mail(turn, number, to).ended.push(*ended);
                }
                to == number
            });
        }
        Sent { packets, ended, failed }
    }

    fn take_mail(
        &mut self,
        (turn, number): (usize, u32),
        meeting: &Meeting<M::Header>,
    ) -> Vec<Ended> {
        let mut reports = Vec::new();
        for from in (0..meeting.shards).filter(|from| *from != number) {
            let mut mail = meeting.mail(turn, from, number);
            self.net.deliver(&mut mail.packets);
            reports.append(&mut mail.ended);
        }
        reports
    }

    /// The statistics of the links of this shard.
    fn share_statistics(&mut self) -> Vec<(u32, LinkStats)> {
        self.start_late_statistics();
        let links = (0..).zip(self.link_stats());
        links.filter(|(link, _)| self.net.has_port(*link)).collect()
    }

    fn share(mut self) -> Share<M::Header> {
        let links = self.share_statistics();
        Share {
            links,
            timeline: self.apps.timeline.take(),
            counters: *self.net.counters(),
            dropped_before: self.net.dropped_before(),
            traffic: self.net.metered(),
            queue_series: self.net.series().to_vec(),
            captured: self.net.take_captures(),
            round_trips: self.round_trips(),
            recovery: self.recovery(),
            ranks: self.apps.ranks(),
            waiting: self.waiting(),
            refused: self.apps.refused,
            verified: self.apps.verified(),
            collector: self.apps.collector,
        }
    }

    /// The result of the run: this shard's, with the shares of others.
    fn combine(
        mut self,
        end: End,
        own: Vec<(u32, LinkStats)>,
        shares: Vec<Share<M::Header>>,
    ) -> RunResult<M::Header> {
        let (mut links, mut counters, mut traffic) = (own, Counters::default(), self.net.metered());
        let (mut round_trips, mut verified) = (self.round_trips(), self.apps.verified());
        let mut dropped_before = 0;
        let (mut recovery, mut waiting) = (self.recovery(), self.waiting());
        let mut ranks = self.apps.ranks();
        for share in shares {
            ranks.extend(share.ranks);
            waiting.extend(share.waiting);
            links.extend(share.links);
            counters.add(&share.counters);
            dropped_before += share.dropped_before;
            for (all, more) in traffic.iter_mut().zip(share.traffic) {
                all.resize(all.len().max(more.len()), 0);
                all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
            }
            self.net.add_series(&share.queue_series);
            self.net.add_captures(share.captured);
            round_trips.extend(share.round_trips);
            for (all, more) in recovery.iter_mut().zip(share.recovery) {
                all.counters += more.counters;
            }
            verified += share.verified;
            self.apps.refused += share.refused;
            self.apps.timeline.absorb(share.timeline);
            self.apps.collector.absorb(share.collector);
        }
        links.sort_unstable_by_key(|(link, _)| *link);
        // Each host is in one shard, which has its round trips in the order of peers.
        round_trips.sort_by_key(|trip| (trip.stream, trip.src));
        Waiting::longest(&mut waiting, Waiting::MOST);
        ranks.sort_unstable_by_key(|rank| rank.rank);
        let links = links.into_iter().map(|(_, stats)| stats).collect();
        let result = self.report_with(end, links);
        counters.add(&result.counters);
        dropped_before += result.dropped_before.unwrap_or(0);
        RunResult {
            counters,
            dropped_before: Some(dropped_before),
            traffic,
            round_trips,
            recovery,
            ranks,
            waiting,
            verified_messages: verified,
            ..result
        }
    }
}

impl Summary {
    fn publish(&self, control: &Control, wanted: u64) {
        let started = self.started.min(wanted);
        control.started.store(started, Ordering::Relaxed);
        control.finished.store(started.saturating_sub(self.under_way), Ordering::Relaxed);
        control.sim_time_ticks.store(self.now.ticks(), Ordering::Relaxed);
        control.events.store(self.events, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_meet_whether_they_spin_or_sleep() {
        for spins in [0, SPINS] {
            let (threads, rounds) = (4, 2000);
            let barrier = Barrier { spins, ..Barrier::new(threads) };
            let counts: Vec<AtomicU32> = (0..threads).map(|_| AtomicU32::new(0)).collect();
            std::thread::scope(|scope| {
                for own in &counts {
                    let (barrier, counts) = (&barrier, &counts);
                    scope.spawn(move || {
                        for round in 1..=rounds {
                            own.fetch_add(1, Ordering::Relaxed);
                            barrier.wait().unwrap();
                            let here = |count: &AtomicU32| count.load(Ordering::Relaxed) == round;
                            assert!(
                                counts.iter().all(here),
                                "all have been counted, and none twice"
                            );
                            barrier.wait().unwrap();
                        }
                    });
                }
            });
        }
    }

    /// A thread that panics ends the waiting of the others, which would never end otherwise.
    #[test]
    fn a_thread_that_panics_is_not_waited_for() {
        for spins in [0, SPINS] {
            let mut meeting: Meeting<()> = Meeting::new(3);
            meeting.barrier.spins = spins;
            let meeting = &meeting;
            std::thread::scope(|scope| {
                let wait = || meeting.attend(|| meeting.sum(0, 0, Summary::NONE).map(|_| ()));
                let waiting = [scope.spawn(wait), scope.spawn(wait)];
                let lost =
                    scope.spawn(|| meeting.attend(|| -> Result<(), Lost> { panic!("lost") }));
                assert!(lost.join().is_err());
                assert_eq!(waiting.map(|thread| thread.join().unwrap()), [Err(Lost), Err(Lost)]);
            });
        }
    }
}
