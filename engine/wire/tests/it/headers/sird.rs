//! SIRD's headers.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, sird};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = sird::Header> {
    use sird::Body;
    let request = any::<(u32, u16)>()
        .prop_map(|(message_length, unscheduled)| Body::Request { message_length, unscheduled });
    let data = (any::<(u32, u32, u16, bool)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, unscheduled, csn), len)| Body::Data {
            message_length,
            offset,
            len,
            unscheduled,
            csn,
        },
    );
    let body = prop_oneof![
        request,
        any::<u32>().prop_map(|packet| Body::Credit { packet }),
        data,
        Just(Body::Ack),
        Just(Body::Busy),
        Just(Body::Unknown),
        Just(Body::Ask),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| sird::Header { id, one_way, body })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, sird::Header)> {
    use sird::Body;
    let header = |body| sird::Header { id: Id64::new(42), one_way: false, body };
    let message_length = 20_000;
    let request = Body::Request { message_length, unscheduled: 0 };
    let data = |csn| Body::Data { message_length, offset: 1460, len: 1460, unscheduled: 8, csn };
    vec![
        ("request", header(request)),
        ("request_one_way", sird::Header { one_way: true, ..header(request) }),
        ("credit", header(Body::Credit { packet: 9 })),
        ("data", header(data(false))),
        ("data_csn", header(data(true))),
        ("data_csn_one_way", sird::Header { one_way: true, ..header(data(true)) }),
        ("ack", header(Body::Ack)),
        ("busy", header(Body::Busy)),
        ("unknown", header(Body::Unknown)),
        ("ask", header(Body::Ask)),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let example = |number: usize| encoded(&examples()[number].1, Layout::Head);
    vec![
        ("type_zero", changed(example(0), 4, 0)),
        ("cut_in_request", example(0)[..19].to_vec()),
        ("cut_in_credit", example(2)[..19].to_vec()),
        ("cut_in_data_header", example(3)[..23].to_vec()),
        ("cut_in_common_header", example(0)[..15].to_vec()),
    ]
}
