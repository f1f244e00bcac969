//! A short stream in memory.

use bytes::Bytes;

use super::{Payload, Source, SourceError};

/// Bytes as a [`Source`].
#[derive(Clone, Debug)]
pub struct Memory {
    stream: u128,
    bytes: Bytes,
}

impl Memory {
    /// Creates the stream of these bytes.
    #[must_use]
    pub const fn new(stream: u128, bytes: Bytes) -> Self {
        Self { stream, bytes }
    }
}

impl Source for Memory {
    fn stream(&self) -> u128 {
        self.stream
    }

    fn available(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn end(&self) -> Option<u64> {
        Some(self.available())
    }

    fn content(&self) -> u64 {
        0
    }

    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = from..from.saturating_add(len);
        if self.bytes.get(range.clone()).is_none() {
            return Err(SourceError::Gone(offset));
        }
        out.push(self.bytes.slice(range));
        Ok(())
    }
}
