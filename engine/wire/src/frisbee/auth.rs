//! Authentication of control messages, by the number of their session and by a secret that all hosts share, if there is one.
//!
//! A trailer follows each message of a session on a real network:
//!
//! ```text
//!  the message   the session's number (8)   with a key: tag (16)
//! ```
//!
//! Receivers ignore what follows a message's length ([`super::decode`]), so that the trailer is not a field of it. The server chooses the
//! number at random, for each connection of a client or, where switches pass the requests of one client to another one, for each
//! of its runs. Clients learn it over TCP. So without a key, whoever does not see the traffic cannot forge a message; with one, nobody who lacks it can,
//! and messages of an earlier session are refused.
//!
//! The tag covers the direction, the message and the number, and thereby the sender's address, but not the destination: a switch that
//! redirects a request need not know the key. One that divides a request must, since it makes new messages.
//!
//! A tag does not prevent that a message is replayed within its session. Requests and reports are repeated by their senders in any case, and
//! the state that they lead to is replaced by the next one.

use core::fmt;

use super::{Header, decode};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Bytes of a session's number in a trailer.
pub const SESSION_BYTES: usize = 8;

/// Where a message was made, which a tag covers: what a client has sent is never taken for the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// By a client. Switches may pass it to another client.
    ToServer,
    /// By the server.
    FromServer,
}

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
}

/// By what the messages of a session are recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// By the session's number only, which whoever reads the traffic learns.
    #[default]
    Number,
    /// By a tag of this key as well.
    Key(Key),
}

impl From<Option<Key>> for Auth {
    fn from(key: Option<Key>) -> Self {
        key.map_or(Self::Number, Self::Key)
    }
}

impl Auth {
    /// Returns the key, if the hosts share one.
    #[must_use]
    pub const fn key(&self) -> Option<&Key> {
        match self {
            Self::Number => None,
            Self::Key(key) => Some(key),
        }
    }

    /// Appends the trailer to `out`, in which a whole message starts at `start`.
    pub fn seal(&self, out: &mut Vec<u8>, start: usize, session: u64, direction: Direction) {
        out.extend_from_slice(&session.to_le_bytes());
        if let Self::Key(key) = self {
            let tag = key.tag(&[context(direction), &out[start..]]);
            out.extend_from_slice(&tag);
        }
    }

    /// Returns the number of the session that a message names in its trailer. `None` if the trailer has another length, or a tag that is not the
    /// message's. Whether the session is the receiver's is its own to judge.
    #[must_use]
    pub fn session(&self, bytes: &[u8], direction: Direction) -> Option<u64> {
        let end = decode(bytes).ok()?.payload.end;
        let (number, tag) = bytes[end..].split_at_checked(SESSION_BYTES)?;
        let is_right = match self {
            Self::Number => tag.is_empty(),
            Self::Key(key) => key.verify(&[context(direction), &bytes[..end + SESSION_BYTES]], tag),
        };
        is_right.then_some(u64::from_le_bytes(number.try_into().ok()?))
    }
}

/// What precedes a message in the input of its tag. Both texts have the same length, so that no message can take the place of one.
const fn context(direction: Direction) -> &'static [u8] {
    match direction {
        Direction::ToServer => b"control, of a client",
        Direction::FromServer => b"control, of a server",
    }
}

impl Direction {
    /// Returns the direction of a message by its sender's address.
    #[must_use]
    pub fn of(header: &Header, server: [u8; 4]) -> Self {
        if header.source == server { Self::FromServer } else { Self::ToServer }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;
    use crate::frisbee::{Body, Header, REPORT_MAP_BYTES, encode};

    fn report() -> Vec<u8> {
        let header = Header { source: [192, 0, 2, 1], body: Body::Report { image: 7, window: 0 } };
        let mut bytes = Vec::new();
        encode(&header, &mut bytes);
        bytes.resize(bytes.len() + REPORT_MAP_BYTES as usize, 0x5a);
        bytes
    }

    fn exit() -> Vec<u8> {
        let header = Header { source: [192, 0, 2, 1], body: Body::Exit { client: 1, image: 7 } };
        let mut bytes = Vec::new();
        encode(&header, &mut bytes);
        bytes
    }

    const NUMBER: u64 = 0x0123_4567_89ab_cdef;

    #[test]
    fn a_tag_covers_every_bit_and_follows_a_message_that_still_decodes() {
        let key = Auth::Key(Key::derive(b"secret"));
        let session = |bytes: &[u8]| key.session(bytes, Direction::ToServer);
        let mut bytes = report();
        let plain = decode(&bytes).unwrap();
        assert_eq!(session(&bytes), None);
        key.seal(&mut bytes, 0, NUMBER, Direction::ToServer);
        assert_eq!(session(&bytes), Some(NUMBER));
        let other = Auth::Key(Key::derive(b"other"));
        assert_eq!(other.session(&bytes, Direction::ToServer), None);
        assert_eq!(decode(&bytes).unwrap(), plain, "without the key it reads the same");
        for bit in (0..bytes.len() * 8).step_by(7) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(session(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes.push(0);
        assert_eq!(session(&bytes), None, "something follows the tag");
        assert_eq!((session(&bytes[..bytes.len() - 2]), session(&[])), (None, None));
    }

    /// The tag is what the Python package `blake3` computes from the layout above.
    #[test]
    fn a_trailer_byte_for_byte() {
        let mut bytes = exit();
        let message = bytes.len();
        Auth::Key(Key::derive(b"secret")).seal(&mut bytes, 0, NUMBER, Direction::ToServer);
        assert_eq!(bytes[message..message + 8], [0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
        assert_eq!(bytes[message + 8..], GOLDEN);
        let mut open = exit();
        Auth::Number.seal(&mut open, 0, NUMBER, Direction::ToServer);
        assert_eq!(open, bytes[..message + 8]);
        assert_eq!(Auth::Number.session(&open, Direction::FromServer), Some(NUMBER));
        assert_eq!(Auth::Number.session(&bytes, Direction::ToServer), None);
    }

    const GOLDEN: [u8; 16] =
        [34, 30, 203, 183, 208, 79, 113, 2, 25, 243, 202, 38, 148, 188, 239, 66];

    proptest! {
        /// What was recorded is refused in the other direction, and names its own session whatever the present one is.
        #[test]
        fn a_replayed_message_is_of_its_own_session(recorded in any::<u64>(), present in any::<u64>(), secret in any::<[u8; 8]>()) {
            let key = Auth::Key(Key::derive(&secret));
            let mut bytes = exit();
            key.seal(&mut bytes, 0, recorded, Direction::ToServer);
            prop_assert_eq!(key.session(&bytes, Direction::ToServer), Some(recorded));
            prop_assert_eq!(key.session(&bytes, Direction::FromServer), None);
            // With the present number in its place, the tag is not the message's.
            let end = bytes.len() - TAG_BYTES;
            bytes[end - SESSION_BYTES..end].copy_from_slice(&present.to_le_bytes());
            let taken = key.session(&bytes, Direction::ToServer);
            prop_assert_eq!(taken, (present == recorded).then_some(recorded));
        }
    }
}
