//! Application-layer multicast over UDP: one socket for each client, so that the server sends every byte once per
//! client (evaluation, section III.B).
//!
//! Datagrams are as long as UDP allows, and IP fragments them. As in the evaluation, losses are not repaired: a client
//! never acknowledges a file that lacks a byte.

use std::collections::VecDeque;
use std::convert::Infallible;

use rackweave_core::{FailReason, Header, HostId, MessageId, Node, Packet, Slice, Time, frame};
use rackweave_wire::frame::{self as wire_frame, Unframeable};
use rackweave_wire::homa::Layout;
use rackweave_wire::pcapng::Framed;

use super::Client;
use crate::app::{ACK_BYTES, Receiver as Receiving, Sender, Write};

/// The longest payload of a UDP datagram over IPv4.
pub const MAX_DATAGRAM: u32 = 65_507;

const UDP_HEADER: u32 = 8;
/// The payload of a fragment, which is a multiple of eight bytes (RFC 791, section 3.1).
const FRAGMENT: u32 = (frame::MTU - frame::IPV4) / 8 * 8;

/// A fragment of a datagram, or an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// Bytes of the stream of files.
    Data {
        /// The offset of the first byte in the stream.
        offset: u64,
        /// The number of bytes in this fragment.
        len: u32,
    },
    /// An acknowledgement from a client.
    Ack {
        /// The number of files that the client has received completely, in total.
        files: u32,
    },
}

impl Header for Fragment {
    fn payload(&self) -> Option<Slice> {
        match *self {
            Self::Data { offset, len } => {
                Some(Slice { message: MessageId(0), offset: offset as u32, len })
            }
            Self::Ack { .. } => None,
        }
    }
}

impl Framed for Fragment {
    fn encode_frame(
        packet: &Packet<Self>,
        _layout: Layout,
        out: &mut Vec<u8>,
    ) -> Result<u32, Unframeable> {
        wire_frame::encode_datagram(packet, &[], out)
    }

    fn line(packet: &Packet<Self>) -> String {
        format!("{} > {} {:?}", packet.src, packet.dst, packet.header)
    }
}

/// How a server sends.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server's hosts, one for each port.
    pub hosts: Vec<HostId>,
    /// The capacity of a socket in bytes, beyond which it blocks.
    pub socket_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Datagram {
    client: usize,
    offset: u64,
    len: u32,
    /// The number of its bytes that have been sent.
    sent: u32,
}

/// The server that sends the files.
#[derive(Debug)]
pub struct Server {
    hosts: Vec<HostId>,
    clients: Vec<Client>,
    app: Sender,
    socket_bytes: u64,
    /// For each client, the stream offset of its next datagram and the number of bytes waiting in its socket.
    sockets: Vec<(u64, u64)>,
    /// The datagrams that wait for the link, by port.
    queues: Vec<VecDeque<Datagram>>,
}

impl Server {
    /// Returns a server that runs this application over one socket for each client. Its buffers have at most
    /// [`MAX_DATAGRAM`] bytes.
    #[must_use]
    pub fn new(config: &Config, clients: Vec<Client>, app: Sender) -> Self {
        Self {
            hosts: config.hosts.clone(),
            socket_bytes: config.socket_bytes,
            sockets: vec![(0, 0); clients.len()],
            queues: vec![VecDeque::new(); config.hosts.len()],
            clients,
            app,
        }
    }

    /// Returns the application that this server runs.
    #[must_use]
    pub const fn app(&self) -> &Sender {
        &self.app
    }

    /// Its host crashes: all casts that were not acknowledged fail.
    pub fn crash(&mut self, now: Time) {
        self.app.all_failed(now, FailReason::HostCrashed);
    }

    /// Its host is back after a crash. The process that sent is gone: all casts that were not acknowledged fail.
    pub fn restart(&mut self, now: Time) {
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.sockets.clear();
        self.app.all_failed(now, FailReason::HostCrashed);
    }

    fn write(&mut self, now: Time) {
        loop {
            let (sockets, most) = (&self.sockets, self.socket_bytes);
            let room = |socket: usize| sockets.get(socket).is_some_and(|(_, waits)| *waits < most);
            let Some(Write { socket, bytes }) = self.app.poll_write(now, room) else { break };
            let (offset, waits) = &mut self.sockets[socket];
            let datagram = Datagram { client: socket, offset: *offset, len: bytes as u32, sent: 0 };
            *offset += bytes;
            *waits += bytes;
            let port = usize::from(self.clients[socket].port);
            if let Some(queue) = self.queues.get_mut(port) {
                queue.push_back(datagram);
            }
        }
    }
}

