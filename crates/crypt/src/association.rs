//! What a host keeps of one peer: sessions, the handshake under way, and the peer's incarnation.
//!
//! The rules, which are ours where no source is named:
//! - A host asks when it has a packet for a peer and no session, when the session is due to be renewed, or when the peer reports
//!   that it does not have it. It repeats the ask, then the acceptance, until the peer's first packet confirms the session.
//! - A session seals at once if the offer was made by the incarnation that is known, or if none is; otherwise the peer has
//!   restarted, and nothing is sealed before the peer confirms that it lives and the application has learnt of the restart.
//! - A host accepts acceptances in the order of its offers only, each once: a recorded one cannot bring back an earlier session
//!   (whose counters would begin again) nor an earlier incarnation.
//! - The last three sessions open packets, since packets of earlier ones may be late, and both hosts may have asked at once.

use rackweave_core::{Span, Time};
use rackweave_wire::secure::{Clear, HANDSHAKE_BYTES, Handshake, Kind, NOISE_BYTES};

use crate::handshake::{self, Cipher, Offers, Terms};
use crate::key::Key;
use crate::session::{OpenError, RENEW_PACKETS, Session};

/// The age at which a session is renewed when it is next used: WireGuard's `REKEY_AFTER_TIME`.
pub const RENEW_AFTER: Span = Span::from_secs(120);

/// The interval between asks without an answer: it begins with the first value and doubles up to the second.
pub const RETRY: (Span, Span) = (Span::from_ms(1), Span::from_ms(100));

/// The least interval between handshakes with a peer because of its reports of lost sessions. The value is our choice: a peer that
/// restarts soon after a report that somebody else has provoked is reached again after as long.
pub const LOST_INTERVAL: Span = Span::from_ms(100);

/// Sessions that open packets.
const MAX_SESSIONS: usize = 3;

/// What a handshake needs of this host.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    /// The key that all hosts share.
    pub key: &'a Key,
    /// The ciphers that this host prefers: [`Cipher::preferred`].
    pub ciphers: u8,
    /// This host's incarnation, as it announces it to the peer.
    pub incarnation: u32,
}

impl Local<'_> {
    /// The bytes of a datagram of the handshake, with its tag.
    fn seal(&self, handshake: &Handshake) -> [u8; HANDSHAKE_BYTES] {
        let mut bytes = Vec::with_capacity(HANDSHAKE_BYTES);
        handshake.encode(&mut bytes);
        let tag = self.key.tag(&bytes);
        bytes.extend_from_slice(&tag);
        let mut out = [0; HANDSHAKE_BYTES];
        out.copy_from_slice(&bytes);
        out
    }

    /// The offer that answers an ask (or an acceptance of an offer of an earlier incarnation of this host), if
    /// [`Offers::allow`] allows it. Nothing is kept of it. `address` is the asking host's, and [`Offers::advance`] comes before.
    #[must_use]
    pub fn offer(
        &self,
        now: Time,
        offers: &mut Offers,
        address: &[u8],
        ask: &Handshake,
    ) -> Option<[u8; HANDSHAKE_BYTES]> {
        // This host's own ask, which somebody has returned.
        if ask.from == self.incarnation {
            return None;
        }
        let cipher = Cipher::choose(self.ciphers, ask.ciphers);
        let terms = Terms {
            ciphers: ask.ciphers,
            cipher,
            asker: ask.from,
            offerer: self.incarnation,
            nonce: ask.nonce,
            stamp: now.ticks(),
        };
        let ephemeral = offers.ephemeral(now, address, &terms)?;
        if !offers.allow(now, address) {
            return None;
        }
        let noise = handshake::offer(self.key, &terms, ephemeral).ok()?;
        Some(self.seal(&Handshake {
            kind: Kind::Offer,
            ciphers: ask.ciphers,
            cipher: cipher.bit(),
            from: self.incarnation,
            to: ask.from,
            nonce: ask.nonce,
            stamp: now.ticks(),
            noise,
        }))
    }
}

