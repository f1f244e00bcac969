//! Resumption at a host that many ports reach, with whatever the network does to first flights.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rackweave_core::{Rng, Span, Time};
use rackweave_crypt::{
    Association, Cipher, Due, EARLY_LIFETIME, EARLY_PACKETS, Early, FRESH, Key, Local, NotResumed,
    STRIKES, TICKET_LIFETIME, Ticket, Tickets,
};
use rackweave_wire::secure::{
    self, CLEAR_BYTES, Clear, Datagram, HANDSHAKE_BYTES, MAC_BYTES, PROVEN_BYTES,
};

fn key(n: u8) -> Key {
    Key::derive(&[n; 32]).unwrap()
}

fn at(ms: u64) -> Time {
    // A process of 300 days, which is more than 64 bits of picoseconds could say.
    Time::ZERO + Span::from_secs(300 * 86_400 + 4000) + Span::from_ms(ms)
}

/// A start of a server, without a handshake.
struct Server {
    key: Key,
    tickets: Tickets,
    /// By address and port.
    peers: BTreeMap<(u8, u16), Association>,
    /// The number of the start, from which its random numbers follow.
    start: u8,
}

impl Server {
    fn new(start: u8) -> Self {
        Self { key: key(1), tickets: Tickets::default(), peers: BTreeMap::new(), start }
    }

    fn local(&self) -> Local<'_> {
        Local { key: &self.key, ciphers: 3, incarnation: 77 }
    }

    fn advance(&mut self, now: Time) {
        let hour = now.ticks() / TICKET_LIFETIME.ticks();
        let start = self.start;
        self.tickets.advance(now, || [start ^ hour as u8; 32]);
    }

    /// A ticket as it would be sealed in a session of this peer.
    fn issue(&mut self, now: Time, address: u8, wall_ms: u64) -> Ticket {
        self.advance(now);
        let (name, secret) = self.tickets.issue(now, &[address], [5; 12]).unwrap();
        Ticket::new(name, secret, Cipher::ChaCha20Poly1305, wall_ms)
    }

    fn resume(&mut self, now: Time, from: (u8, u16), bytes: &[u8]) -> Result<(), NotResumed> {
        self.advance(now);
        if !self.key.verify(bytes) {
            return Err(NotResumed::NoTicket);
        }
        let Ok(Datagram::Handshake(read)) = secure::decode(bytes) else {
            return Err(NotResumed::NoTicket);
        };
        let local = Local { key: &self.key, ciphers: 3, incarnation: 77 };
        let association = self.peers.entry(from).or_default();
        association.on_resume(now, &local, &mut self.tickets, &[from.0], &read)
    }

    fn open(&mut self, now: Time, from: (u8, u16), bytes: &[u8]) -> Option<u64> {
        let Ok(Datagram::Sealed(clear)) = secure::decode(bytes) else { return None };
        let (head, sealed) = bytes.split_at(CLEAR_BYTES);
        let mut sealed = sealed.to_vec();
        let opened = self.peers.get_mut(&from)?.open(now, clear, head, &mut sealed).ok()?;
        Some(u64::from_be_bytes(*opened.bytes.first_chunk()?))
    }

    fn deliver(&mut self, now: Time, from: (u8, u16), bytes: &[u8]) -> Option<u64> {
        let _ = self.resume(now, from, bytes);
        self.open(now, from, bytes)
    }
}

/// The first flight of a start of a client: a resumption, and packets with these numbers.
fn flight(
    now: Time,
    wall_ms: u64,
    incarnation: u32,
    ticket: &Ticket,
    numbers: core::ops::Range<u64>,
) -> Vec<Vec<u8>> {
    let (key, mut client) = (key(1), Association::default());
    let local = Local { key: &key, ciphers: 3, incarnation };
    client.set_ticket(ticket.clone());
    let nonce = u64::from(incarnation) * 1000 + numbers.start;
    assert!(client.ask(now, || nonce));
    if !client.resume(now, &local, wall_ms, || nonce + 1) {
        return Vec::new();
    }
    let Due::Send(resume) = client.poll_ask(now, &local) else { panic!("it is due") };
    let mut flight = vec![resume.to_vec()];
    for number in numbers {
        assert_eq!(client.early(now), Early::Asked);
        flight.push(seal(&mut client, now, number));
    }
    flight
}

