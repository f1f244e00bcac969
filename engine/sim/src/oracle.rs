//! A central scheduler in place of a transport and a network: shortest remaining processing time, with knowledge of all
//! messages at all hosts.
//!
//! At each start and each end of a message it goes through all messages, those with the least left to send first, and lets each of
//! them send whose sender and receiver are both free, at the full rate of its host's link; others wait. It is the "SRPT-Oracle"
//! of the study in `docs/sources.md#srpt-oracle`, and the "ideal" of pFabric (SIGCOMM 2013, section 5.1). No transport can know
//! this much, so that its slowdown shows how much any transport could still gain. It is not a proven bound: the best schedule of two
//! kinds of ports is not found by a greedy choice.
//!
//! Links between switches carry everything that hosts' links do. After its last byte has been sent, a message takes as long as on an
//! idle path, so that a message that never waits has a slowdown of 1. (Rackweave's choice. In the study the packet with
//! which a message is interrupted is cut in two, and the rest crosses the switches as a shorter packet, which takes
//! less time: [`Rules::cut_packets`].)

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::atomic::Ordering;

use rackweave_core::{Framing, HostId, Span, Time};
use rackweave_switch::Fabric;
use rackweave_workload::app::{Collector, CollectorConfig, MessageEnd, MessageStart, RecordId};
use rackweave_workload::{Arrival, Exchange, Generator, HostGenerator, Pattern};

use crate::build::{self, BuildError};
use crate::config::{MeasureConfig, RunConfig};
use crate::result::{Counters, End, LinkStats, RunResult};
use crate::world::{Control, Timeline};

/// A message or a response.
#[derive(Clone, Copy, Debug)]
struct Message {
    src: HostId,
    dst: HostId,
    bytes: u64,
    start: Time,
    record: Option<RecordId>,
    is_response: bool,
}

/// What happens at a known time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The last byte of a message arrives.
    Delivered,
    /// An application starts a message.
    Started,
}

/// How the scheduler deals with details in which schedulers differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    /// As the study's script (`docs/sources.md#srpt-oracle`): what follows an interruption is a train of packets of its own, whose first
    /// one is the rest of a packet. Between two starts or ends of messages at any hosts only whole bytes are sent, so that all messages are
    /// interrupted when less than half a byte fits between these. A message can then arrive earlier than on an idle path.
    pub cut_packets: bool,
}

/// The order in which messages are considered: by what is left, then by their start, and by their own number.
type Position = (Span, Time, u64, u32);

/// Runs the first stream of a configuration by the central scheduler.
///
/// # Errors
/// If the configuration cannot be run; see [`BuildError`].
pub fn run(config: &RunConfig, rules: Rules, control: &Control) -> Result<RunResult, BuildError> {
    let fabric = Fabric::new(&config.fabric)?;
    build::check(config, &fabric)?;
    let [stream] = &*config.streams else { return Err(BuildError::OnlyOneStream) };
    if stream.workload.streaming.is_some() || !stream.workload.application.is_instant() {
        return Err(BuildError::NoSuchExchange { stream: 0 });
    }
    if matches!(stream.workload.pattern, Pattern::Collective(_)) {
        return Err(BuildError::Collective);
    }
    let mut streams = build::streams(config, &[0], &fabric)?;
    let Some((_, _, generator)) = streams.pop() else { return Err(BuildError::NoStreams) };
    let framing = stream.transport.framing();
    let exchange = stream.workload.exchange;
    let mut oracle = Oracle::new(&fabric, framing, exchange, &generator, &config.measure);
    oracle.rules = rules;
    let end = oracle.run(control);
    Ok(oracle.report(end))
}

