//! Files and streams to many hosts: Orca ([`rackweave_group::orca`]) over sockets.
//!
//! - [`mod@format`]: the records in a stream: files, chunks, hashes.
//! - [`baseline`]: the same over TCP, to compare.
//! - [`door`]: applications of this machine, by a Unix socket.
//! - [`engine`]: Orca's machines over sockets.
//! - [`source`], [`sink`]: where a stream comes from, and where it goes.

pub mod baseline;
pub mod door;
pub mod engine;
pub mod format;
pub mod sink;
pub mod source;
pub mod store;
mod wake;

pub use engine::Engine;
pub use wake::Waker;
