//! A registry that counts, and nodes.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rackweave_node::{Credentials, Digest, Event, NodeConfig, Service, Upstream};

/// A registry with blobs under any name, written for these tests alone: HTTP/1.1, one request a connection.
pub(crate) struct Registry {
    pub(crate) address: SocketAddr,
    pub(crate) state: Arc<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) content: Mutex<BTreeMap<String, Vec<u8>>>,
    pub(crate) requests: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Whether it sends parts.
    pub(crate) has_parts: AtomicBool,
    /// Bytes per second of each connection; 0: as fast as it goes.
    pub(crate) rate: AtomicU64,
    /// After how many bytes each answer breaks off; 0: none does.
    pub(crate) breaks: AtomicU64,
    /// Whether it wants a token first.
    pub(crate) wants_token: AtomicBool,
    /// Whether it does not answer.
    pub(crate) is_down: AtomicBool,
    /// Where it redirects to; 0: nowhere.
    pub(crate) redirects: AtomicU64,
    /// The length that heads name; 0: the true one.
    pub(crate) claims: AtomicU64,
    /// Whether heads say no length but 0.
    pub(crate) claims_nothing: AtomicBool,
    /// Authorizations that it was sent.
    pub(crate) seen: Mutex<Vec<String>>,
}

impl Registry {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { has_parts: true.into(), ..State::default() });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || {
                    let _ = serve(&stream.unwrap(), address, &state);
                });
            }
        });
        Self { address, state }
    }

    /// Puts content there, and returns its digest.
    pub(crate) fn put(&self, bytes: Vec<u8>) -> Digest {
        let digest = Digest::of(&bytes);
        self.state.content.lock().unwrap().insert(digest.to_string(), bytes);
        digest
    }

    pub(crate) fn tag(&self, tag: &str, bytes: &[u8]) {
        self.state.content.lock().unwrap().insert(tag.to_owned(), bytes.to_vec());
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::Relaxed)
    }
}

fn serve(stream: &TcpStream, address: SocketAddr, state: &State) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let mut out = stream;
    if state.is_down.load(Ordering::Relaxed) {
        return Ok(());
    }
    state.requests.fetch_add(1, Ordering::Relaxed);
    state.seen.lock().unwrap().extend(headers.get("authorization").cloned());
    let port = state.redirects.load(Ordering::Relaxed);
    if port > 0 && !path.starts_with("/token") {
        return write!(
            out,
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:{port}{path}\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    if path.starts_with("/token") {
        let is_right = headers.get("authorization").is_some_and(|it| it == "Basic bWU6c2VjcmV0");
        let body = if is_right { r#"{"token": "t0", "expires_in": 60}"# } else { "{}" };
        return write!(
            out,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
    }
    let has_token = headers.get("authorization").is_some_and(|it| it == "Bearer t0");
    if state.wants_token.load(Ordering::Relaxed) && !has_token {
        return write!(
            out,
            "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"http://{address}/token\",service=\"s\"\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    let reference = path.split('?').next().unwrap_or(path).rsplit('/').next().unwrap_or("");
    let content = state.content.lock().unwrap().get(reference).cloned();
    let Some(content) = content else {
        return write!(
            out,
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    };
    let part = headers.get("range").filter(|_| state.has_parts.load(Ordering::Relaxed));
    let part = part.and_then(|it| it.strip_prefix("bytes=")?.split_once('-'));
    let part = part.map(|(first, last)| {
        let last: usize = last.parse().unwrap_or(usize::MAX - 1);
        first.parse().unwrap()..(last + 1).min(content.len())
    });
    let (status, more) = match &part {
        Some(part) => (
            "206 Partial Content",
            format!("Content-Range: bytes {}-{}/{}\r\n", part.start, part.end - 1, content.len()),
        ),
        None => ("200 OK", String::new()),
    };
    let body = &content[part.unwrap_or(0..content.len())];
    let claimed = match (method, state.claims.load(Ordering::Relaxed)) {
        ("HEAD", _) if state.claims_nothing.load(Ordering::Relaxed) => 0,
        ("HEAD", claimed) if claimed > 0 => claimed,
        _ => body.len() as u64,
    };
    write!(
        out,
        "HTTP/1.1 {status}\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\n{more}\
         Content-Length: {claimed}\r\nConnection: close\r\n\r\n"
    )?;
    if method == "HEAD" {
        return Ok(());
    }
    let breaks = usize::try_from(state.breaks.load(Ordering::Relaxed)).unwrap();
    let body = if breaks > 0 { &body[..body.len().min(breaks)] } else { body };
    for piece in body.chunks(64 << 10) {
        out.write_all(piece)?;
        state.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        let rate = state.rate.load(Ordering::Relaxed);
        if rate > 0 {
            wait(Duration::from_secs_f64(piece.len() as f64 / rate as f64));
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a test waits")]
pub(crate) fn wait(time: Duration) {
    std::thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "a test has a deadline")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits until something holds that follows from what has happened.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        wait(Duration::from_millis(10));
    }
}

/// Bytes that do not repeat.
pub(crate) fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut all = Vec::with_capacity(length + 8);
    while all.len() < length {
        all.extend_from_slice(&next().to_le_bytes());
    }
    all.truncate(length);
    all
}

pub(crate) struct Running {
    pub(crate) service: Service,
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
}

/// The configuration of a node at 127.0.0.1 with this store, and the directory at `directory`; its own if that is port 0.
pub(crate) fn config(registry: &Registry, store: &Path) -> NodeConfig {
    let url = format!("http://{}", registry.address);
    NodeConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        nodes: None,
        directory: None,
        rack: String::new(),
        store: store.to_owned(),
        capacity: 1 << 30,
        upstreams: vec![Upstream { name: "example".into(), url }],
        credentials: Credentials::default(),
        certificates: None,
        names: Vec::new(),
    }
}

pub(crate) fn start(config: NodeConfig) -> Running {
    let events: Arc<Mutex<Vec<Event>>> = Arc::default();
    let told = Arc::clone(&events);
    let report = move |event: &Event| told.lock().unwrap().push(event.clone());
    Running { service: Service::start(config, report).unwrap(), events }
}

/// A node whose neighbours are found by the directory of the first one.
pub(crate) fn neighbour(registry: &Registry, store: &Path, first: Option<&Running>) -> Running {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let directory = first.map_or(any, |first| first.service.nodes.unwrap());
    start(NodeConfig { nodes: Some(any), directory: Some(directory), ..config(registry, store) })
}

/// An answer of HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// Whether the body has the length that was announced.
    pub(crate) is_whole: bool,
}

/// Asks as a runtime that was not written here would: by a socket.
pub(crate) fn ask(to: SocketAddr, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    )
    .unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    let mut all = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        all.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = Vec::new();
    let _ = reader.read_to_end(&mut body);
    let length = all.get("content-length").and_then(|it| it.parse().ok());
    let is_whole = method == "HEAD" || length == Some(body.len());
    Answer { status, headers: all, body, is_whole }
}

pub(crate) fn pull(node: &Running, digest: &Digest) -> Answer {
    ask(node.service.address, "GET", &format!("/v2/app/blobs/{digest}"), "")
}
