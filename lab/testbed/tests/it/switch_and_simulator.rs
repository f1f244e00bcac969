//! The user-space switch's fabric and the simulator's: the same frames, fed at the same times, leave at the
//! same times, to the tick, with the same marks, cuts and losses.

use std::path::Path;

use rackweave_core::{HostId, Packet, Span, Time};
use rackweave_lab::Scenario;
use rackweave_linux::switch::{Carried, Core, CoreConfig, Encapsulation};
use rackweave_sim::config::CapturePort;
use rackweave_sim::{Control, Fabric, RunConfig};

/// Delays without a common divisor, so that two things hardly ever happen at the same time.
const FABRIC: &str = r#"
[fabric]
topology = "leaf-spine"
leaves = 3
hosts_per_leaf = 3
spines = 2
host_link_delays = ["50.021 ns", "71.003 ns", "93.007 ns", "57.011 ns", "80.029 ns", "61.033 ns", "99.041 ns", "77.047 ns", "65.051 ns"]
core_link_delay = "103.013 ns"
core_link = "7 Gbps"

[measure]
messages = 2000
time_limit = "3 ms"
"#;

/// What a host receives: when its first bit is sent by the last switch, and what it is.
type Seen = (Time, u32, u32, u32, u16, u8, bool, bool, u8);

fn seen(at: Time, host: u32, packet: &Packet<impl rackweave_core::Header>) -> Seen {
    (
        at,
        host,
        packet.src.0,
        packet.dst.0,
        packet.wire_bytes,
        packet.priority,
        packet.is_trimmed(),
        packet.is_returned(),
        packet.ecn() as u8,
    )
}

fn run(text: &str) -> (RunConfig, rackweave_sim::RunResult) {
    let text = format!("{FABRIC}\n{text}");
    let scenario = Scenario::parse("test.toml", &text, Path::new("."), &[], None).unwrap();
    let mut config = scenario.points[0].config.clone();
    let hosts = config.fabric.topology.hosts();
    let all = (0..hosts).map(HostId);
    config.measure.capture = all.clone().map(CapturePort::HostSends).collect();
    config.measure.capture.extend(all.map(CapturePort::HostReceives));
    config.measure.capture_limit = usize::MAX;
    let result = rackweave_sim::run(&config, &Control::default()).unwrap();
    (config, result)
}

/// Compares the two, and says how many frames arrived, were marked, trimmed, returned to their senders and dropped.
fn compare(text: &str) -> [u64; 5] {
    let (config, result) = run(text);
    let fabric = Fabric::new(&config.fabric).unwrap();
    let hosts = fabric.hosts();
    // What happens at the very end is seen by one of them only.
    let end = Time::from_ps(result.ended_at.as_ps() - Span::from_us(100).as_ps());
    let mut expected: Vec<Seen> = Vec::new();
    let mut core = CoreConfig {
        fabric: fabric.clone(),
        faults: config.faults.clone(),
        moves: Vec::new(),
        seed: config.seed,
        run: config.run,
        frames: 1 << 16,
        nic_queue_bytes: u64::MAX,
        sample_every: Span::ZERO,
        system: std::sync::Arc::new(()),
        encapsulation: Encapsulation::Overlay,
        mtu: 1500,
    }
    .build()
    .unwrap();
    let mut found: Vec<Seen> = Vec::new();
    let mut drain = |core: &mut Core| {
        while let Some(departure) = core.departure() {
            let host = departure.host;
            let link = &fabric.links()[fabric.downlink(host) as usize];
            let takes = link.span_of(u32::from(departure.packet.wire_bytes)) + link.delay;
            let at = Time::from_ps(departure.due.as_ps() - takes.as_ps());
            found.push(seen(at, host.0, &departure.packet));
            core.payloads().release(departure.packet.header.slot);
        }
    };
    for captured in &result.capture {
        if captured.interface >= hosts {
            expected.push(seen(captured.at, captured.interface - hosts, &captured.packet));
            continue;
        }
        core.run(captured.at);
        drain(&mut core);
        let slot = core.payloads().insert(&[0]).unwrap();
        let packet = captured
            .packet
            .map(|header| Carried::opaque(slot, 1, rackweave_core::Header::path(&header)));
        core.arrive(captured.at, HostId(captured.interface), packet);
    }
    core.run(result.ended_at);
    drain(&mut core);
    let counters = *core.counters();
    found.retain(|seen| seen.0 < end);
    expected.retain(|seen| seen.0 < end);
    found.sort_unstable();
    expected.sort_unstable();
    assert!(expected.len() > 2000, "{}", expected.len());
    let differ = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    if let Some(first) = differ {
        panic!("frame {first}: found {:?}, expected {:?}", found[first], expected[first]);
    }
    assert_eq!(found.len(), expected.len());
    [
        found.len() as u64,
        counters.ecn_marks,
        counters.trims,
        counters.returned_to_sender,
        counters.dropped(),
    ]
}

/// Losses between switches only: what is lost on a receiver's own link has left the last switch all the same. And on one
/// cable only: two frames that arrive at the same time over two links may draw their lots in either order.
#[test]
fn homa_with_priorities_spraying_and_losses() {
    let [.., dropped] = compare(
        r#"
[transport]
name = "homa"
[workload]
arrivals = "poisson"
sizes = "W4"
load = 0.7
[[faults]]
place = "core link 0"
from = "0.5 ms"
until = "2 ms"
kind = "loss"
probability = 0.1
"#,
    );
    assert!(dropped > 20, "{dropped}");
}

#[test]
fn ndp_with_trimming() {
    let [_, _, trims, ..] = compare(
        r#"
[transport]
name = "ndp"
[workload]
arrivals = "poisson"
sizes = "W5"
load = 0.9
[fabric.switch]
trim = { data_queue = "2 packets", header_queue = "1538 B" }
"#,
    );
    assert!(trims > 100, "{trims}");
}

#[test]
fn dctcp_with_marks_a_shared_buffer_and_a_dead_link() {
    let [_, marks, _, _, dropped] = compare(
        r#"
[transport]
name = "dctcp"
[workload]
arrivals = "poisson"
sizes = "W5"
load = 0.9
[fabric.switch]
shared_buffer = "60 KB"
ecn_threshold = "10 packets"
[[faults]]
place = "core link 0"
from = "1 ms"
until = "1.5 ms"
kind = "down"
"#,
    );
    assert!(marks > 100 && dropped > 0, "{marks} {dropped}");
}
