//! A server: images for clients, sent once, and from then on by the clients to each other.

mod catalog;
mod drive;
mod frisbee;
mod multicast;
mod names;
mod sessions;
mod view;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_image::Progress;
use rackweave_linux::{Clock, random};
use rackweave_swp2p::p2p::ChunkOf;
use rackweave_swp2p::p2p::server::{Config, Counters, Server};
use rackweave_wire::frisbee::{Auth, Key};
use tokio::sync::{Notify, watch};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};
use tokio::time::{sleep, timeout};

use self::catalog::Entry;
pub use self::catalog::{Catalog, CatalogError};
pub use self::frisbee::FrisbeeChange;
pub use self::multicast::{MulticastConfig, SessionCounts};

use crate::acceptor::Acceptor;
use crate::control::Control;
use crate::frames::Terms;
use crate::page::{self, PageConfig};
use crate::peers::Peers;
use crate::rate::Limiter;
use crate::status::{ClientStatus, Phase, ServerStatus};
use crate::uploads::{Holder, UploadError, Uploads};

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Where to listen. The port is that of all clients, too.
    pub listen: SocketAddrV4,
    /// The key that all hosts share.
    pub key: Option<Key>,
    /// The machine's behaviour, with a directory if the server redirects requests itself.
    pub machine: Config,
    /// A cap on what is sent.
    pub rate: Option<Rate>,
    /// The hosts that may fetch, and for which the server waits; `None` for all, and no end.
    pub receivers: Option<BTreeSet<Ipv4Addr>>,
    /// The hosts that others may be sent to; `None` for all.
    pub holders: Option<BTreeSet<Ipv4Addr>>,
    /// The server ends after this time even if receivers do not have the image.
    pub time_limit: Option<Span>,
    /// Addresses that share this many leading bits are in one rack, whose holders are preferred.
    pub rack_prefix: Option<u8>,
    /// Whether images are multicast, too, and how.
    pub multicast: Option<MulticastConfig>,
    /// Whether Emulab's Frisbee clients are served, too, and how. They have no connection to the server, and no key.
    pub frisbee: Option<MulticastConfig>,
    /// The TCP port at which Frisbee clients are told the session of an image that they name.
    pub frisbee_names: Option<u16>,
    /// The live page and metrics.
    pub page: Option<PageConfig>,
}

