//! A page that has nothing but counters for Prometheus.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::watch;

use crate::{Limits, Page, refused};

/// Makes the text; `None` if whoever counts does not answer.
type Text = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Counters at `/metrics`, until this is dropped.
#[derive(Debug)]
pub struct Metrics {
    /// Where they are.
    pub address: SocketAddr,
    _end: watch::Sender<()>,
}

impl Metrics {
    /// Serves the text that a function makes, in Prometheus' format 0.0.4. The function may block, and runs in any thread.
    ///
    /// # Errors
    /// If it cannot listen there, or has no thread.
    pub fn start(
        listen: SocketAddr,
        text: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let text: Text = Arc::new(text);
        let router = Router::new()
            .route("/", get(answer))
            .route("/metrics", get(answer))
            .fallback(async || refused(StatusCode::NOT_FOUND, "the counters are at /metrics\n"))
            .with_state(text);
        let (end, ended) = watch::channel(());
        let page = Page::start(listen, router, ended, Limits::default())?;
        Ok(Self { address: page.address, _end: end })
    }
}

async fn answer(State(text): State<Text>) -> Response {
    match tokio::task::spawn_blocking(move || text()).await {
        Ok(Some(text)) => {
            let kind = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
            ([kind, (CONNECTION, "close")], text).into_response()
        }
        _ => refused(StatusCode::SERVICE_UNAVAILABLE, "there are no counters at present\n"),
    }
}
