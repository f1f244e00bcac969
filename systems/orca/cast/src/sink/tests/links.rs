//! Hard links such as no sender would make.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::format::{DecodeError, Delete, FileHeader, Manifest, ManifestEntry};
use crate::store::fault::LINKS;

fn header(path: &str, link: Option<&str>, directory: bool) -> FileHeader {
    let kind = match link {
        Some(target) => RecordKind::HardLink(target.as_bytes().to_vec()),
        None if directory => RecordKind::Directory,
        None => RecordKind::File,
    };
    FileHeader {
        path: path.as_bytes().to_vec(),
        kind,
        length: Some(0),
        attributes: None,
        mode: 0o755,
        mtime_s: 7,
        mtime_ns: 0,
    }
}

/// A stream of empty files, directories and links.
fn stream(headers: &[FileHeader]) -> Vec<u8> {
    let (mut out, mut digest) = (Vec::new(), crate::format::StreamDigest::default());
    crate::format::start(&mut out);
    for header in headers {
        crate::format::file(header, &mut out);
        digest.file(header);
        if header.is_file() {
            let hash = *blake3::hash(b"").as_bytes();
            crate::format::file_end(0, &hash, &mut out);
            digest.file_end(&hash);
        }
    }
    crate::format::digest(&digest, &mut out);
    crate::format::end(headers.len() as u64, 0, &mut out);
    out
}

#[test]
fn a_hard_link_leads_to_a_file_of_the_same_cast_only() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    std::fs::create_dir_all(root.join("d")).unwrap();
    for path in [root.join("kept"), root.join("d/kept"), folder.path().join("outside")] {
        std::fs::write(path, b"").unwrap();
    }
    let file = |path| header(path, None, false);
    let link = |path, to| header(path, Some(to), false);
    let wrong = [
        vec![link("x", "kept")],
        vec![link("x", "x")],
        vec![link("x", "y"), link("y", "x")],
        vec![link("x", "y"), file("y")],
        vec![file("y"), link("z", "y"), link("x", "z")],
        vec![header("d", None, true), link("x", "d")],
        vec![header("d", None, true), link("x", "d/kept")],
        vec![file("y"), link("x", "../outside")],
        vec![file("y"), link("x", "/etc/passwd")],
        vec![file("y"), link("x", "")],
    ];
    for (number, headers) in (10..).zip(wrong) {
        let config = FolderConfig { overwrite: true, ..config(&root) };
        let mut sink = Folder::new(config.clone(), number).unwrap();
        let error = sink.put(&stream(&headers)).unwrap_err();
        let is_refused =
            |error: &DecodeError| matches!(error, DecodeError::Link | DecodeError::Path(_));
        assert!(matches!(&error, SinkError::Stream(error) if is_refused(error)), "{error}");
        assert!(!root.join("x").exists());
        let entry = |header: FileHeader| ManifestEntry { header, hash: None };
        let entries = headers.into_iter().map(entry).collect();
        let purpose = Purpose { delete: Delete::Now, ..Purpose::default() };
        let manifest = Manifest { purpose, entries, ..Manifest::default() };
        let bytes = manifest.encode().unwrap();
        assert!(Manifest::decode(&bytes).is_err_and(|error| is_refused(&error)));
    }
    let mut sink = Folder::new(config(&root), 5).unwrap();
    sink.put(&stream(&[file("new"), link("d/x", "new")])).unwrap();
    assert!(sink.is_complete());
    assert_eq!(root.join("new").metadata().unwrap().nlink(), 2);
}

/// A stream of the file `a` and a further name `b` of it, and the manifest.
fn linked(content: &[u8]) -> (tempfile::TempDir, Files, Manifest) {
    let from = tempfile::tempdir().unwrap();
    let at = |name: &str| from.path().join(name);
    std::fs::create_dir(at("d")).unwrap();
    std::fs::write(at("d/a"), content).unwrap();
    std::fs::hard_link(at("d/a"), at("d/b")).unwrap();
    let files = [at("d")];
    let listing = crate::source::Listing::new(&files).unwrap();
    let headers = crate::source::Catalogue::headers(&listing);
    let entries = headers.into_iter().map(|header| ManifestEntry { header, hash: None }).collect();
    let manifest = Manifest { entries, ..Manifest::default() };
    (from, Files::new(&files).unwrap(), manifest)
}

fn compare(config: &FolderConfig, manifest: &Manifest) -> Comparison {
    let mut sink = Comparing::new(config.clone()).unwrap();
    sink.put(&manifest.encode().unwrap()).unwrap();
    sink.answer().unwrap().comparison
}

