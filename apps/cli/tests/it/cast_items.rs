//! `cast send --itemize`: a line or an event for each path, with the reason.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::casts::{Receiver, fifo, rackweave, write};

/// A sender's folder, and what two receivers have of it: the first one something else, the second one nothing.
fn scene(folder: &Path) -> (PathBuf, [PathBuf; 2]) {
    let [source, one, two] = ["tree", "one", "two"].map(|it| folder.join(it));
    let there = one.join("tree");
    for it in [&source, &there] {
        fs::create_dir_all(it.join("sub")).unwrap();
        for name in ["same", "size", "time", "content", "mode", "type", "hard"] {
            write(&it.join(name), b"bytes", 1_000_000);
        }
        fs::set_permissions(it.join("mode"), Permissions::from_mode(0o644)).unwrap();
    }
    symlink("new", source.join("link")).unwrap();
    symlink("old", there.join("link")).unwrap();
    fs::hard_link(source.join("hard"), source.join("hard-too")).unwrap();
    write(&there.join("hard-too"), b"bytes", 1_000_000);
    fs::remove_file(there.join("type")).unwrap();
    symlink("same", there.join("type")).unwrap();
    write(&there.join("size"), b"others", 1_000_000);
    write(&there.join("content"), b"BYTES", 1_000_000);
    write(&source.join("time"), b"bytes", 2_000_000);
    fs::set_permissions(source.join("mode"), Permissions::from_mode(0o640)).unwrap();
    write(&source.join("new"), b"new", 1_000_000);
    fifo(&source.join("pipe"));
    write(&there.join("sub/old"), b"old", 1_000_000);
    for it in [&source, &there] {
        for name in [&it.join("sub"), it] {
            let file = fs::File::open(name).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(9_000_000);
            file.set_modified(time).unwrap();
        }
    }
    (source, [one, two])
}

fn send(source: &Path, to: &str, options: &[&str]) -> String {
    let args = ["send", source.to_str().unwrap(), "--to", to];
    let output = rackweave(&args).args(options).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns action, path, reason and the number of receivers of each item.
fn items(text: &str) -> Vec<(String, String, String, usize)> {
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let item = |it: Value| {
        let hosts = it["hosts"].as_array().unwrap().len();
        (word(&it["action"]), word(&it["path"]), word(&it["why"]), hosts)
    };
    events.filter(|it| it["event"] == "item").map(item).collect()
}

#[test]
fn each_path_has_a_line_that_says_what_differs_and_where() {
    let folder = tempfile::tempdir().unwrap();
    let (source, [one, two]) = scene(folder.path());
    let options = ["--overwrite", "--allow-delete"];
    let first = Receiver::into(&one, &options);
    let second = Receiver::into(&two, &options);
    let both = format!("{},{}", first.address, second.address);
    let lines = |options: &[&str]| -> Vec<String> {
        let text = send(&source, &first.address, options);
        let lines = text.lines().take_while(|line| !line.starts_with("127.0.0.1"));
        lines.map(str::to_owned).collect()
    };
    let mut expected = vec![
        "changed  tree/hard-too  (link)  at 1 of 1",
        "changed  tree/link -> new  (target)  at 1 of 1",
        "changed  tree/mode  5 B  (mode)  at 1 of 1",
        "new      tree/new  3 B  at 1 of 1",
        "changed  tree/size  5 B  (size)  at 1 of 1",
        "changed  tree/time  5 B  (time)  at 1 of 1",
        "changed  tree/type  5 B  (type)  at 1 of 1",
        "deleted  tree/sub/old  at 1 of 1",
        "skipped  tree/pipe  (pipe)",
    ];
    assert_eq!(lines(&["-n", "--delete"]), expected);
    // As with rsync, other bytes of the same length and time are seen only by their hash.
    expected.insert(0, "changed  tree/content  5 B  (content)  at 1 of 1");
    assert_eq!(lines(&["-nic", "--delete"]), expected);
    assert!(!send(&source, &first.address, &["-n", "-q"]).contains("tree"));
    // The same for machines, and afterwards the same of what was done.
    let dry = items(&send(&source, &both, &["-n", "--checksum", "--delete", "--json"]));
    let real = send(&source, &both, &["--itemize", "--checksum", "--delete", "--json"]);
    assert_eq!(items(&real), dry);
    let item = |path: &str| -> Vec<_> {
        let of = dry.iter().filter(|it| it.1 == path);
        of.map(|(action, _, why, hosts)| (action.as_str(), why.as_str(), *hosts)).collect()
    };
    assert_eq!(item("tree/new"), [("new", "", 2)]);
    assert_eq!(item("tree/size"), [("changed", "size", 1), ("new", "", 1)]);
    assert_eq!(item("tree/same"), [("new", "", 1)]);
    assert_eq!(item("tree/sub/old"), [("deleted", "", 1)]);
    assert_eq!(item("tree/pipe"), [("skipped", "pipe", 0)]);
    let last: Value = serde_json::from_str(real.lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "result");
    // Nothing is left to do.
    for options in [&["-i"][..], &["-ni"], &["-nic", "--delete"]] {
        let text = send(&source, &both, options);
        let lines: Vec<_> = text.lines().take_while(|it| !it.starts_with("127.")).collect();
        assert_eq!(lines, ["skipped  tree/pipe  (pipe)"], "{options:?}");
    }
}

/// What a receiver has not got is not said to be changed there.
#[test]
fn a_receiver_that_is_not_complete_has_no_items() {
    let folder = tempfile::tempdir().unwrap();
    let (source, [one, two]) = scene(folder.path());
    let refuses = Receiver::into(&one, &[]);
    let takes = Receiver::into(&two, &[]);
    let to = format!("{},{}", refuses.address, takes.address);
    let mut command = rackweave(&["send", source.to_str().unwrap(), "--to", &to, "-i", "--json"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let items = items(&text);
    assert!(items.iter().all(|it| it.3 == 1 && it.0 == "new" || it.0 == "skipped"), "{items:?}");
    assert!(
        text.lines().filter(|it| it.contains("\"item\"")).all(|it| !it.contains(&refuses.address))
    );
}
