//! Lossless Ethernet: transports over switches that pause.

use crate::common::*;
use rackweave_core::{HostId, Span, Time};
use rackweave_sim::config::{
    FabricConfig, Fault, FaultKind, FaultPlace, PfcConfig, SwitchConfig, Topology,
};
use rackweave_sim::result::{End, RunResult};
use rackweave_sim::{Control, Fabric, OneThread, run, windows};
use rackweave_transport::{TransportConfig, datagram};

/// The fabric with switches of 1 MB, in which a port and priority are paused early.
fn lossless(mut fabric: FabricConfig) -> FabricConfig {
    let pfc = PfcConfig::default().with_priorities(1 | 1 << 7);
    fabric.switch = SwitchConfig::default().with_shared_buffer(1_000_000, 0.125).with_pfc(pfc);
    fabric
}

fn datagrams() -> TransportConfig {
    datagram::Config::default().into()
}

#[test]
fn sixty_four_to_one_loses_no_packet_and_takes_the_time_of_the_link() {
    let fabric = lossless(fabric(single_switch(65)));
    let bytes = 1_472_000;
    let config = config(fabric, vec![stream(datagrams(), incast(Some(64), bytes))]);
    let result = run_to_completion(&config);
    assert_eq!(result.counters.dropped(), 0);
    assert!(result.counters.pauses > 64, "{:?}", result.counters);
    let last = result.messages.iter().map(latency).max().unwrap();
    // The first packet's first link, and all packets at the receiver's.
    let each = G10.span_of(datagrams().framing().message_wire_bytes(bytes));
    let least = result.messages[0].ideal + each * 63;
    assert_eq!(last, least, "not a tick is lost");
    let paused = |link: usize| result.links[link].paused;
    assert_eq!(paused(0), 0.0);
    assert!((1..65).all(|host| paused(host) > 0.9), "{:?}", result.links[1]);
}

#[test]
fn every_message_on_an_idle_path_takes_its_ideal_time() {
    for topology in [single_switch(4), LEAF_SPINE] {
        let last = topology.hosts() - 1;
        let pattern = trace(&[(0.0, 0, last, 100_000), (500.0, last, 0, 7), (900.0, 1, 2, 1472)]);
        let config = config(lossless(fabric(topology)), vec![stream(datagrams(), pattern)]);
        for message in &run_to_completion(&config).messages {
            assert_eq!(latency(message), message.ideal, "{message:?}");
        }
    }
}

fn on_a_ring(flows: u32, limit: Span) -> RunResult {
    let topology = Topology::LeafSpine {
        leaves: 5,
        hosts_per_leaf: 2,
        spines: 5,
        host_link: G10,
        core_link: G10,
    };
    let rows: Vec<_> =
        (0..flows).map(|leaf| (0.0, 2 * leaf, (2 * leaf + 4) % 10, 20_000_000)).collect();
    let mut fabric = lossless(fabric(topology));
    fabric.switch.pfc = Some(PfcConfig::default().with_priorities(1).with_xoff(10_000));
    let mut config = config(fabric, vec![stream(cubic(), trace(&rows))]);
    // Only leaf i, spine i, leaf i + 1 and so on are left.
    let works = |leaf: u32, spine: u32| spine == leaf || (spine + 1) % 5 == leaf;
    let cables = (0..25).filter(|cable| !works(cable / 5, cable % 5));
    config.faults.extend(cables.map(|cable| Fault {
        from: Time::ZERO,
        until: Time::MAX,
        place: FaultPlace::CoreLink(cable),
        kind: FaultKind::Down,
    }));
    config.measure.time_limit = limit;
    run(&config, &Control::default()).expect("a possible run")
}

#[test]
fn a_cyclic_dependency_of_buffers_ends_the_run_as_a_deadlock() {
    let limit = Span::from_secs(10);
    let result = on_a_ring(5, limit);
    assert_eq!(result.end, End::Deadlock);
    assert_eq!(result.deadlock.len(), 10, "{:?}", result.deadlock);
    assert!(result.deadlock.iter().any(|link| link == "leaf0->spine0"), "{:?}", result.deadlock);
    assert!(result.ended_at < Time::ZERO + Span::from_ms(50), "{}", result.ended_at);
    let whole = on_a_ring(3, limit);
    assert_eq!((whole.end, whole.deadlock.len()), (End::AllDone, 0));
}

/// Same seed, same bytes: such runs use one thread whatever number is asked for, and say so.
#[test]
fn runs_with_pauses_are_not_divided() {
    let mut config = config(
        lossless(fabric(Topology::fat_tree(12, G10))),
        vec![stream(datagrams(), incast(Some(64), 100_000))],
    );
    let layout = Fabric::new(&config.fabric).unwrap();
    assert_eq!(windows(&config, &layout), Err(OneThread::Pfc));
    config.fabric.switch.pfc = None;
    assert!(windows(&config, &layout_of(&config.fabric)).is_ok());
}

fn layout_of(fabric: &FabricConfig) -> Fabric {
    Fabric::new(fabric).unwrap()
}

#[test]
fn a_victim_shares_its_link_with_nobody_and_still_waits() {
    // Host 8 of the second leaf receives from seven of its own leaf, and from host 0, whose leaf's link to the spine host 1
    // shares. Host 1 sends to host 9, to which nobody else does.
    let topology = Topology::LeafSpine {
        leaves: 2,
        hosts_per_leaf: 8,
        spines: 1,
        host_link: G10,
        core_link: G10,
    };
    let mut rows: Vec<_> = (10..16).map(|src| (0.0, src, 8, 2_000_000)).collect();
    rows.extend([(0.0, 0, 8, 2_000_000), (10.0, 1, 9, 500_000)]);
    let victim = |fabric: FabricConfig| {
        let config = config(fabric, vec![stream(datagrams(), trace(&rows))]);
        let result = run(&config, &Control::default()).expect("a possible run");
        let of = |dst| result.messages.iter().find(|it| it.dst == HostId(dst)).map(slowdown);
        (of(9).expect("the victim's message"), result.counters.dropped())
    };
    let mut wide = fabric(topology);
    wide.switch = wide.switch.with_buffer(u64::MAX).without_marking();
    let (lossy, _) = victim(wide.clone());
    let (paused, drops) = victim(lossless(wide));
    assert_eq!(drops, 0);
    assert!(lossy < 2.5 && paused > 2.0 * lossy, "{lossy:.2} {paused:.2}");
}
