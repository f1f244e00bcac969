//! Properties of every report, independent of its numbers.

use proptest::prelude::*;

use rackweave_core::Time;
use rackweave_sim::result::QueueSample;

use super::charts::{self, Percentile};
use super::svg::{Axis, Chart, Look, Series, Theme, escape};
use super::ticks::{Quantity, Scale};
use super::{Head, demo, figures, html, table};
use crate::results::{CurvePoint, PointResult, SizeBucket};

/// Parses the page as XML and returns the number of its charts.
fn parse(page: &str) -> Result<usize, roxmltree::Error> {
    let body = page.strip_prefix("<!DOCTYPE html>\n").expect("starts with the doctype");
    let document = roxmltree::Document::parse(body)?;
    let is_chart = |n: &roxmltree::Node<'_, '_>| n.attribute("class") == Some("chart");
    Ok(document.descendants().filter(is_chart).count())
}

#[test]
fn pages_are_whole() {
    // Two percentiles, two charts of latency, two of the queues.
    let page = demo::transports().page();
    assert_eq!(parse(&page), Ok(6));
    // The same charts for each of ten loads, and over the load the statistics of slowdown and latency that are known, and goodput.
    assert_eq!(parse(&demo::sweep().page()), Ok(60 + 7));
    // Thirty values of one key share the charts.
    assert_eq!(parse(&demo::tuning().page()), Ok(6 + 7));
}

/// The page without its script.
fn without_script(page: &str) -> String {
    assert_eq!(page.matches(&figures::script()).count(), 1);
    page.replace(&figures::script(), "")
}

#[test]
fn pages_are_self_contained() {
    let page = without_script(&demo::sweep().page());
    let page =
        page.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xhtml", "");
    // Links lead to files next to the page only.
    let page = page.replace("href=\"points.csv\"", "");
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script>"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.len() < 1_500_000, "{} bytes", page.len());
    // It writes the name of a namespace, and the name of a clip path of the same page.
    let script = figures::script().replace("http://www.w3.org/2000/svg", "").replace("url(#", "");
    for outside in ["http", "url(", "import", "fetch", "XMLHttp", "eval(", "innerHTML", "src"] {
        assert!(!script.contains(outside), "{outside}");
    }
}

#[test]
fn points_with_other_buckets_have_tables_of_their_own() {
    let mut report = demo::transports();
    report.points[2]
        .summary
        .by_size
        .iter_mut()
        .for_each(|bucket| bucket.up_to_bytes = bucket.up_to_bytes.map(|edge| edge / 3));
    let text = table::render(
        &report.points,
        None,
        120,
        table::Style { color: false, unicode: false, wide: false },
    );
    let (_, by_size) = text.split_once("\nSlowdown by message size\n").expect("a heading");
    let line = |name: &str| by_size.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((line("homa"), line("dctcp"), line("tcp")), (1, 1, 1), "{by_size}");
    let (first, second) = by_size.split_once("\n\n").expect("two tables");
    assert!(first.contains("<= 1 KB") && !first.contains("<= 333 B"), "{first}");
    assert!(second.contains("<= 333 B") && !second.contains("<= 1 KB"), "{second}");
    let page = report.page();
    assert!(parse(&page).is_ok());
    assert_eq!(page.matches(">\u{2264} 333 B</th>").count(), 1);
}

#[test]
fn left_out_messages_are_reported() {
    let mut report = demo::transports();
    assert!(!report.page().contains("<dt>Left out</dt>"));
    let messages = &mut report.points[2].summary.messages;
    messages.left_out = messages.unfinished;
    let page = report.page();
    assert!(page.contains("<dt>Left out</dt>"));
    assert!(page.contains("and are left out of all statistics"));
    assert!(page.contains("Lowest p99 slowdown: homa"), "they don't make a winner");
}

#[test]
fn missing_messages_are_reported_prominently() {
    let page = demo::transports().page();
    assert!(page.contains("tcp: of 10,000 messages 3 failed and 9 were unfinished"));
    let mut report = demo::transports();
    report.points.truncate(2);
    assert!(!report.page().contains("Messages are missing"));
}

#[test]
fn missing_messages_never_win() {
    let mut report = demo::transports();
    report.points[2].summary.slowdown.p99 = 1.0;
    let page = report.page();
    assert!(page.contains("Lowest p99 slowdown: homa"), "{page}");
    assert!(!page.contains("<b>1.00</b>"));
}

