//! Hard and symbolic links among the files of one cast, and extended attributes.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rackweave_cast::store::disk::DiskFile as _;
use serde_json::Value;

use crate::casts::{Receiver, content, link_bytes, rackweave, sent, write};

const BYTES: u64 = 3_000_000;

/// A folder with a file of three names.
fn tree(folder: &Path) -> PathBuf {
    let source = folder.join("tree");
    fs::create_dir_all(source.join("sub")).unwrap();
    write(&source.join("a"), &content(BYTES as usize), 1_000_000);
    fs::hard_link(source.join("a"), source.join("sub/b")).unwrap();
    fs::hard_link(source.join("a"), source.join("c")).unwrap();
    source
}

/// Sends a folder, which must succeed; returns the result.
fn send(source: &Path, to: &str, options: &[&str]) -> Value {
    let mut command = rackweave(&["send", source.to_str().unwrap(), "--to", to, "--json"]);
    sent(command.args(options))
}

/// Returns the numbers of the files of these names.
fn inodes(place: &Path, names: &[&str]) -> Vec<u64> {
    let inode = |name: &&str| fs::metadata(place.join("tree").join(name)).unwrap().ino();
    names.iter().map(inode).collect()
}

fn is_one(place: &Path) -> bool {
    let found = inodes(place, &["a", "sub/b", "c"]);
    found.iter().all(|inode| *inode == found[0])
}

/// Each name was sent and stored as a file of its own.
#[test]
fn hard_links_are_kept_and_their_content_is_sent_once() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path());
    let places = ["r0", "r1"].map(|it| folder.path().join(it));
    let receivers = places.each_ref().map(|place| Receiver::into(place, &["--sync"]));
    let to = format!("{},{}", receivers[0].address, receivers[1].address);
    let first = send(&source, &to, &["--spread", "unicast"]);
    assert_eq!(first["bytes"], BYTES);
    assert!(link_bytes(&first) < 2 * BYTES + BYTES / 4, "{first}");
    for place in &places {
        assert!(is_one(place));
        assert!(fs::read(place.join("tree/sub/b")).unwrap() == content(BYTES as usize));
    }
    assert!(link_bytes(&send(&source, &to, &[])) < 30_000);
    assert!(link_bytes(&send(&source, &to, &["--checksum"])) < 30_000);
    // A name is missing, and its file is not sent whole though the stream has it.
    fs::remove_file(places[0].join("tree/sub/b")).unwrap();
    fs::remove_file(places[0].join("tree/c")).unwrap();
    send(&source, &to, &[]);
    assert!(is_one(&places[0]) && is_one(&places[1]));
    for place in &places {
        assert_eq!(fs::metadata(place.join("tree/a")).unwrap().nlink(), 3);
    }
    // A new name precedes all others, and is that of the file to whose other names the content is known.
    fs::hard_link(source.join("a"), source.join("0")).unwrap();
    let dry = send(&source, &to, &["--dry-run"]);
    assert_eq!(dry["receivers"][0]["there_bytes"], BYTES, "{dry}");
    let named = send(&source, &to, &[]);
    assert!(link_bytes(&named) < 30_000, "{named}");
    for place in &places {
        let found = inodes(place, &["0", "a", "sub/b", "c"]);
        assert!(found.iter().all(|inode| *inode == found[0]));
        let time = |folder: &Path| fs::metadata(folder).unwrap().modified().unwrap();
        assert_eq!(time(&place.join("tree")), time(&source));
    }
    fs::remove_file(source.join("0")).unwrap();
    // The name that has the content is another one now.
    let only_b = send(&source, &receivers[0].address, &["--exclude", "/tree/a", "--exclude", "c"]);
    assert!(link_bytes(&only_b) < 30_000, "{only_b}");
}

