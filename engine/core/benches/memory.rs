//! What the memory of this machine costs: the limit of simulations whose state does not fit the caches.
//!
//! For blocks from 1 to 256 MiB it accesses cache lines of 64 bytes at random places, in three ways. One by one: each place is stored in the
//! line before, so that a read waits for the one before it. Overlapping: all places are known, so that the processor has as many reads
//! under way as it can. Changing: likewise, and each line is written, so that it has to be written back too. Prints nanoseconds per line.
//!
//!     cargo bench -p rackweave-core --bench memory
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark measures elapsed time and prints it"
)]

use std::hint::black_box;
use std::time::Instant;

use rackweave_core::Rng;

/// A cache line, which begins with the number of another.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(u32);

/// Reads of each measurement; the fastest of three counts.
const READS: usize = 2_000_000;

/// Nanoseconds for each of `reads` that `read` makes.
fn fastest(reads: usize, mut read: impl FnMut() -> u64) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        black_box(read());
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / reads as f64);
    }
    best
}

fn main() {
    println!(
        "{:>8} {:>12} {:>12} {:>12}   ns a line",
        "MiB", "one by one", "overlapping", "changing"
    );
    for mib in [1_usize, 2, 4, 8, 16, 32, 64, 128, 256] {
        let lines = mib << 14;
        let mut places: Vec<u32> = (0..lines as u32).collect();
        Rng::stream(1, 0, mib as u64, "places").shuffle(&mut places);
        let mut memory = vec![Line(0); lines];
        for (at, place) in places.iter().enumerate() {
            memory[*place as usize] = Line(places[(at + 1) % lines]);
        }
        let chased = fastest(READS, || {
            let mut place = places[0];
            for _ in 0..READS {
                place = memory[place as usize].0;
            }
            place.into()
        });
        let known = fastest(lines, || {
            places.iter().map(|place| u64::from(memory[*place as usize].0)).sum()
        });
        let changed = fastest(lines, || {
            for place in &places {
                let line = &mut memory[*place as usize].0;
                *line = line.wrapping_add(1);
            }
            memory[0].0.into()
        });
        println!("{mib:>8} {chased:>12.1} {known:>12.2} {changed:>12.2}");
    }
}
