//! The cost of a period by its definition, link by link and in floating point, to compare with.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rackweave_core::{Rng, Span};
use rackweave_rackless::config::Configuration;
use rackweave_rackless::cost::{Reconfiguration, Scope};
use rackweave_rackless::demand::{Period, Upload};
use rackweave_rackless::fabric::{Architecture, Fabric, Reach};
use rackweave_rackless::pod::{Pod, TableUse};

use crate::instances;

/// Bytes on a link: all, and late ones.
type Links = BTreeMap<String, (f64, f64)>;

fn add(links: &mut Links, link: String, bytes: f64, late: bool) {
    let load = links.entry(link).or_default();
    load.0 += bytes;
    load.1 += if late { bytes } else { 0.0 };
}

/// Whether an upload's servers are not all below a `ToR`, though a programmable one has the ports.
fn is_split(fabric: &Fabric, upload: &Upload, racks: &Configuration, rack: usize) -> bool {
    let mut servers: Vec<u32> = upload.workers().iter().map(|it| it.0).collect();
    servers.push(upload.master());
    servers.sort_unstable();
    servers.dedup();
    let ports = fabric.pod().tors().iter().filter(|it| it.is_programmable()).map(|it| it.ports);
    let fits = ports.max().is_some_and(|most| servers.len() as u32 <= most);
    fits && servers.iter().any(|&it| usize::from(racks.tor_of()[it as usize]) != rack)
}

/// The time in picoseconds, and the absorbed bytes, for architectures without circuits and with all keys in the table.
pub(crate) fn cost(
    fabric: &Fabric,
    period: &Period,
    before: &Configuration,
    after: &Configuration,
    reconfiguration: Reconfiguration,
) -> (f64, f64) {
    let tor = |server: u32| usize::from(after.tor_of()[server as usize]);
    let dark = |server: u32| {
        before.tor_of()[server as usize] != after.tor_of()[server as usize]
            && reconfiguration.scope == Scope::Moved
    };
    let aggregates = |upload: &Upload, rack: usize| {
        (fabric.reach() != Reach::Rack || !is_split(fabric, upload, after, rack))
            && fabric.architecture().aggregates()
            && fabric.pod().tors()[rack].is_programmable()
    };
    let mut links = Links::new();
    let mut absorbed = 0.0;
    let cross = |links: &mut Links, from: usize, to: usize, bytes: f64, late: bool| {
        if from != to {
            add(links, format!("up {from}"), bytes, late);
            add(links, format!("down {to}"), bytes, late);
        }
    };
    for flow in period.flows() {
        let late = dark(flow.src) || dark(flow.dst);
        let bytes = flow.bytes as f64;
        add(&mut links, format!("out {}", flow.src), bytes, late);
        add(&mut links, format!("in {}", flow.dst), bytes, late);
        cross(&mut links, tor(flow.src), tor(flow.dst), bytes, late);
    }
    for broadcast in period.broadcasts() {
        let (src, bytes) = (broadcast.src(), broadcast.bytes() as f64);
        let late = dark(src) || broadcast.dsts().iter().any(|&dst| dark(dst));
        add(&mut links, format!("out {src}"), bytes, late);
        for &dst in broadcast.dsts() {
            add(&mut links, format!("in {dst}"), bytes, dark(src) || dark(dst));
        }
        let others: std::collections::BTreeSet<usize> =
            broadcast.dsts().iter().map(|&dst| tor(dst)).filter(|&it| it != tor(src)).collect();
        if !others.is_empty() {
            add(&mut links, format!("up {}", tor(src)), bytes, late);
        }
        for other in others {
            add(&mut links, format!("down {other}"), bytes, late);
        }
    }
    for upload in period.uploads() {
        let (master, home) = (upload.master(), tor(upload.master()));
        let remote: Vec<_> = upload.workers().iter().filter(|it| it.0 != master).collect();
        let (mut sum, mut largest, mut arriving, mut any_late) = (0, 0, 0, false);
        for rack in 0..fabric.pod().tors().len() {
            let here: Vec<_> = remote.iter().filter(|it| tor(it.0) == rack).collect();
            let bytes: u64 = here.iter().map(|it| it.1).sum();
            let most = here.iter().map(|it| it.1).max().unwrap_or(0);
            let rack_late = here.iter().any(|it| dark(it.0) || dark(master));
            for it in &here {
                let late = dark(it.0) || dark(master);
                add(&mut links, format!("out {}", it.0), it.1 as f64, late);
                if !aggregates(upload, rack) {
                    cross(&mut links, rack, home, it.1 as f64, late);
                }
            }
            let sent = match aggregates(upload, rack) && rack != home {
                true => upload.union(bytes, most),
                false => bytes,
            };
            if aggregates(upload, rack) && rack != home {
                absorbed += (bytes - sent) as f64;
                cross(&mut links, rack, home, sent as f64, rack_late);
            }
            sum += bytes;
            largest = largest.max(most);
            arriving += sent;
            any_late |= rack_late;
        }
        let sent = match aggregates(upload, home) {
            true => upload.union(sum, largest).min(arriving),
            false => arriving,
        };
        absorbed += (arriving - sent) as f64;
        add(&mut links, format!("in {master}"), sent as f64, any_late);
    }
    let delay = if before == after { 0.0 } else { reconfiguration.delay.as_ps() as f64 };
    let mut time = 0_f64;
    for (link, (bytes, late)) in links {
        let rate = match link.split_once(' ') {
            Some(("up" | "down", tor)) => {
                fabric.pod().tors()[tor.parse::<usize>().unwrap()].uplink_capacity()
            }
            _ => fabric.pod().server_rate(),
        };
        let needs = |bytes: f64| bytes * 8e12 / rate.0 as f64;
        time = time.max(needs(bytes));
        if late > 0.0 {
            time = time.max(delay + needs(late));
        }
    }
    let dark = if reconfiguration.scope == Scope::All { delay } else { 0.0 };
    (time + dark, absorbed)
}