fn seal(from: &mut Association, now: Time, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let clear = |session, counter, out: &mut Vec<u8>| {
        secure::encode_sealed(Clear { session, counter }, out);
    };
    let session = from.seal_early(now).unwrap();
    session.seal(&mut out, clear, |out| out.extend(number.to_be_bytes())).unwrap();
    out
}

#[test]
fn a_flight_is_opened_once_by_its_start_at_its_address() {
    let mut server = Server::new(1);
    let ticket = server.issue(at(0), 9, 1000);
    let first = flight(at(500), 1500, 11, &ticket, 0..3);
    // A strange address, and a key that is another one.
    assert_eq!(server.resume(at(500), (8, 1), &first[0]), Err(NotResumed::NoTicket));
    let mut later = Server::new(2);
    assert_eq!(later.resume(at(500), (9, 1), &first[0]), Err(NotResumed::NoTicket));
    // Packets before the resumption are not opened.
    assert_eq!(server.open(at(500), (9, 1), &first[1]), None);
    assert_eq!(server.resume(at(500), (9, 1), &first[0]), Ok(()));
    assert_eq!(server.open(at(500), (9, 1), &first[2]), Some(1));
    assert_eq!(server.open(at(500), (9, 1), &first[2]), None);
    assert_eq!(server.open(at(501), (9, 1), &first[1]), Some(0));
    assert_eq!(server.resume(at(502), (9, 1), &first[0]), Err(NotResumed::Repeated));
    assert_eq!(server.resume(at(502), (9, 2), &first[0]), Err(NotResumed::Repeated));
    // The association is gone, as when an idle peer makes room for others.
    server.peers.clear();
    for ms in [600, 3000, 5000, 9000, 15_000, 100_000] {
        assert!(server.resume(at(ms), (9, 1), &first[0]).is_err(), "{ms}");
        assert_eq!(server.open(at(ms), (9, 1), &first[3]), None, "{ms}");
    }
}

#[test]
fn no_bit_can_be_changed() {
    let mut server = Server::new(1);
    let ticket = server.issue(at(0), 9, 1000);
    let first = flight(at(5), 1005, 11, &ticket, 0..1);
    for bit in 0..(PROVEN_BYTES + MAC_BYTES) * 8 {
        let mut changed = first[0].clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // Someone with the group's key makes the datagram's tag right.
        let tag = server.key.tag(&changed[..HANDSHAKE_BYTES - MAC_BYTES]);
        changed[HANDSHAKE_BYTES - MAC_BYTES..].copy_from_slice(&tag);
        assert!(server.resume(at(5), (9, 1), &changed).is_err(), "bit {bit}");
    }
    assert_eq!(server.resume(at(5), (9, 1), &first[0]), Ok(()));
}

