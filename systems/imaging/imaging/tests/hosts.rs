//! Servers and clients as hosts use them: what is refused, what is left, and what the server knows of it.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rackweave_core::{Span, Time};
use rackweave_image::{Packing, Progress, TargetConfig, pack};
use rackweave_imaging::{
    Catalog, FetchConfig, FetchError, FetchEvent, Fetched, ServeConfig, ServeEvent, Served, fetch,
    list, serve,
};
use rackweave_linux::Clock;
use rackweave_swp2p::{directory, p2p};
use rackweave_testing::free_ports;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const CHUNK: usize = 64 << 10;

/// A server of an image `golden` at 127.0.0.1, whose clients are at other addresses of loopback.
struct Server {
    folder: TempDir,
    address: SocketAddrV4,
    progress: Arc<Progress>,
    events: Receiver<ServeEvent>,
    thread: JoinHandle<Served>,
}

/// A disk of 8 chunks; the last 3 are zeros.
fn disk() -> Vec<u8> {
    let mut disk: Vec<u8> =
        (0..5 * CHUNK as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    disk.resize(8 * CHUNK, 0);
    disk
}

impl Server {
    fn start(receivers: Option<&[u8]>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (raw, image) = (folder.path().join("disk"), folder.path().join("golden.rwi"));
        fs::write(&raw, disk()).unwrap();
        let packing = Packing { chunk_size: Some(CHUNK as u32), ..Packing::new("golden") };
        pack(&raw, &image, &packing, &Progress::default()).unwrap();
        Self::with(folder, free_ports(1), receivers)
    }

    fn with(folder: TempDir, port: u16, receivers: Option<&[u8]>) -> Self {
        let image = folder.path().join("golden.rwi");
        let catalog = Catalog::open(&[image], &Progress::default()).unwrap();
        let machine = p2p::server::Config {
            serve: p2p::Serve::default(),
            directory: Some(directory::Config::default()),
            expected: 0,
        };
        let config = ServeConfig {
            listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            key: None,
            machine,
            rate: None,
            receivers: receivers.map(|hosts| hosts.iter().map(|host| host_at(*host)).collect()),
            holders: None,
            time_limit: None,
            rack_prefix: None,
            multicast: None,
            frisbee: None,
            frisbee_names: None,
            page: None,
        };
        let (send, events) = channel();
        let progress = Arc::new(Progress::default());
        let stop = Arc::clone(&progress);
        let thread = std::thread::spawn(move || {
            serve(&config, catalog, &stop, &mut |event| drop(send.send(event))).unwrap()
        });
        let listening = events.recv_timeout(PATIENCE).unwrap();
        let ServeEvent::Listening { address: SocketAddr::V4(address), .. } = listening else {
            panic!("{listening:?}")
        };
        Self { folder, address, progress, events, thread }
    }

    fn target(&self, host: u8) -> PathBuf {
        self.folder.path().join(format!("copy{host}"))
    }

    fn config(&self, host: u8) -> FetchConfig {
        fetch_config(self.address, host_at(host), self.target(host))
    }

    fn fetch(&self, host: u8) -> (Fetched, Result<(), FetchError>) {
        fetch(&self.config(host), &Arc::default(), &mut |_| {})
    }

    /// Ends the server, and returns the events that were not looked at, and what it has done.
    fn stop(self) -> (Vec<ServeEvent>, Served) {
        self.progress.stop();
        let served = self.thread.join().unwrap();
        (self.events.iter().collect(), served)
    }
}

fn fetch_config(server: SocketAddrV4, own: Ipv4Addr, target: PathBuf) -> FetchConfig {
    FetchConfig {
        server,
        own: Some(own),
        name: "golden".to_owned(),
        target,
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

const fn host_at(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 2, host)
}

#[test]
fn a_client_whose_port_is_taken_leaves_no_trace() {
    let server = Server::start(None);
    let _taken = TcpListener::bind((host_at(2), server.address.port())).unwrap();
    let (_, result) = server.fetch(2);
    let error = result.unwrap_err();
    assert!(matches!(&error, FetchError::Bind { .. }), "{error}");
    assert!(error.to_string().contains("--bind"), "{error}");
    let names: Vec<_> =
        server.folder.path().read_dir().unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "disk and image: {names:?}");
    let (events, served) = server.stop();
    assert!(events.is_empty() && served.status.clients.is_empty(), "{events:?}");
}

#[test]
fn an_address_of_another_host_is_refused_at_once() {
    let server = Server::start(None);
    let config = FetchConfig { own: Some(Ipv4Addr::new(192, 0, 2, 77)), ..server.config(2) };
    let clock = Clock::start();
    let (_, result) = fetch(&config, &Arc::default(), &mut |_| {});
    let error = result.unwrap_err();
    assert!(clock.now() < Time::ZERO + Span::from_secs(20), "it gives up after a minute");
    let FetchError::Bind { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), io::ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("--bind must name an address of this host"), "{error}");
    server.stop();
}

