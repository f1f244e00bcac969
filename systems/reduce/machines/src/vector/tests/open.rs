//! Open jobs: vectors of any length and format, and as many as the workers like.

use proptest::prelude::*;
use rackweave_wire::reduce::{Difference, Offer};

use super::*;

fn job(open: u32) -> Job {
    let vectors = Vectors { steps: 0, ..vectors(0, Format::BlockFloat) };
    Job { open, seed: 9, ..Job::new(4, vectors) }
}

#[test]
fn every_worker_gets_the_sums_of_vectors_that_have_nothing_in_common() {
    for has_switch in [true, false] {
        let mut world = World::new(Job { has_switch, ..job(40) }, Faults::default());
        let formats: BTreeSet<_> = (0..40).map(|step| world.job.shape(step).1 as u8).collect();
        assert_eq!(formats.len(), 2);
        world.run_to_end(seconds(10));
        assert!(world.summed.values().all(|count| *count == 1));
        assert_eq!(world.master().attempt(), 0);
    }
}

/// Three blocks of floats are three exponents and three chunks with elements, whatever the number of slots.
#[test]
fn a_short_vector_is_few_chunks() {
    let vectors = Vectors { steps: 0, ..vectors(0, Format::BlockFloat) };
    let jobs = (0..).map(|seed| Job { open: 1, seed, ..Job::new(2, vectors) });
    let is_short = |job: &Job| matches!(job.shape(0), (33..=48, Format::BlockFloat));
    let job = jobs.into_iter().find(is_short).unwrap();
    let mut world = World::new(job, Faults::default());
    world.run_to_end(seconds(10));
    assert_eq!(world.switch_counts().chunks, 2 * 6);
}

#[test]
fn vectors_that_differ_are_not_added_up_and_all_workers_hear_who_differs() {
    for has_switch in [true, false] {
        for odd in [Odd::Longer, Odd::Integers, Odd::Label, Odd::Last] {
            // A step of floats.
            let jobs = (3..).map(|step| Job { has_switch, odd: Some((2, step, odd)), ..job(40) });
            let is_floats = |job: &Job| job.shape(job.odd.unwrap().1).1 == Format::BlockFloat;
            let job = jobs.into_iter().find(is_floats).unwrap();
            let (_, step, _) = job.odd.unwrap();
            let mut world = World::new(job, Faults { loss: 0.05, ..Faults::default() });
            world.run(seconds(2));
            let length = job.shape(step).0 as u64;
            let format = Format::BlockFloat;
            let expected = Offer { step, length, format, label: 0, is_last: false };
            let found = match odd {
                Odd::Longer => Offer { length: length + 1, ..expected },
                Odd::Integers => Offer { format: Format::I64, ..expected },
                Odd::Label => Offer { label: 7, ..expected },
                Odd::Last => Offer::nothing(step, true),
            };
            let failure =
                Failure::Differ(Difference { workers: 0b100, found, expected, has_majority: true });
            for worker in 0..4 {
                assert_eq!(world.outcome(worker), Some(Err(failure)));
                assert_eq!(world.summed.get(&(worker, step)), None);
            }
            assert!(world.now < seconds(1), "{:?}", world.now);
        }
    }
    let difference = Difference {
        workers: 0b101,
        found: Offer::nothing(5, true),
        expected: Offer { length: 9, label: 7, ..Offer::nothing(5, false) },
        has_majority: true,
    };
    assert_eq!(
        Failure::Differ(difference).to_string(),
        "workers do not add up the same vector 5: workers 0, 2 have none, and the others have 9 elements of type i64 with label 0x7"
    );
    assert_eq!(
        Failure::Differ(Difference { has_majority: false, ..difference }).to_string(),
        "workers do not add up the same vector 5: workers 0, 2 have none, or 9 elements of type i64 with label 0x7"
    );
}

