//! Any bytes as the frames of a gRPC call.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackweave_fuzzing::grpc(bytes));
