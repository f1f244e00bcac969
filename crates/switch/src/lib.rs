//! What fabrics and their switches are made of: topologies, the queue of each port, a shared buffer, and forwarding;
//! and [`net`], a whole fabric in virtual time.
//!
//! No I/O, no clock: the simulator and the user-space switch on Linux run the same code.

mod buffer;
pub mod config;
pub mod events;
pub mod fabric;
mod forward;
pub mod net;
mod queue;
pub mod system;

pub use buffer::SharedBuffer;
pub use fabric::{Fabric, FabricError};
pub use forward::{Forwarder, PathChoice};
pub use net::{Edge, ForwardOnly, Net, NetConfig, NetEvent};
pub use queue::{PortQueue, QueueConfig, Trim};
pub use system::{System, SystemProgram};

/// Number of strict priorities of a port.
pub const PRIORITIES: usize = 8;
