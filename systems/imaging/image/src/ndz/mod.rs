//! Frisbee's image format, `.ndz`, in its versions 1 to 4 (Hibler et al., "Fast, Scalable Disk Imaging with Frisbee",
//! USENIX 2003, section 3; layout: `docs/protocols/swp2p.md#frisbee-images`).
//!
//! A file is a sequence of chunks of 1 MiB. Each begins with 4096 bytes for a header, the regions of the disk that it
//! holds, and relocations; then follow up to 1,044,480 bytes of one zlib stream, and padding.
//!
//! Byte order is little endian. Encrypted images are refused. A chunk's SHA-1 is checked if it has one that is not
//! signed; RSA signatures are reported and not checked.

pub(crate) mod encode;
mod relocate;

use flate2::{Decompress, FlushDecompress, Status};
use sha1::{Digest as _, Sha1};

use crate::manifest::Extent;
use crate::{ChunkError, PIECE};

/// The length of a chunk in a file, with padding.
pub const CHUNK: usize = 1 << 20;

/// The length of the area for header, regions and relocations.
pub const HEADER_AREA: usize = 4096;

/// The length of a sector, in which regions are counted.
pub const SECTOR: u64 = 512;

/// The magic number of version 1; later versions add 1 each.
const MAGIC: u32 = 0x6969_6969;

/// The first bytes of the SHA-1 field, which are zero while the checksum is computed.
const CHECKSUM_AT: usize = 72;
const CHECKSUM_ZEROED: usize = 64;

/// Relocations rewrite data in place, so such a chunk must be in memory as a whole. The limit is Rackweave's; imagezip
/// makes them for a few sectors with boot data only.
const MAX_RELOCATED: u64 = 64 << 20;

/// Receives data with their offsets.
type Sink<'a> = dyn FnMut(u64, &[u8]) -> Result<(), ChunkError> + 'a;

/// The checksum of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// There is none.
    None,
    /// SHA-1 over header area and compressed data.
    Sha1([u8; 20]),
    /// SHA-1, signed by RSA with a key that is not in the file.
    Signed,
}

/// What a relocation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relocation {
    kind: u32,
    sector: u32,
    offset: u32,
    size: u32,
}

/// The header of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The version of the format, 1 to 4.
    pub version: u8,
    /// The number of the chunk in the image.
    pub index: u32,
    /// The length of the compressed data.
    pub size: u32,
    /// The first sector that the chunk describes, and the one after the last, including free space (version 2).
    pub sectors: Option<(u32, u32)>,
    /// The checksum (version 4).
    pub checksum: Checksum,
    /// An identifier that all chunks of an image share (version 4, otherwise zeros).
    pub image_id: [u8; 16],
    regions: Vec<(u32, u32)>,
    relocations: Vec<Relocation>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_le_bytes(*it))
}

fn ensure(condition: bool, what: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what.to_owned()) }
}

impl ChunkHeader {
    /// Returns whether bytes begin as a chunk does.
    #[must_use]
    pub fn is_magic(bytes: &[u8]) -> bool {
        bytes.len() >= 4 && u32_at(bytes, 0).wrapping_sub(MAGIC) < 4
    }

