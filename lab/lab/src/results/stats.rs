//! Exact statistics of messages.

use rackweave_core::{HostId, Time};
use rackweave_sim::Fabric;
use rackweave_sim::fabric::Node;
use rackweave_sim::result::{LinkStats, MessageRecord, Outcome};
use serde::{Deserialize, Serialize};

/// A message as percentiles count it.
///
/// A message that did not complete counts with the time from its start to the end of the run (at least its ideal time).
/// That is less than it would have taken, so leaving messages unfinished never makes a transport look good by more than
/// the run's length allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) bytes: u64,
    /// The receiving host.
    pub(crate) receiver: HostId,
    pub(crate) latency_us: f64,
    pub(crate) slowdown: f64,
}

impl Sample {
    pub(crate) fn of(message: &MessageRecord, ended_at: Time) -> Self {
        let latency = match message.outcome {
            Outcome::Completed(at) => at.since(message.start),
            Outcome::Failed(_) | Outcome::Unfinished => {
                ended_at.since(message.start).max(message.ideal)
            }
        };
        Self {
            bytes: message.bytes,
            receiver: message.dst,
            latency_us: latency.as_us_f64(),
            slowdown: latency.ticks() as f64 / message.ideal.ticks().max(1) as f64,
        }
    }
}

/// Statistics of a distribution. Without values they are NaN (`null` in JSON).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stats {
    /// The median (nearest rank).
    pub p50: f64,
    /// The 99th percentile (nearest rank).
    pub p99: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The 99.9th percentile (nearest rank).
    pub p999: f64,
    /// The largest value.
    pub max: f64,
}

impl Default for Stats {
    /// Returns the statistics of an empty set of values.
    fn default() -> Self {
        Self { p50: f64::NAN, p99: f64::NAN, mean: f64::NAN, p999: f64::NAN, max: f64::NAN }
    }
}

impl Stats {
    /// Returns the statistics of values in any order, which are sorted.
    pub(crate) fn of(values: &mut [f64]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self {
            p50: percentile(values, 0.5),
            p99: percentile(values, 0.99),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p999: percentile(values, 0.999),
            max: values.last().copied().unwrap_or(f64::NAN),
        }
    }
}

/// Returns the smallest value that at least a share `p` of all values do not exceed (nearest rank).
pub(crate) fn percentile(sorted: &[f64], p: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    sorted[rank(sorted.len(), p)]
}

/// Returns whether the 99th percentiles of two sets of values differ by more than chance explains with a probability of 5 %, if the
/// values are independent: the shares above the percentile of all of them are compared (NIST/SEMATECH e-Handbook 7.3.3).
pub(crate) fn tails_differ(halves: [&[f64]; 2]) -> bool {
    let mut all = halves.concat();
    all.sort_unstable_by(f64::total_cmp);
    let p99 = percentile(&all, 0.99);
    let above = |values: &[f64]| values.iter().filter(|value| **value > p99).count() as f64;
    let [a, b] = halves.map(|values| above(values) / values.len() as f64);
    let share = above(&all) / all.len() as f64;
    let error = halves.map(|values| share * (1.0 - share) / values.len() as f64);
    (a - b).abs() > 1.96 * (error[0] + error[1]).sqrt()
}

/// Returns the index of the nearest rank; `count` must be above 0.
fn rank(count: usize, p: f64) -> usize {
    // Integer millionths give 99 for 0.99 of 100, where rounding could give 99.00000000000001.
    let millionths = (p * 1e6).round() as u128;
    let rank = (count as u128 * millionths).div_ceil(1_000_000) as usize;
    rank.clamp(1, count) - 1
}

