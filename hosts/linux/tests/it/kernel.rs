//! Endpoints over the kernel's TCP, on loopback.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use bytes::Bytes;
use rackweave_core::{FailReason, HostId, Kind, Refused, Span, Time};
use rackweave_linux::{
    AnyEndpoint, Clock, Event, Peers, SendError, TcpConfig, TcpEndpoint, TcpError, wait_any,
};
use rackweave_testing::{bind_again, free_address};

const LOCAL: &str = "127.0.0.1:0";
/// Long, because a thread may compete with other tests for the processor.
const PATIENCE: Span = Span::from_secs(60);

fn config(host: u32, clock: Clock, bind: SocketAddr) -> TcpConfig {
    let allow = vec!["127.0.0.1".parse().unwrap()];
    let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
    TcpConfig { clock, ..TcpConfig::new(HostId(host), bind, peers) }
}

/// Creates a client and a server.
fn pair_with(change: impl Fn(TcpConfig) -> TcpConfig) -> [AnyEndpoint; 2] {
    let clock = Clock::start();
    [0, 1].map(|host| {
        let config = change(config(host, clock, free_address()));
        TcpEndpoint::new(config).unwrap().into()
    })
}

fn pair() -> [AnyEndpoint; 2] {
    pair_with(|config| config)
}

/// Drives all endpoints until `done` returns true.
fn drive(ends: &mut [AnyEndpoint], mut done: impl FnMut(&mut [AnyEndpoint]) -> bool) {
    let clock = ends[0].clock();
    let until = clock.now() + PATIENCE;
    loop {
        let mut next = clock.now() + Span::from_ms(20);
        for end in &mut *ends {
            next = next.min(end.turn().unwrap().unwrap_or(Time::MAX));
        }
        if done(ends) {
            return;
        }
        assert!(clock.now() < until, "{:?} {:?}", ends[0].stats(), ends.last().unwrap().stats());
        wait_any(ends, Some(next)).unwrap();
    }
}

fn bytes(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Answers requests with their bytes in reverse order.
fn serve(end: &mut AnyEndpoint) {
    while let Some(event) = end.poll_event() {
        if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
            let answer = Bytes::from(bytes.iter().map(|b| !b).collect::<Vec<_>>());
            end.respond(peer, id, answer).unwrap();
        }
    }
}

#[test]
fn requests_are_answered() {
    for connections_per_peer in [1, 3] {
        let mut ends = pair_with(|config| TcpConfig { connections_per_peer, ..config });
        let address = ends[1].local_addr();
        let server = ends[0].add_peer(address);
        let sizes = [1, 100, 1500, 20_000, 300_000, 5_000_000];
        for len in sizes {
            ends[0].send(server, Kind::Request, bytes(len)).unwrap();
        }
        let mut answers = Vec::new();
        drive(&mut ends, |ends| {
            serve(&mut ends[1]);
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Message { kind: Kind::Response, bytes, .. } => answers.push(bytes),
                    other => panic!("{other:?}"),
                }
            }
            answers.len() == sizes.len()
        });
        answers.sort_by_key(Bytes::len);
        for (answer, len) in answers.iter().zip(sizes) {
            let expected: Vec<u8> = bytes(len).iter().map(|b| !b).collect();
            assert!(answer[..] == expected, "{len} bytes");
        }
        assert_eq!([ends[0].memory(), ends[1].memory()], [(0, 0); 2]);
        let AnyEndpoint::Kernel(client) = &ends[0] else { unreachable!() };
        assert_eq!(client.connections().made, u64::from(connections_per_peer));
    }
}

