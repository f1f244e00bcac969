//! Machines on a simulated fabric ([`rackweave_switch::Net`]), which drives them in all tests of transports.
//!
//! [`Network`] fulfils the contract of [`Transport`] and checks that the transport does: timeouts are in the
//! future, all bytes of a message arrive before it is delivered, and no message is delivered twice to the same
//! incarnation of a host. For streams it checks that each direction is readable in order, once, up to what was
//! written, within the window, and completely when it ends.
#![allow(
    missing_docs,
    reason = "the names of tests, and of what they are made of, say what they are"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rackweave_core::{
    DropReason, Egress, Event, Framing, Header, HostId, Kind, MessageId, Open, Packet,
    PayloadStore, Placement, Port, RangeSet, Rank, Rate, Refused, Slice, Span, StreamEvent, Submit,
    SwitchProgram, Time, Transport, Verdict,
};
use rackweave_switch::config::{
    FabricConfig, Fault, FaultKind, FaultPlace, SwitchConfig, Topology,
};
use rackweave_switch::net::LinkStats;
use rackweave_switch::{Edge, Fabric, Net, NetConfig, NetEvent};

use super::ledger::{self, Ledger};
use super::streams;
use crate::testkit::Faults;

/// Selects the packets to which a rule applies.
pub(crate) type PacketFilter<H> = fn(&Packet<H>) -> bool;

/// The fate of a packet: one copy of it continues after each of these delays; without delays it is lost. The
/// function may change the packet.
pub(crate) type Fate<H> = Box<dyn FnMut(Time, &mut Packet<H>) -> Vec<Span>>;

/// Maximum number of copies of a packet that a [`Fate`] can request.
const MAX_COPIES: usize = 2;

/// The time of a full packet on a link of 10 Gbps, the slowest of these tests: 1538 bytes.
const FULL_PACKET: Span = Span::from_ns(1231);

/// A header, and what the first switch does with its packet.
#[derive(Clone, Copy, Debug)]
struct Fated<H> {
    header: H,
    /// The delays of its copies.
    copies: [Option<Span>; MAX_COPIES],
}

impl<H: Header> Header for Fated<H> {
    fn payload(&self) -> Option<Slice> {
        self.header.payload()
    }

    fn path(&self) -> Option<u16> {
        self.header.path()
    }

    fn rank(&self) -> Option<Rank> {
        self.header.rank()
    }
}

/// The switch program that carries out the fates of packets.
struct Middlebox<H> {
    delayed: BTreeMap<(Time, u64), Packet<Fated<H>>>,
    number: u64,
}

impl<H: Header> SwitchProgram for Middlebox<H> {
    type Header = Fated<H>;

    fn handle_packet<S: PayloadStore<Fated<H>>>(
        &mut self,
        now: Time,
        _port: Port,
        packet: &mut Packet<Fated<H>>,
        _payloads: &mut S,
    ) -> Verdict {
        // In a fabric of several switches, the fate applies at the first switch.
        let copies = std::mem::replace(&mut packet.header.copies, [Some(Span::ZERO), None]);
        let mut verdict = Verdict::Drop(DropReason::FaultLoss);
        for delay in copies.into_iter().flatten() {
            if delay == Span::ZERO && verdict != Verdict::Route {
                verdict = Verdict::Route;
                continue;
            }
            self.number += 1;
            self.delayed.insert((now + delay, self.number), *packet);
            if verdict != Verdict::Route {
                verdict = Verdict::Consume;
            }
        }
        verdict
    }

    fn poll_transmit<S: PayloadStore<Fated<H>>>(
        &mut self,
        now: Time,
        _payloads: &mut S,
    ) -> Option<(Egress, Packet<Fated<H>>)> {
        let first = self.delayed.first_entry().filter(|first| first.key().0 <= now)?;
        Some((Egress::Route, first.remove()))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.delayed.first_key_value().map(|(key, _)| key.0)
    }
}

