use rackweave_core::Rate;

use super::*;

fn explain(text: &str) -> Explanation {
    let folder = std::path::Path::new(".");
    let scenario = Scenario::parse("test.toml", text, folder, &[], None).unwrap();
    Explanation::of(&scenario.points[0])
}

#[test]
fn a_workload_that_stops_has_the_messages_until_then() {
    let text = |stop: &str, measure: &str| {
        format!(
            "fabric = {{ topology = 'single-switch', hosts = 8, host_link = '10 Gbps' }}\n\
             transport.name = 'homa'\nmeasure = {{ {measure} }}\n\
             workload = {{ arrivals = 'poisson', sizes = '10 KB', load = 0.5{stop} }}"
        )
    };
    let all = "warmup = '0 s', messages = 'unlimited', time_limit = '10 s'";
    // Half of 80 Gbit/s in messages of 10 KB: 500 a millisecond.
    let stopped = explain(&text(", stop = '4 ms'", all));
    let messages = stopped.messages.unwrap();
    assert!((1900..=2100).contains(&messages), "{messages}");
    let simulated = stopped.simulated_us.unwrap();
    assert!((4000.0..4500.0).contains(&simulated), "{simulated}");
    // Without it the load goes on for ten seconds.
    assert!(explain(&text("", all)).messages.unwrap() > 2_000 * 1000);
    // Fewer messages than the workload has until it stops.
    let few = explain(&text(", stop = '4 ms'", "messages = 100"));
    assert_eq!(few.messages, Some(100));
    assert!(few.simulated_us.unwrap() < 2000.0);
    // More than it has.
    let many = explain(&text(", stop = '4 ms'", "messages = 100_000"));
    assert!((1400..=1600).contains(&many.messages.unwrap()), "after a millisecond of warm-up");
}

#[test]
fn a_fat_tree_is_counted_as_in_its_paper() {
    let text = "fabric = { topology = 'fat-tree', k = 4 }\ntransport.name = 'tcp'\n\
                workload = { arrivals = 'permutation', sizes = '1 MB' }";
    let fat_tree = explain(text);
    assert_eq!((fat_tree.hosts, fat_tree.switches, fat_tree.links), (16, 20, 48));
    assert_eq!(fat_tree.messages, Some(16));
}

#[test]
fn without_a_number_of_messages_time_decides() {
    let text = "fabric = { topology = 'single-switch', hosts = 10 }\ntransport.name = 'tcp'\n\
                workload = { arrivals = 'poisson', sizes = '125 KB', load = 0.5 }\n\
                measure = { messages = 'unlimited', warmup = '1 s', time_limit = '3 s' }";
    let explained = explain(text);
    assert_eq!(explained.messages, Some(100_000));
    assert_eq!(explained.simulated_us, Some(3e6));
    // 86 segments and 43 acknowledgements, over two links.
    let hops = explained.packet_hops.unwrap() / 150_000.0;
    assert!((hops - (86.0 + 43.0) * 2.0).abs() < 1.0, "{hops}");
}

/// EQDS has its own defaults next to those of UET: none of them is far off, and each other value is compared with them.
#[test]
fn eqds_is_compared_with_its_own_defaults() {
    let told = |keys: &str| -> Vec<String> {
        let text = format!(
            "fabric = {{ topology = 'leaf-spine', leaves = 4, hosts_per_leaf = 12, spines = 3, host_link = '10 Gbps', \
             core_link = '40 Gbps', switch.trim = true }}\n\
             transport = {{ name = 'uet', profile = 'eqds', {keys} }}\n\
             workload = {{ arrivals = 'poisson', sizes = 'W3', load = 0.5 }}"
        );
        explain(&text).parameters.into_iter().filter_map(|it| it.warning).collect()
    };
    assert_eq!(told("base_rtt = '7.144 us'"), Vec::<String>::new());
    let expected = "transport.uet.min_rto = 20 ms is 20 times the value for this fabric, 1 ms: the 99th percentile measures this \
                    timer wherever packets are lost";
    assert_eq!(told("min_rto = '20 ms'"), [expected]);
    let window = told("window = '200 KB'");
    assert!(window.len() == 1 && window[0].contains("is 16 times the value"), "{window:?}");
}

