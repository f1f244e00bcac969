//! Checks a [`RunConfig`], and builds the world that runs it.

use std::fmt::Debug;
use std::sync::Arc;

use rackweave_core::{
    HostId, Mixed, Node, PayloadStore, Rate, Span, SwitchProgram, Time, Transport, telemetry,
};
use rackweave_switch::ForwardOnly;
use rackweave_transport::{Machine, StampedMachine, TransportConfig};
use rackweave_wire::Header;
use rackweave_workload::{Generator, StreamMode, WorkloadError};

use crate::config::{
    BufferConfig, CapturePort, CircuitError, FabricConfig, Fault, FaultKind, FaultPlace, Move,
    RunConfig, StreamConfig,
};
use crate::fabric::{Fabric, FabricError, LinkSpec};
use crate::model::{Both, GroupNode, MixedGroup, MixedTransport, Model, TransportsOnly};
use crate::parallel::{OneThread, Threads, possible_windows, run_windows, windows};
use crate::result::RunResult;
use crate::world::{Attached, Control, Division, Setup, World};

/// Most transports that one host can run: packets carry their number in three bits.
const MAX_TRANSPORTS: usize = 8;

/// Reasons why a run cannot start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// The fabric cannot be built.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A workload cannot run on this fabric.
    #[error("{}: {error}", stream_name(*stream))]
    Workload {
        /// Index of the stream in the configuration: 0 is the measured one.
        stream: usize,
        /// The rule that it breaks.
        error: WorkloadError,
    },
    /// The configuration has no streams and no nodes to measure.
    #[error("there is no workload")]
    NoStreams,
    /// A central scheduler with more than one stream of messages.
    #[error("a central scheduler runs one stream of messages, without background streams")]
    OnlyOneStream,
    /// A central scheduler with a collective.
    #[error(
        "a central scheduler knows all messages before the run, and those of a collective follow from each other"
    )]
    Collective,
    /// A run has more transports than the transport number in packets can express.
    #[error("a host can run at most {MAX_TRANSPORTS} different transports, not {0}")]
    TooManyTransports(usize),
    /// A fault or a capture names something that the fabric does not have.
    #[error("{what} {number} does not exist: the fabric has {count}")]
    NoSuchPlace {
        /// "host" or "core link".
        what: &'static str,
        /// The number that does not exist.
        number: u32,
        /// The count of such things: numbers are below it.
        count: u32,
    },
    /// A probability outside [0, 1].
    #[error("a fault's probability must be between 0 and 1, not {0}")]
    Probability(f64),
    /// A fault that ends before it starts.
    #[error("a fault from {from} until {until} never happens")]
    EmptyFault {
        /// When it would start.
        from: Time,
        /// When it would end.
        until: Time,
    },
    /// A kind of fault that is impossible at its place, such as a pause of a link or packet loss at a host.
    #[error(
        "a fault of this kind cannot be at this place: hosts pause and crash, links do the rest"
    )]
    MisplacedFault,
    /// A change of circuits that the fabric cannot have.
    #[error("the circuits from {at} on are impossible: {error}")]
    Circuits {
        /// When it would begin.
        at: Time,
        /// The rule that it breaks.
        error: CircuitError,
    },
    /// The factor of dynamic thresholds must be positive.
    #[error("the shared buffer's alpha must be between 1/256 and 1024, not {0}")]
    Alpha(f64),
    /// Messages on streams over a transport that has none.
    #[error("{}: its transport has no streams", stream_name(*stream))]
    NoSuchExchange {
        /// Index of the stream in the configuration.
        stream: usize,
    },
    /// A node is attached to a host that the fabric does not have.
    #[error("node {node} is attached to {host}, but the fabric has {hosts} hosts")]
    NoSuchHost {
        /// The number of the node.
        node: usize,
        /// The host that does not exist.
        host: HostId,
        /// The number of hosts.
        hosts: u32,
    },
    /// Two ports of nodes are attached to the same host.
    #[error("{host} has two nodes, or the same one twice")]
    HostTaken {
        /// The host with two ports.
        host: HostId,
    },
    /// A node has no port, or more than 256.
    #[error("node {node} has {ports} ports; 1 to 256 are possible")]
    Ports {
        /// The number of the node.
        node: usize,
        /// The number of its ports.
        ports: usize,
    },
    /// A link whose rate in-band telemetry cannot name.
    #[error(
        "HPCC's packets cannot name links of {0}: in-band telemetry has codes for {rates}",
        rates = telemetry::rates()
    )]
    StampedRate(Rate),
    /// A transport that reads what switches write into packets, and a group system.
    #[error("{0} cannot run beside a group system: switches do not write into such packets")]
    StampedBesideGroup(&'static str),
    /// The time limit is not after the warm-up and the start of port statistics.
    #[error(
        "the time limit must be above zero, beyond the warm-up and the start of port statistics"
    )]
    TimeLimit,
}

