//! The fuzz targets' corpus, replayed without a fuzzer.

mod checks;
mod seeds;

use std::fs;
use std::path::PathBuf;

fn corpus(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "fuzz", "corpus", target].iter().collect()
}

fn replay(target: &str, check: fn(&[u8])) {
    let folder = corpus(target);
    let mut count = 0;
    for entry in fs::read_dir(&folder).expect("the corpus is there") {
        let path = entry.expect("the folder can be read").path();
        println!("{}", path.display());
        check(&fs::read(path).expect("the seed can be read"));
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}

#[test]
fn homa() {
    replay("decode_homa", checks::homa);
}

#[test]
fn tcp() {
    replay("decode_tcp", checks::tcp);
}

#[test]
fn ndp() {
    replay("decode_ndp", checks::ndp);
}

#[test]
fn phost() {
    replay("decode_phost", checks::phost);
}

#[test]
fn polo() {
    replay("decode_polo", checks::polo);
}

#[test]
fn datagrams() {
    replay("decode_datagram", checks::datagram);
}

#[test]
fn frames() {
    replay("decode_frame", checks::frame);
}

#[test]
fn overlay() {
    replay("decode_overlay", checks::overlay);
}

#[test]
fn orca() {
    replay("decode_orca", checks::orca);
}

/// Else: `cargo run -p rackweave-wire --example fuzz_seeds`.
#[test]
fn seeds_are_up_to_date() {
    for (target, name, bytes) in seeds::all() {
        let path = corpus(target).join(&name);
        let file = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(file, bytes, "{target}/{name}");
    }
}
