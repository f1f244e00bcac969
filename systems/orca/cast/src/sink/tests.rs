mod attributes;
mod deletions;
mod drain;
mod holes;
mod links;
mod parts;
mod resumed;
mod synced;
mod unprivileged;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::format::{CHUNK, RecordKind};
use crate::source::{Files, Payload, Source};
use crate::store::fault::FAULT;

fn bytes_of(source: &mut Files, from: u64) -> Vec<u8> {
    let end = source.end().unwrap();
    let mut out = Vec::new();
    let mut at = from;
    while at < end {
        let len = (end - at).min(100_000) as usize;
        let mut payload = Payload::new();
        while let Err(error) = source.read(at, len, &mut payload) {
            assert!(matches!(error, crate::source::SourceError::NotYet(_)), "{error}");
            payload.clear();
            while source.work() {}
        }
        for bytes in payload {
            out.extend_from_slice(&bytes);
        }
        at += len as u64;
    }
    out
}

fn config(folder: &Path) -> FolderConfig {
    FolderConfig { folder: folder.to_owned(), ..FolderConfig::default() }
}

fn big(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ (i / 100_000) as u8).collect()
}

/// A sender whose standard input cannot be read has begun a file and sends nothing of it.
#[test]
fn a_file_that_never_had_a_byte_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let names = |at: &Path| std::fs::read_dir(at).unwrap().count();
    for length in [None, Some(5), Some(3 * CHUNK as u64)] {
        let path = b"x".to_vec();
        let header = FileHeader {
            attributes: None,
            owner: None,
            path,
            kind: RecordKind::File,
            length,
            mode: 0o644,
            mtime_s: 1,
            mtime_ns: 0,
        };
        let mut bytes = Vec::new();
        crate::format::start(&mut bytes);
        crate::format::file(&header, &mut bytes);
        let mut sink = Folder::new(config(folder.path()), 1).unwrap();
        sink.put(&bytes).unwrap();
        assert!(names(folder.path()) > 0);
        sink.interrupted(Reason::Refused);
        drop(sink);
        assert_eq!(names(folder.path()), 0, "{length:?}");
        // What has a byte stays.
        bytes.extend_from_slice(&crate::format::chunk_front(5));
        bytes.push(7);
        let mut sink = Folder::new(config(folder.path()), 1).unwrap();
        if length != Some(3 * CHUNK as u64) {
            sink.put(&bytes).unwrap();
            sink.interrupted(Reason::Refused);
            assert_eq!(std::fs::read(folder.path().join("x.part")).unwrap(), [7]);
            std::fs::remove_file(folder.path().join("x.part")).unwrap();
        }
    }
}

#[test]
fn files_arrive_with_names_modes_and_times() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(from.path().join("d")).unwrap();
    std::fs::write(from.path().join("d/x"), big(3 * CHUNK + 5)).unwrap();
    std::fs::write(from.path().join("d/y"), b"y").unwrap();
    std::fs::set_permissions(from.path().join("d/y"), PermissionsExt::from_mode(0o750)).unwrap();
    let mut source = Files::new(&[from.path().join("d")]).unwrap();
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    for piece in bytes_of(&mut source, 0).chunks(1424) {
        assert!(!sink.is_complete());
        sink.put(piece).unwrap();
    }
    assert!(sink.is_complete());
    assert_eq!(sink.files().len(), 2);
    assert_eq!(std::fs::read(to.path().join("d/x")).unwrap(), big(3 * CHUNK + 5));
    for name in ["d", "d/x", "d/y"] {
        let meta = |folder: &Path| folder.join(name).metadata().unwrap();
        let (was, is) = (meta(from.path()), meta(to.path()));
        assert_eq!(was.modified().unwrap(), is.modified().unwrap());
        assert_eq!(was.permissions(), is.permissions());
    }
    // No other file is left, and no file is replaced by another one without `overwrite`.
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 1);
    let again = bytes_of(&mut source, 0);
    std::fs::write(to.path().join("d/y"), b"z").unwrap();
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    assert!(matches!(sink.put(&again), Err(SinkError::Store(StoreError::Exists(_)))));
    assert_eq!(std::fs::read(to.path().join("d/y")).unwrap(), b"z");
    let overwrite = FolderConfig { overwrite: true, ..config(to.path()) };
    let mut sink = Folder::new(overwrite, source.stream()).unwrap();
    // The first file was found to be the same, which the state records.
    assert!(sink.begins_at() > 3 * CHUNK as u64);
    sink.put(&again[sink.begins_at() as usize..]).unwrap();
    assert!(sink.is_complete());
    assert_eq!(std::fs::read(to.path().join("d/y")).unwrap(), b"y");
}