/// A session that is established.
#[derive(Debug)]
struct Established {
    session: Session,
    since: Time,
    /// This host has asked for it.
    asked: bool,
    /// The peer has reported that it does not have it.
    lost: bool,
}

/// An ask that has no confirmed session yet.
#[derive(Debug)]
struct Asking {
    nonce: u64,
    due: Time,
    gap: Span,
    accepted: Option<Acceptance>,
}

/// An acceptance that the peer has not confirmed.
#[derive(Debug)]
struct Acceptance {
    datagram: [u8; HANDSHAKE_BYTES],
    session: Session,
    /// The incarnation that has made the offer.
    from: u32,
    sent: Time,
}

/// What is to be done about an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing: there is no ask.
    Idle,
    /// Nothing before this time.
    Later(Time),
    /// This datagram is to be sent.
    Send([u8; HANDSHAKE_BYTES]),
    /// The peer has not answered in time; the next packet for it asks again.
    Silent,
}

/// What an acceptance of the peer has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// A new session. The field is whether the peer has restarted.
    New(bool),
    /// The session that it has brought before: its confirmation was lost.
    Again,
}

/// What was sealed in a packet, and whether the peer turned out to have restarted.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// What was sealed.
    pub bytes: &'a [u8],
    /// The packet confirms a session with a new incarnation of the peer.
    pub restarted: bool,
    /// The packet confirms a new session: packets that wait can be sealed.
    pub confirmed: bool,
}

/// Why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// No session has this number.
    #[error("no session has this number")]
    Unknown,
    /// The session has refused it.
    #[error(transparent)]
    Session(#[from] OpenError),
}

/// What a host keeps of one peer.
#[derive(Debug, Default)]
pub struct Association {
    /// The newest first.
    sessions: Vec<Established>,
    asking: Option<Box<Asking>>,
    incarnation: Option<u32>,
    /// The time of the last offer that the peer has accepted.
    concluded: Option<u64>,
    /// When the peer has last reported a lost session, since its last restart.
    reported: Option<Time>,
}

