//! An incremental decoder of records.

use blake3::Hasher;

use self::header::number;
pub(super) use self::header::{file_header, record_len};
use super::tree::{ChunkHash, TreeHash, chunk_hash};
use super::{
    CHUNK, CHUNK_FRONT, DIGEST_BYTES, END_BYTES, Extents, FILE_END_BYTES, FileHeader, HASH, Hash,
    MAGIC, PathError, START_BYTES, StreamDigest, VERSION, tag,
};

mod header;

/// The largest number of files in a stream.
const MAX_FILES: u64 = 1 << 32;

/// Why bytes are not a valid stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The start record is missing.
    #[error("not a stream of files: the sender is another program or an incompatible version")]
    NoStream,
    /// The stream has another version of the format.
    #[error(
        "the stream has format version {0}, but this program supports only {VERSION}: update it"
    )]
    Version(u16),
    /// The type of a record is not allowed at its position.
    #[error("record {found} is not allowed after {bytes} bytes of the stream")]
    OutOfPlace {
        /// The tag of the record.
        found: u8,
        /// The offset of the record in the stream.
        bytes: u64,
    },
    /// The length of a record is impossible.
    #[error("a record has an impossible length after {bytes} bytes of the stream")]
    Length {
        /// The offset of the record in the stream.
        bytes: u64,
    },
    /// The path of a file is not accepted.
    #[error("the sender names {0}, which is not accepted")]
    Path(#[from] PathError),
    /// A symbolic link has no text, or a zero byte in it.
    #[error("the sender names a symbolic link without a target")]
    Target,
    /// A hard link is not one to a file that precedes it.
    #[error("the sender names a hard link to something else than a file before it")]
    Link,
    /// The content of a chunk does not match its hash.
    #[error(
        "a chunk's hash is wrong: the bytes after {bytes} of the stream are not those that were sent"
    )]
    ChunkHash {
        /// The offset of the chunk in the stream.
        bytes: u64,
    },
    /// The content of a file does not match its hash.
    #[error("a file's hash is wrong: it is not the file that was sent")]
    FileHash,
    /// The file that the consumer has ([`Visitor::known`]) is not the one that is sent.
    #[error("a file of the same length that is here already is not the file that was sent")]
    KnownDiffers,
    /// The files before the position at which the stream was resumed are not the ones that are sent, or the sender does
    /// not say which it sends.
    #[error("a file that an earlier attempt has received is not the file that is sent now")]
    EarlierDiffers,
    /// The digest of the files is wrong although all of them arrived in this attempt.
    #[error("the digest of the files is wrong")]
    Digest,
    /// Bytes follow the end record.
    #[error("bytes follow the end of the stream")]
    AfterEnd,
}

/// The content of a hole.
static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// The number of bytes of a chunk that are hashed and passed on at a time, so that they stay in the processor's cache
/// in between.
const PIECE: usize = 128 << 10;

/// The consumer of a decoded stream. `at` is the offset in the stream after the record.
pub trait Visitor {
    /// The error with which the consumer stops the stream.
    type Error: From<DecodeError>;

    /// Called when a file begins.
    ///
    /// # Errors
    /// If the consumer stops the stream.
    fn file(&mut self, header: &FileHeader, at: u64) -> Result<(), Self::Error>;

    /// Called after [`Self::file`] for a file of known length. If the consumer has a file of this length that may be the
    /// same, it returns its BLAKE3 hash: the decoder then needs no chunks of it, and only compares the hash with that at
    /// the end of the file.
    fn known(&mut self) -> Option<Hash> {
        None
    }

    /// Called after [`Self::known`] has returned nothing. The decoder needs no chunks that the consumer has; the hash of the
    /// whole file is compared in the end.
    ///
    /// # Errors
    /// If the consumer stops the stream.
    fn kept(&mut self) -> Result<Kept, Self::Error> {
        Ok(Kept::default())
    }

    /// Called with the next bytes of the file. They are not verified until the next call of [`Self::chunk`].
    ///
    /// # Errors
    /// If the consumer stops the stream.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Called for a chunk that is a hole, in place of [`Self::bytes`] and [`Self::chunk`]: that many zeros, whose hash this is.
    ///
    /// # Errors
    /// If the consumer stops the stream.
    fn hole(&mut self, len: usize, hash: &Hash) -> Result<(), Self::Error>;

    /// Called when the bytes since the last call form a chunk whose hash is correct.
    ///
    /// # Errors
    /// If the consumer stops the stream.
    fn chunk(&mut self, hash: &Hash, at: u64) -> Result<(), Self::Error>;

