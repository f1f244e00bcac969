//! Replays the fuzz targets' corpus without a fuzzer.

use crate::{checks, seeds};
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

macro_rules! define_replays {
    ($($(#[$doc:meta])* $variant:ident => $module:ident,)+) => {
        $(#[test]
        fn $module() {
            let target = concat!("decode_", stringify!($module));
            replay(target, checks::header::<rackweave_wire::$module::Header>);
        })+
    };
}
rackweave_wire::transports!(define_replays);

#[test]
fn frames_and_what_is_no_transport() {
    for (target, check) in checks::OTHERS {
        replay(target, check);
    }
}

#[test]
fn orca_packets_that_are_nearly_right() {
    nearly_right("decode_orca", checks::orca);
}

#[test]
fn frisbee_messages_that_are_nearly_right() {
    nearly_right("decode_frisbee", checks::frisbee);
}

#[test]
fn messages_of_aggregation_that_are_nearly_right() {
    nearly_right("decode_reduce", checks::reduce);
}

#[test]
fn datagrams_between_hosts_with_a_key_that_are_nearly_right() {
    nearly_right("decode_secure", checks::secure);
}

/// Checks a decoder on seeds that are truncated, concatenated, corrupted and extended. The mutations are the same in each
/// run.
fn nearly_right(target: &str, check: fn(&[u8])) {
    let mut seeds: Vec<_> = fs::read_dir(corpus(target))
        .expect("the corpus is there")
        .map(|entry| entry.expect("the folder can be read").path())
        .collect();
    seeds.sort();
    let seeds: Vec<Vec<u8>> =
        seeds.iter().map(|path| fs::read(path).expect("the seed can be read")).collect();
    let mut random = 1_u64;
    let mut next = || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    for _ in 0..100_000 {
        let mut bytes = seeds[next() % seeds.len()].clone();
        for _ in 0..=next() % 4 {
            let at = next() % (bytes.len() + 1);
            match next() % 6 {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, next() as u8),
                2 => {
                    let other = &seeds[next() % seeds.len()];
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[next() % (other.len() + 1)..]);
                }
                3 => bytes.iter_mut().skip(at).take(1 + next() % 8).for_each(|byte| *byte = 255),
                4 => bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = 0),
                _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at & 7)),
            }
        }
        check(&bytes);
    }
}

/// If this fails, run `cargo run -p rackweave-wire --example fuzz_seeds`.
#[test]
fn seeds_are_up_to_date() {
    for (target, name, bytes) in seeds::all() {
        let path = corpus(target).join(&name);
        let file = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(file, bytes, "{target}/{name}");
    }
}