fn ino(at: &Path, name: &str) -> u64 {
    at.join(name).metadata().unwrap().ino()
}

/// One receiver has both names as copies, and another lacks them: the stream of both has a link in the place of the copy.
#[test]
fn a_copy_in_the_place_of_a_further_name_stays_without_overwrite() {
    let content = big(2 * CHUNK + 3);
    let (_from, mut source, manifest) = linked(&content);
    let stream = bytes_of(&mut source, 0);
    let to = tempfile::tempdir().unwrap();
    let at = |name: &str| to.path().join(name);
    std::fs::create_dir(at("d")).unwrap();
    for name in ["d/a", "d/b"] {
        std::fs::write(at(name), &content).unwrap();
    }
    let copy = ino(to.path(), "d/b");
    // Neither has the sender's time.
    assert_eq!(compare(&config(to.path()), &manifest).obstacle, None);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    // It goes on behind a copy, too.
    sink.put(&stream[..stream.len() - 1]).unwrap();
    drop(sink);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    assert!(sink.begins_at() > CHUNK as u64);
    sink.put(&stream[sink.begins_at() as usize..]).unwrap();
    assert!(sink.is_complete());
    assert_eq!((ino(to.path(), "d/b"), sink.caveats()), (copy, Caveats::default()));
    assert!(compare(&config(to.path()), &manifest).is_complete, "it has the time");
    // Another content is not replaced.
    std::fs::write(at("d/b"), vec![1; content.len()]).unwrap();
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    let result = sink.put(&stream);
    assert!(matches!(result, Err(SinkError::Store(StoreError::Exists(_)))), "{result:?}");
    let replaces = FolderConfig { overwrite: true, ..config(to.path()) };
    let mut sink = Folder::new(replaces, source.stream()).unwrap();
    sink.put(&stream[sink.begins_at() as usize..]).unwrap();
    assert_eq!(ino(to.path(), "d/b"), ino(to.path(), "d/a"));
}

/// Another mount, a file of another user, one with too many names, and a file system without links.
#[test]
fn where_no_link_is_possible_a_further_name_is_a_copy_and_stays_one() {
    let content = big(2 * CHUNK + 3);
    let (_from, mut source, manifest) = linked(&content);
    let stream = bytes_of(&mut source, 0);
    for kind in [
        io::ErrorKind::CrossesDevices,
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::TooManyLinks,
        io::ErrorKind::Unsupported,
    ] {
        LINKS.set(Some(kind));
        let to = tempfile::tempdir().unwrap();
        for (overwrite, sync, old) in
            [(false, true, None), (true, false, Some("older")), (true, true, None)]
        {
            if let Some(old) = old {
                std::fs::write(to.path().join("d/b"), old).unwrap();
            }
            let config = FolderConfig { overwrite, sync, ..config(to.path()) };
            let mut sink = Folder::new(config.clone(), source.stream()).unwrap();
            sink.put(&stream).unwrap();
            assert_eq!(sink.caveats(), Caveats { copied: 1, ..Caveats::default() });
            assert!(sink.is_complete() && ino(to.path(), "d/b") != ino(to.path(), "d/a"));
            assert!(std::fs::read(to.path().join("d/b")).unwrap() == content);
            let meta = ["d/a", "d/b"].map(|name| to.path().join(name).metadata().unwrap());
            assert_eq!(meta[0].permissions(), meta[1].permissions());
            assert_eq!(meta[0].modified().unwrap(), meta[1].modified().unwrap());
            let folder = to.path().join("d").metadata().unwrap().modified().unwrap();
            assert!(compare(&config, &manifest).is_complete, "{kind} {overwrite}");
            assert_eq!(to.path().join("d").metadata().unwrap().modified().unwrap(), folder);
            assert_eq!(std::fs::read_dir(to.path().join("d")).unwrap().count(), 2);
        }
        // A disk without room for the copy.
        let full = tempfile::tempdir().unwrap();
        let limit = Some(content.len() as u64 + 5);
        let config = FolderConfig { limit, ..config(full.path()) };
        let mut sink = Folder::new(config, source.stream()).unwrap();
        let result = sink.put(&stream);
        assert!(matches!(result, Err(SinkError::Store(StoreError::Full { .. }))), "{result:?}");
        assert_eq!(std::fs::read_dir(full.path().join("d")).unwrap().count(), 1);
        LINKS.set(None);
        // Where links are possible now, the copy becomes one if it may be replaced.
        let overwrite = FolderConfig { overwrite: true, ..super::config(to.path()) };
        assert!(!compare(&overwrite, &manifest).is_complete);
        assert!(compare(&super::config(to.path()), &manifest).is_complete);
    }
}

