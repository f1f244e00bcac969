//! A client of Emulab's `frisbeed`: it fetches an `.ndz` file from a session that it knows only the group and port of.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rackweave_core::{Rng, Span, Time};
use rackweave_image::{ImageError, IncomingNdz, Progress, WrittenNdz, ndz};
use rackweave_linux::sys::route_to;
use rackweave_linux::{Clock, random};
use rackweave_swp2p::frisbee::{Client, ClientConfig, Event};
use rackweave_swp2p::node::statistics;
use rackweave_wire::frisbee::{BLOCK_BYTES, Body, CHUNK_BLOCKS};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};
use tokio::time::sleep;

use super::redirected::{self, RedirectedConfig};
use crate::buffers::{Buffer, Buffers};
use crate::multicast::{Channel, Group};

/// What to fetch from Frisbee's server, and how.
#[derive(Clone, Debug)]
pub struct FrisbeeFetchConfig {
    /// The group of the session.
    pub group: Ipv4Addr,
    /// The UDP port of the session.
    pub port: u16,
    /// The server; `None` for the host that answers first.
    pub server: Option<Ipv4Addr>,
    /// The address of this host on the interface of the session; by default that of the route to the group.
    pub own: Option<Ipv4Addr>,
    /// The image file that is made.
    pub target: PathBuf,
    /// Whether to replace an existing file.
    pub overwrite: bool,
    /// How long nothing that is needed may come.
    pub give_up: Span,
    /// Maximum memory for chunks, in bytes. At least eight are held.
    pub memory: u64,
    /// With a switch that redirects requests: how clients serve each other.
    pub redirected: Option<RedirectedConfig>,
}

/// Why an image was not fetched. Nothing of it stays.
#[derive(Debug, thiserror::Error)]
pub enum FrisbeeFetchError {
    /// The session cannot be joined.
    #[error("cannot join {group}: {source}{}", if .source.kind() == std::io::ErrorKind::AddrNotAvailable { ". --bind must name an address of this host" } else { "" })]
    Socket {
        /// Group and port.
        group: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Nobody answers.
    #[error(
        "no server has answered in {group} for {} s. It waits for as long as --give-up says", .waited.as_secs()
    )]
    NoServer {
        /// Group and port.
        group: String,
        /// How long it was waited.
        waited: Span,
    },
    /// Blocks do not come any more.
    #[error("nothing that is needed has come from {server} for {} s: {missing} of {chunks} chunks are missing", .waited.as_secs())]
    Stalled {
        /// The server.
        server: Ipv4Addr,
        /// How long it was waited.
        waited: Span,
        /// The chunks that are missing.
        missing: u32,
        /// All chunks.
        chunks: u32,
    },
    /// The server sends another file.
    #[error(
        "{server} serves a file of {blocks} KiB, which is not an image: those have chunks of 1 MiB"
    )]
    NoImage {
        /// The server.
        server: Ipv4Addr,
        /// The blocks of the file.
        blocks: u32,
    },
    /// Chunks are damaged again and again.
    #[error("{count} chunks in a row were not those of an image, the last because {why}")]
    Damaged {
        /// How many.
        count: u32,
        /// What is wrong, as a sentence.
        why: String,
    },
    /// The file cannot be written, or its chunks do not make an image.
    #[error("{0}")]
    Image(#[from] ImageError),
    /// The system refuses.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The operation was stopped.
    #[error("interrupted")]
    Interrupted,
}

/// What a fetch from Frisbee's server reports while it runs.
#[derive(Clone, Debug)]
pub enum FrisbeeFetchEvent {
    /// Nobody has answered for five seconds.
    Waiting,
    /// A server has answered.
    Joined {
        /// The server, from which blocks are accepted from now on.
        server: Ipv4Addr,
        /// The chunks of the image.
        chunks: u32,
    },
    /// A chunk is not one of an image, and is requested again. Reported at most once a second.
    Damaged {
        /// The number of the chunk.
        chunk: u32,
        /// What is wrong, as a sentence.
        why: String,
    },
    /// The file is complete, and has its name.
    Written(Box<FrisbeeFetched>),
}

/// What was fetched.
#[derive(Clone, Debug)]
pub struct FrisbeeFetched {
    /// The server.
    pub server: Ipv4Addr,
    /// The chunks of the image.
    pub chunks: u32,
    /// Those whose SHA-1 was checked. Header and regions of others have no checksum.
    pub with_sha1: u32,
    /// Chunks that were fetched again because they were damaged.
    pub damaged: u32,
    /// Messages that were dropped on arrival: malformed, or from another host than they say.
    pub refused: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Requests that were repeated.
    pub retries: u64,
    /// Chunks received from each host.
    pub from: BTreeMap<Ipv4Addr, u32>,
    /// Chunks sent to each host.
    pub to: BTreeMap<Ipv4Addr, u32>,
}

