//! Single faults, and what is known of them afterwards.

use super::super::Failure;
use super::super::master::Absence;
use super::*;

fn job(seed: u64) -> Job {
    Job::new(words(seed, 4, 3_000, 4_000), Some(Aggregation::new(SWITCH, 800)))
}

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_ms(n)
}

/// A network on which a job takes 20 ms or so, so that faults meet it.
const SLOW: Faults = Faults { loss: 0.02, repeat: 0.01, delay: Span::from_us(900) };

#[test]
fn a_worker_that_returns_repeats_only_epochs_that_are_not_collected() {
    let mut world = World::new(job(1), 800, SLOW, 1);
    world.at(ms(12), Act::Kill(2));
    world.at(ms(20), Act::Return(2));
    world.run_to_end(seconds(30));
    let counters = *world.master().machine().counters();
    assert_eq!(counters.restarts, 1);
    let (epochs, _) = world.master().machine().progress();
    let discarded = world.nodes[1].workers()[0].machine().counters().restarts;
    assert!(epochs > 4 && discarded == 1);
}

#[test]
fn a_worker_that_is_killed_at_the_end_and_returns_learns_of_it() {
    let mut world = World::new(job(1), 800, SLOW, 1);
    while !world.master().machine().has_ended() {
        world.run(world.now + Span::from_us(5));
        world.now += Span::from_us(5);
    }
    world.act(Act::Kill(2));
    world.at(world.now + Span::from_secs(20), Act::Return(2));
    world.run_to_end(seconds(60));
    assert_eq!(world.nodes[3].workers()[0].outcome(), Some(Ok(())));
    assert!(world.now < seconds(25), "the master does not wait for longer: {:?}", world.now);
}

#[test]
fn a_switch_that_restarts_is_used_again() {
    let mut world = World::new(job(2), 800, SLOW, 2);
    world.at(ms(10), Act::RestartSwitch);
    world.run_to_end(seconds(30));
    assert_eq!(world.master().machine().counters().restarts, 1);
    assert_eq!(world.master().progress().absence, None);
    assert!(world.switch_counts().absorbed > 0);
}

#[test]
fn sums_that_have_lapsed_with_their_reservation_are_sent_again() {
    let mut restarts = 0;
    for seed in 0..40 {
        let mut world = World::new(job(seed), 800, SLOW, seed);
        // Some of these meet a renewal, others the collection of an epoch, a request for slots, or nothing.
        for n in 0..30 {
            world.at(ms(3) + Span::from_us(1_700) * n, Act::Lapse);
        }
        world.run_to_end(seconds(30));
        restarts += world.master().machine().counters().restarts;
    }
    assert!(restarts > 20, "{restarts}");
}

#[test]
fn a_worker_that_answers_and_sends_nothing_does_not_keep_the_others_for_ever() {
    let mut world = World::new(job(21), 800, Faults::default(), 21);
    world.mute = Some(HostId(2));
    let give_up = Span::from_secs(100_000);
    let config = worker::Config { give_up, ..worker::Config::new(JOB, 1, MASTER, 50) };
    let side = WorkerSide::new(config, world.job.pairs(1), Order::Hash, Time::ZERO);
    world.nodes[2] = ReduceNode::new(HostId(2));
    world.nodes[2].add_worker(side);
    world.run(seconds(1_000));
    let outcome = world.master().progress().outcome;
    assert_eq!(outcome, Some(Err(Failure::NoProgress { workers: 0b10 })));
}

#[test]
fn who_takes_the_place_of_a_worker_must_have_its_pairs() {
    for same in [true, false] {
        let mut world = World::new(job(22), 800, SLOW, 22);
        world.at(ms(12), Act::Kill(2));
        world.run(ms(20));
        if !same {
            world.job.words[2].push(b"another word".to_vec());
        }
        world.act(Act::Return(2));
        if !same {
            world.job.words[2].pop();
        }
        world.run(seconds(60));
        let outcome = world.master().progress().outcome;
        let expected = if same { Ok(()) } else { Err(Failure::OtherInput { worker: 2 }) };
        assert_eq!(outcome, Some(expected));
    }
}

#[test]
fn a_switch_that_dies_is_given_up() {
    let mut world = World::new(job(3), 800, SLOW, 3);
    world.at(ms(10), Act::KillSwitch);
    world.run_to_end(seconds(30));
    assert_eq!(world.master().progress().absence, Some(Absence::Silent));
}

