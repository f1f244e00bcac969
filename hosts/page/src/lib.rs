//! A page that a process serves over HTTP, next to its own work.
//!
//! It runs on a thread and a runtime of its own and ends when the sender of a watch channel is dropped, so that no reader can slow the
//! process. Connections, and the memory and time that each can take, have limits. Requests by foreign names are refused
//! ([`guarded`]), and [`document`] makes one document that loads nothing else.

mod guard;
mod stall;

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

pub use self::guard::{Pieces, body, document, guarded, random, refused};
use self::stall::Stalling;

/// Limits of one reader.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections; more are closed at once.
    pub connections: usize,
    /// Open connections of one address.
    pub of_one: usize,
    /// Time for the head of a request, and between two requests of a connection.
    pub request: Duration,
    /// Time in which a connection must take some of what is sent.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            of_one: 24,
            request: Duration::from_secs(10),
            stall: Duration::from_secs(10),
        }
    }
}

/// How long readers have to take the last state when the page ends.
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
        let listener = TcpListener::bind(listen)?;
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

async fn serve<T>(stream: TcpStream, router: Router, shown: watch::Receiver<T>, limits: Limits) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let addresses = Addresses::default();
        let add = |text: &str| addresses.add(text.parse().unwrap(), 2);
        let (one, _two) = (add("2001:db8::1").unwrap(), add("2001:db8::2:3").unwrap());
        assert!(add("2001:db8::4").is_none() && add("2001:db8:0:1::4").is_some());
        drop(one);
        assert!(add("2001:db8::4").is_some());
        let _mapped = (add("::ffff:192.0.2.1"), add("192.0.2.1"));
        assert!(add("192.0.2.1").is_none() && add("192.0.2.2").is_some());
    }
}
