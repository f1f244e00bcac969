//! What a process with a key does with its packets: the handshakes and sessions of two hosts, and the protection of a cast's data, with
//! the decisions of `cast::orca::secure` and the code that it has them from ([`rackweave_crypt`], [`SealedMessage`], the codecs of
//! [`rackweave_wire`]), and the hashes by which receivers know the sender's bytes. Hosts know each other's addresses from the start.

use std::collections::{BTreeMap, VecDeque};

use rackweave_cast::orca::{
    BlockHashes, Checked, HashCache, HashRequest, KeyRequest, SealedMessage,
};
use rackweave_cast::source::{Payload, Source, SourceError};
use rackweave_core::{HostId, Packet, Rng, Time};
use rackweave_crypt::{
    Association, Cipher, Due, GroupOpen, GroupSeal, Key, Local, Offers, OpenError, Unopened,
};
use rackweave_wire::orca::{
    self, Body, Control, Data, Header, Label, Labelled, Session, TO_AGENT, TO_GROUP,
};
use rackweave_wire::secure::{self as wire, CLEAR_BYTES, Clear, Handshake, Kind};

use super::process::Stream;

/// As in `cast::orca`: control packets that wait for a session with one host, and payloads that are cached for copies.
const MAX_HELD: usize = 16;
const MEMO: usize = 256;

/// Headers of IP and UDP.
pub(super) const IP_UDP_BYTES: usize = 28;

/// What crosses the network: a packet whose bytes nobody looks at, or the bytes of a datagram between hosts with a key.
#[derive(Clone, Debug)]
pub(super) enum Carried {
    Plain(Packet<Header>),
    Bytes { from: HostId, to: HostId, bytes: Vec<u8> },
}

impl Carried {
    pub(super) const fn to(&self) -> HostId {
        match self {
            Self::Plain(packet) => packet.dst,
            Self::Bytes { to, .. } => *to,
        }
    }
}

/// How often datagrams were refused, so that a test can say that they are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refused {
    pub(super) forged: u64,
    pub(super) replayed: u64,
}

/// A received packet of data whose protection an agent passes on as it is.
#[derive(Debug)]
pub(super) struct Relayed {
    body: Vec<u8>,
    check: orca::Check,
    left: u16,
}

/// What was in a datagram.
#[derive(Debug)]
pub(super) enum Opened {
    /// A packet, with its payload and, if it may be relayed, its sealed bytes.
    Packet(Packet<Header>, Vec<u8>, Option<Relayed>),
    /// Data that this host cannot open and may have to relay.
    Forward(HostId, Data, Relayed),
    /// Data that was sealed by somebody who has the key, and is dropped because its number was used before.
    Replay(Data, u64),
    /// Messages of a peer about the bytes that are the sender's.
    HashRequest(HostId, HashRequest),
    Hashes(HostId, BlockHashes),
    KeyRequest(HostId, KeyRequest),
    OwnKey(HostId, KeyRequest, Box<GroupOpen>),
}

/// What is kept of one peer.
#[derive(Debug, Default)]
struct Pair {
    association: Association,
    held: VecDeque<Control>,
}

/// A sealed payload for copies of a packet, and the hosts that got one: as in `cast::orca::outgoing`, none gets it twice, since its
/// receiver would take the second one for a replay.
#[derive(Clone, Debug)]
struct Sealed {
    data: Data,
    counter: u64,
    tag: [u8; 16],
    body: Vec<u8>,
    given: Vec<(HostId, Label)>,
}

#[derive(Debug)]
pub(super) struct Secure {
    me: HostId,
    key: Key,
    switch_key: orca::Key,
    ciphers: u8,
    incarnation: u32,
    offers: Offers,
    pairs: BTreeMap<HostId, Pair>,
    sealers: BTreeMap<Session, GroupSeal>,
    /// Keys of receivers to which somebody else has sent data.
    own_sealers: BTreeMap<(Session, HostId), GroupSeal>,
    hashes: HashCache,
    relayed: VecDeque<Relayed>,
    memo: Vec<Option<Sealed>>,
    /// The senders of invitations that were not handled yet, and the keys of their sessions.
    invited: BTreeMap<Session, (HostId, Box<GroupOpen>)>,
    openers: BTreeMap<Session, Box<GroupOpen>>,
    rng: Rng,
    out: VecDeque<Carried>,
    pub(super) refused: Refused,
}

