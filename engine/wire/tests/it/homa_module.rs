//! Packets of a kernel with HomaModule, as they were recorded.

use rackweave_testing::{Recorded, homa_module};
use rackweave_wire::Ports;
use rackweave_wire::homa::packet_type::{ACK, CUTOFFS, DATA, GRANT};
use rackweave_wire::homa::{Body, Header, Layout};

/// The ports of the program that made the calls, and of the server.
const SERVER_PORT: u16 = 4000;

fn decode(l4_bytes: usize, bytes: &[u8]) -> (Header, Ports) {
    Header::decode(Layout::Head, bytes, l4_bytes).unwrap()
}

#[test]
fn data_packets_of_the_kernel_cover_their_messages() {
    let mut next = 0;
    let mut messages = Vec::new();
    for Recorded { l4_bytes, bytes, .. } in homa_module() {
        let (header, ports) = decode(l4_bytes, &bytes);
        assert_eq!((ports.destination, header.id.get() % 2), (SERVER_PORT, 0), "{header:?}");
        let Body::Data { message_length, offset, segment_length, retransmit, .. } = header.body
        else {
            continue;
        };
        assert_eq!((offset, retransmit), (next, false), "{header:?}");
        next += u32::from(segment_length);
        if next == message_length {
            messages.push(next);
            next = 0;
        }
    }
    assert_eq!((next, messages), (0, vec![100, 10_000, 100_000]));
}

/// But for the fields that exist for hardware (doff, flags, window, checksum, urgent), and the cutoff of priority 0.
#[test]
fn what_the_kernel_writes_is_what_is_written_here() {
    let mut codes = Vec::new();
    for Recorded { l4_bytes, mut bytes, .. } in homa_module() {
        let (header, ports) = decode(l4_bytes, &bytes);
        let mut written = Vec::new();
        header.encode(Layout::Head, ports, &mut written);
        let code = header.packet_type();
        for bytes in [&mut bytes, &mut written] {
            bytes[12..20].fill(0);
            if code == CUTOFFS {
                bytes[28..32].fill(0);
            }
        }
        assert_eq!(bytes, written, "{header:?}");
        codes.push(code);
    }
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes, [DATA, GRANT, CUTOFFS, ACK]);
}

/// A packet that hardware has cut from a longer one has its offset where older versions have it.
#[test]
fn an_offset_of_its_own_counts_before_the_sequence_number() {
    let is_long = |recorded: &Recorded| recorded.l4_bytes > 1_000;
    let Recorded { l4_bytes, mut bytes, .. } = homa_module().into_iter().find(is_long).unwrap();
    bytes[4..8].copy_from_slice(&7_u32.to_be_bytes());
    bytes[52..56].copy_from_slice(&2_848_u32.to_be_bytes());
    let offset = |bytes: &[u8]| match decode(l4_bytes, bytes).0.body {
        Body::Data { offset, .. } => offset,
        other => panic!("{other:?}"),
    };
    assert_eq!(offset(&bytes), 2_848);
    bytes[52..56].fill(0xff);
    assert_eq!(offset(&bytes), 7);
}