/// The hosts, and the test's decisions about the packets that they send.
pub struct Hosts<T: Transport> {
    /// The machines under test, by host.
    pub hosts: Vec<T>,
    /// Selects packets that are lost.
    pub lose: Option<PacketFilter<T::Header>>,
    /// Selects packets that meet a queue above the ECN threshold.
    pub mark: Option<PacketFilter<T::Header>>,
    /// Decides what else happens to each packet.
    pub fate: Option<Fate<T::Header>>,
    /// Every packet sent, and when its first bit was sent, if [`Hosts::keep_packets`] is set.
    pub packets: Vec<(Time, Packet<T::Header>)>,
    /// The packets that were lost, by time of transmission and sender.
    pub lost: BTreeSet<(Time, HostId)>,
    /// Whether to record packets.
    pub keep_packets: bool,
    down: Vec<bool>,
    /// What has become of each message.
    ledger: Ledger,
    /// Events of hosts that were polled for a packet.
    pending: Vec<(Time, HostId, Event)>,
}

impl<T: Transport> Edge<Fated<T::Header>> for Hosts<T> {
    fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<Fated<T::Header>>> {
        let index = host.0 as usize;
        let packet = self.hosts[index].poll_transmit(at, 0);
        while let Some(event) = self.hosts[index].poll_event() {
            self.pending.push((at, host, event));
        }
        let mut packet = packet?;
        assert_eq!(packet.src, host, "{host} sends a packet in the name of another host");
        let sent = packet;
        self.ledger.sends(host, at);
        if let Some(slice) = packet.payload() {
            let framing = self.hosts[index].framing();
            let wire_bytes = u32::from(packet.wire_bytes);
            self.ledger.sent((packet.dst, host), slice, wire_bytes, framing, at);
        }
        let mut copies = [Some(Span::ZERO), None];
        if let Some(fate) = &mut self.fate {
            let delays = fate(at, &mut packet);
            copies = std::array::from_fn(|index| delays.get(index).copied());
        }
        if self.down[index] || self.lose.is_some_and(|lose| lose(&packet)) {
            copies = [None; MAX_COPIES];
        }
        if self.mark.is_some_and(|mark| mark(&packet)) {
            packet.mark();
        }
        if self.keep_packets {
            self.packets.push((at, sent));
            if copies == [None; MAX_COPIES] {
                self.lost.insert((at, host));
            }
        }
        Some(packet.map(|header| Fated { header, copies }))
    }

    fn poll_timeout(&self, host: HostId) -> Time {
        self.hosts[host.0 as usize].poll_timeout().unwrap_or(Time::MAX)
    }
}

/// Hosts, the network between them, and what has happened.
pub struct Network<T: Transport> {
    /// The events of all hosts, with their times.
    pub events: Vec<(Time, HostId, Event)>,
    /// Length of the response to a request of a given length; `None` if the test responds itself.
    pub respond: Option<fn(u64) -> u64>,
    /// Whether applications consume readable bytes of streams at once; otherwise the test consumes them.
    pub consume: bool,
    /// The window of streams; `None` if it is not checked.
    pub stream_window: Option<u64>,
    /// Number of packets whose payload each host has stored.
    pub stored: Vec<u64>,
    net: Net<Middlebox<T::Header>>,
    edge: Hosts<T>,
    streams: streams::StreamChecker,
    /// The stored ranges of each arriving message, by receiver, sender and id.
    coverage: BTreeMap<(HostId, HostId, MessageId), RangeSet<u32>>,
    delivered: BTreeSet<(HostId, HostId, MessageId)>,
}

impl<T: Transport> Deref for Network<T> {
    type Target = Hosts<T>;

    fn deref(&self) -> &Hosts<T> {
        &self.edge
    }
}

impl<T: Transport> DerefMut for Network<T> {
    fn deref_mut(&mut self) -> &mut Hosts<T> {
        &mut self.edge
    }
}

