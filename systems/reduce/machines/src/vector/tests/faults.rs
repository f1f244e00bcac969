//! Single faults, and what is known of them afterwards.

use super::*;
use crate::master::Absence;

fn job() -> Job {
    let vectors = Vectors { steps: 6, ..vectors(2_000, Format::BlockFloat) };
    Job { seed: 5, ..Job::new(4, vectors) }
}

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_ms(n)
}

/// A network on which a job takes 20 ms or more, so that faults meet it.
const SLOW: Faults = Faults { loss: 0.02, repeat: 0.01, delay: Span::from_us(300) };

/// The chunks at which attempts have begun.
fn firsts(world: &World) -> Vec<u64> {
    let first = |event: &master::Event| match event {
        master::Event::Started { first, .. } => Some(*first),
        _ => None,
    };
    world.attempts.iter().filter_map(first).collect()
}

#[test]
fn a_worker_that_returns_begins_at_the_step_of_the_others() {
    let mut world = World::new(job(), SLOW);
    world.at(ms(60), Act::Kill(2));
    world.at(ms(80), Act::Return(2));
    world.run(seconds(30));
    assert_eq!(world.attempts.last(), Some(&master::Event::Complete));
    let layout = *world.nodes[1].worker().unwrap().machine().layout().unwrap();
    let firsts = firsts(&world);
    assert_eq!(firsts.len(), 2);
    assert!(firsts[1] > 0 && firsts[1].is_multiple_of(layout.chunks()), "{firsts:?}");
    // Surviving workers have each sum once.
    for worker in [0, 1, 3] {
        assert!((0..6).all(|step| world.summed[&(worker, step)] == 1));
    }
}

#[test]
fn a_switch_that_restarts_is_used_again_from_the_first_chunk_that_is_missing() {
    let mut world = World::new(job(), SLOW);
    world.at(ms(60), Act::RestartSwitch);
    world.run_to_end(seconds(30));
    let firsts = firsts(&world);
    assert_eq!(firsts.len(), 2);
    let layout = *world.nodes[1].worker().unwrap().machine().layout().unwrap();
    assert!(firsts[1] > 0 && !firsts[1].is_multiple_of(layout.chunks()), "{firsts:?}");
    assert!(world.summed.values().all(|count| *count == 1));
    assert!(world.switch_counts().chunk_sums < layout.end());
}

#[test]
fn a_switch_that_dies_is_replaced_by_a_host() {
    let mut world = World::new(job(), SLOW);
    world.at(ms(60), Act::KillSwitch);
    world.run_to_end(seconds(30));
    let silent = master::Event::Without { aggregator: SWITCH, absence: Absence::Silent };
    assert!(world.attempts.contains(&silent));
    assert!(world.nodes[0].aggregator().unwrap().program().counts().chunk_sums > 0);
}

#[test]
fn without_any_aggregator_the_job_fails_with_its_address() {
    let mut world = World::new(job(), SLOW);
    world.nodes[0] = VectorNode::new(MASTER).with_master({
        let mut config = world.master().config().clone();
        config.aggregators = vec![SWITCH];
        Master::new(config, Time::ZERO)
    });
    world.switch = None;
    world.run(seconds(60));
    let failure = Failure::NoAggregator { aggregator: SWITCH, absence: Absence::Silent };
    assert_eq!(world.attempts.last(), Some(&master::Event::Failed(failure)));
    assert!(failure.to_string().contains("does not answer"), "{failure}");
    assert_eq!(world.outcome(0), Some(Err(Failure::Refused)));
}

#[test]
fn a_worker_that_does_not_return_fails_the_job_by_its_number() {
    let mut world = World::new(job(), SLOW);
    world.at(ms(60), Act::Kill(3));
    world.run(seconds(60));
    let failure = Failure::WorkerSilent { worker: 3 };
    assert_eq!(world.attempts.last(), Some(&master::Event::Failed(failure)));
    assert_eq!(world.outcome(0), Some(Err(Failure::Refused)));
}

#[test]
fn workers_that_never_join_are_named() {
    let mut world = World::new(job(), SLOW);
    (world.down[2], world.down[4]) = (true, true);
    world.run(seconds(60));
    let Some(master::Event::Failed(failure)) = world.attempts.last() else { panic!() };
    assert_eq!(failure.to_string(), "workers have not joined: 1, 3");
}

#[test]
fn workers_give_up_a_master_that_is_gone() {
    let mut world = World::new(job(), SLOW);
    world.down[0] = true;
    world.run(seconds(60));
    assert!((0..4).all(|worker| world.outcome(worker) == Some(Err(Failure::MasterSilent))));
}

