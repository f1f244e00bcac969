//! Packets as lines of text.

use rackweave_core::{HostId, Packet};
use rackweave_wire::dump::Line;
use rackweave_wire::{Header, uet};

use crate::headers;

#[test]
fn uet_packets() {
    let lines: Vec<_> = headers::uet::examples()
        .into_iter()
        .map(|(_, header): (_, uet::Header)| {
            let packet = Packet::new(HostId(3), HostId(7), 100, Header::from(header));
            Line(&packet.with_ports(1, 2)).to_string()
        })
        .collect();
    let expected = [
        "DATA id 42 entropy 3 speculative [1436..2872) of 20000 target 17",
        "DATA id 42 entropy 3 retransmitted ack-request [1436..2872) of 20000 target 17",
        "DATA id 42 one-way entropy 3 [1436..2872) of 20000 target 17",
        "DATA id 42 [1436..2872) of 20000 target 17",
        "ACK id 42 entropy 3 retransmitted ecn below 7 at 9 bitmap 0x3fd received 8 incarnation 0xbeef",
        "ACK id 42 entropy 3 of-rts complete below 7 at 9 bitmap 0x3fd received 8 incarnation 0xbeef",
        "NACK id 42 entropy 3 ecn 9 received 8 incarnation 0xbeef",
        "PULL id 42 entropy 3 66 incarnation 0xbeef",
        "RTS id 42 entropy 3 of 20000 target 80 backlog 12",
        "ASK id 42 entropy 3",
        "UNKNOWN id 42 entropy 3",
    ];
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(*line, format!("h3.1 > h7.2 uet {expected} prio 0"));
    }
    assert_eq!(lines.len(), expected.len());
}
