//! SWP2P's messages through the fabric as frames, without sockets.

mod alike;

use std::collections::BTreeMap;
use std::sync::Arc;

use rackweave_core::{HostId, Rate, Span};
use rackweave_orca::system::Orca;
use rackweave_switch::Fabric;
use rackweave_switch::config::{FabricConfig, SwitchConfig, Topology};
use rackweave_switch::system::SystemProgram;
use rackweave_swp2p::switch::Config;
use rackweave_swp2p::system::Swp2p;
use rackweave_wire::frame::{host_at, ip_address, mac_address};
use rackweave_wire::frisbee::{
    Auth, Body, Chunks, Direction, Header, KIND, Key, PORT, REPORT_MAP_BYTES, SESSION_BYTES,
    TAG_BYTES, decode, encode,
};
use rackweave_wire::overlay;

use super::checksum;
use super::core::{Core, CoreConfig};
use super::frame::{
    Encapsulation, Rules, Unfit, finish_datagram, finish_frame, read_datagram, read_frame,
};

/// The list of `rackweave-testbed`.
type Systems = (Option<Orca>, Option<Swp2p>);

const SERVER: HostId = HostId(0);
const IMAGE: u32 = 0xfee1_600d;
const SESSION: u64 = 0x5e55_1007;
/// What follows a message with a key.
const TRAILER: usize = SESSION_BYTES + TAG_BYTES;
/// The priority at which hosts send control messages.
const CLASS: u8 = 7 << 5;

fn fabric(topology: Topology) -> Fabric {
    let delay = |n: u64| Span::from_ns(50 + n * 7);
    let hosts = topology.hosts();
    let mut config = FabricConfig::new(topology)
        .with_link_delay(Span::from_ps(103_013))
        .without_host_delays()
        .with_switch(SwitchConfig::default().with_buffer(512 << 10).without_marking());
    // Delays that differ, so that two frames hardly ever meet at the same time.
    config.host_link_delays =
        (0..u64::from(hosts)).map(|n| Span::from_ticks(delay(n).ticks() + n * 13)).collect();
    Fabric::new(&config).unwrap()
}

const ONE_SWITCH: Topology = Topology::SingleSwitch { hosts: 5, host_link: Rate(1_000_000_000) };

const LEAVES: Topology = Topology::LeafSpine {
    leaves: 3,
    hosts_per_leaf: 3,
    spines: 2,
    host_link: Rate(1_000_000_000),
    core_link: Rate(7_000_000_000),
};

/// Appends the trailer of a client's message.
fn seal(key: Option<Key>, bytes: &mut Vec<u8>) {
    Auth::from(key).seal(bytes, 0, SESSION, Direction::ToServer);
}

fn session(key: Option<Key>, bytes: &[u8]) -> Option<u64> {
    Auth::from(key).session(bytes, Direction::ToServer)
}

/// What a host has received.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Got {
    host: HostId,
    src: HostId,
    /// The message, with its payload and whatever follows.
    bytes: Vec<u8>,
}

impl Got {
    fn body(&self) -> Body {
        decode(&self.bytes).unwrap().header.body
    }
}

struct Bench {
    core: Core<Systems>,
    rules: Rules<Systems>,
    encapsulation: Encapsulation,
    key: Option<Key>,
}

impl Bench {
    fn new(topology: Topology, encapsulation: Encapsulation, key: Option<Key>) -> Self {
        let swp2p = Swp2p { config: Config::data_plane(SERVER), key };
        let system: Arc<Systems> = Arc::new((Some(Orca::default()), Some(swp2p)));
        let fabric = fabric(topology);
        let (hosts, switches) = (fabric.hosts(), fabric.switches());
        let rules = Rules { hosts, switches, mtu: 1500, system: Arc::clone(&system) };
        let core = CoreConfig {
            fabric,
            faults: Vec::new(),
            moves: Vec::new(),
            seed: 1,
            run: 0,
            frames: 4096,
            nic_queue_bytes: u64::MAX,
            sample_every: Span::ZERO,
            system,
            encapsulation,
            mtu: 1500,
        };
        Self { core: core.build().unwrap(), rules, encapsulation, key }
    }

