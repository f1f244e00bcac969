//! Datagrams in fragments, for peers at which long ones do not arrive ([`super::path`]), and their reassembly.

use std::collections::VecDeque;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::Header;
use rackweave_wire::overlay::{self, Envelope};
use rackweave_wire::path::{Fragment, OVERHEAD, PathMessage};
use rackweave_wire::secure;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::event::PathChange;
use super::path::{Change, SMALL};
use super::send::HELLO_CLASS;
use super::{Endpoint, Event, Peers};
use crate::driver::Platform;

/// How long the other fragments of a datagram are waited for. IP waits for at least 15 s (RFC 1122, section 3.3.2); here the transport sends
/// again within milliseconds.
const LIFETIME: Span = Span::from_ms(500);

/// The most bytes of incomplete datagrams, of all peers together.
const MAX_BYTES: usize = 4 << 20;

/// The most incomplete datagrams, of all peers together: each takes more than its bytes, which may be two.
const MAX_PARTIALS: usize = 4096;

/// Bytes of the headers of IP and UDP.
const IPV4_UDP: usize = 28;
const IPV6_UDP: usize = 48;

/// The bits of a traffic class that hold the ECN codepoint. The value with both bits means "congestion experienced".
const ECN: u8 = 3;

type Key = (HostId, u32);

#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    /// The number of bytes that have arrived, by the offsets of their fragments.
    arrived: usize,
    offsets: SmallVec<[u16; 8]>,
    class: u8,
}

/// Incomplete datagrams of peers.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    partials: FxHashMap<Key, Partial>,
    /// In the order in which their first fragments have come, some of them complete already.
    order: VecDeque<(Time, Key)>,
    bytes: usize,
}

impl Reassembly {
    /// The bytes of all incomplete datagrams.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a fragment. Returns the whole datagram with its traffic class if this was the last fragment that it lacked.
    pub(super) fn add(
        &mut self,
        now: Time,
        peer: HostId,
        fragment: Fragment,
        bytes: &[u8],
        class: u8,
    ) -> Option<(Vec<u8>, u8)> {
        let (key, total) = ((peer, fragment.number), usize::from(fragment.total));
        self.expire(now);
        if self.partials.get(&key).is_some_and(|partial| partial.bytes.len() != total) {
            return None;
        }
        if !self.partials.contains_key(&key) {
            if self.order.len() >= 2 * MAX_PARTIALS {
                // Complete ones behind an incomplete one.
                self.order.retain(|(_, key)| self.partials.contains_key(key));
            }
            while (self.bytes + total > MAX_BYTES || self.partials.len() >= MAX_PARTIALS)
                && let Some((_, oldest)) = self.order.pop_front()
            {
                self.remove(oldest);
            }
            self.bytes += total;
            self.order.push_back((now, key));
        }
        let partial = self.partials.entry(key).or_insert_with(|| Partial {
            bytes: vec![0; total],
            arrived: 0,
            offsets: SmallVec::new(),
            class,
        });
        let start = usize::from(fragment.offset);
        let place = partial.bytes.get_mut(start..start + bytes.len())?;
        if partial.offsets.contains(&fragment.offset) {
            return None;
        }
        place.copy_from_slice(bytes);
        partial.offsets.push(fragment.offset);
        partial.arrived += bytes.len();
        // One marked fragment marks the whole (RFC 3168, section 5.3).
        if class & ECN == ECN {
            partial.class = class;
        }
        if partial.arrived < total {
            return None;
        }
        let whole = self.remove(key)?;
        while self.order.front().is_some_and(|(_, key)| !self.partials.contains_key(key)) {
            self.order.pop_front();
        }
        Some((whole.bytes, whole.class))
    }

    fn remove(&mut self, key: Key) -> Option<Partial> {
        let partial = self.partials.remove(&key)?;
        self.bytes -= partial.bytes.len();
        Some(partial)
    }

    /// Drops datagrams whose other fragments have not come in time.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some(&(since, key)) = self.order.front()
            && now.since(since) >= LIFETIME
        {
            self.order.pop_front();
            self.remove(key);
        }
    }
}

