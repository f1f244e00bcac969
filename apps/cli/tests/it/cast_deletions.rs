//! `cast send --delete`: what receivers have and the sender has not is deleted, and nothing else, whatever is killed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use rackweave_core::Rng;
use rackweave_testing::free_address;
use serde_json::Value;

use crate::casts::{Receiver, content, fifo, rackweave};
use crate::common::until;

fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Returns all that is below a directory: paths, and the content of files or the targets of links. What is deleted meanwhile is
/// left out.
fn tree(folder: &Path) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inside) = folders.pop() {
        for entry in fs::read_dir(&inside).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().as_os_str().as_bytes().to_vec();
            let Ok(meta) = path.symlink_metadata() else { continue };
            let value = if meta.is_dir() {
                folders.push(path);
                None
            } else if meta.is_symlink() {
                let Ok(target) = fs::read_link(&path) else { continue };
                Some(target.into_os_string().into_encoded_bytes())
            } else {
                let Ok(bytes) = fs::read(&path) else { continue };
                Some(bytes)
            };
            found.insert(name, value);
        }
    }
    found
}

fn documents(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn send(source: &Path, to: &str, options: &[&str]) -> Output {
    let mut command = rackweave(&["send", source.to_str().unwrap(), "--to", to, "--delete"]);
    command.args(options).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_the_sender_has_not_is_deleted_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let [source, place, outside] = ["tree", "to", "outside"].map(|it| folder.path().join(it));
    for path in ["a", "sub/b", "sub/deep/c", "kept/d"] {
        write(&source.join(path), path.as_bytes());
    }
    fs::create_dir_all(source.join("empty")).unwrap();
    fifo(&source.join("sub/pipe"));
    // Where the sender has a pipe, this receiver has a file; where it has nothing, links, files and folders.
    for path in ["sub/pipe", "old", "sub/old/x/y", "sub/old/z", "kept/x.o", "gone/y.o", "empty/e"] {
        write(&place.join("tree").join(path), b"there");
    }
    write(&outside.join("secret"), b"outside");
    symlink(&outside, place.join("tree/sub/away")).unwrap();
    symlink(outside.join("secret"), place.join("tree/file-away")).unwrap();
    for path in ["other/x", "y", "tree.txt"] {
        write(&place.join(path), b"another's");
    }
    let before = tree(&place);
    let options = ["--exclude", "*.o", "--json"];
    let receiver = Receiver::into(&place, &["--allow-delete"]);
    let dry = send(&source, &receiver.address, &[&options[..], &["--dry-run"]].concat());
    assert_eq!(dry.status.code(), Some(0), "{dry:?}");
    let events = documents(&dry);
    let paths: Vec<_> = (events.iter().filter(|it| it["action"] == "deleted"))
        .map(|it| it["path"].as_str().unwrap())
        .collect();
    let deleted = [
        "tree/empty/e",
        "tree/file-away",
        "tree/old",
        "tree/sub/away",
        "tree/sub/old/",
        "tree/sub/old/x/",
        "tree/sub/old/x/y",
        "tree/sub/old/z",
    ];
    assert_eq!(paths, deleted);
    assert_eq!(events.last().unwrap()["receivers"][0]["deleted"], 8);
    assert_eq!(tree(&place), before, "a dry run changes nothing");
    let real = send(&source, &receiver.address, &options);
    assert_eq!(real.status.code(), Some(0), "{real:?}");
    let document = documents(&real).pop().unwrap();
    let result = &document["receivers"][0];
    assert_eq!((&result["deleted"], &result["not_deleted"]), (&8.into(), &0.into()), "{document}");
    let mut expected = before;
    for path in deleted {
        let path = path.trim_end_matches('/').as_bytes();
        assert!(expected.remove(path).is_some());
    }
    for path in ["a", "sub/b", "sub/deep/c", "kept/d"] {
        let name = Path::new("tree").join(path).as_os_str().as_bytes().to_vec();
        expected.insert(name, Some(path.as_bytes().to_vec()));
    }
    expected.insert(b"tree/sub/deep".to_vec(), None);
    let now = tree(&place);
    assert_eq!(now, expected);
    assert_eq!(fs::read(outside.join("secret")).unwrap(), b"outside");
    let time = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    for path in ["sub", "empty", "sub/deep"] {
        assert_eq!(time(source.join(path)), time(place.join("tree").join(path)), "{path}");
    }
    let again = documents(&send(&source, &receiver.address, &options)).pop().unwrap();
    assert_eq!(again["receivers"][0]["deleted"], 0, "{again}");
    assert_eq!(again["receivers"][0]["there_bytes"], again["bytes"], "{again}");
    // Without --delete nothing is deleted.
    write(&place.join("tree/new"), b"new");
    let mut plain = rackweave(&["send", source.to_str().unwrap()]);
    assert!(plain.args(["--to", &receiver.address]).status().unwrap().success());
    assert!(place.join("tree/new").exists());
}

/// rsync replaces them; here the receiver refused the cast.
#[test]
fn with_delete_a_file_becomes_a_folder_and_a_folder_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let [source, place] = ["tree", "to"].map(|it| folder.path().join(it));
    for path in ["was-file/a/b", "was-link/c", "was-folder"] {
        write(&source.join(path), path.as_bytes());
    }
    let there = place.join("tree");
    for path in ["was-file", "was-folder/x/y", "was-folder/z"] {
        write(&there.join(path), b"old");
    }
    symlink(folder.path(), there.join("was-link")).unwrap();
    let before = tree(&place);
    let refusing = Receiver::into(&place, &[]);
    let mut plain = rackweave(&["send", source.to_str().unwrap(), "--to", &refusing.address]);
    let output = plain.output().unwrap();
    let text = errors(&output);
    assert!(
        text.contains(
            "a file or a link is in the way of the folder tree/was-file, and at 2 others"
        ),
        "{text}"
    );
    assert_eq!(tree(&place), before);
    let receiver = Receiver::into(&place, &["--allow-delete"]);
    // What is excluded stays, and so does the folder that it is in.
    let output = send(&source, &receiver.address, &["--exclude", "y"]);
    assert!(errors(&output).contains("in the way of tree/was-folder; nothing"), "{output:?}");
    assert_eq!(tree(&place), before);
    for options in [&["--json", "-n"][..], &["--json"]] {
        assert_eq!(tree(&place), before);
        let output = send(&source, &receiver.address, options);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let document = documents(&output).pop().unwrap();
        assert_eq!(document["receivers"][0]["deleted"], 6, "{document}");
    }
    assert_eq!(tree(&there), tree(&source));
    assert!(folder.path().join("tree/was-folder").exists());
}

