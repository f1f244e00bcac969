//! A node as a service.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rackweave_core::{Span, Time};
use rackweave_linux::Clock;
use rackweave_page::{Bounds, Limits, Page};
use serde_json::Value;
use tokio::sync::watch;

use crate::blob::{Arriving, Failure, LARGEST};
use crate::counts::Counts;
use crate::digest::Digest;
use crate::directory::{About, Asked, Held, Index, Reported, Run, SILENCE};
use crate::fetch::Fetch;
use crate::http::Http;
use crate::registry::{Credentials, Kind, LARGEST_MANIFEST, Place, Registry, Upstream};
use crate::store::{Store, StoreError};
use crate::{mirror, peers, registry};

/// Blobs that arrive at a time.
const MOST_ARRIVING: usize = 64;
/// How often a node tells the directory what has arrived, while something does.
const NEWS_EVERY: Span = Span::from_ms(200);
/// How long the directory is left alone after it has not answered.
const LEFT_ALONE: Span = Span::from_secs(5);
/// How long nothing is fetched from an address that has sent damaged chunks.
const LIES_FOR: Span = Span::from_secs(600);
/// The most such addresses that are remembered.
const MOST_LIARS: usize = 1024;
/// The most blobs of one report.
const MOST_OF_REPORT: usize = 256;
/// Connections of runtimes and of nodes.
const CONNECTIONS: Bounds = Bounds { most: 1024, of_one: 512, kept: 0 };

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Where the container runtime of this host asks.
    pub listen: SocketAddr,
    /// Where other nodes ask; `None`: nobody does.
    pub nodes: Option<SocketAddr>,
    /// The node that keeps the directory, which may be this one.
    pub directory: Option<SocketAddr>,
    /// The name of the rack: nodes of one rack serve each other first.
    pub rack: String,
    /// The folder of the store.
    pub store: PathBuf,
    /// The bytes that the store keeps.
    pub capacity: u64,
    /// The registries. The first one is asked if the runtime names none.
    pub upstreams: Vec<Upstream>,
    /// Names and passwords for them.
    pub credentials: Credentials,
    /// Certificates of authorities to trust in place of the usual ones, in a PEM file.
    pub certificates: Option<PathBuf>,
    /// Names by which requests may call this host, besides addresses and `localhost`.
    pub names: Vec<String>,
}

/// Why a node does not run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot listen.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        error: io::Error,
    },
    /// It is a mirror of nothing.
    #[error("a node needs a registry")]
    NoRegistry,
    /// Others do not reach it.
    #[error("a node with a directory needs an address at which others reach it")]
    NoAddress,
    /// Others would ask at every address, and it could not tell them which is its own.
    #[error("{0} is no address at which others reach this host")]
    Unspecified(SocketAddr),
    /// The certificates cannot be read.
    #[error("cannot use the certificates of {path}: {why}")]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// There is no thread for it.
    #[error("the system refuses: {0}")]
    System(#[from] io::Error),
}

/// What happens at a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A blob or manifest has arrived, and is stored.
    Arrived {
        /// Its digest.
        digest: Digest,
        /// The repository that the runtime named.
        name: String,
        /// Its length.
        size: u64,
        /// The time that it took.
        time: Span,
    },
    /// It has not.
    Failed {
        /// Its digest.
        digest: Digest,
        /// The repository.
        name: String,
        /// A sentence.
        why: String,
    },
    /// What arrived did not have its digest: it is fetched again from the registry alone.
    Damaged {
        /// Its digest.
        digest: Digest,
        /// The repository.
        name: String,
    },
    /// A node has sent damaged chunks. Nothing is fetched from its address for ten minutes.
    Liar {
        /// The node.
        node: SocketAddr,
        /// The blob.
        digest: Digest,
    },
    /// The directory does not answer, for this reason. Meanwhile the registry is asked.
    NoDirectory {
        /// A sentence.
        why: String,
    },
    /// It answers again.
    Directory,
}

/// Where the directory is.
#[derive(Debug)]
enum Keeper {
    Nobody,
    Here(Box<Mutex<Index>>),
    At(SocketAddr),
}

type Report = Box<dyn Fn(&Event) + Send + Sync>;

/// What the threads of a node share.
pub(crate) struct Node {
    pub(crate) store: Store,
    pub(crate) registry: Registry,
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) http: Http,
    pub(crate) counts: Counts,
    pub(crate) clock: Clock,
    arriving: Mutex<BTreeMap<Digest, (Arc<Arriving>, Time)>>,
    keeper: Keeper,
    /// Since when the directory does not answer, and until when it is left alone.
    silent: Mutex<Option<Time>>,
    /// Addresses that have sent damaged chunks, and when.
    liars: Mutex<BTreeMap<IpAddr, Time>>,
    /// Blobs that the directory does not know yet.
    news: AtomicBool,
    own: Option<SocketAddr>,
    rack: String,
    stop: AtomicBool,
    report: Report,
}

