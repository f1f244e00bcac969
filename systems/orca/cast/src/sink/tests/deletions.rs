//! Manifests that ask to delete, also such as no sender would make.

use std::path::PathBuf;

use super::*;
use crate::format::{
    Delete, Deleted, FileHeader, Manifest, ManifestEntry, ObstacleKind, Protected,
};
use crate::store::Dir;

fn entry(path: &str, directory: bool, folder: &Path) -> ManifestEntry {
    let meta = folder.join(path).metadata();
    let (mtime_s, mtime_ns) = meta.map_or((0, 0), |meta| {
        use std::os::unix::fs::MetadataExt as _;
        (meta.mtime(), meta.mtime_nsec() as u32)
    });
    let path = path.as_bytes().to_vec();
    let header = FileHeader {
        attributes: None,
        owner: None,
        path,
        kind: if directory { RecordKind::Directory } else { RecordKind::File },
        length: Some(0),
        mode: 0o755,
        mtime_s,
        mtime_ns,
    };
    ManifestEntry { header, hash: None }
}

/// Puts a manifest into a receiver's folder.
fn put(
    config: FolderConfig,
    entries: Vec<ManifestEntry>,
    protected: Protected,
    dry_run: bool,
) -> Result<(bool, Deletion), SinkError> {
    let purpose = Purpose { dry_run, delete: Delete::Now, ..Purpose::default() };
    let comparison = compare(config, Manifest { purpose, entries, protected })?;
    Ok((comparison.is_complete, comparison.deletion))
}

fn compare(config: FolderConfig, manifest: Manifest) -> Result<Comparison, SinkError> {
    let mut sink = Comparing::new(config)?;
    sink.put(&manifest.encode().unwrap())?;
    Ok(sink.answer().unwrap().comparison)
}

fn names(deletion: &Deletion) -> Vec<String> {
    let Deletion::Done(Deleted { paths, failed: 0, .. }) = deletion else { panic!("{deletion:?}") };
    paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

fn allowing(folder: &Path) -> FolderConfig {
    FolderConfig { allow_delete: true, ..config(folder) }
}

/// A receiver's folder with `d/keep`, `d/x`, and links out of it.
fn scene() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    std::fs::create_dir_all(root.join("d/e/f")).unwrap();
    std::fs::create_dir_all(outside.join("inside")).unwrap();
    for path in [root.join("d/keep"), root.join("d/x"), outside.join("inside/secret")] {
        std::fs::write(path, b"").unwrap();
    }
    std::os::unix::fs::symlink(&outside, root.join("away")).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("d/away")).unwrap();
    for path in ["d", "d/e", "d/e/f", "d/keep", "d/x"] {
        std::fs::set_permissions(root.join(path), PermissionsExt::from_mode(0o755)).unwrap();
    }
    (folder, root)
}

#[test]
fn nothing_outside_the_folder_and_nothing_behind_a_link_is_deleted() {
    let (folder, root) = scene();
    let secret = folder.path().join("outside/inside/secret");
    for (path, dry_run) in [("away", false), ("away", true), ("d/away", true), ("d/away", false)] {
        let entries = vec![entry(path, true, &root), entry(&format!("{path}/inside"), true, &root)];
        // A link in the place of a folder would be replaced.
        let (_, found) = put(allowing(&root), entries, Protected::default(), dry_run).unwrap();
        match dry_run {
            true => assert_eq!(names(&found)[0], path),
            false => assert_eq!(found, Deletion::NotDone(Deleted::default())),
        }
    }
    for path in ["..", "d/..", "/etc", ".", "d/../../outside", "", ".rackweave-cast-x"] {
        let entries = vec![entry(path, true, &root)];
        assert!(put(allowing(&root), entries, Protected::default(), false).is_err(), "{path}");
    }
    // The link itself is deleted, and a directory that is listed twice is not emptied.
    let entries = vec![
        entry("d", true, &root),
        entry("d", true, &root),
        entry("d/keep", false, &root),
        entry("d/e/f", true, &root),
    ];
    let (complete, deletion) = put(allowing(&root), entries, Protected::default(), false).unwrap();
    assert!(complete);
    assert_eq!(names(&deletion), ["d/away", "d/x"]);
    assert!(secret.exists() && root.join("d/keep").exists() && root.join("d/e/f").exists());
    assert!(root.join("away").symlink_metadata().is_ok());
}

