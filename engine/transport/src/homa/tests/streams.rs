//! Streams: dialogues packet by packet, flow control, priorities, failures.

use std::fmt::Write as _;

use proptest::prelude::*;
use rackweave_core::{
    Event, FailReason, HostId, Kind, MessageId, Node as _, Open, Placement, Refused, Span,
    StreamEvent, Submit, Time, Transport,
};
use rackweave_wire::Id64;
use rackweave_wire::homa::stream::{Credit, Reason, Stream, UNSCHEDULED, flags};
use rackweave_wire::homa::{Body, Header};

use super::{Config, Host, LINK, at, events, id, network, packet, submit, trace};
use crate::tests::Network;

/// The fields of a packet of a stream as text. Tags are omitted, because they depend on the time.
pub(super) fn write_line(
    text: &mut String,
    message: MessageId,
    stream: &Stream,
) -> std::fmt::Result {
    let names = |bits: u8| {
        let names = [
            (flags::END, " end"),
            (flags::END_RECEIVED, " end-received"),
            (flags::ASK, " ask"),
            (flags::OPENING, " opening"),
            (flags::RETRANSMIT, " retransmit"),
        ];
        names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect::<String>()
    };
    let level = |priority| match priority {
        UNSCHEDULED => String::new(),
        level => format!(" at p{level}"),
    };
    match *stream {
        Stream::Data { offset, len, written, credit, flags, .. } => {
            let end = offset.wrapping_add(u32::from(len));
            write!(text, "STREAM {message} {offset}..{end} of {written}{}", names(flags))?;
            write!(text, ", received {}", credit.received)
        }
        Stream::Credit { credit, flags, .. } => {
            write!(text, "CREDIT {message} ..{}{}", credit.allowed, level(credit.priority))?;
            write!(text, "{}, received {}", names(flags), credit.received)
        }
        Stream::Missing { offset, length, .. } => {
            write!(text, "MISSING {message} {offset}..{}", offset.wrapping_add(length))
        }
        Stream::Reset { reason, .. } => write!(text, "RESET {message} {reason:?}"),
    }
}

fn paper() -> Config {
    Config::fabric(LINK, 10_000)
}

fn open(network: &mut Network<Host>, n: u64) {
    network.open(0, 1, id(n), Time::MAX).expect("taken");
}

fn write(network: &mut Network<Host>, from: u32, n: MessageId, bytes: u64, end: bool) {
    network.write(from, 1 - from, n, bytes, end).expect("taken");
}

#[test]
fn a_unary_rpc_is_a_stream_written_once_in_each_direction() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    write(&mut network, 0, id(1), 100, true);
    network.run_until(at(Span::from_us(10)));
    assert_eq!(trace(&mut network), ["h0>h1 p7 STREAM 1 0..100 of 100 end opening, received 0"]);
    assert_eq!(
        events(&mut network),
        [
            "h1: Opened { peer: HostId(0), id: MessageId(2) }",
            "h1: Readable { peer: HostId(0), id: MessageId(2), bytes: 100, end: true }",
        ]
    );
    write(&mut network, 1, id(1).response(), 2000, true);
    assert!(network.run_until(at(Span::from_ms(10))));
    assert_eq!(
        trace(&mut network),
        [
            "h1>h0 p6 STREAM 1r 0..1442 of 2000 end end-received, received 100",
            "h1>h0 p6 STREAM 1r 1442..2000 of 2000 end end-received, received 100",
            "h0>h1 p7 CREDIT 1 ..10094 end-received, received 2000",
        ]
    );
    assert_eq!(
        events(&mut network),
        [
            "h0: Acked { peer: HostId(1), id: MessageId(2), bytes: 100 }",
            "h0: Readable { peer: HostId(1), id: MessageId(3), bytes: 1442, end: false }",
            "h0: Readable { peer: HostId(1), id: MessageId(3), bytes: 558, end: true }",
            "h0: Closed { peer: HostId(1), id: MessageId(2) }",
            "h1: Acked { peer: HostId(0), id: MessageId(3), bytes: 2000 }",
            "h1: Closed { peer: HostId(0), id: MessageId(2) }",
        ]
    );
    assert!(network.hosts.iter().all(Host::is_idle));
}

