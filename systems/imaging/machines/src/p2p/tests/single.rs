//! One client, driven by hand.

use rackweave_core::Bitmap;
use rackweave_wire::Id64;
use rackweave_wire::frisbee::{Body, Chunks};

use super::super::client::{Client, Config, Event};
use super::super::{Check, ChunkOf, Outgoing};
use super::*;
use crate::Shape;
use crate::directory::Directory;
use crate::order::Position;

const PEER: HostId = HostId(5);
const CHUNKS: u32 = 100;

/// A client that has joined, with the chunks that it has at the start.
fn joined(config: Config, have: &[u32]) -> Client {
    joined_for(CHUNKS, config, have)
}

fn joined_for(chunks: u32, config: Config, have: &[u32]) -> Client {
    let rng = Rng::stream(1, 0, 0, "client");
    let mut client = Client::new(config, Time::ZERO, SERVER, NAME, rng);
    client.handle_timeout(Time::ZERO);
    let Some(Outgoing { body: Body::Enter { client: number, .. }, .. }) =
        client.poll_control(Time::ZERO)
    else {
        panic!("it joins")
    };
    let entered = Body::Entered {
        client: number,
        image: IMAGE,
        index: 0,
        clients: 1,
        chunk_bytes: 1 << 20,
        bytes: Id64::new(u64::from(chunks) << 20),
    };
    client.handle_control(Time::from_ticks(1), SERVER, &entered);
    assert!(matches!(client.poll_event(), Some(Event::Joined { image: IMAGE, .. })));
    let mut set = Bitmap::new(chunks);
    for chunk in have {
        set.insert(*chunk);
    }
    client.start(Time::from_ticks(2), &set, &set);
    client
}

fn sent(client: &mut Client, now: Time) -> Vec<Body> {
    std::iter::from_fn(|| client.poll_control(now)).map(|outgoing| outgoing.body).collect()
}

fn requests(client: &mut Client, now: Time) -> Vec<u32> {
    let sent = sent(client, now);
    let first = |body: &Body| match body {
        Body::Batch(chunks) => Some(chunks.first),
        _ => None,
    };
    sent.iter().filter_map(first).collect()
}

fn of(chunk: u32) -> ChunkOf {
    ChunkOf { image: IMAGE, chunk }
}

/// A server that knows Frisbee only multicasts what others ask for as well.
#[test]
fn chunks_that_arrive_unasked_are_not_requested_unless_they_stop() {
    let rng = Rng::stream(1, 0, 0, "client");
    let config = Config { outstanding: 4, ..Config::default() };
    let mut client = Client::new(config, Time::ZERO, SERVER, b"", rng);
    let shape = Shape::new(u64::from(CHUNKS) << 20, 1 << 20).unwrap();
    client.joined(Time::ZERO, IMAGE, Position { index: 0, clients: None }, shape);
    let mut now = Time::from_ticks(1);
    assert!(!client.chunk_arriving(now, SERVER, of(1)), "it has not started");
    let mut have = Bitmap::new(CHUNKS);
    have.insert(0);
    client.start(now, &have, &have);
    let sent_first = sent(&mut client, now);
    assert!(!sent_first.iter().any(|body| matches!(body, Body::Enter { .. })), "{sent_first:?}");
    let arriving = |client: &mut Client, chunk| client.chunk_arriving(now, SERVER, of(chunk));
    assert!(!arriving(&mut client, 0) && !arriving(&mut client, CHUNKS));
    assert!(arriving(&mut client, 2), "it was requested");
    let taken = (50..CHUNKS).filter(|chunk| arriving(&mut client, *chunk)).count();
    assert_eq!(taken, 12, "memory is bounded");
    now += Span::from_ms(300);
    assert!((50..62).chain([2]).all(|chunk| client.chunk_arriving(now, SERVER, of(chunk))));
    for chunk in 50..61 {
        client.chunk_received(now, SERVER, of(chunk), Check::Verified);
    }
    for chunk in 1..5 {
        client.chunk_received(now, SERVER, of(chunk), Check::Verified);
    }
    let next = requests(&mut client, now);
    assert_eq!(next, [5, 6, 7], "one chunk is still arriving");
    now += Config::default().retry;
    client.handle_timeout(now);
    assert_eq!(requests(&mut client, now), [61], "the rest of it does not come");
    assert_eq!(client.counters().damaged, 0);
    client.chunk_damaged(now, 61);
    assert!(requests(&mut client, now).contains(&61));
}

