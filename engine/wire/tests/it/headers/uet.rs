//! Headers of EQDS and UET.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, uet};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = uet::Header> {
    use uet::Body;
    let data = (any::<(u32, u32, u32)>(), any::<(bool, bool, bool)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, pull_target), flags, len)| Body::Data {
            message_length,
            offset,
            pull_target,
            len,
            ack_request: flags.0,
            retransmitted: flags.1,
            speculative: flags.2,
        },
    );
    let ack = (any::<(u32, u32, u64, u32, u16)>(), any::<(bool, bool, bool, bool)>()).prop_map(
        |((cumulative, packet, bitmap, received, incarnation), flags)| Body::Ack {
            cumulative,
            packet,
            bitmap: Id64::new(bitmap),
            received,
            incarnation,
            ecn: flags.0,
            retransmitted: flags.1,
            of_rts: flags.2,
            complete: flags.3,
        },
    );
    let nack = any::<(u32, u32, u16, bool)>().prop_map(|(packet, received, incarnation, ecn)| {
        Body::Nack { packet, received, incarnation, ecn }
    });
    let rts = any::<(u32, u32, u32)>().prop_map(|(message_length, pull_target, backlog)| {
        Body::Rts { message_length, pull_target, backlog }
    });
    let body = prop_oneof![
        data,
        ack,
        nack,
        any::<(u32, u16)>().prop_map(|(pull, incarnation)| Body::Pull { pull, incarnation }),
        rts,
        Just(Body::Ask),
        Just(Body::Unknown),
    ];
    (ids(), any::<bool>(), any::<u16>(), body)
        .prop_map(|(id, one_way, entropy, body)| uet::Header { id, one_way, entropy, body })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, uet::Header)> {
    use uet::Body;
    let header = |body| uet::Header { id: Id64::new(42), one_way: false, entropy: 3, body };
    let message_length = 20_000;
    let data = |speculative, retransmitted| Body::Data {
        message_length,
        offset: 1436,
        pull_target: 17,
        len: 1436,
        ack_request: retransmitted,
        retransmitted,
        speculative,
    };
    let ack = |ecn, complete| Body::Ack {
        cumulative: 7,
        packet: 9,
        bitmap: Id64::new(0x3fd),
        received: 8,
        incarnation: 0xbeef,
        ecn,
        retransmitted: ecn,
        of_rts: !ecn,
        complete,
    };
    vec![
        ("data", header(data(true, false))),
        ("data_retransmitted", header(data(false, true))),
        ("data_one_way", uet::Header { one_way: true, ..header(data(false, false)) }),
        ("data_any_path", uet::Header { entropy: uet::ANY_ENTROPY, ..header(data(false, false)) }),
        ("ack", header(ack(true, false))),
        ("ack_complete", header(ack(false, true))),
        ("nack", header(Body::Nack { packet: 9, received: 8, incarnation: 0xbeef, ecn: true })),
        ("pull", header(Body::Pull { pull: 66, incarnation: 0xbeef })),
        ("rts", header(Body::Rts { message_length, pull_target: 80, backlog: 12 })),
        ("ask", header(Body::Ask)),
        ("unknown", header(Body::Unknown)),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let example = |number: usize| encoded(&examples()[number].1, Layout::Head);
    vec![
        ("type_zero", changed(example(0), 4, 0)),
        ("cut_in_data_header", example(0)[..29].to_vec()),
        ("cut_in_ack", example(4)[..37].to_vec()),
        ("cut_in_nack", example(6)[..25].to_vec()),
        ("cut_in_pull", example(7)[..21].to_vec()),
        ("cut_in_rts", example(8)[..29].to_vec()),
        ("cut_in_common_header", example(9)[..17].to_vec()),
    ]
}