#[test]
fn text_from_outside_stays_text() {
    let evil = "</style><script>alert('x')</script>&\"\u{0}\u{ffff}\u{1b}[2J";
    let mut report = demo::transports();
    report.head.title = evil.to_owned();
    report.head.description = evil.to_owned();
    report.head.scenario_toml = evil.to_owned();
    report.head.command = evil.to_owned();
    report.head.version = evil.to_owned();
    report.head.facts = vec![(evil.to_owned(), evil.to_owned())];
    for point in &mut report.points {
        point.label = format!("{evil}{}", point.label);
        point.summary.label.clone_from(&point.label);
        point.variant = vec![(evil.to_owned(), evil.to_owned())];
        point.summary.end = evil;
        point.summary.drops_by_reason = [(evil.to_owned(), 1.into())].into_iter().collect();
    }
    let page = report.page();
    assert!(!page.contains("<script>alert"));
    // One with the data of each of six charts, and the page's own.
    assert_eq!((parse(&page), page.matches("<script").count()), (Ok(6), 7));
    assert_eq!(escape("a<b>&\"'\u{1}"), "a&lt;b&gt;&amp;&quot;&#39;\u{fffd}");
}

#[test]
fn nothing_to_show() {
    let page = html::render(&Head::default(), &[]);
    assert_eq!(parse(&page), Ok(0));
    assert!(page.contains("no points"));

    // Without sizes there is nothing to show by size.
    let page = html::render(&Head::default(), &[demo::unknown()]);
    assert_eq!(parse(&page), Ok(0));
    assert!(!page.contains("Queues in the switches"), "a section without a chart");
    let page = without_script(&page);
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn one_point_is_drawn() {
    let mut point = demo::transports().points.remove(0);
    point.slowdown_curve.truncate(1);
    point.latency_cdf = vec![(5.0, 1.0)];
    point.queue_series.truncate(1);
    let page = html::render(&Head::default(), &[point]);
    // A curve over a single size would be a dot, and one message has no tail of a distribution.
    assert_eq!(parse(&page), Ok(3));
    assert!(!page.contains(">no data<"));
    assert!(!without_script(&page).contains("NaN"));
}

/// Every line of the page has a box in a legend of its section, and a rule by which the box hides it.
#[test]
fn legends_hide_their_lines() {
    for report in [demo::transports(), demo::sweep(), demo::tuning()] {
        let page = report.page();
        for section in page.split("<section>").skip(1) {
            for line in section.split("<g class=\"line ").skip(1) {
                let class = line.split('"').next().and_then(|it| it.rsplit(' ').next()).unwrap();
                let input =
                    format!("<input type=\"checkbox\" checked=\"checked\" class=\"{class}\"/>");
                assert!(section.contains(&input), "{class}");
                assert!(page.contains(&format!(
                    "input.{class}:not(:checked)) .line.{class}{{display:none}}"
                )));
            }
        }
    }
}

/// The latency and queues of the demonstration are lines without marks.
#[test]
fn lines_without_marks_show_their_values() {
    let page = demo::transports().page();
    assert!(page.matches("class=\"value\"").count() > 3 * 16);
    assert!(!without_script(&page).contains("NaN"));
}

#[test]
fn goodput_over_time_is_drawn_by_stream() {
    let mut report = demo::incast();
    for point in &mut report.points {
        point.goodput.interval = rackweave_core::Span::from_us(10);
        point.goodput.bytes = vec![vec![12_500, 25_000], vec![0, 12_500]];
    }
    let page = report.page();
    assert!(page.contains("Goodput over time") && page.contains("incast (homa)"));
    let samples: Vec<f64> = report.points[0].goodput_samples().map(|sample| sample.gbps).collect();
    assert_eq!(samples, [10.0, 20.0, 0.0, 10.0]);
    assert!(!demo::transports().page().contains("Goodput over time"));
}

#[test]
fn standalone_charts_bring_their_own_colours() {
    let report = demo::transports();
    let chart = charts::slowdown_chart(&report.points, Percentile::P99, "Who wins");
    let text = chart.render(Theme::Standalone);
    let document = roxmltree::Document::parse(&text).unwrap();
    let root = document.root_element();
    assert!(root.has_attribute("width") && root.has_attribute("height"));
    assert!(text.contains("<style>") && !text.contains("var("));
    for name in ["Who wins", "homa", "dctcp", "tcp"] {
        assert!(document.descendants().any(|n| n.text() == Some(name)), "{name}");
    }
    assert!(charts::slowdown_chart(&[], Percentile::P50, "").series.is_empty());
}

#[test]
fn workloads_that_differ_are_drawn_by_size() {
    let mut report = demo::transports();
    let by_count = charts::sections(&report.points).remove(0).rows[0].charts[0].x.scale;
    assert_eq!(by_count, Scale::Linear);
    for step in &mut report.points[1].slowdown_curve {
        step.size_bytes *= 3;
    }
    let by_size = charts::sections(&report.points).remove(0).rows[0].charts[0].x.scale;
    assert_eq!(by_size, Scale::Log);
}

/// A third of the messages have the smallest size, as with W5: the axis begins there and has its name once.
#[test]
fn sizes_are_named_once_where_the_curves_begin() {
    let mut report = demo::transports();
    for point in &mut report.points {
        point.slowdown_curve.retain(|step| step.count_fraction > 0.33);
        for step in point.slowdown_curve.iter_mut().take(5) {
            step.size_bytes = 64;
        }
    }
    let x = charts::sections(&report.points).remove(0).rows.remove(0).charts.remove(0).x;
    let names: Vec<&str> = x.names.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names[0], "64");
    assert_eq!(names.iter().filter(|name| **name == "64").count(), 1, "{names:?}");
    assert_eq!(x.ends, Some((0.35, 1.0)));
    assert_eq!(x.names[0].0, 0.35);
}