#[test]
fn late_flights_and_expired_tickets_are_refused() {
    let fresh = FRESH.as_ps() / 1_000_000_000;
    let lifetime = TICKET_LIFETIME.as_ps() / 1_000_000_000;
    let wall = 1_000_000;
    let issued = |server: &mut Server| server.issue(at(0), 9, wall);
    // The flight is made after a second, and delivered after some more time.
    let cases = [(0, Ok(())), (fresh, Ok(())), (fresh + 1, Err(NotResumed::Late))];
    for (held, expected) in cases {
        let mut server = Server::new(1);
        let ticket = issued(&mut server);
        let first = flight(at(1000), wall + 1000, 11, &ticket, 0..1);
        assert_eq!(server.resume(at(1000 + held), (9, 1), &first[0]), expected, "{held}");
    }
    // The client's clock is ahead, or was set back.
    let mut server = Server::new(1);
    let ticket = issued(&mut server);
    let ahead = flight(at(1000), wall + 1001 + fresh, 11, &ticket, 0..1);
    assert_eq!(server.resume(at(1000), (9, 1), &ahead[0]), Err(NotResumed::Late));
    assert!(flight(at(1000), wall - 1, 11, &ticket, 0..1).is_empty());
    // Nearly an hour later the key of the hour before is still there.
    let last = flight(at(lifetime - 1), wall + lifetime - 1, 11, &ticket, 0..1);
    assert_eq!(server.resume(at(lifetime - 1), (9, 1), &last[0]), Ok(()));
    assert_eq!(server.resume(at(lifetime), (9, 2), &last[0]), Err(NotResumed::NoTicket));
    assert!(flight(at(lifetime), wall + lifetime, 11, &ticket, 0..1).is_empty());
}

/// A flight that was held back, or that is sent from another process's port, would otherwise drop what the transport knows of the
/// calls that are under way there.
#[test]
fn a_resumption_replaces_no_incarnation() {
    let mut server = Server::new(1);
    let ticket = server.issue(at(0), 9, 0);
    let [held, first, second] =
        [11, 12, 13].map(|incarnation| flight(at(5), 5, incarnation, &ticket, 0..1));
    assert_eq!(server.resume(at(5), (9, 1), &first[0]), Ok(()));
    assert_eq!(server.resume(at(5), (9, 1), &held[0]), Err(NotResumed::Known));
    assert_eq!(server.resume(at(5), (9, 1), &second[0]), Err(NotResumed::Known));
    assert_eq!(server.peers[&(9, 1)].incarnation(), Some(12));
    assert_eq!(server.open(at(5), (9, 1), &held[1]), None);
    assert_eq!(server.open(at(5), (9, 1), &first[1]), Some(0));
    // The same life may resume again before it has a session.
    let again = flight(at(6), 6, 12, &ticket, 1..2);
    assert_eq!(server.resume(at(6), (9, 1), &again[0]), Ok(()));
    assert_eq!(server.open(at(6), (9, 1), &again[1]), Some(1));
    // This host's own resumption, which somebody has returned.
    let own = flight(at(5), 5, server.local().incarnation, &ticket, 0..1);
    assert_eq!(server.resume(at(5), (9, 3), &own[0]), Err(NotResumed::Known));
}

#[test]
fn the_register_refuses_what_it_cannot_remember() {
    let mut server = Server::new(1);
    let ticket = server.issue(at(0), 9, 0);
    let flight = |n: u64| flight(at(0), 0, 11, &ticket, n..n);
    let mut accepted = 0;
    for n in 0..STRIKES as u64 + 10 {
        let port = (n % 60_000) as u16;
        server.peers.clear();
        accepted += usize::from(server.resume(at(0), (9, port), &flight(n)[0]).is_ok());
    }
    assert_eq!(accepted, STRIKES);
    server.peers.clear();
    let last = &flight(STRIKES as u64 + 10)[0];
    assert_eq!(server.resume(at(1), (9, 1), last), Err(NotResumed::Full));
    assert_eq!(server.resume(at(1), (9, 1), &flight(3)[0]), Err(NotResumed::Repeated));
    // Later there is room again.
    let later = flight_at(&ticket, 12_000);
    assert_eq!(server.resume(at(12_000), (9, 1), &later[0]), Ok(()));
}