#[test]
fn files_that_are_there_already_are_not_needed_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(from.path().join("d")).unwrap();
    for (name, len) in [("a", 3 * CHUNK + 5), ("b", 0), ("c", 10)] {
        std::fs::write(from.path().join("d").join(name), big(len)).unwrap();
    }
    std::fs::create_dir(to.path().join("d")).unwrap();
    for name in ["a", "b"] {
        std::fs::copy(from.path().join("d").join(name), to.path().join("d").join(name)).unwrap();
    }
    let mut source = Files::new(&[from.path().join("d")]).unwrap();
    let stream = bytes_of(&mut source, 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    // The first file's chunks are omitted from the second one on, as the engine does.
    let (mut at, mut omitted) = (0, 0);
    while at < stream.len() {
        if let Some(needs) = sink.needs_from()
            && at > CHUNK
        {
            sink.omit_rest();
            (omitted, at) = (omitted + needs as usize - at, needs as usize);
            continue;
        }
        let end = stream.len().min(at + 1000);
        sink.put(&stream[at..end]).unwrap();
        at = end;
    }
    assert!(sink.is_complete() && omitted > CHUNK, "{omitted}");
    assert_eq!(sink.files().len(), 3);
    assert_eq!(sink.files()[0].hash, *blake3::hash(&big(3 * CHUNK + 5)).as_bytes());
    let meta = |folder: &Path| folder.join("d/a").metadata().unwrap().modified().unwrap();
    assert_eq!(meta(from.path()), meta(to.path()));
    for (name, len) in [("a", 3 * CHUNK + 5), ("b", 0), ("c", 10)] {
        assert_eq!(std::fs::read(to.path().join("d").join(name)).unwrap(), big(len));
    }
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_only_looks_the_same_is_received_at_the_next_attempt() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (path, copy) = (from.path().join("x"), to.path().join("x"));
    std::fs::write(&path, big(2 * CHUNK)).unwrap();
    std::fs::write(&copy, vec![1; 2 * CHUNK]).unwrap();
    let time = path.metadata().unwrap().modified().unwrap();
    let file = std::fs::File::options().write(true).open(&copy).unwrap();
    file.set_modified(time).unwrap();
    let mut source = Files::new(&[path]).unwrap();
    let overwrite = FolderConfig { overwrite: true, ..config(to.path()) };
    let stream = bytes_of(&mut source, 0);
    let mut sink = Folder::new(overwrite.clone(), source.stream()).unwrap();
    assert!(matches!(sink.put(&stream), Err(SinkError::Again(_))));
    let mut sink = Folder::new(overwrite, source.stream()).unwrap();
    let at = sink.begins_at();
    assert!(at > 0);
    sink.put(&stream[at as usize..]).unwrap();
    assert!(sink.is_complete());
    assert_eq!(std::fs::read(&copy).unwrap(), big(2 * CHUNK));
}

