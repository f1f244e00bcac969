//! What a user sees for each kind of mistake: file, line and key, the place underlined, and what
//! would be right. Reviewed as snapshots.

use std::path::Path;

use miette::{GraphicalReportHandler, GraphicalTheme};
use rackweave_lab::list::{Topic, items};
use rackweave_lab::{Scenario, ScenarioError};

const GOOD: &str = r#"[fabric]
topology = "leaf-spine"
leaves = 2
hosts_per_leaf = 4
spines = 2

[transport]
name = "homa"

[workload]
arrivals = "poisson"
sizes = "W4"
load = 0.5
"#;

fn shown(error: &ScenarioError) -> String {
    let handler =
        GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor()).with_width(100);
    let mut text = String::new();
    handler.render_report(&mut text, error).unwrap();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

fn parse(text: &str, sets: &[&str]) -> Result<Scenario, ScenarioError> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Scenario::parse("test.toml", text, Path::new("tests/data"), &sets, None)
}

/// The good scenario with one line replaced (or, for an empty line, with something added).
fn with(line: &str, by: &str) -> String {
    if line.is_empty() {
        return format!("{GOOD}{by}\n");
    }
    assert!(GOOD.contains(line), "{line}");
    GOOD.replace(line, by)
}

fn error(text: &str) -> String {
    shown(&parse(text, &[]).expect_err("this scenario is wrong"))
}

fn set_error(sets: &[&str]) -> String {
    shown(&parse(GOOD, sets).expect_err("this argument is wrong"))
}

#[test]
fn the_good_scenario_is_good() {
    assert_eq!(parse(GOOD, &[]).unwrap().points.len(), 1);
}

macro_rules! mistakes {
    ($($name:ident: $text:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(error(&$text));
        })*
    };
}

