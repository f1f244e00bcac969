//! The page over HTTP, as readers see it, of real and of made-up servers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rackweave_core::Rate;
use rackweave_image::{Packing, Progress, TargetConfig};
use rackweave_swp2p::{directory, p2p};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use rackweave_wire::frisbee::Auth;

use rackweave_page::{Bounds, Limits};

use super::{PageConfig, start, with};
use crate::frames::Frame;
use crate::hello::{self, Purpose};
use crate::status::{ClientStatus, ClientView, ImageView, ServerStatus};
use crate::{Catalog, FetchConfig, Fetched, ServeConfig, ServeEvent, Served};

const PATIENCE: Duration = Duration::from_secs(60);

// ---- Made-up states ----------------------------------------------------------------------------------------------------------------

pub(crate) fn client(address: Ipv4Addr, status: ClientStatus) -> ClientView {
    ClientView {
        address,
        server: Ipv4Addr::new(192, 0, 2, 1),
        image: "golden".to_owned(),
        status: Arc::new(status),
        age_ms: 0,
        serves: true,
        complete: false,
        slow: None,
    }
}

pub(super) fn status(clients: Vec<ClientView>) -> ServerStatus {
    ServerStatus {
        elapsed_ms: 1000,
        images: vec![ImageView {
            name: "golden".to_owned(),
            root: "00".repeat(32),
            chunks: 7,
            bytes: 7 << 20,
            stored: 7 << 19,
            signed: false,
            chunks_sent: 14,
            bytes_sent: 7 << 20,
            copies: 2.0,
            multicast: None,
            frisbee: None,
        }],
        clients,
        absent: Vec::new(),
        chunks_sent: 14,
        bytes_sent: 7 << 20,
        send_rate: 0,
        requests: 14,
        redirected: 0,
        returned: 0,
        damaged: 0,
        barred: 0,
        refused: 0,
        unsent: 0,
    }
}

/// So many clients that their complete status fits no socket's buffers.
fn large() -> ServerStatus {
    let from: BTreeMap<_, _> = (0..256).map(|it| (Ipv4Addr::from_bits(it), it)).collect();
    let of = |number: u32| {
        let status = ClientStatus { from: from.clone(), ..ClientStatus::default() };
        client(Ipv4Addr::from_bits(0x0a00_0000 + number), status)
    };
    status((0..10_000).map(of).collect())
}

// ---- Metrics -----------------------------------------------------------------------------------------------------------------------

type Sample = (String, BTreeMap<String, String>, f64);

/// Parses Prometheus' text format strictly: each family is announced once, with help and type, and its samples are together.
pub(super) fn parsed(text: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut families: Vec<(String, String)> = Vec::new();
    let mut helped = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = help.split_once(' ').unwrap().0.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, helped, "the help precedes the type");
            assert!(families.iter().all(|(known, _)| known != name), "{name} is announced twice");
            assert!(["counter", "gauge"].contains(&kind));
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            families.push((name.to_owned(), kind.to_owned()));
        } else {
            let sample = sample(line);
            assert_eq!(sample.0, families.last().unwrap().0, "samples of a family are together");
            samples.push(sample);
        }
    }
    let mut keys: Vec<_> = samples.iter().map(|(name, labels, _)| (name, labels)).collect();
    keys.sort();
    assert!(keys.windows(2).all(|two| two[0] != two[1]), "no series occurs twice");
    samples
}

fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
    let mut labels = BTreeMap::new();
    while let Some(next) = rest.strip_prefix(['{', ',']) {
        let (label, content) = next.split_once("=\"").unwrap();
        let mut letters = content.char_indices();
        let mut value = String::new();
        let end = loop {
            match letters.next().unwrap() {
                (end, '"') => break end,
                (_, '\\') => value.push(match letters.next().unwrap().1 {
                    'n' => '\n',
                    letter @ ('\\' | '"') => letter,
                    letter => panic!("\\{letter} in {line}"),
                }),
                (_, letter) => value.push(letter),
            }
        };
        assert!(labels.insert(label.to_owned(), value).is_none());
        rest = &content[end + 1..];
        if let Some(after) = rest.strip_prefix('}') {
            rest = after;
            break;
        }
    }
    (name.to_owned(), labels, rest.strip_prefix(' ').unwrap().parse().unwrap())
}

fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |of: &BTreeMap<String, String>| labels.iter().all(|(label, it)| of[*label] == *it);
    let full = format!("rackweave_image_{name}");
    let mut found = samples.iter().filter(|(name, of, _)| *name == full && has(of));
    let value = found.next().unwrap_or_else(|| panic!("no {name} {labels:?}")).2;
    assert!(found.next().is_none(), "{name} {labels:?} is not one");
    value
}

// ---- A reader ----------------------------------------------------------------------------------------------------------------------

struct Response {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it takes too long")
}

/// Sends a request whose response ends with the connection.
async fn send(page: SocketAddr, request: &str) -> TcpStream {
    let mut stream = within(TcpStream::connect(page)).await.unwrap();
    within(stream.write_all(request.as_bytes())).await.unwrap();
    stream
}

fn split(text: &str) -> Response {
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let (first, headers) = head.split_once("\r\n").unwrap();
    let of = |line: &str| line.split_once(": ").map(|(name, value)| (name.into(), value.into()));
    Response {
        status: first.split(' ').nth(1).unwrap().parse().unwrap(),
        headers: headers.lines().map(|line| of(line).unwrap()).collect(),
        body: body.to_owned(),
    }
}

async fn ask(page: SocketAddr, request: &str) -> Response {
    let mut text = String::new();
    within(send(page, request).await.read_to_string(&mut text)).await.unwrap();
    split(&text)
}

async fn get(page: SocketAddr, path: &str) -> Response {
    ask(page, &format!("GET {path} HTTP/1.0\r\nHost: {page}\r\n\r\n")).await
}

async fn json(page: SocketAddr, path: &str) -> Value {
    let response = get(page, path).await;
    assert_eq!((response.status, &*response.headers["content-type"]), (200, "application/json"));
    serde_json::from_str(&response.body).unwrap()
}

/// Reads server-sent events.
struct Events(BufReader<TcpStream>);

impl Events {
    async fn open(page: SocketAddr) -> Self {
        let request = format!("GET /events HTTP/1.0\r\nHost: {page}\r\n\r\n");
        let mut this = Self(BufReader::new(send(page, &request).await));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(within(this.0.read_line(&mut head)).await.unwrap() > 0, "{head}");
        }
        let head = split(&head);
        assert_eq!((head.status, &*head.headers["content-type"]), (200, "text/event-stream"));
        this
    }

    /// Returns the name and data of the next event, or `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        let (mut name, mut data) = ("message".to_owned(), None);
        loop {
            let mut line = String::new();
            if within(self.0.read_line(&mut line)).await.unwrap() == 0 {
                return None;
            }
            match line.trim_end_matches('\n').split_once(": ") {
                Some(("event", given)) => given.clone_into(&mut name),
                Some(("data", json)) => data = Some(serde_json::from_str(json).unwrap()),
                Some(("retry", _)) => {}
                None if data.is_some() => return data.map(|data| (name, data)),
                None => assert_eq!(line, "\n"),
                Some(_) => panic!("{line}"),
            }
        }
    }
}

// ---- A real server -----------------------------------------------------------------------------------------------------------------

fn page_config() -> PageConfig {
    PageConfig {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        is_required: true,
        names: vec!["images.example".to_owned()],
    }
}

struct Running {
    folder: tempfile::TempDir,
    address: SocketAddrV4,
    page: SocketAddr,
    progress: Arc<Progress>,
    thread: std::thread::JoinHandle<Served>,
}

const SLOW: Rate = Rate(16_000_000);

