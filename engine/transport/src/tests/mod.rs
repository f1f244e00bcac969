//! Tests of all transports, also of other crates: the network on which they run, and the suite that each of them passes.

pub mod chaos;
#[cfg(test)]
pub(crate) mod driven;
pub mod external;
mod ledger;
mod network;
#[cfg(test)]
mod patient;
#[cfg(test)]
pub(crate) mod stream_chaos;
mod streams;
pub mod suite;

pub use network::{Network, fabric};
