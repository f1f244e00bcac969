//! Applications that take time, and channels, over a transport without any protocol.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;

use rackweave_core::{
    Event, FailReason, Framing, Header, HostId, Kind, MessageId, Node, Open, Packet, Placement,
    Rate, Refused, Slice, Span, StreamEvent, Submit, Time, Transport,
};
use rackweave_workload::{
    Application, Exchange, Generator, LoadCounts, Pattern, SizeDist, StreamMode, Streaming,
    WorkloadConfig,
};

use rackweave_switch::ForwardOnly;

use super::*;
use crate::config::{
    FabricConfig, FaultKind, FaultPlace, MeasureConfig, StreamConfig, SwitchConfig,
};
use crate::model::TransportsOnly;
use crate::result::{MessageRecord, Outcome, RunResult};

/// Maximum number of bytes of a stream that are sent and not consumed.
const WINDOW: u64 = 256_000;
const FRAMING: Framing =
    Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: u32::MAX };

/// Messages shortest first, then streams round-robin, over a fabric without loss.
#[derive(Debug)]
struct Pipes {
    host: HostId,
    control: VecDeque<(HostId, Piece)>,
    messages: Vec<(Submit, u32)>,
    arriving: BTreeMap<MessageId, u32>,
    sending: BTreeMap<MessageId, Sending>,
    /// Streams whose client is the peer, with the bytes received on each.
    known: BTreeMap<MessageId, u64>,
    turn: MessageId,
    events: VecDeque<Event>,
}

#[derive(Debug)]
struct Sending {
    peer: HostId,
    written: u64,
    sent: u64,
    consumed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Piece {
    Message {
        slice: Slice,
        total: u32,
        kind: Kind,
    },
    Stream(Slice),
    /// The receiver has consumed up to here.
    Ack(MessageId, u64),
    /// The receiver does not have this stream.
    Gone(MessageId),
}

impl Header for Piece {
    fn payload(&self) -> Option<Slice> {
        match *self {
            Self::Message { slice, .. } | Self::Stream(slice) => Some(slice),
            Self::Ack(..) | Self::Gone(_) => None,
        }
    }
}

impl Pipes {
    fn new(host: HostId) -> Self {
        Self {
            host,
            control: VecDeque::new(),
            messages: Vec::new(),
            arriving: BTreeMap::new(),
            sending: BTreeMap::new(),
            known: BTreeMap::new(),
            turn: MessageId(0),
            events: VecDeque::new(),
        }
    }

    fn next_message(&mut self) -> Option<(HostId, Piece)> {
        let left = |(message, sent): &(Submit, u32)| (message.bytes as u32 - sent, message.id);
        let index = (0..self.messages.len()).min_by_key(|&i| left(&self.messages[i]))?;
        let (message, sent) = &mut self.messages[index];
        let (peer, total) = (message.peer, message.bytes as u32);
        let len = (total - *sent).min(FRAMING.max_payload);
        let slice = Slice { message: message.id, offset: *sent, len };
        let piece = Piece::Message { slice, total, kind: message.kind };
        *sent += len;
        if *sent == total {
            self.messages.swap_remove(index);
        }
        Some((peer, piece))
    }

    fn next_of_stream(&mut self) -> Option<(HostId, Piece)> {
        let may_send = |s: &Sending| s.written.min(s.consumed + WINDOW) - s.sent;
        let after = self.sending.range(MessageId(self.turn.0 + 1)..);
        let id = *after.chain(&self.sending).find(|(_, s)| may_send(s) > 0)?.0;
        self.turn = id;
        let sending = self.sending.get_mut(&id)?;
        let len = may_send(sending).min(u64::from(FRAMING.max_payload)) as u32;
        let slice = Slice { message: id, offset: sending.sent as u32, len };
        sending.sent += u64::from(len);
        Some((sending.peer, Piece::Stream(slice)))
    }

    fn arrives(&mut self, peer: HostId, slice: Slice) -> Placement {
        let (id, stream) = (slice.message, MessageId(slice.message.0 & !1));
        if !self.known.contains_key(&stream) {
            if slice.offset > 0 || id.is_response() {
                self.control.push_back((peer, Piece::Gone(stream)));
                return Placement::Discard;
            }
            self.known.insert(stream, 0);
            self.start_sending(stream.response(), peer);
            self.events.push_back(Event::Stream(StreamEvent::Opened { peer, id }));
        }
        let bytes = u64::from(slice.len);
        let event = StreamEvent::Readable { peer, id, bytes, end: false };
        self.events.push_back(Event::Stream(event));
        Placement::Store(slice)
    }

    fn start_sending(&mut self, id: MessageId, peer: HostId) {
        self.sending.insert(id, Sending { peer, written: 0, sent: 0, consumed: 0 });
    }

