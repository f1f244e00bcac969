//! Long flows through one slow link: how full it is, how long its queue, and how fair the shares.

use std::cell::RefCell;
use std::rc::Rc;

use rackweave_core::{Event, Kind, Packet, Rate, Span, Time};
use rackweave_wire::tcp::{Body, Header};

use super::net::Net;
use crate::tcp::Config;

const RATE: Rate = Rate::from_gbps(10);
/// Each way; the round trip is about 40 us, so that a window of 50 KB fills the link.
const DELAY: Span = Span::from_us(20);

/// What the queue before the slow link saw.
#[derive(Debug, Default)]
struct Queue {
    busy_until: Time,
    drops: u64,
    sent_bytes: u64,
    /// Bytes that arriving packets found waiting, after the warm-up.
    depths: Vec<u64>,
}

/// `senders` hosts, each with one endless message to the last host, whose link has a queue that
/// marks above `mark` bytes and drops above `limit`.
#[derive(Clone, Copy)]
pub(super) struct Bottleneck {
    pub(super) mark: u64,
    pub(super) limit: u64,
    pub(super) senders: u32,
    pub(super) warmup: Span,
    pub(super) time: Span,
}

pub(super) struct Measured {
    pub(super) utilisation: f64,
    depths: Vec<u64>,
    pub(super) drops: u64,
    /// Bytes of each sender that arrived after the warm-up.
    pub(super) shares: Vec<u64>,
}

impl Bottleneck {
    pub(super) fn run(&self, config: &Config) -> Measured {
        let queue = Rc::new(RefCell::new(Queue::default()));
        let shared = Rc::clone(&queue);
        let (mark, limit, sink) = (self.mark, self.limit, self.senders);
        let warm = Time::ZERO + self.warmup;
        let fate = move |now: Time, packet: &mut Packet<Header>| {
            if packet.dst.0 != sink {
                return vec![DELAY];
            }
            let mut queue = shared.borrow_mut();
            // The time on the sender's link comes on top, for all packets alike.
            let start = queue.busy_until.max(now);
            let depth = RATE.bytes_in(start.since(now));
            if depth + u64::from(packet.wire_bytes) > limit {
                queue.drops += 1;
                return vec![];
            }
            if depth > mark {
                packet.mark();
            }
            queue.busy_until = start + RATE.span_of(u64::from(packet.wire_bytes));
            if now >= warm {
                queue.depths.push(depth);
                queue.sent_bytes += u64::from(packet.wire_bytes);
            }
            vec![queue.busy_until.since(now) + DELAY]
        };
        let mut net = Net::new(self.senders + 1, config, fate);
        net.keep_trace = false;
        // Faster than the slow link, so that the queue is there and not in the hosts.
        net.link = Rate::from_gbps(40);
        for sender in 0..self.senders {
            net.send(sender, sink, 1, 4_000_000_000, Kind::OneWay);
            let next = net.now + Span::from_us(37);
            net.run_until(next);
        }
        net.run_until(warm);
        let una = |net: &Net<_>| -> Vec<u64> {
            let hosts = &net.hosts[..self.senders as usize];
            hosts.iter().map(|host| host.iter().next().unwrap().sender.una()).collect()
        };
        let before = una(&net);
        net.run_until(warm + self.time);
        let shares = before.iter().zip(una(&net)).map(|(before, after)| after - before).collect();
        let mut queue = queue.borrow_mut();
        Measured {
            utilisation: queue.sent_bytes as f64 / RATE.bytes_in(self.time) as f64,
            depths: core::mem::take(&mut queue.depths),
            drops: queue.drops,
            shares,
        }
    }
}

impl Measured {
    pub(super) fn mean_depth(&self) -> f64 {
        self.depths.iter().sum::<u64>() as f64 / self.depths.len() as f64
    }

    /// Jain's index: 1 is fair.
    pub(super) fn fairness(&self) -> f64 {
        let sum: f64 = self.shares.iter().map(|share| *share as f64).sum();
        let squares: f64 = self.shares.iter().map(|share| (*share as f64).powi(2)).sum();
        sum * sum / (self.shares.len() as f64 * squares)
    }
}

const PACKET: u64 = 1538;

#[test]
fn one_dctcp_flow_keeps_the_queue_near_the_threshold_and_the_link_full() {
    let mark = 65 * PACKET;
    let (senders, warmup, time) = (1, Span::from_ms(5), Span::from_ms(30));
    let measured =
        Bottleneck { mark, limit: 1_000_000, senders, warmup, time }.run(&Config::dctcp());
    assert!(measured.utilisation > 0.999, "{}", measured.utilisation);
    let mean = measured.mean_depth() / mark as f64;
    assert!((0.7..1.05).contains(&mean), "the mean is {mean} of the threshold");
    let most = *measured.depths.iter().max().unwrap();
    assert!(most < mark * 13 / 10, "{most}");
    assert_eq!(measured.drops, 0);
}

#[test]
fn dctcp_flows_share_fairly() {
    for senders in [2, 5] {
        let mark = 20 * PACKET;
        let (warmup, time) = (Span::from_ms(20), Span::from_ms(300));
        let measured =
            Bottleneck { mark, limit: 1_000_000, senders, warmup, time }.run(&Config::dctcp());
        assert!(measured.fairness() > 0.99, "{senders}: {:?}", measured.shares);
        assert!(measured.utilisation > 0.98, "{}", measured.utilisation);
    }
}

#[test]
fn cubic_and_new_reno_fill_the_link_and_share_it() {
    for config in [Config::tcp(), Config::new_reno(), Config { sack: false, ..Config::new_reno() }]
    {
        // A buffer of two BDPs, which they fill until it drops.
        let (warmup, time) = (Span::from_ms(50), Span::from_ms(600));
        let limit = 150_000;
        let measured = Bottleneck { mark: u64::MAX, limit, senders: 2, warmup, time }.run(&config);
        assert!(measured.utilisation > 0.98, "{}", measured.utilisation);
        assert!(measured.drops > 10);
        assert!(measured.fairness() > 0.97, "{:?}", measured.shares);
    }
}

#[test]
fn an_incast_is_served_in_turns_without_collapse() {
    // 40 hosts, 20 KB each, into a buffer of 100 KB: the first windows alone are six times that.
    let config = Config::dctcp();
    let queue = RefCell::new(Time::ZERO);
    let mut net = Net::new(41, &config, move |now: Time, packet: &mut Packet<Header>| {
        if packet.dst.0 != 40 || matches!(packet.header.body, Body::Ack { .. }) {
            return vec![DELAY];
        }
        let mut busy_until = queue.borrow_mut();
        let start = (*busy_until).max(now);
        let depth = RATE.bytes_in(start.since(now));
        if depth > 100_000 {
            return vec![];
        }
        if depth > 30_000 {
            packet.mark();
        }
        *busy_until = start + RATE.span_of(u64::from(packet.wire_bytes));
        vec![busy_until.since(now) + DELAY]
    });
    net.keep_trace = false;
    for sender in 0..40 {
        net.send(sender, 40, 1, 20_000, Kind::OneWay);
    }
    net.run_until(Time::ZERO + Span::from_ms(100));
    assert_eq!(net.count(40, |event| matches!(event, Event::Delivered { .. })), 40);
    let last = net.events.iter().map(|entry| entry.0).max().unwrap();
    // 0.8 MB take 0.7 ms at best; timeouts of 1 ms and their doubles are in it.
    assert!(last < Time::ZERO + Span::from_ms(20), "{last}");
}
