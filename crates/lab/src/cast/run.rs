//! A run.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rackweave_core::{FailReason, Framing, HostId, Mixed, SwitchProgram, Time, frame};
use rackweave_group::baseline::unicast::MAX_DATAGRAM;
use rackweave_group::baseline::{Client, Deliveries, Rounds, streams, unicast};
use rackweave_group::orca::label::LabelError;
use rackweave_group::orca::scale;
use rackweave_sim::config::RunConfig;
use rackweave_sim::result::{Captured, End, MessageRecord, Outcome, RunResult};
use rackweave_sim::{
    Attached, BuildError, Control, Fabric, FabricError, GroupModel, GroupNode, World, group_world,
};
use rackweave_switch::ForwardOnly;
use rackweave_wire::Header as WireHeader;
use rackweave_wire::frame::Unframeable;
use rackweave_wire::homa::Layout;
use rackweave_wire::pcapng::{Frame, Framed};

use super::nodes::{Either, Role};
use super::summary::{CastResult, FileTimes, ReceiverTimes};
use super::{CastConfig, Scheme, orca};

/// Why files can't be sent.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CastError {
    /// The fabric is impossible.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Faults or places of hosts are.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The fabric's labels can't name its ports.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// The transport has no streams.
    #[error("this transport has no streams")]
    NoStreams,
    /// A captured packet can't be written.
    #[error(transparent)]
    Capture(#[from] Unframeable),
    /// Orca's host has not taken the session.
    #[error("the session can't be opened: {0}")]
    Session(String),
}

/// The outcome of a run.
#[derive(Debug)]
pub struct CastRun {
    /// What every run has. Stream 0 is the files; the streams of the configuration follow.
    pub result: RunResult,
    /// The files in detail.
    pub cast: CastResult,
    /// The captured packets: [`RunResult::capture`] is empty, since packets of a group system have headers of their own.
    pub capture: Vec<Frame>,
}

/// Runs to the end. The files are in `cast`; the streams of `config` run beside them. Captures have Homa's headers in
/// this layout.
///
/// # Errors
/// See [`CastError`].
pub fn run(
    cast: &CastConfig,
    config: &RunConfig,
    layout: Layout,
    control: &Control,
) -> Result<CastRun, CastError> {
    let fabric = Fabric::new(&config.fabric)?;
    // How far a run is, is told by its time.
    control.wanted.store(u64::MAX, Ordering::Relaxed);
    let scene = Scene { cast, config, layout, control };
    let plane = cast.plane.as_ref().map(scale::report).transpose()?;
    let done = match &cast.scheme {
        Scheme::Unicast { socket_bytes } => {
            let sending = unicast::Config {
                hosts: cast.senders.clone(),
                buffer: cast.buffer.min(u64::from(MAX_DATAGRAM)) as u32,
                socket_bytes: *socket_bytes,
                processes: cast.processes,
                cost: cast.cost,
            };
            let server = unicast::Server::new(&sending, scene.clients(), scene.rounds());
            let mut nodes =
                vec![Attached { node: Either::Server(server), hosts: cast.senders.clone() }];
            nodes.extend(cast.receivers.iter().map(|&host| {
                let server = scene.sender_of(host);
                let receiver = unicast::Receiver::new(host, server, scene.deliveries());
                Attached::at(host, Either::Receiver(receiver))
            }));
            scene.run(fabric, nodes, |_| Ok(ForwardOnly::new()))
        }
        Scheme::Streams { transport, chunk, socket_bytes } => {
            let sending = streams::Config {
                transport: transport.clone(),
                hosts: cast.senders.clone(),
                buffer: cast.buffer,
                socket_bytes: *socket_bytes,
                processes: cast.processes,
                cost: cast.cost,
                chain: chunk.is_some(),
            };
            let server = streams::Server::new(&sending, scene.clients(), scene.rounds());
            let mut nodes =
                vec![Attached { node: Either::Server(server), hosts: cast.senders.clone() }];
            for (nth, &host) in cast.receivers.iter().enumerate() {
                let successor = cast.receivers.get(nth + 1);
                let next = chunk.zip(successor).map(|(chunk, next)| (*next, chunk));
                let (server, deliveries) = (scene.sender_of(host), scene.deliveries());
                let receiver = streams::Receiver::new(&sending, host, server, next, deliveries);
                let receiver = receiver.ok_or(CastError::NoStreams)?;
                nodes.push(Attached::at(host, Either::Receiver(receiver)));
            }
            scene.run(fabric, nodes, |_| Ok(ForwardOnly::new()))
        }
        Scheme::Orca(scheme) => orca::run(&scene, scheme, fabric),
    };
    done.map(|run| CastRun { cast: CastResult { plane, ..run.cast }, ..run })
}

