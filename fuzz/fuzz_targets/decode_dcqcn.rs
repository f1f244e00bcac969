//! Any bytes as a DCQCN header.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

use rackweave_wire::dcqcn::Header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::header::<Header>(bytes));
