//! A session: the keys of both directions, and the protection of packets.

use rackweave_wire::secure::{Clear, encode_sealed};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::handshake::Cipher;
use crate::window::Window;

/// Packets after which a new session is due. Half of [`SEAL_PACKETS`], so that there is time for the handshake.
pub const RENEW_PACKETS: u64 = SEAL_PACKETS / 2;

/// Packets that a session seals at most: the confidentiality limit of AES-GCM in QUIC (RFC 9001, section 6.6). ChaCha20-Poly1305
/// has none of importance; one limit for both is our choice.
pub const SEAL_PACKETS: u64 = 1 << 23;

/// Forged packets after which a session opens no more: the integrity limit of ChaCha20-Poly1305 in QUIC (RFC 9001, section
/// 6.6), below that of AES-GCM.
pub(crate) const FORGED_PACKETS: u64 = 1 << 36;

/// The session has sealed [`SEAL_PACKETS`] packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session has sealed as many packets as its cipher allows")]
pub struct Exhausted;

/// Why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// A packet with this counter was opened before, or the counter is too far behind.
    #[error("the packet is a replay, or too late")]
    Replayed,
    /// The tag is wrong.
    #[error("the packet was not sealed with this session's key, or was changed")]
    Forged,
}

/// The keys that two hosts share after a handshake, one by direction, as Noise's `Split()` gives them. A counter is each
/// packet's nonce (Noise, sections 5.1 and 11.4), and it is private to the session: a nonce cannot be used twice.
#[derive(Debug)]
pub struct Session {
    id: u32,
    cipher: Cipher,
    seal: LessSafeKey,
    open: LessSafeKey,
    /// The counter of the next packet.
    next: u64,
    window: Window,
    forged: u64,
}

impl Session {
    pub(crate) fn new(id: u32, cipher: Cipher, seal: &[u8; 32], open: &[u8; 32]) -> Self {
        let (seal, open) = (schedule(cipher, seal), schedule(cipher, open));
        Self { id, cipher, seal, open, next: 0, window: Window::default(), forged: 0 }
    }

    /// The number of the session, the same at both hosts.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// The cipher of its packets.
    #[must_use]
    pub const fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Packets that it has sealed.
    #[must_use]
    pub const fn sealed(&self) -> u64 {
        self.next
    }

    /// Whether it can seal no more packets.
    #[must_use]
    pub const fn is_exhausted(&self) -> bool {
        self.next >= SEAL_PACKETS
    }

    /// Appends a packet: `clear` appends what stays readable and is authenticated, `body` what is sealed; the tag follows.
    /// `clear` is given the session's number and the packet's counter, which it must write.
    ///
    /// # Errors
    /// If the session has sealed [`SEAL_PACKETS`] packets; then nothing is appended.
    pub fn seal(
        &mut self,
        out: &mut Vec<u8>,
        clear: impl FnOnce(u32, u64, &mut Vec<u8>),
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Exhausted> {
        if self.is_exhausted() {
            return Err(Exhausted);
        }
        let counter = self.next;
        self.next += 1;
        let start = out.len();
        clear(self.id, counter, out);
        let middle = out.len();
        body(out);
        let (clear, body) = out[start..].split_at_mut(middle - start);
        let nonce = nonce(self.cipher, counter);
        match self.seal.seal_in_place_separate_tag(nonce, Aad::from(clear), body) {
            Ok(tag) => out.extend_from_slice(tag.as_ref()),
            Err(_) => unreachable!("a datagram is shorter than the ciphers' limits"),
        }
        Ok(())
    }

    /// Appends a sealed datagram of [`rackweave_wire::secure`]; `body` appends what is sealed.
    ///
    /// # Errors
    /// As [`seal`](Self::seal).
    pub fn seal_datagram(
        &mut self,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Exhausted> {
        let clear = |session: u32, counter: u64, out: &mut Vec<u8>| {
            encode_sealed(Clear { session, counter }, out);
        };
        self.seal(out, clear, body)
    }

    /// Opens a packet with this counter in place and returns what was sealed. `clear` are the readable bytes, `body` the sealed
    /// ones with their tag; after an error `body` is of no use.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open<'a>(
        &mut self,
        counter: u64,
        clear: &[u8],
        body: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        if !self.window.is_new(counter) {
            return Err(OpenError::Replayed);
        }
        if self.forged >= FORGED_PACKETS {
            return Err(OpenError::Forged);
        }
        let nonce = nonce(self.cipher, counter);
        let Ok(opened) = self.open.open_in_place(nonce, Aad::from(clear), body) else {
            self.forged += 1;
            return Err(OpenError::Forged);
        };
        match self.window.accept(counter) {
            true => Ok(opened),
            false => Err(OpenError::Replayed),
        }
    }
}

/// Prepares a key for use.
pub(crate) fn schedule(cipher: Cipher, bytes: &[u8; 32]) -> LessSafeKey {
    let algorithm = match cipher {
        Cipher::Aes256Gcm => &AES_256_GCM,
        Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    };
    match UnboundKey::new(algorithm, bytes) {
        Ok(key) => LessSafeKey::new(key),
        Err(_) => unreachable!("both ciphers have keys of 32 bytes"),
    }
}

/// The nonce of a counter (Noise, section 12.4): 32 zero bits, then the counter, little-endian for ChaCha20-Poly1305 and
/// big-endian for AES-GCM.
pub(crate) fn nonce(cipher: Cipher, counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[4..].copy_from_slice(&match cipher {
        Cipher::Aes256Gcm => counter.to_be_bytes(),
        Cipher::ChaCha20Poly1305 => counter.to_le_bytes(),
    });
    Nonce::assume_unique_for_key(bytes)
}
