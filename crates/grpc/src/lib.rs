//! gRPC over Rackweave: tonic's clients and servers, unchanged, over another transport.
//!
//! Two ways, for the same generated code:
//! - [`connect`], and tonic's server with [`incoming`]: tonic's own transport ([`http2`]) over one long-lived stream.
//!   Everything that tonic can do works, and calls share a connection as they do over TCP.
//! - [`connect_directly`], and [`direct::Server`]: a message or a stream for each call, and no HTTP/2. Calls cost less, and a short
//!   one waits for no long one.
//!
//! Nothing is encrypted. Transports without streams (Polo) cannot carry gRPC: calls fail as `FAILED_PRECONDITION`.

pub mod direct;
pub mod http2;
mod io;
mod node;

pub use self::io::{Accepted, Dial, Messages};
pub use self::node::{DialPeer, IncomingStreams, connect, connect_directly, incoming};