    /// Called when a file is complete and its hash is correct.
    ///
    /// # Errors
    /// If the consumer stops the stream.
    fn file_end(&mut self, length: u64, hash: &Hash, at: u64) -> Result<(), Self::Error>;

    /// Called when the stream is complete.
    ///
    /// # Errors
    /// If the consumer stops the stream.
    fn end(&mut self, files: u64, bytes: u64) -> Result<(), Self::Error>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// The decoder is between files: a file record, the digest or the end record follows.
    Between,
    /// The digest was right: the end record follows.
    Closing,
    /// The decoder is in a file: a chunk or a file end record follows.
    Inside,
    Ended,
}

/// The first chunks of a file that a consumer has, each of [`CHUNK`] bytes.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Their hashes.
    pub hashes: Vec<Hash>,
    /// The BLAKE3 hash of the first chunk as a whole file, if there is only one chunk.
    pub single: Option<Hash>,
}

/// The position at which a decoder resumes: after `hashes.len()` whole chunks of a file of known length, or between
/// files.
#[derive(Clone, Debug)]
pub struct Resume {
    /// The number of complete files and directories before this position.
    pub files: u64,
    /// The total content bytes of those files.
    pub bytes: u64,
    /// The current file, and the hashes of its chunks before this position, each of [`CHUNK`] bytes.
    pub file: Option<(FileHeader, Vec<Hash>)>,
    /// The BLAKE3 hash of the first chunk as a whole file, if there is only one chunk.
    pub single: Option<Hash>,
    /// The offset of this position in the stream.
    pub at: u64,
    /// The digest of the files and directories before this position, without the current one.
    pub digest: StreamDigest,
}

/// Decodes a stream from pieces of any size. It buffers at most one record without the content of chunks. After an
/// error it must not be used any more.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// The bytes of the current record, without the content of a chunk.
    buffer: Vec<u8>,
    /// The chunk that is being decoded.
    chunk: Option<Chunk>,
    /// The offset in the stream of the first byte of the current record.
    at: u64,
    files: u64,
    bytes: u64,
    file: FileState,
    digest: StreamDigest,
    /// Whether files precede the position at which the decoder resumed.
    resumed: bool,
    /// The number of the next bytes that are not needed.
    skip: u64,
}

/// A chunk whose length has been decoded.
#[derive(Debug)]
struct Chunk {
    hash: ChunkHash,
    len: usize,
    have: usize,
}

#[derive(Debug, Default)]
struct FileState {
    known: Option<u64>,
    /// The chunks that are sent, if there are others.
    extents: Option<Extents>,
    bytes: u64,
    tree: TreeHash,
    /// The hash of the content, for files of unknown length.
    whole: Hasher,
    /// The hash of the file that the consumer has already.
    given: Option<Hash>,
    /// Whether the last chunk was not full. In a file of known length, no other may follow.
    short: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            state: State::Start,
            buffer: Vec::new(),
            chunk: None,
            at: 0,
            files: 0,
            bytes: 0,
            file: FileState::default(),
            digest: StreamDigest::default(),
            resumed: false,
            skip: 0,
        }
    }
}

impl Decoder {
    /// Creates a decoder that resumes in the middle of a stream.
    #[must_use]
    pub fn resume(from: Resume) -> Self {
        let mut this =
            Self { files: from.files, bytes: from.bytes, at: from.at, ..Self::default() };
        (this.digest, this.resumed) = (from.digest, from.files > 0);
        this.state = if from.at == 0 { State::Start } else { State::Between };
        if let Some((header, hashes)) = from.file {
            this.state = State::Inside;
            this.digest.file(&header);
            this.file.known = header.length;
            this.file.extents = header.extents().cloned();
            this.file.bytes = hashes.len() as u64 * CHUNK as u64;
            for hash in hashes {
                this.file.tree.push(hash, from.single);
            }
        }
        this
    }

    /// Returns the offset in the stream of the next byte that it expects.
    #[must_use]
    pub fn offset(&self) -> u64 {
        let chunk = self.chunk.as_ref().map_or(0, |chunk| chunk.have);
        self.at + (self.buffer.len() + chunk) as u64
    }

    /// Returns the offset of the first byte that it needs, if bytes before that are to be omitted.
    #[must_use]
    pub fn needs_from(&self) -> Option<u64> {
        (self.skip > 0).then_some(self.at)
    }

    /// Omits the bytes before [`Self::offset`] that are not needed and have not been pushed.
    pub const fn omit_rest(&mut self) {
        self.skip = 0;
    }

