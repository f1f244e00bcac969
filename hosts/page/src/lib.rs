//! A page that a process serves over HTTP, next to its own work.
//!
//! It runs on a thread and a runtime of its own and ends when the sender of a watch channel is dropped, so that no reader can slow the
//! process. Connections have [places by merit](Places), and the memory and time that each can take have limits. Requests by foreign
//! names are refused ([`guarded`]), and [`document`] makes one document that loads nothing else.

mod guard;
mod metrics;
mod places;
mod stall;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use self::guard::{BodyError, Pieces, body, document, guarded, random, refused, whole};
pub use self::metrics::Metrics;
pub use self::places::{Bounds, Place, Places};
use self::stall::Stalling;

/// Limits of one reader.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections, by address until a reader has [proved](Visit::proves) who it is.
    pub connections: Bounds,
    /// Time for the head of a request, and between two requests of a connection.
    pub request: Duration,
    /// Time in which a connection must take some of what is sent.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: Bounds { most: 64, of_one: 24, kept: 0 },
            request: Duration::from_secs(10),
            stall: Duration::from_secs(10),
        }
    }
}

/// How long readers have to take the last state when the page ends.
const LAST: Duration = Duration::from_millis(500);
/// The longest head of a request. It is also the memory that a connection has for what it has not sent yet.
const MOST_HEAD: usize = 16 << 10;
/// The most addresses that are remembered because somebody there has proved who he is.
const MOST_ADDRESSES: usize = 1024;

/// Whose a connection is. Nodes of messages share their places by the same rule (`rackweave_linux::addresses::party`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// Somebody at this address. An IPv6 network of a site counts as one: it has 64 bits for its hosts, so that one host has as many
    /// addresses as it likes.
    Address(IpAddr),
    /// Who has proved this name.
    Named(Arc<str>),
}

impl Party {
    fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// Parties that have proved who they are, and their addresses. The latest is last.
type Known = Arc<Mutex<VecDeque<Party>>>;

/// The connection of a request, which is among the request's extensions.
#[derive(Clone, Debug)]
pub struct Visit {
    address: IpAddr,
    from: Party,
    named: Arc<Mutex<Option<Party>>>,
    place: Arc<Place<Party>>,
    known: Known,
}

impl Visit {
    /// Where the connection comes from.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The reader has proved this name: its connection does not make room for strangers, nor do the next ones from its address.
    pub fn proves(&self, name: &str) {
        let named = Party::Named(name.into());
        self.place.prove(&named, true);
        *self.named.lock().unwrap_or_else(PoisonError::into_inner) = Some(named);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|it| *it != self.from);
        known.push_back(self.from.clone());
        if known.len() > MOST_ADDRESSES {
            known.pop_front();
        }
    }

    /// Takes a place for the reader among others, such as readers of a stream of events.
    #[must_use]
    pub fn take(&self, places: &Places<Party>) -> Place<Party> {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_known = named.is_some();
        places.take(named.unwrap_or_else(|| self.from.clone()), is_known)
    }
}

/// A running page. It ends when the sender of its watch channel is dropped.
#[derive(Debug)]
pub struct Page {
    /// Where it listens.
    pub address: SocketAddr,
    thread: JoinHandle<()>,
}

impl Page {
    /// Starts a page with these routes until the sender of `shown` is dropped.
    ///
    /// # Errors
    /// If it cannot listen there, or has no thread.
    pub fn start<T: Send + Sync + 'static>(
        listen: SocketAddr,
        router: Router,
        shown: watch::Receiver<T>,
        limits: Limits,
    ) -> io::Result<Self> {
        Self::on(TcpListener::bind(listen)?, router, shown, limits)
    }

    /// Starts a page at a socket that listens.
    ///
    /// # Errors
    /// If the system refuses, or has no thread.
    pub fn on<T: Send + Sync + 'static>(
        listener: TcpListener,
        router: Router,
        shown: watch::Receiver<T>,
        limits: Limits,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            runtime.block_on(async {
                // Registering a socket that is open cannot fail, except without memory for it.
                if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                    accept(listener, &router, shown, limits).await;
                }
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("page".to_owned()).spawn(run)?;
        Ok(Self { address, thread })
    }

    /// Whether its thread has ended, which it does before the end only by a panic.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until readers have the last state, for at most half a second. The sender must have been dropped.
    pub fn join(self) {
        // A page that has panicked is no failure of the process.
        let _ = self.thread.join();
    }
}

