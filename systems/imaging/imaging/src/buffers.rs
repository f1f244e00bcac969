//! Memory of chunks, kept for the next ones.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// The most memory that is kept without being used, in bytes.
const MOST_KEPT: usize = 32 << 20;

/// Buffers that return here when the last reference to their bytes is dropped, in whichever thread.
///
/// The allocator returns memory of a chunk's size to the system, which clears it page by page when it is written to for the first time: a
/// fifth of the processor time of eight clients at 1 Gbps was that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers(Arc<Mutex<Free>>);

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    /// Returns a buffer for `len` bytes. Its content and length are arbitrary. Its capacity is at most twice as much, so that chunks
    /// that are kept in memory take no more than that.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |it: &Vec<u8>| (len..=len.saturating_mul(2)).contains(&it.capacity());
        let found = free.buffers.iter().rposition(fits);
        let bytes = found.map(|index| {
            let bytes = free.buffers.swap_remove(index);
            free.bytes -= bytes.capacity();
            bytes
        });
        drop(free);
        let bytes = bytes.unwrap_or_else(|| Vec::with_capacity(len));
        Buffer { bytes, home: self.clone() }
    }

    fn give_back(&self, bytes: Vec<u8>) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.capacity() > 0 && free.bytes + bytes.capacity() <= MOST_KEPT {
            free.bytes += bytes.capacity();
            free.buffers.push(bytes);
        }
    }
}

/// Memory that is used by one chunk.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    home: Buffers,
}

impl Buffer {
    /// Makes shared bytes of it.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_returns_when_nobody_has_its_bytes() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take(1000);
        buffer.clear();
        buffer.extend_from_slice(b"chunk");
        let memory = buffer.as_ptr();
        let bytes = buffer.freeze();
        let clone = bytes.clone();
        drop(bytes);
        assert_ne!(buffers.take(1000).as_ptr(), memory, "a clone has it");
        assert_eq!(&clone[..], b"chunk");
        std::thread::spawn(move || drop(clone)).join().unwrap();
        let (first, second) = (buffers.take(1000), buffers.take(1000));
        assert!([first.as_ptr(), second.as_ptr()].contains(&memory));
    }

    #[test]
    fn a_small_chunk_does_not_hold_a_large_buffer() {
        let buffers = Buffers::default();
        drop(buffers.take(10_000));
        assert!(buffers.take(4999).capacity() < 10_000);
        assert_eq!(buffers.take(5000).capacity(), 10_000);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let buffers = Buffers::default();
        let taken: Vec<_> = (0..40).map(|_| buffers.take(1 << 20)).collect();
        drop(taken);
        assert_eq!(buffers.0.lock().unwrap().bytes, MOST_KEPT);
    }
}
