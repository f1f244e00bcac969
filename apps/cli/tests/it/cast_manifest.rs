//! What `rackweave cast send` does not send: files that receivers have.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rackweave_testing::free_address;
use serde_json::Value;

use crate::casts::{Receiver, content, json, rackweave};

/// The bytes of a tree.
const BYTES: u64 = 40 * 50_000 + 4_000_000;

/// Creates a tree of small files and a big one, all of them older than the test.
fn tree(folder: &Path) -> PathBuf {
    let source = folder.join("tree");
    fs::create_dir_all(source.join("sub/deep")).unwrap();
    for number in 0..40 {
        let place = ["", "sub", "sub/deep"][number % 3];
        write(&source.join(place).join(format!("f{number}")), &content(50_000)[..], 1_000_000);
    }
    write(&source.join("big"), &content(4_000_000), 1_000_000);
    source
}

/// Writes a file with this modification time, in seconds since 1970.
fn write(path: &Path, bytes: &[u8], modified: u64) {
    fs::write(path, bytes).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(modified)).unwrap();
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}

struct Scene {
    folder: tempfile::TempDir,
    source: PathBuf,
    receivers: Vec<Receiver>,
}

impl Scene {
    /// Receivers 0, 1, ... that write into the folders `r0`, `r1`, ...
    fn new(count: usize, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = tree(folder.path());
        let into = |number| Receiver::into(&folder.path().join(format!("r{number}")), options);
        let receivers = (0..count).map(into).collect();
        Self { folder, source, receivers }
    }

    fn to(&self) -> String {
        self.receivers.iter().map(|it| it.address.as_str()).collect::<Vec<_>>().join(",")
    }

    fn at(&self, receiver: usize, path: &str) -> PathBuf {
        self.folder.path().join(format!("r{receiver}")).join(path)
    }

    /// Sends the tree, which must succeed.
    fn send(&self, options: &[&str]) -> Value {
        let source = self.source.to_str().unwrap();
        let mut command = rackweave(&["send", source, "--to", &self.to(), "--json"]);
        let output = command.args(options).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(text.lines().last().unwrap()).unwrap()
    }
}

fn link_bytes(document: &Value) -> u64 {
    document["link_bytes"].as_u64().unwrap()
}

/// The bytes that each receiver had before.
fn there(document: &Value) -> Vec<u64> {
    let receivers = document["receivers"].as_array().unwrap();
    receivers.iter().map(|it| it["there_bytes"].as_u64().unwrap()).collect()
}

#[test]
fn what_is_there_is_not_sent_and_what_is_lacking_goes_to_those_who_lack_it() {
    let scene = Scene::new(3, &["--overwrite"]);
    let first = scene.send(&[]);
    assert!(link_bytes(&first) > 3 * BYTES, "{first}");
    assert_eq!(there(&first), [0; 3]);
    for path in ["tree/sub", "tree/sub/deep", "tree/f0", "tree/big"] {
        let sent = modified(&scene.folder.path().join(path));
        assert_eq!(modified(&scene.at(1, path)), sent, "{path}");
    }
    let second = scene.send(&[]);
    assert!(link_bytes(&second) < 30_000, "{second}");
    assert_eq!(there(&second), [BYTES; 3]);
    // One file is newer, and one is missing at one receiver.
    write(&scene.source.join("f3"), &content(60_000)[5..], 2_000_000);
    fs::remove_file(scene.at(1, "tree/sub/f1")).unwrap();
    let third = scene.send(&[]);
    assert!(link_bytes(&third) < 3 * 60_000 + 50_000 + 40_000, "{third}");
    let now = BYTES + 9_995;
    assert_eq!(there(&third), [now - 59_995, now - 109_995, now - 59_995]);
    for receiver in 0..3 {
        assert!(fs::read(scene.at(receiver, "tree/f3")).unwrap() == content(60_000)[5..]);
        assert!(fs::read(scene.at(receiver, "tree/sub/f1")).unwrap() == content(50_000));
    }
    assert!(link_bytes(&scene.send(&[])) < 30_000);
}

