//! How large a burst does a switch take without loss: with a buffer for each port, and with the same memory shared by all ports?
//!
//! `cargo run -p rackweave-switch --example burst`

use std::sync::Arc;

use rackweave_core::{Header, HostId, Packet, Rate, Slice, Span, Time};
use rackweave_switch::config::{FabricConfig, SwitchConfig};
use rackweave_switch::{Fabric, ForwardOnly, Net, NetConfig};

const SENDERS: u32 = 7;
const PORTS: u64 = SENDERS as u64 + 1;
const PORT_BYTES: u64 = 100_000;
const PACKET: u64 = 1538;

#[derive(Clone, Copy, Debug)]
struct Datagram;

impl Header for Datagram {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

/// Packets that are lost when each sender sends a number of them to one host, all at the same time.
fn lost(switch: SwitchConfig, packets: u64) -> u64 {
    let fabric = FabricConfig::single_switch(SENDERS + 1, Rate::from_gbps(10)).with_switch(switch);
    let fabric = Arc::new(Fabric::new(&fabric).expect("a possible fabric"));
    let mut net = Net::new(NetConfig::new(fabric, 1, 0), (), |_| ForwardOnly::new());
    for host in 1..=SENDERS {
        for _ in 0..packets {
            let packet = Packet::new(HostId(host), HostId(0), 1500, Datagram);
            net.arrive(Time::ZERO, HostId(host), packet);
        }
    }
    net.run(Time::ZERO + Span::from_secs(1));
    net.counters().dropped()
}

/// The largest burst that is not cut, in packets.
fn largest(switch: SwitchConfig) -> u64 {
    let first_cut = (1..).find(|packets| lost(switch, *packets) > 0).unwrap_or(u64::MAX);
    (first_cut - 1) * u64::from(SENDERS)
}

/// Compares the bursts with arithmetic.
pub(crate) fn main() {
    let each = largest(SwitchConfig::default().with_buffer(PORT_BYTES));
    let memory = PORTS * PORT_BYTES;
    let shared = largest(SwitchConfig::default().with_shared_buffer(memory, 1.0));
    println!("{PORT_BYTES} bytes for each port: {each} packets");
    println!("{memory} bytes shared, alpha 1: {shared} packets");
    // While a burst of B bytes arrives over n links, B / n of it leave. With alpha = 1 a port may fill half of the memory.
    for (burst, room) in [(each, PORT_BYTES), (shared, memory / 2)] {
        let senders = u64::from(SENDERS);
        let expected = room * senders / (senders - 1) / PACKET;
        assert!(burst.abs_diff(expected) <= 2 * senders, "{burst} instead of {expected}");
    }
}
