//! Two hosts over a network that loses, duplicates, reorders, changes and replays datagrams, while hosts restart: nothing is
//! accepted twice, nothing that was not sent is accepted, and afterwards both hosts can talk again. Hosts keep tickets over
//! their restarts, and send some messages early.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rackweave_core::{Rng, Span, Time};
use rackweave_crypt::{
    Accepted, Association, Cipher, Due, Early, Key, Local, Offers, SEAL_PACKETS, Ticket, Tickets,
    Unopened,
};
use rackweave_wire::secure::{
    self, CLEAR_BYTES, Clear, Datagram, HANDSHAKE_BYTES, Handshake, Kind,
};

/// A bit of a message that was sealed in the session of a resumption. Such a copy of a message counts for itself, since no
/// transport removes it here.
const EARLY: u64 = 1 << 63;

/// A bit of an early message's answer.
const ANSWER: u64 = 1 << 62;

/// A host with one peer, without sockets.
struct Host {
    key: Key,
    ciphers: u8,
    incarnation: u32,
    address: [u8; 1],
    offers: Offers,
    association: Association,
    rng: Rng,
    /// Messages that wait for a session.
    waiting: Vec<u64>,
    /// How often each message was accepted.
    accepted: BTreeMap<u64, u32>,
    restarts_seen: u32,
    largest_answer: usize,
    tickets: Tickets,
    /// What the host has written to a file.
    ticket: Option<Ticket>,
}

/// The clock by which hosts count the age of tickets.
fn wall_ms(now: Time) -> u64 {
    1_800_000_000_000 + now.as_ms()
}

/// Whether a message may be executed more than once.
const fn is_idempotent(message: u64) -> bool {
    message & 2 == 0
}

