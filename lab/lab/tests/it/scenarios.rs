//! Sweeps, `--set`, resolved scenarios, and arbitrary bytes.

use std::path::Path;

use proptest::prelude::*;
use rackweave_core::{Bytes, Rate, Span};
use rackweave_lab::{Batch, Scenario, builtin};
use rackweave_sim::config::{BufferConfig, Marking, Topology};
use rackweave_transport::{TransportConfig, exchange, phost, polo};
use rackweave_workload::{Exchange, Pattern, StreamMode};
use serde_json::json;

const BASE: &str = r#"
[fabric]
topology = "leaf-spine"
leaves = 2
hosts_per_leaf = 4
spines = 2

[transport]
name = "homa"

[transport.tcp]
min_rto = "5 ms"

[workload]
arrivals = "poisson"
sizes = "W4"
load = 0.5
"#;

fn parse(text: &str, sets: &[&str]) -> Scenario {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Scenario::parse("test.toml", text, Path::new("tests/data"), &sets, None).unwrap()
}

fn sets(scenario: &Scenario) -> Vec<String> {
    let values = |set: &Vec<(String, serde_json::Value)>| {
        let words: Vec<String> = set.iter().map(|(key, value)| format!("{key}={value}")).collect();
        words.join(" ")
    };
    scenario.points.iter().map(|point| values(&point.set)).collect()
}

#[test]
fn the_first_key_of_a_sweep_varies_slowest() {
    let text = format!(
        "{BASE}\n[sweep]\n\"transport.name\" = ['tcp', 'homa']\nworkload.load = [0.2, 0.8]"
    );
    let scenario = parse(&text, &[]);
    assert_eq!(
        sets(&scenario),
        [
            "transport.name=\"tcp\" workload.load=0.2",
            "transport.name=\"tcp\" workload.load=0.8",
            "transport.name=\"homa\" workload.load=0.2",
            "transport.name=\"homa\" workload.load=0.8",
        ]
    );
    assert_eq!(scenario.points[1].transport, "tcp");
    assert_eq!(scenario.points[1].set[1], ("workload.load".into(), json!(0.8)));
}

#[test]
fn a_transports_own_table_holds_where_it_is_chosen() {
    let text = format!("{BASE}\n[sweep]\ntransport.name = ['tcp', 'dctcp']");
    let min_rto = |point: usize| match &parse(&text, &[]).points[point].config.streams[0].transport
    {
        TransportConfig::Tcp(config) => config.min_rto,
        other => panic!("not TCP: {other:?}"),
    };
    assert_eq!(min_rto(0), Span::from_ms(5));
    assert_eq!(min_rto(1), Span::from_ms(1));
}

#[test]
fn a_key_of_one_transport_is_skipped_by_others_of_a_sweep() {
    let text = BASE
        .replace("name = \"homa\"", "name = \"homa\"\nprofile = \"linux\"")
        .replace("sizes = \"W4\"", "sizes = \"W4\"\ntruncate = \"1 MB\"");
    let text = format!("{text}\n[sweep]\ntransport.name = ['homa', 'tcp']");
    assert_eq!(parse(&text, &[]).points.len(), 2);
}

#[test]
fn keys_of_dcpim_reach_its_configuration() {
    let dcpim = |more: &[&str]| {
        let sets = [&["transport.name=dcpim"], more].concat();
        match parse(BASE, &sets).points[0].config.streams[0].transport.clone() {
            TransportConfig::DcPim(config) => config,
            other => panic!("not dcPIM: {other:?}"),
        }
    };
    let paper = dcpim(&[]);
    assert_eq!((paper.rounds, paper.channels, paper.srpt_rounds, paper.prompt), (4, 4, 1, true));
    assert_eq!(paper.epoch, paper.round * 4);
    let beta = dcpim(&["transport.beta=2.6", "transport.rounds=2", "transport.channels=8"]);
    let twice = beta.round.ticks() as f64 / paper.round.ticks() as f64;
    assert!((twice - 2.0).abs() < 1e-3, "{twice}");
    assert_eq!((beta.rounds, beta.channels, beta.epoch), (2, 8, beta.round * 2));
    let config = dcpim(&[
        "transport.round=20 us",
        "transport.alpha=1.5",
        "transport.dcpim.free_packets=3",
        "transport.token_window=5",
        "transport.clock_skew=1 ms",
        "transport.prompt=false",
        "transport.srpt_rounds=0",
        "transport.data_levels=1",
    ]);
    assert_eq!((config.round, config.epoch), (Span::from_us(20), Span::from_us(120)));
    assert_eq!((config.free_packets, config.token_window), (3, 5));
    assert_eq!((config.prompt, config.srpt_rounds, config.data_levels), (false, 0, 1));
    assert_eq!(config.clock_skew, Span::from_ms(1));
    let hosts = dcpim(&["transport.profile=hosts"]);
    assert_eq!((hosts.round, hosts.epoch), (Span::from_us(500), Span::from_ms(2)));
}

