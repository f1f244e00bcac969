//! Any bytes as a query for a group's members, or an answer.

#![no_main]

#[path = "../../systems/orca/cast/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    checks::group(bytes);
});
