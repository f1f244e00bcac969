//! Writing chunks of `.ndz`, version 4 with a SHA-1 for each: `imageunzip` and Frisbee's client of 2015 read them.

use std::io;

use flate2::{Compress, Compression, FlushCompress, Status};
use sha1::{Digest as _, Sha1};

use super::relocate::SHORT_SECTOR;
use super::{CHECKSUM_AT, CHUNK, HEADER_AREA, MAGIC, SECTOR};

/// The length of a header of version 4.
const HEADER: usize = 344;
/// The regions of a chunk, at most: there is room for a relocation behind them.
const MOST_REGIONS: usize = (HEADER_AREA - HEADER - 16) / 8;
/// Where the identifier of the image is in a header.
const IMAGE_ID_AT: usize = 328;
/// What the end of a zlib stream may need.
const TAIL: usize = 64;

/// Makes chunks of data in ascending order, and passes each with its padding. A chunk takes as much data as fit when they are compressed.
pub(crate) struct Encoder<'a> {
    zlib: Compress,
    /// Header area and compressed data of the chunk.
    chunk: Vec<u8>,
    /// The regions of the chunk: first sector and length.
    regions: Vec<(u32, u32)>,
    /// The first sector that the chunk describes.
    first: u32,
    /// Uncompressed bytes whose compressed length is not known yet.
    unknown: usize,
    chunks: u32,
    sink: &'a mut dyn FnMut(&[u8]) -> io::Result<()>,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(level: u32, sink: &'a mut dyn FnMut(&[u8]) -> io::Result<()>) -> Self {
        let mut chunk = Vec::with_capacity(CHUNK);
        chunk.resize(HEADER_AREA, 0);
        let zlib = Compress::new(Compression::new(level.min(9)), true);
        Self { zlib, chunk, regions: Vec::new(), first: 0, unknown: 0, chunks: 0, sink }
    }

    /// Returns the number of chunks that were passed.
    pub(crate) const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Adds data at an offset, whose end is that of a sector.
    ///
    /// # Errors
    /// Those of the sink.
    pub(crate) fn write(&mut self, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sector = sector(offset)?;
            let follows = self.regions.last().is_some_and(|(start, len)| start + len == sector);
            let mut take = self.room().min(bytes.len());
            if !follows && self.regions.len() == MOST_REGIONS {
                take = 0;
            }
            let (now, later) = bytes.split_at(take);
            if now.is_empty() {
                self.end_chunk()?;
                continue;
            }
            self.compress(now, FlushCompress::None)?;
            self.unknown += now.len();
            let sectors = (now.len() as u64 / SECTOR) as u32;
            match self.regions.last_mut().filter(|_| follows) {
                Some((_, len)) => *len += sectors,
                None => self.regions.push((sector, sectors)),
            }
            (offset, bytes) = (offset + now.len() as u64, later);
        }
        Ok(())
    }

    /// How many bytes fit, whatever they are: whole sectors. What their compressed form takes at most is rounded up generously.
    fn room(&mut self) -> usize {
        let fits = |this: &Self| {
            let left = CHUNK - TAIL - this.chunk.len();
            let most = (left * 7 / 8).saturating_sub(256 + this.unknown);
            most - most % SECTOR as usize
        };
        if fits(self) == 0 && self.unknown > 0 && self.compress(&[], FlushCompress::Sync).is_ok() {
            self.unknown = 0;
        }
        fits(self)
    }

    fn compress(&mut self, bytes: &[u8], flush: FlushCompress) -> io::Result<()> {
        let before = self.zlib.total_in();
        let status =
            self.zlib.compress_vec(bytes, &mut self.chunk, flush).map_err(io::Error::other)?;
        let is_all = self.zlib.total_in() - before == bytes.len() as u64
            && (flush != FlushCompress::Finish || status == Status::StreamEnd)
            && self.chunk.len() < CHUNK;
        if is_all { Ok(()) } else { Err(io::Error::other("zlib needs more room than it may")) }
    }

    /// Ends the chunk, if it has data: it describes the disk up to its last region.
    fn end_chunk(&mut self) -> io::Result<()> {
        let end = self.regions.last().map(|(start, len)| start + len);
        end.map_or(Ok(()), |end| self.pass(end, None))
    }

    fn pass(&mut self, end: u32, short: Option<u32>) -> io::Result<()> {
        self.compress(&[], FlushCompress::Finish)?;
        let size = (self.chunk.len() - HEADER_AREA) as u32;
        let words = [
            MAGIC + 3,
            size,
            self.chunks,
            0,
            HEADER_AREA as u32,
            self.regions.len() as u32,
            self.first,
            end,
            u32::from(short.is_some()),
            // No cipher, and SHA-1.
            1 << 16,
        ];
        let regions = self.regions.iter().flat_map(|(start, len)| [*start, *len]);
        let relocation = short.map(|bytes| [SHORT_SECTOR, end - 1, 0, bytes]);
        let header = words.into_iter().flat_map(u32::to_le_bytes);
        self.chunk[..words.len() * 4].copy_from_slice(&header.collect::<Vec<_>>());
        let rest = regions.chain(relocation.into_iter().flatten()).flat_map(u32::to_le_bytes);
        self.chunk[HEADER..].iter_mut().zip(rest).for_each(|(to, from)| *to = from);
        self.chunk.resize(CHUNK, 0);
        (self.sink)(&self.chunk)?;
        self.chunk.clear();
        self.chunk.resize(HEADER_AREA, 0);
        self.regions.clear();
        self.zlib.reset();
        (self.unknown, self.first, self.chunks) = (0, end, self.chunks + 1);
        Ok(())
    }

    /// Ends an image of this many bytes, whose data have been passed in whole sectors: what is behind its end is padding.
    ///
    /// # Errors
    /// Those of the sink.
    pub(crate) fn finish(&mut self, size: u64) -> io::Result<()> {
        let end = sector(size.next_multiple_of(SECTOR))?;
        let short = (size % SECTOR) as u32;
        let data_end = self.regions.last().map_or(self.first, |(start, len)| start + len);
        // A chunk has data, and a sector that is shorter is the last of a region.
        let needs_last = short > 0 && data_end < end || self.regions.is_empty() && self.chunks == 0;
        let behind = self.regions.is_empty() && data_end < end;
        if end > 0 && (needs_last || behind) {
            self.write(u64::from(end - 1) * SECTOR, &[0; SECTOR as usize])?;
        }
        if self.regions.is_empty() {
            return Ok(());
        }
        self.pass(end, (short > 0).then_some(short))
    }
}

