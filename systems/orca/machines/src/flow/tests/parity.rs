//! What parity saves, and which parity is sent for which reports.

use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_wire::orca::{
    Body, Data, Gap, Label, Labelled, Parity, Place, Reason, Session, Status,
};

use super::super::network::{App, HEADERS, Link, Network};
use super::super::{
    FlowConfig, Outgoing, Piece, Placement, Receiver, ReceiverEvent, Recovery, Sender, SenderEvent,
};

/// Sends 32 MiB to `receivers` at 1 Gbps. `lost` returns how many packets of a million each of them loses. Returns the
/// time as a multiple of the link time, and the share of repairs in percent.
fn cast(
    seed: u64,
    fec_block: u8,
    receivers: usize,
    lost: impl Fn(usize) -> u64,
) -> (f64, f64, Network) {
    let (bytes, mbps) = (32 << 20, 1000);
    let config = FlowConfig { fec_block, ..FlowConfig::default() };
    let mut net = Network::new(seed, mbps, config);
    net.source(None);
    for end in 0..receivers {
        net.end(0, Link { lost: lost(end), ..Link::new(mbps) }, App::default());
    }
    for end in 0..receivers {
        net.invite(end);
    }
    net.sources[0].machine.offer(net.now, bytes);
    net.sources[0].machine.finish(net.now);
    net.run(Time::ZERO + Span::from_secs(100));
    net.check_bounds();
    let payload = u64::from(config.payload);
    let ideal = Rate(mbps * 1_000_000).span_of(bytes + bytes.div_ceil(payload) * HEADERS);
    let last = net.ends.iter().map(|end| end.ended.expect("ended")).max().expect("receivers");
    let summary = net.sources[0].machine.summary();
    let again = summary.repaired_bytes();
    let more = again as f64 / bytes as f64 * 100.0;
    (last.as_us_f64() / ideal.as_us_f64(), more, net)
}

#[test]
fn random_loss_costs_less_than_a_tenth() {
    let random = [(4, 10_000), (16, 10_000), (64, 10_000), (16, 1000), (4, 50_000), (16, 50_000)];
    for (receivers, lost) in random {
        let (clean, _, _) = cast(1, 64, receivers, |_| 0);
        // At such loss the congestion window depends much on which packets are lost: the mean of several runs counts.
        let runs = if lost == 50_000 { 4 } else { 1 };
        let [off, on] = [0, 64].map(|block| {
            let casts = (1..=runs).map(|seed| cast(seed, block, receivers, |_| lost));
            let (time, again) = casts.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (time / runs as f64, again / runs as f64)
        });
        println!(
            "{receivers} receivers, {} % each: {:.4} of the time without loss ({:.4} without parity), {:.2} % again ({:.2} %)",
            lost as f64 / 10_000.0,
            on.0 / clean,
            off.0 / clean,
            on.1,
            off.1,
        );
        assert!(on.1 < off.1 && on.0 < off.0 * 1.01);
        if lost == 10_000 {
            assert!(on.0 < 1.10 * clean, "{}", on.0 / clean);
        }
    }
}

#[test]
fn without_loss_nothing_changes() {
    let [off, on] = [0, 64].map(|block| cast(1, block, 16, |_| 0));
    assert_eq!(off.0, on.0);
    let sent = |net: &Network| {
        (net.sources[0].sent_bytes, net.sources[0].controls, net.sources[0].statuses)
    };
    assert_eq!(sent(&off.2), sent(&on.2));
    assert_eq!(on.2.sources[0].machine.summary(), off.2.sources[0].machine.summary());
}

/// What only one receiver lacks is retransmitted to it by unicast, without parity.
#[test]
fn one_bad_receiver_of_many_costs_the_others_nothing() {
    let [off, on] =
        [0, 64].map(|block| cast(1, block, 16, |end| if end == 3 { 50_000 } else { 0 }));
    println!("{:.4} {:.4}; again {:.2} % {:.2} %", on.0, off.0, on.1, off.1);
    let summary = on.2.sources[0].machine.summary();
    assert_eq!(summary.parity, 0);
    assert!(on.0 < off.0 * 1.01 && on.1 < off.1 * 1.02);
}

const P: u64 = 1000;

fn us(n: u64) -> Time {
    Time::ZERO + Span::from_us(n)
}

/// A sender with blocks of 4 cells and this number of receivers, which joined at 100 us. Its first 10 cells are sent.
fn sender(receivers: u8, fec_block: u8, copies: u32) -> Sender {
    let config = FlowConfig { payload: P as u16, fec_block, ..FlowConfig::default() };
    let mut sender = Sender::new(Time::ZERO, Session(1), 7, false, config);
    let place = |port| Place { rack: 0, port };
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
    sender.set_copies(copies);
    sender.offer(us(100), 10 * P);
    assert_eq!(out(&mut sender, us(100)).len(), 10);
    sender
}

