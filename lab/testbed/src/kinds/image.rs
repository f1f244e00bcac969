//! Images on real hosts.

use rackweave_core::{HostId, Time};
use rackweave_lab::results::trunk_bytes;
use rackweave_lab::scenario::{PointSpec, TcpBy};
use rackweave_lab::study::image::{
    CHUNK_SIZES, ClientReport, ImageConfig, ImageResult, ImageSummary, P2pScheme, Redirects,
    Scheme, SwitchReport,
};
use rackweave_lab::study::{StudyDetail, StudySummary};
use rackweave_sim::result::RunResult;
use rackweave_swp2p::p2p::node::Carrier;
use rackweave_transport::TransportConfig;

use super::{Ends, HostProcess, OnTestbed};
use crate::systems::{self, Systems};
use crate::{StudyEnd, TestbedError, kernel_has, refused, run_image};

/// The largest image in bytes: every client has a target, and all are in the memory of one machine.
const LARGEST_IMAGE: u64 = 1 << 30;

const _: () = assert!(
    *CHUNK_SIZES.start() == rackweave_image::MIN_CHUNK
        && *CHUNK_SIZES.end() == rackweave_image::MAX_CHUNK,
    "simulated images are divided as real ones are"
);

impl OnTestbed for ImageConfig {
    fn check(&self, point: &PointSpec, overlay: bool) -> Result<(), TestbedError> {
        check(self, point, overlay)
    }

    fn busy_hosts(&self) -> usize {
        self.clients.len()
    }

    fn systems(&self) -> Systems {
        systems::of_image(self)
    }

    fn carrier(&self) -> Option<&TransportConfig> {
        match &self.scheme {
            Scheme::P2p(scheme) => match &scheme.carrier {
                Carrier::Transport(transport) => Some(transport),
                Carrier::Fluid => None,
            },
            Scheme::Frisbee { .. } => None,
        }
    }

    fn note(&self) -> Option<&'static str> {
        Some(
            "expand_rate, disk_rate and write_buffer are simulated: real clients take the time that they take, and \
             the image cannot be compressed",
        )
    }

    fn run_host(&self, host: &HostProcess<'_>) -> Result<(), String> {
        run_image(self, host)
    }

    fn results(
        &self,
        ends: &Ends<'_>,
        result: &mut RunResult,
    ) -> (StudySummary, Option<StudyDetail>) {
        let report = |host: &HostId| match &ends.hosts.get(&host.0)?.study {
            Some(StudyEnd::Image(end)) => Some(end),
            _ => None,
        };
        let in_time = |at: &Time| ends.is_in_time(*at);
        let client = |(host, _): &(HostId, Time)| {
            let client = report(host).and_then(|end| end.client).unwrap_or_default();
            let (received, finished) =
                (client.received.filter(in_time), client.finished.filter(in_time));
            ClientReport { received, finished, ..client }
        };
        let server = report(&self.server);
        let image = ImageResult {
            clients: self.clients.iter().map(client).collect(),
            server: server.and_then(|end| end.server).unwrap_or_default(),
            switches: SwitchReport::of_program(&ends.switch.program),
            server_link_bytes: server.map_or(0, |end| end.link_bytes),
            trunk_bytes: trunk_bytes(ends.fabric, &ends.switch.links),
        };
        image.put_into(self, ends.fabric, result);
        (StudySummary::Image(ImageSummary::new(self, &image)), None)
    }
}

/// Checks the parameters of SWP2P, and returns how many hosts its server has to find in a rack.
fn p2p(scheme: &P2pScheme, in_simulator: &'static str) -> Result<Option<u32>, TestbedError> {
    if matches!(scheme.carrier, Carrier::Fluid) {
        let message = "the testbed has no carrier \"fluid\": real chunks are packets";
        return Err(refused(message, in_simulator));
    }
    if let Redirects::Switches { per_second: 1.., .. } = scheme.redirects {
        let message =
            "the testbed's switch has its program in the data plane, and no slow processor";
        return Err(refused(message, "leave out transport.swp2p.switch_requests_per_second"));
    }
    Ok(match scheme.redirects {
        Redirects::Server => scheme.directory.hosts_per_rack,
        Redirects::Nobody | Redirects::Switches { .. } => None,
    })
}

fn check(image: &ImageConfig, point: &PointSpec, overlay: bool) -> Result<(), TestbedError> {
    let in_simulator = "`rackweave run` simulates it";
    if overlay {
        return Err(refused(
            "the overlay carries no images: `rackweave image` has sockets and addresses of its own",
            "without --overlay (as root) hosts are network namespaces",
        ));
    }
    let rack = match &image.scheme {
        Scheme::P2p(scheme) => p2p(scheme, in_simulator)?,
        Scheme::Frisbee { .. } => None,
    };
    if !point.config.streams.is_empty() {
        let message = "the testbed carries no [[background]] streams with an image";
        return Err(refused(message, in_simulator));
    }
    if !image.crashed.is_empty() {
        let message = "the testbed does not crash the server and the clients of an image";
        return Err(refused(message, in_simulator));
    }
    if point.testbed.tcp == TcpBy::Machine {
        let message = "the testbed carries images only over the kernel's TCP";
        return Err(refused(message, "leave out testbed.tcp"));
    }
    if let Some(congestion) = point.kernel_tcp.iter().flatten().find(|name| !kernel_has(name)) {
        return Err(refused(
            format!("this kernel has no congestion control `{congestion}`"),
            "set `congestion` to \"cubic\" or \"newreno\"",
        ));
    }
    let bytes = image.image.bytes();
    if bytes > LARGEST_IMAGE {
        return Err(refused(
            format!("an image of {bytes} bytes: the testbed takes {LARGEST_IMAGE} at most"),
            "each client has a target of this size, in memory",
        ));
    }
    let chunk = image.image.chunk_bytes();
    if !chunk.is_power_of_two() || !(1 << 16..=1 << 24).contains(&chunk) {
        let message = format!(
            "chunks of {chunk} bytes: those of image files are a power of two, from 64 KiB to 16 MiB"
        );
        return Err(refused(message, in_simulator));
    }
    // The server knows racks by prefixes of 16 to 30 bits.
    if let Some(hosts) = rack.filter(|it| !it.is_power_of_two() || !(4..=1 << 16).contains(it)) {
        return Err(refused(
            format!("racks of {hosts} hosts: the server knows those of 4, 8, 16 ... hosts"),
            "change fabric.hosts_per_leaf, or use a single switch",
        ));
    }
    Ok(())
}
