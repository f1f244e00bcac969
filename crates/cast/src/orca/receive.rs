//! Receiving: datagrams from the sockets to the host, the controller and the sinks.

use std::net::SocketAddr;

use bytes::Bytes;
use rackweave_core::{HostId, Node as _, Packet, Time};
use rackweave_group::orca::flow::Placement;
use rackweave_linux::sys::ReceiveBatch;
use rackweave_wire::Malformed;
use rackweave_wire::orca::{self, Header, Labelled, TO_AGENT, TO_GROUP};

use super::outgoing::Relayed;
use super::probe::{self, Probe};
use super::{Engine, group};
use crate::source::Payload;

/// The length of the IPv4 and UDP headers in bytes.
const HEADERS: u32 = 28;

impl Engine {
    pub(super) fn handle_batch(&mut self, now: Time, batch: &ReceiveBatch) {
        // All datagrams of a train come from one host.
        let mut known: Option<(SocketAddr, HostId)> = None;
        for datagram in batch.datagrams() {
            self.stats.received += 1;
            self.arrivals.bytes += datagram.bytes.len() as u64;
            let from = known.filter(|known| known.0 == datagram.from).map(|known| known.1);
            let admitted = from.is_some() || self.peers.admits(datagram.from);
            // Members of a group answer queries from addresses that were previously unknown.
            if datagram.bytes.first() == Some(&group::TAG) && (admitted || self.query.is_some()) {
                self.handle_group(datagram.from, datagram.bytes, admitted);
                continue;
            }
            if !admitted {
                self.stats.foreign += 1;
                continue;
            }
            if datagram.bytes.first() == Some(&probe::TAG) {
                self.handle_probe(now, datagram.from, datagram.bytes);
                continue;
            }
            let decoded = match orca::decode(datagram.bytes, self.key.as_ref()) {
                Ok(decoded) => decoded,
                Err(error) => {
                    self.stats.malformed += 1;
                    let mismatch = matches!(error, Malformed::NotKeyed | Malformed::NoKey);
                    self.stats.key_mismatch += u64::from(mismatch);
                    continue;
                }
            };
            let Some(from) = from.or_else(|| self.peers.host_of(datagram.from)) else {
                self.stats.foreign += 1;
                continue;
            };
            known = Some((datagram.from, from));
            self.handle_packet(now, from, decoded, datagram.bytes);
        }
    }

    fn handle_packet(&mut self, now: Time, from: HostId, mut decoded: orca::Decoded, bytes: &[u8]) {
        let me = self.config.me();
        let mut dst = me;
        match &mut decoded.header {
            Header::Control(control) => {
                if self.config.fabric.is_none() {
                    // Without a fabric, host numbers are local to each process, so the address identifies the sender.
                    control.from = from;
                    if control.to != TO_AGENT {
                        control.to = me;
                    }
                }
            }
            Header::Data(data) if data.labelled == Labelled::Host => {}
            Header::Data(_) => dst = TO_GROUP,
        }
        let packet = Packet::new(from, dst, bytes.len() as u32 + HEADERS, decoded.header);
        if self.pass_to_controller(now, &packet) {
            return;
        }
        let handled = self.host.handle_packet(now, 0, &packet);
        let payload = &bytes[decoded.payload];
        match handled.store {
            Some(Placement::Store { session, offset, skip, len }) => {
                let from = usize::from(skip);
                if let Some(incoming) = self.incoming.get_mut(&session)
                    && let Some(piece) = payload.get(from..from + usize::from(len))
                {
                    incoming.drain.put(offset, piece);
                }
            }
            Some(Placement::Keep { session, block, end, index }) => {
                if let Some(incoming) = self.incoming.get_mut(&session) {
                    incoming.parities.keep(block, end, index, payload);
                }
            }
            None => {}
        }
        if handled.relays > 0 {
            let bytes = Bytes::copy_from_slice(payload);
            self.relayed.push_back(Relayed { bytes, check: decoded.check, left: handled.relays });
        }
    }

    fn handle_probe(&mut self, now: Time, from: SocketAddr, bytes: &[u8]) {
        let Some((probe, nonce)) = probe::decode(bytes, self.secret.as_ref()) else {
            self.stats.malformed += 1;
            return;
        };
        let answer = match probe {
            Probe::Unicast => Probe::UnicastReply,
            Probe::Group => Probe::GroupReply,
            Probe::UnicastReply | Probe::GroupReply => {
                if nonce == self.probes.nonce
                    && let Some(host) = self.peers.host_of(from)
                {
                    let span = now.since(self.probes.asked);
                    let heard = match probe {
                        Probe::UnicastReply => &mut self.probes.one,
                        _ => &mut self.probes.group,
                    };
                    heard.entry(host).or_insert(span);
                }
                return;
            }
        };
        // Only receivers of streams answer probes.
        if self.accept.is_some() {
            self.send_probe(from, answer, nonce);
        }
    }

    fn send_probe(&mut self, to: SocketAddr, probe: Probe, nonce: u64) {
        let bytes = probe::encode(probe, nonce, self.secret.as_ref());
        self.push(to, |out| out.extend_from_slice(&bytes), Payload::new());
    }

    /// Starts to probe these hosts, each by unicast and all of them by multicast.
    pub(super) fn start_probe(&mut self, hosts: &[HostId]) {
        self.probes = super::Probes::default();
        self.probes.nonce = rackweave_linux::random() as u64;
        self.probes.asked = self.driver.now();
        self.send_probes(hosts);
    }

    pub(super) fn send_probes(&mut self, hosts: &[HostId]) {
        let nonce = self.probes.nonce;
        for host in hosts {
            if let Some(address) = self.peers.address(*host) {
                self.send_probe(address, Probe::Unicast, nonce);
            }
        }
        if hosts.len() > 1 && self.config.bind.is_ipv4() {
            self.send_probe(self.group_address(), Probe::Group, nonce);
        }
    }
}
