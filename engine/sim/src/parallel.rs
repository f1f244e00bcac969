//! Which runs can use several threads, and such runs.
//!
//! A run that can is divided into windows of time and, with several threads, into shards of the fabric, one for each thread. Its results
//! are the same for any number of threads. Whether it can is a property of the configuration: its results differ slightly from those of
//! a run without windows, so the number of threads must not decide it.

use std::fmt::{self, Debug};
use std::sync::Arc;

use rackweave_core::{Span, Transport};
use rackweave_workload::app::{DELAY_AFTER_FAILURE, SerialIds};
use rackweave_workload::{Exchange, Pattern};

use crate::build::BuildError;
use crate::config::{RunConfig, StreamConfig};
use crate::fabric::Fabric;
use crate::model::TransportsOnly;
use crate::result::RunResult;
use crate::world::{Control, Division, Lost, Meeting, World};

/// The number of hosts from which on a run is divided. In smaller fabrics a window has too few events: at 128 hosts it takes less than
/// 20 microseconds, and the threads wait for each other twice in it.
pub const PARALLEL_FROM_HOSTS: u32 = 256;

/// The least length of a window. Shorter ones have few events at any size.
const SHORTEST_WINDOW: Span = Span::from_ns(20);

/// Why a run uses one thread only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OneThread {
    /// The fabric is small.
    #[error("the fabric has {0} hosts, and several threads pay from {PARALLEL_FROM_HOSTS} on")]
    FewHosts(u32),
    /// The circuits of a pod connect any two switches.
    #[error("the fabric is a pod")]
    Pod,
    /// No link joins two switches.
    #[error("all hosts are at one switch")]
    OneSwitch,
    /// Links between switches have nearly no delay.
    #[error(
        "packets cross links between switches in nearly no time, so that shards cannot run ahead of each other"
    )]
    NoDelay,
    /// Hosts share processors, or are modelled in another way.
    #[error("[host] models processors")]
    Processors,
    /// Faults change all switches, or both ends of messages, at once.
    #[error("[[faults]] act on both ends of a message at once")]
    Faults,
    /// Switches pause each other, and may wait for each other across shards.
    #[error(
        "switches pause each other (PFC), and a deadlock of theirs is a matter of the whole fabric"
    )]
    Pfc,
    /// Changes of circuits.
    #[error("circuits change")]
    Moves,
    /// All hosts stop when the last measured message starts.
    #[error("measure.load_after = \"stop\" stops all hosts at one moment")]
    StopLoad,
    /// Messages that start when others end.
    #[error("{}the end of a message at its receiver starts the next one at its sender", of(*.0))]
    ClosedLoop(usize),
    /// A collective in which a rank goes on when a message of its own has arrived.
    #[error("{}a rank of the collective goes on when a message of its own has arrived", of(*.0))]
    Collective(usize),
    /// A collective of so many messages that ids have no room for their numbers.
    #[error("{}the ids of messages have no room for the numbers of so many", of(*.0))]
    Numbers(usize),
    /// Calls of a closed loop on a fabric with very long cables between switches: after a failure, which is recorded at the end of the
    /// window in which it happens, the next call may have to start in that window.
    #[error(
        "{}in a closed loop the call after a failure starts before others know of the failure",
        of(*.0)
    )]
    LongWindow(usize),
    /// Channels.
    #[error("{}channels have state at both ends", of(*.0))]
    Channels(usize),
    /// The threads of applications.
    #[error("{}[workload.application] models threads, which forget messages that fail at their senders", of(*.0))]
    Application(usize),
}

/// The name of a stream before a reason.
fn of(stream: usize) -> String {
    if stream == 0 { String::new() } else { format!("background {stream}: ") }
}

/// The length of the windows into which a run on this fabric is divided.
///
/// # Errors
/// The reason if it cannot be, or if that does not pay: it then uses one thread.
pub fn windows(config: &RunConfig, fabric: &Fabric) -> Result<Span, OneThread> {
    if fabric.hosts() < PARALLEL_FROM_HOSTS {
        return Err(OneThread::FewHosts(fabric.hosts()));
    }
    possible_windows(config, fabric)
}

