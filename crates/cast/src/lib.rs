//! Files and streams to many hosts: Orca ([`rackweave_group::orca`]) over sockets.
//!
//! - [`format`]: the records in a stream: files, chunks, hashes.
//! - [`source`], [`sink`]: where a stream comes from, and where it goes.

pub mod format;
pub mod sink;
pub mod source;
mod wake;

pub use wake::Waker;
