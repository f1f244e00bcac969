//! Running the scenarios of claims, and deciding the claims.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rackweave_lab::error::{OutputError, ScenarioError};
use rackweave_lab::output::OutputDir;
use rackweave_lab::results::{
    MOST_LACKING, MachineShare, PointFailure, PointResult, Results, Weight,
};
use rackweave_lab::run::{Batch, PointEnd, Progress, RunError};
use rackweave_lab::scenario::World;
use serde::{Deserialize, Serialize};

use super::claim::{Claim, Figure, Original};
use super::figure::{self, Picture};
use super::plan::{Plan, PlannedClaim, Request, Run, TestbedRun};
use super::real::RealRun;
use super::rule::{self, Points, RuleError, Ruling};

/// The directory of the runs' own results, below that of the claims.
pub(crate) const RUNS: &str = "runs";

/// A run of claims, which other threads can watch and stop.
pub struct Session {
    plan: Plan,
    batches: Vec<Batch>,
    /// For each run the one on real hosts, if it has any.
    real: Vec<Option<Box<dyn RealRun>>>,
    cancelled: AtomicBool,
    quick: bool,
}

/// What a run says of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All of its rules hold.
    Holds,
    /// A rule does not hold.
    Fails,
    /// A number is missing.
    Undecided,
    /// It is an exploration: its rules only report, so that there is nothing to hold.
    Explored,
}

/// Remarks that are written in the file of claims. Figures in them are of the runs of that day, and not of this run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Remarks {
    /// The path of the file.
    pub file: String,
    /// The day on which they were written; empty if the file does not say.
    pub written: String,
    /// Where the experiment differs from the paper's.
    pub deviations: Vec<String>,
    /// Why the claim did not hold, as far as that is known; only if it does not hold in this run either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl Remarks {
    /// Returns where they are from, and their day.
    pub(crate) fn origin(&self) -> String {
        let Self { file, written, .. } = self;
        let day = if written.is_empty() { String::new() } else { format!(" of {written}") };
        format!("text of {file}{day}, not of this run")
    }
}

/// A redrawn figure of a claim, with everything that a page needs to draw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DrawnFigure {
    /// The name of the figure in the file of claims.
    pub name: String,
    /// The name of the picture's file.
    pub file: String,
    /// Whether the paper's own numbers are in it.
    pub is_over_published: bool,
    pub(crate) picture: Picture,
}

/// A paper whose claims were run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PaperResult {
    /// The name, as claims have it in `system`.
    pub name: String,
    /// Its title.
    pub title: String,
    /// Where it can be found.
    pub source: String,
    /// Which of the authors' numbers are public; may be empty.
    #[serde(default)]
    pub numbers: String,
    /// Its figures in its order; empty if the file of claims has none.
    #[serde(default)]
    pub originals: Vec<Original>,
}

/// The verdict on a claim. The fields are part of the format of `claims.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimResult {
    /// The name of the claim, as `--claim` accepts it.
    pub id: String,
    /// The paper or system that the claim is about.
    pub system: String,
    /// The claim in a sentence.
    pub claim: String,
    /// The slide, section or figure of the paper.
    pub source: String,
    /// What the paper reports.
    pub paper: String,
    /// The measured numbers that decided, in words.
    pub here: String,
    /// What this run says of it.
    pub verdict: Verdict,
    /// Whether it holds by its rules; `null` if that could not be decided, or there is nothing to decide.
    pub holds: Option<bool>,
    /// Why it holds or does not hold.
    pub why: String,
    /// The condition under which it holds, in words.
    pub rule: String,
    /// Each rule with its numbers.
    pub rules: Vec<Ruling>,
    /// The scenario's file or name.
    pub scenario: String,
    /// The CPU time in seconds of the scenarios that it needs; claims may share scenarios.
    pub seconds: f64,
    /// What the file of claims says in addition to the numbers.
    pub remarks: Remarks,
    /// How this run differs from that of the claim: what `--quick` has not tried, and what was set.
    pub notes: Vec<String>,
    /// The number of points of the full run that a quick run leaves out.
    pub points_not_tried: u64,
    /// Warnings about the numbers, such as unfinished messages.
    pub warnings: Vec<String>,
    /// Whether sizes were reduced by `--quick`.
    pub quick: bool,
    /// The redrawn figures.
    pub figures: Vec<DrawnFigure>,
    /// The directories of the runs' own results.
    pub results: Vec<String>,
}

