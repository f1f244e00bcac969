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
//! The [page](rackweave_page) shares nothing with the server but the receiver of a watch channel, so that no reader can slow the
//! imaging.

mod digest;
mod metrics;
mod routes;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rackweave_page::Limits;
pub(crate) use rackweave_page::Page;
use tokio::sync::watch;

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

/// Starts the page. It ends when the sender of the status is dropped.
pub(crate) fn start(config: &PageConfig, shown: Shown) -> io::Result<Page> {
    with(config, shown, Limits::default())
}

fn with(config: &PageConfig, shown: Shown, limits: Limits) -> io::Result<Page> {
    let router = routes::router(shown.clone(), config.names.clone());
    Page::start(config.listen, router, shown, limits)
}