/// As [`windows`], for fabrics of any size.
pub(crate) fn possible_windows(config: &RunConfig, fabric: &Fabric) -> Result<Span, OneThread> {
    let RunConfig { host, streams, faults, moves, measure, .. } = config;
    if fabric.pod().is_some() {
        return Err(OneThread::Pod);
    }
    let window = fabric.lookahead().ok_or(OneThread::OneSwitch)?;
    if window < SHORTEST_WINDOW {
        return Err(OneThread::NoDelay);
    }
    if fabric.config().switch.pfc.is_some() {
        return Err(OneThread::Pfc);
    }
    if host.is_some() {
        return Err(OneThread::Processors);
    }
    if !faults.is_empty() {
        return Err(OneThread::Faults);
    }
    if !moves.is_empty() {
        return Err(OneThread::Moves);
    }
    if measure.stop_load {
        return Err(OneThread::StopLoad);
    }
    for (number, stream) in streams.iter().enumerate() {
        check_stream(number, stream, window)?;
        check_numbers(number, stream, fabric.hosts(), streams.len())?;
    }
    Ok(window)
}

/// More messages than a host starts in any run.
const MOST_MESSAGES: u64 = 1 << 32;

/// Ids of messages in windows have the numbers of a collective, and serial numbers at their host.
fn check_numbers(
    number: usize,
    stream: &StreamConfig,
    hosts: u32,
    streams: usize,
) -> Result<(), OneThread> {
    let Pattern::Collective(collective) = &stream.workload.pattern else { return Ok(()) };
    let ids = SerialIds::new(hosts, streams as u16).with_numbers(collective.numbers());
    let others = if streams > 1 { MOST_MESSAGES } else { 0 };
    match ids.have_room(collective.numbers().max(others)) {
        true => Ok(()),
        false => Err(OneThread::Numbers(number)),
    }
}

fn check_stream(number: usize, stream: &StreamConfig, window: Span) -> Result<(), OneThread> {
    let workload = &stream.workload;
    let is_loop = matches!(workload.pattern, Pattern::ClosedLoop { .. });
    if workload.streaming.is_some() {
        Err(OneThread::Channels(number))
    } else if is_loop && workload.exchange == Exchange::OneWay {
        Err(OneThread::ClosedLoop(number))
    } else if matches!(&workload.pattern, Pattern::Collective(it) if it.waits_for_sends()) {
        Err(OneThread::Collective(number))
    } else if is_loop && window >= DELAY_AFTER_FAILURE {
        Err(OneThread::LongWindow(number))
    } else if !workload.application.is_instant() {
        Err(OneThread::Application(number))
    } else {
        Ok(())
    }
}

/// The threads of a run.
#[derive(Clone, Copy)]
pub struct Threads<'a> {
    /// The most threads to use, at least 1.
    pub number: u32,
    /// Called by each thread but the caller's when it ends, such as to add up processor times.
    pub at_end: &'a (dyn Fn() + Sync),
}

impl Threads<'_> {
    /// Up to this number of threads.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self { number, at_end: &|| {} }
    }
}

impl Debug for Threads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Threads").field(&self.number).finish()
    }
}

/// Why the thread of a shard has no result.
#[derive(Debug)]
enum Failure {
    Build(BuildError),
    Lost(Lost),
}

/// Runs worlds that `build` makes, on up to this number of threads. `build` is called in each of them.
pub(crate) fn run_windows<'a, T>(
    build: &(dyn Fn(Division) -> Result<World<'a, TransportsOnly<T>>, BuildError> + Sync),
    (fabric, window): (&Fabric, Span),
    threads: Threads<'_>,
    control: &Control,
) -> Result<RunResult<T::Header>, BuildError>
where
    T: Transport<Header: Send> + Debug,
{
    let partition = Arc::new(fabric.partition(threads.number));
    let shards = partition.shards();
    if shards < 2 {
        return Ok(build(Division { window, shard: None })?.run(control));
    }
    let meeting = Meeting::new(shards);
    let run = |number| {
        let shard = Some((Arc::clone(&partition), number));
        meeting.attend(|| {
            let world = build(Division { window, shard }).map_err(Failure::Build)?;
            world.run_shard(number, &meeting, control).map_err(Failure::Lost)
        })
    };
    let run = &run;
    let results: Vec<Result<_, Failure>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..shards)
            .map(|number| {
                scope.spawn(move || {
                    let result = run(number);
                    (threads.at_end)();
                    result
                })
            })
            .collect();
        let first = run(0);
        let others = others.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        std::iter::once(first).chain(others).collect()
    });
    let mut combined = None;
    for result in results {
        match result {
            Ok(result) => combined = combined.or(result),
            Err(Failure::Build(error)) => return Err(error),
            Err(Failure::Lost(lost)) => unreachable!("{lost}, but none has failed"),
        }
    }
    Ok(combined.expect("the first shard has the result"))
}
