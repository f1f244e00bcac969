//! Generates the messages of a workload, host by host.

use core::ops::Range;
use std::sync::Arc;

use rackweave_core::{HostId, Rate, Rng, Span, Time};

use crate::error::WorkloadError;
use crate::load::check_load;
use crate::pattern::{Arrival, Exchange, Pattern, WorkloadConfig};
use crate::sizes::{SizeDist, check_size};
use crate::trace::Trace;

/// The largest number of logical senders of an incast: more would take gigabytes for their delays.
const MAX_INCAST_SENDERS: u32 = 1 << 24;

/// The messages of a workload among the hosts of a fabric.
///
/// Each host draws times, sizes and destinations from random streams of its own, so that its messages depend neither on
/// the other hosts nor on the order in which hosts are queried.
#[derive(Clone, Debug)]
pub struct Generator {
    shared: Arc<Shared>,
    /// The state of each sender, from the first of [`Peers::senders`] on.
    hosts: Vec<HostState>,
    total: Option<u64>,
}

/// The messages that one host starts: its share of a [`Generator`].
#[derive(Clone, Debug)]
pub struct HostGenerator {
    shared: Arc<Shared>,
    host: HostId,
    /// The state of the host; `None` if it does not send.
    state: Option<HostState>,
    /// The number of bytes that may still be drawn.
    left: u64,
}

/// The state that all hosts share.
#[derive(Debug)]
struct Shared {
    plan: Plan,
    peers: Peers,
    start: Time,
    stop: Time,
}

/// The possible senders and receivers.
#[derive(Clone, Debug)]
struct Peers {
    senders: Range<u32>,
    receivers: Range<u32>,
}

#[derive(Debug)]
enum Plan {
    OpenLoop {
        sizes: SizeDist,
        gap: f64,
    },
    ClosedLoop {
        sizes: SizeDist,
        think: Span,
        outstanding: u32,
        ramp: Span,
    },
    Periodic {
        sizes: SizeDist,
        rate: Rate,
    },
    Incast {
        sizes: SizeDist,
        receiver: HostId,
        at: Time,
        per_sender: u64,
    },
    RecurringIncast(RecurringIncast),
    Permutation {
        sizes: SizeDist,
        per_host: u64,
        to: Vec<u32>,
    },
    AllToAll {
        sizes: SizeDist,
        per_pair: u64,
    },
    Trace {
        trace: Trace,
        order: Vec<u32>,
    },
    /// The machines of ranks start the messages.
    Collective,
}

/// A host's random streams and state, by pattern.
#[derive(Clone, Debug)]
enum HostState {
    OpenLoop(OpenLoopHost),
    ClosedLoop(ClosedLoopHost),
    Periodic(PeriodicHost),
    Incast(IncastHost),
    RecurringIncast(RecurringIncastHost),
    Batch(BatchHost),
    /// The remaining entries of the trace, as indices into its order by sender.
    Trace(Range<u32>),
}

#[derive(Clone, Debug)]
struct OpenLoopHost {
    last: Time,
    arrivals: Rng,
    sizes: Rng,
    destinations: Rng,
}

#[derive(Clone, Debug)]
struct ClosedLoopHost {
    to_start: u32,
    sizes: Rng,
    destinations: Rng,
}

#[derive(Clone, Debug)]
struct PeriodicHost {
    first: Time,
    /// The bytes of all messages so far.
    bytes: u64,
    sizes: Rng,
    destinations: Rng,
}

#[derive(Clone, Debug)]
struct IncastHost {
    senders: u32,
    /// The delay of each of its senders, in increasing order; empty if there are no delays.
    late: Box<[Span]>,
    started: u64,
    sizes: Rng,
}

/// What a host still starts of the present incast, and the number of the next one.
#[derive(Clone, Debug)]
struct RecurringIncastHost {
    next: u32,
    at: Time,
    receiver: HostId,
    left: u64,
    sizes: Rng,
}

#[derive(Clone, Debug)]
struct BatchHost {
    started: u64,
    sizes: Rng,
}

/// The origin of the workload's random streams.
#[derive(Clone, Copy, Debug)]
struct Streams {
    seed: u64,
    run: u64,
    stream: u64,
}

impl Streams {
    fn host(self, host: u32, purpose: &str) -> Rng {
        Rng::stream(self.seed, self.run, self.stream << 32 | u64::from(host), purpose)
    }

