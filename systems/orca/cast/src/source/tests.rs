use super::*;
use crate::format::{CHUNK, DecodeError, Decoder, FileHeader, Hash, Visitor};

#[derive(Default)]
struct Got(Vec<(String, bool, Vec<u8>)>, bool);

impl Visitor for Got {
    type Error = DecodeError;
    fn file(&mut self, header: &FileHeader, _: u64) -> Result<(), DecodeError> {
        let name = String::from_utf8(header.path.clone()).unwrap();
        self.0.push((name, header.is_directory(), Vec::new()));
        Ok(())
    }
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.0.last_mut().unwrap().2.extend_from_slice(bytes);
        Ok(())
    }
    fn hole(&mut self, len: usize, _: &Hash) -> Result<(), DecodeError> {
        self.bytes(&vec![0; len])
    }
    fn chunk(&mut self, _: &Hash, _: u64) -> Result<(), DecodeError> {
        Ok(())
    }
    fn file_end(&mut self, _: u64, _: &Hash, _: u64) -> Result<(), DecodeError> {
        Ok(())
    }
    fn end(&mut self, _: u64, _: u64) -> Result<(), DecodeError> {
        self.1 = true;
        Ok(())
    }
}

fn read_all(source: &mut dyn Source, payload: usize) -> Got {
    let (mut got, mut decoder) = (Got::default(), Decoder::default());
    let end = source.end().unwrap();
    let mut at = 0;
    while at < end {
        let len = payload.min((end - at) as usize);
        let mut out = Payload::new();
        source.read(at, len, &mut out).unwrap();
        assert!(out.len() <= 2);
        assert_eq!(out.iter().map(Bytes::len).sum::<usize>(), len);
        for bytes in out {
            decoder.push(&bytes, &mut got).unwrap();
        }
        at += len as u64;
    }
    assert!(got.1);
    got
}

#[test]
fn files_are_streams_that_can_be_read_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("dir/sub/empty")).unwrap();
    let big: Vec<u8> = (0..2 * CHUNK + 100).map(|i| (i / 3) as u8).collect();
    std::fs::write(at("dir/sub/big"), &big).unwrap();
    std::fs::write(at("dir/none"), []).unwrap();
    for i in 0..30 {
        std::fs::write(at(&format!("dir/small{i:02}")), [i; 3]).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", at("dir/link")).unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, at("dir/pipe"), kind, mode, 0).unwrap();
    std::fs::write(at("one"), b"one").unwrap();
    let mut files = Files::new(&[at("one"), at("dir")]).unwrap();
    let skipped = Listing::new(&[at("dir")]).unwrap();
    let skipped = skipped.skipped().iter().map(|it| (&it.name[..], it.kind));
    assert!(skipped.eq([(&b"dir/pipe"[..], "pipe")]));
    let got = read_all(&mut files, 1424).0;
    assert_eq!(got[0], ("one".into(), false, b"one".to_vec()));
    assert_eq!(got[1].0, "dir");
    assert!(got[1].1);
    assert!(got.contains(&("dir/link".into(), false, Vec::new())));
    assert!(got.contains(&("dir/sub/big".into(), false, big)));
    assert!(got.contains(&("dir/sub/empty".into(), true, Vec::new())));
    assert_eq!(got.len(), files.count());
    // The same files form the same stream, and its end can be read without the rest.
    let mut again = Files::new(&[at("one"), at("dir")]).unwrap();
    assert_eq!(again.stream(), files.stream());
    let (mut first, mut second) = (Payload::new(), Payload::new());
    let end = files.end().unwrap();
    files.read(end - 1400, 1400, &mut first).unwrap();
    again.read(end - 1400, 1400, &mut second).unwrap();
    let join = |payload: Payload| payload.iter().flat_map(|b| b.to_vec()).collect::<Vec<_>>();
    assert_eq!(join(first), join(second));
}

#[test]
fn a_file_that_changes_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, vec![1; 3 * CHUNK]).unwrap();
    let mut files = Files::new(std::slice::from_ref(&path)).unwrap();
    files.read(100, 1000, &mut Payload::new()).unwrap();
    std::fs::write(&path, vec![2; 3 * CHUNK - 5]).unwrap();
    let error = files.read(2 * CHUNK as u64, 1000, &mut Payload::new()).unwrap_err();
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
    let twice = Files::new(&[path.clone(), path]).unwrap_err();
    assert!(matches!(twice, SourceError::Twice { .. }));
}

