//! Searches the cheapest fabric that serves a scenario as well as the best one does: the smallest buffer, the fewest uplinks.
//!
//! The reference is the scenario on the best fabric: a buffer without a limit, or uplinks that carry all that hosts send. A ladder of
//! cheaper values is run, and then three more between the cheapest value that is good and the next one. A value is good if, in every point
//! and stream of the transport, the 99th percentile of slowdown is within a tolerance of the reference, no more messages are unfinished,
//! and, unless the load is open, goodput is at most 1 % lower. A value counts only if all dearer ones are good too: values between those of
//! the ladder are run until none of them is bad, so that no value is the answer by luck.
//!
//! Up to the first packet that finds no room, a run is that of a buffer without a limit: so the smallest buffer without loss is exactly
//! the longest queue of that run.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::error::ScenarioError;
use crate::explain::Explanation;
use crate::results::{PointSummary, Stats, plain, short_key};
use crate::search::{Search, SearchError, Variant};
use crate::tune;

/// The part of the goodput that may be missing. The choice is Rackweave's: seeds differ by as much.
const LESS_GOODPUT: f64 = 0.01;
/// The smallest buffer that is tried: two full packets. With less a port cannot keep its link busy. The ladder halves the longest queue
/// until there.
const LEAST_BUFFER: u64 = 2 * 1538;
/// The values of `fabric.oversubscription` that are tried first.
const OVERSUBSCRIPTIONS: [f64; 7] = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0];
/// The values that are tried between two of the ladder.
const BETWEEN: u32 = 3;
/// Good values this factor apart have another tried between them. The choice is Rackweave's: the ladder's are a factor of two apart.
const WIDE: f64 = 1.3;

/// What is to be as small as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `fabric.switch.buffer`, of each port.
    Buffer,
    /// The rate of uplinks: the largest `fabric.oversubscription`.
    Links,
}

/// What a value achieves, compared with the reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The value, in bytes of a port or as `fabric.oversubscription`; `None` is a buffer without a limit.
    pub value: Option<f64>,
    /// The 99th percentile of slowdown over that of the reference, in the point and stream in which it is highest.
    pub p99: f64,
    /// The stream, and the point if there are several, in which it is highest: "the incast, load 0.5". Empty if nothing is compared.
    pub decides: String,
    /// The 99.9th percentile of slowdown over that of the reference, in the point and stream in which it is highest. It decides nothing.
    pub p999: f64,
    /// The lowest goodput of a point over that of the reference.
    pub goodput: f64,
    /// The packets of all points that found no room in a queue.
    pub drops: u64,
    /// The messages of all streams that failed or did not end.
    pub unfinished: u64,
    /// Whether this value serves as well as the reference.
    pub is_good: bool,
}

/// What a search has found for a transport.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Smallest {
    /// The transport.
    pub transport: String,
    /// The values that were run, from the dearest to the cheapest; the first is the reference.
    pub rows: Vec<Row>,
    /// Buffers: the smallest without loss, in bytes of a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_loss: Option<u64>,
    /// The cheapest value that serves as well as the reference, if there is one.
    pub enough: Option<f64>,
    /// The streams of points that measured no message on the best fabric, and are not compared.
    pub unmeasured: usize,
    /// The number of different seeds of the points.
    pub seeds: usize,
    /// What must be said next to the numbers of the best fabric, such as a window that is too short.
    pub notes: Vec<String>,
    /// The number of points that were run.
    pub runs: usize,
    /// Whether the search came to its end. Otherwise values are missing, and a smaller one may serve as well.
    pub is_complete: bool,
}

/// The slowdown of a point's streams: of the measured messages first.
fn slowdowns(point: &PointSummary) -> impl Iterator<Item = &Stats> {
    std::iter::once(&point.slowdown).chain(point.background.iter().map(|stream| &stream.slowdown))
}

/// Their 99th percentiles.
fn tails(point: &PointSummary) -> impl Iterator<Item = f64> {
    slowdowns(point).map(|slowdown| slowdown.p99)
}

/// Names a stream of a point by its place in [`slowdowns`], and the point if it is one of several.
fn name(point: &PointSummary, nth: usize, is_one_of_several: bool) -> String {
    let stream = nth.checked_sub(1).map(|nth| point.stream_name(nth));
    let stream = stream.unwrap_or_else(|| "measured messages".to_owned());
    let of =
        point.set.iter().filter(|(key, _)| is_one_of_several && !key.starts_with("transport."));
    let of = of.map(|(key, value)| format!(", {} {}", short_key(key), plain(value)));
    stream + &of.collect::<String>()
}