/// Returns the sector that begins at an offset.
fn sector(offset: u64) -> io::Result<u32> {
    let sector = u32::try_from(offset / SECTOR);
    sector.map_err(|_| io::Error::other("Frisbee's format has no sector beyond 2 TiB"))
}

/// Completes a chunk whose image is known as a whole: its identifier, and the SHA-1.
pub(crate) fn seal(chunk: &mut [u8], image_id: [u8; 16]) {
    let size = super::u32_at(chunk, 4) as usize;
    chunk[IMAGE_ID_AT..IMAGE_ID_AT + 16].copy_from_slice(&image_id);
    let sum = Sha1::digest(&chunk[..HEADER_AREA + size]);
    chunk[CHECKSUM_AT..CHECKSUM_AT + sum.len()].copy_from_slice(&sum);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ChunkHeader;
    use super::*;

    /// Encodes pieces, each with its first sector, and checks what chunks say. Returns the disk that they make, and their number.
    fn round_trip(size: u64, pieces: &[(u32, Vec<u8>)]) -> (Vec<u8>, usize) {
        let mut chunks: Vec<Vec<u8>> = Vec::new();
        let mut sink = |chunk: &[u8]| {
            chunks.push(chunk.to_vec());
            Ok(())
        };
        let mut encoder = Encoder::new(4, &mut sink);
        for (start, bytes) in pieces {
            encoder.write(u64::from(*start) * SECTOR, bytes).unwrap();
        }
        encoder.finish(size).unwrap();
        let (mut disk, mut described) = (Vec::new(), 0);
        for (number, chunk) in (0..).zip(&mut chunks) {
            seal(chunk, [9; 16]);
            assert_eq!(chunk.len(), CHUNK);
            let header = ChunkHeader::decode(chunk).unwrap();
            assert_eq!((header.version, header.index, header.image_id), (4, number, [9; 16]));
            header.verify_checksum(chunk).unwrap();
            let (first, last) = header.sectors.unwrap();
            assert_eq!(first, described, "no sector is described twice or never");
            let regions = header.regions();
            assert!(first <= regions[0].0 && regions.last().is_some_and(|it| it.0 + it.1 <= last));
            described = last;
            let mut write = |at: u64, bytes: &[u8]| {
                disk.resize(disk.len().max(at as usize + bytes.len()), 0);
                disk[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
                Ok(())
            };
            header.expand(chunk, 0, &mut Vec::new(), &mut write).unwrap();
        }
        assert_eq!(u64::from(described), size.div_ceil(SECTOR));
        (disk, chunks.len())
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn a_chunk_is_full_of_data_or_of_regions() {
        // Only the last chunk of incompressible data has room: 1018 KiB of each are used.
        let bytes = noise(1, 10 << 20);
        let (disk, chunks) = round_trip(10 << 20, &[(0, bytes.clone())]);
        assert!(disk == bytes && chunks == 11, "{chunks}");
        let (disk, chunks) = round_trip(1 << 30, &[(0, vec![7; 30 << 20])]);
        assert!(disk == vec![7; 30 << 20] && chunks <= 2, "{chunks}");
        let pieces: Vec<_> = (0..1000).map(|at| (at * 9, noise(at.into(), 512))).collect();
        let (disk, chunks) = round_trip(9000 * 512, &pieces);
        assert!(pieces.iter().all(|(at, bytes)| disk[*at as usize * 512..][..512] == bytes[..]));
        assert_eq!(chunks, 1000_usize.div_ceil(MOST_REGIONS));
    }

    #[test]
    fn the_end_of_a_disk_is_described_whatever_is_there() {
        // Nothing at all; nothing at the end; half a sector, with and without data.
        assert_eq!(round_trip(5000, &[]), (vec![0; 5000], 1));
        assert_eq!(round_trip(512 * 9, &[(0, vec![1; 512])]), (vec![1; 512], 1));
        let padded = [vec![1; 100], vec![0; 412]].concat();
        let end = [vec![0; 4096], vec![1; 100]].concat();
        assert_eq!(round_trip(4196, &[(8, padded)]), (end, 1));
        let zeros = [vec![1; 512], vec![0; 4096 - 512 + 100]].concat();
        assert_eq!(round_trip(4196, &[(0, vec![1; 512])]), (zeros, 1));
        // The last chunk is full with what is not at the end.
        let most = noise(3, 913_408);
        let (disk, _) = round_trip(1 << 30, &[(0, most.clone())]);
        assert!(disk[..most.len()] == most);
    }

    proptest! {
        #![proptest_config(rackweave_testing::cases(24))]
        #[test]
        fn any_pieces_come_back(
            pieces in prop::collection::vec((0..300_u32, 1..700_usize, any::<u64>(), any::<bool>()), 0..40),
            rest in 0..100_000_u64,
        ) {
            let (mut at, mut all, mut expected) = (0, Vec::new(), Vec::new());
            for (gap, sectors, seed, is_noise) in pieces {
                at += gap;
                let bytes = if is_noise { noise(seed, sectors * 512) } else { vec![seed as u8; sectors * 512] };
                expected.resize(at as usize * 512, 0);
                expected.extend_from_slice(&bytes);
                all.push((at, bytes));
                at += sectors as u32;
            }
            let size = u64::from(at) * 512 + rest;
            if size > 0 {
                let (mut disk, _) = round_trip(size, &all);
                let longest = disk.len().max(expected.len());
                disk.resize(longest, 0);
                expected.resize(longest, 0);
                prop_assert!(disk == expected);
                prop_assert!(disk.len() as u64 <= size);
            }
        }
    }
}
