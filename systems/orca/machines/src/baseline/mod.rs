//! One-to-many transfers by applications without a group system, as baselines.
//!
//! The application is [`app`](crate::app), as over every carrier. Two carriers need no assistance from the network:
//!
//! - [`unicast`]: a UDP socket for each client;
//! - [`streams`]: a connection to each client, or a chain of connections.

pub mod streams;
pub mod unicast;

use rackweave_core::HostId;

/// The address of a client at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's host.
    pub host: HostId,
    /// The server's port that leads to it, 0 for a server with one link.
    pub port: u8,
}
