//! The fields of messages about dense vectors: all workers have a vector of the same length, and each gets the sum of all.
//!
//! A vector is sent in chunks, which are numbered through all steps of a job, so that a number is never used twice. SwitchML's packet
//! (`docs/protocols/ordc.md#switchml`) names a slot and its version instead, which a packet that is very late can meet a second time.

use rackweave_core::HostId;

use super::MAX_WORKERS;
use crate::Id64;
use crate::malformed::{Malformed, Put, Reader};

/// The largest payload of a chunk: together with the overlay's headers it fits an Ethernet frame.
pub const MAX_CHUNK_BYTES: u16 = 1400;
/// The largest number of chunks that a worker has in flight.
pub const MAX_POOL: u16 = 1024;
/// Bytes of a [`Shape`], the payload of a [`super::Body::JoinVector`].
pub const SHAPE_BYTES: u32 = 12;
/// Bytes of a [`Plan`], the payload of a [`super::Body::VectorState`].
pub const PLAN_BYTES: u32 = 32;

/// Returns the payload of a [`super::Body::VectorState`] at the end of a job: the digest of its sums.
#[must_use]
pub fn done_payload(digest: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(PLAN_BYTES as usize);
    out.put_u64(digest);
    out.resize(PLAN_BYTES as usize, 0);
    out
}

/// Returns the digest of [`done_payload`]; `None` if the payload is too short.
#[must_use]
pub fn digest_of_done(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// What the elements of a vector are, on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Format {
    /// Integers of 64 bits, whose sums are modulo 2^64.
    #[default]
    I64 = 0,
    /// Block floating point: integers of 32 bits, multiples of a power of two that the elements of a block share.
    BlockFloat = 1,
}

impl Format {
    /// Returns the length of an element in bytes.
    #[must_use]
    pub const fn bytes(self) -> u16 {
        match self {
            Self::I64 => 8,
            Self::BlockFloat => 4,
        }
    }

    /// Returns the largest number of elements in a chunk.
    #[must_use]
    pub const fn max_elements(self) -> u16 {
        MAX_CHUNK_BYTES / self.bytes()
    }

    pub(super) fn read(code: u8) -> Result<Self, Malformed> {
        match code {
            0 => Ok(Self::I64),
            1 => Ok(Self::BlockFloat),
            other => Err(field("format", other)),
        }
    }
}

impl core::fmt::Display for Format {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::I64 => "i64",
            Self::BlockFloat => "f32",
        })
    }
}

fn field(what: &'static str, value: impl Into<u64>) -> Malformed {
    Malformed::ReduceField { what, value: value.into() }
}

/// What a worker's vectors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of elements; 0 if each vector has a length and a format of its own.
    pub length: u64,
    /// What they are.
    pub format: Format,
}

impl Shape {
    /// Appends the fields as they are sent: [`SHAPE_BYTES`] of them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.length);
        out.put_u8(self.format as u8);
        out.put_u8(0);
        out.put_u16(0);
    }

    /// Reads a shape.
    ///
    /// # Errors
    /// If it is too short, or if the format is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("the shape of a vector", bytes);
        let (length, format) = (reader.u64()?, Format::read(reader.u8()?)?);
        Ok(Self { length, format })
    }
}

/// The fields of a chunk, of one worker or of the sum of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its number among all chunks of the job.
    pub number: Id64,
    /// The number of elements; 0 if it carries an exponent only.
    pub count: u16,
    /// The largest exponent of the elements that the next chunk of the same slot carries, as `f32` encodes it; 0 with integers.
    pub exponent: u8,
    /// What the elements are.
    pub format: Format,
    /// In an open job [`Offer::tag`](super::Offer::tag), so that only chunks of vectors that are alike are added up; 0 in another job.
    pub tag: u32,
}

impl Chunk {
    /// Returns the length of the payload in bytes.
    #[must_use]
    pub const fn payload_len(&self) -> u32 {
        self.count as u32 * self.format.bytes() as u32
    }