#[test]
fn keys_of_ndp_and_phost_reach_their_configurations() {
    let transport = |sets: &[&str]| parse(BASE, sets).points[0].config.streams[0].transport.clone();
    let trim = "fabric.switch.trim=true";
    let ndp = |more: &[&str]| match transport(&[&[trim, "transport.name=ndp"], more].concat()) {
        TransportConfig::Ndp(config) => config,
        other => panic!("not NDP: {other:?}"),
    };
    let config = ndp(&[]);
    // Three round trips of 6 to 9 us, in packets of 1.23 us.
    assert!((15..=22).contains(&config.initial_window), "{}", config.initial_window);
    assert_eq!(config.min_rto, Span::from_ms(5));
    let config = ndp(&["fabric.host_link=100 Gbps", "fabric.core_link_delay=1 us"]);
    assert!((120..300).contains(&config.initial_window), "{}", config.initial_window);
    let config = ndp(&["transport.profile=polo-slides", "transport.ndp.min_rto=20 ms"]);
    assert_eq!((config.initial_window, config.max_rto), (12, Span::from_ms(20)));
    let config = ndp(&[
        "transport.initial_window=7",
        "transport.max_rto=90 ms",
        "transport.pull_percent=95",
        "transport.spray=false",
    ]);
    assert_eq!((config.initial_window, config.pull_percent, config.common.spray), (7, 95, false));
    assert_eq!(config.max_rto, Span::from_ms(90));

    let phost = |more: &[&str]| match transport(&[&["transport.name=phost"], more].concat()) {
        TransportConfig::PHost(config) => config,
        other => panic!("not pHost: {other:?}"),
    };
    let config = phost(&[]);
    assert_eq!((config.free_tokens, config.order), (8, phost::TokenOrder::Srpt));
    // The round trip, which is the fabric's.
    assert!((6.0..9.0).contains(&config.token_lead.as_us_f64()), "{}", config.token_lead);
    let config = phost(&["transport.profile=polo-slides"]);
    assert_eq!((config.free_tokens, config.order), (12, phost::TokenOrder::RoundRobin));
    assert_eq!(config.token_lead, Span::ZERO);
    let config = phost(&[
        "transport.free_tokens=3",
        "transport.phost.token_expiry=7 us",
        "transport.resend_after=50 us",
        "transport.order=round-robin",
        "transport.data_levels=1",
        "transport.spray=false",
    ]);
    assert_eq!(config.short_priority, config.long_priority);
    assert_eq!((config.free_tokens, config.token_window, config.common.spray), (3, 3, false));
    assert_eq!((config.token_expiry, config.resend_after), (Span::from_us(7), Span::from_us(50)));
    assert_eq!(config.order, phost::TokenOrder::RoundRobin);
}

#[test]
fn keys_of_polo_reach_its_configuration() {
    let polo = |more: &[&str]| {
        let sets = [&["transport.name=polo"], more].concat();
        match parse(BASE, &sets).points[0].config.streams[0].transport.clone() {
            TransportConfig::Polo(config) => config,
            other => panic!("not Polo: {other:?}"),
        }
    };
    assert_eq!(*polo(&[]), polo::Config::slides());
    // At 100 Gbps a round trip is longer than 12 packets.
    let far = ["fabric.host_link=100 Gbps", "fabric.core_link_delay=1 us"];
    let config = polo(&far);
    assert!((40..100).contains(&config.first_window), "{}", config.first_window);
    assert_eq!(config.max_drives, 4 * u32::from(config.first_window));
    let slides = polo(&[&far[..], &["transport.profile=polo-slides"]].concat());
    assert_eq!(*slides, polo::Config::slides());
    let hosts = polo(&["transport.profile=hosts"]);
    assert_eq!(*hosts, polo::Config::slides().for_hosts());
    let config = polo(&[
        "transport.first_window=5",
        "transport.rto=20 ms",
        "transport.recovery_1=false",
        "transport.polo.recovery_2=false",
        "transport.wasted_driving_rule=false",
        "transport.wake_in_quiet_epochs=false",
        "transport.drive_order=fewest-left",
        "transport.min_drives=60",
        "transport.pause_probe=10 ms",
        "transport.spray=true",
    ]);
    let slides = polo::Config::slides();
    let expected = polo::Config {
        common: exchange::Config { spray: true, ..slides.common },
        first_window: 5,
        rto: Span::from_ms(20),
        max_rto: Span::from_ms(20),
        recovery_1: false,
        recovery_2: false,
        wasted_driving_rule: false,
        wake_in_quiet_epochs: false,
        order: polo::DriveOrder::FewestLeft,
        min_drives: 60,
        max_drives: 60,
        pause_probe: Span::from_ms(10),
        reorder_margin: 3,
        ..slides
    };
    assert_eq!(*config, expected);
}

