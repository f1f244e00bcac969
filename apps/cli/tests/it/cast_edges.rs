//! `rackweave cast` with premature ends, obstacles in the file system, and changing files.

use std::collections::BTreeMap;
use std::fs::{File, FileTimes, Permissions};
use std::io::Read as _;
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use crate::casts::{Receiver, content, fifo, json, rackweave};

/// Much longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "processes are waited for")]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what} takes for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn len(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn file(folder: &Path, name: &str, len: usize) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content(len)).unwrap();
    path
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
}

fn send(files: &[&Path], to: &str, args: &[&str]) -> Command {
    let mut command = rackweave(&["send", "--to", to, "--json"]);
    command.args(args).args(files).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a receiver's output up to its end, and its exit status.
fn ended(mut receiver: Receiver) -> (String, Option<i32>) {
    let mut message = String::new();
    receiver.stderr.read_to_string(&mut message).unwrap();
    (message, receiver.child.wait().unwrap().code())
}

/// Starts a receiver from a shell that first runs `script`.
fn after(script: &str, folder: &Path, args: &[&str]) -> Receiver {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{script} exec \"$0\" \"$@\"")]);
    command.args([env!("CARGO_BIN_EXE_rackweave"), "cast", "receive"]);
    command.args(["--listen", "127.0.0.1:0", "--dir", text(folder)]).args(args);
    Receiver::spawn(command)
}

/// Sends a signal once the process has installed its handler.
fn signal(child: &Child, name: &str) {
    let number = if name == "INT" { 2 } else { 15 };
    until("a handler", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() >> (number - 1) & 1 == 1
    });
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

/// The content of a file (`None` for a directory), its mode and its time.
type Thing = (Option<Vec<u8>>, u32, i64, i64);

/// A change to a file while it waits to be sent.
type Change = fn(&Path);

/// An obstacle in a directory; the second path is a file that must stay intact.
type Obstacle = fn(&Path, &Path);

/// Returns everything below a directory.
fn tree(root: &Path) -> BTreeMap<PathBuf, Thing> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let bytes = (!meta.is_dir()).then(|| std::fs::read(&path).unwrap());
            if meta.is_dir() {
                folders.push(path.clone());
            }
            let name = path.strip_prefix(root).unwrap().to_owned();
            found.insert(name, (bytes, meta.mode() & 0o777, meta.mtime(), meta.mtime_nsec()));
        }
    }
    found
}

#[test]
fn thousands_of_small_files_of_all_kinds_reach_two_receivers() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("tree");
    for i in 0..1500_usize {
        let place = source.join(format!("a b {}/ü\n{}", i % 7, i % 31));
        std::fs::create_dir_all(&place).unwrap();
        // Names have all lengths up to the limit of Linux.
        let name = format!("{i:04}{}", "x".repeat(i * 13 % 252));
        let path = file(&place, &name, if i % 5 == 0 { 0 } else { i * 7 % 3000 });
        let time = UNIX_EPOCH + Duration::from_nanos(i as u64 * 1_000_000_007);
        let opened = File::options().write(true).open(&path).unwrap();
        opened.set_times(FileTimes::new().set_modified(time)).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o400 + (i as u32 * 11) % 0o400))
            .unwrap();
    }
    let empty = source.join("empty/deep").join("d".repeat(255));
    std::fs::create_dir_all(&empty).unwrap();
    std::fs::set_permissions(empty, Permissions::from_mode(0o750)).unwrap();
    let places = [folder.path().join("1"), folder.path().join("2")];
    // Few files are open at a time, however many there are.
    let receivers = places.each_ref().map(|place| after("ulimit -n 40;", place, &["--once"]));
    let to = format!("{},{}", receivers[0].address, receivers[1].address);
    let output = send(&[&source], &to, &[]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{output:?}");
    let wanted = tree(&source);
    for (receiver, place) in receivers.into_iter().zip(&places) {
        // Its lines about the files exceed a pipe's buffer.
        let mut receiver = receiver;
        std::io::copy(receiver.child.stdout.as_mut().unwrap(), &mut std::io::sink()).unwrap();
        assert_eq!(ended(receiver).1, Some(0));
        let found = tree(&place.join("tree"));
        assert_eq!(found.len(), wanted.len());
        for (path, was) in &wanted {
            assert!(found.get(path) == Some(was), "{path:?}: {:?}", found.get(path));
        }
        // No other file is left.
        assert_eq!(std::fs::read_dir(place).unwrap().count(), 1);
    }
}

