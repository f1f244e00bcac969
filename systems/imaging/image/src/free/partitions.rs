//! Where the partitions of a disk are, from its GUID partition table (UEFI specification 2.10, section 5.3) or its MBR
//! with logical partitions.

use std::ops::Range;

use super::Disk;

/// The largest number of partitions. Rackweave's choice: Linux has at most 256 for a disk.
const MAX: usize = 256;

const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
const PROTECTIVE: u8 = 0xee;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_le_bytes(*it))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u64::from_le_bytes(*it))
}

/// Returns the partitions in ascending order; none if the disk has no table.
pub(super) fn partitions(disk: &dyn Disk) -> Result<Vec<Range<u64>>, String> {
    let mut boot = [0; 512];
    if disk.read(&mut boot, 0).is_err() || boot[510..] != [0x55, 0xaa] {
        return Ok(Vec::new());
    }
    let entries = entries(&boot);
    let mut found = match entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        true => guid_table(disk)?,
        false => master_record(disk, &entries),
    };
    // The first sector of a file system looks like a table with nonsense in it.
    found.retain(|range| range.start < range.end && range.end <= disk.size());
    found.sort_unstable_by_key(|range| range.start);
    if found.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err("its partitions overlap".to_owned());
    }
    Ok(found)
}

fn guid_table(disk: &dyn Disk) -> Result<Vec<Range<u64>>, String> {
    let damaged = || "its GUID partition table is damaged".to_owned();
    for sector in [512, 4096] {
        let mut header = [0; 92];
        if disk.read(&mut header, sector).is_err() || header[..8] != *b"EFI PART" {
            continue;
        }
        let expected = u32_at(&header, 16);
        header[16..20].fill(0);
        let (count, size) = (u32_at(&header, 80) as usize, u32_at(&header, 84) as usize);
        let valid = u32_at(&header, 12) == 92
            && crc32(&header) == expected
            && count <= MAX
            && (128..=4096).contains(&size);
        let at = u64_at(&header, 72).checked_mul(sector).filter(|_| valid).ok_or_else(damaged)?;
        let mut table = vec![0; count * size];
        disk.read(&mut table, at).map_err(|_| damaged())?;
        if crc32(&table) != u32_at(&header, 88) {
            return Err(damaged());
        }
        let used = table.chunks_exact(size).filter(|entry| entry[..16] != [0; 16]);
        let range = |entry: &[u8]| {
            let [first, last] = [32, 40].map(|at| u64_at(entry, at));
            Some(first.checked_mul(sector)?..last.checked_add(1)?.checked_mul(sector)?)
        };
        return Ok(used.filter_map(range).collect());
    }
    Err(damaged())
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    start: u64,
    sectors: u64,
}

fn entries(sector: &[u8; 512]) -> [Entry; 4] {
    [446, 462, 478, 494].map(|at| Entry {
        kind: sector[at + 4],
        start: u64::from(u32_at(sector, at + 8)),
        sectors: u64::from(u32_at(sector, at + 12)),
    })
}

/// Returns the primary and logical partitions, which are counted in sectors of 512 bytes.
fn master_record(disk: &dyn Disk, primary: &[Entry; 4]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut push = |base: u64, entry: &Entry| {
        let start = (base + entry.start) * 512;
        found.push(start..start + entry.sectors * 512);
    };
    let of_kind = |entry: &&Entry, extended| {
        entry.sectors > 0 && entry.kind != 0 && EXTENDED.contains(&entry.kind) == extended
    };
    primary.iter().filter(|it| of_kind(it, false)).for_each(|entry| push(0, entry));
    let Some(extended) = primary.iter().find(|it| of_kind(it, true)) else { return found };
    // A chain of tables, each with a logical partition and the place of the next table.
    let mut at = extended.start;
    for _ in 0..MAX {
        let mut sector = [0; 512];
        if disk.read(&mut sector, at * 512).is_err() || sector[510..] != [0x55, 0xaa] {
            break;
        }
        let [partition, next, ..] = entries(&sector);
        if of_kind(&&partition, false) {
            push(at, &partition);
        }
        if !of_kind(&&next, true) {
            break;
        }
        at = extended.start + next.start;
    }
    found
}
