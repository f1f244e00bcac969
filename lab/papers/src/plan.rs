//! Which scenarios are run for which claims.

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::Arc;

use rackweave_lab::error::{ScenarioError, nearest};
use rackweave_lab::scenario::{NO_COSTS, PointSpec, Scenario, ScenarioText, World};
use rackweave_lab::study;

use super::claim::{Claim, File, Paper, Quick, Worlds};
use super::real::RealHosts;
use super::rule::{self, refuse_unknown};
use super::select::{PointKey, not_tried};
use super::session::PaperResult;
use super::{figure, papers};

/// The user's request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// A paper's name, or the path of a file of claims; `None` for all papers.
    pub paper: Option<String>,
    /// The names of claims; empty for all.
    pub claims: Vec<String>,
    /// Whether sizes and repetitions are reduced.
    pub quick: bool,
    /// `KEY=VALUE` arguments that are set in every scenario.
    pub sets: Vec<String>,
    /// The argument that gives simulated hosts their costs; `None` if they have none.
    pub host: Option<String>,
    /// Where scenarios run on real hosts; `None` if claims about both worlds cannot be decided.
    pub real_hosts: Option<Arc<dyn RealHosts>>,
    /// The most threads for each simulated point; 0 is 1.
    pub threads: u32,
}

/// A scenario that is run once, for one claim or several.
pub(crate) struct Run {
    /// The directory of its results, which is also the name that claims use.
    pub(crate) name: String,
    /// All its points: those in the simulator, then those on the testbed.
    pub(crate) scenario: Scenario,
    /// The testbed part, if the scenario is run there too.
    pub(crate) real: Option<TestbedRun>,
    pub(crate) keys: Vec<PointKey>,
    /// The points of the full (not quick) run.
    pub(crate) whole: Vec<PointKey>,
    /// What a quick run sets.
    pub(crate) quick_sets: Vec<String>,
}

/// The configuration of a testbed run.
pub(crate) struct TestbedRun {
    pub(crate) text: ScenarioText,
    pub(crate) sets: Vec<String>,
    pub(crate) scenario: Scenario,
}

/// A claim and the runs of its scenarios.
pub(crate) struct PlannedClaim {
    pub(crate) system: String,
    /// The path of the claims file.
    pub(crate) file: String,
    /// The day on which the remarks of the claims file were written; may be empty.
    pub(crate) written: String,
    /// How this run differs from that of the claim.
    pub(crate) notes: Vec<String>,
    pub(crate) claim: Claim,
    /// The scenario's file or name, as `rackweave run` accepts it.
    pub(crate) scenario: String,
    pub(crate) runs: BTreeMap<String, usize>,
    /// Why the claim cannot be decided: its scenario cannot be read, or lacks points that the rules name.
    pub(crate) trouble: Option<String>,
}

/// Everything that a request runs.
pub(crate) struct Plan {
    pub(crate) papers: Vec<PaperResult>,
    pub(crate) runs: Vec<Run>,
    pub(crate) claims: Vec<PlannedClaim>,
}

/// Returns the papers of a request.
fn chosen(request: &Request) -> Result<Vec<Paper>, ScenarioError> {
    let Some(name) = &request.paper else { return papers() };
    let all = papers()?;
    if let Some(paper) = all.iter().find(|paper| paper.name() == name) {
        return Ok(vec![paper.clone()]);
    }
    let path = FilePath::new(name);
    if path.is_file() {
        return Ok(vec![Paper::load(path)?]);
    }
    let names = || all.iter().map(Paper::name);
    let error = ScenarioError::new(format!("there are no claims of `{name}`"));
    Err(error.with_help(match nearest(name, names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!(
            "papers are {}; or name a file of claims",
            names().collect::<Vec<_>>().join(", ")
        ),
    }))
}

impl Plan {
    pub(crate) fn new(request: &Request) -> Result<Self, ScenarioError> {
        let papers = chosen(request)?;
        for id in &request.claims {
            let ids = || papers.iter().flat_map(Paper::ids);
            if !ids().any(|known| known == id) {
                let error = ScenarioError::new(format!("there is no claim `{id}`"));
                return Err(error.with_help(match nearest(id, ids()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("claims are {}", ids().collect::<Vec<_>>().join(", ")),
                }));
            }
        }
        let mut plan = Self { papers: Vec::new(), runs: Vec::new(), claims: Vec::new() };
        for paper in &papers {
            plan.add(paper, request)?;
        }
        Ok(plan)
    }

