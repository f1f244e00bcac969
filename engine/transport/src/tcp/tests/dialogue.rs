//! Packet traces of whole conversations.

use rackweave_core::{Ecn, Event, FailReason, Kind, Node as _, Packet, Rate, Span, Time};
use rackweave_switch::config::Topology;
use rackweave_wire::tcp::{Body, Header};

use super::{DELAY, Network, carries, fabric, faithful, lines, network, on, send, trace};
use crate::tcp::congestion::Controller as _;
use crate::tcp::{Config, CongestionControl};

const MSS: u64 = 1000;

/// Sequence numbers from 0, segments of 1000 bytes, no timer besides the RTO and no quick acknowledgements, so that traces are easy to
/// read.
fn plain() -> Config {
    Config {
        mss: MSS as u32,
        initial_sequence: Some(0),
        tail_loss_probe: false,
        ack_every_segments: 1,
        quick_acks: 0,
        ..Config::new_reno()
    }
}

/// Drops the first copy of the segments with these sequence numbers.
fn lose_once(mut sequences: Vec<u32>) -> impl FnMut(Time, &mut Packet<Header>) -> Vec<Span> {
    move |_, packet| match sequences.iter().position(|sequence| carries(packet, *sequence)) {
        Some(index) => {
            sequences.remove(index);
            vec![]
        }
        None => vec![Span::ZERO],
    }
}

fn run<F>(config: &Config, segments: u64, fate: F) -> Network
where
    F: FnMut(Time, &mut Packet<Header>) -> Vec<Span> + 'static,
{
    let mut net = network(2, config, fate);
    send(&mut net, 0, 1, 1, segments * MSS, Kind::OneWay);
    net.run_until(Time::ZERO + Span::from_ms(50));
    net
}