#[test]
fn a_request_that_a_switch_sends_back_is_repeated_at_once() {
    let config = Config { outstanding: 4, ..Config::default() };
    let mut client = joined(config, &[]);
    let mut now = Time::from_ticks(10);
    let asked = requests(&mut client, now);
    assert!(asked.iter().all(|chunk| client.is_asked(*chunk)) && !client.is_asked(CHUNKS));
    now += Span::from_ms(1);
    let back = |image, first| Chunks { image, first, count: 1, tries: 0 };
    client.request_came_back(now, back(IMAGE + 1, asked[0]));
    client.request_came_back(now, back(IMAGE, asked[3] + 1));
    client.request_came_back(now, Chunks { count: u16::MAX, ..back(IMAGE, u32::MAX) });
    assert_eq!(requests(&mut client, now), [], "these are no requests of this client");
    client.request_came_back(now, back(IMAGE, asked[1]));
    assert_eq!(requests(&mut client, now), [asked[1]]);
    assert_eq!(client.counters().retries, 1);
}

#[test]
fn a_client_serves_a_peer_until_its_last_chunk_was_sent() {
    let mut client = joined(Config::default(), &[3]);
    let now = Time::from_ticks(10);
    let asked = requests(&mut client, now);
    let ask = |chunk| Body::Batch(Chunks { image: IMAGE, first: chunk, count: 1, tries: 0 });
    assert!(!client.is_serving(PEER));
    client.handle_control(now, PEER, &ask(3));
    assert!(client.is_serving(PEER));
    let _ = client.poll_send(now).unwrap();
    assert!(client.is_serving(PEER));
    client.chunk_sent(now, PEER, of(3));
    assert!(!client.is_serving(PEER));
    client.handle_control(now, HostId(4), &ask(asked[0]));
    assert!(client.is_serving(HostId(4)) && !client.is_serving(PEER), "it waits");
}

#[test]
fn a_client_whose_disk_is_slow_requests_no_more_than_its_memory_holds() {
    let config = Config { outstanding: 8, backlog: 10, ..Config::default() };
    let mut client = joined(config, &[]);
    let mut now = Time::from_ticks(10);
    let mut asked = requests(&mut client, now);
    assert_eq!(asked.len(), 8);
    let mut in_memory = Vec::new();
    for chunk in 0..10 {
        now += Span::from_ms(1);
        client.chunk_received(now, SERVER, of(chunk), Check::Verified);
        in_memory.push(client.poll_expand().unwrap());
        asked.extend(requests(&mut client, now));
        assert!(asked.len() <= 10, "{} on request or in memory", asked.len());
    }
    assert!(client.is_behind_disk());
    // For as long as the disk takes, nothing is requested, and it is not a failure.
    for _ in 0..4 {
        now += Span::from_secs(40);
        client.handle_timeout(now);
        assert!(requests(&mut client, now).is_empty());
        client.written(now, in_memory.pop().unwrap());
        let [chunk] = requests(&mut client, now)[..] else { panic!("one chunk is requested") };
        client.chunk_received(now, SERVER, of(chunk), Check::Verified);
        in_memory.push(client.poll_expand().unwrap());
        assert!(requests(&mut client, now).is_empty());
    }
    assert_eq!(client.poll_event(), None);
}

