//! What is packed is what is unpacked, and the same source gives the same bytes.

use std::fs;

use proptest::prelude::*;
use rackweave_core::Bitmap;
use rackweave_image::{
    Codec, Image, ImageError, Manifest, Packing, Progress, SecretKey, TargetConfig, pack, scan,
};

use crate::common::{DISK, Disk, noise, occupied, packing, sparse, text, unpack};

#[test]
fn a_disk_is_unpacked_as_it_was_with_its_holes() {
    let disk = Disk::new();
    let image = disk.pack();
    let copy = disk.path("copy");
    let all = image.manifest().chunks() as usize;
    assert_eq!(unpack(&image, &copy, &TargetConfig::default()).unwrap(), all);
    assert!(fs::read(&copy).unwrap() == disk.bytes());
    // 50,000 zeros of the source were written, and are a hole in the copy.
    assert!(occupied(&copy) <= occupied(&disk.disk) - 40_960, "{}", occupied(&copy));
    assert_eq!(fs::read_dir(disk.folder.path()).unwrap().count(), 3, "nothing else is left");
    // Every kind of chunk is there.
    let codecs: Vec<_> =
        (0..all as u32).map(|it| image.manifest().chunk(it).unwrap().codec).collect();
    assert!([Codec::Empty, Codec::Raw, Codec::Zstd].iter().all(|codec| codecs.contains(codec)));
    // The same again is harmless: everything is there already.
    assert_eq!(unpack(&image, &copy, &TargetConfig::default()).unwrap(), 0);
    let verified = image.verify(&Progress::default()).unwrap();
    assert_eq!(verified.chunks as usize, all);
}

#[test]
fn the_same_source_and_options_give_the_same_bytes() {
    let disk = Disk::new();
    disk.pack();
    let first = fs::read(&disk.image).unwrap();
    // Without holes, and with other numbers of threads.
    let dense = disk.path("dense");
    fs::write(&dense, disk.bytes()).unwrap();
    for (source, threads) in [(&disk.disk, 1), (&dense, 3), (&dense, 7)] {
        let packing = Packing { threads, overwrite: true, ..packing() };
        pack(source, &disk.image, &packing, &Progress::default()).unwrap();
        assert!(fs::read(&disk.image).unwrap() == first, "{} with {threads}", source.display());
    }
    // Another level changes stored bytes and the root, but not the content.
    let other = disk.path("other.rwi");
    let level = Packing { level: 19, ..packing() };
    let other = pack(&disk.disk, &other, &level, &Progress::default()).unwrap().manifest;
    let image = Image::open(&disk.image, &Progress::default()).unwrap();
    assert_ne!(other.root(), image.manifest().root());
    assert_eq!(other.differing(image.manifest()).next(), None);
}

#[test]
fn images_have_the_documented_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let stored = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/known.rwi");
    let (disk, file) = (folder.path().join("disk"), folder.path().join("known.rwi"));
    sparse(&disk, 200_000, &[(0, noise(7, 5000)), (70_000, text(8, 9000)), (199_999, vec![1])]);
    let key = SecretKey::from_seed(&[9; 32]);
    let packing = Packing { name: "known".into(), key: Some(key), ..packing() };
    let made = pack(&disk, &file, &packing, &Progress::default()).unwrap();
    if std::env::var("SEEDS").is_ok_and(|it| it == "write") {
        fs::copy(&file, stored).unwrap();
    }
    let image = Image::open(stored.as_ref(), &Progress::default()).unwrap();
    let root: String = image.manifest().root().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(root, "70b3bd6a66ccdfa8a6af73e9641389ba1a52d7c3707d609e4686f73e74ba5b41");
    image.verify(&Progress::default()).unwrap();
    unpack(&image, &folder.path().join("copy"), &TargetConfig::default()).unwrap();
    assert!(fs::read(folder.path().join("copy")).unwrap() == fs::read(&disk).unwrap());
    // The content is the same with any version of zstd; if this one compresses as the one that made the file did, all is.
    assert_eq!(made.manifest.differing(image.manifest()).next(), None);
    assert!(fs::read(&file).unwrap() == fs::read(stored).unwrap(), "zstd compresses otherwise");
}

