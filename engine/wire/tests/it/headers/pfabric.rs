//! pFabric's headers.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, pfabric};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = pfabric::Header> {
    use pfabric::{Body, Sack};
    let data = (any::<(u32, u32, u32)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, remaining), len)| Body::Data {
            message_length,
            offset,
            len,
            remaining,
        },
    );
    let probe = any::<(u32, u32)>()
        .prop_map(|(message_length, remaining)| Body::Probe { message_length, remaining });
    let ack = any::<(u32, u32, u64)>().prop_map(|(next, packet, bits)| Body::Ack {
        next,
        packet,
        sack: Sack::new(bits),
    });
    let body = prop_oneof![
        data,
        probe,
        ack,
        Just(Body::Complete),
        Just(Body::Busy),
        Just(Body::Unknown),
        Just(Body::Ask),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| pfabric::Header {
        id,
        one_way,
        body,
    })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, pfabric::Header)> {
    use pfabric::{Body, Sack};
    let header = |body| pfabric::Header { id: Id64::new(42), one_way: false, body };
    let (message_length, remaining) = (20_000, 18_540);
    let data = Body::Data { message_length, offset: 1460, len: 1460, remaining };
    let ack = |bits| Body::Ack { next: 3, packet: 5, sack: Sack::new(bits) };
    vec![
        ("data", header(data)),
        ("data_one_way", pfabric::Header { one_way: true, ..header(data) }),
        ("probe", header(Body::Probe { message_length, remaining })),
        ("ack", header(ack(0))),
        ("ack_of_later_packets", header(ack(0b110))),
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
        ("cut_in_data_header", bytes(0)[..27].to_vec()),
        ("cut_in_probe", bytes(2)[..23].to_vec()),
        ("cut_in_ack", bytes(3)[..31].to_vec()),
        ("cut_in_common_header", bytes(0)[..15].to_vec()),
    ]
}
