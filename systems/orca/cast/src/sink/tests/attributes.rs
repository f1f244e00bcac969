//! Modes, times and extended attributes of files that are there already.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::format::{Attribute, Manifest, ManifestEntry};
use crate::store::disk::DiskFile as _;

/// What nobody but the receiver has set of a file.
type Seen = (u32, i64, Vec<(Vec<u8>, Vec<u8>)>);

fn seen(path: &Path) -> Seen {
    let meta = path.metadata().unwrap();
    let mut found = std::fs::File::open(path).unwrap().attributes().unwrap_or_default();
    found.retain(|(name, _)| name.starts_with(b"user."));
    (meta.mode() & 0o777, meta.mtime(), found)
}

fn file(path: &Path, content: &[u8], mode: u32, seconds: u64) {
    std::fs::write(path, content).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    file.set_permissions(PermissionsExt::from_mode(mode)).unwrap();
    // Not every file system has them.
    let _ = file.set_attribute(b"user.own", Some(b"own"));
}

fn entry(path: &str, content: &[u8], hash: bool) -> ManifestEntry {
    let planted = Attribute { name: b"user.planted".to_vec(), value: b"x".to_vec() };
    let header = FileHeader {
        path: path.as_bytes().to_vec(),
        kind: RecordKind::File,
        length: Some(content.len() as u64),
        attributes: Some(vec![planted]),
        owner: None,
        mode: 0o666,
        mtime_s: 7,
        mtime_ns: 0,
    };
    ManifestEntry { header, hash: hash.then(|| *blake3::hash(content).as_bytes()) }
}

fn compare(config: &FolderConfig, entries: Vec<ManifestEntry>, purpose: Purpose) -> Comparison {
    let manifest = Manifest { purpose, entries, ..Manifest::default() };
    let mut sink = Comparing::new(config.clone()).unwrap();
    sink.put(&manifest.encode().unwrap()).unwrap();
    sink.answer().unwrap().comparison
}

/// A sender that knew the length and the time of a file changed its mode and its attributes, and those of its names elsewhere.
#[test]
fn a_file_that_is_not_known_to_be_the_same_keeps_its_mode_time_and_attributes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    file(&root.join("x"), b"own bytes", 0o600, 7);
    file(&root.join("taken"), b"other", 0o600, 9);
    std::fs::hard_link(root.join("x"), folder.path().join("elsewhere")).unwrap();
    let before = seen(&root.join("x"));
    let by_time = Purpose::default();
    let by_hash = Purpose { checksum: true, ..by_time };
    let sync = FolderConfig { sync: true, ..config(&root) };
    let replaces = FolderConfig { overwrite: true, ..config(&root) };
    let guess = || entry("x", b"any bytes", false);
    let refused = || entry("taken", b"longer than that", false);
    for config in [&config(&root), &sync] {
        assert!(compare(config, vec![guess()], by_time).is_complete);
    }
    // Nothing of a cast is taken that something is in the way of.
    let hash = |content| entry("x", content, true);
    let obstacle = entry("taken", b"longer than that", true);
    assert!(compare(&config(&root), vec![guess(), refused()], by_time).obstacle.is_some());
    let found = compare(&config(&root), vec![hash(b"own bytes"), obstacle], by_hash);
    assert!(found.obstacle.is_some() && !found.is_complete);
    assert!(compare(&config(&root), vec![hash(b"any bytes")], by_hash).obstacle.is_some());
    let dry_run = Purpose { dry_run: true, ..by_time };
    assert!(compare(&replaces, vec![guess()], dry_run).is_complete);
    assert_eq!(seen(&root.join("x")), before);
    assert_eq!(seen(&folder.path().join("elsewhere")), before);
    // With the hash, or where files are replaced, it gets them.
    assert!(compare(&config(&root), vec![hash(b"own bytes")], by_hash).is_complete);
    let after = seen(&root.join("x"));
    assert_eq!((after.0, after.1), (0o666, 7));
    let names = |seen: &Seen| seen.2.iter().map(|it| it.0.clone()).collect::<Vec<_>>();
    let expected = if before.2.is_empty() { vec![] } else { vec![b"user.planted".to_vec()] };
    assert_eq!(names(&after), expected);
    std::fs::set_permissions(root.join("x"), PermissionsExt::from_mode(0o600)).unwrap();
    assert!(compare(&replaces, vec![guess()], by_time).is_complete);
    assert_eq!(seen(&root.join("x")).0, 0o666);
}

/// Root gives files, folders and links to whom the sender names; others keep them, and that is counted.
#[test]
fn owners_are_kept_where_the_system_lets_them() {
    let folder = tempfile::tempdir().unwrap();
    let header = |path: &str, kind| FileHeader {
        path: path.into(),
        kind,
        length: Some(0),
        attributes: None,
        owner: Some((1234, 4321)),
        mode: 0o640,
        mtime_s: 7,
        mtime_ns: 0,
    };
    let headers = [
        header("d", RecordKind::Directory),
        header("d/f", RecordKind::File),
        FileHeader { mode: 0o777, ..header("d/l", RecordKind::SymbolicLink(b"f".to_vec())) },
    ];
    let mut sink = Folder::new(config(folder.path()), 5).unwrap();
    sink.put(&links::stream(&headers)).unwrap();
    assert!(sink.is_complete());
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(sink.caveats().unowned, if is_root { 0 } else { 3 });
    let owners = || {
        headers.each_ref().map(|header| {
            let found = std::fs::symlink_metadata(
                folder.path().join(std::str::from_utf8(&header.path).unwrap()),
            );
            found.map(|it| (it.uid(), it.gid(), it.mode() & 0o777)).unwrap()
        })
    };
    let entries = || headers.iter().map(|it| ManifestEntry { header: it.clone(), hash: None });
    let purpose = Purpose { itemize: true, ..Purpose::default() };
    let there = || compare(&config(folder.path()), entries().collect(), purpose);
    // What cannot be given away is not sent again and again.
    assert!(there().is_complete);
    if !is_root {
        return;
    }
    let expected = [(1234, 4321, 0o640), (1234, 4321, 0o640), (1234, 4321, 0o777)];
    assert_eq!(owners(), expected);
    for path in ["d", "d/f", "d/l"] {
        std::os::unix::fs::lchown(folder.path().join(path), Some(7), None).unwrap();
    }
    // A folder is sent again, a link gets its owner, and a file that may be another one keeps its own.
    let found = there();
    assert!(!found.is_complete && found.lacking_files == 0);
    assert_eq!(owners().map(|it| it.0), [7, 7, 1234]);
    let replaces = FolderConfig { overwrite: true, ..config(folder.path()) };
    let _ = compare(&replaces, entries().collect(), purpose);
    assert_eq!(owners().map(|it| it.0), [7, 1234, 1234]);
}
