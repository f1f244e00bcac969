//! The results of an all-reduce in `summary.json`.

use rackweave_aggregation::switch;
use rackweave_aggregation::vector::ring::Ring;
use rackweave_aggregation::vector::values::Values;
use rackweave_core::{FailReason, Rate, Time};
use rackweave_sim::Fabric;
use rackweave_sim::result::{MessageRecord, Outcome, RunResult};
use serde::{Deserialize, Serialize};

use super::node::{Host, StepRecord, digest};
use super::{AllreduceConfig, Scheme};
use crate::results::Range;

/// The results of a run.
#[derive(Clone, Debug)]
pub struct AllreduceResult {
    /// The hosts of workers, by their numbers.
    workers: Vec<rackweave_core::HostId>,
    /// The steps of each worker.
    records: Vec<Vec<StepRecord>>,
    /// For each step, the number of workers whose sums are right.
    exact: Vec<u64>,
    bytes: u64,
    /// The largest rate of a worker, in vector bytes.
    bound_gbps: f64,
    chunks: u64,
    retransmitted: u64,
    timeouts: u64,
    duplicates: u64,
    attempts: u64,
    failure: Option<String>,
}

impl AllreduceResult {
    pub(super) fn new(config: &AllreduceConfig, rate: Rate) -> Self {
        Self {
            workers: config.workers.clone(),
            records: vec![Vec::new(); config.workers.len()],
            exact: Vec::new(),
            bytes: config.vector_bytes(),
            bound_gbps: bound_gbps(config, rate),
            chunks: 0,
            retransmitted: 0,
            timeouts: 0,
            duplicates: 0,
            attempts: 0,
            failure: None,
        }
    }

    /// Adds what a host knows.
    pub(super) fn add(&mut self, host: &Host) {
        if let Some((worker, records)) = host.records()
            && let Some(all) = self.records.get_mut(usize::from(worker))
        {
            all.clear();
            all.extend_from_slice(records);
        }
        let Host::Aggregated(host) = host else { return };
        if let Some(counters) = host.counters() {
            self.chunks += counters.chunks;
            self.retransmitted += counters.retransmitted;
            self.timeouts += counters.timeouts;
        }
        if let Some(aggregator) = host.aggregator() {
            self.add_program(aggregator.program().counts());
        }
        self.attempts += host.attempts();
        self.failure = self.failure.take().or_else(|| host.failure());
    }

    /// Adds what an aggregator has counted.
    pub(super) const fn add_program(&mut self, counts: &switch::Counters) {
        self.duplicates += counts.chunk_duplicates;
    }

    /// Compares all sums with what they should be.
    pub(super) fn check(&mut self, config: &AllreduceConfig) {
        let steps = config.vectors.steps;
        self.exact = (0..steps)
            .map(|step| {
                let digests = self.records.iter().filter_map(|records| {
                    let record = records.get(step as usize)?;
                    record.summed.map(|_| record.digest)
                });
                let digests: Vec<u64> = digests.collect();
                if digests.is_empty() {
                    return 0;
                }
                let workers = 0..self.records.len() as u8;
                let vectors: Vec<Values> =
                    workers.map(|worker| config.vector(worker, step)).collect();
                let vectors: Vec<&Values> = vectors.iter().collect();
                let sum = match config.scheme {
                    Scheme::Ring { .. } => Ring::sum(&vectors),
                    _ => Values::sum(&vectors, config.vectors.elements),
                };
                let expected = sum.map(|sum| digest(&sum));
                digests.iter().filter(|digest| Some(**digest) == expected).count() as u64
            })
            .collect();
    }

    /// When a step began at the first worker, and ended at the last.
    fn span(&self, step: usize) -> (Option<Time>, Option<Time>) {
        let of_step = || self.records.iter().map(move |records| records.get(step).copied());
        let started = of_step().filter_map(|record| record?.started).min();
        let summed: Option<Vec<Time>> = of_step().map(|record| record?.summed).collect();
        (started, summed.and_then(|summed| summed.into_iter().max()))
    }

    fn steps(&self) -> usize {
        self.exact.len()
    }

    /// Inserts each step before the other messages of a run, as its first stream. The ideal time of a step is that of a vector from one host
    /// to another.
    pub(crate) fn put_into(&self, fabric: &Fabric, run: &mut RunResult) {
        let framing = rackweave_core::Framing::UDP;
        let (src, dst) = (self.workers[0], self.workers[self.workers.len() - 1]);
        let mut messages = Vec::with_capacity(self.steps());
        for step in 0..self.steps() {
            let (Some(start), summed) = self.span(step) else { continue };
            let ideal = if src == dst {
                rackweave_core::Span::from_ticks(1)
            } else {
                fabric.ideal(src, dst, self.bytes, framing)
            };
            let outcome = match (summed, &self.failure) {
                (Some(at), _) => Outcome::Completed(at),
                (None, Some(_)) => Outcome::Failed(FailReason::PeerSilent),
                (None, None) => Outcome::Unfinished,
            };
            messages.push(MessageRecord {
                stream: 0,
                src,
                dst,
                bytes: self.bytes,
                start,
                ideal,
                outcome,
            });
        }
        let finished = (0..self.steps()).filter(|step| self.span(*step).1.is_some()).count();
        run.delivered_bytes.insert(0, finished as u64 * self.bytes);
        run.delivered_by_sender.clear();
        run.messages.splice(0..0, messages);
        if let (Some(first), Some(last)) = self.whole() {
            run.measured = last.since(first);
        }
    }