fn stream_name(stream: usize) -> String {
    if stream == 0 { "the workload".into() } else { format!("background {stream}") }
}

/// The different transports of a run, and the index of each stream's transport among them.
fn transports(streams: &[StreamConfig]) -> (Vec<&TransportConfig>, Vec<u8>) {
    let mut kinds: Vec<&TransportConfig> = Vec::new();
    let instances = streams.iter().map(|stream| {
        let known = kinds.iter().position(|kind| **kind == stream.transport);
        known.unwrap_or_else(|| {
            kinds.push(&stream.transport);
            kinds.len() - 1
        }) as u8
    });
    let instances = instances.collect();
    (kinds, instances)
}

pub(crate) fn check(config: &RunConfig, fabric: &Fabric) -> Result<(), BuildError> {
    check_fabric(&config.fabric)?;
    let measure = &config.measure;
    if measure.time_limit <= measure.warmup.max(measure.ports_from.unwrap_or(Span::ZERO)) {
        return Err(BuildError::TimeLimit);
    }
    let host = |HostId(number)| place("host", number, fabric.hosts());
    let core = |number| place("core link", number, fabric.core_links().len() as u32);
    for capture in &measure.capture {
        match *capture {
            CapturePort::HostSends(id) | CapturePort::HostReceives(id) => host(id)?,
            CapturePort::CoreLink(number) => core(number)?,
        }
    }
    Ok(())
}

/// The rules of a fabric that [`Fabric::new`] does not check.
pub(crate) fn check_fabric(config: &FabricConfig) -> Result<(), BuildError> {
    match config.switch.buffer {
        BufferConfig::Shared { alpha, .. } if !(1.0 / 256.0..=1024.0).contains(&alpha) => {
            Err(BuildError::Alpha(alpha))
        }
        _ => Ok(()),
    }
}

/// Whether a fabric can have these changes of circuits.
pub(crate) fn check_moves(moves: &[Move], fabric: &Fabric) -> Result<(), BuildError> {
    for Move { at, circuits } in moves {
        let possible = fabric.with_circuits(circuits);
        possible.map_err(|error| BuildError::Circuits { at: *at, error })?;
    }
    Ok(())
}

/// Whether these faults can happen to this fabric.
pub(crate) fn check_faults(faults: &[Fault], fabric: &Fabric) -> Result<(), BuildError> {
    let host = |HostId(number)| place("host", number, fabric.hosts());
    let core = |number| place("core link", number, fabric.core_links().len() as u32);
    for fault in faults {
        match fault.place {
            FaultPlace::Host(id) | FaultPlace::HostLink(id) => host(id)?,
            FaultPlace::CoreLink(number) => core(number)?,
            FaultPlace::AllLinks | FaultPlace::CoreLinks => {}
        }
        check_fault(fault)?;
    }
    Ok(())
}

const fn place(what: &'static str, number: u32, count: u32) -> Result<(), BuildError> {
    if number < count { Ok(()) } else { Err(BuildError::NoSuchPlace { what, number, count }) }
}

