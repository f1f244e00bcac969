//! Many associations: what a host does with the datagrams of its peers and of strangers before and after there is a session.
//!
//! The table holds what all associations share, and whom this host has asked. The associations themselves lie where the host keeps
//! what else it knows of a peer ([`Peers`]), so that a packet of an established session needs no look-up for its association alone,
//! and whoever forgets a peer forgets its sessions.

use std::collections::VecDeque;
use std::net::SocketAddr;

use rackweave_core::Time;
use rackweave_wire::secure::{
    self as wire, CLEAR_BYTES, Clear, Datagram, HANDSHAKE_BYTES, Handshake, Kind, LOST_BYTES,
    NOTICE_BYTES, Notice,
};

use crate::association::{Accepted, Association, Due, Local};
use crate::handshake::{Cipher, Offers, address_bytes};
use crate::key::Key;

/// Where a host keeps the association with each peer.
pub trait Peers<K> {
    /// The association with a peer, if it is known.
    fn association(&self, peer: K) -> Option<&Association>;

    /// The same, to be changed, and this host's incarnation as it announces it to the peer.
    fn association_mut(&mut self, peer: K) -> Option<(&mut Association, u32)>;
}

/// Whose datagram is handled.
#[derive(Clone, Copy, Debug)]
pub struct Sender<K> {
    /// The peer at the address, if it is known.
    pub peer: Option<K>,
    /// The address.
    pub address: SocketAddr,
    /// This host's incarnation, as it announces it to a host at the address.
    pub ours: u32,
}

/// Why a datagram of [`rackweave_wire::secure`] is not handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is none.
    Malformed,
    /// It is of this kind, and its tag is not that of this host's key.
    Forged(Kind),
    /// This host has no key.
    Keyless,
}

impl Refused {
    /// The notice that is to be sent back. A notice is never answered by one, and only an ask shows that its sender wants a session.
    #[must_use]
    pub const fn answer(self) -> Option<Notice> {
        match self {
            Self::Keyless => Some(Notice::NoKey),
            Self::Forged(Kind::Ask) => Some(Notice::OtherKey),
            Self::Forged(_) | Self::Malformed => None,
        }
    }
}

/// Reads a datagram at a host with this key, or without one. Tags of the handshake are checked, sealed packets are not opened, and a
/// notice proves nothing.
///
/// # Errors
/// See [`Refused`].
#[inline] // Each packet is read by it.
pub fn read(key: Option<&Key>, bytes: &[u8]) -> Result<Datagram, Refused> {
    let read = wire::decode(bytes).map_err(|_| Refused::Malformed)?;
    let kind = match (&read, key) {
        (Datagram::Notice(_), _) | (Datagram::Sealed(_), Some(_)) => return Ok(read),
        (_, None) => return Err(Refused::Keyless),
        (Datagram::Handshake(read), Some(_)) => read.kind,
        (Datagram::Lost(_), Some(_)) => Kind::Lost,
    };
    match key.is_some_and(|key| key.verify(bytes)) {
        true => Ok(read),
        false => Err(Refused::Forged(kind)),
    }
}

/// The bytes of a notice.
#[must_use]
pub fn notice(notice: Notice) -> [u8; NOTICE_BYTES] {
    let mut bytes = Vec::with_capacity(NOTICE_BYTES);
    wire::encode_notice(notice, &mut bytes);
    let mut out = [0; NOTICE_BYTES];
    out.copy_from_slice(&bytes);
    out
}

/// How the keys of this host and of a peer differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum KeyMismatch {
    /// This host has a key, and the peer has none.
    #[error("it has no key, and this host has one")]
    PeerHasNone,
    /// The peer has a key, and this host has none.
    #[error("it requires a key, and this host has none")]
    PeerHasOne,
    /// Both have keys, which differ.
    #[error("it has another key than this host")]
    Another,
}

impl KeyMismatch {
    /// What a peer's notice says; `None` if it does not fit. Anyone could have sent the notice: it explains why the peer is silent, and
    /// proves nothing.
    #[must_use]
    pub const fn of(notice: Notice, has_key: bool) -> Option<Self> {
        match (notice, has_key) {
            (Notice::NoKey, true) => Some(Self::PeerHasNone),
            (Notice::OtherKey, true) => Some(Self::Another),
            (Notice::NeedsKey, false) => Some(Self::PeerHasOne),
            _ => None,
        }
    }
}

