//! Packets from one host to many under one key: the data of a cast.
//!
//! Each packet has a counter of 48 bits, which is its nonce and is never reset under a key, so no nonce is used twice whatever is
//! retransmitted. The key of the cipher is derived of the group's key and of the counter's epoch, so that no key of AES-GCM seals
//! more packets than its limit (RFC 9001, section 6.6) however long the stream is. Everyone who has the key can seal: a receiver
//! cannot tell the sender's packets from those of another receiver.

use core::fmt;

use ring::aead::{Aad, LessSafeKey, Tag};

use crate::handshake::Cipher;
use crate::session::{Exhausted, FORGED_PACKETS, OpenError, nonce, schedule};
use crate::window::{WINDOW, Window};

/// Packets that are sealed with one key of the cipher. Half of what AES-GCM allows (RFC 9001, section 6.6); the value
/// is Rackweave's.
pub const GROUP_EPOCH: u64 = 1 << 22;

/// Packets that a group's key seals at most: the counters of 48 bits.
pub const GROUP_PACKETS: u64 = 1 << 48;

/// The length of a tag in bytes.
const TAG_BYTES: usize = 16;

/// The key of the cipher in an epoch.
fn epoch_key(cipher: Cipher, key: &[u8; 32], epoch: u64) -> LessSafeKey {
    let mut text = *b"epoch of a group ........";
    let at = text.len() - 8;
    text[at..].copy_from_slice(&epoch.to_be_bytes());
    schedule(cipher, blake3::keyed_hash(key, &text).as_bytes())
}

/// The sender's end. The counter is private to it: a nonce cannot be used twice.
pub struct GroupSeal {
    key: [u8; 32],
    cipher: Cipher,
    epoch: LessSafeKey,
    next: u64,
}

impl fmt::Debug for GroupSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupSeal").field("next", &self.next).finish_non_exhaustive()
    }
}

impl GroupSeal {
    /// Begins to seal. `key` is random and was never used before, since the counter begins at 0.
    #[must_use]
    pub fn new(cipher: Cipher, key: [u8; 32]) -> Self {
        Self { epoch: epoch_key(cipher, &key, 0), key, cipher, next: 0 }
    }

    /// The key, to be handed to each receiver in secret.
    #[must_use]
    pub const fn key(&self) -> (Cipher, &[u8; 32]) {
        (self.cipher, &self.key)
    }

    /// The number of packets that were sealed.
    #[must_use]
    pub const fn sealed(&self) -> u64 {
        self.next
    }

    /// Seals a packet in place, and returns its counter and tag. `clear` is authenticated and stays readable.
    ///
    /// # Errors
    /// If [`GROUP_PACKETS`] packets were sealed.
    pub fn seal(
        &mut self,
        clear: &[u8],
        body: &mut [u8],
    ) -> Result<(u64, [u8; TAG_BYTES]), Exhausted> {
        let counter = self.next;
        if counter >= GROUP_PACKETS {
            return Err(Exhausted);
        }
        if counter > 0 && counter.is_multiple_of(GROUP_EPOCH) {
            self.epoch = epoch_key(self.cipher, &self.key, counter / GROUP_EPOCH);
        }
        self.next += 1;
        let nonce = nonce(self.cipher, counter);
        match self.epoch.seal_in_place_separate_tag(nonce, Aad::from(clear), body) {
            Ok(sealed) => {
                let mut tag = [0; TAG_BYTES];
                tag.copy_from_slice(sealed.as_ref());
                Ok((counter, tag))
            }
            Err(_) => unreachable!("a datagram is shorter than the ciphers' limits"),
        }
    }
}

/// A receiver's end.
pub struct GroupOpen {
    key: [u8; 32],
    cipher: Cipher,
    /// The epochs of the last packets that were authentic, newest first.
    epochs: [Option<(u64, LessSafeKey)>; 2],
    window: Window,
    /// Packets whose tag was wrong, in all epochs: their counters name the epoch, and are not authentic.
    forged: u64,
}

impl fmt::Debug for GroupOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupOpen").finish_non_exhaustive()
    }
}

