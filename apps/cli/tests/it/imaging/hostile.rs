//! Hosts that lie: to clients, to the server, and in the name of others.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rackweave_wire::frisbee::{Body, Chunks, Header, REPORT_MAP_BYTES, encode};
use socket2::{Domain, Protocol, Socket, Type};

use super::{Place, Process, SERVER, chunks};
use crate::common::until;

const SLOW: [&str; 2] = ["--rate", "40 Mbps"];

/// The first four bytes of the root are the image's number.
fn number(place: &Place) -> u32 {
    let output = place.command(&["inspect", "golden.rwi", "--json"]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let root = shown["root"].as_str().unwrap();
    let bytes = [0, 2, 4, 6].map(|at| u8::from_str_radix(&root[at..at + 2], 16).unwrap());
    u32::from_le_bytes(bytes).max(1)
}

/// Begins a connection for chunks without a key.
fn hello(from: Ipv4Addr, to: SocketAddrV4) -> TcpStream {
    hello_for(2, from, to)
}

/// Begins a connection for a purpose: 1 for a session, 2 for chunks.
fn hello_for(purpose: u8, from: Ipv4Addr, to: SocketAddrV4) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.bind(&SocketAddrV4::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut hello = [0; 32];
    hello[..8].copy_from_slice(b"RWimage2");
    hello[8] = purpose;
    stream.write_all(&hello).unwrap();
    let mut reply = [0; 48];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[8], 0, "the connection is accepted");
    stream.write_all(&[0; 16]).unwrap();
    let mut status = [1];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(status, [0]);
    stream
}

fn chunk(image: u32, chunk: u32, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    for word in [image, chunk, bytes.len() as u32, 0] {
        frame.extend_from_slice(&word.to_le_bytes());
    }
    frame.extend_from_slice(bytes);
    frame
}

#[test]
fn a_host_that_sends_damaged_chunks_is_refused_and_named() {
    let place = Place::new(256);
    let image = number(&place);
    let server = place.serve(&SLOW);
    let mut client = place.fetch(2, &[]);
    client.event("joined");
    let to = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), place.port);
    let from = Ipv4Addr::new(127, 0, 0, 8);
    // The client listens when it has opened its target.
    until("the client listens", || TcpStream::connect(to).is_ok());
    // It learns the number of the image from the server.
    until("the client has joined", || {
        let mut stream = hello(from, to);
        stream.write_all(&chunk(image, 255, &[7; 1 << 16])).is_ok()
            && stream.read_exact(&mut [0; 12]).is_ok()
    });
    let damaged = client.event("damaged");
    assert_eq!((&damaged["holder"], &damaged["chunk"]), (&"127.0.0.8".into(), &255.into()));
    assert_eq!(client.end(), 0, "{:?}", client.events);
    assert!(place.is_complete(2, "disk"));
    server.interrupted();
}

#[test]
fn frames_that_do_not_fit_the_image_close_the_connection_and_do_no_harm() {
    let place = Place::new(256);
    let image = number(&place);
    let server = place.serve(&SLOW);
    let mut client = place.fetch(2, &[]);
    let to = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), place.port);
    until("the client listens", || TcpStream::connect(to).is_ok());
    let from = Ipv4Addr::new(127, 0, 0, 8);
    let frames = [
        chunk(image, 1 << 30, &[0; 100]),
        chunk(image, 3, &[0; 100]),
        chunk(image ^ 1, 3, &[0; 1 << 16]),
        [&chunk(image, 3, &[])[..8], &u32::MAX.to_le_bytes(), &[0; 4]].concat(),
        vec![0xff; 16],
    ];
    for frame in frames {
        let mut stream = hello(from, to);
        stream.write_all(&frame).unwrap();
        let mut rest = Vec::new();
        // Closed, perhaps with a reset, and without a reply.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
    // What never says anything, or half of a hello.
    let _silent = TcpStream::connect(to).unwrap();
    let mut half = TcpStream::connect(to).unwrap();
    half.write_all(b"RWimage2").unwrap();
    let mut garbage =
        TcpStream::connect(SocketAddrV4::new(Ipv4Addr::LOCALHOST, place.port)).unwrap();
    garbage.write_all(&[0xff; 4096]).unwrap();
    assert_eq!(client.end(), 0, "{:?}", client.events);
    assert!(place.is_complete(2, "disk"));
    server.interrupted();
}

