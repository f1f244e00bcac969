//! Any commands and packets at hosts of any transport.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::transports(bytes));