#[test]
fn a_receiver_that_allows_no_deletion_refuses_with_the_reason_and_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("tree");
    write(&source.join("a"), b"a");
    let places = ["yes", "no"].map(|it| folder.path().join(it));
    for place in &places {
        write(&place.join("tree/old"), b"old");
    }
    let mut allows = Receiver::into(&places[0], &["--allow-delete", "--once"]);
    let mut refuses = Receiver::into(&places[1], &["--once"]);
    let to = format!("{},{}", allows.address, refuses.address);
    for (options, changes) in [(&["--dry-run"][..], false), (&[], true)] {
        let output = send(&source, &to, options);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = errors(&output);
        let expected = format!("error: {}: the receiver does not allow --delete", refuses.address);
        assert!(text.contains(&expected), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("error")).count(), 1, "{text}");
        for (receiver, code) in [(&mut allows, 0), (&mut refuses, 1)] {
            assert_eq!(receiver.child.wait().unwrap().code(), Some(code));
        }
        if changes {
            break;
        }
        allows = again(&allows, &places[0], &["--allow-delete", "--once"]);
        refuses = again(&refuses, &places[1], &["--once"]);
    }
    assert_eq!(tree(&places[0]), tree(folder.path()).into_iter().filter(is_source).collect());
    assert_eq!(fs::read(places[1].join("tree/old")).unwrap(), b"old");
    assert!(!places[1].join("tree/a").exists());
    // Files alone are in no folder.
    let output = send(&source.join("a"), &to, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

fn is_source((path, _): &(Vec<u8>, Option<Vec<u8>>)) -> bool {
    path.starts_with(b"tree")
}

/// Starts a receiver at the address of one that has ended.
fn again(receiver: &Receiver, place: &Path, options: &[&str]) -> Receiver {
    start(&receiver.address, place, options)
}

fn start(address: &str, place: &Path, options: &[&str]) -> Receiver {
    let mut command = rackweave(&["receive", "--listen", address, "--dir"]);
    command.arg(place).args(options);
    Receiver::spawn(command)
}

#[expect(clippy::disallowed_methods, reason = "processes are killed at certain times")]
fn wait(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// A sender, which is killed on drop.
struct Sender(Child);

impl Drop for Sender {
    fn drop(&mut self) {
        // Killing fails if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills a receiver and a sender at random times while a folder is made equal.
fn round(number: u64) {
    let mut rng = Rng::stream(number, 0, 0, "deletions");
    let folder = tempfile::tempdir().unwrap();
    let (source, place) = (folder.path().join("tree"), folder.path().join("to"));
    for file in 0..40 {
        let path = format!("{}/f{file}", ["", "x", "x/y", "z"][file % 4]);
        let path = path.trim_start_matches('/');
        write(&source.join(path), &content(1000 + file * 4000));
        match file % 3 {
            // Without its time, which is to be found by its hash.
            0 => write(&place.join("tree").join(path), &content(1000 + file * 4000)),
            1 => write(&place.join("tree").join(path), b"an older one"),
            _ => {}
        }
    }
    write(&source.join("x/big"), &content(4_000_000));
    for old in 0..1500 {
        write(&place.join(format!("tree/x/old{}/{old}", old % 30)), b"old");
    }
    write(&place.join("tree/x/old3/y.o"), b"excluded");
    write(&place.join("another"), b"another's");
    let wanted = tree(&source);
    // What the source has is there at any time, the old content or the new one.
    let check = |what: &str| {
        let now = tree(&place.join("tree"));
        for (path, bytes) in &wanted {
            let name = String::from_utf8_lossy(path).into_owned();
            if bytes.is_none() || (name != "x/big" && file_number(&name) % 3 == 2) {
                continue;
            }
            let is_old = || now.get(path) == Some(&Some(b"an older one".to_vec()));
            let is_there = now.get(path) == Some(bytes) || file_number(&name) % 3 == 1 && is_old();
            assert!(is_there || name == "x/big", "round {number}: {name} after {what}");
        }
        assert!(now.contains_key(&b"x/old3/y.o"[..]) && place.join("another").exists());
    };
    let options = ["--allow-delete", "--overwrite"];
    let address = free_address().to_string();
    let mut receiver = start(&address, &place, &options);
    let command = || {
        let mut command = rackweave(&["send", source.to_str().unwrap(), "--to", &address]);
        command.args(["--delete", "--exclude", "*.o", "--json", "--rate", "400 Mbps"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut sender = Sender(command().spawn().unwrap());
    for _ in 0..4 {
        wait(rng.below(250));
        if rng.below(2) == 0 {
            drop(receiver);
            check("a receiver was killed");
            receiver = start(&address, &place, &options);
        } else {
            drop(sender);
            check("a sender was killed");
            sender = Sender(command().spawn().unwrap());
        }
    }
    until("the cast has ended", || sender.0.try_wait().unwrap().is_some());
    check("the cast has ended");
    let output = command().output().unwrap();
    assert_eq!(output.status.code(), Some(0), "round {number}: {output:?}");
    let mut now = tree(&place.join("tree"));
    assert!(now.remove(&b"x/old3/y.o"[..]).is_some() && now.remove(&b"x/old3"[..]).is_some());
    assert!(now == wanted, "round {number}: it is equal");
    let left: Vec<_> = fs::read_dir(&place).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "round {number}: {left:?}");
    drop(receiver);
}

fn file_number(name: &str) -> usize {
    let digits = name.rsplit('f').next().and_then(|it| it.parse().ok());
    digits.unwrap_or(0)
}

/// The number of rounds is that of the variable `RACKWEAVE_CASTS`, or 8.
#[test]
fn nothing_that_the_source_has_is_lost_whatever_is_killed() {
    let rounds = std::env::var("RACKWEAVE_CASTS").ok().and_then(|it| it.parse().ok()).unwrap_or(8);
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..2_u64)
            .map(|lane| scope.spawn(move || (lane..rounds).step_by(2).for_each(round)))
            .collect();
        for lane in lanes {
            lane.join().unwrap();
        }
    });
}