#[test]
fn equal_results_have_equal_pages() {
    assert_eq!(demo::sweep().page(), demo::sweep().page());
    assert_eq!(demo::incast().page(), demo::incast().page());
}

/// A page shows one statistic of slowdown and one of latency at a time, the 99th percentile first, and each choice is its own.
#[test]
fn statistics_are_chosen_without_a_script() {
    let page = without_script(&demo::incast().page());
    let choices: Vec<&str> = page.split("<fieldset").skip(1).collect();
    assert_eq!(choices.len(), 4, "over the load, and of the background streams");
    for (nth, choice) in choices.iter().enumerate() {
        let choice = choice.split("</fieldset>").next().unwrap();
        assert_eq!(choice.matches("checked=\"checked\"").count(), 1, "{choice}");
        assert_eq!(
            choice.matches(&format!("name=\"choice{nth}\"")).count(),
            choice.matches("<input").count()
        );
        let checked = choice.split("checked=\"checked\"/>").nth(1).unwrap();
        assert!(checked.starts_with("p99<"), "{choice}");
    }
}

#[test]
fn details_of_many_points_are_folded() {
    assert!(!demo::transports().page().contains("<details class=\"section\">"));
    let page = demo::sweep().page();
    assert!(page.contains("<summary><h2>Queues in the switches</h2></summary>"));
    // Of ten loads three are open.
    assert!(page.contains("<summary>7 more charts</summary>"));
}

#[test]
fn a_gap_where_a_value_is_missing() {
    let series = Series {
        label: String::new(),
        look: Look::nth(0),
        points: vec![(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 2.0)],
        stroke: 2.0,
        step: false,
        marked: false,
        notes: Vec::new(),
    };
    let axis = || Axis::new("", Scale::Linear, Quantity::Number);
    let chart = Chart {
        title: String::new(),
        x: axis(),
        y: axis(),
        series: vec![series],
        size: (300.0, 200.0),
        choice: None,
    };
    let text = chart.render(Theme::Page);
    let line = text.split("stroke-width=\"2\"").next().unwrap().rsplit("d=\"").next().unwrap();
    assert_eq!(line.matches('M').count(), 2, "{line}");
}

