//! A controller as a service.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;

use rackweave_core::Rng;
use rackweave_linux::{Clock, random};
use rackweave_page::{Bounds, Limits, Page};
use rackweave_rackless::controller::{Config, Controller, Happening};
use rackweave_rpc::{BindError, Key, Network, Node, NodeConfig, Rate, Transport};
use tokio::sync::{oneshot, watch};

use crate::core::Shared;
use crate::store::{Database, DatabaseError};
use crate::tenants::Tenants;
use crate::{north, south};

/// Bytes that arrive from agents at a time.
const MOST_ARRIVING: u64 = 16 << 20;

/// Connections of HTTP. Those without a tenant's token have an eighth of the places. Each address has a share of that.
const CONNECTIONS: Bounds = Bounds { most: 1024, of_one: 512, kept: 896 };

/// The configuration of a service.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// What it controls.
    pub controller: Config,
    /// Its database.
    pub database: PathBuf,
    /// Where masters, operators and readers of the page ask.
    pub listen: SocketAddr,
    /// Where agents report.
    pub agents: SocketAddr,
    /// The key of agents; `None` on loopback only.
    pub key: Option<Key>,
    /// Who may submit.
    pub tenants: Tenants,
    /// Names by which HTTP requests may call it, besides addresses and `localhost`.
    pub names: Vec<String>,
}

/// Why a service or agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// Its database fails.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// HTTP cannot be served there.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        error: io::Error,
    },
    /// There is no socket for messages.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The thread that changes circuits has panicked.
    #[error("the thread that changes circuits has failed: this is an error in Rackweave")]
    Device,
    /// The system refuses.
    #[error("the system refuses: {0}")]
    System(#[from] io::Error),
    /// Its port for agents would be open to everybody.
    #[error("without a key any host that reaches the port for agents commands the pod")]
    NoKey,
    /// Its port for HTTP would be.
    #[error("without tenants anybody who reaches the HTTP port can submit jobs")]
    NoTenants,
}

/// A running service. It ends when this is dropped.
#[derive(Debug)]
pub struct Service {
    /// Where it serves HTTP.
    pub address: SocketAddr,
    /// Where agents report.
    pub agents: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    page: Option<Page>,
    shown: Option<watch::Sender<()>>,
    shared: Shared,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// A node that everybody may send to who has its key.
pub(crate) fn anybody(config: NodeConfig) -> NodeConfig {
    let networks = ["0.0.0.0/0", "::/0"].iter().filter_map(|text| text.parse::<Network>().ok());
    networks.fold(config, NodeConfig::allow).receive_memory(MOST_ARRIVING)
}

impl Service {
    /// Starts a service with what its database has. `report` hears what happens, `fails` why nothing is stored; both from a thread of
    /// the service.
    ///
    /// # Errors
    /// See [`PodError`].
    pub fn start(
        config: ServiceConfig,
        report: impl FnMut(&Happening) + Send + 'static,
        fails: impl FnMut(&str) + Send + 'static,
    ) -> Result<Self, PodError> {
        if config.key.is_none() && !config.agents.ip().is_loopback() {
            return Err(PodError::NoKey);
        }
        if !config.tenants.has_tokens() && !config.listen.ip().is_loopback() {
            return Err(PodError::NoTenants);
        }
        let database = Database::open(&config.database)?;
        let saved = database.read()?;
        let clock = Clock::start();
        let secret = random();
        let rng = Rng::stream(secret as u64, 0, 0, "plan of a pod");
        let start = (secret >> 64) as u64;
        let controller = Controller::new(config.controller, saved, start, rng, clock.now());
        let shared = Shared::new(controller, database, clock);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut node = anybody(NodeConfig::new(Transport::homa(Rate::from_gbps(1)), config.agents));
        if let Some(key) = config.key {
            node = node.key(key);
        }
        let node = runtime.block_on(async { Node::bind(node) })?;
        let agents = node.local_addr();
        let (shown, end) = watch::channel(());
        let router = north::router(shared.clone(), config.tenants, config.names);
        let limits = Limits { connections: CONNECTIONS, ..Limits::default() };
        let page = Page::start(config.listen, router, end, limits)
            .map_err(|error| PodError::Listen { address: config.listen, error })?;
        let (stop, stopped) = oneshot::channel();
        let served = shared.clone();
        let thread = std::thread::Builder::new().name("agents".to_owned()).spawn(move || {
            runtime.block_on(south::serve(served, node, stopped, report, fails));
        })?;
        Ok(Self {
            address: page.address,
            agents,
            stop: Some(stop),
            thread: Some(thread),
            page: Some(page),
            shown: Some(shown),
            shared,
        })
    }

    /// Whether one of its threads has panicked: the others command nothing useful without it.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
            || self.page.as_ref().is_some_and(Page::has_ended)
    }

    /// Whether it commands the pod.
    #[must_use]
    pub fn is_active(&self) -> bool {
        north::is_active(&self.shared)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
        drop(self.shown.take());
        if let Some(page) = self.page.take() {
            page.join();
        }
    }
}
