//! SWP2P: clients of an image serve chunks to each other while they receive, and switches (or the server) redirect
//! requests to clients that have the chunks (`docs/protocols/swp2p.md#swp2p`).
//!
//! ```text
//!  Client                         switch                        Server
//!    Enter ────────────────────────────────────────────────────> |
//!    | <──────────────────────────────────────────────── Entered |
//!    Batch ─────────────> directory: no holder ────────────────> |
//!    | <═════════════════════════ chunk, over a carrier ═════════|
//!    Report ────────────> directory: who has what ─────────────> |
//!    |        Batch ─────>| of another client                    |
//!    | <──────────────────┘ redirected: only the destination changes
//!    |═════ chunk ══════> the other client
//!    Exit ──────────────> directory ───────────────────────────> |
//! ```
//!
//! The machines move control messages only. A chunk is one message of a *carrier*: a transport in the simulator, the
//! kernel's TCP on Linux. The holder sends it to the address of the requester, over a connection that it opens. So a switch
//! can redirect a request without either end noticing, and the requester verifies a chunk before it counts, is reported,
//! or is served.
//!
//! What the slides leave open is our choice, and documented where it is decided:
//!
//! - the cadence of reports ([`client::Config::report_every`]), the form of a batch, and when a request is repeated;
//! - how clients learn their number, and how long a client stays ([`client::Config::linger`]);
//! - the load of holders ([`super::directory`]), and what a holder without a chunk does ([`client`]).

pub mod client;
pub mod node;
mod serve;
pub mod server;
#[cfg(test)]
mod tests;

use rackweave_core::HostId;
use rackweave_wire::frisbee::Body;

pub use serve::{ChunkOf, Send, Serve};

/// The priority of control messages in each switch; chunks have the lowest. Rackweave's choice: a request shares the queue of
/// its holder's link with the chunks that are sent there, and TCP fills that queue until packets are dropped. Every lost
/// request costs its timeout, of at least a second.
pub const CONTROL_PRIORITY: u8 = 7;

/// A control message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its destination.
    pub to: HostId,
    /// The message. Its payload, if it has one, is appended by the machine's `payload` method.
    pub body: Body,
}

/// Whether the bytes of a chunk are those of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// They are.
    Verified,
    /// They are not: the chunk is discarded, and its sender is avoided and named.
    Damaged,
}
