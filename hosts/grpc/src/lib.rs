//! gRPC over Rackweave: tonic's clients and servers, unchanged, over another transport.
//!
//! There are two variants, for the same generated code:
//! - [`connect`], and tonic's server with [`incoming`]: tonic's own transport ([`http2`]) over one long-lived stream.
//!   All of tonic's features work, and calls share a connection as they do over TCP.
//! - [`connect_directly`], and [`direct::Server`]: a message or a stream per call, without HTTP/2. Calls cost less, and a short
//!   call does not wait for a long one.
//!
//! Nothing is encrypted. Transports without streams (Polo) carry only unary calls of the direct variant; other calls
//! fail as `FAILED_PRECONDITION`.
//!
//! ```
//! use rackweave_rpc::{Node, NodeConfig, Rate, Transport};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let transport = Transport::homa(Rate::from_gbps(10));
//! let node = Node::bind(NodeConfig::new(transport, ([127, 0, 0, 1], 0).into()))?;
//! // Either channel is the argument of a generated client, such as `GreeterClient::new(channel)`.
//! let _over_http2 = rackweave_grpc::connect(&node, ([127, 0, 0, 1], 7000).into());
//! let _without_http2 = rackweave_grpc::connect_directly(&node, ([127, 0, 0, 1], 7000).into());
//! # node.shutdown().await;
//! # Ok(())
//! # }
//! ```

pub mod direct;
pub mod http2;
mod io;
mod node;

pub use self::io::{Accepted, Dial, Messages};
pub use self::node::{DialPeer, IncomingStreams, connect, connect_directly, incoming};
