//! Any bytes as a pHost header.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

use rackweave_wire::phost::Header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::header::<Header>(bytes));
