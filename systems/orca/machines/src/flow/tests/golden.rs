//! Exchanges between a sender and receivers, packet by packet.

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Data, Gap, Label, Labelled, Place, Reason, Session, Status};

use super::super::{
    FlowConfig, Outgoing, Piece, Receiver, ReceiverEvent, ReceiverStatus, Sender, SenderEvent,
};

const P: u64 = 1000;

fn config() -> FlowConfig {
    FlowConfig { payload: P as u16, fec_block: 0, ..FlowConfig::default() }
}

fn us(n: u64) -> Time {
    Time::ZERO + Span::from_us(n)
}

fn place(port: u8) -> Place {
    Place { rack: 0, port }
}

/// A sender with this number of receivers, which joined at 100 us.
fn sender(receivers: u8) -> Sender {
    let mut sender = Sender::new(Time::ZERO, Session(1), 7, false, config());
    for port in 0..receivers {
        sender.invite(Time::ZERO, HostId(port.into()), place(port));
    }
    for port in 0..receivers {
        let join =
            Body::Join { incarnation: 1, stream: 7, place: place(port), at: 0, limit: 1 << 20 };
        sender.handle_control(us(100), HostId(port.into()), &join);
    }
    while sender.poll(us(100)).is_some() {}
    while sender.poll_event().is_some() {}
    sender
}

fn everything(sender: &mut Sender, now: Time) -> Vec<Outgoing> {
    core::iter::from_fn(|| sender.poll(now)).collect()
}

fn events(sender: &mut Sender) -> Vec<SenderEvent> {
    core::iter::from_fn(|| sender.poll_event()).collect()
}

/// A receiver's report: it has `have`, has seen `seen`, and lacks these ranges.
fn status(port: u8, have: u64, seen: u64, gaps: &[(u64, u64)]) -> Body {
    let mut status = Status {
        rack: 0,
        who: 1 << port,
        have,
        slowest: port,
        seen,
        limit: 1 << 20,
        ..Status::default()
    };
    for (gap, (from, to)) in status.gaps.iter_mut().zip(gaps) {
        *gap = Gap { offset: *from, len: (to - from) as u32, who: 1 << port };
    }
    Body::Status(status)
}

const fn piece(offset: u64, len: u64, repair: bool, end: bool) -> Piece {
    Piece { offset, len: len as u16, repair, end, parity: None }
}

#[test]
fn invitation_and_start() {
    let mut sender = Sender::new(Time::ZERO, Session(1), 7, true, config());
    sender.invite(Time::ZERO, HostId(4), place(4));
    sender.invite(Time::ZERO, HostId(5), place(5));
    sender.offer(Time::ZERO, 2500);
    let invite =
        |port| Body::Invite { stream: 7, place: place(port), payload: 1000, via_agent: true };
    let all = everything(&mut sender, Time::ZERO);
    assert_eq!(all, [4, 5].map(|n| Outgoing::Control(HostId(n.into()), invite(n))));
    // The first receiver joins. The start waits for the second one, which refuses.
    let join = Body::Join { incarnation: 1, stream: 7, place: place(4), at: 0, limit: 1 << 20 };
    sender.handle_control(us(50), HostId(4), &join);
    let mode = Body::Mode { detached: false };
    assert_eq!(everything(&mut sender, us(50)), [Outgoing::Control(HostId(4), mode)]);
    sender.handle_control(us(60), HostId(5), &Body::Bye { reason: Reason::Refused });
    let all = everything(&mut sender, us(60));
    let bye = Body::Bye { reason: Reason::Refused };
    // The short piece waits a limited time for more bytes of the application.
    assert_eq!(
        all,
        [
            Outgoing::Control(HostId(5), bye),
            Outgoing::Everyone(piece(0, 1000, false, false)),
            Outgoing::Everyone(piece(1000, 1000, false, false)),
        ]
    );
    assert_eq!(sender.poll_timeout(), Some(us(500)));
    sender.handle_timeout(us(500));
    assert_eq!(
        everything(&mut sender, us(500)),
        [Outgoing::Everyone(piece(2000, 500, false, false))]
    );
    assert_eq!(
        events(&mut sender),
        [
            SenderEvent::Joined { host: HostId(4), at: 0 },
            SenderEvent::Attached { host: HostId(4) },
            SenderEvent::Lost { host: HostId(5), reason: Reason::Refused },
        ]
    );
}

