//! Transports on networks whose packets have other headers than theirs.

use core::fmt::Debug;
use core::marker::PhantomData;

use crate::Framing;
use crate::ids::{HostId, MessageId};
use crate::node::Node;
use crate::packet::{Header, Packet};
use crate::time::Time;
use crate::transport::{
    Event, Open, Placement, RecoveryCounters, Refused, RoundTrip, Submit, Transport,
};

/// How a network's packets are made of a transport's, and the other way.
pub trait Carrier<T: Transport> {
    /// The header of the network's packets.
    type Header: Header;

    /// See [`Node::handle_packet`].
    fn handle_packet(
        transport: &mut T,
        now: Time,
        port: u8,
        packet: &Packet<Self::Header>,
    ) -> Placement;

    /// See [`Node::poll_transmit`].
    fn poll_transmit(transport: &mut T, now: Time, port: u8) -> Option<Packet<Self::Header>>;

    /// See [`Node::prefetch_for`].
    fn prefetch_for(_transport: &T, _packet: &Packet<Self::Header>) {}
}

/// A transport on such a network.
#[derive(Debug)]
pub struct Carried<T, C>(T, PhantomData<C>);

impl<T, C> Carried<T, C> {
    /// Puts a transport on the network.
    #[must_use]
    pub const fn new(transport: T) -> Self {
        Self(transport, PhantomData)
    }
}

impl<T: Transport, C: Carrier<T>> Node for Carried<T, C> {
    type Header = C::Header;
    type Event = Event;
    type Placement = Placement;

    #[inline]
    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Self::Header>) -> Placement {
        C::handle_packet(&mut self.0, now, port, packet)
    }

    #[inline]
    fn handle_timeout(&mut self, now: Time) {
        self.0.handle_timeout(now);
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Self::Header>> {
        C::poll_transmit(&mut self.0, now, port)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        self.0.poll_timeout()
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        self.0.poll_event()
    }

    #[inline]
    fn prefetch(&self) {
        self.0.prefetch();
    }

    #[inline]
    fn prefetch_transmit(&self) {
        self.0.prefetch_transmit();
    }

    #[inline]
    fn prefetch_for(&self, packet: &Packet<Self::Header>) {
        C::prefetch_for(&self.0, packet);
    }
}

impl<T: Transport, C: Carrier<T>> Transport for Carried<T, C> {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        self.0.submit(now, message)
    }

    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId) {
        self.0.cancel(now, peer, id);
    }

    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        self.0.is_arriving(peer, id)
    }

    fn is_leaving(&self, peer: HostId, id: MessageId) -> bool {
        self.0.is_leaving(peer, id)
    }

    fn framing(&self) -> Framing {
        self.0.framing()
    }

    fn open(&mut self, now: Time, stream: Open) -> Result<(), Refused> {
        self.0.open(now, stream)
    }

    fn write(
        &mut self,
        now: Time,
        peer: HostId,
        id: MessageId,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        self.0.write(now, peer, id, bytes, end)
    }

    fn consume(&mut self, now: Time, peer: HostId, id: MessageId, bytes: u64) {
        self.0.consume(now, peer, id, bytes);
    }

    fn peer_restarted(&mut self, now: Time, peer: HostId) {
        self.0.peer_restarted(now, peer);
    }

    fn round_trips(&self) -> Vec<RoundTrip> {
        self.0.round_trips()
    }

    fn not_admitted(&self) -> u64 {
        self.0.not_admitted()
    }

    fn poll_left(&mut self) -> Option<(HostId, MessageId)> {
        self.0.poll_left()
    }

    fn arrived_until(&mut self, at: Time) {
        self.0.arrived_until(at);
    }

    fn recovery_counters(&self) -> RecoveryCounters {
        self.0.recovery_counters()
    }
}