fn check_fault(fault: &Fault) -> Result<(), BuildError> {
    let Fault { from, until, place, kind } = *fault;
    if until <= from {
        return Err(BuildError::EmptyFault { from, until });
    }
    if let FaultKind::Loss(p)
    | FaultKind::Corruption(p)
    | FaultKind::Duplication(p)
    | FaultKind::Reordering { probability: p, .. } = kind
        && !(0.0..=1.0).contains(&p)
    {
        return Err(BuildError::Probability(p));
    }
    let of_host = matches!(kind, FaultKind::Pause | FaultKind::Crash);
    if of_host != matches!(place, FaultPlace::Host(_)) {
        return Err(BuildError::MisplacedFault);
    }
    Ok(())
}

/// The streams of a run, each with the number of its transport at every host.
pub(crate) fn streams<'a>(
    config: &'a RunConfig,
    instances: &[u8],
    fabric: &Fabric,
) -> Result<Vec<(&'a StreamConfig, u8, Generator)>, BuildError> {
    let mut streams = Vec::with_capacity(config.streams.len());
    for (number, (stream, &instance)) in config.streams.iter().zip(instances).enumerate() {
        let streaming = stream.workload.streaming;
        if streaming.is_some_and(|streaming| streaming.mode == StreamMode::OneId)
            && !stream.transport.has_streams()
        {
            return Err(BuildError::NoSuchExchange { stream: number });
        }
        let generator = stream.mean_gap(fabric.host_rate()).and_then(|gap| {
            let hosts = fabric.hosts();
            Generator::new(&stream.workload, hosts, gap, config.seed, config.run, number as u64)
        });
        let generator =
            generator.map_err(|error| BuildError::Workload { stream: number, error })?;
        streams.push((stream, instance, generator));
    }
    Ok(streams)
}

/// Runs message transports to the end, on one thread.
///
/// # Errors
/// If the configuration cannot be run; see [`BuildError`].
pub fn run(config: &RunConfig, control: &Control) -> Result<RunResult, BuildError> {
    run_on(config, Threads::new(1), control)
}

/// Runs message transports to the end, on up to this number of threads: on one if [`windows`] says why. The result does not
/// depend on the number.
///
/// # Errors
/// If the configuration cannot be run; see [`BuildError`].
pub fn run_on(
    config: &RunConfig,
    threads: Threads<'_>,
    control: &Control,
) -> Result<RunResult, BuildError> {
    run_with(config, threads, windows, control)
}

/// As [`run_on`], for fabrics of any size. In small ones this takes longer, and for them the results differ slightly from those of
/// [`run`].
///
/// # Errors
/// If the configuration cannot be run; see [`BuildError`].
pub fn run_divided(
    config: &RunConfig,
    threads: Threads<'_>,
    control: &Control,
) -> Result<RunResult, BuildError> {
    run_with(config, threads, possible_windows, control)
}

/// As [`run_on`], with another rule for which runs are divided into windows.
fn run_with(
    config: &RunConfig,
    threads: Threads<'_>,
    windows: impl FnOnce(&RunConfig, &Fabric) -> Result<Span, OneThread>,
    control: &Control,
) -> Result<RunResult, BuildError> {
    let fabric = Arc::new(Fabric::new(&config.fabric)?);
    check(config, &fabric)?;
    let (kinds, instances) = transports(&config.streams);
    if kinds.is_empty() {
        return Err(BuildError::NoStreams);
    }
    if kinds.len() > MAX_TRANSPORTS {
        return Err(BuildError::TooManyTransports(kinds.len()));
    }
    let window = windows(config, &fabric).ok();
    let run = Run { config, fabric: &fabric, kinds: &kinds, instances: &instances, window };
    if !kinds.iter().any(|kind| kind.reads_stamps()) {
        return run.with(TransportConfig::machine, threads, control);
    }
    let nameless = |link: &&LinkSpec| telemetry::rate_code(link.rate).is_none();
    if let Some(link) = fabric.links().iter().find(nameless) {
        return Err(BuildError::StampedRate(link.rate));
    }
    let machine = |kind: &TransportConfig, host| StampedMachine::new(kind.machine(host));
    let (mut result, captured) = run.with(machine, threads, control)?.split_capture();
    result.capture = captured.into_iter().map(|packet| packet.map(|it| it.header)).collect();
    Ok(result)
}

