//! The socket of a host, and the numbers by which the machines know addresses.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::ops::ControlFlow;

use rackweave_core::{HostId, Span, Time};
use rackweave_linux::sys::{ReceiveBatch, UdpSocket, route_to};
use rackweave_linux::{Clock, Driven, Driver, random};
use rackweave_wire::overlay;
use rackweave_wire::reduce::{
    Body, Header, KIND, MASTER, PORT, address_of, decode, encode, number_of,
};
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;

use crate::{MasterAt, ReduceError};

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

impl Attachment {
    /// The number of a master that is attached in this way.
    pub(crate) const fn master_host(&self) -> HostId {
        match *self {
            Self::Udp(_) => MASTER,
            Self::Overlay { me, .. } => me,
        }
    }
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

    /// Whether packets may meet a Rackweave switch, which queues by priority.
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

/// A state machine on a [`Net`].
pub trait Machine {
    /// Handles a message of a host with its payload. `marked` says that a queue on the way has marked it (ECN).
    fn handle(&mut self, now: Time, from: HostId, header: &Header, marked: bool, payload: &[u8]);

    /// Called when the time of [`Machine::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Time);

    /// Returns when [`Machine::handle_timeout`] is due.
    fn poll_timeout(&self) -> Option<Time>;

    /// Returns the next message with its payload, and the host to which it goes.
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

/// The socket of a host, on which [`Machine`]s run: a [`Driver`] that knows the messages of aggregation and the addresses of
/// hosts.
#[derive(Debug)]
pub struct Net {
    pub(crate) numbers: Numbers,
    pub(crate) traffic: Traffic,
    driver: Driver,
    /// In the overlay, when this host announces its address again.
    hello_at: Time,
}

/// The most datagrams that a turn passes to the kernel, and that wait for room there.
const SEND_AT_ONCE: usize = 256;
/// Bytes of an IP and a UDP header.
const IP_UDP: u64 = 28;
/// The longest wait, after which a flag that stops the host is looked at.
const LONGEST_WAIT: Span = Span::from_ms(50);
/// How often a host announces its address to the user-space switch, which learns it again after a restart.
const HELLO_EVERY: Span = Span::from_ms(250);
const BUFFER: usize = 8 << 20;

/// The traffic class of what is small and ends a wait: the highest of eight priorities.
const URGENT: u8 = 7 << 5;
/// The traffic class of pairs, which queues may mark: ECT(0).
const MARKABLE: u8 = 2;
const MARKED: u8 = 3;

impl Net {
    /// Binds the socket of a master, or of any host where a switch adds up and all hosts have [`PORT`]. Its times refer to this
    /// clock.
    ///
    /// # Errors
    /// If the address cannot be bound, or no switch could answer to it.
    pub fn bind(
        attachment: Attachment,
        has_switch: bool,
        clock: Clock,
    ) -> Result<Self, ReduceError> {
        match attachment {
            Attachment::Overlay { port, me } => Self::overlay(port, me, clock),
            Attachment::Udp(listen) if has_switch => {
                if listen.port() != PORT || !listen.is_ipv4() {
                    return Err(ReduceError::Config(format!(
                        "a switch answers to UDP port {PORT} of an IPv4 address only, not to {listen}"
                    )));
                }
                Self::at(listen, Numbers::Addresses, clock)
            }
            Attachment::Udp(listen) => Self::at(listen, Numbers::hashed(), clock),
        }
    }

    fn at(address: SocketAddr, numbers: Numbers, clock: Clock) -> Result<Self, ReduceError> {
        let failed = |source| ReduceError::Bind { address, source };
        let socket = UdpSocket::bind(address, 1 << 18, false).map_err(failed)?;
        socket.set_buffers(BUFFER, 1 << 20).map_err(failed)?;
        let driver = Driver::new(clock, socket);
        Ok(Self { numbers, traffic: Traffic::default(), driver, hello_at: Time::ZERO })
    }

    fn overlay(port: SocketAddr, me: HostId, clock: Clock) -> Result<Self, ReduceError> {
        let (source, _) = route_to(port)?;
        Self::at(SocketAddr::new(source.ip(), 0), Numbers::Overlay { port, me }, clock)
    }

    /// The socket of a worker, and the number of its master.
    pub(crate) fn worker(at: MasterAt) -> Result<(Self, HostId), ReduceError> {
        let clock = Clock::start();
        let (bind, master) = match at {
            MasterAt::Overlay { master, port, me } => {
                return Ok((Self::overlay(port, me, clock)?, master));
            }
            MasterAt::Udp { master, bind } => (bind, plain(master)),
        };
        let numbers = || Numbers::Worker { master };
        if bind.port() != 0 {
            return Ok((Self::at(bind, numbers(), clock)?, MASTER));
        }
        let any = match master {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let ip = if bind.ip().is_unspecified() { any } else { bind.ip() };
        let (source, _) = route_to(master)?;
        // On the master's own machine the port is the master's.
        if source.ip() != master.ip()
            && let Ok(net) = Self::at(SocketAddr::new(ip, PORT), numbers(), clock)
        {
            return Ok((net, MASTER));
        }
        Ok((Self::at(SocketAddr::new(ip, 0), numbers(), clock)?, MASTER))
    }

    /// Keeps the addresses of these hosts, which are the workers of a job.
    pub(crate) fn keep(&mut self, members: impl Iterator<Item = HostId>) {
        if let Numbers::Hashed(hashed) = &mut self.numbers {
            hashed.keep(members);
        }
    }

    /// Says which worker is gone, by the address of its host.
    pub(crate) fn gone(
        &self,
        worker: u8,
        host: Option<HostId>,
        has_left: bool,
        patience: Span,
    ) -> ReduceError {
        let address = host.map_or_else(String::new, |host| self.numbers.name(host));
        ReduceError::WorkerGone { worker, address, has_left, patience }
    }

    /// Returns the address of the socket.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.driver.local_addr()
    }