/// The verdicts on all claims, which are written to `claims.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimResults {
    /// The verdicts, in the order of the request.
    pub claims: Vec<ClaimResult>,
    /// Whether sizes were reduced by `--quick`.
    pub quick: bool,
    /// Whether the user stopped it.
    pub interrupted: bool,
    /// The elapsed real time of all runs, in seconds.
    pub wall_s: f64,
    /// The version of Rackweave that ran the claims.
    pub version: String,
    /// The papers of the claims.
    pub papers: Vec<PaperResult>,
}

/// Why a run of claims was aborted.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum PaperError {
    /// A scenario could not be run.
    #[error("the scenario of the claims can't be run: {name}")]
    Run {
        /// The name of the run.
        name: String,
        /// The error of the run.
        source: RunError,
    },
    /// The results could not be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Output(#[from] OutputError),
}

/// The state of a run whose points are being executed.
struct ActiveRun {
    ends: Vec<Option<PointEnd>>,
    left: usize,
    began: Option<Instant>,
}

impl Session {
    /// Reads claims and scenarios, and checks that they are consistent.
    ///
    /// # Errors
    /// If there is no such claim, or a file is invalid.
    pub fn prepare(request: &Request) -> Result<Self, ScenarioError> {
        let plan = Plan::new(request)?;
        let batches = plan.runs.iter().map(|run| {
            let mut simulated = run.scenario.clone();
            simulated.points.retain(|point| point.world == World::Simulator);
            Batch::new(simulated).with_threads(request.threads)
        });
        let batches = batches.collect();
        let prepared = |real: &TestbedRun| {
            let hosts = request.real_hosts.as_ref()?;
            Some(hosts.prepare(&real.text, &real.sets, real.scenario.clone()))
        };
        let real = plan.runs.iter().map(|run| run.real.as_ref().and_then(prepared)).collect();
        let cancelled = AtomicBool::new(false);
        Ok(Self { plan, batches, real, cancelled, quick: request.quick })
    }

    /// Returns the paper, the claim and the scenario of each planned claim.
    pub(crate) fn claims(&self) -> impl Iterator<Item = (&str, &Claim, &str)> {
        self.plan.claims.iter().map(|p| (p.system.as_str(), &p.claim, p.scenario.as_str()))
    }

