//! Topology engineering: a sequence of configurations, one for each period, that shortens the sum of the periods' times.

mod circuits;
mod dynamic;
mod greedy;
mod matching;
mod online;
mod pool;
mod search;

use rackweave_core::{Rng, Span};

pub(crate) use self::greedy::gathered;
pub use self::matching::max_weight_matching;
use crate::config::{Configuration, Move};
use crate::cost::{Cost, Reconfiguration, plus};
use crate::demand::Period;
use crate::fabric::Fabric;

/// The most configurations for which the exact plan is computed, unless the options have another limit.
pub const EXACT_LIMIT: usize = 2000;
/// The most periods that a heuristic plans at once. A longer trace is planned block by block.
const BLOCK: usize = 128;
/// The most entries of the exact plan's table of predecessors.
const EXACT_ENTRIES: usize = 50_000_000;

/// How a plan is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The first configuration throughout.
    Fixed,
    /// The dynamic program over all configurations: the optimum, for small pods.
    Exact,
    /// Grouping by heavy edges, improved by Kernighan-Lin swaps with restarts, for windows of periods of several lengths, and
    /// the dynamic program over these candidates.
    Heuristic,
    /// The best configuration that the heuristic finds for each period by itself, whatever the delay.
    Greedy,
    /// Period by period without knowledge of later ones: a move only if it saves more in this period than it delays.
    Hysteresis,
    /// The configuration and number of periods with the most work per time, delay included, then from its end again (after
    /// Eclipse, SIGMETRICS 2016).
    Eclipse,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 6] =
        [Self::Fixed, Self::Exact, Self::Heuristic, Self::Greedy, Self::Hysteresis, Self::Eclipse];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Exact => "exact",
            Self::Heuristic => "heuristic",
            Self::Greedy => "greedy",
            Self::Hysteresis => "hysteresis",
            Self::Eclipse => "eclipse",
        }
    }
}

/// The options of planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// The cost of changes.
    pub reconfiguration: Reconfiguration,
    /// How the plan is found.
    pub algorithm: Algorithm,
    /// The number of times that a local search starts from a disturbed result, for each window of periods.
    pub restarts: u32,
    /// The most configurations for which the exact plan is computed.
    pub exact_limit: usize,
}

impl Options {
    /// Creates the options of an algorithm, with few restarts.
    #[must_use]
    pub const fn new(algorithm: Algorithm, reconfiguration: Reconfiguration) -> Self {
        Self { reconfiguration, algorithm, restarts: 2, exact_limit: EXACT_LIMIT }
    }
}

/// One period of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The configuration.
    pub configuration: Configuration,
    /// What the period costs, with the reconfiguration before it.
    pub cost: Cost,
    /// The part of its time that the reconfiguration adds.
    pub delay: Span,
    /// The servers that move before it.
    pub moves: Vec<Move>,
    /// The circuits between `ToR`s that are added or removed before it.
    pub circuits_changed: u32,
}

impl Step {
    /// Returns whether the period starts with a reconfiguration.
    #[must_use]
    pub fn is_reconfigured(&self) -> bool {
        !self.moves.is_empty() || self.circuits_changed > 0
    }
}

/// A sequence of configurations with what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The periods, in order.
    pub steps: Vec<Step>,
    /// The sum of the periods' times.
    pub total: Span,
}

impl Plan {
    /// Computes what a sequence of configurations costs, one for each period, from the fabric's first configuration.
    #[must_use]
    pub fn evaluate(
        fabric: &Fabric,
        periods: &[Period],
        configurations: Vec<Configuration>,
        reconfiguration: Reconfiguration,
    ) -> Self {
        let mut before = fabric.initial().clone();
        let mut total = Span::ZERO;
        let mut steps = Vec::with_capacity(periods.len());
        for (period, configuration) in periods.iter().zip(configurations) {
            let cost = fabric.cost_after(period, &before, &configuration, reconfiguration);
            let moves = before.moves_to(&configuration);
            let circuits = before.circuits().zip(configuration.circuits());
            let circuits_changed = circuits.map_or(0, |(from, to)| from.changes_to(to));
            let in_place = fabric.cost(period, &configuration).time;
            let delay =
                Span::from_ticks(cost.time.ticks() - in_place.ticks().min(cost.time.ticks()));
            total = plus(total, cost.time);
            before = configuration.clone();
            steps.push(Step { configuration, cost, delay, moves, circuits_changed });
        }
        Self { steps, total }
    }

