//! Points that differ in nothing but their seed, as one: means, and confidence intervals of them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::collective::CollectiveSummary;
use super::columns::collective_us;
use super::stats::{CurvePoint, SizeBucket, Stats};
use super::{
    Halves, MachineShare, MessageCounts, MissingPoint, PointResult, PointSummary, QueueBytes,
    Spread, StreamSummary, naming,
};

/// The swept key whose values are repetitions of a point and not alternatives to it.
pub(crate) const SEED: &str = "seed";

/// How much means over seeds are to be trusted: half the widths of their confidence intervals of 95 %, which are NaN (`null` in
/// JSON) with a single seed.
///
/// The intervals are Student's, which takes the values of the seeds for independent and normally distributed. They say nothing of
/// what all seeds have in common, such as a run that is too short for its longest messages.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SeedSpread {
    /// The seeds, in the order of the sweep.
    pub seeds: Vec<u64>,
    /// The seeds that have no results, so that the means say nothing of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<u64>,
    /// Of the mean of each seed's statistics of the slowdown.
    pub slowdown: Stats,
    /// Of the mean of each seed's statistics of the latency in microseconds.
    pub latency_us: Stats,
    /// Of the mean goodput.
    pub goodput_gbps: f64,
    /// The time of a collective in microseconds, or of what does the same: a step of an all-reduce, or files to many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective_us: Option<Interval>,
    /// Of the background streams, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<StreamSpread>,
}

/// A mean over seeds, and half the width of its confidence interval.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Half the width.
    pub half_width: f64,
}

/// Half the widths of the confidence intervals of a background stream.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StreamSpread {
    /// Of the mean of each seed's statistics of the slowdown.
    pub slowdown: Stats,
    /// Of the mean of each seed's statistics of the latency in microseconds.
    pub latency_us: Stats,
    /// Of the mean goodput.
    pub goodput_gbps: f64,
}

/// Returns the points, and combines points that differ in nothing but their seed. Measures are means; counts of
/// messages, drops, trims and marks are sums. What is shown of one run (queues over time, circuits, casts, images,
/// jobs, plans) is that of the first seed. The busiest port and the errors of round trips, which seeds do not share,
/// are left out. Returns `None` unless seeds are swept.
pub(crate) fn combined(points: &[PointResult]) -> Option<Vec<PointResult>> {
    let is_swept = points.iter().any(|point| point.summary.set.contains_key(SEED));
    if !is_swept {
        return None;
    }
    let mut groups: Vec<Vec<&PointResult>> = Vec::new();
    for point in points {
        let same = |group: &Vec<&PointResult>| are_repetitions(group[0], point);
        match groups.iter_mut().find(|group| same(group)) {
            Some(group) => group.push(point),
            None => groups.push(vec![point]),
        }
    }
    let mut combined: Vec<PointResult> = groups.iter().map(|group| combine(group)).collect();
    naming::name(&mut combined);
    Some(combined)
}

/// Notes in means over seeds which seeds have no results.
pub(super) fn mark(points: &mut [PointResult], missing: &[MissingPoint]) {
    for point in points {
        let summary = &mut point.summary;
        let is_of = |other: &&MissingPoint| other.is_repetition_of(summary);
        let seeds = missing.iter().filter(is_of).map(|other| other.seed).collect();
        if let Some(spread) = &mut summary.over_seeds {
            spread.missing = seeds;
        }
    }
}

impl MissingPoint {
    /// Returns whether it differs from a point in its seed only.
    pub(super) fn is_repetition_of(&self, point: &PointSummary) -> bool {
        let others = |set: &Map<String, Value>| {
            let others = set.iter().filter(|(key, _)| *key != SEED);
            others.map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>()
        };
        // A failure has the name of its transport.
        (self.label == point.label || self.label == point.transport)
            && others(&self.set) == others(&point.set)
    }
}

