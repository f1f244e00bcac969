//! Files with the names that incomplete files have.

use std::path::PathBuf;

use super::*;
use crate::format::{Findings, Manifest, ManifestEntry};
use crate::source::{Catalogue as _, Listing};

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Puts something at a path that no interrupted transfer has left there.
type Foreign = fn(&Path);

const FOREIGN: [Foreign; 4] = [
    |at| {
        std::fs::write(at, "foreign").unwrap();
        set_mode(at, 0o644);
    },
    |at| {
        std::fs::write(at, big(2 * CHUNK)).unwrap();
        set_mode(at, 0o600);
    },
    |at| std::fs::create_dir(at).unwrap(),
    |at| std::os::unix::fs::symlink("elsewhere", at).unwrap(),
];

/// With `overwrite` the file was the beginning of `x`, and gone; without it nothing was received.
#[test]
fn what_has_the_name_of_a_part_and_is_none_stays() {
    for (number, length) in (0..FOREIGN.len()).flat_map(|it| [(it, 5), (it, 3 * CHUNK + 5)]) {
        for overwrite in [false, true] {
            let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let (path, part) = (from.path().join("x"), to.path().join("x.part"));
            std::fs::write(&path, big(length)).unwrap();
            FOREIGN[number](&part);
            let found = || {
                let meta = part.symlink_metadata().unwrap();
                (meta.permissions(), meta.modified().unwrap(), std::fs::read(&part).ok())
            };
            let before = found();
            let config = FolderConfig { overwrite, ..config(to.path()) };
            let mut source = Files::new(&[path]).unwrap();
            let bytes = bytes_of(&mut source, 0);
            let mut sink = Folder::new(config.clone(), source.stream()).unwrap();
            sink.put(&bytes[..bytes.len() - 1000.min(length)]).unwrap();
            drop(sink);
            let mut sink = Folder::new(config, source.stream()).unwrap();
            let begins_at = sink.begins_at();
            assert!(length < CHUNK || begins_at > 2 * CHUNK as u64, "{begins_at}");
            sink.put(&bytes[begins_at as usize..]).unwrap();
            assert!(sink.is_complete());
            drop(sink);
            assert_eq!(std::fs::read(to.path().join("x")).unwrap(), big(length));
            assert!(found() == before, "{number} {length} {overwrite}");
            assert_eq!(names(to.path()), ["x", "x.part"], "{number} {length} {overwrite}");
        }
    }
}

/// The answer of a receiver to the manifest of some files.
fn findings(paths: &[PathBuf], to: &Path) -> Findings {
    let headers = Listing::new(paths).unwrap().headers().into_iter();
    let entries = headers.map(|header| ManifestEntry { header, hash: None }).collect();
    let manifest = Manifest { entries, ..Manifest::default() };
    let mut sink = Comparing::new(config(to)).unwrap();
    sink.put(&manifest.encode().unwrap()).unwrap();
    Findings::decode(&sink.answer().unwrap().bytes, paths.len() as u32).unwrap()
}

/// The cast was refused for ever, because its file `x.part` seemed to be there with another content.
#[test]
fn the_rest_of_a_file_is_not_in_the_way_of_a_file_with_its_name() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = ["x", "x.part"].map(|name| from.path().join(name));
    std::fs::write(&paths[0], big(3 * CHUNK)).unwrap();
    std::fs::write(&paths[1], b"called as a part").unwrap();
    let mut source = Files::new(&paths).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes[..2 * CHUNK + 5000]).unwrap();
    drop(sink);
    let Findings { lacking, obstacle, .. } = findings(&paths, to.path());
    assert_eq!((lacking.iter().count(), obstacle), (2, None));
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    assert!(sink.begins_at() > 2 * CHUNK as u64);
    sink.put(&bytes[sink.begins_at() as usize..]).unwrap();
    assert!(sink.is_complete());
    drop(sink);
    assert_eq!(std::fs::read(to.path().join("x.part")).unwrap(), b"called as a part");
    assert_eq!(names(to.path()), ["x", "x.part"]);
    assert!(findings(&paths, to.path()).lacking.is_empty());
    // What no transfer has left is in the way, whatever its mode.
    std::fs::remove_file(to.path().join("x")).unwrap();
    std::fs::write(to.path().join("x.part"), b"another").unwrap();
    set_mode(&to.path().join("x.part"), 0o600);
    assert!(findings(&paths, to.path()).obstacle.is_some());
}

/// Its beginning would stay for ever, since a short file has no table of its own.
#[test]
fn the_rest_of_a_long_file_is_used_up_by_a_short_one() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("x");
    std::fs::write(&path, big(3 * CHUNK)).unwrap();
    let mut source = Files::new(std::slice::from_ref(&path)).unwrap();
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes_of(&mut source, 0)[..2 * CHUNK]).unwrap();
    drop(sink);
    std::fs::write(&path, b"short").unwrap();
    let mut source = Files::new(&[path]).unwrap();
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes_of(&mut source, 0)).unwrap();
    assert!(sink.is_complete());
    assert_eq!(std::fs::read(to.path().join("x")).unwrap(), b"short");
    assert!(!to.path().join("x.part").exists());
}
