//! Combines the hosts' reports on messages for [`Collector`], which the simulator uses too. Reports come in batches,
//! host by host.

use std::collections::BTreeMap;

use rackweave_core::{HostId, MessageId, Span, Time};
use rackweave_lab::scenario::PointSpec;
use rackweave_sim::Fabric;
use rackweave_sim::result::MessageRecord;
use rackweave_workload::Exchange;
use rackweave_workload::app::{Collector, CollectorConfig, MessageEnd, MessageStart, RecordId};

use super::protocol::{Arrived, Ended, Records, Started};

/// The key of a message: the host that started it, and that host's number for it.
type Key = (u32, u64);

/// The name of a message in a transport: the host that started the exchange, the endpoint, and the request's id.
type WireId = (u32, u8, u64);

/// How a receiver names a message of a host: by its id in an endpoint, or, on a channel, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Wire(WireId),
    Key(Key),
}

/// A message that is not finished.
#[derive(Clone, Copy, Debug)]
struct Message {
    record: RecordId,
    wire: Option<WireId>,
    stream: u16,
    dst: u32,
    bytes: u64,
    /// The bytes of partial arrivals that have been counted: of the request, and of the response.
    counted: [u64; 2],
    /// The time at which its sender learned that it is complete.
    sent: Option<Time>,
    /// Whether it has ended. It is kept until its receiver has reported its bytes.
    has_ended: bool,
}

/// The arrival of bytes.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    at: Time,
    stream: u16,
    src: u32,
    bytes: u64,
}

/// The reports on all messages of a run.
#[derive(Debug)]
pub(super) struct ReportCollector<'a> {
    point: &'a PointSpec,
    collector: Collector,
    messages: BTreeMap<Key, Message>,
    by_wire: BTreeMap<WireId, u64>,
    /// Arrivals of messages whose start is not reported yet.
    early: BTreeMap<Name, Vec<(u32, Arrived)>>,
    deliveries: Vec<Delivery>,
    /// The order number of the next message, by host.
    next_order: Vec<u64>,
}

impl<'a> ReportCollector<'a> {
    pub(super) fn new(point: &'a PointSpec, total: Option<u64>) -> Self {
        let measure = &point.config.measure;
        let hosts = point.config.fabric.topology.hosts();
        let streams = point.config.streams.iter();
        let collector = Collector::new(CollectorConfig {
            hosts,
            exchanges: streams.map(|stream| stream.workload.exchange).collect(),
            wanted: measure.messages.min(total.unwrap_or(u64::MAX)),
            warmup: Time::ZERO + measure.warmup,
            until: measure.until(),
            in_order: false,
        });
        Self {
            point,
            collector,
            messages: BTreeMap::new(),
            by_wire: BTreeMap::new(),
            early: BTreeMap::new(),
            deliveries: Vec::new(),
            // Numbers compare by host first: of messages that start at one time, those of the first host come first.
            next_order: (0..u64::from(hosts)).map(|host| host << 40).collect(),
        }
    }

    /// Returns the number of messages to measure (`u64::MAX` if unknown), and how many of them have ended.
    pub(super) fn progress(&self) -> (u64, u64) {
        self.collector.progress()
    }

    /// Adds a host's report.
    pub(super) fn add(&mut self, host: u32, records: &Records) {
        for started in &records.started {
            self.started(host, started);
        }
        for arrived in &records.arrived {
            self.arrived(host, arrived);
        }
        for ended in &records.ended {
            self.ended(host, ended);
        }
        self.collector.reported(HostId(host), Time::from_ticks(records.until), records.idle);
    }

    fn exchange(&self, stream: u16) -> Exchange {
        self.point.config.streams[usize::from(stream)].workload.exchange
    }