#[test]
fn a_worker_without_a_path_to_the_aggregator_ends_with_its_address() {
    let mut world = World::new(job(), Faults::default());
    world.blocked = Some(HostId(2));
    world.run(seconds(100));
    let failure = Failure::NotAcknowledged { aggregator: SWITCH };
    assert_eq!(world.outcome(1), Some(Err(failure)));
    // The others hear that the aggregator waits, so they do not give up. The master hears at once that the worker has.
    let failure = Failure::WorkerLeft { worker: 1, waited: 0 };
    assert_eq!(world.attempts.last(), Some(&master::Event::Failed(failure)));
    assert!(world.nodes[1].worker().unwrap().machine().counters().waiting > 0);
}

#[test]
fn a_worker_with_another_vector_ends_and_is_named() {
    let mut world = World::new(job(), Faults::default());
    let config = worker::Config::new(JOB, 1, MASTER, 99);
    let config = worker::Config { length: 1_999, format: Format::BlockFloat, ..config };
    world.nodes[2] = VectorNode::new(HostId(2)).with_worker(WorkerSide::new(config, Time::ZERO));
    world.run(seconds(60));
    let (length, format) = (2_000, Format::BlockFloat);
    assert_eq!(world.outcome(1), Some(Err(Failure::OtherVector { length, format })));
    let other = master::Event::OtherVector { worker: 1, length: 1_999, format };
    assert!(world.attempts.contains(&other), "{:?}", world.attempts);
    let failure = Failure::NotJoined { workers: 0b10 };
    assert_eq!(world.attempts.last(), Some(&master::Event::Failed(failure)));
}

#[test]
fn a_master_takes_length_and_format_from_the_first_worker() {
    for format in [Format::I64, Format::BlockFloat] {
        // Chunks have the bytes of 32 integers.
        let open = Vectors { length: 0, format: Format::I64, elements: 32, ..job().vectors };
        let mut world = World::new(Job { vectors: open, ..job() }, SLOW);
        let elements = 256 / format.bytes();
        world.job.vectors = Vectors { format, elements, ..job().vectors };
        for number in 0..4 {
            world.nodes[usize::from(number) + 1] = world.worker(number);
        }
        world.run_to_end(seconds(30));
        let layout = world.master().layout().unwrap();
        assert_eq!((layout.length, layout.elements), (2_000, elements), "{format}");
    }
}

/// Kills a worker in the middle of a job, and starts another process in its place with vectors of this digest.
fn returns_with(digest: u64) -> World {
    let mut world = World::new(job(), SLOW);
    let worker = |world: &mut World, instance, digest| {
        let Vectors { length, format, .. } = world.job.vectors;
        let config = worker::Config::new(JOB, 2, MASTER, instance);
        let config = worker::Config { length, format, digest, ..config };
        VectorNode::new(HostId(3)).with_worker(WorkerSide::new(config, world.now))
    };
    world.nodes[3] = worker(&mut world, 101, 7);
    world.run(ms(60));
    world.nodes[3] = worker(&mut world, 102, digest);
    world.run(seconds(60));
    world
}

#[test]
fn a_worker_that_returns_with_other_vectors_fails_the_job() {
    assert_eq!(returns_with(7).attempts.last(), Some(&master::Event::Complete));
    let failure = Failure::OtherInput { worker: 2 };
    assert_eq!(returns_with(8).attempts.last(), Some(&master::Event::Failed(failure)));
}

#[test]
fn a_worker_that_leaves_is_replaced_at_once_or_named() {
    for returns in [true, false] {
        let mut world = World::new(job(), Faults { loss: 0.0, ..SLOW });
        world.run(ms(20));
        world.nodes[2].worker_mut().unwrap().leave();
        world.run(ms(25));
        assert!(world.attempts.contains(&master::Event::Left { worker: 1 }));
        assert_eq!(world.outcome(1), Some(Err(Failure::Interrupted)));
        if returns {
            world.nodes[2] = world.worker(1);
            world.run(ms(900));
            assert!(world.attempts.contains(&master::Event::Replaced { worker: 1 }));
            world.run(seconds(60));
            assert_eq!(world.attempts.last(), Some(&master::Event::Complete));
        } else {
            world.run(seconds(60));
            let failure = Failure::WorkerLeft { worker: 1, waited: 0 };
            assert_eq!(world.attempts.last(), Some(&master::Event::Failed(failure)));
        }
    }
}

#[test]
fn an_interrupted_master_ends_its_workers() {
    let mut world = World::new(job(), SLOW);
    world.run(ms(20));
    let now = world.now;
    world.nodes[0].master_mut().unwrap().interrupt(now);
    world.run(seconds(60));
    assert!((0..4).all(|worker| world.outcome(worker) == Some(Err(Failure::Refused))));
}

#[test]
fn a_worker_that_computes_for_long_is_waited_for() {
    let mut world = World::new(job(), Faults::default());
    // Worker 2 is alive for its master, and its packets to the switch come a minute late.
    world.blocked = Some(HostId(3));
    world.run(seconds(20));
    world.blocked = None;
    world.run_to_end(seconds(60));
    assert_eq!(world.master().attempt(), 0);
}
