//! Any packets at the workers, the master and the switch of an all-reduce.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::vectors(bytes));