#[test]
fn a_disk_that_is_really_full_ends_one_receiver_which_goes_on_when_there_is_room() {
    rackweave_testing::needs!(SysAdmin);
    let folder = tempfile::tempdir().unwrap();
    let (small, good) = (folder.path().join("small"), folder.path().join("good"));
    std::fs::create_dir(&small).unwrap();
    let mount = format!("mount -t tmpfs -o size=3m none '{}'", text(&small));
    let source = file(folder.path(), "big", 8_000_000);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{mount}; exec \"$0\" \"$@\"")]);
    command.args([env!("CARGO_BIN_EXE_rackweave"), "cast", "receive"]);
    command.args(["--listen", "127.0.0.1:0", "--dir", text(&small)]);
    let mut full = Receiver::spawn(command);
    let other = Receiver::into(&good, &["--once"]);
    let to = format!("{},{}", full.address, other.address);
    let output = send(&[&source], &to, &[]).output().unwrap();
    assert_eq!(code(&output), Some(1), "{output:?}");
    assert!(message(&output).contains(&format!("{}: the receiver's disk is full", full.address)));
    let document = json(&output);
    assert_eq!(document["receivers"][0]["state"], "disk full");
    assert_eq!(document["receivers"][1]["state"], "complete");
    assert_eq!(ended(other).1, Some(0));
    assert!(std::fs::read(good.join("big")).unwrap() == content(8_000_000));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut full.stderr, &mut line).unwrap();
    let (is_full, names_file) =
        (line.contains("the disk is full"), line.contains("big.part: it needs"));
    assert!(is_full && names_file && line.contains("are free"), "{line}");
    // The path is the receiver's view of the directory.
    let inside = PathBuf::from(format!("/proc/{}/root{}", full.child.id(), text(&small)));
    assert!(inside.join("big.part").exists() && !inside.join("big").exists());
    let remount = format!("mount -o remount,size=20m '{}'", text(&small));
    let pid = full.child.id().to_string();
    let status = Command::new("nsenter").args(["-t", &pid, "-m", "sh", "-c", &remount]).status();
    assert!(status.unwrap().success());
    let output = send(&[&source], &full.address, &[]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert!(json(&output)["receivers"][0]["resumed_at"].as_u64().unwrap() > 1_000_000);
    assert!(std::fs::read(inside.join("big")).unwrap() == content(8_000_000));
}

#[test]
fn a_file_that_may_not_be_so_large_ends_the_stream_and_not_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (source, place) = (file(folder.path(), "big", 8_000_000), folder.path().join("to"));
    // The shell counts in blocks of 512 or 1024 bytes.
    let limited = after("ulimit -f 4000;", &place, &["--once"]);
    let output = send(&[&source], &limited.address, &[]).output().unwrap();
    assert_eq!(code(&output), Some(1), "{output:?}");
    let (why, exit) = ended(limited);
    assert!(exit == Some(1) && why.contains("big.part would be larger than"), "{exit:?} {why}");
    assert!(!place.join("big").exists());
    let receiver = Receiver::into(&place, &["--once"]);
    let output = send(&[&source], &receiver.address, &[]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert!(json(&output)["receivers"][0]["resumed_at"].as_u64().unwrap() > 1_000_000);
    assert!(std::fs::read(place.join("big")).unwrap() == content(8_000_000));
}

