//! The socket of a host, and the numbers by which the machines know addresses.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd as _;

use rackweave_core::{HostId, Span, Time};
use rackweave_linux::sys::{ReceiveBatch, SendBatch, UdpSocket, route_to};
use rackweave_linux::{Clock, random, wait};
use rackweave_wire::overlay;
use rackweave_wire::reduce::{
    Body, Header, KIND, MASTER, PORT, address_of, decode, encode, number_of,
};
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;

use crate::ReduceError;

/// How a host is attached to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// By ordinary UDP. A master is bound to this address. A worker is bound to it if its port is not 0; with port 0 it takes
    /// [`PORT`] if it is free and the master is another machine, so that a switch can answer it, and any port otherwise.
    Udp(SocketAddr),
    /// By a UDP port of a user-space switch that carries packets in its overlay (`rackweave switch --listen`).
    Overlay {
        /// The switch's port for this host.
        port: SocketAddr,
        /// The number of this host.
        me: HostId,
    },
}

/// How numbers follow from addresses.
#[derive(Debug)]
pub(crate) enum Numbers {
    /// A master without a switch: workers have any addresses. Numbers are keyed hashes of addresses, so that no memory is needed for an
    /// address before it has returned a cookie.
    Hashed(Hashed),
    /// A master with a switch that names hosts by IPv4 addresses.
    Addresses,
    /// A worker: the master is one address, and a switch is named by its IPv4 address.
    Worker {
        /// The master's address.
        master: SocketAddr,
    },
    /// Hosts have numbers in the overlay.
    Overlay { port: SocketAddr, me: HostId },
}

/// Addresses by the hash that is their number.
#[derive(Debug)]
pub(crate) struct Hashed {
    key: u128,
    addresses: BTreeMap<HostId, SocketAddr>,
    /// Numbers of hosts that were not members when they were heard first, the oldest first.
    strangers: VecDeque<HostId>,
    /// The numbers of the workers, whose addresses are kept.
    members: Vec<HostId>,
}

/// The most addresses that are remembered for an answer to a host that is not a member.
const MOST_STRANGERS: usize = 256;

impl Hashed {
    fn number(&mut self, from: SocketAddr) -> Option<HostId> {
        let mut hasher = SipHasher24::new_with_keys(self.key as u64, (self.key >> 64) as u64);
        match from.ip() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.write_u16(from.port());
        let number = HostId(hasher.finish() as u32);
        match self.addresses.get(&number) {
            Some(known) if *known == from => return Some(number),
            // Two addresses in 4 billion have the same number; the first one has it.
            Some(_) => return None,
            None if number == MASTER => return None,
            None => {}
        }
        while self.strangers.len() >= MOST_STRANGERS {
            let Some(oldest) = self.strangers.pop_front() else { break };
            if !self.members.contains(&oldest) {
                self.addresses.remove(&oldest);
            }
        }
        self.addresses.insert(number, from);
        self.strangers.push_back(number);
        Some(number)
    }

    /// Keeps the addresses of these hosts.
    pub(crate) fn keep(&mut self, members: impl Iterator<Item = HostId>) {
        self.members.clear();
        self.members.extend(members);
    }
}

impl Numbers {
    pub(crate) fn hashed() -> Self {
        let (addresses, strangers, members) = (BTreeMap::new(), VecDeque::new(), Vec::new());
        Self::Hashed(Hashed { key: random(), addresses, strangers, members })
    }

    /// The number of the host that sent a datagram; `None` if it is not listened to.
    fn number(&mut self, from: SocketAddr) -> Option<HostId> {
        match self {
            Self::Hashed(hashed) => hashed.number(from),
            Self::Addresses => of_port(from),
            Self::Worker { master } if *master == from => Some(MASTER),
            Self::Worker { .. } => of_port(from),
            Self::Overlay { .. } => None,
        }
    }

    /// The address of a host, or of the switch's port that leads to it.
    pub(crate) fn address(&self, number: HostId) -> Option<SocketAddr> {
        let by_ip = || Some(SocketAddr::V4(SocketAddrV4::new(address_of(number)?, PORT)));
        match self {
            Self::Hashed(hashed) => hashed.addresses.get(&number).copied(),
            Self::Addresses => by_ip(),
            Self::Worker { master } if number == MASTER => Some(*master),
            Self::Worker { .. } => by_ip(),
            Self::Overlay { port, .. } => Some(*port),
        }
    }

    /// Names a host for people.
    pub(crate) fn name(&self, number: HostId) -> String {
        match (self, self.address(number)) {
            (Self::Overlay { .. }, _) | (_, None) => crate::error::name_of(number),
            (_, Some(address)) => address.to_string(),
        }
    }

    /// Whether packets may meet a switch of ours, which queues by priority.
    const fn has_switch(&self) -> bool {
        matches!(self, Self::Addresses | Self::Overlay { .. })
    }
}