/// After this time without an answer it is said that there is none.
pub(super) const UNANSWERED: Span = Span::from_secs(5);
/// How many damaged chunks in a row are too many.
pub(super) const MOST_DAMAGED: u32 = 16;
/// The shortest time between two reports of damaged chunks.
pub(super) const REPORT_EACH: Span = Span::from_secs(1);
/// How long packets gather in the socket: see the sessions of this software's own clients.
pub(super) const GATHER: Span = Span::from_ms(1);
/// How often it is checked whether to stop, at least.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// How long it is waited for room in the send buffer.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// Fetches an image from Frisbee's server into an `.ndz` file, each of whose chunks is checked by what it says of itself.
///
/// # Errors
/// See [`FrisbeeFetchError`].
pub fn fetch_frisbee(
    config: &FrisbeeFetchConfig,
    progress: &Arc<Progress>,
    on_event: &mut dyn FnMut(FrisbeeFetchEvent),
) -> Result<FrisbeeFetched, FrisbeeFetchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|source| FrisbeeFetchError::System { what: "cannot start", source })?;
    let file = Arc::new(IncomingNdz::open(&config.target, config.overwrite)?);
    let running = run(config, &file, progress, on_event);
    let fetched = LocalSet::new().block_on(&runtime, running);
    runtime.shutdown_background();
    if fetched.is_err() {
        file.abandon();
    }
    fetched
}

async fn run(
    config: &FrisbeeFetchConfig,
    file: &Arc<IncomingNdz>,
    progress: &Arc<Progress>,
    on_event: &mut dyn FnMut(FrisbeeFetchEvent),
) -> Result<FrisbeeFetched, FrisbeeFetchError> {
    let clock = Clock::start();
    let to = (config.group, config.port);
    let no_session =
        |source| FrisbeeFetchError::Socket { group: format!("{}:{}", to.0, to.1), source };
    let own = match config.own {
        Some(own) => own,
        None => {
            let (route, _) = route_to(to.into()).map_err(no_session)?;
            crate::ipv4(route).unwrap_or(Ipv4Addr::UNSPECIFIED)
        }
    };
    let server = config.server.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let group = Group { address: config.group, port: config.port, server };
    let channel = Channel::open(group, own, None, &[0; 32]).map_err(no_session)?;
    let most = (config.memory / ndz::CHUNK as u64).clamp(8, 1 << 15) as u16;
    let machine = ClientConfig::driven(ndz::CHUNK as u32);
    let machine = ClientConfig { buffers: machine.buffers.min(most), ..machine };
    if let Some(redirected) = &config.redirected {
        let run =
            redirected::run(config, redirected, channel, own, file, progress, clock, on_event);
        return run.await;
    }
    let rng = Rng::stream(random() as u64, 0, 0, "frisbee client");
    let now = clock.now();
    let (verify, verified) = unbounded_channel();
    let driver = Driver {
        config,
        clock,
        group: group.to_string(),
        machine: Client::new(machine, now, rng),
        channel,
        server: None,
        chunks: 0,
        file: Arc::clone(file),
        progress: Arc::clone(progress),
        buffers: Buffers::default(),
        incomplete: BTreeMap::new(),
        verify,
        verified,
        verifying: 0,
        places: Arc::new(Semaphore::new(
            std::thread::available_parallelism().map_or(1, usize::from),
        )),
        no_image: None,
        useful: now,
        has_waited: false,
        with_sha1: 0,
        damaged: 0,
        damaged_since: 0,
        reported: None,
        gathers_until: now,
    };
    driver.run(on_event).await
}

/// What has become of a chunk.
type Verified = (u32, Result<WrittenNdz, ImageError>);

struct Driver<'a> {
    config: &'a FrisbeeFetchConfig,
    clock: Clock,
    group: String,
    machine: Client,
    channel: Channel,
    /// Who has answered.
    server: Option<Ipv4Addr>,
    chunks: u32,
    file: Arc<IncomingNdz>,
    progress: Arc<Progress>,
    buffers: Buffers,
    /// The blocks of incomplete chunks. The machine limits how many chunks there are.
    incomplete: BTreeMap<u32, Buffer>,
    verify: UnboundedSender<Verified>,
    verified: UnboundedReceiver<Verified>,
    verifying: u32,
    /// As many chunks are expanded at a time as there are processors: one takes up to 64 MiB.
    places: Arc<Semaphore>,
    /// A host that has answered that it serves no image.
    no_image: Option<(Ipv4Addr, u32)>,
    /// When a block that was needed has arrived last, or nothing could be expected.
    useful: Time,
    has_waited: bool,
    with_sha1: u32,
    damaged: u32,
    damaged_since: u32,
    reported: Option<Time>,
    gathers_until: Time,
}