/// A fabric whose queues neither drop nor mark. `delay` is from host to host at one switch.
pub fn fabric(topology: Topology, delay: Span) -> FabricConfig {
    FabricConfig::new(topology)
        .with_link_delays(delay / 2, Span::ZERO)
        .without_host_delays()
        .with_switch(SwitchConfig::unlimited())
}

/// The same faults on all links. Each packet crosses two links, so that each link has half of the probability;
/// half of the losses are damaged packets.
pub(crate) fn everywhere(faults: Faults) -> Vec<Fault> {
    let Faults { loss, duplication, reordering, lateness } = faults;
    let reordering = FaultKind::Reordering { probability: reordering / 2.0, delay: lateness };
    let loss = loss / 4.0;
    [FaultKind::Loss(loss), FaultKind::Corruption(loss), FaultKind::Duplication(duplication / 2.0)]
        .into_iter()
        .chain((lateness > Span::ZERO).then_some(reordering))
        .map(|kind| Fault { from: Time::ZERO, until: Time::MAX, place: FaultPlace::AllLinks, kind })
        .collect()
}

impl<T: Transport> Network<T> {
    /// Connects these machines as hosts 0, 1, ... to one switch, with links of rate `link` and `delay` between
    /// any two.
    pub fn new(hosts: Vec<T>, link: Rate, delay: Span) -> Self {
        Self::with_faults(hosts, link, delay, 1, Faults::default())
    }

    /// As [`Network::new`], with faults on all links.
    pub fn with_faults(hosts: Vec<T>, link: Rate, delay: Span, seed: u64, faults: Faults) -> Self {
        let single = Topology::SingleSwitch { hosts: hosts.len() as u32, host_link: link };
        Self::on(&fabric(single, delay), hosts, seed, faults)
    }

    /// Connects these machines as the hosts of a fabric.
    pub fn on(config: &FabricConfig, hosts: Vec<T>, seed: u64, faults: Faults) -> Self {
        Self::faulty(config, hosts, seed, everywhere(faults))
    }

    /// As [`Network::on`], with these faults.
    pub fn faulty(config: &FabricConfig, hosts: Vec<T>, seed: u64, faults: Vec<Fault>) -> Self {
        let fabric = Arc::new(Fabric::new(config).expect("a possible fabric"));
        assert_eq!(fabric.hosts() as usize, hosts.len());
        let config = NetConfig { faults, ..NetConfig::new(fabric, seed, 0) };
        let net = Net::new(config, (), |_| Middlebox { delayed: BTreeMap::new(), number: 0 });
        let edge = Hosts {
            down: vec![false; hosts.len()],
            ledger: Ledger::default(),
            lose: None,
            mark: None,
            fate: None,
            packets: Vec::new(),
            lost: BTreeSet::new(),
            keep_packets: false,
            pending: Vec::new(),
            hosts,
        };
        Self {
            events: Vec::new(),
            respond: Some(|bytes| bytes),
            consume: true,
            stream_window: None,
            stored: vec![0; edge.hosts.len()],
            net,
            edge,
            streams: streams::StreamChecker::default(),
            coverage: BTreeMap::new(),
            delivered: BTreeSet::new(),
        }
    }

    /// The current simulated time.
    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// The time that a message takes on idle links, sent at line rate.
    pub fn ideal(&self, bytes: u64, framing: Framing) -> Span {
        self.net.fabric().ideal(HostId(0), HostId(1), bytes, framing)
    }

    /// Mutable access to a host. [`Network::run_until`] drives it afterwards.
    pub fn host_mut(&mut self, at: u32) -> &mut T {
        self.net.flush(&mut self.edge, HostId(at));
        &mut self.edge.hosts[at as usize]
    }

    /// Changes a host, and then drives it as the contract demands.
    fn change<R>(&mut self, at: u32, change: impl FnOnce(&mut T, Time) -> R) -> R {
        let now = self.now();
        let result = change(self.host_mut(at), now);
        self.drive(HostId(at));
        result
    }

