//! Calls and streams through a switch that loses, damages, duplicates and delays packets.

use crate::common::fabric::BadFabric;
use crate::common::{PATIENCE, bytes, drained, reverse, reversed};
use rackweave_rpc::{Incoming, Rate, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

const LINK: Rate = Rate(500_000_000);

fn transports() -> Vec<(&'static str, Transport)> {
    vec![
        ("homa", Transport::homa(LINK)),
        ("leverage-homa", Transport::leverage_homa(LINK)),
        ("polo", Transport::polo(LINK)),
        ("tcp", Transport::tcp(LINK)),
    ]
}

fn check_faults(fabric: &BadFabric, name: &str) {
    let counters = fabric.counters();
    let faults = [counters.corrupted, counters.duplicated, counters.reordered];
    assert!(faults.iter().all(|faults| *faults > 0), "{name}: {counters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_is_executed_once_and_answered_right() {
    for (name, transport) in transports() {
        let fabric = BadFabric::new(3, LINK, 0.01);
        let there = fabric.node(0, &transport);
        tokio::spawn(reverse(there.server()));
        let mut calls = JoinSet::new();
        let clients = [1, 2].map(|host| fabric.node(host, &transport));
        for (host, here) in clients.iter().enumerate() {
            for i in 0..100 {
                let len = i * i * 2 + host;
                let call = here.client().call(here.host(0), bytes(len)).deadline(PATIENCE);
                calls.spawn(async move { (len, call.await) });
            }
        }
        while let Some(done) = calls.join_next().await {
            let (len, answer) = done.unwrap();
            let answer = answer.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(answer == reversed(len), "{name}: {len} bytes");
        }
        check_faults(&fabric, name);
        assert_eq!(there.stats().received, 200, "{name}: each once");
        for here in &clients {
            drained(here).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_arrive_once() {
    for (name, transport) in transports() {
        let fabric = BadFabric::new(2, LINK, 0.01);
        let (there, here) = (fabric.node(0, &transport), fabric.node(1, &transport));
        let server = there.server();
        let mut sends = JoinSet::new();
        for i in 0..200 {
            let message = here.client().send(here.host(0), bytes(i * 77)).deadline(PATIENCE);
            sends.spawn(message.into_future());
        }
        let mut seen = [0; 200];
        for _ in 0..200 {
            let Some(Incoming::OneWay(message)) = server.next().await else { panic!() };
            assert!(message.bytes() == &bytes(message.bytes().len()), "{name}");
            seen[message.bytes().len() / 77] += 1;
        }
        while let Some(done) = sends.join_next().await {
            done.unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        assert_eq!(seen, [1; 200], "{name}");
        assert_eq!(there.stats().received, 200, "{name}: each once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_arrive_byte_for_byte() {
    const LEN: usize = 8 << 20;
    for (name, transport) in transports().into_iter().filter(|(name, _)| *name != "polo") {
        let fabric = BadFabric::new(2, LINK, 0.002);
        let (there, here) = (fabric.node(0, &transport), fabric.node(1, &transport));
        let server = there.server();
        tokio::spawn(async move {
            while let Some(Incoming::Stream(stream)) = server.next().await {
                let (mut read, mut write) = stream.split();
                while let Some(chunk) = read.read_chunk().await.unwrap() {
                    write.write_chunk(chunk).await.unwrap();
                }
                write.shutdown().await.unwrap();
            }
        });
        let (mut read, mut write) = here.client().stream(here.host(0)).unwrap().split();
        let writes = tokio::spawn(async move {
            write.write_all(&bytes(LEN)).await.unwrap();
            write.shutdown().await.unwrap();
            write
        });
        let mut got = Vec::new();
        let reads = timeout(PATIENCE, read.read_to_end(&mut got));
        reads.await.unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(got == bytes(LEN), "{name}");
        check_faults(&fabric, name);
        drop((read, writes.await.unwrap()));
        drained(&here).await;
    }
}