    /// Decodes the header of a chunk, which may be without its padding.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        ensure(Self::is_magic(bytes), "it has not the magic number of an .ndz chunk")?;
        let area = bytes.first_chunk::<HEADER_AREA>().ok_or("it is shorter than its header")?;
        let version = (u32_at(area, 0) - MAGIC + 1) as u8;
        let [size, index, region_size] = [4, 8, 16].map(|at| u32_at(area, at));
        ensure(region_size as usize == HEADER_AREA, "its header area does not have 4096 bytes")?;
        ensure(
            size > 0 && size as usize <= CHUNK - HEADER_AREA,
            "it has no data, or more than fit",
        )?;
        ensure(bytes.len() >= HEADER_AREA + size as usize, "it is shorter than its data")?;
        let (length, relocation_count) = match version {
            1 => (24, 0),
            4 => (344, u32_at(area, 32)),
            _ => (36, u32_at(area, 32)),
        };
        let regions = u32_at(area, 20) as usize;
        let relocations = relocation_count as usize;
        let room = HEADER_AREA - length;
        let fits = regions <= room / 8 && relocations <= (room - regions * 8) / 16;
        ensure(regions > 0 && fits, "it has no regions, or more than fit into its header")?;
        let (mut checksum, mut image_id) = (Checksum::None, [0; 16]);
        if version == 4 {
            let words = u32_at(area, 36);
            ensure(words & 0xffff == 0, "it is encrypted, and this program has no key for it")?;
            checksum = match words >> 16 {
                0 => Checksum::None,
                kind if kind & 0xff != 1 => return Err("its checksum is of an unknown kind".into()),
                kind if kind & 0x8000 != 0 => Checksum::Signed,
                _ => Checksum::Sha1(*area[CHECKSUM_AT..].first_chunk().ok_or("too short")?),
            };
            image_id.copy_from_slice(&area[328..344]);
        }
        let relocations_at = length + regions * 8;
        let header = Self {
            version,
            index,
            size,
            sectors: (version > 1).then(|| (u32_at(area, 24), u32_at(area, 28))),
            checksum,
            image_id,
            regions: (0..regions)
                .map(|it| (u32_at(area, length + it * 8), u32_at(area, length + it * 8 + 4)))
                .collect(),
            relocations: (0..relocations)
                .map(|it| relocations_at + it * 16)
                .map(|at| Relocation {
                    kind: u32_at(area, at),
                    sector: u32_at(area, at + 4),
                    offset: u32_at(area, at + 8),
                    size: u32_at(area, at + 12),
                })
                .collect(),
        };
        let mut end = None;
        for (start, size) in &header.regions {
            let next = start.checked_add(*size).filter(|_| *size > 0);
            let next = next.ok_or("it has an empty region, or one beyond sector 2^32")?;
            ensure(end.is_none_or(|end| *start > end), "its regions are not in ascending order")?;
            end = Some(next);
        }
        relocate::check(&header)?;
        Ok(header)
    }

    /// Returns the extents of the image that the chunk holds.
    ///
    /// # Errors
    /// If a relocation that shortens a sector is not for the last sector of a region.
    pub fn extents(&self) -> Result<Vec<Extent>, String> {
        let extent = |(start, size): &(u32, u32)| Extent {
            start: u64::from(*start) * SECTOR,
            len: u64::from(*size) * SECTOR,
            zero: false,
        };
        let mut extents: Vec<_> = self.regions.iter().map(extent).collect();
        for (sector, size) in self.short_sectors() {
            let end = (u64::from(sector) + 1) * SECTOR;
            let extent = extents.iter_mut().find(|it| it.end() == end);
            let extent =
                extent.ok_or("a sector that is not the last of its region is shortened")?;
            extent.len -= SECTOR - u64::from(size);
        }
        Ok(extents)
    }

    /// Returns the end of the disk as far as the chunk describes it, in bytes.
    ///
    /// # Errors
    /// Like [`Self::extents`].
    pub fn end(&self) -> Result<u64, String> {
        let extents = self.extents()?;
        let data = extents.last().map_or(0, Extent::end);
        let short = !data.is_multiple_of(SECTOR);
        let described = self.sectors.map_or(0, |(_, last)| u64::from(last) * SECTOR);
        // A shortened sector is the last of the image.
        Ok(if short { data } else { data.max(described) })
    }

    /// Checks the SHA-1 of a chunk, if it has one that is not signed.
    ///
    /// # Errors
    /// If it does not match.
    pub fn verify_checksum(&self, stored: &[u8]) -> Result<(), String> {
        let Checksum::Sha1(expected) = self.checksum else { return Ok(()) };
        let stored = stored.get(..self.stored()).ok_or("it is shorter than its data")?;
        let mut hasher = Sha1::new();
        hasher.update(&stored[..CHECKSUM_AT]);
        hasher.update([0; CHECKSUM_ZEROED]);
        hasher.update(&stored[CHECKSUM_AT + CHECKSUM_ZEROED..]);
        ensure(hasher.finalize().as_slice() == expected, "its SHA-1 checksum does not match")
    }

    /// Returns the length of the chunk without padding.
    #[must_use]
    pub const fn stored(&self) -> usize {
        HEADER_AREA + self.size as usize
    }

    /// Decompresses the chunk, applies its relocations for a partition that starts at this sector of its disk, and
    /// passes the data with their offsets.
    pub(crate) fn expand(
        &self,
        stored: &[u8],
        partition_start: u64,
        room: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<(), ChunkError> {
        let compressed = stored.get(HEADER_AREA..self.stored());
        let compressed = compressed.ok_or(ChunkError::Compressed("it is shorter than its data"))?;
        let data: u64 = self.regions.iter().map(|(_, size)| u64::from(*size) * SECTOR).sum();
        let extents = self.extents().map_err(ChunkError::Ndz)?;
        let mut places = Places { extents: &extents, regions: &self.regions, at: 0 };
        if !self.is_relocated() {
            return inflate(compressed, data, room, &mut |bytes| places.write(bytes, sink));
        }
        if data > MAX_RELOCATED {
            return Err(ChunkError::Ndz("it has relocations and more than 64 MiB of data".into()));
        }
        let mut all = Vec::with_capacity(data as usize);
        inflate(compressed, data, room, &mut |bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        relocate::apply(self, partition_start, &mut all).map_err(ChunkError::Ndz)?;
        places.write(&all, sink)
    }

    /// Returns whether the chunk has relocations.
    pub(crate) const fn is_relocated(&self) -> bool {
        !self.relocations.is_empty()
    }

    pub(crate) fn regions(&self) -> &[(u32, u32)] {
        &self.regions
    }

    /// Returns the sectors that are shorter than 512 bytes, with their lengths.
    fn short_sectors(&self) -> impl Iterator<Item = (u32, u32)> {
        let short = self.relocations.iter().filter(|it| it.kind == relocate::SHORT_SECTOR);
        short.map(|it| (it.sector, it.size))
    }
}

/// Where the data of a chunk go: extents in sequence, which may lack the end of the last sector of their region.
struct Places<'a> {
    extents: &'a [Extent],
    regions: &'a [(u32, u32)],
    /// How many bytes of the first region have been passed.
    at: u64,
}

