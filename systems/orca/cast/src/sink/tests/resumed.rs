//! A stream of several files that goes on: what was complete is checked against the disk and against the sender.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::{big, bytes_of, config};
use crate::format::{CHUNK, FileHeader, RecordKind};
use crate::sink::{Drain, Folder, FolderConfig, MakeSink, Sink, SinkError, SinkWork, state};
use crate::source::{Files, Source};
use crate::store::disk::Reading;
use crate::store::{Cancel, Dir, StoreError, UntilCancelled};
use crate::wake::Waker;
use rackweave_wire::orca::Reason;

/// The lengths of the files of [`tree`]. All but the last one arrive in the first attempt.
const TREE: [(&str, usize); 4] =
    [("d/a", CHUNK + 7), ("d/b", 3 * CHUNK), ("d/c", 10), ("d/e", 2 * CHUNK)];

/// Writes the files of a directory; `seed` changes their content, and nothing else.
fn tree(from: &Path, seed: u8) -> Files {
    std::fs::create_dir_all(from.join("d")).unwrap();
    for (name, len) in TREE {
        let bytes: Vec<u8> = big(len).iter().map(|byte| byte ^ seed).collect();
        std::fs::write(from.join(name), bytes).unwrap();
        let file = std::fs::File::options().write(true).open(from.join(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(7)).unwrap();
    }
    let file = std::fs::File::open(from.join("d")).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(7)).unwrap();
    Files::new(&[from.join("d")]).unwrap()
}

/// Receives a stream until it is complete, in at most `most` attempts, as the sender of an `Again` repeats it.
fn receive_again(config: &FolderConfig, source: &mut Files, most: usize) -> Result<(), SinkError> {
    let bytes = bytes_of(source, 0);
    for _ in 0..most {
        let mut sink = Folder::new(config.clone(), source.stream())?;
        match sink.put(&bytes[sink.begins_at() as usize..]) {
            Err(SinkError::Again(_)) => {}
            result => {
                assert_eq!(sink.is_complete(), result.is_ok());
                return result;
            }
        }
    }
    panic!("it is not complete after {most} attempts")
}

fn assert_tree(at: &Path, seed: u8) {
    for (name, len) in TREE {
        let bytes: Vec<u8> = big(len).iter().map(|byte| byte ^ seed).collect();
        assert!(at.join(name).symlink_metadata().unwrap().is_file(), "{name}");
        assert!(std::fs::read(at.join(name)).unwrap() == bytes, "{name}");
    }
    assert_eq!(std::fs::read_dir(at).unwrap().count(), 1, "no state is left");
}

