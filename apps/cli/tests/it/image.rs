//! `rackweave image` as operators use it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{interrupt_after, nap, until};

const COMMAND: &str = env!("CARGO_BIN_EXE_rackweave");

struct Folder(TempDir);

impl Folder {
    /// A folder with a disk of this size that no compression shortens, and a hole of 1 MiB at its end.
    fn new(size: usize) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let mut bytes = vec![0; size];
        let mut word = 1_u64;
        for chunk in bytes.chunks_mut(8) {
            word = word
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            chunk.copy_from_slice(&(word ^ word >> 29).to_le_bytes()[..chunk.len()]);
        }
        let disk = File::create(folder.path("disk")).unwrap();
        disk.write_all_at(&bytes, 0).unwrap();
        disk.set_len(size as u64 + (1 << 20)).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(COMMAND);
        command.arg("image").args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that succeeds, and returns its JSON document.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        crate::common::result(&String::from_utf8(output.stdout).unwrap())
    }

    /// Runs a command that fails, and returns its sentence on one line.
    fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        one_line(&output.stderr)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn same(&self, one: &str, other: &str) -> bool {
        fs::read(self.path(one)).unwrap() == fs::read(self.path(other)).unwrap()
    }
}

/// Undoes the wrapping of messages.
fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let words = text.split_whitespace().filter(|word| !["│", "×"].contains(word));
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_disk_is_packed_signed_inspected_verified_and_unpacked() {
    let folder = Folder::new(3_000_000);
    let output = folder.run(&["keygen", "images"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(folder.path("images.key").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let exists = folder.fails(2, &["keygen", "images"]);
    assert!(exists.contains("the key file images.key exists already"), "{exists}");
    folder.run(&["keygen", "other"]);
    let packed = folder.json(&[
        "pack",
        "disk",
        "--to",
        "a.rwi",
        "--sign",
        "images.key",
        "--chunk-size",
        "256KiB",
    ]);
    assert_eq!(packed["chunks"], 16);
    let text = folder.run(&["inspect", "a.rwi"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("name         a\n") && text.contains("chunks       16 of 262 KB\n"),
        "{text}"
    );
    let found = folder.json(&["inspect", "a.rwi", "--chunks"]);
    assert_eq!(found["root"], packed["root"]);
    assert_eq!(found["zero_bytes"], 4_048_576 - 3_002_368);
    assert_eq!(found["chunks"].as_array().unwrap().len(), 16);
    assert_eq!(found["chunks"][15]["codec"], "empty");
    let public = fs::read_to_string(folder.path("images.pub")).unwrap();
    assert!(public.trim().ends_with(found["signed_by"].as_str().unwrap()));
    let verified = folder.run(&["verify", "a.rwi", "--key", "images.pub"]);
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    assert!(one_line(&verified.stdout).contains("all 16 chunks are correct"));
    let other = folder.fails(1, &["verify", "a.rwi", "--key", "other.pub"]);
    assert!(other.contains("it is signed by another key"), "{other}");
    let other = folder.fails(1, &["unpack", "a.rwi", "--to", "copy", "--key", "other.pub"]);
    assert!(other.contains("it is signed by another key") && !folder.path("copy").exists());
    let wrong = folder.fails(2, &["verify", "a.rwi", "--key", "images.key"]);
    assert!(wrong.contains("images.key is not a key file"), "{wrong}");
    for written in [16, 0] {
        let document = folder.json(&["unpack", "a.rwi", "--to", "copy", "--key", "images.pub"]);
        assert_eq!(document["written_chunks"], written);
        assert!(folder.same("copy", "disk"));
    }
    let exists = folder.fails(2, &["pack", "disk", "--to", "a.rwi"]);
    assert!(exists.contains("a.rwi exists already: use --overwrite"), "{exists}");
}

#[test]
fn verify_names_the_first_bad_chunk() {
    let folder = Folder::new(3_000_000);
    folder.json(&["pack", "disk", "--to", "a.rwi", "--chunk-size", "1MiB"]);
    let file = File::options().write(true).open(folder.path("a.rwi")).unwrap();
    file.write_all_at(b"wrong", 1_500_000).unwrap();
    file.write_all_at(b"wrong", 2_500_000).unwrap();
    let sentence =
        "error: chunk 1 of a.rwi: it is damaged: its bytes do not have the hash in the index";
    assert_eq!(folder.fails(1, &["verify", "a.rwi"]), sentence);
    assert_eq!(folder.fails(1, &["unpack", "a.rwi", "--to", "copy"]), sentence);
    assert!(!folder.path("copy").exists());
    file.set_len(2_000_000).unwrap();
    let sentence = folder.fails(1, &["verify", "a.rwi"]);
    assert!(sentence.contains("it is truncated or has been appended to"), "{sentence}");
    let sentence = folder.fails(1, &["inspect", "disk"]);
    assert!(sentence.starts_with("error: disk is not an image: `rackweave image pack`"));
    let sentence = folder.fails(1, &["inspect", "none"]);
    assert!(sentence.starts_with("error: cannot read none: "), "{sentence}");
}

#[test]
fn a_disk_in_another_format_is_not_packed_as_one() {
    let folder = Folder::new(1_000_000);
    let write = |name: &str, mark: &[u8]| {
        fs::write(folder.path(name), [mark, &[7; 5000]].concat()).unwrap();
    };
    write("vm.img", b"QFI\xfb\0\0\0\x03");
    write("disk.img", b"\x1f\x8b\x08\0");
    let sentence = folder.fails(2, &["pack", "vm.img", "--to", "a.rwi"]);
    assert!(sentence.contains("vm.img is a qcow2 disk, not the disk itself"), "{sentence}");
    assert!(sentence.contains("`qemu-img convert -O raw vm.img disk.img`"), "{sentence}");
    let sentence = folder.fails(2, &["pack", "disk.img", "--to", "a.rwi"]);
    assert!(sentence.contains("`gunzip -c < disk.img > raw.img`"), "{sentence}");
    folder.json(&["pack", "vm.img", "--raw", "--to", "a.rwi"]);
    let sentence = folder.fails(2, &["pack", "a.rwi", "--to", "b.rwi"]);
    assert!(sentence.contains("`rackweave image unpack a.rwi --to disk.img`"), "{sentence}");
    for command in [["unpack", "vm.img", "--to", "x"].as_slice(), &["verify", "vm.img"]] {
        let sentence = folder.fails(1, command);
        assert!(sentence.contains("not an image, but a qcow2 disk: `rackweave image pack`"));
    }
    assert!(folder.fails(2, &["serve", "vm.img"]).contains("but a qcow2 disk"));
}

/// Runs a script in a mount namespace where `small` is a disk of 3 MiB.
fn on_a_small_disk(folder: &Folder, script: &str) -> String {
    fs::create_dir(folder.path("small")).unwrap();
    let script = format!("mount -t tmpfs -o size=3m none small; rw=\"$0 image\"; {script}");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script, COMMAND]).current_dir(folder.0.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    one_line(&[output.stdout, output.stderr].concat())
}

#[test]
fn a_full_disk_leaves_no_image() {
    rackweave_testing::needs!(SysAdmin);
    let folder = Folder::new(6_000_000);
    let found =
        on_a_small_disk(&folder, "$rw pack disk --to small/a.rwi; echo code=$?; ls -A small");
    assert!(found.starts_with("code=1 error: the disk is full: cannot write "), "{found}");
    assert!(
        found.contains("small/a.rwi.part, and ") && found.ends_with(" bytes are free"),
        "{found}"
    );
}

#[test]
fn a_target_on_a_full_disk_is_completed_when_there_is_room() {
    rackweave_testing::needs!(SysAdmin);
    let folder = Folder::new(6_000_000);
    folder.json(&["pack", "disk", "--to", "a.rwi", "--chunk-size", "256KiB"]);
    let script = "$rw unpack a.rwi --to small/copy 2>&1; echo code=$?; ls -A small; \
        mount -o remount,size=20m small; $rw unpack a.rwi --to small/copy --json > report; \
        echo code=$?; ls -A small; cmp disk small/copy && echo same";
    let found = on_a_small_disk(&folder, script);
    assert!(found.contains("the disk is full: cannot write "), "{found}");
    let rest = "code=1 copy.part copy.part.chunks code=0 copy same";
    assert!(found.ends_with(rest), "{found}");
    let report: Value = serde_json::from_slice(&fs::read(folder.path("report")).unwrap()).unwrap();
    let written = report["written_chunks"].as_u64().unwrap();
    assert!((10..=20).contains(&written), "{report}");
}

#[test]
fn packing_that_is_interrupted_leaves_nothing() {
    let folder = Folder::new(24_000_000);
    let arguments = ["pack", "disk", "--to", "a.rwi", "--level", "22", "--threads", "1"];
    let mut child = folder.command(&arguments).stderr(Stdio::null()).spawn().unwrap();
    interrupt_after(&child, Duration::from_millis(200));
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(130));
    assert_eq!(folder.names(), ["disk"]);
}

fn has_grown(path: &Path, beyond: u64) -> bool {
    path.metadata().is_ok_and(|found| found.len() > beyond)
}

#[test]
fn what_is_killed_can_be_repeated() {
    let folder = Folder::new(24_000_000);
    let pack = ["pack", "disk", "--to", "a.rwi", "--level", "19", "--chunk-size", "64KiB"];
    let mut child = folder.command(&pack).stdout(Stdio::null()).spawn().unwrap();
    until("it packs", || has_grown(&folder.path("a.rwi.part"), 500_000));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(folder.names(), ["a.rwi.part", "disk"]);
    folder.json(&pack);
    let again =
        ["pack", "disk", "--to", "b.rwi", "--name", "a", "--level", "19", "--chunk-size", "64KiB"];
    folder.json(&again);
    assert!(folder.same("a.rwi", "b.rwi"));
    // Large enough that an attempt does not end between two looks at what it has written.
    let folder = Folder::new(160_000_000);
    folder.json(&["pack", "disk", "--to", "a.rwi", "--level", "1", "--chunk-size", "64KiB"]);
    // The last attempt may be complete before it is killed.
    let mut resumed = false;
    for _ in 0..20 {
        let unpack = ["unpack", "a.rwi", "--to", "copy"];
        let mut child = folder.command(&unpack).stdout(Stdio::null()).spawn().unwrap();
        until("it unpacks", || {
            has_grown(&folder.path("copy.part.chunks"), 160) || folder.path("copy").exists()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        if folder.path("copy").exists() {
            fs::remove_file(folder.path("copy")).unwrap();
            nap();
            continue;
        }
        let report = folder.json(&unpack);
        let (written, all) = (report["written_chunks"].as_u64(), report["chunks"].as_u64());
        resumed = written < all && written > Some(0);
        assert!(folder.same("copy", "disk"));
        if resumed {
            break;
        }
        // It was killed before its first record, or after its last.
        fs::remove_file(folder.path("copy")).unwrap();
    }
    assert!(resumed, "no attempt was killed in the middle");
    assert!(folder.names().iter().all(|name| !name.contains(".part")));
}

#[test]
fn names_of_any_bytes_are_reported_and_not_obeyed() {
    let folder = Folder::new(100_000);
    let name = OsStr::from_bytes(b"a\xff\x1b[31m.rwi");
    let run = |arguments: &[&OsStr]| {
        let output = folder.command(&[]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{output:?}");
        output.stdout
    };
    let copy = OsStr::from_bytes(b"copy\xff\x1b");
    let commands: [&[&OsStr]; 4] = [
        &["pack", "disk", "--name", "a", "--overwrite", "--to"].map(OsStr::new),
        &[OsStr::new("inspect")],
        &[OsStr::new("verify")],
        &["unpack", "--to"].map(OsStr::new),
    ];
    for (at, command) in commands.into_iter().enumerate() {
        let all: Vec<_> = if at == 3 { vec![copy, name] } else { vec![name] };
        let arguments = [command, &all].concat();
        run(&arguments);
        let document = run(&[&arguments[..], &[OsStr::new("--json")]].concat());
        serde_json::from_slice::<Value>(&document).unwrap();
    }
    let output = folder.command(&["verify"]).arg(copy).output().unwrap();
    assert!(!output.stderr.contains(&0x1b), "{output:?}");
}

#[test]
fn new_files_are_as_private_as_the_umask_requires() {
    let folder = Folder::new(100_000);
    let script =
        "umask 027; \"$0\" image pack disk --to a.rwi -q && \"$0\" image unpack a.rwi --to copy -q";
    let mut command = Command::new("sh");
    let done = command.args(["-c", script, COMMAND]).current_dir(folder.0.path()).status();
    assert!(done.unwrap().success());
    for name in ["a.rwi", "copy"] {
        assert_eq!(folder.path(name).metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }
}

#[test]
fn the_length_that_a_file_of_holes_claims_is_not_fatal() {
    let folder = Folder::new(100_000);
    folder.json(&["pack", "disk", "--to", "a.rwi"]);
    let mut header = fs::read(folder.path("a.rwi")).unwrap()[..512].to_vec();
    let (chunks, index) = (1_u32 << 23, 900_u64 << 20);
    header[12..16].copy_from_slice(&65_536_u32.to_le_bytes());
    header[16..24].copy_from_slice(&(u64::from(chunks) * 65_536).to_le_bytes());
    header[24..28].copy_from_slice(&chunks.to_le_bytes());
    header[32..40].copy_from_slice(&512_u64.to_le_bytes());
    header[40..48].copy_from_slice(&index.to_le_bytes());
    fs::write(folder.path("a.rwi"), &header).unwrap();
    File::options()
        .write(true)
        .open(folder.path("a.rwi"))
        .unwrap()
        .set_len(512 + index + 144)
        .unwrap();
    let script = "ulimit -v 600000; \"$0\" image verify a.rwi";
    let mut command = Command::new("sh");
    let output =
        command.args(["-c", script, COMMAND]).current_dir(folder.0.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(one_line(&output.stderr).contains("cannot read a.rwi: out of memory"), "{output:?}");
}
