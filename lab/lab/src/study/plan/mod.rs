//! Plans of circuits for random demand, compared with the exact optimum: what `[workload.plan]` runs. No network is
//! simulated.

mod keys;

use std::sync::atomic::Ordering;

use rackweave_core::{HostId, Rng, Span, Time};
use rackweave_rackless::cost::Reconfiguration;
use rackweave_rackless::demand::DemandError;
use rackweave_rackless::fabric::Fabric;
use rackweave_rackless::instances::periods;
use rackweave_rackless::plan::{Algorithm, EXACT_LIMIT, Options, plan};
use rackweave_scenario::keys::Chosen;
use rackweave_scenario::problem::Problem;
use rackweave_sim::Control;
use rackweave_sim::result::{End, MessageRecord, Outcome, RunResult};
use serde::{Deserialize, Serialize};

use super::setting::computed;
use super::{Configured, Done, Ground, Kind, Setting, StudyError, StudySummary};
use crate::results::stats::percentile;

/// The parameters of a comparison.
#[derive(Clone, Debug)]
pub struct PlanConfig {
    /// The pod, and what its circuits can be.
    pub fabric: Fabric,
    /// How plans are found, with the cost of changes but for their delay.
    pub options: Options,
    /// The number of instances. Instance `i` is drawn with seed `seed + i`.
    pub instances: u64,
    /// The first seed.
    pub seed: u64,
    /// The least and the most periods of an instance.
    pub periods: (u64, u64),
    /// The number of groups of servers.
    pub groups: u64,
    /// The delays of a change; each instance has one of them.
    pub delays: Vec<Span>,
}

impl Kind for PlanConfig {
    type Keys = keys::PlanKeys;
    type Scheme = keys::Name;

    const RUNS_ON_PODS: bool = true;
    #[cfg(test)]
    const EXAMPLE: &'static str = "[workload.plan]\ninstances = 1";

    fn check(ground: &Ground<'_>) -> Result<(), Problem> {
        if ground.has_background || !ground.faults.is_empty() {
            let message = "plans are computed without a network: background streams and faults have no meaning";
            return Err(Problem::new("workload.plan", message));
        }
        Ok(())
    }

    fn resolve(
        keys: &Self::Keys,
        planner: &Chosen<Self::Scheme>,
        ground: &Ground<'_>,
    ) -> Result<Self, Problem> {
        keys.resolve(planner, ground)
    }

    fn label(planner: &Chosen<Self::Scheme>) -> String {
        planner.label.clone().unwrap_or_else(|| planner.keys.algorithm().name().to_owned())
    }
}

impl Configured for PlanConfig {
    fn run(&self, setting: &Setting<'_>) -> Result<Done, StudyError> {
        let plans = run(self, setting.control).map_err(StudyError::of_kind)?;
        let (result, summary) = (as_run(self, &plans), PlanSummary::new(&plans));
        let (summary, capture) = (StudySummary::Plan(summary), Vec::new());
        Ok(Done { result, summary, detail: None, capture })
    }
}

/// The totals of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanResult {
    /// The sum of the periods' times.
    pub total: Span,
    /// That of the exact plan, if the pod is small enough for one.
    pub exact: Option<Span>,
    /// That of the first circuits throughout.
    pub fixed: Span,
    /// The number of changes.
    pub changes: u64,
}

/// The object `plan` of a point in `summary.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanSummary {
    /// The number of instances.
    pub instances: u64,
    /// How much longer plans take than exact ones, as a share. Without exact plans these are NaN (`null` in JSON).
    pub gap: GapSummary,
    /// The number of plans that take as long as the exact one.
    pub equal: u64,
    /// How much shorter plans are than without any change of circuits, as a share of that, on average.
    pub saving: f64,
    /// The number of changes of an instance, on average.
    pub changes: f64,
}

/// A distribution of gaps.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GapSummary {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The largest.
    pub max: f64,
}

/// Plans all instances, until `control` cancels it.
///
/// # Errors
/// If the demand of a period has more bytes than a number of 64 bits can hold.
fn run(config: &PlanConfig, control: &Control) -> Result<Vec<PlanResult>, DemandError> {
    let is_small = config.fabric.configurations(EXACT_LIMIT).is_some();
    let mut results = Vec::new();
    for seed in (config.seed..).take(config.instances as usize) {
        if control.cancel.load(Ordering::Relaxed) {
            break;
        }
        let mut rng = Rng::stream(seed, 0, 0, "instance");
        let (least, most) = config.periods;
        let count = least + rng.below(most - least + 1);
        let servers = config.fabric.pod().servers();
        let periods = periods(&mut rng, servers, count, config.groups)?;
        let delay = config.delays[rng.below(config.delays.len() as u64) as usize];
        let reconfiguration = Reconfiguration { delay, ..config.options.reconfiguration };
        let planned = |algorithm| {
            let options = Options { reconfiguration, algorithm, ..config.options };
            let mut rng = Rng::stream(seed, 0, 0, "plan");
            plan(&config.fabric, &periods, &options, &mut rng).ok()
        };
        let total = |algorithm| planned(algorithm).map(|plan| plan.total);
        let exact = if is_small { total(Algorithm::Exact) } else { None };
        let (Some(plan), Some(fixed)) =
            (planned(config.options.algorithm), total(Algorithm::Fixed))
        else {
            continue;
        };
        let changes = plan.reconfigurations() as u64;
        results.push(PlanResult { total: plan.total, exact, fixed, changes });
        control.finished.store(results.len() as u64, Ordering::Relaxed);
    }
    Ok(results)
}

