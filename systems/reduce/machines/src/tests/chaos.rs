//! Random jobs on random networks, with workers and switches that lose their memory.

use proptest::prelude::*;

use super::super::master::Epochs;
use super::*;

proptest! {
    #![proptest_config(rackweave_testing::cases(96))]

    #[test]
    fn every_result_is_exact(
        seed in any::<u64>(),
        workers in 1_usize..7,
        each in 0_usize..400,
        vocabulary in 1_u64..2_000,
        slots in prop_oneof![Just(0_u32), 16_u32..600],
        copies in 1_u8..3,
        epochs in prop_oneof![Just(Epochs::Load(50)), (1_u16..40).prop_map(Epochs::Fixed)],
        window in 1_u16..64,
        loss in 0.0..0.25_f64,
        repeat in 0.0..0.25_f64,
        delay_us in 0_u64..500,
        operator in prop_oneof![Just(Operator::Sum), Just(Operator::Count), Just(Operator::Max)],
        order in prop_oneof![Just(Order::Hash), Just(Order::HotFirst)],
        acts in prop::collection::vec((0_u64..40_000, 0_u8..5, 0_u8..7), 0..4),
    ) {
        let aggregation = (slots > 0)
            .then(|| Aggregation { copies, epochs, ..Aggregation::new(SWITCH, slots) });
        let mut job = Job::new(words(seed, workers, each, vocabulary), aggregation);
        (job.operator, job.order, job.window) = (operator, order, window);
        let faults = Faults { loss, repeat, delay: Span::from_us(delay_us) };
        let mut world = World::new(job, slots, faults, seed);
        for (at_us, what, worker) in acts {
            let (at, worker) = (Time::ZERO + Span::from_us(at_us), worker % workers as u8);
            match what {
                0 | 1 => {
                    world.at(at, Act::Kill(worker));
                    world.at(at + Span::from_ms(200), Act::Return(worker));
                }
                2 if slots > 0 => world.at(at, Act::RestartSwitch),
                4 => world.at(at, Act::Lapse),
                3 => {
                    world.at(at, Act::Quiesce);
                    world.at(at + Span::from_ms(30), Act::Resume);
                }
                _ => {}
            }
        }
        world.run_to_end(seconds(300));
    }
}