#[test]
fn a_file_that_changes_has_all_its_names_again_and_a_copy_becomes_one_only_if_files_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path());
    let places = ["keeps", "replaces"].map(|it| folder.path().join(it));
    let keeps = Receiver::into(&places[0], &[]);
    let replaces = Receiver::into(&places[1], &["--overwrite", "--allow-delete"]);
    let to = format!("{},{}", keeps.address, replaces.address);
    send(&source, &to, &[]);
    for place in &places {
        let copy = place.join("tree/sub/b");
        fs::remove_file(&copy).unwrap();
        write(&copy, &content(BYTES as usize), 1_000_000);
    }
    send(&source, &to, &[]);
    assert!(!is_one(&places[0]) && is_one(&places[1]));
    let mut changed = content(BYTES as usize);
    changed[17] ^= 1;
    write(&source.join("a"), &changed, 2_000_000);
    write(&places[1].join("tree/old"), b"old", 1_000_000);
    send(&source, &replaces.address, &["--delete"]);
    assert!(is_one(&places[1]) && !places[1].join("tree/old").exists());
    assert!(fs::read(places[1].join("tree/c")).unwrap() == changed);
    let names = fs::read_dir(places[1].join("tree")).unwrap().count();
    assert_eq!(names, 3, "nothing is left of the links that were replaced");
}

/// Extended attributes and ACLs were lost.
#[test]
fn extended_attributes_are_kept_if_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path());
    let set = |path: &str, name: &str, value: Option<&[u8]>| {
        let file = fs::File::open(source.join(path)).unwrap();
        file.set_attribute(name.as_bytes(), value)
    };
    if set("a", "user.one", Some(b"1")).is_err() {
        // This file system has none.
        return;
    }
    set("sub", "user.folder", Some(b"\0")).unwrap();
    // An ACL: the owner, the user 65534 and all others may read.
    let entries = [(1, 4, !0), (2, 4, 65_534), (4, 4, !0), (16, 4, !0), (32, 4, !0_u32)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        acl.extend([tag as u8, 0, rights, 0]);
        acl.extend(id.to_le_bytes());
    }
    let has_acl = fs::metadata("/proc/self").unwrap().uid() == 0
        && set("a", "system.posix_acl_access", Some(&acl)).is_ok();
    fs::set_permissions(source.join("a"), fs::Permissions::from_mode(0o444)).unwrap();
    let place = folder.path().join("to");
    // Files that are taken for the same by their time keep their attributes without it.
    let receiver = Receiver::into(&place, &["--overwrite"]);
    let found = |path: &str| {
        let file = fs::File::open(place.join("tree").join(path)).unwrap();
        let mut found = file.attributes().unwrap();
        found.retain(|(name, _)| !name.starts_with(b"security."));
        found.sort();
        found
    };
    send(&source, &receiver.address, &[]);
    assert_eq!((found("a"), found("sub")), (vec![], vec![]));
    let second = send(&source, &receiver.address, &["--xattrs"]);
    assert!(link_bytes(&second) < 30_000, "{second}");
    let one = (b"user.one".to_vec(), b"1".to_vec());
    let mut expected = vec![one];
    if has_acl {
        expected.insert(0, (b"system.posix_acl_access".to_vec(), acl));
    }
    assert_eq!(found("a"), expected);
    assert_eq!(found("c"), expected);
    assert_eq!(found("sub"), [(b"user.folder".to_vec(), vec![0])]);
    let mode = fs::metadata(place.join("tree/a")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o444);
    // New files and folders have them too, and lose what the sender's have not.
    write(&source.join("new"), b"new", 1_000_000);
    set("new", "user.new", Some(b"")).unwrap();
    fs::create_dir(source.join("more")).unwrap();
    set("more", "user.more", Some(b"m")).unwrap();
    set("sub", "user.folder", None).unwrap();
    send(&source, &receiver.address, &["--xattrs"]);
    assert_eq!(found("new"), [(b"user.new".to_vec(), vec![])]);
    assert_eq!(found("more"), [(b"user.more".to_vec(), b"m".to_vec())]);
    assert_eq!(found("sub"), []);
}

/// They were dropped without a word, and there was no way to keep them.
#[test]
fn owners_are_sent_on_demand_and_their_loss_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let source = tree(folder.path());
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if is_root {
        std::os::unix::fs::chown(source.join("a"), Some(1234), Some(4321)).unwrap();
    }
    let place = folder.path().join("to");
    let receiver = Receiver::into(&place, &["--overwrite"]);
    let notes = |options: &[&str]| {
        let args = ["send", source.to_str().unwrap(), "--to", &receiver.address, "--itemize"];
        let output = rackweave(&args).args(options).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        (text, String::from_utf8(output.stderr).unwrap())
    };
    let owner = || {
        let found = fs::metadata(place.join("tree/a")).unwrap();
        (found.uid(), found.gid())
    };
    let (_, lost) = notes(&[]);
    assert_eq!(lost.contains("owners are sent with --owner only: 1 files"), is_root, "{lost}");
    let (changed, kept) = notes(&["--owner"]);
    assert!(!kept.contains("--owner"), "{kept}");
    if is_root {
        assert!(changed.contains("changed  tree/a  3.00 MB  (owner)  at 1 of 1"), "{changed}");
        assert_eq!(owner(), (1234, 4321));
    }
}

