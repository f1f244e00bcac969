//! The sending and the receiving half of a connection, tested separately.

use rackweave_core::{Kind, MessageId, Placement, Slice, Span, Time};

use crate::tcp::Config;
use crate::tcp::congestion::Controller as _;
use crate::tcp::receiver::{Arrived, Receiver};
use crate::tcp::sender::{Acked, Segment, Sender};

const MSS: u64 = 1000;

fn config() -> Config {
    Config { mss: MSS as u32, tail_loss_probe: false, ..Config::new_reno() }
}

fn ack(ack: u64) -> Acked<'static> {
    let window = 1 << 20;
    Acked { ack, sacked: &[], pure: true, duplicate: None, ece: false, window }
}

/// A sender with this number of submitted segments; the window permits ten.
fn sender(config: &Config, segments: u64) -> Sender {
    let mut sender = Sender::new(config);
    sender.push(MessageId::request(1), (segments * MSS) as u32, Kind::OneWay);
    while sender.take_segment(Time::ZERO, config).is_some() {}
    sender.handle_ack(Time::ZERO, &ack(0), config); // Sets the window.
    sender
}

fn sent(sender: &mut Sender, now: Time, config: &Config) -> Vec<Segment> {
    core::iter::from_fn(|| sender.take_segment(now, config)).collect()
}

#[test]
fn what_was_sacked_survives_two_timeouts_with_rack_only() {
    for config in [config(), config().classic()] {
        repeat_timeouts(&config);
    }
}

fn repeat_timeouts(config: &Config) {
    let mut sender = sender(config, 10);
    let sacked = [(2000, 10_000)];
    sender.handle_ack(Time::ZERO, &Acked { sacked: &sacked, ..ack(0) }, config);
    assert_eq!(sent(&mut sender, Time::ZERO, config).len(), 2, "fast retransmit of both");
    for expected_end in [2000, if config.rack { 2000 } else { 10_000 }] {
        let now = sender.deadline();
        assert!(sender.handle_timeout(now, config));
        assert_eq!(sent(&mut sender, now, config), [Segment { position: 0, len: MSS }]);
        // Slow start covers everything that is not known to have arrived.
        let mut probe = sender.clone();
        probe.handle_ack(now, &ack(1000), config);
        let mut end = 1000;
        while let Some(segment) = probe.take_segment(now, config) {
            end = segment.position + segment.len;
            probe.handle_ack(now, &ack(end), config);
        }
        assert_eq!(end, expected_end);
    }
}

#[test]
fn new_reno_does_not_mistake_its_retransmissions_for_a_loss() {
    let config = Config { sack: false, ..config() };
    let mut sender = sender(&config, 30);
    for _ in 0..3 {
        sender.handle_ack(Time::ZERO, &ack(0), &config);
    }
    let resent = sent(&mut sender, Time::ZERO, &config);
    assert_eq!(resent[0], Segment { position: 0, len: MSS });
    let recovered = sender.nxt();
    sender.handle_ack(Time::ZERO, &ack(recovered), &config);
    let window = sender.congestion().window();
    sent(&mut sender, Time::ZERO, &config);
    for _ in 0..3 {
        sender.handle_ack(Time::ZERO, &ack(recovered), &config);
    }
    assert_eq!(sender.congestion().window(), window, "RFC 6582, 3.2 step 2");
    // A later loss counts.
    sender.handle_ack(Time::ZERO, &ack(recovered + MSS), &config);
    let window = sender.congestion().window();
    for _ in 0..3 {
        sender.handle_ack(Time::ZERO, &ack(recovered + MSS), &config);
    }
    assert!(sender.congestion().window() < window);
}

