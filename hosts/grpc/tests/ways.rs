//! The same service and clients over TCP, over HTTP/2 on a stream, and directly.

#[path = "../examples/services/mod.rs"]
mod services;
mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use services::echo_client::EchoClient;
use services::key_value_client::KeyValueClient;
use services::{Blob, Entry, Key};
use support::{ALL, Carrier, Served, eventually, runtime};
use tokio_stream::StreamExt as _;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

fn entry(key: &str, value: &str) -> Entry {
    Entry { key: key.to_owned(), value: Bytes::copy_from_slice(value.as_bytes()) }
}

fn key(key: &str) -> Key {
    Key { key: key.to_owned() }
}

/// Runs a test over each carrier, with enough time for a busy machine.
fn each_carrier<F: Future<Output = ()>>(test: impl Fn(Served) -> F) {
    for way in ALL {
        eprintln!("{way:?}");
        runtime().block_on(async {
            let served = Served::start(way).await;
            tokio::time::timeout(Duration::from_secs(300), test(served)).await.expect("in time");
        });
    }
}

#[test]
fn all_four_kinds_of_calls() {
    each_carrier(|served| async move {
        let mut store = KeyValueClient::new(served.channel());
        for (name, value) in [("b1", "x"), ("a2", "y")] {
            store.put(entry(name, value)).await.unwrap();
        }
        let loaded = tokio_stream::iter((0..1000).map(|i| entry(&format!("a{i:04}"), "z")));
        assert_eq!(store.load(loaded).await.unwrap().into_inner().entries, 1002);
        assert_eq!(store.get(key("a2")).await.unwrap().into_inner(), entry("a2", "y"));

        let listed = store.list(key("a")).await.unwrap().into_inner();
        let listed: Vec<_> = listed.map(|entry| entry.unwrap().key).collect().await;
        assert_eq!(listed.len(), 1001);
        assert!(listed.is_sorted());

        // Requests are sent one at a time, so that both directions stay open together.
        let (ask, asked) = tokio::sync::mpsc::channel(1);
        let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
        let mut follow = store.follow(asked).await.unwrap().into_inner();
        for _ in 0..3 {
            ask.send(key("b1")).await.unwrap();
            assert_eq!(follow.message().await.unwrap(), Some(entry("b1", "x")));
        }
        drop(ask);
        assert_eq!(follow.message().await.unwrap(), None);
    });
}

#[test]
fn a_status_comes_with_its_details() {
    each_carrier(|served| async move {
        let mut store = KeyValueClient::new(served.channel());
        let status = store.get(key("nöne")).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(status.message(), "there is no \"nöne\" — none at all");
        assert_eq!(status.details(), "nöne".as_bytes());
        assert_eq!(status.metadata().get("store").unwrap(), "example");

        // The error comes in the middle of a stream, after a message.
        store.put(entry("k", "v")).await.unwrap();
        let asked = tokio_stream::iter([key("k"), key("?"), key("k")]);
        let mut follow = store.follow(asked).await.unwrap().into_inner();
        assert_eq!(follow.message().await.unwrap(), Some(entry("k", "v")));
        assert_eq!(follow.message().await.unwrap_err().code(), Code::NotFound);

        // The service does not exist.
        let mut unknown = tonic::client::Grpc::new(served.channel());
        unknown.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<Key, Key>::default();
        let path = http::uri::PathAndQuery::from_static("/no.such.Service/Method");
        let status = unknown.unary(Request::new(key("")), path, codec).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
    });
}

#[test]
fn metadata_goes_both_ways() {
    each_carrier(|served| async move {
        let mut echo = EchoClient::new(served.channel());
        let mut request = Request::new(Blob { bytes: Bytes::new() });
        request.metadata_mut().append("echo-text", MetadataValue::from_static("a"));
        request.metadata_mut().append("echo-text", MetadataValue::from_static("b"));
        request.metadata_mut().insert_bin("echo-some-bin", MetadataValue::from_bytes(&[0, 255, 7]));
        let response = echo.once(request).await.unwrap();
        let text: Vec<_> = response.metadata().get_all("echo-text").iter().collect();
        assert_eq!(text, ["a", "b"]);
        let binary = response.metadata().get_bin("echo-some-bin").unwrap().to_bytes().unwrap();
        assert_eq!(&binary[..], [0, 255, 7]);
    });
}

fn slow(ms: u64) -> Request<Blob> {
    let mut request = Request::new(Blob { bytes: Bytes::from_static(b"slow") });
    request.metadata_mut().insert("sleep-ms", MetadataValue::from(ms));
    request
}

#[test]
fn a_deadline_ends_a_call_at_both_ends() {
    each_carrier(|served| async move {
        let mut echo = EchoClient::new(served.channel());
        let mut request = slow(600_000);
        // The handler must have started by then.
        let limit = Duration::from_secs(2);
        request.set_timeout(limit);
        let began = tokio::time::Instant::now();
        let code = echo.once(request).await.unwrap_err().code();
        // tonic's own transport returns CANCELLED where the specification requires DEADLINE_EXCEEDED.
        let expected =
            if served.way.is_direct() { Code::DeadlineExceeded } else { Code::Cancelled };
        assert_eq!(code, expected);
        assert!(began.elapsed() >= limit);
        let calls = served.parrot.calls.clone();
        eventually("the handler ends", || calls[1].load(Ordering::SeqCst) == 1).await;

        // A deadline that is not reached has no effect.
        let mut request = slow(1);
        request.set_timeout(Duration::from_secs(50));
        assert_eq!(echo.once(request).await.unwrap().into_inner().bytes, "slow");
    });
}