    fn add(&mut self, paper: &Paper, request: &Request) -> Result<(), ScenarioError> {
        let is_chosen =
            |claim: &&Claim| request.claims.is_empty() || request.claims.contains(&claim.id);
        if paper.content.claims.iter().any(|claim| is_chosen(&claim)) {
            let File { title, source, numbers, originals, .. } = &paper.content;
            self.papers.push(PaperResult {
                name: paper.name().to_owned(),
                title: title.clone(),
                source: source.clone(),
                numbers: numbers.clone(),
                originals: originals.clone(),
            });
        }
        // Scenarios with the same name in one paper are one scenario.
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for claim in paper.content.claims.iter().filter(is_chosen) {
            let mut planned = PlannedClaim {
                system: paper.name().to_owned(),
                file: paper.file.clone(),
                written: paper.content.written.clone(),
                notes: Vec::new(),
                claim: claim.clone(),
                scenario: paper.scenario(&claim.scenario)?.file.clone(),
                runs: BTreeMap::new(),
                trouble: None,
            };
            // An error in one claim must not prevent the others from being run.
            let loaded = claim.scenarios().into_iter().try_for_each(|name| {
                let index = match known.get(name) {
                    Some(index) => *index,
                    None => {
                        self.runs.push(load(paper, name, request)?);
                        self.runs.len() - 1
                    }
                };
                known.insert(name.to_owned(), index);
                planned.runs.insert(name.to_owned(), index);
                Ok(())
            });
            let is_real = |index: &usize| self.runs[*index].real.is_some();
            if planned.runs.values().any(is_real) {
                planned.notes.push(match &request.host {
                    None => NO_COSTS.to_owned(),
                    Some(_) => "simulated hosts cost what `rackweave calibrate` has measured on loads of its own, and the fitted \
                                delays of hosts are in ideal times only"
                        .to_owned(),
                });
            } else if request.host.is_some() {
                planned.notes.push("hosts cost what `--host` says".to_owned());
            }
            if !request.sets.is_empty() {
                let sets = request.sets.join(", ");
                planned.notes.push(format!("keys were set by `--set`: {sets}"));
            }
            let mut runs: Vec<&Run> = Vec::new();
            for index in planned.runs.values() {
                if runs.iter().all(|run| !std::ptr::eq(*run, &self.runs[*index])) {
                    runs.push(&self.runs[*index]);
                }
            }
            for run in runs.iter().filter(|_| request.quick) {
                if let Some(points) = not_tried(&run.whole, &run.keys) {
                    let of =
                        if runs.len() > 1 { format!(" of {}", run.name) } else { String::new() };
                    planned.notes.push(format!("--quick has not tried {points}{of}"));
                }
                if !run.quick_sets.is_empty() {
                    let sets = run.quick_sets.join(", ");
                    planned.notes.push(format!("--quick has set {sets}"));
                }
            }
            let ready = loaded.map_err(|error: ScenarioError| error.message().to_owned());
            planned.trouble = match ready.and_then(|()| self.check(&planned)) {
                Ok(()) if request.real_hosts.is_none() && planned.runs.values().any(is_real) => {
                    Some(NO_HOSTS.to_owned())
                }
                checked => checked.err(),
            };
            self.claims.push(planned);
        }
        Ok(())
    }

    /// Checks that rules and figures name existing points before anything is run.
    fn check(&self, planned: &PlannedClaim) -> Result<(), String> {
        for rule in &planned.claim.rules {
            let run = &self.runs[planned.run_of(rule.scenario.as_deref())];
            rule::check(rule, &run.keys, &run.whole)
                .map_err(|error| format!("rule {:?}: {error}", rule.say))?;
        }
        for figure in &planned.claim.figures {
            let keys = &self.runs[planned.run_of(figure.scenario.as_deref())].keys;
            figure::check(figure, keys)
                .map_err(|error| format!("figure `{}`: {error}", figure.name))?;
        }
        Ok(())
    }
}

impl PlannedClaim {
    /// Returns the index of the run of this scenario, or of the claim's own scenario.
    pub(crate) fn run_of(&self, scenario: Option<&str>) -> usize {
        self.runs[scenario.unwrap_or(&self.claim.scenario)]
    }
}