fn out(sender: &mut Sender, now: Time) -> Vec<Outgoing> {
    sender.handle_timeout(now);
    core::iter::from_fn(|| sender.poll(now)).collect()
}

/// Reports that a receiver has seen the first 10 cells, but not these.
fn misses(sender: &mut Sender, now: Time, port: u8, cells: &[u64]) {
    let mut status = Status {
        rack: 0,
        who: 1 << port,
        have: cells.first().map_or(10, |first| *first) * P,
        slowest: port,
        seen: 10 * P,
        limit: 1 << 20,
        ..Status::default()
    };
    for (gap, cell) in status.gaps.iter_mut().zip(cells) {
        *gap = Gap { offset: cell * P, len: P as u32, who: 1 << port };
    }
    sender.handle_control(now, HostId(port.into()), &Body::Status(status));
}

const fn piece(offset: u64, parity: Option<Parity>) -> Piece {
    Piece { offset, len: P as u16, repair: true, end: false, parity }
}

/// A parity of a full block of four cells.
const fn parity(block: u64, index: u8) -> Piece {
    let parity = Parity { index, data: 4, parity: 32, last: P as u16 };
    piece(block * 4 * P, Some(parity))
}

/// For each case: what four receivers lack, the cost of a packet to everyone, and what is sent.
#[test]
fn the_cheapest_repair_is_chosen() {
    let all = |piece| Outgoing::Everyone(piece);
    let one = |host, piece| Outgoing::One(HostId(host), piece);
    let cell = |number| piece(number * P, None);
    type Missed<'a> = [&'a [u64]; 4];
    let table: [(Missed<'_>, u32, Vec<Outgoing>); 8] = [
        // A single receiver gets its cells.
        ([&[1, 2], &[], &[], &[]], 1, vec![one(0, cell(1)), one(0, cell(2))]),
        // If all lack the same cell, the cell itself goes to everyone.
        ([&[1], &[1], &[1], &[]], 1, vec![all(cell(1))]),
        // If they lack different cells, one parity serves all of them.
        ([&[0], &[1], &[2], &[]], 1, vec![all(parity(0, 0))]),
        ([&[0, 1], &[2, 3], &[], &[]], 1, vec![all(parity(0, 0)), all(parity(0, 1))]),
        // A receiver that needs more than the others gets the rest by unicast.
        (
            [&[0, 1, 2], &[2], &[3], &[]],
            1,
            vec![all(parity(0, 0)), one(0, parity(0, 1)), one(0, parity(0, 2))],
        ),
        // Each block is repaired separately. Data after the last whole block is repaired by cells.
        (
            [&[0, 4], &[1, 5], &[9], &[]],
            1,
            vec![all(parity(0, 0)), all(parity(1, 0)), one(2, cell(9))],
        ),
        // A packet to everyone is expensive: only what more than two receivers need is sent to everyone.
        ([&[0], &[1], &[], &[]], 2, vec![one(0, cell(0)), one(1, cell(1))]),
        ([&[0, 3], &[1], &[2], &[]], 2, vec![all(parity(0, 0)), one(0, parity(0, 1))]),
    ];
    for (missed, copies, expected) in table {
        let mut sender = sender(4, 4, copies);
        for (port, cells) in (0..).zip(missed) {
            misses(&mut sender, us(300), port, cells);
        }
        assert_eq!(out(&mut sender, us(300)), [], "a short wait");
        let mut sent = out(&mut sender, us(400));
        sent.sort_by_key(|out| matches!(out, Outgoing::One(_, piece) if piece.parity.is_none()));
        assert_eq!(sent, expected, "{missed:?} {copies}");
        // Reports that were sent before the repair can have arrived change nothing; neither do missing cells that the
        // same parity fills.
        for (port, cells) in (0..).zip(missed) {
            misses(&mut sender, us(500), port, cells);
        }
        assert_eq!(out(&mut sender, us(1200)), [], "{missed:?} {copies}");
        let parities = expected.iter().filter(|out| {
            matches!(out, Outgoing::Everyone(it) | Outgoing::One(_, it) if it.parity.is_some())
        });
        assert_eq!(sender.summary().parity, parities.count() as u64 * P);
    }
}