/// Returns whether two points differ in their seeds only.
fn are_repetitions(a: &PointResult, b: &PointResult) -> bool {
    let (a, b) = (&a.summary, &b.summary);
    let others = |point: &PointSummary| {
        point
            .set
            .iter()
            .filter(|(key, _)| *key != SEED)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect::<Vec<_>>()
    };
    (&a.label, &a.transport) == (&b.label, &b.transport) && others(a) == others(b)
}

fn combine(group: &[&PointResult]) -> PointResult {
    let first = group[0];
    let summaries = || group.iter().map(|point| &point.summary);
    let estimate =
        |of: &dyn Fn(&PointSummary) -> f64| Estimate::of(&summaries().map(of).collect::<Vec<_>>());
    let stats =
        |of: fn(&PointSummary) -> &Stats| Estimates::of(&summaries().map(of).collect::<Vec<_>>());
    let (slowdown, latency) = (stats(|p| &p.slowdown), stats(|p| &p.latency_us));
    let goodput = estimate(&|p| p.goodput_gbps);
    let mean = |of: fn(&PointSummary) -> f64| estimate(&of).mean;
    // Sums, like the messages: a rounded mean would turn one dropped packet of five seeds into none.
    let total = |of: fn(&PointSummary) -> u64| summaries().map(of).fold(0, u64::saturating_add);
    let known = |of: fn(&PointSummary) -> Option<u64>| sum_of_known(summaries().map(of));
    let count = |of: fn(&PointSummary) -> u64| {
        let sum = summaries().map(of).fold(0, u64::saturating_add);
        // Rounded to the nearest.
        (sum + group.len() as u64 / 2) / group.len() as u64
    };
    // A point that did not end by itself decides how all of them ended.
    let streams: Vec<(StreamSummary, StreamSpread)> = (0..first.summary.background.len())
        .filter_map(|nth| {
            let all: Option<Vec<&StreamSummary>> =
                summaries().map(|point| point.background.get(nth)).collect();
            Some(combine_streams(&all?))
        })
        .collect();
    let (background, spreads): (Vec<StreamSummary>, Vec<StreamSpread>) =
        streams.into_iter().unzip();
    let all: Option<Vec<&StreamSummary>> =
        summaries().map(|point| point.all_streams.as_ref()).collect();
    let all_streams = all.map(|all| combine_streams(&all).0);
    let collective_us: Option<Vec<f64>> = summaries().map(collective_us).collect();
    let end = summaries().find(|p| !p.is_complete()).map_or(first.summary.end, |p| p.end);
    let mut set = first.summary.set.clone();
    set.remove(SEED);
    let seeds = summaries().filter_map(|p| p.set.get(SEED)?.as_u64()).collect();
    let summary = PointSummary {
        set,
        messages: sum_of_counts(&summaries().map(|p| p.messages).collect::<Vec<_>>()),
        background,
        all_streams,
        slowdown: slowdown.means(),
        latency_us: latency.means(),
        goodput_gbps: goodput.mean,
        drops: total(|p| p.drops),
        drops_by_reason: sum_of_reasons(summaries()),
        warmup_drops: known(|p| p.warmup_drops),
        trims: total(|p| p.trims),
        ecn_marks: total(|p| p.ecn_marks),
        pauses: total(|p| p.pauses),
        most_paused: None,
        deadlock: Vec::new(),
        retransmissions: known(|p| p.retransmissions),
        timeouts: known(|p| p.timeouts),
        queue_bytes: QueueBytes {
            mean: mean(|p| p.queue_bytes.mean),
            max: count(|p| p.queue_bytes.max),
            max_switch: summaries()
                .all(|p| p.queue_bytes.max_switch.is_some())
                .then(|| count(|p| p.queue_bytes.max_switch.unwrap_or(0))),
        },
        collective: {
            let all: Option<Vec<_>> = summaries().map(|p| p.collective.as_deref()).collect();
            all.and_then(|all| CollectiveSummary::over(&all)).map(Box::new)
        },
        round_trips: None,
        returned_to_sender: total(|p| p.returned_to_sender),
        refused: total(|p| p.refused),
        verified_messages: total(|p| p.verified_messages),
        peak_packets: summaries().map(|p| p.peak_packets).max().unwrap_or(0),
        goodput_by_sender_gbps: by_sender(&summaries().collect::<Vec<_>>()),
        busiest_port: None,
        doubts: doubts(summaries()),
        machine: machine(summaries()),
        packet_hops: count(|p| p.packet_hops),
        events: count(|p| p.events),
        cpu_s: mean(|p| p.cpu_s),
        simulated_us: mean(|p| p.simulated_us),
        measured_us: mean(|p| p.measured_us),
        window_us: mean(|p| p.window_us),
        halves: halves(summaries().map(|p| p.halves)),
        end,
        by_size: by_size(group),
        over_seeds: Some(SeedSpread {
            seeds,
            missing: Vec::new(),
            slowdown: slowdown.half_widths(),
            latency_us: latency.half_widths(),
            goodput_gbps: goodput.half_width,
            collective_us: collective_us.map(|times| {
                let Estimate { mean, half_width } = Estimate::of(&times);
                Interval { mean, half_width }
            }),
            background: spreads,
        }),
        ..first.summary.clone()
    };
    PointResult { summary, slowdown_curve: curve(group), latency_cdf: cdf(group), ..first.clone() }
}

