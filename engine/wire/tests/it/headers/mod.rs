//! The headers of each transport: arbitrary ones for properties, examples and refused ones for the seeds of the fuzz
//! targets. What goes over all transports follows from [`rackweave_wire::transports!`].
#![allow(dead_code, reason = "each user needs some of these")]

pub(crate) mod datagram;
pub(crate) mod dcpim;
pub(crate) mod dcqcn;
pub(crate) mod external;
pub(crate) mod homa;
pub(crate) mod hpcc;
pub(crate) mod ndp;
pub(crate) mod pfabric;
pub(crate) mod phost;
pub(crate) mod polo;
pub(crate) mod sird;
pub(crate) mod swift;
pub(crate) mod tcp;
pub(crate) mod uet;

use proptest::prelude::*;
use rackweave_core::{Ecn, HostId, Packet};
use rackweave_wire::homa::Layout;
use rackweave_wire::{Codec, Header, Id64, Ports, frame};

pub(crate) const PORTS: Ports = Ports { source: 32_768, destination: 80 };

/// Takes the headers of each transport.
pub(crate) trait Visitor {
    fn visit<H: Codec + Into<Header> + Copy>(
        &mut self,
        protocol: &'static str,
        target: &'static str,
        examples: Vec<(&'static str, H)>,
        wrong: Vec<(&'static str, Vec<u8>)>,
    );
}

macro_rules! define_headers {
    ($($(#[$doc:meta])* $variant:ident => $module:ident,)+) => {
        /// A header of any transport.
        pub(crate) fn headers() -> impl Strategy<Value = Header> {
            prop_oneof![$($module::arbitrary().prop_map(Header::$variant)),+]
        }

        /// Shows the examples of each transport, and what its decoder refuses, to `visitor`.
        pub(crate) fn each(visitor: &mut impl Visitor) {
            $({
                let (protocol, target) = (stringify!($module), concat!("decode_", stringify!($module)));
                visitor.visit(protocol, target, $module::examples(), $module::wrong());
            })+
        }
    };
}
rackweave_wire::transports!(define_headers);

/// The bytes of a header without payload.
pub(crate) fn encoded<H: Codec>(header: &H, layout: Layout) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.encode(layout, PORTS, &mut bytes);
    bytes
}

/// The same bytes with one changed.
pub(crate) fn changed(mut bytes: Vec<u8>, at: usize, to: u8) -> Vec<u8> {
    bytes[at] = to;
    bytes
}

pub(crate) fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::Head), Just(Layout::Talk), Just(Layout::Leverage)]
}

pub(crate) fn ports() -> impl Strategy<Value = Ports> {
    any::<(u16, u16)>().prop_map(|(source, destination)| Ports { source, destination })
}

pub(crate) fn ids() -> impl Strategy<Value = Id64> {
    any::<u64>().prop_map(Id64::new)
}

/// A layout, and a packet of the size that its header has in that layout.
pub(crate) fn packets() -> impl Strategy<Value = (Layout, Packet<Header>)> {
    let ecn = prop_oneof![Just(Ecn::NotCapable), Just(Ecn::Capable), Just(Ecn::Marked)];
    let hosts = (0..1_u32 << 24, 0..1_u32 << 24);
    let marks = (ecn, any::<(bool, bool, bool)>(), 0..8_u8);
    (layouts(), headers(), hosts, ports(), marks).prop_map(
        |(layout, header, (src, dst), ports, (ecn, marks, priority))| {
            let (spray, trimmable, trimmed) = marks;
            let bytes = frame::counted_ip_bytes(&header, layout);
            let mut packet = Packet::new(HostId(src), HostId(dst), bytes, header)
                .with_ports(ports.source, ports.destination)
                .with_priority(priority)
                .with_ecn(ecn)
                .sprayed(spray);
            if trimmable {
                packet = packet.trimmable();
            }
            if trimmed {
                packet.trim();
            }
            (layout, packet)
        },
    )
}
