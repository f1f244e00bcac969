//! Resumption: a ticket that a host has handed out lets the peer send packets together with its next ask, before any
//! answer (0-RTT).
//!
//! A *ticket* is a name; its *secret* is a keyed hash of the name and of the address that it was issued to, with a key that is
//! random for each start of the issuer. So the issuer stores nothing about tickets, a ticket names its holder's address, as a
//! token of RFC 9000, section 8.1.3, does, and tickets of an earlier start are refused: their key is gone.
//!
//! A *resumption* is an ask with a ticket, the ticket's age and random numbers, and a proof of the secret. The keys of the *early
//! session* are derived from the secret, the key that all hosts share, and all of these bytes. Against replays (RFC 8446,
//! section 8):
//! - the age must be right to [`FRESH`] (section 8.3), so that a resumption which somebody held back is of no use later;
//! - a resumption is accepted once: [`Tickets`] remembers its proof for longer than it is fresh (section 8.2). If there is no
//!   more room to remember one, it is refused.
//!
//! What is refused goes on as an ask.

use core::fmt;
use std::collections::BTreeSet;

use rackweave_core::{Span, Time};
use rackweave_wire::secure::{
    Handshake, MAC_BYTES, PROVEN_BYTES, Resumption, SECRET_BYTES, TICKET_BYTES, Ticket as Name,
};

use crate::handshake::Cipher;
use crate::key::Key;
use crate::session::Session;

/// How long a ticket can be used. Early packets are not forward secret for as long: the value is our choice, far below the
/// seven days of RFC 8446, section 4.6.1.
pub const TICKET_LIFETIME: Span = Span::from_secs(3600);

/// How much a ticket's age may differ between the two hosts, in either direction. RFC 8446, section 8.3, proposes a window of
/// ten seconds; the clocks of hosts may drift apart by 0.36 s in an hour (100 ppm).
pub const FRESH: Span = Span::from_secs(5);

/// The interval at which the register of resumptions forgets, after one more interval. A resumption can be accepted within twice
/// [`FRESH`] of its first acceptance, which is not longer.
const STRIKE_EPOCH: Span = Span::from_secs(10);

const _: () = assert!(2 * FRESH.ticks() <= STRIKE_EPOCH.ticks());

/// Resumptions that are accepted in one interval at most: 6553 a second, 2 MiB. The value is our choice.
pub const STRIKES: usize = 1 << 16;

/// Packets that a host sends in an early session at most, which bounds what a resumption can bring (as `max_early_data_size` of
/// RFC 8446, section 4.2.10). The value is our choice: at full size they fill the windows of our transports at 10 Gbps.
pub const EARLY_PACKETS: u64 = 128;

/// How long an early session is used. The handshake in parallel with it takes a round trip. Together with [`FRESH`] it
/// bounds how late a packet that somebody holds back can be opened.
pub const EARLY_LIFETIME: Span = Span::from_secs(5);

