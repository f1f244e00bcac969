//! The handshake: Noise NNpsk0 (Noise Protocol Framework, revision 34, sections 7.5 and 9), in one round trip and before any
//! state of the host that is asked.
//!
//! A host that has packets for another one *asks*. The other one is Noise's initiator: its *offer* is `psk, e`, and the asking
//! host's *acceptance* is `e, ee`, behind which it sends its first packets. The offer is a keyed hash of a secret of the present
//! epoch and of everything that the two have said ([`Terms`]), so that the offering host keeps nothing until the acceptance
//! comes back from the asking host's address: it computes its offer again. Thus an acceptance is also what RFC 9000, section 8.1,
//! calls address validation. [`Offers`] erases the secret of an epoch 20 seconds after its beginning, and with it the means to
//! compute the keys of its sessions.

use core::fmt;
use std::net::{IpAddr, SocketAddr};

use curve25519_dalek::MontgomeryPoint;
use rackweave_core::{Span, Time};
use rackweave_wire::secure::NOISE_BYTES;
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{BoxedCryptoResolver, CryptoResolver, RingResolver};
use snow::types::{Cipher as NoiseCipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

use crate::key::Key;
use crate::limit::Limit;
use crate::session::Session;

/// How long a secret makes offers. The value is Rackweave's.
pub const EPOCH: Span = Span::from_secs(10);

/// How long an offer can be accepted.
pub const OFFER_LIFETIME: Span = EPOCH;

/// The ciphers of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256 in Galois/counter mode (NIST SP 800-38D).
    Aes256Gcm,
    /// ChaCha20 and Poly1305 (RFC 8439).
    ChaCha20Poly1305,
}

impl Cipher {
    /// Its bit in [`Terms::ciphers`].
    #[must_use]
    pub const fn bit(self) -> u8 {
        match self {
            Self::Aes256Gcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }

    /// Returns the cipher with this [`bit`](Self::bit), or `None` if there is none.
    #[must_use]
    pub const fn from_bit(bit: u8) -> Option<Self> {
        match bit {
            1 => Some(Self::Aes256Gcm),
            2 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// The ciphers that a host prefers, as bits: both if its processor has instructions for AES and carry-less products, which
    /// AES-GCM needs to be fast and free of tables; else ChaCha20-Poly1305 only.
    #[must_use]
    pub const fn preferred(aes_instructions: bool) -> u8 {
        let chacha = Self::ChaCha20Poly1305.bit();
        if aes_instructions { Self::Aes256Gcm.bit() | chacha } else { chacha }
    }

    /// The cipher of two hosts that prefer these: AES-GCM if both do.
    #[must_use]
    pub const fn choose(ours: u8, theirs: u8) -> Self {
        if ours & theirs & Self::Aes256Gcm.bit() != 0 {
            Self::Aes256Gcm
        } else {
            Self::ChaCha20Poly1305
        }
    }

    const fn choice(self) -> CipherChoice {
        match self {
            Self::Aes256Gcm => CipherChoice::AESGCM,
            Self::ChaCha20Poly1305 => CipherChoice::ChaChaPoly,
        }
    }

    const fn noise_name(self) -> &'static str {
        match self {
            Self::Aes256Gcm => "Noise_NNpsk0_25519_AESGCM_SHA256",
            Self::ChaCha20Poly1305 => "Noise_NNpsk0_25519_ChaChaPoly_SHA256",
        }
    }
}

/// What an ask and its offer say in clear text. They are Noise's prologue: if someone has changed them, the handshake fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The ciphers that the asking host prefers.
    pub ciphers: u8,
    /// The cipher that the offering host has chosen.
    pub cipher: Cipher,
    /// The asking host's incarnation.
    pub asker: u32,
    /// The offering host's incarnation.
    pub offerer: u32,
    /// A random number of the asking host: an offer answers one ask.
    pub nonce: u64,
    /// The time of the offer by its sender's clock, in ticks.
    pub stamp: u64,
}

const PROLOGUE_BYTES: usize = 42;

impl Terms {
    /// The terms, with the cipher as a bit.
    pub(crate) const fn new(
        (ciphers, cipher): (u8, u8),
        (asker, offerer): (u32, u32),
        nonce: u64,
        stamp: u64,
    ) -> Option<Self> {
        match Cipher::from_bit(cipher) {
            Some(cipher) => Some(Self { ciphers, cipher, asker, offerer, nonce, stamp }),
            None => None,
        }
    }

