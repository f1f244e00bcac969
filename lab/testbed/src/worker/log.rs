//! The records of a host until it reports them to the coordinator.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use rackweave_core::{FailReason, HostId, MessageId, Span, Time};
use rackweave_workload::app::{MessageKey, MessageStart};

use crate::protocol::{Arrived, Ended, Lag, Records, Started};

/// What happened to messages since the last report.
#[derive(Debug, Default)]
pub(super) struct MessageLog {
    records: Records,
    /// The number of bytes of partially received messages that have been reported.
    arriving: BTreeMap<(u8, Name), u64>,
}

/// How a receiver names a message: by its sender and its id in the transport; for a message in a stream, by the id of
/// the direction and the key.
pub(super) type Name = (HostId, MessageId, Option<MessageKey>);

impl MessageLog {
    /// Logs the start of a message; `wire` is the endpoint that accepted it, and the id there.
    pub(super) fn started(
        &mut self,
        key: MessageKey,
        wire: Option<(u8, MessageId)>,
        start: &MessageStart,
    ) {
        let &MessageStart { stream, dst, bytes, at, .. } = start;
        let wire = wire.map(|(endpoint, id)| (endpoint, id.0));
        let started = Started { key: key.0, wire, stream, dst: dst.0, bytes, at: at.ticks() };
        self.records.started.push(started);
    }

    /// Logs the end of a message of this host.
    pub(super) fn ended(&mut self, key: MessageKey, now: Time, failed: Option<FailReason>) {
        self.records.ended.push(Ended { key: key.0, at: now.ticks(), failed });
    }

    /// Logs the complete arrival of a one-way message or a request.
    pub(super) fn arrived(
        &mut self,
        endpoint: u8,
        peer: HostId,
        id: MessageId,
        bytes: u64,
        now: Time,
    ) {
        self.arriving.remove(&(endpoint, (peer, id, None)));
        let (id, peer, at, key) = (id.0, peer.0, now.ticks(), None);
        self.records.arrived.push(Arrived { id, key, endpoint, peer, bytes, whole: true, at });
    }

    /// Logs that the application received a one-way message or a request from a channel, at the time `at`.
    pub(super) fn arrived_on_channel(&mut self, peer: HostId, key: MessageKey, at: Time) {
        let (id, key, endpoint, peer, at) = (0, Some(key.0), 0, peer.0, at.ticks());
        self.records.arrived.push(Arrived { id, key, endpoint, peer, bytes: 0, whole: true, at });
    }

    /// Logs how much has arrived of the incomplete messages at an endpoint.
    pub(super) fn arriving(
        &mut self,
        endpoint: u8,
        all: impl Iterator<Item = (Name, u64)>,
        now: Time,
    ) {
        let mut known = BTreeMap::new();
        for (name, bytes) in all {
            let reported = self.arriving.get(&(endpoint, name)).copied().unwrap_or(0);
            known.insert((endpoint, name), bytes.max(reported));
            if bytes > reported {
                let (bytes, whole) = (bytes - reported, false);
                let (peer, id, key) = (name.0.0, name.1.0, name.2.map(|key| key.0));
                let at = now.ticks();
                self.records.arrived.push(Arrived { id, key, endpoint, peer, bytes, whole, at });
            }
        }
        self.arriving.retain(|(of, ..), _| *of != endpoint);
        self.arriving.extend(known);
    }

    /// Returns the number of records in the log.
    pub(super) const fn len(&self) -> usize {
        self.records.started.len() + self.records.ended.len() + self.records.arrived.len()
    }

    /// Takes the records to be reported, which have all starts of the first stream up to this time.
    pub(super) fn take(&mut self, until: Time, idle: bool) -> Records {
        let records = std::mem::take(&mut self.records);
        Records { until: until.ticks(), idle, ..records }
    }
}

const HOUR_NS: u64 = 3_600_000_000_000;

/// The delays with which messages were started, in nanoseconds.
#[derive(Debug)]
pub(super) struct LagHistogram(Histogram<u64>);

impl LagHistogram {
    pub(super) fn new() -> Self {
        // One digit is exact to 10 %, which suffices to judge whether a machine keeps up. A lag above an hour counts as
        // one hour.
        Self(Histogram::new_with_max(HOUR_NS, 1).expect("the precision is valid"))
    }

    pub(super) fn record(&mut self, lag: Span) {
        self.0.saturating_record(lag.as_ns());
    }

    pub(super) fn summary(&self) -> Lag {
        let at = |nanoseconds: u64| Span::from_ns(nanoseconds);
        Lag { starts: self.0.len(), p99: at(self.0.value_at_quantile(0.99)), max: at(self.0.max()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_of_lags() {
        let mut lags = LagHistogram::new();
        assert_eq!(lags.summary().p99, Span::ZERO);
        for _ in 0..99 {
            lags.record(Span::from_us(10));
        }
        lags.record(Span::from_ms(50));
        let p99 = lags.summary().p99;
        assert!(p99 >= Span::from_us(10) && p99 < Span::from_us(15), "{p99}");
        lags.record(Span::from_ms(50));
        lags.record(Span::from_ms(50));
        let Lag { starts, p99, max } = lags.summary();
        assert!(p99 >= Span::from_ms(45) && max >= p99, "{p99}, {max}");
        assert_eq!(starts, 102);
    }

    #[test]
    fn bytes_of_messages_in_part_are_reported_once() {
        let mut log = MessageLog::default();
        let (peer, id) = (HostId(3), MessageId(8));
        let name = (peer, id, None);
        log.arriving(0, [(name, 500)].into_iter(), Time::from_ticks(1));
        log.arriving(0, [(name, 500)].into_iter(), Time::from_ticks(2));
        log.arriving(1, std::iter::empty(), Time::from_ticks(2));
        log.arriving(0, [(name, 700)].into_iter(), Time::from_ticks(3));
        log.arrived(0, peer, id, 1000, Time::from_ticks(4));
        let records = log.take(Time::from_ticks(5), false);
        let arrived: Vec<_> = records.arrived.iter().map(|a| (a.at, a.bytes, a.whole)).collect();
        assert_eq!(arrived, [(1, 500, false), (3, 200, false), (4, 1000, true)]);
        assert_eq!(log.len(), 0);
    }
}
