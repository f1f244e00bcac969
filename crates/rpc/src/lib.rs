//! Calls and streams over Homa, Polo and TCP: what the simulator runs, between real processes.
//!
//! - A [`Node`] is a process' socket and the task that drives it. It calls others by its [`Client`], and
//!   is called by others by its [`Server`].
//! - [`Client::call`] sends a request and returns the answer; [`Client::send`] sends a message that has none;
//!   [`Client::stream`] opens a [`Stream`] of bytes in both directions, an `AsyncRead` and `AsyncWrite`.
//! - [`Server::next`] returns what comes, one by one: a [`Request`] to answer, a [`OneWay`] message, a
//!   [`Stream`].
//! - Each call has a deadline, which its server is told; dropping the future of a call cancels it. Every failure says
//!   what has happened ([`CallError`]), and whether it is [safe](CallError::is_safe_to_retry) to
//!   call again.
//!
//! ```
//! use std::time::Duration;
//!
//! use rackweave_rpc::{Incoming, Node, NodeConfig, Rate, Transport};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Both ends run Homa on links of 10 Gbps. Whoever is to be served has to be allowed.
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
//! At most once, also if the server restarts: a call that was under way then fails with
//! [`CallError::PeerRestarted`], and nobody makes it again. With [`Call::idempotent`] it is made again until its
//! deadline: at least once, if it succeeds. After [`Deadline`](CallError::Deadline) and
//! [`PeerSilent`](CallError::PeerSilent) nobody knows. The exact rules are in `docs/rpc.md`.
//!
//! # What waits, and where
//! Nothing is queued without a bound. Calls wait for room in the node's [send memory](NodeConfig::send_memory), in
//! their order and within their deadlines. A server's node refuses requests when too many
//! [wait](NodeConfig::max_waiting_requests). A stream's writer waits when it is
//! [ahead](NodeConfig::write_ahead) of what the peer's application reads.
//!
//! # Speed
//! Whoever calls, answers or writes sends at once, in its own task; the node's task handles what comes. There is
//! no thread of its own and no hop between threads that the runtime does not choose. Messages and chunks that
//! nobody else holds are not copied on the way to the kernel.
//!
//! # What is not protected
//! Nothing is encrypted or signed; see [`rackweave_linux`] for what is checked.

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
pub use rackweave_linux::endpoint::Network;
pub use server::{Incoming, OneWay, Request, Server};
pub use stream::{ReadHalf, Stream, WriteHalf};
