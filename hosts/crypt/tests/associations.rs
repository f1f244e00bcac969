//! Two hosts with their tables: what strangers get, what is refused, and what the limits are.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rackweave_core::{Span, Time};
use rackweave_crypt::{
    Accepted, Association, Associations, Due, Handled, Held, Key, KeyMismatch, Peers, Refused,
    Sender, notice, read,
};
use rackweave_wire::secure::{Clear, Datagram, HANDSHAKE_BYTES, Handshake, Notice, decode};

type Bytes = [u8; HANDSHAKE_BYTES];

fn key(n: u8) -> Key {
    Key::derive(&[n; 32]).unwrap()
}

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_secs(100) + Span::from_ms(ms)
}

fn address(peer: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], peer))
}

/// The peers of a host by the ports that they have.
#[derive(Default)]
struct Known(BTreeMap<u16, Association>);

/// The incarnation that a host announces to a peer, another one to each.
const fn ours(host: u16, peer: u16) -> u32 {
    host as u32 * 1000 + peer as u32
}

struct Table {
    host: u16,
    known: Known,
}

impl Peers<u16> for Table {
    fn association(&self, peer: u16) -> Option<&Association> {
        self.known.0.get(&peer)
    }

    fn association_mut(&mut self, peer: u16) -> Option<(&mut Association, u32)> {
        let ours = ours(self.host, peer);
        self.known.0.get_mut(&peer).map(|it| (it, ours))
    }
}

/// A host with the port of its own.
struct Host {
    all: Associations<u16>,
    table: Table,
    random: u64,
}

impl Host {
    fn new(host: u16) -> Self {
        let all = Associations::new(key(1), false, true);
        Self { all, table: Table { host, known: Known::default() }, random: u64::from(host) << 32 }
    }

    fn ask(&mut self, now: Time, peer: u16) {
        let association = self.table.known.0.entry(peer).or_default();
        self.random += 1;
        let nonce = self.random;
        self.all.ask(now, peer, association, || nonce);
    }

    /// The datagrams that are due, with their receivers.
    fn poll(&mut self, now: Time) -> Vec<(u16, Bytes)> {
        let due = self.all.poll_asks(now, &mut self.table).into_iter();
        due.filter_map(|(peer, due)| match due {
            Due::Send(bytes) => Some((peer, bytes)),
            _ => None,
        })
        .collect()
    }

    fn handshake(&mut self, bytes: &[u8]) -> Handshake {
        match read(Some(self.all.key()), bytes) {
            Ok(Datagram::Handshake(handshake)) => handshake,
            other => panic!("{other:?}"),
        }
    }

    /// Handles a datagram from the address of a peer.
    fn handle(&mut self, now: Time, from: u16, bytes: &[u8]) -> Handled {
        let handshake = self.handshake(bytes);
        let peer = Some(from).filter(|peer| self.table.known.0.contains_key(peer));
        let sender = Sender { peer, address: address(from), ours: ours(self.table.host, from) };
        let random = &mut self.random;
        let handled = self.all.on_handshake(now, &mut self.table, sender, &handshake, || {
            *random += 1;
            [*random as u8; 32]
        });
        if let Handled::Accepted(_, Some(first)) = handled {
            self.table.known.0.insert(from, *first);
            return Handled::Accepted(Accepted::New(false), None);
        }
        handled
    }

    fn seal(&mut self, peer: u16, byte: u8) -> Vec<u8> {
        let mut out = Vec::new();
        let session = self.table.known.0.get_mut(&peer).unwrap().sealing().unwrap();
        session.seal_datagram(&mut out, |out| out.extend_from_slice(&[byte, byte])).unwrap();
        out
    }