/// Returns plans as the messages of a run: their latency is their total, and their ideal time that of the exact plan, or their own if
/// there is none.
fn as_run(config: &PlanConfig, results: &[PlanResult]) -> RunResult {
    let message = |result: &PlanResult| MessageRecord {
        stream: 0,
        src: HostId(0),
        dst: HostId(0),
        bytes: 0,
        start: Time::ZERO,
        ideal: result.exact.unwrap_or(result.total),
        outcome: Outcome::Completed(Time::ZERO + result.total),
    };
    let is_whole = results.len() as u64 == config.instances;
    let end = if is_whole { End::AllDone } else { End::Cancelled };
    computed(results.iter().map(message).collect(), end)
}

impl PlanSummary {
    /// Summarises the plans.
    #[must_use]
    pub fn new(results: &[PlanResult]) -> Self {
        let gap = |result: &PlanResult| {
            Some(result.total.ticks() as f64 / (result.exact?.ticks().max(1)) as f64 - 1.0)
        };
        let mut gaps: Vec<f64> = results.iter().filter_map(gap).collect();
        gaps.sort_by(f64::total_cmp);
        let count = results.len() as f64;
        let saved = |result: &PlanResult| {
            1.0 - result.total.ticks() as f64 / result.fixed.ticks().max(1) as f64
        };
        Self {
            instances: results.len() as u64,
            gap: GapSummary {
                mean: gaps.iter().sum::<f64>() / gaps.len() as f64,
                p50: percentile(&gaps, 0.5),
                p95: percentile(&gaps, 0.95),
                max: gaps.last().copied().unwrap_or(f64::NAN),
            },
            equal: gaps.iter().filter(|gap| **gap < 1e-12).count() as u64,
            saving: results.iter().map(saved).sum::<f64>() / count,
            changes: results.iter().map(|result| result.changes as f64).sum::<f64>() / count,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::run::Batch;
    use crate::scenario::Scenario;

    const PLANS: &str = "fabric = { topology = 'rackless', tors = [4, 2, 2], uplinks = [2, 1, 1] }
        transport = { name = 'circuit-plan' }
        workload.plan = { instances = 6 }
        [sweep]
        transport.algorithm = ['exact', 'heuristic', 'fixed']";

    #[test]
    fn plans_are_compared_with_exact_ones_and_with_no_plan() {
        let scenario = Scenario::parse("plans.toml", PLANS, Path::new("."), &[], None).unwrap();
        let results = Batch::new(scenario).run(Some(1)).unwrap();
        let plans: Vec<_> = results
            .points
            .iter()
            .map(|p| p.summary.of::<super::PlanConfig>().unwrap().clone())
            .collect();
        assert_eq!((plans[0].instances, plans[0].equal, plans[0].gap.max), (6, 6, 0.0));
        assert!((0.0..0.05).contains(&plans[1].gap.max), "{plans:?}");
        assert!(plans[1].saving > 0.0 && plans[2].saving == 0.0, "{plans:?}");
        assert!(plans[2].gap.mean > plans[1].gap.mean, "{plans:?}");
        assert!(results.warnings().next().is_none());
    }

    #[test]
    fn what_cannot_be_planned_is_refused() {
        for (set, reason) in [
            (
                "fabric={ topology = 'racks', tors = [2], uplinks = 1 }",
                "these circuits are not planned",
            ),
            ("fabric={ topology = 'single-switch', hosts = 4 }", "circuits are planned for a pod"),
            ("workload.plan.programmable=[3]", "there is no ToR 3"),
            ("workload.plan.periods=[3, 2]", "the least and the most periods"),
            ("workload.plan.delays=[]", "instances need a delay"),
            (
                "faults=[{ kind = 'loss', place = 'all links', probability = 0.1 }]",
                "computed without a network",
            ),
        ] {
            let sets = [set.to_owned()];
            let error =
                Scenario::parse("plans.toml", PLANS, Path::new("."), &sets, None).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}