/// The outcome of a stream at a host.
fn fate(network: &Network<Host>, host: u32) -> Vec<(Time, Result<(), FailReason>)> {
    let of = |event: &Event| match *event {
        Event::Stream(StreamEvent::Closed { .. }) => Some(Ok(())),
        Event::Failed { reason, .. } => Some(Err(reason)),
        _ => None,
    };
    let here = network.events.iter().filter(|(_, at, _)| *at == HostId(host));
    here.filter_map(|(time, _, event)| of(event).map(|fate| (*time, fate))).collect()
}

/// When the first and the last byte of a direction became readable.
fn read_from_to(network: &Network<Host>, host: u32, direction: MessageId) -> (Time, Time) {
    let mut times = network.events.iter().filter_map(|(time, at, event)| match event {
        Event::Stream(StreamEvent::Readable { id, .. }) if *id == direction => {
            (*at == HostId(host)).then_some(*time)
        }
        _ => None,
    });
    let first = times.next().expect("something is readable");
    (first, times.next_back().unwrap_or(first))
}

#[test]
fn a_write_beyond_the_standing_credit_is_granted_like_a_message() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    write(&mut network, 0, id(1), 20_000, false);
    network.run_until(at(Span::from_us(30)));
    let trace = trace(&mut network);
    assert_eq!(
        trace[..4],
        [
            "h0>h1 p4 STREAM 1 0..1442 of 20000 opening, received 0",
            "h0>h1 p4 STREAM 1 1442..2884 of 20000 opening, received 0",
            "h0>h1 p4 STREAM 1 2884..4326 of 20000 opening, received 0",
            "h1>h0 p7 CREDIT 1r ..11536 at p0, received 1442",
        ],
        "{trace:#?}"
    );
    // All bytes are allowed: the next write finds credit.
    assert_eq!(trace.last().unwrap(), "h1>h0 p7 CREDIT 1r ..30282, received 18746");
    assert_eq!(network.readable(1, 0, id(1)), (20_000, false));
}

#[test]
fn the_first_byte_is_readable_long_before_the_last_is_written() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    for n in 0..100 {
        write(&mut network, 0, id(1), 10_000, n == 99);
        network.run_until(at(Span::from_us(10 * (n + 1))));
    }
    write(&mut network, 1, id(1).response(), 0, true);
    assert!(network.run_until(at(Span::from_ms(20))));
    let (first, last) = read_from_to(&network, 1, id(1));
    assert!(first < at(Span::from_us(5)), "{first:?}");
    // A megabyte takes 853 us on a 10 Gbps link; it was written in 990.
    assert!(last < at(Span::from_us(1010)), "{last:?}");
    assert_eq!(network.readable(1, 0, id(1)), (1_000_000, true));
    assert!(network.hosts.iter().all(Host::is_idle));
}

/// Four messages of 5 KB are in progress, so that some written bytes are in flight at all times.
#[test]
fn short_writes_fill_the_link() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    let mut written = 0;
    for us in 0..1_000 {
        while written < network.readable(1, 0, id(1)).0 / 5_000 * 5_000 + 20_000 {
            write(&mut network, 0, id(1), 5_000, false);
            written += 5_000;
        }
        network.run_until(at(Span::from_us(us + 1)));
    }
    // 1442 of 1538 bytes on a link of 10 Gbps: 1.17 MB in a millisecond.
    let (readable, _) = network.readable(1, 0, id(1));
    assert!(readable > 1_140_000, "{readable}");
}

#[test]
fn a_long_stream_fills_the_link() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    write(&mut network, 0, id(1), 10_000_000, true);
    network.run_until(at(Span::from_us(8_600)));
    // 6,935 packets of 1538 bytes take 8.53 ms.
    assert_eq!(network.readable(1, 0, id(1)), (10_000_000, true));
}

