//! Cache lines requested ahead of their use, in fabrics whose state does not fit the caches.
//!
//! An event of a large fabric needs about ten cache lines. Most are found by following the one before: the link, its
//! first packet, the link that this packet leaves by, or its host, the transport and the message there. One event after
//! the other would wait for each of them. So whenever the event queue enters a bucket, each of the next buckets
//! advances by one step: the lines that its events need are requested, and the lines that tell their addresses,
//! requested a bucket earlier, have arrived by then.
//!
//! Nothing here changes a result. A wrong guess costs time only: of the random number that chooses a packet's port, which another
//! packet may draw before, or of events that join a bucket late.

use rackweave_core::{HostId, Packet, PayloadStore, SwitchProgram, prefetch};

use super::nic::Edge;
use super::{Link, Net};
use crate::events::LARGE;

/// Number of components from which on the ports by which packets go up are guessed. A guess costs as much as the choice itself, which is
/// more than a line costs that is in the processor's last cache (docs/benchmarks.md). The value is our choice: fabrics of 3,456 hosts are
/// below it, and those of 16,000 above.
pub(super) const GUESSES: usize = 8 * LARGE;

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// Advances the buckets after the current one by a step, if the queue has entered a bucket.
    #[inline]
    pub(super) fn read_ahead<E: Edge<P::Header>>(&mut self, edge: &E) {
        if !self.events.has_turned() {
            return;
        }
        for component in self.events.current() {
            if let Some(link) = self.links.get(component as usize) {
                self.prefetch_messages(edge, component, link);
            }
        }
        for component in self.events.ahead(1) {
            if let Some(link) = self.links.get(component as usize) {
                self.prefetch_destination(edge, component, link);
            }
        }
        for component in self.events.ahead(2) {
            if let Some(link) = self.links.get(component as usize) {
                self.prefetch_packets(edge, component, link);
            }
        }
        for component in self.events.ahead(3) {
            if let Some(link) = self.links.get(component as usize) {
                prefetch(link);
            }
        }
        self.events.prefetch_ahead(4);
    }

    /// The link by which a packet that reaches a switch will probably leave; `None` if that is not known or not guessed.
    #[inline]
    fn probable_link(&self, switch: u32, packet: &Packet<P::Header>) -> Option<u32> {
        let switch = &self.switches[switch as usize];
        let port = if self.guesses_ports {
            switch.forwarder.guess(packet)
        } else {
            switch.forwarder.downlink_port(packet.dst)
        };
        port.map(|port| switch.first_link + u32::from(port.0))
    }

    /// Requests the first packet on a link, what its port needs to send the next one, and the host at its end.
    #[inline]
    fn prefetch_packets<E: Edge<P::Header>>(&self, edge: &E, number: u32, link: &Link) {
        if let Some(first) = link.in_flight.front() {
            self.pool.prefetch(first);
        }
        if number < self.components.hosts {
            self.nics.prefetch(HostId(number));
            edge.prefetch(HostId(number));
        } else if !link.queue.is_empty() {
            link.queue.prefetch();
            prefetch(&self.stats[number as usize]);
        }
        if link.to.switch().is_none() {
            let host = HostId(link.to.0);
            prefetch(&self.links[host.0 as usize]);
            self.nics.prefetch(host);
            edge.prefetch(host);
        }
    }

    /// Requests the following packet on a link, and the state of the node that the first one reaches.
    #[inline]
    fn prefetch_destination<E: Edge<P::Header>>(&self, edge: &E, number: u32, link: &Link) {
        if number < self.components.hosts {
            edge.prefetch_node(HostId(number));
        }
        if let Some(next) = link.queue.front() {
            self.pool.prefetch_link(next);
        }
        let Some(first) = link.in_flight.front() else { return };
        if let Some(next) = self.pool.after(first) {
            self.pool.prefetch_link(next);
        }
        match link.to.switch() {
            Some(switch) => {
                let packet = self.pool.get(first);
                if let Some(out) = self.probable_link(switch, packet) {
                    prefetch(&self.links[out as usize]);
                }
            }
            None => edge.prefetch_node(HostId(link.to.0)),
        }
    }

    /// Requests the state of the message that the first packet on a link belongs to, if it reaches a host, or the rest
    /// of the port that it leaves by. Also requests the state of the message whose packet the link's own host sends
    /// next.
    #[inline]
    fn prefetch_messages<E: Edge<P::Header>>(&self, edge: &E, number: u32, link: &Link) {
        if number < self.components.hosts {
            edge.prefetch_transmit(HostId(number));
        }
        let Some(first) = link.in_flight.front() else { return };
        match link.to.switch() {
            Some(switch) => {
                let packet = self.pool.get(first);
                let Some(out) = self.probable_link(switch, packet) else {
                    return;
                };
                let port = &self.links[out as usize];
                if port.busy_until > self.now || !port.queue.is_empty() {
                    port.queue.prefetch();
                    prefetch(&self.stats[out as usize]);
                }
                if let Some(last) = port.in_flight.back() {
                    self.pool.prefetch_link(last);
                }
            }
            None => edge.prefetch_for(HostId(link.to.0), self.pool.get(first)),
        }
    }
}
