//! Any bytes as a header of an external transport.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

use rackweave_wire::external::Header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::header::<Header>(bytes));