#[test]
fn no_sender_exceeds_the_window() {
    let mut config = paper();
    config.streams.window_bytes = 20_000;
    let mut network = network(&config, 2, Span::from_us(1));
    network.consume = false;
    network.stream_window = Some(20_000);
    open(&mut network, 1);
    write(&mut network, 0, id(1), 100_000, true);
    // Longer than any timeout for a silent peer.
    network.run_until(at(Span::from_secs(1)));
    let (readable, _) = network.readable(1, 0, id(1));
    assert_eq!(readable, 20_000 - 20_000 % 1442);
    assert!(network.packets.len() < 200, "a stream that waits costs little");
    for n in 1..=100 {
        network.consume(1, 0, id(1), 1_000);
        network.run_until(at(Span::from_secs(1) + Span::from_us(100 * n)));
    }
    assert_eq!(network.readable(1, 0, id(1)), (100_000, true));
    let short = network.packets.iter().filter(|(_, packet)| {
        (1..1442).contains(&rackweave_core::Header::payload_bytes(&packet.header))
    });
    assert_eq!(short.count(), 1, "the last one: there is no silly window");
    network.write(1, 0, id(1).response(), 0, true).unwrap();
    network.run_until(at(Span::from_secs(2)));
    assert!(network.hosts.iter().all(Host::is_idle));
    assert_eq!(fate(&network, 0)[0].1, Ok(()));
}

#[test]
fn a_lost_tail_is_detected_and_retransmitted() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    write(&mut network, 0, id(1), 1_000, false);
    network.run_until(at(Span::from_ms(3)));
    trace(&mut network);
    network.lose = Some(|packet| packet.src == HostId(0));
    write(&mut network, 0, id(1), 500, true);
    network.run_until(at(Span::from_ms(4)));
    network.lose = None;
    network.run_until(at(Span::from_ms(20)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p6 STREAM 1 1000..1500 of 1500 end, received 0",
            "h0>h1 p7 STREAM 1 1500..1500 of 1500 end ask, received 0",
            "h1>h0 p7 CREDIT 1r ..12978, received 1000",
            "h1>h0 p7 MISSING 1r 1000..1500",
            "h0>h1 p7 STREAM 1 1000..1500 of 1500 end retransmit, received 0",
            "h1>h0 p7 CREDIT 1r ..12978 end-received, received 1500",
        ]
    );
}

#[test]
fn cancel_resets_the_peer_until_it_has_answered() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    write(&mut network, 0, id(1), 5_000, false);
    network.run_until(at(Span::from_ms(3)));
    network.cancel_stream(1, 0, id(1));
    network.run_until(at(Span::from_ms(4)));
    assert_eq!(fate(&network, 0), [(fate(&network, 0)[0].0, Err(FailReason::Cancelled))]);
    assert_eq!(network.write(0, 1, id(1), 1, false), Err(Refused::Ended));

    // The RESET is lost; the next packet triggers another one.
    open(&mut network, 2);
    write(&mut network, 0, id(2), 5_000, false);
    network.run_until(at(Span::from_ms(8)));
    network.set_down(1, true);
    network.cancel_stream(1, 0, id(2));
    network.run_until(at(Span::from_ms(9)));
    network.set_down(1, false);
    network.run_until(at(Span::from_ms(10)));
    assert_eq!(fate(&network, 0).len(), 1);
    write(&mut network, 0, id(2), 1, false);
    network.run_until(at(Span::from_ms(20)));
    assert_eq!(fate(&network, 0)[1].1, Err(FailReason::Cancelled));
    assert!(network.hosts.iter().all(Host::is_idle));
}

#[test]
fn a_client_without_a_packet_from_its_server_accepts_a_reset() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    write(&mut network, 0, id(1), 100, false);
    network.run_until(at(Span::from_us(5)));
    network.cancel_stream(1, 0, id(1));
    network.run_until(at(Span::from_us(10)));
    assert_eq!(fate(&network, 0).len(), 1, "{:?}", trace(&mut network));
    assert_eq!(fate(&network, 0)[0].1, Err(FailReason::Cancelled));
}