/// Returns the texts of symbolic links.
fn texts(folder: &Path, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| fs::read_link(folder.join(name)).unwrap()).collect()
}

/// They were an error, or left out.
#[test]
fn symbolic_links_are_kept_as_text_wherever_they_lead() {
    let folder = tempfile::tempdir().unwrap();
    let [source, place] = ["tree", "to"].map(|it| folder.path().join(it));
    fs::create_dir_all(source.join("sub")).unwrap();
    write(&source.join("a"), &content(100_000), 1_000_000);
    let outside = folder.path().join("outside");
    fs::write(&outside, b"outside").unwrap();
    let long = "x/".repeat(2047);
    let links = [
        ("to-file", "a"),
        ("sub/to-folder", ".."),
        ("sub/loop", "loop"),
        ("dangling", "no/such/file"),
        ("absolute", outside.to_str().unwrap()),
        ("escapes", "../../outside"),
        ("long", &long),
    ];
    for (name, target) in links {
        symlink(target, source.join(name)).unwrap();
    }
    let names = links.map(|it| it.0);
    let receiver = Receiver::into(&place, &["--allow-delete"]);
    let first = send(&source, &receiver.address, &[]);
    assert_eq!(first["bytes"], 100_000);
    let there = place.join("tree");
    assert_eq!(texts(&there, &names), links.map(|it| PathBuf::from(it.1)));
    let time = |folder: &Path, name| {
        let meta = fs::symlink_metadata(folder.join(name)).unwrap();
        (meta.mtime(), meta.mtime_nsec())
    };
    for name in names {
        assert_eq!(time(&there, name), time(&source, name), "{name}");
    }
    // Nothing is left of the way there, and all is there already.
    assert_eq!(fs::read_dir(&there).unwrap().count(), 7);
    for options in [&[][..], &["--checksum"], &["--delete"], &["--dry-run"]] {
        let again = send(&source, &receiver.address, options);
        assert_eq!(again["receivers"][0]["there_bytes"], 100_000, "{again}");
        // The link carries the list of entries, more than once if the receiver is late.
        assert_eq!(again["receivers"][0]["bytes"], 0, "{again}");
    }
    // A link with the same text and another time only gets the time.
    fs::remove_file(source.join("to-file")).unwrap();
    symlink("a", source.join("to-file")).unwrap();
    assert_ne!(time(&there, "to-file"), time(&source, "to-file"));
    let dry = send(&source, &receiver.address, &["--dry-run"]);
    assert_eq!(dry["receivers"][0]["entries"], 1, "only the folder has another time: {dry}");
    assert_ne!(time(&there, "to-file"), time(&source, "to-file"));
    send(&source, &receiver.address, &[]);
    assert_eq!(time(&there, "to-file"), time(&source, "to-file"));
    // One that the sender has no more is deleted, and not what it leads to; one that is excluded stays.
    for name in ["absolute", "escapes", "dangling"] {
        fs::remove_file(source.join(name)).unwrap();
    }
    send(&source, &receiver.address, &["--delete", "--exclude", "dangling"]);
    assert!(fs::symlink_metadata(there.join("absolute")).is_err());
    assert!(fs::symlink_metadata(there.join("escapes")).is_err());
    assert!(fs::symlink_metadata(there.join("dangling")).is_ok());
    assert_eq!(fs::read(&outside).unwrap(), b"outside");
}

