//! Puts together what hosts say of messages: which are measured, when all have ended, what became of them.

use std::collections::BTreeMap;

use rackweave_core::{HostId, Span, Time};
use rackweave_sim::Fabric;
use rackweave_sim::result::{MessageRecord, Outcome};

use super::protocol::{Reason, Records};
use crate::scenario::PointSpec;

/// Host, transport of it, and the message's id there.
type Key = (u32, u8, u64);

/// A message that some host has started.
#[derive(Clone, Copy, Debug)]
struct Message {
    stream: u16,
    dst: u32,
    bytes: u64,
    start: u64,
    /// Its sender knows that it is there.
    sent: Option<u64>,
}

/// How a measured message ended.
#[derive(Clone, Copy, Debug)]
struct Ending {
    key: Key,
    message: Message,
    at: u64,
    failed: Option<Reason>,
}

/// Bytes that arrived.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    at: u64,
    stream: u16,
    src: u32,
    bytes: u64,
}

/// All messages of a run.
#[derive(Debug)]
pub(super) struct Gathering<'a> {
    point: &'a PointSpec,
    /// How many messages of the first stream are measured.
    wanted: u64,
    warmup: u64,
    open: BTreeMap<Key, Message>,
    /// Arrivals of messages whose start nobody has told of yet.
    early: BTreeMap<Key, u64>,
    endings: Vec<Ending>,
    deliveries: Vec<Delivery>,
    /// Messages of the first stream that have started after the warm-up, and those of them that have ended.
    started: u64,
    ended: u64,
    /// By host: all up to this time is told, and whether it is idle.
    told: Vec<(u64, bool)>,
    /// The last measured message: (start, host, id).
    last: Option<(u64, u32, u64)>,
}

impl<'a> Gathering<'a> {
    pub(super) fn new(point: &'a PointSpec, total: Option<u64>) -> Self {
        let measure = &point.config.measure;
        let hosts = point.config.fabric.topology.hosts() as usize;
        Self {
            point,
            wanted: measure.messages.min(total.unwrap_or(u64::MAX)),
            warmup: measure.warmup.0,
            open: BTreeMap::new(),
            early: BTreeMap::new(),
            endings: Vec::new(),
            deliveries: Vec::new(),
            started: 0,
            ended: 0,
            told: vec![(0, false); hosts],
            last: None,
        }
    }

