//! Running a cast in the simulator.

use std::fmt::Debug;

use rackweave_core::{Framing, HostId, Mixed, SwitchProgram, Time};
use rackweave_orca::app::{Collector, CollectorConfig, Receiver, Sender, SenderConfig};
use rackweave_orca::baseline::unicast::MAX_DATAGRAM;
use rackweave_orca::baseline::{Client, streams, unicast};
use rackweave_orca::scale;
use rackweave_sim::config::RunConfig;
use rackweave_sim::result::{Outcome, RunResult};
use rackweave_sim::{Attached, Fabric, GroupModel, GroupNode, World};
use rackweave_switch::ForwardOnly;
use rackweave_wire::Header as WireHeader;
use rackweave_wire::pcapng::{Frame, Framed};

use super::nodes::{Either, Role};
use super::summary::CastResult;
use super::{CastConfig, Scheme, orca};
use crate::study::{Setting, StudyError};

/// What only casts cannot be run for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CastError {
    /// The transport has no streams.
    #[error("this transport has no streams")]
    NoStreams,
    /// Orca's host refused to open the session.
    #[error("the session cannot be opened: {0}")]
    Session(String),
}

impl From<CastError> for StudyError {
    fn from(error: CastError) -> Self {
        Self::of_kind(error)
    }
}

/// The outcome of a run with a cast.
pub(super) struct CastRun {
    pub(super) result: RunResult,
    pub(super) cast: CastResult,
    pub(super) capture: Vec<Frame>,
}

/// Runs a cast to its end, and in parallel the streams of the configuration.
pub(super) fn run(cast: &CastConfig, setting: &Setting<'_>) -> Result<CastRun, StudyError> {
    let context = RunContext { cast, setting };
    let plane = cast.plane.as_ref().map(scale::report).transpose().map_err(StudyError::of_kind)?;
    let plane = plane.map(Box::new);
    let done = match &cast.scheme {
        Scheme::Unicast { socket_bytes } => {
            let sending =
                unicast::Config { hosts: cast.senders.clone(), socket_bytes: *socket_bytes };
            let app = Sender::new(SenderConfig {
                buffer: cast.buffer.min(u64::from(MAX_DATAGRAM)),
                ..cast.sender_app(cast.receivers.len())
            });
            let server = unicast::Server::new(&sending, cast.clients(), app);
            let mut nodes =
                vec![Attached { node: Either::Server(server), hosts: cast.senders.clone() }];
            nodes.extend(cast.receivers.iter().map(|&host| {
                let server = cast.sender_of(host);
                let receiver = unicast::Receiver::new(host, server, cast.receiver_app());
                Attached::at(host, Either::Receiver(receiver))
            }));
            context.run(nodes, |_| Ok(ForwardOnly::new()))
        }
        Scheme::Streams { transport, chunk, socket_bytes } => {
            let sending = streams::Config {
                transport: transport.clone(),
                hosts: cast.senders.clone(),
                socket_bytes: *socket_bytes,
                chain: chunk.is_some(),
            };
            let sockets = if chunk.is_some() { 1 } else { cast.receivers.len() };
            let app = Sender::new(cast.sender_app(sockets));
            let server = streams::Server::new(&sending, cast.clients(), app);
            let mut nodes =
                vec![Attached { node: Either::Server(server), hosts: cast.senders.clone() }];
            for (nth, &host) in cast.receivers.iter().enumerate() {
                let successor = cast.receivers.get(nth + 1);
                let next = chunk.zip(successor).map(|(chunk, next)| (*next, chunk));
                let (server, app) = (cast.sender_of(host), cast.receiver_app());
                let receiver = streams::Receiver::new(&sending, host, server, next, app);
                let receiver = receiver.ok_or(CastError::NoStreams)?;
                nodes.push(Attached::at(host, Either::Receiver(receiver)));
            }
            context.run(nodes, |_| Ok(ForwardOnly::new()))
        }
        Scheme::Orca(scheme) => orca::run(&context, scheme),
    };
    done.map(|run| CastRun { cast: CastResult { plane, ..run.cast }, ..run })
}

