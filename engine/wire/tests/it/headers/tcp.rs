//! TCP's headers.

use proptest::array::uniform3;
use proptest::prelude::*;
use rackweave_core::Kind;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, tcp};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = tcp::Header> {
    let kinds = prop_oneof![Just(Kind::OneWay), Just(Kind::Request), Just(Kind::Response)];
    let data = (ids(), any::<u32>(), any::<u32>(), 0..=65_000_u16, kinds).prop_map(
        |(message, message_length, offset, len, kind)| tcp::Body::Data {
            message,
            message_length,
            offset,
            len,
            kind,
        },
    );
    let ack = (0..=3_u8, uniform3(any::<(u32, u32)>())).prop_map(|(count, mut sack)| {
        sack[usize::from(count)..].fill((0, 0));
        tcp::Body::Ack { count, sack }
    });
    (any::<(u32, u32, u16, u8)>(), prop_oneof![data, ack])
        .prop_map(|((seq, ack, window, flags), body)| tcp::Header { seq, ack, window, flags, body })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, tcp::Header)> {
    use tcp::Body;
    use tcp::flags::{ACK, CWR, ECE, FIN, PSH, RST, SYN};
    let header = |flags, body| tcp::Header { seq: 1461, ack: 77, window: 256, flags, body };
    let data = |kind, len| Body::Data {
        message: Id64::new(42),
        message_length: 10_000,
        offset: 1460,
        len,
        kind,
    };
    let ack = |count: u8| {
        let mut sack = [(2921, 4381), (5841, 7301), (u32::MAX, 9)];
        sack[usize::from(count)..].fill((0, 0));
        Body::Ack { count, sack }
    };
    vec![
        ("data_one_way", header(ACK, data(Kind::OneWay, 1460))),
        ("data_request", header(ACK | PSH | CWR, data(Kind::Request, 1))),
        ("data_response", header(ACK, data(Kind::Response, 0))),
        ("ack", header(ACK, ack(0))),
        ("ack_ecn_echo", header(ACK | ECE, ack(0))),
        ("ack_sack_1", header(ACK, ack(1))),
        ("ack_sack_3", header(ACK, ack(3))),
        ("syn", header(SYN | ECE | CWR, ack(0))),
        ("syn_data", header(SYN, data(Kind::Request, 100))),
        ("fin", header(FIN | ACK, ack(0))),
        ("rst", header(RST, ack(0))),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let tcp = |options: &[u8]| {
        let body = tcp::Body::Ack { count: 0, sack: Default::default() };
        let header = tcp::Header { seq: 0, ack: 0, window: 0, flags: tcp::flags::ACK, body };
        let mut bytes = encoded(&header, Layout::Head);
        bytes[12] = (5 + options.len() as u8 / 4) << 4;
        bytes.extend_from_slice(options);
        bytes
    };
    vec![
        ("option_without_length", tcp(&[1, 1, 1, 8])),
        ("option_of_length_zero", tcp(&[8, 0, 0, 0])),
        ("option_beyond_header", tcp(&[8, 255, 0, 0])),
        ("sack_of_half_a_block", tcp(&[5, 6, 0, 0, 0, 0, 1, 1])),
        ("mapping_too_short", tcp(&[253, 4, 0x52, 0x57])),
        ("data_offset_zero", changed(tcp(&[]), 12, 0)),
        ("data_offset_beyond_segment", changed(tcp(&[]), 12, 0xf0)),
    ]
}
