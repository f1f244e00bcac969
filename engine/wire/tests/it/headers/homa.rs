//! Homa's headers.

use proptest::array::{uniform3, uniform7};
use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, homa};

use super::{changed, encoded, ids};

fn data() -> impl Strategy<Value = homa::Body> {
    let ack = (ids(), any::<u16>());
    let rest = any::<(u32, u32, u16, bool, u32)>();
    // Lengths that fit an IP packet with the longest header.
    (rest, ack, 0..=65_000_u16).prop_map(|(rest, (ack_id, ack_port), segment_length)| {
        let (message_length, incoming, cutoff_version, retransmit, offset) = rest;
        homa::Body::Data {
            message_length,
            incoming,
            ack_id,
            ack_port,
            cutoff_version,
            retransmit,
            offset,
            segment_length,
            // Only one layout has time stamps: see `stamped`.
            stamps: homa::DataStamps::default(),
        }
    })
}

/// An ACK's unused ids are zero: they are not encoded.
fn ack() -> impl Strategy<Value = homa::Body> {
    (0..=3_u8, uniform3(ids())).prop_map(|(count, mut others)| {
        others[usize::from(count)..].fill(Id64::default());
        homa::Body::Ack { count, others }
    })
}

fn streams() -> impl Strategy<Value = homa::Body> {
    use homa::stream::{Credit, Reason, Stream, flags};
    let credit = any::<(u32, u32, u8)>().prop_map(|(allowed, received, priority)| Credit {
        allowed,
        received,
        priority,
    });
    let credit = (credit, 0..=flags::ALL, any::<u32>());
    let data = (any::<(u32, u32, u16)>(), 0..=65_000_u16, credit.clone()).prop_map(
        |((offset, written, cutoff_version), len, (credit, flags, tag))| Stream::Data {
            offset,
            len,
            written,
            credit,
            cutoff_version,
            flags,
            tag,
        },
    );
    let credit = credit.prop_map(|(credit, flags, tag)| Stream::Credit { credit, flags, tag });
    let missing = any::<(u32, u32, u32)>().prop_map(|(offset, length, tag)| Stream::Missing {
        offset,
        length,
        tag,
    });
    let reason = prop_oneof![
        Just(Reason::Closed),
        Just(Reason::Cancelled),
        Just(Reason::Deadline),
        Just(Reason::Unknown)
    ];
    let reset = (reason, any::<u32>()).prop_map(|(reason, tag)| Stream::Reset { reason, tag });
    prop_oneof![data, credit, missing, reset].prop_map(homa::Body::Stream)
}

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = homa::Header> {
    let grant = any::<(u32, u8, bool)>().prop_map(|(offset, priority, resend_all)| {
        let stamps = homa::GrantStamps::default();
        homa::Body::Grant { offset, priority, resend_all, stamps }
    });
    let resend = any::<(u32, u32, u8)>()
        .prop_map(|(offset, length, priority)| homa::Body::Resend { offset, length, priority });
    let cutoffs = (uniform7(any::<u32>()), any::<u16>())
        .prop_map(|(cutoffs, version)| homa::Body::Cutoffs { cutoffs, version });
    let body = prop_oneof![
        data(),
        grant,
        resend,
        any::<bool>().prop_map(|refused| homa::Body::Unknown { refused }),
        Just(homa::Body::Busy),
        cutoffs,
        Just(homa::Body::NeedAck),
        ack(),
        streams(),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| homa::Header { id, one_way, body })
}

/// The same header with time stamps, if its kind has any.
pub(crate) fn stamped(mut header: homa::Header, numbers: [u32; 4]) -> homa::Header {
    let [sent_at, echo, held_ns, host_ns] = numbers;
    match &mut header.body {
        homa::Body::Data { stamps, .. } => *stamps = homa::DataStamps { sent_at, echo },
        homa::Body::Grant { stamps, .. } => {
            *stamps = homa::GrantStamps { sent_at, echo, held_ns, host_ns };
        }
        _ => {}
    }
    header
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, homa::Header)> {
    use homa::Body;
    use homa::stream::{Credit, Reason, Stream, flags};
    // The payload is not included: in a Talk packet its length is only in the header.
    let data = |ack_id, retransmit| Body::Data {
        message_length: 10_000,
        incoming: 10_000,
        ack_id: Id64::new(ack_id),
        ack_port: 80,
        cutoff_version: 3,
        retransmit,
        offset: 1424,
        segment_length: 1000,
        stamps: homa::DataStamps { sent_at: 1_000_000, echo: 900_000 },
    };
    let stamps = homa::GrantStamps { sent_at: 7, echo: u32::MAX, held_ns: 5, host_ns: 1 };
    let grant = |offset, resend_all| Body::Grant { offset, priority: 2, resend_all, stamps };
    let header = |body| homa::Header { id: Id64::new(42), one_way: false, body };
    let others = [40, 38, 36].map(Id64::new);
    let credit = Credit { allowed: 9000, received: 77, priority: 2 };
    let stream = |tag, flags| {
        let (offset, len, written, cutoff_version) = (1424, 1000, 10_000, 3);
        Body::Stream(Stream::Data { offset, len, written, credit, cutoff_version, flags, tag })
    };
    vec![
        ("data", header(data(0, false))),
        ("data_with_ack", header(data(40, false))),
        ("data_retransmitted", header(data(0, true))),
        ("data_one_way", homa::Header { one_way: true, ..header(data(0, false)) }),
        ("grant", header(grant(20_000, false))),
        ("grant_resend_all", header(grant(0, true))),
        ("resend", header(Body::Resend { offset: 1424, length: 1424, priority: 7 })),
        ("resend_all", header(Body::Resend { offset: 0, length: u32::MAX, priority: 7 })),
        ("unknown", header(Body::Unknown { refused: false })),
        ("busy", header(Body::Busy)),
        (
            "cutoffs",
            header(Body::Cutoffs { cutoffs: [200, 2800, 15_000, 1_000_000, 0, 0, 0], version: 3 }),
        ),
        ("need_ack", header(Body::NeedAck)),
        ("ack_alone", header(Body::Ack { count: 0, others: Default::default() })),
        ("ack_of_three_more", header(Body::Ack { count: 3, others })),
        ("stream", header(stream(0x5eed, 0))),
        ("stream_opening", header(stream(1000, flags::OPENING | flags::END))),
        ("credit", header(Body::Stream(Stream::Credit { credit, flags: 0, tag: 0x5eed }))),
        (
            "missing",
            header(Body::Stream(Stream::Missing { offset: 1424, length: 1424, tag: 0x5eed })),
        ),
        ("reset", header(Body::Stream(Stream::Reset { reason: Reason::Cancelled, tag: 0x5eed }))),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let encoded =
        |body| encoded(&homa::Header { id: Id64::new(42), one_way: false, body }, Layout::Head);
    let busy = encoded(homa::Body::Busy);
    let ack = encoded(homa::Body::Ack { count: 0, others: Default::default() });
    vec![
        ("type_freeze", changed(busy.clone(), 11, homa::packet_type::FREEZE)),
        ("type_zero", changed(busy.clone(), 11, 0)),
        ("cut_in_common_header", busy[..27].to_vec()),
        ("ack_of_five_more", changed(ack.clone(), 29, 5)),
        ("ack_of_six_more", changed(ack.clone(), 29, 6)),
        ("ack_cut_in_entries", changed(ack, 29, 3)[..50].to_vec()),
    ]
}
