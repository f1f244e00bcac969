//! The fault schedules of the transports' own tests on real sockets: endpoints are connected by a relay that loses,
//! duplicates, delays, reorders and damages datagrams, and hosts restart or are cut off. Each message is delivered
//! exactly once and completely, or fails with a reason.
//!
//! That holds as long as no packet is under way for longer than the receiver remembers a message beyond the time for which its sender
//! repeats it (`finished_for` beyond `patience`, 40 ms by default). All hosts and their network are one thread here, which a loaded
//! machine stops for longer. The hosts' time therefore goes on by [`STEP`] at most from one round to the next, so that packets are as late as
//! the schedule says, and not as late as this thread.

mod relay;
mod streams;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::common::{PATIENCE, bytes, local, others, transports};
use bytes::Bytes;
use rackweave_core::{Event as Told, HostId, Kind, MessageId, Rng, Span, Time};
use rackweave_linux::sys::{ReceiveBatch, SendBatch, UdpSocket};
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Peers, Platform};
use rackweave_testing::bind_again;
use rackweave_transport::TransportConfig;
use rackweave_transport::testkit::{Fates, Faults, Schedule};
use relay::Relay;

/// The most by which the hosts' time goes on between two rounds.
const STEP: Span = Span::from_ms(2);

/// The time of all hosts, which goes on between rounds only.
#[derive(Clone)]
struct Rounds {
    now: Rc<Cell<Time>>,
    /// The time of the machine at the beginning of the present round.
    real: Rc<Cell<Time>>,
    clock: Clock,
}

impl Rounds {
    fn start() -> Self {
        let clock = Clock::start();
        Self { now: Rc::new(Cell::new(Time::ZERO)), real: Rc::new(Cell::new(clock.now())), clock }
    }

    fn begin_next(&self) {
        let real = self.clock.now();
        let step = real.since(self.real.replace(real)).min(STEP);
        self.now.set(self.now.get() + step);
    }
}

/// A socket with that time.
struct Stepped(UdpSocket, Rounds);

impl Platform for Stepped {
    fn send(&mut self, batch: &mut SendBatch) -> io::Result<u64> {
        Platform::send(&mut self.0, batch)
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<()> {
        Platform::receive(&mut self.0, batch)
    }

    fn now(&self, _: Clock) -> Time {
        self.1.now.get()
    }

    fn random(&mut self) -> u128 {
        Platform::random(&mut self.0)
    }

    fn realtime_ns(&self) -> u64 {
        Platform::realtime_ns(&self.0)
    }

    fn has_aes(&self) -> bool {
        Platform::has_aes(&self.0)
    }
}

/// One fault schedule with one transport.
struct World {
    name: String,
    transport: TransportConfig,
    schedule: Schedule,
    rounds: Rounds,
    relay: Relay,
    hosts: Vec<Endpoint<Stepped>>,
    rng: Rng,
    fates: Fates,
    /// The content of each message, by sender, receiver and id.
    contents: BTreeMap<(u32, u32, MessageId), (u64, usize)>,
    number: u64,
    step: u64,
    next_step: Time,
    begun: Time,
}

impl World {
    fn new(name: &str, transport: &TransportConfig, schedule: Schedule, rounds: Rounds) -> Self {
        let begun = rounds.now.get();
        let relay = Relay::new(schedule.seed, schedule.faults);
        let mut world = Self {
            name: format!("{name}: {schedule:?}"),
            transport: transport.clone(),
            relay,
            rounds,
            hosts: Vec::new(),
            rng: Rng::stream(schedule.seed, 0, 0, "schedule"),
            fates: Fates::default(),
            contents: BTreeMap::new(),
            number: 0,
            step: 0,
            next_step: begun,
            begun,
            schedule,
        };
        for host in 0..world.schedule.hosts {
            let (end, address) = world.endpoint(host, local());
            world.relay.hosts.push(address);
            world.hosts.push(end);
        }
        world
    }

    fn endpoint(&self, host: u32, bind: SocketAddr) -> (Endpoint<Stepped>, SocketAddr) {
        let peers =
            Peers::Switch { port: self.relay.socket.local_addr(), hosts: self.schedule.hosts };
        let config = EndpointConfig::new(HostId(host), bind, peers, &self.transport);
        let socket = bind_again(|| UdpSocket::bind(bind, config.socket_buffer, false)).unwrap();
        let address = socket.local_addr();
        (Endpoint::on(config, Stepped(socket, self.rounds.clone())).unwrap(), address)
    }

