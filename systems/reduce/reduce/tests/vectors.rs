//! Vectors that workers add up over sockets of loopback, without a switch.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle};

use rackweave_aggregation::vector::values::Values;
use rackweave_core::Span;
use rackweave_reduce::{
    AllReduce, AllReduceConfig, Element, Key, MemberEvent, OpenGroup, ReduceError, VectorMaster,
    VectorMasterConfig, VectorMasterEvent, VectorStats,
};

fn master(workers: u8, steps: u32) -> VectorMaster {
    let config = VectorMasterConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)), workers);
    VectorMaster::bind(VectorMasterConfig { steps, ..config }).unwrap()
}

fn run<'scope>(
    scope: &'scope Scope<'scope, '_>,
    master: VectorMaster,
    stop: &'scope AtomicBool,
) -> ScopedJoinHandle<'scope, Result<VectorStats, ReduceError>> {
    scope.spawn(move || master.run(stop, &mut |_| {}))
}

/// The vector of a worker for a step.
fn vector<T: Element>(worker: u8, step: u32, of: impl Fn(u64) -> T) -> Vec<T> {
    let seed = u64::from(worker) << 32 | u64::from(step) << 40;
    (0..3_001).map(|index| of((seed + index).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

/// Adds up the vectors of five workers three times, and compares the sums with those by definition, bit for bit.
fn sums<T: Element + std::fmt::Debug>(of: impl Fn(u64) -> T + Copy + Send + Sync) {
    let (stop, master) = (AtomicBool::new(false), master(5, 3));
    let address = master.local_addr();
    std::thread::scope(|scope| {
        let stats = run(scope, master, &stop);
        for number in 0..5 {
            scope.spawn(move || {
                let config = AllReduceConfig::new(number, address);
                let mut group = AllReduce::<T>::join(config, 3_001, Arc::default()).unwrap();
                for step in 0..3 {
                    assert_eq!((group.step(), group.steps()), (step, 3));
                    let mut sum = vector(number, step, of);
                    group.allreduce(&mut sum).unwrap();
                    let all: Vec<_> = (0..5).map(|it| T::values(&vector(it, step, of))).collect();
                    let all: Vec<_> = all.iter().collect();
                    let expected = Values::sum(&all, 1024 / T::BYTES as u16).unwrap();
                    assert!(T::values(&sum).is_same(&expected), "step {step} at {number}");
                }
                let mut more = vector(number, 3, of);
                let error = group.allreduce(&mut more).unwrap_err().to_string();
                assert_eq!(error, "the group adds up 3 vectors only");
                group.finish().unwrap();
            });
        }
        let stats = stats.join().unwrap().unwrap();
        assert_eq!((stats.length, stats.steps, stats.by_switch), (3_001, 3, false));
        assert!(stats.sums_here > 0 && stats.received_bytes > 5 * 3 * 3_001 * T::BYTES as u64);
    });
}

#[test]
fn integers_and_floats_are_added_up_bit_for_bit() {
    sums(|random| random as i64);
    sums(|random| (random as i64) as f32 / 2.0_f32.powi((random % 90) as i32));
}

#[test]
fn mistakes_are_named() {
    let (stop, master) = (AtomicBool::new(false), master(2, 1));
    let address = master.local_addr();
    let to = |number| AllReduceConfig::new(number, address);
    let (send, events) = channel();
    std::thread::scope(|scope| {
        let stop = &stop;
        let stats = scope.spawn(move || master.run(stop, &mut |event| send.send(event).unwrap()));
        assert!(matches!(
            AllReduce::<i64>::join(to(0), 0, Arc::default()),
            Err(ReduceError::Config(_))
        ));
        let first = scope.spawn(move || {
            let mut group = AllReduce::<i64>::join(to(0), 10, Arc::default()).unwrap();
            let error = group.allreduce(&mut [1; 9]).unwrap_err().to_string();
            assert_eq!(error, "the vectors of the group have 10 elements, and this one has 9");
            let mut sum = [1; 10];
            group.allreduce(&mut sum).unwrap();
            assert_eq!(sum, [3; 10]);
            group.finish().unwrap();
        });
        // Until the first worker has joined, another one would determine what the vectors are.
        let joined = events.recv().unwrap();
        let is_first =
            matches!(joined, VectorMasterEvent::Member(MemberEvent::Joined { worker: 0, .. }));
        assert!(is_first, "{joined:?}");
        let error = AllReduce::<i64>::join(to(1), 11, Arc::default()).unwrap_err().to_string();
        let expected = "have 10 elements of type i64, and that of this worker has 11 of type i64";
        assert!(error.contains(expected), "{error}");
        let error = AllReduce::<f32>::join(to(1), 10, Arc::default()).unwrap_err().to_string();
        assert!(error.contains("has 10 of type f32"), "{error}");
        let mut group = AllReduce::<i64>::join(to(1), 10, Arc::default()).unwrap();
        group.allreduce(&mut [2; 10]).unwrap();
        group.finish().unwrap();
        first.join().unwrap();
        stats.join().unwrap().unwrap();
    });
}

#[test]
fn a_worker_that_ends_early_is_replaced_and_one_that_waits_for_too_long_names_it() {
    let (stop, master) = (AtomicBool::new(false), master(2, 3));
    let address = master.local_addr();
    let to = |number| AllReduceConfig::new(number, address);
    std::thread::scope(|scope| {
        let stats = run(scope, master, &stop);
        let other = scope.spawn(move || {
            let mut group = AllReduce::<i64>::join(to(1), 100, Arc::default()).unwrap();
            group.allreduce(&mut [5; 100]).unwrap();
            // It ends without the second and the third sum.
        });
        // The first two sums have this limit too, which a machine with much else to do must not exceed.
        let within = AllReduceConfig { sum_within: Some(Span::from_secs(10)), ..to(0) };
        let mut group = AllReduce::<i64>::join(within, 100, Arc::default()).unwrap();
        let mut sum = [1; 100];
        group.allreduce(&mut sum).unwrap();
        assert_eq!(sum, [6; 100]);
        other.join().unwrap();
        let (done, waits) = channel::<()>();
        let returned = scope.spawn(move || {
            let mut group = AllReduce::<i64>::join(to(1), 100, Arc::default()).unwrap();
            assert_eq!(group.step(), 1);
            group.allreduce(&mut [7; 100]).unwrap();
            // It does not add the third vector for as long as the other one waits.
            waits.recv().unwrap_err();
            let error = group.allreduce(&mut [7; 100]).unwrap_err();
            assert!(matches!(error, ReduceError::Refused { .. }), "{error}");
        });
        let mut sum = [1; 100];
        group.allreduce(&mut sum).unwrap();
        assert_eq!(sum, [8; 100]);
        let error = group.allreduce(&mut sum).unwrap_err().to_string();
        assert_eq!(error, "there is no sum after 10 s: worker 1 has not sent its elements");
        assert_eq!(sum, [8; 100]);
        drop(group);
        stop.store(true, Ordering::Relaxed);
        let error = stats.join().unwrap().unwrap_err();
        assert!(matches!(error, ReduceError::Interrupted), "{error}");
        drop(done);
        returned.join().unwrap();
    });
}

/// Vectors of an open job: none of them is like the one before.
fn one(worker: u8, step: u32) -> Result<Vec<i64>, Vec<f32>> {
    let length = [5, 70_000, 1, 300][step as usize % 4];
    let random = |index: u64| {
        let seed = u64::from(worker) << 32 | u64::from(step) << 40;
        (seed + index).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    if step.is_multiple_of(3) {
        return Ok((0..length).map(|index| random(index) as i64).collect());
    }
    Err((0..length).map(|index| (random(index) as i64) as f32 / 2.0_f32.powi(60)).collect())
}

#[test]
fn an_open_group_adds_up_vectors_that_have_nothing_in_common() {
    let (stop, master) = (AtomicBool::new(false), master(3, 0));
    let address = master.local_addr();
    std::thread::scope(|scope| {
        let stats = run(scope, master, &stop);
        for number in 0..3 {
            scope.spawn(move || {
                let config = AllReduceConfig::new(number, address);
                let mut group = OpenGroup::join(config, Arc::default()).unwrap();
                for step in 0..9 {
                    match one(number, step) {
                        Ok(mut sum) => {
                            group.allreduce(&mut sum).unwrap();
                            let all = (0..3).map(|it| one(it, step).unwrap());
                            let add = |sum: Vec<i64>, other: Vec<i64>| {
                                sum.iter().zip(&other).map(|(a, b)| a.wrapping_add(*b)).collect()
                            };
                            assert_eq!(sum, all.reduce(add).unwrap());
                        }
                        Err(mut sum) => {
                            group.allreduce(&mut sum).unwrap();
                            let all = (0..3).map(|it| Values::Floats(one(it, step).unwrap_err()));
                            let all: Vec<_> = all.collect();
                            let expected = Values::sum(&all.iter().collect::<Vec<_>>(), 256);
                            assert!(Values::Floats(sum).is_same(&expected.unwrap()), "{step}");
                        }
                    }
                }
                group.allreduce::<f32>(&mut []).unwrap();
                assert_eq!(group.report().steps, 9);
                group.finish().unwrap();
            });
        }
        let stats = stats.join().unwrap().unwrap();
        assert_eq!((stats.length, stats.steps), (0, 0));
    });
}

#[test]
fn a_long_vector_is_added_up_in_parts_with_the_same_bits() {
    let (stop, master) = (AtomicBool::new(false), master(2, 0));
    let address = master.local_addr();
    let vector = |worker: u8| -> Vec<f32> {
        let power = |index: u32| 2.0_f32.powi((index * 7 % 90) as i32 - 45);
        (0..5_001).map(|index| (index + 1 + u32::from(worker)) as f32 * power(index)).collect()
    };
    let all = [0, 1].map(|worker| Values::Floats(vector(worker)));
    let expected = &Values::sum(&all.each_ref(), 256).unwrap();
    std::thread::scope(|scope| {
        let stats = run(scope, master, &stop);
        for number in 0..2 {
            scope.spawn(move || {
                // Not a multiple of the 1024 bytes of a block.
                let config =
                    AllReduceConfig { part_bytes: 5_000, ..AllReduceConfig::new(number, address) };
                let mut group = OpenGroup::join(config, Arc::default()).unwrap();
                let mut sum = vector(number);
                group.allreduce(&mut sum).unwrap();
                assert!(Values::Floats(sum).is_same(expected));
                assert_eq!(group.finish().unwrap().steps, 5);
            });
        }
        stats.join().unwrap().unwrap();
    });
}

#[test]
fn a_stranger_is_no_worker_of_an_open_group() {
    let config = VectorMasterConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)), 2);
    let master =
        VectorMaster::bind(VectorMasterConfig { steps: 0, key: Key(77), ..config }).unwrap();
    let (stop, address) = (AtomicBool::new(false), master.local_addr());
    std::thread::scope(|scope| {
        let stats = run(scope, master, &stop);
        for key in [Key(0), Key(78)] {
            let config = AllReduceConfig { key, ..AllReduceConfig::new(1, address) };
            assert!(!format!("{config:?}").contains("78"));
            let error = OpenGroup::join(config, Arc::default()).unwrap_err().to_string();
            let why =
                "does not take this process as worker 1: it does not have the key of the group";
            assert!(error.ends_with(why), "{error}");
        }
        for number in 0..2 {
            scope.spawn(move || {
                let config =
                    AllReduceConfig { key: Key(77), ..AllReduceConfig::new(number, address) };
                let mut group = OpenGroup::join(config, Arc::default()).unwrap();
                let mut sum = [1_i64];
                group.allreduce(&mut sum).unwrap();
                assert_eq!(sum, [2]);
                group.finish().unwrap();
            });
        }
        stats.join().unwrap().unwrap();
    });
}

#[test]
fn workers_that_differ_are_named_to_all() {
    let (stop, master) = (AtomicBool::new(false), master(3, 0));
    let address = master.local_addr();
    std::thread::scope(|scope| {
        let stats = run(scope, master, &stop);
        for number in 0..3 {
            scope.spawn(move || {
                let config = AllReduceConfig::new(number, address);
                let mut group = OpenGroup::join(config, Arc::default()).unwrap();
                group.allreduce(&mut [1_i64; 10]).unwrap();
                // Both vectors are one chunk of as many bytes.
                let error = match number {
                    1 => group.allreduce_as(&mut [1.0_f32; 20], 3),
                    _ => group.allreduce_as(&mut [1_i64; 10], 3),
                };
                let error = error.unwrap_err();
                assert_eq!(
                    (error.workers(), error.to_string().as_str()),
                    (
                        0b10,
                        "workers do not add up the same vector 1: worker 1 has 20 elements of type f32 with label 0x3, and the others have 10 elements of type i64 with label 0x3"
                    )
                );
                assert_eq!(error.difference().unwrap().expected.label, 3);
                let again = group.allreduce(&mut [1_i64; 10]).unwrap_err();
                assert_eq!(again.to_string(), error.to_string());
            });
        }
        assert_eq!(stats.join().unwrap().unwrap_err().workers(), 0b10);
    });
}

#[test]
fn a_worker_that_leaves_an_open_group_is_named_to_the_others() {
    let (stop, master) = (AtomicBool::new(false), master(3, 0));
    let address = master.local_addr();
    std::thread::scope(|scope| {
        let stats = run(scope, master, &stop);
        for number in 0..3 {
            scope.spawn(move || {
                let config = AllReduceConfig::new(number, address);
                let mut group = OpenGroup::join(config, Arc::default()).unwrap();
                group.allreduce(&mut [1.0_f32; 10]).unwrap();
                if number == 2 {
                    return;
                }
                let error = group.allreduce(&mut [1.0_f32; 20]).unwrap_err();
                assert_eq!(
                    (error.workers(), error.to_string().as_str()),
                    (0b100, "worker 2 has left and did not return")
                );
            });
        }
        let error = stats.join().unwrap().unwrap_err();
        assert_eq!(error.workers(), 0b100);
    });
}

#[test]
fn who_gives_up_is_named_with_whom_it_waited_for_and_says_so_again() {
    let (stop, master) = (AtomicBool::new(false), master(3, 0));
    let address = master.local_addr();
    let (done, waits) = channel::<()>();
    std::thread::scope(|scope| {
        let stats = run(scope, master, &stop);
        let to = |number| AllReduceConfig::new(number, address);
        scope.spawn(move || {
            let group = OpenGroup::join(to(2), Arc::default()).unwrap();
            waits.recv().unwrap_err();
            drop(group);
        });
        let other = scope.spawn(move || {
            let mut group = OpenGroup::join(to(1), Arc::default()).unwrap();
            let error = group.allreduce(&mut [1.0_f32; 10]).unwrap_err();
            assert_eq!(
                (error.workers(), error.to_string().as_str()),
                (0b101, "worker 0 has left while it waited for the vectors of: 2")
            );
        });
        let within = AllReduceConfig { sum_within: Some(Span::from_secs(2)), ..to(0) };
        let mut group = OpenGroup::join(within, Arc::default()).unwrap();
        for _ in 0..2 {
            let error = group.allreduce(&mut [1.0_f32; 10]).unwrap_err().to_string();
            assert_eq!(error, "there is no sum after 2 s: worker 2 has not sent its elements");
        }
        other.join().unwrap();
        stats.join().unwrap().unwrap_err();
        drop(done);
    });
}
