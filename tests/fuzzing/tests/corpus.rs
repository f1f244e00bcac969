//! Replays the fuzz targets' corpus without a fuzzer, and changes of it.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use proptest::prelude::*;
use rackweave_fuzzing::TARGETS;

/// The seeds of a target, by their names.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "..", "fuzz", "corpus", target].iter().collect();
    let read =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<_> = read
        .map(|entry| {
            let entry = entry.expect("the folder can be read");
            let bytes = fs::read(entry.path()).expect("the seed can be read");
            (entry.file_name().into_string().expect("a plain name"), bytes)
        })
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{} is empty", folder.display());
    found
}

#[test]
fn every_seed_is_harmless() {
    for (name, target) in TARGETS {
        for (seed, bytes) in seeds(name) {
            println!("{name}/{seed}");
            target(&bytes);
        }
    }
}

#[test]
fn every_folder_of_seeds_has_a_program_for_the_fuzzer() {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fuzz"].iter().collect();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the fuzzer's manifest");
    let folders = fs::read_dir(root.join("corpus")).expect("the seeds").map(Result::unwrap);
    let names: Vec<_> = folders.map(|it| it.file_name().into_string().unwrap()).collect();
    assert!(names.len() > TARGETS.len(), "{names:?}");
    for name in names {
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name} is in no manifest");
        let program = root.join("fuzz_targets").join(&name).with_extension("rs");
        assert!(program.exists(), "{name} has no program");
    }
}

#[test]
fn every_target_has_a_program_for_the_fuzzer() {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fuzz"].iter().collect();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the fuzzer's manifest");
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name}");
        let program = root.join("fuzz_targets").join(name).with_extension("rs");
        let program = fs::read_to_string(program).expect("the target's program");
        assert!(program.contains(&format!("rackweave_fuzzing::{name}(bytes)")), "{name}");
    }
}

/// The seeds of all targets, in their order.
fn all() -> &'static [Vec<Vec<u8>>] {
    static ALL: OnceLock<Vec<Vec<Vec<u8>>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let bytes = |(_, bytes)| bytes;
        TARGETS.iter().map(|(name, _)| seeds(name).into_iter().map(bytes).collect()).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..rackweave_testing::cases(512) })]

    #[test]
    fn any_change_of_a_seed_is_harmless(
        number in 0..TARGETS.len(),
        seed in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        joins in any::<bool>(),
    ) {
        let seeds = &all()[number];
        let mut bytes = seed.get(seeds).clone();
        for (at, byte) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        if joins {
            bytes.truncate(cut.index(bytes.len() + 1));
            bytes.extend_from_slice(other.get::<Vec<u8>>(seeds));
        }
        (TARGETS[number].1)(&bytes);
    }

    /// Targets of machines make sense of any bytes: these are their schedules.
    #[test]
    fn any_bytes_are_harmless(
        number in 0..TARGETS.len(),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        (TARGETS[number].1)(&bytes);
    }
}