mistakes! {
    unknown_key_in_a_table: with("spines = 2", "spine = 2");
    unknown_key_far_from_all_others: with("spines = 2", "spines = 2\ncolour = \"red\"");
    datagrams_that_are_answered: with(
        "name = \"homa\"\n\n[workload]", "name = \"datagram\"\n\n[workload]\nexchange = \"rpc\"");
    rate_beyond_the_link: with("arrivals = \"poisson\"\nsizes = \"W4\"\nload = 0.5",
        "arrivals = \"periodic\"\nsizes = \"1 KB\"\nrate = \"11 Gbps\"");
    label_that_is_none: with("name = \"homa\"", "name = \"homa\"\nlabel = \"\"");
    label_that_is_a_number: with("name = \"homa\"", "name = \"homa\"\nlabel = 3");
    queues_that_are_never_measured: with("[workload]", "[measure]\nqueues_from = \"10 s\"\n[workload]");
    delay_longer_than_any: with("leaves = 2", "leaves = 2\nhost_link_delays = [\"1 us\", \"11 s\"]");
    a_value_that_is_swept_twice: with("[workload]", "[sweep]\nseed = [1, 2, 1]\n[workload]");
    a_case_that_is_there_twice: with("[workload]",
        "[sweep]\ncases = [{ workload.load = 0.3 }, { workload.load = 0.5 }, { workload.load = 0.3 }]\n[workload]");
    a_leaf_spine_without_spines: with("spines = 2", "");
    spines_that_follow_from_half_of_what_they_need: with("spines = 2", "core_link = \"10 Gbps\"");
    unknown_table: with("[workload]", "[wokload]");
    unknown_transport: with("\"homa\"", "\"hmoa\"");
    unknown_topology: with("\"leaf-spine\"", "\"torus\"");
    wrong_unit: with("leaves = 2", "leaves = 2\nhost_link = \"10 GB\"");
    number_without_unit: with("leaves = 2", "leaves = 2\nhost_link = 10");
    text_where_a_number_belongs: with("load = 0.5", "load = \"half\"");
    load_of_zero: with("load = 0.5", "load = 0");
    load_above_one: with("load = 0.5", "load = 1.2");
    zero_hosts: with("hosts_per_leaf = 4", "hosts_per_leaf = 0");
    one_host: with("topology = \"leaf-spine\"\nleaves = 2\nhosts_per_leaf = 4\nspines = 2",
        "topology = \"single-switch\"\nhosts = 1");
    odd_k: with("topology = \"leaf-spine\"\nleaves = 2\nhosts_per_leaf = 4\nspines = 2",
        "topology = \"fat-tree\"\nk = 5");
    key_of_another_topology: with("spines = 2", "spines = 2\nk = 4");
    key_missing: with("leaves = 2\n", "");
    table_missing: with("[transport]\nname = \"homa\"\n", "");
    key_of_another_transport: with("name = \"homa\"", "name = \"homa\"\nmin_rto = \"1 ms\"");
    ndp_without_trimming: with("\"homa\"", "\"ndp\"");
    ndp_that_asks_after_the_peer_is_dead: with("name = \"homa\"",
        "name = \"ndp\"\nmin_rto = \"1 s\"\n\n[fabric.switch]\ntrim = true");
    phost_with_no_free_tokens: with("name = \"homa\"", "name = \"phost\"\nphost.free_tokens = 0");
    unknown_distribution: with("\"W4\"", "\"W6\"");
    homa_window_as_a_share_of_nothing: with("name = \"homa\"", "name = \"homa\"\nwindow = \"0 B\"");
    homa_without_grants_to_the_oldest:
        with("name = \"homa\"", "name = \"homa\"\nfifo_grant_increment = \"0 B\"");
    homa_that_never_gives_up: with("name = \"homa\"", "name = \"homa\"\ntimeout_resends = 0");
    homa_that_asks_too_late: with("name = \"homa\"", "name = \"homa\"\nhoma.resend_ticks = 1000");
    homa_that_tries_for_ever: with("name = \"homa\"",
        "name = \"homa\"\nresend_interval = 65535\ntimeout_resends = 65535");
    sizes_that_homa_does_not_take: with("name = \"homa\"\n\n[workload]\narrivals = \"poisson\"\nsizes = \"W4\"",
        "name = \"homa\"\nwindow = \"1 B\"\n\n[workload]\narrivals = \"poisson\"\nsizes = \"5 GB\"");
    sizes_that_the_linux_profile_does_not_take: with("name = \"homa\"", "name = \"homa\"\nprofile = \"linux\"");
    response_that_homa_does_not_take:
        with("load = 0.5", "load = 0.5\nexchange = \"rpc\"\nresponse = \"5 GB\"");
    background_with_sizes_that_homa_does_not_take: with("",
        "[[background]]\narrivals = \"permutation\"\nsizes = \"5 GB\"\ntransport = { name = \"homa\" }");
    background_with_sizes_that_the_transport_of_both_does_not_take: with("",
        "[[background]]\narrivals = \"permutation\"\nsizes = \"5 GB\"");
    missing_file_of_sizes: with("\"W4\"", "\"nosuch.csv\"");
    bad_line_in_a_file_of_sizes: with("\"W4\"", "\"bad_sizes.csv\"");
    bad_line_in_a_trace: with("arrivals = \"poisson\"\nsizes = \"W4\"\nload = 0.5",
        "arrivals = \"trace\"\nfile = \"bad_trace.csv\"");
    host_of_a_trace_that_is_not_there: with("arrivals = \"poisson\"\nsizes = \"W4\"\nload = 0.5",
        "arrivals = \"trace\"\nfile = \"far_trace.csv\"");
    key_of_other_arrivals: with("load = 0.5", "load = 0.5\noutstanding = 3");
    ramp_of_an_open_loop: with("load = 0.5", "load = 0.5\nramp = \"20 ms\"");
    ramp_beyond_the_warm_up: with("arrivals = \"poisson\"\nsizes = \"W4\"\nload = 0.5",
        "arrivals = \"closed-loop\"\nsizes = \"W4\"\nramp = \"20 ms\"");
    stream_key_of_rpcs: with("load = 0.5", "load = 0.5\nexchange = \"rpc\"\nstreams_per_pair = 2");
    rpc_without_response: with("load = 0.5", "load = 0.5\nexchange = \"rpc\"\nresponse = \"none\"");
    application_that_copies_nothing: with("", "[workload.application]\ncopy_rate = \"0 Gbps\"");
    receiver_that_is_not_there: with("arrivals = \"poisson\"\nsizes = \"W4\"\nload = 0.5",
        "arrivals = \"incast\"\nsizes = \"W4\"\nreceiver = 8");
    buffer_below_a_packet: with("", "[fabric.switch]\nbuffer = \"1 KB\"");
    not_toml: with("leaves = 2", "leaves = = 2");
    key_twice: with("leaves = 2", "leaves = 2\nleaves = 3");
    empty: "";
    only_a_comment: "# nothing\n";
    sweep_over_an_unknown_key: with("", "[sweep]\n\"transport.nmae\" = [\"homa\"]");
    sweep_over_nothing: with("", "[sweep]\n\"workload.load\" = []");
    sweep_with_a_wrong_value: with("", "[sweep]\n\"workload.load\" = [0.2, 0.5, 1.5]");
    sweep_without_a_list: with("", "[sweep]\n\"workload.load\" = 0.2");
    sweep_over_one_key_twice: with("", "[sweep]\n\"workload.load\" = [0.2]\ncases = [{ workload.load = 0.3 }]");
    sweep_of_too_many_points: with("", &format!(
        "[sweep]\nseed = {0:?}\nmeasure.messages = {0:?}\nfabric.leaves = {0:?}\nworkload.start = {0:?}",
        [1; 11]));
    fault_at_a_wrong_place: with("", "[[faults]]\nkind = \"crash\"\nplace = \"all links\"");
    fault_at_a_host_that_is_not_there: with("", "[[faults]]\nkind = \"crash\"\nplace = \"host 8\"");
    fault_without_a_probability: with("", "[[faults]]\nkind = \"loss\"\nplace = \"all links\"");
    size_buckets_that_fall: with("", "[measure]\nsize_buckets = [\"1 KB\", \"1 KB\"]");
    capture_of_nothing: with("", "[measure]\ncapture = [\"host 3\"]");
    capture_of_a_link_that_is_not_there: with("", "[measure]\ncapture = [\"core link 4\"]");
    incasts_that_recur_in_two_ways: with("",
        "[[background]]\narrivals = \"incast\"\nsizes = \"1 MB\"\nload = 0.1\nevery = \"1 ms\"");
    incast_to_anybody_once: with("",
        "[[background]]\narrivals = \"incast\"\nsizes = \"1 MB\"\nreceiver = \"any\"");
    key_without_its_table: with("[workload]", "sizes = \"W3\"\n[workload]");
    background_with_a_wrong_load: with("",
        "[[background]]\narrivals = \"poisson\"\nsizes = \"W4\"\nload = 2\ntransport = { name = \"tcp\" }");
    time_limit_within_the_warmup: with("", "[measure]\ntime_limit = \"1 us\"");
}