impl CastConfig {
    /// Returns the sender's host that is nearest to a receiver, which gets its acknowledgements.
    fn sender_of(&self, receiver: HostId) -> HostId {
        self.senders[usize::from(self.port_to(receiver))]
    }

    fn clients(&self) -> Vec<Client> {
        let client = |&host: &HostId| Client { host, port: self.port_to(host) };
        self.receivers.iter().map(client).collect()
    }

    /// Returns the configuration of the sender's application, over this many sockets.
    pub fn sender_app(&self, sockets: usize) -> SenderConfig {
        SenderConfig {
            closed_loop: self.wait,
            sockets,
            buffer: self.buffer,
            processes: self.processes as usize,
            cost: self.cost,
            ..SenderConfig::new(self.files.clone(), self.receivers.clone())
        }
    }

    /// Returns the application of a receiver.
    pub fn receiver_app(&self) -> Receiver {
        Receiver::new(&self.files, self.fault.unwrap_or(Time::MAX))
    }

    /// Returns a collector for a run of this configuration that ended at this time.
    pub fn collector(&self, config: &RunConfig, until: Time) -> Collector {
        let receivers = self.receivers.iter().map(|host| (*host, self.sender_of(*host)));
        Collector::new(CollectorConfig {
            casts: self.files.clone(),
            receivers: receivers.collect(),
            crashed: self.crashed.clone(),
            warmup: Time::ZERO + config.measure.warmup,
            until,
        })
    }
}

impl CastResult {
    /// Inserts the casts before the other messages of a run, as its first stream.
    pub fn put_into(&self, fabric: &Fabric, run: &mut RunResult) {
        let ideal = |src, dst, bytes| fabric.ideal(src, dst, bytes, Framing::UDP);
        let casts = self.app.messages(ideal);
        let whole = casts.iter().filter(|cast| matches!(cast.outcome, Outcome::Completed(_)));
        run.delivered_bytes.insert(0, whole.map(|cast| cast.bytes).sum());
        run.delivered_by_sender.clear();
        run.messages.splice(0..0, casts);
        run.measured = self.app.execution().unwrap_or(run.measured);
    }
}

/// The parts of a run that all schemes share.
pub(super) struct RunContext<'a> {
    pub(super) cast: &'a CastConfig,
    pub(super) setting: &'a Setting<'a>,
}

impl RunContext<'_> {
    /// Runs nodes. The sender's is the first, those of the receivers follow in order, then all others.
    pub(super) fn run<H, N, P>(
        &self,
        nodes: Vec<Attached<N>>,
        program: impl Fn(u32) -> Result<P, StudyError>,
    ) -> Result<CastRun, StudyError>
    where
        H: Framed,
        N: GroupNode<Header = H> + Role + Debug,
        P: SwitchProgram<Header = Mixed<WireHeader, H>>,
    {
        let mut programs = (0..self.setting.fabric.switches())
            .map(program)
            .collect::<Result<Vec<P>, _>>()?
            .into_iter()
            .map(Some)
            .collect::<Vec<_>>();
        // The program of each switch is made once.
        let program = move |switch: u32| {
            programs
                .get_mut(switch as usize)
                .and_then(Option::take)
                .expect("a switch of the fabric")
        };
        let mut world: World<'_, GroupModel<N, P>> = self.setting.world(nodes, program)?;
        let end = world.run_to_end(self.setting.control);
        let report = world.report(end);
        let mut collector = self.cast.collector(self.setting.config, report.ended_at);
        // The receivers' nodes follow the sender's. The others take no part in the application.
        let senders = self.cast.senders.iter().take(1);
        let hosts = senders.chain(&self.cast.receivers).copied();
        let hosts = hosts.chain(std::iter::repeat(HostId(u32::MAX)));
        for (node, host) in world.nodes().zip(hosts) {
            collector.add(host, &node.node().report());
        }
        let of_senders =
            || self.cast.senders.iter().filter_map(|host| report.links.get(host.0 as usize));
        let cast = CastResult {
            app: collector.results(),
            sender_link_bytes: of_senders().map(|link| link.bytes).sum(),
            plane: None,
        };
        let (mut result, capture) = self.setting.divide(report)?;
        cast.put_into(world.fabric(), &mut result);
        Ok(CastRun { result, cast, capture })
    }
}
