use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::*;

/// A result with the p99 of some seeds for each label.
fn results(points: &[(&str, &[(u64, f64)])]) -> Results {
    let points = points.iter().flat_map(|(label, values)| {
        values.iter().map(move |(seed, p99)| {
            json!({
                "label": label,
                "set": {"transport.name": label, "seed": seed},
                "slowdown": {"p99": p99, "p999": 2.0 * p99},
                "messages": {"completed": 10},
                "cpu_s": p99,
                "by_size": [{"up_to_bytes": 100, "count": 3, "p99": p99}],
            })
        })
    });
    let summary = json!({"scenario": "s", "version": "v", "points": points.collect::<Vec<_>>()});
    Results::from_summary(Path::new("out/s"), &summary, BTreeMap::new()).expect("a summary")
}

fn p99(a: &[(u64, f64)], b: &[(u64, f64)]) -> Measure {
    let difference = Difference::between(&results(&[("homa", a)]), &results(&[("homa", b)]), false);
    let mut measures = difference.points[0].measures.iter();
    measures.find(|it| it.name == "slowdown.p99").expect("compared").clone()
}

/// Differences of 1, 2, 3: 2 +- 4.303 / sqrt(3), which contains no zero only because the seeds are compared one by one.
#[test]
fn the_same_seeds_are_compared_one_by_one() {
    let a = [(1, 10.0), (2, 20.0), (3, 30.0)];
    let measure = p99(&a, &[(1, 12.5), (2, 22.0), (3, 33.0)]);
    assert_eq!((measure.a, measure.b), (20.0, 22.5));
    assert!((measure.half_width - 4.303 * 0.5 / 3.0_f64.sqrt()).abs() < 1e-9);
    assert_eq!(measure.finding, Finding::Differs);
    assert_eq!(measure.change(), Some(0.125));
    // In another order.
    let measure = p99(&a, &[(3, 33.0), (1, 12.5), (2, 22.0)]);
    assert_eq!(measure.finding, Finding::Differs);
    assert_eq!(p99(&a, &[(1, 11.0), (2, 18.0), (3, 33.0)]).finding, Finding::WithinNoise);
    // Differences of 2, 3, 7: 4 +- 4.303 * 2.646 / sqrt(3) = 6.57 contains zero, and half of that interval does not.
    assert_eq!(p99(&a, &[(1, 12.0), (2, 23.0), (3, 37.0)]).finding, Finding::WithinNoise);
}

/// Welch: variances 100 and 100, three values each, so the error is sqrt(200 / 3) and there are four degrees of freedom.
#[test]
fn other_seeds_are_compared_as_samples() {
    let a = [(1, 10.0), (2, 20.0), (3, 30.0)];
    let measure = p99(&a, &[(4, 12.5), (5, 22.5), (6, 32.5)]);
    assert!((measure.half_width - 2.776 * (200.0_f64 / 3.0).sqrt()).abs() < 1e-9, "{measure:?}");
    assert_eq!(measure.finding, Finding::WithinNoise);
    assert_eq!(p99(&a, &[(4, 112.5), (5, 122.5), (6, 132.5)]).finding, Finding::Differs);
}

#[test]
fn one_seed_says_nothing_of_noise() {
    assert_eq!(p99(&[(1, 10.0)], &[(1, 10.1)]).finding, Finding::Unknown);
    let [a, b] = [10.0, 10.1].map(|p99| results(&[("homa", &[(1, p99)])]));
    assert!(!Difference::between(&a, &b, false).is_none(), "what is not known may differ");
    assert_eq!(p99(&[(1, 10.0)], &[(1, 10.0)]).finding, Finding::Same);
    assert_eq!(p99(&[(1, 10.0)], &[(1, 10.1), (2, 10.2)]).finding, Finding::Unknown);
    let change = p99(&[(1, 0.0)], &[(1, 10.1)]);
    assert_eq!(change.change(), None);
}