/// A run of the scheduler.
#[derive(Debug)]
struct Oracle<'a> {
    fabric: &'a Fabric,
    measure: &'a MeasureConfig,
    framing: Framing,
    exchange: Exchange,
    rules: Rules,
    generators: Vec<HostGenerator>,
    /// For each host, the messages that it has drawn and that have not ended.
    alive: Vec<u64>,
    is_stopped: bool,
    collector: Collector,
    timeline: Timeline,
    messages: Vec<Message>,
    free: Vec<u32>,
    /// The number of messages so far, which orders otherwise equal ones.
    serial: u64,
    now: Time,
    due: BinaryHeap<Reverse<(Time, Due, u64, u32)>>,
    /// Messages that have bytes to send and do not send.
    waiting: BTreeSet<Position>,
    /// Messages that send, with the end in place of what is left.
    running: BTreeSet<(Time, Time, u64, u32)>,
    /// For each message, when it began to send.
    since: Vec<Time>,
    /// For each host, the last round in which it became a sender and a receiver.
    sends: Vec<u64>,
    receives: Vec<u64>,
    round: u64,
    /// The last start or end of a message.
    changed_at: Time,
    /// When all messages that send were last interrupted ([`Rules::cut_packets`]).
    cut_at: Time,
    /// The time in which each link of a host was busy since the statistics of ports began, by the fabric's order of links.
    busy: Vec<Span>,
    events: u64,
}

impl<'a> Oracle<'a> {
    fn new(
        fabric: &'a Fabric,
        framing: Framing,
        exchange: Exchange,
        generator: &Generator,
        measure: &'a MeasureConfig,
    ) -> Self {
        let hosts = fabric.hosts();
        let wanted = measure.messages.min(generator.total().unwrap_or(u64::MAX));
        let collector = Collector::new(CollectorConfig {
            hosts,
            exchanges: vec![exchange],
            wanted,
            warmup: Time::ZERO + measure.warmup,
            until: measure.until(),
            in_order: true,
        });
        let mut oracle = Self {
            fabric,
            measure,
            framing,
            exchange,
            rules: Rules::default(),
            generators: (0..hosts).map(|host| generator.of_host(HostId(host))).collect(),
            alive: vec![0; hosts as usize],
            is_stopped: false,
            collector,
            timeline: Timeline::new(1),
            messages: Vec::new(),
            free: Vec::new(),
            serial: 0,
            now: Time::ZERO,
            due: BinaryHeap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            since: Vec::new(),
            sends: vec![0; hosts as usize],
            receives: vec![0; hosts as usize],
            round: 0,
            changed_at: Time::ZERO,
            cut_at: Time::ZERO,
            busy: vec![Span::ZERO; fabric.links().len()],
            events: 0,
        };
        for host in (0..hosts).map(HostId) {
            if oracle.generators[host.0 as usize].is_loop() {
                while oracle.draw(host) {}
            } else {
                oracle.draw(host);
            }
            oracle.note_end(host);
        }
        oracle
    }

    fn run(&mut self, control: &Control) -> End {
        let limit = Time::ZERO + self.measure.time_limit;
        control.wanted.store(self.collector.progress().0, Ordering::Relaxed);
        let end = loop {
            if self.collector.is_done() {
                break End::AllDone;
            }
            let sent = self.running.first().map(|(end, ..)| *end);
            let due = self.due.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = [sent, due].into_iter().flatten().min() else { break End::Stalled };
            if next > limit {
                self.now = limit;
                break End::TimeLimit;
            }
            self.now = next;
            self.step();
            self.events += 1;
            if self.events.is_multiple_of(1024) {
                self.publish(control);
                if let Some(end) = control.end() {
                    break end;
                }
            }
        };
        self.publish(control);
        end
    }

    fn publish(&self, control: &Control) {
        control.started.store(self.collector.started_messages(), Ordering::Relaxed);
        control.finished.store(self.collector.progress().1, Ordering::Relaxed);
        control.sim_time_ticks.store(self.now.ticks(), Ordering::Relaxed);
        control.events.store(self.events, Ordering::Relaxed);
    }