#[test]
fn a_deadline_passes_at_both_ends() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    network.open(0, 1, id(1), at(Span::from_ms(7))).unwrap();
    network.run_until(at(Span::from_ms(2)));
    write(&mut network, 0, id(1), 5_000, false);
    network.run_until(at(Span::from_ms(6)));
    // Neither end can notify the other.
    network.set_down(1, true);
    assert!(network.run_until(at(Span::from_ms(10))));
    for host in 0..2 {
        let [(time, fate)] = fate(&network, host)[..] else { panic!("one end each") };
        assert_eq!(fate, Err(FailReason::Deadline));
        assert!((at(Span::from_ms(7))..at(Span::from_us(7_010))).contains(&time), "{time:?}");
    }
}

#[test]
fn idle_streams_live_as_long_as_their_peers() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    write(&mut network, 0, id(1), 5_000, false);
    network.run_until(at(Span::from_secs(20)));
    assert_eq!(fate(&network, 0).len() + fate(&network, 1).len(), 0);
    assert!(network.packets.len() < 100, "{} packets", network.packets.len());
    network.set_down(0, true);
    assert!(network.run_until(at(Span::from_secs(30))));
    assert_eq!(fate(&network, 0)[0].1, Err(FailReason::PeerSilent));
    assert_eq!(fate(&network, 1)[0].1, Err(FailReason::PeerSilent));
    assert!(network.hosts.iter().all(Host::is_idle));
}

#[test]
fn a_peer_that_restarts_has_forgotten() {
    for end in 0..2 {
        let mut network = network(&paper(), 2, Span::from_us(1));
        open(&mut network, 1);
        write(&mut network, 0, id(1), 5_000, false);
        network.run_until(at(Span::from_ms(2)));
        let opening = network.packets[0].1;
        network.restart(end, Host::new(HostId(end), paper().into()));
        // The packet is delayed and opens the stream a second time at the server; the client does not mix the
        // two.
        network.inject(opening);
        network.run_until(at(Span::from_ms(3)));
        let writes = if end == 1 { id(1) } else { id(1).response() };
        let _ = network.write(1 - end, end, writes, 100, false);
        assert!(network.run_until(at(Span::from_secs(5))));
        assert_eq!(fate(&network, 1 - end)[0].1, Err(FailReason::PeerForgot), "h{end} restarts");
        assert!(network.hosts.iter().all(Host::is_idle));
    }
}

#[test]
fn offsets_wrap() {
    let mut config = paper();
    config.max_payload = 60_000;
    config.unscheduled_bytes = 600_000;
    config.window = 600_000;
    let mut network = network(&config, 2, Span::from_us(1));
    network.keep_packets = false;
    network.stream_window = Some(1 << 20);
    open(&mut network, 1);
    let bytes = (9 << 30) + 12_345;
    write(&mut network, 0, id(1), bytes, false);
    write(&mut network, 0, id(1), 1, true);
    network.run_until(at(Span::from_secs(10)));
    assert_eq!(network.readable(1, 0, id(1)), (bytes + 1, true));
    let (_, last) = read_from_to(&network, 1, id(1));
    // 9 GiB at 10 Gbps take 7.73 s.
    assert!(last < at(Span::from_ms(7_800)), "{last:?}");
    write(&mut network, 1, id(1).response(), 0, true);
    assert!(network.run_until(at(Span::from_secs(11))));
    assert_eq!(fate(&network, 0)[0].1, Ok(()));
}

#[test]
fn short_messages_and_streams_go_before_long_streams() {
    let mut network = network(&paper(), 3, Span::from_us(1));
    open(&mut network, 1);
    write(&mut network, 0, id(1), 10_000_000, true);
    network.run_until(at(Span::from_ms(2)));
    submit(&mut network, 0, 1, 2, 50_000, Kind::OneWay);
    open(&mut network, 3);
    write(&mut network, 0, id(3), 50_000, true);
    // A stream from another sender: the receiver determines the order.
    network.open(2, 1, id(4), Time::MAX).unwrap();
    network.write(2, 1, id(4), 50_000, true).unwrap();
    network.run_until(at(Span::from_us(2_200)));
    assert_eq!(network.readable(1, 0, id(3)), (50_000, true));
    assert_eq!(network.readable(1, 2, id(4)), (50_000, true));
    let sent = network.events_at(0).any(|event| matches!(event, Event::Sent { .. }));
    let delivered = network.events_at(1).any(|event| matches!(event, Event::Delivered { .. }));
    assert!(delivered && !sent, "acknowledged later");
    // The long stream was delayed by no more than that.
    network.run_until(at(Span::from_us(8_900)));
    assert_eq!(network.readable(1, 0, id(1)), (10_000_000, true));
}

