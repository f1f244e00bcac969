//! Hosts that share a key: sessions of two hosts, which carry all control packets except the ones that switches read,
//! and the keys of casts, which the sender hands to each receiver in them. See `docs/ops/security.md#casts-with-a-key`.
//!
//! What is sealed in a datagram of [`rackweave_wire::secure`]:
//!
//! ```text
//! 0: 1 a control packet: the packet follows                 2: an invitation
//!                                                           1: cipher   2: key of the session's data (32 bytes)   34: the packet
//!    0 (2 bytes) nothing: the packet confirms a session
//!
//! 0: 3 a receiver's request for hashes of its stream        4: the hashes
//! 1: session (4 bytes)   5: number of the receiver (8)      the same; the range is the one that the hashes cover
//! 13: from (8)   21: upto (8)   29: 1 also within a block   29: 1 the stream ends there   30: hashes (32 bytes each)
//! 0: 5 a receiver's request for a key of its own            6: the key
//! 1: session (4 bytes)   5: number of the receiver (8)      the same   13: cipher   14: key (32 bytes)
//! ```

use rackweave_core::{HostId, Time};
use rackweave_crypt::{
    self as crypt, Accepted, Associations, Cipher, Due, GroupOpen, GroupSeal, Handled, KeyMismatch,
    OpenError, Refused, Sender, Unopened,
};
use rackweave_linux::Platform;
use rackweave_linux::sys::Path;
use rackweave_orca::agent::ANY_RACK;
use rackweave_wire::orca::{self, Body, Control, Header, TO_AGENT};
use rackweave_wire::secure::{self as wire, Clear, Datagram, Handshake, Kind, Notice};

use super::answers::AnswerMessage;
use super::verify::{BlockHashes, Checked, HashRequest, KeyRequest};
use super::{Engine, EnginePlatform};
use crate::source::Payload;

const CONTROL: u8 = 1;
const INVITATION: u8 = 2;
const HASH_REQUEST: u8 = 3;
const HASHES: u8 = 4;
const KEY_REQUEST: u8 = 5;
const OWN_KEY: u8 = 6;
const ANSWER: u8 = 7;

/// What was sealed for this host.
#[derive(Debug)]
pub enum SealedMessage {
    /// Nothing.
    Empty,
    /// A control packet.
    Control(Control),
    /// An invitation, with the key of the session's data.
    Invitation(Control, Box<GroupOpen>),
    /// A receiver's request for hashes of the stream that this host sends.
    HashRequest(HashRequest),
    /// Hashes of a stream that this host receives.
    Hashes(BlockHashes),
    /// A receiver's request for a key of its own.
    KeyRequest(KeyRequest),
    /// The answer to one, with what opens packets that are sealed with the key.
    OwnKey(KeyRequest, Box<GroupOpen>),
    /// A question about a manifest, or the answer.
    Answer(AnswerMessage),
}

impl SealedMessage {
    /// Appends what is sealed for a control packet; `key` is that of the session's data, which an invitation carries.
    pub fn encode(control: &Control, key: Option<(Cipher, &[u8; 32])>, out: &mut Vec<u8>) {
        match key {
            Some((cipher, key)) => {
                out.extend_from_slice(&[INVITATION, cipher.bit()]);
                out.extend_from_slice(key);
            }
            None => out.push(CONTROL),
        }
        orca::encode_header(&Header::Control(*control), 1, None, &[], out);
    }

    /// Appends what is sealed for a request for hashes.
    pub fn encode_request(request: &HashRequest, out: &mut Vec<u8>) {
        out.push(HASH_REQUEST);
        request.encode(out);
    }

    /// Appends what is sealed for hashes.
    pub fn encode_hashes(hashes: &BlockHashes, out: &mut Vec<u8>) {
        out.push(HASHES);
        hashes.encode(out);
    }

    /// Appends what is sealed for a request for a key.
    pub fn encode_key_request(request: &KeyRequest, out: &mut Vec<u8>) {
        out.push(KEY_REQUEST);
        request.encode(out);
    }

    /// Appends what is sealed for the answer to a request for a key.
    pub fn encode_key(request: &KeyRequest, (cipher, key): (Cipher, &[u8; 32]), out: &mut Vec<u8>) {
        out.push(OWN_KEY);
        request.encode(out);
        out.push(cipher.bit());
        out.extend_from_slice(key);
    }

    /// Appends what is sealed for a question about a manifest, or for the answer.
    pub fn encode_answer(message: &AnswerMessage, out: &mut Vec<u8>) {
        out.push(ANSWER);
        message.encode(out);
    }

