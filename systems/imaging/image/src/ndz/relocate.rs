//! Relocations of `.ndz` chunks: data that contain absolute sector numbers. imagezip makes them relative to the start of
//! the partition that it reads, and a writer of the image adds the start of the partition that it writes to.

use super::{ChunkHeader, MAX_RELOCATED, Relocation, SECTOR};

const NONE: u32 = 0;
const FREEBSD_LABEL: u32 = 1;
const OPENBSD_LABEL: u32 = 2;
const LILO_ADDRESS: u32 = 3;
const LILO_MAP: u32 = 4;
const LILO_CHECKSUM: u32 = 5;
/// The disk ends within this sector.
pub(super) const SHORT_SECTOR: u32 = 6;

/// The magic number of a BSD disk label, at its beginning and at byte 132.
const LABEL_MAGIC: u32 = 0x8256_4557;
const LABEL_CHECKSUM_AT: usize = 136;
const LABEL_COUNT_AT: usize = 138;
const LABEL_PARTITIONS_AT: usize = 148;

/// A LILO sector address: low byte, middle byte, device and flags, high byte, count.
const ADDRESS: usize = 5;

/// LILO's table of image descriptors, which its checksum precedes; both are in an area of two sectors.
const LILO_TABLE: usize = 990;
const LILO_AREA: usize = 1024;
const LILO_SEED: u16 = 0xabcd;

/// Checks that each relocation has a shape that can be applied.
pub(super) fn check(header: &ChunkHeader) -> Result<(), String> {
    for relocation in &header.relocations {
        let Relocation { kind, offset, size, .. } = *relocation;
        let shape = match kind {
            NONE => true,
            FREEBSD_LABEL | OPENBSD_LABEL => (LABEL_PARTITIONS_AT as u32..=512).contains(&size),
            LILO_ADDRESS => size as usize == ADDRESS,
            LILO_MAP => size == 512,
            LILO_CHECKSUM => size == 2,
            SHORT_SECTOR => offset == 0 && (1..512).contains(&size),
            _ => return Err(format!("it has a relocation of the unknown kind {kind}")),
        };
        let inside = kind == NONE || offset < MAX_RELOCATED as u32 && size <= 512;
        if !shape || !inside {
            return Err(format!("it has a relocation of kind {kind} that makes no sense"));
        }
    }
    Ok(())
}

/// Applies all relocations to the data of all regions, for a partition that starts at this sector.
pub(super) fn apply(header: &ChunkHeader, start: u64, data: &mut [u8]) -> Result<(), String> {
    let start = u32::try_from(start).map_err(|_| "its partition starts beyond sector 2^32")?;
    for relocation in &header.relocations {
        let Relocation { kind, sector, offset, size } = *relocation;
        if matches!(kind, NONE | SHORT_SECTOR) {
            continue;
        }
        let outside = || format!("it has a relocation of kind {kind} outside of its regions");
        let (at, region) = locate(header, sector, offset, size).ok_or_else(outside)?;
        let field = &mut data[at..at + size as usize];
        match kind {
            FREEBSD_LABEL | OPENBSD_LABEL => label(field, start, kind == OPENBSD_LABEL)?,
            LILO_ADDRESS | LILO_MAP => addresses(field, start),
            _ => {
                let table = at.checked_sub(LILO_TABLE).filter(|table| *table >= region.start);
                let area = table.map(|table| table..table + LILO_AREA);
                let area = area.filter(|area| area.end <= region.end).ok_or_else(outside)?;
                checksum(&mut data[area]);
            }
        }
    }
    Ok(())
}

/// Returns the place in the data of a field on the disk, which must be in one region, and that of the region.
fn locate(
    header: &ChunkHeader,
    sector: u32,
    offset: u32,
    size: u32,
) -> Option<(usize, std::ops::Range<usize>)> {
    let field = u64::from(sector) * SECTOR + u64::from(offset);
    let mut before = 0;
    for (start, sectors) in header.regions() {
        let (start, len) = (u64::from(*start) * SECTOR, u64::from(*sectors) * SECTOR);
        if field >= start && field + u64::from(size) <= start + len {
            let at = before + (field - start);
            return Some((at as usize, before as usize..(before + len) as usize));
        }
        before += len;
    }
    None
}

fn xor(seed: u16, bytes: &[u8]) -> u16 {
    bytes.chunks_exact(2).fold(seed, |sum, word| sum ^ u16::from_le_bytes([word[0], word[1]]))
}

/// Makes the offsets of a disk label's partitions absolute. On a whole disk they are already.
fn label(label: &mut [u8], start: u32, openbsd: bool) -> Result<(), String> {
    if start == 0 {
        return Ok(());
    }
    let word = |label: &[u8], at| super::u32_at(label, at);
    if word(label, 0) != LABEL_MAGIC || word(label, 132) != LABEL_MAGIC {
        return Err("it has a relocation for a BSD disk label where none is".to_owned());
    }
    let count = usize::from(u16::from_le_bytes([label[LABEL_COUNT_AT], label[LABEL_COUNT_AT + 1]]));
    let end = LABEL_PARTITIONS_AT + 16 * count;
    if end > label.len() {
        return Err("it has a BSD disk label with more partitions than fit".to_owned());
    }
    for number in 0..count {
        let at = LABEL_PARTITIONS_AT + 16 * number;
        // OpenBSD: the whole disk, and partitions that stand for other systems' ones.
        let other = openbsd && (number == 2 || (8..16).contains(&number));
        if word(label, at) != 0 && !other {
            let moved = word(label, at + 4).wrapping_add(start);
            label[at + 4..at + 8].copy_from_slice(&moved.to_le_bytes());
        }
    }
    label[LABEL_CHECKSUM_AT..LABEL_COUNT_AT].fill(0);
    let sum = xor(0, &label[..end]);
    label[LABEL_CHECKSUM_AT..LABEL_COUNT_AT].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// Makes LILO's sector addresses absolute, up to the first that is empty or in cylinders.
fn addresses(bytes: &mut [u8], start: u32) {
    const LINEAR: u8 = 0x40;
    const WITHOUT_COUNT: u8 = 0x10;
    for address in bytes.chunks_exact_mut(ADDRESS) {
        let [low, middle, device, high, top] = *address else { return };
        let wide = device & LINEAR == 0 && device & WITHOUT_COUNT != 0;
        let sector = u32::from_le_bytes([low, middle, high, if wide { top } else { 0 }]);
        if sector == 0 || device & 0x70 == 0 {
            return;
        }
        let [low, middle, high, new_top] = sector.wrapping_add(start).to_le_bytes();
        (address[0], address[1], address[3]) = (low, middle, high);
        if wide {
            address[4] = new_top;
        }
    }
}

/// Computes the checksum of LILO's table, which is its first word.
fn checksum(area: &mut [u8]) {
    area[..2].fill(0);
    let sum = xor(LILO_SEED, area);
    area[..2].copy_from_slice(&sum.to_le_bytes());
}
