//! What a collective took, and what a network without contention would have.

use rackweave_core::{HostId, Span, Time};
use rackweave_sim::Fabric;
use rackweave_sim::config::StreamConfig;
use rackweave_sim::result::RankReport;
use rackweave_workload::collective::{Collective, Op, Wait, WaitReason, ideal};
use rackweave_workload::{Pattern, WorkloadConfig};
use serde::{Deserialize, Serialize};

use super::stats::Range;
use crate::report::number;

/// The object `collective` of a point in `summary.json`. What has not come is NaN (`null` in JSON).
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CollectiveSummary {
    /// The operation; `schedule` of a file.
    pub operation: String,
    /// The algorithm; the name of the file is in the scenario.
    pub algorithm: String,
    /// The number of ranks.
    pub ranks: u64,
    /// The size as NCCL's tests count it; `null` of a file.
    pub size_bytes: Option<u64>,
    /// The number of messages of one iteration.
    pub messages: u64,
    /// The bytes of these messages.
    pub message_bytes: u64,
    /// The time of an iteration, from the begin of the first rank to the end of the last.
    pub time_us: Range,
    /// The time without contention, or that of the busiest link of a host if it is longer.
    pub ideal_us: f64,
    /// The mean time divided by the ideal one.
    pub of_ideal: f64,
    /// The size by the mean time ("algorithm bandwidth" of NCCL's tests).
    pub algorithm_gbps: Option<f64>,
    /// The bytes on the busiest link of a rank by the mean time ("bus bandwidth" of NCCL's tests).
    pub bus_gbps: Option<f64>,
    /// The number of iterations that all ranks have ended.
    pub finished: u64,
    /// The number of others.
    pub unfinished: u64,
    /// If not all have ended: ranks that wait, and what for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<String>,
    /// The finished iterations.
    pub iterations: Vec<IterationSummary>,
}

/// An iteration in `summary.json` and `collective_iterations.csv`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct IterationSummary {
    /// Its number, from 0.
    pub iteration: u64,
    /// When the first rank began.
    pub start_us: f64,
    /// When the last rank ended.
    pub end_us: f64,
    /// The time between.
    pub time_us: f64,
}

/// An iteration of a rank in `collective_ranks.csv`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RankIteration {
    /// The rank.
    pub rank: u64,
    /// Its host.
    pub host: u64,
    /// The number of the iteration, from 0.
    pub iteration: u64,
    /// When the rank began it.
    pub start_us: f64,
    /// When the rank had done its part.
    pub end_us: f64,
}

/// The most ranks whose waiting is described.
const MOST_WAITS: usize = 4;

/// Returns the collective of a workload, if it is one.
pub(crate) const fn collective_of(workload: &WorkloadConfig) -> Option<&Collective> {
    match &workload.pattern {
        Pattern::Collective(collective) => Some(collective),
        _ => None,
    }
}

/// Returns the time of one iteration of a collective without contention, or that of the busiest link of a host if it is longer.
pub(crate) fn ideal_time(collective: &Collective, stream: &StreamConfig, fabric: &Fabric) -> Span {
    let framing = stream.transport.framing();
    let critical =
        ideal(&collective.once(), |src: HostId, dst, bytes| fabric.ideal(src, dst, bytes, framing));
    let schedule = collective.schedule();
    let on_link = |bytes| fabric.host_rate().span_of(framing.message_wire_bytes(bytes));
    let busiest = (0..schedule.ranks()).map(|rank| {
        let (mut out, mut into) = (Span::ZERO, Span::ZERO);
        for op in schedule.ops(rank) {
            match op {
                Op::Send { bytes, .. } => out = out.saturating_add(on_link(*bytes)),
                Op::Receive { bytes, .. } => into = into.saturating_add(on_link(*bytes)),
                Op::Calculate { .. } => {}
            }
        }
        out.max(into)
    });
    busiest.max().unwrap_or(Span::ZERO).max(critical)
}