    /// Returns the driver of the socket, which counts what it does.
    #[must_use]
    pub const fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the present time, never less than a time that was returned before.
    pub fn now(&mut self) -> Time {
        self.driver.now()
    }

    /// One turn: receives, serves timers, and sends. Returns when the next one is due if nothing arrives before; a time that has
    /// passed means at once.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn turn(&mut self, machine: &mut impl Machine) -> io::Result<Option<Time>> {
        Driver::turn(&mut Turn { net: self, machine })
    }

    /// Waits until a datagram arrives, there is room for waiting ones, or a time.
    ///
    /// # Errors
    /// If the system refuses to wait.
    pub fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        self.driver.wait(until, Span::ZERO, &[])
    }

    /// Announces this host's address to the switch of the overlay, which a turn does too: a host that takes no turns yet is reached then.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn announce(&mut self) -> io::Result<()> {
        let now = self.now();
        self.queue_hello(now);
        self.driver.flush()
    }

    /// A turn, and a wait until the next one, which ends early so that the caller can look at its flags.
    pub(crate) fn turn_and_wait(&mut self, machine: &mut impl Machine) -> io::Result<()> {
        let due = self.turn(machine)?;
        self.wait_for_turn(due)
    }

    /// Waits until a turn that is due then, or something else to do; not for long, so that the caller can look at its flags.
    pub(crate) fn wait_for_turn(&mut self, due: Option<Time>) -> io::Result<()> {
        let longest = self.driver.last_now().saturating_add(LONGEST_WAIT);
        self.wait(Some(due.map_or(longest, |due| due.min(longest))))
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

    /// Announces this host's address if that is due.
    fn queue_hello(&mut self, now: Time) {
        if let Numbers::Overlay { port, me } = self.numbers
            && now >= self.hello_at
        {
            self.hello_at = now.saturating_add(HELLO_EVERY);
            let hello = |out: &mut Vec<u8>| overlay::encode_hello(me, me, 0, 0, out);
            self.driver.batch().push(port, 0, hello, SmallVec::new());
        }
    }

    /// Adds a message to the queue for the socket.
    fn queue(&mut self, to: HostId, header: &Header, payload: &[u8]) {
        // A host without an address has left the table of strangers: it will ask again.
        let Some(address) = self.numbers.address(to) else { return };
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
            encode(header, out);
            out.extend_from_slice(payload);
        };
        self.driver.batch().push(address, class, write, SmallVec::new());
    }
}

/// A machine on its socket.
struct Turn<'a, M> {
    net: &'a mut Net,
    machine: &'a mut M,
}

impl<M: Machine> Driven for Turn<'_, M> {
    fn driver(&mut self) -> &mut Driver {
        &mut self.net.driver
    }

    fn handle_datagrams(&mut self, now: Time, batch: &ReceiveBatch) {
        for datagram in batch.datagrams() {
            let marked = datagram.traffic_class & 3 == MARKED;
            match self.net.read(plain(datagram.from), datagram.bytes) {
                Some((from, header, payload)) => {
                    self.net.traffic.received_bytes += IP_UDP + datagram.bytes.len() as u64;
                    self.machine.handle(now, from, &header, marked, payload);
                }
                None => self.net.traffic.refused += 1,
            }
        }
    }

    fn handle_timeout(&mut self, now: Time, _more: bool) -> ControlFlow<()> {
        if self.machine.poll_timeout().is_some_and(|at| at <= now) {
            self.machine.handle_timeout(now);
        }
        ControlFlow::Continue(())
    }

    fn transmit(&mut self, now: Time) -> io::Result<bool> {
        self.net.queue_hello(now);
        while self.net.driver.batch().len() < SEND_AT_ONCE {
            let Some((to, header, payload)) = self.machine.poll(now) else { break };
            self.net.queue(to, &header, payload);
        }
        let is_full = self.net.driver.batch().len() >= SEND_AT_ONCE;
        self.net.driver.flush()?;
        Ok(is_full && !self.net.driver.is_blocked())
    }

    fn finish_turn(&mut self, _now: Time) -> Option<Time> {
        let hello =
            matches!(self.net.numbers, Numbers::Overlay { .. }).then_some(self.net.hello_at);
        self.machine.poll_timeout().into_iter().chain(hello).min()
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