#[test]
fn every_message_of_the_incast_completes() {
    let sets = ["workload.senders=12", "workload.sizes=30 KB", "fabric.hosts_per_leaf=3"];
    let scenario = Scenario::load("incast", &sets.map(str::to_owned), None).unwrap();
    let trims: Vec<bool> =
        scenario.points.iter().map(|point| point.config.fabric.switch.trim.is_some()).collect();
    assert_eq!(trims, [false, false, false, true, false]);
    let results = Batch::new(scenario).run(Some(1)).unwrap();
    assert_eq!(results.warnings().next(), None);
    let names: Vec<&str> = results.points.iter().map(|point| &*point.summary.transport).collect();
    assert_eq!(names, ["homa", "dctcp", "tcp", "ndp", "phost"]);
    for point in &results.points {
        let summary = &point.summary;
        let messages = &summary.messages;
        assert_eq!((messages.started, messages.completed), (12, 12), "{}", summary.transport);
        assert_eq!(summary.trims > 0, summary.transport == "ndp", "{}", summary.transport);
    }
}

/// In the kernel TCP's acknowledgements wake no thread of the sender: a cost of each wake-up falls on whoever receives data.
#[test]
fn acknowledgements_of_the_kernels_tcp_cost_no_thread() {
    let text = "fabric = { topology = 'single-switch', hosts = 2, host_link = '1 Gbps' }\n\
                transport = { name = 'tcp' }\n\
                workload = { arrivals = 'incast', sizes = '4 MB', senders = 1 }\n\
                [host]\nprocessors = 1\nwake_cost_ns = 20000\nreceive_byte_ns = 2\n\
                [host.kernel_tcp]\nreceive_byte_ns = 2\n";
    let us = |sets: &[&str]| {
        let scenario = parse(text, sets);
        let results = Batch::new(scenario).run(Some(1)).unwrap();
        assert_eq!(results.points[0].summary.messages.completed, 1);
        results.points[0].summary.latency_us.mean
    };
    // 4 MB need 32 ms of a link of 1 Gbps, and 8 ms of the processor for data; each thread that wakes up takes it for 20 us.
    let (in_kernel, in_process) = (us(&[]), us(&["testbed.tcp=machine"]));
    assert!((33_000.0..38_000.0).contains(&in_kernel), "{in_kernel}");
    assert!(in_process > 1.2 * in_kernel, "{in_process} and {in_kernel}");
}

/// In the kernel a receiver that is busy acknowledges what it reads together, and one that is not every second segment.
#[test]
fn a_busy_receiver_acknowledges_less_often_over_the_kernels_tcp() {
    let packets_per_segment = |system_call_ns: u32| {
        let text = format!(
            "fabric = {{ topology = 'single-switch', hosts = 2, host_link = '1 Gbps' }}\n\
             transport = {{ name = 'tcp' }}\n\
             workload = {{ arrivals = 'incast', sizes = '4 MB', senders = 1 }}\n\
             [host]\n[host.kernel_tcp]\nreceive_system_call_ns = {system_call_ns}\n"
        );
        let results = Batch::new(parse(&text, &[])).run(Some(1)).unwrap();
        let summary = &results.points[0].summary;
        assert_eq!(summary.messages.completed, 1);
        // Each packet crosses two links.
        summary.packet_hops as f64 / 2.0 / (4e6_f64 / 1460.0).ceil()
    };
    let (idle, busy) = (packets_per_segment(0), packets_per_segment(100_000));
    assert!((1.49..1.52).contains(&idle), "{idle}");
    // A segment takes 12.3 us on the link, so that a read of 100 us finds eight.
    assert!((1.11..1.16).contains(&busy), "{busy}");
}

