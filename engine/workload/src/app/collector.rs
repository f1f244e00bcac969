//! Combines the records of all hosts: which messages are measured, when all of them have ended, and their outcomes.
//!
//! The definitions, for the simulator and the testbed alike:
//!
//! - *Measured* messages are the first ones of the first stream that start after the warm-up, up to the wanted
//!   number or for the wanted time, and the messages of other streams that start between the warm-up and the last of them. Of
//!   messages that start at the same time, those of the host with the lower number are first, and those of one host in its own
//!   order.
//! - The run is *done* when all measured messages of all streams have ended or are lost.
//! - *Goodput* is the payload that receivers have stored from the warm-up to the end of the measured time, of messages
//!   complete or not, by the host that started the exchange.
//! - The *ideal time* of a message is what it would take on the unloaded path; of a request, there and back. Its
//!   *slowdown* is the time that it took divided by that.
//! - A message is *lost* when its transport repairs nothing and it has not arrived in time. It has not ended, but nothing waits for it.
//! - A message *fails* when its sender's transport reports that it will not complete, or its host crashes.

use rackweave_core::{FailReason, HostId, Span, Time};

use super::MessageEnd;
use crate::pattern::Exchange;

/// The start of a message, as its sender reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct MessageStart {
    /// The stream of messages that it belongs to (index in the run's streams).
    pub stream: u16,
    /// The host that started it.
    pub src: HostId,
    /// The receiving host.
    pub dst: HostId,
    /// Its length (of a request: of the request).
    pub bytes: u64,
    /// When it started: when its application wanted to send it.
    pub at: Time,
}

/// A measured message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct MessageRecord {
    /// The stream of messages that it belongs to (index in the run's streams).
    pub stream: u16,
    /// The host that started it.
    pub src: HostId,
    /// The receiving host.
    pub dst: HostId,
    /// Its length (of a request: of the request).
    pub bytes: u64,
    /// When it was submitted.
    pub start: Time,
    /// The time it would take on the unloaded path (of a request: there and back).
    pub ideal: Span,
    /// How it ended.
    pub outcome: Outcome,
}

/// The outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum Outcome {
    /// Its last byte arrived at this time (of a request: of the response).
    Completed(Time),
    /// It failed, for this reason.
    Failed(FailReason),
    /// The run ended before the message did.
    Unfinished,
}

/// The configuration of a [`Collector`].
#[derive(Clone, Debug)]
pub struct CollectorConfig {
    /// The number of hosts.
    pub hosts: u32,
    /// Whether messages are answered, by stream.
    pub exchanges: Vec<Exchange>,
    /// Maximum number of messages of the first stream that are measured.
    pub wanted: u64,
    /// Messages that start before this are not measured.
    pub warmup: Time,
    /// Messages that start at this time or later are not measured; [`Time::MAX`] if their number decides.
    pub until: Time,
    /// Whether all hosts report starts as they happen, in the order of time, as in a simulator. Otherwise hosts
    /// report in batches ([`Collector::reported`]).
    pub in_order: bool,
}

/// Identifies a message in a [`Collector`] until the message has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId {
    serial: u64,
    slot: u32,
}

impl RecordId {
    /// The id of all messages that are not measured.
    const UNMEASURED: Self = Self { serial: u64::MAX, slot: u32::MAX };
}

/// The position of a message: its start, its source, and the source's own order.
pub type Position = (Time, HostId, u64);

/// A message that may be measured.
#[derive(Clone, Copy, Debug)]
struct Entry {
    serial: u64,
    order: u64,
    start: MessageStart,
    /// When its sender got the acknowledgement of a message that its receiver has not reported yet.
    sent: Option<Time>,
    /// Whether nobody waits for it any more.
    is_lost: bool,
}

impl Entry {
    const fn position(&self) -> Position {
        (self.start.at, self.start.src, self.order)
    }
}

/// The reports of one host.
#[derive(Clone, Copy, Debug)]
struct Progress {
    until: Time,
    /// Whether its first stream of messages has ended.
    has_ended: bool,
}