    fn open(&mut self, now: Time, peer: u16, datagram: &[u8]) -> Option<(u8, bool)> {
        let Ok(Datagram::Sealed(fields)) = read(Some(self.all.key()), datagram) else {
            return None;
        };
        let (clear, mut buffer) = self.all.take_buffer(datagram);
        let association = self.table.known.0.get_mut(&peer)?;
        let opened = association.open(now, fields, clear, &mut buffer);
        let opened = opened.ok().map(|it| (it.bytes[0], it.confirmed));
        self.all.put_back(buffer);
        opened
    }
}

fn offer(handled: Handled) -> Bytes {
    match handled {
        Handled::Asked(Some(offer)) => offer,
        other => panic!("{other:?}"),
    }
}

/// Two hosts with a session that the first one has asked for, and the datagrams of their handshake.
fn pair(now: Time) -> (Host, Host, [Bytes; 3]) {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    a.ask(now, 2);
    let [(2, ask)] = a.poll(now)[..] else { panic!("one ask") };
    let offer = offer(b.handle(now, 1, &ask));
    assert!(b.table.known.0.is_empty(), "an ask leaves nothing");
    let Handled::Offered(acceptance) = a.handle(now, 2, &offer) else { panic!("no acceptance") };
    let handled = b.handle(now, 1, &acceptance);
    assert!(matches!(handled, Handled::Accepted(Accepted::New(false), None)), "{handled:?}");
    (a, b, [ask, offer, acceptance])
}

#[test]
fn a_session_takes_one_round_trip_and_its_confirmation_ends_the_ask() {
    let (mut a, mut b, _) = pair(at(0));
    let first = a.seal(2, 7);
    assert_eq!(b.open(at(0), 1, &first), Some((7, false)));
    assert!(a.all.next_ask(&a.table).is_some());
    let confirmation = b.seal(1, 8);
    assert_eq!(a.open(at(0), 2, &confirmation), Some((8, true)));
    assert_eq!((a.all.next_ask(&a.table), a.poll(at(500)).len()), (None, 0));
    // A packet is opened once.
    assert_eq!((b.open(at(0), 1, &first), a.open(at(0), 2, &confirmation)), (None, None));
}

/// Without the confirmation the acceptance is sent again, which brings the same session once more; what is recorded brings nothing.
#[test]
fn recorded_messages_of_a_handshake_are_late() {
    let (mut a, mut b, [ask, offer, acceptance]) = pair(at(0));
    assert_eq!(a.poll(at(5))[..], [(2, acceptance)]);
    let again = b.handle(at(5), 1, &acceptance);
    assert!(matches!(again, Handled::Accepted(Accepted::Again, None)), "{again:?}");
    let confirmation = b.seal(1, 8);
    assert!(a.open(at(5), 2, &confirmation).is_some());
    assert!(matches!(a.handle(at(6), 2, &offer), Handled::Late));
    // From another address the acceptance is nobody's.
    assert!(matches!(b.handle(at(6), 3, &acceptance), Handled::Asked(_)));
    // A second handshake; then the acceptance of the first one is refused, also if the offer is still valid.
    a.ask(at(10), 2);
    let [(2, second)] = a.poll(at(10))[..] else { panic!("one ask") };
    let Handled::Asked(Some(second)) = b.handle(at(10), 1, &second) else { panic!("no offer") };
    assert!(matches!(a.handle(at(10), 2, &offer), Handled::Late), "it answers the first ask");
    let Handled::Offered(second) = a.handle(at(10), 2, &second) else { panic!("no acceptance") };
    let handled = b.handle(at(10), 1, &second);
    assert!(matches!(handled, Handled::Accepted(Accepted::New(false), None)), "{handled:?}");
    assert!(matches!(b.handle(at(11), 1, &acceptance), Handled::Late));
    // An ask is answered at any time, and leaves nothing.
    assert!(matches!(b.handle(at(11), 4, &ask), Handled::Asked(Some(_))));
    assert!(b.table.known.0.keys().eq(&[1]));
}

