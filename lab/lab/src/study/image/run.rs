//! Running an image in the simulator.

use std::fmt::Debug;

use rackweave_core::{Mixed, Rng, SwitchProgram};
use rackweave_sim::fluid;
use rackweave_sim::{Attached, GroupModel, World};
use rackweave_switch::net::{HasPayload, Slab};
use rackweave_switch::system::Simulated;
use rackweave_swp2p::frisbee::{self, Client, Server, ServerConfig};
use rackweave_swp2p::multicast::{self, Multicast};
use rackweave_swp2p::node::{FrisbeeNode, Machine};
use rackweave_swp2p::p2p::node::{Carrier, P2pNode};
use rackweave_swp2p::{p2p, switch};
use rackweave_wire::Header as WireHeader;
use rackweave_wire::pcapng::Framed;

use super::nodes::{Frisbee, Imager, Swp2p};
use super::summary::{ImageResult, ImageSummary, ServerReport, SwitchReport};
use super::{ImageConfig, P2pScheme, Redirects, Scheme};
use crate::results::trunk_bytes;
use crate::study::{Done, Setting, StudyError, StudySummary};

/// Runs an image to its end, and in parallel the streams of the configuration.
pub(super) fn run(image: &ImageConfig, setting: &Setting<'_>) -> Result<Done, StudyError> {
    let context = RunContext { image, setting };
    let config = setting.config;
    match &image.scheme {
        Scheme::P2p(scheme) => p2p(&context, scheme),
        Scheme::Frisbee { client, pace } => {
            let server = ServerConfig { image: frisbee::Layout::even(image.image), pace: *pace };
            let server = Machine::Server(Box::new(Server::new(server)));
            let mut nodes = vec![(image.server, server)];
            for (host, start) in &image.clients {
                let rng = Rng::stream(config.seed, config.run, u64::from(host.0), "frisbee client");
                let client = Client::new(client.clone(), *start, rng);
                nodes.push((*host, Machine::Client(Box::new(client))));
            }
            let members = nodes.iter().map(|(host, _)| *host).collect();
            let ports = Multicast { members }.ports(setting.fabric).map_err(StudyError::of_kind)?;
            let nodes = nodes.into_iter().map(|(host, machine)| {
                Attached::at(host, Frisbee(FrisbeeNode::new(host, image.server, machine)))
            });
            let program =
                |switch: u32| Simulated::new(multicast::Program::new(ports[switch as usize]));
            let counts = |_: &_| None;
            on_world(&context, nodes.collect(), program, counts, |_| {})
        }
    }
}

/// The number and the name of the image in packets.
const IMAGE: (u32, &[u8]) = (1, b"image");

/// What the runs of all schemes share.
struct RunContext<'a> {
    image: &'a ImageConfig,
    setting: &'a Setting<'a>,
}

/// Runs SWP2P, or unicast.
fn p2p(context: &RunContext<'_>, scheme: &P2pScheme) -> Result<Done, StudyError> {
    let RunContext { image, setting: Setting { config, .. } } = *context;
    let expected = u16::try_from(scheme.expected).unwrap_or(0);
    let directory = (scheme.redirects == Redirects::Server).then_some(scheme.directory);
    let server = p2p::server::Config { serve: scheme.serve, directory, expected };
    let images = [(IMAGE.0, IMAGE.1.to_vec(), image.image)];
    let server = P2pNode::server(image.server, &scheme.carrier, server, &images);
    let mut nodes =
        vec![Attached::at(image.server, Swp2p::new(server, image.server, IMAGE.0, image.image))];
    for (host, start) in &image.clients {
        let client = p2p::node::ClientConfig {
            client: scheme.client,
            server: image.server,
            name: IMAGE.1.to_vec(),
            start: *start,
            expand: Some(scheme.expand),
            corrupts: false,
        };
        let rng = Rng::stream(config.seed, config.run, u64::from(host.0), "swp2p client");
        let node = P2pNode::client(*host, &scheme.carrier, client, rng);
        nodes.push(Attached::at(*host, Swp2p::new(node, image.server, IMAGE.0, image.image)));
    }
    let program = |_| {
        let Redirects::Switches { per_second, queue } = scheme.redirects else { return None };
        let (server, directory) = (image.server, scheme.directory);
        Some(switch::Program::new(switch::Config { server, directory, per_second, queue }))
    };
    let program = |switch| Simulated::new(program(switch));
    let counts = |program: &Simulated<Option<switch::Program>, _>| {
        program.program().as_ref().map(switch::Program::counts).copied()
    };
    let fluid = matches!(scheme.carrier, Carrier::Fluid).then_some(fluid::Config {
        interval: scheme.fluid_interval,
        framing: rackweave_core::Framing::UDP,
        host_rate: None,
    });
    on_world(context, nodes, program, counts, |world| {
        if let Some(fluid) = fluid {
            world.carry_transfers(fluid);
        }
    })
}

/// Runs nodes: the server's is the first, and the clients' follow in order.
fn on_world<N, P>(
    context: &RunContext<'_>,
    nodes: Vec<Attached<N>>,
    program: impl Fn(u32) -> P,
    counts: impl Fn(&P) -> Option<switch::Counters>,
    prepare: impl FnOnce(&mut World<'_, GroupModel<N, P, Slab>>),
) -> Result<Done, StudyError>
where
    N: Imager<Header: Framed + HasPayload> + Debug,
    P: SwitchProgram<Header = Mixed<WireHeader, N::Header>>,
{
    let RunContext { image, setting } = *context;
    let mut world: World<'_, GroupModel<N, P, Slab>> = setting.world(nodes, program)?;
    prepare(&mut world);
    let end = world.run_to_end(setting.control);
    let report = world.report(end);
    let mut results = ImageResult {
        clients: Vec::with_capacity(image.clients.len()),
        server: ServerReport::default(),
        switches: SwitchReport::default(),
        server_link_bytes: report.links.get(image.server.0 as usize).map_or(0, |link| link.bytes),
        trunk_bytes: trunk_bytes(world.fabric(), &report.links),
    };
    for node in world.nodes() {
        node.node().report(&mut results);
    }
    for switch in 0..world.fabric().switches() {
        if let Some(counts) = counts(world.program(switch)) {
            results.switches.add(&counts);
        }
    }
    let (mut result, capture) = setting.divide(report)?;
    results.put_into(image, world.fabric(), &mut result);
    let summary = StudySummary::Image(ImageSummary::new(image, &results));
    Ok(Done { result, summary, detail: None, capture })
}