    /// Returns the number of reconfigurations.
    #[must_use]
    pub fn reconfigurations(&self) -> usize {
        self.steps.iter().filter(|step| step.is_reconfigured()).count()
    }

    /// Returns the bytes that the `ToR`s absorb in all periods.
    #[must_use]
    pub fn absorbed(&self) -> u64 {
        self.steps.iter().fold(0, |sum, step| sum.saturating_add(step.cost.absorbed))
    }
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The exact plan would take too long.
    #[error("there are more than {limit} configurations: the exact plan is for smaller pods")]
    TooManyConfigurations {
        /// The largest permitted number.
        limit: usize,
    },
    /// The exact plan would need too much memory.
    #[error("{configurations} configurations in {periods} periods are too many for an exact plan")]
    TooManyPeriods {
        /// The number of configurations.
        configurations: usize,
        /// The number of periods.
        periods: usize,
    },
}

/// Finds a plan for these periods. The same arguments and the same state of the random numbers give the same plan.
///
/// # Errors
/// If the exact plan is required and there are too many configurations.
pub fn plan(
    fabric: &Fabric,
    periods: &[Period],
    options: &Options,
    rng: &mut Rng,
) -> Result<Plan, PlanError> {
    let reconfiguration = options.reconfiguration;
    let steerable = fabric.architecture().is_rackless() || fabric.architecture().has_circuits();
    let fixed = || vec![fabric.initial().clone(); periods.len()];
    let configurations = match options.algorithm {
        _ if !steerable => fixed(),
        Algorithm::Fixed => fixed(),
        Algorithm::Exact => exact(fabric, periods, options)?,
        Algorithm::Hysteresis => online::hysteresis(fabric, periods, options, rng),
        algorithm => {
            let mut at = fabric.clone();
            let mut all = Vec::with_capacity(periods.len());
            for block in periods.chunks(BLOCK) {
                let part = match algorithm {
                    Algorithm::Eclipse => online::eclipse(&at, block, options, rng),
                    Algorithm::Greedy => pool::best_of_each(&at, block, options, rng),
                    _ => pool::plan(&at, block, options, rng),
                };
                if let Some(last) = part.last() {
                    at = at.starting_from(last.clone());
                }
                all.extend(part);
            }
            all
        }
    };
    let plan = Plan::evaluate(fabric, periods, configurations, reconfiguration);
    if options.algorithm == Algorithm::Greedy {
        return Ok(plan);
    }
    // A heuristic may be worse than doing nothing, which is always possible.
    let still = Plan::evaluate(fabric, periods, fixed(), reconfiguration);
    Ok(if still.total <= plan.total { still } else { plan })
}

fn exact(
    fabric: &Fabric,
    periods: &[Period],
    options: &Options,
) -> Result<Vec<Configuration>, PlanError> {
    let limit = options.exact_limit;
    let all = fabric.configurations(limit).ok_or(PlanError::TooManyConfigurations { limit })?;
    if all.len().saturating_mul(periods.len()) > EXACT_ENTRIES {
        let (configurations, periods) = (all.len(), periods.len());
        return Err(PlanError::TooManyPeriods { configurations, periods });
    }
    let first = all.iter().position(|it| it == fabric.initial()).unwrap_or(0);
    let costs = dynamic::costs(fabric, periods, &all);
    let mut transitions = dynamic::Transitions::new(periods.len());
    let changes = (options.reconfiguration, &mut transitions);
    let best = dynamic::best_sequence(fabric, periods, &all, first, changes, &costs);
    Ok(best.into_iter().map(|index| all[index].clone()).collect())
}
