//! A client: fetches one image to a file or a device, serves it meanwhile, and for a while after.

mod disk;
mod drive;
mod emulab;
mod multicast;
mod receive;
mod redirected;
mod session;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::{HostId, Rate, Rng, Span, Time};
use rackweave_image::{
    ImageError, Manifest, ManifestError, Progress, PublicKey, StoredChunk, Target, TargetConfig,
    TargetReader,
};
use rackweave_linux::{Clock, random};
use rackweave_swp2p::frisbee;
use rackweave_swp2p::p2p::ChunkOf;
use rackweave_swp2p::p2p::client::{Client, Config, Failure};
use rackweave_wire::frisbee::{Auth, Key};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};
use tokio::time::sleep;

use self::disk::{Cache, Disk};
pub use self::emulab::{
    FrisbeeFetchConfig, FrisbeeFetchError, FrisbeeFetchEvent, FrisbeeFetched, fetch_frisbee,
};
use self::multicast::Outcome;
pub use self::redirected::RedirectedConfig;
pub use self::session::SessionError;
use self::session::{Place, Session, Shared};
use crate::acceptor::Acceptor;
use crate::buffers::Buffers;
use crate::control::Control;
use crate::ipv4;
use crate::multicast::{Channel, Group};
use crate::peers::Peers;
use crate::rate::Limiter;
use crate::status::{Listed, Phase};
use crate::uploads::{Holder, UploadError, Uploads};

/// What to fetch, and how.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// The server. Its port is also that of this client.
    pub server: SocketAddrV4,
    /// The address of this client; by default the one from which the server is reached.
    pub own: Option<Ipv4Addr>,
    /// The name of the image.
    pub name: String,
    /// The file or device.
    pub target: PathBuf,
    /// How the target is opened.
    pub target_config: TargetConfig,
    /// The key that all hosts share.
    pub key: Option<Key>,
    /// The key by which the image must be signed.
    pub signer: Option<PublicKey>,
    /// The machine's behaviour: what is on request at a time, how long it lingers, when it gives up.
    pub machine: Config,
    /// Maximum memory for stored chunks, in bytes. At least eight chunks are held.
    pub memory: u64,
    /// A cap on what is sent to others.
    pub rate: Option<Rate>,
    /// Whether to serve others.
    pub serve: bool,
    /// Whether to fetch by multicast from a server that offers it.
    pub multicast: bool,
    /// The behaviour in a Frisbee session; `None` for that of its authors, with the same bytes in chunks of other lengths.
    pub session: Option<frisbee::ClientConfig>,
}

/// Why an image was not fetched. What has been written stays, and another attempt goes on from there, except for a target that was refused.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// There is no session.
    #[error("the server {server} cannot be used: {source}")]
    Session {
        /// The address of the server that was tried.
        server: SocketAddrV4,
        /// The failure of the last attempt.
        source: SessionError,
    },
    /// The sockets of this end cannot be opened.
    #[error("cannot use port {} of {} for UDP and TCP: {source}{}", .address.port(), .address.ip(), remedy(.source))]
    Bind {
        /// The address and port that this client was to use.
        address: SocketAddrV4,
        /// The error of the system.
        source: io::Error,
    },
    /// The image is not signed as required.
    #[error("the image `{name}` of {server} is not accepted: {source}")]
    Signer {
        /// The name of the image.
        name: String,
        /// The address of the server that offers it.
        server: SocketAddrV4,
        /// The reason why its signature is not accepted.
        source: ManifestError,
    },
    /// The target cannot be opened, read or written.
    #[error("{0}")]
    Image(#[from] ImageError),
    /// The machine has failed.
    #[error("{failure}{}{}{}", problem.as_ref().map_or(String::new(), |why| format!("; the connection to the server {server}: {why}")),
        obstacle.as_ref().map_or(String::new(), |why| format!("; the server {server} says: {why}")), go_on(.failure))]
    Failed {
        /// The reason of the machine.
        failure: Failure,
        /// The address of the server.
        server: SocketAddrV4,
        /// Why there is no session at present.
        problem: Option<String>,
        /// What keeps the client from chunks, as the server has last said.
        obstacle: Option<String>,
    },
    /// The system refuses.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The operation was stopped.
    #[error("interrupted")]
    Interrupted,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            ". A fetch or serve of this host may still run; another one needs an address of its own (--bind)"
        }
        io::ErrorKind::AddrNotAvailable => ". --bind must name an address of this host",
        _ => "",
    }
}

