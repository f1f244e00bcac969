//! The interface of a group system to switches: how its packets are recognised and read, and what is done with
//! them.
//!
//! The user-space switch and the simulator are generic over a [`System`]. It is implemented next to its protocol
//! (`orca::system`), and several can be combined: `Option<S>` is a system that a configuration may omit,
//! and `(A, B)` runs two on the same switches, each on its own packets. `()` has no packets and no program.
//!
//! A program gets its system's [`System::View`] of a packet and the packet's addresses. It is the same program
//! for typed headers (the simulator) and for frames (Linux). The packets that it makes are [`Outgoing`]: a
//! header of its system, addresses, and bytes. The simulator converts that header into its own typed one
//! ([`Makeable`]); the user-space switch has the system encode it ([`System::encode`]).

mod simulated;

use core::fmt;
use std::error::Error;

use rackweave_core::{Ecn, Egress, Header, HostId, Packet, PayloadStore, Port, Time, Verdict};

pub use self::simulated::{Makeable, Simulated, Visible};

use crate::Fabric;

/// How the packets of a system are recognised on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The protocol's number in the overlay (`wire::overlay::Kind::Group`): not 0, and unique among the
    /// systems.
    pub kind: u8,
    /// The protocol's UDP destination port, in frames.
    pub port: u16,
    /// The protocol's IPv4 multicast address, in frames, and the destination that represents it.
    pub group: Option<([u8; 4], HostId)>,
    /// Whether a damaged packet may go on, because whoever acts on its content finds the damage by a check of the system or by UDP's
    /// checksum. Where a switch acts on packets that have no other check than UDP's, an injected fault loses them instead of damaging
    /// them, as an interface that verifies the checksum does.
    pub has_check: bool,
}

/// A packet as a switch has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<V> {
    /// The program's view of the packet.
    pub view: V,
    /// Source and destination, if the packet itself contains them: they must agree with those of its frame.
    pub addresses: Option<(HostId, HostId)>,
    /// Offset of the payload in the packet. Programs read and write the bytes from there on; 0 includes the
    /// header, which simulated packets do not have as bytes.
    pub payload_at: usize,
}

impl<V> Parsed<V> {
    /// The same packet with another view.
    #[must_use]
    pub fn map<W>(self, f: impl FnOnce(V) -> W) -> Parsed<W> {
        let Self { view, addresses, payload_at } = self;
        Parsed { view: f(view), addresses, payload_at }
    }
}

/// A packet that a program has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<'a, M> {
    /// How the packet leaves the switch.
    pub egress: Egress,
    /// The source address: usually the switch's own ([`rackweave_core::Destination::Switch`]).
    pub src: HostId,
    /// The destination: a host, another switch, or an address that the system resolves.
    pub dst: HostId,
    /// The priority in each switch, 0 (lowest) to 7.
    pub priority: u8,
    /// The packet's ECN bits.
    pub ecn: Ecn,
    /// The packet's header, of the program's system.
    pub header: M,
    /// The packet's payload, which is copied before the next call of the program.
    pub payload: &'a [u8],
}

impl<'a, M> Outgoing<'a, M> {
    /// A packet without payload at priority 0, not capable of ECN, that the switch's own forwarding routes.
    #[must_use]
    pub const fn new(src: HostId, dst: HostId, header: M) -> Self {
        let (egress, priority, ecn) = (Egress::Route, 0, Ecn::NotCapable);
        Self { egress, src, dst, priority, ecn, header, payload: &[] }
    }

    /// The same packet with this payload.
    #[must_use]
    pub fn with_payload(self, payload: &'a [u8]) -> Self {
        Self { payload, ..self }
    }

    /// The same packet with another header.
    #[must_use]
    pub fn map<N>(self, f: impl FnOnce(M) -> N) -> Outgoing<'a, N> {
        let Self { egress, src, dst, priority, ecn, header, payload } = self;
        Outgoing { egress, src, dst, priority, ecn, header: f(header), payload }
    }
}

/// The reason why a system does not fit a fabric, for people to read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SystemError(Box<dyn Error + Send + Sync>);

impl SystemError {
    /// Wraps a system's own error.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// A group system, as configured for one fabric.
///
/// It can be sent to other threads, because each switch runs in a thread of its own.
pub trait System: fmt::Debug + Send + Sync + 'static {
    /// What a switch reads of a packet: enough to decide about it.
    type View: Copy + fmt::Debug + PartialEq + Send + Sync;
    /// The program of its switches.
    type Program: SystemProgram<View = Self::View, Made = Self::Made>;
    /// The header of the packets that its switches make; [`Never`] if they make none.
    type Made: Copy + fmt::Debug + Send;

