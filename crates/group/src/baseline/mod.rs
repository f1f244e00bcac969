//! One-to-many transfers of applications without a group system, as baselines for those.
//!
//! The application is [`app`](crate::app)'s, as over every other carrier. There are two ways to carry it without assistance:
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
