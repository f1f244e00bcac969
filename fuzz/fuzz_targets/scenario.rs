//! Any bytes as a scenario, hosts of a fabric, a trace, sizes or a pod.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::scenario(bytes));
