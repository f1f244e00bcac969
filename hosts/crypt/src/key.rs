//! The secret of a group of hosts.

use core::fmt;

use rackweave_wire::secure::MAC_BYTES;

/// The shortest secret, in bytes. A guess at a shorter one can be checked against recorded packets without end.
pub const LEAST_BYTES: usize = 16;

/// What all hosts that may talk to each other share: three keys that BLAKE3's key derivation makes of a secret, each with its
/// own context string. [`fmt::Debug`] prints neither.
#[derive(Clone)]
pub struct Key {
    psk: [u8; 32],
    tags: [u8; 32],
    early: [u8; 32],
}

/// The secret has fewer than 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key has {0} bytes; at least {LEAST_BYTES} are required")]
pub struct ShortSecret(pub usize);

impl Key {
    /// Derives the keys of a secret, which should be random: 32 bytes from the system are good.
    ///
    /// # Errors
    /// If it has fewer than 16 bytes.
    pub fn derive(secret: &[u8]) -> Result<Self, ShortSecret> {
        Self::with_contexts(
            secret,
            [
                "rackweave 2026-11 transports over UDP: Noise psk",
                "rackweave 2026-11 transports over UDP: tags",
                "rackweave 2026-11 transports over UDP: early sessions",
            ],
        )
    }

    /// Derives the keys of casts. A host with the same secret for both cannot use a datagram of one for the other.
    ///
    /// # Errors
    /// If the secret has fewer than 16 bytes.
    pub fn derive_for_casts(secret: &[u8]) -> Result<Self, ShortSecret> {
        Self::with_contexts(
            secret,
            [
                "rackweave 2026-11 casts: Noise psk",
                "rackweave 2026-11 casts: tags",
                "rackweave 2026-11 casts: early sessions",
            ],
        )
    }

    fn with_contexts(secret: &[u8], contexts: [&str; 3]) -> Result<Self, ShortSecret> {
        if secret.len() < LEAST_BYTES {
            return Err(ShortSecret(secret.len()));
        }
        let [psk, tags, early] = contexts.map(|context| blake3::derive_key(context, secret));
        Ok(Self { psk, tags, early })
    }

    pub(crate) const fn psk(&self) -> &[u8; 32] {
        &self.psk
    }

    /// The secret that the keys of early sessions are derived from, together with a ticket's secret.
    pub(crate) const fn early(&self) -> &[u8; 32] {
        &self.early
    }

    /// The tag of a datagram without its last 16 bytes: truncated BLAKE3 with a key.
    #[must_use]
    pub fn tag(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        let hash = blake3::keyed_hash(&self.tags, bytes);
        let mut tag = [0; MAC_BYTES];
        tag.copy_from_slice(&hash.as_bytes()[..MAC_BYTES]);
        tag
    }

    /// Whether the last 16 bytes of a datagram are its [`tag`](Self::tag), compared in constant time.
    #[must_use]
    pub fn verify(&self, datagram: &[u8]) -> bool {
        let Some((bytes, tag)) = datagram.split_last_chunk::<MAC_BYTES>() else { return false };
        let ours = self.tag(bytes);
        ours.iter().zip(tag).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_16_bytes_make_keys() {
        assert_eq!(Key::derive(&[7; 15]).err(), Some(ShortSecret(15)));
        let (a, b) = (Key::derive(&[7; 16]).unwrap(), Key::derive(&[8; 16]).unwrap());
        assert_ne!(a.psk, a.tags);
        assert_ne!(a.psk, b.psk);
        let casts = Key::derive_for_casts(&[7; 16]).unwrap();
        assert!(casts.psk != a.psk && casts.tags != a.tags && casts.psk != casts.tags);
        assert_eq!(Key::derive_for_casts(&[7; 15]).err(), Some(ShortSecret(15)));
        assert_eq!(format!("{a:?}"), "Key(..)");
    }

    #[test]
    fn any_changed_bit_changes_the_tag() {
        let key = Key::derive(&[1; 32]).unwrap();
        let mut datagram = b"a datagram".to_vec();
        datagram.extend(key.tag(b"a datagram"));
        assert!(key.verify(&datagram));
        assert!(!Key::derive(&[2; 32]).unwrap().verify(&datagram));
        for bit in 0..datagram.len() * 8 {
            let mut forged = datagram.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.verify(&forged), "bit {bit}");
        }
        assert!(!key.verify(&datagram[..15]));
    }
}