/// A ticket that a host has received, with its secret. [`fmt::Debug`] does not print that.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    name: Name,
    secret: [u8; SECRET_BYTES],
    cipher: Cipher,
    /// The time of its receipt in milliseconds since 1970, by this host's clock.
    received_ms: u64,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Ticket {
    /// Bytes of [`Ticket::to_bytes`].
    pub const BYTES: usize = TICKET_BYTES + SECRET_BYTES + 1 + 8;

    /// A ticket that was received in a session with this cipher. `wall_ms` is the time since 1970.
    #[must_use]
    pub const fn new(name: Name, secret: [u8; SECRET_BYTES], cipher: Cipher, wall_ms: u64) -> Self {
        Self { name, secret, cipher, received_ms: wall_ms }
    }

    /// The time of its receipt in milliseconds since 1970.
    #[must_use]
    pub const fn received_ms(&self) -> u64 {
        self.received_ms
    }

    /// Milliseconds since its receipt; `None` if it has expired, or the clock was set back.
    #[must_use]
    pub fn age_ms(&self, wall_ms: u64) -> Option<u32> {
        let age = wall_ms.checked_sub(self.received_ms)?;
        (age < TICKET_LIFETIME.as_ms()).then(|| u32::try_from(age).ok())?
    }

    /// Its bytes with the secret, to be kept where only this host's user can read.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        self.name.encode(&mut bytes);
        bytes.extend_from_slice(&self.secret);
        bytes.push(self.cipher.bit());
        bytes.extend_from_slice(&self.received_ms.to_be_bytes());
        let mut out = [0; Self::BYTES];
        out.copy_from_slice(&bytes);
        out
    }

    /// The ticket with these bytes; `None` if there is none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (name, rest) = bytes.split_first_chunk::<TICKET_BYTES>()?;
        let (secret, rest) = rest.split_first_chunk::<SECRET_BYTES>()?;
        let (&[cipher], received) = rest.split_first_chunk::<1>()?;
        Some(Self {
            name: Name::decode(name),
            secret: *secret,
            cipher: Cipher::from_bit(cipher)?,
            received_ms: u64::from_be_bytes(received.try_into().ok()?),
        })
    }

    /// The datagram, without its tag, that resumes with this ticket, and the session of the packets behind it. `ask` is the ask
    /// in whose place it is sent, and `random` is random. `None` if the ticket has expired.
    pub(crate) fn resume(
        &self,
        key: &Key,
        wall_ms: u64,
        ask: &Handshake,
        random: u64,
    ) -> Option<(Handshake, Session)> {
        let age_ms = self.age_ms(wall_ms)?;
        let mut resumption =
            Resumption { ticket: self.name, age_ms, random, proof: [0; MAC_BYTES] };
        let mut resume =
            Handshake { cipher: self.cipher.bit(), noise: resumption.to_bytes(), ..*ask };
        let proven = proven(&resume);
        resumption.proof = proof(&self.secret, &proven);
        resume.noise = resumption.to_bytes();
        Some((resume, session(key, &self.secret, self.cipher, &proven, true)))
    }
}

/// The bytes of a resumption that its proof covers.
fn proven(resume: &Handshake) -> [u8; PROVEN_BYTES] {
    let mut bytes = Vec::with_capacity(PROVEN_BYTES + MAC_BYTES);
    resume.encode(&mut bytes);
    let mut proven = [0; PROVEN_BYTES];
    proven.copy_from_slice(&bytes[..PROVEN_BYTES]);
    proven
}

fn proof(secret: &[u8; SECRET_BYTES], proven: &[u8; PROVEN_BYTES]) -> [u8; MAC_BYTES] {
    let mut proof = [0; MAC_BYTES];
    proof.copy_from_slice(&blake3::keyed_hash(secret, proven).as_bytes()[..MAC_BYTES]);
    proof
}

/// The early session of a resumption. Its keys depend on every byte that the proof covers, so that two resumptions have the same
/// keys only if they have the same proof, which is accepted once.
fn session(
    key: &Key,
    secret: &[u8; SECRET_BYTES],
    cipher: Cipher,
    proven: &[u8; PROVEN_BYTES],
    asked: bool,
) -> Session {
    let mut hasher = blake3::Hasher::new_keyed(key.early());
    hasher.update(secret).update(proven);
    let (mut id, mut first, mut second) = ([0; 4], [0; 32], [0; 32]);
    let mut output = hasher.finalize_xof();
    output.fill(&mut id);
    output.fill(&mut first);
    output.fill(&mut second);
    let (seal, open) = if asked { (first, second) } else { (second, first) };
    Session::new(u32::from_be_bytes(id), cipher, &seal, &open)
}

/// Why a resumption was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotResumed {
    /// The ticket has expired, was issued by another start of this host or to another address, or its use was changed.
    #[error("the ticket is not one of this start of the host for this address, or has expired")]
    NoTicket,
    /// The ticket's age does not fit this host's clock: the resumption was held back.
    #[error("the resumption is late, or a clock was set")]
    Late,
    /// It was accepted before.
    #[error("the resumption was accepted before")]
    Repeated,
    /// Too many were accepted of late.
    #[error("no more resumptions can be remembered now")]
    Full,
    /// Another incarnation of the peer is known, or it has a session.
    #[error("another incarnation of the peer is known, or it needs no resumption")]
    Known,
}

/// The register of a time's resumptions (a strike register of RFC 8446, section 8.2).
#[derive(Debug, Default)]
struct Strikes {
    epoch: u64,
    present: BTreeSet<[u8; MAC_BYTES]>,
    before: BTreeSet<[u8; MAC_BYTES]>,
}