/// It forgets in steps of ten seconds, in which a flight stays fresh.
#[test]
fn the_register_remembers_over_its_epochs() {
    for first_ms in [0, 4_000, 9_999, 10_000] {
        let mut server = Server::new(1);
        let ticket = server.issue(at(0), 9, 0);
        // A client whose clock is ahead makes it fresh for longest.
        let made_ms = first_ms + FRESH.as_ps() / 1_000_000_000;
        let first = flight(at(first_ms), made_ms, 11, &ticket, 0..1);
        assert_eq!(server.resume(at(first_ms), (9, 1), &first[0]), Ok(()));
        for later_ms in [1, 5_000, 9_000, 9_999, 10_000, 10_001] {
            server.peers.clear();
            let again = server.resume(at(first_ms + later_ms), (9, 1), &first[0]);
            let expected = if later_ms <= 10_000 { NotResumed::Repeated } else { NotResumed::Late };
            assert_eq!(again, Err(expected), "{first_ms} and {later_ms} ms later");
        }
    }
}

fn flight_at(ticket: &Ticket, ms: u64) -> Vec<Vec<u8>> {
    flight(at(ms), ms, 11, ticket, 0..1)
}

#[test]
fn an_early_session_is_short() {
    let mut server = Server::new(1);
    let ticket = server.issue(at(0), 9, 0);
    let (key, mut client) = (key(1), Association::default());
    let local = Local { key: &key, ciphers: 3, incarnation: 11 };
    client.set_ticket(ticket);
    client.ask(at(0), || 1);
    assert!(client.resume(at(0), &local, 0, || 2));
    let Due::Send(resume) = client.poll_ask(at(0), &local) else { panic!("it is due") };
    assert_eq!(server.resume(at(0), (9, 1), &resume), Ok(()));
    let packets: Vec<_> = (0..EARLY_PACKETS).map(|n| seal(&mut client, at(0), n)).collect();
    assert_eq!(client.early(at(0)), Early::No, "it has sent as many as it may");
    let mut opened = 0;
    for packet in &packets[1..] {
        opened += u64::from(server.open(at(1), (9, 1), packet).is_some());
    }
    assert_eq!(opened, EARLY_PACKETS - 1);
    let server_side = server.peers.get_mut(&(9, 1)).unwrap();
    assert!(!server_side.is_ready(), "it is not a session of a handshake");
    assert_eq!(server_side.early(at(1)), Early::Answers);
    let end = at(0) + EARLY_LIFETIME;
    assert_eq!(server_side.early(end), Early::No);
    assert_eq!(server.open(end, (9, 1), &packets[0]), None);
    // Its answer is opened by the client, and tells that the ticket's start has accepted.
    let mut answer = seal(server.peers.get_mut(&(9, 1)).unwrap(), at(1), 5);
    let Ok(Datagram::Sealed(clear)) = secure::decode(&answer) else { panic!("it is sealed") };
    let (head, sealed) = answer.split_at_mut(CLEAR_BYTES);
    assert!(client.open(at(2), clear, head, sealed).is_ok());
}

/// A client that does not keep to the bound finds it at the server.
#[test]
fn a_server_opens_a_bounded_number_of_early_packets() {
    let mut server = Server::new(1);
    let ticket = server.issue(at(0), 9, 0);
    let (key, mut client) = (key(1), Association::default());
    let local = Local { key: &key, ciphers: 3, incarnation: 11 };
    client.set_ticket(ticket);
    client.ask(at(0), || 1);
    assert!(client.resume(at(0), &local, 0, || 2));
    let Due::Send(resume) = client.poll_ask(at(0), &local) else { panic!("it is due") };
    assert_eq!(server.resume(at(0), (9, 1), &resume), Ok(()));
    let session = client.seal_early(at(0)).unwrap();
    let mut opened = 0;
    for number in 0..EARLY_PACKETS + 50 {
        let mut packet = Vec::new();
        let clear = |session, counter, out: &mut Vec<u8>| {
            secure::encode_sealed(Clear { session, counter }, out);
        };
        session.seal(&mut packet, clear, |out| out.extend(number.to_be_bytes())).unwrap();
        opened += u64::from(server.open(at(1), (9, 1), &packet).is_some());
    }
    assert_eq!(opened, EARLY_PACKETS);
}

