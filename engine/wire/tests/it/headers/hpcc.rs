//! The headers of HPCC.

use proptest::prelude::*;
use rackweave_core::telemetry::{Hop, Stack};
use rackweave_wire::Id64;
use rackweave_wire::homa::Layout;
use rackweave_wire::hpcc::{self, Room};

use super::{changed, encoded, ids};

/// A header of any content, with room for a stack.
pub(crate) fn arbitrary() -> impl Strategy<Value = hpcc::Header> {
    use hpcc::{Body, Sack};
    let stack = Room;
    let data = (any::<(u32, u32, bool)>(), 0..=65_000_u16).prop_map(
        move |((message_length, offset, asks), len)| Body::Data {
            message_length,
            offset,
            len,
            asks,
            stack,
        },
    );
    let ack = any::<(bool, u32, u64)>().prop_map(move |(is_nack, next, bits)| {
        let sack = Sack::new(bits);
        if is_nack { Body::Nack { next, sack, stack } } else { Body::Ack { next, sack, stack } }
    });
    let body = prop_oneof![
        data,
        ack,
        Just(Body::Complete),
        Just(Body::Busy),
        Just(Body::Unknown),
        Just(Body::Ask),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| hpcc::Header { id, one_way, body })
}

/// A stack of any content: each is one.
fn stacks() -> impl Strategy<Value = Stack> {
    any::<(u16, [u64; 5])>()
        .prop_map(|(head, hops)| Stack::from_parts(head, hops.map(Hop::from_bits)))
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, hpcc::Header)> {
    use hpcc::{Body, Sack};
    let (header, stack) = (|body| hpcc::Header { id: Id64::new(42), one_way: false, body }, Room);
    let data = |asks| Body::Data { message_length: 20_000, offset: 1418, len: 1418, asks, stack };
    vec![
        ("data", header(data(false))),
        ("data_that_asks", hpcc::Header { one_way: true, ..header(data(true)) }),
        ("ack", header(Body::Ack { next: 3, sack: Sack::new(0), stack })),
        ("nack", header(Body::Nack { next: 3, sack: Sack::new(0b110), stack })),
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
        ("cnp", changed(bytes(0), 4, 4)),
        ("cut_in_stack", bytes(0)[..65].to_vec()),
        ("cut_in_ack", bytes(2)[..69].to_vec()),
        ("cut_in_nack", bytes(3)[..69].to_vec()),
        ("cut_in_common_header", bytes(0)[..15].to_vec()),
    ]
}

proptest! {
    #[test]
    fn a_header_with_any_stack_is_decoded_as_it_was_encoded(plain in arbitrary(), stack in stacks()) {
        use rackweave_wire::Codec as _;
        let header = plain.with_stack(stack);
        let bytes = encoded(&header, Layout::Head);
        prop_assert_eq!(bytes.len() as u32, header.header_bytes(Layout::Head));
        let payload = rackweave_core::Header::payload_bytes(&header) as usize;
        let (read, ports) = hpcc::stamped::Header::decode(Layout::Head, &bytes, bytes.len() + payload)?;
        prop_assert_eq!((read, ports), (header, super::PORTS));
        prop_assert_eq!(hpcc::Header::from(read), plain);
    }
}