    /// Returns whether the end record has been decoded.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Decodes the next bytes.
    ///
    /// # Errors
    /// If they are not a valid stream, or the visitor stops it.
    pub fn push<V: Visitor>(&mut self, mut bytes: &[u8], visitor: &mut V) -> Result<(), V::Error> {
        while !bytes.is_empty() {
            if self.state == State::Ended {
                return Err(DecodeError::AfterEnd.into());
            }
            if self.skip > 0 {
                let omitted = self.skip.min(bytes.len() as u64);
                self.skip -= omitted;
                bytes = &bytes[omitted as usize..];
                continue;
            }
            self.pass_holes(visitor)?;
            if let Some(chunk) = &mut self.chunk
                && chunk.have < chunk.len
            {
                // A piece ends at the next multiple of `PIECE`, so that whole subtrees are hashed at a time.
                let piece = (PIECE - chunk.have % PIECE).min(chunk.len - chunk.have);
                let (now, rest) = bytes.split_at(piece.min(bytes.len()));
                chunk.hash.update(now);
                chunk.have += now.len();
                if self.file.known.is_none() {
                    self.file.whole.update(now);
                }
                visitor.bytes(now)?;
                bytes = rest;
                continue;
            }
            let wanted = match self.wanted() {
                Some(wanted) => wanted?,
                // The fields that determine the length have not arrived completely.
                None => self.buffer.len() + 1,
            };
            let missing = wanted.saturating_sub(self.buffer.len());
            let (now, rest) = bytes.split_at(missing.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = rest;
            if self.chunk.is_none()
                && let Some(len) = self.chunk_len()
            {
                let index = self.file.known.is_some().then(|| self.file.tree.chunks());
                self.chunk = Some(Chunk { hash: ChunkHash::new(index), len: len?, have: 0 });
                continue;
            }
            if let Some(wanted) = self.wanted()
                && wanted? == self.buffer.len()
            {
                let mut record = std::mem::take(&mut self.buffer);
                let result = self.record(&record, visitor);
                record.clear();
                self.buffer = record;
                result?;
            }
        }
        Ok(())
    }

    /// Returns the length of the current chunk, once it is known.
    fn chunk_len(&self) -> Option<Result<usize, DecodeError>> {
        if self.state != State::Inside || self.buffer.first() != Some(&tag::CHUNK) {
            return None;
        }
        let len: [u8; 4] = self.buffer.get(1..CHUNK_FRONT)?.try_into().ok()?;
        let len = u32::from_be_bytes(len) as usize;
        Some(match self.may_have(len) {
            true => Ok(len),
            false => Err(DecodeError::Length { bytes: self.at }),
        })
    }

    /// Returns the length of the current record without the content of a chunk; `None` if it is not known yet.
    fn wanted(&self) -> Option<Result<usize, DecodeError>> {
        let bytes = self.at;
        let tag = *self.buffer.first()?;
        let allowed = match self.state {
            State::Start => tag == tag::START,
            State::Between => tag == tag::FILE || tag == tag::DIGEST || tag == tag::END,
            State::Closing => tag == tag::END,
            State::Inside => tag == tag::CHUNK || tag == tag::FILE_END,
            State::Ended => false,
        };
        if !allowed {
            return Some(Err(match self.state {
                State::Start => DecodeError::NoStream,
                _ => DecodeError::OutOfPlace { found: tag, bytes },
            }));
        }
        Some(Ok(match tag {
            tag::START => START_BYTES,
            tag::FILE => return record_len(&self.buffer, bytes),
            tag::CHUNK if self.chunk.is_none() => CHUNK_FRONT,
            tag::CHUNK => CHUNK_FRONT + HASH,
            tag::FILE_END => FILE_END_BYTES,
            tag::DIGEST => DIGEST_BYTES,
            _ => END_BYTES,
        }))
    }

    /// Returns whether the next chunk of the file may have this length.
    fn may_have(&self, len: usize) -> bool {
        let file = &self.file;
        match file.known {
            Some(known) => {
                let left = known.saturating_sub(file.bytes).min(CHUNK as u64);
                len as u64 == left && len > 0 && !file.short
            }
            None => (1..=CHUNK).contains(&len) && file.bytes < 1 << 62,
        }
    }

    /// Begins a file whose record ends at this offset.
    fn begin_file<V: Visitor>(
        &mut self,
        header: &FileHeader,
        at: u64,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let (known, extents) = (header.length, header.extents().cloned());
        self.file = FileState { known, extents, ..FileState::default() };
        self.state = State::Inside;
        let Some(length) = header.length else { return Ok(()) };
        if let Some(hash) = visitor.known() {
            (self.file.given, self.file.bytes) = (Some(hash), length);
            // A chunk that follows would be out of place.
            self.file.short = true;
            self.skip = header.chunks_bytes();
        } else {
            let Kept { hashes, single } = visitor.kept()?;
            self.file.bytes = hashes.len() as u64 * CHUNK as u64;
            hashes.into_iter().for_each(|hash| self.file.tree.push(hash, single));
            self.skip = header.bytes_before(self.file.tree.chunks());
        }
        self.at = at + self.skip;
        Ok(())
    }

    /// Passes the holes that follow the chunks so far.
    fn pass_holes<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        let FileState { extents: Some(extents), tree, bytes, known, .. } = &mut self.file else {
            return Ok(());
        };
        if self.state != State::Inside || !self.buffer.is_empty() {
            return Ok(());
        }
        let length = known.unwrap_or(0);
        while *bytes < length && !extents.contains(tree.chunks()) {
            let len = (length - *bytes).min(CHUNK as u64) as usize;
            let (hash, single) = chunk_hash(tree.chunks(), &ZEROS[..len]);
            visitor.hole(len, &hash)?;
            tree.push(hash, single);
            *bytes += len as u64;
        }
        Ok(())
    }

