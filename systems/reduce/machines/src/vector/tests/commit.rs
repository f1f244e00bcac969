//! The end of jobs whose workers have results: prepared, named, done.

use proptest::prelude::*;
use rackweave_wire::Id64;
use rackweave_wire::reduce::{self, Body, Phase};

use super::*;

const RESULTS: Results =
    Results { within: Span::from_ms(5), unready: None, late: None, held: None, wrong: None };

fn job(results: Results) -> Job {
    let vectors = Vectors { steps: 2, ..vectors(300, Format::I64) };
    Job { seed: 3, results: Some(results), ..Job::new(3, vectors) }
}

fn world(results: Results) -> World {
    World::new(job(results), Faults::default())
}

fn late(worker: u8, seconds: u64) -> Results {
    Results { late: Some((worker, Span::from_secs(seconds))), ..RESULTS }
}

impl World {
    /// Runs until the master has committed.
    fn run_to_commit(&mut self) {
        while !self.attempts.contains(&master::Event::Committed) {
            assert!(self.now < seconds(5), "{:?}", self.attempts);
            self.run(self.now + Span::from_ms(1));
            self.now += Span::from_ms(1);
        }
    }

    fn is_complete(&self) -> bool {
        self.attempts.last() == Some(&master::Event::Complete)
    }
}

#[test]
fn a_job_ends_when_all_results_have_their_names() {
    let mut world = world(late(1, 40));
    world.run_to_commit();
    assert_eq!(world.master().unnamed().map(u64::count_ones), Some(3));
    // Whoever writes for longer than anybody is patient still answers.
    world.run(seconds(39));
    assert_eq!((world.named, world.master().unnamed()), (0b101, Some(0b010)));
    assert!((0..3).all(|worker| world.outcome(worker).is_none()));
    world.run_to_end(seconds(60));
    assert!((0..3).all(|worker| world.outcome(worker) == Some(Ok(()))));
    // Without results there is no commit.
    let mut plain = World::new(Job { results: None, ..job(RESULTS) }, Faults::default());
    plain.run_to_end(seconds(5));
    assert!(!plain.attempts.contains(&master::Event::Committed));
}

#[test]
fn the_end_is_confirmed_when_links_were_dark_at_the_end() {
    let open =
        Job { open: 3, ..Job::new(3, Vectors { steps: 0, ..vectors(0, Format::BlockFloat) }) };
    for job in [job(RESULTS), open] {
        let mut world = World::new(job, Faults::default());
        (world.dark, world.has_ends) = (Some(Span::from_ms(20)), true);
        world.run_to_end(seconds(60));
        assert!(world.dark_until > Time::ZERO && world.master().is_over());
        assert!(world.now < world.dark_until + Span::from_ms(200), "{:?}", world.now);
        world.now += Span::from_ms(1);
        while let Some((_, Flight::Packet(packet, payload))) = world.flights.pop_due(world.now) {
            world.deliver(packet, &payload);
        }
        world.flush();
        assert!((1..4).all(|host| world.down[host]), "a worker that may go goes");
    }
}

#[test]
fn a_worker_that_dies_before_its_result_has_a_name_is_named_by_the_master() {
    let mut world = world(late(1, 2));
    world.run_to_commit();
    world.act(Act::Kill(1));
    world.run(seconds(60));
    let expected = master::Event::Failed(Failure::WorkerSilent { worker: 1 });
    assert_eq!(world.attempts.last(), Some(&expected));
    assert_eq!((world.named, world.master().unnamed()), (0b101, Some(0b010)));
    assert_eq!(world.outcome(0), Some(Err(Failure::Refused)));
}

#[test]
fn a_worker_that_returns_after_the_commit_gets_the_sum_again_and_names_it() {
    let mut world = world(late(1, 2));
    world.run_to_commit();
    world.act(Act::Kill(1));
    world.at(seconds(5), Act::Return(1));
    world.run_to_end(seconds(30));
    let commits = world.attempts.iter().filter(|it| **it == master::Event::Committed);
    assert_eq!((commits.count(), world.summed[&(1, 1)]), (2, 2));
    assert!((0..3).all(|worker| world.outcome(worker) == Some(Ok(()))));
}

#[test]
fn nobody_waits_for_a_worker_whose_result_has_its_name() {
    let mut world = world(late(1, 40));
    world.run_to_commit();
    world.run(seconds(1));
    world.act(Act::Kill(0));
    world.run(seconds(100));
    assert!(world.is_complete(), "{:?}", world.attempts);
    assert!(world.now < seconds(80), "the master stays for its patience: {:?}", world.now);
}

#[test]
fn the_name_of_a_process_that_was_replaced_is_not_that_of_the_next_one() {
    // Worker 0 returns to another disk after its name, and dies again before it has one there.
    let mut world = world(late(1, 10));
    world.run_to_commit();
    world.run(seconds(1));
    world.act(Act::Kill(0));
    world.at(seconds(2), Act::Return(0));
    world.job.results = Some(late(0, 1_000));
    world.at(seconds(15), Act::Kill(0));
    world.run(seconds(100));
    let expected = master::Event::Failed(Failure::WorkerSilent { worker: 0 });
    assert_eq!(world.attempts.last(), Some(&expected));
}

