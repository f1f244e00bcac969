//! Orca: server-assisted multicast.

pub mod flow;
