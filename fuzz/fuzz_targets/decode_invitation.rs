//! Any bytes as a cookie for an invitation to a cast, and as what is sealed for a host.

#![no_main]

#[path = "../../systems/orca/cast/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    checks::invitation(bytes);
});
