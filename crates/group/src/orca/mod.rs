//! Orca: server-assisted multicast.

pub mod agent;
pub mod controller;
pub mod flow;
pub mod host;
#[cfg(test)]
mod kit;
pub mod label;
pub mod scale;
pub mod store;
pub mod switch;
pub mod table;
pub mod view;