/// A byte that was read and one that was not are changed, and the modification time is restored: what was sent and the rest would
/// be a mixture.
#[test]
fn a_file_that_changes_and_gets_its_time_back_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, vec![1; 3 * CHUNK]).unwrap();
    let mut files = Files::new(std::slice::from_ref(&path)).unwrap();
    files.read(100, 1000, &mut Payload::new()).unwrap();
    let time = path.metadata().unwrap().modified().unwrap();
    // The clock of a file system may advance by ticks of 10 ms.
    #[expect(clippy::disallowed_methods, reason = "the inode must get another time")]
    std::thread::sleep(std::time::Duration::from_millis(20));
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for at in [0, 2 * CHUNK as u64] {
        std::os::unix::fs::FileExt::write_all_at(&file, &[2], at).unwrap();
    }
    file.set_modified(time).unwrap();
    let error = files.read(2 * CHUNK as u64, 1000, &mut Payload::new()).unwrap_err();
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
}

#[test]
fn a_pipe_is_spooled() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..20 * CHUNK + 7).map(|i| (i / 5) as u8).collect();
    let input = Box::new(io::Cursor::new(bytes.clone()));
    let mut pipe = Pipe::new("pipe", input, folder.path(), 7, CHUNK, None).unwrap();
    let waker = Waker::new().unwrap();
    pipe.start(waker.clone());
    while pipe.end().is_none() {
        waker.wait_in_tests();
    }
    assert_eq!(pipe.content(), bytes.len() as u64);
    let got = read_all(&mut pipe, 5000).0;
    assert_eq!(got, [("pipe".into(), false, bytes)]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The limit bounds what receivers still need and the space on the disk alike.
#[test]
fn a_limited_spool_takes_no_more_space_than_its_limit() {
    const LIMIT: u64 = 2 << 20;
    let folder = tempfile::tempdir().unwrap();
    let total = 40 * CHUNK;
    let input = Box::new(io::Cursor::new(vec![9; total]));
    let mut pipe = Pipe::new("pipe", input, folder.path(), 7, CHUNK / 4, Some(LIMIT)).unwrap();
    let waker = Waker::new().unwrap();
    pipe.start(waker.clone());
    let mut most = 0;
    while pipe.end().is_none() {
        assert!(pipe.error().is_none());
        most = most.max(pipe.space());
        let available = pipe.available();
        pipe.released(available.saturating_sub(1000));
        waker.wait_in_tests();
    }
    // One batch may be written beyond the limit, and space is given back in steps.
    let bound = LIMIT + CHUNK as u64 + pipe::PUNCH;
    assert!(most > 0 && most <= bound, "{most} of {bound}");
    let from = pipe.readable_from();
    assert!(from > total as u64 - LIMIT, "{from}");
    let end = pipe.end().unwrap();
    let mut payload = Payload::new();
    pipe.read(end - 900, 900, &mut payload).unwrap();
    assert_eq!(payload.concat().len(), 900);
}

/// Records from an application pass unchanged; fewer or more bytes than announced are an error.
#[test]
fn records_are_passed_on_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let records: Vec<u8> = (0..3 * CHUNK + 7).map(|i| (i / 5) as u8).collect();
    let length = records.len() as u64;
    for (said, good) in [(length, true), (length + 1, false), (length - 1, false)] {
        let input = Box::new(io::Cursor::new(records.clone()));
        let sizes = (said, 5);
        let mut pipe = Pipe::records(input, folder.path(), (7, 8), sizes, CHUNK / 3, None).unwrap();
        assert_eq!((pipe.stream(), pipe.content()), (7, 5));
        let waker = Waker::new().unwrap();
        pipe.start(waker.clone());
        let error = loop {
            if let Some(error) = pipe.error() {
                break Some(error);
            }
            if pipe.end().is_some() {
                break None;
            }
            waker.wait_in_tests();
        };
        assert_eq!(error.is_none(), good, "{error:?}");
        if good {
            let mut payload = Payload::new();
            pipe.read(0, records.len(), &mut payload).unwrap();
            assert!(payload.concat() == records);
        }
    }
}

#[test]
fn a_file_that_is_longer_than_any_stream_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vast");
    let set = std::fs::File::create(&path).unwrap().set_len(MAX_STREAM);
    if set.is_err() {
        // ext4 has no files of this length.
        return;
    }
    let error = Listing::new(std::slice::from_ref(&path)).unwrap_err();
    assert_eq!(error.to_string(), format!("{} is longer than 128 TB", path.display()));
}

