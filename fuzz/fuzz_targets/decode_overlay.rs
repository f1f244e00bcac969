//! Any bytes as a datagram of the overlay.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::overlay(bytes));
