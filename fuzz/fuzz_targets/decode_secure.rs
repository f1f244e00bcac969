//! Any bytes as a datagram between hosts with a key, and as what was sealed in one.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::secure(bytes));
