//! `rackweave node` as processes: between unmodified clients and an unmodified registry, killed and started again.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rackweave_node::Digest;
use rackweave_testing::{free_ports, needs};
use serde_json::{Value, json};

use crate::common::{until, wait_ms};
use crate::reducing::Process;

/// Bytes that do not repeat.
fn bytes(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut all = Vec::with_capacity(length + 8);
    while all.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.extend_from_slice(&state.to_le_bytes());
    }
    all.truncate(length);
    all
}

fn node(store: &Path, registry: u16, listen: u16, more: &str) -> Process {
    let mut process = starting(store, registry, listen, more);
    process.says("ready at");
    process
}

fn starting(store: &Path, registry: u16, listen: u16, more: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
    command.args(["node", "--json", "--store"]).arg(store);
    command.args(["--registry", &format!("test=http://127.0.0.1:{registry}")]);
    command.args(["--listen", &format!("127.0.0.1:{listen}")]);
    command.args(more.split_whitespace());
    Process::start(command)
}

/// The status and the body of an answer.
fn get(port: u16, path: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let end = all.windows(4).position(|it| it == b"\r\n\r\n").map_or(all.len(), |it| it + 4);
    let status = String::from_utf8_lossy(&all[..all.len().min(12)]).into_owned();
    (status[9..12].parse().unwrap(), all.split_off(end))
}

fn counts(port: u16) -> Value {
    serde_json::from_slice::<Value>(&get(port, "/node/v1/status").1).unwrap()["counts"].take()
}

/// Python's file server is a registry for who pulls blobs: it has no parts of files.
#[test]
fn a_node_that_is_killed_has_what_it_had_and_its_neighbour_needs_no_registry() {
    needs!(Python);
    let folder = tempfile::tempdir().unwrap();
    let content = bytes((12 << 20) + 5);
    let digest = Digest::of(&content);
    let blobs = folder.path().join("www/v2/app/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(digest.to_string()), &content).unwrap();
    let ports = free_ports(5);
    let mut python = Command::new("python3");
    python.args(["-m", "http.server", &ports.to_string(), "--bind", "127.0.0.1"]);
    python.arg("--directory").arg(folder.path().join("www"));
    let mut registry = Process::start(python);
    until("the registry serves", || TcpStream::connect(("127.0.0.1", ports)).is_ok());
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let path = format!("/v2/app/blobs/{digest}?ns=test");
    let directory = format!("--directory 127.0.0.1:{}", ports + 2);
    let more = format!("--nodes 127.0.0.1:{} {directory}", ports + 2);
    let mut one = node(&first, ports, ports + 1, &more);
    assert!(get(ports + 1, &path) == (200, content.clone()));
    one.kill();
    registry.kill();
    let mut one = node(&first, ports, ports + 1, &more);
    assert!(get(ports + 1, &path) == (200, content.clone()), "the disk has it");
    let more = format!("--nodes 127.0.0.1:{} {directory}", ports + 4);
    let mut two = node(&second, ports, ports + 3, &more);
    assert!(get(ports + 3, &path) == (200, content.clone()), "its neighbour has it");
    let counts = counts(ports + 3);
    assert_eq!(
        (&counts["registry_bytes"], &counts["node_bytes"]),
        (&json!(0), &json!(content.len()))
    );
    // Somebody else changes the stored blob, while no node runs: it is not served.
    two.signal("-INT");
    assert_eq!(two.end().0, 0);
    one.signal("-TERM");
    assert_eq!(one.end().0, 0);
    let stored = second.join(digest.hex());
    let mut damaged = content.clone();
    damaged[7] ^= 1;
    fs::write(&stored, damaged).unwrap();
    let _one =
        node(&first, ports, ports + 1, &format!("--nodes 127.0.0.1:{} {directory}", ports + 2));
    let _two = node(&second, ports, ports + 3, &more);
    assert!(get(ports + 3, &path) == (200, content), "it is fetched again");
}

#[test]
fn mistakes_are_refused_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let ports = free_ports(2);
    let store = folder.path().join("store");
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let file = file.display();
    for (more, code, expected) in [
        (format!("--credentials {file}"), 2, "Docker configuration"),
        (format!("--certificates {file}"), 2, "it has no certificate"),
        ("--directory 127.0.0.1:1".to_owned(), 2, "--nodes"),
        ("--nodes 0.0.0.0:1".to_owned(), 2, "no address at which others reach"),
        ("--registry x=ftp://y".to_owned(), 2, "docker.io=https://"),
        ("--capacity nothing".to_owned(), 2, "a size"),
        (format!("--store {file}"), 2, "cannot be used multiple times"),
        (format!("--nodes 127.0.0.1:{}", ports + 1), 1, "cannot listen on"),
    ] {
        let _taken = std::net::TcpListener::bind(("127.0.0.1", ports + 1)).unwrap();
        let (found, said) = starting(&store, 1, ports, &more).end();
        assert!(found == code && said.contains(expected), "{more}: {found} {said}");
    }
    let (code, said) = starting(Path::new(&file.to_string()), 1, ports, "").end();
    assert!(code == 1 && said.contains("cannot use the folder"), "{said}");
}