    /// Stops the run at the next opportunity. Claims whose points are finished are decided.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.batches.iter().for_each(Batch::cancel);
        self.real.iter().flatten().for_each(|real| real.cancel());
    }

    /// Returns whether [`Session::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Returns the progress over all runs.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let mut all = Progress::default();
        let mut shares = 0.0;
        let real = self.real.iter().flatten().map(|real| real.progress());
        for progress in self.batches.iter().map(Batch::progress).chain(real) {
            shares += progress.fraction * progress.points as f64;
            all.points += progress.points;
            all.points_done += progress.points_done;
            all.events += progress.events;
            all.messages += progress.messages;
            if progress.points_done < progress.points && all.simulated.ticks() == 0 {
                all.simulated = progress.simulated;
            }
        }
        all.fraction = shares / all.points.max(1) as f64;
        all
    }

    /// Runs every scenario once, on `jobs` threads (`None` for one per core), decides the claims, and writes everything
    /// to `out`.
    ///
    /// # Errors
    /// If a scenario cannot be run or a file cannot be written.
    #[expect(clippy::disallowed_methods, reason = "the wall time is one of the results")]
    pub fn run(
        &self,
        jobs: Option<usize>,
        out: &OutputDir,
        command: &str,
    ) -> Result<ClaimResults, PaperError> {
        let began = Instant::now();
        let runs = self.simulate(jobs, out, command)?;
        let points: Vec<Points> =
            self.plan.runs.iter().zip(&runs).map(|(run, results)| points(run, results)).collect();
        let claims = self.plan.claims.iter().map(|planned| self.decide(planned, &runs, &points));
        let results = ClaimResults {
            claims: claims.collect(),
            quick: self.quick,
            interrupted: self.is_cancelled(),
            wall_s: began.elapsed().as_secs_f64(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            papers: self.plan.papers.clone(),
        };
        results.write(out, command)?;
        Ok(results)
    }

    /// Runs the points of all scenarios in order. Cores that have finished a scenario's last points continue with the
    /// next scenario, and the results of each are written as soon as it is complete.
    #[expect(clippy::disallowed_methods, reason = "the wall time is one of the results")]
    fn simulate(
        &self,
        jobs: Option<usize>,
        out: &OutputDir,
        command: &str,
    ) -> Result<Vec<Results>, PaperError> {
        let needed = |run: usize| {
            let mut claims = self.plan.claims.iter().filter(|claim| claim.trouble.is_none());
            claims.any(|claim| claim.runs.values().any(|of| *of == run))
        };
        let work: Vec<(usize, usize)> = (self.plan.runs.iter().enumerate())
            .filter(|(run, _)| needed(*run))
            .flat_map(|(run, _)| {
                (0..self.batches[run].scenario().points.len()).map(move |p| (run, p))
            })
            .collect();
        let active = self.batches.iter().map(|batch| {
            let left = batch.scenario().points.len();
            Mutex::new(ActiveRun { ends: (0..left).map(|_| None).collect(), left, began: None })
        });
        let active: Vec<Mutex<ActiveRun>> = active.collect();
        let finished: Vec<Mutex<Option<Results>>> =
            self.plan.runs.iter().map(|_| Mutex::new(None)).collect();
        let trouble: Mutex<Option<PaperError>> = Mutex::new(None);
        let next = AtomicUsize::new(0);
        let one = |(run, point): (usize, usize)| -> Result<(), PaperError> {
            let mine = || active[run].lock().unwrap_or_else(PoisonError::into_inner);
            let began = *mine().began.get_or_insert_with(Instant::now);
            let failed =
                |source| PaperError::Run { name: self.plan.runs[run].name.clone(), source };
            let end = self.batches[run].simulate(point).map_err(failed)?;
            let ends = {
                let mut active = mine();
                active.ends[point] = Some(end);
                active.left -= 1;
                if active.left > 0 {
                    return Ok(());
                }
                std::mem::take(&mut active.ends)
            };
            let wall_s = began.elapsed().as_secs_f64();
            let results = self.batches[run].results(ends.into_iter().flatten().collect(), wall_s);
            if self.real[run].is_none() {
                self.write(run, &results, out, command)?;
            }
            *finished[run].lock().unwrap_or_else(PoisonError::into_inner) = Some(results);
            Ok(())
        };
        let jobs = self.batches.first().map_or(1, |batch| batch.jobs(jobs));
        let jobs = jobs.clamp(1, work.len().max(1));
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some(&item) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = one(item) {
                            let mut first = trouble.lock().unwrap_or_else(PoisonError::into_inner);
                            first.get_or_insert(error);
                            // The remaining points would not be used.
                            next.store(work.len(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        if let Some(error) = trouble.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let results = finished.into_iter().zip(&self.batches).map(|(results, batch)| {
            let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
            results.unwrap_or_else(|| batch.results(Vec::new(), 0.0))
        });
        let mut results: Vec<Results> = results.collect();
        // Each run on real hosts has the machine to itself.
        for (run, real) in self.real.iter().enumerate() {
            if let Some(real) = real.as_ref().filter(|_| needed(run)) {
                self.run_real(run, &**real, &mut results[run]);
                self.write(run, &results[run], out, command)?;
            }
        }
        Ok(results)
    }

    /// Adds the results of real hosts to the simulated ones.
    fn run_real(&self, run: usize, real: &dyn RealRun, results: &mut Results) {
        let first = self.batches[run].scenario().points.len();
        let failure = |message: String| PointFailure {
            set: [("world".to_owned(), "real".into())].into_iter().collect(),
            transport: "testbed".into(),
            message,
            seed: self.plan.runs[run].scenario.seed,
            arguments: Vec::new(),
        };
        let (points, failures, wall_s) = match real.run() {
            Err(error) => (Vec::new(), vec![failure(error)], 0.0),
            Ok(real) => (real.points, real.summary.failures, real.summary.wall_s),
        };
        let real = points.into_iter().map(|mut point| {
            point.index += first;
            point
        });
        let all = std::mem::take(&mut results.points).into_iter().chain(real).collect();
        let before = &results.summary;
        let wall_s = before.wall_s + wall_s;
        let mut summary_failures = before.failures.clone();
        summary_failures.extend(failures);
        let rss = before.peak_rss_bytes;
        *results = Results::new(&self.plan.runs[run].scenario, all, wall_s, rss);
        results.summary.failures = summary_failures;
        results.summary.interrupted = self.is_cancelled();
    }

    /// Writes the results of one run.
    fn write(
        &self,
        run: usize,
        results: &Results,
        out: &OutputDir,
        command: &str,
    ) -> Result<(), PaperError> {
        if !results.points.is_empty() {
            let folder = out.path().join(RUNS).join(&self.plan.runs[run].name);
            OutputDir::prepare(&folder)?.write(&self.plan.runs[run].scenario, results, command)?;
        }
        Ok(())
    }

    fn decide(&self, planned: &PlannedClaim, runs: &[Results], points: &[Points]) -> ClaimResult {
        let claim = &planned.claim;
        let mut warnings: Vec<String> = Vec::new();
        let mut rules = Vec::with_capacity(claim.rules.len());
        let runnable = planned.trouble.is_none();
        for rule in claim.rules.iter().filter(|_| runnable) {
            let points = &points[planned.run_of(rule.scenario.as_deref())];
            rules.push(match rule::apply(rule, points) {
                Ok(ruling) => ruling,
                Err(RuleError::Missing(why)) => Ruling::undecided(rule, why),
                Err(RuleError::Wrong(why)) => {
                    let why = format!("{}, claim `{}`: {why}", planned.file, claim.id);
                    Ruling::undecided(rule, why)
                }
            });
        }
        let mut figures = Vec::new();
        for figure in claim.figures.iter().filter(|_| runnable) {
            let run = planned.run_of(figure.scenario.as_deref());
            match figure::draw(figure, &points[run], &self.points_of(run, &runs[run])) {
                Ok(drawn) => figures.extend(drawn.into_iter().map(|(name, picture)| DrawnFigure {
                    name: figure.name.clone(),
                    file: format!("{}-{name}.svg", claim.id),
                    is_over_published: is_over_published(figure, &picture),
                    picture,
                })),
                Err(why) => warnings.push(format!("figure `{}`: {why}", figure.name)),
            }
        }
        let used = || planned.runs.values().map(|run| &runs[*run]);
        let seconds = used().flat_map(|run| &run.points).map(|point| point.summary.cpu_s).sum();
        warnings.extend(used().flat_map(|run| run.warnings().chain(run.remarks(Weight::Note))));
        warnings.extend(
            used().flat_map(|run| &run.summary.failures).map(|failure| {
                format!("a point ({}) failed: {}", failure.transport, failure.message)
            }),
        );
        let runs_of = || planned.runs.values().map(|run| &self.plan.runs[*run]);
        let (whole, tried) = (
            runs_of().map(|run| run.whole.len()).sum::<usize>(),
            runs_of().map(|run| run.keys.len()).sum::<usize>(),
        );
        let points_not_tried = whole.saturating_sub(tried) as u64;
        let (verdict, here, why) = match &planned.trouble {
            None => verdict(&rules),
            Some(why) => (
                Verdict::Undecided,
                "nothing was measured".to_owned(),
                format!("{}, claim `{}` can't be run: {why}", planned.file, claim.id),
            ),
        };
        let is_explained = verdict == Verdict::Fails && !claim.cause.is_empty();
        let remarks = Remarks {
            file: planned.file.clone(),
            written: planned.written.clone(),
            deviations: claim.deviations.clone(),
            cause: is_explained.then(|| claim.cause.trim().to_owned()),
        };
        ClaimResult {
            id: claim.id.clone(),
            system: planned.system.clone(),
            claim: claim.claim.clone(),
            source: claim.source.clone(),
            paper: claim.paper.clone(),
            here,
            verdict,
            holds: match verdict {
                Verdict::Holds => Some(true),
                Verdict::Fails => Some(false),
                Verdict::Undecided | Verdict::Explored => None,
            },
            why,
            rule: claim.holds_when.clone(),
            rules,
            scenario: planned.scenario.clone(),
            seconds,
            remarks,
            notes: planned.notes.iter().cloned().chain(machine(used())).collect(),
            points_not_tried,
            warnings,
            quick: self.quick,
            figures,
            results: planned
                .runs
                .values()
                .map(|run| format!("{RUNS}/{}", self.plan.runs[*run].name))
                .collect(),
        }
    }

    /// Returns the results of a run by the index of the point.
    fn points_of<'a>(&self, run: usize, results: &'a Results) -> Vec<Option<&'a PointResult>> {
        let mut all = vec![None; self.plan.runs[run].keys.len()];
        for point in &results.points {
            all[point.index] = Some(point);
        }
        all
    }
}

/// Returns whether a picture has lines of the paper's own numbers.
fn is_over_published(figure: &Figure, picture: &Picture) -> bool {
    let is_published = |label: &str| {
        figure.published.iter().any(|line| line.name == label)
            || figure.lines.iter().any(|line| line.published && line.name == label)
    };
    picture.series().iter().any(|line| is_published(&line.label))
}

/// Says what the hosts of real runs got of their machine; nothing of simulated runs.
fn machine<'a>(runs: impl Iterator<Item = &'a Results>) -> Option<String> {
    let points = runs.flat_map(|run| &run.points);
    let shares: Vec<(&str, &MachineShare)> =
        points.filter_map(|point| Some((&*point.label, point.summary.machine.as_ref()?))).collect();
    let busy = shares.iter().filter(|(_, share)| share.busy().is_some()).count();
    let (label, worst) = shares.iter().max_by(|a, b| a.1.lacking().total_cmp(&b.1.lacking()))?;
    Some(format!(
        "{busy} of {} real runs were on a busy machine (more than {:.0} % of the time without a processor that others had, or a late switch); \
         in the worst, {label}, {}",
        shares.len(),
        MOST_LACKING * 100.0,
        worst.describe(),
    ))
}

