//! Completion times, against what the links allow.

use rackweave_core::{Rate, Span, Time};

use super::super::network::{Action, App, HEADERS, Link, Network};
use super::super::{FlowConfig, SenderEvent};

/// Returns the time that the packets of a stream take on a link.
fn link_time(bytes: u64, mbps: u64) -> Span {
    let payload = u64::from(FlowConfig::default().payload);
    Rate(mbps * 1_000_000).span_of(bytes + bytes.div_ceil(payload) * HEADERS)
}

fn send(net: &mut Network, bytes: u64) {
    for end in 0..net.ends.len() {
        net.invite(end);
    }
    for source in 0..net.sources.len() {
        net.sources[source].machine.offer(net.now, bytes);
        net.sources[source].machine.finish(net.now);
    }
    net.run(Time::ZERO + Span::from_secs(100));
}

fn network(mbps: u64, receivers: usize, link: Link) -> Network {
    let mut net = Network::new(1, mbps, FlowConfig::default());
    net.source(None);
    for _ in 0..receivers {
        net.end(0, link, App::default());
    }
    net
}

/// Returns the time at which the last receiver finishes, as a multiple of the link time.
fn ratio(net: &Network, bytes: u64, mbps: u64) -> f64 {
    let last = net.ends.iter().map(|end| end.ended.expect("ended")).max().expect("receivers");
    let summary = net.sources[0].machine.summary();
    let ratio = last.as_us_f64() / link_time(bytes, mbps).as_us_f64();
    let dropped: u64 = net.ends.iter().map(|end| end.dropped).sum();
    println!(
        "{mbps} Mbps {bytes} B to {}: {ratio:.4} of the link time; {last}; on the wire {:.4}; dropped {dropped} {summary:?}",
        net.ends.len(),
        net.sources[0].sent_bytes as f64 / bytes as f64,
    );
    assert!(net.sources[0].events.iter().any(|event| event.1 == SenderEvent::Finished));
    ratio
}

#[test]
fn without_loss_the_link_is_full() {
    for mbps in [200, 1000, 10_000] {
        for buffer in [256 << 10, 1 << 20] {
            let link = Link { buffer, ..Link::new(mbps) };
            let mut net = network(mbps, 4, link);
            send(&mut net, 128 << 20);
            let ratio = ratio(&net, 128 << 20, mbps);
            assert!(ratio < 1.01, "{ratio}");
        }
    }
}

#[test]
fn a_fast_sender_fills_slower_links() {
    for (mbps, buffer) in [(200, 256 << 10), (1000, 256 << 10), (1000, 1 << 20)] {
        let link = Link { buffer, ..Link::new(mbps) };
        let mut net = network(10_000, 4, link);
        send(&mut net, 128 << 20);
        let ratio = ratio(&net, 128 << 20, mbps);
        assert!(ratio < 1.02, "{ratio}");
        let dropped: u64 = net.ends.iter().map(|end| end.dropped).max().unwrap_or(0);
        assert!(dropped < 1 << 20, "{dropped}");
    }
}

#[test]
fn a_small_file_takes_little_more_than_its_link_time() {
    let mut net = network(200, 4, Link::new(200));
    send(&mut net, 1_000_000);
    let last = net.ends.iter().map(|end| end.ended.expect("ended")).max().expect("receivers");
    ratio(&net, 1_000_000, 200);
    let bound = link_time(1_100_000, 200) + Span::from_us(200);
    assert!(last < Time::ZERO + bound, "{last} {bound}");
}

#[test]
fn random_loss_costs_little() {
    for receivers in [4, 16] {
        for mbps in [200, 1000] {
            let link = Link { lost: 10_000, ..Link::new(mbps) };
            let mut net = network(mbps, receivers as usize, link);
            send(&mut net, 64 << 20);
            let ratio = ratio(&net, 64 << 20, mbps);
            // Each receiver loses other packets, and each of those passes the sender's link once more.
            let again = 1.0 - 0.99_f64.powi(receivers);
            assert!(ratio < 1.0 + 1.1 * again + 0.02, "{ratio}");
        }
    }
}

#[test]
fn noise_of_hosts_does_not_stop_the_link() {
    for mbps in [200, 1000] {
        let link = Link { noise: Span::from_ms(5), buffer: 1 << 20, ..Link::new(mbps) };
        let mut net = network(mbps, 4, link);
        send(&mut net, 128 << 20);
        let ratio = ratio(&net, 128 << 20, mbps);
        assert!(ratio < 1.05, "{ratio}");
    }
}

#[test]
fn a_slow_receiver_does_not_hold_the_others_up() {
    let bytes = 64 << 20;
    let mut net = network(200, 4, Link::new(200));
    net.ends[3].link.rate = Rate(40_000_000);
    send(&mut net, bytes);
    let others = net.ends[..3].iter().map(|end| end.ended.expect("ended")).max().expect("three");
    let took = others.as_us_f64() / link_time(bytes, 200).as_us_f64();
    let slow = net.ends[3].ended.expect("ended").as_us_f64() / link_time(bytes, 40).as_us_f64();
    println!("others {took:.4}, slow {slow:.4} {:?}", net.sources[0].machine.summary());
    for (at, event) in &net.sources[0].events {
        println!("{at} {event:?}");
    }
    assert!(took < 1.05, "{took}");
    assert!(slow < 1.5, "{slow}");
}

