//! Any bytes at either end of the control socket of `cast agent`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::control_socket(bytes));
