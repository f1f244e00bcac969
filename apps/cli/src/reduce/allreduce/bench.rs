//! `rackweave reduce allreduce bench`: all hosts of a group in one process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use miette::miette;
use rackweave_aggregation::vector::values::Values;
use rackweave_core::{Destination, HostId, Rng, Span, Time};
use rackweave_lab::report::number;
use rackweave_linux::Clock;
use rackweave_reduce::{
    AllReduce, AllReduceConfig, AllReduceReport, Attachment, Element, MasterAt, ReduceError,
    VectorMaster, VectorMasterConfig, VectorMasterEvent, VectorStats,
};

use super::super::ended;
use super::super::local::{LOOPBACK, Local, watch};
use super::args::{BenchArgs, TypeArg};
use crate::shell::signal::Interrupt;
use crate::shell::{events, exit, print, status};

/// What adds up, and how hosts are joined.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The user-space switch adds up.
    Switch,
    /// The master adds up, and the switch forwards only.
    HostBehindSwitch,
    /// The master adds up; hosts are joined by plain UDP.
    Host,
}

impl Way {
    const ALL: [Self; 3] = [Self::Switch, Self::HostBehindSwitch, Self::Host];

    const fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::HostBehindSwitch => "host behind a switch",
            Self::Host => "host",
        }
    }
}

/// What one way has done.
struct Measured {
    way: Way,
    stats: VectorStats,
    workers: Vec<AllReduceReport>,
    /// From the first call until the last sum.
    elapsed: Span,
    /// Bytes of frames that the switch has sent to hosts.
    switch_bytes: Option<u64>,
}

pub(super) fn bench(args: &BenchArgs) -> miette::Result<u8> {
    match args.kind {
        TypeArg::I64 => all::<i64>(args, |rng| rng.next_u64() as i64),
        // Magnitudes over 16 powers of two, as gradients of different layers have.
        TypeArg::F32 => all::<f32>(args, |rng| {
            let scale = 1.0 / f64::from(1_u32 << rng.below(16));
            ((rng.unit() - 0.5) * scale) as f32
        }),
    }
}

fn all<T: Element>(args: &BenchArgs, draw: fn(&mut Rng) -> T) -> miette::Result<u8> {
    let length = usize::try_from(args.size.0).unwrap_or(usize::MAX) / T::BYTES;
    if length == 0 {
        return Err(miette!("--size {}: less than one value", args.size));
    }
    let stop = Interrupt::watch()?;
    let vectors: Vec<Vec<T>> = (0..args.workers)
        .map(|worker| {
            let mut rng = Rng::stream(args.seed, 0, worker.into(), "vector");
            (0..length).map(|_| draw(&mut rng)).collect()
        })
        .collect();
    let elements = (args.pool.chunk / T::FORMAT.bytes()).max(1);
    let values: Vec<Values> = vectors.iter().map(|vector| T::values(vector)).collect();
    let expected = Values::sum(&values.iter().collect::<Vec<_>>(), elements);
    let Some(expected) = expected else { return Err(miette!("there are no workers")) };
    drop(values);
    let mut results = Vec::new();
    for way in Way::ALL {
        match measure(args, way, &vectors, &expected, stop.flag())? {
            Ok(measured) => {
                if !args.json {
                    print(&line(&measured, args))?;
                }
                results.push(measured);
            }
            Err(ReduceError::Interrupted) => {
                status("interrupted\n");
                return Ok(exit::INTERRUPTED);
            }
            Err(error) => return ended(&format!("{}: {error}", way.name())),
        }
    }
    if args.json {
        for measured in &results {
            events::emit("measured", json(measured, args))?;
        }
    }
    Ok(exit::DONE)
}

