//! All-reduce in the simulator: vectors that a switch, a host or a ring of workers adds up.
//!
//! - [`AllreduceConfig`]: the parameters of a run, resolved from a scenario's `[workload.allreduce]`.
//! - [`AllreduceSummary`]: the results that only such runs have.
//!
//! Values are really added up: each worker draws its vectors, and at the end every sum is compared, by a digest of 64 bits, with the sum
//! that the scheme should have.

mod keys;
mod node;
mod ring;
mod run;
mod scheme;
mod section;
mod summary;
mod tables;
#[cfg(test)]
mod tests;

use rackweave_aggregation::vector::master::Vectors;
use rackweave_aggregation::vector::values::Values;
use rackweave_aggregation::vector::worker::FixedTimer;
use rackweave_core::{HostId, Rng, Span};
use rackweave_scenario::keys::Chosen;
use rackweave_scenario::problem::Problem;
use rackweave_transport::TransportConfig;
use rackweave_wire::reduce::Format;

pub use self::summary::{AllreduceSummary, StepSummary};
use super::{Configured, Done, Ground, Kind, Setting, StudyError};
use crate::explain::Volume;
use crate::report::html::KindSection;
use crate::results::PointResult;
use crate::tables::Sink;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct AllreduceConfig {
    /// The workers' hosts.
    pub workers: Vec<HostId>,
    /// The vectors, and how they are divided if there is an aggregator.
    pub vectors: Vectors,
    /// The shortest retransmission timeout of workers with an aggregator.
    pub min_rto: Span,
    /// A retransmission timer that does not follow the round-trip time, instead.
    pub fixed_timer: Option<FixedTimer>,
    /// The time from the sums of a step until the vector of the next one.
    pub compute: Span,
    /// What adds up.
    pub scheme: Scheme,
    /// The seed of vectors and of random numbers.
    pub seed: u64,
}

/// What adds up vectors.
#[derive(Clone, Debug)]
pub enum Scheme {
    /// A switch. The master of the job is at the first worker's host.
    Switch {
        /// The number of the switch.
        number: u32,
        /// The number of its slots.
        slots: u32,
    },
    /// A host, which is the job's master too.
    Host {
        /// The host; it may be a worker's.
        server: HostId,
    },
    /// The workers, in a ring.
    Ring {
        /// The transport of their messages.
        carrier: Box<TransportConfig>,
        /// The length of a message in bytes.
        piece_bytes: u64,
    },
}

impl AllreduceConfig {
    /// Returns the bytes of a vector in a host's memory.
    #[must_use]
    pub const fn vector_bytes(&self) -> u64 {
        self.vectors.length * self.element_bytes()
    }

    /// Returns the bytes of an element in a host's memory, as long as in a packet.
    const fn element_bytes(&self) -> u64 {
        self.vectors.format.bytes() as u64
    }

    /// Returns the hosts that take part, in their order.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostId> {
        let mut hosts = self.workers.clone();
        if let Scheme::Host { server } = self.scheme
            && !hosts.contains(&server)
        {
            hosts.push(server);
        }
        hosts.sort_unstable();
        hosts
    }

    /// Returns the vector of a worker for a step: the same whenever it is drawn. Floats have magnitudes over 16 powers of two, as gradients
    /// of different layers do.
    #[must_use]
    pub fn vector(&self, worker: u8, step: u32) -> Values {
        let component = u64::from(step) << 8 | u64::from(worker);
        let mut rng = Rng::stream(self.seed, 0, component, "vector of a step");
        let length = self.vectors.length as usize;
        match self.vectors.format {
            Format::I64 => Values::Integers((0..length).map(|_| rng.next_u64() as i64).collect()),
            Format::BlockFloat => {
                let float = |index: usize| {
                    let scale = 1.0 / f64::from(1_u32 << (index / 1_024 % 16));
                    ((rng.unit() - 0.5) * scale) as f32
                };
                Values::Floats((0..length).map(float).collect())
            }
        }
    }
}

impl Kind for AllreduceConfig {
    type Keys = keys::AllreduceKeys;
    type Scheme = scheme::Name;

    const SECTION_AFTER_TRAFFIC: bool = true;
    #[cfg(test)]
    const EXAMPLE: &'static str = "[workload.allreduce]\nworkers = 2\nsize = '1 MB'";

    fn resolve(
        keys: &Self::Keys,
        scheme: &Chosen<Self::Scheme>,
        ground: &Ground<'_>,
    ) -> Result<Self, Problem> {
        keys.resolve(scheme, ground)
    }

    fn tables<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
        tables::write(points, sink)
    }

    fn section(section: &mut KindSection<'_, Self>) {
        section::write(section);
    }
}

impl Configured for AllreduceConfig {
    fn run(&self, setting: &Setting<'_>) -> Result<Done, StudyError> {
        run::run(self, setting)
    }

    /// A message is a step: the vectors of all workers on their way to what adds up, and their sums on the way back.
    fn volume(&self) -> Volume {
        let (bytes, workers) = (self.vector_bytes() as f64, self.workers.len() as f64);
        let payload = match &self.scheme {
            Scheme::Ring { carrier, .. } => f64::from(carrier.framing().max_payload),
            _ => f64::from(self.vectors.elements * self.vectors.format.bytes()),
        };
        let steps = u64::from(self.vectors.steps);
        Volume::of_messages(steps, bytes, bytes / payload * 2.0 * workers)
    }
}
