//! Any bytes as the files that an interrupted cast or image has left.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::state(bytes));