/// The slowdown of the messages in one size bucket.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SizeBucket {
    /// The largest size in the bucket; `None` if there is no limit.
    pub up_to_bytes: Option<u64>,
    /// The number of messages in the bucket.
    pub count: u64,
    /// The mean slowdown of these messages.
    pub mean: f64,
    /// The median slowdown of these messages.
    pub p50: f64,
    /// The 99th percentile of the slowdown.
    pub p99: f64,
    /// The 99th percentile of the slowdown at each receiving host, averaged over hosts with their numbers of messages as
    /// weights. The authors of Homa's simulations publish this mean (docs/protocols/homa.md#homa-sigcomm-2018-setting). Where a
    /// host receives fewer than 100 messages, its 99th percentile is its slowest message, so that this mean is less than
    /// `p99`.
    pub p99_by_receiver: f64,
    /// The median latency in microseconds.
    pub latency_p50_us: f64,
    /// The 99th percentile of the latency in microseconds.
    pub latency_p99_us: f64,
}

impl SizeBucket {
    /// Returns the largest size in the bucket, or `u64::MAX` without a limit.
    pub(crate) fn edge(&self) -> u64 {
        self.up_to_bytes.unwrap_or(u64::MAX)
    }
}

/// Divides messages into buckets by size. The `edges` are ascending, and a further bucket is above the last edge.
pub(crate) fn by_size(samples: &[Sample], edges: &[u64]) -> Vec<SizeBucket> {
    let mut buckets: Vec<Vec<Sample>> = vec![Vec::new(); edges.len() + 1];
    for sample in samples {
        buckets[edges.partition_point(|edge| *edge < sample.bytes)].push(*sample);
    }
    let edges = edges.iter().copied().map(Some).chain([None]);
    edges
        .zip(&mut buckets)
        .map(|(up_to_bytes, samples)| {
            let of = |value: fn(&Sample) -> f64| {
                Stats::of(&mut samples.iter().map(value).collect::<Vec<f64>>())
            };
            let (slowdown, latency) = (of(|s| s.slowdown), of(|s| s.latency_us));
            SizeBucket {
                up_to_bytes,
                count: samples.len() as u64,
                mean: slowdown.mean,
                p50: slowdown.p50,
                p99: slowdown.p99,
                p99_by_receiver: p99_by_receiver(samples),
                latency_p50_us: latency.p50,
                latency_p99_us: latency.p99,
            }
        })
        .collect()
}

/// Returns the mean over receivers of each receiver's own 99th percentile of the slowdown (nearest rank), weighted by its number
/// of messages; NaN without messages. Sorts the messages.
fn p99_by_receiver(samples: &mut [Sample]) -> f64 {
    samples.sort_unstable_by(|a, b| {
        a.receiver.cmp(&b.receiver).then(a.slowdown.total_cmp(&b.slowdown))
    });
    let of_receiver = |own: &[Sample]| own[rank(own.len(), 0.99)].slowdown * own.len() as f64;
    let sum: f64 = samples.chunk_by(|a, b| a.receiver == b.receiver).map(of_receiver).sum();
    sum / samples.len() as f64
}

/// One step of a slowdown curve; all steps have about equally many messages.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct CurvePoint {
    /// The share of all messages that are at most as large as the largest of this step.
    pub count_fraction: f64,
    /// The size in bytes of the step's largest message.
    pub size_bytes: u64,
    /// The median slowdown of the step's messages.
    pub p50: f64,
    /// The 99th percentile of the slowdown.
    pub p99: f64,
}

/// Returns the slowdown over the percentile of the message size, as the Homa papers plot it. Messages of one size are
/// never divided between steps.
pub(crate) fn slowdown_curve(samples: &[Sample], steps: usize) -> Vec<CurvePoint> {
    let mut sorted: Vec<Sample> = samples.to_vec();
    sorted.sort_by_key(|sample| sample.bytes);
    let count = sorted.len();
    let mut curve = Vec::new();
    let mut from = 0;
    while from < count {
        // A step that took more, because many messages have one size, makes none of the next ones smaller: percentiles of a few
        // messages jump. The last step takes what would not fill half of another one.
        let full = count.div_ceil(steps).max(1);
        let mut to = (from + full).min(count);
        while to < count && sorted[to].bytes == sorted[to - 1].bytes {
            to += 1;
        }
        if (count - to) * 2 < full {
            to = count;
        }
        let mut slowdowns: Vec<f64> = sorted[from..to].iter().map(|s| s.slowdown).collect();
        let stats = Stats::of(&mut slowdowns);
        curve.push(CurvePoint {
            count_fraction: to as f64 / count as f64,
            size_bytes: sorted[to - 1].bytes,
            p50: stats.p50,
            p99: stats.p99,
        });
        from = to;
    }
    curve
}

