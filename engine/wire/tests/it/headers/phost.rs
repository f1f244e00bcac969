//! pHost's headers.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, phost};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = phost::Header> {
    let rts = any::<(u32, u16)>()
        .prop_map(|(message_length, free)| phost::Body::Rts { message_length, free });
    let token = any::<(u32, u32, u32)>().prop_map(|(packet, number, missing)| phost::Body::Token {
        packet,
        number,
        missing,
    });
    let data = (any::<(u32, u32, u16, u32)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, free, token), len)| phost::Body::Data {
            message_length,
            offset,
            len,
            free,
            token,
        },
    );
    let body = prop_oneof![
        rts,
        token,
        data,
        Just(phost::Body::Ack),
        Just(phost::Body::Busy),
        Just(phost::Body::Unknown),
        Just(phost::Body::Ask),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| phost::Header { id, one_way, body })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, phost::Header)> {
    use phost::Body;
    let header = |body| phost::Header { id: Id64::new(42), one_way: false, body };
    let (message_length, free) = (20_000, 8);
    let rts = Body::Rts { message_length, free };
    let data = Body::Data { message_length, offset: 1460, len: 1460, free, token: 1 };
    vec![
        ("rts", header(rts)),
        ("rts_one_way", phost::Header { one_way: true, ..header(rts) }),
        ("token", header(Body::Token { packet: 9, number: 11, missing: 5 })),
        ("data", header(data)),
        ("ack", header(Body::Ack)),
        ("busy", header(Body::Busy)),
        ("unknown", header(Body::Unknown)),
        ("ask", header(Body::Ask)),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let phost = encoded(&examples()[0].1, Layout::Head);
    vec![
        ("type_zero", changed(phost.clone(), 4, 0)),
        ("cut_in_rts", phost[..19].to_vec()),
        ("cut_in_common_header", phost[..15].to_vec()),
    ]
}