    fn whole(self, purpose: &str) -> Rng {
        self.host(u32::MAX, purpose)
    }
}

impl Generator {
    /// Creates a generator of the workload `config` among `hosts` hosts.
    ///
    /// `mean_gap` is the mean gap between the messages of one host in an open loop (see
    /// [`crate::open_loop_gap`]); other patterns need none. `stream` distinguishes the workloads of one
    /// run; it must be below 2^32.
    ///
    /// # Errors
    /// If the workload cannot be run on these hosts.
    pub fn new(
        config: &WorkloadConfig,
        hosts: u32,
        mean_gap: Option<Span>,
        seed: u64,
        run: u64,
        stream: u64,
    ) -> Result<Self, WorkloadError> {
        if hosts == 0 {
            return Err(WorkloadError::NoHosts);
        }
        if config.stop < config.start {
            return Err(WorkloadError::StopsBeforeStart { start: config.start, stop: config.stop });
        }
        if let Exchange::Respond(bytes) = config.exchange {
            check_size(bytes)?;
        }
        let peers = Peers::new(config, hosts)?;
        let streams = Streams { seed, run, stream };
        let start = Time::ZERO.saturating_add(config.start);
        let (plan, hosts, total): Planned = match &config.pattern {
            Pattern::OpenLoop { sizes, load, .. } => {
                check_load(*load)?;
                let gap = mean_gap.filter(|gap| gap.ticks() > 0).ok_or(WorkloadError::NoGap)?;
                peers.check_destinations()?;
                let hosts = HostState::open_loop(&peers, start, streams);
                (Plan::OpenLoop { sizes: sizes.clone(), gap: gap.ticks() as f64 }, hosts, None)
            }
            &Pattern::ClosedLoop { ref sizes, outstanding, think, ramp } => {
                if outstanding == 0 {
                    return Err(WorkloadError::NoOutstanding);
                }
                let all_started = Span::from_ticks(start.saturating_add(ramp).ticks());
                if all_started > config.stop {
                    let stop = config.stop;
                    return Err(WorkloadError::StopsBeforeStart { start: all_started, stop });
                }
                peers.check_destinations()?;
                let hosts = HostState::closed_loop(outstanding, &peers, streams);
                (Plan::ClosedLoop { sizes: sizes.clone(), think, outstanding, ramp }, hosts, None)
            }
            Pattern::Periodic { sizes, rate } => {
                if rate.0 == 0 {
                    return Err(WorkloadError::NoConstantRate);
                }
                peers.check_destinations()?;
                let interval = rate.span_of(sizes.mean() as u64);
                let hosts = HostState::periodic(interval, &peers, start, streams);
                (Plan::Periodic { sizes: sizes.clone(), rate: *rate }, hosts, None)
            }
            &Pattern::Incast { senders, receiver, ref sizes, messages_per_sender, at, spread } => {
                let at = start.saturating_add(at);
                let last = Span::from_ticks(at.saturating_add(spread).ticks());
                if last > config.stop {
                    let stop = config.stop;
                    return Err(WorkloadError::StopsBeforeStart { start: last, stop });
                }
                let per_sender = messages_per_sender;
                Incast { sizes, senders, receiver, per_sender, at, spread }.plan(&peers, streams)?
            }
            &Pattern::RecurringIncast {
                senders,
                receiver,
                ref sizes,
                messages_per_sender,
                every,
            } => {
                if every == Span::ZERO {
                    return Err(WorkloadError::NoPeriod);
                }
                let (per_sender, sizes) = (messages_per_sender, sizes.clone());
                let incast =
                    RecurringIncast { sizes, senders, receiver, every, per_sender, streams };
                incast.plan(&peers)?
            }
            Pattern::Permutation { sizes, messages_per_host } => {
                Plan::permutation(sizes, *messages_per_host, &peers, streams)?
            }
            Pattern::AllToAll { sizes, messages_per_pair } => {
                Plan::all_to_all(sizes, *messages_per_pair, &peers, streams)?
            }
            Pattern::Trace(trace) => Plan::trace(trace, hosts, config)?,
            Pattern::Collective(collective) => {
                for host in collective.hosts() {
                    check_host("a rank", host.0, hosts)?;
                }
                if config.exchange != Exchange::OneWay || config.streaming.is_some() {
                    return Err(WorkloadError::Answered);
                }
                (Plan::Collective, Vec::new(), Some(collective.messages()))
            }
        };
        let stop = Time::ZERO.saturating_add(config.stop);
        Ok(Self { shared: Arc::new(Shared { plan, peers, start, stop }), hosts, total })
    }