#[test]
fn load_is_a_share_of_the_link() {
    let text = "fabric = { topology = 'single-switch', hosts = 10 }\ntransport.name = 'tcp'\n\
                workload = { arrivals = 'poisson', sizes = '125 KB', load = 0.5 }";
    let explained = explain(text);
    // Half of 10 Gbps are 5000 messages of a megabit.
    assert!((explained.messages_per_s_per_host.unwrap() - 5000.0).abs() < 0.1);
    assert!((explained.messages_per_s.unwrap() - 50_000.0).abs() < 1.0);
}

/// A fat-tree of 128 hosts with W3 and an incast. Simulated time, hops and seconds are those of runs of it (`simulated_us`,
/// `packet_hops` and `cpu_s` of `summary.json`, with `--jobs 1`).
#[test]
fn estimates_are_within_twice_what_runs_took() {
    let text = "fabric = { topology = 'fat-tree', k = 8, host_link = '25 Gbps', switch.trim = true }\n\
                transport.name = 'homa'\n\
                workload = { arrivals = 'poisson', sizes = 'W3', load = 0.7 }\n\
                measure.messages = 200_000\n\
                background = [{ arrivals = 'incast', sizes = '100 KB', senders = 32, receiver = 0, start = '2 ms' }]";
    let cases = [
        ("homa", "0.3", 19.35e3, 18.7e6, 4.48),
        ("homa", "0.5", 33.29e3, 52.0e6, 14.5),
        ("homa", "0.7", 98.70e3, 214e6, 80.1),
        ("dctcp", "0.3", 21.42e3, 24.0e6, 9.72),
        ("dctcp", "0.5", 31.33e3, 57.1e6, 29.2),
        ("dctcp", "0.7", 62.94e3, 158e6, 107.0),
        ("tcp", "0.3", 18.40e3, 20.8e6, 8.77),
        ("tcp", "0.5", 28.94e3, 53.1e6, 29.0),
        ("tcp", "0.7", 59.77e3, 151e6, 143.0),
        ("ndp", "0.3", 20.24e3, 32.4e6, 6.43),
        ("ndp", "0.5", 32.80e3, 91.6e6, 29.2),
        ("ndp", "0.7", 186e3, 721e6, 151.0),
    ];
    for (transport, load, simulated_us, hops, cpu_s) in cases {
        let text = text.replace("'homa'", &format!("'{transport}'")).replace("0.7", load);
        let explained = explain(&text);
        let of = |estimate: Option<f64>, run: f64, what: &str| {
            let factor = estimate.unwrap() / run;
            println!("{transport} at {load}: {:.3e}, {run:.3e} of {what}", factor * run);
            assert!((0.5..2.0).contains(&factor), "{transport} at {load}: {factor} of {what}");
        };
        of(explained.simulated_us, simulated_us, "the simulated time");
        of(explained.packet_hops, hops, "the hops");
        of(explained.cpu_s, cpu_s, "the processor time");
        assert!(explained.warning.is_some(), "{transport} at {load}");
    }
}

/// Few messages, so that runs with other seeds take half or twice as long: their figures are from runs, as above.
#[test]
fn estimates_follow_the_seed() {
    let w3 = "fabric = { topology = 'fat-tree', k = 8, host_link = '25 Gbps' }\ntransport.name = 'homa'\n\
              workload = { arrivals = 'poisson', sizes = 'W3', load = 0.7 }\nmeasure.messages = 20000";
    let w4 = "fabric = { topology = 'single-switch', hosts = 16 }\ntransport.name = 'homa'\n\
              workload = { arrivals = 'poisson', sizes = 'W4', load = 0.5 }\nmeasure.messages = 1000";
    let cases = [
        (w3, 1, 14.80e3, 29.1e6, 11.7),
        (w3, 2, 9.93e3, 19.0e6, 7.50),
        (w3, 3, 12.21e3, 23.4e6, 9.31),
        (w4, 1, 33.10e3, 786e3, 0.103),
        (w4, 2, 60.83e3, 1519e3, 0.206),
        (w4, 3, 27.84e3, 632e3, 0.084),
        (w4, 4, 64.82e3, 1558e3, 0.213),
        (w4, 5, 47.11e3, 1108e3, 0.150),
        (w4, 6, 53.66e3, 1495e3, 0.223),
        (w4, 7, 52.98e3, 1372e3, 0.190),
        (w4, 8, 41.01e3, 1045e3, 0.139),
    ];
    for (text, seed, simulated_us, hops, cpu_s) in cases {
        let explained = explain(&format!("seed = {seed}\n{text}"));
        let of = |estimate: Option<f64>, run: f64, what: &str| {
            let factor = estimate.unwrap() / run;
            println!("seed {seed}: {:.3e}, {run:.3e} of {what}", factor * run);
            assert!((0.5..2.0).contains(&factor), "seed {seed}: {factor} of {what}: {text}");
        };
        of(explained.simulated_us, simulated_us, "the simulated time");
        of(explained.packet_hops, hops, "the hops");
        of(explained.cpu_s, cpu_s, "the processor time");
    }
}

