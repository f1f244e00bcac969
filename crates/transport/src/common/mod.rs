//! What NDP and pHost share: their messages are exchanges with a sender's and a receiver's half
//! each, found by a peer's id, in lists and heaps by slot.

#[cfg(test)]
pub(crate) mod chaos;
mod exchanges;
mod heap;
mod list;

pub(crate) use exchanges::{Awaiting, Exchanges, Known, Limits, State};
pub(crate) use heap::Heap;
pub(crate) use list::List;

/// The client's port in all packets; with [`SERVER_PORT`], what ECMP hashes.
pub(crate) const CLIENT_PORT: u16 = 0x8000;
/// The server's port.
pub(crate) const SERVER_PORT: u16 = 99;
