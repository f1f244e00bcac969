//! The encoding of manifests: header, index and footer, as `manifest` lays them out.

use super::*;

pub(crate) const HEADER: usize = 512;
pub(crate) const FOOTER: usize = 144;

pub(crate) const MAGIC: [u8; 8] = *b"\x89RWI\r\n\x1a\n";
const END: [u8; 8] = *b"RWI end\n";
const VERSION: u16 = 1;
const NAME_AT: usize = 64;

/// A chunk in the index, without its extents.
pub(crate) const RECORD: usize = 80;
const EXTENT: usize = 16;

/// The bit of an extent's length that marks zeros.
const ZERO: u64 = 1 << 63;

/// What a root hash is of (the context of BLAKE3's key derivation).
const ROOT: &str = "rackweave image 2026 root of header and index, version 1";

pub(super) fn root(header_and_index: &[u8]) -> Hash {
    blake3::derive_key(ROOT, header_and_index)
}

/// Returns the length that no index with this number of chunks exceeds.
const fn index_length_bound(chunks: u32) -> u64 {
    chunks as u64 * (RECORD as u64 + EXTENT as u64 * u16::MAX as u64)
}

/// Reads fields one after the other. Missing bytes read as an error, never beyond the slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], ManifestError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(field)
    }

    fn u16(&mut self) -> Result<u16, ManifestError> {
        self.take().map(|it| u16::from_le_bytes(*it))
    }

    fn u32(&mut self) -> Result<u32, ManifestError> {
        self.take().map(|it| u32::from_le_bytes(*it))
    }

    fn u64(&mut self) -> Result<u64, ManifestError> {
        self.take().map(|it| u64::from_le_bytes(*it))
    }
}

const SHORT: ManifestError = Invalid("index is shorter than the number of its chunks requires");

use ManifestError::Invalid;

/// The header with the place of the index.
pub(super) struct Located {
    pub(super) head: Head,
    pub(super) index_offset: u64,
    pub(super) index_length: u64,
}

fn ensure(condition: bool, what: &'static str) -> Result<(), ManifestError> {
    if condition { Ok(()) } else { Err(Invalid(what)) }
}

fn decode_header(bytes: &[u8; HEADER]) -> Result<Located, ManifestError> {
    let mut reader = Reader(bytes);
    if *reader.take()? != MAGIC {
        return Err(ManifestError::Magic);
    }
    let version = reader.u16()?;
    if version != VERSION {
        return Err(ManifestError::Version(version));
    }
    let format = match reader.u16()? {
        1 => Format::Rackweave,
        2 => Format::Ndz,
        _ => return Err(Invalid("format is unknown")),
    };
    let (chunk_size, size, chunks) = (reader.u32()?, reader.u64()?, reader.u32()?);
    let [level, flags] = *reader.take()?;
    let name_length = usize::from(reader.u16()?);
    let (index_offset, index_length) = (reader.u64()?, reader.u64()?);
    let sector_size = reader.u32()?;
    let is_sector = |size: u32| size.is_power_of_two() && (512..=65536).contains(&size);
    ensure(sector_size == 0 || is_sector(sector_size), "sector size is impossible")?;
    let sector_size = (sector_size > 0).then_some(sector_size);
    ensure(size <= MAX_SIZE, "size is larger than a file can be")?;
    ensure(chunks <= MAX_CHUNKS, "number of chunks is above 2^24")?;
    ensure(level <= 22 && flags <= 1, "parameters are unknown")?;
    let counted = match format {
        Format::Rackweave => {
            let valid =
                chunk_size.is_power_of_two() && (MIN_CHUNK..=MAX_CHUNK).contains(&chunk_size);
            ensure(valid, "chunk size is not a power of two from 64 KiB to 16 MiB")?;
            u64::from(chunks) == size.div_ceil(u64::from(chunk_size)) && level > 0
        }
        Format::Ndz => chunk_size == 1 << 20 && level == 0 && index_offset == 0,
    };
    ensure(counted, "size and number of chunks contradict each other")?;
    ensure(index_length <= index_length_bound(chunks), "index is longer than its chunks can be")?;
    ensure(name_length <= MAX_NAME, "name is too long")?;
    let (name, rest) = bytes[NAME_AT..].split_at(name_length);
    let reserved = bytes[52..NAME_AT].iter().chain(rest);
    ensure(reserved.copied().all(|byte| byte == 0), "reserved bytes are not zero")?;
    let name = std::str::from_utf8(name).map_err(|_| Invalid("name is not UTF-8"))?;
    ensure(!name.chars().any(char::is_control), "name has control characters")?;
    let (name, skipped_free) = (name.to_owned(), flags & 1 != 0);
    let head = Head { format, chunk_size, size, chunks, level, skipped_free, sector_size, name };
    Ok(Located { head, index_offset, index_length })
}

