//! Long flows through one slow link: its utilisation, its queue, and the fairness of the shares.

use rackweave_core::{Event, Kind, Rate, Span, Time};
use rackweave_switch::config::{BufferConfig, Topology};
use rackweave_switch::net::LinkStats;

use super::{DELAY, Network, fabric, on, send};
use crate::tcp::Config;

const RATE: Rate = Rate::from_gbps(10);

/// `senders` hosts send one endless message each to the last host, over one slow link whose queue marks packets
/// above `mark` bytes and drops them above `limit`. The round trip is about 40 us, so that a window of 50 KB
/// fills the link.
#[derive(Clone, Copy)]
pub(super) struct Bottleneck {
    pub(super) mark: u64,
    pub(super) limit: u64,
    pub(super) senders: u32,
    pub(super) warmup: Span,
    pub(super) time: Span,
}

/// The measurements after the warm-up.
pub(super) struct Measured {
    /// Statistics of the slow link.
    pub(super) link: LinkStats,
    /// Acknowledged bytes of each sender.
    pub(super) shares: Vec<u64>,
}

impl Bottleneck {
    pub(super) fn run(&self, config: &Config) -> Measured {
        // The hosts' links are faster than the slow link, so that the queue is there and not in the hosts.
        let host_link = Rate::from_gbps(40);
        let mut fabric = fabric(
            Topology::Dumbbell { left: self.senders, right: 1, host_link, core_link: RATE },
            DELAY,
        );
        fabric.core_link_delay = Span::from_us(10);
        fabric.switch = fabric.switch.with_ecn_threshold(self.mark);
        fabric.switch.buffer = BufferConfig::PerPort { bytes: self.limit };
        let mut net = on(&fabric, config);
        for sender in 0..self.senders {
            send(&mut net, sender, self.senders, 1, 4_000_000_000, Kind::OneWay);
            let next = net.now() + Span::from_us(37);
            net.run_until(next);
        }
        let warm = Time::ZERO + self.warmup;
        net.run_until(warm);
        let una = |net: &Network| -> Vec<u64> {
            let hosts = &net.hosts[..self.senders as usize];
            hosts.iter().map(|host| host.iter().next().unwrap().sender.una()).collect()
        };
        let before = una(&net);
        net.measure();
        net.run_until(warm + self.time);
        let shares = before.iter().zip(una(&net)).map(|(before, after)| after - before).collect();
        Measured { link: net.link("left0->right0"), shares }
    }
}

impl Measured {
    /// Jain's fairness index: 1 if all shares are equal.
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
    assert!(measured.link.utilisation > 0.999, "{}", measured.link.utilisation);
    let mean = measured.link.mean_queue_bytes / mark as f64;
    assert!((0.7..1.05).contains(&mean), "the mean is {mean} of the threshold");
    let most = measured.link.max_queue_bytes;
    assert!(most < mark * 13 / 10, "{most}");
    assert_eq!(measured.link.drops, 0);
}

#[test]
fn dctcp_flows_share_fairly() {
    for senders in [2, 5] {
        let mark = 20 * PACKET;
        let (warmup, time) = (Span::from_ms(20), Span::from_ms(300));
        let measured =
            Bottleneck { mark, limit: 1_000_000, senders, warmup, time }.run(&Config::dctcp());
        assert!(measured.fairness() > 0.99, "{senders}: {:?}", measured.shares);
        assert!(measured.link.utilisation > 0.98, "{}", measured.link.utilisation);
    }
}

#[test]
fn cubic_and_new_reno_fill_the_link_and_share_it() {
    for config in [Config::tcp(), Config::new_reno(), Config { sack: false, ..Config::new_reno() }]
    {
        // A buffer of two BDPs, which the senders fill until it drops packets.
        let (warmup, time) = (Span::from_ms(50), Span::from_ms(600));
        let limit = 150_000;
        let measured = Bottleneck { mark: u64::MAX, limit, senders: 2, warmup, time }.run(&config);
        assert!(measured.link.utilisation > 0.98, "{}", measured.link.utilisation);
        assert!(measured.link.drops > 10);
        assert!(measured.fairness() > 0.97, "{:?}", measured.shares);
    }
}

#[test]
fn an_incast_is_served_in_turns_without_collapse() {
    // 40 hosts send 20 KB each into a buffer of 100 KB: the first windows together are six times as large.
    let config = Config::dctcp();
    let mut fabric = fabric(Topology::SingleSwitch { hosts: 41, host_link: RATE }, DELAY);
    fabric.switch = fabric.switch.with_ecn_threshold(30_000);
    fabric.switch.buffer = BufferConfig::PerPort { bytes: 100_000 };
    let mut net = on(&fabric, &config);
    for sender in 0..40 {
        send(&mut net, sender, 40, 1, 20_000, Kind::OneWay);
    }
    net.run_until(Time::ZERO + Span::from_ms(100));
    assert_eq!(net.count(40, |event| matches!(event, Event::Delivered { .. })), 40);
    let last = net.events.iter().map(|entry| entry.0).max().unwrap();
    // 0.8 MB take at least 0.7 ms; the rest is timeouts of 1 ms and their doublings.
    assert!(last < Time::ZERO + Span::from_ms(20), "{last}");
}
