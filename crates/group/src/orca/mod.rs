//! Orca: server-assisted multicast.
//!
//! - [`label`]: what labels look like in a fabric. [`view`], [`switch`]: what switches do with them.
//! - [`system`]: how switches recognise and read Orca's packets.
//! - [`agent`] with its [`table`]: labels for the packets of a rack. [`controller`] with its [`store`]: who knows all sessions.
//! - [`flow`]: the reliable stream; [`parity`]: the code of its parities. [`host`]: sender, receiver and agent in one [`Node`](rackweave_core::Node).
//! - [`scale`]: how large all this is for a million sessions.

pub mod agent;
pub mod controller;
pub mod flow;
pub mod host;
#[cfg(test)]
mod kit;
pub mod label;
pub mod parity;
pub mod scale;
pub mod store;
pub mod switch;
pub mod system;
pub mod table;
pub mod view;