#[test]
fn nothing_is_deleted_where_something_is_lacking_or_protected() {
    let (_folder, root) = scene();
    let lacking = vec![entry("d", true, &root), entry("d/missing", false, &root)];
    let (complete, deletion) = put(allowing(&root), lacking, Protected::default(), false).unwrap();
    assert!(!complete && deletion == Deletion::NotDone(Deleted::default()));
    let d = || vec![entry("d", true, &root)];
    let protected = Protected { patterns: vec!["ke*".into()], paths: vec![b"d/e/f".to_vec()] };
    let (_, deletion) = put(allowing(&root), d(), protected.clone(), true).unwrap();
    assert_eq!(names(&deletion), ["d/away", "d/x"]);
    let wrong = Protected { patterns: vec!["[z-a]".into()], ..Protected::default() };
    assert!(matches!(put(allowing(&root), d(), wrong, false), Err(SinkError::Excludes(_))));
    let (_, deletion) = put(config(&root), d(), protected, false).unwrap();
    assert_eq!(deletion, Deletion::Refused);
    assert_eq!(std::fs::read_dir(root.join("d")).unwrap().count(), 4);
}

#[test]
fn a_file_that_another_transfer_writes_stays() {
    let (_folder, root) = scene();
    let dir = Dir::open(&root.join("d")).unwrap();
    let part = dir.entry("new".as_ref()).part().open_part(false).unwrap();
    std::fs::write(root.join("d/old.part"), b"").unwrap();
    let table = root.join(state::table_name(b"d/old"));
    std::fs::write(&table, b"").unwrap();
    let entries = vec![entry("d", true, &root), entry("d/keep", false, &root)];
    let (_, deletion) = put(allowing(&root), entries.clone(), Protected::default(), false).unwrap();
    assert_eq!(names(&deletion), ["d/away", "d/e/f/", "d/e/", "d/old.part", "d/x"]);
    assert!(part.is_named() && !table.exists());
    drop(part);
    let (_, deletion) = put(allowing(&root), entries, Protected::default(), false).unwrap();
    assert_eq!(names(&deletion), ["d/new.part"]);
}

/// A transfer was killed before a link had its name.
#[test]
fn what_a_killed_transfer_has_left_of_a_link_is_deleted_and_progress_stays() {
    let (_folder, root) = scene();
    let at = |name: &str| root.join("d/e").join(name);
    let [left, file] = [".rackweave-cast-0.link", ".rackweave-cast-1-2.link"];
    std::os::unix::fs::symlink("x", at(left)).unwrap();
    std::fs::write(at(file), b"").unwrap();
    let entries = || vec![entry("d", true, &root), entry("d/keep", false, &root)];
    let put = || put(allowing(&root), entries(), Protected::default(), false).unwrap().1;
    let left = [left, file].map(|name| format!("d/e/{name}"));
    assert_eq!(names(&put())[..5], ["d/away", &*left[0], &*left[1], "d/e/f/", "d/e/"]);
    // The folder of another receiver, and a folder that somebody has called so.
    std::fs::create_dir_all(at(".rackweave-cast-0.link")).unwrap();
    std::fs::write(at(".rackweave-cast-0.state"), b"").unwrap();
    assert!(names(&put()).is_empty());
}

/// Further names of files that are sent by their names are made in the folder of the receiver, which no manifest names.
#[test]
fn what_a_killed_transfer_has_left_of_a_link_in_the_folder_itself_is_deleted_too() {
    let (_folder, root) = scene();
    let [left, other, state] =
        ["0.link", "1.link", "0.state"].map(|name| format!(".rackweave-cast-{name}"));
    for name in [&*left, &*state, "x"] {
        std::fs::write(root.join(name), b"").unwrap();
    }
    std::fs::create_dir(root.join(&other)).unwrap();
    let put = |dry_run| {
        let entries = vec![entry("d", true, &root), entry("d/keep", false, &root)];
        put(allowing(&root), entries, Protected::default(), dry_run).unwrap().1
    };
    assert_eq!(names(&put(true))[0], left);
    assert!(root.join(&left).exists());
    assert_eq!(names(&put(false))[0], left);
    assert!(!root.join(&left).exists() && names(&put(false)).is_empty());
    assert!(
        [&*other, &state, "x", "away"].iter().all(|it| root.join(it).symlink_metadata().is_ok())
    );
}