    /// Submits a message at a host.
    pub fn submit(
        &mut self,
        at: u32,
        peer: u32,
        id: MessageId,
        bytes: u64,
        kind: Kind,
    ) -> Result<(), Refused> {
        let message = Submit { id, peer: HostId(peer), bytes, kind };
        let now = self.now();
        let result = self.host_mut(at).submit(now, message);
        if result.is_ok() {
            self.edge.ledger.submitted((HostId(peer), HostId(at), id), bytes, kind, now);
        }
        self.drive(HostId(at));
        result
    }

    /// Cancels a message at a host.
    pub fn cancel(&mut self, at: u32, peer: u32, id: MessageId) {
        self.edge.ledger.cancelled(HostId(at), HostId(peer), id);
        self.change(at, |host, now| host.cancel(now, HostId(peer), id));
    }

    /// Opens a stream at a host.
    pub fn open(
        &mut self,
        at: u32,
        peer: u32,
        id: MessageId,
        deadline: Time,
    ) -> Result<(), Refused> {
        let open = Open { id, peer: HostId(peer), deadline };
        let now = self.now();
        let result = self.host_mut(at).open(now, open);
        if result.is_ok() {
            self.streams.opened(HostId(at), HostId(peer), id);
        }
        self.drive(HostId(at));
        result
    }

    /// Writes to a direction of a stream at a host.
    pub fn write(
        &mut self,
        at: u32,
        peer: u32,
        id: MessageId,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        let now = self.now();
        let result = self.host_mut(at).write(now, HostId(peer), id, bytes, end);
        if result.is_ok() {
            self.streams.wrote(HostId(at), HostId(peer), id, bytes, end);
        }
        self.drive(HostId(at));
        result
    }

    /// Consumes up to `most` readable bytes of a direction of a stream.
    pub fn consume(&mut self, at: u32, peer: u32, id: MessageId, most: u64) {
        let (host, peer) = (HostId(at), HostId(peer));
        let bytes = self.streams.unconsumed(host, peer, id).min(most);
        self.streams.consumed(host, peer, id, bytes);
        self.change(at, |host, now| host.consume(now, peer, id, bytes));
    }

    /// Cancels a stream at a host, which gets no further events of it.
    pub fn cancel_stream(&mut self, at: u32, peer: u32, id: MessageId) {
        self.streams.ended(HostId(at), HostId(peer), id);
        self.cancel(at, peer, id);
    }

    /// Whether a host's application knows the stream and has no event of its end.
    pub fn is_open(&self, at: u32, peer: u32, id: MessageId) -> bool {
        self.streams.is_open(HostId(at), HostId(peer), id)
    }

    /// What a host's application has learned of the direction `id` that it reads: bytes, and whether it has
    /// ended.
    pub fn readable(&self, at: u32, peer: u32, id: MessageId) -> (u64, bool) {
        self.streams.read(HostId(at), HostId(peer), id)
    }

    /// Replaces a host by one without any state.
    pub fn restart(&mut self, at: u32, fresh: T) {
        *self.host_mut(at) = fresh;
        let host = HostId(at);
        self.coverage.retain(|(receiver, ..), _| *receiver != host);
        self.delivered.retain(|(receiver, ..)| *receiver != host);
        self.streams.restarted(host);
        self.edge.ledger.restarted(host);
        self.drive(host);
    }

    /// Allows the ids of delivered messages to be used again.
    pub fn reuse_ids(&mut self) {
        self.delivered.clear();
    }

    /// Cuts a host off from the network, or reconnects it.
    pub fn set_down(&mut self, at: u32, down: bool) {
        self.edge.down[at as usize] = down;
    }

    /// Hands a packet to its destination now, as if the network had delivered it.
    pub fn inject(&mut self, packet: Packet<T::Header>) {
        self.arrive(&packet);
    }

