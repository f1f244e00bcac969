//! Frisbee sessions on loopback: clients at once, late, interrupted and hostile, and servers that restart.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rackweave_core::{Rate, Rng, Span};
use rackweave_image::{Packing, Progress, TargetConfig, pack};
use rackweave_imaging::{
    Catalog, FetchConfig, FetchError, FetchEvent, Fetched, MulticastConfig, ServeConfig,
    ServeError, ServeEvent, Served, fetch, serve,
};
use rackweave_swp2p::frisbee::PaceConfig;
use rackweave_swp2p::p2p;
use rackweave_testing::free_ports;
use rackweave_wire::frisbee::{Body, Header, Key, encode};
use socket2::{Domain, Protocol, Socket, Type};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const CHUNK: usize = 256 << 10;
/// Chunks with content.
const CHUNKS: u32 = 40;

/// A server that multicasts an image `golden`, at 127.0.0.1. Its clients are at other addresses of loopback.
struct Server {
    folder: TempDir,
    address: SocketAddrV4,
    group: Ipv4Addr,
    progress: Arc<Progress>,
    thread: JoinHandle<Result<Served, ServeError>>,
}

/// Random chunks, the last with 1000 bytes less, one that compresses to less than a block, and one of zeros.
fn disk() -> Vec<u8> {
    let mut rng = Rng::stream(7, 0, 0, "disk");
    let mut disk = Vec::with_capacity((CHUNKS as usize + 2) * CHUNK);
    while disk.len() < CHUNKS as usize * CHUNK - 1000 {
        disk.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    disk.resize(CHUNKS as usize * CHUNK, 3);
    disk.resize((CHUNKS as usize + 1) * CHUNK, 0);
    disk.resize((CHUNKS as usize + 2) * CHUNK, 5);
    disk
}

fn image() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (raw, image) = (folder.path().join("disk"), folder.path().join("golden.rwi"));
    fs::write(&raw, disk()).unwrap();
    let packing = Packing { chunk_size: Some(CHUNK as u32), ..Packing::new("golden") };
    pack(&raw, &image, &packing, &Progress::default()).unwrap();
    folder
}

fn mbps(rate: u64) -> PaceConfig {
    MulticastConfig::paced(Rate(rate * 1_000_000))
}

fn key() -> Key {
    Key::derive(b"secret")
}

impl Server {
    /// Sessions of different tests have different groups.
    fn start(group: u8, pace: PaceConfig) -> Self {
        Self::with(image(), group, server_port(), pace, None)
    }

    fn with(folder: TempDir, group: u8, port: u16, pace: PaceConfig, key: Option<Key>) -> Self {
        let group = Ipv4Addr::new(239, 255, 99, group);
        let image = folder.path().join("golden.rwi");
        let catalog = Catalog::open(&[image], &Progress::default()).unwrap();
        let config = ServeConfig {
            listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            key,
            machine: p2p::server::Config {
                serve: p2p::Serve::default(),
                directory: None,
                expected: 0,
            },
            rate: None,
            receivers: None,
            holders: None,
            time_limit: None,
            rack_prefix: None,
            multicast: Some(MulticastConfig { group, port: None, pace }),
            frisbee: None,
            frisbee_names: None,
            page: None,
        };
        let (send, events) = channel();
        let progress = Arc::new(Progress::default());
        let stop = Arc::clone(&progress);
        let thread = std::thread::spawn(move || {
            serve(&config, catalog, &stop, &mut |event| drop(send.send(event)))
        });
        let listening = match events.recv_timeout(PATIENCE) {
            Ok(event) => event,
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{}", thread.join().unwrap().unwrap_err())
            }
            Err(error) => panic!("{error}"),
        };
        let ServeEvent::Listening { address: SocketAddr::V4(address), .. } = listening else {
            panic!("{listening:?}")
        };
        Self { folder, address, group, progress, thread }
    }

    fn target(&self, host: u8) -> PathBuf {
        self.folder.path().join(format!("copy{host}"))
    }

    fn config(&self, host: u8) -> FetchConfig {
        FetchConfig {
            server: self.address,
            own: Some(host_at(host)),
            name: "golden".to_owned(),
            target: self.target(host),
            target_config: TargetConfig::default(),
            key: None,
            signer: None,
            machine: p2p::client::Config::default(),
            memory: 64 << 20,
            rate: None,
            serve: true,
            multicast: true,
            session: None,
        }
    }

    fn fetch(&self, host: u8) -> Client {
        Client::start(self.config(host))
    }

    /// The group's address and port.
    fn session(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.group, self.address.port() + 1)
    }

    fn stop(self) -> (TempDir, Served) {
        self.progress.stop();
        (self.folder, self.thread.join().unwrap().unwrap())
    }
}