/// What the runs of a search say next to their numbers, each once.
pub(crate) fn notes(points: &[PointSummary]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for remark in points.iter().flat_map(PointSummary::remarks) {
        if !notes.contains(&remark.text) {
            notes.push(remark.text);
        }
    }
    notes
}

fn unfinished(points: &[PointSummary]) -> u64 {
    points.iter().map(PointSummary::missing_messages).sum()
}

/// The packets that found no room in a queue. Faults and programs drop others, whatever the buffer is.
fn drops(point: &PointSummary) -> u64 {
    point.drops_by_reason.get("queue_full").and_then(serde_json::Value::as_u64).unwrap_or(0)
}

/// Compares a value's points with those of the reference.
fn row(
    value: Option<f64>,
    points: &[PointSummary],
    best: &[PointSummary],
    (within, is_open): (f64, bool),
) -> Row {
    let pairs = || points.iter().zip(best);
    // A stream that measured nothing has no percentile, and no part in the comparison.
    let highest = |of: fn(&Stats) -> f64| {
        let ratios = pairs().flat_map(|(point, best)| {
            let both = slowdowns(point).map(of).zip(slowdowns(best).map(of)).enumerate();
            both.map(move |(nth, (value, best))| (value / best, nth, point))
        });
        let ratios = ratios.filter(|(ratio, ..)| ratio.is_finite());
        ratios.reduce(|most, next| if next.0 > most.0 { next } else { most })
    };
    let decides = highest(|slowdown| slowdown.p99);
    let p99 = decides.map_or(0.0, |(ratio, ..)| ratio);
    let decides = decides.map_or_else(String::new, |(_, nth, it)| name(it, nth, points.len() > 1));
    let p999 = highest(|slowdown| slowdown.p999).map_or(0.0, |(ratio, ..)| ratio);
    let goodput = pairs().map(|(point, best)| point.goodput_gbps / best.goodput_gbps);
    let goodput = goodput.filter(|ratio| ratio.is_finite()).fold(1.0, f64::min);
    let unfinished = unfinished(points);
    let is_good = points.len() == best.len()
        && p99 <= 1.0 + within
        && (is_open || goodput >= 1.0 - LESS_GOODPUT)
        && unfinished <= self::unfinished(best);
    let drops = points.iter().map(drops).sum();
    Row { value, p99, decides, p999, goodput, drops, unfinished, is_good }
}

/// The arguments of `--set` that give the scenario a value.
fn setting(need: Need, value: Option<f64>) -> Variant {
    match (need, value) {
        (Need::Links, value) => vec![format!("fabric.oversubscription={}", value.unwrap_or(1.0))],
        // Drops count from the start of a run, and so must queues.
        (Need::Buffer, value) => {
            let buffer = value.map_or("unlimited".to_owned(), |bytes| format!("{bytes} B"));
            vec![
                format!("fabric.switch.buffer=\"{buffer}\""),
                "measure.queues_from=\"0 s\"".to_owned(),
            ]
        }
    }
}

/// A number of values between two others, evenly spaced in their logarithm, in whole bytes or hundredths.
fn between(need: Need, number: u32, dear: f64, cheap: f64) -> Vec<f64> {
    let steps = (1..=number).map(|i| f64::from(i) / f64::from(number + 1));
    let values = steps.map(|share| dear * (cheap / dear).powf(share));
    let mut values: Vec<f64> = match need {
        Need::Buffer => values.map(f64::round).collect(),
        Need::Links => values.map(|value| (value * 100.0).round() / 100.0).collect(),
    };
    values.dedup();
    values.retain(|value| *value != dear && *value != cheap);
    values
}

/// The number of rows, from the dearest on, that are good without a gap.
fn good(rows: &[Row]) -> usize {
    rows.iter().take_while(|row| row.is_good).count()
}

/// The search for one transport.
struct Sizing<'a> {
    search: &'a Search,
    transport: &'a str,
    need: Need,
    /// Makes the scenario one of this transport.
    select: Variant,
    within: f64,
    /// Under an open load goodput does not count: see [`tune`].
    is_open: bool,
}