    /// Every way of attaching hosts, without a key and with one.
    fn all(topology: Topology) -> impl Iterator<Item = Self> {
        let ways = [Encapsulation::Overlay, Encapsulation::Ethernet];
        let keys = [None, Some(Key::derive(b"secret"))];
        ways.into_iter().flat_map(move |way| keys.map(|key| Self::new(topology.clone(), way, key)))
    }

    /// The bytes of a message as a host sends them.
    fn message(&self, src: HostId, body: Body, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&Header::new(src, body), &mut bytes);
        bytes.extend_from_slice(payload);
        let server = ip_address(SERVER).unwrap();
        let direction = Direction::of(&Header::new(src, body), server);
        Auth::from(self.key).seal(&mut bytes, 0, SESSION, direction);
        bytes
    }

    fn frame(&self, src: HostId, dst: HostId, message: &[u8]) -> Vec<u8> {
        match self.encapsulation {
            Encapsulation::Overlay => datagram(src, dst, message),
            Encapsulation::Ethernet => ethernet(src, dst, message),
        }
    }

    /// A frame from a host's socket enters the fabric.
    fn enter(&mut self, src: HostId, frame: &[u8]) -> Result<(), Unfit> {
        let read = match self.encapsulation {
            Encapsulation::Overlay => read_datagram(frame, CLASS, src, &self.rules),
            Encapsulation::Ethernet => read_frame(frame, src, &self.rules),
        }?;
        let slot = self.core.payloads().insert(frame).unwrap();
        self.core.arrive(self.core.now(), src, read.map(|carried| carried.with_slot(slot)));
        Ok(())
    }

    /// Returns what hosts have received since the last call, ordered by host.
    fn arrivals(&mut self) -> Vec<Got> {
        self.core.run(self.core.now() + Span::from_ms(1));
        let mut got = Vec::new();
        while let Some(departure) = self.core.departure() {
            let (host, packet) = (departure.host, departure.packet);
            let (src, bytes) = match self.encapsulation {
                Encapsulation::Overlay => {
                    let (class, bytes) = finish_datagram(self.core.payloads(), &packet, host);
                    let envelope = overlay::decode_group(bytes).unwrap();
                    assert_eq!((class, envelope.dst), (CLASS, host));
                    (envelope.src, bytes[overlay::BYTES as usize..].to_vec())
                }
                Encapsulation::Ethernet => {
                    let len = finish_frame(self.core.payloads(), &packet, host);
                    let frame = &self.core.payloads().get(packet.header.slot)[..len];
                    (check_frame(frame, host), frame[42..].to_vec())
                }
            };
            self.core.payloads().release(packet.header.slot);
            got.push(Got { host, src, bytes });
        }
        assert_eq!((self.core.payloads().live(), self.core.packets()), (0, 0), "no slot is lost");
        got.sort_by_key(|got| got.host);
        got
    }

    fn send_bytes(&mut self, src: HostId, dst: HostId, message: &[u8]) -> Vec<Got> {
        let frame = self.frame(src, dst, message);
        self.enter(src, &frame).unwrap();
        self.arrivals()
    }

    fn send(&mut self, src: u32, body: Body) -> Vec<Got> {
        let message = self.message(HostId(src), body, &[]);
        self.send_bytes(HostId(src), SERVER, &message)
    }

    /// A client reports these chunks of the first window; the report reaches the server unchanged.
    fn report(&mut self, src: u32, chunks: &[usize]) {
        let message =
            self.message(HostId(src), Body::Report { image: IMAGE, window: 0 }, &map(chunks));
        let got = self.send_bytes(HostId(src), SERVER, &message);
        assert_eq!(got, [Got { host: SERVER, src: HostId(src), bytes: message }]);
    }

    fn holders(&self, chunk: u32) -> Vec<HostId> {
        let program = self.core.program(0).program().1.as_ref().unwrap();
        program.directory().holders(IMAGE, chunk)
    }

    /// The counters of all switches.
    fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for switch in 0..self.rules.switches {
            for (name, count) in self.core.program(switch).program().counters() {
                *sums.entry(name).or_default() += count;
            }
        }
        sums
    }
}

fn map(chunks: &[usize]) -> Vec<u8> {
    let mut map = vec![0; REPORT_MAP_BYTES as usize];
    for chunk in chunks {
        map[chunk / 8] |= 1 << (chunk % 8);
    }
    map
}

