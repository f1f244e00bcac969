//! A whole host of a group system: a state machine with one port or several.
//!
//! The verbs are those of a [`crate::Transport`], without messages: who runs a node puts work into it by
//! the node's own calls, and takes events out by its own.
//!
//! # The contract
//! After **any** call that takes `&mut self`, the driver asks [`Node::poll_transmit`] of each port as often as its
//! link has room, and then arms one timer for [`Node::poll_timeout`]. Times passed in never decrease.
//! A spurious [`Node::handle_timeout`] does nothing.

use crate::packet::{Header, Packet};
use crate::time::Time;

/// A host with its machines, as its links see it.
pub trait Node {
    /// The header that it speaks.
    type Header: Header;

    /// A packet has come in at a port (0 for a host with one link).
    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Self::Header>);

    /// The time that [`Node::poll_timeout`] named has come.
    fn handle_timeout(&mut self, now: Time);

    /// What leaves by this port now; `None`: nothing, until something else happens.
    #[must_use]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Self::Header>>;

    /// When [`Node::handle_timeout`] wants to be called.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time>;

    /// Whether it has done all that it was to do: a run ends once all nodes have.
    #[must_use]
    fn is_done(&self) -> bool {
        true
    }

    /// The host has crashed (true) or is back with nothing in its memory (false). Between the two nothing else is called.
    fn crash(&mut self, _now: Time, _down: bool) {}
}