    fn forget(&mut self, stream: MessageId) -> bool {
        self.sending.remove(&stream);
        self.sending.remove(&stream.response());
        self.known.remove(&stream).is_some()
    }
}

impl Node for Pipes {
    type Header = Piece;
    type Event = Event;
    type Placement = Placement;

    fn handle_packet(&mut self, _now: Time, _port: u8, packet: &Packet<Piece>) -> Placement {
        let peer = packet.src;
        match packet.header {
            Piece::Message { slice, total, kind } => {
                let (id, bytes) = (slice.message, u64::from(total));
                let got = self.arriving.entry(id).or_default();
                *got += slice.len;
                if *got >= total {
                    self.arriving.remove(&id);
                    self.events.push_back(Event::Delivered { peer, id, bytes, kind });
                }
                Placement::Store(slice)
            }
            Piece::Stream(slice) => self.arrives(peer, slice),
            Piece::Ack(id, bytes) => {
                if let Some(sending) = self.sending.get_mut(&id) {
                    sending.consumed += bytes;
                    self.events.push_back(Event::Stream(StreamEvent::Acked { peer, id, bytes }));
                }
                Placement::Discard
            }
            Piece::Gone(id) => {
                if self.forget(id) {
                    let reason = FailReason::PeerForgot;
                    self.events.push_back(Event::Failed { peer, id, reason });
                }
                Placement::Discard
            }
        }
    }

