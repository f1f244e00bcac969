//! Any bytes as a frame of a session between an image's server and its client, as what precedes or follows a chunk, or as a status.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = rackweave_imaging::checks::decode(bytes);
});
