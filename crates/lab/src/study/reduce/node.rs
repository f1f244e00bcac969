//! A host with jobs, as a node of the simulator.

use std::convert::Infallible;

use rackweave_core::{Node, Packet, Time};
use rackweave_group::reduce::job::{JobNode, NodeHeader};
use rackweave_sim::GroupNode;

/// A host with jobs.
#[derive(Debug)]
pub(super) struct Host(pub(super) JobNode);

impl Node for Host {
    type Header = NodeHeader;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<NodeHeader>) {
        self.0.handle_packet(now, port, packet);
    }
    fn handle_timeout(&mut self, now: Time) {
        self.0.handle_timeout(now);
    }
    #[inline]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<NodeHeader>> {
        self.0.poll_transmit(now, port)
    }
    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        self.0.poll_timeout()
    }
    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for Host {
    fn is_done(&self) -> bool {
        self.0.is_done()
    }
    fn crash(&mut self, now: Time, down: bool) {
        self.0.crash(now, down);
    }
    fn poll_prepared_work(&mut self) -> u32 {
        u32::try_from(self.0.take_divided()).unwrap_or(u32::MAX)
    }
    #[inline]
    fn handle_payload(
        &mut self,
        now: Time,
        _port: u8,
        packet: &Packet<NodeHeader>,
        payload: &[u8],
    ) {
        self.0.receive(now, packet, payload);
    }
    #[inline]
    fn payload(&self) -> &[u8] {
        self.0.payload()
    }
}
