//! Orca: server-assisted multicast.