#[test]
fn long_streams_of_many_senders_share_the_receiver() {
    let mut network = network(&paper(), 5, Span::from_us(1));
    for client in 1..5 {
        network.open(client, 0, id(u64::from(client)), Time::MAX).unwrap();
        network.write(client, 0, id(u64::from(client)), 1_000_000, true).unwrap();
        network.write(0, client, id(u64::from(client)).response(), 0, true).unwrap_err();
    }
    // The fabric's core has no queue: each sender sends at its link's rate as far as it is granted.
    network.run_until(at(Span::from_ms(4)));
    for client in 1..5 {
        assert_eq!(network.readable(0, client, id(u64::from(client))), (1_000_000, true));
    }
}

#[test]
fn a_hundred_thousand_streams_to_one_peer() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    network.keep_packets = false;
    for n in 1..=100_000 {
        open(&mut network, n);
        write(&mut network, 0, id(n), 1, false);
    }
    network.run_until(at(Span::from_ms(50)));
    assert_eq!(network.hosts[1].rpcs_under_way(), 100_000);
    for n in 1..=100_000 {
        write(&mut network, 0, id(n), 99, true);
        write(&mut network, 1, id(n).response(), 100, true);
    }
    assert!(network.run_until(at(Span::from_secs(2))));
    assert!(network.hosts.iter().all(Host::is_idle));
    assert_eq!(fate(&network, 0).iter().filter(|(_, fate)| fate.is_ok()).count(), 100_000);
    assert_eq!(fate(&network, 1).iter().filter(|(_, fate)| fate.is_ok()).count(), 100_000);
}

#[test]
fn what_cannot_be_done_is_refused() {
    let mut config = paper();
    config.max_rpcs = 2;
    let mut host = Host::new(HostId(0), config.into());
    let mut try_open =
        |n: MessageId| host.open(Time::ZERO, Open { id: n, peer: HostId(1), deadline: Time::MAX });
    assert_eq!(try_open(id(1).response()), Err(Refused::WrongId));
    assert_eq!(try_open(id(1)), Ok(()));
    assert_eq!(try_open(id(1)), Err(Refused::DuplicateId));
    assert_eq!(try_open(id(2)), Ok(()));
    assert_eq!(try_open(id(3)), Err(Refused::Busy));
    let mut write = |n, bytes, end| host.write(Time::ZERO, HostId(1), n, bytes, end);
    assert_eq!(write(id(1).response(), 1, false), Err(Refused::Ended), "not this end's");
    assert_eq!(write(id(1), 0, false), Err(Refused::Empty));
    assert_eq!(write(id(1), u64::MAX, false), Err(Refused::TooLong { max: 1 << 62 }));
    assert_eq!(write(id(1), 1, true), Ok(()));
    assert_eq!(write(id(1), 1, false), Err(Refused::Ended));
    let message = Submit { id: id(1), peer: HostId(1), bytes: 1, kind: Kind::OneWay };
    assert_eq!(host.submit(Time::ZERO, message), Err(Refused::DuplicateId));
}

