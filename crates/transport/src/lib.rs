//! The transports: one state machine a host and transport, without I/O, clock or randomness.
//!
//! Each implements [`rackweave_core::Transport`]; [`Machine`] is any of them, for hosts on which
//! they run side by side.

mod common;
pub mod datagram;
pub mod homa;
mod machine;
pub mod ndp;
#[cfg(test)]
mod patient_tests;
pub mod phost;
pub mod polo;
mod profile;
pub mod tcp;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

pub use machine::{Machine, TransportConfig};
pub use profile::Profile;