    /// Handles everything that happens at the present time.
    fn step(&mut self) {
        let mut has_changed = false;
        while let Some(&(end, start, serial, slot)) = self.running.first()
            && end <= self.now
        {
            self.running.pop_first();
            self.stop_sending(slot, end);
            let Message { src, dst, bytes, .. } = self.messages[slot as usize];
            let after = if self.rules.cut_packets {
                self.crossing_time(slot, end)
            } else {
                let ideal = self.fabric.ideal(src, dst, bytes, self.framing);
                ideal.saturating_sub(self.sending_time(src, dst, bytes))
            };
            debug_assert!(start <= end);
            self.due.push(Reverse((end + after, Due::Delivered, serial, slot)));
            has_changed = true;
        }
        while let Some(&Reverse((at, due, serial, slot))) = self.due.peek()
            && at <= self.now
        {
            self.due.pop();
            match due {
                Due::Started => has_changed |= self.start(serial, slot),
                Due::Delivered => self.deliver(slot),
            }
        }
        if has_changed {
            let half_a_byte = Span::from_ticks(self.fabric.host_rate().span_of(1).ticks() / 2);
            let since = self.now.since(self.changed_at);
            if since > Span::ZERO && since < half_a_byte {
                self.cut_at = self.now;
            }
            self.changed_at = self.now;
            self.schedule();
        }
    }

    /// The time from the end of a message's last train of packets, at its sender, to its arrival. The last packet is stored and
    /// forwarded at every switch behind the one before, and is the rest of a packet if it is the train's first one.
    fn crossing_time(&self, slot: u32, end: Time) -> Span {
        let Message { src, dst, bytes, .. } = self.messages[slot as usize];
        let began = self.since[slot as usize].max(self.cut_at);
        let train = end.since(began);
        let full = self.framing.packet_wire_bytes(self.framing.max_payload);
        let rest = bytes
            - (bytes.max(1) - 1) / u64::from(self.framing.max_payload)
                * u64::from(self.framing.max_payload);
        let path = self.fabric.path(src, dst);
        let links = self.fabric.links();
        let on_first = links[path[0] as usize].span_of(full).ticks();
        let last =
            links[path[0] as usize].span_of(self.framing.packet_wire_bytes(rest as u32)).min(train);
        let before = train.saturating_sub(last).ticks().min(on_first);
        // When the packet before the last one has crossed a link, and when the last one has, since the sender began the last one.
        let (mut previous, mut arrival) = (Span::ZERO, last);
        let mut delays = links[path[0] as usize].delay;
        for link in &path[1..] {
            let spec = &links[*link as usize];
            let on_link = spec.span_of(full).ticks();
            previous += Span::from_ticks(before * on_link / on_first);
            arrival = arrival.max(previous) + Span::from_ticks(last.ticks() * on_link / on_first);
            delays += spec.delay;
        }
        arrival.saturating_sub(last) + delays
    }

    /// Draws the next message of a host; false if there is none.
    fn draw(&mut self, host: HostId) -> bool {
        let Some(arrival) = self.generators[host.0 as usize].next_arrival() else { return false };
        self.add(host, arrival);
        true
    }

    fn add(&mut self, src: HostId, Arrival { at, dst, bytes }: Arrival) {
        self.alive[src.0 as usize] += 1;
        let start = at.max(self.now);
        let message = Message { src, dst, bytes, start, record: None, is_response: false };
        self.push(message);
    }

