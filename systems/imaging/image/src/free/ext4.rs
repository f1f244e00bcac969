//! The free blocks of ext2, ext3 and ext4, from superblock, group descriptors and block bitmaps (Linux kernel
//! documentation, `filesystems/ext4`). Nothing else of the file system is read.
//!
//! If anything is unusual, no block counts as free: an image that is too large is right, and one that lacks a block is not. In
//! particular each bitmap must have as many free blocks as its descriptor counts, and all checksums must match.

use std::ops::Range;

use super::{Disk, u16_at, u32_at};

const SUPERBLOCK_AT: u64 = 1024;
const MAGIC: u16 = 0xef53;

/// The file system was not unmounted cleanly without a journal, or has errors.
const STATE_CLEAN: u16 = 1;
const STATE_ERRORS: u16 = 2;

const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const INCOMPAT_RECOVER: u32 = 0x4;
const INCOMPAT_JOURNAL_DEVICE: u32 = 0x8;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_64BIT: u32 = 0x80;
/// All incompatible features up to casefold, except compression (1) and the three above that are refused by name.
const INCOMPAT_KNOWN: u32 = 0x3_f7de;
const RO_SPARSE_SUPER: u32 = 0x1;
const RO_GDT_CSUM: u32 = 0x10;
const RO_BIGALLOC: u32 = 0x200;
const RO_METADATA_CSUM: u32 = 0x400;
const INCOMPAT_CSUM_SEED: u32 = 0x2000;

/// The place of a descriptor's checksum.
const DESCRIPTOR_SUM_AT: usize = 30;

/// The flag of a group whose bitmap was never written.
const BLOCK_UNINIT: u16 = 0x2;

fn wide(bytes: &[u8], low: usize, high: Option<usize>) -> u64 {
    let high = high.map_or(0, |at| u64::from(u32_at(bytes, at)));
    u64::from(u32_at(bytes, low)) | high << 32
}

/// Computes CRC-32C without the inversion at its end, as ext4 does.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut at = 0;
        while at < 256 {
            let mut word = at as u32;
            let mut bit = 0;
            while bit < 8 {
                word = word >> 1 ^ if word & 1 == 1 { 0x82f6_3b78 } else { 0 };
                bit += 1;
            }
            table[at] = word;
            at += 1;
        }
        table
    };
    let step = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)];
    bytes.iter().fold(seed, step)
}

/// What the superblock says about the layout.
struct Layout {
    start: u64,
    block_size: u64,
    blocks: u64,
    first: u64,
    per_group: u64,
    groups: u64,
    descriptor: usize,
    /// Blocks of a group's inode table.
    inode_table: u64,
    /// Blocks of a copy of the superblock and all group descriptors.
    super_copy: u64,
    sparse: bool,
    copies: Option<[u32; 2]>,
    /// Whether groups have flags.
    flags: bool,
    /// What checksums of descriptors and bitmaps start with, if there are such.
    seed: Option<u32>,
}

/// A group's place and counts.
struct Group {
    bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    free: u64,
    uninit: bool,
    /// The checksum of the bitmap, and the bits of it that are stored.
    sum: (u32, u32),
}

fn ensure(condition: bool, what: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what.to_owned()) }
}