/// A host announces another incarnation to each peer, so that it knows its own ask by the number only.
#[test]
fn a_host_does_not_answer_itself() {
    let mut a = Host::new(1);
    a.ask(at(0), 2);
    let [(2, ask)] = a.poll(at(0))[..] else { panic!("one ask") };
    for from in [2, 3] {
        assert!(matches!(a.handle(at(0), from, &ask), Handled::Own));
    }
    let mut b = Host::new(2);
    let offer = offer(b.handle(at(0), 1, &ask));
    assert!(matches!(b.handle(at(0), 1, &offer), Handled::Stranger));
    // An offer carries the number of the ask, and is not taken for one.
    assert!(matches!(a.handle(at(0), 2, &offer), Handled::Offered(_)));
}

#[test]
fn recorded_asks_cause_a_bounded_number_of_offers_per_address() {
    let mut a = Host::new(1);
    a.ask(at(0), 2);
    let [(2, ask)] = a.poll(at(0))[..] else { panic!("one ask") };
    let mut b = Host::new(2);
    let mut offers = |now, from| {
        let handled = (0..1000).map(|_| b.handle(now, from, &ask));
        handled.filter(|it| matches!(it, Handled::Asked(Some(_)))).count()
    };
    assert_eq!(offers(at(0), 1), 64);
    assert_eq!(offers(at(0), 1), 0);
    assert_eq!(offers(at(1000), 1), 32);
    assert!((2..40).any(|from| offers(at(1000), from) > 0), "others get theirs");
}

#[test]
fn a_silent_peer_is_given_up_in_turn_and_can_be_asked_again() {
    let mut a = Host::new(1);
    for peer in [5, 3, 4] {
        a.ask(at(0), peer);
        // Further packets for it ask no more.
        a.ask(at(0), peer);
    }
    assert_eq!(a.all.asks(), 3);
    let first = a.poll(at(0));
    assert_eq!(first.iter().map(|(peer, _)| *peer).collect::<Vec<_>>(), [5, 3, 4]);
    let (mut asks, mut silent) = (0, Vec::new());
    while let Some(next) = a.all.next_ask(&a.table) {
        for (peer, due) in a.all.poll_asks(next, &mut a.table) {
            match due {
                Due::Send(_) => asks += 1,
                due => {
                    assert_eq!(due, Due::Silent);
                    silent.push(peer);
                }
            }
        }
        assert!(next < at(1000));
    }
    assert!((3 * 5..3 * 10).contains(&asks), "{asks}");
    assert_eq!(silent, [5, 3, 4]);
    a.ask(at(2000), 3);
    assert_eq!(a.poll(at(2000)).len(), 1);
    // The next one to be asked is the one whose turn comes first.
    a.ask(at(2500), 4);
    assert_eq!(a.all.next_ask(&a.table), Some(at(2001)));
    // Of a peer that is forgotten nothing is left.
    a.table.known.0.clear();
    assert!(a.all.next_ask(&a.table).is_none() && a.poll(at(3000)).is_empty());
    assert_eq!(a.all.asks(), 0);
}

/// The ask that a peer has confirmed is not mistaken for one that has begun since.
#[test]
fn a_peer_that_is_asked_again_at_once_is_asked_once() {
    let (mut a, mut b, [first, ..]) = pair(at(0));
    let confirmation = b.seal(1, 8);
    assert!(a.open(at(0), 2, &confirmation).is_some());
    a.ask(at(0), 2);
    assert_eq!(a.poll(at(0)).len(), 1);
    assert!(matches!(a.handle(at(0), 2, &first), Handled::Asked(_)), "it was answered");
    let next = a.all.next_ask(&a.table).unwrap();
    assert_eq!((a.poll(next).len(), a.all.asks()), (1, 1));
}

