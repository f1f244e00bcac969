//! The server, which echoes requests.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, MessageId, Span, Time};
use rackweave_linux::endpoint::Network;
use rackweave_linux::{AnyEndpoint, Clock, Event, SendError};
use rustc_hash::FxHashMap;

use crate::config::{BenchError, Setup};

/// The first bytes of a client's greeting, which requests a kind of response. All other requests are only load.
pub(crate) const GREETING: &[u8; 16] = b"rackweave bench1";

/// The byte after the greeting, and after the reply to it, that stands for echoed responses.
pub(crate) const WANTS_ECHO: u8 = b'e';
pub(crate) const WANTS_SHORT: u8 = b's';

/// The length of a short response in bytes, as with `cp_node --one-way`.
pub(crate) const SHORT_BYTES: usize = 100;

/// The number of responses that may wait for memory; further requests are dropped.
const MAX_WAITING: usize = 1 << 14;

/// How long a thread sleeps before it checks whether to stop.
pub(crate) const NAP: Span = Span::from_ms(50);

/// The configuration of the servers on this host.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The configuration of the endpoints.
    pub setup: Setup,
    /// The address of the first thread; the others listen on the following ports.
    pub listen: SocketAddr,
    /// The number of threads, each with its own endpoint.
    pub ports: u16,
    /// The networks that are served, besides this host.
    pub allow: Vec<Network>,
}

/// The counters of servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Answered requests, and streams.
    pub requests: u64,
    /// Bytes of requests and streams received.
    pub bytes_in: u64,
    /// Bytes of responses sent.
    pub bytes_out: u64,
    /// Requests and streams that failed.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    failed: AtomicU64,
}

/// The threads of the servers on this host.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    counters: Arc<Counters>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Listens and starts to serve.
    ///
    /// # Errors
    /// If an address is not available, or a thread cannot be started.
    pub fn start(config: &ServeConfig) -> Result<Self, BenchError> {
        let mut allow: Vec<Network> =
            ["127.0.0.0/8", "::1"].iter().filter_map(|network| network.parse().ok()).collect();
        allow.extend(&config.allow);
        if config.setup.is_of_module() && config.listen.port() == 0 {
            return Err(BenchError::NotOfModule("its servers have a port below 32768: name it"));
        }
        let clock = Clock::start();
        let mut endpoints = Vec::new();
        for index in 0..config.ports {
            let mut listen = config.listen;
            if listen.port() != 0 {
                listen.set_port(listen.port().saturating_add(index));
            }
            endpoints.push(config.setup.endpoint(clock, listen, allow.clone())?.0);
        }
        let addresses: Vec<SocketAddr> = endpoints.iter().map(AnyEndpoint::local_addr).collect();
        for address in &addresses {
            tracing::info!(%address, transport = config.setup.name(), "serving");
        }
        let stop = Arc::new(AtomicBool::new(false));
        let counters = Arc::new(Counters::default());
        let mut threads = Vec::new();
        for (index, endpoint) in endpoints.into_iter().enumerate() {
            let (stop, counters) = (Arc::clone(&stop), Arc::clone(&counters));
            let thread = std::thread::Builder::new()
                .name(format!("serve {index}"))
                .spawn(move || Worker::new(endpoint, counters).run(&stop))
                .map_err(BenchError::Thread)?;
            threads.push(thread);
        }
        Ok(Self { addresses, stop, counters, threads })
    }

    /// Returns the addresses on which they listen.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn served(&self) -> Served {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Served {
            requests: get(&self.counters.requests),
            bytes_in: get(&self.counters.bytes_in),
            bytes_out: get(&self.counters.bytes_out),
            failed: get(&self.counters.failed),
        }
    }

    /// Returns whether one of the threads has failed.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Stops the threads.
    ///
    /// # Errors
    /// The error of a thread that failed.
    pub fn stop(self) -> io::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("a serving thread has panicked"))??;
        }
        Ok(())
    }
}

/// A response that waits for memory.
type Waiting = (HostId, MessageId, Bytes);

struct Worker {
    endpoint: AnyEndpoint,
    counters: Arc<Counters>,
    /// Clients that asked for short responses.
    short: FxHashMap<HostId, ()>,
    streams: FxHashMap<(HostId, MessageId), blake3::Hasher>,
    /// Responses that wait for memory, in the order of their requests.
    waiting: VecDeque<Waiting>,
    short_response: Bytes,
}

impl Worker {
    fn new(endpoint: AnyEndpoint, counters: Arc<Counters>) -> Self {
        Self {
            endpoint,
            counters,
            short: FxHashMap::default(),
            streams: FxHashMap::default(),
            waiting: VecDeque::new(),
            short_response: Bytes::from(vec![0; SHORT_BYTES]),
        }
    }