/// Two files that differ in their times only, with `overwrite`: the large one is compared, the small one is received.
#[test]
fn a_large_file_with_another_time_is_compared_before_it_is_overwritten() {
    use std::os::unix::fs::MetadataExt as _;
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let lengths = [("x", 9 * CHUNK + 3), ("y", 2 * CHUNK)];
    for (name, len) in lengths {
        std::fs::write(from.path().join(name), big(len)).unwrap();
        std::fs::write(to.path().join(name), big(len)).unwrap();
        let file = std::fs::File::options().write(true).open(from.path().join(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(7)).unwrap();
    }
    let there = |name: &str| to.path().join(name).metadata().unwrap();
    let before = ["x", "y"].map(|name| there(name).ino());
    let mut source = Files::new(&lengths.map(|(name, _)| from.path().join(name))).unwrap();
    let overwrite = FolderConfig { overwrite: true, ..config(to.path()) };
    let stream = bytes_of(&mut source, 0);
    let mut sink = Folder::new(overwrite.clone(), source.stream()).unwrap();
    sink.put(&stream[..100]).unwrap();
    let needs = sink.needs_from().unwrap();
    assert!(needs > 9 * CHUNK as u64, "nothing of the large file is needed");
    sink.put(&stream[100..]).unwrap();
    assert!(sink.is_complete());
    assert_eq!(there("x").ino(), before[0], "it stays");
    assert_ne!(there("y").ino(), before[1], "it is received");
    for (name, len) in lengths {
        assert_eq!(std::fs::read(to.path().join(name)).unwrap(), big(len));
        assert_eq!(there(name).mtime(), 7);
    }
    // Another content is found by the hash, and then received.
    std::fs::write(to.path().join("x"), vec![1; 9 * CHUNK + 3]).unwrap();
    let mut sink = Folder::new(overwrite.clone(), source.stream()).unwrap();
    assert!(matches!(sink.put(&stream), Err(SinkError::Again(_))));
    let mut sink = Folder::new(overwrite, source.stream()).unwrap();
    sink.put(&stream[sink.begins_at() as usize..]).unwrap();
    assert!(sink.is_complete());
    assert_eq!(std::fs::read(to.path().join("x")).unwrap(), big(9 * CHUNK + 3));
}

/// Files that are there already need no room on a full disk; the one that has none is named with what it needs.
#[test]
fn a_full_disk_holds_what_is_there_already() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(from.path().join("d")).unwrap();
    std::fs::create_dir(to.path().join("d")).unwrap();
    let lengths = [("d/a", 3 * CHUNK), ("d/b", 2 * CHUNK), ("d/c", CHUNK), ("d/e", 4 * CHUNK)];
    for (name, len) in lengths {
        std::fs::write(from.path().join(name), big(len)).unwrap();
    }
    for name in ["d/a", "d/c"] {
        std::fs::copy(from.path().join(name), to.path().join(name)).unwrap();
        let time = from.path().join(name).metadata().unwrap().modified().unwrap();
        let file = std::fs::File::options().write(true).open(to.path().join(name)).unwrap();
        file.set_modified(time).unwrap();
    }
    let mut source = Files::new(&[from.path().join("d")]).unwrap();
    let stream = bytes_of(&mut source, 0);
    let attempt = |limit: usize| {
        let limit = Some(limit as u64);
        let config = FolderConfig { limit, ..config(to.path()) };
        let mut sink = Folder::new(config, source.stream()).unwrap();
        let result = sink.put(&stream[sink.begins_at() as usize..]);
        (result, sink.is_complete(), sink.files().len())
    };
    // There is room for `b` and a quarter of `e`.
    let (result, complete, files) = attempt(3 * CHUNK);
    match result {
        Err(SinkError::Store(StoreError::Full { path, needs, free })) => {
            assert!(path.ends_with("d/e.part"), "{path:?}");
            assert_eq!((needs, free), (Some(3 * CHUNK as u64), Some(0)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((complete, files), (false, 3));
    for (name, len) in &lengths[..3] {
        assert_eq!(std::fs::read(to.path().join(name)).unwrap(), big(*len), "{name}");
    }
    // With room, the same stream goes on behind the present files.
    let (result, complete, _) = attempt(3 * CHUNK);
    result.unwrap();
    assert!(complete);
    assert_eq!(std::fs::read(to.path().join("d/e")).unwrap(), big(4 * CHUNK));
}

#[test]
fn an_interrupted_transfer_goes_on_at_the_last_good_chunk() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("x");
    std::fs::write(&path, big(5 * CHUNK + 5)).unwrap();
    std::fs::write(from.path().join("a"), b"first").unwrap();
    let mut source = Files::new(&[from.path().join("a"), path.clone()]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let chunk = (crate::format::CHUNK_FRONT + CHUNK + crate::format::HASH) as u64;
    let mut last = 0;
    for (cut, damage) in [(2_500_000, None), (4_500_000, None), (5_000_000, Some(2))] {
        let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
        let at = sink.begins_at();
        assert!(at >= last);
        last = at;
        sink.put(&bytes[at as usize..cut]).unwrap();
        assert!(!sink.is_complete());
        drop(sink);
        if let Some(chunk) = damage {
            let part = to.path().join("x.part");
            let mut content = std::fs::read(&part).unwrap();
            content[chunk * CHUNK + 17] ^= 1;
            std::fs::write(part, content).unwrap();
        }
    }
    // Another stream does not use this state.
    assert_eq!(Folder::new(config(to.path()), 1).unwrap().begins_at(), 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    let at = sink.begins_at();
    // Two chunks are correct, the third is not.
    assert!(at > 2 * chunk && at < 3 * chunk, "{at}");
    sink.put(&bytes_of(&mut Files::new(&[from.path().join("a"), path]).unwrap(), at)).unwrap();
    assert!(sink.is_complete());
    assert_eq!(std::fs::read(to.path().join("x")).unwrap(), big(5 * CHUNK + 5));
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 2);
}

#[test]
fn a_damaged_chunk_is_not_kept_and_does_not_get_into_a_pipe() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("x");
    std::fs::write(&path, big(3 * CHUNK)).unwrap();
    let mut source = Files::new(&[path]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let mut damaged = bytes.clone();
    damaged[CHUNK + 5000] ^= 1;
    let is_damage = |result: Result<(), SinkError>| result.is_err_and(|error| error.is_damage());
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    assert!(is_damage(sink.put(&damaged)));
    drop(sink);
    assert!(!to.path().join("x").exists());
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    let at = sink.begins_at() as usize;
    assert!(at > CHUNK && at < CHUNK + 5000, "{at}");
    assert_eq!(to.path().join("x.part").metadata().unwrap().len(), CHUNK as u64);
    sink.put(&bytes[at..]).unwrap();
    assert!(sink.is_complete());
    assert_eq!(std::fs::read(to.path().join("x")).unwrap(), big(3 * CHUNK));
    // Try pieces that are copied, and pieces that are held by reference.
    for piece in [1424, 100_000] {
        let mut out = Vec::new();
        let mut sink = PipeSink::new(&mut out);
        let pieces: Vec<_> = damaged.chunks(piece).map(Bytes::copy_from_slice).collect();
        let first = pieces.iter().position(|piece| is_damage(sink.put_shared(piece))).unwrap();
        assert_eq!(
            first,
            (at + crate::format::CHUNK_FRONT + CHUNK + crate::format::HASH - 1) / piece
        );
        drop(sink);
        assert_eq!(out, big(3 * CHUNK)[..CHUNK]);
    }
}

#[test]
fn a_state_that_is_cut_off_anywhere_does_no_harm() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("x");
    std::fs::write(&path, big(2 * CHUNK + 5)).unwrap();
    let mut source = Files::new(&[path]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes[..2 * CHUNK + 130]).unwrap();
    drop(sink);
    let names = [state::name(source.stream()), state::table_name(b"x")];
    let places = [to.path().join(&names[0]), to.path().join(&names[1]), to.path().join("x.part")];
    let whole = places.each_ref().map(|place| std::fs::read(place).unwrap());
    let mut begins = std::collections::BTreeSet::new();
    for (cut, bytes) in whole.iter().enumerate().take(2) {
        for len in 0..=bytes.len() {
            for (place, bytes) in places.iter().zip(&whole) {
                std::fs::write(place, bytes).unwrap();
            }
            std::fs::write(&places[cut], &bytes[..len]).unwrap();
            begins.insert(Folder::new(config(to.path()), source.stream()).unwrap().begins_at());
        }
    }
    // The positions are the beginning, the file's first byte, after one chunk and after two chunks.
    assert_eq!(begins.len(), 4);
}

#[test]
fn links_are_not_followed_and_a_full_disk_is_said() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(from.path().join("d")).unwrap();
    std::fs::write(from.path().join("d/x"), big(3 * CHUNK)).unwrap();
    let mut source = Files::new(&[from.path().join("d")]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let limit = FolderConfig { limit: Some(2 * CHUNK as u64), ..config(to.path()) };
    let mut sink = Folder::new(limit, source.stream()).unwrap();
    assert!(matches!(sink.put(&bytes), Err(SinkError::Store(StoreError::Full { .. }))));
    assert!(to.path().join("d/x.part").exists() && !to.path().join("d/x").exists());

    let other = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(from.path().join("d"), other.path().join("d")).unwrap();
    let mut sink = Folder::new(config(other.path()), source.stream()).unwrap();
    assert!(matches!(sink.put(&bytes), Err(SinkError::Store(StoreError::NotDirectory(_)))));
}

#[test]
fn one_file_goes_where_it_is_wanted() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["a", "b"] {
        std::fs::write(from.path().join(name), name).unwrap();
    }
    let only = || FolderConfig { only: Some(to.path().join("chosen")), ..config(to.path()) };
    let mut source = Files::new(&[from.path().join("a")]).unwrap();
    let mut sink = Folder::new(only(), source.stream()).unwrap();
    sink.put(&bytes_of(&mut source, 0)).unwrap();
    assert_eq!(std::fs::read(to.path().join("chosen")).unwrap(), b"a");
    let mut source = Files::new(&[from.path().join("a"), from.path().join("b")]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let overwrite = FolderConfig { overwrite: true, ..only() };
    let mut sink = Folder::new(overwrite, source.stream()).unwrap();
    assert!(matches!(sink.put(&bytes), Err(SinkError::Several)));
    let mut out = Vec::new();
    assert!(matches!(PipeSink::new(&mut out).put(&bytes), Err(SinkError::Several)));
}

#[test]
fn a_transfer_killed_while_a_file_is_renamed_resumes_after_it() {
    let from = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..4).map(|i| from.path().join(format!("f{i}"))).collect();
    for (i, path) in paths.iter().enumerate() {
        std::fs::write(path, big(if i == 2 { 2 * CHUNK } else { 100 + i })).unwrap();
    }
    let mut source = Files::new(&paths).unwrap();
    let bytes = bytes_of(&mut source, 0);
    for files in 1..=4 {
        for named in [false, true] {
            let to = tempfile::tempdir().unwrap();
            let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
            let mut at = 0;
            while sink.files().len() < files {
                sink.put(&bytes[at..=at]).unwrap();
                at += 1;
            }
            drop(sink);
            // This is the state after a kill just after the file got its final name, or just before.
            let name = to.path().join(format!("f{}", files - 1));
            if !named {
                std::fs::rename(&name, name.with_extension("part")).unwrap();
            }
            let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
            let begins = sink.begins_at();
            assert!((begins == at as u64) == named, "{files} {named}: {begins} {at}");
            sink.put(&bytes[begins as usize..]).unwrap();
            assert!(sink.is_complete());
            for (i, path) in paths.iter().enumerate() {
                let there = std::fs::read(to.path().join(format!("f{i}"))).unwrap();
                assert!(there == std::fs::read(path).unwrap(), "{files} {named} f{i}");
            }
        }
    }
}

#[test]
fn what_became_another_file_meanwhile_fails_once_only() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("x");
    std::fs::write(&path, big(3 * CHUNK)).unwrap();
    let time = path.metadata().unwrap().modified().unwrap();
    let mut source = Files::new(std::slice::from_ref(&path)).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes[..2 * CHUNK]).unwrap();
    drop(sink);
    // The content differs, but length and time are the same.
    std::fs::write(&path, vec![1; 3 * CHUNK]).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let mut source = Files::new(std::slice::from_ref(&path)).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    let begins = sink.begins_at();
    assert!(begins > 0);
    assert!(matches!(sink.put(&bytes[begins as usize..]), Err(SinkError::Stream(_))));
    assert!(!to.path().join("x").exists());
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    assert_eq!(sink.begins_at(), 0);
    sink.put(&bytes).unwrap();
    assert!(sink.is_complete() && std::fs::read(to.path().join("x")).unwrap() == [1; 3 * CHUNK]);
}

