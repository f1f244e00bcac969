//! What workers of an open job tell each other about their vectors, and why a job has failed.

use rackweave_core::rng::mix;

use super::{Format, MAX_WORKERS};
use crate::malformed::{Malformed, Put, Reader};

/// Bytes of an [`Offer`], the payload of a [`super::Body::VectorProgress`] in an open job.
pub const OFFER_BYTES: u32 = 20;
/// Bytes of the payload of a [`super::Body::VectorState`] in [`super::Phase::Failed`].
pub const FAILED_BYTES: u32 = 12 + 2 * OFFER_BYTES;

/// What a worker of an open job adds up at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The number of the vector, from 0.
    pub step: u32,
    /// The number of its elements; 0 if the worker has none at present.
    pub length: u64,
    /// What they are.
    pub format: Format,
    /// What the application does with the vector; the same at all workers.
    pub label: u32,
    /// Whether the worker has no further vector.
    pub is_last: bool,
}

impl Offer {
    /// A worker that has no vector of this number yet.
    #[must_use]
    pub const fn nothing(step: u32, is_last: bool) -> Self {
        Self { step, length: 0, format: Format::I64, label: 0, is_last }
    }

    /// Returns the tag of the vector's chunks. Chunks of vectors that differ have different tags, but for one pair in 2^32. It is never 0.
    #[must_use]
    pub const fn tag(&self) -> u32 {
        let kind = (self.label as u64) << 8 | self.format as u64;
        let tag = mix(mix(mix(self.step as u64) ^ self.length) ^ kind) as u32;
        if tag == 0 { 1 } else { tag }
    }

    /// Appends the fields as they are sent: [`OFFER_BYTES`] of them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.step);
        out.put_u64(self.length);
        out.put_u32(self.label);
        out.put_u8(self.format as u8);
        out.put_u8(u8::from(self.is_last));
        out.put_u16(0);
    }

    /// Reads an offer.
    ///
    /// # Errors
    /// If it is too short, or if the format is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("the offer of a worker", bytes);
        let (step, length, label) = (reader.u32()?, reader.u64()?, reader.u32()?);
        let (format, flags) = (Format::read(reader.u8()?)?, reader.u8()?);
        reader.skip::<2>()?;
        Ok(Self { step, length, format, label, is_last: flags & 1 != 0 })
    }
}

/// How the vectors of workers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The workers whose vector is not that of most, as a bitmap; all of them if no vector is that of most.
    pub workers: u64,
    /// What the first worker has whose vector is not the expected one.
    pub found: Offer,
    /// What most have, or what some have.
    pub expected: Offer,
    /// Whether more than half of the workers have what is expected.
    pub has_majority: bool,
}

/// Who is to blame for the end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// A worker is gone.
    Gone {
        /// Its number.
        worker: u8,
        /// Whether it has said that it ends.
        has_left: bool,
        /// The workers for which it waited then, as a bitmap.
        waited: u64,
    },
    /// These workers have not joined, as a bitmap.
    NotJoined(u64),
    /// The workers' vectors differ.
    Differ(Difference),
}

impl Blame {
    /// Returns the payload of a [`super::Body::VectorState`] of a job that has failed: [`FAILED_BYTES`], zeros if nobody is to blame.
    #[must_use]
    pub fn encode(blame: Option<&Self>) -> Vec<u8> {
        let mut out = Vec::with_capacity(FAILED_BYTES as usize);
        let (code, worker, workers) = match blame {
            None => (0, 0, 0),
            Some(Self::Gone { worker, has_left, waited }) => {
                (1 + u8::from(*has_left), *worker, *waited)
            }
            Some(Self::NotJoined(workers)) => (3, 0, *workers),
            Some(Self::Differ(difference)) => {
                (5 - u8::from(difference.has_majority), 0, difference.workers)
            }
        };
        out.put_u8(code);
        out.put_u8(worker);
        out.put_u16(0);
        out.put_u64(workers);
        if let Some(Self::Differ(difference)) = blame {
            difference.found.encode(&mut out);
            difference.expected.encode(&mut out);
        }
        out.resize(FAILED_BYTES as usize, 0);
        out
    }

    /// Reads what [`Blame::encode`] has written; `None` if nobody is to blame, or if it is not to be understood.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (front, offers) = payload.split_first_chunk::<12>()?;
        let [code, worker, _, _, workers @ ..] = *front;
        let workers = u64::from_be_bytes(workers);
        match code {
            1 | 2 if worker < MAX_WORKERS => {
                Some(Self::Gone { worker, has_left: code == 2, waited: workers })
            }
            3 => Some(Self::NotJoined(workers)),
            4 | 5 => {
                let (found, expected) = offers.split_at_checked(OFFER_BYTES as usize)?;
                let (found, expected) = (Offer::decode(found).ok()?, Offer::decode(expected).ok()?);
                let has_majority = code == 4;
                Some(Self::Differ(Difference { workers, found, expected, has_majority }))
            }
            _ => None,
        }
    }
}
