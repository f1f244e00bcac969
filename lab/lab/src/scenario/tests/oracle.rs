//! The transport `srpt-oracle`.

use std::path::Path;

use rackweave_sim::oracle::Rules;

use crate::scenario::Scenario;
use crate::study::Study;

fn rules(scenario: &Scenario) -> Option<Rules> {
    let Study::Messages(rules) = scenario.points[0].study else { panic!("it has messages") };
    rules
}

fn read(more: &str) -> Result<Scenario, String> {
    let text = format!(
        "fabric = {{ topology = 'single-switch', hosts = 3 }}\n\
         transport.name = 'srpt-oracle'\n\
         workload = {{ arrivals = 'poisson', load = 0.5, sizes = '1 KB' }}\n\
         measure = {{ warmup = '1 ns', messages = 300 }}\n{more}"
    );
    let read = Scenario::parse("x.toml", &text, Path::new("."), &[], None);
    read.map_err(|error| error.to_string())
}

#[test]
fn it_has_one_stream_without_anything_that_needs_packets() {
    let scenario = read("").unwrap();
    assert_eq!(rules(&scenario), Some(Rules::default()));
    let cut = read("transport.srpt-oracle.cut_packets = true").unwrap();
    assert_eq!(rules(&cut), Some(Rules { cut_packets: true }));
    assert_eq!(scenario.points[0].transport, "srpt-oracle");
    for (more, what) in [
        (
            "[[background]]\ntransport.name = 'tcp'\narrivals = 'poisson'\nload = 0.1\nsizes = '1 KB'",
            "no other traffic",
        ),
        (
            "[[faults]]\nkind = 'loss'\nplace = 'all links'\nprobability = 0.1",
            "nothing that could fail",
        ),
        ("host = { send_packet_ns = 1000.0 }", "no hosts that cost time"),
    ] {
        let error = read(more).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn its_results_are_those_of_a_run() {
    let scenario = read("").unwrap();
    let results = crate::Batch::new(scenario).run(Some(1)).unwrap();
    let point = &results.points[0].summary;
    assert_eq!(point.messages.completed, 300);
    let mean = point.slowdown.mean;
    assert!((1.0..3.0).contains(&mean), "{mean}");
}
