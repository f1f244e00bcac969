//! Compares the program in the kernel with SWP2P's program in Rust, frame by frame.

use std::collections::BTreeMap;

use rackweave_core::{HostId, Packet, PayloadStore, Port, Rng, Span, Time, Verdict};
use rackweave_switch::system::{SystemProgram, Visible as _};
use rackweave_swp2p::directory;
use rackweave_swp2p::packet::{self, packet};
use rackweave_swp2p::switch::{Config, Program};
use rackweave_wire::frame::host_at;

use super::*;

/// The payload of the packet that is being handled.
struct Payload(Vec<u8>);

impl PayloadStore<packet::Header> for Payload {
    fn release(&mut self, _packet: &Packet<packet::Header>) {}

    fn duplicate(&mut self, _packet: &mut Packet<packet::Header>) -> bool {
        false
    }

    fn damage(&mut self, _packet: &mut Packet<packet::Header>, _rng: &mut Rng) -> bool {
        false
    }

    fn read(&self, _packet: &Packet<packet::Header>) -> &[u8] {
        &self.0
    }

    fn write(&mut self, _packet: &Packet<packet::Header>) -> &mut [u8] {
        &mut self.0
    }

    fn combine(
        &mut self,
        _into: &Packet<packet::Header>,
        _from: &Packet<packet::Header>,
        _combine: impl FnOnce(&mut [u8], &[u8]),
    ) -> bool {
        false
    }

    fn make(&mut self, _header: packet::Header, _len: usize) -> Option<packet::Header> {
        None
    }
}

/// Where the program in Rust sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Server,
    Holder([u8; 4]),
    /// A batch was divided.
    Divided,
}

/// What has been compared.
#[derive(Debug, Default)]
struct Tally {
    redirected: u32,
    to_server: u32,
    returned: u32,
    malformed: u32,
    ended: u32,
}

/// The same switch twice: in this process, and in the kernel.
struct Twins {
    ours: Program,
    kernel: Tor,
    now_ms: u64,
    hosts: Vec<Client>,
    /// Requests that were redirected lately: requester, chunk, holder.
    recent: Vec<(usize, u32, usize)>,
    tally: Tally,
}

struct Client {
    host: Host,
    /// Whether it has joined and not left.
    is_here: bool,
    /// Whether it has sent a message since the others were silent.
    is_heard: bool,
    has: Vec<u32>,
}

impl Twins {
    fn new(policy: Policy, pending: u8, hosts: u8) -> Option<Self> {
        let kernel = load(|config| {
            (config.policy, config.pending) = (policy, pending);
            config.chunks = 2 * WINDOW;
        })?;
        let policy = match policy {
            Policy::RoundRobin => directory::Policy::RoundRobin,
            Policy::LeastLoaded => directory::Policy::LeastLoaded,
        };
        let directory = directory::Config {
            policy,
            pending,
            clients: CLIENTS as u16,
            chunks: 2 * WINDOW,
            // The kernel does not remember late holders. How it judges accusations is tested with its other rules.
            late: Span::ZERO,
            ..directory::Config::default()
        };
        let server = host_at(SERVER).unwrap();
        let ours = Program::new(Config { server, directory, per_second: 0, queue: 0 });
        let client = |number: u8| Client {
            host: Host::number(number),
            is_here: false,
            is_heard: false,
            has: Vec::new(),
        };
        let hosts = (1..=hosts).map(client).collect();
        Some(Self { ours, kernel, now_ms: 0, hosts, recent: Vec::new(), tally: Tally::default() })
    }