#[test]
fn a_state_is_not_written_through_a_link_and_a_pipe_is_not_waited_for() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("x");
    std::fs::write(&path, big(CHUNK + 1)).unwrap();
    let mut source = Files::new(&[path]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let (victim, state) = (from.path().join("v"), to.path().join(state::name(source.stream())));
    std::fs::write(&victim, b"precious").unwrap();
    for place in [state.clone(), state.with_extension("new")] {
        std::os::unix::fs::symlink(&victim, place).unwrap();
    }
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes).unwrap();
    assert!(sink.is_complete());
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &state, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let sink = Folder::new(config(to.path()), source.stream()).unwrap();
    assert_eq!(sink.begins_at(), 0);
}

#[test]
fn a_folder_that_vanishes_is_an_error_and_nothing_else() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = ["a", "b"].map(|name| from.path().join(name));
    for path in &paths {
        std::fs::write(path, big(CHUNK)).unwrap();
    }
    let mut source = Files::new(&paths).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let folder = to.path().join("gone");
    let mut sink = Folder::new(config(&folder), source.stream()).unwrap();
    sink.put(&bytes[..CHUNK / 2]).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(
        sink.put(&bytes[CHUNK / 2..]),
        Err(SinkError::Store(StoreError::Write { .. }))
    ));
}

