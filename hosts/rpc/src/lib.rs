//! Calls and streams over Homa, Polo and TCP, between real processes, with the state machines of the simulator.
//!
//! - A [`Node`] is a process's socket and the task that drives it. Its [`Client`] calls other nodes, its
//!   [`Server`] takes their calls.
//! - [`Client::call`] sends a request and returns the response; [`Client::send`] sends a one-way message;
//!   [`Client::stream`] opens a bidirectional [`Stream`] of bytes, an `AsyncRead` and `AsyncWrite`.
//! - [`Server::next`] returns incoming work: a [`Request`] to answer, a [`OneWay`] message, or a
//!   [`Stream`].
//! - Each call has a deadline, which is sent to its server; dropping the future of a call cancels it. Every failure states
//!   its cause ([`CallError`]), and whether a retry is [safe](CallError::is_safe_to_retry).
//!
//! ```
//! use std::time::Duration;
//!
//! use rackweave_rpc::{Incoming, Node, NodeConfig, Rate, Transport};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Both ends run Homa on links of 10 Gbps. A server answers only allowed clients.
//! let config = NodeConfig::new(Transport::homa(Rate::from_gbps(10)), ([127, 0, 0, 1], 0).into())
//!     .allow("127.0.0.1".parse()?);
//!
//! // A server.
//! let there = Node::bind(config.clone())?;
//! let server = there.server();
//! tokio::spawn(async move {
//!     while let Some(incoming) = server.next().await {
//!         match incoming {
//!             Incoming::Request(request) => {
//!                 let answer = format!("{} bytes", request.bytes().len());
//!                 request.respond(answer).await?;
//!             }
//!             Incoming::OneWay(message) => println!("{:?}", message.bytes()),
//!             Incoming::Stream(mut stream) => {
//!                 let mut text = String::new();
//!                 stream.read_to_string(&mut text).await?;
//!                 stream.write_all(text.to_uppercase().as_bytes()).await?;
//!                 stream.shutdown().await?;
//!             }
//!             _ => {}
//!         }
//!     }
//!     Ok::<_, std::io::Error>(())
//! });
//!
//! // A client.
//! let here = Node::bind(config)?;
//! let (client, peer) = (here.client(), here.peer(there.local_addr()));
//! let answer = client.call(peer, "how long am I?").deadline(Duration::from_secs(5)).await?;
//! assert_eq!(answer, "14 bytes");
//!
//! let mut stream = client.stream(peer)?;
//! stream.write_all(b"louder, please").await?;
//! stream.shutdown().await?;
//! let mut text = String::new();
//! stream.read_to_string(&mut text).await?;
//! assert_eq!(text, "LOUDER, PLEASE");
//!
//! here.shutdown().await;
//! there.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # How often a call is executed
//! At most once, also if the server restarts: an outstanding call then fails with
//! [`CallError::PeerRestarted`] and is not retried. With [`Call::idempotent`] it is retried until its
//! deadline, so it is executed at least once if it succeeds. After [`Deadline`](CallError::Deadline) and
//! [`PeerSilent`](CallError::PeerSilent) the call may or may not have been executed. The exact rules are in `docs/ops/rpc.md`.
//!
//! # Bounded queues
//! Every queue has a bound. Calls wait for the node's [send memory](NodeConfig::send_memory), in
//! order and within their deadlines. A server's node refuses requests when too many
//! [wait](NodeConfig::max_waiting_requests). A stream's writer waits when it is too far
//! [ahead](NodeConfig::write_ahead) of the peer's application.
//!
//! # Speed
//! Calls, responses and writes are sent at once, in the caller's task; the node's task handles what arrives. There are
//! no additional threads, and no switches between threads that the runtime does not choose. Messages and chunks
//! without other owners are not copied on the way to the kernel.
//!
//! # Security
//! Nothing is encrypted or signed without a [key](NodeConfig::key); `docs/ops/security.md` describes what is protected in either
//! case.

mod client;
mod config;
mod driver;
mod error;
mod node;
mod server;
mod state;
mod stream;
mod trailer;

pub use bytes::Bytes;
pub use client::{Call, CallFuture, Client};
pub use config::{NodeConfig, Transport};
pub use error::{BindError, CallError, Refusal};
pub use node::{Node, Peer, Stats};
pub use rackweave_core::Rate;
pub use rackweave_linux::endpoint::{KeyMismatch, Network};
pub use rackweave_linux::{Key, ShortSecret};
pub use server::{Incoming, OneWay, Request, Server};
pub use stream::{ReadHalf, Stream, WriteHalf};
