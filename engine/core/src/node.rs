//! The contract between a host's protocol code and its driver: the simulator, a socket loop or a test.
//!
//! A [`Node`] is a sans-I/O state machine with one or more network ports. The driver passes in packets and the time;
//! the node answers with packets, a timer and events. The application's commands (submit a message, open a session) are
//! methods of the node itself; those of message transports are in [`crate::Transport`].
//!
//! # The contract
//! After **any** call that takes `&mut self`, the driver drains [`Node::poll_event`] until `None`, calls
//! [`Node::poll_transmit`] for each port as often as its link has room, and then arms one timer for
//! [`Node::poll_timeout`]. Times passed in never decrease. A spurious [`Node::handle_timeout`] has no effect.
//!
//! A host that crashed is replaced by a new node; a node has no notion of a crash.

use crate::packet::{Header, Packet};
use crate::time::Time;

/// The protocol state machine of one host. See the [module](self) for the contract.
pub trait Node {
    /// The header of the packets that it sends and receives.
    type Header: Header;

    /// What the node reports to its application.
    type Event;

    /// What the driver must do with the payload of a received packet.
    type Placement;

    /// Handles a packet that arrived at `port` (0 on a host with one link). Any field of the packet may be wrong or
    /// forged.
    fn handle_packet(
        &mut self,
        now: Time,
        port: u8,
        packet: &Packet<Self::Header>,
    ) -> Self::Placement;

    /// Called when the time returned by [`Node::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Time);

    /// Returns the next packet for a port whose link is free. The node chooses the packet at this moment, not earlier.
    /// `None` means that there is nothing to send until another method has been called.
    #[must_use]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Self::Header>>;

    /// Returns when to call [`Node::handle_timeout`] unless another call changes it first.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time>;

    /// Requests the cache lines that most calls read. It changes nothing: a driver with many nodes calls it some time
    /// before it handles one.
    #[inline]
    fn prefetch(&self) {}

    /// Requests the cache lines that [`Node::poll_transmit`] will read, once those of [`Node::prefetch`] are there.
    #[inline]
    fn prefetch_transmit(&self) {}

    /// Requests the cache lines that [`Node::handle_packet`] will read for this packet, once those of
    /// [`Node::prefetch`] are there.
    #[inline]
    fn prefetch_for(&self, _packet: &Packet<Self::Header>) {}

    /// Returns the next event for the application.
    #[must_use]
    fn poll_event(&mut self) -> Option<Self::Event>;
}

impl<T: Node + ?Sized> Node for Box<T> {
    type Header = T::Header;
    type Event = T::Event;
    type Placement = T::Placement;

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<T::Header>) -> T::Placement {
        (**self).handle_packet(now, port, packet)
    }

    fn handle_timeout(&mut self, now: Time) {
        (**self).handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<T::Header>> {
        (**self).poll_transmit(now, port)
    }

    fn poll_timeout(&self) -> Option<Time> {
        (**self).poll_timeout()
    }

    fn prefetch(&self) {
        (**self).prefetch();
    }

    fn prefetch_transmit(&self) {
        (**self).prefetch_transmit();
    }

    fn prefetch_for(&self, packet: &Packet<T::Header>) {
        (**self).prefetch_for(packet);
    }

    fn poll_event(&mut self) -> Option<T::Event> {
        (**self).poll_event()
    }
}
