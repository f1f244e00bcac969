//! Size distributions: the published figures, drawing, and invalid input.

use proptest::prelude::*;
use rackweave_core::{Framing, Rate, Rng, Span};
use rackweave_workload::{
    Interpolation, LineProblem, LoadCounts, MAX_MESSAGE_BYTES, SizeDist, SizesError, WorkloadError,
    open_loop_gap,
};

fn named(name: &str) -> SizeDist {
    SizeDist::named(name).unwrap()
}

fn assert_near(value: f64, expected: f64, share: f64, what: &str) {
    assert!((value / expected - 1.0).abs() <= share, "{what}: {value}, expected {expected}");
}

/// Means and quantiles of the tables that Homa's authors draw from; the truncated means are
/// published (W2 433, W3 2423, W4 60175, W5 385315).
#[test]
fn published_figures() {
    for (name, points, mean, truncated, quantiles, max) in [
        ("W1", 300, 189.2, 189.2, [27, 503, 1876], 100_000),
        ("W2", 152, 441.6, 433.3, [269, 512, 3151], 3_529_904),
        ("W3", 842, 2927.7, 2423.1, [268, 1755, 31_013], 15_158_197),
        ("W4", 460, 127_796.6, 60_175.1, [662, 120_373, 3_430_822], 10_000_000),
        ("W5", 400, 2_564_689.7, 385_315.5, [72_030, 4_899_510, 27_440_490], 29_400_000),
    ] {
        let sizes = named(name);
        assert_eq!(sizes.points().count(), points, "{name}");
        assert_near(sizes.mean(), mean, 2e-4, name);
        assert_near(sizes.truncated(1_000_000).unwrap().mean(), truncated, 2e-4, name);
        assert_eq!([0.5, 0.9, 0.99].map(|p| sizes.quantile(p)), quantiles, "{name}");
        assert_eq!((sizes.max(), sizes.quantile(1.0)), (max, max), "{name}");
        assert!(!sizes.source().is_empty() && !sizes.description().is_empty());
    }
    // Interpolated: published as 1.6 MB and 7.4 MB.
    assert_near(named("websearch").mean(), 1_665_831.0, 1e-6, "websearch");
    assert_near(named("datamining").mean(), 7_470_236.0, 1e-6, "datamining");
    assert_eq!(named("websearch").quantile(0.15), 8760);
    assert_eq!(named("datamining").quantile(0.5), 1460);
    assert_eq!(named("datamining").quantile(0.6), 2920);
    // The trapezoids of the table's CDF: 133.8 packets.
    assert_near(named("IMC10").mean(), 195_357.0, 1e-5, "IMC10");
    assert_eq!([0.5, 0.8, 0.9].map(|p| named("IMC10").quantile(p)), [1460, 10_220, 389_820]);
    // The trapezoids of HPCC's tables, in bytes.
    assert_near(named("websearch-hpcc").mean(), 1_711_250.0, 1e-5, "websearch-hpcc");
    assert_near(named("fb-hadoop").mean(), 120_420.75, 1e-4, "fb-hadoop");
    assert_eq!([0.15, 0.9].map(|p| named("websearch-hpcc").quantile(p)), [10_000, 5_000_000]);
    assert_eq!([0.5, 0.95].map(|p| named("fb-hadoop").quantile(p)), [700, 300_000]);
}

/// Points of SIGCOMM'18's figures: the sizes of W1, W3, W5 at some percentiles of the count.
#[test]
fn percentiles_of_sigcomm18() {
    assert_eq!(named("W3").quantile(0.5), 268);
    assert_eq!([0.99, 0.9].map(|p| named("W3").quantile(p)), [31_013, 1755]);
    assert_eq!(named("W5").quantile(0.1), 5720);
    assert_near(named("W5").quantile(0.5) as f64, 70.7e3, 0.02, "W5 P50");
    assert_near(named("W5").quantile(0.9) as f64, 4.8e6, 0.03, "W5 P90");
}

