//! The rules of credit: buckets, marks, and who is served.

use rackweave_core::{Ecn, HostId, Kind, Node as _, Packet, Span, Submit, Time, Transport as _};
use rackweave_wire::Id64;
use rackweave_wire::sird::{Body, Header};

use super::{Config, CreditOrder, Sird, paper};
use crate::sird::Host;
use crate::tests::Network;
use crate::tests::suite::{LINK, at, deliveries, id, network, submit};

const US: fn(u64) -> Span = Span::from_us;

/// A receiver, without a network.
fn receiver(config: Config) -> Host {
    Host::new(HostId(0), config.into())
}

fn request(host: &mut Host, now: Time, from: u32, n: u64, length: u32) {
    let body = Body::Request { message_length: length, unscheduled: 0 };
    arrive(host, now, from, n, body, Ecn::NotCapable);
}

fn data(
    host: &mut Host,
    now: Time,
    from: u32,
    n: u64,
    length: u32,
    number: u32,
    marks: (bool, bool),
) {
    let (offset, len) = (number * 1_460, 1_460.min(length - number * 1_460) as u16);
    let body = Body::Data { message_length: length, offset, len, unscheduled: 0, csn: marks.0 };
    arrive(host, now, from, n, body, if marks.1 { Ecn::Marked } else { Ecn::Capable });
}

fn arrive(host: &mut Host, now: Time, from: u32, n: u64, body: Body, ecn: Ecn) {
    let header = Header { id: Id64::new(id(n).0), one_way: true, body };
    let packet = Packet::new(HostId(from), HostId(0), 1_500, header).with_ecn(ecn);
    let _ = host.handle_packet(now, 0, &packet);
    host.check_bounds();
}

/// Runs the pacer to `until`, and takes the credits: to whom, and for which packet.
fn credits(host: &mut Host, until: Time) -> Vec<(u32, u32)> {
    let mut all = Vec::new();
    loop {
        let now = host.poll_timeout().unwrap_or(Time::MAX).min(until);
        host.handle_timeout(now);
        host.check_bounds();
        while let Some(packet) = host.poll_transmit(now, 0) {
            if let Body::Credit { packet: number } = packet.header.body {
                all.push((packet.dst.0, number));
            }
        }
        if now == until {
            return all;
        }
    }
}

#[test]
fn credit_never_exceeds_the_global_bucket() {
    let mut host = receiver(paper());
    for sender in 1..=9 {
        request(&mut host, Time::ZERO, sender, u64::from(sender), 1_000_000);
    }
    let given = credits(&mut host, at(US(900)));
    // 12 packets of credit: 8 to the first sender, whose bucket holds no more, 4 to the second.
    let to = |sender| given.iter().filter(|(to, _)| *to == sender).count();
    assert_eq!((to(1), to(2), given.len()), (8, 4, 12));
    assert_eq!(host.scheme.giving.buckets.outstanding(), 12 * 1_538);
    assert!(host.poll_timeout() > Some(at(US(900))), "the pacer waits for data");
    // Each packet that arrives is replaced by another credit.
    data(&mut host, at(US(900)), 2, 2, 1_000_000, 0, (false, false));
    assert_eq!(credits(&mut host, at(US(990))), [(2, 4)]);
}

#[test]
fn credit_is_paced_by_the_link() {
    let mut host = receiver(paper());
    request(&mut host, Time::ZERO, 1, 1, 1_000_000);
    // One at once, and one after each packet time of 1.23 us.
    let interval = LINK.span_of(1_538);
    for n in 0..5_u32 {
        let until = Time::ZERO + interval * u64::from(n);
        assert_eq!(credits(&mut host, until), [(1, n)], "{n}");
        assert_eq!(host.poll_timeout(), Some(until + interval));
    }
}

/// A credit for a packet of 100 bytes delays the next one by less.
#[test]
fn the_pacer_counts_bytes() {
    let mut host = receiver(Config { unscheduled_threshold: 0, ..paper() });
    request(&mut host, Time::ZERO, 1, 1, 100);
    request(&mut host, Time::ZERO, 2, 2, 1_000_000);
    assert_eq!(credits(&mut host, Time::ZERO + LINK.span_of(178)), [(1, 0), (2, 0)]);
}

/// The pacer does not make up for the time in which it had no credit to give.
#[test]
fn a_pause_is_not_followed_by_a_burst() {
    let mut host = receiver(paper());
    request(&mut host, at(US(500)), 1, 1, 1_000_000);
    let interval = LINK.span_of(1_538);
    assert_eq!(credits(&mut host, at(US(500)) + interval * 2).len(), 3);
}

#[test]
fn data_without_credit_counts_against_the_buckets() {
    let mut host = receiver(paper());
    // 8 packets of host 1 are on their way without credit, one has arrived.
    let body =
        Body::Data { message_length: 8 * 1_460, offset: 0, len: 1_460, unscheduled: 8, csn: false };
    arrive(&mut host, Time::ZERO, 1, 1, body, Ecn::Capable);
    assert_eq!(host.scheme.giving.buckets.outstanding(), 7 * 1_538);
    request(&mut host, Time::ZERO, 2, 2, 1_000_000);
    assert_eq!(credits(&mut host, at(US(900))).len(), 5, "B is 12 packets");
    // They are lost, and get credit; host 1 was not silent.
    assert_eq!(credits(&mut host, at(US(1_020)))[..2], [(1, 1), (1, 2)]);
}