const fn go_on(failure: &Failure) -> &'static str {
    match failure {
        Failure::Stalled { .. } | Failure::NoServer => {
            ". It waits for as long as --give-up says; the same command goes on from here"
        }
        _ => "",
    }
}

/// What a client reports while it runs.
#[derive(Clone, Debug)]
pub enum FetchEvent {
    /// The manifest is here, and the target is open.
    Opened {
        /// The manifest of the image, whose signature was accepted if one is required.
        manifest: Arc<Manifest>,
        /// The chunks with stored bytes that were on the target.
        kept: u32,
        /// The chunks without stored bytes.
        empty: u32,
    },
    /// All chunks have been received and verified.
    Received,
    /// Every byte is on the target, which is complete.
    Written(Fetched),
    /// A peer has sent a damaged chunk, and is not listened to any more.
    Damaged {
        /// The address of the peer.
        holder: Ipv4Addr,
        /// The number of the chunk, which is requested elsewhere.
        chunk: u32,
    },
    /// The image is fetched by multicast, from this group and port.
    Multicast(String),
    /// Multicast does not work, for this reason, and what is missing is fetched without.
    NoMulticast(String),
    /// A chunk that came by multicast does not have the bytes of the image, and is requested again. Reported at most once a second.
    DamagedBlocks {
        /// The number of the chunk.
        chunk: u32,
    },
    /// The server cannot be used yet, for this reason. The client keeps trying until it gives up. Reported once.
    Waiting(String),
    /// The connection to the server is broken.
    ServerLost(String),
    /// The connection to the server is there again.
    ServerBack,
    /// The system refuses connections that holders have opened, for example because too many files are open. Reported at most once
    /// a minute.
    NotAccepted(String),
}

/// What was fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Chunks that have arrived.
    pub fetched: u32,
    /// Chunks with stored bytes that were on the target.
    pub kept: u32,
    /// Chunks without stored bytes: zeros, or unused. Nobody sends them.
    pub empty: u32,
    /// Stored bytes that have arrived.
    pub bytes: u64,
    /// Chunks received from each host.
    pub from: BTreeMap<Ipv4Addr, u32>,
    /// Chunks sent to each host.
    pub to: BTreeMap<Ipv4Addr, u32>,
    /// Chunks that were requested again.
    pub retries: u32,
    /// Chunks that were damaged.
    pub damaged: u32,
    /// Requests sent, each for a batch.
    pub requests: u32,
    /// Chunks that were here already when they arrived.
    pub duplicates: u32,
    /// Requested chunks that were returned because they are not here.
    pub returned: u32,
    /// Control messages that were refused on arrival: malformed, with a wrong tag, or from another host than they say.
    pub refused: u64,
    /// Control messages that the system did not accept for sending.
    pub unsent: u64,
    /// What was counted in the Frisbee session, if there was one.
    pub session: Option<frisbee::ClientCounts>,
}

impl Fetched {
    /// Adds what was fetched by multicast before.
    fn add(&mut self, before: &Self) {
        self.fetched += before.fetched;
        for (from, chunks) in &before.from {
            *self.from.entry(*from).or_insert(0) += chunks;
        }
        self.retries += before.retries;
        self.damaged += before.damaged;
        self.requests += before.requests;
        self.refused += before.refused;
        self.unsent += before.unsent;
    }
}

/// The most holders of damaged chunks that are remembered.
const MOST_BANNED: usize = 1024;
/// How long each step of a list of images may take.
const LIST: Duration = Duration::from_secs(60);
/// How often it is checked whether to stop, and rates are computed.
const TICK: Duration = Duration::from_millis(50);
/// How long a stopped client takes to leave.
const LAST: Duration = Duration::from_secs(2);