/// A sink that panics.
#[test]
fn a_folder_that_becomes_a_link_leads_nowhere() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let victim = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(from.path().join("d/e")).unwrap();
    for name in ["d/a", "d/b", "d/e/c"] {
        std::fs::write(from.path().join(name), big(CHUNK)).unwrap();
    }
    let mut source = Files::new(&[from.path().join("d")]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    // Interrupt it in the middle of each of its files.
    for chunks in 1..=3 {
        let folder = to.path().join(chunks.to_string());
        let mut sink = Folder::new(config(&folder), source.stream()).unwrap();
        let cut = chunks * CHUNK;
        sink.put(&bytes[..cut]).unwrap();
        std::fs::rename(folder.join("d"), folder.join("away")).unwrap();
        std::os::unix::fs::symlink(victim.path(), folder.join("d")).unwrap();
        // Neither is the original directory at its path any more.
        let error = sink.put(&bytes[cut..]).unwrap_err();
        let is_refused = matches!(
            error,
            SinkError::Store(StoreError::NotDirectory(_) | StoreError::Write { .. })
        );
        assert!(is_refused, "{error}");
        assert_eq!(std::fs::read_dir(victim.path()).unwrap().count(), 0);
        assert!(Folder::new(config(&folder), source.stream()).is_ok_and(|mut sink| {
            let at = sink.begins_at() as usize;
            sink.put(&bytes[at..]).is_err()
        }));
        assert_eq!(std::fs::read_dir(victim.path()).unwrap().count(), 0);
    }
}