    fn handle_timeout(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, _port: u8) -> Option<Packet<Piece>> {
        let next = self.control.pop_front();
        let next = next.or_else(|| self.next_message()).or_else(|| self.next_of_stream());
        let (peer, piece) = next?;
        let len = piece.payload().map_or(0, |slice| slice.len);
        Some(Packet::new(self.host, peer, len + FRAMING.header_bytes, piece))
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl Transport for Pipes {
    fn submit(&mut self, _now: Time, message: Submit) -> Result<(), Refused> {
        self.messages.push((message, 0));
        Ok(())
    }

    fn cancel(&mut self, _now: Time, peer: HostId, id: MessageId) {
        self.messages.retain(|(message, _)| message.id != id);
        self.arriving.remove(&id);
        if self.forget(id) {
            self.control.push_back((peer, Piece::Gone(id)));
        }
    }

    fn is_arriving(&self, _peer: HostId, _id: MessageId) -> bool {
        true
    }

    fn framing(&self) -> Framing {
        FRAMING
    }

    fn open(&mut self, _now: Time, stream: Open) -> Result<(), Refused> {
        self.known.insert(stream.id, 0);
        self.start_sending(stream.id, stream.peer);
        Ok(())
    }

    fn write(
        &mut self,
        _now: Time,
        _peer: HostId,
        id: MessageId,
        bytes: u64,
        _end: bool,
    ) -> Result<(), Refused> {
        let sending = self.sending.get_mut(&id).ok_or(Refused::Ended)?;
        // Refuses data at half of what the driver would write ahead.
        if sending.written > sending.consumed + (2 << 20) {
            return Err(Refused::Busy);
        }
        sending.written += bytes;
        Ok(())
    }

    fn consume(&mut self, _now: Time, peer: HostId, id: MessageId, bytes: u64) {
        self.control.push_back((peer, Piece::Ack(id, bytes)));
    }
}

const G10: Rate = Rate::from_gbps(10);

struct Case {
    hosts: u32,
    workload: WorkloadConfig,
    gap: Option<Span>,
    faults: Vec<Fault>,
    measure: MeasureConfig,
}

fn closed_loop(sizes: SizeDist, outstanding: u32) -> Pattern {
    Pattern::ClosedLoop { sizes, outstanding, think: Span::ZERO, ramp: Span::ZERO }
}

const fn streaming(mode: StreamMode) -> Option<Streaming> {
    Some(Streaming { mode, per_pair: NonZeroU16::MIN })
}

impl Case {
    /// The last host sends to the others.
    fn new(hosts: u32, pattern: Pattern) -> Self {
        let mut workload = WorkloadConfig::new(pattern);
        workload.senders = Some(hosts - 1..hosts);
        workload.receivers = Some(0..hosts - 1);
        let measure = MeasureConfig::default()
            .with_messages(400)
            .with_time_limit(Span::from_secs(1000))
            .with_samples(Span::ZERO)
            .with_verification();
        Self { hosts, workload, gap: None, faults: Vec::new(), measure }
    }

    fn run(&self) -> RunResult<Piece> {
        let host_link = G10;
        let fabric = Fabric::new(
            &FabricConfig::single_switch(self.hosts, host_link)
                .with_link_delay(Span::from_ns(100))
                .with_host_delays(Span::from_ns(500), Span::from_ns(500))
                .with_switch(SwitchConfig::default().with_buffer(u64::MAX).without_marking()),
        )
        .unwrap();
        let generator = Generator::new(&self.workload, self.hosts, self.gap, 1, 0, 0).unwrap();
        let transport = rackweave_transport::TransportConfig::Tcp(Arc::new(
            rackweave_transport::tcp::Config::tcp(),
        ));
        let stream = StreamConfig::new(transport, self.workload.clone());
        let setup = Setup {
            streams: vec![(&stream, 0, generator)],
            transports: Box::new(|host| vec![Pipes::new(host)]),
            faults: &self.faults,
            ..Setup::new(1, Arc::new(fabric), &self.measure, |_| ForwardOnly::new())
        };
        World::<TransportsOnly<Pipes>>::new(setup).unwrap().run(&Control::default())
    }
}

fn latency(record: &MessageRecord) -> Span {
    match record.outcome {
        Outcome::Completed(at) => at.since(record.start),
        other => panic!("a message ended as {other:?}"),
    }
}

fn fixed(bytes: u64) -> SizeDist {
    SizeDist::fixed(bytes).unwrap()
}

/// Throughput of messages, in gigabits per second.
fn throughput(result: &RunResult<Piece>) -> f64 {
    let bytes: u64 = result.messages.iter().map(|message| message.bytes).sum();
    bytes as f64 * 8000.0 / result.measured.as_ps() as f64
}

#[test]
fn an_application_adds_just_the_time_that_it_takes() {
    let application = Application {
        copy_rate: Some(Rate::from_gbps(20)),
        per_message: Span::from_us(3),
        per_rpc: Span::from_us(5),
    };
    for (exchange, times) in [(Exchange::OneWay, 1), (Exchange::Echo, 2)] {
        let mut case = Case::new(2, closed_loop(fixed(100_000), 1));
        case.workload.exchange = exchange;
        case.workload.application = application;
        for message in case.run().messages {
            assert_eq!(latency(&message), message.ideal + Span::from_us(3 + 5 + 40) * times);
        }
        // The sender creates a stream, and the receiver reads it, while it is transferred: at the end, only the last
        // packet is left to read.
        case.workload.streaming = streaming(StreamMode::OneId);
        let result = case.run();
        assert_eq!(result.verified_messages, 400 * times);
        for message in result.messages.iter().skip(1) {
            let last = Rate::from_gbps(20).span_of(100_000 % 1460);
            let more = latency(message) - message.ideal;
            let expected = (Span::from_us(3) + last) * times;
            assert!(more >= expected, "{more} for {expected}");
            // A response may have to wait for an acknowledgement on its link.
            assert!(more - expected < Span::from_ns(68) * times, "{more} for {expected}");
        }
    }
}

#[test]
fn a_stream_is_taken_in_while_it_arrives_and_a_message_only_then() {
    let mut case = Case::new(2, closed_loop(fixed(500_000), 1));
    case.workload.application = Application { copy_rate: Some(G10), ..Application::INSTANT };
    let whole = throughput(&case.run());
    case.workload.streaming = streaming(StreamMode::Unary);
    let unary = throughput(&case.run());
    case.workload.streaming = streaming(StreamMode::OneId);
    let stream = throughput(&case.run());
    let link = 10.0 * 1460.0 / 1538.0;
    assert!(stream > 0.97 * link, "{stream} of {link}");
    assert!((0.49..0.53).contains(&(whole / link)), "{whole} of {link}");
    assert_eq!(unary, whole, "one at a time is always in order");
    // With enough messages in progress, the thread is always busy.
    case.workload.pattern = closed_loop(fixed(500_000), 4);
    case.workload.streaming = None;
    assert!(throughput(&case.run()) > 0.97 * link);
}

#[test]
fn a_slow_reader_holds_back_its_stream() {
    let mut case = Case::new(3, closed_loop(fixed(8_000_000), 2));
    case.measure.messages = 10;
    case.workload.streaming = streaming(StreamMode::OneId);
    let copy_rate = Some(Rate::from_gbps(1));
    case.workload.application = Application { copy_rate, ..Application::INSTANT };
    let result = case.run();
    // Two readers of 1 Gbps on a link of 10 Gbps: it carries what they read, and initially one window for each.
    assert!(result.links[2].utilisation < 0.25, "{}", result.links[2].utilisation);
    assert!(result.messages.iter().all(|m| latency(m) >= Span::from_ms(60)));
}

/// Waiting time of M/D/1: rho / (2 (1 - rho)) services (Pollaczek and Khinchine).
#[test]
fn waiting_time_for_the_thread_is_that_of_m_d_1() {
    let (load, service) = (0.6, Span::from_us(2));
    let sizes = fixed(1);
    let pattern = Pattern::OpenLoop { sizes, load, counts: LoadCounts::Payload };
    let mut case = Case::new(2, pattern);
    case.gap = Some(Span::from_ps((service.as_ps() as f64 / load) as u64));
    case.measure.messages = 1_000_000;
    case.measure.verify = false;
    case.workload.application = Application { per_message: service, ..Application::INSTANT };
    let result = case.run();
    let waits: f64 = (result.messages.iter())
        .map(|m| (latency(m) - m.ideal - service).as_ps() as f64 / service.as_ps() as f64)
        .sum();
    let mean = waits / result.messages.len() as f64;
    let expected = load / (2.0 * (1.0 - load));
    assert!((mean / expected - 1.0).abs() < 0.02, "{mean} services, not {expected}");
}

fn overtaken(result: &RunResult<Piece>) -> usize {
    let mut last = BTreeMap::new();
    let overtaken = result.messages.iter().filter(|message| {
        let Outcome::Completed(at) = message.outcome else { return false };
        let last = last.entry(message.dst).or_insert(at);
        let is_overtaken = at < *last;
        *last = at.max(*last);
        is_overtaken
    });
    overtaken.count()
}

#[test]
fn messages_of_a_stream_stay_in_order() {
    let sizes = SizeDist::uniform(1, 100_000).unwrap();
    let mut case = Case::new(3, closed_loop(sizes, 8));
    for exchange in [Exchange::OneWay, Exchange::Echo] {
        case.workload.exchange = exchange;
        case.workload.streaming = None;
        assert!(overtaken(&case.run()) > 100, "shorter messages overtake longer ones");
        for mode in [StreamMode::OneId, StreamMode::Unary] {
            case.workload.streaming = streaming(mode);
            let result = case.run();
            assert_eq!(overtaken(&result), 0, "{mode:?}");
            assert!(result.messages.iter().all(|m| latency(m) >= m.ideal));
        }
    }
}

fn busy(mode: StreamMode) -> Case {
    let mut case = Case::new(5, closed_loop(SizeDist::uniform(1, 100_000).unwrap(), 6));
    (case.workload.senders, case.workload.receivers) = (None, None);
    case.workload.exchange = Exchange::Respond(20_000);
    case.workload.streaming = Some(Streaming { mode, per_pair: NonZeroU16::new(2).unwrap() });
    case.workload.application = Application {
        copy_rate: Some(Rate::from_gbps(15)),
        per_message: Span::from_us(1),
        per_rpc: Span::from_us(2),
    };
    case.measure.messages = 5_000;
    case
}

#[test]
fn the_same_run_gives_the_same_result() {
    for mode in [StreamMode::OneId, StreamMode::Unary] {
        let (one, two) = (busy(mode).run(), busy(mode).run());
        assert_eq!((&one.messages, &one.counters), (&two.messages, &two.counters));
        assert_eq!(one.end, End::AllDone);
        assert!(one.messages.iter().all(|message| latency(message) > Span::ZERO));
    }
}

#[test]
fn after_a_pause_all_messages_complete() {
    let ms = |n| Time::ZERO + Span::from_ms(n);
    for mode in [StreamMode::OneId, StreamMode::Unary] {
        let mut case = busy(mode);
        let place = FaultPlace::Host(HostId(2));
        case.faults = vec![Fault { from: ms(2), until: ms(4), place, kind: FaultKind::Pause }];
        let result = case.run();
        assert_eq!(result.end, End::AllDone);
        let longest = result.messages.iter().map(latency).max().unwrap();
        assert!(longest > Span::from_us(1900), "{longest}");
    }
}

#[test]
fn messages_of_a_crashed_server_fail_and_new_streams_take_their_place() {
    let ms = |n| Time::ZERO + Span::from_ms(n);
    let place = FaultPlace::Host(HostId(2));
    for exchange in [Exchange::OneWay, Exchange::Respond(20_000)] {
        let mut case = busy(StreamMode::OneId);
        case.workload.exchange = exchange;
        case.measure.verify = false;
        // It is down for less than a packet's path delay, so that the transports detect it early.
        let until = ms(2) + Span::from_us(1);
        case.faults = vec![Fault { from: ms(2), until, place, kind: FaultKind::Crash }];
        let result = case.run();
        assert_eq!(result.end, End::AllDone);
        let failed = result.messages.iter().filter(|m| matches!(m.outcome, Outcome::Failed(_)));
        assert!(failed.clone().count() > 4, "{}", failed.count());
        assert!(failed.clone().all(|m| m.src == HostId(2) || m.dst == HostId(2)));
        assert!(failed.into_iter().any(|m| m.src != HostId(2)));
        let later = result.messages.iter().filter(|m| m.start > ms(3)).collect::<Vec<_>>();
        assert!(later.iter().any(|m| m.dst == HostId(2)));
        assert!(later.into_iter().all(|m| matches!(m.outcome, Outcome::Completed(_))));
    }
}
