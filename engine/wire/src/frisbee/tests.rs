use rackweave_core::frame::{ETHERNET_FRAME, ETHERNET_GAP};
use rackweave_core::{Header as _, HostId, Packet};

use super::*;
use crate::malformed::Malformed;
use crate::pcapng::Framed;

/// Every message with the length on the wire that `docs/protocols/swp2p.md#frisbee-packets` states, or that follows
/// from Rackweave's layout.
fn all() -> Vec<(Body, u32)> {
    let (client, image) = (0x1234_5678, 7);
    let chunks = Chunks { image, first: 8190, count: 4, tries: 1 };
    let bytes = Id64::new(765_460_480);
    vec![
        (Body::Join { client }, 20),
        (Body::JoinReply { blocks: 726_016 }, 20),
        (Body::Leave { client, elapsed_s: 34 }, 24),
        (Body::Leave2 { client, elapsed_s: 34 }, 1052),
        (Body::Block { chunk: 3, block: 1023, len: 1024 }, 1048),
        (Body::Request { chunk: 3, block: 0, count: 1024 }, 28),
        (Body::PartialRequest { chunk: 3, retries: 1 }, 152),
        (
            Body::Join2 {
                reply: true,
                client,
                blocks: 0,
                chunk_blocks: 1024,
                block_bytes: 1024,
                bytes,
            },
            40,
        ),
        (Body::Report { image, window: 1 }, 24 + 1024),
        (Body::Batch(chunks), 28),
        (Body::Return { chunks, requester: [10, 0, 0, 9] }, 32),
        (Body::Enter { client, name_len: 5 }, 25),
        (Body::Entered { client, image, index: 2, clients: 30, chunk_bytes: 1 << 20, bytes }, 40),
        (Body::Exit { client, image }, 24),
        (Body::Redirect { chunks, requester: [10, 0, 0, 9] }, 32),
        (Body::Damaged { image, chunk: 4, holder: [10, 0, 0, 2] }, 28),
    ]
}

fn encoded(body: Body) -> Vec<u8> {
    let header = Header::new(HostId(0x01_0203), body);
    let mut bytes = Vec::new();
    encode(&header, &mut bytes);
    assert_eq!(bytes.len() as u32, header.header_bytes());
    bytes.resize(bytes.len() + header.payload_len() as usize, 0x5a);
    bytes
}

#[test]
fn messages_have_the_documented_lengths_and_are_decoded_as_encoded() {
    for (body, length) in all() {
        let bytes = encoded(body);
        assert_eq!(bytes.len() as u32, length, "{body:?}");
        let decoded = decode(&bytes).unwrap();
        assert_eq!(decoded.header, Header::new(HostId(0x01_0203), body));
        assert_eq!(decoded.payload.len() as u32, decoded.header.payload_len());
        assert!(bytes[decoded.payload].iter().all(|byte| *byte == 0x5a));
        let mut longer = bytes.clone();
        longer.push(1);
        assert_eq!(decode(&longer).unwrap().header.body, body, "the rest is ignored");
        for cut in 0..bytes.len() {
            assert!(matches!(decode(&bytes[..cut]), Err(Malformed::Truncated { .. })), "{cut}");
        }
    }
}

#[test]
fn a_request_byte_for_byte() {
    let bytes = encoded(Body::Request { chunk: 0x0102, block: 5, count: 6 });
    #[rustfmt::skip]
    let expected = [
        1, 0, 0, 0,  4, 0, 0, 0,  12, 0, 0, 0,  10, 1, 2, 3,
        2, 1, 0, 0,  5, 0, 0, 0,  6, 0, 0, 0,
    ];
    assert_eq!(bytes, expected);
    let block = encoded(Body::Block { chunk: 1, block: 2, len: 1024 });
    assert_eq!(block[..12], [1, 0, 0, 0, 3, 0, 0, 0, 8, 4, 0, 0], "a block is a request by type");
    let reply = encoded(Body::JoinReply { blocks: 1 });
    assert_eq!(reply[..8], [2, 0, 0, 0, 1, 0, 0, 0]);
}