    fn started(&mut self, host: u32, started: &Started) {
        let &Started { key, wire, stream, dst, bytes, at } = started;
        let Some(order) = self.next_order.get_mut(host as usize) else { return };
        *order += 1;
        let (src, at) = (HostId(host), Time::from_ticks(at));
        let start = MessageStart { stream, src, dst: HostId(dst), bytes, at };
        let record = self.collector.started(start, *order);
        let wire = wire.map(|(endpoint, id)| (host, endpoint, id));
        let (counted, sent, has_ended) = ([0; 2], None, false);
        let message = Message { record, wire, stream, dst, bytes, counted, sent, has_ended };
        self.messages.insert((host, key), message);
        self.by_wire.extend(wire.map(|wire| (wire, key)));
        for name in [Some(Name::Key((host, key))), wire.map(Name::Wire)].into_iter().flatten() {
            for (receiver, arrived) in self.early.remove(&name).unwrap_or_default() {
                self.arrived(receiver, &arrived);
            }
        }
    }

    fn arrived(&mut self, host: u32, arrived: &Arrived) {
        let id = MessageId(arrived.id);
        // A response arrives at the host that started the exchange.
        let starter = if id.is_response() { host } else { arrived.peer };
        let name = match arrived.key {
            Some(key) => Name::Key((starter, key)),
            None => Name::Wire((starter, arrived.endpoint, id.0 & !1)),
        };
        let key = match name {
            Name::Key((_, key)) => Some(key),
            Name::Wire(wire) => self.by_wire.get(&wire).copied(),
        };
        let message = key.and_then(|key| Some((key, self.messages.get_mut(&(starter, key))?)));
        let Some((key, message)) = message else {
            // Greetings arrive before the load starts.
            if arrived.at > 0 && !id.is_response() {
                self.early.entry(name).or_default().push((host, *arrived));
            }
            return;
        };
        let (at, stream) = (Time::from_ticks(arrived.at), message.stream);
        let counted = &mut message.counted[usize::from(id.is_response())];
        // Responses are only reported while they are partial: their end is that of the exchange.
        let bytes =
            if arrived.whole { message.bytes.saturating_sub(*counted) } else { arrived.bytes };
        *counted += bytes;
        let has_ended = message.has_ended;
        self.deliveries.push(Delivery { at, stream, src: starter, bytes });
        if arrived.whole && self.exchange(stream) == Exchange::OneWay {
            self.end((starter, key), at, MessageEnd::Completed);
        }
        if arrived.whole && (has_ended || self.exchange(stream) == Exchange::OneWay) {
            self.forget((starter, key));
        }
    }

    fn ended(&mut self, host: u32, ended: &Ended) {
        let (key, at) = ((host, ended.key), Time::from_ticks(ended.at));
        let Some(&message) = self.messages.get(&key) else { return };
        if let Some(reason) = ended.failed {
            self.end(key, at, MessageEnd::Failed(reason));
            if message.wire.is_none() {
                self.forget(key);
            }
            return;
        }
        match self.exchange(message.stream).response_bytes(message.bytes) {
            // A one-way message ends where it arrives.
            None => {
                self.collector.sent(message.record, at);
                if let Some(message) = self.messages.get_mut(&key) {
                    message.sent = Some(at);
                }
            }
            Some(response) => {
                let bytes = response.saturating_sub(message.counted[1]);
                let (stream, src) = (message.stream, host);
                self.deliveries.push(Delivery { at, stream, src, bytes });
                self.end(key, at, MessageEnd::Completed);
                // The server may report later than the client.
                if message.counted[0] >= message.bytes {
                    self.forget(key);
                }
            }
        }
    }

    fn end(&mut self, key: Key, at: Time, end: MessageEnd) {
        let Some(message) = self.messages.get_mut(&key) else { return };
        message.has_ended = true;
        self.collector.ended(message.record, at, end);
    }

    fn forget(&mut self, key: Key) {
        if let Some(wire) = self.messages.remove(&key).and_then(|message| message.wire) {
            self.by_wire.remove(&wire);
        }
    }

    /// Returns whether all messages to measure have ended.
    pub(super) fn is_done(&mut self) -> bool {
        self.collector.is_done()
    }

    /// Returns the time up to which a host has reported everything.
    pub(super) fn reported_until(&self, host: u32) -> u64 {
        self.collector.reported_until(HostId(host)).ticks()
    }

