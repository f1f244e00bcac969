//! Calls between nodes of one process.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{PATIENCE, bytes, config, drained, homa, node, reverse, reversed, transports};
use rackweave_core::Span;
use rackweave_rpc::{Bytes, CallError, Incoming, Node, NodeConfig, Rate, Refusal, Transport};
use rackweave_testing::free_address;
use rackweave_transport::{TransportConfig, polo};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn calls_are_answered_over_every_transport() {
    for (name, transport) in transports() {
        let (here, there) = (node(&transport), node(&transport));
        tokio::spawn(reverse(there.server()));
        let peer = here.peer(there.local_addr());
        let client = here.client();
        for len in [0, 1, 100, 1_500, 20_000, 300_000] {
            let answer = client.call(peer, bytes(len)).await;
            let answer = answer.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(answer == reversed(len), "{name}: {len} bytes");
        }
        here.shutdown().await;
        there.shutdown().await;
    }
}

#[tokio::test]
async fn a_thousand_calls_at_once() {
    for (name, transport) in transports() {
        let (here, there) = (node(&transport), node(&transport));
        tokio::spawn(reverse(there.server()));
        let peer = here.peer(there.local_addr());
        let client = here.client();
        let mut calls = JoinSet::new();
        for i in 0..1000 {
            let call = client.call(peer, bytes(i)).deadline(PATIENCE);
            calls.spawn(async move { (i, call.await) });
        }
        while let Some(done) = calls.join_next().await {
            let (i, answer) = done.unwrap();
            let answer = answer.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(answer == reversed(i), "{name}: {i}");
        }
        assert_eq!(here.stats().answered, 1000);
        drained(&here).await;
        drained(&there).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_share_a_node() {
    for (name, transport) in transports() {
        let (here, there) = (node(&transport), node(&transport));
        for _ in 0..3 {
            tokio::spawn(reverse(there.server()));
        }
        let peer = here.peer(there.local_addr());
        let mut tasks = JoinSet::new();
        for task in 0..32 {
            let client = here.client();
            tasks.spawn(async move {
                for round in 0..50 {
                    let len = task * 50 + round;
                    let answer = client.call(peer, bytes(len)).deadline(PATIENCE).await?;
                    assert!(answer == reversed(len));
                }
                Ok::<_, CallError>(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        drained(&here).await;
        drained(&there).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_cancelled_calls_leaves_nothing() {
    for (name, transport) in transports() {
        let (here, there) = (node(&transport), node(&transport));
        tokio::spawn(reverse(there.server()));
        let peer = here.peer(there.local_addr());
        let mut tasks = JoinSet::new();
        for i in 0..400_u64 {
            let client = here.client();
            tasks.spawn(async move {
                let call = client.call(peer, bytes(i as usize * 60));
                let _ = timeout(Duration::from_micros(i * 17 % 2_000), call).await;
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        assert_eq!(here.stats().calls, 0, "{name}");
        // The node works as before.
        let answer = here.client().call(peer, bytes(1000)).deadline(PATIENCE).await;
        assert_eq!(answer.unwrap_or_else(|e| panic!("{name}: {e}")), reversed(1000));
        until_served(&there, name).await;
        drained(&here).await;
    }
}

/// A cancelled request is either still executed or forgotten.
async fn until_served(there: &Node, name: &str) {
    let waits = async {
        loop {
            let stats = there.stats();
            if stats.serving + stats.waiting_requests == 0 && stats.sending_bytes == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let Err(_) = timeout(PATIENCE, waits).await else { return };
    panic!("{name}: {:?}", there.stats());
}

#[tokio::test]
async fn a_deadline_ends_a_call_that_is_not_answered() {
    for (name, transport) in transports() {
        let (here, there) = (node(&transport), node(&transport));
        let server = there.server();
        let peer = here.peer(there.local_addr());
        let client = here.client();
        let mut limit = Duration::from_millis(150);
        let request = loop {
            let began = Instant::now();
            let call = tokio::spawn(client.call(peer, "x").deadline(limit).into_future());
            let arrived = timeout(limit, server.next()).await;
            let error = timeout(PATIENCE, call).await.unwrap().unwrap().unwrap_err();
            let took = began.elapsed();
            assert!(matches!(error, CallError::Deadline { .. }), "{name}: {error}");
            assert!(took >= limit, "{name}: {took:?}");
            match arrived {
                Ok(Some(Incoming::Request(request))) => {
                    assert!(request.time_left().unwrap() <= limit, "{name}");
                    assert!(!error.is_safe_to_retry());
                    break request;
                }
                Ok(other) => panic!("{name}: {other:?}"),
                // The machine was too busy, and the call did not arrive in time.
                Err(_) => limit *= 2,
            }
            assert!(limit < PATIENCE, "{name}: nothing arrives in time");
        };
        crate::common::until(|| request.time_left() == Some(Duration::ZERO)).await;
        // The answer is too late, which is harmless.
        let _ = request.respond("y").await;
        assert_eq!(here.stats().calls, 0);
    }
}

#[tokio::test]
async fn an_absent_server_is_an_error_within_the_deadline() {
    for (name, transport) in transports() {
        let here = node(&transport);
        // No process uses this port.
        let peer = here.peer(free_address());
        let call = here.client().call(peer, "x").deadline(Duration::from_millis(300));
        let error = timeout(PATIENCE, call).await.unwrap().unwrap_err();
        let known = matches!(error, CallError::Deadline { .. } | CallError::PeerSilent { .. });
        assert!(known, "{name}: {error}");
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_is_told_of() {
    for (name, transport) in transports() {
        let (here, there) = (node(&transport), node(&transport));
        let server = there.server();
        let peer = here.peer(there.local_addr());
        tokio::spawn(async move { while server.next().await.is_some() {} });
        let error = here.client().call(peer, "x").await.unwrap_err();
        assert!(matches!(error, CallError::Unanswered { .. }), "{name}: {error}");
        assert!(!error.is_safe_to_retry());
    }
}

fn refusal(outcome: Result<Bytes, CallError>) -> Refusal {
    match outcome {
        Err(CallError::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn refusals_say_why() {
    let transport = homa();
    let here = node(&transport);
    let there = Node::bind(config(&transport).max_waiting_requests(2)).unwrap();
    let peer = here.peer(there.local_addr());
    let client = here.client();
    assert_eq!(refusal(client.call(peer, "x").await), Refusal::NotServing);
    let server = there.server();
    // Two requests wait, and no server takes them.
    let mut limit = Duration::from_millis(50);
    while there.stats().waiting_requests == 0 {
        client.call(peer, "1").deadline(limit).await.unwrap_err();
        limit *= 2;
    }
    let waiting = tokio::spawn(client.call(peer, "2").into_future());
    crate::common::until(|| there.stats().waiting_requests == 2).await;
    assert_eq!(refusal(client.call(peer, "3").await), Refusal::Full);
    client.send(peer, "dropped").await.unwrap();
    assert_eq!(there.stats().dropped_messages, 1);
    // The first has waited longer than its client did, so it is skipped.
    let Some(Incoming::Request(second)) = server.next().await else { panic!() };
    assert_eq!(second.bytes(), "2");
    second.respond("two").await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), "two");
    // Requests that wait when the node shuts down, or when the last server is dropped, are not executed.
    let waiting = tokio::spawn(client.call(peer, "4").into_future());
    crate::common::until(|| there.stats().waiting_requests == 1).await;
    drop(server);
    assert_eq!(refusal(waiting.await.unwrap()), Refusal::NotServing);
    let server = there.server();
    let waiting = tokio::spawn(client.call(peer, "5").into_future());
    crate::common::until(|| there.stats().waiting_requests == 1).await;
    there.shutdown().await;
    assert_eq!(refusal(waiting.await.unwrap()), Refusal::Stopping);
    assert!(server.next().await.is_none());
}

/// A host that floods a server keeps no other out, and gets what the others leave.
#[tokio::test]
async fn a_flood_of_one_host_makes_room_for_others() {
    for (name, transport) in transports() {
        let node = |last: u8| {
            let config = NodeConfig::new(transport.clone(), ([127, 0, 0, last], 0).into());
            let config = config.allow("127.0.0.0/8".parse().unwrap()).default_deadline(PATIENCE);
            Node::bind(config.max_waiting_requests(8)).unwrap()
        };
        let (there, flooder, other) = (node(1), node(2), node(3));
        let server = there.server();
        let at = |from: &Node| (from.client(), from.peer(there.local_addr()));
        let (client, peer) = at(&flooder);
        let mut flood = JoinSet::new();
        for _ in 0..20 {
            flood.spawn(client.call(peer, "flood").into_future());
        }
        // Twelve of them find no room.
        for _ in 0..12 {
            assert_eq!(refusal(flood.join_next().await.unwrap().unwrap()), Refusal::Full, "{name}");
        }
        let (client, peer) = at(&other);
        let calls: Vec<_> =
            (0..4).map(|_| tokio::spawn(client.call(peer, "other").into_future())).collect();
        for _ in 0..4 {
            assert_eq!(refusal(flood.join_next().await.unwrap().unwrap()), Refusal::Full, "{name}");
        }
        assert_eq!(
            refusal(client.call(peer, "fifth").await),
            Refusal::Full,
            "{name}: half is fair"
        );
        tokio::spawn(reverse(server));
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap(), "rehto", "{name}");
        }
        while let Some(answer) = flood.join_next().await {
            assert_eq!(answer.unwrap().unwrap(), "doolf", "{name}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_at_once() {
    for (name, transport) in transports() {
        let (here, there) = (node(&transport), node(&transport));
        let peer = here.peer(there.local_addr());
        if name != "tcp" && name != "dctcp" {
            let long = here.client().call(peer, vec![0; (64 << 20) - 4]).await.unwrap_err();
            let CallError::TooLong { bytes, max } = long else { panic!("{name}: {long}") };
            assert_eq!((bytes, max), ((64 << 20) - 4, (64 << 20) - 5), "{name}");
        }
        let elsewhere = there.client().call(peer, "x").await.unwrap_err();
        assert!(matches!(elsewhere, CallError::UnknownPeer), "{name}: {elsewhere}");
        let stream = here.client().stream(peer);
        assert_eq!(matches!(stream, Err(CallError::NoStreams)), name == "polo", "{name}");
        drop(stream);
        here.shutdown().await;
        let stopped = here.client().call(peer, "x").await.unwrap_err();
        assert!(matches!(stopped, CallError::NodeStopped(None)), "{name}: {stopped}");
    }
}

#[tokio::test]
async fn messages_without_answers_arrive_once() {
    for (name, transport) in transports() {
        let (here, there) = (node(&transport), node(&transport));
        let server = there.server();
        let peer = here.peer(there.local_addr());
        let client = here.client();
        for i in 0..100_usize {
            client.send(peer, bytes(i * 100)).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            let Some(Incoming::OneWay(message)) = server.next().await else { panic!() };
            assert!(message.bytes() == &bytes(i * 100), "{name}");
        }
        drained(&here).await;
    }
}

#[tokio::test]
async fn calls_wait_for_room_in_their_order() {
    const LEN: usize = 100_000;
    let transport = homa();
    let here = Node::bind(config(&transport).send_memory(250_000).max_waiting_calls(20)).unwrap();
    let there = Node::bind(config(&transport).send_memory(250_000)).unwrap();
    // Incoming requests wait.
    let server = there.server();
    let peer = here.peer(there.local_addr());
    let client = here.client();
    let mut calls = JoinSet::new();
    let mut refused = 0;
    for _ in 0..30 {
        let call = client.call(peer, bytes(LEN)).deadline(PATIENCE);
        calls.spawn(call.into_future());
    }
    crate::common::until(|| here.stats().calls_without_room == 20 && calls.len() == 30).await;
    let error = client.call(peer, bytes(LEN)).without_waiting().await.unwrap_err();
    assert!(matches!(error, CallError::Full { calls: 20, .. }), "{error}");
    assert!(error.is_safe_to_retry());
    // This call is cancelled while it waits.
    calls.spawn(client.call(peer, "never").deadline(Duration::from_millis(1)).into_future());
    tokio::spawn(reverse(server));
    while let Some(done) = calls.join_next().await {
        match done.unwrap() {
            Ok(answer) => assert!(answer == reversed(LEN)),
            Err(CallError::Full { .. } | CallError::Deadline { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // Two were sent, twenty waited.
    assert_eq!(refused, 9);
    drained(&here).await;
    drained(&there).await;
}

/// A transport that cannot remember more finished exchanges takes no new ones until it forgets some, which no packet and no timer of
/// its own reports. At a server they are counted, since nothing else tells why clients wait.
#[tokio::test]
async fn calls_go_on_when_the_transport_has_forgotten_earlier_ones() {
    let link = Rate::from_gbps(10);
    let mut polo = polo::Config::slides().for_path(link, Span::from_us(60)).for_hosts();
    // Some 400 calls a second.
    polo.common.max_finished = 100;
    let few = Transport::custom(TransportConfig::Polo(Arc::new(polo)), link);
    let usual = Transport::polo(link);
    let (here, there) = (node(&few), node(&usual));
    call_many(&here, &there, 4, 100).await;
    assert!(here.stats().datagrams.not_admitted == 0 && there.stats().datagrams.not_admitted == 0);
    let (here, there) = (node(&usual), node(&few));
    call_many(&here, &there, 1, 150).await;
    assert!(there.stats().datagrams.not_admitted > 0);
}

/// Makes `calls` calls one after the other in each of `tasks` tasks.
async fn call_many(here: &Node, there: &Node, tasks: usize, calls: usize) {
    tokio::spawn(reverse(there.server()));
    let peer = here.peer(there.local_addr());
    let clients: JoinSet<_> = (0..tasks)
        .map(|_| {
            let client = here.client();
            async move {
                for _ in 0..calls {
                    let answer = client.call(peer, "abc").deadline(Duration::from_secs(20)).await;
                    assert_eq!(answer.unwrap(), "cba");
                }
            }
        })
        .collect();
    clients.join_all().await;
}

#[tokio::test]
async fn shutdown_waits_for_what_is_under_way() {
    for (name, transport) in transports() {
        let (here, there) = (node(&transport), node(&transport));
        let server = there.server();
        let peer = here.peer(there.local_addr());
        let call = tokio::spawn(here.client().call(peer, "slow").into_future());
        let Some(Incoming::Request(request)) = server.next().await else { panic!() };
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            request.respond("done").await.unwrap();
        });
        let address = there.local_addr();
        let (ours, theirs) =
            tokio::join!(timeout(PATIENCE, here.shutdown()), timeout(PATIENCE, there.shutdown()));
        ours.and(theirs).unwrap();
        let answer = call.await.unwrap();
        assert_eq!(answer.unwrap_or_else(|e| panic!("{name}: {e}")), "done");
        // The port is free after the shutdown.
        std::net::UdpSocket::bind(address).unwrap();
    }
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever() {
    let transport = homa();
    let here = Node::bind(config(&transport).grace(Duration::from_millis(50))).unwrap();
    let there = node(&transport);
    let server = there.server();
    let peer = here.peer(there.local_addr());
    let call = tokio::spawn(here.client().call(peer, "x").into_future());
    let Some(Incoming::Request(request)) = server.next().await else { panic!() };
    timeout(PATIENCE, here.shutdown()).await.unwrap();
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::NodeStopped(None)), "{error}");
    drop(request);
}

#[test]
fn a_node_needs_a_runtime_and_ends_with_it() {
    let error = Node::bind(config(&homa())).unwrap_err();
    assert_eq!(error.to_string(), "a node needs a tokio runtime to run in");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let node = runtime.block_on(async { node(&homa()) });
    let peer = node.peer(([127, 0, 0, 1], 9).into());
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(node.client().call(peer, "x").into_future()).unwrap_err();
    assert!(matches!(error, CallError::NodeStopped(None)), "{error}");
    runtime.block_on(node.shutdown());
}
