//! How both ends of a control socket check that they have the same key.

use serde_json::{Value, json};

const SALT_BYTES: usize = 16;

/// A proof of a key: a random salt, and the hash of the salt under a key that is derived from the secret.
///
/// Whoever sees two proofs cannot tell whether they are of one key, and a guess of a secret must be hashed once for each
/// proof. Someone who sees a proof can nevertheless test guesses, so a secret should be random and not a passphrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyProof {
    salt: [u8; SALT_BYTES],
    tag: blake3::Hash,
}

impl KeyProof {
    /// Proves `secret` with this salt, which should be random ([`rackweave_linux::random`]).
    #[must_use]
    pub fn new(secret: &[u8], salt: u128) -> Self {
        let salt = salt.to_le_bytes();
        Self { salt, tag: tag(secret, &salt) }
    }

    /// Returns whether this is a proof of `secret`, in a time that does not depend on where the hashes differ.
    #[must_use]
    pub fn is_of(&self, secret: &[u8]) -> bool {
        self.tag == tag(secret, &self.salt)
    }

    pub(super) fn to_json(self) -> Value {
        let salt = u128::from_le_bytes(self.salt);
        json!({ "salt": format!("{salt:032x}"), "tag": self.tag.to_hex().as_str() })
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let salt = value.get("salt")?.as_str().filter(|salt| salt.len() == 2 * SALT_BYTES)?;
        let salt = u128::from_str_radix(salt, 16).ok()?.to_le_bytes();
        let tag = blake3::Hash::from_hex(value.get("tag")?.as_str()?).ok()?;
        Some(Self { salt, tag })
    }
}

fn tag(secret: &[u8], salt: &[u8; SALT_BYTES]) -> blake3::Hash {
    let key = blake3::derive_key("rackweave 2026 cast control socket", secret);
    blake3::keyed_hash(&key, salt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_secret() {
        let proof = KeyProof::new(b"secret", 7);
        assert!(proof.is_of(b"secret") && !proof.is_of(b"other"));
        let moved = KeyProof { salt: 8_u128.to_le_bytes(), ..proof };
        assert!(!moved.is_of(b"secret"), "the tag covers the salt");
    }

    #[test]
    fn two_proofs_of_one_secret_share_nothing() {
        let (one, other) = (KeyProof::new(b"secret", 1), KeyProof::new(b"secret", 2));
        assert_ne!(one.tag, other.tag);
    }

    #[test]
    fn proofs_are_written_and_read() {
        for salt in [0, 1, u128::MAX] {
            let proof = KeyProof::new(b"secret", salt);
            assert_eq!(KeyProof::from_json(&proof.to_json()), Some(proof));
        }
        for bad in [
            json!("text"),
            json!({}),
            json!({ "salt": "0", "tag": "0" }),
            json!({ "salt": "+0000000000000000000000000000001", "tag": "zz" }),
        ] {
            assert_eq!(KeyProof::from_json(&bad), None, "{bad}");
        }
    }
}
