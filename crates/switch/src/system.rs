//! What a switch has to know of a group system: how to recognise and read its packets, and what to do with them.
//!
//! A [`System`] is what the user-space switch and the simulator are generic over. It is implemented beside its
//! protocol (`group::orca::system`), and several can be combined: `Option<S>` is a system that a configuration may
//! leave out, and `(A, B)` runs two on the same switches, each on its own packets. `()` has no packets and no program.
//!
//! A program sees its system's [`System::View`] of a packet and the packet's addresses, and is the same on typed
//! headers (the simulator) and on frames (Linux).

use core::fmt;
use std::error::Error;

use rackweave_core::{Header, HostId, Packet, PayloadStore, Port, Time, Verdict};

use crate::Fabric;

/// How the packets of a system are recognised on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Its number in the overlay (`wire::overlay::Kind::Group`): not 0, and no other system's.
    pub kind: u8,
    /// Its UDP destination port, in frames.
    pub port: u16,
    /// Its IPv4 multicast address, in frames, and the destination that stands for it.
    pub group: Option<([u8; 4], HostId)>,
}

/// What a switch has read of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<V> {
    /// What the program sees.
    pub view: V,
    /// Source and destination, if the packet names them itself: they must agree with those of its frame.
    pub addresses: Option<(HostId, HostId)>,
}

/// A switch does not fit the system: the reason, for people.
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
/// Everything about it can be sent to other threads: a switch runs in one of its own.
pub trait System: fmt::Debug + Send + Sync + 'static {
    /// What a switch reads of a packet: enough to decide about it.
    type View: Copy + fmt::Debug + PartialEq + Send + Sync;
    /// What its switches do.
    type Program: SystemProgram<View = Self::View>;

    /// How its packets are recognised.
    fn protocols(&self) -> impl Iterator<Item = Protocol>;

    /// Whether its programs know the way to this destination, which is no host.
    fn resolves(&self, dst: HostId) -> bool;

    /// Reads a packet of the protocol `kind`. `None`: it is none, or damaged.
    fn parse(&self, kind: u8, bytes: &[u8]) -> Option<Parsed<Self::View>>;

    /// The program of each switch, in order.
    ///
    /// # Errors
    /// If the system is impossible on this fabric.
    fn programs(&self, fabric: &Fabric) -> Result<Vec<Self::Program>, SystemError>;
}

/// The program of one switch.
pub trait SystemProgram: fmt::Debug + Send {
    /// What it sees of a packet.
    type View: Copy + fmt::Debug;

    /// Decides about a packet of its system that came in at `port`. It may change its addresses and its payload.
    fn handle_packet<H: Header, S: PayloadStore<H>>(
        &mut self,
        now: Time,
        port: Port,
        view: Self::View,
        packet: &mut Packet<H>,
        payloads: &mut S,
    ) -> Verdict;

    /// The time that [`SystemProgram::poll_timeout`] returned has come.
    fn handle_timeout(&mut self, _now: Time) {}

    /// When [`SystemProgram::handle_timeout`] is to be called.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

/// What no packet is seen as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Never {}

/// No system: switches only forward.
impl System for () {
    type View = Never;
    type Program = ();

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        core::iter::empty()
    }

    fn resolves(&self, _dst: HostId) -> bool {
        false
    }

    fn parse(&self, _kind: u8, _bytes: &[u8]) -> Option<Parsed<Never>> {
        None
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<()>, SystemError> {
        Ok(vec![(); fabric.switches() as usize])
    }
}

impl SystemProgram for () {
    type View = Never;

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

/// A system that the configuration may leave out.
impl<S: System> System for Option<S> {
    type View = S::View;
    type Program = Option<S::Program>;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        self.iter().flat_map(System::protocols)
    }

    fn resolves(&self, dst: HostId) -> bool {
        self.as_ref().is_some_and(|system| system.resolves(dst))
    }

    fn parse(&self, kind: u8, bytes: &[u8]) -> Option<Parsed<S::View>> {
        self.as_ref()?.parse(kind, bytes)
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

    fn poll_timeout(&self) -> Option<Time> {
        self.as_ref()?.poll_timeout()
    }
}

/// The view of one of two systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// A packet of the first system.
    First(A),
    /// A packet of the second system.
    Second(B),
}

/// Two systems on the same switches, which must not share a protocol.
impl<A: System, B: System> System for (A, B) {
    type View = Either<A::View, B::View>;
    type Program = (A::Program, B::Program);

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        self.0.protocols().chain(self.1.protocols())
    }

    fn resolves(&self, dst: HostId) -> bool {
        self.0.resolves(dst) || self.1.resolves(dst)
    }

    fn parse(&self, kind: u8, bytes: &[u8]) -> Option<Parsed<Self::View>> {
        if self.0.protocols().any(|protocol| protocol.kind == kind) {
            let Parsed { view, addresses } = self.0.parse(kind, bytes)?;
            return Some(Parsed { view: Either::First(view), addresses });
        }
        let Parsed { view, addresses } = self.1.parse(kind, bytes)?;
        Some(Parsed { view: Either::Second(view), addresses })
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<Self::Program>, SystemError> {
        Ok(self.0.programs(fabric)?.into_iter().zip(self.1.programs(fabric)?).collect())
    }
}

impl<P: SystemProgram, Q: SystemProgram> SystemProgram for (P, Q) {
    type View = Either<P::View, Q::View>;

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

    fn poll_timeout(&self) -> Option<Time> {
        let timers = [self.0.poll_timeout(), self.1.poll_timeout()];
        timers.into_iter().flatten().min()
    }
}