/// A message of the kernel's TCP waits for whatever the windows of other connections have put into the NIC's queue.
#[test]
fn connections_of_the_kernels_tcp_wait_in_the_queue_of_the_nic() {
    let text = "fabric = { topology = 'single-switch', hosts = 3, host_link = '1 Gbps' }\n\
                transport = { name = 'tcp' }\n\
                workload = { arrivals = 'periodic', sizes = '1 MB', rate = '500 Mbps', senders = '0-0', receivers = '1-1' }\n\
                measure = { time_limit = '200 ms', warmup = '0 s' }\n\
                [[background]]\narrivals = 'periodic'\nsizes = '1 KB'\nrate = '2 Mbps'\n\
                senders = '0-0'\nreceivers = '2-2'\n\
                [host]\n[host.kernel_tcp]\n";
    let us = |sets: &[&str]| {
        let results = Batch::new(parse(text, sets)).run(Some(1)).unwrap();
        results.points[0].summary.background[0].latency_us.mean
    };
    let (queued, polled) = (us(&[]), us(&["testbed.tcp=machine"]));
    assert!(queued > 10.0 * polled, "{queued} and {polled}");
}

#[test]
fn cases_set_several_keys_at_once() {
    let text = format!(
        "{BASE}\n[sweep]\ncases = [\n  {{ workload.sizes = 'W1', measure.messages = 7 }},\n  \
         {{ workload.sizes = 'W5', measure.messages = 3 }},\n]\nseed = [1, 2]"
    );
    let scenario = parse(&text, &[]);
    assert_eq!(scenario.points.len(), 4);
    assert_eq!(sets(&scenario)[3], "workload.sizes=\"W5\" measure.messages=3 seed=2");
    let last = &scenario.points[3].config;
    assert_eq!((last.measure.messages, last.seed), (3, 2));
    // A key that is set by hand is taken out of the cases.
    let scenario = parse(&text, &["measure.messages=9", "seed=5"]);
    assert_eq!(sets(&scenario), ["workload.sizes=\"W1\"", "workload.sizes=\"W5\""]);
    assert!(scenario.points.iter().all(|point| point.config.measure.messages == 9));
}

#[test]
fn set_replaces_values_and_sweeps() {
    let text =
        format!("{BASE}\n[sweep]\ntransport.name = ['homa', 'tcp']\nworkload.load = [0.2, 0.8]");
    let scenario = parse(&text, &["transport.name=dctcp", "fabric.host_link=25 Gbps"]);
    assert_eq!(sets(&scenario), ["workload.load=0.2", "workload.load=0.8"]);
    assert_eq!(scenario.points[0].transport, "dctcp");
    let Topology::LeafSpine { host_link, core_link, .. } =
        scenario.points[0].config.fabric.topology
    else {
        panic!("not a leaf-spine");
    };
    // Without `core_link`, the uplinks carry what the hosts send.
    assert_eq!((host_link, core_link), (Rate::from_gbps(25), Rate::from_gbps(50)));
    let scenario = parse(&text, &["sweep.workload.load=[0.1, 0.3, 0.5]"]);
    assert_eq!(scenario.points.len(), 6);
    let scenario = parse(&text, &["workload={ arrivals = 'permutation', sizes = '1 MB' }"]);
    assert_eq!(sets(&scenario), ["transport.name=\"homa\"", "transport.name=\"tcp\""]);
}

#[test]
fn values_mean_what_they_say() {
    let text = format!(
        "{BASE}\n[fabric.switch]\nbuffer = 'unlimited'\necn_threshold = '65 packets'\n\
         trim = {{ data_queue = '12304 B' }}\n[measure]\nsize_buckets = ['1 KB', '1.5 MB']"
    );
    let point = &parse(&text, &[]).points[0];
    let switch = point.config.fabric.switch;
    assert_eq!(switch.buffer, BufferConfig::PerPort { bytes: u64::MAX });
    assert_eq!(switch.marking, Marking::Above(65 * 1538));
    assert_eq!(switch.trim.unwrap().data_queue_bytes, 8 * 1538);
    assert_eq!(point.size_buckets, [1000, 1_500_000]);
    // Poisson arrivals never end: a start-up phase is cut off, and a number ends the run.
    assert_eq!(point.config.measure.warmup, Span::from_ms(1));
    assert_eq!(point.config.measure.messages, 100_000);
}

#[test]
fn oversubscription_makes_the_core_links() {
    let core = |sets: &[&str]| match &parse(BASE, sets).points[0].config.fabric.topology {
        Topology::LeafSpine { spines, core_link, .. } => (*spines, *core_link),
        other => panic!("{other:?}"),
    };
    assert_eq!(core(&["fabric.oversubscription=4"]), (2, Rate::from_gbps(5)));
    let by_link = "fabric={ topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 16, \
                   core_link = '40 Gbps', oversubscription = 2 }";
    assert_eq!(core(&[by_link]), (2, Rate::from_gbps(40)));
}