#[test]
fn a_dropped_call_ends_its_handler() {
    each_carrier(|served| async move {
        let mut echo = EchoClient::new(served.channel());
        let calls = served.parrot.calls.clone();
        let call = tokio::spawn(async move { echo.once(slow(600_000)).await });
        eventually("the handler begins", || calls[0].load(Ordering::SeqCst) == 1).await;
        call.abort();
        eventually("the handler ends", || calls[1].load(Ordering::SeqCst) == 1).await;
    });
}

#[test]
fn a_hundred_calls_at_a_time() {
    each_carrier(|served| async move {
        let echo = EchoClient::new(served.channel());
        let mut calls = tokio::task::JoinSet::new();
        for i in 0..100u32 {
            let mut echo = echo.clone();
            calls.spawn(async move {
                let mut request = slow(u64::from(i % 7));
                let sent = Bytes::from(vec![i as u8; 10 + 300 * i as usize]);
                request.get_mut().bytes = sent.clone();
                assert_eq!(echo.once(request).await.unwrap().into_inner().bytes, sent);
            });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
    });
}

#[test]
fn megabytes_through_both_directions() {
    const PIECES: u32 = 64;
    const PIECE: usize = 1 << 20;
    each_carrier(|served| async move {
        let mut echo = EchoClient::new(served.channel());
        let piece = |i: u32| {
            let mut bytes = vec![i as u8; PIECE];
            bytes[..4].copy_from_slice(&i.to_be_bytes());
            Bytes::from(bytes)
        };
        let sent = tokio_stream::iter((0..PIECES).map(move |i| Blob { bytes: piece(i) }));
        let mut chat = echo.chat(sent).await.unwrap().into_inner();
        for i in 0..PIECES {
            let got = chat.message().await.unwrap().expect("a message").bytes;
            assert!(got == piece(i), "piece {i} came as it was sent");
        }
        assert!(chat.message().await.unwrap().is_none());
    });
}

#[test]
fn unary_calls_need_no_streams() {
    runtime().block_on(async {
        let served = Served::start(Carrier::DirectOverPolo).await;
        let mut store = KeyValueClient::new(served.channel());
        store.put(entry("k", "v")).await.unwrap();
        assert_eq!(store.get(key("k")).await.unwrap().into_inner(), entry("k", "v"));
        // A request that is not complete at once would need a stream.
        let asked = tokio_stream::pending();
        let status = store.follow(asked).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        assert!(status.message().contains("does not support streams"), "{status:?}");
    });
}

#[test]
fn a_long_answer_to_a_short_question() {
    each_carrier(|served| async move {
        let mut store = KeyValueClient::new(served.channel());
        for i in 0..10 {
            let value = Bytes::from(vec![i; 1 << 20]);
            store.put(Entry { key: format!("long{i}"), value }).await.unwrap();
        }
        let mut listed = store.list(key("long")).await.unwrap().into_inner();
        for i in 0..10 {
            let entry = listed.message().await.unwrap().expect("an entry");
            assert!(entry.value.len() == 1 << 20 && entry.value[77] == i, "entry {i}");
        }
        assert!(listed.message().await.unwrap().is_none());

        // The call is cancelled in the middle; the next one is served normally.
        let mut listed = store.list(key("long")).await.unwrap().into_inner();
        listed.message().await.unwrap().expect("an entry");
        drop(listed);
        assert!(store.get(key("long3")).await.is_ok());
    });
}

#[test]
fn compressed_messages_pass() {
    // tonic implements compression itself; the transport must pass the fields that name it.
    each_carrier(|served| async move {
        let mut echo = EchoClient::new(served.channel());
        let mut request = Request::new(Blob { bytes: Bytes::from_static(b"?") });
        let unknown = MetadataValue::from_static("snappy");
        request.metadata_mut().insert("grpc-encoding", unknown);
        let status = echo.once(request).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
        assert!(status.metadata().get("grpc-accept-encoding").is_some());
    });
}

#[test]
fn a_restarted_server_is_served_again() {
    each_carrier(|served| async move {
        let mut served = served;
        let mut echo = EchoClient::new(served.channel());
        echo.once(slow(0)).await.unwrap();
        let waiting = tokio::spawn({
            let mut echo = echo.clone();
            async move { echo.once(slow(600_000)).await }
        });
        let calls = served.parrot.calls.clone();
        eventually("the handler begins", || calls[0].load(Ordering::SeqCst) == 2).await;
        served.kill().await;
        served.restart().await;
        // Outstanding calls fail, and later ones succeed.
        let mut tries = 0;
        while let Err(status) = echo.once(slow(0)).await {
            assert!(matches!(status.code(), Code::Unavailable | Code::Unknown), "{status:?}");
            tries += 1;
            assert!(tries < 200, "{status:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let status = waiting.await.unwrap().unwrap_err();
        assert!(matches!(status.code(), Code::Unavailable | Code::Unknown), "{status:?}");
    });
}

#[test]
fn a_server_shuts_down_when_its_calls_have_ended() {
    each_carrier(|served| async move {
        let mut served = served;
        let mut echo = EchoClient::new(served.channel());
        let calls = served.parrot.calls.clone();
        let call = tokio::spawn(async move { echo.once(slow(500)).await });
        eventually("the handler begins", || calls[0].load(Ordering::SeqCst) == 1).await;
        served.shut_down().await;
        assert_eq!(call.await.unwrap().unwrap().into_inner().bytes, "slow");
    });
}
