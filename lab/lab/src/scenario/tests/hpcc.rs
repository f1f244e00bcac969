//! The transport `hpcc`.

use std::path::Path;

use crate::scenario::{Scenario, ScenarioText, World};

const SCENARIO: &str = "fabric = { topology = 'single-switch', hosts = 3, host_link = '100 Gbps' }\n\
                        transport.name = 'hpcc'\n\
                        workload = { arrivals = 'poisson', load = 0.5, sizes = '1 KB' }\n\
                        measure = { warmup = '1 ns', messages = 300 }\n";

fn read(more: &str) -> Result<Scenario, String> {
    let text = format!("{SCENARIO}{more}");
    let read = Scenario::parse("x.toml", &text, Path::new("."), &[], None);
    read.map_err(|error| error.to_string())
}

#[test]
fn switches_pause_and_links_have_rates_that_packets_can_name() {
    let scenario = read("").unwrap();
    assert!(scenario.points[0].config.fabric.switch.pfc.is_some());
    let results = crate::Batch::new(scenario).run(Some(1)).unwrap();
    assert_eq!(results.points[0].summary.messages.completed, 300);
    let sets = ["fabric.host_link=17 Gbps".to_owned()];
    let error = Scenario::parse("x.toml", SCENARIO, Path::new("."), &sets, None).unwrap_err();
    assert!(error.to_string().contains("cannot name links of 17 Gbps"), "{error}");
}

#[test]
fn real_hosts_refuse_it() {
    let text = ScenarioText {
        file: "x.toml".into(),
        text: SCENARIO.to_owned(),
        folder: Path::new(".").to_owned(),
    };
    let error = text.read(World::Testbed, &[], None).unwrap_err().to_string();
    assert!(error.contains("neither the user-space switch nor Linux does"), "{error}");
}