/// The demonstration pages are complete. With `RACKWEAVE_REPORT_DEMO` set to a directory they are also written there.
#[test]
fn the_demonstration_is_whole() {
    let mut pages = Vec::new();
    for (name, report) in [
        ("transports", demo::transports()),
        ("sweep", demo::sweep()),
        ("tuning", demo::tuning()),
        ("empty", demo::Demo { head: Head::default(), points: vec![demo::unknown()] }),
    ] {
        let page = report.page();
        assert!(page.ends_with("</html>\n"), "{name}");
        let style = table::Style { color: true, unicode: true, wide: false };
        let table = table::render(&report.points, None, 100, style);
        assert!(report.points.iter().all(|point| table.contains(&point.label)), "{name}");
        pages.extend([(format!("{name}.html"), page), (format!("{name}.txt"), table)]);
    }
    let points = demo::transports().points;
    let chart = charts::slowdown_chart(&points, Percentile::P99, "Slowdown of W4 at 80 % load");
    pages.push(("readme.svg".into(), chart.render(Theme::Standalone)));
    if let Ok(folder) = std::env::var("RACKWEAVE_REPORT_DEMO") {
        for (name, text) in pages {
            std::fs::write(std::path::Path::new(&folder).join(name), text).unwrap();
        }
    }
}

fn any_point() -> impl Strategy<Value = PointResult> {
    let number = prop_oneof![any::<f64>(), 0.0..1e6_f64, Just(f64::NAN), Just(f64::INFINITY)];
    let numbers = || number.clone();
    (
        ("[ab]", ".{0,8}", "[01]"),
        proptest::collection::vec((numbers(), numbers(), numbers(), numbers()), 0..6),
        proptest::collection::vec((any::<u64>(), any::<u64>()), 0..4),
        (any::<u64>(), any::<u64>(), numbers(), numbers()),
    )
        .prop_map(|((group, label, value), steps, buckets, totals)| {
            let variant = vec![("a.b".to_owned(), value)];
            let mut point = PointResult { label, variant, ..demo::unknown() };
            for (a, b, c, d) in steps {
                let size_bytes = b as u64;
                point.slowdown_curve.push(CurvePoint {
                    count_fraction: a,
                    size_bytes,
                    p50: c,
                    p99: d,
                });
                point.latency_cdf.push((a, b));
                let (max_bytes, total_bytes) = (c as u64, d as u64);
                point.queue_series.push(QueueSample {
                    at: Time::from_ticks(b as u64),
                    max_bytes,
                    max_switch_bytes: max_bytes,
                    total_bytes,
                });
            }
            let summary = &mut point.summary;
            summary.label = group;
            for (up_to_bytes, count) in buckets {
                let (p50, p99) = (totals.2, totals.3);
                summary.by_size.push(SizeBucket {
                    up_to_bytes: Some(up_to_bytes),
                    count,
                    mean: p50,
                    p50,
                    p99,
                    p99_by_receiver: p99,
                    latency_p50_us: p50,
                    latency_p99_us: p99,
                });
            }
            summary.messages.started = totals.0 / 64;
            summary.messages.unfinished = totals.1;
            summary.messages.failed = totals.0;
            summary.slowdown.p99 = totals.2;
            summary.goodput_gbps = totals.3;
            point
        })
}

proptest! {
    #![proptest_config(rackweave_testing::cases(64))]

    #[test]
    fn arbitrary_numbers_are_handled(points in proptest::collection::vec(any_point(), 0..12)) {
        let style = table::Style { color: true, unicode: true, wide: false };
        let text = table::render(&points, None, 100, style);
        prop_assert!(!text.contains("NaN"));
        let page = html::render(&Head::default(), &points);
        prop_assert!(parse(&page).is_ok(), "{:?}", parse(&page));
        for path in page.split(" d=\"").skip(1) {
            let path = path.split('"').next().unwrap_or_default();
            prop_assert!(!path.contains("NaN") && !path.contains("inf"), "{}", path);
        }
    }
}

/// Six runs of two transports: a line joins the three of each, and none goes from one transport to the other.
#[test]
fn lines_of_background_streams_join_runs_of_one_transport() {
    let points = demo::incast().points;
    let chart = charts::streams_chart(&points, "").unwrap();
    let places: Vec<Vec<f64>> =
        chart.series.iter().map(|it| it.points.iter().map(|(x, _)| *x).collect()).collect();
    assert_eq!(places, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]);
    assert!(chart.series.iter().all(|it| it.notes.len() == 3 && it.label == chart.series[0].label));
    // In a sweep whose transport varies fastest, too.
    let mixed: Vec<_> = [0, 3, 1, 4, 2, 5].map(|nth| points[nth].clone()).into();
    let chart = charts::streams_chart(&mixed, "").unwrap();
    let first: Vec<f64> = chart.series[0].points.iter().map(|(x, _)| *x).collect();
    assert_eq!(first, [0.0, 2.0, 4.0]);
}
