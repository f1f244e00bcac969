//! Orca: server-assisted multicast.

pub mod view;
