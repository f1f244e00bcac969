//! Crates depend only on crates of their own folder and of the folders below it. Their tests may need others.

use std::collections::BTreeMap;
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

#[test]
fn no_folder_depends_on_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut floors = BTreeMap::new();
    let mut edges = Vec::new();
    for (floor, folder) in FOLDERS.iter().enumerate() {
        for manifest in manifests(&root.join(folder)) {
            let (package, needed) = dependencies(&fs::read_to_string(&manifest).unwrap());
            edges.extend(needed.into_iter().map(|needed| (package.clone(), needed)));
            floors.insert(package, floor);
        }
    }
    assert!(edges.len() > 50, "{}", edges.len());
    for (package, needed) in edges {
        let is_below = floors[&needed] <= floors[&package];
        assert!(is_below, "{package} depends on {needed} of {}", FOLDERS[floors[&needed]]);
    }
}
