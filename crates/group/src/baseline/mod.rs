//! One-to-many transfers of applications without a group system, as baselines for those.
//!
//! The application is that of the Orca end-to-end evaluation (section III.A): a server sends files one after the other to all its
//! clients, and a client acknowledges each file that it has received completely. Its parts, without a network, are
//!
//! - [`Rounds`]: the server's files, and which client has acknowledged which;
//! - [`Deliveries`]: the files of a client;
//! - [`Writers`]: the server's processes, and the cost of their work;
//!
//! and there are two ways to carry it without assistance:
//!
//! - [`unicast`]: a UDP socket for each client;
//! - [`streams`]: a connection to each client, or a chain of connections.

mod deliveries;
mod rounds;
pub mod streams;
pub mod unicast;
mod writers;

pub use deliveries::{Deliveries, Gap};
pub use rounds::Rounds;
pub use writers::{Cost, Write, Writers};

use rackweave_core::HostId;

/// The address of a client at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's host.
    pub host: HostId,
    /// The server's port that leads to it, 0 for a server with one link.
    pub port: u8,
}

/// The length of an acknowledgement, the string `ack_i` of the evaluation (section III.A.2), in bytes.
pub const ACK_BYTES: u32 = 8;