    /// Handles a complete record.
    fn record<V: Visitor>(&mut self, record: &[u8], visitor: &mut V) -> Result<(), V::Error> {
        let begins = self.at;
        let at = begins + record.len() as u64;
        self.at = at;
        match record[0] {
            tag::START => {
                if &record[1..7] != MAGIC {
                    return Err(DecodeError::NoStream.into());
                }
                let version = u16::from_be_bytes([record[7], record[8]]);
                if !(1..=VERSION).contains(&version) {
                    return Err(DecodeError::Version(version).into());
                }
                self.state = State::Between;
            }
            tag::FILE => {
                let header = file_header(record, begins)?;
                if self.files >= MAX_FILES {
                    return Err(DecodeError::Length { bytes: begins }.into());
                }
                visitor.file(&header, at)?;
                self.digest.file(&header);
                if !header.is_file() {
                    self.files += 1;
                } else {
                    self.begin_file(&header, at, visitor)?;
                }
            }
            tag::CHUNK => {
                let Some(chunk) = self.chunk.take() else { return Ok(()) };
                let at = at + chunk.len as u64;
                self.at = at;
                let file = &mut self.file;
                let (hash, single) = chunk.hash.finish();
                if hash != record[CHUNK_FRONT..] {
                    return Err(DecodeError::ChunkHash { bytes: begins }.into());
                }
                if file.known.is_some() {
                    file.tree.push(hash, single);
                }
                file.short = chunk.len < CHUNK;
                file.bytes += chunk.len as u64;
                visitor.chunk(&hash, at)?;
            }
            tag::FILE_END => {
                let file = &self.file;
                let length = number(&record[1..9]);
                if length != file.bytes || file.known.is_some_and(|known| known != length) {
                    return Err(DecodeError::Length { bytes: begins }.into());
                }
                let hash = match (file.given, file.known) {
                    (Some(given), _) => given,
                    (None, Some(_)) => file.tree.finish(),
                    (None, None) => *file.whole.finalize().as_bytes(),
                };
                if hash != record[9..] {
                    return Err(match file.given {
                        Some(_) => DecodeError::KnownDiffers,
                        None => DecodeError::FileHash,
                    }
                    .into());
                }
                visitor.file_end(length, &hash, at)?;
                self.digest.file_end(&hash);
                self.files += 1;
                self.bytes = self.bytes.saturating_add(length);
                self.state = State::Between;
            }
            tag::DIGEST => {
                if self.digest.finish() != record[1..] {
                    let resumed = self.resumed;
                    return Err(match resumed {
                        true => DecodeError::EarlierDiffers,
                        false => DecodeError::Digest,
                    }
                    .into());
                }
                self.state = State::Closing;
            }
            _ => {
                if self.resumed && self.state != State::Closing {
                    return Err(DecodeError::EarlierDiffers.into());
                }
                let (files, bytes) = (number(&record[1..9]), number(&record[9..]));
                if (files, bytes) != (self.files, self.bytes) {
                    return Err(DecodeError::Length { bytes: begins }.into());
                }
                self.state = State::Ended;
                visitor.end(files, bytes)?;
            }
        }
        Ok(())
    }
}
