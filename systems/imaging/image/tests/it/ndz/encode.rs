//! Writes `.ndz` files as imagezip does.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use rackweave_image::ndz::{CHUNK, HEADER_AREA};
use sha1::{Digest as _, Sha1};

/// A chunk before it is encoded.
#[derive(Clone)]
pub(crate) struct Chunk {
    pub(crate) version: u32,
    pub(crate) index: u32,
    /// The first sector of each region, and its bytes.
    pub(crate) regions: Vec<(u32, Vec<u8>)>,
    pub(crate) sectors: (u32, u32),
    /// Kind, sector, offset, size.
    pub(crate) relocations: Vec<[u32; 4]>,
    pub(crate) cipher: u16,
    /// None, SHA-1, or another kind.
    pub(crate) checksum: u16,
    pub(crate) image_id: [u8; 16],
}

impl Chunk {
    pub(crate) fn new(version: u32, index: u32, regions: Vec<(u32, Vec<u8>)>) -> Self {
        let end = regions.last().map_or(0, |(start, bytes)| start + (bytes.len() / 512) as u32);
        Self {
            version,
            index,
            sectors: (regions[0].0, end),
            regions,
            relocations: Vec::new(),
            cipher: 0,
            checksum: u16::from(version == 4),
            image_id: if version == 4 { [7; 16] } else { [0; 16] },
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        self.regions.iter().for_each(|(_, bytes)| zlib.write_all(bytes).unwrap());
        let data = zlib.finish().unwrap();
        let mut out = Vec::new();
        let total = if self.version == 1 { 2 } else { 0 };
        let header = [
            0x6969_6969 + self.version - 1,
            data.len() as u32,
            self.index,
            total,
            HEADER_AREA as u32,
            self.regions.len() as u32,
        ];
        header.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        if self.version > 1 {
            let more = [self.sectors.0, self.sectors.1, self.relocations.len() as u32];
            more.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        }
        if self.version == 4 {
            out.extend_from_slice(&self.cipher.to_le_bytes());
            out.extend_from_slice(&self.checksum.to_le_bytes());
            out.resize(328, 0);
            out.extend_from_slice(&self.image_id);
        }
        for (start, bytes) in &self.regions {
            out.extend_from_slice(&start.to_le_bytes());
            out.extend_from_slice(&((bytes.len() / 512) as u32).to_le_bytes());
        }
        for word in self.relocations.iter().flatten() {
            out.extend_from_slice(&word.to_le_bytes());
        }
        assert!(out.len() <= HEADER_AREA);
        out.resize(HEADER_AREA, 0);
        out.extend_from_slice(&data);
        if self.version == 4 && self.checksum & 0xff == 1 {
            let sum = Sha1::digest(&out);
            out[72..92].copy_from_slice(&sum);
        }
        assert!(out.len() <= CHUNK);
        out.resize(CHUNK, 0);
        out
    }
}

/// Encodes a file.
pub(crate) fn file(chunks: &[Chunk]) -> Vec<u8> {
    chunks.iter().flat_map(Chunk::encode).collect()
}
