//! Any commands and packets at Orca's hosts and controller.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::orca(bytes));