#[test]
fn an_empty_disk_and_one_of_zeros_have_images() {
    for size in [0, 1, 65_536, 1_000_000] {
        let disk = Disk::new();
        sparse(&disk.disk, size, &[]);
        let image = disk.pack();
        assert_eq!(u64::from(image.manifest().chunks()), size.div_ceil(65_536));
        let copy = disk.path("copy");
        unpack(&image, &copy, &TargetConfig::default()).unwrap();
        assert!(fs::read(&copy).unwrap() == disk.bytes());
        assert_eq!(occupied(&copy), 0);
    }
}

#[test]
fn a_new_version_shares_the_chunks_that_did_not_change() {
    let disk = Disk::new();
    let old = disk.pack();
    let copy = disk.path("copy");
    unpack(&old, &copy, &TargetConfig::default()).unwrap();
    let mut bytes = disk.bytes();
    bytes[200_000] ^= 1;
    fs::write(&disk.disk, &bytes).unwrap();
    let packing = Packing { overwrite: true, ..packing() };
    pack(&disk.disk, &disk.image, &packing, &Progress::default()).unwrap();
    let new = Image::open(&disk.image, &Progress::default()).unwrap();
    assert_eq!(new.manifest().differing(old.manifest()).collect::<Vec<_>>(), [3]);
    let have = scan(&copy, new.manifest(), &Progress::default()).unwrap();
    assert!(have.missing().eq([3]));
    // Replacing the copy fetches that chunk; without permission it fetches nothing.
    let refused = unpack(&new, &copy, &TargetConfig::default());
    assert!(matches!(refused, Err(ImageError::Exists(_))));
    let config = TargetConfig { overwrite: true, ..TargetConfig::default() };
    assert_eq!(unpack(&new, &copy, &config).unwrap(), 1);
    assert!(fs::read(&copy).unwrap() == bytes);
}

#[test]
fn a_target_makes_the_chunks_that_it_was_written_from() {
    let disk = Disk::new();
    let image = disk.pack();
    let copy = disk.path("copy");
    unpack(&image, &copy, &TargetConfig::default()).unwrap();
    let (manifest, progress) = (image.manifest().clone(), Progress::default());
    let target =
        rackweave_image::Target::open(&copy, manifest, &TargetConfig::default(), &progress);
    let target = target.unwrap();
    let mut stored = Vec::new();
    for chunk in 0..image.manifest().chunks() {
        image.read(chunk, &mut stored).unwrap();
        assert_eq!(target.stored(chunk).unwrap().as_ref(), Some(&stored), "{chunk}");
    }
}

#[test]
fn a_signed_image_names_its_signer() {
    let disk = Disk::new();
    let (key, other) = (SecretKey::from_seed(&[1; 32]), SecretKey::from_seed(&[2; 32]));
    let signed = Packing { key: Some(key.clone()), ..packing() };
    let manifest = pack(&disk.disk, &disk.image, &signed, &Progress::default()).unwrap().manifest;
    let found = Image::open(&disk.image, &Progress::default()).unwrap();
    assert_eq!(found.manifest(), &manifest);
    found.manifest().require_signer(&key.public()).unwrap();
    let error = found.manifest().require_signer(&other.public()).unwrap_err();
    assert_eq!(error.to_string(), format!("it is signed by another key, {}", key.public()));
    let plain = disk.path("plain.rwi");
    let plain = pack(&disk.disk, &plain, &packing(), &Progress::default()).unwrap().manifest;
    assert_eq!(plain.require_signer(&key.public()).unwrap_err().to_string(), "it is not signed");
    // The signature is not part of the identity.
    assert_eq!(plain.root(), manifest.root());
}