#[test]
fn folders_get_their_modes_and_times_after_an_interruption() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir_all(from.path().join("d/empty")).unwrap();
    std::fs::write(from.path().join("d/x"), big(2 * CHUNK + 5)).unwrap();
    for name in ["d/empty", "d"] {
        let path = from.path().join(name);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o710)).unwrap();
        let time = UNIX_EPOCH + Duration::from_secs(1000);
        std::fs::File::open(path).unwrap().set_modified(time).unwrap();
    }
    let mut source = Files::new(&[from.path().join("d")]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    // Interrupt it after each chunk.
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    while !sink.is_complete() {
        let at = sink.begins_at() as usize;
        sink.put(&bytes[at..bytes.len().min(at + CHUNK + 300)]).unwrap();
        if !sink.is_complete() {
            drop(sink);
            sink = Folder::new(config(to.path()), source.stream()).unwrap();
            assert!(sink.begins_at() as usize > at);
        }
    }
    for name in ["d", "d/empty", "d/x"] {
        let meta = |folder: &Path| folder.join(name).metadata().unwrap();
        let (was, is) = (meta(from.path()), meta(to.path()));
        assert_eq!(was.modified().unwrap(), is.modified().unwrap(), "{name}");
        assert_eq!(was.permissions(), is.permissions(), "{name}");
    }
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 1);
}

#[test]
fn the_state_of_many_files_has_one_entry_for_each() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let name = |i: usize| format!("{i:04}{}", "n".repeat(246));
    for i in 0..1000 {
        std::fs::write(from.path().join(name(i)), [i as u8]).unwrap();
    }
    let mut source = Files::new(&[from.path().to_owned()]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(sink.files().len(), 1000);
    drop(sink);
    // Each file has one entry, with what is needed to check it: its header with the path, its hash and the position.
    let state = to.path().join(state::name(source.stream()));
    assert!(state.metadata().unwrap().len() < 1000 * (251 + 32 + 128));
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    assert!(sink.begins_at() as usize > bytes.len() - 1000);
    sink.put(&bytes[sink.begins_at() as usize..]).unwrap();
    assert!(sink.is_complete() && !state.exists());
}

#[test]
fn a_file_that_does_not_get_its_name_can_be_written_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("x");
    std::fs::write(&path, b"content").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
    let mut source = Files::new(&[path]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes[..bytes.len() - 60]).unwrap();
    // Another process has created the file first.
    std::fs::write(to.path().join("x"), b"other").unwrap();
    let result = sink.put(&bytes[bytes.len() - 60..]);
    assert!(matches!(result, Err(SinkError::Store(StoreError::Exists(_)))), "{result:?}");
    assert_eq!(std::fs::read(to.path().join("x")).unwrap(), b"other");
    let mode = to.path().join("x.part").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::remove_file(to.path().join("x")).unwrap();
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes[sink.begins_at() as usize..]).unwrap();
    assert_eq!(std::fs::read(to.path().join("x")).unwrap(), b"content");
}