/// Without reports the last packet is repeated: at first often, because an agent may have failed, then rarely. A short stream is
/// repeated once in that time.
#[test]
fn a_stall_is_probed() {
    a_stall_of_a_stream_is_probed(150, 95..=100);
    a_stall_of_a_stream_is_probed(10, 8..=10);
}

fn a_stall_of_a_stream_is_probed(packets: u64, expected: core::ops::RangeInclusive<usize>) {
    let mut sender = sender(2);
    let head = packets * P;
    sender.offer(us(100), head);
    let (mut now, mut sent) = (us(100), everything(&mut sender, us(100)).len() as u64);
    while sent < packets {
        now = sender.poll_timeout().expect("goes on").max(now);
        sender.handle_timeout(now);
        sent += everything(&mut sender, now).len() as u64;
    }
    // The round trip of all receivers is 200 us.
    now += Span::from_us(200);
    let have = head - 9 * P;
    for port in 0..2 {
        sender.handle_control(now, HostId(port.into()), &status(port, have, have, &[]));
    }
    let probe = Outgoing::Everyone(piece(head - P, 1000, true, false));
    let mut probes = Vec::new();
    while now < us(300_000) {
        now = sender.poll_timeout().expect("goes on").max(now);
        sender.handle_timeout(now);
        for out in everything(&mut sender, now) {
            assert_eq!(out, probe);
            probes.push(now.since(Time::ZERO).as_us());
        }
    }
    let waits: Vec<u64> = probes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let often = waits.iter().take_while(|wait| **wait == 500).count();
    assert!(expected.contains(&often), "{probes:?}");
    assert!(waits[often..].windows(2).all(|pair| pair[1] >= pair[0]), "{waits:?}");
    assert!(waits.last().is_some_and(|wait| *wait > 50_000), "{waits:?}");
    // A report of progress ends the stall: missing data is retransmitted at once, and the interval before the next
    // probe is back at its initial value.
    let last = *probes.last().expect("several");
    let now = us(last + 200);
    for port in 0..2 {
        let gap = [(have, head - P)];
        sender.handle_control(now, HostId(port.into()), &status(port, have, head, &gap));
    }
    let due = us(last + 300);
    sender.handle_timeout(due);
    assert_eq!(everything(&mut sender, due).len(), 8);
}

/// Gaps that a probe reveals are reported at once.
#[test]
fn a_probe_is_answered_at_once() {
    let mut receiver = receiver();
    assert!(receiver.handle_data(us(1000), &data(0, 1000, false)).is_some());
    assert_eq!(reports(&mut receiver, us(1000)), [(1000, vec![])]);
    let probe = Data { repair: true, ..data(9000, 1000, false) };
    assert!(receiver.handle_data(us(5000), &probe).is_some());
    assert_eq!(reports(&mut receiver, us(5000)), [(1000, vec![(1000, 8000)])]);
}

/// The receivers that lack a packet, the cost of a packet to everyone, and the destinations of the retransmission.
#[test]
fn destinations_of_a_retransmission() {
    let one = |host| Outgoing::One(HostId(host), piece(2000, 1000, true, false));
    let all = Outgoing::Everyone(piece(2000, 1000, true, false));
    let table: [(&[u8], u32, Vec<Outgoing>); 6] = [
        (&[1], 1, vec![one(1)]),
        (&[1, 2], 1, vec![all]),
        (&[0, 1, 2, 3], 1, vec![all]),
        (&[1, 2], 4, vec![one(1), one(2)]),
        (&[0, 1, 2], 4, vec![one(0), one(1), one(2)]),
        (&[0, 1, 2, 3], 4, vec![all]),
    ];
    for (who, copies, expected) in table {
        let mut sender = sender(4);
        sender.set_copies(copies);
        sender.offer(us(100), 10 * P);
        assert_eq!(everything(&mut sender, us(100)).len(), 10);
        for port in who {
            sender.handle_control(
                us(300),
                HostId((*port).into()),
                &status(*port, 2000, 10_000, &[(2000, 3000)]),
            );
        }
        // The sender waits shortly, so that other receivers can report the gap too.
        assert_eq!(everything(&mut sender, us(300)), []);
        sender.handle_timeout(us(400));
        assert_eq!(everything(&mut sender, us(400)), expected, "{who:?} {copies}");
        // Reports that were sent before the retransmission can have arrived change nothing.
        for port in who {
            sender.handle_control(
                us(500),
                HostId((*port).into()),
                &status(*port, 2000, 10_000, &[(2000, 3000)]),
            );
        }
        sender.handle_timeout(us(1200));
        assert_eq!(everything(&mut sender, us(1200)), []);
        // Later reports mean that the retransmission was lost.
        for port in who {
            sender.handle_control(
                us(4000),
                HostId((*port).into()),
                &status(*port, 2000, 10_000, &[(2000, 3000)]),
            );
        }
        sender.handle_timeout(us(4200));
        assert_eq!(everything(&mut sender, us(4200)), expected, "again {who:?} {copies}");
        let summary = sender.summary();
        let bytes: u64 = expected.len() as u64 * 2 * P;
        assert_eq!(summary.repaired_all + summary.repaired_one, bytes);
    }
}

