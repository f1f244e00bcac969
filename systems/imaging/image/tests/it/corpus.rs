//! Replays the fuzz target's corpus without a fuzzer.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use rackweave_image::{Packing, Progress, SecretKey, pack};

use crate::checks;
use crate::common::{noise, packing, sparse, text};
use crate::ndz::encode::Chunk;

fn corpus() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "..", "fuzz", "corpus", "decode_image"]
        .iter()
        .collect()
}

/// The seeds, and whether they are whole.
fn seeds() -> Vec<(&'static str, Vec<u8>, bool)> {
    let folder = tempfile::tempdir().unwrap();
    let (disk, file) = (folder.path().join("disk"), folder.path().join("image"));
    sparse(&disk, 300_000, &[(0, noise(1, 100)), (140_000, text(2, 5000))]);
    let key = Some(SecretKey::from_seed(&[1; 32]));
    let made = pack(&disk, &file, &Packing { key, ..packing() }, &Progress::default()).unwrap();
    let manifest = [&[0][..], &made.manifest.encode()].concat();
    let mut damaged = manifest.clone();
    damaged[700] ^= 1;
    let ndz = |version, kind: &[[u32; 4]]| {
        let mut chunk = Chunk::new(version, 0, vec![(1, text(1, 1024)), (10, text(2, 512))]);
        chunk.relocations = kind.to_vec();
        let mut bytes = [&[1][..], &chunk.encode()].concat();
        bytes.truncate(4096 + 1000);
        bytes
    };
    let mut many = ndz(3, &[]);
    many[1 + 20] = 0xff;
    let mut table = vec![0; 1 + 2048];
    table[0] = 2;
    table[1 + 446..][..16].copy_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
    table[1 + 510..][..2].copy_from_slice(&[0x55, 0xaa]);
    vec![
        ("manifest", manifest, true),
        ("manifest-damaged", damaged, false),
        ("ndz-v1", ndz(1, &[]), true),
        ("ndz-v4", ndz(4, &[[6, 10, 0, 100]]), true),
        ("ndz-too-many-regions", many, false),
        ("ndz-relocation-unknown", ndz(2, &[[9, 1, 0, 1]]), false),
        ("disk-partition", table, false),
        ("disk-ext4", [&[2][..], &ext4()].concat(), true),
    ]
}

/// An ext4 file system of one group, with 64 blocks, 40 of them free.
fn ext4() -> Vec<u8> {
    let mut disk = vec![0; 64 * 1024];
    let superblock = &mut disk[1024..2048];
    let mut put =
        |at: usize, word: u32| superblock[at..at + 4].copy_from_slice(&word.to_le_bytes());
    put(4, 64);
    put(20, 1);
    put(32, 8192);
    put(40, 16);
    put(56, 0x0001_ef53);
    disk[2048] = 3;
    disk[2048 + 12..2048 + 14].copy_from_slice(&40_u16.to_le_bytes());
    // The first 23 of its 63 blocks are used.
    disk[3 * 1024..][..3].copy_from_slice(&[0xff, 0xff, 0x7f]);
    disk
}

#[test]
fn seeds_are_decoded_as_they_should() {
    let mut names: Vec<_> = fs::read_dir(corpus())
        .expect("the corpus is there")
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected: Vec<_> = seeds().iter().map(|(name, ..)| (*name).to_owned()).collect();
    expected.sort();
    assert_eq!(names, expected);
    for (name, _, whole) in seeds() {
        assert_eq!(checks::image(&fs::read(corpus().join(name)).unwrap()), whole, "{name}");
    }
}

/// If this fails, run `SEEDS=write cargo test -p rackweave-image corpus`.
#[test]
fn the_corpus_is_what_the_encoders_write() {
    for (name, bytes, _) in seeds() {
        let path = corpus().join(name);
        if std::env::var("SEEDS").is_ok_and(|it| it == "write") {
            fs::create_dir_all(corpus()).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        assert!(fs::read(&path).unwrap() == bytes, "{name}");
    }
}

proptest! {
    #[test]
    fn any_change_of_a_seed_is_harmless(
        seed in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        len in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        static SEEDS: std::sync::OnceLock<Vec<(&str, Vec<u8>, bool)>> = std::sync::OnceLock::new();
        let (_, mut bytes, _) = seed.get(SEEDS.get_or_init(seeds)).clone();
        for (at, byte) in changes {
            // Most fields are at the beginning.
            let at = at.index(bytes.len().min(if byte % 2 == 0 { 700 } else { usize::MAX }));
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(len.index(bytes.len()));
        }
        checks::image(&bytes);
    }
}
