//! A delay-based congestion controller, modelled on Swift (Kumar et al., SIGCOMM 2020, section 3.1). It shows
//! that the sender provides what such controllers need, and is for tests only.

use std::cell::RefCell;
use std::rc::Rc;

use rackweave_core::{Kind, Packet, Rate, Span, Time};
use rackweave_wire::tcp::{Body, Header};

use super::bottleneck::Bottleneck;
use super::{DELAY, faithful, network, send};
use crate::tcp::congestion::{AckInfo, CongestionEvent, CongestionKind, Controller, External};
use crate::tcp::{Config, CongestionControl};

const MSS: u64 = 1460;
const PACKET: u64 = 1538;

/// Additive increase below the target delay, multiplicative decrease above it, at most once per round trip.
#[derive(Clone, Debug)]
struct DelayBased {
    target: Span,
    /// The last measured delay.
    delay: Span,
    /// The window in 1/1024 byte, because an increase far below one segment is less than a byte.
    window: u64,
    reduced_at: Time,
    mss: u64,
}

const UNIT: u64 = 1 << 10;

impl DelayBased {
    const fn new(target: Span) -> Self {
        Self { target, delay: target, window: 0, reduced_at: Time::ZERO, mss: 0 }
    }

    /// Swift's Algorithm 1: the window is reduced by at most half, and not below a thousandth of a segment.
    fn reduce(&mut self, now: Time, by: u64) {
        if now.since(self.reduced_at) >= self.delay {
            self.window = (self.window - by.min(self.window / 2)).max(self.mss * UNIT / 1000);
            self.reduced_at = now;
        }
    }
}

impl Controller for DelayBased {
    fn start(&mut self, mss: u64, initial_window: u64) {
        (self.window, self.mss) = (initial_window * UNIT, mss);
    }

    fn on_ack(&mut self, ack: &AckInfo) {
        let Some(delay) = ack.delay() else { return };
        self.delay = delay;
        if delay < self.target {
            // A quarter of a segment per round trip; below one segment, per acknowledged segment.
            let step = self.mss * UNIT / 4;
            self.window += if self.window >= self.mss * UNIT {
                u64::try_from(
                    u128::from(step * UNIT) * u128::from(ack.delivered) / u128::from(self.window),
                )
                .unwrap()
            } else {
                step * ack.delivered / self.mss
            };
        } else {
            let above = delay.as_ps() - self.target.as_ps();
            let by =
                u128::from(self.window) * 4 / 5 * u128::from(above) / u128::from(delay.as_ps());
            self.reduce(ack.now, by as u64);
        }
    }

    fn on_congestion_event(&mut self, event: &CongestionEvent) {
        if event.kind != CongestionKind::Mark {
            self.reduce(event.now, self.window / 2);
        }
    }

    fn window(&self) -> u64 {
        self.window / UNIT
    }

    /// Below one segment, one segment per `delay * mss / window`.
    fn pacing_rate(&self) -> Option<Rate> {
        let bits = u128::from(self.window) * 8 / u128::from(UNIT);
        let rate = bits * 1_000_000_000_000 / u128::from(self.delay.as_ps());
        (self.window < self.mss * UNIT).then_some(Rate(rate as u64))
    }
}

fn with_target(target: Span) -> Config {
    Config {
        congestion_control: CongestionControl::External(External::new(
            "delay",
            false,
            DelayBased::new(target),
        )),
        ack_every_segments: 1,
        ..Config::tcp()
    }
}

#[test]
fn a_window_below_a_segment_is_paced() {
    // The round trip is 20 us or more, so that the window only shrinks, to a thousandth of a segment.
    let config = Config { min_rto: Span::from_ms(100), ..with_target(Span::from_us(16)) };
    let sent = Rc::new(RefCell::new(Vec::new()));
    let times = Rc::clone(&sent);
    let mut net = network(2, &config, move |now: Time, packet: &mut Packet<Header>| {
        if matches!(packet.header.body, Body::Data { .. }) {
            times.borrow_mut().push(now);
        }
        faithful(now, packet)
    });
    send(&mut net, 0, 1, 1, 60 * MSS, Kind::OneWay);
    net.run_until(Time::ZERO + Span::from_ms(400));
    let sender = &net.hosts[0].iter().next().unwrap().sender;
    let window = sender.congestion().window();
    assert!((1..MSS / 20).contains(&window), "{window}");
    let sent = sent.borrow();
    let gaps: Vec<Span> = sent.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    // The first window is sent at link rate; in the end each gap is as long as the pacing rate requires.
    assert!(gaps[..9].iter().all(|gap| *gap < Span::from_us(2)), "{gaps:?}");
    let round_trip = DELAY * 2;
    let (before, last) = (gaps[gaps.len() - 2], gaps[gaps.len() - 1]);
    assert!(last > before && before > round_trip * 20, "{gaps:?}");
    assert_eq!(net.hosts[0].iter().next().unwrap().sender.backlog() % MSS, 0);
}

#[test]
fn a_hundred_senders_share_a_link_that_holds_less_than_a_segment_of_each() {
    let senders = 100;
    let (warmup, time) = (Span::from_ms(20), Span::from_ms(40));
    // The round trip without a queue is 42 us; the target permits 40 us of queue: 50 KB.
    let link = Bottleneck { mark: u64::MAX, limit: 1_000_000, senders, warmup, time };
    let config = with_target(Span::from_us(82));
    let measured = link.run(&config);
    assert_eq!(measured.link.drops, 0);
    assert!(measured.link.utilisation > 0.95, "{}", measured.link.utilisation);
    // Both are below the queue of a hundred windows of one segment; DCTCP's minimum is two segments.
    assert!(
        measured.link.mean_queue_bytes < 70.0 * PACKET as f64,
        "{}",
        measured.link.mean_queue_bytes
    );
    assert!(measured.fairness() > 0.8, "{:?}", measured.shares);
    let marks = Bottleneck { mark: 20 * PACKET, ..link }.run(&Config::dctcp());
    assert!(marks.link.mean_queue_bytes > 100.0 * PACKET as f64, "{}", marks.link.mean_queue_bytes);
}

#[test]
fn losses_under_a_paced_window_are_repaired() {
    let config = with_target(Span::from_us(15));
    let mut packets = 0;
    let mut net = network(2, &config, move |now: Time, packet: &mut Packet<Header>| {
        packets += 1;
        if packets % 7 == 0 { vec![] } else { faithful(now, packet) }
    });
    send(&mut net, 0, 1, 1, 20 * MSS, Kind::OneWay);
    net.run_until(Time::ZERO + Span::from_secs(10));
    assert_eq!(net.count(1, |event| matches!(event, rackweave_core::Event::Delivered { .. })), 1);
}
