//! Packets as HomaModule sends and expects them: Homa's header behind IPv4's, with neither UDP nor an envelope.
//!
//! There is no incarnation to compare, no check of the payload, and nothing by which a sender proves its address.

use rackweave_core::{HostId, Packet, Slice, Time};
use rackweave_transport::TransportConfig;
use rackweave_wire::homa::{self, Body, Layout, MAX_MESSAGE_LENGTH};
use rackweave_wire::{Header, Id64, Malformed, Ports};

use super::outgoing::Payload;
use super::send::MAX_BATCH;
use super::{Endpoint, EndpointConfig, EndpointError, Peers, Wire};
use crate::driver::Platform;
use crate::sys::{Datagram, Path, ReceiveBatch};

/// The protocol number in IP's header.
pub(super) const PROTOCOL: u8 = Layout::Head.ip_protocol();

/// Ports from here on are chosen by the system for clients (`HOMA_MIN_DEFAULT_PORT`): the module lets no server have one.
const CHOSEN_PORTS: u16 = 0x8000;

/// IPv4's header without options.
const IP_BYTES: usize = 20;

/// Flag and offset of IP's fragments. The kernel hands over whole packets only.
const FRAGMENT: u16 = 0x3fff;

/// Checks what can be checked without a socket.
pub(super) fn check(config: &EndpointConfig) -> Result<(), EndpointError> {
    if config.key.is_some() {
        return Err(EndpointError::ModuleWithKey);
    }
    if matches!(config.peers, Peers::Switch { .. }) || !config.bind.is_ipv4() {
        return Err(EndpointError::ModuleNeedsIpv4);
    }
    if config.bind.port() >= CHOSEN_PORTS {
        return Err(EndpointError::ModulePort(config.bind.port()));
    }
    match &config.transport {
        TransportConfig::Homa(config)
            if config.layout() == Layout::Head
                && config.max_message_bytes <= MAX_MESSAGE_LENGTH =>
        {
            Ok(())
        }
        _ => Err(EndpointError::ModuleTransport),
    }
}

/// Why a packet is not for the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    /// It is to another port, or from this very socket.
    Foreign,
    /// It is no packet of HomaModule's.
    Malformed,
}

impl From<Malformed> for Unfit {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// A packet, from where it came, and its payload.
#[derive(Debug, PartialEq)]
struct Read<'a> {
    path: Path,
    priority: u8,
    l3_bytes: u32,
    header: homa::Header,
    ports: Ports,
    payload: &'a [u8],
}

/// Reads what a raw socket of this port has received: IP's header and what follows. No length in it is trusted.
fn read<'a>(datagram: &Datagram<'a>, port: u16) -> Result<Read<'a>, Unfit> {
    let bytes = datagram.bytes;
    let ip = bytes.get(..IP_BYTES).ok_or(Unfit::Malformed)?;
    let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let (front, total) = (usize::from(ip[0] & 0xf) * 4, usize::from(word(2)));
    let is_fragment = word(6) & FRAGMENT != 0;
    if ip[0] >> 4 != 4 || front < IP_BYTES || ip[9] != PROTOCOL || is_fragment {
        return Err(Unfit::Malformed);
    }
    let homa = bytes.get(front..total).ok_or(Unfit::Malformed)?;
    let (header, ports) = homa::Header::decode(Layout::Head, homa, homa.len())?;
    let from_itself = ip[12..16] == ip[16..20] && ports.source == port;
    if ports.destination != port || from_itself {
        return Err(Unfit::Foreign);
    }
    let header = plain(header, |ack_port| ack_port == port).ok_or(Unfit::Malformed)?;
    let mut path = datagram.path();
    path.remote.set_port(ports.source);
    let payload = homa.get(header.header_bytes(Layout::Head) as usize..).unwrap_or_default();
    let (priority, l3_bytes) = (datagram.traffic_class >> 5, total as u32);
    Ok(Read { path, priority, l3_bytes, header, ports, payload })
}

