//! Polo's headers.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, polo};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = polo::Header> {
    let data = (any::<(u32, u32, u16, bool, bool)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, window, driven, retransmit), len)| polo::Body::Data {
            message_length,
            offset,
            len,
            window,
            driven,
            retransmit,
        },
    );
    let adjoint = any::<(u32, u32, u32, u16, bool)>().prop_map(
        |(message_length, sent, epoch, window, timeout)| polo::Body::Adjoint {
            message_length,
            sent,
            epoch,
            window,
            timeout,
        },
    );
    let ack = any::<(u32, bool, bool)>().prop_map(|(epoch, paused, tick)| polo::Body::AdjointAck {
        epoch,
        paused,
        tick,
    });
    let body = prop_oneof![
        data,
        adjoint,
        ack,
        any::<u32>().prop_map(|upto| polo::Body::Drive { upto }),
        any::<(u32, u16)>().prop_map(|(first, count)| polo::Body::Loss { first, count }),
        Just(polo::Body::Complete),
        Just(polo::Body::Ask),
        Just(polo::Body::Unknown),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| polo::Header { id, one_way, body })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, polo::Header)> {
    use polo::Body;
    let header = |body| polo::Header { id: Id64::new(42), one_way: false, body };
    let (message_length, window) = (20_000, 12);
    let data = |driven, retransmit| Body::Data {
        message_length,
        offset: 1460,
        len: 1460,
        window,
        driven,
        retransmit,
    };
    let adjoint = |timeout| Body::Adjoint { message_length, sent: 12, epoch: 3, window, timeout };
    let ack = |paused, tick| Body::AdjointAck { epoch: 4, paused, tick };
    vec![
        ("data", header(data(false, false))),
        ("data_one_way", polo::Header { one_way: true, ..header(data(false, false)) }),
        ("data_driven", header(data(true, false))),
        ("data_again", header(data(true, true))),
        ("adjoint", header(adjoint(false))),
        ("adjoint_timeout", header(adjoint(true))),
        ("adjoint_ack_paused", header(ack(true, false))),
        ("adjoint_ack_tick", header(ack(false, true))),
        ("drive", header(Body::Drive { upto: 13 })),
        ("loss", header(Body::Loss { first: 5, count: 2 })),
        ("complete", header(Body::Complete)),
        ("ask", header(Body::Ask)),
        ("unknown", header(Body::Unknown)),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let polo = |at: usize| encoded(&examples()[at].1, Layout::Head);
    vec![
        ("type_zero", changed(polo(0), 4, 0)),
        ("cut_in_adjoint", polo(4)[..27].to_vec()),
        ("cut_in_data_header", polo(0)[..23].to_vec()),
        ("cut_in_common_header", polo(0)[..15].to_vec()),
    ]
}