/// An attempt is interrupted in the last file; then one of the files that were complete is not what it was.
#[test]
fn complete_files_of_an_earlier_attempt_are_checked_before_it_goes_on() {
    let from = tempfile::tempdir().unwrap();
    let mut source = tree(from.path(), 0);
    let (bytes, stream) = (bytes_of(&mut source, 0), source.stream());
    let interrupted = || {
        let to = tempfile::tempdir().unwrap();
        let mut sink = Folder::new(config(to.path()), stream).unwrap();
        sink.put(&bytes[..bytes.len() - CHUNK]).unwrap();
        assert_eq!(sink.files().len(), 3);
        to
    };
    let kept = interrupted();
    let whole = Folder::new(config(kept.path()), stream).unwrap().begins_at();
    assert!(whole as usize > 4 * CHUNK, "nothing that is there is sent again");
    type Damage = fn(&Path);
    let removed: Damage = |path| std::fs::remove_file(path).unwrap();
    let changed: Damage = |path| {
        let time = path.metadata().unwrap().modified().unwrap();
        let mut there = std::fs::read(path).unwrap();
        there[0] ^= 1;
        std::fs::write(path, there).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(time).unwrap();
    };
    let shortened: Damage = |path| {
        std::fs::File::options().write(true).open(path).unwrap().set_len(5).unwrap();
    };
    let link: Damage = |path| {
        let aside = path.parent().unwrap().parent().unwrap().join("aside");
        std::fs::rename(path, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, path).unwrap();
    };
    let directory: Damage = |path| {
        std::fs::remove_file(path).unwrap();
        std::fs::create_dir(path).unwrap();
    };
    for (name, _) in &TREE[..3] {
        for (what, damage) in [
            ("removed", removed),
            ("changed", changed),
            ("shortened", shortened),
            ("link", link),
            ("directory", directory),
        ] {
            let to = interrupted();
            damage(&to.path().join(name));
            let sink = Folder::new(config(to.path()), stream);
            assert!(sink.is_ok_and(|sink| sink.begins_at() < whole), "{name} {what}");
            let again = &mut source;
            let result = receive_again(&config(to.path()), again, 1);
            if what == "removed" {
                result.unwrap();
                assert_tree(to.path(), 0);
                continue;
            }
            let error = result.unwrap_err().to_string();
            assert!(error.contains(name), "{name} {what}: {error}");
            let overwrite = FolderConfig { overwrite: true, ..config(to.path()) };
            let result = receive_again(&overwrite, again, 3);
            if what == "directory" {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("is a directory"), "{name}: {error}");
                continue;
            }
            result.unwrap();
            let _ = std::fs::remove_file(to.path().join("aside"));
            assert_tree(to.path(), 0);
        }
    }
    // All at once, as with `rm -rf DIR/*`, and a directory that is a link.
    let to = interrupted();
    std::fs::remove_dir_all(to.path().join("d")).unwrap();
    receive_again(&config(to.path()), &mut source, 1).unwrap();
    assert_tree(to.path(), 0);
    let to = interrupted();
    std::fs::rename(to.path().join("d"), to.path().join("aside")).unwrap();
    std::os::unix::fs::symlink(to.path().join("aside"), to.path().join("d")).unwrap();
    let error = receive_again(&config(to.path()), &mut source, 1).unwrap_err();
    assert!(matches!(error, SinkError::Store(StoreError::NotDirectory(_))), "{error}");
}

/// The sender's files were made once more between two attempts, with the same names, lengths and times: the stream has the
/// same number.
#[test]
fn complete_files_of_an_earlier_attempt_are_compared_with_the_senders() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut source = tree(from.path(), 0);
    let (stream, bytes) = (source.stream(), bytes_of(&mut source, 0));
    for overwrite in [false, true] {
        let config = FolderConfig { overwrite, ..config(&to.path().join(overwrite.to_string())) };
        let mut sink = Folder::new(config.clone(), stream).unwrap();
        // The last file has begun, and none of its chunks is whole.
        sink.put(&bytes[..bytes.len() - 2 * CHUNK]).unwrap();
        drop(sink);
        let mut other = tree(from.path(), 1);
        assert_eq!(other.stream(), stream);
        let result = receive_again(&config, &mut other, 10);
        if overwrite {
            result.unwrap();
            assert_tree(&config.folder, 1);
        } else {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("d/a exists already"), "{error}");
        }
    }
}

/// A file of a sender is no state of another sender's stream.
#[test]
fn a_sender_cannot_write_the_state_of_a_stream() {
    let to = tempfile::tempdir().unwrap();
    let name = String::from_utf8(state::name(7).into_encoded_bytes()).unwrap();
    for (path, accepted) in
        [(name.clone(), false), (format!("d/{name}"), false), (format!("d{name}"), true)]
    {
        let mut stream = Vec::new();
        crate::format::start(&mut stream);
        let path = path.into_bytes();
        let (length, mode, mtime_s, mtime_ns) = (Some(1), 0o644, 0, 0);
        let header = FileHeader {
            attributes: None,
            owner: None,
            path,
            kind: RecordKind::File,
            length,
            mode,
            mtime_s,
            mtime_ns,
        };
        crate::format::file(&header, &mut stream);
        let mut sink = Folder::new(config(to.path()), 9).unwrap();
        assert_eq!(sink.put(&stream).is_ok(), accepted);
    }
    assert!(!to.path().join(&name).exists());
    assert!(matches!(
        Files::new(&[{
            std::fs::write(to.path().join(&name), b"x").unwrap();
            to.path().join(&name)
        }]),
        Err(crate::source::SourceError::NoName { .. })
    ));
}

