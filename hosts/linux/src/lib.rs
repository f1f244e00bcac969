//! Rackweave on Linux: the transports, queues and forwarding of the simulator, with real clocks and sockets.
//!
//! ```
//! use bytes::Bytes;
//! use rackweave_core::{HostId, Kind, Rate};
//! use rackweave_linux::{Endpoint, EndpointConfig, Event, Peers};
//! use rackweave_transport::{TransportConfig, homa};
//!
//! let transport = TransportConfig::Homa(homa::Config::leverage(Rate::from_gbps(10)).into());
//! let endpoint = |host| {
//!     let peers = Peers::Direct { hosts: Default::default(), allow: vec!["127.0.0.1".parse().unwrap()] };
//!     let bind = "127.0.0.1:0".parse().unwrap();
//!     Endpoint::new(EndpointConfig::new(HostId(host), bind, peers, &transport))
//! };
//! let (mut sender, mut receiver) = (endpoint(0)?, endpoint(1)?);
//! let peer = sender.add_peer(receiver.local_addr());
//! sender.send(peer, Kind::OneWay, Bytes::from_static(b"hello"))?;
//! let bytes = loop {
//!     sender.turn()?;
//!     receiver.turn()?;
//!     if let Some(Event::Message { bytes, .. }) = receiver.poll_event() {
//!         break bytes;
//!     }
//! };
//! assert_eq!(bytes, "hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Endpoint`]: a host's transport over UDP. It drives a [`rackweave_transport::Machine`], and holds the bytes that
//!   the machine refers to.
//! - [`TcpEndpoint`]: the same calls and events over the kernel's TCP. [`AnyEndpoint`] is either.
//! - [`switch`]: the switches of a fabric at real rates, between UDP ports or interfaces. They run the programs of a
//!   group system ([`rackweave_switch::system`]); this crate knows none.
//! - [`addresses`]: peers by number and by address, with a bound on strangers.
//! - [`capability`]: what this process may do. [`netns`]: hosts as network namespaces.
//! - [`Clock`]: the only place that reads the time. [`wait`]: sleeping until a socket is ready or a time has come.
//!   [`random()`]: secrets.
//! - [`sys`]: sockets with batches, segmentation offload and traffic classes. All unsafe code is here.
//!
//! The threat model in `docs/ops/security.md` describes what is protected against whom, and what is not.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the commands and libraries for real hosts need Linux: build the simulator with `cargo build --release -p rackweave --no-default-features`"
);

pub mod addresses;
mod any;
pub mod capability;
mod clock;
mod driver;
pub mod endpoint;
pub mod kernel;
pub mod netns;
mod random;
pub mod switch;
pub mod sys;
#[cfg(test)]
mod test_spaces;
pub mod wait;

pub use any::{AnyEndpoint, wait_any};
pub use clock::Clock;
pub use driver::{Driven, Driver, DriverStats, Platform};
pub use endpoint::{Endpoint, EndpointConfig, EndpointError, Event, Peers, SendError};
pub use kernel::{TcpConfig, TcpEndpoint, TcpError};
pub use rackweave_crypt::{Key, ShortSecret};
pub use random::random;
