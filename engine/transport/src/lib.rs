//! The transports: one state machine per host and transport, without I/O, clock or randomness.
//!
//! Each implements [`rackweave_core::Transport`]. [`Machine`] is an enum of all of them, for hosts that run
//! several side by side.
//!
//! A driver carries packets between machines and passes the time to each:
//!
//! ```
//! use std::sync::Arc;
//!
//! use rackweave_core::{Event, HostId, Kind, MessageId, Node, Rate, Span, Submit, Time, Transport};
//! use rackweave_transport::homa::{Config, Host};
//!
//! let config = Arc::new(Config::linux(Rate::from_gbps(25)));
//! let mut client = Host::new(HostId(0), Arc::clone(&config));
//! let mut server = Host::new(HostId(1), config);
//! let (id, bytes, kind) = (MessageId::request(1), 50_000, Kind::Request);
//! let mut now = Time::ZERO;
//! client.submit(now, Submit { id, peer: HostId(1), bytes, kind })?;
//! // Data flow to the server and grants back, in a network of 1 us each way, until neither has more.
//! loop {
//!     let data: Vec<_> = std::iter::from_fn(|| client.poll_transmit(now, 0)).collect();
//!     now += Span::from_us(1);
//!     data.iter().for_each(|packet| drop(server.handle_packet(now, 0, packet)));
//!     let grants: Vec<_> = std::iter::from_fn(|| server.poll_transmit(now, 0)).collect();
//!     now += Span::from_us(1);
//!     grants.iter().for_each(|packet| drop(client.handle_packet(now, 0, packet)));
//!     if data.is_empty() && grants.is_empty() {
//!         break;
//!     }
//! }
//! assert_eq!(server.poll_event(), Some(Event::Delivered { peer: HostId(0), id, bytes, kind }));
//! # Ok::<(), rackweave_core::Refused>(())
//! ```

mod common;
pub mod datagram;
pub mod dcpim;
pub mod dcqcn;
pub mod exchange;
pub mod external;
pub mod homa;
pub mod hpcc;
mod machine;
pub mod ndp;
pub mod pfabric;
pub mod phost;
pub mod polo;
mod profile;
pub mod rdma;
pub mod sird;
pub mod swift;
pub mod tcp;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
#[cfg(any(test, feature = "suite"))]
pub mod tests;
pub mod uet;

pub use exchange::InvalidConfig;
pub use machine::{Machine, StampedMachine, TransportConfig};
pub use profile::{Control, Part, Profile, Surroundings};
