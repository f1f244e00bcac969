//! The header of transports outside of the repository.

use proptest::prelude::*;
use rackweave_wire::Id64;
use rackweave_wire::external::{Body, Header};
use rackweave_wire::homa::Layout;

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = Header> {
    let words = any::<(u16, [u32; 4])>();
    let data = (any::<(u32, u32, u16, [u32; 2])>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, tag, words), len)| Body::Data {
            message_length,
            offset,
            len,
            tag,
            words,
        },
    );
    let body = prop_oneof![
        data,
        words.prop_map(|(tag, words)| Body::ToReceiver { tag, words }),
        words.prop_map(|(tag, words)| Body::ToSender { tag, words }),
        Just(Body::Complete),
        Just(Body::Known),
        Just(Body::Unknown),
        Just(Body::Ask),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| Header { id, one_way, body })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, Header)> {
    let header = |body| Header { id: Id64::new(42), one_way: false, body };
    let (tag, words) = (3, [9, 11, 5, 7]);
    let data = Body::Data { message_length: 20_000, offset: 1460, len: 1460, tag, words: [9, 11] };
    vec![
        ("data", header(data)),
        ("data_one_way", Header { one_way: true, ..header(data) }),
        ("to_receiver", header(Body::ToReceiver { tag, words })),
        ("to_sender", header(Body::ToSender { tag, words })),
        ("complete", header(Body::Complete)),
        ("known", header(Body::Known)),
        ("unknown", header(Body::Unknown)),
        ("ask", header(Body::Ask)),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let data = encoded(&examples()[0].1, Layout::Head);
    vec![
        ("type_zero", changed(data.clone(), 4, 0)),
        ("cut_in_words", data[..31].to_vec()),
        ("cut_in_common_header", data[..15].to_vec()),
    ]
}