/// An edge-triggered event loop, as tokio's: it receives only after an edge, or if the last turn says that it has left something.
#[test]
fn an_edge_triggered_loop_misses_nothing() {
    use rustix::event::{Timespec, epoll};
    const CALLS: usize = 40;
    let mut ends = pair_with(|config| TcpConfig { connections_per_peer: 4, ..config });
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for (end, number) in ends.iter().zip(0..) {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&events, end, epoll::EventData::new_u64(number), flags).unwrap();
    }
    let clock = ends[0].clock();
    let until = clock.now() + PATIENCE;
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    // Longer than what one call writes or one turn reads.
    let request = bytes(3_000_000);
    let (mut made, mut answered) = (0, 0);
    let mut edges = [false; 2];
    while answered < CALLS {
        assert!(clock.now() < until, "{answered} of {made}: {:?}", ends[1].arriving());
        while made < CALLS && made - answered < 4 {
            ends[0].send(server, Kind::Request, request.clone()).unwrap();
            made += 1;
        }
        let mut next = clock.now() + Span::from_secs(1);
        for (end, edge) in ends.iter_mut().zip(&mut edges) {
            let receive = std::mem::take(edge) || end.left_to_receive();
            let due = if receive { end.turn() } else { end.send_turn() };
            next = next.min(due.unwrap().unwrap_or(Time::MAX));
        }
        while let Some(event) = ends[0].poll_event() {
            answered += usize::from(matches!(event, Event::Message { .. }));
        }
        serve(&mut ends[1]);
        for end in &mut ends {
            next = next.min(end.send_turn().unwrap().unwrap_or(Time::MAX));
        }
        if ends.iter().any(AnyEndpoint::left_to_receive) || answered == made {
            next = clock.now();
        }
        let wait = next.since(clock.now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.as_ns().min(999_999_999) as i64 };
        let mut ready = Vec::with_capacity(2);
        epoll::wait(&events, rustix::buffer::spare_capacity(&mut ready), Some(&timeout)).unwrap();
        for event in ready {
            edges[event.data.u64() as usize] = true;
        }
    }
}

#[test]
fn messages_and_responses_are_confirmed() {
    let mut ends = pair();
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let one_way = ends[0].send(server, Kind::OneWay, bytes(100_000)).unwrap();
    let request = ends[0].send(server, Kind::Request, bytes(10)).unwrap();
    let (mut sent, mut arrived) = (Vec::new(), Vec::new());
    drive(&mut ends, |ends| {
        while let Some(event) = ends[1].poll_event() {
            match event {
                Event::Message { peer, id, kind: Kind::Request, .. } => {
                    ends[1].respond(peer, id, bytes(20)).unwrap();
                    let again = ends[1].respond(peer, id, bytes(20));
                    assert_eq!(again, Err(SendError::Refused(Refused::UnknownRequest)));
                }
                Event::Message { id, bytes, .. } => arrived.push((id, bytes.len())),
                Event::Sent { id, .. } => sent.push(id),
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = ends[0].poll_event() {
            match event {
                Event::Sent { id, .. } => sent.push(id),
                Event::Message { id, bytes, .. } => arrived.push((id, bytes.len())),
                other => panic!("{other:?}"),
            }
        }
        sent.len() == 2 && arrived.len() == 2
    });
    sent.sort();
    assert_eq!(sent, [one_way, request.response()]);
    arrived.sort();
    assert_eq!(arrived, [(one_way, 100_000), (request.response(), 20)]);
}

#[test]
fn a_stream_carries_megabytes_in_bounded_memory() {
    const TOTAL: usize = 64 << 20;
    let mut ends = pair();
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    // The second message reuses the connection of the first.
    for _ in 0..2 {
        let stream = ends[0].open(server, Time::MAX).unwrap();
        let block = bytes(251 * 1024);
        let (mut written, mut read, mut closed) = (0, 0, [false; 2]);
        drive(&mut ends, |ends| {
            while written < TOTAL && ends[0].unacknowledged(server, stream) < 4 << 20 {
                let piece = block.slice(..block.len().min(TOTAL - written));
                written += piece.len();
                ends[0].write(server, stream, piece, written == TOTAL).unwrap();
            }
            while let Some(event) = ends[1].poll_event() {
                match event {
                    Event::Readable { peer, id, pieces, end } => {
                        for piece in pieces {
                            let at = read % block.len();
                            let known = block.len().min(at + piece.len()) - at;
                            assert!(piece[..known] == block[at..at + known], "at {read}");
                            assert!(piece[known..] == block[..piece.len() - known]);
                            read += piece.len();
                            ends[1].consume(peer, id, piece.len() as u64);
                        }
                        if end {
                            ends[1].write(peer, id.response(), Bytes::new(), true).unwrap();
                        }
                    }
                    Event::Failed { reason, .. } => panic!("{reason}"),
                    Event::Closed { .. } => closed[1] = true,
                    _ => {}
                }
            }
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Failed { reason, .. } => panic!("{reason}"),
                    Event::Closed { .. } => closed[0] = true,
                    _ => {}
                }
            }
            assert!(ends[1].memory().1 < 8 << 20 && ends[0].memory().0 < 8 << 20);
            closed == [true; 2]
        });
        assert_eq!(read, TOTAL);
        assert_eq!([ends[0].memory(), ends[1].memory()], [(0, 0); 2]);
        let late = ends[0].write(server, stream, bytes(1), false);
        assert_eq!(late, Err(SendError::Refused(Refused::Ended)));
    }
    let AnyEndpoint::Kernel(client) = &ends[0] else { unreachable!() };
    assert_eq!(client.connections().made, 1);
}

