//! GUID partition tables (UEFI specification 2.10, section 5.3).

use std::ops::Range;

use super::{Disk, u32_at, u64_at};

/// The largest number of partitions. Rackweave's choice: Linux has at most 256 for a disk.
pub(super) const MAX: usize = 256;

pub(super) const DAMAGED: &str = "its GUID partition table is damaged";
pub(super) const NOT_UNDERSTOOD: &str = "its partition table is not understood";

/// The bytes of a header that are in use.
const HEADER: usize = 92;
const MARK: &[u8; 8] = b"EFI PART";

// The places of its fields.
const SIZE: usize = 12;
const SUM: usize = 16;
const OWN: usize = 24;
const COPY: usize = 32;
const FIRST: usize = 40;
const LAST: usize = 48;
const TABLE: usize = 72;
const COUNT: usize = 80;
const ENTRY_SIZE: usize = 84;
const TABLE_SUM: usize = 88;

/// The types of partitions that ext4 is looked for in: Linux data, then those of the Discoverable Partitions Specification (UAPI
/// group): `/home`, `/srv`, `/var`, `/var/tmp`, the extended boot loader, and root and `/usr` of x86, x86-64, ARM, ARM64, IA-64,
/// LoongArch, and RISC-V of 32 and 64 bits. Microsoft's basic data is in doubt, as is its type in an MBR.
const LINUX: [u128; 22] = [
    0x0fc63daf_8483_4772_8e79_3d69d8477de4,
    0x933ac7e1_2eb4_4f13_b844_0e14e2aef915,
    0x3b8f8425_20e0_4f3b_907f_1a25a76f98e8,
    0x4d21b016_b534_45c2_a9fb_5c16e091fd2d,
    0x7ec6f557_3bc5_4aca_b293_16ef5df639d1,
    0xbc13c2ff_59e6_4262_a352_b275fd6f7172,
    0x44479540_f297_41b2_9af7_d131d5f0458a,
    0x4f68bce3_e8cd_4db1_96e7_fbcaf984b709,
    0x69dad710_2ce4_4e3c_b16c_21a1d49abed3,
    0xb921b045_1df0_41c3_af44_4c6f280d3fae,
    0x993d8d3d_f80e_4225_855a_9daf8ed7ea97,
    0x77055800_792c_4f94_b39a_98c91b762bb6,
    0x60d5a7fe_8e7d_435c_b714_3dd8162144e1,
    0x72ec70a6_cf74_40e6_bd49_4bda08e8f224,
    0x75250d76_8cc6_458e_bd66_bd47cc81a812,
    0x8484680c_9521_48c6_9c11_b0720656f69e,
    0x7d0359a3_02b3_4f0a_865c_654403e70625,
    0xb0e01050_ee5f_4390_949a_9101b17104e9,
    0x4301d2a6_4e3b_4b2a_bb94_9e0b2c4225ea,
    0xe611c702_575c_4cbe_9a46_434fa0bf7e3f,
    0xb933fb22_5c3f_4f91_af90_e2bb0fa50702,
    0xbeaec34b_8442_439b_a40b_984381ed097d,
];

/// A header that is intact.
pub(crate) struct GuidHeader {
    bytes: [u8; HEADER],
    /// The bytes of the sectors that it counts in.
    pub(crate) sector: u64,
    /// The sector of the other header.
    pub(crate) copy: u64,
    /// The sectors that partitions may have.
    pub(crate) usable: Range<u64>,
    /// The first sector of its table.
    pub(crate) table: u64,
    count: usize,
    size: usize,
}

/// The table of a header, intact and understood.
pub(crate) struct GuidTable {
    pub(crate) bytes: Vec<u8>,
    /// The entries that are in use, each inside of the usable sectors.
    pub(crate) used: Vec<GuidEntry>,
}

/// A partition.
pub(crate) struct GuidEntry {
    /// Its type, as the number that its text is.
    kind: u128,
    pub(crate) sectors: Range<u64>,
}

impl GuidHeader {
    /// Whether there is a header at a byte, intact or not.
    pub(super) fn is_at(disk: &dyn Disk, at: u64) -> bool {
        let mut mark = [0; MARK.len()];
        disk.read(&mut mark, at).is_ok() && mark == *MARK
    }