/// The number of a host that sends from the port that all hosts have where a switch adds up.
fn of_port(from: SocketAddr) -> Option<HostId> {
    match from.ip() {
        IpAddr::V4(ip) if from.port() == PORT => number_of(ip),
        _ => None,
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// What a machine needs of its host.
pub(crate) trait Driven {
    fn handle(&mut self, now: Time, from: HostId, header: &Header, marked: bool, payload: &[u8]);
    fn handle_timeout(&mut self, now: Time);
    fn poll_timeout(&self) -> Option<Time>;
    fn poll(&mut self, now: Time) -> Option<(HostId, Header, &[u8])>;
}

/// The bytes and datagrams that a host has received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Bytes of messages that were received, from their IP headers on.
    pub(crate) received_bytes: u64,
    /// Datagrams that were no messages, or came from a host that is not listened to.
    pub(crate) refused: u64,
}

/// The socket of a host.
pub(crate) struct Net {
    pub(crate) numbers: Numbers,
    pub(crate) traffic: Traffic,
    clock: Clock,
    now: Time,
    socket: UdpSocket,
    received: Option<ReceiveBatch>,
    batch: SendBatch,
    hello_at: Time,
}

/// The most datagrams of one turn that are sent, and of one call.
const SEND_AT_ONCE: usize = 256;
/// The most calls to receive in a turn.
const RECEIVE_CALLS: usize = 8;
/// Bytes of an IP and a UDP header.
const IP_UDP: u64 = 28;
/// The longest wait, after which a flag that stops the host is looked at.
pub(crate) const LONGEST_WAIT: Span = Span::from_ms(50);
/// How often a host announces its address to the user-space switch, which learns it again after a restart.
const HELLO_EVERY: Span = Span::from_ms(250);
const BUFFER: usize = 8 << 20;

/// The traffic class of what is small and ends a wait: the highest of eight priorities.
const URGENT: u8 = 7 << 5;
/// The traffic class of pairs, which queues may mark: ECT(0).
const MARKABLE: u8 = 2;
const MARKED: u8 = 3;

impl Net {
    pub(crate) fn bind(address: SocketAddr, numbers: Numbers) -> Result<Self, ReduceError> {
        let failed = |source| ReduceError::Bind { address, source };
        let socket = UdpSocket::bind(address, 1 << 18, false).map_err(failed)?;
        socket.set_buffers(BUFFER, 1 << 20).map_err(failed)?;
        Ok(Self {
            numbers,
            traffic: Traffic::default(),
            clock: Clock::start(),
            now: Time::ZERO,
            socket,
            received: Some(ReceiveBatch::default()),
            batch: SendBatch::default(),
            hello_at: Time::ZERO,
        })
    }

    /// The socket of a host in the overlay.
    pub(crate) fn overlay(port: SocketAddr, me: HostId) -> Result<Self, ReduceError> {
        let (source, _) = route_to(port)?;
        Self::bind(SocketAddr::new(source.ip(), 0), Numbers::Overlay { port, me })
    }

    /// The socket of a worker.
    pub(crate) fn worker(bind: SocketAddr, master: SocketAddr) -> Result<Self, ReduceError> {
        let master = plain(master);
        let numbers = || Numbers::Worker { master };
        if bind.port() != 0 {
            return Self::bind(bind, numbers());
        }
        let any = match master {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let ip = if bind.ip().is_unspecified() { any } else { bind.ip() };
        let (source, _) = route_to(master)?;
        // On the master's own machine the port is the master's.
        if source.ip() != master.ip()
            && let Ok(net) = Self::bind(SocketAddr::new(ip, PORT), numbers())
        {
            return Ok(net);
        }
        Self::bind(SocketAddr::new(ip, 0), numbers())
    }

    pub(crate) const fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    pub(crate) fn now(&mut self) -> Time {
        self.now = self.now.max(self.clock.now());
        self.now
    }

    /// One turn: receives, serves timers, sends, and waits if nothing is left to do.
    pub(crate) fn turn(&mut self, machine: &mut impl Driven) -> Result<(), ReduceError> {
        self.turn_within(machine, LONGEST_WAIT)
    }

    /// A turn that does not wait for longer than this.
    pub(crate) fn turn_within(
        &mut self,
        machine: &mut impl Driven,
        longest: Span,
    ) -> Result<(), ReduceError> {
        let more = self.receive(machine)?;
        let now = self.now();
        if machine.poll_timeout().is_some_and(|at| at <= now) {
            machine.handle_timeout(now);
        }
        self.send(machine)?;
        let mut until = now.saturating_add(longest);
        if more || longest == Span::ZERO || self.batch.len() >= SEND_AT_ONCE {
            return Ok(());
        }
        if let Some(at) = machine.poll_timeout() {
            until = until.min(at);
        }
        let is_blocked = !self.batch.is_empty();
        wait::until(self.clock, &[(self.socket.as_fd(), is_blocked)], Some(until), Span::ZERO)?;
        Ok(())
    }

    fn receive(&mut self, machine: &mut impl Driven) -> io::Result<bool> {
        let mut batch = self.received.take().unwrap_or_default();
        let mut more = false;
        for call in 1..=RECEIVE_CALLS {
            self.socket.receive(&mut batch)?;
            if batch.is_empty() {
                break;
            }
            let now = self.now();
            for datagram in batch.datagrams() {
                let marked = datagram.traffic_class & 3 == MARKED;
                match self.read(plain(datagram.from), datagram.bytes) {
                    Some((from, header, payload)) => {
                        self.traffic.received_bytes += IP_UDP + datagram.bytes.len() as u64;
                        machine.handle(now, from, &header, marked, payload);
                    }
                    None => self.traffic.refused += 1,
                }
            }
            more = batch.was_full() && call == RECEIVE_CALLS;
            if !batch.was_full() {
                break;
            }
        }
        self.received = Some(batch);
        Ok(more)
    }

    /// Reads a datagram: its sender, the message, and its payload.
    fn read<'a>(
        &mut self,
        from: SocketAddr,
        bytes: &'a [u8],
    ) -> Option<(HostId, Header, &'a [u8])> {
        let (source, bytes) = match self.numbers {
            Numbers::Overlay { port, me } => {
                let envelope = overlay::decode_group(bytes).ok()?;
                let is_ours = from == plain(port)
                    && envelope.dst == me
                    && envelope.kind == overlay::Kind::Group(KIND);
                (is_ours.then_some(envelope.src)?, &bytes[overlay::BYTES as usize..])
            }
            _ => (HostId(0), bytes),
        };
        let decoded = decode(bytes).ok()?;
        let source = match self.numbers {
            Numbers::Overlay { .. } => source,
            // A number is looked up for messages only.
            _ => self.numbers.number(from)?,
        };
        Some((source, decoded.header, &bytes[decoded.payload]))
    }

    fn send(&mut self, machine: &mut impl Driven) -> io::Result<()> {
        let now = self.now();
        if let Numbers::Overlay { port, me } = self.numbers
            && now >= self.hello_at
        {
            self.hello_at = now.saturating_add(HELLO_EVERY);
            let hello = |out: &mut Vec<u8>| overlay::encode_hello(me, me, 0, 0, out);
            self.batch.push(port, 0, hello, SmallVec::new());
        }
        while self.batch.len() < SEND_AT_ONCE {
            let Some((to, header, payload)) = machine.poll(now) else { break };
            // A host without an address has left the table of strangers: it will ask again.
            let Some(address) = self.numbers.address(to) else { continue };
            let class = match header.body {
                Body::Data(_) | Body::Long { .. } | Body::Chunk(_) | Body::ChunkSum(_) => MARKABLE,
                _ if self.numbers.has_switch() => URGENT,
                _ => 0,
            };
            let overlay = match self.numbers {
                Numbers::Overlay { me, .. } => Some(me),
                _ => None,
            };
            let write = |out: &mut Vec<u8>| {
                if let Some(me) = overlay {
                    let len = header.header_bytes() + header.payload_len();
                    overlay::encode_group(KIND, me, to, len as u16, out);
                }
                encode(&header, out);
                out.extend_from_slice(payload);
            };
            self.batch.push(address, class, write, SmallVec::new());
        }
        self.socket.send(&mut self.batch)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u32) -> SocketAddr {
        SocketAddr::from((
            Ipv4Addr::from_bits(0xc000_0200 + number / 60_000),
            (number % 60_000) as u16,
        ))
    }

    #[test]
    fn a_flood_of_addresses_takes_bounded_memory_and_displaces_no_member() {
        let mut numbers = Numbers::hashed();
        let member = numbers.number(at(1)).unwrap();
        let Numbers::Hashed(hashed) = &mut numbers else { panic!("hashed") };
        hashed.keep([member].into_iter());
        for stranger in 2..100_000 {
            let number = numbers.number(at(stranger));
            assert!(number.is_none_or(|number| numbers.address(number) == Some(at(stranger))));
        }
        assert_eq!((numbers.number(at(1)), numbers.address(member)), (Some(member), Some(at(1))));
        let Numbers::Hashed(hashed) = &numbers else { panic!("hashed") };
        assert!(hashed.addresses.len() <= MOST_STRANGERS + 1);
        // A host that was forgotten has the same number, so that its cookie still holds.
        let key = hashed.key;
        let mut other = Numbers::Hashed(Hashed {
            key,
            addresses: BTreeMap::new(),
            strangers: VecDeque::new(),
            members: Vec::new(),
        });
        assert_eq!(other.number(at(1)), Some(member));
    }

    #[test]
    fn a_worker_listens_to_its_master_and_to_switches() {
        let master: SocketAddr = "192.0.2.1:7000".parse().unwrap();
        let mut numbers = Numbers::Worker { master };
        assert_eq!(numbers.number(master), Some(MASTER));
        assert_eq!(numbers.number("192.0.2.1:7001".parse().unwrap()), None);
        let switch = numbers.number("172.16.0.0:6731".parse().unwrap()).unwrap();
        assert_eq!(numbers.address(switch), Some("172.16.0.0:6731".parse().unwrap()));
        assert_eq!(numbers.address(MASTER), Some(master));
        assert_eq!(numbers.number("[2001:db8::1]:6731".parse().unwrap()), None);
        assert_eq!(plain("[::ffff:192.0.2.1]:7000".parse().unwrap()), master);
    }
}
