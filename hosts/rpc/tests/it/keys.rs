//! Nodes with a key.

use std::time::Duration;

use crate::common::{PATIENCE, bytes, config, node, reverse, reversed, transports};
use rackweave_rpc::{BindError, CallError, Incoming, Key, KeyMismatch, Node, Transport};
use rackweave_testing::{bind_again, free_address};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

fn key(n: u8) -> Key {
    Key::derive(&[n; 32]).unwrap()
}

fn keyed(transport: &Transport, n: u8) -> Node {
    Node::bind(config(transport).key(key(n))).unwrap()
}

#[tokio::test]
async fn calls_and_streams_with_a_key() {
    for (name, transport) in transports().into_iter().filter(|(name, _)| *name != "kernel") {
        let (client, server) = (keyed(&transport, 1), keyed(&transport, 1));
        tokio::spawn(reverse(server.server()));
        let peer = client.peer(server.local_addr());
        for len in [0, 100, 200_000] {
            let answer = client.client().call(peer, bytes(len)).await.unwrap();
            assert!(answer == reversed(len), "{name}: {len}");
        }
    }
    let (client, server) = (keyed(&crate::common::homa(), 1), keyed(&crate::common::homa(), 1));
    let peer = client.peer(server.local_addr());
    let mut stream = client.client().stream(peer).unwrap();
    let server = server.server();
    tokio::spawn(async move {
        while let Some(Incoming::Stream(mut stream)) = server.next().await {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(&all).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    stream.write_all(&bytes(500_000)).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).await.unwrap();
    assert!(back == bytes(500_000));
}

#[tokio::test]
async fn a_peer_with_another_key_or_none_is_named_before_the_deadline() {
    let homa = crate::common::homa();
    let cases = [
        (keyed(&homa, 1), node(&homa), KeyMismatch::PeerHasNone),
        (node(&homa), keyed(&homa, 1), KeyMismatch::PeerHasOne),
        (keyed(&homa, 1), keyed(&homa, 2), KeyMismatch::Another),
    ];
    for (client, server, expected) in cases {
        tokio::spawn(reverse(server.server()));
        let peer = client.peer(server.local_addr());
        // Idempotent calls, too, end at once: repeating them does not help.
        for idempotent in [false, true] {
            let call = client.client().call(peer, bytes(100)).deadline(PATIENCE);
            let call = if idempotent { call.idempotent() } else { call };
            let began = Instant::now();
            match call.await {
                Err(CallError::Key { peer: at, why }) => {
                    assert_eq!((at, why), (server.local_addr(), expected));
                }
                other => panic!("{expected:?}: {other:?}"),
            }
            assert!(began.elapsed() < PATIENCE - Duration::from_secs(1));
        }
        let mut stream = client.client().stream(peer).unwrap();
        stream.write_all(&bytes(100)).await.unwrap();
        let error = stream.read_chunk().await.unwrap_err();
        assert!(matches!(error, CallError::Key { .. }), "{expected:?}: {error}");
    }
}

#[tokio::test]
async fn the_kernels_tcp_takes_no_key() {
    let config = config(&Transport::kernel_tcp(None)).key(key(1));
    assert!(matches!(Node::bind(config), Err(BindError::KeyOverTcp)));
}

fn keeping(transport: &Transport, file: &std::path::Path) -> Node {
    Node::bind(config(transport).key(key(1)).tickets(file)).unwrap()
}

/// Each start of a client makes one call. Those with a ticket are early, and executed once like the others.
#[tokio::test]
async fn the_first_call_of_a_restarted_client_is_early_if_it_is_idempotent() {
    let folder = tempfile::tempdir().unwrap();
    for (name, transport) in transports().into_iter().filter(|(name, _)| *name != "kernel") {
        let file = folder.path().join(name);
        let at = free_address();
        let config = rackweave_rpc::NodeConfig::new(transport.clone(), at);
        let config = config.allow("127.0.0.1".parse().unwrap()).key(key(1)).accept_early();
        let server = Node::bind(config.clone()).unwrap();
        tokio::spawn(reverse(server.server()));
        let mut resumed = 0;
        for (start, idempotent) in [true, true, false, true].into_iter().enumerate() {
            let client = keeping(&transport, &file);
            let peer = client.peer(server.local_addr());
            let call = client.client().call(peer, bytes(10 + start));
            let call = if idempotent { call.idempotent() } else { call };
            assert!(call.await.unwrap() == reversed(10 + start), "{name}");
            resumed += u64::from(idempotent && start > 0 && !name.contains("tcp"));
            let stats = (client.stats(), server.stats());
            assert_eq!(stats.1.datagrams.resumed, resumed, "{name}: {stats:?}");
            assert_eq!(stats.0.datagrams.early_sent > 0, start % 2 == 1 && resumed > 0, "{name}");
            assert_eq!(stats.1.received, start as u64 + 1, "{name}: each is executed once");
            client.shutdown().await;
            assert_eq!(stats.0.tickets_not_written, 0, "{name}");
            assert!(std::fs::metadata(&file).unwrap().len() > 8, "{name}");
        }
        // A server that restarts has forgotten its tickets: the call goes on after the handshake.
        server.shutdown().await;
        let server = bind_again(|| Node::bind(config.clone())).unwrap();
        tokio::spawn(reverse(server.server()));
        let client = keeping(&transport, &file);
        let call = client.client().call(client.peer(at), bytes(99)).idempotent();
        assert!(call.await.unwrap() == reversed(99), "{name}");
        assert_eq!((server.stats().datagrams.resumed, server.stats().received), (0, 1), "{name}");
    }
}

#[tokio::test]
async fn early_calls_need_a_key_and_a_file_of_tickets() {
    let homa = crate::common::homa();
    let without = Node::bind(config(&homa).accept_early()).unwrap_err();
    assert!(matches!(without, BindError::EarlyWithoutKey), "{without}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes");
    assert!(Node::bind(config(&homa).tickets(&file)).is_err());
    std::fs::write(&file, "my notes").unwrap();
    let error = Node::bind(config(&homa).key(key(1)).tickets(&file)).unwrap_err();
    assert!(matches!(error, BindError::Tickets(_)), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"my notes");
}