    fn prologue(&self) -> [u8; PROLOGUE_BYTES] {
        let mut bytes = [0; PROLOGUE_BYTES];
        bytes[..16].copy_from_slice(b"rackweave udp v1");
        (bytes[16], bytes[17]) = (self.ciphers, self.cipher.bit());
        bytes[18..22].copy_from_slice(&self.asker.to_be_bytes());
        bytes[22..26].copy_from_slice(&self.offerer.to_be_bytes());
        bytes[26..34].copy_from_slice(&self.nonce.to_be_bytes());
        bytes[34..].copy_from_slice(&self.stamp.to_be_bytes());
        bytes
    }
}

/// The secrets that a host's offers are computed from: those of the present epoch and of the one before; and how many
/// offers and acceptances an address may cause.
#[derive(Default)]
pub struct Offers {
    epoch: u64,
    present: Option<[u8; 32]>,
    before: Option<[u8; 32]>,
    limit: Limit,
}

impl fmt::Debug for Offers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offers").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Offers {
    /// Erases secrets whose time is over, and takes a new one from `random` if the epoch has none.
    pub fn advance(&mut self, now: Time, random: impl FnOnce() -> [u8; 32]) {
        let epoch = now.ticks() / EPOCH.ticks();
        if self.present.is_some() && epoch == self.epoch {
            return;
        }
        self.before = self.present.take().filter(|_| epoch == self.epoch + 1);
        self.present = Some(random());
        self.epoch = epoch;
    }

    /// Whether a message of the handshake that seems to come from an address may cause a public-key operation now: recorded
    /// messages are authentic, and anyone can send them from any address. At most 8192 a second may, 32 of one address, and 64
    /// at once. [`advance`](Self::advance) comes before.
    #[must_use]
    pub fn allow(&mut self, now: Time, address: &[u8]) -> bool {
        match &self.present {
            // Ephemeral keys are hashes of longer inputs.
            Some(secret) => self.limit.take(now, secret, address),
            None => false,
        }
    }

    /// The randomness of the ephemeral key of an offer to an address; `None` if there is no such offer any more.
    /// [`advance`](Self::advance) comes before.
    #[must_use]
    pub fn ephemeral(&self, now: Time, address: &[u8], terms: &Terms) -> Option<[u8; 32]> {
        if terms.stamp > now.ticks() || now.ticks() - terms.stamp > OFFER_LIFETIME.ticks() {
            return None;
        }
        let secret = match self.epoch.checked_sub(terms.stamp / EPOCH.ticks())? {
            0 => self.present?,
            1 => self.before?,
            _ => return None,
        };
        let mut hasher = blake3::Hasher::new_keyed(&secret);
        // The prologue has a fixed length, so that no two inputs are the same bytes.
        hasher.update(&terms.prologue()).update(address);
        Some(*hasher.finalize().as_bytes())
    }
}

/// Why a message of the handshake was refused: its sender has another key, or it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the handshake's message was not made with this key")]
pub struct Refused;

/// Makes the first message of Noise. The same arguments make the same message.
///
/// # Errors
/// Never with valid arguments.
pub fn offer(key: &Key, terms: &Terms, ephemeral: [u8; 32]) -> Result<[u8; NOISE_BYTES], Refused> {
    Ok(initiate(key, terms, ephemeral)?.1)
}

fn initiate(
    key: &Key,
    terms: &Terms,
    ephemeral: [u8; 32],
) -> Result<(HandshakeState, [u8; NOISE_BYTES]), Refused> {
    let mut state = build(key, terms, ephemeral, true)?;
    let mut message = [0; NOISE_BYTES];
    match state.write_message(&[], &mut message) {
        Ok(NOISE_BYTES) => Ok((state, message)),
        _ => Err(Refused),
    }
}

/// Accepts an offer: returns the second message of Noise and the session. `ephemeral` is random.
///
/// # Errors
/// If the offer was not made with this key and these terms.
pub fn accept(
    key: &Key,
    terms: &Terms,
    offer: &[u8; NOISE_BYTES],
    ephemeral: [u8; 32],
) -> Result<([u8; NOISE_BYTES], Session), Refused> {
    let mut state = build(key, terms, ephemeral, false)?;
    let mut message = [0; NOISE_BYTES];
    state.read_message(offer, &mut []).map_err(|_| Refused)?;
    match state.write_message(&[], &mut message) {
        Ok(NOISE_BYTES) => Ok((message, session(state, terms.cipher, false))),
        _ => Err(Refused),
    }
}

