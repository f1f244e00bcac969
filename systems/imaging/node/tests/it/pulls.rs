//! What runtimes pull.

use std::sync::atomic::Ordering;

use crate::common::*;

const MIB: usize = 1 << 20;

#[test]
fn a_blob_is_fetched_once_and_served_whole_and_in_parts() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    let content = bytes(3 * MIB + 17, 1);
    let digest = registry.put(content.clone());
    let node = start(config(&registry, folder.path()));
    let head = ask(node.service.address, "HEAD", &format!("/v2/a/blobs/{digest}"), "");
    assert_eq!((head.status, &*head.headers["content-length"]), (200, "3145745"));
    assert_eq!(registry.bytes(), 0, "a head needs no blob");
    for _ in 0..2 {
        let answer = pull(&node, &digest);
        assert_eq!((answer.status, answer.is_whole), (200, true));
        assert!(answer.body == content);
        assert_eq!(answer.headers["docker-content-digest"], digest.to_string());
    }
    let part = ask(
        node.service.address,
        "GET",
        &format!("/v2/a/b/c/blobs/{digest}?ns=example"),
        "Range: bytes=1048570-1048579\r\n",
    );
    assert_eq!((part.status, &part.body[..]), (206, &content[1_048_570..1_048_580]));
    assert_eq!(part.headers["content-range"], "bytes 1048570-1048579/3145745");
    let wrong = ask(
        node.service.address,
        "GET",
        &format!("/v2/a/blobs/{digest}"),
        "Range: bytes=3145745-\r\n",
    );
    assert_eq!((wrong.status, &*wrong.headers["content-range"]), (416, "bytes */3145745"));
    assert_eq!(registry.bytes(), content.len() as u64);
    // The next life of the node has it, and asks nobody.
    drop(node);
    registry.state.is_down.store(true, Ordering::Relaxed);
    let node = start(config(&registry, folder.path()));
    assert!(pull(&node, &digest).body == content);
}

#[test]
fn nodes_that_start_together_fetch_one_copy() {
    let registry = Registry::start();
    let content = bytes(24 * MIB, 2);
    let digest = registry.put(content.clone());
    registry.state.rate.store(20 << 20, Ordering::Relaxed);
    let folders: Vec<_> = (0..6).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut nodes = vec![neighbour(&registry, folders[0].path(), None)];
    for folder in &folders[1..] {
        nodes.push(neighbour(&registry, folder.path(), Some(&nodes[0])));
    }
    std::thread::scope(|scope| {
        for node in &nodes {
            let (digest, content) = (&digest, &content);
            scope.spawn(move || {
                let answer = pull(node, digest);
                assert!(answer.is_whole && answer.body == *content, "{}", answer.body.len());
            });
        }
    });
    let copies = registry.bytes() as f64 / content.len() as f64;
    assert!(copies < 1.5, "{copies} copies from the registry for six nodes");
    let from_nodes = || -> u64 {
        nodes.iter().map(|it| it.service.counts().from_nodes.load(Ordering::Relaxed)).sum()
    };
    let all = 6 * content.len() as u64;
    until("all bytes are counted", || from_nodes() + registry.bytes() >= all);
    // A late one needs no registry, and knows the size.
    registry.state.is_down.store(true, Ordering::Relaxed);
    let folder = tempfile::tempdir().unwrap();
    wait(std::time::Duration::from_millis(500));
    let late = neighbour(&registry, folder.path(), Some(&nodes[0]));
    assert!(pull(&late, &digest).body == content);
}