impl Host {
    fn new(key: Key, ciphers: u8, address: u8, seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 0, 0, "host");
        Self {
            key,
            ciphers,
            incarnation: rng.below(u64::from(u32::MAX)) as u32 + 1,
            address: [address],
            offers: Offers::default(),
            association: Association::default(),
            rng,
            waiting: Vec::new(),
            accepted: BTreeMap::new(),
            restarts_seen: 0,
            largest_answer: 0,
            tickets: Tickets::default(),
            ticket: None,
        }
    }

    fn random(rng: &mut Rng) -> [u8; 32] {
        let mut bytes = [0; 32];
        for byte in &mut bytes {
            *byte = rng.below(256) as u8;
        }
        bytes
    }

    fn seal(&mut self, message: Option<u64>) -> Option<Vec<u8>> {
        let session = self.association.sealing()?;
        Self::seal_in(session, |out| match message {
            Some(message) => out.extend(message.to_be_bytes()),
            None => secure::encode_empty(out),
        })
    }

    /// Hands a ticket to the peer, in a session that is not an early one.
    fn issue(&mut self, now: Time, address: &[u8]) -> Option<Vec<u8>> {
        let rng = &mut self.rng;
        self.tickets.advance(now, || Self::random(rng));
        let (name, secret) = self.tickets.issue(now, address, [self.rng.below(256) as u8; 12])?;
        let session = self.association.sealing()?;
        Self::seal_in(session, |out| secure::encode_grant(&name, &secret, out))
    }

    fn seal_in(
        session: &mut rackweave_crypt::Session,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let clear = |session, counter, out: &mut Vec<u8>| {
            secure::encode_sealed(Clear { session, counter }, out);
        };
        session.seal(&mut out, clear, body).unwrap();
        Some(out)
    }

    fn send(&mut self, now: Time, message: u64, out: &mut Vec<Vec<u8>>) {
        self.waiting.push(message);
        self.release(out);
        if !self.waiting.is_empty() || self.association.is_old(now) {
            let rng = &mut self.rng;
            if self.association.ask(now, || rng.below(u64::MAX)) && is_idempotent(message) {
                if self.association.ticket().is_none()
                    && self.association.incarnation().is_none()
                    && let Some(ticket) = self.ticket.clone()
                {
                    self.association.set_ticket(ticket);
                }
                let Self { key, ciphers, incarnation, .. } = self;
                let local = Local { key, ciphers: *ciphers, incarnation: *incarnation };
                let random = || self.rng.below(u64::MAX);
                if self.association.resume(now, &local, wall_ms(now), random) {
                    self.tick(now, out);
                }
            }
        }
        if !self.association.is_ready()
            && self.association.early(now) == Early::Asked
            && is_idempotent(message)
            && let Some(session) = self.association.seal_early(now)
        {
            let body = |out: &mut Vec<u8>| out.extend((message | EARLY).to_be_bytes());
            out.extend(Self::seal_in(session, body));
        }
    }

    fn release(&mut self, out: &mut Vec<Vec<u8>>) {
        while self.association.is_ready() && !self.waiting.is_empty() {
            let message = self.waiting.remove(0);
            out.extend(self.seal(Some(message)));
        }
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        let local = Local { key: &self.key, ciphers: self.ciphers, incarnation: self.incarnation };
        match self.association.poll_ask(now, &local) {
            Due::Send(bytes) => out.push(bytes.to_vec()),
            Due::Silent => self.waiting.clear(),
            Due::Idle | Due::Later(_) => {}
        }
    }

    fn receive(&mut self, now: Time, from: &[u8], bytes: &[u8], out: &mut Vec<Vec<u8>>) {
        let before = out.len();
        let answers = self.handle(now, from, bytes, out);
        let sent: usize = out[before..].iter().map(Vec::len).sum();
        if !answers {
            self.largest_answer = self.largest_answer.max(sent * 100 / bytes.len().max(1));
        }
    }

    /// Returns whether the datagram proved the peer's address, so that the host may send any amount.
    fn handle(&mut self, now: Time, from: &[u8], bytes: &[u8], out: &mut Vec<Vec<u8>>) -> bool {
        let Ok(read) = secure::decode(bytes) else { return false };
        let tagged = matches!(read, Datagram::Handshake(_) | Datagram::Lost(_));
        if tagged && !self.key.verify(bytes) {
            return false;
        }
        match read {
            Datagram::Handshake(read) => self.handshake(now, from, &read, out),
            Datagram::Sealed(clear) => {
                let (head, sealed) = bytes.split_at(CLEAR_BYTES);
                let mut sealed = sealed.to_vec();
                match self.association.open(now, clear, head, &mut sealed) {
                    Ok(opened) => {
                        let (confirmed, grant) =
                            (opened.confirmed, secure::decode_grant(opened.bytes));
                        let message = opened.bytes.first_chunk().map(|it| u64::from_be_bytes(*it));
                        if opened.restarted {
                            self.restarts_seen += 1;
                            self.waiting.clear();
                        }
                        if confirmed {
                            out.extend(self.issue(now, from));
                        }
                        if let Some((name, secret)) = grant {
                            let cipher = self.association.cipher().expect("there is a session");
                            let ticket = Ticket::new(name, secret, cipher, wall_ms(now));
                            self.association.set_ticket(ticket.clone());
                            self.ticket = Some(ticket);
                        } else if let Some(message) = message {
                            *self.accepted.entry(message).or_default() += 1;
                            out.extend(self.answer_early(now, message));
                        }
                        self.release(out);
                        return true;
                    }
                    Err(Unopened::Unknown) => {
                        let mut lost = Vec::new();
                        secure::encode_lost(clear, &mut lost);
                        let tag = self.key.tag(&lost);
                        lost.extend(tag);
                        out.push(lost);
                    }
                    Err(Unopened::Session(_)) => {}
                }
                false
            }
            Datagram::Lost(clear) => {
                if self.association.on_lost(now, clear.session) {
                    let rng = &mut self.rng;
                    self.association.ask(now, || rng.below(u64::MAX));
                }
                false
            }
            Datagram::Notice(_) => false,
        }
    }

    /// The answer to an early message, if there is no other session yet.
    fn answer_early(&mut self, now: Time, message: u64) -> Option<Vec<u8>> {
        if message & (EARLY | ANSWER) != EARLY || self.association.is_ready() {
            return None;
        }
        assert_eq!(self.association.early(now), Early::Answers);
        // Its sender's number is the lowest bit.
        let answer = (message | ANSWER) ^ 1;
        let session = self.association.seal_early(now)?;
        Self::seal_in(session, |out| out.extend(answer.to_be_bytes()))
    }

    fn handshake(
        &mut self,
        now: Time,
        from: &[u8],
        read: &Handshake,
        out: &mut Vec<Vec<u8>>,
    ) -> bool {
        let local = Local { key: &self.key, ciphers: self.ciphers, incarnation: self.incarnation };
        let rng = &mut self.rng;
        self.offers.advance(now, || Self::random(rng));
        let mut resumed = false;
        if read.kind == Kind::Resume {
            self.tickets.advance(now, || Self::random(rng));
            let before = self.association.incarnation();
            let result = self.association.on_resume(now, &local, &mut self.tickets, from, read);
            resumed = result.is_ok();
            if result.is_err() {
                assert_eq!(self.association.incarnation(), before);
            }
        }
        match read.kind {
            Kind::Accept if read.to == self.incarnation => {
                let accepted =
                    self.association.on_accept(now, &local, &mut self.offers, from, read);
                if let Some(accepted) = accepted {
                    if accepted == Accepted::New(true) {
                        self.restarts_seen += 1;
                        self.waiting.clear();
                    }
                    out.extend(self.seal(None));
                    if accepted != Accepted::Again {
                        out.extend(self.issue(now, from));
                    }
                    self.release(out);
                    return true;
                }
            }
            Kind::Ask | Kind::Accept | Kind::Resume => {
                let flags = self.association.flags(read);
                let offer = local.offer(now, &mut self.offers, from, read, flags);
                out.extend(offer.map(|offer| offer.to_vec()));
                return resumed;
            }
            _ => {
                let accept = self.association.on_offer(now, &local, read, || Self::random(rng));
                if let Some(accept) = accept {
                    out.push(accept.to_vec());
                    self.release(out);
                    return true;
                }
            }
        }
        false
    }
}