/// Combines the records of all hosts, and decides which messages are measured. Its definitions of done,
/// goodput, ideal time and slowdown apply to the simulator and to real hosts.
///
/// Memory grows with the number of messages in progress and measured, not with the length of the run.
#[derive(Debug)]
pub struct Collector {
    config: CollectorConfig,
    /// Whether other collectors of the run have the reports of other hosts.
    is_share: bool,
    open: Vec<Option<Entry>>,
    free: Vec<u32>,
    ended: Vec<(Entry, Time, MessageEnd)>,
    next_serial: u64,
    /// Number of messages of the first stream that may be measured, and have started and not ended.
    started: u64,
    under_way: u64,
    /// The same for the other streams.
    beside: u64,
    /// The last start of a message of the first stream.
    last_start: Time,
    /// Only messages before this position are measured; `None` until it is known.
    limit: Option<Position>,
    /// If starts are reported in order, the time of the last report.
    latest: Time,
    hosts: Vec<Progress>,
    /// Number of hosts whose first stream has not ended.
    active_hosts: u32,
    last_end: Time,
    /// Payload bytes stored in the measured time, by stream and by the host that started the exchange.
    delivered: Vec<Vec<u64>>,
}

impl Collector {
    /// A collector without messages.
    #[must_use]
    pub fn new(config: CollectorConfig) -> Self {
        let hosts = config.hosts as usize;
        Self {
            is_share: false,
            open: Vec::new(),
            free: Vec::new(),
            ended: Vec::new(),
            next_serial: 0,
            started: 0,
            under_way: 0,
            beside: 0,
            last_start: Time::ZERO,
            limit: match (config.wanted, config.until) {
                (0, _) => Some((Time::ZERO, HostId(0), 0)),
                (_, Time::MAX) => None,
                (_, until) => Some((until, HostId(0), 0)),
            },
            latest: Time::ZERO,
            hosts: vec![Progress { until: Time::ZERO, has_ended: false }; hosts],
            active_hosts: config.hosts,
            last_end: Time::ZERO,
            delivered: vec![vec![0; hosts]; config.exchanges.len()],
            config,
        }
    }

    /// A collector for some of the hosts. It does not know which messages are measured until [`Collector::set_limit`].
    #[must_use]
    pub fn share(config: CollectorConfig) -> Self {
        Self { is_share: true, ..Self::new(config) }
    }