/// What the tasks of a client share.
#[derive(Debug)]
struct Inner {
    clock: Clock,
    auth: Auth,
    own: Ipv4Addr,
    control: Control,
    peers: RefCell<Peers>,
    manifest: Arc<Manifest>,
    /// The number of the image, once the server has given it.
    image: Cell<u32>,
    machine: RefCell<Client>,
    cache: RefCell<Cache>,
    buffers: Buffers,
    reader: Arc<TargetReader>,
    banned: RefCell<BTreeSet<Ipv4Addr>>,
    /// Chunks that may be in memory without having been judged.
    room: Semaphore,
    uploads: Rc<Uploads>,
    received: Cell<u64>,
    sent: Cell<u64>,
    sent_to: RefCell<BTreeMap<HostId, u32>>,
    progress: Arc<Progress>,
    /// What is to be reported.
    events: RefCell<Vec<FetchEvent>>,
    wake: Notify,
}

impl Inner {
    /// Reports an event.
    fn event(&self, event: FetchEvent) {
        self.events.borrow_mut().push(event);
        self.wake.notify_one();
    }

    fn count_received(&self, bytes: u64) {
        self.received.set(self.received.get() + bytes);
        self.progress.advance(bytes);
    }

    fn ban(&self, address: Ipv4Addr) {
        let mut banned = self.banned.borrow_mut();
        let is_server = self.peers.borrow().known(address) == Some(SERVER);
        if banned.len() < MOST_BANNED && !is_server {
            banned.insert(address);
        }
    }
}

/// The server's number: the first that [`Peers`] gives.
const SERVER: HostId = HostId(0);

impl Holder for Inner {
    async fn chunk(&self, what: ChunkOf) -> Option<Bytes> {
        if let Some(stored) = self.cache.borrow().get(what.chunk) {
            return Some(stored.bytes().clone());
        }
        let reader = Arc::clone(&self.reader);
        let mut buffer = self.buffers.take(stored(&self.manifest, what.chunk) as usize);
        let read = move || {
            let is_stored = reader.stored(what.chunk, &mut buffer).ok()?;
            let bytes = is_stored.then(|| buffer.freeze())?;
            StoredChunk::verify(reader.manifest(), what.chunk, bytes).ok()
        };
        spawn_blocking(read).await.ok()?.map(|stored| stored.bytes().clone())
    }

    fn sent(&self, to: HostId, what: ChunkOf, bytes: u64) {
        self.sent.set(self.sent.get() + bytes);
        let (now, mut machine) = (self.clock.now(), self.machine.borrow_mut());
        if bytes > 0 {
            *self.sent_to.borrow_mut().entry(to).or_insert(0) += 1;
            machine.chunk_sent(now, to, what);
        } else {
            machine.chunk_unwanted(now, to, what);
        }
        self.wake.notify_one();
    }

    fn ending(&self, to: HostId, what: ChunkOf) {
        self.machine.borrow_mut().chunk_ending(to, what);
        self.wake.notify_one();
    }

    fn stalled(&self, to: HostId, what: ChunkOf) {
        self.machine.borrow_mut().chunk_stalled(to, what);
        self.wake.notify_one();
    }

    fn unavailable(&self, to: HostId, what: ChunkOf) {
        self.machine.borrow_mut().chunk_unavailable(self.clock.now(), to, what);
        self.wake.notify_one();
    }

    /// The peer asks others, and in the end the server, which tells it why it gets nothing.
    fn failed(&self, to: HostId, _why: &UploadError) {
        self.machine.borrow_mut().peer_failed(self.clock.now(), to);
        self.wake.notify_one();
    }
}

