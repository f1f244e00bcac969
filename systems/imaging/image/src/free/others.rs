//! Who else may own a disk or a partition: marks of what replaces a file system without overwriting its superblock.
//!
//! The places are those in which `libblkid` (util-linux) and `lsblk` look. A mark that is only old costs room; one that is
//! missed costs data.

use std::ops::Range;

use super::Disk;

/// Where a mark can be.
#[derive(Clone, Copy)]
enum At {
    /// At this byte.
    Byte(u64),
    /// First place, distance, number: places from this byte on.
    Each(u64, u64, u64),
    /// Last place in bytes before the end, distance, number of places.
    Last(u64, u64, u64),
    /// At this byte of the last whole page of 4096 bytes.
    Page(u64),
}

use At::{Byte, Each, Last, Page};

const LINUX_RAID: [u8; 4] = [0xfc, 0x4e, 0x2b, 0xa9];
const ZFS: [u8; 8] = [0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0];
const UFS: &[u8] = &[0x54, 0x19, 0x01, 0];
const UFS2: &[u8] = &[0x19, 0x01, 0x54, 0x19];

/// Metadata of RAID is in the last sectors, whose places depend on the version and on what the size was rounded to.
const END: At = Last(512, 512, 384);

/// Sectors in which a page of swap may end; the mark is before its end.
const PAGES: [u64; 5] = [4096, 8192, 16384, 32768, 65536];

/// Owner, place and bytes of a mark.
const MARKS: &[(&str, At, &[u8])] = &[
    ("FAT", Byte(54), b"FAT"),
    ("FAT", Byte(82), b"FAT32   "),
    ("exFAT", Byte(3), b"EXFAT   "),
    ("NTFS", Byte(3), b"NTFS    "),
    ("ReFS", Byte(3), b"ReFS\0"),
    ("BitLocker", Byte(3), b"-FVE-FS-"),
    ("XFS", Byte(0), b"XFSB"),
    ("JFS", Byte(32768), b"JFS1"),
    ("ReiserFS", Each(8192 + 52, 57344, 2), b"ReIsEr"),
    ("Reiser4", Byte(65536), b"ReIsEr4"),
    ("Btrfs", Byte(65536 + 64), b"_BHRfS_M"),
    ("Btrfs", Byte((64 << 20) + 64), b"_BHRfS_M"),
    ("Btrfs", Byte((256 << 30) + 64), b"_BHRfS_M"),
    ("bcachefs", Byte(4096 + 24), &0xc685_73f6_66ce_90a9_d96a_60cf_803d_f7ef_u128.to_be_bytes()),
    ("bcache", Byte(4096 + 24), &0xc685_73f6_4e1a_45ca_8265_f57f_48ba_6d81_u128.to_be_bytes()),
    ("ZFS", Each(128 << 10, 1024, 128), &ZFS),
    ("ZFS", Each(384 << 10, 1024, 128), &ZFS),
    ("ZFS", Last(1024, 1024, 768), &ZFS),
    ("ZFS", Each(128 << 10, 1024, 128), &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]),
    ("ZFS", Last(1024, 1024, 768), &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]),
    ("ISO 9660", Each(32768 + 1, 2048, 16), b"CD001"),
    ("UDF", Each(32768 + 1, 2048, 16), b"NSR0"),
    ("F2FS", Each(1024, 4096, 2), &[0x10, 0x20, 0xf5, 0xf2]),
    ("HFS+", Byte(1024), b"H+\0\x04"),
    ("HFS+", Byte(1024), b"HX\0\x05"),
    ("HFS+", Last(1024, 512, 1), b"H+\0\x04"),
    ("APFS", Byte(32), b"NXSB"),
    ("UFS", Each(1372, 8192, 33), UFS2),
    ("UFS", Each(1372, 8192, 33), UFS),
    ("SquashFS", Byte(0), b"hsqs"),
    ("EROFS", Byte(1024), &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("VMFS", Byte(1 << 20), &[0x0d, 0xd0, 0x01, 0xc0]),
    ("OCFS2", Each(1024, 512, 16), b"OCFSV2"),
    ("GFS2", Byte(65536), &[0x01, 0x16, 0x19, 0x70]),
    ("Ceph", Byte(0), b"bluestore block device"),
    ("Oracle ASM", Byte(32), b"ORCLDISK"),
    ("an Apple partition map", Byte(0), b"ER"),
    ("an Apple partition map", Each(512, 512, 8), b"PM\0\0\0\0"),
    ("a Sun label", Byte(508), &[0xda, 0xbe]),
    ("an SGI label", Byte(0), &[0x0b, 0xe5, 0xa9, 0x41]),
    ("an AIX label", Byte(0), &[0xc9, 0xc2, 0xd4, 0xc1]),
    ("an Amiga partition table", Each(0, 512, 16), b"RDSK"),
    ("a BSD label", Each(0, 64, 16), &[0x57, 0x45, 0x56, 0x82]),
    ("a BSD label", Each(0, 64, 16), &[0x82, 0x56, 0x45, 0x57]),
    ("dynamic disks", Byte(3072), b"PRIVHEAD"),
    ("dynamic disks", Last(512, 512, 2048), b"PRIVHEAD"),
    ("LUKS", Byte(0), b"LUKS\xba\xbe"),
    ("LUKS", Each(0x4000, 0x4000, 256), b"SKUL\xba\xbe"),
    ("LVM", Each(0, 512, 8), b"LABELONE"),
    ("LVM1", Byte(0), b"HM\x01\0"),
    ("LVM1", Byte(0), b"HM\x02\0"),
    ("a snapshot of the device mapper", Byte(0), b"SnAp"),
    ("dm-integrity", Byte(0), b"integrt\0"),
    ("dm-verity", Byte(0), b"verity\0\0"),
    ("VDO", Byte(0), b"dmvdo001"),
    ("Stratis", Each(512 + 4, 512 * 8, 3), b"!Stra0tis\x86\xff\x02^"),
    ("a thin pool", Byte(32), &27_022_010_u64.to_le_bytes()),
    ("Storage Spaces", Byte(4096), b"SPACEDB "),
    ("DRBD", Last(4096 - 60, 4096, 1), &[0x83, 0x74, 0x02]),
    ("DRBD", Page(60), &[0x83, 0x74, 0x02]),
    ("Linux RAID", Each(0, 512, 256), &LINUX_RAID),
    ("Linux RAID", END, &LINUX_RAID),
    ("Linux RAID", END, &[0xa9, 0x2b, 0x4e, 0xfc]),
    ("a firmware RAID", END, b"Intel Raid ISM Cfg"),
    ("a firmware RAID", END, &[0xde, 0x11, 0xde, 0x11]),
    ("a firmware RAID", END, &[0x11, 0xde, 0x11, 0xde]),
    ("a firmware RAID", END, b"NVIDIA"),
    ("a firmware RAID", Last(512, 512, 3087), b"Promise Technology"),
    ("a firmware RAID", END, b"$XIDE$"),
    ("a firmware RAID", Byte(9 * 512 + 32), &[0xf0, 0x16, 0x78, 0x5a]),
    ("a firmware RAID", Byte(9 * 512 + 32), &[0xfd, 0x16, 0x78, 0x5a]),
    ("a firmware RAID", Last(11 * 512, 512, 1), &[0xf3, 0x16, 0x78, 0x5a]),
    ("a firmware RAID", Last(11 * 512, 512, 1), &[0xfd, 0x16, 0x78, 0x5a]),
    ("a firmware RAID", Last(512 - 0x60, 512, 1), &[0, 0, 0, 0x2f]),
    ("a firmware RAID", Last(512, 512, 1), &[0x37, 0xfc, 0x4d, 0x1e]),
    ("a firmware RAID", Last(512, 512, 1), &[0x55, 0xaa]),
    ("a firmware RAID", Last(512, 512, 1), b"JM"),
];

