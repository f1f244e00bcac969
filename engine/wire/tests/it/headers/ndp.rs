//! NDP's headers.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, ndp};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = ndp::Header> {
    let data = (any::<(u32, u32, u16)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, window), len)| ndp::Body::Data {
            message_length,
            offset,
            len,
            window,
        },
    );
    let ack = any::<(u32, u32, u16, bool)>().prop_map(|(offset, pull, incarnation, complete)| {
        ndp::Body::Ack { offset, pull, incarnation, complete }
    });
    let nack = any::<(u32, u32, u16)>().prop_map(|(offset, pull, incarnation)| ndp::Body::Nack {
        offset,
        pull,
        incarnation,
    });
    let pull =
        any::<(u32, u16)>().prop_map(|(pull, incarnation)| ndp::Body::Pull { pull, incarnation });
    let body = prop_oneof![data, ack, nack, pull, Just(ndp::Body::Ask), Just(ndp::Body::Unknown)];
    (ids(), any::<bool>(), any::<u16>(), body).prop_map(|(id, one_way, path, body)| ndp::Header {
        id,
        one_way,
        path,
        body,
    })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, ndp::Header)> {
    use ndp::Body;
    let header = |body| ndp::Header { id: Id64::new(42), one_way: false, path: 7, body };
    let data = Body::Data { message_length: 10_000, offset: 1436, len: 1436, window: 7 };
    let (offset, pull, incarnation) = (1436, 3, 0xbeef);
    let ack = |complete| Body::Ack { offset, pull, incarnation, complete };
    vec![
        ("data", header(data)),
        ("data_one_way", ndp::Header { one_way: true, ..header(data) }),
        ("ack", header(ack(false))),
        ("ack_complete", header(ack(true))),
        ("nack", header(Body::Nack { offset, pull, incarnation })),
        ("pull", header(Body::Pull { pull, incarnation })),
        ("ask", header(Body::Ask)),
        ("unknown", header(Body::Unknown)),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let ndp = encoded(&examples()[0].1, Layout::Head);
    vec![
        ("type_zero", changed(ndp.clone(), 4, 0)),
        ("cut_in_data_header", ndp[..23].to_vec()),
        ("cut_in_common_header", ndp[..15].to_vec()),
    ]
}
