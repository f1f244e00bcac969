//! The parameters of clients and servers. Defaults are those of the authors' code (`docs/protocols/swp2p.md#frisbee-constants`).

use rackweave_core::Span;

use super::{Layout, PaceConfig};
use crate::Shape;
use crate::intake::Expand;
use crate::order::Order;

/// The parameters of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConfig {
    /// Chunks that it can hold while they are incomplete or wait to be expanded: 64.
    pub buffers: u16,
    /// Chunks that it requests ahead: 2.
    pub read_ahead: u16,
    /// Incomplete chunks beyond which it requests no further ones: 8.
    pub in_progress: u16,
    /// How long it waits for a message: 30 ms.
    pub receive_timeout: Span,
    /// How many such times pass without a useful block before it makes a request: 3.
    pub idle_timeouts: u32,
    /// How long it waits before it requests a chunk again, and before it requests one that it has seen requested: 1 s. Zero
    /// disables the rule, and with it snooping.
    pub redo_delay: Span,
    /// Whether it takes note of the requests of other clients, so as not to repeat them.
    pub snoop: bool,
    /// The order of its requests: random.
    pub order: Order,
    /// How long messages that bring no block that it needs delay its requests: those of others, and blocks that it has. After this
    /// time it heeds them no more, because requests that nobody answers, lost or forged ones, must not keep a client from asking
    /// itself. The authors' code has no limit.
    pub heed: Span,
    /// How fast it expands and writes chunks. `None` if its driver does that, and reports each chunk.
    pub expand: Option<Expand>,
}

impl ClientConfig {
    /// The authors' values, for a client that expands and writes at this speed.
    #[must_use]
    pub const fn new(expand: Expand) -> Self {
        Self {
            buffers: 64,
            read_ahead: 2,
            in_progress: 8,
            receive_timeout: Span::from_ms(30),
            idle_timeouts: 3,
            redo_delay: Span::from_secs(1),
            snoop: true,
            order: Order::Random,
            heed: Span::MAX,
            expand: Some(expand),
        }
    }

    /// The values for a client on a real host, whose image has chunks of this length: those of the authors in bytes, and a limit
    /// of 2 s for requests of others. That is our choice: the server needs less for the chunks that may be queued before one.
    #[must_use]
    pub fn driven(chunk_bytes: u32) -> Self {
        let scale = (Shape::FRISBEE_CHUNK / chunk_bytes.max(1)).clamp(1, 64) as u16;
        Self {
            buffers: 64 * scale,
            read_ahead: 2 * scale,
            in_progress: 8 * scale,
            receive_timeout: Span::from_ms(30),
            idle_timeouts: 3,
            redo_delay: Span::from_secs(1),
            snoop: true,
            order: Order::Random,
            heed: Span::from_secs(2),
            expand: None,
        }
    }

    /// The interval between two attempts to join: 500 ms.
    pub const JOIN_INTERVAL: Span = Span::from_ms(500);
}

/// The parameters of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// The image.
    pub image: Layout,
    /// How it paces blocks.
    pub pace: PaceConfig,
}