fn configs(scenario: &Scenario) -> String {
    let points = scenario.points.iter();
    points.map(|point| format!("{:?} {:?}\n", point.set, point.config)).collect()
}

#[test]
fn a_resolved_scenario_means_the_same() {
    let everything = format!(
        "name = 'all'\n{BASE}\n[[background]]\narrivals = 'incast'\nsizes = {{ uniform = ['1 KB', '1001 B'] }}\n\
         senders = '1-3'\nreceiver = 0\ntransport = {{ name = 'dctcp', min_rto = '1234567 ps' }}\n\
         [[faults]]\nkind = 'reordering'\nplace = 'core links'\nprobability = 0.01\nuntil = '1 s'\n\
         [measure]\ncapture = ['host 3 sends']\n[fabric.switch]\nshared_buffer = '1 MB'\ntrim = true\n\
         [sweep]\ncases = [{{ transport.name = 'tcp', seed = 4 }}, {{ transport.name = 'homa' }}]\n\
         workload.load = [0.1, 0.7]"
    );
    // What the first case sets is not left behind for the second.
    let cases = format!(
        "{BASE}\n[sweep]\ncases = [{{ fabric.switch.trim = true, measure.warmup = '3 ms' }}, \
         {{ transport.name = 'tcp' }}]"
    );
    let texts = builtin::SCENARIOS.iter().map(|scenario| scenario.text.to_owned());
    for text in texts.chain([BASE.to_owned(), everything, cases]) {
        let scenario = parse(&text, &["seed=77"]);
        let again = parse(&scenario.resolved, &[]);
        assert_eq!(configs(&again), configs(&scenario));
        assert_eq!(again.resolved, scenario.resolved);
        assert_eq!(again.seed, 77);
    }
}

#[test]
fn paths_of_a_resolved_scenario_lead_to_the_same_files() {
    let text = BASE.replace("\"W4\"", "\"sizes.csv\"");
    let scenario = parse(&text, &[]);
    let elsewhere =
        Scenario::parse("x.toml", &scenario.resolved, Path::new("/"), &[], None).unwrap();
    let mean = |scenario: &Scenario| {
        scenario.points[0].config.streams[0].workload.pattern.sizes().unwrap().mean()
    };
    // Half of the messages have 100 bytes, the others from 101 to 20,000.
    assert!((mean(&elsewhere) - (0.5 * 100.0 + 0.5 * 10_050.5)).abs() < 1.0);
    assert_eq!(mean(&elsewhere), mean(&scenario));
}

#[test]
fn built_in_scenarios_are_found_by_name() {
    for scenario in builtin::SCENARIOS {
        assert!(!Scenario::load(scenario.name, &[], None).unwrap().description.is_empty());
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = Scenario::parse("x.toml", &text, Path::new("."), &[], None);
    }

    #[test]
    fn arbitrary_arguments_never_panic(argument in any::<String>()) {
        let _ = Scenario::parse("x.toml", BASE, Path::new("."), &[argument], None);
    }

    #[test]
    fn a_scenario_with_anything_in_it_never_panics(
        at in 0..BASE.len(),
        cut in 0_usize..20,
        insert in "[\\PC\n]{0,12}",
    ) {
        let mut text = BASE.to_owned();
        text.replace_range(at..(at + cut).min(BASE.len()), &insert);
        if let Err(error) = Scenario::parse("x.toml", &text, Path::new("."), &[], None) {
            prop_assert!(!error.message().is_empty());
        }
    }

    #[test]
    fn arbitrary_values_of_known_keys_never_panic(
        key in prop::sample::select(vec![
            "fabric.leaves", "fabric.hosts_per_leaf", "fabric.spines", "fabric.host_link",
            "fabric.core_link", "fabric.oversubscription", "fabric.switch.buffer",
            "transport.rtt_bytes", "transport.priorities", "transport.unscheduled_levels",
            "transport.cutoffs", "transport.overcommit", "transport.scheduled_factor",
            "transport.average_shift", "transport.average_deviation", "transport.min_rtt_window",
            "transport.peer_link", "transport.back_off_packets", "workload.sizes", "workload.load",
            "workload.senders", "workload.truncate", "measure.warmup", "measure.time_limit",
            "measure.size_buckets", "measure.messages", "seed",
        ]),
        value in prop_oneof![
            any::<i64>().prop_map(|n| n.to_string()),
            (0_u64..300).prop_map(|n| n.to_string()),
            any::<f64>().prop_map(|x| format!("{x:?}")),
            any::<u64>().prop_map(|n| format!("'{} '", Bytes(n))),
            any::<u32>().prop_map(|n| format!("'{} '", Rate(n.into()))),
            any::<u64>().prop_map(|n| format!("'{} '", Span::from_ticks(n))),
            prop::collection::vec(any::<u32>().prop_map(|n| format!("'{n} B'")), 0..9)
                .prop_map(|list| format!("[{}]", list.join(", "))),
        ],
    ) {
        let set = format!("{key}={value}");
        let _ = Scenario::parse("x.toml", BASE, Path::new("."), &[set], None);
    }
}

