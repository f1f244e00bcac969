//! The trace of one message: what happens to each of its packets at each hop.
//!
//! All links are tapped while a trace is taken, so that a network without one does nothing for it. A packet is recognised by its slot in
//! the pool, which it keeps from host to host.

use std::collections::BTreeMap;

use rackweave_core::{
    Admission, DropReason, Header, HostId, MessageId, Packet, PacketRef, PayloadStore, Slice,
    SwitchProgram, Time,
};

use super::{Net, TAPPED};
use crate::fabric::serialisation;

/// The packets that a trace follows.
#[derive(Clone, Debug)]
pub struct TraceFilter {
    /// The request or one-way message; its response belongs to it.
    pub message: MessageId,
    /// Its two hosts, in any order.
    pub ends: (HostId, HostId),
    /// The most events that are kept.
    pub limit: usize,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStep {
    /// Its first bit is put on the link.
    Sent {
        /// When its last bit is.
        until: Time,
        /// When the next node has it.
        arrival: Time,
    },
    /// It waits for the link.
    Queued {
        /// The bytes that waited before it came.
        behind: u64,
        /// Whether the queue marked it.
        marked: bool,
    },
    /// It was trimmed to its header, and waits for the link.
    Trimmed,
    /// It was trimmed, and returns to its sender.
    Returned,
    /// It was dropped.
    Dropped(DropReason),
}

/// An event of a traced packet. Those of one packet are in the order of time.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<H> {
    /// When it happened.
    pub at: Time,
    /// The packet, in the order in which hosts sent them.
    pub packet: u32,
    /// The link on which the packet is, or for which it waits; of a packet that was dropped, the last one that is known.
    pub link: u32,
    /// What happened.
    pub step: TraceStep,
    /// The packet as it is then.
    pub content: Packet<H>,
}

/// A traced packet in the network.
#[derive(Clone, Copy, Debug)]
struct Traced {
    number: u32,
    link: u32,
    slice: Option<Slice>,
    priority: u8,
}

/// A trace that is being taken.
#[derive(Debug)]
pub struct Trace<H> {
    filter: TraceFilter,
    /// The ports of connections that have carried the message's bytes, for protocols whose other packets do not name it.
    connections: Vec<u32>,
    slots: BTreeMap<PacketRef, Traced>,
    packets: u32,
    events: Vec<TraceEvent<H>>,
}

impl<H: Header> Trace<H> {
    const fn new(filter: TraceFilter) -> Self {
        Self {
            filter,
            connections: Vec::new(),
            slots: BTreeMap::new(),
            packets: 0,
            events: Vec::new(),
        }
    }

    /// The events so far.
    #[must_use]
    pub fn events(&self) -> &[TraceEvent<H>] {
        &self.events
    }

    /// Whether there were more events than are kept.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.events.len() >= self.filter.limit
    }

    /// Whether a packet belongs to the message.
    fn has(&mut self, packet: &Packet<H>) -> bool {
        let (one, other) = self.filter.ends;
        let between = (packet.src, packet.dst);
        if between != (one, other) && between != (other, one) {
            return false;
        }
        if let Some(id) = packet.header.exchange_id() {
            return id == self.filter.message;
        }
        let reversed = packet.ports.rotate_left(16);
        if let Some(slice) = packet.header.payload() {
            let is_own = MessageId(slice.message.0 & !1) == self.filter.message;
            if is_own && !self.connections.contains(&packet.ports) {
                self.connections.extend([packet.ports, reversed]);
            }
            return is_own;
        }
        self.connections.contains(&packet.ports)
    }

    fn push(&mut self, at: Time, slot: PacketRef, step: TraceStep, content: Packet<H>) {
        let Some(&Traced { number: packet, link, .. }) = self.slots.get(&slot) else { return };
        if !self.is_cut() {
            self.events.push(TraceEvent { at, packet, link, step, content });
        }
    }

    /// Notes that a packet is at a link; `enters` is set if its host sends it. Returns whether it is traced.
    fn place(&mut self, slot: PacketRef, content: &Packet<H>, link: u32, enters: bool) -> bool {
        if !self.has(content) {
            self.slots.remove(&slot);
            return false;
        }
        let number = match self.slots.get(&slot) {
            Some(known) if !enters => known.number,
            _ => {
                self.packets += 1;
                self.packets - 1
            }
        };
        let (slice, priority) = (content.header.payload(), content.priority);
        self.slots.insert(slot, Traced { number, link, slice, priority });
        true
    }

    /// Follows the exchange of the contents of two slots: a queue that trims a packet that waited puts the new one into its place.
    /// Returns the slot that the new one has then.
    fn follow_exchange(
        &mut self,
        slot: PacketRef,
        now: &Packet<H>,
        back: &BackOf<'_>,
    ) -> Option<PacketRef> {
        let slice = now.header.payload();
        let before = self.slots.get(&slot).copied();
        if before.is_some_and(|it| it.slice == slice) {
            return None;
        }
        let waits = |(at, it): &(&PacketRef, &Traced)| **at != slot && it.slice == slice;
        let waited = if self.has(now) { self.slots.iter().find(waits) } else { None };
        let waited = waited.map(|(at, _)| *at);
        let other = waited.or_else(|| before.and_then(|it| back(it.priority)))?;
        let waited = self.slots.remove(&other);
        self.slots.remove(&slot);
        self.slots.extend(before.map(|it| (other, it)));
        self.slots.extend(waited.map(|it| (slot, it)));
        Some(other)
    }
}