/// Those of one file ended the cast.
#[test]
fn attributes_that_are_too_many_are_not_sent() {
    use rustix::io::Errno;

    use super::listing::Attributes;
    use crate::format::{Attribute, MAX_ATTRIBUTES};
    let attributes = |bytes: usize| {
        let value = |len| Attribute { name: b"user.x".to_vec(), value: vec![7; len] };
        vec![value(60_000), value(bytes - 60_000 - 2 * (1 + 6 + 4))]
    };
    let most = attributes(MAX_ATTRIBUTES);
    assert_eq!(Attributes::new(Ok(most.clone())).unwrap(), Attributes::Some(most));
    let more = Attributes::new(Ok(attributes(MAX_ATTRIBUTES + 1)));
    assert_eq!(more.unwrap(), Attributes::TooMany);
    for (error, expected) in [
        (Errno::TOOBIG, Some(Attributes::TooMany)),
        (Errno::RANGE, Some(Attributes::TooMany)),
        (Errno::OPNOTSUPP, Some(Attributes::Unsupported)),
        (Errno::IO, None),
    ] {
        assert_eq!(Attributes::new(Err(error.into())).ok(), expected);
    }
}

/// With an ACL, the bits of the group are the most that a named user may do: receivers that have the mode alone would give it to the group.
#[test]
fn a_mode_is_sent_without_what_an_acl_gives_to_others() {
    use std::os::unix::fs::PermissionsExt as _;

    use crate::store::disk::DiskFile as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, "x").unwrap();
    let acl = crate::sink::acl_in_tests([6, 7, 4, 7, 0]);
    if std::fs::File::open(&path).unwrap().set_attribute(crate::sink::ACL, Some(&acl)).is_err() {
        // This file system has none.
        return;
    }
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o670);
    let excludes = crate::excludes::Excludes::default();
    let sent = |attributes| {
        let keeps = Keeps { attributes, ..Keeps::default() };
        let listing = Listing::list(std::slice::from_ref(&path), &excludes, keeps);
        listing.unwrap().headers().remove(0)
    };
    assert_eq!(sent(false).mode, 0o640);
    let with_acl = sent(true);
    assert_eq!((with_acl.mode, with_acl.attributes.unwrap()[0].value.clone()), (0o670, acl));
}

/// Somebody who may rename a folder exchanges it for a link while the sender walks or reads.
/// A folder may be one that something was received into.
#[test]
fn the_progress_of_a_receiver_is_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("d");
    std::fs::create_dir_all(root.join(".rackweave-cast-1")).unwrap();
    for name in [".rackweave-cast-0.state", "x"] {
        std::fs::write(root.join(name), b"").unwrap();
    }
    let listing = Listing::new(&[root]).unwrap();
    let paths: Vec<_> = listing.headers().into_iter().map(|it| it.path).collect();
    assert_eq!(paths, [&b"d"[..], b"d/x"]);
}

#[test]
fn nothing_is_read_through_a_link_in_the_place_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let (tree, secret) = (root.join("tree"), root.join("secret"));
    std::fs::create_dir_all(tree.join("d")).unwrap();
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(tree.join("d/f"), "open").unwrap();
    std::fs::write(secret.join("f"), "kept").unwrap();
    let listing = Listing::new(std::slice::from_ref(&tree)).unwrap();
    std::fs::rename(tree.join("d"), root.join("aside")).unwrap();
    std::os::unix::fs::symlink(&secret, tree.join("d")).unwrap();
    let through = tree.join("d/f");
    assert!(listing::open(&through).is_err() && listing::metadata_of(&through).is_err());
    let mut source = Files::of(&listing, |_| true).unwrap();
    let end = source.end().unwrap();
    let mut at = 0;
    let refused = loop {
        let mut out = Payload::new();
        match source.read(at, CHUNK.min((end - at) as usize), &mut out) {
            Ok(()) if at < end => at = (at + CHUNK as u64).min(end),
            Ok(()) => break false,
            Err(_) => break true,
        }
    };
    assert!(refused, "a file was read through the link");
    let again = Listing::new(std::slice::from_ref(&tree)).unwrap();
    let kinds: Vec<_> = again.found().iter().map(|it| it.header.kind.clone()).collect();
    assert!(matches!(&kinds[..], [_, crate::format::RecordKind::SymbolicLink(_)]), "{kinds:?}");
}
