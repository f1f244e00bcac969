//! What only a user without the rights of root meets: each test goes on in a process of such a user.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::*;
use crate::format::{Delete, Manifest, ManifestEntry};

/// The variable that names the folder to that process.
const FOLDER: &str = "RACKWEAVE_TEST_UNPRIVILEGED";

/// Returns a folder of the user in the process of that user, and otherwise waits for it.
fn folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return Some(folder.into());
    }
    let folder = tempfile::tempdir().unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "--nocapture"]).arg(std::thread::current().name().unwrap());
    process.env(FOLDER, folder.path());
    if rustix::process::geteuid().is_root() {
        rackweave_testing::needs!(SetUid, None);
        std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
        process.uid(65534).gid(65534);
    }
    let done = process.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    None
}

fn set_mode(at: &Path, mode: u32) {
    std::fs::set_permissions(at, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn an_empty_part_that_may_not_be_written_is_in_nobodys_way() {
    let Some(to) = folder() else { return };
    let from = to.join("from");
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("a"), b"content").unwrap();
    let mut source = Files::new(&[from.join("a")]).unwrap();
    let part = to.join("a.part");
    std::fs::write(&part, b"").unwrap();
    set_mode(&part, 0o400);
    let mut sink = Folder::new(config(&to), source.stream()).unwrap();
    sink.put(&bytes_of(&mut source, 0)).unwrap();
    assert!(sink.is_complete() && !part.exists());
    assert_eq!(std::fs::read(to.join("a")).unwrap(), b"content");
}

/// The time of the last change of a file's attributes cannot be set back.
#[test]
fn a_dry_run_changes_no_mode_not_for_a_moment_either() {
    let Some(to) = folder() else { return };
    std::fs::create_dir(to.join("d")).unwrap();
    for name in ["d/x", "d/y"] {
        std::fs::write(to.join(name), b"content").unwrap();
        set_mode(&to.join(name), 0);
    }
    set_mode(&to.join("d"), 0o300);
    let changed = || {
        ["d", "d/x", "d/y"].map(|name| {
            let found = std::fs::symlink_metadata(to.join(name)).unwrap();
            (found.ctime(), found.ctime_nsec(), found.mtime_nsec(), found.mode())
        })
    };
    let before = changed();
    let header = |path: &str, kind, length| FileHeader {
        path: path.into(),
        kind,
        length: Some(length),
        attributes: None,
        owner: None,
        mode: 0o700,
        mtime_s: 7,
        mtime_ns: 0,
    };
    let hash = Some(*blake3::hash(b"content").as_bytes());
    let entries = vec![
        ManifestEntry { header: header("d", RecordKind::Directory, 0), hash: None },
        ManifestEntry { header: header("d/x", RecordKind::File, 7), hash },
    ];
    let purpose =
        Purpose { dry_run: true, checksum: true, delete: Delete::Now, ..Purpose::default() };
    let manifest = Manifest { purpose, entries, ..Manifest::default() };
    let allowing = FolderConfig { allow_delete: true, overwrite: true, ..config(&to) };
    let mut sink = Comparing::new(allowing).unwrap();
    sink.put(&manifest.encode().unwrap()).unwrap();
    let comparison = sink.answer().unwrap().comparison;
    assert_eq!(changed(), before);
    assert_eq!(comparison.lacking_files, 1, "what cannot be read may be another");
    let Deletion::Done(deleted) = comparison.deletion else { panic!("{comparison:?}") };
    assert_eq!((deleted.entries, deleted.failed, deleted.hidden), (0, 0, 1));
    set_mode(&to.join("d"), 0o700);
}

/// A dry run failed where the cast that it stands for deletes.
#[test]
fn a_dry_run_counts_closed_folders_and_the_cast_deletes_them() {
    let Some(to) = folder() else { return };
    std::fs::create_dir_all(to.join("d/old/inside")).unwrap();
    std::fs::write(to.join("d/old/inside/x"), b"").unwrap();
    set_mode(&to.join("d/old/inside"), 0o400);
    set_mode(&to.join("d/old"), 0o300);
    let header = FileHeader {
        path: b"d".into(),
        kind: RecordKind::Directory,
        length: Some(0),
        attributes: None,
        owner: None,
        mode: 0o755,
        mtime_s: 7,
        mtime_ns: 0,
    };
    let file = FileHeader { path: b"d/old".into(), kind: RecordKind::File, ..header.clone() };
    let put = |header: &FileHeader, dry_run, delete| {
        let purpose = Purpose { dry_run, delete, ..Purpose::default() };
        let entries = vec![ManifestEntry { header: header.clone(), hash: None }];
        let manifest = Manifest { purpose, entries, ..Manifest::default() };
        let allowing = FolderConfig { allow_delete: true, ..config(&to) };
        let mut sink = Comparing::new(allowing).unwrap();
        sink.put(&manifest.encode().unwrap()).unwrap();
        let Comparison { deletion, obstacle, .. } = sink.answer().unwrap().comparison;
        assert_eq!(obstacle, None);
        let Deletion::Done(deleted) = deletion else { panic!("{deletion:?}") };
        let paths = deleted.paths.iter().map(|path| String::from_utf8_lossy(path).into_owned());
        (paths.collect::<Vec<_>>(), deleted.failed, deleted.hidden)
    };
    // Where it is in the way of a file, and where nothing is.
    for (header, delete) in [(&file, Delete::Later), (&header, Delete::Now)] {
        assert_eq!(put(header, true, delete), (vec!["d/old/".to_owned()], 0, 1));
    }
    let gone = ["d/old/inside/x", "d/old/inside/", "d/old/"].map(str::to_owned);
    assert_eq!(put(&file, false, Delete::Later), (gone.to_vec(), 0, 0));
    assert!(!to.join("d/old").exists());
}

#[test]
fn a_thousand_closed_folders_in_each_other_are_looked_into_and_stay_closed() {
    let Some(to) = folder() else { return };
    const DEPTH: usize = 1000;
    let at = |depth: usize| vec!["d"; depth].join("/");
    std::fs::create_dir_all(to.join(at(DEPTH))).unwrap();
    let header = |path: String, kind| FileHeader {
        path: path.into(),
        kind,
        length: Some(0),
        attributes: None,
        owner: None,
        mode: 0,
        mtime_s: 7,
        mtime_ns: 0,
    };
    let mut headers = Vec::new();
    let seven = UNIX_EPOCH + Duration::from_secs(7);
    for depth in (1..=DEPTH).rev() {
        let x = to.join(at(depth)).join("x");
        std::fs::File::create(&x).unwrap().set_modified(seven).unwrap();
        set_mode(&x, 0);
        // The files of all folders come behind the folders, as nobody lists them, and once more from the outside.
        headers.push(header(format!("{}/x", at(depth)), RecordKind::File));
        if depth % 100 == 0 {
            headers.push(header(format!("{}/x", at(1)), RecordKind::File));
        }
        let folder = std::fs::File::open(to.join(at(depth))).unwrap();
        folder.set_modified(seven).unwrap();
        set_mode(&to.join(at(depth)), 0);
    }
    headers.extend((1..=DEPTH).map(|depth| header(at(depth), RecordKind::Directory)));
    let entries = headers.into_iter().map(|header| ManifestEntry { header, hash: None });
    let manifest = Manifest { entries: entries.collect(), ..Manifest::default() };
    let mut sink = Comparing::new(config(&to)).unwrap();
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: Some(200), maximum: Some(200) },
    )
    .unwrap();
    sink.put(&manifest.encode().unwrap()).unwrap();
    let found = sink.answer().unwrap().comparison;
    assert!(found.is_complete, "{found:?}");
    for depth in 1..=DEPTH {
        let folder = to.join(at(depth));
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0, "{depth}");
        set_mode(&folder, 0o700);
    }
}