impl CollectiveSummary {
    /// Summarises what ranks report.
    pub(crate) fn new(
        stream: &StreamConfig,
        fabric: &Fabric,
        reports: &[RankReport],
    ) -> Option<Self> {
        let collective = collective_of(&stream.workload)?;
        let schedule = collective.schedule();
        let ranks = schedule.ranks();
        let finished = reports.iter().map(|rank| rank.iterations.len()).min().unwrap_or(0);
        let iteration = |number: usize| {
            let times = || reports.iter().map(move |rank| rank.iterations[number]);
            let start = times().map(|(start, _)| start).min().unwrap_or(Time::ZERO);
            let end = times().map(|(_, end)| end).max().unwrap_or(Time::ZERO);
            let (start_us, end_us) = (start.as_us_f64(), end.as_us_f64());
            let time_us = end.since(start).as_us_f64();
            IterationSummary { iteration: number as u64, start_us, end_us, time_us }
        };
        let iterations: Vec<IterationSummary> = (0..finished).map(iteration).collect();
        let time_us = Range::of(iterations.iter().map(|it| it.time_us));
        let ideal_us = ideal_time(collective, stream, fabric).as_us_f64();
        let origin = collective.origin();
        let algorithm_gbps = origin.map(|(.., bytes)| bytes as f64 * 8e-3 / time_us.mean);
        let bus_gbps = origin
            .zip(algorithm_gbps)
            .map(|((algorithm, _), gbps)| gbps * algorithm.operation.bus_factor(ranks));
        let mut waiting: Vec<(u32, Wait)> =
            reports.iter().filter_map(|rank| Some((rank.rank, rank.waits?))).collect();
        // Causes before what follows from them.
        waiting.sort_by_key(|(_, wait)| order(wait.reason));
        let first = waiting.iter().take(MOST_WAITS);
        let mut waits: Vec<String> = first.map(|(rank, wait)| waits_for(*rank, wait)).collect();
        let more = waiting.len().saturating_sub(MOST_WAITS);
        if more > 0 {
            waits.push(format!("{} more ranks wait", number::grouped(more as u64)));
        }
        let (operation, algorithm) = origin.map_or(("schedule", ""), |(algorithm, _)| {
            (algorithm.operation.name(), algorithm.name)
        });
        Some(Self {
            operation: operation.to_owned(),
            algorithm: algorithm.to_owned(),
            ranks: u64::from(ranks),
            size_bytes: origin.map(|(_, bytes)| bytes),
            messages: schedule.sends(),
            message_bytes: schedule.bytes(),
            of_ideal: time_us.mean / ideal_us,
            time_us,
            ideal_us,
            algorithm_gbps,
            bus_gbps,
            finished: finished as u64,
            unfinished: u64::from(collective.repeat()) - finished as u64,
            waits,
            iterations,
        })
    }

    /// Returns the means over several runs: the mean, the shortest and the longest time of all. The iterations are those of the first.
    pub(crate) fn over(all: &[&Self]) -> Option<Self> {
        let first = *all.first()?;
        let n = all.len() as f64;
        let mean = all.iter().map(|it| it.time_us.mean).sum::<f64>() / n;
        let scaled = |gbps: Option<f64>| gbps.map(|gbps| gbps * first.time_us.mean / mean);
        let mut time_us = first.time_us;
        time_us.mean = mean;
        for it in all {
            time_us.min = time_us.min.min(it.time_us.min);
            time_us.max = time_us.max.max(it.time_us.max);
        }
        Some(Self {
            time_us,
            of_ideal: mean / first.ideal_us,
            algorithm_gbps: scaled(first.algorithm_gbps),
            bus_gbps: scaled(first.bus_gbps),
            finished: all.iter().map(|it| it.finished).sum(),
            unfinished: all.iter().map(|it| it.unfinished).sum(),
            waits: all
                .iter()
                .find(|it| !it.waits.is_empty())
                .map_or(Vec::new(), |it| it.waits.clone()),
            ..first.clone()
        })
    }
}

/// Returns the iterations of all ranks.
pub(crate) fn rank_iterations(reports: &[RankReport]) -> Vec<RankIteration> {
    let of = |report: &RankReport| {
        let (rank, host) = (u64::from(report.rank), u64::from(report.host.0));
        let all = (0..).zip(report.iterations.clone());
        all.map(move |(iteration, (start, end))| {
            let (start_us, end_us) = (start.as_us_f64(), end.as_us_f64());
            RankIteration { rank, host, iteration, start_us, end_us }
        })
        .collect::<Vec<_>>()
    };
    reports.iter().flat_map(of).collect()
}

/// Crashes first, then failures, and ranks that wait for others last.
const fn order(reason: WaitReason) -> u8 {
    match reason {
        WaitReason::Crashed => 0,
        WaitReason::Failed { .. } => 1,
        WaitReason::Calculates | WaitReason::NotBegun => 2,
        WaitReason::Send { .. } => 3,
        WaitReason::Receive { .. } => 4,
    }
}

/// Says what a rank waits for.
fn waits_for(rank: u32, wait: &Wait) -> String {
    let iteration = if wait.iteration == 0 {
        String::new()
    } else {
        format!(" (iteration {})", wait.iteration)
    };
    let size = |bytes: u64| number::bytes(bytes as f64);
    match wait.reason {
        WaitReason::Receive { from, bytes, tag } => {
            format!("rank {rank} waits for {} of rank {from}, tag {tag}{iteration}", size(bytes))
        }
        WaitReason::Send { to, bytes, tag } => format!(
            "rank {rank} waits until its {} have arrived at rank {to}, tag {tag}{iteration}",
            size(bytes)
        ),
        WaitReason::Failed { to, bytes, tag, reason } => format!(
            "rank {rank} stopped after its {} to rank {to}, tag {tag}, had failed ({reason}){iteration}",
            size(bytes)
        ),
        WaitReason::Crashed => format!("the host of rank {rank} crashed{iteration}"),
        WaitReason::Calculates => format!("rank {rank} calculates{iteration}"),
        WaitReason::NotBegun => format!("rank {rank} has not begun{iteration}"),
    }
}
