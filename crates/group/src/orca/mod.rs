//! Orca: server-assisted multicast.

pub mod flow;
pub mod label;
pub mod switch;
pub mod view;