#[test]
fn marks_of_a_sender_shrink_its_bucket_and_credit_goes_to_others() {
    for (csn, ecn) in [(true, false), (false, true)] {
        let mut host = receiver(paper());
        let length = 4_000 * 1_460;
        request(&mut host, Time::ZERO, 1, 1, length);
        let mut now = Time::ZERO;
        for n in 0..2_000 {
            now += US(2);
            credits(&mut host, now);
            data(&mut host, now, 1, 1, length, n, (csn, ecn));
        }
        let capacity = host.scheme.giving.buckets.capacity_of(HostId(1)).unwrap();
        assert!(capacity < 8 * 1_538 / 3, "{capacity}");
        // A longer message, which the shorter one precedes as long as its sender's bucket has room.
        request(&mut host, now, 2, 2, 10_000_000);
        let given = credits(&mut host, now + US(100));
        assert!(given.iter().filter(|(to, _)| *to == 2).count() >= 7, "{given:?}");
        // Without marks, the first sender's bucket grows again.
        for n in 2_000..3_900 {
            now += US(2);
            credits(&mut host, now);
            data(&mut host, now, 1, 1, length, n, (false, false));
        }
        assert_eq!(host.scheme.giving.buckets.capacity_of(HostId(1)), Some(8 * 1_538));
    }
}

#[test]
fn the_shortest_message_gets_credit_first() {
    let mut host = receiver(paper());
    request(&mut host, Time::ZERO, 1, 1, 3_000_000);
    request(&mut host, Time::ZERO, 2, 2, 30_000);
    request(&mut host, Time::ZERO, 3, 3, 20_000);
    // The first credit was given when there was only one message.
    let given = credits(&mut host, at(US(12)));
    let to: Vec<_> = given.iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [1, 3, 3, 3, 3, 3, 3, 3, 3, 2]);
}

#[test]
fn messages_get_credit_in_turn() {
    let mut host = receiver(Config { order: CreditOrder::RoundRobin, ..paper() });
    for sender in 1..=3 {
        request(&mut host, Time::ZERO, sender, u64::from(sender), 1_000_000);
    }
    let given = credits(&mut host, at(US(11)));
    let to: Vec<_> = given.iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
}

/// A sender that has failed holds one packet of credit, not a bucket.
#[test]
fn a_sender_that_uses_no_credit_is_probed() {
    let mut host = receiver(paper());
    request(&mut host, Time::ZERO, 1, 1, 30_000);
    let given = credits(&mut host, at(US(999)));
    assert_eq!(given.len(), 8);
    // After 1 ms a probe, after 2 ms more the next, after 4 ms more another, in all of 40 ms few.
    assert_eq!(credits(&mut host, at(Span::from_ms(2))), [(1, 0)]);
    assert_eq!(host.scheme.giving.buckets.outstanding(), 1_538);
    assert_eq!(credits(&mut host, at(Span::from_ms(40))).len(), 4);
    // It has been alive.
    data(&mut host, at(Span::from_ms(40)), 1, 1, 30_000, 0, (false, false));
    assert_eq!(credits(&mut host, at(Span::from_us(40_900))).len(), 8);
}

// --- the sender

/// A sender with messages of these lengths to hosts 1, 2, ...
fn sender(config: Config, lengths: &[u64]) -> Host {
    let mut host = Host::new(HostId(0), config.into());
    for (n, &bytes) in (1..).zip(lengths) {
        let (peer, kind) = (HostId(n as u32), Kind::OneWay);
        host.submit(Time::ZERO, Submit { id: id(n), peer, bytes, kind }).expect("taken");
    }
    while host.scheme.using_nothing() && host.poll_transmit(Time::ZERO, 0).is_some() {}
    host
}

impl Sird {
    fn using_nothing(&self) -> bool {
        self.using.nothing_is_ready()
    }
}

fn credit(host: &mut Host, from: u32, packets: core::ops::Range<u32>) {
    for packet in packets {
        let header = Header {
            id: Id64::new(id(u64::from(from)).0),
            one_way: true,
            body: Body::Credit { packet },
        };
        let packet = Packet::new(HostId(from), HostId(0), 40, header);
        let _ = host.handle_packet(Time::ZERO, 0, &packet);
        host.check_bounds();
    }
}

/// Takes the data packets: to whom, and whether they are marked.
fn sends(host: &mut Host) -> Vec<(u32, bool)> {
    let mut all = Vec::new();
    while let Some(packet) = host.poll_transmit(Time::ZERO, 0) {
        host.check_bounds();
        assert_eq!(packet.ecn(), if is_data(&packet) { Ecn::Capable } else { Ecn::NotCapable });
        if let Body::Data { csn, .. } = packet.header.body {
            all.push((packet.dst.0, csn));
        }
    }
    all
}

const fn is_data(packet: &Packet<Header>) -> bool {
    matches!(packet.header.body, Body::Data { .. })
}

