//! Swift's headers.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, swift};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = swift::Header> {
    use swift::{Body, Sack};
    let data = (any::<(u32, u32, u32)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, number), len)| Body::Data {
            message_length,
            offset,
            len,
            number,
        },
    );
    let probe = any::<u32>().prop_map(|message_length| Body::Probe { message_length });
    let ack = any::<(u32, u32, u32, u64)>().prop_map(|(number, wait_ns, next, bits)| Body::Ack {
        number,
        wait_ns,
        next,
        sack: Sack::new(bits),
    });
    let complete =
        any::<(u32, u32)>().prop_map(|(number, wait_ns)| Body::Complete { number, wait_ns });
    let body = prop_oneof![
        data,
        probe,
        ack,
        complete,
        Just(Body::Busy),
        Just(Body::Unknown),
        Just(Body::Ask),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| swift::Header { id, one_way, body })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, swift::Header)> {
    use swift::{Body, Sack};
    let header = |body| swift::Header { id: Id64::new(42), one_way: false, body };
    let message_length = 20_000;
    let data = Body::Data { message_length, offset: 1460, len: 1460, number: 7 };
    let ack = |bits| Body::Ack { number: 7, wait_ns: 300, next: 3, sack: Sack::new(bits) };
    vec![
        ("data", header(data)),
        ("data_one_way", swift::Header { one_way: true, ..header(data) }),
        ("probe", header(Body::Probe { message_length })),
        ("ack", header(ack(0))),
        ("ack_of_later_packets", header(ack(0b110))),
        ("complete", header(Body::Complete { number: 7, wait_ns: 300 })),
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
        ("cut_in_probe", bytes(2)[..19].to_vec()),
        ("cut_in_ack", bytes(3)[..35].to_vec()),
        ("cut_in_complete", bytes(5)[..23].to_vec()),
        ("cut_in_common_header", bytes(0)[..15].to_vec()),
    ]
}
