//! Scenarios, their runs, and the documents about them.

mod collectives;
mod docs;
mod examples;
mod homa_sigcomm;
mod leverage_homa;
#[cfg(feature = "parquet")]
mod parquet;
mod pods;
mod receiver_driven_sigcomm;
mod recipes;
mod scenario_errors;
mod scenarios;
mod streams;