    /// Runs until `until`; returns whether no event is pending then.
    pub fn run_until(&mut self, until: Time) -> bool {
        let all = (0..self.edge.hosts.len() as u32).map(HostId);
        all.clone().for_each(|host| self.drive(host));
        while let Some(event) = self.net.step(&mut self.edge, until) {
            match event {
                NetEvent::Arrived { packet, .. } => {
                    let packet = self.net.take(packet).map(|fated| fated.header);
                    self.arrive(&packet);
                }
                NetEvent::Timer(host) => self.expire(host),
                _ => {}
            }
            self.record_pending();
        }
        self.net.advance(until);
        for host in all {
            self.net.flush(&mut self.edge, host);
        }
        self.record_pending();
        self.edge.packets.sort_by_key(|(at, _)| *at);
        self.net.is_quiet()
    }

    /// Whether no host has state of an arriving message whose bytes it stored and which it did not deliver.
    pub fn nothing_arrives(&self) -> bool {
        self.coverage.keys().all(|(host, peer, id)| {
            let machine = self.edge.hosts.get(host.0 as usize);
            machine.is_none_or(|machine| !machine.is_arriving(*peer, *id))
        })
    }

    /// Says of messages that have not ended what their hosts have done, three of them at most; empty if all have ended.
    pub fn unended(&self) -> String {
        let none = RangeSet::new();
        let describe = |key: ledger::Key| {
            let stored = self.coverage.get(&key).unwrap_or(&none);
            let timer = self.edge.hosts.get(key.1.0 as usize).and_then(T::poll_timeout);
            self.edge.ledger.describe(key, &ledger::Hosts { stored, timer })
        };
        // Of a host that is cut off nothing is expected.
        let is_up = |(_, sender, _): &ledger::Key| !self.edge.down[sender.0 as usize];
        let open = || self.edge.ledger.open().filter(is_up);
        let told: Vec<String> = open().take(3).map(describe).collect();
        match open().count() {
            0..4 => told.join("\n"),
            n => format!("{}\nand {} more", told.join("\n"), n - 3),
        }
    }

    /// Asserts that each message has ended.
    ///
    /// # Panics
    /// If one has not, with what its hosts have done.
    pub fn assert_ended(&self) {
        let unended = self.unended();
        assert!(unended.is_empty(), "at {}:\n{unended}", self.now().since(Time::ZERO));
    }

