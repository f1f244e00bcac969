//! The contract between a host's protocol code and its driver: the simulator, a socket loop or a test.
//!
//! A [`Node`] is a sans-I/O state machine with one network port or several. The driver passes in packets and the
//! time; the node answers with packets, a timer and events. What the application asks of it (submit a message, open
//! a session) is done by the node's own methods; for message transports these are [`crate::Transport`].
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

    /// What its application learns from it.
    type Event;

    /// What the driver has to do with the payload of a received packet.
    type Placement;

    /// Takes a packet that arrived at a port (0 for a host with one link). Any field of it may be wrong or forged.
    fn handle_packet(
        &mut self,
        now: Time,
        port: u8,
        packet: &Packet<Self::Header>,
    ) -> Self::Placement;

    /// The time returned by [`Node::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Time);

    /// The next packet for a port whose link is free now: decided as late as possible. `None`: nothing to send
    /// until something else happens.
    #[must_use]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Self::Header>>;

    /// When [`Node::handle_timeout`] is to be called, if nothing happens before.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time>;

    /// The next event for the application.
    #[must_use]
    fn poll_event(&mut self) -> Option<Self::Event>;
}