/// The header without Rackweave's extensions, for which the module has neither packets nor bits. It has one list of finished RPCs for
/// all ports of a host; those of other ports than `is_ours` do not concern this one. `None` for a packet of a stream.
fn plain(mut header: homa::Header, is_ours: impl Fn(u16) -> bool) -> Option<homa::Header> {
    header.one_way = false;
    match &mut header.body {
        Body::Stream(_) => return None,
        Body::Grant { resend_all, .. } => *resend_all = false,
        Body::Unknown { refused } => *refused = false,
        Body::Data { ack_id, ack_port, .. } if !is_ours(*ack_port) => *ack_id = Id64::default(),
        _ => {}
    }
    Some(header)
}

/// Appends a header as the module expects it.
fn write(mut header: homa::Header, ports: Ports, out: &mut Vec<u8>) {
    if let Body::Data { ack_id, ack_port, .. } = &mut header.body
        && ack_id.get() != 0
    {
        *ack_port = ports.destination;
    }
    header.encode(Layout::Head, ports, out);
}

/// Whether a stranger may begin with this packet: a client with a request, or one that waits for a response which this host has lost.
const fn begins(header: &homa::Header) -> bool {
    header.id.get() & 1 == 0 && matches!(header.body, Body::Data { .. } | Body::Resend { .. })
}

impl<P: Platform> Endpoint<P> {
    /// Whether packets are HomaModule's.
    pub(super) fn is_of_module(&self) -> bool {
        self.config.wire == Wire::HomaModule
    }

    /// Handles the packets of one call to receive.
    pub(super) fn handle_bare(&mut self, now: Time, batch: &ReceiveBatch) {
        let port = self.config.bind.port();
        for datagram in batch.datagrams() {
            self.stats.received += 1;
            match read(&datagram, port) {
                Ok(read) => self.handle_read(now, &read),
                Err(Unfit::Foreign) => self.stats.foreign += 1,
                Err(Unfit::Malformed) => self.stats.malformed += 1,
            }
        }
    }

    fn handle_read(&mut self, now: Time, read: &Read<'_>) {
        let (begins, admits) = (begins(&read.header), self.peers.admits(read.path.remote));
        let peer = match self.peers.at(read.path) {
            // A host that serves nobody keeps no request, whoever's address it has.
            Some(_) if begins && !admits => None,
            None if begins && admits => self.peers.admit(now, read.path),
            known => known,
        };
        let Some(peer) = peer else {
            self.stats.foreign += 1;
            return;
        };
        self.peers.heard(now, peer, read.path.local);
        let header = Header::Homa(read.header);
        let packet = Packet::new(peer, self.config.host, read.l3_bytes, header)
            .with_priority(read.priority)
            .with_ports(read.ports.source, read.ports.destination);
        self.deliver(now, peer, packet, read.payload);
    }

    /// Writes a packet to the batch.
    pub(super) fn queue_bare(&mut self, now: Time, packet: &Packet<Header>) {
        let Some(peer) = self.peers.get_mut(packet.dst) else { return };
        peer.used = now;
        let (path, Header::Homa(header)) = (peer.path(), packet.header) else { return };
        let Some(header) = plain(header, |_| true) else { return };
        // A server's acknowledgement refuses what it may have executed. The module, whose servers send none, would end the call
        // without an outcome; without it the call fails after its timeout.
        if header.id.get() & 1 == 1 && matches!(header.body, Body::Ack { .. }) {
            return;
        }
        if self.driver.batch().len() >= MAX_BATCH {
            self.stats.not_held += 1;
            return;
        }
        let Some(payload) = self.payload_of(packet.dst, packet.payload()) else { return };
        let ports = Ports { source: self.config.bind.port(), destination: path.remote.port() };
        // The module sets no ECN codepoint, and nothing else in the byte (`homa_xmit_data`).
        let class = packet.priority << 5;
        self.driver.batch().push(path, class, |out| write(header, ports, out), payload);
    }

