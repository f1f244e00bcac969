//! Searches the parameters of a transport that suit a scenario, so that a comparison is best against best.
//!
//! The transport's list of rules says which keys vary, and the values to try ([`rackweave_scenario::derived::Grid`]), from the scenario's
//! own values on. Coordinate descent: for each key in turn all its values are run with the best of the other keys, and the best becomes the
//! new one if it is better by more than 1 %; a round that changes nothing is the last. These runs have an eighth of the messages. The
//! best variants, and the scenario as it is, are then run in full, and the best of those is the result.
//!
//! Better is first fewer messages that did not end, then (unless the load is open) a goodput at most 1 % below the best, then a lower 99th percentile of
//! slowdown: the geometric mean over the points, if the scenario sweeps something.

use std::cell::RefCell;

use rackweave_scenario::derived::{Grid, Parameter};
use rackweave_workload::Pattern;

use crate::error::ScenarioError;
use crate::results::PointSummary;
use crate::scenario::{PointSpec, Scenario};
use crate::search::{Search, SearchError, Variant};
use crate::size;

/// A difference that counts: seeds differ by as much.
const WORTH: f64 = 0.01;
/// The most rounds over all keys.
const ROUNDS: usize = 3;
/// The share of the messages in the runs of the search, and the fewest of them.
const SHARE: u64 = 8;
const FEWEST: u64 = 5_000;
/// The number of variants that are run in full, besides the scenario as it is.
const FINALISTS: usize = 2;

/// What a variant achieves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The 99th percentile of slowdown.
    pub p99: f64,
    /// The median of slowdown.
    pub p50: f64,
    /// The goodput, in Gbit/s.
    pub goodput_gbps: f64,
    /// The messages of all streams that failed or did not end.
    pub unfinished: u64,
    /// The 99th percentile of slowdown of background streams, if there are any with messages. It decides nothing.
    pub background_p99: Option<f64>,
}

impl Outcome {
    /// Of a variant's points; `None` if none of them measured a message.
    fn of(points: &[PointSummary]) -> Option<Self> {
        let mean = |of: fn(&PointSummary) -> f64| {
            let logs = points.iter().map(|point| of(point).ln()).sum::<f64>();
            Some((logs / points.len() as f64).exp()).filter(|mean| mean.is_finite())
        };
        Some(Self {
            p99: mean(|point| point.slowdown.p99)?,
            p50: mean(|point| point.slowdown.p50)?,
            goodput_gbps: mean(|point| point.goodput_gbps)?,
            unfinished: points.iter().map(PointSummary::missing_messages).sum(),
            background_p99: background_p99(points),
        })
    }
}

/// The geometric mean over all background streams with messages.
fn background_p99(points: &[PointSummary]) -> Option<f64> {
    let streams = points.iter().flat_map(|point| &point.background);
    let measured = streams.filter(|stream| stream.messages.completed > 0);
    let logs: Vec<f64> = measured.map(|stream| stream.slowdown.p99.ln()).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// A variant that was run.
#[derive(Clone, Debug, PartialEq)]
struct Trial {
    values: Values,
    outcome: Outcome,
}

/// The varied keys with their values, as TOML.
type Values = Vec<(String, String)>;

/// Returns the index of the best trial. The first counts as the best unless another is better by [`WORTH`]. Under an open load goodput does
/// not count: if all messages end it is what was offered, over a time that the last of them decides by chance.
fn best(trials: &[Trial], is_open: bool) -> usize {
    let fewest = trials.iter().map(|trial| trial.outcome.unfinished).min().unwrap_or(0);
    let all_end = |trial: &&Trial| trial.outcome.unfinished == fewest;
    let most =
        (trials.iter().filter(all_end)).map(|trial| trial.outcome.goodput_gbps).fold(0.0, f64::max);
    let is_fit = |trial: &Trial| {
        all_end(&trial) && (is_open || trial.outcome.goodput_gbps >= most * (1.0 - WORTH))
    };
    let p99 = |index: usize| trials[index].outcome.p99;
    let fit = (0..trials.len()).filter(|index| is_fit(&trials[*index]));
    let lowest = fit.min_by(|a, b| p99(*a).total_cmp(&p99(*b))).unwrap_or(0);
    let keeps = trials.first().is_some_and(is_fit) && p99(0) <= p99(lowest) * (1.0 + WORTH);
    if keeps { 0 } else { lowest }
}

/// What a search has found for a transport.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// The transport.
    pub transport: String,
    /// What the scenario's own cases set for this transport and not for all.
    pub own: Vec<(String, String)>,
    /// The number of cases of this transport, which are searched together.
    pub cases: usize,
    /// The keys that differ from the scenario, with their values as TOML; empty if nothing is better.
    pub values: Vec<(String, String)>,
    /// What the scenario has in place of `values`, where it is a parameter that is shown: of marks the threshold at each rate of links.
    pub given: Vec<(String, String)>,
    /// What the runs of the scenario as it is say next to their numbers.
    pub notes: Vec<String>,
    /// What the scenario achieves as it is. In a search that was interrupted before the runs in full, with fewer messages.
    pub before: Outcome,
    /// What these values achieve.
    pub after: Outcome,
    /// The number of points that were run.
    pub runs: usize,
    /// The values that were not run, because the transport or the scenario refuses them, each with the reason.
    pub refused: Vec<String>,
    /// Whether the search came to its end.
    pub is_complete: bool,
}