#[test]
fn what_runs_beside_counts() {
    let text = "fabric = { topology = 'single-switch', hosts = 10 }\ntransport.name = 'tcp'\n\
                workload = { arrivals = 'permutation', sizes = '125 KB' }\n\
                background = [{ arrivals = 'incast', sizes = '125 KB', messages_per_sender = 10 }]";
    let explained = explain(text);
    assert_eq!(
        explained.background,
        ["incast over tcp: 90 messages of 125 KB on average, to host 0"]
    );
    let single = explain(text.split("background").next().unwrap());
    let factor = explained.packet_hops.unwrap() / single.packet_hops.unwrap();
    assert!((factor - 10.0).abs() < 1e-9, "{factor}");
}

#[test]
fn an_incast_that_recurs_says_where_to_and_how_often_it_is_measured() {
    let text = |messages: &str| {
        format!(
            "fabric = {{ topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 4, spines = 2, host_link = '25 Gbps', core_link = '25 Gbps' }}\n\
             transport.name = 'homa'\nmeasure = {{ warmup = '1 ms', {messages} }}\n\
             workload = {{ arrivals = 'poisson', sizes = '10 KB', load = 0.5 }}\n\
             background = [{{ arrivals = 'incast', sizes = '2 KB', senders = 3, receiver = 5, every = '500 us', start = '200 us' }}]"
        )
    };
    // 200, 700, 1200, 1700, ... us: from 1 ms to 5 ms there are eight.
    let long = explain(&text("duration = '4 ms'"));
    assert_eq!(
        long.background,
        [
            "incast over homa: 3 messages of 2.00 KB to host 5 every 500 us; 8 start in the measured window"
        ]
    );
    let short = explain(&text("duration = '100 us'"));
    assert!(
        short.background[0].contains("; 0 start in the measured window: a longer"),
        "{short:?}"
    );
    let text = long.to_text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("core links of 25.0 Gbps, oversubscribed 2.00 times"), "{text}");
    assert!(text.contains("500 KB for each port, 8 priorities"), "{text}");
}

/// What points share is not in the table, and what differs is.
#[test]
fn a_table_has_what_differs() {
    let text = "fabric = { topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 4, spines = 2, host_link = '10 Gbps', core_link = '20 Gbps' }\n\
                transport.name = 'homa'\nmeasure.messages = 1000\n\
                workload = { arrivals = 'poisson', sizes = '10 KB', load = 0.5 }\n\
                sweep = { fabric.host_link = ['10 Gbps', '25 Gbps'], fabric.switch.buffer = ['100 KB', '200 KB'] }";
    let scenario =
        Scenario::parse("test.toml", text, std::path::Path::new("."), &[], None).unwrap();
    let explained: Vec<Explanation> = scenario.points.iter().map(Explanation::of).collect();
    let text = text::points(&explained, 200);
    let (common, table) = text.split_once("\n\n").unwrap();
    assert!(common.contains("hosts 8, switches 4, core link 20.0 Gbps"), "{common}");
    assert!(!common.contains("host link"), "{common}");
    let heading = table.lines().next().unwrap();
    for column in ["host_link", "buffer", "host link", "base RTT", "load of leaves"] {
        assert!(heading.contains(column), "{column}: {table}");
    }
    assert!(!heading.contains("core link"), "{table}");
    assert_eq!(table.lines().filter(|line| line.trim_start().starts_with("25 Gbps")).count(), 2);
    // The switches' buffers are words: a note for each.
    assert!(table.contains("  b  switches: 200 KB for each port, 8 priorities"), "{table}");
}

