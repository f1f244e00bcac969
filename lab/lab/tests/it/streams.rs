//! Every stream counts: in warnings, in the end of a run, in the verdict and in comparisons. The scenarios are those of a trial, in which
//! each of these was missed, at a tenth of their size.

use std::path::Path;

use rackweave_lab::results::{MissingPoint, Weight};
use rackweave_lab::scenario::Scenario;
use rackweave_lab::{Batch, Results};

/// A leaf-spine with calls, and an incast of 12 hosts.
fn leaf(beside: &str, measure: &str, sweep: &str) -> Results {
    let text = format!(
        "fabric = {{ topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 8, spines = 1, host_link = '25 Gbps', core_link = '100 Gbps' }}\n\
         transport.name = 'dctcp'\n\
         workload = {{ arrivals = 'poisson', sizes = 'W2', truncate = '64 KB', exchange = 'rpc', load = 0.3 }}\n\
         measure = {{ {measure} }}\n\
         [[background]]\narrivals = 'incast'\nsizes = '256 KB'\nsenders = 12\nreceiver = 0\n{beside}\n\
         [sweep]\n{sweep}\n"
    );
    let scenario = Scenario::parse("leaf.toml", &text, Path::new("."), &[], None).unwrap();
    Batch::new(scenario).run(Some(1)).unwrap()
}

/// The measured window lies between two incasts: the first is in the warm-up.
#[test]
fn an_incast_outside_the_measured_window_is_a_warning() {
    let results = leaf("every = '5 ms'", "messages = 300", "transport.name = ['dctcp', 'homa']");
    for point in &results.points {
        assert_eq!(point.summary.background[0].messages.started, 0);
        assert_eq!(point.summary.background[0].rounds, Some(0));
    }
    let warnings: Vec<String> = results.warnings().collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let expected = "dctcp: the incast: no message started in the measured time (all done)";
    assert_eq!(warnings[0], expected);
    let json: serde_json::Value = serde_json::from_str(&results.to_json()).unwrap();
    let text = "All points: the incast: no message started in the measured time (all done)";
    assert_eq!(json["warnings"], serde_json::json!([text]));
    let text = json["verdict"][1]["text"].as_str().unwrap();
    assert!(text.contains("no message of it started in the measured time"), "{text}");
}

/// The calls of the window end long before the incast does.
#[test]
fn a_run_goes_on_until_the_streams_beside_the_measured_one_have_ended() {
    let results = leaf("start = '1050 us'", "messages = 1000", "transport.name = ['dctcp']");
    let summary = &results.points[0].summary;
    let incast = &summary.background[0];
    assert_eq!((incast.messages.started, incast.messages.completed), (12, 12));
    assert_eq!(results.warnings().next(), None);
    assert!(incast.latency_us.max > summary.window_us, "{incast:?}");
    // Over before the time limit, unless that is earlier.
    let cut = leaf(
        "start = '1050 us'",
        "messages = 1000, time_limit = '1500 us'",
        "transport.name = ['dctcp']",
    );
    let warning = cut.warnings().next().unwrap();
    assert!(
        warning.contains("the incast: of 12 messages") && warning.contains("unfinished"),
        "{warning}"
    );
}

#[test]
fn a_duration_measures_what_starts_in_it() {
    let measure = "duration = '3 ms', warmup = '1 ms', messages_csv = true";
    let results = leaf("every = '1 ms'", measure, "transport.name = ['dctcp']");
    let point = &results.points[0];
    let starts = point.messages.as_ref().unwrap().iter().map(|message| message.start.as_us_f64());
    let (first, last) = (starts.clone().fold(f64::MAX, f64::min), starts.fold(0.0, f64::max));
    assert!(
        (1000.0..1010.0).contains(&first) && (3990.0..4000.0).contains(&last),
        "{first} {last}"
    );
    assert_eq!(point.summary.window_us, 3000.0);
    // Those at 1, 2 and 3 ms; that at 4 ms is after the window.
    let incast = &point.summary.background[0];
    assert_eq!((incast.rounds, incast.messages.started), (Some(3), 36));
    let notes: Vec<String> = results.remarks(Weight::Window).collect();
    let few = "dctcp: the incast occurs only a few times (3) in the measured window of 3.00 ms";
    assert!(notes.iter().any(|note| note.starts_with(few)), "{notes:?}");
}