#[test]
fn only_bytes_that_a_receiver_lacks_are_retransmitted() {
    let mut sender = sender(2);
    sender.offer(us(100), 10 * P);
    assert_eq!(everything(&mut sender, us(100)).len(), 10);
    sender.handle_control(us(300), HostId(0), &status(0, 2000, 10_000, &[(2000, 3000)]));
    // The packet was late and not lost.
    sender.handle_control(us(310), HostId(0), &status(0, 10_000, 10_000, &[]));
    sender.handle_timeout(us(1500));
    assert_eq!(everything(&mut sender, us(1500)), []);
    sender.handle_control(us(1500), HostId(1), &status(1, 9000, 9000, &[]));
    assert_eq!(sender.released(), 9000);
}

#[test]
fn the_end_of_a_stream() {
    let mut sender = sender(2);
    sender.offer(us(100), 1500);
    sender.finish(us(100));
    let sent = [piece(0, 1000, false, false), piece(1000, 500, false, true)];
    assert_eq!(everything(&mut sender, us(100)), sent.map(Outgoing::Everyone));
    for port in 0..2 {
        sender.handle_control(us(200), HostId(port.into()), &status(port, 1500, 1500, &[]));
    }
    assert_eq!(sender.released(), 1500);
    sender.handle_control(us(300), HostId(0), &Body::Complete { place: place(0) });
    let bye = |host| Outgoing::Control(HostId(host), Body::Bye { reason: Reason::Left });
    assert_eq!(everything(&mut sender, us(300)), [bye(0)]);
    assert!(!sender.is_over());
    // The acknowledgement was lost.
    sender.handle_control(us(9000), HostId(0), &Body::Complete { place: place(0) });
    assert_eq!(everything(&mut sender, us(9000)), [bye(0)]);
    sender.handle_control(us(9100), HostId(1), &Body::Complete { place: place(1) });
    assert_eq!(everything(&mut sender, us(9100)), [bye(1)]);
    let completed = [0, 1].map(|host| SenderEvent::Completed { host: HostId(host) });
    assert_eq!(events(&mut sender), [completed[0], completed[1], SenderEvent::Finished]);
    assert_eq!(sender.poll_timeout(), None);
    sender.handle_control(us(20_000), HostId(1), &Body::Complete { place: place(1) });
    assert_eq!(everything(&mut sender, us(20_000)), [bye(1)], "also when all is over");
}

#[test]
fn an_end_that_comes_after_the_last_byte() {
    let mut sender = sender(1);
    sender.offer(us(100), 1000);
    assert_eq!(everything(&mut sender, us(100)).len(), 1);
    sender.finish(us(5000));
    let end = Outgoing::Control(HostId(0), Body::End { length: 1000 });
    assert_eq!(everything(&mut sender, us(5000)), [end]);
    sender.handle_control(us(5100), HostId(0), &status(0, 1000, 1000, &[]));
    // It is repeated at growing intervals until the receiver completes.
    let (mut now, mut sent_at) = (us(5100), Vec::new());
    while sent_at.len() < 8 {
        now = sender.poll_timeout().expect("goes on").max(now);
        sender.handle_control(now, HostId(0), &status(0, 1000, 1000, &[]));
        sender.handle_timeout(now);
        let out = everything(&mut sender, now);
        assert!(out.iter().all(|out| *out == end), "{out:?}");
        sent_at.extend(out.iter().map(|_| now));
    }
    let waits: Vec<u64> = sent_at.windows(2).map(|pair| pair[1].since(pair[0]).ticks()).collect();
    assert!(waits.windows(2).all(|pair| pair[1] >= pair[0] / 2), "{waits:?}");
    assert!(waits.last().is_some_and(|wait| *wait >= Span::from_ms(400).ticks()), "{waits:?}");
}