    /// Starts a message when it is due.
    fn push(&mut self, message: Message) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.messages.push(message);
            self.since.push(Time::ZERO);
            self.messages.len() as u32 - 1
        });
        self.messages[slot as usize] = message;
        self.serial += 1;
        self.due.push(Reverse((message.start, Due::Started, self.serial, slot)));
    }

    /// Starts a message; false if its application has stopped.
    fn start(&mut self, serial: u64, slot: u32) -> bool {
        let Message { src, dst, bytes, start: at, is_response, .. } = self.messages[slot as usize];
        if !is_response {
            if self.is_stopped {
                self.end(slot, src);
                return false;
            }
            let start = MessageStart { stream: 0, src, dst, bytes, at };
            self.messages[slot as usize].record = Some(self.collector.started(start, serial));
            if !self.generators[src.0 as usize].is_loop() {
                self.draw(src);
            }
            let (wanted, _) = self.collector.progress();
            let have_started =
                self.collector.have_started() || self.collector.started_messages() == wanted;
            self.is_stopped |= self.measure.stop_load && have_started;
        }
        self.waiting.insert((self.sending_time(src, dst, bytes), at, serial, slot));
        true
    }

    /// Handles the arrival of the last byte of a message.
    fn deliver(&mut self, slot: u32) {
        let message = self.messages[slot as usize];
        let client = if message.is_response { message.dst } else { message.src };
        self.collector.stored(self.now, 0, client, message.bytes);
        self.timeline.add(self.now, 0, message.bytes);
        let response = self.exchange.response_bytes(message.bytes);
        if let (false, Some(bytes)) = (message.is_response, response) {
            self.free.push(slot);
            let (src, dst, start) = (message.dst, message.src, self.now);
            return self.push(Message { src, dst, bytes, start, is_response: true, ..message });
        }
        if let Some(record) = message.record {
            self.collector.ended(record, self.now, MessageEnd::Completed);
        }
        if let Some(next) = self.generators[client.0 as usize].completed(self.now)
            && !self.is_stopped
        {
            self.add(client, next);
        }
        self.end(slot, client);
    }

    /// Forgets a message that a host has started.
    fn end(&mut self, slot: u32, client: HostId) {
        self.free.push(slot);
        self.alive[client.0 as usize] -= 1;
        self.note_end(client);
    }

    fn note_end(&mut self, host: HostId) {
        self.collector.set_ended(host, self.alive[host.0 as usize] == 0);
    }

    /// Decides which messages send from now on.
    fn schedule(&mut self) {
        self.round += 1;
        let hosts = self.sends.len();
        let (mut begin, mut stop) = (Vec::new(), Vec::new());
        let (mut senders, mut receivers) = (0, 0);
        let mut running = self.running.iter().peekable();
        let mut waiting = self.waiting.iter().peekable();
        loop {
            let (ports_taken, next) = (senders == hosts || receivers == hosts, waiting.peek());
            let from_waiting = match (running.peek(), next) {
                (None, _) if ports_taken => break,
                (None, None) => break,
                (None, Some(_)) => true,
                (Some(_), None) => false,
                (Some((end, start, serial, _)), Some((left, begun, number, _))) => {
                    (*left, *begun, *number) < (end.since(self.now), *start, *serial)
                }
            };
            let slot = if from_waiting {
                waiting.peek().map(|position| position.3)
            } else {
                running.peek().map(|position| position.3)
            };
            let Some(slot) = slot else { break };
            let Message { src, dst, .. } = self.messages[slot as usize];
            let sends = &mut self.sends[src.0 as usize];
            let receives = &mut self.receives[dst.0 as usize];
            let is_free = *sends != self.round && *receives != self.round;
            if is_free {
                (*sends, *receives) = (self.round, self.round);
                senders += 1;
                receivers += 1;
            }
            if from_waiting {
                let position = waiting.next();
                begin.extend(position.filter(|_| is_free));
            } else {
                let position = running.next();
                stop.extend(position.filter(|_| !is_free));
            }
        }
        for position @ (end, start, serial, slot) in stop {
            self.running.remove(&position);
            self.stop_sending(slot, self.now);
            self.waiting.insert((end.since(self.now), start, serial, slot));
        }
        for position @ (left, start, serial, slot) in begin {
            self.waiting.remove(&position);
            self.since[slot as usize] = self.now;
            self.running.insert((self.now + left, start, serial, slot));
        }
    }

    /// Adds the time in which a message has sent to that of its links.
    fn stop_sending(&mut self, slot: u32, until: Time) {
        let Message { src, dst, .. } = self.messages[slot as usize];
        let from = self.since[slot as usize].max(self.measured_from());
        let span = until.since(from.min(until));
        self.busy[src.0 as usize] += span;
        self.busy[self.fabric.downlink(dst) as usize] += span;
    }

    fn measured_from(&self) -> Time {
        Time::ZERO + self.measure.ports_from.unwrap_or(self.measure.warmup)
    }

    /// The time that a message occupies its sender and its receiver: at the slower of their links.
    fn sending_time(&self, src: HostId, dst: HostId, bytes: u64) -> Span {
        let links = self.fabric.links();
        let up = links[src.0 as usize].rate;
        let rate = up.min(links[self.fabric.downlink(dst) as usize].rate);
        rate.span_of(self.framing.message_wire_bytes(bytes))
    }

    fn report(&mut self, end: End) -> RunResult {
        let running: Vec<u32> = self.running.iter().map(|(.., slot)| *slot).collect();
        for slot in running {
            self.stop_sending(slot, self.now);
        }
        let since = (Time::ZERO + self.measure.warmup).min(self.now);
        let until = match (end, self.collector.last_end()) {
            (End::AllDone, last) => last.map_or(since, |at| at.max(since)),
            _ => self.now,
        };
        let seconds = self.now.since(self.measured_from().min(self.now)).as_secs_f64();
        let link = |(link, busy): (usize, &Span)| LinkStats {
            name: self.fabric.link_name(link as u32),
            utilisation: if seconds > 0.0 { busy.as_secs_f64() / seconds } else { 0.0 },
            mean_queue_bytes: 0.0,
            max_queue_bytes: 0,
            drops: 0,
            queue_bytes: 0,
            frames: 0,
            bytes: 0,
            pauses: 0,
            paused: 0.0,
        };
        let delivered = self.collector.delivered();
        RunResult {
            end,
            ended_at: self.now,
            measured: until.since(since),
            messages: self
                .collector
                .records(|_, src, dst, bytes, _| self.fabric.ideal(src, dst, bytes, self.framing)),
            ranks: Vec::new(),
            delivered_bytes: delivered.iter().map(|hosts| hosts.iter().sum()).collect(),
            delivered_by_sender: delivered.first().cloned().unwrap_or_default(),
            goodput: self.timeline.result(),
            round_trips: Vec::new(),
            recovery: Vec::new(),
            counters: Counters { events: self.events, ..Counters::default() },
            dropped_before: Some(0),
            refused: 0,
            mean_queue_bytes: 0.0,
            max_queue_bytes: 0,
            queue_series: Vec::new(),
            links: self.busy.iter().enumerate().map(link).collect(),
            traffic: Vec::new(),
            circuits: Vec::new(),
            capture_names: Vec::new(),
            capture: Vec::new(),
            waiting: Vec::new(),
            backlog: None,
            deadlock: Vec::new(),
            peak_packets: 0,
            verified_messages: 0,
        }
    }
}