#[test]
fn streams_need_a_transport_that_has_some() {
    let text = with("load = 0.5", "load = 0.5\nexchange = \"stream\"").replace("homa", "phost");
    let shown = error(&text);
    assert!(shown.contains("phost has no streams"), "{shown}");
    assert!(shown.contains("exchange = \"stream\"") && shown.contains("here"), "{shown}");
    assert!(shown.contains("stream = \"unary\""), "what would do: {shown}");
    let unary = text.replace("\"stream\"", "\"stream\"\nstream = \"unary\"");
    assert_eq!(parse(&unary, &[]).unwrap().points.len(), 1);
}

#[test]
fn arguments_are_underlined_themselves() {
    let arguments = [
        "workload.load=1.5",
        "workload.lod=0.5",
        "workload.load",
        "=3",
        "fabric.leaves.x=3",
        "workload.sizes=[1,",
        "sweep.workload.load=[]",
    ];
    let errors: Vec<String> = arguments.iter().map(|set| set_error(&[set])).collect();
    insta::assert_snapshot!(errors.join("\n\n"));
}

#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("binary.toml");
    std::fs::write(&binary, b"[fabric]\n\xff\xfe\x00").unwrap();
    let paths = [folder.path().to_owned(), folder.path().join("nosuch.toml"), binary];
    let errors: Vec<String> = paths
        .iter()
        .map(|path| {
            let path = path.to_str().unwrap();
            Scenario::load(path, &[], None).unwrap_err().to_string().replace(path, "PATH")
        })
        .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn a_name_near_a_built_in_one_is_suggested() {
    let error = Scenario::load("quikstart", &[], None).unwrap_err();
    assert!(shown(&error).contains("did you mean `quickstart`?"));
}

#[test]
fn every_transport_has_patience_of_at_most_an_hour() {
    for transport in items(Topic::Transports) {
        let name = &*transport.name;
        if name == "datagram" || transport.facts.contains_key("workload") {
            continue;
        }
        let queues = if name == "pfabric" { "pfabric" } else { "trim" };
        for (patience, is_good) in [("2 s", true), ("0 s", true), ("2 h", false), ("3601 s", false)]
        {
            let keys = format!("name = \"{name}\"\npatience = \"{patience}\"");
            let read = parse(
                &with("name = \"homa\"", &keys),
                &["workload.truncate=1 MB", &format!("fabric.switch.{queues}=true")],
            );
            assert_eq!(read.is_ok(), is_good, "{name}, {patience}: {:?}", read.err());
        }
    }
}