/// Packets that wait until there is a session with their peer, at most `MOST`.
#[derive(Debug)]
pub struct Held<T, const MOST: usize>(VecDeque<T>);

impl<T, const MOST: usize> Default for Held<T, MOST> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T, const MOST: usize> Held<T, MOST> {
    /// Holds a packet; returns false if there are too many, and drops it. For packets of a sequence whose first ones
    /// are of use without the later ones.
    pub fn push(&mut self, packet: T) -> bool {
        let has_room = self.0.len() < MOST;
        if has_room {
            self.0.push_back(packet);
        }
        has_room
    }

    /// Holds a packet in place of the oldest one if there are too many. For repeated packets: the last ones say most.
    pub fn push_newest(&mut self, packet: T) {
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back(packet);
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Packets for which there is room without more memory.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Drops those for which this returns false.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.0.retain(keep);
    }

    /// Takes all, the first first, and their room.
    pub fn take(&mut self) -> VecDeque<T> {
        std::mem::take(&mut self.0)
    }
}

/// What a message of the handshake has brought.
#[derive(Debug)]
pub enum Handled {
    /// Nothing: it is this host's own, which somebody has returned.
    Own,
    /// Nothing: it is an offer of a host that is not known.
    Stranger,
    /// Nothing: it is late, was handled before, or nobody has asked for it.
    Late,
    /// Its sender wants a session. The offer is to be sent to it, unless its address has had as many as [`Offers::allow`] allows.
    Asked(Option<[u8; HANDSHAKE_BYTES]>),
    /// The peer has made an offer. This acceptance is to be sent to it, and packets may follow if [`Association::is_ready`].
    Offered([u8; HANDSHAKE_BYTES]),
    /// The peer has proved that it receives at its address. If it was not known, its association is new.
    Accepted(Accepted, Option<Box<Association>>),
}

/// What the associations of a host have in common, and which peers it has asked. `K` is the number of a peer.
#[derive(Debug)]
pub struct Associations<K> {
    key: Key,
    ciphers: u8,
    offers: Offers,
    /// Offers say what this host knows of the peer.
    resumes: bool,
    /// Peers that were asked and have not confirmed, each with the number of the ask.
    asking: Vec<(K, u64)>,
    /// The packet that is being opened.
    opened: Vec<u8>,
}

impl<K: Copy> Associations<K> {
    /// For a host with this key, whose processor has instructions for AES or not. `resumes`: peers may resume, and learn from offers
    /// whether that was accepted ([`Association::flags`]).
    #[must_use]
    pub fn new(key: Key, has_aes: bool, resumes: bool) -> Self {
        let ciphers = Cipher::preferred(has_aes);
        let (asking, opened) = (Vec::new(), Vec::new());
        Self { key, ciphers, offers: Offers::default(), resumes, asking, opened }
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The cipher that this host prefers.
    #[must_use]
    pub const fn cipher(&self) -> Cipher {
        Cipher::choose(self.ciphers, self.ciphers)
    }

    /// What a handshake needs of this host, as it announces itself by this incarnation.
    #[must_use]
    pub const fn local(&self, incarnation: u32) -> Local<'_> {
        Local { key: &self.key, ciphers: self.ciphers, incarnation }
    }

    /// Whether a message of the handshake is this host's own, whatever address it seems to come from ([`Association::asking`]).
    #[must_use]
    pub fn is_own(&self, read: &Handshake) -> bool {
        read.kind != Kind::Offer && self.asking.iter().any(|(_, nonce)| *nonce == read.nonce)
    }

