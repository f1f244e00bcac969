//! Any bytes as a stream of files, in two pieces, and as a manifest.

#![no_main]

#[path = "../../systems/orca/cast/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    checks::stream(bytes);
    checks::manifest(bytes);
});