/// What the last bytes of a page of swap are, also while a machine sleeps.
const SWAP: [&[u8]; 5] =
    [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0", b"ULSUSPEND\0"];

impl At {
    /// Returns the places in a range of the disk.
    fn places(self, range: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let Range { start, end } = *range;
        let (first, step, count) = match self {
            Byte(at) => (start.checked_add(at), 1, 1),
            Each(at, step, count) => (start.checked_add(at), step, count),
            Page(at) => {
                (end.checked_sub(4096).map(|last| start + (last - start) / 4096 * 4096 + at), 1, 1)
            }
            Last(back, step, count) => {
                let count = count.min((end - start) / step);
                // The last place is one of the grid that begins with the range.
                let last = end.checked_sub(back).map(|at| start + (at - start) / step * step);
                let last = if back % step == 0 { last } else { end.checked_sub(back) };
                (
                    last.and_then(|last| last.checked_sub(count.saturating_sub(1) * step)),
                    step,
                    count,
                )
            }
        };
        let place = move |number| Some(first? + number * step);
        (0..count).filter_map(place).filter(move |at| (start..end).contains(at))
    }
}

/// Returns who has left a mark in a range of the disk, outside of these ranges.
pub(super) fn owner(
    disk: &dyn Disk,
    range: &Range<u64>,
    except: &[Range<u64>],
) -> Result<Option<&'static str>, String> {
    let mut found = [0; 32];
    let mut has = |at: u64, mark: &[u8]| {
        let bytes = &mut found[..mark.len()];
        if at + mark.len() as u64 > range.end || except.iter().any(|it| it.contains(&at)) {
            return Ok(false);
        }
        disk.read(bytes, at).map_err(|error| format!("it cannot be read: {error}"))?;
        Ok::<_, String>(bytes == mark)
    };
    for (owner, place, mark) in MARKS {
        for at in place.places(range) {
            if has(at, mark)? {
                return Ok(Some(owner));
            }
        }
    }
    for (page, mark) in PAGES.iter().flat_map(|page| SWAP.map(|mark| (page, mark))) {
        if has(range.start + page - 10, mark)? {
            return Ok(Some("swap"));
        }
    }
    Ok(None)
}