#[test]
fn each_thing_that_can_be_wrong_is_named() {
    let good = encoded(Body::Request { chunk: 1, block: 2, count: 3 });
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        decode(&bytes).unwrap_err()
    };
    let field = |what, value| Malformed::FrisbeeField { what, value };
    assert_eq!(with(0, 3), field("type", 3));
    assert_eq!(with(0, 2), field("type", 2), "no reply to a request");
    assert_eq!(with(4, 15), field("subtype", 15));
    assert_eq!(with(4, 0), field("subtype", 0));
    assert_eq!(with(4, 8), field("subtype", 8), "PROGRESS of later versions");
    assert_eq!(with(8, 11), field("length", 11));
    assert_eq!(with(8, 13).to_string(), "a Frisbee message needs 29 bytes, but there are 28");
    assert_eq!(with(19, 0x80), field("integer", 0x8000_0001));
    assert_eq!(with(11, 0x80), field("integer", 0x8000_000c));
    let mut long_block = encoded(Body::Block { chunk: 1, block: 2, len: 8192 });
    assert!(decode(&long_block).is_ok());
    long_block.push(0);
    long_block[8..12].copy_from_slice(&(8u32 + 8193).to_le_bytes());
    assert_eq!(decode(&long_block), Err(field("length", 8201)));
}

#[test]
fn statistics_have_frisbees_layout() {
    let stats =
        ClientStats { run_s: 33, raw_bytes_written: 5, full_rerequests: 9, ..Default::default() };
    let mut bytes = Vec::new();
    stats.encode(&mut bytes);
    assert_eq!(bytes.len(), STATS_BYTES as usize);
    // The version, then 29 fields; two have 64 bits.
    assert_eq!((bytes[0], bytes[4], bytes[16], bytes[124]), (1, 33, 5, 9));
    assert!(bytes[128..].iter().all(|byte| *byte == 0));
    assert_eq!(ClientStats::decode(&bytes), Ok(stats));
    bytes[0] = 2;
    assert!(ClientStats::decode(&bytes).is_err());
    assert!(ClientStats::decode(&bytes[..1027]).is_err());
}

#[test]
fn a_block_occupies_1114_bytes_of_a_link() {
    let header = Header::new(HostId(0), Body::Block { chunk: 0, block: 0, len: 1024 });
    let packet = Packet::new(HostId(0), TO_GROUP, header.l3_bytes(), header);
    assert_eq!(packet.wire_bytes, 1114);
    assert_eq!(header.payload().map(|slice| slice.len), Some(1024));
    let mut frame = Vec::new();
    let original = Header::encode_frame(&packet, crate::homa::Layout::Head, &mut frame).unwrap();
    assert_eq!(original, 1114 + 14 - ETHERNET_FRAME - ETHERNET_GAP);
    assert_eq!(frame[30..34], GROUP, "the frame goes to Frisbee's group");
    assert_eq!(decode(&[&frame[42..], &[0; 1024]].concat()).unwrap().header, header);
}

#[test]
fn lines_name_the_message() {
    let line = |body| {
        let header = Header::new(HostId(3), body);
        Header::line(&Packet::new(HostId(3), TO_GROUP, header.l3_bytes(), header))
    };
    assert_eq!(
        line(Body::Request { chunk: 5, block: 0, count: 1024 }),
        "h3 > group frisbee REQUEST chunk 5 [0..1024)"
    );
    let chunks = Chunks { image: 1, first: 2, count: 3, tries: 1 };
    let returned = Body::Return { chunks, requester: [10, 0, 0, 9] };
    assert_eq!(line(returned), "h3 > group swp2p RETURN image 1 chunks [2..5) try 2 of 10.0.0.9");
    for (body, _) in all() {
        assert!(!line(body).is_empty());
    }
}
