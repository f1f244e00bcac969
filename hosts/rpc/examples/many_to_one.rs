//! Many to one: each of a hundred clients requests a part of a table from one server, all at the same time, and the
//! server answers each at its own pace. This is the traffic for which the transports of this project were designed.
//!
//! `cargo run -p rackweave-rpc --example many_to_one`

use std::time::Duration;

use rackweave_rpc::{CallError, Incoming, Node, NodeConfig, Rate, Request, Transport};
use tokio::task::JoinSet;

const CLIENTS: u32 = 100;
const PART: usize = 20_000;

async fn answer(request: Request) -> Result<(), CallError> {
    let part = request.bytes().first().copied().unwrap_or_default();
    request.respond(vec![part; PART]).await
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = NodeConfig::new(Transport::polo(Rate::from_gbps(10)), ([127, 0, 0, 1], 0).into())
        .allow("127.0.0.1".parse()?);
    let there = Node::bind(config.clone())?;
    let address = there.local_addr();

    // Four workers share the incoming requests.
    for _ in 0..4 {
        let server = there.server();
        tokio::spawn(async move {
            while let Some(incoming) = server.next().await {
                if let Incoming::Request(request) = incoming
                    && let Err(error) = answer(request).await
                {
                    eprintln!("not answered: {error}");
                }
            }
        });
    }

    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let here = Node::bind(config.clone())?;
        clients.spawn(async move {
            let ask = vec![number as u8];
            let call = here.client().call(here.peer(address), ask).idempotent();
            let part = call.deadline(Duration::from_secs(20)).await?;
            here.shutdown().await;
            Ok::<_, CallError>((number, part))
        });
    }
    let mut total = 0;
    while let Some(done) = clients.join_next().await {
        let (number, part) = done??;
        assert!(part.iter().all(|byte| *byte == number as u8));
        total += part.len();
    }
    println!("{CLIENTS} clients have {total} bytes");
    Ok(())
}