/// Checks one chunk, and returns the offset of the next one in the file.
fn check(
    head: &Head,
    at: u64,
    number: u32,
    chunk: &Chunk,
    extents: &[Extent],
) -> Result<u64, ManifestError> {
    let range = match head.format {
        Format::Rackweave => head.range(number),
        Format::Ndz => 0..head.size,
    };
    let (mut end, mut zero, mut data) = (range.start, None, 0);
    for extent in extents {
        let next = extent.start.checked_add(extent.len).filter(|next| *next <= range.end);
        let next = next.ok_or(Invalid("index has an extent beyond its chunk"))?;
        let ordered = extent.start > end || extent.start == end && zero != Some(extent.zero);
        ensure(extent.len > 0 && ordered, "index has extents out of order")?;
        ensure(extent.start.is_multiple_of(512), "index has an extent within a sector")?;
        (end, zero) = (next, Some(extent.zero));
        data += if extent.zero { 0 } else { extent.len };
    }
    let stored = u64::from(chunk.stored);
    let consistent = match chunk.codec {
        Codec::Empty => stored == 0 && data == 0,
        Codec::Raw => stored == data && data > 0,
        Codec::Zstd => stored > 0 && stored < data,
        Codec::Ndz => stored > 4096 && stored <= 1 << 20 && data > 0,
    };
    let ndz = head.format == Format::Ndz;
    ensure(
        consistent && ndz == (chunk.codec == Codec::Ndz),
        "index has a chunk of impossible length",
    )?;
    ensure(chunk.offset == at, "index has a chunk at a wrong offset")?;
    Ok(if ndz { at + (1 << 20) } else { at + stored })
}

impl Manifest {
    /// The largest manifest that [`Self::decode`] accepts, in bytes. A reader that fetches one from an untrusted source
    /// may choose a lower limit: an image of 8 GB in chunks of 1 MiB typically has a manifest of 1 MB.
    pub const MAX_ENCODED: u64 = 1 << 30;

    /// Returns the encoding, which is also the beginning and the end of an image file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { head, chunks, extents, root, signature } = self;
        let index_length = chunks.len() * RECORD + extents.len() * EXTENT;
        let mut out = Vec::with_capacity(HEADER + index_length + FOOTER);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let format = match head.format {
            Format::Rackweave => 1_u16,
            Format::Ndz => 2,
        };
        out.extend_from_slice(&format.to_le_bytes());
        out.extend_from_slice(&head.chunk_size.to_le_bytes());
        out.extend_from_slice(&head.size.to_le_bytes());
        out.extend_from_slice(&head.chunks.to_le_bytes());
        out.extend_from_slice(&[head.level, u8::from(head.skipped_free)]);
        out.extend_from_slice(&(head.name.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.index_offset().to_le_bytes());
        out.extend_from_slice(&(index_length as u64).to_le_bytes());
        out.extend_from_slice(&head.sector_size.unwrap_or(0).to_le_bytes());
        out.resize(NAME_AT, 0);
        out.extend_from_slice(head.name.as_bytes());
        out.resize(HEADER, 0);
        for chunk in chunks {
            out.extend_from_slice(&chunk.offset.to_le_bytes());
            out.extend_from_slice(&chunk.stored.to_le_bytes());
            out.extend_from_slice(&[chunk.codec as u8, 0]);
            out.extend_from_slice(&chunk.count.to_le_bytes());
            out.extend_from_slice(&chunk.hash);
            out.extend_from_slice(&chunk.content);
            for extent in &extents[chunk.first as usize..][..usize::from(chunk.count)] {
                out.extend_from_slice(&extent.start.to_le_bytes());
                let flag = if extent.zero { ZERO } else { 0 };
                out.extend_from_slice(&(extent.len | flag).to_le_bytes());
            }
        }
        out.extend_from_slice(root);
        out.extend_from_slice(&u64::from(signature.is_some()).to_le_bytes());
        let (key, bytes) =
            signature.as_ref().map_or(([0; 32], [0; 64]), |it| (*it.key.as_bytes(), it.bytes));
        out.extend_from_slice(&key);
        out.extend_from_slice(&bytes);
        out.extend_from_slice(&END);
        out
    }

    /// Returns where the index is in an image file; 0 for `.ndz`, whose file has none.
    pub(crate) fn index_offset(&self) -> u64 {
        match self.head.format {
            Format::Rackweave => {
                HEADER as u64 + self.chunks.iter().map(|it| u64::from(it.stored)).sum::<u64>()
            }
            Format::Ndz => 0,
        }
    }

    /// Decodes a header, and returns the length of the manifest that begins with it.
    fn lengths(header: &[u8; HEADER]) -> Result<(Located, u64), ManifestError> {
        let located = decode_header(header)?;
        let encoded = (HEADER + FOOTER) as u64 + located.index_length;
        ensure(encoded <= Self::MAX_ENCODED, "index is larger than 1 GiB")?;
        Ok((located, encoded))
    }

