//! A network that is one shard of a fabric, with other shards on other threads.
//!
//! A shard has all links of the fabric, but only its own carry packets. A packet on a link to another shard leaves
//! this one when it is put on the link: the owner carries it ([`Net::take_crossing`], [`Net::deliver`]) to the shard of the receiving
//! switch, which handles its arrival. It arrives no earlier than [`Fabric::lookahead`](crate::Fabric::lookahead) after the
//! event that sent it, so the shards can handle events independently for that long.
//!
//! # Decisions of crossing ports
//! Elsewhere a port decides what it sends next when a packet that it sent before arrives, or when another one joins its
//! queue. Its shard does not see those arrivals. Instead a crossing port that has packets queued has an event one tick
//! after it becomes free, which makes the decision with exactly the packets that have arrived by the moment when it was due. If a packet
//! that the port has sent arrives at this very moment, that arrival would have made the decision, in its place among
//! all events of the moment; so the event has that place. Thus no result depends on the division into shards.

use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{Packet, PacketRef, PayloadStore, Span, SwitchProgram, Time};

use super::{CHARGED, CROSSING, FAULTY, Net};
use crate::fabric::Partition;

/// A packet on a link to another shard.
#[derive(Clone, Copy, Debug)]
pub struct Crossing<H> {
    /// When its last bit arrives, or is available at the switch.
    pub arrival: Time,
    /// The link that carries it.
    pub link: u32,
    /// The packet.
    pub packet: Packet<H>,
}

/// A port that sends to another shard.
#[derive(Clone, Debug, Default)]
struct CrossingPort {
    /// When the packets arrive that it has sent lately, the first one first.
    arrivals: VecDeque<Time>,
    /// Whether its next decision has an event.
    is_scheduled: bool,
    /// Whether that event is at the moment of the decision instead of one tick later.
    is_at_arrival: bool,
    /// The shard at the end of the link.
    shard: u32,
}

/// What a network that is a shard knows of the others.
#[derive(Debug)]
pub(super) struct Shard<H> {
    number: u32,
    partition: Arc<Partition>,
    /// For each link, the port before it if that is a crossing one.
    ports: Vec<CrossingPort>,
    /// For each shard, the packets to it.
    crossing: Vec<Vec<Crossing<H>>>,
    /// The last moment that the shards handle independently.
    until: Time,
    /// When the first of the packets arrives that have left since [`Net::set_window`].
    first_arrival: Time,
}

