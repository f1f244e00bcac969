//! tonic's own transport, HTTP/2, over one long-lived stream instead of a TCP connection.
//!
//! HTTP/2 has its own flow control on top of the stream's. Its windows are set so that they do not
//! throttle: [`STREAM_WINDOW`] per call, [`CONNECTION_WINDOW`] for all calls of a connection, frames of up to
//! [`FRAME`]. (hyper's defaults are 2 MB and 5 MB with frames of 16 kB for clients, and 1 MB each for servers.)
//! A side that reads slowly may have to buffer that much.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Server};
use tower_service::Service;

use crate::Dial;

/// Bytes of one call that may be in flight or unread, in each direction.
pub const STREAM_WINDOW: u32 = 8 << 20;

/// Bytes of all calls together that may be in flight or unread, in each direction.
pub const CONNECTION_WINDOW: u32 = 64 << 20;

/// Longest HTTP/2 frame: what a short call may have to wait for behind a long one on the same connection.
pub const FRAME: u32 = 64 << 10;

/// Interval of keep-alive pings on an idle connection, and the time allowed for the reply.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));

/// Creates a channel over the stream that `dial` opens, at the first call and again after each loss. Outstanding calls
/// then fail as `UNAVAILABLE`, and later ones use the new stream.
#[must_use]
pub fn channel<D: Dial>(dial: D) -> Channel {
    endpoint().connect_with_connector_lazy(Connector(dial))
}

/// Returns the settings of [`channel`], for use with [`Connector`] and further settings.
#[must_use]
pub fn endpoint() -> Endpoint {
    Endpoint::from_static("http://rackweave")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .http2_max_header_list_size(64 << 10)
        .http2_keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1)
        .connect_timeout(Duration::from_secs(10))
}

/// Creates a tonic server with these settings: add services to it, then call `serve_with_incoming`.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .http2_keepalive_interval(Some(KEEP_ALIVE.0))
        .http2_keepalive_timeout(Some(KEEP_ALIVE.1))
}

/// The argument of `Endpoint::connect_with_connector`. It ignores the URI and connects where the [`Dial`] leads.
#[derive(Clone, Debug)]
pub struct Connector<D>(pub D);

impl<D: Dial> Service<Uri> for Connector<D> {
    type Response = TokioIo<D::Stream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<TokioIo<D::Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dial = self.0.clone();
        Box::pin(async move { dial.dial().await.map(TokioIo::new) })
    }
}
