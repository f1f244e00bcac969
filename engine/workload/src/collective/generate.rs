//! Schedules of collective operations, by their algorithm.
//!
//! Sizes are those of NCCL's tests: of the vector of a rank for all-reduce, broadcast and reduce; of all ranks' parts together for all-gather,
//! reduce-scatter and gather; of what a rank sends to all ranks, itself included, for all-to-all.

use rackweave_core::{Rate, Span};

use super::schedule::{Builder, MAX_RANKS, Op, Schedule, ScheduleError};

/// What an operation does, for ranks that have data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// All ranks get the sum of all vectors.
    AllReduce,
    /// All ranks get the parts of all.
    AllGather,
    /// Each rank gets its part of the sum of all vectors.
    ReduceScatter,
    /// Each rank gets a part from each other.
    AllToAll,
    /// All ranks get the vector of one.
    Broadcast,
    /// One rank gets the parts of all.
    Gather,
    /// One rank gives parts to all, these exchange what they make of them, and the first gets the result.
    MapReduce,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Broadcast,
        Self::Gather,
        Self::MapReduce,
    ];

    /// Returns the name in scenarios.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
            Self::MapReduce => "map-reduce",
        }
    }

    /// Returns the bytes that cross the busiest link of a rank for each byte of the size, by which NCCL's tests multiply the rate to get the
    /// "bus bandwidth". (That of map-reduce, which they do not have, is Rackweave's choice.)
    #[must_use]
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather => (n - 1.0) / n,
            Self::Broadcast => 1.0,
            Self::MapReduce => 2.0 * (n - 1.0) / n,
        }
    }
}

/// What a schedule is made for.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// The number of ranks, at least 2.
    pub ranks: u32,
    /// The size.
    pub bytes: u64,
    /// The ranks of each group, for a hierarchical algorithm: such as those of a rack.
    pub groups: &'a [Vec<u32>],
    /// The rate at which a rank adds up or processes what it has received; `None` if that takes no time.
    pub compute: Option<Rate>,
    /// The exponent of the part that rank n gets in an all-to-all: (n + 1) to the power of minus this. With 0 all parts are equal.
    pub skew: f64,
}

/// Why there is no such schedule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// There are too few ranks, or too many.
    #[error("a collective has 2 to {MAX_RANKS} ranks, not {0}")]
    Ranks(u32),
    /// Some rank would have no data.
    #[error("{bytes} bytes are fewer than one for each of {ranks} ranks")]
    Size {
        /// The size.
        bytes: u64,
        /// The number of ranks.
        ranks: u32,
    },
    /// Groups differ in size.
    #[error("groups must have equal numbers of ranks, and these have {0} and {1}")]
    Groups(usize, usize),
    /// Messages are too long, or there are too many.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// How an operation is carried out.
#[derive(Clone, Copy)]
pub struct Algorithm {
    /// What it does.
    pub operation: Operation,
    /// The value of `algorithm` in scenarios, such as `ring`.
    pub name: &'static str,
    /// A line about it.
    pub description: &'static str,
    plan: fn(&mut Plan<'_>),
}

/// Operation and name tell them apart.
impl PartialEq for Algorithm {
    fn eq(&self, other: &Self) -> bool {
        (self.operation, self.name) == (other.operation, other.name)
    }
}

impl core::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", self.operation.name(), self.name)
    }
}