#[test]
fn who_does_not_consume_stops_the_writer() {
    const WINDOW: u64 = 256 << 10;
    let mut ends = pair_with(|config| TcpConfig { stream_window: WINDOW, ..config });
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let stream = ends[0].open(server, Time::MAX).unwrap();
    let (mut written, mut delivered, mut reader) = (0_u64, 0, None);
    let block = bytes(64 << 10);
    let clock = ends[0].clock();
    let mut since = clock.now();
    drive(&mut ends, |ends| {
        while ends[0].unacknowledged(server, stream) < 1 << 20 {
            ends[0].write(server, stream, block.clone(), false).unwrap();
            written += block.len() as u64;
            since = clock.now();
        }
        while ends[0].poll_event().is_some() {}
        while let Some(event) = ends[1].poll_event() {
            if let Event::Readable { peer, id, pieces, .. } = event {
                delivered += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
                reader = Some((peer, id));
            }
        }
        // Everything that can arrive has arrived, and nothing more for some time.
        delivered >= WINDOW && clock.now().since(since) > Span::from_ms(300)
    });
    assert!((WINDOW..=WINDOW + (192 << 10)).contains(&delivered), "{delivered}");
    // How much the kernel buffers between the two varies, but it is not much.
    assert!(written < 32 << 20, "{written}");
    // Another message still arrives, and the stream continues when its bytes are consumed.
    let small = ends[0].send(server, Kind::Request, bytes(5)).unwrap();
    let mut answered = false;
    let (peer, id) = reader.unwrap();
    ends[1].consume(peer, id, delivered);
    let before = delivered;
    drive(&mut ends, |ends| {
        while let Some(event) = ends[1].poll_event() {
            match event {
                Event::Message { peer, id, .. } => ends[1].respond(peer, id, bytes(5)).unwrap(),
                Event::Readable { pieces, .. } => {
                    delivered += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = ends[0].poll_event() {
            answered |= matches!(event, Event::Message { id, .. } if id == small.response());
        }
        answered && delivered > before
    });
}

#[test]
fn a_stream_is_cancelled_and_has_a_deadline() {
    let mut ends = pair();
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let cancelled = ends[0].open(server, Time::MAX).unwrap();
    ends[0].write(server, cancelled, bytes(100_000), false).unwrap();
    // The other end must have been notified by then.
    let at = ends[0].clock().now() + Span::from_secs(2);
    let late = ends[0].open(server, at).unwrap();
    ends[0].write(server, late, bytes(100), false).unwrap();
    let mut fates = Vec::new();
    let mut seen = 0;
    drive(&mut ends, |ends| {
        for index in [0, 1] {
            while let Some(event) = ends[index].poll_event() {
                match event {
                    Event::Failed { id, reason, .. } => fates.push((index, id, reason)),
                    Event::Readable { .. } => seen += 1,
                    Event::Opened { .. } | Event::Written { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        if seen > 0 {
            ends[0].cancel(server, cancelled);
        }
        fates.len() == 3
    });
    fates.sort_by_key(|fate| (fate.1, fate.0));
    let expected = [
        (1, cancelled, FailReason::Cancelled),
        (0, late, FailReason::Deadline),
        (1, late, FailReason::Deadline),
    ];
    assert_eq!(fates, expected);
    let gone = |end: &AnyEndpoint| {
        let AnyEndpoint::Kernel(end) = end else { unreachable!() };
        end.memory() == (0, 0) && end.connections().open == 0
    };
    drive(&mut ends, |ends| ends.iter().all(gone));
}

#[test]
fn a_cancelled_request_is_withdrawn() {
    let mut ends = pair_with(|config| TcpConfig { connections_per_peer: 1, ..config });
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let first = ends[0].send(server, Kind::Request, bytes(1000)).unwrap();
    let never = ends[0].send(server, Kind::Request, bytes(2000)).unwrap();
    ends[0].cancel(server, never);
    let mut dropped = None;
    drive(&mut ends, |ends| {
        while let Some(event) = ends[1].poll_event() {
            match event {
                Event::Message { id, bytes, .. } => {
                    assert_eq!((id, bytes.len()), (first, 1000));
                    ends[0].cancel(server, first);
                }
                Event::Failed { id, reason, .. } => dropped = Some((id, reason)),
                other => panic!("{other:?}"),
            }
        }
        assert!(ends[0].poll_event().is_none());
        dropped.is_some()
    });
    assert_eq!(dropped, Some((first, FailReason::Cancelled)));
}

#[test]
fn a_restarted_server_is_served_again() {
    let clock = Clock::start();
    let mut ends = pair();
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let round = |ends: &mut [AnyEndpoint], expected: Result<(), FailReason>| {
        let id = ends[0].send(server, Kind::Request, bytes(3000)).unwrap();
        let (mut fate, mut restarted) = (None, false);
        drive(ends, |ends| {
            if let Some(end) = ends.get_mut(1) {
                serve(end);
            }
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Message { .. } => fate = Some(Ok(())),
                    Event::Failed { id: failed, reason, .. } if failed == id => {
                        fate = Some(Err(reason));
                    }
                    Event::PeerRestarted { .. } => restarted = true,
                    other => panic!("{other:?}"),
                }
            }
            fate.is_some()
        });
        assert_eq!(fate, Some(expected));
        restarted
    };
    assert!(!round(&mut ends, Ok(())));
    let [client, old] = ends;
    drop(old);
    let mut alone = [client];
    // The server no longer listens.
    assert!(!round(&mut alone, Err(FailReason::PeerSilent)));
    let [client] = alone;
    let new = bind_again(|| TcpEndpoint::new(config(1, clock, address))).unwrap();
    let mut ends = [client, new.into()];
    assert!(round(&mut ends, Ok(())));
}

#[test]
fn a_server_that_dies_in_mid_message_fails_what_it_had() {
    let mut ends = pair();
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let small = ends[0].send(server, Kind::Request, bytes(10)).unwrap();
    let mut got_small = false;
    drive(&mut ends, |ends| {
        while let Some(event) = ends[1].poll_event() {
            got_small |= matches!(event, Event::Message { .. });
        }
        got_small
    });
    let large = ends[0].send(server, Kind::Request, bytes(100 << 20)).unwrap();
    let stream = ends[0].open(server, Time::MAX).unwrap();
    ends[0].write(server, stream, bytes(100), false).unwrap();
    drive(&mut ends, |ends| ends[1].memory().1 > 1 << 20);
    let [client, server_end] = ends;
    drop(server_end);
    let mut alone = [client];
    let mut failed = Vec::new();
    drive(&mut alone, |ends| {
        while let Some(event) = ends[0].poll_event() {
            if let Event::Failed { id, reason, .. } = event {
                failed.push((id, reason));
            }
        }
        failed.len() == 3
    });
    failed.sort_by_key(|failed| failed.0);
    assert_eq!(failed, [small, large, stream].map(|id| (id, FailReason::PeerForgot)));
    assert_eq!(alone[0].memory(), (0, 0));
}

#[test]
fn a_peer_that_accepts_connections_and_stays_silent_is_given_up() {
    let listener = TcpListener::bind(LOCAL).unwrap();
    let mut ends = pair_with(|config| TcpConfig { silence: Span::from_ms(400), ..config });
    let mute = ends[0].add_peer(listener.local_addr().unwrap());
    let id = ends[0].send(mute, Kind::Request, bytes(100)).unwrap();
    let mut fate = None;
    drive(&mut ends, |ends| {
        while let Some(event) = ends[0].poll_event() {
            if let Event::Failed { id, reason, .. } = event {
                fate = Some((id, reason));
            }
        }
        fate.is_some()
    });
    assert_eq!(fate, Some((id, FailReason::PeerSilent)));
}

#[test]
fn strangers_and_noise_cost_their_connection() {
    let clock = Clock::start();
    let peers = Peers::Direct { hosts: BTreeMap::new(), allow: vec![] };
    let closed = TcpConfig { peers, ..config(0, clock, LOCAL.parse().unwrap()) };
    let open = config(1, clock, LOCAL.parse().unwrap());
    let mut ends =
        [closed, open].map(|config| AnyEndpoint::from(TcpEndpoint::new(config).unwrap()));
    let ends_of = |socket: &mut TcpStream| {
        socket.set_nonblocking(true).unwrap();
        match socket.read(&mut [0; 64]) {
            Ok(0) => true,
            Ok(_) => panic!("an answer"),
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    let mut sockets = [0, 1].map(|index| TcpStream::connect(ends[index].local_addr()).unwrap());
    for socket in &mut sockets {
        // The connection may be closed before this write.
        let _ = socket.write_all(&[b'x'; 100]);
    }
    let mut over = [false; 2];
    drive(&mut ends, |_| {
        for (over, socket) in over.iter_mut().zip(&mut sockets) {
            *over = *over || ends_of(socket);
        }
        over == [true; 2]
    });
    assert_eq!(ends[0].stats().foreign, 1);
    assert_eq!(ends[1].stats().malformed, 1);
    // A client that the endpoint does not admit gets an error.
    let address = ends[0].local_addr();
    let unwilling = ends[1].add_peer(address);
    ends[1].send(unwilling, Kind::Request, bytes(10)).unwrap();
    let mut fate = None;
    drive(&mut ends, |ends| {
        while let Some(event) = ends[1].poll_event() {
            if let Event::Failed { reason, .. } = event {
                fate = Some(reason);
            }
        }
        fate.is_some()
    });
    assert_eq!(fate, Some(FailReason::PeerSilent));
}

#[test]
fn little_memory_makes_senders_wait_and_all_arrives() {
    const LEN: usize = 3 << 20;
    let mut ends =
        pair_with(|config| TcpConfig { send_bytes: 10 << 20, receive_bytes: 4 << 20, ..config });
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let (mut sent, mut arrived, mut full) = (0, 0, false);
    let message = bytes(LEN);
    drive(&mut ends, |ends| {
        while sent < 40 {
            match ends[0].send(server, Kind::OneWay, message.clone()) {
                Ok(_) => sent += 1,
                Err(SendError::Full { .. }) => {
                    full = true;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(ends[1].memory().1 <= 4 << 20);
        while ends[0].poll_event().is_some() {}
        while let Some(event) = ends[1].poll_event() {
            let Event::Message { bytes, .. } = event else { panic!("{event:?}") };
            assert!(bytes == message);
            arrived += 1;
        }
        arrived == 40
    });
    assert!(full && ends[1].stats().no_room > 0);
    assert_eq!(ends[1].memory(), (0, 0));
}

#[test]
fn refusals_say_why() {
    let mut ends = pair_with(|config| TcpConfig { max_message_bytes: 1000, ..config });
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let refused = |refused| Err(SendError::Refused(refused));
    let long = ends[0].send(server, Kind::Request, bytes(1001));
    assert_eq!(long, refused(Refused::TooLong { max: 1000 }));
    assert_eq!(ends[0].send(server, Kind::Request, Bytes::new()), refused(Refused::Empty));
    let unknown = ends[0].send(HostId(77), Kind::OneWay, bytes(1));
    assert_eq!(unknown, Err(SendError::UnknownPeer(HostId(77))));
    let clock = Clock::start();
    let wrong = TcpConfig {
        congestion: Some("nonesuch".into()),
        ..config(0, clock, LOCAL.parse().unwrap())
    };
    let error = TcpEndpoint::new(wrong).unwrap_err();
    assert!(matches!(error, TcpError::Congestion { .. }));
    assert!(
        error.to_string().contains("nonesuch") && error.to_string().contains("reno"),
        "{error}"
    );
    let peers = Peers::Switch { port: LOCAL.parse().unwrap(), hosts: 2 };
    let switched = TcpConfig { peers, ..config(0, clock, LOCAL.parse().unwrap()) };
    assert!(matches!(TcpEndpoint::new(switched), Err(TcpError::Switch)));
}

#[test]
fn with_a_congestion_control_of_its_own() {
    let mut ends = pair_with(|config| TcpConfig { congestion: Some("reno".into()), ..config });
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    // Every kernel has this congestion control.
    ends[0].send(server, Kind::Request, bytes(1)).unwrap();
    let mut answered = false;
    drive(&mut ends, |ends| {
        serve(&mut ends[1]);
        answered |= ends[0].poll_event().is_some();
        answered
    });
}

#[test]
fn connections_that_say_nothing_keep_no_client_out() {
    let mut ends = pair_with(|config| TcpConfig { max_accepted: 16, ..config });
    let address = ends[1].local_addr();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).unwrap());
        ends[1].turn().unwrap();
    }
    let server = ends[0].add_peer(address);
    for _ in 0..3 {
        ends[0].send(server, Kind::Request, bytes(100)).unwrap();
        let mut event = None;
        drive(&mut ends, |ends| {
            serve(&mut ends[1]);
            event = ends[0].poll_event();
            event.is_some()
        });
        let is_answer = matches!(event, Some(Event::Message { kind: Kind::Response, .. }));
        assert!(is_answer, "{event:?}");
    }
    // What is in use is not closed for newcomers, and the oldest of what is not is.
    assert!(silent[0].read(&mut [0; 1]).is_ok_and(|count| count == 0));
}

#[test]
fn streams_of_one_host_keep_no_other_out() {
    let clock = Clock::start();
    let mut ends: [AnyEndpoint; 3] = [1, 2, 3].map(|last: u8| {
        let allow = vec!["127.0.0.0/8".parse().unwrap()];
        let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
        let bind = SocketAddr::from(([127, 0, 0, last], 0));
        let config = TcpConfig::new(HostId(last.into()), bind, peers);
        TcpEndpoint::new(TcpConfig { clock, max_accepted: 16, ..config }).unwrap().into()
    });
    let address = ends[0].local_addr();
    let at = |end: &mut AnyEndpoint| end.add_peer(address);
    let (flooder, client) = (at(&mut ends[1]), at(&mut ends[2]));
    let open = |ends: &[AnyEndpoint]| {
        let AnyEndpoint::Kernel(server) = &ends[0] else { unreachable!() };
        server.connections().open
    };
    let failures = |end: &mut AnyEndpoint| {
        let events = std::iter::from_fn(|| end.poll_event());
        events.filter(|event| matches!(event, Event::Failed { .. })).count()
    };
    for _ in 0..20 {
        ends[1].open(flooder, Time::MAX).unwrap();
    }
    let mut failed = 0;
    drive(&mut ends, |ends| {
        serve(&mut ends[0]);
        failed += failures(&mut ends[1]);
        failed == 6 && open(ends) == 14
    });
    // Another host has a place, and keeps it when the flood goes on.
    for _ in 0..3 {
        ends[2].send(client, Kind::Request, bytes(100)).unwrap();
        ends[1].open(flooder, Time::MAX).unwrap();
        let mut answered = false;
        drive(&mut ends, |ends| {
            serve(&mut ends[0]);
            failed += failures(&mut ends[1]);
            answered |=
                matches!(ends[2].poll_event(), Some(Event::Message { kind: Kind::Response, .. }));
            answered && open(ends) == 14
        });
    }
    drive(&mut ends, |ends| {
        failed += failures(&mut ends[1]);
        failed == 10
    });
    let AnyEndpoint::Kernel(other) = &ends[2] else { unreachable!() };
    assert_eq!((other.connections().made, other.connections().lost), (1, 0));
    // It has as much as the flooder at most.
    for _ in 0..20 {
        ends[2].open(client, Time::MAX).unwrap();
    }
    let mut refused = 0;
    drive(&mut ends, |ends| {
        serve(&mut ends[0]);
        failed += failures(&mut ends[1]);
        refused += failures(&mut ends[2]);
        failed == 16 && refused == 13 && open(ends) == 14
    });
}