#[test]
fn a_worker_that_leaves_an_open_job_ends_it_at_once() {
    let mut world =
        World::new(job(1_000), Faults { delay: Span::from_us(300), ..Faults::default() });
    world.run(Time::ZERO + Span::from_ms(60));
    assert!(world.summed.len() > 4);
    world.nodes[3].worker_mut().unwrap().leave();
    world.run(Time::ZERO + Span::from_ms(100));
    let failure = Failure::WorkerLeft { worker: 2, waited: 0 };
    assert_eq!(world.attempts.last(), Some(&master::Event::Failed(failure)));
    assert_eq!(world.outcome(0), Some(Err(failure)));
}

#[test]
fn a_worker_that_leaves_while_others_join_ends_an_open_job_at_once() {
    let mut world = World::new(job(3), Faults::default());
    world.down[4] = true;
    world.run(Time::ZERO + Span::from_ms(30));
    world.nodes[3].worker_mut().unwrap().leave();
    world.run(Time::ZERO + Span::from_ms(100));
    let failure = Failure::WorkerLeft { worker: 2, waited: 0 };
    assert_eq!(world.attempts.last(), Some(&master::Event::Failed(failure)));
    assert_eq!(world.outcome(0), Some(Err(failure)));
}

/// One worker has no vector at all, another one has not heard of the attempt, and the switch restarts.
#[test]
fn a_job_without_vectors_begins_again() {
    let mut world = World::new(job(0), Faults::default());
    while world.master().layout().is_none() {
        world.run(world.now + Span::from_us(1));
        world.now += Span::from_us(1);
    }
    world.down[4] = true;
    world.act(Act::RestartSwitch);
    world.run(world.now + Span::from_secs(1));
    assert_eq!(world.outcome(0), None);
    world.down[4] = false;
    world.run_to_end(seconds(20));
    assert!(world.master().attempt() > 0);
}

#[test]
fn a_process_that_returns_to_an_open_job_is_not_its_worker() {
    let mut world =
        World::new(job(1_000), Faults { delay: Span::from_us(300), ..Faults::default() });
    world.at(Time::ZERO + Span::from_ms(60), Act::Kill(2));
    world.at(Time::ZERO + Span::from_ms(90), Act::Return(2));
    world.run(seconds(20));
    let failure = Failure::WorkerLeft { worker: 2, waited: 0 };
    assert_eq!(world.attempts.last(), Some(&master::Event::Failed(failure)));
}

#[test]
fn a_worker_with_vectors_of_one_length_is_not_one_of_an_open_job() {
    let mut world = World::new(job(3), Faults::default());
    let config = worker::Config { length: 5, ..worker::Config::new(JOB, 1, MASTER, 77) };
    world.nodes[2] = VectorNode::new(HostId(2)).with_worker(WorkerSide::new(config, Time::ZERO));
    world.run(seconds(1));
    let other = Failure::OtherVector { length: 0, format: Format::I64 };
    assert_eq!(world.outcome(1), Some(Err(other)));
}

proptest! {
    #![proptest_config(rackweave_testing::cases(96))]

    #[test]
    fn every_sum_is_exact(
        seed in any::<u64>(),
        workers in 1_u8..7,
        open in 1_u32..12,
        elements in 1_u16..20,
        pool in 1_u16..20,
        slots in prop_oneof![Just(0_u32), 64_u32..4_000],
        loss in 0.0..0.2_f64,
        repeat in 0.0..0.25_f64,
        delay_us in 0_u64..500,
        acts in prop::collection::vec((0_u64..40_000, any::<bool>()), 0..4),
    ) {
        let format = Format::BlockFloat;
        let vectors = Vectors { length: 0, format, steps: 0, elements: elements * 2, pool };
        let job = Job { slots, has_switch: slots > 0, seed, open, ..Job::new(workers, vectors) };
        let mut world = World::new(job, Faults { loss, repeat, delay: Span::from_us(delay_us) });
        for (at_us, is_restart) in acts {
            let act = if is_restart { Act::RestartSwitch } else { Act::KillSwitch };
            if slots > 0 {
                world.at(Time::ZERO + Span::from_us(at_us), act);
            }
        }
        world.run(seconds(300));
        prop_assert_eq!(world.attempts.last(), Some(&master::Event::Complete));
        for worker in 0..workers {
            let is_once = |step| world.summed.get(&(worker, step)) == Some(&1);
            prop_assert!((0..open).all(is_once), "worker {}", worker);
        }
    }
}