impl<P: Platform> Endpoint<P> {
    /// Notes that a datagram of this length is about to be sent to a peer. Returns the length above which it has to be divided.
    pub(super) fn watch_path(&mut self, now: Time, host: HostId, bytes: usize) -> Option<usize> {
        if bytes <= SMALL || matches!(self.config.peers, Peers::Switch { .. }) {
            return None;
        }
        let path = &mut self.peers.get_mut(host)?.path_mtu;
        if path.on_send(now, bytes) {
            let due = path.due();
            let limit = path.limit();
            self.peers.probe_at(host, due);
            return limit;
        }
        path.limit()
    }

    /// Sends the probes that are due.
    pub(super) fn poll_probes(&mut self, now: Time) {
        while let Some(host) = self.peers.next_probe(now) {
            let Some(peer) = self.peers.get_mut(host) else { continue };
            let (probes, change) = peer.path_mtu.advance(now, &mut self.probe_number);
            let due = peer.path_mtu.due();
            self.peers.probe_at(host, due);
            for (number, bytes) in probes {
                let padding = vec![0; bytes.saturating_sub(OVERHEAD)];
                self.send_path(now, host, HELLO_CLASS, &PathMessage::Probe { number }, &padding);
            }
            self.report_path(host, change);
        }
    }

    fn report_path(&mut self, peer: HostId, change: Option<Change>) {
        let Some(Change { bytes, limit }) = change else { return };
        let is_ipv4 = self.peers.get(peer).is_none_or(|peer| peer.path().remote.is_ipv4());
        let headers = if is_ipv4 { IPV4_UDP } else { IPV6_UDP };
        let (packet_bytes, limit) = (bytes + headers, limit.map(|limit| limit + headers));
        self.events.push(Event::PathMtu { peer, change: PathChange { packet_bytes, limit } });
    }

    /// The system has refused datagrams as too long for the route to their peers.
    pub(super) fn note_too_long(&mut self, now: Time) {
        while let Some((path, bytes)) = self.driver.batch().take_too_long() {
            let Some(host) = self.peers.at(path) else { continue };
            let Some(peer) = self.peers.get_mut(host) else { continue };
            let change = peer.path_mtu.on_refused(now, bytes);
            self.report_path(host, change);
        }
    }

    /// Sends a datagram, or what would be sealed in one, in fragments; none is longer than `limit`.
    pub(super) fn send_fragments(
        &mut self,
        now: Time,
        host: HostId,
        class: u8,
        whole: &[u8],
        limit: usize,
    ) {
        let room = limit.saturating_sub(OVERHEAD).max(1);
        let size = whole.len().div_ceil(whole.len().div_ceil(room).max(1)).max(1);
        let number = self.fragment_number;
        self.fragment_number = number.wrapping_add(1);
        self.stats.fragmented += 1;
        let mut offset = 0;
        for bytes in whole.chunks(size) {
            let fragment = Fragment { number, total: whole.len() as u16, offset };
            self.send_path(now, host, class, &PathMessage::Fragment(fragment), bytes);
            offset += bytes.len() as u16;
        }
    }

    fn send_path(
        &mut self,
        now: Time,
        host: HostId,
        class: u8,
        message: &PathMessage,
        rest: &[u8],
    ) {
        if !self.has_room() {
            return;
        }
        let Some(peer) = self.peers.get(host) else { return };
        if self.secure.is_some() {
            if peer.association.is_ready() {
                self.push_sealed(now, host, class, |out| {
                    secure::encode_path(message, out);
                    out.extend_from_slice(rest);
                });
            }
            return;
        }
        let Some(to) = peer.incarnation else { return };
        let (kind, src) = (overlay::Kind::Path, self.config.host);
        let envelope = Envelope { kind, src, dst: host, from: peer.ours, to };
        let path = peer.path();
        let write = |out: &mut Vec<u8>| overlay::encode_path(envelope, message, rest, out);
        self.driver.batch().push(path, class, write, SmallVec::new());
    }