    /// Records that a host crashed and lost its state.
    pub(super) fn crashed(&mut self, host: u32, at: u64) {
        self.collector.host_crashed(HostId(host), Time::from_ticks(at));
        // Messages whose arrival the crashed host did not report are known from their senders.
        let lost = self.messages.iter().filter(|((src, _), message)| {
            *src == host || message.dst == host && message.sent.is_some()
        });
        let lost: Vec<(Key, Message)> = lost.map(|(key, message)| (*key, *message)).collect();
        for (key, message) in lost {
            if let Some(at) = message.sent.filter(|_| key.0 != host) {
                let bytes = message.bytes - message.counted[0].min(message.bytes);
                let (stream, src) = (message.stream, key.0);
                self.deliveries.push(Delivery { at, stream, src, bytes });
            }
            self.forget(key);
        }
    }

    /// Records that a crashed host reports again.
    pub(super) fn revived(&mut self, host: u32, at: u64) {
        self.collector.reported(HostId(host), Time::from_ticks(at), false);
    }

    /// Returns the measured messages, in the order of their start.
    pub(super) fn messages(&self, fabric: &Fabric) -> Vec<MessageRecord> {
        let streams = self.point.config.streams.iter();
        let framing: Vec<_> = streams.map(|stream| stream.transport.framing()).collect();
        self.collector.records(|stream, src, dst, bytes, _| -> Span {
            fabric.ideal(src, dst, bytes, framing[usize::from(stream)])
        })
    }

    /// Returns the time at which the last measured message ended, if any did.
    pub(super) fn last_end(&self) -> Option<u64> {
        self.collector.last_end().map(|at| at.ticks())
    }