#[derive(Clone, Debug)]
enum Step {
    /// A new life of the client at one of its addresses, which sends a flight.
    Start(u8),
    /// A datagram of all time arrives, as if from this address and port.
    Deliver(prop::sample::Index, u8, u16),
    /// With a bit changed.
    Change(prop::sample::Index, prop::sample::Index),
    Pass(u64),
    /// A ticket is issued to the newest life.
    Issue(u8),
    /// The server restarts.
    Restart,
    /// The server forgets an idle peer.
    Evict,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (0_u8..2).prop_map(Step::Start),
        16 => (index(), 0_u8..2, 0_u16..3).prop_map(|(what, at, port)| Step::Deliver(what, at, port)),
        2 => (index(), index()).prop_map(|(what, bit)| Step::Change(what, bit)),
        4 => prop_oneof![Just(1_u64), Just(900), Just(4000), Just(11_000), Just(3_000_000)]
            .prop_map(Step::Pass),
        2 => (0_u8..2).prop_map(Step::Issue),
        1 => Just(Step::Restart),
        1 => Just(Step::Evict),
    ]
}

proptest! {
    #![proptest_config(rackweave_testing::cases(400))]

    /// In any order, with losses, repetitions, changes, recorded traffic, other ports, and restarts of both hosts: an early
    /// packet is opened once at most, by the start whose ticket it was sent with, and while the flight is fresh or its session lives.
    #[test]
    fn an_early_packet_is_opened_once_at_most(
        seed in 0_u64..1000,
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut rng = Rng::stream(seed, 0, 0, "early");
        let mut server = Server::new(1);
        let (mut now_ms, mut life, mut sent) = (0, 100, 0);
        let mut tickets: [Option<(u8, Ticket)>; 2] = [None, None];
        // Each datagram, when it was sent, and by which start's ticket.
        let mut recorded: Vec<(Vec<u8>, u64, u8)> = Vec::new();
        let mut opened: BTreeMap<u64, (u64, u8)> = BTreeMap::new();
        for step in &steps {
            let now = at(now_ms);
            match *step {
                Step::Issue(address) => {
                    let ticket = server.issue(now, address, now_ms);
                    tickets[usize::from(address)] = Some((server.start, ticket));
                }
                Step::Start(address) => {
                    life += 1;
                    let Some((start, ticket)) = &tickets[usize::from(address)] else { continue };
                    let numbers = sent..sent + 1 + rng.below(3);
                    let flight = flight(now, now_ms, life, ticket, numbers.clone());
                    sent = numbers.end;
                    recorded.extend(flight.into_iter().map(|bytes| (bytes, now_ms, *start)));
                }
                Step::Deliver(which, address, port) if !recorded.is_empty() => {
                    let (bytes, sent_ms, start) = &recorded[which.index(recorded.len())];
                    if let Some(number) = server.deliver(now, (address, port), bytes) {
                        prop_assert_eq!(server.start, *start, "another start has opened it");
                        let earlier = opened.insert(number, (*sent_ms, *start));
                        prop_assert!(earlier.is_none(), "{} was opened twice", number);
                        let fresh = FRESH + EARLY_LIFETIME;
                        prop_assert!(now.since(at(*sent_ms)) <= fresh, "{} is late", number);
                    }
                }
                Step::Change(which, bit) if !recorded.is_empty() => {
                    let mut bytes = recorded[which.index(recorded.len())].0.clone();
                    let bit = bit.index(bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    for address in 0..2 {
                        prop_assert_eq!(server.deliver(now, (address, 0), &bytes), None);
                    }
                }
                Step::Pass(ms) => now_ms += ms,
                Step::Restart => server = Server::new(server.start + 1),
                Step::Evict => server.peers.clear(),
                Step::Deliver(..) | Step::Change(..) => {}
            }
        }
        prop_assert!(opened.keys().all(|number| *number < sent));
    }
}
