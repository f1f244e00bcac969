//! A host that takes part in an all-reduce with an aggregator, as a node of the simulator.

use std::convert::Infallible;
use std::sync::Arc;

use rackweave_aggregation::Failure;
use rackweave_aggregation::packet::Header;
use rackweave_aggregation::vector::master::{self, Master};
use rackweave_aggregation::vector::node::{Aggregator, VectorNode, WorkerSide};
use rackweave_aggregation::vector::values::Values;
use rackweave_aggregation::vector::worker::{Counters, Event};
use rackweave_core::rng::mix;
use rackweave_core::{HostId, Mixed, Node, Packet, Schedule, Time};
use rackweave_sim::GroupNode;

use super::AllreduceConfig;
use super::ring::RingHost;

/// The header of a host's packets: those of a ring's transport, and those of aggregation.
pub(super) type NodeHeader = Mixed<rackweave_wire::Header, Header>;

/// What a worker knows of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StepRecord {
    /// When it had the vector.
    pub(super) started: Option<Time>,
    /// When it had the sums.
    pub(super) summed: Option<Time>,
    /// A digest of the sums.
    pub(super) digest: u64,
}

/// Returns a digest of the bits of a vector.
pub(super) fn digest(values: &Values) -> u64 {
    match values {
        Values::Integers(values) => {
            values.iter().fold(0, |digest, value| mix(digest ^ *value as u64))
        }
        Values::Floats(values) => {
            values.iter().fold(0, |digest, value| mix(digest ^ u64::from(value.to_bits())))
        }
    }
}

/// The application of a worker: it draws vectors, and remembers sums.
#[derive(Clone, Debug)]
pub(super) struct Training {
    config: Arc<AllreduceConfig>,
    worker: u8,
    pub(super) records: Vec<StepRecord>,
    /// Steps that are being computed.
    computing: Schedule<u32>,
}

impl Training {
    pub(super) fn new(config: &Arc<AllreduceConfig>, worker: u8) -> Self {
        let records = vec![StepRecord::default(); config.vectors.steps as usize];
        let (config, computing) = (Arc::clone(config), Schedule::default());
        Self { config, worker, records, computing }
    }

    /// A step is due: its vector will be there after the time of computing, but that of the first is there at once.
    pub(super) fn begin(&mut self, now: Time, step: u32) {
        let compute = if step == 0 { rackweave_core::Span::ZERO } else { self.config.compute };
        self.computing.push(now.saturating_add(compute), step);
    }

    /// Returns the vector of a step that has been computed.
    pub(super) fn poll(&mut self, now: Time) -> Option<(u32, Values)> {
        let (_, step) = self.computing.pop_due(now)?;
        if let Some(record) = self.records.get_mut(step as usize) {
            record.started = Some(now);
        }
        Some((step, self.config.vector(self.worker, step)))
    }

    pub(super) fn summed(&mut self, now: Time, step: u32, sums: &Values) {
        if let Some(record) = self.records.get_mut(step as usize) {
            (record.summed, record.digest) = (Some(now), digest(sums));
        }
    }

    pub(super) fn next_time(&self) -> Option<Time> {
        self.computing.next_time()
    }
}

/// A host of a scheme with an aggregator.
#[derive(Debug)]
pub(super) struct AggregatedHost {
    node: VectorNode,
    training: Option<Training>,
    /// Why the job of the master here has failed.
    failure: Option<Failure>,
    /// Whether the run knows that the host is done: a host that becomes so while it is polled, by messages between its own
    /// machines, asks for one more timeout.
    is_end_known: bool,
}

impl AggregatedHost {
    pub(super) const fn new(node: VectorNode, training: Option<Training>) -> Self {
        Self { node, training, failure: None, is_end_known: false }
    }