/// Returns when the sender has been dropped.
pub async fn ended<T>(mut shown: watch::Receiver<T>) {
    while shown.changed().await.is_ok() {}
}

async fn accept<T: Send + Sync + 'static>(
    listener: tokio::net::TcpListener,
    router: &Router,
    shown: watch::Receiver<T>,
    limits: Limits,
) {
    let places = Places::new(limits.connections);
    let known = Known::default();
    let mut connections = JoinSet::new();
    let mut end = pin!(ended(shown.clone()));
    loop {
        let accepted = tokio::select! {
            () = &mut end => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, from)) = accepted else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let address = from.ip().to_canonical();
        let from = Party::at(address);
        let is_known = known.lock().unwrap_or_else(PoisonError::into_inner).contains(&from);
        let place = Arc::new(places.take(from.clone(), is_known));
        let visit =
            Visit { address, from, named: Arc::default(), place, known: Arc::clone(&known) };
        connections.spawn(serve(stream, visit, router.clone(), shown.clone(), limits));
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    // Readers that take longer do not get the last state.
    let _ = timeout(LAST, all).await;
}

async fn serve<T>(
    stream: TcpStream,
    visit: Visit,
    router: Router,
    shown: watch::Receiver<T>,
    limits: Limits,
) {
    // Delays small answers if it fails, and nothing else.
    let _ = stream.set_nodelay(true);
    let place = Arc::clone(&visit.place);
    let stream = Stalling::new(stream, limits.stall, Arc::clone(&place));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        visit.place.touch();
        request.extensions_mut().insert(visit.clone());
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_buf_size(MOST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // Readers that break off, stall, or send what is no request get nothing else.
    tokio::select! {
        _ = &mut connection => {}
        () = place.evicted() => {}
        () = ended(shown) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let at = |text: &str| Party::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::2:3"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
    }

    /// A page at which `/events` sends something every few milliseconds.
    fn page(connections: Bounds) -> (watch::Sender<()>, Page) {
        let events = async || {
            let (out, body) = body();
            tokio::spawn(async move {
                while out.send(Ok("data: 1\n\n".into())).await.is_ok() {
                    sleep(Duration::from_millis(5)).await;
                }
            });
            body
        };
        let router = Router::new().route("/events", axum::routing::get(events));
        let (sender, shown) = watch::channel(());
        let limits = Limits { connections, ..Limits::default() };
        (sender, Page::start(([127, 0, 0, 1], 0).into(), router, shown, limits).unwrap())
    }

    async fn connect(page: &Page, last: u8) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(page.address).await.unwrap()
    }

    /// Whether a stream goes on: what is read last was not sent before.
    async fn goes_on(stream: &mut TcpStream) -> bool {
        for _ in 0..3 {
            if stream.read(&mut [0; 4096]).await.unwrap_or(0) == 0 {
                return false;
            }
        }
        true
    }

    #[tokio::test]
    async fn silent_connections_end_no_stream_that_is_read() {
        let (sender, page) = page(Bounds { most: 32, of_one: 24, kept: 16 });
        let mut reader = connect(&page, 2).await;
        reader.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        assert!(goes_on(&mut reader).await);
        let mut silent = Vec::new();
        // Those of one address, then one of each address.
        for last in (0..40).map(|_| 3).chain(4..44) {
            silent.push(connect(&page, last).await);
            if silent.len().is_multiple_of(5) {
                assert!(goes_on(&mut reader).await, "{} are silent", silent.len());
            }
        }
        drop(sender);
        page.join();
    }
}