fn bytes32(rng: &mut Rng) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_ne_bytes()));
    bytes
}

/// Whether switches read a control packet, which is therefore authenticated and not sealed: `cast::orca::secure`.
const fn is_for_switches(control: &Control) -> bool {
    match control.body {
        Body::Status { .. } => control.to.0 == TO_AGENT.0,
        Body::SetActive { .. } | Body::Ping { .. } => true,
        _ => false,
    }
}

impl Secure {
    pub(super) fn new(me: HostId, seed: u64, has_aes: bool) -> Option<Self> {
        let secret = Rng::stream(seed, 0, 0, "secret").next_u64().to_be_bytes().repeat(4);
        let mut rng = Rng::stream(seed, 0, u64::from(me.0), "secure");
        Some(Self {
            me,
            key: Key::derive_for_casts(&secret).ok()?,
            switch_key: rackweave_cast::orca::keys(&secret).0,
            ciphers: Cipher::preferred(has_aes),
            incarnation: rng.next_u64() as u32,
            offers: Offers::default(),
            pairs: BTreeMap::new(),
            sealers: BTreeMap::new(),
            own_sealers: BTreeMap::new(),
            hashes: HashCache::default(),
            relayed: VecDeque::new(),
            memo: vec![None; MEMO],
            invited: BTreeMap::new(),
            openers: BTreeMap::new(),
            rng,
            out: VecDeque::new(),
            refused: Refused::default(),
        })
    }

    /// The process ends: it loses its sessions, and its next start has another incarnation.
    pub(super) fn restart(&mut self) {
        self.incarnation = self.rng.next_u64() as u32;
        self.offers = Offers::default();
        self.pairs.clear();
        self.sealers.clear();
        self.own_sealers.clear();
        self.hashes = HashCache::default();
        self.relayed.clear();
        self.memo.fill(None);
        self.invited.clear();
        self.openers.clear();
        self.out.clear();
    }

    /// Begins to protect the data of a session that this host sends.
    pub(super) fn seal_session(&mut self, session: Session) {
        let cipher = Cipher::choose(self.ciphers, self.ciphers);
        self.sealers.insert(session, GroupSeal::new(cipher, bytes32(&mut self.rng)));
    }

    /// Returns the protection of the newest session that this host sends.
    pub(super) fn sealer(&self) -> Option<(Session, &GroupSeal)> {
        self.sealers.last_key_value().map(|(session, sealer)| (*session, sealer))
    }

    /// Forgets sessions that this host does not send any more.
    pub(super) fn retain_sent(&mut self, is_open: impl Fn(Session) -> bool) {
        self.sealers.retain(|session, _| is_open(*session));
        self.own_sealers.retain(|(session, _), _| is_open(*session));
    }

    /// Answers a receiver's request for hashes.
    pub(super) fn answer(&mut self, to: HostId, request: &HashRequest, stream: &Stream) {
        let mut source = Reading(stream);
        let available = (stream.bytes.len() as u64, true);
        let (answer, _) = self.hashes.answer(&mut source, request, available, &mut { u64::MAX });
        self.send_sealed(to, |out| SealedMessage::encode_hashes(&answer, out));
    }

    /// Gives a receiver a key of its own.
    pub(super) fn give_key(&mut self, to: HostId, request: &KeyRequest) {
        let cipher = Cipher::choose(self.ciphers, self.ciphers);
        let Self { own_sealers, rng, .. } = self;
        let own = own_sealers
            .entry((request.session, to))
            .or_insert_with(|| GroupSeal::new(cipher, bytes32(rng)));
        let (cipher, key) = (own.key().0, *own.key().1);
        self.send_sealed(to, |out| SealedMessage::encode_key(request, (cipher, &key), out));
    }

