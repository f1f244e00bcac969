//! What every plan keeps, and how good the heuristics are.

use proptest::prelude::*;
use rackweave_core::{Rate, Rng, Span};
use rackweave_rackless::config::Configuration;
use rackweave_rackless::cost::{Reconfiguration, Scope};
use rackweave_rackless::demand::Period;
use rackweave_rackless::fabric::{Architecture, Fabric, Reach};
use rackweave_rackless::plan::{Algorithm, Options, Plan, PlanError, plan};
use rackweave_rackless::pod::{Pod, Tor};

use crate::{instances, reference};

fn planned(
    fabric: &Fabric,
    periods: &[Period],
    algorithm: Algorithm,
    reconfiguration: Reconfiguration,
) -> Plan {
    let options = Options::new(algorithm, reconfiguration);
    plan(fabric, periods, &options, &mut Rng::stream(1, 0, 0, "plan")).unwrap()
}

/// A pod of up to 12 servers below `ToR`s of several sizes, with free ports.
fn small_pod(seed: u64) -> Pod {
    let mut rng = Rng::stream(seed, 0, 0, "pod");
    let rate = Rate::from_gbps(10);
    let mut tor = || Tor {
        ports: 1 + rng.below(4) as u32,
        uplinks: 1 + rng.below(3) as u32,
        uplink_rate: Rate::from_gbps(1 + rng.below(10)),
        slots: rng.below(2) * 65_536,
    };
    let tors = vec![tor(), tor(), tor()];
    let ports: u32 = tors.iter().map(|tor| tor.ports).sum();
    let servers = ports - u32::from(ports > 3 && seed.is_multiple_of(2));
    Pod::new(servers.max(2), rate, tors).unwrap()
}

proptest! {
    #![proptest_config(rackweave_testing::cases(60))]

    /// Any pod, architecture and algorithm: capacity is kept, the reported cost is that of the definition, and the optimum is
    /// no worse than any heuristic.
    #[test]
    fn plans_keep_capacity_and_cost_what_they_say(seed in any::<u64>(), moved in any::<bool>(), which in 0..4_usize) {
        let pod = small_pod(seed);
        let mut rng = Rng::stream(seed, 0, 0, "periods");
        let periods = instances::periods(&mut rng, pod.servers(), 5, 2);
        let scope = if moved { Scope::Moved } else { Scope::All };
        let delay = Span::from_ms(rng.below(30));
        let reconfiguration = Reconfiguration { delay, scope };
        let architecture = Architecture::ALL[which];
        let fabric = Fabric::new(pod.clone(), architecture);
        if fabric.configurations(2000).is_none() {
            return Ok(());
        }
        let exact = planned(&fabric, &periods, Algorithm::Exact, reconfiguration);
        for algorithm in Algorithm::ALL {
            let plan = planned(&fabric, &periods, algorithm, reconfiguration);
            prop_assert!(exact.total <= plan.total, "{algorithm:?}");
            prop_assert_eq!(&plan, &planned(&fabric, &periods, algorithm, reconfiguration));
            let mut total = 0.0;
            let mut before = fabric.initial().clone();
            prop_assert_eq!(plan.steps.len(), periods.len());
            for (step, period) in plan.steps.iter().zip(&periods) {
                let racks = step.configuration.racks(pod.tors().len());
                for (rack, tor) in racks.iter().zip(pod.tors()) {
                    prop_assert!(rack.len() <= tor.ports as usize, "{step:?}");
                }
                prop_assert_eq!(racks.concat().len(), pod.servers() as usize);
                if !architecture.is_rackless() {
                    prop_assert_eq!(step.configuration.tor_of(), fabric.initial().tor_of());
                }
                if let Some(circuits) = step.configuration.circuits() {
                    for (tor, it) in pod.tors().iter().enumerate() {
                        prop_assert!(circuits.degree(tor) <= it.uplinks);
                    }
                }
                let (time, _) = reference::cost(&fabric, period, &before, &step.configuration, reconfiguration);
                total += time;
                before = step.configuration.clone();
            }
            if !architecture.has_circuits() {
                prop_assert!((plan.total.as_ps() as f64 - total).abs() < 1e5, "{:?} is not {total}", plan.total);
            }
        }
    }

    /// A delay longer than the whole fixed plan cannot pay, and without a delay every period has its best configuration.
    #[test]
    fn the_delay_decides_whether_anything_moves(seed in any::<u64>()) {
        let instance = instances::random(seed, Scope::All);
        let (fabric, periods) = (&instance.fabric, &instance.periods[..]);
        let none = Reconfiguration { delay: Span::ZERO, scope: Scope::All };
        let fixed = planned(fabric, periods, Algorithm::Fixed, none).total;
        for algorithm in Algorithm::ALL {
            if algorithm != Algorithm::Greedy {
                let long = Reconfiguration { delay: fixed + Span::from_ticks(1), scope: Scope::All };
                let plan = planned(fabric, periods, algorithm, long);
                prop_assert_eq!(plan.reconfigurations(), 0, "{:?}", algorithm);
                prop_assert_eq!(plan.total, fixed);
            }
        }
        let all = fabric.configurations(2000).unwrap();
        let best = |period| all.iter().map(|it| fabric.cost(period, it).time).min().unwrap();
        let exact = planned(fabric, periods, Algorithm::Exact, none);
        prop_assert_eq!(exact.total, periods.iter().map(best).sum());
    }
}

