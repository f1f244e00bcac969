//! Receiving: datagrams from the sockets to the host, the controller and the sinks.

use std::collections::BTreeSet;

use bytes::Bytes;
use rackweave_core::{HostId, Node as _, Packet, Time};
use rackweave_crypt::OpenError;
use rackweave_linux::addresses::plain;
use rackweave_linux::sys::{Path, ReceiveBatch};
use rackweave_orca::flow::Placement;
use rackweave_wire::Malformed;
use rackweave_wire::orca::{
    self, Body, Check, Control, Data, Header, Labelled, Reason, Session, TO_AGENT, TO_GROUP,
};
use rackweave_wire::secure::Notice;

use super::outgoing::Relayed;
use super::probe;
use super::secure::{is_for_switches, random_bytes};
use super::verify::Verifier;
use super::{CookieMessage, Engine, EnginePlatform, MAX_FOREIGN, answers, cookie, group};
use crate::source::Payload;

/// The most datagrams that wait to be sent when an answer is added; further answers are dropped, and asked for again.
pub(super) const MAX_REPLIES: usize = 4096;

/// The number of a host whose address is admitted and not known.
const NO_HOST: HostId = HostId(u32::MAX - 2);

/// The length of the IPv4 and UDP headers in bytes.
const HEADERS: u32 = 28;

/// Returns whether a packet without a key is an invitation.
fn is_invitation(bytes: &[u8]) -> bool {
    orca::decode(bytes, None).is_ok_and(|decoded| match decoded.header {
        Header::Control(control) => matches!(control.body, Body::Invite { .. }),
        Header::Data(_) => false,
    })
}

impl<P: EnginePlatform> Engine<P> {
    pub(super) fn handle_batch(&mut self, now: Time, batch: &ReceiveBatch) {
        // All datagrams of a train come from one host.
        let mut known: Option<(Path, HostId)> = None;
        for datagram in batch.datagrams() {
            self.stats.received += 1;
            self.arrivals.bytes += datagram.bytes.len() as u64;
            let (address, path, bytes) = (datagram.from, datagram.path(), datagram.bytes);
            let from = known.filter(|known| known.0 == path).map(|known| known.1);
            let from = from.or_else(|| self.peers.find(now, path));
            known = from.map(|from| (path, from));
            let admitted = from.is_some() || self.peers.admits(address);
            match bytes.first() {
                // Members of a group answer queries from addresses that were previously unknown.
                Some(&group::TAG) if admitted || self.query.is_some() => {
                    let as_sender = self.peers.admits_sender(address);
                    self.handle_group(path, bytes, as_sender);
                }
                _ if !admitted => {
                    self.stats.foreign += 1;
                    if self.foreign.len() < MAX_FOREIGN && !self.foreign.contains(&address) {
                        self.foreign.push(address);
                    }
                }
                Some(&probe::TAG) => self.handle_probe(now, path, bytes),
                Some(&answers::TAG) => self.handle_plain_answer(now, from, bytes),
                Some(&cookie::TAG) => self.handle_cookie(now, path, from, bytes),
                Some(&rackweave_wire::secure::VERSION) => {
                    self.handle_secure(now, path, from, bytes);
                }
                _ => self.handle_orca(now, path, from, bytes),
            }
        }
    }

    /// Handles an Orca packet from an admitted address. `from` is the host that sends by its path.
    fn handle_orca(&mut self, now: Time, path: Path, from: Option<HostId>, bytes: &[u8]) {
        let decoded = match orca::decode(bytes, self.key.as_ref()) {
            Ok(decoded) => decoded,
            Err(error) => {
                self.stats.malformed += 1;
                let mismatch = matches!(error, Malformed::NotKeyed | Malformed::NoKey);
                self.stats.key_mismatch += u64::from(mismatch);
                // Only invitations, which go to one host, are answered: data without a key may be multicast, to many with one.
                if matches!(error, Malformed::NotKeyed) && is_invitation(bytes) {
                    self.send_notice(path, Notice::NeedsKey);
                }
                return;
            }
        };
        match decoded.header {
            Header::Data(data) => {
                // A host with several addresses may send multicast from another one. An agent forwards no such data.
                let from = match from {
                    Some(from) => from,
                    None if data.labelled == Labelled::Host => NO_HOST,
                    None => {
                        self.stats.foreign += 1;
                        return;
                    }
                };
                match decoded.check {
                    Check::Sealed { counter, tag } => {
                        self.open_data(now, from, data, (counter, tag), &bytes[decoded.payload]);
                    }
                    _ if self.secure.is_some() => self.stats.malformed += 1,
                    check => {
                        let payload = &bytes[decoded.payload];
                        self.handle_data(now, from, data, check, bytes.len(), payload, payload);
                    }
                }
            }
            Header::Control(control) if self.secure.is_some() => {
                if !is_for_switches(&control) {
                    self.stats.malformed += 1;
                } else if let Some(from) = from {
                    self.handle_control(now, from, control, bytes.len());
                } else {
                    self.stats.foreign += 1;
                }
            }
            Header::Control(control) => {
                if let Body::Invite { .. } = control.body
                    && !self.is_invited(control.session, from)
                {
                    if !self.peers.admits_sender(path.remote) {
                        self.stats.foreign += 1;
                        return;
                    }
                    return self.challenge(now, path, control.session);
                }
                match from {
                    Some(from) => self.handle_control(now, from, control, bytes.len()),
                    None => self.answer_stranger(path, &control),
                }
            }
        }
    }

