//! A server that echoes calls, and a client.
//!
//! `cargo run -p rackweave-rpc --example echo`

use std::time::Duration;

use rackweave_rpc::{Incoming, Node, NodeConfig, Rate, Transport};

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Both ends are in one program here; on real hosts, `allow` names the hosts that may call.
    let config = NodeConfig::new(Transport::homa(Rate::from_gbps(10)), ([127, 0, 0, 1], 0).into())
        .allow("127.0.0.1".parse()?);
    let there = Node::bind(config.clone())?;
    let here = Node::bind(config)?;

    let server = there.server();
    let serving = tokio::spawn(async move {
        while let Some(incoming) = server.next().await {
            match incoming {
                Incoming::Request(mut request) => {
                    let bytes = request.take_bytes();
                    if let Err(error) = request.respond(bytes).await {
                        eprintln!("not answered: {error}");
                    }
                }
                Incoming::OneWay(message) => println!("the server was told {:?}", message.bytes()),
                // No stream is expected; a stream that is dropped is reset.
                _ => {}
            }
        }
    });

    let (client, peer) = (here.client(), here.peer(there.local_addr()));
    let answer = client.call(peer, "hello").deadline(Duration::from_secs(5)).await?;
    assert_eq!(answer, "hello");
    client.send(peer, "by the way").await?;

    there.shutdown().await;
    serving.await?;
    let late = client.call(peer, "anybody there?").deadline(Duration::from_millis(100)).await;
    println!("after its shutdown: {}", late.expect_err("nobody is"));
    Ok(())
}
