//! Orca: server-assisted multicast (Diab, Yassini and Hefeeda, NSDI '22; `docs/protocols/orca.md#orca`).
//!
//! - [`label`]: the layout of labels in a fabric; [`view`], [`switch`]: how switches forward by them.
//! - [`system`]: how switches recognise and read Orca's packets.
//! - [`agent`] with its [`table`]: labels for the packets of a rack; [`controller`] with its [`store`]: all sessions.
//! - [`flow`]: the reliable stream, which the paper does not have; [`parity`]: its erasure code; [`host`]: sender,
//!   receiver and agent in one [`Node`](rackweave_core::Node).
//! - [`scale`]: the size of all this state for a million sessions.

pub mod agent;
pub mod controller;
pub mod flow;
#[cfg(test)]
mod harness;
pub mod host;
pub mod label;
pub mod parity;
pub mod scale;
pub mod store;
pub mod switch;
pub mod system;
pub mod table;
pub mod view;