fn stretched() -> Scenario {
    let text = "fabric = { topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 4, spines = 2, host_link = '10 Gbps', core_link = '20 Gbps' }\n\
                measure = { messages = 100, load_after = 'stop' }\nworkload = { arrivals = 'poisson', sizes = 'W4', load = 0.5 }\n\
                [[background]]\narrivals = 'incast'\nsizes = '256 KB'\nsenders = 3\nevery = '5 ms'\n\
                [sweep]\nworkload.load = [0.3, 0.97]\nfabric.host_link = ['10 Gbps', '25 Gbps']\nfabric.switch.buffer = ['100 KB', '200 KB']\n\
                seed = [1, 2, 3, 4, 5, 6, 7, 9]\n\
                transport.name = ['homa', 'dctcp', 'swift']\nworkload.sizes = ['W3', 'W4']";
    Scenario::parse("test.toml", text, std::path::Path::new("."), &[], None).unwrap()
}

/// However many keys are swept, lines fit the width, and every value is there.
#[test]
fn tables_fit_any_width() {
    let scenario = stretched();
    for width in [64, 80, 100, 140, 1000] {
        let text = scenario.explain_within(width);
        let (text, _) = text.split_once("# With all defaults").unwrap();
        for line in text.lines() {
            assert!(unicode_width::UnicodeWidthStr::width(line) <= width, "{width}: {line}");
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for value in [
            "swift",
            "W3",
            "25 Gbps",
            "load of leaves",
            "ended by",
            "background: incast over dctcp",
        ] {
            assert!(words.contains(value), "{width}: {value}: {text}");
        }
    }
    let text = scenario.explain_within(1000);
    assert!(text.contains("  1 to 7, 9  "), "{text}");
}

/// The estimates of many seeds are those of the first few and their mean.
#[test]
fn many_seeds_are_estimated_by_the_first_few() {
    let text = "fabric = { topology = 'single-switch', hosts = 4 }\ntransport.name = 'homa'\nmeasure.messages = 1000\n\
                workload = { arrivals = 'poisson', sizes = 'W3' }\n\
                sweep = { workload.load = [0.3, 0.5], seed = [1, 2, 3, 4, 5, 9] }";
    let scenario =
        Scenario::parse("test.toml", text, std::path::Path::new("."), &[], None).unwrap();
    let all = Explanation::of_all(&scenario.points);
    let cpu = |at: usize| all[at].cpu_s.unwrap();
    for first in [0, 6] {
        let mean = (first..first + 4).map(cpu).sum::<f64>() / 4.0;
        assert!((cpu(first + 4) - mean).abs() < 1e-9 && cpu(first) != cpu(first + 1), "{mean}");
        assert_eq!(
            (all[first + 5].set["seed"].clone(), cpu(first + 5)),
            (9.into(), cpu(first + 4))
        );
    }
    assert_eq!(Explanation::of(&scenario.points[0]).cpu_s, Some(cpu(0)));
}

fn with_faults(faults: &str) -> Explanation {
    explain(&format!(
        "fabric = {{ topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 4, spines = 1, host_link = '10 Gbps', core_link = '40 Gbps' }}\n\
         transport.name = 'dctcp'\nmeasure.messages = 1000\n\
         workload = {{ arrivals = 'poisson', sizes = '10 KB', load = 0.5 }}\n\
         faults = [{faults}]"
    ))
}

/// What fails, when, and whom it cuts off.
#[test]
fn faults_are_told() {
    let all = with_faults(
        "{ kind = 'down', place = 'link of host 3', from = '1 ms' },
         { kind = 'down', place = 'link of host 3', from = '1 ms', until = '2 ms' },
         { kind = 'down', place = 'core link 1', from = '1 ms' },
         { kind = 'down', place = 'core links', until = '1 ms' },
         { kind = 'pause', place = 'host 0', from = '3 ms' },
         { kind = 'crash', place = 'host 5', from = '3 ms', until = '4 ms' },
         { kind = 'loss', place = 'all links', probability = 0.3 },
         { kind = 'reordering', place = 'core link 0', probability = 0.01, from = '2 ms' }",
    );
    assert_eq!(
        all.faults,
        [
            "link of host 3 down from 1.00 ms on; cuts host 3 off for good",
            "link of host 3 down from 1.00 ms to 2.00 ms; cuts host 3 off",
            "core link 1 down from 1.00 ms on; cuts the hosts of different switches off for good",
            "core links down until 1.00 ms; cuts the hosts of different switches off",
            "host 0 paused from 3.00 ms on; cuts host 0 off for good",
            "host 5 crashed from 3.00 ms to 4.00 ms; cuts host 5 off",
            "all links: 30.0 % of the packets lost all the time",
            "core link 0: 1.00 % of the packets late by up to 10.0 us from 2.00 ms on",
        ]
    );
    let text = all.to_text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("fault link of host 3 down from 1.00 ms on; cuts host 3 off"), "{text}");
    assert!(text.contains("of memory, without what is sent again for faults"), "{text}");
}

