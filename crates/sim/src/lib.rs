//! The simulated world.
pub mod config;
pub mod result;
