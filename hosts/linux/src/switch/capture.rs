//! Captures of the frames on the fabric's links.

use core::fmt;

use rackweave_core::{Packet, Time};
use rackweave_switch::net::Captured;
use rackweave_switch::system::System;
use rackweave_wire::homa::Layout;
use rackweave_wire::overlay;
use rackweave_wire::pcapng::Frame;

use super::Switch;
use super::frame::{Carried, Encapsulation, apply_class};

impl<S: System> Switch<S> {
    /// Captures what these links of the fabric carry from a time on, until there are `packets` packets in all. A link's
    /// place in `links` is the number of its interface.
    pub fn capture(&mut self, links: &[u32], from: Time, packets: usize) {
        for link in links {
            self.core.tap(*link);
        }
        self.core.limit_captures(from, packets);
        self.capture_from = from;
    }

    /// Takes the captured frames, in the order in which they were sent. Their times count from the beginning of the
    /// capture.
    ///
    /// A packet of a transport is written as the simulator writes it: in IP, without the UDP datagram and the envelope
    /// around it. Other frames of interfaces are written as they are, up to [`Carried::SNAP`] bytes. What is left out: HELLOs,
    /// packets whose header a fault has damaged, and packets of group systems between UDP ports, which have no frame.
    #[must_use]
    pub fn take_capture(&mut self, layout: Layout) -> Vec<Frame> {
        let (encapsulation, from) = (self.edges.encapsulation(), self.capture_from);
        let captured = self.core.take_captures().into_iter();
        captured.filter_map(|captured| encode(captured, encapsulation, from, layout)).collect()
    }
}

fn encode<V: Copy + fmt::Debug>(
    captured: Captured<Carried<V>>,
    encapsulation: Encapsulation,
    from: Time,
    layout: Layout,
) -> Option<Frame> {
    let Captured { at, interface, packet, mut head } = captured;
    let at = Time::from_ticks(at.since(from).ticks());
    if let Some(start) = packet.header.envelope_at() {
        let header = overlay::decode_header(head.get(start..)?).ok()??;
        return Frame::new(at, interface, &packet.map(|_| header), layout).ok();
    }
    if encapsulation == Encapsulation::Overlay {
        return None;
    }
    apply_class(&mut head, &packet);
    let comment = line(&packet);
    Some(Frame::from_bytes(at, interface, head, packet.header.frame_bytes(), comment))
}

/// Describes a frame that is not a packet of a Rackweave transport, in the style of [`rackweave_wire::dump`].
fn line<V: Copy + fmt::Debug>(packet: &Packet<Carried<V>>) -> String {
    let (source, destination) = (packet.source_port(), packet.destination_port());
    let (src, dst, bytes) = (packet.src, packet.dst, packet.header.frame_bytes());
    format!("{src}.{source} > {dst}.{destination} {bytes} bytes prio {}", packet.priority)
}
