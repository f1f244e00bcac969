//! Synthetic comparisons for the tests. Their values are smooth functions and not results.

use rackweave_core::{Span, Time};
use rackweave_sim::result::QueueSample;

use super::Head;
use crate::results::{
    CurvePoint, MessageCounts, PointResult, PointSummary, QueueBytes, SizeBucket, Stats,
    StreamSummary,
};

/// A synthetic comparison.
pub(crate) struct Demo {
    pub(super) head: Head,
    pub(crate) points: Vec<PointResult>,
}

impl Demo {
    pub(super) fn page(&self) -> String {
        super::html::render(&self.head, &self.points)
    }
}

/// Returns a point whose measures are all missing.
pub(super) fn unknown() -> PointResult {
    let summary = PointSummary { end: "all done", ..PointSummary::default() };
    PointResult { summary, ..PointResult::default() }
}

/// The quantiles of a heavy-tailed distribution of message sizes, at every 5 %.
const SIZES: [u64; 20] = [
    280, 320, 380, 440, 500, 560, 640, 720, 860, 1_020, 1_300, 1_800, 2_700, 5_200, 12_000, 38_000,
    98_000, 240_000, 900_000, 9_800_000,
];

/// Returns one synthetic run. `badness` grows from 0.
fn point(group: &str, load: f64, badness: f64) -> PointResult {
    let pressure = load / (1.05 - load) * badness;
    let p50 = |step: f64| 1.05 + 0.3 * pressure * (1.0 + (step * 0.9).sin() * 0.3);
    let p99 = |step: f64| 1.6 + 4.0 * pressure * (2.0 - step / 14.0) + step * 0.15;
    let slowdown_curve: Vec<CurvePoint> = (1..=20_u8)
        .map(|n| {
            let step = f64::from(n);
            CurvePoint {
                count_fraction: step / 20.0,
                size_bytes: SIZES[usize::from(n) - 1],
                p50: p50(step),
                p99: p99(step),
            }
        })
        .collect();
    let mut below = 0.0;
    let by_size = [1_000, 10_000, 100_000, 1_000_000, u64::MAX]
        .into_iter()
        .enumerate()
        .map(|(nth, up_to_bytes)| {
            let upper = SIZES.iter().filter(|s| **s <= up_to_bytes).count() as f64;
            let count = ((upper - below) * 500.0) as u64;
            below = upper;
            let step = nth as f64 * 4.0;
            SizeBucket {
                up_to_bytes: (up_to_bytes < u64::MAX).then_some(up_to_bytes),
                count: if nth == 4 { 40 } else { count },
                mean: p50(step) * 1.3,
                p50: p50(step),
                p99: p99(step),
                p99_by_receiver: p99(step),
                latency_p50_us: f64::NAN,
                latency_p99_us: f64::NAN,
            }
        })
        .collect();
    let latency_cdf = (1..=2_000_u16)
        .map(|n| {
            let f = f64::from(n) / 2_000.0;
            let spread = -(1.0 - f + 1e-5).ln();
            (3.0 + spread.powf(2.2) * (2.0 + 3.0 * pressure), f)
        })
        .collect();
    let queue_series = (0..2_000_u16)
        .map(|n| {
            let t = f64::from(n);
            let wave = (t * 0.37).sin() * (t * 0.011).sin() + (t * 0.91).cos() * 0.4;
            let max_bytes = (pressure * 30_000.0 * (1.2 + wave)).max(0.0) as u64;
            let at = Time::ZERO + Span::from_us(u64::from(n) * 5);
            QueueSample {
                at,
                max_bytes,
                max_switch_bytes: max_bytes * 3,
                total_bytes: max_bytes * 13 / 2,
            }
        })
        .collect();
    let drops = (pressure * 900.0) as u64;
    let summary = PointSummary {
        transport: group.to_owned(),
        label: group.to_owned(),
        messages: MessageCounts { started: 10_000, completed: 10_000, ..Default::default() },
        slowdown: Stats { p50: p50(8.0), p99: p99(3.0), mean: p50(8.0) * 1.4, ..Stats::default() },
        latency_us: Stats {
            p50: 4.1 * p50(8.0),
            p99: 60.0 * p99(3.0),
            mean: 31.0,
            ..Stats::default()
        },
        goodput_gbps: 40.0 * load * 9.4,
        drops,
        drops_by_reason: [
            ("queue_full".to_owned(), (drops - drops / 3).into()),
            ("shared_buffer_full".to_owned(), (drops / 3).into()),
        ]
        .into_iter()
        .collect(),
        ecn_marks: if group == "dctcp" { 123_456 } else { 0 },
        queue_bytes: QueueBytes {
            mean: pressure * 1_100.0,
            max: (pressure * 80_000.0) as u64,
            max_switch: None,
        },
        by_size,
        end: "all done",
        ..PointSummary::default()
    };
    PointResult {
        label: group.to_owned(),
        summary,
        slowdown_curve,
        latency_cdf,
        queue_series,
        ..PointResult::default()
    }
}