/// The last packet that waits with a priority.
type BackOf<'a> = dyn Fn(u8) -> Option<PacketRef> + 'a;

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// Traces a message from now on, in place of an earlier one.
    pub fn trace(&mut self, filter: TraceFilter) {
        for link in &mut self.links {
            link.special |= TAPPED;
        }
        self.trace = Some(Box::new(Trace::new(filter)));
    }

    /// The trace.
    #[must_use]
    pub fn traced(&self) -> Option<&Trace<P::Header>> {
        self.trace.as_deref()
    }

    /// Traces a packet that is put on a link.
    pub(super) fn trace_sent(&mut self, link: u32, packet: PacketRef, at: Time) {
        let Some(trace) = &mut self.trace else { return };
        let content = *self.pool.get(packet);
        if trace.place(packet, &content, link, link < self.components.hosts) {
            let kind = &self.kinds[usize::from(self.links[link as usize].kind)];
            let until = at + serialisation(kind.ticks_per_byte_q16, content.wire_bytes.into());
            trace.push(at, packet, TraceStep::Sent { until, arrival: until + kind.delay }, content);
        }
    }

    /// Traces the decision of a queue about a packet.
    #[cold]
    pub(super) fn trace_queued(
        &mut self,
        link: u32,
        packet: PacketRef,
        behind: u64,
        admission: Admission,
    ) {
        let Some(trace) = &mut self.trace else { return };
        let now = self.now;
        let content = *self.pool.get(packet);
        if admission != Admission::Queued && admission != Admission::Marked {
            let queue = &self.links[link as usize].queue;
            let back = |priority| queue.back(priority);
            if let Some(came) = trace.follow_exchange(packet, &content, &back) {
                let content = *self.pool.get(came);
                if trace.place(came, &content, link, false) {
                    trace.push(now, came, TraceStep::Queued { behind, marked: false }, content);
                }
            }
        }
        let step = match admission {
            Admission::Queued | Admission::Overfull => TraceStep::Queued { behind, marked: false },
            Admission::Marked => TraceStep::Queued { behind, marked: true },
            Admission::Trimmed => TraceStep::Trimmed,
            Admission::ReturnedToSender(_) => TraceStep::Returned,
            Admission::Dropped(reason) => TraceStep::Dropped(reason),
        };
        if trace.place(packet, &content, link, false) {
            trace.push(now, packet, step, content);
        }
        if let TraceStep::Dropped(_) = step {
            trace.slots.remove(&packet);
        }
    }

    /// Traces the loss of a packet.
    #[cold]
    pub(super) fn trace_dropped(&mut self, packet: PacketRef, reason: DropReason) {
        let Some(trace) = &mut self.trace else { return };
        let content = *self.pool.get(packet);
        if trace.has(&content) {
            trace.push(self.now, packet, TraceStep::Dropped(reason), content);
        }
        trace.slots.remove(&packet);
    }
}