/// Returns points of a distribution function: (value, share of values that are at most that). They are evenly spaced
/// except in the tail, which has more.
pub fn cdf(values: &mut [f64]) -> Vec<(f64, f64)> {
    const EVEN: u32 = 190;
    const TAIL: [f64; 5] = [0.997, 0.999, 0.9995, 0.9999, 1.0];
    if values.is_empty() {
        return Vec::new();
    }
    values.sort_unstable_by(f64::total_cmp);
    let even = (1..EVEN).map(|i| f64::from(i) / f64::from(EVEN));
    let mut points: Vec<(f64, f64)> =
        even.chain(TAIL).map(|p| (percentile(values, p), p)).collect();
    points.dedup_by(|later, earlier| {
        let same = later.0 == earlier.0;
        if same {
            earlier.1 = later.1;
        }
        same
    });
    points
}

/// The lowest and highest of some times, and their mean, in microseconds. Without values they are NaN (`null` in JSON).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Range {
    /// The lowest.
    pub min: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The highest.
    pub max: f64,
}

impl Range {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let (mut range, mut sum, mut count) =
            (Self { min: f64::NAN, mean: f64::NAN, max: f64::NAN }, 0.0, 0.0);
        for value in values {
            range.min = value.min(range.min);
            range.max = value.max(range.max);
            sum += value;
            count += 1.0;
        }
        range.mean = sum / count;
        range
    }
}