/// Returns the means of a stream over seeds, and half the widths of their confidence intervals.
fn combine_streams(all: &[&StreamSummary]) -> (StreamSummary, StreamSpread) {
    let slowdown = Estimates::of(&all.iter().map(|stream| &stream.slowdown).collect::<Vec<_>>());
    let latency = Estimates::of(&all.iter().map(|stream| &stream.latency_us).collect::<Vec<_>>());
    let goodput = Estimate::of(&all.iter().map(|stream| stream.goodput_gbps).collect::<Vec<_>>());
    let summary = StreamSummary {
        messages: sum_of_counts(&all.iter().map(|stream| stream.messages).collect::<Vec<_>>()),
        slowdown: slowdown.means(),
        latency_us: latency.means(),
        goodput_gbps: goodput.mean,
        rounds: all.iter().map(|stream| stream.rounds).min().flatten(),
        halves: halves(all.iter().map(|stream| stream.halves)),
        retransmissions: sum_of_known(all.iter().map(|stream| stream.retransmissions)),
        timeouts: sum_of_known(all.iter().map(|stream| stream.timeouts)),
        ..all[0].clone()
    };
    let spread = StreamSpread {
        slowdown: slowdown.half_widths(),
        latency_us: latency.half_widths(),
        goodput_gbps: goodput.half_width,
    };
    (summary, spread)
}

/// Returns the means of the halves of several seeds, compared seed by seed; `None` if a seed has none.
fn halves(all: impl Iterator<Item = Option<Halves>>) -> Option<Halves> {
    let all: Vec<Halves> = all.collect::<Option<_>>()?;
    if let [only] = all[..] {
        return Some(only);
    }
    let of = |of: fn(&Halves) -> f64| Estimate::of(&all.iter().map(of).collect::<Vec<_>>());
    let difference = of(|it| it.p99[1] - it.p99[0]);
    let differ = difference.mean.abs() > difference.half_width;
    Some(Halves::new([of(|it| it.p99[0]).mean, of(|it| it.p99[1]).mean], differ))
}

/// Returns the sum of counts; `None` if one is not known.
fn sum_of_known(mut counts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    counts.try_fold(0_u64, |sum, count| Some(sum.saturating_add(count?)))
}

/// Returns the means over seeds of the worst, the mean and the best sender's goodput; `None` if a seed has no sender.
fn by_sender(all: &[&PointSummary]) -> Option<Spread> {
    let spreads: Option<Vec<Spread>> =
        all.iter().map(|point| point.goodput_by_sender_gbps).collect();
    let spreads = spreads?;
    let mean = |of: fn(&Spread) -> f64| spreads.iter().map(of).sum::<f64>() / spreads.len() as f64;
    Some(Spread { min: mean(|s| s.min), mean: mean(|s| s.mean), max: mean(|s| s.max) })
}