fn after(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

fn assert_done(net: &Network) {
    assert_eq!(net.count(1, |event| matches!(event, Event::Delivered { .. })), 1);
    assert_eq!(net.count(0, |event| matches!(event, Event::Sent { .. })), 1);
    assert_eq!(net.events.len(), 2, "{:?}", net.events);
}

/// The trace after the first window of ten segments with one lost.
fn after_first_window(net: &Network) -> Vec<String> {
    let mut trace = trace(net);
    let first = trace.iter().position(|line| line.contains("h1>h0")).expect("an answer");
    trace.split_off(first)
}

#[test]
fn two_segments_and_one_acknowledgement() {
    let config = Config { ack_every_segments: 2, ..plain() };
    let net = run(&config, 2, faithful);
    assert_eq!(
        trace(&net),
        ["0.00 h0>h1 data 0+1000 syn", "0.86 h0>h1 data 1000+1000 syn end", "12.58 h1>h0 ack 2000",]
    );
    assert_done(&net);
}

#[test]
fn a_lone_segment_is_acknowledged_late_and_delivered_at_once() {
    let config = Config { ack_every_segments: 2, ..plain() };
    let net = run(&config, 1, faithful);
    assert_eq!(trace(&net), ["0.00 h0>h1 data 0+1000 syn end", "211.72 h1>h0 ack 1000",]);
    assert_eq!(net.events[0].0, Time::from_ps(11_724_800), "delivered on arrival");
    assert_done(&net);
}

#[test]
fn slow_start_doubles_each_round_trip() {
    // Links so fast that a window is a burst.
    let fabric =
        fabric(Topology::SingleSwitch { hosts: 2, host_link: Rate::from_gbps(10_000) }, DELAY);
    let mut net = on(&fabric, &plain());
    net.keep_packets = true;
    send(&mut net, 0, 1, 1, 150 * MSS, Kind::OneWay);
    net.run_until(Time::ZERO + Span::from_ms(1));
    let mut rounds = [0; 5];
    for line in trace(&net).iter().filter(|line| line.contains("data")) {
        let at_us: f64 = line.split(' ').next().unwrap().parse().unwrap();
        rounds[(at_us / 20.0) as usize] += 1;
    }
    assert_eq!(rounds, [10, 20, 40, 80, 0]);
    assert_done(&net);
}

#[test]
fn fast_retransmit_with_sack() {
    let net = run(&plain(), 10, lose_once(vec![2000]));
    assert_eq!(
        after_first_window(&net),
        [
            "11.72 h1>h0 ack 1000",
            "12.58 h1>h0 ack 2000",
            "14.31 h1>h0 ack 2000 [3000..4000)",
            "15.17 h1>h0 ack 2000 [3000..5000)",
            "16.03 h1>h0 ack 2000 [3000..6000)",
            "16.89 h1>h0 ack 2000 [3000..7000)",
            "17.76 h1>h0 ack 2000 [3000..8000)",
            "18.62 h1>h0 ack 2000 [3000..9000)",
            "19.48 h1>h0 ack 2000 [3000..10000)",
            // Sent when the third duplicate acknowledgement arrives.
            "26.18 h0>h1 data 2000+1000",
            "37.90 h1>h0 ack 10000",
        ]
    );
    assert_done(&net);
}

#[test]
fn sack_repairs_two_losses_in_one_round_trip() {
    let net = run(&plain(), 14, lose_once(vec![2000, 5000]));
    assert_eq!(
        lines(&net, "h0>h1")[10..],
        [
            // Two for the acknowledgements, two by limited transmit.
            "h0>h1 data 10000+1000",
            "h0>h1 data 11000+1000",
            "h0>h1 data 12000+1000",
            "h0>h1 data 13000+1000 end",
            // The window is reduced from 12 to 6. Of 12 segments in flight 5 are SACKed, 2 are lost and 1 is
            // retransmitted, so that pipe is 6 and the second hole waits for another acknowledgement.
            "h0>h1 data 2000+1000",
            "h0>h1 data 5000+1000",
        ]
    );
    let acks = lines(&net, "h1>h0");
    assert_eq!(acks[4], "h1>h0 ack 2000 [6000..7000) [3000..5000)", "the newest first");
    assert_eq!(acks[acks.len() - 2..], ["h1>h0 ack 5000 [6000..14000)", "h1>h0 ack 14000"]);
    assert_eq!(net.hosts[0].iter().next().unwrap().sender.congestion().window(), 6 * MSS);
    assert_done(&net);
}

/// The retransmission is lost, too. With RACK the next acknowledgement of a later segment reveals that, one round trip
/// after it was sent; otherwise only the timeout does.
#[test]
fn a_lost_retransmission_is_repaired_within_a_round_trip_and_a_quarter() {
    for rack in [true, false] {
        let net = run(&Config { rack, ..plain() }, 60, lose_once(vec![12_000, 12_000]));
        let times: Vec<f64> = trace(&net)
            .iter()
            .filter(|line| line.contains("data 12000"))
            .map(|line| line.split(' ').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(times.len(), 3, "{:?}", trace(&net));
        // The round trip, with the queue of the first window in the sender's link.
        let rtt = 34.0;
        let wait = times[2] - times[1];
        assert_eq!(wait <= 1.25 * rtt, rack, "{wait}");
        assert_done(&net);
    }
}

/// Of a window of 20 segments the first is lost. The window shrinks to 10 within the round trip: a segment is sent for
/// every second that arrives. Without PRR nothing is sent until 10 segments have arrived, and then one for each.
#[test]
fn the_window_shrinks_in_proportion_to_what_arrives() {
    for (prr, expected) in
        [(true, [27.04, 28.76, 30.49, 32.21]), (false, [33.08, 33.94, 34.8, 35.66])]
    {
        let config = Config { prr, initial_window_segments: 20, ..plain() };
        let net = run(&config, 60, lose_once(vec![0]));
        let lines: Vec<_> = trace(&net).into_iter().filter(|line| line.contains("data")).collect();
        assert_eq!(lines[22], "24.45 h0>h1 data 0+1000", "after two by limited transmit");
        let at = |line: &String| line.split(' ').next().unwrap().parse::<f64>().unwrap();
        assert_eq!(lines[23..27].iter().map(at).collect::<Vec<_>>(), expected);
        assert_done(&net);
    }
}

/// For more than a millisecond nothing arrives, so that the timer expires in vain. F-RTO finds that by the
/// acknowledgements of segments that were sent once, and the window is what it was.
#[test]
fn a_timeout_in_vain_is_taken_back() {
    for undo in [true, false] {
        let (stop, go) = (after(90), after(1_500));
        let fate = move |now: Time, packet: &mut Packet<Header>| {
            let held = packet.payload().is_some() && now > stop && now < go;
            vec![if held { go.since(now) } else { Span::ZERO }]
        };
        let config = Config { undo, ..plain() };
        let mut net = network(2, &config, fate);
        send(&mut net, 0, 1, 1, 400 * MSS, Kind::OneWay);
        let window =
            |net: &Network| net.hosts[0].iter().next().unwrap().sender.congestion().window();
        net.run_until(after(900));
        let before = window(&net);
        net.run_until(after(1_400));
        assert_eq!(window(&net), MSS, "after the timeout");
        net.run_until(after(1_600));
        assert_eq!(window(&net) >= before, undo, "{before}, then {}", window(&net));
        net.run_until(after(50_000));
        let sent = lines(&net, "data").len();
        assert_eq!(sent == 401, undo, "{sent}");
        assert_done(&net);
    }
}

/// Seven segments overtake one, which is retransmitted in vain. The duplicate is reported, and the window is what it was.
#[test]
fn a_retransmission_in_vain_is_taken_back() {
    for undo in [true, false] {
        let fate = |_: Time, packet: &mut Packet<Header>| {
            vec![if carries(packet, 40_000) { Span::from_us(6) } else { Span::ZERO }]
        };
        let net = run(&Config { undo, ..plain() }, 300, fate);
        assert_eq!(lines(&net, "data 40000").len(), 2);
        assert_eq!(lines(&net, "[40000..41000)").len(), 1, "the duplicate");
        let window = net.hosts[0].iter().next().unwrap().sender.congestion().window();
        assert_eq!(window > 60 * MSS, undo, "{window}");
        assert_done(&net);
    }
}

/// After a segment has been overtaken by two others and arrived by itself, RACK waits for a quarter of the RTT, however
/// many segments overtake another (RFC 8985, 6.2 step 4). RFC 6675 does not learn.
#[test]
fn reordering_that_was_seen_is_waited_for() {
    for rack in [true, false] {
        let fate = |_: Time, packet: &mut Packet<Header>| {
            let late = |at, us| if carries(packet, at) { us } else { 0 };
            vec![Span::from_us(late(40_000, 2) + late(150_000, 5))]
        };
        let net = run(&Config { rack, ..plain() }, 300, fate);
        assert_eq!(lines(&net, "data 40000").len(), 1);
        assert_eq!(lines(&net, "data 150000").len() == 1, rack);
        assert_done(&net);
    }
}

#[test]
fn the_first_acknowledgements_are_quick() {
    let config = Config { ack_every_segments: 2, quick_acks: 3, ..plain() };
    let net = run(&config, 9, faithful);
    assert_eq!(
        lines(&net, "h1>h0"),
        [1000, 2000, 3000, 5000, 7000, 9000].map(|at| format!("h1>h0 ack {at}"))
    );
    assert_done(&net);
}

#[test]
fn new_reno_learns_of_the_second_loss_from_a_partial_acknowledgement() {
    let net = run(&Config { sack: false, ..plain() }, 14, lose_once(vec![2000, 5000]));
    assert_eq!(
        trace(&net)[trace(&net).len() - 8..],
        [
            "27.03 h0>h1 data 2000+1000",
            "33.58 h1>h0 ack 2000",
            "34.44 h1>h0 ack 2000",
            "35.30 h1>h0 ack 2000",
            "36.17 h1>h0 ack 2000",
            "38.75 h1>h0 ack 5000",
            // One round trip after the first.
            "48.89 h0>h1 data 5000+1000",
            "60.61 h1>h0 ack 14000",
        ]
    );
    assert_eq!(lines(&net, "data 2000").len(), 2);
    assert_eq!(net.hosts[0].iter().next().unwrap().sender.congestion().window(), 6 * MSS);
    assert_done(&net);
}

#[test]
fn without_limited_transmit_duplicates_bring_nothing_new() {
    let config = Config { limited_transmit: false, ..plain() };
    let net = run(&config, 14, lose_once(vec![2000]));
    // Two acknowledgements permit four segments, and two of these wait for the window (10 -> 12).
    let sent = lines(&net, "h0>h1");
    let resent = sent.iter().skip(10).position(|line| line.contains("data 2000")).unwrap();
    assert_eq!(resent, 4, "{sent:?}");
    assert_done(&net);
}

#[test]
fn the_timeout_backs_off_and_then_slow_start_resends() {
    let net = run(&plain(), 3, lose_once(vec![1000, 2000, 1000, 1000]));
    assert_eq!(
        trace(&net)[2..],
        [
            "1.72 h0>h1 data 2000+1000 syn end  (lost)",
            "11.72 h1>h0 ack 1000",
            // 1 ms after that acknowledgement, then 2 ms, then 4 ms.
            "1021.85 h0>h1 data 1000+1000  (lost)",
            "3021.85 h0>h1 data 1000+1000  (lost)",
            "7021.85 h0>h1 data 1000+1000",
            "7033.58 h1>h0 ack 2000",
            "7043.71 h0>h1 data 2000+1000 end",
            "7055.44 h1>h0 ack 3000",
        ]
    );
    assert_done(&net);
}

#[test]
fn a_probe_finds_a_lost_tail_before_the_timeout() {
    let config = Config { tail_loss_probe: true, ..plain() };
    let net = run(&config, 12, lose_once(vec![11_000]));
    assert_eq!(
        trace(&net)[trace(&net).len() - 4..],
        [
            "22.72 h0>h1 data 11000+1000 end  (lost)",
            "33.58 h1>h0 ack 11000",
            // Two RTTs and, for a single segment, the delay of an acknowledgement.
            "287.43 h0>h1 data 11000+1000 end",
            "299.16 h1>h0 ack 12000",
        ]
    );
    assert_done(&net);
}

#[test]
fn a_lost_acknowledgement_costs_a_probe_and_no_window() {
    let config = Config { tail_loss_probe: true, ..plain() };
    let mut net = network(2, &config, move |_: Time, packet: &mut Packet<Header>| {
        let last = matches!(packet.header.body, Body::Ack { .. }) && packet.header.ack == 12_000;
        if last && packet.header.body == (Body::Ack { count: 0, sack: [(0, 0); 3] }) {
            vec![]
        } else {
            vec![Span::ZERO]
        }
    });
    send(&mut net, 0, 1, 1, 12 * MSS, Kind::OneWay);
    net.run_until(Time::ZERO + Span::from_ms(50));
    let acks = lines(&net, "ack 12000");
    assert_eq!(acks, ["h1>h0 ack 12000  (lost)", "h1>h0 ack 12000 [11000..12000)"], "DSACK");
    let connection = net.hosts[0].iter().next().unwrap();
    assert!(connection.sender.congestion().window() >= 12 * MSS);
    assert_done(&net);
}

#[test]
fn reordering_within_the_threshold_is_no_loss() {
    let net = run(&plain(), 10, |_: Time, packet: &mut Packet<Header>| {
        // The segment is delayed by two segment times.
        vec![if carries(packet, 4000) { Span::from_us(2) } else { Span::ZERO }]
    });
    assert_eq!(lines(&net, "data 4000").len(), 1);
    assert_done(&net);
}

#[test]
fn dctcp_acknowledgements_cover_one_kind_of_packet() {
    let config =
        Config { congestion_control: CongestionControl::Dctcp, ack_every_segments: 2, ..plain() };
    let mut net = network(2, &config, move |_: Time, packet: &mut Packet<Header>| {
        if [3000, 4000, 5000, 7000].iter().any(|at| carries(packet, *at)) {
            assert!(packet.mark(), "data are ECN-capable");
        }
        vec![Span::ZERO]
    });
    send(&mut net, 0, 1, 1, 10 * MSS, Kind::OneWay);
    net.run_until(Time::ZERO + Span::from_us(100));
    assert_eq!(
        lines(&net, "h1>h0"),
        [
            "h1>h0 ack 2000",
            "h1>h0 ack 3000", // Before the marked segment.
            "h1>h0 ack 4000 ece",
            "h1>h0 ack 6000 ece",
            "h1>h0 ack 7000",
            "h1>h0 ack 8000 ece",
            "h1>h0 ack 9000",
        ]
    );
    let sender = &net.hosts[0].iter().next().unwrap().sender;
    // alpha was 1, and the first acknowledgement ended a window without marks: 1024 - 64. At the first mark the
    // window was 10 + 2 + 1: it is reduced by 960/2048.
    assert_eq!(sender.congestion().alpha(), Some(960));
    assert_eq!(sender.congestion().window(), 13 * MSS - 13 * MSS * 960 / 2048);
}

#[test]
fn classic_ecn_echoes_until_the_sender_has_reduced() {
    let config = Config { ecn: true, ..plain() };
    let net = run(&config, 14, |_: Time, packet: &mut Packet<Header>| {
        if carries(packet, 2000) {
            assert!(packet.mark());
        }
        vec![Span::ZERO]
    });
    let acks = lines(&net, "h1>h0");
    assert_eq!(acks[1..3], ["h1>h0 ack 2000", "h1>h0 ack 3000 ece"]);
    assert_eq!(acks[11..], ["h1>h0 ack 12000 ece", "h1>h0 ack 13000", "h1>h0 ack 14000"]);
    // The echo arrives when the link is free for the segment at 12000.
    assert_eq!(lines(&net, "cwr"), ["h0>h1 data 12000+1000 cwr"]);
    assert_done(&net);
}

#[test]
fn without_ecn_nothing_can_be_marked() {
    let net = run(&plain(), 14, |_: Time, packet: &mut Packet<Header>| {
        assert_eq!(packet.ecn(), Ecn::NotCapable);
        vec![Span::ZERO]
    });
    assert_done(&net);
}

#[test]
fn a_silent_peer_fails_the_message_after_all_retries() {
    let config = Config { max_retries: 3, ..plain() };
    let net = run(&config, 2, |_: Time, _: &mut Packet<Header>| vec![]);
    assert_eq!(net.events.len(), 1);
    let (at, _, event) = net.events[0];
    assert!(matches!(event, Event::Failed { reason: FailReason::PeerSilent, .. }), "{event:?}");
    assert_eq!(at, (Time::ZERO + Span::from_ms(1 + 2 + 4 + 8)));
    assert_eq!(net.hosts[0].connections(), 0);
    assert_eq!(net.hosts[0].poll_timeout(), None);
}

/// RFC 3168, 6.1.5: with classic ECN retransmissions are not ECN-capable, nor do they carry CWR (6.1.2). DCTCP's are
/// capable, as in Linux. Neither makes acknowledgements capable.
#[test]
fn retransmissions_are_ecn_capable_with_dctcp_only() {
    for (config, capable) in [
        (Config { ecn: true, ..Config::tcp() }, false),
        (Config { ecn: true, ..Config::new_reno().classic() }, false),
        (Config::dctcp(), true),
        (Config::tcp(), false),
    ] {
        let mut first = true;
        let mut net = network(2, &config, move |_: Time, packet: &mut Packet<Header>| {
            let lost = packet.payload().is_some_and(|slice| slice.offset == 13_140)
                && core::mem::take(&mut first);
            if lost { vec![] } else { vec![Span::ZERO] }
        });
        // The last segment is lost: its repetition is a probe, or follows the timeout.
        send(&mut net, 0, 1, 1, 14_600, Kind::OneWay);
        net.run_until(Time::ZERO + Span::from_ms(5));
        let of_last = net
            .packets
            .iter()
            .filter(|(_, packet)| packet.payload().is_some_and(|slice| slice.offset == 13_140));
        let ecn: Vec<_> = of_last.map(|(_, packet)| packet.ecn()).collect();
        let as_new = if config.ecn || capable { Ecn::Capable } else { Ecn::NotCapable };
        let again = if capable { Ecn::Capable } else { Ecn::NotCapable };
        assert_eq!(ecn, [as_new, again], "{config:?}");
        let of_server = net.packets.iter().filter(|(_, packet)| packet.src.0 == 1);
        assert!(of_server.map(|it| it.1.ecn()).all(|ecn| ecn == Ecn::NotCapable));
    }
}