    /// Begins to use a key of this host's own.
    pub(super) fn use_key(&mut self, session: Session, opener: Box<GroupOpen>) {
        self.openers.insert(session, opener);
    }

    /// Sends the requests of a receiver.
    pub(super) fn send_requests(&mut self, to: HostId, checked: &Checked) {
        if let Some(request) = &checked.request {
            self.send_sealed(to, |out| SealedMessage::encode_request(request, out));
        }
        if let Some(request) = &checked.key_request {
            self.send_sealed(to, |out| SealedMessage::encode_key_request(request, out));
        }
    }

    /// Keeps data that the node relays in this number of packets.
    pub(super) fn relay(&mut self, relayed: Relayed, left: u16) {
        if left > 0 {
            self.relayed.push_back(Relayed { left, ..relayed });
        }
    }

    /// Takes the key of a session to which this host was invited; `false` if it has none.
    pub(super) fn accept(&mut self, session: Session, by: HostId) -> bool {
        match self.invited.remove(&session).filter(|(host, _)| *host == by) {
            Some((_, opener)) => {
                self.openers.insert(session, opener);
                true
            }
            None => false,
        }
    }

    /// Forgets the keys of sessions that this host does not receive any more.
    pub(super) fn retain(&mut self, is_open: impl Fn(Session) -> bool) {
        self.openers.retain(|session, _| is_open(*session));
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Carried> {
        self.out.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.pairs.values().filter_map(|pair| pair.association.ask_due()).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        let mut due = Vec::new();
        let Self { pairs, key, ciphers, incarnation, .. } = self;
        let local = Local { key, ciphers: *ciphers, incarnation: *incarnation };
        for (host, pair) in pairs {
            match pair.association.poll_ask(now, &local) {
                Due::Send(bytes) => due.push((*host, bytes)),
                Due::Silent => pair.held.clear(),
                Due::Idle | Due::Later(_) => {}
            }
        }
        for (host, bytes) in due {
            self.push(host, bytes.to_vec());
        }
    }

    fn push(&mut self, to: HostId, bytes: Vec<u8>) {
        self.out.push_back(Carried::Bytes { from: self.me, to, bytes });
    }

    /// Protects a packet of this host; [`Self::poll_transmit`] has what comes of it.
    pub(super) fn protect(&mut self, now: Time, packet: &Packet<Header>, stream: &Stream) {
        match &packet.header {
            Header::Control(control) if is_for_switches(control) => {
                let mut bytes = Vec::new();
                orca::encode_header(&packet.header, 1, Some(&self.switch_key), &[], &mut bytes);
                self.push(packet.dst, bytes);
            }
            Header::Control(control) => self.seal_control(now, packet.dst, *control),
            Header::Data(data) => self.seal_data(packet.dst, data, stream),
        }
    }

    /// Passes on what this host relays, in the order in which the node has decided so.
    fn send_relayed(&mut self, to: HostId, data: &Data) {
        let Some(front) = self.relayed.front_mut() else { return };
        front.left -= 1;
        let mut bytes = Vec::new();
        orca::encode_relayed(data, 1, front.check, &mut bytes);
        bytes.extend_from_slice(&front.body);
        if front.left == 0 {
            self.relayed.pop_front();
        }
        self.push(to, bytes);
    }

    fn seal_data(&mut self, to: HostId, data: &Data, stream: &Stream) {
        let own = self.own_sealers.get_mut(&(data.session, to));
        let is_own = own.is_some();
        let Some(sealer) = own.or(self.sealers.get_mut(&data.session)) else {
            return self.send_relayed(to, data);
        };
        let index = data.parity.map_or(0, |parity| u64::from(parity.index));
        let slot = (data.offset / u64::from(data.len.max(1)) + index) as usize % MEMO;
        let oldest = sealer.sealed().saturating_sub(GroupOpen::window() / 2);
        let destination = (to, data.label);
        let is_copy = |known: &&mut Sealed| {
            orca::associated(&known.data).as_ref() == orca::associated(data).as_ref()
                && known.data.len == data.len
                && known.data.labelled == data.labelled
                && (known.given[0].0 == TO_GROUP) == (to == TO_GROUP)
                && !known.given.contains(&destination)
                && known.counter >= oldest
        };
        let known = self.memo[slot].as_mut().filter(is_copy).filter(|_| !is_own);
        let (counter, tag, body) = match known {
            Some(known) => {
                known.given.push(destination);
                (known.counter, known.tag, known.body.clone())
            }
            None => {
                // Nobody looks at the bytes of a parity, which would take a block to compute.
                let mut body = match data.parity {
                    None => stream.bytes[data.offset as usize..][..usize::from(data.len)].to_vec(),
                    Some(_) => vec![0; usize::from(data.len)],
                };
                let clear = orca::associated(data);
                let Ok((counter, tag)) = sealer.seal(clear.as_ref(), &mut body) else { return };
                if !is_own {
                    let given = vec![destination];
                    self.memo[slot] =
                        Some(Sealed { data: *data, counter, tag, body: body.clone(), given });
                }
                (counter, tag, body)
            }
        };
        let mut bytes = Vec::new();
        orca::encode_relayed(data, 1, orca::Check::Sealed { counter, tag }, &mut bytes);
        bytes.extend_from_slice(&body);
        self.push(to, bytes);
    }

    fn seal_control(&mut self, now: Time, host: HostId, control: Control) {
        let pair = self.pairs.entry(host).or_default();
        if !pair.association.is_ready() {
            if pair.held.len() >= MAX_HELD {
                pair.held.pop_front();
            }
            pair.held.push_back(control);
            pair.association.ask(now, || self.rng.next_u64());
            return;
        }
        if pair.association.is_old(now) {
            pair.association.ask(now, || self.rng.next_u64());
        }
        let own = self.own_sealers.get(&(control.session, host));
        let sealer = own.or(self.sealers.get(&control.session));
        let key = match control.body {
            Body::Invite { .. } => match sealer {
                Some(sealer) => Some((sealer.key().0, *sealer.key().1)),
                None => return,
            },
            _ => None,
        };
        self.send_sealed(host, |out| {
            SealedMessage::encode(&control, key.as_ref().map(|key| (key.0, &key.1)), out);
        });
    }

    fn send_sealed(&mut self, host: HostId, body: impl FnOnce(&mut Vec<u8>)) {
        let Some(pair) = self.pairs.get_mut(&host) else { return };
        let Some(session) = pair.association.sealing() else { return };
        let mut bytes = Vec::new();
        let clear = |session: u32, counter: u64, out: &mut Vec<u8>| {
            wire::encode_sealed(Clear { session, counter }, out);
        };
        let sealed = session.seal(&mut bytes, clear, body);
        debug_assert_eq!(sealed, Ok(()));
        self.push(host, bytes);
    }

    fn release_held(&mut self, now: Time, host: HostId) {
        let Some(pair) = self.pairs.get_mut(&host).filter(|pair| pair.association.is_ready())
        else {
            return;
        };
        for control in std::mem::take(&mut pair.held) {
            self.seal_control(now, host, control);
        }
    }

    /// Opens a datagram from an address; returns what was in it, if anything.
    pub(super) fn open(&mut self, now: Time, from: HostId, bytes: &[u8]) -> Option<Opened> {
        if bytes.first() != Some(&wire::VERSION) {
            return self.open_packet(from, bytes);
        }
        let read = wire::decode(bytes).ok()?;
        let has_tag = matches!(read, wire::Datagram::Handshake(_) | wire::Datagram::Lost(_));
        if has_tag && !self.key.verify(bytes) {
            self.refused.forged += 1;
            return None;
        }
        match read {
            wire::Datagram::Notice(_) => None,
            wire::Datagram::Handshake(handshake) => {
                self.on_handshake(now, from, &handshake);
                None
            }
            wire::Datagram::Sealed(fields) => self.open_sealed(now, from, fields, bytes),
            wire::Datagram::Lost(fields) => {
                if let Some(pair) = self.pairs.get_mut(&from)
                    && pair.association.on_lost(now, fields.session)
                {
                    pair.association.ask(now, || self.rng.next_u64());
                }
                None
            }
        }
    }

    fn on_handshake(&mut self, now: Time, from: HostId, read: &Handshake) {
        let address = rackweave_crypt::address_bytes(([10, 0, 0, from.0 as u8], 6722).into());
        let Self { offers, key, ciphers, incarnation, pairs, rng, .. } = self;
        offers.advance(now, || bytes32(rng));
        let local = Local { key, ciphers: *ciphers, incarnation: *incarnation };
        match read.kind {
            Kind::Accept if read.to == local.incarnation => {
                let pair = pairs.entry(from).or_default();
                if pair.association.on_accept(now, &local, offers, &address, read).is_none() {
                    self.refused.replayed += 1;
                    return;
                }
                self.send_sealed(from, wire::encode_empty);
                self.release_held(now, from);
            }
            Kind::Ask | Kind::Accept | Kind::Resume => {
                if let Some(offer) = local.offer(now, offers, &address, read, 0) {
                    self.push(from, offer.to_vec());
                }
            }
            _ => {
                let Some(pair) = pairs.get_mut(&from) else { return };
                match pair.association.on_offer(now, &local, read, || bytes32(rng)) {
                    Some(accept) => {
                        self.push(from, accept.to_vec());
                        self.release_held(now, from);
                    }
                    None => self.refused.replayed += 1,
                }
            }
        }
    }

    fn open_sealed(
        &mut self,
        now: Time,
        from: HostId,
        fields: Clear,
        bytes: &[u8],
    ) -> Option<Opened> {
        let (clear, sealed) = bytes.split_at(CLEAR_BYTES);
        let mut buffer = sealed.to_vec();
        let opened = match self.pairs.get_mut(&from) {
            Some(pair) => pair
                .association
                .open(now, fields, clear, &mut buffer)
                .map(|opened| (SealedMessage::decode(opened.bytes), opened.confirmed)),
            None => Err(Unopened::Unknown),
        };
        match opened {
            Ok((message, confirmed)) => {
                if confirmed {
                    self.release_held(now, from);
                }
                let control = match message? {
                    SealedMessage::Empty => return None,
                    SealedMessage::Control(control) => control,
                    SealedMessage::Invitation(control, opener) => {
                        self.invited.insert(control.session, (from, opener));
                        control
                    }
                    SealedMessage::HashRequest(it) => return Some(Opened::HashRequest(from, it)),
                    SealedMessage::Hashes(it) => return Some(Opened::Hashes(from, it)),
                    SealedMessage::KeyRequest(it) => return Some(Opened::KeyRequest(from, it)),
                    SealedMessage::OwnKey(it, opener) => {
                        return Some(Opened::OwnKey(from, it, opener));
                    }
                };
                let packet = self.packet(from, control, bytes.len());
                Some(Opened::Packet(packet, Vec::new(), None))
            }
            Err(Unopened::Unknown) => {
                let mut report = Vec::new();
                wire::encode_lost(fields, &mut report);
                let tag = self.key.tag(&report);
                report.extend_from_slice(&tag);
                self.push(from, report);
                None
            }
            Err(Unopened::Session(OpenError::Forged)) => {
                self.refused.forged += 1;
                None
            }
            Err(Unopened::Session(OpenError::Replayed)) => {
                self.refused.replayed += 1;
                None
            }
        }
    }

    /// The address says who has sent a control packet.
    fn packet(&self, from: HostId, mut control: Control, len: usize) -> Packet<Header> {
        control.from = from;
        if control.to != TO_AGENT {
            control.to = self.me;
        }
        Packet::new(from, self.me, (len + IP_UDP_BYTES) as u32, Header::Control(control))
    }

    fn open_packet(&mut self, from: HostId, bytes: &[u8]) -> Option<Opened> {
        let Ok(decoded) = orca::decode(bytes, Some(&self.switch_key)) else {
            self.refused.forged += 1;
            return None;
        };
        let data = match decoded.header {
            Header::Control(control) if is_for_switches(&control) => {
                let packet = self.packet(from, control, bytes.len());
                return Some(Opened::Packet(packet, Vec::new(), None));
            }
            Header::Control(_) => {
                self.refused.forged += 1;
                return None;
            }
            Header::Data(data) => data,
        };
        let orca::Check::Sealed { counter, tag } = decoded.check else {
            self.refused.forged += 1;
            return None;
        };
        let mut body = bytes[decoded.payload].to_vec();
        let is_for_agents = data.labelled == Labelled::Pilot;
        let relayed = Relayed { body: body.clone(), check: decoded.check, left: 0 };
        let result = match self.openers.get_mut(&data.session) {
            Some(opener) => opener.open(counter, orca::associated(&data).as_ref(), tag, &mut body),
            None if is_for_agents => Ok(()),
            None => return None,
        };
        match result {
            Ok(()) => {}
            Err(OpenError::Forged) => {
                self.refused.forged += 1;
                return is_for_agents.then_some(Opened::Forward(from, data, relayed));
            }
            Err(OpenError::Replayed) => {
                self.refused.replayed += 1;
                return Some(Opened::Replay(data, body.len() as u64));
            }
        }
        let to = if data.labelled == Labelled::Host { self.me } else { TO_GROUP };
        let len = (bytes.len() + IP_UDP_BYTES) as u32;
        let packet = Packet::new(from, to, len, Header::Data(data));
        Some(Opened::Packet(packet, body, Some(relayed)))
    }
}

/// The stream as what a sender reads.
struct Reading<'a>(&'a Stream);