#[test]
fn a_state_of_any_bytes_costs_at_most_one_attempt() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(from.path().join("d")).unwrap();
    std::fs::write(from.path().join("d/a"), b"a").unwrap();
    std::fs::write(from.path().join("d/x"), big(2 * CHUNK + 5)).unwrap();
    let mut source = Files::new(&[from.path().join("d")]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes[..CHUNK + 600]).unwrap();
    drop(sink);
    let names = [state::name(source.stream()), state::table_name(b"d/x")];
    let whole = names.each_ref().map(|name| std::fs::read(to.path().join(name)).unwrap());
    let part = std::fs::read(to.path().join("d/x.part")).unwrap();
    let mut random = 7_u64;
    for _ in 0..300 {
        let mut left = whole.clone();
        let state = &mut left[(random >> 60 & 1) as usize];
        for _ in 0..=random >> 62 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 33) as usize % state.len();
            match random >> 61 {
                0 => drop(state.drain(at..)),
                1 => state.insert(at, (random >> 20) as u8),
                2 => state[at] = 255,
                _ => state[at] ^= 1 << (random >> 58 & 7),
            }
        }
        let fresh = tempfile::tempdir().unwrap();
        std::fs::create_dir(fresh.path().join("d")).unwrap();
        for (name, bytes) in names.iter().zip(&left) {
            std::fs::write(fresh.path().join(name), bytes).unwrap();
        }
        std::fs::write(fresh.path().join("d/x.part"), &part).unwrap();
        let config = FolderConfig { overwrite: true, ..config(fresh.path()) };
        let attempt = || {
            let mut sink = Folder::new(config.clone(), source.stream())?;
            let rest = bytes.get(sink.begins_at() as usize..).unwrap_or(b"beyond the end");
            sink.put(rest)?;
            Ok::<bool, SinkError>(sink.is_complete())
        };
        if !attempt().is_ok_and(|complete| complete) {
            assert!(attempt().unwrap(), "{left:?}");
        }
        // The name is that of the state, whose check would be worth no more than that of the disk.
        let there = |name: &str| std::fs::read(fresh.path().join(name)).ok();
        assert!(there("d/x").is_none_or(|there| there == big(2 * CHUNK + 5)));
        assert!(there("d/a").is_none_or(|there| there == b"a"));
    }
}

#[test]
fn a_stream_that_is_killed_at_any_operation_goes_on_and_leaves_nothing_behind() {
    let from = tempfile::tempdir().unwrap();
    std::fs::create_dir(from.path().join("d")).unwrap();
    let lengths = [("d/a", 3 * CHUNK), ("d/b", 10), ("d/c", CHUNK), ("d/e", 2 * CHUNK + 1)];
    for (name, len) in lengths {
        std::fs::write(from.path().join(name), big(len)).unwrap();
    }
    let mut source = Files::new(&[from.path().join("d")]).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let attempt = |to: &Path| {
        let mut sink = Folder::new(config(to), source.stream())?;
        let begins = sink.begins_at();
        sink.put(&bytes[begins as usize..])?;
        assert!(sink.is_complete());
        Ok::<u64, SinkError>(begins)
    };
    let (mut operations, mut resumed) = (0, std::collections::BTreeSet::new());
    loop {
        let to = tempfile::tempdir().unwrap();
        FAULT.set(Some((operations, io::ErrorKind::Other)));
        let killed = attempt(to.path()).is_err();
        FAULT.set(None);
        if killed {
            resumed.insert(attempt(to.path()).unwrap());
        }
        for (name, len) in lengths {
            assert_eq!(
                std::fs::read(to.path().join(name)).unwrap(),
                big(len),
                "{operations} {name}"
            );
        }
        assert_eq!(std::fs::read_dir(to.path().join("d")).unwrap().count(), 4, "{operations}");
        // A failure to remove the state and the table at the end is harmless.
        let clean = std::fs::read_dir(to.path()).unwrap().count() == 1;
        assert!(clean || !killed && operations < 200, "{operations}");
        if clean && !killed {
            break;
        }
        operations += 1;
    }
    // It resumed at the start, after the first chunk of three of the files, after each whole chunk, and after each
    // file.
    assert!(operations > 50 && resumed.len() >= 11, "{operations} {resumed:?}");
}
