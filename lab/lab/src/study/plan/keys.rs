//! `[workload.plan]`: random demand for the planner of circuits, and `[transport]` of such a scenario, the planner itself.

use rackweave_core::Span;
use rackweave_rackless::cost::{Reconfiguration, Scope};
use rackweave_rackless::fabric::Architecture;
use rackweave_rackless::plan::{Algorithm, Options};
use rackweave_scenario::de::{self, DeError};
use rackweave_scenario::item::About;
use rackweave_scenario::keys::{Choice as _, Chosen, keys, schemes};
use rackweave_scenario::problem::Problem;
use rackweave_scenario::tree::{Origin, Table};
use rackweave_scenario::values::Unit;
use rackweave_sim::config::{Circuits, Dark, Topology};
use serde::{Deserialize, Serialize};

use super::PlanConfig;
use crate::error::nearest;
use crate::study::Ground;
use crate::study::reduce::planned_fabric;

/// The keys of `[workload.plan]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PlanKeys {
    /// Instances; number *i* has seed `seed` + *i*. Default: 200.
    instances: u32,
    /// Least and most periods of an instance. Default: `[4, 12]`.
    periods: [u32; 2],
    /// Groups of servers. Default: 3.
    groups: u32,
    /// Delays of a change, one per instance. Default: 0, 1, 5, 10, 25, 100 ms.
    delays: Vec<Unit<Span>>,
    /// ToRs that aggregate, and slots of each. Default: `[0]`; 65,536.
    programmable: Vec<u32>,
    /// ToRs that aggregate, and slots of each. Default: `[0]`; 65,536.
    slots: u32,
}

impl Default for PlanKeys {
    fn default() -> Self {
        Self {
            instances: 200,
            periods: [4, 12],
            groups: 3,
            delays: [0, 1, 5, 10, 25, 100].map(|ms| Unit(Span::from_ms(ms))).into(),
            programmable: vec![0],
            slots: 65_536,
        }
    }
}

schemes! {
    /// The names of planners.
    enum Name {
        Circuits: [Keys] = About {
            name: "circuit-plan",
            description: "no transport: plans of circuits for random demand, compared with the exact optimum",
            profiles: &[],
            sources: &["OFC 2024", "NSDI 2022"],
        };
    }
    unknown: unknown
}

fn unknown(text: &str) -> DeError {
    let error = DeError::new(format!("unknown planner `{text}`"), "plans no circuits");
    error.with_help(match nearest(text, Name::names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("for [workload.plan] there is {}", Name::names().join(", ")),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AlgorithmName {
    Fixed,
    Exact,
    Heuristic,
    Greedy,
    Hysteresis,
    Eclipse,
}

keys! {
    /// The keys of the planner.
    struct Keys {
        /// In `[transport]`: `"heuristic"`, `"exact"`, `"eclipse"`, `"hysteresis"`, `"greedy"` or
        /// `"fixed"`. Default: `"heuristic"`.
        algorithm: AlgorithmName,
    }
}

impl Keys {
    fn read(_: Name, table: &Table, origin: Origin) -> Result<Self, DeError> {
        de::from_table(table, origin)
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        match self.algorithm.unwrap_or(AlgorithmName::Heuristic) {
            AlgorithmName::Fixed => Algorithm::Fixed,
            AlgorithmName::Exact => Algorithm::Exact,
            AlgorithmName::Heuristic => Algorithm::Heuristic,
            AlgorithmName::Greedy => Algorithm::Greedy,
            AlgorithmName::Hysteresis => Algorithm::Hysteresis,
            AlgorithmName::Eclipse => Algorithm::Eclipse,
        }
    }
}

fn wrong(name: &str, message: impl Into<String>) -> Problem {
    Problem::new(format!("workload.plan.{name}"), message)
}

impl PlanKeys {
    /// Checks the keys against each other and the fabric.
    pub(crate) fn resolve(
        &self,
        planner: &Chosen<Name>,
        ground: &Ground<'_>,
    ) -> Result<PlanConfig, Problem> {
        let config = ground.fabric.config();
        let [least, most] = self.periods.map(u64::from);
        if self.instances == 0 || self.instances > 100_000 {
            return Err(wrong("instances", "there are 1 to 100,000 instances"));
        }
        if least == 0 || most < least || most > 1_000 {
            return Err(wrong("periods", "the least and the most periods are from 1 to 1,000"));
        }
        if self.groups == 0 {
            return Err(wrong("groups", "there is at least one group of servers"));
        }
        if self.delays.is_empty() {
            return Err(wrong("delays", "instances need a delay, such as \"25 ms\""));
        }
        let Topology::Pod(pod) = &config.topology else {
            let message = "circuits are planned for a pod";
            let help = "topology = \"rackless\" or \"tor-circuits\"";
            return Err(Problem::new("fabric.topology", message).with_help(help));
        };
        for tor in &self.programmable {
            if *tor as usize >= pod.tors.len() {
                let message = format!("there is no ToR {tor}: the pod has {}", pod.tors.len());
                return Err(wrong("programmable", message));
            }
        }
        let is_added_up = !self.programmable.is_empty();
        let architecture = match (&pod.circuits, is_added_up) {
            (Circuits::Servers(_), false) => Architecture::Ordc,
            (Circuits::Servers(_), true) => Architecture::P4Ordc,
            (Circuits::Tors(_), true) => Architecture::P4IncAoi,
            (Circuits::Tors(_), false) | (Circuits::None, _) => {
                let message = "these circuits are not planned";
                let help = "topology = \"rackless\", or \"tor-circuits\" with a programmable ToR";
                return Err(Problem::new("fabric.topology", message).with_help(help));
            }
        };
        let slots =
            |tor: u32| if self.programmable.contains(&tor) { u64::from(self.slots) } else { 0 };
        let fabric = planned_fabric(pod, config.topology.hosts(), architecture, slots)
            .ok_or_else(|| Problem::new("fabric", "the planner cannot have this pod"))?;
        let scope = if pod.ocs.dark == Dark::All { Scope::All } else { Scope::Moved };
        let reconfiguration = Reconfiguration { delay: Span::ZERO, scope };
        Ok(PlanConfig {
            fabric,
            options: Options::new(planner.keys.algorithm(), reconfiguration),
            instances: u64::from(self.instances),
            seed: ground.seed,
            periods: (least, most),
            groups: u64::from(self.groups),
            delays: self.delays.iter().map(|delay| delay.0).collect(),
        })
    }
}
