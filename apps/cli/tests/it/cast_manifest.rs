//! What `rackweave cast send` does not send: files that receivers have.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use rackweave_testing::free_address;
use serde_json::Value;

use crate::casts::{Receiver, content, json, link_bytes, rackweave, sent, write};

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
        sent(command.args(options))
    }
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
    assert!(text.contains("new      tree/big  4.00 MB  at 2 of 2\n"), "{text}");
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

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A receiver of another user than root, where the tests are run by root.
fn unprivileged(folder: &Path, options: &[&str]) -> Receiver {
    let mut command = rackweave(&["receive", "--listen", "127.0.0.1:0", "--dir"]);
    command.arg(folder).args(options);
    if is_root() {
        std::os::unix::fs::chown(folder, Some(65_534), Some(65_534)).unwrap();
        // The folders above are root's own, those of the binary too.
        let above = folder.parent().unwrap();
        fs::set_permissions(above, Permissions::from_mode(0o755)).unwrap();
        let binary = above.join("rackweave");
        fs::copy(command.get_program(), &binary).unwrap();
        let mut other = Command::new("setpriv");
        other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        other.arg(binary).args(command.get_args());
        other.stdin(std::process::Stdio::null());
        command = other;
    }
    Receiver::spawn(command)
}

/// Folders got `u+rwx` for good, and a file that its owner may not read was refused the next time.
#[test]
fn modes_are_those_of_the_sender_and_a_repeated_cast_works_whatever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("tree");
    // Only root can send what its owner may not read.
    let modes = match is_root() {
        true => [("", 0o555), ("a", 0o000), ("a/b", 0o300), ("c", 0o711)],
        false => [("", 0o555), ("a", 0o555), ("a/b", 0o500), ("c", 0o711)],
    };
    let files = [("f", 0o000), ("a/g", 0o200), ("a/b/h", 0o444), ("c/i", 0o640)];
    for (path, _) in modes {
        fs::create_dir_all(source.join(path)).unwrap();
    }
    for (path, _) in files {
        write(&source.join(path), &content(1_500_000), 1_000_000);
    }
    let readable = |mode: u32| if is_root() { mode } else { mode | 0o400 };
    let all: Vec<(&str, u32)> =
        files.iter().map(|(path, mode)| (*path, readable(*mode))).chain(modes).collect();
    for (path, mode) in all.iter().rev() {
        fs::set_permissions(source.join(path), Permissions::from_mode(*mode)).unwrap();
    }
    let place = folder.path().join("to");
    fs::create_dir(&place).unwrap();
    let receiver = unprivileged(&place, &["--overwrite", "--allow-delete"]);
    for options in [&[][..], &[], &["--checksum"], &["--delete"], &["--delete"]] {
        let mut command = rackweave(&["send", source.to_str().unwrap(), "--to", &receiver.address]);
        let output = command.args(options).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{options:?} {output:?}");
        // From the top, where only the sender's owner or root gets through.
        for (path, mode) in &all {
            let found = fs::metadata(place.join("tree").join(path)).unwrap();
            assert_eq!(found.permissions().mode() & 0o7777, *mode, "{options:?} {path:?}");
        }
    }
    let old = place.join("tree/a/b/old");
    if is_root() {
        fs::write(&old, "old").unwrap();
        std::os::unix::fs::chown(&old, Some(65_534), Some(65_534)).unwrap();
        let mut command = rackweave(&["send", source.to_str().unwrap(), "--delete", "--json"]);
        let output = command.args(["--to", &receiver.address]).output().unwrap();
        assert_eq!(json(&output)["receivers"][0]["deleted"], 1, "{output:?}");
        assert!(!old.exists());
    }
    // The test's own folder is to be removed.
    for (path, _) in modes {
        for tree in [&source, &place.join("tree")] {
            let _ = fs::set_permissions(tree.join(path), Permissions::from_mode(0o700));
        }
    }
}