    /// Opens the payload of sealed data. An agent forwards data of sessions whose keys it does not have as it is.
    fn open_data(
        &mut self,
        now: Time,
        from: HostId,
        data: Data,
        (counter, tag): (u64, [u8; 16]),
        sealed: &[u8],
    ) {
        let Some(secure) = &mut self.secure else { return };
        let mut buffer = secure.take_buffer_for(sealed);
        let hosts = self.config.fabric.as_ref().map_or(0, |it| it.layout.hosts());
        let is_for_agents = data.labelled == Labelled::Pilot && from.0 < hosts;
        let check = Check::Sealed { counter, tag };
        let incoming = self.incoming.get_mut(&data.session);
        let opener = incoming.and_then(|it| {
            let is_missing =
                data.parity.is_none() && data.offset + u64::from(data.len) > it.readable;
            Some((it.opener.as_mut()?, &mut it.verifier, is_missing))
        });
        let may_pass = match opener {
            Some((opener, verifier, is_missing)) => {
                let result =
                    opener.open(counter, orca::associated(&data).as_ref(), tag, &mut buffer);
                let has_own_key = verifier.as_ref().is_some_and(Verifier::has_own_key);
                match result {
                    Ok(()) => {}
                    // It has the group's key, and others in this agent's rack may need it.
                    Err(_) if has_own_key && is_for_agents => {
                        let relays = self.host.forward_data(now, 0, from, &data);
                        self.keep_relayed(sealed, check, relays);
                    }
                    Err(OpenError::Forged) => self.stats.malformed += 1,
                    Err(OpenError::Replayed) => {
                        self.stats.replayed += 1;
                        // Anyone can repeat a packet that has been opened; the sender's packets whose numbers another receiver has
                        // used bring bytes that are missing.
                        if is_missing {
                            let bytes = sealed.len() as u64;
                            verifier.iter_mut().for_each(|verifier| verifier.on_replay(bytes));
                        }
                    }
                }
                result.is_ok()
            }
            None => is_for_agents,
        };
        if may_pass {
            let len = orca::sealed_header_bytes(&data, self.words) as usize + sealed.len();
            self.handle_data(now, from, data, check, len, &buffer, sealed);
        } else {
            self.stats.unopened += 1;
        }
        if let Some(secure) = &mut self.secure {
            secure.put_back(buffer);
        }
    }

    /// Handles data. `payload` is stored; `carried` are the bytes of the packet, with which an agent forwards it.
    #[expect(clippy::too_many_arguments, reason = "they are the packet")]
    fn handle_data(
        &mut self,
        now: Time,
        from: HostId,
        data: Data,
        check: Check,
        len: usize,
        payload: &[u8],
        carried: &[u8],
    ) {
        let dst = if data.labelled == Labelled::Host { self.config.me() } else { TO_GROUP };
        let packet = Packet::new(from, dst, len as u32 + HEADERS, Header::Data(data));
        let handled = self.host.handle_packet(now, 0, &packet);
        match handled.store {
            Some(Placement::Store { session, offset, skip, len }) => {
                let from = usize::from(skip);
                if let Some(incoming) = self.incoming.get_mut(&session)
                    && let Some(piece) = payload.get(from..from + usize::from(len))
                {
                    incoming.drain.put(offset, piece);
                }
            }
            Some(Placement::Keep { session, block, end, index }) => {
                if let Some(incoming) = self.incoming.get_mut(&session) {
                    incoming.parities.keep(block, end, index, payload);
                }
            }
            None => {}
        }
        self.keep_relayed(carried, check, handled.relays);
    }

    /// Keeps the payload of packets that the agent will forward.
    fn keep_relayed(&mut self, carried: &[u8], check: Check, relays: u16) {
        if relays > 0 {
            let bytes = Bytes::copy_from_slice(carried);
            self.relayed.push_back(Relayed { bytes, check, left: relays });
        }
    }