#[test]
fn a_link_replaces_and_is_replaced_as_a_file_and_nothing_goes_through_it() {
    let folder = tempfile::tempdir().unwrap();
    let [source, place, outside] = ["tree", "to", "outside"].map(|it| folder.path().join(it));
    let there = place.join("tree");
    for it in [&source, &there, &outside] {
        fs::create_dir_all(it).unwrap();
    }
    // What the sender has, and what the receiver has there.
    fs::write(source.join("file"), b"new").unwrap();
    symlink(outside.join("x"), there.join("file")).unwrap();
    symlink("new", source.join("link")).unwrap();
    symlink("old", there.join("link")).unwrap();
    symlink("new", source.join("was-file")).unwrap();
    fs::write(there.join("was-file"), b"old").unwrap();
    let keeps = Receiver::into(&place, &[]);
    let command = |to: &str, options: &[&str]| {
        let args = ["send", source.to_str().unwrap(), "--to", to];
        let output = rackweave(&args).args(options).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for options in [&[][..], &["--dry-run"], &["--checksum"]] {
        let (code, text) = command(&keeps.address, options);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("needs --overwrite"), "{text}");
        assert!(text.contains("another file is at tree/file, and at 2 others"), "{text}");
    }
    assert_eq!(texts(&there, &["link"]), [PathBuf::from("old")]);
    let replaces = Receiver::into(&place, &["--overwrite", "--allow-delete", "--sync"]);
    assert_eq!(command(&replaces.address, &[]).0, Some(0));
    assert_eq!(fs::read(there.join("file")).unwrap(), b"new");
    assert_eq!(texts(&there, &["link", "was-file"]), ["new", "new"].map(PathBuf::from));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // A link is in the place of a folder, and a folder in that of a link: only --delete replaces them.
    fs::create_dir(source.join("folder")).unwrap();
    fs::write(source.join("folder/x"), b"x").unwrap();
    symlink(&outside, there.join("folder")).unwrap();
    symlink("new", source.join("was-folder")).unwrap();
    fs::create_dir(there.join("was-folder")).unwrap();
    fs::write(there.join("was-folder/y"), b"y").unwrap();
    let (code, text) = command(&replaces.address, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("in the way of"), "{text}");
    let (code, text) = command(&replaces.address, &["--delete"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(texts(&there, &["was-folder"]), [PathBuf::from("new")]);
    assert_eq!(fs::read(there.join("folder/x")).unwrap(), b"x");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_cast_of_links_is_counted_in_links_and_json_has_the_paths_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let [source, place] = ["tree", "to"].map(|it| folder.path().join(it));
    fs::create_dir(&source).unwrap();
    let name = "l\u{1b}x";
    fs::write(source.join("file"), b"content").unwrap();
    symlink("old", source.join(name)).unwrap();
    let receiver = Receiver::into(&place, &["--overwrite"]);
    let keeps = Receiver::into(&place, &[]);
    let send = |to: &str, options: &[&str]| {
        let args = ["send", source.to_str().unwrap(), "--to", to];
        let output = rackweave(&args).args(options).output().unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        (stdout, stderr)
    };
    send(&receiver.address, &[]);
    let here = fs::metadata(&source).unwrap().modified().unwrap();
    fs::remove_file(source.join(name)).unwrap();
    symlink("new", source.join(name)).unwrap();
    fs::File::open(&source).unwrap().set_modified(here).unwrap();
    let (said, _) = send(&receiver.address, &["--dry-run"]);
    assert!(said.contains("would get 1 link, folder or empty file, already there 7 B"), "{said}");
    assert!(said.contains("tree/l\\u{1b}x"), "{said}");
    for (to, field) in [(&receiver.address, "path"), (&keeps.address, "error")] {
        let (said, _) = send(to, &["--dry-run", "--json"]);
        let mut events = said.lines().map(|it| serde_json::from_str::<Value>(it).unwrap());
        let of = |it: &Value| match field {
            "path" => it["path"].as_str().is_some_and(|it| it == format!("tree/{name}")),
            _ => it["receivers"][0]["error"].as_str().is_some_and(|it| it.contains(name)),
        };
        assert!(events.any(|it| of(&it)), "{said}");
    }
    let (_, said) = send(&keeps.address, &[]);
    assert!(said.contains("tree/l\\u{1b}x"), "{said}");
    let (said, _) = send(&receiver.address, &[]);
    assert!(said.contains("links, folders or empty files by unicast"), "{said}");
    assert!(!said.contains("sent 0"), "{said}");
}