/// Fetches an image, and returns when the client has left. Progress is counted in stored bytes; stopping it leaves early.
///
/// Returns what was fetched in any case, with an error if not every byte of the image is on the target.
pub fn fetch(
    config: &FetchConfig,
    progress: &Arc<Progress>,
    on_event: &mut dyn FnMut(FetchEvent),
) -> (Fetched, Result<(), FetchError>) {
    let mut fetched = Fetched::default();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(source) => {
            return (fetched, Err(FetchError::System { what: "cannot start", source }));
        }
    };
    let running = run(config, progress, &mut fetched, on_event);
    let result = LocalSet::new().block_on(&runtime, running);
    // A thread that reads a slow device is not waited for.
    runtime.shutdown_background();
    (fetched, result)
}

async fn run(
    config: &FetchConfig,
    progress: &Arc<Progress>,
    fetched: &mut Fetched,
    on_event: &mut dyn FnMut(FetchEvent),
) -> Result<(), FetchError> {
    let clock = Clock::start();
    let mut place = Place {
        server: config.server,
        own: config.own,
        auth: config.key.into(),
        name: config.name.clone(),
        give_up: Duration::from_nanos(config.machine.give_up.as_ns()),
    };
    // Before the server or the target notices anything of a client that cannot be: one whose port is taken may be the second of its host.
    let mut attempts = Attempts {
        give_up: config.machine.give_up,
        clock,
        progress,
        server: config.server,
        reported: false,
    };
    let sockets = open_sockets(&mut place, &mut attempts, on_event).await?;
    let open = async || Session::open(&place).await;
    let (session, manifest) = attempts.until_done(open, on_event).await?;
    let own = session.own;
    let group = session.multicast.filter(|_| config.multicast);
    let manifest = Arc::new(manifest);
    if let Some(signer) = &config.signer {
        let wrong = |source| {
            let (name, server) = (config.name.clone(), config.server);
            FetchError::Signer { name, server, source }
        };
        manifest.require_signer(signer).map_err(wrong)?;
    }
    let shared = Rc::new(Shared::default());
    shared.status.borrow_mut().chunks = manifest.chunks();
    shared.terms.set(session.terms);
    spawn_local(session::keep(session, *manifest.root(), place, Rc::clone(&shared)));
    let result = fetch_image(
        config, progress, fetched, on_event, clock, own, sockets, manifest, &shared, group,
    )
    .await;
    let mut status = shared.status.borrow().clone();
    status.phase = match &result {
        Ok(()) => Phase::Done,
        Err(FetchError::Interrupted) => Phase::Interrupted,
        Err(_) => Phase::Failed,
    };
    status.failure = result.as_ref().err().map(ToString::to_string);
    status.elapsed_ms = clock.now().as_ms();
    shared.status.replace(status);
    shared.report.notify_one();
    // The server learns how it ended, if it is there.
    let _ = tokio::time::timeout(LAST, shared.ended.notified()).await;
    result
}

/// The sockets of a client: that of control messages, and that of chunks.
type Sockets = (tokio::net::UdpSocket, tokio::net::TcpListener);

/// Determines this client's address, and opens its sockets there.
async fn open_sockets(
    place: &mut Place,
    attempts: &mut Attempts<'_>,
    on_event: &mut dyn FnMut(FetchEvent),
) -> Result<Sockets, FetchError> {
    let server = place.server;
    let own = match place.own {
        Some(own) => own,
        // While there is no route there is no session either.
        None => attempts.until_done(async || Ok(route(server).await?), on_event).await?,
    };
    place.own = Some(own);
    let address = SocketAddrV4::new(own, server.port());
    // Both ends use one port. Where the server is not running, this client would connect to its own socket.
    let bound =
        if address == server { Err(io::ErrorKind::AddrInUse.into()) } else { crate::bind(address) };
    bound.map_err(|source| FetchError::Bind { address, source })
}

/// Returns the address from which this host reaches another one. Nothing is sent.
async fn route(to: SocketAddrV4) -> io::Result<Ipv4Addr> {
    let socket = tokio::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(to).await?;
    ipv4(socket.local_addr()?).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Returns the images of a server. It is asked once.
///
/// # Errors
/// If there is no answer, or the server refuses this host.
pub fn list(
    server: SocketAddrV4,
    own: Option<Ipv4Addr>,
    key: Option<Key>,
) -> Result<Vec<Listed>, FetchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| FetchError::System { what: "cannot start", source })?;
    let place = Place { server, own, auth: key.into(), name: String::new(), give_up: LIST };
    let listed = runtime.block_on(Session::list(&place));
    listed.map_err(|source| match (own, source) {
        (Some(own), SessionError::Io(source))
            if source.kind() == io::ErrorKind::AddrNotAvailable =>
        {
            FetchError::Bind { address: SocketAddrV4::new(own, server.port()), source }
        }
        (_, source) => FetchError::Session { server, source },
    })
}

