//! Digests of content.

use std::fmt;
use std::str::FromStr;

/// The SHA-256 of a blob or manifest, which is its name (OCI image specification, "Digests").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// Why a text is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is `sha256:` and 64 digits of lower-case hexadecimal")]
pub struct DigestError;

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Its 64 digits, which are the name of a file.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The digest with these 64 digits.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || text.bytes().any(|it| !matches!(it, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        text.strip_prefix("sha256:").and_then(Self::from_hex).ok_or(DigestError)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Computes a digest piece by piece.
pub(crate) struct Hasher(ring::digest::Context);

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Digest(bytes)
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sha256_in_lower_case_is_a_digest() {
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), text, "FIPS 180-2, appendix B.1");
        assert_eq!(text.parse(), Ok(Digest::of(b"abc")));
        for wrong in [
            "",
            "sha256:",
            &text[..70],
            &text.to_uppercase(),
            &text.replace("256", "512"),
            &format!("{text}0"),
            "sha256:../../../../../../../../../../../../../../../../../../../../etc/passwd",
            "sha256:éééééééééééééééééééééééééééééééé",
        ] {
            assert_eq!(wrong.parse::<Digest>(), Err(DigestError), "{wrong}");
        }
    }
}
