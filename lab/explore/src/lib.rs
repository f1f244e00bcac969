//! A page on which one point of a scenario is run, watched, stepped, compared with another one, and traced packet by packet.
//!
//! - `lane`: a run on a thread of its own, which looks at a plan between its events; `session`: the lanes, and what is set.
//! - `trace`: the packets of one message, by running the point again. `layout`: how a fabric is drawn.
//! - `view`, `routes`: what the page gets, and over which requests. The page itself is `page.html`, `page.css` and `page.js`.
//!
//! Runs are those of [`rackweave_lab::Batch`], so that their results are those of `rackweave run`.

mod lane;
mod layout;
mod routes;
mod session;
#[cfg(test)]
mod tests;
mod trace;
mod view;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rackweave_lab::scenario::ScenarioText;
use rackweave_page::{Bounds, Limits, Page};
use tokio::sync::watch;

use self::session::{Session, Start};

/// What is explored, and where the page is.
#[derive(Clone, Debug)]
pub struct Config {
    /// The scenario.
    pub text: ScenarioText,
    /// Its `KEY=VALUE` arguments.
    pub sets: Vec<String>,
    /// The port on 127.0.0.1; 0 for a free one.
    pub port: u16,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum ExploreError {
    /// The scenario is invalid.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Scenario(#[from] rackweave_lab::ScenarioError),
    /// No point of the scenario can be watched.
    #[error("{0}")]
    Unwatchable(String),
    /// The page cannot listen.
    #[error("cannot listen on {address}")]
    #[diagnostic(help("choose another port with --port, or leave it out for a free one"))]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// A running page.
#[derive(Debug)]
pub struct Explore {
    page: Page,
    session: Arc<Session>,
    end: watch::Sender<()>,
    token: String,
}

impl Explore {
    /// Reads the scenario, and starts the page with its first point, which waits at time zero.
    ///
    /// # Errors
    /// See [`ExploreError`].
    pub fn start(config: Config) -> Result<Self, ExploreError> {
        let Config { text, sets, port } = config;
        text.read(rackweave_lab::scenario::World::Simulator, &sets, None)?;
        let session = Session::new(text, sets);
        session.start(Start::default()).map_err(|why| ExploreError::Unwatchable(why.0))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let token = format!("{:032x}", rackweave_page::random());
        let router = routes::router(Arc::clone(&session), token.clone());
        let (end, ended) = watch::channel(());
        // All are at one address: those with the token, who have all places but a few, and everybody else of this machine.
        let connections = Bounds { most: 64, of_one: 48, kept: 40 };
        let limits = Limits { connections, ..Limits::default() };
        let page = Page::start(address, router, ended, limits);
        let page = page.map_err(|source| ExploreError::Listen { address, source })?;
        Ok(Self { page, session, end, token })
    }

    /// Where the page listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.page.address
    }

    /// The address of the page. Whoever has it can read and change the run, with the rights of this process.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.page.address, self.token)
    }

    /// Ends the page and what runs.
    pub fn end(self) {
        let Self { page, session, end, token: _ } = self;
        drop(end);
        session.end();
        page.join();
    }
}