/// Returns the reasons for doubt of any seed, each once.
fn doubts<'a>(all: impl Iterator<Item = &'a PointSummary>) -> Vec<String> {
    let mut doubts: Vec<String> = Vec::new();
    for doubt in all.flat_map(|point| &point.doubts) {
        if !doubts.contains(doubt) {
            doubts.push(doubt.clone());
        }
    }
    doubts
}

/// Returns what processes got of the machine in the seed in which they lacked it most.
fn machine<'a>(all: impl Iterator<Item = &'a PointSummary>) -> Option<MachineShare> {
    let shares = all.filter_map(|point| point.machine.as_ref());
    shares.max_by(|a, b| a.lacking().total_cmp(&b.lacking())).cloned()
}

/// Returns how many packets were dropped in all seeds, by reason.
fn sum_of_reasons<'a>(all: impl Iterator<Item = &'a PointSummary>) -> Map<String, Value> {
    let mut sums = Map::new();
    for (reason, count) in all.flat_map(|point| &point.drops_by_reason) {
        let before = sums.get(reason).and_then(Value::as_u64).unwrap_or(0);
        let sum = before.saturating_add(count.as_u64().unwrap_or(0));
        sums.insert(reason.clone(), sum.into());
    }
    sums
}

fn sum_of_counts(all: &[MessageCounts]) -> MessageCounts {
    let total = |of: fn(&MessageCounts) -> u64| all.iter().map(of).sum::<u64>();
    MessageCounts {
        started: total(|m| m.started),
        completed: total(|m| m.completed),
        failed: total(|m| m.failed),
        unfinished: total(|m| m.unfinished),
        left_out: total(|m| m.left_out),
    }
}

/// A mean of several values, and half the width of its confidence interval.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    mean: f64,
    half_width: f64,
}

impl Estimate {
    fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let half_width = if values.len() < 2 {
            f64::NAN
        } else {
            t_quantile(values.len() - 1) * (squares / (n - 1.0) / n).sqrt()
        };
        Self { mean, half_width }
    }
}

struct Estimates {
    p50: Estimate,
    p99: Estimate,
    mean: Estimate,
    p999: Estimate,
    max: Estimate,
}

impl Estimates {
    fn of(all: &[&Stats]) -> Self {
        let estimate = |field: fn(&Stats) -> f64| {
            Estimate::of(&all.iter().map(|stats| field(stats)).collect::<Vec<_>>())
        };
        Self {
            p50: estimate(|s| s.p50),
            p99: estimate(|s| s.p99),
            mean: estimate(|s| s.mean),
            p999: estimate(|s| s.p999),
            max: estimate(|s| s.max),
        }
    }

    fn map(&self, of: fn(&Estimate) -> f64) -> Stats {
        Stats {
            p50: of(&self.p50),
            p99: of(&self.p99),
            mean: of(&self.mean),
            p999: of(&self.p999),
            max: of(&self.max),
        }
    }

    fn means(&self) -> Stats {
        self.map(|estimate| estimate.mean)
    }

    fn half_widths(&self) -> Stats {
        self.map(|estimate| estimate.half_width)
    }
}

/// The quantile 0.975 of Student's t distribution (any table of it, such as NIST/SEMATECH e-Handbook 1.3.6.7.2).
pub(crate) fn t_quantile(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    // Beyond the table its last value is too wide by 4 % at most.
    TABLE[degrees.clamp(1, TABLE.len()) - 1]
}