impl Strikes {
    /// Notes a proof; an error if it was noted before, or there is no room.
    fn strike(&mut self, now: Time, proof: [u8; MAC_BYTES]) -> Result<(), NotResumed> {
        let epoch = now.ticks() / STRIKE_EPOCH.ticks();
        if epoch != self.epoch {
            let last = std::mem::take(&mut self.present);
            self.before = if epoch == self.epoch + 1 { last } else { BTreeSet::new() };
            self.epoch = epoch;
        }
        if self.present.contains(&proof) || self.before.contains(&proof) {
            return Err(NotResumed::Repeated);
        }
        if self.present.len() >= STRIKES {
            return Err(NotResumed::Full);
        }
        self.present.insert(proof);
        Ok(())
    }
}

/// What a host needs to issue tickets and to accept resumptions: a key for each [`TICKET_LIFETIME`], with the previous
/// one kept for as long, and the register.
#[derive(Default)]
pub struct Tickets {
    epoch: u64,
    present: Option<[u8; 32]>,
    before: Option<[u8; 32]>,
    strikes: Strikes,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Tickets {
    /// Erases keys whose time is over, and takes a new one from `random` if the present time has none.
    pub fn advance(&mut self, now: Time, random: impl FnOnce() -> [u8; 32]) {
        let epoch = now.ticks() / TICKET_LIFETIME.ticks();
        if self.present.is_some() && epoch == self.epoch {
            return;
        }
        self.before = self.present.take().filter(|_| epoch == self.epoch + 1);
        self.present = Some(random());
        self.epoch = epoch;
    }

    /// Issues a ticket to the peer at an address. `random` is random, and [`advance`](Self::advance) comes before.
    #[must_use]
    pub fn issue(
        &self,
        now: Time,
        address: &[u8],
        random: [u8; 12],
    ) -> Option<(Name, [u8; SECRET_BYTES])> {
        let name = Name { stamp: now.ticks(), random };
        Some((name, secret(self.present.as_ref()?, &name, address)))
    }

    /// Accepts a resumption from an address, once; returns the early session. [`advance`](Self::advance) comes before.
    ///
    /// # Errors
    /// See [`NotResumed`].
    pub(crate) fn accept(
        &mut self,
        now: Time,
        key: &Key,
        address: &[u8],
        resume: &Handshake,
    ) -> Result<Session, NotResumed> {
        let Resumption { ticket, age_ms, proof: theirs, .. } =
            Resumption::from_bytes(&resume.noise);
        let cipher = Cipher::from_bit(resume.cipher).ok_or(NotResumed::NoTicket)?;
        let age = now.ticks().checked_sub(ticket.stamp).ok_or(NotResumed::NoTicket)?;
        if age >= TICKET_LIFETIME.ticks() {
            return Err(NotResumed::NoTicket);
        }
        let epoch = self.epoch.checked_sub(ticket.stamp / TICKET_LIFETIME.ticks());
        let master = match epoch {
            Some(0) => self.present.as_ref(),
            Some(1) => self.before.as_ref(),
            _ => None,
        };
        let secret = secret(master.ok_or(NotResumed::NoTicket)?, &ticket, address);
        let proven = proven(resume);
        let ours = proof(&secret, &proven);
        // In constant time.
        if ours.iter().zip(theirs).fold(0, |differ, (a, b)| differ | (a ^ b)) != 0 {
            return Err(NotResumed::NoTicket);
        }
        let claimed = Span::from_ms(u64::from(age_ms)).ticks();
        if claimed.abs_diff(age) > FRESH.ticks() {
            return Err(NotResumed::Late);
        }
        self.strikes.strike(now, ours)?;
        Ok(session(key, &secret, cipher, &proven, false))
    }
}

/// The secret of a ticket. The ticket has a fixed length, so that no two inputs are the same bytes.
fn secret(master: &[u8; 32], ticket: &Name, address: &[u8]) -> [u8; SECRET_BYTES] {
    let mut name = Vec::with_capacity(TICKET_BYTES);
    ticket.encode(&mut name);
    let mut hasher = blake3::Hasher::new_keyed(master);
    hasher.update(&name).update(address);
    *hasher.finalize().as_bytes()
}