#[test]
fn a_switch_that_was_never_there_is_given_up() {
    let mut world = World::new(job(4), 800, SLOW, 4);
    world.switch = None;
    world.run_to_end(seconds(30));
    assert_eq!(world.master().progress().absence, Some(Absence::Silent));
}

#[test]
fn a_worker_that_does_not_return_fails_the_job_by_its_number() {
    let mut world = World::new(job(5), 800, SLOW, 5);
    world.at(ms(10), Act::Kill(3));
    world.run(seconds(60));
    let outcome = world.master().progress().outcome;
    assert_eq!(outcome, Some(Err(Failure::WorkerSilent { worker: 3 })));
    let others = world.nodes[1].workers()[0].outcome();
    assert_eq!(others, Some(Err(Failure::Refused)));
}

#[test]
fn workers_that_never_join_are_named() {
    let mut world = World::new(job(6), 800, SLOW, 6);
    (world.down[2], world.down[4]) = (true, true);
    world.run(seconds(60));
    let outcome = world.master().progress().outcome.unwrap();
    assert_eq!(outcome.unwrap_err().to_string(), "workers have not joined: 1, 3");
}

#[test]
fn workers_give_up_a_master_that_is_gone() {
    let mut world = World::new(job(7), 800, SLOW, 7);
    world.down[0] = true;
    world.run(seconds(60));
    for node in &world.nodes[1..] {
        assert_eq!(node.workers()[0].outcome(), Some(Err(Failure::MasterSilent)));
        assert!(node.is_done());
    }
}

#[test]
fn a_number_that_is_in_use_is_not_given_to_another_worker() {
    let mut world = World::new(job(8), 800, SLOW, 8);
    world.run(ms(5));
    // A second process with the number of worker 0, at the host of worker 3, which is replaced.
    let pairs = world.job.pairs(1);
    let config = worker::Config::new(JOB, 0, MASTER, 99);
    world.nodes[4].add_worker(WorkerSide::new(config, pairs, Order::Hash, world.now));
    world.run_to_end(seconds(30));
    assert_eq!(world.master().machine().counters().restarts, 0);
}

#[test]
fn a_job_that_is_stopped_has_nothing_under_way_and_goes_on() {
    let mut world = World::new(job(9), 800, SLOW, 9);
    world.at(ms(6), Act::Quiesce);
    world.run(ms(400));
    let quiesced = std::iter::from_fn(|| world.master().poll_event())
        .any(|event| event == master::Event::Quiesced);
    assert!(quiesced && !world.master().machine().has_ended());
    let before = world.switch_counts();
    world.run(seconds(400));
    let after = world.switch_counts();
    assert_eq!(before.packets, after.packets);
    world.master().machine_mut().resume();
    world.run_to_end(seconds(430));
    assert_eq!(world.master().machine().counters().restarts, 0);
}

#[test]
fn a_worker_without_a_path_to_the_switch_ends_with_its_address() {
    let mut world = World::new(job(10), 800, Faults::default(), 10);
    world.blocked = Some(HostId(2));
    world.run(seconds(100));
    let failure = Failure::NotAcknowledged { aggregator: SWITCH };
    assert_eq!(world.nodes[2].workers()[0].outcome(), Some(Err(failure)));
    let outcome = world.master().progress().outcome;
    assert_eq!(outcome, Some(Err(Failure::WorkerLeft { worker: 1, waited: 0 })));
}

#[test]
fn records_that_are_not_what_the_worker_announces_fail_the_job_in_its_last_epoch_too() {
    let text = vec![vec![b"one word that does not fit a slot".to_vec()]];
    let mut world = World::new(Job::new(text, None), 0, Faults::default(), 11);
    world.shortened = true;
    world.run(seconds(60));
    let outcome = world.master().progress().outcome;
    assert!(matches!(outcome, Some(Err(Failure::Records { worker: 0, .. }))), "{outcome:?}");
    assert_eq!(world.nodes[1].workers()[0].outcome(), Some(Err(Failure::Refused)));
}

#[test]
fn a_worker_that_leaves_can_be_replaced_at_once_and_is_missed_otherwise() {
    for returns in [true, false] {
        let mut world = World::new(job(12), 800, SLOW, 12);
        world.run_until_started();
        world.nodes[2].leave();
        if returns {
            world.at(world.now + Span::from_ms(2), Act::Return(1));
            world.run_to_end(seconds(30));
            assert_eq!(world.master().machine().counters().restarts, 1);
            // Another process can take the place of one that dies after the takeover time of 1 s only.
            assert!(world.now < seconds(1), "{:?}", world.now);
        } else {
            world.run(seconds(100));
            let outcome = world.master().progress().outcome;
            assert_eq!(outcome, Some(Err(Failure::WorkerLeft { worker: 1, waited: 0 })));
        }
        assert!(world.left(), "the master reports it");
    }
}