    /// Handles a message of `from` in Rust.
    fn sent(&mut self, from: [u8; 4], message: &[u8]) -> Sent {
        let Ok(decoded) = frisbee::decode(message) else { return Sent::Server };
        if decoded.header.source != from {
            return Sent::Server;
        }
        let server = host_at(SERVER).unwrap();
        let now = Time::ZERO + Span::from_ms(self.now_ms);
        let mut packet = packet(host_at(from).unwrap(), server, decoded.header.body);
        let mut payload = Payload(message[decoded.payload].to_vec());
        let view = packet.header.view().unwrap();
        let verdict = self.ours.handle_packet(now, Port(0), view, &mut packet, &mut payload);
        let mut to: Vec<HostId> = Vec::new();
        match verdict {
            Verdict::Route => to.push(packet.dst),
            Verdict::Consume => {
                // Part of a batch may be beyond the image, so that there is one packet for the rest.
                if matches!(decoded.header.body, Body::Batch(_)) {
                    to.push(server);
                    to.push(server);
                }
                while let Some(made) = self.ours.poll_transmit(now) {
                    to.push(made.dst);
                }
            }
            other => panic!("{other:?}"),
        }
        match to[..] {
            [to] if to == server => Sent::Server,
            [to] => Sent::Holder(rackweave_wire::frame::ip_address(to).unwrap()),
            _ => Sent::Divided,
        }
    }

    /// Compares both for one frame. Returns the holder, or `None` if both leave the frame to the server.
    fn compare(&mut self, at: usize, frame: &[u8]) -> Option<usize> {
        let host = self.hosts[at].host;
        let ours = udp_payload(frame).map_or(Sent::Server, |message| self.sent(host.ip, message));
        let kernel = redirected(&mut self.kernel, &host, frame, self.now_ms);
        let expected = match ours {
            Sent::Server => None,
            Sent::Holder(ip) => Some(ip),
            Sent::Divided => {
                // Only a client that has all of a batch can get it from the kernel; the directories differ from now on.
                self.end();
                return None;
            }
        };
        let holders = || self.ours.directory().counters();
        assert_eq!(kernel, expected, "{host:?}: {:02x?}, {:?}", &frame[42..], holders());
        match kernel {
            Some(ip) => {
                self.tally.redirected += 1;
                self.hosts.iter().position(|other| other.host.ip == ip)
            }
            None => None,
        }
    }

    /// Compares how many chunks each client has reported.
    fn compare_held(&self) {
        let mut expected = BTreeMap::new();
        for chunk in 0..2 * WINDOW {
            for host in self.ours.directory().holders(IMAGE, chunk) {
                *expected.entry(host).or_default() += 1;
            }
        }
        let clients = self.kernel.clients().unwrap();
        let held = clients.iter().filter(|client| client.held > 0);
        let held = held.map(|client| (host_at(client.ip.octets()).unwrap(), client.held));
        assert_eq!(held.collect::<BTreeMap<HostId, u32>>(), expected);
    }

    /// Starts again: everybody leaves.
    fn end(&mut self) {
        self.compare_held();
        self.tally.ended += 1;
        self.recent.clear();
        for at in 0..self.hosts.len() {
            let frame = self.hosts[at].host.exit();
            assert_eq!(self.compare(at, &frame), None);
            (self.hosts[at].is_here, self.hosts[at].is_heard) = (false, false);
            self.hosts[at].has.clear();
        }
        assert_eq!((self.kernel.clients().unwrap(), self.ours.directory().clients()), (vec![], 0));
        // In Rust, whose turn it is is forgotten with the image.
        let map = self.kernel.classifier.map_mut("state").unwrap();
        let mut map = Array::<_, [u64; STATE]>::try_from(map).unwrap();
        let mut words = map.get(&0, 0).unwrap();
        words[1..FIRST_CLIENT].fill(0);
        map.set(0, words, 0).unwrap();
    }

    fn join(&mut self, at: usize) {
        // The program in Rust learns of a client by its first report.
        let host = self.hosts[at].host;
        for frame in [host.enter(7), host.report(0, &[])] {
            assert_eq!(self.compare(at, &frame), None);
        }
        (self.hosts[at].is_here, self.hosts[at].is_heard) = (true, true);
    }

    fn report(&mut self, at: usize, window: u32, rng: &mut Rng) {
        let range = window * WINDOW..(window + 1) * WINDOW;
        let in_window = self.hosts[at]
            .has
            .iter()
            .filter(|chunk| range.contains(chunk))
            .map(|c| c - range.start);
        let chunks: Vec<u32> = in_window.collect();
        let frame = self.hosts[at].host.report(window, &chunks);
        if rng.chance(0.1) {
            let mangled = self.mangled(frame.clone(), rng);
            assert_eq!(self.compare(at, &mangled), None);
        }
        assert_eq!(self.compare(at, &frame), None);
        self.hosts[at].is_heard = true;
    }