fn datagram(src: HostId, dst: HostId, message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    overlay::encode_group(KIND, src, dst, message.len() as u16, &mut bytes);
    bytes.extend_from_slice(message);
    bytes
}

fn ethernet(src: HostId, dst: HostId, message: &[u8]) -> Vec<u8> {
    let total = (28 + message.len()) as u16;
    let mut bytes = vec![0; 42];
    bytes[..6].copy_from_slice(&mac_address(dst));
    bytes[6..12].copy_from_slice(&mac_address(src));
    bytes[12..16].copy_from_slice(&[8, 0, 0x45, CLASS]);
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    bytes[22..24].copy_from_slice(&[64, 17]);
    bytes[26..30].copy_from_slice(&ip_address(src).unwrap());
    bytes[30..34].copy_from_slice(&ip_address(dst).unwrap());
    bytes[34..36].copy_from_slice(&PORT.to_be_bytes());
    bytes[36..38].copy_from_slice(&PORT.to_be_bytes());
    bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    bytes.extend_from_slice(message);
    checksum::fill(&mut bytes);
    bytes
}

/// Checks a frame as the receiver's kernel does, and returns its source.
fn check_frame(frame: &[u8], host: HostId) -> HostId {
    checksum::assert_right(frame);
    let ip = &frame[14..];
    assert_eq!(
        (frame[..6].to_vec(), ip[16..20].to_vec()),
        (mac_address(host).to_vec(), ip_address(host).unwrap().to_vec())
    );
    let src = host_at([ip[12], ip[13], ip[14], ip[15]]).unwrap();
    assert_eq!(frame[6..12], mac_address(src));
    assert_eq!(
        (ip[1], &ip[20..22], &ip[22..24]),
        (CLASS, &PORT.to_be_bytes()[..], &PORT.to_be_bytes()[..])
    );
    src
}

const fn chunks(first: u32, count: u16) -> Chunks {
    Chunks { image: IMAGE, first, count, tries: 0 }
}

const fn batch(first: u32, count: u16) -> Body {
    Body::Batch(chunks(first, count))
}

#[test]
fn a_request_goes_to_the_holder_and_is_otherwise_unchanged() {
    for mut bench in Bench::all(ONE_SWITCH) {
        // The first and the last chunk of the window: a tag behind the bitmap is no part of it.
        bench.report(1, &[0]);
        bench.report(2, &[8191]);
        let holders = |chunk| bench.holders(chunk);
        assert_eq!(
            [0, 1, 8190, 8191].map(holders),
            [vec![HostId(1)], vec![], vec![], vec![HostId(2)]]
        );
        for (chunk, holder) in [(0, 1), (8191, 2), (77, 0)] {
            let message = bench.message(HostId(3), batch(chunk, 1), &[]);
            let got = bench.send_bytes(HostId(3), SERVER, &message);
            assert_eq!(got, [Got { host: HostId(holder), src: HostId(3), bytes: message }]);
        }
        // A holder that leaves is not chosen.
        bench.send(2, Body::Exit { client: 1, image: IMAGE });
        assert_eq!(bench.send(4, batch(8191, 1))[0].host, SERVER);
        assert_eq!(bench.send(1, batch(8191, 1))[0].host, HostId(4), "who is about to have it");
        let counters = bench.counters();
        let named = |names: [&str; 5]| names.map(|name| counters[name]);
        let names =
            ["requests", "redirected", "not_authentic", "chunks_to_holders", "chunks_to_pending"];
        assert_eq!(named(names), [5, 3, 0, 2, 1]);
    }
}

#[test]
fn a_batch_is_divided_into_messages_of_the_requester() {
    for mut bench in Bench::all(ONE_SWITCH) {
        bench.report(1, &[10, 11]);
        bench.report(2, &[13]);
        let got = bench.send(3, batch(10, 4));
        let seen: Vec<_> = got.iter().map(|got| (got.host.0, got.src.0, got.body())).collect();
        assert_eq!(seen, [(0, 3, batch(12, 1)), (1, 3, batch(10, 2)), (2, 3, batch(13, 1))]);
        for got in &got {
            assert_eq!(session(bench.key, &got.bytes), Some(SESSION));
        }
        assert_eq!((bench.counters()["split"], bench.core.counters().made), (1, 3));
    }
}