fn forged() -> impl Strategy<Value = (u32, u64, Body)> {
    let near = prop_oneof![0..20_000_u32, any::<u32>()];
    let credit = (near.clone(), near.clone(), any::<u8>())
        .prop_map(|(allowed, received, priority)| Credit { allowed, received, priority });
    let tag = prop_oneof![3 => Just(0_u32), 1 => 0..5_u32];
    let data =
        (near.clone(), 0..2_000_u16, near.clone(), credit.clone(), 0..=flags::ALL, tag.clone())
            .prop_map(|(offset, len, written, credit, flags, tag)| Stream::Data {
                offset,
                len,
                written,
                credit,
                cutoff_version: 0,
                flags,
                tag,
            });
    let credit = (credit, 0..=flags::ALL, tag.clone())
        .prop_map(|(credit, flags, tag)| Stream::Credit { credit, flags, tag });
    let missing = (near.clone(), near, tag.clone())
        .prop_map(|(offset, length, tag)| Stream::Missing { offset, length, tag });
    let reasons = [Reason::Closed, Reason::Cancelled, Reason::Deadline, Reason::Unknown];
    let reset = (0..4_usize, tag)
        .prop_map(move |(reason, tag)| Stream::Reset { reason: reasons[reason], tag });
    let stream =
        prop_oneof![6 => data, 3 => credit, 3 => missing, 1 => reset].prop_map(Body::Stream);
    let resend = any::<(u32, u32)>().prop_map(|(offset, length)| Body::Resend {
        offset,
        length,
        priority: 7,
    });
    let old = prop_oneof![
        resend,
        any::<bool>().prop_map(|refused| Body::Unknown { refused }),
        Just(Body::NeedAck),
        Just(Body::Busy)
    ];
    (1..4_u32, 0..12_u64, prop_oneof![9 => stream, 1 => old])
}

proptest! {
    #[test]
    fn floods_of_forged_packets_break_nothing(
        packets in proptest::collection::vec(forged(), 1..400), tags: bool
    ) {
        let mut config = paper();
        config.max_rpcs = 8;
        config.max_finished = 8;
        config.max_control = 64;
        let mut host = Host::new(HostId(0), config.into());
        let mut now = Time::from_ticks(1000);
        for n in 1..4 {
            let open = Open { id: id(n), peer: HostId(n as u32), deadline: Time::MAX };
            host.open(now, open).unwrap();
            host.write(now, HostId(n as u32), id(n), 5_000 * n, n == 2).unwrap();
        }
        for (from, n, mut body) in packets {
            // In half of the cases the forger knows the tag: the nanosecond, which is 1 to 4 here.
            if let (true, Body::Stream(Stream::Data { flags, tag, .. })) = (tags, &mut body) {
                *flags &= !flags::OPENING;
                *tag = (*tag).max(1);
            }
            let header = Header { id: Id64::new(n), one_way: false, body };
            let placement = host.handle_packet(now, 0, &packet(from, 0, header));
            if let Placement::Store(slice) = placement {
                prop_assert!(slice.len < 2_000);
            }
            while let Some(event) = host.poll_event() {
                if let Event::Stream(StreamEvent::Opened { peer, id }) = event {
                    let _ = host.write(now, peer, id.response(), 3_000, n % 3 == 0);
                }
            }
            if n % 2 == 0 {
                let _ = host.poll_transmit(now, 0);
            }
            host.check_bounds();
            now += Span::from_ps(1_000);
        }
        // Without further packets, all streams are given up.
        let mut fired = 0;
        while let Some(at) = host.poll_timeout() {
            while host.poll_transmit(now, 0).is_some() {}
            prop_assert!(at >= now || fired == 0);
            now = now.max(at);
            host.handle_timeout(now);
            while host.poll_event().is_some() {}
            host.check_bounds();
            fired += 1;
            prop_assert!(fired < 10_000, "it goes on and on");
        }
        prop_assert_eq!(host.rpcs_under_way(), 0);
    }
}

mod chaos {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::{Config, Host, LINK, paper};
    use crate::tests::stream_chaos::{run, schedules};

    const WINDOW: u32 = 50_000;

    fn survives(
        schedule: &crate::tests::stream_chaos::Schedule,
        mut config: Config,
    ) -> Result<(), TestCaseError> {
        config.streams.window_bytes = WINDOW;
        config.streams.ping_ticks = 50;
        let config = Arc::new(config);
        run(schedule, |id| Host::new(id, Arc::clone(&config)), Host::is_idle, Host::check_bounds)
    }

    proptest! {
        #![proptest_config(rackweave_testing::cases(100))]

        #[test]
        fn any_schedule_as_in_the_paper(schedule in schedules(WINDOW.into())) {
            survives(&schedule, paper())?;
        }

        #[test]
        fn any_schedule_as_on_linux(schedule in schedules(WINDOW.into())) {
            survives(&schedule, Config::linux(LINK))?;
        }
    }
}