    /// Returns the next message that `host` starts, or `None` if there are no more.
    ///
    /// Call it once at the start and again after each message. Times do not decrease.
    pub fn next(&mut self, host: HostId) -> Option<Arrival> {
        let index = self.shared.peers.sender_index(host)?;
        self.hosts.get_mut(index)?.next(&self.shared, host)
    }

    /// Reports that a message which `host` started has ended (completed or failed) at `now`. In a closed loop, returns
    /// the message that follows it.
    pub fn completed(&mut self, host: HostId, now: Time) -> Option<Arrival> {
        let index = self.shared.peers.sender_index(host)?;
        self.hosts.get_mut(index)?.completed(&self.shared, host, now)
    }

    /// Returns the generator for the messages of `host`, in its current state.
    #[must_use]
    pub fn of_host(&self, host: HostId) -> HostGenerator {
        let index = self.shared.peers.sender_index(host);
        let state = index.and_then(|index| self.hosts.get(index)).cloned();
        HostGenerator { shared: Arc::clone(&self.shared), host, state, left: u64::MAX }
    }

    /// Returns the total number of messages, or `None` if it is limited by time only.
    #[must_use]
    pub const fn total(&self) -> Option<u64> {
        self.total
    }
}

impl HostGenerator {
    /// Limits the messages that are drawn from now on to this number of bytes in total. The last message is shortened to
    /// what remains; with 0 bytes there is no more message.
    #[must_use]
    pub fn limited_to(self, bytes: u64) -> Self {
        Self { left: bytes, ..self }
    }

    /// Ends the messages: none is drawn any more.
    pub(crate) const fn stop(&mut self) {
        self.left = 0;
    }

    /// Returns the next message of this host; see [`Generator::next`].
    #[inline]
    pub fn next_arrival(&mut self) -> Option<Arrival> {
        self.draw(|state, shared, host| state.next(shared, host))
    }

    /// Reports the end of a message of this host; see [`Generator::completed`].
    #[inline]
    pub fn completed(&mut self, now: Time) -> Option<Arrival> {
        self.draw(|state, shared, host| state.completed(shared, host, now))
    }

    #[inline]
    fn draw(
        &mut self,
        draw: impl FnOnce(&mut HostState, &Shared, HostId) -> Option<Arrival>,
    ) -> Option<Arrival> {
        let state = self.state.as_mut().filter(|_| self.left > 0)?;
        let arrival = draw(state, &self.shared, self.host)?;
        let bytes = arrival.bytes.min(self.left);
        self.left -= bytes;
        Some(Arrival { bytes, ..arrival })
    }

    /// Returns whether the end of a message causes the next one (a closed loop).
    #[must_use]
    pub fn is_loop(&self) -> bool {
        matches!(self.shared.plan, Plan::ClosedLoop { .. })
    }
}

