//! Orca: server-assisted multicast.

pub mod agent;
pub mod flow;
pub mod host;
pub mod label;
pub mod switch;
pub mod table;
pub mod view;
