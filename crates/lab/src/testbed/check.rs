//! Checks that refuse what a machine cannot do before anything is created.

use rackweave_core::{HostId, Kind, MessageId, Refused, Submit, Time, Transport as _, frame};
use rackweave_group::app::Cost;
use rackweave_group::imaging::p2p::node::Carrier;
use rackweave_group::orca::host::Spread;
use rackweave_group::reduce::job::Map;
use rackweave_linux::netns::{self, NetnsError};
use rackweave_sim::Fabric;
use rackweave_sim::config::Topology;
use rackweave_transport::TransportConfig;
use rackweave_workload::{Exchange, Pattern, StreamMode, WorkloadConfig};

use super::TestbedError;
use super::endpoints::{EndpointSpecs, kernel_has};
use super::worker::{RpcHeader, longest, longest_request};
use crate::cast::{CastConfig, Scheme};
use crate::image::{self, ImageConfig, P2pScheme, Redirects};
use crate::reduce::ReduceConfig;
use crate::scenario::host::NO_COSTS;
use crate::scenario::{PointSpec, Scenario, TcpBy};

/// The longest message in bytes: both ends hold a message in memory as a whole.
const LONGEST_MESSAGE: u64 = 128 << 20;
/// The largest image in bytes: every client has a target, and all are in the memory of one machine.
const LARGEST_IMAGE: u64 = 1 << 30;
/// The largest data of a job in bytes.
const LARGEST_JOB: u64 = 1 << 30;

fn refused(message: impl Into<String>, help: impl Into<String>) -> TestbedError {
    TestbedError::Refused { message: message.into(), help: help.into() }
}

/// Checks the privileges and programs that the testbed needs.
pub(super) fn machine(overlay: bool) -> Result<(), TestbedError> {
    if overlay {
        return Ok(());
    }
    netns::check().map_err(|error| match error {
        NetnsError::NoRights => refused(
            error.to_string(),
            "`--overlay` runs the scenario over UDP on loopback and needs no privileges",
        ),
        other => refused(other.to_string(), "`--overlay` needs no other programs"),
    })
}

/// Checks one point of the sweep.
pub(super) fn point(point: &PointSpec, overlay: bool) -> Result<(), TestbedError> {
    let fabric = Fabric::new(&point.config.fabric)
        .map_err(|error| refused(error.to_string(), "see [fabric] in the scenario"))?;
    if fabric.has_ocs() && point.reduce.is_none() {
        return Err(refused(
            "the testbed moves circuits only under jobs of [workload.reduce]: the ideal times of messages are those of \
             fixed racks",
            "`rackweave run` simulates it; topology = \"racks\" is the same pod without an optical circuit switch",
        ));
    }
    features(point)?;
    if let Some(reduce) = &point.reduce {
        jobs(point, reduce)?;
    }
    if point.plan.is_some() {
        return Err(refused(
            "[workload.plan] has no packets",
            "`rackweave run` computes its plans",
        ));
    }
    if point.allreduce.is_some() {
        return Err(refused(
            "the testbed runs no [workload.allreduce]",
            "`rackweave run` simulates it",
        ));
    }
    if let Some(image) = &point.image {
        images(point, image, overlay)?;
    }
    if let Some(cast) = &point.cast {
        files(point, cast, overlay)?;
    }
    endpoints(point, overlay)?;
    let hosts = u64::from(fabric.hosts());
    if let Some(most) = point.testbed.max_hosts.filter(|most| hosts > *most) {
        return Err(refused(
            format!("{hosts} hosts are {hosts} processes: the testbed takes {most} at most"),
            "use a smaller fabric, or set testbed.max_hosts",
        ));
    }
    let length = longest(point);
    if length > LONGEST_MESSAGE {
        return Err(refused(
            format!(
                "messages of up to {length} bytes: the testbed takes {LONGEST_MESSAGE} at most"
            ),
            "`workload.truncate` cuts the distribution",
        ));
    }
    let wanted = packets_per_second(point, &fabric)?;
    if let Some(most) = point.testbed.max_packets_per_second.filter(|most| wanted > *most as f64) {
        return Err(refused(
            format!(
                "this load makes up to {wanted:.0} packets a second on the fabric's links; the limit for this \
                 machine is {most}"
            ),
            "lower `fabric.host_link` or `workload.load`, or set testbed.max_packets_per_second",
        ));
    }
    Ok(())
}