impl Sizing<'_> {
    fn variants(&self, values: &[Option<f64>]) -> Vec<Variant> {
        let variant = |value: &Option<f64>| {
            self.select.iter().cloned().chain(setting(self.need, *value)).collect()
        };
        values.iter().map(variant).collect()
    }

    fn run(&self, values: &[Option<f64>]) -> Result<Vec<Vec<PointSummary>>, SearchError> {
        self.search.run(&self.variants(values), self.transport)
    }

    /// Runs values and adds their rows, from the place `at` on: of an interrupted search the rows of values that were run to their end.
    fn add_rows(
        &self,
        rows: &mut Vec<Row>,
        at: usize,
        values: &[f64],
        best: &[PointSummary],
    ) -> Result<(), SearchError> {
        let values: Vec<Option<f64>> = values.iter().copied().map(Some).collect();
        let ended = self.run(&values).map(|_| ());
        let found = self.search.found(&self.variants(&values), self.transport);
        let found = values.iter().zip(&found);
        let found = found.filter_map(|(value, points)| {
            Some(row(*value, points.as_ref()?, best, (self.within, self.is_open)))
        });
        rows.splice(at..at, found.collect::<Vec<_>>());
        ended
    }

    /// Runs the ladder, values between the cheapest that is good and the next, and values between the dearer ones.
    fn descend(
        &self,
        rows: &mut Vec<Row>,
        ladder: &[f64],
        best: &[PointSummary],
    ) -> Result<(), SearchError> {
        self.add_rows(rows, rows.len(), ladder, best)?;
        let last = good(rows);
        if let (Some(Some(cheap)), Some(dear)) =
            (rows.get(last).map(|row| row.value), rows[last - 1].value)
        {
            self.add_rows(rows, last, &between(self.need, BETWEEN, dear, cheap), best)?;
        }
        // From the dearest on: a bad value makes those below it no answer.
        let mut at = 0;
        while at + 1 < good(rows) {
            let before = rows.len();
            if let (Some(dear), Some(cheap)) = (rows[at].value, rows[at + 1].value)
                && dear.max(cheap) >= WIDE * dear.min(cheap)
            {
                self.add_rows(rows, at + 1, &between(self.need, 1, dear, cheap), best)?;
            }
            at += 1 + rows.len() - before;
        }
        Ok(())
    }
}

/// Checks that the need of a transport can be searched, and returns the arguments that make the scenario one of this transport.
///
/// # Errors
/// If the scenario cannot be run with this transport or key.
pub fn check(search: &Search, transport: &str, need: Need) -> Result<Variant, SearchError> {
    let (select, scenario) = tune::select(search, transport)?;
    let mut points = scenario.points.iter().filter(|point| point.transport == transport);
    if need == Need::Buffer && points.any(|point| point.config.fabric.switch.trim.is_some()) {
        let message = format!("the switches of {transport} trim packets: `buffer` limits nothing");
        let error = ScenarioError::new(message)
            .with_help("sweep `fabric.switch.trim.data_queue`, the queue that holds data");
        return Err(error.into());
    }
    let variant: Variant = select.iter().cloned().chain(setting(need, Some(3e3))).collect();
    if need == Need::Buffer {
        search.read_of(transport, &variant)?;
    }
    Ok(select)
}

