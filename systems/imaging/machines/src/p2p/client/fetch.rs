//! What a client has requested, and when it requests it again.

use std::collections::BTreeMap;

use rackweave_core::{Bitmap, HostId, RttEstimator, Span, Time};

use super::Config;

/// A chunk on request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Time,
    /// When it is requested again.
    due: Time,
    tries: u16,
    /// The host from which it is arriving.
    from: Option<HostId>,
    /// It is late when this many chunks have arrived.
    late_at: u64,
    /// Whether its parts arrive one after the other, by multicast.
    is_multicast: bool,
}

/// The requests of a client.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    order: Vec<u32>,
    /// Chunks before this place of `order` are here or on request.
    next: usize,
    asked: BTreeMap<u32, Asked>,
    /// No chunk is due before.
    earliest: Time,
    rtt: RttEstimator,
    /// When a chunk arrived last, and how many have arrived.
    last: Time,
    arrived: u64,
    /// A chunk is late when this many others have arrived.
    late_after: u64,
    retry: Span,
    /// Whether the client waits for the answer of a server that did not know it.
    pub(super) rejoin: bool,
}

/// The longest time after which a chunk is requested again.
const LONGEST_RETRY: Span = Span::from_secs(20);
/// The due time of a chunk that is requested again without delay.
const AT_ONCE: Time = Time::ZERO;
/// A chunk is requested again although others arrive when these are this many times [`Config::outstanding`]. How long a chunk takes
/// depends on the queues of holders, so that no time would fit slow links and fast ones; but requests are served about in
/// their order. With 4, a chunk may wait four times as long as the mean. Its timeout must have passed as well.
const PATIENCE: u64 = 4;
/// Before the first chunk, the timeout is this many times [`Config::retry`], 3 s by default: how long a chunk takes is not known yet.
const FIRST_RETRY: u64 = 12;

impl Fetch {
    pub(super) const fn new(config: &Config) -> Self {
        let outstanding = if config.outstanding > 0 { config.outstanding as u64 } else { 1 };
        Self {
            order: Vec::new(),
            next: 0,
            asked: BTreeMap::new(),
            earliest: Time::MAX,
            rtt: RttEstimator::new(),
            last: Time::ZERO,
            arrived: 0,
            late_after: outstanding * PATIENCE,
            retry: config.retry,
            rejoin: false,
        }
    }

    /// Sets the order of requests.
    pub(super) fn plan(&mut self, order: Vec<u32>) {
        (self.order, self.next) = (order, 0);
    }

    pub(super) fn is_asked(&self, chunk: u32) -> bool {
        self.asked.contains_key(&chunk)
    }

    fn timeout(&self, tries: u16) -> Span {
        let base = match (self.rtt.rto(), self.rtt.smoothed()) {
            // Chunks wait in queues of different length, so that the variation is large. Twice the time is enough, because
            // the timer starts again with each arrival.
            (Some(rto), Some(smoothed)) => rto.min(smoothed * 2).max(self.retry),
            _ => self.retry.saturating_mul(FIRST_RETRY),
        };
        // RFC 6298 (5.5): back off.
        Span::from_ticks(
            base.ticks()
                .saturating_mul(1 << tries.min(4))
                .min(LONGEST_RETRY.ticks().max(self.retry.ticks())),
        )
    }

    /// Returns the next request: first chunk, count and tries. `None` if nothing is due, or enough is on request.
    pub(super) fn next(
        &mut self,
        now: Time,
        have: &Bitmap<u32>,
        unwritten: u32,
        config: &Config,
    ) -> Option<(u32, u16, u16)> {
        if now >= self.earliest
            && let Some(again) = self.again(now, config.batch)
        {
            return Some(again);
        }
        let outstanding = match config.backlog {
            0 => u32::from(config.outstanding.max(1)),
            backlog => u32::from(config.outstanding.max(1)).min(backlog.saturating_sub(unwritten)),
        } as usize;
        let room = outstanding.saturating_sub(self.asked.len());
        let most = usize::from(config.batch.max(1));
        // A request is not divided because there is room for a part of it now.
        if room == 0 || room < most.min(usize::from(config.outstanding.max(1))) {
            return None;
        }
        let is_open = |chunk: &u32| !have.contains(*chunk) && !self.asked.contains_key(chunk);
        let skip = self.order[self.next..].iter().position(&is_open)?;
        self.next += skip;
        let first = self.order[self.next];
        let count = self.order[self.next..]
            .iter()
            .zip(first..)
            .take(most.min(room))
            .take_while(|(chunk, expected)| **chunk == *expected && is_open(chunk))
            .count();
        self.next += count;
        for chunk in first..first + count as u32 {
            self.ask(now, chunk, 0);
        }
        Some((first, count as u16, 0))
    }

