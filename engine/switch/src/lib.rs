//! Fabrics and their switches: topologies, port queues, shared buffers and forwarding; and [`net`], a whole fabric in
//! virtual time.
//!
//! The crate has no I/O and no clock: the simulator and the user-space switch on Linux run the same code.
//!
//! One packet crosses a switch that only forwards:
//!
//! ```
//! use std::sync::Arc;
//!
//! use rackweave_core::{Header, HostId, Packet, Rate, Slice, Span, Time};
//! use rackweave_switch::config::{FabricConfig, SwitchConfig};
//! use rackweave_switch::{Fabric, ForwardOnly, Net, NetConfig};
//!
//! #[derive(Clone, Copy, Debug)]
//! struct Datagram;
//! impl Header for Datagram {
//!     fn payload(&self) -> Option<Slice> {
//!         None
//!     }
//! }
//!
//! let switch = SwitchConfig::default().with_latency(Span::from_ns(250));
//! let fabric = FabricConfig::single_switch(4, Rate::from_gbps(10))
//!     .with_link_delay(Span::from_ns(100))
//!     .without_host_delays()
//!     .with_switch(switch);
//! let fabric = Arc::new(Fabric::new(&fabric)?);
//! let mut net = Net::new(NetConfig::new(fabric, 1, 0), (), |_switch| ForwardOnly::new());
//!
//! let packet = Packet::new(HostId(0), HostId(3), 1500, Datagram);
//! net.arrive(Time::ZERO, HostId(0), packet);
//! net.run(Time::ZERO + Span::from_ms(1));
//! let departure = net.departure().expect("an idle fabric loses no packet");
//! assert_eq!(departure.host, HostId(3));
//! // 1538 bytes at 10 Gbps on each of two links, their propagation delays, and the switch's latency.
//! assert_eq!(departure.due, Time::ZERO + Span::from_ns(2 * 100 + 250) + Span::from_ps(2 * 1538 * 800));
//! # Ok::<(), rackweave_switch::FabricError>(())
//! ```

mod buffer;
pub mod config;
pub mod events;
pub mod fabric;
mod forward;
pub mod net;
mod pfc;
pub mod pod;
mod queue;
mod ranked;
pub mod system;

pub use buffer::SharedBuffer;
pub use fabric::{Fabric, FabricError};
pub use forward::{Forwarder, PathChoice};
pub use net::{Edge, ForwardOnly, Net, NetConfig, NetEvent};
pub use queue::{PortQueue, QueueConfig, QueueOptions, Ramp, Trim};
pub use system::{System, SystemProgram};

/// Number of strict priorities of a port.
pub const PRIORITIES: usize = 8;
