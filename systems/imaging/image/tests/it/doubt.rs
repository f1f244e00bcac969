//! Blocks that somebody else may own are stored, whatever an old superblock says.

use std::fs;

use rackweave_image::free::{FileSystem, file_systems};

use crate::free::{entry, guid, make, partitioned};

/// An ext4 file system of 8 MiB, most of it unused.
fn ext4() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fs");
    make(&path, 8 << 20, &["-b", "1024"]);
    fs::read(&path).unwrap()
}

/// Returns how many bytes would be left out.
fn skipped(disk: &[u8]) -> u64 {
    let sum = |it: FileSystem| {
        it.unused.into_iter().flatten().map(|range| range.end - range.start).sum::<u64>()
    };
    file_systems(&disk).into_iter().flatten().map(sum).sum()
}

/// Writes a partition table.
type Table<'a> = dyn Fn(&mut [u8]) + 'a;

#[test]
fn a_table_that_is_not_understood_protects_the_whole_disk() {
    rackweave_testing::needs!(Ext4);
    let system = ext4();
    let sectors = (system.len() / 512) as u32;
    let size = 30 << 20;
    let end = (size / 512) as u32;
    let good = |disk: &mut [u8]| entry(disk, 0, 0, 0x83, 63, sectors);
    assert!(skipped(&partitioned(good, &[(63, &system)], size)) > 0);
    let cases: [(&str, &Table<'_>); 12] = [
        ("ends beyond", &|disk| entry(disk, 0, 1, 0x83, 20_000, end)),
        ("starts beyond", &|disk| entry(disk, 0, 1, 0x83, end + 1, 100)),
        ("overlaps", &|disk| entry(disk, 0, 1, 0x83, 1000, 100)),
        ("overlaps beyond", &|disk| entry(disk, 0, 1, 0x83, 1000, end)),
        ("no sectors", &|disk| entry(disk, 0, 1, 0x83, 20_000, 0)),
        ("no type", &|disk| entry(disk, 0, 1, 0, 20_000, 100)),
        ("an extended partition without a table", &|disk| entry(disk, 0, 1, 0x05, 20_000, 1000)),
        ("an extended partition over another", &|disk| {
            entry(disk, 0, 1, 0x05, 62, end - 62);
            entry(disk, 62, 0, 0, 0, 0);
        }),
        ("an extended partition beyond", &|disk| {
            entry(disk, 0, 1, 0x05, 20_000, end);
            entry(disk, 20_000, 0, 0, 0, 0);
        }),
        ("two extended partitions", &|disk| {
            entry(disk, 0, 1, 0x05, 20_000, 1000);
            entry(disk, 0, 2, 0x0f, 22_000, 1000);
            [20_000, 22_000].iter().for_each(|at| entry(disk, *at, 0, 0, 0, 0));
        }),
        ("a chain without an end", &|disk| {
            entry(disk, 0, 1, 0x05, 20_000, 1000);
            entry(disk, 20_000, 1, 0x05, 10, 990);
            entry(disk, 20_010, 1, 0x05, 10, 990);
        }),
        ("a logical partition beyond its extended one", &|disk| {
            entry(disk, 0, 1, 0x05, 20_000, 1000);
            entry(disk, 20_000, 0, 0x83, 10, 20_000);
        }),
    ];
    for (what, table) in cases {
        let both = |disk: &mut [u8]| {
            good(disk);
            table(disk);
        };
        let parts: &[(u64, &[u8])] =
            if what.contains("over another") { &[] } else { &[(63, &system)] };
        let disk = partitioned(both, parts, size);
        let why = file_systems(&&disk[..]).unwrap_err();
        assert!(!why.is_empty(), "{what}");
    }
}

#[test]
fn a_table_does_not_vanish_because_its_entries_are_beyond_the_end() {
    rackweave_testing::needs!(Ext4);
    // A whole-disk file system, then a table for a larger disk: the disk was cut.
    let mut disk = ext4();
    assert!(skipped(&disk) > 0);
    let end = (disk.len() / 512) as u32;
    entry(&mut disk, 0, 0, 0x83, 2048, end);
    assert_eq!(skipped(&disk), 0);
    // An empty table is one, too.
    let mut disk = ext4();
    entry(&mut disk, 0, 0, 0, 0, 0);
    assert_eq!(skipped(&disk), 0);
    // A GUID table whose protection is gone.
    for sector in [512, 4096] {
        let mut disk = partitioned(|_| {}, &[(2048, &ext4())], 30 << 20);
        guid(&mut disk, sector, &[(1 << 20, 9 << 20)]);
        assert!(skipped(&disk) > 0);
        disk[..512].fill(0);
        assert!(file_systems(&&disk[..]).is_err());
    }
}

#[test]
fn a_guid_table_must_fit_its_disk() {
    rackweave_testing::needs!(Ext4);
    let system = ext4();
    let size = 30 << 20;
    let parts = |more: &[(u64, u64)]| {
        let all = [&[(1 << 20, 9 << 20)], more].concat();
        partitioned(|disk| guid(disk, 512, &all), &[(2048, &system)], size)
    };
    assert!(skipped(&parts(&[])) > 0);
    let odd = [(10 << 20, 40 << 20), (50 << 20, 51 << 20), (2 << 20, 3 << 20), (0, 1024)];
    for odd in odd {
        assert!(file_systems(&&parts(&[odd])[..]).is_err(), "{odd:?}");
    }
    // The disk was cut behind its last partition; or the MBR has more than the protection.
    assert!(file_systems(&&parts(&[])[..20 << 20]).is_err());
    let mut hybrid = parts(&[]);
    entry(&mut hybrid, 0, 1, 0x83, 2048, 100);
    assert!(file_systems(&&hybrid[..]).is_err());
    // Only types of Linux file systems are trusted: not those of RAID, LVM, swap, Storage Spaces, dynamic disks, GPFS, Microsoft's
    // basic data, nor one that nobody knows.
    let foreign = [
        "a19d880f05fc4d3ba006743f0f84911e",
        "e6d6d379f50744c2a23c238f2a3df928",
        "0657fd6da4ab43c484e50933c84b4f4f",
        "e75caf8ff6804ceeafa3b001e56efc2d",
        "af9b60a014314f62bc683311714a69ad",
        "37affc90ef7d4e9691c32d7ae055b174",
        "ebd0a0a2b9e5443387c068b6b72699c7",
        "09090909090909090909090909090909",
    ];
    let linux = ["4f68bce3e8cd4db196e7fbcaf984b709", "933ac7e12eb44f13b8440e14e2aef915"];
    let all = [(1 << 20, 9 << 20)];
    for (text, trusted) in
        foreign.map(|it| (it, false)).into_iter().chain(linux.map(|it| (it, true)))
    {
        let of_kind = |disk: &mut [u8]| crate::free::guid_of(disk, 512, &all, text);
        let skipped = skipped(&partitioned(of_kind, &[(2048, &system)], size));
        assert_eq!(skipped > 0, trusted, "{text}");
    }
    for kind in [0xfd, 0x8e, 0x82, 0x07, 0xa5] {
        let sectors = (system.len() / 512) as u32;
        let of_kind = |disk: &mut [u8]| entry(disk, 0, 0, kind, 63, sectors);
        assert_eq!(skipped(&partitioned(of_kind, &[(63, &system)], size)), 0, "{kind:x}");
    }
}

#[test]
fn marks_of_other_owners_protect_what_they_are_on() {
    rackweave_testing::needs!(Ext4);
    let system = ext4();
    let len = system.len();
    let raid = &[0xfc, 0x4e, 0x2b, 0xa9][..];
    let rounded = (len >> 16 << 16) - (64 << 10);
    let bcache = &0xc685_73f6_4e1a_45ca_8265_f57f_48ba_6d81_u128.to_be_bytes()[..];
    let zfs = &0x00ba_b10c_u64.to_le_bytes()[..];
    let marks: Vec<(&str, usize, &[u8])> = vec![
        ("Linux RAID 1.1", 0, raid),
        ("Linux RAID 1.2", 4096, raid),
        ("Linux RAID 1.0", len - (8 << 10), raid),
        ("Linux RAID 0.90", rounded, raid),
        ("Linux RAID 0.90", rounded, &[0xa9, 0x2b, 0x4e, 0xfc]),
        ("LVM", 0, b"LABELONE"),
        ("LVM", 512, b"LABELONE"),
        ("LVM", 1024 - 512, b"LABELONE"),
        ("LVM", 1536, b"LABELONE"),
        ("bcache", 4096 + 24, bcache),
        ("Btrfs", 65536 + 64, b"_BHRfS_M"),
        ("ZFS", (128 << 10) + 7 * 1024, zfs),
        ("ZFS", len - (256 << 10) + (128 << 10), zfs),
        ("ISO 9660", 32769, b"CD001"),
        ("Apple", 512, b"PM\0\0\0\0\0\x03"),
        ("Sun", 508, &[0xda, 0xbe]),
        ("BSD", 512, &[0x57, 0x45, 0x56, 0x82]),
        ("BSD", 64, &[0x57, 0x45, 0x56, 0x82]),
        ("swap", 65536 - 10, b"SWAPSPACE2"),
        ("swap", 4086, b"S1SUSPEND\0"),
        ("LUKS", 0, b"LUKS\xba\xbe"),
        ("LUKS", 0x4000, b"SKUL\xba\xbe"),
        ("exFAT", 3, b"EXFAT   "),
        ("F2FS", 4096 + 1024, &[0x10, 0x20, 0xf5, 0xf2]),
        ("firmware RAID", len - 1024, b"Intel Raid ISM Cfg Sig. "),
        ("DRBD", len - 4096 + 60, &[0x83, 0x74, 0x02, 0x6b]),
    ];
    for (owner, at, mark) in marks {
        // On the disk itself.
        let mut disk = system.clone();
        disk[at..at + mark.len()].copy_from_slice(mark);
        assert_eq!(skipped(&disk), 0, "{owner} at {at}");
        // In a partition of it: the other partition has nothing to do with it.
        let parts = [(1 << 20, 9 << 20), (12 << 20, 20 << 20)];
        let table = |disk: &mut [u8]| guid(disk, 512, &parts);
        let both = partitioned(table, &[(2048, &disk), (12 << 11, &system)], 30 << 20);
        let found = file_systems(&&both[..]).unwrap();
        let [first, second] = &found[..] else { panic!("{owner} at {at}") };
        assert!(first.unused.is_err() && second.unused.is_ok(), "{owner} at {at}");
    }
    // An owner of the whole disk, whose mark is in no partition.
    let table = |disk: &mut [u8]| guid(disk, 512, &[(1 << 20, 9 << 20)]);
    let mut disk = partitioned(table, &[(2048, &system)], 30 << 20);
    assert!(skipped(&disk) > 0);
    let at = disk.len() - (64 << 10);
    disk[at..at + 4].copy_from_slice(raid);
    assert!(file_systems(&&disk[..]).unwrap_err().contains("marks of Linux RAID"));
}

/// The places are those of libblkid's sources, in sectors before the end.
#[test]
fn metadata_of_firmware_raid_is_found_where_libblkid_looks() {
    rackweave_testing::needs!(Ext4);
    let system = ext4();
    let promise = [63, 255, 256, 16, 399, 591, 675, 735, 911, 974, 991, 951, 3087]
        .map(|sectors| (sectors, 0));
    let promise = promise.map(|place| (place, &b"Promise Technology, Inc."[..]));
    let others: [((usize, usize), &[u8]); 6] = [
        ((11, 0), &[0xf3, 0x16, 0x78, 0x5a]),
        ((11, 0), &[0xfd, 0x16, 0x78, 0x5a]),
        ((1, 0x60), &[0, 0, 0, 0x2f]),
        ((1, 0), &[0x37, 0xfc, 0x4d, 0x1e]),
        ((1, 0), &[0x55, 0xaa]),
        ((1, 0), b"JM"),
    ];
    // A device need not be a whole number of pages.
    for more in [0, 512, 3 * 512] {
        let mut disk = system.clone();
        disk.resize(system.len() + more, 0);
        assert!(skipped(&disk) > 0);
        for ((sectors, at), mark) in promise.into_iter().chain(others) {
            let mut disk = disk.clone();
            let place = disk.len() - sectors * 512 + at;
            disk[place..place + mark.len()].copy_from_slice(mark);
            assert_eq!(skipped(&disk), 0, "{mark:x?} at {sectors} sectors before the end, {more}");
        }
        // DRBD rounds the size down to pages.
        let page = disk.len() / 4096 * 4096 - 4096 + 60;
        disk[page..page + 4].copy_from_slice(&[0x83, 0x74, 0x02, 0x6b]);
        assert_eq!(skipped(&disk), 0, "DRBD, {more}");
    }
}