/// A file so long that hashing it takes minutes, but takes no room.
const SPARSE: u64 = 1 << 40;

fn sparse(path: &Path) {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(SPARSE).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(7)).unwrap();
}

/// Starts a sink that hashes something long, ends its input, and waits for it.
#[expect(clippy::disallowed_methods, reason = "a thread that reads a disk is waited for")]
fn ends_when_closed(config: &FolderConfig, stream: u128, begin: &[u8]) {
    let waker = Waker::new().unwrap();
    let into = config.clone();
    let make: MakeSink = Box::new(move |cancel| {
        let config = FolderConfig { cancel: cancel.clone(), ..into };
        Folder::new(config, stream).map(|folder| Box::new(folder) as Box<dyn Sink>)
    });
    let mut drain = Drain::new(make, 1 << 20, waker);
    drain.begin(SinkWork::start).unwrap();
    let mut checks = 0;
    if !begin.is_empty() {
        while !drain.is_ready() {
            std::thread::sleep(Duration::from_millis(1));
        }
        checks = drain.progress();
        assert!(drain.put(0, begin));
        drain.advance(begin.len() as u64, true);
    }
    let began = Instant::now();
    // Whoever hashes asks after each block whether to go on.
    while drain.progress() < checks + 10 {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not hash");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!drain.is_ready() || !begin.is_empty(), "it hashes");
    let began = Instant::now();
    drain.close();
    while !drain.has_ended() {
        // Hashing all of it takes minutes.
        assert!(began.elapsed() < Duration::from_secs(60), "it goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(drain.outcome().0, Some(SinkError::Store(StoreError::Cancelled(_)))));
}

/// Whatever is hashed, that ends with the transfer, and what was recorded is kept.
#[test]
fn hashing_ends_with_the_transfer() {
    let stream = 7 << 64;
    let header = FileHeader {
        attributes: None,
        owner: None,
        path: b"big".to_vec(),
        kind: RecordKind::File,
        length: Some(SPARSE),
        mode: 0o644,
        mtime_s: 7,
        mtime_ns: 0,
    };
    // All of it is sent, and the first chunk arrives.
    let mut begin = Vec::new();
    crate::format::start(&mut begin);
    crate::format::file(&header, &mut begin);
    begin.extend_from_slice(&crate::format::chunk_front(CHUNK as u32));
    begin.extend_from_slice(&[0; CHUNK]);
    begin.extend_from_slice(&crate::format::tree::chunk_hash(0, &[0; CHUNK]).0);
    // A file that may be the one that is sent.
    let to = tempfile::tempdir().unwrap();
    sparse(&to.path().join("big"));
    ends_when_closed(&config(to.path()), stream, &begin[..200]);
    // A file that an earlier attempt has left incomplete: its table says of every block that it may be there.
    let to = tempfile::tempdir().unwrap();
    let mut sink = Folder::new(config(to.path()), stream).unwrap();
    sink.put(&begin).unwrap();
    drop(sink);
    let part = std::fs::File::options().write(true).open(to.path().join("big.part")).unwrap();
    part.set_len(SPARSE).unwrap();
    let table = to.path().join(state::table_name(b"big"));
    let mut entries = std::fs::read(&table).unwrap();
    entries.resize(entries.len() + 32 * 200_000, 1);
    std::fs::write(&table, &entries).unwrap();
    ends_when_closed(&config(to.path()), stream, &[]);
    assert!(std::fs::read(&table).unwrap() == entries);
    // A file that an earlier attempt has completed.
    let to = tempfile::tempdir().unwrap();
    let dir = Dir::open(to.path()).unwrap();
    let mut recorded = state::State::create(&dir, stream).unwrap();
    let place = state::Place { at: 5000, files: 1, bytes: SPARSE };
    recorded.done(&header, &[7; 32], place).unwrap();
    drop(recorded);
    sparse(&to.path().join("big"));
    let before = names(to.path());
    ends_when_closed(&config(to.path()), stream, &[]);
    assert_eq!(names(to.path()), before, "the state is kept");
    // A file of holes only, whose zeros are hashed.
    let to = tempfile::tempdir().unwrap();
    let kind = RecordKind::WithHoles(crate::format::Extents::new(std::iter::empty()));
    begin.clear();
    crate::format::start(&mut begin);
    crate::format::file(&FileHeader { kind, ..header }, &mut begin);
    begin.push(4); // the tag of the end of the file
    ends_when_closed(&config(to.path()), stream, &begin);
}

/// The files of a directory with their lengths.
fn names(at: &Path) -> BTreeMap<String, u64> {
    let all = std::fs::read_dir(at).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
    });
    all.collect()
}

/// Each file that differs ends an attempt. If the next one hashed what is before it once more, that would take time that grows with the
/// square of their number.
#[test]
fn files_that_differ_are_replaced_without_hashing_the_others_again() {
    const FILES: usize = 6;
    // Shorter ones are not compared.
    const LEN: usize = 9 << 20;
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for at in [from.path(), to.path()] {
        std::fs::create_dir(at.join("d")).unwrap();
    }
    let content = big(LEN);
    for file in 0..FILES {
        let name = format!("d/{file}");
        std::fs::write(from.path().join(&name), &content).unwrap();
        let mut there = content.clone();
        there[file] ^= 1;
        std::fs::write(to.path().join(&name), there).unwrap();
    }
    let mut source = Files::new(&[from.path().join("d")]).unwrap();
    let cancel = Cancel::new();
    let overwrite = FolderConfig { overwrite: true, cancel: cancel.clone(), ..config(to.path()) };
    let once = {
        let found =
            Dir::open(to.path()).unwrap().entry("d/0".as_ref()).open_read().unwrap().unwrap();
        let before = cancel.checks();
        let reading = UntilCancelled(Reading(&*found, 0), &cancel);
        blake3::Hasher::new().update_reader(reading).unwrap();
        cancel.checks() - before
    };
    let before = cancel.checks();
    receive_again(&overwrite, &mut source, FILES + 1).unwrap();
    let hashed = cancel.checks() - before;
    assert!(hashed < (FILES as u64 + 1) * once, "{hashed} reads, {once} for each file");
    for file in 0..FILES {
        assert!(std::fs::read(to.path().join(format!("d/{file}"))).unwrap() == content);
    }
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 1, "no state is left");
}