#[test]
fn manifests_are_pulled_by_tag_and_by_digest() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    let first = br#"{"schemaVersion": 2, "layers": []}"#;
    registry.tag("latest", first);
    let node = start(config(&registry, folder.path()));
    let at = node.service.address;
    let answer = ask(at, "GET", "/v2/app/manifests/latest?ns=example", "");
    let digest = answer.headers["docker-content-digest"].clone();
    assert_eq!((answer.status, &answer.body[..]), (200, &first[..]));
    let head = ask(at, "HEAD", "/v2/app/manifests/latest", "");
    assert_eq!((head.status, &*head.headers["content-length"]), (200, "34"));
    // The tag has moved; what it was is still there by its digest.
    registry.tag("latest", br#"{"schemaVersion": 2, "layers": [1]}"#);
    let moved = ask(at, "GET", "/v2/app/manifests/latest", "");
    assert_ne!(moved.headers["docker-content-digest"], digest);
    for method in ["GET", "HEAD"] {
        let old = ask(at, method, &format!("/v2/app/manifests/{digest}"), "");
        assert_eq!((old.status, &*old.headers["content-length"]), (200, "34"));
        assert_eq!(old.headers["content-type"], "application/vnd.oci.image.manifest.v1+json");
    }
    registry.state.is_down.store(true, Ordering::Relaxed);
    let failed = ask(at, "GET", "/v2/app/manifests/latest", "");
    let why = String::from_utf8(failed.body).unwrap();
    assert!(failed.status == 502 && why.contains("MANIFEST_UNKNOWN"), "{why}");
}

#[test]
fn a_registry_without_parts_is_read_from_the_start() {
    let registry = Registry::start();
    registry.state.has_parts.store(false, Ordering::Relaxed);
    registry.state.rate.store(40 << 20, Ordering::Relaxed);
    let content = bytes(20 * MIB + 1, 3);
    let digest = registry.put(content.clone());
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let first = neighbour(&registry, folders[0].path(), None);
    let second = neighbour(&registry, folders[1].path(), Some(&first));
    std::thread::scope(|scope| {
        let pulled = scope.spawn(|| pull(&first, &digest).body == content);
        wait(std::time::Duration::from_millis(150));
        assert!(pull(&second, &digest).body == content);
        assert!(pulled.join().unwrap());
    });
    assert!(registry.bytes() < 2 * content.len() as u64, "{}", registry.bytes());
}

#[test]
fn a_registry_that_wants_a_token_is_given_one() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    registry.state.wants_token.store(true, Ordering::Relaxed);
    let digest = registry.put(bytes(MIB, 4));
    let without = start(config(&registry, folder.path()));
    assert_eq!(pull(&without, &digest).status, 502);
    drop(without);
    let mut with = config(&registry, folder.path());
    let text = format!(r#"{{"auths": {{"{}": {{"auth": "bWU6c2VjcmV0"}}}}}}"#, registry.address);
    with.credentials = rackweave_node::Credentials::read(&text).unwrap();
    let node = start(with);
    assert_eq!(pull(&node, &digest).status, 200);
    let before = registry.requests();
    assert_eq!(pull(&node, &registry.put(bytes(10, 5))).status, 200);
    assert_eq!(registry.requests() - before, 2, "the token is used again");
}

#[test]
fn what_is_no_pull_is_refused() {
    let (registry, folder) = (Registry::start(), tempfile::tempdir().unwrap());
    let node = start(config(&registry, folder.path()));
    let at = node.service.address;
    assert_eq!(ask(at, "GET", "/v2/", "").status, 200);
    let digest = registry.put(vec![1]);
    for (method, path, status) in [
        ("GET", "/v2/a/blobs/sha256:12", 404),
        ("GET", "/v2/a/tags/list", 404),
        ("GET", "/v2/../../etc/passwd", 404),
        ("POST", "/v2/a/blobs/uploads/", 405),
        ("PUT", "/v2/a/manifests/x", 405),
        ("GET", "/v2/a/manifests/x?ns=elsewhere", 404),
        ("GET", "/", 404),
    ] {
        let answer = ask(at, method, path, "");
        assert_eq!(answer.status, status, "{method} {path}");
        assert!(String::from_utf8(answer.body).unwrap().contains("errors"), "{path}");
    }
    // A page of a foreign site cannot use it.
    let path = format!("/v2/a/blobs/{digest}");
    let foreign = ask(at, "GET", &path, "Host: evil.example\r\n");
    assert_eq!(foreign.status, 421);
}