impl Driver<'_> {
    async fn run(
        mut self,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<FrisbeeFetched, FrisbeeFetchError> {
        let last = self.receive_all(on_event).await?;
        let (file, progress) = (Arc::clone(&self.file), Arc::clone(&self.progress));
        let finished = spawn_blocking(move || file.finish(&progress)).await;
        finished.map_err(|error| FrisbeeFetchError::System {
            what: "a thread has ended",
            source: std::io::Error::other(error),
        })??;
        // Only now it has the image, and says so, once, as Frisbee does.
        self.machine.chunk_written(self.clock.now(), last);
        for _ in 0..100 {
            if self.send()? {
                break;
            }
            sleep(RETRY).await;
        }
        let server = self.server.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let counts = self.machine.counts();
        let fetched = FrisbeeFetched {
            server,
            chunks: self.chunks,
            with_sha1: self.with_sha1,
            damaged: self.damaged,
            refused: self.channel.refused(),
            requests: counts.requests,
            retries: counts.rerequests,
            from: [(server, self.chunks)].into(),
            to: BTreeMap::new(),
        };
        on_event(FrisbeeFetchEvent::Written(Box::new(fetched.clone())));
        Ok(fetched)
    }

    /// Runs until every chunk is written, and returns the last one.
    async fn receive_all(
        &mut self,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<u32, FrisbeeFetchError> {
        loop {
            let now = self.clock.now();
            if self.machine.poll_timeout().is_some_and(|at| at <= now) {
                self.machine.handle_timeout(now);
            }
            let is_sent = self.send()?;
            if self.progress.is_stopped() {
                return Err(FrisbeeFetchError::Interrupted);
            }
            self.judge(now, on_event)?;
            let due = self.machine.poll_timeout();
            let due = due.map_or(TICK, |at| Duration::from_nanos(at.since(now).as_ns_ceil()));
            let gathers = now < self.gathers_until;
            let wait = if is_sent && !gathers { due.min(TICK) } else { due.min(RETRY) };
            tokio::select! {
                biased;
                Some((chunk, written)) = self.verified.recv() => {
                    if self.judged(chunk, written, on_event)? {
                        return Ok(chunk);
                    }
                }
                received = self.channel.receive(), if !gathers => {
                    received.map_err(socket_failed)?;
                    self.handle(on_event)?;
                    if !self.channel.has_more() {
                        self.gathers_until = self.clock.now() + GATHER;
                    }
                }
                () = sleep(wait) => {}
            }
        }
    }

    /// Sends what the machine has. Returns false if the send buffer has no room.
    fn send(&mut self) -> Result<bool, FrisbeeFetchError> {
        while let Some(message) = self.machine.poll() {
            match (message.map, message.body) {
                (Some(map), body) => self.channel.push(body, &map.to_bytes()),
                (None, body @ Body::Leave2 { .. }) => {
                    self.channel.push(body, &*statistics(&self.machine));
                }
                (None, body) => self.channel.push(body, &[]),
            }
        }
        self.channel.flush().map_err(socket_failed)
    }

    /// Handles what has arrived: the server's blocks and its reply, and requests of others, which the machine does not repeat.
    fn handle(
        &mut self,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<(), FrisbeeFetchError> {
        let now = self.clock.now();
        let mut complete = Vec::new();
        for (from, body, payload) in self.channel.messages() {
            match body {
                Body::JoinReply { blocks } => {
                    let is_it = self.config.server.is_none_or(|server| server == from);
                    if self.server.is_some() || !is_it {
                        continue;
                    }
                    if blocks == 0 || !blocks.is_multiple_of(CHUNK_BLOCKS) {
                        if self.config.server.is_some() {
                            return Err(FrisbeeFetchError::NoImage { server: from, blocks });
                        }
                        // Another host of the group may say so, and the server something else.
                        self.no_image = Some((from, blocks));
                        continue;
                    }
                    self.machine.handle(now, &body, payload);
                    if !self.machine.has_joined() {
                        continue;
                    }
                    (self.server, self.chunks, self.useful) =
                        (Some(from), blocks / CHUNK_BLOCKS, now);
                    self.file.begin(self.chunks)?;
                    self.progress.start(u64::from(self.chunks) * ndz::CHUNK as u64);
                    on_event(FrisbeeFetchEvent::Joined { server: from, chunks: self.chunks });
                }
                Body::Block { chunk, block, .. } if self.server == Some(from) => {
                    let is_new = self.machine.handle(now, &body, payload);
                    let mut is_complete = false;
                    while let Some(event) = self.machine.poll_event() {
                        match event {
                            Event::Joined => {}
                            Event::Dropped(chunk) => drop(self.incomplete.remove(&chunk)),
                            Event::Complete(_) => is_complete = true,
                        }
                    }
                    if is_new {
                        let buffers = &self.buffers;
                        let buffer = self.incomplete.entry(chunk).or_insert_with(|| {
                            let mut buffer = buffers.take(ndz::CHUNK);
                            buffer.resize(ndz::CHUNK, 0);
                            buffer
                        });
                        let start = (block * BLOCK_BYTES) as usize;
                        if let Some(place) = buffer.get_mut(start..start + payload.len()) {
                            place.copy_from_slice(payload);
                        }
                        self.useful = now;
                    }
                    if is_complete && let Some(bytes) = self.incomplete.remove(&chunk) {
                        complete.push((chunk, bytes));
                    }
                }
                // Others' blocks and replies are nobody's.
                Body::Block { .. } | Body::Join2 { reply: true, .. } => {}
                _ => drop(self.machine.handle(now, &body, payload)),
            }
        }
        for (chunk, bytes) in complete {
            self.verifying += 1;
            let (file, report) = (Arc::clone(&self.file), self.verify.clone());
            let places = Arc::clone(&self.places);
            spawn_local(async move {
                let _place = places.acquire_owned().await;
                let written = spawn_blocking(move || file.write(chunk, &bytes)).await;
                let ended = |error| ImageError::Write {
                    path: PathBuf::new(),
                    source: std::io::Error::other(error),
                };
                let _ = report.send((chunk, written.unwrap_or_else(|error| Err(ended(error)))));
            });
        }
        Ok(())
    }

    /// A chunk is written, or is not one of an image. Returns whether it was the last.
    fn judged(
        &mut self,
        chunk: u32,
        written: Result<WrittenNdz, ImageError>,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<bool, FrisbeeFetchError> {
        let now = self.clock.now();
        self.verifying -= 1;
        match written {
            Ok(written) => {
                self.with_sha1 += u32::from(written.has_sha1);
                self.damaged_since = 0;
                self.progress.advance(ndz::CHUNK as u64);
                self.machine.chunk_verified(now, chunk);
                if self.machine.missing() == Some(0) {
                    return Ok(true);
                }
                self.machine.chunk_written(now, chunk);
            }
            Err(ImageError::Chunk { source, .. }) => {
                let why = source.to_string();
                (self.damaged, self.damaged_since) = (self.damaged + 1, self.damaged_since + 1);
                if self.damaged_since >= MOST_DAMAGED {
                    return Err(FrisbeeFetchError::Damaged { count: self.damaged_since, why });
                }
                self.machine.chunk_damaged(now, chunk);
                if self.reported.is_none_or(|last| now.since(last) >= REPORT_EACH) {
                    self.reported = Some(now);
                    on_event(FrisbeeFetchEvent::Damaged { chunk, why });
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }

    /// Judges whether to go on.
    fn judge(
        &mut self,
        now: Time,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<(), FrisbeeFetchError> {
        if self.verifying > 0 {
            self.useful = now;
        }
        let waited = now.since(self.useful);
        if self.server.is_none() && waited >= UNANSWERED && !self.has_waited {
            self.has_waited = true;
            on_event(FrisbeeFetchEvent::Waiting);
        }
        if waited < self.config.give_up {
            return Ok(());
        }
        match self.server {
            None => Err(match self.no_image {
                Some((server, blocks)) => FrisbeeFetchError::NoImage { server, blocks },
                None => FrisbeeFetchError::NoServer { group: self.group.clone(), waited },
            }),
            Some(server) => {
                let missing = self.machine.missing().unwrap_or(0);
                Err(FrisbeeFetchError::Stalled { server, waited, missing, chunks: self.chunks })
            }
        }
    }
}

pub(super) fn socket_failed(source: std::io::Error) -> FrisbeeFetchError {
    FrisbeeFetchError::System { what: "the UDP socket of the session has failed", source }
}
