//! Random instances, for tests, benches and the example.

use rackweave_core::{Rate, Rng, Span};
use rackweave_rackless::cost::{Reconfiguration, Scope};
use rackweave_rackless::demand::{Broadcast, Flow, JobId, Period, Upload};
use rackweave_rackless::fabric::{Architecture, Fabric};
use rackweave_rackless::pod::{Pod, Tor};

pub(crate) struct Instance {
    pub(crate) fabric: Fabric,
    pub(crate) periods: Vec<Period>,
    pub(crate) reconfiguration: Reconfiguration,
}

/// The paper's pod with 4 to 12 periods. Jobs of random groups of servers have random phases, beside background flows; the
/// delay is 0 to 100 ms.
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

/// Periods in which each of several groups of random servers shuffles, uploads, broadcasts or computes. Groups stay together
/// for several periods.
pub(crate) fn periods(rng: &mut Rng, servers: u32, count: u64, groups: u64) -> Vec<Period> {
    let mut order: Vec<u32> = (0..servers).collect();
    let mut periods = Vec::new();
    for period in 0..count {
        if period == 0 || rng.chance(0.3) {
            rng.shuffle(&mut order);
        }
        let size = (u64::from(servers) / groups).max(2) as usize;
        let (mut flows, mut uploads, mut broadcasts) = (Vec::new(), Vec::new(), Vec::new());
        for (job, group) in (1..).zip(order.chunks(size)) {
            if group.len() < 2 {
                continue;
            }
            let (master, workers) = (group[0], &group[1..]);
            let bytes = 1_000_000 * (1 + rng.below(100));
            match rng.below(4) {
                0 => {
                    for &src in group {
                        for &dst in group.iter().filter(|&&dst| dst != src) {
                            flows.push(Flow { src, dst, bytes: bytes / group.len() as u64 });
                        }
                    }
                }
                1 | 2 => {
                    let size = |rng: &mut Rng| bytes / 2 + rng.below(bytes);
                    let workers = workers.iter().map(|&it| (it, size(rng))).collect();
                    let exponent = rng.unit();
                    let upload = Upload::estimated(JobId(job), master, workers, exponent);
                    uploads.push(upload.expect("a possible upload"));
                }
                _ => {
                    let broadcast = Broadcast::new(JobId(job), master, workers.to_vec(), bytes);
                    broadcasts.push(broadcast.expect("a possible broadcast"));
                }
            }
        }
        for _ in 0..rng.below(u64::from(servers)) {
            let (src, dst) = (rng.below(u64::from(servers)), rng.below(u64::from(servers)));
            if src != dst {
                let bytes = 1 + rng.below(40_000_000);
                flows.push(Flow { src: src as u32, dst: dst as u32, bytes });
            }
        }
        periods.push(Period::new(servers, flows, uploads, broadcasts).expect("a possible period"));
    }
    periods
}
