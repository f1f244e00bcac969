//! What must hold for any datagrams and frames at a switch: for the fuzz target `switch`, and the replay of its corpus. Not part of the
//! interface.

use std::sync::Arc;

use rackweave_core::{HostId, Packet, Span};
use rackweave_switch::Fabric;
use rackweave_switch::config::Fault;
use rackweave_switch::system::System;
use rackweave_wire::overlay;

use super::core::{Core, CoreConfig, Departure};
use super::frame::{
    self, Carried, Encapsulation, Frames, MAX_FRAME, Rules, Unfit, finish_datagram, finish_frame,
};

/// Slots for frames: few, so that they run out.
const FRAMES: u32 = 24;
const MTU: u32 = 1500;

/// A switch of a group system without sockets.
#[derive(Debug)]
pub struct Bench<S: System> {
    core: Core<S>,
    rules: Rules<S>,
    encapsulation: Encapsulation,
}

impl<S: System> Bench<S> {
    /// A switch on this fabric; `None` if the system cannot run on it.
    #[must_use]
    pub fn new(
        fabric: Fabric,
        system: S,
        encapsulation: Encapsulation,
        faults: Vec<Fault>,
    ) -> Option<Self> {
        let system = Arc::new(system);
        let (hosts, switches) = (fabric.hosts(), fabric.switches());
        let rules = Rules { hosts, switches, mtu: MTU as usize, system: Arc::clone(&system) };
        let (nic_queue_bytes, sample_every) = (u64::MAX, Span::ZERO);
        let config = CoreConfig {
            fabric,
            faults,
            moves: Vec::new(),
            seed: 1,
            run: 0,
            frames: FRAMES,
            nic_queue_bytes,
            sample_every,
            system,
            encapsulation,
            mtu: MTU,
        };
        Some(Self { core: config.build().ok()?, rules, encapsulation })
    }

    /// Passes the bytes of a host to the switch, as they come from its socket. Returns whether they were forwarded.
    pub fn send(&mut self, from: u32, class: u8, bytes: &[u8]) -> bool {
        let from = HostId(from % self.rules.hosts);
        let bytes = &bytes[..bytes.len().min(MAX_FRAME)];
        let read = match self.encapsulation {
            Encapsulation::Overlay if bytes.len() + 28 > MTU as usize => Err(Unfit::Oversized),
            Encapsulation::Overlay => frame::read_datagram(bytes, class, from, &self.rules),
            Encapsulation::Ethernet => frame::read_frame(bytes, from, &self.rules),
        };
        let Ok(packet) = read else { return false };
        let Some(slot) = self.core.payloads().insert(bytes) else { return false };
        let packet = packet.map(|carried| carried.with_slot(slot));
        self.core.arrive(self.core.now(), from, packet);
        true
    }

    /// Lets time pass, and sends what has left the fabric. Returns the number of packets.
    ///
    /// # Panics
    /// If a frame is longer than what was received, or is not understood where it must be.
    pub fn run(&mut self, span: Span) -> u32 {
        self.core.run(self.core.now() + span);
        let mut count = 0;
        while let Some(Departure { host, packet, .. }) = self.core.departure() {
            count += 1;
            self.depart(host, &packet);
            self.core.payloads().release(packet.header.slot);
        }
        count
    }

    fn depart(&mut self, host: HostId, packet: &Packet<Carried<S::View>>) {
        let frames: &mut Frames<S> = self.core.payloads();
        match self.encapsulation {
            Encapsulation::Overlay => {
                let (_class, bytes) = finish_datagram(frames, packet, host);
                assert!(bytes.len() >= overlay::BYTES as usize && bytes.len() <= MAX_FRAME);
            }
            Encapsulation::Ethernet => {
                let len = finish_frame(frames, packet, host);
                assert!((34..=MAX_FRAME).contains(&len), "{len} bytes");
            }
        }
    }

    /// Whether all slots of frames are free: to be asked when nothing is under way.
    pub fn is_empty(&mut self) -> bool {
        self.core.payloads().live() == 0
    }
}
