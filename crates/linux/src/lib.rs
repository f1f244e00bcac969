//! The real world: the same transports, queues and forwarding as in the simulator, with clocks and sockets.
//!
//! - [`Endpoint`]: a host's transport over UDP. It drives a [`rackweave_transport::Machine`], and holds the
//!   bytes that the machine only names.
//! - [`switch`]: the switches of a fabric at real rates, between UDP ports or interfaces.
//! - [`netns`]: hosts as network namespaces.
//! - [`TcpEndpoint`]: the same calls and events over the kernel's TCP. [`AnyEndpoint`] is either.
//! - [`Clock`]: the only place that reads the time.
//! - [`sys`]: sockets with batches, segmentation offload and traffic classes: the only unsafe code.
//!
//! # What is protected
//! Only configured peers are served; datagrams of others are counted and dropped. A peer is listened to once
//! it has shown that it receives what is sent to its address (`wire::overlay`, incarnations), and
//! what is sent to an address that has not is never longer than what came from it: who only forges source
//! addresses cannot inject packets, nor use a host to flood another. Damage is found by CRC-32C.
//! **Nothing is encrypted or signed**: whoever can read the traffic, or stands on its way, can forge it.

mod any;
mod clock;
pub mod endpoint;
pub mod kernel;
pub mod netns;
pub mod switch;
pub mod sys;
mod wait;

pub use any::{AnyEndpoint, wait_any};
pub use clock::Clock;
pub use endpoint::{Endpoint, EndpointConfig, EndpointError, Event, Peers, SendError};
pub use kernel::{TcpConfig, TcpEndpoint, TcpError};