#[test]
fn a_sender_that_is_interrupted_while_it_looks_for_receivers_ends() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "x", 10_000);
    let silent = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    let address = silent.each_ref().map(|it| it.local_addr().unwrap().to_string());
    let both = address.join(",");
    for (to, name) in [(&address[0], "INT"), (&both, "INT"), (&address[0], "TERM")] {
        let child = send(&[&source], to, &[]).spawn().unwrap();
        // The first packet is an invitation or a probe.
        silent[0].recv(&mut [0; 2000]).unwrap();
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), Some(130), "{output:?}");
        silent[0].set_nonblocking(true).unwrap();
        while silent[0].recv(&mut [0; 2000]).is_ok() {}
        silent[0].set_nonblocking(false).unwrap();
    }
    let group = ["send", text(&source), "--group", "nobody is ever here", "--expect", "2"];
    let child = rackweave(&group).args(["--interface", "127.0.0.1"]).spawn().unwrap();
    signal(&child, "INT");
    assert_eq!(code(&child.wait_with_output().unwrap()), Some(130));
}

#[test]
fn an_interrupted_end_reports_it_and_the_transfer_resumes_later() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "big", 12_000_000);
    let slow = ["--rate", "100 Mbps"];
    for (name, sender) in [("INT", true), ("TERM", true), ("INT", false), ("TERM", false)] {
        let place = folder.path().join(format!("{name} {sender}"));
        let receiver = Receiver::into(&place, &["--once"]);
        let child = send(&[&source], &receiver.address, &slow).spawn().unwrap();
        until("a part", || len(&place.join("big.part")) > 3_000_000);
        signal(if sender { &child } else { &receiver.child }, name);
        let output = child.wait_with_output().unwrap();
        let (why, exit) = ended(receiver);
        if sender {
            assert_eq!((code(&output), exit), (Some(130), Some(1)), "{output:?} {why}");
            assert!(message(&output).contains("the same `cast send` resumes"), "{output:?}");
            assert!(why.contains("the sender ended the transfer; partial files are kept"), "{why}");
        } else {
            assert_eq!((code(&output), exit), (Some(1), Some(130)), "{output:?} {why}");
            assert!(message(&output).contains("the receiver was stopped"), "{output:?}");
            assert!(why.contains("the same `cast send` resumes"), "{why}");
        }
        assert!(!place.join("big").exists() && place.join("big.part").exists());
        let receiver = Receiver::into(&place, &["--once"]);
        let output = send(&[&source], &receiver.address, &[]).output().unwrap();
        assert_eq!(code(&output), Some(0), "{output:?}");
        let at = json(&output)["receivers"][0]["resumed_at"].as_u64().unwrap();
        assert!(at > 2_000_000, "{name} {sender}: {at}");
        assert_eq!(ended(receiver).1, Some(0));
        assert!(std::fs::read(place.join("big")).unwrap() == content(12_000_000));
    }
}

#[test]
fn interrupted_while_the_last_receiver_is_waited_for_the_others_have_everything() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "big", 60_000_000);
    let place = folder.path().join("to");
    let receiver = Receiver::into(&place, &["--once"]);
    // The test does not read what this receiver writes.
    let mut stuck = Receiver::start(&["--once", "--out", "-"]);
    let to = format!("{},{}", receiver.address, stuck.address);
    let child = send(&[&source], &to, &[]).spawn().unwrap();
    assert_eq!(ended(receiver).1, Some(0));
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), Some(130), "{output:?}");
    let document = json(&output);
    assert_eq!(document["receivers"][0]["state"], "complete");
    assert_ne!(document["receivers"][1]["state"], "complete");
    assert!(std::fs::read(place.join("big")).unwrap() == content(60_000_000));
    // The receiver waits for its reader; the second signal ends it immediately.
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stuck.stderr, &mut line).unwrap();
    assert!(line.contains("the sender ended the transfer"), "{line}");
    signal(&stuck.child, "INT");
    signal(&stuck.child, "INT");
    let status = stuck.child.wait().unwrap();
    assert!(matches!(status.code(), Some(1 | 130)), "{status:?}");
}

#[test]
fn a_receiver_without_a_sender_ends_on_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    for (args, name, exit) in [(&[][..], "INT", 0), (&["--once"], "TERM", 130)] {
        let receiver = Receiver::into(folder.path(), args);
        signal(&receiver.child, name);
        assert_eq!(ended(receiver).1, Some(exit));
    }
}