    /// Decodes what was sealed; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let control = |bytes: &[u8]| match orca::decode(bytes, None).ok()?.header {
            Header::Control(control) => Some(control),
            Header::Data(_) => None,
        };
        match bytes {
            [0, 0] => Some(Self::Empty),
            [CONTROL, packet @ ..] => {
                let control = control(packet)?;
                let plain = !matches!(control.body, Body::Invite { .. });
                plain.then_some(Self::Control(control))
            }
            [INVITATION, cipher, rest @ ..] => {
                let (key, packet) = rest.split_first_chunk::<32>()?;
                let control = control(packet)?;
                let opener = Box::new(GroupOpen::new(Cipher::from_bit(*cipher)?, *key));
                matches!(control.body, Body::Invite { .. })
                    .then_some(Self::Invitation(control, opener))
            }
            [HASH_REQUEST, fields @ ..] => HashRequest::decode(fields).map(Self::HashRequest),
            [HASHES, fields @ ..] => BlockHashes::decode(fields).map(Self::Hashes),
            [ANSWER, fields @ ..] => AnswerMessage::decode(fields).map(Self::Answer),
            [KEY_REQUEST, fields @ ..] => match KeyRequest::decode(fields)? {
                (request, []) => Some(Self::KeyRequest(request)),
                _ => None,
            },
            [OWN_KEY, fields @ ..] => {
                let (request, [cipher, key @ ..]) = KeyRequest::decode(fields)? else {
                    return None;
                };
                let (cipher, key) = (Cipher::from_bit(*cipher)?, key.try_into().ok()?);
                Some(Self::OwnKey(request, Box::new(GroupOpen::new(cipher, key))))
            }
            _ => None,
        }
    }
}

/// Returns whether switches read a control packet, which is therefore authenticated and not sealed: commands and labels for a
/// rack, pings, whose port the ToR checks, and reports to the rack's agent, to which the ToR forwards them.
pub(super) const fn is_for_switches(control: &Control) -> bool {
    match control.body {
        // Nothing else is sent to agents: any other body must come in the session of two hosts, whatever its address says.
        Body::Status { .. } => control.to.0 == TO_AGENT.0,
        Body::SetActive { .. } | Body::Ping { .. } => true,
        Body::Sync { rack, .. } => rack != ANY_RACK,
        _ => false,
    }
}

pub(super) fn random_bytes(platform: &mut impl Platform) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&platform.random().to_ne_bytes());
    bytes[16..].copy_from_slice(&platform.random().to_ne_bytes());
    bytes
}

/// Returns the protection of a new session's data with this key.
pub(super) fn data_seal(all: &Associations<HostId>, key: [u8; 32]) -> GroupSeal {
    GroupSeal::new(all.cipher(), key)
}

impl<P: EnginePlatform> Engine<P> {
    /// Handles a datagram between hosts with a key, from an admitted address. `known` is the host at it.
    pub(super) fn handle_secure(
        &mut self,
        now: Time,
        from: Path,
        known: Option<HostId>,
        bytes: &[u8],
    ) {
        match crypt::read(self.secure.as_ref().map(Associations::key), bytes) {
            Ok(Datagram::Notice(notice)) => {
                self.stats.malformed += 1;
                self.on_notice(known, notice);
            }
            Ok(Datagram::Handshake(handshake)) => {
                self.handle_handshake(now, from, known, &handshake);
            }
            Ok(Datagram::Sealed(fields)) => self.handle_sealed(now, from, known, fields, bytes),
            Ok(Datagram::Lost(fields)) => {
                if let Some(host) = known
                    && let Some(peer) = self.peers.get_mut(host)
                    && peer.association.on_lost(now, fields.session)
                {
                    self.ask(now, host);
                }
            }
            Err(refused) => {
                self.stats.malformed += 1;
                match refused {
                    // A host that was started again with another key reports lost sessions by a tag of that key.
                    Refused::Forged(Kind::Lost) => self.on_notice(known, Notice::OtherKey),
                    _ => {
                        if let Some(notice) = refused.answer() {
                            self.send_notice(from, notice);
                        }
                    }
                }
            }
        }
    }

