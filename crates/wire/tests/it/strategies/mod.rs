//! Arbitrary headers and packets.

use proptest::array::{uniform3, uniform7};
use proptest::prelude::*;
use rackweave_core::{Ecn, HostId, Kind, Packet};
use rackweave_wire::homa::Layout;
use rackweave_wire::{Header, Id64, Ports, datagram, frame, homa, ndp, phost, polo, tcp};

pub(crate) fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::Head), Just(Layout::Talk), Just(Layout::Leverage)]
}

pub(crate) fn ports() -> impl Strategy<Value = Ports> {
    any::<(u16, u16)>().prop_map(|(source, destination)| Ports { source, destination })
}

fn ids() -> impl Strategy<Value = Id64> {
    any::<u64>().prop_map(Id64::new)
}

fn homa_data() -> impl Strategy<Value = homa::Body> {
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
fn homa_ack() -> impl Strategy<Value = homa::Body> {
    (0..=3_u8, uniform3(ids())).prop_map(|(count, mut others)| {
        others[usize::from(count)..].fill(Id64::default());
        homa::Body::Ack { count, others }
    })
}

fn homa_streams() -> impl Strategy<Value = homa::Body> {
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

pub(crate) fn homa_headers() -> impl Strategy<Value = homa::Header> {
    let grant = any::<(u32, u8, bool)>().prop_map(|(offset, priority, resend_all)| {
        let stamps = homa::GrantStamps::default();
        homa::Body::Grant { offset, priority, resend_all, stamps }
    });
    let resend = any::<(u32, u32, u8)>()
        .prop_map(|(offset, length, priority)| homa::Body::Resend { offset, length, priority });
    let cutoffs = (uniform7(any::<u32>()), any::<u16>())
        .prop_map(|(cutoffs, version)| homa::Body::Cutoffs { cutoffs, version });
    let body = prop_oneof![
        homa_data(),
        grant,
        resend,
        Just(homa::Body::Unknown),
        Just(homa::Body::Busy),
        cutoffs,
        Just(homa::Body::NeedAck),
        homa_ack(),
        homa_streams(),
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

fn tcp_headers() -> impl Strategy<Value = tcp::Header> {
    let kinds = prop_oneof![Just(Kind::OneWay), Just(Kind::Request), Just(Kind::Response)];
    let data = (ids(), any::<u32>(), any::<u32>(), 0..=65_000_u16, kinds).prop_map(
        |(message, message_length, offset, len, kind)| tcp::Body::Data {
            message,
            message_length,
            offset,
            len,
            kind,
        },
    );
    let ack = (0..=3_u8, uniform3(any::<(u32, u32)>())).prop_map(|(count, mut sack)| {
        sack[usize::from(count)..].fill((0, 0));
        tcp::Body::Ack { count, sack }
    });
    (any::<(u32, u32, u16, u8)>(), prop_oneof![data, ack])
        .prop_map(|((seq, ack, window, flags), body)| tcp::Header { seq, ack, window, flags, body })
}

fn ndp_headers() -> impl Strategy<Value = ndp::Header> {
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

fn phost_headers() -> impl Strategy<Value = phost::Header> {
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

fn polo_headers() -> impl Strategy<Value = polo::Header> {
    let data = (any::<(u32, u32, u16, bool, bool)>(), 0..=65_000_u16).prop_map(
        |((message_length, offset, window, driven, retransmit), len)| polo::Body::Data {
            message_length,
            offset,
            len,
            window,
            driven,
            retransmit,
        },
    );
    let adjoint = any::<(u32, u32, u32, u16, bool)>().prop_map(
        |(message_length, sent, epoch, window, timeout)| polo::Body::Adjoint {
            message_length,
            sent,
            epoch,
            window,
            timeout,
        },
    );
    let ack = any::<(u32, bool, bool)>().prop_map(|(epoch, paused, tick)| polo::Body::AdjointAck {
        epoch,
        paused,
        tick,
    });
    let body = prop_oneof![
        data,
        adjoint,
        ack,
        any::<u32>().prop_map(|upto| polo::Body::Drive { upto }),
        any::<(u32, u16)>().prop_map(|(first, count)| polo::Body::Loss { first, count }),
        Just(polo::Body::Complete),
        Just(polo::Body::Ask),
        Just(polo::Body::Unknown),
    ];
    (ids(), any::<bool>(), body).prop_map(|(id, one_way, body)| polo::Header { id, one_way, body })
}

fn datagram_headers() -> impl Strategy<Value = datagram::Header> {
    (ids(), any::<(u32, u32)>(), 0..=65_000_u16).prop_map(|(id, (message_length, offset), len)| {
        datagram::Header { id, message_length, offset, len }
    })
}

pub(crate) fn headers() -> impl Strategy<Value = Header> {
    prop_oneof![
        homa_headers().prop_map(Header::Homa),
        tcp_headers().prop_map(Header::Tcp),
        ndp_headers().prop_map(Header::Ndp),
        phost_headers().prop_map(Header::PHost),
        polo_headers().prop_map(Header::Polo),
        datagram_headers().prop_map(Header::Datagram),
    ]
}

/// A layout, and a packet of the size that its header has in that layout.
pub(crate) fn packets() -> impl Strategy<Value = (Layout, Packet<Header>)> {
    let ecn = prop_oneof![Just(Ecn::NotCapable), Just(Ecn::Capable), Just(Ecn::Marked)];
    let hosts = (0..1_u32 << 24, 0..1_u32 << 24);
    let marks = (ecn, any::<(bool, bool, bool)>(), 0..8_u8);
    (layouts(), headers(), hosts, ports(), marks).prop_map(
        |(layout, header, (src, dst), ports, (ecn, marks, priority))| {
            let (spray, trimmable, trimmed) = marks;
            let bytes = frame::counted_ip_bytes(&header, layout);
            let mut packet = Packet::new(HostId(src), HostId(dst), bytes, header)
                .with_ports(ports.source, ports.destination)
                .with_priority(priority)
                .with_ecn(ecn)
                .sprayed(spray);
            if trimmable {
                packet = packet.trimmable();
            }
            if trimmed {
                packet.trim();
            }
            (layout, packet)
        },
    )
}