/// Searches the cheapest value with which a transport's tails are within a share, such as 0.05, of those on the best fabric.
///
/// # Errors
/// If the scenario cannot be run with this transport or key, if its messages do not end on the best fabric, or if the search is cancelled
/// before the best fabric has been run.
pub fn size(
    search: &Search,
    transport: &str,
    need: Need,
    within: f64,
) -> Result<Smallest, SearchError> {
    let before = search.runs();
    let select = check(search, transport, need)?;
    let (_, mut scenario) = tune::select(search, transport)?;
    scenario.points.retain(|point| point.transport == transport);
    let is_open = scenario.points.iter().all(tune::has_open_load);
    let sizing = Sizing { search, transport, need, select, within, is_open };
    let reference = match need {
        Need::Buffer => None,
        Need::Links => Some(OVERSUBSCRIPTIONS[0]),
    };
    let seeds =
        scenario.points.iter().map(|point| point.config.seed).collect::<BTreeSet<_>>().len();
    let best = sizing.run(&[reference])?.swap_remove(0);
    let left = unfinished(&best);
    if !best.iter().flat_map(tails).any(f64::is_finite) {
        return Err(ScenarioError::new(format!("{transport} has measured no message")).into());
    }
    if left > 0 {
        let message = format!(
            "{left} messages of {transport} do not end on the best fabric: there is nothing to compare with"
        );
        let error = ScenarioError::new(message)
            .with_help("`rackweave run SCENARIO --explain` shows the load that links are offered");
        return Err(error.into());
    }
    let mut rows = vec![row(reference, &best, &best, (within, is_open))];
    let longest = best.iter().map(|point| point.queue_bytes.max).max().unwrap_or(0);
    let ladder: Vec<f64> = match need {
        Need::Links => OVERSUBSCRIPTIONS[1..].to_vec(),
        Need::Buffer => {
            let halves = std::iter::successors(Some(longest), |bytes| Some(bytes / 2));
            let halves = halves.take_while(|bytes| *bytes > LEAST_BUFFER);
            halves.chain([LEAST_BUFFER]).map(|bytes| bytes as f64).collect()
        }
    };
    let is_complete = match sizing.descend(&mut rows, &ladder, &best) {
        Ok(()) => true,
        Err(SearchError::Interrupted) => false,
        Err(error) => return Err(error),
    };
    let enough = rows[good(&rows) - 1].value;
    let unmeasured = best.iter().flat_map(tails).filter(|p99| !p99.is_finite());
    Ok(Smallest {
        transport: transport.to_owned(),
        without_loss: (need == Need::Buffer).then_some(longest.max(LEAST_BUFFER)),
        enough,
        unmeasured: unmeasured.count(),
        seeds,
        notes: notes(&best),
        rows,
        runs: search.runs() - before,
        is_complete,
    })
}

/// The values of a search, about: the reference, a ladder whose length for buffers depends on the longest queue, and the finer ones.
const ABOUT_VALUES: usize = 1 + 8 + BETWEEN as usize + 2;