#[test]
fn streams_and_applications_mean_what_they_say_also_when_resolved() {
    let text = format!(
        "{BASE}exchange = \"stream\"\nstream = \"unary\"\nstreams_per_pair = 3\nresponse = \"none\"\n\
         [workload.application]\ncopy_rate = \"20 Gbps\"\nper_rpc = \"2 us\"\n\
         [sweep]\n\"workload.response\" = [\"none\", \"100 B\"]"
    );
    let scenario = parse(&text, &[]);
    let workload = &scenario.points[0].config.streams[0].workload;
    let streaming = workload.streaming.unwrap();
    assert_eq!((streaming.mode, streaming.per_pair.get()), (StreamMode::Unary, 3));
    let application = workload.application;
    assert_eq!(application.copy_rate, Some(Rate::from_gbps(20)));
    assert_eq!((application.per_message, application.per_rpc), (Span::ZERO, Span::from_us(2)));
    let exchanges = scenario.points.iter().map(|p| p.config.streams[0].workload.exchange);
    assert!(exchanges.eq([Exchange::OneWay, Exchange::Respond(100)]));
    assert_eq!(configs(&parse(&scenario.resolved, &[])), configs(&scenario));
}

#[test]
fn labels_tell_cases_of_one_transport_apart() {
    let text = r#"
        fabric = { topology = "single-switch", hosts = 4 }
        workload = { arrivals = "permutation", sizes = "10 KB" }
        transport.name = "tcp"
        [sweep]
        cases = [
            { transport.name = "homa" },
            { transport.name = "tcp", transport.label = "TCP <1>", transport.initial_window = 1 },
            { transport.name = "tcp", transport.label = "TCP <2>", transport.initial_window = 2 },
        ]
    "#;
    let names = |text: &str| -> Vec<String> {
        let results = Batch::new(parse(text, &[])).run(Some(1)).unwrap();
        results.points.iter().map(|point| point.label.clone()).collect()
    };
    assert_eq!(names(text), ["homa", "TCP <1>", "TCP <2>"]);
    let swept = format!("{text}\nworkload.sizes = ['1 KB', '2 KB']");
    assert_eq!(names(&swept)[2..4], ["TCP <1>, sizes 1 KB", "TCP <1>, sizes 2 KB"]);
    let same = text.replace("TCP <2>", "TCP <1>");
    assert_eq!(names(&same)[1..], ["TCP <1>, initial_window 1", "TCP <1>, initial_window 2"]);

    let scenario = parse(text, &[]);
    let folder = tempfile::tempdir().unwrap();
    let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();
    assert_eq!(
        (&*results.points[1].summary.transport, &*results.points[1].summary.label),
        ("tcp", "TCP <1>")
    );
    let out = rackweave_lab::output::OutputDir::prepare(folder.path()).unwrap();
    out.write(&scenario, &results, "").unwrap();
    let points = std::fs::read_to_string(folder.path().join("points.csv")).unwrap();
    let lines: Vec<&str> = points.lines().collect();
    assert!(lines[0].starts_with("point,transport,label,transport.initial_window,started"));
    assert!(lines[2].starts_with("1,tcp,TCP <1>,1,4,4,0"), "{}", lines[2]);
    // The chart's series, and not what it stands for.
    let page = results.to_html(&scenario, "");
    assert!(page.contains("TCP &lt;1&gt;") && !page.contains("initial_window 1<"));
    // What was resolved says the same again.
    let again = parse(&scenario.resolved, &[]);
    assert_eq!(again.points[2].labels, ["TCP <2>"]);
}