/// The repair of a block is decided when all of it is sent and all receivers have reported. Losses that are found later
/// and are covered by repairs in flight cost nothing. Lost repairs lead to new parities, and in the end to cells.
#[test]
fn a_block_from_its_first_loss_to_its_last() {
    let mut sender = sender(3, 8, 1);
    misses(&mut sender, us(300), 0, &[8]);
    misses(&mut sender, us(300), 1, &[9]);
    // Its other cells are still to come, so the block is not whole.
    sender.offer(us(300), 16 * P);
    assert_eq!(out(&mut sender, us(300)).len(), 6);
    assert_eq!(out(&mut sender, us(400)), [], "not all have reported");
    let seen = |sender: &mut Sender, now, port: u8, have: u64, gaps: &[(u64, u64)]| {
        let mut status = Status {
            who: 1 << port,
            have: have * P,
            slowest: port,
            seen: 16 * P,
            limit: 1 << 20,
            ..Status::default()
        };
        for (gap, (from, to)) in status.gaps.iter_mut().zip(gaps) {
            *gap = Gap { offset: from * P, len: ((to - from) * P) as u32, who: 1 << port };
        }
        sender.handle_control(now, HostId(port.into()), &Body::Status(status));
    };
    let block = |index| {
        let parity = Parity { index, data: 8, parity: 32, last: P as u16 };
        Outgoing::Everyone(piece(8 * P, Some(parity)))
    };
    seen(&mut sender, us(600), 0, 8, &[(8, 9)]);
    seen(&mut sender, us(600), 1, 9, &[(9, 10)]);
    assert_eq!(out(&mut sender, us(600)), [], "the third has not reported");
    seen(&mut sender, us(650), 2, 16, &[]);
    assert_eq!(out(&mut sender, us(650)), [block(0)]);
    // The parity of the block needs all of its bytes.
    assert_eq!(sender.released(), 8 * P);
    // The same parity serves a receiver that lacks another cell.
    seen(&mut sender, us(700), 2, 15, &[(15, 16)]);
    // A receiver that lacks two cells needs another parity, which it gets by unicast.
    seen(&mut sender, us(700), 1, 9, &[(9, 11)]);
    let now = us(1800);
    let sent = out(&mut sender, now);
    assert_eq!(sent, [Outgoing::One(HostId(1), piece(10 * P, None))]);
    // Long after that, both lack as much as before: new parities are sent, for three rounds in total.
    let mut all = Vec::new();
    for round in 1..6 {
        let now = us(400_000 * round);
        seen(&mut sender, now, 0, 8, &[(8, 9)]);
        seen(&mut sender, now, 1, 9, &[(9, 10)]);
        // The last packet is repeated besides, as a probe, and after a second smaller packets are tried.
        let probe = |out: &Outgoing| matches!(out, Outgoing::Everyone(it) if it.offset == 15 * P);
        let sent = out(&mut sender, now + Span::from_ms(2)).into_iter();
        let small = |out: &Outgoing| matches!(out, Outgoing::One(_, it) if u64::from(it.len) < P);
        let other =
            |out: &Outgoing| matches!(out, Outgoing::Control(..)) || probe(out) || small(out);
        all.extend(sent.filter(|out| !other(out)));
    }
    let one = |host, number| Outgoing::One(HostId(host), piece(number * P, None));
    let cells = [one(0, 8), one(1, 9)];
    assert_eq!(all, [&[block(1), block(2)][..], &cells, &cells, &cells].concat());
}

fn receiver() -> Receiver {
    let config = FlowConfig { payload: P as u16, ..FlowConfig::default() };
    let place = Place { rack: 0, port: 3 };
    let mut receiver =
        Receiver::new(Time::ZERO, Session(1), 1, 7, HostId(9), place, 0, 100_000, false, config);
    assert!(receiver.poll(Time::ZERO).is_some());
    receiver
}

const fn data(piece: Piece) -> Data {
    let Piece { offset, len, repair, end, parity } = piece;
    let label = Label(0);
    Data { labelled: Labelled::Host, label, session: Session(1), offset, len, repair, end, parity }
}

fn gaps(receiver: &mut Receiver, now: Time) -> Vec<(u64, u32)> {
    let mut all = Vec::new();
    while let Some((_, body)) = receiver.poll(now) {
        let Body::Status(status) = body else { panic!("{body:?}") };
        all.extend(status.gaps.iter().filter(|gap| gap.len > 0).map(|gap| (gap.offset, gap.len)));
    }
    all
}