#[test]
fn one_that_says_nothing_is_detached_and_then_lost() {
    let mut sender = sender(3);
    sender.offer(us(100), 1 << 20);
    let mut now = us(100);
    let mut head = 0;
    let mut log = Vec::new();
    while now < Time::ZERO + Span::from_secs(4) {
        for out in everything(&mut sender, now) {
            if let Outgoing::Everyone(piece) = out {
                head = head.max(piece.offset + u64::from(piece.len));
            }
        }
        log.extend(events(&mut sender).into_iter().map(|event| (now.as_ms(), event)));
        now += Span::from_ms(1);
        for port in 0..2 {
            sender.handle_control(now, HostId(port.into()), &status(port, head, head, &[]));
        }
        sender.handle_timeout(now);
    }
    let host = HostId(2);
    assert_eq!(log.len(), 2, "{log:?}");
    assert_eq!(log[0].1, SenderEvent::Detached { host });
    assert!((50..120).contains(&log[0].0), "{log:?}");
    assert_eq!(log[1].1, SenderEvent::Lost { host, reason: Reason::Silent });
    assert!((3000..3400).contains(&log[1].0), "{log:?}");
    assert_eq!(head, 1 << 20, "the others were not held up");
    let standing: Vec<_> = sender.receivers().map(|view| view.status).collect();
    assert_eq!(
        standing,
        [ReceiverStatus::Attached, ReceiverStatus::Attached, ReceiverStatus::Lost(Reason::Silent)]
    );
}

const fn data(offset: u64, len: u64, end: bool) -> Data {
    Data {
        labelled: Labelled::Host,
        label: Label(0),
        session: Session(1),
        offset,
        len: len as u16,
        repair: false,
        end,
        parity: None,
    }
}

fn receiver() -> Receiver {
    let mut receiver = Receiver::new(
        Time::ZERO,
        Session(1),
        1,
        7,
        HostId(9),
        place(3),
        0,
        100_000,
        false,
        config(),
    );
    let join = Body::Join { incarnation: 1, stream: 7, place: place(3), at: 0, limit: 100_000 };
    assert_eq!(receiver.poll(Time::ZERO), Some((HostId(9), join)));
    receiver
}

fn reports(receiver: &mut Receiver, now: Time) -> Vec<(u64, Vec<(u64, u32)>)> {
    let mut all = Vec::new();
    while let Some((_, body)) = receiver.poll(now) {
        let Body::Status(status) = body else { panic!("{body:?}") };
        let gaps = status.gaps.iter().filter(|gap| gap.len > 0);
        all.push((status.have, gaps.map(|gap| (gap.offset, gap.len)).collect()));
    }
    all
}

#[test]
fn when_a_receiver_reports() {
    let mut receiver = receiver();
    // The first packet is reported at once, the next one after the interval.
    assert!(receiver.handle_data(us(1000), &data(0, 1000, false)).is_some());
    assert_eq!(reports(&mut receiver, us(1000)), [(1000, vec![])]);
    assert!(receiver.handle_data(us(1200), &data(1000, 1000, false)).is_some());
    assert_eq!(reports(&mut receiver, us(1200)), []);
    assert_eq!(receiver.poll_timeout(), Some(us(2200)));
    receiver.handle_timeout(us(2200));
    assert_eq!(reports(&mut receiver, us(2200)), [(2000, vec![])]);
    // A gap is reported after three later packets,
    for number in 3..5 {
        assert!(receiver.handle_data(us(3000), &data(number * 1000, 1000, false)).is_some());
        assert_eq!(reports(&mut receiver, us(3000)), []);
    }
    assert!(receiver.handle_data(us(3000), &data(5000, 1000, false)).is_some());
    assert_eq!(reports(&mut receiver, us(3000)), [(2000, vec![(2000, 1000)])]);
    // or after a time.
    assert!(receiver.handle_data(us(3010), &data(7000, 1000, false)).is_some());
    assert_eq!(receiver.poll_timeout(), Some(us(3510)));
    receiver.handle_timeout(us(3510));
    let both = vec![(2000, 1000), (6000, 1000)];
    assert_eq!(reports(&mut receiver, us(3510)), [(2000, both.clone())]);
    // The report is repeated at growing intervals.
    let mut times = Vec::new();
    for _ in 0..6 {
        let now = receiver.poll_timeout().expect("gaps are left");
        receiver.handle_timeout(now);
        assert_eq!(reports(&mut receiver, now), [(2000, both.clone())]);
        times.push(now.since(Time::ZERO).as_us());
    }
    assert_eq!(times, [5510, 9510, 17_510, 33_510, 65_510, 129_510]);
    // Data that fills the gaps is reported at once.
    assert!(receiver.handle_data(us(191_600), &data(6000, 1000, false)).is_some());
    assert!(receiver.handle_data(us(191_600), &data(2000, 1000, true)).is_none(), "not the end");
    assert!(receiver.handle_data(us(191_600), &data(2000, 1000, false)).is_some());
    let events: Vec<_> = core::iter::from_fn(|| receiver.poll_event()).collect();
    assert_eq!(events, [ReceiverEvent::Readable { upto: 8000 }]);
}

