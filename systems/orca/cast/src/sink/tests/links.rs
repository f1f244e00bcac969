//! Hard links such as no sender would make.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::format::{DecodeError, Delete, FileHeader, Manifest, ManifestEntry};
use crate::store::fault::{FOREIGN, LINKS, SYNCED};

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
        owner: None,
        mode: 0o755,
        mtime_s: 7,
        mtime_ns: 0,
    }
}

/// A stream of empty files, directories and links.
pub(super) fn stream(headers: &[FileHeader]) -> Vec<u8> {
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
        vec![symbolic("x", [b'y'; 4096])],
        vec![FileHeader { length: Some(5), ..symbolic("x", "y") }],
        vec![FileHeader { length: None, ..symbolic("x", "y") }],
    ];
    for (number, headers) in (10..).zip(refused) {
        let config = FolderConfig { overwrite: true, ..config(&root) };
        let mut sink = Folder::new(config, number).unwrap();
        // The system is not asked about a text that is too long for it.
        let result = sink.put(&stream(&headers));
        let is_long = headers[0].symbolic_link().is_some_and(|it| it.len() > 4095);
        assert!(
            match is_long {
                true => matches!(result, Err(SinkError::Stream(_))),
                false => result.is_err(),
            },
            "{headers:?}"
        );
        assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    }
    // A file replaces the link, and not what the link leads to.
    let overwrite = FolderConfig { overwrite: true, ..config(&root) };
    let mut sink = Folder::new(overwrite.clone(), 5).unwrap();
    sink.put(&stream(&[symbolic("x", &kept), file("x")])).unwrap();
    assert!(std::fs::symlink_metadata(root.join("x")).unwrap().is_file());
    assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
    let mut sink = Folder::new(overwrite.clone(), 7).unwrap();
    let longest = [b'y'; 4095];
    sink.put(&stream(&[symbolic("x", longest)])).unwrap();
    assert_eq!(std::fs::read_link(root.join("x")).unwrap().as_os_str().len(), 4095);
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

/// Where a link is made before it gets its name, somebody has a folder.
#[test]
fn a_link_gets_its_name_though_the_name_that_it_has_before_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let name = blake3::hash(b"x").to_hex();
    let aside = root.join(format!(".rackweave-cast-{}.link", &name[..32]));
    std::fs::create_dir(&aside).unwrap();
    for sent in
        [vec![symbolic("x", "y")], vec![header("a", None, false), header("x", Some("a"), false)]]
    {
        std::fs::write(root.join("x"), b"old").unwrap();
        let config = FolderConfig { overwrite: true, ..config(root) };
        let mut sink = Folder::new(config, sent.len() as u128).unwrap();
        sink.put(&stream(&sent)).unwrap();
        assert!(sink.is_complete());
        std::fs::remove_file(root.join("x")).unwrap();
    }
    assert!(aside.is_dir());
}

/// Makes what a path leads to, itself a link or not, another user's to this thread.
fn give_away(path: &Path) {
    let found = std::fs::symlink_metadata(path).unwrap();
    FOREIGN.set(Some((found.dev(), found.ino())));
}

#[test]
fn a_link_of_another_user_is_replaced_or_keeps_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let at = root.join("x");
    std::os::unix::fs::symlink("y", &at).unwrap();
    give_away(&at);
    let sent = [symbolic("x", "y"), header("z", None, false)];
    let entries = sent.iter().map(|it| ManifestEntry { header: it.clone(), hash: None });
    let manifest = Manifest { entries: entries.collect(), ..Manifest::default() };
    let replacing = FolderConfig { overwrite: true, ..config(root) };
    for (number, config, foreign) in [(5, config(root), 1), (6, replacing, 0)] {
        let lacking = compare(&config, &manifest).lacking_files;
        assert_eq!(lacking, if number == 5 { 1 } else { 2 - foreign - 1 });
        let mut sink = Folder::new(config.clone(), number).unwrap();
        sink.put(&stream(&sent)).unwrap();
        assert!(sink.is_complete() && compare(&config, &manifest).is_complete);
        assert_eq!(sink.caveats(), Caveats { foreign, ..Caveats::default() });
        let is_set = std::fs::symlink_metadata(&at).unwrap().mtime() == 7;
        assert_eq!(is_set, foreign == 0);
    }
    FOREIGN.set(None);
}

#[test]
fn a_file_of_another_user_is_replaced_or_keeps_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let at = root.join("x");
    std::fs::write(&at, b"").unwrap();
    std::fs::set_permissions(&at, PermissionsExt::from_mode(0o644)).unwrap();
    give_away(&at);
    let replacing = FolderConfig { overwrite: true, ..config(root) };
    for (config, foreign) in [(config(root), 1), (replacing, 0)] {
        let mut sink = Folder::new(config, 5).unwrap();
        sink.put(&stream(&[header("x", None, false)])).unwrap();
        assert!(sink.is_complete());
        assert_eq!(sink.caveats(), Caveats { foreign, ..Caveats::default() });
        let mode = at.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode, if foreign == 0 { 0o755 } else { 0o644 });
    }
    FOREIGN.set(None);
}