/// Content that somebody asks for.
pub(crate) enum Found {
    Stored(Arc<dyn rackweave_disk::DiskFile>, u64),
    Arriving(Arc<Arriving>),
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    pub(crate) fn tell(&self, event: Event) {
        (self.report)(&event);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) const fn has_directory(&self) -> bool {
        !matches!(self.keeper, Keeper::Nobody)
    }

    /// The directory, if it is kept here.
    pub(crate) fn index(&self) -> Option<MutexGuard<'_, Index>> {
        match &self.keeper {
            Keeper::Here(index) => Some(locked(index)),
            Keeper::Nobody | Keeper::At(_) => None,
        }
    }

    pub(crate) fn upstream(&self, name: Option<&str>) -> Option<&Upstream> {
        match name {
            None => self.upstreams.first(),
            Some(name) => self.upstreams.iter().find(|it| it.name == name),
        }
    }

    /// What is known of a blob here. It may read a stored one, and blocks.
    pub(crate) fn find(&self, digest: &Digest) -> Option<Found> {
        if let Some((file, size)) = self.store.open_blob(digest) {
            return Some(Found::Stored(file, size));
        }
        let arriving = locked(&self.arriving);
        arriving.get(digest).map(|(blob, _)| Found::Arriving(Arc::clone(blob)))
    }

    /// The size of content, wherever it is. Blocks.
    pub(crate) fn size(&self, digest: &Digest, place: &Place) -> Result<u64, Failure> {
        let here = self.store.size(digest);
        let here = here.or_else(|| locked(&self.arriving).get(digest).map(|(it, _)| it.size));
        if let Some(size) = here {
            return Ok(size);
        }
        let why = match self.registry.size(place) {
            Ok(0) if *digest != Digest::of(b"") => {
                return Err(Failure::Other("the registry says that it has no bytes".to_owned()));
            }
            Ok(size) => return Ok(size),
            Err(Failure::Other(why)) => why,
            Err(failure) => return Err(failure),
        };
        // Nodes may have it without the registry. What they say is checked by the digest in the end.
        let known = self.tell_directory(
            |index, _, _| Ok(index.size(digest)),
            "/node/v1/size",
            &serde_json::json!({ "digest": digest.to_string() }),
        );
        known.flatten().ok_or(Failure::Other(why))
    }

    /// Whether a node's address has sent damaged chunks lately.
    pub(crate) fn is_liar(&self, node: SocketAddr) -> bool {
        let now = self.clock.now();
        locked(&self.liars).get(&node.ip()).is_some_and(|since| now.since(*since) < LIES_FOR)
    }

    fn distrust(&self, node: SocketAddr) {
        let mut liars = locked(&self.liars);
        if liars.len() >= MOST_LIARS {
            liars.clear();
        }
        liars.insert(node.ip(), self.clock.now());
    }

    /// Finds content, or begins to fetch it. Blocks.
    pub(crate) fn fetch(self: &Arc<Self>, digest: Digest, place: &Place) -> Result<Found, Failure> {
        if let Some(found) = self.find(&digest) {
            Counts::add(&self.counts.hits, 1);
            return Ok(found);
        }
        Counts::add(&self.counts.misses, 1);
        let size = self.size(&digest, place)?;
        let most = match place.kind {
            Kind::Manifest => LARGEST_MANIFEST,
            Kind::Blob => LARGEST.min(self.store.capacity),
        };
        if size > most {
            return Err(Failure::Other(format!("it has {size} bytes, which is above {most}")));
        }
        let mut arriving = locked(&self.arriving);
        if let Some((blob, _)) = arriving.get(&digest) {
            return Ok(Found::Arriving(Arc::clone(blob)));
        }
        if self.store.size(&digest).is_some() {
            // It has arrived since.
            drop(arriving);
            let gone = || Failure::Other("the store cannot read it".to_owned());
            return self.find(&digest).ok_or_else(gone);
        }
        if arriving.len() >= MOST_ARRIVING {
            return Err(Failure::Other(format!(
                "{MOST_ARRIVING} others arrive, which is the limit"
            )));
        }
        let failed = |error: io::Error| Failure::Other(format!("it cannot be written: {error}"));
        let blob = Arriving::new(&self.store, digest, size).map_err(failed)?;
        let blob = Arc::new(blob);
        let fetch = Fetch { node: Arc::clone(self), blob: Arc::clone(&blob), place: place.clone() };
        let spawned = std::thread::Builder::new().name("blob".into()).spawn(move || fetch.run());
        spawned.map_err(|error| Failure::Other(format!("there is no thread for it: {error}")))?;
        arriving.insert(digest, (Arc::clone(&blob), self.clock.now()));
        Ok(Found::Arriving(blob))
    }

    /// A fetch has ended.
    pub(crate) fn arrived(&self, Fetch { blob, place, .. }: &Fetch) {
        let (digest, name) = (blob.digest, place.name.clone());
        let began = locked(&self.arriving).remove(&digest).map(|(_, began)| began);
        self.news.store(true, Ordering::Relaxed);
        match blob.outcome() {
            Some(Ok(())) => {
                let now = self.clock.now();
                let time = now.since(began.unwrap_or(now));
                self.tell(Event::Arrived { digest, name, size: blob.size, time });
                let liars: BTreeSet<_> = blob.damaged().iter().map(|it| it.node).collect();
                for node in liars {
                    self.distrust(node);
                    self.tell(Event::Liar { node, digest });
                }
            }
            Some(Err(failure)) => {
                self.leave(Some((digest, blob.size)));
                let why = failure.to_string();
                self.tell(Event::Failed { digest, name, why });
            }
            None => {}
        }
    }

    /// Tells the directory something, wherever it is; `None` if nobody keeps it or it does not answer.
    fn tell_directory<T: serde::de::DeserializeOwned>(
        &self,
        here: impl FnOnce(&mut Index, Time, SocketAddr) -> Result<T, crate::directory::Refused>,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Option<T> {
        let own = self.own?;
        match &self.keeper {
            Keeper::Nobody => None,
            Keeper::Here(index) => here(&mut locked(index), self.clock.now(), own).ok(),
            Keeper::At(keeper) => {
                let now = self.clock.now();
                if locked(&self.silent).is_some_and(|until| now < until) {
                    return None;
                }
                let answer = self.http.post(*keeper, path, body);
                let mut silent = locked(&self.silent);
                let until = answer.is_err().then(|| now.saturating_add(LEFT_ALONE));
                let was_silent = std::mem::replace(&mut *silent, until).is_some();
                drop(silent);
                match answer {
                    Ok(answer) => {
                        if was_silent {
                            self.tell(Event::Directory);
                        }
                        Some(answer)
                    }
                    Err(why) => {
                        if !was_silent {
                            self.tell(Event::NoDirectory { why });
                        }
                        None
                    }
                }
            }
        }
    }

    fn about(&self, blob: &Arriving) -> About {
        let port = self.own.map_or(0, |own| own.port());
        let digest = blob.digest.to_string();
        About { port, rack: self.rack.clone(), digest, size: blob.size }
    }

    /// Who has chunks; `None` if the directory does not say. Blocks.
    pub(crate) fn ask(
        &self,
        blob: &Arriving,
        first: u32,
        count: u32,
        tries: u8,
    ) -> Option<Vec<Run>> {
        let asked = Asked { about: self.about(blob), first, count, tries };
        self.tell_directory(|index, now, own| index.ask(now, own, &asked), "/node/v1/ask", &asked)
    }

    /// Tells the directory that a blob is not here any more, or that this node ends.
    fn leave(&self, blob: Option<(Digest, u64)>) {
        let port = self.own.map_or(0, |own| own.port());
        let body = match blob {
            Some((digest, size)) => {
                serde_json::json!({ "port": port, "digest": digest.to_string(), "size": size })
            }
            None => serde_json::json!({ "port": port }),
        };
        let here = |index: &mut Index, _, own| {
            index.leave(own, blob);
            Ok(())
        };
        let _: Option<()> = self.tell_directory(here, "/node/v1/leave", &body);
    }

    /// Tells the directory what is here: all, or only what arrives and is new.
    fn report_held(&self, is_all: bool) {
        let mut blobs = Vec::new();
        for (blob, _) in locked(&self.arriving).values() {
            let words = Some(blob.map());
            blobs.push(Held { digest: blob.digest.to_string(), size: blob.size, words });
        }
        if is_all {
            for (digest, size) in self.store.all() {
                if size > 0 {
                    blobs.push(Held { digest: digest.to_string(), size, words: None });
                }
            }
        }
        blobs.retain(|held| held.size > 0);
        let port = self.own.map_or(0, |own| own.port());
        for blobs in blobs.chunks(MOST_OF_REPORT) {
            let reported = Reported { port, rack: self.rack.clone(), blobs: blobs.to_vec() };
            let path = "/node/v1/report";
            let _: Option<()> = self.tell_directory(
                |index, now, own| index.report(now, own, &reported),
                path,
                &reported,
            );
        }
    }

    /// Reports what is here until the node ends.
    fn keep_reporting(&self) {
        let third = Span::from_ticks(SILENCE.ticks() / 3);
        let mut next = self.clock.now();
        while !self.is_stopped() {
            let now = self.clock.now();
            let is_due = now >= next || self.news.swap(false, Ordering::Relaxed);
            if is_due {
                next = now.saturating_add(third);
                self.report_held(true);
            } else if !locked(&self.arriving).is_empty() {
                self.report_held(false);
            }
            std::thread::park_timeout(Duration::from_nanos(NEWS_EVERY.as_ns()));
        }
        self.leave(None);
    }

    /// What the node has done, for readers.
    pub(crate) fn status(&self) -> Value {
        let (blobs, bytes) = self.store.totals();
        let arriving = locked(&self.arriving);
        let arriving: Vec<_> = arriving
            .values()
            .map(|(blob, _)| {
                let there: u32 = blob.map().iter().map(|word| word.count_ones()).sum();
                serde_json::json!({
                    "digest": blob.digest.to_string(), "size": blob.size,
                    "chunks": blob.chunks(), "there": there,
                })
            })
            .collect();
        let counts: serde_json::Map<String, Value> = self
            .counts
            .all()
            .iter()
            .map(|(name, _, value)| ((*name).into(), (*value).into()))
            .collect();
        serde_json::json!({
            "blobs": blobs, "bytes": bytes, "arriving": arriving, "counts": counts,
            "nodes": self.index().map(|index| index.nodes()),
        })
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("own", &self.own).finish_non_exhaustive()
    }
}

