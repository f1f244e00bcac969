//! Checks that refuse what a machine cannot do before anything is created.

use rackweave_core::{HostId, Kind, MessageId, Refused, Submit, Time, Transport as _, frame};
use rackweave_lab::offered::surroundings;
use rackweave_lab::scenario::{NO_COSTS, PointSpec, Scenario};
use rackweave_lab::study;
use rackweave_linux::netns::{self, NetnsError};
use rackweave_sim::Fabric;
use rackweave_transport::{Part, TransportConfig};
use rackweave_workload::{Exchange, Pattern, StreamMode, WorkloadConfig};

use super::TestbedError;
use super::endpoints::{EndpointSpecs, kernel_has};
use super::kinds::{self, OnTestbed};
use super::worker::{RpcHeader, longest, longest_request};

/// The longest message in bytes: both ends hold a message in memory as a whole.
pub(crate) const LONGEST_MESSAGE: u64 = 128 << 20;
/// A message whose packets say what each packet of a long one costs.
const LONG_BYTES: u64 = 1 << 20;

/// Returns the refusal of what the testbed does not do, with what can be done instead.
pub(crate) fn refused(message: impl Into<String>, help: impl Into<String>) -> TestbedError {
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
    let kind = kinds::of(&point.study);
    if fabric.has_ocs() && !matches!(&kind, Some(Ok(kind)) if kind.moves_circuits()) {
        return Err(refused(
            "the testbed moves circuits only under jobs of [workload.reduce]: the ideal times of messages are those of \
             fixed racks",
            "`rackweave run` simulates it; topology = \"racks\" is the same pod without an optical circuit switch",
        ));
    }
    features(point)?;
    let kind = kind.transpose().map_err(|refusal| refused(refusal.message, refusal.help))?;
    if let Some(kind) = kind {
        kind.check(point, overlay)?;
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
    let busy_hosts = kind.map_or(0, OnTestbed::busy_hosts);
    let wanted = packets_per_second(point, &fabric, busy_hosts)?;
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
fn packets_per_second(
    point: &PointSpec,
    fabric: &Fabric,
    busy_hosts: usize,
) -> Result<f64, TestbedError> {
    let hosts = fabric.hosts();
    let links = fabric.path(HostId(0), HostId(hosts - 1)).len().saturating_sub(1) as f64;
    let full_per_second =
        fabric.host_rate().0 as f64 / 8.0 / f64::from(frame::wire_bytes(frame::MTU));
    // Each receiver has a full link, and every other packet is answered.
    let mut sum = busy_hosts as f64 * full_per_second * 1.5;
    for stream in &point.config.streams {
        let workload = &stream.workload;
        let all = hosts as usize;
        let of =
            |range: &Option<std::ops::Range<u32>>| range.as_ref().map_or(all, |range| range.len());
        let (senders, receivers) = (of(&workload.senders), of(&workload.receivers));
        let gap = stream
            .mean_gap(fabric.host_rate())
            .map_err(|error| refused(error.to_string(), "see [workload] in the scenario"))?;
        let at = surroundings(stream, fabric)(Part::Request);
        let both_ways = if workload.exchange.response_bytes(1).is_some() { 2.0 } else { 1.0 };
        sum += match (gap, workload.pattern.sizes()) {
            (Some(gap), Some(sizes)) => {
                let packets = sizes.mean_of(|size| stream.transport.packets_of(size, &at));
                senders as f64 * packets * both_ways * 1e12 / gap.as_ps() as f64
            }
            // The links limit the rate; for an incast, the receiver's link does.
            _ => {
                let receivers =
                    if matches!(workload.pattern, Pattern::Incast { .. }) { 1 } else { receivers };
                let control = stream.transport.control(LONG_BYTES, &at);
                let data =
                    stream.transport.packets_of(LONG_BYTES, &at) - control.there - control.back;
                let for_each = 1.0 + (control.there + control.back) / data;
                senders.min(receivers) as f64 * full_per_second * both_ways * for_each
            }
        };
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
    for table in study::names() {
        let point = scenario.points.iter().find(|point| point.study.table() == Some(table));
        let kind = point.and_then(|point| kinds::of(&point.study)?.ok());
        notes.extend(kind.and_then(OnTestbed::note).map(str::to_owned));
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
            packets_per_second(point, &Fabric::new(&point.config.fabric).unwrap(), 0).unwrap()
        };
        // Four receivers with full links, each behind one link.
        let data = 4.0 * 1e9 / 8.0 / f64::from(frame::wire_bytes(frame::MTU));
        for (transport, answers, of) in [
            // 1 MiB in segments of 1460 bytes: each two are acknowledged, and the last one.
            ("tcp", 360.0, 719.0),
            ("swift", 719.0, 719.0),
            // A request to send, tokens beyond the eight free ones, and an acknowledgement.
            ("phost", 1.0 + 711.0 + 1.0, 719.0),
            // Grants for packets beyond those of a round trip, which are three.
            ("homa", 725.0, 728.0),
        ] {
            let found = packets(transport) / data - 1.0;
            assert!((found - answers / of).abs() < 1e-9, "{transport}: {found}, {answers} of {of}");
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
