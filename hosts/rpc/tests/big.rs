//! A large transfer by each method of sending, through a switch that loses, damages, duplicates and delays packets,
//! compared by BLAKE3, in bounded memory. By default megabytes; `RACKWEAVE_BIG_BYTES` sets the size, and ten gigabytes
//! take minutes:
//!
//! `RACKWEAVE_BIG_BYTES=10000000000 cargo test --release -p rackweave-rpc --test big -- --nocapture`

#[path = "it/common/mod.rs"]
mod common;

use std::time::Duration;

use common::fabric::BadFabric;
use rackweave_rpc::{Bytes, Incoming, Rate, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

const LINK: Rate = Rate::from_gbps(5);
const FAULTS: f64 = 0.0005;

/// About a hundred packets among these are lost, damaged, duplicated or delayed.
const SMALL: u64 = 32 << 20;

fn total() -> u64 {
    std::env::var("RACKWEAVE_BIG_BYTES").map_or(SMALL, |text| text.parse().unwrap())
}

/// The deadline of a call that waits behind fifteen others, on a machine that may be busy.
const DEADLINE: Duration = Duration::from_secs(300);

/// Returns bytes that differ from block to block.
fn block(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Returns the peak memory of this process in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn report(what: &str, began: Instant, fabric: &BadFabric) {
    let (s, counters) = (began.elapsed().as_secs_f64(), fabric.counters());
    println!(
        "{what}: {} bytes in {s:.1} s ({:.2} Gbps); {} lost, {} damaged, {} doubled, {} delayed; \
         peak {} MB",
        total(),
        total() as f64 * 8e-9 / s,
        counters.drops.iter().sum::<u64>(),
        counters.corrupted,
        counters.duplicated,
        counters.reordered,
        peak_memory() / 1_000_000,
    );
    assert!(peak_memory() < 512 << 20);
    let faults = [counters.corrupted, counters.duplicated, counters.reordered];
    assert!(faults.iter().all(|faults| *faults > 0), "{counters:?}");
}

async fn stream(name: &str, transport: &Transport) {
    let fabric = BadFabric::new(2, LINK, FAULTS);
    let (there, here) = (fabric.node(0, transport), fabric.node(1, transport));
    let server = there.server();
    tokio::spawn(async move {
        let Some(Incoming::Stream(mut stream)) = server.next().await else { panic!() };
        let mut hash = blake3::Hasher::new();
        while let Some(chunk) = stream.read_chunk().await.unwrap() {
            hash.update(&chunk);
        }
        stream.write_all(hash.finalize().as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        stream.acknowledged().await.unwrap();
    });
    let began = Instant::now();
    let mut stream = here.client().stream(here.host(0)).unwrap();
    let mut hash = blake3::Hasher::new();
    let mut left = total();
    for number in 0.. {
        let bytes = block(number, left.min(1 << 20) as usize);
        left -= bytes.len() as u64;
        hash.update(&bytes);
        stream.write_chunk(bytes).await.unwrap();
        if left == 0 {
            break;
        }
    }
    stream.shutdown().await.unwrap();
    let mut theirs = Vec::new();
    stream.read_to_end(&mut theirs).await.unwrap();
    assert!(theirs == hash.finalize().as_bytes(), "{name}");
    report(&format!("{name}, one stream"), began, &fabric);
}

/// Sends requests of half a megabyte, sixteen at a time; each answer is the hash of its request.
async fn calls(name: &str, transport: &Transport) {
    const LEN: u64 = 500_000;
    let fabric = BadFabric::new(2, LINK, FAULTS);
    let (there, here) = (fabric.node(0, transport), fabric.node(1, transport));
    let server = there.server();
    tokio::spawn(async move {
        while let Some(Incoming::Request(request)) = server.next().await {
            tokio::spawn(async move {
                let hash = blake3::hash(request.bytes());
                request.respond(Bytes::copy_from_slice(hash.as_bytes())).await.unwrap();
            });
        }
    });
    let began = Instant::now();
    let calls = total().div_ceil(LEN);
    let mut tasks = JoinSet::new();
    for first in 0..16 {
        let (client, peer) = (here.client(), here.host(0));
        tasks.spawn(async move {
            for number in (first..calls).step_by(16) {
                let bytes = block(number, LEN as usize);
                let hash = blake3::hash(&bytes);
                let call = client.call(peer, bytes).deadline(DEADLINE);
                assert!(call.await.unwrap() == hash.as_bytes()[..]);
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(there.stats().received, calls, "{name}: each once");
    report(&format!("{name}, calls of {LEN} bytes"), began, &fabric);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn much_through_a_bad_fabric() {
    for (name, transport) in [
        ("homa", Transport::homa(LINK)),
        ("tcp", Transport::tcp(LINK)),
        ("polo", Transport::polo(LINK)),
    ] {
        if name != "polo" {
            stream(name, &transport).await;
        }
        calls(name, &transport).await;
    }
}
