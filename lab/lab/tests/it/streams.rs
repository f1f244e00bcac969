//! Every stream counts: in warnings, in the end of a run, in the verdict and in comparisons. The scenarios are those of a trial, in which
//! each of these was missed, at a tenth of their size.

use std::path::Path;

use rackweave_lab::results::Weight;
use rackweave_lab::scenario::Scenario;
use rackweave_lab::{Batch, Results};

/// A leaf-spine with calls, and an incast of 12 hosts beside them.
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
