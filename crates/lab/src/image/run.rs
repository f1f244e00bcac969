//! Running an image in the simulator.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rackweave_core::{Mixed, Node, Packet, Rng, SwitchProgram, Time};
use rackweave_group::imaging::frisbee::{Client, Server, ServerConfig};
use rackweave_group::imaging::multicast::{self, Multicast, MulticastError};
use rackweave_group::imaging::node::{FrisbeeNode, Machine};
use rackweave_group::imaging::packet;
use rackweave_group::system::Simulated;
use rackweave_sim::config::RunConfig;
use rackweave_sim::result::{Captured, RunResult};
use rackweave_sim::{
    Attached, BuildError, Control, Fabric, FabricError, GroupModel, GroupNode, World, group_world,
};
use rackweave_switch::net::Slab;
use rackweave_wire::Header as WireHeader;
use rackweave_wire::frame::Unframeable;
use rackweave_wire::frisbee::BLOCK_BYTES;
use rackweave_wire::homa::Layout;
use rackweave_wire::pcapng::{Frame, Framed};

use super::summary::{ClientReport, ImageResult, ServerReport};
use super::{ImageConfig, Scheme};

/// Why an image cannot be run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// The configured fabric is invalid.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The faults or the places of hosts are invalid.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The switches cannot copy packets to all clients.
    #[error(transparent)]
    Multicast(#[from] MulticastError),
    /// A captured packet could not be encoded.
    #[error(transparent)]
    Capture(#[from] Unframeable),
}

/// The outcome of a run with an image.
#[derive(Debug)]
pub struct ImageRun {
    /// The results that every run has. Stream 0 is the image; the streams of the configuration follow.
    pub result: RunResult,
    /// The results of the image itself.
    pub image: ImageResult,
    /// The captured packets; [`RunResult::capture`] is empty.
    pub capture: Vec<Frame>,
}

/// A node that takes part in imaging, and what it reports.
trait Imager: GroupNode {
    /// Adds the node's report to the results; clients do so in their order.
    fn report(&self, results: &mut ImageResult);
}

/// Runs a configuration to its end, with an image and beside it the streams of `config`. Captures have Homa's headers in this
/// layout.
///
/// # Errors
/// See [`ImageError`].
pub fn run(
    image: &ImageConfig,
    config: &RunConfig,
    layout: Layout,
    control: &Control,
) -> Result<ImageRun, ImageError> {
    let fabric = Fabric::new(&config.fabric)?;
    // Progress is measured by simulated time only.
    control.wanted.store(u64::MAX, Ordering::Relaxed);
    match &image.scheme {
        Scheme::Frisbee { client, pace } => {
            let server = ServerConfig { image: image.image, pace: *pace };
            let server = Machine::Server(Box::new(Server::new(server)));
            let mut nodes = vec![(image.server, server)];
            for (host, start) in &image.clients {
                let rng = Rng::stream(config.seed, config.run, u64::from(host.0), "frisbee client");
                let client = Client::new(client.clone(), *start, rng);
                nodes.push((*host, Machine::Client(Box::new(client))));
            }
            let members = nodes.iter().map(|(host, _)| *host).collect();
            let ports = Multicast { members }.ports(&fabric)?;
            let nodes = nodes.into_iter().map(|(host, machine)| {
                Attached::at(host, Frisbee(FrisbeeNode::new(host, image.server, machine)))
            });
            let program =
                |switch: u32| Simulated::new(multicast::Program::new(ports[switch as usize]));
            on_world(image, config, fabric, nodes.collect(), program, layout, control)
        }
    }
}

/// Runs nodes: the server's is the first, and the clients' follow in order.
fn on_world<N, P>(
    image: &ImageConfig,
    config: &RunConfig,
    fabric: Fabric,
    nodes: Vec<Attached<N>>,
    program: impl Fn(u32) -> P,
    layout: Layout,
    control: &Control,
) -> Result<ImageRun, ImageError>
where
    N: Imager + Node<Header = packet::Header> + Debug,
    P: SwitchProgram<Header = Mixed<WireHeader, packet::Header>>,
{
    let mut world: World<'_, GroupModel<N, P, Slab>> =
        group_world(config, Arc::new(fabric), nodes, program)?;
    let end = world.run_to_end(control);
    let report = world.report(end);
    let mut results = ImageResult {
        clients: Vec::with_capacity(image.clients.len()),
        server: ServerReport::default(),
        server_link_bytes: report.links.get(image.server.0 as usize).map_or(0, |link| link.bytes),
        trunk_bytes: ImageResult::trunk_bytes(world.fabric(), &report.links),
    };
    for node in world.nodes() {
        node.node().report(&mut results);
    }
    let capture = frames(&report.capture, layout)?;
    let mut result = RunResult {
        end,
        ended_at: report.ended_at,
        measured: report.measured,
        messages: report.messages,
        delivered_bytes: report.delivered_bytes,
        delivered_by_sender: report.delivered_by_sender,
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
    results.put_into(image, world.fabric(), &mut result);
    Ok(ImageRun { result, image: results, capture })
}

fn frames<H: Framed>(captured: &[Captured<H>], layout: Layout) -> Result<Vec<Frame>, Unframeable> {
    let frame = |captured: &Captured<H>| {
        Frame::new(captured.at, captured.interface, &captured.packet, layout)
    };
    captured.iter().map(frame).collect()
}

/// A node of Frisbee.
#[derive(Debug)]
struct Frisbee(FrisbeeNode);

impl Node for Frisbee {
    type Header = packet::Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<packet::Header>) {
        self.0.handle_packet(now, port, packet);
    }
    fn handle_timeout(&mut self, now: Time) {
        self.0.handle_timeout(now);
    }
    #[inline]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<packet::Header>> {
        self.0.poll_transmit(now, port)
    }
    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        self.0.poll_timeout()
    }
    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for Frisbee {
    fn is_done(&self) -> bool {
        self.0.is_done()
    }
    #[inline]
    fn handle_payload(
        &mut self,
        now: Time,
        _port: u8,
        packet: &Packet<packet::Header>,
        payload: &[u8],
    ) {
        self.0.receive(now, packet, payload);
    }
    #[inline]
    fn payload(&self) -> &[u8] {
        self.0.payload()
    }
    fn crash(&mut self, _now: Time, down: bool) {
        self.0.crash(down);
    }
}

impl Imager for Frisbee {
    fn report(&self, results: &mut ImageResult) {
        let bytes = |blocks: u64| blocks * u64::from(BLOCK_BYTES);
        if let Some(client) = self.0.client() {
            let counts = client.counts();
            results.clients.push(ClientReport {
                received: client.received_at(),
                finished: client.finished_at(),
                exact: client.is_exact(),
                received_bytes: bytes(counts.blocks),
                duplicate_bytes: bytes(counts.duplicate_chunk_blocks + counts.duplicate_blocks),
                dropped_bytes: bytes(counts.no_buffer),
                requests: counts.requests,
                rerequests: counts.rerequests,
            });
        }
        if let Some(server) = self.0.server() {
            let counts = server.counts();
            results.server = ServerReport {
                sent_bytes: bytes(counts.blocks_sent),
                messages: counts.messages,
                requests: counts.requests,
                merged: counts.merged,
                partial_requests: counts.partial_requests,
                service: server.service_time().unwrap_or_default(),
                max_queue: counts.max_queue,
            };
        }
    }
}
