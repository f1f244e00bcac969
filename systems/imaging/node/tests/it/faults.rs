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
    until("the failure is told", || {
        node.events.lock().unwrap().iter().any(|it| matches!(it, Event::Failed { .. }))
    });
    until("the lock alone is left", || std::fs::read_dir(folder.path()).unwrap().count() == 1);
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
    let liar = Event::Liar { node: address, digest };
    until("the liar is named", || node.events.lock().unwrap().contains(&liar));
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
    std::fs::remove_dir_all(folder.path()).unwrap();
    let answer = pull(&node, &digest);
    assert!(answer.status == 502 && !answer.body.is_empty(), "{}", answer.status);
}

#[test]
fn a_registry_without_parts_that_always_breaks_off_ends_the_pull() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    registry.state.has_parts.store(false, Ordering::Relaxed);
    registry.state.breaks.store(3 << 20, Ordering::Relaxed);
    let digest = registry.put(bytes(9 * MIB, 13));
    let node = start(config(&registry, folder.path()));
    assert!(!pull(&node, &digest).is_whole);
    assert!(registry.requests() < 30, "{}", registry.requests());
    // A head that is longer than the content is no other case.
    registry.state.breaks.store(0, Ordering::Relaxed);
    registry.state.claims.store(20 << 20, Ordering::Relaxed);
    let digest = registry.put(bytes(9 * MIB, 14));
    assert!(!pull(&node, &digest).is_whole);
}

#[test]
fn a_length_of_nothing_is_no_content() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    registry.state.claims_nothing.store(true, Ordering::Relaxed);
    let digest = registry.put(bytes(100, 15));
    let node = start(config(&registry, folder.path()));
    assert_eq!(pull(&node, &digest).status, 502);
    let manifest = format!("/v2/a/manifests/{digest}");
    assert_eq!(ask(node.service.address, "GET", &manifest, "").status, 502);
    let nothing = registry.put(Vec::new());
    let answer = pull(&node, &nothing);
    assert_eq!((answer.status, answer.body.len()), (200, 0));
}

#[test]
fn a_part_is_whole_only_if_the_blob_is() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    let content = bytes(5 * MIB, 16);
    let digest = registry.put(content.clone());
    let node = neighbour(&registry, folder.path(), None);
    liar(node.service.nodes.unwrap(), &digest, content.len());
    let path = format!("/v2/app/blobs/{digest}");
    let part = ask(node.service.address, "GET", &path, "Range: bytes=0-999\r\n");
    assert!(!part.is_whole || part.body == content[..1000]);
}

#[test]
fn a_neighbours_wrong_size_changes_nothing() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    let content = bytes(3 * MIB, 17);
    let digest = registry.put(content.clone());
    let node = neighbour(&registry, folder.path(), None);
    for size in [content.len() - 1, content.len() + 1, 1 << 40] {
        liar(node.service.nodes.unwrap(), &digest, size);
    }
    let answer = pull(&node, &digest);
    assert!(answer.is_whole && answer.body == content);
}

#[test]
fn who_a_registry_redirects_to_gets_no_password() {
    let (registry, other) = (Registry::start(), Registry::start());
    let folder = tempfile::tempdir().unwrap();
    let digest = other.put(bytes(100, 18));
    registry.state.redirects.store(other.address.port().into(), Ordering::Relaxed);
    let text = format!(r#"{{"auths": {{"{}": {{"auth": "bWU6c2VjcmV0"}}}}}}"#, registry.address);
    let credentials = rackweave_node::Credentials::read(&text).unwrap();
    let with = rackweave_node::NodeConfig { credentials, ..config(&registry, folder.path()) };
    let node = start(with);
    other.state.wants_token.store(true, Ordering::Relaxed);
    assert_eq!(pull(&node, &digest).status, 502);
    assert_eq!(*other.state.seen.lock().unwrap(), Vec::<String>::new());
    other.state.wants_token.store(false, Ordering::Relaxed);
    assert_eq!(pull(&node, &digest).status, 200);
}

#[test]
fn a_file_that_vanishes_ends_its_pull_and_not_the_next() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    registry.state.rate.store(4 << 20, Ordering::Relaxed);
    let content = bytes(8 * MIB, 19);
    let digest = registry.put(content.clone());
    let node = start(config(&registry, folder.path()));
    let address = node.service.address;
    let path = format!("/v2/app/blobs/{digest}");
    let reader = std::thread::spawn(move || ask(address, "GET", &path, ""));
    wait(Duration::from_millis(300));
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().ends_with(".part") {
            std::fs::remove_file(path).unwrap();
        }
    }
    assert!(!reader.join().unwrap().is_whole);
    registry.state.rate.store(0, Ordering::Relaxed);
    assert!(pull(&node, &digest).body == content);
    // Nor does a second node take the files of the first.
    let second = rackweave_node::Service::start(config(&registry, folder.path()), |_| {});
    assert!(matches!(second, Err(rackweave_node::NodeError::Store(_))));
}
