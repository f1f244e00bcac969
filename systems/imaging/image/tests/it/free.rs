//! Unused blocks are skipped, and only those.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use rackweave_image::free::{FileSystem, file_systems};
use rackweave_image::{Image, ImageError, Packing, Progress, SkipFree, TargetConfig, pack};

use crate::common::{Disk, noise, packing, sparse, text, unpack};

fn run(program: &str, arguments: &[&str], path: &Path) -> String {
    let _alone = crate::devices::alone();
    let done = Command::new(program).args(arguments).arg(path).output().unwrap();
    assert!(done.status.success(), "{program}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Makes a file system with some files in it, in a file whose every byte was 0xff before.
pub(super) fn make(path: &Path, size: u64, options: &[&str]) {
    let tree = path.with_extension("tree");
    fs::create_dir_all(tree.join("folder")).unwrap();
    fs::write(tree.join("noise"), noise(1, 900_000)).unwrap();
    fs::write(tree.join("folder/text"), text(2, 300_000)).unwrap();
    fs::write(path, vec![0xff; size as usize]).unwrap();
    let from = ["-q", "-F", "-E", "nodiscard,root_owner=0:0", "-d", tree.to_str().unwrap()];
    run("mkfs.ext4", &[&from, options].concat(), path);
}

fn only(bytes: &[u8]) -> Vec<Range<u64>> {
    let [FileSystem { unused, .. }] = &file_systems(&bytes).unwrap()[..] else { panic!("one") };
    unused.clone().unwrap()
}

/// The free blocks as dumpe2fs prints them, in bytes.
fn dumped(path: &Path) -> Vec<Range<u64>> {
    let text = run("dumpe2fs", &[], path);
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let size = field("Block size:");
    let mut found: Vec<Range<u64>> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for range in line.split(", ").filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let start = first.parse::<u64>().unwrap() * size;
            let end = (last.parse::<u64>().unwrap() + 1) * size;
            match found.last_mut() {
                Some(before) if before.end == start => before.end = end,
                _ => found.push(start..end),
            }
        }
    }
    found
}