#[test]
fn names_are_forgiving_and_unknown_ones_listed() {
    for name in ["w4", "W4", "Web Search", "web-search", "DATA_MINING"] {
        assert!(SizeDist::named(name).is_ok(), "{name}");
    }
    let error = SizeDist::named("w6").unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no size distribution `w6`; there are W1, W2, W3, W4, W5, websearch, datamining, IMC10, \
         websearchHPCC, FBHadoop"
    );
}

#[test]
fn cdf_and_quantile_are_inverse() {
    for name in SizeDist::NAMES {
        let sizes = named(name);
        let mut total = 0.0;
        for (size, probability) in sizes.points() {
            total += probability;
            let cdf = sizes.cdf(size);
            let back = sizes.quantile(cdf);
            assert!(back.abs_diff(size) <= size / 1_000_000, "{name}: {size} {cdf} {back}");
        }
        assert!((total - 1.0).abs() < 1e-9, "{name}: {total}");
        assert_eq!((sizes.cdf(0), sizes.cdf(sizes.max())), (0.0, 1.0));
    }
}

/// Pearson's chi-square over 50 equally probable classes.
#[test]
fn drawing_follows_the_distribution() {
    let custom = SizeDist::uniform(3, 1_000_000).unwrap();
    for sizes in SizeDist::NAMES.map(named).into_iter().chain([custom]) {
        let mut classes: Vec<u64> = (1..50).map(|i| sizes.quantile(f64::from(i) / 50.0)).collect();
        classes.push(sizes.max());
        classes.dedup();
        let mut rng = Rng::stream(3, 0, 0, "sizes");
        let mut counts = vec![0.0; classes.len()];
        let n = 200_000;
        for _ in 0..n {
            let size = sizes.sample(&mut rng);
            counts[classes.partition_point(|&class| class < size)] += 1.0;
        }
        let mut below = 0.0;
        let mut chi_square = 0.0;
        for (&class, count) in classes.iter().zip(counts) {
            let expected = (sizes.cdf(class) - below) * f64::from(n);
            chi_square += (count - expected) * (count - expected) / expected;
            below = sizes.cdf(class);
        }
        // Mean k - 1, variance 2 (k - 1): four standard deviations.
        let freedom = classes.len() as f64 - 1.0;
        let limit = freedom + 4.0 * (2.0 * freedom).sqrt();
        assert!(chi_square < limit, "{}: {chi_square} > {limit}", sizes.name());
    }
}

#[test]
fn mean_of_drawn_sizes() {
    for name in SizeDist::NAMES {
        let sizes = named(name);
        let variance = sizes.mean_of(|size| (size as f64 - sizes.mean()).powi(2));
        let n = 100_000;
        let mut rng = Rng::stream(4, 0, 0, "sizes");
        let sum: f64 = (0..n).map(|_| sizes.sample(&mut rng) as f64).sum();
        let error = (variance / f64::from(n)).sqrt();
        let mean = sum / f64::from(n);
        assert!((mean - sizes.mean()).abs() < 4.0 * error, "{name}: {mean}");
    }
}

#[test]
fn simple_distributions() {
    let mut rng = Rng::stream(1, 0, 0, "sizes");
    let fixed = SizeDist::fixed(1500).unwrap();
    assert_eq!((fixed.sample(&mut rng), fixed.mean(), fixed.name()), (1500, 1500.0, "1.5 KB"));
    let die = SizeDist::uniform(1, 6).unwrap();
    let draws: Vec<u64> = (0..1000).map(|_| die.sample(&mut rng)).collect();
    assert_eq!((draws.iter().min(), draws.iter().max()), (Some(&1), Some(&6)));
    assert_eq!(die.points().collect::<Vec<_>>().len(), 6);
    assert_eq!((die.mean(), die.quantile(0.5)), (3.5, 3));
    let cut = die.truncated(4).unwrap();
    assert_near(cut.mean(), (1.0 + 2.0 + 3.0 + 4.0 * 3.0) / 6.0, 1e-12, "cut die");
    assert_eq!(cut.max(), 4);
    assert_eq!(die.truncated(6).unwrap(), die);
    assert_eq!(named("W4").truncated(1).unwrap().mean(), 1.0);
}