/// Waits until the operation is to stop. A server may send its manifest a byte at a time.
async fn stopped(progress: &Progress) {
    while !progress.is_stopped() {
        sleep(TICK).await;
    }
}

/// What attempts to reach the server have in common.
struct Attempts<'a> {
    give_up: Span,
    clock: Clock,
    progress: &'a Progress,
    server: SocketAddrV4,
    /// Whether it was reported that the server is waited for.
    reported: bool,
}

impl Attempts<'_> {
    /// Repeats an attempt until it succeeds, cannot succeed, or the client gives up.
    async fn until_done<T>(
        &mut self,
        attempt: impl AsyncFn() -> Result<T, SessionError>,
        on_event: &mut dyn FnMut(FetchEvent),
    ) -> Result<T, FetchError> {
        let Self { give_up, clock, progress, server, .. } = *self;
        let mut pause = Duration::from_millis(100);
        loop {
            let attempted = tokio::select! {
                attempted = attempt() => attempted,
                () = stopped(progress) => return Err(FetchError::Interrupted),
            };
            match attempted {
                Ok(done) => return Ok(done),
                Err(source) if source.is_permanent() || clock.now() >= Time::ZERO + give_up => {
                    return Err(FetchError::Session { server, source });
                }
                Err(source) if !self.reported => {
                    self.reported = true;
                    on_event(FetchEvent::Waiting(source.to_string()));
                }
                Err(_) => {}
            }
            let until = clock.now() + Span::from_ms(pause.as_millis() as u64);
            pause = (pause * 2).min(Duration::from_secs(1));
            while clock.now() < until {
                if progress.is_stopped() {
                    return Err(FetchError::Interrupted);
                }
                sleep(TICK).await;
            }
        }
    }
}

