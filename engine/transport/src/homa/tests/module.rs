//! A host as the server of a kernel with HomaModule, whose packets were recorded.

use std::sync::Arc;

use rackweave_core::{
    Event, HostId, Kind, MessageId, Node as _, Packet, Placement, Span, Submit, Transport as _,
};
use rackweave_wire::homa::{Body, Header, Layout};

use super::{Config, Host, LINK, at};

const KERNEL: HostId = HostId(1);
const SERVER: HostId = HostId(0);

fn recorded() -> impl Iterator<Item = Packet<Header>> {
    rackweave_testing::homa_module().into_iter().map(|recorded| {
        let l4_bytes = recorded.l4_bytes;
        let (header, _) = Header::decode(Layout::Head, &recorded.bytes, l4_bytes).unwrap();
        let mut packet = Packet::new(KERNEL, SERVER, 20 + l4_bytes as u32, header);
        packet.priority = recorded.priority;
        packet
    })
}

/// Each request is complete with its first transmissions, in the kernel's order, and no byte is asked for again.
#[test]
fn calls_of_the_kernel_are_served() {
    let mut host = Host::new(SERVER, Arc::new(Config::linux_2026(LINK)));
    let mut now = at(Span::from_ms(1));
    let (mut requests, mut stored, mut grants) = (Vec::new(), 0, Vec::new());
    for packet in recorded() {
        now += Span::from_us(2);
        let placement = host.handle_packet(now, 0, &packet);
        if let Some(segment) = packet.header.payload() {
            assert!(
                matches!(placement, Placement::Store(slice) if slice.offset == segment.offset && slice.len == segment.len),
                "{packet:?}: {placement:?}"
            );
            stored += segment.len;
        }
        while let Some(event) = host.poll_event() {
            if let Event::Delivered { id, bytes, kind: Kind::Request, .. } = event {
                requests.push(bytes);
                // The server answers with as many bytes.
                let id = MessageId(id.0 | 1);
                let response = Submit { id, peer: KERNEL, bytes, kind: Kind::Response };
                host.submit(now, response).unwrap();
            }
        }
        while let Some(packet) = host.poll_transmit(now, 0) {
            match packet.header.body {
                Body::Grant { offset, .. } => grants.push(offset),
                Body::Resend { .. } | Body::Unknown { .. } => panic!("{packet:?}"),
                _ => {}
            }
        }
    }
    assert_eq!((requests, stored), (vec![100, 10_000, 100_000], 110_100));
    assert_eq!(grants.last(), Some(&100_000));
}