    fn step(&mut self, rng: &mut Rng) {
        let at = rng.below(self.hosts.len() as u64) as usize;
        self.now_ms += rng.below(20);
        if !self.hosts[at].is_here {
            return self.join(at);
        }
        match rng.below(100) {
            0..25 => {
                let chunk = chunk(rng);
                let has = &mut self.hosts[at].has;
                match has.iter().position(|other| *other == chunk) {
                    Some(place) if rng.chance(0.3) => drop(has.swap_remove(place)),
                    Some(_) => {}
                    None => has.push(chunk),
                }
                self.report(at, chunk / WINDOW, rng);
            }
            25..85 => self.request(at, rng),
            85..92 => self.give_back(rng),
            92..98 => {
                let frame = self.hosts[at].host.exit();
                assert_eq!(self.compare(at, &frame), None);
                self.hosts[at].is_here = false;
                self.hosts[at].has.clear();
            }
            98 => {
                // All are silent until they send something.
                self.now_ms += 5500;
                self.hosts.iter_mut().for_each(|client| client.is_heard = false);
            }
            _ => {
                let frame = self.hosts[at].host.enter(7);
                let host = self.hosts[at].host;
                if self.hosts[at].is_heard {
                    assert_eq!(redirected(&mut self.kernel, &host, &frame, self.now_ms), None);
                    self.report(at, 0, rng);
                }
            }
        }
    }

    fn request(&mut self, at: usize, rng: &mut Rng) {
        let first = chunk(rng);
        let count = if rng.chance(0.03) { rng.below(6) as u16 } else { 1 };
        let tries = [0, 0, 0, 0, 1, 2, 3, 300][rng.below(8) as usize];
        // A damaged request of Frisbee may be another valid message.
        let is_frisbees = count == 1 && rng.chance(0.3);
        let is_mangled = !is_frisbees && rng.chance(0.05);
        let host = self.hosts[at].host;
        let frame = match is_frisbees {
            true => host.request(first, tries),
            false => host.batch(first, count, tries),
        };
        let frame = if is_mangled { self.mangled(frame, rng) } else { frame };
        self.hosts[at].is_heard |= !is_mangled;
        if let Some(holder) = self.compare(at, &frame) {
            self.recent.push((at, first, holder));
            if self.recent.len() > 30 {
                self.recent.remove(0);
            }
        } else {
            self.tally.to_server += 1;
        }
    }

    /// A holder returns a request, or claims to.
    fn give_back(&mut self, rng: &mut Rng) {
        let Some((requester, chunk, mut holder)) = pick(&self.recent, rng) else { return };
        if rng.chance(0.2) {
            holder = rng.below(self.hosts.len() as u64) as usize;
        }
        if !self.hosts[requester].is_heard {
            // In Rust the return would count as a message of the requester.
            self.report(requester, 0, rng);
        }
        let frame = self.hosts[holder].host.give_back(chunk, 1, &self.hosts[requester].host);
        let to = self.compare(holder, &frame);
        self.tally.returned += u32::from(to.is_some());
        if let Some(to) = to {
            self.recent.push((requester, chunk, to));
        }
    }