#[test]
fn a_return_is_redirected_once_more_or_goes_on() {
    for mut bench in Bench::all(ONE_SWITCH) {
        bench.report(1, &[5, 6]);
        let first = bench.send(3, batch(5, 2));
        assert_eq!(first[0].host, HostId(1));
        bench.report(2, &[6]);
        let requester = ip_address(HostId(3)).unwrap();
        let returned = |first, count| Body::Return { chunks: chunks(first, count), requester };
        // One that was not redirected to this host is the server's to judge.
        let got = bench.send(4, returned(5, 2));
        assert_eq!((got.len(), got[0].host, got[0].body()), (1, SERVER, returned(5, 2)));
        let got = bench.send(1, returned(5, 2));
        let seen: Vec<_> = got.iter().map(|got| (got.host.0, got.src.0, got.body())).collect();
        assert_eq!(seen, [(0, 1, returned(5, 1)), (2, 3, batch(6, 1))]);
        assert!(got.iter().all(|got| session(bench.key, &got.bytes) == Some(SESSION)));
        assert_eq!(bench.holders(5), []);
    }
}

#[test]
fn two_switches_do_not_redirect_the_same_message() {
    for mut bench in Bench::all(LEAVES) {
        // Hosts 3 to 5 are at the second leaf, 6 to 8 at the third.
        bench.report(3, &[1]);
        let got = bench.send(6, batch(1, 2));
        let lifted = bench.counters()["requests"];
        // Which spine a message crosses depends on its addresses; the server's leaf sees all.
        assert_eq!(got.len(), 2, "{got:?}");
        assert_eq!((got[0].host, got[0].body()), (SERVER, batch(2, 1)));
        assert_eq!((got[1].host, got[1].src, got[1].body()), (HostId(3), HostId(6), batch(1, 1)));
        assert!((2..=3).contains(&lifted), "{lifted}");
        let requester = ip_address(HostId(6)).unwrap();
        let returned = Body::Return { chunks: chunks(1, 1), requester };
        let before = bench.counters();
        let got = bench.send(3, returned);
        assert_eq!((got.len(), got[0].host, got[0].src), (1, SERVER, HostId(3)));
        assert_eq!(got[0].body(), returned, "not redirected to the holder by another switch");
        let after = bench.counters();
        assert_eq!(after["redirected"], before["redirected"]);
        assert_eq!(after["chunks_returned"], 1, "by the one that had redirected it");
    }
}

#[test]
fn without_the_right_tag_nothing_is_believed() {
    let key = Key::derive(b"secret");
    for encapsulation in [Encapsulation::Overlay, Encapsulation::Ethernet] {
        let mut bench = Bench::new(ONE_SWITCH, encapsulation, Some(key));
        bench.report(1, &[9]);
        let good = bench.message(HostId(2), Body::Report { image: IMAGE, window: 0 }, &map(&[9]));
        let mut other = good[..good.len() - TRAILER].to_vec();
        seal(Some(Key::derive(b"other")), &mut other);
        let longer = [&good[..], &[0]].concat();
        let bits = (0..good.len() * 8).step_by(61).map(|bit| {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            bad
        });
        let whole =
            [good[..good.len() - TRAILER].to_vec(), good[..good.len() - 1].to_vec(), other, longer];
        let mut dropped = 0;
        for bad in whole.into_iter().chain(bits) {
            let frame = bench.frame(HostId(2), SERVER, &bad);
            let is_message = decode(&bad).is_ok();
            // Bytes that are no message are another application's, or, with UDP ports, nobody's.
            let entered = bench.enter(HostId(2), &frame);
            let got = bench.arrivals();
            match (is_message, encapsulation) {
                (true, _) => assert_eq!((entered, got), (Ok(()), vec![])),
                (false, Encapsulation::Ethernet) => assert_eq!(got[0].bytes, bad),
                (false, Encapsulation::Overlay) => assert_eq!(entered, Err(Unfit::Malformed)),
            }
            dropped += u64::from(is_message);
        }
        assert!(dropped > 100);
        assert_eq!(bench.counters()["not_authentic"], dropped);
        assert_eq!(bench.holders(9), [HostId(1)]);
        // What is addressed to a client is verified too.
        let batch = batch(9, 1);
        let mut message = bench.message(HostId(2), batch, &[]);
        assert_eq!(bench.send_bytes(HostId(2), HostId(1), &message).len(), 1);
        message.pop();
        assert_eq!(bench.send_bytes(HostId(2), HostId(1), &message), []);
    }
}