/// Sends a control message from an address with the session's port.
fn forge(socket: &Socket, from: [u8; 4], port: u16, body: Body, payload: &[u8]) {
    let mut message = Vec::new();
    encode(&Header { source: from, body }, &mut message);
    message.extend_from_slice(payload);
    let mut packet = vec![0; 28];
    let (total, udp) = ((28 + message.len()) as u16, (8 + message.len()) as u16);
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    (packet[8], packet[9]) = (64, 17);
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&[127, 0, 0, 1]);
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    packet[22..24].copy_from_slice(&port.to_be_bytes());
    packet[24..26].copy_from_slice(&udp.to_be_bytes());
    // No UDP checksum; the kernel computes that of IP.
    packet.extend_from_slice(&message);
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    socket.send_to(&packet, &to.into()).unwrap();
}

#[test]
fn forged_reports_and_leaves_delay_and_do_no_harm() {
    // Raw sockets; who may make namespaces may use them.
    rackweave_testing::needs!(NetAdmin);
    let place = Place::new(256);
    let image = number(&place);
    let server = place.serve(&SLOW);
    let mut clients: Vec<Process> = (2..5).map(|client| place.fetch(client, &[])).collect();
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))).unwrap();
    socket.set_header_included_v4(true).unwrap();
    // Everything is claimed to be at 127.0.0.3, 127.0.0.2 leaves again and again, and a host without session reports.
    for round in 0..200 {
        let all = [0xff; REPORT_MAP_BYTES as usize];
        forge(&socket, [127, 0, 0, 3], place.port, Body::Report { image, window: 0 }, &all);
        forge(&socket, [127, 0, 0, 7], place.port, Body::Report { image, window: 0 }, &all);
        forge(&socket, [127, 0, 0, 2], place.port, Body::Exit { client: round, image }, &[]);
        let batch = Chunks { image, first: round, count: 9000, tries: 0 };
        forge(&socket, [127, 0, 0, 4], place.port, Body::Batch(batch), &[]);
        std::thread::yield_now();
    }
    for (client, process) in (2..5).zip(&mut clients) {
        assert_eq!(process.end(), 0, "{:?}", process.events);
        assert!(place.is_complete(client, "disk"));
    }
    let ended = server.interrupted();
    assert!(chunks(&ended, "refused") > 0, "a stranger's messages are counted: {ended}");
}

/// Sends forged messages to clients from another host of the same network until it is stopped, at least for as long as clients run.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Flood {
    fn start(port: u16, image: u32, session: Option<u64>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let own = Ipv4Addr::new(127, 0, 0, 7);
        let socket = UdpSocket::bind((own, port)).unwrap();
        let flood = move || {
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                for (to, victim) in [(2, 3), (3, 2), (2, 2), (3, 3)] {
                    let first = (sent * 7 % 256) as u32;
                    let chunks = Chunks { image, first, count: 64, tries: 0 };
                    let requester = [127, 0, 0, victim];
                    for body in [
                        Body::Return { chunks, requester },
                        Body::Redirect { chunks, requester },
                        Body::Batch(chunks),
                    ] {
                        let mut message = Vec::new();
                        encode(&Header { source: own.octets(), body }, &mut message);
                        message.extend(session.iter().flat_map(|it| it.to_le_bytes()));
                        // Before the client listens, nobody is there.
                        let sent_to =
                            socket.send_to(&message, (Ipv4Addr::new(127, 0, 0, to), port));
                        sent += u64::from(sent_to.is_ok());
                    }
                }
            }
            sent
        };
        Self { stop, thread: std::thread::spawn(flood) }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Two clients fetch during a flood. Returns the `written` events.