#[test]
fn a_chunk_that_cannot_be_sent_any_more_is_returned_and_withdrawn() {
    let mut client = joined(Config::default(), &[0, 1, 2]);
    let now = Time::from_ticks(10);
    sent(&mut client, now);
    let asks = |first| Body::Batch(Chunks { image: IMAGE, first, count: 1, tries: 0 });
    client.handle_control(now, PEER, &asks(1));
    let send = client.poll_send(now).unwrap();
    client.chunk_unavailable(now, send.peer, send.what);
    let after = sent(&mut client, now);
    let returned = Chunks { image: IMAGE, first: 1, count: 1, tries: 0 };
    assert!(
        after.iter().any(|body| matches!(body, Body::Return { chunks, .. } if *chunks == returned))
    );
    let report = after.iter().find(|body| matches!(body, Body::Report { .. })).unwrap();
    let mut map = Vec::new();
    client.payload(report, &mut map);
    assert_eq!(map[0], 0b101, "it is not offered any more");
    assert!(client.have().contains(1), "and it is not fetched a second time");
    client.handle_control(now, PEER, &asks(1));
    assert_eq!(client.poll_send(now), None);
    assert!(matches!(sent(&mut client, now)[..], [Body::Return { .. }]));
    client.handle_control(now, PEER, &asks(2));
    assert_eq!(client.poll_send(now).map(|send| send.what), Some(of(2)));
}

#[test]
fn a_report_has_a_bit_for_each_chunk_of_its_window_lowest_first() {
    let client = joined_for(8_192 + 3, Config::default(), &[0, 9, 8_191, 8_194]);
    let map = |window| {
        let mut map = Vec::new();
        client.payload(&Body::Report { image: IMAGE, window }, &mut map);
        assert_eq!(map.len(), 1_024);
        map
    };
    let first = map(0);
    assert_eq!((first[0], first[1], first[1_023]), (1, 2, 0x80));
    assert_eq!((map(1)[0], first.iter().map(|byte| byte.count_ones()).sum::<u32>()), (4, 3));
    for beyond in [2, u32::MAX] {
        assert!(map(beyond).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_client_that_does_not_serve_offers_nothing() {
    let mut client = joined(Config::default(), &[0, 1, 2]);
    client.withhold_all();
    let mut map = Vec::new();
    client.payload(&Body::Report { image: IMAGE, window: 0 }, &mut map);
    assert!(map.iter().all(|byte| *byte == 0));
    sent(&mut client, Time::from_ticks(10));
    let asks = Body::Batch(Chunks { image: IMAGE, first: 0, count: 3, tries: 0 });
    client.handle_control(Time::from_ticks(10), PEER, &asks);
    assert_eq!(client.poll_send(Time::from_ticks(10)), None);
    assert!(matches!(
        sent(&mut client, Time::from_ticks(10))[..],
        [Body::Return { chunks: Chunks { first: 0, count: 3, .. }, .. }]
    ));
}

/// The reports that a client sends now, as a directory takes them.
fn report_to(directory: &mut Directory, client: &mut Client, now: Time) -> Vec<u32> {
    let mut windows = Vec::new();
    for body in sent(client, now) {
        if let Body::Report { window, .. } = body {
            let mut map = Vec::new();
            client.payload(&body, &mut map);
            assert!(directory.report(now, IMAGE, PEER, window, &map));
            windows.push(window);
        }
    }
    windows
}

#[test]
fn a_client_that_starts_again_without_its_chunks_withdraws_them_in_all_windows() {
    let (chunks, last) = (20_000, 19_999);
    let mut directory = Directory::new(directory::Config::default());
    let mut before = joined_for(chunks, Config::default(), &[1, 9000, last]);
    assert_eq!(report_to(&mut directory, &mut before, Time::from_ticks(10)), [0, 1, 2]);
    assert_eq!(directory.holders(IMAGE, 9000), [PEER]);
    // Only the last chunk is still on its disk.
    let mut after = joined_for(chunks, Config::default(), &[last]);
    assert_eq!(report_to(&mut directory, &mut after, Time::from_ticks(20)), [0, 1, 2]);
    let holders = [1, 9000, last].map(|chunk| directory.holders(IMAGE, chunk).len());
    assert_eq!(holders, [0, 0, 1]);
    // If the report of a window without a chunk is lost, a later one replaces it.
    assert!(directory.report(Time::from_ticks(30), IMAGE, PEER, 1, &[0xff; 1024]));
    let mut now = Time::from_ticks(30);
    for _ in 0..3 {
        now += Config::default().keepalive;
        after.handle_timeout(now);
        report_to(&mut directory, &mut after, now);
    }
    assert!(directory.holders(IMAGE, 9000).is_empty());
}