    /// How its packets are recognised.
    fn protocols(&self) -> impl Iterator<Item = Protocol>;

    /// Whether its programs route packets to this destination, which is not a host.
    fn resolves(&self, dst: HostId) -> bool;

    /// Reads a packet of the protocol `kind`; `None` if the bytes are not such a packet, or it is damaged.
    fn parse(&self, kind: u8, bytes: &[u8]) -> Option<Parsed<Self::View>>;

    /// Appends a packet that a program has made, header and payload, in the format that [`System::parse`]
    /// reads. Returns the number of its protocol.
    fn encode(&self, packet: &Outgoing<'_, Self::Made>, out: &mut Vec<u8>) -> u8;

    /// The programs of all switches, in order.
    ///
    /// # Errors
    ///
    /// If the system cannot run on this fabric.
    fn programs(&self, fabric: &Fabric) -> Result<Vec<Self::Program>, SystemError>;
}

/// The program of one switch.
pub trait SystemProgram: fmt::Debug + Send {
    /// The program's view of a packet.
    type View: Copy + fmt::Debug;
    /// The header of packets that the program makes; [`Never`] if it makes none.
    type Made: Copy + fmt::Debug;

    /// Decides about a packet of its system that arrived at `port`. It may change the packet's addresses and
    /// payload.
    ///
    /// A program cannot hold a packet back: it copies the payload that it needs into its own state, and makes a
    /// packet from that later. The payload of a consumed packet is released.
    ///
    /// A packet may be addressed to a switch ([`rackweave_core::Destination::Switch`]), which is not
    /// necessarily this one: the programs of other switches on its path see it too, and return
    /// [`Verdict::Route`].
    fn handle_packet<H: Header, S: PayloadStore<H>>(
        &mut self,
        now: Time,
        port: Port,
        view: Self::View,
        packet: &mut Packet<H>,
        payloads: &mut S,
    ) -> Verdict;

    /// Called when the time that [`SystemProgram::poll_timeout`] returned has come.
    fn handle_timeout(&mut self, _now: Time) {}

    /// The next packet that the program has made. It is called after each packet and timeout until it returns
    /// `None`.
    ///
    /// A packet for which the switch has no room is dropped and counted, like one that is lost in the network.
    /// The program is not notified, and must be prepared to send it a second time.
    #[must_use]
    fn poll_transmit(&mut self, _now: Time) -> Option<Outgoing<'_, Self::Made>> {
        None
    }

    /// When [`SystemProgram::handle_timeout`] must be called; `None` if never.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Counters by name, such as dropped packets by reason. Counters with the same name are added up over
    /// switches and systems.
    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        core::iter::empty()
    }
}

/// The type of views and made headers that do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Never {}

/// No group system: switches only forward.
impl System for () {
    type View = Never;
    type Program = ();
    type Made = Never;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        core::iter::empty()
    }

    fn resolves(&self, _dst: HostId) -> bool {
        false
    }

    fn parse(&self, _kind: u8, _bytes: &[u8]) -> Option<Parsed<Never>> {
        None
    }

    fn encode(&self, packet: &Outgoing<'_, Never>, _out: &mut Vec<u8>) -> u8 {
        match packet.header {}
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<()>, SystemError> {
        Ok(vec![(); fabric.switches() as usize])
    }
}

impl SystemProgram for () {
    type View = Never;
    type Made = Never;

    fn handle_packet<H: Header, S: PayloadStore<H>>(
        &mut self,
        _now: Time,
        _port: Port,
        view: Never,
        _packet: &mut Packet<H>,
        _payloads: &mut S,
    ) -> Verdict {
        match view {}
    }
}