#[test]
fn seeds_are_repetitions_and_do_not_compete() {
    let text = r#"
        fabric = { topology = "single-switch", hosts = 8 }
        [workload]
        arrivals = "poisson"
        sizes = "W2"
        load = 0.5
        [measure]
        messages = 400
        [sweep]
        transport.name = ["homa", "tcp"]
        seed = [1, 2, 3]
    "#;
    let scenario = parse(text, &[]);
    let folder = tempfile::tempdir().unwrap();
    let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();
    let out = rackweave_lab::output::OutputDir::prepare(folder.path()).unwrap();
    out.write(&scenario, &results, "").unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&read("summary.json")).unwrap();
    let p99 =
        |points: &serde_json::Value, at: usize| points[at]["slowdown"]["p99"].as_f64().unwrap();
    let points = &summary["points"];
    assert_eq!(points.as_array().unwrap().len(), 6);
    assert_ne!(p99(points, 0), p99(points, 1));
    let means = &summary["over_seeds"];
    assert_eq!(means.as_array().unwrap().len(), 2);
    let mean = (p99(points, 0) + p99(points, 1) + p99(points, 2)) / 3.0;
    assert!((p99(means, 0) - mean).abs() < 1e-9 * mean);
    assert_eq!(means[0]["over_seeds"]["seeds"], json!([1, 2, 3]));
    assert_eq!(means[0]["messages"]["completed"], json!(1200));
    assert_eq!(read("over_seeds.csv").lines().count(), 3);
    let ascii = rackweave_lab::report::table::Style { color: false, unicode: false, wide: false };
    let table = results.to_table(120, ascii);
    let rows = table.lines().filter(|line| line.starts_with("homa") || line.starts_with("tcp"));
    // One row for each transport in each of the two tables.
    assert_eq!(rows.count(), 4, "{table}");
    assert!(table.contains("Lowest p99 slowdown: homa") && table.contains("+-"), "{table}");
    assert!(results.to_html(&scenario, "").contains("<dd>1, 2, 3</dd>"));
}

#[test]
fn the_busiest_port_and_the_senders_have_numbers_of_their_own() {
    let text = r#"
        fabric = { topology = "single-switch", hosts = 5, host_link_delays = ["1 us", "20 us"] }
        transport.name = "tcp"
        workload = { arrivals = "incast", sizes = "300 KB", receiver = 0 }
        measure.queues_from = "300 us"
    "#;
    let scenario = parse(text, &[]);
    let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();
    let point = &results.points[0].summary;
    assert_eq!((point.messages.started, point.messages.completed), (4, 4), "none is warm-up");
    let port = point.busiest_port.as_ref().unwrap();
    assert_eq!(port.name, "switch0->h0");
    let in_links = results.points[0].links.iter().find(|link| link.name == port.name).unwrap();
    assert_eq!(port.mean_queue_bytes, in_links.mean_queue_bytes);
    assert!(port.mean_queue_bytes > 10_000.0 && port.utilisation > 0.9, "{port:?}");
    let each = point.goodput_by_sender_gbps.unwrap();
    assert!((each.mean * 4.0 - point.goodput_gbps).abs() < 1e-9 * point.goodput_gbps, "{each:?}");
    assert_eq!((each.min, each.max), (each.mean, each.mean), "each sent as much");
    assert!(point.round_trips.is_none(), "TCP tells none");
    // The farthest two are those with links of 20 us: four times that, and what the rest takes.
    let rtt = rackweave_lab::explain::Explanation::of(&scenario.points[0]).base_rtt_us;
    assert!((82.0..86.0).contains(&rtt), "{rtt}");
    assert!(scenario.resolved.contains("host_link_delays = [\"1 us\", \"20 us\"]"));
    assert!(scenario.resolved.contains("queues_from = \"300 us\""));
}

/// The fabric of most data centers: hosts at 25 Gbps, and a core at 100 Gbps.
#[test]
fn a_fat_tree_has_a_rate_for_each_tier() {
    let text = "fabric = { topology = 'fat-tree', k = 4, host_link = '25G', core_link = '100 gbps' }\n\
                transport.name = 'tcp'\nworkload = { arrivals = 'permutation', sizes = '1 MB' }";
    let rates = |scenario: &Scenario| {
        let fabric = &scenario.points[0].fabric;
        let mut rates: Vec<u64> =
            fabric.links().iter().map(|link| link.rate.0 / 1_000_000_000).collect();
        rates.sort_unstable();
        // 16 hosts, 16 cables to the aggregation and 16 to the core, with two directions each.
        [rates[0], rates[31], rates[32], rates[63], rates[64], rates[95]]
    };
    assert_eq!(rates(&parse(text, &[])), [25, 25, 100, 100, 100, 100]);
    let tiers = parse(text, &["fabric.aggregation_link=50 Gbps"]);
    assert_eq!(rates(&tiers), [25, 25, 50, 50, 100, 100]);
    let text = text.replace("core_link = '100 gbps'", "oversubscription = 2.5");
    assert_eq!(rates(&parse(&text, &[])), [10, 10, 10, 10, 25, 25]);
}