impl Running {
    /// Serves an image of 128 chunks whose name is hostile to pages and to labels.
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (disk, image) = (folder.path().join("disk"), folder.path().join("image.rwi"));
        // What no compression shortens.
        let mixed = |word: u64| {
            let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
        };
        let words = (1..=1_u64 << 20).map(|word| mixed(word.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        std::fs::write(&disk, content).unwrap();
        let packing = Packing { chunk_size: Some(1 << 16), ..Packing::new(NAME) };
        rackweave_image::pack(&disk, &image, &packing, &Progress::default()).unwrap();
        let catalog = Catalog::open(&[image], &Progress::default()).unwrap();
        let config = ServeConfig {
            listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0),
            key: None,
            machine: p2p::server::Config {
                serve: p2p::Serve::default(),
                directory: Some(directory::Config::default()),
                expected: 0,
            },
            rate: Some(SLOW),
            receivers: None,
            holders: None,
            time_limit: None,
            rack_prefix: None,
            multicast: None,
            frisbee: None,
            frisbee_names: None,
            page: Some(page_config()),
        };
        let progress = Arc::new(Progress::default());
        let (events, mut seen) = mpsc::unbounded_channel();
        let stop = Arc::clone(&progress);
        let thread = std::thread::spawn(move || {
            let mut on_event = |event| drop(events.send(event));
            crate::serve(&config, catalog, &stop, &mut on_event).unwrap()
        });
        let listening = within(seen.recv()).await.unwrap();
        let ServeEvent::Listening { address: SocketAddr::V4(address), page: Some(page) } =
            listening
        else {
            panic!("{listening:?}")
        };
        Self { folder, address, page, progress, thread }
    }

    /// Fetches as 127.0.0.`client`.
    fn fetch(&self, client: u8) -> std::thread::JoinHandle<Fetched> {
        let target: PathBuf = self.folder.path().join(format!("copy{client}"));
        let config = FetchConfig {
            server: self.address,
            own: Some(Ipv4Addr::new(127, 0, 0, client)),
            name: NAME.to_owned(),
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
        };
        std::thread::spawn(move || {
            let (fetched, result) =
                crate::fetch(&config, &Arc::new(Progress::default()), &mut |_| {});
            result.unwrap();
            fetched
        })
    }

    /// Opens a session as a client that then reports whatever it likes.
    async fn impostor(&self) -> TcpStream {
        let mut stream = within(TcpStream::connect(self.address)).await.unwrap();
        hello::connect(&mut stream, Purpose::Session, &Auth::Number).await.unwrap();
        Frame::Open(NAME.as_bytes().to_vec()).write(&mut stream).await.unwrap();
        let Frame::Manifest { len, .. } = within(Frame::read(&mut stream)).await.unwrap() else {
            panic!("no manifest")
        };
        within(stream.read_exact(&mut vec![0; len as usize])).await.unwrap();
        stream
    }

    fn stop(self) -> Served {
        self.progress.stop();
        self.thread.join().unwrap()
    }
}

const NAME: &str = "<b>\"golden\\</b>";

