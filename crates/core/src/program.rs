//! What a switch does with a packet: forwarding, and later replication and aggregation.

use crate::ids::Port;
use crate::packet::{Header, Packet};
use crate::queue::DropReason;
use crate::time::Time;

/// A program's decision about one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not the program's business: the switch's own forwarding decides.
    Route,
    /// Send it out of this port.
    Forward(Port),
    /// Send a copy out of each port in the set (bit `n` is port `n`).
    Replicate(u64),
    /// The program keeps it.
    Consume,
    /// Throw it away.
    Drop(DropReason),
}

/// A switch program: the verbs of a transport, with ports.
pub trait SwitchProgram {
    /// The header it understands.
    type Header: Header;

    /// Decides about a packet that came in at `port`; may rewrite it.
    fn handle_packet(
        &mut self,
        now: Time,
        port: Port,
        packet: &mut Packet<Self::Header>,
    ) -> Verdict;

    /// The time that [`SwitchProgram::poll_timeout`] named has come.
    fn handle_timeout(&mut self, _now: Time) {}

    /// A packet of the program's own making.
    #[must_use]
    fn poll_transmit(&mut self, _now: Time) -> Option<(Port, Packet<Self::Header>)> {
        None
    }

    /// When [`SwitchProgram::handle_timeout`] wants to be called.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}