impl GroupOpen {
    /// Begins to open what was sealed with this key.
    #[must_use]
    pub fn new(cipher: Cipher, key: [u8; 32]) -> Self {
        Self { key, cipher, epochs: [None, None], window: Window::default(), forged: 0 }
    }

    /// How far behind the newest packet one may be that is accepted.
    #[must_use]
    pub const fn window() -> u64 {
        WINDOW
    }

    /// Opens a packet in place. After an error `body` is of no use, and nothing has changed but the number of forged
    /// packets. After 2^36 of them nothing is opened any more.
    ///
    /// [`OpenError::Replayed`] is authentic: someone who has the key has sealed the packet. RFC 4303, section 3.4.3, lets a receiver drop
    /// a packet whose counter is not new before it checks the tag, which saves time. Here that time is spent, because a receiver draws
    /// conclusions from replays, which nobody without the key may bring about; it is that of a forged packet with a new counter.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        &mut self,
        counter: u64,
        clear: &[u8],
        tag: [u8; TAG_BYTES],
        body: &mut [u8],
    ) -> Result<(), OpenError> {
        if counter >= GROUP_PACKETS {
            return Err(OpenError::Forged);
        }
        // The integrity limit of the cipher is one of a key (RFC 9001, section 6.6), and here one of all epochs, which is stricter.
        if self.forged >= FORGED_PACKETS {
            return Err(OpenError::Forged);
        }
        let epoch = counter / GROUP_EPOCH;
        let known = self.epochs.iter().flatten().find(|known| known.0 == epoch);
        // A key is kept only once a packet has proved that its epoch is in use: forged counters cost time, and no memory.
        let mut fresh = None;
        let key = match known {
            Some((_, key)) => key,
            None => &*fresh.insert(epoch_key(self.cipher, &self.key, epoch)),
        };
        let (nonce, tag) = (nonce(self.cipher, counter), Tag::from(tag));
        if key.open_in_place_separate_tag(nonce, Aad::from(clear), tag, body, 0..).is_err() {
            self.forged += 1;
            return Err(OpenError::Forged);
        }
        if !self.window.accept(counter) {
            return Err(OpenError::Replayed);
        }
        if let Some(key) = fresh {
            self.epochs.rotate_right(1);
            self.epochs[0] = Some((epoch, key));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CIPHERS: [Cipher; 2] = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

    fn pair(cipher: Cipher) -> (GroupSeal, GroupOpen) {
        (GroupSeal::new(cipher, [3; 32]), GroupOpen::new(cipher, [3; 32]))
    }

    #[test]
    fn epochs_change_the_key_and_not_the_counter() {
        for cipher in CIPHERS {
            let (mut seal, mut open) = pair(cipher);
            let mut first = *b"the same text";
            let (zero, _) = seal.seal(b"", &mut first).unwrap();
            seal.next = GROUP_EPOCH;
            let mut second = *b"the same text";
            let (counter, tag) = seal.seal(b"clear", &mut second).unwrap();
            assert_eq!((zero, counter), (0, GROUP_EPOCH));
            assert_ne!(first, second);
            open.open(counter, b"clear", tag, &mut second).unwrap();
            assert_eq!(&second, b"the same text");
            // Its tag is not valid in an epoch with another key.
            let mut other = GroupOpen::new(cipher, [4; 32]);
            assert!(other.open(counter, b"clear", tag, &mut first).is_err());
            seal.next = GROUP_PACKETS;
            assert_eq!(seal.seal(b"", &mut second), Err(Exhausted));
            assert_eq!(open.open(GROUP_PACKETS, b"", tag, &mut second), Err(OpenError::Forged));
        }
    }

    #[test]
    fn a_forged_counter_changes_nothing() {
        let (mut seal, mut open) = pair(Cipher::Aes256Gcm);
        for counter in [5, GROUP_EPOCH * 7, GROUP_PACKETS - 1] {
            assert_eq!(open.open(counter, b"", [0; 16], &mut [1, 2]), Err(OpenError::Forged));
        }
        assert!(open.epochs.iter().all(Option::is_none));
        let mut body = *b"text";
        let (counter, tag) = seal.seal(b"", &mut body).unwrap();
        assert_eq!(open.open(counter, b"", tag, &mut body), Ok(()));
    }

    #[test]
    fn a_replay_is_one_only_if_its_tag_is_right() {
        for cipher in CIPHERS {
            let (mut seal, mut open) = pair(cipher);
            let mut body = *b"text";
            let (counter, tag) = seal.seal(b"", &mut body).unwrap();
            let mut late = *b"late";
            let (late_counter, late_tag) = seal.seal(b"", &mut late).unwrap();
            assert_eq!(open.open(counter, b"", tag, &mut body.clone()), Ok(()));
            seal.next = 3 * GROUP_EPOCH;
            let mut next = *b"next";
            let (next_counter, next_tag) = seal.seal(b"", &mut next).unwrap();
            assert_eq!(open.open(next_counter, b"", next_tag, &mut next), Ok(()));
            for (counter, tag, body) in [(counter, tag, body), (late_counter, late_tag, late)] {
                let before =
                    (open.forged, open.epochs.each_ref().map(|it| it.as_ref().map(|it| it.0)));
                let replayed = open.open(counter, b"", tag, &mut body.clone());
                assert_eq!(replayed, Err(OpenError::Replayed));
                let after =
                    (open.forged, open.epochs.each_ref().map(|it| it.as_ref().map(|it| it.0)));
                assert_eq!(before, after, "a replay of an earlier epoch replaces no key");
                assert_eq!(
                    open.open(counter, b"", [0; 16], &mut body.clone()),
                    Err(OpenError::Forged)
                );
                assert_eq!(
                    open.open(counter, b"other", tag, &mut body.clone()),
                    Err(OpenError::Forged)
                );
            }
        }
    }

    #[test]
    fn too_many_forged_packets_end_the_use_of_a_key() {
        let (mut seal, mut open) = pair(Cipher::ChaCha20Poly1305);
        let (mut first, mut second) = (*b"first", *b"second");
        let sealed = [seal.seal(b"", &mut first).unwrap(), seal.seal(b"", &mut second).unwrap()];
        open.forged = FORGED_PACKETS - 1;
        assert_eq!(open.open(sealed[0].0, b"", sealed[0].1, &mut first), Ok(()));
        assert_eq!(open.open(7, b"", [0; 16], &mut [1, 2]), Err(OpenError::Forged));
        assert_eq!(open.open(sealed[1].0, b"", sealed[1].1, &mut second), Err(OpenError::Forged));
    }

    proptest! {
        #![proptest_config(rackweave_testing::cases(64))]

        /// Packets in any order, each several times, some changed: each is opened once, with the content that was
        /// sealed.
        #[test]
        fn each_packet_is_opened_once_and_unchanged(
            aes: bool,
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..30),
            order in prop::collection::vec((any::<prop::sample::Index>(), any::<Option<u16>>()), 1..120),
        ) {
            let (mut seal, mut open) = pair(CIPHERS[usize::from(aes)]);
            let sealed: Vec<_> = bodies.iter().enumerate().map(|(i, body)| {
                let mut body = body.clone();
                let (counter, tag) = seal.seal(&[i as u8], &mut body).unwrap();
                (counter, tag, body)
            }).collect();
            let mut opened = vec![false; bodies.len()];
            for (index, change) in order {
                let i = index.index(sealed.len());
                let (mut counter, mut tag, mut body) = sealed[i].clone();
                let mut clear = [i as u8];
                if let Some(change) = change {
                    let bit = 1 << (change & 7);
                    match change >> 3 & 3 {
                        0 => tag[usize::from(change >> 5) % 16] ^= bit,
                        1 => clear[0] ^= bit,
                        2 => counter += u64::from(bit) * bodies.len() as u64,
                        _ if body.is_empty() => tag[0] ^= 1,
                        _ => {
                            let at = usize::from(change >> 5) % body.len();
                            body[at] ^= bit;
                        }
                    }
                }
                let result = open.open(counter, &clear, tag, &mut body);
                match (change, opened[i]) {
                    (None, false) => {
                        prop_assert_eq!(result, Ok(()));
                        prop_assert_eq!(&body, &bodies[i]);
                        opened[i] = true;
                    }
                    (None, true) => prop_assert_eq!(result, Err(OpenError::Replayed)),
                    _ => prop_assert!(result.is_err()),
                }
            }
        }
    }
}
