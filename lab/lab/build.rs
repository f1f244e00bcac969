//! Finds a fingerprint of the sources that decide what a simulation gives, for stored points: they are taken by runs of the same build only.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

/// The crates whose code is part of a simulation.
const CRATES: [&str; 12] = [
    "engine/core",
    "engine/sim",
    "engine/switch",
    "engine/transport",
    "engine/wire",
    "engine/workload",
    "lab/lab",
    "lab/scenario",
    "systems/imaging/machines",
    "systems/orca/machines",
    "systems/reduce/machines",
    "systems/reduce/rackless",
];

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let root = here.parent().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
    let mut files = Vec::new();
    for name in CRATES {
        let sources = root.join(name).join("src");
        // In a published package the others are not there, and its version stands for them.
        if sources.is_dir() {
            println!("cargo::rerun-if-changed={}", sources.display());
            collect(&sources, &mut files);
        }
    }
    files.sort_unstable();
    let mut hash = DefaultHasher::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file);
        name.to_string_lossy().replace('\\', "/").hash(&mut hash);
        std::fs::read(file).unwrap_or_default().hash(&mut hash);
    }
    println!("cargo::rustc-env=RACKWEAVE_SOURCES={:016x}", hash.finish());
}

/// Adds the files of a directory and of those in it.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}
