//! Any bytes as an HPCC header, with and without what switches have written.

#![no_main]

#[path = "../../engine/wire/tests/it/checks/mod.rs"]
mod checks;

use rackweave_wire::hpcc::{Header, stamped};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    checks::header::<Header>(bytes);
    checks::header::<stamped::Header>(bytes);
});
