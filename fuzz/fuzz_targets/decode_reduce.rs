//! Any bytes as a message of aggregation.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::reduce(bytes));