#[test]
fn forged_and_truncated_frames_change_nothing() {
    for mut bench in Bench::all(ONE_SWITCH) {
        bench.report(1, &[9]);
        let report = Body::Report { image: IMAGE, window: 0 };
        // In the name of another host: refused at the edge, or by the program, which leaves it to the server.
        let of_other = bench.message(HostId(4), report, &map(&[9]));
        let frame = bench.frame(HostId(4), SERVER, &of_other);
        assert_eq!(bench.enter(HostId(2), &frame), Err(Unfit::Foreign));
        let got = bench.send_bytes(HostId(2), SERVER, &of_other);
        assert_eq!(got, [Got { host: SERVER, src: HostId(2), bytes: of_other }]);
        let exit = bench.message(HostId(1), Body::Exit { client: 1, image: IMAGE }, &[]);
        assert_eq!(bench.send_bytes(HostId(2), SERVER, &exit)[0].host, SERVER);
        assert_eq!(bench.holders(9), [HostId(1)]);
        // The server's own messages are nobody's request.
        let redirect = Body::Redirect { chunks: chunks(9, 1), requester: [10, 0, 0, 3] };
        let redirect = bench.message(SERVER, redirect, &[]);
        assert_eq!(bench.send_bytes(SERVER, HostId(1), &redirect)[0].bytes, redirect);
        // The longest image number that a bitmap fits, and chunks beyond every image.
        for far in [batch(u32::MAX >> 1, u16::MAX), batch(0, 0), batch((1 << 20) - 1, 2)] {
            assert_eq!(bench.send(3, far)[0].host, SERVER, "{far:?}");
        }

        let whole = bench.message(HostId(2), report, &map(&[9]));
        let frame = bench.frame(HostId(2), SERVER, &whole);
        for len in 0..frame.len() {
            // The IP header has the length of the whole packet, so nothing shorter is one.
            assert!(bench.enter(HostId(2), &frame[..len]).is_err(), "{len}");
        }
        // Without a key, a message without its trailer is one of a host that has no session.
        let end = if bench.key.is_some() { whole.len() } else { whole.len() - SESSION_BYTES };
        for len in 0..end {
            // A whole packet with a part of the message: forwarded to its addressee, and not read.
            let part = bench.frame(HostId(2), SERVER, &whole[..len]);
            let _ = bench.enter(HostId(2), &part);
            assert!(bench.arrivals().len() <= 1);
            assert_eq!(bench.holders(9), [HostId(1)], "{len}");
        }
    }
}

#[test]
fn the_length_of_the_datagram_is_what_receivers_read() {
    let mut bench = Bench::new(ONE_SWITCH, Encapsulation::Ethernet, None);
    bench.report(1, &[9]);
    let message = bench.message(HostId(2), batch(9, 1), &[]);
    let good = ethernet(HostId(2), SERVER, &message);
    // Padding to Ethernet's minimum, or beyond it, belongs to no packet.
    bench.enter(HostId(2), &[&good[..], &[0x55; 30]].concat()).unwrap();
    let got = bench.arrivals();
    assert_eq!((got[0].host, &got[0].bytes), (HostId(1), &message));
    for said in [0, 7, 8, 35, 37, u16::MAX] {
        let mut bad = good.clone();
        bad[38..40].copy_from_slice(&said.to_be_bytes());
        bench.enter(HostId(2), &bad).unwrap();
        bench.core.run(bench.core.now() + Span::from_ms(1));
        let departure = bench.core.departure().unwrap();
        assert_eq!((departure.host, departure.packet.header.view()), (SERVER, None), "{said}");
        bench.core.payloads().release(departure.packet.header.slot);
    }
    // One of several fragments is no message either.
    for fragment in [[0x20, 0], [0, 1]] {
        let mut bad = good.clone();
        bad[20..22].copy_from_slice(&fragment);
        let read = read_frame(&bad, HostId(2), &bench.rules).unwrap();
        assert_eq!((read.dst, read.header.view()), (SERVER, None));
    }
}
