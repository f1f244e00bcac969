//! What a host keeps in mind of messages until it has told the coordinator.

use std::collections::BTreeMap;

use rackweave_core::{HostId, MessageId, Span, Time};

use crate::testbed::protocol::{Arrived, Ended, Reason, Records, Started};

/// A message that this host has under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mine {
    pub(super) stream: u16,
    pub(super) dst: HostId,
}

/// Messages of this host, and what is to be told.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    under_way: BTreeMap<(u8, MessageId), Mine>,
    by_stream: BTreeMap<u16, u64>,
    records: Records,
    lag: Lag,
    made_up: u64,
}

impl Ledger {
    /// A message has been given to its transport, at `now` in place of `at`.
    pub(super) fn started(&mut self, door: u8, id: MessageId, mine: Mine, bytes: u64, at: Time) {
        self.under_way.insert((door, id), mine);
        *self.by_stream.entry(mine.stream).or_default() += 1;
        self.tell_start(door, id.0, mine, bytes, at);
    }

    /// A message that never got to its transport: it has failed.
    pub(super) fn never_started(
        &mut self,
        door: u8,
        mine: Mine,
        bytes: u64,
        times: (Time, Time),
        why: Reason,
    ) {
        // Ids of transports are even.
        let id = self.made_up << 1 | 1;
        self.made_up += 1;
        let (start, end) = times;
        self.tell_start(door, id, mine, bytes, start);
        self.records.ended.push(Ended { id, door, at: end.0, failed: Some(why) });
    }

    fn tell_start(&mut self, door: u8, id: u64, mine: Mine, bytes: u64, at: Time) {
        let Mine { stream, dst } = mine;
        self.records.started.push(Started { id, door, stream, dst: dst.0, bytes, at: at.0 });
    }

    /// A message of this host has ended, if it is one.
    pub(super) fn ended(
        &mut self,
        door: u8,
        id: MessageId,
        now: Time,
        failed: Option<Reason>,
    ) -> Option<Mine> {
        let mine = self.under_way.remove(&(door, id))?;
        if let Some(count) = self.by_stream.get_mut(&mine.stream) {
            *count -= 1;
        }
        self.records.ended.push(Ended { id: id.0, door, at: now.0, failed });
        Some(mine)
    }

    /// A message that is under way.
    pub(super) fn get(&self, door: u8, id: MessageId) -> Option<Mine> {
        self.under_way.get(&(door, id)).copied()
    }

    /// A one-way message has come.
    pub(super) fn arrived(&mut self, door: u8, peer: HostId, id: MessageId, now: Time) {
        self.records.arrived.push(Arrived { id: id.0, door, peer: peer.0, at: now.0 });
    }

    /// Messages of a stream that are under way.
    pub(super) fn under_way(&self, stream: u16) -> u64 {
        self.by_stream.get(&stream).copied().unwrap_or(0)
    }

    /// How late a message was started.
    pub(super) fn lagged(&mut self, lag: Span) {
        self.lag.add(lag);
    }

    pub(super) const fn lag(&self) -> &Lag {
        &self.lag
    }

    /// How many things are to be told.
    pub(super) fn len(&self) -> usize {
        self.records.started.len() + self.records.ended.len() + self.records.arrived.len()
    }

    /// What is to be told, up to now.
    pub(super) fn take(&mut self, until: Time, idle: bool) -> Records {
        let records = std::mem::take(&mut self.records);
        Records { until: until.0, idle, ..records }
    }
}

/// Buckets of [`Lag`]: powers of the square root of two from 1 microsecond on.
const BUCKETS: usize = 64;

/// How late messages were started, in buckets that grow by a factor of 1.41.
#[derive(Debug)]
pub(super) struct Lag {
    counts: [u64; BUCKETS],
    pub(super) max: Span,
    pub(super) count: u64,
}

impl Default for Lag {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], max: Span::ZERO, count: 0 }
    }
}

impl Lag {
    fn add(&mut self, lag: Span) {
        let bucket = (2.0 * libm::log2(lag.as_us_f64().max(1.0))) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.max = self.max.max(lag);
    }

    /// The 99th percentile, rounded up to its bucket's edge.
    pub(super) fn p99(&self) -> Span {
        let mut left = self.count - self.count / 100;
        for (bucket, count) in self.counts.iter().enumerate() {
            left = left.saturating_sub(*count);
            if left == 0 {
                let edge = libm::exp2((bucket + 1) as f64 / 2.0) * 1e6;
                return Span(edge as u64).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_of_lags() {
        let mut lag = Lag::default();
        assert_eq!(lag.p99(), Span::ZERO);
        for _ in 0..99 {
            lag.add(Span::from_us(10));
        }
        lag.add(Span::from_ms(50));
        let p99 = lag.p99();
        assert!(p99 >= Span::from_us(10) && p99 < Span::from_us(15), "{p99}");
        lag.add(Span::from_ms(50));
        lag.add(Span::from_ms(50));
        assert_eq!(lag.p99(), Span::from_ms(50));
    }

    #[test]
    fn a_message_ends_once() {
        let mut ledger = Ledger::default();
        let mine = Mine { stream: 0, dst: HostId(3) };
        ledger.started(0, MessageId(8), mine, 100, Time(5));
        assert_eq!(ledger.under_way(0), 1);
        assert!(ledger.ended(0, MessageId(8), Time(9), None).is_some());
        assert!(ledger.ended(0, MessageId(8), Time(9), None).is_none());
        assert!(ledger.ended(1, MessageId(8), Time(9), None).is_none());
        let records = ledger.take(Time(10), true);
        assert_eq!((records.started.len(), records.ended.len(), ledger.len()), (1, 1, 0));
        assert_eq!(ledger.under_way(0), 0);
    }
}
