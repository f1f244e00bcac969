//! Any bytes as a Homa header, in each layout.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

use rackweave_wire::homa::Header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::header::<Header>(bytes));