/// Refuses features that only the simulator has, and information that hosts cannot have.
fn features(point: &PointSpec) -> Result<(), TestbedError> {
    if point.config.measure.stop_load {
        return Err(refused(
            "measure.load_after = \"stop\" is simulated: on the testbed the load goes on until all measured messages have ended",
            "leave it out here, or end the load with workload.stop",
        ));
    }
    for stream in &point.config.streams {
        let workload = &stream.workload;
        if !workload.application.is_instant() {
            let message =
                "[workload.application] is simulated: real applications take the time they take";
            return Err(refused(message, "leave it out here"));
        }
        if workload.streaming.is_some_and(|streaming| streaming.mode == StreamMode::Unary) {
            rpcs_fit(&stream.transport, workload)?;
        }
    }
    Ok(())
}

/// Returns whether a transport accepts the workload's longest message with the header of an RPC on a channel.
fn rpcs_fit(transport: &TransportConfig, workload: &WorkloadConfig) -> Result<(), TestbedError> {
    let (id, peer) = (MessageId::request(1), HostId(1));
    let bytes = longest_request(workload) + RpcHeader::BYTES as u64;
    let message = Submit { id, peer, bytes, kind: Kind::Request };
    let Err(Refused::TooLong { max }) = transport.machine(HostId(0)).submit(Time::ZERO, message)
    else {
        return Ok(());
    };
    let header = RpcHeader::BYTES;
    Err(refused(
        format!(
            "a message on a channel of unary RPCs has {header} bytes more here: {bytes} in all, and this transport \
             takes {max} at most"
        ),
        "`workload.truncate` cuts the distribution",
    ))
}