fn points(run: &Run, results: &Results) -> Points {
    let mut summaries = vec![None; run.keys.len()];
    let mut failures = vec![None; run.keys.len()];
    let mut busy = vec![None; run.keys.len()];
    for point in &results.points {
        let failed = point.summary.missing_in_numbers();
        failures[point.index] = failed.map(|warning| format!("{}: {warning}", point.label));
        let machine = point.summary.machine.as_ref().and_then(MachineShare::busy);
        busy[point.index] = machine.map(|why| format!("{}: {why}", point.label));
        summaries[point.index] = serde_json::to_value(&point.summary).ok();
    }
    Points { keys: run.keys.clone(), summaries, failures, busy }
}

/// Returns what a run says of a claim, what was measured, and why.
fn verdict(rules: &[Ruling]) -> (Verdict, String, String) {
    let say = |rule: &Ruling| {
        let turned_out = match (rule.decides, rule.holds) {
            (_, None) => "unknown: ",
            (true, Some(true)) => "",
            (true, Some(false)) => "FAILS: ",
            (false, Some(true)) => "holds: ",
            (false, Some(false)) => "does not hold: ",
        };
        format!("{turned_out}{}: {}", rule.rule, rule.here)
    };
    let here = rules.iter().map(say).collect::<Vec<_>>().join("; ");
    let deciding = || rules.iter().filter(|rule| rule.decides);
    let failed: Vec<&str> =
        deciding().filter(|r| r.holds == Some(false)).map(|rule| &*rule.rule).collect();
    // A claim whose rules only report is an exploration.
    let only_reports = deciding().next().is_none();
    let unknown: Vec<String> = rules
        .iter()
        .filter(|rule| rule.holds.is_none() && (rule.decides || only_reports))
        .map(|rule| format!("{} ({})", rule.rule, rule.here))
        .collect();
    let rules_of = |count| if count == 1 { "rule" } else { "rules" };
    let deciders = deciding().count();
    if !unknown.is_empty() {
        return (Verdict::Undecided, here, format!("could not be decided: {}", unknown.join("; ")));
    }
    if only_reports {
        let why =
            format!("only reports: no rule decides, of {} {}", rules.len(), rules_of(rules.len()));
        return (Verdict::Explored, here, why);
    }
    if failed.is_empty() {
        let why = if deciders == 1 {
            "its rule holds".into()
        } else {
            format!("all {deciders} rules hold")
        };
        return (Verdict::Holds, here, why);
    }
    let fail = if failed.len() == 1 { "fails" } else { "fail" };
    let of = format!("{} of {deciders} {}", failed.len(), rules_of(deciders));
    (Verdict::Fails, here, format!("{of} {fail}: {}", failed.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::{Ruling, Verdict, verdict};

    fn ruling(decides: bool, holds: Option<bool>) -> Ruling {
        let (rule, here) = ("so".to_owned(), "1 < 2".to_owned());
        Ruling { rule, holds, decides, set: None, here, paper_ratio: None, checks: Vec::new() }
    }

    #[test]
    fn only_rules_that_decide_decide() {
        let of = |rules: &[(bool, Option<bool>)]| {
            let rules: Vec<Ruling> = rules.iter().map(|&(d, h)| ruling(d, h)).collect();
            let (verdict, _, why) = verdict(&rules);
            (verdict, why)
        };
        let (yes, no) = (Some(true), Some(false));
        let holds = "its rule holds".to_owned();
        assert_eq!(of(&[(true, yes), (false, no)]), (Verdict::Holds, holds));
        let without_number = of(&[(true, yes), (false, None)]).0;
        assert_eq!(without_number, Verdict::Holds, "a report without a number");
        assert_eq!(of(&[(true, None), (false, yes)]).0, Verdict::Undecided);
        let fails = "1 of 2 rules fails: so".to_owned();
        assert_eq!(of(&[(true, no), (true, yes)]), (Verdict::Fails, fails));
        // If all rules only report, there is nothing to hold, whatever the numbers are.
        let reports = "only reports: no rule decides, of 1 rule".to_owned();
        assert_eq!(of(&[(false, no)]), (Verdict::Explored, reports));
        assert_eq!(of(&[(false, None), (false, yes)]).0, Verdict::Undecided);
    }
}