/// A running node. It ends when this is dropped.
#[derive(Debug)]
pub struct Service {
    /// Where it serves runtimes.
    pub address: SocketAddr,
    /// Where it serves nodes.
    pub nodes: Option<SocketAddr>,
    node: Arc<Node>,
    pages: Vec<Page>,
    shown: Option<watch::Sender<()>>,
    reporter: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a node. `report` hears what happens, from any thread.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub fn start(
        config: NodeConfig,
        report: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<Self, NodeError> {
        if config.upstreams.is_empty() {
            return Err(NodeError::NoRegistry);
        }
        if config.directory.is_some() && config.nodes.is_none() {
            return Err(NodeError::NoAddress);
        }
        if let Some(address) = config.nodes.filter(|it| it.ip().is_unspecified()) {
            return Err(NodeError::Unspecified(address));
        }
        let roots = match &config.certificates {
            Some(path) => {
                let read = registry::read_certificates(path);
                Some(read.map_err(|why| NodeError::Certificates { path: path.clone(), why })?)
            }
            None => None,
        };
        let store = Store::open(&config.store, config.capacity)?;
        // The port of nodes may be any, so that its listener comes first.
        let (shown, end) = watch::channel(());
        let mut pages = Vec::new();
        let limits = Limits { connections: CONNECTIONS, ..Limits::default() };
        let listen = |address: SocketAddr| -> Result<std::net::TcpListener, NodeError> {
            std::net::TcpListener::bind(address)
                .map_err(|error| NodeError::Listen { address, error })
        };
        let own = config.nodes.map(listen).transpose()?;
        let own_address = own.as_ref().map(std::net::TcpListener::local_addr).transpose()?;
        let keeper = match (config.directory, own_address) {
            (None, _) => Keeper::Nobody,
            (Some(at), Some(own)) if at == own || Some(at) == config.nodes => {
                Keeper::Here(Box::new(Mutex::new(Index::new())))
            }
            (Some(at), _) => Keeper::At(at),
        };
        let node = Arc::new(Node {
            store,
            registry: Registry::new(config.credentials, roots),
            upstreams: config.upstreams,
            http: Http::new(),
            counts: Counts::default(),
            clock: Clock::start(),
            arriving: Mutex::default(),
            keeper,
            silent: Mutex::default(),
            liars: Mutex::default(),
            news: AtomicBool::new(true),
            own: own_address,
            rack: config.rack,
            stop: AtomicBool::new(false),
            report: Box::new(report),
        });
        let mut nodes = None;
        if let Some(listener) = own {
            let router = peers::router(&node, config.names.clone());
            let page = Page::on(listener, router, end.clone(), limits)?;
            nodes = Some(page.address);
            pages.push(page);
        }
        let router = mirror::router(&node, config.names);
        let page = Page::on(listen(config.listen)?, router, end, limits)?;
        let address = page.address;
        pages.push(page);
        let mut reporter = None;
        if node.has_directory() {
            let reporting = Arc::clone(&node);
            let thread = std::thread::Builder::new().name("report".into());
            reporter = Some(thread.spawn(move || reporting.keep_reporting())?);
        }
        Ok(Self { address, nodes, node, pages, shown: Some(shown), reporter })
    }

    /// Whether one of its threads has panicked.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.pages.iter().any(Page::has_ended)
            || self.reporter.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// What it has done.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.node.counts
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.node.stop.store(true, Ordering::Relaxed);
        if let Some(reporter) = self.reporter.take() {
            reporter.thread().unpark();
            // One that has panicked has said so.
            let _ = reporter.join();
        }
        drop(self.shown.take());
        self.pages.drain(..).for_each(Page::join);
    }
}