/// `SThr` is 4 packets: of 8, the first three leave more than that.
#[test]
fn unused_credit_above_the_threshold_is_reported() {
    let mut host = sender(paper(), &[100_000, 100_000]);
    credit(&mut host, 1, 0..4);
    credit(&mut host, 2, 0..4);
    let marks: Vec<_> = sends(&mut host).iter().map(|(_, csn)| *csn).collect();
    assert_eq!(marks, [true, true, true, false, false, false, false, false]);
}

#[test]
fn a_single_message_is_not_reported() {
    let mut host = sender(paper(), &[100_000]);
    credit(&mut host, 1, 0..8);
    assert!(sends(&mut host).iter().all(|(_, csn)| !csn));
}

/// Half of the packets to the receiver of the shortest message, the rest to all in turn.
#[test]
fn a_sender_shares_its_link() {
    let mut host = sender(paper(), &[100_000, 200_000, 300_000]);
    for receiver in 1..=3 {
        credit(&mut host, receiver, 0..8);
    }
    let to: Vec<_> = sends(&mut host).iter().map(|(to, _)| *to).collect();
    assert_eq!(to[..12], [1, 1, 2, 1, 3, 1, 1, 1, 2, 1, 3, 1]);
    let mut fair = sender(Config { srpt_percent: 0, ..paper() }, &[100_000, 200_000, 300_000]);
    let mut srpt = sender(Config { srpt_percent: 100, ..paper() }, &[300_000, 200_000, 100_000]);
    for receiver in 1..=3 {
        credit(&mut fair, receiver, 0..3);
        credit(&mut srpt, receiver, 0..3);
    }
    let to: Vec<_> = sends(&mut fair).iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
    let to: Vec<_> = sends(&mut srpt).iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [3, 3, 3, 2, 2, 2, 1, 1, 1]);
}

/// What may be sent to a receiver without credit is a bandwidth-delay product for all messages together, and a packet for each.
#[test]
fn messages_to_one_receiver_share_what_needs_no_credit() {
    let mut host = Host::new(HostId(0), paper().into());
    for n in 1..=4 {
        let submit = Submit { id: id(n), peer: HostId(1), bytes: 5 * 1_460, kind: Kind::OneWay };
        host.submit(Time::ZERO, submit).expect("taken");
    }
    assert_eq!(sends(&mut host).len(), 5 + 3 + 1 + 1);
}

#[test]
fn a_credit_that_is_given_again_is_used_once() {
    let mut host = sender(paper(), &[100_000]);
    credit(&mut host, 1, 0..4);
    credit(&mut host, 1, 0..4);
    assert_eq!(sends(&mut host).len(), 4);
    // After it was used, it is for a packet that was lost.
    credit(&mut host, 1, 2..3);
    assert_eq!(sends(&mut host).len(), 1);
    credit(&mut host, 1, 0..1_000);
    assert_eq!(sends(&mut host).len(), 9, "no more than a bucket and a packet");
}

// --- both

/// One sender, three receivers: their credit settles at the sender near `SThr`, instead of at three buckets.
#[test]
fn a_congested_sender_holds_little_credit() {
    let held = |csn_threshold| {
        let config = Config { csn_threshold, ..Config::paper(LINK, 40 * 1_538) };
        let mut network: Network<Host> = network::<Sird>(&config, 4, US(5));
        network.keep_packets = false;
        for receiver in 1..=3 {
            submit(&mut network, 0, receiver, u64::from(receiver), 20_000_000, Kind::OneWay);
        }
        let mut sum = 0;
        for n in 0..100 {
            network.run_until(at(Span::from_ms(20) + US(n * 100)));
            sum += network.hosts[0].scheme.using.unused();
        }
        network.run_until(at(Span::from_ms(80)));
        assert_eq!(deliveries(&network).count(), 3);
        let last = deliveries(&network).map(|(time, _)| time).max().unwrap();
        let ideal = LINK.span_of(3 * 13_699 * 1_538);
        assert!(last < at(ideal + Span::from_us(500)), "{last} for {ideal}");
        sum / 100 / 1_538
    };
    let informed = held(20 * 1_538);
    assert!((5..40).contains(&informed), "{informed} packets");
    let uninformed = held(u64::MAX);
    assert!(uninformed > 80, "{uninformed} packets");
}

/// 100 KB of data without credit from each of 30 hosts wait in the switch for 2.4 ms, 24 times as long as `resend_after`: nothing is lost,
/// and nothing is sent twice.
#[test]
fn what_waits_in_a_queue_is_not_taken_for_lost() {
    let config = Config::paper(LINK, 100_000);
    let mut network: Network<Host> = network::<Sird>(&config, 31, US(2));
    for sender in 1..=30 {
        submit(&mut network, sender, 0, u64::from(sender), 65 * 1_460, Kind::OneWay);
    }
    network.run_until(at(Span::from_ms(20)));
    assert_eq!(deliveries(&network).count(), 30);
    let is_data = network.packets.iter().filter(|(_, packet)| is_data(packet));
    assert_eq!(is_data.count(), 30 * 65);
}