fn load(paper: &Paper, name: &str, request: &Request) -> Result<Run, ScenarioError> {
    let quick = request.quick;
    let spec = paper.scenario(name)?;
    let text = paper.scenario_text(spec)?;
    // Returns the scenario in one world, as all its points and as the ones that are run.
    let in_world = |world| {
        let mut sets = request.sets.clone();
        // Real hosts cost what they cost.
        sets.extend(request.host.clone().filter(|_| world == World::Simulator));
        let whole = text.read(world, &sets, None)?;
        let mut keys: Vec<PointKey> = whole.points.iter().map(PointKey::of).collect();
        let mut scenario = whole;
        if quick {
            sets.splice(0..0, spec.quick.set.iter().cloned());
            let small = text.read(world, &sets, None)?;
            scenario = shrink(&spec.quick, scenario, small).map_err(|message| {
                ScenarioError::new(format!("{}, [scenarios.{name}] quick: {message}", paper.file))
            })?;
        }
        if spec.world == Worlds::Both {
            let value = if world == World::Testbed { "real" } else { "simulated" };
            keys.iter_mut().for_each(|key| key.insert(WORLD, value));
            for point in &mut scenario.points {
                point.set.push((WORLD.into(), value.into()));
            }
        }
        Ok((keys, scenario))
    };
    let (mut whole, mut scenario) = in_world(World::Simulator)?;
    let mut real = None;
    if spec.world == Worlds::Both {
        let (keys, testbed) = in_world(World::Testbed)?;
        whole.extend(keys);
        scenario.points.extend(testbed.points.iter().cloned());
        let mut sets = if quick { spec.quick.set.clone() } else { Vec::new() };
        sets.extend(request.sets.iter().cloned());
        real = Some(TestbedRun { text, sets, scenario: testbed });
    }
    let keys = scenario.points.iter().map(PointKey::of).collect();
    let quick_sets = if quick { spec.quick.set.clone() } else { Vec::new() };
    let name = format!("{}-{name}", paper.name());
    Ok(Run { name, scenario, real, keys, whole, quick_sets })
}

/// Why a claim about both worlds cannot be decided.
pub(crate) const NO_HOSTS: &str = "it compares the simulator with real hosts, which need Linux and a build with the feature `hosts`";

/// The key that distinguishes the points of the two worlds.
const WORLD: &str = "world";

/// The keys that `quick` may set in addition to the sizes of kinds of workload: they determine how much is run, and not
/// what is compared.
const SHRINKABLE: [&str; 15] = [
    "measure.messages",
    "measure.warmup",
    "measure.time_limit",
    "measure.sample_every",
    "workload.messages_per_sender",
    "workload.stop",
    "fabric.hosts",
    "fabric.left",
    "fabric.right",
    "fabric.leaves",
    "fabric.hosts_per_leaf",
    "fabric.spines",
    "fabric.k",
    "workload.truncate",
    "workload.duration",
];

/// Returns the reduced scenario, after checking that it differs only in size.
fn shrink(quick: &Quick, whole: Scenario, mut small: Scenario) -> Result<Scenario, String> {
    let shrinkable: Vec<&str> = SHRINKABLE.into_iter().chain(study::sizes()).collect();
    for set in &quick.set {
        let key = set.split('=').next().unwrap_or(set).trim();
        if !shrinkable.contains(&key) {
            return Err(format!(
                "`{key}` is not a size or a number of repetitions: only {} may be set",
                shrinkable.join(", ")
            ));
        }
    }
    if small.points.len() != whole.points.len() {
        return Err("it has other points than the scenario; leave points out with `only`".into());
    }
    let bytes = |point: &PointSpec| point.study.data_bytes();
    for (less, more) in small.points.iter().zip(&whole.points) {
        let grown = [
            (less.config.measure.messages > more.config.measure.messages, "messages"),
            (less.config.measure.time_limit > more.config.measure.time_limit, "time_limit"),
            (less.config.measure.warmup > more.config.measure.warmup, "warmup"),
            (bytes(less) > bytes(more), "number of bytes"),
            (
                less.config.fabric.topology.hosts() > more.config.fabric.topology.hosts(),
                "number of hosts",
            ),
        ];
        if let Some((_, what)) = grown.into_iter().find(|(grown, _)| *grown) {
            return Err(format!("the {what} is larger than the scenario's"));
        }
    }
    let keys: Vec<PointKey> = small.points.iter().map(PointKey::of).collect();
    refuse_unknown(&quick.only, &keys)?;
    small.points = keep(small.points, |point| quick.only.matches(&PointKey::of(point)));
    if small.points.is_empty() {
        return Err("`only` leaves no point".into());
    }
    Ok(small)
}

fn keep(points: Vec<PointSpec>, wanted: impl Fn(&PointSpec) -> bool) -> Vec<PointSpec> {
    points.into_iter().filter(wanted).collect()
}
