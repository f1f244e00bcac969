//! Synthetic comparisons for the tests: smooth made-up functions, not results.

use super::model::{CurvePoint, Point, QueueDepth, Report, SizeBucket, Stats, Totals};

/// Quantiles of a heavy-tailed distribution of message sizes, at every 5 %.
const SIZES: [f64; 20] = [
    280.0,
    320.0,
    380.0,
    440.0,
    500.0,
    560.0,
    640.0,
    720.0,
    860.0,
    1_020.0,
    1_300.0,
    1_800.0,
    2_700.0,
    5_200.0,
    12_000.0,
    38_000.0,
    98_000.0,
    240_000.0,
    900_000.0,
    9_800_000.0,
];

/// One made-up run: `badness` grows from 0 on.
fn point(group: &str, load: f64, badness: f64) -> Point {
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
            let upper = SIZES.iter().filter(|s| **s <= up_to_bytes as f64).count() as f64;
            let count = ((upper - below) * 500.0) as u64;
            below = upper;
            let step = nth as f64 * 4.0;
            let slowdown = Stats { p50: p50(step), p99: p99(step), mean: p50(step) * 1.3 };
            SizeBucket { up_to_bytes, count: if nth == 4 { 40 } else { count }, slowdown }
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
            let max_bytes = (pressure * 30_000.0 * (1.2 + wave)).max(0.0).floor();
            QueueDepth { time_us: t * 5.0, max_bytes, total_bytes: max_bytes * 6.5 }
        })
        .collect();
    let drops = (pressure * 900.0) as u64;
    Point {
        label: group.to_owned(),
        group: group.to_owned(),
        set: vec![("transport.name".to_owned(), group.to_owned())],
        by_size,
        slowdown_curve,
        latency_cdf,
        queue_series,
        totals: Totals {
            slowdown: Stats { p50: p50(8.0), p99: p99(3.0), mean: p50(8.0) * 1.4 },
            latency_us: Stats { p50: 4.1 * p50(8.0), p99: 60.0 * p99(3.0), mean: 31.0 },
            goodput_gbps: 40.0 * load * 9.4,
            started: 10_000,
            completed: 10_000,
            drops,
            drops_by_reason: vec![
                ("queue_full".to_owned(), drops - drops / 3),
                ("shared_buffer_full".to_owned(), drops / 3),
            ],
            ecn_marks: if group == "dctcp" { 123_456 } else { 0 },
            queue_mean_bytes: pressure * 1_100.0,
            queue_max_bytes: pressure * 80_000.0,
            ..Totals::default()
        },
        cast: None,
    }
}

fn report(title: &str, points: Vec<Point>) -> Report {
    Report {
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
        points,
    }
}

const GROUPS: [(&str, f64); 3] = [("homa", 0.0), ("dctcp", 0.8), ("tcp", 4.0)];

/// Three transports at one load; the last one leaves messages unfinished.
pub(super) fn transports() -> Report {
    let mut points: Vec<Point> =
        GROUPS.iter().map(|(name, badness)| point(name, 0.8, 0.05 + badness)).collect();
    let tcp = &mut points[2].totals;
    tcp.completed = 9_988;
    tcp.unfinished = 9;
    tcp.failed = 3;
    tcp.end = "time limit".to_owned();
    report("W4 at 80 % load: Homa, DCTCP and TCP", points)
}

/// Three transports at ten loads.
pub(super) fn sweep() -> Report {
    let mut points = Vec::new();
    for (name, badness) in GROUPS {
        for tenth in 0..10_u8 {
            let load = 0.05 + f64::from(tenth) * 0.1;
            let mut point = point(name, load, 0.05 + badness);
            point.label = format!("{name}, load {load:.2}");
            point.set.push(("workload.load".to_owned(), format!("{load:.2}")));
            points.push(point);
        }
    }
    report("W4 from 5 to 95 % load", points)
}

/// One transport with one setting at thirty values.
pub(super) fn tuning() -> Report {
    let points = (1..=30_u8)
        .map(|n| {
            let mut point = point("dctcp", 0.8, f64::from(n) / 15.0);
            let value = format!("{} KB", u32::from(n) * 10);
            point.label = format!("ecn_threshold {value}");
            point.set.push(("fabric.switch.ecn_threshold".to_owned(), value));
            point
        })
        .collect();
    report("DCTCP's marking threshold", points)
}