/// What disturbs one half of the window shows in its percentile, and steady load does not.
#[test]
fn a_window_whose_halves_differ_is_too_short() {
    let notes = |messages: u32| {
        let text = format!(
            "fabric = {{ topology = 'single-switch', hosts = 8, host_link = '25 Gbps' }}\ntransport.name = 'dctcp'\n\
             workload = {{ arrivals = 'poisson', sizes = '2 KB', load = 0.2 }}\n\
             measure = {{ duration = '4 ms', warmup = '2 ms' }}\n\
             [[background]]\narrivals = 'incast'\nsizes = '256 KB'\nreceiver = 0\nstart = '1900 us'\nmessages_per_sender = {messages}\n"
        );
        let scenario = Scenario::parse("halves.toml", &text, Path::new("."), &[], None).unwrap();
        let results = Batch::new(scenario).run(Some(1)).unwrap();
        let notes = results.remarks(Weight::Window).collect::<Vec<_>>();
        (notes, results.points[0].summary.halves.unwrap())
    };
    // Into both halves, and through the first one only.
    let (steady, halves) = notes(7);
    assert_eq!(steady, Vec::<String>::new(), "{halves:?}");
    let (disturbed, halves) = notes(3);
    assert_eq!(disturbed.len(), 1, "{halves:?}");
    let text = "dctcp: the measured window of 4.00 ms is too short: p99 slowdown in its halves is ";
    assert!(disturbed[0].starts_with(text), "{disturbed:?}");
}

/// Results of a sweep that lacks points, as when it is interrupted.
fn partial(results: &Results, is_missing: fn(&str, u64) -> bool) -> Results {
    let mut partial = results.clone();
    partial.summary.interrupted = true;
    for point in &results.points {
        let seed = point.summary.set["seed"].as_u64().unwrap();
        if is_missing(&point.summary.label, seed) {
            let (set, label) = (point.summary.set.clone(), point.summary.label.clone());
            partial.summary.missing.push(MissingPoint { set, label, seed });
        }
    }
    partial.points.retain(|point| {
        !is_missing(&point.summary.label, point.summary.set["seed"].as_u64().unwrap())
    });
    partial
}