/// Ends the handshake at the host that has made the offer with this ephemeral key.
///
/// # Errors
/// If the acceptance was not made with this key, of this offer.
pub fn conclude(
    key: &Key,
    terms: &Terms,
    ephemeral: [u8; 32],
    acceptance: &[u8; NOISE_BYTES],
) -> Result<Session, Refused> {
    let (mut state, _) = initiate(key, terms, ephemeral)?;
    state.read_message(acceptance, &mut []).map_err(|_| Refused)?;
    Ok(session(state, terms.cipher, true))
}

fn session(mut state: HandshakeState, cipher: Cipher, initiator: bool) -> Session {
    // The handshake hash is unique to the session and no secret (Noise, section 11.2).
    let id = state.get_handshake_hash().first_chunk().map_or(0, |id| u32::from_be_bytes(*id));
    let (first, second) = state.dangerously_get_raw_split();
    let (seal, open) = if initiator { (first, second) } else { (second, first) };
    Session::new(id, cipher, &seal, &open)
}

fn build(
    key: &Key,
    terms: &Terms,
    ephemeral: [u8; 32],
    initiator: bool,
) -> Result<HandshakeState, Refused> {
    let params: NoiseParams = terms.cipher.noise_name().parse().map_err(|_| Refused)?;
    debug_assert_eq!(params.cipher, terms.cipher.choice());
    let prologue = terms.prologue();
    let resolver: BoxedCryptoResolver = Box::new(Resolver { ephemeral });
    let builder = Builder::with_resolver(params, resolver)
        .prologue(&prologue)
        .and_then(|builder| builder.psk(0, key.psk()))
        .map_err(|_| Refused)?;
    let state = if initiator { builder.build_initiator() } else { builder.build_responder() };
    state.map_err(|_| Refused)
}

/// The implementations that snow uses: `ring`'s ciphers and hash, `curve25519-dalek`'s X25519, and our randomness.
struct Resolver {
    ephemeral: [u8; 32],
}

/// Gives its bytes once, to the only ephemeral key of a host in the handshake.
struct Once(Option<[u8; 32]>);

impl Random for Once {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        let bytes = self.0.take().filter(|bytes| bytes.len() == dest.len());
        dest.copy_from_slice(&bytes.ok_or(snow::Error::Rng)?);
        Ok(())
    }
}

/// X25519 (RFC 7748) of `curve25519-dalek`; `ring` offers it only with the system's own randomness.
#[derive(Default)]
struct X25519 {
    private: [u8; 32],
    public: [u8; 32],
}

impl X25519 {
    fn set_private(&mut self, private: [u8; 32]) {
        self.private = private;
        self.public = MontgomeryPoint::mul_base_clamped(private).to_bytes();
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, privkey: &[u8]) {
        let mut private = [0; 32];
        private.copy_from_slice(privkey);
        self.set_private(private);
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), snow::Error> {
        let mut private = [0; 32];
        rng.try_fill_bytes(&mut private)?;
        self.set_private(private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    /// Points of low order give zeros, as Noise prefers (section 12.1): the pre-shared key protects the session then.
    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        let public = pubkey.first_chunk::<32>().ok_or(snow::Error::Dh)?;
        let shared = MontgomeryPoint(*public).mul_clamped(self.private);
        out.get_mut(..32).ok_or(snow::Error::Dh)?.copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.ephemeral))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::new(X25519::default())),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn NoiseCipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// Returns an address as bytes that no other address has, to be mixed into what proves that a host receives there. An IPv4
