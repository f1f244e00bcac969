//! The nodes of imaging in the simulator, and what they report.

use std::convert::Infallible;

use rackweave_core::{Event, HostId, Node, Packet, Span, Submit, Time};
use rackweave_sim::{GroupNode, Transfers};
use rackweave_swp2p::Shape;
use rackweave_swp2p::node::FrisbeeNode;
use rackweave_swp2p::p2p::node::{NodeHeader, P2pNode};
use rackweave_swp2p::packet;

use super::summary::{ClientReport, ImageResult, ServerReport};

/// A node that takes part in imaging, and what it reports.
pub(super) trait Imager: GroupNode {
    /// Adds the node's report to the results; clients do so in their order.
    fn report(&self, results: &mut ImageResult);
}

/// A node of Frisbee.
#[derive(Debug)]
pub(super) struct Frisbee(pub(super) FrisbeeNode);

impl Node for Frisbee {
    type Header = packet::Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<packet::Header>) {
        self.0.handle_packet(now, port, packet);
    }
    fn handle_timeout(&mut self, now: Time) {
        self.0.handle_timeout(now);
    }
    #[inline]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<packet::Header>> {
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

impl GroupNode for Frisbee {
    fn is_done(&self) -> bool {
        self.0.is_done()
    }
    #[inline]
    fn handle_payload(
        &mut self,
        now: Time,
        _port: u8,
        packet: &Packet<packet::Header>,
        payload: &[u8],
    ) {
        self.0.receive(now, packet, payload);
    }
    #[inline]
    fn payload(&self) -> &[u8] {
        self.0.payload()
    }
    fn crash(&mut self, _now: Time, down: bool) {
        self.0.crash(down);
    }
}

impl Imager for Frisbee {
    fn report(&self, results: &mut ImageResult) {
        if let Some(client) = self.0.client() {
            let times = (client.received_at(), client.finished_at());
            let report = ClientReport::of_session(client.counts(), times, client.is_exact());
            results.clients.push(report);
        }
        if let Some(server) = self.0.server() {
            let service = server.service_time().unwrap_or_default();
            results.server = ServerReport::of_session(server.counts(), service);
        }
    }
}

/// A node of SWP2P, or of unicast.
#[derive(Debug)]
pub(super) struct Swp2p {
    node: P2pNode,
    server: HostId,
    number: u32,
    image: Shape,
}

impl Swp2p {
    /// A node of a run in which the image of this number and shape comes from this server.
    pub(super) const fn new(node: P2pNode, server: HostId, number: u32, image: Shape) -> Self {
        Self { node, server, number, image }
    }
}

impl Node for Swp2p {
    type Header = NodeHeader;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<NodeHeader>) {
        self.node.handle_packet(now, port, packet);
    }
    fn handle_timeout(&mut self, now: Time) {
        self.node.handle_timeout(now);
    }
    #[inline]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<NodeHeader>> {
        self.node.poll_transmit(now, port)
    }
    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        self.node.poll_timeout()
    }
    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl GroupNode for Swp2p {
    fn is_done(&self) -> bool {
        self.node.is_down() || self.node.is_done()
    }
    #[inline]
    fn handle_payload(
        &mut self,
        now: Time,
        _port: u8,
        packet: &Packet<NodeHeader>,
        payload: &[u8],
    ) {
        self.node.receive(now, packet, payload);
    }
    #[inline]
    fn payload(&self) -> &[u8] {
        self.node.payload()
    }
    fn crash(&mut self, now: Time, down: bool) {
        self.node.crash(now, down);
    }
}

impl Transfers for Swp2p {
    #[inline]
    fn poll_transfer(&mut self) -> Option<Submit> {
        self.node.poll_transfer()
    }
    fn handle_transfer(&mut self, now: Time, event: Event) {
        self.node.handle_transfer(now, event);
    }
}

impl Imager for Swp2p {
    fn report(&self, results: &mut ImageResult) {
        // All chunks have the same length, except possibly the last.
        let bytes = |chunks: u64| chunks * u64::from(self.image.chunk_bytes());
        if let Some(record) = self.node.record() {
            let Some(client) = self.node.as_client() else {
                return results.clients.push(ClientReport::default());
            };
            let counts = client.counters();
            let received = |(_, chunks): (_, &u32)| u64::from(*chunks);
            let all: u64 = counts.received.iter().map(received).sum();
            let is_peer = |host: &HostId| *host != self.server;
            let peers = counts.received.iter().filter(|(host, _)| is_peer(host));
            let from_peers: u64 = peers.map(received).sum();
            let duplicates = u64::from(counts.duplicates);
            results.clients.push(ClientReport {
                received: record.received,
                finished: record.written,
                exact: client.have().is_full() && all == u64::from(self.image.chunks()),
                received_bytes: bytes(all + duplicates),
                duplicate_bytes: bytes(duplicates),
                dropped_bytes: bytes(u64::from(counts.damaged)),
                from_peers_bytes: bytes(from_peers),
                served_bytes: bytes(u64::from(counts.sent)),
                requests: u64::from(counts.requests),
                rerequests: u64::from(counts.retries),
                returned: u64::from(counts.returned),
            });
        }
        if let Some(server) = self.node.as_server() {
            let counts = server.counters();
            results.server = ServerReport {
                sent_bytes: bytes(counts.started),
                first_copy_chunks: self.node.first_copy(self.number),
                messages: counts.requests + counts.reports + counts.unknown,
                requests: counts.requests,
                merged: 0,
                partial_requests: 0,
                service: Span::ZERO,
                max_queue: counts.most_queued,
                returned: counts.returned,
            };
        }
    }
}