    /// Passes vectors and sums between machine and application, and returns whether there were any.
    fn pump(&mut self, now: Time) -> bool {
        let mut has_any = false;
        while let Some(event) = self.node.master_mut().and_then(Master::poll_event) {
            has_any = true;
            if let master::Event::Failed(failure) = event {
                self.failure = Some(failure);
            }
        }
        let (Some(side), Some(training)) = (self.node.worker_mut(), &mut self.training) else {
            return has_any;
        };
        while let Some(event) = side.poll_event() {
            has_any = true;
            match event {
                Event::Wanted { step } => training.begin(now, step),
                Event::Summed { step } => training.summed(now, step, side.sums()),
                Event::Planned(_) | Event::Committed | Event::Complete | Event::Failed(_) => {}
            }
        }
        while let Some((step, vector)) = training.poll(now) {
            has_any = true;
            side.offer(step, vector);
        }
        has_any
    }

    pub(super) fn counters(&self) -> Option<Counters> {
        self.node.worker().map(|side| *side.machine().counters())
    }

    pub(super) fn failure(&self) -> Option<String> {
        let of_worker = || self.node.worker().and_then(WorkerSide::outcome)?.err();
        self.failure.or_else(of_worker).map(|failure| failure.to_string())
    }

    pub(super) fn attempts(&self) -> u64 {
        self.node.master().map_or(0, |master| u64::from(master.attempt()) + 1)
    }

    pub(super) const fn aggregator(&self) -> Option<&Aggregator> {
        self.node.aggregator()
    }
}

/// A host that takes part.
#[derive(Debug)]
pub(super) enum Host {
    /// With an aggregator.
    Aggregated(Box<AggregatedHost>),
    /// In a ring.
    Ring(Box<RingHost>),
}

impl Host {
    pub(super) fn records(&self) -> Option<(u8, &[StepRecord])> {
        let training = match self {
            Self::Aggregated(host) => host.training.as_ref()?,
            Self::Ring(host) => host.training(),
        };
        Some((training.worker, &training.records))
    }
}

impl Node for Host {
    type Header = NodeHeader;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<NodeHeader>) {
        self.handle_payload(now, port, packet, &[]);
    }

    fn handle_timeout(&mut self, now: Time) {
        match self {
            Self::Aggregated(host) => {
                host.node.expire(now);
                host.is_end_known = host.node.is_done();
                let _ = host.pump(now);
            }
            Self::Ring(host) => host.handle_timeout(now),
        }
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<NodeHeader>> {
        match self {
            Self::Aggregated(host) => {
                loop {
                    if let Some(packet) = host.node.poll_transmit(now, port) {
                        return Some(packet.map(Mixed::Group));
                    }
                    // Messages between machines of one host have been handled while it was polled.
                    if !host.pump(now) {
                        return None;
                    }
                }
            }
            Self::Ring(host) => Some(host.poll_transmit(now, port)?.map(Mixed::Transport)),
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        match self {
            Self::Aggregated(host) => {
                if host.node.is_done() && !host.is_end_known {
                    return Some(Time::ZERO);
                }
                let computing = host.training.as_ref().and_then(Training::next_time);
                [host.node.poll_timeout(), computing].into_iter().flatten().min()
            }
            Self::Ring(host) => host.poll_timeout(),
        }
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for Host {
    fn is_done(&self) -> bool {
        match self {
            Self::Aggregated(host) => host.node.is_done(),
            Self::Ring(host) => host.is_done(),
        }
    }

    #[inline]
    fn handle_payload(&mut self, now: Time, port: u8, packet: &Packet<NodeHeader>, payload: &[u8]) {
        match (self, &packet.header) {
            (Self::Aggregated(host), Mixed::Group(header)) => {
                host.node.receive(now, packet.src, &header.message, payload);
                let _ = host.pump(now);
            }
            (Self::Ring(host), Mixed::Transport(header)) => {
                host.handle_packet(now, port, &packet.map(|_| *header));
            }
            _ => {}
        }
    }

    #[inline]
    fn payload(&self) -> &[u8] {
        match self {
            Self::Aggregated(host) => host.node.payload(),
            Self::Ring(_) => &[],
        }
    }
}

/// Returns the instance of a worker.
pub(super) const fn instance(seed: u64, host: HostId) -> u32 {
    mix(seed ^ host.0 as u64) as u32
}
