//! tonic's own transport, HTTP/2, over one long-lived stream instead of a TCP connection.
//!
//! HTTP/2 has flow control of its own, above that of the stream below. Its windows are set here so that they do not
//! throttle: [`STREAM_WINDOW`] for a call, [`CONNECTION_WINDOW`] for all calls of a connection, frames of up to
//! [`FRAME`]. (hyper's own choice for clients is 2 MB and 5 MB with frames of 16 kB, and for servers 1 MB each.)
//! They are what a side that reads slowly may have to hold.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Server};
use tower_service::Service;

use crate::Dial;

/// Bytes of one call that may be under way or unread, in each direction.
pub const STREAM_WINDOW: u32 = 8 << 20;

/// Bytes of all calls together that may be under way or unread, in each direction.
pub const CONNECTION_WINDOW: u32 = 64 << 20;

/// Longest HTTP/2 frame: what a short call may have to wait for, on the connection that it shares with a long one.
pub const FRAME: u32 = 64 << 10;

/// How often an idle connection is asked whether the other side is there, and how long that may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));

/// A channel over what `dial` opens; it is opened at the first call, and anew whenever it was lost. A call under way
/// then fails as `UNAVAILABLE`, later ones are served by the new one.
#[must_use]
pub fn channel<D: Dial>(dial: D) -> Channel {
    endpoint().connect_with_connector_lazy(Connector(dial))
}

/// The settings of [`channel`], for who wants others too: use them with [`Connector`].
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

/// A tonic server with the settings for this: give it services, then `serve_with_incoming`.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .http2_keepalive_interval(Some(KEEP_ALIVE.0))
        .http2_keepalive_timeout(Some(KEEP_ALIVE.1))
}

/// What `Endpoint::connect_with_connector` takes; whatever the URI says, it goes where the [`Dial`] goes.
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