    /// Records the start of a message. `order` is its position among messages of its host with the same start
    /// time.
    pub fn started(&mut self, start: MessageStart, order: u64) -> RecordId {
        self.advance(start.at);
        if !self.may_be_measured((start.at, start.src, order)) {
            return RecordId::UNMEASURED;
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() as u32 - 1
        });
        self.open[slot as usize] = Some(Entry { serial, order, start, sent: None, is_lost: false });
        if start.stream > 0 {
            self.beside += 1;
        } else {
            self.started += 1;
            self.under_way += 1;
            self.last_start = self.last_start.max(start.at);
            if !self.config.in_order {
                self.find_limit();
            }
        }
        RecordId { serial, slot }
    }

    fn may_be_measured(&self, position: Position) -> bool {
        position.0 >= self.config.warmup && self.limit.is_none_or(|limit| position < limit)
    }

    /// The number of messages under way of the first stream or of the others, as this stream is.
    const fn count(&mut self, stream: u16) -> &mut u64 {
        if stream == 0 { &mut self.under_way } else { &mut self.beside }
    }

    fn entry(&mut self, id: RecordId) -> Option<&mut Entry> {
        let entry = self.open.get_mut(id.slot as usize)?.as_mut();
        entry.filter(|entry| entry.serial == id.serial)
    }

    /// Records the end of a message: a request at the host that started it, a one-way message where it arrived.
    /// Has no effect if it has ended before.
    pub fn ended(&mut self, id: RecordId, at: Time, end: MessageEnd) {
        self.advance(at);
        let Some(entry) = self.entry(id).copied() else { return };
        self.open[id.slot as usize] = None;
        self.free.push(id.slot);
        if !entry.is_lost {
            *self.count(entry.start.stream) -= 1;
        }
        // Clocks of two hosts may differ.
        let at = at.max(entry.start.at);
        self.last_end = self.last_end.max(at);
        self.ended.push((entry, at, end));
    }

    /// Records that the sender of a one-way message knows of its arrival. The message ends when the receiver
    /// reports it, or at this time if the receiver never can.
    pub fn sent(&mut self, id: RecordId, at: Time) {
        if let Some(entry) = self.entry(id) {
            entry.sent = Some(at);
        }
    }

    /// Records that packets of a message are lost and nothing repairs them: the run does not wait for it, and it is unfinished unless it
    /// ends after all.
    pub fn lost(&mut self, id: RecordId) {
        if let Some(entry) = self.entry(id).filter(|entry| !entry.is_lost) {
            entry.is_lost = true;
            let stream = entry.start.stream;
            *self.count(stream) -= 1;
        }
    }

    /// Records that a receiver has stored payload of an exchange that `src` started.
    #[inline]
    pub fn stored(&mut self, at: Time, stream: u16, src: HostId, bytes: u64) {
        if at >= self.config.warmup {
            self.delivered[usize::from(stream)][src.0 as usize] += bytes;
        }
    }

    /// Records whether the first stream of messages has ended at a host.
    pub fn set_ended(&mut self, host: HostId, has_ended: bool) {
        let Some(known) = self.hosts.get_mut(host.0 as usize) else { return };
        match (std::mem::replace(&mut known.has_ended, has_ended), has_ended) {
            (false, true) => self.active_hosts -= 1,
            (true, false) => self.active_hosts += 1,
            _ => {}
        }
    }

    /// Records that a host has reported all its events up to a time.
    pub fn reported(&mut self, host: HostId, until: Time, has_ended: bool) {
        self.set_ended(host, has_ended);
        if let Some(known) = self.hosts.get_mut(host.0 as usize) {
            known.until = until;
        }
        self.find_limit();
    }

    /// The time up to which a host has reported all its events.
    #[must_use]
    pub fn reported_until(&self, host: HostId) -> Time {
        self.hosts.get(host.0 as usize).map_or(Time::ZERO, |known| known.until)
    }

    /// Records that a host has lost all its messages. Arrivals there that it has not reported are known to
    /// their senders.
    pub fn host_crashed(&mut self, host: HostId, at: Time) {
        for slot in 0..self.open.len() {
            let Some(entry) = self.open[slot] else { continue };
            let id = RecordId { serial: entry.serial, slot: slot as u32 };
            if entry.start.src == host {
                self.ended(id, at, MessageEnd::Failed(FailReason::HostCrashed));
            } else if entry.start.dst == host
                && let Some(sent) = entry.sent
            {
                self.ended(id, sent, MessageEnd::Completed);
            }
        }
        if let Some(known) = self.hosts.get_mut(host.0 as usize) {
            // It starts no message until it has restarted.
            known.until = Time::MAX;
        }
        self.find_limit();
    }

    /// If starts are reported in order, records that no other message starts before this time.
    #[inline]
    fn advance(&mut self, at: Time) {
        if self.config.in_order && at > self.latest {
            self.latest = at;
            self.find_limit();
        }
    }

    /// Determines the last measured message, once all of them have started.
    fn find_limit(&mut self) {
        if self.is_share || self.limit.is_some() || self.started < self.config.wanted {
            return;
        }
        // All starts up to this time have been reported.
        let horizon = if self.config.in_order {
            Time::from_ticks(self.latest.ticks().saturating_sub(1))
        } else {
            self.hosts.iter().map(|host| host.until).min().unwrap_or(Time::MAX)
        };
        if let Some(limit) = limit_of(&mut self.positions(horizon), self.config.wanted) {
            self.set_limit(limit);
        }
    }

    /// The positions of the messages of the first stream that may be measured and have started by this time, in no order.
    #[must_use]
    pub fn positions(&self, horizon: Time) -> Vec<Position> {
        let ended = self.ended.iter().map(|(entry, ..)| entry);
        let all = self.open.iter().flatten().chain(ended);
        let first = all.filter(|entry| entry.start.stream == 0 && entry.start.at <= horizon);
        first.map(Entry::position).collect()
    }

    /// Restricts the measured messages to those before this position. Several collectors of one run, each with some of the
    /// hosts, get it from [`limit_of`] all of their positions.
    pub fn set_limit(&mut self, limit: Position) {
        self.limit = Some(limit);
        self.ended.retain(|(entry, ..)| entry.position() < limit);
        self.last_end = self.ended.iter().map(|(_, at, _)| *at).max().unwrap_or(Time::ZERO);
        for slot in 0..self.open.len() {
            if let Some(entry) = self.open[slot].take_if(|entry| entry.position() >= limit) {
                self.free.push(slot as u32);
                if !entry.is_lost {
                    *self.count(entry.start.stream) -= 1;
                }
            }
        }
    }

    /// When all measured messages had started; `None` before.
    #[must_use]
    pub fn started_until(&self) -> Option<Time> {
        self.limit.map(|(until, ..)| until).filter(|_| self.have_started())
    }

    /// The start of a message that is or may be measured and has not ended.
    #[must_use]
    pub fn waiting(&self, id: RecordId) -> Option<MessageStart> {
        let entry = self.open.get(id.slot as usize)?.as_ref()?;
        let is_waiting = entry.serial == id.serial && entry.sent.is_none() && !entry.is_lost;
        is_waiting.then_some(entry.start)
    }

    /// Records that all hosts have reported all their events before this time.
    pub fn passed(&mut self, at: Time) {
        self.advance(at);
    }

    /// Whether it is known which messages are measured.
    #[must_use]
    pub const fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// Number of messages of the first stream that may be measured and have not ended.
    #[must_use]
    pub const fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Number of messages of the other streams that may be measured and have not ended.
    #[must_use]
    pub const fn under_way_beside(&self) -> u64 {
        self.beside
    }

    /// When the last message of the first stream started that may be measured.
    #[must_use]
    pub const fn last_start(&self) -> Time {
        self.last_start
    }

    /// Whether all messages that are measured have started.
    #[must_use]
    pub fn have_started(&self) -> bool {
        let Some((until, ..)) = self.limit else { return false };
        let hosts = || self.hosts.iter().map(|host| host.until).min().unwrap_or(Time::MAX);
        until <= if self.config.in_order { self.latest } else { hosts() }
    }

    /// Number of hosts whose first stream has not ended.
    #[must_use]
    pub const fn active_hosts(&self) -> u32 {
        self.active_hosts
    }

    /// Adds the messages of another collector of the same run, which had the reports of other hosts. Both have the same limit.
    pub fn absorb(&mut self, other: Self) {
        self.is_share = false;
        self.started += other.started;
        self.under_way += other.under_way;
        self.beside += other.beside;
        self.last_start = self.last_start.max(other.last_start);
        self.last_end = self.last_end.max(other.last_end);
        self.latest = self.latest.max(other.latest);
        self.open.extend(other.open);
        self.ended.extend(other.ended);
        for (all, more) in self.delivered.iter_mut().zip(&other.delivered) {
            all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
        }
    }

    /// Whether all messages to be measured have ended. If the first stream has ended at all hosts, its last start ends the measured
    /// time.
    pub fn is_done(&mut self) -> bool {
        // What a share of the hosts knows is not enough.
        if self.is_share || self.under_way > 0 || self.active_hosts > 0 && !self.have_started() {
            return false;
        }
        if self.limit.is_none() {
            self.end_with_the_first_stream(self.last_start);
        }
        self.beside == 0
    }

    /// Restricts the measured messages to the ones up to the first stream's last start, as all shards of a run know it.
    pub fn end_with_the_first_stream(&mut self, last_start: Time) {
        self.set_limit((last_start, HostId(u32::MAX), u64::MAX));
    }

    /// Numbers of measured messages (`u64::MAX` if unknown) and of ended messages of the first stream.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let started = self.started.min(self.config.wanted);
        (self.config.wanted, started.saturating_sub(self.under_way))
    }

    /// Number of measured messages of the first stream that have started.
    #[must_use]
    pub fn started_messages(&self) -> u64 {
        self.started.min(self.config.wanted)
    }

    /// When the last measured message ended; `None` if none has.
    #[must_use]
    pub fn last_end(&self) -> Option<Time> {
        (!self.ended.is_empty()).then_some(self.last_end)
    }

    /// Payload bytes stored in the measured time, by stream and by the host that started the exchange.
    #[must_use]
    pub fn delivered(&self) -> &[Vec<u64>] {
        &self.delivered
    }

    /// The measured messages, in the order of their start. `ideal` returns the time that a number of bytes of a
    /// stream take from one host to another on the unloaded path, for a message that starts at the given time: paths can
    /// change.
    #[must_use]
    pub fn records(
        &self,
        ideal: impl Fn(u16, HostId, HostId, u64, Time) -> Span,
    ) -> Vec<MessageRecord> {
        let open = self.open.iter().flatten().map(|entry| {
            // Its receiver cannot report it any more, but its sender knows of its arrival.
            let outcome = entry.sent.map_or(Outcome::Unfinished, Outcome::Completed);
            (entry, outcome)
        });
        let ended = self.ended.iter().map(|(entry, at, end)| match end {
            MessageEnd::Completed => (entry, Outcome::Completed(*at)),
            MessageEnd::Failed(reason) => (entry, Outcome::Failed(*reason)),
        });
        let mut all: Vec<(&Entry, Outcome)> = open.chain(ended).collect();
        all.sort_unstable_by_key(|(entry, _)| entry.position());
        if self.limit.is_none() {
            // The measured time ended when the last of them started.
            let mut first = 0;
            all.retain(|(entry, _)| {
                let is_measured = first < self.config.wanted;
                first += u64::from(entry.start.stream == 0);
                is_measured
            });
        }
        let record = |&(entry, outcome): &(&Entry, Outcome)| {
            let MessageStart { stream, src, dst, bytes, at } = entry.start;
            let there = ideal(stream, src, dst, bytes, at);
            let exchange = self.config.exchanges[usize::from(stream)];
            let back = exchange.response_bytes(bytes);
            let back = back.map_or(Span::ZERO, |bytes| ideal(stream, dst, src, bytes, at));
            MessageRecord { stream, src, dst, bytes, start: at, ideal: there + back, outcome }
        };
        all.iter().map(record).collect()
    }
}