impl Places<'_> {
    fn write(&mut self, mut bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), ChunkError> {
        while let ([extent, extents @ ..], [(_, sectors), regions @ ..]) =
            (self.extents, self.regions)
            && !bytes.is_empty()
        {
            let region = u64::from(*sectors) * SECTOR;
            let now = (region - self.at).min(bytes.len() as u64);
            let written = extent.len.saturating_sub(self.at).min(now);
            let (data, rest) = bytes.split_at(now as usize);
            if written > 0 {
                sink(extent.start + self.at, &data[..written as usize])?;
            }
            bytes = rest;
            self.at += now;
            if self.at == region {
                (self.extents, self.regions, self.at) = (extents, regions, 0);
            }
        }
        Ok(())
    }
}

/// Inflates exactly this number of bytes in pieces.
fn inflate(
    mut compressed: &[u8],
    len: u64,
    room: &mut Vec<u8>,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), ChunkError>,
) -> Result<(), ChunkError> {
    let wrong = || ChunkError::Compressed("its bytes are not zlib");
    let mut zlib = Decompress::new(true);
    room.resize(PIECE, 0);
    loop {
        let (before_in, before_out) = (zlib.total_in(), zlib.total_out());
        let status =
            zlib.decompress(compressed, room, FlushDecompress::None).map_err(|_| wrong())?;
        let used = (zlib.total_in() - before_in) as usize;
        let made = (zlib.total_out() - before_out) as usize;
        if zlib.total_out() > len {
            return Err(ChunkError::Compressed("it has more data than its regions"));
        }
        compressed = &compressed[used..];
        sink(&room[..made])?;
        match status {
            Status::StreamEnd if compressed.is_empty() && zlib.total_out() == len => return Ok(()),
            Status::StreamEnd => {
                return Err(ChunkError::Compressed("its data and its regions differ in length"));
            }
            _ if used == 0 && made == 0 => return Err(wrong()),
            _ => {}
        }
    }
}
