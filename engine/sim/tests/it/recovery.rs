//! The counters of retransmissions and timeouts, compared with the packets that hosts have sent.

use crate::common::*;
use rackweave_core::{Header as _, HostId, RecoveryCounters, Span, Time};
use rackweave_sim::config::{
    BufferConfig, CapturePort, FabricConfig, Fault, FaultKind, FaultPlace, StreamConfig,
};
use rackweave_sim::result::RunResult;
use rackweave_transport::TransportConfig;
use rackweave_workload::Pattern;

/// All transports that repair losses, and fabrics for them.
fn all(fabric: &FabricConfig) -> Vec<(&'static str, TransportConfig, FabricConfig)> {
    let plain = |name, transport| (name, transport, fabric.clone());
    let (pfabric, pfabric_fabric) = pfabric(fabric);
    [
        plain("homa", homa(fabric, &fixed(100_000))),
        plain("dctcp", dctcp()),
        plain("tcp", cubic()),
        plain("reno", new_reno()),
        plain("polo", polo()),
        ("pfabric", pfabric, pfabric_fabric),
    ]
    .into_iter()
    .chain(receiver_driven(fabric))
    .collect()
}

/// Runs a stream, and records every packet that a host sends.
fn recorded(fabric: FabricConfig, stream: StreamConfig, faults: Vec<Fault>) -> RunResult {
    let hosts = fabric.topology.hosts();
    let mut config = config(fabric, vec![stream]);
    config.measure.capture = (0..hosts).map(|host| CapturePort::HostSends(HostId(host))).collect();
    config.measure.capture_limit = usize::MAX;
    config.faults = faults;
    run_to_completion(&config)
}

fn counters(result: &RunResult) -> RecoveryCounters {
    assert_eq!(result.recovery.len(), 1);
    assert_eq!(result.recovery[0].streams, [0]);
    result.recovery[0].counters
}

/// Data packets that hosts have sent, beyond the packets that messages of this length consist of.
fn sent_again(result: &RunResult, transport: &TransportConfig, bytes: u64) -> u64 {
    let sent = result.capture.iter().filter(|it| it.packet.header.payload_bytes() > 0).count();
    let packets = bytes.div_ceil(u64::from(transport.framing().max_payload));
    sent as u64 - result.messages.len() as u64 * packets
}

/// An incast that overflows a small buffer: what is counted is what was sent, for every transport.
#[test]
fn retransmissions_are_the_packets_that_were_sent_again() {
    let bytes = 100_000;
    let mut small = fabric(LEAF_SPINE);
    small.switch.buffer = BufferConfig::PerPort { bytes: 30_000 };
    let mut without = Vec::new();
    for (name, transport, fabric) in all(&small) {
        let pattern = incast(Some(20), bytes);
        let result = recorded(fabric, stream(transport.clone(), pattern), Vec::new());
        let counted = counters(&result);
        assert_eq!(counted.retransmissions, sent_again(&result, &transport, bytes), "{name}");
        let dropped: u64 = result.counters.drops.iter().sum();
        let lost = dropped + result.counters.trims;
        if ["homa", "dctcp", "tcp", "reno", "pfabric", "ndp"].contains(&name) {
            assert!(lost > 0 && counted.retransmissions > 0, "{name}: {lost}, {counted:?}");
        }
        if name == "ndp" {
            // Each trimmed packet is sent again, and nothing else.
            assert_eq!((dropped, counted.retransmissions), (0, result.counters.trims));
        }
        if counted.retransmissions == 0 {
            without.push(name);
        }
    }
    // Those keep the queue short by credit, or have packets wait at their senders.
    assert!(without.len() < 5, "{without:?}");
}

#[test]
fn a_run_without_losses_has_no_retransmissions_and_no_timeouts() {
    for (name, transport, fabric) in all(&fabric(LEAF_SPINE)) {
        let rows: Vec<_> = (0..8).map(|n: u32| (f64::from(n) * 500.0, n, n + 8, 100_000)).collect();
        let result = recorded(fabric, stream(transport.clone(), trace(&rows)), Vec::new());
        assert_eq!(result.counters.drops.iter().sum::<u64>(), 0, "{name}");
        let mut counted = counters(&result);
        if name == "phost" {
            // By the paper's constants the last packets of a message count as lost a round trip after their tokens, when they are
            // just arriving. What is sent for the new tokens would be counted.
            counted.timeouts = 0;
        }
        assert_eq!(counted, RecoveryCounters::default(), "{name}");
        assert_eq!(sent_again(&result, &transport, 100_000), 0, "{name}");
    }
}

/// All packets of a link are lost for a while, which only a timer finds.
#[test]
fn a_silent_link_is_found_by_a_timer() {
    let bytes = 100_000;
    for (name, transport, fabric) in all(&fabric(LEAF_SPINE)) {
        let at = |us| Time::ZERO + Span::from_us(us);
        let fault = Fault {
            from: at(20),
            until: at(400),
            place: FaultPlace::HostLink(HostId(9)),
            kind: FaultKind::Loss(1.0),
        };
        let pattern: Pattern = trace(&[(0.0, 1, 9, bytes)]);
        let result = recorded(fabric, stream(transport.clone(), pattern), vec![fault]);
        let counted = counters(&result);
        assert!(counted.timeouts > 0 && counted.retransmissions > 0, "{name}: {counted:?}");
        assert_eq!(counted.retransmissions, sent_again(&result, &transport, bytes), "{name}");
    }
}