#[test]
fn a_folder_that_is_renamed_while_files_arrive_is_not_the_one_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let what = file(folder.path(), "what", 3_000_000);
    let [place, away] = ["to", "away"].map(|name| folder.path().join(name));
    let receiver = Receiver::into(&place, &["--once"]);
    let child = send(&[&what], &receiver.address, &["--rate", "50 Mbps"]).spawn().unwrap();
    until("a part", || len(&place.join("what.part")) > 500_000);
    std::fs::rename(&place, &away).unwrap();
    let output = child.wait_with_output().unwrap();
    let (printed, exit) = ended(receiver);
    assert_eq!((code(&output), exit), (Some(1), Some(1)), "{output:?} {printed}");
    assert!(printed.contains("it, or its folder, was removed or renamed"), "{printed}");
    assert!(!place.exists() && !away.join("what").exists());
}

#[test]
fn what_is_sent_must_stay_what_it_is() {
    let cases: [(&str, Change, &str); 6] = [
        (
            "shrinks",
            |path| {
                File::options().write(true).open(path).unwrap().set_len(1_500_000).unwrap();
            },
            "has changed while it was sent",
        ),
        (
            "grows",
            |path| {
                let mut file = File::options().append(true).open(path).unwrap();
                std::io::Write::write_all(&mut file, b"more").unwrap();
            },
            "has changed while it was sent",
        ),
        ("goes", |path| std::fs::remove_file(path).unwrap(), "cannot read"),
        (
            "becomes a link",
            |path| {
                std::fs::rename(path, path.with_extension("away")).unwrap();
                symlink(path.with_extension("away"), path).unwrap();
            },
            "cannot read",
        ),
        (
            "becomes a folder",
            |path| {
                std::fs::remove_file(path).unwrap();
                std::fs::create_dir(path).unwrap();
            },
            "has changed while it was sent",
        ),
        (
            "becomes a pipe",
            |path| {
                std::fs::remove_file(path).unwrap();
                fifo(path);
            },
            "has changed while it was sent",
        ),
    ];
    for (what, change, why) in cases {
        let folder = tempfile::tempdir().unwrap();
        let first = file(folder.path(), "first", 3_000_000);
        let second = file(folder.path(), "second", 3_000_000);
        let place = folder.path().join("to");
        let receiver = Receiver::into(&place, &["--once"]);
        let slow = ["--rate", "100 Mbps"];
        let child = send(&[&first, &second], &receiver.address, &slow).spawn().unwrap();
        until("a part", || len(&place.join("first.part")) > 1_000_000);
        change(&second);
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), Some(1), "{what}: {output:?}");
        assert!(message(&output).contains(why), "{what}: {output:?}");
        let (printed, exit) = ended(receiver);
        assert_eq!(exit, Some(1), "{what}: {printed}");
        assert!(printed.contains("the sender could not read its files"), "{what}: {printed}");
        assert!(!place.join("second").exists(), "{what}");
        // A file that is complete is correct; an incomplete one does not have its final name.
        if place.join("first").exists() {
            assert!(std::fs::read(place.join("first")).unwrap() == content(3_000_000));
        }
    }
}

#[test]
fn what_can_not_be_sent_is_said_before_anything_is() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(folder.path(), "good", 10);
    let pipe = folder.path().join("pipe");
    fifo(&pipe);
    let nowhere = folder.path().join("nowhere");
    symlink("nowhere", &nowhere).unwrap();
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = to.local_addr().unwrap().to_string();
    for (path, why) in [
        (pipe.as_path(), "is neither a file nor a directory"),
        (Path::new("/dev/zero"), "is neither a file nor a directory"),
        (&nowhere, "cannot read"),
        (Path::new("/proc/self/status"), "though its length is 0"),
    ] {
        let output = send(&[&good, path], &address, &[]).output().unwrap();
        assert_eq!(code(&output), Some(2), "{output:?}");
        assert!(message(&output).replace(['\n', '│'], " ").contains(why), "{output:?}");
    }
    // The file is unreadable for this user. If the user is root, the test runs the command as another one.
    let secret = file(folder.path(), "secret", 10);
    std::fs::set_permissions(&secret, Permissions::from_mode(0o000)).unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = send(&[&good, &secret], &address, &[]);
    if std::fs::read(&secret).is_ok() {
        rackweave_testing::needs!(SetUid);
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    assert_eq!(code(&output), Some(2), "{output:?}");
    assert!(message(&output).contains("Permission denied"), "{output:?}");
    to.set_nonblocking(true).unwrap();
    assert!(to.recv(&mut [0; 100]).is_err(), "something was sent");
}

