//! gRPC over Rackweave: tonic's clients and servers, unchanged, over another transport.
//!
//! Two ways, for the same generated code:
//! - [`http2`]: tonic's own transport over one long-lived stream. Everything that tonic can do works, and calls share
//!   a connection as they do over TCP.
//! - [`direct`]: a stream for each call and no HTTP/2. It is faster, and a short call waits for no long one.

pub mod direct;
pub mod http2;
mod io;

pub use self::io::{Accepted, Dial};