#[tokio::test]
async fn the_page_follows_a_fetch_to_its_end() {
    let server = Running::start().await;
    let mut events = Events::open(server.page).await;
    let (name, first) = events.next().await.unwrap();
    assert_eq!((&*name, &first["clients"]), ("message", &Value::Array(Vec::new())));
    assert_eq!(
        (&first["images"][0]["name"], &first["images"][0]["chunks"]),
        (&NAME.into(), &128.into())
    );
    let clients = [server.fetch(2), server.fetch(3)];
    let mut have = Vec::new();
    let last = loop {
        let (name, event) = events.next().await.unwrap();
        assert_eq!(name, "message");
        have.push(event["clients"][0]["have"].as_u64().unwrap_or(0));
        if event["phases"]["done"] == 2 {
            break event;
        }
    };
    assert!(have.is_sorted() && have.last() == Some(&128), "{have:?}");
    assert!(have.iter().any(|have| (1..128).contains(have)), "it was seen in between: {have:?}");
    let fetched = clients.map(|client| client.join().unwrap());
    // The squares are what the clients say in the end.
    let server_to = |client: &Fetched| client.from.get(&Ipv4Addr::LOCALHOST).copied().unwrap_or(0);
    let other = |client: &Fetched, other: u8| {
        client.from.get(&Ipv4Addr::new(127, 0, 0, other)).copied().unwrap_or(0)
    };
    let mut expected = vec![
        (0, 0, server_to(&fetched[0])),
        (0, 2, other(&fetched[0], 3)),
        (1, 0, server_to(&fetched[1])),
        (1, 1, other(&fetched[1], 2)),
    ];
    expected.retain(|(.., chunks)| *chunks > 0);
    assert_eq!(last["flows"][0]["cells"], serde_json::to_value(expected).unwrap());
    assert_eq!(last["clients"][1]["by_server"], server_to(&fetched[1]));
    assert_eq!(json(server.page, "/clients/127.0.0.3").await["have"], 128);

    let samples = parsed(&get(server.page, "/metrics").await.body);
    let one = [("client", "127.0.0.2"), ("image", NAME), ("state", "written")];
    assert_eq!(value(&samples, "client_chunks", &one), 128.0);
    assert_eq!(value(&samples, "clients", &[("image", NAME), ("phase", "done")]), 2.0);
    let sent = value(&samples, "sent_chunks_total", &[("image", NAME)]);
    let of_server: u32 = fetched.iter().map(server_to).sum();
    assert!(sent >= f64::from(of_server) && of_server >= 128, "{sent} {of_server}");

    let page = server.page;
    server.progress.stop();
    let end = loop {
        match events.next().await.unwrap() {
            (name, event) if name == "end" => break event,
            (name, _) => assert_eq!(name, "message"),
        }
    };
    assert_eq!(end["phases"]["done"], 2);
    assert!(events.next().await.is_none(), "nothing follows the end");
    let served = server.stop();
    assert_eq!(served.status.chunks_sent, end["chunks_sent"]);
    assert!(TcpStream::connect(page).await.is_err(), "the port is free");
}

#[tokio::test]
async fn what_a_hostile_client_reports_is_text_everywhere() {
    let server = Running::start().await;
    let mut client = server.impostor().await;
    let failure = "</script><script>alert(1)</script>\r\n\r\ndata: {}\u{2028}\"} 1";
    let report = serde_json::json!({
        "phase": "failed", "have": u32::MAX, "bytes": u64::MAX, "receive_rate": u64::MAX, "send_rate": u64::MAX,
        "retries": u32::MAX, "elapsed_ms": 0, "failure": failure, "from": {"255.255.255.255": u32::MAX},
    });
    Frame::Status(report.to_string().into_bytes()).write(&mut client).await.unwrap();
    assert_eq!(within(Frame::read(&mut client)).await.unwrap(), Frame::Seen(String::new()));
    let mut events = Events::open(server.page).await;
    let event = loop {
        let (_, event) = events.next().await.unwrap();
        if event["phases"]["failed"] == 1 {
            break event;
        }
    };
    let row = &event["clients"][0];
    let shown: String =
        failure.chars().filter(|letter| !rackweave_core::is_hidden(*letter)).collect();
    assert_eq!((&row["address"], &row["slow"]), (&"127.0.0.1".into(), &shown.into()));
    assert_eq!(row["have"], 128, "no more than there is");
    let samples = parsed(&get(server.page, "/metrics").await.body);
    let one = [("client", "127.0.0.1"), ("image", NAME)];
    assert_eq!(value(&samples, "client_slow", &one), 1.0);
    assert_eq!(value(&samples, "client_received_bytes_total", &one), u64::MAX as f64);
    // Neither is in the document, which gets all of it as data.
    let html = get(server.page, "/").await.body;
    assert!(!html.contains("alert") && !html.contains("golden"));
    server.stop();
}

