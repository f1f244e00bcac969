//! The seeds of the fuzz targets: every kind of packet, and the errors that random changes find slowly.

use rackweave_core::{Ecn, Header as _, HostId, Kind, Packet};
use rackweave_wire::homa::{self, Layout};
use rackweave_wire::{
    Codec, Header, Id64, Ports, datagram, frame, ndp, orca, overlay, phost, polo, tcp,
};

const PORTS: Ports = Ports { source: 32_768, destination: 80 };

/// Returns the target, name and bytes of each seed.
pub(crate) fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let layouts = [(Layout::Head, "head"), (Layout::Talk, "talk"), (Layout::Leverage, "leverage")];
    for (layout, prefix) in layouts {
        for (name, header) in homa_headers() {
            let name = format!("{prefix}_{name}");
            header_seeds(&mut seeds, "decode_homa", &name, header, layout);
        }
    }
    fn each<H: Codec + Into<Header>>(
        seeds: &mut Vec<(&'static str, String, Vec<u8>)>,
        target: &'static str,
        headers: Vec<(&'static str, H)>,
    ) {
        for (name, header) in headers {
            header_seeds(seeds, target, name, header, Layout::Head);
        }
    }
    each(&mut seeds, "decode_tcp", tcp_headers());
    each(&mut seeds, "decode_ndp", ndp_headers());
    each(&mut seeds, "decode_phost", phost_headers());
    each(&mut seeds, "decode_polo", polo_headers());
    each(&mut seeds, "decode_datagram", datagram_headers());
    for (name, bytes) in datagrams() {
        seeds.push(("decode_overlay", name, bytes));
    }
    for (name, bytes) in orca_packets() {
        seeds.push(("decode_orca", name.to_owned(), bytes));
    }
    for (target, name, bytes) in wrong() {
        seeds.push((target, format!("wrong_{name}"), bytes));
    }
    seeds
}

/// Returns a header for its own target, and within a frame.
fn header_seeds<H: Codec + Into<Header>>(
    seeds: &mut Vec<(&'static str, String, Vec<u8>)>,
    target: &'static str,
    name: &str,
    header: H,
    layout: Layout,
) {
    seeds.push((target, name.to_owned(), encoded(&header, layout)));
    let protocol = target.trim_start_matches("decode_");
    seeds.push(("decode_frame", format!("{protocol}_{name}"), framed(header, layout)));
}

fn encoded<H: Codec>(header: &H, layout: Layout) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.encode(layout, PORTS, &mut bytes);
    bytes
}

fn homa_headers() -> Vec<(&'static str, homa::Header)> {
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
        ("unknown", header(Body::Unknown)),
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

fn tcp_headers() -> Vec<(&'static str, tcp::Header)> {
    use tcp::Body;
    use tcp::flags::{ACK, CWR, ECE, FIN, PSH, RST, SYN};
    let header = |flags, body| tcp::Header { seq: 1461, ack: 77, window: 256, flags, body };
    let data = |kind, len| Body::Data {
        message: Id64::new(42),
        message_length: 10_000,
        offset: 1460,
        len,
        kind,
    };
    let ack = |count: u8| {
        let mut sack = [(2921, 4381), (5841, 7301), (u32::MAX, 9)];
        sack[usize::from(count)..].fill((0, 0));
        Body::Ack { count, sack }
    };
    vec![
        ("data_one_way", header(ACK, data(Kind::OneWay, 1460))),
        ("data_request", header(ACK | PSH | CWR, data(Kind::Request, 1))),
        ("data_response", header(ACK, data(Kind::Response, 0))),
        ("ack", header(ACK, ack(0))),
        ("ack_ecn_echo", header(ACK | ECE, ack(0))),
        ("ack_sack_1", header(ACK, ack(1))),
        ("ack_sack_3", header(ACK, ack(3))),
        ("syn", header(SYN | ECE | CWR, ack(0))),
        ("syn_data", header(SYN, data(Kind::Request, 100))),
        ("fin", header(FIN | ACK, ack(0))),
        ("rst", header(RST, ack(0))),
    ]
}

fn ndp_headers() -> Vec<(&'static str, ndp::Header)> {
    use ndp::Body;
    let header = |body| ndp::Header { id: Id64::new(42), one_way: false, path: 7, body };
    let data = Body::Data { message_length: 10_000, offset: 1436, len: 1436, window: 7 };
    let (offset, pull, incarnation) = (1436, 3, 0xbeef);
    let ack = |complete| Body::Ack { offset, pull, incarnation, complete };
    vec![
        ("data", header(data)),
        ("data_one_way", ndp::Header { one_way: true, ..header(data) }),
        ("ack", header(ack(false))),
        ("ack_complete", header(ack(true))),
        ("nack", header(Body::Nack { offset, pull, incarnation })),
        ("pull", header(Body::Pull { pull, incarnation })),
        ("ask", header(Body::Ask)),
        ("unknown", header(Body::Unknown)),
    ]
}

fn phost_headers() -> Vec<(&'static str, phost::Header)> {
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

fn polo_headers() -> Vec<(&'static str, polo::Header)> {
    use polo::Body;
    let header = |body| polo::Header { id: Id64::new(42), one_way: false, body };
    let (message_length, window) = (20_000, 12);
    let data = |driven, retransmit| Body::Data {
        message_length,
        offset: 1460,
        len: 1460,
        window,
        driven,
        retransmit,
    };
    let adjoint = |timeout| Body::Adjoint { message_length, sent: 12, epoch: 3, window, timeout };
    let ack = |paused, tick| Body::AdjointAck { epoch: 4, paused, tick };
    vec![
        ("data", header(data(false, false))),
        ("data_one_way", polo::Header { one_way: true, ..header(data(false, false)) }),
        ("data_driven", header(data(true, false))),
        ("data_again", header(data(true, true))),
        ("adjoint", header(adjoint(false))),
        ("adjoint_timeout", header(adjoint(true))),
        ("adjoint_ack_paused", header(ack(true, false))),
        ("adjoint_ack_tick", header(ack(false, true))),
        ("drive", header(Body::Drive { upto: 13 })),
        ("loss", header(Body::Loss { first: 5, count: 2 })),
        ("complete", header(Body::Complete)),
        ("ask", header(Body::Ask)),
        ("unknown", header(Body::Unknown)),
    ]
}

fn datagram_headers() -> Vec<(&'static str, datagram::Header)> {
    let header = |message_length, offset, len| {
        let id = Id64::new(42);
        datagram::Header { id, message_length, offset, len }
    };
    vec![
        ("whole", header(100, 0, 100)),
        ("first", header(10_000, 0, 1456)),
        ("last", header(10_000, 8736, 1264)),
    ]
}

/// Returns a packet of each transport in the overlay, as sent and as trimmed by a switch, each after its traffic class.
fn datagrams() -> Vec<(String, Vec<u8>)> {
    let headers: [(&str, Header, Layout); 7] = [
        ("homa_head", homa_headers()[0].1.into(), Layout::Head),
        ("homa_talk", homa_headers()[0].1.into(), Layout::Talk),
        ("tcp", tcp_headers()[0].1.into(), Layout::Head),
        ("ndp", ndp_headers()[0].1.into(), Layout::Head),
        ("phost", phost_headers()[0].1.into(), Layout::Head),
        ("polo", polo_headers()[0].1.into(), Layout::Head),
        ("datagram", datagram_headers()[0].1.into(), Layout::Head),
    ];
    let mut seeds = Vec::new();
    for (name, header, layout) in headers {
        let packet = Packet::new(HostId(3), HostId(7), 100, header)
            .with_ports(PORTS.source, PORTS.destination)
            .with_priority(6)
            .trimmable();
        let payload = vec![0x5a; header.payload_bytes() as usize];
        let check = overlay::crc32c(0, &payload);
        for (kind, packet) in [("", packet), ("_cut", packet.trimmed(false))] {
            let mut bytes = vec![frame::traffic_class(&packet)];
            let mut datagram = Vec::new();
            overlay::encode(&packet, layout, 11, 12, check, &mut datagram);
            bytes.append(&mut datagram);
            if !packet.is_trimmed() {
                bytes.extend_from_slice(&payload);
            }
            seeds.push((format!("{name}{kind}"), bytes));
        }
    }
    let mut hello = Vec::new();
    overlay::encode_hello(HostId(3), HostId(7), 11, 0, &mut hello);
    hello.insert(0, 0xe0);
    let with = |at: usize, to: u8| {
        let mut bytes = hello.clone();
        bytes[at] = to;
        bytes
    };
    seeds.push(("wrong_version".to_owned(), with(1, 0xa2)));
    seeds.push(("wrong_kind".to_owned(), with(2, 2)));
    seeds.push(("wrong_header_beyond_datagram".to_owned(), with(4, 255)));
    seeds.push(("wrong_hello_with_payload".to_owned(), [&hello[..], &[0]].concat()));
    seeds.push(("wrong_cut".to_owned(), hello[..32].to_vec()));
    seeds.push(("hello".to_owned(), hello));
    seeds
}

fn framed(header: impl Into<Header>, layout: Layout) -> Vec<u8> {
    let header = header.into();
    let bytes = frame::counted_ip_bytes(&header, layout);
    let packet = Packet::new(HostId(3), HostId(7), bytes, header)
        .with_ports(PORTS.source, PORTS.destination)
        .with_priority(6)
        .with_ecn(Ecn::Capable);
    let mut bytes = Vec::new();
    frame::encode(&packet, layout, &mut bytes).expect("short enough");
    bytes
}

fn wrong() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let changed = |mut bytes: Vec<u8>, at: usize, to: u8| {
        bytes[at] = to;
        bytes
    };
    let homa = |body| {
        let mut bytes = Vec::new();
        let header = homa::Header { id: Id64::new(42), one_way: false, body };
        header.encode(Layout::Head, PORTS, &mut bytes);
        bytes
    };
    let busy = homa(homa::Body::Busy);
    let ack = homa(homa::Body::Ack { count: 0, others: Default::default() });
    let tcp = |options: &[u8]| {
        let body = tcp::Body::Ack { count: 0, sack: Default::default() };
        let header = tcp::Header { seq: 0, ack: 0, window: 0, flags: tcp::flags::ACK, body };
        let mut bytes = encoded(&header, Layout::Head);
        bytes[12] = (5 + options.len() as u8 / 4) << 4;
        bytes.extend_from_slice(options);
        bytes
    };
    let header = homa::Header { id: Id64::new(42), one_way: false, body: homa::Body::Busy };
    let good_frame = framed(header, Layout::Head);
    let ndp = encoded(&ndp_headers()[0].1, Layout::Head);
    let phost = encoded(&phost_headers()[0].1, Layout::Head);
    let polo = |at: usize| encoded(&polo_headers()[at].1, Layout::Head);
    let datagram = encoded(&datagram_headers()[0].1, Layout::Head);
    vec![
        ("decode_homa", "type_freeze", changed(busy.clone(), 11, homa::packet_type::FREEZE)),
        ("decode_homa", "type_zero", changed(busy.clone(), 11, 0)),
        ("decode_homa", "cut_in_common_header", busy[..27].to_vec()),
        ("decode_homa", "ack_of_five_more", changed(ack.clone(), 29, 5)),
        ("decode_homa", "ack_of_six_more", changed(ack.clone(), 29, 6)),
        ("decode_homa", "ack_cut_in_entries", changed(ack, 29, 3)[..50].to_vec()),
        ("decode_tcp", "option_without_length", tcp(&[1, 1, 1, 8])),
        ("decode_tcp", "option_of_length_zero", tcp(&[8, 0, 0, 0])),
        ("decode_tcp", "option_beyond_header", tcp(&[8, 255, 0, 0])),
        ("decode_tcp", "sack_of_half_a_block", tcp(&[5, 6, 0, 0, 0, 0, 1, 1])),
        ("decode_tcp", "mapping_too_short", tcp(&[253, 4, 0x52, 0x57])),
        ("decode_tcp", "data_offset_zero", changed(tcp(&[]), 12, 0)),
        ("decode_tcp", "data_offset_beyond_segment", changed(tcp(&[]), 12, 0xf0)),
        ("decode_ndp", "type_zero", changed(ndp.clone(), 4, 0)),
        ("decode_ndp", "cut_in_data_header", ndp[..23].to_vec()),
        ("decode_ndp", "cut_in_common_header", ndp[..15].to_vec()),
        ("decode_phost", "type_zero", changed(phost.clone(), 4, 0)),
        ("decode_phost", "cut_in_rts", phost[..19].to_vec()),
        ("decode_phost", "cut_in_common_header", phost[..15].to_vec()),
        ("decode_polo", "type_zero", changed(polo(0), 4, 0)),
        ("decode_polo", "cut_in_adjoint", polo(4)[..27].to_vec()),
        ("decode_polo", "cut_in_data_header", polo(0)[..23].to_vec()),
        ("decode_polo", "cut_in_common_header", polo(0)[..15].to_vec()),
        ("decode_datagram", "length_below_header", changed(datagram.clone(), 5, 23)),
        ("decode_datagram", "length_beyond_packet", changed(datagram.clone(), 4, 0xff)),
        ("decode_datagram", "cut", datagram[..23].to_vec()),
        ("decode_frame", "ethertype_ipv6", changed(good_frame.clone(), 12, 0x86)),
        ("decode_frame", "checksum", changed(good_frame.clone(), 24, 0)),
        ("decode_frame", "fragment", changed(good_frame.clone(), 20, 0x20)),
        ("decode_frame", "total_length_below_header", changed(good_frame.clone(), 17, 19)),
        ("decode_frame", "header_length_beyond_packet", changed(good_frame, 14, 0x4f)),
    ]
}

/// Returns every kind of Orca packet, and some invalid ones.
fn orca_packets() -> Vec<(&'static str, Vec<u8>)> {
    use orca::{Body, Data, Gap, Label, Labelled, Parity, Place, Reason, Session, Status};
    let place = Place { rack: 2, port: 5 };
    let gap = Gap { offset: 1400, len: 2800, who: 0b10_0000 };
    let gaps = [gap, Gap { offset: 9800, ..gap }, Gap::default()];
    let status = Status {
        rack: 2,
        who: 0b10_0100,
        have: 1400,
        slowest: 5,
        seen: 70_000,
        held_us: 12,
        limit: 1 << 20,
        gaps,
    };
    let bodies = [
        ("invite", Body::Invite { stream: 7, place, payload: 1400, via_agent: true }),
        ("join", Body::Join { stream: 7, place, at: 0, limit: 1 << 20 }),
        ("status", Body::Status(status)),
        ("end", Body::End { length: 1_472_559_936 }),
        ("complete", Body::Complete { place }),
        ("bye", Body::Bye { reason: Reason::Silent }),
        ("mode", Body::Mode { detached: true }),
        ("ping", Body::Ping { place, number: 9 }),
        ("pong", Body::Pong { number: 9 }),
        ("set_active", Body::SetActive { rack: 2, agent: 5, epoch: 3 }),
        ("sync", Body::Sync { rack: 2, ports: 0x54, version: 4 }),
        ("sync_done", Body::SyncDone { place, version: 4 }),
        ("create", Body::Create),
        ("member", Body::Member { host: HostId(77), joins: true, change: 1 }),
        ("destroy", Body::Destroy),
        ("renew", Body::Renew),
        ("served", Body::Served { rack: 2, agent: false, epoch: 5 }),
        ("labels", Body::Labels { pilot: Label(0x5050_5000), ports: 0x54, change: 1 }),
        ("denied", Body::Denied { reason: Reason::NoLabel, change: 2 }),
    ];
    let mut seeds = Vec::new();
    let control = |body, to| {
        let session = Session(0x5355_4d45);
        orca::Header::Control(orca::Control { from: HostId(1), to, session, body })
    };
    for (name, body) in bodies {
        let mut bytes = Vec::new();
        orca::encode_header(&control(body, HostId(2)), 1, None, &[], &mut bytes);
        seeds.push((name, bytes));
    }
    let mut bytes = Vec::new();
    let status = control(Body::Status(status), orca::TO_AGENT);
    orca::encode_header(&status, 1, None, &[], &mut bytes);
    let mut many_gaps = bytes.clone();
    many_gaps[68] = 200;
    seeds.extend([("status_to_agent", bytes), ("wrong_many_gaps", many_gaps)]);
    let parity = Parity { index: 1, data: 32, parity: 4, last: 700 };
    let labels = [
        ("data_pilot", Labelled::Pilot, 4, None),
        ("data_rack", Labelled::Rack, 1, None),
        ("data_host", Labelled::Host, 2, None),
        ("data_parity", Labelled::Rack, 1, Some(parity)),
    ];
    for (name, labelled, words, parity) in labels {
        let data = Data {
            labelled,
            label: Label(0x54),
            session: Session(0x5355_4d45),
            offset: 1400,
            len: 12,
            repair: true,
            end: true,
            parity,
        };
        let (header, payload) = (orca::Header::Data(data), b"some payload");
        let mut bytes = Vec::new();
        orca::encode_header(&header, words, None, &[payload], &mut bytes);
        bytes.extend_from_slice(payload);
        seeds.push((name, bytes));
    }
    seeds.push(("wrong_no_label", vec![0xc1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    seeds.push(("wrong_cut", vec![0xc3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]));
    seeds
}
