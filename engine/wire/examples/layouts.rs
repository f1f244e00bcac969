//! What do the headers of Homa's three layouts cost: in packets of data, and for grants?
//!
//! `cargo run -p rackweave-wire --example layouts`

use rackweave_core::frame::{MTU, wire_bytes};
use rackweave_core::{HostId, Packet};
use rackweave_wire::homa::{self, Body, Layout};
use rackweave_wire::{Header, Id64, dump, frame};

/// Encodes each header in each layout, and compares what it takes.
pub(crate) fn main() {
    let grant = Body::Grant {
        offset: 60_000,
        priority: 5,
        resend_all: false,
        stamps: homa::GrantStamps::default(),
    };
    let data = |payload: u32| Body::Data {
        message_length: 100_000,
        incoming: 10_000,
        ack_id: Id64::new(0),
        ack_port: 0,
        cutoff_version: 0,
        retransmit: false,
        offset: 0,
        segment_length: payload as u16,
        stamps: homa::DataStamps::default(),
    };
    let packet = |body, layout| {
        let header = Header::Homa(homa::Header { id: Id64::new(42), one_way: false, body });
        Packet::new(HostId(3), HostId(7), frame::counted_ip_bytes(&header, layout), header)
    };
    let mut rooms = Vec::new();
    for layout in [Layout::Head, Layout::Talk, Layout::Leverage] {
        // What the headers of a full packet leave to the payload.
        let room = MTU - frame::counted_ip_bytes(&packet(data(0), layout).header, layout);
        let (data, grant) = (packet(data(room), layout), packet(grant, layout));
        let share = f64::from(room) / f64::from(data.wire_bytes);
        println!(
            "{layout:?}: {room} bytes of data a packet, {:.1} % of the link; a grant takes {} bytes of it",
            100.0 * share,
            grant.wire_bytes,
        );
        println!("  {}", dump::Line(&data));
        // Frames carry the headers without loss.
        for packet in [data, grant] {
            let mut bytes = Vec::new();
            frame::encode(&packet, layout, &mut bytes).expect("hosts with addresses");
            assert_eq!(frame::decode(&bytes).expect("a frame"), packet);
        }
        assert_eq!(u32::from(data.wire_bytes), wire_bytes(MTU));
        rooms.push((room, grant.wire_bytes));
    }
    // The time stamps of Leverage Homa: 8 bytes in each data packet, and 16 in each grant.
    let (talk, leverage) = (rooms[1], rooms[2]);
    assert_eq!((talk.0 - leverage.0, leverage.1 - talk.1), (8, 16));
}
