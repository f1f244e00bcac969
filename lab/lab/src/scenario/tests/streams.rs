//! Streams of messages, and the transports that carry them.

use std::path::Path;

use rackweave_transport::TransportConfig;
use rackweave_transport::homa::Config;

use crate::scenario::Scenario;

/// The transports of requests, and of an incast with these further keys.
fn transports(incast: &str) -> (Config, Config) {
    let text = format!(
        "fabric = {{ topology = 'single-switch', hosts = 64, host_link = '25 Gbps' }}\n\
         transport.name = 'homa'\n\
         workload = {{ arrivals = 'poisson', load = 0.3, sizes = '1 KB', exchange = 'rpc' }}\n\
         [[background]]\narrivals = 'incast'\nsizes = '256 KB'\nsenders = 40\n{incast}"
    );
    let scenario = Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap();
    let homa = |stream: usize| match &scenario.points[0].config.streams[stream].transport {
        TransportConfig::Homa(config) => (**config).clone(),
        other => panic!("{other:?}"),
    };
    (homa(0), homa(1))
}

fn levels(config: &Config) -> (u8, u8) {
    (config.cutoffs.unscheduled_levels(), config.cutoffs.scheduled_levels())
}

/// A machine for each would grant the incast at the levels above 0, and the requests at 0: they would never end on a full link.
#[test]
fn streams_of_one_homa_have_one_machine_at_each_host() {
    let (rpcs, incast) = transports("every = '5 ms'");
    assert_eq!(rpcs, incast);
    // The incast fills 0.66 of its receiver's link, the requests 0.3.
    assert_eq!(levels(&rpcs), (3, 5));
    // The rarer incast counts less.
    assert_eq!(levels(&transports("every = '50 ms'").0), (7, 1));
    // One that does not recur fills the link while it lasts.
    assert_eq!(levels(&transports("start = '2 ms'").0), (2, 6));
    // A table of its own is the same transport if nothing differs.
    let (rpcs, incast) =
        transports("every = '5 ms'\ntransport = { name = 'homa', label = 'incast' }");
    assert_eq!((levels(&rpcs), rpcs), ((3, 5), incast));
    let (rpcs, incast) =
        transports("every = '5 ms'\ntransport = { name = 'homa', overcommit = 2 }");
    assert_eq!((levels(&rpcs), levels(&incast)), ((7, 1), (1, 7)));
}