#[test]
fn a_server_that_does_not_run_is_reported_at_the_first_attempt() {
    let [address, own] = [1, 2].map(host_at);
    let server = SocketAddrV4::new(address, free_ports(1));
    let folder = tempfile::tempdir().unwrap();
    let mut config = fetch_config(server, own, folder.path().join("copy"));
    config.machine.give_up = Span::from_secs(2);
    let mut events = Vec::new();
    let (_, result) = fetch(&config, &Arc::default(), &mut |event| events.push(event));
    assert!(matches!(result, Err(FetchError::Session { .. })), "{result:?}");
    let [FetchEvent::Waiting(why)] = &events[..] else { panic!("{events:?}") };
    assert!(why.contains("refused"), "{why}");

    // At the server's own address it would connect to itself.
    let config = FetchConfig { own: Some(address), ..config };
    let (_, result) = fetch(&config, &Arc::default(), &mut |event| panic!("{event:?}"));
    let error = result.unwrap_err();
    assert!(matches!(error, FetchError::Bind { .. }), "{error}");
    assert!(error.to_string().contains("(--bind)"), "{error}");
}

/// The server waits for a host that had the image before it came, and for nobody after that.
#[test]
fn a_host_that_has_the_image_already_has_it_for_the_server_too() {
    let first = Server::start(None);
    first.fetch(2).1.unwrap();
    let Server { folder, progress, thread, .. } = first;
    progress.stop();
    thread.join().unwrap();
    let server = Server::with(folder, free_ports(1), Some(&[2, 3]));
    let (fetched, result) = server.fetch(2);
    result.unwrap();
    assert_eq!(fetched.fetched, 0);
    // A later attempt of the same host is refused, since the file is another one now.
    fs::write(server.target(2), b"another file").unwrap();
    assert!(server.fetch(2).1.is_err());
    server.fetch(3).1.unwrap();
    let served = server.thread.join().unwrap();
    assert_eq!((served.missing, served.interrupted), (Vec::new(), false));
    assert!(served.status.clients.iter().all(|client| client.complete), "{:?}", served.status);
    let done = server.events.iter().filter(|event| matches!(event, ServeEvent::Done { .. }));
    assert_eq!(done.count(), 2);
}

#[test]
fn chunks_without_content_are_neither_fetched_nor_kept_and_copies_are_those_of_stored_bytes() {
    let server = Server::start(None);
    let mut opened = Vec::new();
    let mut on_event = |event| {
        if let FetchEvent::Opened { kept, empty, .. } = event {
            opened.push((kept, empty));
        }
    };
    let (fetched, result) = fetch(&server.config(2), &Arc::default(), &mut on_event);
    result.unwrap();
    assert_eq!(opened, [(0, 3)]);
    assert_eq!((fetched.fetched, fetched.kept, fetched.empty), (5, 0, 3));
    let (again, result) = server.fetch(2);
    result.unwrap();
    assert_eq!((again.fetched, again.kept, again.empty), (0, 5, 3));
    let (events, served) = server.stop();
    let image = &served.status.images[0];
    assert_eq!((image.chunks_sent, image.bytes_sent), (5, image.stored));
    assert!((image.copies - 1.0).abs() < 1e-9, "{}", image.copies);
    let done: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            ServeEvent::Done { status, .. } => Some((status.fetched(), status.kept, status.empty)),
            _ => None,
        })
        .collect();
    assert_eq!(done, [(5, 0, 3), (0, 5, 3)]);
}

