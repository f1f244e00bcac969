//! The fabric in virtual time with frames in it.

use rackweave_core::Span;
use rackweave_switch::config::Fault;
use rackweave_switch::{Fabric, Net, NetConfig, Plain, net};

use super::frame::{Carried, Frames};

/// The program of the fabric's switches.
pub type Program = Plain<Carried>;

/// The fabric in virtual time: without sockets and without a clock. Its [`Net::bodies`] are the bytes of frames.
pub type Core = Net<Program, Frames>;

/// A frame that has reached its host; its slot is the caller's to release.
pub type Departure = net::Departure<Carried>;

/// What a [`Core`] is made of.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The fabric.
    pub fabric: Fabric,
    /// What goes wrong in it. Faults of hosts are of no meaning here.
    pub faults: Vec<Fault>,
    /// Everything random follows from it.
    pub seed: u64,
    /// Repetition.
    pub run: u64,
    /// Most frames inside.
    pub frames: u32,
    /// Most bytes that wait for a host's own link.
    pub nic_queue_bytes: u64,
    /// How often queues are looked at for a series; zero: never.
    pub sample_every: Span,
}

impl CoreConfig {
    /// An idle fabric at time 0.
    #[must_use]
    pub fn build(self) -> Core {
        let Self { fabric, faults, seed, run, frames, nic_queue_bytes, sample_every } = self;
        let config =
            NetConfig { fabric, faults, seed, run, nic_queue_bytes, sample_every, wakes: 0 };
        Net::new(config, Frames::new(frames), |_| Program::new())
    }
}