/// An image as skopeo's `dir:` has it: a configuration, two layers, a manifest.
fn image(folder: &Path) -> Vec<(Digest, Vec<u8>)> {
    fs::create_dir_all(folder).unwrap();
    let config = br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]},"config":{}}"#;
    let blobs = vec![config.to_vec(), bytes((9 << 20) + 1), bytes(70_000)];
    let described = |media_type: &str, blob: &[u8]| {
        let digest = Digest::of(blob).to_string();
        json!({ "mediaType": media_type, "digest": digest, "size": blob.len() })
    };
    let layer = "application/vnd.oci.image.layer.v1.tar";
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("application/vnd.oci.image.config.v1+json", &blobs[0]),
        "layers": [described(layer, &blobs[1]), described(layer, &blobs[2])],
    });
    fs::write(folder.join("version"), "Directory Transport Version: 1.1\n").unwrap();
    fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
    let named = blobs.into_iter().map(|blob| (Digest::of(&blob), blob));
    named.inspect(|(digest, blob)| fs::write(folder.join(digest.hex()), blob).unwrap()).collect()
}

fn skopeo(arguments: &str) -> (bool, String) {
    let mut command = Command::new("skopeo");
    command.args(["--insecure-policy", "copy", "--preserve-digests"]);
    let output = command.args(arguments.split_whitespace()).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn skopeo_pulls_through_nodes_from_dockers_registry() {
    needs!(Skopeo);
    let folder = tempfile::tempdir().unwrap();
    let blobs = image(&folder.path().join("image"));
    let ports = free_ports(5);
    let text = format!(
        "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{ports}\n",
        folder.path().join("registry").display()
    );
    let config = folder.path().join("registry.yml");
    fs::write(&config, text).unwrap();
    let mut command = Command::new("docker-registry");
    command.arg("serve").arg(&config);
    let mut registry = Process::start(command);
    until("the registry serves", || TcpStream::connect(("127.0.0.1", ports)).is_ok());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (ok, said) = skopeo(&format!(
        "--dest-tls-verify=false dir:{} docker://127.0.0.1:{ports}/app:1",
        at("image")
    ));
    assert!(ok, "{said}");
    let directory = format!("--directory 127.0.0.1:{}", ports + 2);
    let more = |port| format!("--nodes 127.0.0.1:{port} {directory}");
    let _one = node(&folder.path().join("one"), ports, ports + 1, &more(ports + 2));
    let mut two = node(&folder.path().join("two"), ports, ports + 3, &more(ports + 4));
    for (port, name) in [(ports + 1, "a"), (ports + 3, "b")] {
        let (ok, said) = skopeo(&format!(
            "--src-tls-verify=false docker://127.0.0.1:{port}/app:1 dir:{}",
            at(name)
        ));
        assert!(ok, "{said}");
        for (digest, blob) in &blobs {
            assert!(fs::read(folder.path().join(name).join(digest.hex())).unwrap() == *blob);
        }
    }
    let all: usize = blobs.iter().map(|(_, blob)| blob.len()).sum();
    assert_eq!(counts(ports + 1)["registry_bytes"], all, "one copy");
    let of_two = counts(ports + 3);
    assert_eq!((&of_two["registry_bytes"], &of_two["node_bytes"]), (&json!(0), &json!(all)));
    // Without the registry, what has a digest is still there, for a new node too.
    let manifest = fs::read(folder.path().join("a/manifest.json")).unwrap();
    registry.kill();
    two.kill();
    fs::remove_dir_all(folder.path().join("two")).unwrap();
    wait_ms(300);
    let _two = node(&folder.path().join("two"), ports, ports + 3, &more(ports + 4));
    let (ok, said) = skopeo(&format!(
        "--src-tls-verify=false docker://127.0.0.1:{}/app@{} dir:{}",
        ports + 3,
        Digest::of(&manifest),
        at("c")
    ));
    assert!(ok, "{said}");
    for (digest, blob) in &blobs {
        assert!(fs::read(folder.path().join("c").join(digest.hex())).unwrap() == *blob);
    }
}