    /// Messages that are wanted (`u64::MAX`: unknown), and how many of them have ended.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.wanted, self.ended.min(self.wanted))
    }

    /// What a host says.
    pub(super) fn add(&mut self, host: u32, records: &Records) {
        for new in &records.started {
            let key = (host, new.door, new.id);
            let message = Message {
                stream: new.stream,
                dst: new.dst,
                bytes: new.bytes,
                start: new.at,
                sent: None,
            };
            self.started += u64::from(new.stream == 0 && new.at >= self.warmup);
            self.open.insert(key, message);
            if let Some(at) = self.early.remove(&key) {
                self.end(key, at, None);
            }
        }
        for end in &records.ended {
            let key = (host, end.door, end.id);
            match end.failed {
                None if self.is_one_way(key) => {
                    if let Some(message) = self.open.get_mut(&key) {
                        message.sent = Some(end.at);
                    }
                }
                failed => self.end(key, end.at, failed),
            }
        }
        for arrival in &records.arrived {
            let key = (arrival.peer, arrival.door, arrival.id);
            if self.open.contains_key(&key) {
                self.end(key, arrival.at, None);
            } else if arrival.at > 0 {
                self.early.insert(key, arrival.at);
            }
        }
        if let Some(told) = self.told.get_mut(host as usize) {
            *told = (records.until, records.idle);
        }
        self.find_last();
    }

    fn is_one_way(&self, key: Key) -> bool {
        self.open.get(&key).is_some_and(|message| self.response(*message).is_none())
    }

    /// The length of the answer to a message.
    fn response(&self, message: Message) -> Option<u64> {
        let stream = &self.point.config.streams[usize::from(message.stream)];
        stream.workload.exchange.response_bytes(message.bytes)
    }

    fn end(&mut self, key: Key, at: u64, failed: Option<Reason>) {
        let Some(message) = self.open.remove(&key) else { return };
        if failed.is_none() {
            let bytes = message.bytes + self.response(message).unwrap_or(0);
            self.deliveries.push(Delivery { at, stream: message.stream, src: key.0, bytes });
        }
        let ending = Ending { key, message, at, failed };
        if self.may_be_measured(key, message) {
            self.ended += u64::from(message.stream == 0);
            self.endings.push(ending);
        }
    }

    fn may_be_measured(&self, key: Key, message: Message) -> bool {
        message.start >= self.warmup
            && self.last.is_none_or(|last| match message.stream {
                0 => (message.start, key.0, key.2) <= last,
                _ => message.start <= last.0,
            })
    }

    /// Once all wanted messages have started: which is the last of them.
    fn find_last(&mut self) {
        if self.last.is_some() || self.started < self.wanted {
            return;
        }
        // Nobody can come with an earlier one.
        let horizon = self.told.iter().map(|(until, _)| *until).min().unwrap_or(0);
        let open = self.open.iter().map(|(key, message)| (*key, *message));
        let ended = self.endings.iter().map(|ending| (ending.key, ending.message));
        let mut starts: Vec<(u64, u32, u64)> = open
            .chain(ended)
            .filter(|(_, message)| message.stream == 0)
            .filter(|(_, message)| (self.warmup..=horizon).contains(&message.start))
            .map(|(key, message)| (message.start, key.0, key.2))
            .collect();
        let place = self.wanted.saturating_sub(1) as usize;
        if place >= starts.len() {
            return;
        }
        self.last = Some(*starts.select_nth_unstable(place).1);
        let endings = std::mem::take(&mut self.endings);
        self.endings = endings
            .into_iter()
            .filter(|ending| self.may_be_measured(ending.key, ending.message))
            .collect();
        let of_first = self.endings.iter().filter(|ending| ending.message.stream == 0);
        self.ended = of_first.count() as u64;
    }

    /// All that was to be measured has ended.
    pub(super) fn is_done(&self) -> bool {
        let all_started = self.last.is_some() || self.told.iter().all(|(_, idle)| *idle);
        all_started
            && !self
                .open
                .iter()
                .any(|(key, message)| message.stream == 0 && self.may_be_measured(*key, *message))
    }

    /// A host has lost all it knew.
    pub(super) fn crashed(&mut self, host: u32, at: u64) {
        let lost: Vec<Key> = self.open.keys().filter(|key| key.0 == host).copied().collect();
        for key in lost {
            self.end(key, at, Some(Reason::HostCrashed));
        }
        // What arrived there, and the host could not tell any more, its senders know.
        let told = self.open.iter().filter(|(_, message)| message.dst == host);
        let told: Vec<(Key, u64)> =
            told.filter_map(|(key, message)| Some((*key, message.sent?))).collect();
        for (key, at) in told {
            self.end(key, at, None);
        }
        if let Some(told) = self.told.get_mut(host as usize) {
            *told = (u64::MAX, told.1);
        }
    }

    /// A host that was dead begins to tell again.
    pub(super) fn revived(&mut self, host: u32, at: u64) {
        if let Some(told) = self.told.get_mut(host as usize) {
            *told = (at, false);
        }
    }

    /// The measured messages, in the order of their start.
    pub(super) fn messages(&self, fabric: &Fabric) -> Vec<MessageRecord> {
        let open = self.open.iter().map(|(key, message)| {
            // The receiver has told nothing of it (any more), but its sender knows.
            let (at, done) = message.sent.map_or((0, false), |at| (at, true));
            (Ending { key: *key, message: *message, at, failed: None }, done)
        });
        let ended = self.endings.iter().map(|ending| (*ending, true));
        let mut all: Vec<(Ending, bool)> = open
            .chain(ended)
            .filter(|(ending, _)| self.may_be_measured(ending.key, ending.message))
            .collect();
        all.sort_by_key(|(ending, _)| (ending.message.start, ending.key));
        all.iter().map(|(ending, done)| self.record(fabric, ending, *done)).collect()
    }

    fn record(&self, fabric: &Fabric, ending: &Ending, done: bool) -> MessageRecord {
        let Ending { key, message, at, failed } = *ending;
        let (src, dst) = (HostId(key.0), HostId(message.dst));
        let stream = &self.point.config.streams[usize::from(message.stream)];
        let framing = stream.transport.framing();
        let there = fabric.ideal(src, dst, message.bytes, framing);
        let back = self.response(message);
        let back = back.map_or(Span::ZERO, |bytes| fabric.ideal(dst, src, bytes, framing));
        MessageRecord {
            stream: message.stream,
            src,
            dst,
            bytes: message.bytes,
            start: Time(message.start),
            ideal: there + back,
            outcome: match (done, failed) {
                (false, _) => Outcome::Unfinished,
                (true, None) => Outcome::Completed(Time(at.max(message.start))),
                (true, Some(reason)) => Outcome::Failed(reason.into()),
            },
        }
    }

    /// When the last measured message ended, if any did.
    pub(super) fn last_end(&self) -> Option<u64> {
        self.endings.iter().map(|ending| ending.at).max()
    }

    /// Payload bytes of the messages (and answers) that were completed after the warm-up and up to a time: by stream,
    /// and those of the first stream by host. Unlike in the simulator, parts of messages do not count.
    pub(super) fn delivered(&self, until: u64) -> (Vec<u64>, Vec<u64>) {
        let mut by_stream = vec![0; self.point.config.streams.len()];
        let mut by_host = vec![0; self.told.len()];
        let counts = |delivery: &&Delivery| (self.warmup..=until).contains(&delivery.at);
        for delivery in self.deliveries.iter().filter(counts) {
            by_stream[usize::from(delivery.stream)] += delivery.bytes;
            if delivery.stream == 0 {
                by_host[delivery.src as usize] += delivery.bytes;
            }
        }
        (by_stream, by_host)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rackweave_core::FailReason;

    use super::*;
    use crate::scenario::Scenario;
    use crate::testbed::protocol::{Arrived, Ended, Started};

    fn point(exchange: &str) -> PointSpec {
        let text = format!(
            "fabric = {{ topology = 'single-switch', hosts = 3 }}
             transport.name = 'homa'
             workload = {{ arrivals = 'poisson', load = 0.5, sizes = '1 KB', exchange = '{exchange}' }}
             measure = {{ warmup = '100 ps', messages = 3 }}"
        );
        Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap().points.remove(0)
    }

    fn start(id: u64, at: u64) -> Started {
        Started { id, door: 0, stream: 0, dst: 2, bytes: 1000, at }
    }

    fn end(id: u64, at: u64, failed: Option<Reason>) -> Ended {
        Ended { id, door: 0, at, failed }
    }

    #[test]
    fn the_first_messages_in_order_of_start_are_measured_and_awaited() {
        let point = point("rpc");
        let mut all = Gathering::new(&point, None);
        let records = Records {
            until: 400,
            started: vec![start(2, 50), start(4, 150), start(6, 350)],
            ended: vec![end(4, 180, None), end(6, 390, None)],
            ..Records::default()
        };
        all.add(0, &records);
        let started = vec![start(2, 120), start(4, 300)];
        all.add(1, &Records { until: 250, started, ..Records::default() });
        // Host 2 has said nothing: it may have started something at 110.
        assert!(!all.is_done());
        all.add(2, &Records { until: 500, ..Records::default() });
        assert!(!all.is_done(), "host 1 may still come with an earlier one than 300");
        let ended = vec![end(2, 420, Some(Reason::PeerSilent))];
        all.add(1, &Records { until: 500, ended, ..Records::default() });
        assert!(!all.is_done(), "the one of host 1 at 300 is under way");
        all.add(1, &Records { until: 600, ended: vec![end(4, 550, None)], ..Records::default() });
        assert!(all.is_done());
        let fabric = Fabric::new(&point.config.fabric).unwrap();
        let messages = all.messages(&fabric);
        let told: Vec<_> = messages.iter().map(|m| (m.src.0, m.start.0, m.outcome)).collect();
        let expected = [
            (1, 120, Outcome::Failed(FailReason::PeerSilent)),
            (0, 150, Outcome::Completed(Time(180))),
            (1, 300, Outcome::Completed(Time(550))),
        ];
        assert_eq!(told, expected);
        assert_eq!(all.last_end(), Some(550));
        assert_eq!(all.delivered(400).0, [4000], "two echoes: that at 550 is too late");
        assert_eq!(all.delivered(600).1, [4000, 2000, 0]);
    }

    #[test]
    fn one_way_messages_end_where_they_arrive() {
        let point = point("one-way");
        let mut all = Gathering::new(&point, Some(2));
        let arrived = |id, at| Arrived { id, door: 0, peer: 0, at };
        all.add(2, &Records { until: 400, arrived: vec![arrived(4, 170)], ..Records::default() });
        let records = Records {
            until: 400,
            started: vec![start(4, 150), start(6, 160)],
            ended: vec![end(4, 200, None), end(6, 210, None)],
            ..Records::default()
        };
        all.add(0, &records);
        all.add(1, &Records { until: 400, ..Records::default() });
        assert!(!all.is_done());
        all.crashed(2, 300);
        assert!(all.is_done(), "its sender knew that the second was there");
        let fabric = Fabric::new(&point.config.fabric).unwrap();
        let told: Vec<_> = all.messages(&fabric).iter().map(|m| m.outcome).collect();
        assert_eq!(told, [Outcome::Completed(Time(170)), Outcome::Completed(Time(210))]);
    }
}
