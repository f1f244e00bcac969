//! Datagrams and Ethernet frames at user-space switches with each program.

use std::num::NonZeroU8;

use rackweave_aggregation::switch::Config as ReduceConfig;
use rackweave_aggregation::system::Reduce;
use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_linux::switch::Encapsulation;
use rackweave_linux::switch::checks::Bench;
use rackweave_orca::system::Orca;
use rackweave_switch::Fabric;
use rackweave_switch::config::{
    FabricConfig, Fault, FaultKind, FaultPlace, SwitchConfig, Topology, TrimConfig,
};
use rackweave_switch::system::System;
use rackweave_swp2p::switch::Config as Swp2pConfig;
use rackweave_swp2p::system::Swp2p;
use rackweave_wire::{orca, overlay, reduce};

use crate::input::Input;

const LINK: Rate = Rate(100_000_000);

fn fabric(flags: u8) -> Fabric {
    let topology = if flags & 16 == 0 {
        Topology::SingleSwitch { hosts: 4, host_link: LINK }
    } else {
        let (leaves, hosts_per_leaf, spines) = (2, 2, 2);
        Topology::LeafSpine { leaves, hosts_per_leaf, spines, host_link: LINK, core_link: LINK }
    };
    let mut switch = SwitchConfig::unlimited().with_buffer(1 << 20);
    if flags & 32 != 0 {
        switch = switch.with_buffer(2_000).with_ecn_threshold(100);
    }
    if flags & 64 != 0 {
        let trim = TrimConfig::NDP.with_queues(2_000, 200);
        switch = switch.with_trim(trim.with_headers_per_packet(NonZeroU8::new(2)));
    }
    Fabric::new(
        &FabricConfig::new(topology)
            .with_link_delay(Span::from_us(1))
            .without_host_delays()
            .with_switch(switch),
    )
    .expect("a fabric")
}

/// Any datagrams and frames of hosts at a switch with any program. No slot is lost, and nothing leaves that is longer than a frame.
///
/// # Panics
/// If that does not hold.
pub fn switch(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let flags = input.u8();
    match flags & 3 {
        // Packets of a system that the switch does not know.
        0 => run((), flags, orca::KIND, input),
        1 => run(Orca { controller: Some(HostId(0)), key: None }, flags, orca::KIND, input),
        2 => {
            let config = Swp2pConfig::data_plane(HostId(0));
            let config = Swp2pConfig { queue: 4, per_second: u32::from(flags & 128) * 8, ..config };
            let system = Swp2p { config, key: None };
            run(system, flags, rackweave_wire::frisbee::KIND, input);
        }
        _ => {
            let config = ReduceConfig::new(64, 1);
            run(Reduce { config, switches: Vec::new() }, flags, reduce::KIND, input);
        }
    }
}

fn run<S: System>(system: S, flags: u8, kind: u8, mut input: Input<'_>) {
    let encapsulation =
        [Encapsulation::Overlay, Encapsulation::Ethernet][usize::from(flags >> 2 & 1)];
    let everywhere =
        |kind| Fault { from: Time::ZERO, until: Time::MAX, place: FaultPlace::AllLinks, kind };
    let faults = match flags & 8 {
        0 => Vec::new(),
        _ => vec![everywhere(FaultKind::Corruption(0.3)), everywhere(FaultKind::Duplication(0.3))],
    };
    let Some(mut bench) = Bench::new(fabric(flags), system, encapsulation, faults) else { return };
    for _ in 0..100 {
        if input.is_empty() {
            break;
        }
        let (op, class) = (input.u8(), input.u8());
        let from = u32::from(op >> 2 & 3);
        match op & 3 {
            0 => {
                bench.run(Span::from_us(u64::from(class) * u64::from(class) * 100));
            }
            1 => {
                let len = usize::from(input.u16() & 2047);
                bench.send(from, class, input.bytes(len));
            }
            _ => {
                // A packet of the system behind a front that the switch accepts.
                let to = match op >> 4 {
                    0..4 => u32::from(op >> 4),
                    4 => orca::TO_GROUP.0,
                    5 => orca::TO_AGENT.0,
                    _ => rackweave_core::Destination::Switch(0).address().0,
                };
                let body = input.block();
                bench.send(from, class, &with_front(encapsulation, kind, from, to, body));
            }
        }
    }
    bench.run(Span::from_secs(1));
    assert!(bench.is_empty(), "frames are kept");
}

fn with_front(encapsulation: Encapsulation, kind: u8, from: u32, to: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if encapsulation == Encapsulation::Overlay {
        overlay::encode_group(kind, HostId(from), HostId(to), body.len() as u16, &mut bytes);
        bytes.extend_from_slice(body);
        return bytes;
    }
    let port = match kind {
        orca::KIND => orca::PORT,
        reduce::KIND => reduce::PORT,
        _ => rackweave_wire::frisbee::PORT,
    };
    let address = |host| rackweave_wire::frame::ip_address(HostId(host)).unwrap_or(orca::GROUP);
    let total = (28 + body.len()) as u16;
    bytes.resize(42, 0);
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    bytes[22..24].copy_from_slice(&[64, 17]);
    bytes[26..30].copy_from_slice(&address(from));
    bytes[30..34].copy_from_slice(&address(to));
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}
