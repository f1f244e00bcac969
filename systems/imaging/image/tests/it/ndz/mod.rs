//! Frisbee's format: files of all versions are read, and what makes no sense is refused.

pub(crate) mod encode;
mod pack;

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use rackweave_image::{
    Expander, Format, Image, ImageError, IncomingNdz, Manifest, Piece, Progress, TargetConfig, scan,
};

use self::encode::{Chunk, file};
use crate::common::{noise, occupied, text, unpack};

struct Folder {
    folder: tempfile::TempDir,
    path: PathBuf,
}

fn write(chunks: &[Chunk]) -> Folder {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.ndz");
    fs::write(&path, file(chunks)).unwrap();
    Folder { folder, path }
}

fn open(folder: &Folder) -> Result<Image, ImageError> {
    Image::open(&folder.path, &Progress::default())
}

/// Two chunks: noise at sectors 0 and 200, text at 1000; and text at 4096, with free space up to sector 5000.
fn disk(version: u32) -> (Vec<Chunk>, Vec<u8>) {
    let first = vec![(0, noise(1, 51_200)), (200, noise(2, 512)), (1000, text(3, 512 * 900))];
    let second = vec![(4096, text(4, 512 * 8))];
    let mut chunks = vec![Chunk::new(version, 0, first), Chunk::new(version, 1, second)];
    chunks[1].sectors.1 = 5000;
    let end = if version == 1 { 4104 } else { 5000 };
    let mut bytes = vec![0; end * 512];
    for (start, data) in chunks.iter().flat_map(|it| &it.regions) {
        bytes[*start as usize * 512..][..data.len()].copy_from_slice(data);
    }
    (chunks, bytes)
}

#[test]
fn a_chunk_that_was_written_is_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.ndz");
    let (chunks, _) = disk(4);
    let bytes = file(&chunks);
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let other = Chunk::new(1, 0, vec![(0, noise(9, 512))]);
    let incoming = IncomingNdz::open(&path, false).unwrap();
    incoming.begin(2).unwrap();
    incoming.write(0, second).unwrap_err();
    let written = incoming.write(0, first).unwrap();
    assert!(written.has_sha1);
    assert_eq!(incoming.write(0, &file(&[other])).unwrap(), written);
    incoming.write(1, second).unwrap();
    incoming.finish(&Progress::default()).unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn all_versions_are_unpacked_with_their_holes() {
    for version in 1..=4 {
        let (chunks, bytes) = disk(version);
        let folder = write(&chunks);
        let image = open(&folder).unwrap();
        let head = image.manifest().head();
        assert_eq!((head.format, head.chunks, head.size), (Format::Ndz, 2, bytes.len() as u64));
        assert_eq!(head.name, "disk.ndz");
        let verified = image.verify(&Progress::default()).unwrap();
        assert_eq!((verified.chunks, verified.unchecked_signatures), (2, 0));
        let copy = folder.folder.path().join("copy");
        assert_eq!(unpack(&image, &copy, &TargetConfig::default()).unwrap(), 2);
        assert!(fs::read(&copy).unwrap() == bytes, "version {version}");
        assert!(occupied(&copy) < 600_000);
        assert_eq!(unpack(&image, &copy, &TargetConfig::default()).unwrap(), 0);
        // The manifest goes to clients, which do not have the file.
        let manifest = Manifest::decode(&image.manifest().encode()).unwrap();
        assert_eq!(&manifest, image.manifest());
        assert!(scan(&copy, &manifest, &Progress::default()).unwrap().is_full());
        // What the image does not use may have any content.
        let mut changed = bytes;
        changed[150 * 512] = 1;
        fs::write(&copy, &changed).unwrap();
        assert!(scan(&copy, &manifest, &Progress::default()).unwrap().is_full());
        changed[200 * 512] ^= 1;
        fs::write(&copy, &changed).unwrap();
        assert!(scan(&copy, &manifest, &Progress::default()).unwrap().missing().eq([0]));
    }
}

type Change = fn(&mut Vec<Chunk>);