/// Messages to a host that is cut off fail after the transport's patience, and load goes on until then.
#[test]
fn a_host_that_is_cut_off_lengthens_the_run() {
    let fault = |until: &str| {
        with_faults(&format!("{{ kind = 'down', place = 'link of host 3', from = '1 ms'{until} }}"))
    };
    let (none, short) = (with_faults(""), fault(", until = '1.2 ms'"));
    assert_eq!((short.simulated_us, short.cpu_s), (none.simulated_us, none.cpu_s));
    let long = fault("");
    // TCP: fifteen timeouts of 1 to 100 ms.
    let more = long.simulated_us.unwrap() - none.simulated_us.unwrap();
    assert!((1e6..1.2e6).contains(&more), "{more} us more");
    assert!(long.packet_hops.unwrap() > 100.0 * none.packet_hops.unwrap());
    assert_eq!(long.warning, none.warning, "no message is long");
}

/// 10 Gbps, 1.1 us until a pause works: 1,375 bytes, three packets and 8 pause frames.
#[test]
fn lossless_switches_say_when_they_pause_and_why() {
    let text = |switch: &str| {
        format!(
            "fabric = {{ topology = 'single-switch', hosts = 8{switch} }}\n\
             transport.name = 'tcp'\nworkload = {{ arrivals = 'permutation', sizes = '1 MB' }}"
        )
    };
    let rules = explain(&text(", switch.pfc = true")).switch_rules;
    let bytes = 1_375 + 3 * 1_538 + 8 * 84 + 1;
    assert!(rules.contains(&format!("a headroom of {} at a host's link", Bytes(bytes))), "{rules}");
    assert!(
        rules.contains("in 8 priorities: a port and priority alone is paused above"),
        "{rules}"
    );
    let folder = std::path::Path::new(".");
    for (switch, wrong) in [
        (", switch = { pfc = true, trim = true }", "trimming"),
        (", switch = { pfc = { priorities = [8] } }", "0 to 7"),
        (", switch = { pfc = { priorities = [] } }", "lossless"),
        (", switch = { pfc = true, shared_buffer = '50 KB' }", "headroom"),
        (", switch = { ecn_full = '100 KB' }", "needs an `ecn_threshold`"),
        (", switch = { ecn_probability = 0.1 }", "without `ecn_full`"),
    ] {
        let error = Scenario::parse("test.toml", &text(switch), folder, &[], None).unwrap_err();
        assert!(error.to_string().contains(wrong), "{switch}: {error}");
    }
    let marks =
        ", switch = { ecn_threshold = '50 KB', ecn_full = '200 KB', ecn_probability = 0.1 }";
    let scenario = Scenario::parse("test.toml", &text(marks), folder, &[], None).unwrap();
    let ramp = scenario.points[0].fabric.ecn_ramp(Rate::from_gbps(10)).unwrap();
    assert_eq!((ramp.full_bytes, ramp.millionths), (200_000, 100_000));
}
