//! A client thread: its endpoint, the greeting of servers, and its results.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use rackweave_core::{HostId, Kind, MessageId, Rng, Span, Time};
use rackweave_linux::endpoint::{KeyMismatch, TicketFile};
use rackweave_linux::{AnyEndpoint, Clock, Event, SendError};
use rackweave_workload::WorkloadError;
use rackweave_workload::app::App;

use crate::calls::{self, Calls};
use crate::config::{BenchConfig, Mode};
use crate::measure::{Digests, Interval, Seconds, ThreadEnd, Trouble};
use crate::server::{GREETING, WANTS_ECHO, WANTS_SHORT};

/// How long to greet a server before giving up.
const GREET_FOR: Span = Span::from_secs(3);

/// The interval between failed greetings, and the delay of a request that follows a failed one.
pub(crate) const PAUSE: Span = Span::from_ms(20);

/// Requests are slices of a block of noise that is this much longer than the longest of them.
pub(crate) const NOISE_BYTES: u64 = 1 << 20;

/// State that all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    /// Measurements since they were last fetched, per thread.
    pub(crate) intervals: Vec<Mutex<Interval>>,
    pub(crate) noise: Bytes,
}

impl Shared {
    pub(crate) fn new(config: &BenchConfig) -> Self {
        let longest = match config.mode {
            Mode::Stream => crate::stream::BLOCK_BYTES as u64,
            Mode::Echo | Mode::OneWay => config.sizes.max(),
        };
        let mut rng = Rng::stream(config.seed, 0, 0, "contents");
        let mut noise = BytesMut::new();
        while (noise.len() as u64) < longest + NOISE_BYTES {
            noise.put_u64(rng.next_u64());
        }
        Self {
            stop: AtomicBool::new(false),
            intervals: (0..config.ports).map(|_| Mutex::default()).collect(),
            noise: noise.freeze(),
        }
    }

    pub(crate) fn interval(&self, thread: usize) -> std::sync::MutexGuard<'_, Interval> {
        // A thread that has panicked is noticed when it is joined.
        self.intervals[thread].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The endpoint and state of one thread.
pub(crate) struct Client {
    pub(crate) thread: usize,
    pub(crate) config: Arc<BenchConfig>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) endpoint: AnyEndpoint,
    tickets: Option<TicketFile>,
    pub(crate) servers: Vec<(HostId, SocketAddr)>,
    pub(crate) clock: Clock,
    pub(crate) end: ThreadEnd,
    pub(crate) rng: Rng,
    /// The applications that start the requests, one after the other.
    pub(crate) apps: Vec<App>,
    /// The digests of what was sent and received, if requested.
    pub(crate) hashers: Option<(blake3::Hasher, blake3::Hasher, u64)>,
}

impl Client {
    pub(crate) fn new(
        thread: usize,
        config: Arc<BenchConfig>,
        shared: Arc<Shared>,
        (mut endpoint, tickets): (AnyEndpoint, Option<TicketFile>),
    ) -> Result<Self, WorkloadError> {
        let servers =
            config.servers.iter().map(|&server| (endpoint.add_peer(server), server)).collect();
        let clock = endpoint.clock();
        Ok(Self {
            thread,
            servers,
            clock,
            end: ThreadEnd::new(),
            rng: Rng::stream(config.seed, 0, thread as u64, "calls"),
            apps: calls::apps(&config, thread)?,
            hashers: config.check.then(|| (blake3::Hasher::new(), blake3::Hasher::new(), 0)),
            config,
            shared,
            endpoint,
            tickets,
        })
    }

    /// Runs until the end and returns the results.
    pub(crate) fn run(mut self) -> ThreadEnd {
        let result = match self.greet() {
            Ok(()) if self.config.mode == Mode::Stream => self.run_stream(),
            Ok(()) => Calls::new(&mut self).map_or(Ok(()), Calls::run),
            Err(trouble) => Err(trouble),
        };
        self.end.trouble = result.err().or_else(|| self.keep_tickets().err());
        if let Some((sent, back, bytes)) = self.hashers.take() {
            let hex = |hasher: blake3::Hasher| hasher.finalize().to_hex().to_string();
            self.end.digests = Some(Digests { bytes, sent: hex(sent), back: hex(back) });
        }
        self.shared.interval(self.thread).outstanding = 0;
        self.end
    }