impl HostState {
    #[inline]
    fn next(&mut self, shared: &Shared, host: HostId) -> Option<Arrival> {
        let Shared { plan, peers, start, stop } = shared;
        let arrival = match (plan, self) {
            (Plan::OpenLoop { sizes, gap }, Self::OpenLoop(state)) => {
                // The sum is in whole ticks: each gap is rounded, but errors do not accumulate.
                let gap = Span::from_ticks((state.arrivals.exponential(*gap) + 0.5) as u64);
                state.last = state.last.saturating_add(gap);
                Arrival {
                    at: state.last,
                    dst: peers.pick(host, &mut state.destinations),
                    bytes: sizes.sample(&mut state.sizes),
                }
            }
            (Plan::ClosedLoop { sizes, outstanding, ramp, .. }, Self::ClosedLoop(state)) => {
                let round = outstanding - state.to_start;
                state.to_start = state.to_start.checked_sub(1)?;
                let late = peers.part_of(*ramp, host, round, *outstanding);
                state.draw(start.saturating_add(late), host, sizes, peers)
            }
            (Plan::Periodic { sizes, rate }, Self::Periodic(state)) => {
                // The time is computed from the total, so that rounding errors do not add up.
                let at = state.first.saturating_add(rate.span_of(state.bytes));
                let bytes = sizes.sample(&mut state.sizes);
                state.bytes = state.bytes.saturating_add(bytes);
                Arrival { at, dst: peers.pick(host, &mut state.destinations), bytes }
            }
            (Plan::Incast { sizes, receiver, at, per_sender }, Self::Incast(state)) => {
                let sender = state.started / *per_sender;
                if sender >= u64::from(state.senders) {
                    return None;
                }
                state.started += 1;
                let late = state.late.get(sender as usize).copied().unwrap_or(Span::ZERO);
                Arrival {
                    at: at.saturating_add(late),
                    dst: *receiver,
                    bytes: sizes.sample(&mut state.sizes),
                }
            }
            (Plan::RecurringIncast(incast), Self::RecurringIncast(state)) => {
                while state.left == 0 {
                    incast.advance(state, host, peers, *start, *stop)?;
                }
                state.left -= 1;
                let bytes = incast.sizes.sample(&mut state.sizes);
                Arrival { at: state.at, dst: state.receiver, bytes }
            }
            (Plan::Permutation { sizes, per_host, to }, Self::Batch(state)) => {
                let dst = HostId(to[peers.sender_index(host)?]);
                state.draw(*start, *per_host, sizes, |_| dst)?
            }
            (Plan::AllToAll { sizes, per_pair }, Self::Batch(state)) => {
                let others = peers.others(host);
                let count = *per_pair * u64::from(others);
                // Messages go to one destination after another in rounds, so that none gets all its messages first.
                state.draw(*start, count, sizes, |started| {
                    peers.after(host, (started % u64::from(others)) as u32)
                })?
            }
            (Plan::Trace { trace, order }, Self::Trace(left)) => {
                let entry = trace.entries()[order[left.next()? as usize] as usize];
                Arrival { at: start.saturating_add(entry.at), dst: entry.dst, bytes: entry.bytes }
            }
            _ => unreachable!("a plan and its hosts are made together"),
        };
        (arrival.at <= *stop).then_some(arrival)
    }

    fn completed(&mut self, shared: &Shared, host: HostId, now: Time) -> Option<Arrival> {
        let (Plan::ClosedLoop { sizes, think, .. }, Self::ClosedLoop(state)) = (&shared.plan, self)
        else {
            return None;
        };
        let at = now.saturating_add(*think);
        (at <= shared.stop).then(|| state.draw(at, host, sizes, &shared.peers))
    }

    fn open_loop(peers: &Peers, start: Time, streams: Streams) -> Vec<Self> {
        let state = |host| OpenLoopHost {
            last: start,
            arrivals: streams.host(host, "arrivals"),
            sizes: streams.host(host, "sizes"),
            destinations: streams.host(host, "destinations"),
        };
        peers.senders.clone().map(|host| Self::OpenLoop(state(host))).collect()
    }

    fn periodic(interval: Span, peers: &Peers, start: Time, streams: Streams) -> Vec<Self> {
        let state = |host| PeriodicHost {
            first: start.saturating_add(Span::from_ticks(
                streams.host(host, "arrivals").below(interval.ticks().saturating_add(1)),
            )),
            bytes: 0,
            sizes: streams.host(host, "sizes"),
            destinations: streams.host(host, "destinations"),
        };
        peers.senders.clone().map(|host| Self::Periodic(state(host))).collect()
    }

    fn closed_loop(outstanding: u32, peers: &Peers, streams: Streams) -> Vec<Self> {
        let state = |host| ClosedLoopHost {
            to_start: outstanding,
            sizes: streams.host(host, "sizes"),
            destinations: streams.host(host, "destinations"),
        };
        peers.senders.clone().map(|host| Self::ClosedLoop(state(host))).collect()
    }

    fn batch(peers: &Peers, streams: Streams) -> Vec<Self> {
        peers.senders.clone().map(|host| Self::Batch(BatchHost::new(streams, host))).collect()
    }
}

impl ClosedLoopHost {
    fn draw(&mut self, at: Time, host: HostId, sizes: &SizeDist, peers: &Peers) -> Arrival {
        let dst = peers.pick(host, &mut self.destinations);
        Arrival { at, dst, bytes: sizes.sample(&mut self.sizes) }
    }
}

