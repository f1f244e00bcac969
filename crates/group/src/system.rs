//! The contract of a group system with switches ([`System`], [`SystemProgram`]), and its programs in the simulator.
//!
//! The contract is defined below both worlds, in [`rackweave_switch::system`]. The user-space switch reads views from
//! frames by [`System::parse`]; the simulator reads them from typed headers by [`Visible`].

use core::marker::PhantomData;

use rackweave_core::{Header, Mixed, Packet, PayloadStore, Port, SwitchProgram, Time, Verdict};

pub use rackweave_switch::system::{Either, Parsed, Protocol, System, SystemError, SystemProgram};

/// A header in which a switch program finds its view `V`.
pub trait Visible<V>: Header {
    /// What the program sees. `None`: a packet of another system.
    fn view(&self) -> Option<V>;
}

/// Packets of transports are of no system.
impl<V, T: Header, G: Visible<V>> Visible<V> for Mixed<T, G> {
    #[inline]
    fn view(&self) -> Option<V> {
        match self {
            Self::Transport(_) => None,
            Self::Group(header) => header.view(),
        }
    }
}

/// A system's program in a simulated switch, whose packets have the header `H`.
#[derive(Clone, Debug)]
pub struct Simulated<P, H> {
    program: P,
    header: PhantomData<H>,
}

impl<P, H> Simulated<P, H> {
    /// Runs a program on packets with this header.
    #[must_use]
    pub const fn new(program: P) -> Self {
        Self { program, header: PhantomData }
    }

    /// The program.
    #[must_use]
    pub const fn program(&self) -> &P {
        &self.program
    }
}

impl<P: SystemProgram, H: Visible<P::View>> SwitchProgram for Simulated<P, H> {
    type Header = H;

    #[inline]
    fn handle_packet<S: PayloadStore<H>>(
        &mut self,
        now: Time,
        port: Port,
        packet: &mut Packet<H>,
        payloads: &mut S,
    ) -> Verdict {
        match packet.header.view() {
            Some(view) => self.program.handle_packet(now, port, view, packet, payloads),
            None => Verdict::Route,
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        self.program.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.program.poll_timeout()
    }
}
