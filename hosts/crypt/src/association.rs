//! What a host keeps of one peer: sessions, the handshake under way, and the peer's incarnation.
//!
//! The rules; a rule without a source is Rackweave's:
//! - A host asks when it has a packet for a peer and no session, when the session is due to be renewed, or when the peer reports
//!   that it does not have it. It repeats the ask, then the acceptance, until the peer's first packet confirms the session.
//! - A session seals at once if the offer was made by the incarnation that is known, or if none is; otherwise the peer has
//!   restarted, and nothing is sealed before the peer confirms that it lives and the application has learnt of the restart.
//! - A host accepts acceptances in the order of its offers only, each once: a recorded one cannot bring back an earlier session
//!   (whose counters would begin again) nor an earlier incarnation.
//! - The last three sessions open packets, since packets of earlier ones may be late, and both hosts may have asked at once.
//! - A host that has a ticket of the peer may resume together with an ask. The early session is used only until there
//!   is another one that seals, and never makes a peer known that somebody else could pretend: see
//!   [`Association::on_resume`].

use rackweave_core::{Span, Time};
use rackweave_wire::secure::{
    Clear, HANDSHAKE_BYTES, Handshake, KNOWN, Kind, NOISE_BYTES, RESUMED,
};

use crate::handshake::{self, Cipher, Offers, Terms};
use crate::key::Key;
use crate::resume::{EARLY_LIFETIME, EARLY_PACKETS, NotResumed, Ticket, Tickets};
use crate::session::{OpenError, RENEW_PACKETS, Session};

/// The age at which a session is renewed when it is next used: WireGuard's `REKEY_AFTER_TIME`.
pub const RENEW_AFTER: Span = Span::from_secs(120);

/// The interval between asks without an answer: it begins with the first value and doubles up to the second.
pub const RETRY: (Span, Span) = (Span::from_ms(1), Span::from_ms(100));

/// The least interval between handshakes with a peer because of its reports of lost sessions. The value is our choice: a peer that
/// restarts soon after a report that somebody else has provoked is reached again after as long.
pub const LOST_INTERVAL: Span = Span::from_ms(100);

/// Resumptions that are sent in place of an ask. A host that knows no resumptions answers the asks that follow.
const RESUMPTIONS: u32 = 2;

