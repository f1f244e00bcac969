//! Files and streams to many hosts: Orca ([`rackweave_group::orca`]) over sockets.
//!
//! - [`format`]: the records in a stream: files, chunks, hashes.

pub mod format;