impl Source for Reading<'_> {
    fn stream(&self) -> u128 {
        self.0.number
    }

    fn available(&self) -> u64 {
        self.0.bytes.len() as u64
    }

    fn end(&self) -> Option<u64> {
        Some(self.available())
    }

    fn content(&self) -> u64 {
        self.available()
    }

    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError> {
        out.push(self.0.bytes[offset as usize..][..len].to_vec().into());
        Ok(())
    }
}

/// A receiver that has the key of a session's data, and seals other data with it than the sender.
#[derive(Debug)]
pub(super) struct Insider {
    session: Session,
    seal: GroupSeal,
    rng: Rng,
}

impl Insider {
    /// Its numbers of packets are some that the sender has yet to use, some beside those, or far above them.
    pub(super) fn new(session: Session, sealer: &GroupSeal, rng: &mut Rng) -> Self {
        let (cipher, key) = sealer.key();
        let mut seal = GroupSeal::new(cipher, *key);
        let lead = [rng.below(200), 4000, 20_000][rng.below(3) as usize];
        for _ in 0..sealer.sealed() + lead {
            let _ = seal.seal(b"", &mut []);
        }
        Self { session, seal, rng: Rng::stream(rng.next_u64(), 0, 0, "insider") }
    }

    pub(super) const fn session(&self) -> Session {
        self.session
    }

    /// Returns the next datagram: wrong bytes, or right ones, somewhere in the stream or beyond it, and sometimes an end.
    pub(super) fn forge(&mut self, stream: &Stream) -> Option<Vec<u8>> {
        let rng = &mut self.rng;
        let length = stream.bytes.len() as u64;
        let len = 1 + rng.below(900);
        let offset = rng.below(length + length / 8 + 1);
        let right = stream.bytes.get(offset as usize..(offset + len) as usize);
        let mut body = match right.filter(|_| rng.chance(0.2)) {
            Some(right) => right.to_vec(),
            None => vec![rng.next_u64() as u8; len as usize],
        };
        let data = Data {
            labelled: if rng.chance(0.5) { Labelled::Pilot } else { Labelled::Host },
            label: Label(0),
            session: self.session,
            offset,
            len: len as u16,
            repair: rng.chance(0.1),
            end: rng.chance(0.1),
            parity: None,
        };
        let (counter, tag) = self.seal.seal(orca::associated(&data).as_ref(), &mut body).ok()?;
        let mut bytes = Vec::new();
        orca::encode_relayed(&data, 1, orca::Check::Sealed { counter, tag }, &mut bytes);
        bytes.extend_from_slice(&body);
        Some(bytes)
    }
}