proptest! {
    #![proptest_config(rackweave_testing::cases(300))]

    #[test]
    fn costs_are_those_of_the_definition(seed in any::<u64>(), moved in any::<bool>(), which in 0..3_usize) {
        let scope = if moved { Scope::Moved } else { Scope::All };
        let instance = instances::random(seed, scope);
        let architecture = if which > 0 { Architecture::P4Ordc } else { Architecture::Ordc };
        let reach = if which > 1 { Reach::Rack } else { Reach::Path };
        let fabric = Fabric::new(Pod::paper(), architecture).with_reach(reach);
        let mut rng = Rng::stream(seed, 1, 0, "racks");
        let mut racks = fabric.initial().tor_of().to_vec();
        let mut random = || {
            rng.shuffle(&mut racks);
            Configuration::new(fabric.pod(), &racks).unwrap()
        };
        let (before, after) = (random(), random());
        for period in &instance.periods {
            for (from, to) in [(&before, &after), (&after, &after)] {
                let cost = fabric.cost_after(period, from, to, instance.reconfiguration);
                let (time, absorbed) = self::cost(&fabric, period, from, to, instance.reconfiguration);
                prop_assert!((cost.time.as_ps() as f64 - time).abs() < 1e4, "{cost:?} is not {time}");
                prop_assert!((cost.absorbed as f64 - absorbed).abs() < 1.0, "{cost:?} is not {absorbed}");
            }
        }
    }

    #[test]
    fn a_small_table_absorbs_in_proportion_and_a_detour_absorbs_more(seed in any::<u64>()) {
        let instance = instances::random(seed, Scope::All);
        let table = |slots: u64, table| {
            let mut tors = Pod::paper().tors().to_vec();
            tors[0].slots = slots;
            let pod = Pod::new(8, Pod::paper().server_rate(), tors).unwrap();
            Fabric::new(pod.with_table(table, 20).unwrap(), Architecture::P4Ordc)
        };
        let fabrics = [
            table(1 << 10, TableUse::FirstCome),
            table(1 << 16, TableUse::FirstCome),
            table(1 << 40, TableUse::FirstCome),
            table(1 << 10, TableUse::KeyRanges),
            table(1 << 10, TableUse::KeyRanges).with_reach(Reach::Detour),
        ];
        for period in &instance.periods {
            let absorbed: Vec<u64> =
                fabrics.iter().map(|it| it.cost(period, it.initial()).absorbed).collect();
            // Partial tables at two places round separately.
            prop_assert!(absorbed[0] <= absorbed[1] + 8 && absorbed[1] <= absorbed[2] + 8, "{absorbed:?}");
            prop_assert_eq!(absorbed[2], absorbed[3]);
            prop_assert!(absorbed[3] <= absorbed[4], "{absorbed:?}");
        }
    }
}

#[test]
fn a_link_without_capacity_is_never_done_and_nothing_overflows() {
    use rackweave_core::Rate;
    use rackweave_rackless::cost::{Link, transfer_time};
    use rackweave_rackless::demand::{Flow, MAX_TRANSFER_BYTES};
    use rackweave_rackless::pod::Tor;

    assert_eq!(transfer_time(1, Rate(0)), Span::MAX);
    assert_eq!(transfer_time(u64::MAX, Rate(1)), Span::MAX);
    let rate = Rate(1);
    let tor = Tor { ports: 2, uplinks: 1, uplink_rate: rate, slots: 0 };
    let pod = Pod::new(6, rate, vec![tor; 3]).unwrap();
    let flows = vec![Flow { src: 0, dst: 5, bytes: MAX_TRANSFER_BYTES }];
    let period = Period::new(6, flows, vec![], vec![]).unwrap();
    for architecture in Architecture::ALL {
        let fabric = Fabric::new(pod.clone(), architecture);
        let cost = fabric.cost(&period, fabric.initial());
        assert_eq!(cost.time, Span::MAX, "{architecture:?}");
        // One uplink each joins two of three ToRs.
        if architecture == Architecture::P4IncAoi {
            assert_eq!(cost.bottleneck, Some(Link::Missing));
        }
    }
}