    /// Handles a control packet of a host that is known, and that has the key if there is one.
    pub(super) fn handle_control(
        &mut self,
        now: Time,
        from: HostId,
        mut control: Control,
        len: usize,
    ) {
        let me = self.config.me();
        let address = self.peers.address(from);
        if matches!(control.body, Body::Invite { .. })
            && !address.is_some_and(|address| self.peers.admits_sender(address))
        {
            self.stats.foreign += 1;
            return;
        }
        if self.config.fabric.is_none() {
            // Without a fabric, host numbers are local to each process, so the address identifies the sender.
            control.from = from;
            if control.to != TO_AGENT {
                control.to = me;
            }
        }
        let packet = Packet::new(from, me, len as u32 + HEADERS, Header::Control(control));
        if !self.pass_to_controller(now, &packet) {
            let _ = self.host.handle_packet(now, 0, &packet);
        }
    }

    /// Returns whether this host has already accepted an invitation to a session from a host.
    fn is_invited(&self, session: Session, from: Option<HostId>) -> bool {
        self.incoming.get(&session).is_some_and(|incoming| Some(incoming.host()) == from)
    }

    /// Answers an invitation from an address that has proved nothing. Nothing is kept.
    fn challenge(&mut self, now: Time, from: Path, session: Session) {
        self.stats.challenged += 1;
        let platform = self.driver.platform();
        let random = || random_bytes(platform);
        let cookie = self.cookies.cookie(now, random, plain(from.remote), session);
        self.reply(from, &CookieMessage::Challenge { session, cookie }.encode());
    }

    /// Handles a cookie for an invitation of this host, or an invitation behind one.
    fn handle_cookie(&mut self, now: Time, path: Path, from: Option<HostId>, bytes: &[u8]) {
        let message = CookieMessage::decode(bytes).filter(|_| self.secure.is_none());
        match message {
            Some(CookieMessage::Challenge { session, cookie }) => {
                let sending = self.sending.get_mut(&session);
                let receiver = sending.and_then(|it| it.hosts.get_mut(&from?));
                if let Some(receiver) = receiver
                    && let Some(invitation) = receiver.invitation
                {
                    receiver.cookie = Some(cookie);
                    self.send_invitation(path, &invitation, cookie);
                }
            }
            Some(CookieMessage::Echo { session, cookie, packet }) => {
                let decoded = orca::decode(packet, None).map(|decoded| decoded.header);
                let Ok(Header::Control(control)) = decoded else {
                    self.stats.malformed += 1;
                    return;
                };
                if !matches!(control.body, Body::Invite { .. }) || control.session != session {
                    self.stats.malformed += 1;
                } else if !self.cookies.is_valid(now, plain(path.remote), session, cookie) {
                    self.challenge(now, path, session);
                } else if let Some(from) = self.learn(now, path) {
                    self.handle_control(now, from, control, packet.len());
                }
            }
            None => self.stats.malformed += 1,
        }
    }

    /// Returns the number of the host that sends by a path and has proved to receive at its address, as
    /// [`Peers::learn`](super::Peers::learn). A host with which there is a session keeps its number.
    pub(super) fn learn(&mut self, now: Time, from: Path) -> Option<HostId> {
        let used: BTreeSet<HostId> =
            (self.sending.values().flat_map(|it| it.hosts.keys().copied()))
                .chain(self.incoming.values().map(|it| it.host()))
                .collect();
        self.peers.learn(now, from, |host| used.contains(&host))
    }

    pub(super) fn send_invitation(&mut self, to: Path, control: &Control, cookie: u64) {
        let mut packet = Vec::with_capacity(64);
        orca::encode_header(&Header::Control(*control), 1, None, &[], &mut packet);
        let session = control.session;
        self.reply(to, &CookieMessage::Echo { session, cookie, packet: &packet }.encode());
    }

    /// Answers a host without a key that is not known, as after a restart of this one, without learning its address: it must
    /// not send here any more. The answer is not longer than the packet.
    fn answer_stranger(&mut self, to: Path, control: &Control) {
        let reason = match control.body {
            Body::End { .. } | Body::Mode { .. } | Body::Join { .. } | Body::Status(_) => {
                Reason::Unknown
            }
            Body::Complete { .. } => Reason::Left,
            _ => {
                self.stats.foreign += 1;
                return;
            }
        };
        let (from, body) = (self.config.me(), Body::Bye { reason });
        let answer = Control { from, to: control.from, session: control.session, body };
        let mut bytes = Vec::with_capacity(40);
        orca::encode_header(&Header::Control(answer), 1, None, &[], &mut bytes);
        self.reply(to, &bytes);
    }

    /// Sends a datagram outside the order of packets, unless too many wait already.
    pub(super) fn reply(&mut self, to: Path, bytes: &[u8]) {
        if self.driver.batch().len() < MAX_REPLIES {
            self.push(to, |out| out.extend_from_slice(bytes), Payload::new());
        }
    }
}
