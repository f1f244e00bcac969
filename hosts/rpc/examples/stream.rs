//! Streams: a client sends a gigabyte (or as many bytes as the first argument specifies), and the server replies with the number of bytes.
//!
//! `cargo run --release -p rackweave-rpc --example stream`

use rackweave_rpc::{Bytes, Incoming, Node, NodeConfig, Rate, Stream, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Counts a stream's bytes, and sends the number back at its end.
async fn count(mut stream: Stream) -> Result<(), Box<dyn std::error::Error>> {
    let mut total = 0;
    while let Some(chunk) = stream.read_chunk().await? {
        total += chunk.len() as u64;
    }
    stream.write_u64(total).await?;
    stream.shutdown().await?;
    Ok(())
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let total = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1 << 30);
    run(total).await
}

pub(crate) async fn run(total: u64) -> Result<(), Box<dyn std::error::Error>> {
    let config = NodeConfig::new(Transport::homa(Rate::from_gbps(10)), ([127, 0, 0, 1], 0).into())
        .allow("127.0.0.1".parse()?);
    let there = Node::bind(config.clone())?;
    let here = Node::bind(config)?;

    let server = there.server();
    tokio::spawn(async move {
        while let Some(incoming) = server.next().await {
            if let Incoming::Stream(stream) = incoming {
                tokio::spawn(async move {
                    if let Err(error) = count(stream).await {
                        eprintln!("a stream has failed: {error}");
                    }
                });
            }
        }
    });

    let mut stream = here.client().stream(here.peer(there.local_addr()))?;
    let block = Bytes::from(vec![7; 1 << 20]);
    let mut left = total;
    while left > 0 {
        let piece = block.slice(..left.min(block.len() as u64) as usize);
        left -= piece.len() as u64;
        // Waits while the server is behind: memory stays bounded, and nothing is copied.
        stream.write_chunk(piece).await?;
    }
    stream.shutdown().await?;
    let counted = stream.read_u64().await?;
    println!("{counted} bytes have arrived");
    assert_eq!(counted, total);
    Ok(())
}