    fn run(mut self, stop: &AtomicBool) -> io::Result<()> {
        let clock = self.endpoint.clock();
        while !stop.load(Ordering::Relaxed) {
            let next = self.endpoint.turn()?.unwrap_or(Time::MAX);
            if self.handle_events() {
                continue;
            }
            let nap = clock.now() + NAP;
            self.endpoint.wait(Some(next.min(nap)))?;
        }
        Ok(())
    }

    /// Handles events; returns whether there were any.
    fn handle_events(&mut self) -> bool {
        let mut any = false;
        while let Some((peer, id, bytes)) = self.waiting.pop_front() {
            if let Some(again) = self.respond(peer, id, bytes) {
                self.waiting.push_front(again);
                break;
            }
        }
        while let Some(event) = self.endpoint.poll_event() {
            any = true;
            self.handle(event);
        }
        any
    }

    fn handle(&mut self, event: Event) {
        let add = |counter: &AtomicU64, n: usize| {
            counter.fetch_add(n as u64, Ordering::Relaxed);
        };
        match event {
            Event::Message { peer, id, kind: Kind::Request, bytes } => {
                add(&self.counters.bytes_in, bytes.len());
                let response = self.response(peer, bytes);
                if self.waiting.len() >= MAX_WAITING {
                    self.endpoint.cancel(peer, id);
                    add(&self.counters.failed, 1);
                } else if !self.waiting.is_empty() {
                    self.waiting.push_back((peer, id, response));
                } else if let Some(again) = self.respond(peer, id, response) {
                    self.waiting.push_back(again);
                }
            }
            Event::Message { bytes, .. } => add(&self.counters.bytes_in, bytes.len()),
            Event::Opened { peer, id } => {
                self.streams.insert((peer, id), blake3::Hasher::new());
            }
            Event::Readable { peer, id, pieces, end } => {
                let Some(hasher) = self.streams.get_mut(&(peer, id)) else { return };
                let mut count = 0;
                for piece in &pieces {
                    hasher.update(piece);
                    count += piece.len();
                }
                add(&self.counters.bytes_in, count);
                if end {
                    let digest = Bytes::copy_from_slice(hasher.finalize().as_bytes());
                    add(&self.counters.bytes_out, digest.len());
                    add(&self.counters.requests, 1);
                    if self.endpoint.write(peer, id.response(), digest, true).is_err() {
                        self.endpoint.cancel(peer, id);
                    }
                }
                self.endpoint.consume(peer, id, count as u64);
            }
            Event::Failed { peer, id, reason } => {
                let address = self.endpoint.peer_addr(peer);
                tracing::debug!(peer = ?address, ?id, ?reason, "call failed");
                add(&self.counters.failed, 1);
                self.streams.remove(&(peer, id));
            }
            Event::Closed { peer, id } => {
                self.streams.remove(&(peer, id));
            }
            Event::PeerRestarted { peer } => {
                tracing::info!(peer = ?self.endpoint.peer_addr(peer), "peer has restarted");
                self.short.remove(&peer);
            }
            // A server only answers; a client with another key has no session with it.
            Event::Sent { .. } | Event::Written { .. } | Event::KeyMismatch { .. } => {}
            Event::PathMtu { peer, change } => {
                let peer = self.endpoint.peer_addr(peer);
                tracing::warn!(?peer, "{change}");
            }
        }
    }

    fn response(&mut self, peer: HostId, request: Bytes) -> Bytes {
        if let Some([wanted, ..]) = request.strip_prefix(GREETING)
            && request.len() == GREETING.len() + 1
        {
            if *wanted == WANTS_SHORT {
                self.short.insert(peer, ());
            } else {
                self.short.remove(&peer);
            }
            return request;
        }
        if self.short.contains_key(&peer) { self.short_response.clone() } else { request }
    }

    /// Sends a response, or returns it if there is no memory for it now.
    fn respond(&mut self, peer: HostId, id: MessageId, bytes: Bytes) -> Option<Waiting> {
        let len = bytes.len() as u64;
        match self.endpoint.respond(peer, id, bytes.clone()) {
            Ok(()) => {
                self.counters.requests.fetch_add(1, Ordering::Relaxed);
                self.counters.bytes_out.fetch_add(len, Ordering::Relaxed);
                None
            }
            Err(SendError::Full { .. }) => Some((peer, id, bytes)),
            // The client has cancelled the call.
            Err(_) => {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}