#[tokio::test]
async fn each_path_has_its_content_and_its_headers() {
    let (sender, shown) = watch::channel(None);
    let page = start(&page_config(), shown).unwrap();
    for path in ["/status.json", "/metrics"] {
        assert_eq!(get(page.address, path).await.status, 503, "{path}: there is nothing yet");
    }
    let one = client(Ipv4Addr::new(10, 0, 0, 1), ClientStatus::default());
    sender.send_replace(Some(Arc::new(status(vec![one]))));
    let kinds = [
        ("/", 200, "text/html; charset=utf-8"),
        ("/status.json", 200, "application/json"),
        ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8"),
        ("/clients/10.0.0.1", 200, "application/json"),
        ("/clients/10.0.0.2", 404, "text/plain; charset=utf-8"),
        ("/clients/golden", 400, "text/plain; charset=utf-8"),
        ("/page.js", 404, "text/plain; charset=utf-8"),
        ("/../etc/passwd", 404, "text/plain; charset=utf-8"),
    ];
    for (path, status, kind) in kinds {
        let response = get(page.address, path).await;
        assert_eq!((response.status, &*response.headers["content-type"]), (status, kind), "{path}");
        assert_eq!(response.headers["x-content-type-options"], "nosniff");
        assert_eq!(response.headers["cache-control"], "no-store");
        assert!(response.headers["content-security-policy"].starts_with("default-src 'none'; "));
        assert!(!response.headers.contains_key("access-control-allow-origin"), "{path}");
    }
    let all = json(page.address, "/status.json").await;
    assert_eq!(
        (&all["clients"][0]["phase"], &all["images"][0]["copies"]),
        (&"checking".into(), &2.0.into())
    );
    let nonces = [get(page.address, "/").await, get(page.address, "/").await].map(|page| {
        let policy = &page.headers["content-security-policy"];
        let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
        assert!(nonce.len() == 32 && page.body.matches(&nonce).count() == 2);
        nonce
    });
    assert_ne!(nonces[0], nonces[1]);
    let request = |first: &str, host: &str| format!("{first} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    assert_eq!(ask(page.address, &request("POST /", "localhost")).await.status, 405);
    assert_eq!(ask(page.address, &request("HEAD /", "localhost")).await.body, "");
    for (host, status) in [("images.example:80", 200), ("localhost:1", 200), ("evil.example", 421)]
    {
        let response = ask(page.address, &request("GET /status.json", host)).await;
        assert_eq!((response.status, response.body.contains("clients")), (status, status == 200));
    }
    drop(sender);
    page.join();
}

/// Until a status is held by nobody.
async fn forgotten(status: std::sync::Weak<ServerStatus>) {
    within(async {
        while status.strong_count() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_nothing_for_long() {
    let limits = Limits { stall: Duration::from_millis(200), ..Limits::default() };
    let (sender, shown) = watch::channel(None);
    let page = with(&page_config(), shown, limits).unwrap();
    let first = Arc::new(large());
    let held = Arc::downgrade(&first);
    sender.send_replace(Some(first));
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut stalled = Vec::new();
    for _ in 0..4 {
        let mut stream = send(page.address, &request("/status.json")).await;
        within(stream.read_exact(&mut [0; 12])).await.unwrap();
        stalled.push(stream);
    }
    for _ in 0..8 {
        stalled.push(send(page.address, &request("/events")).await);
    }
    // Publishing never waits for readers.
    sender.send_replace(Some(Arc::new(large())));
    sender.send_replace(Some(Arc::new(status(Vec::new()))));
    forgotten(held).await;
    // Others are answered, and in the end those of the same kind, too.
    assert_eq!(get(page.address, "/metrics").await.status, 200);
    within(async { while get(page.address, "/status.json").await.status != 200 {} }).await;
    drop(sender);
    page.join();
    drop(stalled);
}

#[tokio::test]
async fn silent_connections_end_and_their_number_is_limited() {
    // Readers below have as long to ask for events, which is long enough on a machine with much else to do.
    let connections = Bounds { most: 3, of_one: 3, kept: 0 };
    let limits = Limits { connections, request: Duration::from_secs(3), ..Limits::default() };
    let (sender, shown) = watch::channel(Some(Arc::new(status(Vec::new()))));
    let page = with(&page_config(), shown, limits).unwrap();
    // One that asks for nothing, one that stops in a request, and one that stops after it.
    let silent = async |request: &str| {
        let mut stream = send(page.address, request).await;
        within(stream.read_to_end(&mut Vec::new())).await.unwrap();
    };
    let all = "GET /clients/1.1.1.1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    tokio::join!(silent(""), silent("GET / HT"), silent(all));
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    let mut stream = send(page.address, &long).await;
    let mut answer = Vec::new();
    // The rest of the request may be answered by a reset.
    let _ = within(stream.read_to_end(&mut answer)).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"));
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(Events::open(page.address).await);
    }
    // One of them makes room: the one that has taken an event least recently, as the server sees it.
    assert_eq!(get(page.address, "/metrics").await.status, 200);
    let ended = within(async {
        for which in (0..readers.len()).cycle() {
            let more = timeout(Duration::from_millis(10), readers[which].0.fill_buf()).await;
            match more.map(|more| more.is_ok_and(|bytes| !bytes.is_empty())) {
                Ok(true) => drop(readers[which].0.read_line(&mut String::new()).await),
                Ok(false) => return which,
                Err(_) => {}
            }
        }
        unreachable!("a cycle has no end")
    })
    .await;
    readers.remove(ended);
    sender.send_replace(Some(Arc::new(status(Vec::new()))));
    for reader in &mut readers {
        assert!(reader.next().await.is_some());
    }
    drop(sender);
    page.join();
}

#[tokio::test]
async fn heads_that_never_end_keep_nobody_out() {
    let (_sender, shown) = watch::channel(Some(Arc::new(status(Vec::new()))));
    let page = with(&page_config(), shown, Limits::default()).unwrap();
    let mut slow = Vec::new();
    for _ in 0..64 {
        slow.push(send(page.address, "GET / HT").await);
    }
    assert_eq!(get(page.address, "/metrics").await.status, 200);
    // The oldest ones of the address have made room.
    let of_one = Limits::default().connections.of_one;
    let latest = slow.split_off(slow.len() - (of_one - 1));
    for stream in &mut slow {
        assert_eq!(within(stream.read(&mut [0; 1])).await.unwrap_or(0), 0, "it is closed");
    }
    assert!(latest.iter().all(|stream| stream.try_read(&mut [0; 1]).is_err()), "they are open");
}

/// What fits the buffers of sockets stalls nobody: that a reader reads nothing cannot be seen.
#[tokio::test]
async fn readers_of_events_keep_neither_metrics_nor_other_readers_out() {
    let (_sender, shown) = watch::channel(Some(Arc::new(status(Vec::new()))));
    let page = with(&page_config(), shown, Limits::default()).unwrap();
    let mut silent = Vec::new();
    for _ in 0..100 {
        let request = format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", page.address);
        silent.push(send(page.address, &request).await);
    }
    for _ in 0..30 {
        assert_eq!(get(page.address, "/metrics").await.status, 200);
    }
    let mut reader = Events::open(page.address).await;
    assert!(reader.next().await.is_some() && reader.next().await.is_some());
    assert_eq!(get(page.address, "/metrics").await.status, 200);
    drop(silent);
}

#[test]
fn a_page_that_is_not_required_may_fail() {
    let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listen = taken.local_addr().unwrap();
    let config = |is_required| ServeConfig {
        listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0),
        key: None,
        machine: p2p::server::Config { serve: p2p::Serve::default(), directory: None, expected: 0 },
        rate: None,
        receivers: None,
        holders: None,
        time_limit: None,
        rack_prefix: None,
        multicast: None,
        frisbee: None,
        frisbee_names: None,
        page: Some(PageConfig { listen, is_required, ..page_config() }),
    };
    let stopped = Progress::default();
    stopped.stop();
    let run = |is_required| {
        let mut seen = Vec::new();
        let mut on_event = |event| seen.push(event);
        let served =
            crate::serve(&config(is_required), Catalog::default(), &stopped, &mut on_event);
        (served, seen)
    };
    let (served, seen) = run(false);
    assert!(served.is_ok());
    assert!(matches!(&seen[0], ServeEvent::NoPage { address, .. } if *address == listen));
    assert!(matches!(seen[1], ServeEvent::Listening { page: None, .. }));
    let (served, seen) = run(true);
    assert!(matches!(served, Err(crate::ServeError::Page { address, .. }) if address == listen));
    assert!(seen.is_empty());
}