/// Adds up the vectors in one way.
fn measure<T: Element>(
    args: &BenchArgs,
    way: Way,
    vectors: &[Vec<T>],
    expected: &Values,
    stop: &AtomicBool,
) -> miette::Result<Result<Measured, ReduceError>> {
    let switch = match way {
        Way::Host => None,
        _ => Some(Local::start(u32::from(args.workers) + 1, args.slots)?),
    };
    let any = SocketAddr::from((LOOPBACK, 0));
    let attachment = |host: usize| match &switch {
        Some(switch) => Attachment::Overlay { port: switch.ports[host], me: HostId(host as u32) },
        None => Attachment::Udp(any),
    };
    let config = VectorMasterConfig {
        attachment: attachment(0),
        steps: args.steps,
        switch: matches!(way, Way::Switch).then(|| Destination::Switch(0).address()),
        requires_switch: matches!(way, Way::Switch),
        chunk_bytes: args.pool.chunk,
        pool: args.pool.pool,
        ..VectorMasterConfig::new(any, args.workers)
    };
    let master = match VectorMaster::bind(config) {
        Ok(master) => master,
        Err(error) => return Ok(Err(error)),
    };
    let at = master.local_addr();
    // If one ends early, the others need not go on.
    let over = Arc::new(AtomicBool::new(false));
    let clock = Clock::start();
    let (stats, workers) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..)
            .zip(vectors)
            .map(|(number, vector)| {
                let place = attachment(usize::from(number) + 1);
                let over = Arc::clone(&over);
                scope.spawn(move || work(number, vector, expected, place, at, clock, over))
            })
            .collect();
        let watched = scope.spawn(|| watch(stop, &over));
        let mut show = |event: VectorMasterEvent| {
            if let VectorMasterEvent::Repeated = event {
                status("note: sums were added up again\n");
            }
        };
        let stats = master.run(&over, &mut show);
        over.store(stats.is_err(), Ordering::Relaxed);
        let workers: Vec<_> =
            workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        let _ = watched.join();
        (stats, workers)
    });
    let mut reports = Vec::new();
    let (mut first, mut last, mut failed) = (Time::MAX, Time::ZERO, None);
    for worker in workers {
        match worker {
            Ok(Ok((report, began, end))) => {
                reports.push(report);
                (first, last) = (first.min(began), last.max(end));
            }
            // The first reason that is no consequence of another one.
            Ok(Err(error)) => {
                let is_effect =
                    matches!(error, ReduceError::Interrupted | ReduceError::Refused { .. });
                if failed.is_none() || !is_effect {
                    failed = Some(error);
                }
            }
            Err(_) => return Err(miette!("a worker has failed: this is an error in Rackweave")),
        }
    }
    let stats = match (stats, failed) {
        (_, Some(error))
            if !matches!(error, ReduceError::Interrupted | ReduceError::Refused { .. }) =>
        {
            return Ok(Err(error));
        }
        (Err(error), _) | (Ok(_), Some(error)) => return Ok(Err(error)),
        (Ok(stats), None) => stats,
    };
    let report = switch.as_ref().and_then(|switch| switch.control.report());
    let switch_bytes = report.map(|report| report.counters.forwarded_bytes);
    Ok(Ok(Measured { way, stats, workers: reports, elapsed: last.since(first), switch_bytes }))
}

/// A worker: adds its vector as often as there are steps, and compares the sums with the right one.
fn work<T: Element>(
    number: u8,
    vector: &[T],
    expected: &Values,
    place: Attachment,
    master: SocketAddr,
    clock: Clock,
    stop: Arc<AtomicBool>,
) -> Result<(AllReduceReport, Time, Time), ReduceError> {
    let master = match place {
        Attachment::Overlay { port, me } => MasterAt::Overlay { master: HostId(0), port, me },
        Attachment::Udp(bind) => MasterAt::Udp { master, bind },
    };
    let of_number = AllReduceConfig::new(number, SocketAddr::from((LOOPBACK, 0)));
    let config = AllReduceConfig { master, ..of_number };
    let mut group = AllReduce::<T>::join(config, vector.len(), stop)?;
    let mut sum = vector.to_vec();
    let began = clock.now();
    for step in 0..group.steps() {
        sum.copy_from_slice(vector);
        group.allreduce(&mut sum)?;
        if !T::values(&sum).is_same(expected) {
            let why = format!("worker {number} has a wrong sum in step {step}");
            return Err(ReduceError::Config(why));
        }
    }
    let end = clock.now();
    Ok((group.finish()?, began, end))
}

/// Gbps of vector bytes a worker.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn gbps(measured: &Measured) -> f64 {
    let VectorStats { length, format, steps, .. } = measured.stats;
    let bits = length as f64 * f64::from(format.bytes()) * 8.0 * f64::from(steps);
    bits / measured.elapsed.as_secs_f64().max(1e-9) / 1e9
}

/// The most bytes that a worker has received.
fn received(measured: &Measured) -> u64 {
    measured.workers.iter().map(|report| report.received_bytes).max().unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn line(measured: &Measured, args: &BenchArgs) -> String {
    let again: u64 = measured.workers.iter().map(|report| report.retransmitted).sum();
    let switch = measured.switch_bytes.map_or_else(String::new, |bytes| {
        format!(", {} from the switch", number::bytes(bytes as f64))
    });
    format!(
        "{}: {:.2} Gbps a worker ({} x {} of {} workers in {:.2} s); {} at a worker, {} at the master{switch}; {again} chunks sent again\n",
        measured.way.name(),
        gbps(measured),
        args.steps,
        args.size,
        args.workers,
        measured.elapsed.as_secs_f64(),
        number::bytes(received(measured) as f64),
        number::bytes(measured.stats.received_bytes as f64),
    )
}

fn json(measured: &Measured, args: &BenchArgs) -> serde_json::Value {
    serde_json::json!({
        "way": measured.way.name(),
        "workers": args.workers,
        "length": measured.stats.length,
        "type": measured.stats.format.to_string(),
        "steps": measured.stats.steps,
        "pool": measured.stats.pool,
        "gbps": gbps(measured),
        "elapsed_s": measured.elapsed.as_secs_f64(),
        "worker_bytes": received(measured),
        "master_bytes": measured.stats.received_bytes,
        "switch_bytes": measured.switch_bytes,
        "retransmitted": measured.workers.iter().map(|report| report.retransmitted).sum::<u64>(),
        "restarts": measured.stats.restarts,
    })
}
