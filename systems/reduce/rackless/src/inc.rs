//! The scheduler of in-network computing: which group of servers has the programmable `ToR` when, and which part of its slots.
//!
//! The `ToR` is one machine. A group's upload is released when its local shuffle ends, occupies the machine for its upload
//! time, and needs a setup (the reconfiguration) whenever the machine served another group before. The sum of completion times is
//! to be small: `1 | r_j, setup | sum C_j`.

use std::collections::BTreeMap;

use rackweave_core::{Span, Time};

use crate::cost::plus;
use crate::demand::JobId;

/// The most requests whose exact order is computed.
pub const EXACT_REQUESTS: usize = 12;

/// A request for the programmable `ToR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The job that uploads.
    pub job: JobId,
    /// The group of servers. A change of groups needs a setup.
    pub group: u32,
    /// The time at which the upload can start.
    pub release: Time,
    /// The time that the upload takes.
    pub work: Span,
}

/// The order in which waiting requests are served, when nothing is known of later ones and none is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// First come, first served.
    FirstCome,
    /// The shortest of the waiting requests next.
    Shortest,
    /// First come, first served, but a group that was not served last comes before the one that was: groups take turns
    /// (P4-ORDC, figure 3(a)).
    Alternating,
}

impl Order {
    /// All orders.
    pub const ALL: [Self; 3] = [Self::FirstCome, Self::Shortest, Self::Alternating];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirstCome => "first-come",
            Self::Shortest => "shortest",
            Self::Alternating => "alternating",
        }
    }
}

/// How a whole schedule is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// By an order ([`in_order`]).
    InOrder(Order),
    /// The request with the shortest remaining work. A released request interrupts the present one if
    /// its work and both setups (its own and that of the return) are shorter than the present one's remaining work.
    Srpt,
    /// The order with the smallest sum of completion times among those without interruption, with knowledge of later requests: a
    /// setup may precede a release. Up to [`EXACT_REQUESTS`] requests.
    Exact,
}

/// A time during which a job has the `ToR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The job.
    pub job: JobId,
    /// The index of the request.
    pub request: usize,
    /// The time before `start` during which the optical switch is being reconfigured.
    pub setup: Span,
    /// The start of the upload, or of its continuation.
    pub start: Time,
    /// The end of the upload, or of this part of it.
    pub end: Time,
}

/// The grants, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The grants, in the order of time.
    pub grants: Vec<Grant>,
    /// The time at which each request is complete, in the order of the requests.
    pub completions: Vec<Time>,
}

impl Schedule {
    /// Returns the sum of the times from each request's release to its completion.
    #[must_use]
    pub fn sum_of_delays(&self, requests: &[Request]) -> Span {
        let pairs = requests.iter().zip(&self.completions);
        pairs.map(|(request, end)| end.since(request.release)).fold(Span::ZERO, plus)
    }

    /// Returns the end of the last upload.
    #[must_use]
    pub fn makespan(&self) -> Time {
        self.completions.iter().copied().max().unwrap_or(Time::ZERO)
    }
}

/// Why there is no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// There are too many requests to find their exact order in a reasonable time.
    #[error("the exact order is computed for at most {EXACT_REQUESTS} requests, not {0}")]
    TooMany(usize),
}

/// Schedules requests on one programmable `ToR`, which has been set up for the group `current`, if any.
///
/// # Errors
/// If the exact order of too many requests is required.
pub fn schedule(
    requests: &[Request],
    current: Option<u32>,
    setup: Span,
    policy: Policy,
) -> Result<Schedule, ScheduleError> {
    match policy {
        Policy::InOrder(order) => Ok(in_order(requests, current, setup, order)),
        Policy::Srpt => Ok(srpt(requests, current, setup)),
        Policy::Exact if requests.len() > EXACT_REQUESTS => {
            Err(ScheduleError::TooMany(requests.len()))
        }
        Policy::Exact => Ok(exact(requests, current, setup)),
    }
}

