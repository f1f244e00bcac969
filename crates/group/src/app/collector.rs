//! Combines the reports of all hosts of a cast application: what is measured, and with what results.
//!
//! The definitions, for the simulator and the testbed alike:
//!
//! - *Measured* casts are those that start at the end of the warm-up or later, up to the last one.
//! - A cast is *delivered* to a receiver when the receiver has all of its bytes, and all before, in order.
//! - A cast *ends* when the sender has the acknowledgements of all its receivers but those that failed; at least one must not
//!   fail. Its *send time* is the time from its first buffer until then, and the *execution time* is that from the first buffer
//!   of the first measured cast to the end of the last cast.
//! - *Goodput* is the bytes of measured casts that were delivered, for each receiver, over the execution time.
//! - A cast *fails* for a receiver, which it has not been delivered to, if the receiver's host crashed in the run, or the sender
//!   reports its failure. What is neither delivered nor failed at the end of the run is unfinished.
//! - The *ideal time* of a cast to a receiver is that of a message on the unloaded path, in full frames with UDP headers
//!   ([`FRAMING`]). Its *slowdown* is the time from the start of the cast to its delivery, divided by that.

use rackweave_core::{FailReason, Framing, HostId, Span, Time, frame};
use rackweave_workload::app::{MessageRecord, Outcome};

use super::{Record, Report};

/// The packets of ideal times: full frames with no header but UDP's.
pub const FRAMING: Framing = Framing {
    max_payload: frame::MTU - frame::IPV4 - 8,
    header_bytes: frame::IPV4 + 8,
    spray_above_bytes: u32::MAX,
};

/// The configuration of a [`Collector`].
#[derive(Clone, Debug)]
pub struct CollectorConfig {
    /// The lengths of the casts in bytes, in their order.
    pub casts: Vec<u64>,
    /// The receivers in the sender's order, and for each the sender's host that is nearest to it.
    pub receivers: Vec<(HostId, HostId)>,
    /// Hosts that crash in the run.
    pub crashed: Vec<HostId>,
    /// Casts that start before this are not measured.
    pub warmup: Time,
    /// The end of the run. What a host reports of later times came too late.
    pub until: Time,
}

/// Combines the reports of all hosts. See the [module](super).
#[derive(Clone, Debug)]
pub struct Collector {
    config: CollectorConfig,
    casts: Vec<Cast>,
    results: Results,
}

#[derive(Clone, Copy, Debug)]
struct Cast {
    begun: Time,
    /// The number of receivers for which it has not ended.
    open: usize,
    last_end: Time,
    is_acknowledged: bool,
}

impl Collector {
    /// A collector without reports.
    #[must_use]
    pub fn new(config: CollectorConfig) -> Self {
        let receiver = |&(host, from): &(HostId, HostId)| ReceiverTimes {
            host,
            from,
            completed: Vec::new(),
            longest_gap_before: Span::ZERO,
            longest_gap: Span::ZERO,
            crashed: config.crashed.contains(&host),
            failed: None,
        };
        let results = Results {
            lengths: config.casts.clone(),
            first: 0,
            casts: Vec::new(),
            receivers: config.receivers.iter().map(receiver).collect(),
            detached: 0,
            wrong_bytes: 0,
            repaired_bytes: 0,
            silent_agents: 0,
        };
        Self { config, casts: Vec::new(), results }
    }

    /// Takes the report of a host: a sender, a receiver, or one with no share in the application.
    pub fn add(&mut self, host: HostId, report: &Report) {
        for record in &report.records {
            self.record(host, record);
        }
        let results = &mut self.results;
        if let Some(receiver) = results.receivers.iter_mut().find(|of| of.host == host) {
            receiver.longest_gap_before = report.longest_gap_before;
            receiver.longest_gap = report.longest_gap;
        }
        results.detached += report.detached;
        results.wrong_bytes += report.wrong_bytes;
        results.repaired_bytes += report.repaired_bytes;
        results.silent_agents += report.silent_agents;
    }

    fn record(&mut self, host: HostId, record: &Record) {
        let receivers = &mut self.results.receivers;
        let (Record::Started { at, .. }
        | Record::Acknowledged { at, .. }
        | Record::Failed { at, .. }
        | Record::Delivered { at, .. }) = *record;
        if at > self.config.until {
            return;
        }
        match *record {
            Record::Started { at, .. } => self.casts.push(Cast {
                begun: at,
                open: receivers.len(),
                last_end: at,
                is_acknowledged: false,
            }),
            Record::Acknowledged { cast, at, .. } => self.ended(cast, at, true),
            Record::Failed { cast, receiver, at, reason } => {
                if let Some(receiver) = receivers.get_mut(receiver as usize) {
                    receiver.failed.get_or_insert(reason);
                }
                self.ended(cast, at, false);
            }
            Record::Delivered { at, .. } => {
                if let Some(receiver) = receivers.iter_mut().find(|of| of.host == host) {
                    receiver.completed.push(at);
                }
            }
        }
    }