fn key(n: u8) -> Key {
    Key::derive(&[n; 32]).unwrap()
}

struct World {
    hosts: [Host; 2],
    now: Time,
    /// Datagrams in flight, to a host.
    flying: Vec<(usize, Vec<u8>)>,
    /// All datagrams of all time, which the attacker has recorded.
    recorded: Vec<(usize, Vec<u8>)>,
    sent: u64,
    seed: u64,
}

impl World {
    fn new(seed: u64, ciphers: [u8; 2]) -> Self {
        let host = |n: u8| Host::new(key(1), ciphers[usize::from(n)], n, seed + u64::from(n));
        Self {
            hosts: [host(0), host(1)],
            now: Time::ZERO + Span::from_secs(300 * 86_400),
            flying: Vec::new(),
            recorded: Vec::new(),
            sent: 0,
            seed,
        }
    }

    fn launch(&mut self, from: usize, datagrams: Vec<Vec<u8>>) {
        for bytes in datagrams {
            self.recorded.push((1 - from, bytes.clone()));
            self.flying.push((1 - from, bytes));
        }
    }

    fn send(&mut self, from: usize) -> u64 {
        // A message names its sender, since both count together.
        let message = self.sent * 2 + from as u64;
        self.sent += 1;
        let mut out = Vec::new();
        self.hosts[from].send(self.now, message, &mut out);
        self.launch(from, out);
        message
    }

    fn pass(&mut self, span: Span) {
        self.now += span;
        for host in 0..2 {
            let mut out = Vec::new();
            self.hosts[host].tick(self.now, &mut out);
            self.launch(host, out);
        }
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let from = self.hosts[1 - to].address;
        let mut out = Vec::new();
        self.hosts[to].receive(self.now, &from, bytes, &mut out);
        self.launch(to, out);
    }