/// A client in a thread.
struct Client {
    target: PathBuf,
    progress: Arc<Progress>,
    events: Receiver<FetchEvent>,
    thread: JoinHandle<(Fetched, Result<(), FetchError>)>,
}

impl Client {
    fn start(config: FetchConfig) -> Self {
        let (send, events) = channel();
        let progress = Arc::new(Progress::default());
        let (target, stop) = (config.target.clone(), Arc::clone(&progress));
        let run = move || fetch(&config, &stop, &mut |event| drop(send.send(event)));
        Self { target, progress, events, thread: std::thread::spawn(run) }
    }

    /// Waits until this many bytes have arrived.
    fn wait_for(&self, bytes: u64) {
        while self.progress.bytes().0 < bytes {
            assert!(!self.thread.is_finished(), "it has ended");
            nap(1);
        }
    }

    /// Waits until it has every byte, and checks that these are the image's. Returns what it has counted, and why it has left the
    /// session before, if it has.
    fn join(self) -> (Fetched, Option<String>) {
        let (fetched, result) = self.thread.join().unwrap();
        result.unwrap();
        assert!(is_exact(&self.target), "exit code 0 means every byte");
        let mut left = None;
        for event in self.events.iter() {
            if let FetchEvent::NoMulticast(why) = event {
                left = Some(why);
            }
        }
        (fetched, left)
    }
}

fn is_exact(target: &Path) -> bool {
    fs::read(target).is_ok_and(|bytes| bytes == disk())
}

/// Waits for this many milliseconds.
fn nap(ms: u64) {
    let (_keeps_it_open, nothing) = channel::<()>();
    let _ = nothing.recv_timeout(Duration::from_millis(ms));
}

/// A TCP port for a server; the UDP port above it is that of its session.
fn server_port() -> u16 {
    free_ports(2)
}

const fn host_at(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 3, host)
}

#[test]
fn four_clients_at_once_get_one_copy() {
    let server = Server::start(1, mbps(400));
    let clients: Vec<Client> = (1..5).map(|host| server.fetch(host)).collect();
    for client in clients {
        let (fetched, left) = client.join();
        assert_eq!(left, None);
        assert_eq!((fetched.fetched, fetched.empty, fetched.damaged), (CHUNKS + 1, 1, 0));
        assert_eq!(fetched.from.into_iter().collect::<Vec<_>>(), [(Ipv4Addr::LOCALHOST, 41)]);
    }
    let (_, served) = server.stop();
    let image = &served.status.images[0];
    // A machine whose cores are taken loses packets, and starts threads at different times.
    assert!((1.0..2.5).contains(&image.copies), "{image:?}");
    let session = image.multicast.as_ref().unwrap();
    // Requests are merged only if clients have asked for the same blocks, which they avoid.
    assert!(session.blocks_sent > u64::from(CHUNKS) * 256, "{session:?}");
    assert!(served.status.clients.iter().all(|client| client.complete), "{served:?}");
    assert!(served.status.clients.iter().all(|client| client.status.multicast), "{served:?}");
}

#[test]
fn a_client_that_comes_late_and_one_without_multicast_get_every_byte() {
    let server = Server::start(2, mbps(100));
    let first = server.fetch(1);
    first.wait_for(4 << 20);
    let second = server.fetch(2);
    let third = Client::start(FetchConfig { multicast: false, ..server.config(3) });
    for client in [first, second] {
        let (fetched, left) = client.join();
        assert_eq!((fetched.fetched, left), (CHUNKS + 1, None));
    }
    let (fetched, left) = third.join();
    assert_eq!((fetched.fetched, left), (CHUNKS + 1, None));
    server.stop();
}

#[test]
fn an_interrupted_client_goes_on_from_what_it_has() {
    let server = Server::start(3, mbps(100));
    let client = server.fetch(1);
    client.wait_for(3 << 20);
    client.progress.stop();
    let (before, result) = client.thread.join().unwrap();
    assert!(matches!(result, Err(FetchError::Interrupted)), "{result:?}");
    assert!((1..=CHUNKS).contains(&before.fetched), "{before:?}");
    assert!(!is_exact(&server.target(1)));
    let (again, left) = server.fetch(1).join();
    assert_eq!((again.fetched + again.kept, left), (CHUNKS + 1, None));
    assert!(again.kept > 0, "{again:?}");
    server.stop();
}

