//! Helpers that several tests share.
#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod fabric;

use std::net::SocketAddr;
use std::time::Duration;

use rackweave_rpc::{Incoming, Node, NodeConfig, Rate, Server, Transport};

/// The limit of every wait; a loaded machine may be slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn transports() -> Vec<(&'static str, Transport)> {
    let link = Rate::from_gbps(10);
    vec![
        ("homa", Transport::homa(link)),
        ("leverage-homa", Transport::leverage_homa(link)),
        ("polo", Transport::polo(link)),
        ("tcp", Transport::tcp(link)),
        ("dctcp", Transport::dctcp(link)),
        ("kernel", Transport::kernel_tcp(None)),
    ]
}

pub(crate) fn streaming() -> Vec<(&'static str, Transport)> {
    transports().into_iter().filter(|(name, _)| *name != "polo").collect()
}

pub(crate) fn homa() -> Transport {
    Transport::homa(Rate::from_gbps(10))
}

pub(crate) fn config(transport: &Transport) -> NodeConfig {
    let local: SocketAddr = ([127, 0, 0, 1], 0).into();
    NodeConfig::new(transport.clone(), local)
        .allow("127.0.0.1".parse().unwrap())
        .default_deadline(PATIENCE)
}

pub(crate) fn node(transport: &Transport) -> Node {
    Node::bind(config(transport)).unwrap()
}

/// Answers each request with its bytes reversed.
pub(crate) async fn reverse(server: Server) {
    while let Some(incoming) = server.next().await {
        if let Incoming::Request(mut request) = incoming {
            let mut bytes = request.take_bytes().to_vec();
            bytes.reverse();
            let _ = request.respond(bytes).await;
        }
    }
}

pub(crate) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

pub(crate) fn reversed(len: usize) -> Vec<u8> {
    let mut bytes = bytes(len);
    bytes.reverse();
    bytes
}

/// Waits until a condition is true.
pub(crate) async fn until(mut so: impl FnMut() -> bool) {
    let waits = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waits).await.expect("it should have come to this");
}

/// Waits until a node has no outstanding work.
pub(crate) async fn drained(node: &Node) {
    until(|| {
        let stats = node.stats();
        let held = stats.sending_bytes + stats.arriving_bytes + stats.unread_bytes;
        let known = stats.calls + stats.waiting_requests + stats.serving + stats.streams;
        held == 0 && known == 0
    })
    .await;
}
