//! Blobs of container registries, fetched once for a whole fabric.
//!
//! A node serves the pull half of the OCI distribution specification to the container runtime of its host, as a mirror. What it does not
//! have it fetches in chunks: from nodes that have them, or are about to, and otherwise from the registry. Who has a chunk is decided by
//! the [directory](rackweave_swp2p::directory) of SWP2P, which one of the nodes keeps.
//!
//! ```text
//!  runtime ── GET /v2/app/blobs/sha256:… ──> node ── POST /node/v1/ask ──> node with the directory
//!                                             | <──── chunks 0-7: node 3; 8-15: the registry
//!                                             | ── GET /node/v1/blobs/sha256:… ──> node 3
//!                                             | ── GET /v2/app/blobs/sha256:… ──> registry
//! ```
//!
//! - Content counts only with its digest: the last chunk reaches the runtime when SHA-256 agrees, and only then the blob is stored. A
//!   blob that was damaged on its way from nodes is fetched again, from the registry alone.
//! - A chunk is fetched from the registry by one node at a time: others are sent to that one, and wait there.
//! - Without a directory, and for what it cannot answer, a node asks the registry. So does the runtime, without a node.
//! - Tags are the registry's: they can change, so that they are never answered from the store.

mod blob;
mod counts;
mod digest;
mod directory;
mod fetch;
mod http;
mod mirror;
mod peers;
mod registry;
mod service;
mod store;

pub use self::counts::Counts;
pub use self::digest::{Digest, DigestError};
pub use self::registry::{Credentials, CredentialsError, Upstream, UpstreamParseError};
pub use self::service::{Event, NodeConfig, NodeError, Service};
pub use self::store::StoreError;

/// Bytes of a chunk, but for the last one of a blob. Rackweave's choice: 8 ms at 1 Gbps, so that a chain of nodes is no deeper than that.
pub const CHUNK: u64 = 1 << 20;