/// Returns which of the waiting requests is next when the machine is free.
#[must_use]
pub fn next(waiting: &[Request], current: Option<u32>, order: Order) -> Option<usize> {
    (0..waiting.len()).min_by_key(|&it| (key(order, &waiting[it], current), it))
}

/// The least is next. `last` is the group that was served last.
fn key(order: Order, request: &Request, last: Option<u32>) -> (u64, u64) {
    match order {
        Order::FirstCome => (0, request.release.ticks()),
        Order::Shortest => (0, request.work.ticks()),
        Order::Alternating => (u64::from(last == Some(request.group)), request.release.ticks()),
    }
}

/// Serves, whenever the machine is free, the released request that is next.
#[must_use]
pub fn in_order(
    requests: &[Request],
    mut current: Option<u32>,
    setup: Span,
    order: Order,
) -> Schedule {
    let mut schedule = Schedule::with_room(requests);
    let mut left: Vec<usize> = (0..requests.len()).collect();
    let mut now = Time::ZERO;
    while !left.is_empty() {
        let earliest = left.iter().map(|&it| requests[it].release).min().unwrap_or(now);
        now = now.max(earliest);
        let released = left.iter().copied().filter(|&it| requests[it].release <= now);
        let Some(next) = released.min_by_key(|&it| (key(order, &requests[it], current), it)) else {
            break;
        };
        left.retain(|&it| it != next);
        let request = &requests[next];
        let needed = if current == Some(request.group) { Span::ZERO } else { setup };
        let start = now.saturating_add(needed);
        now = start.saturating_add(request.work);
        schedule.push(next, request, needed, start, now);
        current = Some(request.group);
    }
    schedule
}

/// Shortest remaining work first; an interruption must be worth the setups that it costs.
fn srpt(requests: &[Request], mut current: Option<u32>, setup: Span) -> Schedule {
    let mut schedule = Schedule::with_room(requests);
    let mut remaining: Vec<Span> = requests.iter().map(|request| request.work).collect();
    let mut left: Vec<usize> = (0..requests.len()).collect();
    let mut now = Time::ZERO;
    let needs = |current: Option<u32>, group: u32| match current == Some(group) {
        true => Span::ZERO,
        false => setup,
    };
    while !left.is_empty() {
        let earliest = left.iter().map(|&it| requests[it].release).min().unwrap_or(now);
        now = now.max(earliest);
        let released = left.iter().copied().filter(|&it| requests[it].release <= now);
        let cost = |it: usize| plus(remaining[it], needs(current, requests[it].group));
        let Some(next) = released.min_by_key(|&it| (cost(it), it)) else { break };
        let request = &requests[next];
        let needed = needs(current, request.group);
        current = Some(request.group);
        let start = now.saturating_add(needed);
        let mut end = start.saturating_add(remaining[next]);
        // A later release interrupts if it and two setups take less than what is left. Releases during the setup do so at its end.
        let mut later: Vec<usize> =
            left.iter().copied().filter(|&it| requests[it].release > now && it != next).collect();
        later.sort_by_key(|&it| (requests[it].release, it));
        for other in later {
            let at = requests[other].release.max(start);
            if at >= end {
                break;
            }
            let there = needs(current, requests[other].group);
            let interruption = plus(requests[other].work, plus(there, there));
            if interruption < end.since(at) {
                end = at;
                break;
            }
        }
        remaining[next] = remaining[next] - end.since(start);
        schedule.push(next, request, needed, start, end);
        now = end;
        if remaining[next] == Span::ZERO {
            left.retain(|&it| it != next);
        }
    }
    schedule.grants.retain(|grant| grant.end > grant.start || grant.setup > Span::ZERO);
    schedule
}

/// An order of a subset of the requests that no other of the subset with the same last group beats in both end and sum.
#[derive(Clone, Copy, Debug)]
struct Partial {
    end: Time,
    sum: u128,
    last: usize,
    /// The index of its predecessor among the partial orders of the subset without `last`.
    before: usize,
}