#[test]
fn wrong_options_and_sources_are_refused_with_a_sentence() {
    let disk = Disk::new();
    let try_with = |packing: &Packing| {
        let error = pack(&disk.disk, &disk.image, packing, &Progress::default()).unwrap_err();
        assert_eq!(fs::read_dir(disk.folder.path()).unwrap().count(), 1, "nothing is left");
        error.to_string()
    };
    let chunk = Packing { chunk_size: Some(100_000), ..packing() };
    assert!(try_with(&chunk).contains("power of two from 64 KiB to 16 MiB"));
    assert!(try_with(&Packing { level: 23, ..packing() }).contains("from 1 to 22"));
    assert!(try_with(&Packing { name: "a\n".into(), ..packing() }).contains("control characters"));
    let stopped = Progress::default();
    stopped.stop();
    let error = pack(&disk.disk, &disk.image, &packing(), &stopped).unwrap_err();
    assert!(matches!(error, ImageError::Interrupted));
    assert_eq!(fs::read_dir(disk.folder.path()).unwrap().count(), 1, "nothing is left");
    for (path, what) in [("/", "a directory"), ("/dev/null", "a character device")] {
        let error = pack(path.as_ref(), &disk.image, &packing(), &Progress::default()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{path} is {what}")), "{error}");
    }
    // An index of 1 GiB has less than 2^24 chunks.
    let (large, hollow) = (disk.path("large.rwi"), disk.path("hollow"));
    sparse(&hollow, 14 << 40, &[]);
    let coarse = Packing { chunk_size: Some(1 << 20), ..packing() };
    let error = pack(&hollow, &large, &coarse, &Progress::default()).unwrap_err();
    assert!(error.to_string().contains("choose a larger chunk size"), "{error}");
    disk.pack();
    let error = pack(&disk.disk, &disk.image, &packing(), &Progress::default()).unwrap_err();
    assert!(error.to_string().contains("disk.rwi exists already: use --overwrite"), "{error}");
    let error = Image::open(&disk.disk, &Progress::default()).unwrap_err();
    assert!(error.to_string().contains("disk is not an image: `rackweave image pack`"), "{error}");
}

fn pieces() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
    let bytes = prop_oneof![
        (any::<u64>(), 1..40_000_usize).prop_map(|(seed, len)| noise(seed, len)),
        (any::<u64>(), 1..90_000_usize).prop_map(|(seed, len)| text(seed, len)),
        (1..90_000_usize).prop_map(|len| vec![0; len]),
    ];
    proptest::collection::vec((0..DISK - 90_000, bytes), 0..12)
}

proptest! {
    #![proptest_config(rackweave_testing::cases(48))]

    #[test]
    fn any_sparse_file_survives(
        pieces in pieces(),
        size in DISK - 100..DISK,
        shift in 16..=20_u32,
        order in any::<u64>(),
    ) {
        let disk = Disk::new();
        sparse(&disk.disk, size, &pieces);
        let packing = Packing { chunk_size: Some(1 << shift), ..packing() };
        let made = pack(&disk.disk, &disk.image, &packing, &Progress::default()).unwrap();
        prop_assert_eq!(made.length, disk.image.metadata().unwrap().len());
        let image = Image::open(&disk.image, &Progress::default()).unwrap();
        let manifest = image.manifest();
        prop_assert_eq!(&made.manifest, manifest);
        prop_assert_eq!(&Manifest::decode(&manifest.encode()).unwrap(), manifest);
        // Chunks arrive in any order, over two attempts.
        let mut chunks: Vec<u32> = (0..manifest.chunks()).collect();
        chunks.sort_by_key(|chunk| noise(order ^ u64::from(*chunk), 8));
        let copy = disk.path("copy");
        let progress = Progress::default();
        let open = || rackweave_image::Target::open(&copy, manifest.clone(), &TargetConfig::default(), &progress).unwrap();
        let mut stored = Vec::new();
        let (first, second) = chunks.split_at(chunks.len() / 2);
        let mut expected = Bitmap::new(manifest.chunks());
        for half in [first, second] {
            let mut target = open();
            prop_assert_eq!(target.have(), &expected);
            for chunk in half {
                image.read(*chunk, &mut stored).unwrap();
                target.write(*chunk, &stored).unwrap();
                expected.insert(*chunk);
            }
        }
        open().finish(&progress).unwrap();
        prop_assert!(fs::read(&copy).unwrap() == disk.bytes());
        prop_assert!(scan(&disk.disk, manifest, &progress).unwrap().is_full());
    }
}