    fn ask(&mut self, now: Time, chunk: u32, tries: u16) {
        let due = now.saturating_add(self.timeout(tries));
        let late_at = self.arrived + self.late_after;
        let asked = Asked { at: now, due, tries, from: None, late_at, is_multicast: false };
        self.asked.insert(chunk, asked);
        self.earliest = self.earliest.min(due);
    }

    /// When a chunk is requested again. While others arrive, it probably waits for its turn at its holder: RFC 6298 (5.3)
    /// restarts the timer with all new data, too. But it does not wait for ever ([`PATIENCE`]).
    fn due_of(&self, asked: &Asked) -> Time {
        let is_late = asked.due == AT_ONCE || self.arrived >= asked.late_at;
        if is_late || asked.is_multicast {
            return asked.due;
        }
        asked.due.max(self.last.saturating_add(self.timeout(0)))
    }

    /// Requests consecutive chunks again that are due and have been requested equally often.
    fn again(&mut self, now: Time, batch: u16) -> Option<(u32, u16, u16)> {
        let due = |asked: &Asked| self.due_of(asked) <= now;
        let Some((first, tries)) =
            self.asked.iter().find(|(_, asked)| due(asked)).map(|(chunk, a)| (*chunk, a.tries))
        else {
            self.earliest =
                self.asked.values().map(|asked| self.due_of(asked)).min().unwrap_or(Time::MAX);
            return None;
        };
        let run = self.asked.range(first..).zip(first..).take(usize::from(batch.max(1)));
        let same = |(chunk, asked): (&u32, &Asked), expected: u32| {
            *chunk == expected && due(asked) && asked.tries == tries
        };
        let count = run.take_while(|(entry, expected)| same(*entry, *expected)).count() as u16;
        let tries = tries.saturating_add(1);
        for chunk in first..first + u32::from(count) {
            self.ask(now, chunk, tries);
        }
        Some((first, count, tries))
    }

    pub(super) fn received(&mut self, now: Time, chunk: u32) {
        self.last = now;
        self.arrived += 1;
        if self.asked.values().any(|asked| asked.late_at <= self.arrived) {
            self.earliest = now;
        }
        if let Some(asked) = self.asked.remove(&chunk)
            && asked.tries == 0
        {
            // RFC 6298 (3): no samples from what was requested twice.
            self.rtt.sample(now.since(asked.at));
        }
    }

    pub(super) fn progress(&mut self, now: Time, from: HostId, chunk: u32) {
        let timeout = self.timeout(0);
        if let Some(asked) = self.asked.get_mut(&chunk) {
            asked.due = asked.due.max(now.saturating_add(timeout));
            asked.from = Some(from);
            asked.late_at = self.arrived + self.late_after;
        }
    }

    /// Parts of a chunk arrive by multicast, maybe without a request. Returns false if there is no room for it. A pause after them means that
    /// others are lost: it does not wait in a queue.
    pub(super) fn arriving(&mut self, now: Time, from: HostId, chunk: u32) -> bool {
        if !self.asked.contains_key(&chunk) {
            if self.asked.len() as u64 >= self.late_after {
                return false;
            }
            self.ask(now, chunk, 0);
        }
        self.progress(now, from, chunk);
        let due = now.saturating_add(self.retry);
        if let Some(asked) = self.asked.get_mut(&chunk) {
            (asked.due, asked.is_multicast) = (due, true);
            self.earliest = self.earliest.min(due);
        }
        true
    }

    pub(super) fn due_now(&mut self, now: Time, chunk: u32) {
        if let Some(asked) = self.asked.get_mut(&chunk) {
            asked.due = AT_ONCE;
            self.earliest = self.earliest.min(now);
        }
    }

    pub(super) fn peer_failed(&mut self, now: Time, peer: HostId) {
        for asked in self.asked.values_mut().filter(|asked| asked.from == Some(peer)) {
            (asked.due, asked.from) = (AT_ONCE, None);
            self.earliest = self.earliest.min(now);
        }
    }

    pub(super) fn all_due(&mut self, now: Time) {
        self.asked.values_mut().for_each(|asked| asked.due = AT_ONCE);
        self.earliest = now;
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        (self.earliest < Time::MAX).then_some(self.earliest)
    }
}
