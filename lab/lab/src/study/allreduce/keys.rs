//! The keys of `[workload.allreduce]`: vectors of many workers; each worker gets the sum of all.

use rackweave_aggregation::vector::master::Vectors;
use rackweave_core::rng::mix;
use rackweave_core::{Bytes, HostId, Span};
use rackweave_scenario::keys::Chosen;
use rackweave_scenario::problem::Problem;
use rackweave_scenario::values::Unit;
use rackweave_sim::config::FaultKind;
use rackweave_wire::reduce::{Format, MAX_WORKERS};
use serde::{Deserialize, Serialize};

use super::{AllreduceConfig, scheme};
use crate::study::Ground;

/// The keys of `[workload.allreduce]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AllreduceKeys {
    /// Number n of workers, at hosts 0 to n - 1, at most 64. Default: 8.
    workers: u32,
    /// Bytes of a vector. Default: `"4 MB"`.
    size: Unit<Bytes>,
    /// Vectors, one after the other. Default: 3.
    steps: u32,
    /// `"f32"`, as block floating point, or `"i64"`. Default: `"f32"`.
    elements: Elements,
    /// Time from a step's sums to the next vector. Default: `"0 s"`.
    compute: Unit<Span>,
}

impl Default for AllreduceKeys {
    fn default() -> Self {
        Self {
            workers: 8,
            size: Unit(Bytes(4_000_000)),
            steps: 3,
            elements: Elements::F32,
            compute: Unit(Span::ZERO),
        }
    }
}

/// What vectors consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Elements {
    F32,
    I64,
}

fn wrong(name: &str, message: impl Into<String>) -> Problem {
    Problem::new(format!("workload.allreduce.{name}"), message)
}

/// The longest vector: all of them are in memory.
const MAX_BYTES: u64 = 1 << 30;

impl AllreduceKeys {
    /// Checks the keys against each other and the fabric. `scheme` adds up.
    pub(crate) fn resolve(
        &self,
        scheme: &Chosen<scheme::Name>,
        ground: &Ground<'_>,
    ) -> Result<AllreduceConfig, Problem> {
        let (fabric, faults, seed) = (ground.fabric, ground.faults, ground.seed);
        if self.workers == 0 || self.workers > u32::from(MAX_WORKERS) {
            return Err(wrong("workers", format!("there are 1 to {MAX_WORKERS} workers")));
        }
        if self.steps == 0 || self.steps > 10_000 {
            return Err(wrong("steps", "there are 1 to 10,000 steps"));
        }
        let (format, bytes) = match self.elements {
            Elements::F32 => (Format::BlockFloat, 4),
            Elements::I64 => (Format::I64, 8),
        };
        let size = self.size.0.0;
        if size < bytes || size > MAX_BYTES {
            let message = format!("a vector has {} to {}", Bytes(bytes), Bytes(MAX_BYTES));
            return Err(wrong("size", message));
        }
        if !size.is_multiple_of(bytes) {
            let message = format!("{size} B are no whole number of values of {bytes} bytes");
            return Err(wrong("size", message));
        }
        for fault in faults {
            let message = match fault.kind {
                FaultKind::Crash => {
                    "hosts with vectors do not crash in a scenario: workers that return are tested without one"
                }
                FaultKind::Corruption(_) => {
                    "chunks have no check of their own: real links drop damaged packets, as kind = \"loss\" does"
                }
                _ => continue,
            };
            return Err(Problem::new("faults", message));
        }
        if self.workers > fabric.hosts() {
            let message = format!(
                "{} workers need as many hosts: the fabric has {}",
                self.workers,
                fabric.hosts()
            );
            return Err(wrong("workers", message));
        }
        let vectors = Vectors { steps: self.steps, ..Vectors::new(size / bytes, format) };
        let config = AllreduceConfig {
            workers: (0..self.workers).map(HostId).collect(),
            vectors,
            min_rto: Span::from_us(200),
            fixed_timer: None,
            compute: self.compute.0,
            scheme: super::Scheme::Switch { number: 0, slots: 0 },
            seed: mix(seed ^ 0x0061_6c6c_7265_6475),
        };
        scheme::resolve(scheme, config, ground.world, fabric)
    }
}
