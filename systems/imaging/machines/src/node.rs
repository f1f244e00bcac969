//! Imaging's machines as nodes of a network.

use core::convert::Infallible;

use rackweave_core::{HostId, Node, Packet, Span, Time};
use rackweave_wire::frisbee::{Body, CHUNK_MAP_BYTES, ClientStats, STATS_BYTES, TO_GROUP};

use super::frisbee::{Client, Outgoing, Server};
use super::order::Order;
use super::packet::{Header, packet};

/// A machine of Frisbee.
#[derive(Clone, Debug)]
pub enum Machine {
    /// A client.
    Client(Box<Client>),
    /// The server.
    Server(Box<Server>),
}

/// A machine of Frisbee at a host of the simulator.
#[derive(Clone, Debug)]
pub struct FrisbeeNode {
    host: HostId,
    machine: Machine,
    /// The only host whose blocks a client takes.
    server: HostId,
    /// The payload of the packet that was polled last.
    payload: Payload,
    down: bool,
}

/// The bytes of a packet that matter.
#[derive(Clone, Debug)]
enum Payload {
    None,
    Map([u8; CHUNK_MAP_BYTES as usize]),
    Stats(Box<[u8; STATS_BYTES as usize]>),
}

impl FrisbeeNode {
    /// A machine at a host; `server` is the server's.
    #[must_use]
    pub const fn new(host: HostId, server: HostId, machine: Machine) -> Self {
        Self { host, machine, server, payload: Payload::None, down: false }
    }

    /// The client; `None` at the server.
    #[must_use]
    pub fn client(&self) -> Option<&Client> {
        match &self.machine {
            Machine::Client(client) => Some(client),
            Machine::Server(_) => None,
        }
    }

    /// The server; `None` at clients.
    #[must_use]
    pub fn server(&self) -> Option<&Server> {
        match &self.machine {
            Machine::Client(_) => None,
            Machine::Server(server) => Some(server),
        }
    }

    /// Returns whether the node has written the whole image and left. A server, which waits for requests, and a host that is down always have.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.down || self.client().is_none_or(Client::is_gone)
    }

    /// Handles a packet with its payload.
    pub fn receive(&mut self, now: Time, packet: &Packet<Header>, payload: &[u8]) {
        let message = packet.header.message;
        // The authors' code drops a message whose sender is not the packet's.
        if self.down || !message.is_from(packet.src) {
            return;
        }
        match &mut self.machine {
            Machine::Client(client) => {
                let is_block = matches!(message.body, Body::Block { .. } | Body::JoinReply { .. });
                if !is_block || packet.src == self.server {
                    let _is_new = client.handle(now, &message.body, payload);
                }
            }
            Machine::Server(server) => server.handle(now, &message.body, payload),
        }
    }

    /// The payload of the packet that was polled last.
    #[must_use]
    pub const fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::None => &[],
            Payload::Map(map) => map,
            Payload::Stats(stats) => &**stats,
        }
    }

    /// The host crashes, or restarts. A client that restarts has lost what it had and does not start a second time: Frisbee has no
    /// resumption, and whether the host is to be imaged again is for its operator to decide.
    pub fn crash(&mut self, down: bool) {
        self.down |= down;
    }
}

