//! gRPC without HTTP/2: one call is one message each way, or one stream.
//!
//! Generated clients take a [`Channel`] (`GreeterClient::new(channel)`), and a [`Server`] drives generated
//! servers (`GreeterServer::new(...)`, or several in `tonic::service::Routes`).
//!
//! Over a node, a call whose request is complete at once (up to 4 MiB) travels as one message, and so does its response, if
//! it is complete when it begins; this holds for every unary call. Other calls use a stream of their own. Over other
//! byte streams ([`Dial`](crate::Dial)), each call has its own stream.
//! The transport below does what an HTTP/2 connection would otherwise do: multiplexing, flow control, and scheduling of
//! bytes. A short call therefore does not wait for a long one.
//!
//! All four kinds of calls, metadata both ways, status with details, `grpc-timeout` at both ends, and cancellation are supported:
//! a call that is dropped resets its stream, and the server's handler is dropped. Message compression
//! happens in tonic at both ends. Other gRPC implementations cannot connect, because the framing is Rackweave's.

#[doc(hidden)]
pub mod checks;
mod client;
mod frame;
mod messages;
mod server;
mod timeout;
mod write;

pub use self::client::Channel;
pub use self::server::Server;

/// Limits on what a peer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a head (path and metadata) and of trailers, in bytes.
    pub head_bytes: u32,
    /// Concurrent calls of one [`Channel`] with its clones, or of one [`Server`]; further calls wait.
    pub calls: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head_bytes: 64 << 10, calls: 1024 }
    }
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