    fn restart(&mut self, host: usize) {
        self.seed += 1000;
        self.check();
        let old = &self.hosts[host];
        let seed = self.seed + host as u64;
        let mut new = Host::new(old.key.clone(), old.ciphers, old.address[0], seed);
        // What was accepted before must not be accepted after the restart either.
        new.accepted = std::mem::take(&mut self.hosts[host].accepted);
        new.ticket = self.hosts[host].ticket.take();
        self.hosts[host] = new;
    }

    /// What must hold at any time.
    fn check(&self) {
        for (number, host) in self.hosts.iter().enumerate() {
            for (message, count) in &host.accepted {
                assert_eq!(*count, 1, "message {message} was accepted {count} times");
                let number_sent = message & !(EARLY | ANSWER);
                assert!(number_sent < self.sent * 2, "message {message} was never sent");
                assert_eq!((*message % 2) as usize, 1 - number, "a message came back");
            }
            // An unproven address gets no more than it has sent.
            assert!(host.largest_answer <= 100, "{} %", host.largest_answer);
        }
    }

    /// Delivers everything in order, without faults, until a new message of each host has arrived at the other.
    fn heal(&mut self) {
        for from in 0..2 {
            let mut message = self.send(from);
            let mut rounds = 0;
            while !self.hosts[1 - from].accepted.contains_key(&message) {
                rounds += 1;
                assert!(rounds < 400, "the hosts do not find each other again");
                for (to, bytes) in std::mem::take(&mut self.flying) {
                    self.deliver(to, &bytes);
                }
                self.pass(Span::from_ms(1));
                // A transport repeats what is not acknowledged.
                if rounds % 20 == 0 {
                    message = self.send(from);
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Deliver(prop::sample::Index),
    Duplicate(prop::sample::Index),
    Lose(prop::sample::Index),
    Change(prop::sample::Index, prop::sample::Index),
    Cut(prop::sample::Index, prop::sample::Index),
    Replay(prop::sample::Index),
    Reflect(prop::sample::Index),
    Pass(u64),
    Restart(usize),
    /// The host drops its sessions, as with a peer that is idle.
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        8 => (0_usize..2).prop_map(Step::Send),
        16 => index().prop_map(Step::Deliver),
        2 => index().prop_map(Step::Duplicate),
        2 => index().prop_map(Step::Lose),
        1 => (index(), index()).prop_map(|(which, bit)| Step::Change(which, bit)),
        1 => (index(), index()).prop_map(|(which, length)| Step::Cut(which, length)),
        2 => index().prop_map(Step::Replay),
        1 => index().prop_map(Step::Reflect),
        6 => prop_oneof![Just(1_u64), Just(20), Just(500), Just(11_000), Just(130_000)]
            .prop_map(Step::Pass),
        1 => (0_usize..2).prop_map(Step::Restart),
        1 => (0_usize..2).prop_map(Step::Forget),
    ]
}

fn apply(world: &mut World, step: &Step) {
    let pick = |index: &prop::sample::Index, count: usize| (count > 0).then(|| index.index(count));
    match step {
        Step::Send(from) => {
            world.send(*from);
        }
        Step::Deliver(which) => {
            if let Some(which) = pick(which, world.flying.len()) {
                let (to, bytes) = world.flying.swap_remove(which);
                world.deliver(to, &bytes);
            }
        }
        Step::Duplicate(which) => {
            if let Some(which) = pick(which, world.flying.len()) {
                let (to, bytes) = world.flying[which].clone();
                world.deliver(to, &bytes);
            }
        }
        Step::Lose(which) => {
            if let Some(which) = pick(which, world.flying.len()) {
                world.flying.swap_remove(which);
            }
        }
        Step::Change(which, bit) => {
            if let Some(which) = pick(which, world.flying.len()) {
                let (_, bytes) = &mut world.flying[which];
                let bit = bit.index(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        Step::Cut(which, length) => {
            if let Some(which) = pick(which, world.flying.len()) {
                let (_, bytes) = &mut world.flying[which];
                bytes.truncate(length.index(bytes.len()).max(1));
            }
        }
        Step::Replay(which) => {
            if let Some(which) = pick(which, world.recorded.len()) {
                let (to, bytes) = world.recorded[which].clone();
                world.deliver(to, &bytes);
            }
        }
        Step::Reflect(which) => {
            if let Some(which) = pick(which, world.recorded.len()) {
                let (to, bytes) = world.recorded[which].clone();
                world.deliver(1 - to, &bytes);
            }
        }
        Step::Pass(ms) => world.pass(Span::from_ms(*ms)),
        Step::Restart(host) => world.restart(*host),
        Step::Forget(host) => {
            world.hosts[*host].association.release();
        }
    }
}

proptest! {
    #![proptest_config(rackweave_testing::cases(200))]

    #[test]
    fn nothing_is_accepted_twice_and_nothing_forged(
        seed in 0_u64..1_000_000,
        aes in any::<[bool; 2]>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new(seed, aes.map(Cipher::preferred));
        for step in &steps {
            apply(&mut world, step);
            world.check();
        }
        world.heal();
        world.check();
    }
}

/// One host's messages to the other, over a network without faults.
fn exchange(world: &mut World) {
    world.heal();
    world.flying.clear();
}

#[test]
fn the_first_messages_follow_the_acceptance_after_one_round_trip() {
    let mut world = World::new(1, [3, 3]);
    let message = world.send(0);
    world.pass(Span::ZERO);
    let mut trips = 0;
    while !world.hosts[1].accepted.contains_key(&message) {
        trips += 1;
        for (to, bytes) in std::mem::take(&mut world.flying) {
            assert!(trips > 2 || bytes.len() == HANDSHAKE_BYTES);
            world.deliver(to, &bytes);
        }
    }
    assert_eq!(trips, 3, "ask, offer, then acceptance and message together");
    assert!(world.hosts[1].association.cipher() == Some(Cipher::Aes256Gcm));
}

#[test]
fn a_recorded_conversation_means_nothing_to_restarted_hosts_nor_to_living_ones() {
    let mut world = World::new(2, [3, 2]);
    for _ in 0..20 {
        exchange(&mut world);
    }
    let tape = world.recorded.clone();
    for restart in [false, true] {
        if restart {
            world.restart(0);
            world.restart(1);
        }
        let before = [0, 1].map(|host| world.hosts[host].accepted.len());
        for (to, bytes) in &tape {
            world.deliver(*to, bytes);
        }
        world.check();
        let after = [0, 1].map(|host| world.hosts[host].accepted.len());
        assert_eq!(before, after);
        assert_eq!(world.hosts[0].restarts_seen + world.hosts[1].restarts_seen, 0);
        world.flying.clear();
        exchange(&mut world);
    }
}

#[test]
fn a_delayed_acceptance_of_an_earlier_incarnation_is_no_restart() {
    let mut world = World::new(3, [3, 3]);
    world.send(0);
    world.pass(Span::ZERO);
    // Ask and offer arrive; the acceptance and the first message are delayed.
    for _ in 0..2 {
        let (to, bytes) = world.flying.remove(0);
        world.deliver(to, &bytes);
    }
    let delayed = std::mem::take(&mut world.flying);
    assert_eq!(delayed.len(), 2);
    world.restart(0);
    world.pass(Span::from_ms(1));
    exchange(&mut world);
    for (to, bytes) in &delayed {
        world.deliver(*to, bytes);
    }
    assert_eq!(world.hosts[1].restarts_seen, 0);
    world.check();
    exchange(&mut world);
}

/// The first incarnation may have executed what was sealed for it behind the acceptance, although it has confirmed nothing.
#[test]
fn a_peer_that_restarts_before_it_has_confirmed_is_a_restart_if_something_was_sealed_for_it() {
    let mut world = World::new(10, [3, 3]);
    let executed = world.send(0);
    world.pass(Span::ZERO);
    // Ask, offer, and then the acceptance with the message behind it. The confirmation is lost.
    for _ in 0..2 {
        let (to, bytes) = world.flying.remove(0);
        world.deliver(to, &bytes);
    }
    for (to, bytes) in std::mem::take(&mut world.flying) {
        world.deliver(to, &bytes);
    }
    assert!(world.hosts[1].accepted.contains_key(&executed));
    world.flying.clear();
    world.restart(1);
    // The acceptance is repeated, and the new incarnation answers it with an offer. A transport repeats its message meanwhile.
    let repeated = world.send(0);
    world.flying.clear();
    for _ in 0..20 {
        world.pass(Span::from_ms(1));
        for (to, bytes) in std::mem::take(&mut world.flying) {
            world.deliver(to, &bytes);
        }
        if world.hosts[0].restarts_seen == 0 {
            let mut out = Vec::new();
            world.hosts[0].waiting = vec![repeated];
            world.hosts[0].release(&mut out);
            world.launch(0, out);
        }
    }
    assert_eq!(world.hosts[0].restarts_seen, 1);
    assert!(!world.hosts[1].accepted.contains_key(&repeated), "it was for the first incarnation");
    exchange(&mut world);
}

#[test]
fn sessions_are_renewed_by_time_and_by_packets() {
    let mut world = World::new(4, [3, 3]);
    exchange(&mut world);
    let handshakes = |world: &World| {
        world.recorded.iter().filter(|(_, bytes)| bytes.len() == HANDSHAKE_BYTES).count()
    };
    let before = handshakes(&world);
    exchange(&mut world);
    assert_eq!(handshakes(&world), before);
    world.pass(Span::from_secs(200));
    exchange(&mut world);
    // By packets: as many as the cipher allows are never sealed with one key, even if the peer is silent.
    let first = &mut world.hosts[0];
    let mut sealed = 0;
    while first.seal(None).is_some() {
        sealed += 1;
        assert!(sealed <= SEAL_PACKETS);
    }
    assert!(!first.association.is_ready() && first.association.is_old(world.now));
    assert!(sealed > SEAL_PACKETS / 2);
    exchange(&mut world);
    assert!(handshakes(&world) > before);
    assert_eq!(world.hosts[0].restarts_seen + world.hosts[1].restarts_seen, 0);
    world.check();
}

#[test]
fn another_key_opens_nothing() {
    let mut world = World::new(5, [3, 3]);
    world.hosts[1].key = key(2);
    world.send(0);
    for _ in 0..50 {
        world.pass(Span::from_ms(10));
        for (to, bytes) in std::mem::take(&mut world.flying) {
            world.deliver(to, &bytes);
        }
    }
    assert!(world.hosts[1].accepted.is_empty() && !world.hosts[0].association.is_ready());
    assert!(world.hosts[1].association.incarnation().is_none());
}

/// Someone on the path returns every packet of a host to it, from the address of the host that it was meant for.
#[test]
fn a_host_whose_packets_are_returned_has_no_session_with_itself() {
    let mut world = World::new(5, [3, 3]);
    world.send(0);
    for _ in 0..50 {
        world.pass(Span::from_ms(1));
        for (to, bytes) in std::mem::take(&mut world.flying) {
            assert_eq!(to, 1, "only host 0 has sent");
            world.deliver(0, &bytes);
        }
    }
    assert!(!world.hosts[0].association.is_ready());
    assert!(world.hosts[0].accepted.is_empty());
    // It can be reached as before.
    exchange(&mut world);
    assert!(world.hosts[0].association.is_ready() && world.hosts[0].restarts_seen == 0);
}

/// The datagrams of a kind that were sent to a host.
fn sent_to(world: &World, host: usize, kind: Kind) -> usize {
    let is = |bytes: &[u8]| match secure::decode(bytes) {
        Ok(Datagram::Handshake(read)) => read.kind == kind,
        _ => false,
    };
    world.recorded.iter().filter(|(to, bytes)| *to == host && is(bytes)).count()
}

/// An attacker at another admitted address sends a host's sealed packet to its peer, which does not have that session with the
/// attacker, and brings the peer's report to the host as if the peer had sent it to that.
#[test]
fn reports_of_lost_sessions_cannot_force_a_handshake_per_round_trip() {
    let mut world = World::new(6, [3, 3]);
    exchange(&mut world);
    let before = sent_to(&world, 1, Kind::Ask);
    let mut peer = Host::new(key(1), 3, 1, 7);
    for _ in 0..1000 {
        let message = world.send(0);
        let sealed = |(to, bytes): &&(usize, Vec<u8>)| {
            *to == 1 && matches!(secure::decode(bytes), Ok(Datagram::Sealed(_)))
        };
        let packet = world.recorded.iter().rev().find(sealed).map(|(_, bytes)| bytes.clone());
        let mut report = Vec::new();
        peer.receive(world.now, b"a stranger", &packet.unwrap(), &mut report);
        assert!(matches!(secure::decode(&report[0]), Ok(Datagram::Lost(_))));
        world.deliver(0, &report[0]);
        for _ in 0..4 {
            world.pass(Span::ZERO);
            for (to, bytes) in std::mem::take(&mut world.flying) {
                world.deliver(to, &bytes);
            }
        }
        world.pass(Span::from_ms(1));
        assert!(world.hosts[1].accepted.contains_key(&message), "nothing waits for a handshake");
    }
    let forced = sent_to(&world, 1, Kind::Ask) - before;
    assert!(forced <= 11, "{forced} handshakes in a second");
    // A real loss is mended after the interval at the latest, as packets are repeated.
    world.restart(1);
    exchange(&mut world);
    assert_eq!(world.hosts[0].restarts_seen, 1);
}

#[test]
fn a_peer_that_restarts_several_times_within_the_interval_is_served_each_time() {
    let mut world = World::new(8, [3, 3]);
    exchange(&mut world);
    let began = world.now;
    for restarts in 1..=5 {
        world.restart(1);
        exchange(&mut world);
        assert_eq!(world.hosts[0].restarts_seen, restarts);
    }
    // A message is lost with each restart, and repeated after 20 ms.
    assert!(world.now.since(began) < Span::from_ms(5 * 60), "{:?}", world.now.since(began));
}

/// Asks have a tag, but recorded ones are authentic for ever, and each costs the host that is asked a public-key operation.
#[test]
fn recorded_asks_cause_a_limited_number_of_offers_and_others_are_still_answered() {
    let mut world = World::new(9, [3, 3]);
    exchange(&mut world);
    let (_, ask) = world.recorded.iter().find(|(to, _)| *to == 1).unwrap().clone();
    let mut out = Vec::new();
    for n in 0..100_000_u32 {
        let now = world.now + Span::from_us(10 * u64::from(n));
        world.hosts[1].receive(now, b"one address", &ask, &mut out);
    }
    assert!((64..=100).contains(&out.len()), "{} offers in a second", out.len());
    world.pass(Span::from_secs(1));
    out.clear();
    for address in 0..100_000_u32 {
        world.hosts[1].receive(world.now, &address.to_be_bytes(), &ask, &mut out);
    }
    let most = 64 * 256;
    assert!((most / 2..=most).contains(&out.len()), "{} offers at once", out.len());
    world.pass(Span::from_secs(2));
    // While one address is flooded, another one is answered at once.
    let mut answers = 0;
    for n in 0..1000_u32 {
        world.hosts[1].receive(world.now, b"one address", &ask, &mut Vec::new());
        out.clear();
        world.hosts[1].receive(world.now, &n.to_be_bytes(), &ask, &mut out);
        answers += out.len();
    }
    assert!(answers > 900, "{answers} of 1000");
    exchange(&mut world);
}