#[test]
fn the_unused_blocks_are_those_of_dumpe2fs_for_every_layout() {
    rackweave_testing::needs!(Ext4);
    let folder = tempfile::tempdir().unwrap();
    let layouts: [(u64, &[&str]); 9] = [
        (16, &[]),
        (16, &["-b", "1024"]),
        (48, &["-b", "1024", "-g", "1024", "-G", "4"]),
        (16, &["-b", "4096", "-O", "64bit"]),
        (300, &["-b", "1024", "-O", "^64bit,^metadata_csum,uninit_bg"]),
        (40, &["-b", "1024", "-O", "^flex_bg,^metadata_csum,^sparse_super,^resize_inode"]),
        (40, &["-b", "1024", "-O", "sparse_super2"]),
        (24, &["-t", "ext2"]),
        (24, &["-t", "ext3", "-b", "2048"]),
    ];
    for (number, (size, options)) in layouts.into_iter().enumerate() {
        let path = folder.path().join(format!("fs{number}"));
        make(&path, size << 20, options);
        let found = only(&fs::read(&path).unwrap());
        assert!(!found.is_empty() && found == dumped(&path), "{options:?}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn an_image_without_unused_blocks_is_the_same_file_system() {
    rackweave_testing::needs!(Ext4);
    let disk = Disk::new();
    make(&disk.disk, 16 << 20, &["-b", "1024"]);
    let whole = Packing { skip_free: SkipFree::No, ..packing() };
    let all = pack(&disk.disk, &disk.image, &whole, &Progress::default()).unwrap();
    let (small, copy) = (disk.path("small.rwi"), disk.path("copy"));
    // It is the default.
    let made = pack(&disk.disk, &small, &packing(), &Progress::default()).unwrap();
    assert!(made.manifest.head().skipped_free && !all.manifest.head().skipped_free);
    let [note] = &made.notes[..] else { panic!("{:?}", made.notes) };
    assert!(note.starts_with("the ext4 file system at byte 0 has "), "{note}");
    let data = |manifest: &rackweave_image::Manifest| -> u64 {
        (0..manifest.chunks()).map(|chunk| manifest.data(chunk)).sum()
    };
    assert!(data(&made.manifest) * 3 < data(&all.manifest), "unused blocks are 0xff");
    let image = Image::open(&small, &Progress::default()).unwrap();
    unpack(&image, &copy, &TargetConfig::default()).unwrap();
    run("e2fsck", &["-fn"], &copy);
    for (file, expected) in [("noise", noise(1, 900_000)), ("folder/text", text(2, 300_000))] {
        let out = disk.path("out");
        run("debugfs", &["-R", &format!("dump {file} {}", out.display())], &copy);
        assert!(fs::read(out).unwrap() == expected, "{file}");
    }
    // What is unused does not matter, and what is used has not changed.
    let (before, after) = (fs::read(&disk.disk).unwrap(), fs::read(&copy).unwrap());
    let unused = only(&before);
    let is_unused = |at: u64| unused.iter().any(|range| range.contains(&at));
    let differing = (0..before.len()).filter(|at| before[*at] != after[*at]);
    assert!(differing.map(|at| at as u64).all(is_unused));
}

/// Puts file systems into partitions of a disk with a table, by their start in sectors.
pub(super) fn partitioned(
    table: impl Fn(&mut [u8]),
    parts: &[(u64, &[u8])],
    size: usize,
) -> Vec<u8> {
    let mut disk = vec![0xff; size];
    disk[..512 * 63].fill(0);
    table(&mut disk);
    for (start, bytes) in parts {
        disk[*start as usize * 512..][..bytes.len()].copy_from_slice(bytes);
    }
    disk
}

pub(super) fn entry(disk: &mut [u8], at: u64, number: usize, kind: u8, start: u32, sectors: u32) {
    let sector = &mut disk[at as usize * 512..][..512];
    if sector[510..] == [0xff; 2] {
        sector.fill(0);
    }
    let entry = &mut sector[446 + 16 * number..][..16];
    entry[4] = kind;
    entry[8..12].copy_from_slice(&start.to_le_bytes());
    entry[12..].copy_from_slice(&sectors.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
}

fn crc32(bytes: &[u8]) -> [u8; 4] {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum().to_le_bytes()
}

/// A GUID table for sectors of this size, with partitions at bytes.
pub(super) fn guid(disk: &mut [u8], sector: usize, parts: &[(u64, u64)]) {
    guid_of(disk, sector, parts, "0fc63daf848347728e793d69d8477de4");
}

/// The same with partitions of this type.
pub(super) fn guid_of(disk: &mut [u8], sector: usize, parts: &[(u64, u64)], kind: &str) {
    let mut kind = u128::from_str_radix(kind, 16).unwrap().to_be_bytes();
    for field in [0..4, 4..6, 6..8] {
        kind[field].reverse();
    }
    entry(disk, 0, 0, 0xee, 1, u32::MAX);
    let mut table = vec![0; 128 * 128];
    for (entry, (start, end)) in table.chunks_mut(128).skip(1).zip(parts) {
        entry[..16].copy_from_slice(&kind);
        entry[32..40].copy_from_slice(&(start / sector as u64).to_le_bytes());
        entry[40..48].copy_from_slice(&(end / sector as u64 - 1).to_le_bytes());
    }
    let mut header = [0; 92];
    header[..8].copy_from_slice(b"EFI PART");
    header[12] = 92;
    let last = (disk.len() / sector - 1) as u64;
    for (at, lba) in [(24, 1), (32, last), (40, 6), (48, last - 1)] {
        header[at..at + 8].copy_from_slice(&lba.to_le_bytes());
    }
    header[72] = 2;
    header[80] = 128;
    header[84] = 128;
    header[88..].copy_from_slice(&crc32(&table));
    disk[sector..sector + 92].copy_from_slice(&header);
    seal(&mut disk[sector..]);
    disk[2 * sector..][..table.len()].copy_from_slice(&table);
}

/// Computes the checksum of a header.
pub(super) fn seal(header: &mut [u8]) {
    header[16..20].fill(0);
    let sum = crc32(&header[..92]);
    header[16..20].copy_from_slice(&sum);
}

#[test]
fn file_systems_are_found_in_partitions() {
    rackweave_testing::needs!(Ext4);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fs");
    make(&path, 8 << 20, &["-b", "1024"]);
    let system = fs::read(&path).unwrap();
    let len = system.len() as u64;
    let sectors = (len / 512) as u32;
    let unused = only(&system);
    let check = |disk: &[u8], starts: &[u64]| {
        let found = file_systems(&disk).unwrap();
        assert_eq!(found.len(), starts.len());
        for (found, start) in found.iter().zip(starts) {
            assert_eq!(found.range, *start..start + len);
            let moved: Vec<_> = unused.iter().map(|it| it.start + start..it.end + start).collect();
            assert_eq!(found.unused.as_ref().unwrap(), &moved);
        }
    };
    // A primary partition, one of another kind, and two logical partitions.
    let second = 20_000 + u64::from(sectors);
    let mbr = |disk: &mut [u8]| {
        entry(disk, 0, 0, 0x83, 63, sectors);
        entry(disk, 0, 1, 0x0c, 17_000, 1000);
        entry(disk, 0, 2, 0x05, 19_000, 41_000);
        entry(disk, 19_000, 0, 0x83, 1000, sectors);
        entry(disk, 19_000, 1, 0x05, sectors + 1500, 20_000);
        entry(disk, second + 500, 0, 0x83, 100, sectors);
    };
    let parts = [(63, &system[..]), (20_000, &system), (second + 600, &system)];
    let disk = partitioned(mbr, &parts, 60_000 * 512);
    check(&disk, &parts.map(|(start, _)| start * 512));
    for sector in [512, 4096] {
        let parts = [(1 << 20, (1 << 20) + len), (12 << 20, (12 << 20) + len)];
        let table = |disk: &mut [u8]| guid(disk, sector, &parts);
        let systems = parts.map(|(start, _)| (start / 512, &system[..]));
        let mut disk = partitioned(table, &systems, 30 << 20);
        check(&disk, &parts.map(|(start, _)| start));
        disk[2 * sector + 130] ^= 1;
        assert_eq!(file_systems(&&disk[..]).unwrap_err(), "its GUID partition table is damaged");
    }
    let overlap = |disk: &mut [u8]| {
        entry(disk, 0, 0, 0x83, 63, sectors);
        entry(disk, 0, 1, 0x83, 64, sectors);
    };
    let disk = partitioned(overlap, &[(63, &system)], 30 << 20);
    assert_eq!(file_systems(&&disk[..]).unwrap_err(), "its partitions overlap");
}

#[test]
fn a_file_system_in_doubt_is_stored_whole_or_refused() {
    rackweave_testing::needs!(Ext4);
    let disk = Disk::new();
    make(&disk.disk, 8 << 20, &["-b", "1024", "-O", "^metadata_csum"]);
    let good = fs::read(&disk.disk).unwrap();
    let try_with = |skip_free| {
        let packing = Packing { skip_free, overwrite: true, ..packing() };
        pack(&disk.disk, &disk.image, &packing, &Progress::default())
    };
    // The bitmap of group 0, whose place is in the first descriptor.
    let bitmap = u32::from_le_bytes(*good[2048..].first_chunk().unwrap()) as usize * 1024;
    let cases: [(&str, usize, u8); 7] = [
        ("its journal must be replayed first", 1024 + 96, 4),
        ("it was not unmounted cleanly", 1024 + 58, 1),
        ("it has errors", 1024 + 58, 2),
        ("it has the feature meta_bg", 1024 + 96, 16),
        ("it has the feature bigalloc", 1024 + 101, 2),
        ("it is larger than its partition", 1024 + 6, 1),
        ("group 0 has ", bitmap + 900, 1),
    ];
    for (sentence, at, bit) in cases {
        let mut bytes = good.clone();
        bytes[at] ^= bit;
        fs::write(&disk.disk, &bytes).unwrap();
        let made = try_with(SkipFree::Auto).unwrap();
        assert!(!made.manifest.head().skipped_free);
        assert!(made.notes[0].contains(sentence), "{:?}", made.notes);
        let error = try_with(SkipFree::Ext4).unwrap_err();
        assert!(matches!(error, ImageError::Free { .. }));
        assert!(error.to_string().contains(sentence), "{error}");
    }
    // Others that were put in its place and left the superblock.
    let others: [(&str, usize, &[u8]); 4] = [
        ("there are also marks of FAT", 82, b"FAT32   "),
        ("there are also marks of LVM", 512, b"LABELONE"),
        ("there are also marks of Linux RAID", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("there are also marks of swap", 4086, b"SWAPSPACE2"),
    ];
    for (sentence, at, mark) in others {
        let mut bytes = good.clone();
        bytes[at..at + mark.len()].copy_from_slice(mark);
        fs::write(&disk.disk, &bytes).unwrap();
        let error = try_with(SkipFree::Ext4).unwrap_err().to_string();
        assert!(error.contains(sentence), "{error}");
    }
    let mut bytes = good.clone();
    entry(&mut bytes, 0, 0, 7, 2048, 4096);
    fs::write(&disk.disk, &bytes).unwrap();
    let made = try_with(SkipFree::Auto).unwrap();
    assert!(!made.manifest.head().skipped_free);
    assert!(made.notes[0].contains("there is also a partition table"), "{:?}", made.notes);
    sparse(&disk.disk, 1 << 20, &[]);
    assert!(try_with(SkipFree::Auto).unwrap().notes.is_empty());
    let error = try_with(SkipFree::Ext4).unwrap_err().to_string();
    assert!(error.ends_with("there is no ext4 file system on it"), "{error}");
}

#[test]
fn checksums_of_the_metadata_are_checked() {
    rackweave_testing::needs!(Ext4);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fs");
    for features in ["64bit,metadata_csum", "^64bit,metadata_csum,metadata_csum_seed"] {
        make(&path, 8 << 20, &["-b", "1024", "-O", features]);
        let good = fs::read(&path).unwrap();
        assert!(!only(&good).is_empty());
        let bitmap = u32::from_le_bytes(*good[2048..].first_chunk().unwrap()) as usize * 1024;
        let bits = |bytes: &[u8], at: usize| bytes[bitmap + at / 8] >> (at % 8) & 1;
        let used = (0..8192).rev().find(|at| bits(&good, *at) == 1).unwrap();
        let free = (0..8192).find(|at| bits(&good, *at) == 0).unwrap();
        let broken = |flips: &[(usize, usize)]| {
            let mut bytes = good.clone();
            flips.iter().for_each(|(at, bit)| bytes[at + bit / 8] ^= 1 << (bit % 8));
            let [FileSystem { unused, .. }] = &file_systems(&&bytes[..]).unwrap()[..] else {
                panic!("one")
            };
            unused.clone().unwrap_err()
        };
        // The number of free blocks is as before.
        let swapped = broken(&[(bitmap, used), (bitmap, free)]);
        assert_eq!(swapped, "the block bitmap of group 0 is damaged: run fsck");
        assert_eq!(broken(&[(2048 + 8, 0)]), "the descriptor of group 0 is damaged: run fsck");
        assert_eq!(broken(&[(1024 + 120, 0)]), "its superblock is damaged: run fsck");
    }
}

#[test]
fn the_command_that_makes_the_disk_does_not_overwrite_its_source() {
    let disk = Disk::new();
    for (name, command) in [
        ("disk.img", "gunzip -c < FOLDER/disk.img > raw.img"),
        ("x y", "gunzip -c < 'FOLDER/x y' > disk.img"),
    ] {
        let path = disk.path(name);
        fs::write(&path, b"\x1f\x8b\x08\0").unwrap();
        let error = pack(&path, &disk.image, &packing(), &Progress::default()).unwrap_err();
        let command = command.replace("FOLDER", disk.folder.path().to_str().unwrap());
        assert!(error.to_string().contains(&format!("`{command}`")), "{error}");
    }
}