#[test]
fn many_gaps_take_several_reports_but_not_any_number() {
    let mut receiver = receiver();
    for number in 0..40 {
        let _ = receiver.handle_data(us(1000), &data(number * 2000 + 1000, 1000, false));
    }
    let sent = reports(&mut receiver, us(1000));
    assert_eq!(sent.len(), 8);
    let gaps: Vec<_> = sent.into_iter().flat_map(|(_, gaps)| gaps).collect();
    assert_eq!(gaps, (0..24).map(|number| (number * 2000, 1000)).collect::<Vec<_>>());
}

#[test]
fn a_receiver_ends() {
    let mut receiver = receiver();
    assert!(receiver.handle_data(us(1000), &data(0, 1000, false)).is_some());
    let _ = reports(&mut receiver, us(1000));
    // An end beyond the received data means that the rest is missing; it is reported at once.
    receiver.handle_control(us(2000), &Body::End { length: 2500 });
    assert_eq!(reports(&mut receiver, us(2000)), [(1000, vec![(1000, 1500)])]);
    assert!(receiver.handle_data(us(2100), &data(2000, 600, false)).is_none(), "beyond the end");
    assert!(receiver.handle_data(us(2100), &data(2000, 500, true)).is_some());
    assert!(receiver.handle_data(us(2100), &data(1000, 1000, false)).is_some());
    let events: Vec<_> = core::iter::from_fn(|| receiver.poll_event()).collect();
    let ended = ReceiverEvent::Ended { length: 2500 };
    let [first, middle] = [1000, 2500].map(|upto| ReceiverEvent::Readable { upto });
    assert!(events == [first, middle, ended] || events == [middle, ended], "{events:?}");
    receiver.complete(us(3000));
    let complete = Some((HostId(9), Body::Complete { place: place(3) }));
    assert_eq!(receiver.poll(us(3000)), complete);
    assert_eq!(receiver.poll(us(3000)), None);
    assert_eq!(receiver.poll_timeout(), Some(us(8000)));
    assert_eq!(receiver.poll(us(8000)), complete);
    receiver.handle_control(us(8100), &Body::Bye { reason: Reason::Left });
    assert_eq!(receiver.poll_event(), Some(ReceiverEvent::Closed));
    assert!(receiver.is_over());
    assert_eq!(receiver.poll_timeout(), None);
}

/// An invitation may be delayed, or repeated by the network, until the application verifies the last bytes of the stream.
#[test]
fn a_receiver_that_is_invited_again_while_it_verifies_completes() {
    let mut receiver = receiver();
    assert!(receiver.handle_data(us(1000), &data(0, 1000, true)).is_some());
    let _ = reports(&mut receiver, us(1000));
    let via_agent = false;
    let invite = Body::Invite { stream: 7, place: place(3), payload: 1000, via_agent };
    receiver.handle_control(us(1100), &invite);
    receiver.complete(us(1200));
    // Neither late data nor a key of its own makes it begin again.
    let _ = receiver.handle_data(us(1300), &data(0, 1000, true));
    assert!(!receiver.can_restart());
    receiver.restart(us(1300), 9, 0);
    let sent: Vec<_> =
        core::iter::from_fn(|| receiver.poll(us(1300))).map(|(_, body)| body).collect();
    assert!(matches!(sent[..], [Body::Join { .. }]), "{sent:?}");
    receiver.handle_control(us(1400), &Body::Mode { detached: false });
    assert_eq!(receiver.poll(us(1400)), Some((HostId(9), Body::Complete { place: place(3) })));
    receiver.handle_control(us(1500), &Body::Bye { reason: Reason::Left });
    assert!(receiver.is_over());
}