/// All algorithms; the first of an operation is its default.
pub const ALGORITHMS: &[Algorithm] = &[
    Algorithm {
        operation: Operation::AllReduce,
        name: "ring",
        description: "n - 1 steps add up parts round a ring, n - 1 more pass the sums on",
        plan: |plan| {
            let (all, last) = (plan.all(), plan.parts());
            plan.ring_scatter(&all, &last);
            plan.ring_gather(&all, &last);
        },
    },
    Algorithm {
        operation: Operation::AllReduce,
        name: "halving-doubling",
        description: "ranks exchange halves with partners twice as near each time, and the sums the other way",
        plan: |plan| {
            let size = plan.shape.bytes;
            let (inner, outer) = plan.fold(|_| size);
            let slots = parts(size, inner.len() as u64);
            plan.halve(&inner, &slots);
            plan.double(&inner, &slots);
            for (rank, of) in outer {
                plan.pass(of, rank, size);
            }
        },
    },
    Algorithm {
        operation: Operation::AllReduce,
        name: "tree",
        description: "a binomial tree adds up the vectors, and passes the sum back",
        plan: |plan| {
            let all = plan.all();
            plan.reduce_tree(&all, plan.shape.bytes);
            plan.broadcast_tree(&all, plan.shape.bytes);
        },
    },
    Algorithm {
        operation: Operation::AllReduce,
        name: "hierarchical",
        description: "rings within groups add up parts, rings across groups the parts of all, and rings within groups pass them on",
        plan: |plan| {
            let (groups, size) = (plan.shape.groups, plan.shape.bytes);
            let members = groups.first().map_or(0, Vec::len);
            let slots = parts(size, members as u64);
            for group in groups {
                plan.ring_scatter(group, &slots);
            }
            for (index, slot) in slots.iter().enumerate() {
                let across: Vec<u32> = groups.iter().map(|group| group[index]).collect();
                let of_slot = parts(*slot, across.len() as u64);
                plan.ring_scatter(&across, &of_slot);
                plan.ring_gather(&across, &of_slot);
            }
            for group in groups {
                plan.ring_gather(group, &slots);
            }
        },
    },
    Algorithm {
        operation: Operation::AllGather,
        name: "ring",
        description: "each rank passes on what it got last, round a ring",
        plan: |plan| plan.ring_gather(&plan.all(), &plan.parts()),
    },
    Algorithm {
        operation: Operation::AllGather,
        name: "recursive-doubling",
        description: "ranks exchange all that they have with partners twice as far each time",
        plan: |plan| {
            let parts = plan.parts();
            let (inner, outer) = plan.fold(|rank| parts[rank as usize]);
            let mut slots: Vec<u64> = parts[..inner.len()].to_vec();
            for (rank, of) in &outer {
                slots[*of as usize] += parts[*rank as usize];
            }
            plan.double(&inner, &slots);
            for (rank, of) in outer {
                plan.pass(of, rank, plan.shape.bytes - parts[rank as usize]);
            }
        },
    },
    Algorithm {
        operation: Operation::ReduceScatter,
        name: "ring",
        description: "n - 1 steps add up parts round a ring",
        plan: |plan| plan.ring_scatter(&plan.all(), &plan.parts()),
    },
    Algorithm {
        operation: Operation::ReduceScatter,
        name: "halving",
        description: "ranks exchange halves with partners twice as near each time",
        plan: |plan| {
            let (size, parts) = (plan.shape.bytes, plan.parts());
            let (inner, outer) = plan.fold(|_| size);
            let mut slots: Vec<u64> = parts[..inner.len()].to_vec();
            for (rank, of) in &outer {
                slots[*of as usize] += parts[*rank as usize];
            }
            plan.halve(&inner, &slots);
            for (rank, of) in outer {
                plan.pass(of, rank, parts[rank as usize]);
            }
        },
    },
    Algorithm {
        operation: Operation::AllToAll,
        name: "pairwise",
        description: "in step s each rank sends to the rank s after it; a step begins when the part of the one before has come",
        plan: |plan| plan.exchange(true, &|plan, _| plan.skewed()),
    },
    Algorithm {
        operation: Operation::AllToAll,
        name: "direct",
        description: "all parts at once",
        plan: |plan| plan.exchange(false, &|plan, _| plan.skewed()),
    },
    Algorithm {
        operation: Operation::Broadcast,
        name: "binomial",
        description: "each rank that has the vector sends it to another, one after the other",
        plan: |plan| plan.broadcast_tree(&plan.all(), plan.shape.bytes),
    },
    Algorithm {
        operation: Operation::Broadcast,
        name: "flat",
        description: "the first rank sends to all at once",
        plan: |plan| {
            for rank in 1..plan.shape.ranks {
                plan.pass(0, rank, plan.shape.bytes);
            }
        },
    },
    Algorithm {
        operation: Operation::Broadcast,
        name: "chain",
        description: "each rank sends pieces of 1/n to the next as they come",
        plan: |plan| {
            for piece in plan.parts() {
                for rank in 1..plan.shape.ranks {
                    let (last, first) = (plan.last[rank as usize - 1], rank == 1);
                    let send = plan.send(rank - 1, rank, piece, last);
                    // The root has everything, and sends one piece after the other.
                    plan.last[rank as usize - 1] = if first { Some(send) } else { last };
                    plan.last[rank as usize] = Some(plan.receive(rank, rank - 1, piece));
                }
            }
        },
    },
    Algorithm {
        operation: Operation::Gather,
        name: "binomial",
        description: "each rank sends what it and others have to one that has not",
        plan: |plan| plan.gather_tree(),
    },
    Algorithm {
        operation: Operation::Gather,
        name: "flat",
        description: "all ranks send to the first at once",
        plan: |plan| {
            for (rank, part) in (0..).zip(plan.parts()).skip(1) {
                plan.pass(rank, 0, part);
            }
        },
    },
    Algorithm {
        operation: Operation::MapReduce,
        name: "direct",
        description: "parts to all, a map, a pairwise shuffle, a reduction, and the results to the first rank",
        plan: |plan| {
            let parts = plan.parts();
            for (rank, part) in (0..).zip(&parts) {
                if rank > 0 {
                    plan.pass(0, rank, *part);
                }
            }
            for (rank, part) in (0..).zip(&parts) {
                plan.work(rank, *part);
            }
            let ranks = u64::from(plan.shape.ranks);
            plan.exchange(true, &|plan, rank| {
                let own = plan.parts()[rank as usize];
                self::parts(own.max(ranks), ranks)
            });
            for (rank, part) in (0..).zip(&parts) {
                plan.work(rank, *part);
                if rank > 0 {
                    plan.pass(rank, 0, *part);
                }
            }
        },
    },
];