/// A system that the configuration may omit.
impl<S: System> System for Option<S> {
    type View = S::View;
    type Program = Option<S::Program>;
    type Made = S::Made;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        self.iter().flat_map(System::protocols)
    }

    fn resolves(&self, dst: HostId) -> bool {
        self.as_ref().is_some_and(|system| system.resolves(dst))
    }

    fn parse(&self, kind: u8, bytes: &[u8]) -> Option<Parsed<S::View>> {
        self.as_ref()?.parse(kind, bytes)
    }

    /// # Panics
    /// If the system is omitted: it has no program then that could make packets.
    fn encode(&self, packet: &Outgoing<'_, S::Made>, out: &mut Vec<u8>) -> u8 {
        self.as_ref().expect("only programs of a system make packets").encode(packet, out)
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<Option<S::Program>>, SystemError> {
        Ok(match self {
            Some(system) => system.programs(fabric)?.into_iter().map(Some).collect(),
            None => (0..fabric.switches()).map(|_| None).collect(),
        })
    }
}

impl<P: SystemProgram> SystemProgram for Option<P> {
    type View = P::View;
    type Made = P::Made;

    #[inline]
    fn handle_packet<H: Header, S: PayloadStore<H>>(
        &mut self,
        now: Time,
        port: Port,
        view: P::View,
        packet: &mut Packet<H>,
        payloads: &mut S,
    ) -> Verdict {
        match self {
            Some(program) => program.handle_packet(now, port, view, packet, payloads),
            None => Verdict::Route,
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        if let Some(program) = self {
            program.handle_timeout(now);
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time) -> Option<Outgoing<'_, P::Made>> {
        self.as_mut()?.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.as_ref()?.poll_timeout()
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.iter().flat_map(P::counters)
    }
}

/// The view or the made header of one of two systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// A packet of the first system.
    First(A),
    /// A packet of the second system.
    Second(B),
}

/// Two systems on the same switches. They must not share the number or the port of a protocol: [`System::programs`]
/// then fails.
impl<A: System, B: System> System for (A, B) {
    type View = Either<A::View, B::View>;
    type Program = (A::Program, B::Program);
    type Made = Either<A::Made, B::Made>;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        self.0.protocols().chain(self.1.protocols())
    }

    fn resolves(&self, dst: HostId) -> bool {
        self.0.resolves(dst) || self.1.resolves(dst)
    }

    fn parse(&self, kind: u8, bytes: &[u8]) -> Option<Parsed<Self::View>> {
        if self.0.protocols().any(|protocol| protocol.kind == kind) {
            return self.0.parse(kind, bytes).map(|parsed| parsed.map(Either::First));
        }
        self.1.parse(kind, bytes).map(|parsed| parsed.map(Either::Second))
    }

    fn encode(&self, packet: &Outgoing<'_, Self::Made>, out: &mut Vec<u8>) -> u8 {
        match packet.header {
            Either::First(header) => self.0.encode(&packet.map(|_| header), out),
            Either::Second(header) => self.1.encode(&packet.map(|_| header), out),
        }
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<Self::Program>, SystemError> {
        for first in self.0.protocols() {
            let is_shared = |other: Protocol| first.kind == other.kind || first.port == other.port;
            if self.1.protocols().any(is_shared) {
                let Protocol { kind, port, .. } = first;
                let message = format!("two systems share the protocol {kind} or the port {port}");
                return Err(SystemError::new(message));
            }
        }
        Ok(self.0.programs(fabric)?.into_iter().zip(self.1.programs(fabric)?).collect())
    }
}

impl<P: SystemProgram, Q: SystemProgram> SystemProgram for (P, Q) {
    type View = Either<P::View, Q::View>;
    type Made = Either<P::Made, Q::Made>;

    #[inline]
    fn handle_packet<H: Header, S: PayloadStore<H>>(
        &mut self,
        now: Time,
        port: Port,
        view: Self::View,
        packet: &mut Packet<H>,
        payloads: &mut S,
    ) -> Verdict {
        match view {
            Either::First(view) => self.0.handle_packet(now, port, view, packet, payloads),
            Either::Second(view) => self.1.handle_packet(now, port, view, packet, payloads),
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        if self.0.poll_timeout().is_some_and(|at| at <= now) {
            self.0.handle_timeout(now);
        }
        if self.1.poll_timeout().is_some_and(|at| at <= now) {
            self.1.handle_timeout(now);
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time) -> Option<Outgoing<'_, Self::Made>> {
        if let Some(packet) = self.0.poll_transmit(now) {
            return Some(packet.map(Either::First));
        }
        self.1.poll_transmit(now).map(|packet| packet.map(Either::Second))
    }

    fn poll_timeout(&self) -> Option<Time> {
        let timers = [self.0.poll_timeout(), self.1.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.counters().chain(self.1.counters())
    }
}