/// Only one name of the file would have the new content, and the receiver would be told that it has everything.
#[test]
fn a_file_that_has_to_be_sent_again_is_lacking_at_all_its_names() {
    let content = big(10);
    let (_from, mut source, manifest) = linked(&content);
    let stream = bytes_of(&mut source, 0);
    let to = tempfile::tempdir().unwrap();
    let config = FolderConfig { overwrite: true, ..config(to.path()) };
    let mut sink = Folder::new(config.clone(), source.stream()).unwrap();
    sink.put(&stream).unwrap();
    let at = to.path().join("d/a");
    std::fs::set_permissions(&at, PermissionsExt::from_mode(0o600)).unwrap();
    give_away(&at);
    assert_eq!(compare(&config, &manifest).lacking_files, 2);
    FOREIGN.set(None);
}

/// A folder that is looked into for one name of a file is an entry of its own, later.
#[test]
fn a_folder_is_compared_with_the_mode_that_it_has() {
    let to = tempfile::tempdir().unwrap();
    std::fs::create_dir(to.path().join("d")).unwrap();
    std::fs::write(to.path().join("d/b"), b"").unwrap();
    let time = UNIX_EPOCH + Duration::from_secs(7);
    for name in ["d/b", "d"] {
        std::fs::File::open(to.path().join(name)).unwrap().set_modified(time).unwrap();
    }
    std::fs::set_permissions(to.path().join("d"), PermissionsExt::from_mode(0o500)).unwrap();
    let folder = FileHeader { mode: 0o700, ..header("d", None, true) };
    let headers = [header("a", None, false), folder, header("d/b", Some("a"), false)];
    let entries = headers.map(|header| ManifestEntry { header, hash: None }).into();
    let manifest = Manifest { entries, ..Manifest::default() };
    let found = compare(&config(to.path()), &manifest);
    let mode = to.path().join("d").metadata().unwrap().mode() & 0o777;
    assert!(!found.is_complete && mode == 0o500, "{found:?} {mode:o}");
}

/// The rest of a transfer of `x`, which is not sent now, has the name of another entry.
#[test]
fn the_rest_of_another_transfer_is_in_nobodys_way() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let sent: [(u128, Vec<FileHeader>); 3] = [
        (5, vec![symbolic("x.part", "y")]),
        (6, vec![header("a", None, false), header("x.part", Some("a"), false)]),
        (7, vec![header("x.part", None, false)]),
    ];
    for (number, headers) in sent {
        let dir = crate::store::Dir::open(folder.path()).unwrap();
        let config = config(folder.path());
        let entries = headers.iter().map(|it| ManifestEntry { header: it.clone(), hash: None });
        let manifest = Manifest { entries: entries.collect(), ..Manifest::default() };
        let rest = dir.entry("x".as_ref()).part().open_part(false).unwrap();
        std::fs::write(at("x.part"), b"rest").unwrap();
        std::fs::write(at(state::table_name(b"x").to_str().unwrap()), b"").unwrap();
        assert_eq!(compare(&config, &manifest).obstacle, None);
        // It goes on.
        let mut sink = Folder::new(config.clone(), number).unwrap();
        let result = sink.put(&stream(&headers));
        assert!(matches!(result, Err(SinkError::Store(StoreError::Busy(_)))), "{result:?}");
        drop((rest, sink));
        let mut sink = Folder::new(config, number).unwrap();
        sink.put(&stream(&headers)[sink.begins_at() as usize..]).unwrap();
        assert!(sink.is_complete());
        assert!(std::fs::symlink_metadata(at("x.part")).is_ok_and(|it| it.len() < 4));
        assert!(!at(state::table_name(b"x").to_str().unwrap()).exists());
        std::fs::remove_file(at("x.part")).unwrap();
    }
}