/// address and the IPv6 address to which it is mapped are the same.
#[must_use]
pub fn address_bytes(address: SocketAddr) -> [u8; 18] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; 18];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        Key::derive(&[n; 32]).unwrap()
    }

    fn terms(cipher: Cipher) -> Terms {
        Terms { ciphers: 3, cipher, asker: 1, offerer: 2, nonce: 3, stamp: 4 }
    }

    /// Seals at one end and opens at the other.
    fn passes(from: &mut Session, to: &mut Session, text: &[u8]) -> bool {
        let mut out = Vec::new();
        let clear = |id: u32, counter: u64, out: &mut Vec<u8>| {
            out.extend(id.to_be_bytes());
            out.extend(counter.to_be_bytes());
        };
        from.seal(&mut out, clear, |out| out.extend_from_slice(text)).unwrap();
        let counter = u64::from_be_bytes(out[4..12].try_into().unwrap());
        let (clear, body) = out.split_at_mut(12);
        assert_ne!(&body[..text.len()], text);
        to.open(counter, clear, body).is_ok_and(|opened| opened == text)
    }

    #[test]
    fn both_ends_get_the_same_session_with_either_cipher() {
        for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let (key, terms) = (key(1), terms(cipher));
            let offered = offer(&key, &terms, [5; 32]).unwrap();
            assert_eq!(offered, offer(&key, &terms, [5; 32]).unwrap());
            let (message, mut asker) = accept(&key, &terms, &offered, [6; 32]).unwrap();
            let mut offerer = conclude(&key, &terms, [5; 32], &message).unwrap();
            assert_eq!((asker.id(), asker.cipher()), (offerer.id(), cipher));
            assert!(passes(&mut asker, &mut offerer, b"a request"));
            assert!(passes(&mut offerer, &mut asker, b"its response"));
            let (_, mut other) = accept(&key, &terms, &offered, [7; 32]).unwrap();
            assert_ne!(other.id(), offerer.id());
            assert!(!passes(&mut other, &mut offerer, b"another ephemeral key"));
            // Directions have keys of their own: a reflected packet is not accepted.
            let (_, mut mirror) = accept(&key, &terms, &offered, [6; 32]).unwrap();
            assert!(!passes(&mut asker, &mut mirror, b"back to its sender"));
        }
    }

    #[test]
    fn other_keys_terms_and_bytes_are_refused() {
        let (ours, terms) = (key(1), terms(Cipher::Aes256Gcm));
        let offered = offer(&ours, &terms, [5; 32]).unwrap();
        assert_eq!(accept(&key(2), &terms, &offered, [6; 32]).err(), Some(Refused));
        let changed = [
            Terms { ciphers: 2, ..terms },
            Terms { cipher: Cipher::ChaCha20Poly1305, ..terms },
            Terms { asker: 9, ..terms },
            Terms { offerer: 9, ..terms },
            Terms { nonce: 9, ..terms },
            Terms { stamp: 9, ..terms },
        ];
        let (message, _) = accept(&ours, &terms, &offered, [6; 32]).unwrap();
        for changed in changed {
            assert!(accept(&ours, &changed, &offered, [6; 32]).is_err(), "{changed:?}");
            assert!(conclude(&ours, &changed, [5; 32], &message).is_err(), "{changed:?}");
        }
        assert!(conclude(&ours, &terms, [8; 32], &message).is_err());
        // X25519 ignores the highest bit of a public key, but Noise hashes it.
        for bit in 0..NOISE_BYTES * 8 {
            let flip = |bytes: &[u8; NOISE_BYTES]| {
                let mut bytes = *bytes;
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            };
            assert!(accept(&ours, &terms, &flip(&offered), [6; 32]).is_err(), "bit {bit}");
            assert!(conclude(&ours, &terms, [5; 32], &flip(&message)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn ciphers_are_chosen_by_both_hosts() {
        let (with, without) = (Cipher::preferred(true), Cipher::preferred(false));
        assert_eq!(Cipher::choose(with, with), Cipher::Aes256Gcm);
        assert_eq!(Cipher::choose(with, without), Cipher::ChaCha20Poly1305);
        assert_eq!(Cipher::choose(without, without), Cipher::ChaCha20Poly1305);
    }

    #[test]
    fn offers_expire_and_belong_to_an_address_and_its_terms() {
        let at = |s: u64| Time::ZERO + Span::from_secs(s);
        let mut offers = Offers::default();
        let terms = Terms { stamp: at(8).ticks(), ..terms(Cipher::Aes256Gcm) };
        assert_eq!(offers.ephemeral(at(8), b"a", &terms), None);
        offers.advance(at(8), || [1; 32]);
        let first = offers.ephemeral(at(8), b"a", &terms).unwrap();
        assert_ne!(offers.ephemeral(at(8), b"b", &terms), Some(first));
        let other = Terms { nonce: 9, ..terms };
        assert_ne!(offers.ephemeral(at(8), b"a", &other), Some(first));
        assert_eq!(offers.ephemeral(at(7), b"a", &terms), None, "an offer of the future");
        offers.advance(at(12), || [2; 32]);
        assert_eq!(offers.ephemeral(at(12), b"a", &terms), Some(first));
        assert_eq!(offers.ephemeral(at(18), b"a", &terms), Some(first));
        assert_eq!(offers.ephemeral(at(19), b"a", &terms), None);
        offers.advance(at(12), || unreachable!("an epoch has one secret"));
        // After a pause, nothing of the earlier epochs is left.
        offers.advance(at(35), || [3; 32]);
        assert!(offers.before.is_none());
    }
}
