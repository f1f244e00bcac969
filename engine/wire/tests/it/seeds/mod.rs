//! The seeds of the fuzz targets: every kind of packet, and the errors that random changes find slowly.

use rackweave_core::{Ecn, Header as _, HostId, Packet};
use rackweave_wire::homa::{self, Layout};
use rackweave_wire::path::{Fragment, PathMessage};
use rackweave_wire::secure::{
    self, Clear, Handshake, Kind, MAC_BYTES, NOISE_BYTES, Notice, Resumption, TAG_BYTES, Ticket,
};
use rackweave_wire::{Codec, Header, Id64, frame, frisbee, orca, overlay, reduce};

use crate::headers::{self, PORTS, changed, encoded};

type Seeds = Vec<(&'static str, String, Vec<u8>)>;

/// Returns the target, name and bytes of each seed.
pub(crate) fn all() -> Seeds {
    let mut seeds = Vec::new();
    headers::each(&mut HeaderSeeds(&mut seeds));
    let mut add = |target, more: Vec<(&'static str, Vec<u8>)>| {
        seeds.extend(more.into_iter().map(|(name, bytes)| (target, name.to_owned(), bytes)));
    };
    add("decode_overlay", hellos());
    add("decode_overlay", about_paths(in_overlay));
    add("decode_secure", about_paths(in_seal));
    add("decode_secure", between_hosts_with_a_key());
    add("decode_orca", orca_packets());
    add("decode_frisbee", frisbee_messages());
    add("decode_reduce", reduce_messages());
    add("decode_frame", wrong_frames());
    seeds
}

/// The headers of each transport for the target of their protocol, in frames, and in the overlay.
struct HeaderSeeds<'a>(&'a mut Seeds);

