//! The controller, if this host runs it: a second node at the same address.

use rackweave_core::{Node as _, Packet, Time};
use rackweave_orca::agent::ANY_RACK;
use rackweave_orca::controller::{Controller, ControllerConfig};
use rackweave_wire::orca::{Body, Header, TO_AGENT};

use super::{Engine, EngineEvent, EnginePlatform, FabricPlace};

/// Creates the controller, if this host runs it. Versions start at the time of day, so that they are above those of an earlier
/// controller.
pub(super) fn controller(fabric: &FabricPlace, realtime_ns: u64) -> Option<Controller> {
    let timeout = fabric.control?;
    Some(Controller::new(ControllerConfig {
        first: (realtime_ns / 1_000_000) as u32,
        ..ControllerConfig::new(fabric.me, fabric.layout.clone(), timeout)
    }))
}

/// Returns whether a packet is for a switch or for all agents of a rack. Such a packet is sent to the group's address,
/// and each switch forwards it to the right host. It leaves this host even if this host is among its receivers.
pub(super) const fn is_for_rack(header: &Header) -> bool {
    match header {
        Header::Control(control) => match control.body {
            Body::SetActive { .. } => true,
            Body::Sync { rack, .. } => rack != ANY_RACK,
            _ => false,
        },
        Header::Data(_) => false,
    }
}

impl<P: EnginePlatform> Engine<P> {
    /// Returns the controller, if this host runs it.
    #[must_use]
    pub const fn controller(&self) -> Option<&Controller> {
        self.controller.as_ref()
    }

    /// Passes a packet to the controller if it is addressed to it. Returns whether the host must not receive it.
    pub(super) fn pass_to_controller(&mut self, now: Time, packet: &Packet<Header>) -> bool {
        let Some(controller) = &mut self.controller else { return false };
        let Header::Control(control) = &packet.header else { return false };
        match control.body {
            Body::Ping { .. }
            | Body::Create
            | Body::Member { .. }
            | Body::Destroy
            | Body::Renew => {
                controller.handle_packet(now, 0, packet);
                true
            }
            // Relays send this packet, too.
            Body::SyncDone { .. } => {
                controller.handle_packet(now, 0, packet);
                false
            }
            _ => false,
        }
    }

    /// Returns the next packet for the network. Packets between the host and the controller at the same address are
    /// delivered here.
    pub(super) fn poll_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        loop {
            let orders = self.controller.as_mut().and_then(|it| it.poll_transmit(now, 0));
            let packet = orders.or_else(|| self.host.poll_transmit(now, 0))?;
            let me = self.config.me();
            if is_for_rack(&packet.header) {
                if let Header::Control(control) = &packet.header
                    && matches!(control.body, Body::Sync { rack, .. } if rack == self.rack())
                {
                    // No switch returns the packet to this host.
                    let _ = self.host.handle_packet(now, 0, &packet);
                }
                return Some(packet);
            }
            if packet.dst == TO_AGENT {
                // The agent may be this host, which does not receive the packets that it sends.
                let _ = self.host.handle_packet(now, 0, &packet);
                return Some(packet);
            }
            if packet.dst != me || self.controller.is_none() {
                return Some(packet);
            }
            if !self.pass_to_controller(now, &packet) {
                let _ = self.host.handle_packet(now, 0, &packet);
            }
        }
    }

    fn rack(&self) -> u16 {
        let config = self.host.config();
        config.layout.place(config.me).rack
    }

    /// Serves the controller's timeouts and events. Returns whether it may have packets to send.
    pub(super) fn control(&mut self, now: Time) -> bool {
        let Some(controller) = &mut self.controller else { return false };
        let due = controller.poll_timeout().is_some_and(|at| at <= now);
        if due {
            controller.handle_timeout(now);
        }
        while let Some(event) = controller.poll_event() {
            self.events.push_back(EngineEvent::Control(event));
        }
        due
    }

    pub(super) fn next_control(&self) -> Option<Time> {
        self.controller.as_ref()?.poll_timeout()
    }
}