#[test]
fn a_receiver_asks_for_what_its_parities_do_not_fill() {
    let mut receiver = receiver();
    for number in [0, 3, 6, 7, 8] {
        assert!(receiver.handle_data(us(1000), &data(piece(number * P, None))).is_some());
    }
    assert_eq!(gaps(&mut receiver, us(1000)), [(1000, 2000), (4000, 2000)]);
    // No parity is stored for a block that has arrived completely.
    let of = |block: u64, index| {
        let parity = Parity { index, data: 3, parity: 8, last: P as u16 };
        data(piece(block * 3 * P, Some(parity)))
    };
    assert_eq!(receiver.handle_data(us(1500), &of(2, 0)), None);
    let keep = |block: u64, index| {
        let (session, block) = (Session(1), block * 3 * P);
        Some(Placement::Keep { session, block, end: block + 3 * P, index })
    };
    assert_eq!(receiver.handle_data(us(1500), &of(0, 5)), keep(0, 5));
    assert_eq!(receiver.handle_data(us(1500), &of(0, 5)), None, "once");
    receiver.handle_timeout(us(4000));
    assert_eq!(gaps(&mut receiver, us(4000)), [(1000, 1000), (4000, 2000)]);
    // The cell that was requested, or another one.
    assert_eq!(receiver.poll_event(), Some(ReceiverEvent::Readable { upto: 1000 }));
    assert!(receiver.handle_data(us(5000), &data(piece(2000, None))).is_some());
    let recovery = Recovery { block: 0, end: 3000, payload: 1000, missing: 0b10, parities: 1 << 5 };
    assert_eq!(receiver.poll_event(), Some(ReceiverEvent::Recover(recovery)));
    receiver.recovered(us(5000), 0, true);
    assert_eq!(receiver.have(), 4000);
    // Two cells are recovered at once.
    assert_eq!(receiver.handle_data(us(5000), &of(1, 1)), keep(1, 1));
    assert_eq!(receiver.handle_data(us(5000), &of(1, 0)), keep(1, 0));
    let events: Vec<_> = core::iter::from_fn(|| receiver.poll_event()).collect();
    let recovery =
        Recovery { block: 3000, end: 6000, payload: 1000, missing: 0b110, parities: 0b11 };
    assert_eq!(events, [ReceiverEvent::Readable { upto: 4000 }, ReceiverEvent::Recover(recovery)]);
    // The recovery fails: all missing cells are requested.
    receiver.recovered(us(5000), 3000, false);
    receiver.handle_timeout(us(8000));
    assert_eq!(gaps(&mut receiver, us(8000)), [(4000, 2000)]);
}

#[test]
fn parity_that_can_not_be_right_is_not_kept() {
    let good = Parity { index: 1, data: 4, parity: 8, last: 700 };
    let bad = [
        (4 * P, P, Parity { index: 8, ..good }),
        (4 * P, P, Parity { parity: 33, ..good }),
        (4 * P, P, Parity { data: 0, ..good }),
        (4 * P, P, Parity { data: 65, ..good }),
        (4 * P, P, Parity { last: 0, ..good }),
        (4 * P, P, Parity { last: 1001, ..good }),
        (4 * P, P - 1, good),
        (4 * P + 1, P, good),
        // Parities beyond the receive window and beyond all bounds.
        (98 * P, P, good),
        ((1 << 48) - 8 * P, P, good),
        (u64::MAX / P * P, P, good),
    ];
    for (offset, len, parity) in bad {
        let mut receiver = receiver();
        assert!(receiver.handle_data(us(1000), &data(piece(0, None))).is_some());
        let packet = Data { offset, len: len as u16, ..data(piece(0, Some(parity))) };
        assert_eq!(receiver.handle_data(us(1000), &packet), None, "{packet:?}");
        assert_eq!(gaps(&mut receiver, us(1000)), []);
    }
    // Parities that contradict the first one of their block, or the end of the stream.
    let mut receiver = receiver();
    let packet = |parity| data(piece(4 * P, Some(parity)));
    assert!(receiver.handle_data(us(1000), &packet(good)).is_some());
    for other in
        [Parity { data: 3, ..good }, Parity { last: 701, ..good }, Parity { parity: 9, ..good }]
    {
        assert_eq!(receiver.handle_data(us(1000), &packet(Parity { index: 2, ..other })), None);
    }
    receiver.handle_control(us(1000), &Body::End { length: 7000 });
    assert_eq!(receiver.handle_data(us(1000), &packet(Parity { index: 2, ..good })), None);
}

/// A receiver that joined within a block cannot use its parity, and gets cells.
#[test]
fn a_receiver_that_joins_within_a_block_gets_cells() {
    let mut net = Network::new(1, 1000, FlowConfig::default());
    net.source(None);
    for at in [0, 0, 1400 * 10, 1400 * 70 + 3] {
        net.end(0, Link { lost: 100_000, ..Link::new(1000) }, App { at, ..App::default() });
    }
    for end in 0..4 {
        net.invite(end);
    }
    net.sources[0].machine.offer(net.now, 1 << 20);
    net.sources[0].machine.finish(net.now);
    net.run(Time::ZERO + Span::from_secs(100));
    assert!(net.ends.iter().all(|end| end.ended.is_some()));
    assert!(net.ends[..2].iter().all(|end| end.recovered > 0));
    let lost = |event: &(Time, SenderEvent)| matches!(event.1, SenderEvent::Lost { .. });
    assert!(!net.sources[0].events.iter().any(lost));
    assert_eq!(net.ends[0].failed, None::<Reason>);
}