    /// Handles a message of the handshake whose tag is right ([`read`]). A resumption is handled as the ask that it is, too; what else it
    /// brings comes before ([`Association::on_resume`]).
    pub fn on_handshake(
        &mut self,
        now: Time,
        peers: &mut impl Peers<K>,
        from: Sender<K>,
        read: &Handshake,
        mut random: impl FnMut() -> [u8; 32],
    ) -> Handled {
        if self.is_own(read) {
            return Handled::Own;
        }
        self.offers.advance(now, &mut random);
        let Self { key, ciphers, offers, resumes, .. } = self;
        let local = Local { key, ciphers: *ciphers, incarnation: from.ours };
        let address = address_bytes(from.address);
        let known = from.peer.and_then(|peer| peers.association_mut(peer)).map(|(it, _)| it);
        match (read.kind, known) {
            (Kind::Accept, known) if read.to == from.ours => {
                let (mut first, is_first) = (Association::default(), known.is_none());
                let association = known.unwrap_or(&mut first);
                match association.on_accept(now, &local, offers, &address, read) {
                    Some(accepted) => {
                        Handled::Accepted(accepted, is_first.then(|| Box::new(first)))
                    }
                    None => Handled::Late,
                }
            }
            // An acceptance of what an earlier incarnation of this host has offered is answered as an ask.
            (Kind::Ask | Kind::Accept | Kind::Resume, known) => {
                let flags = known.filter(|_| *resumes).map_or(0, |it| it.flags(read));
                Handled::Asked(local.offer(now, offers, &address, read, flags))
            }
            (_, None) => Handled::Stranger,
            (_, Some(association)) => match association.on_offer(now, &local, read, random) {
                Some(acceptance) => Handled::Offered(acceptance),
                None => Handled::Late,
            },
        }
    }

    /// Asks a peer for a session, if it was not asked yet. `nonce` is random.
    pub fn ask(
        &mut self,
        now: Time,
        peer: K,
        association: &mut Association,
        nonce: impl FnOnce() -> u64,
    ) {
        if association.ask(now, nonce) {
            self.asking.extend(association.asking().map(|nonce| (peer, nonce)));
        }
    }

    /// The peers to which an ask or acceptance is to be sent now ([`Due::Send`]), and the peers that have not answered
    /// in time ([`Due::Silent`]), in the order in which they were asked.
    pub fn poll_asks(&mut self, now: Time, peers: &mut impl Peers<K>) -> Vec<(K, Due)> {
        let mut all = Vec::new();
        let (key, ciphers) = (&self.key, self.ciphers);
        self.asking.retain(|&(peer, nonce)| {
            let Some((association, incarnation)) = peers.association_mut(peer) else {
                return false;
            };
            // The peer may have confirmed, and may have been asked again since.
            if association.asking() != Some(nonce) {
                return false;
            }
            match association.poll_ask(now, &Local { key, ciphers, incarnation }) {
                Due::Idle => false,
                Due::Later(_) => true,
                due => {
                    all.push((peer, due));
                    true
                }
            }
        });
        all
    }

    /// The number of asks that were not seen to be answered yet.
    #[must_use]
    pub const fn asks(&self) -> usize {
        self.asking.len()
    }

    /// When [`poll_asks`](Self::poll_asks) has something to do.
    pub fn next_ask(&self, peers: &impl Peers<K>) -> Option<Time> {
        self.asking.iter().filter_map(|(peer, _)| peers.association(*peer)?.ask_due()).min()
    }

    /// The report that this host does not have the session of a sealed packet. It is not longer than the packet.
    #[must_use]
    pub fn lost(&self, fields: Clear) -> [u8; LOST_BYTES] {
        let mut bytes = Vec::with_capacity(LOST_BYTES);
        wire::encode_lost(fields, &mut bytes);
        let tag = self.key.tag(&bytes);
        bytes.extend_from_slice(&tag);
        let mut out = [0; LOST_BYTES];
        out.copy_from_slice(&bytes);
        out
    }

    /// Takes the buffer in which packets are opened, with what a datagram has behind its clear bytes. [`put_back`](Self::put_back) returns
    /// it, so that no packet needs memory of its own.
    pub fn take_buffer<'a>(&mut self, datagram: &'a [u8]) -> (&'a [u8], Vec<u8>) {
        let (clear, sealed) = datagram.split_at(CLEAR_BYTES);
        (clear, self.take_buffer_for(sealed))
    }

    /// The same for bytes without clear ones.
    pub fn take_buffer_for(&mut self, sealed: &[u8]) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.opened);
        buffer.clear();
        buffer.extend_from_slice(sealed);
        buffer
    }

    /// Returns the buffer.
    pub fn put_back(&mut self, buffer: Vec<u8>) {
        self.opened = buffer;
    }
}
