//! Generators, size distributions and traces from outside the crate.

mod examples;
mod generator;
mod sizes;
mod trace;
