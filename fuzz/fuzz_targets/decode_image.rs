//! Any bytes as a manifest, a chunk of an `.ndz` file, or a disk with file systems.

#![no_main]

#[path = "../../systems/imaging/image/tests/it/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    checks::image(bytes);
});