/// What a host says of a peer that cannot resume does not change its offers.
#[test]
fn offers_tell_only_those_that_may_resume_whether_they_are_known() {
    let (mut a, mut b, _) = pair(at(0));
    let ciphers = |b: &mut Host, a: &mut Host| {
        let confirmation = b.seal(1, 1);
        let _ = a.open(at(1), 2, &confirmation);
        a.ask(at(1), 2);
        let ask = a.poll(at(1))[0].1;
        let Ok(Datagram::Handshake(offer)) = decode(&offer(b.handle(at(1), 1, &ask))) else {
            panic!("no offer")
        };
        (a.handshake(&ask).ciphers, offer.ciphers)
    };
    let (asked, offered) = ciphers(&mut b, &mut a);
    assert_ne!(asked, offered);
    let (mut a, mut b, _) = pair(at(0));
    b.all = Associations::new(key(1), false, false);
    let (asked, offered) = ciphers(&mut b, &mut a);
    assert_eq!(asked, offered);
}

#[test]
fn what_is_not_authentic_is_refused_and_notices_are_not_answered() {
    let (mut a, b, [ask, offer, acceptance]) = pair(at(0));
    let sealed = a.seal(2, 3);
    let lost = b.all.lost(Clear { session: 9, counter: 5 });
    assert!(lost.len() <= sealed.len());
    let mine = key(1);
    let authentic = |bytes: &[u8]| read(Some(&mine), bytes);
    assert_eq!(authentic(&lost), Ok(Datagram::Lost(Clear { session: 9, counter: 5 })));
    assert!(matches!(authentic(&sealed), Ok(Datagram::Sealed(_))));
    // Only an ask with another key is answered: what else arrives may be an answer itself.
    let other = key(2);
    let answers = |bytes: &[u8]| read(Some(&other), bytes).unwrap_err().answer();
    assert_eq!(answers(&ask), Some(Notice::OtherKey));
    assert_eq!([&offer[..], &acceptance, &lost].map(answers), [None; 3]);
    for bytes in [&ask[..], &offer, &acceptance, &lost] {
        assert!(matches!(authentic(bytes), Ok(Datagram::Handshake(_) | Datagram::Lost(_))));
        for at in 2..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1;
            assert!(matches!(authentic(&changed), Err(Refused::Forged(_))), "{at}");
        }
        assert_eq!(read(None, bytes), Err(Refused::Keyless));
    }
    assert_eq!(read(None, &sealed).map_err(Refused::answer), Err(Some(Notice::NoKey)));
    assert_eq!(authentic(&sealed[..20]).map_err(Refused::answer), Err(None));
    // Notices end every exchange, so that two hosts cannot answer each other for ever.
    for it in [Notice::NoKey, Notice::NeedsKey, Notice::OtherKey] {
        let bytes = notice(it);
        assert!(bytes.len() < sealed.len());
        for key in [None, Some(&mine)] {
            assert_eq!(read(key, &bytes), Ok(Datagram::Notice(it)));
        }
    }
}

#[test]
fn a_notice_counts_only_if_it_fits() {
    let of = KeyMismatch::of;
    assert_eq!(of(Notice::NoKey, true), Some(KeyMismatch::PeerHasNone));
    assert_eq!(of(Notice::OtherKey, true), Some(KeyMismatch::Another));
    assert_eq!(of(Notice::NeedsKey, false), Some(KeyMismatch::PeerHasOne));
    assert_eq!([of(Notice::NoKey, false), of(Notice::OtherKey, false)], [None; 2]);
    assert_eq!(of(Notice::NeedsKey, true), None);
}

#[test]
fn a_bounded_number_of_packets_waits() {
    let mut first: Held<u32, 3> = Held::default();
    let kept: Vec<bool> = (0..5).map(|n| first.push(n)).collect();
    assert_eq!(kept, [true, true, true, false, false]);
    first.retain(|n| *n != 1);
    assert_eq!(first.take(), [0, 2]);
    assert!(first.is_empty() && first.capacity() == 0);
    let mut last: Held<u32, 3> = Held::default();
    (0..5).for_each(|n| last.push_newest(n));
    assert_eq!(last.take(), [2, 3, 4]);
}
