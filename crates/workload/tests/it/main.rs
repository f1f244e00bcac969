//! Generators, size distributions and traces from outside the crate.

mod generator;
mod sizes;
mod trace;