/// Returns the sentence with which a changed image is refused.
fn refused(change: impl FnOnce(&mut Vec<Chunk>)) -> String {
    let (mut chunks, _) = disk(4);
    change(&mut chunks);
    open(&write(&chunks)).unwrap_err().to_string()
}

#[test]
fn what_makes_no_sense_is_refused_with_a_sentence() {
    let cases: [(&str, Change); 11] = [
        ("chunk 1 of ", |it| it[1].cipher = 1),
        ("it is encrypted", |it| it[0].cipher = 1),
        ("checksum is of an unknown kind", |it| it[0].checksum = 2),
        ("chunk 1 has the number 5", |it| it[1].index = 5),
        ("chunk 1 belongs to another image", |it| it[1].image_id = [8; 16]),
        ("not in ascending order", |it| it[0].regions.swap(0, 1)),
        ("chunks that overlap", |it| it[1].regions[0].0 = 1001),
        ("unknown kind 100", |it| it[0].relocations = vec![[100, 0, 0, 1]]),
        ("kind 3 that makes no sense", |it| it[0].relocations = vec![[3, 0, 0, 6]]),
        ("kind 3 outside of its regions", |it| it[0].relocations = vec![[3, 150, 0, 5]]),
        ("that is not the last of its region", |it| it[0].relocations = vec![[6, 5, 0, 5]]),
    ];
    for (sentence, change) in cases {
        let found = refused(change);
        assert!(found.contains(sentence), "{sentence}: {found}");
    }
    let folder = write(&disk(4).0);
    let bytes = fs::read(&folder.path).unwrap();
    fs::write(&folder.path, &bytes[..bytes.len() - 1024]).unwrap();
    assert!(open(&folder).unwrap_err().to_string().contains("it is truncated"));
}

#[test]
fn a_flipped_bit_fails_the_checksum_or_zlibs() {
    for (version, sentence) in [(4, "SHA-1 checksum does not match"), (3, "cannot be decompressed")]
    {
        let folder = write(&disk(version).0);
        let mut bytes = fs::read(&folder.path).unwrap();
        bytes[30_000] ^= 1;
        fs::write(&folder.path, &bytes).unwrap();
        let found = open(&folder).unwrap_err().to_string();
        assert!(found.contains("chunk 0 of ") && found.contains(sentence), "{found}");
    }
    // A signature cannot be checked without Frisbee's key, and is reported.
    let (mut chunks, _) = disk(4);
    chunks.iter_mut().for_each(|chunk| chunk.checksum = 0x8001);
    let folder = write(&chunks);
    let verified = open(&folder).unwrap().verify(&Progress::default()).unwrap();
    assert_eq!(verified.unchecked_signatures, 2);
}

#[test]
fn a_disk_may_end_within_a_sector() {
    let (mut chunks, mut bytes) = disk(3);
    chunks[1].relocations = vec![[6, 4103, 0, 100]];
    bytes.truncate(4103 * 512 + 100);
    let folder = write(&chunks);
    let image = open(&folder).unwrap();
    let copy = folder.folder.path().join("copy");
    unpack(&image, &copy, &TargetConfig::default()).unwrap();
    assert!(fs::read(&copy).unwrap() == bytes);
}

