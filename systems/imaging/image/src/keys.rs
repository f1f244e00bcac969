//! Keys that sign images.

use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};

use crate::Hash;

/// What precedes a root hash in the signed message, so that a signature of an image means nothing elsewhere.
const CONTEXT: &[u8] = b"rackweave image root, version 1\0";

const SECRET: &str = "rackweave-image-secret-key";
const PUBLIC: &str = "rackweave-image-public-key";

/// Why the text of a key file is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is neither `NAME HEX` with the expected name nor 64 hexadecimal digits of a key.
    #[error("it is not a line `{0}` with 64 hexadecimal digits")]
    Text(&'static str),
    /// The bytes are no point of the curve, so no signature could match.
    #[error("its bytes are not an ed25519 public key")]
    Curve,
}

/// The ed25519 key that signs images.
#[derive(Clone)]
pub struct SecretKey(SigningKey);

/// The ed25519 key by which signatures of images are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

fn message(root: &Hash) -> Vec<u8> {
    [CONTEXT, root].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str, name: &'static str) -> Result<[u8; 32], KeyError> {
    let digits = text.trim().strip_prefix(name).map(str::trim_start).unwrap_or_default();
    let mut key = [0; 32];
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(KeyError::Text(name));
    }
    for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| KeyError::Text(name))?;
    }
    Ok(key)
}

impl SecretKey {
    /// Makes the key from 32 random bytes, which must be unpredictable.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// Reads the text of a key file.
    ///
    /// # Errors
    /// If the text is not what [`Self::to_text`] writes.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        Ok(Self::from_seed(&parse(text, SECRET)?))
    }

    /// Returns the text of a key file: one line.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{SECRET} {}\n", hex(self.0.as_bytes()))
    }

    /// Returns the key by which signatures of this one are checked.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    pub(crate) fn sign(&self, root: &Hash) -> [u8; 64] {
        self.0.sign(&message(root)).to_bytes()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey of {}", self.public())
    }
}

impl PublicKey {
    /// Reads the text of a key file.
    ///
    /// # Errors
    /// If the text is not what [`Self::to_text`] writes, or not a key.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(&parse(text, PUBLIC)?)
    }

    /// Returns the text of a key file: one line.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{PUBLIC} {self}\n")
    }

    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Result<Self, KeyError> {
        VerifyingKey::from_bytes(bytes).map(|_| Self(*bytes)).map_err(|_| KeyError::Curve)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn verify(&self, root: &Hash, signature: &[u8; 64]) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        let key = VerifyingKey::from_bytes(&self.0);
        key.is_ok_and(|key| key.verify_strict(&message(root), &signature).is_ok())
    }
}

/// Writes the key as 64 hexadecimal digits.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_text_and_wrong_texts_are_refused() {
        let key = SecretKey::from_seed(&[3; 32]);
        let again = SecretKey::from_text(&key.to_text()).unwrap();
        assert_eq!(again.public(), key.public());
        assert_eq!(PublicKey::from_text(&key.public().to_text()).unwrap(), key.public());
        // The two kinds are not confused.
        assert!(PublicKey::from_text(&key.to_text()).is_err());
        let text = key.to_text();
        for wrong in [
            "",
            "abc",
            &text[..text.len() - 2],
            &text.replace("03", "0g"),
            &text.replace("03", "ä"),
        ] {
            assert_eq!(SecretKey::from_text(wrong).unwrap_err(), KeyError::Text(SECRET), "{wrong}");
        }
        assert!(!format!("{key:?}").contains("0303"), "a secret key is never printed");
    }

    #[test]
    fn a_signature_is_of_one_root_by_one_key() {
        let (key, other) = (SecretKey::from_seed(&[3; 32]), SecretKey::from_seed(&[4; 32]));
        let signature = key.sign(&[1; 32]);
        assert!(key.public().verify(&[1; 32], &signature));
        assert!(!key.public().verify(&[2; 32], &signature));
        assert!(!other.public().verify(&[1; 32], &signature));
    }
}
