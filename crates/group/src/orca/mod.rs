//! Orca: server-assisted multicast.

pub mod label;
pub mod switch;
pub mod view;
