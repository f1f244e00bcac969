//! One-to-many transfers as applications do them without a group system: what group systems are compared with.
//!
//! The application is that of the Orca end-to-end evaluation (Section III.A): a server sends files one after the other to
//! all its clients, and a client acknowledges each file that it has whole. Here are its parts, without a network:
//!
//! - [`Rounds`]: the server's files, and who has acknowledged which.
//! - [`Deliveries`]: a client's side of it.
//! - [`Writers`]: the server's processes, and what their work costs.
//!
//! and the two ways to carry it that need no help:
//!
//! - [`unicast`]: a UDP socket for each client.
//! - [`streams`]: a connection to each client, or a chain of them.

mod deliveries;
mod rounds;
pub mod streams;
pub mod unicast;
mod writers;

pub use deliveries::{Deliveries, Gap};
pub use rounds::Rounds;
pub use writers::{Cost, Write, Writers};

use rackweave_core::HostId;

/// Where a client is, as its server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its host.
    pub host: HostId,
    /// The server's port (0 for a server with one link) that leads to it.
    pub port: u8,
}

/// Bytes of an acknowledgement: the paper's `ack_i`.
pub const ACK_BYTES: u32 = 8;
