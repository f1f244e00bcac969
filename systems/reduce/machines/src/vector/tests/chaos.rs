//! Random jobs on random networks, with workers and switches that lose their memory.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(rackweave_testing::cases(128))]

    #[test]
    fn every_sum_is_exact(
        seed in any::<u64>(),
        workers in 1_u8..7,
        length in 1_u64..600,
        is_float in any::<bool>(),
        steps in 1_u32..5,
        elements in 1_u16..40,
        pool in 1_u16..20,
        slots in prop_oneof![Just(0_u32), 64_u32..4_000],
        loss in 0.0..0.2_f64,
        repeat in 0.0..0.25_f64,
        delay_us in 0_u64..500,
        acts in prop::collection::vec((0_u64..40_000, 0_u8..4, 0_u8..7), 0..4),
    ) {
        let format = if is_float { Format::BlockFloat } else { Format::I64 };
        let vectors = Vectors { length, format, steps, elements, pool };
        let job = Job { workers, vectors, slots, has_switch: slots > 0, seed, results: None, open: 0, odd: None };
        let faults = Faults { loss, repeat, delay: Span::from_us(delay_us) };
        let mut world = World::new(job, faults);
        let mut deaths = 0_u64;
        for (at_us, what, worker) in acts {
            let (at, worker) = (Time::ZERO + Span::from_us(at_us), worker % workers);
            match what {
                0 | 1 => {
                    deaths |= 1 << worker;
                    world.at(at, Act::Kill(worker));
                    world.at(at + Span::from_ms(200), Act::Return(worker));
                }
                2 if slots > 0 => world.at(at, Act::RestartSwitch),
                3 if slots > 0 => world.at(at, Act::KillSwitch),
                _ => {}
            }
        }
        world.run(seconds(300));
        prop_assert_eq!(world.attempts.last(), Some(&master::Event::Complete));
        for worker in 0..workers {
            // A worker without deaths has each step once. One that returns does not hear of the steps that others have finished.
            for step in 0..steps {
                let summed = world.summed.get(&(worker, step)).copied().unwrap_or(0);
                prop_assert!(deaths != 0 || summed == 1, "{worker} {step} {summed}");
            }
            let last = world.summed.get(&(worker, steps - 1)).copied().unwrap_or(0);
            prop_assert!(last >= 1);
            // One that died when it had all sums may return after the end.
            let has_died = deaths >> worker & 1 == 1;
            let outcome = world.outcome(worker);
            prop_assert!(outcome == Some(Ok(())) || has_died && outcome.is_none(), "{outcome:?}");
        }
    }
}

/// Sums that the network repeats are no sign that a worker's timeout is too short: it doubled until the worker sent a chunk in some
/// seconds, and the job took more than five minutes.
#[test]
fn a_network_that_repeats_packets_does_not_slow_workers_down() {
    let (format, elements) = (Format::BlockFloat, 1);
    let vectors = Vectors { length: 184, format, steps: 2, elements, pool: 3 };
    let seed = 1_764_172_926_612_495_315;
    let job = Job {
        workers: 6,
        vectors,
        slots: 0,
        has_switch: false,
        seed,
        results: None,
        open: 0,
        odd: None,
    };
    let (loss, repeat) = (0.171_492_884_024_075_3, 0.243_735_542_707_136_6);
    let faults = Faults { loss, repeat, delay: Span::from_us(468) };
    let mut world = World::new(job, faults);
    world.run(seconds(60));
    assert_eq!(world.attempts.last(), Some(&master::Event::Complete));
}
