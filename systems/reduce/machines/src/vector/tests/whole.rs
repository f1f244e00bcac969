//! Whole jobs on a network without surprises.

use super::*;

#[test]
fn every_worker_gets_the_sum_of_integers_and_of_floats() {
    for format in [Format::I64, Format::BlockFloat] {
        for (workers, length) in [(1, 5), (2, 16), (3, 1_000), (8, 517)] {
            let mut world =
                World::new(Job::new(workers, vectors(length, format)), Faults::default());
            world.run_to_end(seconds(10));
            assert_eq!(world.master().attempt(), 0);
            assert!(world.summed.values().all(|count| *count == 1));
            let counts = world.switch_counts();
            let layout = *world.nodes[1].worker().unwrap().machine().layout().unwrap();
            assert_eq!(counts.chunk_sums, layout.end());
            assert_eq!(counts.chunks, layout.end() * u64::from(workers));
            assert_eq!((counts.chunk_duplicates, counts.stale), (0, 0));
        }
    }
}

#[test]
fn sums_do_not_depend_on_the_order_of_arrival() {
    // The same vectors on networks that reorder in different ways: every sum is compared with its definition.
    for seed in 0..8 {
        let mut job = Job::new(5, vectors(300, Format::BlockFloat));
        job.seed = 3;
        let faults = Faults { delay: Span::from_us(50 * seed), ..Faults::default() };
        let mut world = World::new(job, faults);
        world.rng = Rng::stream(seed, 0, 0, "network");
        world.run_to_end(seconds(10));
    }
}

#[test]
fn a_small_switch_gives_a_smaller_pool_and_none_leaves_it_to_a_host() {
    // A chunk of 16 integers takes 32 slots with its two versions.
    for (slots, pool) in [(4_096, 8), (100, 3), (32, 1)] {
        let job = Job { slots, ..Job::new(3, vectors(400, Format::I64)) };
        let mut world = World::new(job, Faults::default());
        world.run_to_end(seconds(10));
        let layout = world.nodes[1].worker().unwrap().machine().layout().unwrap();
        assert_eq!(layout.pool, pool);
    }
    let job = Job { slots: 24, ..Job::new(3, vectors(400, Format::I64)) };
    let mut world = World::new(job, Faults::default());
    world.run_to_end(seconds(10));
    let is_without =
        |event: &&master::Event| matches!(event, master::Event::Without { aggregator: SWITCH, .. });
    assert!(world.attempts.iter().any(|event| is_without(&event)));
    let counts = world.nodes[0].aggregator().unwrap().program().counts();
    assert_eq!(counts.chunks, 3 * 3 * 25);
}

#[test]
fn a_host_adds_up_with_the_same_program() {
    let job = Job { has_switch: false, ..Job::new(4, vectors(700, Format::BlockFloat)) };
    let mut world = World::new(job, Faults { loss: 0.05, ..Faults::default() });
    world.run_to_end(seconds(60));
    assert_eq!(world.nodes[0].aggregator().unwrap().dropped(), 0);
}