/// A detached receiver gets the rate of its own link once all others have finished.
#[test]
fn the_last_detached_receiver_gets_its_links_rate() {
    let (bytes, mbps) = (64 << 20, 1000);
    let mut net = network(mbps, 3, Link::new(mbps));
    net.ends[2].link.rate = Rate(50_000_000);
    net.at(Time::ZERO + Span::from_ms(600), Action::SetRate(2, Rate(mbps * 1_000_000)));
    send(&mut net, bytes);
    let others = net.ends[0].ended.expect("ended");
    let rest = net.ends[2].ended.expect("ended").since(others);
    let most = link_time(bytes, mbps).as_us_f64() * 1.1;
    assert!(rest.as_us_f64() < most, "{rest} after the others");
}

/// A receiver whose host is busy for a while is detached, and rejoins when it answers.
#[test]
fn a_paused_receiver_rejoins() {
    for mbps in [200, 1000] {
        let mut net = network(mbps, 4, Link::new(mbps));
        net.at(Time::ZERO + Span::from_ms(100), Action::Sleep(2, Span::from_ms(100)));
        send(&mut net, 64 << 20);
        let ratio = ratio(&net, 64 << 20, mbps);
        let slept = net.sources[0]
            .events
            .iter()
            .any(|event| matches!(event.1, SenderEvent::Detached { .. }));
        assert!(slept, "it was left behind");
        let again = net.sources[0].machine.summary().catch_up;
        assert!(again < 1 << 20, "{again} bytes by unicast");
        let most = 1.02 + 0.1 / link_time(64 << 20, mbps).as_secs_f64();
        assert!(ratio < most, "{ratio} of {most}");
    }
}

#[test]
fn summaries_keep_reports_few() {
    let mut net = Network::new(1, 200, FlowConfig::default());
    net.agents = Some(Span::from_ms(1));
    net.source(None);
    for _ in 0..64 {
        net.end(0, Link { lost: 1000, ..Link::new(200) }, App::default());
    }
    let bytes = 16 << 20;
    send(&mut net, bytes);
    let ratio = ratio(&net, bytes, 200);
    let last = net.ends.iter().filter_map(|end| end.ended).max().expect("ended");
    let rate = net.sources[0].statuses as f64 / last.as_us_f64() * 1e6;
    println!("{rate:.0} reports a second");
    assert!(rate < 2500.0, "{rate}");
    assert!(ratio < 1.15, "{ratio}");
}

#[test]
fn two_senders_share_a_link() {
    // First the receivers have separate links, then one host's port receives both streams.
    for own_links in [false, true] {
        let mut net = Network::new(1, if own_links { 10_000 } else { 1000 }, FlowConfig::default());
        net.source(None);
        net.source((!own_links).then_some(0));
        net.end(0, Link::new(1000), App::default());
        net.end(1, Link::new(1000), App::default());
        net.ends[1].port = 0;
        let bytes = 128 << 20;
        net.invite(0);
        net.sources[0].machine.offer(net.now, bytes);
        net.run(Time::ZERO + Span::from_ms(200)); // The second receiver joins late.
        net.invite(1);
        net.sources[1].machine.offer(net.now, bytes);
        net.run(Time::ZERO + Span::from_ms(400));
        let before = [net.ends[0].read, net.ends[1].read];
        net.run(Time::ZERO + Span::from_ms(1000));
        let got = [0, 1].map(|end| (net.ends[end].read - before[end]) as f64);
        let both = (got[0] + got[1]) / Rate(1_000_000_000).bytes_in(Span::from_ms(600)) as f64;
        println!("{got:?}, {both:.3} of the link; dropped {}", net.ends[0].dropped);
        assert!(both > 0.92 && got[0] / got[1] < 2.0 && got[1] / got[0] < 2.0);
    }
}

#[test]
fn an_idle_session_says_little() {
    let mut net = network(1000, 4, Link::new(1000));
    for end in 0..4 {
        net.invite(end);
    }
    net.at(Time::ZERO + Span::from_ms(10), Action::Offer(100_000));
    net.run(Time::ZERO + Span::from_secs(2));
    let (controls, statuses) = (net.sources[0].controls, net.sources[0].statuses);
    let bytes = net.sources[0].sent_bytes;
    net.run(Time::ZERO + Span::from_secs(62));
    let more = net.sources[0].controls - controls + net.sources[0].statuses - statuses;
    println!("{more} in a minute");
    assert!(more > 0 && more < 5 * 60 * 4, "{more} packets in a minute");
    assert!(net.sources[0].sent_bytes - bytes < 100_000);
    assert_eq!(net.sources[0].machine.summary().attached, 4, "no receiver is given up");
    assert_eq!(net.sources[0].machine.released(), 100_000);
}