/// Dynamic program over subsets. Because of the releases an early end and a small sum can contradict each other, so that each
/// subset keeps the orders that are best in one of them.
fn exact(requests: &[Request], current: Option<u32>, setup: Span) -> Schedule {
    let count = requests.len();
    let start_of = |end: Time, group: Option<u32>, request: &Request| {
        let needed = if group == Some(request.group) { Span::ZERO } else { setup };
        let start = end.saturating_add(needed).max(request.release);
        (needed, start)
    };
    let mut fronts: Vec<Vec<Partial>> = vec![Vec::new(); 1 << count];
    fronts[0].push(Partial { end: Time::ZERO, sum: 0, last: usize::MAX, before: 0 });
    for subset in 0..fronts.len() {
        let here = fronts[subset].clone();
        for (before, partial) in here.iter().enumerate() {
            let group = requests.get(partial.last).map_or(current, |it| Some(it.group));
            for (last, request) in requests.iter().enumerate() {
                if subset & 1 << last != 0 {
                    continue;
                }
                let (_, start) = start_of(partial.end, group, request);
                let end = start.saturating_add(request.work);
                let sum = partial.sum + u128::from(end.ticks());
                let front = &mut fronts[subset | 1 << last];
                let alike = |it: &Partial| requests[it.last].group == request.group;
                if front.iter().any(|it| alike(it) && it.end <= end && it.sum <= sum) {
                    continue;
                }
                front.push(Partial { end, sum, last, before });
            }
        }
        // Later subsets refer to positions, so that a subset is pruned only before it is extended.
        if let Some(next) = fronts.get_mut(subset + 1) {
            prune(next, requests);
        }
    }
    let mut subset = fronts.len() - 1;
    let finals = &fronts[subset];
    let least = (0..finals.len()).min_by_key(|&it| (finals[it].sum, finals[it].end, it));
    let mut order = Vec::new();
    let mut at = least.unwrap_or(0);
    while subset != 0 {
        let partial = fronts[subset][at];
        order.push(partial.last);
        subset &= !(1 << partial.last);
        at = partial.before;
    }
    let mut schedule = Schedule::with_room(requests);
    let (mut now, mut group) = (Time::ZERO, current);
    for request in order.into_iter().rev() {
        let (needed, start) = start_of(now, group, &requests[request]);
        now = start.saturating_add(requests[request].work);
        schedule.push(request, &requests[request], needed, start, now);
        group = Some(requests[request].group);
    }
    schedule
}

fn prune(front: &mut Vec<Partial>, requests: &[Request]) {
    front.sort_by_key(|it| (it.end, it.sum, it.last));
    let mut least: BTreeMap<u32, u128> = BTreeMap::new();
    front.retain(|it| {
        let sum = least.entry(requests[it.last].group).or_insert(u128::MAX);
        let keep = it.sum < *sum;
        *sum = it.sum.min(*sum);
        keep
    });
}

impl Schedule {
    fn with_room(requests: &[Request]) -> Self {
        Self { grants: Vec::new(), completions: vec![Time::ZERO; requests.len()] }
    }

    fn push(&mut self, index: usize, request: &Request, setup: Span, start: Time, end: Time) {
        self.grants.push(Grant { job: request.job, request: index, setup, start, end });
        self.completions[index] = end;
    }
}

/// A part of the slots of a programmable `ToR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The first slot.
    pub base: u64,
    /// The number of slots.
    pub len: u64,
}

/// The regions of slots that jobs have in one programmable `ToR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regions {
    slots: u64,
    /// By the first slot.
    used: BTreeMap<u64, (u64, JobId)>,
}

impl Regions {
    /// Creates a table whose slots are all free.
    #[must_use]
    pub const fn new(slots: u64) -> Self {
        Self { slots, used: BTreeMap::new() }
    }