impl Association {
    /// Whether packets can be sealed now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.sealing_established() || self.sealing_accepted()
    }

    fn sealing_established(&self) -> bool {
        self.sessions.first().is_some_and(|it| !it.lost && !it.session.is_exhausted())
    }

    fn sealing_accepted(&self) -> bool {
        let accepted = self.asking.as_ref().and_then(|asking| asking.accepted.as_ref());
        accepted.is_some_and(|accepted| {
            self.incarnation.is_none_or(|known| known == accepted.from)
                && !accepted.session.is_exhausted()
        })
    }

    /// The peer's incarnation, if it has proved one.
    #[must_use]
    pub const fn incarnation(&self) -> Option<u32> {
        self.incarnation
    }

    /// The cipher of the newest session.
    #[must_use]
    pub fn cipher(&self) -> Option<Cipher> {
        self.sessions.first().map(|it| it.session.cipher())
    }

    /// The session that seals packets now; `None` unless [`is_ready`](Self::is_ready).
    pub fn sealing(&mut self) -> Option<&mut Session> {
        if self.sealing_established() {
            return self.sessions.first_mut().map(|it| &mut it.session);
        }
        if self.sealing_accepted() {
            return self.asking.as_mut()?.accepted.as_mut().map(|it| &mut it.session);
        }
        None
    }

    /// Whether the session in use is due to be renewed. The host that has asked for it is due first, so that rarely both ask.
    #[must_use]
    pub fn is_old(&self, now: Time) -> bool {
        let Some(newest) = self.sessions.first() else { return false };
        let (packets, span) = match newest.asked {
            true => (RENEW_PACKETS, RENEW_AFTER),
            false => (RENEW_PACKETS / 4 * 5, Span::from_ticks(RENEW_AFTER.ticks() / 4 * 5)),
        };
        newest.lost || newest.session.sealed() >= packets || now.since(newest.since) >= span
    }

    /// Begins to ask the peer for a session, if this host does not yet. `nonce` is random. Returns whether it has begun.
    pub fn ask(&mut self, now: Time, nonce: impl FnOnce() -> u64) -> bool {
        if self.asking.is_some() {
            return false;
        }
        let nonce = nonce();
        self.asking = Some(Box::new(Asking { nonce, due: now, gap: RETRY.0, accepted: None }));
        true
    }

    /// What is to be sent now to a peer that has not answered or confirmed yet.
    pub fn poll_ask(&mut self, now: Time, local: &Local<'_>) -> Due {
        let Some(asking) = &mut self.asking else { return Due::Idle };
        if asking.due > now {
            return Due::Later(asking.due);
        }
        if asking.gap > RETRY.1 {
            self.asking = None;
            return Due::Silent;
        }
        asking.due = now + asking.gap;
        asking.gap = asking.gap * 2;
        Due::Send(match &mut asking.accepted {
            Some(accepted) => {
                accepted.sent = now;
                accepted.datagram
            }
            None => local.seal(&Handshake {
                kind: Kind::Ask,
                ciphers: local.ciphers,
                cipher: 0,
                from: local.incarnation,
                to: 0,
                nonce: asking.nonce,
                stamp: 0,
                noise: [0; NOISE_BYTES],
            }),
        })
    }

    /// The random number of the ask that has no confirmed session yet. An ask or acceptance with such a number that arrives is
    /// this host's own, which somebody has returned, and is to be dropped whatever address it seems to come from: this host's
    /// incarnation does not show that, since each peer gets a different one.
    #[must_use]
    pub fn asking(&self) -> Option<u64> {
        self.asking.as_ref().map(|asking| asking.nonce)
    }

    /// When [`poll_ask`](Self::poll_ask) has something to do.
    #[must_use]
    pub fn ask_due(&self) -> Option<Time> {
        self.asking.as_ref().map(|asking| asking.due)
    }

    /// Handles an offer whose tag is right; returns the acceptance to be sent, behind which packets may follow if
    /// [`is_ready`](Self::is_ready). `ephemeral` is random.
    pub fn on_offer(
        &mut self,
        now: Time,
        local: &Local<'_>,
        offer: &Handshake,
        ephemeral: impl FnOnce() -> [u8; 32],
    ) -> Option<[u8; HANDSHAKE_BYTES]> {
        let asking = self.asking.as_mut()?;
        let is_own = offer.from == local.incarnation;
        if offer.nonce != asking.nonce || offer.to != local.incarnation || is_own {
            return None;
        }
        // The answer to a repeated ask. Another incarnation means that the acceptance has found the peer restarted.
        if asking.accepted.as_ref().is_some_and(|accepted| accepted.from == offer.from) {
            return None;
        }
        let terms = Terms::new(
            (local.ciphers, offer.cipher),
            (local.incarnation, offer.from),
            offer.nonce,
            offer.stamp,
        )?;
        let (noise, session) =
            handshake::accept(local.key, &terms, &offer.noise, ephemeral()).ok()?;
        let datagram = local.seal(&Handshake {
            kind: Kind::Accept,
            from: local.incarnation,
            to: offer.from,
            ciphers: local.ciphers,
            noise,
            ..*offer
        });
        let replaced =
            asking.accepted.replace(Acceptance { datagram, session, from: offer.from, sent: now });
        // The peer's earlier incarnation may have executed what was sealed for it, although it has confirmed nothing. So this one
        // is a restart, and nothing is sealed for it before it confirms and the application has learnt of that.
        if let Some(earlier) = replaced.filter(|earlier| earlier.session.sealed() > 0) {
            self.incarnation.get_or_insert(earlier.from);
        }
        (asking.due, asking.gap) = (now + RETRY.0, RETRY.0 * 2);
        Some(datagram)
    }

    /// Handles an acceptance whose tag is right, from this address. [`Offers::advance`] comes before. `None`: it is refused.
    pub fn on_accept(
        &mut self,
        now: Time,
        local: &Local<'_>,
        offers: &mut Offers,
        address: &[u8],
        accept: &Handshake,
    ) -> Option<Accepted> {
        if accept.to != local.incarnation || accept.from == local.incarnation {
            return None;
        }
        if let Some(last) = self.concluded
            && accept.stamp <= last
        {
            let again = accept.stamp == last && self.incarnation == Some(accept.from);
            return (again && !self.sessions.is_empty()).then_some(Accepted::Again);
        }
        let terms = Terms::new(
            (accept.ciphers, accept.cipher),
            (accept.from, local.incarnation),
            accept.nonce,
            accept.stamp,
        )?;
        let ephemeral = offers.ephemeral(now, address, &terms)?;
        if !offers.allow(now, address) {
            return None;
        }
        let session = handshake::conclude(local.key, &terms, ephemeral, &accept.noise).ok()?;
        self.concluded = Some(accept.stamp);
        let restarted = self.establish(now, session, accept.from, false);
        // An ask of this host for the same purpose ends; its own acceptance may already be in use at the peer.
        if let Some(accepted) = self.asking.take().and_then(|asking| asking.accepted)
            && accepted.from == accept.from
        {
            let (session, since) = (accepted.session, now);
            self.sessions.push(Established { session, since, asked: true, lost: false });
            self.sessions.truncate(MAX_SESSIONS);
        }
        Some(Accepted::New(restarted))
    }

    /// Makes a session the newest one; returns whether its peer has restarted, in which case earlier ones are dropped.
    fn establish(&mut self, now: Time, session: Session, from: u32, asked: bool) -> bool {
        let restarted = self.incarnation.is_some_and(|known| known != from);
        if restarted {
            self.sessions.clear();
            // It may restart again at once.
            self.reported = None;
        }
        self.incarnation = Some(from);
        self.sessions.truncate(MAX_SESSIONS - 1);
        self.sessions.insert(0, Established { session, since: now, asked, lost: false });
        restarted
    }

    /// Opens a sealed packet in place. `clear` are its readable bytes, `body` the sealed ones with their tag.
    ///
    /// # Errors
    /// See [`Unopened`].
    pub fn open<'a>(
        &mut self,
        now: Time,
        fields: Clear,
        clear: &[u8],
        body: &'a mut [u8],
    ) -> Result<Opened<'a>, Unopened> {
        let id = fields.session;
        if let Some(it) = self.sessions.iter_mut().find(|it| it.session.id() == id) {
            let bytes = it.session.open(fields.counter, clear, body)?;
            // Whoever seals in a session has it. A report of the contrary may have been asked for by somebody else.
            it.lost = false;
            return Ok(Opened { bytes, restarted: false, confirmed: false });
        }
        let accepted = self.asking.as_mut().and_then(|asking| asking.accepted.as_mut());
        let Some(accepted) = accepted.filter(|accepted| accepted.session.id() == id) else {
            return Err(Unopened::Unknown);
        };
        let bytes = accepted.session.open(fields.counter, clear, body)?;
        let confirmed = self.asking.take().and_then(|asking| asking.accepted);
        let restarted = confirmed
            .is_some_and(|accepted| self.establish(now, accepted.session, accepted.from, true));
        Ok(Opened { bytes, restarted, confirmed: true })
    }

    /// Handles the peer's report, whose tag is right, that it does not have a session. Returns whether this host should ask.
    ///
    /// Anyone can have such a report made, by sending a recorded packet from another address, so only one in [`LOST_INTERVAL`]
    /// counts, unless the peer has proved a restart in between. After a real loss the next packet causes another report.
    pub fn on_lost(&mut self, now: Time, session: u32) -> bool {
        if let Some(asking) = &mut self.asking
            && let Some(accepted) = &asking.accepted
            && accepted.session.id() == session
        {
            // A packet has overtaken the acceptance, or that was lost.
            asking.due = asking.due.min((accepted.sent + RETRY.0).max(now));
            return false;
        }
        match self.sessions.first_mut() {
            Some(newest) if newest.session.id() == session => {
                if !newest.lost {
                    if self.reported.is_some_and(|at| now.since(at) < LOST_INTERVAL) {
                        return false;
                    }
                    self.reported = Some(now);
                    newest.lost = true;
                }
                true
            }
            _ => false,
        }
    }
}
