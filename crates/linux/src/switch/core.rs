//! The fabric in virtual time with frames in it.

use std::sync::Arc;

use rackweave_core::{Packet, PayloadStore, Port, Span, SwitchProgram, Time, Verdict};
use rackweave_switch::config::Fault;
use rackweave_switch::system::{System, SystemError, SystemProgram};
use rackweave_switch::{Fabric, Net, NetConfig, net};

use super::frame::{Carried, Frames};

/// A system's program in a switch that carries frames.
#[derive(Debug)]
pub struct FrameProgram<P>(P);

impl<P: SystemProgram> SwitchProgram for FrameProgram<P> {
    type Header = Carried<P::View>;

    #[inline]
    fn handle_packet<S: PayloadStore<Carried<P::View>>>(
        &mut self,
        now: Time,
        port: Port,
        packet: &mut Packet<Carried<P::View>>,
        payloads: &mut S,
    ) -> Verdict {
        match packet.header.view() {
            Some(view) => self.0.handle_packet(now, port, view, packet, payloads),
            None => Verdict::Route,
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        self.0.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.0.poll_timeout()
    }
}

/// The fabric in virtual time: without sockets and without a clock. Its [`Net::payloads`] are the bytes of frames.
pub type Core<S = ()> = Net<FrameProgram<<S as System>::Program>, Frames<S>>;

/// A frame that has reached its host; the caller has to release its slot.
pub type Departure<V> = net::Departure<Carried<V>>;

/// The configuration of a [`Core`].
#[derive(Clone, Debug)]
pub struct CoreConfig<S = ()> {
    /// Switches and links.
    pub fabric: Fabric,
    /// Faults to inject. Those of hosts have no effect here.
    pub faults: Vec<Fault>,
    /// Seed of all random streams.
    pub seed: u64,
    /// Repetition.
    pub run: u64,
    /// Most frames inside.
    pub frames: u32,
    /// Most bytes that wait for a host's own link.
    pub nic_queue_bytes: u64,
    /// The interval at which queues are sampled; zero: never.
    pub sample_every: Span,
    /// The group system whose programs the switches run.
    pub system: Arc<S>,
}

impl<S: System> CoreConfig<S> {
    /// An idle fabric at time 0.
    ///
    /// # Errors
    /// If the system is impossible on this fabric.
    pub fn build(self) -> Result<Core<S>, SystemError> {
        let Self { fabric, faults, seed, run, frames, nic_queue_bytes, sample_every, system } =
            self;
        let mut programs = system.programs(&fabric)?;
        assert_eq!(programs.len(), fabric.switches() as usize, "a program for each switch");
        // Taken from the end: the last is the first.
        programs.reverse();
        let config = NetConfig {
            faults,
            nic_queue_bytes,
            sample_every,
            count_frames: true,
            ..NetConfig::new(Arc::new(fabric), seed, run)
        };
        let program = |_| FrameProgram(programs.pop().expect("as many as switches"));
        Ok(Net::new(config, Frames::new(frames, system), program))
    }
}