/// The worst seed is the one that does not end: without it, the others' mean is no mean of all, and nobody wins by it.
#[test]
fn a_seed_without_results_is_named_and_wins_nothing() {
    let sweep = "transport.name = ['dctcp', 'homa']\nseed = [1, 2, 3]";
    let whole = leaf("start = '100 us'", "messages = 300", sweep);
    let wide = rackweave_lab::report::table::Style { color: false, unicode: false, wide: false };
    assert_eq!(whole.incomplete(), None);
    let text = whole.to_table(200, wide);
    assert!(text.contains("Lowest p99 slowdown: homa"), "{text}");
    assert!(!text.contains("no results"), "{text}");

    let of_seed = partial(&whole, |label, seed| label == "homa" && seed == 2);
    let text = of_seed.to_table(200, wide);
    let missing = "The run was interrupted: 1 of 6 points has no results: homa, seed 2";
    assert!(text.contains(missing), "{text}");
    assert!(text.contains("homa: means without seed 2, which did not end"), "{text}");
    assert!(!text.contains("Lowest p99 slowdown"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&of_seed.to_json()).unwrap();
    assert_eq!(json["missing"][0]["seed"], 2);
    assert_eq!(json["over_seeds"][1]["over_seeds"]["missing"], serde_json::json!([2]));
    assert_eq!(json["verdict"][0]["lowest"], serde_json::json!([]));

    // All of its seeds: nobody can be said to be better than it.
    let of_homa = partial(&whole, |label, _| label == "homa");
    let text = of_homa.to_table(200, wide);
    assert!(
        text.contains("3 of 6 points have no results: homa, seed 1; homa, seed 2; homa, seed 3"),
        "{text}"
    );
    assert!(!text.contains("Lowest"), "{text}");
}

#[test]
fn a_partial_report_says_so_and_how_all_of_it_is_run() {
    let text = "fabric = { topology = 'single-switch', hosts = 4 }\ntransport.name = 'homa'\n\
                workload = { arrivals = 'permutation', sizes = '10 KB' }\n\
                sweep = { seed = [1, 2, 3], fabric.hosts = [4, 5] }";
    let scenario = Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap();
    assert_eq!(scenario.one_seed(), None, "`--seed` would run a third of it");
    let command = rackweave_lab::command_line::run("x.toml", &[], None, scenario.one_seed());
    assert_eq!(command, "rackweave run x.toml");
    let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();
    let page = results.to_html(&scenario, &command);
    assert!(page.contains("All runs went on until") && page.contains("seed 1, 2, 3:"));
    assert!(!page.contains("These results are partial"));
    let page = partial(&results, |_, seed| seed == 3).to_html(&scenario, &command);
    assert!(page.contains("<strong>These results are partial.</strong>"));
    assert!(
        page.contains(
            "2 of 6 points have no results: homa, seed 3, hosts 4; homa, seed 3, hosts 5"
        ),
        "{page}"
    );
    assert!(!page.contains("All runs went on until"));

    // The reports of a sweep that was really stopped name what was not run.
    let batch = Batch::new(scenario);
    batch.cancel();
    let stopped = batch.run(Some(1)).unwrap();
    assert_eq!((stopped.points.len(), stopped.summary.missing.len()), (0, 6));
}

/// Messages for two hosts that are more than their links: the long ones starve, the backlog grows, and the run ends long before its time
/// limit. With half of it there is a steady state.
#[test]
fn overload_ends_a_run_and_says_for_what_it_waited() {
    let run = |load: f64| {
        let text = format!(
            "fabric = {{ topology = 'single-switch', hosts = 8, host_link = '25 Gbps' }}\ntransport.name = 'homa'\n\
             workload = {{ arrivals = 'poisson', sizes = 'W4', truncate = '1 MB', load = {load}, receivers = '0-1' }}\n\
             measure.messages = 2000\n\
             sweep.transport.name = ['homa', 'dctcp']\n"
        );
        let scenario = Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap();
        assert_eq!(scenario.overload().is_empty(), load < 0.3);
        Batch::new(scenario).run(Some(1)).unwrap()
    };
    let results = run(0.4);
    for point in &results.points {
        let summary = &point.summary;
        assert_eq!(summary.end, "overloaded", "{}: {:?}", point.label, summary.messages);
        assert!(summary.simulated_us < 500e3, "{}", summary.simulated_us);
        let growth = summary.backlog.unwrap();
        assert!(growth.to_bytes > growth.from_bytes, "{growth:?}");
        let first = summary.waiting.first().expect("messages wait");
        assert!(first.left_bytes.unwrap() > 0, "{first:?}");
        let warning = summary.warning().unwrap();
        assert!(warning.contains("unfinished messages grew from"), "{warning}");
        assert!(warning.contains("waits for host"), "{warning}");
    }
    // With half of it both end.
    let steady = run(0.15);
    assert_eq!(steady.warnings().collect::<Vec<_>>(), Vec::<String>::new());
}

/// The machine's clock ends a point, which then counts as unfinished.
#[test]
fn a_point_limit_ends_points_and_keeps_what_is_known() {
    let text = "fabric = { topology = 'single-switch', hosts = 8 }\ntransport.name = 'dctcp'\n\
                workload = { arrivals = 'poisson', sizes = 'W4', load = 0.5 }\n\
                measure = { messages = 'unlimited', time_limit = '1000 s', sample_every = '0 s' }";
    let scenario = Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap();
    let limit = std::time::Duration::from_millis(300);
    let results = Batch::new(scenario).with_point_limit(Some(limit)).run(Some(1)).unwrap();
    let summary = &results.points[0].summary;
    assert_eq!(summary.end, "point limit");
    assert!(summary.messages.completed > 0);
    let warning = summary.warning().unwrap();
    assert!(warning.contains("ended by --point-limit"), "{warning}");
    assert!(!summary.is_complete());
}

/// The packets of a point end it, which then counts as unfinished: at the same time on any machine.
#[test]
fn a_hop_limit_ends_points_at_the_same_time() {
    let text = "fabric = { topology = 'single-switch', hosts = 8 }\ntransport.name = 'dctcp'\n\
                workload = { arrivals = 'poisson', sizes = 'W4', load = 0.5 }\n\
                measure = { messages = 'unlimited', time_limit = '1000 s', hop_limit = 200_000 }";
    let run = || {
        let scenario = Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap();
        let results = Batch::new(scenario).run(Some(1)).unwrap();
        let summary = &results.points[0].summary;
        assert_eq!(summary.end, "hop limit");
        let warning = summary.warning().unwrap();
        assert!(warning.ends_with("(hop limit)"), "{warning}");
        assert!(summary.messages.completed > 0 && !summary.is_complete());
        (summary.messages, summary.slowdown.p99.to_bits())
    };
    assert_eq!(run(), run());
}

/// All lines that are alike are printed once.
#[test]
fn a_sweep_is_explained_in_few_lines() {
    let text = "fabric = { topology = 'single-switch', hosts = 8 }\ntransport.name = 'dctcp'\n\
                workload = { arrivals = 'poisson', sizes = 'W4', load = 0.5 }\nmeasure.messages = 100\n\
                sweep = { workload.load = [0.3, 0.5, 0.99], seed = [1, 2, 3] }";
    let scenario = Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap();
    let text = scenario.explain();
    let (points, _) = text.split_once("# With all defaults").unwrap();
    assert_eq!(points.matches("  longest path ").count(), 1, "{points}");
    // A row for the seeds of a load, with the range of what they differ in.
    let rows: Vec<&str> = points.lines().filter(|line| line.contains("1, 2, 3")).collect();
    assert_eq!(rows.len(), 3, "{points}");
    assert!(rows[0].trim_start().starts_with("0.3 ") && rows[0].contains(" to "), "{points}");
    // Only the load of 0.99 has the mark, and the legend.
    assert_eq!(points.matches(" % !").count(), 1, "{points}");
    assert!(rows[2].contains(" % !") && points.contains("  !  offered to a link"), "{points}");
    let overload = scenario.overload();
    assert_eq!(overload.len(), 2, "{overload:?}");
    assert!(overload[0].starts_with("3 of 9 points: offered by host 0: 1.0"), "{overload:?}");
}