impl Layout {
    fn new(superblock: &[u8], range: &Range<u64>) -> Result<Self, String> {
        let [compat, incompat, ro_compat] = [92, 96, 100].map(|at| u32_at(superblock, at));
        let state = u16_at(superblock, 58);
        let sums = ro_compat & RO_METADATA_CSUM != 0;
        let sum = crc32c(u32::MAX, &superblock[..1020]);
        ensure(!sums || sum == u32_at(superblock, 1020), "its superblock is damaged: run fsck")?;
        ensure(
            incompat & INCOMPAT_RECOVER == 0,
            "its journal must be replayed first: mount and unmount it, or run fsck",
        )?;
        ensure(state & STATE_CLEAN != 0, "it was not unmounted cleanly: run fsck")?;
        ensure(state & STATE_ERRORS == 0, "it has errors: run fsck")?;
        ensure(
            incompat & INCOMPAT_META_BG == 0,
            "it has the feature meta_bg, which is not supported",
        )?;
        ensure(
            incompat & INCOMPAT_JOURNAL_DEVICE == 0,
            "it is the journal of another file system",
        )?;
        ensure(incompat & !INCOMPAT_KNOWN == 0, "it has features that this program does not know")?;
        ensure(
            ro_compat & RO_BIGALLOC == 0,
            "it has the feature bigalloc, which is not supported",
        )?;
        let shift = u32_at(superblock, 24);
        ensure(shift <= 6, "its block size is invalid")?;
        let block_size = 1024_u64 << shift;
        let is_64bit = incompat & INCOMPAT_64BIT != 0;
        let blocks = wide(superblock, 4, is_64bit.then_some(336));
        let first = u64::from(u32_at(superblock, 20));
        let per_group = u64::from(u32_at(superblock, 32));
        let fits = blocks.checked_mul(block_size).is_some_and(|len| len <= range.end - range.start);
        ensure(fits, "it is larger than its partition")?;
        let valid = first == u64::from(shift == 0)
            && first < blocks
            && (256..=block_size * 8).contains(&per_group)
            && per_group.is_multiple_of(8);
        let inodes = u64::from(u32_at(superblock, 40));
        let inode = match u32_at(superblock, 76) {
            0 => 128,
            _ => u64::from(u16_at(superblock, 88)),
        };
        let valid = valid && inodes <= block_size * 8 && inode <= block_size;
        ensure(valid, "its geometry is invalid")?;
        let groups = (blocks - first).div_ceil(per_group);
        let descriptor = if is_64bit { usize::from(u16_at(superblock, 254)) } else { 32 };
        let valid = descriptor.is_power_of_two() && (32..=1024).contains(&descriptor);
        ensure(
            valid && (!is_64bit || descriptor >= 64),
            "its group descriptors have an invalid size",
        )?;
        let inode_table = (inodes * inode).div_ceil(block_size);
        let table = (groups * descriptor as u64).div_ceil(block_size);
        Ok(Self {
            start: range.start,
            block_size,
            blocks,
            first,
            per_group,
            groups,
            descriptor,
            inode_table,
            super_copy: 1 + table + u64::from(u16_at(superblock, 206)),
            sparse: ro_compat & RO_SPARSE_SUPER != 0,
            copies: (compat & COMPAT_SPARSE_SUPER2 != 0)
                .then(|| [588, 592].map(|at| u32_at(superblock, at))),
            flags: ro_compat & (RO_GDT_CSUM | RO_METADATA_CSUM) != 0,
            seed: sums.then(|| match incompat & INCOMPAT_CSUM_SEED {
                0 => crc32c(u32::MAX, &superblock[104..120]),
                _ => u32_at(superblock, 624),
            }),
        })
    }

    /// Returns the blocks of a group.
    fn range(&self, group: u64) -> Range<u64> {
        let start = self.first + group * self.per_group;
        start..(start + self.per_group).min(self.blocks)
    }

    /// Returns whether a group begins with a copy of the superblock.
    fn has_super(&self, group: u64) -> bool {
        let power_of = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        match self.copies {
            _ if group == 0 => true,
            Some(copies) => copies.iter().any(|copy| u64::from(*copy) == group),
            None => !self.sparse || group == 1 || [3, 5, 7].into_iter().any(power_of),
        }
    }

    fn groups(&self, disk: &dyn Disk) -> Result<Vec<Group>, String> {
        let table = self.start + (self.first + 1) * self.block_size;
        let mut groups = Vec::new();
        let mut bytes = vec![0; self.descriptor];
        for number in 0..self.groups {
            let at = table + number * self.descriptor as u64;
            disk.read(&mut bytes, at)
                .map_err(|error| format!("its group descriptors cannot be read: {error}"))?;
            if let Some(seed) = self.seed {
                let mut sum = crc32c(seed, &(number as u32).to_le_bytes());
                sum = crc32c(sum, &bytes[..DESCRIPTOR_SUM_AT]);
                sum = crc32c(sum, &[0; 2]);
                sum = crc32c(sum, &bytes[DESCRIPTOR_SUM_AT + 2..]);
                let right = sum as u16 == u16_at(&bytes, DESCRIPTOR_SUM_AT);
                ensure(right, &format!("the descriptor of group {number} is damaged: run fsck"))?;
            }
            let high = |at: usize| (self.descriptor >= 64).then_some(at);
            let sum_high = high(56).map_or(0, |at| u32::from(u16_at(&bytes, at)));
            let flags = if self.flags { u16_at(&bytes, 18) } else { 0 };
            let free_high = high(44).map_or(0, |at| u64::from(u16_at(&bytes, at)));
            groups.push(Group {
                bitmap: wide(&bytes, 0, high(32)),
                inode_bitmap: wide(&bytes, 4, high(36)),
                inode_table: wide(&bytes, 8, high(40)),
                free: u64::from(u16_at(&bytes, 12)) | free_high << 16,
                uninit: flags & BLOCK_UNINIT != 0,
                sum: (
                    u32::from(u16_at(&bytes, 24)) | sum_high << 16,
                    high(56).map_or(0xffff, |_| u32::MAX),
                ),
            });
        }
        Ok(groups)
    }