/// Returns the bytes that crossed links between switches.
#[must_use]
pub fn trunk_bytes(fabric: &Fabric, links: &[LinkStats]) -> u64 {
    let is_trunk = |link: usize| {
        matches!(
            (fabric.links()[link].from, fabric.links()[link].to),
            (Node::Switch(_), Node::Switch(_))
        )
    };
    links.iter().enumerate().filter(|(link, _)| is_trunk(*link)).map(|(_, link)| link.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_of_slow_values_differ_beyond_chance_or_not() {
        let half = |slow: usize| {
            let value = |n| if n < slow { 100.0 + n as f64 } else { 1.0 };
            (0..2000).map(value).collect::<Vec<f64>>()
        };
        let differ = |a, b| tails_differ([&half(a), &half(b)]);
        assert!(differ(40, 0) && differ(0, 40));
        assert!(!differ(20, 20) && !differ(22, 18) && !differ(0, 0));
    }

    /// Computes a percentile by its definition, by counting.
    fn naive(values: &[f64], millionths: u64) -> f64 {
        let enough = |v: f64| {
            let below = values.iter().filter(|x| **x <= v).count() as u64;
            below * 1_000_000 >= millionths * values.len() as u64
        };
        let fit = values.iter().copied().filter(|v| enough(*v));
        fit.fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn percentiles_are_exact(
            mut values in prop::collection::vec((0_u32..1000).prop_map(f64::from), 1..300),
            millionths in 1_u64..=1_000_000,
        ) {
            let expected = naive(&values, millionths);
            values.sort_unstable_by(f64::total_cmp);
            prop_assert_eq!(percentile(&values, millionths as f64 / 1e6), expected);
        }

        #[test]
        fn every_message_is_in_one_bucket_and_in_one_step(
            sizes in prop::collection::vec(1_u64..2000, 0..300),
        ) {
            let sample = |bytes: &u64| {
                let receiver = HostId(*bytes as u32 % 3);
                Sample { bytes: *bytes, receiver, latency_us: 1.0, slowdown: 1.0 }
            };
            let samples: Vec<Sample> = sizes.iter().map(sample).collect();
            let buckets = by_size(&samples, &[10, 100, 1000]);
            prop_assert_eq!(buckets.len(), 4);
            prop_assert_eq!(buckets.iter().map(|b| b.count).sum::<u64>(), sizes.len() as u64);
            let small = sizes.iter().filter(|size| **size <= 10).count() as u64;
            prop_assert_eq!(buckets[0].count, small);
            let curve = slowdown_curve(&samples, 20);
            prop_assert!(curve.windows(2).all(|w| w[0].size_bytes < w[1].size_bytes));
            prop_assert!(curve.last().is_none_or(|last| last.count_fraction == 1.0));
        }

        /// Some sizes are those of many messages, as in published distributions.
        #[test]
        fn steps_of_a_curve_have_at_least_half_of_their_share_of_messages(
            sizes in prop::collection::vec(prop_oneof![Just(8_u64), Just(500), 1_u64..2000], 1..400),
        ) {
            let sample = |bytes: &u64| {
                Sample { bytes: *bytes, receiver: HostId(0), latency_us: 1.0, slowdown: 1.0 }
            };
            let samples: Vec<Sample> = sizes.iter().map(sample).collect();
            let mut before = 0.0;
            for step in slowdown_curve(&samples, 20) {
                let messages = (step.count_fraction - before) * sizes.len() as f64;
                prop_assert!(messages * 2.0 > (sizes.len() / 20) as f64 - 1e-6, "{messages} of {}", sizes.len());
                before = step.count_fraction;
            }
        }
    }

    #[test]
    fn the_99th_percentile_of_a_hundred_values_is_the_99th() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let stats = Stats::of(&mut values);
        assert_eq!((stats.p50, stats.p99, stats.p999, stats.max), (50.0, 99.0, 100.0, 100.0));
        assert_eq!(stats.mean, 50.5);
        assert!(Stats::of(&mut []).p50.is_nan());
    }

    proptest! {
        /// The mean that the authors' scripts compute, from its definition.
        #[test]
        fn the_mean_of_receivers_99th_percentiles_is_weighted_by_their_messages(
            values in prop::collection::vec((0_u32..5, (0_u32..1000).prop_map(f64::from)), 1..600),
        ) {
            let own = |host: u32| -> Vec<f64> {
                let mut own: Vec<f64> =
                    values.iter().filter(|v| v.0 == host).map(|v| v.1).collect();
                own.sort_unstable_by(f64::total_cmp);
                own
            };
            let sum: f64 = (0..5)
                .map(own)
                .filter(|own| !own.is_empty())
                .map(|own| naive(&own, 990_000) * own.len() as f64)
                .sum();
            let sample = |v: &(u32, f64)| Sample {
                bytes: 1,
                receiver: HostId(v.0),
                latency_us: 1.0,
                slowdown: v.1,
            };
            let mut samples: Vec<Sample> = values.iter().map(sample).collect();
            let mean = p99_by_receiver(&mut samples);
            prop_assert!((mean - sum / values.len() as f64).abs() < 1e-9 * mean.max(1.0));
        }
    }

    #[test]
    fn of_few_messages_each_receivers_slowest_counts() {
        let slow = |receiver, slowdown| Sample {
            bytes: 50,
            receiver: HostId(receiver),
            latency_us: 1.0,
            slowdown,
        };
        let samples = [slow(0, 2.0), slow(0, 4.0), slow(0, 3.0), slow(1, 8.0)];
        let buckets = by_size(&samples, &[100]);
        assert_eq!((buckets[0].p99, buckets[0].p99_by_receiver), (8.0, (3.0 * 4.0 + 8.0) / 4.0));
        assert!(buckets[1].p99_by_receiver.is_nan());
    }

    #[test]
    fn a_distribution_function_ends_at_one_and_never_falls() {
        let mut values: Vec<f64> = (0..10_000).map(|i| f64::from(i % 700)).collect();
        let points = cdf(&mut values);
        assert!(points.len() <= 200);
        assert_eq!(points.last(), Some(&(699.0, 1.0)));
        assert!(points.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1));
    }
}
