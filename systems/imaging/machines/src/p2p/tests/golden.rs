//! What the slides fix: phases, redirection, the slow processor.

use rackweave_core::{Bitmap, DropReason, Port, Verdict};
use rackweave_switch::system::{SystemProgram as _, Visible as _};
use rackweave_wire::frisbee::{Body, Chunks, Header as Message, SESSION_IMAGE, TO_GROUP};

use super::*;
use crate::directory::Policy;
use crate::order::Order;
use crate::packet::{Header, packet};
use crate::switch::View;

fn paper(config: &mut Setup) {
    config.directory = directory::Config {
        policy: Policy::RoundRobin,
        pending: 0,
        ..directory::Config::default()
    };
    config.client.order = Order::Rotation;
    config.expected = config.clients as u16;
}

/// The first N chunks that the server sends make one whole image (slides, "Request Order and Batching"). It is approximately
/// so, and only if a client has fewer chunks on request than a range has: when it asks for the first chunk of its neighbour's range,
/// it has received all but those of its own, and so must have the neighbour.
#[test]
fn with_the_rotation_the_server_sends_each_chunk_once() {
    for clients in [2, 4, 8] {
        let mut setup = Setup::new(clients, 64, 1000);
        paper(&mut setup);
        setup.client.outstanding = (64 / clients / 4) as u16;
        let outcome = setup.run();
        outcome.check_complete();
        // A client that is a little faster than its neighbour enters its range before the end.
        assert!(outcome.copies() <= 1.2, "{clients} clients: {}", outcome.copies());
    }
}

fn view_of(packet: &Packet<Header>) -> View {
    packet.header.view().unwrap()
}

/// Redirection changes the destination, and nothing else.
#[test]
fn a_redirected_request_keeps_its_source() {
    let mut program = Program::new(switch::Config::data_plane(SERVER));
    let mut slab = Slab::default();
    let mut map = vec![0; 1024];
    map[0] = 0b110;
    let report = packet(HostId(1), SERVER, Body::Report { image: IMAGE, window: 0 });
    let header: Header = PayloadStore::<Header>::make(&mut slab, report.header, 1024).unwrap();
    let mut report = report.map(|_| header);
    slab.write(&report).copy_from_slice(&map);
    let view = view_of(&report);
    let verdict = program.handle_packet(Time::from_ticks(1), Port(1), view, &mut report, &mut slab);
    assert_eq!((verdict, report.dst), (Verdict::Route, SERVER), "it goes on to the server");
    let request = |from, first, count| {
        let chunks = Chunks { image: IMAGE, first, count, tries: 0 };
        packet(HostId(from), SERVER, Body::Batch(chunks))
    };
    let mut one = request(2, 1, 1);
    let view = view_of(&one);
    assert_eq!(
        program.handle_packet(Time::from_ticks(2), Port(2), view, &mut one, &mut slab),
        Verdict::Route
    );
    assert_eq!((one.src, one.dst), (HostId(2), HostId(1)));
    assert_eq!(one.header, request(2, 1, 1).header);
    // Two runs: packets are made for them.
    let mut batch = request(2, 1, 4);
    let view = view_of(&batch);
    assert_eq!(
        program.handle_packet(Time::from_ticks(3), Port(2), view, &mut batch, &mut slab),
        Verdict::Consume
    );
    let mut made = Vec::new();
    while let Some(packet) = program.poll_transmit(Time::from_ticks(3)) {
        let Body::Batch(chunks) = packet.header.body else { panic!("{packet:?}") };
        assert_eq!(packet.header, Message::new(HostId(2), packet.header.body));
        made.push((packet.src.0, packet.dst.0, chunks.first, chunks.count));
    }
    assert_eq!(made, [(2, 1, 1, 2), (2, 0, 3, 2)]);
    // Without the hosts' tag nothing happens, to whomever the message is addressed.
    for to in [SERVER, HostId(1)] {
        let mut unsealed = packet(HostId(2), to, request(2, 1, 4).header.message.body);
        let view = View { is_authentic: false, ..view_of(&unsealed) };
        let verdict =
            program.handle_packet(Time::from_ticks(4), Port(2), view, &mut unsealed, &mut slab);
        assert_eq!(verdict, Verdict::Drop(DropReason::Program));
    }
    assert_eq!((program.counts().not_authentic, program.counts().requests), (2, 2));
    // A message that names another source than its packet's is not read.
    let mut forged = request(2, 1, 1);
    forged.src = HostId(3);
    let view = view_of(&forged);
    assert_eq!(
        program.handle_packet(Time::from_ticks(4), Port(3), view, &mut forged, &mut slab),
        Verdict::Route
    );
    assert_eq!(forged.dst, SERVER);
}