#[cfg(test)]
mod tests {

    use proptest::prelude::*;
    use rackweave_core::Rate;
    use rackweave_transport::datagram;
    use rackweave_workload::{Pattern, SizeDist, Trace, TraceEntry};

    use super::*;
    use crate::config::{FabricConfig, SwitchConfig};
    use crate::result::Outcome;

    fn config(hosts: u32, pattern: Pattern) -> RunConfig {
        let fabric = FabricConfig::single_switch(hosts, Rate::from_gbps(10))
            .with_link_delay(Span::from_ns(100))
            .without_host_delays()
            .with_switch(SwitchConfig::default().without_marking());
        RunConfig::new(fabric).with_stream(datagram::Config::default(), pattern)
    }

    /// A trace of messages: when each starts in us, its sender, its receiver, and its length.
    fn trace(messages: &[(u64, u32, u32, u64)]) -> Pattern {
        let entry = |&(us, src, dst, bytes): &(u64, u32, u32, u64)| TraceEntry {
            at: Span::from_us(us),
            src: HostId(src),
            dst: HostId(dst),
            bytes,
        };
        Pattern::Trace(Trace::new(messages.iter().map(entry).collect()).unwrap())
    }

    fn ends(config: &RunConfig) -> Vec<(Time, Time)> {
        let result = run(config, Rules::default(), &Control::default()).unwrap();
        assert_eq!(result.end, End::AllDone);
        let end = |message: &crate::result::MessageRecord| match message.outcome {
            Outcome::Completed(at) => (message.start + message.ideal, at),
            other => panic!("{other:?}"),
        };
        result.messages.iter().map(end).collect()
    }