#[test]
fn a_worker_with_another_operator_ends_and_names_the_masters() {
    let mut world = World::new(job(13), 800, SLOW, 13);
    let mut pairs = Pairs::new(Operator::Max);
    pairs.add(b"word", 1);
    let config = worker::Config::new(JOB, 1, MASTER, 99);
    let mut node = ReduceNode::new(HostId(2));
    node.add_worker(WorkerSide::new(config, pairs, Order::Hash, world.now));
    world.nodes[2] = node;
    world.run(ms(500));
    let failure = Failure::OtherOperator { operator: Operator::Sum };
    assert_eq!(world.nodes[2].workers()[0].outcome(), Some(Err(failure)));
    world.at(ms(500), Act::Return(1));
    world.run_to_end(seconds(30));
}

#[test]
fn a_master_that_is_interrupted_ends_its_workers() {
    let mut world = World::new(job(14), 800, SLOW, 14);
    world.run_until_started();
    let now = world.now;
    world.master().interrupt(now);
    world.run(seconds(3));
    assert_eq!(world.master().progress().outcome, Some(Err(Failure::Interrupted)));
    for node in &world.nodes[1..] {
        assert_eq!(node.workers()[0].outcome(), Some(Err(Failure::Refused)));
    }
}

/// A job whose master has all sums, and has not written them, for a minute in which one worker dies and another is replaced.
fn collected() -> World {
    let mut world = World::new(Job { holds_end: true, ..job(1) }, 800, SLOW, 1);
    world.run(seconds(2));
    assert_eq!(world.master().progress().outcome, Some(Ok(())));
    world.at(seconds(3), Act::Kill(1));
    world.at(seconds(3), Act::Kill(2));
    world.at(seconds(8), Act::Return(2));
    world.run(seconds(68));
    world.now = seconds(68);
    assert_eq!(world.result(), world.job.expected(), "what is here stays");
    assert!(!world.master().machine().has_ended());
    for host in [1, 3, 4] {
        assert_eq!(world.nodes[host].workers()[0].outcome(), None, "nobody has heard of the end");
    }
    world
}

#[test]
fn workers_hear_of_the_end_when_the_result_is_written() {
    let mut world = collected();
    let now = world.now;
    world.master().conclude(now, true);
    world.run(now + Span::from_secs(60));
    assert_eq!(world.master().progress().outcome, Some(Ok(())));
    assert!(world.master().machine().is_over());
    for host in [1, 3, 4] {
        assert_eq!(world.nodes[host].workers()[0].outcome(), Some(Ok(())), "host {host}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_nobodys_success() {
    let mut world = collected();
    let now = world.now;
    world.master().conclude(now, false);
    world.run(now + Span::from_secs(60));
    assert_eq!(world.master().progress().outcome, Some(Err(Failure::NotWritten)));
    for host in [1, 3, 4] {
        let outcome = world.nodes[host].workers()[0].outcome();
        assert_eq!(outcome, Some(Err(Failure::Refused)), "host {host}");
    }
}

#[test]
fn a_lost_confirmation_of_the_end_keeps_neither_master_nor_worker() {
    let mut world = World::new(Job { holds_end: true, ..job(1) }, 800, SLOW, 1);
    world.run(seconds(2));
    let now = seconds(2);
    world.now = now;
    world.master().conclude(now, true);
    world.unconfirmed_until = now + Span::from_ms(250);
    while !world.master().machine().is_over() && world.now < seconds(4) {
        world.run(world.now + Span::from_ms(1));
        world.now += Span::from_us(100);
        // A process that is over ends.
        for host in 1..world.nodes.len() {
            world.down[host] |= world.nodes[host].workers()[0].machine().is_over();
        }
    }
    assert!(world.now < now + Span::from_secs(1), "the master waits until {:?}", world.now);
    // The master has ended. What it has sent last arrives.
    world.flush();
    let arrived = world.now + SLOW.delay + Span::from_ms(1);
    while let Some((at, flight)) = world.flights.pop_due(arrived) {
        world.now = at;
        if let Flight::Packet(packet, payload) = flight {
            world.deliver(packet, &payload);
        }
    }
    let stay = |host: usize| world.nodes[host].workers()[0].machine().is_over();
    assert!((1..world.nodes.len()).all(stay), "workers are let go at once");
}
