//! Any messages at Frisbee's server and clients.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::frisbee(bytes));