/// Why a server has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The sockets cannot be opened.
    #[error("cannot use port {} of {} for UDP and TCP: {source}", .address.port(), .address.ip())]
    Bind {
        /// The address and port that were to be opened.
        address: SocketAddrV4,
        /// The error of the system.
        source: io::Error,
    },
    /// Images cannot be multicast.
    #[error("cannot multicast to {group}: {why}")]
    Multicast {
        /// The group of the first image.
        group: Ipv4Addr,
        /// The reason, as half a sentence.
        why: String,
    },
    /// The page cannot be served.
    #[error("cannot serve the page at {address}: {source}")]
    Page {
        /// The address at which the page was to be.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refuses.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// What a server reports while it runs.
#[derive(Clone, Debug)]
pub enum ServeEvent {
    /// It can be reached.
    Listening {
        /// Where, by UDP and TCP.
        address: SocketAddr,
        /// Where its page is, by HTTP.
        page: Option<SocketAddr>,
    },
    /// The page cannot be served, and the images are.
    NoPage {
        /// Where it should be.
        address: SocketAddr,
        /// Why it is not.
        why: String,
    },
    /// An image is not multicast any more. Its clients go on without.
    NoMulticast {
        /// The name of the image.
        image: String,
        /// The error of its socket.
        why: String,
    },
    /// Frisbee clients are served.
    FrisbeeSession {
        /// The name of the image.
        image: String,
        /// Group and port.
        group: String,
    },
    /// A Frisbee client has joined or left, or is forgotten. Messages that nobody can verify say so.
    Frisbee {
        /// Its address.
        client: Ipv4Addr,
        /// The name of the image.
        image: String,
        /// What has happened.
        change: FrisbeeChange,
    },
    /// A client has begun.
    Joined {
        /// Its address.
        client: Ipv4Addr,
        /// The name of the image.
        image: String,
    },
    /// Every byte is on a client's target.
    Done {
        /// Its address.
        client: Ipv4Addr,
        /// Its last report.
        status: ClientStatus,
    },
    /// A client has ended: it was done before, has failed, or is gone.
    Ended {
        /// Its address.
        client: Ipv4Addr,
        /// Its last report.
        status: ClientStatus,
    },
    /// A chunk of an image file cannot be read, or is damaged, so that the image is not served any more. Reported once for a chunk,
    /// and at most once in ten seconds.
    Broken {
        /// The image file.
        path: PathBuf,
        /// The number of the chunk.
        chunk: u32,
        /// The reason, as a sentence that names file and chunk.
        why: String,
    },
    /// The system refuses connections that clients have opened, for example because too many files are open. Reported at most once
    /// a minute.
    NotAccepted(String),
}

/// What a server has done.
#[derive(Clone, Debug)]
pub struct Served {
    /// Everything that it showed in the end.
    pub status: ServerStatus,
    /// What its machine has counted.
    pub counters: Counters,
    /// What was counted in the Frisbee session of each image that is multicast.
    pub sessions: Vec<SessionCounts>,
    /// The receivers that do not have the image.
    pub missing: Vec<Ipv4Addr>,
    /// Whether it was stopped before all receivers had it.
    pub interrupted: bool,
}

/// A client, from its first connection on.
#[derive(Clone, Debug)]
struct Guest {
    /// This server's address, as the client knows it.
    own: Ipv4Addr,
    /// The number of the image.
    image: u32,
    /// Shared with what is shown, so that nothing is copied for it.
    status: Arc<ClientStatus>,
    /// Bytes per second that it received on average until it was complete.
    rate: u64,
    seen: Time,
    /// The number of its connection; 0 if there is none.
    session: u64,
    /// The number that its control messages must have.
    number: u64,
    /// When chunks could not be sent to it last, and why, unless one could since.
    unsent: Option<(Time, String)>,
}

/// What a failure of sending says of a client's present for this long. Clients ask again more often than that.
const RECENT: Span = Span::from_secs(30);

impl Guest {
    /// Why chunks cannot be sent to it at present.
    fn unsent(&self, now: Time) -> Option<&str> {
        let recent = |(at, _): &&(Time, String)| now.since(*at) < RECENT;
        self.unsent.as_ref().filter(recent).map(|(_, why)| &**why)
    }
}

/// The shortest time between two reports of damaged chunks.
const BROKEN_EACH: Span = Span::from_secs(10);

/// The refusal of a client for which there is no number left.
const NO_ROOM: &str = "it has no room for another client";

/// How long clients may take to accept that the server ends.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// The most clients that are remembered after they have ended.
const MOST_ENDED: usize = 4096;
/// The most completions that are remembered of hosts that the server does not wait for.
const MOST_COMPLETE: usize = 1 << 16;

/// What the tasks of a server share.
#[derive(Debug)]
struct Inner {
    clock: Clock,
    auth: Auth,
    control: Control,
    catalog: Catalog,
    receivers: Option<BTreeSet<Ipv4Addr>>,
    holders: Option<BTreeSet<Ipv4Addr>>,
    machine: RefCell<Server>,
    peers: RefCell<Peers>,
    guests: RefCell<BTreeMap<Ipv4Addr, Guest>>,
    /// The hosts, and the images that they have had completely: a later attempt that is refused does not change this.
    complete: RefCell<BTreeSet<(Ipv4Addr, u32)>>,
    sessions: Cell<u64>,
    /// Why an image cannot be served any more.
    broken: RefCell<BTreeMap<u32, String>>,
    /// The chunks of images that were reported as damaged, and when the last was.
    reported: RefCell<BTreeSet<(u32, u32)>>,
    last_report: Cell<Option<Time>>,
    events: RefCell<Vec<ServeEvent>>,
    uploads: Rc<Uploads>,
    sent: Cell<u64>,
    /// Of each image, the chunks that were sent, and their stored bytes.
    sent_of: RefCell<BTreeMap<u32, (u64, u64)>>,
    /// The Frisbee sessions of images: for hosts with a connection, and for Frisbee's own clients.
    multicast: RefCell<BTreeMap<(u32, multicast::For), multicast::Session>>,
    /// Messages from hosts without a session.
    strangers: Cell<u64>,
    /// If switches redirect, the number of the session that all clients have in common: their requests reach others.
    common: Option<u64>,
    /// Whether the server ends; it tells its clients.
    ends: watch::Sender<bool>,
    wake: Notify,
}

impl Inner {
    fn new(
        config: &ServeConfig,
        clock: Clock,
        control: Control,
        port: u16,
        catalog: Catalog,
        machine: Server,
    ) -> Self {
        let limiter = Limiter::new(config.rate, clock);
        Self {
            clock,
            auth: config.key.into(),
            control,
            catalog,
            receivers: config.receivers.clone(),
            holders: config.holders.clone(),
            machine: RefCell::new(machine),
            peers: RefCell::new(Peers::new(config.rack_prefix)),
            guests: RefCell::default(),
            complete: RefCell::default(),
            sessions: Cell::new(0),
            broken: RefCell::default(),
            reported: RefCell::default(),
            last_report: Cell::new(None),
            events: RefCell::default(),
            uploads: Rc::new(Uploads::new(port, config.key.into(), limiter)),
            sent: Cell::new(0),
            sent_of: RefCell::default(),
            multicast: RefCell::default(),
            strangers: Cell::new(0),
            common: config.machine.directory.is_none().then(|| random() as u64),
            ends: watch::Sender::new(false),
            wake: Notify::new(),
        }
    }

    /// Reports an event.
    fn event(&self, event: ServeEvent) {
        self.events.borrow_mut().push(event);
        self.wake.notify_one();
    }

    /// The terms of a new session.
    fn terms(&self) -> Terms {
        let session = self.common.unwrap_or_else(|| random() as u64);
        Terms { session, is_switched: self.common.is_some() }
    }

    /// Whether the server waits for a host, or the host has been here before.
    fn knows(&self, address: Ipv4Addr) -> bool {
        self.receivers.as_ref().is_some_and(|receivers| receivers.contains(&address))
            || self.guests.borrow().contains_key(&address)
    }

    /// Whether a host may fetch.
    fn admits(&self, address: Ipv4Addr) -> bool {
        self.receivers.as_ref().is_none_or(|receivers| receivers.contains(&address))
    }

    /// Returns the image that a client wants, or why it cannot have it.
    fn offer(&self, from: Ipv4Addr, name: &str) -> Result<(u32, &Arc<Entry>), String> {
        let Some((number, entry)) = self.catalog.named(name) else {
            let names: Vec<&str> = self.catalog.names().map(|(name, _)| name).take(20).collect();
            return Err(format!("there is no image `{name}`; it has {}", names.join(", ")));
        };
        let guests = self.guests.borrow();
        let other = guests.get(&from).filter(|guest| guest.session > 0 && guest.image != number);
        if other.is_some() {
            return Err("this host is fetching another image: a second fetch needs an address of its own (--bind)".to_owned());
        }
        if !self.peers.borrow().has_room(from) {
            return Err(NO_ROOM.to_owned());
        }
        self.broken.borrow().get(&number).cloned().map_or(Ok((number, entry)), Err)
    }

    /// A client has its manifest. Returns the number of its session, or `None` if there is no room for it.
    fn opened(&self, from: Ipv4Addr, own: Ipv4Addr, image: u32, terms: Terms) -> Option<u64> {
        self.peers.borrow_mut().number(from)?;
        let session = self.sessions.get() + 1;
        self.sessions.set(session);
        let guest = Guest {
            own,
            image,
            status: Arc::default(),
            rate: 0,
            seen: self.clock.now(),
            session,
            number: terms.session,
            unsent: None,
        };
        let before = self.guests.borrow_mut().insert(from, guest);
        // Of one that is over it was reported that it has left.
        if before.is_none_or(|before| before.status.phase.is_over()) {
            let image = self.catalog.get(image).map_or(String::new(), |it| it.name().to_owned());
            self.events.borrow_mut().push(ServeEvent::Joined { client: from, image });
        }
        self.wake.notify_one();
        Some(session)
    }

    /// Remembers that every byte of an image is on a host.
    fn has(&self, from: Ipv4Addr, image: u32) {
        let mut complete = self.complete.borrow_mut();
        if self.receivers.is_some() || complete.len() < MOST_COMPLETE {
            complete.insert((from, image));
        }
    }

    /// Takes a report. Returns false if it belongs to an old connection.
    fn reported(&self, from: Ipv4Addr, session: u64, status: ClientStatus) -> bool {
        let mut guests = self.guests.borrow_mut();
        let Some(guest) = guests.get_mut(&from).filter(|guest| guest.session == session) else {
            return false;
        };
        let chunks = self.catalog.get(guest.image).map_or(0, |it| it.image.manifest().chunks());
        let status = status.sanitized(chunks);
        let was_complete = guest.status.phase.is_complete();
        guest.seen = self.clock.now();
        if !was_complete {
            guest.rate = status.average_rate();
        }
        guest.status = Arc::new(status);
        let status = &*guest.status;
        if status.phase.is_complete() {
            self.has(from, guest.image);
        }
        if status.phase.is_complete() && !was_complete {
            let done = ServeEvent::Done { client: from, status: status.clone() };
            self.events.borrow_mut().push(done);
        }
        if status.phase.is_over() {
            let ended = ServeEvent::Ended { client: from, status: status.clone() };
            self.events.borrow_mut().push(ended);
        }
        self.wake.notify_one();
        true
    }

    /// Tells all clients that the server ends.
    async fn end(&self) {
        self.ends.send_replace(true);
        let told = async {
            while self.guests.borrow().values().any(|guest| guest.session > 0) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        // A client that accepts nothing notices it by itself.
        let _ = timeout(LAST_WORDS, told).await;
    }

    /// A connection has ended.
    fn closed(&self, from: Ipv4Addr, session: u64) {
        let mut guests = self.guests.borrow_mut();
        let Some(guest) = guests.get_mut(&from).filter(|guest| guest.session == session) else {
            return;
        };
        guest.session = 0;
        if !guest.status.phase.is_over() {
            // One that was complete is: it had every byte when it was last here.
            let status = Arc::make_mut(&mut guest.status);
            status.phase = if status.phase.is_complete() { Phase::Done } else { Phase::Gone };
            status.rest();
            let ended = ServeEvent::Ended { client: from, status: status.clone() };
            self.events.borrow_mut().push(ended);
        }
        // Whether the hosts that are to have the image have it is what the end depends on.
        let is_over = |(address, guest): &(&Ipv4Addr, &Guest)| {
            let is_receiver = self.receivers.as_ref().is_some_and(|all| all.contains(*address));
            guest.session == 0 && !is_receiver
        };
        if guests.iter().filter(is_over).count() > MOST_ENDED {
            let oldest = guests
                .iter()
                .filter(is_over)
                .min_by_key(|(_, guest)| guest.seen)
                .map(|(address, _)| *address);
            if let Some(oldest) = oldest {
                guests.remove(&oldest);
            }
        }
        drop(guests);
        let mut peers = self.peers.borrow_mut();
        if let Some(host) = peers.known(from) {
            self.machine.borrow_mut().client_gone(host);
            peers.forget(from);
        }
        self.wake.notify_one();
    }

    /// Why a client's image cannot be served any more.
    fn broken(&self, client: Ipv4Addr) -> Option<String> {
        let guests = self.guests.borrow();
        self.broken.borrow().get(&guests.get(&client)?.image).cloned()
    }

    /// What keeps a client from chunks, in a sentence for its user; empty if nothing is known.
    fn problem(&self, client: Ipv4Addr) -> String {
        let guests = self.guests.borrow();
        let why = guests.get(&client).and_then(|guest| guest.unsent(self.clock.now()));
        why.map_or(String::new(), |why| format!("it {why}"))
    }

    /// Remembers why chunks could not be sent to a client, or that they could.
    fn set_unsent(&self, to: HostId, why: Option<String>) {
        let address = self.peers.borrow().address(to);
        let mut guests = self.guests.borrow_mut();
        if let Some(guest) = address.and_then(|address| guests.get_mut(&address)) {
            guest.unsent = why.map(|why| (self.clock.now(), why));
        }
    }

    fn read_failed(&self, what: ChunkOf, path: &Path, why: String) {
        self.broken.borrow_mut().entry(what.image).or_insert_with(|| why.clone());
        let now = self.clock.now();
        let is_due = self.last_report.get().is_none_or(|last| now.since(last) >= BROKEN_EACH);
        if is_due && self.reported.borrow_mut().insert((what.image, what.chunk)) {
            self.last_report.set(Some(now));
            self.event(ServeEvent::Broken { path: path.to_owned(), chunk: what.chunk, why });
        }
    }
}

impl Holder for Inner {
    async fn chunk(&self, what: ChunkOf) -> Option<Bytes> {
        let entry: Arc<Entry> = Arc::clone(self.catalog.get(what.image)?);
        let read = Arc::clone(&entry);
        let read = spawn_blocking(move || read.read(what.chunk)).await;
        match read {
            Ok(Ok(stored)) => Some(stored.bytes().clone()),
            Ok(Err(error)) => {
                self.read_failed(what, entry.image.path(), error.to_string());
                None
            }
            Err(_) => None,
        }
    }

    fn sent(&self, to: HostId, what: ChunkOf, bytes: u64) {
        self.sent.set(self.sent.get() + bytes);
        if bytes > 0 {
            let mut sent_of = self.sent_of.borrow_mut();
            let (chunks, sent) = sent_of.entry(what.image).or_default();
            (*chunks, *sent) = (*chunks + 1, *sent + bytes);
        }
        self.set_unsent(to, None);
        let (now, mut machine) = (self.clock.now(), self.machine.borrow_mut());
        match bytes {
            0 => machine.chunk_unwanted(now, to, what),
            _ => machine.chunk_sent(now, to, what),
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
        self.machine.borrow_mut().chunk_unavailable(to, what);
        self.wake.notify_one();
    }

    fn failed(&self, to: HostId, why: &UploadError) {
        self.set_unsent(to, Some(why.to_string()));
        self.machine.borrow_mut().peer_failed(self.clock.now(), to);
        self.wake.notify_one();
    }
}

/// Serves images until it is stopped, all receivers have theirs, or the time is over.
///
/// # Errors
/// If the sockets cannot be opened, or fail.
pub fn serve(
    config: &ServeConfig,
    catalog: Catalog,
    progress: &Progress,
    on_event: &mut dyn FnMut(ServeEvent),
) -> Result<Served, ServeError> {
    let (view, shown) = watch::channel(None);
    let page = config.page.as_ref().map(|it| (it, page::start(it, shown)));
    let page = match page {
        None => None,
        Some((_, Ok(page))) => Some(page),
        Some((config, Err(source))) if config.is_required => {
            return Err(ServeError::Page { address: config.listen, source });
        }
        Some((config, Err(error))) => {
            on_event(ServeEvent::NoPage { address: config.listen, why: error.to_string() });
            None
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| ServeError::System { what: "cannot start", source })?;
    let address = page.as_ref().map(|page| page.address);
    let running = run(config, catalog, progress, &view, address, on_event);
    let served = LocalSet::new().block_on(&runtime, running);
    runtime.shutdown_background();
    // What was shown last is the end.
    drop(view);
    if let Some(page) = page {
        page.join();
    }
    served
}

async fn run(
    config: &ServeConfig,
    catalog: Catalog,
    progress: &Progress,
    view: &watch::Sender<Option<Arc<ServerStatus>>>,
    page: Option<SocketAddr>,
    on_event: &mut dyn FnMut(ServeEvent),
) -> Result<Served, ServeError> {
    let bind = |source| ServeError::Bind { address: config.listen, source };
    let (udp, tcp) = crate::bind(config.listen).map_err(bind)?;
    let listening = tcp.local_addr().map_err(bind)?;
    let clock = Clock::start();
    let mut machine_config = config.machine;
    if let Some(directory) = &mut machine_config.directory {
        directory.hosts_per_rack = config.rack_prefix.map(Peers::hosts_per_rack);
    }
    let mut machine = Server::new(machine_config);
    for (number, entry) in catalog.iter() {
        if let Some(shape) = entry.shape {
            machine.add(number, entry.name().as_bytes(), shape);
        }
    }
    let control = Control::new(udp, listening.port(), config.key.into());
    let inner = Rc::new(Inner::new(config, clock, control, listening.port(), catalog, machine));
    for driver in multicast::open(config, &inner, listening.port())? {
        spawn_local(driver.run());
    }
    let names = match config.frisbee_names {
        None => None,
        Some(port) => {
            let address = SocketAddrV4::new(*config.listen.ip(), port);
            let bind = |source| ServeError::Bind { address, source };
            let listener = crate::listen(address).map_err(bind)?;
            Some(spawn_local(names::answer(listener, Rc::clone(&inner))))
        }
    };
    on_event(ServeEvent::Listening { address: listening, page });
    let accepting = spawn_local(sessions::accept(Acceptor::new(tcp, clock), Rc::clone(&inner)));
    let served = drive::run(config, &inner, progress, view, on_event).await;
    inner.end().await;
    accepting.abort();
    if let Some(names) = names {
        names.abort();
    }
    served
}