/// Expands chunk 0 for a partition that starts at this sector.
fn expanded(chunk: &Chunk, start: u64) -> Result<Vec<u8>, String> {
    let folder = write(std::slice::from_ref(chunk));
    let image = open(&folder).map_err(|error| error.to_string())?;
    let mut stored = Vec::new();
    image.read(0, &mut stored).unwrap();
    let mut out = Vec::new();
    let mut expander = Expander::new().unwrap().partition_start(start);
    let result = expander.expand(image.manifest(), 0, &stored, &mut |_, piece| {
        let Piece::Data(bytes) = piece else { unreachable!("regions are data") };
        out.extend_from_slice(bytes);
        Ok(())
    });
    result.map(|()| out).map_err(|error| error.to_string())
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

#[test]
fn disk_labels_are_moved_with_their_partition() {
    let mut bytes = vec![0; 1024];
    let label = &mut bytes[512..];
    put(label, 0, 0x8256_4557);
    put(label, 132, 0x8256_4557);
    label[138] = 3;
    for (number, (size, offset)) in [(100, 16), (0, 5), (1000, 0)].into_iter().enumerate() {
        put(label, 148 + 16 * number, size);
        put(label, 152 + 16 * number, offset);
    }
    for (kind, offsets) in [(1, [79, 5, 63]), (2, [79, 5, 0])] {
        let mut chunk = Chunk::new(3, 0, vec![(0, bytes.clone())]);
        chunk.relocations = vec![[kind, 1, 0, 276]];
        assert_eq!(expanded(&chunk, 0).unwrap(), bytes, "on a whole disk nothing moves");
        let moved = expanded(&chunk, 63).unwrap();
        let label = &moved[512..];
        assert_eq!([152, 168, 184].map(|at| get(label, at)), offsets);
        let words = label[..148 + 48].chunks(2);
        assert_eq!(words.fold(0, |sum, it| sum ^ u16::from_le_bytes([it[0], it[1]])), 0);
        chunk.regions[0].1[512] = 0;
        let error = expanded(&chunk, 63).unwrap_err();
        assert!(error.contains("a BSD disk label where none is"), "{error}");
    }
}

#[test]
fn lilo_addresses_are_moved_and_their_checksum_is_computed() {
    let mut bytes = text(1, 512 * 4);
    // Sector 0: an address in linear form. Sectors 1 and 2: the descriptors. Sector 3: a map of two addresses.
    bytes[20..25].copy_from_slice(&[0x34, 0x12, 0xc0, 0x01, 9]);
    bytes[1536..1551]
        .copy_from_slice(&[0xff, 0xff, 0xb0, 0xff, 0, 1, 0, 0xa0, 0, 7, 0, 0, 0, 0, 0]);
    let mut chunk = Chunk::new(3, 0, vec![(8, bytes.clone())]);
    chunk.relocations = vec![[3, 8, 20, 5], [4, 11, 0, 512], [5, 9, 990, 2]];
    let moved = expanded(&chunk, 0x0101).unwrap();
    assert_eq!(moved[20..25], [0x35, 0x13, 0xc0, 0x01, 9]);
    assert_eq!(moved[1536..1551], [0, 1, 0xb0, 0, 1, 2, 1, 0xa0, 0, 7, 0, 0, 0, 0, 0]);
    let words = moved[512..1536].chunks(2);
    assert_eq!(words.fold(0xabcd, |sum, it| sum ^ u16::from_le_bytes([it[0], it[1]])), 0);
    assert_eq!(moved[514..1536], bytes[514..1536]);
    assert_eq!(moved[1551..], bytes[1551..]);
}

proptest! {
    #![proptest_config(rackweave_testing::cases(64))]

    #[test]
    fn any_regions_survive(
        version in 1..=4_u32,
        regions in proptest::collection::vec((1..100_u32, 1..60_usize, any::<u64>()), 1..300),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut next = 0;
        let mut placed = Vec::new();
        for (gap, sectors, seed) in regions {
            next += gap;
            placed.push((next, text(seed, sectors * 512)));
            next += sectors as u32;
        }
        let mut expected = vec![0; next as usize * 512];
        for (start, bytes) in &placed {
            expected[*start as usize * 512..][..bytes.len()].copy_from_slice(bytes);
        }
        let second = placed.split_off(cut.index(placed.len()).max(1).min(placed.len()));
        let mut chunks = vec![Chunk::new(version, 0, placed)];
        if !second.is_empty() {
            chunks.push(Chunk::new(version, 1, second));
        }
        let folder = write(&chunks);
        let image = open(&folder).unwrap();
        let copy = folder.folder.path().join("copy");
        unpack(&image, &copy, &TargetConfig::default()).unwrap();
        prop_assert!(fs::read(&copy).unwrap() == expected);
    }
}
