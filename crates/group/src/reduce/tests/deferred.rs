//! A driver that measures uploads compares their results itself.

use std::sync::Arc;

use rackweave_core::{Node as _, Schedule};
use rackweave_transport::{TransportConfig, tcp};
use rackweave_workload::text::TextModel;

use super::super::job::{Config, Costs, Job, JobNode, Map};
use super::*;

#[test]
fn a_result_is_compared_when_the_driver_says_so_and_the_job_ends_as_of_its_upload() {
    let carrier = TransportConfig::Tcp(Arc::new(tcp::Config::tcp()));
    let config = Config {
        map: Map::Local,
        costs: Costs { reduce_per_pair: Span::from_us(1), ..Costs::default() },
        text: TextModel::default(),
        combiner: true,
        operator: Operator::Sum,
        order: Order::Hash,
        window: 64,
        hold: false,
        aggregation: None,
        seed: 1,
    };
    let (master, worker) = (HostId(0), HostId(1));
    let workers = vec![worker];
    let job = Job { number: 0, start: Time::ZERO, master, workers, bytes: 20_000 };
    let node = |host| JobNode::new(host, config.clone(), &carrier, std::slice::from_ref(&job));
    let mut nodes = [node(master).with_deferred_comparison(), node(worker)];
    // Packets arrive a millisecond after they were sent.
    let mut under_way = Schedule::default();
    let mut now = Time::ZERO;
    while !nodes[0].has_to_compare() {
        now += Span::from_ms(1);
        while let Some((at, (to, packet, payload))) = under_way.pop_due(now) {
            let payload: Vec<u8> = payload;
            nodes[usize::from(to == worker)].receive(at, &packet, &payload);
        }
        for node in &mut nodes {
            node.handle_timeout(now);
            while let Some(packet) = node.poll_transmit(now, 0) {
                let sent = (packet.dst, packet, node.payload().to_vec());
                under_way.push(now + Span::from_ms(1), sent);
            }
        }
        assert!(now < seconds(10), "the upload ends");
    }
    let record = |nodes: &[JobNode; 2]| *nodes[0].records().next().unwrap().1;
    let before = record(&nodes);
    assert_eq!((before.uploaded, before.finished, before.exact), (None, None, false));
    nodes[0].handle_timeout(now + Span::from_ms(500));
    assert_eq!(record(&nodes), before);
    nodes[0].compare();
    assert!(!nodes[0].has_to_compare());
    nodes[0].handle_timeout(now + seconds(1).since(Time::ZERO));
    let after = record(&nodes);
    assert_eq!((after.uploaded, after.exact), (Some(now), true));
    assert_eq!(after.finished, Some(now + Span::from_us(1) * after.received));
}