#[test]
fn clients_go_on_with_a_server_that_has_restarted() {
    let server = Server::start(4, mbps(60));
    let clients = [server.fetch(1), server.fetch(2)];
    clients.iter().for_each(|client| client.wait_for(2 << 20));
    let port = server.address.port();
    let (folder, served) = server.stop();
    assert!(served.status.clients.iter().all(|client| !client.complete), "{served:?}");
    nap(1000);
    let server = Server::with(folder, 4, port, mbps(400), None);
    for client in clients {
        let (fetched, left) = client.join();
        assert_eq!((fetched.fetched, fetched.kept, left), (CHUNKS + 1, 0, None));
    }
    server.stop();
}

/// The server answers, and none of its blocks arrives.
#[test]
fn a_client_to_which_no_block_comes_goes_on_without_multicast() {
    let hour = PaceConfig { burst: 1, gap: Span::from_secs(3600), dynamic: false };
    let server = Server::start(5, hour);
    let (fetched, left) = server.fetch(1).join();
    assert_eq!(fetched.fetched, CHUNKS + 1);
    let left = left.unwrap();
    assert!(left.starts_with("no block has come from 239.255.99.5:"), "{left}");
    server.stop();
}

/// A client that gives up says so, and the server that it waits for is named.
#[test]
fn a_client_whose_server_does_not_return_gives_up() {
    let server = Server::start(6, mbps(20));
    let mut config = server.config(1);
    config.machine.give_up = Span::from_secs(2);
    let client = Client::start(config);
    client.wait_for(1 << 20);
    let (_folder, _) = server.stop();
    let (_, result) = client.thread.join().unwrap();
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with("no chunk has arrived for too long"), "{error}");
    assert!(error.contains("the same command goes on from here"), "{error}");
}

/// Sends messages until it is stopped.
struct Hostile {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Hostile {
    fn start(mut send: impl FnMut(u32) -> u64 + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut round, mut sent) = (0, 0);
            while !is_over.load(Ordering::Relaxed) {
                sent += send(round);
                round += 1;
                nap(2);
            }
            sent
        });
        Self { stop, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn message(source: Ipv4Addr, body: Body) -> Vec<u8> {
    let header = Header { source: source.octets(), body };
    let mut bytes = Vec::new();
    encode(&header, &mut bytes);
    bytes.resize(bytes.len() + header.payload_len() as usize, 0xff);
    bytes
}

/// A host without a session sends blocks, in its own name and in the server's, leaves for all, and asks for every chunk, which would
/// keep clients from asking themselves.
#[test]
fn a_neighbour_without_a_session_neither_damages_nor_stops_anything() {
    let server = Server::start(7, mbps(100));
    let session = server.session();
    let own = host_at(66);
    let socket = UdpSocket::bind((own, session.port())).unwrap();
    socket2::SockRef::from(&socket).set_multicast_if_v4(&own).unwrap();
    let hostile = Hostile::start(move |round| {
        let mut sent = 0;
        for offset in 0..10 {
            let chunk = (round * 10 + offset) % (CHUNKS + 2);
            let block = Body::Block { chunk, block: round % 256, len: 1024 };
            let messages = [
                message(own, block),
                message(Ipv4Addr::LOCALHOST, block),
                message(own, Body::Request { chunk, block: 0, count: 256 }),
                message(own, Body::PartialRequest { chunk, retries: 1 }),
                message(own, Body::Leave2 { client: round, elapsed_s: 1 }),
                message(own, Body::JoinReply { blocks: 1 }),
                vec![0xff; 40],
            ];
            for bytes in messages {
                sent += u64::from(socket.send_to(&bytes, session).is_ok());
            }
        }
        sent
    });
    let clients: Vec<Client> = (1..3).map(|host| server.fetch(host)).collect();
    for client in clients {
        let (fetched, left) = client.join();
        assert_eq!((fetched.fetched, fetched.damaged, left), (CHUNKS + 1, 0, None));
        assert!(fetched.refused > 0, "{fetched:?}");
    }
    assert!(hostile.stop() > 1000);
    let (_, served) = server.stop();
    assert!(served.status.refused > 100, "{}", served.status.refused);
    let session = served.status.images[0].multicast.as_ref().unwrap();
    assert!(session.refused > 100, "{session:?}");
}

/// A socket that sends UDP datagrams from the server's address and port, as a host on the same network can.
fn forger(server: Ipv4Addr, port: u16) -> Option<impl Fn(&[u8], SocketAddrV4) -> bool + Send> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).ok()?;
    socket.bind(&SocketAddr::from((server, 0)).into()).unwrap();
    socket.set_multicast_if_v4(&server).unwrap();
    Some(move |bytes: &[u8], to: SocketAddrV4| {
        let mut datagram = Vec::with_capacity(8 + bytes.len());
        for word in [port, to.port(), 8 + bytes.len() as u16, 0] {
            datagram.extend_from_slice(&word.to_be_bytes());
        }
        datagram.extend_from_slice(bytes);
        socket.send_to(&datagram, &SocketAddr::from((*to.ip(), 0)).into()).is_ok()
    })
}