    /// Returns the payload bytes that receivers stored in the measured time, which ends at `until`: by stream, and for
    /// the first stream by the host that started the message.
    pub(super) fn delivered(&mut self, until: u64) -> (Vec<u64>, Vec<u64>) {
        for delivery in std::mem::take(&mut self.deliveries) {
            let Delivery { at, stream, src, bytes } = delivery;
            if at.ticks() <= until {
                self.collector.stored(at, stream, HostId(src), bytes);
            }
        }
        let delivered = self.collector.delivered();
        let by_stream = delivered.iter().map(|hosts| hosts.iter().sum()).collect();
        (by_stream, delivered.first().cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rackweave_core::FailReason;
    use rackweave_sim::result::Outcome;

    use super::*;
    use rackweave_lab::scenario::Scenario;

    fn point(exchange: &str) -> PointSpec {
        let text = format!(
            "fabric = {{ topology = 'single-switch', hosts = 3 }}
             transport.name = 'homa'
             workload = {{ arrivals = 'poisson', load = 0.5, sizes = '1 KB', exchange = '{exchange}' }}
             measure = {{ warmup = '1 ns', messages = 3 }}"
        );
        Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap().points.remove(0)
    }

    fn start(id: u64, at: u64) -> Started {
        Started { key: id + 1000, wire: Some((0, id)), stream: 0, dst: 2, bytes: 1000, at }
    }

    fn end(id: u64, at: u64, failed: Option<FailReason>) -> Ended {
        Ended { key: id + 1000, at, failed }
    }

    fn arrived(peer: u32, id: u64, at: u64) -> Arrived {
        Arrived { id, key: None, endpoint: 0, peer, bytes: 1000, whole: true, at }
    }

    #[test]
    fn the_first_messages_in_order_of_start_are_measured_and_awaited() {
        let point = point("rpc");
        let mut all = ReportCollector::new(&point, None);
        let records = Records {
            until: 400,
            started: vec![start(2, 50), start(4, 150), start(6, 350)],
            ended: vec![end(4, 180, None), end(6, 390, None)],
            ..Records::default()
        };
        all.add(0, &records);
        let started = vec![start(2, 120), start(4, 300)];
        all.add(1, &Records { until: 250, started, ..Records::default() });
        // Host 2 has not reported yet, and may have started a message at 110.
        assert!(!all.is_done());
        let requests = vec![arrived(0, 4, 160), arrived(0, 6, 360), arrived(1, 4, 500)];
        all.add(2, &Records { until: 500, arrived: requests, ..Records::default() });
        assert!(!all.is_done(), "host 1 may still come with an earlier one than 300");
        let ended = vec![end(2, 420, Some(FailReason::PeerSilent))];
        all.add(1, &Records { until: 500, ended, ..Records::default() });
        assert!(!all.is_done(), "the one of host 1 at 300 is under way");
        all.add(1, &Records { until: 600, ended: vec![end(4, 550, None)], ..Records::default() });
        assert!(all.is_done());
        let fabric = Fabric::new(&point.config.fabric).unwrap();
        let messages = all.messages(&fabric);
        let outcomes: Vec<_> =
            messages.iter().map(|m| (m.src.0, m.start.ticks(), m.outcome)).collect();
        let expected = [
            (1, 120, Outcome::Failed(FailReason::PeerSilent)),
            (0, 150, Outcome::Completed(Time::from_ticks(180))),
            (1, 300, Outcome::Completed(Time::from_ticks(550))),
        ];
        assert_eq!(outcomes, expected);
        assert_eq!(all.last_end(), Some(550));
        let (by_stream, by_host) = all.delivered(520);
        assert_eq!(
            by_stream,
            [5000],
            "two echoes and a request, whose response at 550 is too late"
        );
        assert_eq!(by_host, [4000, 1000, 0]);
    }

    #[test]
    fn one_way_messages_end_where_they_arrive() {
        let point = point("one-way");
        let mut all = ReportCollector::new(&point, Some(2));
        let arrived = vec![arrived(0, 4, 170)];
        all.add(2, &Records { until: 400, arrived, ..Records::default() });
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
        assert!(all.is_done(), "its sender knew that the second had arrived");
        let fabric = Fabric::new(&point.config.fabric).unwrap();
        let outcomes: Vec<_> = all.messages(&fabric).iter().map(|m| m.outcome).collect();
        assert_eq!(
            outcomes,
            [Outcome::Completed(Time::from_ticks(170)), Outcome::Completed(Time::from_ticks(210))]
        );
        assert_eq!(all.delivered(400).0, [2000]);
    }

    #[test]
    fn bytes_of_messages_in_part_count_as_they_arrive() {
        let point = point("one-way");
        let mut all = ReportCollector::new(&point, Some(2));
        let part = |bytes, at| Arrived { bytes, whole: false, ..arrived(0, 4, at) };
        let before = vec![part(300, 90), part(200, 120)];
        all.add(2, &Records { until: 130, arrived: before, ..Records::default() });
        let started = vec![start(4, 60), start(6, 160)];
        all.add(0, &Records { until: 400, started, ..Records::default() });
        let (whole, other) = (arrived(0, 4, 170), Arrived { id: 6, ..part(100, 180) });
        all.add(2, &Records { until: 400, arrived: vec![whole, other], ..Records::default() });
        assert_eq!(all.delivered(400).1, [800, 0, 0], "300 came in the warm-up");
    }

    #[test]
    fn messages_on_a_stream_are_known_by_their_keys() {
        let point = point("one-way");
        let mut all = ReportCollector::new(&point, Some(2));
        let on_stream = |key, at, bytes, whole| Arrived {
            key: Some(key),
            bytes,
            whole,
            // All of them have the id of the stream.
            ..arrived(0, 8, at)
        };
        let early = vec![on_stream(1002, 120, 600, false), on_stream(1002, 170, 0, true)];
        all.add(2, &Records { until: 400, arrived: early, ..Records::default() });
        let started = [(2, 110), (4, 160)].map(|(id, at)| Started { wire: None, ..start(id, at) });
        all.add(0, &Records { until: 400, started: started.into(), ..Records::default() });
        all.add(1, &Records { until: 400, ..Records::default() });
        assert!(!all.is_done());
        let arrived = vec![on_stream(1004, 180, 0, true)];
        all.add(2, &Records { until: 500, arrived, ..Records::default() });
        assert!(all.is_done());
        let fabric = Fabric::new(&point.config.fabric).unwrap();
        let outcomes: Vec<_> = all.messages(&fabric).iter().map(|m| m.outcome).collect();
        assert_eq!(
            outcomes,
            [Outcome::Completed(Time::from_ticks(170)), Outcome::Completed(Time::from_ticks(180))]
        );
        assert_eq!(all.delivered(500).1, [2000, 0, 0]);
        assert!(all.early.is_empty() && all.messages.is_empty());
    }
}