    /// Returns the intact header in a sector.
    pub(super) fn read(disk: &dyn Disk, sector: u64, lba: u64) -> Option<Self> {
        let mut bytes = [0; HEADER];
        disk.read(&mut bytes, lba.checked_mul(sector)?).ok()?;
        let [count, size] = [COUNT, ENTRY_SIZE].map(|at| u32_at(&bytes, at) as usize);
        let [own, copy, first, last, table] =
            [OWN, COPY, FIRST, LAST, TABLE].map(|at| u64_at(&bytes, at));
        let valid = bytes.starts_with(MARK)
            && u32_at(&bytes, SIZE) as usize == HEADER
            && sum(&bytes) == u32_at(&bytes, SUM)
            && count <= MAX
            && (128..=4096).contains(&size)
            && size.is_multiple_of(8)
            && own == lba;
        let usable = first..last.checked_add(1)?;
        valid.then_some(Self { bytes, sector, copy, usable, table, count, size })
    }

    /// Returns the intact header at the beginning of a disk; `None` also if sectors of both sizes have one.
    pub(crate) fn primary(disk: &dyn Disk) -> Option<Self> {
        let mut found = [512, 4096].into_iter().filter_map(|sector| Self::read(disk, sector, 1));
        found.next().filter(|_| found.next().is_none())
    }

    pub(super) fn is_copy_of(&self, other: &Self) -> bool {
        let table_sum = |of: &Self| u32_at(&of.bytes, TABLE_SUM);
        table_sum(self) == table_sum(other) && self.copy == u64_at(&other.bytes, OWN)
    }

    /// Reads the table.
    ///
    /// # Errors
    /// If it is damaged, or has a partition outside of the usable sectors, as half a sentence.
    pub(crate) fn table(&self, disk: &dyn Disk) -> Result<GuidTable, String> {
        let at = self.table.checked_mul(self.sector).ok_or(DAMAGED)?;
        let mut bytes = vec![0; self.count * self.size];
        disk.read(&mut bytes, at).map_err(|_| DAMAGED)?;
        if crc32(&bytes) != u32_at(&self.bytes, TABLE_SUM) {
            return Err(DAMAGED.to_owned());
        }
        let entry = |entry: &[u8]| {
            let [first, last] = [32, 40].map(|at| u64_at(entry, at));
            let sectors = first..last.checked_add(1)?;
            let inside = self.usable.start <= first && sectors.end <= self.usable.end;
            (inside && !sectors.is_empty()).then(|| GuidEntry { kind: type_of(entry), sectors })
        };
        let used = bytes.chunks_exact(self.size).filter(|it| it[..16] != [0; 16]);
        let used: Option<Vec<_>> = used.map(entry).collect();
        Ok(GuidTable { used: used.ok_or(NOT_UNDERSTOOD)?, bytes })
    }

    /// Returns the bytes of two headers for a table whose copy ends before the sector `last`: this one, and that of the copy, which
    /// is `last`.
    pub(crate) fn moved(&self, last: u64, table: u64) -> [[u8; HEADER]; 2] {
        let put = |bytes: &mut [u8; HEADER], fields: &[(usize, u64)]| {
            for (at, value) in fields {
                bytes[*at..*at + 8].copy_from_slice(&value.to_le_bytes());
            }
            let sum = sum(bytes).to_le_bytes();
            bytes[SUM..SUM + 4].copy_from_slice(&sum);
        };
        let (mut own, own_sector) = (self.bytes, u64_at(&self.bytes, OWN));
        put(&mut own, &[(COPY, last), (LAST, table - 1)]);
        let mut copy = own;
        put(&mut copy, &[(OWN, last), (COPY, own_sector), (TABLE, table)]);
        [own, copy]
    }
}

impl GuidEntry {
    /// Whether its type permits ext4.
    pub(super) fn is_linux(&self) -> bool {
        LINUX.contains(&self.kind)
    }
}

/// Returns the type of an entry as the number that its text is: the first three fields are little endian.
fn type_of(entry: &[u8]) -> u128 {
    let mut bytes: [u8; 16] = *entry.first_chunk().unwrap_or(&[0; 16]);
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    u128::from_be_bytes(bytes)
}

/// Returns the checksum of a header, whose own field counts as zeros.
fn sum(header: &[u8; HEADER]) -> u32 {
    let mut bytes = *header;
    bytes[SUM..SUM + 4].fill(0);
    crc32(&bytes)
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
