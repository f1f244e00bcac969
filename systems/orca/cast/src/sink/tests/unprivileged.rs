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
    assert_eq!((deleted.entries, deleted.failed), (0, 1));
    set_mode(&to.join("d"), 0o700);
}
