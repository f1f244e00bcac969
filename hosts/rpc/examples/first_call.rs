//! Measures the first call of a new client, with and without a ticket, over a path with a given delay in each direction.
//!
//! `cargo run --release -p rackweave-rpc --example first_call -- 1` runs 30 clients of each kind, alternating, over a relay that
//! delays datagrams by 1 ms; without a number, or with 0, there is no relay.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rackweave_rpc::{Incoming, Key, Node, NodeConfig, Rate, Transport};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::Instant;

const LOCAL: &str = "127.0.0.1:0";

/// Clients of each kind.
const CLIENTS: usize = 30;

fn config() -> Result<NodeConfig, Box<dyn Error>> {
    let transport = Transport::homa(Rate::from_gbps(10));
    let config = NodeConfig::new(transport, ([127, 0, 0, 1], 0).into());
    Ok(config.allow("127.0.0.1".parse()?).key(Key::derive(&[7; 32])?))
}

/// A relay to a server. Each client gets a socket of its own towards the server, so that the server sees different ports.
async fn relay(server: SocketAddr, delay: Duration) -> Result<SocketAddr, Box<dyn Error>> {
    let front = Arc::new(UdpSocket::bind(LOCAL).await?);
    let at = front.local_addr()?;
    tokio::spawn(async move {
        let mut clients = BTreeMap::new();
        let mut buffer = vec![0; 65_536];
        while let Ok((length, client)) = front.recv_from(&mut buffer).await {
            if let Entry::Vacant(entry) = clients.entry(client) {
                let Ok(back) = UdpSocket::bind(LOCAL).await else { return };
                let back = Arc::new(back);
                let (there, here) = (delayed(Arc::clone(&back)), delayed(Arc::clone(&front)));
                entry.insert(there);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 65_536];
                    while let Ok((length, _)) = back.recv_from(&mut buffer).await {
                        let _ =
                            here.send((Instant::now() + delay, client, buffer[..length].to_vec()));
                    }
                });
            }
            let _ =
                clients[&client].send((Instant::now() + delay, server, buffer[..length].to_vec()));
        }
    });
    Ok(at)
}

type Delayed = mpsc::UnboundedSender<(Instant, SocketAddr, Vec<u8>)>;

/// Sends datagrams from a socket when they are due.
fn delayed(through: Arc<UdpSocket>) -> Delayed {
    let (send, mut receive) = mpsc::unbounded_channel::<(Instant, SocketAddr, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, to, bytes)) = receive.recv().await {
            tokio::time::sleep_until(due).await;
            let _ = through.send_to(&bytes, to).await;
        }
    });
    send
}

/// Makes the first call of a new client; returns how long it took, and whether it went early.
async fn first_call(
    config: NodeConfig,
    at: SocketAddr,
) -> Result<(Duration, bool), Box<dyn Error>> {
    let client = Node::bind(config)?;
    let peer = client.peer(at);
    let began = Instant::now();
    client.client().call(peer, vec![1; 100]).idempotent().await?;
    let took = began.elapsed();
    let early = client.stats().datagrams.early_sent > 0;
    client.shutdown().await;
    Ok((took, early))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let ms = std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?;
    let node = Node::bind(config()?.accept_early())?;
    let server = node.server();
    tokio::spawn(async move {
        while let Some(incoming) = server.next().await {
            if let Incoming::Request(mut request) = incoming {
                let bytes = request.take_bytes();
                let _ = request.respond(bytes).await;
            }
        }
    });
    let at = match ms {
        0 => node.local_addr(),
        ms => relay(node.local_addr(), Duration::from_millis(ms)).await?,
    };
    let tickets = std::env::temp_dir().join(format!("first_call.{}", std::process::id()));
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..CLIENTS {
        let (took, _) = first_call(config()?, at).await?;
        times[0].push(took);
        let (took, early) = first_call(config()?.tickets(&tickets), at).await?;
        if early {
            times[1].push(took);
        }
    }
    std::fs::remove_file(&tickets)?;
    for (what, mut times) in ["without a ticket", "with a ticket"].into_iter().zip(times) {
        times.sort_unstable();
        let at = |percent: usize| times.get(times.len() * percent / 100).copied();
        println!("{what}: {} calls, median {:?}, P90 {:?}", times.len(), at(50), at(90));
    }
    Ok(())
}