/// Returns how many points a search for a transport will run, about, and the time that they take on one core, in seconds; `None` where that
/// is not known.
///
/// # Errors
/// If the scenario cannot be run with this transport.
pub fn estimate(search: &Search, transport: &str) -> Result<(usize, Option<f64>), SearchError> {
    let (_, mut scenario) = tune::select(search, transport)?;
    scenario.points.retain(|point| point.transport == transport);
    let explained = Explanation::of_all(&scenario.points);
    let one: Option<f64> = explained.iter().map(|point| point.cpu_s).sum();
    Ok((scenario.points.len() * ABOUT_VALUES, one.map(|one| one * ABOUT_VALUES as f64)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::report::demo;
    use crate::results::{Stats, StreamSummary};
    use crate::scenario::ScenarioText;

    const INCAST: &str = "fabric = { topology = 'single-switch', hosts = 17 }\ntransport.name = 'homa'\n\
                          workload = { arrivals = 'incast', sizes = '50 KB', senders = 16 }";
    const LOAD: &str = "fabric = { topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 8, spines = 2 }\n\
                        transport.name = 'homa'\nmeasure.messages = 2000\n\
                        workload = { arrivals = 'poisson', sizes = 'W3', truncate = '100 KB', load = 0.3 }";

    fn search(text: &str, jobs: usize) -> Search {
        let text =
            ScenarioText { file: "x.toml".into(), text: text.into(), folder: PathBuf::from(".") };
        Search::new(text, &[], None, Some(jobs))
    }

    /// With the longest queue as the buffer nothing is lost, and with a byte less something is.
    #[test]
    fn the_longest_queue_is_the_smallest_buffer_without_loss() {
        for transport in ["homa", "dctcp", "swift"] {
            let one = search(INCAST, 1);
            let sized = size(&one, transport, Need::Buffer, 0.05).unwrap();
            let least = sized.without_loss.unwrap();
            let drops = |bytes: u64| {
                let (select, _) = tune::select(&one, transport).unwrap();
                let variant = [select, setting(Need::Buffer, Some(bytes as f64))].concat();
                one.run(&[variant], transport).unwrap()[0][0].drops
            };
            assert_eq!((drops(least), drops(least - 1) > 0), (0, true), "{transport} {least}");
            assert_eq!(sized.rows[1].value, Some(least as f64));
            assert!(sized.rows[1].is_good && sized.rows[1].p99 == 1.0, "{sized:?}");
            assert!(sized.enough.is_some_and(|enough| enough <= least as f64));
            assert_eq!(size(&search(INCAST, 3), transport, Need::Buffer, 0.05).unwrap(), sized);
        }
    }

    /// A search that is stopped after some values has their rows; of a variant that did not end nothing is known.
    #[test]
    fn an_interrupted_search_has_what_was_run() {
        let first = search(INCAST, 1);
        let whole = size(&first, "homa", Need::Buffer, 0.05).unwrap();
        let second = search(INCAST, 1);
        let sizing = Sizing {
            search: &second,
            transport: "homa",
            need: Need::Buffer,
            select: Variant::new(),
            within: 0.05,
            is_open: false,
        };
        let best = sizing.run(&[None]).unwrap().swap_remove(0);
        let longest = whole.rows[1].value.unwrap();
        let mut rows = vec![row(None, &best, &best, (0.05, false))];
        sizing.add_rows(&mut rows, 1, &[longest], &best).unwrap();
        second.cancel();
        let ended = sizing.add_rows(&mut rows, 2, &[longest, 3076.0], &best);
        assert!(matches!(ended, Err(SearchError::Interrupted)));
        assert_eq!((rows.len(), rows[2].value), (3, Some(longest)), "{rows:?}");
        // What was run before the search was cancelled is known to it.
        let stopped = size(&second, "homa", Need::Buffer, 0.05).unwrap();
        assert!(!stopped.is_complete && whole.is_complete, "{stopped:?}");
        assert_eq!(stopped.rows[..2], whole.rows[..2]);
        assert!(matches!(
            size(&second, "dctcp", Need::Buffer, 0.05),
            Err(SearchError::Interrupted)
        ));
    }

    #[test]
    fn an_estimate_is_near_what_is_run() {
        let one = search(INCAST, 1);
        let (runs, cpu_s) = estimate(&one, "homa").unwrap();
        let found = size(&one, "homa", Need::Buffer, 0.05).unwrap();
        assert!((runs / 2..=runs * 2).contains(&found.runs), "{runs} {}", found.runs);
        assert!(cpu_s.is_some_and(|cpu_s| cpu_s > 0.0));
    }

    #[test]
    fn uplinks_are_saved_as_far_as_tails_permit() {
        let sized = size(&search(LOAD, 2), "homa", Need::Links, 0.2).unwrap();
        let enough = sized.enough.unwrap();
        let strict = size(&search(LOAD, 2), "homa", Need::Links, 0.01).unwrap();
        assert!(strict.enough.unwrap() <= enough, "{strict:?}");
        assert!(sized.rows.len() > OVERSUBSCRIPTIONS.len(), "finer values: {sized:?}");
        // Half of the messages cross: at 8 the uplinks are offered more than they carry.
        assert!(enough < 8.0 && !sized.rows.last().unwrap().is_good, "{sized:?}");
    }

    /// A burst that is over before messages are measured needs its buffer too.
    #[test]
    fn bursts_in_the_warm_up_count() {
        let text = LOAD
            .replace("measure.messages = 2000", "measure = { messages = 1000, warmup = '2 ms' }")
            + "\n[[background]]\narrivals = 'incast'\nsizes = '40 KB'\nsenders = 12";
        let one = search(&text, 2);
        let sized = size(&one, "homa", Need::Buffer, 0.05).unwrap();
        let (select, _) = tune::select(&one, "homa").unwrap();
        let least = sized.without_loss.unwrap() as f64;
        let variant = [select, setting(Need::Buffer, Some(least))].concat();
        assert_eq!(one.run(&[variant], "homa").unwrap()[0][0].drops, 0, "{sized:?}");
    }

    #[test]
    fn a_value_is_good_if_nothing_is_worse() {
        let point = |p99: f64, incast: f64, goodput_gbps: f64, unfinished: u64| {
            let stats = |p99| Stats { p99, ..Stats::default() };
            let mut point =
                PointSummary { slowdown: stats(p99), goodput_gbps, ..Default::default() };
            point.messages.unfinished = unfinished;
            let slowdown = stats(incast);
            let stream = demo::incast().points[0].summary.background[0].clone();
            point.background.push(StreamSummary { slowdown, ..stream });
            point
        };
        let best = [point(2.0, 10.0, 100.0, 1)];
        let of = |cheap: PointSummary, is_open| row(None, &[cheap], &best, (0.05, is_open));
        assert!(of(point(2.1, 9.0, 99.5, 1), false).is_good);
        assert!(!of(point(2.2, 9.0, 100.0, 1), false).is_good, "the measured messages");
        let incast = of(point(1.5, 11.0, 100.0, 1), false);
        assert!(!incast.is_good && (incast.p99 - 1.1).abs() < 1e-9, "{incast:?}");
        assert_eq!(incast.decides, "the incast");
        assert_eq!(of(point(2.2, 9.0, 100.0, 1), false).decides, "measured messages");
        assert!(!of(point(2.0, 10.0, 100.0, 2), false).is_good, "messages that do not end");
        assert!(!of(point(2.0, 10.0, 98.0, 1), false).is_good, "goodput");
        assert!(of(point(2.0, 10.0, 98.0, 1), true).is_good, "that of an open load is no measure");
    }

    #[test]
    fn a_good_value_below_a_bad_one_does_not_count() {
        let row = |is_good| Row {
            value: Some(1.0),
            p99: 1.0,
            decides: String::new(),
            p999: 1.0,
            goodput: 1.0,
            drops: 0,
            unfinished: 0,
            is_good,
        };
        assert_eq!(good(&[row(true), row(true), row(false), row(true)]), 2);
        assert_eq!(between(Need::Links, BETWEEN, 1.0, 1.01), Vec::<f64>::new());
        assert_eq!(between(Need::Buffer, BETWEEN, 1600.0, 100.0), [800.0, 400.0, 200.0]);
    }

    /// The ladder goes on until a value is bad or the least buffer is reached.
    #[test]
    fn a_buffer_is_as_small_as_possible() {
        let text = LOAD.replace("'homa'", "'tcp'").replace("0.3", "0.6");
        let found = size(&search(&text, 2), "tcp", Need::Buffer, 0.05).unwrap();
        let last = found.rows.last().unwrap();
        assert!(!last.is_good || last.value == Some(LEAST_BUFFER as f64), "{found:?}");
    }

    /// Between good values a factor of two apart may be a bad one.
    #[test]
    fn values_between_good_ones_are_tried() {
        let found = size(&search(LOAD, 2), "tcp", Need::Buffer, 0.05).unwrap();
        let values: Vec<f64> = found.rows.iter().filter_map(|row| row.value).collect();
        let at = good(&found.rows) - 1;
        assert!(at > 2, "{found:?}");
        assert!(values[..at].windows(2).all(|pair| pair[0] < 1.5 * pair[1]), "{values:?}");
        assert!(values.is_sorted_by(|dear, cheap| dear > cheap), "{values:?}");
        assert_eq!(found.enough, found.rows[at].value);
    }

    #[test]
    fn one_seed_and_a_short_window_are_told() {
        let mut point = demo::incast().points.remove(0).summary;
        point.background[0].rounds = Some(2);
        let told = notes(&[point.clone(), point]);
        assert!(told.len() == 1 && told[0].contains("the incast occurs"), "{told:?}");
        let text = LOAD.replace("messages = 2000", "messages = 400");
        let of = |text: &str| size(&search(text, 2), "homa", Need::Buffer, 0.05).unwrap();
        assert_eq!(of(&text).seeds, 1);
        let three = of(&(text + "\n[sweep]\nseed = [1, 2, 3]"));
        assert_eq!(three.seeds, 3);
        assert!(three.rows[1..].iter().any(|row| row.decides.contains(", seed ")), "{three:?}");
    }

    #[test]
    fn a_buffer_that_limits_nothing_and_a_run_without_messages_are_refused() {
        let sets = ["fabric.switch.trim=true".to_owned()];
        let text =
            ScenarioText { file: "x.toml".into(), text: INCAST.into(), folder: PathBuf::from(".") };
        let trims = Search::new(text, &sets, None, Some(1));
        let error = size(&trims, "ndp", Need::Buffer, 0.05).unwrap_err().to_string();
        assert!(error.contains("trim packets"), "{error}");
        let idle = LOAD
            .replace("0.3", "1e-9")
            .replace("measure.messages = 2000", "measure.duration = '1 ms'");
        let error = size(&search(&idle, 1), "homa", Need::Buffer, 0.05).unwrap_err().to_string();
        assert!(error.contains("measured no message") || error.contains("do not end"), "{error}");
    }

    #[test]
    fn what_does_not_end_on_the_best_fabric_is_no_reference() {
        let dead = format!(
            "{INCAST}\nfaults = [{{ kind = 'down', place = 'link of host 3' }}]\nmeasure.time_limit = '20 ms'"
        );
        let error = size(&search(&dead, 1), "homa", Need::Buffer, 0.05).unwrap_err().to_string();
        assert!(error.contains("do not end on the best fabric"), "{error}");
    }
}
