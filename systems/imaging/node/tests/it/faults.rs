//! What goes wrong at a pull.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rackweave_node::{Digest, Event};

use crate::common::*;

const MIB: usize = 1 << 20;

#[test]
fn a_registry_that_breaks_off_is_asked_for_the_rest() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    let content = bytes(9 * MIB, 6);
    let digest = registry.put(content.clone());
    registry.state.breaks.store(3 << 20, Ordering::Relaxed);
    let node = start(config(&registry, folder.path()));
    assert!(pull(&node, &digest).body == content);
}

#[test]
fn content_that_is_not_its_digest_reaches_nobody_and_is_not_stored() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    let digest = Digest::of(b"another");
    registry.state.content.lock().unwrap().insert(digest.to_string(), bytes(3 * MIB, 7));
    let node = start(config(&registry, folder.path()));
    let answer = pull(&node, &digest);
    assert!(!answer.is_whole, "the last chunk waits for the digest");
    assert!(node.events.lock().unwrap().iter().any(|it| matches!(it, Event::Failed { .. })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    assert_eq!(pull(&node, &Digest::of(b"unknown")).status, 404);
}

/// A node that says it has everything, and sends something else.
fn liar(directory: std::net::SocketAddr, digest: &Digest, size: usize) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let body = format!(
        r#"{{"port": {}, "blobs": [{{"digest": "{digest}", "size": {size}}}]}}"#,
        address.port()
    );
    let mut stream = std::net::TcpStream::connect(directory).unwrap();
    write!(
        stream,
        "POST /node/v1/report HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut first = String::new();
    BufReader::new(stream).read_line(&mut first).unwrap();
    assert!(first.contains("200"), "{first}");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut part = (0, 0);
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                let line = line.unwrap_or_default();
                if let Some(text) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                    let (first, last) = text.split_once('-').unwrap();
                    part = (first.parse().unwrap(), last.parse().unwrap());
                }
                if line.is_empty() {
                    break;
                }
            }
            let body = vec![0; part.1 + 1 - part.0];
            let _ = write!(
                stream,
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(&body);
        }
    });
    address
}

#[test]
fn a_node_that_lies_is_named_and_the_registry_is_asked() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    let content = bytes(5 * MIB, 8);
    let digest = registry.put(content.clone());
    let node = neighbour(&registry, folder.path(), None);
    let address = liar(node.service.nodes.unwrap(), &digest, content.len());
    let first = pull(&node, &digest);
    // What was sent of the damaged content ends broken; the runtime asks again.
    assert!(!first.is_whole || first.body == content);
    let mut answer = pull(&node, &digest);
    for _ in 0..50 {
        if answer.is_whole {
            break;
        }
        wait(Duration::from_millis(100));
        answer = pull(&node, &digest);
    }
    assert!(answer.body == content);
    wait(Duration::from_millis(200));
    let events = node.events.lock().unwrap().clone();
    assert!(events.contains(&Event::Liar { node: address, digest }), "{events:?}");
    assert_eq!(node.service.counts().damaged.load(Ordering::Relaxed), 1);
}

#[test]
fn nodes_that_are_gone_cost_a_repetition_and_not_the_pull() {
    let registry = Registry::start();
    let content = bytes(20 * MIB, 9);
    let digest = registry.put(content.clone());
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let first = neighbour(&registry, folders[0].path(), None);
    let second = neighbour(&registry, folders[1].path(), Some(&first));
    assert!(pull(&second, &digest).body == content);
    wait(Duration::from_millis(500));
    // It vanishes without a word: its port answers nobody any more.
    let gone = second.service.nodes.unwrap();
    std::mem::forget(second);
    let third = neighbour(&registry, folders[2].path(), Some(&first));
    assert!(pull(&third, &digest).body == content);
    assert!(third.service.counts().from_nodes.load(Ordering::Relaxed) > 0, "{gone} was asked");
    // The directory's node ends, and the registry remains.
    drop(first);
    let other = registry.put(bytes(2 * MIB, 10));
    assert!(pull(&third, &other).is_whole);
    let events = third.events.lock().unwrap().clone();
    assert!(events.iter().any(|it| matches!(it, Event::NoDirectory { .. })), "{events:?}");
}

#[test]
fn a_node_that_ends_breaks_off_what_it_sends() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    registry.state.rate.store(1 << 20, Ordering::Relaxed);
    let digest = registry.put(bytes(30 * MIB, 11));
    let node = start(config(&registry, folder.path()));
    let address = node.service.address;
    let reader =
        std::thread::spawn(move || ask(address, "GET", &format!("/v2/app/blobs/{digest}"), ""));
    wait(Duration::from_millis(600));
    let began = now();
    drop(node);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(!reader.join().unwrap().is_whole);
}

#[test]
fn a_full_store_is_an_error_of_the_pull() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    let digest = registry.put(bytes(MIB, 12));
    let node = start(config(&registry, folder.path()));
    std::fs::remove_dir(folder.path()).unwrap();
    let answer = pull(&node, &digest);
    assert!(answer.status == 502 && !answer.body.is_empty(), "{}", answer.status);
}
