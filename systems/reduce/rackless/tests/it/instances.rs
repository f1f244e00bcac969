//! Random instances, for tests, benches and the example.

use rackweave_core::{Rate, Rng, Span};
use rackweave_rackless::cost::{Reconfiguration, Scope};
use rackweave_rackless::demand::Period;
use rackweave_rackless::fabric::{Architecture, Fabric};
use rackweave_rackless::pod::{Pod, Tor};

pub(crate) struct Instance {
    pub(crate) fabric: Fabric,
    pub(crate) periods: Vec<Period>,
    pub(crate) reconfiguration: Reconfiguration,
}

/// The paper's pod with 4 to 12 periods. Jobs of random groups of servers have random phases, next to background flows;
/// the delay is 0 to 100 ms.
pub(crate) fn random(seed: u64, scope: Scope) -> Instance {
    let mut rng = Rng::stream(seed, 0, 0, "instance");
    let count = 4 + rng.below(9);
    let periods = periods(&mut rng, 8, count, 3);
    let delays = [0, 1, 5, 10, 25, 100];
    let delay = Span::from_ms(delays[rng.below(6) as usize]);
    Instance {
        fabric: Fabric::new(Pod::paper(), Architecture::P4Ordc),
        periods,
        reconfiguration: Reconfiguration { delay, scope },
    }
}

/// A pod of 128 servers below 16 `ToR`s, two of them programmable, oversubscribed 2:1, with 24 periods of 16 groups.
pub(crate) fn large(seed: u64, scope: Scope) -> Instance {
    let mut rng = Rng::stream(seed, 0, 0, "large");
    let rate = Rate::from_gbps(10);
    let tor = |slots| Tor { ports: 8, uplinks: 4, uplink_rate: rate, slots };
    let tors = (0..16).map(|it| tor(if it < 2 { 1 << 16 } else { 0 })).collect();
    let pod = Pod::new(128, rate, tors).expect("a possible pod");
    Instance {
        fabric: Fabric::new(pod, Architecture::P4Ordc),
        periods: periods(&mut rng, 128, 24, 16),
        reconfiguration: Reconfiguration { delay: Span::from_ms(25), scope },
    }
}

/// Random periods: see the library's function.
pub(crate) fn periods(rng: &mut Rng, servers: u32, count: u64, groups: u64) -> Vec<Period> {
    rackweave_rackless::instances::periods(rng, servers, count, groups).expect("possible demand")
}