impl headers::Visitor for HeaderSeeds<'_> {
    fn visit<H: Codec + Into<Header> + Copy>(
        &mut self,
        protocol: &'static str,
        target: &'static str,
        examples: Vec<(&'static str, H)>,
        wrong: Vec<(&'static str, Vec<u8>)>,
    ) {
        let Self(seeds) = self;
        let has_layouts = H::ip_protocol(Layout::Head) != H::ip_protocol(Layout::Talk);
        let layouts =
            [(Layout::Head, "head_"), (Layout::Talk, "talk_"), (Layout::Leverage, "leverage_")];
        let layouts = if has_layouts { &layouts[..] } else { &[(Layout::Head, "")] };
        for &(layout, prefix) in layouts {
            for &(name, header) in &examples {
                seeds.push((target, format!("{prefix}{name}"), encoded(&header, layout)));
                let in_frame = format!("{protocol}_{prefix}{name}");
                seeds.push(("decode_frame", in_frame, framed(header, layout)));
            }
            let in_overlay = format!("{protocol}_{prefix}");
            seeds.extend(datagrams(in_overlay.trim_end_matches('_'), examples[0].1.into(), layout));
        }
        for (name, bytes) in wrong {
            seeds.push((target, format!("wrong_{name}"), bytes));
        }
    }
}

/// Returns a packet in the overlay, as sent and as trimmed by a switch, each after its traffic class.
fn datagrams(name: &str, header: Header, layout: Layout) -> Seeds {
    let packet = Packet::new(HostId(3), HostId(7), 100, header)
        .with_ports(PORTS.source, PORTS.destination)
        .with_priority(6)
        .trimmable();
    let payload = vec![0x5a; header.payload_bytes() as usize];
    let check = overlay::crc32c(0, &payload);
    let mut seeds = Vec::new();
    for (kind, packet) in [("", packet), ("_cut", packet.trimmed(false))] {
        let mut bytes = vec![frame::traffic_class(&packet)];
        let mut datagram = Vec::new();
        overlay::encode(&packet, layout, 11, 12, check, &mut datagram);
        bytes.append(&mut datagram);
        if !packet.is_trimmed() {
            bytes.extend_from_slice(&payload);
        }
        seeds.push(("decode_overlay", format!("{name}{kind}"), bytes));
    }
    let mut inner = vec![frame::traffic_class(&packet)];
    secure::encode_inner(&packet, layout, &mut inner);
    inner.extend_from_slice(&payload);
    seeds.push(("decode_secure", format!("inner_{name}"), inner));
    seeds
}

/// Returns every kind of datagram between hosts with a key, and some that are refused.
fn between_hosts_with_a_key() -> Vec<(&'static str, Vec<u8>)> {
    let handshake = |kind| {
        let (ciphers, cipher, from, to) = (3, 1, 11, 12);
        let noise = [7; NOISE_BYTES];
        let mut bytes = vec![0xe0];
        Handshake { kind, ciphers, cipher, from, to, nonce: 5, stamp: 6, noise }.encode(&mut bytes);
        bytes.resize(bytes.len() + MAC_BYTES, 9);
        bytes
    };
    let ticket = Ticket { stamp: 1 << 50, random: [12; 12] };
    let resumption = Resumption { ticket, age_ms: 13, random: 14, proof: [15; MAC_BYTES] };
    let mut resume = handshake(Kind::Resume);
    resume[29..29 + NOISE_BYTES].copy_from_slice(&resumption.to_bytes());
    let mut grant = vec![0xe0];
    secure::encode_grant(&ticket, &[16; secure::SECRET_BYTES], &mut grant);
    let clear = Clear { session: 8, counter: 9 };
    let (mut sealed, mut lost, mut notice) = (vec![0xe0], vec![0xe0], vec![0xe0]);
    secure::encode_sealed(clear, &mut sealed);
    sealed.resize(sealed.len() + 40 + TAG_BYTES, 9);
    secure::encode_lost(clear, &mut lost);
    lost.resize(lost.len() + MAC_BYTES, 9);
    secure::encode_notice(Notice::OtherKey, &mut notice);
    let mut empty = vec![0xe0];
    secure::encode_empty(&mut empty);
    vec![
        ("ask", handshake(Kind::Ask)),
        ("offer", handshake(Kind::Offer)),
        ("wrong_version", changed(handshake(Kind::Accept), 1, 0xa1)),
        ("wrong_kind", changed(handshake(Kind::Accept), 2, 200)),
        ("wrong_long_accept", [&handshake(Kind::Accept)[..], &[0]].concat()),
        ("accept", handshake(Kind::Accept)),
        ("resume", resume),
        ("inner_wrong_cut_grant", grant[..40].to_vec()),
        ("inner_grant", grant),
        ("wrong_cut_sealed", sealed[..30].to_vec()),
        ("sealed", sealed),
        ("wrong_cut_lost", lost[..30].to_vec()),
        ("lost", lost),
        ("wrong_notice", changed(notice.clone(), 3, 3)),
        ("notice", notice),
        ("inner_wrong_length", [&empty[..], &[0]].concat()),
        ("inner_empty", empty),
    ]
}

/// Returns the datagram of the overlay without a packet, and some that are refused.
fn hellos() -> Vec<(&'static str, Vec<u8>)> {
    let mut hello = Vec::new();
    overlay::encode_hello(HostId(3), HostId(7), 11, 0, &mut hello);
    hello.insert(0, 0xe0);
    vec![
        ("wrong_version", changed(hello.clone(), 1, 0xa2)),
        ("wrong_kind", changed(hello.clone(), 2, 2)),
        ("wrong_header_beyond_datagram", changed(hello.clone(), 4, 255)),
        ("wrong_hello_with_payload", [&hello[..], &[0]].concat()),
        ("wrong_cut", hello[..32].to_vec()),
        ("hello", hello),
    ]
}

/// Writes a message about the path, and what follows it.
type WritePath = fn(&PathMessage, &[u8], &mut Vec<u8>);

fn in_overlay(message: &PathMessage, rest: &[u8], out: &mut Vec<u8>) {
    let (kind, src, dst) = (overlay::Kind::Path, HostId(3), HostId(7));
    overlay::encode_path(
        overlay::Envelope { kind, src, dst, from: 11, to: 12 },
        message,
        rest,
        out,
    );
}

fn in_seal(message: &PathMessage, rest: &[u8], out: &mut Vec<u8>) {
    secure::encode_path(message, out);
    out.extend_from_slice(rest);
}

/// Returns every kind of message about a path after its traffic class, and some that are refused.
fn about_paths(write: WritePath) -> Vec<(&'static str, Vec<u8>)> {
    let seed = |message, rest: &[u8]| {
        let mut bytes = vec![0xe0];
        write(&message, rest, &mut bytes);
        bytes
    };
    let fragment = |total, offset| PathMessage::Fragment(Fragment { number: 9, total, offset });
    let (probe, reply) = (PathMessage::Probe { number: 7 }, PathMessage::Reply { number: 8 });
    vec![
        ("path_probe", seed(probe, &[0; 40])),
        ("path_probe_without_padding", seed(probe, &[])),
        ("path_reply", seed(reply, &[])),
        ("path_fragment_first", seed(fragment(100, 0), &[1; 60])),
        ("path_fragment_last", seed(fragment(100, 60), &[2; 40])),
        ("path_fragment_whole", seed(fragment(1, 0), &[3])),
        ("wrong_path_fragment_empty", seed(fragment(100, 60), &[])),
        ("wrong_path_fragment_beyond_whole", seed(fragment(100, 61), &[2; 40])),
        ("wrong_path_fragment_beyond_range", seed(fragment(u16::MAX, u16::MAX), &[4])),
        ("wrong_path_reply_with_bytes", seed(reply, &[5])),
    ]
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

/// Frames that are refused.
fn wrong_frames() -> Vec<(&'static str, Vec<u8>)> {
    let header = homa::Header { id: Id64::new(42), one_way: false, body: homa::Body::Busy };
    let good_frame = framed(header, Layout::Head);
    vec![
        ("wrong_ethertype_ipv6", changed(good_frame.clone(), 12, 0x86)),
        ("wrong_checksum", changed(good_frame.clone(), 24, 0)),
        ("wrong_fragment", changed(good_frame.clone(), 20, 0x20)),
        ("wrong_total_length_below_header", changed(good_frame.clone(), 17, 19)),
        ("wrong_header_length_beyond_packet", changed(good_frame, 14, 0x4f)),
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
        ("join", Body::Join { incarnation: 1, stream: 7, place, at: 0, limit: 1 << 20 }),
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
        (
            "labels",
            Body::Labels { pilot: Label(0x5050_5000), ports: 0x54, change: 1, timeout_us: 200_000 },
        ),
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

/// Returns every kind of Frisbee message, and some invalid ones.
fn frisbee_messages() -> Vec<(&'static str, Vec<u8>)> {
    use frisbee::{Body, Chunks, ClientStats};
    let (client, image, bytes) = (0x1234_5678, 7, Id64::new(765_460_480));
    let chunks = Chunks { image, first: 8190, count: 4, tries: 1 };
    let join2 = |reply| {
        let (chunk_blocks, block_bytes) = (1024, 1024);
        Body::Join2 { reply, client, blocks: 0, chunk_blocks, block_bytes, bytes }
    };
    let bodies = [
        ("join", Body::Join { client }),
        ("join_reply", Body::JoinReply { blocks: 747_520 }),
        ("leave", Body::Leave { client, elapsed_s: 34 }),
        ("leave2", Body::Leave2 { client, elapsed_s: 34 }),
        ("block", Body::Block { chunk: 3, block: 1023, len: 1024 }),
        ("block_jumbo", Body::Block { chunk: 3, block: 127, len: 8192 }),
        ("request", Body::Request { chunk: 3, block: 0, count: 1024 }),
        ("partial_request", Body::PartialRequest { chunk: 3, retries: 1 }),
        ("join2", join2(false)),
        ("join2_reply", join2(true)),
        ("report", Body::Report { image, window: 1 }),
        ("batch", Body::Batch(chunks)),
        ("return", Body::Return { chunks, requester: [10, 0, 0, 9] }),
        ("enter", Body::Enter { client, name_len: 5 }),
        (
            "entered",
            Body::Entered { client, image, index: 2, clients: 30, chunk_bytes: 1 << 20, bytes },
        ),
        ("exit", Body::Exit { client, image }),
        ("redirect", Body::Redirect { chunks, requester: [10, 0, 0, 9] }),
        ("damaged", Body::Damaged { image, chunk: 4, holder: [10, 0, 0, 2] }),
    ];
    let mut seeds = Vec::new();
    for (name, body) in bodies {
        let header = frisbee::Header::new(HostId(3), body);
        let mut bytes = Vec::new();
        frisbee::encode(&header, &mut bytes);
        let end = bytes.len() + header.payload_len() as usize;
        if matches!(body, Body::Leave2 { .. }) {
            ClientStats { run_s: 34, requests: 40, ..Default::default() }.encode(&mut bytes);
        }
        bytes.resize(end, 0x5a);
        seeds.push((name, bytes));
    }
    let request = seeds[6].1.clone();
    seeds.push(("wrong_type", changed(request.clone(), 0, 3)));
    seeds.push(("wrong_subtype", changed(request.clone(), 4, 15)));
    seeds.push(("wrong_subtype_progress", changed(request.clone(), 4, 8)));
    seeds.push(("wrong_length_beyond_message", changed(request.clone(), 9, 1)));
    seeds.push(("wrong_negative_chunk", changed(request, 19, 0x80)));
    seeds
}

/// Returns the messages about vectors, and the answer to a process that is not taken.
fn vector_bodies() -> [(&'static str, reduce::Body); 13] {
    use reduce::{Body, Chunk, Format, OpenVector, Phase, Rejection};
    let instance = 0x5117_ce01;
    let cookie = Id64::new(0x0102_0304_0506_0708);
    let format = Format::BlockFloat;
    let chunk = Chunk { number: cookie, count: 5, exponent: 130, format, tag: 0 };
    let progress = |has_offer| {
        let (version, low, is_known) = (7, cookie, true);
        Body::VectorProgress { version, low, is_known, has_offer }
    };
    [
        ("join_vector", Body::JoinVector { instance, cookie, digest: Id64::new(3) }),
        ("vector_state", Body::VectorState { version: 7, instance, phase: Phase::Run }),
        ("vector_progress", progress(false)),
        (
            "open_vector",
            Body::OpenVector(OpenVector {
                cookie,
                pool: 64,
                elements: 256,
                format: Format::BlockFloat,
                workers: 8,
            }),
        ),
        ("chunk", Body::Chunk(chunk)),
        ("chunk_exponent", Body::Chunk(Chunk { count: 0, ..chunk })),
        ("chunk_sum", Body::ChunkSum(Chunk { format: Format::I64, ..chunk })),
        ("waiting", Body::Waiting { number: cookie, missing: Id64::new(0b101) }),
        ("vector_named", Body::VectorNamed { version: 8, digest: cookie }),
        ("rejected", Body::Rejected { instance, why: Rejection::Taken }),
        ("chunk_tag", Body::Chunk(Chunk { tag: 0x7a67, ..chunk })),
        ("vector_progress_offer", progress(true)),
        ("vector_failed", Body::VectorState { version: 7, instance, phase: Phase::Failed }),
    ]
}

/// Returns every kind of message of aggregation, and some invalid ones.
fn reduce_messages() -> Vec<(&'static str, Vec<u8>)> {
    use reduce::{Body, Format, Open, Operator, Pairs, Phase, Refusal, Rule, State};
    let (seq, epoch, instance) = (70_000, 12, 0x5117_ce01);
    let cookie = Id64::new(0x0102_0304_0506_0708);
    let pairs = Pairs { seq, epoch, count: 3 };
    let bodies = [
        ("data", Body::Data(pairs)),
        ("data_full", Body::Data(Pairs { count: 64, ..pairs })),
        ("residual", Body::Residual(pairs)),
        ("long", Body::Long { seq, epoch, offset: 1280, len: 40 }),
        ("fin", Body::Fin { seq, epoch, long_bytes: 1320, pairs: 7_000 }),
        ("ack", Body::Ack { seq, marked: false }),
        ("ack_marked", Body::Ack { seq, marked: true }),
        ("join", Body::Join { instance, cookie, digest: Id64::new(0x0d16_e570_0d16_e570) }),
        ("challenge", Body::Challenge { instance, cookie }),
        (
            "state",
            Body::State(State {
                version: 7,
                instance,
                aggregator: HostId(1 << 31),
                epochs: 20,
                drained: epoch,
                window: 256,
                copies: 2,
                phase: Phase::Run,
                operator: Operator::Min,
            }),
        ),
        ("confirm", Body::Confirm { version: 7, idle: true }),
        (
            "open",
            Body::Open(Open {
                cookie,
                slots: 16_384,
                first_epoch: epoch,
                window: 256,
                copies: 2,
                operator: Operator::Sum,
                workers: 7,
                rule: Rule::Exact,
            }),
        ),
        ("opened", Body::Opened { slots: 16_384, instance }),
        ("refused", Body::Refused { reason: Refusal::InUse }),
        ("fetch", Body::Fetch { epoch, reservation: 0x2345, first: 104 }),
        ("values", Body::Values { epoch, first: 104, sums: 4 }),
        ("clear", Body::Clear { epoch, reservation: 0x2345 }),
        ("cleared", Body::Cleared { epoch }),
        ("close", Body::Close),
        ("unknown", Body::Unknown),
    ];
    let mut seeds = Vec::new();
    for (name, body) in bodies.into_iter().chain(vector_bodies()) {
        let header = reduce::Header { job: 258, attempt: 1, worker: 6, token: cookie, body };
        let mut bytes = Vec::new();
        reduce::encode(&header, &mut bytes);
        bytes.resize(bytes.len() + header.payload_len() as usize, 0x5a);
        seeds.push((name, bytes));
    }
    let (data, state) = (seeds[0].1.clone(), seeds[9].1.clone());
    let (open, chunk) = (seeds[23].1.clone(), seeds[24].1.clone());
    let plan = reduce::Plan {
        aggregator: HostId(1 << 31),
        first: 700,
        length: 1_000_000,
        steps: 3,
        pool: 64,
        elements: 256,
        format: Format::BlockFloat,
        workers: 8,
    };
    let mut planned = seeds[21].1.clone();
    planned.truncate(planned.len() - reduce::PLAN_BYTES as usize);
    planned.extend_from_slice(&plan.encode());
    seeds.push(("vector_state_plan", planned));
    seeds.push(("wrong_pool", changed(open.clone(), 24, 0xff)));
    seeds.push(("wrong_elements", changed(open, 26, 0xff)));
    seeds.push(("wrong_format", changed(chunk, 27, 2)));
    seeds.push(("wrong_magic", changed(data.clone(), 0, 0xa5)));
    seeds.push(("wrong_kind", changed(data.clone(), 1, 26)));
    seeds.push(("wrong_worker", changed(data.clone(), 6, 64)));
    seeds.push(("wrong_count", changed(data, 7, 65)));
    seeds.push(("wrong_operator", changed(state.clone(), 7, 4)));
    seeds.push(("wrong_phase", changed(state, 35, 5)));
    seeds
}