/// Returns the means of buckets over the seeds that have messages in them, and the numbers of messages of all seeds together.
fn by_size(group: &[&PointResult]) -> Vec<SizeBucket> {
    let buckets = group[0].summary.by_size.iter();
    buckets
        .map(|bucket| {
            let all = group.iter().flat_map(|point| &point.summary.by_size);
            let same =
                all.filter(|other| other.up_to_bytes == bucket.up_to_bytes && other.count > 0);
            let same: Vec<&SizeBucket> = same.collect();
            let mean = |of: fn(&SizeBucket) -> f64| {
                same.iter().map(|bucket| of(bucket)).sum::<f64>() / same.len() as f64
            };
            SizeBucket {
                up_to_bytes: bucket.up_to_bytes,
                count: same.iter().map(|bucket| bucket.count).sum(),
                mean: mean(|b| b.mean),
                p50: mean(|b| b.p50),
                p99: mean(|b| b.p99),
                p99_by_receiver: mean(|b| b.p99_by_receiver),
                latency_p50_us: mean(|b| b.latency_p50_us),
                latency_p99_us: mean(|b| b.latency_p99_us),
            }
        })
        .collect()
}

/// Returns the mean of curves with equally many steps, else the first curve.
fn curve(group: &[&PointResult]) -> Vec<CurvePoint> {
    let first = &group[0].slowdown_curve;
    if group.iter().any(|point| point.slowdown_curve.len() != first.len()) {
        return first.clone();
    }
    let mean = |step: usize, of: &dyn Fn(&CurvePoint) -> f64| {
        group.iter().map(|point| of(&point.slowdown_curve[step])).sum::<f64>() / group.len() as f64
    };
    let steps = first.iter().enumerate();
    steps
        .map(|(step, own)| CurvePoint {
            p50: mean(step, &|point| point.p50),
            p99: mean(step, &|point| point.p99),
            ..*own
        })
        .collect()
}

