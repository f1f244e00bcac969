//! Any bytes as a Polo header.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

use rackweave_wire::polo::Header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::header::<Header>(bytes));