    /// Sends a request.
    pub(crate) fn request(&mut self, peer: HostId, bytes: Bytes) -> Result<MessageId, SendError> {
        match self.config.idempotent {
            true => self.endpoint.send_idempotent(peer, Kind::Request, bytes),
            false => self.endpoint.send(peer, Kind::Request, bytes),
        }
    }

    /// Writes the tickets of the run to their file.
    fn keep_tickets(&mut self) -> Result<(), Trouble> {
        let Some(file) = &self.tickets else { return Ok(()) };
        let Some(store) = self.endpoint.changed_tickets() else { return Ok(()) };
        file.save(store).map_err(|error| Trouble::Tickets(error.to_string()))
    }

    pub(crate) fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn turn(&mut self) -> Result<Option<Time>, Trouble> {
        self.endpoint.turn().map_err(|error| socket(&error))
    }

    /// The request of this length that begins here in the noise. `server`, a utility of HomaModule, answers with as many bytes as the
    /// second word of a request says.
    pub(crate) fn payload(&self, offset: usize, len: usize) -> Bytes {
        let noise = self.shared.noise.slice(offset..offset + len);
        match noise.get(2 * size_of::<u32>()..) {
            Some(rest) if self.config.setup.is_of_module() => {
                let word = (len as u32).to_ne_bytes();
                [&word, &word, rest].concat().into()
            }
            _ => noise,
        }
    }

    /// The message that requests the kind of responses that servers must send.
    fn greeting(&self) -> Bytes {
        if self.config.setup.is_of_module() {
            return self.payload(0, GREETING.len() + 1);
        }
        let wants = match self.config.mode {
            Mode::OneWay => WANTS_SHORT,
            Mode::Echo | Mode::Stream => WANTS_ECHO,
        };
        Bytes::from([&GREETING[..], &[wants]].concat())
    }

    /// Greets a server that was restarted. The reply is ignored, like any response to an unknown request.
    pub(crate) fn greet_again(&mut self, peer: HostId) {
        let _ = self.request(peer, self.greeting());
    }

    /// The problem that a server's key differs.
    pub(crate) fn key_trouble(&self, peer: HostId, why: KeyMismatch) -> Result<(), Trouble> {
        let server = self.servers.iter().find(|(host, _)| *host == peer);
        server.map_or(Ok(()), |&(_, server)| Err(Trouble::Key { server, why }))
    }

    /// Greets each server, and requests the kind of responses that it must send.
    fn greet(&mut self) -> Result<(), Trouble> {
        let greeting = self.greeting();
        let setup = self.config.setup.clone();
        let began = self.clock.now();
        for (host, server) in self.servers.clone() {
            let no_answer = |now: Time| Trouble::NoAnswer {
                server,
                transport: setup.name().to_owned(),
                option: setup.option(),
                protocol: setup.protocol(),
                waited_s: Seconds(now.since(began).as_secs_f64()),
            };
            let until = self.clock.now() + GREET_FOR;
            let mut asked: Option<MessageId> = None;
            let mut ask_at = self.clock.now();
            'asking: loop {
                let now = self.clock.now();
                if now >= until || self.shared.stop.load(Ordering::Relaxed) {
                    if let Some(id) = asked {
                        self.endpoint.cancel(host, id);
                    }
                    return Err(no_answer(now));
                }
                if asked.is_none() && now >= ask_at {
                    let sent = self.request(host, greeting.clone());
                    asked = Some(sent.map_err(|error| Trouble::Refused(error.to_string()))?);
                }
                let next = self.endpoint.turn().map_err(|error| socket(&error))?;
                while let Some(event) = self.endpoint.poll_event() {
                    match event {
                        Event::Message { id, .. } if Some(id) == asked.map(MessageId::response) => {
                            let took = self.clock.now().since(began);
                            let early = self.endpoint.stats().early_sent > 0;
                            self.end.first.get_or_insert((took, early));
                            break 'asking;
                        }
                        Event::Failed { id, .. } if Some(id) == asked => {
                            asked = None;
                            ask_at = now + PAUSE;
                        }
                        Event::KeyMismatch { peer, why } if peer == host => {
                            return Err(Trouble::Key { server, why });
                        }
                        _ => {}
                    }
                }
                let wake = next.unwrap_or(Time::MAX).min(now + PAUSE);
                self.endpoint.wait(Some(wake)).map_err(|error| socket(&error))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn socket(error: &io::Error) -> Trouble {
    Trouble::Socket(error.to_string())
}
