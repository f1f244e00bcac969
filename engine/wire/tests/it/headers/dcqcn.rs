//! The headers of RoCEv2 with DCQCN.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, dcqcn};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = dcqcn::Header> {
    use dcqcn::{Body, Sack};
    let data = (any::<(u32, u32, bool)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, asks), len)| Body::Data { message_length, offset, len, asks },
    );
    let ack = any::<(bool, u32, u64)>().prop_map(|(is_nack, next, bits)| {
        let sack = Sack::new(bits);
        if is_nack { Body::Nack { next, sack } } else { Body::Ack { next, sack } }
    });
    let body = prop_oneof![
        data,
        ack,
        Just(Body::Cnp),
        Just(Body::Complete),
        Just(Body::Busy),
        Just(Body::Unknown),
        Just(Body::Ask),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| dcqcn::Header { id, one_way, body })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, dcqcn::Header)> {
    use dcqcn::{Body, Sack};
    let header = |body| dcqcn::Header { id: Id64::new(42), one_way: false, body };
    let data = |asks| Body::Data { message_length: 20_000, offset: 1460, len: 1460, asks };
    vec![
        ("data", header(data(false))),
        ("data_that_asks", dcqcn::Header { one_way: true, ..header(data(true)) }),
        ("ack", header(Body::Ack { next: 3, sack: Sack::new(0) })),
        ("nack", header(Body::Nack { next: 3, sack: Sack::new(0b110) })),
        ("cnp", header(Body::Cnp)),
        ("complete", header(Body::Complete)),
        ("busy", header(Body::Busy)),
        ("unknown", header(Body::Unknown)),
        ("ask", header(Body::Ask)),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let examples = examples();
    let bytes = |at: usize| encoded(&examples[at].1, Layout::Head);
    vec![
        ("type_zero", changed(bytes(0), 4, 0)),
        ("cut_in_data_header", bytes(0)[..23].to_vec()),
        ("cut_in_ack", bytes(2)[..27].to_vec()),
        ("cut_in_nack", bytes(3)[..27].to_vec()),
        ("cut_in_common_header", bytes(0)[..15].to_vec()),
    ]
}
