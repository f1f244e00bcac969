//! A client, and a server and other hosts that say what they like.

use std::net::UdpSocket;

use rackweave_testing::{free_ports, needs};
use rackweave_wire::frisbee::{Header, decode, encode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use super::*;
use crate::client::fetch_frisbee;
use crate::hello::{self, Purpose};

const SERVER_AT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 8);
const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// How often it is looked for a message, for a tenth of a second each.
const PATIENCE: u32 = 200;

/// A host of the session, at its port.
struct Host(Ipv4Addr, UdpSocket);

impl Host {
    fn new(address: Ipv4Addr, port: u16) -> Self {
        let socket = UdpSocket::bind((address, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Self(address, socket)
    }

    fn says(&self, body: Body) {
        let mut bytes = Vec::new();
        encode(&Header { source: self.0.octets(), body }, &mut bytes);
        let port = self.1.local_addr().unwrap().port();
        self.1.send_to(&bytes, (OWN, port)).unwrap();
    }

    /// Waits for a message that is this one, and meanwhile says something again and again.
    fn hears<T>(&self, says: Option<Body>, is_it: impl Fn(Body) -> Option<T>) -> T {
        let mut bytes = [0; 2048];
        for _ in 0..PATIENCE {
            says.into_iter().for_each(|body| self.says(body));
            let Ok(len) = self.1.recv(&mut bytes) else { continue };
            if let Some(it) = is_it(decode(&bytes[..len]).unwrap().header.body) {
                return it;
            }
        }
        panic!("it says nothing like that")
    }
}

/// Whether the client takes a chunk with this header.
fn takes(port: u16, header: ChunkHeader) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((OTHER, 0).into()).unwrap();
        let mut stream = socket.connect((OWN, port).into()).await.unwrap();
        hello::connect(&mut stream, Purpose::Chunks, &Auth::Number).await.unwrap();
        stream.write_all(&header.encode()).await.unwrap();
        let closed = stream.read_u8();
        tokio::time::timeout(Duration::from_millis(500), closed).await.is_err()
    })
}

#[test]
fn a_client_repeats_what_comes_back_takes_what_it_asked_for_and_says_that_it_gives_up() {
    needs!(Multicast);
    let folder = tempfile::tempdir().unwrap();
    let port = free_ports(1);
    let machine = Config { outstanding: 1, retry: Span::from_secs(2), ..Config::default() };
    let config = FrisbeeFetchConfig {
        group: Ipv4Addr::new(239, 255, 96, 40),
        port,
        server: Some(SERVER_AT),
        own: Some(OWN),
        target: folder.path().join("copy.ndz"),
        overwrite: false,
        give_up: Span::from_secs(5),
        memory: 64 << 20,
        redirected: Some(RedirectedConfig { machine, rate: None, serve: true }),
    };
    let (server, other) = (Host::new(SERVER_AT, port), Host::new(OTHER, port));
    let session = session(&config, 2);
    let client = std::thread::spawn(move || fetch_frisbee(&config, &Arc::default(), &mut |_| {}));
    let asked = server.hears(Some(Body::JoinReply { blocks: 2 * CHUNK_BLOCKS }), |body| {
        body.session_chunks().map(|chunks| chunks.first)
    });
    let chunks = |first| Chunks { image: SESSION_IMAGE, first, count: 1, tries: 0 };
    // It has waited for less than the time after which it asks again.
    other.says(Body::Return { chunks: chunks(asked), requester: OWN.octets() });
    let again = server.hears(None, |body| match body {
        Body::PartialRequest { chunk, retries } => Some((chunk, retries)),
        _ => None,
    });
    assert_eq!(again, (asked, 1));
    // As a switch redirects again what another holder has returned.
    other.says(Body::Batch(chunks(1 - asked)));
    let returned = server.hears(None, |body| match body {
        Body::Return { chunks, requester } => Some((chunks.first, requester)),
        _ => None,
    });
    assert_eq!(returned, (1 - asked, OTHER.octets()));
    let header = |image, chunk| ChunkHeader { image, chunk, len: ndz::CHUNK as u32 };
    assert!(takes(port, header(session, asked)));
    assert!(!takes(port, header(session, 1 - asked)), "it has not asked for it");
    assert!(!takes(port, header(session ^ 1, asked)), "it is of another session");
    server.hears(None, |body| matches!(body, Body::Exit { .. }).then_some(()));
    let error = client.join().unwrap().unwrap_err();
    assert!(matches!(error, FrisbeeFetchError::Stalled { missing: 2, .. }), "{error}");
}