#[test]
fn impossible_sizes_are_refused() {
    assert_eq!(SizeDist::fixed(0), Err(SizesError::Size(0)));
    assert_eq!(
        SizeDist::fixed(MAX_MESSAGE_BYTES + 1),
        Err(SizesError::Size(MAX_MESSAGE_BYTES + 1))
    );
    assert_eq!(SizeDist::uniform(7, 6), Err(SizesError::Reversed { low: 7, high: 6 }));
    assert_eq!(named("W1").truncated(0), Err(SizesError::Size(0)));
}

#[test]
fn csv_both_ways() {
    let text = "# mine\ncdf, size_bytes\n0.25,100\n\n0.25,200\n1.0,400.0\n";
    let steps = SizeDist::from_csv(text, Interpolation::Steps).unwrap();
    assert_eq!(steps.points().collect::<Vec<_>>(), [(100, 0.25), (400, 0.75)]);
    let linear = SizeDist::from_csv(text, Interpolation::Linear).unwrap();
    assert_eq!((linear.cdf(100), linear.cdf(200), linear.cdf(300)), (0.25, 0.25, 0.625));
    assert_near(linear.mean(), 0.25 * 100.0 + 0.75 * 300.5, 1e-12, "mean");
    // An interpolated table usually begins with a row for 0 bytes.
    let linear = SizeDist::from_csv("size_bytes,cdf\r\n0,0\r\n10,1\r\n", Interpolation::Linear);
    assert_eq!(linear.unwrap().points().count(), 10);
    let quoted = SizeDist::from_csv("\u{feff}\"size_bytes\",\"cdf\"\n9,1\n", Interpolation::Steps);
    assert_eq!(quoted.unwrap().mean(), 9.0);
}

#[test]
fn csv_faults_name_the_line() {
    for (text, message) in [
        ("", "the size distribution has no points"),
        ("# only this\n", "the size distribution has no points"),
        ("size_bytes,cdf\n", "the size distribution has no points"),
        (
            "size,cdf\n1,1\n",
            "line 1: the header has no column `size_bytes`; it must have size_bytes,cdf",
        ),
        (
            "size_bytes,cdf\r\n\r\n# c\r\n1,0.5\r\n\r\n2,x",
            "line 6: `x` is not a value for `cdf`: it must be a number from 0 to 1",
        ),
        (
            "size_bytes,cdf\n1,NaN\n",
            "line 2: `NaN` is not a value for `cdf`: it must be a number from 0 to 1",
        ),
        ("size_bytes,cdf\n1\n", "line 2: there is no value for `cdf`"),
        ("size_bytes,cdf\n1,0.5\n2,\n", "line 3: there is no value for `cdf`"),
        (
            "size_bytes,cdf\n1,0.5\n2,0.4\n",
            "line 3: cdf 0.4 is below the one before it, 0.5: a CDF cannot decrease",
        ),
        (
            "size_bytes,cdf\n\n5,0.5\n1,1",
            "line 4: size 1 is below the one before it, 5: sizes must increase",
        ),
        ("size_bytes,cdf\n5,0.5\n", "line 2: the last cdf is 0.5, but must be 1 (not percent)"),
        (
            "size_bytes,cdf\n5,50\n",
            "line 2: `50` is not a value for `cdf`: it must be a number from 0 to 1",
        ),
        (
            "size_bytes,cdf\n0,0.5\n9,1\n",
            "line 2: `0` is not a value for `size_bytes`: it must be at least 1 where the cdf is above 0",
        ),
        (
            "size_bytes,cdf\n1.5,1\n",
            "line 2: `1.5` is not a value for `size_bytes`: it must be a whole number of bytes, at most 2^40",
        ),
        (
            "size_bytes,cdf\n99999999999999,1\n",
            "line 2: `99999999999999` is not a value for `size_bytes`: it must be a whole number of bytes, at most 2^40",
        ),
    ] {
        let error = SizeDist::from_csv(text, Interpolation::Linear).unwrap_err();
        assert_eq!(error.to_string(), message, "{text:?}");
    }
    let binary = SizeDist::from_csv(b"size_bytes,cdf\n\xff\xfe,1\n", Interpolation::Steps);
    assert_eq!(binary, Err(SizesError::Line { line: 2, problem: LineProblem::NotText }));
}