#[test]
fn a_resumed_receiver_and_one_too_late() {
    let mut sender = Sender::new(Time::ZERO, Session(1), 7, false, config());
    sender.invite(Time::ZERO, HostId(0), place(0));
    sender.offer(Time::ZERO, 20_000);
    let join =
        |port, at| Body::Join { incarnation: 1, stream: 7, place: place(port), at, limit: 1 << 20 };
    // The only receiver has the beginning already, so none of it is sent.
    sender.handle_control(us(50), HostId(0), &join(0, 15_500));
    let first = everything(&mut sender, us(50)).into_iter().find_map(|out| match out {
        Outgoing::Everyone(piece) => Some(piece),
        _ => None,
    });
    assert_eq!(first, Some(piece(15_500, 500, false, false)));
    assert_eq!(sender.released(), 15_500);
    sender.handle_control(us(100), HostId(1), &join(1, 3000));
    let bye = Body::Bye { reason: Reason::TooLate };
    assert_eq!(everything(&mut sender, us(100)), [Outgoing::Control(HostId(1), bye)]);
    // A receiver that lacks only what the others lack too catches up by unicast and is then attached.
    sender.handle_control(us(100), HostId(2), &join(2, 16_000));
    let out = everything(&mut sender, us(100));
    assert_eq!(out[0], Outgoing::Control(HostId(2), Body::Mode { detached: true }));
    let to_it = |offset| Outgoing::One(HostId(2), piece(offset, 1000, false, false));
    assert_eq!(out[1..], [16_000, 17_000, 18_000, 19_000].map(to_it));
    // The time of the next tick; a probe may be due earlier.
    let now = us(6000);
    sender.handle_control(now, HostId(2), &status(2, 20_000, 20_000, &[]));
    sender.handle_timeout(now);
    let log = events(&mut sender);
    assert_eq!(log.last(), Some(&SenderEvent::Attached { host: HostId(2) }), "{log:?}");
}

/// The lowest gap of the others does not bound the repairs of a receiver that is attached behind them.
#[test]
fn one_that_is_attached_behind_the_others_is_repaired() {
    let mut sender = sender(1);
    sender.offer(us(100), 10 * P);
    assert_eq!(everything(&mut sender, us(100)).len(), 10);
    let join = Body::Join { incarnation: 1, stream: 7, place: place(1), at: 0, limit: 1 << 20 };
    sender.handle_control(us(200), HostId(1), &join);
    assert_eq!(everything(&mut sender, us(200)).len(), 11, "all of it, by unicast");
    sender.handle_control(us(300), HostId(0), &status(0, 10_000, 10_000, &[]));
    let gap = status(1, 2000, 10_000, &[(2000, 3000)]);
    let tick = us(6000);
    sender.handle_timeout(tick);
    assert_eq!(events(&mut sender).last(), Some(&SenderEvent::Attached { host: HostId(1) }));
    let _ = everything(&mut sender, tick);
    sender.handle_control(tick, HostId(1), &gap);
    let due = tick + Span::from_ms(1);
    sender.handle_timeout(due);
    let again = Outgoing::One(HostId(1), piece(2000, 1000, true, false));
    assert_eq!(everything(&mut sender, due), [again]);
}

#[test]
fn an_empty_stream_ends_too() {
    let mut sender = sender(2);
    sender.finish(us(200));
    let end = |host| Outgoing::Control(HostId(host), Body::End { length: 0 });
    assert_eq!(everything(&mut sender, us(200)), [end(0), end(1)]);
    let mut receiver = receiver();
    receiver.handle_control(us(300), &Body::End { length: 0 });
    assert_eq!(receiver.poll_event(), Some(ReceiverEvent::Ended { length: 0 }));
    receiver.complete(us(300));
    let complete = Body::Complete { place: place(3) };
    assert_eq!(receiver.poll(us(300)), Some((HostId(9), complete)));
    // A receiver that joins now is informed at once.
    let join = Body::Join { incarnation: 1, stream: 7, place: place(5), at: 0, limit: 1 << 20 };
    sender.handle_control(us(400), HostId(5), &join);
    let mode = Outgoing::Control(HostId(5), Body::Mode { detached: false });
    assert_eq!(everything(&mut sender, us(400)), [mode, end(5)]);
}