#[test]
fn pipes_in_a_directory_are_left_out_and_the_file_behind_a_link_that_is_named_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("tree");
    std::fs::create_dir(&source).unwrap();
    let real = file(&source, "real", 1000);
    fifo(&source.join("pipe"));
    let named = folder.path().join("named");
    symlink(&real, &named).unwrap();
    let place = folder.path().join("to");
    let receiver = Receiver::into(&place, &["--once"]);
    let output = send(&[&source, &named], &receiver.address, &[]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{output:?}");
    let note = "note: devices, pipes and sockets are not sent: the folders have 1, ";
    let said = format!("{note}{} first", source.canonicalize().unwrap().join("pipe").display());
    assert!(message(&output).contains(&said), "{output:?}");
    assert_eq!(std::fs::read(place.join("tree/real")).unwrap(), content(1000));
    assert_eq!(std::fs::read(place.join("named")).unwrap(), content(1000));
    assert!(place.join("tree/pipe").symlink_metadata().is_err());
}

#[test]
fn what_is_in_the_way_at_a_receiver_is_said_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("d");
    std::fs::create_dir(&source).unwrap();
    file(&source, "x", 3_000_000);
    let precious = file(folder.path(), "precious", 77);
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let cases: [(&str, bool, Obstacle, Option<&str>); 8] = [
        ("file", false, |d, p| copy(p, &d.join("x")), Some("exists already")),
        ("file", true, |d, p| copy(p, &d.join("x")), None),
        ("link", false, |d, p| symlink(p, d.join("x")).unwrap(), Some("exists already")),
        ("link", true, |d, p| symlink(p, d.join("x")).unwrap(), None),
        ("folder", true, |d, _| std::fs::create_dir(d.join("x")).unwrap(), Some("is a directory")),
        ("part", false, |d, p| copy(p, &d.join("x.part")), None),
        ("part link", true, |d, p| symlink(p, d.join("x.part")).unwrap(), None),
        (
            "linked folder",
            true,
            |d, p| {
                std::fs::remove_dir(d).unwrap();
                symlink(p.parent().unwrap().join("elsewhere"), d).unwrap();
            },
            Some("is not a directory"),
        ),
    ];
    for (index, (what, overwrite, make, why)) in cases.into_iter().enumerate() {
        let place = folder.path().join(index.to_string());
        std::fs::create_dir_all(place.join("d")).unwrap();
        make(&place.join("d"), &precious);
        let args: &[&str] = if overwrite { &["--once", "--overwrite"] } else { &["--once"] };
        let receiver = Receiver::into(&place, args);
        let output = send(&[&source], &receiver.address, &[]).output().unwrap();
        let (printed, exit) = ended(receiver);
        let wanted = Some(i32::from(why.is_some()));
        assert_eq!((code(&output), exit), (wanted, wanted), "{what}: {output:?} {printed}");
        match why {
            Some(why) => assert!(printed.contains(why), "{what}: {printed}"),
            None => assert!(std::fs::read(place.join("d/x")).unwrap() == content(3_000_000)),
        }
        assert_eq!(std::fs::read(&precious).unwrap(), content(77), "{what}");
        if what.starts_with("part") {
            assert_eq!(std::fs::read(place.join("d/x.part")).unwrap(), content(77), "{what}");
        }
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    }
    // The directory is not writable.
    let receiver = Receiver::into(Path::new("/proc/self/nothing"), &["--once"]);
    let output = send(&[&precious], &receiver.address, &[]).output().unwrap();
    let (printed, exit) = ended(receiver);
    assert_eq!((code(&output), exit), (Some(1), Some(1)), "{output:?}");
    assert!(printed.contains("cannot write /proc/self/nothing"), "{printed}");
}

