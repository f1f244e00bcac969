//! Address validation without a key (RFC 9000, section 8.1): a receiver answers an invitation from an address that has proved
//! nothing with a cookie, and keeps nothing. Whoever receives at the address sends the invitation again behind the
//! cookie. The format is Rackweave's.
//!
//! ```text
//! 0: 0xB7   1: 0 challenge, 1 echo   2: session (4 bytes)   6: cookie (8 bytes)   14: in an echo, the invitation
//! ```

use std::net::SocketAddr;

use rackweave_core::{Span, Time};
use rackweave_wire::orca::Session;

/// The first byte of a message, which differs from that of Orca packets, probes and queries for groups.
pub(super) const TAG: u8 = 0xb7;

/// The length of a challenge in bytes, which is less than that of any invitation.
pub(super) const CHALLENGE_BYTES: usize = 14;

/// For how long a secret makes cookies; those of the secret before are valid too. The value is Rackweave's.
const EPOCH: Span = Span::from_secs(10);

/// A cookie, or an invitation behind one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieMessage<'a> {
    /// The answer to an invitation without a valid cookie.
    Challenge {
        /// The session of the invitation.
        session: Session,
        /// The cookie of the sender's address and of the session.
        cookie: u64,
    },
    /// An invitation with the cookie that its sender was given.
    Echo {
        /// The session of the invitation.
        session: Session,
        /// The cookie.
        cookie: u64,
        /// The packet of the invitation.
        packet: &'a [u8],
    },
}

impl<'a> CookieMessage<'a> {
    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, session, cookie, packet) = match *self {
            Self::Challenge { session, cookie } => (0, session, cookie, &[][..]),
            Self::Echo { session, cookie, packet } => (1, session, cookie, packet),
        };
        let mut bytes = Vec::with_capacity(CHALLENGE_BYTES + packet.len());
        bytes.extend_from_slice(&[TAG, kind]);
        bytes.extend_from_slice(&session.0.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(packet);
        bytes
    }

    /// Decodes a message; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (front, packet) = bytes.split_at_checked(CHALLENGE_BYTES)?;
        let session = Session(front[2..6].try_into().ok().map(u32::from_be_bytes)?);
        let cookie = front[6..].try_into().ok().map(u64::from_be_bytes)?;
        match (front[0], front[1]) {
            (TAG, 0) if packet.is_empty() => Some(Self::Challenge { session, cookie }),
            (TAG, 1) => Some(Self::Echo { session, cookie, packet }),
            _ => None,
        }
    }
}

/// The secrets that a receiver's cookies are computed from: those of the present epoch and of the one before.
#[derive(Default)]
pub(super) struct Cookies {
    epoch: u64,
    secrets: [Option<[u8; 32]>; 2],
}

impl std::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cookies").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Cookies {
    /// Returns the cookie of an address and a session. `random` makes the secret of a new epoch.
    pub(super) fn cookie(
        &mut self,
        now: Time,
        random: impl FnOnce() -> [u8; 32],
        from: SocketAddr,
        session: Session,
    ) -> u64 {
        let epoch = now.ticks() / EPOCH.ticks();
        let present = match self.secrets[0] {
            Some(present) if epoch == self.epoch => present,
            before => {
                let fresh = random();
                let before = before.filter(|_| epoch == self.epoch + 1);
                (self.secrets, self.epoch) = ([Some(fresh), before], epoch);
                fresh
            }
        };
        cookie(&present, from, session)
    }

    /// Returns whether this host has made the cookie for this address and session, not more than two epochs ago.
    pub(super) fn is_valid(
        &self,
        now: Time,
        from: SocketAddr,
        session: Session,
        said: u64,
    ) -> bool {
        let secrets = match (now.ticks() / EPOCH.ticks()).checked_sub(self.epoch) {
            Some(0) => &self.secrets[..],
            Some(1) => &self.secrets[..1],
            _ => &[],
        };
        secrets.iter().flatten().any(|secret| cookie(secret, from, session) == said)
    }
}

fn cookie(secret: &[u8; 32], from: SocketAddr, session: Session) -> u64 {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(&rackweave_crypt::address_bytes(from)).update(&session.0.to_be_bytes());
    hasher.finalize().as_bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(s: u64) -> Time {
        Time::ZERO + Span::from_secs(s)
    }

    #[test]
    fn a_cookie_belongs_to_an_address_and_a_session_and_expires() {
        let (a, b): (SocketAddr, SocketAddr) =
            ("192.0.2.1:5".parse().unwrap(), "192.0.2.1:6".parse().unwrap());
        let mut cookies = Cookies::default();
        assert!(!cookies.is_valid(at(3), a, Session(1), 0), "there is no secret yet");
        let cookie = cookies.cookie(at(3), || [1; 32], a, Session(1));
        assert!(cookies.is_valid(at(3), a, Session(1), cookie));
        assert!(!cookies.is_valid(at(3), b, Session(1), cookie));
        assert!(!cookies.is_valid(at(3), a, Session(2), cookie));
        assert!(!cookies.is_valid(at(3), a, Session(1), cookie ^ 1));
        assert_eq!(cookies.cookie(at(9), || unreachable!(), a, Session(1)), cookie);
        // In the next epoch it is valid whether a new secret was needed or not, and not after that.
        assert!(cookies.is_valid(at(19), a, Session(1), cookie));
        assert_ne!(cookies.cookie(at(12), || [2; 32], a, Session(1)), cookie);
        assert!(cookies.is_valid(at(19), a, Session(1), cookie));
        assert!(!cookies.is_valid(at(20), a, Session(1), cookie));
        assert!(!cookies.is_valid(at(31), a, Session(1), cookie));
        let _ = cookies.cookie(at(55), || [3; 32], a, Session(1));
        assert!(cookies.secrets[1].is_none(), "the secret before is of an earlier epoch");
    }

    proptest! {
        #[test]
        fn messages_come_back_and_any_bytes_are_harmless(
            session: u32, cookie: u64, packet in prop::collection::vec(any::<u8>(), 0..80), cut in 0..94_usize
        ) {
            let session = Session(session);
            let echo = CookieMessage::Echo { session, cookie, packet: &packet };
            let bytes = echo.encode();
            prop_assert_eq!(CookieMessage::decode(&bytes), Some(echo));
            if let Some(short) = bytes.get(..cut.min(CHALLENGE_BYTES - 1)) {
                prop_assert_eq!(CookieMessage::decode(short), None);
            }
            let challenge = CookieMessage::Challenge { session, cookie };
            let bytes = challenge.encode();
            prop_assert_eq!(bytes.len(), CHALLENGE_BYTES);
            prop_assert_eq!(CookieMessage::decode(&bytes), Some(challenge));
            let _ = CookieMessage::decode(&packet);
        }
    }
}
