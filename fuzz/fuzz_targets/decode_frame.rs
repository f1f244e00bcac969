//! Any bytes as a frame of any protocol.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::frame(bytes));