/// The position before which the wanted number of messages start; `None` if fewer are known.
#[must_use]
pub fn limit_of(positions: &mut [Position], wanted: u64) -> Option<Position> {
    let index = usize::try_from(wanted.saturating_sub(1)).ok()?;
    if index >= positions.len() {
        return None;
    }
    let (at, src, order) = *positions.select_nth_unstable(index).1;
    Some((at, src, order + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn start(stream: u16, src: u32, at: u64) -> MessageStart {
        MessageStart {
            stream,
            src: HostId(src),
            dst: HostId(9),
            bytes: 10,
            at: Time::from_ticks(at),
        }
    }

    fn collector(wanted: u64) -> Collector {
        Collector::new(CollectorConfig {
            hosts: 10,
            exchanges: vec![Exchange::OneWay; 2],
            wanted,
            warmup: Time::from_ticks(100),
            until: Time::MAX,
            in_order: true,
        })
    }

    fn sources(collector: &Collector) -> Vec<(u16, u32)> {
        let records = collector.records(|_, _, _, _, _| Span::from_ticks(1));
        records.iter().map(|record| (record.stream, record.src.0)).collect()
    }

    /// Of messages with the same start time, those of the hosts with the lowest numbers are measured, in any
    /// order of reports.
    #[test]
    fn ties_of_starts_are_by_host() {
        let at_200 = [(0, 5), (0, 2), (1, 3), (0, 7), (1, 6), (0, 1)];
        for rotation in 0..at_200.len() {
            let mut order = at_200;
            order.rotate_left(rotation);
            let mut all = collector(4);
            all.started(start(0, 0, 99), 0);
            let first = all.started(start(0, 8, 150), 0);
            let records = order.map(|(stream, src)| all.started(start(stream, src, 200), 0));
            let expected = vec![(0, 8), (0, 1), (0, 2), (1, 3), (0, 5)];
            assert_eq!(sources(&all), expected, "the run may end here");
            assert!(!all.is_done());
            // A later start is not measured, and shows that no other message starts at 200.
            all.started(start(0, 0, 201), 0);
            assert_eq!(sources(&all), expected);
            for record in records {
                assert!(!all.is_done());
                all.ended(record, Time::from_ticks(300), MessageEnd::Completed);
            }
            assert_eq!(all.progress(), (4, 3));
            all.ended(first, Time::from_ticks(301), MessageEnd::Completed);
            assert_eq!((all.is_done(), all.progress()), (true, (4, 4)));
            assert_eq!((sources(&all), all.last_end()), (expected, Some(Time::from_ticks(301))));
        }
    }

    /// The last measured messages of other streams count as much as those of the first: the run waits for them, and not for later ones.
    #[test]
    fn a_run_is_done_when_all_streams_are() {
        let mut all = collector(1);
        let beside = all.started(start(1, 3, 150), 0);
        let first = all.started(start(0, 1, 200), 0);
        all.started(start(1, 4, 201), 0);
        all.ended(first, Time::from_ticks(300), MessageEnd::Completed);
        assert!(!all.is_done());
        all.ended(beside, Time::from_ticks(310), MessageEnd::Completed);
        assert!(all.is_done());
        assert_eq!((sources(&all), all.progress()), (vec![(1, 3), (0, 1)], (1, 1)));
    }

    #[test]
    fn a_time_decides_which_messages_are_measured() {
        let config = CollectorConfig { until: Time::from_ticks(200), ..collector(1).config };
        let mut all = Collector::new(CollectorConfig { wanted: u64::MAX, ..config });
        assert!(!all.is_done(), "none has started yet");
        let messages = [(0, 99), (1, 100), (0, 199), (0, 200)]
            .map(|(stream, at)| all.started(start(stream, 1, at), 0));
        assert_eq!(sources(&all), [(1, 1), (0, 1)]);
        all.ended(messages[1], Time::from_ticks(250), MessageEnd::Completed);
        assert!(!all.is_done());
        all.ended(messages[2], Time::from_ticks(251), MessageEnd::Completed);
        assert!(all.is_done());
    }

    /// A workload that stops by itself has no number of messages: its last start ends the measured time of the others.
    #[test]
    fn the_first_stream_may_end_before_the_wanted_number() {
        let mut all = collector(u64::MAX);
        let first = all.started(start(0, 1, 200), 0);
        let beside = [150, 200, 260].map(|at| all.started(start(1, 3, at), 0));
        (0..10).for_each(|host| all.set_ended(HostId(host), true));
        all.ended(first, Time::from_ticks(270), MessageEnd::Completed);
        assert!(!all.is_done());
        for id in &beside[..2] {
            assert!(!all.is_done());
            all.ended(*id, Time::from_ticks(280), MessageEnd::Completed);
        }
        assert!(all.is_done());
        assert_eq!(sources(&all).len(), 3);
    }

    /// Collectors that each have some of the hosts measure the same messages as one for all.
    #[test]
    fn collectors_of_a_part_of_the_hosts_are_combined() {
        let starts: Vec<_> = (0..60).map(|n| (n % 10, 100 + u64::from(n / 7))).collect();
        let end = |n: u64| Time::from_ticks(200 + n * 7 % 50);
        let mut all = collector(33);
        let mut parts = [0, 1, 2].map(|_| Collector::share(collector(33).config));
        for (n, &(src, at)) in (0..).zip(&starts) {
            let id = all.started(start(0, src, at), n);
            let part = &mut parts[src as usize % 3];
            let in_part = part.started(start(0, src, at), n);
            if n % 4 != 0 {
                all.ended(id, end(n), MessageEnd::Completed);
                part.ended(in_part, end(n), MessageEnd::Completed);
            }
            all.stored(Time::from_ticks(150), 0, HostId(src), 5);
            part.stored(Time::from_ticks(150), 0, HostId(src), 5);
        }
        all.passed(Time::from_ticks(300));
        let mut positions: Vec<_> =
            parts.iter().flat_map(|part| part.positions(Time::from_ticks(299))).collect();
        let limit = limit_of(&mut positions, 33).unwrap();
        parts.iter_mut().for_each(|part| part.set_limit(limit));
        let under_way: u64 = parts.iter().map(Collector::under_way).sum();
        assert_eq!((under_way, under_way > 0), (all.under_way(), true));
        let [mut combined, second, third] = parts;
        combined.absorb(second);
        combined.absorb(third);
        let ideal = |_, _, _, _, _| Span::from_ticks(1);
        assert_eq!(combined.records(ideal), all.records(ideal));
        assert_eq!((combined.last_end(), combined.delivered()), (all.last_end(), all.delivered()));
    }

    #[test]
    fn an_end_makes_known_that_no_start_is_missing() {
        let mut all = collector(1);
        let messages = [3, 1].map(|src| all.started(start(0, src, 100), 0));
        all.ended(messages[0], Time::from_ticks(101), MessageEnd::Completed);
        assert!(!all.is_done());
        all.ended(messages[1], Time::from_ticks(102), MessageEnd::Completed);
        assert!(all.is_done());
        assert_eq!((sources(&all), all.last_end()), (vec![(0, 1)], Some(Time::from_ticks(102))));
    }
}