#[test]
fn new_reno_s_pipe_counts_what_a_partial_acknowledgement_covers_once() {
    let config = Config { sack: false, limited_transmit: false, ..config() };
    let mut sender = sender(&config, 30);
    // Segments 0 and 4 of ten are lost, which causes eight duplicate acknowledgements.
    for _ in 0..8 {
        sender.handle_ack(Time::ZERO, &ack(0), &config);
    }
    assert_eq!(sender.congestion().window(), 5 * MSS);
    // Pipe: ten minus eight that arrived minus one lost is 1; the retransmitted segment is added.
    let first = sent(&mut sender, Time::ZERO, &config);
    assert_eq!(first.len(), 4, "{first:?}");
    assert_eq!(sender.nxt(), 13_000);
    // Everything below 4 has arrived; three of the eight are below that.
    sender.handle_ack(Time::ZERO, &ack(4000), &config);
    // Pipe: nine minus five that arrived minus one lost is 3; the retransmitted segment is added.
    let second = sent(&mut sender, Time::ZERO, &config);
    assert_eq!(
        second,
        [Segment { position: 4000, len: MSS }, Segment { position: 13_000, len: MSS }]
    );
}

#[test]
fn the_peer_s_window_holds_but_for_one_segment() {
    let config = config();
    let mut sender = sender(&config, 30);
    sender.handle_ack(Time::ZERO, &Acked { window: 3500, ..ack(9000) }, &config);
    assert_eq!(sent(&mut sender, Time::ZERO, &config).len(), 2, "one is under way");
    sender.handle_ack(Time::ZERO, &Acked { window: 0, ..ack(12_000) }, &config);
    assert_eq!(sent(&mut sender, Time::ZERO, &config).len(), 1);
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let config = config();
    let mut sender = Sender::new(&config);
    let mut now = Time::ZERO;
    for number in 1..=100 {
        sender.push(MessageId::request(number), 1000, Kind::OneWay);
        assert_eq!(sent(&mut sender, now, &config).len(), 1);
        now += Span::from_us(10);
        sender.handle_ack(now, &ack(number * MSS), &config);
        assert!(sender.pop_acked().is_some());
    }
    assert_eq!(sender.congestion().window(), 10 * MSS);
}

/// Linux's RTO, after which the window of an idle connection decays, is 200 ms at least, whatever it is here.
#[test]
fn a_short_idle_time_keeps_the_window() {
    for (config, ms, kept) in [
        (config(), 199, true),
        (config(), 201, false),
        (config().classic(), 2, false),
        (Config { min_rto: Span::from_secs(1), ..config() }, 999, true),
        (Config { slow_start_after_idle: false, ..config() }, 5_000, true),
    ] {
        let mut sender = sender(&config, 30);
        let mut now = Time::ZERO;
        for end in [10_000, 30_000] {
            now += Span::from_us(20);
            sender.handle_ack(now, &ack(end), &config);
            sent(&mut sender, now, &config);
        }
        assert_eq!(sender.flight(), 0);
        let window = sender.congestion().window();
        assert!(window > 10 * MSS);
        sender.push(MessageId::request(2), 1000, Kind::OneWay);
        now += Span::from_ms(ms);
        assert_eq!(sent(&mut sender, now, &config).len(), 1);
        assert_eq!(sender.congestion().window() == window, kept, "{ms} ms");
    }
}

/// In the window that a mark has reduced, a loss reduces it again for DCTCP only (RFC 8257, 3.5).
#[test]
fn a_loss_after_a_mark_counts_for_dctcp_only() {
    let ecn = Config { ecn: true, ..config() };
    let dctcp = Config { mss: MSS as u32, tail_loss_probe: false, ..Config::dctcp() };
    for (config, again) in [(ecn.clone(), false), (dctcp, true), (ecn.classic(), true)] {
        let mut sender = sender(&config, 30);
        sender.handle_ack(Time::ZERO, &Acked { ece: true, ..ack(1000) }, &config);
        let marked = sender.congestion().window();
        assert!(marked < 10 * MSS);
        let sacked = [(2000, 5000)];
        sender.handle_ack(Time::ZERO, &Acked { sacked: &sacked, ..ack(1000) }, &config);
        assert_eq!(sender.congestion().window() < marked, again, "{config:?}");
    }
}