#[test]
fn the_heuristic_is_within_5_percent_of_the_optimum() {
    for (scope, reach) in
        [(Scope::All, Reach::Path), (Scope::Moved, Reach::Path), (Scope::Moved, Reach::Rack)]
    {
        for seed in 0..200 {
            let instance = instances::random(seed, scope);
            let (fabric, periods) =
                (&instance.fabric.clone().with_reach(reach), &instance.periods[..]);
            let exact = planned(fabric, periods, Algorithm::Exact, instance.reconfiguration).total;
            let found =
                planned(fabric, periods, Algorithm::Heuristic, instance.reconfiguration).total;
            let gap = found.as_ps() as f64 / exact.as_ps() as f64 - 1.0;
            assert!((0.0..0.05).contains(&gap), "instance {seed}, {scope:?}, {reach:?}: {gap}");
        }
    }
}

/// The best plan by trying every sequence, for few configurations and periods.
fn brute(fabric: &Fabric, periods: &[Period], at: &Configuration, how: Reconfiguration) -> u64 {
    let Some((period, rest)) = periods.split_first() else { return 0 };
    let all = fabric.configurations(100).unwrap();
    let one = |next: &Configuration| {
        fabric
            .cost_after(period, at, next, how)
            .time
            .as_ps()
            .saturating_add(brute(fabric, rest, next, how))
    };
    all.iter().map(one).min().unwrap()
}

#[test]
fn the_exact_plan_is_the_best_of_all_sequences() {
    let rate = Rate::from_gbps(10);
    let tor = |slots| Tor { ports: 2, uplinks: 1, uplink_rate: rate, slots };
    for (seed, architecture) in
        (0..12).flat_map(|seed| [Architecture::P4Ordc, Architecture::P4IncAoi].map(|it| (seed, it)))
    {
        let circuits = architecture.has_circuits();
        let tors = if circuits {
            vec![Tor { uplinks: 3, ..tor(0) }, tor(9), tor(0)]
        } else {
            vec![tor(9), tor(0)]
        };
        let servers = if circuits { 6 } else { 4 };
        let fabric = Fabric::new(Pod::new(servers, rate, tors).unwrap(), architecture);
        let mut rng = Rng::stream(seed, 0, 0, "brute");
        let periods = instances::periods(&mut rng, servers, 3, 1);
        for scope in [Scope::All, Scope::Moved] {
            let how = Reconfiguration { delay: Span::from_ms(rng.below(40)), scope };
            let exact = planned(&fabric, &periods, Algorithm::Exact, how).total;
            assert_eq!(
                exact.as_ps(),
                brute(&fabric, &periods, fabric.initial(), how),
                "seed {seed} {how:?}"
            );
        }
    }
}

#[test]
fn large_pods_have_no_exact_plan_and_heuristics_gain() {
    let instance = instances::large(1, Scope::Moved);
    let (fabric, periods) = (&instance.fabric, &instance.periods[..6]);
    let options = Options::new(Algorithm::Exact, instance.reconfiguration);
    let refused = plan(fabric, periods, &options, &mut Rng::stream(1, 0, 0, "plan"));
    assert_eq!(refused, Err(PlanError::TooManyConfigurations { limit: 2000 }));
    let total =
        |algorithm| planned(fabric, periods, algorithm, instance.reconfiguration).total.as_ps();
    let fixed = total(Algorithm::Fixed);
    for algorithm in [Algorithm::Heuristic, Algorithm::Eclipse, Algorithm::Hysteresis] {
        assert!(total(algorithm) < fixed * 9 / 10, "{algorithm:?} of {fixed}");
    }
}

#[test]
fn a_long_trace_is_planned_in_blocks_and_pairs_of_servers_are_matched() {
    let rate = Rate::from_gbps(10);
    let tor = Tor { ports: 2, uplinks: 1, uplink_rate: Rate::from_gbps(1), slots: 0 };
    let pod = Pod::new(10, rate, vec![tor; 5]).unwrap();
    let fabric = Fabric::new(pod, Architecture::Ordc);
    let mut rng = Rng::stream(5, 0, 0, "pairs");
    let mut periods = Vec::new();
    for _ in 0..150 {
        // Five pairs exchange data, so that the best racks keep all of it off the uplinks.
        let mut order: Vec<u32> = (0..10).collect();
        rng.shuffle(&mut order);
        let pairs = order.chunks(2);
        let flow = |pair: &[u32]| rackweave_rackless::demand::Flow {
            src: pair[0],
            dst: pair[1],
            bytes: 1_000_000,
        };
        periods.push(Period::new(10, pairs.map(flow).collect(), vec![], vec![]).unwrap());
    }
    let none = Reconfiguration { delay: Span::ZERO, scope: Scope::All };
    let plan = planned(&fabric, &periods, Algorithm::Heuristic, none);
    assert_eq!(plan.total, Span::from_us(800) * 150);
    assert!(plan.steps.iter().all(|step| step.cost.crossing == 0));
}

#[test]
fn architectures_are_ordered_as_in_the_paper() {
    let mut sums = [0_u64; 4];
    for seed in 0..40 {
        let instance = instances::random(seed, Scope::Moved);
        let how = Reconfiguration { delay: Span::from_ms(1), scope: Scope::Moved };
        for (sum, architecture) in sums.iter_mut().zip(Architecture::ALL) {
            let fabric = Fabric::new(Pod::paper(), architecture);
            *sum += planned(&fabric, &instance.periods, Algorithm::Heuristic, how).total.as_ps();
        }
    }
    let [fat_tree, ordc, aoi, p4_ordc] = sums;
    assert!(p4_ordc < ordc && ordc < fat_tree, "{sums:?}");
    assert!(p4_ordc < aoi, "{sums:?}");
}