/// Nothing is taken over from an attempt that has failed, since its files may have failed with it.
#[test]
fn an_attempt_after_a_failure_hashes_everything() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut source = tree(from.path(), 0);
    let bytes = bytes_of(&mut source, 0);
    let config = config(to.path());
    let mut sink = Folder::new(config.clone(), source.stream()).unwrap();
    sink.put(&bytes[..bytes.len() - CHUNK]).unwrap();
    drop(sink);
    std::fs::write(to.path().join("d/a"), b"another").unwrap();
    let sink = Folder::new(config, source.stream()).unwrap();
    assert!(sink.begins_at() < CHUNK as u64);
}

/// An attempt has found another file in place of the one that is sent, and the next one ends before its first byte: whoever compared
/// the file once more would ask a sender for bytes that a pipe has given back, each time.
#[test]
fn a_file_that_was_found_to_differ_is_not_compared_again_after_an_attempt_without_a_byte() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (at, seed) in [(&from, 0), (&to, 1)] {
        drop(tree(at.path(), seed));
    }
    let (from, to) = (from.path().join("d"), to.path().join("d"));
    let mut source = Files::new(&[from.join("b")]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let overwrite = FolderConfig { overwrite: true, ..config(&to) };
    let mut sink = Folder::new(overwrite.clone(), source.stream()).unwrap();
    assert!(matches!(sink.put(&bytes), Err(SinkError::Again(_))));
    drop(sink);
    for _ in 0..2 {
        let mut sink = Folder::new(overwrite.clone(), source.stream()).unwrap();
        assert!(sink.begins_at() > 0);
        sink.interrupted(Reason::Refused);
    }
    assert!(!to.join("b.part").exists());
    receive_again(&overwrite, &mut source, 1).unwrap();
    assert!(std::fs::read(to.join("b")).unwrap() == std::fs::read(from.join("b")).unwrap());
    assert_eq!(std::fs::read_dir(&to).unwrap().count(), TREE.len(), "no state is left");
}