impl CastConfig {
    /// The sender's host towards a receiver: where its acknowledgements go.
    fn sender_of(&self, receiver: HostId) -> HostId {
        self.senders[usize::from(self.port_to(receiver))]
    }

    /// What became of the files, as every run has it: a message is a file on its way to one receiver.
    pub(crate) fn messages(&self, fabric: &Fabric, result: &CastResult) -> Vec<MessageRecord> {
        // Full frames, with nothing but UDP's header.
        let framing = Framing {
            max_payload: frame::MTU - frame::IPV4 - 8,
            header_bytes: frame::IPV4 + 8,
            spray_above_bytes: u32::MAX,
        };
        let mut messages = Vec::new();
        for (nth, file) in result.files.iter().enumerate() {
            for receiver in &result.receivers {
                let src = self.sender_of(receiver.host);
                let outcome = match receiver.completed.get(nth) {
                    Some(at) => Outcome::Completed(*at),
                    None if receiver.crashed => Outcome::Failed(FailReason::HostCrashed),
                    None if receiver.lost => Outcome::Failed(FailReason::PeerSilent),
                    None => Outcome::Unfinished,
                };
                messages.push(MessageRecord {
                    stream: 0,
                    src,
                    dst: receiver.host,
                    bytes: file.bytes,
                    start: file.begun,
                    ideal: fabric.ideal(src, receiver.host, file.bytes, framing),
                    outcome,
                });
            }
        }
        messages
    }
}

/// What all schemes share.
pub(super) struct Scene<'a> {
    pub(super) cast: &'a CastConfig,
    config: &'a RunConfig,
    layout: Layout,
    control: &'a Control,
}