/// A run of transports only that has been checked.
struct Run<'a> {
    config: &'a RunConfig,
    fabric: &'a Arc<Fabric>,
    kinds: &'a [&'a TransportConfig],
    instances: &'a [u8],
    /// The windows that it is divided into.
    window: Option<Span>,
}

impl Run<'_> {
    /// Runs it with these machines.
    fn with<T>(
        &self,
        machine: impl Fn(&TransportConfig, HostId) -> T + Copy + Sync,
        threads: Threads<'_>,
        control: &Control,
    ) -> Result<RunResult<T::Header>, BuildError>
    where
        T: Transport<Header: Send> + Debug,
    {
        let &Self { config, fabric, kinds, instances, window } = self;
        let build = |division: Option<Division>| {
            let of_shard = division.clone();
            let has = move |host| of_shard.as_ref().is_none_or(|division| division.has(host));
            let transports = move |host| match has(host) {
                true => kinds.iter().map(|kind| machine(kind, host)).collect(),
                false => Vec::new(),
            };
            World::<TransportsOnly<T>>::new(Setup {
                streams: streams(config, instances, fabric)?,
                transports: Box::new(transports),
                division,
                ..setup(config, Arc::clone(fabric), |_| ForwardOnly::new())
            })
        };
        match window {
            Some(window) => {
                let build = |division| build(Some(division));
                run_windows(&build, (fabric, window), threads, control)
            }
            None => Ok(build(None)?.run(control)),
        }
    }
}

/// What a configuration says of every world.
fn setup<'a, M: Model>(
    config: &'a RunConfig,
    fabric: Arc<Fabric>,
    programs: impl FnMut(u32) -> M::Program + 'a,
) -> Setup<'a, M> {
    Setup {
        run: config.run,
        host: config.host.clone(),
        faults: &config.faults,
        moves: &config.moves,
        ..Setup::new(config.seed, fabric, &config.measure, programs)
    }
}

/// The model of a run in which the nodes `N` of a group system are measured, next to transports.
pub type GroupModel<N, P, B = ()> =
    Both<MixedTransport<Machine, <N as Node>::Header>, MixedGroup<Header, N>, P, B>;

/// Builds a run that is measured by its nodes of a group system; the streams of `config` run next to them. `B` holds
/// the bytes of the nodes' packets: `()` if they carry none.
///
/// # Errors
/// If the configuration cannot be run; see [`BuildError`].
pub fn group_world<'a, N, P, B>(
    config: &'a RunConfig,
    fabric: Arc<Fabric>,
    nodes: Vec<Attached<N>>,
    programs: impl FnMut(u32) -> P + 'a,
) -> Result<World<'a, GroupModel<N, P, B>>, BuildError>
where
    N: GroupNode + Debug,
    P: SwitchProgram<Header = Mixed<Header, N::Header>>,
    B: PayloadStore<Mixed<Header, N::Header>> + Default,
{
    check(config, &fabric)?;
    let (kinds, instances) = transports(&config.streams);
    // One transport number is reserved for the packets of nodes.
    if kinds.len() >= MAX_TRANSPORTS {
        return Err(BuildError::TooManyTransports(kinds.len() + 1));
    }
    if let Some(kind) = kinds.iter().find(|kind| kind.reads_stamps()) {
        return Err(BuildError::StampedBesideGroup(kind.name()));
    }
    let machine = |kind: &TransportConfig, host| MixedTransport::new(kind.machine(host));
    let mixed = |Attached { node, hosts }| Attached { node: MixedGroup::new(node), hosts };
    World::new(Setup {
        streams: streams(config, &instances, &fabric)?,
        transports: Box::new(move |host| kinds.iter().map(|kind| machine(kind, host)).collect()),
        nodes: nodes.into_iter().map(mixed).collect(),
        ..setup(config, fabric, programs)
    })
}
