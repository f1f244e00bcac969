//! The real world: the same transports, queues and forwarding as in the simulator, with clocks and sockets.
//!
//! - [`Endpoint`]: a host's transport over UDP. It drives a [`rackweave_transport::Machine`], and holds the
//!   bytes that the machine only names.
//! - [`switch`]: the switches of a fabric at real rates, between UDP ports or interfaces.
//! - [`netns`]: hosts as network namespaces.
//! - [`tc`]: programs in the kernel, at interfaces.
//! - [`TcpEndpoint`]: the same calls and events over the kernel's TCP. [`AnyEndpoint`] is either.
//! - [`Clock`]: the only place that reads the time.
//! - [`sys`]: sockets with batches, segmentation offload and traffic classes: the only unsafe code.
//!
//! # What is protected
//! - Only configured peers and, where [`Peers::Direct`] allows it, addresses of named networks are served;
//!   datagrams of others are counted and dropped unread.
//! - **Who only forges source addresses cannot inject packets.** Each peer is told a number of 32 bits that is random
//!   in each life of a host and another for each peer (its *incarnation*, `wire::overlay`), and is listened to
//!   once it shows that it knows it, which takes an answer that went to its address. So a peer can't speak for
//!   another one either, nor a host behind a switch for its neighbour: as long as the network delivers
//!   what is for one address to nobody else. A guess is right once in 2^32.
//! - **A host is no amplifier.** To an address that has shown nothing goes one HELLO (32 bytes) for each datagram
//!   that came from there, which is at least as long, or, while the application has something to send
//!   to it, one HELLO every 1 to 100 ms. Nothing is remembered of those that have shown nothing.
//! - Late packets of a peer's life that is over are dropped. A change is believed when the peer answers a HELLO
//!   or has just sent one; two late packets of one old life within a second can feign it, until the next
//!   packet of the peer.
//! - Damage on the way is found by two CRC-32C, of the header and of the payload.
//! - Memory is bounded: by [`EndpointConfig::send_bytes`] and [`EndpointConfig::receive_bytes`] for messages and
//!   streams, by the transport's own limits for what it knows, by 65,536 guests. What a sender
//!   that died has left is freed when its transport forgets it. Events that the application does not poll are
//!   not bounded: it has to poll.
//!
//! **Nothing is encrypted or signed**: whoever can read the traffic, or stands on its way, can read, forge and replay
//! it. A peer that is let in can use all of `receive_bytes`, as many of the transport's messages and, with many ports of
//! an allowed network, all places of guests (for a minute after its last packet): peers are trusted that far.

mod any;
mod clock;
pub mod endpoint;
pub mod kernel;
pub mod netns;
pub mod switch;
pub mod sys;
pub mod tc;
mod wait;

pub use any::{AnyEndpoint, wait_any};
pub use clock::Clock;
pub use endpoint::{Endpoint, EndpointConfig, EndpointError, Event, Peers, SendError};
pub use kernel::{TcpConfig, TcpEndpoint, TcpError};
