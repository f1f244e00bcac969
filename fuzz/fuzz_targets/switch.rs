//! Any datagrams and frames at a user-space switch with any program.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::switch(bytes));