#[test]
fn a_folder_is_synced_once_for_all_links_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = FolderConfig { sync: true, ..config(folder.path()) };
    let mut headers = vec![header("a", None, false), header("d", None, true)];
    headers.extend((0..20).map(|number| symbolic(&format!("d/s{number}"), "y")));
    headers.extend((0..20).map(|number| header(&format!("d/t{number}"), Some("a"), false)));
    let stream = stream(&headers);
    SYNCED.set(0);
    let mut sink = Folder::new(config.clone(), 5).unwrap();
    sink.put(&stream[..stream.len() - 1]).unwrap();
    drop(sink);
    assert!(SYNCED.get() < 20, "{}", SYNCED.get());
    let mut sink = Folder::new(config.clone(), 5).unwrap();
    SYNCED.set(0);
    sink.put(&stream[sink.begins_at() as usize..]).unwrap();
    assert!(sink.is_complete() && (1..20).contains(&SYNCED.get()), "{}", SYNCED.get());
    // All links get another time.
    for header in &mut headers {
        header.mtime_s += i64::from(header.symbolic_link().is_some());
    }
    let entries = headers.into_iter().map(|header| ManifestEntry { header, hash: None });
    let manifest = Manifest { entries: entries.collect(), ..Manifest::default() };
    SYNCED.set(0);
    assert!(compare(&config, &manifest).is_complete && (1..20).contains(&SYNCED.get()));
}

#[test]
fn a_folder_whose_files_are_there_is_synced_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = FolderConfig { sync: true, ..config(folder.path()) };
    let mut headers = vec![header("d", None, true), header("d/e", None, true)];
    headers.extend((0..20).map(|number| header(&format!("d/{number}"), None, false)));
    let mut sink = Folder::new(config.clone(), 5).unwrap();
    sink.put(&stream(&headers)).unwrap();
    assert!(sink.is_complete());
    let entries = headers.into_iter().map(|header| ManifestEntry { header, hash: None });
    let manifest = Manifest { entries: entries.collect(), ..Manifest::default() };
    SYNCED.set(0);
    let found = compare(&config, &manifest);
    // The name of `d` is in the folder of the receiver.
    assert!(found.is_complete && SYNCED.get() == 2, "{} {found:?}", SYNCED.get());
}

/// The variable that names the folder to the process that can open few files.
const FEW: &str = "RACKWEAVE_TEST_FEW_FILES";

#[test]
fn folders_that_nobody_may_look_into_are_as_many_as_one_likes() {
    const FOLDERS: usize = 100;
    let mut headers = Vec::new();
    for number in 0..FOLDERS {
        headers.push(FileHeader { mode: 0o500, ..header(&format!("d{number}"), None, true) });
        headers.push(header(&format!("d{number}/x"), None, false));
    }
    let deep = |name: &str| vec![name; FOLDERS].join("/");
    let manifest = |headers: Vec<FileHeader>| {
        let entries = headers.into_iter().map(|header| ManifestEntry { header, hash: None });
        Manifest { entries: entries.collect(), ..Manifest::default() }
    };
    if let Some(root) = std::env::var_os(FEW).map(PathBuf::from) {
        assert!(compare(&config(&root), &manifest(headers)).is_complete);
        // Nor do folders that are deep in each other have to be open, be they closed to their owner or not.
        for name in ["open", "shut"] {
            let path = deep(name);
            let places = [format!("{path}/x"), format!("{path}-"), "x".into(), format!("{path}/x")];
            let headers = places.map(|path| header(&path, None, false)).into();
            let found = compare(&config(&root), &manifest(headers));
            assert_eq!(found.lacking_files, 2, "{found:?}");
        }
        // What cannot be opened is not absent.
        let mut sink = Comparing::new(config(&root)).unwrap();
        let manifest = manifest(vec![header("d0/x", None, false)]).encode().unwrap();
        let open: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        let error = sink.put(&manifest).unwrap_err();
        drop(open);
        assert!(matches!(error, SinkError::Store(StoreError::ManyOpen(_))), "{error}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut sink = Folder::new(config(folder.path()), 5).unwrap();
    sink.put(&stream(&headers)).unwrap();
    assert!(sink.is_complete());
    let open = |name: &str, mode| {
        std::fs::set_permissions(folder.path().join(name), PermissionsExt::from_mode(mode))
            .unwrap();
    };
    for (name, mode) in [("open", 0o700), ("shut", 0o500)] {
        std::fs::create_dir_all(folder.path().join(deep(name))).unwrap();
        std::fs::write(folder.path().join(deep(name)).join("x"), b"").unwrap();
        let x = std::fs::File::options().write(true).open(folder.path().join(deep(name)).join("x"));
        x.unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(7)).unwrap();
        let mut path = deep(name);
        while let Some((above, _)) = path.rsplit_once('/') {
            open(&path, mode);
            path = above.to_owned();
        }
        open(name, mode);
    }
    let mut process = std::process::Command::new("sh");
    process.args(["-c", "ulimit -n 60; exec \"$@\"", "sh"]).arg(std::env::current_exe().unwrap());
    process.args(["--exact", "--nocapture"]).arg(std::thread::current().name().unwrap());
    let done = process.env(FEW, folder.path()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    for number in 0..FOLDERS {
        open(&format!("d{number}"), 0o700);
    }
    for depth in 1..=FOLDERS {
        open(&vec!["shut"; depth].join("/"), 0o700);
    }
}