fn demo(title: &str, points: Vec<PointResult>) -> Demo {
    let head = Head {
        title: title.to_owned(),
        description: "Made-up numbers: what a report looks like, not what a transport does."
            .to_owned(),
        scenario_toml: "[fabric]\ntopology = \"leaf-spine\"\nhost_link = \"10 Gbps\"\n\n\
                        [workload]\nsizes = \"W4\"\nload = 0.8\n"
            .to_owned(),
        command: "rackweave run scenarios/quickstart.toml --seed 7 --out results".to_owned(),
        version: "0.1.0".to_owned(),
        seed: 7,
        facts: [
            ("Fabric", "leaf-spine, 40 hosts"),
            ("Links", "10 Gbps / 40 Gbps"),
            ("Workload", "W4, Poisson, load 0.8"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        files: vec!["points.csv".to_owned()],
        incomplete: None,
    };
    Demo { head, points }
}

const GROUPS: [(&str, f64); 3] = [("homa", 0.0), ("dctcp", 0.8), ("tcp", 4.0)];

/// Returns three transports at one load; the last one leaves messages unfinished.
pub(super) fn transports() -> Demo {
    let mut points: Vec<PointResult> =
        GROUPS.iter().map(|(name, badness)| point(name, 0.8, 0.05 + badness)).collect();
    let tcp = &mut points[2].summary;
    tcp.messages = MessageCounts { completed: 9_988, unfinished: 9, failed: 3, ..tcp.messages };
    tcp.end = "time limit";
    demo("W4 at 80 % load: Homa, DCTCP and TCP", points)
}

/// Returns three transports at ten loads.
pub(super) fn sweep() -> Demo {
    let mut points = Vec::new();
    for (name, badness) in GROUPS {
        for tenth in 0..10_u8 {
            let load = 0.05 + f64::from(tenth) * 0.1;
            let mut point = point(name, load, 0.05 + badness);
            point.label = format!("{name}, load {load:.2}");
            point.variant.push(("workload.load".to_owned(), format!("{load:.2}")));
            points.push(point);
        }
    }
    demo("W4 from 5 to 95 % load", points)
}

/// Returns two transports at three loads, with an incast next to them that the one with the lower slowdown delays; the second is at
/// other settings of the switch, which follow from it.
pub(crate) fn incast() -> Demo {
    let mut points = Vec::new();
    for (name, badness, incast) in [("homa", 0.0, 40.0), ("ndp", 0.8, 10.0)] {
        for load in [0.3, 0.5, 0.7] {
            let mut point = point(name, load, 0.05 + badness);
            point.label = format!("{name}, load {load}");
            point.variant.push(("workload.load".to_owned(), load.to_string()));
            let stats =
                |p99: f64| Stats { p50: p99 / 2.0, p99, mean: p99 / 2.0, p999: p99, max: p99 };
            point.summary.background.push(StreamSummary {
                arrivals: "incast".to_owned(),
                transport: name.to_owned(),
                label: name.to_owned(),
                messages: MessageCounts { started: 3200, completed: 3200, ..Default::default() },
                slowdown: stats(incast * (1.0 + load)),
                latency_us: stats(incast * (1.0 + load) * 30.0),
                goodput_gbps: 1.0,
                rounds: None,
                halves: None,
                retransmissions: None,
                timeouts: None,
            });
            points.push(point);
        }
    }
    demo("W4 and an incast", points)
}

/// Returns one transport with one setting at thirty values.
pub(super) fn tuning() -> Demo {
    let points = (1..=30_u8)
        .map(|n| {
            let mut point = point("dctcp", 0.8, f64::from(n) / 15.0);
            let value = format!("{} KB", u32::from(n) * 10);
            point.label = format!("ecn_threshold {value}");
            point.variant.push(("fabric.switch.ecn_threshold".to_owned(), value));
            point
        })
        .collect();
    demo("DCTCP's marking threshold", points)
}
