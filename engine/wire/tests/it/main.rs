//! Headers, frames and captures from outside the crate.

mod capture;
mod checks;
mod corpus;
mod examples;
mod headers;
mod homa_layout;
mod homa_module;
mod lines;
mod properties;
mod seeds;
mod tcp_options;