impl Node for FrisbeeNode {
    type Header = Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Header>) {
        self.receive(now, packet, &[]);
    }

    fn handle_timeout(&mut self, now: Time) {
        if let (Machine::Client(client), false) = (&mut self.machine, self.down) {
            client.handle_timeout(now);
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Header>> {
        if self.down {
            return None;
        }
        let Outgoing { body, map } = match &mut self.machine {
            Machine::Client(client) => client.poll(),
            Machine::Server(server) => server.poll(now),
        }?;
        self.payload = match (map, &self.machine) {
            (Some(map), _) => Payload::Map(map.to_bytes()),
            (None, Machine::Client(client)) if matches!(body, Body::Leave2 { .. }) => {
                Payload::Stats(statistics(client))
            }
            _ => Payload::None,
        };
        Some(packet(self.host, TO_GROUP, body))
    }

    fn poll_timeout(&self) -> Option<Time> {
        match &self.machine {
            _ if self.down => None,
            Machine::Client(client) => client.poll_timeout(),
            Machine::Server(server) => server.poll_timeout(),
        }
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

/// Returns the statistics that a client reports when it leaves: the payload of [`Body::Leave2`].
#[must_use]
pub fn statistics(client: &Client) -> Box<[u8; STATS_BYTES as usize]> {
    let counts = client.counts();
    let int = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let run = client.finished_at().map_or(Span::ZERO, |at| at.since(client.started_at()));
    let config = client.config();
    let expanded = config.expand.map_or(0, |expand| expand.expanded_bytes);
    let stats = ClientStats {
        run_s: int(run.as_secs()),
        run_ms: int(run.as_ms() % 1_000),
        expanded_bytes_written: expanded,
        raw_bytes_written: expanded,
        chunk_buffers: u32::from(config.buffers),
        max_read_ahead: u32::from(config.read_ahead),
        max_in_progress: u32::from(config.in_progress),
        packet_timeout_us: int(config.receive_timeout.as_us()),
        idle_timer: config.idle_timeouts,
        redo_delay_us: int(config.redo_delay.as_us()),
        randomize: u32::from(config.order == Order::Random),
        no_free_chunks: int(counts.no_buffer),
        duplicate_chunk_blocks: int(counts.duplicate_chunk_blocks),
        duplicate_blocks: int(counts.duplicate_blocks),
        partial_requests: int(counts.partial_requests),
        receive_idles: int(counts.idles),
        join_attempts: int(counts.joins),
        requests: int(counts.requests),
        lost_blocks: int(counts.lost_blocks),
        rerequests: int(counts.rerequests),
        full_rerequests: int(counts.full_rerequests),
        partial_drops: int(counts.partial_drops),
        write_buffer_mib: config.expand.map_or(0, |expand| int(expand.write_buffer >> 20)),
        ..ClientStats::default()
    };
    let mut bytes = Vec::with_capacity(STATS_BYTES as usize);
    stats.encode(&mut bytes);
    let mut boxed = Box::new([0; STATS_BYTES as usize]);
    boxed.copy_from_slice(&bytes);
    boxed
}

#[cfg(test)]
mod tests {
    use rackweave_core::{Rate, Rng, Span};

    use super::*;
    use crate::frisbee::ClientConfig;
    use crate::intake::Expand;

    /// Sends what is due until `until`, and returns the statistics of LEAVE2 if that is sent.
    fn leave_statistics(node: &mut FrisbeeNode, until: Time) -> Option<ClientStats> {
        let mut stats = None;
        while let Some(now) = node.poll_timeout().filter(|now| *now <= until) {
            node.handle_timeout(now);
            while let Some(packet) = node.poll_transmit(now, 0) {
                if matches!(packet.header.message.body, Body::Leave2 { .. }) {
                    stats = Some(ClientStats::decode(node.payload()).unwrap());
                }
            }
        }
        stats
    }

    #[test]
    fn leave2_reports_what_the_client_has_requested() {
        let rate = Rate::from_gbps(100);
        let expand = Expand {
            expanded_bytes: 5 << 20,
            expand_rate: rate,
            disk_rate: rate,
            write_buffer: 64 << 20,
        };
        let ms = |n| Time::ZERO + Span::from_ms(n);
        for order in [Order::Random, Order::InOrder] {
            let config = ClientConfig { order, ..ClientConfig::new(expand) };
            let client = Client::new(config, Time::ZERO, Rng::stream(1, 0, 0, "client"));
            let (host, server) = (HostId(1), HostId(0));
            let machine = Machine::Client(Box::new(client));
            let mut node = FrisbeeNode::new(host, server, machine);
            let receive = |node: &mut FrisbeeNode, now, body| {
                node.receive(now, &packet(server, TO_GROUP, body), &[]);
            };
            assert_eq!(leave_statistics(&mut node, Time::ZERO), None);
            receive(&mut node, Time::ZERO, Body::JoinReply { blocks: 2 * 1024 });
            // Both chunks are requested after 30 ms, and partially again after 90 ms.
            assert_eq!(leave_statistics(&mut node, ms(120)), None);
            for block in 0..1024 {
                receive(&mut node, ms(121), Body::Block { chunk: 0, block, len: 1024 });
                if block < 1000 {
                    receive(&mut node, ms(121), Body::Block { chunk: 1, block, len: 1024 });
                }
            }
            // Then the rest of the second chunk.
            assert_eq!(leave_statistics(&mut node, ms(300)), None);
            for block in 1000..1024 {
                receive(&mut node, ms(301), Body::Block { chunk: 1, block, len: 1024 });
            }
            let stats = leave_statistics(&mut node, ms(400)).unwrap();
            assert_eq!(stats.randomize, u32::from(order == Order::Random));
            assert_eq!((stats.requests, stats.partial_requests), (5, 3));
            assert_eq!((stats.rerequests, stats.full_rerequests), (3, 2));
            assert_eq!(stats.lost_blocks, 2 * 1024 + 24);
            assert_eq!((stats.join_attempts, stats.receive_idles), (1, 3));
            assert_eq!((stats.run_s, stats.expanded_bytes_written), (0, 5 << 20));
        }
    }
}
