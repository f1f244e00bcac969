//! The fabric in virtual time, with frames as packets.

use std::sync::Arc;

use rackweave_core::{Egress, Packet, PayloadStore, Port, Span, SwitchProgram, Time, Verdict};
use rackweave_switch::config::{Fault, Move};
use rackweave_switch::system::{System, SystemError, SystemProgram};
use rackweave_switch::{Fabric, Net, NetConfig, net};

use super::frame::{self, Carried, Encapsulation, Frames};

/// Runs a group system's program in a switch that forwards frames.
#[derive(Debug)]
pub struct FrameProgram<S: System> {
    program: S::Program,
    /// The system, which encodes the packets that the program creates.
    system: Arc<S>,
    encapsulation: Encapsulation,
    mtu: u32,
    /// The frame that is being encoded.
    frame: Vec<u8>,
    /// The number of packets from the program that were dropped: no slot was free, or they fit no frame.
    dropped: u64,
}

impl<S: System> FrameProgram<S> {
    /// Returns the program of the group system.
    #[must_use]
    pub const fn program(&self) -> &S::Program {
        &self.program
    }

    /// Returns how many packets that the program created were dropped, because no slot was free or because they fit no
    /// frame.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl<S: System> SwitchProgram for FrameProgram<S> {
    type Header = Carried<S::View>;

    #[inline]
    fn handle_packet<B: PayloadStore<Carried<S::View>>>(
        &mut self,
        now: Time,
        port: Port,
        packet: &mut Packet<Carried<S::View>>,
        payloads: &mut B,
    ) -> Verdict {
        match packet.header.view() {
            Some(view) => self.program.handle_packet(now, port, view, packet, payloads),
            None => Verdict::Route,
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        self.program.handle_timeout(now);
    }

    #[inline]
    fn poll_transmit<B: PayloadStore<Carried<S::View>>>(
        &mut self,
        now: Time,
        payloads: &mut B,
    ) -> Option<(Egress, Packet<Carried<S::View>>)> {
        loop {
            let made = self.program.poll_transmit(now)?;
            self.frame.clear();
            let (system, frame) = (&*self.system, &mut self.frame);
            let packet = frame::encode(system, &made, self.encapsulation, self.mtu, frame);
            let packet = packet.and_then(|packet| {
                let whole = payloads.make(packet.header, frame.len())?;
                payloads.write(&packet.map(|_| whole)).copy_from_slice(frame);
                Some(packet.map(|carried| carried.with_slot(whole.slot)))
            });
            if let Some(packet) = packet {
                return Some((made.egress, packet));
            }
            self.dropped += 1;
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.program.poll_timeout()
    }
}

/// The fabric in virtual time, without sockets and without a clock. Its [`Net::payloads`] hold the bytes of frames.
pub type Core<S = ()> = Net<FrameProgram<S>, Frames<S>>;

/// A frame that has reached its host. The caller must release its slot.
pub type Departure<V> = net::Departure<Carried<V>>;

/// The configuration of a [`Core`].
#[derive(Clone, Debug)]
pub struct CoreConfig<S = ()> {
    /// The topology, links and switches.
    pub fabric: Fabric,
    /// Faults to inject. Faults of hosts have no effect here.
    pub faults: Vec<Fault>,
    /// Changes of circuits that are known beforehand.
    pub moves: Vec<Move>,
    /// The seed of all random streams.
    pub seed: u64,
    /// The number of the repetition, which selects the random streams together with the seed.
    pub run: u64,
    /// The largest number of frames in the fabric at a time.
    pub frames: u32,
    /// The largest number of bytes that wait for a host's own link.
    pub nic_queue_bytes: u64,
    /// The interval at which queues are sampled; zero disables sampling.
    pub sample_every: Span,
    /// The group system whose programs the switches run.
    pub system: Arc<S>,
    /// How the packets that programs create are encapsulated.
    pub encapsulation: Encapsulation,
    /// The length in bytes of the largest IP packet that programs create.
    pub mtu: u32,
}

impl<S: System> CoreConfig<S> {
    /// Creates an idle fabric at time 0.
    ///
    /// # Errors
    /// If the system cannot run on this fabric.
    pub fn build(self) -> Result<Core<S>, SystemError> {
        let mut programs = self.system.programs(&self.fabric)?;
        assert_eq!(programs.len(), self.fabric.switches() as usize, "a program for each switch");
        // Programs are taken from the end of the list, so the list is reversed.
        programs.reverse();
        let config = NetConfig {
            faults: self.faults,
            moves: self.moves,
            nic_queue_bytes: self.nic_queue_bytes,
            sample_every: self.sample_every,
            count_frames: true,
            ..NetConfig::new(Arc::new(self.fabric), self.seed, self.run)
        };
        let program = |_| FrameProgram {
            program: programs.pop().expect("as many as switches"),
            system: Arc::clone(&self.system),
            encapsulation: self.encapsulation,
            mtu: self.mtu,
            frame: Vec::new(),
            dropped: 0,
        };
        Ok(Net::new(config, Frames::new(self.frames, Arc::clone(&self.system)), program))
    }
}