    /// The bytes that a packet carries; `None`, which is counted, if their message was cancelled.
    pub(super) fn payload_of(&mut self, to: HostId, slice: Option<Slice>) -> Option<Payload> {
        let Some(slice) = slice.filter(|slice| slice.len > 0) else { return Some(Payload::new()) };
        let payload = self.outgoing.slice(to, slice);
        self.stats.stale += u64::from(payload.is_none());
        payload
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use rackweave_core::{Rate, Rng};
    use rackweave_transport::homa::Config;
    use rackweave_wire::homa::stream::Stream;

    use super::*;
    use crate::Key;

    const PORT: u16 = 4000;
    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

    fn recorded() -> Vec<Vec<u8>> {
        rackweave_testing::homa_module().iter().map(rackweave_testing::Recorded::whole).collect()
    }

    fn behind_ip(homa: &[u8]) -> Vec<u8> {
        let total = (IP_BYTES + homa.len()) as u16;
        let mut bytes = vec![0x45, 0xa0];
        bytes.extend_from_slice(&total.to_be_bytes());
        bytes.extend_from_slice(&[0, 1, 0x40, 0, 64, PROTOCOL, 0, 0]);
        bytes.extend_from_slice(&CLIENT.octets());
        bytes.extend_from_slice(&SERVER.octets());
        bytes.extend_from_slice(homa);
        bytes
    }

    fn reading(bytes: &[u8], port: u16) -> Result<Read<'_>, Unfit> {
        let datagram = Datagram {
            from: SocketAddr::from((CLIENT, 0)),
            local: Some(IpAddr::V4(SERVER)),
            traffic_class: bytes.get(1).copied().unwrap_or_default(),
            realtime_ns: None,
            bytes,
        };
        read(&datagram, port)
    }

    #[test]
    fn the_sender_of_a_recorded_packet_has_the_port_in_homas_header() {
        let packets = recorded();
        assert!(packets.len() > 10);
        for homa in packets {
            let bytes = behind_ip(&homa);
            let read = reading(&bytes, PORT).unwrap();
            let port = u16::from_be_bytes([homa[0], homa[1]]);
            assert_eq!(read.path.remote, SocketAddr::from((CLIENT, port)));
            assert_eq!((read.priority, read.l3_bytes), (5, bytes.len() as u32));
            let payload = read.header.payload().map_or(0, |slice| slice.len as usize);
            assert_eq!(read.payload.len(), payload);
            assert!(read.payload.iter().all(|byte| *byte == 7));
            assert_eq!(begins(&read.header), payload > 0);
        }
    }

    #[test]
    fn packets_to_other_ports_and_own_ones_are_nobodys() {
        let mut bytes = behind_ip(&recorded()[0]);
        assert_eq!(reading(&bytes, PORT + 1), Err(Unfit::Foreign));
        let client = u16::from_be_bytes([bytes[20], bytes[21]]);
        bytes[22..24].copy_from_slice(&client.to_be_bytes());
        assert!(reading(&bytes, client).is_ok(), "of another host with the same port");
        bytes.copy_within(12..16, 16);
        assert_eq!(reading(&bytes, client), Err(Unfit::Foreign));
    }

    #[test]
    fn no_length_is_trusted() {
        let good = behind_ip(&recorded()[0]);
        for len in 0..good.len() {
            assert_eq!(reading(&good[..len], PORT), Err(Unfit::Malformed), "{len}");
        }
        for (at, value) in [(0, 0x44), (0, 0x65), (0, 0x4f), (2, 0xff), (3, 47), (6, 0x20), (9, 17)]
        {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert_eq!(reading(&bytes, PORT), Err(Unfit::Malformed), "{at}: {value}");
        }
        // Options of IP's header are skipped.
        let mut bytes = good.clone();
        bytes.splice(IP_BYTES..IP_BYTES, [1; 4]);
        bytes[0] = 0x46;
        bytes[2..4].copy_from_slice(&(good.len() as u16 + 4).to_be_bytes());
        assert_eq!(reading(&bytes, PORT).unwrap().payload.len(), 100);
    }

