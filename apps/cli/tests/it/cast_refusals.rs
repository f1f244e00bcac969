//! What `rackweave cast send` says when a receiver takes nothing, before any content is sent and in a dry run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use rackweave_testing::free_address;

use crate::casts::{Receiver, content, json, rackweave, write};

/// A folder of 3 MB.
fn tree(folder: &Path) -> PathBuf {
    let source = folder.join("tree");
    fs::create_dir_all(&source).unwrap();
    write(&source.join("a"), &content(3_000_000), 1_000_000);
    write(&source.join("b"), b"new", 1_000_000);
    source
}

fn send(source: &Path, to: &str, options: &[&str]) -> Output {
    rackweave(&["send", source.to_str().unwrap(), "--to", to]).args(options).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The content of 3 MB was sent before a receiver refused the last file of it, and its sender was given a list of possible causes.
#[test]
fn a_file_that_exists_is_refused_before_content_and_the_option_is_named_first() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path());
    let places = ["has", "empty"].map(|it| folder.path().join(it));
    fs::create_dir_all(places[0].join("tree")).unwrap();
    write(&places[0].join("tree/b"), b"older", 900_000);
    let mut receivers = places.each_ref().map(|place| Receiver::into(place, &["--once"]));
    for options in [&["--json", "-n"][..], &["--json"]] {
        let to = format!("{},{}", receivers[0].address, receivers[1].address);
        let output = send(&source, &to, options);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let expected = format!(
            "error: {}: it needs --overwrite (`cast receive`): another file is at tree/b; nothing was sent\n",
            receivers[0].address
        );
        assert_eq!(errors(&output), expected);
        let text = String::from_utf8_lossy(&output.stdout);
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["receivers"][1]["error"], serde_json::Value::Null, "{text}");
        if let Some(bytes) = last["link_bytes"].as_u64() {
            assert!(bytes < 3_500_000, "one copy: {text}");
        }
        for (receiver, code) in receivers.iter_mut().zip([1, 0]) {
            assert_eq!(receiver.child.wait().unwrap().code(), Some(code));
        }
        let again = |number: usize| Receiver::into(&places[number], &["--once"]);
        assert!(!places[0].join("tree/a").exists());
        assert_eq!(places[1].join("tree/a").exists(), options.len() == 1);
        receivers = [again(0), again(1)];
    }
    assert_eq!(fs::read(places[0].join("tree/b")).unwrap(), b"older");
}

/// Only the content shows that a file of the same length is another one.
#[test]
fn a_file_of_the_same_length_is_refused_with_its_cause_too() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path());
    let place = folder.path().join("to");
    fs::create_dir_all(place.join("tree")).unwrap();
    write(&place.join("tree/b"), b"old", 900_000);
    let receiver = Receiver::into(&place, &[]);
    for (options, said) in [
        (&[][..], "the receiver needs --overwrite: another file has the name"),
        (&["--checksum"], "it needs --overwrite (`cast receive`): another file is at tree/b"),
        (&["--checksum", "-n"], "it needs --overwrite (`cast receive`): another file is at tree/b"),
    ] {
        let output = send(&source, &receiver.address, options);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        // It was "resumed at 38 B".
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(!report.contains("resumed"), "{report}");
        let expected = format!("error: {}: {said}", receiver.address);
        assert!(errors(&output).contains(&expected), "{}", errors(&output));
    }
}

#[test]
fn one_file_is_taken_by_its_own_name_and_several_are_refused_before_content() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path());
    let out = folder.path().join("out");
    let receiver = Receiver::start(&["--out", out.to_str().unwrap()]);
    let output = send(&source, &receiver.address, &[]);
    assert!(errors(&output).contains("it takes one file only"), "{}", errors(&output));
    assert_eq!(send(&source.join("b"), &receiver.address, &[]).status.code(), Some(0));
    assert_eq!(fs::read(&out).unwrap(), b"new");
}

/// A dry run said "the receiver stopped responding" of each.
#[test]
fn a_dry_run_tells_who_does_not_listen_and_who_has_another_key() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path());
    let keys = ["one", "two"].map(|name| folder.path().join(name));
    for (key, byte) in keys.iter().zip(1..) {
        fs::write(key, [byte; 32]).unwrap();
    }
    let nobody = free_address().to_string();
    let output = send(&source, &nobody, &["-n"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = format!("error: {nobody}: nothing listens at its UDP port");
    assert!(errors(&output).contains(&expected), "{}", errors(&output));
    let place = folder.path().join("to");
    let receiver = Receiver::into(&place, &["--key", keys[0].to_str().unwrap()]);
    for options in [&["-n", "--key", keys[1].to_str().unwrap()][..], &["-n"]] {
        let output = send(&source, &receiver.address, options);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(errors(&output).contains("it answered that it has another key"), "{output:?}");
    }
}

/// Each receiver got the rate.
#[test]
fn the_rate_is_that_of_the_sender_however_many_copies_it_sends() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path()).join("a");
    for method in ["cast", "unicast"] {
        let into = |number| Receiver::into(&folder.path().join(format!("{method}{number}")), &[]);
        let receivers: Vec<Receiver> = (0..4).map(into).collect();
        let to: Vec<&str> = receivers.iter().map(|it| it.address.as_str()).collect();
        let mut options = vec!["--rate", "160 Mbps", "--json", "--method", method];
        options.extend(["--spread", "unicast"].iter().filter(|_| method == "cast"));
        let document = json(&send(&source, &to.join(","), &options));
        // 12 MB.
        assert!(document["wall_s"].as_f64().unwrap() > 0.58, "{document}");
    }
}

#[test]
fn a_pattern_that_excludes_nothing_is_named_with_the_one_that_would() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path());
    let receiver = Receiver::into(&folder.path().join("to"), &[]);
    let patterns = ["--exclude", "/b", "--exclude", "*.o", "--exclude", "/tree/a"];
    let output = send(&source, &receiver.address, &patterns);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let notes = "note: --exclude \"/b\" matches nothing; a path in a pattern begins in the folder above what is sent: \
                 \"/tree/b\" matches\nnote: --exclude \"*.o\" matches nothing\n";
    assert!(errors(&output).starts_with(notes), "{}", errors(&output));
    // A pattern that begins as a line of rsync's filters, or an option.
    let output = send(&source, &receiver.address, &["--exclude", "- *.o"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && said.contains("--exclude \"- *.o\" matches nothing"),
        "{said}"
    );
    let output = send(&source, &receiver.address, &["--exclude", "a[b"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = errors(&output).replace("\n  │", "");
    assert!(text.contains("--exclude: \"a[b\": a `]` closes the `[`"), "{text}");
}