    /// Handles an authentic message of a peer about the path. Returns a datagram that is now complete, with its traffic class.
    pub(super) fn on_path(
        &mut self,
        now: Time,
        host: HostId,
        message: PathMessage,
        rest: &[u8],
        class: u8,
    ) -> Option<(Vec<u8>, u8)> {
        match message {
            PathMessage::Probe { number } => {
                self.send_path(now, host, HELLO_CLASS, &PathMessage::Reply { number }, &[]);
                None
            }
            PathMessage::Reply { number } => {
                let change = self.peers.get_mut(host)?.path_mtu.on_reply(now, number);
                self.report_path(host, change);
                None
            }
            PathMessage::Fragment(fragment) => {
                self.reassembly.add(now, host, fragment, rest, class)
            }
        }
    }

    /// Handles a message about the path in a plain datagram of a peer whose incarnation is known.
    pub(super) fn on_plain_path(
        &mut self,
        now: Time,
        host: HostId,
        envelope: Envelope,
        (message, rest): (PathMessage, &[u8]),
        class: u8,
    ) {
        let Some((whole, class)) = self.on_path(now, host, message, rest, class) else { return };
        match overlay::decode(&whole, class) {
            Ok(overlay::Datagram { envelope: inner, packet: Some(packet), payload })
                if (inner.from, inner.to) == (envelope.from, envelope.to) =>
            {
                self.deliver(now, host, packet, &whole[payload]);
            }
            Ok(_) | Err(_) => self.stats.malformed += 1,
        }
    }