impl BatchHost {
    fn new(streams: Streams, host: u32) -> Self {
        Self { started: 0, sizes: streams.host(host, "sizes") }
    }

    /// Returns the next of `count` messages that all start at `at`.
    fn draw(
        &mut self,
        at: Time,
        count: u64,
        sizes: &SizeDist,
        dst: impl FnOnce(u64) -> HostId,
    ) -> Option<Arrival> {
        if self.started >= count {
            return None;
        }
        let dst = dst(self.started);
        self.started += 1;
        Some(Arrival { at, dst, bytes: sizes.sample(&mut self.sizes) })
    }
}

/// An incast ([`Pattern::Incast`]), with `at` counted from the start of the run.
struct Incast<'a> {
    sizes: &'a SizeDist,
    senders: Option<u32>,
    receiver: HostId,
    per_sender: u64,
    at: Time,
    spread: Span,
}

impl Incast<'_> {
    fn plan(self, peers: &Peers, streams: Streams) -> Result<Planned, WorkloadError> {
        let Self { sizes, senders, receiver, per_sender, at, spread } = self;
        let on_hosts = peers.senders.len() as u32 - u32::from(peers.senders.contains(&receiver.0));
        if on_hosts == 0 {
            return Err(WorkloadError::NoSender(receiver.0));
        }
        let senders = senders.unwrap_or(on_hosts);
        if senders > MAX_INCAST_SENDERS {
            return Err(WorkloadError::TooMany {
                what: "the number of senders",
                value: senders.into(),
                max: MAX_INCAST_SENDERS.into(),
            });
        }
        let total = product(&[
            ("the number of senders", senders.into()),
            ("the number of messages per sender", per_sender),
        ])?;
        let mut place = 0;
        let hosts = peers.senders.clone().map(|host| {
            let mut mine = 0;
            if host != receiver.0 {
                mine = senders / on_hosts + u32::from(place < senders % on_hosts);
                place += 1;
            }
            let mut arrivals = streams.host(host, "arrivals");
            let mut late: Box<[Span]> = if spread == Span::ZERO {
                Box::default()
            } else {
                (0..mine)
                    .map(|_| Span::from_ticks(arrivals.below(spread.ticks().saturating_add(1))))
                    .collect()
            };
            late.sort_unstable();
            let sizes = streams.host(host, "sizes");
            HostState::Incast(IncastHost { senders: mine, late, started: 0, sizes })
        });
        let plan = Plan::Incast { sizes: sizes.clone(), receiver, at, per_sender };
        Ok((plan, hosts.collect(), Some(total)))
    }
}

/// Incasts that recur ([`Pattern::RecurringIncast`]). Each host works out by itself which incasts it takes part in, from random
/// streams that all hosts have in common.
#[derive(Debug)]
struct RecurringIncast {
    sizes: SizeDist,
    senders: Option<u32>,
    receiver: Option<HostId>,
    every: Span,
    per_sender: u64,
    streams: Streams,
}

impl RecurringIncast {
    fn plan(self, peers: &Peers) -> Result<Planned, WorkloadError> {
        let Peers { senders, receivers } = peers;
        let only_receiver = match self.receiver {
            None => (receivers.len() == 1).then_some(receivers.start),
            Some(receiver) => Some(receiver.0),
        };
        if let Some(receiver) = only_receiver.filter(|it| *senders == (*it..it + 1)) {
            return Err(WorkloadError::NoSender(receiver));
        }
        product(&[
            ("the number of senders", self.senders.map_or(1, u64::from)),
            ("the number of messages per sender", self.per_sender),
        ])?;
        let hosts = senders.clone().map(|host| {
            HostState::RecurringIncast(RecurringIncastHost {
                next: 0,
                at: Time::ZERO,
                receiver: HostId(0),
                left: 0,
                sizes: self.streams.host(host, "sizes"),
            })
        });
        let hosts = hosts.collect();
        Ok((Plan::RecurringIncast(self), hosts, None))
    }

