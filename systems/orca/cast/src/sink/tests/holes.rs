//! Files with holes, which are neither sent nor written.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;

use super::*;

const MIB: u64 = CHUNK as u64;

/// Creates a file of this length with content in these pages, each of another byte.
fn sparse(path: &Path, length: u64, pages: &[u64]) {
    let file = File::create(path).unwrap();
    file.set_len(length).unwrap();
    for (byte, page) in (1..).zip(pages) {
        let len = (length - page * 4096).min(4096) as usize;
        file.write_all_at(&vec![byte; len], page * 4096).unwrap();
    }
    file.set_modified(UNIX_EPOCH).unwrap();
}

fn blocks(path: &Path) -> u64 {
    path.metadata().unwrap().blocks()
}

/// Casts a file in attempts that end at these percentages of its stream, whose length it returns.
fn cast(path: &PathBuf, to: &Path, cuts: &[u64]) -> u64 {
    let mut source = Files::new(std::slice::from_ref(path)).unwrap();
    let length = source.end().unwrap();
    for cut in cuts.iter().chain([&100]) {
        let mut sink = Folder::new(config(to), source.stream()).unwrap();
        let from = sink.begins_at();
        let bytes = bytes_of(&mut source, from);
        let upto = (length * cut / 100).saturating_sub(from).min(bytes.len() as u64);
        for piece in bytes[..upto as usize].chunks(1424) {
            sink.put(piece).unwrap();
        }
        assert_eq!(sink.is_complete(), *cut == 100);
    }
    length
}

#[test]
fn holes_are_neither_sent_nor_written_whatever_is_interrupted() {
    // The pages of a chunk are 256.
    let shapes: [(u64, &[u64]); 9] = [
        (256 * MIB, &[0]),
        (5 * MIB, &[]),
        (5 * MIB + 77, &[256 * 5]),
        (6 * MIB, &[3, 255, 256, 1000, 1535]),
        (6 * MIB + 5000, &[700, 1537]),
        (9 * MIB, &[255, 256 * 3 + 9, 256 * 4, 256 * 8]),
        (2 * MIB, &[1]),
        (40_000, &[2, 9]),
        (4096, &[]),
    ];
    for (length, pages) in shapes {
        for cuts in [&[][..], &[30, 60], &[50, 50, 99], &[1, 2, 3, 70]] {
            let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let path = from.path().join("x");
            sparse(&path, length, pages);
            let sent = cast(&path, to.path(), cuts);
            let copy = to.path().join("x");
            let what = format!("{length} {pages:?} {cuts:?}");
            let chunks: std::collections::BTreeSet<u64> = pages.iter().map(|it| it / 256).collect();
            assert!(sent < (chunks.len() as u64) * (MIB + 100) + 300, "{what}: {sent}");
            assert!(std::fs::read(&copy).unwrap() == std::fs::read(&path).unwrap(), "{what}");
            // A file system may store a page more.
            assert!(blocks(&copy) <= blocks(&path) + 8, "{what}");
            assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 1, "{what}");
        }
    }
}

/// What is left of an attempt is not taken for a hole.
#[test]
fn a_hole_reads_as_zeros_whatever_was_there() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("x");
    sparse(&path, 6 * MIB, &[0, 256 * 2, 256 * 4, 256 * 5]);
    let mut source = Files::new(std::slice::from_ref(&path)).unwrap();
    let bytes = bytes_of(&mut source, 0);
    let mut sink = Folder::new(config(to.path()), source.stream()).unwrap();
    sink.put(&bytes[..bytes.len() * 4 / 5]).unwrap();
    drop(sink);
    // The first chunk and the first hole are damaged; the later ones are right.
    let part = File::options().write(true).open(to.path().join("x.part")).unwrap();
    part.write_all_at(&[7; 2 << 20], 0).unwrap();
    cast(&path, to.path(), &[]);
    assert!(std::fs::read(to.path().join("x")).unwrap() == std::fs::read(&path).unwrap());
}

#[test]
fn a_pipe_gets_the_zeros_and_a_hole_that_was_filled_is_a_change() {
    let from = tempfile::tempdir().unwrap();
    let path = from.path().join("x");
    sparse(&path, 5 * MIB + 9, &[300]);
    let mut source = Files::new(std::slice::from_ref(&path)).unwrap();
    let mut out = Vec::new();
    let mut sink = PipeSink::new(&mut out);
    for piece in bytes_of(&mut source, 0).chunks(100_000) {
        sink.put(piece).unwrap();
    }
    assert!(sink.is_complete());
    assert!(out == std::fs::read(&path).unwrap());
    let mut source = Files::new(std::slice::from_ref(&path)).unwrap();
    File::options().write(true).open(&path).unwrap().write_all_at(&[1], 4 * MIB).unwrap();
    let at = source.end().unwrap() - 100;
    let error = source.read(at, 10, &mut Payload::new()).unwrap_err();
    assert!(matches!(error, crate::source::SourceError::Changed { .. }), "{error}");
}