#[test]
fn what_is_in_the_way_is_found_before_content_and_in_a_dry_run() {
    let (_folder, root) = scene();
    let obstacle = |config: FolderConfig, path: &str, directory: bool| {
        let [real, dry] = [false, true].map(|dry_run| {
            let mut entry = entry(path, directory, &root);
            entry.header.length = Some(if directory { 0 } else { 1 });
            let purpose = Purpose { dry_run, ..Purpose::default() };
            let manifest = Manifest { purpose, entries: vec![entry], ..Manifest::default() };
            compare(config.clone(), manifest).unwrap().obstacle.map(|it| (it.kind, it.entries))
        });
        assert_eq!(real, dry);
        real
    };
    let replacing = || FolderConfig { overwrite: true, ..allowing(&root) };
    for config in [allowing(&root), replacing()] {
        let found = obstacle(config.clone(), "d/keep", true);
        assert_eq!(found, Some((ObstacleKind::NotDirectory, 1)));
        assert_eq!(obstacle(config, "d/e", false), Some((ObstacleKind::IsDirectory, 1)));
    }
    for path in ["d/keep", "d/away"] {
        assert_eq!(obstacle(allowing(&root), path, false), Some((ObstacleKind::Exists, 1)));
        assert_eq!(obstacle(replacing(), path, false), None, "{path} is replaced");
    }
}

/// A part of it would be gone for nothing.
#[test]
fn a_folder_in_the_way_of_a_file_is_deleted_as_a_whole_or_not_at_all() {
    let (_folder, root) = scene();
    std::fs::write(root.join("d/e/f/y"), b"").unwrap();
    let room = |patterns: &[&str]| {
        let patterns = patterns.iter().map(|it| (*it).to_owned()).collect();
        let protected = Protected { patterns, paths: Vec::new() };
        let entries = vec![entry("d", true, &root), entry("d/e", false, &root)];
        let purpose = Purpose { delete: Delete::Later, ..Purpose::default() };
        compare(allowing(&root), Manifest { purpose, entries, protected }).unwrap()
    };
    let found = room(&["y"]);
    assert_eq!(found.obstacle.map(|it| it.kind), Some(ObstacleKind::IsDirectory));
    assert!(root.join("d/e/f/y").exists());
    let found = room(&[]);
    assert_eq!(found.obstacle, None);
    assert_eq!(names(&found.deletion), ["d/e/f/y", "d/e/f/", "d/e/"]);
    assert!(!root.join("d/e").exists() && root.join("d/keep").exists());
}

#[test]
fn a_folder_that_keeps_something_keeps_its_mode() {
    let (_folder, root) = scene();
    std::fs::write(root.join("d/e/f/y.o"), b"").unwrap();
    std::fs::write(root.join("d/e/f/x"), b"").unwrap();
    for path in ["d/e/f", "d/e"] {
        std::fs::set_permissions(root.join(path), PermissionsExt::from_mode(0o500)).unwrap();
    }
    let protected = Protected { patterns: vec!["*.o".into()], paths: Vec::new() };
    let entries = vec![entry("d", true, &root)];
    let (_, deletion) = put(allowing(&root), entries, protected, false).unwrap();
    assert_eq!(names(&deletion), ["d/away", "d/e/f/x", "d/keep", "d/x"]);
    for path in ["d/e/f", "d/e"] {
        let mode = std::fs::metadata(root.join(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o500, "{path}");
    }
}

/// The variable that names the folder to the process that has mounted something in it.
const MOUNTED: &str = "RACKWEAVE_TEST_MOUNTED";

#[test]
fn a_part_of_the_same_file_system_that_is_mounted_in_a_folder_stays() {
    if let Some(root) = std::env::var_os(MOUNTED).map(PathBuf::from) {
        for dry_run in [true, false] {
            let entries = vec![entry("d", true, &root), entry("d/keep", false, &root)];
            let (_, found) = put(allowing(&root), entries, Protected::default(), dry_run).unwrap();
            let Deletion::Done(Deleted { failed: 1, failures, .. }) = &found else {
                panic!("{found:?}")
            };
            assert_eq!(failures[0], b"d/e/f");
        }
        return;
    }
    let (folder, root) = scene();
    let inside = folder.path().join("outside/inside");
    let mut process = std::process::Command::new("unshare");
    process.args(["-rm", "sh", "-c", "mount --bind \"$0\" \"$1\" || exit 0; shift; exec \"$@\""]);
    process.arg(&inside).arg(root.join("d/e/f")).arg(std::env::current_exe().unwrap());
    process.args(["--exact", "--nocapture"]).arg(std::thread::current().name().unwrap());
    let done = process.env(MOUNTED, &root).output();
    // Where there is no `unshare`, or it is not allowed, nothing was tried.
    let Some(done) = done.ok().filter(|it| !it.stderr.starts_with(b"unshare")) else { return };
    assert!(done.status.success(), "{done:?}");
    assert!(inside.join("secret").exists());
}