    /// Returns the length of the manifest that begins with these 512 bytes, so that a reader can bound it before the
    /// rest arrives.
    ///
    /// # Errors
    /// If no manifest begins so.
    pub fn encoded_length(header: &[u8; 512]) -> Result<u64, ManifestError> {
        Ok(Self::lengths(header)?.1)
    }

    /// Returns the range of an image file that holds index and footer, which must end the file.
    pub(crate) fn tail(header: &[u8; HEADER], file: u64) -> Result<Range<u64>, ManifestError> {
        let (located, encoded) = Self::lengths(header)?;
        ensure(located.head.format == Format::Rackweave, "format is not that of an image file")?;
        let end = located.index_offset.checked_add(encoded - HEADER as u64);
        let expected = end.ok_or(Invalid("index is at an impossible offset"))?;
        match expected == file && located.index_offset >= HEADER as u64 {
            true => Ok(located.index_offset..expected),
            false => Err(ManifestError::Length { expected, found: file }),
        }
    }

    /// Decodes a manifest, and checks its root hash and the signature, if it has one. It allocates at most twice the
    /// number of bytes given.
    ///
    /// # Errors
    /// If the bytes are not exactly what [`Self::encode`] returns for some image.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let found = bytes.len() as u64;
        let header = bytes.first_chunk().ok_or(ManifestError::Magic)?;
        let (located, expected) = Self::lengths(header)?;
        if found != expected {
            return Err(ManifestError::Length { expected, found });
        }
        let (hashed, footer) = bytes.split_at(bytes.len() - FOOTER);
        let mut footer = Reader(footer);
        let root_found = *footer.take()?;
        let parsed = Self::decode_index(located, &hashed[HEADER..], root_found);
        // A damaged index is reported as such and not by what the damage looks like.
        if root(hashed) != root_found {
            return Err(ManifestError::Root);
        }
        let mut manifest = parsed?;
        let signed = footer.u64()?;
        let (key, bytes) = (footer.take()?, *footer.take::<64>()?);
        ensure(*footer.take()? == END, "last bytes are wrong")?;
        match signed {
            0 => ensure(*key == [0; 32] && bytes == [0; 64], "signature is not marked as one")?,
            1 => {
                let key = PublicKey::from_bytes(key).map_err(|_| ManifestError::Signature)?;
                if !key.verify(&manifest.root, &bytes) {
                    return Err(ManifestError::Signature);
                }
                manifest.signature = Some(Signature { key, bytes });
            }
            _ => return Err(Invalid("signature is of an unknown kind")),
        }
        Ok(manifest)
    }

    fn decode_index(located: Located, bytes: &[u8], root: Hash) -> Result<Self, ManifestError> {
        let Located { head, index_offset, .. } = located;
        let mut reader = Reader(bytes);
        // Both are bounded by the bytes that are there.
        let fixed = head.chunks as usize * RECORD;
        let extents = bytes.len().checked_sub(fixed).ok_or(SHORT)? / EXTENT;
        let mut index = Index::default();
        let room = index.chunks.try_reserve_exact(head.chunks as usize);
        let room = room.and_then(|()| index.extents.try_reserve_exact(extents));
        room.map_err(|_| Invalid("index needs more memory than there is"))?;
        let mut at = if head.format == Format::Ndz { 0 } else { HEADER as u64 };
        for number in 0..head.chunks {
            let (offset, stored) = (reader.u64()?, reader.u32()?);
            let [codec, reserved] = *reader.take()?;
            ensure(reserved == 0, "index has reserved bytes that are not zero")?;
            let codec = match codec {
                0 => Codec::Empty,
                1 => Codec::Raw,
                2 => Codec::Zstd,
                3 => Codec::Ndz,
                _ => return Err(Invalid("index has an unknown compression")),
            };
            let (count, first) = (reader.u16()?, index.extents.len());
            let (hash, content) = (*reader.take()?, *reader.take()?);
            for _ in 0..count {
                let (start, len) = (reader.u64()?, reader.u64()?);
                index.extents.push(Extent { start, len: len & !ZERO, zero: len & ZERO != 0 });
            }
            let first_extent = u32::try_from(first).map_err(|_| SHORT)?;
            let chunk = Chunk { offset, stored, codec, hash, content, first: first_extent, count };
            at = check(&head, at, number, &chunk, &index.extents[first..])?;
            index.chunks.push(chunk);
        }
        ensure(reader.0.is_empty(), "index is longer than its chunks")?;
        let Index { chunks, extents } = index;
        if head.format == Format::Ndz {
            check_disjoint(&extents)?;
        } else {
            ensure(at == index_offset, "index is not where the chunks end")?;
        }
        Ok(Self { head, chunks, extents, root, signature: None })
    }
}

/// Checks that no two chunks hold the same byte, so that their order does not matter.
fn check_disjoint(extents: &[Extent]) -> Result<(), ManifestError> {
    let mut ranges: Vec<_> = extents.iter().map(|it| (it.start, it.end())).collect();
    ranges.sort_unstable();
    let disjoint = ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    ensure(disjoint, "index has chunks that overlap")
}