/// What a client asks of a server that knows Frisbee only, in Frisbee's words.
#[test]
fn requests_of_frisbee_for_whole_chunks_are_redirected() {
    let mut program = Program::new(switch::Config::data_plane(SERVER));
    let mut slab = Slab::default();
    let report = Body::Report { image: SESSION_IMAGE, window: 0 };
    let report = packet(HostId(1), SERVER, report);
    let header: Header = PayloadStore::<Header>::make(&mut slab, report.header, 1024).unwrap();
    let mut report = report.map(|_| header);
    slab.write(&report)[0] = 0b110;
    let view = view_of(&report);
    program.handle_packet(Time::from_ticks(1), Port(1), view, &mut report, &mut slab);
    let mut goes_to = |to, body| {
        let mut request = packet(HostId(2), to, body);
        let view = view_of(&request);
        let verdict =
            program.handle_packet(Time::from_ticks(2), Port(2), view, &mut request, &mut slab);
        assert_eq!((verdict, request.header.message.body), (Verdict::Route, body));
        request.dst
    };
    let request = |chunk, block, count| Body::Request { chunk, block, count };
    let again = |chunk, retries| Body::PartialRequest { chunk, retries };
    assert_eq!(goes_to(SERVER, request(1, 0, 1024)), HostId(1));
    assert_eq!(goes_to(SERVER, again(1, 1)), SERVER, "there is no other holder");
    assert_eq!(goes_to(SERVER, request(2, 0, 1024)), HostId(1), "one request may have been lost");
    for body in [request(3, 0, 1024), request(1, 0, 512), request(1, 512, 512), again(1, 0)] {
        assert_eq!(goes_to(SERVER, body), SERVER);
    }
    assert_eq!(goes_to(TO_GROUP, request(1, 0, 1024)), TO_GROUP);
    assert_eq!(program.counts().requests, 4);
}

#[test]
fn the_slow_processor_queues_and_drops() {
    let config =
        switch::Config { per_second: 1000, queue: 2, ..switch::Config::data_plane(SERVER) };
    let mut program = Program::new(config);
    let lift = |program: &mut Program, now| {
        let chunks = Chunks { image: IMAGE, first: 0, count: 1, tries: 0 };
        let mut request = packet(HostId(2), SERVER, Body::Batch(chunks));
        let view = view_of(&request);
        program.handle_packet(now, Port(2), view, &mut request, &mut ())
    };
    assert_eq!(lift(&mut program, Time::ZERO), Verdict::Consume);
    assert_eq!(lift(&mut program, Time::ZERO), Verdict::Consume);
    assert_eq!(lift(&mut program, Time::ZERO), Verdict::Drop(DropReason::Program));
    let ms = |ms| Time::ZERO + Span::from_ms(ms);
    assert_eq!(program.poll_timeout(), Some(ms(1)));
    program.handle_timeout(ms(1));
    assert!(program.poll_transmit(ms(1)).is_some() && program.poll_transmit(ms(1)).is_none());
    assert_eq!(program.poll_timeout(), Some(ms(2)));
    program.handle_timeout(ms(2));
    assert!(program.poll_transmit(ms(2)).is_some());
    assert_eq!(program.poll_timeout(), None);
    let counts = program.counts();
    assert_eq!((counts.lifted, counts.queued, counts.dropped), (2, 1, 1));
    assert_eq!((counts.most_queued, counts.most_wait_us), (2, 2000));
}

