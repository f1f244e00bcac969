//! dcPIM's headers.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, dcpim};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = dcpim::Header> {
    use dcpim::{Body, Channels};
    let channels = || any::<(u8, u8)>().prop_map(|(total, prompt)| Channels { total, prompt });
    let data = (any::<(u32, u32, u16, u32)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, free, token), len)| Body::Data {
            message_length,
            offset,
            len,
            free,
            token,
        },
    );
    let token = any::<(u32, u32, u32, u16, u8)>().prop_map(
        |(packet, number, missing, lifetime, priority)| Body::Token {
            packet,
            number,
            missing,
            lifetime,
            priority,
        },
    );
    let body = prop_oneof![
        any::<(u32, u16)>()
            .prop_map(|(message_length, free)| Body::Notify { message_length, free }),
        (any::<(u32, u32)>(), channels()).prop_map(|((epoch, missing), channels)| Body::Rts {
            epoch,
            missing,
            channels
        }),
        (any::<(u32, u32)>(), channels()).prop_map(|((epoch, sender_epoch), channels)| {
            Body::Grant { epoch, sender_epoch, channels }
        }),
        (any::<(u32, u32)>(), channels()).prop_map(|((epoch, sender_epoch), channels)| {
            Body::Accept { epoch, sender_epoch, channels }
        }),
        (any::<u32>(), channels()).prop_map(|(epoch, channels)| Body::Release { epoch, channels }),
        token,
        data,
        Just(Body::NotifyAck),
        Just(Body::Fin),
        Just(Body::Unknown),
        Just(Body::Ask),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| dcpim::Header { id, one_way, body })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, dcpim::Header)> {
    use dcpim::{Body, Channels};
    let header = |body| dcpim::Header { id: Id64::new(42), one_way: false, body };
    let (message_length, free) = (200_000, 0);
    let notify = Body::Notify { message_length, free };
    let channels = Channels { total: 3, prompt: 1 };
    let (epoch, sender_epoch) = (70, 69);
    vec![
        ("notify", header(notify)),
        ("notify_one_way", dcpim::Header { one_way: true, ..header(notify) }),
        ("notify_ack", header(Body::NotifyAck)),
        ("rts", header(Body::Rts { epoch, missing: 137, channels })),
        ("grant", header(Body::Grant { epoch, sender_epoch, channels })),
        ("accept", header(Body::Accept { epoch, sender_epoch, channels })),
        ("release", header(Body::Release { epoch, channels })),
        (
            "token",
            header(Body::Token { packet: 9, number: 11, missing: 5, lifetime: 250, priority: 2 }),
        ),
        ("data", header(Body::Data { message_length, offset: 1460, len: 1460, free, token: 1 })),
        ("fin", header(Body::Fin)),
        ("unknown", header(Body::Unknown)),
        ("ask", header(Body::Ask)),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let example = |number: usize| encoded(&examples()[number].1, Layout::Head);
    vec![
        ("type_zero", changed(example(0), 4, 0)),
        ("cut_in_notify", example(0)[..19].to_vec()),
        ("cut_in_rts", example(3)[..23].to_vec()),
        ("cut_in_grant", example(4)[..23].to_vec()),
        ("cut_in_accept", example(5)[..23].to_vec()),
        ("cut_in_release", example(6)[..19].to_vec()),
        ("cut_in_token", example(7)[..29].to_vec()),
        ("cut_in_data_header", example(8)[..27].to_vec()),
        ("cut_in_common_header", example(0)[..15].to_vec()),
    ]
}
