//! Programs of a group system on packets with typed headers, as the simulator has them.
//!
//! The user-space switch reads views from frames by [`System::parse`], and [`System::encode`] writes the packets that programs
//! make. Here [`Visible`] reads a view from a typed header, and [`Makeable`] gives such a packet a typed header.

use core::marker::PhantomData;

use rackweave_core::{
    Egress, Header, Mixed, Packet, PayloadStore, Port, SwitchProgram, Time, Verdict,
};

use super::SystemProgram;
#[cfg(doc)]
use super::{Protocol, System};

/// A header in which a switch program can find its view `V`.
pub trait Visible<V>: Header {
    /// Returns the program's view of the packet; `None` if the packet belongs to another system.
    fn view(&self) -> Option<V>;
}

/// Packets of transports belong to no group system.
impl<V, T: Header, G: Visible<V>> Visible<V> for Mixed<T, G> {
    #[inline]
    fn view(&self) -> Option<V> {
        match self {
            Self::Transport(_) => None,
            Self::Group(header) => header.view(),
        }
    }
}

/// A header in which a switch program's own packets travel; `M` is the header that the program makes.
pub trait Makeable<M>: Header {
    /// The UDP port of such packets, source and destination, as in frames ([`Protocol::port`]): switches choose one of several
    /// equal paths by it.
    const PORT: u16;

    /// Returns the header of such a packet, and the packet's size in bytes from the IP header to the end of the
    /// payload.
    fn make(header: M) -> (Self, u32);
}

impl<M, T: Header, G: Makeable<M>> Makeable<M> for Mixed<T, G> {
    const PORT: u16 = G::PORT;

    fn make(header: M) -> (Self, u32) {
        let (header, l3_bytes) = G::make(header);
        (Self::Group(header), l3_bytes)
    }
}

/// The program of a group system in a simulated switch whose packets have the header `H`.
#[derive(Clone, Debug)]
pub struct Simulated<P, H> {
    program: P,
    /// The number of packets that the program made and that were dropped for lack of room for their payload.
    no_room: u64,
    header: PhantomData<H>,
}

impl<P, H> Simulated<P, H> {
    /// Wraps a program so that it runs on packets with the header `H`.
    #[must_use]
    pub const fn new(program: P) -> Self {
        Self { program, no_room: 0, header: PhantomData }
    }

    /// Returns the number of packets that the program made and that were dropped for lack of room for their payload.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.no_room
    }

    /// Returns the wrapped program, for reading its state and counters.
    #[must_use]
    pub const fn program(&self) -> &P {
        &self.program
    }
}

impl<P: SystemProgram, H: Visible<P::View> + Makeable<P::Made>> SwitchProgram for Simulated<P, H> {
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

    #[inline]
    fn poll_transmit<S: PayloadStore<H>>(
        &mut self,
        now: Time,
        payloads: &mut S,
    ) -> Option<(Egress, Packet<H>)> {
        loop {
            let made = self.program.poll_transmit(now)?;
            let (header, front_bytes) = H::make(made.header);
            let bytes = front_bytes + made.payload.len() as u32;
            let mut packet = Packet::new(made.src, made.dst, bytes, header)
                .with_ports(H::PORT, H::PORT)
                .with_instance(Packet::<H>::NODE_INSTANCE)
                .with_priority(made.priority)
                .with_ecn(made.ecn);
            if S::CARRIES_BYTES && !made.payload.is_empty() {
                let Some(header) = payloads.make(header, made.payload.len()) else {
                    self.no_room += 1;
                    continue;
                };
                packet = packet.map(|_| header);
                payloads.write(&packet).copy_from_slice(made.payload);
            }
            return Some((made.egress, packet));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.program.poll_timeout()
    }
}