    fn step(&mut self, now: Time) {
        if self.step == 16 || now < self.next_step {
            return;
        }
        for _ in 0..self.schedule.messages_in(self.step) {
            self.number += 1;
            let (from, to, kind, len) = self.schedule.message(&mut self.rng);
            let content = bytes(self.number, len as usize);
            let id = self.hosts[from as usize].send(HostId(to), kind, content).unwrap();
            self.fates.submitted(from, to, id, kind);
            self.contents.insert((from, to, id), (self.number, len as usize));
        }
        let host = self.rng.below(u64::from(self.schedule.hosts)) as u32;
        if self.schedule.restarts >> self.step & 1 == 1 {
            self.take_events();
            let at = self.relay.hosts[host as usize];
            // The socket of the old endpoint must be closed first.
            self.hosts[host as usize] = self.endpoint(host, local()).0;
            self.hosts[host as usize] = self.endpoint(host, at).0;
            self.fates.restarted(host);
        }
        let cut = self.schedule.outages >> self.step & 1 == 1;
        self.relay.down = cut.then_some(host);
        self.step += 1;
        self.next_step = now + Span::from_us(self.rng.below(4000));
    }

    fn take_events(&mut self) {
        for host in 0..self.schedule.hosts {
            while let Some(event) = self.hosts[host as usize].poll_event() {
                let context = match event {
                    Event::Message { peer, id, kind, bytes: found } => {
                        self.check_content(host, peer.0, id, kind, &found);
                        let len = found.len() as u64;
                        if kind == Kind::Request {
                            // The transport refuses it if the client has restarted and the transport knows that.
                            let _ = self.hosts[host as usize].respond(peer, id, found);
                        }
                        Told::Delivered { peer, id, bytes: len, kind }
                    }
                    Event::Sent { peer, id } => Told::Sent { peer, id },
                    Event::Failed { peer, id, reason } => Told::Failed { peer, id, reason },
                    Event::PeerRestarted { .. } => continue,
                    other => panic!("{}: {other:?}", self.name),
                };
                if let Err(error) = self.fates.record_event(HostId(host), &context) {
                    panic!("{}: {error}", self.name);
                }
            }
        }
    }

    fn check_content(&self, host: u32, peer: u32, id: MessageId, kind: Kind, found: &Bytes) {
        let key = match kind {
            Kind::Response => (host, peer, MessageId(id.0 ^ 1)),
            _ => (peer, host, id),
        };
        let (number, len) = self.contents[&key];
        assert!(*found == bytes(number, len), "{}: {key:?} has other bytes", self.name);
    }

    /// Drives everything once, and returns whether all messages have ended.
    fn turn(&mut self) -> bool {
        let now = self.rounds.now.get();
        self.step(now);
        self.relay.turn(now);
        for end in &mut self.hosts {
            end.turn().unwrap();
        }
        self.take_events();
        let waited = now.since(self.begun);
        assert!(waited < PATIENCE, "{}: {:?}", self.name, self.fates);
        self.step == 16 && self.relay.down.is_none() && self.fates.open() == 0
    }
}

fn run(worlds: Vec<World>) {
    let rounds = worlds[0].rounds.clone();
    let mut worlds: Vec<_> = worlds.into_iter().map(Some).collect();
    while worlds.iter().any(Option::is_some) {
        rounds.begin_next();
        for place in &mut worlds {
            let Some(world) = place else { continue };
            if world.step == 16 {
                world.relay.down = None;
            }
            if world.turn() {
                if let Err(error) = world.fates.check() {
                    panic!("{}: {error}", world.name);
                }
                *place = None;
            }
        }
    }
}

fn worlds(seeds: std::ops::Range<u64>, most: Faults, keep: impl Fn(&str) -> bool) -> Vec<World> {
    let rounds = Rounds::start();
    let mut worlds = Vec::new();
    for (name, transport) in transports() {
        for seed in seeds.clone().filter(|_| keep(name)) {
            let schedule = Schedule::any(seed, most);
            worlds.push(World::new(name, &transport, schedule, rounds.clone()));
        }
    }
    worlds
}

const SOME: Faults =
    Faults { loss: 0.15, duplication: 0.4, reordering: 0.9, lateness: Span::from_ms(3) };

#[test]
fn each_message_arrives_once_or_fails_homa() {
    run(worlds(0..6, SOME, |name| name.contains("homa")));
}

#[test]
fn each_message_arrives_once_or_fails_tcp() {
    run(worlds(100..106, SOME, |name| name.contains("tcp")));
}

#[test]
fn each_message_arrives_once_or_fails_with_the_others() {
    run(worlds(200..206, SOME, |name| others().iter().any(|config| config.name() == name)));
}