#[test]
fn a_new_host_costs_what_it_lacks_though_another_one_is_dead() {
    let mut scene = Scene::new(4, &[]);
    let new = scene.receivers.pop().unwrap();
    scene.send(&[]);
    scene.receivers.push(new);
    let to = format!("{},{}", scene.to(), free_address());
    let source = scene.source.to_str().unwrap();
    let output =
        rackweave(&["send", source, "--to", &to, "--json", "--retry", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let document = json(&output);
    let receivers = document["receivers"].as_array().unwrap();
    let states: Vec<_> = receivers.iter().map(|it| it["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["complete", "complete", "complete", "complete", "silent"]);
    assert!(link_bytes(&document) < BYTES + BYTES / 8, "{document}");
    assert!(fs::read(scene.at(3, "tree/big")).unwrap() == content(4_000_000));
}

#[test]
fn a_dry_run_says_what_would_be_sent_and_changes_nothing() {
    let scene = Scene::new(2, &["--once"]);
    let source = scene.source.to_str().unwrap();
    let mut command = rackweave(&["send", source, "--to", &scene.to(), "--dry-run"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("tree/big  4.00 MB  to 2 of 2\n"), "{text}");
    assert!(text.contains("and 24 others") && text.contains("nothing was sent"), "{text}");
    for (number, mut receiver) in scene.receivers.into_iter().enumerate() {
        assert_eq!(receiver.child.wait().unwrap().code(), Some(0));
        let place = scene.folder.path().join(format!("r{number}"));
        assert!(!place.exists(), "receiver {number}");
    }
}

#[test]
fn with_checksum_the_content_decides() {
    let scene = Scene::new(1, &["--overwrite"]);
    scene.send(&[]);
    let path = scene.at(0, "tree/f0");
    let mut bytes = content(50_000);
    bytes[17] ^= 1;
    write(&path, &bytes, 1_000_000);
    write(&scene.at(0, "tree/f1"), &content(50_000), 3_000_000);
    assert_eq!(there(&scene.send(&["--checksum", "--dry-run"])), [BYTES - 50_000]);
    assert_eq!(there(&scene.send(&["--checksum"])), [BYTES - 50_000]);
    assert!(fs::read(&path).unwrap() == content(50_000));
    // What has another time only was not sent, and has the time that was sent.
    assert_eq!(there(&scene.send(&[])), [BYTES]);
}

#[test]
fn what_is_excluded_is_not_sent_and_links_below_it_are_no_error() {
    let scene = Scene::new(1, &[]);
    std::os::unix::fs::symlink("x", scene.source.join("sub/deep/link")).unwrap();
    scene.send(&["--exclude", "deep/", "--exclude", "/tree/b*", "--exclude", "f3*"]);
    let there = |path: &str| scene.at(0, path).exists();
    assert!(there("tree/f0") && there("tree/sub/f1"));
    for path in ["tree/big", "tree/sub/deep", "tree/f3", "tree/f30"] {
        assert!(!there(path), "{path}");
    }
}

/// The files that a killed sender has completed are not in the next stream, which goes on with the incomplete one all the same.
#[test]
fn an_incomplete_file_goes_on_though_others_are_complete() {
    let scene = Scene::new(1, &[]);
    write(&scene.source.join("zz"), &content(24_000_000), 1_000_000);
    let source = scene.source.to_str().unwrap();
    let mut command = rackweave(&["send", source, "--to", &scene.to(), "--rate", "200 Mbps", "-q"]);
    let mut first = command.spawn().unwrap();
    let part = scene.at(0, "tree/zz.part");
    while !part.metadata().is_ok_and(|meta| meta.len() > 15_000_000) {
        std::thread::yield_now();
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let document = scene.send(&["--rate", "200 Mbps"]);
    assert_eq!(there(&document), [BYTES]);
    // Up to a window, and what waits for the disk, is sent before the sender knows.
    assert!(link_bytes(&document) < 20_000_000, "{document}");
    assert!(fs::read(scene.at(0, "tree/zz")).unwrap() == content(24_000_000));
}
