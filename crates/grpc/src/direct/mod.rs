//! The direct way: one call, one message each way or one stream, and no HTTP/2 in between.
//!
//! [`Channel`] is what generated clients take (`GreeterClient::new(channel)`), [`Server`] drives what generated
//! servers are (`GreeterServer::new(...)`, or several in `tonic::service::Routes`).
//!
//! Over a node, a call whose request is whole at once (up to 4 MiB) goes as one message, and its answer comes as one, if
//! it is whole as soon as it begins; every unary call is so. All else goes over a stream of its own. Over other
//! streams of bytes ([`Dial`](crate::Dial)), each call has one.
//! What an HTTP/2 connection does, the transport below does here: multiplexing, flow control, deciding
//! whose bytes go next. So a short call waits for no long one.
//!
//! All four kinds of calls, metadata both ways, status with details, `grpc-timeout` at both ends, and cancellation:
//! a call that is dropped gives up its stream, and the server's handler is dropped. Message compression is
//! between tonic's client and server, as ever. Peers of other gRPC implementations are not served: the framing is
//! ours.

mod client;
mod frame;
mod messages;
mod server;
mod timeout;
mod write;

pub use self::client::Channel;
pub use self::server::Server;

/// What a peer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest head and longest trailers, as bytes: path and metadata.
    pub head_bytes: u32,
    /// Calls at a time, of one [`Channel`] with its clones, or of one [`Server`]; more wait.
    pub calls: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head_bytes: 64 << 10, calls: 1024 }
    }
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
