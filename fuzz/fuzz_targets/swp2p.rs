//! Any messages at SWP2P's server and clients.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::swp2p(bytes));
