//! Arbitrary messages to the machines: nothing panics, memory stays bounded, and both still do their work.

use proptest::prelude::*;
use rackweave_core::Bitmap;
use rackweave_wire::Id64;
use rackweave_wire::frame::ip_address;
use rackweave_wire::frisbee::{Body, Chunks, REPORT_MAP_BYTES};

use super::*;
use crate::p2p::client::Client;
use crate::p2p::server::Server;
use crate::p2p::{Check, ChunkOf, Send, Serve};

const CHUNKS: u32 = 300;
/// Bounds that a few hundred messages reach.
const SERVE: Serve =
    Serve { uploads: 3, per_peer: 1, peers: 4, queue: 16, waiting: 8, wait: Span::from_secs(6) };

#[derive(Clone, Debug)]
enum Step {
    Message {
        from: u32,
        body: Body,
        payload: Vec<u8>,
    },
    Wait(u64),
    Send,
    /// A chunk that is being sent has arrived, was not wanted, stalls, cannot be read, or its connection fails.
    Sent(u8),
    Chunk {
        from: u32,
        what: ChunkOf,
        check: Check,
    },
    Failed(u32),
}

fn host() -> impl Strategy<Value = u32> {
    0_u32..7
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0_u32..CHUNKS + 10, 1 => any::<u32>()]
}

fn image() -> impl Strategy<Value = u32> {
    prop_oneof![8 => Just(IMAGE), 1 => any::<u32>()]
}

fn chunks() -> impl Strategy<Value = Chunks> {
    let count = prop_oneof![8 => 0_u16..20, 1 => any::<u16>()];
    let tries = prop_oneof![8 => 0_u16..4, 1 => any::<u16>()];
    (image(), number(), count, tries).prop_map(|(image, first, count, tries)| Chunks {
        image,
        first,
        count,
        tries,
    })
}