    /// The length of a packet's datagram.
    pub(super) fn datagram_bytes(&self, header: &Header) -> usize {
        let header_bytes = rackweave_core::Header::payload_bytes(header) as usize;
        overlay::BYTES as usize + header.header_bytes(self.layout) as usize + header_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use bytes::Bytes;
    use rackweave_core::{Kind, Rate};
    use rackweave_transport::{TransportConfig, homa};

    use super::*;
    use crate::{Clock, EndpointConfig, Key};

    const PEER: HostId = HostId(3);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    fn pieces(number: u32, whole: &[u8], size: usize) -> Vec<(Fragment, Vec<u8>)> {
        let total = whole.len() as u16;
        let piece = |(index, bytes): (usize, &[u8])| {
            (Fragment { number, total, offset: (index * size) as u16 }, bytes.to_vec())
        };
        whole.chunks(size).enumerate().map(piece).collect()
    }

    #[test]
    fn fragments_in_any_order_and_twice_give_the_datagram_once() {
        let whole: Vec<u8> = (0..1440_u32).map(|n| n as u8).collect();
        let mut reassembly = Reassembly::default();
        let pieces = pieces(9, &whole, 500);
        for (order, last) in [([2, 0, 0, 2, 1], 4), ([1, 1, 2, 2, 0], 4)] {
            for (step, index) in order.into_iter().enumerate() {
                let (fragment, bytes) = &pieces[index];
                // The second one is marked: the traffic class is that of congestion.
                let class = if index == 1 { 0xe3 } else { 0xe2 };
                let done = reassembly.add(at(1), PEER, *fragment, bytes, class);
                assert_eq!(done, (step == last).then(|| (whole.clone(), 0xe3)));
            }
            assert_eq!((reassembly.bytes(), reassembly.order.len()), (0, 0));
        }
    }

    /// The system refuses long datagrams, and the endpoint learns the path's MTU of it, before a probe is lost.
    #[test]
    fn calls_are_answered_where_the_system_refuses_long_datagrams() {
        rackweave_testing::needs!(NetAdmin);
        crate::test_spaces::with_mtu("endpoints", 1400, || {
            let link = Rate::from_gbps(10);
            let homa = homa::Config::fabric(link, 60_000);
            let transport = TransportConfig::Homa(Arc::new(homa)).patient(Span::from_secs(10));
            for key in [None, Some(Key::derive(&[7; 32]).unwrap())] {
                let clock = Clock::start();
                let mut ends = [0, 1].map(|host| {
                    let allow = vec!["127.0.0.0/8".parse().unwrap()];
                    let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
                    let bind = "127.0.0.1:0".parse().unwrap();
                    let config = EndpointConfig::new(HostId(host), bind, peers, &transport);
                    let config = EndpointConfig { clock, key: key.clone(), ..config };
                    let end = Endpoint::new(config).unwrap();
                    end.driver.sockets().for_each(crate::sys::UdpSocket::never_fragment);
                    end
                });
                let server = ends[1].local_addr();
                let server = ends[0].add_peer(server);
                let content = Bytes::from(vec![5; 100_000]);
                ends[0].send(server, Kind::Request, content.clone()).unwrap();
                let (mut answer, mut limits) = (None, [None; 2]);
                let until = clock.now() + Span::from_secs(60);
                while answer.is_none() {
                    for (end, limit) in ends.iter_mut().zip(&mut limits) {
                        let was_refused = end.stats().send_refused > 0;
                        let _ = end.turn().unwrap();
                        while let Some(event) = end.poll_event() {
                            match event {
                                Event::Message { peer, id, kind: Kind::Request, bytes } => {
                                    end.respond(peer, id, bytes).unwrap();
                                }
                                Event::Message { bytes, .. } => answer = Some(bytes),
                                Event::PathMtu { change, .. } => *limit = change.limit,
                                _ => {}
                            }
                        }
                        // It is not left to probes, which take 300 ms.
                        assert!(!was_refused || limit.is_some());
                    }
                    assert!(clock.now() < until, "{limits:?}");
                }
                assert!(answer == Some(content));
                assert_eq!(limits, [Some(1200 + IPV4_UDP); 2]);
                let stats = ends[0].stats();
                assert!(stats.fragmented > 0 && stats.send_refused > 0, "{stats:?}");
            }
        });
    }

    #[test]
    fn fragments_of_different_peers_and_datagrams_are_not_mixed() {
        let (one, other) = (vec![1; 1000], vec![2; 1000]);
        let mut reassembly = Reassembly::default();
        let (a, b) = (pieces(1, &one, 500), pieces(1, &other, 500));
        assert_eq!(reassembly.add(at(0), PEER, a[0].0, &a[0].1, 0), None);
        assert_eq!(reassembly.add(at(0), HostId(4), b[1].0, &b[1].1, 0), None);
        let next = Fragment { number: 2, ..a[1].0 };
        assert_eq!(reassembly.add(at(0), PEER, next, &a[1].1, 0), None);
        // Of another length: it belongs to no datagram.
        let longer = Fragment { total: 1001, ..a[1].0 };
        assert_eq!(reassembly.add(at(0), PEER, longer, &a[1].1, 0), None);
        assert_eq!(reassembly.add(at(0), PEER, a[1].0, &a[1].1, 0), Some((one, 0)));
        assert_eq!(reassembly.add(at(0), HostId(4), b[0].0, &b[0].1, 0), Some((other, 0)));
        assert_eq!(reassembly.bytes(), 1000);
        reassembly.expire(at(500));
        assert_eq!((reassembly.bytes(), reassembly.order.len()), (0, 0));
    }

    #[test]
    fn the_number_of_incomplete_datagrams_is_bounded() {
        let mut reassembly = Reassembly::default();
        for number in 0..50_000 {
            let fragment = Fragment { number, total: 2, offset: 0 };
            // Every second one is complete, and behind others that are not.
            let bytes = &[1, 2][..2 - number as usize % 2];
            assert_eq!(reassembly.add(at(0), PEER, fragment, bytes, 0).is_some(), number % 2 == 0);
            assert!(reassembly.partials.len() <= MAX_PARTIALS);
            assert!(reassembly.order.len() <= 2 * MAX_PARTIALS);
        }
    }

    #[test]
    fn what_is_incomplete_is_bounded() {
        let mut reassembly = Reassembly::default();
        for number in 0..100_000 {
            let fragment = Fragment { number, total: 60_000, offset: 0 };
            assert_eq!(reassembly.add(at(0), PEER, fragment, &[1], 0), None);
            assert!(reassembly.bytes() <= MAX_BYTES);
            assert!(reassembly.order.len() <= 70 && reassembly.partials.len() <= 70);
        }
    }
}
