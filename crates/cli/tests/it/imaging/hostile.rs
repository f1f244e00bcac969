//! Hosts that lie: to clients, to the server, and in the name of others.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
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
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.bind(&SocketAddrV4::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut hello = [0; 32];
    hello[..8].copy_from_slice(b"RWimage2");
    hello[8] = 2;
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
