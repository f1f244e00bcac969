//! Searches the cheapest fabric that serves a scenario as well as the best one does: the smallest buffer, the fewest uplinks.
//!
//! The reference is the scenario on the best fabric: a buffer without a limit, or uplinks that carry all that hosts send. A ladder of
//! cheaper values is run, and then three more between the cheapest value that is good and the next one. A value is good if, in every point
//! and stream of the transport, the 99th percentile of slowdown is within a tolerance of the reference, no more messages are unfinished,
//! and, unless the load is open, goodput is at most 1 % lower. A value counts only if all dearer ones are good too.
//!
//! Up to the first packet that finds no room, a run is that of a buffer without a limit: so the smallest buffer without loss is exactly
//! the longest queue of that run.

use serde::Serialize;

use crate::error::ScenarioError;
use crate::results::PointSummary;
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
    /// The number of points that were run.
    pub runs: usize,
}

/// The 99th percentiles of slowdown of a point's streams.
fn tails(point: &PointSummary) -> impl Iterator<Item = f64> {
    let background = point.background.iter().map(|stream| stream.slowdown.p99);
    std::iter::once(point.slowdown.p99).chain(background)
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
    let ratios = pairs().flat_map(|(point, best)| {
        let both = tails(point).zip(tails(best));
        both.map(|(p99, best)| p99 / best).filter(|ratio| ratio.is_finite())
    });
    let p99 = ratios.fold(0.0, f64::max);
    let goodput = pairs().map(|(point, best)| point.goodput_gbps / best.goodput_gbps);
    let goodput = goodput.filter(|ratio| ratio.is_finite()).fold(1.0, f64::min);
    let unfinished = unfinished(points);
    let is_good = points.len() == best.len()
        && p99 <= 1.0 + within
        && (is_open || goodput >= 1.0 - LESS_GOODPUT)
        && unfinished <= self::unfinished(best);
    let drops = points.iter().map(drops).sum();
    Row { value, p99, goodput, drops, unfinished, is_good }
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

/// Values between two others, evenly spaced in their logarithm, in whole bytes or hundredths.
fn between(need: Need, dear: f64, cheap: f64) -> Vec<f64> {
    let steps = (1..=BETWEEN).map(|i| f64::from(i) / f64::from(BETWEEN + 1));
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
    fn run(&self, values: &[Option<f64>]) -> Result<Vec<Vec<PointSummary>>, SearchError> {
        let variant = |value: &Option<f64>| {
            self.select.iter().cloned().chain(setting(self.need, *value)).collect()
        };
        let variants: Vec<Variant> = values.iter().map(variant).collect();
        self.search.run(&variants, self.transport)
    }

    fn rows(&self, values: &[f64], best: &[PointSummary]) -> Result<Vec<Row>, SearchError> {
        let values: Vec<Option<f64>> = values.iter().copied().map(Some).collect();
        let found = self.run(&values)?;
        let rows = values.iter().zip(&found);
        Ok(rows
            .map(|(value, points)| row(*value, points, best, (self.within, self.is_open)))
            .collect())
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
        search.read(&variant)?;
    }
    Ok(select)
}

/// Searches the cheapest value with which a transport's tails are within a share, such as 0.05, of those on the best fabric.
///
/// # Errors
/// If the scenario cannot be run with this transport or key, if its messages do not end on the best fabric, or if the search is cancelled.
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
    rows.extend(sizing.rows(&ladder, &best)?);
    let last = good(&rows);
    if let (Some(Some(cheap)), Some(dear)) =
        (rows.get(last).map(|row| row.value), rows[last - 1].value)
    {
        let finer = sizing.rows(&between(need, dear, cheap), &best)?;
        rows.splice(last..last, finer);
    }
    let enough = rows[good(&rows) - 1].value;
    let unmeasured = best.iter().flat_map(tails).filter(|p99| !p99.is_finite());
    Ok(Smallest {
        transport: transport.to_owned(),
        without_loss: (need == Need::Buffer).then_some(longest.max(LEAST_BUFFER)),
        enough,
        unmeasured: unmeasured.count(),
        rows,
        runs: search.runs() - before,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
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

    #[test]
    fn uplinks_are_saved_as_far_as_tails_permit() {
        let sized = size(&search(LOAD, 2), "homa", Need::Links, 0.2).unwrap();
        let enough = sized.enough.unwrap();
        let strict = size(&search(LOAD, 2), "homa", Need::Links, 0.01).unwrap();
        assert!(strict.enough.unwrap() <= enough, "{strict:?}");
        // Half of the messages cross: at 8 the uplinks are offered more than they carry.
        assert!(enough < 8.0 && !sized.rows.last().unwrap().is_good, "{sized:?}");
    }

    #[test]
    fn a_good_value_below_a_bad_one_does_not_count() {
        let row = |is_good| Row {
            value: Some(1.0),
            p99: 1.0,
            goodput: 1.0,
            drops: 0,
            unfinished: 0,
            is_good,
        };
        assert_eq!(good(&[row(true), row(true), row(false), row(true)]), 2);
        assert_eq!(between(Need::Links, 1.0, 1.01), Vec::<f64>::new());
        assert_eq!(between(Need::Buffer, 1600.0, 100.0), [800.0, 400.0, 200.0]);
    }

    /// The ladder goes on until a value is bad or the least buffer is reached.
    #[test]
    fn a_buffer_is_as_small_as_possible() {
        let text = LOAD.replace("'homa'", "'tcp'").replace("0.3", "0.6");
        let found = size(&search(&text, 2), "tcp", Need::Buffer, 0.05).unwrap();
        let last = found.rows.last().unwrap();
        assert!(!last.is_good || last.value == Some(LEAST_BUFFER as f64), "{found:?}");
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