    fn ended(&mut self, cast: u32, at: Time, is_acknowledged: bool) {
        let Some(cast) = self.casts.get_mut(cast as usize) else { return };
        cast.open = cast.open.saturating_sub(1);
        cast.last_end = cast.last_end.max(at);
        cast.is_acknowledged |= is_acknowledged;
    }

    /// The results of what was reported.
    #[must_use]
    pub fn results(mut self) -> Results {
        let times = |(cast, (bytes, of)): (u32, (&u64, &Cast))| CastTimes {
            cast,
            bytes: *bytes,
            begun: of.begun,
            ended: (of.open == 0 && of.is_acknowledged).then_some(of.last_end),
        };
        let all = (0..).zip(self.config.casts.iter().zip(&self.casts)).map(times);
        self.results.first =
            self.casts.iter().filter(|cast| cast.begun < self.config.warmup).count();
        self.results.casts = all.skip(self.results.first).collect();
        self.results
    }
}

/// A cast as its sender sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CastTimes {
    /// Its number, from 0.
    pub cast: u32,
    /// Its length.
    pub bytes: u64,
    /// When its first buffer was sent.
    pub begun: Time,
    /// When it ended: with the last acknowledgement that was expected.
    pub ended: Option<Time>,
}

/// The casts as one of their receivers sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverTimes {
    /// The receiver.
    pub host: HostId,
    /// The sender's host that is nearest to it.
    pub from: HostId,
    /// When each cast was delivered, by its number.
    pub completed: Vec<Time>,
    /// The longest time without a new byte, of those that ended before the fault that the run is about.
    pub longest_gap_before: Span,
    /// The longest of the others.
    pub longest_gap: Span,
    /// Whether its host crashed in the run.
    pub crashed: bool,
    /// Why the sender no longer waited for it, if that is so.
    pub failed: Option<FailReason>,
}

/// The results of a cast application.
#[derive(Clone, Debug)]
pub struct Results {
    /// The lengths of all casts.
    lengths: Vec<u64>,
    /// The number of the first measured cast.
    first: usize,
    /// The measured casts that have started, in their order.
    pub casts: Vec<CastTimes>,
    /// Every receiver, in the sender's order.
    pub receivers: Vec<ReceiverTimes>,
    /// How often a receiver was detached.
    pub detached: u64,
    /// Bytes that were not those that were sent, or not in their place.
    pub wrong_bytes: u64,
    /// Payload that was sent again.
    pub repaired_bytes: u64,
    /// Agents that fell silent, as their controller sees it.
    pub silent_agents: u64,
}

impl Results {
    /// The lengths of the measured casts, started or not.
    #[must_use]
    pub fn measured(&self) -> &[u64] {
        &self.lengths[self.first.min(self.lengths.len())..]
    }

    /// The execution time; `None` if the last cast has not ended.
    #[must_use]
    pub fn execution(&self) -> Option<Span> {
        let (first, last) = (self.casts.first()?, self.casts.last()?);
        let is_last = last.cast as usize + 1 == self.lengths.len();
        Some(last.ended.filter(|_| is_last)?.since(first.begun))
    }

    /// The send time of each cast that has ended.
    pub fn send_times(&self) -> impl Iterator<Item = Span> + '_ {
        self.casts.iter().filter_map(|cast| Some(cast.ended?.since(cast.begun)))
    }

    /// How long each receiver waited, from the delivery of one cast to that of the next.
    pub fn wait_times(&self) -> impl Iterator<Item = Span> + '_ {
        let from = self.first.saturating_sub(1);
        let completed = self.receivers.iter().filter_map(move |of| of.completed.get(from..));
        completed.flat_map(|times| times.windows(2)).map(|pair| pair[1].since(pair[0]))
    }

    /// The bytes of all casts that receivers lack whose hosts did not crash.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        let alive = self.receivers.iter().filter(|receiver| !receiver.crashed);
        let lacks = |of: &ReceiverTimes| self.lengths.iter().skip(of.completed.len()).sum::<u64>();
        alive.map(lacks).sum()
    }

    /// The measured casts as every run has its messages: a message is a cast on its way to one receiver. `ideal` is the time
    /// that some bytes take from one host to another on the unloaded path, in packets of [`FRAMING`].
    #[must_use]
    pub fn messages(&self, ideal: impl Fn(HostId, HostId, u64) -> Span) -> Vec<MessageRecord> {
        let each =
            self.casts.iter().flat_map(|cast| self.receivers.iter().map(move |to| (cast, to)));
        let message = |(cast, to): (&CastTimes, &ReceiverTimes)| MessageRecord {
            stream: 0,
            src: to.from,
            dst: to.host,
            bytes: cast.bytes,
            start: cast.begun,
            ideal: ideal(to.from, to.host, cast.bytes),
            outcome: to.outcome(cast.cast),
        };
        each.map(message).collect()
    }
}

impl ReceiverTimes {
    fn outcome(&self, cast: u32) -> Outcome {
        match (self.completed.get(cast as usize), self.failed) {
            (Some(at), _) => Outcome::Completed(*at),
            (None, _) if self.crashed => Outcome::Failed(FailReason::HostCrashed),
            (None, Some(reason)) => Outcome::Failed(reason),
            (None, None) => Outcome::Unfinished,
        }
    }
}
