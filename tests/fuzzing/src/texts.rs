//! Files that a user writes or gets from others: scenarios, hosts of a fabric, traces, distributions of sizes, pods, schedules of collectives.

use std::path::Path;

use rackweave_core::{Rng, Span};
use rackweave_lab::Scenario;
use rackweave_lab::scenario::Hosts;
use rackweave_rackless::{podfile, trace};
use rackweave_workload::collective::goal::{self, Goal};
use rackweave_workload::{Interpolation, SizeDist, Trace};

/// Any bytes as the file that their first byte selects: each is read, or refused with an error that has text.
///
/// # Panics
/// If that does not hold, or what was read contradicts itself.
pub fn scenario(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match kind % 7 {
        0 => {
            // Files that the scenario names are not there.
            let folder = Path::new("/nonexistent");
            if let Err(error) = Scenario::parse("any.toml", &text, folder, &[], None) {
                assert!(!error.to_string().is_empty());
            }
        }
        1 => {
            if let Err(error) = Hosts::parse("any.toml", &text) {
                assert!(!error.to_string().is_empty());
            }
        }
        2 => match Trace::from_csv(bytes) {
            Ok(trace) => {
                assert!(trace.entries().is_sorted_by_key(|entry| entry.at));
                let _ = trace.check_hosts(16);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        },
        3 => {
            let ways = [Interpolation::Steps, Interpolation::Linear];
            for way in ways {
                match SizeDist::from_csv(bytes, way) {
                    Ok(sizes) => draws(&sizes),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
        4 => {
            if let Err(error) = trace::read(bytes, 8, Span::from_secs(1)) {
                assert!(!error.to_string().is_empty());
            }
        }
        5 => {
            if let Err(error) = podfile::read(&text) {
                assert!(!error.to_string().is_empty());
            }
        }
        _ => match goal::parse(bytes) {
            Ok(schedule) => {
                let again = goal::parse(Goal(&schedule).to_string());
                assert_eq!(again.as_ref(), Ok(&schedule), "what is written is read");
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        },
    }
}

fn draws(sizes: &SizeDist) {
    let mut rng = Rng::stream(1, 0, 0, "sizes");
    for _ in 0..16 {
        let size = sizes.sample(&mut rng);
        assert!((1..=sizes.max()).contains(&size), "{size} of at most {}", sizes.max());
    }
    assert!(sizes.mean() >= 1.0 && sizes.mean() <= sizes.max() as f64 * 1.000_001);
}