    /// Returns the length of the fields in bytes. A chunk without a tag does not have the field.
    pub(super) const fn field_bytes(&self) -> u32 {
        if self.tag == 0 { 12 } else { 16 }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.number.get());
        out.put_u16(self.count);
        out.put_u8(self.exponent);
        out.put_u8(self.format as u8);
        if self.tag != 0 {
            out.put_u32(self.tag);
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>, has_tag: bool) -> Result<Self, Malformed> {
        let (number, count, exponent) = (Id64::new(reader.u64()?), reader.u16()?, reader.u8()?);
        let format = Format::read(reader.u8()?)?;
        let tag = if has_tag { reader.u32()? } else { 0 };
        if has_tag && tag == 0 {
            return Err(field("tag", tag));
        }
        if count > format.max_elements() {
            return Err(field("number of elements", count));
        }
        Ok(Self { number, count, exponent, format, tag })
    }
}

/// The fields of a request for slots in which vectors are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenVector {
    /// The cookie from the challenge; 0 in the first message.
    pub cookie: Id64,
    /// The number of chunks in flight that the master wants; each has two versions.
    pub pool: u16,
    /// The largest number of elements of a chunk.
    pub elements: u16,
    /// What the elements are.
    pub format: Format,
    /// The number of workers, 1 to [`MAX_WORKERS`].
    pub workers: u8,
}

impl OpenVector {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.cookie.get());
        out.put_u16(self.pool);
        out.put_u16(self.elements);
        out.put_u8(self.format as u8);
        out.put_u8(self.workers);
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (cookie, pool, elements) = (Id64::new(reader.u64()?), reader.u16()?, reader.u16()?);
        let (format, workers) = (Format::read(reader.u8()?)?, reader.u8()?);
        check_shape(pool, elements, format, workers)?;
        Ok(Self { cookie, pool, elements, format, workers })
    }
}

fn check_shape(pool: u16, elements: u16, format: Format, workers: u8) -> Result<(), Malformed> {
    if !(1..=MAX_POOL).contains(&pool) {
        return Err(field("pool", pool));
    }
    if !(1..=format.max_elements()).contains(&elements) {
        return Err(field("number of elements", elements));
    }
    if !(1..=MAX_WORKERS).contains(&workers) {
        return Err(field("number of workers", workers));
    }
    Ok(())
}

/// The fields of a [`super::Body::VectorState`] that a worker needs to send: its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The switch or host that workers send their chunks to.
    pub aggregator: HostId,
    /// The first chunk of this attempt: all workers have the sums of those before it.
    pub first: u64,
    /// The number of elements of the vector; 0 if each one has a length and a format of its own.
    pub length: u64,
    /// How many vectors are added up one after the other; 0 if there are as many as the workers like. Both are 0 or neither.
    pub steps: u32,
    /// The number of chunks that a worker has in flight.
    pub pool: u16,
    /// The number of elements of a chunk.
    pub elements: u16,
    /// What the elements are on their way.
    pub format: Format,
    /// The number of workers.
    pub workers: u8,
}

impl Plan {
    /// Returns the fields as they are sent: [`PLAN_BYTES`] of them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PLAN_BYTES as usize);
        out.put_u32(self.aggregator.0);
        out.put_u64(self.first);
        out.put_u64(self.length);
        out.put_u32(self.steps);
        out.put_u16(self.pool);
        out.put_u16(self.elements);
        out.put_u8(self.format as u8);
        out.put_u8(self.workers);
        out.put_u16(0);
        out
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// If it is too short, or if a field is impossible.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("the plan of a vector", bytes);
        let (aggregator, first, length) = (HostId(reader.u32()?), reader.u64()?, reader.u64()?);
        let (steps, pool, elements) = (reader.u32()?, reader.u16()?, reader.u16()?);
        let (format, workers) = (Format::read(reader.u8()?)?, reader.u8()?);
        reader.skip::<2>()?;
        check_shape(pool, elements, format, workers)?;
        if (steps == 0) != (length == 0) {
            return Err(field("number of steps", steps));
        }
        // Chunks of a step have numbers of 32 bits.
        if length.div_ceil(u64::from(elements)) > u64::from(u32::MAX / 2) {
            return Err(field("length", length));
        }
        Ok(Self { aggregator, first, length, steps, pool, elements, format, workers })
    }
}
