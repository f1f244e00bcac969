//! The suite that all transports pass, and a run next to a built-in one.

use rackweave::Plugin;
use rackweave::lab::{Batch, Scenario};
use rackweave::scenario::transport::plug_in;
use rackweave::transport::external::Acknowledged;
use rackweave::transport::tests::external::{External, SenderSubject};

use super::*;

type Subject = External<Acknowledged<FixedWindow>>;
rackweave::transport::transport_suite!(Subject);

impl SenderSubject for FixedWindow {
    fn variants() -> Vec<Config> {
        let usual = Self::for_round_trip(Span::from_us(20));
        vec![usual.clone(), Config { window: 2, ..usual }]
    }

    fn for_round_trip(rtt: Span) -> Config {
        Config::for_round_trip(Rate::from_gbps(10), rtt)
    }
}

#[test]
fn a_scenario_runs_it_next_to_a_built_in_one() {
    let plugin = Plugin::transport::<Keys>();
    plugin.check().expect("keys and rules that are used");
    plug_in(&[plugin]).expect("a name of its own");
    let text = "fabric = { topology = 'single-switch', hosts = 4 }\n\
                transport.fixed-window.window = 5\n\
                workload = { arrivals = 'permutation', sizes = '100 KB' }\n\
                sweep.transport.name = ['dctcp', 'fixed-window']";
    let scenario = Scenario::parse("test.toml", text, ".".as_ref(), &[], None).expect("valid");
    let results = Batch::new(scenario).run(None).expect("a run");
    let names: Vec<&str> = results.points.iter().map(|it| it.summary.transport.as_str()).collect();
    assert_eq!(names, ["dctcp", "fixed-window"]);
    assert!(results.warnings().next().is_none(), "every message ends");
}