    /// Gives a job a region of `len` slots: the smallest gap in which it fits, so that large gaps remain. `None` if there is none, `len`
    /// is zero, or the job has a region already.
    pub fn allocate(&mut self, job: JobId, len: u64) -> Option<Region> {
        if len == 0 || self.region(job).is_some() {
            return None;
        }
        let mut best: Option<Region> = None;
        let mut consider = |base: u64, end: u64| {
            let gap = end - base;
            if gap >= len && best.is_none_or(|it| gap < it.len) {
                best = Some(Region { base, len: gap });
            }
        };
        let mut base = 0;
        for (&start, &(used, _)) in &self.used {
            consider(base, start);
            base = start + used;
        }
        consider(base, self.slots);
        let region = Region { len, ..best? };
        self.used.insert(region.base, (len, job));
        Some(region)
    }

    /// Frees the region of a job, and returns it.
    pub fn release(&mut self, job: JobId) -> Option<Region> {
        let region = self.region(job)?;
        self.used.remove(&region.base);
        Some(region)
    }

    /// Returns the region of a job.
    #[must_use]
    pub fn region(&self, job: JobId) -> Option<Region> {
        let found = self.used.iter().find(|(_, (_, owner))| *owner == job);
        found.map(|(&base, &(len, _))| Region { base, len })
    }

    /// Returns the number of free slots, which may be in several gaps.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.slots - self.used.values().map(|&(len, _)| len).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;

    use super::*;

    fn request(job: u16, group: u32, release: u64, work: u64) -> Request {
        let (job, release) = (JobId(job), Time::ZERO + Span::from_ms(release));
        Request { job, group, release, work: Span::from_ms(work) }
    }

    fn random(seed: u64) -> (Vec<Request>, Span) {
        let mut rng = Rng::stream(seed, 0, 0, "requests");
        let count = 1 + rng.below(6) as u16;
        let one =
            |job, rng: &mut Rng| request(job, rng.below(3) as u32, rng.below(60), rng.below(40));
        ((0..count).map(|job| one(job + 1, &mut rng)).collect(), Span::from_ms(rng.below(30)))
    }

    #[test]
    fn groups_take_turns() {
        let requests =
            [request(1, 0, 0, 10), request(2, 0, 0, 10), request(3, 1, 5, 10), request(4, 1, 6, 1)];
        let order = |order| -> Vec<u16> {
            let schedule = in_order(&requests, None, Span::ZERO, order);
            schedule.grants.iter().map(|grant| grant.job.0).collect()
        };
        assert_eq!(order(Order::Alternating), [1, 3, 2, 4]);
        assert_eq!(order(Order::FirstCome), [1, 2, 3, 4]);
        assert_eq!(order(Order::Shortest), [1, 4, 2, 3]);
        assert_eq!(next(&requests, Some(0), Order::Alternating), Some(2));
        assert_eq!(next(&[], None, Order::FirstCome), None);
    }

    /// The least sum of completion times of all orders, with setups before releases.
    fn brute(
        requests: &[Request],
        left: &[usize],
        end: Time,
        group: Option<u32>,
        setup: Span,
    ) -> u128 {
        let mut best = if left.is_empty() { 0 } else { u128::MAX };
        for &next in left {
            let request = &requests[next];
            let needed = if group == Some(request.group) { Span::ZERO } else { setup };
            let end = end.saturating_add(needed).max(request.release) + request.work;
            let rest: Vec<_> = left.iter().copied().filter(|&it| it != next).collect();
            let sum = brute(requests, &rest, end, Some(request.group), setup);
            best = best.min(u128::from(end.ticks()) + sum);
        }
        best
    }