impl Node for Server {
    type Header = Fragment;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Fragment>) {
        if let Fragment::Ack { files } = packet.header {
            self.app.acknowledged(now, packet.src, files.into());
            self.write(now);
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        self.write(now);
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Fragment>> {
        self.write(now);
        let queue = self.queues.get_mut(usize::from(port))?;
        let datagram = queue.front_mut()?;
        // Only the first fragment carries the UDP header.
        let udp = if datagram.sent == 0 { UDP_HEADER } else { 0 };
        let len = (datagram.len - datagram.sent).min(FRAGMENT - udp);
        let header = Fragment::Data { offset: datagram.offset + u64::from(datagram.sent), len };
        let client = datagram.client;
        datagram.sent += len;
        if datagram.sent == datagram.len {
            queue.pop_front();
        }
        self.sockets[client].1 -= u64::from(len);
        self.write(now);
        let src = *self.hosts.get(usize::from(port))?;
        Some(Packet::new(src, self.clients[client].host, frame::IPV4 + udp + len, header))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.app.poll_timeout()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

/// A client of the server.
#[derive(Debug)]
pub struct Receiver {
    me: HostId,
    server: HostId,
    app: Receiving,
    acks: VecDeque<u32>,
}

impl Receiver {
    /// Returns a client that acknowledges to `server`.
    #[must_use]
    pub const fn new(me: HostId, server: HostId, app: Receiving) -> Self {
        Self { me, server, app, acks: VecDeque::new() }
    }

    /// Handles the return of its host after a crash, without the bytes that it had received.
    pub fn restart(&mut self, _now: Time) {
        self.acks.clear();
        self.app.crashed();
    }

    /// Returns the application that this client runs.
    #[must_use]
    pub const fn app(&self) -> &Receiving {
        &self.app
    }
}

impl Node for Receiver {
    type Header = Fragment;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Fragment>) {
        let Fragment::Data { offset, len } = packet.header else { return };
        if packet.dst == self.me {
            self.app.stored(now, offset..offset + u64::from(len));
            self.acks.extend(self.app.readable(now, self.app.contiguous()));
        }
    }

    fn handle_timeout(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, _port: u8) -> Option<Packet<Fragment>> {
        let files = self.acks.pop_front()?;
        let header = Fragment::Ack { files };
        Some(Packet::new(self.me, self.server, frame::IPV4 + UDP_HEADER + ACK_BYTES, header))
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Span;

    use super::*;
    use crate::app::{Cost, Record, SenderConfig};

    /// Connects a server and its clients directly: packets arrive at once and in order.
    fn run(files: &[u64], clients: u32) -> (Server, Vec<Receiver>, u64) {
        let config = Config { hosts: vec![HostId(0)], socket_bytes: 200_000 };
        let hosts = (1..=clients).map(HostId);
        let who = hosts.clone().map(|host| Client { host, port: 0 }).collect();
        let app = Sender::new(SenderConfig {
            sockets: clients as usize,
            buffer: MAX_DATAGRAM.into(),
            cost: Cost { per_buffer: Span::from_us(1), ..Cost::default() },
            ..SenderConfig::new(files.into(), hosts.clone().collect())
        });
        let mut server = Server::new(&config, who, app);
        let mut receivers: Vec<Receiver> = hosts
            .map(|host| Receiver::new(host, HostId(0), Receiving::new(files, Time::MAX)))
            .collect();
        let (mut now, mut wire) = (Time::ZERO, 0);
        while !server.app().is_done() {
            now = server.poll_timeout().map_or(now, |at| at.max(now));
            server.handle_timeout(now);
            while let Some(packet) = server.poll_transmit(now, 0) {
                wire += u64::from(packet.wire_bytes);
                assert!(packet.wire_bytes <= 1538);
                let receiver = &mut receivers[packet.dst.0 as usize - 1];
                receiver.handle_packet(now, 0, &packet);
                while let Some(ack) = receiver.poll_transmit(now, 0) {
                    server.handle_packet(now, 0, &ack);
                }
            }
        }
        (server, receivers, wire)
    }

    #[test]
    fn every_client_gets_every_byte_from_the_server() {
        let files = [100_000, 1, 65_507];
        let (server, receivers, wire) = run(&files, 3);
        assert!(receivers.iter().all(|receiver| receiver.app().is_complete()));
        let records = server.app().report().records;
        let ended = |record: &&Record| matches!(record, Record::Acknowledged { .. });
        assert_eq!(records.iter().filter(ended).count(), 9);
        assert!(wire > 3 * 165_508, "{wire}");
        // A full datagram takes 45 frames; 44 are full.
        let full = 44 * 1538 + u64::from(frame::wire_bytes(20 + 65_515 - 44 * 1480));
        let rest = 23 * 1538 + u64::from(frame::wire_bytes(20 + 34_501 - 23 * 1480));
        assert_eq!(wire, 3 * (2 * full + rest + u64::from(frame::wire_bytes(29))));
    }

    #[test]
    fn a_lost_fragment_is_never_repaired() {
        let files = [10_000];
        let mut receiver = Receiver::new(HostId(1), HostId(0), Receiving::new(&files, Time::MAX));
        for (offset, len) in [(0, 1472), (2952, 7048)] {
            let header = Fragment::Data { offset, len };
            let packet = Packet::new(HostId(0), HostId(1), 1500, header);
            receiver.handle_packet(Time::from_ticks(1), 0, &packet);
        }
        assert_eq!(receiver.poll_transmit(Time::from_ticks(2), 0), None);
        assert!(!receiver.app().is_complete());
    }
}