    fn handle_handshake(&mut self, now: Time, from: Path, known: Option<HostId>, read: &Handshake) {
        let Some(secure) = &mut self.secure else { return };
        let ours = self.peers.incarnation();
        let sender = Sender { peer: known, address: from.remote, ours };
        let random = || random_bytes(self.driver.platform());
        match secure.on_handshake(now, &mut self.peers, sender, read, random) {
            Handled::Own | Handled::Stranger | Handled::Asked(None) => {}
            Handled::Late => self.stats.replayed += 1,
            Handled::Asked(Some(offer)) => self.reply(from, &offer),
            Handled::Accepted(accepted, association) => {
                // The peer has proved that it receives at its address.
                let Some(host) = self.learn(now, from) else { return };
                let Some(peer) = self.peers.get_mut(host) else { return };
                if let Some(first) = association {
                    peer.association = *first;
                }
                self.send_sealed(host, wire::encode_empty);
                if let Accepted::New(_) = accepted {
                    self.on_session(now, host);
                }
            }
            Handled::Offered(acceptance) => {
                self.reply(from, &acceptance);
                if let Some(host) = known {
                    self.release_held(now, host);
                }
            }
        }
    }

    fn handle_sealed(
        &mut self,
        now: Time,
        from: Path,
        known: Option<HostId>,
        fields: Clear,
        bytes: &[u8],
    ) {
        let Some(secure) = &mut self.secure else { return };
        let (clear, mut buffer) = secure.take_buffer(bytes);
        let peer = known.and_then(|host| Some((host, self.peers.get_mut(host)?)));
        let opened = match peer {
            Some((host, peer)) => peer
                .association
                .open(now, fields, clear, &mut buffer)
                .map(|opened| (host, SealedMessage::decode(opened.bytes), opened.confirmed)),
            None => Err(Unopened::Unknown),
        };
        secure.put_back(buffer);
        match opened {
            Ok((host, message, confirmed)) => {
                self.peers.prove(now, host, from.local);
                if confirmed {
                    self.on_session(now, host);
                }
                match message {
                    Some(SealedMessage::Empty) => {}
                    Some(SealedMessage::Control(control)) => {
                        if let Body::End { length } = control.body {
                            self.handle_length(host, control.session, length);
                        }
                        self.handle_control(now, host, control, bytes.len());
                    }
                    Some(SealedMessage::Invitation(control, opener)) => {
                        if self.invited.len() < super::MAX_INVITED {
                            self.invited.insert(control.session, (host, opener));
                            self.handle_control(now, host, control, bytes.len());
                        }
                    }
                    Some(SealedMessage::HashRequest(request)) => {
                        self.handle_hash_request(now, host, &request);
                    }
                    Some(SealedMessage::Hashes(hashes)) => self.handle_hashes(now, host, &hashes),
                    Some(SealedMessage::KeyRequest(request)) => {
                        self.handle_key_request(host, &request);
                    }
                    Some(SealedMessage::OwnKey(answer, opener)) => {
                        self.handle_own_key(now, host, &answer, opener);
                    }
                    Some(SealedMessage::Answer(message)) => self.handle_answer(now, host, message),
                    None => self.stats.malformed += 1,
                }
            }
            Err(Unopened::Unknown) => {
                // The datagram is not shorter than the report.
                let Some(secure) = &self.secure else { return };
                let report = secure.lost(fields);
                self.reply(from, &report);
            }
            Err(Unopened::Session(OpenError::Forged)) => self.stats.malformed += 1,
            Err(Unopened::Session(OpenError::Replayed)) => self.stats.replayed += 1,
        }
    }

    /// Seals a control packet for a host, or holds it until there is a session with it.
    pub(super) fn seal_control(&mut self, now: Time, host: HostId, control: Control) {
        let Some(peer) = self.peers.get_mut(host) else {
            self.stats.unroutable += 1;
            return;
        };
        if !peer.association.is_ready() {
            // Control packets are repeated, so that the last ones say most.
            peer.held.push_newest(control);
            return self.ask(now, host);
        }
        if peer.association.is_old(now) {
            self.ask(now, host);
        }
        let session = control.session;
        let invites = matches!(control.body, Body::Invite { .. });
        let sealer = match self.sending.get(&session) {
            Some(sending) if invites => sending.own_sealers.get(&host).or(sending.sealer.as_ref()),
            _ => None,
        };
        let key = sealer.map(|sealer| (sealer.key().0, *sealer.key().1));
        if invites && key.is_none() {
            return; // The session is over.
        }
        self.send_sealed(host, |out| {
            SealedMessage::encode(&control, key.as_ref().map(|key| (key.0, &key.1)), out);
        });
    }