    #[test]
    fn a_message_on_idle_links_takes_its_ideal_time() {
        let config = config(3, trace(&[(5, 0, 1, 1), (100, 0, 1, 1472), (200, 1, 2, 1_000_000)]));
        for (ideal, at) in ends(&config) {
            assert_eq!(at, ideal);
        }
    }

    #[test]
    fn the_message_with_the_least_left_interrupts_longer_ones_at_both_ends() {
        // 1 MB from 0 to 1 takes about 837 us. 100 KB from 2 to 1 interrupt it as its receiver, and 10 KB from 0 to 3 as its sender.
        let config =
            config(4, trace(&[(0, 0, 1, 1_000_000), (100, 2, 1, 100_000), (400, 0, 3, 10_000)]));
        let ends = ends(&config);
        let sending = |bytes| {
            let framing = config.streams[0].transport.framing();
            Rate::from_gbps(10).span_of(framing.message_wire_bytes(bytes))
        };
        assert_eq!(ends[1].1, ends[1].0);
        assert_eq!(ends[2].1, ends[2].0);
        assert_eq!(ends[0].1, ends[0].0 + sending(100_000) + sending(10_000));
    }

    #[test]
    fn what_has_little_left_is_not_interrupted_by_what_was_shorter_at_its_start() {
        // After 790 us of 837 there are 47 us left, and 100 KB take 84 us.
        let config = config(3, trace(&[(0, 0, 1, 1_000_000), (790, 2, 1, 100_000)]));
        let ends = ends(&config);
        assert_eq!(ends[0].1, ends[0].0);
        assert!(ends[1].1 > ends[1].0);
    }

    /// A message that is interrupted for less than half a byte crosses the second link with what is left of its packet.
    #[test]
    fn cut_packets_cross_switches_as_shorter_ones() {
        let entry = |ns: u64, ticks: u64, src, dst, bytes| TraceEntry {
            at: Span::from_ns(ns) + Span::from_ticks(ticks),
            src: HostId(src),
            dst: HostId(dst),
            bytes,
        };
        // The first message takes 1,211 ns of each link. Others begin 1,000 ns later.
        let arrival = |ticks, rules| {
            let entries = vec![
                entry(0, 0, 0, 1, 1_448),
                entry(1_000, 0, 2, 3, 1_000),
                entry(1_000, ticks, 4, 5, 1_000),
            ];
            let config = config(6, Pattern::Trace(Trace::new(entries).unwrap()));
            let result = run(&config, rules, &Control::default()).unwrap();
            let first = &result.messages[0];
            assert_eq!(first.bytes, 1_448);
            let Outcome::Completed(at) = first.outcome else { panic!("{first:?}") };
            (first.ideal, at.since(first.start))
        };
        let (ideal, uncut) = arrival(20, Rules::default());
        assert_eq!(uncut, ideal);
        let rules = Rules { cut_packets: true };
        // A byte takes 80 ticks: 40 and more send one.
        assert_eq!(arrival(40, rules).1, ideal);
        // 1,000.2 ns of the packet have been sent before the cut, and need not be sent again on the second link.
        assert_eq!(arrival(20, rules).1, ideal - Span::from_ns(1_000) - Span::from_ticks(20));
    }

