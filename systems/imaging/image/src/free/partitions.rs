//! Where the partitions of a disk are, from its GUID partition table or its MBR
//! with logical partitions.
//!
//! A table that is not understood in full is an error: what it does not describe may be somebody's.

use std::ops::Range;

use super::guid::{DAMAGED, GuidEntry, GuidHeader, MAX, NOT_UNDERSTOOD};
use super::{Disk, u32_at};

const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
const PROTECTIVE: u8 = 0xee;

/// The kinds of MBR partitions that ext4 is looked for in: Linux, and Linux hidden.
const LINUX: [u8; 2] = [0x83, 0x93];

/// A partition of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    /// Its bytes.
    pub(super) range: Range<u64>,
    /// Whether its type permits ext4.
    pub(super) is_linux: bool,
}

/// Returns the partitions in ascending order; `None` if the disk has no table.
pub(super) fn partitions(disk: &dyn Disk) -> Result<Option<Vec<Partition>>, String> {
    let mut boot = [0; 512];
    if disk.size() < 512 {
        return Ok(None);
    }
    disk.read(&mut boot, 0).map_err(|error| format!("its first sector cannot be read: {error}"))?;
    if boot[510..] != [0x55, 0xaa] {
        // A GUID table without the MBR that protects it, or what is left of one.
        let has_guid = [512, 4096].into_iter().any(|sector| {
            let last = disk.size() / sector * sector;
            GuidHeader::is_at(disk, sector) || GuidHeader::is_at(disk, last.saturating_sub(sector))
        });
        return match has_guid {
            true => Err("it has a GUID partition table without an MBR".to_owned()),
            false => Ok(None),
        };
    }
    let entries = entries(&boot)?;
    let mut found = match entries.iter().find(|entry| entry.kind == PROTECTIVE) {
        Some(_) if entries.iter().filter(|entry| entry.kind != 0).count() > 1 => {
            return Err("its MBR has other partitions next to its GUID partition table".to_owned());
        }
        Some(_) => guid_table(disk)?,
        None => master_record(disk, &entries)?,
    };
    if found.iter().any(|it| it.range.is_empty()) {
        return Err(NOT_UNDERSTOOD.to_owned());
    }
    if found.iter().any(|it| it.range.end > disk.size()) {
        return Err("it has a partition that ends beyond the end of the disk".to_owned());
    }
    found.sort_unstable_by_key(|it| it.range.start);
    if found.windows(2).any(|pair| pair[0].range.end > pair[1].range.start) {
        return Err("its partitions overlap".to_owned());
    }
    Ok(Some(found))
}

fn guid_table(disk: &dyn Disk) -> Result<Vec<Partition>, String> {
    let header = GuidHeader::primary(disk).ok_or(DAMAGED)?;
    let sector = header.sector;
    if disk.sector_size().is_some_and(|own| u64::from(own) != sector) {
        return Err(format!("its GUID partition table is for sectors of {sector} bytes"));
    }
    let table = header.table(disk)?;
    // Whoever repairs a disk may take the copy. One that is damaged or overwritten decides nothing.
    let end = header.copy.checked_add(1).and_then(|end| end.checked_mul(sector));
    if end.is_none_or(|end| end > disk.size()) {
        return Err("its GUID partition table is for a larger disk".to_owned());
    }
    let copy = GuidHeader::read(disk, sector, header.copy);
    if copy.is_some_and(|copy| !copy.is_copy_of(&header)) {
        return Err("the two copies of its GUID partition table differ".to_owned());
    }
    let partition = |entry: &GuidEntry| {
        let Range { start, end } = entry.sectors;
        let range = start.checked_mul(sector)?..end.checked_mul(sector)?;
        Some(Partition { range, is_linux: entry.is_linux() })
    };
    let found: Option<Vec<Partition>> = table.used.iter().map(partition).collect();
    found.ok_or_else(|| NOT_UNDERSTOOD.to_owned())
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: u8,
    start: u64,
    sectors: u64,
}

impl Entry {
    const fn is_used(&self) -> bool {
        self.kind != 0
    }

    fn is_extended(&self) -> bool {
        EXTENDED.contains(&self.kind)
    }
}

/// Returns the entries of a sector with a table. Boot code that looks like entries is not understood.
fn entries(sector: &[u8; 512]) -> Result<[Entry; 4], String> {
    let places = [446, 462, 478, 494];
    let entries = places.map(|at| Entry {
        kind: sector[at + 4],
        start: u64::from(u32_at(sector, at + 8)),
        sectors: u64::from(u32_at(sector, at + 12)),
    });
    let understood = |(at, entry): (&usize, &Entry)| match entry.is_used() {
        true => [0, 0x80].contains(&sector[*at]) && entry.sectors > 0 && entry.start > 0,
        false => sector[*at..*at + 16].iter().all(|byte| *byte == 0),
    };
    match places.iter().zip(&entries).all(understood) {
        true => Ok(entries),
        false => Err(NOT_UNDERSTOOD.to_owned()),
    }
}

/// Returns the primary and logical partitions, which are counted in sectors of the disk, or of 512 bytes.
fn master_record(disk: &dyn Disk, primary: &[Entry; 4]) -> Result<Vec<Partition>, String> {
    let unit = u64::from(disk.sector_size().unwrap_or(512));
    let partition = |base: u64, entry: &Entry| {
        let start = (base + entry.start) * unit;
        let range = start..start + entry.sectors * unit;
        Partition { range, is_linux: LINUX.contains(&entry.kind) }
    };
    let used = || primary.iter().filter(|it| it.is_used());
    let mut found: Vec<_> =
        used().filter(|it| !it.is_extended()).map(|entry| partition(0, entry)).collect();
    let mut extended = used().filter(|it| it.is_extended());
    let Some(outer) = extended.next() else { return Ok(found) };
    let not_understood = |what: &str| format!("its extended partition {what}");
    if extended.next().is_some() {
        return Err("it has several extended partitions".to_owned());
    }
    let whole = partition(0, outer).range;
    if found.iter().any(|it| it.range.start < whole.end && whole.start < it.range.end) {
        return Err("its partitions overlap".to_owned());
    }
    if whole.end > disk.size() {
        return Err("it has a partition that ends beyond the end of the disk".to_owned());
    }
    // A chain of tables, each with a logical partition and the place of the next table.
    let mut at = outer.start;
    for _ in 0..MAX {
        let mut sector = [0; 512];
        if disk.read(&mut sector, at * unit).is_err() || sector[510..] != [0x55, 0xaa] {
            return Err(not_understood("has no table"));
        }
        // Linux reads the last two entries too, and nobody writes them.
        let [logical, next, rest @ ..] = entries(&sector)?;
        let odd = rest.iter().any(Entry::is_used)
            || logical.is_extended()
            || next.is_used() && !next.is_extended();
        if odd {
            return Err(not_understood("has a table that is not understood"));
        }
        let table = Partition { range: at * unit..(at + 1) * unit, is_linux: false };
        let links = [Some(table), logical.is_used().then(|| partition(at, &logical))];
        for link in links.into_iter().flatten() {
            if link.range.start < whole.start || link.range.end > whole.end {
                return Err(not_understood("does not hold its logical partitions"));
            }
            found.push(link);
        }
        if !next.is_used() {
            return Ok(found);
        }
        at = outer.start + next.start;
    }
    Err(not_understood("has a chain of tables without an end"))
}