#[test]
fn bits_of_modes_that_are_not_sent_are_named() {
    let scene = Scene::new(1, &[]);
    fs::set_permissions(scene.source.join("f0"), Permissions::from_mode(0o4755)).unwrap();
    let mut command = rackweave(&["send", scene.source.to_str().unwrap(), "--to", &scene.to()]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("setuid, setgid and sticky bits are not sent: 1 files"), "{text}");
    let mode = fs::metadata(scene.at(0, "tree/f0")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

/// A disk of a virtual machine with 4 KiB of content was as long on the link and at each receiver as if it were full.
#[test]
fn holes_are_neither_sent_nor_stored() {
    let scene = Scene::new(2, &[]);
    let path = scene.source.join("disk");
    let file = fs::File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(&content(4096), 50 << 20).unwrap();
    let document = scene.send(&[]);
    assert!(link_bytes(&document) < 2 * (BYTES + (1 << 20)) + BYTES / 8, "{document}");
    assert_eq!(document["bytes"], BYTES + (64 << 20));
    for receiver in 0..2 {
        let copy = scene.at(receiver, "tree/disk");
        assert!(fs::metadata(&copy).unwrap().blocks() * 512 < 1 << 20, "receiver {receiver}");
        assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap(), "receiver {receiver}");
    }
    assert_eq!(there(&scene.send(&["--checksum"])), [BYTES + (64 << 20); 2]);
}

/// A dry run promised to delete in the folders of others, and left out what is in a folder that its owner has closed.
#[test]
fn a_dry_run_to_delete_fails_where_the_cast_does_and_counts_what_it_cannot_look_into() {
    let folder = tempfile::tempdir().unwrap();
    let (source, place) = (folder.path().join("tree"), folder.path().join("to"));
    fs::create_dir_all(&source).unwrap();
    for path in ["foreign", "closed", "many"] {
        fs::create_dir_all(place.join("tree").join(path)).unwrap();
    }
    write(&source.join("f"), b"f", 1_000_000);
    for path in ["foreign/x", "foreign/y", "closed/x", "closed/y"] {
        write(&place.join("tree").join(path), b"old", 1_000_000);
    }
    for number in 0..3000 {
        write(&place.join(format!("tree/many/{number:0100}")), b"", 1_000_000);
    }
    let closed = place.join("tree/closed");
    if is_root() {
        for path in ["tree", "tree/closed", "tree/many"] {
            std::os::unix::fs::chown(place.join(path), Some(65_534), Some(65_534)).unwrap();
        }
    }
    fs::set_permissions(&closed, Permissions::from_mode(0o000)).unwrap();
    let receiver = unprivileged(&place, &["--allow-delete"]);
    let send = |options: &[&str]| {
        let mut command = rackweave(&["send", source.to_str().unwrap(), "--delete"]);
        command.args(["--to", &receiver.address]).args(options).output().unwrap()
    };
    let dry = send(&["-ni"]);
    assert_eq!(dry.status.code(), Some(i32::from(is_root())), "{dry:?}");
    let text = String::from_utf8(dry.stdout).unwrap();
    // Whether the folder of the others is another user's: only root can make one.
    let (own, foreign) = if is_root() { (0, 2) } else { (3, 0) };
    // A folder that is closed to its owner is opened only by the cast itself.
    let closed_too = format!(
        "would delete {} and what 1 folder has, which is closed to its owner\n",
        3002 + own
    );
    assert!(text.contains(&closed_too), "{text}");
    let printed = text.lines().filter(|it| it.starts_with("deleted")).count();
    let others = format!("and {} others at {}", 3002 + own - printed, receiver.address);
    assert!(printed < 3000 && text.contains(&others), "{text}");
    let failed = String::from_utf8_lossy(&dry.stderr).contains("cannot delete tree/foreign");
    assert_eq!(failed, is_root(), "{:?}", dry.stderr);
    let output = send(&["-n", "--json"]);
    let last = output.stdout.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap();
    let document: Value = serde_json::from_slice(last).unwrap();
    let found = &document["receivers"][0];
    assert_eq!(found["deleted"], 3002 + own, "{document}");
    assert_eq!((&found["not_deleted"], &found["closed"]), (&foreign.into(), &1.into()));
    assert_eq!(found["unnamed"], 3002 + own - printed, "{document}");
    assert_eq!(fs::metadata(&closed).unwrap().permissions().mode() & 0o777, 0);
    let real = send(&["--json"]);
    assert_eq!(real.status.code(), Some(i32::from(is_root())), "{real:?}");
    let found = &json(&real)["receivers"][0];
    assert_eq!((&found["deleted"], &found["not_deleted"]), (&(3004 + own).into(), &foreign.into()));
}