fn fetched_during_a_flood(place: &Place, session: Option<u64>) -> [serde_json::Value; 2] {
    let flood = Flood::start(place.port, number(place), session);
    let mut clients = [2, 3].map(|client| place.fetch(client, &[]));
    let written = clients.each_mut().map(|client| {
        assert_eq!(client.end(), 0, "{:?}", client.events);
        client.found("written").unwrap()
    });
    assert!(!flood.thread.is_finished(), "the flood has outlasted the clients");
    assert!(flood.stop() > 10_000);
    assert!(place.is_complete(2, "disk") && place.is_complete(3, "disk"));
    written
}

#[test]
fn a_flood_of_forged_requests_does_not_reach_clients_that_no_switch_serves() {
    let place = Place::new(256);
    let server = place.serve(&SLOW);
    for written in fetched_during_a_flood(&place, None) {
        // The kernel drops what does not come from the server, except before the client knows that it may.
        assert!(chunks(&written, "refused") < 5000, "{written}");
        assert!(chunks(&written, "duplicates") <= 16, "{written}");
    }
    let ended = server.interrupted();
    let sent = chunks(&ended, "chunks_sent");
    assert!(sent <= 400, "{sent} chunks for 2 clients with 256 each");
}

/// Behind a switch, requests come from any host. One that may fetch knows the number of the session.
#[test]
fn a_flood_by_a_member_makes_holders_ignore_the_victim_and_no_client_wait() {
    let place = Place::new(256);
    let server = place.serve(&[&SLOW[..], &["--switch"]].concat());
    let session = session(&place);
    for written in fetched_during_a_flood(&place, Some(session)) {
        let unwanted = chunks(&written, "duplicates");
        // Of a holder as many as are wanted from it, 8 each time that it does not ignore the victim (after 1 s, 3 s, 7
        // s and so on), and chunks that the client itself has requested a second time.
        let from = written["from"].as_object().unwrap().iter();
        let others = from.filter(|(address, _)| *address != SERVER);
        let wanted: u64 = others.map(|(_, chunks)| chunks.as_u64().unwrap()).sum();
        let most = wanted + 8 * 5 + chunks(&written, "retries");
        assert!(unwanted <= most, "{unwanted} unwanted chunks: {written}");
    }
    server.interrupted();
}

/// Opens a session as a client, and returns its number.
fn session(place: &Place) -> u64 {
    let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, place.port);
    let mut stream = hello_for(1, Ipv4Addr::new(127, 0, 0, 7), server);
    stream.write_all(&[&6_u32.to_le_bytes()[..], &[1], b"golden"].concat()).unwrap();
    let mut frame = [0; 5 + 33];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!((frame[4], frame[5 + 16]), (2, 1), "a manifest, and that switches redirect");
    u64::from_le_bytes(frame[5 + 8..5 + 16].try_into().unwrap())
}

#[test]
fn a_port_that_is_taken_is_named() {
    let place = Place::new(16);
    let server = place.serve(&[]);
    let taken = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), place.port)).unwrap();
    let mut client = place.fetch(2, &[]);
    assert_eq!(client.end(), 2);
    let failed = client.found("failed").unwrap();
    let why = failed["error"].as_str().unwrap();
    assert!(why.contains(&format!("cannot use port {} of 127.0.0.2", place.port)), "{why}");
    drop(taken);
    let taken = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), place.port)).unwrap();
    assert_eq!(place.fetch(2, &[]).end(), 2);
    drop(taken);
    assert_eq!(place.fetch(2, &[]).end(), 0);
    let listen = format!("{SERVER}:{}", place.port);
    let second = place.command(&["serve", "golden.rwi", "--listen", &listen]).output().unwrap();
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    server.interrupted();
}
