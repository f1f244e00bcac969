//! Combines the reports of all hosts of a cast application: what is measured, and with what results.
//!
//! The definitions, for the simulator and the testbed alike:
//!
//! - *Measured* casts start at or after the end of the warm-up. All later casts are measured, including
//!   the last.
//! - A cast is *delivered* to a receiver when the receiver has, in order, all bytes of the cast and of the casts before
//!   it.
//! - A cast *ends* when the sender has the acknowledgements of all receivers that have not failed; at least one
//!   receiver must not have failed. Its *send time* runs from its first buffer to that moment. The *execution time*
//!   runs from the first buffer of the first measured cast to the end of the last cast.
//! - *Goodput* is the bytes of measured casts that were delivered, for each receiver, over the execution time.
//! - A cast *fails* for a receiver to which it has not been delivered if the receiver's host crashed during the run or
//!   the sender reports the failure. A cast that is neither delivered nor failed at the end of the run is unfinished.
//! - The *ideal time* of a cast to a receiver is that of a message on the unloaded path, in full frames with UDP
//!   headers ([`rackweave_core::Framing::UDP`]). Its *slowdown* is the time from the start of the cast to its delivery, divided by the ideal
//!   time.

use rackweave_core::{FailReason, HostId, Span, Time};
use rackweave_workload::app::{MessageRecord, Outcome};

use super::{Record, Report};

/// The configuration of a [`Collector`].
#[derive(Clone, Debug)]
pub struct CollectorConfig {
    /// The length of each cast in bytes, in the order in which they are sent.
    pub casts: Vec<u64>,
    /// For each receiver, in the sender's order: the receiver's host, and the sender's host that is nearest to it.
    pub receivers: Vec<(HostId, HostId)>,
    /// The hosts that crash during the run.
    pub crashed: Vec<HostId>,
    /// The end of the warm-up. Casts that start earlier are not measured.
    pub warmup: Time,
    /// The end of the run. Later events in the reports of hosts are ignored.
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
    /// The number of receivers for which the cast has not ended.
    open: usize,
    last_end: Time,
    is_acknowledged: bool,
}

impl Collector {
    /// Returns a collector that has no reports yet.
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

    /// Adds the report of a host: a sender, a receiver, or a host that takes no part in the application.
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

    /// Computes the results from all reports added so far.
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
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct CastTimes {
    /// The index of the cast, from 0.
    pub cast: u32,
    /// The length of the cast in bytes.
    pub bytes: u64,
    /// The time at which its first buffer was written.
    pub begun: Time,
    /// The time of the last acknowledgement that was expected; `None` if the cast has not ended.
    pub ended: Option<Time>,
}

/// The casts as one of their receivers sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct ReceiverTimes {
    /// The receiver's host.
    pub host: HostId,
    /// The sender's host that is nearest to it.
    pub from: HostId,
    /// The time at which each cast was delivered, by index of the cast. It is shorter than the list of casts if some
    /// were not delivered.
    pub completed: Vec<Time>,
    /// The longest interval without a new byte that ended before the run's first host crash.
    pub longest_gap_before: Span,
    /// The longest interval without a new byte that ended after it.
    pub longest_gap: Span,
    /// Whether its host crashed during the run.
    pub crashed: bool,
    /// Why the sender stopped waiting for this receiver; `None` if it did not.
    pub failed: Option<FailReason>,
}

/// The results of a cast application.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Results {
    /// The length of each cast in bytes, measured or not.
    lengths: Vec<u64>,
    /// The index of the first measured cast.
    first: usize,
    /// The measured casts that have started, in order.
    pub casts: Vec<CastTimes>,
    /// Every receiver, in the sender's order.
    pub receivers: Vec<ReceiverTimes>,
    /// The number of times that a receiver was detached.
    pub detached: u64,
    /// The number of bytes that differ from the ones sent or were stored at a wrong offset.
    pub wrong_bytes: u64,
    /// The number of payload bytes that were retransmitted.
    pub repaired_bytes: u64,
    /// The number of times that the controller declared an agent silent.
    pub silent_agents: u64,
}

impl Results {
    /// Returns the lengths of the measured casts, unstarted ones included.
    #[must_use]
    pub fn measured(&self) -> &[u64] {
        &self.lengths[self.first.min(self.lengths.len())..]
    }

    /// Returns the execution time, or `None` if the last cast has not ended.
    #[must_use]
    pub fn execution(&self) -> Option<Span> {
        let (first, last) = (self.casts.first()?, self.casts.last()?);
        let is_last = last.cast as usize + 1 == self.lengths.len();
        Some(last.ended.filter(|_| is_last)?.since(first.begun))
    }

    /// Returns the send time of each cast that has ended.
    pub fn send_times(&self) -> impl Iterator<Item = Span> + '_ {
        self.casts.iter().filter_map(|cast| Some(cast.ended?.since(cast.begun)))
    }

    /// Returns the time from the delivery of each cast to the delivery of the next one, for every receiver.
    pub fn wait_times(&self) -> impl Iterator<Item = Span> + '_ {
        let from = self.first.saturating_sub(1);
        let completed = self.receivers.iter().filter_map(move |of| of.completed.get(from..));
        completed.flat_map(|times| times.windows(2)).map(|pair| pair[1].since(pair[0]))
    }

    /// Returns the number of bytes, over all casts, that receivers on hosts that did not crash lack.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        let alive = self.receivers.iter().filter(|receiver| !receiver.crashed);
        let lacks = |of: &ReceiverTimes| self.lengths.iter().skip(of.completed.len()).sum::<u64>();
        alive.map(lacks).sum()
    }

    /// Returns the measured casts in the form that all runs use for messages: one message for each cast and receiver.
    /// `ideal` returns the time that a number of bytes takes from one host to another on the unloaded path, in packets
    /// of [`rackweave_core::Framing::UDP`].
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