#[test]
fn a_background_has_the_swept_transport_unless_it_names_one() {
    let text = format!(
        "{BASE}\n[[background]]\narrivals = 'incast'\nsizes = '100 KB'\n\
         [[background]]\narrivals = 'incast'\nsizes = '100 KB'\ntransport.name = 'dctcp'\n\
         [sweep]\ntransport.name = ['homa', 'tcp']"
    );
    let labels: Vec<Vec<String>> =
        parse(&text, &[]).points.iter().map(|point| point.labels.clone()).collect();
    assert_eq!(labels, [["homa", "homa", "dctcp"], ["tcp", "tcp", "dctcp"]]);
}

#[test]
fn an_incast_recurs_as_a_share_of_the_load() {
    let incast = |keys: &str| {
        let text = format!("{BASE}\n[[background]]\narrivals = 'incast'\nsizes = '125 KB'\n{keys}");
        let scenario = parse(&text, &[]);
        let resolved = Scenario::parse("r.toml", &scenario.resolved, Path::new("."), &[], None);
        let config = scenario.points[0].config.streams[1].workload.pattern.clone();
        assert_eq!(resolved.unwrap().points[0].config.streams[1].workload.pattern, config);
        let Pattern::RecurringIncast { senders, receiver, every, .. } = config else {
            panic!("{config:?}")
        };
        (senders, receiver.map(|host| host.0), every)
    };
    // Four times a megabit, over a tenth of 8 x 10 Gbps.
    let any = incast("receiver = 'any'\nsenders = 4\nload = 0.1");
    assert_eq!(any, (Some(4), None, Span::from_us(500)));
    // Seven times a megabit, over half of 10 Gbps.
    assert_eq!(incast("load = 0.5"), (None, Some(0), Span::from_us(1400)));
    assert_eq!(incast("receiver = 3\nevery = '1 ms'"), (None, Some(3), Span::from_ms(1)));
}

/// W5's messages are of up to 30 MB, which take long at a load of 0.8.
#[test]
fn the_load_may_stop_when_all_measured_messages_have_started() {
    let text = BASE.replace("W4", "W5").replace("load = 0.5", "load = 0.8");
    let run = |after: &str| {
        let text = format!("{text}\n[measure]\nmessages = 300\nload_after = '{after}'");
        let results = Batch::new(parse(&text, &[])).run(Some(1)).unwrap();
        results.points[0].summary.clone()
    };
    let (on, off) = (run("continue"), run("stop"));
    assert_eq!((on.messages.completed, off.messages.completed), (300, 300));
    assert_eq!((on.end, off.end), ("all done", "all done"));
    assert!(off.simulated_us < on.simulated_us && off.packet_hops < on.packet_hops);
}

/// Drops count from the start of a run, and statistics of queues and ports later: both numbers are there.
#[test]
fn drops_in_the_warm_up_are_told_apart() {
    let text = "fabric = { topology = 'single-switch', hosts = 9, switch.buffer = '20 KB' }\ntransport.name = 'tcp'\n\
                workload = { arrivals = 'incast', sizes = '100 KB', senders = 8 }\n";
    let run = |measure: &str| {
        let text = format!("{text}{measure}");
        let scenario = Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap();
        let results = Batch::new(scenario).run(Some(1)).unwrap();
        let style =
            rackweave_lab::report::table::Style { color: false, unicode: false, wide: true };
        let table = results.to_table(200, style);
        let point = results.points.into_iter().next().unwrap();
        let at_ports: u64 = point.links.iter().map(|link| link.drops).sum();
        (point.summary.drops, point.summary.warmup_drops, at_ports, table)
    };
    let (all, before, at_ports, table) = run("");
    assert_eq!((before, at_ports), (Some(0), all));
    assert!(all > 50 && !table.contains("warm-up"), "{table}");
    let (same, before, at_ports, table) = run("measure.queues_from = '200 us'");
    let before = before.unwrap();
    assert_eq!((same, before + at_ports), (all, all), "the run is the same");
    assert!(before > 0 && at_ports > 0 && table.contains("in warm-up"), "{table}");
}

/// Cases that `--set` makes equal are one point, not several that count as many.
#[test]
fn cases_that_differ_in_a_set_key_only_are_one() {
    let text = format!(
        "{BASE}[sweep]\ncases = [{{ seed = 1, workload.load = 0.3 }}, {{ seed = 2, workload.load = 0.3 }}, {{ seed = 3, workload.load = 0.5 }}]"
    );
    assert_eq!(parse(&text, &[]).points.len(), 3);
    let one_seed = parse(&text, &["seed=7"]);
    assert_eq!(one_seed.points.len(), 2);
    assert_eq!(parse(&one_seed.resolved, &[]).points.len(), 2);
}