/// The text of an error that must be one.
fn message<T: std::fmt::Debug, E: std::error::Error>(result: Result<T, E>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_client_that_lingers_is_told_that_its_server_ends_and_stays() {
    let server = Server::start(Some(&[2]));
    let progress = Arc::new(Progress::default());
    let (send, events) = channel();
    let mut config = server.config(2);
    config.machine.linger = Span::from_secs(600);
    let stop = Arc::clone(&progress);
    let client = std::thread::spawn(move || fetch(&config, &stop, &mut |it| drop(send.send(it))));
    let Server { folder, address, thread, .. } = server;
    assert!(thread.join().unwrap().missing.is_empty());
    // Longer than a client takes to notice a broken connection.
    let mut seen = Vec::new();
    while let Ok(event) = events.recv_timeout(Duration::from_secs(2)) {
        seen.push(event);
    }
    assert!(!client.is_finished(), "it lingers");
    let again = Server::with(folder, address.port(), Some(&[2]));
    assert!(again.thread.join().unwrap().missing.is_empty(), "it reports to the next one");
    progress.stop();
    client.join().unwrap().1.unwrap();
    let lost =
        |event: &FetchEvent| matches!(event, FetchEvent::ServerLost(_) | FetchEvent::ServerBack);
    seen.extend(events.iter());
    assert!(seen.len() >= 3 && !seen.iter().any(lost), "{seen:?}");
}

#[test]
fn the_images_of_a_server_are_listed() {
    let server = Server::start(Some(&[2]));
    let images = list(server.address, Some(host_at(2)), None).unwrap();
    let found: Vec<_> = images.iter().map(|it| (&*it.name, it.chunks, it.bytes)).collect();
    assert_eq!(found, [("golden", 8, 8 * CHUNK as u64)]);
    assert_eq!((images[0].root.len(), images[0].signed), (64, false));
    let refused = message(list(server.address, Some(host_at(3)), None));
    assert!(refused.contains("it refuses this host"), "{refused}");
    let elsewhere = message(list(server.address, Some(Ipv4Addr::new(192, 0, 2, 77)), None));
    assert!(elsewhere.contains("--bind"), "{elsewhere}");
    let (events, served) = server.stop();
    assert!(events.is_empty() && served.status.clients.is_empty(), "who asks is no client");
}

#[test]
fn an_image_that_is_given_twice_is_named() {
    let server = Server::start(None);
    let (file, folder) = (server.folder.path().join("golden.rwi"), server.folder.path().to_owned());
    let opened = Catalog::open(&[folder, file.clone()], &Progress::default());
    assert_eq!(message(opened), format!("the image {} is given twice", file.display()));
    fs::copy(&file, server.folder.path().join("copy.rwi")).unwrap();
    let opened = Catalog::open(&[server.folder.path().to_owned()], &Progress::default());
    assert!(message(opened).contains("both contain an image named `golden`"));
    server.stop();
}

#[test]
fn a_damaged_image_file_is_reported_with_path_and_chunk() {
    let server = Server::start(None);
    let path = server.folder.path().join("golden.rwi");
    let mut bytes = fs::read(&path).unwrap();
    // In the first chunk, behind the header of 512 bytes.
    bytes[600] ^= 1;
    fs::write(&path, bytes).unwrap();
    let why = message(server.fetch(2).1);
    assert!(why.contains("chunk 0 of "), "{why}");
    message(server.fetch(3).1);
    let (events, _) = server.stop();
    let broken: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            ServeEvent::Broken { path, chunk, .. } => Some((path.clone(), *chunk)),
            _ => None,
        })
        .collect();
    assert_eq!(broken, [(path, 0)]);
}
