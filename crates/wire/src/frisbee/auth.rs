//! Authentication of control messages by a secret that all hosts share.
//!
//! A tag of [`TAG_BYTES`] follows the message. Receivers ignore what follows a message's length ([`super::decode`]), so that the tag is not
//! a field of it. The tag covers header, fields and payload, and thereby the sender's address, but not the destination: a switch that
//! redirects a request need not know the key. One that divides a request must, since it makes new messages.
//!
//! A tag does not prevent that a message is replayed. Requests and reports are repeated by their senders in any case, and the
//! state that they lead to is replaced by the next one.

use core::fmt;

use super::{HEADER_BYTES, decode};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// A secret that server, clients and switches share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Derives a key from a passphrase or the content of a key file. The key is as hard to guess as these.
    #[must_use]
    pub fn derive(secret: &[u8]) -> Self {
        Self(blake3::derive_key("rackweave 2026 frisbee control messages", secret))
    }

    /// Returns the tag of these pieces, one after the other.
    #[must_use]
    pub fn tag(&self, pieces: &[&[u8]]) -> [u8; TAG_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for piece in pieces {
            hasher.update(piece);
        }
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
        tag
    }

    /// Returns whether a tag is that of these pieces, in a time that does not depend on where it differs.
    #[must_use]
    pub fn verify(&self, pieces: &[&[u8]], found: &[u8]) -> bool {
        let expected = self.tag(pieces);
        found.len() == TAG_BYTES
            && expected.iter().zip(found).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
    }

    /// Appends the tag to `out`, in which a whole message starts at `start`.
    pub fn seal(&self, out: &mut Vec<u8>, start: usize) {
        let tag = self.tag(&[&out[start..]]);
        out.extend_from_slice(&tag);
    }

    /// Returns whether a message is followed by its tag, and by nothing else.
    #[must_use]
    pub fn is_sealed(&self, bytes: &[u8]) -> bool {
        let Ok(decoded) = decode(bytes) else { return false };
        debug_assert!(decoded.payload.end >= HEADER_BYTES as usize);
        let (message, tag) = bytes.split_at(decoded.payload.end);
        self.verify(&[message], tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frisbee::{Body, Header, REPORT_MAP_BYTES, encode};

    fn report() -> Vec<u8> {
        let header = Header { source: [192, 0, 2, 1], body: Body::Report { image: 7, window: 0 } };
        let mut bytes = Vec::new();
        encode(&header, &mut bytes);
        bytes.resize(bytes.len() + REPORT_MAP_BYTES as usize, 0x5a);
        bytes
    }

    #[test]
    fn a_tag_covers_every_bit_and_follows_a_message_that_still_decodes() {
        let key = Key::derive(b"secret");
        let mut bytes = report();
        let plain = decode(&bytes).unwrap();
        assert!(!key.is_sealed(&bytes));
        key.seal(&mut bytes, 0);
        assert!(key.is_sealed(&bytes) && !Key::derive(b"other").is_sealed(&bytes));
        assert_eq!(decode(&bytes).unwrap(), plain, "without the key it reads the same");
        for bit in (0..bytes.len() * 8).step_by(7) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.is_sealed(&bytes), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes.push(0);
        assert!(!key.is_sealed(&bytes), "something follows the tag");
        assert!(!key.is_sealed(&bytes[..bytes.len() - 2]) && !key.is_sealed(&[]));
    }
}