/// Sends `per_round` wrong blocks every 2 ms in the server's name, to clients that fetch meanwhile. Returns what each has fetched, and
/// why it has left the session, if it has.
fn with_forged_blocks(
    group: u8,
    key: Option<Key>,
    rounds: u32,
    every: u32,
) -> Option<Vec<(Fetched, Option<String>)>> {
    let server = Server::with(image(), group, server_port(), mbps(100), key);
    let session = server.session();
    let Some(forge) = forger(Ipv4Addr::LOCALHOST, session.port()) else {
        println!("skipped: needs CAP_NET_RAW");
        server.stop();
        return None;
    };
    let hostile = Hostile::start(move |round| {
        if round >= rounds || round % every > 0 {
            return 0;
        }
        let chunk = round / every % CHUNKS;
        let block = Body::Block { chunk, block: 7, len: 1024 };
        u64::from(forge(&message(Ipv4Addr::LOCALHOST, block), session))
    });
    let start = |host| Client::start(FetchConfig { key, ..server.config(host) });
    let clients: Vec<Client> = (1..3).map(start).collect();
    let fetched = clients.into_iter().map(Client::join).collect();
    assert!(hostile.stop() > 0);
    server.stop();
    Some(fetched)
}

#[test]
fn a_damaged_chunk_is_requested_again() {
    // Ten wrong blocks, while the image takes a second.
    let Some(fetched) = with_forged_blocks(8, None, 200, 20) else { return };
    let damaged: u32 = fetched.iter().map(|(fetched, _)| fetched.damaged).sum();
    assert!(damaged > 0, "{fetched:?}");
    for (fetched, left) in fetched {
        assert_eq!((fetched.fetched, left), (CHUNKS + 1, None));
    }
}

/// Somebody who sends wrong blocks without end stops the session, and not the clients: they go on without multicast.
#[test]
fn clients_survive_blocks_that_are_forged_without_end() {
    let Some(fetched) = with_forged_blocks(9, None, u32::MAX, 1) else { return };
    for (fetched, left) in fetched {
        assert!(fetched.damaged > 0 && fetched.fetched > CHUNKS, "{fetched:?}, {left:?}");
    }
}

#[test]
fn with_a_key_forged_blocks_are_not_accepted() {
    let Some(fetched) = with_forged_blocks(10, Some(key()), u32::MAX, 1) else { return };
    for (fetched, left) in fetched {
        assert_eq!((fetched.fetched, fetched.damaged, left), (CHUNKS + 1, 0, None));
        assert!(fetched.refused > 0);
    }
}

#[test]
fn what_cannot_be_multicast_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (raw, image) = (folder.path().join("disk"), folder.path().join("golden.rwi"));
    let mut rng = Rng::stream(1, 0, 0, "disk");
    let bytes: Vec<u8> = (0..2 << 17).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    fs::write(&raw, bytes).unwrap();
    let packing = Packing { chunk_size: Some(2 << 20), ..Packing::new("golden") };
    pack(&raw, &image, &packing, &Progress::default()).unwrap();
    let serve_at = |group, port| {
        let config = ServeConfig {
            listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0),
            key: None,
            machine: p2p::server::Config {
                serve: p2p::Serve::default(),
                directory: None,
                expected: 0,
            },
            rate: None,
            receivers: None,
            holders: None,
            time_limit: None,
            rack_prefix: None,
            multicast: Some(MulticastConfig { group, port, pace: mbps(10) }),
            frisbee: None,
            frisbee_names: None,
            page: None,
        };
        let catalog = Catalog::open(std::slice::from_ref(&image), &Progress::default()).unwrap();
        serve(&config, catalog, &Progress::default(), &mut |_| {}).unwrap_err().to_string()
    };
    let large = serve_at(Ipv4Addr::new(239, 255, 99, 11), None);
    assert!(
        large.contains("chunks of more than 1 MiB") && large.contains("--chunk-size"),
        "{large}"
    );
    let global = serve_at(Ipv4Addr::new(224, 0, 0, 9), None);
    assert!(global.contains("239.0.0.0/8"), "{global}");
    let port = serve_at(Ipv4Addr::new(239, 255, 99, 11), Some(0));
    assert!(port.contains("a UDP port of its own"), "{port}");
}