/// Bits of a handshake's ciphers that name none.
const FLAGS: u8 = KNOWN | RESUMED;

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
    /// An ask with this random number.
    const fn ask(&self, nonce: u64) -> Handshake {
        Handshake {
            kind: Kind::Ask,
            ciphers: self.ciphers,
            cipher: 0,
            from: self.incarnation,
            to: 0,
            nonce,
            stamp: 0,
            noise: [0; NOISE_BYTES],
        }
    }

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
    /// `flags` is what [`Association::flags`] gives for the peer at the address, or 0.
    #[must_use]
    pub fn offer(
        &self,
        now: Time,
        offers: &mut Offers,
        address: &[u8],
        ask: &Handshake,
        flags: u8,
    ) -> Option<[u8; HANDSHAKE_BYTES]> {
        // This host's own ask, which somebody has returned.
        if ask.from == self.incarnation {
            return None;
        }
        let cipher = Cipher::choose(self.ciphers, ask.ciphers);
        let ciphers = ask.ciphers & !FLAGS | flags & FLAGS;
        let terms = Terms {
            ciphers,
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
            ciphers,
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
    /// What is sent in place of the next asks, and how often.
    resume: Option<([u8; HANDSHAKE_BYTES], u32)>,
}

/// The session of a resumption.
#[derive(Debug)]
struct EarlySession {
    session: Session,
    /// The number of the ask.
    nonce: u64,
    since: Time,
    /// This host has resumed.
    asked: bool,
    /// Whether the peer has accepted it, once its offer says so. The host that has accepted it knows.
    accepted: Option<bool>,
    /// The peer has reported that it does not have it.
    lost: bool,
}

/// What may be sealed in a session of a resumption, which is not forward secret and, at the host that has resumed, may be opened
/// by a peer that has no other proof of being addressed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Early {
    /// There is no such session, or it may not be used.
    No,
    /// This host has resumed: packets of idempotent messages.
    Asked,
    /// The peer has resumed: packets that answer.
    Answers,
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
    early: Option<Box<EarlySession>>,
    /// A packet of the peer was opened in a session of this host's resumption, and the peer has not proved an incarnation since.
    heard_early: bool,
    /// A ticket of the incarnation that is known or, if none is, of a peer that this host has known before.
    ticket: Option<Box<Ticket>>,
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

    /// Drops the sessions of a peer with which nothing was exchanged for long, and returns their number. What refuses recorded handshakes
    /// stays. The next packet in either direction begins a handshake, as after a loss of the session.
    pub fn release(&mut self) -> usize {
        if self.asking.is_some() {
            return 0;
        }
        self.early = None;
        std::mem::take(&mut self.sessions).len()
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
        self.expire_early(now);
        let nonce = nonce();
        let asking = Asking { nonce, due: now, gap: RETRY.0, accepted: None, resume: None };
        self.asking = Some(Box::new(asking));
        true
    }

    /// Remembers a ticket of the peer, to resume with.
    pub fn set_ticket(&mut self, ticket: Ticket) {
        self.ticket = Some(Box::new(ticket));
    }

    /// The ticket of the peer, if there is one.
    #[must_use]
    pub fn ticket(&self) -> Option<&Ticket> {
        self.ticket.as_deref()
    }

    /// Resumes together with the ask under way, if there is a ticket, no session and no offer yet. `wall_ms` is the
    /// time since 1970, and `random` is random. Returns whether [`seal_early`](Self::seal_early) gives a session now;
    /// the datagram that [`poll_ask`](Self::poll_ask) returns must be sent before its packets.
    pub fn resume(
        &mut self,
        now: Time,
        local: &Local<'_>,
        wall_ms: u64,
        random: impl FnOnce() -> u64,
    ) -> bool {
        if self.is_ready() {
            return false;
        }
        let (Some(asking), Some(ticket)) = (&mut self.asking, &self.ticket) else { return false };
        if asking.accepted.is_some() || asking.resume.is_some() {
            return false;
        }
        let ask = Handshake { kind: Kind::Resume, ..local.ask(asking.nonce) };
        let Some((resume, session)) = ticket.resume(local.key, wall_ms, &ask, random()) else {
            self.ticket = None;
            return false;
        };
        asking.resume = Some((local.seal(&resume), RESUMPTIONS));
        asking.due = now;
        let nonce = asking.nonce;
        self.early = Some(Box::new(EarlySession {
            session,
            nonce,
            since: now,
            asked: true,
            accepted: None,
            lost: false,
        }));
        true
    }

    /// What may be sealed in [`seal_early`](Self::seal_early) now.
    #[must_use]
    pub fn early(&self, now: Time) -> Early {
        match &self.early {
            Some(early) if now.since(early.since) >= EARLY_LIFETIME => Early::No,
            Some(early) if !early.asked => match early.session.is_exhausted() {
                true => Early::No,
                false => Early::Answers,
            },
            Some(early) => {
                let waits = self.asking.as_ref().is_some_and(|asking| asking.accepted.is_none());
                let usable = waits
                    && !early.lost
                    && early.accepted.is_none()
                    && early.session.sealed() < EARLY_PACKETS;
                if usable { Early::Asked } else { Early::No }
            }
            None => Early::No,
        }
    }

    /// The session of a resumption; `None` if [`early`](Self::early) is [`Early::No`].
    pub fn seal_early(&mut self, now: Time) -> Option<&mut Session> {
        match self.early(now) {
            Early::No => None,
            Early::Asked | Early::Answers => self.early.as_mut().map(|early| &mut early.session),
        }
    }

    /// When the session of the last resumption ends, in either direction; `None` if there is none. Then [`expire_early`](Self::expire_early)
    /// is to be called.
    #[must_use]
    pub fn early_until(&self) -> Option<Time> {
        self.early.as_ref().map(|early| early.since + EARLY_LIFETIME)
    }

    /// Drops the session of a resumption with its keys if its time is over.
    pub fn expire_early(&mut self, now: Time) {
        self.early.take_if(|early| now.since(early.since) >= EARLY_LIFETIME);
    }

    /// Whether the peer has accepted this host's last resumption, as its offer says.
    #[must_use]
    pub fn is_resumed(&self) -> Option<bool> {
        self.early.as_ref().filter(|early| early.asked)?.accepted
    }

    /// Handles a resumption whose tag is right, from this address, which leaves out the port: a host that restarts gets another
    /// one. [`Tickets::advance`] comes before.
    ///
    /// A resumption is no answer to anything of this host's, so that someone on the path may have held it back, or may send that of
    /// one process from the port of another. So it never replaces a known incarnation, which would drop what the transport
    /// remembers of that one's calls. The rule is Rackweave's.
    ///
    /// # Errors
    /// See [`NotResumed`]. It is to be answered as an ask then, as it is otherwise.
    pub fn on_resume(
        &mut self,
        now: Time,
        local: &Local<'_>,
        tickets: &mut Tickets,
        address: &[u8],
        resume: &Handshake,
    ) -> Result<(), NotResumed> {
        let is_other = self.incarnation.is_some_and(|known| known != resume.from);
        // Both have resumed at once: the one that is kept is this host's, whose answers may be under way.
        let crosses = self.early(now) == Early::Asked;
        if resume.from == local.incarnation || is_other || self.is_ready() || crosses {
            return Err(NotResumed::Known);
        }
        let session = tickets.accept(now, local.key, address, resume)?;
        self.incarnation = Some(resume.from);
        self.early = Some(Box::new(EarlySession {
            session,
            nonce: resume.nonce,
            since: now,
            asked: false,
            accepted: Some(true),
            lost: false,
        }));
        Ok(())
    }

    /// What an offer to this ask says about this host's state of the peer.
    #[must_use]
    pub fn flags(&self, ask: &Handshake) -> u8 {
        if self.incarnation != Some(ask.from) {
            return 0;
        }
        let early = self.early.as_ref().filter(|early| !early.asked);
        let resumed = early.is_some_and(|early| early.nonce == ask.nonce);
        KNOWN | if resumed { RESUMED } else { 0 }
    }

    /// Drops what belongs to an earlier incarnation of the peer.
    fn forget_sessions(&mut self) {
        self.sessions.clear();
        // It may restart again at once.
        self.reported = None;
        (self.early, self.ticket) = (None, None);
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
        Due::Send(match (&mut asking.accepted, &mut asking.resume) {
            (Some(accepted), _) => {
                accepted.sent = now;
                accepted.datagram
            }
            (None, Some((datagram, left))) if *left > 0 => {
                *left -= 1;
                *datagram
            }
            (None, _) => local.seal(&local.ask(asking.nonce)),
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
        let ciphers = local.ciphers | offer.ciphers & FLAGS;
        let terms = Terms::new(
            (ciphers, offer.cipher),
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
            ciphers,
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
        if let Some(early) = self.early.as_mut().filter(|early| early.asked) {
            let resumed = ciphers & RESUMED != 0;
            early.accepted.get_or_insert(resumed);
            if !resumed {
                self.ticket = None;
            }
        }
        // Likewise for an incarnation that has answered in the early session, and that this offer does not come from, since it
        // knows this host. Its number was not learnt, and only has to differ.
        if self.heard_early && ciphers & KNOWN == 0 {
            self.incarnation.get_or_insert(!offer.from);
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
            self.forget_sessions();
        }
        (self.incarnation, self.heard_early) = (Some(from), false);
        self.early.take_if(|early| early.accepted == Some(false));
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
            return self.open_early(now, fields, clear, body);
        };
        let bytes = accepted.session.open(fields.counter, clear, body)?;
        let confirmed = self.asking.take().and_then(|asking| asking.accepted);
        let restarted = confirmed
            .is_some_and(|accepted| self.establish(now, accepted.session, accepted.from, true));
        Ok(Opened { bytes, restarted, confirmed: true })
    }

    fn open_early<'a>(
        &mut self,
        now: Time,
        fields: Clear,
        clear: &[u8],
        body: &'a mut [u8],
    ) -> Result<Opened<'a>, Unopened> {
        let early = self.early.as_mut().filter(|early| early.session.id() == fields.session);
        let Some(early) = early.filter(|early| now.since(early.since) < EARLY_LIFETIME) else {
            return Err(Unopened::Unknown);
        };
        if !early.asked && fields.counter >= EARLY_PACKETS {
            return Err(Unopened::Session(OpenError::Replayed));
        }
        let bytes = early.session.open(fields.counter, clear, body)?;
        // Whoever answers is the start that has issued the ticket.
        self.heard_early = early.asked && self.incarnation.is_none();
        Ok(Opened { bytes, restarted: false, confirmed: false })
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
        if let Some(early) = self.early.as_mut().filter(|early| early.session.id() == session) {
            early.lost = true;
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