    #[test]
    fn an_incast_uses_all_of_its_receivers_link() {
        let incast = Pattern::Incast {
            senders: None,
            receiver: HostId(0),
            sizes: SizeDist::fixed(100_000).unwrap(),
            messages_per_sender: 1,
            at: Span::ZERO,
            spread: Span::ZERO,
        };
        let config = config(9, incast);
        let result = run(&config, Rules::default(), &Control::default()).unwrap();
        let last = result.messages.iter().map(|message| match message.outcome {
            Outcome::Completed(at) => at,
            other => panic!("{other:?}"),
        });
        let framing = config.streams[0].transport.framing();
        let sending = Rate::from_gbps(10).span_of(framing.message_wire_bytes(100_000));
        let first = Time::ZERO + result.messages[0].ideal;
        assert_eq!(last.max().unwrap(), first + sending * 7);
        // It has 8 receptions of its downlink's time, and the rest is the path's delay.
        let busy = result.links[9].utilisation * result.ended_at.since(Time::ZERO).as_secs_f64();
        assert!((busy - (sending * 8).as_secs_f64()).abs() < 1e-9, "{busy}");
    }

    #[test]
    fn responses_and_closed_loops_end() {
        let sizes = SizeDist::fixed(3000).unwrap();
        let think = Span::from_us(1);
        let pattern = Pattern::ClosedLoop { sizes, outstanding: 3, think, ramp: Span::ZERO };
        let mut config = config(5, pattern);
        config.streams[0].workload.exchange = Exchange::Echo;
        config.measure.messages = 2000;
        let result = run(&config, Rules::default(), &Control::default()).unwrap();
        assert_eq!((result.end, result.messages.len()), (End::AllDone, 2000));
        for message in &result.messages {
            let Outcome::Completed(at) = message.outcome else { panic!("{message:?}") };
            assert!(at.since(message.start) >= message.ideal);
        }
    }

    proptest! {
        /// Nothing is faster than its idle path, and no host sends or receives more than its link carries. As long as
        /// there is work for a pair of free ports, it is done (the schedule is a maximal matching). So all ends by the
        /// sum of all messages.
        #[test]
        fn messages_keep_to_their_links(
            messages in proptest::collection::vec((0_u64..300, 0_u32..5, 1_u32..5, 1_u64..200_000), 1..40),
        ) {
            let messages: Vec<_> =
                messages.iter().map(|&(us, src, by, bytes)| (us, src, (src + by) % 5, bytes)).collect();
            let config = config(5, trace(&messages));
            let result = run(&config, Rules::default(), &Control::default()).unwrap();
            prop_assert_eq!((result.end, result.messages.len()), (End::AllDone, messages.len()));
            let framing = config.streams[0].transport.framing();
            let sending = |bytes| Rate::from_gbps(10).span_of(framing.message_wire_bytes(bytes));
            let mut last = Time::ZERO;
            for message in &result.messages {
                let Outcome::Completed(at) = message.outcome else { panic!("{message:?}") };
                prop_assert!(at.since(message.start) >= message.ideal);
                last = last.max(at);
            }
            for host in 0..5 {
                let of = |is: fn(&(u64, u32, u32, u64)) -> u32| {
                    let mine = messages.iter().filter(move |message| is(message) == host);
                    mine.fold(Span::ZERO, |sum, message| sum + sending(message.3))
                };
                let seconds = result.ended_at.since(Time::ZERO).as_secs_f64();
                let busy = |link: usize| result.links[link].utilisation * seconds;
                let (up, down) = (of(|message| message.1), of(|message| message.2));
                prop_assert!((busy(host as usize) - up.as_secs_f64()).abs() < 1e-9);
                prop_assert!((busy(5 + host as usize) - down.as_secs_f64()).abs() < 1e-9);
            }
            let all = messages.iter().fold(Span::ZERO, |sum, message| sum + sending(message.3));
            prop_assert!(last <= Time::ZERO + Span::from_us(300) + all + Span::from_us(3));
        }
    }
}