/// Opens the target, and fetches what it lacks.
#[expect(clippy::too_many_arguments, reason = "they are what a client consists of")]
async fn fetch_image(
    config: &FetchConfig,
    progress: &Arc<Progress>,
    fetched: &mut Fetched,
    on_event: &mut dyn FnMut(FetchEvent),
    clock: Clock,
    own: Ipv4Addr,
    (udp, tcp): Sockets,
    manifest: Arc<Manifest>,
    shared: &Rc<Shared>,
    group: Option<Group>,
) -> Result<(), FetchError> {
    // Clients of a Frisbee session do not stay to serve others.
    let serves = config.serve && config.machine.linger > Span::ZERO && group.is_none();
    let target = open_target(config, progress, &manifest).await?;
    // Chunks without stored bytes are there in any case, whatever the target had.
    let is_empty = |chunk: &u32| stored(&manifest, *chunk) == 0;
    fetched.empty = (0..manifest.chunks()).filter(is_empty).count() as u32;
    fetched.kept = target.have().len() - fetched.empty;
    {
        // A client that is done at once sends no other status.
        let mut status = shared.status.borrow_mut();
        (status.kept, status.empty) = (fetched.kept, fetched.empty);
        (status.have, status.written) = (target.have().len(), target.have().len());
    }
    let (kept, empty) = (fetched.kept, fetched.empty);
    on_event(FetchEvent::Opened { manifest: Arc::clone(&manifest), kept, empty });
    let missing: u64 = target.missing().map(|it| stored(&manifest, it)).sum();
    progress.start(missing);
    let mut start = target.have().clone();
    let reader = Arc::new(target.reader()?);
    let disk = Disk::start(target, Arc::clone(progress));
    let mut disk =
        disk.map_err(|source| FetchError::System { what: "cannot start a thread", source })?;
    // An empty image has no chunk, so that nobody asks for it, and servers do not answer a join.
    if start.is_full() && (!serves || manifest.chunks() == 0) {
        // Nothing to fetch, and nobody to serve.
        return drive::finish_at_once(disk, fetched, on_event).await;
    }
    if let Some(group) = group {
        let channel = Channel::open(group, own, config.key, manifest.root());
        let manifest = Arc::clone(&manifest);
        let context = multicast::Context {
            config,
            clock,
            manifest,
            shared,
            progress,
            fetched: &mut *fetched,
        };
        match multicast::fetch(context, channel, group, disk, start, on_event).await? {
            Outcome::Complete => return Ok(()),
            Outcome::Unicast { disk: rest, have, why } => {
                on_event(FetchEvent::NoMulticast(why));
                shared.status.borrow_mut().multicast = false;
                (disk, start) = (rest, have);
            }
        }
    }
    let chunk_bytes = u64::from(manifest.head().chunk_size);
    // Half of the memory holds what is not written, and the rest what is kept to be served.
    let backlog = (config.memory / 2 / chunk_bytes).clamp(8, 1 << 20) as u32;
    let machine = Config { backlog, ..config.machine };
    let mut peers = Peers::new(None);
    let server = peers.number(*config.server.ip()).unwrap_or(SERVER);
    debug_assert_eq!(server, SERVER);
    // The stream of random numbers decides the number by which the server knows this run of the client.
    let rng = Rng::stream(random() as u64, 0, 0, "client");
    let name = config.name.as_bytes();
    let client = Client::new(machine, clock.now(), server, name, rng);
    let limiter = Limiter::new(config.rate, clock);
    let cache = if config.serve { config.memory - config.memory / 2 } else { 0 };
    let inner = Rc::new(Inner {
        clock,
        auth: config.key.into(),
        own,
        control: Control::new(udp, config.server.port(), config.key.into()),
        peers: RefCell::new(peers),
        manifest,
        image: Cell::new(0),
        machine: RefCell::new(client),
        cache: RefCell::new(Cache::new(cache)),
        buffers: Buffers::default(),
        reader,
        banned: RefCell::default(),
        room: Semaphore::new(usize::from(machine.outstanding) + 16),
        uploads: Rc::new(Uploads::new(config.server.port(), config.key.into(), limiter)),
        received: Cell::new(fetched.bytes),
        sent: Cell::new(0),
        sent_to: RefCell::default(),
        progress: Arc::clone(progress),
        events: RefCell::default(),
        wake: Notify::new(),
    });
    let accepting = spawn_local(receive::accept(Acceptor::new(tcp, clock), Rc::clone(&inner)));
    let driver = drive::Driver::new(config, &inner, disk, shared, start, fetched);
    let result = driver.run(on_event).await;
    accepting.abort();
    result
}

fn stored(manifest: &Manifest, chunk: u32) -> u64 {
    manifest.chunk(chunk).map_or(0, |chunk| u64::from(chunk.stored))
}

/// Opens the target, and writes the chunks that have no stored bytes.
async fn open_target(
    config: &FetchConfig,
    progress: &Arc<Progress>,
    manifest: &Arc<Manifest>,
) -> Result<Target, FetchError> {
    let (path, target_config) = (config.target.clone(), config.target_config.clone());
    let (manifest, progress) = (Arc::clone(manifest), Arc::clone(progress));
    let open = move || {
        let mut target = Target::open(&path, manifest, &target_config, &progress)?;
        let is_empty = |chunk: &u32| stored(target.manifest(), *chunk) == 0;
        for chunk in target.missing().filter(is_empty).collect::<Vec<_>>() {
            target.write(chunk, &[])?;
        }
        Ok(target)
    };
    match spawn_blocking(open).await {
        Ok(Err(ImageError::Interrupted)) => Err(FetchError::Interrupted),
        Ok(opened) => opened.map_err(FetchError::Image),
        Err(error) => {
            let (what, source) = ("the target cannot be opened", io::Error::other(error));
            Err(FetchError::System { what, source })
        }
    }
}