/// Returns the algorithms of an operation.
pub fn algorithms(operation: Operation) -> impl Iterator<Item = &'static Algorithm> {
    ALGORITHMS.iter().filter(move |algorithm| algorithm.operation == operation)
}

impl Algorithm {
    /// Makes the schedule.
    ///
    /// # Errors
    /// If it cannot be made for this shape.
    pub fn schedule(&self, shape: &Shape<'_>) -> Result<Schedule, GenerateError> {
        let Shape { ranks, bytes, groups, .. } = *shape;
        if !(2..=MAX_RANKS).contains(&ranks) {
            return Err(GenerateError::Ranks(ranks));
        }
        if bytes < u64::from(ranks) {
            return Err(GenerateError::Size { bytes, ranks });
        }
        let lengths = || groups.iter().map(Vec::len);
        if let (Some(fewest), Some(most)) = (lengths().min(), lengths().max())
            && fewest < most
            && self.name == "hierarchical"
        {
            return Err(GenerateError::Groups(fewest, most));
        }
        let last = vec![None; ranks as usize];
        let mut plan = Plan { shape: *shape, builder: Builder::new(ranks), last };
        (self.plan)(&mut plan);
        Ok(plan.builder.finish()?)
    }
}

/// Divides bytes into parts that differ by one byte at most.
fn parts(bytes: u64, number: u64) -> Vec<u64> {
    let upto = |nth: u64| (u128::from(bytes) * u128::from(nth) / u128::from(number)) as u64;
    (0..number).map(|nth| upto(nth + 1) - upto(nth)).collect()
}

/// A schedule in the making.
struct Plan<'a> {
    shape: Shape<'a>,
    builder: Builder,
    /// For each rank the operation after which it has what it sends next.
    last: Vec<Option<u32>>,
}

