//! Any packets at the workers, the master and the switch of an aggregation.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::reduce(bytes));