/// Checks the parameters of a cast.
fn files(point: &PointSpec, cast: &CastConfig, overlay: bool) -> Result<(), TestbedError> {
    let in_simulator = "`rackweave run` simulates it";
    if overlay {
        return Err(refused(
            "the overlay carries no files to many: `rackweave cast` has a separate UDP socket",
            "without --overlay (as root) hosts are network namespaces",
        ));
    }
    if !matches!(point.config.fabric.topology, Topology::SingleSwitch { .. }) {
        let message = "the testbed sends files to many only through a single switch";
        return Err(refused(message, "set topology = \"single-switch\""));
    }
    if !point.config.streams.is_empty() {
        let message = "the testbed carries no [[background]] streams beside files to many";
        return Err(refused(message, in_simulator));
    }
    if cast.senders.len() > 1 || cast.processes > 1 {
        let message = "the testbed's sender of files has one port and one process";
        return Err(refused(message, in_simulator));
    }
    if cast.cost != Cost::default() {
        let message = "[workload.cast.cpu] is simulated: real senders take the time they take";
        return Err(refused(message, "leave it out here"));
    }
    if !cast.crashed.is_empty() {
        let message = "the testbed does not crash senders and receivers of files";
        return Err(refused(message, in_simulator));
    }
    let total = cast.bytes();
    if total > LONGEST_MESSAGE {
        return Err(refused(
            format!("files of {total} bytes in all: the testbed takes {LONGEST_MESSAGE} at most"),
            "each host holds them in memory to verify received bytes",
        ));
    }
    match &cast.scheme {
        Scheme::Unicast { .. } => {
            let message = "the testbed has no cast-unicast: its UDP copies are not repaired";
            Err(refused(message, "orca with spread = \"unicast\" sends copies and repairs them"))
        }
        Scheme::Orca(orca) => match orca.spread {
            Spread::Labels => {
                let message = "the testbed's hosts have no labels, because they have no controller";
                Err(refused(message, "set spread to \"multicast\", \"relay\" or \"unicast\""))
            }
            Spread::Relay | Spread::Multicast | Spread::Unicast => Ok(()),
        },
        Scheme::Streams { .. } if cast.files.len() > 1 => {
            let message = "the testbed sends only one file over cast-tcp and cast-chain";
            Err(refused(message, in_simulator))
        }
        Scheme::Streams { .. } if point.testbed.tcp == TcpBy::Machine => {
            let message = "the testbed sends files to many only over the kernel's TCP";
            Err(refused(message, "leave out testbed.tcp"))
        }
        Scheme::Streams { .. } => Ok(()),
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

/// Checks the parameters of an image.
fn images(point: &PointSpec, image: &ImageConfig, overlay: bool) -> Result<(), TestbedError> {
    let in_simulator = "`rackweave run` simulates it";
    if overlay {
        return Err(refused(
            "the overlay carries no images: `rackweave image` has sockets and addresses of its own",
            "without --overlay (as root) hosts are network namespaces",
        ));
    }
    let rack = match &image.scheme {
        image::Scheme::P2p(scheme) => p2p(scheme, in_simulator)?,
        image::Scheme::Frisbee { .. } => None,
    };
    if !point.config.streams.is_empty() {
        let message = "the testbed carries no [[background]] streams beside an image";
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

/// Checks the parameters of jobs.
fn jobs(point: &PointSpec, reduce: &ReduceConfig) -> Result<(), TestbedError> {
    let in_simulator = "`rackweave run` simulates it";
    if reduce.job.map != Map::Local {
        let message = "the testbed carries no data of jobs to their workers";
        return Err(refused(
            message,
            "set workload.reduce.map to \"local\": workers have their data",
        ));
    }
    if !point.config.streams.is_empty() {
        let message = "the testbed carries no [[background]] streams beside jobs";
        return Err(refused(message, in_simulator));
    }
    if let Some(job) = reduce.jobs.iter().find(|job| job.bytes > LARGEST_JOB) {
        let bytes = job.bytes;
        return Err(refused(
            format!("a job of {bytes} bytes: the testbed takes {LARGEST_JOB} at most"),
            "the pairs of all workers are in the memory of one machine",
        ));
    }
    Ok(())
}

fn endpoints(point: &PointSpec, overlay: bool) -> Result<(), TestbedError> {
    let endpoints = EndpointSpecs::of(point, overlay);
    if overlay && endpoints.endpoints.len() > 1 {
        return Err(refused(
            "in the overlay all streams must use the same transport, and answer requests alike: a host has one \
             port of the switch",
            "without --overlay (as root) a host runs several transports",
        ));
    }
    for congestion in point.kernel_tcp.iter().flatten() {
        if overlay && *congestion == "bbr" {
            let message =
                "BBR is the kernel's, and the overlay carries only Rackweave's transports";
            return Err(refused(message, "without --overlay (as root) TCP is the kernel's"));
        }
    }
    for (stream, endpoint) in point.config.streams.iter().zip(&endpoints.of_stream) {
        let workload = &stream.workload;
        let is_loop = matches!(workload.pattern, Pattern::ClosedLoop { .. });
        let is_stream =
            workload.streaming.is_some_and(|streaming| streaming.mode == StreamMode::OneId);
        if endpoints.endpoints[usize::from(*endpoint)].kernel.is_some()
            && is_stream
            && is_loop
            && workload.exchange == Exchange::OneWay
        {
            return Err(refused(
                "on a stream of the kernel's TCP a sender does not learn when a one-way message has arrived, and \
                 a closed loop waits for that",
                "`workload.response` with a length, or testbed.tcp = \"machine\"",
            ));
        }
    }
    for endpoint in &endpoints.endpoints {
        if let Some(congestion) = endpoint.kernel.filter(|name| !kernel_has(name)) {
            return Err(refused(
                format!("this kernel has no congestion control `{congestion}`"),
                "`testbed.tcp = \"machine\"` selects Rackweave's TCP, the same as in the simulator",
            ));
        }
    }
    Ok(())
}

/// Returns an upper estimate of the rate of data packets and of the packets that answer them, on all links but the
/// hosts' own, which the switch has to carry.
fn packets_per_second(point: &PointSpec, fabric: &Fabric) -> Result<f64, TestbedError> {
    let hosts = fabric.hosts();
    let links = fabric.path(HostId(0), HostId(hosts - 1)).len().saturating_sub(1) as f64;
    let full_per_second =
        fabric.host_rate().0 as f64 / 8.0 / f64::from(frame::wire_bytes(frame::MTU));
    // Each receiver has a full link, and every other packet is answered.
    let mut sum = match &point.cast {
        Some(cast) => cast.receivers.len() as f64 * full_per_second * 1.5,
        None => 0.0,
    };
    if let Some(image) = &point.image {
        sum += image.clients.len() as f64 * full_per_second * 1.5;
    }
    if let Some(reduce) = &point.reduce {
        sum += reduce.hosts().len() as f64 * full_per_second * 1.5;
    }
    for stream in &point.config.streams {
        let workload = &stream.workload;
        let all = hosts as usize;
        let of =
            |range: &Option<std::ops::Range<u32>>| range.as_ref().map_or(all, |range| range.len());
        let (senders, receivers) = (of(&workload.senders), of(&workload.receivers));
        let gap = stream
            .mean_gap(fabric.host_rate())
            .map_err(|error| refused(error.to_string(), "see [workload] in the scenario"))?;
        let both_ways = if workload.exchange.response_bytes(1).is_some() { 2.0 } else { 1.0 };
        let data = match (gap, workload.pattern.sizes()) {
            (Some(gap), Some(sizes)) => {
                let payload = f64::from(stream.transport.framing().max_payload);
                let packets = sizes.mean_of(|size| (size as f64 / payload).ceil());
                senders as f64 * packets * both_ways * 1e12 / gap.as_ps() as f64
            }
            // The links limit the rate; for an incast, the receiver's link does.
            _ => {
                let receivers =
                    if matches!(workload.pattern, Pattern::Incast { .. }) { 1 } else { receivers };
                senders.min(receivers) as f64 * full_per_second * both_ways
            }
        };
        // Without the bytes for which nothing is sent back, since the estimate is an upper one.
        sum += data * (1.0 + stream.transport.feedback().packets);
    }
    Ok(sum * links)
}

/// Returns remarks that hold for all results of a scenario.
pub(super) fn notes(scenario: &Scenario, overlay: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let mut tcp = scenario.points.iter().flat_map(|point| point.kernel_tcp.iter().flatten());
    if overlay && tcp.clone().next().is_some() {
        notes.push(
            "tcp and dctcp are Rackweave's machines: the overlay carries no kernel TCP".into(),
        );
    } else if tcp.any(|congestion| *congestion == "dctcp") && !kernel_has("dctcp") {
        notes.push("dctcp is Rackweave's machine: this kernel has no DCTCP".into());
    }
    if scenario.points.iter().any(|point| point.config.host.is_some()) {
        notes.push(
            "[host] and host_receive_cost are simulated: real hosts cost what they cost".into(),
        );
    } else {
        notes.push(NO_COSTS.into());
    }
    if scenario.points.iter().any(|point| point.reduce.is_some()) {
        notes.push(
            "jobs wait for map_cost and reduce_cost as in the simulator, and take the machine's time beside that"
                .into(),
        );
    }
    if scenario.points.iter().any(|point| point.image.is_some()) {
        notes.push(
            "expand_rate, disk_rate and write_buffer are simulated: real clients take the time that they take, and \
             the image cannot be compressed"
                .into(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn packets_that_receivers_send_back_are_those_of_the_transport() {
        let packets = |transport: &str| {
            let text = format!(
                "[fabric]\ntopology = 'single-switch'\nhosts = 4\nhost_link = '1 Gbps'\n[transport]\nname = '{transport}'\n[workload]\n\
                 arrivals = 'closed-loop'\nsizes = '1 KB'\n"
            );
            let scenario = Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap();
            let point = &scenario.points[0];
            packets_per_second(point, &Fabric::new(&point.config.fabric).unwrap()).unwrap()
        };
        let homa = packets("homa");
        for (transport, answered) in [("tcp", 0.6), ("swift", 1.0), ("polo", 1.3)] {
            let ratio = 2.0 * packets(transport) / homa;
            assert!((ratio - 1.0 - answered).abs() < 1e-9, "{transport}: {ratio}");
        }
    }

    #[test]
    fn circuits_move_under_jobs_only() {
        let checked = |fabric: &str| {
            let text = format!(
                "[fabric]\ntors = [2, 1]\nuplinks = 1\nhost_link = '20 Mbps'\n{fabric}\n[transport]\nname = 'homa'\n\
                 [workload]\narrivals = 'permutation'\nsizes = '1 KB'\n"
            );
            let scenario = Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap();
            point(&scenario.points[0], true).map_err(|error| error.to_string())
        };
        for fabric in [
            "topology = 'rackless'",
            "topology = 'tor-circuits'\ncircuit_ports = 1\ncircuits = [[0, 1]]",
        ] {
            let error = checked(fabric).unwrap_err();
            let expected = "the testbed moves circuits only under jobs of [workload.reduce]: the ideal times of \
                            messages are those of fixed racks";
            assert_eq!(error, expected);
        }
        assert_eq!(checked("topology = 'racks'"), Ok(()));
    }
}