/// The payload shares of SIGCOMM'18's simulations, which scale their load: with headers, Ethernet
/// and grants, of the distributions as they are (not truncated).
#[test]
fn payload_shares_of_sigcomm18() {
    let framing = Framing { max_payload: 1442, header_bytes: 58, spray_above_bytes: u32::MAX };
    for (name, published) in [("W1", 0.657), ("W2", 0.796), ("W3", 0.887), ("W4", 0.898)] {
        let sizes = named(name);
        let gap = |counts| {
            // A grant of 86 bytes on the link for each packet of 1442 bytes beyond the first 9328.
            let grants = |size: u64| size.saturating_sub(9328).div_ceil(1442) as f64 * 86.0;
            open_loop_gap(&sizes, 0.8, counts, Rate::from_gbps(10), framing, grants).unwrap()
        };
        let share = gap(LoadCounts::Payload).as_ps() as f64 / gap(LoadCounts::Wire).as_ps() as f64;
        assert_near(share, published, 0.015, name);
    }
}

#[test]
fn gaps() {
    let framing = Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: u32::MAX };
    let gap = |load, counts, rate| {
        let sizes = SizeDist::fixed(14_600).unwrap();
        open_loop_gap(&sizes, load, counts, Rate::from_gbps(rate), framing, |_| 20.0)
    };
    assert_eq!(gap(0.5, LoadCounts::Payload, 10), Ok(Span::from_ps(14_600 * 800 * 2)));
    assert_eq!(gap(1.0, LoadCounts::Wire, 10), Ok(Span::from_ps((15_380 + 20) * 800)));
    assert_eq!(gap(0.5, LoadCounts::Wire, 0), Err(WorkloadError::NoRate));
    for load in [0.0, -0.5, 1.01, f64::INFINITY] {
        assert_eq!(gap(load, LoadCounts::Wire, 10), Err(WorkloadError::Load(load)));
    }
    assert!(matches!(gap(f64::NAN, LoadCounts::Wire, 10), Err(WorkloadError::Load(_))));
}

proptest! {
    #[test]
    fn csv_of_any_bytes_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = SizeDist::from_csv(&bytes, Interpolation::Linear);
        let mut with_header = b"size_bytes,cdf\n".to_vec();
        with_header.extend(&bytes);
        let _ = SizeDist::from_csv(&with_header, Interpolation::Steps);
    }

    #[test]
    fn csv_of_numbers_is_refused_or_right(
        rows in proptest::collection::vec((0_u64..2000, 0_u32..=10), 1..8),
        sort in any::<bool>(),
        linear in any::<bool>(),
    ) {
        let mut rows = rows;
        if sort {
            rows.sort_unstable();
        }
        let mut cdf: u32 = 0;
        let mut text = String::from("size_bytes,cdf\n");
        let last = rows.len() - 1;
        for (i, (size, step)) in rows.iter().enumerate() {
            cdf = if i == last { 100 } else { (cdf + step).min(100) };
            text += &format!("{size},{}\n", f64::from(cdf) / 100.0);
        }
        let kind = if linear { Interpolation::Linear } else { Interpolation::Steps };
        if let Ok(sizes) = SizeDist::from_csv(&text, kind) {
            let mut rng = Rng::stream(1, 0, 0, "sizes");
            let max = rows[last].0;
            for _ in 0..50 {
                let size = sizes.sample(&mut rng);
                prop_assert!((1..=max).contains(&size));
            }
            let mean = sizes.mean_of(|size| size as f64);
            prop_assert!((mean - sizes.mean()).abs() < 1.0);
        } else {
            let starts_at_zero = rows.first().is_some_and(|&(size, _)| size == 0);
            let increases = rows.windows(2).all(|pair| pair[0].0 <= pair[1].0);
            prop_assert!(!increases || starts_at_zero);
        }
    }
}
