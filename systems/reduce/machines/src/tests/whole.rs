//! Jobs on a network without faults, and what the switch has taken of them.

use rackweave_wire::reduce::{Refusal, Rule};

use super::super::master::{Absence, Epochs};
use super::*;

#[test]
fn the_result_is_exact_and_the_switch_takes_nearly_all_that_can_be_taken() {
    let aggregation = Aggregation::new(SWITCH, 2_000);
    let job = Job::new(words(1, 5, 3_000, 4_000), Some(aggregation));
    let pairs: usize = (0..5).map(|worker| job.pairs(worker).len()).sum();
    let keys = job.expected().len();
    let mut world = World::new(job, 2_000, Faults::default(), 1);
    world.run_to_end(seconds(10));
    let progress = *world.master().progress();
    assert!(progress.epochs > 3 && progress.slots == 2_000, "{progress:?}");
    assert!(progress.keys.abs_diff(keys as u64) < keys as u64 / 8, "{progress:?} of {keys}");
    let counts = world.switch_counts();
    let counters = *world.master().machine().counters();
    assert_eq!(counts.absorbed + counts.residual, counts.pairs);
    assert_eq!((counters.pairs, counters.duplicates), (counts.residual, 0));
    // The bound is one pair for each distinct key.
    let to_master = (counters.sums + counters.pairs) as f64;
    let long = pairs as u64 - counts.pairs;
    let bound = (keys as u64 - long.min(keys as u64)) as f64;
    assert!(to_master < 1.1 * (keys as f64), "{to_master} of at least {bound}");
    assert_eq!(world.switch.as_ref().unwrap().program().used(), 0, "all slots are empty again");
    assert_eq!(world.switch.as_ref().unwrap().program().jobs(), 0);
}

#[test]
fn each_operator_and_each_order_gives_its_result() {
    for operator in [Operator::Sum, Operator::Min, Operator::Max, Operator::Count] {
        for order in [Order::Hash, Order::FirstSeen, Order::HotFirst] {
            for slots in [0, 64, 4_000] {
                let aggregation = (slots > 0).then(|| Aggregation::new(SWITCH, slots));
                let mut job = Job::new(words(2, 3, 400, 300), aggregation);
                (job.operator, job.order) = (operator, order);
                World::new(job, slots, Faults::default(), 1).run_to_end(seconds(10));
            }
        }
    }
}

#[test]
fn a_worker_without_words_and_a_job_without_words_end() {
    let aggregation = Some(Aggregation::new(SWITCH, 100));
    let mut some = words(3, 3, 50, 40);
    some[1].clear();
    World::new(Job::new(some, aggregation), 100, Faults::default(), 1).run_to_end(seconds(5));
    let none = vec![Vec::new(); 2];
    World::new(Job::new(none, aggregation), 100, Faults::default(), 1).run_to_end(seconds(5));
}

#[test]
fn key_ranges_make_a_small_table_as_good_as_a_large_one() {
    // The same table, first come and by ranges: the share of pairs that reaches the master.
    let share = |epochs, order| {
        let aggregation = Aggregation { epochs, ..Aggregation::new(SWITCH, 512) };
        let mut job = Job::new(words(4, 7, 4_000, 8_000), Some(aggregation));
        job.order = order;
        let pairs: usize = (0..7).map(|worker| job.pairs(worker).len()).sum();
        let mut world = World::new(job, 512, Faults::default(), 1);
        world.run_to_end(seconds(10));
        let counters = *world.master().machine().counters();
        (counters.sums + counters.pairs) as f64 / pairs as f64
    };
    let first_come = share(Epochs::Fixed(1), Order::Hash);
    let hot_first = share(Epochs::Fixed(1), Order::HotFirst);
    let ranges = share(Epochs::Load(50), Order::Hash);
    assert!(ranges < hot_first && hot_first < first_come, "{ranges} {hot_first} {first_come}");
    assert!(first_come > 1.5 * ranges, "{ranges} {first_come}");
}

#[test]
fn without_a_switch_the_master_adds_up() {
    let mut world = World::new(Job::new(words(5, 4, 500, 400), None), 0, Faults::default(), 1);
    world.run_to_end(seconds(5));
    assert_eq!(world.master().progress().slots, 0);
}

#[test]
fn a_switch_without_room_is_not_used() {
    let job = Job::new(words(6, 3, 200, 100), Some(Aggregation::new(SWITCH, 100)));
    let mut world = World::new(job, 8, Faults::default(), 1);
    world.run_to_end(seconds(5));
    let absence = world.master().progress().absence;
    assert_eq!(absence, Some(Absence::Refused(Refusal::Full)));
}

#[test]
fn the_published_rule_loses_the_words_that_a_worker_does_not_have() {
    let aggregation = Aggregation {
        rule: Rule::Counter,
        copies: 1,
        epochs: Epochs::Fixed(1),
        ..Aggregation::new(SWITCH, 1 << 20)
    };
    let only_short = |word: &Vec<u8>| word.starts_with(b"w");
    let mut text = words(7, 3, 600, 500);
    text.iter_mut().for_each(|words| words.retain(only_short));
    let job = Job::new(text.clone(), Some(aggregation));
    let expected = job.expected();
    let mut world = World::new(job, 1 << 20, Faults::default(), 1);
    world.run(seconds(5));
    let result = world.result();
    let is_everywhere =
        |word: &[u8]| text.iter().all(|words| words.iter().any(|other| other == word));
    let everywhere: Vec<_> =
        expected.iter().filter(|(word, _)| is_everywhere(word)).cloned().collect();
    assert!(everywhere.len() < expected.len() / 2 && !everywhere.is_empty());
    // With a million registers hardly any two words collide: what arrives is right, and the rest is missing.
    assert_eq!(result, everywhere);
}

#[test]
fn the_published_rule_counts_a_repeated_packet_twice_and_adds_colliding_words_together() {
    let aggregation = Aggregation {
        rule: Rule::Counter,
        copies: 1,
        epochs: Epochs::Fixed(1),
        ..Aggregation::new(SWITCH, 64)
    };
    let text = vec![(0..64).map(|n| format!("w{n}").into_bytes()).collect(); 2];
    let job = Job::new(text, Some(aggregation));
    let expected = job.expected();
    let mut world = World::new(job.clone(), 64, Faults::default(), 1);
    world.run(seconds(5));
    assert_ne!(world.result(), expected, "64 words in 64 registers collide");
    let wide = Some(Aggregation { slots: 1 << 20, ..aggregation });
    let repeat = Faults { repeat: 1.0, ..Faults::default() };
    let mut world = World::new(Job { aggregation: wide, ..job }, 1 << 20, repeat, 1);
    world.run(seconds(5));
    assert_ne!(world.result(), expected, "a repeated packet is added twice");
}
