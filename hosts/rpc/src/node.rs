//! A node: an endpoint, and the task that drives it.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rackweave_core::HostId;
use tokio::io::Interest;
use tokio::runtime::Handle;

use crate::client::Client;
use crate::config::NodeConfig;
use crate::driver::{Driver, Timer, watch};
use crate::error::BindError;
use crate::server::Server;
use crate::state::{Owner, Shared};

/// A process's access to the network: one socket, for calls in both directions. Clones are the same node.
///
/// A task of the runtime in which it was bound drives it. The task ends with [`Node::shutdown`], or when the
/// node and everything created from it (clients, servers, calls, streams) are dropped; outstanding
/// work is then lost.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) owner: Arc<Owner>,
}

/// A peer of one node, from [`Node::peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    pub(crate) node: u32,
    pub(crate) host: HostId,
    pub(crate) address: SocketAddr,
}

impl Peer {
    /// Returns its address; behind a user-space switch, the address of the switch's port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its number at this node; behind a user-space switch, its number in the fabric.
    #[must_use]
    pub const fn host(&self) -> HostId {
        self.host
    }
}

/// The node's current load, and counters since it was bound.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Statistics of the endpoint's datagrams.
    pub datagrams: rackweave_linux::endpoint::Stats,
    /// Bytes that wait to be sent or acknowledged.
    pub sending_bytes: u64,
    /// Bytes reserved for arriving messages.
    pub arriving_bytes: u64,
    /// Bytes that have arrived on streams and have not been read.
    pub unread_bytes: u64,
    /// Outstanding calls and one-way messages, waiting ones included.
    pub calls: usize,
    /// Calls and one-way messages that wait for room.
    pub calls_without_room: usize,
    /// Requests, messages and streams that wait for [`Server::next`].
    pub waiting_requests: usize,
    /// Requests that the application has taken and not answered.
    pub serving: usize,
    /// Streams that are open, or whose handles are kept.
    pub streams: usize,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that failed, without calls that the application cancelled.
    pub failed: u64,
    /// Requests, messages and streams that arrived.
    pub received: u64,
    /// Requests that this node refused.
    pub refused: u64,
    /// One-way messages that were dropped because too many waited or no server took them.
    pub dropped_messages: u64,
    /// Responses that did not reach their client.
    pub lost_answers: u64,
    /// Messages that are not in this library's format.
    pub malformed: u64,
    /// Times that the file of [tickets](NodeConfig::tickets) could not be written.
    pub tickets_not_written: u64,
}

/// The next node number of this process. A peer carries its node's number, so that it cannot be used at another node.
static NODES: AtomicU32 = AtomicU32::new(0);

impl Node {
    /// Binds a node's socket, and starts its task in the current tokio runtime, which needs I/O
    /// enabled.
    ///
    /// # Errors
    /// If the address is not available, or there is no runtime.
    pub fn bind(config: NodeConfig) -> Result<Self, BindError> {
        let runtime = Handle::try_current().map_err(|_| BindError::NoRuntime)?;
        let (endpoint, tickets) = config.endpoint()?;
        let timer = Timer::new(endpoint.clock()).map_err(BindError::Timer)?;
        let socket = endpoint.as_fd().try_clone_to_owned().map_err(BindError::Timer)?;
        let socket = watch(socket, Interest::READABLE).map_err(BindError::Timer)?;
        let watched = watch(timer.clone(), Interest::READABLE).map_err(BindError::Timer)?;
        let number = NODES.fetch_add(1, Ordering::Relaxed);
        let serves = config.serves_anybody();
        let shared = Arc::new(Shared::new((endpoint, tickets), timer, number, config));
        let driver = Driver::new(Arc::clone(&shared), socket, watched, runtime.runtime_flavor());
        runtime.spawn(driver.run());
        let node = Self { owner: Arc::new(Owner(shared)) };
        tracing::info!(address = %node.local_addr(), number, "node bound");
        if !serves {
            let address = node.local_addr();
            tracing::info!(%address, "it serves only peers that it calls: NodeConfig::allow and ::peer admit others");
        }
        Ok(node)
    }

    /// Returns the address of its socket.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.owner.0.address
    }

    /// Returns the peer at this address. The peer need not exist yet; from now on it may call this node.
    #[must_use]
    pub fn peer(&self, address: SocketAddr) -> Peer {
        let host = self.owner.0.lock().add_peer(address);
        Peer { node: self.owner.0.number, host, address }
    }

    /// Returns the host with this number, behind a [user-space switch](NodeConfig::through_switch).
    #[must_use]
    pub fn host(&self, number: u32) -> Peer {
        let host = HostId(number);
        let address = self.owner.0.lock().peer_addr(host);
        Peer { node: self.owner.0.number, host, address }
    }

    /// Returns a handle for making calls.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.owner))
    }

    /// Returns a handle for serving calls. Requests that arrive while there is no server are refused. Several servers
    /// share the incoming work.
    #[must_use]
    pub fn server(&self) -> Server {
        Server::new(Arc::clone(&self.owner))
    }

    /// Returns the node's current load and counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.owner.0.lock().stats()
    }

    /// Shuts down: refuses new calls and requests, waits until outstanding work has ended or the
    /// [grace](NodeConfig::grace) is over, and frees the port. Requests that wait for [`Server::next`] are refused, and
    /// it returns `None`; work that is not finished in time fails with
    /// [`NodeStopped`](crate::CallError::NodeStopped).
    pub async fn shutdown(&self) {
        let shared = &self.owner.0;
        loop {
            let ended = shared.ended.notified();
            if shared.lock().close() {
                return;
            }
            ended.await;
        }
    }
}
