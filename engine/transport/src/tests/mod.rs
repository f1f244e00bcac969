//! Test support for all transports: the network on which they run, and the suite that each of them passes.

pub(crate) mod chaos;
pub(crate) mod driven;
mod network;
mod patient;
pub(crate) mod stream_chaos;
mod streams;
pub(crate) mod suite;

pub(crate) use network::{Network, fabric};