impl<H> Shard<H> {
    pub(super) fn new(number: u32, partition: Arc<Partition>, links: usize) -> Self {
        let crossing = std::iter::repeat_with(Vec::new).take(partition.shards() as usize);
        Self {
            number,
            crossing: crossing.collect(),
            partition,
            ports: vec![CrossingPort::default(); links],
            until: Time::ZERO,
            first_arrival: Time::MAX,
        }
    }
}

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// Marks the ports of this shard that send to others.
    pub(super) fn mark_crossing_ports(&mut self) {
        let Some(shard) = &mut self.shard else { return };
        let ports = self.links.iter_mut().zip(&mut shard.ports);
        for ((link, port), spec) in ports.zip(self.fabric.links()) {
            let (from, to) = (shard.partition.of(spec.from), shard.partition.of(spec.to));
            if from == shard.number && to != from {
                link.special |= CROSSING;
                port.shard = to;
            }
        }
    }

    /// Whether the port before a link is in this network: always, unless the network is a shard.
    #[must_use]
    #[inline]
    pub fn has_port(&self, link: u32) -> bool {
        self.shard.as_ref().is_none_or(|shard| {
            shard.partition.of(self.fabric.links()[link as usize].from) == shard.number
        })
    }

    /// Whether events that concern the whole fabric are counted here: in the first of all shards.
    pub(super) fn counts_common_events(&self) -> bool {
        self.shard.as_ref().is_none_or(|shard| shard.number == 0)
    }

    /// Takes back the count of the current event, which another shard has too.
    pub fn uncount_common_event(&mut self) {
        if !self.counts_common_events() {
            self.counters.events -= 1;
        }
    }

    /// Sets the last moment up to which events will be handled before the next exchange of packets.
    pub fn set_window(&mut self, until: Time) {
        if let Some(shard) = &mut self.shard {
            (shard.until, shard.first_arrival) = (until, Time::MAX);
        }
    }

    /// When the first of the packets arrives that have left for other shards since [`Net::set_window`].
    #[must_use]
    pub fn first_crossing(&self) -> Option<Time> {
        let first = self.shard.as_ref().map(|shard| shard.first_arrival);
        first.filter(|first| *first < Time::MAX)
    }

    /// The number of packets to other shards that [`Net::take_crossing`] has not taken.
    #[must_use]
    pub fn crossing(&self) -> u64 {
        let lists = self.shard.iter().flat_map(|shard| &shard.crossing);
        lists.map(|list| list.len() as u64).sum()
    }

    /// Exchanges the packets on their way to a shard for an empty list.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn take_crossing(&mut self, shard: u32, list: &mut Vec<Crossing<P::Header>>) {
        if let Some(own) = &mut self.shard {
            std::mem::swap(&mut own.crossing[shard as usize], list);
        }
    }

    /// Accepts packets from another shard, each link's in the order of sending.
    pub fn deliver(&mut self, packets: &mut Vec<Crossing<P::Header>>) {
        for Crossing { arrival, link, packet } in packets.drain(..) {
            let packet = self.pool.insert(packet);
            let state = &mut self.links[link as usize];
            let is_first = state.in_flight.is_empty();
            state.in_flight.push_timed(&mut self.pool, packet, arrival);
            if is_first {
                self.events.push(arrival, link);
            }
        }
    }

    /// Gives a packet that a port has put on its link to another shard.
    #[inline(never)]
    pub(super) fn cross(&mut self, link: u32, packet: PacketRef, start: Time, arrival: Time) {
        if self.links[link as usize].special & !(CROSSING | FAULTY | CHARGED) != 0 {
            self.record(link, packet, start);
        }
        let packet = self.pool.remove(packet);
        let Some(shard) = &mut self.shard else { return };
        assert!(arrival > shard.until, "a packet on link {link} would arrive before the exchange");
        let port = &mut shard.ports[link as usize];
        // The port is free after the start, so that earlier arrivals cannot meet a decision any more.
        while port.arrivals.front().is_some_and(|at| *at <= start) {
            port.arrivals.pop_front();
        }
        port.arrivals.push_back(arrival);
        shard.first_arrival = shard.first_arrival.min(arrival);
        let to = port.shard;
        shard.crossing[to as usize].push(Crossing { arrival, link, packet });
    }

    /// Schedules the next decision of a crossing port, if packets are queued there.
    pub(super) fn schedule_port(&mut self, link: u32) {
        let state = &self.links[link as usize];
        let Some(shard) = &mut self.shard else { return };
        let port = &mut shard.ports[link as usize];
        if port.is_scheduled || state.queue.is_empty() {
            return;
        }
        let due = state.busy_until;
        port.is_scheduled = true;
        port.is_at_arrival = port.arrivals.iter().any(|at| *at == due);
        let at = if port.is_at_arrival { due } else { due + Span::TICK };
        self.events.push(at, link);
    }

    /// Handles the event of a crossing port. It is not counted, because a network that is no shard has none.
    #[inline(never)]
    pub(super) fn on_crossing_port(&mut self, link: u32) {
        let Some(shard) = &mut self.shard else { return };
        let port = &mut shard.ports[link as usize];
        port.is_scheduled = false;
        let before = if port.is_at_arrival { self.now + Span::TICK } else { self.now };
        self.counters.events -= 1;
        self.catch_up(link, before);
        self.schedule_port(link);
    }
}
