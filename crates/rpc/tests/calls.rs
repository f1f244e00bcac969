//! Calls between nodes of one process.

use std::net::SocketAddr;

use rackweave_rpc::{Incoming, Node, NodeConfig, Rate, Server, Transport};


fn transports() -> Vec<(&'static str, Transport)> {
    let link = Rate::from_gbps(10);
    vec![
        ("homa", Transport::homa(link)),
        ("leverage-homa", Transport::leverage_homa(link)),
        ("polo", Transport::polo(link)),
        ("tcp", Transport::tcp(link)),
        ("dctcp", Transport::dctcp(link)),
    ]
}

fn config(transport: Transport) -> NodeConfig {
    let local: SocketAddr = ([127, 0, 0, 1], 0).into();
    NodeConfig::new(transport, local).allow("127.0.0.1".parse().unwrap())
}

/// A client's node and a server's.
fn pair(transport: &Transport) -> (Node, Node) {
    let end = || Node::bind(config(transport.clone())).unwrap();
    (end(), end())
}

/// Answers each request with its bytes reversed.
async fn reverse(server: Server) {
    while let Some(incoming) = server.next().await {
        if let Incoming::Request(mut request) = incoming {
            let mut bytes = request.take_bytes().to_vec();
            bytes.reverse();
            let _ = request.respond(bytes).await;
        }
    }
}

#[tokio::test]
async fn calls_are_answered_over_every_transport() {
    for (name, transport) in transports() {
        let (here, there) = pair(&transport);
        tokio::spawn(reverse(there.server()));
        let peer = here.peer(there.local_addr());
        let client = here.client();
        for len in [0, 1, 100, 1_500, 20_000, 300_000] {
            let sent: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut expected = sent.clone();
            expected.reverse();
            let answer = client.call(peer, sent).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(answer == expected, "{name}: {len} bytes");
        }
        here.shutdown().await;
        there.shutdown().await;
    }
}