fn symbolic(path: &str, target: impl AsRef<[u8]>) -> FileHeader {
    let kind = RecordKind::SymbolicLink(target.as_ref().to_vec());
    FileHeader { kind, ..header(path, None, false) }
}

#[test]
fn nothing_is_written_through_a_symbolic_link_of_the_same_cast() {
    let folder = tempfile::tempdir().unwrap();
    let [root, outside] = ["root", "outside"].map(|name| folder.path().join(name));
    for it in [&root, &outside] {
        std::fs::create_dir(it).unwrap();
    }
    std::fs::write(outside.join("kept"), b"kept").unwrap();
    let away = outside.to_str().unwrap();
    let kept = format!("{away}/kept");
    let file = |path| header(path, None, false);
    let directory = |path| header(path, None, true);
    let refused = [
        vec![symbolic("d", away), file("d/kept")],
        vec![symbolic("d", away), file("d/new")],
        vec![symbolic("d", away), directory("d")],
        vec![symbolic("d", away), directory("d/e")],
        vec![symbolic("d", away), symbolic("d/x", "y")],
        vec![directory("e"), symbolic("e", away)],
        vec![symbolic("x", &kept), header("y", Some("x"), false)],
        vec![symbolic("x", "")],
        vec![symbolic("x", b"a\0b")],
        vec![FileHeader { length: Some(5), ..symbolic("x", "y") }],
        vec![FileHeader { length: None, ..symbolic("x", "y") }],
    ];
    for (number, headers) in (10..).zip(refused) {
        let config = FolderConfig { overwrite: true, ..config(&root) };
        let mut sink = Folder::new(config, number).unwrap();
        assert!(sink.put(&stream(&headers)).is_err(), "{headers:?}");
        assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    }
    // A file replaces the link, and not what the link leads to.
    let overwrite = FolderConfig { overwrite: true, ..config(&root) };
    let mut sink = Folder::new(overwrite.clone(), 5).unwrap();
    sink.put(&stream(&[symbolic("x", &kept), file("x")])).unwrap();
    assert!(std::fs::symlink_metadata(root.join("x")).unwrap().is_file());
    assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
    // A receiver of one file, or of a pipe, takes none.
    let only = Some(root.join("one"));
    let mut sink = Folder::new(FolderConfig { only, ..overwrite }, 6).unwrap();
    let result = sink.put(&stream(&[symbolic("x", &kept)]));
    assert!(matches!(result, Err(SinkError::Several)), "{result:?}");
    let result = PipeSink::new(Vec::new()).put(&stream(&[symbolic("x", &kept)]));
    assert!(matches!(result, Err(SinkError::Several)), "{result:?}");
}

#[test]
fn a_symbolic_link_is_the_old_or_the_new_one_wherever_an_attempt_ends() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let read = || std::fs::read_link(root.join("x")).unwrap();
    let (config, sent) = (FolderConfig { overwrite: true, ..config(root) }, symbolic("x", "new"));
    let stream = stream(std::slice::from_ref(&sent));
    let mut ended = 0;
    for steps in 0.. {
        let _ = std::fs::remove_file(root.join("x"));
        std::os::unix::fs::symlink("old", root.join("x")).unwrap();
        FAULT.set(Some((steps, io::ErrorKind::Other)));
        let result = Folder::new(config.clone(), 5).and_then(|mut sink| {
            sink.put(&stream)?;
            Ok(sink.is_complete())
        });
        FAULT.set(None);
        assert!(["old", "new"].map(PathBuf::from).contains(&read()), "{steps}");
        if matches!(result, Ok(true)) {
            break;
        }
        ended += 1;
        let mut sink = Folder::new(config.clone(), 5).unwrap();
        sink.put(&stream[sink.begins_at() as usize..]).unwrap();
        assert!(sink.is_complete() && read() == Path::new("new"), "{steps}");
        assert_eq!(std::fs::read_dir(root).unwrap().count(), 1, "{steps}");
    }
    assert!(ended > 4, "{ended}");
    // The next attempt goes on behind it only if it is there.
    let more = [sent, header("y", None, false)];
    let stream = self::stream(&more);
    let mut sink = Folder::new(config.clone(), 7).unwrap();
    sink.put(&stream[..stream.len() - 100]).unwrap();
    drop(sink);
    let at = Folder::new(config.clone(), 7).unwrap().begins_at();
    std::fs::remove_file(root.join("x")).unwrap();
    std::os::unix::fs::symlink("other", root.join("x")).unwrap();
    let begins_at = Folder::new(config, 7).unwrap().begins_at();
    assert!(begins_at < at, "{begins_at} {at}");
}