impl Scene<'_> {
    fn clients(&self) -> Vec<Client> {
        let client = |&host: &HostId| Client { host, port: self.cast.port_to(host) };
        self.cast.receivers.iter().map(client).collect()
    }

    fn sender_of(&self, receiver: HostId) -> HostId {
        self.cast.sender_of(receiver)
    }

    pub(super) fn rounds(&self) -> Rounds {
        Rounds::new(self.cast.files.clone(), self.cast.receivers.len(), self.cast.wait)
    }

    pub(super) fn deliveries(&self) -> Deliveries {
        Deliveries::new(&self.cast.files, self.cast.fault.unwrap_or(Time::MAX))
    }

    /// Runs nodes: the sender's is the first, those of the receivers follow in their order, then others.
    pub(super) fn run<H, N, P>(
        &self,
        fabric: Fabric,
        nodes: Vec<Attached<N>>,
        program: impl Fn(u32) -> Result<P, CastError>,
    ) -> Result<CastRun, CastError>
    where
        H: Framed,
        N: GroupNode<Header = H> + Role + Debug,
        P: SwitchProgram<Header = Mixed<WireHeader, H>>,
    {
        let mut programs = (0..fabric.switches())
            .map(program)
            .collect::<Result<Vec<P>, _>>()?
            .into_iter()
            .map(Some)
            .collect::<Vec<_>>();
        // Each switch is made once.
        let program = move |switch: u32| {
            programs
                .get_mut(switch as usize)
                .and_then(Option::take)
                .expect("a switch of the fabric")
        };
        let mut world = group_world(self.config, Arc::new(fabric), nodes, program)?;
        let end = world.run_to_end(self.control);
        let result = self.cast_result(&mut world);
        self.run_result(end, &mut world, result)
    }

    fn cast_result<
        N: GroupNode + Role + Debug,
        P: SwitchProgram<Header = Mixed<WireHeader, N::Header>>,
    >(
        &self,
        world: &mut World<'_, GroupModel<N, P>>,
    ) -> CastResult {
        let links = world.link_stats();
        let of_senders = || self.cast.senders.iter().filter_map(|host| links.get(host.0 as usize));
        let rounds = world.node(0).node().rounds();
        let times: Vec<_> = rounds.map(|rounds| rounds.times().collect()).unwrap_or_default();
        let file = |(&bytes, (begun, ended)): (&u64, (Time, Option<Time>))| FileTimes {
            bytes,
            begun,
            ended,
        };
        let receiver = |(nth, &host): (usize, &HostId)| {
            let deliveries = world.node(nth + 1).node().deliveries();
            let gaps = deliveries.map(Deliveries::gaps).unwrap_or_default();
            ReceiverTimes {
                host,
                completed: deliveries.map(|d| d.completed().to_vec()).unwrap_or_default(),
                longest_gap_before: gaps.0.span,
                longest_gap: gaps.1.span,
                crashed: self.cast.crashed.contains(&host),
                lost: rounds.is_some_and(|rounds| rounds.is_lost(nth)),
            }
        };
        let receivers: Vec<ReceiverTimes> =
            self.cast.receivers.iter().enumerate().map(receiver).collect();
        let sum = |of: fn(&N) -> u64| world.nodes().map(|node| of(node.node())).sum();
        CastResult {
            files: self.cast.files.iter().zip(times).map(file).collect(),
            receivers,
            sender_link_bytes: of_senders().map(|link| link.bytes).sum(),
            sender_packets: of_senders().map(|link| link.frames).sum(),
            repaired_bytes: sum(N::repaired_bytes),
            detached: sum(N::detached),
            wrong_bytes: sum(N::wrong_bytes),
            silent_agents: sum(N::silent_agents),
            plane: None,
        }
    }

    /// The same as every run has it.
    fn run_result<N, P>(
        &self,
        end: End,
        world: &mut World<'_, GroupModel<N, P>>,
        cast: CastResult,
    ) -> Result<CastRun, CastError>
    where
        N: GroupNode<Header: Framed> + Debug,
        P: SwitchProgram<Header = Mixed<WireHeader, N::Header>>,
    {
        let mut messages = self.cast.messages(world.fabric(), &cast);
        let whole = |message: &&MessageRecord| matches!(message.outcome, Outcome::Completed(_));
        let delivered = messages.iter().filter(whole).map(|message| message.bytes).sum();
        let report = world.report(end);
        messages.extend(report.messages);
        let frame = |captured: &Captured<_>| {
            Frame::new(captured.at, captured.interface, &captured.packet, self.layout)
        };
        let capture = report.capture.iter().map(frame).collect::<Result<_, _>>()?;
        let mut delivered_bytes = vec![delivered];
        delivered_bytes.extend(report.delivered_bytes);
        let result = RunResult {
            end,
            ended_at: report.ended_at,
            measured: cast.execution().unwrap_or(report.measured),
            messages,
            delivered_bytes,
            delivered_by_sender: Vec::new(),
            round_trips: report.round_trips,
            counters: report.counters,
            refused: report.refused,
            mean_queue_bytes: report.mean_queue_bytes,
            max_queue_bytes: report.max_queue_bytes,
            links: report.links,
            queue_series: report.queue_series,
            capture_names: report.capture_names,
            capture: Vec::new(),
            peak_packets: report.peak_packets,
            verified_messages: report.verified_messages,
        };
        Ok(CastRun { result, cast, capture })
    }
}