/// "When Start delay > 12, there are no clients to leverage" (slides), unless they linger.
#[test]
fn late_clients_find_nobody_unless_clients_linger() {
    let mut setup = Setup::new(3, 16, 1000);
    paper(&mut setup);
    setup.starts = (0..3).map(Span::from_secs).collect();
    let outcome = setup.run();
    outcome.check_complete();
    assert_eq!(outcome.server().counters().started, 3 * 16);
    setup.client.linger = Span::from_secs(10);
    assert_eq!(setup.run().server().counters().started, 16);
}

/// Requests are as many as chunks; a batch of 8 divides them by about 8.
#[test]
fn batches_cut_the_requests_that_a_switch_handles() {
    let requests = |batch| {
        let mut setup = Setup::new(4, 64, 1000);
        paper(&mut setup);
        setup.client.batch = batch;
        let outcome = setup.run();
        outcome.check_complete();
        outcome.switches().map(|switch| switch.requests).sum::<u64>()
    };
    let (single, batched) = (requests(1), requests(8));
    assert!(single >= 4 * 64, "{single}");
    assert!(batched * 4 <= single, "{batched} of {single}");
}

#[test]
fn chunks_are_slices_of_messages_with_their_number() {
    // The simulator has no bytes: which chunk a message carries is in its id.
    let outcome = Setup::new(1, 3, 1000).run();
    outcome.check_complete();
    let received = &outcome.client(1).counters().received;
    assert_eq!(received.iter().map(|(from, n)| (from.0, *n)).collect::<Vec<_>>(), [(0, 3)]);
}

/// A switch that cannot make packets sends a return to another holder as it is.
#[test]
fn a_client_serves_the_requester_of_a_return() {
    use crate::p2p::{self, ChunkOf};

    let rng = Rng::stream(1, 0, 0, "a client");
    let mut client =
        client::Client::new(client::Config::default(), Time::from_ticks(1), SERVER, b"x", rng);
    client.handle_timeout(Time::from_ticks(1));
    let Some(joined) = client.poll_control(Time::from_ticks(1)) else { panic!("it joins") };
    let Body::Enter { client: number, .. } = joined.body else { panic!("{joined:?}") };
    let entered = Body::Entered {
        client: number,
        image: IMAGE,
        index: 0,
        clients: 0,
        chunk_bytes: 1 << 20,
        bytes: rackweave_wire::Id64::new(3 << 20),
    };
    client.handle_control(Time::from_ticks(2), SERVER, &entered);
    let mut have = Bitmap::new(3);
    have.insert(2);
    client.start(Time::from_ticks(3), &have, &have);
    while client.poll_control(Time::from_ticks(3)).is_some() {}
    let returned = |requester, image| Body::Return {
        chunks: Chunks { image, first: 2, count: 1, tries: 0 },
        requester,
    };
    let requester = rackweave_wire::frame::ip_address(HostId(7)).unwrap();
    let foreign = rackweave_wire::frame::ip_address(HostId(9)).unwrap();
    // Not from the server, which gets returns itself and redirects by another message.
    client.handle_control(Time::from_ticks(4), SERVER, &returned(requester, IMAGE));
    client.handle_control(Time::from_ticks(4), HostId(5), &returned(foreign, IMAGE + 1));
    assert_eq!(client.poll_send(Time::from_ticks(4)), None);
    client.handle_control(Time::from_ticks(4), HostId(5), &returned(requester, IMAGE));
    let what = ChunkOf { image: IMAGE, chunk: 2 };
    assert_eq!(client.poll_send(Time::from_ticks(4)), Some(p2p::Send { peer: HostId(7), what }));
    assert_eq!(client.poll_send(Time::from_ticks(4)), None);
}
