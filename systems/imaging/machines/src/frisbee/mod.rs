//! Frisbee (Hibler et al., USENIX 2003): one server multicasts the blocks of an image that clients ask for.
//!
//! ```text
//!  client: JOIN ----------------> server: JOIN reply (blocks of the image), to the group
//!          REQUEST chunk -------> work queue: one element a chunk, requests are merged
//!  all  <------------------------ BLOCK, BLOCK, ... in bursts with a gap between them
//!          PREQUEST chunk, map -> blocks that are still missing
//!          LEAVE2
//! ```
//!
//! A client in the simulator has a model of its disk ([`super::intake::Stage`]); on a real host its driver stores blocks, verifies and
//! writes chunks, and reports each of them.
//!
//! All messages are multicast, so that clients see each other's requests and do not repeat them. The rules are those of the
//! authors' code (`docs/protocols/swp2p.md#frisbee-server`, `docs/protocols/swp2p.md#frisbee-client`).

mod blocks;
mod client;
mod config;
mod driven;
mod layout;
mod pace;
mod queue;
mod server;
#[cfg(test)]
mod tests;

pub use blocks::{Blocks, Run};
pub use client::{Client, ClientCounts};
pub use config::{ClientConfig, ServerConfig};
pub use driven::Event;
pub use layout::Layout;
pub use pace::{Pace, PaceConfig};
pub use queue::{Enqueued, WorkQueue};
pub use server::{Server, ServerCounts};

use rackweave_wire::frisbee::Body;

/// A message that a machine wants to send. All go to the session's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The message.
    pub body: Body,
    /// The bitmap of a [`Body::PartialRequest`].
    pub map: Option<Blocks>,
}

impl From<Body> for Outgoing {
    fn from(body: Body) -> Self {
        Self { body, map: None }
    }
}