#[test]
fn files_that_are_called_as_parts_are_stay_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (part, whole) = (file(folder.path(), "x.part", 50), file(folder.path(), "x", 70));
    let place = folder.path().join("to");
    let receiver = Receiver::into(&place, &["--once"]);
    let output = send(&[&part, &whole], &receiver.address, &[]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert_eq!(ended(receiver).1, Some(0));
    assert_eq!(std::fs::read(place.join("x.part")).unwrap(), content(50));
    assert_eq!(std::fs::read(place.join("x")).unwrap(), content(70));
}

#[test]
fn two_transfers_of_the_same_name_are_never_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let mine = file(folder.path(), "x", 5_000_000);
    let theirs = other.join("x");
    std::fs::write(&theirs, vec![9; 5_000_000]).unwrap();
    // A stream is identified by names, sizes and times: files written within one tick of the clock have the same
    // identity.
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::options().write(true).open(&theirs).unwrap().set_modified(time).unwrap();
    let place = folder.path().join("to");
    let mut receiver = Receiver::into(&place, &[]);
    let first = send(&[&mine], &receiver.address, &["--rate", "100 Mbps"]).spawn().unwrap();
    until("a part", || len(&place.join("x.part")) > 1_000_000);
    let output = send(&[&theirs], &receiver.address, &[]).output().unwrap();
    assert_eq!(code(&output), Some(1), "{output:?}");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut receiver.stderr, &mut line).unwrap();
    assert!(line.contains("another transfer is writing"), "{line}");
    let output = first.wait_with_output().unwrap();
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert!(std::fs::read(place.join("x")).unwrap() == content(5_000_000));
}

#[test]
fn a_sender_that_is_killed_is_noticed_and_its_successor_sends_only_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "big", 12_000_000);
    let places = [folder.path().join("1"), folder.path().join("2")];
    let mut receivers = places.each_ref().map(|place| Receiver::into(place, &[]));
    let to = format!("{},{}", receivers[0].address, receivers[1].address);
    let slow = ["--rate", "200 Mbps"];
    let mut child = send(&[&source], &to, &slow).spawn().unwrap();
    until("parts", || places.iter().all(|place| len(&place.join("big.part")) > 4_000_000));
    child.kill().unwrap();
    child.wait().unwrap();
    for receiver in &mut receivers {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut receiver.stderr, &mut line).unwrap();
        assert!(line.contains("the sender stopped responding"), "{line}");
        assert!(line.contains("partial files are kept"), "{line}");
    }
    let output = send(&[&source], &to, &[]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{output:?}");
    let document = json(&output);
    for receiver in document["receivers"].as_array().unwrap() {
        let (at, bytes) = (&receiver["resumed_at"], receiver["bytes"].as_u64().unwrap());
        assert!(at.as_u64().unwrap() > 3_000_000 && bytes < 9_000_000, "{receiver}");
    }
    // Each receiver gets a copy, but without the first three megabytes.
    assert!(document["link_bytes"].as_u64().unwrap() < 2 * 11_000_000, "{document}");
    for place in &places {
        assert!(std::fs::read(place.join("big")).unwrap() == content(12_000_000));
    }
}

#[test]
fn help_states_each_options_default() {
    for command in ["send", "receive"] {
        let output = rackweave(&[command, "--help"]).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let options = help.split("\n      --").skip(1);
        let mut seen = 0;
        for option in options.filter(|text| text.lines().next().unwrap().contains('<')) {
            // One of the two options is required.
            let needed = ["to <HOST>", "group <NAME>\n          Send to all"];
            let stated = option.contains("default");
            assert!(stated || needed.iter().any(|it| option.starts_with(it)), "{option}");
            seen += 1;
        }
        assert!(seen > 7, "{help}");
    }
}