    /// Damages a frame in ways that make no other valid message of another client or image of it.
    fn mangled(&mut self, mut frame: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
        self.tally.malformed += 1;
        match rng.below(6) {
            0 => frame.truncate(34 + rng.below(frame.len() as u64 - 34) as usize),
            1 => frame.resize(frame.len() + 1 + rng.below(30) as usize, 0),
            2 => frame[20] |= 0x20,
            3 => frame[12 + rng.below(2) as usize] ^= 1 << rng.below(8),
            // Not the sender's addresses and port, nor the image, and no batch that is too long.
            _ => {
                let at = [14, 16, 17, 23, 30, 33, 36, 37, 38, 39, 42, 43, 46, 50, 51, 54, 65];
                let at = at[rng.below(at.len() as u64) as usize];
                frame[at] ^= 1 << rng.below(8);
            }
        }
        // Sums are not verified by either; here they only show that they are updated correctly.
        if frame.len() >= 42 {
            frame[24..26].fill(0);
            let check = !sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
        frame
    }
}

fn pick<T: Copy>(from: &[T], rng: &mut Rng) -> Option<T> {
    (!from.is_empty()).then(|| from[rng.below(from.len() as u64) as usize])
}

/// Few chunks, so that they have several holders, at the ends of windows; sometimes one that does not exist.
fn chunk(rng: &mut Rng) -> u32 {
    match rng.below(12) {
        0 => WINDOW - 1,
        1 => WINDOW,
        2 => 2 * WINDOW - 1,
        _ => rng.below(9) as u32 + 60,
    }
}

/// Returns the message in a frame, if a switch examines it: unfragmented UDP to the server.
fn udp_payload(frame: &[u8]) -> Option<&[u8]> {
    let (ethernet, ip) = frame.split_at_checked(14)?;
    let length = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    let ip = ip.get(..length)?;
    let plain = ethernet[12..] == [8, 0] && ip.first() == Some(&0x45) && ip.get(9) == Some(&17);
    let fragment = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff != 0;
    let udp = ip.get(20..)?;
    let to = u16::from_be_bytes([*udp.get(2)?, *udp.get(3)?]);
    let length = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    if !plain || fragment || to != PORT || ip.get(16..20)? != SERVER {
        return None;
    }
    udp.get(8..length)
}

fn compare(policy: Policy, pending: u8, hosts: u8) {
    let mut all = Tally::default();
    for seed in 0..4 {
        let Some(mut twins) = Twins::new(policy, pending, hosts) else { return };
        let mut rng = Rng::stream(seed, u64::from(hosts), u64::from(pending), "frames for SWP2P");
        for _ in 0..4000 {
            twins.step(&mut rng);
        }
        twins.compare_held();
        let Tally { redirected, to_server, returned, malformed, ended } = twins.tally;
        all.redirected += redirected;
        all.to_server += to_server;
        all.returned += returned;
        all.malformed += malformed;
        all.ended += ended;
        let (kernel, ours) = (twins.kernel.counters().unwrap(), *twins.ours.directory().counters());
        println!("{kernel:?}\n{ours:?}");
        if hosts > CLIENTS as u8 {
            assert!(kernel.refused > 0 && kernel.silent > 0, "{kernel:?}");
        }
        assert_eq!(kernel.to_pending > 0, pending > 0);
    }
    println!("{all:?}");
    // Each kind of decision was compared many times.
    let Tally { redirected, to_server, returned, malformed, ended } = all;
    assert!(redirected > 1000 && to_server > 500 && malformed > 100 && ended > 5, "{all:?}");
    assert!(returned > 50 || hosts > CLIENTS as u8, "{all:?}");
}

#[test]
fn holders_by_turns() {
    compare(Policy::RoundRobin, 0, 12);
}

#[test]
fn holders_and_pending_holders_by_turns() {
    compare(Policy::RoundRobin, 1, 12);
}

#[test]
fn holders_and_two_pending_holders_by_turns() {
    compare(Policy::RoundRobin, 2, 12);
}

#[test]
fn the_least_loaded_holder() {
    compare(Policy::LeastLoaded, 0, 12);
}

#[test]
fn the_least_loaded_holder_or_pending_holder() {
    compare(Policy::LeastLoaded, 1, 12);
}

#[test]
fn the_least_loaded_holder_or_one_of_two_pending_holders() {
    compare(Policy::LeastLoaded, 2, 12);
}

#[test]
fn more_clients_than_slots() {
    compare(Policy::LeastLoaded, 2, 80);
}

#[test]
fn defaults_are_those_of_the_directory() {
    let tor = TorConfig::new(vec!["p0".into()], SERVER.into());
    let directory = directory::Config::default();
    assert_eq!(Span::from_ms(tor.silence_ms.into()), directory.silence);
    assert_eq!((tor.max_tries, tor.accusers), (directory.max_tries, directory.accusers));
    assert_eq!(tor.pending, directory.pending);
    assert_eq!(
        (tor.policy, directory.policy),
        (Policy::LeastLoaded, directory::Policy::LeastLoaded)
    );
}