    /// Goes on to the next incast; the host may have no share of it. Returns `None` after the last one.
    fn advance(
        &self,
        state: &mut RecurringIncastHost,
        host: HostId,
        peers: &Peers,
        start: Time,
        stop: Time,
    ) -> Option<()> {
        let number = state.next;
        let after = Span::from_ticks(self.every.ticks().checked_mul(u64::from(number))?);
        state.at = start.saturating_add(after);
        state.next = number.checked_add(1).filter(|_| state.at <= stop)?;
        let mut rng = self.streams.host(number, "incasts");
        let among = u64::from(peers.receivers.end - peers.receivers.start);
        let drawn = HostId(peers.receivers.start + rng.below(among) as u32);
        state.receiver = self.receiver.unwrap_or(drawn);
        if state.receiver == host {
            // A fixed receiver never takes part in any incast.
            return self.receiver.is_none().then_some(());
        }
        let is_sender = peers.senders.contains(&state.receiver.0);
        let on_hosts = u64::from(peers.senders.end - peers.senders.start) - u64::from(is_sender);
        let skipped = is_sender && host > state.receiver;
        let place = u64::from(host.0 - peers.senders.start) - u64::from(skipped);
        // Senders are distinct, and drawn without a table of all hosts: the places of hosts are permuted by an affine map.
        let factor = loop {
            let factor = 1 + rng.below(on_hosts);
            if gcd(factor, on_hosts) == 1 {
                break factor;
            }
        };
        let rank = (factor * place + rng.below(on_hosts)) % on_hosts;
        let senders = self.senders.map_or(on_hosts, u64::from);
        let mine = senders / on_hosts + u64::from(rank < senders % on_hosts);
        state.left = mine.saturating_mul(self.per_sender);
        Some(())
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A plan, the state of its hosts, and the number of messages if it is known.
type Planned = (Plan, Vec<HostState>, Option<u64>);

impl Plan {
    fn permutation(
        sizes: &SizeDist,
        per_host: u64,
        peers: &Peers,
        streams: Streams,
    ) -> Result<Planned, WorkloadError> {
        let Peers { senders, receivers } = peers;
        if senders.len() != receivers.len() {
            return Err(WorkloadError::UnequalPermutation {
                senders: senders.len() as u32,
                receivers: receivers.len() as u32,
            });
        }
        peers.check_destinations()?;
        let total = product(&[
            ("the number of senders", senders.len() as u64),
            ("the number of messages per host", per_host),
        ])?;
        // Uniform among all permutations without a fixed point: at most about e attempts on average
        // (three for three hosts, the worst case).
        let mut rng = streams.whole("permutation");
        let mut to: Vec<u32> = receivers.clone().collect();
        loop {
            rng.shuffle(&mut to);
            if senders.clone().zip(&to).all(|(src, &dst)| src != dst) {
                break;
            }
        }
        let plan = Self::Permutation { sizes: sizes.clone(), per_host, to };
        Ok((plan, HostState::batch(peers, streams), Some(total)))
    }

    fn all_to_all(
        sizes: &SizeDist,
        per_pair: u64,
        peers: &Peers,
        streams: Streams,
    ) -> Result<Planned, WorkloadError> {
        peers.check_destinations()?;
        let pairs = peers.senders.clone().map(|host| u64::from(peers.others(HostId(host)))).sum();
        let total = product(&[
            ("the number of pairs", pairs),
            ("the number of messages per pair", per_pair),
        ])?;
        let plan = Self::AllToAll { sizes: sizes.clone(), per_pair };
        Ok((plan, HostState::batch(peers, streams), Some(total)))
    }

    fn trace(trace: &Trace, hosts: u32, config: &WorkloadConfig) -> Result<Planned, WorkloadError> {
        trace.check_hosts(hosts)?;
        let entries = trace.entries();
        let max = u64::from(u32::MAX);
        if entries.len() as u64 > max {
            let (what, value) = ("the number of messages of the trace", entries.len() as u64);
            return Err(WorkloadError::TooMany { what, value, max });
        }
        // A counting sort by sender, which preserves the order of time.
        let mut left = vec![0..0_u32; hosts as usize];
        for entry in entries {
            left[entry.src.0 as usize].end += 1;
        }
        let mut before = 0;
        for range in &mut left {
            let count = range.end;
            *range = before..before;
            before += count;
        }
        let mut order = vec![0; entries.len()];
        for (index, entry) in entries.iter().enumerate() {
            let range = &mut left[entry.src.0 as usize];
            order[range.end as usize] = index as u32;
            range.end += 1;
        }
        let last = config.stop - config.start;
        let total = entries.partition_point(|entry| entry.at <= last) as u64;
        let hosts = left.into_iter().map(HostState::Trace).collect();
        Ok((Self::Trace { trace: trace.clone(), order }, hosts, Some(total)))
    }
}

impl Peers {
    fn new(config: &WorkloadConfig, hosts: u32) -> Result<Self, WorkloadError> {
        let pattern = config.pattern.name();
        let (may_restrict_senders, may_restrict_receivers) = match config.pattern {
            Pattern::Trace(_) | Pattern::Collective(_) => (false, false),
            Pattern::Incast { receiver, .. } => {
                check_host("the receiver", receiver.0, hosts)?;
                (true, false)
            }
            Pattern::RecurringIncast { receiver: Some(receiver), .. } => {
                check_host("the receiver", receiver.0, hosts)?;
                (true, false)
            }
            _ => (true, true),
        };
        for (what, range, possible) in [
            ("senders", &config.senders, may_restrict_senders),
            ("receivers", &config.receivers, may_restrict_receivers),
        ] {
            let Some(range) = range else { continue };
            if !possible {
                return Err(WorkloadError::NotApplicable { what, pattern });
            }
            if range.is_empty() {
                return Err(WorkloadError::EmptyRange { what, start: range.start, end: range.end });
            }
            check_host(what, range.end - 1, hosts)?;
        }
        let or_all = |range: &Option<Range<u32>>| range.clone().unwrap_or(0..hosts);
        Ok(Self { senders: or_all(&config.senders), receivers: or_all(&config.receivers) })
    }

    #[inline]
    fn sender_index(&self, host: HostId) -> Option<usize> {
        self.senders.contains(&host.0).then(|| (host.0 - self.senders.start) as usize)
    }

    /// Returns the number of possible receivers of `host`.
    #[inline]
    fn others(&self, host: HostId) -> u32 {
        let all = self.receivers.end - self.receivers.start;
        all - u32::from(self.receivers.contains(&host.0))
    }

    /// Returns the moment in `span` at which `host` starts in this round of `rounds`, if all senders start in turns, evenly
    /// spaced from the beginning of the span.
    fn part_of(&self, span: Span, host: HostId, round: u32, rounds: u32) -> Span {
        let senders = u128::from(self.senders.end - self.senders.start);
        let turn = u128::from(round) * senders + u128::from(host.0 - self.senders.start);
        Span::from_ticks((u128::from(span.ticks()) * turn / (senders * u128::from(rounds))) as u64)
    }

    fn check_destinations(&self) -> Result<(), WorkloadError> {
        let only = self.receivers.start;
        let sends_to_itself = self.receivers.len() == 1 && self.senders.contains(&only);
        if sends_to_itself { Err(WorkloadError::NoDestination(only)) } else { Ok(()) }
    }

    /// Returns a receiver other than `host`, chosen uniformly.
    #[inline]
    fn pick(&self, host: HostId, rng: &mut Rng) -> HostId {
        let picked = self.receivers.start + rng.below(u64::from(self.others(host))) as u32;
        let skip = self.receivers.contains(&host.0) && picked >= host.0;
        HostId(picked + u32::from(skip))
    }

    /// Returns the `n`-th receiver after `host` in circular order; `n` is below [`Peers::others`].
    fn after(&self, host: HostId, n: u32) -> HostId {
        let Range { start, end } = self.receivers;
        let all = u64::from(end - start);
        let from = if self.receivers.contains(&host.0) { host.0 - start + 1 } else { host.0 };
        HostId(start + ((u64::from(from) + u64::from(n)) % all) as u32)
    }
}

fn check_host(what: &'static str, host: u32, hosts: u32) -> Result<(), WorkloadError> {
    if host < hosts { Ok(()) } else { Err(WorkloadError::NoSuchHost { what, host, hosts }) }
}

/// Returns the product of counts that must each be at least one.
fn product(counts: &[(&'static str, u64)]) -> Result<u64, WorkloadError> {
    let mut product = 1_u64;
    for &(what, value) in counts {
        if value == 0 {
            return Err(WorkloadError::Zero { what });
        }
        let max = u64::MAX / product;
        product = product.checked_mul(value).ok_or(WorkloadError::TooMany { what, value, max })?;
    }
    Ok(product)
}
