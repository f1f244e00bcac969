//! Headers, frames and captures from outside the crate.

mod capture;
mod checks;
mod corpus;
mod homa_layout;
mod properties;
mod seeds;
mod strategies;
mod tcp_options;