/// RFC 2883: two segments that arrive twice before an acknowledgement is sent are reported together.
#[test]
fn duplicates_are_reported_together_if_they_follow_each_other() {
    let config = config();
    let mut receiver = Receiver::new();
    for position in [0, 1000, 2000, 0, 1000] {
        let data = arrived(position, position as u32);
        let _ = receiver.handle_data(Time::ZERO, &data, |_| true, &config);
    }
    let (blocks, count) = receiver.take_sack();
    assert_eq!(&blocks[..count], [(0, 2000)]);
}

/// What the receiver had SACKed and does not acknowledge, it has discarded (RFC 2018, section 8).
#[test]
fn a_receiver_that_discards_gets_everything_again() {
    let config = config();
    let mut sender = sender(&config, 10);
    let sacked = [(5000, 10_000)];
    sender.handle_ack(Time::ZERO, &Acked { sacked: &sacked, ..ack(0) }, &config);
    sent(&mut sender, Time::ZERO, &config);
    sender.handle_ack(Time::ZERO, &ack(5000), &config);
    assert_eq!(sent(&mut sender, Time::ZERO, &config), [], "that it has");
    let now = sender.deadline();
    assert!(sender.handle_timeout(now, &config));
    assert_eq!(sent(&mut sender, now, &config), [Segment { position: 5000, len: MSS }]);
}

#[test]
fn only_a_probe_that_repaired_a_loss_costs_window() {
    let config = Config { tail_loss_probe: true, ..config() };
    for lost in [false, true] {
        let mut sender = Sender::new(&config);
        let mut now = Time::ZERO;
        sender.push(MessageId::request(1), 9000, Kind::OneWay);
        sent(&mut sender, now, &config);
        now += Span::from_us(20);
        sender.handle_ack(now, &ack(8000), &config);
        let window = sender.congestion().window();
        now = sender.deadline();
        assert!(sender.handle_timeout(now, &config));
        assert_eq!(sent(&mut sender, now, &config), [Segment { position: 8000, len: MSS }]);
        sender.handle_ack(now, &ack(9000), &config);
        if !lost {
            sender.handle_ack(now, &Acked { duplicate: Some((8000, 9000)), ..ack(9000) }, &config);
        }
        sender.push(MessageId::request(2), 1000, Kind::OneWay);
        sent(&mut sender, now, &config);
        sender.handle_ack(now, &ack(10_000), &config);
        assert_eq!(sender.congestion().window() < window, lost);
    }
}

/// A segment of a message of 5000 bytes that starts at 0, unless the test changes that.
fn arrived(position: u64, offset: u32) -> Arrived {
    let slice = Slice { message: MessageId::request(1), offset, len: 1000 };
    let (message_length, kind) = (5000, Kind::OneWay);
    let (abandoned, marked, cwr) = (false, false, false);
    Arrived { position, slice, message_length, kind, abandoned, marked, cwr }
}

#[test]
fn a_contradictory_mapping_is_discarded() {
    let config = config();
    let mut receiver = Receiver::new();
    let mut take = |data: Arrived| receiver.handle_data(Time::ZERO, &data, |_| true, &config);
    assert_eq!(take(arrived(0, 0)), Placement::Store(arrived(0, 0).slice));
    assert_eq!(take(arrived(0, 0)), Placement::Discard, "known");
    assert_eq!(take(arrived(1000, 0)), Placement::Discard, "begins within the message");
    assert_eq!(take(arrived(1000, 500)), Placement::Discard, "would begin before it");
    assert_eq!(take(arrived(1000, 2000)), Placement::Discard, "would begin before the stream");
    let longer = Arrived { message_length: 6000, ..arrived(1000, 1000) };
    assert_eq!(take(longer), Placement::Discard);
    let other = Slice { message: MessageId::request(2), ..arrived(1000, 1000).slice };
    assert_eq!(take(Arrived { slice: other, ..arrived(1000, 1000) }), Placement::Discard);
    assert_eq!(take(arrived(4500, 4500)), Placement::Discard, "ends behind the message");
    assert_eq!(take(arrived(1000, 1000)), Placement::Store(arrived(1000, 1000).slice));
    assert_eq!(receiver.nxt(), 2000);
    // After the delivery of a message its positions in the stream are never used again.
    for position in (2000..5000).step_by(1000) {
        let data = arrived(position, position as u32);
        let _ = receiver.handle_data(Time::ZERO, &data, |_| true, &config);
    }
    assert!(receiver.pop_complete().is_some());
    let back = receiver.handle_data(Time::ZERO, &arrived(5000, 3000), |_| true, &config);
    assert_eq!(back, Placement::Discard);
}