    /// Returns the blocks of all bitmaps and inode tables, which may be in any group, in ascending order.
    fn metadata(&self, groups: &[Group]) -> Vec<Range<u64>> {
        let of = |group: &Group| {
            let one = |block: u64| block..block.saturating_add(1);
            let table = group.inode_table..group.inode_table.saturating_add(self.inode_table);
            [one(group.bitmap), one(group.inode_bitmap), table]
        };
        let mut all: Vec<_> = groups.iter().flat_map(of).collect();
        all.sort_unstable_by_key(|range| range.start);
        all
    }

    /// Returns the free blocks of a group without a bitmap: all but metadata.
    fn without_bitmap(&self, number: u64, metadata: &[Range<u64>]) -> Vec<Range<u64>> {
        let Range { mut start, end } = self.range(number);
        if self.has_super(number) {
            start = end.min(start + self.super_copy);
        }
        let mut free = Vec::new();
        let first =
            metadata.partition_point(|used| used.start < start.saturating_sub(self.inode_table));
        for used in metadata[first..].iter().take_while(|used| used.start < end) {
            if used.start > start {
                free.push(start..used.start);
            }
            start = start.max(used.end);
        }
        if start < end {
            free.push(start..end);
        }
        free
    }

    fn bitmap(
        &self,
        disk: &dyn Disk,
        number: u64,
        group: &Group,
    ) -> Result<Vec<Range<u64>>, String> {
        ensure(group.bitmap < self.blocks, "a block bitmap is outside of the file system")?;
        let blocks = self.range(number);
        let mut bits = vec![0; (self.per_group / 8) as usize];
        disk.read(&mut bits, self.start + group.bitmap * self.block_size)
            .map_err(|error| format!("its block bitmaps cannot be read: {error}"))?;
        if let Some(seed) = self.seed {
            let (sum, stored) = group.sum;
            let right = crc32c(seed, &bits) & stored == sum;
            ensure(right, &format!("the block bitmap of group {number} is damaged: run fsck"))?;
        }
        let is_free = |block: &u64| {
            let bit = block - blocks.start;
            bits[(bit / 8) as usize] >> (bit % 8) & 1 == 0
        };
        let mut free: Vec<Range<u64>> = Vec::new();
        for block in blocks.clone().filter(is_free) {
            match free.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                _ => free.push(block..block + 1),
            }
        }
        Ok(free)
    }
}

/// Returns the unused bytes of the file system in a range of the disk, in ascending order, or why they cannot be
/// determined; `None` if no ext4 is there.
pub(super) fn unused(
    disk: &dyn Disk,
    range: &Range<u64>,
) -> Option<Result<Vec<Range<u64>>, String>> {
    let mut superblock = [0; 1024];
    if range.end.checked_sub(range.start)? < SUPERBLOCK_AT + 1024 {
        return None;
    }
    disk.read(&mut superblock, range.start + SUPERBLOCK_AT).ok()?;
    (u16_at(&superblock, 56) == MAGIC).then(|| find(disk, &superblock, range))
}

fn find(disk: &dyn Disk, superblock: &[u8], range: &Range<u64>) -> Result<Vec<Range<u64>>, String> {
    let layout = Layout::new(superblock, range)?;
    let groups = layout.groups(disk)?;
    let metadata = layout.metadata(&groups);
    let mut unused: Vec<Range<u64>> = Vec::new();
    for (number, group) in (0..).zip(&groups) {
        let free = match group.uninit {
            true => layout.without_bitmap(number, &metadata),
            false => layout.bitmap(disk, number, group)?,
        };
        let count: u64 = free.iter().map(|range| range.end - range.start).sum();
        if count != group.free {
            return Err(format!(
                "group {number} has {count} free blocks and counts {}: run fsck",
                group.free
            ));
        }
        for blocks in free {
            let byte = |block| layout.start + block * layout.block_size;
            match unused.last_mut() {
                Some(last) if last.end == byte(blocks.start) => last.end = byte(blocks.end),
                _ => unused.push(byte(blocks.start)..byte(blocks.end)),
            }
        }
    }
    Ok(unused)
}
