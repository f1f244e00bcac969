//! Crates depend only on crates of their own folder and of the folders below it, and no paper on another. Their tests may need others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders from the ground up.
const FOLDERS: [&str; 6] = ["engine", "hosts", "systems", "lab", "apps", "tests"];

/// Returns the manifests below a folder, at any depth that crates have.
fn manifests(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let manifest = entry.path().join("Cargo.toml");
        if manifest.is_file() {
            found.push(manifest);
        } else if entry.path().is_dir() {
            found.extend(manifests(&entry.path()));
        }
    }
    found
}

/// Returns the package's name, and the crates of this workspace on which it depends without its tests.
fn dependencies(manifest: &str) -> (String, Vec<String>) {
    let mut header = "";
    let mut package = String::new();
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            header = line;
        } else if header == "[package]"
            && let Some(name) = line.strip_prefix("name = ")
        {
            name.trim_matches('"').clone_into(&mut package);
        } else if header.ends_with("dependencies]")
            && !header.contains("dev-dependencies")
            && line.starts_with("rackweave-")
        {
            let end = line.find(['.', ' ', '=']).unwrap();
            found.push(line[..end].to_owned());
        }
    }
    (package, found)
}

/// The crates of this workspace, by their packages' names: their folders below the root, and the packages that they need.
fn crates() -> BTreeMap<String, (PathBuf, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let of = |manifest: PathBuf| {
        let (package, needed) = dependencies(&fs::read_to_string(&manifest).unwrap());
        let folder = manifest.parent().unwrap().strip_prefix(&root).unwrap().to_owned();
        (package, (folder, needed))
    };
    let crates: BTreeMap<_, _> =
        FOLDERS.iter().flat_map(|folder| manifests(&root.join(folder))).map(of).collect();
    for (package, (_, needed)) in &crates {
        for needed in needed {
            assert!(crates.contains_key(needed), "{package} needs {needed}, which is in no folder");
        }
    }
    crates
}

/// The folders of all crates that one needs, and its own.
fn closure(crates: &BTreeMap<String, (PathBuf, Vec<String>)>, package: &str) -> BTreeSet<PathBuf> {
    let (folder, needed) = &crates[package];
    let mut found: BTreeSet<_> = needed.iter().flat_map(|needed| closure(crates, needed)).collect();
    found.insert(folder.clone());
    found
}

#[test]
fn no_folder_depends_on_one_above_it_and_no_paper_on_another() {
    let crates = crates();
    let floor = |folder: &Path| FOLDERS.iter().position(|floor| folder.starts_with(floor)).unwrap();
    let mut edges = 0;
    for (package, (folder, needed)) in &crates {
        for needed in needed {
            let below = &crates[needed].0;
            edges += 1;
            assert!(
                floor(below) <= floor(folder),
                "{package} needs {needed} of {}",
                below.display()
            );
            // Kernel programs are those of all papers.
            let paper = |folder: &Path| {
                folder.strip_prefix("systems").ok()?.iter().next().map(ToOwned::to_owned)
            };
            if let (Some(own), Some(other)) = (paper(folder), paper(below)) {
                assert!(own == other || own == "bpf", "{package} needs {needed} of another paper");
            }
        }
    }
    assert!(edges > 50, "{edges}");
}

#[test]
fn the_simulator_needs_no_hosts() {
    let crates = crates();
    for package in ["rackweave-lab", "rackweave-papers", "rackweave-sim"] {
        let found = closure(&crates, package);
        let hosts = found.iter().find(|folder| folder.starts_with("hosts"));
        assert_eq!(hosts, None, "{package}");
    }
}

#[test]
fn stored_points_are_of_the_sources_of_all_crates_that_decide_them() {
    let crates = crates();
    let script = include_str!("../../../lab/lab/build.rs");
    let start = script.find("const CRATES").unwrap();
    let list = &script[start..start + script[start..].find("];").unwrap()];
    let listed: BTreeSet<_> = list.split('"').skip(1).step_by(2).map(PathBuf::from).collect();
    assert_eq!(listed, closure(&crates, "rackweave-lab"), "lab/lab/build.rs");
}