    #[test]
    fn damaged_packets_are_dropped_or_read() {
        let packets = recorded();
        let mut rng = Rng::stream(1, 0, 0, "damage");
        for round in 0..20_000 {
            let mut bytes = behind_ip(&packets[round % packets.len()]);
            for _ in 0..1 + rng.below(6) {
                let at = rng.below(bytes.len().min(100) as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(rng.below(2 * bytes.len() as u64) as usize);
            if let Ok(read) = reading(&bytes, PORT) {
                let payload = read.header.payload().map_or(0, |slice| slice.len as usize);
                assert!(read.payload.len() >= payload);
            }
        }
    }

    #[test]
    fn what_the_module_does_not_know_is_neither_sent_nor_believed() {
        let id = Id64::new(6);
        let header = |body| homa::Header { id, one_way: true, body };
        let body = |body| plain(header(body), |port| port == PORT).map(|header| header.body);
        let refused = Body::Unknown { refused: true };
        assert_eq!(body(refused), Some(Body::Unknown { refused: false }));
        let stream = Stream::Missing { offset: 0, length: 1, tag: 1 };
        assert_eq!(body(Body::Stream(stream)), None);
        assert!(!plain(header(Body::Busy), |_| true).unwrap().one_way);
        // An RPC with another port of this host.
        let data = reading_data();
        let Body::Data { ack_id, .. } = body(data).unwrap() else { panic!() };
        assert_eq!(ack_id.get(), 0);
        let mut out = Vec::new();
        let ports = Ports { source: 0x8000, destination: 4321 };
        write(homa::Header { id, one_way: false, body: data }, ports, &mut out);
        // The entry's server port is the one to which the packet goes.
        assert_eq!(out[36..46], [0, 0, 0, 0, 0, 0, 0, 8, 0x10, 0xe1]);
    }

    /// The first recorded DATA packet, with an acknowledgement of RPC 8 at port 99.
    fn reading_data() -> Body {
        let bytes = behind_ip(&recorded()[0]);
        match reading(&bytes, PORT).unwrap().header.body {
            Body::Data {
                message_length,
                incoming,
                cutoff_version,
                retransmit,
                offset,
                segment_length,
                stamps,
                ..
            } => Body::Data {
                message_length,
                incoming,
                ack_id: Id64::new(8),
                ack_port: 99,
                cutoff_version,
                retransmit,
                offset,
                segment_length,
                stamps,
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_it_cannot_carry_is_refused_before_a_socket_is_opened() {
        let peers = Peers::Direct { hosts: Default::default(), allow: Vec::new() };
        let homa = Config::linux_2026(Rate::from_gbps(10));
        let config = |bind: &str, homa: &Config| {
            let bind = bind.parse().unwrap();
            EndpointConfig::homa_module(HostId(0), bind, peers.clone(), homa.clone())
        };
        let refused = |config: EndpointConfig| Endpoint::new(config).unwrap_err();
        let key = Key::derive(&[7; 32]).unwrap();
        let good = "127.0.0.1:4000";
        assert!(matches!(refused(config(good, &homa).key(key)), EndpointError::ModuleWithKey));
        let v6 = refused(config("[::1]:4000", &homa));
        assert!(matches!(v6, EndpointError::ModuleNeedsIpv4));
        let high = refused(config("127.0.0.1:32768", &homa));
        assert!(matches!(high, EndpointError::ModulePort(32_768)));
        let long = Config { max_message_bytes: 1_000_001, ..homa.clone() };
        for other in [long, Config::linux(homa.link), Config::leverage(homa.link)] {
            assert!(matches!(refused(config(good, &other)), EndpointError::ModuleTransport));
        }
    }
}