fn message() -> impl Strategy<Value = (Body, Vec<u8>)> {
    let address = || {
        prop_oneof![
            8 => host().prop_map(|host| ip_address(HostId(host)).unwrap()),
            1 => any::<[u8; 4]>(),
        ]
    };
    let map = prop::collection::vec(any::<u8>(), REPORT_MAP_BYTES as usize);
    let map = prop_oneof![4 => map, 1 => prop::collection::vec(any::<u8>(), 0..40)];
    let name = prop_oneof![4 => Just(NAME.to_vec()), 1 => prop::collection::vec(any::<u8>(), 0..9)];
    let window = prop_oneof![8 => 0_u32..2, 1 => any::<u32>()];
    let empty = |body| (body, Vec::new());
    prop_oneof![
        6 => chunks().prop_map(move |it| empty(Body::Batch(it))),
        3 => (chunks(), address()).prop_map(move |(chunks, requester)| empty(Body::Return { chunks, requester })),
        3 => (chunks(), address()).prop_map(move |(chunks, requester)| empty(Body::Redirect { chunks, requester })),
        3 => (image(), window, map).prop_map(|(image, window, map)| (Body::Report { image, window }, map)),
        2 => (image(), number(), address())
            .prop_map(move |(image, chunk, holder)| empty(Body::Damaged { image, chunk, holder })),
        2 => (0_u32..3, name).prop_map(|(client, name)| (Body::Enter { client, name_len: name.len() as u8 }, name)),
        1 => (0_u32..3, image()).prop_map(move |(client, image)| empty(Body::Exit { client, image })),
        1 => (any::<u32>(), image(), any::<u16>(), any::<u16>(), any::<u32>(), any::<u64>()).prop_map(
            move |(client, image, index, clients, chunk_bytes, bytes)| {
                let bytes = Id64::new(bytes);
                empty(Body::Entered { client, image, index, clients, chunk_bytes, bytes })
            },
        ),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let check = prop_oneof![4 => Just(Check::Verified), 1 => Just(Check::Damaged)];
    let what = (image(), number()).prop_map(|(image, chunk)| ChunkOf { image, chunk });
    prop_oneof![
        20 => (host(), message()).prop_map(|(from, (body, payload))| Step::Message { from, body, payload }),
        2 => (0_u64..9000).prop_map(Step::Wait),
        4 => Just(Step::Send),
        4 => any::<u8>().prop_map(Step::Sent),
        2 => (host(), what, check).prop_map(|(from, what, check)| Step::Chunk { from, what, check }),
        1 => host().prop_map(Step::Failed),
    ]
}

/// The most chunks that may be queued, wait, or be sent.
const MOST: usize = 4 * 16 + 8 + 4;
/// The most messages that one message, or one step of time, may lead to: of a batch, one for each chunk.
const MOST_OUT: usize = 512 + MOST;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..rackweave_testing::cases(64) })]

    #[test]
    fn a_server_bears_any_messages(steps in prop::collection::vec(step(), 1..300), directs in any::<bool>()) {
        let directory = directory::Config { images: 2, clients: 4, chunks: 400, requests: 32, most_bytes: 40_000, ..directory::Config::default() };
        let config = server::Config { serve: SERVE, directory: directs.then_some(directory), expected: 0 };
        let mut server = Server::new(config);
        server.add(IMAGE, NAME, Shape::new(u64::from(CHUNKS) * 1000, 1000).unwrap());
        let mut now = Time::ZERO;
        let (mut sending, mut forgotten) = (Vec::<Send>::new(), Vec::new());
        for step in steps {
            match step {
                Step::Message { from, body, payload } => {
                    server.handle_control(now, HostId(from), &body, &payload);
                    if matches!(body, Body::Enter { .. }) {
                        // The server may forget what is being sent to a client that enters again; its driver goes on for a while.
                        forgotten.extend(sending.extract_if(.., |send| send.peer == HostId(from)));
                    }
                }
                Step::Wait(ms) => now += Span::from_ms(ms),
                Step::Send => sending.extend(server.poll_send(now)),
                Step::Sent(how) if how < 64 && !forgotten.is_empty() => {
                    let Send { peer, what } = forgotten.swap_remove(usize::from(how) % forgotten.len());
                    server.chunk_sent(now, peer, what);
                }
                Step::Sent(how) if !sending.is_empty() => {
                    let Send { peer, what } = sending.swap_remove(usize::from(how) % sending.len());
                    match how % 4 {
                        0 => server.chunk_unwanted(now, peer, what),
                        1 => server.chunk_unavailable(peer, what),
                        _ => server.chunk_sent(now, peer, what),
                    }
                }
                Step::Failed(host) if host % 2 == 0 => {
                    server.peer_failed(now, HostId(host));
                    sending.retain(|send| send.peer != HostId(host));
                }
                Step::Failed(host) => {
                    server.client_gone(HostId(host));
                    sending.retain(|send| send.peer != HostId(host));
                }
                _ => {}
            }
            prop_assert!(server.clients() <= 7);
            prop_assert!(server.directory().is_none_or(|it| it.bytes() <= 40_000));
            prop_assert!(server.counters().most_queued <= MOST as u64);
            let out = std::iter::from_fn(|| server.poll_control(now)).count();
            prop_assert!(out <= MOST_OUT, "{out}");
            prop_assert!(sending.len() <= 4, "as many as there may be peers");
        }
        // Someone who joins now gets what it asks for, when those before it have theirs.
        let (new, enter) = (HostId(100), Body::Enter { client: 1, name_len: NAME.len() as u8 });
        (0..7).for_each(|host| server.client_gone(HostId(host)));
        server.handle_control(now, new, &enter, NAME);
        let chunks = Chunks { image: IMAGE, first: 7, count: 1, tries: 3 };
        server.handle_control(now, new, &Body::Batch(chunks), &[]);
        let sent = std::iter::from_fn(|| server.poll_send(now)).next();
        prop_assert_eq!(sent.map(|sent| (sent.peer, sent.what.chunk)), Some((new, 7)));
    }

    #[test]
    fn a_client_bears_any_messages(steps in prop::collection::vec(step(), 1..300)) {
        let config = client::Config { serve: SERVE, ..client::Config::default() };
        let mut now = Time::ZERO;
        let mut client = Client::new(config, now, SERVER, NAME, rackweave_core::Rng::stream(1, 0, 0, "client"));
        client.handle_timeout(now);
        let number = match client.poll_control(now).map(|out| out.body) {
            Some(Body::Enter { client, .. }) => client,
            other => panic!("{other:?}"),
        };
        let bytes = Id64::new(u64::from(CHUNKS) * 1000);
        let entered = Body::Entered { client: number, image: IMAGE, index: 0, clients: 0, chunk_bytes: 1000, bytes };
        client.handle_control(now, SERVER, &entered);
        let mut have = Bitmap::new(CHUNKS);
        for chunk in 0..100 {
            have.insert(chunk);
        }
        client.start(now, &have, &have);
        let mut sending = Vec::new();
        for step in steps {
            match step {
                Step::Message { from, body, .. } => client.handle_control(now, HostId(from), &body),
                Step::Wait(ms) => now += Span::from_ms(ms),
                Step::Send => sending.extend(client.poll_send(now)),
                Step::Sent(how) if !sending.is_empty() => {
                    let Send { peer, what } = sending.swap_remove(usize::from(how) % sending.len());
                    match how % 4 {
                        0 => client.chunk_unwanted(now, peer, what),
                        1 => client.chunk_unavailable(now, peer, what),
                        _ => client.chunk_sent(now, peer, what),
                    }
                }
                Step::Chunk { from, what, check } => client.chunk_received(now, HostId(from), what, check),
                Step::Failed(host) => {
                    client.peer_failed(now, HostId(host));
                    sending.retain(|send| send.peer != HostId(host));
                }
                Step::Sent(_) => {}
            }
            if client.poll_timeout().is_some_and(|at| at <= now) {
                client.handle_timeout(now);
            }
            prop_assert!(client.have().len() <= CHUNKS && client.have().len() >= 100);
            prop_assert!(client.counters().most_queued as usize <= MOST);
            let out = std::iter::from_fn(|| client.poll_control(now)).count();
            prop_assert!(out <= MOST_OUT, "{out}");
            prop_assert!(sending.len() <= 4, "as many as there may be peers");
            while client.poll_event().is_some() {}
        }
        // What it still lacks arrives, if it has not failed: it ends with every chunk.
        if !client.is_over() {
            for chunk in 0..CHUNKS {
                client.chunk_received(now, SERVER, ChunkOf { image: IMAGE, chunk }, Check::Verified);
                client.written(now, chunk);
            }
            prop_assert!(client.have().is_full());
            let mut events = std::iter::from_fn(|| client.poll_event());
            prop_assert!(events.any(|event| event == client::Event::Written));
        }
    }
}