/// When the segments in flight are acknowledged before the probe could be sent, there is none. The next segment has a
/// probe of its own.
#[test]
fn an_acknowledgement_cancels_the_probe() {
    let config = Config { tail_loss_probe: true, ..config() };
    let mut sender = sender(&config, 10);
    let mut now = Time::ZERO + Span::from_us(40);
    sender.handle_ack(now, &ack(9000), &config);
    now = sender.deadline();
    assert!(now < sender.rto_at);
    assert!(sender.handle_timeout(now, &config));
    sender.handle_ack(now, &ack(10_000), &config);
    sender.push(MessageId::request(2), MSS as u32, Kind::OneWay);
    assert_eq!(sent(&mut sender, now, &config).len(), 1);
    assert!(sender.deadline() < sender.rto_at, "there is a probe");
}

/// RFC 8985, 7.2: a probe needs SACK, because nothing else shows whether it has repaired a loss.
#[test]
fn without_sack_there_are_no_probes() {
    for sack in [true, false] {
        let config = Config { tail_loss_probe: true, sack, ..config() };
        let mut sender = sender(&config, 10);
        sender.handle_ack(Time::ZERO + Span::from_us(40), &ack(9000), &config);
        assert_eq!(sender.deadline() < sender.rto_at, sack);
    }
}

/// RFC 8985, 7.4.2: only the report of the probe itself shows that it repaired nothing.
#[test]
fn another_duplicate_does_not_excuse_what_a_probe_has_repaired() {
    let config = Config { tail_loss_probe: true, ..config() };
    for (duplicate, reduced) in [((9000, 10_000), false), ((3000, 4000), true)] {
        let mut sender = sender(&config, 10);
        let mut now = Time::ZERO + Span::from_us(40);
        sender.handle_ack(now, &ack(9000), &config);
        now = sender.deadline();
        assert!(sender.handle_timeout(now, &config));
        assert_eq!(sent(&mut sender, now, &config), [Segment { position: 9000, len: MSS }]);
        let duplicate = Some(duplicate);
        sender.handle_ack(now, &Acked { duplicate, ..ack(10_000) }, &config);
        let window = sender.congestion().window();
        sender.push(MessageId::request(2), MSS as u32, Kind::OneWay);
        sent(&mut sender, now, &config);
        sender.handle_ack(now, &ack(11_000), &config);
        assert_eq!(sender.congestion().window() < window, reduced);
    }
}

/// RFC 8985, 6.2: segments of one acknowledgement arrive in the order in which they were sent, whatever the order of the
/// blocks (RFC 2018, section 4: the newest is first). A delayed acknowledgement of a segment before a gap, too, comes
/// with the first block.
#[test]
fn one_acknowledgement_shows_no_reordering() {
    let config = config();
    for (acked, sacked, lost) in [
        (1000, &[(2000, 5000)][..], 1000),
        (0, &[(6000, 7000), (1000, 3000)], 0),
        (1000, &[(6000, 7000), (4000, 5000), (2000, 3000)], 1000),
    ] {
        let mut sender = sender(&config, 10);
        let now = Time::ZERO + Span::from_us(40);
        sender.handle_ack(now, &Acked { sacked, ..ack(acked) }, &config);
        let resent = sent(&mut sender, now, &config);
        assert_eq!(resent.first(), Some(&Segment { position: lost, len: MSS }), "{sacked:?}");
    }
}