impl Tuned {
    /// The case of a sweep that has these values.
    #[must_use]
    pub fn case(&self) -> String {
        let is_tuned = |key: &String| self.values.iter().any(|(tuned, _)| tuned == key);
        let own = self.own.iter().filter(|(key, _)| !is_tuned(key));
        let values = own.chain(&self.values).map(|(key, value)| format!(", {key} = {value}"));
        format!("{{ transport.name = \"{}\"{} }}", self.transport, values.collect::<String>())
    }
}

/// The search for one transport.
struct Tuning<'a> {
    search: &'a Search,
    transport: &'a str,
    /// Makes the scenario one of this transport.
    select: Variant,
    /// Makes its runs shorter.
    fewer: Variant,
    /// Whether messages start whatever the transport achieves.
    is_open: bool,
    /// The values that cannot be run, and why.
    refused: RefCell<Vec<String>>,
}

impl Tuning<'_> {
    fn variant(&self, values: &Values, in_full: bool) -> Variant {
        let fewer = if in_full { &[][..] } else { &self.fewer };
        let values = values.iter().map(|(key, value)| format!("{key}={value}"));
        self.select.iter().chain(fewer).cloned().chain(values).collect()
    }

    /// Notes why values count for nothing, once.
    fn refuse(&self, values: &Values, why: &str) {
        let set: Vec<String> = values.iter().map(|(key, v)| format!("{key} = {v}")).collect();
        let told = match &set[..] {
            [] => format!("the scenario as it is: {why}"),
            set => format!("{}: {why}", set.join(", ")),
        };
        let mut refused = self.refused.borrow_mut();
        if !refused.contains(&told) {
            refused.push(told);
        }
    }

    /// Runs these values, without any that the transport or the scenario refuses, or that have no result at each point.
    fn trials(&self, values: Vec<Values>, in_full: bool) -> Result<Vec<Trial>, SearchError> {
        let (mut run, mut variants, mut points) = (Vec::new(), Vec::new(), Vec::new());
        for values in values {
            let variant = self.variant(&values, in_full);
            match self.search.read_of(self.transport, &variant) {
                Ok(scenario) => {
                    run.push(values);
                    variants.push(variant);
                    points.push(scenario.points.len());
                }
                Err(error) => self.refuse(&values, &error.to_string()),
            }
        }
        let found = self.search.run(&variants, self.transport)?;
        let mut trials = Vec::new();
        for ((values, points), found) in run.into_iter().zip(points).zip(found) {
            match Outcome::of(&found) {
                // Fewer points have another mean.
                _ if found.len() < points => {
                    let failed = points - found.len();
                    self.refuse(
                        &values,
                        &format!("the simulator failed at {failed} of {points} points"),
                    );
                }
                None => self.refuse(&values, "no measured message ended at one of the points"),
                Some(outcome) => trials.push(Trial { values, outcome }),
            }
        }
        Ok(trials)
    }

    /// Varies each key in turn; `seen` collects all trials, and its first is the scenario as it is.
    fn descend(&self, keys: &[Parameter], seen: &mut Vec<Trial>) -> Result<(), SearchError> {
        seen.extend(self.trials(vec![Values::new()], false)?);
        let Some(mut now) = seen.first().cloned() else { return Ok(()) };
        for _ in 0..ROUNDS {
            let before = now.clone();
            for key in keys {
                let others: Values =
                    now.values.iter().filter(|(other, _)| *other != key.key).cloned().collect();
                let with = |value: String| {
                    let mut values = others.clone();
                    values.push((key.key.clone(), value));
                    values.sort();
                    values
                };
                let tried = key.candidates().into_iter().map(with).chain([others.clone()]);
                let tried = tried.filter(|values| *values != now.values).collect();
                let mut line = vec![now.clone()];
                line.extend(self.trials(tried, false)?);
                for trial in &line[1..] {
                    if !seen.contains(trial) {
                        seen.push(trial.clone());
                    }
                }
                now = line.swap_remove(best(&line, self.is_open));
            }
            if now == before {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the arguments that make the scenario one of this transport, and its points.
pub(crate) fn select(
    search: &Search,
    transport: &str,
) -> Result<(Variant, Scenario), ScenarioError> {
    let has = |scenario: &Scenario| scenario.points.iter().any(|p| p.transport == transport);
    let as_it_is = search.read(&[])?;
    if has(&as_it_is) {
        return Ok((Variant::new(), as_it_is));
    }
    let mut error = None;
    for set in ["transport.name", "sweep.transport.name"] {
        let value = match set {
            "transport.name" => format!("{set}=\"{transport}\""),
            _ => format!("{set}=[\"{transport}\"]"),
        };
        let variant = vec![value];
        match search.read(&variant) {
            Ok(scenario) if has(&scenario) => {
                refuse_foreign_keys(&as_it_is, &scenario, transport)?;
                return Ok((variant, scenario));
            }
            Ok(_) => {}
            Err(told) => {
                error.get_or_insert(told);
            }
        }
    }
    Err(error.unwrap_or_else(|| {
        ScenarioError::new(format!("no point of the scenario measures `{transport}`"))
            .with_help("its `cases` choose the transports: add one for it")
    }))
}

/// Refuses a transport that no case of the scenario has, if a case of another one has keys of its own, such as the switches of pFabric: with
/// `transport.name` set, its points would have them too.
fn refuse_foreign_keys(
    as_it_is: &Scenario,
    scenario: &Scenario,
    transport: &str,
) -> Result<(), ScenarioError> {
    let keys = scenario.points.iter().flat_map(|point| &point.set).map(|(key, _)| key);
    let has = |point: &PointSpec, key: &str| point.set.iter().any(|(other, _)| other == key);
    let depends = |key: &&String| {
        let with = as_it_is.points.iter().filter(|point| has(point, key));
        let of: Vec<&str> = with.map(|point| point.transport.as_str()).collect();
        !of.is_empty() && as_it_is.points.iter().any(|point| !of.contains(&&*point.transport))
    };
    match keys.into_iter().find(depends) {
        None => Ok(()),
        Some(key) => Err(ScenarioError::new(format!(
            "no case of the scenario measures `{transport}`, and cases of other transports have keys of their own, such as `{key}`"
        ))
        .with_help(format!("add a case, such as {{ transport.name = \"{transport}\" }}"))),
    }
}

/// Whether the measured messages start at their own times, whatever became of those before.
pub(crate) fn has_open_load(point: &PointSpec) -> bool {
    let pattern = point.config.streams.first().map(|stream| &stream.workload.pattern);
    let is_open = matches!(pattern, Some(Pattern::OpenLoop { .. } | Pattern::Periodic { .. }));
    is_open && point.study.is_messages()
}

/// Checks that a transport has parameters to search.
///
/// # Errors
/// If the scenario cannot be run with this transport.
pub fn check(search: &Search, transport: &str) -> Result<(), SearchError> {
    let (_, mut scenario) = select(search, transport)?;
    scenario.points.retain(|point| point.transport == transport);
    keys(&scenario.points)?;
    Ok(())
}

/// Searches the parameters of a transport.
///
/// A search that is cancelled returns what it has found so far.
///
/// # Errors
/// If the scenario cannot be run with this transport, or the search is cancelled before the first result.
pub fn tune(search: &Search, transport: &str) -> Result<Tuned, SearchError> {
    let runs_before = search.runs();
    let (select, mut scenario) = select(search, transport)?;
    let (own, cases) = own_keys(&scenario.points, transport);
    scenario.points.retain(|point| point.transport == transport);
    let keys = keys(&scenario.points)?;
    let most = scenario.points.iter().map(|p| p.config.measure.messages).min().unwrap_or(0);
    let fewer = (most / SHARE).max(FEWEST);
    let fewer = match fewer < most && most < u64::MAX {
        true => vec![format!("measure.messages={fewer}")],
        false => Variant::new(),
    };
    let is_open = scenario.points.iter().all(has_open_load);
    let refused = RefCell::new(Vec::new());
    let tuning = Tuning { search, transport, select, fewer, is_open, refused };
    let mut seen = Vec::new();
    let searched = tuning.descend(&keys, &mut seen);
    let ended = |trials: Vec<Trial>, is_complete| {
        let (Some(first), Some(found)) = (trials.first(), trials.get(best(&trials, is_open)))
        else {
            let message = format!("{transport} has ended no measured message in any variant");
            return Err(SearchError::Scenario(ScenarioError::new(message)));
        };
        let as_it_is = tuning.variant(&first.values, is_complete);
        let as_it_is = search.found(&[as_it_is], transport).swap_remove(0).unwrap_or_default();
        Ok(Tuned {
            transport: transport.to_owned(),
            own: own.clone(),
            cases,
            given: given(&keys, &found.values),
            notes: size::notes(&as_it_is),
            values: found.values.clone(),
            before: first.outcome,
            after: found.outcome,
            runs: search.runs() - runs_before,
            refused: tuning.refused.borrow().clone(),
            is_complete,
        })
    };
    match searched {
        Ok(()) => {}
        Err(SearchError::Interrupted) if !seen.is_empty() => return ended(seen, false),
        Err(error) => return Err(error),
    }
    let mut finalists = vec![Values::new()];
    let mut left = seen.clone();
    while !left.is_empty() && finalists.len() <= FINALISTS {
        let next = left.remove(best(&left, is_open)).values;
        if !finalists.contains(&next) {
            finalists.push(next);
        }
    }
    match tuning.trials(finalists, true) {
        Ok(trials) => ended(trials, true),
        Err(SearchError::Interrupted) => ended(seen, false),
        Err(error) => Err(error),
    }
}

/// Returns the swept keys that all points of a transport share, and other points have not or have otherwise, with their values as TOML; and how
/// many cases of the transport there are.
fn own_keys(points: &[PointSpec], transport: &str) -> (Values, usize) {
    let is_label = |key: &str| matches!(key, "transport.name" | "transport.label");
    let (of_it, others): (Vec<&PointSpec>, Vec<&PointSpec>) =
        points.iter().partition(|point| point.transport == transport);
    let Some(first) = of_it.first() else { return (Values::new(), 0) };
    let mut own = Values::new();
    for (key, value) in first.set.iter().filter(|(key, _)| !is_label(key)) {
        let has = |point: &&PointSpec| point.set.iter().any(|(k, v)| k == key && v == value);
        if of_it.iter().all(has) && !others.iter().all(has) {
            own.push((key.clone(), value.to_string()));
        }
    }
    // Keys that points of other transports sweep too are no part of a case.
    let is_own = |key: &str| {
        !is_label(key) && !others.iter().any(|point| point.set.iter().any(|(k, _)| k == key))
    };
    let mut cases: Vec<Vec<String>> = Vec::new();
    for point in &of_it {
        let set = point.set.iter().filter(|(key, _)| is_own(key));
        let case: Vec<String> = set.map(|(key, value)| format!("{key}={value}")).collect();
        if !others.is_empty() && !cases.contains(&case) {
            cases.push(case);
        }
    }
    (own, cases.len().max(1))
}

/// The values of the scenario in place of some that were found.
fn given(keys: &[Parameter], values: &Values) -> Values {
    let of = |key: &String| keys.iter().find(|parameter| parameter.key == *key);
    let given = values.iter().filter_map(|(key, _)| Some((key.clone(), of(key)?.value.clone())));
    given.collect()
}

/// Returns the parameters of the first point that have values to try.
fn keys(points: &[PointSpec]) -> Result<Vec<Parameter>, ScenarioError> {
    let Some(point) = points.first() else { return Ok(Vec::new()) };
    let name = &point.transport;
    let own = format!("transport.{name}.");
    let is_own = |p: &&Parameter| p.key.starts_with(&own) || p.key.starts_with("fabric.");
    let keys = point.parameters.iter().filter(is_own).filter(|p| p.grid != Grid::None);
    let keys: Vec<Parameter> = keys.cloned().collect();
    if keys.is_empty() {
        let message = format!("`{name}` has no parameters to search");
        return Err(ScenarioError::new(message));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::scenario::ScenarioText;

    fn trial(p99: f64, goodput_gbps: f64, unfinished: u64) -> Trial {
        let values = vec![("key".to_owned(), p99.to_string())];
        Trial {
            values,
            outcome: Outcome { p99, p50: 1.0, goodput_gbps, unfinished, background_p99: None },
        }
    }

    #[test]
    fn fewer_unfinished_messages_then_goodput_then_the_percentile_decide() {
        let of = |trials: &[Trial]| best(trials, false);
        assert_eq!(of(&[trial(9.0, 10.0, 0), trial(5.0, 10.0, 1)]), 0);
        assert_eq!(of(&[trial(9.0, 10.0, 2), trial(50.0, 10.0, 1)]), 1);
        assert_eq!(of(&[trial(9.0, 10.0, 0), trial(5.0, 9.8, 0)]), 0, "2 % less goodput");
        assert_eq!(of(&[trial(9.0, 10.0, 0), trial(5.0, 9.95, 0)]), 1);
        assert_eq!(of(&[trial(9.0, 9.8, 0), trial(9.5, 10.0, 0)]), 1, "the first is not fit");
        assert_eq!(of(&[trial(9.0, 10.0, 0), trial(8.95, 10.0, 0)]), 0, "less than 1 % better");
        assert_eq!(of(&[trial(9.0, 10.0, 0), trial(8.8, 10.0, 0), trial(8.7, 10.0, 0)]), 2);
        // Under an open load the goodput of a run whose messages have all ended says nothing.
        assert_eq!(best(&[trial(4.3, 9.8, 0), trial(4.9, 10.0, 0)], true), 0);
        assert_eq!(best(&[trial(9.0, 10.0, 0), trial(5.0, 9.0, 0)], true), 1);
    }

    fn search(jobs: usize) -> Search {
        search_with(&[], jobs)
    }

    fn search_with(sets: &[String], jobs: usize) -> Search {
        let text = "fabric = { topology = 'single-switch', hosts = 8, switch.ecn_threshold = '65 packets' }\n\
                    transport.name = 'homa'\nmeasure = { messages = 6000 }\n\
                    workload = { arrivals = 'poisson', sizes = 'W3', load = 0.7 }";
        let text =
            ScenarioText { file: "x.toml".into(), text: text.into(), folder: PathBuf::from(".") };
        Search::new(text, sets, None, Some(jobs))
    }

    #[test]
    fn an_unsuitable_threshold_is_found_with_any_number_of_jobs() {
        let one = tune(&search(1), "dctcp").unwrap();
        let threshold = one.values.iter().find(|(key, _)| key == "fabric.switch.ecn_threshold");
        assert!(threshold.is_some_and(|(_, value)| value != "\"99970 B\""), "{one:?}");
        assert!(one.after.p99 < 0.8 * one.before.p99, "{one:?}");
        assert!(one.after.goodput_gbps > 0.98 * one.before.goodput_gbps && one.is_complete);
        assert_eq!(tune(&search(3), "dctcp").unwrap(), one);
        assert!(
            one.case()
                .starts_with("{ transport.name = \"dctcp\", fabric.switch.ecn_threshold = \"")
        );
    }

    /// A fabric whose links have two rates has two thresholds. One that is found replaces both.
    #[test]
    fn what_a_value_replaces_and_a_short_window_are_told() {
        let text = "fabric = { topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 4, spines = 1, host_link = '25 Gbps' }\n\
                    transport.name = 'dctcp'\nmeasure = { duration = '300 us' }\n\
                    workload = { arrivals = 'poisson', sizes = 'W3', truncate = '100 KB', load = 0.5 }\n\
                    [[background]]\narrivals = 'incast'\nsizes = '20 KB'\nsenders = 4\nevery = '200 us'";
        let text =
            ScenarioText { file: "x.toml".into(), text: text.into(), folder: PathBuf::from(".") };
        let search = Search::new(text, &[], None, Some(2));
        let scenario = search.read(&[]).unwrap();
        let key = "fabric.switch.ecn_threshold".to_owned();
        let given = given(&scenario.points[0].parameters, &vec![(key, "\"10 KB\"".to_owned())]);
        assert!(given[0].1.contains(" at 25 Gbps, "), "{given:?}");
        let tuned = tune(&search, "dctcp").unwrap();
        assert!(tuned.notes.iter().any(|note| note.contains("the incast occurs")), "{tuned:?}");
        assert!(tuned.values.iter().all(|(key, _)| tuned.given.iter().any(|(it, _)| it == key)));
    }

    /// What is compared are runs in full: those of the search have fewer messages.
    #[test]
    fn the_outcome_is_that_of_runs_in_full() {
        let tuned = tune(&search(2), "dctcp").unwrap();
        let full = search(1);
        let (select, _) = select(&full, "dctcp").unwrap();
        let values = tuned.values.iter().map(|(key, value)| format!("{key}={value}"));
        let after: Variant = select.iter().cloned().chain(values).collect();
        let found = full.run(&[select, after], "dctcp").unwrap();
        let p99 = |nth: usize| Outcome::of(&found[nth]).unwrap().p99;
        assert_eq!((tuned.before.p99, tuned.after.p99), (p99(0), p99(1)));
    }

    #[test]
    fn every_key_is_searched() {
        let search = search(2);
        let (select, mut scenario) = select(&search, "dctcp").unwrap();
        scenario.points.retain(|point| point.transport == "dctcp");
        let keys = keys(&scenario.points).unwrap();
        let fewer = vec!["measure.messages=300".to_owned()];
        let refused = RefCell::new(Vec::new());
        let tuning =
            Tuning { search: &search, transport: "dctcp", select, fewer, is_open: true, refused };
        let mut seen = Vec::new();
        tuning.descend(&keys, &mut seen).unwrap();
        let is_tried = |key: &Parameter| {
            seen.iter().any(|trial| trial.values.iter().any(|(name, _)| *name == key.key))
        };
        assert!(keys.len() > 1 && keys.iter().all(is_tried), "{seen:?}");
    }

    #[test]
    fn values_that_are_refused_are_told_with_the_reason() {
        let search = search(1);
        let tuning = Tuning {
            search: &search,
            transport: "dctcp",
            select: vec!["transport.name=\"dctcp\"".to_owned()],
            fewer: vec!["measure.messages=200".to_owned()],
            is_open: true,
            refused: RefCell::new(Vec::new()),
        };
        let window =
            |value: &str| vec![("transport.dctcp.initial_window".to_owned(), value.to_owned())];
        for _ in 0..2 {
            let trials = tuning.trials(vec![window("0"), window("20")], false).unwrap();
            assert_eq!(
                trials.iter().map(|trial| &trial.values).collect::<Vec<_>>(),
                [&window("20")]
            );
        }
        // Nothing is measured before the warm-up has ended.
        let stop = vec![("workload.stop".to_owned(), "\"1 us\"".to_owned())];
        assert_eq!(tuning.trials(vec![stop], false).unwrap(), []);
        let refused = tuning.refused.borrow();
        let [window, stop] = &refused[..] else { panic!("{refused:?}") };
        assert!(window.starts_with("transport.dctcp.initial_window = 0: "), "{window}");
        assert!(stop.ends_with(": no measured message ended at one of the points"), "{stop}");
    }

    fn of_cases(cases: &str, more: &str) -> Search {
        let text = format!(
            "fabric = {{ topology = 'single-switch', hosts = 8 }}\nmeasure = {{ messages = 400 }}\n\
             workload = {{ arrivals = 'poisson', sizes = 'W3', load = 0.7 }}\ntransport.name = 'homa'\n{more}\n\
             [sweep]\ncases = [{cases}]"
        );
        let text = ScenarioText { file: "x.toml".into(), text, folder: PathBuf::from(".") };
        Search::new(text, &[], None, Some(2))
    }

    const PFABRIC: &str = "{ transport.name = 'pfabric', fabric.switch.pfabric = true }";

    /// The switches of pFabric cannot trim: what NDP's queues are set to is not for them.
    #[test]
    fn keys_are_tried_that_do_not_go_with_other_transports_of_the_sweep() {
        let ndp = "{ transport.name = 'ndp', fabric.switch.trim = { header_queue = '128 KB' } }";
        let search = of_cases(&format!("{ndp}, {PFABRIC}"), "");
        let tuned = tune(&search, "ndp").unwrap();
        assert_eq!(tuned.refused, Vec::<String>::new());
        let deeper = vec![
            "measure.messages=400".to_owned(),
            "fabric.switch.trim.data_queue=\"24608 B\"".to_owned(),
        ];
        let tried = search.found(&[deeper[1..].to_vec(), deeper], "ndp");
        assert!(tried.iter().any(Option::is_some), "a queue of 16 packets is tried");
        let both = search.read(&["fabric.switch.trim.data_queue=\"24608 B\"".to_owned()]);
        assert!(both.unwrap_err().to_string().contains("`pfabric`"), "it does not go with both");
    }

    /// Set as the transport of all cases, Swift would run on the switches of pFabric too.
    #[test]
    fn a_transport_without_a_case_does_not_run_in_those_of_others() {
        let search = of_cases(&format!("{{ transport.name = 'homa' }}, {PFABRIC}"), "");
        let error = tune(&search, "swift").unwrap_err().to_string();
        assert!(
            error.contains("no case of the scenario measures `swift`")
                && error.contains("`fabric.switch.pfabric`"),
            "{error}"
        );
        // Cases that differ in nothing but the transport are as good as a list of its names.
        let names = of_cases("{ transport.name = 'homa' }, { transport.name = 'dctcp' }", "");
        check(&names, "swift").unwrap();
    }

    /// Two transports of one sweep have the same variants.
    #[test]
    fn each_transport_of_a_sweep_has_its_own_results() {
        let sweep = "sweep.transport.name=[\"homa\", \"dctcp\"]".to_owned();
        let both = search_with(&[sweep], 2);
        let (homa, dctcp) = (tune(&both, "homa").unwrap(), tune(&both, "dctcp").unwrap());
        assert!(dctcp.runs > 2 && dctcp.before != homa.before, "{homa:?} {dctcp:?}");
        assert_eq!(dctcp.before, tune(&search(2), "dctcp").unwrap().before);
    }

    #[test]
    fn a_cancelled_search_says_so() {
        let cancelled = search(1);
        cancelled.cancel();
        assert!(matches!(tune(&cancelled, "dctcp"), Err(SearchError::Interrupted)));
        let unknown = tune(&search(1), "carrier-pigeon").unwrap_err().to_string();
        assert!(unknown.contains("carrier-pigeon"), "{unknown}");
    }

    /// What a case needs besides the tuned keys is in the line that is printed.
    #[test]
    fn a_case_keeps_the_keys_of_the_scenarios_own_case() {
        let text = "fabric = { topology = 'single-switch', hosts = 8 }\nmeasure = { messages = 6000 }\n\
                    workload = { arrivals = 'poisson', sizes = 'W3', load = 0.7 }\n\
                    [sweep]\nworkload.load = [0.3, 0.5]\n\
                    cases = [{ transport.name = 'homa' }, \
                    { transport.name = 'ndp', fabric.switch.trim = { header_queue = '128 KB' } }, \
                    { transport.name = 'tcp', transport.initial_window = 10 }, { transport.name = 'tcp', transport.initial_window = 20 }]";
        let scenario =
            Scenario::parse("x.toml", text, std::path::Path::new("."), &[], None).unwrap();
        let own = |transport: &str| own_keys(&scenario.points, transport);
        let trim = ("fabric.switch.trim.header_queue".to_owned(), "\"128 KB\"".to_owned());
        assert_eq!(own("ndp"), (vec![trim], 1));
        assert_eq!(own("homa"), (vec![], 1));
        assert_eq!(own("tcp"), (vec![], 2));
    }
}