    /// Sends a receiver's requests to its sender. Without a session of the two they are repeated later.
    pub(super) fn send_requests(&mut self, host: HostId, checked: &Checked) {
        if let Some(request) = &checked.request {
            self.send_sealed(host, |out| SealedMessage::encode_request(request, out));
        }
        if let Some(request) = &checked.key_request {
            self.send_sealed(host, |out| SealedMessage::encode_key_request(request, out));
        }
    }

    pub(super) fn send_sealed(&mut self, host: HostId, body: impl FnOnce(&mut Vec<u8>)) {
        let Some(peer) = self.peers.get_mut(host) else {
            self.stats.unroutable += 1;
            return;
        };
        let path = peer.path();
        let Some(session) = peer.association.sealing() else { return };
        let mut bytes = 0;
        let write = |out: &mut Vec<u8>| {
            let before = out.len();
            // A session that can seal was just returned, so nothing is left out.
            let sealed = session.seal_datagram(out, body);
            debug_assert_eq!(sealed, Ok(()));
            bytes = out.len() - before;
        };
        self.driver.batch().push(path, 0, write, Payload::new());
        self.stats.sent_bytes += bytes as u64 + 28;
    }

    fn ask(&mut self, now: Time, host: HostId) {
        let (Some(secure), Some(peer)) = (&mut self.secure, self.peers.get_mut(host)) else {
            return;
        };
        let nonce = || self.driver.platform().random() as u64;
        secure.ask(now, host, &mut peer.association, nonce);
    }

    /// A session with a host begins.
    fn on_session(&mut self, now: Time, host: HostId) {
        if let Some(peer) = self.peers.get_mut(host) {
            peer.mismatch = None;
        }
        self.release_held(now, host);
    }

    /// Sends the packets that wait for a session with a host, if there is one now.
    fn release_held(&mut self, now: Time, host: HostId) {
        let Some(peer) = self.peers.get_mut(host) else { return };
        if !peer.association.is_ready() {
            return;
        }
        for control in peer.held.take() {
            self.seal_control(now, host, control);
        }
    }

    /// Sends the asks and acceptances that are due.
    pub(super) fn poll_asks(&mut self, now: Time) {
        let Some(secure) = &mut self.secure else { return };
        for (host, due) in secure.poll_asks(now, &mut self.peers) {
            let Some(peer) = self.peers.get_mut(host) else { continue };
            match due {
                Due::Send(bytes) => {
                    let path = peer.path();
                    self.reply(path, &bytes);
                }
                _ => drop(peer.held.take()),
            }
        }
    }

    /// Returns when the next ask or acceptance is due.
    pub(super) fn next_ask(&self) -> Option<Time> {
        self.secure.as_ref()?.next_ask(&self.peers)
    }

    /// Returns whether a host has answered that it has another key, or one although this host has none, or the reverse. Such
    /// an answer is not authentic: it explains a silence, and proves nothing.
    #[must_use]
    pub fn has_other_key(&self, host: HostId) -> bool {
        self.peers.get(host).is_some_and(|peer| peer.mismatch.is_some())
    }

    pub(super) fn send_notice(&mut self, to: Path, notice: Notice) {
        self.reply(to, &crypt::notice(notice));
    }

    /// Notes a notice of a host that this host knows. Anyone could have sent it, so it only explains why the host does not answer.
    pub(super) fn on_notice(&mut self, known: Option<HostId>, notice: Notice) {
        let Some(why) = KeyMismatch::of(notice, self.secure.is_some()) else { return };
        if let Some(peer) = known.and_then(|host| self.peers.get_mut(host)) {
            self.stats.key_mismatch += 1;
            peer.mismatch = Some(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_wire::orca::{Place, Reason, Session};

    use super::*;

    /// The address of an agent does not take a packet out of the session of two hosts: it would be authenticated with a key that all
    /// have, and could come from any of them.
    #[test]
    fn only_a_status_is_read_by_an_agent() {
        let place = Place::default();
        let bodies = [
            Body::Invite { stream: 1, place, payload: 1, via_agent: true },
            Body::Join { incarnation: 1, stream: 1, place, at: 0, limit: 0 },
            Body::End { length: 5 },
            Body::Complete { place },
            Body::Bye { reason: Reason::Busy },
            Body::Mode { detached: true },
        ];
        for body in bodies {
            for to in [TO_AGENT, HostId(3)] {
                let control = Control { from: HostId(1), to, session: Session(7), body };
                assert!(!is_for_switches(&control), "{control:?}");
            }
        }
    }
}
