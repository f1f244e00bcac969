//! Computes the hash of a file from the hashes of its chunks.

use blake3::hazmat::{
    ChainingValue, HasherExt as _, Mode, merge_subtrees_non_root, merge_subtrees_root,
};
use blake3::{Hash as Blake, Hasher};

use super::{CHUNK, Hash};

/// Computes the BLAKE3 hash of a file chunk by chunk, and the chaining value of each chunk along the way. Every chunk
/// but the last has [`CHUNK`] bytes.
#[derive(Clone, Debug, Default)]
pub struct TreeHash {
    chunks: u64,
    /// Chaining values of complete subtrees, largest first: at most one for each bit of `chunks`, plus the last one.
    stack: Vec<ChainingValue>,
    /// The hash of the file while it has only one chunk.
    single: Option<Hash>,
}

/// Hashes a chunk piece by piece.
#[derive(Clone, Debug)]
pub struct ChunkHash {
    hasher: Hasher,
    index: Option<u64>,
    empty: bool,
}

impl ChunkHash {
    /// Creates a hasher for the chunk with this index of a file of known length or, with `None`, for a chunk that is
    /// hashed as a whole input.
    #[must_use]
    pub fn new(index: Option<u64>) -> Self {
        let mut hasher = Hasher::new();
        if let Some(index) = index.filter(|index| *index > 0) {
            hasher.set_input_offset(index * CHUNK as u64);
        }
        Self { hasher, index, empty: true }
    }

    /// Adds the next bytes. It is fastest if every call but the last passes the same large power of two of bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.empty &= bytes.is_empty();
        self.hasher.update(bytes);
    }

    /// Returns the chunk's hash and, for index 0, the BLAKE3 hash of the chunk as a whole file.
    #[must_use]
    pub fn finish(&self) -> (Hash, Option<Hash>) {
        let root = || *self.hasher.finalize().as_bytes();
        match self.index {
            None => (root(), None),
            // BLAKE3 defines no chaining value for an empty chunk.
            Some(_) if self.empty => ([0; 32], Some(root())),
            Some(index) => (self.hasher.finalize_non_root(), (index == 0).then(root)),
        }
    }
}

/// Returns the hash of a chunk of a file of known length and, for index 0, the BLAKE3 hash of the chunk as a whole
/// file.
#[must_use]
pub fn chunk_hash(index: u64, bytes: &[u8]) -> (Hash, Option<Hash>) {
    let mut hash = ChunkHash::new(Some(index));
    hash.update(bytes);
    hash.finish()
}

impl TreeHash {
    /// Returns the number of chunks so far.
    #[must_use]
    pub const fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Adds the next chunk and returns its hash.
    pub fn update(&mut self, bytes: &[u8]) -> Hash {
        let (hash, single) = chunk_hash(self.chunks, bytes);
        self.push(hash, single);
        hash
    }

    /// Adds the results of [`chunk_hash`] for the next chunk.
    pub fn push(&mut self, hash: Hash, single: Option<Hash>) {
        // Subtrees are merged lazily, as in BLAKE3: the last merge is that of the root, and only the end of the file
        // determines which it is.
        while self.stack.len() > self.chunks.count_ones() as usize {
            if let (Some(right), Some(left)) = (self.stack.pop(), self.stack.pop()) {
                self.stack.push(merge_subtrees_non_root(&left, &right, Mode::Hash));
            }
        }
        self.stack.push(hash);
        self.chunks += 1;
        self.single = if self.chunks == 1 { single } else { None };
    }

    /// Returns the BLAKE3 hash of the file.
    #[must_use]
    pub fn finish(&self) -> Hash {
        let mut stack = self.stack.clone();
        if stack.len() <= 1 {
            return self.single.unwrap_or_else(|| *Blake::as_bytes(&blake3::hash(&[])));
        }
        let mut right = stack.pop().unwrap_or_default();
        while stack.len() > 1 {
            let left = stack.pop().unwrap_or_default();
            right = merge_subtrees_non_root(&left, &right, Mode::Hash);
        }
        let left = stack.pop().unwrap_or_default();
        *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_hash_is_what_b3sum_prints() {
        let bytes: Vec<u8> = (0..9 * CHUNK + 77).map(|i| (i * 7 + i / 1000) as u8).collect();
        let k = CHUNK;
        for len in [
            0,
            1,
            1024,
            1025,
            k - 1,
            k,
            k + 1,
            2 * k,
            3 * k,
            3 * k + 5,
            4 * k,
            5 * k + 1,
            7 * k,
            8 * k,
            9 * k,
            9 * k + 77,
        ] {
            let bytes = &bytes[..len];
            let mut tree = TreeHash::default();
            for chunk in bytes.chunks(k) {
                tree.update(chunk);
            }
            assert_eq!(tree.finish(), *blake3::hash(bytes).as_bytes(), "{len} bytes");
        }
    }
}
