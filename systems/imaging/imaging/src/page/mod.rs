//! The server's live page, its status as JSON, and metrics for Prometheus, over HTTP.
//!
//! | path | content |
//! |---|---|
//! | `/` | the page: HTML, style and script in one document that loads nothing else |
//! | `/events` | server-sent events: a [`digest`] of the status each second, and one named `end` when the server ends |
//! | `/status.json` | the [`ServerStatus`] with all clients |
//! | `/clients/ADDRESS` | what is known of one client |
//! | `/metrics` | Prometheus' text format 0.0.4 |
//!
//! It runs on a thread and a runtime of its own and shares nothing with the server but the receiver of a watch channel, so that no
//! reader can slow the imaging. Connections, and the memory and time that each can take, have limits.

mod digest;
mod metrics;
mod routes;
mod stall;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::stall::Stalling;
use crate::status::ServerStatus;

/// Where the page is, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageConfig {
    /// Where to listen. There is no authentication: whoever reaches it can read it.
    pub listen: SocketAddr,
    /// Whether the server fails if it cannot listen there; otherwise it serves without a page.
    pub is_required: bool,
    /// The names by which it may be requested, besides IP addresses and `localhost`. Others are refused, because they may be those of
    /// a foreign site that has its name resolved to this host (DNS rebinding).
    pub names: Vec<String>,
}

/// What the server shows, once there is something.
pub(crate) type Shown = watch::Receiver<Option<Arc<ServerStatus>>>;

/// Limits of one reader.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Open connections; more are closed at once.
    connections: usize,
    /// Open connections of one address.
    of_one: usize,
    /// Time for the head of a request, and between two requests of a connection.
    request: Duration,
    /// Time in which a connection must take some of what is sent.
    stall: Duration,
}

const LIMITS: Limits = Limits {
    connections: 64,
    of_one: 24,
    request: Duration::from_secs(10),
    stall: Duration::from_secs(10),
};
/// How long readers have to take the last state when the server ends.
const LAST: Duration = Duration::from_millis(500);
/// The longest head of a request. It is also the memory that a connection has for what it has not sent yet.
const MOST_HEAD: usize = 16 << 10;

/// The connections of each address.
#[derive(Clone, Debug, Default)]
struct Addresses(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// A connection that is counted until it is dropped.
#[derive(Debug)]
struct Counted {
    address: IpAddr,
    addresses: Addresses,
}

impl Addresses {
    /// Counts a connection; `None` if its address has as many as it may.
    fn add(&self, address: IpAddr, most: usize) -> Option<Counted> {
        // An IPv6 network of a site has 64 bits for its hosts, so that one host has as many addresses as it likes.
        let address = match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => address,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(address).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(all);
        Some(Counted { address, addresses: self.clone() })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = self.addresses.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

/// A running page. It ends when the sender of the status is dropped.
#[derive(Debug)]
pub(crate) struct Page {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    thread: JoinHandle<()>,
}

impl Page {
    pub(crate) fn start(config: &PageConfig, shown: Shown) -> io::Result<Self> {
        Self::with(config, shown, LIMITS)
    }

    fn with(config: &PageConfig, shown: Shown, limits: Limits) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let router = routes::router(shown.clone(), config.names.clone());
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

    /// Waits until readers have the last state, for at most half a second. The sender must have been dropped.
    pub(crate) fn join(self) {
        // A page that has panicked is no failure of the imaging.
        let _ = self.thread.join();
    }
}

/// Returns when the server has ended.
async fn ended(mut shown: Shown) {
    while shown.changed().await.is_ok() {}
}

async fn accept(listener: tokio::net::TcpListener, router: &Router, shown: Shown, limits: Limits) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let addresses = Addresses::default();
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
        let Some(counted) = addresses.add(from.ip(), limits.of_one) else { continue };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let (router, shown) = (router.clone(), shown.clone());
        connections.spawn(async move {
            serve(stream, router, shown, limits).await;
            drop((permit, counted));
        });
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    // Readers that take longer do not get the last state.
    let _ = timeout(LAST, all).await;
}

async fn serve(stream: TcpStream, router: Router, shown: Shown, limits: Limits) {
    // Delays small answers if it fails, and nothing else.
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_buf_size(MOST_HEAD)
        .serve_connection(
            TokioIo::new(Stalling::new(stream, limits.stall)),
            TowerToHyperService::new(router),
        );
    let mut connection = pin!(connection);
    // Readers that break off, stall, or send what is no request get nothing else.
    tokio::select! {
        _ = &mut connection => {}
        () = ended(shown) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}