    /// When the first step began, and the last finished one ended.
    fn whole(&self) -> (Option<Time>, Option<Time>) {
        let last = (0..self.steps()).filter_map(|step| self.span(step).1).max();
        (self.span(0).0, last)
    }
}

/// The largest rate of a worker, in vector bytes for each second: all of its link, without the headers. Through an aggregator a vector
/// crosses the link of a worker once in each direction, and that of a server n times; round a ring, 2 (n - 1) / n times.
fn bound_gbps(config: &AllreduceConfig, rate: Rate) -> f64 {
    let n = config.workers.len() as f64;
    let line = rate.0 as f64 / 1e9;
    let chunk = u32::from(config.vectors.elements) * u32::from(config.vectors.format.bytes());
    let message = rackweave_wire::reduce::Header {
        job: 0,
        attempt: 0,
        worker: 0,
        token: rackweave_wire::Id64::new(0),
        body: rackweave_wire::reduce::Body::Chunk(rackweave_wire::reduce::Chunk {
            number: rackweave_wire::Id64::new(0),
            count: config.vectors.elements,
            exponent: 0,
            format: config.vectors.format,
            tag: 0,
        }),
    };
    let of_chunks =
        f64::from(chunk) / f64::from(rackweave_core::frame::wire_bytes(message.l3_bytes()));
    match &config.scheme {
        Scheme::Switch { .. } => line * of_chunks,
        Scheme::Host { .. } => line * of_chunks / n,
        Scheme::Ring { carrier, .. } => {
            let framing = carrier.framing();
            let wire = framing.packet_wire_bytes(framing.max_payload);
            let shares = f64::from(framing.max_payload) / f64::from(wire);
            if n > 1.0 { line * shares * n / (2.0 * (n - 1.0)) } else { line }
        }
    }
}

/// The object `allreduce` of a point in `summary.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AllreduceSummary {
    /// The number of workers.
    pub workers: u64,
    /// The bytes of a vector in a host's memory.
    pub vector_bytes: u64,
    /// The time of a step, from its begin at the first worker to its end at the last.
    pub step_us: Range,
    /// Vector bytes for each second and worker, over all steps ("algorithm bandwidth" of NCCL's tests).
    pub worker_gbps: f64,
    /// The same times `2 (n - 1) / n` ("bus bandwidth" of NCCL's tests).
    pub bus_gbps: f64,
    /// The largest possible `worker_gbps` with the scheme's headers.
    pub bound_gbps: f64,
    /// `worker_gbps` divided by `bound_gbps`.
    pub of_bound: f64,
    /// The number of steps whose sums were right, bit for bit, at all workers.
    pub exact: u64,
    /// The number of steps that ended at all workers.
    pub finished: u64,
    /// The number of other steps.
    pub unfinished: u64,
    /// The number of chunks that workers sent to an aggregator, repetitions included.
    pub chunks: u64,
    /// The number of chunks that workers sent again.
    pub retransmitted: u64,
    /// The number of retransmission timeouts of workers.
    pub timeouts: u64,
    /// The number of chunks that the aggregator had before.
    pub duplicates: u64,
    /// The number of attempts; 0 with a ring, which has none.
    pub attempts: u64,
    /// Why a worker has given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The steps.
    pub steps: Vec<StepSummary>,
}

/// A step in `summary.json` and `allreduce_steps.csv`. Times that have not come are NaN (`null` in JSON).
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StepSummary {
    /// The number of the step, from 0.
    pub step: u64,
    /// When it began at the first worker.
    pub start_us: f64,
    /// When the last worker had the sums.
    pub end_us: f64,
    /// The time between.
    pub step_us: f64,
    /// The number of workers whose sums were right.
    pub exact: u64,
}

fn us(time: Option<Time>) -> f64 {
    time.map_or(f64::NAN, Time::as_us_f64)
}

impl AllreduceSummary {
    /// Summarises the results of a run.
    #[must_use]
    pub fn new(result: &AllreduceResult) -> Self {
        let step = |index: usize| {
            let (start, end) = result.span(index);
            let (start_us, end_us) = (us(start), us(end));
            let (step, exact) = (index as u64, result.exact[index]);
            StepSummary { step, start_us, end_us, step_us: end_us - start_us, exact }
        };
        let steps: Vec<StepSummary> = (0..result.steps()).map(step).collect();
        let workers = result.workers.len() as u64;
        let finished = steps.iter().filter(|step| !step.end_us.is_nan()).count() as u64;
        let (first, last) = result.whole();
        let bits = (finished * result.bytes * 8) as f64;
        let worker_gbps = bits / ((us(last) - us(first)) * 1e3);
        let n = workers as f64;
        Self {
            workers,
            vector_bytes: result.bytes,
            step_us: Range::of(steps.iter().map(|step| step.step_us).filter(|us| !us.is_nan())),
            worker_gbps,
            bus_gbps: worker_gbps * 2.0 * (n - 1.0) / n,
            bound_gbps: result.bound_gbps,
            of_bound: worker_gbps / result.bound_gbps,
            exact: steps.iter().filter(|step| step.exact == workers).count() as u64,
            finished,
            unfinished: steps.len() as u64 - finished,
            chunks: result.chunks,
            retransmitted: result.retransmitted,
            timeouts: result.timeouts,
            duplicates: result.duplicates,
            attempts: result.attempts,
            failure: result.failure.clone(),
            steps,
        }
    }
}