#[test]
fn a_link_that_slows_down_is_followed() {
    let mut net = network(1000, 4, Link { buffer: 256 << 10, ..Link::new(1000) });
    for end in 0..4 {
        net.at(Time::ZERO + Span::from_ms(300), Action::SetRate(end, Rate(250_000_000)));
        net.at(Time::ZERO + Span::from_ms(900), Action::SetRate(end, Rate(1_000_000_000)));
    }
    let bytes = 96 << 20;
    send(&mut net, bytes);
    // The rate is full for 300 ms, a quarter for 600 ms, and then full.
    let ideal = link_time(bytes, 1000).as_us_f64() + 450_000.0;
    let last = net.ends.iter().filter_map(|end| end.ended).max().expect("ended").as_us_f64();
    let dropped: u64 = net.ends.iter().map(|end| end.dropped).max().unwrap_or(0);
    println!("{:.4} of the ideal; dropped {dropped} at one receiver", last / ideal);
    assert!(last / ideal < 1.05, "{}", last / ideal);
    assert!(dropped < 1 << 20, "{dropped}");
    let events = &net.sources[0].events;
    assert!(!events.iter().any(|(_, event)| matches!(event, SenderEvent::Detached { .. })));
}

#[test]
fn detached_receivers_share_the_remaining_bandwidth() {
    let mut net = network(1000, 2, Link::new(1000));
    let late: Vec<usize> = (0..3).map(|_| net.end(0, Link::new(1000), App::default())).collect();
    for end in &late {
        net.at(Time::ZERO + Span::from_ms(200), Action::Join(*end));
    }
    let bytes = 64 << 20;
    net.invite(0);
    net.invite(1);
    // An invited receiver does not answer: nothing is released until it is given up, and the start waits for 100 ms.
    let silent = net.end(0, Link { lost: 1_000_000, ..Link::new(1000) }, App::default());
    net.invite(silent);
    net.sources[0].machine.offer(net.now, bytes);
    net.sources[0].machine.finish(net.now);
    net.run(Time::ZERO + Span::from_ms(500));
    let share: Vec<u64> = late.iter().map(|end| net.ends[*end].read).collect();
    let most = share.iter().max().expect("three");
    println!("{share:?}, everyone {}", net.ends[0].read);
    assert!(share.iter().all(|read| read * 2 > *most && *read > 0), "{share:?}");
    net.run(Time::ZERO + Span::from_secs(100));
    let first = net.ends[..2].iter().filter_map(|end| end.ended).max().expect("ended");
    let took = (first.as_us_f64() - 100_000.0) / link_time(bytes, 1000).as_us_f64();
    println!("{took:.4}");
    assert!(took < 1.05, "{took}");
    assert!(late.iter().all(|end| net.ends[*end].ended.is_some()));
}

#[test]
fn a_thousand_receivers() {
    let mut net = Network::new(1, 1000, FlowConfig::default());
    net.agents = Some(Span::from_ms(1));
    net.source(None);
    for _ in 0..1000 {
        net.end(0, Link { lost: 100, ..Link::new(1000) }, App::default());
    }
    let bytes = 2 << 20;
    send(&mut net, bytes);
    let last = net.ends.iter().map(|end| end.ended.expect("ended")).max().expect("receivers");
    // The invitations take time on the sender's link too.
    println!("{last}, {} reports, {:?}", net.sources[0].statuses, net.sources[0].machine.summary());
    assert!(last < Time::ZERO + link_time(bytes, 1000) * 2 + Span::from_ms(10), "{last}");
    let seconds = last.as_us_f64() / 1e6;
    // 16 racks send one report each per millisecond, and more of them where there are gaps.
    let rate = net.sources[0].statuses as f64 / seconds;
    assert!(rate < 2.5 * 16_000.0, "{rate}");
}

#[test]
fn a_set_rate_is_kept() {
    let config = FlowConfig { max_rate: Some(Rate(300_000_000)), ..FlowConfig::default() };
    let mut net = Network::new(1, 1000, config);
    net.source(None);
    for _ in 0..4 {
        net.end(0, Link { lost: 1000, ..Link::new(1000) }, App::default());
    }
    let bytes = 32 << 20;
    send(&mut net, bytes);
    let ratio = ratio(&net, bytes, 300);
    // Repairs count too: about 4 packets in a thousand.
    assert!((1.0..1.03).contains(&ratio), "{ratio}");
}

/// By unicast each receiver got the whole rate.
#[test]
fn a_set_rate_is_that_of_all_copies() {
    let config = FlowConfig { max_rate: Some(Rate(300_000_000)), ..FlowConfig::default() };
    let mut net = Network::new(1, 1000, config);
    net.source(None);
    net.end(0, Link::new(1000), App::default());
    net.sources[0].machine.set_copies(4);
    let bytes = 32 << 20;
    send(&mut net, bytes);
    let ratio = ratio(&net, bytes, 75);
    assert!((1.0..1.03).contains(&ratio), "{ratio}");
}