#[test]
fn clocks_are_no_measures_and_sizes_are_on_request() {
    let of = |p99| results(&[("homa", &[(1, p99), (2, p99)])]);
    let names = |all| {
        let difference = Difference::between(&of(1.0), &of(2.0), all);
        let measures = difference.points[0].measures.iter();
        measures.map(|it| it.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(false), ["messages.completed", "slowdown.p99"]);
    assert_eq!(
        names(true),
        ["by_size[100].p99", "messages.completed", "slowdown.p99", "slowdown.p999"]
    );
}

#[test]
fn points_without_counterpart_are_named() {
    let a = results(&[("homa", &[(1, 1.0)]), ("tcp", &[(1, 5.0)])]);
    let b = results(&[("homa", &[(1, 1.0)]), ("ndp", &[(1, 5.0)])]);
    let difference = Difference::between(&a, &b, false);
    assert_eq!(
        (difference.only_in_a.as_slice(), difference.only_in_b.as_slice()),
        (["tcp".to_owned()].as_slice(), ["ndp".to_owned()].as_slice())
    );
    assert!(!difference.is_none());
    assert!(Difference::between(&a, &a, true).is_none());
    let text = difference.to_text(false);
    assert!(text.contains("Only in A: tcp\n") && text.contains("Only in B: ndp\n"), "{text}");
}

/// A sweep of the transport compared with a single transport of the same label: the label decides.
#[test]
fn labels_pair_points_that_were_swept_otherwise() {
    let a = results(&[("homa", &[(1, 1.0)]), ("tcp", &[(1, 5.0)])]);
    let summary = json!({"scenario": "s", "version": "v", "seed": 1, "points": [
        {"label": "tcp", "set": {}, "slowdown": {"p99": 6.0}},
    ]});
    let b = Results::from_summary(Path::new("b"), &summary, BTreeMap::new()).expect("a summary");
    let difference = Difference::between(&a, &b, false);
    assert_eq!(difference.points.len(), 1);
    assert_eq!(
        (difference.points[0].measures[0].a, difference.points[0].measures[0].b),
        (5.0, 6.0)
    );
    assert_eq!(difference.only_in_a, ["homa"]);
}

#[test]
fn the_text_says_what_the_data_carry() {
    let a = results(&[("homa", &[(1, 10.0), (2, 20.0), (3, 30.0)])]);
    let b = results(&[("homa", &[(1, 12.5), (2, 22.0), (3, 33.0)])]);
    insta::assert_snapshot!(Difference::between(&a, &b, false).to_text(false), @r"
    A  out/s: s, 3 runs, rackweave v
    B  out/s: s, 3 runs, rackweave v

    homa (3 seeds, compared one by one)
      slowdown.p99  20.0 -> 22.5  +12.5 %  (+-6.21 %)

    1 of 2 measures differ beyond the noise of the seeds, with Holm's correction for their number: that
    any of them does by chance has a probability of 5 % at most.
    1 of 2 measures are the same in every run.
    ");
}

#[test]
fn what_is_no_result_is_named() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("summary.json");
    let error = |text: &str| {
        std::fs::write(&path, text).expect("written");
        Results::read(folder.path()).expect_err("refused").to_string()
    };
    assert!(error("{").contains("line 1"), "{}", error("{"));
    assert!(error("{}").contains("it has no list `points`"));
    assert!(error(r#"{"points": [{}]}"#).contains("a point has no table `set`"));
    assert!(error(r#"{"points": [{"set": {}}]}"#).contains("a point has no `label`"));
    std::fs::write(folder.path().join("scenario.resolved.toml"), "x = ").expect("written");
    assert!(error(r#"{"points": []}"#).contains("scenario.resolved.toml cannot be understood"));
    let missing = Results::read(&folder.path().join("none")).expect_err("refused").to_string();
    assert!(missing.contains("cannot read"), "{missing}");
}

#[test]
fn settings_that_differ_are_named() {
    let folder = |buffer: &str, seeds: &str| {
        let folder = tempfile::tempdir().expect("a directory");
        let scenario = format!(
            "name = \"{buffer}\"\n[fabric.switch]\nbuffer = \"{buffer}\"\n[sweep]\nseed = {seeds}\n[[background]]\nload = 0.1\n"
        );
        std::fs::write(folder.path().join("scenario.resolved.toml"), scenario).expect("written");
        std::fs::write(folder.path().join("summary.json"), r#"{"points": []}"#).expect("written");
        folder
    };
    let (a, b) = (folder("500 KB", "[1, 2]"), folder("1 MB", "[1, 2]"));
    let [a, b] = [a, b].map(|it| Results::read(it.path()).expect("a result"));
    let difference = Difference::between(&a, &b, false);
    let setting = Setting {
        key: "fabric.switch.buffer".to_owned(),
        a: Some("500 KB".to_owned()),
        b: Some("1 MB".to_owned()),
    };
    assert_eq!(difference.settings, [setting]);
    assert!(difference.to_text(false).contains("fabric.switch.buffer  500 KB -> 1 MB"));
}

fn of_points(points: &Value) -> Results {
    let summary = json!({"scenario": "s", "version": "v", "points": points});
    Results::from_summary(Path::new("out/s"), &summary, BTreeMap::new()).expect("a summary")
}

/// Messages that did not arrive leave no percentile: the other seeds' are no sample of all.
#[test]
fn a_measure_that_some_seeds_lack_is_not_compared() {
    let point = |seed: u64, p99: Option<f64>| {
        json!({
            "label": "homa", "set": {"seed": seed}, "slowdown": {"p99": p99}, "messages": {"completed": 10},
        })
    };
    let whole = of_points(&json!([1, 2, 3].map(|seed| point(seed, Some(10.0 + seed as f64)))));
    let holes = of_points(&json!([point(1, Some(2.0)), point(2, None), point(3, None)]));
    for (a, b) in [(&whole, &holes), (&holes, &whole)] {
        let difference = Difference::between(a, b, false);
        let point = &difference.points[0];
        assert_eq!(point.incomplete, ["slowdown.p99"]);
        assert!(point.measures.iter().all(|it| it.name != "slowdown.p99"));
        assert!(!difference.is_none());
        let text = difference.to_text(false);
        assert!(text.contains("not compared") && text.contains("slowdown.p99"), "{text}");
    }
    assert!(Difference::between(&whole, &whole, false).is_none());
}

/// A larger buffer shortens the incast alone: that is shown without `--all`.
#[test]
fn the_percentiles_of_every_stream_are_compared() {
    let point = |p99: f64| {
        let stream = |arrivals: &str, p99: f64| {
            json!({
                "arrivals": arrivals, "label": "homa", "messages": {"completed": 40},
                "slowdown": {"p50": 1.0, "p99": p99, "p999": p99},
            })
        };
        json!([{
            "label": "homa", "set": {"seed": 1}, "slowdown": {"p99": 2.0},
            "background": [stream("incast", p99), stream("poisson", 3.0)],
        }])
    };
    let difference = Difference::between(&of_points(&point(9.0)), &of_points(&point(4.5)), false);
    let measures = &difference.points[0].measures;
    let names: Vec<_> = measures.iter().map(|it| it.name.as_str()).collect();
    let of = |stream: &str| {
        ["messages.completed", "slowdown.p50", "slowdown.p99"]
            .map(|measure| format!("background[{stream}].{measure}"))
    };
    assert_eq!(names, [&of("incast")[..], &of("poisson 1"), &["slowdown.p99".to_owned()]].concat());
    let text = difference.to_text(false);
    assert!(text.contains("background[incast].slowdown.p99  9.00 -> 4.50  -50.0 %"), "{text}");
}

#[test]
fn streams_with_one_label_are_two_and_the_largest_messages_have_a_bucket() {
    let point = |p99: f64| {
        json!([{
            "label": "homa", "set": {"seed": 1},
            "background": [
                {"label": "tcp", "latency_us": {"p99": p99}},
                {"label": "tcp", "latency_us": {"p99": 2.0 * p99}},
            ],
            "by_size": [{"up_to_bytes": 100, "p99": p99}, {"up_to_bytes": null, "p99": p99}],
        }])
    };
    let difference = Difference::between(&of_points(&point(1.0)), &of_points(&point(2.0)), true);
    let measures = &difference.points[0].measures;
    let names: Vec<_> = measures.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "background[tcp 1].latency_us.p99",
            "background[tcp].latency_us.p99",
            "by_size[100].p99",
            "by_size[more].p99"
        ]
    );
    // One seed says nothing of noise.
    assert!(measures.iter().all(|it| it.finding == Finding::Unknown));
}

#[test]
fn results_without_a_common_point_or_that_were_interrupted_are_not_the_same() {
    let none = of_points(&json!([]));
    assert!(!Difference::between(&none, &none, false).is_none());
    let point = json!({"label": "homa", "set": {"seed": 1}, "slowdown": {"p99": 1.0}});
    let summary = json!({"scenario": "s", "version": "v", "interrupted": true, "points": [point]});
    let partial = Results::from_summary(Path::new("out/s"), &summary, BTreeMap::new()).unwrap();
    assert!(!Difference::between(&partial, &partial, false).is_none());
}

/// The mean of the seeds that ended is no mean of all: its difference from another one is not known.
#[test]
fn seeds_without_results_are_named_and_leave_nothing_to_compare() {
    let point = |seed: u64, p99: f64| json!({"label": "homa", "set": {"seed": seed}, "slowdown": {"p99": p99}});
    let whole = of_points(&json!([point(1, 10.0), point(2, 11.0), point(3, 12.0)]));
    let summary = json!({
        "scenario": "s", "version": "v", "interrupted": true, "points": [point(1, 2.0), point(2, 3.0)],
        "missing": [{"label": "homa", "set": {"seed": 3}, "seed": 3}],
    });
    let partial = Results::from_summary(Path::new("out/s"), &summary, BTreeMap::new()).unwrap();
    let difference = Difference::between(&whole, &partial, false);
    // Whichever side it is.
    let other_way = Difference::between(&partial, &whole, false);
    assert!(other_way.points[0].measures.iter().all(|it| it.finding == Finding::Unknown));
    assert_eq!(difference.of[1].missing, ["homa, seed 3"]);
    assert_eq!(difference.points[0].missing_seeds, [vec![], vec![3]]);
    assert!(difference.points[0].measures.iter().all(|it| it.finding == Finding::Unknown));
    let text = difference.to_text(false);
    assert!(text.contains("partial, no results: homa, seed 3"), "{text}");
    assert!(text.contains("no results of seed 3 in B: the means are not comparable"), "{text}");
    assert!(!text.contains("+-"), "{text}");
}

/// A percentile that is missing in the same seed of both is no difference between them.
#[test]
fn a_result_is_the_same_as_itself_where_seeds_lack_a_measure() {
    let point = |seed: u64, p99: Option<f64>| json!({"label": "homa", "set": {"seed": seed}, "slowdown": {"p99": p99}});
    let holes = |p99| of_points(&json!([point(1, Some(2.0)), point(2, None), point(3, p99)]));
    let same = Difference::between(&holes(Some(3.0)), &holes(Some(3.0)), false);
    assert!(same.is_none(), "{same:?}");
    let other = Difference::between(&holes(Some(3.0)), &holes(Some(4.0)), false);
    assert_eq!(other.points[0].incomplete, ["slowdown.p99"]);
    assert!(!other.is_none());
}

/// A run that is counted twice would narrow the interval.
#[test]
fn a_seed_that_is_there_twice_is_refused() {
    let point = json!({"label": "homa", "set": {"seed": 1}, "slowdown": {"p99": 1.0}});
    let summary = json!({"scenario": "s", "version": "v", "points": [point, point]});
    let error = Results::from_summary(Path::new("out/s"), &summary, BTreeMap::new()).unwrap_err();
    assert!(error.contains("same seed"), "{error}");
}

/// The table of Student's t that [`t_quantile`] has holds the values with a probability of 5 %; others are integrals of the density by
/// Simpson's rule.
#[test]
fn probabilities_are_those_of_students_t() {
    for degrees in 1..=30_u32 {
        let p = two_sided(t_quantile(degrees as usize), f64::from(degrees));
        assert!((p - 0.05).abs() < 5e-5, "{degrees}: {p}");
    }
    assert!((two_sided(1.0, 1.0) - 0.5).abs() < 1e-12);
    assert!((two_sided(8.660_254_037_844_386, 2.0) - 0.013_072_457_6).abs() < 1e-8);
    assert!((two_sided(10.0, 5.0) - 0.000_170_947_6).abs() < 1e-9);
    assert!((two_sided(3.0, 6.0) - 0.024_008_196_8).abs() < 1e-9);
    assert!((two_sided(4.0, 7.0) - 0.005_189_913_3).abs() < 1e-9);
    assert!(two_sided(f64::INFINITY, 2.0) < 1e-15 && two_sided(0.0, 7.0) == 1.0);
    // More degrees than the table has count as its last.
    assert_eq!(two_sided(2.5, 1e6), two_sided(2.5, 30.0));
}

/// Holm's example in short: of four, 0.01 is compared with 0.05 / 4, 0.015 with 0.05 / 3, 0.03 with 0.05 / 2, and what follows is not
/// different either, although 0.04 is below 0.05 / 1.
#[test]
fn the_number_of_measures_is_corrected_for_step_by_step() {
    let of = |p_value: f64| Measure {
        name: String::new(),
        a: 1.0,
        b: 2.0,
        half_width: 0.5,
        p_value,
        p_holm: f64::NAN,
        finding: if p_value.is_nan() { Unknown } else { Uncorrected },
    };
    let mut measures = [0.03, 0.01, f64::NAN, 0.04, 0.015].map(of);
    correct(measures.iter_mut().collect());
    use Finding::{Differs, Uncorrected, Unknown};
    let findings = measures.each_ref().map(|measure| measure.finding);
    assert_eq!(findings, [Uncorrected, Differs, Unknown, Uncorrected, Differs]);
    let holm = measures.map(|measure| measure.p_holm);
    for (is, wanted) in holm.iter().zip([0.06, 0.04, f64::NAN, 0.06, 0.045]) {
        assert!((is - wanted).abs() < 1e-12 || is.is_nan() && wanted.is_nan(), "{holm:?}");
    }
}

/// One of many points whose interval excludes zero is what chance brings, and neither a difference nor hidden.
#[test]
fn one_interval_of_many_is_no_difference() {
    let labels: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
    let (before, noise) = ([(1, 10.0), (2, 20.0), (3, 30.0)], [(1, 11.0), (2, 18.0), (3, 33.0)]);
    let one = [(1, 12.5), (2, 22.0), (3, 33.0)];
    let all = |of: &dyn Fn(usize) -> &'static [(u64, f64)]| {
        let points: Vec<_> =
            labels.iter().enumerate().map(|(n, label)| (label.as_str(), of(n))).collect();
        results(&points)
    };
    let (before, noise, one): (&[_], &[_], &[_]) =
        (before.to_vec().leak(), noise.to_vec().leak(), one.to_vec().leak());
    let a = all(&|_| before);
    let b = all(&|n| if n == 0 { one } else { noise });
    let difference = Difference::between(&a, &b, false);
    assert_eq!(difference.count(Finding::Uncorrected), 1);
    assert_eq!(difference.count(Finding::Differs), 0);
    assert!(!difference.is_none(), "what is not known is no sameness");
    let text = difference.to_text(false);
    assert!(text.contains("(+-6.21 %) by itself"), "{text}");
    assert!(text.contains("0 of 40 measures differ") && text.contains("1 of 40 more"), "{text}");
}

/// Long names and values, many points: lines fit, and nothing is cut.
#[test]
fn a_comparison_fits_any_width() {
    let label = "switch, SwitchML's timer, 1 % of the packets lost, with as many workers as there are ports";
    let values = |by: f64| [(1, 10.0 * by), (2, 20.0 * by), (3, 31.0 * by)];
    let (a, b) = (results(&[(label, &values(1.0))]), results(&[(label, &values(1.5))]));
    let setting = |value: &str| BTreeMap::from([("workload.sizes".to_owned(), value.repeat(30))]);
    let summary = |keys| {
        let point = json!({"label": "homa", "set": {}, "slowdown": {"p99": 1.0}});
        let summary = json!({"scenario": "s", "version": "v", "points": [point]});
        Results::from_summary(Path::new("out/s"), &summary, keys).unwrap()
    };
    let settings =
        Difference::between(&summary(setting("1 KB, ")), &summary(setting("2 KB, ")), true);
    for difference in [Difference::between(&a, &b, true), settings] {
        for width in [40, 64, 100, 200] {
            let text = difference.to_text_within(true, width);
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}\n{text}");
            }
            let words = |text: &str| text.split_whitespace().collect::<String>();
            let whole = difference.to_text_within(true, 10_000);
            let mut all: Vec<String> = whole.split_whitespace().map(str::to_owned).collect();
            all.retain(|word| !words(&text).contains(word.as_str()));
            assert_eq!(all, [""; 0], "{text}");
        }
    }
}

/// A value that one result sets and that follows from others in the other one is compared, not "(none)".
#[test]
fn defaults_are_compared_with_what_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, keys: &str| {
        let text = format!(
            "fabric = {{ topology = 'single-switch', hosts = 4 {keys} }}\ntransport.name = 'tcp'\n\
             workload = {{ arrivals = 'permutation', sizes = '10 KB' }}"
        );
        let scenario = crate::Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap();
        let results = crate::Batch::new(scenario.clone()).run(Some(1)).unwrap();
        let out = folder.path().join(name);
        crate::output::OutputDir::prepare(&out).unwrap().write(&scenario, &results, "").unwrap();
        Results::read(&out).unwrap()
    };
    let (a, b) = (written("a", ""), written("b", ", switch.buffer = '1 MB'"));
    let text = Difference::between(&a, &b, false).to_text(false);
    assert!(text.contains("  fabric.switch.buffer  500 KB -> 1 MB\n"), "{text}");
}