/// Returns the mean over seeds of the latency that each share of the messages does not exceed.
fn cdf(group: &[&PointResult]) -> Vec<(f64, f64)> {
    if group.iter().any(|point| point.latency_cdf.is_empty()) {
        return Vec::new();
    }
    let value = |cdf: &[(f64, f64)], share: f64| {
        let at = cdf.partition_point(|(_, to)| *to < share);
        cdf[at.min(cdf.len() - 1)].0
    };
    let shares = group[0].latency_cdf.iter().map(|(_, share)| *share);
    shares
        .map(|share| {
            let sum: f64 = group.iter().map(|point| value(&point.latency_cdf, share)).sum();
            (sum / group.len() as f64, share)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::BusiestPort;
    use super::*;

    fn point(label: &str, seed: u64, load: f64, p99: f64) -> PointResult {
        let set = [("seed".to_owned(), json!(seed)), ("workload.load".to_owned(), json!(load))];
        let summary = PointSummary {
            label: label.to_owned(),
            transport: label.to_owned(),
            set: set.into_iter().collect(),
            slowdown: Stats { p50: 1.0, p99, mean: 2.0, p999: p99, max: p99 },
            messages: MessageCounts { started: 10, completed: 10, ..MessageCounts::default() },
            end: "all done",
            ..PointSummary::default()
        };
        PointResult { summary, ..PointResult::default() }
    }

    /// The interval of 1, 2, 3 is 2 +- 4.303 / sqrt(3).
    #[test]
    fn points_of_all_seeds_are_one() {
        let of = |label: &'static str, load: f64, p99: [f64; 3]| {
            (1..).zip(p99).map(move |(seed, p99)| point(label, seed, load, p99))
        };
        let points: Vec<PointResult> = of("homa", 0.5, [1.0, 2.0, 3.0])
            .chain(of("tcp", 0.5, [7.0; 3]))
            .chain(of("homa", 0.8, [4.0; 3]))
            .chain(of("tcp", 0.8, [9.0; 3]))
            .collect();
        let combined = combined(&points).expect("seeds are swept");
        let labels: Vec<&str> = combined.iter().map(|point| point.label.as_str()).collect();
        assert_eq!(labels, ["homa, load 0.5", "tcp, load 0.5", "homa, load 0.8", "tcp, load 0.8"]);
        let first = &combined[0].summary;
        assert_eq!((first.slowdown.p99, first.messages.completed), (2.0, 30));
        let spread = first.over_seeds.as_ref().expect("combined");
        assert_eq!(spread.seeds, [1, 2, 3]);
        assert!((spread.slowdown.p99 - 4.303 / 3.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(spread.slowdown.mean, 0.0);
        assert!(super::combined(&[point("homa", 1, 0.5, 1.0)]).is_some());
    }

    #[test]
    fn without_seeds_nothing_is_combined() {
        let mut single = point("homa", 1, 0.5, 1.0);
        single.summary.set.remove(SEED);
        assert!(combined(&[single]).is_none());
    }

    #[test]
    fn a_seed_that_does_not_end_counts_for_all() {
        let mut points = [point("homa", 1, 0.5, 1.0), point("homa", 2, 0.5, 1.0)];
        points[1].summary.end = "time limit";
        points[1].summary.messages.unfinished = 3;
        let combined = combined(&points).expect("seeds are swept");
        assert!(!combined[0].summary.is_complete());
        assert_eq!(
            (combined[0].summary.end, combined[0].summary.messages.unfinished),
            ("time limit", 3)
        );
    }

    /// A mean would have been rounded to none.
    #[test]
    fn dropped_packets_are_summed_and_so_are_their_reasons() {
        let mut points: Vec<_> = (1..=5).map(|seed| point("homa", seed, 0.5, 1.0)).collect();
        points[3].summary.drops = 2;
        points[3].summary.drops_by_reason.insert("buffer_full".to_owned(), 2.into());
        points[4].summary.drops = 1;
        points[4].summary.drops_by_reason.insert("link_down".to_owned(), 1.into());
        let combined = combined(&points).expect("seeds are swept");
        let summary = &combined[0].summary;
        assert_eq!(summary.drops, 3);
        let reasons: Vec<_> = summary.drops_by_reason.iter().collect();
        assert_eq!(
            reasons,
            [(&"buffer_full".to_owned(), &2.into()), (&"link_down".to_owned(), &1.into())]
        );
    }

    /// What has no mean over seeds is not that of one of them.
    #[test]
    fn nothing_but_a_queue_over_time_is_that_of_the_first_seed() {
        let mut points: Vec<_> = (1..=3).map(|seed| point("homa", seed, 0.5, 1.0)).collect();
        for (nth, point) in (0..).zip(&mut points) {
            let at = nth as f64;
            point.summary.returned_to_sender = nth;
            point.summary.refused = 2 * nth;
            point.summary.verified_messages = 10;
            point.summary.peak_packets = 5 + nth;
            point.summary.goodput_by_sender_gbps =
                Some(Spread { min: at, mean: 2.0 * at, max: 3.0 * at });
            point.summary.busiest_port = Some(BusiestPort {
                name: format!("leaf0->h{nth}"),
                mean_queue_bytes: at,
                max_queue_bytes: nth,
                drops: nth,
                utilisation: 0.5,
            });
        }
        points[2].summary.doubts = vec!["a clock jumped".to_owned()];
        let combined = combined(&points).expect("seeds are swept");
        let summary = &combined[0].summary;
        assert_eq!((summary.returned_to_sender, summary.refused), (3, 6));
        assert_eq!((summary.verified_messages, summary.peak_packets), (30, 7));
        let senders = Spread { min: 1.0, mean: 2.0, max: 3.0 };
        assert_eq!(summary.goodput_by_sender_gbps, Some(senders));
        assert_eq!(summary.busiest_port, None);
        assert_eq!(summary.doubts, ["a clock jumped"]);
        assert!(
            summary.warning().is_some_and(|warning| warning.contains("6 messages were refused"))
        );
    }

    #[test]
    fn a_single_seed_has_no_interval() {
        let combined = combined(&[point("homa", 1, 0.5, 1.0)]).expect("a seed is swept");
        assert!(combined[0].summary.over_seeds.as_ref().is_some_and(|s| s.slowdown.p99.is_nan()));
    }
}