    /// The events of one host.
    pub fn events_at(&self, at: u32) -> impl Iterator<Item = Event> + '_ {
        self.events.iter().filter(move |(_, host, _)| *host == HostId(at)).map(|(.., event)| *event)
    }

    /// Number of events of a host for which `want` returns true.
    pub fn count(&self, at: u32, want: impl Fn(&Event) -> bool) -> usize {
        self.events_at(at).filter(want).count()
    }

    /// Measures the fabric's ports from now on.
    pub fn measure(&mut self) {
        self.net.measure_now(&mut self.edge);
    }

    /// The statistics of a link by its name.
    pub fn link(&mut self, name: &str) -> LinkStats {
        let links = self.net.link_stats(&mut self.edge);
        links.into_iter().find(|link| link.name == name).expect("a link of the fabric")
    }

    fn expire(&mut self, host: HostId) {
        let now = self.now();
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let machine = self.host_mut(host.0);
        if due(machine.poll_timeout()) {
            machine.handle_timeout(now);
            assert!(
                !due(machine.poll_timeout()),
                "{host} has a timer in the past after `handle_timeout`: what is due is done, and its deadline moves on"
            );
        }
        self.drive(host);
    }

    fn arrive(&mut self, packet: &Packet<T::Header>) {
        let (now, host) = (self.now(), packet.dst);
        if self.edge.down.get(host.0 as usize).is_none_or(|down| *down) {
            return;
        }
        let placement = self.host_mut(host.0).handle_packet(now, 0, packet);
        if let Some(slice) = packet.payload() {
            let key = (host, packet.src, slice.message);
            self.edge.ledger.arrived(key, matches!(placement, Placement::Store(_)));
        }
        if let Placement::Store(slice) = placement {
            assert_eq!(
                Some(slice),
                packet.payload(),
                "{host} stores other bytes than the packet from {} has",
                packet.src
            );
            self.store(packet, slice);
            self.drive(host);
            let (peer, id) = (packet.src, slice.message);
            if self.coverage.contains_key(&(host, peer, id)) {
                let machine = &self.edge.hosts[host.0 as usize];
                assert!(machine.is_arriving(peer, id), "{id} is forgotten at once");
            }
        }
        self.drive(host);
    }

    fn store(&mut self, packet: &Packet<T::Header>, slice: Slice) {
        self.stored[packet.dst.0 as usize] += 1;
        if self.streams.is_stream(packet.dst, packet.src, slice.message) {
            return self.streams.stored(packet.dst, packet.src, slice, self.stream_window);
        }
        let key = (packet.dst, packet.src, slice.message);
        assert!(
            !self.delivered.contains(&key),
            "{} stores bytes of message {} from {}, which it has delivered: a finished message is remembered, and its packets are discarded",
            key.0,
            key.2,
            key.1
        );
        self.coverage.entry(key).or_default().insert(slice.offset..slice.offset + slice.len);
    }

    /// Drives a host as the contract demands after any call.
    fn drive(&mut self, host: HostId) {
        let now = self.now();
        while let Some(event) = self.edge.hosts[host.0 as usize].poll_event() {
            self.record(now, host, event);
        }
        self.net.wake(&mut self.edge, host);
        self.record_pending();
        let timeout = self.edge.hosts[host.0 as usize].poll_timeout();
        // A port is polled as late as possible, for the time at which its link became free: a timer that counts from there (Homa's pacer)
        // may have expired within the packet that was sent meanwhile. The network serves it at once.
        let earliest = Time::from_ticks(now.ticks().saturating_sub(FULL_PACKET.ticks()));
        assert!(timeout.is_none_or(|at| at >= earliest), "a timeout lies in the future, or is due");
    }

    /// Records the events of hosts that the network has polled for packets.
    fn record_pending(&mut self) {
        for (at, host, event) in std::mem::take(&mut self.edge.pending) {
            self.record(at, host, event);
        }
    }

    fn record(&mut self, at: Time, host: HostId, event: Event) {
        let now = self.now();
        self.events.push((at, host, event));
        self.edge.ledger.note(at, host, &event);
        streams::note(&mut self.streams, host, &event);
        let machine = &mut self.edge.hosts[host.0 as usize];
        if self.consume
            && let Event::Stream(StreamEvent::Readable { peer, id, bytes, .. }) = event
        {
            self.streams.consumed(host, peer, id, bytes);
            machine.consume(now, peer, id, bytes);
        }
        let Event::Delivered { peer, id, bytes, kind } = event else { return };
        let key = (host, peer, id);
        // The bytes of the last packet are stored before its events are read.
        let whole: Vec<_> = self.coverage.remove(&key).unwrap_or_default().iter().collect();
        let is_second = !self.delivered.insert(key);
        assert!(
            !is_second,
            "{host} delivers message {id} from {peer} twice: a finished message is remembered for `finished_for`"
        );
        assert!(
            whole.len() == 1 && whole[0] == (0..bytes as u32),
            "{host} delivers message {id} of {bytes} bytes from {peer}, and has stored {whole:?} of it"
        );
        if let (Kind::Request, Some(respond)) = (kind, self.respond) {
            let bytes = respond(bytes);
            let response = Submit { id: id.response(), peer, bytes, kind: Kind::Response };
            machine.submit(now, response).expect("the request is in service");
            let key = (peer, host, id.response());
            self.edge.ledger.submitted(key, bytes, Kind::Response, now);
        }
    }
}