    #[test]
    fn the_exact_order_is_the_best_of_all_and_no_policy_without_interruption_is_better() {
        for seed in 0..400 {
            let (requests, setup) = random(seed);
            let current = (seed % 2 == 0).then_some(0);
            let sum = |policy| {
                let schedule = schedule(&requests, current, setup, policy).unwrap();
                check(&requests, &schedule, current, setup, policy);
                schedule.completions.iter().map(|end| u128::from(end.ticks())).sum::<u128>()
            };
            let all: Vec<usize> = (0..requests.len()).collect();
            let exact = sum(Policy::Exact);
            assert_eq!(exact, brute(&requests, &all, Time::ZERO, current, setup), "seed {seed}");
            for order in Order::ALL {
                assert!(exact <= sum(Policy::InOrder(order)), "seed {seed}");
            }
            sum(Policy::Srpt);
        }
    }

    /// Grants do not overlap, start after their release, have their setups, and add up to the work.
    fn check(
        requests: &[Request],
        schedule: &Schedule,
        mut current: Option<u32>,
        setup: Span,
        policy: Policy,
    ) {
        let mut now = Time::ZERO;
        let mut done = vec![Span::ZERO; requests.len()];
        for grant in &schedule.grants {
            let request = &requests[grant.request];
            assert!(
                grant.start.ticks() >= now.ticks() + grant.setup.ticks(),
                "{policy:?} {grant:?}"
            );
            assert!(grant.start >= request.release, "{policy:?} {grant:?}");
            assert!(current == Some(request.group) || grant.setup == setup, "{policy:?}");
            current = Some(request.group);
            done[grant.request] += grant.end.since(grant.start);
            now = grant.end;
        }
        let work: Vec<Span> = requests.iter().map(|request| request.work).collect();
        assert_eq!(done, work, "{policy:?}");
    }

    #[test]
    fn a_short_upload_interrupts_a_long_one_only_if_it_is_worth_two_setups() {
        let requests = [request(1, 0, 0, 100), request(2, 1, 10, 20)];
        let ends = |setup| {
            let schedule =
                schedule(&requests, Some(0), Span::from_ms(setup), Policy::Srpt).unwrap();
            schedule.completions.iter().map(|end| end.as_ms()).collect::<Vec<_>>()
        };
        assert_eq!(ends(5), [130, 35], "20 + 2 x 5 ms are less than the 90 ms that are left");
        assert_eq!(ends(35), [100, 155], "20 + 2 x 35 ms are not");
    }

    #[test]
    fn too_many_requests_have_no_exact_order() {
        let requests: Vec<_> = (0..13).map(|job| request(job, 0, 0, 1)).collect();
        let refused = schedule(&requests, None, Span::ZERO, Policy::Exact);
        assert_eq!(refused, Err(ScheduleError::TooMany(13)));
        assert!(schedule(&requests, None, Span::ZERO, Policy::Srpt).is_ok());
        let none = schedule(&[], None, Span::ZERO, Policy::Exact).unwrap();
        assert_eq!(none.makespan(), Time::ZERO);
    }

    #[test]
    fn regions_do_not_overlap_and_their_slots_are_reused() {
        let mut regions = Regions::new(100);
        assert_eq!(regions.allocate(JobId(1), 40), Some(Region { base: 0, len: 40 }));
        assert_eq!(regions.allocate(JobId(2), 20), Some(Region { base: 40, len: 20 }));
        assert_eq!(regions.allocate(JobId(3), 20), Some(Region { base: 60, len: 20 }));
        assert_eq!(regions.allocate(JobId(4), 21), None, "20 slots are left");
        assert_eq!(regions.allocate(JobId(1), 1), None, "a job has one region");
        assert_eq!(regions.release(JobId(2)), Some(Region { base: 40, len: 20 }));
        assert_eq!(regions.release(JobId(2)), None);
        assert_eq!(regions.free(), 40);
        assert_eq!(regions.allocate(JobId(5), 21), None, "the free slots are in two gaps");
        assert_eq!(regions.allocate(JobId(5), 15), Some(Region { base: 40, len: 15 }));
        assert_eq!(regions.allocate(JobId(6), 0), None);
    }
}