impl Plan<'_> {
    fn all(&self) -> Vec<u32> {
        (0..self.shape.ranks).collect()
    }

    fn parts(&self) -> Vec<u64> {
        parts(self.shape.bytes, u64::from(self.shape.ranks))
    }

    /// The parts that each rank gets in an all-to-all.
    fn skewed(&self) -> Vec<u64> {
        let weight = |nth: u32| libm::pow(f64::from(nth) + 1.0, -self.shape.skew);
        let whole: f64 = (0..self.shape.ranks).map(weight).sum();
        if self.shape.skew == 0.0 {
            return self.parts();
        }
        let part = |nth| (weight(nth) / whole * self.shape.bytes as f64) as u64;
        (0..self.shape.ranks).map(|nth| part(nth).max(1)).collect()
    }

    fn send(&mut self, rank: u32, to: u32, bytes: u64, after: Option<u32>) -> u32 {
        let send = self.builder.add(rank, Op::Send { to, bytes, tag: 0 });
        if let Some(on) = after {
            self.builder.requires(rank, send, on);
        }
        send
    }

    fn receive(&mut self, rank: u32, from: u32, bytes: u64) -> u32 {
        self.builder.add(rank, Op::Receive { from, bytes, tag: 0 })
    }

    /// A rank sends what it has, and another one has it then.
    fn pass(&mut self, rank: u32, to: u32, bytes: u64) {
        self.send(rank, to, bytes, self.last[rank as usize]);
        let receive = self.receive(to, rank, bytes);
        self.join(to, receive);
    }

    /// What a rank sends next depends on this operation too.
    fn join(&mut self, rank: u32, op: u32) {
        let rank_at = rank as usize;
        self.last[rank_at] = Some(match self.last[rank_at] {
            None => op,
            Some(before) => {
                let both = self.builder.add(rank, Op::Calculate { span: Span::ZERO, cpu: 0 });
                self.builder.requires(rank, both, before);
                self.builder.requires(rank, both, op);
                both
            }
        });
    }

    /// A rank processes bytes that it has.
    fn work(&mut self, rank: u32, bytes: u64) {
        let Some(rate) = self.shape.compute else { return };
        let work = Op::Calculate { span: rate.span_of(bytes), cpu: 0 };
        let work = self.builder.add(rank, work);
        if let Some(on) = self.last[rank as usize] {
            self.builder.requires(rank, work, on);
        }
        self.last[rank as usize] = Some(work);
    }

    /// What a rank sends next needs what it receives here, and nothing else.
    fn take(&mut self, rank: u32, from: u32, bytes: u64) {
        self.last[rank as usize] = Some(self.receive(rank, from, bytes));
    }

    /// As [`Plan::take`], and the rank adds what it receives to what it has.
    fn add_up(&mut self, rank: u32, from: u32, bytes: u64) {
        self.take(rank, from, bytes);
        self.work(rank, bytes);
    }

    /// Ring reduce-scatter: afterwards each member has the sum of its part.
    fn ring_scatter(&mut self, members: &[u32], parts: &[u64]) {
        self.round(members, parts, members.len() - 1, true);
    }

    /// Ring all-gather: each member has its part before.
    fn ring_gather(&mut self, members: &[u32], parts: &[u64]) {
        self.round(members, parts, 0, false);
    }

    /// In each step each member sends a part to the next one, in the first step the part `first` after its own.
    fn round(&mut self, members: &[u32], parts: &[u64], first: usize, adds_up: bool) {
        let n = members.len();
        for step in 0..n.saturating_sub(1) {
            let part = |member: usize| parts[(member + first + n - step) % n];
            for (nth, &rank) in members.iter().enumerate() {
                let (next, before) = ((nth + 1) % n, (nth + n - 1) % n);
                self.send(rank, members[next], part(nth), self.last[rank as usize]);
                if adds_up {
                    self.add_up(rank, members[before], part(before));
                } else {
                    self.take(rank, members[before], part(before));
                }
            }
        }
    }

    /// Returns as many ranks as the largest power of two, and the others, each with one of them, to which it has sent its bytes.
    fn fold(&mut self, bytes: impl Fn(u32) -> u64) -> (Vec<u32>, Vec<(u32, u32)>) {
        let inner = 1 << self.shape.ranks.ilog2();
        let outer: Vec<(u32, u32)> =
            (inner..self.shape.ranks).map(|rank| (rank, rank - inner)).collect();
        for &(rank, of) in &outer {
            self.send(rank, of, bytes(rank), self.last[rank as usize]);
            self.add_up(of, rank, bytes(rank));
        }
        ((0..inner).collect(), outer)
    }

    /// Recursive halving among a power of two ranks: afterwards each has the sum of its slot.
    fn halve(&mut self, members: &[u32], slots: &[u64]) {
        let mut distance = members.len() / 2;
        while distance > 0 {
            for (nth, &rank) in members.iter().enumerate() {
                let partner = nth ^ distance;
                let of = |member: usize| {
                    let low = member & !(distance - 1);
                    slots[low..low + distance].iter().sum::<u64>()
                };
                self.send(rank, members[partner], of(partner), self.last[rank as usize]);
                self.add_up(rank, members[partner], of(nth));
            }
            distance /= 2;
        }
    }

    /// Recursive doubling among a power of two ranks, each with its slot.
    fn double(&mut self, members: &[u32], slots: &[u64]) {
        let mut distance = 1;
        while distance < members.len() {
            for (nth, &rank) in members.iter().enumerate() {
                let partner = nth ^ distance;
                let of = |member: usize| {
                    let low = member & !(distance - 1);
                    slots[low..low + distance].iter().sum::<u64>()
                };
                self.send(rank, members[partner], of(nth), self.last[rank as usize]);
                self.take(rank, members[partner], of(partner));
            }
            distance *= 2;
        }
    }

    /// A binomial tree adds up at the first member.
    fn reduce_tree(&mut self, members: &[u32], bytes: u64) {
        let n = members.len();
        let mut distance = 1;
        while distance < n {
            for nth in (0..n).step_by(2 * distance).filter(|nth| nth + distance < n) {
                let (to, from) = (members[nth], members[nth + distance]);
                self.send(from, to, bytes, self.last[from as usize]);
                let receive = self.receive(to, from, bytes);
                self.join(to, receive);
                self.work(to, bytes);
            }
            distance *= 2;
        }
    }

    /// A binomial tree from the first member. A member sends to one after the other.
    fn broadcast_tree(&mut self, members: &[u32], bytes: u64) {
        let n = members.len();
        let mut distance = n.next_power_of_two() / 2;
        while distance > 0 {
            for nth in (0..n).step_by(2 * distance).filter(|nth| nth + distance < n) {
                let (from, to) = (members[nth], members[nth + distance]);
                let send = self.send(from, to, bytes, self.last[from as usize]);
                self.last[from as usize] = Some(send);
                self.take(to, from, bytes);
            }
            distance /= 2;
        }
    }

    /// A binomial tree to rank 0.
    fn gather_tree(&mut self) {
        let (parts, n) = (self.parts(), self.shape.ranks as usize);
        let mut distance = 1;
        while distance < n {
            for nth in (0..n).step_by(2 * distance).filter(|nth| nth + distance < n) {
                let from = nth + distance;
                let bytes = parts[from..n.min(from + distance)].iter().sum();
                self.pass(from as u32, nth as u32, bytes);
            }
            distance *= 2;
        }
    }

    /// Each rank sends each other its part of what it has, in steps or at once.
    fn exchange(&mut self, in_steps: bool, parts: &dyn Fn(&Self, u32) -> Vec<u64>) {
        let n = self.shape.ranks;
        let before = self.last.clone();
        let all: Vec<Vec<u64>> = (0..n).map(|rank| parts(self, rank)).collect();
        for step in 1..n {
            for rank in 0..n {
                let (to, from) = ((rank + step) % n, (rank + n - step) % n);
                let after = if in_steps { self.last[rank as usize] } else { before[rank as usize] };
                self.send(rank, to, all[rank as usize][to as usize], after);
                let receive = self.receive(rank, from, all[from as usize][rank as usize]);
                self.join(rank, receive);
            }
        }
    }
}
