//! TCP segments, byte for byte.

use rackweave_core::Kind;
use rackweave_wire::tcp::{Body, Header, flags};
use rackweave_wire::{Id64, Malformed, Ports};

const PORTS: Ports = Ports { source: 0x1112, destination: 0x2122 };

fn header(flags: u8, body: Body) -> Header {
    Header { seq: 0x3132_3334, ack: 0x4142_4344, window: 0x5152, flags, body }
}

fn ack(count: u8) -> Body {
    let mut sack = [(0x61, 0x62), (0x63, 0x64), (0x65, 0x66)];
    sack[usize::from(count)..].fill((0, 0));
    Body::Ack { count, sack }
}

const DATA: Body = Body::Data {
    message: Id64::new(0x61),
    message_length: 10_000,
    offset: 1460,
    len: 1460,
    kind: Kind::Response,
};

fn encode(header: Header) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.encode(PORTS, &mut bytes);
    bytes
}

/// Encodes a header of 20 bytes with these options and the ACK flag.
fn with_options(options: &[u8]) -> Vec<u8> {
    let mut bytes = encode(header(flags::ACK, ack(0)));
    bytes[12] = (5 + options.len() as u8 / 4) << 4;
    bytes.extend_from_slice(options);
    bytes
}

fn decode(bytes: &[u8], payload: usize) -> Result<Body, Malformed> {
    Header::decode(bytes, bytes.len() + payload).map(|(header, _)| header.body)
}

#[test]
fn a_pure_acknowledgement() {
    let bytes = encode(header(flags::ACK | flags::ECE, ack(0)));
    let expected = [
        0x11, 0x12, 0x21, 0x22, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44, 0x50, 0x50, 0x51,
        0x52, 0, 0, 0, 0,
    ];
    assert_eq!(bytes, expected);
}

#[test]
fn selective_acknowledgements() {
    for count in 1..=3_u8 {
        let header = header(flags::ACK, ack(count));
        let bytes = encode(header);
        let words = 6 + 2 * count;
        assert_eq!((bytes.len(), bytes[12]), (usize::from(words) * 4, words << 4));
        assert_eq!(bytes[20..32], [1, 1, 5, 2 + 8 * count, 0, 0, 0, 0x61, 0, 0, 0, 0x62]);
        assert_eq!(header.header_bytes(), header.counted_bytes());
        assert_eq!(Header::decode(&bytes, bytes.len()), Ok((header, PORTS)));
    }
}

#[test]
fn the_mapping_of_data_is_an_experiment_that_does_not_count() {
    let header = header(flags::ACK, DATA);
    let bytes = encode(header);
    let mut expected = vec![1, 1, 1, 253, 21, 0x52, 0x57, 0, 0, 0, 0, 0, 0, 0, 0x61];
    expected.extend_from_slice(&[0, 0, 0x27, 0x10, 0, 0, 0x05, 0xb4, 2]);
    assert_eq!(bytes[12], 0xb0);
    assert_eq!(bytes[20..], expected);
    assert_eq!((header.header_bytes(), header.counted_bytes()), (44, 20));
    assert_eq!(Header::decode(&bytes, 44 + 1460), Ok((header, PORTS)));
}

#[test]
fn a_syn_offers_sack_and_a_window_scale() {
    let bytes = encode(header(flags::SYN, ack(0)));
    assert_eq!(bytes[20..], [4, 2, 1, 1, 1, 3, 3, 8]);
    assert_eq!(decode(&bytes, 0), Ok(ack(0)));
}

#[test]
fn other_options_are_skipped() {
    let mss_and_timestamps = [2, 4, 5, 0xb4, 1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(decode(&with_options(&mss_and_timestamps), 0), Ok(ack(0)));
    // The option of another experiment with the same kind.
    assert_eq!(decode(&with_options(&[253, 4, 0xf9, 0x89]), 0), Ok(ack(0)));
    // Bytes after the end of the list are padding.
    assert_eq!(decode(&with_options(&[0, 5, 77, 1]), 0), Ok(ack(0)));
}

#[test]
fn of_four_blocks_three_are_kept() {
    let mut options = vec![1, 1, 5, 34];
    for value in [0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68_u32] {
        options.extend_from_slice(&value.to_be_bytes());
    }
    assert_eq!(decode(&with_options(&options), 0), Ok(ack(3)));
}

#[test]
fn what_is_wrong_is_said() {
    let option = |kind, length| Err(Malformed::TcpOption { kind, length });
    assert_eq!(decode(&with_options(&[1, 1, 1, 8]), 0), option(8, 0), "no length");
    assert_eq!(decode(&with_options(&[8, 0, 0, 0]), 0), option(8, 0), "too short to go on");
    assert_eq!(decode(&with_options(&[8, 1, 0, 0]), 0), option(8, 1), "too short to go on");
    assert_eq!(decode(&with_options(&[8, 5, 0, 0]), 0), option(8, 5), "beyond the header");
    assert_eq!(decode(&with_options(&[5, 4, 0, 0]), 0), option(5, 4), "half a block");
    assert_eq!(decode(&with_options(&[5, 2, 1, 1]), 0), option(5, 2), "no block");
    assert_eq!(decode(&with_options(&[253, 4, 0x52, 0x57]), 0), option(253, 4), "no mapping");
    let mut kind = encode(header(0, DATA));
    kind[43] = 3;
    assert_eq!(decode(&kind, 0), Err(Malformed::MessageKind(3)));
    assert_eq!(decode(&with_options(&[]), 9), Err(Malformed::NoMapping(9)));
    let mut offset = with_options(&[]);
    offset[12] = 0x40;
    let short = Malformed::TcpDataOffset { header: 16, segment: 20 };
    assert_eq!(decode(&offset, 0), Err(short));
    offset[12] = 0x60;
    let beyond = Malformed::TcpDataOffset { header: 24, segment: 20 };
    assert_eq!(decode(&offset, 0), Err(beyond));
    let cut = Malformed::Truncated { what: "a TCP header with its options", needed: 24, got: 20 };
    assert_eq!(decode(&offset, 100), Err(cut));
}