#[test]
fn a_worker_that_leaves_takes_back_that_it_is_prepared() {
    let mut world = world(Results { unready: Some((1, Span::from_secs(2))), ..RESULTS });
    world.run(seconds(1));
    assert_eq!(world.prepared, 0b101);
    world.nodes[1].worker_mut().unwrap().leave();
    world.run(seconds(4));
    assert_eq!(world.prepared, 0b111);
    assert!(!world.attempts.contains(&master::Event::Committed), "{:?}", world.attempts);
    world.at(seconds(5), Act::Return(0));
    world.run_to_end(seconds(60));
}

#[test]
fn a_worker_that_is_killed_before_it_confirms_the_end_learns_of_it_when_it_returns() {
    let mut world = world(Results { held: Some(2), ..RESULTS });
    world.run(seconds(5));
    assert!(world.is_complete() && world.outcome(2) == Some(Ok(())));
    assert!(!world.master().is_over());
    world.act(Act::Kill(2));
    world.at(seconds(20), Act::Return(2));
    world.run(seconds(25));
    assert_eq!(world.outcome(2), Some(Ok(())));
    let side = world.nodes[3].worker_mut().unwrap();
    assert_eq!((side.machine().digest(), side.machine().layout()), (Some(5), None));
    side.acknowledge(world.now);
    world.run(seconds(26));
    assert!(world.master().is_over());
}

#[test]
fn a_master_whose_job_is_complete_is_as_patient_as_before() {
    let mut world = world(Results { held: Some(2), ..RESULTS });
    world.run(seconds(5));
    world.act(Act::Kill(2));
    world.run(seconds(28));
    assert!(world.is_complete() && !world.master().is_over());
    world.run(seconds(40));
    assert!(world.master().is_over());
    // Nobody waits for a worker that has said that it leaves, nor after a failure.
    let mut failed = self::world(late(1, 20));
    failed.run_to_commit();
    failed.act(Act::Kill(2));
    let now = failed.now;
    failed.nodes[0].master_mut().unwrap().interrupt(now);
    failed.run(seconds(10));
    assert!(failed.master().is_over());
}

fn state(worker: u8, token: u64, body: Body) -> reduce::Header {
    reduce::Header { job: JOB, attempt: 0, worker, token: Id64::new(token), body }
}

#[test]
fn a_worker_that_is_not_prepared_commits_nothing() {
    let config =
        worker::Config { length: 16, holds_end: true, ..worker::Config::new(JOB, 0, MASTER, 1) };
    let mut worker = worker::Worker::new(config, Time::ZERO);
    let body = Body::VectorState { version: 1, instance: 1, phase: Phase::Commit };
    let _ = worker.handle(Time::ZERO, MASTER, &state(0, TOKEN, body), &[0; 32]);
    assert_eq!(worker.poll_event(), None);
    assert!(matches!(
        worker.poll(Time::ZERO).map(|message| message.header.body),
        Some(Body::JoinVector { .. })
    ));
}

#[test]
fn results_that_differ_are_no_success() {
    let mut world = world(Results { wrong: Some(1), ..RESULTS });
    world.run(seconds(10));
    let last = world.attempts.last();
    assert!(
        matches!(last, Some(master::Event::Failed(Failure::OtherSum { .. }))),
        "{:?}",
        world.attempts
    );
    assert!((0..3).all(|worker| world.outcome(worker) == Some(Err(Failure::Refused))));
}

proptest! {
    #![proptest_config(rackweave_testing::cases(128))]

    /// [`World::application`] checks that nobody says that the job is complete while a result has no name.
    #[test]
    fn nobody_ends_well_without_all_results(
        seed in any::<u64>(),
        workers in 1_u8..6,
        length in 1_u64..300,
        steps in 1_u32..3,
        loss in 0.0..0.2_f64,
        repeat in 0.0..0.25_f64,
        delay_us in 0_u64..500,
        within_us in prop_oneof![Just(0_u64), 0_u64..30_000],
        has_switch in any::<bool>(),
        kills in prop::collection::vec((0_u64..60_000, 0_u8..6, 0_u64..4_000, any::<bool>()), 0..4),
    ) {
        let vectors = Vectors { length, steps, ..vectors(length, Format::I64) };
        let results = Some(Results { within: Span::from_us(within_us), ..RESULTS });
        let job = Job { seed, results, has_switch, ..Job::new(workers, vectors) };
        let faults = Faults { loss, repeat, delay: Span::from_us(delay_us) };
        let mut world = World::new(job, faults);
        let (mut deaths, mut gone) = (0_u64, 0_u64);
        let mut last = BTreeMap::new();
        for (at_us, worker, away_ms, returns) in kills {
            let (at, worker) = (Time::ZERO + Span::from_us(at_us), worker % workers);
            deaths |= 1 << worker;
            world.at(at, Act::Kill(worker));
            let back = at + Span::from_ms(away_ms);
            if returns {
                world.at(back, Act::Return(worker));
            }
            let end = if returns { back } else { at };
            let entry = last.entry(worker).or_insert((end, returns));
            if end >= entry.0 {
                *entry = (end, returns);
            }
        }
        for (worker, (_, returns)) in &last {
            gone |= u64::from(!returns) << worker;
        }
        world.run(seconds(300));
        prop_assert!(world.master().has_ended());
        // The job fails only if somebody does not return.
        prop_assert!(world.is_complete() || gone != 0, "{:?}", world.attempts);
        for worker in 0..workers {
            let is_well = world.outcome(worker) == Some(Ok(()));
            let has_died = deaths >> worker & 1 == 1;
            prop_assert!(is_well || has_died || !world.is_complete(), "{worker}");
        }
    }
}
