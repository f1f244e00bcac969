//! Collective operations: what each of many ranks sends, receives and calculates, and what must be done before.
//!
//! - [`Schedule`]: the operations of all ranks, and their dependencies. A [`Builder`] checks them: each send has its receive, and no
//!   operation waits for itself.
//! - [`generate`]: schedules of all-reduce and others by their algorithm. [`goal`]: schedules as text, as LogGOPSim has them.
//! - [`Collective`]: a schedule on hosts, once or several times.
//! - [`Rank`]: the machine of one rank, which says when its messages start. [`ideal`]: the machines of all ranks without a network.

mod cycle;
pub mod generate;
pub mod goal;
mod ideal;
mod rank;
mod schedule;
#[cfg(test)]
mod tests;

use std::fmt::{self, Debug};
use std::sync::Arc;

use rackweave_core::{HostId, Span};

use self::generate::Algorithm;
pub use self::ideal::ideal;
pub use self::rank::{Outgoing, Rank, RankReport, Wait, WaitReason};
pub use self::schedule::{Builder, Op, Place, Schedule, ScheduleError};
use crate::error::WorkloadError;

/// A schedule on hosts. It is cheap to clone, because clones share it.
#[derive(Clone, PartialEq)]
pub struct Collective {
    shared: Arc<Shared>,
}

#[derive(Debug, PartialEq)]
struct Shared {
    schedule: Arc<Schedule>,
    /// Its algorithm, and its size.
    origin: Option<(&'static Algorithm, u64)>,
    /// The host of each rank.
    hosts: Vec<HostId>,
    /// The rank of each host, up to the last one that has a rank.
    ranks: Vec<Option<u32>>,
    repeat: u32,
    pause: Span,
}

impl Collective {
    /// Puts the ranks of a schedule on hosts. It runs `repeat` times: a rank begins the next time when it has done its part of
    /// the one before, after `pause`.
    ///
    /// # Errors
    /// If the numbers of ranks and hosts differ, a host has two ranks, or it runs 0 times.
    pub fn new(
        schedule: Schedule,
        hosts: Vec<HostId>,
        repeat: u32,
        pause: Span,
    ) -> Result<Self, WorkloadError> {
        if repeat == 0 {
            return Err(WorkloadError::Zero { what: "the number of times that a collective runs" });
        }
        let ranks = schedule.ranks();
        if hosts.len() as u64 != u64::from(ranks) {
            let hosts = hosts.len() as u64;
            return Err(WorkloadError::UnequalRanks { ranks, hosts });
        }
        let last = hosts.iter().map(|host| host.0 as usize + 1).max().unwrap_or(0);
        let mut rank_of = vec![None; last];
        for (rank, host) in (0..).zip(&hosts) {
            if let Some(first) = rank_of[host.0 as usize].replace(rank) {
                return Err(WorkloadError::TwoRanks { host: host.0, first, second: rank });
            }
        }
        let (schedule, ranks) = (Arc::new(schedule), rank_of);
        let shared = Shared { schedule, origin: None, hosts, ranks, repeat, pause };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Notes what the schedule is that of.
    #[must_use]
    pub fn made_by(self, algorithm: &'static Algorithm, bytes: u64) -> Self {
        let Shared { schedule, hosts, ranks, repeat, pause, .. } = &*self.shared;
        let (schedule, hosts, ranks) = (Arc::clone(schedule), hosts.clone(), ranks.clone());
        let origin = Some((algorithm, bytes));
        let (repeat, pause) = (*repeat, *pause);
        Self { shared: Arc::new(Shared { schedule, origin, hosts, ranks, repeat, pause }) }
    }

    /// The algorithm and the size, if they are known.
    #[must_use]
    pub fn origin(&self) -> Option<(&'static Algorithm, u64)> {
        self.shared.origin
    }

    /// The operations.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.shared.schedule
    }

    /// The host of each rank.
    #[must_use]
    pub fn hosts(&self) -> &[HostId] {
        &self.shared.hosts
    }

    /// The rank of a host, if it has one.
    #[must_use]
    pub fn rank_of(&self, host: HostId) -> Option<u32> {
        self.shared.ranks.get(host.0 as usize).copied().flatten()
    }

    /// How often it runs.
    #[must_use]
    pub fn repeat(&self) -> u32 {
        self.shared.repeat
    }

    /// The time between a rank's end and its next begin.
    #[must_use]
    pub fn pause(&self) -> Span {
        self.shared.pause
    }

    /// The same schedule on the same hosts, once.
    #[must_use]
    pub fn once(&self) -> Self {
        let Shared { schedule, origin, hosts, ranks, pause, .. } = &*self.shared;
        let (schedule, hosts, ranks) = (Arc::clone(schedule), hosts.clone(), ranks.clone());
        let (origin, pause) = (*origin, *pause);
        Self { shared: Arc::new(Shared { schedule, origin, hosts, ranks, repeat: 1, pause }) }
    }

    /// The number of messages.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.schedule().sends() * u64::from(self.repeat())
    }

    /// Whether the end of a message at its receiver can start another one at its sender.
    #[must_use]
    pub fn waits_for_sends(&self) -> bool {
        self.schedule().requires_sends()
            || self.repeat() > 1 && self.schedule().next_waits_for_sends()
    }

    /// One more than the largest number of a message ([`Outgoing::number`]).
    #[must_use]
    pub fn numbers(&self) -> u64 {
        let most = (0..self.schedule().ranks()).map(|rank| self.schedule().len(rank)).max();
        u64::from(most.unwrap_or(0)) * u64::from(self.repeat())
    }

    /// The number of a message: that of the operation, with the iterations before.
    fn number(&self, rank: u32, iteration: u32, op: u32) -> u64 {
        u64::from(iteration) * u64::from(self.schedule().len(rank)) + u64::from(op)
    }

    /// The iteration and the operation of a message of a rank.
    fn place(&self, rank: u32, number: u64) -> (u32, u32) {
        let ops = u64::from(self.schedule().len(rank).max(1));
        ((number / ops) as u32, (number % ops) as u32)
    }
}

/// Without the operations: there may be millions, and their digest stands for them.
impl Debug for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { schedule, hosts, repeat, pause, .. } = &*self.shared;
        let mut of = f.debug_struct("Collective");
        of.field("digest", &schedule.digest()).field("hosts", hosts);
        of.field("repeat", repeat).field("pause", pause).finish()
    }
}
